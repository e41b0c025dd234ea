//! Messages of a conversation with their pictures, which are files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use triad_engine::{Cancel, Model};
use triad_frontend::chat::{self, Conversation};
use triad_frontend::pictures::{PicturePrompt, Pictures};
use triad_model::files;
use triad_pictures::limits::MAX_BYTES;
use triad_pictures::{Picture, Prepared, Processor};

use triad_console::inputs;

/// A message of a conversation.
#[derive(Clone, Debug)]
pub struct Turn {
    pub role: String,
    pub content: String,
    pub images: Vec<Image>,
}

/// A picture for the model.
#[derive(Clone, Debug)]
pub struct Image {
    pub path: PathBuf,
    pub prepared: Arc<Prepared>,
}

impl Turn {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            images: Vec::new(),
        }
    }

    /// Returns the message as templates read it: the pictures, and then the text.
    pub fn to_json(&self) -> Value {
        if self.images.is_empty() {
            return json!({"role": self.role, "content": self.content});
        }
        let images = self.images.iter().map(|_| json!({"type": "image"}));
        let text = json!({"type": "text", "text": self.content});
        let parts: Vec<_> = images.chain([text]).collect();
        json!({"role": self.role, "content": parts})
    }
}

impl Image {
    /// Reads the picture in the file at `path`.
    pub fn read(processor: &Processor, path: &Path) -> Result<Self> {
        inputs::add(path);
        let name = path.display();
        let bytes = files::read(path, MAX_BYTES as u64);
        let bytes = bytes.with_context(|| format!("cannot read the picture {name}"))?;
        ensure!(!bytes.is_empty(), "{name}: the file is empty");
        let picture = Picture::decode(&bytes).with_context(|| name.to_string())?;
        let prepared = processor.prepare(&picture);
        Ok(Self {
            path: path.to_owned(),
            prepared: Arc::new(prepared.with_context(|| name.to_string())?),
        })
    }
}

/// A prompt, and its pictures.
pub struct Prompt {
    pub places: PicturePrompt,
    pub pictures: Vec<Arc<Prepared>>,
}

impl Prompt {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.places.tokens.len()
    }
}

impl From<Vec<u32>> for Prompt {
    /// Creates a prompt without pictures.
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            places: tokens.into(),
            pictures: Vec::new(),
        }
    }
}

/// Returns the prompt of a conversation, of at most `context` tokens; `processor` is called if it has pictures.
pub fn encode<'a>(
    model: &Model,
    name: &str,
    (turns, keeps_letters): (&[Turn], bool),
    processor: impl Fn() -> Result<&'a Processor>,
    context: usize,
) -> Result<Prompt> {
    let messages: Vec<_> = turns.iter().map(Turn::to_json).collect();
    let conversation = Conversation {
        messages: &messages,
        keeps_letters,
        ..Conversation::default()
    };
    let images = turns.iter().flat_map(|turn| &turn.images);
    let prepared: Vec<_> = images.map(|image| Arc::clone(&image.prepared)).collect();
    let within = (context, &Cancel::new());
    let places = if prepared.is_empty() {
        chat::encode_conversation(model, name, &conversation, within)?.into()
    } else {
        let pictures = Pictures {
            processor: processor()?,
            prepared: &prepared,
        };
        chat::encode_pictures(model, name, &conversation, (pictures, within))?
    };
    Ok(Prompt {
        places,
        pictures: prepared,
    })
}
