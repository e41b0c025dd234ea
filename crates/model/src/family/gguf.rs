//! Metadata of a GGUF file. GGUF has fewer fields than `config.json`: biases and a tied output show in the
//! tensors, and some numbers are conventions of the format.

use std::collections::BTreeMap;

use super::draft::{Draft, head_dim};
use super::expert_families;
use super::gguf_families::FAMILIES;
use super::kinds::{BlockShapes, LocalRope, Mixers, QkNorms, SoftCaps};
use super::parts::PartFactors;
use super::traits::Family;
use super::{ReadF32, malformed, missing, ollama, unsupported};
use crate::description::{
    Activation, ModelDescription, NormKind, Rope, RopePairing, RopeScaling, Temperature, limits,
};
use crate::error::Result;
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;

/// Fields that would change the numbers in a way that Triad does not compute, unless they hold the value
/// given here.
const REFUSED: [(&str, f32); 3] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_length", 0.0),
];

/// The soft cap of logits.
const FINAL_CAP: &str = "final_logit_softcapping";

/// The number of experts, in families without experts 0.
const EXPERT_COUNT: (&str, f32) = ("expert_count", 0.0);

/// A factor that only Ministral 3 has.
const TEMPERATURE: (&str, f32) = ("attention.temperature_scale", 0.0);

/// The family that the file names, and the model that it describes.
pub(super) fn describe(
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
    read_f32: &ReadF32<'_>,
) -> Result<(&'static Family, ModelDescription)> {
    let architecture = metadata.string("general.architecture")?;
    let architecture =
        architecture.ok_or_else(|| missing("metadata has no field `general.architecture`"))?;
    if architecture == "clip" {
        return Err(unsupported(
            "this is the projector of a vision model (metadata field `general.architecture` is `clip`); give the model's \
             own GGUF file",
        ));
    }
    let Some(&(_, family, pairing)) = FAMILIES.iter().find(|(name, ..)| *name == architecture)
    else {
        let known: Vec<&str> = FAMILIES.iter().map(|(name, ..)| *name).collect();
        return Err(unsupported(format!(
            "metadata field `general.architecture` is `{}`, which Triad does not run; it runs {}",
            architecture.chars().take(40).collect::<String>(),
            known.join(", ")
        )));
    };
    let count = metadata.float(&format!("{architecture}.expert_count"))?;
    let has_experts = count.is_some_and(|count| count > 0.0);
    let family = match architecture {
        "llama" if has_experts => &expert_families::MIXTRAL,
        "gemma4" if has_experts => &expert_families::GEMMA4_MOE,
        "granitehybrid" if has_experts => &expert_families::GRANITE_HYBRID_MOE,
        _ => family,
    };
    let translated = match architecture {
        "gemma3" => ollama::translated(metadata, tensors)?,
        _ => None,
    };
    let metadata = translated.as_ref().unwrap_or(metadata);
    let reader = Reader {
        metadata,
        tensors,
        architecture,
        family,
    };
    reader.refuse_factors()?;
    let temperature = (!family.temperature).then_some(&TEMPERATURE);
    let experts = family.experts.is_none().then_some(&EXPERT_COUNT);
    for &(field, neutral) in REFUSED.iter().chain(temperature).chain(experts) {
        reader.refuse_unless(field, neutral)?;
    }
    reader.check_causal()?;
    Ok((family, reader.draft(pairing, read_f32)?.describe(family)?))
}

/// The fields and tensors of a file of one family.
pub(super) struct Reader<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) tensors: &'a BTreeMap<String, TensorInfo>,
    pub(super) architecture: &'a str,
    pub(super) family: &'a Family,
}

impl Reader<'_> {
    pub(super) fn key(&self, field: &str) -> String {
        format!("{}.{field}", self.architecture)
    }

    pub(super) fn float(&self, field: &str) -> Result<Option<f32>> {
        self.metadata.float(&self.key(field))
    }

    pub(super) fn positive(&self, field: &str) -> Result<Option<f32>> {
        match self.float(field)? {
            Some(value) if !(value.is_finite() && value > 0.0) => Err(malformed(format!(
                "metadata field `{}` is {value}, expected a number above 0",
                self.key(field)
            ))),
            value => Ok(value),
        }
    }

    /// Refuses a number that the file states and that is not `neutral`.
    pub(super) fn refuse_unless(&self, field: &str, neutral: f32) -> Result<()> {
        match self.float(field)?.filter(|value| *value != neutral) {
            None => Ok(()),
            Some(_) => Err(unsupported(format!(
                "metadata sets `{}`, which Triad does not support",
                self.key(field)
            ))),
        }
    }

    pub(super) fn size(&self, field: &str, most: usize) -> Result<Option<usize>> {
        let key = self.key(field);
        match self.metadata.integer(&key)? {
            Some(size) if !(1..=most).contains(&size) => Err(malformed(format!(
                "metadata field `{key}` is {size}, expected an integer from 1 to {most}"
            ))),
            size => Ok(size),
        }
    }

    /// Returns a size that a file may state for each block, if all are equal.
    fn size_of_blocks(&self, field: &str, most: usize, blocks: usize) -> Result<Option<usize>> {
        let key = self.key(field);
        let Some(Value::Integers(sizes)) = self.metadata.get(&key) else {
            return self.size(field, most);
        };
        let first = sizes.first().copied().unwrap_or(0);
        if let Some(other) = sizes.iter().find(|size| **size != first) {
            return Err(unsupported(format!(
                "metadata field `{key}` has {first} and {other} for different blocks, which Triad does not support"
            )));
        }
        match usize::try_from(first) {
            Ok(size) if sizes.len() == blocks && (1..=most).contains(&size) => Ok(Some(size)),
            _ => Err(malformed(format!(
                "metadata field `{key}` is {} times {first}, expected an integer from 1 to {most} for each of {blocks} \
                 blocks",
                sizes.len()
            ))),
        }
    }

    pub(super) fn required<T>(&self, field: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| missing(format!("metadata has no field `{}`", self.key(field))))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn draft(&self, pairing: RopePairing, read_f32: &ReadF32<'_>) -> Result<Draft> {
        let family = self.family;
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let hidden = required("embedding_length", limits::HIDDEN)?;
        let in_file = self.blocks()?;
        let layout = self.layout(in_file)?;
        let blocks = layout.as_ref().map_or(in_file, |(parts, _)| parts.len());
        let required_of_blocks = |field: &str, most| {
            self.size_of_blocks(field, most, in_file)
                .and_then(|size| self.required(field, size))
        };
        let heads = required_of_blocks("attention.head_count", limits::HEADS)?;
        let context = required("context_length", limits::CONTEXT)?;
        let latent = match family.latent {
            Some(_) => Some(self.latent(heads)?),
            None => None,
        };
        let key_width = self.size("attention.key_length", limits::HEAD_DIM)?;
        let head_dim = match latent {
            Some(latent) => latent.head_dim(),
            None => key_width.map_or_else(|| head_dim(hidden, heads), Ok)?,
        };
        let value_width = self
            .size("attention.value_length", limits::HEAD_DIM)?
            .filter(|_| latent.is_none())
            .unwrap_or(head_dim);
        if value_width != head_dim {
            return Err(unsupported(format!(
                "metadata gives keys a width of {head_dim} and values one of {value_width}: Triad runs equal widths"
            )));
        }
        let epsilon = match family.norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer | NormKind::Centered => "attention.layer_norm_epsilon",
        };
        let cap = |field: &str, default: fn(&SoftCaps) -> Option<f32>| match &family.soft_caps {
            // Without the field, llama.cpp has a cap that the model may not have.
            Some(_) if family.shapes == BlockShapes::Gemma4 && field == FINAL_CAP => {
                let cap = self.positive(field)?;
                self.required(field, cap).map(Some)
            }
            Some(caps) => self.positive(field).map(|cap| cap.or(default(caps))),
            None => Ok(None),
        };
        let epsilon = self
            .positive(epsilon)
            .and_then(|value| self.required(epsilon, value))?;
        let fused = self.has("blk.0.attn_qkv.bias");
        let factors = self.factors_of_model()?;
        let windows = self.windows(blocks)?;
        let own = match family.shapes {
            BlockShapes::Same => None,
            BlockShapes::Gemma3n => {
                let kv_heads = self.kv_heads(heads, blocks)?[0];
                Some(self.gemma3n(&windows, kv_heads, head_dim)?)
            }
            BlockShapes::Gemma4 => Some(self.gemma4(&windows, read_f32)?),
        };
        let of_rope = latent.map_or(head_dim, |latent| latent.rope_dims);
        let (rope, kv_heads, width) = match &own {
            None => (
                self.rope(pairing, of_rope, context, read_f32)?,
                match (latent, &layout) {
                    (Some(_), _) => vec![1; blocks],
                    (None, Some((parts, _))) => self.kv_heads_of_parts(heads, in_file, parts)?,
                    (None, None) => self.kv_heads(heads, blocks)?,
                },
                match (family.mixers, &layout) {
                    (_, Some((_, width))) => *width,
                    // Without a dense feed-forward, a file need not state its width.
                    (Mixers::DeltaNet, _) if family.experts.is_some() => 0,
                    _ => required_of_blocks("feed_forward_length", limits::WIDTH)?,
                },
            ),
            Some(own) => {
                let kv_heads = own.shapes.iter().map(|shape| shape.kv_heads);
                (
                    match &own.ropes {
                        Some([rope, _]) => rope.clone(),
                        None => self.rope(pairing, of_rope, context, read_f32)?,
                    },
                    kv_heads.collect(),
                    own.shapes[0].width,
                )
            }
        };
        let (rope, query_scalar) = match latent {
            Some(latent) => {
                let (factor, rope) = self.latent_rope(rope)?;
                (rope, latent.query_scalar(factor))
            }
            None => (rope, self.query_scalar(hidden, heads, head_dim, blocks)?),
        };
        let mixers = self.mixers(hidden, &kv_heads, epsilon)?;
        Ok(Draft {
            name: self.metadata.string("general.name")?.map(str::to_owned),
            hidden,
            vocab: self.vocab()?,
            context,
            heads,
            kv_heads: kv_heads
                .iter()
                .copied()
                .find(|heads| *heads > 0)
                .unwrap_or(heads),
            head_dim,
            width,
            has_experts: match &layout {
                Some((parts, _)) => parts.iter().map(|part| part.has_experts).collect(),
                None => self.blocks_with_experts(blocks)?,
            },
            parts: layout.map(|(parts, _)| parts),
            part_factors: PartFactors::NONE,
            experts: self.experts()?,
            epsilon,
            head_epsilon: epsilon,
            latent,
            norm_offset: 0.0,
            query_scalar,
            qk_norm: match family.qk_norm {
                QkNorms::HeadsIfStated if self.has("blk.0.attn_q_norm.weight") => QkNorms::Heads,
                QkNorms::HeadsIfStated => QkNorms::Never,
                stated => stated,
            },
            qkv_bias: fused || self.has("blk.0.attn_q.bias"),
            attention_output_bias: self.has("blk.0.attn_output.bias"),
            feed_forward_bias: self.has("blk.0.ffn_up.bias"),
            activation: self.activation()?,
            score_soft_cap: cap("attn_logit_softcapping", |caps| caps.scores)?,
            logit_soft_cap: cap(FINAL_CAP, |caps| caps.logits)?,
            embedding_scale: factors.embedding,
            residual_scale: factors.residual,
            logit_scale: factors.logits,
            mixers,
            has_rope: self.has_rope(&windows)?,
            windows,
            temperature: self.temperature(context)?,
            local_rope: match (
                own.as_ref().and_then(|own| own.ropes.as_ref()),
                family.local_rope,
            ) {
                (Some([_, local]), _) => local.clone(),
                (None, LocalRope::Base(default)) => Rope {
                    base: self.positive("rope.freq_base_swa")?.unwrap_or(default),
                    scaling: RopeScaling::None,
                    ..rope.clone()
                },
                (None, LocalRope::Unscaled) => Rope {
                    scaling: RopeScaling::None,
                    ..rope.clone()
                },
                (None, LocalRope::Same) => rope.clone(),
            },
            rope,
            tied: !self.has("output.weight"),
            token_width: own.as_ref().and_then(|own| own.token_width),
            token_rows: own.as_ref().and_then(|own| own.token_rows),
            streams: own.as_ref().and_then(|own| own.streams),
            scaled: own.as_ref().is_some_and(|own| own.scaled),
            shapes: own.map(|own| own.shapes),
            added_inputs: self.added_inputs()?,
        })
    }

    /// Returns the key-value heads of each block: 0 if it has another mixer than attention.
    pub(super) fn kv_heads(&self, heads: usize, blocks: usize) -> Result<Vec<usize>> {
        let field = "attention.head_count_kv";
        let key = self.key(field);
        let list = match self.metadata.get(&key) {
            Some(Value::Integers(list))
                if [Mixers::ShortConv, Mixers::Mamba2].contains(&self.family.mixers) =>
            {
                list
            }
            _ => {
                let kv_heads = self.size_of_blocks(field, limits::HEADS, blocks)?;
                let kv_heads = kv_heads.unwrap_or(heads);
                return Ok(vec![kv_heads; blocks]);
            }
        };
        let of_attention = list.iter().copied().find(|heads| *heads != 0).unwrap_or(0);
        let is_right = |heads: &i64| [0, of_attention].contains(heads);
        if list.len() != blocks || !list.iter().all(is_right) {
            return Err(malformed(format!(
                "metadata field `{key}` has {} numbers, expected {blocks}: 0 for a block without attention, else the \
                 same number of heads in all blocks",
                list.len()
            )));
        }
        let size = |kv_heads: &i64| match usize::try_from(*kv_heads) {
            Ok(kv_heads @ 0..=limits::HEADS) => Ok(kv_heads),
            _ => Err(malformed(format!(
                "metadata field `{key}` has {kv_heads}, expected integers from 0 to {}",
                limits::HEADS
            ))),
        };
        list.iter().map(size).collect()
    }

    /// Returns the nonlinearity, which only files of ModernBERT state.
    fn activation(&self) -> Result<Activation> {
        let key = self.key("hidden_activation");
        let stated = self.metadata.string(&key)?;
        let is_stated = self.family.bidirectional && self.family.norm == NormKind::Centered;
        let Some(name) = stated.filter(|_| is_stated) else {
            return Ok(self.family.activation);
        };
        match name {
            "gelu" => Ok(Activation::Gelu),
            "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            "silu" => Ok(Activation::Silu),
            other => Err(unsupported(format!(
                "metadata field `{key}` is `{}`, expected gelu, gelu_pytorch_tanh or silu",
                other.chars().take(40).collect::<String>()
            ))),
        }
    }

    /// Returns the factor on queries by position, in the family that has one; 0 means none.
    fn temperature(&self, context: usize) -> Result<Option<Temperature>> {
        let (field, _) = TEMPERATURE;
        if !self.family.temperature || self.float(field)?.is_none_or(|scale| scale == 0.0) {
            return Ok(None);
        }
        let scale = self.positive(field)?;
        let original = self.size("rope.scaling.original_context_length", limits::CONTEXT)?;
        Ok(scale.map(|scale| Temperature {
            scale,
            context: original.unwrap_or(context),
        }))
    }

    /// Rows of the embedding: `vocab_size` is often absent.
    pub(super) fn vocab(&self) -> Result<usize> {
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
        if self.family.shapes != BlockShapes::Same {
            return Ok(1.0);
        }
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
}
