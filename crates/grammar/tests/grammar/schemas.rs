//! Output for random schemas from random logits: whenever it ends, another library validates the JSON.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Value, json};
use triad_engine::constraint::{Constraint, TokenMask};
use triad_grammar::GrammarSource;
use triad_model::tokenizer::Tokenizer;

use crate::{byte_level, grammars};

/// Maximum number of tokens. Output that has not ended by then is discarded.
const LONGEST: usize = 300;

fn leaf() -> impl Strategy<Value = Value> {
    let value = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (-50i64..50).prop_map(Value::from),
        (-40i32..40).prop_map(|quarters| json!(f64::from(quarters) / 4.0)),
        "[a-zé\"\\\\ ]{0,6}".prop_map(Value::from),
        Just(json!([1, "a"])),
        Just(json!({ "k": null })),
    ];
    let values = prop::collection::vec(value.clone(), 1..5);
    prop_oneof![
        Just(json!({ "type": "null" })),
        Just(json!({ "type": "boolean" })),
        Just(json!({ "type": ["integer", "null"] })),
        (-1000i64..1000, 0i64..2000)
            .prop_map(|(least, more)| { json!({ "type": "integer", "minimum": least, "maximum": least + more }) }),
        (-100i32..100, 1i32..99).prop_map(|(least, more)| {
            let least = f64::from(least) / 8.0;
            json!({ "type": "number", "exclusiveMinimum": least, "maximum": least + f64::from(more) })
        }),
        // Narrow ranges without their ends.
        (-16i32..16, 1i32..8).prop_map(|(least, more)| {
            let (least, more) = (f64::from(least) / 4.0, f64::from(more) / 8.0);
            json!({ "type": "number", "exclusiveMinimum": least, "exclusiveMaximum": least + more })
        }),
        (1i64..20).prop_map(|of| json!({ "type": "integer", "multipleOf": of, "minimum": 0, "maximum": 9999 })),
        (0u64..4, 0u64..6)
            .prop_map(|(least, more)| { json!({ "type": "string", "minLength": least, "maxLength": least + more }) }),
        prop_oneof![Just("^[a-c]{2,5}$"), Just("^[0-9]+-x$"), Just("b"), Just("^(yes|no|né)$"), Just(r#"^[^"/]{1,3}$"#),
                      Just(r"^[^\\]+[^ -~]$")]
            .prop_map(|pattern| json!({ "type": "string", "pattern": pattern })),
        prop_oneof![Just("date"), Just("uuid"), Just("ipv4"), Just("time"), Just("date-time")]
            .prop_map(|format| json!({ "type": "string", "format": format })),
        value.prop_map(|value| json!({ "const": value })),
        values.prop_map(|values| json!({ "enum": values })),
        Just(json!({ "$ref": "#/$defs/leaf" })),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    let node = leaf().prop_recursive(4, 24, 5, |inner| {
        let names = prop::sample::subsequence(vec!["a", "b", "name", "naïve", "x y", "\"q\""], 0..5);
        let properties = prop::collection::vec((inner.clone(), any::<bool>()), 5);
        prop_oneof![
            (inner.clone(), 0u64..3, 0u64..3).prop_map(|(items, least, more)| {
                json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + more })
            }),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|items| {
                let count = items.len();
                json!({ "type": "array", "prefixItems": items, "items": false, "minItems": count })
            }),
            (names, properties, any::<bool>()).prop_map(|(names, properties, is_open)| {
                let required: Vec<_> = names
                    .iter()
                    .zip(&properties)
                    .filter(|(_, (_, required))| *required)
                    .map(|(name, _)| *name)
                    .collect();
                let properties: Map<_, _> = names
                    .iter()
                    .zip(&properties)
                    .map(|(name, (schema, _))| ((*name).to_owned(), schema.clone()))
                    .collect();
                let mut schema = json!({ "type": "object", "properties": properties, "required": required });
                schema["additionalProperties"] = if is_open { json!({ "type": "integer" }) } else { json!(false) };
                schema
            }),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| json!({ "anyOf": options })),
            Just(json!({ "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 })),
        ]
    });
    (node, leaf()).prop_map(|(root, leaf)| {
        let mut root = root;
        // A leaf that refers to itself is not a valid schema.
        let leaf = if leaf.get("$ref").is_some() {
            json!({ "type": "boolean" })
        } else {
            leaf
        };
        let tree = json!({
            "type": "object",
            "properties": { "left": { "$ref": "#/$defs/tree" }, "value": { "type": "integer" } },
            "additionalProperties": false,
        });
        root["$defs"] = json!({ "leaf": leaf, "tree": tree });
        root
    })
}

/// Returns the allowed token with the largest random logit. Closing brackets, quotes and end tokens have larger logits.
fn choose(mask: &TokenMask, tokenizer: &Tokenizer, random: &mut ChaCha8Rng) -> Option<u32> {
    let logit = |token: u32, random: &mut ChaCha8Rng| {
        let bytes = tokenizer.bytes(token);
        let ends = bytes.is_empty() || (bytes.len() == 1 && b"\"]}".contains(&bytes[0]));
        (random.next_u32() >> 8) + if ends { 1 << 23 } else { 0 }
    };
    let allowed = (0..tokenizer.vocab_size() as u32).filter(|token| mask.allows(*token));
    allowed
        .map(|token| (logit(token, random), token))
        .max()
        .map(|(_, token)| token)
}

#[test]
fn every_answer_that_ends_is_json_that_the_schema_describes() {
    let tokenizer = byte_level();
    let grammars = grammars(&tokenizer);
    let end = tokenizer.end_tokens()[0];
    let (supported, refused, ended, whole) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&(schema(), any::<u64>()), |(schema, seed)| {
        let grammar = match grammars.compile(&GrammarSource::JsonSchema(schema.to_string())) {
            Ok(grammar) => grammar,
            Err(error) => {
                refused.fetch_add(1, Ordering::Relaxed);
                // Only schemas that nothing can satisfy may be refused.
                prop_assert!(error.to_string().contains("nsatisfiable"), "{}", error);
                return Ok(());
            }
        };
        supported.fetch_add(1, Ordering::Relaxed);
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let is_valid = |text: &[u8]| {
            let value = serde_json::from_slice(text);
            value.is_ok_and(|value: Value| validator.is_valid(&value))
        };
        let (mut constraint, mut random) = (grammar.begin(), ChaCha8Rng::seed_from_u64(seed));
        let (mut text, mut tokens) = (Vec::new(), 0);
        while tokens < LONGEST && !constraint.is_complete() {
            let mask = constraint.mask().unwrap();
            if mask.allows(end) {
                whole.fetch_add(1, Ordering::Relaxed);
                prop_assert!(
                    is_valid(&text),
                    "may end: {}",
                    String::from_utf8_lossy(&text)
                );
            }
            let forced = constraint.forced().unwrap();
            if let Some(first) = forced.first() {
                prop_assert!(mask.allows(*first));
            }
            let chosen = choose(&mask, &tokenizer, &mut random);
            prop_assert!(
                chosen.is_some(),
                "no token may follow {}",
                String::from_utf8_lossy(&text)
            );
            let next = chosen.unwrap();
            constraint.accept(next).unwrap();
            text.extend(tokenizer.bytes(next));
            tokens += 1;
            if tokenizer.end_tokens().contains(&next) {
                break;
            }
        }
        if constraint.is_complete() {
            ended.fetch_add(1, Ordering::Relaxed);
            prop_assert!(is_valid(&text), "{}", String::from_utf8_lossy(&text));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [supported, refused, ended, whole] =
        [supported, refused, ended, whole].map(AtomicUsize::into_inner);
    println!(
        "{supported} schemas, {refused} refused; {ended} answers ended, {whole} more could have"
    );
    assert!(
        supported > 1800 && ended > supported / 2,
        "{supported} supported, {ended} ended"
    );
}
