//! `/v1/chat/completions`, `/v1/models`, `/health`.

use serde_json::{Value, json};
use triad_engine::sampler::SamplerOptions;
use triad_engine::{Cancel, Finish, GenerateOptions, generate};
use triad_frontend::chat;
use triad_model::template::Message;

use crate::support::{CONTEXT, NAME, Server, add};

const PATH: &str = "/v1/chat/completions";

fn hello(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 24});
    add(&mut body, more);
    body
}

/// Returns the completion that the engine generates without the server.
fn expected(server: &Server, sampler: SamplerOptions, stop: &[String]) -> (String, Finish) {
    let (engine, messages) = (&server.engine, [Message::new("user", "Hello, world")]);
    let prompt = chat::encode(engine.model(), NAME, &messages, CONTEXT).unwrap();
    let options = GenerateOptions {
        max_tokens: Some(24),
        sampler,
        stop: stop.to_vec(),
        ..GenerateOptions::default()
    };
    let answer = generate(
        &mut engine.session(),
        &prompt,
        &options,
        &Cancel::new(),
        &mut |_| {},
    )
    .unwrap();
    (answer.text, answer.finish)
}

fn text(completion: &Value, choice: usize) -> String {
    completion["choices"][choice]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns the text, finish reason and log probabilities of each of the `count` completions in a stream.
fn streamed(chunks: &[Value], count: usize) -> Vec<(String, String, Vec<Value>)> {
    let mut answers = vec![(String::new(), String::new(), Vec::new()); count];
    for choice in chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap())
    {
        let answer = &mut answers[choice["index"].as_u64().unwrap() as usize];
        assert_eq!(answer.1, "", "nothing follows the end");
        answer.0 += choice["delta"]["content"].as_str().unwrap_or_default();
        answer.1 += choice["finish_reason"].as_str().unwrap_or_default();
        answer.2.extend(
            choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    answers
}

#[test]
fn models_and_health_are_told() {
    let server = Server::start();
    let models = server.get("/v1/models").good();
    assert_eq!(
        (
            &models["data"][0]["id"],
            &models["data"][0]["max_model_len"]
        ),
        (&json!(NAME), &json!(CONTEXT))
    );
    assert_eq!(server.get("/v1/models/tiny").good()["object"], "model");
    assert_eq!(
        server.get("/v1/models/other").error(404)["code"],
        "model_not_found"
    );
    assert_eq!(
        server.get("/health").good(),
        json!({"status": "ok", "answering": 0, "waiting": 0})
    );
}

#[test]
fn an_answer_is_what_the_engine_generates() {
    let server = Server::start();
    let (answer, finish) = expected(&server, SamplerOptions::default(), &[]);
    let completion = server.post(PATH, &hello(json!({"model": NAME}))).good();
    assert_eq!((text(&completion, 0), finish), (answer, Finish::Length));
    assert_eq!(completion["choices"][0]["finish_reason"], "length");
    assert_eq!(completion["object"], "chat.completion");
    let usage = &completion["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 24;
    assert_eq!(usage["total_tokens"].as_u64(), Some(sum));
}

#[test]
fn every_sampling_option_reaches_the_sampler() {
    let server = Server::start();
    let default = || SamplerOptions {
        temperature: 1.5,
        seed: 7,
        ..SamplerOptions::default()
    };
    let cases = [
        (json!({}), default()),
        (
            json!({"seed": -1}),
            SamplerOptions {
                seed: u64::MAX,
                ..default()
            },
        ),
        (
            json!({"top_p": 0.5}),
            SamplerOptions {
                top_p: 0.5,
                ..default()
            },
        ),
        (
            json!({"top_k": 3}),
            SamplerOptions {
                top_k: 3,
                ..default()
            },
        ),
        (json!({"top_k": -1}), default()),
        (
            json!({"min_p": 0.2}),
            SamplerOptions {
                min_p: 0.2,
                ..default()
            },
        ),
        (
            json!({"frequency_penalty": 2}),
            SamplerOptions {
                frequency_penalty: 2.0,
                ..default()
            },
        ),
        (
            json!({"presence_penalty": -2}),
            SamplerOptions {
                presence_penalty: -2.0,
                ..default()
            },
        ),
        (
            json!({"repetition_penalty": 3}),
            SamplerOptions {
                repetition_penalty: 3.0,
                ..default()
            },
        ),
        (
            json!({"logit_bias": {"97": 100}}),
            SamplerOptions {
                logit_bias: vec![(97, 100.0)],
                ..default()
            },
        ),
    ];
    let mut texts = Vec::new();
    for (more, options) in cases {
        let mut body = hello(json!({"temperature": 1.5, "seed": 7}));
        add(&mut body, more.clone());
        let answer = text(&server.post(PATH, &body).good(), 0);
        assert_eq!(answer, expected(&server, options, &[]).0, "{more}");
        texts.push(answer);
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() >= 8, "the options change the answer: {texts:?}");
}

#[test]
fn a_stream_has_the_parts_of_the_whole_answer() {
    let server = Server::start();
    let body =
        hello(json!({"n": 3, "temperature": 1.0, "seed": 3, "logprobs": true, "top_logprobs": 2}));
    let whole = server.post(PATH, &body).good();
    let mut body = body;
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = server.post(PATH, &body).chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, parts) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    // The number of cached tokens depends on earlier requests.
    let counted = ["prompt_tokens", "completion_tokens", "total_tokens"];
    counted
        .iter()
        .for_each(|name| assert_eq!(last["usage"][name], whole["usage"][name], "{name}"));
    for (index, (content, finish, log_probabilities)) in streamed(parts, 3).into_iter().enumerate()
    {
        let choice = &whole["choices"][index];
        assert_eq!(text(&whole, index), content);
        assert_eq!(
            (&choice["finish_reason"], &choice["logprobs"]["content"]),
            (&json!(finish), &json!(log_probabilities))
        );
    }
}

#[test]
fn each_chunk_has_the_usage_of_its_answer_so_far_if_it_is_asked_for() {
    let server = Server::start();
    let ask = |options: Value| {
        let more = json!({"n": 2, "max_tokens": 6, "stream": true, "stream_options": options});
        server.post(PATH, &hello(more)).chunks()
    };
    let chunks = ask(json!({"include_usage": true, "continuous_usage_stats": true}));
    let (last, parts) = chunks.split_last().unwrap();
    let prompt = &last["usage"]["prompt_tokens"];
    let mut counts = [0, 0];
    for part in parts {
        let (usage, index) = (
            &part["usage"],
            part["choices"][0]["index"].as_u64().unwrap(),
        );
        let count = usage["completion_tokens"].as_u64().unwrap();
        let is_role = part["choices"][0]["delta"]["role"] == "assistant";
        assert!(
            count >= counts[index as usize] && (count > 0) != is_role,
            "{part}"
        );
        assert_eq!(&usage["prompt_tokens"], prompt);
        assert_eq!(
            usage["total_tokens"].as_u64().unwrap(),
            count + prompt.as_u64().unwrap()
        );
        counts[index as usize] = count;
    }
    assert_eq!(counts, [6, 6]);
    assert_eq!(last["usage"]["completion_tokens"], 12);
    for options in [
        json!({"continuous_usage_stats": true}),
        json!({"include_usage": true}),
    ] {
        let includes = options["include_usage"] == true;
        let chunks = ask(options);
        let with_usage = chunks.iter().filter(|chunk| !chunk["usage"].is_null());
        assert_eq!(with_usage.count(), usize::from(includes));
    }
}

#[test]
fn several_answers_have_seeds_one_after_the_other() {
    let server = Server::start();
    let completion = server
        .post(
            PATH,
            &hello(json!({"n": 4, "temperature": 1.5, "seed": 40})),
        )
        .good();
    for choice in 0..4 {
        let sampler = SamplerOptions {
            temperature: 1.5,
            seed: 40 + choice as u64,
            ..SamplerOptions::default()
        };
        assert_eq!(text(&completion, choice), expected(&server, sampler, &[]).0);
    }
    assert_ne!(text(&completion, 0), text(&completion, 1));
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
    let server = Server::start();
    let (answer, _) = expected(&server, SamplerOptions::default(), &[]);
    let stop: String = answer.chars().skip(5).take(2).collect();
    let (cut, finish) = expected(
        &server,
        SamplerOptions::default(),
        std::slice::from_ref(&stop),
    );
    assert_eq!(finish, Finish::StopString);
    for stops in [json!(stop), json!(["no such text", stop])] {
        let completion = server.post(PATH, &hello(json!({"stop": stops}))).good();
        assert_eq!(
            (
                text(&completion, 0).as_str(),
                &completion["choices"][0]["finish_reason"]
            ),
            (cut.as_str(), &json!("stop"))
        );
        let chunks = server
            .post(PATH, &hello(json!({"stop": stops, "stream": true})))
            .chunks();
        assert_eq!(streamed(&chunks, 1)[0].0, cut);
    }
}

#[test]
fn an_end_token_ends_the_answer_unless_it_is_ignored() {
    let server = Server::start();
    let end = json!({"logit_bias": {"258": 100}, "logprobs": true});
    let completion = server.post(PATH, &hello(end.clone())).good();
    assert_eq!(
        (
            text(&completion, 0).as_str(),
            &completion["choices"][0]["finish_reason"]
        ),
        ("", &json!("stop"))
    );
    assert_eq!(
        (
            &completion["usage"]["completion_tokens"],
            &completion["choices"][0]["logprobs"]["content"]
        ),
        (&json!(1), &json!([]))
    );
    let mut end = end;
    end["ignore_eos"] = true.into();
    let completion = server.post(PATH, &hello(end)).good();
    assert_eq!(
        (
            &completion["usage"]["completion_tokens"],
            &completion["choices"][0]["finish_reason"]
        ),
        (&json!(24), &json!("length"))
    );
}

#[test]
fn probabilities_are_of_the_tokens_of_the_text() {
    let server = Server::start();
    let completion = server
        .post(PATH, &hello(json!({"logprobs": true, "top_logprobs": 20})))
        .good();
    let tokens = completion["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    assert_eq!(tokens.len(), 24);
    let bytes = |token: &Value| -> Vec<u8> {
        token["bytes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|byte| byte.as_u64().unwrap() as u8)
            .collect()
    };
    let all: Vec<u8> = tokens.iter().flat_map(bytes).collect();
    assert_eq!(String::from_utf8_lossy(&all), text(&completion, 0));
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        // Decoding is greedy: each token is the most likely one at its position.
        assert_eq!(
            (top.len(), &top[0]["logprob"], &top[0]["bytes"]),
            (20, &token["logprob"], &token["bytes"])
        );
        let sum: f64 = top
            .iter()
            .map(|token| token["logprob"].as_f64().unwrap().exp())
            .sum();
        assert!(sum > 0.0 && sum <= 1.0 + 1e-6, "{sum}");
    }
}

#[test]
fn what_is_known_of_a_prompt_is_told() {
    let server = Server::start();
    let long = "x".repeat(600);
    let body = json!({"messages": [{"role": "user", "content": long}], "max_tokens": 2});
    let cached = |completion: Value| {
        completion["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached(server.post(PATH, &body).good()), 0);
    assert!(cached(server.post(PATH, &body).good()) >= 512);
}

#[test]
fn parts_of_a_message_are_joined_and_developers_are_the_system() {
    let server = Server::start();
    let ask = |messages: Value| {
        text(
            &server
                .post(PATH, &json!({"messages": messages, "max_tokens": 12}))
                .good(),
            0,
        )
    };
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let whole = ask(
        json!([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "one\ntwo"}]),
    );
    assert_eq!(
        ask(
            json!([{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}])
        ),
        whole
    );
    assert_ne!(ask(json!([{"role": "user", "content": "one\ntwo"}])), whole);
}
