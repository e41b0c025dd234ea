//! The experts of a model as a `config.json` and the metadata of GGUF describe them.

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{ExpertTraits, Normalized};
use super::traits::Family;
use super::unsupported;
use crate::description::{Experts, limits};
use crate::error::Result;

/// Fields of a `config.json` with a number of experts, in one family or another.
const COUNTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Refuses numbers of experts under other names than that of the family.
pub(super) fn refuse_other_counts(family: &Family, config: &Config<'_>) -> Result<()> {
    let own = family.experts.map(|traits| traits.count.0);
    COUNTS
        .iter()
        .filter(|field| Some(**field) != own)
        .try_for_each(|field| config.refuse(&[field]))
}

/// Reads the experts of a `config.json`, and the width of the shared one, or 0.
pub(super) fn read(family: &Family, config: &Config<'_>) -> Result<Option<(Experts, usize)>> {
    let Some(traits) = family.experts else {
        return Ok(None);
    };
    // Versions 4 and 5 of transformers give windows to other blocks.
    config.refuse(&["use_sliding_window"])?;
    let (count, default) = traits.count;
    let count = config.size(count, limits::EXPERTS)?.unwrap_or(default);
    let used = config.size("num_experts_per_tok", limits::EXPERTS)?;
    let (field, default) = traits.width;
    let width = config.size(field, limits::WIDTH)?.or(default);
    let shared = match traits.shared {
        Some(default) => config
            .size("shared_expert_intermediate_size", limits::WIDTH)?
            .unwrap_or(default),
        None => 0,
    };
    let experts = Experts {
        count,
        used: used.unwrap_or(traits.used),
        width: config.required(field, width)?,
        routing: traits.routing,
        normalized: match traits.normalized {
            Normalized::Always => true,
            Normalized::Stated { .. } => config.bool("norm_topk_prob")?.unwrap_or(false),
        },
        scale: 1.0,
        correction: false,
        shared_gate: traits.shared.is_some(),
    };
    Ok(Some((experts, shared)))
}

/// Returns whether each block has experts.
pub(super) fn blocks(family: &Family, config: &Config<'_>, blocks: usize) -> Result<Vec<bool>> {
    let Some(ExpertTraits { sparse_step, .. }) = family.experts else {
        return Ok(vec![false; blocks]);
    };
    if !sparse_step {
        return Ok(vec![true; blocks]);
    }
    let step = config
        .size("decoder_sparse_step", limits::BLOCKS)?
        .unwrap_or(1);
    let dense = config.counts("mlp_only_layers")?.unwrap_or_default();
    Ok((0..blocks)
        .map(|block| (block + 1).is_multiple_of(step) && !dense.contains(&block))
        .collect())
}

impl Reader<'_> {
    /// Reads the experts of a GGUF file, and the width of the shared one, or 0.
    pub(super) fn experts(&self) -> Result<Option<(Experts, usize)>> {
        let Some(traits) = self.family.experts else {
            return Ok(None);
        };
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let normalized = match traits.normalized {
            Normalized::Always => true,
            Normalized::Stated { gguf } => gguf,
        };
        // llama.cpp has the rule of the family and reads none of these.
        let field = self.key("expert_weights_norm");
        if self
            .metadata
            .bool(&field)?
            .is_some_and(|it| it != normalized)
        {
            return Err(unsupported(format!(
                "metadata field `{field}` is {}, which Triad does not support for {}",
                !normalized, self.family.name
            )));
        }
        for (field, neutral) in [("expert_weights_scale", 1.0), ("expert_gating_func", 1.0)] {
            if self
                .float(field)?
                .is_some_and(|value| value != neutral && value != 0.0)
            {
                return Err(unsupported(format!(
                    "metadata sets `{}`, which Triad does not support for {}",
                    self.key(field),
                    self.family.name
                )));
            }
        }
        // The families whose experts are as wide as a feed-forward lack the field.
        let width = match traits.width.0 {
            "intermediate_size" => required("feed_forward_length", limits::WIDTH)?,
            _ => required("expert_feed_forward_length", limits::WIDTH)?,
        };
        let shared = match traits.shared {
            Some(_) => required("expert_shared_feed_forward_length", limits::WIDTH)?,
            None => 0,
        };
        let experts = Experts {
            count: required("expert_count", limits::EXPERTS)?,
            used: required("expert_used_count", limits::EXPERTS)?,
            width,
            routing: traits.routing,
            normalized,
            scale: 1.0,
            correction: false,
            shared_gate: traits.shared.is_some(),
        };
        Ok(Some((experts, shared)))
    }
}
