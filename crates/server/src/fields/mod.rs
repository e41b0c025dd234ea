//! The tables of request fields, with their effect in this server.
//!
//! The tables list every field that the APIs of OpenAI, Anthropic and Ollama, vLLM's server and llama.cpp's server have for the
//! same request. A field that would change the response is either used or refused by name: no request silently gets
//! another response than the one that it asks for. [`check`](RequestFields::check) compares a body with its table
//! before anything else happens. An unknown name is refused as well, as in OpenAI's and Anthropic's servers, because it
//! may be a misspelled option. A null field counts as missing.

mod chat;
mod check;
mod completions;
mod document;
mod embeddings;
mod host_tools;
mod llama;
mod messages;
mod ollama;
mod predict;
mod repeated;
mod rerank;
mod responses;
mod shared;
mod text;

pub use document::document;
pub(crate) use repeated::refuse_repeated;

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The field's name.
    pub name: &'static str,
    /// The APIs that have the field: `O`penAI's, `A`nthropic's, `V`LLM's, `L`lama.cpp's, olla`M`a's; `T` for Triad's
    /// own.
    pub apis: &'static str,
    /// The field's effect in this server.
    pub effect: Effect,
    /// The reason why the field has no effect, or the values that are expected instead.
    pub note: &'static str,
    /// The fields of the value, or of each item of an array. Empty if the value is not checked further.
    pub inner: &'static [Self],
}

/// The effect of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The field is used.
    Followed,
    /// The field is ignored: no value of it would change the response.
    Ignored,
    /// The field is refused, except with one of these JSON values, which request the default behavior.
    Refused(&'static [&'static str]),
}

/// The table of fields of one endpoint.
#[derive(Debug)]
pub struct RequestFields {
    /// The path of the endpoint.
    pub path: &'static str,
    groups: &'static [&'static [Field]],
}

impl RequestFields {
    /// Returns the top-level fields of the body.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().copied().flatten()
    }
}

/// The fields of `/v1/chat/completions`.
pub static CHAT: RequestFields = RequestFields {
    path: "/v1/chat/completions",
    groups: &[
        chat::FIELDS,
        chat::PROMPT,
        shared::LIMITS,
        shared::SAMPLING,
        shared::SEED,
        shared::STREAMS,
        shared::FORMS,
        shared::TEXTS,
        shared::VLLM,
        shared::LLAMA_COMMON,
        shared::LLAMA_OWN,
    ],
};

/// The fields of `/v1/completions`.
pub static COMPLETIONS: RequestFields = RequestFields {
    path: "/v1/completions",
    groups: &[
        completions::FIELDS,
        shared::LIMITS,
        shared::SAMPLING,
        shared::SEED,
        shared::STREAMS,
        shared::FORMS,
        shared::TEXTS,
        shared::VLLM,
        shared::LLAMA_COMMON,
        shared::LLAMA_OWN,
    ],
};

/// The fields of `/v1/responses`.
pub static RESPONSES: RequestFields = RequestFields {
    path: "/v1/responses",
    groups: &[
        responses::FIELDS,
        shared::SAMPLING,
        shared::SEED,
        shared::TEXTS,
        shared::VLLM,
    ],
};

/// The fields of `/v1/messages`.
pub static MESSAGES: RequestFields = RequestFields {
    path: "/v1/messages",
    groups: &[messages::FIELDS],
};

/// The fields of `/v1/messages/count_tokens`.
pub static COUNT_TOKENS: RequestFields = RequestFields {
    path: "/v1/messages/count_tokens",
    groups: &[messages::COUNT],
};

/// The fields of `/v1/responses/input_tokens`.
pub static INPUT_TOKENS: RequestFields = RequestFields {
    path: "/v1/responses/input_tokens",
    groups: &[responses::COUNT],
};

/// The fields of `/v1/conversations`.
pub static CONVERSATIONS: RequestFields = RequestFields {
    path: "/v1/conversations",
    groups: &[responses::ITEMS, responses::METADATA],
};

/// The fields of `/v1/conversations/{id}`.
pub static CONVERSATION: RequestFields = RequestFields {
    path: "/v1/conversations/{id}",
    groups: &[responses::METADATA],
};

/// The fields of `/v1/conversations/{id}/items`.
pub static CONVERSATION_ITEMS: RequestFields = RequestFields {
    path: "/v1/conversations/{id}/items",
    groups: &[responses::ITEMS],
};

/// The fields of `/v1/embeddings`, `/embeddings` and `/embedding`.
pub static EMBEDDINGS: RequestFields = RequestFields {
    path: "/v1/embeddings",
    groups: &[embeddings::FIELDS],
};

/// The fields of `/rerank`, `/v1/rerank`, `/reranking` and `/v1/reranking`.
pub static RERANK: RequestFields = RequestFields {
    path: "/rerank",
    groups: &[rerank::FIELDS],
};

/// The fields of `/predict`.
pub static PREDICT: RequestFields = RequestFields {
    path: "/predict",
    groups: &[predict::FIELDS],
};

/// The fields of `/embed`.
pub static EMBED: RequestFields = RequestFields {
    path: "/embed",
    groups: &[embeddings::EMBED],
};

/// The fields of `/mcp/call`.
pub static CALL: RequestFields = RequestFields {
    path: "/mcp/call",
    groups: &[host_tools::FIELDS],
};

/// The fields of `/tokenize`.
pub static TOKENIZE: RequestFields = RequestFields {
    path: "/tokenize",
    groups: &[text::TOKENIZE, chat::PROMPT],
};

/// The fields of `/detokenize`.
pub static DETOKENIZE: RequestFields = RequestFields {
    path: "/detokenize",
    groups: &[text::DETOKENIZE],
};

/// The fields of `/sessions/{name}/save`.
pub static SAVE: RequestFields = RequestFields {
    path: "/sessions/{name}/save",
    groups: &[text::SAVE],
};

/// The fields of `/sessions/{name}/restore`.
pub static RESTORE: RequestFields = RequestFields {
    path: "/sessions/{name}/restore",
    groups: &[text::RESTORE],
};

/// The fields of `/completion`.
pub static LLAMA_COMPLETION: RequestFields = RequestFields {
    path: "/completion",
    groups: &[
        llama::COMPLETION,
        llama::HOW,
        shared::SAMPLING,
        shared::FORMS,
        shared::LLAMA_COMMON,
    ],
};

/// The fields of `/infill`.
pub static LLAMA_INFILL: RequestFields = RequestFields {
    path: "/infill",
    groups: &[
        llama::INFILL,
        llama::HOW,
        shared::SAMPLING,
        shared::LLAMA_COMMON,
    ],
};

/// The fields of `/api/chat`.
pub static OLLAMA_CHAT: RequestFields = RequestFields {
    path: "/api/chat",
    groups: &[ollama::CHAT, ollama::HOW],
};

/// The fields of `/api/generate`.
pub static OLLAMA_GENERATE: RequestFields = RequestFields {
    path: "/api/generate",
    groups: &[ollama::GENERATE, ollama::HOW],
};

/// The fields of `/api/embed`.
pub static OLLAMA_EMBED: RequestFields = RequestFields {
    path: "/api/embed",
    groups: &[ollama::EMBED],
};

/// The fields of `/api/embeddings`.
pub static OLLAMA_EMBEDDINGS: RequestFields = RequestFields {
    path: "/api/embeddings",
    groups: &[ollama::EMBEDDINGS],
};

/// The fields of `/api/show`.
pub static OLLAMA_SHOW: RequestFields = RequestFields {
    path: "/api/show",
    groups: &[ollama::SHOW],
};

/// The fields of `/api/pull`.
pub static OLLAMA_PULL: RequestFields = RequestFields {
    path: "/api/pull",
    groups: &[ollama::PULL],
};

/// The fields of `/api/delete`.
pub static OLLAMA_DELETE: RequestFields = RequestFields {
    path: "/api/delete",
    groups: &[ollama::DELETE],
};

/// Returns all tables.
pub fn requests() -> [&'static RequestFields; 27] {
    [
        &CHAT,
        &COMPLETIONS,
        &RESPONSES,
        &INPUT_TOKENS,
        &CONVERSATIONS,
        &CONVERSATION,
        &CONVERSATION_ITEMS,
        &MESSAGES,
        &COUNT_TOKENS,
        &EMBEDDINGS,
        &EMBED,
        &PREDICT,
        &RERANK,
        &CALL,
        &TOKENIZE,
        &DETOKENIZE,
        &SAVE,
        &RESTORE,
        &LLAMA_COMPLETION,
        &LLAMA_INFILL,
        &OLLAMA_CHAT,
        &OLLAMA_GENERATE,
        &OLLAMA_EMBED,
        &OLLAMA_EMBEDDINGS,
        &OLLAMA_SHOW,
        &OLLAMA_PULL,
        &OLLAMA_DELETE,
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
