//! Time of each operator of a forward pass, and the bytes that it reads and writes.
//!
//! [`Counters`] count only while counting is on ([`Engine::count`](crate::Engine::count)). An operator then reads the
//! clock before and after its work, and states the sizes of the arrays that it used. Otherwise it only reads one flag.

use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_model::role::Role;

/// A part of a forward pass that reads arrays and writes others. The operators of a block are listed in the order in
/// which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// Reads rows of the embedding into the residual stream.
    Embedding,
    /// The norms before attention and before the feed-forward. Includes the residual additions that they read, and
    /// quantizing their output where no layer reads it in float.
    Norm,
    /// Quantizing the input of linear layers to INT8 where the previous operator does not do it, for example after
    /// attention.
    Quantize,
    /// Linear layers of query, key and value.
    QueryKeyValue,
    /// Norms of query and key heads, where a family has them, and RoPE.
    Rope,
    /// Writing keys and values to the cache.
    CacheWrite,
    /// Attention of the queries to all keys and values that they may see.
    Attention,
    /// The operator of a mixer with a state.
    Mixer,
    /// The output layer of attention.
    AttentionOutput,
    /// Linear layers of gate and up.
    GateUp,
    /// The activation of gate times up, and quantizing the result as after norms.
    Activation,
    /// Gate and up, the activation and quantizing as one operator instead of two, where all of them are INT8. Includes
    /// the outlier correction of gate and up.
    Gated,
    /// The linear layer of down.
    Down,
    /// A feed-forward that is computed as a whole, by a device's program or in fixed point, instead of gate and up,
    /// activation and down.
    FeedForward,
    /// The choice of experts.
    Router,
    /// The feed-forwards of the chosen experts.
    Experts,
    /// The input of a block by token: its gate, its activation and its output.
    TokenInput,
    /// The outlier correction of linear layers, except in [`Operator::Gated`].
    Shadows,
    /// The LoRA adapters of linear layers.
    Adapters,
    /// Adding the outputs of attention and of the feed-forward, normed where a family does that, to the residual
    /// stream, where no norm reads the sum: for example after the last block.
    Residual,
    /// The last norm, and the logits.
    Output,
}

impl Operator {
    /// All operators.
    pub const ALL: [Self; 21] = [
        Self::Embedding,
        Self::Norm,
        Self::Quantize,
        Self::QueryKeyValue,
        Self::Rope,
        Self::CacheWrite,
        Self::Attention,
        Self::Mixer,
        Self::AttentionOutput,
        Self::GateUp,
        Self::Activation,
        Self::Gated,
        Self::Down,
        Self::FeedForward,
        Self::Router,
        Self::Experts,
        Self::TokenInput,
        Self::Shadows,
        Self::Adapters,
        Self::Residual,
        Self::Output,
    ];

    /// Returns the operator of the linear layers of a role.
    ///
    /// # Panics
    /// If the role has no linear layers.
    pub(crate) fn of_products(role: Role) -> Self {
        match role {
            Role::QueryKeyValue => Self::QueryKeyValue,
            Role::AttentionOutput => Self::AttentionOutput,
            Role::GateUp => Self::GateUp,
            Role::Down => Self::Down,
            // As a whole, a feed-forward is one program, but for its experts.
            Role::FeedForward => Self::Experts,
            _ => unreachable!("{role:?} has no linear layers"),
        }
    }

    /// Returns the name to display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Norm => "residual, norm, quantize",
            Self::Quantize => "quantize",
            Self::QueryKeyValue => "query, key, value product",
            Self::Rope => "RoPE",
            Self::CacheWrite => "cache write",
            Self::Attention => "attention",
            Self::Mixer => "mixer with a state",
            Self::AttentionOutput => "attention output product",
            Self::GateUp => "gate, up product",
            Self::Activation => "activation, quantize",
            Self::Gated => "gate, up product, activation, quantize",
            Self::Down => "down product",
            Self::FeedForward => "whole feed-forward",
            Self::Router => "router",
            Self::Experts => "experts",
            Self::TokenInput => "input by token",
            Self::Shadows => "shadows",
            Self::Adapters => "adapters",
            Self::Residual => "residual",
            Self::Output => "output",
        }
    }

    /// Returns whether it is part of a block of the model.
    pub fn is_of_block(self) -> bool {
        !matches!(self, Self::Embedding | Self::Output)
    }

    /// Returns its index in [`Operator::ALL`].
    fn index(self) -> usize {
        self as usize
    }
}

/// Sizes of the arrays that an operator uses. An array counts once per run, however often its values are read.
/// Temporary arrays of an operator do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Bytes of activations, keys and values that it reads.
    pub read: u64,
    /// Bytes of activations, keys and values that it writes.
    pub written: u64,
    /// Bytes of weights that it reads: matrices with their scales, biases, factors of norms.
    pub weights: u64,
}

impl Bytes {
    /// Creates the sizes of arrays that are read and written, and of weights.
    pub fn new(read: usize, written: usize, weights: usize) -> Self {
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

/// Time, runs and bytes of one operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OperatorUse {
    /// Time of all runs. If several processors compute, their times are added.
    pub time: Duration,
    /// The number of runs.
    pub runs: u64,
    /// Bytes of all runs.
    pub bytes: Bytes,
}

/// Time, runs and bytes of forward passes, by operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    operators: [OperatorUse; Operator::ALL.len()],
    /// The number of activations that were quantized.
    pub values: u64,
    /// The number of outliers among them that a shadow computed.
    pub outliers: u64,
}

impl Statistics {
    /// Returns time, runs and bytes of an operator.
    pub fn operator(&self, operator: Operator) -> OperatorUse {
        self.operators[operator.index()]
    }

    /// Returns the time of all operators.
    pub fn time(&self) -> Duration {
        self.operators.iter().map(|operator| operator.time).sum()
    }

    /// Returns the statistics of INT8 layers. If other layers computed in float meanwhile, their gemms are included.
    pub fn int8(&self) -> Int8Statistics {
        let seconds = |operator| self.operator(operator).time.as_secs_f64();
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

    /// Returns the difference to `earlier`, which was counted before.
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

/// Times of INT8 layers, and counts of their outliers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Int8Statistics {
    /// Seconds of quantizing activations and finding outliers, except where the operator that computes them also
    /// quantizes them: that time is part of that operator.
    pub quantize_seconds: f64,
    /// Seconds of the INT8 gemms, and of the operators that are fused with them.
    pub matmul_seconds: f64,
    /// Seconds of the shadow gemms, except for those of gate and up in prompts, which are part of [`Operator::Gated`].
    pub shadow_seconds: f64,
    /// The number of activations that were quantized.
    pub values: u64,
    /// The number of outliers among them that a shadow computed.
    pub outliers: u64,
}

impl Int8Statistics {
    /// Returns the share of shadows in the time of linear layers, without those of [`Operator::Gated`].
    pub fn shadow_share(&self) -> f64 {
        let total = self.quantize_seconds + self.matmul_seconds + self.shadow_seconds;
        if total > 0.0 {
            self.shadow_seconds / total
        } else {
            0.0
        }
    }
}

/// The statistics of an engine. Several processors may add to them concurrently.
#[derive(Default)]
pub struct Counters {
    is_on: AtomicBool,
    counted: Mutex<Statistics>,
}

/// The start time of an operator; `None` while counting is off.
#[must_use]
#[derive(Clone, Copy)]
pub struct Begun(Option<Instant>);

impl Begun {
    /// Returns whether the operator is counted.
    pub fn is_counted(self) -> bool {
        self.0.is_some()
    }
}

impl Counters {
    /// Turns counting on or off.
    pub fn turn(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn statistics(&self) -> Statistics {
        *self.lock()
    }

    /// Starts the clock of an operator, if counting is on.
    #[inline]
    pub fn begin(&self) -> Begun {
        Begun(self.is_on.load(Ordering::Relaxed).then(Instant::now))
    }

    /// Counts an operator that has ended. If counting is on, calls `bytes` after the clock has been read.
    #[inline]
    pub fn end(&self, begun: Begun, operator: Operator, bytes: impl FnOnce() -> Bytes) {
        self.end_with(begun, operator, bytes, |_| {});
    }

    /// Counts as [`Counters::end`] does, and calls `more` to count something else.
    #[inline]
    pub fn end_with(
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
    fn nothing_is_counted_while_counting_is_off() {
        let counters = Counters::default();
        let run = || {
            let begun = counters.begin();
            counters.end_with(
                begun,
                Operator::Norm,
                || Bytes::new(1, 2, 3),
                |statistics| statistics.values += 5,
            );
            counters.statistics()
        };
        assert_eq!(run(), Statistics::default());
        counters.turn(true);
        let once = run();
        let OperatorUse { runs, bytes, .. } = once.operator(Operator::Norm);
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
                difference.operator(Operator::Norm).runs,
                difference.operator(Operator::Norm).bytes
            ),
            (1, bytes)
        );
        assert_eq!(
            (difference.values, difference.operator(Operator::Residual)),
            (5, OperatorUse::default())
        );
        counters.turn(false);
        let before = counters.statistics();
        assert_eq!(run(), before);
    }
}
