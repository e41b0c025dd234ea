//! Numbers of schemas in all their spellings. `tests/golden/schemas/make.py` wrote the cases and judged the texts.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use triad_grammar::{Grammar, GrammarSource, for_llguidance};

use crate::objects::{GRAMMARS, may_be};

/// Returns the cases: a schema, the same with plain integers, and texts with whether they conform.
fn cases() -> Vec<Value> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/schemas/numbers.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compiles a schema in each way that requests and tools have.
fn compiled(schema: &Value) -> Vec<Arc<Grammar>> {
    let mut sources = vec![
        GrammarSource::JsonSchema(schema.to_string()),
        GrammarSource::Lark(format!("start: %json {}\n", for_llguidance(schema.clone()))),
    ];
    // A client's grammar may have only keywords that the compiler knows.
    if schema.get("uniqueItems").is_none() {
        sources.push(GrammarSource::Lark(format!("start: %json {schema}\n")));
    }
    let compile = |source: &GrammarSource| {
        let grammar = GRAMMARS.1.compile(source);
        grammar.unwrap_or_else(|error| panic!("{source:?}: {error}"))
    };
    sources.iter().map(compile).collect()
}

#[test]
fn a_whole_number_means_the_same_however_a_schema_spells_it() {
    for case in cases() {
        let texts = case["texts"].as_array().unwrap();
        let grammars = compiled(&case["schema"]).into_iter();
        for (grammar, alike) in grammars.zip(compiled(&case["plain"])) {
            let mut accepted = 0;
            for (text, conforms) in texts
                .iter()
                .map(|text| (text[0].as_str().unwrap(), &text[1]))
            {
                let is_accepted = may_be(&grammar, &GRAMMARS.0, text);
                let name = || format!("{text} of {}", case["schema"]);
                assert!(!is_accepted || *conforms == true, "accepts {}", name());
                assert_eq!(is_accepted, may_be(&alike, &GRAMMARS.0, text), "{}", name());
                accepted += usize::from(is_accepted);
            }
            assert!(accepted > 0, "accepts nothing of {}", case["schema"]);
        }
    }
}
