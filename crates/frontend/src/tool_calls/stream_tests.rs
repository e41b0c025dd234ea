//! Answers with a constraint are parsed piece by piece, and the grammars of text and calls accept answers that may
//! call.

use serde_json::json;
use triad_grammar::Grammars;

use super::tests::{grammars, may_be, plain, tools};
use super::*;
use AnswerDelta::{Arguments, Call, Text};
use ToolFormat::{Hermes, Llama3, Mistral, Python};

/// Returns the deltas of `answer`, which arrives in pieces of `size` characters, with neighbours of one kind merged;
/// and the number of deltas before that.
fn deltas(
    format: ToolFormat,
    form: AnswerForm,
    answer: &str,
    size: usize,
) -> (Vec<AnswerDelta>, usize) {
    let (mut reader, mut all) = (AnswerReader::new(format, form), Vec::new());
    let letters: Vec<char> = answer.chars().collect();
    for piece in letters.chunks(size) {
        all.extend(reader.push(&piece.iter().collect::<String>()));
    }
    all.extend(reader.finish());
    let (mut merged, count) = (Vec::<AnswerDelta>::new(), all.len());
    for delta in all {
        match (merged.last_mut(), delta) {
            (Some(Text(before)), Text(more)) | (Some(Arguments(before)), Arguments(more)) => {
                before.push_str(&more);
            }
            (_, delta) => merged.push(delta),
        }
    }
    (merged, count)
}

#[track_caller]
fn assert_deltas(format: ToolFormat, answer: &str, expected: &[AnswerDelta]) {
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(
            deltas(format, AnswerForm::Calls, answer, size).0,
            expected,
            "{format:?}, {size} at a time: {answer}"
        );
    }
}

fn call(name: &str, arguments: &str) -> [AnswerDelta; 2] {
    [Call(name.into()), Arguments(arguments.into())]
}

/// Arguments with braces and quotes in strings, and nested braces.
const ODD: &str = r#"{"a": "}\"{</tool_call>\\", "b": {"c": [1, {"d": "]"}]}, "e": "ü\n"}"#;

#[test]
fn arguments_of_answers_with_a_form_come_as_they_are_written() {
    let (first, second) = (call("f.x-1", ODD), call("g", "{}"));
    let hermes = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let both: Vec<_> = first.iter().chain(&second).cloned().collect();
    for format in [Hermes, Python] {
        assert_deltas(format, &hermes("f.x-1", ODD), &first);
        assert_deltas(
            format,
            &format!("{}\n{}", hermes("f.x-1", ODD), hermes("g", "{}")),
            &both,
        );
    }
    let around = [
        vec![Text("Let me <b> see. ".into())],
        both.clone(),
        vec![Text("Done <tool".into())],
    ]
    .concat();
    let answer = format!(
        "Let me <b> see. {}{}\n\nDone <tool",
        hermes("f.x-1", ODD),
        hermes("g", "{}")
    );
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(
            deltas(Hermes, AnswerForm::TextAndCalls, &answer, size).0,
            around
        );
    }
    assert_deltas(
        Llama3,
        &format!("{{\"name\": \"f.x-1\", \"parameters\": {ODD}}}"),
        &first,
    );
    let calls = format!(
        "[{{\"name\":\n\"f.x-1\", \"arguments\": {ODD}}},\n {{\"name\": \"g\", \"arguments\": {{}}}}]"
    );
    assert_deltas(Mistral, &calls, &both);
    // Each character of the arguments is returned as its own piece.
    assert_eq!(
        deltas(Hermes, AnswerForm::Calls, &hermes("g", ODD), 1).1,
        1 + ODD.chars().count()
    );
}

#[test]
fn what_is_cut_off_is_a_beginning_of_the_whole_and_no_text() {
    let answer = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {ODD}}}\n</tool_call>");
    for end in (0..=answer.len()).filter(|end| answer.is_char_boundary(*end)) {
        match &deltas(Hermes, AnswerForm::Calls, &answer[..end], 3).0[..] {
            [] => assert!(end < 40),
            [Call(name)] => assert_eq!(name, "f"),
            [Call(name), Arguments(arguments)] => {
                assert!(name == "f" && ODD.starts_with(arguments), "{arguments}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn calls_of_answers_without_a_form_come_whole() {
    let answer = r#"Hm <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
    let expected = [vec![Text("Hm ".into())], call("f", r#"{"a":1}"#).to_vec()].concat();
    assert_eq!(deltas(Hermes, AnswerForm::Any, answer, 2).0, expected);
    let whole = r#"[TOOL_CALLS][{"name": "f", "arguments": {}}]"#;
    assert_eq!(
        deltas(Mistral, AnswerForm::Any, whole, 2).0,
        call("f", "{}")
    );
}

#[test]
fn text_may_be_anything_but_the_beginning_of_another_call() {
    let (grammars, tools) = (grammars(), tools());
    let weather =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let wrong =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>";
    for is_parallel in [true, false] {
        let form = grammar_of_text_and_calls(plain(Hermes), &tools, is_parallel).unwrap();
        for answer in ["", "Hello", "1 < 2\n\n<tool_cal", "</tool_call>", weather] {
            assert!(may_be(&grammars, &form, answer), "{answer}");
        }
        assert!(may_be(&grammars, &form, &format!("Let me see.\n{weather}")));
        for answer in [format!("a{weather}\n{weather}"), format!("{weather} b")] {
            assert_eq!(may_be(&grammars, &form, &answer), is_parallel, "{answer}");
        }
        for answer in [
            wrong,
            "<tool_call>",
            "a <tool_call>b",
            "<tool_call>\n{\"name\": \"stop\"",
            &format!("a {wrong}"),
        ] {
            assert!(!may_be(&grammars, &form, answer), "{answer}");
        }
    }
    assert_eq!(grammar_of_text_and_calls(plain(Hermes), &[], true), None);
    for format in [Llama3, Mistral, Python] {
        assert_eq!(grammar_of_text_and_calls(plain(format), &tools, true), None);
    }
}

#[test]
fn arguments_are_objects_whatever_else_their_schema_allows() {
    let grammars: Grammars = grammars();
    let tool = |schema| Tool::from_json(&json!({ "name": "f", "parameters": schema }));
    for schema in [
        json!({}),
        json!({ "description": "any" }),
        json!({ "anyOf": [{ "type": "object" }, { "type": "number" }] }),
    ] {
        let form = grammar(
            plain(Llama3),
            &[tool(schema).unwrap()],
            &ToolChoice::Required,
            false,
        )
        .unwrap()
        .unwrap();
        let may = |arguments: &str| {
            may_be(
                &grammars,
                &form,
                &format!("{{\"name\": \"f\", \"parameters\": {arguments}}}"),
            )
        };
        assert!(
            may("{}") && may(r#"{"a": 1}"#) && !may("3") && !may("\"a\""),
            "{form:?}"
        );
    }
    assert!(tool(json!({ "type": "array" })).is_err());
}

#[test]
fn an_answer_of_json_or_calls_is_either() {
    let (grammars, tools) = (grammars(), tools());
    let schema =
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    let weather =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let text = r#"{"a": "<tool_call>"}"#;
    for is_parallel in [true, false] {
        let form = grammar_of_json_or_calls(plain(Hermes), &tools, &schema, is_parallel).unwrap();
        assert!(may_be(&grammars, &form, weather) && may_be(&grammars, &form, text));
        assert_eq!(
            may_be(&grammars, &form, &format!("{weather}\n{weather}")),
            is_parallel
        );
        for answer in [
            "",
            "Hello",
            "{}",
            &format!("{weather}\n{text}"),
            &weather.replace("Rome", "Bonn"),
        ] {
            assert!(!may_be(&grammars, &form, answer), "{answer}");
        }
    }
    for size in [1, 3, 1000] {
        let read = |answer| deltas(Hermes, AnswerForm::JsonOrCalls, answer, size).0;
        assert_eq!(read(text), [Text(text.into())]);
        assert_eq!(read(weather), call("weather", "{\"city\": \"Rome\"}"));
    }
    assert_eq!(
        grammar_of_json_or_calls(plain(Llama3), &tools, &schema, true),
        None
    );
}

/// Returns the merged deltas of an answer of gpt-oss.
fn of_channels(may_call: bool, answer: &str, size: usize) -> Vec<AnswerDelta> {
    let mut reader = if may_call {
        AnswerReader::new(ToolFormat::Harmony, AnswerForm::Any)
    } else {
        AnswerReader::of_channels()
    };
    let mut merged = Vec::<AnswerDelta>::new();
    let letters: Vec<char> = answer.chars().collect();
    let pieces = letters
        .chunks(size)
        .map(|piece| piece.iter().collect::<String>());
    let mut all: Vec<_> = pieces.flat_map(|piece| reader.push(&piece)).collect();
    all.extend(reader.finish());
    for delta in all {
        use AnswerDelta::Reasoning;
        match (merged.last_mut(), delta) {
            (Some(Text(before)), Text(more)) | (Some(Reasoning(before)), Reasoning(more)) => {
                *before += &more;
            }
            (Some(Arguments(before)), Arguments(more)) => *before += &more,
            (_, delta) => merged.push(delta),
        }
    }
    merged
}

#[test]
fn channels_are_reasoning_text_and_calls() {
    let reasoning = || AnswerDelta::Reasoning("We think < about it.".into());
    let thought = "<|channel|>analysis<|message|>We think < about it.<|end|>";
    for size in [1, 2, 5, 1000] {
        let answer = format!("{thought}<|start|>assistant<|channel|>final<|message|>Hi!");
        assert_eq!(
            of_channels(true, &answer, size),
            [reasoning(), Text("Hi!".into())]
        );
        for header in [
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
        ] {
            let answer = format!("{thought}{header}{{\"a\": 1}}<|call|>");
            let [called, arguments] = call("f", "{\"a\": 1}");
            assert_eq!(
                of_channels(true, &answer, size),
                [reasoning(), called, arguments]
            );
            // Without functions it is no call.
            let expected = [reasoning(), Text("{\"a\": 1}".into())];
            assert_eq!(of_channels(false, &answer, size), expected);
        }
        // An answer that continues a text of the prompt.
        assert_eq!(
            of_channels(true, "so on < it", size),
            [Text("so on < it".into())]
        );
        assert_eq!(of_channels(true, "<|channel|>analysis<|mess", size), []);
    }
}

#[test]
fn names_outside_of_json_come_as_soon_as_they_are_written() {
    for size in [1, 3, 1000] {
        let answer = format!("[TOOL_CALLS]f.x[ARGS]{ODD}[TOOL_CALLS]g[ARGS]{{}}");
        let expected = [call("f.x", ODD), call("g", "{}")].concat();
        assert_eq!(
            deltas(Mistral, AnswerForm::Calls, &answer, size).0,
            expected
        );
    }
}
