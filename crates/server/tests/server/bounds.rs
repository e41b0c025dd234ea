//! Requests that are invalid, too many, too large or too slow.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{CONTEXT, Server, add, has_nothing, post};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4});
    add(&mut body, more);
    body
}

#[test]
fn a_wrong_value_is_refused_with_the_name_of_its_field() {
    let server = Server::with(|options| options.strict_models = true);
    let long = "x".repeat(CONTEXT + 1);
    let cases = [
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 1.5}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"frequency_penalty": 3}), "frequency_penalty"),
        (json!({"presence_penalty": -2.5}), "presence_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": {"97": 101}}), "logit_bias"),
        (json!({"logit_bias": {"9999": 1}}), "logit_bias"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": 9}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -5}), "max_tokens"),
        (json!({"max_completion_tokens": 3}), "max_tokens"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "visitor", "content": "x"}]}),
            "messages[0].role",
        ),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}),
            "messages[0].content[0].image_url",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": [{"role": "user", "content": long}]}),
            "messages",
        ),
    ];
    for (more, field) in cases {
        let error = server.post(CHAT, &chat(more.clone())).error(400);
        assert_eq!(error["param"], field, "{more}: {error}");
    }
    assert_eq!(
        server
            .post(CHAT, &chat(json!({"model": "gpt-4o"})))
            .error(404)["param"],
        "model"
    );
    let cases = [
        (json!({}), json!("prompt")),
        (json!({"prompt": {}}), json!("prompt")),
        (json!({"prompt": []}), json!("prompt")),
        (json!({"prompt": ""}), json!("prompt")),
        (json!({"prompt": [97, 259]}), json!("prompt")),
        (json!({"prompt": [97, -1]}), json!("prompt[1]")),
        (json!({"prompt": vec![97; CONTEXT + 1]}), Value::Null),
        (json!({"prompt": vec!["a"; 1025]}), json!("prompt")),
        (json!({"prompt": "a", "logprobs": 21}), json!("logprobs")),
        (json!({"prompt": "a", "logprobs": true}), json!("logprobs")),
        (json!({"prompt": "a", "echo": 1}), json!("echo")),
        (json!({"prompt": "a", "best_of": 3}), json!("best_of")),
        (json!({"prompt": "a", "suffix": "b"}), json!("suffix")),
    ];
    for (body, field) in cases {
        let error = server.post(TEXT, &body).error(400);
        assert_eq!(error["param"], field, "{body}: {error}");
    }
    assert_eq!(
        server.post(TEXT, &json!({"prompt": long})).error(400)["code"],
        "context_length_exceeded"
    );
    server.wait_until_idle();
}

#[test]
fn a_body_that_is_no_json_object_is_refused() {
    let server = Server::start();
    let deep = format!(
        "{{\"messages\": {}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let twice = "{\"messages\": [], \"messages\": []}";
    let cases = [
        "",
        "{",
        "null",
        "[]",
        "1",
        "\"x\"",
        "{}}",
        "{'a': 1}",
        "\u{0}",
        &deep,
        twice,
        "{\"messages\": [1e999]}",
    ];
    for body in cases {
        server.post_text(CHAT, body).error(400);
    }
    let bytes = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: 2\r\n\r\n";
    let mut stream = server.connect();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.write_all(&[0xff, 0xfe]).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
}

#[test]
fn what_follows_a_value_that_can_not_be_read_is_checked_too() {
    let server = Server::start();
    let deep = "[".repeat(130) + &"]".repeat(130);
    for value in ["1e400", "\"\\ud800\"", &deep] {
        for (field, rest) in [
            ("user", "\"tempreature\": 0"),
            ("verbosity", "\"chat_template\": \"a\""),
            ("user", "\"logit_bias\": {\"72\": 1, \"72\": 2}"),
        ] {
            let messages =
                "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 1";
            let body = format!("{{\"{field}\": {value}, {rest}, {messages}}}");
            let error = server.post_text(CHAT, &body).error(400);
            assert_eq!(error["code"], "invalid_json", "{body}: {error}");
        }
    }
}

#[test]
fn an_array_is_no_object_and_no_error_names_a_type_of_the_program() {
    let server = Server::start();
    let message = json!({"role": "user", "content": "a"});
    for (field, value, param) in [
        ("stream_options", json!([true]), "stream_options[0]"),
        ("stream_options", json!([]), "stream_options"),
        ("stream_options", json!("a"), "stream_options"),
        ("messages", json!([["user", "a"]]), "messages[0]"),
        ("messages", json!([message, 1]), "messages[1]"),
        ("tools", json!([["function", {"name": "f"}]]), "tools[0]"),
        (
            "response_format",
            json!(["json_object"]),
            "response_format[0]",
        ),
        (
            "tools",
            json!([{"function": ["f"]}]),
            "tools[0].function[0]",
        ),
    ] {
        let mut body = chat(json!({"max_tokens": 1}));
        body[field] = value;
        let error = server.post(CHAT, &body).error(400);
        let text = error["message"].as_str().unwrap();
        assert_eq!(error["param"], param, "{body}: {text}");
        assert!(
            text.contains("expected an object") && !text.contains("struct"),
            "{text}"
        );
    }
}

#[test]
fn other_paths_methods_and_content_types_are_refused_in_the_same_form() {
    let server = Server::start();
    assert_eq!(server.get("/v1/nothing").error(404)["code"], "unknown_url");
    assert_eq!(
        server.get("/../../etc/passwd").error(404)["code"],
        "unknown_url"
    );
    assert_eq!(server.get(CHAT).error(405)["code"], "method_not_allowed");
    for path in ["/v1/models/%ff", "/v1/responses/%c3", "/sessions/%ff"] {
        assert_eq!(server.get(path).error(400)["code"], "invalid_path");
    }
    let of_page = "Sec-Fetch-Site: same-origin\r\n";
    let text = post(CHAT, "{}", of_page).replace("application/json", "text/plain");
    assert_eq!(
        server.send(&text).error(415)["code"],
        "unsupported_media_type"
    );
}

#[test]
fn a_body_that_is_too_large_is_refused_whether_it_tells_its_length_or_not() {
    let server = Server::with(|options| options.body_bytes = 1000);
    let large = chat(json!({"user": "x".repeat(2000)})).to_string();
    assert_eq!(
        server.post_text(CHAT, &large).error(413)["code"],
        "body_too_large"
    );
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    assert_eq!(server.send(&chunked).error(413)["code"], "body_too_large");
    server.post(CHAT, &chat(json!({}))).good();
}

#[test]
fn who_sends_too_slowly_is_cut_off() {
    let server = Server::with(|options| options.client_time_out = Duration::from_millis(200));
    let read = |sent: &str| {
        let mut stream = server.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8(reply).unwrap()
    };
    // The client sends nothing, half of a head, or half of a body.
    read("");
    read("GET /health HT");
    let body = post(CHAT, "{\"messages\": []}", "");
    let reply = read(&body[..body.len() - 3]);
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    server.get("/health").good();
}

#[test]
fn who_reads_too_slowly_is_cut_off_and_the_answer_ends() {
    let server = Server::with(|options| options.client_time_out = Duration::from_millis(300));
    // More than the buffers of a connection hold: eight completions of 1000 tokens, each token with some 1.5 KB.
    let long = json!({"n": 8, "max_tokens": 1000, "ignore_eos": true, "stream": true, "logprobs": true, "top_logprobs": 20});
    let body = chat(long);
    let mut stream = server.connect();
    stream
        .write_all(post(CHAT, &body.to_string(), "").as_bytes())
        .unwrap();
    server.wait_until_idle();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert!(
        !String::from_utf8_lossy(&reply).contains("[DONE]"),
        "all of it was sent"
    );
}

#[test]
fn more_requests_than_may_wait_are_refused_and_told_when_to_come_again() {
    let server = Server::with(|options| (options.parallel, options.queue) = (1, 1));
    let long = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let begin = || {
        let mut stream = server.connect();
        stream
            .write_all(post(TEXT, &long.to_string(), "").as_bytes())
            .unwrap();
        stream
    };
    let wait_for = |answering: u64, waiting: u64| {
        let start = Instant::now();
        loop {
            let health = server.get("/health").json();
            if health["answering"] == answering && health["waiting"] == waiting {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{health}");
        }
    };
    let first = begin();
    wait_for(1, 0);
    let second = begin();
    wait_for(1, 1);
    let refused = server.post(TEXT, &json!({"prompt": "a"}));
    assert_eq!(refused.error(429)["type"], "rate_limit_error");
    assert!(
        refused
            .headers
            .to_ascii_lowercase()
            .contains("retry-after: "),
        "{}",
        refused.headers
    );
    // A client that disconnects makes room, whether its request was running or waiting.
    drop(second);
    wait_for(1, 0);
    drop(first);
    server.wait_until_idle();
    server.post(TEXT, &json!({"prompt": "a"})).good();
}

#[test]
fn nothing_is_computed_for_a_request_that_is_refused() {
    let server = Server::with(|options| {
        (options.parallel, options.queue, options.sessions) = (1, 0, Some(".".into()));
    });
    let long = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let mut stream = server.connect();
    stream
        .write_all(post(TEXT, &long.to_string(), "").as_bytes())
        .unwrap();
    while server.get("/health").json()["answering"] != 1 {}
    // Each request is invalid, but this is only detected during tokenization or compilation.
    let text = "x".repeat(CONTEXT + 1);
    let talk = json!([{"role": "user", "content": text}]);
    let form = json!({"type": "json_schema", "json_schema": {"schema": {"not": {}}}});
    for (path, body) in [
        (CHAT, json!({"messages": talk})),
        (CHAT, chat(json!({"response_format": form}))),
        (TEXT, json!({"prompt": text})),
        (TEXT, json!({"prompt": "a", "response_format": form})),
        ("/v1/responses", json!({"input": text})),
        ("/v1/messages", json!({"messages": talk, "max_tokens": 4})),
        ("/v1/embeddings", json!({"input": text})),
        ("/sessions/one/save", json!({"prompt": text})),
    ] {
        assert_eq!(server.post(path, &body).status, 429, "{path}");
    }
    // These requests don't use the engine.
    server.post("/tokenize", &json!({"content": "a"})).good();
    server
        .post("/apply-template", &json!({"messages": talk}))
        .good();
    drop(stream);
    server.wait_until_idle();
    assert_eq!(
        server.post(TEXT, &json!({"prompt": text})).error(400)["code"],
        "context_length_exceeded"
    );
    assert_eq!(server.get("/health").json()["waiting"], 0);
}

#[test]
fn bodies_take_a_bounded_part_of_memory_together() {
    let server = Server::with(|options| options.bodies_bytes = 200 << 10);
    let body = chat(json!({"user": "x".repeat(60_000)})).to_string();
    let request = post(CHAT, &body, "");
    let hold = || {
        let mut stream = server.connect();
        stream
            .write_all(&request.as_bytes()[..request.len() - 5000])
            .unwrap();
        stream
    };
    let mut first = hold();
    // The body is held once another one of its length is refused.
    let start = Instant::now();
    let refused = loop {
        // The held body itself may be refused, if it arrives after the other one.
        if !has_nothing(&first) {
            first = hold();
        }
        let reply = server.post_text(CHAT, &body);
        if reply.status != 200 {
            break reply;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "both were taken");
    };
    assert_eq!(refused.error(503)["code"], "bodies_full");
    assert!(
        refused
            .headers
            .to_ascii_lowercase()
            .contains("retry-after: "),
        "{}",
        refused.headers
    );
    server.post(CHAT, &chat(json!({}))).good();
    drop(first);
    let start = Instant::now();
    while server.post_text(CHAT, &body).status != 200 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the body of a client that left stays"
        );
    }
}

#[test]
fn a_large_body_is_answered_as_a_small_one_and_one_of_too_many_values_is_refused() {
    let server = Server::start();
    let small = server.post(CHAT, &chat(json!({}))).good();
    let large = server
        .post(CHAT, &chat(json!({"user": "x".repeat(1 << 20)})))
        .good();
    assert_eq!(small["choices"], large["choices"]);
    let streamed = server.post(
        CHAT,
        &chat(json!({"user": "x".repeat(1 << 20), "stream": true})),
    );
    assert!(streamed.chunks().len() > 2);
    let many = format!("{{\"messages\": [{}1]}}", "1,".repeat(1 << 20));
    let error = server.post_text(CHAT, &many).error(413);
    assert_eq!(error["code"], "body_too_large");
    assert!(
        error["message"].as_str().unwrap().contains("values"),
        "{error}"
    );
}

#[test]
fn an_answer_that_no_memory_is_there_for_is_refused_at_once() {
    let page = {
        let server = Server::start();
        server.engine.usage().kv.page_bytes
    };
    let server = Server::with_kv_memory(Some(2 * page), |_| {});
    let ask = |more: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 400});
        add(&mut body, more);
        server.post(TEXT, &body)
    };
    ask(json!({})).good();
    assert_eq!(
        ask(json!({"max_tokens": 600})).error(400)["code"],
        "context_length_exceeded"
    );
    assert_eq!(
        ask(json!({"n": 2})).error(400)["code"],
        "context_length_exceeded"
    );
    ask(json!({"max_tokens": 40, "n": 1})).good();
}

#[test]
fn a_head_that_is_too_long_or_no_http_ends_the_connection() {
    let server = Server::start();
    let long = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    for request in [
        long.as_str(),
        "\u{1}\u{2}\u{3}\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = server.connect();
        let _ = stream.write_all(request.as_bytes());
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply);
        assert!(
            reply.is_empty() || reply.starts_with("HTTP/1.1 4"),
            "{reply}"
        );
    }
    server.get("/health").good();
}

#[test]
#[cfg(target_os = "linux")]
fn a_client_that_leaves_ends_what_checks_its_grammar() {
    let name = "600.03125";
    let is_checked = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.map(|process| {
            std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default()
        });
        lines.any(|line| line.split('\0').any(|part| part == name))
    };
    let server = Server::with(|options| {
        let checker = triad_server::Checker::new("sleep", [name]);
        options.grammar_checker = Some(checker.with_time(Duration::from_secs(600)));
    });
    let start = Instant::now();
    let wait_until = |checked: bool| {
        while is_checked() != checked {
            assert!(start.elapsed() < Duration::from_secs(60), "{checked}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    for (path, body) in [
        (TEXT, json!({"prompt": "a", "guided_regex": "a"})),
        (CHAT, chat(json!({"guided_regex": "a"}))),
        (
            CHAT,
            chat(json!({"tools": [tool], "tool_choice": "required"})),
        ),
    ] {
        let mut stream = server.connect();
        stream
            .write_all(post(path, &body.to_string(), "").as_bytes())
            .unwrap();
        wait_until(true);
        drop(stream);
        wait_until(false);
    }
    server.post(TEXT, &json!({"prompt": "a"})).good();
}

#[test]
fn results_of_calls_count_as_the_messages_that_they_become() {
    let server = Server::start();
    let results = |count: usize| {
        let results: Vec<_> = (0..count)
            .map(|_| json!({"type": "tool_result", "tool_use_id": "a", "content": "1"}))
            .collect();
        let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
        json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": [call]},
            {"role": "user", "content": results},
        ]})
    };
    server.post("/v1/messages", &results(2)).good();
    let refused = server.post("/v1/messages", &results(5000));
    assert_eq!(refused.status, 400);
    let refused = refused.json();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("messages: 5002 messages, expected"),
        "{message}"
    );
}
