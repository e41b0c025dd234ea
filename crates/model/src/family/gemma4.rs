//! The blocks of Gemma 4 in a `config.json` and in the metadata of GGUF. Heads and RoPE of blocks with a window differ
//! from those of the others; the last blocks read the keys and values of the last block of their kind before them.

use super::config::Config;
use super::gguf::Reader;
use super::parts::{BlockShape, OwnParts};
use super::traits::Family;
use super::{FULL, ReadF32, SLIDING, malformed, missing, unsupported};
use crate::description::{KeyValues, Rope, RopePairing, RopeScaling, limits};
use crate::error::Result;
use crate::gguf::Value;

/// Fields of a `config.json` that other families refuse.
pub(super) const FIELDS: [&str; 2] = [PER_LAYER, BIDIRECTIONAL];
const PER_LAYER: &str = "per_layer_config";
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// Fields of a `config.json` that change the computation in a way that Triad does not support.
const REFUSED: [&str; 2] = ["rope_scaling", "rope_theta"];

/// The default part of the pairs of a head that RoPE rotates in blocks without a window.
const ROTATED: f64 = 0.25;
/// A divisor of RoPE's frequencies in GGUF from which on a pair keeps its values; the files have 1e30.
const STILL: f32 = 1e20;

/// The numbers that the other blocks' shapes follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub width: usize,
    pub vocab: usize,
}

/// Reads a `config.json`. The last of `windows` must be `None`.
pub(super) fn hugging_face(
    family: &Family,
    config: &Config<'_>,
    windows: &[Option<usize>],
    sizes: Sizes,
) -> Result<OwnParts> {
    config.refuse(&REFUSED)?;
    if family.experts.is_none() {
        config.refuse(&["enable_moe_block"])?;
    }
    if config.has(BIDIRECTIONAL)
        && config
            .string(BIDIRECTIONAL)?
            .is_some_and(|it| it != "vision")
    {
        return Err(unsupported(format!(
            "config.json: `{BIDIRECTIONAL}` is other than \"vision\", which Triad does not support"
        )));
    }
    let default = |key: &str| family.size(key);
    let blocks = windows.len();
    let shared = config.count("num_kv_shared_layers")?.unwrap_or(0);
    let first_shared = first_shared(shared, blocks, "config.json: `num_kv_shared_layers`")?;
    let is_wide = config.bool("use_double_wide_mlp")?.unwrap_or(false);
    let one_layer = config.bool("attention_k_eq_v")?.unwrap_or(false);
    let heads = heads(
        config,
        windows,
        (sizes, one_layer, default("global_head_dim")),
    )?;
    let shape = |(block, (kv_heads, head_dim)): (usize, (usize, usize))| {
        let is_shared = block >= first_shared;
        let key_values = if is_shared {
            KeyValues::OfBlock(source(windows, first_shared, block)?)
        } else if one_layer && windows[block].is_none() {
            KeyValues::OneLayer
        } else {
            KeyValues::Own
        };
        let width = match sizes.width.checked_mul(2).filter(|_| is_shared && is_wide) {
            Some(width @ 1..=limits::WIDTH) => width,
            None => sizes.width,
            Some(width) => {
                return Err(malformed(format!(
                    "config.json: twice `intermediate_size` is {width}, expected at most {}",
                    limits::WIDTH
                )));
            }
        };
        Ok(BlockShape {
            kv_heads,
            head_dim,
            width,
            key_values,
            cutoff: None,
        })
    };
    let shapes: Vec<BlockShape> = heads
        .into_iter()
        .enumerate()
        .map(shape)
        .collect::<Result<_>>()?;
    let width_of = |is_full: bool| {
        let mut kinds = windows.iter().zip(&shapes);
        kinds
            .find(|(window, _)| window.is_none() == is_full)
            .map_or(sizes.head_dim, |(_, shape)| shape.head_dim)
    };
    let ropes = [
        config_rope(config, true, width_of(true))?,
        config_rope(config, false, width_of(false))?,
    ];
    Ok(OwnParts {
        token_width: token_width(config, sizes.vocab, &default)?,
        token_rows: None,
        scaled: true,
        streams: None,
        shapes,
        ropes: Some(ropes),
    })
}

/// Returns the first block that reads the keys and values of another one.
pub(super) fn first_shared(shared: usize, blocks: usize, field: &str) -> Result<usize> {
    blocks
        .checked_sub(shared)
        .filter(|first| *first > 0)
        .ok_or_else(|| {
            malformed(format!(
                "{field} is {shared}, expected less than the number of blocks, {blocks}"
            ))
        })
}

/// Returns the last block of the same kind before the first one that reads keys and values of others.
pub(super) fn source(
    windows: &[Option<usize>],
    first_shared: usize,
    block: usize,
) -> Result<usize> {
    let is_same = |other: &usize| windows[*other].is_some() == windows[block].is_some();
    (0..first_shared).rfind(is_same).ok_or_else(|| {
        malformed(format!(
            "config.json: block {block} reads the keys of an earlier block of its kind, but none of the first {first_shared} is of that kind"
        ))
    })
}

/// Returns the key-value heads of each block, and their width.
fn heads(
    config: &Config<'_>,
    windows: &[Option<usize>],
    (sizes, one_layer, default): (Sizes, bool, Option<usize>),
) -> Result<Vec<(usize, usize)>> {
    let of_all = (sizes.kv_heads, sizes.head_dim);
    if let Some(list) = config.object(PER_LAYER, "per_layer_config.")? {
        let mut heads = vec![of_all; windows.len()];
        for name in list.names() {
            let of_block = list.object(name, "per_layer_config.*.")?;
            let place = name
                .parse()
                .ok()
                .and_then(|block: usize| heads.get_mut(block));
            let (Some(of_block), Some(place)) = (of_block, place) else {
                return Err(unsupported(format!(
                    "config.json: `{PER_LAYER}` has an entry `{}`, expected an object for each of some blocks, from 0 to {}",
                    name.chars().take(40).collect::<String>(),
                    windows.len() - 1
                )));
            };
            let fields = ["num_key_value_heads", "head_dim"];
            if let Some(other) = of_block.names().find(|name| !fields.contains(name)) {
                return Err(unsupported(format!(
                    "config.json sets `{PER_LAYER}.*.{}`, which Triad does not support",
                    other.chars().take(40).collect::<String>()
                )));
            }
            *place = (
                of_block.size(fields[0], limits::HEADS)?.unwrap_or(of_all.0),
                of_block
                    .size(fields[1], limits::HEAD_DIM)?
                    .unwrap_or(of_all.1),
            );
        }
        // The two kinds of blocks have a RoPE each.
        for is_full in [true, false] {
            let mut of_kind = windows
                .iter()
                .zip(&heads)
                .filter(|(window, _)| window.is_none() == is_full);
            let first = of_kind.next();
            if of_kind.any(|(_, heads)| first.is_some_and(|(_, first)| first != heads)) {
                return Err(unsupported(format!(
                    "config.json: `{PER_LAYER}` gives blocks of one kind of attention other heads, which Triad does not support"
                )));
            }
        }
        return Ok(heads);
    }
    let width = config
        .size("global_head_dim", limits::HEAD_DIM)?
        .or(default)
        .unwrap_or(sizes.head_dim);
    let count = config.size("num_global_key_value_heads", limits::HEADS)?;
    let full = (count.filter(|_| one_layer).unwrap_or(sizes.kv_heads), width);
    Ok(windows
        .iter()
        .map(|window| window.map_or(full, |_| of_all))
        .collect())
}

fn token_width(
    config: &Config<'_>,
    vocab: usize,
    default: &dyn Fn(&str) -> Option<usize>,
) -> Result<Option<usize>> {
    let (field, rows) = ("hidden_size_per_layer_input", "vocab_size_per_layer_input");
    let Some(width) = default(field) else {
        return Ok(None);
    };
    if config.has(field) && config.count(field)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let table = config
        .size(rows, limits::VOCAB)?
        .or(default(rows))
        .unwrap_or(vocab);
    if table != vocab {
        return Err(unsupported(format!(
            "config.json: `{rows}` is {table}, expected `vocab_size`, {vocab}"
        )));
    }
    Ok(Some(config.size(field, limits::HIDDEN)?.unwrap_or(width)))
}

/// Reads RoPE of the blocks without a window, or of those with one.
fn config_rope(config: &Config<'_>, is_full: bool, head_dim: usize) -> Result<Rope> {
    let rope = |base, still, scaling| Rope {
        dims: head_dim,
        still,
        base,
        pairing: RopePairing::Halves,
        scaling,
    };
    // `transformers` multiplies by the dimensions first.
    let still =
        |part: f64| head_dim / 2 - ((part * head_dim as f64 / 2.0) as usize).min(head_dim / 2);
    let Some(all) = config.object("rope_parameters", "rope_parameters.")? else {
        return Ok(match is_full {
            true => rope(1e6, still(ROTATED), RopeScaling::None),
            false => rope(1e4, 0, RopeScaling::None),
        });
    };
    let kind = if is_full { FULL } else { SLIDING };
    let place = all.object(kind, "rope_parameters.*.")?;
    let place = place
        .ok_or_else(|| missing(format!("config.json has no field `rope_parameters.{kind}`")))?;
    let base = place.required("rope_theta", place.positive("rope_theta")?)? as f32;
    let part = place.positive("partial_rotary_factor")?;
    match place.required("rope_type", place.string("rope_type")?)? {
        "default" => Ok(rope(base, 0, RopeScaling::None)),
        "proportional" => {
            let part = part.unwrap_or(1.0);
            if part > 1.0 {
                return Err(malformed(format!(
                    "config.json: `rope_parameters.{kind}.partial_rotary_factor` is {part}, expected at most 1"
                )));
            }
            let scaling = match place.positive("factor")? {
                Some(factor) if factor != 1.0 => RopeScaling::Linear {
                    factor: factor as f32,
                },
                _ => RopeScaling::None,
            };
            Ok(rope(base, still(part), scaling))
        }
        other => Err(unsupported(format!(
            "config.json: `rope_parameters.{kind}.rope_type` is `{}`, which Triad does not run; it runs default and proportional",
            other.chars().take(40).collect::<String>()
        ))),
    }
}

impl Reader<'_> {
    /// Reads the metadata of GGUF.
    pub(super) fn gemma4(
        &self,
        windows: &[Option<usize>],
        read_f32: &ReadF32<'_>,
    ) -> Result<OwnParts> {
        let reader = self;
        let blocks = windows.len();
        let field = "attention.shared_kv_layers";
        let shared = reader.metadata.integer(&reader.key(field))?.unwrap_or(0);
        let first_shared = first_shared(
            shared,
            blocks,
            &format!("metadata field `{}`", reader.key(field)),
        )?;
        let width = |end: &str, is_full: bool| {
            let field = format!("attention.{end}{}", if is_full { "" } else { "_swa" });
            let width = reader.size(&field, limits::HEAD_DIM)?;
            reader.required(&field, width)
        };
        let mut widths = [0; 2];
        for (at, is_full) in [true, false].into_iter().enumerate() {
            widths[at] = width("key_length", is_full)?;
            let values = width("value_length", is_full)?;
            if values != widths[at] {
                return Err(unsupported(format!(
                    "metadata gives keys a width of {} and values one of {values}: Triad runs equal widths",
                    widths[at]
                )));
            }
        }
        let kv_heads = sizes(reader, "attention.head_count_kv", limits::HEADS, blocks)?;
        let inner = sizes(reader, "feed_forward_length", limits::WIDTH, blocks)?;
        let shape = |block: usize| {
            let is_full = windows[block].is_none();
            let key_values = if block >= first_shared {
                KeyValues::OfBlock(gguf_source(windows, first_shared, block)?)
            } else if reader.has(&format!("blk.{block}.attn_v.weight")) {
                KeyValues::Own
            } else {
                KeyValues::OneLayer
            };
            let head_dim = widths[usize::from(!is_full)];
            Ok(BlockShape {
                kv_heads: kv_heads[block],
                head_dim,
                width: inner[block],
                key_values,
                cutoff: None,
            })
        };
        let field = reader.key("embedding_length_per_layer_input");
        let token_width = match reader.metadata.integer(&field)?.unwrap_or(0) {
            0 => None,
            width @ 1..=limits::HIDDEN => Some(width),
            width => {
                return Err(malformed(format!(
                    "metadata field `{field}` is {width}, expected an integer from 0 to {}",
                    limits::HIDDEN
                )));
            }
        };
        Ok(OwnParts {
            shapes: (0..blocks).map(shape).collect::<Result<_>>()?,
            token_width,
            token_rows: None,
            streams: None,
            scaled: reader.has("blk.0.layer_output_scale.weight"),
            ropes: Some(gguf_ropes(reader, windows, widths, read_f32)?),
        })
    }
}

/// Returns the block whose keys and values a block reads. llama.cpp takes the last two blocks before the first that
/// reads those of others.
pub(super) fn gguf_source(
    windows: &[Option<usize>],
    first_shared: usize,
    block: usize,
) -> Result<usize> {
    let is_full = windows[block].is_none();
    let source = first_shared.checked_sub(if is_full { 1 } else { 2 });
    source.filter(|source| windows[*source].is_none() == is_full).ok_or_else(|| {
        unsupported(format!(
            "the last two blocks with keys of their own before block {first_shared} are not one with a window and one \
             without, which Triad does not support"
        ))
    })
}

/// Returns a size of each block, which a file states once if all are equal.
pub(super) fn sizes(
    reader: &Reader<'_>,
    field: &str,
    most: usize,
    blocks: usize,
) -> Result<Vec<usize>> {
    let key = reader.key(field);
    let Some(Value::Integers(list)) = reader.metadata.get(&key) else {
        let size = reader.size(field, most)?;
        return Ok(vec![reader.required(field, size)?; blocks]);
    };
    let size = |size: &i64| {
        usize::try_from(*size)
            .ok()
            .filter(|size| (1..=most).contains(size))
    };
    let sizes: Option<Vec<usize>> = list.iter().map(size).collect();
    sizes.filter(|sizes| sizes.len() == blocks).ok_or_else(|| {
        malformed(format!(
            "metadata field `{key}` has {} numbers, expected an integer from 1 to {most} for each of {blocks} blocks",
            list.len()
        ))
    })
}

fn gguf_ropes(
    reader: &Reader<'_>,
    windows: &[Option<usize>],
    widths: [usize; 2],
    read_f32: &ReadF32<'_>,
) -> Result<[Rope; 2]> {
    refuse_scaling(reader)?;
    for (field, width) in [
        ("rope.dimension_count", widths[0]),
        ("rope.dimension_count_swa", widths[1]),
    ] {
        let dims = reader.size(field, limits::HEAD_DIM)?;
        let dims = reader.required(field, dims)?;
        if dims != width {
            return Err(unsupported(format!(
                "metadata field `{}` is {dims}, expected the width of a head, {width}",
                reader.key(field)
            )));
        }
    }
    let base = |field: &str| {
        reader
            .positive(field)
            .and_then(|base| reader.required(field, base))
    };
    let rope = |base, dims, still, scaling| Rope {
        dims,
        still,
        base,
        pairing: RopePairing::Halves,
        scaling,
    };
    let (still, scaling) = if windows.iter().any(Option::is_none) {
        divisors(reader, widths[0], read_f32)?
    } else {
        (0, RopeScaling::None)
    };
    Ok([
        rope(base("rope.freq_base")?, widths[0], still, scaling),
        rope(base("rope.freq_base_swa")?, widths[1], 0, RopeScaling::None),
    ])
}

/// Refuses a change of RoPE other than by stored divisors.
fn refuse_scaling(reader: &Reader<'_>) -> Result<()> {
    // Without a factor, files have 0 or 1; the factor on cosine and sine has no such meaning.
    let neutral = [
        ("rope.scaling.factor", [0.0, 1.0]),
        ("rope.scale_linear", [0.0, 1.0]),
        ("rope.scaling.attn_factor", [1.0, 1.0]),
    ];
    for (field, neutral) in neutral {
        if reader
            .float(field)?
            .is_some_and(|value| !neutral.contains(&value))
        {
            return Err(unsupported(format!(
                "metadata sets `{}`, which Triad does not support for gemma4",
                reader.key(field)
            )));
        }
    }
    let field = reader.key("rope.scaling.type");
    match reader.metadata.string(&field)? {
        None | Some("none" | "linear") => Ok(()),
        Some(other) => Err(unsupported(format!(
            "metadata field `{field}` is `{}`, which Triad does not support for gemma4",
            other.chars().take(40).collect::<String>()
        ))),
    }
}

/// Reads the divisors of RoPE's frequencies, and the number of pairs that keep their values.
fn divisors(
    reader: &Reader<'_>,
    dims: usize,
    read_f32: &ReadF32<'_>,
) -> Result<(usize, RopeScaling)> {
    let name = "rope_freqs.weight";
    let Some(mut factors) = reader.factors(name, dims, read_f32)? else {
        return Err(missing(format!(
            "tensor `{name}` is missing, expected one of shape [{}]",
            dims / 2
        )));
    };
    let rotated = factors
        .iter()
        .position(|divisor| *divisor >= STILL)
        .unwrap_or(factors.len());
    if let Some(other) = factors[rotated..].iter().find(|divisor| **divisor < STILL) {
        return Err(unsupported(format!(
            "tensor `{name}` has {other} after a divisor of at least {STILL:e}, which Triad does not support"
        )));
    }
    let still = factors.len() - rotated;
    factors[rotated..].fill(1.0);
    let scaling = match factors.iter().all(|divisor| *divisor == 1.0) {
        true => RopeScaling::None,
        false => RopeScaling::Factors { factors },
    };
    Ok((still, scaling))
}
