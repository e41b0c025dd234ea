//! The texts of templates: a model has one, and possibly another one for conversations with functions.

use std::path::Path;

use serde_json::Value;

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
                let named = match tokenizer_config {
                    Some(config) => in_config(config)?,
                    None => Vec::new(),
                };
                let config = |name: &str| {
                    let template = named.iter().find(|(other, _)| *other == name)?;
                    Some(template.1.to_owned())
                };
                let file = read(&folder.join("chat_template.jinja"))?;
                let tools = TOOL_TEMPLATES
                    .iter()
                    .map(|name| read(&folder.join(name)))
                    .find(|read| !matches!(read, Ok(None)));
                let tools = tools.transpose()?.flatten();
                // A separate file replaces everything in the configuration.
                let has_file = file.is_some();
                let default = file.or_else(|| config("default"));
                if default.is_none() && (!named.is_empty() || tools.is_some()) {
                    let names = named.iter().map(|(name, _)| *name);
                    let names: Vec<_> = names.chain(tools.is_some().then_some(TOOLS)).collect();
                    let message = format!(
                        "the chat templates are called {}; expected one called default",
                        names.join(", ")
                    );
                    return Err(Error::new(ErrorKind::Missing, message));
                }
                (
                    default,
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

/// Returns the templates of `tokenizer_config.json`, by name: it has one text, or several with names.
fn in_config<'a>(config: &'a Value) -> Result<Vec<(&'a str, &'a str)>> {
    let wrong = || {
        let message = "tokenizer_config.json: `chat_template` is neither a text nor a list of objects with `name` and `template`";
        Error::new(ErrorKind::Malformed, message)
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![("default", text)]),
        Some(Value::Array(templates)) => {
            let text = |value: Option<&'a Value>| value.and_then(Value::as_str);
            let named = templates.iter().map(|template| {
                let name = text(template.get("name"));
                name.zip(text(template.get("template"))).ok_or_else(wrong)
            });
            named.collect()
        }
        Some(_) => Err(wrong()),
    }
}
