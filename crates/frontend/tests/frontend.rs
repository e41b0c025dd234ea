//! The front end from the path of a model to an answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use triad_engine::{
    Cancel, EngineOptions, Event, Finish, GenerateOptions, LoadOptions, Model, SessionOptions,
    Threads,
};
use triad_frontend::tool_calls::Tool;
use triad_frontend::{Error, answer, chat, models};
use triad_model::gguf::Value;
use triad_model::template::{ChatTemplate, Message};
use triad_model::testing::tiny_llama;

/// Writes a model with the tokens a, b, c and d that continues every text with a. It has no chat template.
fn write_model(folder: &Path) -> PathBuf {
    let texts =
        |texts: &[&str]| Value::Strings(texts.iter().map(|&text| text.to_owned()).collect());
    let model = tiny_llama()
        .field("tokenizer.ggml.model", Value::String("gpt2".to_owned()))
        .field("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()))
        .field("tokenizer.ggml.tokens", texts(&["a", "b", "c", "d"]))
        .field("tokenizer.ggml.merges", texts(&[]))
        .field("tokenizer.ggml.eos_token_id", Value::Integer(3));
    let path = folder.join("model.gguf");
    std::fs::write(&path, model.build()).unwrap();
    path
}

fn model() -> Arc<Model> {
    let folder = tempfile::tempdir().unwrap();
    let options = LoadOptions {
        threads: Threads::Count(1),
        ..Default::default()
    };
    Arc::new(models::load(&write_model(folder.path()), &options, &mut |_, _| {}).unwrap())
}

fn of_context(context: usize) -> EngineOptions {
    let session = SessionOptions {
        context,
        ..SessionOptions::default()
    };
    EngineOptions {
        session,
        ..EngineOptions::default()
    }
}

#[test]
fn an_answer_is_streamed_until_its_length() {
    let model = model();
    let prompt = chat::encode(&model, "tiny", &[Message::new("user", "abc")], 16).unwrap();
    let mut session = answer::engine(&model, &of_context(16)).unwrap().session();
    let options = GenerateOptions {
        max_tokens: Some(5),
        ..GenerateOptions::default()
    };
    let mut text = String::new();
    let answer = answer::stream(
        &mut session,
        &prompt,
        &options,
        &Cancel::new(),
        &mut |event| {
            if let Event::Text(more) = event {
                text.push_str(more);
            }
            Ok(())
        },
    );
    let answer = answer.unwrap();
    assert_eq!(
        (text.as_str(), answer.text.as_str(), answer.finish),
        ("aaaaa", "aaaaa", Finish::Length)
    );
}

#[test]
fn an_answer_that_cannot_be_passed_on_ends_with_the_reason() {
    let model = model();
    let mut session = answer::engine(&model, &of_context(16)).unwrap().session();
    let mut texts = 0;
    let failed = answer::stream(
        &mut session,
        &[0, 1],
        &GenerateOptions::default(),
        &Cancel::new(),
        &mut |event| {
            if let Event::Text(_) = event {
                texts += 1;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        },
    );
    let Err(Error::Output { source }) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!((source.kind(), texts), (io::ErrorKind::BrokenPipe, 1));
    assert!(
        session.tokens().len() < 16,
        "the answer ended before the context was full"
    );
}

#[test]
fn a_session_that_the_model_was_not_made_for_is_refused() {
    let error = |options| {
        answer::engine(&model(), &options)
            .err()
            .unwrap()
            .to_string()
    };
    assert_eq!(
        error(of_context(17)),
        "a context of 17 tokens was asked for, but the model was made for at most 16"
    );
    let session = SessionOptions {
        context: 16,
        chunk: 0,
        ..SessionOptions::default()
    };
    assert!(
        error(EngineOptions {
            session,
            ..EngineOptions::default()
        })
        .contains("chunk length is 0")
    );
}

#[test]
fn a_prompt_that_is_too_long_is_refused_with_its_tokens() {
    let model = model();
    let encode = |text: &str| chat::encode(&model, "tiny", &[Message::new("user", text)], 4);
    assert_eq!(encode("abca").unwrap(), [0, 1, 2, 0]);
    let error = |text: &str| encode(text).unwrap_err().to_string();
    assert_eq!(
        error("abcab"),
        "the prompt has 5 tokens, but the context is 4"
    );
    assert_eq!(
        error(&"abc".repeat(1000)),
        "the prompt has 3000 tokens, but the context is 4"
    );
    // The prompt is not read to its end.
    assert_eq!(
        error(&"abc ".repeat(1000)),
        "the prompt has more than 6 tokens, but the context is 4"
    );
}

#[test]
fn a_template_without_a_system_role_has_the_functions_in_the_first_message_of_the_user() {
    let tools = [Tool::from_json(&json!({"name": "f"})).unwrap()];
    let of = |first: &str| {
        format!(
            "{first}{{% for m in messages %}}[{{{{ m.role }}}}: {{{{ m.content }}}}]{{% endfor %}}"
        )
    };
    let refuses = of(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
    );
    let drops = "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}: {{ m.content }}]{% endif %}{% endfor %}";
    let messages = [
        json!({"role": "user", "content": "Hi"}),
        json!({"role": "user", "content": "Ho"}),
    ];
    for source in [&refuses, drops] {
        let template = ChatTemplate::new(source, None, None).unwrap();
        let text = chat::render_with_tools(
            &template,
            "tiny",
            (&messages, &tools),
            (false, &Cancel::new()),
        )
        .unwrap();
        assert!(
            text.starts_with("[user: You may call")
                && text.contains("</tool_call>\n\nHi][user: Ho]"),
            "{text}"
        );
        assert!(text.contains("\"name\":\"f\""), "{text}");
    }
    let template = ChatTemplate::new(of(""), None, None).unwrap();
    let text = chat::render_with_tools(
        &template,
        "tiny",
        (&messages, &tools),
        (false, &Cancel::new()),
    )
    .unwrap();
    assert!(
        text.starts_with("[system: You may call") && text.ends_with("][user: Hi][user: Ho]"),
        "{text}"
    );
}

#[test]
fn an_earlier_call_without_arguments_has_an_object_without_fields() {
    let of_tools = "{# tools #}{% for m in messages %}{% for c in m.tool_calls or [] %}\
                    {% for name, value in c.function.arguments | items %}{{ name }}{% endfor %}\
                    {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for arguments in [json!(""), json!(" \n"), json!(null), json!({}), json!("{}")] {
        let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = [json!({"role": "assistant", "content": null, "tool_calls": [call]})];
        for (source, expected) in [
            (of_tools, "{}"),
            (
                plain,
                "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>",
            ),
        ] {
            let template = ChatTemplate::new(source, None, None).unwrap();
            let text = chat::render_with_tools(
                &template,
                "tiny",
                (&messages, &[]),
                (false, &Cancel::new()),
            )
            .unwrap();
            assert_eq!(text, expected, "{arguments}");
        }
    }
}
