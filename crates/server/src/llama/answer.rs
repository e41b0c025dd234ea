//! Completions in the format of llama.cpp's server.

use std::time::{Duration, Instant};

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use triad_engine::Finish;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::jobs::{Answers, End, StreamItem};
use crate::reply::Reply;
use crate::sse::{self, Render};
use crate::usage::Timings;

/// A completion, or a part of a streamed one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completed {
    index: usize,
    /// The text, or more of it. Empty in the last part of a stream.
    content: String,
    /// Always empty: `/tokenize` returns tokens.
    tokens: Vec<u32>,
    /// Always 0.
    id_slot: usize,
    /// Whether the completion has ended.
    stop: bool,
    model: String,
    /// Tokens of the completion so far.
    tokens_predicted: usize,
    /// Tokens of the prompt.
    tokens_evaluated: usize,
    #[serde(flatten)]
    #[schema(inline)]
    ended: Option<Ended>,
}

/// How a completion ended.
#[derive(Debug, Serialize, ToSchema)]
struct Ended {
    /// `eos`, `word` or `limit`.
    stop_type: &'static str,
    /// The stop string that ended the completion.
    stopping_word: String,
    has_new_line: bool,
    /// Always false: prompts are never cut.
    truncated: bool,
    /// Tokens of the prompt that were cached, and of the completion.
    tokens_cached: usize,
    timings: Option<Timings>,
    generation_settings: GenerationSettings,
    prompt: String,
}

/// Options of a completion.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct GenerationSettings {
    /// -1 means no limit.
    pub(crate) n_predict: i64,
    pub(crate) n_ctx: usize,
    pub(crate) seed: u64,
    pub(crate) temperature: f32,
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) repeat_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
}

/// Limits of a completion besides its number of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The time after the first token, from the first line end on.
    pub(crate) time: Option<Duration>,
    /// The spaces and tabs with which each line but the first has to begin.
    pub(crate) indent: usize,
}

/// A completion as generated so far.
pub(crate) struct Answer {
    reply: Reply,
    settings: GenerationSettings,
    /// The maximum time after the first token, from the first line end on.
    time: Option<Duration>,
    /// The text of the prompt, which the last part repeats.
    prompt: String,
    text: String,
    lines: Lines,
    /// The bytes of `text` that were returned.
    sent: usize,
    tokens: usize,
    /// The time of the first token.
    first: Option<Instant>,
    /// Whether a limit of this module ended the completion.
    is_cut: bool,
    /// The fields of the response, by their paths; all if empty.
    fields: Vec<String>,
}

impl Answer {
    /// Creates an empty completion.
    pub(crate) fn new(
        (reply, prompt): (Reply, String),
        settings: GenerationSettings,
        limits: Limits,
        fields: Vec<String>,
    ) -> Self {
        Self {
            reply,
            settings,
            time: limits.time,
            prompt,
            text: String::new(),
            lines: Lines::new(limits.indent),
            sent: 0,
            tokens: 0,
            first: None,
            is_cut: false,
            fields,
        }
    }

    /// Returns the response: a stream of events, or one object.
    ///
    /// # Errors
    /// If generation fails before the response begins.
    pub(crate) async fn respond(
        mut self,
        mut answers: Answers,
        streams: bool,
    ) -> ApiResult<Response> {
        if streams {
            return Ok(sse::respond(answers, self));
        }
        while let Some(part) = answers.parts.recv().await {
            if let StreamItem::Failed(error) = part {
                return Err(error);
            }
            self.take(part);
            if self.is_cut {
                // Dropping the parts cancels the rest.
                break;
            }
        }
        if !self.is_cut {
            self.reply.finish(0)?;
        }
        Ok(Json(self.shown(&self.last(self.text.clone()))).into_response())
    }

    /// Takes a part of the completion, unless a limit has ended it.
    fn take(&mut self, part: StreamItem) {
        match part {
            _ if self.is_cut => {}
            StreamItem::Prompt { .. } | StreamItem::Begun { .. } | StreamItem::Failed(_) => {}
            StreamItem::Text { text, count, .. } => {
                self.text.push_str(&text);
                self.tokens += count;
                let first = *self.first.get_or_insert_with(Instant::now);
                if let Some(place) = self.lines.read(&text) {
                    self.text.truncate(place);
                    self.is_cut = true;
                }
                let is_late = self.time.is_some_and(|time| first.elapsed() > time);
                self.is_cut |= is_late && self.lines.has_end;
            }
            StreamItem::End { end, .. } => self.end(end),
        }
    }

    fn end(&mut self, end: End) {
        self.tokens = end.tokens;
        self.reply.end(0, end);
    }

    fn piece(&self, content: String) -> Completed {
        Completed {
            index: 0,
            content,
            tokens: Vec::new(),
            id_slot: 0,
            stop: false,
            model: self.reply.model.name().to_owned(),
            tokens_predicted: self.tokens,
            tokens_evaluated: self.reply.usage.prompt_tokens,
            ended: None,
        }
    }

    fn last(&self, content: String) -> Completed {
        let stop_type = match self.reply.finish(0) {
            Ok(Finish::EndToken) => "eos",
            Ok(Finish::StopString) => "word",
            _ => "limit",
        };
        let cached = self.reply.timings.map_or(0, |timings| timings.cache_n);
        Completed {
            stop: true,
            ended: Some(Ended {
                stop_type,
                stopping_word: self.reply.stop(0).unwrap_or_default().to_owned(),
                has_new_line: self.text.contains('\n'),
                truncated: false,
                tokens_cached: cached + self.tokens,
                timings: self.reply.timings,
                generation_settings: self.settings,
                prompt: self.prompt.clone(),
            }),
            ..self.piece(content)
        }
    }

    /// Returns a part with the fields that the request wants, by their paths.
    fn shown(&self, part: &Completed) -> Value {
        let whole = json!(part);
        if self.fields.is_empty() {
            return whole;
        }
        let field = |path: &String| {
            let pointer = format!("/{path}");
            Some((path.clone(), whole.pointer(&pointer)?.clone()))
        };
        Value::Object(self.fields.iter().filter_map(field).collect::<Map<_, _>>())
    }

    /// Returns the event of the text that was not sent yet. The beginning of a line is kept back until it is known
    /// whether the line is a part of the completion.
    fn rest(&mut self, is_over: bool) -> Option<Event> {
        let open = self
            .lines
            .open
            .filter(|_| !is_over && self.lines.indent > 0);
        let end = open.unwrap_or(self.text.len());
        let text = self
            .text
            .get(self.sent..end)
            .filter(|text| !text.is_empty())?;
        let event = sse::json(&self.piece(text.to_owned()));
        self.sent = end;
        Some(event)
    }
}

impl Render for Answer {
    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        if let StreamItem::Failed(error) = part {
            return vec![failed(&error)];
        }
        let was_over = self.is_cut || self.reply.is_complete();
        self.take(part);
        let is_over = self.is_cut || self.reply.is_complete();
        let mut events = Vec::new();
        events.extend(self.rest(is_over));
        if is_over && !was_over {
            events.push(sse::json(&self.shown(&self.last(String::new()))));
        }
        events
    }

    fn end(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn is_over(&self) -> bool {
        self.is_cut
    }
}

fn failed(error: &ApiError) -> Event {
    sse::json(&error.body())
}

/// The lines of a text that is read part by part. Each part is read once.
struct Lines {
    /// The spaces and tabs with which each line but the first has to begin.
    indent: usize,
    /// The number of bytes that were read.
    read: usize,
    /// The place of the latest line end, if only spaces and tabs follow it.
    open: Option<usize>,
    has_end: bool,
}

impl Lines {
    fn new(indent: usize) -> Self {
        Self {
            indent,
            read: 0,
            open: None,
            has_end: false,
        }
    }

    /// Reads more text. Returns the place of the first line end that is followed by a line with less indentation.
    fn read(&mut self, more: &str) -> Option<usize> {
        for byte in more.bytes() {
            let place = self.read;
            self.read += 1;
            match (byte, self.open) {
                (b'\n', _) => (self.open, self.has_end) = (Some(place), true),
                (b' ' | b'\t', _) | (_, None) => {}
                (_, Some(end)) => {
                    self.open = None;
                    // A blank line may have any indentation.
                    if byte != b'\r' && place - end - 1 < self.indent {
                        return Some(end);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the place of the first line end before a line with less indentation, in a text of these parts.
    fn outdented<'a>(parts: impl IntoIterator<Item = &'a str>, indent: usize) -> Option<usize> {
        let mut lines = Lines::new(indent);
        parts.into_iter().find_map(|part| lines.read(part))
    }

    const TEXT: &str = "a\n    b\n\n  \r\n    c\n  d\n    e";
    const END: usize = "a\n    b\n\n  \r\n    c".len();

    #[test]
    fn a_line_with_less_indentation_ends_the_text_before_it() {
        assert_eq!(outdented([TEXT], 4), Some(END));
        assert_eq!(outdented([TEXT], 2), None);
        assert_eq!(outdented([TEXT], 0), None);
        assert_eq!(outdented(["a\n  "], 4), None);
        assert_eq!(outdented(["a\n\tb"], 1), None);
    }

    #[test]
    fn a_line_is_the_same_in_one_part_and_in_several() {
        for place in 0..=TEXT.len() {
            let (one, other) = TEXT.split_at(place);
            assert_eq!(outdented([one, other], 4), Some(END), "{place}");
        }
        let letters = (0..TEXT.len()).map(|place| &TEXT[place..=place]);
        assert_eq!(outdented(letters, 4), Some(END));
    }

    #[test]
    fn a_search_for_lines_goes_on_where_it_stopped() {
        // A search of the whole text for each part would read 20 GB.
        let parts = std::iter::repeat_n(" ", 200_000);
        assert_eq!(
            outdented(["a\n"].into_iter().chain(parts), usize::MAX),
            None
        );
    }
}
