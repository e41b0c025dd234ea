//! Parses calls in Python's syntax, with literals as arguments: `[weather(city="Oslo", days=3), time()]`.

use serde_json::{Map, Value};

use super::ToolCall;

/// Maximum depth of nested lists.
const DEEPEST: usize = 64;

/// Parses `text` as a list of calls or one call; returns `None` if it is neither.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let mut reader = Reader { text };
    let calls = if reader.take("[") {
        let calls = reader.separated("]", Reader::call)?;
        (!calls.is_empty()).then_some(calls)?
    } else {
        vec![reader.call()?]
    };
    reader.space();
    reader.text.is_empty().then_some(calls)
}

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.text = self.text.trim_start();
    }

    /// Skips `word` if the text continues with it. Returns whether it did.
    fn take(&mut self, word: &str) -> bool {
        self.space();
        let rest = self.text.strip_prefix(word);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    /// Parses items separated by commas, up to `end`.
    fn separated<T>(
        &mut self,
        end: &str,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        while !self.take(end) {
            if !all.is_empty() {
                self.take(",").then_some(())?;
                if self.take(end) {
                    break;
                }
            }
            all.push(one(self)?);
        }
        Some(all)
    }

    fn name(&mut self) -> Option<String> {
        self.space();
        let is_of_name = |letter: char| letter.is_alphanumeric() || "_.-".contains(letter);
        let end = self
            .text
            .find(|letter| !is_of_name(letter))
            .unwrap_or(self.text.len());
        let (name, rest) = self.text.split_at(end);
        self.text = rest;
        let is_name = name.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        is_name.then(|| name.to_owned())
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.name()?;
        self.take("(").then_some(())?;
        let arguments = self.separated(")", |reader| {
            let name = reader.name()?;
            reader.take("=").then_some(())?;
            Some((name, reader.value(0)?))
        })?;
        let arguments: Map<_, _> = arguments.into_iter().collect();
        Some(ToolCall {
            name,
            arguments: Value::Object(arguments).to_string(),
        })
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        self.space();
        let first = self.text.chars().next()?;
        match first {
            '"' | '\'' => self.string(first).map(Value::String),
            '[' | '(' => {
                self.text = &self.text[1..];
                let end = if first == '[' { "]" } else { ")" };
                self.separated(end, |reader| reader.value(depth + 1))
                    .map(Value::Array)
            }
            '{' => {
                self.text = &self.text[1..];
                let entries = self.separated("}", |reader| {
                    reader.space();
                    let quote = reader
                        .text
                        .chars()
                        .next()
                        .filter(|quote| "\"'".contains(*quote))?;
                    let key = reader.string(quote)?;
                    reader.take(":").then_some(())?;
                    Some((key, reader.value(depth + 1)?))
                })?;
                Some(Value::Object(entries.into_iter().collect()))
            }
            _ => self.word(),
        }
    }

    /// Parses a number, `True`, `False` or `None`, or these as in JSON.
    fn word(&mut self) -> Option<Value> {
        let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || "+-._".contains(letter);
        let end = self
            .text
            .find(|letter| !is_of_word(letter))
            .unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            number => serde_json::from_str(number).ok().filter(Value::is_number),
        }
    }

    /// Parses a string from its opening `quote` to the closing one.
    fn string(&mut self, quote: char) -> Option<String> {
        let (mut letters, mut string) = (self.text[1..].chars(), String::new());
        loop {
            match letters.next()? {
                letter if letter == quote => break,
                '\\' => match letters.next()? {
                    'n' => string.push('\n'),
                    't' => string.push('\t'),
                    'r' => string.push('\r'),
                    'u' => {
                        let digits = letters.as_str().get(..4)?;
                        string.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                        letters = letters.as_str()[4..].chars();
                    }
                    letter if "\\\"'".contains(letter) => string.push(letter),
                    // Python keeps the backslash of an unknown escape.
                    letter => string.extend(['\\', letter]),
                },
                letter => string.push(letter),
            }
        }
        self.text = letters.as_str();
        Some(string)
    }
}
