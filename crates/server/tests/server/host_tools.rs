//! `/mcp/tools` and `/mcp/call`: tools of the machine for the page.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use triad_server::{HostTool, ServerOptions, StartError, ToolHost, ToolResult};

use crate::support::{Server, post};

const KEY: &str = "Authorization: Bearer key\r\n";

/// One tool that echoes, and one that ends when it is cancelled.
#[derive(Debug, Default)]
struct Tools {
    tools: Vec<HostTool>,
    cancelled: AtomicUsize,
}

impl Tools {
    fn new() -> Self {
        let tool = |name: &str| HostTool {
            server: "here".into(),
            name: name.into(),
            description: None,
            parameters: json!({"type": "object"}),
        };
        Self {
            tools: vec![tool("echo"), tool("hang")],
            ..Self::default()
        }
    }
}

impl ToolHost for Tools {
    fn tools(&self) -> &[HostTool] {
        &self.tools
    }

    fn call(
        &self,
        index: usize,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> ToolResult {
        if index == 1 {
            while !is_cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        ToolResult {
            text: Value::Object(arguments).to_string(),
            is_error: index == 1,
        }
    }
}

fn server(tools: &Arc<Tools>) -> Server {
    Server::with(|options| {
        options.api_keys = vec!["key".into()];
        options.tools = Some(Arc::clone(tools) as Arc<dyn ToolHost>);
    })
}

#[test]
fn tools_are_listed_and_called_with_a_key_alone() {
    let server = server(&Arc::new(Tools::new()));
    let listed = server.send(&format!(
        "GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{KEY}\r\n"
    ));
    let listed = listed.good();
    assert_eq!(listed["tools"][0]["name"], "echo");
    assert_eq!(listed["tools"][0]["server"], "here");
    assert_eq!(listed["tools"].as_array().unwrap().len(), 2);
    let call = |body: Value, key: &str| server.send(&post("/mcp/call", &body.to_string(), key));
    let echo = json!({"name": "echo", "arguments": {"a": [1]}});
    let result = json!({"text": "{\"a\":[1]}", "is_error": false});
    assert_eq!(call(echo.clone(), KEY).good(), result);
    assert_eq!(call(json!({"name": "echo"}), KEY).good()["text"], "{}");
    call(echo, "").error(401);
    let error = call(json!({"name": "other"}), KEY).error(404);
    assert!(
        error["message"].as_str().unwrap().contains("\"other\""),
        "{error}"
    );
    call(json!({"name": "echo", "arguments": [1]}), KEY).error(400);
}

#[test]
fn a_call_ends_with_its_client_and_few_are_made_at_once() {
    let tools = Arc::new(Tools::new());
    let server = server(&tools);
    let hang = post("/mcp/call", &json!({"name": "hang"}).to_string(), KEY);
    // A key has half of the places.
    let streams: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            std::io::Write::write_all(&mut stream, hang.as_bytes()).unwrap();
            stream
        })
        .collect();
    let echo = post("/mcp/call", &json!({"name": "echo"}).to_string(), KEY);
    let until = |is_status: u16| {
        let found = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            server.send(&echo).status == is_status
        });
        assert!(found, "expected status {is_status}");
    };
    until(429);
    drop(streams);
    until(200);
    let all = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        tools.cancelled.load(Ordering::Relaxed) == 2
    });
    assert!(all, "calls of clients that left go on");
}

#[test]
fn without_tools_there_are_none_and_tools_need_a_key() {
    let server = Server::start();
    assert_eq!(server.get("/mcp/tools").good(), json!({"tools": []}));
    server
        .post("/mcp/call", &json!({"name": "echo"}))
        .error(404);
    let options = ServerOptions {
        tools: Some(Arc::new(Tools::new())),
        ..ServerOptions::default()
    };
    assert!(matches!(options.check(), Err(StartError::ToolsWithoutKey)));
}
