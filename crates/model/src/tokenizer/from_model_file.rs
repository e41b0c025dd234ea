//! Reads a tokenizer from a model folder with `tokenizer.model` and without `tokenizer.json`.
//!
//! The tokens are those of SentencePiece. Control and added tokens are split off the text first, as `transformers` does
//! for LLaMA and Gemma. Other classes of tokenizers change ids or texts, and are refused by name.

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use super::added_tokens::AddedTokens;
use super::config::{CONFIG, Config};
use super::markers::{self, Marker, Markers};
use super::model_file::ModelFile;
use super::normalizer::{Normalizer, Prefix};
use super::sentence_piece::{Algorithm, SentencePiece};
use super::vocabulary::{Spelling, TokenKind, Vocabulary};
use super::words::Words;
use super::{Encoder, Tokenizer, TokenizerKind, end_tokens};
use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// Name of the file.
pub(super) const FILE: &str = "tokenizer.model";
/// Maximum bytes of the file; larger ones are refused unread. The largest in use have 5 MB.
const MAX_FILE: u64 = 1 << 26;

/// The special tokens of a class, where the files state none: their fields and texts.
type Defaults = [(&'static str, &'static str)];
const LLAMA: &Defaults = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
];
const GEMMA: &Defaults = &[
    ("bos_token", "<bos>"),
    ("eos_token", "<eos>"),
    ("unk_token", "<unk>"),
    ("pad_token", "<pad>"),
];

/// Reads the tokenizer. `end_tokens` are those that the folder's other files state.
pub(super) fn tokenizer(
    folder: &Path,
    config: Option<&Value>,
    end_tokens: &[u32],
) -> Result<Tokenizer> {
    let path = folder.join(FILE);
    let bytes = files::read(&path, MAX_FILE).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(&path)
    })?;
    let config = Config {
        value: config.unwrap_or(&Value::Null),
    };
    let added = AddedTokens::read(folder, config.value)?;
    let file = ModelFile::read(&bytes).map_err(|error| error.at(&path))?;
    build(file, &config, &added, end_tokens).map_err(|error| error.at(&path))
}

fn build(
    file: ModelFile,
    config: &Config,
    added: &AddedTokens,
    stated_end_tokens: &[u32],
) -> Result<Tokenizer> {
    let defaults = class(config)?;
    let (adds_bos, adds_eos) = (config.bool("add_bos_token")?, config.bool("add_eos_token")?);
    let prefix = prefix(&file, config)?;
    let mut vocabulary = vocabulary(&file, added)?;
    markers::check(&vocabulary, "field `pieces`")?;
    let scores = file.pieces.iter().map(|piece| piece.score);
    let missing = vocabulary.len() - file.pieces.len();
    let scores = scores.chain(std::iter::repeat_n(0.0, missing)).collect();
    let user_defined: Vec<&str> = file
        .pieces
        .iter()
        .filter(|piece| piece.kind == TokenKind::UserDefined)
        .map(|piece| piece.text)
        .collect();
    let normalizer = Normalizer::new(
        file.charsmap,
        &user_defined,
        prefix,
        file.removes_extra_spaces,
    )?;
    let encoder = SentencePiece::of_model_file(
        &vocabulary,
        file.algorithm,
        normalizer,
        scores,
        file.unknown,
        "field `pieces.score`",
    )?;
    let mut names = Vec::new();
    for token in &added.tokens {
        let Some(id) = token.id.or_else(|| vocabulary.id(&token.text)) else {
            let beginning = token.text.chars().take(60).collect::<String>();
            let message = format!(
                "the special token {beginning:?} is neither a piece nor an added token with an id"
            );
            return Err(Error::new(ErrorKind::Missing, message));
        };
        if token.is_special && vocabulary.kind(id) != TokenKind::Unknown {
            vocabulary.set_kind(id, TokenKind::Control);
        }
        names.push(Marker {
            id,
            text: token.text.clone(),
            is_control: token.is_special,
            strips: token.strips,
        });
    }
    let (mut bos, mut eos) = (None, None);
    for &(field, default) in defaults {
        let text = added.special(field, default)?;
        let Some(id) = text.and_then(|text| vocabulary.id(text)) else {
            continue;
        };
        match field {
            "bos_token" => bos = Some(id),
            "eos_token" => eos = Some(id),
            _ => {}
        }
        if vocabulary.kind(id) != TokenKind::Unknown {
            vocabulary.set_kind(id, TokenKind::Control);
        }
        if !names.iter().any(|marker: &Marker| marker.id == id) {
            names.push(Marker {
                id,
                text: vocabulary.piece(id).to_owned(),
                is_control: true,
                strips: (false, false),
            });
        }
    }
    if let Some(id) = stated_end_tokens
        .iter()
        .find(|&&id| id as usize >= vocabulary.len())
    {
        let message = format!(
            "the end token {id} is stated, but there are {} tokens",
            vocabulary.len()
        );
        return Err(Error::new(ErrorKind::Malformed, message));
    }
    let stated = eos.into_iter().chain(stated_end_tokens.iter().copied());
    let end_tokens = end_tokens(&mut vocabulary, stated);
    let around = |field: &str, adds: Option<bool>, default: bool, token: Option<u32>| match (
        adds.unwrap_or(default),
        token,
    ) {
        (false, _) => Ok(Vec::new()),
        (true, Some(token)) => Ok(vec![token]),
        (true, None) if adds.is_none() => Ok(Vec::new()),
        (true, None) => {
            let message = format!("{CONFIG}: `{field}` is true, but there is no such token");
            Err(Error::new(ErrorKind::Missing, message))
        }
    };
    Ok(Tokenizer {
        kind: match file.algorithm {
            Algorithm::Bpe => TokenizerKind::SentencePieceBpe,
            Algorithm::Unigram => TokenizerKind::Unigram,
        },
        prefix: around("add_bos_token", adds_bos, true, bos)?,
        suffix: around("add_eos_token", adds_eos, false, eos)?,
        encoder: Encoder::Own {
            words: Box::new(Words::SentencePiece(encoder)),
            markers: Markers::from_list(names)?,
        },
        vocabulary,
        bos,
        eos,
        end_tokens,
        pair: None,
        adds_space: prefix != Prefix::Never,
        longest: OnceLock::new(),
    })
}

/// Returns the special tokens of the tokenizer's class.
fn class(config: &Config) -> Result<&'static Defaults> {
    const FIELD: &str = "tokenizer_class";
    match &config.value[FIELD] {
        Value::Null => Ok(LLAMA),
        Value::String(class) => match class.as_str() {
            "LlamaTokenizer" | "LlamaTokenizerFast" => Ok(LLAMA),
            "GemmaTokenizer" | "GemmaTokenizerFast" => Ok(GEMMA),
            other => {
                let message = format!(
                    "{CONFIG}: `{FIELD}` is {other:?}; without a tokenizer.json, Triad supports LlamaTokenizer \
                     and GemmaTokenizer"
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        },
        _ => Err(Config::malformed(FIELD, "a string")),
    }
}

/// Returns the texts that get a space before them. `legacy` is as in `transformers` 4 and in SentencePiece itself: by
/// default, each text between special tokens gets one.
fn prefix(file: &ModelFile, config: &Config) -> Result<Prefix> {
    let unsupported = |message: &str| {
        let message = format!("{CONFIG}: {message}, which Triad does not support");
        Err(Error::new(ErrorKind::Unsupported, message))
    };
    let is_legacy = config.bool("legacy")?.unwrap_or(true);
    let adds_prefix = config.bool("add_prefix_space")?.unwrap_or(true);
    match (is_legacy, adds_prefix) {
        (true, false) if file.adds_prefix => {
            unsupported("`add_prefix_space` is false, but `legacy` is not")
        }
        (true, _) if file.adds_prefix => Ok(Prefix::Always),
        (true, _) => Ok(Prefix::Never),
        (false, _) if file.removes_extra_spaces => {
            unsupported("`legacy` is false, and extra spaces are removed")
        }
        (false, true) => Ok(Prefix::First),
        (false, false) => Ok(Prefix::Never),
    }
}

/// Returns the pieces of the file, followed by added tokens.
fn vocabulary(file: &ModelFile, added: &AddedTokens) -> Result<Vocabulary> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let mut pieces: Vec<&str> = file.pieces.iter().map(|piece| piece.text).collect();
    let mut kinds: Vec<TokenKind> = file.pieces.iter().map(|piece| piece.kind).collect();
    let most = pieces.len() + added.tokens.len() + 65_536;
    for token in &added.tokens {
        let Some(id) = token.id else { continue };
        let place = id as usize;
        if place >= most {
            return Err(malformed(format!(
                "the added token {:?} has the id {id}, but there are {} pieces",
                token.text,
                file.pieces.len()
            )));
        }
        if place >= pieces.len() {
            pieces.resize(place + 1, "");
            kinds.resize(place + 1, TokenKind::Unused);
        }
        if pieces[place].is_empty() {
            pieces[place] = &token.text;
            kinds[place] = TokenKind::UserDefined;
        } else if pieces[place] != token.text {
            return Err(malformed(format!(
                "the added token {:?} has the id {id}, which is {:?}",
                token.text, pieces[place]
            )));
        }
    }
    Vocabulary::new(
        pieces.into_iter(),
        kinds,
        Spelling::SentencePiece,
        "field `pieces`",
    )
}
