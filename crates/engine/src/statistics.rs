//! What the operators of a forward pass take: time, and bytes that they read and write.
//!
//! [`Counters`] count where somebody wants to know ([`Engine::count`](crate::Engine::count)); an operator then reads the
//! clock before and behind its work, and states the sizes of the arrays that it worked on. Otherwise it looks at one flag.

use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_plan::graph::Role;

/// A part of a forward pass that reads arrays and writes others. Those of a block stand in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Rows of the embedding to the residual stream.
    Embedding,
    /// The norms in front of attention and of the feed-forward, with the sums in the residual stream that they read, and
    /// quantizing what they make where nobody reads that in float.
    Norm,
    /// What linear layers read, to INT8, where what makes it does not quantize it: behind attention, for one.
    Quantize,
    /// Products of query, key and value.
    QueryKeyValue,
    /// Norms of query and key heads, where a family has them, and RoPE.
    Rope,
    /// Keys and values to the cache.
    CacheWrite,
    /// Queries with all keys and values that they may look at.
    Attention,
    /// Products of attention's output layer.
    AttentionOutput,
    /// Products of gate and up.
    GateUp,
    /// The activation of gate times up, and quantizing that as behind norms.
    Activation,
    /// Gate and up, the activation and quantizing as one operator, in place of both, where all of them are in INT8; with what
    /// outliers add to these products.
    Gated,
    /// Products of down.
    Down,
    /// A feed-forward that is computed whole, by a device's program or in fixed point, in place of gate and up, activation and
    /// down.
    FeedForward,
    /// What outliers add to the products, but for [`Operator::Gated`].
    Shadows,
    /// What LoRA adapters add to the products.
    Adapters,
    /// The outputs of attention and of the feed-forward, normed where a family does that, to the residual stream, where no
    /// norm reads that: behind the last block, for one.
    Residual,
    /// The last norm, and the logits.
    Output,
}

impl Operator {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Embedding,
        Self::Norm,
        Self::Quantize,
        Self::QueryKeyValue,
        Self::Rope,
        Self::CacheWrite,
        Self::Attention,
        Self::AttentionOutput,
        Self::GateUp,
        Self::Activation,
        Self::Gated,
        Self::Down,
        Self::FeedForward,
        Self::Shadows,
        Self::Adapters,
        Self::Residual,
        Self::Output,
    ];

    /// The products of a role.
    ///
    /// # Panics
    /// If it is none of products.
    pub(crate) fn of_products(role: Role) -> Self {
        match role {
            Role::QueryKeyValue => Self::QueryKeyValue,
            Role::AttentionOutput => Self::AttentionOutput,
            Role::GateUp => Self::GateUp,
            Role::Down => Self::Down,
            _ => unreachable!("{role:?} is no product"),
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Norm => "residual, norm, quantize",
            Self::Quantize => "quantize",
            Self::QueryKeyValue => "query, key, value product",
            Self::Rope => "RoPE",
            Self::CacheWrite => "cache write",
            Self::Attention => "attention",
            Self::AttentionOutput => "attention output product",
            Self::GateUp => "gate, up product",
            Self::Activation => "activation, quantize",
            Self::Gated => "gate, up product, activation, quantize",
            Self::Down => "down product",
            Self::FeedForward => "whole feed-forward",
            Self::Shadows => "shadows",
            Self::Adapters => "adapters",
            Self::Residual => "residual",
            Self::Output => "output",
        }
    }

    /// Whether it is part of a block of the model.
    pub fn is_of_block(self) -> bool {
        !matches!(self, Self::Embedding | Self::Output)
    }

    /// Its place in [`Operator::ALL`].
    fn index(self) -> usize {
        self as usize
    }
}

/// Sizes of the arrays that an operator works on. An array counts once for each run, however often its numbers are looked
/// at; what an operator keeps for itself does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Of activations, keys and values that it reads.
    pub read: u64,
    /// Of activations, keys and values that it writes.
    pub written: u64,
    /// Of weights that it reads: matrices with their scales, biases, factors of norms.
    pub weights: u64,
}

impl Bytes {
    /// Of arrays that are read and written, and bytes of weights.
    pub(crate) fn of(read: usize, written: usize, weights: usize) -> Self {
        Self {
            read: read as u64,
            written: written as u64,
            weights: weights as u64,
        }
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = Self {
            read: self.read + other.read,
            written: self.written + other.written,
            weights: self.weights + other.weights,
        };
    }
}

/// What all runs of one operator took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperatorUse {
    /// Of all runs. Where several processors compute, their times are added up.
    pub time: Duration,
    /// How often it ran.
    pub runs: u64,
    /// Of all runs.
    pub bytes: Bytes,
}

/// What forward passes took, by operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    operators: [OperatorUse; Operator::ALL.len()],
    /// Activations that were quantized.
    pub values: u64,
    /// Outliers among them that a shadow computed.
    pub outliers: u64,
}

impl Statistics {
    /// What all runs of an operator took.
    pub fn of(&self, operator: Operator) -> OperatorUse {
        self.operators[operator.index()]
    }

    /// Time of all operators.
    pub fn time(&self) -> Duration {
        self.operators.iter().map(|operator| operator.time).sum()
    }

    /// Those of layers that compute in INT8. Where others computed in float meanwhile, their products are counted, too.
    pub fn int8(&self) -> Int8Statistics {
        let seconds = |operator| self.of(operator).time.as_secs_f64();
        let products = [
            Operator::QueryKeyValue,
            Operator::AttentionOutput,
            Operator::GateUp,
            Operator::Down,
        ];
        Int8Statistics {
            quantize_seconds: seconds(Operator::Quantize),
            matmul_seconds: products
                .into_iter()
                .chain([Operator::Gated, Operator::FeedForward])
                .map(seconds)
                .sum(),
            shadow_seconds: seconds(Operator::Shadows),
            values: self.values,
            outliers: self.outliers,
        }
    }
}

impl Sub for Statistics {
    type Output = Self;

    /// What came to `earlier`, which was counted before.
    fn sub(mut self, earlier: Self) -> Self {
        for (now, then) in self.operators.iter_mut().zip(&earlier.operators) {
            now.time -= then.time;
            now.runs -= then.runs;
            now.bytes.read -= then.bytes.read;
            now.bytes.written -= then.bytes.written;
            now.bytes.weights -= then.bytes.weights;
        }
        Self {
            values: self.values - earlier.values,
            outliers: self.outliers - earlier.outliers,
            ..self
        }
    }
}

/// Where the time of INT8 layers went, and what their shadows did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Int8Statistics {
    /// Seconds of quantizing activations and finding outliers, but for those that are quantized as they are made: that is
    /// part of what makes them.
    pub quantize_seconds: f64,
    /// Seconds of the INT8 matmuls, and of what is computed with them.
    pub matmul_seconds: f64,
    /// Seconds of the shadow matmuls, but for those of gate and up in prompts, which are part of [`Operator::Gated`].
    pub shadow_seconds: f64,
    /// Activations quantized.
    pub values: u64,
    /// Outliers among them that a shadow computed.
    pub outliers: u64,
}

impl Int8Statistics {
    /// Share of the linear layers' time that shadows take, those of [`Operator::Gated`] not counted.
    pub fn shadow_share(&self) -> f64 {
        let total = self.quantize_seconds + self.matmul_seconds + self.shadow_seconds;
        if total > 0.0 {
            self.shadow_seconds / total
        } else {
            0.0
        }
    }
}

/// The statistics of an engine, which several processors may add to at once.
#[derive(Default)]
pub(crate) struct Counters {
    is_on: AtomicBool,
    counted: Mutex<Statistics>,
}

/// When an operator began; nothing where that is not counted.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Begun(Option<Instant>);

impl Begun {
    /// Whether it is counted.
    pub(crate) fn is_counted(self) -> bool {
        self.0.is_some()
    }
}

impl Counters {
    /// Counts from now on, or no more.
    pub(crate) fn turn(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// All so far.
    pub(crate) fn statistics(&self) -> Statistics {
        *self.lock()
    }

    /// Before an operator.
    #[inline]
    pub(crate) fn begin(&self) -> Begun {
        Begun(self.is_on.load(Ordering::Relaxed).then(Instant::now))
    }

    /// Behind it. `bytes` is called where it counts, behind the clock.
    #[inline]
    pub(crate) fn end(&self, begun: Begun, operator: Operator, bytes: impl FnOnce() -> Bytes) {
        self.end_with(begun, operator, bytes, |_| {});
    }

    /// As [`Counters::end`], with something else to count.
    #[inline]
    pub(crate) fn end_with(
        &self,
        Begun(begun): Begun,
        operator: Operator,
        bytes: impl FnOnce() -> Bytes,
        more: impl FnOnce(&mut Statistics),
    ) {
        let Some(start) = begun else { return };
        let (time, bytes) = (start.elapsed(), bytes());
        let mut counted = self.lock();
        let of_operator = &mut counted.operators[operator.index()];
        of_operator.time += time;
        of_operator.runs += 1;
        of_operator.bytes += bytes;
        more(&mut counted);
    }

    fn lock(&self) -> MutexGuard<'_, Statistics> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_listed_by_their_number() {
        for (index, operator) in Operator::ALL.into_iter().enumerate() {
            assert_eq!(operator.index(), index, "{}", operator.name());
        }
    }

    #[test]
    fn nothing_is_counted_where_nobody_wants_to_know() {
        let counters = Counters::default();
        let run = || {
            let begun = counters.begin();
            counters.end_with(
                begun,
                Operator::Norm,
                || Bytes::of(1, 2, 3),
                |statistics| statistics.values += 5,
            );
            counters.statistics()
        };
        assert_eq!(run(), Statistics::default());
        counters.turn(true);
        let once = run();
        let OperatorUse { runs, bytes, .. } = once.of(Operator::Norm);
        assert_eq!(
            (runs, bytes, once.values),
            (
                1,
                Bytes {
                    read: 1,
                    written: 2,
                    weights: 3
                },
                5
            )
        );
        let difference = run() - once;
        assert_eq!(
            (
                difference.of(Operator::Norm).runs,
                difference.of(Operator::Norm).bytes
            ),
            (1, bytes)
        );
        assert_eq!(
            (difference.values, difference.of(Operator::Residual)),
            (5, OperatorUse::default())
        );
        counters.turn(false);
        let before = counters.statistics();
        assert_eq!(run(), before);
    }
}
