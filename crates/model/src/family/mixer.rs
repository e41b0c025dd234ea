//! The blocks of a model whose token mixer is not attention, and the sizes of these mixers.

use serde_json::Value;

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{Layout, Mixers};
use super::layout;
use super::traits::Family;
use super::{FULL, malformed, unsupported};
use crate::description::{
    Activation, DeltaNet, GateNorm, HeadSharing, Mamba2, Mixer, ShortConv, limits,
};
use crate::error::Result;
use crate::gguf::Value as OfGguf;

/// The name of LFM2's convolution in a `config.json`.
const CONV: &str = "conv";
/// The name of a DeltaNet in a `config.json`.
const LINEAR: &str = "linear_attention";
/// The field of a `config.json` with the kind of each block, and Granite's other name of it.
const TYPES: &str = "layer_types";
const TYPES_ALIAS: &str = "layers_block_type";
/// The names of Granite's blocks.
const MAMBA: &str = "mamba";
const ATTENTION: &str = "attention";
/// The default interval of blocks with attention among those with a DeltaNet.
const INTERVAL: usize = 4;

/// Reads the mixer of each block from a `config.json`; `None`: attention.
pub(super) fn hugging_face(
    family: &Family,
    config: &Config<'_>,
    (hidden, blocks): (usize, usize),
    (epsilon, activation): (f32, Activation),
) -> Result<Vec<Option<Mixer>>> {
    match family.mixers {
        Mixers::Attention => Ok(vec![None; blocks]),
        Mixers::ShortConv => {
            let taps = config.size("conv_L_cache", limits::TAPS)?.unwrap_or(3);
            let bias = config.bool("conv_bias")?.unwrap_or(false);
            if family.experts.is_some() {
                // `transformers` has no default.
                config.required("layer_types", config.raw("layer_types"))?;
            }
            let has_attention = match types(config, blocks, &[CONV])? {
                Some(has_attention) => has_attention,
                None => attention_by_index(config, blocks)?,
            };
            Ok(short_convs((hidden, taps, bias), has_attention.into_iter()))
        }
        Mixers::DeltaNet => {
            let net = delta_net(config, epsilon)?;
            // The convolution has the activation of the feed-forward, the output gates have SiLU.
            if activation != Activation::Silu {
                return Err(unsupported(format!(
                    "config.json: `{}` is other than silu, which Triad does not support for {}",
                    family.activation_field, family.name
                )));
            }
            let has_attention = match types(config, blocks, &[LINEAR])? {
                Some(has_attention) => has_attention,
                None => {
                    let interval = config.size("full_attention_interval", limits::BLOCKS)?;
                    attention_every(interval, blocks)
                }
            };
            Ok(mixers(&Mixer::DeltaNet(net), has_attention.into_iter()))
        }
        Mixers::Mamba2 if family.layout == Layout::SingleParts => {
            let mamba = layout::nemotron(config, epsilon)?;
            Ok(vec![Some(Mixer::Mamba2(mamba)); blocks])
        }
        Mixers::Mamba2 => {
            let is_falcon = family.layout == Layout::TwoMixers;
            let mut mamba = mamba2(config, (hidden, is_falcon), epsilon)?;
            if is_falcon {
                mamba.norm = falcon_norm(config)?;
            }
            if activation != Activation::Silu {
                return Err(unsupported(format!(
                    "config.json: `{}` is other than silu, which Triad does not support for {}",
                    family.activation_field, family.name
                )));
            }
            if is_falcon {
                return Ok(vec![Some(Mixer::Mamba2(mamba)); blocks]);
            }
            let [types, of_alias] = [TYPES, TYPES_ALIAS].map(|field| {
                let mixer = &[MAMBA, LINEAR];
                types_in(config, field, blocks, mixer)
            });
            let (types, of_alias) = (types?, of_alias?);
            if types.is_some() && of_alias.is_some() && types != of_alias {
                return Err(malformed(format!(
                    "config.json: `{TYPES_ALIAS}` differs from `{TYPES}`, expected one of them, or the same in both"
                )));
            }
            let has_attention = types.or(of_alias).unwrap_or_else(|| vec![false; blocks]);
            Ok(mixers(&Mixer::Mamba2(mamba), has_attention.into_iter()))
        }
    }
}

/// Reads the sizes of a Mamba-2.
fn mamba2(config: &Config<'_>, (hidden, is_falcon): (usize, bool), epsilon: f32) -> Result<Mamba2> {
    let size = |field: &str, most, default| {
        let size = config.size(field, most)?;
        Ok(size.unwrap_or(default))
    };
    let heads = size("mamba_n_heads", limits::HEADS, 128)?;
    let width = match (config.has("mamba_d_ssm"), is_falcon) {
        (false, true) => 1024,
        (true, true) if config.raw("mamba_d_ssm").is_some() => {
            size("mamba_d_ssm", limits::WIDTH, 0)?
        }
        _ => hidden * size("mamba_expand", limits::HEADS, 2)?,
    };
    let field = "mamba_d_head";
    let head_dim = match config.raw(field).and_then(Value::as_str) {
        Some("auto") => width / heads,
        _ => size(field, limits::HEAD_DIM, width / heads)?,
    };
    if head_dim * heads != width {
        return Err(malformed(format!(
            "config.json: `mamba_n_heads` is {heads} and `{field}` {head_dim}, expected `mamba_expand` times \
             `hidden_size`, {width}, as their product"
        )));
    }
    let groups = size("mamba_n_groups", limits::HEADS, 1)?;
    if groups != 1 && !is_falcon {
        return Err(unsupported(format!(
            "config.json: `mamba_n_groups` is {groups}: versions 4 and 5 of transformers compute another norm each, \
             expected 1"
        )));
    }
    layout::refuse_step_limits(config)?;
    Ok(Mamba2 {
        heads,
        head_dim,
        groups,
        state: size("mamba_d_state", limits::HEAD_DIM, 256)?,
        taps: size("mamba_d_conv", limits::TAPS, 4)?,
        conv_bias: config
            .bool("mamba_conv_bias")?
            .unwrap_or(!config.has("mamba_conv_bias")),
        bias: config.bool("mamba_proj_bias")?.unwrap_or(false),
        norm: GateNorm::AfterGate,
        factors: None,
        epsilon,
    })
}

/// Reads the place of Falcon-H1's norm.
fn falcon_norm(config: &Config<'_>) -> Result<GateNorm> {
    let before = "mamba_norm_before_gate";
    let before = config.bool(before)?.unwrap_or(!config.has(before));
    Ok(
        match (config.bool("mamba_rms_norm")?.unwrap_or(false), before) {
            (false, _) => GateNorm::Never,
            (true, true) => GateNorm::BeforeGate,
            (true, false) => GateNorm::AfterGate,
        },
    )
}

/// Reads the sizes of a DeltaNet.
fn delta_net(config: &Config<'_>, epsilon: f32) -> Result<DeltaNet> {
    let size = |field: &str, most, default| {
        let size = config.size(field, most)?;
        Ok(size.unwrap_or(default))
    };
    Ok(DeltaNet {
        key_heads: size("linear_num_key_heads", limits::HEADS, 16)?,
        value_heads: size("linear_num_value_heads", limits::HEADS, 32)?,
        key_dim: size("linear_key_head_dim", limits::HEAD_DIM, 128)?,
        value_dim: size("linear_value_head_dim", limits::HEAD_DIM, 128)?,
        taps: size("linear_conv_kernel_dim", limits::TAPS, 4)?,
        sharing: HeadSharing::Adjacent,
        epsilon,
    })
}

/// Returns which blocks have attention if it is every n-th.
fn attention_every(interval: Option<usize>, blocks: usize) -> Vec<bool> {
    let interval = interval.unwrap_or(INTERVAL);
    (1..=blocks)
        .map(|block| block.is_multiple_of(interval))
        .collect()
}

/// Reads whether each block has attention or the mixer of these names, if the file has a list of that.
fn types(config: &Config<'_>, blocks: usize, mixer: &[&str]) -> Result<Option<Vec<bool>>> {
    types_in(config, TYPES, blocks, mixer)
}

/// Does the same as [`types`] for a list in `field`.
fn types_in(
    config: &Config<'_>,
    field: &str,
    blocks: usize,
    mixer: &[&str],
) -> Result<Option<Vec<bool>>> {
    let Some(types) = config.strings(field)? else {
        return Ok(None);
    };
    if types.len() != blocks {
        return Err(malformed(format!(
            "config.json: `{field}` has {} entries, expected one for each of the {blocks} blocks",
            types.len()
        )));
    }
    let has_attention = |(block, kind): (usize, &&str)| match *kind {
        FULL => Ok(true),
        ATTENTION if mixer.contains(&MAMBA) => Ok(true),
        kind if mixer.contains(&kind) => Ok(false),
        other => Err(unsupported(format!(
            "config.json: `{field}[{block}]` is `{}`, which Triad does not run; it runs {FULL} and {}",
            other.chars().take(40).collect::<String>(),
            mixer[0]
        ))),
    };
    let types = types.iter().enumerate().map(has_attention);
    types.collect::<Result<_>>().map(Some)
}

/// Returns whether each block of LFM2 has attention, in an old file.
fn attention_by_index(config: &Config<'_>, blocks: usize) -> Result<Vec<bool>> {
    let Some(indices) = config.counts("full_attn_idxs")? else {
        return Ok(vec![true; blocks]);
    };
    Ok((0..blocks).map(|block| indices.contains(&block)).collect())
}

/// Returns whether the output matrix is the embedding, if a field says so that only this family has.
pub(super) fn tied(family: &Family, config: &Config<'_>) -> Result<Option<bool>> {
    match family.mixers {
        Mixers::Attention | Mixers::DeltaNet | Mixers::Mamba2 => Ok(None),
        Mixers::ShortConv => config.bool("tie_embedding"),
    }
}

/// Refuses fields that versions 4 and 5 of `transformers` read differently.
pub(super) fn refuse_ambiguous(family: &Family, config: &Config<'_>) -> Result<()> {
    if family.mixers != Mixers::ShortConv {
        return Ok(());
    }
    // Version 4 takes `theta` for `rope_theta`, version 5 ignores it.
    let theta = config.positive("theta")?;
    let base = config.positive("rope_theta")?;
    if theta.is_some_and(|theta| theta != base.unwrap_or(f64::from(family.rope_base))) {
        return Err(unsupported(
            "config.json: `theta` is other than `rope_theta`: versions 4 and 5 of transformers read another RoPE each, \
             expected equal numbers",
        ));
    }
    Ok(())
}

/// Returns the width of LFM2's feed-forward, which the file states before its adjustment.
pub(super) fn adjusted_width(config: &Config<'_>) -> Result<usize> {
    let field = "intermediate_size";
    let width = match config.size("block_ff_dim", limits::WIDTH)? {
        Some(width) => width,
        None => config.required(field, config.size(field, limits::WIDTH)?)?,
    };
    let adjust = "block_auto_adjust_ff_dim";
    if !config.bool(adjust)?.unwrap_or(!config.has(adjust)) {
        return Ok(width);
    }
    let width = 2 * width / 3;
    let field = "block_ffn_dim_multiplier";
    let multiplier = match config.positive(field)? {
        // Without a multiplier, the width is not rounded, either.
        None if config.has(field) => return Ok(width),
        multiplier => multiplier.unwrap_or(1.0),
    };
    let multiple = config
        .size("block_multiple_of", limits::WIDTH)?
        .unwrap_or(256);
    let width = (multiplier * width as f64) as usize;
    match width.div_ceil(multiple).checked_mul(multiple) {
        Some(width @ 1..=limits::WIDTH) => Ok(width),
        _ => Err(malformed(format!(
            "config.json: `intermediate_size`, `{field}` and `block_multiple_of` give a width of the feed-forward that \
             is not from 1 to {}",
            limits::WIDTH
        ))),
    }
}

/// Returns LFM2's mixer of each block: attention (`None`) or a convolution of the width of the residual stream.
fn short_convs(
    (hidden, taps, bias): (usize, usize, bool),
    has_attention: impl Iterator<Item = bool>,
) -> Vec<Option<Mixer>> {
    let conv = Mixer::ShortConv(ShortConv {
        channels: hidden,
        taps,
        bias,
    });
    mixers(&conv, has_attention)
}

/// Returns the mixer of each block: attention (`None`) or `other`.
fn mixers(other: &Mixer, has_attention: impl Iterator<Item = bool>) -> Vec<Option<Mixer>> {
    has_attention
        .map(|has_attention| (!has_attention).then(|| other.clone()))
        .collect()
}

/// llama.cpp takes the epsilon of a file for the least length of a DeltaNet's queries and keys, `transformers` for another
/// number. Up to this one, no vector is so short.
const MAX_EPSILON: f32 = 1e-4;

impl Reader<'_> {
    /// Returns the mixer of each block; `None`: attention. Blocks without key-value heads have another mixer.
    pub(super) fn mixers(
        &self,
        hidden: usize,
        kv_heads: &[usize],
        epsilon: f32,
    ) -> Result<Vec<Option<Mixer>>> {
        match self.family.mixers {
            Mixers::Attention => Ok(vec![None; kv_heads.len()]),
            Mixers::ShortConv => {
                let field = "shortconv.l_cache";
                let taps = self.size(field, limits::TAPS)?;
                let taps = self.required(field, taps)?;
                // llama.cpp reads no biases: a file with some has tensors without a part in the model.
                let has_attention = kv_heads.iter().map(|heads| *heads > 0);
                Ok(short_convs((hidden, taps, false), has_attention))
            }
            Mixers::DeltaNet => self.delta_nets(kv_heads.len(), epsilon),
            Mixers::Mamba2 => {
                let mamba = Mixer::Mamba2(self.mamba2(epsilon)?);
                let has_attention = kv_heads.iter().map(|heads| *heads > 0);
                Ok(mixers(&mamba, has_attention))
            }
        }
    }

    /// Reads the sizes of a Mamba-2 of a GGUF file.
    fn mamba2(&self, epsilon: f32) -> Result<Mamba2> {
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let heads = required("ssm.time_step_rank", limits::HEADS)?;
        let width = required("ssm.inner_size", limits::HEADS * limits::HEAD_DIM)?;
        let groups = required("ssm.group_count", limits::HEADS)?;
        if !width.is_multiple_of(heads) || !width.is_multiple_of(groups) {
            return Err(malformed(format!(
                "metadata field `{}` is {width}, expected a multiple of {heads} heads, and of {groups} groups",
                self.key("ssm.inner_size")
            )));
        }
        let has = |end: &str| self.tensors.keys().any(|name| name.ends_with(end));
        Ok(Mamba2 {
            heads,
            head_dim: width / heads,
            groups,
            state: required("ssm.state_size", limits::HEAD_DIM)?,
            taps: required("ssm.conv_kernel", limits::TAPS)?,
            conv_bias: has(".ssm_conv1d.bias"),
            bias: has(".ssm_in.bias"),
            norm: match has(".ssm_norm.weight") {
                true => GateNorm::AfterGate,
                false => GateNorm::Never,
            },
            factors: None,
            epsilon,
        })
    }

    /// Reads the DeltaNets of a GGUF file.
    fn delta_nets(&self, blocks: usize, epsilon: f32) -> Result<Vec<Option<Mixer>>> {
        if epsilon > MAX_EPSILON {
            return Err(unsupported(format!(
                "metadata field `{}` is {epsilon}, expected at most {MAX_EPSILON} for {}",
                self.key("attention.layer_norm_rms_epsilon"),
                self.family.name
            )));
        }
        let required = |field: &str, most| {
            self.size(field, most)
                .and_then(|size| self.required(field, size))
        };
        let value_heads = required("ssm.time_step_rank", limits::HEADS)?;
        let values = required("ssm.inner_size", limits::HEADS * limits::HEAD_DIM)?;
        if !values.is_multiple_of(value_heads) {
            return Err(malformed(format!(
                "metadata field `{}` is {values}, expected a multiple of {value_heads} heads",
                self.key("ssm.inner_size")
            )));
        }
        let net = Mixer::DeltaNet(DeltaNet {
            key_heads: required("ssm.group_count", limits::HEADS)?,
            value_heads,
            key_dim: required("ssm.state_size", limits::HEAD_DIM)?,
            value_dim: values / value_heads,
            taps: required("ssm.conv_kernel", limits::TAPS)?,
            sharing: self.family.head_sharing,
            epsilon,
        });
        let field = self.key("attention.recurrent_layers");
        let has_attention = match self.metadata.get(&field) {
            None => {
                let interval = self.size("full_attention_interval", limits::BLOCKS)?;
                attention_every(interval, blocks)
            }
            Some(OfGguf::Bools(recurrent)) if recurrent.len() >= blocks => {
                recurrent[..blocks].iter().map(|it| !it).collect()
            }
            Some(_) => {
                return Err(malformed(format!(
                    "metadata field `{field}` is no list of booleans for each of {blocks} blocks"
                )));
            }
        };
        Ok(mixers(&net, has_attention.into_iter()))
    }

    /// Returns the number of blocks, with those that predict more than one token (MTP).
    pub(super) fn blocks_in_file(&self) -> Result<usize> {
        let field = "block_count";
        let blocks = self.size(field, limits::BLOCKS)?;
        self.required(field, blocks)
    }

    /// Returns the number of blocks, without those that predict more than one token (MTP).
    pub(super) fn blocks(&self) -> Result<usize> {
        let blocks = self.blocks_in_file()?;
        let field = self.key("nextn_predict_layers");
        let more = match self.family.predicts_more {
            true => self.metadata.integer(&field)?.unwrap_or(0),
            false => 0,
        };
        match blocks.checked_sub(more) {
            Some(blocks @ 1..) => Ok(blocks),
            _ => Err(malformed(format!(
                "metadata field `{field}` is {more}, expected less than the {blocks} blocks"
            ))),
        }
    }
}
