//! Compares expressions with jinja2: the same text, or an error.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;
use triad_model::template::{ChatTemplate, RenderOptions};

/// Maximum results that jinja2 has and that are refused. This number may only fall.
const MAX_REFUSED: usize = 895;

/// Returns a text as the table has it: a long one by its hash.
fn hashed(text: String) -> String {
    if text.chars().count() <= 24 && !text.starts_with('#') {
        return text;
    }
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("#{hash:016x}")
}

/// Returns tags that set a variable to the value of a kind, by its number.
fn prelude(name: &str, number: &str, kinds: &[Value]) -> String {
    let mut tags = String::new();
    for (place, kind) in kinds.iter().enumerate() {
        let tag = if place == 0 { "if" } else { "elif" };
        let kind = kind.as_str().unwrap();
        write!(
            tags,
            "{{% {tag} {number} == {place} %}}{{% set {name} = {kind} %}}"
        )
        .unwrap();
    }
    tags + "{% endif %}"
}

#[test]
fn an_expression_has_the_result_of_jinja2_or_is_refused() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates/jinja.json");
    let table: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let kinds = table["kinds"].as_array().unwrap();
    let preludes = [prelude("x", "i", kinds), prelude("y", "j", kinds)];
    let (mut same, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for row in table["rows"].as_array().unwrap() {
        let results = row[1].as_array().unwrap();
        let (body, first) = match row[0].as_array() {
            Some(pair) => (pair[0].as_str().unwrap(), pair[1].as_u64()),
            None => (row[0].as_str().unwrap(), None),
        };
        let source = match (first, results.len()) {
            (None, 1) => body.to_owned(),
            (None, _) => format!("{}{body}", preludes[0]),
            (Some(_), _) => format!("{}{}{body}", preludes[0], preludes[1]),
        };
        let template = ChatTemplate::new(source, None, None);
        for (place, expected) in results.iter().enumerate() {
            let numbers = match first {
                Some(first) => serde_json::json!({"i": first, "j": place}),
                None => serde_json::json!({"i": place}),
            };
            let options = RenderOptions {
                variables: numbers.as_object(),
                ..RenderOptions::default()
            };
            let rendered = template.as_ref().map_err(ToString::to_string);
            let rendered = rendered.and_then(|template| {
                template
                    .render_conversation(&[], &options, None)
                    .map_err(|error| error.to_string())
            });
            let kind = |number: u64| kinds[number as usize].as_str().unwrap();
            let of = match (first, results.len()) {
                (None, 1) => String::new(),
                (None, _) => format!(" of {}", kind(place as u64)),
                (Some(first), _) => format!(" of {} and {}", kind(first), kind(place as u64)),
            };
            match (rendered, expected.as_str()) {
                (Ok(text), Some(expected)) if hashed(text.clone()) == expected => same += 1,
                (Err(_), None) => same += 1,
                (Err(error), Some(expected)) => {
                    refused.push(format!("{body}{of}: {error}, expected {expected}"));
                }
                (Ok(text), expected) => {
                    wrong.push(format!("{body}{of}: {text:?}, expected {expected:?}"));
                }
            }
        }
    }
    // The list helps to find what could be supported.
    if let Some(path) = std::env::var_os("TRIAD_JINJA_REPORT") {
        std::fs::write(path, [&wrong[..], &refused[..]].concat().join("\n")).unwrap();
    }
    let counts = format!(
        "{same} are the same, {} are refused, {} differ",
        refused.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{counts}\n{}", wrong.join("\n"));
    assert!(
        refused.len() <= MAX_REFUSED,
        "{counts}, expected at most {MAX_REFUSED} refused"
    );
    println!("{counts}");
}
