//! Several models, loaded on demand within a memory limit.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use triad_engine::{Engine, EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_server::{
    HostedModel, LoadedModel, ModelFacts, ServerOptions, Shutdown, StartError, serve,
};

use crate::support::{Server, add, engine, post};

/// Returns models `a`, `b`, … of one byte each, and counters of their loads.
fn models(engine: &Engine, count: usize) -> (Vec<HostedModel>, Arc<Vec<AtomicUsize>>) {
    let loads: Arc<Vec<_>> = Arc::new((0..count).map(|_| AtomicUsize::new(0)).collect());
    let model = |index: usize| {
        let (engine, loads) = (engine.clone(), Arc::clone(&loads));
        HostedModel {
            name: char::from(b'a' + index as u8).into(),
            aliases: Vec::new(),
            bytes: 1,
            facts: ModelFacts::default(),
            check: Box::new(|| Ok(())),
            load: Box::new(move || {
                loads[index].fetch_add(1, Ordering::Relaxed);
                Ok(LoadedModel {
                    engine: engine.clone(),
                    adapters: Vec::new(),
                    is_current: Box::new(|| true),
                })
            }),
        }
    };
    ((0..count).map(model).collect(), loads)
}

fn counts(loads: &[AtomicUsize]) -> Vec<usize> {
    loads
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect()
}

fn loaded(server: &Server) -> Vec<String> {
    let list = server.get("/v1/models").good();
    let models = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|model| model["loaded"] == true);
    models
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn models_are_listed_in_pages_in_anthropics_form() {
    let (engine, folder) = engine(None);
    let (models, _) = models(&engine, 5);
    let server = Server::with_models((engine, folder), models, |_| {});
    let get = |query: &str| {
        server.send(&format!(
            "GET /v1/models{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             anthropic-version: 2023-06-01\r\n\r\n"
        ))
    };
    for (query, names, has_more) in [
        ("", "abcde", false),
        ("?limit=2", "ab", true),
        ("?limit=2&after_id=b&beta=true", "cd", true),
        ("?limit=2&after_id=d", "e", false),
        ("?after_id=e", "", false),
        ("?limit=2&before_id=d", "bc", true),
        ("?limit=2&before_id=c", "ab", false),
        ("?limit=1000&before_id=b", "a", false),
    ] {
        let page = get(query).good();
        let data = page["data"].as_array().unwrap();
        let found: String = data
            .iter()
            .filter_map(|model| model["id"].as_str())
            .collect();
        assert_eq!(
            (&*found, &page["has_more"]),
            (names, &json!(has_more)),
            "{query}"
        );
    }
    for (query, name) in [
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=x", "limit"),
        ("?after_id=z", "after_id"),
        ("?after_id=a&before_id=c", "before_id"),
        ("?page=2", "page"),
    ] {
        let refused = get(query);
        assert_eq!(refused.status, 400, "{query}");
        let message = refused.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(name), "{query}: {message}");
    }
}

#[test]
fn models_are_loaded_when_asked_for_and_the_one_not_used_the_longest_goes_first() {
    let (engine, folder) = engine(None);
    let (models, loads) = models(&engine, 3);
    let server = Server::with_models((engine, folder), models, |options| options.model_bytes = 2);
    assert_eq!(loaded(&server), ["a"]);
    let ask = |name: &str| server.post("/tokenize", &json!({"model": name, "content": "a"}));
    for (name, expected) in [
        ("b", ["a", "b"]),
        ("a", ["a", "b"]),
        ("c", ["a", "c"]),
        ("b", ["b", "c"]),
    ] {
        ask(name).good();
        assert_eq!(loaded(&server), expected, "after {name}");
    }
    assert_eq!(counts(&loads), [1, 2, 1]);
    let unknown = ask("d");
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("a, b, c"), "{unknown:?}");
}

#[test]
fn a_request_that_is_refused_loads_no_model() {
    let (engine, folder) = engine(None);
    let (models, loads) = models(&engine, 2);
    let sessions = tempfile::tempdir().unwrap();
    let server = Server::with_models((engine, folder), models, |options| {
        (options.body_bytes, options.sessions) = (4 << 20, Some(sessions.path().to_owned()));
    });
    let talk = json!([{"role": "user", "content": "Hi"}]);
    let (chat, text) = (json!({"messages": talk}), json!({"prompt": "a"}));
    let (response, message) = (
        json!({"input": "a"}),
        json!({"messages": talk, "max_tokens": 4}),
    );
    let cases = [
        ("/v1/nothing", &text, json!({})),
        ("/v1/chat/completions", &chat, json!({"nothing": 1})),
        ("/v1/chat/completions", &chat, json!({"temperature": -1})),
        ("/v1/chat/completions", &chat, json!({"top_p": 2})),
        (
            "/v1/chat/completions",
            &chat,
            json!({"logit_bias": {"1": 101}}),
        ),
        ("/v1/chat/completions", &chat, json!({"n": 9})),
        ("/v1/chat/completions", &chat, json!({"stop": ""})),
        (
            "/v1/chat/completions",
            &chat,
            json!({"lora": [{"name": "one", "scale": 101}]}),
        ),
        ("/v1/chat/completions", &chat, json!({"top_logprobs": 2})),
        ("/v1/chat/completions", &chat, json!({"max_tokens": 0})),
        ("/v1/chat/completions", &chat, json!({"messages": []})),
        (
            "/v1/chat/completions",
            &chat,
            json!({"tools": [{"type": "other"}], "tool_choice": "required"}),
        ),
        (
            "/v1/chat/completions",
            &chat,
            json!({"response_format": {"type": "other"}}),
        ),
        (
            "/v1/chat/completions",
            &chat,
            json!({"continue_final_message": true}),
        ),
        (
            "/v1/chat/completions",
            &chat,
            json!({"chat_template_kwargs": {"messages": 1}}),
        ),
        (
            "/v1/chat/completions",
            &chat,
            json!({"user": "x".repeat(4 << 20)}),
        ),
        ("/v1/completions", &text, json!({"prompt": []})),
        ("/v1/completions", &text, json!({"best_of": 3})),
        ("/v1/completions", &text, json!({"logprobs": 21})),
        ("/v1/completions", &text, json!({"max_tokens": -5})),
        ("/v1/completions", &text, json!({"min_p": 2})),
        ("/v1/responses", &response, json!({"input": []})),
        ("/v1/responses", &response, json!({"max_output_tokens": 0})),
        ("/v1/responses", &response, json!({"temperature": -1})),
        ("/v1/messages", &message, json!({"max_tokens": 0})),
        (
            "/v1/messages",
            &message,
            json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
        ),
        ("/v1/messages", &message, json!({"top_k": -5})),
        ("/v1/embeddings", &json!({"input": []}), json!({})),
        ("/tokenize", &json!({}), json!({})),
        ("/tokenize", &json!({"messages": []}), json!({})),
        (
            "/detokenize",
            &json!({"tokens": vec![1; (1 << 20) + 1]}),
            json!({}),
        ),
        ("/apply-template", &chat, json!({"messages": []})),
        ("/sessions/a/save", &json!({}), json!({})),
        ("/sessions/a.b/save", &text, json!({})),
        ("/sessions/a/restore", &json!({}), json!({})),
    ];
    for (path, body, more) in cases {
        let mut body = body.clone();
        add(&mut body, json!({"model": "b"}));
        add(&mut body, more.clone());
        let reply = server.post(path, &body);
        assert!(
            (400..500).contains(&reply.status),
            "{path} {more}: {reply:?}"
        );
        assert_eq!(counts(&loads), [1, 0], "{path} {more}");
    }
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/completions", text),
        ("/v1/responses", response),
        ("/v1/messages", message),
    ] {
        server.post(path, &body).good();
    }
}

#[test]
fn one_load_serves_all_who_wait_for_it() {
    let (engine, folder) = engine(None);
    let (models, loads) = models(&engine, 2);
    let server = Server::with_models((engine, folder), models, |_| {});
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                server
                    .post(
                        "/v1/completions",
                        &json!({"model": "b", "prompt": "a", "max_tokens": 2}),
                    )
                    .good()
            });
        }
    });
    assert_eq!(counts(&loads), [1, 1]);
}

#[test]
fn a_model_in_use_stays_and_who_waits_too_long_for_its_memory_is_told_when_to_come_again() {
    let (engine, folder) = engine(None);
    let (models, loads) = models(&engine, 2);
    let server = Server::with_models((engine, folder), models, |options| {
        options.model_bytes = 1;
        // A small part of the time that the completions below take.
        options.client_time_out = Duration::from_millis(50);
    });
    let mut stream = server.connect();
    let body = json!({"model": "a", "prompt": "a", "max_tokens": 760, "ignore_eos": true, "stream": true, "n": 4});
    stream
        .write_all(post("/v1/completions", &body.to_string(), "").as_bytes())
        .unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let mut rest = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
    let refused = server.post("/tokenize", &json!({"model": "b", "content": "a"}));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        refused.headers.contains("retry-after") && refused.body.contains("in use: a"),
        "{refused:?}"
    );
    assert_eq!(counts(&loads), [1, 0]);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(reading.join());
    server.wait_until_idle();
    // The completions end slightly before the request that waits for them.
    let start = Instant::now();
    while server
        .post("/tokenize", &json!({"model": "b", "content": "a"}))
        .status
        == 503
    {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "a is used forever"
        );
    }
    assert_eq!(counts(&loads), [1, 1]);
}

#[test]
fn requests_that_wait_for_memory_keep_none_from_a_model_that_fits() {
    let (engine, folder) = engine(None);
    let (mut models, loads) = models(&engine, 3);
    models[1].bytes = 2;
    let time = Duration::from_secs(4);
    let server = Server::with_models((engine, folder), models, |options| {
        options.model_bytes = 2;
        options.client_time_out = time;
    });
    // A stream that no client reads keeps its model in use.
    let mut stream = server.connect();
    let body = json!({"model": "a", "prompt": "a", "max_tokens": 760, "ignore_eos": true, "stream": true, "n": 4,
                      "logprobs": 20});
    stream
        .write_all(post("/v1/completions", &body.to_string(), "").as_bytes())
        .unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let start = Instant::now();
    let tokenize = |model: &str| server.post("/tokenize", &json!({"model": model, "content": "a"}));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| tokenize("b"))).collect();
        std::thread::sleep(Duration::from_millis(200));
        tokenize("c").good();
        assert!(start.elapsed() < time, "{:?}", start.elapsed());
        drop(
            waiting
                .into_iter()
                .map(|it| it.join().unwrap())
                .collect::<Vec<_>>(),
        );
        // Each has waited for its own time alone.
        assert!(start.elapsed() < 2 * time, "{:?}", start.elapsed());
    });
    assert_eq!(counts(&loads)[2], 1);
}

#[test]
fn a_model_that_can_not_be_loaded_is_an_error_and_the_others_go_on() {
    let (engine, folder) = engine(None);
    let (mut models, _) = models(&engine, 2);
    models[1].load = Box::new(|| Err("/secret/folder/b.gguf is gone".into()));
    let server = Server::with_models((engine, folder), models, |_| {});
    for _ in 0..2 {
        let failed = server.post("/tokenize", &json!({"model": "b", "content": "a"}));
        assert_eq!(failed.status, 500);
        assert!(
            failed
                .body
                .contains("b can't be loaded: the server's log has the cause"),
            "{failed:?}"
        );
        assert!(!failed.body.contains("secret"), "{failed:?}");
    }
    server.post("/tokenize", &json!({"content": "a"})).good();
}

#[test]
#[cfg(unix)]
fn a_model_whose_file_is_truncated_is_unloaded_and_the_server_goes_on() {
    let (engine, folder) = engine(None);
    let path = folder.path().join("b.gguf");
    let file = std::fs::read(folder.path().join("tiny.gguf")).unwrap();
    std::fs::write(&path, &file).unwrap();
    let (mut models, _) = models(&engine, 2);
    let from = path.clone();
    models[1].load = Box::new(move || {
        let load = LoadOptions {
            threads: Threads::Count(1),
            ..Default::default()
        };
        let model = Arc::new(Model::load(&from, &load)?);
        let session = SessionOptions {
            context: 512,
            ..SessionOptions::default()
        };
        let engine = Engine::new(
            &model,
            &EngineOptions {
                session,
                ..EngineOptions::default()
            },
        )?;
        Ok(LoadedModel {
            engine,
            adapters: Vec::new(),
            is_current: Box::new(|| true),
        })
    });
    let server = Server::with_models((engine, folder), models, |_| {});
    let ask = |model: &str| {
        server.post(
            "/v1/completions",
            &json!({"model": model, "prompt": "abc", "max_tokens": 8, "ignore_eos": true}),
        )
    };
    let text = |answer: &serde_json::Value| answer["choices"][0]["text"].clone();
    let expected = text(&ask("b").good());
    // The file changes during generation: the text streamed so far is that of the original file, then an error follows.
    let mut stream = server.connect();
    let body = json!({"model": "b", "prompt": "abc", "max_tokens": 480, "ignore_eos": true, "stream": true});
    stream
        .write_all(
            post(
                "/v1/completions",
                &body.to_string(),
                "connection: close\r\n",
            )
            .as_bytes(),
        )
        .unwrap();
    stream.read_exact(&mut [0; 256]).unwrap();
    let whole = std::fs::File::options().write(true).open(&path).unwrap();
    whole.set_len(0).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("was changed or truncated"), "{rest}");
    assert_eq!(loaded(&server), ["a"]);
    let refused = ask("b");
    assert!(
        refused.status >= 500 && refused.body.contains("b can't be loaded"),
        "{refused:?}"
    );
    ask("a").good();
    std::fs::write(&path, &file).unwrap();
    assert_eq!(text(&ask("b").good()), expected);
    assert_eq!(loaded(&server), ["a", "b"]);
}

#[test]
fn what_could_never_be_served_is_refused_at_the_start() {
    let (engine, _folder) = engine(None);
    let start = |change: &dyn Fn(&mut Vec<HostedModel>, &mut ServerOptions)| {
        let mut options = ServerOptions {
            port: 0,
            ..ServerOptions::default()
        };
        let (mut models, _) = models(&engine, 2);
        change(&mut models, &mut options);
        serve(options, models, &Shutdown::default(), |_| {
            panic!("it listens")
        })
        .unwrap_err()
    };
    assert!(
        matches!(start(&|models, _| models[1].name = "a".into()), StartError::Name { name } if name == "a")
    );
    assert!(matches!(
        start(&|_, options| options.model_bytes = 0),
        StartError::Memory { .. }
    ));
    assert!(matches!(
        start(&|models, _| models[0].load = Box::new(|| Err("no".into()))),
        StartError::Load { .. }
    ));
    assert!(matches!(
        start(&|models, _| models.clear()),
        StartError::Zero { .. }
    ));
}
