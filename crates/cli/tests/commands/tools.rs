//! Tools of MCP servers, with a model that says a script.

use std::io::{Read, Write};
use std::process::{Output, Stdio};

use serde_json::{Value as Json, json};

use crate::scripted::{Word, scripted};
use crate::support::gguf::Gguf;
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

/// Returns a model that calls `add` by the words of `call` when it is asked, and says [`ANSWER`] when it is told the result.
/// If it is `stubborn`, it calls again.
fn caller(stubborn: bool, call: &[Word]) -> Gguf {
    let (end, ask, told, answer, first) = (0, 1, 2, 3, 4);
    let mut words = [END, ASK, TOLD].map(Word::Control).to_vec();
    words.push(Word::Text(ANSWER));
    words.extend(call);
    let after_told = if stubborn { first } else { answer };
    let mut next = vec![(ask, first), (told, after_told), (answer, end)];
    next.extend((first..words.len() - 1).map(|word| (word, word + 1)));
    next.push((words.len() - 1, end));
    let last = if stubborn { ASK } else { TOLD };
    let template = format!(
        "{{# tools #}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}\
         {{% if messages[-1].role == 'tool' %}}{last}{{% else %}}{ASK}{{% endif %}}"
    );
    scripted(&words, &next, end, &template)
}

/// Returns a place with the model, and with a file that names the server.
fn place(stubborn: bool, mode: &str) -> Place {
    place_of(&caller(stubborn, &[Word::Text(CALL)]), mode)
}

fn place_of(model: &Gguf, mode: &str) -> Place {
    let place = Place::new();
    place.write("model.gguf", model.bytes());
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
fn words_of_calls_that_are_control_tokens_make_calls() {
    let object = "{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}";
    // The template names the words of neither format: those of the second one are found in the vocabulary.
    for (open, call, close) in [
        ("<tool_call>", object, "</tool_call>"),
        (
            "<|tool_call_start|>",
            "[add(a=2, b=3)]",
            "<|tool_call_end|>",
        ),
    ] {
        let call = [Word::Control(open), Word::Text(call), Word::Control(close)];
        let place = place_of(&caller(false, &call), "adds");
        let report = json_of(&run(&place, &["--mcp-yes", "--json"]));
        assert_eq!(report["tool_calls"][0]["outcome"], "done", "{report}");
        assert_eq!(report["text"], ANSWER);
    }
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

/// The question for a call.
#[cfg(target_os = "linux")]
const QUESTION: &str = "call it? y = yes, n = no, a = always this tool: ";

/// At a terminal, each call is asked for. `script` makes one.
#[cfg(target_os = "linux")]
#[test]
fn a_call_is_asked_for_at_a_terminal_and_keys_typed_before_do_not_answer() {
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
    for (before, answer) in [("", "n\n"), ("", "maybe\ny\n"), ("y\n", "n\n")] {
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
        input.write_all(before.as_bytes()).unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut shown = Vec::new();
        let mut byte = [0];
        while !shown.ends_with(QUESTION.as_bytes()) && output.read(&mut byte).unwrap() == 1 {
            shown.push(byte[0]);
        }
        assert!(
            shown.ends_with(QUESTION.as_bytes()),
            "{}",
            String::from_utf8_lossy(&shown)
        );
        input.write_all(answer.as_bytes()).unwrap();
        output.read_to_end(&mut shown).unwrap();
        drop(input);
        child.wait().unwrap();
        let talk: Json = serde_json::from_slice(&fs_read(&place, "talk.json")).unwrap();
        outcomes.push(talk["messages"][2]["content"].clone());
    }
    let declined = "error: the user declined this call";
    assert_eq!(outcomes, [declined, "5", declined]);
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
