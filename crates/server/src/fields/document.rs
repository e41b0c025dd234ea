//! The tables of fields as a page of the documentation.

use std::fmt::Write;

use super::{Effect, Field, requests};

const BEGINNING: &str = "\
# The fields of requests

This page is generated from the tables in [`crates/server/src/fields`](../crates/server/src/fields/mod.rs), which the \
[server](guide/serve.md) uses to check requests. A test compares the two and sends each field. O, A, V, L and M are the APIs of \
OpenAI and Anthropic and the servers of vLLM, llama.cpp and Ollama. T is Triad's own API.

A field that would change the response is either followed or refused with status 400 and its name. An unknown name is \
refused as well, at any depth, as in OpenAI's and Anthropic's servers, because it may be a misspelled option. A null value \
counts as a missing field, except that it removes the metadata of a conversation. A whole number may be written with a point \
or an exponent, such as `40.0` or `4e1`. `/apply-template` takes the fields of `/v1/chat/completions`.
";

/// Returns the page in Markdown.
pub fn document() -> String {
    let mut page = BEGINNING.to_owned();
    for request in requests() {
        // Writing to a `String` doesn't fail.
        let _ = write!(
            page,
            "\n## `{}`\n\n| field | of | here | |\n| --- | --- | --- | --- |\n",
            request.path
        );
        request.fields().for_each(|field| add(&mut page, "", field));
    }
    page
}

fn add(page: &mut String, parent: &str, field: &Field) {
    let path = if parent.is_empty() {
        field.name.to_owned()
    } else {
        format!("{parent}.{}", field.name)
    };
    let here = match field.effect {
        Effect::Followed => "followed".to_owned(),
        Effect::Ignored => "no effect".to_owned(),
        Effect::Refused([]) => "refused".to_owned(),
        Effect::Refused(neutral) => {
            let neutral: Vec<_> = neutral.iter().map(|value| format!("`{value}`")).collect();
            format!("refused unless {}", neutral.join(" or "))
        }
    };
    let _ = writeln!(
        page,
        "| `{path}` | {} | {here} | {} |",
        field.apis, field.note
    );
    field.inner.iter().for_each(|inner| add(page, &path, inner));
}
