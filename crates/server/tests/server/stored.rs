//! Responses and conversations that later requests continue.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Reply, Server, events, post};

const PATH: &str = "/v1/responses";

fn respond(server: &Server, body: &Value) -> Value {
    server.post(PATH, body).good()
}

/// Returns the number of tokens of the prompt.
fn tokens(response: &Value) -> &Value {
    &response["usage"]["input_tokens"]
}

fn count(server: &Server, messages: &Value) -> Value {
    server
        .post("/tokenize", &json!({"messages": messages}))
        .good()["count"]
        .clone()
}

#[test]
fn a_response_continues_an_earlier_one_whole_and_streamed() {
    let server = Server::start();
    let first = respond(
        &server,
        &json!({"input": "Hi", "instructions": "Be brief", "max_output_tokens": 4}),
    );
    assert_eq!(
        (&first["store"], &first["previous_response_id"]),
        (&json!(true), &Value::Null)
    );
    let said = first["output"][0]["content"][0]["text"].clone();
    let expected = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said},
                          {"role": "user", "content": "Again"}]);
    for stream in [false, true] {
        let body = json!({"input": "Again", "previous_response_id": first["id"], "max_output_tokens": 4, "stream": stream});
        let second = if stream {
            events(&server.post(PATH, &body)).pop().unwrap()["response"].clone()
        } else {
            respond(&server, &body)
        };
        assert_eq!(second["previous_response_id"], first["id"]);
        assert_eq!(*tokens(&second), count(&server, &expected));
        // And so on.
        let third = respond(
            &server,
            &json!({"input": "More", "previous_response_id": second["id"], "max_output_tokens": 1}),
        );
        assert!(tokens(&third).as_u64() > tokens(&second).as_u64());
    }
    let counted = json!({"input": "Again", "previous_response_id": first["id"]});
    let counted = server.post("/v1/responses/input_tokens", &counted).good();
    assert_eq!(counted["input_tokens"], count(&server, &expected));
}

#[test]
fn an_item_reference_stands_for_the_item() {
    let server = Server::start();
    let first = respond(&server, &json!({"input": "Hi", "max_output_tokens": 4}));
    let (id, said) = (
        &first["output"][0]["id"],
        &first["output"][0]["content"][0]["text"],
    );
    let expected = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said},
                          {"role": "user", "content": "Again"}]);
    for reference in [
        json!({"type": "item_reference", "id": id}),
        json!({"id": id}),
    ] {
        let input = json!([{"role": "user", "content": "Hi"}, reference, {"role": "user", "content": "Again"}]);
        let second = respond(&server, &json!({"input": input, "max_output_tokens": 1}));
        assert_eq!(*tokens(&second), count(&server, &expected));
    }
}

#[test]
fn items_of_a_conversation_that_has_grown_can_be_referred_to() {
    let server = Server::start();
    let item = |id: &str| json!({"id": id, "role": "user", "content": id});
    let path = "/v1/conversations";
    let made = server.post(path, &json!({"items": [item("one")]})).good();
    let id = made["id"].as_str().unwrap();
    server
        .post(
            &format!("{path}/{id}/items"),
            &json!({"items": [item("two")]}),
        )
        .good();
    respond(
        &server,
        &json!({"input": "three", "conversation": id, "store": false, "max_output_tokens": 1}),
    );
    for known in ["one", "two"] {
        let body = json!({"input": [{"type": "item_reference", "id": known}], "store": false, "max_output_tokens": 1});
        let count = count(&server, &json!([{"role": "user", "content": known}]));
        assert_eq!(*tokens(&respond(&server, &body)), count);
    }
}

#[test]
fn a_conversation_grows_with_each_response() {
    let server = Server::start();
    let items = json!([{"role": "user", "content": "Hi"}]);
    let made = server
        .post(
            "/v1/conversations",
            &json!({"items": items, "metadata": {"a": "b"}}),
        )
        .good();
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("conv_") && made["metadata"] == json!({"a": "b"}));
    let mut before = 0;
    for conversation in [json!(id), json!({"id": id}), json!(id)] {
        let body = json!({"input": "More", "conversation": conversation, "max_output_tokens": 2});
        let response = respond(&server, &body);
        assert_eq!(response["conversation"], json!({"id": id}));
        let now = tokens(&response).as_u64().unwrap();
        assert!(now > before, "{now} {before}");
        before = now;
    }
    assert_eq!(server.get(&format!("/v1/conversations/{id}")).good(), made);
    let both = json!({"input": "a", "conversation": id, "previous_response_id": "resp_1"});
    assert_eq!(server.post(PATH, &both).error(400)["param"], "conversation");
    let delete = format!(
        "DELETE /v1/conversations/{id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(server.send(&delete).good()["deleted"], true);
    server.send(&delete).error(404);
    server.get(&format!("/v1/conversations/{id}")).error(404);
    let gone = json!({"input": "a", "conversation": id});
    assert_eq!(server.post(PATH, &gone).error(400)["param"], "conversation");
}

#[test]
fn what_is_not_kept_is_refused_with_what_to_send() {
    let server = Server::start();
    let unkept = respond(
        &server,
        &json!({"input": "Hi", "store": false, "max_output_tokens": 1}),
    );
    assert_eq!(unkept["store"], false);
    for id in [unkept["id"].as_str().unwrap(), "resp_x"] {
        let error = server
            .post(PATH, &json!({"input": "a", "previous_response_id": id}))
            .error(400);
        assert_eq!(error["param"], "previous_response_id");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("whole conversation")
        );
        server.get(&format!("/v1/responses/{id}")).error(404);
    }
    for item in [
        json!({"type": "item_reference", "id": "msg_1"}),
        json!({"id": "msg_1"}),
    ] {
        let body = json!({"input": [item, {"role": "user", "content": "a"}]});
        let error = server.post(PATH, &body).error(400);
        assert_eq!(error["param"], "input[0].id");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("expected the item itself")
        );
    }
    let kept = respond(&server, &json!({"input": "Hi", "max_output_tokens": 1}));
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    assert_eq!(server.get(&path).good(), kept);
    let delete = format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(server.send(&delete).good()["deleted"], true);
    server.get(&path).error(404);
}

#[test]
fn nothing_stored_is_kept_for_longer_than_its_time() {
    let server = Server::with(|options| options.stored_time = Duration::ZERO);
    let first = respond(&server, &json!({"input": "Hi", "max_output_tokens": 1}));
    let body = json!({"input": "a", "previous_response_id": first["id"]});
    assert_eq!(
        server.post(PATH, &body).error(400)["param"],
        "previous_response_id"
    );
}

#[test]
fn what_one_key_stores_is_not_there_for_another() {
    let server = Server::with(|options| options.api_keys = vec!["alice".into(), "bob".into()]);
    let ask = |key: &str, path: &str, body: Value| -> Reply {
        let key = format!("Authorization: Bearer {key}\r\n");
        server.send(&post(path, &body.to_string(), &key))
    };
    let get = |key: &str, path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        server.send(&format!("{head}Authorization: Bearer {key}\r\n\r\n"))
    };
    let response = ask(
        "alice",
        PATH,
        json!({"input": "Hi", "max_output_tokens": 1}),
    )
    .good();
    let conversation = ask("alice", "/v1/conversations", json!({})).good();
    let (id, item) = (
        response["id"].as_str().unwrap(),
        &response["output"][0]["id"],
    );
    let of_conversation = conversation["id"].as_str().unwrap();
    for (key, status) in [("bob", [400, 404]), ("alice", [200, 200])] {
        for body in [
            json!({"input": "a", "previous_response_id": id, "max_output_tokens": 1}),
            json!({"input": "a", "conversation": of_conversation, "max_output_tokens": 1}),
            json!({"input": [{"type": "item_reference", "id": item}], "max_output_tokens": 1}),
        ] {
            assert_eq!(
                ask(key, PATH, body.clone()).status,
                status[0],
                "{key}: {body}"
            );
        }
        for path in [
            format!("/v1/responses/{id}"),
            format!("/v1/conversations/{of_conversation}"),
        ] {
            assert_eq!(get(key, &path).status, status[1], "{key}: {path}");
        }
    }
    // A refusal is the same as of an id that never was.
    let refused = |id: &str| {
        let body = json!({"input": "a", "previous_response_id": id});
        ask("bob", PATH, body).body.replace(id, "")
    };
    assert_eq!(refused(id), refused("resp_0000000000000000"));
}

/// Stores a conversation with an item, and returns its id.
fn conversation(server: &Server, item: &Value) -> String {
    let made = server.post("/v1/conversations", &json!({"items": [item]}));
    made.good()["id"].as_str().unwrap().to_owned()
}

/// Stores items with `bytes` of text in a conversation each. Returns references to them, and the last conversation.
fn large_items(server: &Server, count: usize, bytes: usize) -> (Vec<Value>, String) {
    let mut last = String::new();
    let store = |number: usize| {
        let id = format!("msg_{number}");
        let text = "x".repeat(bytes);
        last = conversation(server, &json!({"id": id, "role": "user", "content": text}));
        json!({"id": id})
    };
    let references = (0..count).map(store).collect();
    (references, last)
}

#[test]
fn stored_items_that_take_too_much_memory_together_are_refused_by_name() {
    // Items may take four times as much.
    let server = Server::with(|options| options.body_bytes = 1 << 20);
    let (references, id) = large_items(&server, 30, 200_000);
    for (path, field) in [
        (PATH, "input"),
        ("/v1/responses/input_tokens", "input"),
        ("/v1/conversations", "items"),
    ] {
        let error = server.post(path, &json!({field: references})).error(400);
        assert_eq!(error["param"], field, "{path}");
        assert_eq!(error["code"], "conversation_too_large", "{path}: {error}");
    }
    // What continues much is refused as what refers to much.
    let body = json!({"input": references[..15], "conversation": id});
    let error = server.post("/v1/responses/input_tokens", &body).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    let grown = server
        .post("/v1/conversations", &json!({"items": references[..15]}))
        .good();
    let body = json!({"input": references[15..25], "conversation": grown["id"]});
    let error = server.post("/v1/responses/input_tokens", &body).error(400);
    assert_eq!(error["code"], "conversation_too_large");
}

#[test]
fn stored_items_count_towards_the_memory_of_bodies() {
    let server = Server::with(|options| options.bodies_bytes = 400 << 10);
    let (references, _) = large_items(&server, 4, 50_000);
    let count = |count: usize| {
        let body = json!({"input": references[..count]});
        server.post("/v1/responses/input_tokens", &body)
    };
    assert!(count(3).good()["input_tokens"].as_u64().unwrap() > 150_000);
    assert_eq!(count(4).error(413)["code"], "body_too_large");
    count(3).good();
}

#[test]
fn a_large_conversation_has_the_same_tokens_as_its_messages() {
    let server = Server::start();
    let part = json!({"type": "input_text", "text": "x"});
    let item = json!({"role": "user", "content": vec![part; 3000]});
    let id = conversation(&server, &item);
    let body = json!({"input": "Again", "conversation": id, "instructions": "Be brief"});
    let counted = server.post("/v1/responses/input_tokens", &body).good();
    let expected = json!([
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": vec!["x"; 3000].join("\n")},
        {"role": "user", "content": "Again"},
    ]);
    assert_eq!(counted["input_tokens"], count(&server, &expected));
    let error = server.post(PATH, &body).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
}

#[test]
fn stored_responses_that_no_client_reads_count_towards_its_memory() {
    // Larger than the buffers of a connection.
    let description = "x".repeat(7 << 20);
    let tool = json!({"type": "function", "name": "f", "description": description});
    let server = Server::with(|options| options.bodies_bytes = 40 << 20);
    let body =
        json!({"input": "Hi", "tools": [tool], "tool_choice": "none", "max_output_tokens": 1});
    let response = respond(&server, &body);
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let hold = || {
        let mut stream = server.connect();
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        stream
    };
    let held = [hold(), hold()];
    assert_eq!(server.get(&path).error(503)["code"], "bodies_full");
    drop(held);
    let start = Instant::now();
    let reply = loop {
        let reply = server.get(&path);
        if reply.status == 200 {
            break reply;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it stays held");
    };
    assert!(reply.json() == response);
}

#[test]
fn the_id_of_a_response_is_none_of_a_conversation() {
    let server = Server::start();
    let response = respond(&server, &json!({"input": "Hi", "max_output_tokens": 1}));
    let conversation = conversation(&server, &json!({"role": "user", "content": "Hi"}));
    for (field, id) in [
        ("conversation", &response["id"]),
        ("previous_response_id", &json!(conversation)),
    ] {
        for path in [PATH, "/v1/responses/input_tokens"] {
            let error = server
                .post(path, &json!({"input": "a", field: id}))
                .error(400);
            assert_eq!(error["param"], field, "{path}");
        }
    }
}

#[test]
fn metadata_beyond_its_bounds_is_refused_by_name() {
    let server = Server::start();
    let metadata = json!({"a": "x".repeat(513)});
    for (path, body) in [
        ("/v1/conversations", json!({"metadata": metadata})),
        (PATH, json!({"input": "a", "metadata": metadata})),
    ] {
        assert_eq!(server.post(path, &body).error(400)["param"], "metadata.a");
    }
}
