//! Grammars of answers that must or may call functions.

use serde_json::{Map, Value, json};
use triad_grammar::{GrammarSource, for_llguidance};

use super::{Tool, ToolChoice, ToolFormat, Words};
use crate::error::{Error, Result};

/// The words around a call in the format of Hermes.
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The words of Mistral's calls: before a call, and before its arguments.
const MISTRAL: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
/// Further calls after the first one in the format of Hermes.
const MORE_CALLS: &str = " (\"\\n\" call)*";

/// Returns the grammar of an answer that calls `tools` as `choice` requires, in `format`. The answer has one call, or
/// several if `is_parallel` and `choice` allows any of them. Returns `None` if the model may also answer without a
/// call. Formats without a grammar of their own have that of [`ToolFormat::Hermes`]. A [`ToolCallParser`](super::ToolCallParser) of the same format parses such an answer into calls of the
/// functions, with arguments of their schemas.
///
/// # Errors
/// If `choice` names a function that is not among `tools`, or `tools` is empty.
pub fn grammar(
    (format, words): (ToolFormat, &Words),
    tools: &[Tool],
    choice: &ToolChoice,
    is_parallel: bool,
) -> Result<Option<GrammarSource>> {
    let chosen: Vec<_> = match choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
        ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
    };
    if chosen.is_empty() {
        return Err(match choice {
            ToolChoice::Named(name) => Error::NoSuchTool { name: name.clone() },
            _ => Error::Tool {
                field: "tools",
                expected: "one function at least",
            },
        });
    }
    // A function that is required by its name is called once: models that may call it again would repeat the call until
    // they are cut off.
    let is_parallel = is_parallel && *choice == ToolChoice::Required;
    let (call, definitions) = schema_of_call(format, &chosen);
    let schema = |schema| with_definitions(schema, definitions);
    Ok(Some(match format {
        ToolFormat::Llama3 => GrammarSource::JsonSchema(schema(call).to_string()),
        ToolFormat::Mistral if words.token(ARGUMENTS).is_some() => {
            GrammarSource::Lark(named_calls(words, &chosen, is_parallel))
        }
        ToolFormat::Mistral => {
            let most = if is_parallel { Value::Null } else { json!(1) };
            let mut calls =
                json!({ "type": "array", "items": call, "minItems": 1, "maxItems": most });
            if is_parallel {
                calls.as_object_mut().expect("it is one").remove("maxItems");
            }
            let calls = schema(calls).to_string();
            match words.token(MISTRAL) {
                Some(token) => {
                    GrammarSource::Lark(format!("start: <[{token}]> json\njson: %json {calls}\n"))
                }
                None => GrammarSource::JsonSchema(calls),
            }
        }
        _ => {
            let more = if is_parallel { MORE_CALLS } else { "" };
            GrammarSource::Lark(format!(
                "start: call{more}\n{}json: %json {}\n",
                call_rule(words),
                schema(call)
            ))
        }
    }))
}

/// Returns the rule of a call in the format of Hermes.
fn call_rule(words: &Words) -> String {
    let (open, close) = (words.lark("", OPEN, "\n"), words.lark("\n", CLOSE, ""));
    format!("call: {open} json {close}\n")
}

/// Returns the grammar of Mistral's calls whose names are outside of JSON.
fn named_calls(words: &Words, tools: &[&Tool], is_parallel: bool) -> String {
    let more = if is_parallel { "+" } else { "" };
    let options: Vec<_> = (0..tools.len())
        .map(|index| format!("call{index}"))
        .collect();
    let mut grammar = format!("start: call{more}\ncall: {}\n", options.join(" | "));
    for (index, tool) in tools.iter().enumerate() {
        let mut parameters = tool.parameters.clone();
        if let Value::Object(keywords) = &mut parameters {
            keywords.entry("type").or_insert_with(|| "object".into());
        }
        let (open, separator) = (
            words.lark("", MISTRAL, &tool.name),
            words.lark("", ARGUMENTS, ""),
        );
        grammar += &format!(
            "call{index}: {open} {separator} arguments{index}\narguments{index}: %json {}\n",
            for_llguidance(parameters)
        );
    }
    grammar
}

/// Returns the grammar of an answer that has text and may call `tools`, in `format`. Each call is of one of them, with
/// arguments of its schema. Without `is_parallel` there is at most one call, and the answer ends after it. Returns
/// `None` for formats in which only the whole answer shows whether it is a call.
pub fn grammar_of_text_and_calls(
    (format, words): (ToolFormat, &Words),
    tools: &[Tool],
    is_parallel: bool,
) -> Option<GrammarSource> {
    if format != ToolFormat::Hermes || tools.is_empty() {
        return None;
    }
    let (call, definitions) = schema_of_call(format, &tools.iter().collect::<Vec<_>>());
    let start = if is_parallel {
        "(opening call)* TEXT"
    } else {
        "opening call | TEXT"
    };
    let opening = match words.token(OPEN) {
        // The text may spell the word in other tokens, which begin no call.
        Some(token) => format!("opening: TEXT <[{token}]>"),
        // Lazy: no text continues after the opening word.
        None => format!("opening[lazy]: TEXT \"{OPEN}\""),
    };
    Some(GrammarSource::Lark(format!(
        "start: {start}\n{opening}\ncall: \"\\n\" json {}\njson: %json {}\nTEXT: /(.|\\n)*/\n",
        words.lark("\n", CLOSE, ""),
        with_definitions(call, definitions)
    )))
}

/// Returns the grammar of an answer that either calls `tools`, in `format`, or is JSON of `schema`. With `is_parallel`
/// it may have several calls. Returns `None` for formats in which calls can be confused with JSON.
pub fn grammar_of_json_or_calls(
    (format, words): (ToolFormat, &Words),
    tools: &[Tool],
    schema: &Value,
    is_parallel: bool,
) -> Option<GrammarSource> {
    if format != ToolFormat::Hermes || tools.is_empty() {
        return None;
    }
    let (call, definitions) = schema_of_call(format, &tools.iter().collect::<Vec<_>>());
    let more = if is_parallel { MORE_CALLS } else { "" };
    Some(GrammarSource::Lark(format!(
        "start: answer | call{more}\n{}json: %json {}\nanswer: %json {}\n",
        call_rule(words),
        with_definitions(call, definitions),
        for_llguidance(schema.clone())
    )))
}

/// Returns the schema of calls with the schemas that it refers to, and with the white space that answers may have.
fn with_definitions(schema: Value, definitions: Map<String, Value>) -> Value {
    let Value::Object(mut schema) = schema else {
        unreachable!("schemas of calls are objects")
    };
    schema.insert("$defs".into(), Value::Object(definitions));
    for_llguidance(Value::Object(schema))
}

/// Returns the schema of a call of one of `tools`, and the schemas of their arguments, to which it refers.
fn schema_of_call(format: ToolFormat, tools: &[&Tool]) -> (Value, Map<String, Value>) {
    let mut definitions = Map::new();
    let calls = tools.iter().enumerate().map(|(index, tool)| {
        let place = format!("arguments{index}");
        let mut parameters = tool.parameters.clone();
        move_references(&mut parameters, &format!("#/$defs/{place}"));
        if let Value::Object(keywords) = &mut parameters {
            // The arguments must be an object even if the schema allows more.
            keywords.entry("type").or_insert_with(|| "object".into());
        }
        let arguments = json!({ "$ref": format!("#/$defs/{place}") });
        definitions.insert(place, parameters);
        let mut properties = Map::new();
        properties.insert("name".into(), json!({ "const": tool.name }));
        properties.insert(format.arguments().into(), arguments);
        json!({
            "type": "object",
            "properties": properties,
            "required": ["name", format.arguments()],
            "additionalProperties": false,
        })
    });
    let mut calls = calls.collect::<Vec<_>>();
    let call = if calls.len() == 1 {
        calls.remove(0)
    } else {
        json!({ "anyOf": calls })
    };
    (call, definitions)
}

/// Adjusts the references within a schema for its new `place` in another schema.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                match value {
                    Value::String(reference) if keyword == "$ref" && reference.starts_with('#') => {
                        *reference = format!("{place}{}", &reference[1..]);
                    }
                    value => move_references(value, place),
                }
            }
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| move_references(value, place)),
        _ => {}
    }
}
