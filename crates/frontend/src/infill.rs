//! Fill in the middle: a text between a prefix and a suffix, by the model's own tokens for it.

use triad_engine::Model;
use triad_model::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::chat::encode_text;
use crate::error::Result;

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
    /// Parts of other files, each with the file's name.
    pub extra: Vec<(String, String)>,
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
    /// files that the vocabulary has.
    ///
    /// # Errors
    /// If the texts have more than `within.0` tokens, or `within.1` is set.
    pub fn prompt(
        &self,
        model: &Model,
        gap: &Gap,
        within: (usize, &triad_engine::Cancel),
    ) -> Result<Vec<u32>> {
        let tokenizer = model.tokenizer()?;
        let mut prompt: Vec<u32> = tokenizer
            .bos()
            .filter(|_| tokenizer.adds_bos())
            .into_iter()
            .collect();
        let add = |prompt: &mut Vec<u32>, text: &str| {
            let options = EncodeOptions {
                parse_special: false,
                add_special: false,
            };
            prompt.extend(encode_text(model, text, options, within)?);
            Ok::<_, crate::error::Error>(())
        };
        let name = |prompt: &mut Vec<u32>, mark: u32, name: &str| {
            prompt.push(mark);
            add(prompt, &format!("{name}\n"))
        };
        if let Some(repository) = self.repository.filter(|_| !gap.extra.is_empty()) {
            name(&mut prompt, repository, REPOSITORY_NAME)?;
        }
        for (file, text) in &gap.extra {
            match self.file {
                Some(mark) => {
                    name(&mut prompt, mark, file)?;
                    add(&mut prompt, text)?;
                }
                None => add(&mut prompt, &format!("--- {file} ---\n{text}\n"))?,
            }
        }
        if let Some(mark) = self.file.filter(|_| !gap.extra.is_empty()) {
            name(&mut prompt, mark, FILE_NAME)?;
        }
        prompt.push(self.prefix);
        add(&mut prompt, &gap.prefix)?;
        prompt.push(self.suffix);
        add(&mut prompt, &gap.suffix)?;
        prompt.push(self.middle);
        if prompt.len() > within.0 {
            return Err(crate::error::Error::PromptTooLong {
                tokens: prompt.len(),
                more: false,
                context: within.0,
            });
        }
        Ok(prompt)
    }
}
