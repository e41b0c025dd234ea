//! Reads a tokenizer from the metadata of a GGUF file.

use std::sync::OnceLock;

use super::byte_level::ByteLevelBpe;
use super::character_level::CharacterBpe;
use super::charsmap::Charsmap;
use super::markers::Markers;
use super::normalizer::{Normalizer, Prefix};
use super::pair::Pair;
use super::pre_tokenizer::PreTokenizer;
use super::sentence_piece::{Algorithm, SentencePiece, Spaces};
use super::vocabulary::{Spelling, TOKEN_TYPE, TokenKind, Vocabulary, check_count};
use super::word_piece;
use super::words::Words;
use super::{Encoder, Tokenizer, TokenizerKind, end_tokens};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
/// The name of Gemma 4's tokenizer, as a model and as a pre-tokenizer.
const GEMMA4: &str = "gemma4";
/// Pre-tokenizers whose `<mask>` drops the white space before it.
const JINA_WITH_MASK: [&str; 3] = ["jina-v2-de", "jina-v2-es", "jina-v2-code"];
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// The default values of absent fields, by kind.
struct Defaults {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

const BYTE_LEVEL: Defaults = Defaults {
    bos: None,
    eos: None,
    unknown: None,
    add_bos: false,
    add_eos: false,
    add_space_prefix: false,
};
const SENTENCE_PIECE: Defaults = Defaults {
    bos: Some(1),
    eos: Some(2),
    unknown: Some(0),
    add_bos: true,
    add_eos: false,
    add_space_prefix: true,
};
const T5: Defaults = Defaults {
    bos: None,
    eos: Some(1),
    unknown: Some(2),
    add_bos: false,
    add_eos: true,
    add_space_prefix: true,
};

pub(super) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer> {
    let model = required(MODEL, metadata.string(MODEL)?)?;
    if model == word_piece::MODEL {
        return word_piece::tokenizer(metadata);
    }
    let merges_characters =
        model == GEMMA4 || model == "gpt2" && metadata.string(PRE)? == Some(GEMMA4);
    let (kind, defaults) = match model {
        _ if merges_characters => (TokenizerKind::SentencePieceBpe, BYTE_LEVEL),
        "gpt2" => (TokenizerKind::ByteLevelBpe, BYTE_LEVEL),
        "llama" => (TokenizerKind::SentencePieceBpe, SENTENCE_PIECE),
        "t5" => (TokenizerKind::Unigram, T5),
        other => {
            let message = format!(
                "metadata field `{MODEL}` is {other:?}; Triad supports gpt2, llama, t5, bert and {GEMMA4}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    };
    let spelling = match kind {
        TokenizerKind::ByteLevelBpe => Spelling::ByteLevel,
        _ => Spelling::SentencePiece,
    };
    let mut vocabulary = vocabulary(metadata, spelling)?;
    let token =
        |name: &str, default: Option<u32>| special_token(metadata, &vocabulary, name, default);
    let bos = token("bos", defaults.bos)?;
    let eos = token("eos", defaults.eos)?;
    let unknown = token("unknown", defaults.unknown)?;
    let stated = [eos, token("eot", None)?, token("eom", None)?];
    let end_tokens = end_tokens(&mut vocabulary, stated.into_iter().flatten());
    if let Some(bos) = bos {
        vocabulary.set_kind(bos, TokenKind::Control);
    }

    // The only properties of tokens for which GGUF has no field.
    let is_phi3 = kind != TokenizerKind::ByteLevelBpe
        && metadata.string("general.architecture")? == Some("phi3");
    let is_jina = metadata
        .string(PRE)?
        .is_some_and(|pre| JINA_WITH_MASK.contains(&pre));
    let field = format!("metadata field `{TOKENS}`");
    let markers = Markers::new(&vocabulary, &field, |piece, kind| {
        (
            is_jina && piece == "<mask>",
            is_phi3 && kind == TokenKind::Control,
        )
    })?;
    let (words, add_bos, separates_pairs, adds_space) = match kind {
        _ if merges_characters => {
            let pre_tokenizer = PreTokenizer::named(GEMMA4, PRE)?;
            let words = merged(metadata, &vocabulary, pre_tokenizer)?;
            (words, true, false, false)
        }
        TokenizerKind::ByteLevelBpe => {
            let pre_tokenizer = pre_tokenizer(metadata)?;
            let (add_bos, separates_pairs) =
                (pre_tokenizer.adds_bos(), pre_tokenizer.separates_pairs());
            let words = merged(metadata, &vocabulary, pre_tokenizer)?;
            (words, add_bos, separates_pairs, false)
        }
        _ => {
            let spaces = spaces(metadata, kind, &defaults)?;
            let encoder = sentence_piece(metadata, &vocabulary, kind, spaces, unknown)?;
            let words = Words::SentencePiece(encoder);
            (words, defaults.add_bos, false, spaces.prefix)
        }
    };
    let encoder = Encoder::Own {
        words: Box::new(words),
        markers,
    };
    let around = |name: &str, default: bool, token: Option<u32>| {
        let key = format!("tokenizer.ggml.add_{name}_token");
        let adds = metadata.bool(&key)?.unwrap_or(default);
        // Some files of Gemma 4 deny the BEGIN token, which the model needs: llama.cpp adds it always.
        match (adds || name == "bos" && merges_characters, token) {
            (false, _) => Ok(Vec::new()),
            (true, Some(token)) => Ok(vec![token]),
            (true, None) => {
                let message = format!(
                    "metadata field `tokenizer.ggml.{name}_token_id` is missing, though prompts need it"
                );
                Err(Error::new(ErrorKind::Missing, message))
            }
        }
    };
    let prefix = around("bos", add_bos, bos)?;
    let suffix = around("eos", defaults.add_eos, eos)?;
    let separator = special_token(metadata, &vocabulary, "seperator", None)?;
    let separates_pairs = metadata
        .bool("tokenizer.ggml.add_sep_token")?
        .unwrap_or(separates_pairs);
    // Files of ModernBERT ask for two separators. The models were trained with one.
    let separates_pairs = separates_pairs && metadata.string(PRE)? != Some("modern-bert");
    Ok(Tokenizer {
        pair: Pair::of_gguf(&prefix, &suffix, separator.filter(|_| separates_pairs)),
        kind,
        vocabulary,
        encoder,
        bos,
        eos,
        prefix,
        suffix,
        end_tokens,
        adds_space,
        longest: OnceLock::new(),
    })
}

fn required<T>(key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::new(
            ErrorKind::Missing,
            format!("metadata field `{key}` is missing"),
        )
    })
}

fn vocabulary(metadata: &Metadata, spelling: Spelling) -> Result<Vocabulary> {
    let tokens = required(TOKENS, metadata.strings(TOKENS)?)?;
    let field = format!("metadata field `{TOKENS}`");
    check_count(tokens.len(), &field)?;
    let kinds = match metadata.integers(TOKEN_TYPE)? {
        Some(types) if types.len() != tokens.len() => {
            let message = format!(
                "metadata field `{TOKEN_TYPE}` has {} values for {} tokens",
                types.len(),
                tokens.len()
            );
            return Err(Error::new(ErrorKind::Malformed, message));
        }
        Some(types) => types
            .iter()
            .enumerate()
            .map(|(id, &number)| TokenKind::of_gguf(id, number))
            .collect::<Result<_>>()?,
        // Only SentencePiece has tokens that cannot be distinguished from text: byte tokens.
        None if spelling == Spelling::SentencePiece => return required(TOKEN_TYPE, None),
        None => vec![TokenKind::Normal; tokens.len()],
    };
    Vocabulary::new(tokens.iter().map(String::as_str), kinds, spelling, &field)
}

/// Returns the id under `tokenizer.ggml.{name}_token_id`; a default only applies if it is a special token.
fn special_token(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    name: &str,
    default: Option<u32>,
) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let Some(id) = metadata.integer(&key)? else {
        let is_special =
            |&id: &u32| matches!(vocabulary.kind(id), TokenKind::Control | TokenKind::Unknown);
        return Ok(default.filter(is_special));
    };
    let exists = |id: &u32| (*id as usize) < vocabulary.len();
    u32::try_from(id)
        .ok()
        .filter(exists)
        .map(Some)
        .ok_or_else(|| {
            let message = format!(
                "metadata field `{key}` is {id}, but there are {} tokens",
                vocabulary.len()
            );
            Error::new(ErrorKind::Malformed, message)
        })
}

/// Returns the pre-tokenizer that the file names. Files from before the field existed belong to families with only one.
fn pre_tokenizer(metadata: &Metadata) -> Result<PreTokenizer> {
    let name = match (
        metadata.string(PRE)?,
        metadata.string("general.architecture")?,
    ) {
        (Some(name), _) => name,
        (None, Some("qwen2")) => "qwen2",
        (None, Some("gpt2" | "phi2")) => "gpt-2",
        (None, _) => return required(PRE, None),
    };
    PreTokenizer::named(name, &format!("metadata field `{PRE}`"))
}

/// Returns the encoder of a vocabulary with a list of merges.
fn merged(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    pre_tokenizer: PreTokenizer,
) -> Result<Words> {
    let merges = required(MERGES, metadata.strings(MERGES)?)?;
    let field = format!("metadata field `{MERGES}`");
    if pre_tokenizer.is_byte_level() {
        ByteLevelBpe::new(vocabulary, merges, pre_tokenizer, &field).map(Words::ByteLevel)
    } else {
        CharacterBpe::new(vocabulary, merges, pre_tokenizer, &field).map(Words::Characters)
    }
}

/// Returns the treatment of spaces by SentencePiece.
fn spaces(metadata: &Metadata, kind: TokenizerKind, defaults: &Defaults) -> Result<Spaces> {
    let flag = |key: &str, default: bool| Ok::<_, Error>(metadata.bool(key)?.unwrap_or(default));
    Ok(Spaces {
        prefix: flag("tokenizer.ggml.add_space_prefix", defaults.add_space_prefix)?,
        remove_extra: kind == TokenizerKind::Unigram
            && flag("tokenizer.ggml.remove_extra_whitespaces", false)?,
    })
}

fn sentence_piece(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    kind: TokenizerKind,
    spaces: Spaces,
    unknown: Option<u32>,
) -> Result<SentencePiece> {
    let charsmap = charsmap(metadata)?;
    let algorithm = if kind == TokenizerKind::Unigram {
        Algorithm::Unigram
    } else {
        Algorithm::Bpe
    };
    let scores = required(SCORES, metadata.floats(SCORES)?)?.to_vec();
    if let Some(charsmap) = charsmap {
        let unknown = required("tokenizer.ggml.unknown_token_id", unknown)?;
        let prefix = match spaces.prefix {
            true => Prefix::Always,
            false => Prefix::Never,
        };
        let normalizer = Normalizer::new(Some(charsmap), &[], prefix, spaces.remove_extra)?;
        return SentencePiece::of_model_file(
            vocabulary,
            algorithm,
            normalizer,
            scores,
            unknown,
            &format!("metadata field `{SCORES}`"),
        );
    }
    SentencePiece::new(
        vocabulary,
        algorithm,
        spaces,
        scores,
        unknown,
        &format!("metadata field `{SCORES}`"),
    )
}

/// Returns SentencePiece's map of characters, if the file has one.
fn charsmap(metadata: &Metadata) -> Result<Option<Charsmap>> {
    let Some(map) = metadata.integers(CHARSMAP)? else {
        return Ok(None);
    };
    // Bytes, which some files have as signed numbers.
    let byte = |number: &i64| match number {
        0..=255 => Some(*number as u8),
        -128..0 => Some(*number as i8 as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = map.iter().map(byte).collect();
    let bytes = bytes.ok_or_else(|| {
        let message = format!("metadata field `{CHARSMAP}` has a number that is no byte");
        Error::new(ErrorKind::Malformed, message)
    })?;
    Charsmap::new(&bytes, CHARSMAP)
}
