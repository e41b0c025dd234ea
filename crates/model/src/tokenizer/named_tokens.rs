//! The special tokens that the files next to a `tokenizer.json` name, as versions 4.57 and 5.24 of `transformers` read
//! them: `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.
//!
//! A reading fails with the reason why `transformers` raises an exception.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::added_tokens::{ADDED, SPECIAL};
use super::classes::{Class, Version};
use super::special_token::{Raised, Stated, Token};

const DECODER: &str = "added_tokens_decoder";
const ADDITIONAL: &str = "additional_special_tokens";
const EXTRA: &str = "extra_special_tokens";
/// Named tokens that version 5 writes by itself.
const SPECIFIC: &str = "model_specific_special_tokens";
/// The fields of special tokens, in the order in which they are added.
const FIELDS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The files.
pub(super) struct Sources<'a> {
    /// `tokenizer_config.json`
    pub(super) config: &'a Value,
    /// `special_tokens_map.json`
    pub(super) special: Map<String, Value>,
    /// `added_tokens.json`, if there is one.
    pub(super) added: Map<String, Value>,
    /// The added tokens of `tokenizer.json`, by their ids.
    pub(super) in_file: BTreeMap<u32, AddedToken>,
    /// The token of `padding` in `tokenizer.json`.
    pub(super) padding: Option<String>,
}

/// The result of one version.
#[derive(Debug)]
pub(super) struct Named {
    /// The tokens to add, first to last.
    pub(super) tokens: Vec<AddedToken>,
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
}

/// Reads the tokens as `version` does, for a tokenizer of `class` if that has own rules. `existing` are the added tokens
/// that the tokenizer has already.
///
/// # Errors
/// If the version raises an exception.
pub(super) fn read(
    version: Version,
    sources: &Sources<'_>,
    class: Option<&Class>,
    existing: &BTreeMap<u32, AddedToken>,
) -> Result<Named, Raised> {
    if version == Version::Four && sources.config["tokenizer_class"] == "TokenizersBackend" {
        return Err("`tokenizer_class` is one of version 5".to_owned());
    }
    let mut fields = Fields::new(version, sources.config);
    let decoder = fields.take_decoder(sources)?;
    let mut texts: HashSet<String> = existing
        .values()
        .map(|token| token.content.clone())
        .collect();
    texts.extend(decoder.values().map(|stated| stated.content.clone()));
    let is_known = |text: &str| texts.contains(text);
    let special = fields.special(&decoder, class, sources.padding.as_deref(), &is_known)?;
    let text = |field: &str| {
        let token = special.names.iter().find(|(name, _)| name == field);
        let text = token.map(|(_, token)| token.text().to_owned());
        text.filter(|text| !text.is_empty())
    };
    let (bos, eos) = (text(FIELDS[0]), text(FIELDS[1]));
    if version == Version::Four
        && let Some(class) = class
    {
        class.check(sources.config, bos.is_some(), eos.is_some())?;
    }
    let stated: Vec<Token> = decoder.into_values().map(Token::Stated).collect();
    let mut tokens = match version {
        Version::Four => special.added_by_four(stated, &texts),
        Version::Five => special.added_by_five(stated, &texts),
    };
    if version == Version::Five && class.is_some_and(|class| class.adds_again) {
        let again = special.names.iter().map(|(_, token)| token);
        let again = again.chain(&special.list);
        tokens.extend(again.map(|token| AddedToken::from(token.text(), true)));
    }
    tokens.retain(|token| !token.content.is_empty());
    Ok(Named { tokens, bos, eos })
}

/// The special tokens of a tokenizer.
struct Special {
    /// Tokens of the seven fields, then others with names.
    names: Vec<(String, Token)>,
    /// Tokens without names.
    list: Vec<Token>,
    /// The place of the list among the names.
    place: usize,
}

impl Special {
    /// Returns the tokens that version 4 adds: `tokens`, those of the decoder, then the special ones. One with rules
    /// replaces those of a token in `texts`.
    fn added_by_four(&self, mut tokens: Vec<Token>, texts: &HashSet<String>) -> Vec<AddedToken> {
        let (first, last) = self.names.split_at(self.place);
        let mut seen: HashSet<&str> = HashSet::new();
        let mut special: Vec<&Token> = Vec::new();
        /// The place of the list among the groups.
        const LIST: usize = 1;
        fn named(names: &[(String, Token)]) -> Vec<&Token> {
            names.iter().map(|(_, token)| token).collect()
        }
        let groups = [named(first), self.list.iter().collect(), named(last)];
        for (group, tokens) in groups.into_iter().enumerate() {
            for token in &tokens {
                let is_empty = matches!(token, Token::Text(text) if text.is_empty());
                // A list is compared with the tokens before it.
                if !is_empty && !seen.contains(token.text()) {
                    special.push(token);
                    if group != LIST {
                        seen.insert(token.text());
                    }
                }
            }
            seen.extend(tokens.iter().map(|token| token.text()));
        }
        let known: HashSet<_> = tokens.iter().map(Token::key).collect();
        let is_new = |token: &&&Token| {
            !matches!(token, Token::Text(text) if texts.contains(text))
                && !known.contains(&token.key())
        };
        let new: Vec<Token> = special.iter().filter(is_new).copied().cloned().collect();
        tokens.extend(new);
        let library = |token: &Token| match token {
            Token::Text(text) => AddedToken::from(text.as_str(), true),
            Token::Stated(stated) => stated.library(seen.contains(stated.content.as_str())),
        };
        tokens.iter().map(library).collect()
    }

    /// Returns the tokens that version 5 adds: `tokens`, those of the decoder, then the special ones that are not in
    /// `texts`.
    fn added_by_five(&self, mut tokens: Vec<Token>, texts: &HashSet<String>) -> Vec<AddedToken> {
        let names = self.names.iter().map(|(_, token)| token);
        let mut known: HashSet<_> = tokens.iter().map(Token::key).collect();
        for token in names.clone().chain(&self.list) {
            if !texts.contains(token.text()) && known.insert(token.key()) {
                tokens.push(token.clone());
            }
        }
        let named: HashSet<&str> = names.map(Token::text).collect();
        let library = |token: &Token| match token {
            Token::Text(text) => AddedToken::from(text.as_str(), true),
            Token::Stated(stated) => stated.library(named.contains(stated.content.as_str())),
        };
        tokens.iter().map(library).collect()
    }
}

/// The fields of `tokenizer_config.json` that name tokens, with those of the other files.
struct Fields {
    version: Version,
    fields: Map<String, Value>,
    /// Tokens with other names: of `extra_special_tokens`, and in version 5 of other fields.
    specific: Map<String, Value>,
    /// The rules that `added_tokens.json` gives in version 4, which does not apply them to fields.
    by_id_only: HashSet<u32>,
}

impl Fields {
    fn new(version: Version, config: &Value) -> Self {
        let names_tokens = |(name, _): &(&String, &Value)| {
            name.ends_with("_token")
                || [DECODER, ADDITIONAL, EXTRA, SPECIFIC].contains(&name.as_str())
        };
        let fields = config.as_object().into_iter().flatten();
        let fields = fields.filter(names_tokens);
        let mut fields: Map<String, Value> = fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let mut specific = Map::new();
        if version == Version::Five {
            if fields.contains_key(ADDITIONAL)
                && !fields.get(EXTRA).is_some_and(is_true)
                && let Some(list) = fields.remove(ADDITIONAL)
            {
                fields.insert(EXTRA.into(), list);
            }
            if let Some(Value::Object(named)) = fields.remove(SPECIFIC) {
                specific = named;
            }
            let own: Map<String, Value> = fields
                .iter()
                .filter(|(name, value)| is_own_name(name) && value.is_string())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            fields.retain(|name, _| !own.contains_key(name));
            let extra = match fields.get(EXTRA) {
                Some(Value::Object(_)) => fields.remove(EXTRA),
                _ => None,
            };
            if !own.is_empty() || extra.as_ref().is_some_and(is_true) {
                specific = own;
                if let Some(Value::Object(extra)) = extra {
                    specific.extend(extra);
                }
            }
        }
        Self {
            version,
            fields,
            specific,
            by_id_only: HashSet::new(),
        }
    }

    /// Returns the tokens of the field `added_tokens_decoder`, or else of the other files, whose special tokens become
    /// fields.
    fn take_decoder(&mut self, sources: &Sources<'_>) -> Result<BTreeMap<u32, Stated>, Raised> {
        let mut decoder = BTreeMap::new();
        if let Some(stated) = self.fields.remove(DECODER).filter(|value| !value.is_null()) {
            let Value::Object(stated) = stated else {
                return Err(format!("`{DECODER}` is not an object"));
            };
            for (id, token) in stated {
                let wrong = |reason: String| format!("`{DECODER}.{id}`: {reason}");
                let number: u32 = id.parse().map_err(|_| {
                    wrong("expected the id of a token as the field's name".to_owned())
                })?;
                let token =
                    Stated::deserialize(&token).map_err(|error| wrong(error.to_string()))?;
                decoder.insert(number, token);
            }
            return Ok(decoder);
        }
        for (name, value) in &sources.special {
            self.read_special(name, value)?;
        }
        if self.version == Version::Five
            && let Some(Value::Object(extra)) = self.fields.get(EXTRA)
        {
            self.specific.extend(extra.clone());
            self.fields.remove(EXTRA);
        }
        let special = self.special_texts();
        for (text, id) in &sources.added {
            let wrong = || format!("{ADDED}: `{text}` is not an id");
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(wrong)?;
            let is_special = special.contains(text);
            let token = AddedToken::from(text.as_str(), is_special);
            decoder.insert(id, Stated::of(&token));
            if self.version == Version::Four {
                self.by_id_only.insert(id);
            }
        }
        for (id, token) in &sources.in_file {
            decoder.insert(*id, Stated::of(token));
            self.by_id_only.remove(id);
        }
        Ok(decoder)
    }

    /// Makes a token, or a list of some, of `special_tokens_map.json` a field.
    fn read_special(&mut self, name: &str, value: &Value) -> Result<(), Raised> {
        let stated = |value: &Value| match value {
            Value::Object(object) => {
                let mut object = object.clone();
                object.insert("__type".into(), "AddedToken".into());
                object.insert("special".into(), true.into());
                Value::Object(object)
            }
            other => other.clone(),
        };
        let list = match self.version {
            Version::Four => ADDITIONAL,
            Version::Five => EXTRA,
        };
        let value = match value {
            Value::Object(_) if self.version == Version::Five && name == EXTRA => value.clone(),
            Value::Object(_) if name == EXTRA => {
                return Err(format!("{SPECIAL}: `{name}` is an object"));
            }
            Value::Object(_) => stated(value),
            Value::Array(tokens) if name == list => {
                let states_special = |token: &Value| token.get("special").is_some();
                if self.version == Version::Five && tokens.iter().any(states_special) {
                    return Err(format!("{SPECIAL}: `{name}` has a token with `special`"));
                }
                let existing = self.fields.get(name).and_then(Value::as_array);
                let mut all = existing.cloned().unwrap_or_default();
                let mut known: HashSet<Value> = all.iter().cloned().collect();
                let new = tokens.iter().map(stated);
                all.extend(new.filter(|token| known.insert(token.clone())));
                Value::Array(all)
            }
            other => other.clone(),
        };
        self.fields.insert(name.to_owned(), value);
        Ok(())
    }

    /// Returns the texts of all special tokens.
    fn special_texts(&self) -> HashSet<String> {
        fn text(value: &Value) -> Option<String> {
            let text = value.as_str().or_else(|| value["content"].as_str());
            text.map(str::to_owned)
        }
        let list = match self.version {
            Version::Four => ADDITIONAL,
            Version::Five => EXTRA,
        };
        let list = self.fields.get(list).and_then(Value::as_array);
        let named = FIELDS.iter().filter_map(|field| self.fields.get(*field));
        named
            .chain(list.into_iter().flatten())
            .filter_map(text)
            .collect()
    }

    /// Returns the special tokens; those of the fields get the rules that `decoder` has for their texts. `is_known`
    /// returns whether the tokenizer has a token.
    fn special(
        &mut self,
        decoder: &BTreeMap<u32, Stated>,
        class: Option<&Class>,
        padding: Option<&str>,
        is_known: &dyn Fn(&str) -> bool,
    ) -> Result<Special, Raised> {
        let given = decoder
            .iter()
            .filter(|(id, _)| !self.by_id_only.contains(id));
        let given: HashMap<&str, &Stated> = given
            .map(|(_, stated)| (stated.content.as_str(), stated))
            .collect();
        let mut names = Vec::new();
        for field in FIELDS {
            let default = class.and_then(|class| class.default(self.version, field, is_known));
            let padding = padding.filter(|_| field == "pad_token");
            let token = match self.fields.get(field) {
                None => default.or(padding).map(|text| Token::Text(text.into())),
                Some(value) => Token::read(value, field)?.map(|token| {
                    let given = given.get(token.text()).copied().cloned();
                    given.map_or(token, Token::Stated)
                }),
            };
            let Some(token) = token else { continue };
            let token = match (class, token) {
                (Some(class), Token::Text(text)) if class.states(self.version, field) => {
                    Token::Stated(Stated::control(&text))
                }
                (_, token) => token,
            };
            names.push((field.to_owned(), token));
        }
        let mut place = names.len();
        let (list, specific) = match self.version {
            Version::Four => {
                let list = match self.fields.get(ADDITIONAL) {
                    None | Some(Value::Null) => Vec::new(),
                    Some(Value::Array(tokens)) => Token::read_all(tokens, ADDITIONAL)?,
                    Some(_) => return Err(format!("`{ADDITIONAL}` is not an array")),
                };
                let specific = match self.fields.get(EXTRA) {
                    None => Map::new(),
                    Some(Value::Object(named)) => named.clone(),
                    Some(_) => return Err(format!("`{EXTRA}` is not an object")),
                };
                (list, specific)
            }
            Version::Five => {
                let list = self.fields.get(EXTRA).or(self.fields.get(ADDITIONAL));
                let list = match list {
                    None | Some(Value::Null) => Vec::new(),
                    Some(Value::Array(tokens)) => Token::read_all(tokens, EXTRA)?,
                    Some(_) => return Err(format!("`{EXTRA}` is neither an array nor an object")),
                };
                let own = self.fields.iter().filter(|(name, _)| is_own_name(name));
                for (name, value) in own {
                    if let Ok(Some(token)) = Token::read(value, name) {
                        names.push((name.clone(), token));
                    }
                }
                (list, self.specific.clone())
            }
        };
        let places = names.iter().enumerate();
        let places: HashMap<String, usize> = places
            .map(|(place, (name, _))| (name.clone(), place))
            .collect();
        for (name, value) in &specific {
            let field = format!("{EXTRA}.{name}");
            let token = Token::read(value, &field)?;
            let token = token.ok_or_else(|| format!("`{field}` is not a token"))?;
            match places.get(name) {
                Some(place) => names[*place].1 = token,
                None => names.push((name.clone(), token)),
            }
        }
        if self.version == Version::Five {
            place = names.len();
        }
        Ok(Special { names, list, place })
    }
}

/// Returns whether a field that names a token is none of the seven.
fn is_own_name(name: &str) -> bool {
    name.ends_with("_token") && !FIELDS.contains(&name)
}

/// Returns whether Python takes a value as true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}
