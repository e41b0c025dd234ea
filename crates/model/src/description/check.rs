//! The checks of every description, whichever file it comes from: the engine relies on them.

mod encoder;
mod parts;
mod streams;

use std::ops::RangeInclusive;

use super::{
    Attention, BlockDescription, DeltaNet, Experts, FeedForward, Mamba2, Mixer, ModelDescription,
    Norm, NormKind, QkNorm, Residual, RopeScaling, ShortConv, Temperature,
};
use crate::error::{Error, ErrorKind, Result};

/// Limits for the numbers of a file, far above every published model. They keep every product of two of these numbers
/// within 64 bits, and the memory of a description within a few megabytes.
pub(crate) mod limits {
    /// Layers after pooling.
    pub(crate) const LAYERS_AFTER_POOLING: usize = 16;
    /// Classes of a classifier.
    pub(crate) const CLASSES: usize = 1 << 16;
    pub const BLOCKS: usize = 1024;
    pub const HEADS: usize = 1024;
    pub const HEAD_DIM: usize = 1024;
    pub const HIDDEN: usize = 1 << 20;
    pub const EXPERTS: usize = 1024;
    pub const WIDTH: usize = 1 << 22;
    pub const VOCAB: usize = 1 << 24;
    pub const CONTEXT: usize = 1 << 30;
    pub const TAPS: usize = 64;
    pub const STATE: usize = 1 << 24;
}

/// Ranges of the numbers that enter computations, much wider than those of every published model. They keep products
/// and quotients of such a number with a number of the model finite and nonzero: with an epsilon near the largest f32,
/// or a subnormal factor, every norm would output zeros.
mod ranges {
    use std::ops::RangeInclusive;

    /// Real values are 1e-12 to 1e-3.
    pub const EPSILON: RangeInclusive<f32> = 1e-20..=1.0;
    pub const FACTOR: RangeInclusive<f32> = 1e-6..=1e6;
    pub const SUM_BOUND: RangeInclusive<f32> = 0.0..=1e-3;
    pub const SOFT_CAP: RangeInclusive<f32> = 1e-3..=1e9;
    pub const ROPE_BASE: RangeInclusive<f32> = 1.0..=1e15;
    pub const ROPE_DIVISOR: RangeInclusive<f32> = 1e-3..=1e6;
}

impl ModelDescription {
    /// Checks that the numbers are valid and consistent.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] naming the first invalid number and the expected range.
    pub fn check(&self) -> Result<()> {
        size("the number of blocks", self.blocks.len(), limits::BLOCKS)?;
        size(
            "the width of the residual stream",
            self.hidden,
            limits::HIDDEN,
        )?;
        size("the vocabulary", self.vocab, limits::VOCAB)?;
        size("the context", self.context, limits::CONTEXT)?;
        within(
            "the factor on the embedding",
            Some(self.embedding_scale),
            ranges::FACTOR,
        )?;
        within(
            "the factor on the residual additions",
            Some(self.residual_scale),
            ranges::FACTOR,
        )?;
        within(
            "the factor on the logits",
            Some(self.logit_scale),
            ranges::FACTOR,
        )?;
        within(
            "the soft cap of logits",
            self.logit_soft_cap,
            ranges::SOFT_CAP,
        )?;
        self.output_norm.check()?;
        if let Some(inputs) = &self.token_inputs {
            inputs.check(self.vocab)?;
        }
        self.check_streams()?;
        self.blocks.iter().try_for_each(BlockDescription::check)?;
        self.check_second_mixers()?;
        encoder::check(self)?;
        self.check_mtp()?;
        self.blocks
            .iter()
            .enumerate()
            .try_for_each(|(index, block)| self.check_source(index, block))
    }

    /// Checks the head that predicts one more token.
    fn check_mtp(&self) -> Result<()> {
        let Some(head) = self.mtp_model() else {
            return Ok(());
        };
        let attention = head.blocks[0].attention();
        if attention.is_none_or(|it| it.bidirectional) || self.is_encoder() {
            return Err(malformed(
                "the block of the head that predicts one more token has no attention to earlier tokens, expected some",
            ));
        }
        head.check()
    }

    /// Checks that a mixer which reads the norm of the block before follows one that is alone in its block.
    fn check_second_mixers(&self) -> Result<()> {
        let residuals: Vec<_> = self.blocks.iter().map(|block| block.residual).collect();
        let is_second = |index: &usize| residuals[*index] == Residual::SecondMixer;
        let follows = |index: usize| {
            let before = index.checked_sub(1).map(|before| residuals[before]);
            before == Some(Residual::MixerAlone)
        };
        match (0..residuals.len())
            .filter(is_second)
            .find(|index| !follows(*index))
        {
            None => Ok(()),
            Some(index) => Err(malformed(format!(
                "the mixer of block {index} reads the norm of the block before, expected a block without a feed-forward there"
            ))),
        }
    }

    /// Checks that a block reads keys and values of an earlier block that has some of the same shape.
    fn check_source(&self, index: usize, block: &BlockDescription) -> Result<()> {
        let Some((attention, source)) = block
            .attention()
            .and_then(|it| Some((it, it.shared_from()?)))
        else {
            return Ok(());
        };
        let other = self.blocks[..index]
            .get(source)
            .and_then(BlockDescription::attention);
        let shape = |attention: &Attention| (attention.kv_heads, attention.head_dim);
        match other {
            // The value of a latent vector is a part of its key: the reader would look for values that are not there.
            Some(other)
                if other.shared_from().is_none()
                    && other.stores_values()
                    && shape(other) == shape(attention) =>
            {
                Ok(())
            }
            _ => Err(malformed(format!(
                "block {index} reads keys and values of block {source}: expected an earlier block with its own, of the same heads"
            ))),
        }
    }
}

impl BlockDescription {
    fn check(&self) -> Result<()> {
        let Self {
            mixer,
            feed_forward,
            norm,
            residual,
            scaled: _,
            mixer_scale,
            feed_forward_scale,
        } = self;
        for factor in [*mixer_scale, *feed_forward_scale, feed_forward.gate_scale] {
            within("a factor of a block", Some(factor), ranges::FACTOR)?;
        }
        match residual.has_feed_forward() {
            true => feed_forward.check()?,
            false if feed_forward.width == 0 && feed_forward.experts.is_none() => {}
            false => {
                return Err(malformed(
                    "a block without a feed-forward that has one, expected a width of 0 and no experts",
                ));
            }
        }
        norm.check()?;
        if feed_forward.experts.is_some_and(|it| it.branch) && norm.kind != NormKind::Rms {
            return Err(malformed(
                "experts next to a dense feed-forward with layer norms, expected RMS norms",
            ));
        }
        match mixer {
            Mixer::Attention(attention) => attention.check(),
            Mixer::ShortConv(ShortConv { channels, taps, .. }) => {
                size("the channels of a convolution", *channels, limits::HIDDEN)?;
                check_taps(*taps)
            }
            Mixer::DeltaNet(net) => net.check(),
            Mixer::Mamba2(mamba) => mamba.check(),
        }
    }
}

/// A convolution over one position would have no state.
fn check_taps(taps: usize) -> Result<()> {
    match (2..=limits::TAPS).contains(&taps) {
        true => Ok(()),
        false => Err(malformed(format!(
            "a convolution over {taps} positions: expected 2 to {}",
            limits::TAPS
        ))),
    }
}

impl DeltaNet {
    fn check(&self) -> Result<()> {
        let Self {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
            sharing: _,
            epsilon,
        } = *self;
        size("the number of key heads", key_heads, limits::HEADS)?;
        size("the number of value heads", value_heads, limits::HEADS)?;
        size("the width of a key head", key_dim, limits::HEAD_DIM)?;
        size("the width of a value head", value_dim, limits::HEAD_DIM)?;
        if value_heads % key_heads != 0 {
            return Err(malformed(format!(
                "{value_heads} value heads can't share {key_heads} key heads: expected a divisor of {value_heads}"
            )));
        }
        let state = value_heads * key_dim * value_dim;
        size(
            "the number of values of a block's state",
            state,
            limits::STATE,
        )?;
        check_taps(taps)?;
        within("the norms' epsilon", Some(epsilon), ranges::EPSILON)
    }
}

impl Mamba2 {
    fn check(&self) -> Result<()> {
        let Self {
            heads,
            head_dim,
            groups,
            state,
            taps,
            conv_bias: _,
            bias: _,
            norm: _,
            factors,
            epsilon,
        } = *self;
        for factor in factors.into_iter().flatten() {
            within("a factor of a mixer's inputs", Some(factor), ranges::FACTOR)?;
        }
        size("the number of heads", heads, limits::HEADS)?;
        size("the width of a head", head_dim, limits::HEAD_DIM)?;
        size("the number of groups of heads", groups, heads)?;
        size("the width of a state's vectors", state, limits::HEAD_DIM)?;
        if heads % groups != 0 {
            return Err(malformed(format!(
                "{heads} heads can't be cut into {groups} groups: expected a divisor of {heads}"
            )));
        }
        let state = heads * head_dim * state;
        size(
            "the number of values of a block's state",
            state,
            limits::STATE,
        )?;
        check_taps(taps)?;
        within("the norms' epsilon", Some(epsilon), ranges::EPSILON)
    }
}

impl FeedForward {
    fn check(&self) -> Result<()> {
        self.check_cutoff()?;
        let Some(experts) = self.experts else {
            return size("the width of the feed-forward", self.width, limits::WIDTH);
        };
        let Experts {
            count,
            used,
            width,
            scale,
            sum_offset,
            sum_floor,
            clamp,
            shared_gate,
            branch,
            groups,
            ..
        } = experts;
        size("the number of experts", count, limits::EXPERTS)?;
        size("the number of experts of a row", used, count)?;
        size("the width of an expert", width, limits::WIDTH)?;
        within(
            "the factor on the experts' weights",
            Some(scale),
            ranges::FACTOR,
        )?;
        for bound in [sum_offset, sum_floor] {
            within(
                "the bound of the sum of experts' weights",
                Some(bound),
                ranges::SUM_BOUND,
            )?;
        }
        if let Some(groups) = groups {
            groups.check(count, used)?;
        }
        within(
            "the limit of the experts' activation",
            clamp,
            ranges::SOFT_CAP,
        )?;
        if self.width > 0 {
            size("the width of the shared expert", self.width, limits::WIDTH)?;
        } else if shared_gate {
            return Err(malformed(
                "a gate of a shared expert of width 0, expected a width",
            ));
        }
        if branch && (self.width == 0 || shared_gate) {
            return Err(malformed(
                "experts next to a dense feed-forward of width 0 or with a gate, expected a width and no gate",
            ));
        }
        let needs_gate = clamp.is_some() || branch;
        if needs_gate && !self.gated || self.bias {
            return Err(malformed(
                "experts next to layers with biases, or without a gate that their activation needs",
            ));
        }
        Ok(())
    }
}

impl Norm {
    fn check(&self) -> Result<()> {
        within("the norms' epsilon", Some(self.epsilon), ranges::EPSILON)?;
        let offset = self.weight_offset;
        match (-16.0..=16.0).contains(&offset) {
            true => Ok(()),
            false => Err(malformed(format!(
                "the offset of a norm's weight is {offset}, expected a number from -16 to 16"
            ))),
        }
    }
}

impl Attention {
    fn check(&self) -> Result<()> {
        let Self {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self;
        size("the number of attention heads", heads, limits::HEADS)?;
        size("the number of key-value heads", kv_heads, limits::HEADS)?;
        size("the width of a head", head_dim, limits::HEAD_DIM)?;
        if heads % kv_heads != 0 {
            return Err(malformed(format!(
                "{heads} attention heads can't share {kv_heads} key-value heads: expected a divisor of {heads}"
            )));
        }
        within(
            "the factor on attention scores",
            Some(self.scale),
            ranges::FACTOR,
        )?;
        within(
            "the soft cap of attention scores",
            self.soft_cap,
            ranges::SOFT_CAP,
        )?;
        if let Some(QkNorm { norm, .. }) = &self.qk_norm {
            norm.check()?;
        }
        if let Some(latent) = self.latent() {
            self.check_latent(latent)?;
        }
        within("the values' epsilon", self.value_norm, ranges::EPSILON)?;
        if let Some(Temperature { scale, context }) = self.temperature {
            within("the factor of the temperature", Some(scale), ranges::FACTOR)?;
            size(
                "the context before the temperature",
                context,
                limits::CONTEXT,
            )?;
        }
        if let Some(window) = self.window {
            size("the window of attention", window, limits::CONTEXT)?;
        }
        let dims = self.rope.dims;
        if !dims.is_multiple_of(2) || dims > head_dim {
            return Err(malformed(format!(
                "RoPE on {dims} dimensions of a head: expected an even number up to the head's {head_dim}"
            )));
        }
        if self.rope.still > dims / 2 {
            return Err(malformed(format!(
                "RoPE leaves {} pairs still, expected at most {}",
                self.rope.still,
                dims / 2
            )));
        }
        within("the base of RoPE", Some(self.rope.base), ranges::ROPE_BASE)?;
        self.rope.scaling.check(dims / 2)
    }
}

impl RopeScaling {
    /// Checks the scaling for `pairs` frequencies.
    fn check(&self, pairs: usize) -> Result<()> {
        let divisors = |what: &str, divisors: &[f32]| {
            if divisors.len() != pairs {
                return Err(malformed(format!(
                    "{what} of RoPE are {}, expected {pairs}",
                    divisors.len()
                )));
            }
            divisors.iter().try_for_each(|divisor| {
                within(
                    "a divisor of RoPE's frequencies",
                    Some(*divisor),
                    ranges::ROPE_DIVISOR,
                )
            })
        };
        match self {
            Self::None => Ok(()),
            Self::Linear { factor } => {
                within("the factor of RoPE", Some(*factor), ranges::ROPE_DIVISOR)
            }
            Self::Factors { factors } => divisors("the divisors", factors),
            Self::Yarn {
                factors,
                attention_factor,
            } => {
                divisors("the divisors", factors)?;
                within(
                    "the attention factor of YaRN",
                    Some(*attention_factor),
                    ranges::FACTOR,
                )
            }
            Self::LongRope {
                short,
                long,
                original_context,
                attention_factor,
            } => {
                divisors("the short divisors", short)?;
                divisors("the long divisors", long)?;
                size(
                    "the context before LongRoPE",
                    *original_context,
                    limits::CONTEXT,
                )?;
                within(
                    "the attention factor of LongRoPE",
                    Some(*attention_factor),
                    ranges::FACTOR,
                )
            }
        }
    }
}

fn size(what: &str, value: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(malformed(format!(
        "{what} is {value}, expected 1 to {most}"
    )))
}

fn within(what: &str, value: Option<f32>, range: RangeInclusive<f32>) -> Result<()> {
    match value.filter(|value| !range.contains(value)) {
        None => Ok(()),
        Some(value) => {
            let (least, most) = (range.start(), range.end());
            Err(malformed(format!(
                "{what} is {value:?}, expected a number from {least:?} to {most:?}"
            )))
        }
    }
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{KeyValues, Latent};
    use crate::family;

    #[test]
    fn every_known_shape_makes_sense() {
        for name in family::SHAPES {
            family::shape(name).unwrap().check().unwrap();
        }
    }

    #[test]
    fn a_number_that_makes_no_sense_is_named() {
        type Change = fn(&mut ModelDescription);
        let cases: [(&str, Change); 15] = [
            ("number of blocks is 0", |model| model.blocks.clear()),
            ("vocabulary is 0", |model| model.vocab = 0),
            ("residual stream is 18446744073709551615", |model| {
                model.hidden = usize::MAX;
            }),
            ("context is 0", |model| model.context = 0),
            ("embedding is NaN", |model| model.embedding_scale = f32::NAN),
            ("cap of logits is -1.0", |model| {
                model.logit_soft_cap = Some(-1.0);
            }),
            ("epsilon is 0.0", |model| model.output_norm.epsilon = 0.0),
            ("norm's weight is inf", |model| {
                model.blocks[1].norm.weight_offset = f32::INFINITY;
            }),
            ("can't share 3", |model| {
                model.blocks[1].attention_mut().unwrap().kv_heads = 3;
            }),
            ("key-value heads is 0", |model| {
                model.blocks[1].attention_mut().unwrap().kv_heads = 0;
            }),
            ("window of attention is 0", |model| {
                model.blocks[1].attention_mut().unwrap().window = Some(0);
            }),
            ("RoPE on 7 dimensions", |model| {
                model.blocks[1].attention_mut().unwrap().rope.dims = 7;
            }),
            ("divisors of RoPE are 1", |model| {
                model.blocks[1].attention_mut().unwrap().rope.scaling =
                    RopeScaling::Factors { factors: vec![1.0] };
            }),
            ("reads keys and values of block 0", |model| {
                let latent = Latent {
                    query: None,
                    width: 16,
                    key_dim: 8,
                    value_dim: 8,
                };
                for block in &mut model.blocks[..2] {
                    let attention = block.attention_mut().unwrap();
                    (attention.kv_heads, attention.head_dim) = (1, 48);
                    attention.rope.dims = 32;
                    attention.key_values = KeyValues::OfBlock(0);
                }
                let first = model.blocks[0].attention_mut().unwrap();
                first.key_values = KeyValues::Latent(latent);
                first.qk_norm = Some(QkNorm {
                    norm: Norm {
                        kind: NormKind::Rms,
                        epsilon: 1e-6,
                        weight_offset: 0.0,
                    },
                    spans_heads: false,
                    after_rope: false,
                });
            }),
            ("feed-forward is 0", |model| {
                model.blocks[1].feed_forward.width = 0;
            }),
        ];
        for (expected, change) in cases {
            let mut model = family::shape("phi-2").unwrap();
            change(&mut model);
            let error = model.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(
                error.to_string().contains(expected),
                "{error} for {expected}"
            );
        }
    }
}
