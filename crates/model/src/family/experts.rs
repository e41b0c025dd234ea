//! The experts of a model as a `config.json` and the metadata of GGUF describe them.

use serde_json::Value;

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{Correction, DenseBlocks, ExpertTraits, Groups, Normalized, Shared};
use super::traits::Family;
use super::{malformed, unsupported};
use crate::description::{ExpertGroups, Experts, GroupScore, Routing, limits};
use crate::error::Result;

/// Fields of a `config.json` with a number of experts, in one family or another.
const COUNTS: [&str; 4] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// Fields of a `config.json` with the number of experts of a row, in one family or another.
const USED: [&str; 2] = ["num_experts_per_tok", "moe_k"];

/// The size of GLM-4.7-Flash's vocabulary.
const GLM_4_7_FLASH_VOCAB: usize = 154_880;

/// The end of the name of a tensor in GGUF with summands of scores.
const CORRECTION: &str = ".exp_probs_b.bias";

/// Refuses numbers of experts in a family that has none.
pub(super) fn refuse_counts(family: &Family, config: &Config<'_>) -> Result<()> {
    match family.experts {
        Some(_) => Ok(()),
        None => config.refuse(&COUNTS),
    }
}

/// Returns the number that some of `fields` state, all of them the same.
fn agreed(config: &Config<'_>, fields: &[&str]) -> Result<Option<usize>> {
    let mut found: Option<(&str, usize)> = None;
    for field in fields {
        match (config.size(field, limits::EXPERTS)?, found) {
            (Some(size), Some((other, others))) if size != others => {
                return Err(unsupported(format!(
                    "config.json: `{other}` is {others} and `{field}` is {size}: versions of transformers take one or the \
                     other, expected equal numbers"
                )));
            }
            (Some(size), _) => found = Some((field, size)),
            (None, _) => {}
        }
    }
    Ok(found.map(|(_, size)| size))
}

/// Reads the experts of a `config.json`, and the width of the shared one, or 0.
pub(super) fn read(family: &Family, config: &Config<'_>) -> Result<Option<(Experts, usize)>> {
    let Some(traits) = family.experts else {
        return Ok(None);
    };
    // Versions 4 and 5 of transformers give windows to other blocks.
    config.refuse(&["use_sliding_window"])?;
    // Versions of `transformers` write the number under one name or another; the router's shape must be that of the number.
    let count = agreed(config, &COUNTS)?.unwrap_or(traits.count);
    let (used, default_used) = traits.used;
    let used = match used == USED[1] {
        // `transformers` takes the one name for the other.
        true => agreed(config, &USED)?,
        false => {
            config.refuse(&USED[1..])?;
            config.size(used, limits::EXPERTS)?
        }
    };
    let (field, default) = traits.width;
    let width = config.size(field, limits::WIDTH)?.or(default);
    let width = config.required(field, width)?;
    let used = match default_used {
        0 => config.required(traits.used.0, used)?,
        default => used.unwrap_or(default),
    };
    let shared = match traits.shared {
        Shared::Never | Shared::IfStated | Shared::Branch => 0,
        Shared::Stated(field, default) => {
            let width = config.size(field, limits::WIDTH)?;
            config.required(field, width.or(default))?
        }
        Shared::Gated(default) => config
            .size("shared_expert_intermediate_size", limits::WIDTH)?
            .unwrap_or(default),
        Shared::Experts { field, default, .. } => {
            let count = config.count(field)?.unwrap_or(default);
            shared_width(count, width, || format!("config.json: `{field}`"))?
        }
    };
    let normalized = "norm_topk_prob";
    let normalized = match traits.normalized {
        Normalized::Always => true,
        Normalized::Never => {
            // `transformers` does not read it; other code of the model does.
            config.refuse(&[normalized])?;
            false
        }
        Normalized::Stated { default, .. } if !config.has(normalized) => default,
        // `transformers` reads null as false.
        Normalized::Stated { .. } => config.bool(normalized)?.unwrap_or(false),
    };
    let correction = "use_expert_bias";
    let correction = match traits.correction {
        Correction::Never => false,
        Correction::Always => true,
        Correction::UnlessStated if !config.has(correction) => true,
        Correction::UnlessStated => config.bool(correction)?.unwrap_or(false),
    };
    let scale = match traits.scaled {
        Some(default) => config.positive("routed_scaling_factor")?.unwrap_or(default),
        None => 1.0,
    };
    let mut traits = traits;
    if let Some(clamp) = traits.clamp {
        // Version 4 of transformers does not read them.
        for (field, value) in [("swiglu_limit", f64::from(clamp)), ("swiglu_alpha", 1.702)] {
            if config.positive(field)?.is_some_and(|it| it != value) {
                return Err(unsupported(format!(
                    "config.json sets `{field}` to other than {value}, which Triad does not support"
                )));
            }
        }
    }
    if traits.sum.floor > 0.0
        && let Some(floor) = config.positive("moe_norm_min")?
    {
        traits.sum.floor = floor as f32;
    }
    let experts = Experts {
        count,
        used,
        width,
        scale: scale as f32,
        groups: groups(traits.groups, config)?,
        ..of_family(&traits, normalized, correction)
    };
    Ok(Some((experts, shared)))
}

/// Returns the experts of a family, without the numbers that a file states.
fn of_family(traits: &ExpertTraits, normalized: bool, correction: bool) -> Experts {
    Experts {
        count: 0,
        used: 0,
        width: 0,
        routing: traits.routing,
        normalized,
        sum_offset: traits.sum.offset,
        sum_floor: traits.sum.floor,
        scale: 1.0,
        correction,
        bias: traits.bias,
        clamp: traits.clamp,
        shared_gate: matches!(traits.shared, Shared::Gated(_)),
        branch: traits.shared == Shared::Branch,
        groups: None,
    }
}

/// Returns the width of a shared expert that is as wide as `count` experts. `field`: the place of the count in the file.
fn shared_width(count: usize, width: usize, field: impl Fn() -> String) -> Result<usize> {
    match count.checked_mul(width) {
        Some(shared @ 0..=limits::WIDTH) => Ok(shared),
        _ => Err(malformed(format!(
            "{} is {count}, which gives a shared expert that is wider than {}",
            field(),
            limits::WIDTH
        ))),
    }
}

/// The fields of a `config.json` with the number of groups, and of those of a row.
const GROUPS: [&str; 2] = ["n_group", "topk_group"];

/// Reads the groups of experts; one group limits nothing.
fn groups(groups: Groups, config: &Config<'_>) -> Result<Option<ExpertGroups>> {
    let [all, of_row] = GROUPS;
    let size = |field: &str| config.size(field, limits::EXPERTS);
    let (count, used, score) = match groups {
        Groups::Never => return Ok(None),
        Groups::One => {
            for field in GROUPS {
                if config.count(field)?.is_some_and(|groups| groups != 1) {
                    return Err(unsupported(format!(
                        "config.json sets `{field}` to other than 1, which Triad does not support"
                    )));
                }
            }
            return Ok(None);
        }
        Groups::Stated(..)
            if GROUPS
                .iter()
                .any(|it| config.has(it) && config.raw(it).is_none()) =>
        {
            return Err(malformed(format!(
                "config.json: `{all}` or `{of_row}` is null, expected numbers"
            )));
        }
        Groups::Stated(count, used) => (
            size(all)?.unwrap_or(count),
            size(of_row)?.unwrap_or(used),
            GroupScore::BestTwo,
        ),
        Groups::ByMethod if config.string("topk_method")? == Some("group_limited_greedy") => (
            config.required(all, size(all)?)?,
            config.required(of_row, size(of_row)?)?,
            GroupScore::Best,
        ),
        Groups::ByMethod => return Ok(None),
    };
    Ok((count > 1).then_some(ExpertGroups { count, used, score }))
}

/// Returns whether each block has experts.
pub(super) fn blocks(family: &Family, config: &Config<'_>, blocks: usize) -> Result<Vec<bool>> {
    let Some(ExpertTraits { dense, .. }) = family.experts else {
        return Ok(vec![false; blocks]);
    };
    let step = |field: &str| {
        let step = config.size(field, limits::BLOCKS);
        step.map(|step| step.unwrap_or(1))
    };
    match dense {
        DenseBlocks::Never => Ok(vec![true; blocks]),
        DenseBlocks::Listed => {
            let step = step("decoder_sparse_step")?;
            let dense = config.counts("mlp_only_layers")?.unwrap_or_default();
            Ok((0..blocks)
                .map(|block| (block + 1).is_multiple_of(step) && !dense.contains(&block))
                .collect())
        }
        DenseBlocks::First(field, default) => {
            let first = config.count(field)?.unwrap_or(default);
            Ok((0..blocks).map(|block| block >= first).collect())
        }
        DenseBlocks::Named => match config.strings("mlp_layer_types")? {
            Some(types) => named(&types, blocks),
            None => {
                let field = "first_k_dense_replace";
                if config.count(field)?.is_some_and(|first| first != 1) {
                    return Err(unsupported(format!(
                        "config.json: `{field}` is other than 1, which transformers does not read: expected \
                         `mlp_layer_types`"
                    )));
                }
                Ok((0..blocks).map(|block| block > 0).collect())
            }
        },
        DenseBlocks::Outside => {
            let first = config.count("moe_layer_start_index")?.unwrap_or(1);
            let end = "moe_layer_end_index";
            // -1 means the last block.
            let last = match config.raw(end).and_then(Value::as_i64) {
                Some(-1) => None,
                _ => config.count(end)?,
            };
            let step = step("moe_layer_interval")?;
            Ok((0..blocks)
                .map(|block| {
                    (first..=last.unwrap_or(blocks)).contains(&block)
                        && (block + 1).is_multiple_of(step)
                })
                .collect())
        }
    }
}

/// Returns whether each block has experts, by their names.
fn named(types: &[&str], blocks: usize) -> Result<Vec<bool>> {
    let has_experts = |kind: &&str| match *kind {
        "dense" => Some(false),
        "sparse" => Some(true),
        _ => None,
    };
    let found: Option<Vec<bool>> = types.iter().map(has_experts).collect();
    found.filter(|found| found.len() == blocks).ok_or_else(|| {
        malformed(format!(
            "config.json: `mlp_layer_types` has {} entries, expected dense or sparse for each of {blocks} blocks",
            types.len()
        ))
    })
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
        let normalized = self.normalized(&traits)?;
        let scale = self.expert_scale(&traits)?;
        // The families whose experts are as wide as a feed-forward lack the field.
        let width = match traits.width.0 {
            "intermediate_size" if !traits.bias => required("feed_forward_length", limits::WIDTH)?,
            _ => required("expert_feed_forward_length", limits::WIDTH)?,
        };
        let (of_shared, count) = ("expert_shared_feed_forward_length", "expert_shared_count");
        let shared = match traits.shared {
            Shared::Never | Shared::Branch => 0,
            Shared::Gated(_) | Shared::Stated(..) => required(of_shared, limits::WIDTH)?,
            Shared::Experts {
                counted_in_gguf: true,
                ..
            } => {
                let shared = self.metadata.integer(&self.key(count))?;
                let shared = self.required(count, shared)?;
                shared_width(shared, width, || {
                    format!("metadata field `{}`", self.key(count))
                })?
            }
            Shared::Experts { .. } | Shared::IfStated => {
                match self.metadata.integer(&self.key(of_shared))? {
                    Some(0) | None => 0,
                    Some(_) => required(of_shared, limits::WIDTH)?,
                }
            }
        };
        let mut traits = traits;
        let mut correction = traits.correction != Correction::Never;
        if traits.stated_in_gguf {
            correction = self.tensors.keys().any(|it| it.ends_with(CORRECTION));
            traits.routing = self.routing(correction)?;
        }
        let experts = Experts {
            count: required("expert_count", limits::EXPERTS)?,
            used: required("expert_used_count", limits::EXPERTS)?,
            width,
            scale,
            groups: self.groups(&traits)?,
            ..of_family(&traits, normalized, correction)
        };
        Ok(Some((experts, shared)))
    }

    /// Returns how scores come from the router's outputs, in a model whose scores have summands or not.
    fn routing(&self, correction: bool) -> Result<Routing> {
        let field = "expert_gating_func";
        match self.metadata.integer(&self.key(field))?.unwrap_or(0) {
            // llama.cpp knows GLM-4.7-Flash, whose files lack the field, by these numbers.
            0 if self.vocab()? == GLM_4_7_FLASH_VOCAB
                && [47, 48].contains(&self.blocks_in_file()?) =>
            {
                Ok(Routing::Sigmoid)
            }
            0 if correction => self.required(field, None),
            0 | 1 => Ok(Routing::Softmax),
            2 => Ok(Routing::Sigmoid),
            other => Err(unsupported(format!(
                "metadata field `{}` is {other}, which Triad does not run; it runs 1 (softmax) and 2 (sigmoid)",
                self.key(field)
            ))),
        }
    }

    /// Returns the groups of experts.
    fn groups(&self, traits: &ExpertTraits) -> Result<Option<ExpertGroups>> {
        let [count, used] = ["expert_group_count", "expert_group_used_count"];
        let Some(groups) = self
            .metadata
            .integer(&self.key(count))?
            .filter(|it| *it > 1)
        else {
            return Ok(None);
        };
        // llama.cpp adds two scores, DeepSeek-V2 takes the best.
        if !traits.stated_in_gguf || traits.routing == Routing::Softmax {
            return Err(unsupported(format!(
                "metadata field `{}` is {groups}, which Triad does not support for {}",
                self.key(count),
                self.family.name
            )));
        }
        Ok(Some(ExpertGroups {
            count: groups,
            used: self.required(used, self.size(used, limits::EXPERTS)?)?,
            score: GroupScore::BestTwo,
        }))
    }

    /// Returns whether the weights of the chosen experts are divided by their sum.
    fn normalized(&self, traits: &ExpertTraits) -> Result<bool> {
        let field = self.key("expert_weights_norm");
        let stated = self.metadata.bool(&field)?;
        let fixed = match traits.normalized {
            Normalized::Always => true,
            Normalized::Stated {
                gguf: Some(fixed), ..
            } => fixed,
            Normalized::Never | Normalized::Stated { gguf: None, .. } => {
                return Ok(stated.unwrap_or(false));
            }
        };
        // llama.cpp has the rule of the family and does not read the field.
        if stated.is_some_and(|it| it != fixed) {
            return Err(unsupported(format!(
                "metadata field `{field}` is {}, which Triad does not support for {}",
                !fixed, self.family.name
            )));
        }
        Ok(fixed)
    }

    /// Returns the factor on the weights of the chosen experts, where a file states one, and refuses fields that llama.cpp
    /// does not read and that say otherwise than the family.
    fn expert_scale(&self, traits: &ExpertTraits) -> Result<f32> {
        // Of the chosen experts alone, softmax gives the weights that sum to 1.
        let gating = match traits.routing {
            Routing::Softmax if traits.bias => 3.0,
            Routing::Softmax => 1.0,
            Routing::Sigmoid => 2.0,
        };
        let scale = "expert_weights_scale";
        let is_stated = matches!(
            traits.normalized,
            Normalized::Never | Normalized::Stated { gguf: None, .. }
        );
        for (field, neutral) in [(scale, 1.0), ("expert_gating_func", gating)] {
            if !(is_stated && field == scale || traits.stated_in_gguf && field != scale)
                && self
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
        match self.float(scale)? {
            None | Some(0.0) => Ok(1.0),
            Some(_) => Ok(self.positive(scale)?.unwrap_or(1.0)),
        }
    }

    /// Returns whether each block has experts.
    pub(super) fn blocks_with_experts(&self, blocks: usize) -> Result<Vec<bool>> {
        let Some(ExpertTraits { dense, .. }) = self.family.experts else {
            return Ok(vec![false; blocks]);
        };
        let (first, step) = ("leading_dense_block_count", "interleave_moe_layer_step");
        let first = match dense {
            DenseBlocks::Never | DenseBlocks::Listed | DenseBlocks::Named => {
                return Ok(vec![true; blocks]);
            }
            DenseBlocks::First(..) | DenseBlocks::Outside => {
                if !self.family.predicts_more {
                    // Their blocks are the last ones, which the number of blocks includes.
                    self.refuse_unless("nextn_predict_layers", 0.0)?;
                }
                self.metadata.integer(&self.key(first))?.unwrap_or(0)
            }
        };
        let step = match dense {
            DenseBlocks::Outside => self.required(step, self.size(step, limits::BLOCKS)?)?,
            _ => 1,
        };
        Ok((0..blocks)
            .map(|block| block >= first && (block + 1).is_multiple_of(step))
            .collect())
    }
}
