//! Models whose file has a mixer and a feed-forward in blocks of their own, or two mixers in one block. Here, a block has one
//! mixer, and a feed-forward after it or none.

use serde_json::Value as Json;

use super::config::Config;
use super::gguf::Reader;
use super::kinds::Layout;
use super::parts::Parts;
use super::traits::Family;
use super::{malformed, unsupported};
use crate::description::{GateNorm, Mamba2, Residual, limits};
use crate::error::{Error, Result};
use crate::gguf::Value;

/// The fields of a `config.json` with the kind of each of Nemotron-H's blocks.
const TYPES: &str = "layers_block_type";
const TYPES_ALIAS: &str = "layer_types";
const PATTERN: &str = "hybrid_override_pattern";

/// The default of `time_step_min`.
const MIN_STEP: f64 = 0.001;

/// The content of a block in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

/// Returns the blocks of a `config.json`; `None`: as many as it states, of the family's usual kind.
pub(super) fn hugging_face(family: &Family, config: &Config<'_>) -> Result<Option<Vec<Parts>>> {
    match family.layout {
        Layout::Blocks => Ok(None),
        Layout::TwoMixers => {
            let field = "num_hidden_layers";
            let blocks = config.size(field, limits::BLOCKS / 2)?;
            Ok(Some(two_mixers(config.required(field, blocks)?)))
        }
        Layout::SingleParts => {
            let lists = [TYPES, TYPES_ALIAS].map(|field| config.strings(field));
            let [types, alias] = lists;
            let pattern = config.string(PATTERN)?;
            let stated = [
                types?.map(|types| of_names(&types)).transpose()?,
                alias?.map(|types| of_names(&types)).transpose()?,
                pattern.map(of_pattern).transpose()?,
            ];
            let mut stated = stated.into_iter().flatten();
            let kinds = config.required(TYPES, stated.next())?;
            if stated.any(|other| other != kinds) {
                return Err(malformed(format!(
                    "config.json: `{TYPES}`, `{TYPES_ALIAS}` and `{PATTERN}` differ, expected one of them, or the same in all"
                )));
            }
            pairs(&kinds, "config.json").map(Some)
        }
    }
}

fn of_names(names: &[&str]) -> Result<Vec<Kind>> {
    let kind = |name: &&str| match *name {
        "linear_attention" | "mamba" => Ok(Kind::Mamba),
        "full_attention" | "attention" => Ok(Kind::Attention),
        "mlp" => Ok(Kind::Dense),
        "moe" => Ok(Kind::Experts),
        other => Err(unknown(TYPES, other)),
    };
    names.iter().map(kind).collect()
}

fn of_pattern(pattern: &str) -> Result<Vec<Kind>> {
    let kind = |letter: char| match letter {
        'M' => Ok(Kind::Mamba),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::Dense),
        'E' => Ok(Kind::Experts),
        other => Err(unknown(PATTERN, &other.to_string())),
    };
    pattern.chars().take(limits::BLOCKS + 1).map(kind).collect()
}

fn unknown(field: &str, kind: &str) -> Error {
    unsupported(format!(
        "config.json: `{field}` has `{}`, which Triad does not run; it runs Mamba-2, attention, feed-forwards and experts",
        kind.chars().take(40).collect::<String>()
    ))
}

/// Returns blocks of a mixer each, with the feed-forward that follows it.
fn pairs(kinds: &[Kind], file: &str) -> Result<Vec<Parts>> {
    if kinds.len() > limits::BLOCKS {
        return Err(malformed(format!(
            "{file}: more than {} blocks",
            limits::BLOCKS
        )));
    }
    let mut blocks: Vec<Parts> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        match kind {
            Kind::Mamba | Kind::Attention => blocks.push(Parts {
                has_attention: *kind == Kind::Attention,
                has_experts: false,
                residual: Residual::MixerAlone,
            }),
            Kind::Dense | Kind::Experts => match blocks.last_mut() {
                Some(block) if block.residual == Residual::MixerAlone => {
                    block.residual = Residual::Serial;
                    block.has_experts = *kind == Kind::Experts;
                }
                _ => {
                    return Err(unsupported(format!(
                        "{file}: block {index} is a feed-forward that follows no mixer, which Triad does not support"
                    )));
                }
            },
        }
    }
    Ok(blocks)
}

/// Returns two blocks for each one with attention and a Mamba-2, which read one norm.
fn two_mixers(blocks: usize) -> Vec<Parts> {
    let both = [(true, Residual::MixerAlone), (false, Residual::SecondMixer)];
    let parts = both.map(|(has_attention, residual)| Parts {
        has_attention,
        has_experts: false,
        residual,
    });
    [parts].into_iter().cycle().take(blocks).flatten().collect()
}

/// Returns the numbers in the file of the blocks with the mixer and with the feed-forward of each block.
pub(super) fn places(layout: Layout, residuals: impl Iterator<Item = Residual>) -> Vec<[usize; 2]> {
    let mut next = 0;
    let place = |(index, residual): (usize, Residual)| match layout {
        Layout::Blocks => [index; 2],
        Layout::TwoMixers => [index / 2; 2],
        Layout::SingleParts => {
            let mixer = next;
            next += if residual.has_feed_forward() { 2 } else { 1 };
            [mixer, next - 1]
        }
    };
    residuals.enumerate().map(place).collect()
}

/// Refuses limits of steps.
pub(super) fn refuse_step_limits(config: &Config<'_>) -> Result<()> {
    let limit = "time_step_limit";
    if let Some(limits) = config.raw(limit) {
        let least = limits.get(0).and_then(Json::as_f64);
        // JSON has no infinity: version 5 of transformers writes an object.
        let most = limits
            .get(1)
            .map(|most| most.get("__float__").unwrap_or(most));
        let is_none = most.is_some_and(|most| match most.as_str() {
            Some(text) => ["Infinity", "inf"].contains(&text),
            None => most.as_f64().is_some_and(|most| most > 1e30),
        });
        if least != Some(0.0) || !is_none {
            return Err(unsupported(format!(
                "config.json sets `{limit}` to other than 0 and infinity, which Triad does not support"
            )));
        }
    }
    Ok(())
}

/// Reads the sizes of Nemotron-H's Mamba-2.
pub(super) fn nemotron(config: &Config<'_>, epsilon: f32) -> Result<Mamba2> {
    let size = |field: &str, most, default| {
        let size = config.size(field, most)?;
        Ok(size.unwrap_or(default))
    };
    // Older names of fields, which some versions of `transformers` read.
    let older = [
        "mamba_n_groups",
        "mamba_d_conv",
        "mamba_conv_bias",
        "mamba_dt_min",
        "mamba_dt_limit",
    ];
    if let Some(field) = older.into_iter().find(|field| config.has(field)) {
        return Err(unsupported(format!(
            "config.json sets `{field}`, which Triad does not support: expected its newer name"
        )));
    }
    let field = "mamba_hidden_act";
    if config
        .string(field)?
        .is_some_and(|it| !["silu", "swish"].contains(&it))
    {
        return Err(unsupported(format!(
            "config.json: `{field}` is other than silu, which Triad does not support"
        )));
    }
    config.refuse(&["moe_latent_size"])?;
    refuse_step_limits(config)?;
    // Version 5 of `transformers` takes it for the lower bound of steps, but in prompts alone. Triad has no lower bound, as
    // llama.cpp.
    let field = "time_step_min";
    if config
        .positive(field)?
        .is_some_and(|least| least != MIN_STEP)
    {
        return Err(unsupported(format!(
            "config.json: `{field}` is other than {MIN_STEP}, which Triad does not support"
        )));
    }
    Ok(Mamba2 {
        heads: size("mamba_num_heads", limits::HEADS, 128)?,
        head_dim: size("mamba_head_dim", limits::HEAD_DIM, 64)?,
        groups: size("n_groups", limits::HEADS, 8)?,
        state: size("ssm_state_size", limits::HEAD_DIM, 128)?,
        taps: size("conv_kernel", limits::TAPS, 4)?,
        conv_bias: config
            .bool("use_conv_bias")?
            .unwrap_or(!config.has("use_conv_bias")),
        bias: config.bool("use_bias")?.unwrap_or(false),
        norm: GateNorm::AfterGate,
        factors: None,
        epsilon,
    })
}

impl Reader<'_> {
    /// Returns the blocks of a GGUF file with so many, as [`hugging_face`] does, and the width of their dense feed-forwards,
    /// which is 0 if there are none.
    pub(super) fn layout(&self, blocks: usize) -> Result<Option<(Vec<Parts>, usize)>> {
        match self.family.layout {
            Layout::Blocks => return Ok(None),
            Layout::TwoMixers => {
                let field = "feed_forward_length";
                let width = self.size(field, limits::WIDTH)?;
                return Ok(Some((two_mixers(blocks), self.required(field, width)?)));
            }
            // Its blocks have parts of their own, which Triad does not know apart.
            Layout::SingleParts => self.refuse_unless("nextn_predict_layers", 0.0)?,
        }
        let list = |field: &str| {
            let key = self.key(field);
            let stated = match self.metadata.get(&key) {
                Some(Value::Integers(list)) if list.len() == blocks => Some(list.clone()),
                _ => None,
            };
            stated.ok_or_else(|| {
                malformed(format!(
                    "metadata field `{key}` is no list of integers for each of {blocks} blocks"
                ))
            })
        };
        let (widths, heads) = (
            list("feed_forward_length")?,
            list("attention.head_count_kv")?,
        );
        let has_experts = self.family.experts.is_some();
        let kind = |(width, heads): (&i64, &i64)| match (width, heads) {
            (0, 0) => Kind::Mamba,
            (0, _) => Kind::Attention,
            _ if has_experts => Kind::Experts,
            _ => Kind::Dense,
        };
        let kinds: Vec<Kind> = widths.iter().zip(&heads).map(kind).collect();
        let one_of = |list: &[i64], field: &str| {
            let mut stated = list.iter().copied().filter(|it| *it != 0);
            let first = stated.next().unwrap_or(0);
            match usize::try_from(first) {
                Ok(first_size) if first_size <= limits::WIDTH && stated.all(|it| it == first) => {
                    Ok(first_size)
                }
                _ => Err(malformed(format!(
                    "metadata field `{}` has different numbers, or one beyond 0 to {}, expected one number or 0 for each \
                     block",
                    self.key(field),
                    limits::WIDTH
                ))),
            }
        };
        one_of(&heads, "attention.head_count_kv")?;
        let width = one_of(&widths, "feed_forward_length")?;
        Ok(Some((pairs(&kinds, "metadata")?, width)))
    }

    /// Returns the key-value heads of blocks that are others in the file.
    pub(super) fn kv_heads_of_parts(
        &self,
        heads: usize,
        in_file: usize,
        parts: &[Parts],
    ) -> Result<Vec<usize>> {
        let kv_heads = self.kv_heads(heads, in_file)?;
        let of_attention = kv_heads.into_iter().find(|heads| *heads > 0);
        let of_part = |part: &Parts| match part.has_attention {
            true => of_attention.unwrap_or(heads),
            false => 0,
        };
        Ok(parts.iter().map(of_part).collect())
    }
}
