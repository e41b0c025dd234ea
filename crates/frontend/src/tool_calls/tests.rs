//! Calls are found in answers of every format however the text is split, and grammars accept exactly such calls.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use triad_engine::constraint::Constraint;
use triad_grammar::Grammars;
use triad_model::tokenizer::Tokenizer;

use super::*;
use AnswerPart::{Call, Text};
use ToolFormat::{Hermes, Llama3, Mistral, Python};

fn call(name: &str, arguments: &str) -> AnswerPart {
    Call(ToolCall {
        name: name.into(),
        arguments: arguments.into(),
    })
}

fn text(text: &str) -> AnswerPart {
    Text(text.into())
}

/// Returns the parts of `answer`, which arrives in pieces of `size` characters.
fn parts(format: ToolFormat, answer: &str, size: usize) -> Vec<AnswerPart> {
    let (mut parser, mut parts) = (ToolCallParser::new(format), Vec::<AnswerPart>::new());
    let letters: Vec<char> = answer.chars().collect();
    let pieces = letters
        .chunks(size)
        .map(|piece| piece.iter().collect::<String>());
    let mut all: Vec<_> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    all.extend(parser.finish());
    for part in all {
        match (parts.last_mut(), part) {
            (Some(Text(before)), Text(text)) => before.push_str(&text),
            (_, part) => parts.push(part),
        }
    }
    parts
}

#[track_caller]
fn assert_parts(format: ToolFormat, answer: &str, expected: &[AnswerPart]) {
    for size in [1, 2, 3, 5, 8, 13, 1000] {
        assert_eq!(
            parts(format, answer, size),
            expected,
            "{format:?}, {size} at a time: {answer}"
        );
    }
}

#[test]
fn calls_between_words_are_found_anywhere_and_text_around_them_is_kept() {
    let one = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}
</tool_call>"#;
    let weather = call("weather", r#"{"city":"Oslo","days":3}"#);
    assert_parts(Hermes, one, std::slice::from_ref(&weather));
    assert_parts(
        Hermes,
        &format!("Let me see. {one}\n{one}\n"),
        &[text("Let me see. "), weather.clone(), weather.clone()],
    );
    assert_parts(
        Hermes,
        &format!("{one} Done, 1 < 2."),
        &[weather.clone(), text("Done, 1 < 2.")],
    );
    // SmolLM2's array of calls, and a call without the closing word.
    let array = r#"<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": null}}]</tool_call>"#;
    assert_parts(
        Hermes,
        array,
        &[call("a", "{}"), call("b", r#"{"x":null}"#)],
    );
    assert_parts(
        Hermes,
        one.strip_suffix("</tool_call>").unwrap(),
        &[weather],
    );
}

#[test]
fn the_closing_word_within_an_argument_does_not_close_the_call() {
    let answer = r#"<tool_call>{"name": "write", "arguments": {"text": "</tool_call> \" </tool_call>"}}</tool_call>!"#;
    assert_parts(
        Hermes,
        answer,
        &[
            call("write", r#"{"text":"</tool_call> \" </tool_call>"}"#),
            text("!"),
        ],
    );
}

#[test]
fn arguments_that_are_the_text_of_an_object_are_taken_as_one() {
    let answer = r#"<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>"#;
    assert_parts(Hermes, answer, &[call("f", r#"{"x": 1}"#)]);
}

#[test]
fn what_only_begins_as_a_call_is_text() {
    for answer in [
        "<tool_call>weather in Oslo</tool_call> or so",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>",
        "a < b, <tool, <tool_calls",
        "",
        "  ",
    ] {
        let expected: Vec<_> = [text(answer)]
            .into_iter()
            .filter(|_| !answer.is_empty())
            .collect();
        assert_parts(Hermes, answer, &expected);
    }
    for answer in [
        "{\"city\": \"Oslo\"}",
        "{not JSON",
        "{\"name\": \"f\"}",
        "Hello {\"name\": 1}",
        "<|python",
    ] {
        assert_parts(Llama3, answer, &[text(answer)]);
    }
    for answer in [
        "[1, 2]",
        "[link](url)",
        "[f(1)]",
        "[f(x=y)]",
        "[]",
        "[f(x=1)",
        "f(x=1)",
    ] {
        assert_parts(Python, answer, &[text(answer)]);
    }
    for answer in ["[TOOL_CALLS]none", "[{\"a\": 1}]", "[1]"] {
        assert_parts(Mistral, answer, &[text(answer)]);
    }
}

#[test]
fn a_whole_answer_of_llama_3_is_a_call() {
    let one = r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#;
    let weather = call("weather", r#"{"city":"Oslo"}"#);
    assert_parts(Llama3, one, std::slice::from_ref(&weather));
    assert_parts(
        Llama3,
        &format!("<|python_tag|>{one}; {one}"),
        &[weather.clone(), weather.clone()],
    );
    assert_parts(
        Llama3,
        &format!("\n{{\"type\": \"function\", \"function\": {one}}}"),
        &[weather],
    );
}

#[test]
fn answers_of_mistral_are_calls_with_the_word_or_without() {
    let both = [call("a", r#"{"x":1}"#), call("b", "{}")];
    let array = r#"[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]"#;
    assert_parts(Mistral, array, &both);
    assert_parts(Mistral, &format!("[TOOL_CALLS] {array}"), &both);
    for answer in [
        r#"[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}"#,
        r#"[TOOL_CALLS]a[CALL_ID]xyz[ARGS]{"x": 1}[TOOL_CALLS]b[CALL_ID]1[ARGS]{}"#,
    ] {
        assert_parts(Mistral, answer, &both);
    }
    let after_text = format!("Let me see.[TOOL_CALLS]{array}");
    let expected = [&[text("Let me see.")], &both[..]].concat();
    assert_parts(Mistral, &after_text, &expected);
}

/// Returns a tool with two texts and a number.
fn writer() -> Vec<Tool> {
    let text = json!({"type": "string"});
    let properties = json!({"path": text, "text": text, "mode": {"type": "integer"}});
    vec![Tool {
        name: "write".into(),
        description: None,
        parameters: json!({"type": "object", "properties": properties}),
    }]
}

#[track_caller]
fn assert_written(format: ToolFormat, answer: &str, expected: &[AnswerPart]) {
    for size in [1, 2, 3, 7, 1000] {
        let (mut parser, mut all) = (
            ToolCallParser::new(format).with_tools(&writer()),
            Vec::new(),
        );
        let letters: Vec<char> = answer.chars().collect();
        for piece in letters.chunks(size) {
            all.extend(parser.push(&piece.iter().collect::<String>()));
        }
        all.extend(parser.finish());
        assert_eq!(
            merged(all),
            expected,
            "{format:?}, {size} at a time: {answer}"
        );
    }
}

fn merged(parts: Vec<AnswerPart>) -> Vec<AnswerPart> {
    let mut merged = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(Text(before)), Text(text)) => before.push_str(&text),
            (_, part) => merged.push(part),
        }
    }
    merged
}

#[test]
fn calls_are_read_as_each_family_writes_them() {
    use ToolFormat::*;
    let one = call("write", r#"{"path":"1","text":"a <b>\nc","mode":7}"#);
    let sections = |open: &str, body: &str, close: &str| format!("{open}{body}{close}");
    let object = r#"{"path": "1", "text": "a <b>\nc", "mode": 7}"#;
    let cases = [
        (
            Xml,
            "<tool_call>\n<function=write>\n<parameter=path>\n1\n</parameter>\n<parameter=text>\na <b>\nc\n</parameter>\n\
             <parameter=mode>\n7\n</parameter>\n</function>\n</tool_call>"
                .to_owned(),
        ),
        (
            SeedXml,
            "<seed:tool_call><function=write><parameter=path>1</parameter><parameter=text>a <b>\nc</parameter>\
             <parameter=mode>7</parameter></function></seed:tool_call>"
                .to_owned(),
        ),
        (
            Glm,
            "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n\
             <arg_value>a <b>\nc</arg_value>\n<arg_key>mode</arg_key>\n<arg_value>7</arg_value>\n</tool_call>"
                .to_owned(),
        ),
        (
            MiniMax,
            "<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"path\">1</parameter>\n\
             <parameter name=\"text\">a <b>\nc</parameter>\n<parameter name=\"mode\">7</parameter>\n</invoke>\n\
             </minimax:tool_call>"
                .to_owned(),
        ),
        (
            DeepSeek,
            sections(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>",
                object,
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
        ),
        (
            DeepSeek,
            sections(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n",
                object,
                "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
        ),
        (
            Kimi,
            sections(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>",
                object,
                "<|tool_call_end|><|tool_calls_section_end|>",
            ),
        ),
        (
            Lfm2,
            "<|tool_call_start|>[write(path='1', text=\"a <b>\\nc\", mode=7)]<|tool_call_end|>".to_owned(),
        ),
        (
            Granite,
            format!("<|tool_call|>[{{\"name\": \"write\", \"arguments\": {object}}}]"),
        ),
        (
            Phi4,
            format!(
                "<|tool_call|>[{{\"type\": \"function\", \"function\": {{\"name\": \"write\", \"arguments\": \
                 {object}}}}}]<|/tool_call|>"
            ),
        ),
        (
            Phi4,
            format!("functools[{{\"name\": \"write\", \"arguments\": {object}}}]"),
        ),
        (
            FunctionGemma,
            "<start_function_call>call:write{path:<escape>1<escape>,text:<escape>a <b>\nc<escape>,mode:7}\
             <end_function_call>"
                .to_owned(),
        ),
        (
            Gemma4,
            "<|tool_call>call:write{path:<|\"|>1<|\"|>,text:<|\"|>a <b>\nc<|\"|>,mode:7}<tool_call|>".to_owned(),
        ),
        (
            Command,
            format!(
                "<|START_ACTION|>[{{\"tool_call_id\": \"0\", \"tool_name\": \"write\", \"parameters\": {object}}}]\
                 <|END_ACTION|>"
            ),
        ),
        (
            Nemotron,
            format!("<TOOLCALL>[{{\"name\": \"write\", \"arguments\": {object}}}]</TOOLCALL>"),
        ),
        (
            Python,
            "<|python_start|>[write(path='1', text='a <b>\\nc', mode=7)]<|python_end|>".to_owned(),
        ),
    ];
    for (format, answer) in cases {
        assert_written(format, &answer, std::slice::from_ref(&one));
        if format.marks().is_some() && !answer.starts_with("functools") {
            let expected = [text("Well. "), one.clone()];
            assert_written(format, &format!("Well. {answer}"), &expected);
        }
    }
}

#[test]
fn several_calls_and_nested_values_are_read_in_every_format_that_has_them() {
    use ToolFormat::*;
    let (a, b) = (call("a", r#"{"x":[1,{"y":"}"}]}"#), call("b", "{}"));
    for (format, answer) in [
        (
            Xml,
            "<tool_call><function=a><parameter=x>[1, {\"y\": \"}\"}]</parameter></function></tool_call>\n<tool_call>\
             <function=b></function></tool_call>",
        ),
        (
            Glm,
            "<tool_call>a<arg_key>x</arg_key><arg_value>[1, {\"y\": \"}\"}]</arg_value></tool_call><tool_call>b\
             </tool_call>",
        ),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": [1, {\"y\": \"}\"}]}<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>b<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            Lfm2,
            "<|tool_call_start|>[a(x=[1, {'y': '}'}]), b()]<|tool_call_end|>",
        ),
        (
            Gemma4,
            "<|tool_call>call:a{x:[1,{y:<|\"|>}<|\"|>}]}<tool_call|><|tool_call>call:b{}<tool_call|>",
        ),
    ] {
        assert_written(format, answer, &[a.clone(), b.clone()]);
    }
}

#[test]
fn the_closing_word_within_a_text_does_not_close_a_call_of_any_format() {
    use ToolFormat::*;
    let write = |text: &str| {
        let arguments = json!({"text": text});
        call("write", &arguments.to_string())
    };
    assert_written(
        Xml,
        "<tool_call><function=write><parameter=text></tool_call> </parameter></function></tool_call>",
        &[write("</tool_call> ")],
    );
    assert_written(
        Glm,
        "<tool_call>write<arg_key>text</arg_key><arg_value></tool_call></arg_value></tool_call>!",
        &[write("</tool_call>"), text("!")],
    );
}

#[test]
fn a_call_that_breaks_off_is_text() {
    use ToolFormat::*;
    for (format, answer) in [
        (Xml, "<tool_call><function=write"),
        (Glm, "<tool_call>write it<arg_key>text"),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{\"text",
        ),
        (Lfm2, "<|tool_call_start|>[write(text='a"),
        (Gemma4, "<|tool_call>call:write{text:<|\"|>a"),
        (Mistral, "[TOOL_CALLS]write[ARGS]{\"text"),
    ] {
        assert_written(format, answer, &[text(answer)]);
    }
}

#[test]
fn calls_as_python_writes_them_have_its_literals() {
    let answer =
        r#"[f(x=1, y=-2.5, z='it\'s', on=True, none=None), g.h(list=[1, "a", {'k': (2,)}],)]"#;
    let expected = [
        call("f", r#"{"x":1,"y":-2.5,"z":"it's","on":true,"none":null}"#),
        call("g.h", r#"{"list":[1,"a",{"k":[2]}]}"#),
    ];
    assert_parts(Python, answer, &expected);
    assert_parts(Python, &format!("```tool_code\n{answer}\n```"), &expected);
    assert_parts(Python, "```python\nf()\n```", &[call("f", "{}")]);
    let deep = format!("[f(x={})]", "[".repeat(100_000));
    assert_eq!(parts(Python, &deep, 50_000), [text(&deep)]);
}

#[test]
fn the_format_is_what_the_template_writes() {
    for (template, format) in [
        ("{{ '<tool_call>' }} <|im_start|>", Hermes),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", Mistral),
        (
            "<|start_header_id|> {\"name\": f, \"parameters\": p}",
            Llama3,
        ),
        ("<|python_tag|>", Llama3),
        ("[func_name1(params_name1=params_value1)]", Python),
        ("```tool_code", Python),
        ("<tool_call>\n<function=example>", ToolFormat::Xml),
        ("<tool_call>{name}<arg_key>", ToolFormat::Glm),
        ("<｜tool▁call▁begin｜>", ToolFormat::DeepSeek),
        (
            "<|start|> <|channel|>analysis<|message|>",
            ToolFormat::Harmony,
        ),
        ("<|tool_list_start|>", ToolFormat::Lfm2),
        ("<|tool|>tools<|/tool|>", ToolFormat::Phi4),
        ("write <|tool_call|> and a list", ToolFormat::Granite),
        ("<|tool_call>call:", ToolFormat::Gemma4),
        ("<start_function_call>", ToolFormat::FunctionGemma),
        ("<|tool_call_argument_begin|>", ToolFormat::Kimi),
        ("<|im_start|>", Hermes),
    ] {
        assert_eq!(
            ToolFormat::of_template(Some(template)),
            format,
            "{template}"
        );
    }
    assert_eq!(ToolFormat::of_template(None), Hermes);
}

#[test]
fn a_tool_that_is_described_wrongly_names_the_field() {
    for (tool, field) in [
        (json!({}), "name"),
        (json!({ "name": "" }), "name"),
        (json!({ "name": "a b" }), "name"),
        (json!({ "name": "a".repeat(129) }), "name"),
        (
            json!({ "function": { "name": "f", "description": 1 } }),
            "description",
        ),
        (
            json!({ "function": { "name": "f", "parameters": [] } }),
            "parameters",
        ),
    ] {
        let error = Tool::from_json(&tool).unwrap_err().to_string();
        assert!(error.starts_with(&format!("a tool's {field}: ")), "{error}");
    }
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    assert_eq!(Tool::from_json(&tool).unwrap().to_json(), tool);
    Tool::from_json(&json!({ "name": "a".repeat(128) })).unwrap();
}

/// Returns the format with words that are text.
pub(super) fn plain(format: ToolFormat) -> (ToolFormat, &'static Words) {
    static WORDS: std::sync::LazyLock<Words> = std::sync::LazyLock::new(Words::default);
    (format, &WORDS)
}

pub(super) fn tools() -> Vec<Tool> {
    let point = json!({
        "type": "object",
        "properties": { "at": { "$ref": "#/$defs/point" } },
        "required": ["at"],
        "additionalProperties": false,
        "$defs": { "point": { "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 2 } },
    });
    let weather = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Oslo", "Rome"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let tool = |name: &str, parameters| Tool {
        name: name.into(),
        description: None,
        parameters,
    };
    vec![tool("move", point), tool("weather", weather)]
}

fn tokenizer() -> Tokenizer {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer/bpe-gpt-2");
    Tokenizer::from_folder(&folder, None, &[1001]).unwrap()
}

pub(super) fn grammars() -> Grammars {
    Grammars::new(Arc::new(tokenizer())).unwrap()
}

/// Returns whether the constraint accepts `text`.
pub(super) fn may_be(grammars: &Grammars, form: &triad_grammar::GrammarSource, text: &str) -> bool {
    let mut constraint = grammars.compile(form).unwrap().begin();
    // Each character is a token, so that every text can be encoded.
    let tokenizer = tokenizer();
    let bytes = text.chars().all(|letter| {
        let token = tokenizer.encode_part(&letter.to_string()).unwrap()[0];
        constraint.allowed(&[token]).unwrap() == 1 && constraint.accept(token).is_ok()
    });
    bytes && (constraint.may_end() || constraint.is_complete())
}

#[test]
fn an_answer_that_must_be_a_call_is_one_of_the_tools_with_arguments_of_its_schema() {
    let (grammars, tools) = (grammars(), tools());
    for format in [Hermes, Llama3, Mistral, Python] {
        let field = format.arguments();
        let spelled = |name: &str, arguments: &str| {
            let call = format!(r#"{{"name": "{name}", "{field}": {arguments}}}"#);
            match format {
                Hermes | Python => format!("<tool_call>\n{call}\n</tool_call>"),
                Llama3 => call,
                Mistral => format!("[{call}]"),
                format => panic!("{format:?}"),
            }
        };
        let (move_it, weather) = (
            spelled("move", r#"{"at": [1, -20]}"#),
            spelled("weather", r#"{"city": "Rome"}"#),
        );
        let required = grammar(plain(format), &tools, &ToolChoice::Required, false)
            .unwrap()
            .unwrap();
        let named = grammar(
            plain(format),
            &tools,
            &ToolChoice::Named("weather".into()),
            false,
        )
        .unwrap()
        .unwrap();
        assert!(may_be(&grammars, &required, &move_it), "{format:?}");
        assert!(may_be(&grammars, &required, &weather), "{format:?}");
        assert!(may_be(&grammars, &named, &weather), "{format:?}");
        assert!(!may_be(&grammars, &named, &move_it), "{format:?}");
        for wrong in [
            spelled("weather", r#"{"city": "Bonn"}"#),
            spelled("weather", r#"{"at": [1, 2]}"#),
            spelled("move", r#"{"at": [1]}"#),
            spelled("stop", "{}"),
            "Hello".into(),
        ] {
            assert!(!may_be(&grammars, &required, &wrong), "{format:?}: {wrong}");
        }
        // The parser of the format finds the calls that the grammar allows.
        assert_parts(format, &weather, &[call("weather", r#"{"city":"Rome"}"#)]);
    }
}

#[test]
fn several_calls_are_allowed_where_they_may_be_parallel() {
    let (grammars, tools) = (grammars(), tools());
    let one =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let two = format!("{one}\n{one}");
    for (is_parallel, allowed) in [(true, true), (false, false)] {
        let form = grammar(plain(Hermes), &tools, &ToolChoice::Required, is_parallel)
            .unwrap()
            .unwrap();
        assert_eq!(may_be(&grammars, &form, &two), allowed);
        assert!(may_be(&grammars, &form, one));
    }
    assert_eq!(parts(Hermes, &two, 4).len(), 2);
}

#[test]
fn a_function_that_is_demanded_by_its_name_is_called_once() {
    let (grammars, tools) = (grammars(), tools());
    let call = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
    let (hermes, mistral) = (
        format!("<tool_call>\n{call}\n</tool_call>"),
        format!("[{call}]"),
    );
    let cases = [
        (Hermes, hermes.clone(), format!("{hermes}\n{hermes}")),
        (Mistral, mistral, format!("[{call}, {call}]")),
    ];
    for (format, one, two) in cases {
        let named = grammar(
            plain(format),
            &tools,
            &ToolChoice::Named("weather".into()),
            true,
        )
        .unwrap()
        .unwrap();
        assert!(
            may_be(&grammars, &named, &one) && !may_be(&grammars, &named, &two),
            "{format:?}"
        );
        let any = grammar(plain(format), &tools, &ToolChoice::Required, true)
            .unwrap()
            .unwrap();
        assert!(may_be(&grammars, &any, &two), "{format:?}");
    }
}

#[test]
fn a_call_has_no_arguments_that_its_schema_does_not_name() {
    let grammars = grammars();
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    let tool = |parameters| {
        vec![Tool {
            name: "f".into(),
            description: None,
            parameters,
        }]
    };
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let form = grammar(plain(Hermes), &tool(schema), &ToolChoice::Required, false)
        .unwrap()
        .unwrap();
    assert!(may_be(&grammars, &form, &call(r#"{"a": 1}"#)));
    assert!(!may_be(&grammars, &form, &call(r#"{"a": 1, "b": 2}"#)));
    let none = Tool::from_json(&json!({ "name": "f" })).unwrap();
    let form = grammar(plain(Hermes), &[none], &ToolChoice::Required, false)
        .unwrap()
        .unwrap();
    assert!(
        may_be(&grammars, &form, &call("{}")) && !may_be(&grammars, &form, &call(r#"{"b": 2}"#))
    );
}

#[test]
fn a_call_that_is_left_to_the_model_has_no_form_and_one_of_no_tool_is_an_error() {
    assert!(
        grammar(plain(Hermes), &tools(), &ToolChoice::Auto, true)
            .unwrap()
            .is_none()
    );
    assert!(
        grammar(plain(Hermes), &[], &ToolChoice::None, true)
            .unwrap()
            .is_none()
    );
    let missing = grammar(
        plain(Hermes),
        &tools(),
        &ToolChoice::Named("stop".into()),
        true,
    )
    .unwrap_err()
    .to_string();
    assert_eq!(
        missing,
        "the tool stop has to be called, but it is not among the tools"
    );
    assert!(grammar(plain(Hermes), &[], &ToolChoice::Required, true).is_err());
}
