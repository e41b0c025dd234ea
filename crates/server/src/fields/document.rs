//! The tables as a page of the documentation.

use std::fmt::Write;

use super::{Effect, Field, requests};

const BEGINNING: &str = "\
# The fields of requests

This page is made from the tables in [`crates/server/src/fields`](../crates/server/src/fields/mod.rs), by which the \
[server](guide/serve.md) reads requests: a test compares the two, and sends each field. O, A, V and L are the APIs of OpenAI and \
Anthropic and the servers of vLLM and llama.cpp, T is Triad's own.

A field that would change the answer is followed, or refused with status 400 and its name. A name that is in no table is \
refused, too, as OpenAI's and Anthropic's servers do it, wherever it is: it may be a misspelled option. Where null is given, \
nothing is asked for. `/apply-template` takes the fields of `/v1/chat/completions`.
";

/// Returns the page, in Markdown.
pub fn document() -> String {
    let mut page = BEGINNING.to_owned();
    for request in requests() {
        // Writing to a text doesn't fail.
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
