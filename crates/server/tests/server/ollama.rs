//! Ollama's API.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use triad_server::{HostedModel, LoadedModel, ModelFacts};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{CONTEXT, NAME, Reply, Server, add, engine, post};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn hello(more: Value) -> Value {
    let mut body = json!({
        "model": NAME, "messages": [{"role": "user", "content": "Hello, world"}], "options": {"num_predict": 24}
    });
    add(&mut body, more);
    body
}

/// Returns the lines of a stream.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(
        reply.headers.contains("application/x-ndjson"),
        "{}",
        reply.headers
    );
    let lines = reply
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Returns the joined texts of one field of the lines.
fn joined(lines: &[Value], pointer: &str) -> String {
    lines
        .iter()
        .filter_map(|line| line.pointer(pointer)?.as_str())
        .collect()
}

#[test]
fn a_message_is_that_of_the_other_apis_whole_and_in_lines() {
    let server = Server::start();
    let whole = server.post(CHAT, &hello(json!({"stream": false}))).good();
    let body = json!({"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 24});
    let other = server.post("/v1/chat/completions", &body).good();
    assert_eq!(
        whole["message"]["content"],
        other["choices"][0]["message"]["content"]
    );
    assert_eq!(
        (&whole["model"], &whole["done"]),
        (&json!(NAME), &json!(true))
    );
    assert_eq!(whole["message"]["role"], "assistant");
    assert_eq!(whole["done_reason"], "length");
    assert_eq!(whole["eval_count"], 24);
    assert_eq!(whole["prompt_eval_count"], other["usage"]["prompt_tokens"]);
    assert!(whole["total_duration"].as_u64() > whole["eval_duration"].as_u64());
    let lines = lines(&server.post(CHAT, &hello(json!({}))));
    let (last, parts) = lines.split_last().unwrap();
    assert_eq!(
        joined(&lines, "/message/content"),
        whole["message"]["content"].as_str().unwrap()
    );
    assert!(
        parts
            .iter()
            .all(|line| line["done"] == false && line.get("eval_count").is_none())
    );
    assert_eq!(
        (&last["done"], &last["eval_count"]),
        (&json!(true), &json!(24))
    );
    assert!(last["created_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_prompt_is_a_message_of_the_user_unless_it_is_raw() {
    let server = Server::start();
    let ask = |more: Value| {
        let mut body =
            json!({"model": NAME, "prompt": "Hi", "stream": false, "options": {"num_predict": 8}});
        add(&mut body, more);
        server.post(GENERATE, &body).good()["response"].clone()
    };
    let chat = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 8});
        server.post("/v1/chat/completions", &body).good()["choices"][0]["message"]["content"]
            .clone()
    };
    let user = json!({"role": "user", "content": "Hi"});
    assert_eq!(ask(json!({})), chat(json!([user])));
    let system = json!({"role": "system", "content": "Be short."});
    assert_eq!(
        ask(json!({"system": "Be short."})),
        chat(json!([system, user]))
    );
    let plain = server
        .post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 8}))
        .good();
    assert_eq!(ask(json!({"raw": true})), plain["choices"][0]["text"]);
    let body = json!({"model": NAME, "prompt": "Hi", "options": {"num_predict": 8}, "raw": true});
    let streamed = lines(&server.post(GENERATE, &body));
    assert_eq!(
        joined(&streamed, "/response"),
        plain["choices"][0]["text"].as_str().unwrap()
    );
    let both = json!({"model": NAME, "prompt": "Hi", "system": "a", "raw": true});
    assert!(
        server.post(GENERATE, &both).json()["error"]
            .as_str()
            .unwrap()
            .starts_with("system")
    );
}

#[test]
fn a_context_continues_its_conversation_as_the_messages_would() {
    let server = Server::start();
    let ask = |more: Value| {
        let mut body = json!({"model": NAME, "stream": false, "options": {"num_predict": 8}});
        add(&mut body, more);
        server.post(GENERATE, &body)
    };
    let first = ask(json!({"prompt": "Hi", "system": "Be short."})).good();
    let context = &first["context"];
    let second = ask(json!({"prompt": "And then?", "context": context})).good();
    let messages = [
        json!({"role": "system", "content": "Be short."}),
        json!({"role": "user", "content": "Hi"}),
        json!({"role": "assistant", "content": first["response"]}),
        json!({"role": "user", "content": "And then?"}),
    ];
    let chat = |messages: &[Value]| {
        let body =
            hello(json!({"messages": messages, "stream": false, "options": {"num_predict": 8}}));
        server.post(CHAT, &body).good()
    };
    let whole = chat(&messages);
    assert_eq!(second["response"], whole["message"]["content"]);
    assert_eq!(second["prompt_eval_count"], whole["prompt_eval_count"]);
    // The context of a stream is in its last line, and goes on in the same way. Numbers may have a decimal point.
    let body = json!({"model": NAME, "prompt": "Hi", "system": "Be short.", "options": {"num_predict": 8}});
    let streamed = lines(&server.post(GENERATE, &body));
    assert!(streamed[0].get("context").is_none());
    assert_eq!(&streamed[streamed.len() - 1]["context"], context);
    let numbers = context.as_array().unwrap().iter();
    let floats: Vec<_> = numbers.map(|it| it.as_f64().unwrap()).collect();
    let third = ask(json!({"prompt": "And then?", "context": floats})).good();
    assert_eq!(third["context"], second["context"]);
    // Another system prompt is in the place of the first one.
    let mut messages = messages;
    messages[0]["content"] = "Be long.".into();
    let long = json!({"prompt": "And then?", "system": "Be long.", "context": context});
    assert_eq!(
        ask(long).good()["response"],
        chat(&messages)["message"]["content"]
    );
    // A prompt as it is neither has a context nor returns one.
    let raw = ask(json!({"prompt": "Hi", "raw": true})).good();
    assert!(raw.get("context").is_none(), "{raw}");
    for refused in [
        json!({"prompt": "Hi", "raw": true, "context": context}),
        json!({"prompt": "Hi", "context": [1, 2, 3]}),
        json!({"prompt": "Hi", "context": [-1]}),
        json!({"context": [1, 2, 3]}),
    ] {
        let reply = ask(refused.clone());
        assert_eq!(reply.status, 400, "{refused}");
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains("context"), "{error}");
    }
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let server = Server::start();
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]);
    let body = json!({"messages": messages, "max_tokens": 8, "continue_final_message": true});
    let other = server.post("/v1/chat/completions", &body).good();
    let body = json!({"messages": messages, "stream": false, "options": {"num_predict": 8}});
    assert_eq!(
        server.post(CHAT, &body).good()["message"]["content"],
        other["choices"][0]["message"]["content"]
    );
}

#[test]
fn options_reach_the_sampler_and_errors_name_them() {
    let server = Server::start();
    let of =
        |options: Value| server.post(CHAT, &hello(json!({"stream": false, "options": options})));
    let hot = |seed: u32| {
        let body = json!({"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 12,
                          "temperature": 1.5, "top_k": 40, "seed": seed, "stop": ["\u{1}\u{2}"]});
        let reply = server.post("/v1/chat/completions", &body).good();
        reply["choices"][0]["message"]["content"].clone()
    };
    for seed in [3, 4] {
        let options = json!({"num_predict": 12, "temperature": 1.5, "top_k": 40, "seed": seed,
                             "stop": ["\u{1}\u{2}"], "num_ctx": 2048, "num_thread": 4});
        assert_eq!(of(options).good()["message"]["content"], hot(seed));
    }
    for (options, field) in [
        (json!({"temperature": -1}), "options.temperature"),
        (json!({"num_predict": 0}), "options.num_predict"),
        (json!({"num_predict": -3}), "options.num_predict"),
        (json!({"repeat_penalty": 0}), "options.repeat_penalty"),
        (json!({"mirostat": 2}), "options.mirostat"),
        (json!({"temprature": 1}), "options.temprature"),
        (json!({"seed": "a"}), "options.seed"),
    ] {
        let reply = of(options);
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(
            reply.status == 400 && error.starts_with(&format!("{field}: ")),
            "{error}"
        );
    }
}

#[test]
fn a_request_that_only_loads_a_model_has_its_fields_checked() {
    let server = Server::start();
    for (changed, field) in [
        (
            json!({"options": {"num_predict": -3}}),
            "options.num_predict",
        ),
        (json!({"options": {"top_p": 2}}), "options.top_p"),
        (json!({"format": "yaml"}), "format"),
        (json!({"think": "much"}), "think"),
        (json!({"keep_alive": "soon"}), "keep_alive"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (
            json!({"top_logprobs": 21, "logprobs": true}),
            "top_logprobs",
        ),
    ] {
        for path in [CHAT, GENERATE] {
            let reply = server.post(path, &changed);
            let error = reply.json()["error"].as_str().unwrap().to_owned();
            assert!(
                reply.status == 400 && error.starts_with(&format!("{field}: ")),
                "{path} {changed}: {error}"
            );
        }
    }
    let tools = json!({"tools": [{"type": "function", "function": {"name": ""}}]});
    assert_eq!(server.post(CHAT, &tools).status, 400);
    assert_eq!(server.post(CHAT, &json!({})).good()["done_reason"], "load");
}

#[test]
fn errors_are_one_text_wherever_a_request_is_refused() {
    let server = Server::with(|options| {
        (options.strict_models, options.api_keys) = (true, vec!["key".into()]);
    });
    let key = "Authorization: Bearer key\r\n";
    let none = json!({"model": "none", "prompt": "Hi"}).to_string();
    for (request, status) in [
        (post(CHAT, "{}", ""), 401),
        (post(GENERATE, &none, key), 404),
        (post("/api/none", "{}", key), 404),
        (post("/api/tags", "{}", key), 405),
        (post(CHAT, "{", key), 400),
        (
            post("/api/pull", &none.replace("\"prompt\":\"Hi\",", ""), key),
            400,
        ),
        (
            post("/api/pull", &json!({"model": "none"}).to_string(), key),
            403,
        ),
    ] {
        let reply = server.send(&request);
        assert_eq!(reply.status, status, "{}", reply.body);
        let body = reply.json();
        assert!(
            body["error"].is_string() && body.as_object().unwrap().len() == 1,
            "{body}"
        );
    }
    let delete =
        format!("DELETE /api/delete HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n");
    let reply = server.send(&delete);
    assert!(
        reply.status == 403 && reply.json()["error"].is_string(),
        "{reply:?}"
    );
}

#[test]
fn models_are_listed_shown_and_pulled_if_they_are_served() {
    let server = Server::with(|options| options.strict_models = true);
    let tags = server.get("/api/tags").good();
    let tag = &tags["models"][0];
    assert_eq!((&tag["name"], &tag["model"]), (&json!(NAME), &json!(NAME)));
    assert_eq!(tag["digest"].as_str().unwrap().len(), 64);
    let shown = server
        .post("/api/show", &json!({"model": format!("{NAME}:latest")}))
        .good();
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert_eq!(shown["model_info"]["llama.context_length"], CONTEXT);
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert!(shown["template"].as_str().unwrap().contains("message.role"));
    let running = server.get("/api/ps").good();
    assert_eq!(running["models"][0]["context_length"], CONTEXT);
    assert!(running["models"][0]["expires_at"].as_str().unwrap() > "2100");
    assert!(server.get("/api/version").good()["version"].is_string());
    let pulled = lines(&server.post("/api/pull", &json!({"model": NAME})));
    assert_eq!(pulled.last().unwrap(), &json!({"status": "success"}));
    let whole = server
        .post("/api/pull", &json!({"model": NAME, "stream": false}))
        .good();
    assert_eq!(whole, json!({"status": "success"}));
    assert_eq!(
        server.post("/api/show", &json!({"model": "none"})).status,
        404
    );
}

/// Returns the number of models in memory.
fn running(server: &Server) -> usize {
    server.get("/api/ps").good()["models"]
        .as_array()
        .unwrap()
        .len()
}

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_idle_model_leaves_the_memory_after_keep_alive_and_comes_back() {
    let server = Server::start();
    let load = |keep_alive: Value| {
        server
            .post(GENERATE, &json!({"model": NAME, "keep_alive": keep_alive}))
            .good()
    };
    assert_eq!(load(json!("5m"))["done_reason"], "load");
    let expires = server.get("/api/ps").good()["models"][0]["expires_at"].clone();
    assert!(expires.as_str().unwrap() < "2100", "{expires}");
    assert_eq!(load(json!(0))["done_reason"], "unload");
    waits_until("the model stays", || running(&server) == 0);
    assert_eq!(server.get("/v1/models").good()["data"][0]["loaded"], false);
    // The next request loads it, and keeps it.
    server.post(CHAT, &hello(json!({"stream": false}))).good();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(running(&server), 1);
    server
        .post(
            CHAT,
            &hello(json!({"stream": false, "keep_alive": "300ms"})),
        )
        .good();
    assert_eq!(running(&server), 1);
    waits_until("the model stays", || running(&server) == 0);
}

#[test]
fn a_keep_alive_of_0_without_a_prompt_loads_no_model() {
    let (engine, folder) = engine(None);
    let loads = Arc::new(AtomicUsize::new(0));
    let (own, count) = (engine.clone(), Arc::clone(&loads));
    let load = move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(LoadedModel {
            engine: own.clone(),
            adapters: Vec::new(),
            is_current: Box::new(|| true),
        })
    };
    let hosted = HostedModel {
        name: NAME.into(),
        aliases: Vec::new(),
        bytes: 0,
        facts: ModelFacts::default(),
        check: Box::new(|| Ok(())),
        load: Box::new(load),
    };
    let server = Server::with_models((engine, folder), vec![hosted], |options| {
        options.strict_models = true;
    });
    // The server loads its first model when it starts.
    for path in [CHAT, GENERATE, CHAT] {
        let body = if path == CHAT {
            json!({"model": NAME, "keep_alive": 0, "messages": []})
        } else {
            json!({"model": NAME, "keep_alive": "0s"})
        };
        assert_eq!(server.post(path, &body).good()["done_reason"], "unload");
        waits_until("the model stays", || running(&server) == 0);
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }
    let unknown = json!({"model": "none", "keep_alive": 0});
    assert_eq!(server.post(CHAT, &unknown).status, 404);
    let body = json!({"model": NAME, "keep_alive": "5m"});
    assert_eq!(server.post(CHAT, &body).good()["done_reason"], "load");
    assert_eq!(loads.load(Ordering::Relaxed), 2);
}

#[test]
fn an_empty_name_of_a_model_counts_as_not_given() {
    let server = Server::with(|options| options.strict_models = true);
    for (path, body) in [
        (CHAT, hello(json!({"model": "", "stream": false}))),
        (
            GENERATE,
            json!({"model": "", "prompt": "a", "stream": false, "options": {"num_predict": 2}}),
        ),
        ("/api/embed", json!({"model": "", "input": "a"})),
        ("/api/embeddings", json!({"model": "", "prompt": "a"})),
        ("/api/show", json!({"model": NAME, "name": ""})),
        ("/api/show", json!({"model": "", "name": NAME})),
        ("/api/show", json!({"model": "", "name": ""})),
        (
            "/api/pull",
            json!({"model": NAME, "name": "", "stream": false}),
        ),
        (
            "/api/pull",
            json!({"model": "", "name": NAME, "stream": false}),
        ),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.body);
    }
    let none = server.post("/api/pull", &json!({"model": "", "name": ""}));
    assert!(
        none.status == 400 && none.body.contains("model: it is missing"),
        "{none:?}"
    );
}

#[test]
fn a_seed_of_minus_1_is_another_one_for_each_request() {
    let server = Server::start();
    let options = |seed: i64| json!({"num_predict": 32, "temperature": 1.5, "seed": seed});
    let chat = |seed: i64| {
        let body = hello(json!({"stream": false, "options": options(seed)}));
        server.post(CHAT, &body).good()["message"]["content"].clone()
    };
    let raw = |seed: i64| {
        let body = json!({"prompt": "Hi", "raw": true, "stream": false, "options": options(seed)});
        server.post(GENERATE, &body).good()["response"].clone()
    };
    assert_eq!((chat(-2), raw(-2)), (chat(-2), raw(-2)));
    assert_ne!(chat(-1), chat(-1));
    assert_ne!(raw(-1), raw(-1));
}

#[test]
fn a_repeat_last_n_of_0_turns_penalties_off() {
    let server = Server::start();
    let ask = |more: Value| {
        let mut options = json!({"num_predict": 32, "temperature": 0});
        add(&mut options, more);
        server.post(CHAT, &hello(json!({"stream": false, "options": options})))
    };
    let text = |more: Value| ask(more).good()["message"]["content"].clone();
    let penalties = |last: i64| json!({"repeat_last_n": last, "repeat_penalty": 50, "presence_penalty": 2, "frequency_penalty": 2});
    let without = text(json!({"repeat_penalty": 1}));
    assert_eq!(text(penalties(0)), without);
    assert_ne!(text(penalties(-1)), without);
    // Ollama's default changes nothing in a request that it does not limit.
    let neutral = json!({"repeat_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0});
    for more in [json!({}), neutral] {
        let mut with = more.clone();
        add(&mut with, json!({"repeat_last_n": 64}));
        assert_eq!(text(with), text(more));
    }
    for refused in [
        json!({"repeat_last_n": 32}),
        json!({"repeat_last_n": -2}),
        json!({"repeat_last_n": 64, "repeat_penalty": 1.1}),
        json!({"repeat_last_n": 64, "presence_penalty": 1}),
        json!({"repeat_last_n": 64, "frequency_penalty": 1}),
    ] {
        let reply = ask(refused);
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(
            reply.status == 400 && error.starts_with("options.repeat_last_n: "),
            "{error}"
        );
    }
}

#[test]
fn truncate_changes_nothing_and_shift_may_only_be_false() {
    let server = Server::start();
    for path in [CHAT, GENERATE] {
        let ask = |field: &str, value: bool, prompt: &str| {
            let mut body = json!({"stream": false, "options": {"num_predict": 2}, field: value});
            let prompt = if path == CHAT {
                json!({"messages": [{"role": "user", "content": prompt}]})
            } else {
                json!({"prompt": prompt})
            };
            add(&mut body, prompt);
            server.post(path, &body)
        };
        let error = |reply: &Reply| {
            assert_eq!(reply.status, 400, "{}", reply.body);
            reply.json()["error"].as_str().unwrap().to_owned()
        };
        for truncates in [false, true] {
            ask("truncate", truncates, "Hi").good();
            let long = error(&ask("truncate", truncates, &"long ".repeat(400)));
            assert!(long.contains("maximum context length"), "{long}");
        }
        ask("shift", false, "Hi").good();
        let refused = error(&ask("shift", true, "Hi"));
        assert!(refused.starts_with("shift: "), "{refused}");
    }
}

#[test]
fn whole_numbers_may_be_written_with_a_decimal_point() {
    let server = Server::start();
    let ask = |most: Value| {
        let options = json!({"num_predict": most, "temperature": 0});
        server.post(CHAT, &hello(json!({"stream": false, "options": options})))
    };
    assert_eq!(ask(json!(3.0)).good()["eval_count"], 3);
    for wrong in [json!(3.5), json!("3"), json!(1e300)] {
        let reply = ask(wrong);
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(
            reply.status == 400 && error.starts_with("options.num_predict: "),
            "{error}"
        );
    }
}

#[test]
fn no_texts_have_no_vectors() {
    let server = Server::start();
    let embedded = server.post("/api/embed", &json!({"input": []})).good();
    assert_eq!(
        (&embedded["embeddings"], &embedded["prompt_eval_count"]),
        (&json!([]), &json!(0))
    );
}

#[test]
fn no_key_takes_a_model_from_others() {
    let server = Server::with(|options| options.api_keys = vec!["one".into(), "two".into()]);
    let key = "Authorization: Bearer one\r\n";
    let body = json!({"model": NAME, "keep_alive": 0}).to_string();
    let reply = server.send(&post(GENERATE, &body, key)).good();
    assert_eq!(reply["done_reason"], "load");
    std::thread::sleep(Duration::from_millis(400));
    let get = format!("GET /api/ps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n");
    assert_eq!(
        server.send(&get).json()["models"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn reasoning_is_apart_from_the_message() {
    let script = Script::new(&[]).named(&["<think>", "</think>"]).says(
        "<|a|>",
        &[
            "<think>", "\nhm", " so\n", "</think>", "\n\n", "Yes.", "<|end|>",
        ],
    );
    let server = script.serve(TEMPLATE);
    let whole = server
        .post(CHAT, &hello(json!({"stream": false, "think": true})))
        .good();
    assert_eq!(whole["message"]["thinking"], "hm so");
    assert_eq!(whole["message"]["content"], "Yes.");
    assert_eq!(whole["done_reason"], "stop");
    let streamed = lines(&server.post(CHAT, &hello(json!({}))));
    assert_eq!(joined(&streamed, "/message/thinking"), "hm so");
    assert_eq!(joined(&streamed, "/message/content"), "Yes.");
    let generated = json!({"prompt": "Hi", "stream": false});
    let generated = server.post(GENERATE, &generated).good();
    assert_eq!(
        (&generated["thinking"], &generated["response"]),
        (&json!("hm so"), &json!("Yes."))
    );
    let shown = server.post("/api/show", &json!({})).good();
    assert!(
        shown["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("thinking"))
    );
    // A model that does not mark its reasoning refuses to be asked for it.
    let error = Server::start().post(CHAT, &hello(json!({"think": true})));
    assert!(
        error.status == 400
            && error.json()["error"]
                .as_str()
                .unwrap()
                .starts_with("think: ")
    );
    let error = server.post(CHAT, &hello(json!({"think": "much"})));
    assert!(
        error.status == 400
            && error.json()["error"]
                .as_str()
                .unwrap()
                .starts_with("think: ")
    );
}

#[test]
fn calls_have_their_arguments_as_an_object_and_a_cut_call_is_left_out() {
    let script = Script::new(&["<tool_call>", "</tool_call>"]).says(
        "<|a|>",
        &[
            "Hm. ",
            "<tool_call>",
            "\n{\"name\": \"f\", \"arguments\": {\"a\": ",
            "1}}\n",
            "</tool_call>",
            "<|end|>",
        ],
    );
    let server = script.serve(&format!("{{# <tool_call> #}}{TEMPLATE}"));
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let ask = |tokens: u32, stream: bool| {
        let more = json!({"tools": tools, "stream": stream, "options": {"num_predict": tokens}});
        server.post(CHAT, &hello(more))
    };
    let call = json!({"index": 0, "name": "f", "arguments": {"a": 1}});
    let whole = ask(64, false).good();
    assert_eq!(
        whole["message"]["tool_calls"][0]["function"], call,
        "{whole}"
    );
    assert_eq!(whole["done_reason"], "stop");
    let streamed = lines(&ask(64, true));
    let calls: Vec<_> = streamed
        .iter()
        .filter_map(|line| line["message"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!(calls.len(), 1, "{streamed:?}");
    assert_eq!(calls[0]["function"], call);
    for stream in [false, true] {
        let reply = ask(3, stream);
        let cut = if stream {
            lines(&reply).pop().unwrap()
        } else {
            reply.good()
        };
        assert_eq!(cut["done_reason"], "length", "{cut}");
        assert!(cut["message"].get("tool_calls").is_none(), "{cut}");
    }
}

#[test]
fn a_format_is_kept() {
    let server = Server::start();
    let of = |format: Value| {
        let more = json!({"stream": false, "format": format, "options": {"num_predict": 200, "temperature": 0}});
        server.post(CHAT, &hello(more))
    };
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
                        "additionalProperties": false});
    let text = of(schema).good()["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(value["a"] == "x" || value["a"] == "y", "{text}");
    for wrong in [json!("xml"), json!(5), json!({"type": 7})] {
        let reply = of(wrong);
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(
            reply.status == 400 && error.starts_with("format"),
            "{error}"
        );
    }
}

#[test]
fn log_probabilities_are_those_of_the_other_apis() {
    let server = Server::start();
    let more = json!({"stream": false, "logprobs": true, "top_logprobs": 2, "options": {"num_predict": 3}});
    let whole = server.post(CHAT, &hello(more.clone())).good();
    let body = json!({"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 3, "logprobs": true,
                      "top_logprobs": 2});
    let other = server.post("/v1/chat/completions", &body).good();
    assert_eq!(
        whole["logprobs"],
        other["choices"][0]["logprobs"]["content"]
    );
    let mut streaming = more;
    add(&mut streaming, json!({"stream": true}));
    let streamed = lines(&server.post(CHAT, &hello(streaming)));
    let tokens: Vec<_> = streamed
        .iter()
        .filter_map(|line| line["logprobs"].as_array())
        .flatten()
        .collect();
    assert_eq!(tokens.len(), 3);
    let alone = server.post(CHAT, &hello(json!({"top_logprobs": 2})));
    assert!(alone.status == 400 && alone.body.contains("logprobs: true"));
}

#[test]
fn vectors_are_those_of_the_other_apis_and_long_texts_are_cut() {
    let server = Server::start();
    let vector = |input: &Value| {
        let reply = server
            .post(
                "/v1/embeddings",
                &json!({"input": input, "pooling": "mean"}),
            )
            .good();
        reply["data"][0]["embedding"].clone()
    };
    let reply = server
        .post("/api/embed", &json!({"model": NAME, "input": ["ab", "Hi"]}))
        .good();
    assert_eq!(
        reply["embeddings"],
        json!([vector(&json!("ab")), vector(&json!("Hi"))])
    );
    let one = server
        .post("/api/embed", &json!({"model": NAME, "input": "ab"}))
        .good();
    assert_eq!(one["embeddings"], json!([vector(&json!("ab"))]));
    let long = "x".repeat(CONTEXT + 50);
    let cut = server.post("/api/embed", &json!({"input": long})).good();
    assert_eq!(
        cut["embeddings"],
        json!([vector(&json!("x".repeat(CONTEXT)))])
    );
    assert_eq!(cut["prompt_eval_count"], CONTEXT);
    let refused = server.post("/api/embed", &json!({"input": long, "truncate": false}));
    assert!(refused.status == 400 && refused.json()["error"].is_string());
    let older = server
        .post("/api/embeddings", &json!({"prompt": "ab"}))
        .good();
    let raw: Vec<_> = older["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_f64().unwrap())
        .collect();
    let length = raw.iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!((length - 1.0).abs() > 0.1, "{length}");
    for (value, unit) in raw.iter().zip(vector(&json!("ab")).as_array().unwrap()) {
        assert!((value / length - unit.as_f64().unwrap()).abs() < 1e-6);
    }
}

#[test]
fn a_client_that_leaves_ends_its_answer() {
    use std::io::{Read, Write};
    let server = Server::start();
    let body = hello(json!({"options": {"num_predict": 900}})).to_string();
    let mut stream = server.connect();
    stream.write_all(post(CHAT, &body, "").as_bytes()).unwrap();
    stream.read_exact(&mut [0; 32]).unwrap();
    drop(stream);
    server.wait_until_idle();
}
