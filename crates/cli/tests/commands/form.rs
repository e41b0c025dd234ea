//! Answers with constraints.

use serde_json::{Value as Json, json};

use super::{place, succeed};
use crate::support::{Place, stderr};

const RUN: [&str; 10] = [
    "run",
    "--no-quantize",
    "-m",
    "model.gguf",
    "-n",
    "50",
    "--temperature",
    "1.5",
    "-p",
    "Hi",
];

fn answer(place: &Place, arguments: &[&str]) -> String {
    let text = succeed(&place.triad(&[&RUN[..], arguments].concat()));
    text.strip_suffix('\n').unwrap().to_owned()
}

#[test]
fn an_answer_is_what_a_schema_an_expression_or_a_grammar_describes() {
    let place = place();
    place.write(
        "city.json",
        r#"{"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]},
        "big": {"type": "boolean"}}, "required": ["city", "big"], "additionalProperties": false}"#,
    );
    place.write(
        "sum.lark",
        "start: number (\" + \" number){1,2}\nnumber: /[1-9][0-9]?/\n",
    );
    let mut found = Vec::new();
    for seed in ["0", "1", "2", "3"] {
        for speculate in ["off", "lookup"] {
            let with = |form: [&'static str; 2]| {
                answer(
                    &place,
                    &[&form[..], &["--seed", seed, "--speculate", speculate]].concat(),
                )
            };
            let city: Json = serde_json::from_str(&with(["--schema", "city.json"])).unwrap();
            assert!(
                ["Oslo", "Rome"].contains(&city["city"].as_str().unwrap())
                    && city["big"].is_boolean(),
                "{city}"
            );
            let word = with(["--regex", "yes|no|perhaps"]);
            assert!(["yes", "no", "perhaps"].contains(&word.as_str()), "{word}");
            let sum = with(["--grammar", "sum.lark"]);
            let parts: Vec<_> = sum
                .split(" + ")
                .map(|number| number.parse::<u8>().unwrap())
                .collect();
            assert!(
                (2..=3).contains(&parts.len()) && parts.iter().all(|part| (1..100).contains(part)),
                "{sum}"
            );
            found.push([city.to_string(), word, sum]);
        }
    }
    for pair in found.chunks(2) {
        assert_eq!(pair[0], pair[1], "with proposals and without");
    }
    assert!(
        found.iter().any(|answers| *answers != found[0]),
        "every seed gives one answer"
    );
}

#[test]
fn as_json_an_answer_with_a_form_has_what_that_took() {
    let arguments = [&RUN[..], &["--json", "--regex", "(no, ){2}no"]].concat();
    let report: Json = serde_json::from_str(&succeed(&place().triad(&arguments))).unwrap();
    assert_eq!(
        (&report["text"], &report["finish"]),
        (&json!("no, no, no"), &json!("end-token"))
    );
    let constraint = &report["constraint"];
    assert!(
        constraint["forced_tokens"].as_u64().unwrap() > 5,
        "{constraint}"
    );
    assert!(
        constraint["mask_seconds"].is_f64() && constraint["wait_seconds"].is_f64(),
        "{constraint}"
    );
}

#[test]
fn a_form_that_is_none_names_the_file_and_the_place() {
    let place = place();
    place.write("broken.json", "{\n  \"type\": \"object\",\n}");
    place.write(
        "other.json",
        r#"{"type": "array", "uniqueItems": true, "not": {}}"#,
    );
    place.write("bad.lark", "start: number\n");
    for (form, messages) in [
        (
            ["--schema", "broken.json"],
            &["broken.json: line 3, column 1 of the JSON schema: trailing comma"][..],
        ),
        (
            ["--schema", "other.json"],
            &["other.json", "not supported", "\"not\""],
        ),
        (["--schema", "missing.json"], &["cannot read missing.json"]),
        (["--grammar", "bad.lark"], &["bad.lark", "number"]),
        (
            ["--regex", "a(b"],
            &["the regular expression can't be used"],
        ),
    ] {
        let output = place.triad(&[&RUN[..], &form[..]].concat());
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            messages.iter().all(|message| printed.contains(message)),
            "{form:?}: {printed}"
        );
    }
    let both = place.triad(&[&RUN[..], &["--regex", "a", "--schema", "broken.json"]].concat());
    assert_eq!(both.status.code(), Some(2));
}
