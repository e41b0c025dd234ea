//! `/openapi.json`: a description of the API for programs.

use std::sync::LazyLock;

use axum::Json;
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use crate::{
    anthropic, chat, completions, embeddings, llama, metrics_routes, models, ollama, predict,
    props, rerank, responses, sessions, stored_routes, text, timelines, tool_routes,
};

/// The OpenAPI document, generated from the endpoints and their types.
#[derive(OpenApi)]
#[openapi(
    info(title = "Triad", description = "Language models on this device, with the APIs of OpenAI, Anthropic and Ollama."),
    paths(
        chat::complete,
        completions::complete,
        responses::create,
        responses::input_tokens,
        stored_routes::response,
        stored_routes::delete_response,
        stored_routes::create,
        stored_routes::conversation_of,
        stored_routes::update,
        stored_routes::delete_conversation,
        stored_routes::items,
        stored_routes::add_items,
        stored_routes::item,
        stored_routes::delete_item,
        stored_routes::inputs,
        anthropic::create,
        anthropic::count_tokens,
        models::health,
        models::list,
        models::one,
        metrics_routes::metrics,
        props::props,
        text::tokenize,
        text::detokenize,
        text::apply_template,
        embeddings::create,
        embeddings::plain,
        embeddings::embed,
        rerank::rerank,
        predict::predict,
        sessions::list,
        sessions::save,
        sessions::restore,
        sessions::delete,
        timelines::one,
        tool_routes::list,
        tool_routes::call,
        llama::completion::completion,
        llama::completion::fill,
        llama::slots::slots,
        ollama::chat::chat,
        ollama::generate::generate,
        ollama::embed::embed,
        ollama::embed::embeddings,
        ollama::models::tags,
        ollama::models::ps,
        ollama::models::version,
        ollama::models::show,
        ollama::pull::pull,
        ollama::pull::delete
    ),
    modifiers(&Aliases, &OperationIds, &Refusals)
)]
struct Api;

/// The other paths of endpoints that have several.
const ALIASES: [(&str, &str); 11] = [
    (rerank::PATHS[0], rerank::PATHS[1]),
    (rerank::PATHS[0], rerank::PATHS[2]),
    (rerank::PATHS[0], rerank::PATHS[3]),
    ("/health", "/v1/health"),
    ("/v1/models", "/models"),
    ("/v1/chat/completions", "/chat/completions"),
    ("/v1/responses", "/responses"),
    ("/v1/responses/input_tokens", "/responses/input_tokens"),
    ("/completion", "/completions"),
    ("/embedding", "/embeddings"),
    ("/embed", "/"),
];

/// Adds the other paths of endpoints that have several.
struct Aliases;

impl Modify for Aliases {
    fn modify(&self, document: &mut Document) {
        let paths = &mut document.paths.paths;
        for (path, alias) in ALIASES {
            let Some(item) = paths.get(path).cloned() else {
                continue;
            };
            paths.insert(alias.to_owned(), item);
        }
    }
}

/// Names operations by their method and path, since several have the same function's name.
struct OperationIds;

impl Modify for OperationIds {
    fn modify(&self, document: &mut Document) {
        for (path, item) in &mut document.paths.paths {
            let operations = [
                ("get", &mut item.get),
                ("post", &mut item.post),
                ("put", &mut item.put),
                ("delete", &mut item.delete),
            ];
            let words = path.split(|letter: char| !letter.is_ascii_alphanumeric());
            let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
            for (method, operation) in operations {
                if let Some(operation) = operation {
                    let words = [&[method], &words[..]].concat();
                    operation.operation_id = Some(words.join("_"));
                }
            }
        }
    }
}

/// Adds the error statuses that every request with a body may return.
struct Refusals;

impl Modify for Refusals {
    fn modify(&self, document: &mut Document) {
        let refusals = [
            ("401", "The API key is missing or wrong"),
            ("403", "The Host header names another machine"),
            ("404", "There is no such model"),
            ("408", "The body did not arrive in time"),
            ("413", "The body is too large"),
            (
                "415",
                "A browser's Content-Type is not application/json, or the body is encoded",
            ),
            ("503", "The server is stopping or lacks memory"),
        ];
        for (path, item) in &mut document.paths.paths {
            // Errors of Anthropic and Ollama have other formats.
            let name = if path.starts_with("/api/") {
                Some("OllamaError")
            } else {
                (!path.starts_with("/v1/messages")).then_some("ErrorBody")
            };
            let schema = name.map(|name| RefOr::Ref(Ref::from_schema_name(name)));
            let content = ContentBuilder::new().schema(schema).build();
            for (status, description) in refusals {
                let Some(operation) = &mut item.post else {
                    continue;
                };
                let response = ResponseBuilder::new().description(description);
                let response = response
                    .content("application/json", content.clone())
                    .build();
                operation
                    .responses
                    .responses
                    .entry(status.to_owned())
                    .or_insert(RefOr::T(response));
            }
        }
    }
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(Api::openapi);

/// Returns the document.
pub(crate) async fn document() -> Json<&'static Document> {
    Json(&*DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_have_names_of_their_own() {
        let items = DOCUMENT.paths.paths.values();
        let operations = items.flat_map(|item| [&item.get, &item.post, &item.put, &item.delete]);
        let ids: Vec<_> = operations
            .flatten()
            .map(|operation| operation.operation_id.clone().unwrap())
            .collect();
        let different: BTreeSet<_> = ids.iter().collect();
        assert!(!ids.is_empty());
        assert_eq!(different.len(), ids.len());
    }
}
