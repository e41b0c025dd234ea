//! Reads a tokenizer from the files of a model folder: `tokenizer.json` by the `tokenizers` crate.

use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, Encoding, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper,
    PostProcessor, PreTokenizedString, PreTokenizer,
};

use super::around::{self, Around};
use super::bounds::Parts;
use super::config::{CONFIG, Config};
use super::from_model_file;
use super::guarded::guarded;
use super::limit::Limit;
use super::stated_tokens::{self, Ends, OtherFiles};
use super::vocabulary::{CONTINUES_WORD, Spelling, TokenKind, Vocabulary, byte_of_piece};
use super::{Encoder, Tokenizer, TokenizerKind, end_tokens};
use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// Maximum bytes of a file; larger ones are refused unread.
const MAX_FILE: u64 = 1 << 28;

/// Name of the file, also in errors of encoding: its folder is of no use to a client that sent a text.
const FILE: &str = "tokenizer.json";

/// An encoder based on the `tokenizers` crate.
pub(super) struct HuggingFace {
    tokenizer: tokenizers::Tokenizer,
    /// Texts of control tokens, to detect them in a raw prompt.
    controls: Vec<String>,
    /// The same tokenizer that treats them as text: created for the first such prompt.
    controls_as_text: OnceLock<Box<tokenizers::Tokenizer>>,
}

/// Number of tokens that may differ where a text was cut.
const AT_CUT: usize = 8;

impl HuggingFace {
    /// Returns the maximum factor by which a text may shrink before it is split into tokens; `None` if it is unknown.
    pub(super) fn most_shortened(&self) -> Option<usize> {
        let strips = self
            .tokenizer
            .get_added_tokens_decoder()
            .values()
            .any(|token| token.lstrip || token.rstrip);
        match self.tokenizer.get_normalizer() {
            _ if strips => None,
            None => Some(1),
            // A character of three bytes may be composed of two characters of up to four bytes.
            Some(NormalizerWrapper::NFC(_)) => Some(3),
            Some(_) => None,
        }
    }

    /// Appends the tokens of `text`, or only of its start if that already has more than `limit`.
    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        limit: &Limit,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        if limit.ends(tokens.len()) {
            return Ok(());
        }
        let is_of_words = matches!(self.tokenizer.get_model(), ModelWrapper::WordPiece(_));
        if let Some(start) = limit.start_of(text, is_of_words) {
            let mut first = Vec::new();
            self.encode_whole(start, parse_special, &mut first)?;
            let least = first.len().saturating_sub(AT_CUT);
            if limit.ends(tokens.len() + least) {
                tokens.extend_from_slice(&first[..least]);
                return Ok(());
            }
        }
        self.encode_whole(text, parse_special, tokens)
    }

    fn encode_whole(&self, text: &str, parse_special: bool, tokens: &mut Vec<u32>) -> Result<()> {
        let names_control = || self.controls.iter().any(|control| text.contains(control));
        let as_text = !parse_special && names_control();
        let failed = |reason: String| {
            Error::new(
                ErrorKind::Tokenizer,
                format!("the text can't be encoded: {reason}"),
            )
            .at(FILE)
        };
        let encoding = guarded(|| {
            let tokenizer = if as_text {
                self.controls_as_text.get_or_init(|| {
                    let mut tokenizer = Box::new(self.tokenizer.clone());
                    tokenizer.set_encode_special_tokens(true);
                    tokenizer
                })
            } else {
                &self.tokenizer
            };
            tokenizer.encode_fast(text, false)
        });
        let encoding = encoding.map_err(|panic| {
            failed(library_fails(
                part_that_panics(&self.tokenizer, text),
                &panic,
            ))
        })?;
        let encoding = encoding.map_err(|error| failed(error.to_string()))?;
        tokens.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Returns the place of the first control token in `text`, the longest one that starts there.
    pub(super) fn next_control(&self, text: &str) -> Option<(usize, usize)> {
        let places = self.controls.iter().filter(|control| !control.is_empty());
        let places =
            places.filter_map(|control| Some((text.find(control.as_str())?, control.len())));
        places
            .min_by_key(|(start, length)| (*start, usize::MAX - length))
            .map(|(start, length)| (start, start + length))
    }
}

/// Returns an error message for a panic of the library.
fn library_fails(part: &str, panic: &str) -> String {
    format!("the `tokenizers` library fails on field `{part}`: {panic}")
}

/// Returns the name of the field whose step panics on `text`, among those that can run separately.
fn part_that_panics(tokenizer: &tokenizers::Tokenizer, text: &str) -> &'static str {
    let mut normalized = NormalizedString::from(text);
    let normalize = || {
        tokenizer
            .get_normalizer()
            .map(|step| step.normalize(&mut normalized).is_ok())
    };
    if guarded(normalize).is_err() {
        return "normalizer";
    }
    let mut cut = PreTokenizedString::from(normalized);
    if guarded(|| {
        tokenizer
            .get_pre_tokenizer()
            .map(|step| step.pre_tokenize(&mut cut).is_ok())
    })
    .is_err()
    {
        return "pre_tokenizer";
    }
    let process = || {
        tokenizer
            .get_post_processor()
            .map(|step| step.process(Encoding::default(), None, true).is_ok())
    };
    if guarded(process).is_err() {
        "post_processor"
    } else {
        "model` or `added_tokens"
    }
}

/// Reads the tokenizer. `end_tokens` are those that the folder's other files state.
pub(super) fn tokenizer(
    folder: &Path,
    config: Option<&Value>,
    end_tokens: &[u32],
) -> Result<Tokenizer> {
    let path = folder.join(FILE);
    let io = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(&path)
    };
    if !files::is_there(&path).map_err(io)? {
        if files::is_there(&folder.join(from_model_file::FILE)).map_err(io)? {
            return from_model_file::tokenizer(folder, config, end_tokens);
        }
        let message = "there is neither a tokenizer.json nor a tokenizer.model; a vocab.txt or vocab.json is not supported";
        return Err(Error::new(ErrorKind::Missing, message).at(folder));
    }
    let config = Config {
        value: config.unwrap_or(&Value::Null),
    };
    let others = OtherFiles::read(folder, &config)?;
    build(
        &files::read(&path, MAX_FILE).map_err(io)?,
        &config,
        others,
        end_tokens,
    )
    .map_err(|error| error.at(&path))
}

/// Returns the tokenizer in `bytes`, the content of a `tokenizer.json`, with the rules of the files next to it.
pub(super) fn build(
    bytes: &[u8],
    config: &Config<'_>,
    others: OtherFiles,
    stated_end_tokens: &[u32],
) -> Result<Tokenizer> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let bytes = files::without_mark(bytes);
    let parts = Parts::read(bytes)?;
    let text = std::str::from_utf8(bytes)
        .map_err(|_| malformed("expected a JSON file in UTF-8".into()))?;
    // By `FromStr`, whose code is compiled in the library: `from_bytes` would be compiled here again.
    let mut inner = guarded(|| text.parse::<tokenizers::Tokenizer>())
        .map_err(|panic| malformed(library_fails(parts.that_panics(), &panic)))?
        .map_err(|error| {
            malformed(format!(
                "expected a tokenizer of the `tokenizers` library: {error}"
            ))
        })?;
    let padding = inner.get_padding().map(|padding| padding.pad_token.clone());
    // Both would silently change a prompt.
    inner
        .with_truncation(None)
        .map_err(|error| malformed(error.to_string()))?;
    inner.with_padding(None);

    check_bert_rules(&inner, config)?;
    let decoder = match inner.get_model() {
        ModelWrapper::WordPiece(_) => Decoder::of_word_piece(&inner)?,
        ModelWrapper::BPE(_) | ModelWrapper::Unigram(_) => Decoder::read(&inner)?,
        ModelWrapper::WordLevel(_) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "field `model.type` is WordLevel, expected BPE, Unigram or WordPiece",
            ));
        }
    };
    let kind = match (inner.get_model(), decoder.spelling) {
        (ModelWrapper::Unigram(_), _) => TokenizerKind::Unigram,
        (_, Spelling::ByteLevel) => TokenizerKind::ByteLevelBpe,
        (_, Spelling::SentencePiece) => TokenizerKind::SentencePieceBpe,
        (_, Spelling::WordPiece) => TokenizerKind::WordPiece,
    };
    check_added(bytes, &inner)?;
    stated_tokens::set_prefix_space(&mut inner, config)?;
    let is_byte_level = kind == TokenizerKind::ByteLevelBpe;
    let Ends {
        bos,
        eos,
        four_raises,
    } = guarded(|| stated_tokens::add(&mut inner, config, others, padding, is_byte_level))
        .map_err(|panic| malformed(library_fails("added_tokens", &panic)))??;
    let mut vocabulary = vocabulary(&inner, decoder.spelling)?;
    if let Some(id) = stated_end_tokens
        .iter()
        .find(|&&id| id as usize >= vocabulary.len())
    {
        return Err(malformed(format!(
            "the end token {id} is stated, but there are {} tokens",
            vocabulary.len()
        )));
    }
    let end_tokens = end_tokens(
        &mut vocabulary,
        eos.into_iter().chain(stated_end_tokens.iter().copied()),
    );
    let around = around::read(config, around_text(&inner)?, (bos, eos), four_raises)?;

    let controls = vocabulary
        .of_kind(TokenKind::Control)
        .map(|id| vocabulary.marker(id))
        .collect();
    let encoder = HuggingFace {
        tokenizer: inner,
        controls,
        controls_as_text: OnceLock::new(),
    };
    let adds_space = decoder.strips_space;
    let encoder = Encoder::HuggingFace(Box::new(encoder));
    Ok(Tokenizer {
        kind,
        vocabulary,
        encoder,
        bos,
        eos,
        prefix: around.prefix,
        suffix: around.suffix,
        end_tokens,
        pair: parts.pair(config)?,
        adds_space,
        longest: OnceLock::new(),
    })
}

/// The added tokens of a `tokenizer.json`.
#[derive(Deserialize)]
struct AddedTokens {
    added_tokens: Option<Vec<AddedToken>>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// Checks that each added token has the id that the file states: the library itself numbers those that are not in the
/// model's vocabulary, in the order of the file.
fn check_added(bytes: &[u8], tokenizer: &tokenizers::Tokenizer) -> Result<()> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let AddedTokens { added_tokens } = serde_json::from_slice(bytes)
        .map_err(|error| malformed(format!("field `added_tokens`: {error}")))?;
    for (index, AddedToken { id, content }) in added_tokens.iter().flatten().enumerate() {
        if let Some(given) = tokenizer.token_to_id(content).filter(|given| given != id) {
            return Err(malformed(format!(
                "field `added_tokens[{index}].id` is {id}, but the `tokenizers` library gives {content:?} the id {given}: \
                 expected the ids after those of `model.vocab`, in their order"
            )));
        }
    }
    Ok(())
}

/// Checks that the rules of BERT in `tokenizer_config.json`, which `transformers` prefers, are those of the tokenizer.
fn check_bert_rules(tokenizer: &tokenizers::Tokenizer, config: &Config<'_>) -> Result<()> {
    let class = config.value["tokenizer_class"].as_str();
    let Some(NormalizerWrapper::BertNormalizer(rules)) = tokenizer.get_normalizer() else {
        return Ok(());
    };
    if !class.is_some_and(|class| class.contains("Bert")) {
        return Ok(());
    }
    for (field, rule, default) in [
        ("do_lower_case", Some(rules.lowercase), Some(true)),
        ("strip_accents", rules.strip_accents, None),
        (
            "tokenize_chinese_chars",
            Some(rules.handle_chinese_chars),
            Some(true),
        ),
    ] {
        let stated = config.bool(field)?.or(default);
        if stated != rule {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{CONFIG}: `{field}` is {stated:?}, but field `normalizer` of {FILE} has {rule:?}: versions of \
                     transformers take the one or the other"
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the tokens that the post-processor puts before and after a text.
fn around_text(tokenizer: &tokenizers::Tokenizer) -> Result<Around> {
    const TEXT: &str = "a";
    let encode = |add_special_tokens| {
        let failed = |reason| {
            Error::new(
                ErrorKind::Malformed,
                format!("not even {TEXT:?} can be encoded: {reason}"),
            )
        };
        guarded(|| tokenizer.encode_fast(TEXT, add_special_tokens))
            .map_err(|panic| failed(library_fails(part_that_panics(tokenizer, TEXT), &panic)))?
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| failed(error.to_string()))
    };
    let (plain, whole) = (encode(false)?, encode(true)?);
    let start = whole
        .windows(plain.len().max(1))
        .position(|window| window == plain)
        .unwrap_or(0);
    let end = (start + plain.len()).min(whole.len());
    Ok(Around {
        prefix: whole[..start].to_vec(),
        suffix: whole[end..].to_vec(),
    })
}

fn vocabulary(tokenizer: &tokenizers::Tokenizer, spelling: Spelling) -> Result<Vocabulary> {
    const FIELD: &str = "field `model.vocab`";
    let by_piece = tokenizer.get_vocab(true);
    let size = by_piece.values().max().map_or(0, |&last| last as usize + 1);
    // An id far above the number of tokens is an error in the file, not a reason to allocate gigabytes.
    if size > 2 * by_piece.len() + 65_536 {
        let message = format!(
            "{FIELD} has the id {} with only {} tokens",
            size - 1,
            by_piece.len()
        );
        return Err(Error::new(ErrorKind::Malformed, message));
    }
    let mut pieces = vec![""; size];
    let mut kinds = vec![TokenKind::Unused; size];
    for (piece, &id) in &by_piece {
        if kinds[id as usize] != TokenKind::Unused {
            // The map has no order, the message has one.
            let (one, other) = (
                pieces[id as usize].min(piece),
                pieces[id as usize].max(piece),
            );
            let message = format!("{FIELD} gives the id {id} to two tokens, {one:?} and {other:?}");
            return Err(Error::new(ErrorKind::Malformed, message));
        }
        pieces[id as usize] = piece;
        let is_byte = spelling == Spelling::SentencePiece && byte_of_piece(piece).is_some();
        kinds[id as usize] = if is_byte {
            TokenKind::Byte
        } else {
            TokenKind::Normal
        };
    }
    let added = tokenizer.get_added_vocabulary();
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        if let Some(kind) = kinds.get_mut(id as usize) {
            // A control token stays one, also if its last rules state otherwise.
            *kind = if added.is_special_token(&token.content) {
                TokenKind::Control
            } else {
                TokenKind::UserDefined
            };
        }
    }
    Vocabulary::new(pieces.into_iter(), kinds, spelling, FIELD)
}

/// The fields of `decoder` that Triad uses.
struct Decoder {
    spelling: Spelling,
    strips_space: bool,
}

impl Decoder {
    /// Reads the decoder of a vocabulary of WordPiece.
    fn of_word_piece(tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        match tokenizer.get_decoder() {
            Some(DecoderWrapper::WordPiece(decoder)) if decoder.prefix == CONTINUES_WORD => {
                Ok(Self {
                    spelling: Spelling::WordPiece,
                    strips_space: true,
                })
            }
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "field `model.type` is WordPiece, and field `decoder` is not, expected WordPiece with the prefix \
                     {CONTINUES_WORD} in both"
                ),
            )),
        }
    }

    fn read(tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        let decoder = tokenizer.get_decoder();
        if matches!(decoder, Some(DecoderWrapper::ByteLevel(_))) {
            return Ok(Self {
                spelling: Spelling::ByteLevel,
                strips_space: false,
            });
        }
        let json = serde_json::to_value(decoder).map_err(|error| {
            Error::new(ErrorKind::Malformed, format!("field `decoder`: {error}"))
        })?;
        let steps = json["decoders"]
            .as_array()
            .map_or(std::slice::from_ref(&json), Vec::as_slice);
        let mut strips_space = false;
        for step in steps {
            match step["type"].as_str().unwrap_or("null") {
                "Replace" if step["pattern"]["String"] == "▁" && step["content"] == " " => {}
                "ByteFallback" | "Fuse" => {}
                "Strip" if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                    strips_space = true;
                }
                "Metaspace" if step["replacement"] == "▁" => {
                    strips_space = step["prepend_scheme"] != "never";
                }
                "ByteLevel" if steps.len() == 1 => {
                    return Ok(Self {
                        spelling: Spelling::ByteLevel,
                        strips_space,
                    });
                }
                other => {
                    let message = format!(
                        "field `decoder` has the step {other}, which Triad does not support: {step}"
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
            }
        }
        Ok(Self {
            spelling: Spelling::SentencePiece,
            strips_space,
        })
    }
}
