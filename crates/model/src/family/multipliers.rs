//! Factors on the embedding, attention scores, residual additions and logits, in the families that have them.

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{Multipliers, NoRope};
use super::parts::PartFactors;
use super::traits::Family;
use super::unsupported;
use crate::error::Result;

/// The factors of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    /// On the embedding; `None`: that of the family.
    pub embedding: Option<f32>,
    /// On attention scores; `None`: that of the family.
    pub scores: Option<f32>,
    /// On residual additions.
    pub residual: f32,
    /// On the logits.
    pub logits: f32,
}

/// Falcon-H1's factors on attention, Mamba-2 and feed-forward.
pub(super) struct Falcon {
    /// On attention scores, next to that of the heads' width.
    pub scores: f64,
    /// On the parts of a Mamba-2's inputs.
    pub inputs: [f32; 5],
    pub parts: PartFactors,
}

/// Reads Falcon-H1's factors. Its linear layers have no biases, so that a factor on their input is one on their output.
pub(super) fn falcon(config: &Config<'_>) -> Result<Falcon> {
    config.refuse(&[
        "attention_bias",
        "mlp_bias",
        "mamba_proj_bias",
        "projectors_bias",
    ])?;
    let stated = |key: &str| config.positive(key).map(|factor| factor.unwrap_or(1.0));
    let list = |key: &str, count: usize| match config.raw(key) {
        None => Ok(vec![1.0; count]),
        Some(_) => config.factors(key, count),
    };
    let (input, ssm_input) = (
        stated("attention_in_multiplier")?,
        stated("ssm_in_multiplier")?,
    );
    let of_parts = list("ssm_multipliers", 5)?;
    let of_mlp = list("mlp_multipliers", 2)?;
    let mut inputs = [0.0; 5];
    for (input, factor) in inputs.iter_mut().zip(of_parts) {
        *input = (ssm_input * f64::from(factor)) as f32;
    }
    Ok(Falcon {
        scores: input * input * stated("key_multiplier")?,
        inputs,
        parts: PartFactors {
            attention: (input * stated("attention_out_multiplier")?) as f32,
            mixer: stated("ssm_out_multiplier")? as f32,
            gate: of_mlp[0],
            feed_forward: of_mlp[1],
        },
    })
}

impl Factors {
    /// The factors of a family without any.
    const NONE: Self = Self {
        embedding: None,
        scores: None,
        residual: 1.0,
        logits: 1.0,
    };
}

/// The factor on the logits in GGUF.
const ON_LOGITS: &str = "logit_scale";

/// Fields of GGUF that only the families with factors may have, with the values of others.
const FIELDS: [(&str, f32); 3] = [
    (ON_LOGITS, 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
];

/// Reads the factors of a `config.json` of a model with rows of width `hidden` and so many blocks.
pub(super) fn read(
    family: &Family,
    config: &Config<'_>,
    (hidden, blocks): (usize, usize),
) -> Result<Factors> {
    let stated = |key: &str| config.positive(key).map(|factor| factor.unwrap_or(1.0));
    match family.multipliers {
        Multipliers::Never => Ok(Factors::NONE),
        Multipliers::Falcon => Ok(Factors {
            embedding: Some(stated("embedding_multiplier")? as f32),
            scores: None,
            residual: 1.0,
            logits: stated("lm_head_multiplier")? as f32,
        }),
        Multipliers::Stated => Ok(Factors {
            embedding: Some(stated("embedding_multiplier")? as f32),
            scores: Some(stated("attention_multiplier")? as f32),
            residual: stated("residual_multiplier")? as f32,
            logits: stated("logits_scaling")?.recip() as f32,
        }),
        Multipliers::OnLogits(default) => Ok(Factors {
            logits: config
                .positive("logit_scale")?
                .map_or(default, |factor| factor as f32),
            ..Factors::NONE
        }),
        Multipliers::Mup => {
            // The code of these models is not a part of `transformers`, and its defaults vary.
            let required = |key: &str| config.positive(key).and_then(|it| config.required(key, it));
            let depth: f64 = required("scale_depth")?;
            let base: f64 = required("dim_model_base")?;
            Ok(Factors {
                embedding: Some(required("scale_emb")? as f32),
                scores: None,
                residual: (depth / (blocks as f64).sqrt()) as f32,
                logits: (base / hidden as f64) as f32,
            })
        }
    }
}

impl Reader<'_> {
    /// Refuses factors that models of the family do not have.
    pub(super) fn refuse_factors(&self) -> Result<()> {
        let has = |field: &str| match self.family.multipliers {
            Multipliers::Never | Multipliers::Falcon => false,
            Multipliers::OnLogits(_) => field == ON_LOGITS,
            Multipliers::Stated | Multipliers::Mup => true,
        };
        FIELDS
            .iter()
            .filter(|(field, _)| !has(field))
            .try_for_each(|&(field, neutral)| self.refuse_unless(field, neutral))
    }

    /// Reads the factors of the model, but for that on attention scores.
    pub(super) fn factors_of_model(&self) -> Result<Factors> {
        // 0 means none.
        let stated = |field: &str| match self.float(field)? {
            Some(0.0) => Ok(None),
            _ => self.positive(field),
        };
        match self.family.multipliers {
            Multipliers::Never | Multipliers::Falcon => return Ok(Factors::NONE),
            Multipliers::OnLogits(_) => {
                self.required(ON_LOGITS, self.float(ON_LOGITS)?)?;
                return Ok(Factors {
                    logits: stated(ON_LOGITS)?.unwrap_or(1.0),
                    ..Factors::NONE
                });
            }
            Multipliers::Stated => {
                // llama.cpp reads this as a switch of RoPE in Granite.
                let field = self.key("rope.scaling.finetuned");
                let is_read = self.family.no_rope == NoRope::UnlessStated;
                if !is_read && self.metadata.bool(&field)? == Some(false) {
                    return Err(unsupported(format!(
                        "metadata field `{field}` is false, which Triad does not support for {}",
                        self.family.name
                    )));
                }
            }
            Multipliers::Mup => {
                // Without them, llama.cpp takes those of the first models.
                for (field, _) in FIELDS {
                    self.required(field, self.float(field)?)?;
                }
            }
        }
        Ok(Factors {
            embedding: stated("embedding_scale")?,
            scores: None,
            residual: stated("residual_scale")?.unwrap_or(1.0),
            logits: stated(ON_LOGITS)?.unwrap_or(1.0).recip(),
        })
    }
}
