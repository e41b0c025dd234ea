//! Pictures for a program that uses a model as a library: from files, bytes or pixels to rows in a prompt.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use triad_engine::{Cancel, Model, Session};
use triad_model::files;
use triad_pictures::limits::MAX_BYTES;
use triad_pictures::{Picture, Prepared, Processor};

use crate::chat::{self, Conversation};
use crate::error::{Error, Result};
use crate::pictures::{self, PicturePrompt, Pictures};

/// Prepares pictures for one model, whose processor it opens with the first picture.
#[derive(Debug, Default)]
pub struct PictureReader {
    processor: OnceLock<Processor>,
}

/// A prompt with its pictures.
#[derive(Clone, Debug, Default)]
pub struct ShownPrompt {
    prompt: PicturePrompt,
    prepared: Vec<Arc<Prepared>>,
}

impl PictureReader {
    fn processor(&self, model: &Model) -> Result<&Processor> {
        if let Some(processor) = self.processor.get() {
            return Ok(processor);
        }
        let opened = pictures::processor(model)?;
        Ok(self.processor.get_or_init(|| opened))
    }

    /// Prepares a picture for `model`.
    ///
    /// # Errors
    /// If the model reads no pictures, or the picture is beyond its limits.
    pub fn prepare(&self, model: &Model, picture: &Picture) -> Result<Arc<Prepared>> {
        Ok(Arc::new(self.processor(model)?.prepare(picture)?))
    }

    /// Decodes the picture in a file of this content, and prepares it for `model`.
    ///
    /// # Errors
    /// As [`PictureReader::prepare`]; if `bytes` are not a picture.
    pub fn decode(&self, model: &Model, bytes: &[u8]) -> Result<Arc<Prepared>> {
        // A model that reads none says so, whatever the bytes are.
        self.processor(model)?;
        self.prepare(model, &Picture::decode(bytes)?)
    }

    /// Returns the tokens of `conversation` up to the model's answer, at most `within.0`, with places for the rows of
    /// `prepared`. Its parts of type `image` stand for these pictures, in order.
    ///
    /// # Errors
    /// As [`chat::encode_pictures`].
    pub fn prompt(
        &self,
        (model, name): (&Model, &str),
        conversation: &Conversation<'_>,
        prepared: Vec<Arc<Prepared>>,
        within: (usize, &Cancel),
    ) -> Result<ShownPrompt> {
        if prepared.is_empty() {
            let tokens = chat::encode_conversation(model, name, conversation, within)?;
            return Ok(tokens.into());
        }
        let pieces: Vec<_> = prepared.iter().map(|it| Arc::clone(&it.pieces)).collect();
        let shown = Pictures {
            processor: self.processor(model)?,
            pieces: &pieces,
        };
        let prompt = chat::encode_pictures(model, name, conversation, (shown, within))?;
        Ok(ShownPrompt { prompt, prepared })
    }
}

/// Reads the picture in a file.
///
/// # Errors
/// If the file can't be read or is not a picture. The error names the file.
pub fn read(path: &Path) -> Result<Picture> {
    let bytes = files::read(path, MAX_BYTES as u64).map_err(|source| Error::File {
        what: "read the picture",
        path: path.to_owned(),
        source,
    })?;
    Picture::decode(&bytes).map_err(|source| Error::PictureFile {
        path: path.to_owned(),
        source,
    })
}

impl ShownPrompt {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.prompt.tokens.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.prompt.tokens.is_empty()
    }

    /// Returns whether there are pictures.
    pub fn has_pictures(&self) -> bool {
        !self.prepared.is_empty()
    }

    /// Encodes the pictures for `session`, which then holds them, and returns the tokens for it.
    ///
    /// # Errors
    /// As [`PicturePrompt::hold`].
    pub fn hold(self, session: &mut Session, cancel: &Cancel) -> Result<Vec<u32>> {
        self.prompt.hold(session, &self.prepared, cancel)
    }
}

impl From<Vec<u32>> for ShownPrompt {
    /// Creates a prompt without pictures.
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            prompt: tokens.into(),
            prepared: Vec::new(),
        }
    }
}
