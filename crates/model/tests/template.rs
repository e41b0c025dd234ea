//! Chat templates against `transformers`, and against those who write them with bad intent.

mod common;

use std::path::Path;

use serde_json::Value;
use triad_model::ErrorKind;
use triad_model::checkpoint::Checkpoint;
use triad_model::template::{ChatTemplate, Message};
use triad_model::tokenizer::Tokenizer;

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates")
}

/// The template of a golden case: one beside it, or a real model's.
fn template(case: &Value) -> Option<ChatTemplate> {
    let name = case["template"].as_str().unwrap();
    if name.ends_with(".jinja") {
        let source = std::fs::read_to_string(golden().join(name)).unwrap();
        let source = source.strip_suffix('\n').unwrap();
        return Some(ChatTemplate::new(source, case["bos_token"].as_str(), case["eos_token"].as_str()).unwrap());
    }
    let checkpoint = Checkpoint::open(common::real_model(name)?).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    Some(ChatTemplate::from_checkpoint(&checkpoint, &tokenizer).unwrap().expect("the model has a template"))
}

#[test]
fn templates_render_as_in_transformers() {
    let cases = std::fs::read(golden().join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
    let mut differences = Vec::new();
    for of_template in cases.chunk_by(|a, b| a["template"] == b["template"]) {
        let Some(template) = template(&of_template[0]) else { continue };
        for case in of_template {
            let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
            let rendered = template.render(&messages, case["add_generation_prompt"].as_bool().unwrap());
            let agrees = match (&rendered, case["text"].as_str(), case["error"].as_str()) {
                (Ok(rendered), Some(text), _) => rendered == text,
                // A template's own words; Jinja's differ.
                (Err(error), _, Some(message)) => {
                    error.to_string().contains(message) || message.contains("has no element")
                }
                _ => false,
            };
            if !agrees {
                differences.push(format!("{} {}:\n{rendered:?}\nexpected {}", case["template"], case["case"], case));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

fn message(value: &Value) -> Message {
    Message::new(value["role"].as_str().unwrap(), value["content"].as_str().unwrap())
}

/// What becomes of a hostile or broken template on a short conversation.
fn outcome(source: &str) -> Result<String, triad_model::Error> {
    ChatTemplate::new(source, None, None)?.render(&[Message::new("user", "hi")], true)
}

fn error(source: &str) -> String {
    let error = outcome(source).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Template);
    error.to_string()
}

#[test]
fn a_broken_template_is_an_error_that_names_the_line() {
    assert!(error("a\nb\n{% if %}").contains("line 3"));
    assert!(error("a\n{{ messages[0].content.missing() }}").contains("line 2"));
    assert!(error("{% for m in messages %}").contains("line 1"));
}

#[test]
fn what_a_template_refuses_is_an_error_in_its_words() {
    assert_eq!(error("\n\n{{ raise_exception('only cats') }}"), "chat template, line 3: only cats");
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let count = "{% for i in range(9999) %}";
    assert!(error(&format!("{count}{count}{{% endfor %}}{{% endfor %}}")).contains("fuel"));
    assert!(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("recursion"));
    assert!(error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").contains("recursion"));
    assert!(error("{% include 'chat template' %}").contains("recursion"));
}

#[test]
fn a_template_that_writes_without_end_is_stopped() {
    assert!(error("{{ 'a' * 90000000 }}").contains("too long"));
    error("{{ 'a' * 900000000000 }}");
    error("{{ '{:900000000000}'.format(1) }}");
    error("{{ 'a' | indent(900000000000) }}");
    error("{{ [1] | batch(900000000000, 1) | list }}");
}

#[test]
fn the_deepest_template_that_is_accepted_does_not_overflow_the_stack() {
    const LONGEST: usize = (1 << 16) - 16;
    for (before, link, after) in [
        ("1", "+1", ""),
        ("1", "~1", ""),
        ("1", "|e", ""),
        ("a", ".a", ""),
        ("a", "()", ""),
        ("a", "[0]", ""),
        ("1", "**1", ""),
        ("", "-", "1"),
        ("", "not ", "1"),
        ("", "(", "1"),
        ("", "[", "1"),
        ("", "{'a':", "1"),
        ("", "1 if 1 else ", "1"),
    ] {
        let _ = outcome(&format!("{{{{ {before}{}{after} }}}}", link.repeat(LONGEST / link.len())));
    }
    let _ = outcome(&format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(LONGEST / 12 - 2)));
    let _ = outcome(&"{% if 1 %}".repeat(LONGEST / 10));
    let nest = "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}";
    let _ = outcome(&format!("{nest}{{{{ ns.a }}}}"));
    let _ = outcome(&format!("{nest}{{{{ ns.a | tojson }}}}"));
}

#[test]
fn a_template_longer_than_any_is_an_error() {
    assert!(error(&"a".repeat(1 << 17)).contains("131072 bytes"));
}

#[test]
fn a_long_conversation_is_rendered_whole() {
    let source = "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n{% endfor %}";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let messages = vec![Message::new("user", "x".repeat(10_000)); 2_000];
    assert_eq!(template.render(&messages, false).unwrap().len(), 2_000 * (10_000 + "user: \n".len()));
}
