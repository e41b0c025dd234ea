//! The metrics of the server: counters and histograms. [`metrics_routes`](crate::metrics_routes) writes them.

use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use triad_engine::Finish;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    path: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    model: String,
    finish: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model: String,
    reason: &'static str,
}

/// The reasons why memory is given back.
pub(crate) mod reason {
    pub(crate) const IDLE: &str = "idle";
    pub(crate) const PRESSURE: &str = "pressure";
    pub(crate) const KEEP_ALIVE: &str = "keep_alive";
    pub(crate) const OTHER_MODEL: &str = "other_model";
    pub(crate) const CHANGED: &str = "changed";
    pub(crate) const DELETED: &str = "deleted";
}

type Times = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// All metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    prompt_tokens: Family<ModelLabels, Counter>,
    cached_tokens: Family<ModelLabels, Counter>,
    answer_tokens: Family<ModelLabels, Counter>,
    answers: Family<AnswerLabels, Counter>,
    decoded_pictures: Family<ModelLabels, Counter>,
    released: Family<ReasonLabels, Counter>,
    unloaded: Family<ReasonLabels, Counter>,
    queue: Times,
    first_token: Times,
    between_tokens: Times,
}

/// Creates a histogram from 1 ms to 65 s.
fn long_times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// Creates a histogram from 0.1 ms to 3 s.
fn short_times() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 16))
}

impl Metrics {
    /// Creates all metrics with the value 0.
    pub(crate) fn new() -> Self {
        Self {
            registry: Registry::with_prefix("triad"),
            requests: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            answer_tokens: Family::default(),
            answers: Family::default(),
            decoded_pictures: Family::default(),
            released: Family::default(),
            unloaded: Family::default(),
            queue: Family::new_with_constructor(long_times),
            first_token: Family::new_with_constructor(long_times),
            between_tokens: Family::new_with_constructor(short_times),
        }
        .registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Requests by path and status",
            self.requests.clone(),
        );
        registry.register(
            "prompt_tokens",
            "Tokens of prompts",
            self.prompt_tokens.clone(),
        );
        registry.register(
            "cached_tokens",
            "Tokens of prompts that were not computed again",
            self.cached_tokens.clone(),
        );
        registry.register(
            "answer_tokens",
            "Tokens of answers",
            self.answer_tokens.clone(),
        );
        registry.register("answers", "Answers by how they ended", self.answers.clone());
        registry.register(
            "decoded_pictures",
            "Pictures that were decoded, without those whose rows were known",
            self.decoded_pictures.clone(),
        );
        registry.register(
            "released_bytes",
            "Bytes of keys and values that were given back to the system",
            self.released.clone(),
        );
        registry.register(
            "unloaded",
            "Times that a model left the memory",
            self.unloaded.clone(),
        );
        registry.register(
            "queue_seconds",
            "From a request to its admission",
            self.queue.clone(),
        );
        registry.register(
            "first_token_seconds",
            "From a request to its answer's first token",
            self.first_token.clone(),
        );
        registry.register(
            "between_tokens_seconds",
            "From a token of an answer to the next",
            self.between_tokens.clone(),
        );
        self
    }

    /// Adds a collector, which is called when the metrics are read.
    pub(crate) fn watch(&mut self, collector: Box<dyn Collector>) {
        self.registry.register_collector(collector);
    }

    /// Counts a response with this status.
    pub(crate) fn answered(&self, path: String, status: u16) {
        self.requests
            .get_or_create(&RequestLabels { path, status })
            .inc();
    }

    /// Returns all metrics as OpenMetrics text.
    pub(crate) fn text(&self) -> String {
        let mut page = String::new();
        // Writing to a `String` doesn't fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    /// Returns the metrics of a model.
    pub(crate) fn of_model(&self, name: &str) -> ModelMetrics {
        let labels = ModelLabels {
            model: name.to_owned(),
        };
        ModelMetrics {
            name: name.to_owned(),
            prompt_tokens: self.prompt_tokens.get_or_create(&labels).clone(),
            cached_tokens: self.cached_tokens.get_or_create(&labels).clone(),
            answer_tokens: self.answer_tokens.get_or_create(&labels).clone(),
            answers: self.answers.clone(),
            decoded_pictures: self.decoded_pictures.get_or_create(&labels).clone(),
            released: self.released.clone(),
            unloaded: self.unloaded.clone(),
            queue: self.queue.get_or_create(&labels).clone(),
            first_token: self.first_token.get_or_create(&labels).clone(),
            between_tokens: self.between_tokens.get_or_create(&labels).clone(),
        }
    }
}

/// The metrics of one model.
#[derive(Clone)]
pub(crate) struct ModelMetrics {
    name: String,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    answer_tokens: Counter,
    answers: Family<AnswerLabels, Counter>,
    decoded_pictures: Counter,
    released: Family<ReasonLabels, Counter>,
    unloaded: Family<ReasonLabels, Counter>,
    queue: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
}

impl ModelMetrics {
    /// Records that a request was admitted after `waited`.
    pub(crate) fn admitted(&self, waited: Duration) {
        self.queue.observe(waited.as_secs_f64());
    }

    /// Records that a completion of `tokens` tokens ended. `prompt` is the number of tokens of its prompt, and how many
    /// of them were cached; it is `None` if another completion has already counted the prompt.
    pub(crate) fn ended(&self, finish: Finish, tokens: usize, prompt: Option<(usize, usize)>) {
        if let Some((prompt, cached)) = prompt {
            self.prompt_tokens.inc_by(prompt as u64);
            self.cached_tokens.inc_by(cached as u64);
        }
        self.answer_tokens.inc_by(tokens as u64);
        self.count(match finish {
            Finish::EndToken => "end_token",
            Finish::StopString => "stop_string",
            Finish::Length => "length",
            Finish::ContextFull => "context_full",
            Finish::Cancelled => "cancelled",
        });
    }

    /// Counts a completion by the reason of its end. Called directly if it failed or was cancelled.
    pub(crate) fn count(&self, finish: &'static str) {
        self.answers
            .get_or_create(&AnswerLabels {
                model: self.name.clone(),
                finish,
            })
            .inc();
    }

    /// Counts a picture that is decoded.
    pub(crate) fn decoded_picture(&self) {
        self.decoded_pictures.inc();
    }

    /// Counts bytes of keys and values that were given back to the system.
    pub(crate) fn released(&self, reason: &'static str, bytes: u64) {
        self.released
            .get_or_create(&self.with(reason))
            .inc_by(bytes);
    }

    /// Counts that the model left the memory.
    pub(crate) fn unloaded(&self, reason: &'static str) {
        self.unloaded.get_or_create(&self.with(reason)).inc();
    }

    fn with(&self, reason: &'static str) -> ReasonLabels {
        ReasonLabels {
            model: self.name.clone(),
            reason,
        }
    }

    /// Returns a clock for the tokens of a completion. Its request arrived at `arrived`.
    pub(crate) fn clock(&self, arrived: Instant) -> TokenClock<'_> {
        TokenClock {
            metrics: self,
            arrived,
            latest: None,
        }
    }
}

/// A clock that records the latencies of a completion's tokens.
pub(crate) struct TokenClock<'a> {
    metrics: &'a ModelMetrics,
    arrived: Instant,
    latest: Option<Instant>,
}

impl TokenClock<'_> {
    /// Records the latency of a token.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        match self.latest.replace(now) {
            None => self
                .metrics
                .first_token
                .observe((now - self.arrived).as_secs_f64()),
            Some(latest) => self
                .metrics
                .between_tokens
                .observe((now - latest).as_secs_f64()),
        }
    }
}
