//! Tokenizer and templates of a model.

use std::path::Path;
use std::sync::Arc;

use triad_model::ErrorKind;
use triad_model::checkpoint::{EmbeddingDefaults, GenerationDefaults, Source};
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::Tokenizer;

use crate::error::Result;

/// Tokenizer and template of a model.
pub(super) struct Text {
    /// The tokenizer, or the reason why there is none.
    pub(super) tokenizer: Result<Tokenizer, Arc<triad_model::Error>>,
    pub(super) template: Option<ChatTemplate>,
    /// The template of a query and a document.
    pub(super) pairs: Option<ChatTemplate>,
    pub(super) embedding: EmbeddingDefaults,
}

/// Reads tokenizer and template, and that of a query and a document if `reads_pairs`. A missing tokenizer is not an error
/// yet; a damaged one is.
pub(super) fn text(
    source: &Source,
    defaults: &GenerationDefaults,
    path: &Path,
    reads_pairs: bool,
) -> Result<Text> {
    match Tokenizer::from_source(source, &defaults.end_tokens).map_err(|error| error.at(path)) {
        Ok(tokenizer) => {
            let template =
                ChatTemplate::from_source(source, &tokenizer).map_err(|error| error.at(path))?;
            let pairs = match reads_pairs {
                true => {
                    ChatTemplate::of_pairs(source, &tokenizer).map_err(|error| error.at(path))?
                }
                false => None,
            };
            let embedding =
                EmbeddingDefaults::from_source(source).map_err(|error| error.at(path))?;
            Ok(Text {
                tokenizer: Ok(tokenizer),
                template,
                pairs,
                embedding,
            })
        }
        Err(error) if error.kind() == ErrorKind::Missing => Ok(Text {
            tokenizer: Err(Arc::new(error)),
            template: None,
            pairs: None,
            embedding: EmbeddingDefaults::default(),
        }),
        Err(error) => Err(error.into()),
    }
}
