//! Latent vectors of attention (MLA) in a `config.json` and the metadata of GGUF, and their tensors.

use super::config::Config;
use super::config_rope::ConfigRope;
use super::gguf::Reader;
use super::kinds::LatentTraits;
use super::parts::Sizes;
use super::{malformed, unsupported};
use crate::description::{Latent, Rope, RopePairing, RopeScaling, limits};
use crate::error::Result;

/// Epsilon of the norms of latent vectors in `transformers`, whatever `rms_norm_eps` is.
pub(super) const EPSILON: f32 = 1e-6;

/// The factor of llama.cpp's `yarn_log_multiplier`.
const LOG: f64 = 0.1;

/// Reads the sizes of a `config.json` with this number of heads.
pub(super) fn hugging_face(
    traits: &LatentTraits,
    config: &Config<'_>,
    heads: usize,
) -> Result<Sizes> {
    let size = |field: &str, most, default| {
        let size = config.size(field, most)?;
        Ok(size.unwrap_or(default))
    };
    let query = match config.has("q_lora_rank") {
        true => config.size("q_lora_rank", limits::HIDDEN)?,
        false => Some(traits.query),
    };
    let sizes = Sizes {
        latent: Latent {
            query,
            width: size("kv_lora_rank", limits::HEAD_DIM, 512)?,
            key_dim: size("qk_nope_head_dim", limits::HEAD_DIM, traits.key_dim)?,
            value_dim: size("v_head_dim", limits::HEAD_DIM, traits.value_dim)?,
        },
        rope_dims: size("qk_rope_head_dim", limits::HEAD_DIM, 64)?,
    };
    let of_rope = sizes.rope_dims;
    for (field, expected, what) in [
        ("head_dim", of_rope, "qk_rope_head_dim"),
        ("num_key_value_heads", heads, "num_attention_heads"),
    ] {
        if let Some(stated) = config
            .size(field, limits::CONTEXT)?
            .filter(|it| *it != expected)
        {
            return Err(unsupported(format!(
                "config.json: `{field}` is {stated}, expected {expected}, as `{what}`"
            )));
        }
    }
    if query.is_none() {
        // Keys alone would have a bias.
        config.refuse(&["attention_bias"])?;
    }
    config.refuse(&["mlp_bias"])?;
    for (field, expected) in [
        ("scoring_func", traits.scoring),
        ("topk_method", traits.methods),
    ] {
        if let Some(stated) = config.string(field)?.filter(|it| !expected.contains(it)) {
            return Err(unsupported(format!(
                "config.json: `{field}` is `{}`, which Triad does not run; it runs {}",
                stated.chars().take(40).collect::<String>(),
                expected.join(", ")
            )));
        }
    }
    if config.count("moe_layer_freq")?.is_some_and(|it| it != 1) {
        return Err(unsupported(
            "config.json sets `moe_layer_freq` to other than 1, which Triad does not support",
        ));
    }
    Ok(sizes)
}

/// Returns how a `config.json` pairs RoPE's dimensions.
pub(super) fn pairing(traits: &LatentTraits, config: &Config<'_>) -> Result<RopePairing> {
    let field = "rope_interleave";
    let adjacent = match traits.may_have_halves && config.has(field) {
        // `transformers` reads null as false.
        true => config.bool(field)?.unwrap_or(false),
        false => true,
    };
    Ok(match adjacent {
        true => RopePairing::Adjacent,
        false => RopePairing::Halves,
    })
}

impl ConfigRope<'_> {
    /// Returns the factor on scores that YaRN has with latent vectors. Version 4 of `transformers` lacks it for DeepSeek-V2,
    /// unlike the model's own code.
    pub(super) fn score_factor(&self, rope: &Rope) -> Result<f64> {
        let scaling = self.config.object("rope_scaling", "rope_scaling.")?;
        let place = match scaling.filter(|scaling| !scaling.is_empty()) {
            Some(scaling) => scaling,
            None => match self.config.object("rope_parameters", "rope_parameters.")? {
                Some(parameters) => parameters,
                None => return Ok(1.0),
            },
        };
        let field = "mscale_all_dim";
        let all = place.positive(field)?;
        match (&rope.scaling, all) {
            (_, None) | (RopeScaling::None, _) => Ok(1.0),
            (RopeScaling::Yarn { .. }, Some(all)) => {
                let factor = place.required("factor", place.positive("factor")?)?;
                Ok(super::rope::yarn_attention_factor(factor, all).powi(2))
            }
            _ => Err(unsupported(format!(
                "config.json sets `{field}` with another RoPE than yarn, which Triad does not support"
            ))),
        }
    }
}

impl Reader<'_> {
    /// Reads the sizes of a GGUF file with this number of heads.
    pub(super) fn latent(&self, heads: usize) -> Result<Sizes> {
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let rope_dims = required("rope.dimension_count", limits::HEAD_DIM)?;
        let width = required("attention.kv_lora_rank", limits::HEAD_DIM)?;
        let query = match self.has("blk.0.attn_q_a.weight") {
            true => Some(required("attention.q_lora_rank", limits::HIDDEN)?),
            false => None,
        };
        let [key, value] = ["key", "value"].map(|part| format!("attention.{part}_length"));
        let of_latent = [
            self.size(&format!("{key}_mla"), limits::HEAD_DIM)?,
            self.size(&format!("{value}_mla"), limits::HEAD_DIM)?,
        ];
        let stated = [
            required(&key, limits::HEAD_DIM)?,
            required(&value, limits::HEAD_DIM)?,
        ];
        let kv_heads = self.size("attention.head_count_kv", limits::HEADS)?;
        let ([query_dim, value_dim], expected) = match of_latent {
            [Some(key), Some(value)] => ([key, value], ([width + rope_dims, width], 1)),
            [None, None] => (stated, (stated, heads)),
            _ => {
                return Err(malformed(format!(
                    "metadata has one of the fields `{}` and `{}`, expected both or none",
                    self.key(&format!("{key}_mla")),
                    self.key(&format!("{value}_mla"))
                )));
            }
        };
        if (stated, kv_heads.unwrap_or(heads)) != expected {
            return Err(malformed(format!(
                "metadata gives {} key-value heads with keys of {} and values of {}, expected {} with {} and {} for latent \
                 vectors of {width}",
                kv_heads.unwrap_or(heads),
                stated[0],
                stated[1],
                expected.1,
                expected.0[0],
                expected.0[1]
            )));
        }
        let key_dim = query_dim.checked_sub(rope_dims).filter(|dim| *dim > 0);
        let Some(key_dim) = key_dim else {
            return Err(malformed(format!(
                "metadata gives queries a width of {query_dim}, expected more than the {rope_dims} with RoPE"
            )));
        };
        let latent = Latent {
            query,
            width,
            key_dim,
            value_dim,
        };
        Ok(Sizes { latent, rope_dims })
    }

    /// Returns the factor on scores that YaRN has with latent vectors, and the RoPE, whose cosine and sine have none then.
    pub(super) fn latent_rope(&self, rope: Rope) -> Result<(f64, Rope)> {
        let refused = |field: &str| {
            Err(unsupported(format!(
                "metadata sets `{}`, which Triad does not support with latent vectors",
                self.key(field)
            )))
        };
        let field = "rope.scaling.attn_factor";
        if self.float(field)?.is_some_and(|factor| factor != 1.0) {
            return refused(field);
        }
        let factor = match &rope.scaling {
            RopeScaling::None => return Ok((1.0, rope)),
            RopeScaling::Yarn { .. } => self.rope_factor()?.unwrap_or(1.0),
            _ => return refused("rope.scaling"),
        };
        // llama.cpp's factor on scores is below 1 then.
        if factor < 1.0 {
            return refused("rope.scaling.factor");
        }
        let field = "rope.scaling.yarn_log_multiplier";
        let all = f64::from(self.required(field, self.positive(field)?)?) / LOG;
        let scores = super::rope::yarn_attention_factor(f64::from(factor), all).powi(2);
        let scaling = match rope.scaling {
            RopeScaling::Yarn { factors, .. } => RopeScaling::Yarn {
                factors,
                attention_factor: 1.0,
            },
            other => other,
        };
        Ok((scores, Rope { scaling, ..rope }))
    }
}
