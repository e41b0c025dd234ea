//! Answers to requests whose bodies are not read, or not to their end.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Server, post};

const CHAT: &str = "/v1/chat/completions";
const BODY: usize = 1 << 20;
/// More than the buffers of a connection hold, and less than is read at most.
const LARGE: usize = 7 << 20;

fn server() -> Server {
    Server::with(|options| {
        options.body_bytes = BODY;
        options.api_keys = vec!["key".into()];
    })
}

/// Sends a request whose body of `bytes` comes in parts, and returns the status of its answer. The answer has to arrive even
/// if the client writes the whole body before it reads.
fn status(server: &Server, head: &str, bytes: usize) -> u16 {
    let mut stream = server.connect();
    let head = format!("{head}Host: localhost\r\nContent-Type: application/json\r\n");
    write!(stream, "{head}Content-Length: {bytes}\r\n\r\n").unwrap();
    for part in vec![b' '; bytes].chunks(1 << 16) {
        stream.write_all(part).unwrap();
        // The server has the time to answer, and to close the connection.
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[9..]).parse().unwrap()
}

#[test]
fn an_answer_reaches_a_client_that_first_writes_all_of_a_body_which_is_not_read() {
    let server = server();
    let key = "Authorization: Bearer key\r\n";
    for (head, expected) in [
        (format!("POST {CHAT} HTTP/1.1\r\n{key}"), 413),
        (format!("POST {CHAT} HTTP/1.1\r\n"), 401),
        (format!("POST /v1/nothing HTTP/1.1\r\n{key}"), 404),
        (format!("PUT {CHAT} HTTP/1.1\r\n{key}"), 405),
        (format!("GET /v1/nothing HTTP/1.1\r\n{key}"), 404),
        (format!("GET /health HTTP/1.1\r\n{key}"), 200),
        (
            format!("POST {CHAT} HTTP/1.1\r\n{key}Content-Encoding: gzip\r\n"),
            415,
        ),
    ] {
        assert_eq!(status(&server, &head, LARGE), expected, "{head}");
    }
}

#[test]
fn a_body_of_unknown_length_is_read_on_after_it_is_refused() {
    let server = server();
    let mut stream = server.connect();
    let head = post(
        CHAT,
        "",
        "Authorization: Bearer key\r\nTransfer-Encoding: chunked\r\n",
    );
    let head = head.replace("Content-Length: 0\r\n", "");
    stream.write_all(head.as_bytes()).unwrap();
    let part = format!("{:x}\r\n{}\r\n", 1 << 16, " ".repeat(1 << 16));
    for _ in 0..LARGE >> 16 {
        stream.write_all(part.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("body_too_large"), "{answer}");
}

#[test]
fn the_rest_of_a_body_has_bounds_and_its_connection_ends() {
    let server = Server::with(|options| {
        options.api_keys = vec!["key".into()];
        options.head_time_out = Duration::from_millis(300);
        options.body_bytes = BODY;
    });
    // It stalls, or is larger than what is read at most.
    for bytes in [BODY, 1 << 30] {
        let start = Instant::now();
        let mut stream = server.connect();
        write!(
            stream,
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{{",
            1_u64 << 40
        )
        .unwrap();
        let part = [b' '; 1 << 16];
        let mut sent = 0;
        while sent < bytes && stream.write_all(&part).is_ok() {
            sent += part.len();
        }
        assert!(sent < 100 << 20, "{sent} bytes are read");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    // A client that asks before it sends a body is answered, and not asked for it.
    let asks = "Authorization: Bearer wrong\r\nExpect: 100-continue\r\nContent-Length: 9\r\n";
    let mut stream = server.connect();
    write!(
        stream,
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{asks}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert!(!answer.contains("HTTP/1.1 100"), "{answer}");
}

#[test]
fn a_connection_goes_on_after_a_body_that_was_not_read() {
    let server = server();
    let mut stream = server.connect();
    let body = json!({"prompt": " ".repeat(300_000)}).to_string();
    let refused = post("/v1/completions", &body, "").replace("Connection: close\r\n", "");
    for _ in 0..3 {
        stream.write_all(refused.as_bytes()).unwrap();
        let mut answer = String::new();
        // The body, an object in an object, ends with the first such end.
        while !answer.ends_with("}}") {
            let mut part = [0; 4096];
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "the connection ended after {answer:?}");
            answer += &String::from_utf8_lossy(&part[..count]);
        }
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
}
