//! The field `lora`: adapters that requests select.

use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::{Adapters, Cancel, GenerateOptions, ScaledAdapter, generate};
use triad_model::tokenizer::EncodeOptions;

use crate::support::Server;

const TEXT: &str = "/v1/completions";
const PROMPT: &str = "What is said with an adapter, and what without? ";

/// Returns the values of `lora` under test.
fn asked() -> [Value; 6] {
    [
        json!([]),
        json!([{"name": "one"}]),
        json!([{"name": "other", "scale": 1}]),
        json!([{"name": "one", "scale": -0.5}]),
        json!([{"name": "one", "scale": 0.5}, {"name": "other"}]),
        json!([{"name": "one", "scale": 0}]),
    ]
}

/// Returns the continuation that the engine generates without the server.
fn expected(server: &Server, lora: &Value) -> String {
    let scaled = lora.as_array().unwrap().iter().map(|one| {
        let (_, adapter) = server
            .adapters
            .iter()
            .find(|(name, _)| *name == one["name"])
            .unwrap();
        ScaledAdapter {
            adapter: Arc::clone(adapter),
            scale: one["scale"].as_f64().unwrap_or(1.0) as f32,
        }
    });
    let mut session = server.engine.session();
    session
        .set_adapters(&Adapters::new(scaled).unwrap())
        .unwrap();
    let prompt = server
        .engine
        .model()
        .tokenizer()
        .unwrap()
        .encode(&PROMPT.repeat(8), EncodeOptions::TEXT)
        .unwrap();
    let options = GenerateOptions {
        max_tokens: Some(24),
        ..GenerateOptions::default()
    };
    generate(&mut session, &prompt, &options, &Cancel::new(), &mut |_| {})
        .unwrap()
        .text
}

#[test]
fn each_request_is_answered_with_its_own_adapters() {
    let alone: Vec<_> = {
        let server = Server::start();
        asked().iter().map(|lora| expected(&server, lora)).collect()
    };
    assert_eq!(alone[0], alone[5], "a scale of zero is none");
    assert!(
        (0..5).all(|one| (0..one).all(|other| alone[one] != alone[other])),
        "{alone:?}"
    );
    // Enough memory for the KV caches of all requests.
    let server = Server::with_kv_memory(Some(64 << 20), |_| {});
    std::thread::scope(|scope| {
        for (lora, alone) in asked().into_iter().zip(&alone) {
            let server = &server;
            scope.spawn(move || {
                for round in 0..3 {
                    let body = json!({"prompt": PROMPT.repeat(8), "max_tokens": 24, "lora": lora, "n": 1 + round % 2});
                    let completion = server.post(TEXT, &body).good();
                    for choice in completion["choices"].as_array().unwrap() {
                        assert_eq!(choice["text"], *alone, "{lora}");
                    }
                    let cached = completion["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
                    // Prompts that were computed with other adapters are not reused.
                    let is_plain = [&asked()[0], &asked()[5]].contains(&&lora);
                    assert!(if round == 0 { is_plain || cached == 0 } else { cached > 0 }, "{lora}: {cached}");
                }
            });
        }
    });
}

#[test]
fn conversations_and_scores_have_adapters_too() {
    let server = Server::start();
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24});
        crate::support::add(&mut body, more);
        server.post("/v1/chat/completions", &body).good()["choices"][0]["message"]["content"]
            .clone()
    };
    let with = chat(json!({"lora": [{"name": "one"}]}));
    assert_ne!(with, chat(json!({})));
    assert_eq!(with, chat(json!({"lora": [{"name": "one", "scale": 1.0}]})));
    let lora = json!([{"name": "one"}]);
    let response = json!({"input": PROMPT, "max_output_tokens": 24, "lora": lora});
    assert_eq!(
        server.post("/v1/responses", &response).good()["output"][0]["content"][0]["text"],
        with
    );
    let messages = json!([{"role": "user", "content": PROMPT}]);
    let message = json!({"messages": messages, "max_tokens": 24, "lora": lora});
    assert_eq!(
        server.post("/v1/messages", &message).good()["content"][0]["text"],
        with
    );
    let score = |more: Value| {
        let mut body = json!({"prompt": PROMPT, "max_tokens": 0, "echo": true, "logprobs": 1});
        crate::support::add(&mut body, more);
        server.post(TEXT, &body).good()["choices"][0]["logprobs"]["token_logprobs"].clone()
    };
    assert_ne!(
        score(json!({"lora": [{"name": "other"}]})),
        score(json!({}))
    );
    assert_eq!(
        server.get("/props").good()["models"][0]["adapters"],
        json!(["one", "other"])
    );
}

#[test]
fn an_adapter_that_is_not_there_or_a_scale_that_makes_no_sense_is_refused() {
    let server = Server::start();
    for (lora, mention) in [
        (
            json!([{"name": "third"}]),
            "there is no adapter \"third\" here: expected one of those that the server was started with: one, other",
        ),
        (json!([{"name": "one", "scale": 1e9}]), "out of range"),
        (
            json!([{"name": "one", "scale": "much"}]),
            "lora[0].scale: is a string, expected a number",
        ),
        (json!([{"scale": 1}]), "lora[0].name: it is missing"),
        (json!("one"), "lora: is a string, expected an array"),
        (
            json!(vec![json!({"name": "one"}); 17]),
            "17 adapters, expected at most 16",
        ),
    ] {
        let error = server
            .post(TEXT, &json!({"prompt": "a", "lora": lora}))
            .error(400);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(mention), "{message}");
    }
}
