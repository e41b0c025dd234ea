//! Tools of MCP servers, with a model that says a script: attention and feed-forward are zero, so each token has one
//! successor.

use std::io::{Read, Write};
use std::process::{Output, Stdio};

use serde_json::{Value as Json, json};

use crate::support::gguf::{Gguf, Tensor, Value, byte_letter};
use crate::support::{Place, stderr};
use crate::{json as json_of, mcp_server, succeed};

/// After this token the model writes the call; after the other one, the answer.
const ASK: &str = "<|ask|>";
const TOLD: &str = "<|told|>";
const END: &str = "<|end|>";
const CALL: &str =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>";
const ANSWER: &str = "It is done.";

/// This test is the program of the other tests' servers.
#[test]
fn serves_mcp() {
    mcp_server::serve_if_asked();
}

/// Returns a model that calls `add` when it is asked, and says [`ANSWER`] when it is told the result. If it is
/// `stubborn`, it calls again.
fn scripted(stubborn: bool) -> Gguf {
    let spelled = |text: &str| text.bytes().map(byte_letter).collect::<String>();
    let mut tokens: Vec<String> = (0..=255).map(byte_letter).collect();
    tokens.extend([END, ASK, TOLD].map(str::to_owned));
    tokens.extend([CALL, ANSWER].map(spelled));
    let (end, ask, told, call, answer) = (256, 257, 258, 259, 260);
    let types = (0..tokens.len()).map(|token| if (256..=258).contains(&token) { 3 } else { 1 });
    let after_told = if stubborn { call } else { answer };
    let next = [(ask, call), (call, end), (told, after_told), (answer, end)];
    let (count, hidden) = (tokens.len(), tokens.len().next_multiple_of(32));
    let last = if stubborn { ASK } else { TOLD };
    let template = format!(
        "{{# tools #}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}\
         {{% if messages[-1].role == 'tool' %}}{last}{{% else %}}{ASK}{{% endif %}}"
    );
    let mut gguf = Gguf::tiny();
    for (key, value) in [
        ("llama.context_length", Value::U32(4096)),
        ("llama.embedding_length", Value::U32(hidden as u32)),
        ("llama.feed_forward_length", Value::U32(64)),
        ("llama.attention.head_count", Value::U32(hidden as u32 / 32)),
        (
            "llama.attention.head_count_kv",
            Value::U32(hidden as u32 / 32),
        ),
        ("tokenizer.ggml.tokens", Value::Texts(tokens)),
        (
            "tokenizer.ggml.token_type",
            Value::Integers(types.collect()),
        ),
        ("tokenizer.ggml.merges", Value::Texts(Vec::new())),
        ("tokenizer.ggml.eos_token_id", Value::U32(end as u32)),
        ("tokenizer.chat_template", Value::Text(template)),
    ] {
        gguf = gguf.with(key, value);
    }
    let matrix = |rows: usize, columns: usize, ones: &[(usize, usize)]| {
        let mut values = vec![0.0; rows * columns];
        ones.iter()
            .for_each(|(row, column)| values[row * columns + column] = 1.0);
        (vec![rows as u64, columns as u64], values)
    };
    let identity: Vec<_> = (0..count).map(|token| (token, token)).collect();
    let successors: Vec<_> = next.iter().map(|(from, to)| (*to, *from)).collect();
    let square = || matrix(hidden, hidden, &[]);
    let ones = || (vec![hidden as u64], vec![1.0; hidden]);
    let all = [
        ("token_embd.weight", matrix(count, hidden, &identity)),
        ("output.weight", matrix(count, hidden, &successors)),
        ("output_norm.weight", ones()),
        ("blk.0.attn_norm.weight", ones()),
        ("blk.0.attn_q.weight", square()),
        ("blk.0.attn_k.weight", square()),
        ("blk.0.attn_v.weight", square()),
        ("blk.0.attn_output.weight", square()),
        ("blk.0.ffn_norm.weight", ones()),
        ("blk.0.ffn_gate.weight", matrix(64, hidden, &[])),
        ("blk.0.ffn_up.weight", matrix(64, hidden, &[])),
        ("blk.0.ffn_down.weight", matrix(hidden, 64, &[])),
    ];
    gguf.tensors = all
        .into_iter()
        .map(|(name, (shape, values))| Tensor {
            name: name.into(),
            shape,
            values,
            format: 0,
            offset: None,
        })
        .collect();
    gguf
}

/// Returns a place with the model, and with a file that names the server.
fn place(stubborn: bool, mode: &str) -> Place {
    let place = Place::new();
    place.write("model.gguf", scripted(stubborn).bytes());
    let server = json!({
        "command": std::env::current_exe().unwrap(),
        "args": ["tools::serves_mcp", "--exact", "--nocapture"],
        "env": { mcp_server::MODE: mode },
    });
    place.write(
        "mcp.json",
        json!({ "mcpServers": { "mine": server } }).to_string(),
    );
    place
}

const RUN: [&str; 11] = [
    "run",
    "--no-quantize",
    "-m",
    "model.gguf",
    "-p",
    "2 + 3?",
    "--temperature",
    "0",
    "--mcp",
    "mcp.json",
    "--session",
];

fn run(place: &Place, more: &[&str]) -> Output {
    place.triad(&[&RUN[..], &["talk.json"], more].concat())
}

#[test]
fn a_call_is_made_and_its_result_is_in_the_conversation_that_goes_on() {
    let place = place(false, "adds");
    let output = run(&place, &["--mcp-yes"]);
    assert_eq!(succeed(&output), format!("{ANSWER}\n"));
    let notes = stderr(&output);
    let call = "mine: add({\"a\":2,\"b\":3})\n";
    assert!(notes.contains(call), "{notes}");
    assert!(
        notes.contains("the tool bad name! of the MCP server mine is left out"),
        "{notes}"
    );
    let talk: Json = serde_json::from_slice(&fs_read(&place, "talk.json")).unwrap();
    let roles: Vec<_> = talk["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].clone())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(talk["messages"][2]["content"], "5");
    assert_eq!(talk["messages"][3]["content"], ANSWER);
    // The saved conversation goes on.
    let report = json_of(&run(&place, &["--mcp-yes", "--json"]));
    assert_eq!(report["text"], ANSWER);
    assert_eq!(
        report["tool_calls"],
        json!([{"server": "mine", "tool": "add", "arguments": {"a": 2, "b": 3}, "outcome": "done", "result_bytes": 1}])
    );
}

#[test]
fn with_tools_no_text_of_others_names_a_control_token() {
    let prompt_tokens = |prompt: &str| {
        let place = place(false, "adds");
        let mut arguments = RUN[..10].to_vec();
        arguments[5] = prompt;
        arguments.extend(["--mcp-yes", "--json"]);
        json_of(&place.triad(&arguments))["prompt_tokens"].clone()
    };
    let letters = prompt_tokens("2 .......");
    assert!(letters.is_u64(), "{letters}");
    assert_eq!(prompt_tokens(&format!("2 {END}")), letters);
}

fn fs_read(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.path(name)).unwrap()
}

#[test]
fn without_a_terminal_calls_need_a_word_ahead() {
    let output = run(&place(false, "adds"), &[]);
    assert!(!output.status.success());
    let error = "error: calls of tools are asked for at a terminal, and standard input is none: expected --mcp-yes\n";
    assert_eq!(stderr(&output), error);
}

#[test]
fn a_server_that_dies_is_said_and_the_model_goes_on() {
    let output = run(&place(false, "dies"), &["--mcp-yes", "--json"]);
    assert!(stderr(&output).contains("error: the MCP server mine ended: out of luck\n"));
    let report = json_of(&output);
    assert_eq!(report["tool_calls"][0]["outcome"], "failed");
    assert_eq!(report["text"], ANSWER);
    let output = run(&place(false, "dies at once"), &["--mcp-yes"]);
    assert_eq!(
        stderr(&output),
        "error: the MCP server mine ended: the key is missing\n"
    );
    let slow = run(
        &place(false, "hangs"),
        &["--mcp-yes", "--json", "--mcp-timeout", "1"],
    );
    assert!(stderr(&slow).contains("error: the MCP server mine did not answer within 1 s\n"));
}

#[test]
fn a_model_that_calls_on_and_on_is_ended() {
    let output = run(&place(true, "adds"), &["--mcp-yes", "--json"]);
    let report = json_of(&output);
    assert_eq!(report["tool_calls"].as_array().unwrap().len(), 8);
    assert!(
        stderr(&output)
            .contains("note: the answer ends after 8 rounds of calls: the model wanted more\n")
    );
}

#[test]
fn tools_and_what_they_cannot_be_with_are_refused_by_name() {
    let place = place(false, "adds");
    let form = run(&place, &["--mcp-yes", "--regex", "yes|no"]);
    assert!(
        stderr(&form).contains("an answer in a form calls no tools"),
        "{}",
        stderr(&form)
    );
    let wrong = place.triad(&[
        "run",
        "--no-quantize",
        "-m",
        "model.gguf",
        "-p",
        "a",
        "--mcp",
        "nothing",
        "--mcp-yes",
    ]);
    let error = "error: \"nothing\" is no MCP server: expected NAME=COMMAND, NAME=URL, a URL, or the path of a JSON file with `mcpServers`\n";
    assert_eq!(stderr(&wrong), error);
}

/// At a terminal, each call is asked for. `script` makes one.
#[cfg(target_os = "linux")]
#[test]
fn a_call_is_asked_for_at_a_terminal() {
    let place = place(false, "adds");
    let Ok(mut child) = std::process::Command::new("script")
        .args(["-qec", "$PROGRAM", "/dev/null"])
        .env("PROGRAM", "true")
        .stdout(Stdio::null())
        .spawn()
    else {
        eprintln!("skipped: there is no `script`");
        return;
    };
    child.wait().unwrap();
    let command = place.command(&[&RUN[..], &["talk.json"]].concat());
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let mut outcomes = Vec::new();
    for answer in ["n\n", "maybe\ny\n"] {
        let _ = std::fs::remove_file(place.path("talk.json"));
        let mut child = std::process::Command::new("script");
        child
            .args(["-qec", &words.join(" "), "/dev/null"])
            .current_dir(place.path("."));
        for (name, value) in command.get_envs() {
            if let Some(value) = value.filter(|_| name != "PATH") {
                child.env(name, value);
            }
        }
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(answer.as_bytes()).unwrap();
        let mut shown = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut shown)
            .unwrap();
        drop(input);
        child.wait().unwrap();
        assert!(
            shown.contains("call it? y = yes, n = no, a = always this tool: "),
            "{shown}"
        );
        let talk: Json = serde_json::from_slice(&fs_read(&place, "talk.json")).unwrap();
        outcomes.push(talk["messages"][2]["content"].clone());
    }
    assert_eq!(outcomes, ["error: the user declined this call", "5"]);
}

/// Sends a request with the key to a server, and returns the JSON of its response.
#[cfg(feature = "server")]
fn ask(address: &str, method: &str, path: &str, body: &Json) -> Json {
    let body = body.to_string();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (_, json) = reply.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {reply}"))
}

#[test]
#[cfg(feature = "server")]
fn a_server_lists_and_calls_tools_for_its_page() {
    use std::io::{BufRead, BufReader};

    let place = place(false, "adds");
    let serve = [
        "serve",
        "--no-quantize",
        "-m",
        "model.gguf",
        "--port",
        "0",
        "--mcp",
        "mcp.json",
    ];
    let refused = place.triad(&serve);
    let error =
        "error: tools of MCP servers need an API key: set one with --api-key or TRIAD_API_KEY\n";
    assert_eq!(stderr(&refused), error);
    let mut server = place
        .command(&serve)
        .env("TRIAD_API_KEY", "key")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("http://")?;
        Some(rest.split(';').next().unwrap().to_owned())
    });
    let address = address.unwrap();
    let listed = ask(&address, "GET", "/mcp/tools", &json!({}));
    // As the page does: the tool is in the request, its call is made, and the result is in the next one.
    let tool = &listed["tools"][0];
    let function = json!({"name": tool["name"], "parameters": tool["parameters"]});
    let mut messages = json!([{"role": "user", "content": "2 + 3?"}]);
    let mut said = Vec::new();
    for _ in 0..2 {
        let body =
            json!({"messages": messages, "tools": [{"type": "function", "function": function}]});
        let completion = ask(&address, "POST", "/v1/chat/completions", &body);
        let message = completion["choices"][0]["message"].clone();
        said.push(message.clone());
        let Some(call) = message["tool_calls"].get(0) else {
            break;
        };
        let arguments: Json =
            serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let asked = json!({"name": call["function"]["name"], "arguments": arguments});
        let result = ask(&address, "POST", "/mcp/call", &asked);
        assert_eq!(result, json!({"text": "5", "is_error": false}));
        let told = json!({"role": "tool", "tool_call_id": call["id"], "content": result["text"]});
        messages.as_array_mut().unwrap().extend([message, told]);
    }
    let unknown = ask(&address, "POST", "/mcp/call", &json!({"name": "none"}));
    // A result that names a control token has its letters.
    let messages = json!([{"role": "user", "content": ASK}]);
    let tokens = ask(
        &address,
        "POST",
        "/tokenize",
        &json!({ "messages": messages }),
    );
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(tool["server"], "mine");
    assert_eq!(tool["name"], "add");
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[1]["content"], ANSWER);
    assert_eq!(unknown["error"]["code"], "no_tool");
    let asks = tokens["tokens"].as_array().unwrap().iter();
    assert_eq!(asks.filter(|token| **token == 257).count(), 1, "{tokens}");
}
