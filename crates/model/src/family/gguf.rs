//! Metadata of a GGUF file. GGUF has fewer fields than `config.json`: biases and a tied output show in the
//! tensors, and some numbers are conventions of the format.

use std::collections::BTreeMap;

use super::draft::Draft;
use super::hugging_face::head_dim;
use super::rope::long_rope_attention_factor;
use super::traits::{self, Family, Windows};
use super::{ReadF32, malformed, missing, unsupported};
use crate::description::{ModelDescription, NormKind, Rope, RopePairing, RopeScaling, limits};
use crate::error::Result;
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;

/// `general.architecture` of every family, and how it pairs RoPE's dimensions. Mistral's files say `llama`.
pub(super) const FAMILIES: [(&str, &Family, RopePairing); 8] = [
    ("llama", &traits::LLAMA, RopePairing::Adjacent),
    ("qwen2", &traits::QWEN2, RopePairing::Halves),
    ("qwen3", &traits::QWEN3, RopePairing::Halves),
    ("gemma", &traits::GEMMA, RopePairing::Halves),
    ("gemma2", &traits::GEMMA2, RopePairing::Halves),
    ("gemma3", &traits::GEMMA3, RopePairing::Halves),
    ("phi2", &traits::PHI2, RopePairing::Halves),
    ("phi3", &traits::PHI3, RopePairing::Halves),
];

/// Tensors that hold divisors of RoPE's frequencies: Llama 3's, and Phi-3's for long and short sessions.
pub(super) const ROPE_TENSORS: [&str; 3] = [FREQUENCIES, LONG, SHORT];
const FREQUENCIES: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// Fields that would change the numbers in a way that Triad does not compute, unless they hold the value
/// given here.
const REFUSED: [(&str, f32); 7] = [
    ("expert_count", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_scale", 0.0),
];

/// The family that the file names, and the model that it describes.
pub(super) fn describe(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
    read_f32: &ReadF32<'_>,
) -> Result<(&'static Family, ModelDescription)> {
    let architecture = metadata.string("general.architecture")?;
    let architecture =
        architecture.ok_or_else(|| missing("metadata has no field `general.architecture`"))?;
    let Some(&(_, family, pairing)) = FAMILIES.iter().find(|(name, ..)| *name == architecture)
    else {
        let known: Vec<&str> = FAMILIES.iter().map(|(name, ..)| *name).collect();
        return Err(unsupported(format!(
            "metadata field `general.architecture` is `{}`, which Triad does not run; it runs {}",
            architecture.chars().take(40).collect::<String>(),
            known.join(", ")
        )));
    };
    let reader = Reader {
        metadata,
        tensors,
        architecture,
        family,
    };
    for (field, neutral) in REFUSED {
        if reader.float(field)?.is_some_and(|value| value != neutral) {
            return Err(unsupported(format!(
                "metadata sets `{architecture}.{field}`, which Triad does not support"
            )));
        }
    }
    if metadata.bool(&reader.key("attention.causal"))? == Some(false) {
        return Err(unsupported(format!(
            "metadata field `{architecture}.attention.causal` is false, which Triad does not support"
        )));
    }
    Ok((family, reader.draft(pairing, read_f32)?.describe(family)?))
}

struct Reader<'a> {
    metadata: &'a Metadata,
    tensors: &'a BTreeMap<String, TensorInfo>,
    architecture: &'a str,
    family: &'a Family,
}

impl Reader<'_> {
    fn key(&self, field: &str) -> String {
        format!("{}.{field}", self.architecture)
    }

    fn float(&self, field: &str) -> Result<Option<f32>> {
        self.metadata.float(&self.key(field))
    }

    fn positive(&self, field: &str) -> Result<Option<f32>> {
        match self.float(field)? {
            Some(value) if !(value.is_finite() && value > 0.0) => Err(malformed(format!(
                "metadata field `{}` is {value}, expected a number above 0",
                self.key(field)
            ))),
            value => Ok(value),
        }
    }

    fn size(&self, field: &str, most: usize) -> Result<Option<usize>> {
        let key = self.key(field);
        match self.metadata.integer(&key)? {
            Some(size) if !(1..=most).contains(&size) => Err(malformed(format!(
                "metadata field `{key}` is {size}, expected an integer from 1 to {most}"
            ))),
            size => Ok(size),
        }
    }

    fn required<T>(&self, field: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| missing(format!("metadata has no field `{}`", self.key(field))))
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn draft(&self, pairing: RopePairing, read_f32: &ReadF32<'_>) -> Result<Draft> {
        let family = self.family;
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let hidden = required("embedding_length", limits::HIDDEN)?;
        let blocks = required("block_count", limits::BLOCKS)?;
        let heads = required("attention.head_count", limits::HEADS)?;
        let context = required("context_length", limits::CONTEXT)?;
        let key_width = self.size("attention.key_length", limits::HEAD_DIM)?;
        let head_dim = key_width.map_or_else(|| head_dim(hidden, heads), Ok)?;
        let value_width = self
            .size("attention.value_length", limits::HEAD_DIM)?
            .unwrap_or(head_dim);
        if value_width != head_dim {
            return Err(unsupported(format!(
                "metadata gives keys a width of {head_dim} and values one of {value_width}: Triad runs equal widths"
            )));
        }
        let epsilon = match family.norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let cap =
            |field: &str, default: fn(&traits::SoftCaps) -> Option<f32>| match &family.soft_caps {
                Some(caps) => self.positive(field).map(|cap| cap.or(default(caps))),
                None => Ok(None),
            };
        let fused = self.has("blk.0.attn_qkv.bias");
        let rope = self.rope(pairing, head_dim, context, read_f32)?;
        Ok(Draft {
            name: self.metadata.string("general.name")?.map(str::to_owned),
            hidden,
            vocab: self.vocab()?,
            context,
            heads,
            kv_heads: self
                .size("attention.head_count_kv", limits::HEADS)?
                .unwrap_or(heads),
            head_dim,
            width: required("feed_forward_length", limits::WIDTH)?,
            epsilon: self
                .positive(epsilon)
                .and_then(|value| self.required(epsilon, value))?,
            norm_offset: 0.0,
            query_scalar: self.query_scalar(hidden, heads, head_dim, blocks)?,
            qkv_bias: fused || self.has("blk.0.attn_q.bias"),
            attention_output_bias: self.has("blk.0.attn_output.bias"),
            feed_forward_bias: self.has("blk.0.ffn_up.bias"),
            activation: family.activation,
            score_soft_cap: cap("attn_logit_softcapping", |caps| caps.scores)?,
            logit_soft_cap: cap("final_logit_softcapping", |caps| caps.logits)?,
            windows: self.windows(blocks)?,
            local_rope: match family.local_rope_base {
                Some(default) => {
                    let base = self.positive("rope.freq_base_swa")?.unwrap_or(default);
                    Rope {
                        base,
                        scaling: RopeScaling::None,
                        ..rope.clone()
                    }
                }
                None => rope.clone(),
            },
            rope,
            tied: !self.has("output.weight"),
        })
    }

    /// Rows of the embedding: `vocab_size` is often absent.
    fn vocab(&self) -> Result<usize> {
        let name = "token_embd.weight";
        let embedding = self
            .tensors
            .get(name)
            .ok_or_else(|| missing(format!("tensor `{name}` is missing")))?;
        match embedding.shape.first() {
            Some(&rows) if (1..=limits::VOCAB).contains(&rows) => Ok(rows),
            _ => Err(malformed(format!(
                "tensor `{name}` has shape {:?}, expected 1 to {} rows",
                embedding.shape,
                limits::VOCAB
            ))),
        }
    }

    /// GGUF does not store Gemma's `query_pre_attn_scalar`: it is the head's width but in the two 27B
    /// models, known by their number of blocks, where it is hidden / heads.
    fn query_scalar(
        &self,
        hidden: usize,
        heads: usize,
        head_dim: usize,
        blocks: usize,
    ) -> Result<f32> {
        if let Some(scale) = self.positive("attention.scale")? {
            return Ok(1.0 / (scale * scale));
        }
        let largest = matches!((self.family.name, blocks), ("gemma2", 46) | ("gemma3", 62));
        Ok(if largest {
            hidden as f32 / heads as f32
        } else {
            head_dim as f32
        })
    }

    fn windows(&self, blocks: usize) -> Result<Vec<Option<usize>>> {
        let field = "attention.sliding_window";
        // 0 means none.
        let window = match self.metadata.integer(&self.key(field))? {
            Some(0) => None,
            // Files carry Qwen's `sliding_window` though `use_sliding_window`, which they don't carry, is false. In files of
            // the families without windows, llama.cpp doesn't read the field.
            Some(_) if matches!(self.family.windows, Windows::FromLayer | Windows::Never) => None,
            Some(_) => self.size(field, limits::CONTEXT)?,
            None if self.family.name == "gemma2" => self.family.window,
            None => None,
        };
        let pattern_field = self.key("attention.sliding_window_pattern");
        let windowed: Box<dyn Fn(usize) -> bool> = match (
            self.family.windows,
            self.metadata.get(&pattern_field),
        ) {
            // llama.cpp reads no pattern for these families.
            (Windows::Everywhere, Some(Value::Bools(windowed)))
                if window.is_some() && windowed.contains(&false) =>
            {
                return Err(unsupported(format!(
                    "metadata field `{pattern_field}` leaves layers without a window, which Triad does not support for {}",
                    self.family.name
                )));
            }
            (_, Some(Value::Bools(windowed))) if windowed.len() == blocks => {
                Box::new(|block| windowed[block])
            }
            (Windows::AllButEvery(_), Some(Value::Integer(every @ 1..=1024))) => {
                let every = *every as usize;
                Box::new(move |block| !(block + 1).is_multiple_of(every))
            }
            (_, Some(_)) => {
                return Err(malformed(format!(
                    "metadata field `{pattern_field}` is neither an integer from 1 to 1024 nor {blocks} booleans"
                )));
            }
            (Windows::AllButEvery(every), None) => {
                Box::new(move |block| !(block + 1).is_multiple_of(every))
            }
            (_, None) => Box::new(|_| true),
        };
        Ok((0..blocks)
            .map(|block| window.filter(|_| windowed(block)))
            .collect())
    }

    fn rope(
        &self,
        pairing: RopePairing,
        head_dim: usize,
        context: usize,
        read_f32: &ReadF32<'_>,
    ) -> Result<Rope> {
        let dims = self
            .size("rope.dimension_count", limits::HEAD_DIM)?
            .unwrap_or(head_dim);
        let base = match self.positive("rope.freq_base")? {
            Some(base) => base,
            // Only the older families may leave it out.
            None if self.family.local_rope_base.is_some() => {
                self.required("rope.freq_base", None)?
            }
            None => self.family.rope_base,
        };
        let scaling = self.rope_scaling(dims, context, read_f32)?;
        self.refuse_windows_of_their_own(head_dim, dims, base)?;
        Ok(Rope {
            dims,
            base,
            pairing,
            scaling,
        })
    }

    /// Refuses fields by which llama.cpp gives the blocks with a window other heads or another RoPE, but for Gemma 3's base.
    fn refuse_windows_of_their_own(&self, head_dim: usize, dims: usize, base: f32) -> Result<()> {
        if matches!(self.family.windows, Windows::FromLayer | Windows::Never) {
            return Ok(());
        }
        let refused = |field: &str| {
            let key = self.key(field);
            Err(unsupported(format!(
                "metadata sets `{key}` to another value than that of all blocks, which Triad does not support"
            )))
        };
        let sizes = [
            ("rope.dimension_count_swa", dims),
            ("attention.key_length_swa", head_dim),
            ("attention.value_length_swa", head_dim),
        ];
        for (field, size) in sizes {
            if self
                .metadata
                .integer(&self.key(field))?
                .is_some_and(|other| other != size)
            {
                return refused(field);
            }
        }
        let field = "rope.freq_base_swa";
        if self.family.local_rope_base.is_none()
            && self.float(field)?.is_some_and(|other| other != base)
        {
            return refused(field);
        }
        Ok(())
    }

    fn rope_scaling(
        &self,
        dims: usize,
        context: usize,
        read_f32: &ReadF32<'_>,
    ) -> Result<RopeScaling> {
        let kind = self.metadata.string(&self.key("rope.scaling.type"))?;
        let factor = self
            .float("rope.scaling.factor")?
            .or(self.float("rope.scale_linear")?);
        // Both 0 and 1 mean no scaling.
        let factor = factor.filter(|factor| ![0.0, 1.0].contains(factor));
        let linear = match kind {
            None | Some("linear") => factor,
            // llama.cpp scales the blocks with a window all the same.
            Some("none")
                if factor.is_some() && matches!(self.family.windows, Windows::AllButEvery(_)) =>
            {
                let key = self.key("rope.scaling");
                return Err(unsupported(format!(
                    "metadata field `{key}.type` is `none` though a factor is given, which Triad does not support for {}",
                    self.family.name
                )));
            }
            // llama.cpp divides positions by the factor as well; transformers do not.
            Some("longrope") if factor.is_some() => {
                return Err(unsupported(format!(
                    "metadata scales RoPE by `{}` and by longrope's divisors, which Triad does not support",
                    self.key("rope.scaling.factor")
                )));
            }
            Some("none" | "longrope") => None,
            Some(other) => {
                return Err(unsupported(format!(
                    "metadata field `{}` is `{}`, which Triad does not run; it runs none, linear, longrope",
                    self.key("rope.scaling.type"),
                    other.chars().take(40).collect::<String>()
                )));
            }
        };
        if let Some(factor) = linear.filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
            return Err(malformed(format!(
                "metadata scales RoPE by {factor}, expected a number above 0"
            )));
        }
        let factors = |name| self.factors(name, dims, read_f32);
        let stored = match (factors(FREQUENCIES)?, factors(SHORT)?, factors(LONG)?) {
            (None, None, None) if kind == Some("longrope") => {
                return Err(missing(format!(
                    "tensors `{SHORT}` and `{LONG}` are missing, expected for longrope"
                )));
            }
            (None, None, None) => None,
            (Some(factors), None, None) => Some(RopeScaling::Factors { factors }),
            (None, Some(short), Some(long)) => Some(self.long_rope(short, long, context)?),
            _ => {
                return Err(malformed(format!(
                    "expected RoPE's divisors as `{FREQUENCIES}` or as `{SHORT}` and `{LONG}`, found another mixture"
                )));
            }
        };
        let attention = "rope.scaling.attn_factor";
        if !matches!(stored, Some(RopeScaling::LongRope { .. }))
            && self.float(attention)?.is_some_and(|factor| factor != 1.0)
        {
            let key = self.key(attention);
            return Err(unsupported(format!(
                "metadata sets `{key}` without longrope, which Triad does not support"
            )));
        }
        match (linear, stored) {
            (None, None) => Ok(RopeScaling::None),
            (Some(factor), None) => Ok(RopeScaling::Linear { factor }),
            (None, Some(stored)) if self.family.local_rope_base.is_none() => Ok(stored),
            (_, Some(_)) => Err(unsupported(
                "stored divisors of RoPE together with another RoPE scaling",
            )),
        }
    }

    fn long_rope(&self, short: Vec<f32>, long: Vec<f32>, context: usize) -> Result<RopeScaling> {
        let original_context = self
            .size("rope.scaling.original_context_length", limits::CONTEXT)?
            .unwrap_or(context);
        // Without the field llama.cpp multiplies by 1, transformers by a factor that they compute.
        let computed =
            long_rope_attention_factor(context as f64 / original_context as f64, original_context);
        let field = "rope.scaling.attn_factor";
        let attention_factor = match self.positive(field)? {
            Some(factor) => factor,
            None if computed == 1.0 => computed,
            None => {
                return Err(missing(format!(
                    "metadata field `{}` is missing, expected for longrope",
                    self.key(field)
                )));
            }
        };
        Ok(RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        })
    }

    fn factors(&self, name: &str, dims: usize, read_f32: &ReadF32<'_>) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(name) else {
            return Ok(None);
        };
        if tensor.shape != [dims / 2] {
            return Err(malformed(format!(
                "tensor `{name}` has shape {:?}, expected {:?}",
                tensor.shape,
                [dims / 2]
            )));
        }
        let factors = read_f32(tensor)?;
        match factors
            .iter()
            .find(|factor| !(factor.is_finite() && **factor > 0.0))
        {
            Some(factor) => Err(malformed(format!(
                "tensor `{name}` holds {factor}, expected numbers above 0"
            ))),
            None => Ok(Some(factors)),
        }
    }
}
