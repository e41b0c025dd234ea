//! Objects: allowed property names, and keywords that restrict nothing.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use triad_engine::constraint::Constraint;
use triad_grammar::{Grammar, GrammarSource, Grammars, for_llguidance};
use triad_model::tokenizer::Tokenizer;

use crate::{byte_level, grammars};

/// Returns whether `grammar` accepts the output `text`.
pub fn may_be(grammar: &Grammar, tokenizer: &Tokenizer, text: &str) -> bool {
    let mut constraint = grammar.begin();
    let is_allowed = text.chars().all(|letter| {
        let token = tokenizer.encode_part(&letter.to_string()).unwrap()[0];
        constraint.allowed(&[token]).unwrap() == 1 && constraint.accept(token).is_ok()
    });
    is_allowed && (constraint.may_end() || constraint.is_complete())
}

#[track_caller]
fn assert_answers(schema: &Value, allowed: &[Value], refused: &[Value]) {
    let (tokenizer, grammars) = &*GRAMMARS;
    let alone = GrammarSource::JsonSchema(schema.to_string());
    let part = GrammarSource::Lark(format!("start: %json {}\n", for_llguidance(schema.clone())));
    for source in [alone, part] {
        let grammar = grammars
            .compile(&source)
            .unwrap_or_else(|error| panic!("{schema}: {error}"));
        let may_be = |answer: &Value| may_be(&grammar, tokenizer, &answer.to_string());
        assert!(allowed.iter().all(may_be), "{schema}: {allowed:?}");
        assert!(!refused.iter().any(may_be), "{schema}: {refused:?}");
    }
}

pub static GRAMMARS: LazyLock<(Arc<Tokenizer>, Grammars)> = LazyLock::new(|| {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    (tokenizer, grammars)
});

#[test]
fn an_object_has_no_names_that_its_schema_does_not_name() {
    let person = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                        "required": ["name", "age"]});
    let (bob, more) = (
        json!({"name": "Bob", "age": 30}),
        json!({"name": "Bob", "age": 30, "gender": "m"}),
    );
    assert_answers(
        &person,
        std::slice::from_ref(&bob),
        &[more.clone(), json!({"age": 30, "name": "Bob"}), json!({})],
    );
    let mut open = person.clone();
    open["additionalProperties"] = true.into();
    assert_answers(&open, &[bob.clone(), more.clone()], &[]);
    let people = json!({"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
                        "$defs": {"person": person}});
    assert_answers(&people, &[json!([bob, null])], &[json!([more])]);
    // Objects without named properties stay open. A closed object still allows the names that it requires.
    assert_answers(&json!({"type": "object"}), &[json!({"a": {"b": 1}})], &[]);
    assert_answers(
        &json!({"type": "object", "properties": {}}),
        &[json!({})],
        &[json!({"a": 1})],
    );
    let needs = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["b"]});
    assert_answers(
        &needs,
        &[json!({"b": 2}), json!({"a": 1, "b": 2})],
        &[json!({"a": 1}), json!({"b": 2, "c": 3})],
    );
    let pattern = json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}});
    assert_answers(&pattern, &[json!({"x1": 1})], &[json!({"y": 1})]);
}

#[test]
fn an_object_that_several_schemas_describe_has_the_names_of_all_of_them() {
    let definitions = json!({
        "base": {"type": "object", "properties": {"id": {"const": 1}}, "required": ["id"]},
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"const": 9}}, "required": ["kind"]},
        "dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "barks": {"const": true}},
                "required": ["kind"]},
        "pet": {"anyOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]},
    });
    let with = |mut schema: Value| {
        schema["$defs"] = definitions.clone();
        schema
    };
    let child =
        with(json!({"allOf": [{"$ref": "#/$defs/base"}], "properties": {"name": {"const": "a"}}}));
    assert_answers(
        &child,
        &[json!({"id": 1, "name": "a"}), json!({"id": 1})],
        &[json!({"id": 1, "more": 1})],
    );
    let both = with(
        json!({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": {"const": "a"}}}]}),
    );
    assert_answers(
        &both,
        &[json!({"id": 1, "name": "a"})],
        &[json!({"id": 1, "more": 1})],
    );
    // The definition is closed where it stands alone.
    let alone = with(
        json!({"properties": {"one": {"$ref": "#/$defs/base"}, "two": {"allOf": [
        {"$ref": "#/$defs/base"}, {"$ref": "#/$defs/cat"}]}}, "type": "object"}),
    );
    let answer = json!({"one": {"id": 1}, "two": {"id": 1, "kind": "cat"}});
    assert_answers(
        &alone,
        &[answer],
        &[json!({"one": {"id": 1, "kind": "cat"}})],
    );
    // Alternatives don't allow each other's names.
    for pets in [
        json!({"properties": {"id": {"const": 1}}, "anyOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}),
        json!({"allOf": [{"properties": {"id": {"const": 1}}}, {"$ref": "#/$defs/pet"}]}),
    ] {
        let allowed = [
            json!({"id": 1, "kind": "cat", "lives": 9}),
            json!({"id": 1, "kind": "dog", "barks": true}),
        ];
        let refused = [
            json!({"id": 1, "kind": "cat", "barks": true}),
            json!({"id": 1, "kind": "dog", "more": 1}),
        ];
        assert_answers(&with(pets), &allowed, &refused);
    }
    let one_of_two = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
                            "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_answers(
        &one_of_two,
        &[json!({"a": 1}), json!({"a": 1, "b": 2})],
        &[json!({}), json!({"a": 1, "c": 1})],
    );
    // A part that allows other names allows them for the whole object.
    let open = with(json!({"allOf": [{"$ref": "#/$defs/base"}, {"additionalProperties": true}]}));
    assert_answers(&open, &[json!({"id": 1, "more": 1})], &[json!({"more": 1})]);
    let node = json!({"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}});
    assert_answers(
        &node,
        &[json!({"next": {"next": null}})],
        &[json!({"next": {"previous": null}})],
    );
}

#[test]
fn annotations_restrict_nothing() {
    for annotated in [
        json!({"type": "string", "format": "password"}),
        json!({"type": "string", "format": "binary", "example": {"not": {"type": "null"}}}),
        json!({"type": "string", "deprecated": true, "xml": {"name": "a"}, "not": false}),
    ] {
        assert_answers(&annotated, &[json!("a")], &[json!(1)]);
    }
    let union = json!({"oneOf": [{"$ref": "#/$defs/a"}], "discriminator": {"propertyName": "kind"},
                       "$defs": {"a": {"type": "object", "properties": {"kind": {"const": "a"}}}}});
    assert_answers(&union, &[json!({"kind": "a"})], &[json!({"other": 1})]);
    // A `not` that excludes everything is equal to `false`.
    for nothing in [json!({"not": {}}), json!({"not": true}), json!(false)] {
        let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": nothing});
        assert_answers(&schema, &[json!({"a": 1})], &[json!({"b": 1})]);
    }
}

#[test]
fn a_class_without_a_quote_or_a_backslash_allows_neither() {
    for pattern in [
        r#"^[^"\\]{3}$"#,
        r#"^[\x00-!#-\[\]-\x7f]{3}$"#,
        r#"^[^\W"\\]{3}$"#,
    ] {
        let schema = json!({"type": "string", "pattern": pattern});
        let allowed = [json!("a1b")];
        assert_answers(
            &schema,
            &allowed,
            &[json!("a\"b"), json!("a\\b"), json!("\\\\\\")],
        );
    }
    let unicode = json!({"type": "string", "pattern": r"^\P{P}{3}$"});
    let refused = [json!("a\"b"), json!("a\\b"), json!("a.b")];
    assert_answers(&unicode, &[json!("a1b")], &refused);
    let both = json!({"type": "string", "pattern": "^[^/]{3}$"});
    assert_answers(
        &both,
        &[json!("a\"b"), json!("a\\b"), json!("a\nb")],
        &[json!("a/b")],
    );
    let names = json!({"type": "object", "patternProperties": {"^[^\"]+$": {"type": "null"}}});
    assert_answers(&names, &[json!({"ab": null})], &[json!({"a\"": null})]);
}

#[test]
fn numbers_of_64_bits_are_exact_or_refused() {
    let integers =
        |least: i64, most: i64| json!({"type": "integer", "minimum": least, "maximum": most});
    let safe = 1_i64 << 53;
    for (schema, allowed, refused) in [
        (
            integers(safe + 1, safe + 3),
            vec![json!(safe + 2)],
            vec![json!(safe), json!(safe + 4)],
        ),
        (
            integers(i64::MIN, i64::MAX),
            vec![json!(0), json!(-safe), json!(i64::MAX)],
            vec![json!(0.5), json!(u64::MAX)],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": safe}),
            vec![json!(safe + 2)],
            vec![json!(safe), json!(safe - 1)],
        ),
        (
            json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX}),
            vec![json!(0.5), json!(-12)],
            vec![json!("0")],
        ),
        (
            json!({"const": i64::MAX}),
            vec![json!(i64::MAX)],
            vec![json!(i64::MAX as u64 + 1)],
        ),
    ] {
        assert_answers(&schema, &allowed, &refused);
    }
    let (_, grammars) = &*GRAMMARS;
    for (schema, words) in [
        (
            json!({"const": safe + 1}),
            "const has the number 9007199254740993",
        ),
        (
            json!({"properties": {"a": {"enum": [u64::MAX]}}}),
            "enum has the number",
        ),
        (json!({"type": "integer", "minimum": 1e30}), "minimum 1e+30"),
    ] {
        let source = GrammarSource::JsonSchema(schema.to_string());
        let error = grammars.compile(&source).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_property_may_have_the_name_of_a_keyword() {
    for name in ["a", "const", "default", "enum", "examples"] {
        let of = |value: Value| json!({ name: value });
        for (part, allowed, refused) in [
            (
                json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}),
                json!(1.25),
                json!(1),
            ),
            (
                json!({"type": "string", "pattern": "^[^\"]$"}),
                json!("a"),
                json!("\""),
            ),
            (
                json!({"type": "string", "format": "date"}),
                json!("2024-02-29"),
                json!("2023-02-29"),
            ),
        ] {
            let schema = json!({"type": "object", "properties": of(part), "required": [name]});
            assert_answers(&schema, &[of(allowed)], &[of(refused)]);
        }
        let least = of(json!({"type": "object", "minProperties": 2}));
        let schema = json!({"type": "object", "properties": least}).to_string();
        let (_, grammars) = &*GRAMMARS;
        let error = grammars.compile(&GrammarSource::JsonSchema(schema));
        assert!(error.unwrap_err().to_string().contains("minProperties"));
    }
}

#[test]
fn an_excluded_end_of_a_narrow_range_is_outside() {
    for (schema, allowed, refused) in [
        (
            json!({"exclusiveMinimum": 0, "maximum": 0.5}),
            "0.25",
            ["0", "0.0", "-0"],
        ),
        (
            json!({"exclusiveMinimum": 5, "exclusiveMaximum": 5.5}),
            "5.25",
            ["5", "5.0", "5.5"],
        ),
        (
            json!({"minimum": -0.5, "exclusiveMaximum": 0}),
            "-0.25",
            ["-0", "0", "-0.0"],
        ),
        (
            json!({"minimum": -5.5, "exclusiveMaximum": -5}),
            "-5.25",
            ["-5", "-5.0", "-5.6"],
        ),
        (
            json!({"exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 10}]}),
            "0.25",
            ["0", "0.0", "-0"],
        ),
        (
            json!({"allOf": [{"exclusiveMinimum": 0, "maximum": 1}, {"maximum": 0.5}]}),
            "0.25",
            ["0", "0.0", "-0"],
        ),
        (
            json!({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}),
            "0.25",
            ["0", "0.0", "-0"],
        ),
    ] {
        let mut schema = schema;
        schema["type"] = "number".into();
        let (tokenizer, grammars) = &*GRAMMARS;
        let alone = GrammarSource::JsonSchema(schema.to_string());
        // A client's grammar has the schema as it is.
        let part = GrammarSource::Lark(format!("start: %json {schema}\n"));
        for source in [alone, part] {
            let grammar = grammars.compile(&source).unwrap();
            assert!(may_be(&grammar, tokenizer, allowed), "{schema}: {allowed}");
            for text in refused {
                assert!(!may_be(&grammar, tokenizer, text), "{schema}: {text}");
            }
        }
    }
}

#[test]
fn digits_and_words_of_an_expression_are_ascii() {
    let (tokenizer, grammars) = &*GRAMMARS;
    let grammar = grammars
        .compile(&GrammarSource::Regex(r"\d\w/[\d]".into()))
        .unwrap();
    assert!(may_be(&grammar, tokenizer, "4a/2"));
    for text in ["4ä/2", "4a/ä", "\u{1fbf1}a/2"] {
        let mut constraint = grammar.begin();
        let tokens = tokenizer.encode_part(text).unwrap();
        let allowed = constraint.allowed(&tokens).unwrap();
        assert!(allowed < tokens.len(), "{text}");
    }
}
