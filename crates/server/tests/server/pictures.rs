//! Pictures in requests of all APIs. `tests/golden/pictures/chat.py` made the model and the answers.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use triad_server::ServerOptions;

use crate::support::{Server, post};

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden().join("files").join(name)).unwrap()
}

fn url(name: &str) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file(name)))
}

/// The first conversation: its picture, its text, and the number of its tokens.
pub fn talk() -> (String, String, usize) {
    let lines = std::fs::read_to_string(golden().join("chat.json")).unwrap();
    let talk: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let text = |pointer: &str| talk.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let tokens = talk["tokens"].as_array().unwrap().iter();
    let count = tokens.map(|token| token[1].as_u64().unwrap_or(1) as usize);
    (
        text("/files/0"),
        text("/messages/0/content/1/text"),
        count.sum(),
    )
}

fn server() -> Server {
    server_with(|_| {})
}

pub fn server_with(change: impl FnOnce(&mut ServerOptions)) -> Server {
    Server::of_model_with(&golden().join("chat"), change)
}

/// Returns how many pictures the server has decoded.
fn decoded(server: &Server) -> u64 {
    decoded_with(server, "")
}

/// Returns the same by a request with these `headers`, each with a line end.
fn decoded_with(server: &Server, headers: &str) -> u64 {
    let metrics = server.send(&format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    ));
    let metrics = metrics.body;
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with("triad_decoded_pictures_total{"));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{metrics}"))
}

fn chat(name: &str, text: &str) -> Value {
    chat_by_url(&url(name), text)
}

pub fn chat_by_url(url: &str, text: &str) -> Value {
    let picture = json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}});
    let content = json!([picture, {"type": "text", "text": text}]);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0})
}

#[test]
fn all_apis_give_the_same_answer_to_a_picture() {
    let server = server();
    let (name, text, tokens) = talk();
    let base64 = STANDARD.encode(file(&name));
    let answer = server
        .post("/v1/chat/completions", &chat(&name, &text))
        .good();
    let said = &answer["choices"][0]["message"]["content"];
    assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    assert!(
        said.as_str().is_some_and(|text| !text.is_empty()),
        "{answer}"
    );
    // Another picture is another prompt.
    let other = server
        .post("/v1/chat/completions", &chat("gray.png", &text))
        .good();
    assert_ne!(&other["choices"][0]["message"]["content"], said);
    let image = json!({"type": "input_image", "image_url": url(&name), "detail": "auto"});
    let content = json!([image, {"type": "input_text", "text": text}]);
    let body = json!({
        "input": [{"role": "user", "content": content}], "max_output_tokens": 12, "temperature": 0
    });
    let response = server.post("/v1/responses", &body).good();
    assert_eq!(&response["output"][0]["content"][0]["text"], said);
    assert_eq!(response["usage"]["input_tokens"], tokens);
    let source = json!({"type": "base64", "media_type": "image/png", "data": base64});
    let content = json!([{"type": "image", "source": source}, {"type": "text", "text": text}]);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0});
    let message = server.post("/v1/messages", &body).good();
    assert_eq!(&message["content"][0]["text"], said);
    let options = json!({"num_predict": 12, "temperature": 0});
    let body = json!({
        "messages": [{"role": "user", "content": text, "images": [base64]}], "options": options, "stream": false
    });
    let ollama = server.post("/api/chat", &body).good();
    assert_eq!(&ollama["message"]["content"], said);
    let body = json!({"prompt": text, "images": [base64], "options": options, "stream": false});
    let ollama = server.post("/api/generate", &body).good();
    assert_eq!(&ollama["response"], said);
}

#[test]
fn pictures_in_results_of_calls_are_read_the_same_in_all_apis() {
    let server = server();
    let (name, text, _) = talk();
    let said = |role: &str, content: Value| json!({"role": role, "content": content});
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "shot", "arguments": "{}"}});
    let url_part = json!({"type": "image_url", "image_url": {"url": url(&name)}});
    let result = json!([{"type": "text", "text": text}, url_part]);
    let body = json!({"messages": [
        said("user", json!("Hi")), {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": result},
    ]});
    // A template that does not know calls has results in a user's message.
    let prompt = server.post("/apply-template", &body).good()["prompt"].clone();
    assert_eq!(prompt.as_str().unwrap().matches("<image>").count(), 1);
    let mut body = body;
    body["max_tokens"] = 12.into();
    body["temperature"] = 0.into();
    let answered = server.post("/v1/chat/completions", &body).good();
    let source =
        json!({"type": "base64", "media_type": "image/png", "data": STANDARD.encode(file(&name))});
    let blocks = json!([{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "text", "text": text}, {"type": "image", "source": source}]}]);
    let used = json!([{"type": "tool_use", "id": "a", "name": "shot", "input": {}}]);
    let body = json!({"messages": [said("user", json!("Hi")), said("assistant", used), said("user", blocks)],
        "max_tokens": 12, "temperature": 0});
    let message = server.post("/v1/messages", &body).good();
    let output = json!([{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url(&name)}]);
    let body = json!({"max_output_tokens": 12, "temperature": 0, "input": [
        said("user", json!("Hi")), {"type": "function_call", "call_id": "a", "name": "shot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": output},
    ]});
    let response = server.post("/v1/responses", &body).good();
    let said = &answered["choices"][0]["message"]["content"];
    assert_eq!(&response["output"][0]["content"][0]["text"], said);
    assert_eq!(&message["content"][0]["text"], said);
    assert_eq!(
        response["usage"]["input_tokens"],
        answered["usage"]["prompt_tokens"]
    );
}

#[test]
fn tokens_of_pictures_are_counted_and_a_second_question_reuses_them() {
    let server = server();
    let (name, text, tokens) = talk();
    let body = chat(&name, &text);
    let messages = json!({"messages": body["messages"]});
    assert_eq!(server.post("/tokenize", &messages).good()["count"], tokens);
    let prompt = server.post("/apply-template", &messages).good();
    assert_eq!(
        prompt["prompt"]
            .as_str()
            .unwrap()
            .matches("<image>")
            .count(),
        1
    );
    let first = server.post("/v1/chat/completions", &body).good();
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&first), Some(0));
    let second = server
        .post("/v1/chat/completions", &chat(&name, "And what is that?"))
        .good();
    assert!(cached(&second) > Some(0), "{second}");
}

#[test]
fn a_second_question_about_a_picture_decodes_nothing_and_counting_tokens_never_does() {
    let server = server();
    let (name, text, tokens) = talk();
    let body = chat(&name, &text);
    let messages = json!({"messages": body["messages"]});
    assert_eq!(server.post("/tokenize", &messages).good()["count"], tokens);
    assert_eq!(decoded(&server), 0);
    let said = |answer: Value| answer["choices"][0]["message"]["content"].clone();
    let first = said(server.post("/v1/chat/completions", &body).good());
    assert_eq!(decoded(&server), 1);
    let second = said(server.post("/v1/chat/completions", &body).good());
    assert_eq!((decoded(&server), second), (1, first));
    // The same picture twice in one request is decoded once, another one once more.
    let mut twice = chat("gray.png", &text);
    let one = twice["messages"][0]["content"][0].clone();
    twice["messages"][0]["content"]
        .as_array_mut()
        .unwrap()
        .insert(0, one);
    server.post("/v1/chat/completions", &twice).good();
    assert_eq!(decoded(&server), 2);
    // A picture that breaks off after its head is counted, but not answered.
    let url = format!(
        "data:image/png;base64,{}",
        STANDARD.encode(&file(&name)[..60])
    );
    let broken = chat_by_url(&url, &text);
    let messages = json!({"messages": broken["messages"]});
    assert_eq!(server.post("/tokenize", &messages).good()["count"], tokens);
    server.post("/v1/chat/completions", &broken).error(400);
}

#[test]
fn keys_do_not_find_pictures_of_each_other() {
    let server = server_with(|options| {
        options.api_keys = vec!["one".into(), "other".into()];
        options.metrics_key = Some("metrics".into());
    });
    let decoded = || decoded_with(&server, "Authorization: Bearer metrics\r\n");
    let (name, text, _) = talk();
    let body = chat(&name, &text).to_string();
    let ask = |key: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        server
            .send(&post("/v1/chat/completions", &body, &headers))
            .good()
    };
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&ask("one")), Some(0));
    assert_eq!(decoded(), 1);
    assert_eq!(cached(&ask("other")), Some(0));
    assert_eq!(decoded(), 2);
    assert!(cached(&ask("one")) > Some(0));
    assert_eq!(decoded(), 2);
}

#[test]
fn the_limits_on_pictures_are_those_of_the_server_and_named() {
    let (name, text, _) = talk();
    let server = server_with(|options| (options.max_images, options.max_image_patches) = (1, 100));
    let refused = |body: &Value| {
        let error = server.post("/v1/chat/completions", body).error(400);
        (
            error["param"].as_str().unwrap().to_owned(),
            error["message"].as_str().unwrap().to_owned(),
        )
    };
    let (param, message) = refused(&chat(&name, &text));
    assert_eq!(param, "messages[0].content[0].image_url");
    assert!(message.contains("(--max-image-patches)"), "{message}");
    let mut body = chat(&name, &text);
    let one = body["messages"][0]["content"][0].clone();
    body["messages"][0]["content"] = vec![one; 2].into();
    let (param, message) = refused(&body);
    assert_eq!(param, "messages[0].content[1].image_url");
    assert!(message.contains("(--max-images)"), "{message}");
}

#[test]
fn pictures_that_take_more_memory_than_there_is_are_decoded_one_request_after_the_other() {
    let server = server_with(|options| (options.image_bytes, options.parallel) = (1, 4));
    let (_, text, _) = talk();
    let names = ["28x28.png", "gray.png", "31x33.png", "rgba.png"];
    std::thread::scope(|scope| {
        for name in names {
            let (server, text) = (&server, &text);
            scope.spawn(move || {
                server
                    .post("/v1/chat/completions", &chat(name, text))
                    .good()
            });
        }
    });
    assert_eq!(decoded(&server), 4);
}

#[test]
fn what_is_not_a_picture_is_refused_by_its_field() {
    let server = server();
    let broken = STANDARD.encode(&file("31x33.png")[..200]);
    let cases = [
        ("data:image/png;base64,aGVsbG8=", "this is not a picture"),
        ("data:image/png;base64,a b", "not valid base64"),
        ("data:text/plain;base64,aGk=", "is not that of a picture"),
        ("https://example.org/a.png", "(--allow-image-urls)"),
        ("a.png", "is not a data: URL"),
        (&format!("data:image/png;base64,{broken}"), "truncated"),
    ];
    for (url, problem) in cases {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
        let error = server.post("/v1/chat/completions", &body).error(400);
        assert_eq!(
            error["param"], "messages[0].content[0].image_url",
            "{error}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(problem),
            "{error}"
        );
    }
    let (name, text, _) = talk();
    let mut body = chat(&name, &format!("{text} <image>"));
    let error = server.post("/v1/chat/completions", &body).error(400);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("<image> 2 times"),
        "{error}"
    );
    body = chat(&name, &text);
    let one = body["messages"][0]["content"][0].clone();
    body["messages"][0]["content"] = vec![one; 65].into();
    let error = server.post("/v1/chat/completions", &body).error(400);
    assert_eq!(error["param"], "messages[0].content[64].image_url");
}

#[test]
fn a_model_that_reads_only_text_refuses_pictures() {
    let server = Server::start();
    let (name, text, _) = talk();
    let error = server
        .post("/v1/chat/completions", &chat(&name, &text))
        .error(400);
    assert_eq!(error["param"], "messages[0].content[0].image_url");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("this model reads no pictures"),
        "{message}"
    );
    let body = json!({"prompt": text, "images": ["aGk="], "stream": false});
    let error = server.post("/api/generate", &body);
    assert_eq!(error.status, 400);
}

#[test]
fn props_and_capabilities_say_whether_the_model_reads_pictures() {
    for (server, reads) in [(server(), true), (Server::start(), false)] {
        let props = server.get("/props").good();
        assert_eq!(
            props["modalities"],
            json!({"vision": reads, "audio": false})
        );
        let shown = server.post("/api/show", &json!({})).good();
        let capabilities = shown["capabilities"].as_array().unwrap();
        assert_eq!(capabilities.contains(&json!("vision")), reads, "{shown}");
    }
}
