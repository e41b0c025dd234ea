//! Fairness: connections, memory for bodies, queue places and saved sessions are shared among clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use triad_server::ServerOptions;

use crate::support::{Server, has_nothing, post};

const TEXT: &str = "/v1/completions";
const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// A timeout that is longer than any test, so that it can't be the reason why something ends.
const LONG: Duration = Duration::from_secs(600);

fn key(name: &str) -> String {
    format!("Authorization: Bearer {name}\r\n")
}

fn with_keys(options: &mut ServerOptions) {
    options.api_keys = vec!["alice".into(), "bob".into()];
}

/// Sends the bytes, and returns the connection.
fn begin(mut stream: TcpStream, sent: &str) -> TcpStream {
    stream.write_all(sent.as_bytes()).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        let is_reset = error.kind() == ErrorKind::ConnectionReset;
        assert!(is_reset, "the connection stays: {error}");
    }
    String::from_utf8(bytes).unwrap()
}

/// Reads the next bytes that arrive.
fn some(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

/// Connects from another address of this machine.
#[cfg(target_os = "linux")]
fn connect_from(server: &Server, number: u8) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, number], 0).into())?;
        socket.connect(server.address).await?.into_std()
    });
    let stream = connected.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn wait_for(server: &Server, answering: u64, waiting: u64) {
    let start = Instant::now();
    loop {
        let health = server.get("/health").json();
        if health["answering"] == answering && health["waiting"] == waiting {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{health}");
    }
}

#[test]
fn half_sent_heads_keep_no_request_of_the_same_address_from_its_answer() {
    let server = Server::with(|options| {
        (
            options.connections,
            options.client_time_out,
            options.head_time_out,
        ) = (16, LONG, LONG);
    });
    let mut heads: Vec<_> = (0..40)
        .map(|_| begin(server.connect(), &HEALTH[..20]))
        .collect();
    server.get("/health").good();
    // The oldest connection was replaced. The latest one is still open.
    rest(&mut heads[0]);
    let mut last = begin(heads.pop().unwrap(), &HEALTH[20..]);
    assert!(some(&mut last).starts_with("HTTP/1.1 200"));
}

#[cfg(target_os = "linux")]
#[test]
fn an_address_with_its_share_of_connections_is_refused_and_others_are_not() {
    let server = Server::with(|options| {
        (
            options.connections,
            options.client_time_out,
            options.head_time_out,
        ) = (8, LONG, LONG);
    });
    let request = post(TEXT, "{}", "Expect: 100-continue\r\n");
    let head = &request[..request.len() - 2];
    let mut busy = Vec::new();
    for _ in 0..4 {
        let mut stream = begin(connect_from(&server, 2), head);
        assert!(some(&mut stream).starts_with("HTTP/1.1 100"));
        busy.push(stream);
    }
    let refused = rest(&mut connect_from(&server, 2));
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("Retry-After: "),
        "{refused}"
    );
    server.get("/health").good();
    drop(busy);
    let start = Instant::now();
    loop {
        let mut again = connect_from(&server, 2);
        // The server may refuse the connection before the request is written.
        let _ = again.write_all(HEALTH.as_bytes());
        if some(&mut again).starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "connections that ended count"
        );
    }
}

#[test]
fn a_head_that_does_not_arrive_is_given_up_long_before_an_idle_connection() {
    let short = Duration::from_millis(200);
    let server = Server::with(|options| {
        (options.client_time_out, options.head_time_out) = (LONG, short);
    });
    for sent in ["", &HEALTH[..20]] {
        rest(&mut begin(server.connect(), sent));
    }
    let mut idle = server.connect();
    for _ in 0..2 {
        idle.write_all(HEALTH.as_bytes()).unwrap();
        assert!(some(&mut idle).starts_with("HTTP/1.1 200"));
        sleep(3 * short);
    }
    assert!(has_nothing(&idle));
    rest(&mut begin(idle, &HEALTH[..20]));
}

#[test]
fn a_body_that_stalls_is_ended_long_before_the_time_of_a_request() {
    let server = Server::with(|options| {
        (options.client_time_out, options.head_time_out) = (LONG, Duration::from_millis(200));
    });
    let request = post(TEXT, "{\"prompt\": \"a\"}", "");
    let reply = rest(&mut begin(server.connect(), &request[..request.len() - 3]));
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    server.get("/health").good();
}

#[test]
fn bodies_of_one_key_leave_memory_for_those_of_another() {
    let server = Server::with(|options| {
        with_keys(options);
        (options.bodies_bytes, options.head_time_out) = (200 << 10, LONG);
        options.client_time_out = LONG;
    });
    let body = json!({"prompt": "a", "max_tokens": 1, "user": "x".repeat(60_000)}).to_string();
    let ask = |name: &str| server.send(&post(TEXT, &body, &key(name)));
    let part = post(TEXT, &body, &key("alice"));
    let hold = || begin(server.connect(), &part[..part.len() - 5000]);
    let mut held = hold();
    // The body is held once another one of the same key is refused.
    let start = Instant::now();
    let refused = loop {
        // The held body itself may be refused, if it arrives after the other one.
        if !has_nothing(&held) {
            held = hold();
        }
        let reply = ask("alice");
        if reply.status != 200 {
            break reply;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "both were taken");
    };
    assert_eq!(refused.error(503)["code"], "bodies_full");
    assert!(refused.headers.contains("retry-after: "), "{refused:?}");
    ask("bob").good();
}

#[cfg(target_os = "linux")]
#[test]
fn large_responses_that_no_client_reads_count_towards_its_memory() {
    let server = Server::with(|options| options.bodies_bytes = 64 << 20);
    // Larger than the buffers of a connection, as is not the request.
    let body = json!({"content": "a ".repeat(200_000), "with_pieces": true});
    let request = post("/tokenize", &body.to_string(), "");
    let ask = || {
        let mut stream = begin(server.connect(), &request);
        stream.read_exact(&mut [0; 100]).unwrap();
        stream
    };
    let held: Vec<_> = (0..8).map(|_| ask()).collect();
    let refused = server.post("/tokenize", &body);
    assert_eq!(refused.error(503)["code"], "bodies_full");
    // An error repeats no more than the beginning and the end of a text.
    let long = "\u{7f}".repeat(1 << 20);
    drop(held);
    let start = Instant::now();
    while server.post("/tokenize", &body).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "it stays held");
    }
    for body in [
        json!({"prompt": "a", "lora": [{"name": long}]}),
        json!({"prompt": "a", long: 1}),
    ] {
        let reply = server.post(TEXT, &body);
        assert!(
            reply.status == 400 && reply.body.len() < 20_000,
            "{}",
            reply.body.len()
        );
    }
}

#[test]
fn turns_are_of_keys_from_one_address_or_many() {
    let server = Server::with(|options| {
        with_keys(options);
        options.parallel = 1;
    });
    let body = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let ask = |stream, name: &str| begin(stream, &post(TEXT, &body.to_string(), &key(name)));
    // Nothing is known of the order if an answer ends before it is looked at. A request that is still prepared when its
    // turn comes loses it, so that a few orders may be the other way round.
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..200 {
        let running = ask(server.connect(), "alice");
        wait_for(&server, 1, 0);
        let mut first = ask(server.connect(), "alice");
        wait_for(&server, 1, 1);
        let second = ask(connect_from(&server, 2), "alice");
        wait_for(&server, 1, 2);
        let mut other = ask(server.connect(), "bob");
        wait_for(&server, 1, 3);
        drop(running);
        assert!(some(&mut first).starts_with("HTTP/1.1 200"));
        drop(first);
        let waits = loop {
            let waits = [&second, &other].map(has_nothing);
            if waits != [true, true] {
                break waits;
            }
            std::thread::yield_now();
        };
        assert!(some(&mut other).starts_with("HTTP/1.1 200"));
        drop((second, other));
        wait_for(&server, 0, 0);
        right += u32::from(waits == [true, false]);
        wrong += u32::from(waits == [false, true]);
        if right + wrong == 8 {
            break;
        }
    }
    assert!(
        right > 2 * wrong,
        "one key had two turns {wrong} times of {}",
        right + wrong
    );
}

#[test]
fn saved_sessions_beyond_the_bytes_of_a_key_replace_its_oldest_and_no_other_key_s() {
    let folder = tempfile::tempdir().unwrap();
    let start = |session_bytes| {
        Server::with(|options| {
            with_keys(options);
            options.sessions = Some(folder.path().to_owned());
            options.session_bytes = session_bytes;
        })
    };
    let save = |server: &Server, owner: &str, name: &str, tokens: usize| {
        let body = json!({"prompt": "x".repeat(tokens)}).to_string();
        server.send(&post(&format!("/sessions/{name}/save"), &body, &key(owner)))
    };
    let names = |server: &Server, owner: &str| -> Vec<Value> {
        let request = format!(
            "GET /sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
            key(owner)
        );
        let list = server.send(&request).good()["data"].clone();
        let files = list.as_array().unwrap().iter();
        files.map(|file| file["name"].clone()).collect()
    };
    let (bytes, page) = {
        let server = start(u64::MAX);
        let saved = save(&server, "alice", "kept", 250).good();
        let page = server.engine.usage().kv.page_bytes as u64;
        (saved["bytes"].as_u64().unwrap(), page)
    };
    let server = start((2 * bytes).max(page));
    for name in ["c", "b", "a"] {
        save(&server, "bob", name, 250).good();
        // Modification times of files have a resolution of some milliseconds.
        sleep(Duration::from_millis(20));
    }
    assert_eq!(names(&server, "bob"), ["a", "b"]);
    assert_eq!(names(&server, "alice"), ["kept"]);
    let refused = save(&server, "bob", "d", 1000);
    assert_eq!(refused.error(413)["code"], "session_too_large");
    assert_eq!(names(&server, "bob"), ["a", "b"]);
}
