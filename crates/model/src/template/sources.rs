//! The texts of templates: a model has one, and possibly another one for conversations with functions.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::{Source, TOKENIZER_CONFIG, TOOL_TEMPLATES};
use crate::error::{Error, ErrorKind, Result};
use crate::files;

/// The name of the template for conversations in `transformers`.
const DEFAULT: &str = "default";
/// The name of the template for conversations with functions in `transformers`.
const TOOLS: &str = "tool_use";

/// The field of `tokenizer_config.json` with the templates.
const FIELD: &str = "chat_template";

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
                    let found = tokenizer_config
                        .as_ref()
                        .map(|config| in_config(config, name));
                    found
                        .transpose()
                        .map(Option::flatten)
                        .map_err(|error: Error| error.at(folder.join(TOKENIZER_CONFIG)))
                };
                let file = read(&folder.join("chat_template.jinja"))?;
                let tools = TOOL_TEMPLATES
                    .iter()
                    .map(|name| read(&folder.join(name)))
                    .find(|read| !matches!(read, Ok(None)));
                let tools = tools.transpose()?.flatten();
                // A separate file replaces everything in the configuration.
                let has_file = file.is_some();
                let (default, tools) = match has_file {
                    true => (file, tools),
                    false => (config(DEFAULT)?, tools.or(config(TOOLS)?)),
                };
                if default.is_none() && tools.is_some() {
                    let message = format!(
                        "the only chat template is {TOOLS}; expected another one called {DEFAULT}"
                    );
                    return Err(Error::new(ErrorKind::Missing, message).at(folder));
                }
                (default, tools)
            }
        };
        Ok(default.map(|default| Self { default, tools }))
    }
}

/// Returns the template `rerank` of a GGUF file, in which llama.cpp replaces `{query}` and `{document}`, as Jinja.
pub(super) fn of_pairs(source: &Source) -> Result<Option<String>> {
    let Source::Gguf(metadata) = source else {
        return Ok(None);
    };
    let text = metadata.string("tokenizer.chat_template.rerank")?;
    Ok(text.map(|text| {
        let (mut jinja, mut rest) = (String::new(), text);
        let literal = |text: &str| format!("{{{{ {} }}}}", Value::from(text));
        let places = |text: &str| {
            let place = |role: &'static str| Some((text.find(&format!("{{{role}}}"))?, role));
            ["query", "document"].into_iter().filter_map(place).min()
        };
        while let Some((place, role)) = places(rest) {
            jinja += &literal(&rest[..place]);
            jinja += &format!(
                "{{{{ messages | selectattr('role', 'eq', '{role}') | map(attribute='content') | first }}}}"
            );
            rest = &rest[place + role.len() + 2..];
        }
        jinja + &literal(rest)
    }))
}

fn read(path: &Path) -> Result<Option<String>> {
    let io = |error| Error::new(ErrorKind::Io, format!("cannot read the file: {error}")).at(path);
    if !files::is_there(path).map_err(io)? {
        return Ok(None);
    }
    files::read_text(path, super::MAX_SOURCE as u64)
        .map(Some)
        .map_err(io)
}

/// Returns the template `name` of `tokenizer_config.json`, which has one text, or several by name.
fn in_config(config: &Value, name: &str) -> Result<Option<String>> {
    let malformed = |problem: String| {
        Err(Error::new(
            ErrorKind::Malformed,
            format!("field `{FIELD}`{problem}"),
        ))
    };
    let templates = match config.get(FIELD) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone()).filter(|_| name == DEFAULT)),
        Some(Value::Array(templates)) => templates,
        Some(_) => return malformed(": expected a text or an array of templates".to_owned()),
    };
    let mut found = None;
    for (index, template) in templates.iter().enumerate() {
        let (Some(other), Some(text)) = (template["name"].as_str(), template["template"].as_str())
        else {
            return malformed(format!(
                "[{index}]: expected an object with the texts `name` and `template`"
            ));
        };
        if other == name && found.replace(text.to_owned()).is_some() {
            return malformed(format!("[{index}]: there are two templates `{name}`"));
        }
    }
    if found.is_none() && name == DEFAULT && !templates.is_empty() {
        return malformed(format!(": none of its templates is `{DEFAULT}`"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads the templates of a folder whose `tokenizer_config.json` has this `chat_template`.
    fn read_field(folder: &Path, template: &Value) -> Result<Option<Sources>> {
        Sources::read(&Source::HuggingFace {
            folder: folder.to_path_buf(),
            tokenizer_config: Some(json!({ FIELD: template })),
        })
    }

    #[test]
    fn a_configuration_has_one_template_or_several_with_a_name_each() {
        let folder = tempfile::tempdir().unwrap();
        let found = |template: Value| {
            let found = read_field(folder.path(), &template).unwrap();
            found.map(|Sources { default, tools }| (default, tools))
        };
        let one = |name: &str, text: &str| json!({ "name": name, "template": text });
        assert_eq!(found(json!(null)), None);
        assert_eq!(found(json!([])), None);
        assert_eq!(found(json!("a")), Some(("a".into(), None)));
        assert_eq!(
            found(json!([one("tool_use", "t"), one("default", "a")])),
            Some(("a".into(), Some("t".into())))
        );
        for (template, named) in [
            (json!(3), "`chat_template`: expected a text or an array"),
            (json!({ "default": "a" }), "`chat_template`: expected"),
            (json!(["a"]), "`chat_template`[0]: expected an object"),
            (json!([one("default", "a"), { "name": "x" }]), "[1]"),
            (
                json!([one("default", "a"), one("default", "b")]),
                "[1]: there are two templates `default`",
            ),
            (json!([one("rag", "a")]), "none of its templates"),
        ] {
            let error = read_field(folder.path(), &template)
                .map(|_| ())
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            let error = error.to_string();
            assert!(
                error.contains("tokenizer_config.json: field `chat_template`"),
                "{error}"
            );
            assert!(error.contains(named), "{template}: {error}");
        }
    }

    #[test]
    fn the_template_of_pairs_of_gguf_is_jinja_that_writes_the_same_text() {
        let mut metadata = crate::gguf::Metadata::default();
        let text = "<a>\n{query} \"{{ x }}\" {% if %} \u{4e2d} \\n {document}{query}\n\n{other}";
        let field = "tokenizer.chat_template.rerank";
        metadata.insert(field, crate::gguf::Value::String(text.into()));
        let jinja = of_pairs(&Source::Gguf(metadata)).unwrap().unwrap();
        let template = super::super::ChatTemplate::new(jinja, None, None).unwrap();
        assert!(template.reads_pairs().unwrap() && !template.reads_instructions());
        // A text with the other's name stays what it is.
        let (query, document) = ("{document}", "b {query} {{ c }}");
        let messages = [("query", query), ("document", document)];
        let messages = messages.map(|(role, text)| super::super::Message::new(role, text));
        let expected = format!(
            "<a>\n{query} \"{{{{ x }}}}\" {{% if %}} \u{4e2d} \\n {document}{query}\n\n{{other}}"
        );
        assert_eq!(template.render(&messages, false).unwrap(), expected);
    }

    #[test]
    #[cfg(unix)]
    fn a_template_that_cannot_be_read_is_not_taken_as_absent() {
        for name in ["chat_template.jinja", TOOL_TEMPLATES[0], TOOL_TEMPLATES[1]] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let refused = || {
                let error = read_field(folder.path(), &json!("a"))
                    .map(|_| ())
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.to_string().contains(name), "{error}");
            };
            std::fs::create_dir(&path).unwrap();
            refused();
            std::fs::remove_dir(&path).unwrap();
            std::os::unix::fs::symlink("nowhere", &path).unwrap();
            refused();
        }
    }
}
