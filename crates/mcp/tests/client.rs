//! The client with servers that behave, and with those that do not.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use triad_mcp::{Limits, Result, ServerConfig, Servers, Transport};

const TOOLS: [&str; 3] = ["add", "bad name!", "other"];

/// This test is the program of the other tests' servers.
#[test]
fn serves() {
    support::serve_if_asked();
}

fn server(mode: &str) -> ServerConfig {
    let program = std::env::current_exe().unwrap();
    let arguments = ["serves", "--exact", "--nocapture"];
    ServerConfig {
        name: "mine".into(),
        transport: Transport::Command {
            program: program.to_str().unwrap().into(),
            arguments: arguments.map(str::to_owned).into(),
            environment: BTreeMap::from([(support::MODE.to_owned(), mode.to_owned())]),
            folder: None,
        },
    }
}

fn limits() -> Limits {
    Limits {
        start_time: Duration::from_secs(20),
        call_time: Duration::from_secs(20),
        ..Limits::default()
    }
}

fn connect(config: ServerConfig, limits: Limits) -> Result<Servers> {
    Servers::connect(&[config], limits, &|| false, &mut |_| {})
}

fn arguments(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn add(servers: &Servers) -> Result<String> {
    let tool = &servers.tools()[0];
    let sum = arguments(&json!({ "a": 2, "b": 3 }));
    servers.call(tool, sum, &|| false).map(|result| result.text)
}

/// Returns the error of a call, with its causes.
fn failure(mode: &str, limits: Limits) -> String {
    let servers = connect(server(mode), limits).unwrap();
    add(&servers).unwrap_err().to_string()
}

#[test]
fn the_tools_of_a_command_are_listed_page_by_page_and_called() {
    let servers = connect(server("adds"), limits()).unwrap();
    let names: Vec<_> = servers.tools().iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, TOOLS);
    let tool = &servers.tools()[0];
    assert_eq!(tool.schema["required"], json!(["a", "b"]));
    assert_eq!(tool.description.as_deref(), Some("Adds."));
    for _ in 0..3 {
        assert_eq!(add(&servers).unwrap(), "5");
    }
    let wrong = servers.call(tool, Map::new(), &|| false).unwrap();
    assert!(wrong.is_error);
    assert_eq!(wrong.text, "a and b are numbers");
}

#[test]
fn a_server_gets_no_variables_that_may_be_keys() {
    // Cargo sets some for tests.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let servers = connect(server("shows its environment"), limits()).unwrap();
    let names = add(&servers).unwrap();
    assert!(
        names.contains(support::MODE) && !names.contains("CARGO"),
        "{names}"
    );
}

#[test]
fn a_server_that_dies_is_one_sentence_with_its_last_words() {
    assert_eq!(
        failure("dies", limits()),
        "the MCP server mine ended: out of luck"
    );
    let error = connect(server("dies at once"), limits()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the MCP server mine ended: the key is missing"
    );
    let mut missing = server("adds");
    missing.transport = Transport::Command {
        program: "/no/such/program".into(),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        folder: None,
    };
    let error = connect(missing, limits()).unwrap_err().to_string();
    assert_eq!(error, "cannot start the MCP server mine (/no/such/program)");
}

#[test]
fn a_server_that_hangs_has_its_time_and_the_user_may_end_it_sooner() {
    let short = Limits {
        call_time: Duration::from_millis(500),
        ..limits()
    };
    let error = failure("hangs", short);
    assert_eq!(error, "the MCP server mine did not answer within 0 s");
    let short = Limits {
        start_time: Duration::from_secs(1),
        ..limits()
    };
    let error = connect(server("is silent"), short).unwrap_err().to_string();
    assert_eq!(error, "the MCP server mine did not answer within 1 s");
    let servers = connect(server("hangs"), limits()).unwrap();
    let (asked, start) = (AtomicBool::new(false), Instant::now());
    let is_cancelled = || asked.swap(true, Ordering::Relaxed);
    let tool = &servers.tools()[0];
    let error = servers.call(tool, Map::new(), &is_cancelled).unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[cfg(target_os = "linux")]
#[test]
fn programs_that_a_server_started_end_with_it() {
    let Transport::Command {
        program, arguments, ..
    } = server("").transport
    else {
        panic!("it is a command")
    };
    let words = [&[program], &*arguments].concat().join(" ");
    let folder = tempfile::tempdir().unwrap();
    let number = folder.path().join("number");
    // The server is a child of the shell, and waits long after the end of its input.
    let script = format!(
        "exec 3<&0; {words} <&3 & echo $! > {}; wait",
        number.display()
    );
    let mut config = server("outlives its input");
    if let Transport::Command {
        program, arguments, ..
    } = &mut config.transport
    {
        *program = "sh".into();
        *arguments = vec!["-c".into(), script];
    }
    let servers = connect(config, limits()).unwrap();
    assert_eq!(add(&servers).unwrap(), "5");
    let number: u32 = std::fs::read_to_string(number)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let runs = || {
        // A process that has ended stays until its parent waits for it, without a program.
        let program = std::fs::read(format!("/proc/{number}/cmdline"));
        program.is_ok_and(|program| !program.is_empty())
    };
    assert!(runs());
    drop(servers);
    let start = Instant::now();
    while runs() {
        assert!(start.elapsed() < Duration::from_secs(60), "it still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_that_sends_too_much_is_ended() {
    let few = Limits {
        request_bytes: 1 << 20,
        ..limits()
    };
    for mode in ["floods", "has long lines"] {
        let servers = connect(server(mode), few).unwrap();
        for _ in 0..2 {
            let error = add(&servers).unwrap_err().to_string();
            let expected =
                "the MCP server mine sent more than 1048576 bytes for one request: it is ended";
            assert_eq!(error, expected, "{mode}");
        }
        // It was started again for the second call, and is not so soon for a third one.
        let error = add(&servers).unwrap_err().to_string();
        assert_eq!(
            error,
            "the MCP server mine ended again: it is started in 1 s"
        );
    }
}

/// Calls the tool so that the server does what its mode says.
fn zero(servers: &Servers) -> String {
    let arguments = arguments(&json!({ "a": 0, "b": 3 }));
    let error = servers.call(&servers.tools()[0], arguments, &|| false);
    error.unwrap_err().to_string()
}

#[test]
fn a_server_that_ended_is_started_again_and_not_too_often() {
    let servers = connect(server("dies if asked"), limits()).unwrap();
    let ended = "the MCP server mine ended: out of luck";
    assert_eq!(zero(&servers), ended);
    assert_eq!(add(&servers).unwrap(), "5");
    assert_eq!(zero(&servers), ended);
    let soon = "the MCP server mine ended again: it is started in 1 s";
    assert_eq!(add(&servers).unwrap_err().to_string(), soon);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(add(&servers).unwrap(), "5");
}

#[test]
fn an_answer_that_cannot_be_read_is_an_error_at_once_and_ends_nothing() {
    for mode in ["has a wrong error if asked", "breaks off if asked"] {
        let servers = connect(server(mode), limits()).unwrap();
        let start = Instant::now();
        let error = zero(&servers);
        assert!(
            error.starts_with("the MCP server mine: ")
                && error.contains("its answer cannot be read: "),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_secs(60), "{mode}");
        assert_eq!(add(&servers).unwrap(), "5", "{mode}");
    }
}

#[test]
fn answers_to_notifications_disturb_no_request() {
    let servers = connect(server("answers notifications"), limits()).unwrap();
    assert_eq!(add(&servers).unwrap(), "5");
}

#[test]
fn a_call_that_is_abandoned_does_not_keep_the_server_from_others() {
    let short = Limits {
        call_time: Duration::from_secs(3),
        ..limits()
    };
    let servers = connect(server("hangs if asked"), short).unwrap();
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let abandoned = scope.spawn(|| {
            let start = Instant::now();
            let is_gone = || {
                begun.store(true, Ordering::Relaxed);
                start.elapsed() > Duration::from_millis(500)
            };
            let arguments = arguments(&json!({ "a": 0, "b": 3 }));
            servers.call(&servers.tools()[0], arguments, &is_gone)
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The server is busy for ever with the first call, and does not answer a ping.
        assert_eq!(add(&servers).unwrap(), "5");
        let error = abandoned.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    });
}

#[test]
fn a_server_that_is_busy_with_an_abandoned_call_is_not_ended() {
    let servers = connect(server("is busy if asked"), limits()).unwrap();
    let process = add(&servers).unwrap();
    let start = Instant::now();
    let is_gone = || start.elapsed() > Duration::from_millis(300);
    let busy = arguments(&json!({ "a": 0, "b": 3 }));
    let error = servers.call(&servers.tools()[0], busy, &is_gone);
    assert_eq!(error.unwrap_err().to_string(), "interrupted");
    assert_eq!(add(&servers).unwrap(), process);
}

#[test]
fn a_call_that_waits_for_others_too_long_does_not_blame_the_server() {
    let short = Limits {
        call_time: Duration::from_secs(1),
        ..limits()
    };
    let servers = connect(server("hangs if asked"), short).unwrap();
    let polls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| {
            let is_gone = || polls.fetch_add(1, Ordering::Relaxed) > 1000;
            let arguments = arguments(&json!({ "a": 0, "b": 3 }));
            servers.call(&servers.tools()[0], arguments, &is_gone)
        });
        while polls.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // One of them has the server started again, and the other one's time is over meanwhile.
        let others = [(); 2].map(|()| scope.spawn(|| add(&servers)));
        let mut ends = others.map(|it| it.join().unwrap().map_err(|error| error.to_string()));
        ends.sort();
        let busy = "the MCP server mine is busy with other calls: it was not free within 1 s";
        assert_eq!(ends, [Ok("5".into()), Err(busy.into())]);
        let error = hangs.join().unwrap().unwrap_err().to_string();
        assert_eq!(error, "the MCP server mine did not answer within 1 s");
    });
}

#[cfg(unix)]
#[test]
fn the_wait_for_a_server_that_is_started_again_can_be_cancelled() {
    let mut config = server("dies if asked");
    let folder = tempfile::tempdir().unwrap();
    let Transport::Command {
        program, arguments, ..
    } = &mut config.transport
    else {
        panic!("it is a command")
    };
    let words = [std::slice::from_ref(program), &**arguments]
        .concat()
        .join(" ");
    let started = folder.path().join("started");
    let started = started.display();
    let script = format!("if [ -e {started} ]; then sleep 60; fi; : > {started}; exec {words}");
    *program = "sh".into();
    *arguments = vec!["-c".into(), script];
    let servers = connect(config, limits()).unwrap();
    assert_eq!(zero(&servers), "the MCP server mine ended: out of luck");
    let start = Instant::now();
    let is_gone = || start.elapsed() > Duration::from_millis(300);
    let error = servers.call(&servers.tools()[0], Map::new(), &is_gone);
    assert_eq!(error.unwrap_err().to_string(), "interrupted");
    drop(servers);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn rubbish_is_skipped_or_one_sentence() {
    let error = connect(server("has rubbish"), limits())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the MCP server mine: ") && !error.contains('\n'),
        "{error}"
    );
    let error = connect(server("has endless tools"), limits())
        .unwrap_err()
        .to_string();
    let expected = "the MCP server mine: it has more tools than the 128 that are left for it";
    assert_eq!(error, expected);
    let error = failure("refuses", limits());
    assert!(
        error.starts_with("the MCP server mine: ") && error.contains("no such thing"),
        "{error}"
    );
}

#[test]
fn a_long_result_is_cut_at_a_letter_and_says_so() {
    let servers = connect(server("has a long result"), limits()).unwrap();
    let text = add(&servers).unwrap();
    let (shown, note) = text.split_once('\n').unwrap();
    assert_eq!(shown.len(), limits().result_bytes);
    assert_eq!(
        note,
        format!("[{} further bytes are left out]", 200_000 - shown.len())
    );
}

/// Answers HTTP requests with `answer`: from the message to the head, after the status line, and the body.
fn http(answer: impl Fn(&Value, &str) -> String + Send + 'static) -> ServerConfig {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap_or(0) > 2 {}
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse().ok())?
            });
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let _ = stream.write_all(answer(&message, &head).as_bytes());
        }
    });
    ServerConfig {
        name: "web".into(),
        transport: Transport::Http {
            url,
            headers: BTreeMap::from([("x-key".to_owned(), "secret".to_owned())]),
        },
    }
}

fn reply(kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nMcp-Session-Id: s1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the result of a message.
fn result(message: &Value) -> Option<Value> {
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        }),
        "tools/list" => {
            json!({ "tools": [{ "name": "add", "inputSchema": { "type": "object" } }] })
        }
        "tools/call" => json!({ "content": [{ "type": "text", "text": "5" }] }),
        _ => return None,
    };
    Some(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
}

#[test]
fn the_tools_of_an_address_are_called_whether_it_answers_with_json_or_with_events() {
    for events in [false, true] {
        let config = http(move |message, head| {
            assert!(head.contains("x-key: secret"), "{head}");
            let Some(result) = result(message) else {
                return "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                    .into();
            };
            if message["method"] != "initialize" {
                assert!(
                    head.to_ascii_lowercase().contains("mcp-session-id: s1"),
                    "{head}"
                );
            }
            if events {
                reply(
                    "text/event-stream",
                    &format!(": hello\n\nevent: message\ndata: {result}\n\n"),
                )
            } else {
                reply("application/json", &result.to_string())
            }
        });
        let servers = connect(config, limits()).unwrap();
        assert_eq!(add(&servers).unwrap(), "5");
    }
}

#[test]
fn an_address_that_answers_another_request_or_none_is_an_error_at_once() {
    for (answered, words) in [
        (true, "which is not the one"),
        (false, "does not answer it"),
    ] {
        let config = http(move |message, _| match result(message) {
            Some(mut result) if answered || message["method"] != "tools/call" => {
                if message["method"] == "tools/call" {
                    result["id"] = json!(99);
                }
                reply("application/json", &result.to_string())
            }
            _ => "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".into(),
        });
        let servers = connect(config, limits()).unwrap();
        let start = Instant::now();
        let error = add(&servers).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn an_address_that_is_no_mcp_server_is_one_sentence() {
    let page = http(|_, _| reply("text/html", "<html>hello</html>"));
    let error = connect(page, limits()).unwrap_err().to_string();
    assert!(
        error.starts_with("the MCP server web: ") && error.contains("text/html"),
        "{error}"
    );
    let failing = http(|_, _| {
        "HTTP/1.1 500 Oops\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 9\r\n\r\nno\nluck!!".into()
    });
    let error = connect(failing, limits()).unwrap_err().to_string();
    assert!(
        error.contains("500") && error.contains("no luck!!"),
        "{error}"
    );
    // No error names a type of this program.
    assert!(!error.contains("rmcp") && !error.contains('<'), "{error}");
    let moved = http(|message, _| {
        match result(message) {
        Some(result) if message["method"] != "tools/call" => {
            reply("application/json", &result.to_string())
        }
        Some(_) => "HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".into(),
        None => "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".into(),
    }
    });
    let error = add(&connect(moved, limits()).unwrap()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("HTTP status 307"), "{error}");
    assert!(!error.contains("rmcp") && !error.contains('<'), "{error}");
    let closed = ServerConfig {
        name: "gone".into(),
        transport: Transport::Http {
            url: "http://127.0.0.1:9/mcp".into(),
            headers: BTreeMap::new(),
        },
    };
    let error = connect(closed, limits()).unwrap_err().to_string();
    assert!(
        error.starts_with("the MCP server gone: ") && !error.contains('\n'),
        "{error}"
    );
}
