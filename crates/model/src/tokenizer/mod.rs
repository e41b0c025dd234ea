//! Conversion of text to tokens and back.
//!
//! A [`Tokenizer`] is created from GGUF metadata ([`from_gguf`]) or from `tokenizer.json` ([`from_folder`]). Both use a
//! [`vocabulary::Vocabulary`], which also decodes. Encoding differs:
//!
//! | origin | kind | where |
//! | --- | --- | --- |
//! | GGUF `gpt2` | byte-level BPE | [`pre_tokenizer`] cuts words, [`byte_level`] merges their bytes |
//! | GGUF `gemma4` | BPE of characters | [`pre_tokenizer`] cuts lines, [`character_level`] merges their characters |
//! | GGUF `llama` | SentencePiece BPE | [`sentence_piece`] |
//! | GGUF `t5` | SentencePiece unigram | [`sentence_piece`], [`unigram`] |
//! | GGUF `bert` | WordPiece | the `tokenizers` crate, by [`word_piece`] |
//! | `tokenizer.json` | any of them | the `tokenizers` crate |
//! | `tokenizer.model` | SentencePiece | [`model_file`], [`normalizer`], [`sentence_piece`] |
//!
//! GGUF kinds have their own encoders, for the time to the first token and for long prompts. Measured with SmolLM2's
//! vocabulary against the `tokenizers` crate, they load in 6 ms instead of 64, and encode 10 MB of text in 0.8 s and 25
//! MB of memory instead of 5.5 s and 1.5 GB. The tests compare both with the same references.
//!
//! The `tokenizers` crate panics on some files: its input is checked first ([`bounds`]), and its panics are caught
//! ([`guarded`]). Special tokens are split off the text first ([`markers`]). [`stream`] decodes tokens one at a time.

mod added_tokens;
mod around;
mod bounds;
mod byte_alphabet;
mod byte_level;
mod character_level;
mod charsmap;
mod classes;
mod config;
mod from_folder;
mod from_gguf;
mod from_model_file;
mod guarded;
mod letters;
mod limit;
mod markers;
mod merge;
mod merge_table;
mod model_file;
mod named_tokens;
mod normalizer;
mod pair;
mod pre_tokenizer;
mod protobuf;
mod sentence_piece;
mod special_token;
mod stated_tokens;
mod stream;
mod unigram;
mod vocabulary;
mod word_piece;
mod words;

pub use letters::Letters;
pub use limit::Encoded;
pub use pair::Pair;
pub use stream::DecodeStream;
pub use vocabulary::TokenKind;

use std::path::Path;
use std::sync::OnceLock;

use crate::checkpoint::{Checkpoint, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::Metadata;
use from_folder::HuggingFace;
use limit::Limit;
use markers::Markers;
use vocabulary::Vocabulary;
use words::Words;

/// The treatment of special tokens in a text that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether names of control tokens (`<|im_start|>`) are control tokens. Otherwise they are ordinary text.
    pub parse_special: bool,
    /// Whether BOS and EOS are added if the model expects them. A text that is parsed and already starts with a BOS gets
    /// no second one.
    pub add_special: bool,
}

impl EncodeOptions {
    /// For raw prompts from a user or a file: names of control tokens are ordinary text, and BOS and EOS are added.
    pub const TEXT: Self = Self {
        parse_special: false,
        add_special: true,
    };
    /// For rendered templates: names of control tokens are control tokens. Nothing is added, since a chat template writes
    /// its own BOS.
    pub const TEMPLATE: Self = Self {
        parse_special: true,
        add_special: false,
    };
}

/// The scheme of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// Byte-pair encoding of bytes: GPT-2, LLaMA 3, Qwen, SmolLM, Phi-2.
    ByteLevelBpe,
    /// Byte-pair encoding of characters: LLaMA 1 and 2, Mistral, Gemma, Phi-3.
    SentencePieceBpe,
    /// SentencePiece's unigram model: T5, XLM-RoBERTa.
    Unigram,
    /// Words cut into the longest known pieces: BERT.
    WordPiece,
}

impl TokenizerKind {
    /// Returns the common name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ByteLevelBpe => "byte-level BPE",
            Self::SentencePieceBpe => "SentencePiece BPE",
            Self::Unigram => "SentencePiece unigram",
            Self::WordPiece => "WordPiece",
        }
    }
}

/// A tokenizer: encodes text and decodes tokens. Created once, shared by all threads.
pub struct Tokenizer {
    kind: TokenizerKind,
    vocabulary: Vocabulary,
    encoder: Encoder,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Tokens around a raw prompt.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    end_tokens: Vec<u32>,
    /// The tokens around two texts.
    pair: Option<Pair>,
    /// Whether encoding puts a space before the text, which decoding drops.
    adds_space: bool,
    /// Maximum bytes of text per token; see [`Tokenizer::least_tokens`].
    longest: OnceLock<Option<usize>>,
}

enum Encoder {
    Own { words: Box<Words>, markers: Markers },
    HuggingFace(Box<HuggingFace>),
}

impl Tokenizer {
    /// Returns the tokenizer in the metadata of a GGUF file (`tokenizer.ggml.*`).
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        from_gguf::tokenizer(metadata)
    }

    /// Returns the tokenizer of a model folder: `tokenizer.json` or else `tokenizer.model`, with the rules in `config` (`tokenizer_config.json`)
    /// and the `end_tokens` that other files state.
    pub fn from_folder(
        folder: &Path,
        config: Option<&serde_json::Value>,
        end_tokens: &[u32],
    ) -> Result<Self> {
        from_folder::tokenizer(folder, config, end_tokens)
    }

    /// Returns the tokenizer of a model.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let end_tokens = &checkpoint.generation_defaults().end_tokens;
        Self::from_source(checkpoint.source(), end_tokens)
            .map_err(|error| error.at(checkpoint.path()))
    }

    /// Returns the tokenizer in `source`. `end_tokens` are those that a model folder states; GGUF files state their
    /// own.
    pub fn from_source(source: &Source, end_tokens: &[u32]) -> Result<Self> {
        match source {
            Source::Gguf(metadata) => Self::from_gguf(metadata),
            Source::HuggingFace {
                folder,
                tokenizer_config,
            } => Self::from_folder(folder, tokenizer_config.as_ref(), end_tokens),
        }
    }

    /// Returns the tokens of `text`. User-defined tokens count as one token wherever they occur.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        match self.encode_within(text, options, usize::MAX, &|| false)? {
            Encoded::Whole(tokens) => Ok(tokens),
            Encoded::TooMany(_) | Encoded::Stopped => Err(Error::new(
                ErrorKind::Tokenizer,
                "the text was not encoded completely",
            )),
        }
    }

    /// Does the same as [`encode`](Self::encode) for at most `most` tokens: encoding ends early if the
    /// text has more, or if `stop` returns true. `stop` is called every few thousand characters, except within a call
    /// of the `tokenizers` crate.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_within(
        &self,
        text: &str,
        options: EncodeOptions,
        most: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Encoded> {
        if let Some(least) = self.least_tokens(text).filter(|least| *least > most) {
            return Ok(Encoded::TooMany(least));
        }
        if text.len() > MAX_TEXT {
            let message = format!(
                "a text of {} bytes is too long to encode, the most is {MAX_TEXT}",
                text.len()
            );
            return Err(Error::new(ErrorKind::Tokenizer, message));
        }
        let limit = Limit::new(most, stop);
        let mut tokens = Vec::with_capacity((text.len() / 3 + 2).min(most.saturating_add(2)));
        if options.add_special {
            tokens.extend(&self.prefix);
        }
        let start = tokens.len();
        self.append(text, options.parse_special, &limit, &mut tokens)?;
        if options.parse_special && start > 0 && tokens[start..].starts_with(&tokens[..start]) {
            tokens.drain(..start);
        }
        if options.add_special {
            tokens.extend(&self.suffix);
        }
        Ok(limit.outcome(tokens))
    }

    /// Returns a lower bound for the number of tokens of `text`, from its length alone; `None` if the vocabulary's
    /// rules omit parts of texts, or have one token for a run of any length.
    fn least_tokens(&self, text: &str) -> Option<usize> {
        let longest = *self.longest.get_or_init(|| {
            let times = match &self.encoder {
                Encoder::Own { words, markers } => {
                    (words.keeps_all() && !markers.strips()).then_some(1)
                }
                Encoder::HuggingFace(encoder) => encoder
                    .most_shortened()
                    .filter(|_| self.kind == TokenizerKind::ByteLevelBpe),
            };
            let bytes = |token| match self.token_kind(token) {
                TokenKind::Control => self.vocabulary.piece(token).len(),
                _ => self.bytes(token).len(),
            };
            let longest = (0..self.vocab_size() as u32)
                .map(bytes)
                .max()
                .unwrap_or(0)
                .max(1);
            times.map(|times: usize| times * longest)
        });
        longest.map(|longest| text.len().saturating_sub(1) / longest)
    }

    /// Returns the tokens of a text within another one: names of control tokens are ordinary text, and only the space
    /// that SentencePiece puts before a text is added.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode`].
    pub fn encode_part(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        self.append(text, false, &Limit::new(usize::MAX, &|| false), &mut tokens)?;
        Ok(tokens)
    }

    fn append(
        &self,
        text: &str,
        parse_special: bool,
        limit: &Limit,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        match &self.encoder {
            Encoder::Own { words, markers } => words.encode_fragments(
                (&self.vocabulary, markers),
                (text, parse_special),
                limit,
                None,
                tokens,
            ),
            Encoder::HuggingFace(encoder) => encoder.encode(text, parse_special, limit, tokens),
        }
    }

    /// Does the same as [`encode`](Self::encode) for bytes that may not be UTF-8: each broken sequence becomes U+FFFD,
    /// as with Python's `errors="replace"`.
    pub fn encode_bytes(&self, bytes: &[u8], options: EncodeOptions) -> Result<Vec<u32>> {
        self.encode(&String::from_utf8_lossy(bytes), options)
    }

    /// Returns the text of `tokens`. Control tokens and ids without a piece have no text; bytes that are no character
    /// become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut stream = self.stream(&[]);
        tokens.iter().for_each(|&token| stream.append(token));
        stream.finish()
    }

    /// Returns whether texts are read in one call, which is not stopped meanwhile: by the library for tokenizers of folders.
    pub fn reads_whole(&self) -> bool {
        matches!(self.encoder, Encoder::HuggingFace(_))
    }

    /// Returns the text of `tokens` with the names of control tokens.
    pub fn decode_with_names(&self, tokens: &[u32]) -> String {
        let mut stream = self.stream(&[]).spelling_all();
        tokens.iter().for_each(|&token| stream.append(token));
        stream.finish()
    }

    /// Returns a decoder for tokens that follow `prompt`, one at a time. If the prompt is empty or ends in a control
    /// token, a text starts, and the space that SentencePiece puts there is dropped; elsewhere it is a space between
    /// words.
    pub fn stream(&self, prompt: &[u32]) -> DecodeStream<'_> {
        let begins = prompt
            .last()
            .is_none_or(|&token| self.token_kind(token) == TokenKind::Control);
        DecodeStream::new(self, self.adds_space && begins)
    }

    /// Returns a decoder for tokens whose every byte is part of the text, including a space at the start.
    pub fn exact_stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self, false)
    }

    /// Returns the tokens around two texts that are read together; `None` if the files do not state them.
    pub fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// Returns the tokens that end a model's answer, sorted: EOS and the ends of a turn.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Returns the token at the start of a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the token at the end of a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Returns whether BOS is put before a raw prompt.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some_and(|bos| self.prefix.contains(&bos))
    }

    /// Returns the number of ids. The model's embedding may have more rows (padding) or fewer.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Returns the scheme of the vocabulary.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Returns `token` in the vocabulary's spelling (`Ġthe`, `▁the`, `<|im_end|>`); `None` for an id without a piece.
    pub fn piece(&self, token: u32) -> Option<&str> {
        Some(self.vocabulary.piece(token)).filter(|piece| !piece.is_empty())
    }

    /// Returns the bytes that `token` adds to a text, which may be a part of a character; a control token and an id
    /// without a piece add none.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.vocabulary.append_bytes(token, &mut bytes);
        bytes
    }

    /// Returns the token with the spelling `piece`.
    pub fn id(&self, piece: &str) -> Option<u32> {
        self.vocabulary.id(piece)
    }

    /// Returns the kind of `token`.
    pub fn token_kind(&self, token: u32) -> TokenKind {
        self.vocabulary.kind(token)
    }
}

/// Maximum bytes of a text to encode: positions in it have 32 bits, and `▁` is three times as long as the space that it
/// represents.
const MAX_TEXT: usize = 1 << 30;

/// The names of the end of a turn or of a text in vocabularies.
const END_NAMES: [&str; 20] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    END_OF_MESSAGE,
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
];
/// The end of an answer, except in vocabularies with several messages per answer: gpt-oss, Solar Open.
const END_OF_MESSAGE: &str = "<|end|>";
const SEVERAL_MESSAGES: [[&str; 2]; 2] = [["<|return|>", "<|call|>"], ["<|flush|>", "<|calls|>"]];

/// Returns all end tokens: those `stated` by the model's files and those with well-known names. Corrects a vocabulary
/// that treats one as ordinary text.
fn end_tokens(vocabulary: &mut Vocabulary, stated: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut ends: Vec<u32> = stated.into_iter().collect();
    let has = |name: &&str| vocabulary.id(name).is_some();
    let has_several = SEVERAL_MESSAGES.iter().any(|names| names.iter().all(has));
    let names = END_NAMES.iter().copied();
    let names = names.filter(|name| !(has_several && *name == END_OF_MESSAGE));
    ends.extend(names.filter_map(|name| vocabulary.id(name)));
    ends.sort_unstable();
    ends.dedup();
    for &end in &ends {
        vocabulary.set_kind(end, TokenKind::Control);
    }
    ends
}
