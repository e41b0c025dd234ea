//! The windows of attention in a `config.json`.

use super::config::Config;
use super::kinds::{Mixers, Windows};
use super::traits::Family;
use super::{FULL, SLIDING, malformed, unsupported};
use crate::description::limits;
use crate::error::Result;

/// Returns the window of each block.
pub(super) fn windows(
    family: &Family,
    config: &Config<'_>,
    blocks: usize,
) -> Result<Vec<Option<usize>>> {
    if family.mixers != Mixers::Attention {
        // `layer_types` name the mixers.
        return Ok(vec![None; blocks]);
    }
    let in_use = match family.windows {
        Windows::Never => false,
        Windows::FromLayer => config.bool("use_sliding_window")?.unwrap_or(false),
        Windows::Everywhere | Windows::AllButEvery(_) | Windows::AllButFirstOf(_) => true,
    };
    let field = match family.windows {
        Windows::AllButFirstOf(_) => "local_attention",
        _ => "sliding_window",
    };
    let window = if !in_use {
        None
    } else if config.has(field) {
        config.size(field, limits::CONTEXT)?
    } else {
        family.window
    };
    // `transformers` halves the window if attention reads both sides.
    let window = window.map(|window| match family.bidirectional {
        true => window / 2 + 1,
        false => window,
    });
    let types = config.strings("layer_types")?;
    let of_types = types.map(|types| types_to_windows(&types, family, window, blocks));
    let of_types = of_types.transpose()?;
    // Version 4 of `transformers` reads no types for ModernBERT, and no RoPE of version 5.
    let is_read = !matches!(family.windows, Windows::AllButFirstOf(_))
        || config.raw("rope_parameters").is_some();
    if let Some(of_types) = of_types.as_ref().filter(|_| is_read) {
        return Ok(of_types.clone());
    }
    let first = config.count("max_window_layers")?.unwrap_or(28);
    let every = match family.windows {
        Windows::AllButEvery(default) if family.reads_window_pattern() => config
            .size("sliding_window_pattern", limits::BLOCKS)?
            .unwrap_or(default),
        Windows::AllButEvery(every) => every,
        Windows::AllButFirstOf(default) => config
            .size("global_attn_every_n_layers", limits::BLOCKS)?
            .unwrap_or(default),
        _ => 1,
    };
    let windowed = |block: usize| match family.windows {
        Windows::Never => false,
        Windows::Everywhere => true,
        Windows::FromLayer => block >= first,
        Windows::AllButEvery(_) => !(block + 1).is_multiple_of(every),
        Windows::AllButFirstOf(_) => !block.is_multiple_of(every),
    };
    let windows: Vec<_> = (0..blocks)
        .map(|block| window.filter(|_| windowed(block)))
        .collect();
    match of_types {
        Some(of_types) if of_types != windows => Err(unsupported(
            "config.json: `layer_types` and `global_attn_every_n_layers` state other windows: versions of transformers \
             differ in which they read",
        )),
        _ => Ok(windows),
    }
}

fn types_to_windows(
    types: &[&str],
    family: &Family,
    window: Option<usize>,
    blocks: usize,
) -> Result<Vec<Option<usize>>> {
    if types.len() != blocks {
        return Err(malformed(format!(
            "config.json: `layer_types` has {} entries, expected one for each of the {blocks} blocks",
            types.len()
        )));
    }
    let to_window = |(block, kind): (usize, &&str)| match *kind {
        // `transformers` gives every block of these the window, whatever `layer_types` contains.
        FULL | SLIDING if ["phi3", "mistral3", "mixtral"].contains(&family.name) => Ok(window),
        FULL => Ok(None),
        SLIDING if window.is_some() => Ok(window),
        SLIDING => Err(malformed(format!(
            "config.json: `layer_types[{block}]` is `{SLIDING}`, but no sliding window is in use"
        ))),
        other => Err(unsupported(format!(
            "config.json: `layer_types[{block}]` is `{}`, which Triad does not run; it runs {FULL} and {SLIDING}",
            other.chars().take(40).collect::<String>()
        ))),
    };
    types.iter().enumerate().map(to_window).collect()
}
