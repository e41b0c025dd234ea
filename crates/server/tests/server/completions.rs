//! `/v1/completions`, `/tokenize`, `/detokenize` and `/apply-template`.

use serde_json::{Value, json};
use triad_engine::{Branch, Cancel, GenerateOptions, generate};
use triad_model::tokenizer::EncodeOptions;

use crate::support::{NAME, Server};

const PATH: &str = "/v1/completions";

fn tokens(server: &Server, text: &str) -> Vec<u32> {
    server
        .engine
        .model()
        .tokenizer()
        .unwrap()
        .encode(text, EncodeOptions::TEXT)
        .unwrap()
}

/// Returns the continuation that the engine generates without the server.
fn expected(server: &Server, prompt: &[u32], count: usize) -> String {
    let options = GenerateOptions {
        max_tokens: Some(count),
        ..GenerateOptions::default()
    };
    generate(
        &mut server.engine.session(),
        prompt,
        &options,
        &Cancel::new(),
        &mut |_| {},
    )
    .unwrap()
    .text
}

/// Returns all numbers except the first one. They are f32 values written as f64.
fn numbers(values: &Value) -> Vec<f32> {
    values
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(|value| value.as_f64().unwrap() as f32)
        .collect()
}

#[test]
fn texts_and_tokens_are_continued_one_or_many() {
    let server = Server::start();
    let (one, two) = (tokens(&server, "One text"), tokens(&server, "and another"));
    let texts = [expected(&server, &one, 16), expected(&server, &two, 16)];
    for (prompt, count) in [
        (json!("One text"), 1),
        (json!(one), 1),
        (json!(["One text", "and another"]), 2),
        (json!([one, two]), 2),
    ] {
        let completion = server
            .post(PATH, &json!({"model": NAME, "prompt": prompt}))
            .good();
        let choices = completion["choices"].as_array().unwrap();
        let found: Vec<_> = choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(found, texts[..count], "{prompt}");
        assert_eq!(completion["usage"]["completion_tokens"], 16 * count);
    }
}

#[test]
fn an_echo_tells_what_the_engine_scores() {
    let server = Server::start();
    let text = "abc, the ab of scoring".repeat(9);
    let prompt = tokens(&server, &text);
    let branch = Branch {
        tokens: &prompt,
        scored_from: 1,
    };
    let score = server
        .engine
        .session()
        .score(&[branch], &Cancel::new(), |_| {})
        .unwrap()
        .remove(0);
    let expected = &score.log_probabilities;
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0});
    for body in [
        body.clone(),
        json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0}),
    ] {
        let completion = server.post(PATH, &body).good();
        let told = &completion["choices"][0]["logprobs"];
        assert_eq!(completion["choices"][0]["text"], text);
        assert_eq!(
            (
                told["tokens"].as_array().unwrap().len(),
                &told["token_logprobs"][0]
            ),
            (prompt.len(), &Value::Null)
        );
        assert_eq!(&numbers(&told["token_logprobs"]), expected);
        let sum: f64 = told["token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_f64)
            .sum();
        assert!((sum - score.log_likelihood()).abs() < 1e-9);
        assert_eq!(completion["usage"]["completion_tokens"], 0);
        // The same check as in lm-evaluation-harness: whether each token is the most likely one.
        let top = told["top_logprobs"].as_array().unwrap().iter().skip(1);
        let largest = top.map(|top| {
            let values = top.as_object().unwrap().values();
            values.filter_map(Value::as_f64).fold(f64::MIN, f64::max)
        });
        let tokens = told["token_logprobs"].as_array().unwrap().iter().skip(1);
        let is_greedy = largest
            .zip(tokens)
            .all(|(largest, token)| token.as_f64() == Some(largest));
        assert_eq!(is_greedy, score.greedy);
    }
    // The tokens of the completion follow those of the prompt.
    let mut more = body;
    more["max_tokens"] = 3.into();
    let whole = server.post(PATH, &more).good();
    let told = &whole["choices"][0]["logprobs"];
    assert_eq!(told["tokens"].as_array().unwrap().len(), prompt.len() + 3);
    assert_eq!(
        numbers(&told["token_logprobs"])[..expected.len()],
        expected[..]
    );
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn offsets_are_where_tokens_begin_in_the_text() {
    let server = Server::start();
    let body = json!({"prompt": "abcab", "echo": true, "logprobs": 0, "max_tokens": 0});
    let told = server.post(PATH, &body).good()["choices"][0]["logprobs"].clone();
    assert_eq!(
        (&told["tokens"], &told["text_offset"]),
        (&json!(["ab", "c", "ab"]), &json!([0, 2, 3]))
    );
    let body = json!({"prompt": "é", "echo": true, "logprobs": 0, "max_tokens": 0});
    let told = server.post(PATH, &body).good()["choices"][0]["logprobs"].clone();
    assert_eq!(told["tokens"], json!(["bytes:\\xc3", "bytes:\\xa9"]));
}

#[test]
fn each_chunk_has_the_usage_of_its_prompt_and_answer_if_it_is_asked_for() {
    let server = Server::start();
    let body = json!({
        "prompt": ["first", "the second"], "temperature": 0, "max_tokens": 5, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let chunks = server.post(PATH, &body).chunks();
    let (last, parts) = chunks.split_last().unwrap();
    let usage = |index: u64| {
        let mut own = parts
            .iter()
            .filter(|part| part["choices"][0]["index"] == index);
        let last = &own.next_back().unwrap()["usage"];
        (
            last["prompt_tokens"].as_u64().unwrap(),
            last["completion_tokens"].as_u64().unwrap(),
        )
    };
    let (one, two) = (usage(0), usage(1));
    assert!(one.0 < two.0, "{one:?} {two:?}");
    assert_eq!((one.1, two.1), (5, 5));
    assert_eq!(last["usage"]["prompt_tokens"], one.0 + two.0);
    assert!(
        parts
            .iter()
            .all(|part| part["usage"]["completion_tokens"].is_number())
    );
}

#[test]
fn a_stream_has_the_parts_of_the_whole_answers() {
    let server = Server::start();
    for echo in [false, true] {
        let mut body = json!({
            "prompt": ["first", "the second"], "n": 2, "temperature": 1.0, "seed": 1, "logprobs": 2, "echo": echo,
            "max_tokens": 20,
        });
        let whole = server.post(PATH, &body).good();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let chunks = server.post(PATH, &body).chunks();
        let (last, parts) = chunks.split_last().unwrap();
        assert_eq!(
            last["usage"]["total_tokens"],
            whole["usage"]["total_tokens"]
        );
        for (index, expected) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let choices = parts
                .iter()
                .map(|part| &part["choices"][0])
                .filter(|choice| choice["index"] == index);
            let (mut text, mut finish, mut told) = (String::new(), None, Vec::new());
            for choice in choices {
                text += choice["text"].as_str().unwrap();
                finish = choice["finish_reason"].as_str().or(finish);
                told.extend(
                    choice["logprobs"]["token_logprobs"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
            }
            assert_eq!(
                (&json!(text), &json!(finish)),
                (&expected["text"], &expected["finish_reason"])
            );
            assert_eq!(json!(told), expected["logprobs"]["token_logprobs"]);
        }
    }
}

#[test]
fn an_echo_with_more_probabilities_than_an_answer_may_have_is_refused() {
    let server = Server::start();
    let mut body = json!({"prompt": [vec![1; 800], vec![1; 800]], "echo": true, "logprobs": 20, "n": 8, "max_tokens": 1});
    assert_eq!(server.post(PATH, &body).error(400)["param"], "logprobs");
    body["n"] = 1.into();
    server.post(PATH, &body).good();
}

#[test]
fn names_of_control_tokens_in_texts_are_these_tokens_unless_told() {
    let text = "a<|turn|>";
    for keeps_letters in [false, true] {
        let server = Server::with(|options| options.keeps_letters = keeps_letters);
        for (parse, is_token) in [
            (json!(null), !keeps_letters),
            (json!(true), true),
            (json!(false), false),
        ] {
            let body = json!({"prompt": text, "parse_special": parse, "with_pieces": true});
            let found = server.post("/tokenize", &body).good();
            let body = json!({"prompt": text, "parse_special": parse, "max_tokens": 4});
            let completion = server.post(PATH, &body).good();
            let body = json!({"input": text, "parse_special": parse});
            let embedded =
                server.post("/v1/embeddings", &body).good()["usage"]["prompt_tokens"].clone();
            assert_eq!(
                (&found["count"], &completion["usage"]["prompt_tokens"]),
                (&embedded, &embedded)
            );
            if is_token {
                assert_eq!(
                    (&found["tokens"], &found["pieces"]),
                    (&json!([97, 257]), &json!(["a", "<|turn|>"]))
                );
                assert_eq!(
                    completion["choices"][0]["text"],
                    expected(&server, &[97, 257], 4)
                );
            } else {
                assert_eq!(found["count"], 9);
                assert_eq!(
                    completion["choices"][0]["text"],
                    expected(&server, &tokens(&server, text), 4)
                );
            }
        }
    }
}

#[test]
fn names_of_control_tokens_in_messages_stay_letters_where_the_server_keeps_them() {
    for (keeps_letters, turns) in [(false, 3), (true, 2)] {
        let server = Server::with(|options| options.keeps_letters = keeps_letters);
        let parts = json!([{"type": "text", "text": "a<|turn|>"}]);
        for content in [json!("a<|turn|>"), parts] {
            let messages = json!([{"role": "user", "content": content}, {"role": "assistant", "content": "b"}]);
            let found = server
                .post("/tokenize", &json!({"messages": messages}))
                .good();
            let count = found["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|token| **token == 257)
                .count();
            assert_eq!(count, turns, "{found}");
            let chat = json!({"messages": messages, "max_tokens": 1});
            let usage = server.post("/v1/chat/completions", &chat).good()["usage"].clone();
            assert_eq!(usage["prompt_tokens"], found["count"]);
            // The text has the names of control tokens, and the same letters of a content.
            let text = server
                .post("/detokenize", &json!({"tokens": found["tokens"]}))
                .good()["content"]
                .clone();
            let expected = "user: a<|turn|><|turn|>assistant: b<|turn|>assistant: ";
            assert_eq!(text, expected);
        }
    }
}

#[test]
fn names_of_control_tokens_in_tools_calls_and_results_stay_letters_where_the_server_keeps_them() {
    let conversation = |word: &str| {
        let arguments = json!({word: word}).to_string();
        json!({
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
                ]},
                {"role": "tool", "tool_call_id": "1", "content": word},
            ],
            "tools": [{"type": "function", "function": {
                "name": "f", "description": word,
                "parameters": {"type": "object", "properties": {word: {"type": "string", "description": word}}},
            }}],
        })
    };
    for keeps_letters in [false, true] {
        let server = Server::with(|options| options.keeps_letters = keeps_letters);
        let tokens = |word| server.post("/tokenize", &conversation(word)).good()["tokens"].clone();
        let turns = |tokens: &Value| {
            let tokens = tokens.as_array().unwrap().iter();
            tokens.filter(|token| **token == 257).count()
        };
        let (named, plain) = (tokens("<|turn|>"), tokens("word"));
        let more = if keeps_letters { 0 } else { 6 };
        assert_eq!(turns(&named), turns(&plain) + more, "{keeps_letters}");
        if keeps_letters {
            let body = json!({"tokens": named});
            let text = server.post("/detokenize", &body).good()["content"].clone();
            let text = text.as_str().unwrap();
            let (letters, marks) = (6, turns(&named));
            assert_eq!(text.matches("<|turn|>").count(), letters + marks, "{text}");
            assert!(text.chars().all(|letter| letter < '\u{e000}'), "{text}");
        }
    }
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = Server::start();
    let text = "abba, Grüße 🙂";
    let tokenized = server.post("/tokenize", &json!({"content": text})).good();
    let found = server
        .post("/detokenize", &json!({"tokens": tokenized["tokens"]}))
        .good();
    assert_eq!(found["content"], text);
    let messages = json!([{"role": "user", "content": "ab"}]);
    let prompt = server
        .post("/apply-template", &json!({"messages": messages}))
        .good();
    assert_eq!(prompt["prompt"], "user: ab<|turn|>assistant: ");
    let of_chat = server
        .post("/tokenize", &json!({"messages": messages}))
        .good();
    let of_text = server
        .post(
            "/tokenize",
            &json!({"content": prompt["prompt"], "parse_special": true}),
        )
        .good();
    assert_eq!(of_chat["tokens"], of_text["tokens"]);
    for body in [json!({}), json!({"content": "a", "messages": messages})] {
        assert_eq!(
            server.post("/tokenize", &body).error(400)["param"],
            "content"
        );
    }
    // Invalid tools are refused even with a text, which does not use them.
    let wrong = json!([{"type": "function", "function": {"name": "f", "parameters": false}}]);
    let refused = server
        .post("/tokenize", &json!({"content": "a", "tools": wrong}))
        .error(400);
    assert_eq!(refused["param"], "tools[0].function.parameters");
    assert_eq!(
        server
            .post("/detokenize", &json!({"tokens": [259]}))
            .error(400)["param"],
        "tokens"
    );
}

#[test]
fn what_the_server_is_and_does_is_told() {
    let server = Server::start();
    let props = server.get("/props").good();
    assert_eq!(
        (&props["models"][0]["id"], &props["models"][0]["family"]),
        (&json!(NAME), &json!("llama"))
    );
    assert_eq!(
        props["models"][0]["processors"].as_array().unwrap().len(),
        1
    );
    server
        .post(PATH, &json!({"prompt": "x".repeat(300), "max_tokens": 5}))
        .good();
    server
        .post(PATH, &json!({"prompt": "x".repeat(300), "max_tokens": 5}))
        .good();
    server.post(PATH, &json!({"prompt": 1})).error(400);
    let metrics = server.get("/metrics");
    let value = |name: &str| {
        let line = metrics
            .body
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {metrics:?}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(
        metrics.headers.contains("text/plain"),
        "{}",
        metrics.headers
    );
    assert_eq!(
        value("triad_requests_total{path=\"/v1/completions\",status=\"200\"}"),
        2.0
    );
    assert_eq!(
        value("triad_requests_total{path=\"/v1/completions\",status=\"400\"}"),
        1.0
    );
    assert_eq!(value("triad_prompt_tokens_total{model=\"tiny\"}"), 600.0);
    assert_eq!(value("triad_cached_tokens_total{model=\"tiny\"}"), 299.0);
    assert_eq!(value("triad_answer_tokens_total{model=\"tiny\"}"), 10.0);
    assert_eq!(
        value("triad_answers_total{model=\"tiny\",finish=\"length\"}"),
        2.0
    );
    assert_eq!(
        value("triad_first_token_seconds_count{model=\"tiny\"}"),
        2.0
    );
    assert_eq!(
        value("triad_between_tokens_seconds_count{model=\"tiny\"}"),
        8.0
    );
    assert_eq!(value("triad_queue_seconds_count{model=\"tiny\"}"), 2.0);
    assert_eq!(value("triad_answers_running{model=\"tiny\"}"), 0.0);
    assert!(value("triad_processor_busy_seconds_total{model=\"tiny\",processor=") > 0.0);
    assert!(value("triad_prefix_tokens_found_total{model=\"tiny\"}") > 0.0);
}

#[test]
fn the_document_names_every_endpoint_and_each_is_there() {
    let server = Server::start();
    let document = server.get("/openapi.json").good();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 10, "{:?}", paths.keys());
    for (path, operations) in paths {
        let path = path.replace("{model}", NAME);
        for method in operations.as_object().unwrap().keys() {
            let reply = match method.as_str() {
                "get" => server.get(&path),
                "post" => server.post(&path, &json!({})),
                "delete" => server.send(&format!(
                    "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )),
                other => panic!("{other} {path}"),
            };
            // Unknown paths have another error code.
            let nothing_kept = ["no_timeline", "no_sessions", "not_found"];
            let is_there = [200, 400].contains(&reply.status)
                // No client deletes a model.
                || (path == "/api/delete" && reply.status == 403)
                || reply.json()["error"]["code"]
                    .as_str()
                    .is_some_and(|code| nothing_kept.contains(&code));
            assert!(is_there, "{method} {path}: {reply:?}");
        }
    }
    // The schema has the fields of both flattened parts of the request.
    let schema = document["components"]["schemas"]["ChatBody"].to_string();
    let all = document["components"]["schemas"].to_string();
    assert!(
        schema.contains("Sampling") || schema.contains("temperature"),
        "{schema}"
    );
    assert!(
        all.contains("frequency_penalty") && all.contains("messages"),
        "{all}"
    );
}
