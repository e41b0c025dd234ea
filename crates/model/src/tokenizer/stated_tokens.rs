//! Rules of the files next to `tokenizer.json` that `transformers` prefers to those of `tokenizer.json`: tokens that it
//! adds or that have other rules, and the space before a text.
//!
//! Files that versions 4.57 and 5.24 read as other tokens are refused. Where one of them raises an exception, or version 5
//! gives tokens of the file other ids, the other is followed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Model, ModelWrapper, PreTokenizerWrapper};

use super::added_tokens::{ADDED, SPECIAL, object};
use super::bounds::{LONGEST_PIECE, MAX_ADDED};
use super::classes::{Class, Version};
use super::config::{CONFIG, Config};
use super::named_tokens::{Named, Sources, read};
use crate::error::{Error, ErrorKind, Result};

/// The beginnings of the names of tokenizers whose space before a text every version of `transformers` takes from
/// `tokenizer_config.json`.
const WITH_PREFIX_SPACE: [&str; 2] = ["GPT2Tokenizer", "GPTNeoXTokenizer"];

/// The files that name tokens if `tokenizer_config.json` does not have `added_tokens_decoder`.
#[derive(Default)]
pub(super) struct OtherFiles {
    special: Map<String, Value>,
    added: Map<String, Value>,
}

impl OtherFiles {
    /// Reads the files of `folder`, as far as `config` lets `transformers` read them.
    ///
    /// # Errors
    /// If a file is not JSON, or not an object.
    pub(super) fn read(folder: &Path, config: &Config<'_>) -> Result<Self> {
        if !config.value["added_tokens_decoder"].is_null() {
            return Ok(Self::default());
        }
        Ok(Self {
            special: object(folder, SPECIAL)?,
            added: object(folder, ADDED)?,
        })
    }
}

/// The tokens at the start and the end of a text.
pub(super) struct Ends {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    /// Whether version 4 of `transformers` does not read the files.
    pub(super) four_raises: bool,
}

/// Adds the tokens that the files name to `tokenizer`, as `transformers` does. `padding` is the token of its padding.
///
/// # Errors
/// If the files are malformed, or have longer tokens than any in use; if versions of `transformers` read other tokens.
pub(super) fn add(
    tokenizer: &mut tokenizers::Tokenizer,
    config: &Config<'_>,
    files: OtherFiles,
    padding: Option<String>,
    is_byte_level: bool,
) -> Result<Ends> {
    // Version 5 takes a text in a field with such a name as a token.
    config.bool("add_bos_token")?;
    config.bool("add_eos_token")?;
    let in_file: BTreeMap<u32, AddedToken> =
        tokenizer.get_added_tokens_decoder().into_iter().collect();
    let sources = Sources {
        config: config.value,
        special: files.special,
        added: files.added,
        in_file,
        padding,
    };
    let class = Class::of(config);
    let of_five = class.filter(|class| class.is_made_of_vocabulary(is_byte_level));
    let nothing = BTreeMap::new();
    let existing = [
        &sources.in_file,
        if of_five.is_some() {
            &nothing
        } else {
            &sources.in_file
        },
    ];
    let four = read(Version::Four, &sources, class, existing[0]);
    let five = read(Version::Five, &sources, of_five, existing[1]);
    let four_raises = four.is_err();
    let model = tokenizer.get_model();
    // A version that gives tokens of the file other ids would read other rows of the embedding: none can be meant.
    let five = five.and_then(|named| {
        let table = Table::new(model, existing[1]).with(&named.tokens);
        let moved = sources
            .in_file
            .iter()
            .find(|(id, token)| table.id(&token.content) != Some(**id));
        match moved {
            Some((_, token)) => Err(format!(
                "version 5 of transformers gives {:?} another id",
                token.content
            )),
            None => Ok(named),
        }
    });
    let read: Vec<(Named, &BTreeMap<u32, AddedToken>)> = match (four, five) {
        (Err(_), Err(reason)) => {
            let message = format!("{CONFIG}: {reason}");
            return Err(Error::new(ErrorKind::Malformed, message));
        }
        (four, five) => [four, five]
            .into_iter()
            .zip(existing)
            .filter_map(|(named, existing)| Some((named.ok()?, existing)))
            .collect(),
    };
    for (named, _) in &read {
        check_lengths(&named.tokens)?;
    }
    let (first, _) = &read[0];
    let whole = Table::new(model, &sources.in_file).with(&first.tokens);
    for (named, existing) in &read {
        let table = Table::new(model, existing).with(&named.tokens);
        if let Some(text) = whole.difference(&table) {
            return Err(differs(&format!("the token {text:?}")));
        }
        if (&named.bos, &named.eos) != (&first.bos, &first.eos) {
            return Err(differs("`bos_token` or `eos_token`"));
        }
    }
    let known: HashSet<&AddedToken> = sources.in_file.values().collect();
    let new = first.tokens.iter().filter(|token| !known.contains(token));
    let new: Vec<_> = new.cloned().collect();
    let id = |text: &Option<String>| text.as_deref().and_then(|text| whole.id(text));
    let ends = Ends {
        bos: id(&first.bos),
        eos: id(&first.eos),
        four_raises,
    };
    // The library builds its automata at each call, as it does without a token.
    if !new.is_empty() {
        tokenizer.add_tokens(&new);
    }
    Ok(ends)
}

fn differs(what: &str) -> Error {
    let message = format!(
        "{CONFIG}: versions of transformers read {what} with another id or other rules: expected the tokens that it, \
         {SPECIAL} and {ADDED} name in field `added_tokens` of tokenizer.json"
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn check_lengths(tokens: &[AddedToken]) -> Result<()> {
    let mut bytes = 0;
    for token in tokens {
        bytes += token.content.len();
        if token.content.len() > LONGEST_PIECE || bytes > MAX_ADDED {
            let beginning: String = token.content.chars().take(40).collect();
            let message = format!(
                "{CONFIG}: the token {beginning:?}…: expected a text of at most {LONGEST_PIECE} bytes, and all of them \
                 {MAX_ADDED}"
            );
            return Err(Error::new(ErrorKind::Malformed, message));
        }
    }
    Ok(())
}

/// The added tokens of a tokenizer, numbered as the library does.
struct Table<'a> {
    model: &'a ModelWrapper,
    tokens: BTreeMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    /// Whether texts are normalized before they are searched for a token, as its first rules state: of control tokens,
    /// and of others.
    controls: HashMap<String, bool>,
    others: HashMap<String, bool>,
}

impl<'a> Table<'a> {
    fn new(model: &'a ModelWrapper, tokens: &BTreeMap<u32, AddedToken>) -> Self {
        let ids = tokens
            .iter()
            .map(|(id, token)| (token.content.clone(), *id));
        let rules = |special: bool| {
            let tokens = tokens
                .values()
                .filter(move |token| token.special == special);
            tokens
                .map(|token| (token.content.clone(), token.normalized))
                .collect()
        };
        Self {
            model,
            ids: ids.collect(),
            controls: rules(true),
            others: rules(false),
            tokens: tokens.clone(),
        }
    }

    /// Returns the id of a text, an added token or one of the vocabulary.
    fn id(&self, text: &str) -> Option<u32> {
        let added = self.ids.get(text).copied();
        added.or_else(|| self.model.token_to_id(text))
    }

    /// Adds tokens.
    fn with(mut self, tokens: &[AddedToken]) -> Self {
        for token in tokens.iter().filter(|token| token.special) {
            let first = self.controls.entry(token.content.clone());
            first.or_insert(token.normalized);
        }
        let mut existing: HashSet<AddedToken> = self.tokens.values().cloned().collect();
        let size = self.model.get_vocab_size() as u32;
        let last = self.tokens.keys().next_back();
        let mut next = last.map_or(size, |last| size.max(last.saturating_add(1)));
        for token in tokens {
            if !existing.insert(token.clone()) {
                continue;
            }
            let id = self.id(&token.content).unwrap_or_else(|| {
                next = next.saturating_add(1);
                next - 1
            });
            self.ids.insert(token.content.clone(), id);
            self.tokens.insert(id, token.clone());
            if !self.controls.contains_key(&token.content) {
                let first = self.others.entry(token.content.clone());
                first.or_insert(token.normalized);
            }
        }
        self
    }

    /// Returns the id of an added token, the rules that were given last, and whether it is a control token.
    fn rules(&self, text: &str) -> Option<(u32, [bool; 4], bool)> {
        let id = *self.ids.get(text)?;
        let token = self.tokens.get(&id)?;
        let control = self.controls.get(text);
        let normalized = *control.or(self.others.get(text))?;
        let rules = [token.single_word, token.lstrip, token.rstrip, normalized];
        Some((id, rules, control.is_some()))
    }

    /// Returns the first token that is not the same in both.
    fn difference<'b>(&'b self, other: &'b Self) -> Option<&'b str> {
        let texts = self.ids.keys().chain(other.ids.keys());
        let differing = texts.filter(|text| self.rules(text) != other.rules(text));
        differing.min().map(String::as_str)
    }
}

/// Gives the pre-tokenizer of a byte-level tokenizer the rule of `config` for a space before a text.
///
/// # Errors
/// If the field is not a boolean.
pub(super) fn set_prefix_space(
    tokenizer: &mut tokenizers::Tokenizer,
    config: &Config<'_>,
) -> Result<()> {
    let class = config.value["tokenizer_class"].as_str().unwrap_or_default();
    if !WITH_PREFIX_SPACE.iter().any(|name| class.starts_with(name)) {
        return Ok(());
    }
    let stated = config.bool("add_prefix_space")?;
    let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer() else {
        return Ok(());
    };
    if let Some(adds) = stated.filter(|adds| *adds != bytes.add_prefix_space) {
        let bytes = bytes.add_prefix_space(adds);
        tokenizer.with_pre_tokenizer(Some(bytes));
    }
    Ok(())
}
