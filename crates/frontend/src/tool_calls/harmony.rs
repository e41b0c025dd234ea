//! Reads answers of gpt-oss: messages, each with a channel and perhaps a recipient.
//!
//! `<|channel|>analysis<|message|>` begins reasoning, `<|channel|>final<|message|>` the text for the user, and a header
//! with `to=functions.name` a call of that function. `<|end|>` or the next header ends a message.

use super::AnswerDelta;

const MESSAGE: &str = "<|message|>";
/// Words that end the text of a message.
const ENDS: [&str; 5] = [
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|start|>",
    "<|channel|>",
];
/// Beginnings of an answer that are a header.
const BEGINNINGS: [&str; 4] = ["<|channel|>", "<|start|>", "<|message|>", "to=functions."];
/// The recipients that are functions of the request.
const TO: &str = "to=functions.";

/// The kind of the message that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of the answer, which may continue a text of the prompt.
    Start,
    /// Between messages and in their headers.
    Header,
    Reasoning,
    Text,
    Call,
}

/// A reader of one answer.
#[derive(Debug)]
pub(super) struct HarmonyReader {
    state: State,
    /// Whether the answer may call functions.
    may_call: bool,
    /// Text that is not returned yet.
    pending: String,
}

impl HarmonyReader {
    pub(super) fn new(may_call: bool) -> Self {
        Self {
            state: State::Start,
            may_call,
            pending: String::new(),
        }
    }

    /// Adds text of the answer. Returns its pieces.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.advance(&mut deltas) {}
        deltas
    }

    /// Returns the remaining pieces after the end of the answer.
    pub(super) fn finish(mut self) -> Vec<AnswerDelta> {
        if self.state == State::Start {
            self.state = State::Text;
        }
        let rest = std::mem::take(&mut self.pending);
        self.delta(rest).into_iter().collect()
    }

    fn delta(&self, text: String) -> Option<AnswerDelta> {
        match self.state {
            _ if text.is_empty() => None,
            State::Start | State::Header => None,
            State::Reasoning => Some(AnswerDelta::Reasoning(text)),
            State::Text => Some(AnswerDelta::Text(text)),
            State::Call => Some(AnswerDelta::Arguments(text)),
        }
    }

    /// Makes one step. Returns whether another one may follow.
    fn advance(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        match self.state {
            State::Start => {
                let begin = self.pending.trim_start();
                if BEGINNINGS.iter().any(|word| begin.starts_with(word)) {
                    self.state = State::Header;
                } else if BEGINNINGS.iter().any(|word| word.starts_with(begin)) {
                    return false;
                } else {
                    self.state = State::Text;
                }
                true
            }
            State::Header => {
                let Some(end) = self.pending.find(MESSAGE) else {
                    return false;
                };
                let rest = self.pending.split_off(end + MESSAGE.len());
                let header = std::mem::replace(&mut self.pending, rest);
                let recipient = header.rfind(TO).map(|place| &header[place + TO.len()..]);
                let name = recipient.map(|rest| {
                    let end = rest.find(|letter: char| letter.is_whitespace() || letter == '<');
                    &rest[..end.unwrap_or(rest.len())]
                });
                self.state = match name {
                    Some(name) if self.may_call && !name.is_empty() => {
                        deltas.push(AnswerDelta::Call(name.to_owned()));
                        State::Call
                    }
                    _ if header.contains("analysis") => State::Reasoning,
                    _ => State::Text,
                };
                true
            }
            State::Reasoning | State::Text | State::Call => {
                let end = ENDS
                    .iter()
                    .filter_map(|word| Some((self.pending.find(word)?, word.len())))
                    .min();
                let (end, is_end) = match end {
                    Some((place, _)) => (place, true),
                    None => {
                        let begun = |word| super::parser::beginning_at_end(&self.pending, word);
                        let kept = ENDS.iter().map(|word| begun(word)).max().unwrap_or(0);
                        (self.pending.len() - kept, false)
                    }
                };
                let rest = self.pending.split_off(end);
                let text = std::mem::replace(&mut self.pending, rest);
                deltas.extend(self.delta(text));
                if is_end {
                    self.state = State::Header;
                }
                is_end
            }
        }
    }
}
