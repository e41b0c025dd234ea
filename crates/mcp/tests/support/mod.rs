//! A small MCP server on standard input and output, in the process of a test program: the test runs its own program again
//! with [`MODE`] in its environment.

use std::io::{BufRead, Write};

use serde_json::{Value, json};

/// The variable that makes the program a server, and says how it behaves.
pub const MODE: &str = "TRIAD_TEST_MCP";

/// Serves until the input ends, if this process is a server. `test` is the test that calls this. Its program with these
/// arguments is the server.
pub fn serve_if_asked() {
    let Ok(mode) = std::env::var(MODE) else {
        return;
    };
    if mode == "dies at once" {
        eprintln!("a first line\nthe key is missing");
        std::process::exit(3);
    }
    if mode == "is silent" {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let id = message["id"].clone();
        let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => say(&answer(json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "test", "version": "1" },
            }))),
            "ping" => say(&answer(json!({}))),
            "tools/list" => list(&mode, &message, answer),
            "tools/call" => call(&mode, &message, answer),
            _ if mode == "answers notifications" => {
                for mut answer in [
                    json!({ "error": { "code": -32601, "message": "Method not found" } }),
                    json!({ "error": { "code": -32600, "message": "it has no id" } }),
                    json!({ "result": {} }),
                ] {
                    answer["jsonrpc"] = "2.0".into();
                    say(&answer);
                    answer["id"] = Value::Null;
                    say(&answer);
                }
            }
            _ => {}
        }
    }
    if mode == "outlives its input" {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
    std::process::exit(0);
}

fn say(message: &Value) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{message}").unwrap();
    output.flush().unwrap();
}

fn list(mode: &str, message: &Value, answer: impl Fn(Value) -> Value) {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } },
        "required": ["a", "b"],
    });
    let tool = |name: &str| json!({ "name": name, "description": "Adds.", "inputSchema": schema });
    match (mode, message["params"]["cursor"].as_str()) {
        ("has endless tools", _) => {
            say(&answer(
                json!({ "tools": [tool("one")], "nextCursor": "again" }),
            ));
        }
        ("has rubbish", None) => {
            println!("not JSON at all\n{{\"jsonrpc\": \"2.0\"}}\n[1, 2]");
            say(&answer(
                json!({ "tools": [tool("add")], "nextCursor": "2" }),
            ));
        }
        ("has rubbish", _) => say(&answer(json!({ "tools": "none" }))),
        (_, None) => say(&answer(
            json!({ "tools": [tool("add")], "nextCursor": "2" }),
        )),
        _ => say(&answer(
            json!({ "tools": [tool("bad name!"), tool("other")] }),
        )),
    }
}

fn call(mode: &str, message: &Value, answer: impl Fn(Value) -> Value) {
    let arguments = &message["params"]["arguments"];
    let text = |text: String, is_error| json!({ "content": [{ "type": "text", "text": text }], "isError": is_error });
    match mode {
        "dies" => {
            eprintln!("out of luck");
            std::process::exit(4);
        }
        "hangs" => {}
        "floods" => loop {
            let noise = json!({
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": { "level": "info", "data": "x".repeat(10_000) },
            });
            if writeln!(std::io::stdout().lock(), "{noise}").is_err() {
                std::process::exit(5);
            }
        },
        "has long lines" => loop {
            if write!(std::io::stdout().lock(), "{}", "y".repeat(10_000)).is_err() {
                std::process::exit(5);
            }
        },
        // With `a` of 0 only.
        "dies if asked" if arguments["a"] == 0 => {
            eprintln!("out of luck");
            std::process::exit(4);
        }
        "hangs if asked" if arguments["a"] == 0 => {
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        "is busy if asked" => {
            if arguments["a"] == 0 {
                std::thread::sleep(std::time::Duration::from_secs(7));
            }
            say(&answer(text(std::process::id().to_string(), false)));
        }
        "has a wrong error if asked" if arguments["a"] == 0 => {
            say(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": "no" }));
        }
        "breaks off if asked" if arguments["a"] == 0 => {
            println!("{{\"jsonrpc\": \"2.0\", \"id\": 5, \"result\": {{\"cont");
        }
        "refuses" => say(&json!({
            "jsonrpc": "2.0",
            "id": message["id"],
            "error": { "code": -32602, "message": "no such thing" },
        })),
        "has a long result" => say(&answer(text("é".repeat(100_000), false))),
        "shows its environment" => {
            let names: Vec<_> = std::env::vars().map(|(name, _)| name).collect();
            say(&answer(text(names.join(" "), false)));
        }
        _ => match (arguments["a"].as_i64(), arguments["b"].as_i64()) {
            (Some(a), Some(b)) => say(&answer(text(format!("{}", a + b), false))),
            _ => say(&answer(text("a and b are numbers".into(), true))),
        },
    }
}
