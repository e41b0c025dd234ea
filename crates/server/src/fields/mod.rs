//! The fields of requests, and what this server does with each.
//!
//! The tables name every field that the APIs of OpenAI and Anthropic and the servers of vLLM and llama.cpp have for the same
//! request. A field that would change the answer is followed, or refused by its name; no request gets another answer than the
//! one that it asks for. [`check`](RequestFields::check) reads a body by its table before anything else does. A name that no
//! table has is refused, too, as OpenAI's and Anthropic's servers do it: it may be a misspelled option. A field that is null
//! is as one that is not there.

mod chat;
mod check;
mod completions;
mod document;
mod embeddings;
mod messages;
mod responses;
mod shared;
mod text;

pub use document::document;

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The APIs that have it: `O`penAI's, `A`nthropic's, `V`LLM's, `L`lama.cpp's; `T` for Triad's own.
    pub apis: &'static str,
    /// What it does here.
    pub effect: Effect,
    /// Why it has no effect, or what is expected in its place.
    pub note: &'static str,
    /// The fields of its value, or of each item of it; empty where these are free.
    pub inner: &'static [Self],
}

/// What a field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What it asks for.
    Followed,
    /// Nothing: no value of it would change the answer.
    Ignored,
    /// It is refused, unless it has one of these values, in JSON, which ask for what happens anyway.
    Refused(&'static [&'static str]),
}

/// The fields of one kind of request.
#[derive(Debug)]
pub struct RequestFields {
    /// Where it is sent.
    pub path: &'static str,
    groups: &'static [&'static [Field]],
}

impl RequestFields {
    /// Returns the fields at the top of the body.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().copied().flatten()
    }
}

/// `/v1/chat/completions`.
pub static CHAT: RequestFields = RequestFields {
    path: "/v1/chat/completions",
    groups: &[
        chat::FIELDS,
        chat::PROMPT,
        shared::LIMITS,
        shared::SAMPLING,
        shared::STREAMS,
        shared::FORMS,
        shared::TEXTS,
        shared::VLLM,
        shared::LLAMA,
    ],
};

/// `/v1/completions`.
pub static COMPLETIONS: RequestFields = RequestFields {
    path: "/v1/completions",
    groups: &[
        completions::FIELDS,
        shared::LIMITS,
        shared::SAMPLING,
        shared::STREAMS,
        shared::FORMS,
        shared::TEXTS,
        shared::VLLM,
        shared::LLAMA,
    ],
};

/// `/v1/responses`.
pub static RESPONSES: RequestFields = RequestFields {
    path: "/v1/responses",
    groups: &[
        responses::FIELDS,
        shared::SAMPLING,
        shared::TEXTS,
        shared::VLLM,
    ],
};

/// `/v1/messages`.
pub static MESSAGES: RequestFields = RequestFields {
    path: "/v1/messages",
    groups: &[messages::FIELDS],
};

/// `/v1/embeddings`.
pub static EMBEDDINGS: RequestFields = RequestFields {
    path: "/v1/embeddings",
    groups: &[embeddings::FIELDS],
};

/// `/tokenize`.
pub static TOKENIZE: RequestFields = RequestFields {
    path: "/tokenize",
    groups: &[text::TOKENIZE, chat::PROMPT],
};

/// `/detokenize`.
pub static DETOKENIZE: RequestFields = RequestFields {
    path: "/detokenize",
    groups: &[text::DETOKENIZE],
};

/// Returns all tables.
pub fn requests() -> [&'static RequestFields; 7] {
    [
        &CHAT,
        &COMPLETIONS,
        &RESPONSES,
        &MESSAGES,
        &EMBEDDINGS,
        &TOKENIZE,
        &DETOKENIZE,
    ]
}

const fn followed(name: &'static str, apis: &'static str) -> Field {
    Field {
        name,
        apis,
        effect: Effect::Followed,
        note: "",
        inner: &[],
    }
}

const fn noted(name: &'static str, apis: &'static str, note: &'static str) -> Field {
    Field {
        name,
        apis,
        effect: Effect::Followed,
        note,
        inner: &[],
    }
}

const fn with(name: &'static str, apis: &'static str, inner: &'static [Field]) -> Field {
    Field {
        name,
        apis,
        effect: Effect::Followed,
        note: "",
        inner,
    }
}

const fn ignored(name: &'static str, apis: &'static str, note: &'static str) -> Field {
    Field {
        name,
        apis,
        effect: Effect::Ignored,
        note,
        inner: &[],
    }
}

const fn refused(
    name: &'static str,
    apis: &'static str,
    neutral: &'static [&'static str],
    note: &'static str,
) -> Field {
    Field {
        name,
        apis,
        effect: Effect::Refused(neutral),
        note,
        inner: &[],
    }
}
