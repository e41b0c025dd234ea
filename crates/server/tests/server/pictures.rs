//! Pictures in requests of all APIs. `tests/golden/pictures/chat.py` made the model and the answers.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::Server;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(golden().join("files").join(name)).unwrap()
}

fn url(name: &str) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file(name)))
}

/// The first conversation: its picture, its text, and the number of its tokens.
fn talk() -> (String, String, usize) {
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
    Server::of_model(&golden().join("chat"))
}

fn chat(name: &str, text: &str) -> Value {
    let picture = json!({"type": "image_url", "image_url": {"url": url(name), "detail": "high"}});
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
fn what_is_not_a_picture_is_refused_by_its_field() {
    let server = server();
    let broken = STANDARD.encode(&file("31x33.png")[..200]);
    let cases = [
        ("data:image/png;base64,aGVsbG8=", "this is not a picture"),
        ("data:image/png;base64,a b", "not valid base64"),
        ("data:text/plain;base64,aGk=", "is not that of a picture"),
        (
            "https://example.org/a.png",
            "fetches no pictures from a network",
        ),
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
