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
    limits: Limits,
    /// The text of the prompt, which the last part repeats.
    prompt: String,
    text: String,
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
            limits,
            prompt,
            text: String::new(),
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
            StreamItem::Prompt { .. } | StreamItem::Failed(_) => {}
            StreamItem::Text { text, count, .. } => {
                self.text.push_str(&text);
                self.tokens += count;
                let first = *self.first.get_or_insert_with(Instant::now);
                if let Some(place) = outdented(&self.text, self.limits.indent) {
                    self.text.truncate(place);
                    self.is_cut = true;
                }
                let is_late = self.limits.time.is_some_and(|time| first.elapsed() > time);
                self.is_cut |= is_late && self.text.contains('\n');
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
        let mut end = self.text.len();
        if self.limits.indent > 0 && !is_over {
            let line = self.text.rfind('\n');
            let is_blank = |place: usize| self.text[place + 1..].trim().is_empty();
            if let Some(place) = line.filter(|place| is_blank(*place)) {
                end = place;
            }
        }
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
}

fn failed(error: &ApiError) -> Event {
    sse::json(&error.body())
}

/// Returns the place of the first line end that is followed by a line with less than `indent` spaces and tabs before its
/// text.
fn outdented(text: &str, indent: usize) -> Option<usize> {
    if indent == 0 {
        return None;
    }
    let is_outdented = |place: &usize| {
        let line = &text[place + 1..];
        let rest = line.trim_start_matches([' ', '\t']);
        let is_blank = rest.is_empty() || rest.starts_with(['\n', '\r']);
        !is_blank && line.len() - rest.len() < indent
    };
    text.match_indices('\n')
        .map(|(place, _)| place)
        .find(is_outdented)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_less_indentation_ends_the_text_before_it() {
        let text = "a\n    b\n\n    c\n  d\n    e";
        assert_eq!(outdented(text, 4), Some("a\n    b\n\n    c".len()));
        assert_eq!(outdented(text, 2), None);
        assert_eq!(outdented(text, 0), None);
        assert_eq!(outdented("a\n  ", 4), None);
        assert_eq!(outdented("a\n\tb", 1), None);
    }
}
