//! Messages of a conversation, with their pictures, which are files, and calls of tools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use triad_engine::package::sha256;
use triad_engine::{Cancel, Model};
use triad_frontend::chat::{self, Conversation};
use triad_frontend::pictures::{PicturePrompt, Pictures};
use triad_frontend::tool_calls::{Tool, ToolCall};
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
    /// Calls of tools by the model.
    pub tool_calls: Vec<Call>,
    /// The call that this message is the result of.
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    id: String,
    #[serde(rename = "type")]
    kind: Kind,
    function: Function,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    /// A JSON object, as text.
    arguments: String,
}

/// A picture for the model.
#[derive(Clone, Debug)]
pub struct Image {
    pub path: PathBuf,
    /// The hash of the file's content.
    pub sha256: String,
    pub prepared: Arc<Prepared>,
}

impl Turn {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            images: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// Creates a message of the model with calls. `index` is that of the message in its conversation, and makes the
    /// names of the calls differ.
    pub fn calling(content: impl Into<String>, calls: &[ToolCall], index: usize) -> Self {
        let call = |(number, call): (usize, &ToolCall)| Call {
            // Templates of Mistral's models take nine letters and digits.
            id: format!("c{:04}{:04}", index % 10_000, number % 10_000),
            kind: Kind::Function,
            function: Function {
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            },
        };
        Self {
            tool_calls: calls.iter().enumerate().map(call).collect(),
            ..Self::new("assistant", content)
        }
    }

    /// Creates the result of a call of this message.
    ///
    /// # Panics
    /// If the message has no such call.
    pub fn result_of(&self, call: usize, text: String) -> Self {
        Self {
            tool_call_id: Some(self.tool_calls[call].id.clone()),
            ..Self::new("tool", text)
        }
    }

    /// Returns the message as chat templates read it: the pictures, and then the text.
    pub fn to_json(&self) -> Value {
        let mut message = json!({"role": self.role, "content": self.content});
        if !self.images.is_empty() {
            let images = self.images.iter().map(|_| json!({"type": "image"}));
            let text = json!({"type": "text", "text": self.content});
            message["content"] = images.chain([text]).collect();
        }
        if !self.tool_calls.is_empty() {
            message["tool_calls"] = json!(self.tool_calls);
        }
        if let Some(id) = &self.tool_call_id {
            message["tool_call_id"] = id.as_str().into();
        }
        message
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
            sha256: sha256(&bytes),
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

/// Returns the prompt of a conversation with `tools` that the model may call, of at most `context` tokens; `processor` is
/// called if it has pictures.
pub fn encode<'a>(
    (model, name): (&Model, &str),
    (turns, tools, keeps_letters): (&[Turn], &[Tool], bool),
    processor: impl Fn() -> Result<&'a Processor>,
    context: usize,
) -> Result<Prompt> {
    let messages: Vec<_> = turns.iter().map(Turn::to_json).collect();
    let conversation = Conversation {
        messages: &messages,
        tools,
        keeps_letters,
        ..Conversation::default()
    };
    let images = turns.iter().flat_map(|turn| &turn.images);
    let prepared: Vec<_> = images.map(|image| Arc::clone(&image.prepared)).collect();
    let within = (context, &Cancel::new());
    let places = if prepared.is_empty() {
        chat::encode_conversation(model, name, &conversation, within)?.into()
    } else {
        let pieces: Vec<_> = prepared.iter().map(|it| Arc::clone(&it.pieces)).collect();
        let pictures = Pictures {
            processor: processor()?,
            pieces: &pieces,
        };
        chat::encode_pictures(model, name, &conversation, (pictures, within))?
    };
    Ok(Prompt {
        places,
        pictures: prepared,
    })
}
