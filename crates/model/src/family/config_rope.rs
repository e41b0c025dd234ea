//! RoPE as a `config.json` describes it. Versions 4 and 5 of `transformers` read its numbers from different places.

use super::config::Config;
use super::kinds::{LocalRope, NoRope};
use super::rope::{
    BETA_FAST, BETA_SLOW, Llama3, Yarn, llama3_factors, long_rope_attention_factor,
    yarn_attention_factor, yarn_factors,
};
use super::traits::{self, Family};
use super::{FULL, SLIDING, malformed, missing, unsupported};
use crate::description::{Rope, RopeScaling, Temperature, limits};
use crate::error::{Error, Result};

/// Base of RoPE in OLMo 3, where the file has none, by version 5.
const OLMO3_BASE: f32 = 500_000.0;

const ORIGINAL: &str = "original_max_position_embeddings";

/// The places of RoPE's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigRope<'a> {
    pub family: &'a Family,
    pub config: &'a Config<'a>,
    pub head_dim: usize,
    pub context: usize,
}

/// The version of `transformers` by whose rules a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Scaling is in `rope_scaling`; base and fraction are at the top level.
    Four,
    /// Everything is in `rope_scaling` or, without it, in `rope_parameters`. Base and fraction are at the top level if
    /// they are absent there.
    Five,
}

impl<'a> ConfigRope<'a> {
    /// Reads RoPE of the blocks with full attention or, with `local`, of those with a window.
    ///
    /// # Errors
    /// Also if both versions can read the file, but as different models.
    pub fn read(&self, local: bool) -> Result<Rope> {
        let local = local && self.family.has_local_rope();
        let scaling = self
            .config
            .object("rope_scaling", "rope_scaling.")?
            .filter(|scaling| !scaling.is_empty());
        // Version 5 reads Gemma 3's RoPE as unscaled unless `rope_type` says otherwise.
        if self.family.has_local_rope() {
            scaling.map_or(Ok(None), |scaling| {
                scaling
                    .required("rope_type", scaling.string("rope_type")?)
                    .map(Some)
            })?;
        }
        let parameters = self.parameters(local)?;
        let places: Vec<Config<'a>> = match (scaling, parameters) {
            (Some(_), parameters) if local => parameters.into_iter().collect(),
            // Gemma 3's `rope_scaling` overrides its `rope_parameters`.
            (Some(scaling), Some(parameters)) if self.family.has_local_rope() => {
                vec![scaling, parameters]
            }
            (Some(scaling), _) => vec![scaling],
            (None, parameters) => parameters.into_iter().collect(),
        };
        let newer = self.by(Version::Five, local, &places)?;
        if self.family.remote {
            return self.of_remote_code(newer);
        }
        if scaling.is_none() && self.config.raw("rope_parameters").is_some() {
            return Ok(newer);
        }
        let places: Vec<Config<'a>> = scaling.into_iter().filter(|_| !local).collect();
        if self.by(Version::Four, local, &places)? != newer {
            return Err(unsupported(
                "config.json: versions 4 and 5 of transformers read another RoPE each from `rope_theta`, `rope_scaling` \
                 and the fields next to them, expected fields that mean the same to both",
            ));
        }
        Ok(newer)
    }

    /// Returns a RoPE for blocks that have none.
    pub fn none(&self) -> Rope {
        Rope {
            dims: self.head_dim,
            still: 0,
            base: self.family.rope_base,
            pairing: self.family.pairing,
            scaling: RopeScaling::None,
        }
    }

    /// Checks RoPE of a family whose code is not a part of `transformers`.
    fn of_remote_code(&self, rope: Rope) -> Result<Rope> {
        if self.config.raw("rope_parameters").is_some() {
            return Err(unsupported(format!(
                "config.json sets `rope_parameters`, which Triad does not support for {}",
                self.family.name
            )));
        }
        match rope.scaling {
            RopeScaling::None => Ok(rope),
            // It takes the long divisors from the start if the context is longer than that of pre-training.
            RopeScaling::LongRope {
                original_context, ..
            } if original_context == self.context => Ok(rope),
            RopeScaling::LongRope { .. } => Err(unsupported(format!(
                "config.json: `rope_scaling.{ORIGINAL}` is other than `max_position_embeddings`, which Triad does not \
                 support for {}",
                self.family.name
            ))),
            _ => Err(unsupported(format!(
                "config.json sets `rope_scaling`, expected none or longrope for {}",
                self.family.name
            ))),
        }
    }

    /// Returns the fields of `rope_parameters` for one kind of block.
    fn parameters(&self, local: bool) -> Result<Option<Config<'a>>> {
        let all = self
            .config
            .object("rope_parameters", "rope_parameters.")?
            .filter(|all| !all.is_empty());
        let Some(all) = all else { return Ok(None) };
        if self.family.has_local_rope() {
            let layer = if local { SLIDING } else { FULL };
            let one = all.object(layer, "rope_parameters.*.")?;
            let absent = || {
                missing(format!(
                    "config.json has no field `rope_parameters.{layer}`"
                ))
            };
            return one.map(Some).ok_or_else(absent);
        }
        match [FULL, SLIDING].into_iter().find(|layer| all.has(layer)) {
            Some(layer) => Err(unsupported(format!(
                "config.json sets `rope_parameters.{layer}`, which Triad does not support for {}",
                self.family.name
            ))),
            None => Ok(Some(all)),
        }
    }

    /// Reads RoPE by the rules of one version; each number comes from the first of `places` that has it.
    fn by(&self, version: Version, local: bool, places: &[Config<'_>]) -> Result<Rope> {
        let inner = |key: &str| match find(places, key) {
            Some(place) if version == Version::Five => place.positive(key),
            _ => Ok(None),
        };
        let [field, local_field] = self.family.rope_fields;
        let (field, default) = match self.family.local_rope {
            LocalRope::Base(base) if local => (Some(local_field), base),
            // Version 5 takes the top level's base for the blocks without a window alone.
            LocalRope::Unscaled if version == Version::Five => {
                ((!local).then_some(field), OLMO3_BASE)
            }
            _ => {
                let older = self.family.older_rope_base;
                let older = older.filter(|_| version == Version::Four);
                (Some(field), older.unwrap_or(self.family.rope_base))
            }
        };
        let base = match (inner("rope_theta")?, field) {
            (None, Some(field)) => self.config.positive(field)?,
            (base, _) => base,
        };
        let base = base.map_or(default, |base| base as f32);
        let fraction = "partial_rotary_factor";
        // `transformers` takes null for another part of a head than the family's own.
        let name = self.family.name;
        let differs = name.starts_with("glm") || name.starts_with("qwen3");
        if differs && self.family.rotary_fraction.is_some() && self.config.has(fraction) {
            self.config.required(fraction, self.config.raw(fraction))?;
        }
        let fraction = inner(fraction)?
            .map_or_else(|| self.config.positive(fraction), |part| Ok(Some(part)))?;
        let dims = match (self.family.rotary_fraction, fraction) {
            (None, None | Some(1.0)) => self.head_dim,
            (None, Some(fraction)) => {
                let name = self.family.name;
                return Err(unsupported(format!(
                    "config.json: `partial_rotary_factor` is {fraction}, which Triad does not support for {name}"
                )));
            }
            (Some(default), fraction) => {
                (self.head_dim as f64 * fraction.unwrap_or(default)) as usize
            }
        };
        let base = match self.alpha(places)? {
            Some(alpha) => {
                let dims = dims as f64;
                (f64::from(base) * alpha.powf(dims / (dims - 2.0))) as f32
            }
            None => base,
        };
        let scaling = self.scaling(version, places, base, dims)?;
        Ok(Rope {
            dims,
            still: 0,
            base,
            pairing: self.family.pairing,
            scaling,
        })
    }

    /// Reads the factor on queries by position.
    ///
    /// # Errors
    /// If the file does not state it: the default of `transformers` has other numbers of RoPE, too.
    pub fn temperature(&self) -> Result<Temperature> {
        let scaling = self.config.object("rope_scaling", "rope_scaling.")?;
        let place = match scaling.filter(|scaling| !scaling.is_empty()) {
            Some(scaling) => scaling,
            None => {
                let parameters = self.config.object("rope_parameters", "rope_parameters.")?;
                self.config.required("rope_parameters", parameters)?
            }
        };
        let scale = "llama_4_scaling_beta";
        Ok(Temperature {
            scale: place.required(scale, place.positive(scale)?)? as f32,
            context: place.required(ORIGINAL, place.size(ORIGINAL, limits::CONTEXT)?)?,
        })
    }

    /// Returns the number that stretches Hunyuan's base, whose checkpoints call that `dynamic`.
    fn alpha(&self, places: &[Config<'_>]) -> Result<Option<f64>> {
        let kind = ["rope_type", "type"]
            .into_iter()
            .find_map(|key| find(places, key)?.raw(key));
        let is_dynamic = kind.and_then(|kind| kind.as_str()) == Some("dynamic");
        if self.family.name != traits::HUNYUAN.name || !is_dynamic {
            return Ok(None);
        }
        find(places, "alpha").map_or(Ok(None), |place| place.positive("alpha"))
    }

    fn scaling(
        &self,
        version: Version,
        places: &[Config<'_>],
        base: f32,
        dims: usize,
    ) -> Result<RopeScaling> {
        let Some(first) = places.first() else {
            return Ok(RopeScaling::None);
        };
        let place = |key: &str| find(places, key).unwrap_or(first);
        let kind = match (
            place("rope_type").string("rope_type")?,
            place("type").string("type")?,
        ) {
            (Some(kind), Some(other)) if kind != other => {
                return Err(unsupported(format!(
                    "config.json: RoPE's `rope_type` is `{}` and its `type` is `{}`, expected one of them",
                    brief(kind),
                    brief(other)
                )));
            }
            (Some(kind), _) | (None, Some(kind)) => kind,
            (None, None) if version == Version::Five => "default",
            (None, None) => first.required("rope_type", None)?,
        };
        let positive = |key: &str| {
            place(key)
                .positive(key)
                .and_then(|value| place(key).required(key, value))
        };
        match kind {
            "default" => Ok(RopeScaling::None),
            "mrope" if self.family.images => Ok(RopeScaling::None),
            "dynamic" if self.alpha(places)?.is_some() => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: positive("factor")? as f32,
            }),
            "llama3" => {
                let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
                if low >= high {
                    return Err(malformed(format!(
                        "config.json: RoPE's `low_freq_factor` is {low}, expected less than `high_freq_factor`, {high}"
                    )));
                }
                let inner = place(ORIGINAL).size(ORIGINAL, limits::CONTEXT)?;
                let original_context = match self.outer_context(version == Version::Five)? {
                    Some(outer) => outer,
                    None => place(ORIGINAL).required(ORIGINAL, inner)?,
                };
                let scaling = Llama3 {
                    factor: positive("factor")?,
                    low,
                    high,
                    original_context,
                };
                Ok(RopeScaling::Factors {
                    factors: llama3_factors(scaling, base, dims),
                })
            }
            "yarn" if self.family.yarn => self.yarn(version, place, (base, dims)),
            "longrope" | "su" => self.long_rope(version, place, dims),
            other => Err(unsupported(format!(
                "config.json: RoPE type `{}`, which Triad does not run; it runs default, linear, llama3, longrope and, without partial or local RoPE, yarn",
                brief(other)
            ))),
        }
    }

    fn yarn<'b>(
        &self,
        version: Version,
        place: impl Fn(&str) -> &'b Config<'b>,
        (base, dims): (f32, usize),
    ) -> Result<RopeScaling> {
        let positive = |key: &str| place(key).positive(key);
        let inner = place(ORIGINAL).size(ORIGINAL, limits::CONTEXT)?;
        let outer = self.outer_context(version == Version::Five)?;
        let factor = place("factor").required("factor", positive("factor")?)?;
        let attention_factor = match positive("attention_factor")? {
            Some(factor) => factor,
            None => match (positive("mscale")?, positive("mscale_all_dim")?) {
                (Some(scale), Some(all)) => {
                    yarn_attention_factor(factor, scale) / yarn_attention_factor(factor, all)
                }
                _ => yarn_attention_factor(factor, 1.0),
            },
        };
        let scaling = Yarn {
            factor,
            beta_fast: positive("beta_fast")?.unwrap_or(BETA_FAST),
            beta_slow: positive("beta_slow")?.unwrap_or(BETA_SLOW),
            original_context: outer.or(inner).unwrap_or(self.context),
            truncate: place("truncate").bool("truncate")?.unwrap_or(true),
        };
        if base <= 1.0 {
            return Err(malformed(
                "config.json: YaRN expects a base of RoPE above 1",
            ));
        }
        Ok(RopeScaling::Yarn {
            factors: yarn_factors(scaling, base, dims),
            attention_factor: attention_factor as f32,
        })
    }

    fn long_rope<'b>(
        &self,
        version: Version,
        place: impl Fn(&str) -> &'b Config<'b>,
        dims: usize,
    ) -> Result<RopeScaling> {
        let outer = self.outer_context(true)?.or(self.family.original_context);
        let inner = place(ORIGINAL)
            .size(ORIGINAL, limits::CONTEXT)?
            .filter(|_| version == Version::Five);
        let stated = outer.or(inner);
        let original_context = stated.unwrap_or(self.context);
        let factor = place("factor").positive("factor")?;
        let stretch = match (version, stated, factor) {
            (Version::Five, _, Some(factor)) | (Version::Four, None, Some(factor)) => factor,
            (Version::Four, None, None) => place("factor").required("factor", None)?,
            (_, _, None) | (Version::Four, Some(_), _) => {
                self.context as f64 / original_context as f64
            }
        };
        let attention_factor = place("attention_factor").positive("attention_factor")?;
        Ok(RopeScaling::LongRope {
            short: place("short_factor").factors("short_factor", dims / 2)?,
            long: place("long_factor").factors("long_factor", dims / 2)?,
            original_context,
            attention_factor: attention_factor.map_or_else(
                || long_rope_attention_factor(stretch, original_context),
                |factor| factor as f32,
            ),
        })
    }

    /// Returns the context of pre-training at the top level, unless the family has a RoPE for each kind of block.
    fn outer_context(&self, is_read: bool) -> Result<Option<usize>> {
        if !is_read || self.family.has_local_rope() {
            return Ok(None);
        }
        self.config.size(ORIGINAL, limits::CONTEXT)
    }
}

/// Returns the first of `places` that has a value under `key`.
fn find<'a, 'b>(places: &'b [Config<'a>], key: &str) -> Option<&'b Config<'a>> {
    places.iter().find(|place| place.raw(key).is_some())
}

fn brief(text: &str) -> String {
    text.chars().take(40).collect()
}

fn refused_positions(field: &str, value: &str) -> Error {
    unsupported(format!(
        "config.json: `{field}` is `{}`, which versions 4 and 5 of transformers read differently, expected rope",
        brief(value)
    ))
}

/// Returns whether each block has RoPE.
pub(super) fn has_rope(
    family: &Family,
    config: &Config<'_>,
    windows: &[Option<usize>],
) -> Result<Vec<bool>> {
    let blocks = windows.len();
    let default = match family.no_rope {
        NoRope::Never => return Ok(vec![true; blocks]),
        NoRope::NeverByName => {
            let field = "position_embedding_type";
            return match config.string(field)? {
                None if config.has(field) => Err(refused_positions(field, "null")),
                Some(other) if other != "rope" => Err(refused_positions(field, other)),
                _ => Ok(vec![true; blocks]),
            };
        }
        NoRope::Everywhere => return Ok(vec![false; blocks]),
        NoRope::UnlessStated => {
            let field = "position_embedding_type";
            return match config.string(field)? {
                Some("rope") => Ok(vec![true; blocks]),
                None | Some("nope") => Ok(vec![false; blocks]),
                Some(other) => Err(unsupported(format!(
                    "config.json: `{field}` is `{}`, expected rope, nope or none",
                    other.chars().take(40).collect::<String>()
                ))),
            };
        }
        // `transformers` asks whether the field is null, and not whether a block has a window.
        NoRope::Global
            if config.has("sliding_window") && config.raw("sliding_window").is_none() =>
        {
            return Ok(vec![true; blocks]);
        }
        NoRope::Unwindowed if config.has("sliding_window") => {
            // `transformers` needs a width, whatever windows the blocks have.
            config.required("sliding_window", config.raw("sliding_window"))?;
            return Ok(windows.iter().map(Option::is_some).collect());
        }
        NoRope::Global | NoRope::Unwindowed => {
            return Ok(windows.iter().map(Option::is_some).collect());
        }
        NoRope::Every(default) => default,
    };
    if config.bool("use_sliding_window")? == Some(true) {
        config.refuse(&["sliding_window"])?;
    }
    if let Some(flags) = config.flags("no_rope_layers")? {
        return match flags.get(..blocks) {
            Some(flags) => Ok(flags.to_vec()),
            None => Err(malformed(format!(
                "config.json: `no_rope_layers` has {} entries, expected one for each of the {blocks} blocks",
                flags.len()
            ))),
        };
    }
    let interval = config
        .size("no_rope_layer_interval", limits::CONTEXT)?
        .unwrap_or(default);
    Ok((1..=blocks)
        .map(|block| !block.is_multiple_of(interval))
        .collect())
}
