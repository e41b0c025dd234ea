//! The source of a model's tokenizer and chat template, and the part of it that a package copies.

use std::path::{Path, PathBuf};

use super::{Checkpoint, is_there, json};
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::gguf::{self, Metadata};
use crate::mapped::MappedFile;

/// The contents of a checkpoint other than tensors: tokenizer and chat template are read from it.
#[derive(Clone, Debug)]
pub enum Source {
    /// One GGUF file.
    Gguf(Metadata),
    /// A folder in the layout of `transformers`.
    HuggingFace {
        /// The folder that may contain `tokenizer.json` and `chat_template.jinja`.
        folder: PathBuf,
        /// `tokenizer_config.json`.
        tokenizer_config: Option<serde_json::Value>,
    },
}

/// The head of a GGUF file: all metadata and no tensors.
const GGUF: &str = "tokenizer.gguf";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The files in a folder from which tokenizer and template are read.
const FOLDER: [&str; 3] = ["tokenizer.json", TOKENIZER_CONFIG, "chat_template.jinja"];
/// The files from which a tokenizer is read if there is no `tokenizer.json`.
const SENTENCE_PIECE: [&str; 3] = [
    "tokenizer.model",
    "added_tokens.json",
    "special_tokens_map.json",
];
/// The files with rules for vectors of texts, in the layout of `sentence-transformers`.
pub(super) const SENTENCE_MODULES: &str = "modules.json";
pub(super) const PROMPTS: &str = "config_sentence_transformers.json";
/// The limits of texts, also in packages.
pub(super) const TEXT_LIMITS: &str = "sentence_bert_config.json";
/// The names of that file, the first of which `sentence-transformers` reads.
pub(super) const TEXT_LIMITS_NAMES: [&str; 7] = [
    TEXT_LIMITS,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
/// The folder of the pooling module.
pub(super) const POOLING_FOLDER: &str = "1_Pooling";
/// The name of the pooling module's configuration in packages, which have no folders.
pub(super) const PACKAGED_POOLING: &str = "pooling_config.json";
/// The template for conversations with functions: its names in packages and in folders in the layout of `transformers`.
pub(crate) const TOOL_TEMPLATES: [&str; 2] = [
    "chat_template.tool_use.jinja",
    "additional_chat_templates/tool_use.jinja",
];

/// The description of a model, and the recommended options of its answers.
pub(super) const CONFIG: &str = "config.json";
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";
/// The descriptions of how pictures are prepared.
const PICTURES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// Returns whether a model in the layout of `transformers` and `sentence-transformers` may be read from the file at `path`,
/// other than its own weights and their index. `path` is below the model's folder, with `/` between its parts.
pub fn describes_model(path: &str) -> bool {
    let Some((folder, file)) = path.split_once('/') else {
        return [CONFIG, GENERATION_CONFIG, SENTENCE_MODULES, PROMPTS].contains(&path)
            || FOLDER.contains(&path)
            || SENTENCE_PIECE.contains(&path)
            || TOOL_TEMPLATES.contains(&path)
            || TEXT_LIMITS_NAMES.contains(&path)
            || PICTURES.contains(&path);
    };
    // A dense layer after pooling, such as `2_Dense`, and words that score a pair.
    TOOL_TEMPLATES.contains(&path)
        || folder == POOLING_FOLDER && file == CONFIG
        || folder.ends_with("_Dense") && [CONFIG, "model.safetensors"].contains(&file)
        || folder.ends_with("_LogitScore") && file == CONFIG
}

/// Maximum bytes of each of these files.
const MAX_TEXT_FILE: u64 = 1 << 28;

impl Source {
    /// Every file that [`Checkpoint::text_files`] may name.
    pub const TEXT_FILES: [&str; 12] = [
        GGUF,
        FOLDER[0],
        FOLDER[1],
        FOLDER[2],
        TOOL_TEMPLATES[0],
        SENTENCE_PIECE[0],
        SENTENCE_PIECE[1],
        SENTENCE_PIECE[2],
        SENTENCE_MODULES,
        PROMPTS,
        TEXT_LIMITS,
        PACKAGED_POOLING,
    ];

    /// Opens a folder with the files of [`Checkpoint::text_files`].
    ///
    /// # Errors
    /// If a file cannot be read or its content does not match its name.
    pub fn open_text(folder: &Path) -> Result<Self> {
        let gguf = folder.join(GGUF);
        if is_there(&gguf)? {
            let file = MappedFile::open(&gguf)?;
            return Ok(Self::Gguf(
                gguf::read(file.bytes())
                    .map_err(|error| error.at(gguf))?
                    .metadata,
            ));
        }
        Self::folder(folder)
    }

    pub(super) fn folder(folder: &Path) -> Result<Self> {
        let tokenizer_config = json::read(&folder.join(TOKENIZER_CONFIG))?;
        Ok(Self::HuggingFace {
            folder: folder.to_path_buf(),
            tokenizer_config,
        })
    }
}

impl Checkpoint {
    /// Returns the files that define tokenization, by name with their content. A folder with only these files gives the
    /// same tokenizer and template ([`Source::open_text`]).
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn text_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        match &self.source {
            Source::Gguf(_) => {
                let bytes = self.files[0].bytes();
                let head = gguf::read(bytes)
                    .map_err(|error| error.at(&self.path))?
                    .without_tensors(bytes);
                Ok(vec![(GGUF, head)])
            }
            Source::HuggingFace { folder, .. } => {
                let mut texts = Vec::new();
                let has_json = is_there(&folder.join(FOLDER[0]))?;
                let sentence_piece = SENTENCE_PIECE.into_iter().filter(|_| !has_json);
                let pooling = folder.join(POOLING_FOLDER).join(CONFIG);
                for (name, path) in FOLDER
                    .into_iter()
                    .chain(sentence_piece)
                    .chain([SENTENCE_MODULES, PROMPTS])
                    .map(|name| (name, folder.join(name)))
                    .chain(TEXT_LIMITS_NAMES.map(|name| (TEXT_LIMITS, folder.join(name))))
                    .chain([(PACKAGED_POOLING, pooling)])
                    .chain(TOOL_TEMPLATES.map(|name| (TOOL_TEMPLATES[0], folder.join(name))))
                {
                    // The first of the places of a template, and of the limits of texts, is read.
                    let is_new = texts.iter().all(|(other, _)| *other != name);
                    if is_new && is_there(&path)? {
                        let bytes = files::read(&path, MAX_TEXT_FILE).map_err(|error| {
                            let message = format!("cannot read the file: {error}");
                            Error::new(ErrorKind::Io, message).at(path)
                        })?;
                        texts.push((name, bytes));
                    }
                }
                Ok(texts)
            }
        }
    }
}
