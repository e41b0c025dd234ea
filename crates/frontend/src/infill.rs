//! Fill in the middle: a text between a prefix and a suffix, by the model's own tokens for it.

use triad_engine::Model;
use triad_model::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::chat::encode_text;
use crate::error::{Error, Result};

/// The names of the tokens before the prefix, before the suffix, and before the middle.
const MARKS: [[&str; 3]; 7] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];
/// The names of the repository and of the file with the gap, which requests do not state: those of llama.cpp's server.
const REPOSITORY_NAME: &str = "myproject";
const FILE_NAME: &str = "filename";
/// The names of the token before a repository's name.
const REPOSITORIES: [&str; 3] = ["<|repo_name|>", "<repo_name>", "<reponame>"];
/// The names of the token before a file's name.
const FILES: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>"];
/// Further tokens that end a middle.
const ENDS: [&str; 8] = [
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|endoftext|>",
    "<EOT>",
    "▁<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
];

/// The tokens of a model for filling in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    prefix: u32,
    suffix: u32,
    middle: u32,
    repository: Option<u32>,
    file: Option<u32>,
    ends: Vec<u32>,
}

/// The texts around a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The text before the gap.
    pub prefix: String,
    /// The text after the gap.
    pub suffix: String,
    /// Parts of other files, each with the file's name, the most important one last.
    pub extra: Vec<(String, String)>,
    /// The tokens that parts of other files leave free for the middle.
    pub room: usize,
}

/// The prompt of a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfillPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The number of parts of other files for which there is no room.
    pub left_out: usize,
}

impl InfillTokens {
    /// Finds the tokens in a vocabulary; returns `None` if it has none.
    pub fn find(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |name: &str| {
            let token = tokenizer.id(name)?;
            let kind = tokenizer.token_kind(token);
            matches!(kind, TokenKind::Control | TokenKind::UserDefined).then_some(token)
        };
        let first = |names: &[&str]| names.iter().find_map(|name| id(name));
        let marks = MARKS
            .iter()
            .find_map(|[prefix, suffix, middle]| Some((id(prefix)?, id(suffix)?, id(middle)?)));
        let (prefix, suffix, middle) = marks?;
        let (repository, file) = (first(&REPOSITORIES), first(&FILES));
        let ends = ENDS.iter().filter_map(|name| id(name));
        Some(Self {
            prefix,
            suffix,
            middle,
            repository,
            file,
            ends: ends.chain(repository).chain(file).collect(),
        })
    }

    /// Returns the tokens that end a middle, besides those that end any answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns the prompt of a gap. Parts of other files are put before the prefix, with the tokens for repositories and
    /// files that the vocabulary has. If there is no room for all, the first ones are left out.
    ///
    /// # Errors
    /// If the prefix and the suffix have more than `within.0` tokens, or `within.1` is set.
    pub fn prompt(
        &self,
        model: &Model,
        gap: &Gap,
        within: (usize, &triad_engine::Cancel),
    ) -> Result<InfillPrompt> {
        let tokenizer = model.tokenizer()?;
        let encode = |mark: Option<u32>, text: &str| {
            let options = EncodeOptions {
                parse_special: false,
                add_special: false,
            };
            let text = encode_text(model, text, options, within)?;
            Ok::<_, Error>(mark.into_iter().chain(text).collect::<Vec<_>>())
        };
        let mut gap_tokens = encode(Some(self.prefix), &gap.prefix)?;
        gap_tokens.extend(encode(Some(self.suffix), &gap.suffix)?);
        gap_tokens.push(self.middle);
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let (mut before, mut after) = (Vec::from_iter(bos), Vec::new());
        if !gap.extra.is_empty() {
            if let Some(mark) = self.repository {
                before.extend(encode(Some(mark), &format!("{REPOSITORY_NAME}\n"))?);
            }
            if let Some(mark) = self.file {
                after = encode(Some(mark), &format!("{FILE_NAME}\n"))?;
            }
        }
        let used = before.len() + after.len() + gap_tokens.len();
        let mut free = within.0.saturating_sub(used.saturating_add(gap.room));
        let mut parts = Vec::new();
        for (file, text) in gap.extra.iter().rev() {
            let part = match self.file {
                Some(mark) => encode(Some(mark), &format!("{file}\n")).and_then(|mut name| {
                    name.extend(encode(None, text)?);
                    Ok(name)
                }),
                None => encode(None, &format!("--- {file} ---\n{text}\n")),
            };
            match part {
                Ok(part) if part.len() <= free => {
                    free -= part.len();
                    parts.push(part);
                }
                Ok(_) | Err(Error::PromptTooLong { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        let left_out = gap.extra.len() - parts.len();
        let mut tokens = before;
        tokens.extend(parts.into_iter().rev().flatten());
        tokens.extend(after);
        tokens.extend(gap_tokens);
        if tokens.len() > within.0 {
            return Err(Error::PromptTooLong {
                tokens: tokens.len(),
                more: false,
                context: within.0,
            });
        }
        Ok(InfillPrompt { tokens, left_out })
    }
}
