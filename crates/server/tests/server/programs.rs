//! Requests as programs send them that were written for other servers.

use serde_json::{Value, json};

use crate::scripted::{Script, TEMPLATE};
use crate::support::{Reply, Server, add, events, post};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const CONVERSATIONS: &str = "/v1/conversations";

/// Returns a server of a model that marks no reasoning, and whose template reads no effort.
fn plain() -> Server {
    let script = Script::new(&[]).says("<|a|>", &["Yes", ".", "<|end|>"]);
    script.serve(TEMPLATE)
}

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    add(&mut body, more);
    body
}

/// Returns the fields that the header of a response names.
fn left_out(reply: &Reply, header: &str) -> Option<String> {
    let start = format!("x-triad-{header}-left-out: ");
    let mut lines = reply.headers.lines();
    lines.find_map(|line| line.strip_prefix(&start).map(str::to_owned))
}

#[test]
fn thinking_and_effort_are_wishes_that_a_model_without_them_leaves_out() {
    let server = plain();
    let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 7}});
    let message = server.post(MESSAGES, &ask(enabled)).good();
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": "Yes."}])
    );
    for effort in ["minimal", "low", "medium", "high", "xhigh", "max"] {
        let of_message = json!({"output_config": {"effort": effort}});
        let of_response = json!({"input": "Hi", "reasoning": {"effort": effort}});
        for (path, body, field) in [
            (MESSAGES, ask(of_message), "output_config.effort"),
            (
                CHAT,
                ask(json!({"reasoning_effort": effort})),
                "reasoning_effort",
            ),
            (RESPONSES, of_response, "reasoning.effort"),
        ] {
            let reply = server.post(path, &body);
            reply.good();
            assert_eq!(left_out(&reply, "fields").as_deref(), Some(field), "{path}");
        }
    }
    // An effort of no API is refused, and one that the template reads is followed.
    let unknown = server.post(CHAT, &ask(json!({"reasoning_effort": "lots"})));
    assert_eq!(unknown.error(400)["param"], "reasoning_effort");
    let unknown = server.post(MESSAGES, &ask(json!({"output_config": {"effort": "lots"}})));
    assert_eq!(unknown.status, 400);
    let none = server.post(CHAT, &ask(json!({"reasoning_effort": "none"})));
    none.good();
    assert_eq!(left_out(&none, "fields"), None);
    let reads = Server::start().post(CHAT, &ask(json!({"reasoning_effort": "low"})));
    reads.good();
    assert_eq!(left_out(&reads, "fields"), None);
    // Ollama's levels are for templates that read them.
    let level = json!({"messages": [{"role": "user", "content": "Hi"}], "think": "low"});
    assert_eq!(server.post("/api/chat", &level).status, 400);
}

#[test]
fn options_of_ollamas_api_have_aliases_outside_of_options() {
    let server = plain();
    let say = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": false});
        add(&mut body, more);
        server.post("/api/chat", &body)
    };
    let content = |more: Value| say(more).good()["message"]["content"].clone();
    for alias in ["max_output_tokens", "max_tokens"] {
        assert_eq!(content(json!({alias: 1})), "Yes", "{alias}");
    }
    assert_eq!(content(json!({"stop": "."})), "Yes");
    let same = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "max_output_tokens": 1, "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "options": {
            "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "num_predict": 1, "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
    });
    assert_eq!(content(same), "Yes");
    for (more, name) in [
        (
            json!({"max_output_tokens": 1, "options": {"num_predict": 2}}),
            "max_output_tokens",
        ),
        (
            json!({"temperature": 0, "options": {"temperature": 1}}),
            "temperature",
        ),
        (json!({"stop": "a", "options": {"stop": "b"}}), "stop"),
        (json!({"seed": 1, "options": {"seed": 2}}), "seed"),
    ] {
        let reply = say(more);
        assert_eq!(reply.status, 400, "{name}");
        assert!(
            reply.body.contains(&format!("\"{name}: ")),
            "{}",
            reply.body
        );
    }
    let generated =
        json!({"prompt": "Hi", "stream": false, "max_output_tokens": 1, "temperature": 0});
    let generated = server.post("/api/generate", &generated).good();
    assert_eq!(generated["response"], "Yes");
}

#[test]
fn the_tool_choice_of_a_chat_of_ollamas_api_is_followed() {
    let server = Server::start();
    let function = json!({"name": "f", "parameters": {"type": "object", "properties": {}}});
    let say = |choice: Value| {
        server.post(
            "/api/chat",
            &json!({
                "messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": function}],
                "tool_choice": choice, "stream": false, "options": {"num_predict": 60},
            }),
        )
    };
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "f"}}),
    ] {
        let message = say(choice).good()["message"].clone();
        assert_eq!(
            message["tool_calls"][0]["function"]["name"], "f",
            "{message}"
        );
    }
    for choice in [json!("auto"), json!("none")] {
        let message = say(choice).good()["message"].clone();
        assert_eq!(message.get("tool_calls"), None, "{message}");
    }
    assert_eq!(say(json!("any")).status, 400);
}

#[test]
fn paths_of_llama_cpps_server_without_a_version_are_those_with_one_or_its_own_form() {
    let server = Server::start();
    assert_eq!(server.get("/v1/health").good()["status"], "ok");
    assert_eq!(
        server.get("/models").good(),
        server.get("/v1/models").good()
    );
    let chat = server.post("/chat/completions", &ask(json!({}))).good();
    assert_eq!(chat["object"], "chat.completion");
    let response = json!({"input": "Hi", "max_output_tokens": 2});
    assert_eq!(
        server.post("/responses", &response).good()["object"],
        "response"
    );
    let counted = server.post("/responses/input_tokens", &json!({"input": "Hi"}));
    assert_eq!(counted.good()["object"], "response.input_tokens");
    let text = json!({"prompt": "Hi", "n_predict": 3});
    let own = server.post("/completions", &text).good();
    assert_eq!(
        own["content"],
        server.post("/completion", &text).good()["content"]
    );
    let usual = server
        .post("/v1/embeddings", &json!({"input": ["Hi", "Ho"]}))
        .good();
    for (path, field) in [("/embedding", "content"), ("/embeddings", "input")] {
        let plain = server.post(path, &json!({field: ["Hi", "Ho"]})).good();
        assert_eq!(plain[1]["index"], 1);
        assert_eq!(
            plain[1]["embedding"],
            json!([usual["data"][1]["embedding"]])
        );
        let encoded = server.post(path, &json!({field: "Hi", "encoding_format": "base64"}));
        assert_eq!(encoded.error(400)["param"], "encoding_format");
    }
}

#[test]
fn vectors_come_in_the_form_of_text_embeddings_inference() {
    let server = Server::start();
    let usual = |more: Value| {
        let mut body = json!({"input": "Hi"});
        add(&mut body, more);
        server.post("/v1/embeddings", &body).good()["data"][0]["embedding"].clone()
    };
    for path in ["/embed", "/"] {
        let one = server.post(path, &json!({"inputs": "Hi"})).good();
        assert_eq!(one, json!([usual(json!({}))]));
        let body =
            json!({"inputs": ["Hi", "Ho"], "normalize": false, "dimensions": 3, "truncate": true});
        let several = server.post(path, &body).good();
        assert_eq!(
            several[0],
            usual(json!({"normalize": false, "dimensions": 3}))
        );
        assert_eq!(several.as_array().unwrap().len(), 2);
    }
    let long = json!({"inputs": "long ".repeat(400)});
    assert_eq!(server.post("/embed", &long).error(400)["param"], "inputs");
    let mut cut = long.clone();
    add(&mut cut, json!({"truncate": true}));
    server.post("/embed", &cut).good();
}

#[test]
fn a_response_has_log_probabilities_if_it_is_asked_for_them_whole_and_streamed() {
    let server = Server::start();
    let body = json!({
        "input": "Hi", "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "web_search_call.action.sources"],
    });
    let whole = server.post(RESPONSES, &body).good();
    let content = whole["output"][0]["content"][0].clone();
    let chat = ask(json!({"max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 2}));
    let chat = server.post(CHAT, &chat).good()["choices"][0].clone();
    assert_eq!(content["text"], chat["message"]["content"]);
    assert_eq!(content["logprobs"], chat["logprobs"]["content"]);
    assert_eq!(whole["top_logprobs"], 2);
    let mut streamed = body.clone();
    add(&mut streamed, json!({"stream": true}));
    let events = events(&server.post(RESPONSES, &streamed));
    let of = |kind: &str| {
        let events = events.iter().filter(|event| event["type"] == kind);
        let tokens = events.flat_map(|event| event["logprobs"].as_array().unwrap().clone());
        Value::from(tokens.collect::<Vec<_>>())
    };
    assert_eq!(of("response.output_text.done"), content["logprobs"]);
    let sent = of("response.output_text.delta");
    let (sent, all) = (
        sent.as_array().unwrap(),
        content["logprobs"].as_array().unwrap(),
    );
    assert!(!sent.is_empty() && all.starts_with(sent));
    // Without the part there are none, and their number alone asks for nothing.
    let none =
        json!({"input": "Hi", "max_output_tokens": 6, "include": ["reasoning.encrypted_content"]});
    let none = server.post(RESPONSES, &none).good();
    assert_eq!(none["output"][0]["content"][0]["logprobs"], json!([]));
    for (wrong, param) in [
        (json!({"input": "Hi", "top_logprobs": 2}), "top_logprobs"),
        (json!({"input": "Hi", "include": ["other"]}), "include"),
        (
            json!({"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 21}),
            "top_logprobs",
        ),
    ] {
        assert_eq!(server.post(RESPONSES, &wrong).error(400)["param"], param);
    }
}

#[test]
fn log_probabilities_of_a_response_are_those_of_its_text_alone() {
    let script = Script::new(&[]).named(&["<think>", "</think>"]).says(
        "<|a|>",
        &["<think>", "hm", "</think>", "Yes", ".", "<|end|>"],
    );
    let server = script.serve(TEMPLATE);
    let include = json!({"input": "Hi", "include": ["message.output_text.logprobs"]});
    let output = server.post(RESPONSES, &include).good()["output"].clone();
    assert_eq!(output[0]["type"], "reasoning");
    let tokens = output[1]["content"][0]["logprobs"].as_array().unwrap();
    let texts: Vec<_> = tokens
        .iter()
        .map(|it| it["token"].as_str().unwrap())
        .collect();
    assert_eq!(texts[..2], ["Yes", "."]);
    assert!(texts.len() <= 3, "{texts:?}");
}

fn delete(server: &Server, path: &str) -> Reply {
    server.send(&format!(
        "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    ))
}

#[test]
fn the_items_of_a_conversation_are_listed_added_and_removed() {
    let server = Server::start();
    let made = json!({"items": [{"role": "user", "content": "a"}]});
    let made = server.post(CONVERSATIONS, &made).good();
    let path = format!("{CONVERSATIONS}/{}", made["id"].as_str().unwrap());
    let items = format!("{path}/items");
    let more = json!({"items": [
        {"role": "assistant", "content": "b"}, {"type": "message", "id": "msg_own", "role": "user", "content": "c"}
    ]});
    let added = server.post(&items, &more).good();
    assert_eq!(
        (&added["object"], added["data"].as_array().unwrap().len()),
        (&json!("list"), 2)
    );
    assert_eq!(added["last_id"], "msg_own");
    let said = json!({"input": "d", "conversation": made["id"], "max_output_tokens": 2});
    let said = server.post(RESPONSES, &said).good();
    let texts = |list: &Value| -> Vec<Value> {
        let data = list["data"].as_array().unwrap();
        data.iter()
            .map(|item| item["content"][0]["text"].clone())
            .collect()
    };
    let answer = said["output"][0]["content"][0]["text"].clone();
    let all = server.get(&format!("{items}?order=asc")).good();
    let expected = [
        json!("a"),
        json!("b"),
        json!("c"),
        json!("d"),
        answer.clone(),
    ];
    assert_eq!(texts(&all), expected);
    let kinds: Vec<_> = all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["content"][0]["type"])
        .collect();
    assert_eq!(
        kinds,
        [
            "input_text",
            "output_text",
            "input_text",
            "input_text",
            "output_text"
        ]
    );
    assert_eq!(all["has_more"], false);
    // The latest comes first, and pages follow each other.
    let first = server
        .get(&format!(
            "{items}?limit=2&include[]=message.output_text.logprobs"
        ))
        .good();
    assert_eq!(
        (texts(&first), &first["has_more"]),
        (vec![answer, json!("d")], &json!(true))
    );
    let after = first["last_id"].as_str().unwrap();
    let rest = server
        .get(&format!("{items}?after={after}&limit=100"))
        .good();
    assert_eq!(texts(&rest), ["c", "b", "a"]);
    let one = server.get(&format!("{items}/msg_own")).good();
    assert_eq!(one["content"][0]["text"], "c");
    // What is removed is not in the next prompt.
    let count = |more: Value| {
        let mut body = json!({"input": "e", "conversation": made["id"]});
        add(&mut body, more);
        server.post("/v1/responses/input_tokens", &body).good()["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let before = count(json!({}));
    assert_eq!(delete(&server, &format!("{items}/msg_own")).good(), made);
    assert!(count(json!({})) < before);
    delete(&server, &format!("{items}/msg_own")).error(404);
    server.get(&format!("{items}/msg_own")).error(404);
    assert_eq!(
        texts(&server.get(&format!("{items}?order=asc")).good()).len(),
        4
    );
    let changed = server.post(&path, &json!({"metadata": {"a": "b"}})).good();
    assert_eq!(
        (&changed["id"], &changed["metadata"]),
        (&made["id"], &json!({"a": "b"}))
    );
    assert_eq!(server.get(&path).good(), changed);
    assert_eq!(texts(&server.get(&items).good()).len(), 4);
    for (wrong, param) in [
        ("order=up", "order"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
    ] {
        let refused = server.get(&format!("{items}?{wrong}"));
        assert_eq!(refused.error(400)["param"], param);
    }
    server.get(&format!("{items}?before=a")).error(400);
    server.get(&format!("{items}?after=none")).error(404);
    let wrong = json!({"items": [{"role": "user"}]});
    assert_eq!(
        server.post(&items, &wrong).error(400)["param"],
        "items[0].content"
    );
    let id = said["id"].as_str().unwrap();
    for path in [
        format!("{CONVERSATIONS}/conv_1"),
        format!("{CONVERSATIONS}/{id}"),
    ] {
        server.get(&format!("{path}/items")).error(404);
        let item = json!({"items": [{"role": "user", "content": "a"}]});
        server.post(&format!("{path}/items"), &item).error(404);
        let none = server.post(&format!("{path}/items"), &json!({"items": []}));
        assert_eq!(none.error(400)["param"], "items");
        server.post(&path, &json!({"metadata": {}})).error(404);
    }
}

#[test]
fn a_page_of_large_items_has_at_least_one_and_ends_early() {
    let server = Server::start();
    let item = |name: &str| json!({"role": "user", "content": name.repeat(700_000)});
    let made = json!({"items": [item("a"), item("b"), item("c")]});
    let made = server.post(CONVERSATIONS, &made).good();
    let items = format!("{CONVERSATIONS}/{}/items", made["id"].as_str().unwrap());
    let (mut path, mut seen) = (format!("{items}?order=asc"), String::new());
    loop {
        let page = server.get(&path).good();
        let [item] = &page["data"].as_array().unwrap()[..] else {
            panic!("expected one item");
        };
        let text = item["content"][0]["text"].as_str().unwrap();
        seen.push_str(&text[..1]);
        if page["has_more"] == false {
            break;
        }
        let after = page["last_id"].as_str().unwrap();
        path = format!("{items}?order=asc&after={after}");
    }
    assert_eq!(seen, "abc");
}

#[test]
fn items_of_a_conversation_are_their_keys_own() {
    let server = Server::with(|options| options.api_keys = vec!["a".into(), "b".into()]);
    let key = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let body = json!({"items": [{"role": "user", "content": "a"}]}).to_string();
    let made = server.send(&post(CONVERSATIONS, &body, &key("a"))).good();
    let items = format!("{CONVERSATIONS}/{}/items", made["id"].as_str().unwrap());
    let get = |name: &str| {
        let key = key(name);
        server.send(&format!(
            "GET {items} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n"
        ))
    };
    assert_eq!(get("a").good()["data"][0]["content"][0]["text"], "a");
    get("b").error(404);
    server.send(&post(&items, &body, &key("b"))).error(404);
    assert_eq!(get("a").good()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn the_input_of_a_stored_response_is_listed() {
    let server = Server::start();
    let first = json!({"input": "a", "max_output_tokens": 2});
    let first = server.post(RESPONSES, &first).good();
    let second = json!({
        "input": [{"role": "user", "content": "b"}, {"role": "user", "content": "c"}], "max_output_tokens": 2,
        "previous_response_id": first["id"],
    });
    let second = server.post(RESPONSES, &second).good();
    let path = format!("{RESPONSES}/{}/input_items", second["id"].as_str().unwrap());
    let list = server.get(&format!("{path}?order=asc")).good();
    let data = list["data"].as_array().unwrap();
    let texts: Vec<_> = data
        .iter()
        .map(|item| &item["content"][0]["text"])
        .collect();
    assert_eq!(texts, ["b", "c"]);
    // An item that was listed may be referred to.
    let again =
        json!({"input": [{"type": "item_reference", "id": data[0]["id"]}], "max_output_tokens": 1});
    server.post(RESPONSES, &again).good();
    server
        .get(&format!("{RESPONSES}/resp_1/input_items"))
        .error(404);
}

#[test]
fn items_of_tools_that_a_service_ran_are_left_out_and_others_are_refused_by_their_type() {
    let server = Server::start();
    let user = |text: &str| json!({"role": "user", "content": text});
    let tokens = |input: Value| {
        let body = json!({"input": input, "max_output_tokens": 1});
        let reply = server.post(RESPONSES, &body);
        (
            reply.good()["usage"]["input_tokens"].clone(),
            left_out(&reply, "tools"),
        )
    };
    let plain = tokens(json!([user("a"), user("b")])).0;
    for (kind, more) in [
        (
            "web_search_call",
            json!({"action": {"type": "search", "query": "x"}}),
        ),
        (
            "file_search_call",
            json!({"queries": ["x"], "results": null}),
        ),
        (
            "code_interpreter_call",
            json!({"code": "1", "container_id": "c", "outputs": []}),
        ),
        ("image_generation_call", json!({"result": "aGk="})),
        (
            "mcp_call",
            json!({"name": "f", "server_label": "s", "arguments": "{}", "output": "1", "error": null}),
        ),
        (
            "mcp_list_tools",
            json!({"server_label": "s", "tools": [{"name": "f", "input_schema": {}}]}),
        ),
    ] {
        let mut item = json!({"type": kind, "id": "x", "status": "completed"});
        add(&mut item, more);
        let (count, said) = tokens(json!([user("a"), item, user("b")]));
        assert_eq!((count, said.as_deref()), (plain.clone(), Some(kind)));
    }
    for (kind, more) in [
        (
            "custom_tool_call",
            json!({"call_id": "c", "name": "f", "input": "x"}),
        ),
        (
            "local_shell_call",
            json!({"call_id": "c", "action": {"type": "exec", "command": []}}),
        ),
        (
            "computer_call",
            json!({"call_id": "c", "action": {}, "pending_safety_checks": []}),
        ),
    ] {
        let mut item = json!({"type": kind, "id": "x", "status": "completed"});
        add(&mut item, more);
        let refused = server
            .post(RESPONSES, &json!({"input": [user("a"), item]}))
            .error(400);
        assert_eq!(refused["param"], "input[1].type", "{kind}");
    }
}

#[test]
fn what_asks_for_nothing_is_no_error() {
    let server = Server::start();
    let none = ask(json!({"logprobs": false, "top_logprobs": 0}));
    server.post(CHAT, &none).good();
    let none = ask(json!({"top_logprobs": 0}));
    assert_eq!(
        server.post(CHAT, &none).good()["choices"][0]["logprobs"],
        Value::Null
    );
    let one = ask(json!({"logprobs": false, "top_logprobs": 1}));
    assert_eq!(server.post(CHAT, &one).error(400)["param"], "top_logprobs");
    for truncation in ["auto", "disabled"] {
        let body = json!({"input": "Hi", "truncation": truncation, "max_output_tokens": 1});
        assert_eq!(
            server.post(RESPONSES, &body).good()["truncation"],
            truncation
        );
        let long = json!({"input": "long ".repeat(400), "truncation": truncation});
        assert_eq!(server.post(RESPONSES, &long).error(400)["param"], "input");
    }
    let wrong = json!({"input": "Hi", "truncation": "middle"});
    assert_eq!(
        server.post(RESPONSES, &wrong).error(400)["param"],
        "truncation"
    );
    let compact = server.post("/v1/responses/compact", &json!({"input": "Hi"}));
    assert_eq!(compact.error(404)["code"], "unknown_url");
}
