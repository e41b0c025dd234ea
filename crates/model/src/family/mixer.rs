//! The blocks of a model whose token mixer is not attention, and the sizes of these mixers.

use super::config::Config;
use super::kinds::Mixers;
use super::traits::Family;
use super::{FULL, malformed, unsupported};
use crate::description::{Mixer, ShortConv, limits};
use crate::error::Result;

/// The name of LFM2's convolution in a `config.json`.
const CONV: &str = "conv";

/// Reads the mixer of each block from a `config.json`; `None`: attention.
pub(super) fn hugging_face(
    family: &Family,
    config: &Config<'_>,
    hidden: usize,
    blocks: usize,
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
            let has_attention = attention_blocks(config, blocks)?;
            Ok(short_convs((hidden, taps, bias), has_attention.into_iter()))
        }
    }
}

/// Returns whether each block of LFM2 has attention.
fn attention_blocks(config: &Config<'_>, blocks: usize) -> Result<Vec<bool>> {
    if let Some(types) = config.strings("layer_types")? {
        if types.len() != blocks {
            return Err(malformed(format!(
                "config.json: `layer_types` has {} entries, expected one for each of the {blocks} blocks",
                types.len()
            )));
        }
        let has_attention = |(block, kind): (usize, &&str)| match *kind {
            FULL => Ok(true),
            CONV => Ok(false),
            other => Err(unsupported(format!(
                "config.json: `layer_types[{block}]` is `{}`, which Triad does not run; it runs {FULL} and {CONV}",
                other.chars().take(40).collect::<String>()
            ))),
        };
        return types.iter().enumerate().map(has_attention).collect();
    }
    let Some(indices) = config.counts("full_attn_idxs")? else {
        return Ok(vec![true; blocks]);
    };
    Ok((0..blocks).map(|block| indices.contains(&block)).collect())
}

/// Returns whether the output matrix is the embedding, if a field says so that only this family has.
pub(super) fn tied(family: &Family, config: &Config<'_>) -> Result<Option<bool>> {
    match family.mixers {
        Mixers::Attention => Ok(None),
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
pub(super) fn short_convs(
    (hidden, taps, bias): (usize, usize, bool),
    has_attention: impl Iterator<Item = bool>,
) -> Vec<Option<Mixer>> {
    let conv = Mixer::ShortConv(ShortConv {
        channels: hidden,
        taps,
        bias,
    });
    has_attention
        .map(|has_attention| (!has_attention).then(|| conv.clone()))
        .collect()
}
