//! Limits of a `tokenizer.json`, checked before the `tokenizers` library reads it: beyond them, the stack overflows or
//! memory runs out, which ends the process and cannot be caught like a panic.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::config::Config;
use super::guarded::guarded;
use super::pair::Pair;
use crate::error::{Error, ErrorKind, Result};

/// Maximum nesting of arrays and objects: the library recurses on each level. Real tokenizers have up to 8.
const MAX_LEVELS: usize = 32;
/// Maximum bytes of a piece of a unigram vocabulary and of an added token: the library recurses on each byte of a
/// piece. The time of an automaton may grow with the square of a token's length.
pub(super) const LONGEST_PIECE: usize = 512;
/// Maximum bytes of all added tokens: an automaton is built of them.
pub(super) const MAX_ADDED: usize = 4 << 20;
/// Maximum factor by which normalizers and pre-tokenizers may lengthen a text. Those of real tokenizers reach up to
/// 400.
const MAX_GROWTH: usize = 1024;
/// Maximum letters of a word that WordPiece reads: its time grows with the square of a word's length, and more.
const LONGEST_WORD: usize = 1000;
/// Maximum number of pieces and tokens of a template.
const MAX_TEMPLATE: usize = 1024;

/// The parts of a `tokenizer.json` that are checked.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Parts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    added_tokens: Option<Strings>,
    model: Option<ModelParts>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
struct ModelParts {
    vocab: Option<Strings>,
    dropout: Option<f64>,
    max_input_chars_per_word: Option<usize>,
}

/// The strings in a value, without the names of its fields.
#[derive(Debug, Default)]
struct Strings {
    longest: usize,
    bytes: usize,
    /// Whether the value is an array, as a unigram vocabulary is.
    is_array: bool,
}

impl Parts {
    /// Parses and checks a file's content.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let parts: Self = serde_json::from_slice(bytes).map_err(|error| {
            malformed(format!(
                "expected a tokenizer of the `tokenizers` library: {error}"
            ))
        })?;
        if let Some(dropout) = parts
            .model
            .as_ref()
            .and_then(|model| model.dropout)
            .filter(|dropout| *dropout != 0.0)
        {
            let message = format!(
                "field `model.dropout` is {dropout}, which makes tokenization random: expected 0"
            );
            return Err(malformed(message));
        }
        let longest = parts.model.as_ref();
        let longest = longest.and_then(|model| model.max_input_chars_per_word);
        if let Some(longest) = longest.filter(|longest| *longest > LONGEST_WORD) {
            return Err(malformed(format!(
                "field `model.max_input_chars_per_word` is {longest}, expected at most {LONGEST_WORD}"
            )));
        }
        let mut growth = 1;
        for (field, part) in parts.fields() {
            check_levels(part, MAX_LEVELS).ok_or_else(|| {
                malformed(format!(
                    "field `{field}` has more than {MAX_LEVELS} levels of arrays and objects"
                ))
            })?;
            check_objects(part, &mut |object| {
                growth = growth_of(object, growth)?;
                check_template(object)
            })
            .map_err(|error| malformed(format!("field `{field}`: {error}")))?;
        }
        if growth > MAX_GROWTH {
            return Err(malformed(format!(
                "fields `normalizer` and `pre_tokenizer` may make a text more than {MAX_GROWTH} times as long"
            )));
        }
        let check_longest = |field: &str, longest: usize| match longest {
            0..=LONGEST_PIECE => Ok(()),
            _ => Err(malformed(format!(
                "field `{field}` has a text of {longest} bytes, expected at most {LONGEST_PIECE}"
            ))),
        };
        if let Some(Strings { longest, bytes, .. }) = &parts.added_tokens {
            check_longest("added_tokens", *longest)?;
            if *bytes > MAX_ADDED {
                return Err(malformed(format!(
                    "field `added_tokens` has texts of {bytes} bytes, expected at most {MAX_ADDED}"
                )));
            }
        }
        if let Some(ModelParts {
            vocab:
                Some(Strings {
                    longest,
                    is_array: true,
                    ..
                }),
            ..
        }) = &parts.model
        {
            check_longest("model.vocab", *longest)?;
        }
        Ok(parts)
    }

    /// Returns the tokens around two texts.
    pub(super) fn pair(&self, config: &Config<'_>) -> Result<Option<Pair>> {
        let pair = self.post_processor.as_ref();
        let pair = pair.and_then(Pair::of_post_processor);
        pair.map(|pair| pair.with_inputs(config)).transpose()
    }

    fn fields(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        let parts = [
            &self.normalizer,
            &self.pre_tokenizer,
            &self.post_processor,
            &self.decoder,
        ];
        ["normalizer", "pre_tokenizer", "post_processor", "decoder"]
            .into_iter()
            .zip(parts)
            .filter_map(|(field, part)| Some((field, part.as_ref()?)))
    }

    /// Returns the name of the field on which the library panics when it parses that field alone; if there is none, of
    /// the remaining fields.
    pub(super) fn that_panics(&self) -> &'static str {
        let panics = |field: &str, part: &Value| {
            let model = serde_json::json!({"type": "BPE", "vocab": {}, "merges": []});
            let alone = serde_json::json!({"version": "1.0", field: part, "model": model});
            guarded(|| alone.to_string().parse::<tokenizers::Tokenizer>().is_ok()).is_err()
        };
        self.fields()
            .find(|(field, part)| panics(field, part))
            .map_or("model` or `added_tokens", |(field, _)| field)
    }
}

fn malformed(message: String) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

/// Returns `None` if `value` has more than `left` levels.
fn check_levels(value: &Value, left: usize) -> Option<()> {
    let mut inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(values) => Box::new(values.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return Some(()),
    };
    let left = left.checked_sub(1)?;
    inner.try_for_each(|value| check_levels(value, left))
}

/// Calls `check` with each object in `value`.
fn check_objects(
    value: &Value,
    check: &mut dyn FnMut(&Value) -> Result<(), String>,
) -> Result<(), String> {
    match value {
        Value::Array(values) => values
            .iter()
            .try_for_each(|value| check_objects(value, check)),
        Value::Object(fields) => {
            check(value)?;
            fields
                .values()
                .try_for_each(|value| check_objects(value, check))
        }
        _ => Ok(()),
    }
}

/// Returns the `growth` of the previous steps times that of `step`, an object of `normalizer` or `pre_tokenizer`, if
/// repeated application of the step lengthens a text each time. Unicode's normal forms and lower case do not count:
/// applied again, they change nothing.
fn growth_of(step: &Value, growth: usize) -> Result<usize, String> {
    let text = |field: &str| step[field].as_str();
    let of_step = match (
        text("precompiled_charsmap"),
        text("content"),
        text("prepend"),
        text("replacement"),
    ) {
        (Some(map), ..) => longest_replacement(map)?,
        // A pattern may match the empty string, between all characters.
        (_, Some(content), ..) => content.len() + 1,
        (_, _, Some(prepended), _) => prepended.len() + 1,
        (.., Some(replacement)) => 2 * replacement.len(),
        _ if text("type") == Some("ByteLevel") => 2,
        _ => 1,
    };
    Ok(growth.saturating_mul(of_step.max(1)))
}

/// Returns the length of the longest text in a map of SentencePiece: `[bytes of the trie: u32, the trie, texts that end
/// in 0]`.
fn longest_replacement(map: &str) -> Result<usize, String> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(map)
        .map_err(|error| format!("`precompiled_charsmap` is not base64: {error}"))?;
    let texts = bytes
        .split_first_chunk::<4>()
        .and_then(|(trie, rest)| rest.get(u32::from_le_bytes(*trie) as usize..));
    // The library reserves memory for a trie of the stated size.
    let texts = texts.ok_or("`precompiled_charsmap` is shorter than it states")?;
    Ok(texts
        .split(|byte| *byte == 0)
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0))
}

/// Checks the template around a text, if `object` has one.
fn check_template(object: &Value) -> Result<(), String> {
    let Some(pieces) = object["single"].as_array() else {
        return Ok(());
    };
    let texts: Vec<&Value> = pieces
        .iter()
        .map(|piece| &piece["Sequence"]["id"])
        .filter(|id| !id.is_null())
        .collect();
    if texts.len() != 1 || texts[0] != "A" {
        return Err(
            "`single` lacks the text, repeats it, or contains another one: expected `A` exactly once".into(),
        );
    }
    let mut tokens = pieces.len();
    for name in pieces
        .iter()
        .filter_map(|piece| piece["SpecialToken"]["id"].as_str())
    {
        let token = &object["special_tokens"][name];
        match (token["ids"].as_array(), token["tokens"].as_array()) {
            (Some(ids), Some(texts)) if ids.len() == texts.len() => tokens += ids.len(),
            (None, _) => {
                return Err(format!(
                    "`single` names the token {name:?}, which `special_tokens` does not have"
                ));
            }
            _ => {
                return Err(format!(
                    "`special_tokens` has a different number of ids than texts for {name:?}"
                ));
            }
        }
        if tokens > MAX_TEMPLATE {
            return Err(format!(
                "`single` has more than {MAX_TEMPLATE} pieces and tokens"
            ));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Strings;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("any value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Strings, E> {
                Ok(Strings {
                    longest: text.len(),
                    bytes: text.len(),
                    is_array: false,
                })
            }

            fn visit_bool<E>(self, _: bool) -> Result<Strings, E> {
                Ok(Strings::default())
            }

            fn visit_i64<E>(self, _: i64) -> Result<Strings, E> {
                Ok(Strings::default())
            }

            fn visit_u64<E>(self, _: u64) -> Result<Strings, E> {
                Ok(Strings::default())
            }

            fn visit_f64<E>(self, _: f64) -> Result<Strings, E> {
                Ok(Strings::default())
            }

            fn visit_unit<E>(self) -> Result<Strings, E> {
                Ok(Strings::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Strings, A::Error> {
                let mut all = Strings {
                    is_array: true,
                    ..Strings::default()
                };
                while let Some(strings) = values.next_element()? {
                    all.add(&strings);
                }
                Ok(all)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Strings, A::Error> {
                let mut all = Strings::default();
                while let Some((IgnoredAny, strings)) = fields.next_entry()? {
                    all.add(&strings);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl Strings {
    fn add(&mut self, other: &Self) {
        self.longest = self.longest.max(other.longest);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}
