//! Concurrent clients, clients that disconnect, and the shutdown of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Server, post};

const TEXT: &str = "/v1/completions";

fn body(client: usize) -> Value {
    json!({"prompt": format!("Client {client} asks: {}", "ab ".repeat(7 * client)), "max_tokens": 40, "logprobs": 1})
}

fn answer(reply: &Value) -> (Value, Value) {
    (
        reply["choices"][0]["text"].clone(),
        reply["choices"][0]["logprobs"]["token_logprobs"].clone(),
    )
}

#[test]
fn each_of_sixteen_clients_gets_what_it_gets_alone() {
    let alone: Vec<_> = {
        let server = Server::start();
        (0..16)
            .map(|client| answer(&server.post(TEXT, &body(client)).good()))
            .collect()
    };
    let server = Server::with(|options| options.parallel = 6);
    std::thread::scope(|scope| {
        for (client, alone) in alone.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(
                        &answer(&server.post(TEXT, &body(client)).good()),
                        alone,
                        "client {client}"
                    );
                }
            });
        }
    });
    assert_eq!(
        server.get("/health").good(),
        json!({"status": "ok", "answering": 0, "waiting": 0})
    );
}

/// Reads the first events of a stream, and disconnects.
fn leave(server: &Server, events: usize) {
    let body =
        json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true, "n": 2});
    let mut stream = server.connect();
    stream
        .write_all(post(TEXT, &body.to_string(), "").as_bytes())
        .unwrap();
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    assert_eq!(
        lines
            .filter(|line| line.starts_with("data: "))
            .take(events)
            .count(),
        events
    );
}

#[test]
fn an_answer_ends_when_its_client_goes_away() {
    let server = Server::start();
    leave(&server, 3);
    server.wait_until_idle();
    // The same for responses that are not streamed, while their clients wait.
    let body = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true});
    let mut stream = server.connect();
    stream
        .write_all(post(TEXT, &body.to_string(), "").as_bytes())
        .unwrap();
    let start = Instant::now();
    while server.get("/health").json()["answering"] != 1 {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    drop(stream);
    server.wait_until_idle();
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("triad_answers_total{model=\"tiny\",finish=\"cancelled\"}"),
        "{metrics}"
    );
    // No pages are left except those in the prefix index.
    let kv = server.engine.usage().kv;
    assert!(kv.bytes <= kv.indexed_pages * kv.page_bytes, "{kv:?}");
}

#[test]
fn a_server_that_ends_refuses_connections_while_it_waits_for_requests() {
    let server = Server::with(|options| options.head_time_out = Duration::from_secs(60));
    let mut stream = server.connect();
    let request = post(
        TEXT,
        &json!({"prompt": "a", "max_tokens": 1}).to_string(),
        "",
    );
    let (begin, rest) = request.split_at(request.len() - 5);
    stream.write_all(begin.as_bytes()).unwrap();
    // The server has taken this connection when it answers a later one.
    server.get("/health").good();
    server.begin_end();
    let start = Instant::now();
    while std::net::TcpStream::connect(server.address).is_ok() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it still listens"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    stream.write_all(rest.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn the_end_of_a_server_waits_for_answers_and_cancels_those_that_take_too_long() {
    for (time_out, is_complete) in [
        (Duration::from_secs(60), true),
        (Duration::from_millis(1), false),
    ] {
        let mut server = Server::with(|options| options.shutdown_time_out = time_out);
        let count = if is_complete { 40 } else { 1000 };
        let body =
            json!({"prompt": "a", "max_tokens": count, "ignore_eos": true, "stream": true, "n": 4});
        let mut stream = server.connect();
        stream
            .write_all(post(TEXT, &body.to_string(), "").as_bytes())
            .unwrap();
        let mut first = [0; 64];
        stream.read_exact(&mut first).unwrap();
        server.end();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(
            String::from_utf8_lossy(&rest).contains("[DONE]"),
            is_complete
        );
        assert!(
            std::net::TcpStream::connect(server.address).is_err(),
            "the server still listens after its shutdown"
        );
    }
}
