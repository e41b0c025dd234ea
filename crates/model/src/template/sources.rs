//! The texts of templates: a model has one, and possibly another one for conversations with functions.

use std::path::Path;

use crate::checkpoint::{Source, TOOL_TEMPLATES};
use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// The name of the template for conversations with functions in `transformers`.
const TOOLS: &str = "tool_use";

/// The texts of a model's templates.
pub(super) struct Sources {
    pub(super) default: String,
    /// The template for conversations with functions.
    pub(super) tools: Option<String>,
}

impl Sources {
    /// Reads the templates of `source`; `None` if there are none.
    pub(super) fn read(source: &Source) -> Result<Option<Self>> {
        let (default, tools) = match source {
            Source::Gguf(metadata) => {
                let text = |name: &str| Ok(metadata.string(name)?.map(str::to_owned));
                let default = text("tokenizer.chat_template")?;
                (default, text(&format!("tokenizer.chat_template.{TOOLS}"))?)
            }
            Source::HuggingFace {
                folder,
                tokenizer_config,
            } => {
                let config = |name| {
                    tokenizer_config
                        .as_ref()
                        .and_then(|config| in_config(config, name))
                };
                let file = read(&folder.join("chat_template.jinja"))?;
                let tools = TOOL_TEMPLATES
                    .iter()
                    .map(|name| read(&folder.join(name)))
                    .find(|read| !matches!(read, Ok(None)));
                let tools = tools.transpose()?.flatten();
                // A separate file replaces everything in the configuration.
                let has_file = file.is_some();
                (
                    file.or_else(|| config("default")),
                    tools.or_else(|| config(TOOLS).filter(|_| !has_file)),
                )
            }
        };
        Ok(default.map(|default| Self { default, tools }))
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    if !path.is_file() {
        return Ok(None);
    }
    let io = |error| Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path);
    files::read_text(path, super::MAX_SOURCE as u64)
        .map(Some)
        .map_err(io)
}

/// Returns the template `name` of `tokenizer_config.json`, which has one text, or several by name.
fn in_config(config: &serde_json::Value, name: &str) -> Option<String> {
    let templates = config.get("chat_template")?;
    let text = match templates.as_array() {
        Some(templates) => {
            templates.iter().find(|template| template["name"] == name)?["template"].as_str()
        }
        None => templates.as_str().filter(|_| name == "default"),
    };
    text.map(str::to_owned)
}
