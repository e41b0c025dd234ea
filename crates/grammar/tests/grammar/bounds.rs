//! Every grammar, however hostile, results in an error or a mask: no panic, no hang, no stack overflow.

use proptest::prelude::*;
use serde_json::json;
use triad_engine::Cancel;
use triad_engine::constraint::Constraint;
use triad_grammar::{Error, GrammarSource, Grammars};

use crate::{byte_level, golden, grammars};

/// Compiles `source` and accepts some tokens, as generation would, on a thread with the default stack.
fn try_out(grammars: &Grammars, source: &GrammarSource) -> Result<(), Error> {
    let grammar = grammars.compile(source)?;
    let mut constraint = grammar.begin();
    for step in 0..8u32 {
        if constraint.is_complete() {
            break;
        }
        if constraint.forced().is_err() {
            break;
        }
        let Ok(mask) = constraint.mask() else { break };
        let allowed: Vec<_> = (0..1008).filter(|token| mask.allows(*token)).collect();
        let Some(next) = allowed.get(step as usize * 7 % allowed.len().max(1)) else {
            break;
        };
        // Accepting a token may also reach a limit.
        if constraint.accept(*next).is_err() {
            break;
        }
    }
    Ok(())
}

fn nested(depth: usize, open: &str, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
}

#[test]
fn grammars_that_are_made_to_harm_are_errors_or_work() {
    let grammars = grammars(&byte_level());
    let any_of = |count: usize| {
        let options: Vec<_> = (0..count)
            .map(|index| json!({ "properties": { format!("p{index}"): { "type": "integer" } } }))
            .collect();
        json!({ "anyOf": options })
    };
    let schemas = [
        nested(60, r#"{"items": "#, "{}", "}"),
        nested(10_000, r#"{"items": "#, "{}", "}"),
        nested(50, r#"{"allOf": ["#, "{}", "]}"),
        json!({ "allOf": vec![any_of(6); 6] }).to_string(),
        json!({ "$ref": "#" }).to_string(),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } })
            .to_string(),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }).to_string(),
        json!({ "type": "array", "minItems": 100_000_000 }).to_string(),
        json!({ "type": "array", "maxItems": u64::MAX }).to_string(),
        json!({ "type": "string", "minLength": 1_000_000_000u64 }).to_string(),
        json!({ "type": "string", "maxLength": -1 }).to_string(),
        json!({ "type": "string", "pattern": "(a{1,1000}){1,1000}" }).to_string(),
        json!({ "type": "string", "pattern": "(?=a)b" }).to_string(),
        json!({ "type": "string", "pattern": "(" }).to_string(),
        json!({ "type": "number", "multipleOf": 0 }).to_string(),
        json!({ "type": "number", "multipleOf": 1e-300 }).to_string(),
        json!({ "type": "integer", "minimum": 1e300 }).to_string(),
        json!({ "type": "integer", "minimum": 3, "maximum": 2 }).to_string(),
        json!({ "enum": (0..20_000).collect::<Vec<u32>>() }).to_string(),
        json!({ "enum": [] }).to_string(),
        json!({ "required": (0..5000).map(|index| format!("p{index}")).collect::<Vec<_>>() }).to_string(),
        json!({ "type": 3 }).to_string(),
        json!({ "$ref": "https://example.org/other" }).to_string(),
        json!({ "$ref": 3 }).to_string(),
        "false".into(),
        "true".into(),
        "[]".into(),
        "\"\"".into(),
        "".into(),
        "null".into(),
    ];
    let regexes = [
        "(a?){500}a{500}".to_owned(),
        "(a{1,100}){1,100}".into(),
        "((a{1,100}){1,100}){1,100}".into(),
        ".{1000,}".into(),
        "a?".repeat(10_000),
        "(a|b|ab)*c".into(),
        nested(150, "(", "a", ")*"),
        nested(5000, "(", "a", ")"),
        "(".into(),
        "[^\\x00-\\xff]".into(),
        "\\p{L}{50,100}".into(),
        "(?i)straße".into(),
        "a{99999999}".into(),
        "a**********".into(),
        "x".repeat(60_000),
        "".into(),
        "(?!a)b".into(),
        "\\b".into(),
        "^a$".into(),
        "/".into(),
        "a/b".into(),
        "\n".into(),
    ];
    let larks = [
        "start: start".to_owned(),
        "start: start start | \"a\"".into(),
        "start: a\na: b\nb: a".into(),
        "".into(),
        "start: \"\"".into(),
        "start: (\"a\"?)~1..1000000".into(),
        "a: \"b\"".into(),
        "start: missing".into(),
        "start: %json {".into(),
        "start: %json {\"not\": {}}".into(),
        "start: /(/".into(),
        "start: <|im_start|>".into(),
        "start: <[99999999]>".into(),
        "start: @other".into(),
        format!("start: {}", "\"a\" | ".repeat(10_000)),
        format!("start: {}", "\"a\" ".repeat(50_000)),
        nested(190, "start: (", "\"a\"", ")"),
        "%import common.INT\nstart: INT".into(),
        (0..5000)
            .map(|index| format!("r{index}: r{}\n", index + 1))
            .collect::<String>()
            + "r5000: \"x\"\nstart: r0",
        "start[max_tokens=0]: /a+/".into(),
        "start[temperature=x]: /a/".into(),
        "start: a{1,99999999}".into(),
    ];
    let sources = schemas.into_iter().map(GrammarSource::JsonSchema);
    let sources = sources.chain(regexes.into_iter().map(GrammarSource::Regex));
    for source in sources.chain(larks.into_iter().map(GrammarSource::Lark)) {
        if let Err(error) = try_out(&grammars, &source) {
            let text = error.to_string();
            assert!(
                !text.contains("panic") && text.len() < 2000,
                "{}: {text}",
                source.text()
            );
        }
    }
}

#[test]
fn a_form_of_more_parts_than_any_is_refused_before_it_is_compiled() {
    let grammars = grammars(&byte_level());
    let properties = |count: usize| {
        let properties: serde_json::Map<_, _> = (0..count)
            .map(|index| (format!("p{index}"), json!({})))
            .collect();
        json!({ "type": "object", "properties": properties })
    };
    let any_of =
        json!({ "anyOf": (0..1025).map(|index| json!({ "const": index })).collect::<Vec<_>>() });
    let many = json!({ "anyOf": vec![properties(900); 10] });
    let in_grammar = format!("start: json\njson: %json {}\n", properties(12_000));
    let rules: String = (0..20_000)
        .map(|index| format!("r{index}: r{} | \"x{index}\"\n", index + 1))
        .collect();
    for (source, expected) in [
        (
            GrammarSource::JsonSchema(properties(12_000).to_string()),
            "the JSON schema has 12000 properties or options next to each other, expected at most 1024",
        ),
        (
            GrammarSource::JsonSchema(any_of.to_string()),
            "1025 properties or options next to each other",
        ),
        (
            GrammarSource::JsonSchema(many.to_string()),
            "9010 properties and options, expected at most 8192",
        ),
        (
            GrammarSource::Lark(in_grammar),
            "12000 properties or options next to each other",
        ),
        (
            GrammarSource::Lark(format!("{rules}r20000: \"x\"\nstart: r0")),
            "lines and options, expected at most 8192",
        ),
    ] {
        let error = grammars.compile(&source).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // Names and literal values don't count as parts.
    let named =
        json!({ "properties": { "properties": { "const": { "properties": properties(2000) } } } });
    grammars
        .compile(&GrammarSource::JsonSchema(named.to_string()))
        .unwrap();
    grammars
        .compile(&GrammarSource::JsonSchema(properties(1000).to_string()))
        .unwrap();
}

#[test]
fn an_error_names_what_is_wrong_or_not_supported() {
    let grammars = grammars(&byte_level());
    let cases = [
        (
            GrammarSource::JsonSchema(r#"{"not": {"type": "null"}}"#.into()),
            "keywords that are not supported: [\"not\"]",
        ),
        (
            GrammarSource::JsonSchema(r#"{"if": {}, "then": {}, "type": "object"}"#.into()),
            "\"if\"",
        ),
        (
            GrammarSource::JsonSchema(r#"{"type": "string", "format": "iri"}"#.into()),
            "iri",
        ),
        (
            GrammarSource::JsonSchema(r#"{"type": "strnig"}"#.into()),
            "strnig",
        ),
        (
            GrammarSource::JsonSchema(r##"{"$ref": "#/$defs/x"}"##.into()),
            "x",
        ),
        (
            GrammarSource::JsonSchema("{".into()),
            "line 1, column 1 of the JSON schema: EOF",
        ),
        (
            GrammarSource::Regex("a(b".into()),
            "the regular expression can't be used: ",
        ),
        (GrammarSource::Lark("start: missing".into()), "missing"),
        (
            GrammarSource::Lark("start: \"a\"\nstart: \"b\"".into()),
            "start",
        ),
    ];
    for (source, expected) in cases {
        let error = grammars.compile(&source).unwrap_err().to_string();
        assert!(error.contains(expected), "{}: {error}", source.text());
    }
}

#[test]
fn a_grammar_is_compiled_once_for_each_text() {
    let grammars = grammars(&byte_level());
    let source = |index: usize| GrammarSource::Regex(format!("a{{{index}}}"));
    let first = grammars.compile(&source(1)).unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &grammars.compile(&source(1)).unwrap()
    ));
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &grammars
            .compile(&GrammarSource::Lark("start: /a{1}/".into()))
            .unwrap()
    ));
    let others = grammars
        .compile_for([1; 32], &source(1), &Cancel::new())
        .unwrap();
    assert!(
        !std::sync::Arc::ptr_eq(&first, &others),
        "one owner's is not found by another"
    );
    assert!(std::sync::Arc::ptr_eq(
        &others,
        &grammars
            .compile_for([1; 32], &source(1), &Cancel::new())
            .unwrap()
    ));
    for index in 2..100 {
        grammars.compile(&source(index)).unwrap();
    }
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &grammars.compile(&source(1)).unwrap()
    ));
}

#[test]
fn tokens_are_forced_only_where_they_are_the_tokenizers_own() {
    let source = GrammarSource::Regex("the answer is (yes|no)".into());
    for (name, forces) in [("bpe-gpt-2", true), ("spm", false)] {
        let tokenizer = golden(name);
        let forced = grammars(&tokenizer)
            .compile(&source)
            .unwrap()
            .begin()
            .forced()
            .unwrap();
        assert_eq!(!forced.is_empty(), forces, "{name}");
        if forces {
            let whole = tokenizer.encode_part("the answer is").unwrap();
            assert_eq!(forced, whole[..forced.len()]);
            assert!(forced.len() + 1 >= whole.len());
        }
    }
}

#[test]
fn control_tokens_are_no_text() {
    let tokenizer = byte_level();
    let mut constraint = grammars(&tokenizer)
        .compile(&GrammarSource::Regex("(?s).*".into()))
        .unwrap()
        .begin();
    let mask = constraint.mask().unwrap();
    let named = tokenizer.id("<|im_start|>").unwrap();
    assert!(!mask.allows(named) && mask.allows(tokenizer.end_tokens()[0]));
    let mut named_by_grammar = grammars(&tokenizer)
        .compile(&GrammarSource::Lark("start: <|im_start|>".into()))
        .unwrap()
        .begin();
    assert!(named_by_grammar.mask().unwrap().allows(named));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_is_an_error_or_a_grammar(
        kind in 0..3, text in r#"(start: |[a-c(){}\[\]|*+?^$.\\/"<>:,\n -]|"type"|"\$ref"|\{"items":|%json|\{2,3\}|\\d|true|null|#){0,30}"#,
    ) {
        thread_local! {
            static GRAMMARS: Grammars = grammars(&byte_level());
        }
        let source = match kind {
            0 => GrammarSource::JsonSchema(text),
            1 => GrammarSource::Regex(text),
            _ => GrammarSource::Lark(format!("start: {text}")),
        };
        GRAMMARS.with(|grammars| {
            if let Err(error) = try_out(grammars, &source) {
                assert!(!error.to_string().contains("panic"), "{error}");
            }
        });
    }
}
