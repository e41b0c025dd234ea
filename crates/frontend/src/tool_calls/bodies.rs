//! Parses the text between the words of a format into calls.

use serde_json::{Map, Value};

use super::{Tool, ToolCall, ToolFormat, python};

/// Maximum depth of nested values in Gemma's format.
const DEEPEST: usize = 64;

/// Returns the calls in `body`, the text between the words of `format`; `None` if it is something else. `tools` tell
/// which arguments are texts where the format does not.
pub(super) fn calls(format: ToolFormat, body: &str, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let body = body.trim();
    let calls = match format {
        ToolFormat::Hermes | ToolFormat::Xml if body.starts_with("<function=") => xml(body, tools),
        ToolFormat::SeedXml => xml(body, tools),
        ToolFormat::Hermes | ToolFormat::Xml | ToolFormat::Nemotron | ToolFormat::Command => {
            json(body)
        }
        ToolFormat::Glm => glm(body, tools).or_else(|| json(body)),
        ToolFormat::MiniMax => minimax(body, tools),
        ToolFormat::DeepSeek => sections(
            body,
            [
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
            ],
        ),
        ToolFormat::Kimi => sections(
            body,
            [
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
            ],
        ),
        ToolFormat::Lfm2 => python::calls(body).or_else(|| json(body)),
        ToolFormat::Granite | ToolFormat::Phi4 => several(body, ';'),
        ToolFormat::FunctionGemma => gemma(body, "<escape>"),
        ToolFormat::Gemma4 => gemma(body, "<|\"|>"),
        ToolFormat::Mistral => mistral(body),
        ToolFormat::Llama3 | ToolFormat::Python | ToolFormat::Harmony => None,
    };
    calls.filter(|calls| !calls.is_empty())
}

/// Returns whether `body` may be the beginning of calls that contain the closing word in a text.
pub(super) fn is_unclosed(format: ToolFormat, body: &str) -> bool {
    match format {
        ToolFormat::Hermes | ToolFormat::Xml | ToolFormat::SeedXml
            if body.trim_start().starts_with("<function=") =>
        {
            !body.trim_end().ends_with("</function>")
        }
        ToolFormat::Glm => {
            body.matches("<arg_value>").count() > body.matches("</arg_value>").count()
        }
        _ => ends_in_text(body),
    }
}

/// Returns whether the JSON in `text` ends within a string, so that the following text may be part of it.
fn ends_in_text(text: &str) -> bool {
    let (mut is_in_text, mut is_escaped) = (false, false);
    for byte in text.bytes() {
        (is_in_text, is_escaped) = match byte {
            _ if is_escaped => (is_in_text, false),
            b'\\' => (is_in_text, is_in_text),
            b'"' => (!is_in_text, false),
            _ => (is_in_text, false),
        };
    }
    is_in_text
}

fn json(text: &str) -> Option<Vec<ToolCall>> {
    ToolCall::all_from_json(&serde_json::from_str(text).ok()?)
}

/// Parses consecutive JSON values with `separator` or white space between them. Returns `None` if one is not a call.
pub(super) fn several(text: &str, separator: char) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        calls.extend(ToolCall::all_from_json(&values.next()?.ok()?)?);
        rest = rest[values.byte_offset()..]
            .trim_start()
            .trim_start_matches(separator)
            .trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

/// Parses the text after `[TOOL_CALLS]`.
fn mistral(text: &str) -> Option<Vec<ToolCall>> {
    if !text.contains("[ARGS]") {
        return several(text, ';');
    }
    let one = |call: &str| {
        let (name, arguments) = call.split_once("[ARGS]")?;
        let name = name.split("[CALL_ID]").next()?;
        ToolCall::new(name.trim(), arguments)
    };
    text.split("[TOOL_CALLS]").map(one).collect()
}

/// Parses calls that have `words` before them, before their arguments, and after them.
fn sections(text: &str, [open, separator, close]: [&str; 3]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for call in text.split(open).skip(1) {
        let call = call.split(close).next()?;
        let (before, after) = call.split_once(separator)?;
        let before = before.trim();
        calls.push(match after.split_once("```json") {
            // DeepSeek R1 and V3.
            Some((name, arguments)) if before == "function" => {
                ToolCall::new(name.trim(), arguments.trim().trim_end_matches("```"))?
            }
            // Kimi K2 counts its calls.
            _ => {
                let name = before.rsplit_once(':').map_or(before, |(name, count)| {
                    if count.bytes().all(|byte| byte.is_ascii_digit()) {
                        name
                    } else {
                        before
                    }
                });
                ToolCall::new(name.strip_prefix("functions.").unwrap_or(name), after)?
            }
        });
    }
    Some(calls)
}

/// Returns an argument of the function `name`: a text if its schema says so or if it is not JSON.
fn argument(tools: &[Tool], (name, key): (&str, &str), text: &str) -> Value {
    let schema = tools
        .iter()
        .find(|tool| tool.name == name)
        .map(|tool| &tool.parameters["properties"][key]);
    let is_text = |schema: &Value| {
        schema["type"] == "string"
            || schema["enum"]
                .as_array()
                .is_some_and(|values| values.iter().all(Value::is_string))
    };
    if schema.is_some_and(is_text) {
        return text.into();
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| match text.trim() {
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        _ => text.into(),
    })
}

/// Parses `<function=name><parameter=key>\nvalue\n</parameter></function>`, any number of times.
fn xml(text: &str, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for function in text.split("<function=").skip(1) {
        let (name, rest) = function.split_once('>')?;
        let rest = rest.trim_end().strip_suffix("</function>").unwrap_or(rest);
        let (name, mut arguments) = (name.trim(), Map::new());
        for parameter in rest.split("<parameter=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let value = value
                .rsplit_once("</parameter>")
                .map_or(value, |(value, _)| value);
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(
                key.trim().to_owned(),
                argument(tools, (name, key.trim()), value),
            );
        }
        calls.push(ToolCall::with(name, arguments)?);
    }
    Some(calls)
}

/// Parses `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
fn glm(text: &str, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let (name, rest) = text.split_once("<arg_key>").unwrap_or((text, ""));
    let (name, mut arguments) = (name.trim(), Map::new());
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !name.bytes().all(is_name) {
        return None;
    }
    for pair in rest.split("<arg_key>").filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once("</arg_key>")?;
        let (_, value) = value.split_once("<arg_value>")?;
        let (value, _) = value.split_once("</arg_value>")?;
        arguments.insert(
            key.trim().to_owned(),
            argument(tools, (name, key.trim()), value),
        );
    }
    Some(vec![ToolCall::with(name, arguments)?])
}

/// Parses `<invoke name="name"><parameter name="key">value</parameter></invoke>`, any number of times.
fn minimax(text: &str, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for call in text.split("<invoke name=").skip(1) {
        let (name, rest) = call.split_once('>')?;
        let (name, mut arguments) = (name.trim().trim_matches('"'), Map::new());
        for parameter in rest.split("<parameter name=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let (value, _) = value.rsplit_once("</parameter>")?;
            let key = key.trim().trim_matches('"');
            arguments.insert(key.to_owned(), argument(tools, (name, key), value));
        }
        calls.push(ToolCall::with(name, arguments)?);
    }
    Some(calls)
}

/// Parses `call:name{key:value, …}`, in which a text stands between two `quote`s.
fn gemma(text: &str, quote: &str) -> Option<Vec<ToolCall>> {
    let (name, rest) = text.strip_prefix("call:")?.split_once('{')?;
    let mut reader = Gemma { text: rest, quote };
    let arguments = reader.entries(0)?;
    reader.text.trim().is_empty().then_some(())?;
    Some(vec![ToolCall::with(name.trim(), arguments)?])
}

struct Gemma<'a> {
    text: &'a str,
    quote: &'a str,
}

impl Gemma<'_> {
    fn take(&mut self, word: &str) -> bool {
        self.text = self.text.trim_start();
        let rest = self.text.strip_prefix(word);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    /// Parses a text up to its closing quote.
    fn quoted(&mut self) -> Option<String> {
        let (text, rest) = self.text.split_once(self.quote)?;
        self.text = rest;
        Some(text.to_owned())
    }

    /// Parses entries up to `}`.
    fn entries(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut entries = Map::new();
        while !self.take("}") {
            let key = if self.take(self.quote) {
                let key = self.quoted()?;
                self.take(":").then_some(key)?
            } else {
                let (key, rest) = self.text.split_once(':')?;
                self.text = rest;
                key.trim().trim_matches('"').to_owned()
            };
            entries.insert(key, self.value(depth)?);
            self.take(",");
        }
        Some(entries)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        if self.take(self.quote) {
            return self.quoted().map(Value::String);
        }
        if self.take("{") {
            return self.entries(depth + 1).map(Value::Object);
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                items.push(self.value(depth + 1)?);
                self.take(",");
            }
            return Some(items.into());
        }
        let end = self.text.find([',', '}', ']'])?;
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        let word = word.trim();
        // An empty value would not move the reader on.
        (!word.is_empty()).then(|| serde_json::from_str(word).unwrap_or_else(|_| word.into()))
    }
}
