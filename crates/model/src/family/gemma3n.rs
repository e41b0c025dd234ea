//! The blocks of Gemma 3n in a `config.json` and in the metadata of GGUF. The last blocks read the keys and values of the
//! last block of their kind before them, and some set small gates to 0.

use serde_json::Value as Json;

use super::config::Config;
use super::gemma4::{self, Sizes};
use super::gguf::Reader;
use super::parts::{BlockShape, OwnParts};
use super::traits::Family;
use super::{malformed, missing, unsupported};
use crate::description::{KeyValues, Streams, limits};
use crate::error::Result;
use crate::gguf::Value;

/// The field of a `config.json` with the width of the feed-forward, of all blocks or of each.
const WIDTHS: &str = "intermediate_size";
/// The field with the part of gates that each block sets to 0.
const SPARSITY: &str = "activation_sparsity_pattern";

/// The default of `num_kv_shared_layers`.
const SHARED: usize = 15;
/// The default part of gates that the first blocks set to 0, and the number of these blocks. Models that are not longer
/// have none.
const SPARSE: (f64, usize) = (0.95, 10);
/// The most streams, far above those of published models, 4.
const STREAMS: usize = 16;

/// In llama.cpp, the first block that reads keys of others.
const GGUF_SHARED: usize = 20;
/// In llama.cpp, the standard deviations of [`SPARSE`].
const GGUF_CUTOFF: f32 = 1.644_853_5;
/// In llama.cpp, the width of inputs by token.
const GGUF_WIDTH: usize = 256;
/// In llama.cpp, the soft cap of logits.
const GGUF_CAP: f32 = 30.0;

/// Returns the width of the feed-forward of each block.
pub(super) fn widths(family: &Family, config: &Config<'_>, blocks: usize) -> Result<Vec<usize>> {
    if !config.raw(WIDTHS).is_some_and(Json::is_array) {
        let width = config.size(WIDTHS, limits::WIDTH)?.or(family.size(WIDTHS));
        return Ok(vec![config.required(WIDTHS, width)?; blocks]);
    }
    let widths = config.counts(WIDTHS)?.unwrap_or_default();
    let is_right = |width: &usize| (1..=limits::WIDTH).contains(width);
    match widths.len() == blocks && widths.iter().all(is_right) {
        true => Ok(widths),
        false => Err(malformed(format!(
            "config.json: `{WIDTHS}` has {} numbers, expected an integer from 1 to {} for each of {blocks} blocks",
            widths.len(),
            limits::WIDTH
        ))),
    }
}

/// Returns how many standard deviations each block subtracts from its gates.
fn cutoffs(config: &Config<'_>, blocks: usize) -> Result<Vec<Option<f32>>> {
    let sparsities = match config.raw(SPARSITY) {
        None => {
            let (part, first) = SPARSE;
            let first = if blocks > first { first } else { 0 };
            (0..blocks)
                .map(|block| if block < first { part } else { 0.0 })
                .collect()
        }
        Some(list) => {
            let number = |value: &Json| value.as_f64().filter(|part| (*part as f32) < 1.0);
            let list = list.as_array().filter(|list| list.len() == blocks);
            let list: Option<Vec<f64>> = list.and_then(|it| it.iter().map(number).collect());
            list.ok_or_else(|| {
                malformed(format!(
                    "config.json: `{SPARSITY}` is no array of a number below 1 for each of {blocks} blocks"
                ))
            })?
        }
    };
    Ok(sparsities
        .into_iter()
        .map(|part| (part > 0.0).then(|| quantile(part)))
        .collect())
}

/// Returns the number of standard deviations above the mean below which this part of a normal distribution is.
/// `transformers` rounds the part to f32 first.
fn quantile(part: f64) -> f32 {
    let part = f64::from(part as f32);
    let below = |deviations: f64| 0.5 * libm::erfc(-deviations / std::f64::consts::SQRT_2);
    let (mut low, mut high) = (-20.0, 20.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        match below(middle) < part {
            true => low = middle,
            false => high = middle,
        }
    }
    high as f32
}

/// Reads a `config.json`.
pub(super) fn hugging_face(
    family: &Family,
    config: &Config<'_>,
    windows: &[Option<usize>],
    sizes: Sizes,
) -> Result<OwnParts> {
    config.refuse(&["altup_active_idx"])?;
    let blocks = windows.len();
    let field = "num_kv_shared_layers";
    let shared = config.count(field)?.unwrap_or(SHARED);
    let first = gemma4::first_shared(shared, blocks, &format!("config.json: `{field}`"))?;
    let widths = widths(family, config, blocks)?;
    let cutoffs = cutoffs(config, blocks)?;
    let shape = |block: usize| {
        Ok(BlockShape {
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            width: widths[block],
            key_values: match block >= first {
                true => KeyValues::OfBlock(gemma4::source(windows, first, block)?),
                false => KeyValues::Own,
            },
            cutoff: cutoffs[block],
        })
    };
    let size = |field: &str, most: usize| {
        let size = config.size(field, most)?.or(family.size(field));
        config.required(field, size)
    };
    let field = "vocab_size_per_layer_input";
    let rows = size(field, limits::VOCAB)?;
    if rows > sizes.vocab {
        return Err(unsupported(format!(
            "config.json: `{field}` is {rows}, expected at most `vocab_size`, {}",
            sizes.vocab
        )));
    }
    Ok(OwnParts {
        shapes: (0..blocks).map(shape).collect::<Result<_>>()?,
        token_width: Some(size("hidden_size_per_layer_input", limits::HIDDEN)?),
        token_rows: (rows < sizes.vocab).then_some(rows),
        scaled: false,
        streams: Some(Streams {
            count: size("altup_num_inputs", STREAMS)?,
            rank: size("laurel_rank", limits::HIDDEN)?,
            scaled: config.bool("altup_correct_scale")?.unwrap_or(true),
        }),
        ropes: None,
    })
}

impl Reader<'_> {
    /// Reads the metadata of GGUF. llama.cpp has most numbers of published models in its code; other ones are refused.
    pub(super) fn gemma3n(
        &self,
        windows: &[Option<usize>],
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<OwnParts> {
        let field = "attention.sliding_window";
        self.required(field, self.metadata.integer(&self.key(field))?)?;
        let blocks = windows.len();
        let first = GGUF_SHARED.min(blocks);
        for (field, expected) in [
            // Published files have a float here.
            ("attention.shared_kv_layers", (blocks - first) as f32),
            ("altup.active_idx", 0.0),
            ("final_logit_softcapping", GGUF_CAP),
        ] {
            self.refuse_unless(field, expected)?;
        }
        let inner = gemma4::sizes(self, "feed_forward_length", limits::WIDTH, blocks)?;
        let cutoffs = self.cutoffs(&inner)?;
        let shape = |block: usize| {
            Ok(BlockShape {
                kv_heads,
                head_dim,
                width: inner[block],
                key_values: match block >= first {
                    true => KeyValues::OfBlock(gemma4::gguf_source(windows, first, block)?),
                    false => KeyValues::Own,
                },
                cutoff: cutoffs[block],
            })
        };
        let name = "blk.0.laurel_l.weight";
        let rank = self.tensors.get(name).map(|tensor| &tensor.shape[..]);
        let Some(&[rank @ 1..=limits::HIDDEN, _]) = rank else {
            return Err(missing(format!(
                "tensor `{name}` is missing or no matrix of 1 to {} rows",
                limits::HIDDEN
            )));
        };
        let width = self.size("embedding_length_per_layer_input", limits::HIDDEN)?;
        Ok(OwnParts {
            shapes: (0..blocks).map(shape).collect::<Result<_>>()?,
            token_width: Some(width.unwrap_or(GGUF_WIDTH)),
            token_rows: None,
            scaled: false,
            streams: Some(Streams {
                count: self.size("altup.num_inputs", STREAMS)?.unwrap_or(4),
                rank,
                scaled: true,
            }),
            ropes: None,
        })
    }

    /// Returns how many standard deviations each block subtracts from its gates. llama.cpp estimates the deviation of a
    /// larger set of which the gates are a part, so that it is larger by a factor that depends on their number alone.
    fn cutoffs(&self, inner: &[usize]) -> Result<Vec<Option<f32>>> {
        let (_, first) = SPARSE;
        let key = self.key("activation_sparsity_scale");
        let stated = match self.metadata.get(&key) {
            None => None,
            Some(Value::Floats(stated)) if stated.len() == inner.len() => Some(stated),
            Some(_) => {
                return Err(malformed(format!(
                    "metadata field `{key}` is no list of floats for each of {} blocks",
                    inner.len()
                )));
            }
        };
        let cutoff = |(block, width): (usize, &usize)| {
            let is_sparse = block < first;
            let is_right = stated.is_none_or(|stated| match is_sparse {
                true => (stated[block] - GGUF_CUTOFF).abs() < 1e-5,
                false => stated[block] == f32::NEG_INFINITY,
            });
            if !is_right {
                return Err(unsupported(format!(
                    "metadata field `{key}` is other than {GGUF_CUTOFF} for the first {first} blocks and minus infinity for \
                     the others, which Triad does not support"
                )));
            }
            // The deviation of a single gate would be 0 / 0.
            let width = (*width).max(2) as f64;
            let factor = (width / (width - 1.0)).sqrt();
            Ok(is_sparse.then_some((f64::from(GGUF_CUTOFF) * factor) as f32))
        };
        inner.iter().enumerate().map(cutoff).collect()
    }
}
