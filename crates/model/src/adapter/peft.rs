//! An adapter in a folder as written by [PEFT](https://huggingface.co/docs/peft): `adapter_config.json` and
//! `adapter_model.safetensors`.

use regex::Regex;
use serde_json::{Map, Value};

use super::{Adapter, Content, Factor, malformed, missing, unsupported};
use crate::description::ModelDescription;
use crate::error::Result;
use crate::family::Modules;
use crate::safetensors;

/// Prefix of every tensor's name.
const PREFIX: &str = "base_model.model.";
/// Fields that are read, or that describe the training and do not affect the computation. Any other field must be
/// absent, null, false or empty (`bias` may be `none`), since it changes the computation, or may do so.
const HARMLESS: [&str; 26] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "unsloth_fixed",
    "use_rslora",
];
/// Initializations that leave the model's own weights unchanged; others would require changed weights.
const INITIAL: [&str; 4] = ["gaussian", "orthogonal", "eva", "mica"];

/// The numbers of `adapter_config.json`.
pub(super) struct Config {
    rank: usize,
    alpha: f64,
    /// Whether the scale is alpha divided by the root of the rank.
    rank_stabilized: bool,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    /// Suffixes of the names of modules that must exist.
    targets: Vec<String>,
}

impl Config {
    /// Parses the content of `adapter_config.json`.
    pub(super) fn read(config: &Value) -> Result<Self> {
        let Some(config) = config.as_object() else {
            return Err(malformed("it is no object, expected one"));
        };
        match config.get("peft_type").and_then(Value::as_str) {
            Some("LORA") => {}
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                return Err(unsupported(format!(
                    "field `peft_type` is `{other}`, expected `LORA`"
                )));
            }
            None => return Err(missing("field `peft_type` is missing, expected `LORA`")),
        }
        let is_harmless = |field: &str, value: &Value| {
            HARMLESS.contains(&field)
                || is_off(value)
                || (field == "bias" && value.as_str() == Some("none"))
        };
        if let Some((field, value)) = config
            .iter()
            .find(|(field, value)| !is_harmless(field, value))
        {
            let field: String = field.chars().take(40).collect();
            return Err(unsupported(format!(
                "field `{field}` is {}, which is not supported",
                shown(value)
            )));
        }
        match config.get("init_lora_weights") {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(Value::String(name)) if INITIAL.contains(&name.as_str()) => {}
            Some(other) => {
                return Err(unsupported(format!(
                    "field `init_lora_weights` is {}: such an adapter may be for weights that differ from the model's; \
                     save it with `path_initial_model_for_weight_conversion`",
                    shown(other)
                )));
            }
        }
        let rank = number(config, "r")?;
        if !(rank.fract() == 0.0 && (1.0..=super::MAX_RANK as f64).contains(&rank)) {
            return Err(malformed(format!(
                "field `r` is {rank}, expected an integer from 1 to {}",
                super::MAX_RANK
            )));
        }
        let targets = match config.get("target_modules") {
            // A text is a pattern, or means all layers.
            None | Some(Value::Null | Value::String(_)) => Some(Vec::new()),
            Some(Value::Array(names)) => names
                .iter()
                .map(|name| name.as_str().map(str::to_owned))
                .collect(),
            Some(_) => None,
        };
        let targets = targets.ok_or_else(|| {
            malformed("field `target_modules` is neither a text nor an array of texts")
        })?;
        let rank_stabilized = match config.get("use_rslora") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => {
                return Err(malformed(format!(
                    "field `use_rslora` is {}, expected true or false",
                    shown(other)
                )));
            }
        };
        Ok(Self {
            rank: rank as usize,
            alpha: number(config, "lora_alpha")?,
            rank_stabilized,
            ranks: pattern(config, "rank_pattern")?,
            alphas: pattern(config, "alpha_pattern")?,
            targets,
        })
    }

    /// Returns the factor of a module whose matrices have `rank`.
    fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        let expected = of_module(&self.ranks, module).unwrap_or(self.rank as f64);
        if rank as f64 != expected {
            let message = format!(
                "`{module}` has rank {rank}, but `r` or `rank_pattern` in adapter_config.json gives it {expected}"
            );
            return Err(malformed(message));
        }
        let alpha = of_module(&self.alphas, module).unwrap_or(self.alpha);
        let divisor = if self.rank_stabilized {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        let scale = (alpha / divisor) as f32;
        if !scale.is_finite() {
            return Err(malformed(format!(
                "`lora_alpha` gives `{module}` a scale of {scale}, expected a number"
            )));
        }
        Ok(scale)
    }
}

/// Reads the adapter from the content `bytes` of a safetensors file.
pub(super) fn read(
    config: &Config,
    bytes: &[u8],
    description: &ModelDescription,
) -> Result<Adapter> {
    let tensors = safetensors::read_header(bytes, 0)?;
    for target in &config.targets {
        let is_target = |name: &String| {
            let module = split(name).map_or("", |(module, _)| module);
            module
                .strip_suffix(target.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if !tensors.keys().any(is_target) {
            return Err(missing(format!(
                "field `target_modules` of adapter_config.json names `{}`, but no tensor has that name",
                target.chars().take(80).collect::<String>()
            )));
        }
    }
    let content = Content {
        bytes,
        tensors: &tensors,
        modules: Modules::hugging_face(description)?,
        split: &|name| split(name),
        scale: &|module, rank| config.scale(module, rank),
    };
    content.adapter(description)
}

/// Splits a tensor's name into its module and matrix.
fn split(name: &str) -> Option<(&str, Factor)> {
    let name = name.strip_prefix(PREFIX)?;
    let factor = |end, factor| Some((name.strip_suffix(end)?, factor));
    factor(".lora_A.weight", Factor::A).or_else(|| factor(".lora_B.weight", Factor::B))
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        _ => false,
    }
}

fn number(config: &Map<String, Value>, field: &str) -> Result<f64> {
    let Some(value) = config.get(field) else {
        return Err(missing(format!(
            "field `{field}` is missing, expected a number"
        )));
    };
    let number = value.as_f64().filter(|number| number.is_finite());
    number.ok_or_else(|| {
        malformed(format!(
            "field `{field}` is {}, expected a number",
            shown(value)
        ))
    })
}

/// Returns numbers by module. PEFT interprets the names as regular expressions for the end of a module's name and uses
/// the first match.
fn pattern(config: &Map<String, Value>, field: &str) -> Result<Vec<(Regex, f64)>> {
    let patterns = match config.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(patterns)) => patterns,
        Some(other) => {
            return Err(malformed(format!(
                "field `{field}` is {}, expected an object",
                shown(other)
            )));
        }
    };
    let read = |(key, value): (&String, &Value)| {
        let number = value.as_f64().filter(|number| number.is_finite());
        let number = number.ok_or_else(|| {
            malformed(format!(
                "field `{field}` holds {}, expected numbers",
                shown(value)
            ))
        })?;
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(|error| {
            unsupported(format!(
                "field `{field}` has a name that is not a regular expression"
            ))
            .caused_by(error)
        })?;
        Ok((regex, number))
    };
    patterns.iter().map(read).collect()
}

fn of_module(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    patterns
        .iter()
        .find(|(regex, _)| regex.is_match(module))
        .map(|(_, number)| *number)
}

/// Returns a value for an error message, truncated if it is long.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
