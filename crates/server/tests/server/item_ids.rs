//! Ids of items: each is in a conversation and in a response once, and lists of items end.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Reply, Server};

const RESPONSES: &str = "/v1/responses";
const CONVERSATIONS: &str = "/v1/conversations";

fn item(id: &str) -> Value {
    json!({"id": id, "role": "user", "content": id})
}

/// Stores a conversation with items of these ids, and returns its path.
fn conversation(server: &Server, ids: &[&str]) -> (String, String) {
    let items: Vec<_> = ids.iter().map(|id| item(id)).collect();
    let made = server.post(CONVERSATIONS, &json!({"items": items})).good();
    let id = made["id"].as_str().unwrap().to_owned();
    (format!("{CONVERSATIONS}/{id}"), id)
}

fn delete(server: &Server, path: &str) -> Reply {
    server.send(&format!(
        "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    ))
}

/// Returns the ids of all items as a client pages through them, `limit` at a time.
fn paged(server: &Server, path: &str, limit: usize, order: &str) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{path}?limit={limit}&order={order}{after}"));
        let page = page.good();
        let data = page["data"].as_array().unwrap();
        ids.extend(data.iter().map(|it| it["id"].as_str().unwrap().to_owned()));
        if page["has_more"] == false {
            return ids;
        }
        assert!(ids.len() < 100, "{path} does not end: {ids:?}");
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
}

/// Checks that each id is there once, and that all pages together have them.
fn check_pages(server: &Server, path: &str, count: usize) {
    for limit in [1, 2, 3, 100] {
        for order in ["asc", "desc"] {
            let ids = paged(server, path, limit, order);
            let unique: BTreeSet<_> = ids.iter().collect();
            assert_eq!((ids.len(), unique.len()), (count, count), "{path}: {ids:?}");
        }
    }
}

#[track_caller]
fn refused(reply: &Reply, id: &str, param: &str) {
    let error = reply.error(400);
    let message = format!(
        "Duplicate item found with id {id}. Remove duplicate items from your input and try again."
    );
    assert_eq!(error["message"], message);
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!(param), &Value::Null)
    );
    assert_eq!(error["type"], "invalid_request_error");
}

#[test]
fn an_id_that_a_conversation_has_is_refused_at_every_way_in_and_pages_end() {
    let server = Server::start();
    let (path, id) = conversation(&server, &["msg_a", "msg_b"]);
    let items = format!("{path}/items");
    let add = |given: Value| server.post(&items, &json!({"items": given}));
    let respond = |given: Value| {
        let body = json!({"input": given, "conversation": id, "max_output_tokens": 2});
        server.post(RESPONSES, &body)
    };
    refused(
        &add(json!([item("msg_c"), item("msg_a")])),
        "msg_a",
        "items",
    );
    refused(
        &add(json!([item("msg_c"), item("msg_c")])),
        "msg_c",
        "items",
    );
    refused(
        &add(json!([{"type": "item_reference", "id": "msg_b"}])),
        "msg_b",
        "items",
    );
    for given in [
        json!([item("msg_a"), item("msg_c")]),
        json!([{"type": "item_reference", "id": "msg_a"}]),
        json!([{"id": "msg_a"}]),
    ] {
        refused(&respond(given), "msg_a", "input");
    }
    refused(
        &respond(json!([item("msg_c"), item("msg_c")])),
        "msg_c",
        "input",
    );
    let twice = json!({"items": [item("msg_a"), item("msg_a")]});
    refused(&server.post(CONVERSATIONS, &twice), "msg_a", "items");
    let counted = json!({"input": [item("msg_b")], "conversation": id});
    refused(
        &server.post("/v1/responses/input_tokens", &counted),
        "msg_b",
        "input",
    );
    // Nothing of a refused request is added.
    check_pages(&server, &items, 2);
    // An agent sends its whole history next to the conversation.
    let first = respond(json!("Hi")).good();
    let mut history = vec![item("msg_c")];
    history.extend(first["output"].as_array().unwrap().iter().cloned());
    let said = first["output"][0]["id"].as_str().unwrap();
    refused(&respond(json!(history)), said, "input");
    check_pages(&server, &items, 4);
    respond(json!([item("msg_c"), item("")])).good();
    add(json!([item(""), item(""), {"role": "user", "content": "x"}])).good();
    check_pages(&server, &items, 10);
    let found = server.get(&format!("{items}/msg_a")).good();
    assert_eq!(found["content"][0]["text"], "msg_a");
    delete(&server, &format!("{items}/msg_a")).good();
    check_pages(&server, &items, 9);
    delete(&server, &format!("{items}/msg_a")).error(404);
    // The id is free again.
    add(json!([item("msg_a")])).good();
    check_pages(&server, &items, 10);
}

#[test]
fn an_id_that_a_response_or_those_before_it_have_is_refused() {
    let server = Server::start();
    let respond = |given: Value, previous: Option<&Value>| {
        let body =
            json!({"input": given, "previous_response_id": previous, "max_output_tokens": 2});
        server.post(RESPONSES, &body)
    };
    let first = respond(json!([item("msg_a"), item("msg_b")]), None).good();
    let second = respond(json!([item("msg_c")]), Some(&first["id"])).good();
    let said = first["output"][0]["id"].as_str().unwrap();
    for (given, id) in [
        (json!([item("msg_a")]), "msg_a"),
        (json!([{"id": "msg_c"}]), "msg_c"),
        (json!([item("msg_d"), first["output"][0]]), said),
        (json!([item("msg_d"), item("msg_d")]), "msg_d"),
    ] {
        refused(&respond(given.clone(), Some(&second["id"])), id, "input");
    }
    refused(
        &respond(json!([item("msg_d"), item("msg_d")]), None),
        "msg_d",
        "input",
    );
    refused(
        &respond(json!([{"id": "msg_a"}, {"id": "msg_a"}]), None),
        "msg_a",
        "input",
    );
    // Another chain may have the item, and a response that is not stored is checked, too.
    respond(json!([{"id": "msg_a"}, first["output"][0]]), None).good();
    let unkept = json!({"input": [item("msg_a"), item("msg_a")], "store": false});
    refused(&server.post(RESPONSES, &unkept), "msg_a", "input");
    let path = format!("{RESPONSES}/{}/input_items", first["id"].as_str().unwrap());
    check_pages(&server, &path, 2);
}

#[test]
fn two_answers_at_the_same_time_add_an_item_with_one_id_as_two() {
    let server = Server::start();
    let (path, id) = conversation(&server, &[]);
    let body = json!({"input": [item("msg_a")], "conversation": id, "max_output_tokens": 20});
    let good: usize = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| server.post(RESPONSES, &body).status))
            .collect();
        let statuses = asked.into_iter().map(|it| it.join().unwrap());
        statuses.filter(|status| *status == 200).count()
    });
    assert!(good > 0);
    check_pages(&server, &format!("{path}/items"), 2 * good);
}

#[test]
fn a_conversation_grows_by_a_response_that_is_not_stored() {
    let server = Server::start();
    let (path, id) = conversation(&server, &["msg_a"]);
    let body = json!({"input": "Hi", "conversation": id, "store": false, "max_output_tokens": 2});
    let response = server.post(RESPONSES, &body).good();
    let kept = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    server.get(&kept).error(404);
    let items = paged(&server, &format!("{path}/items"), 100, "asc");
    assert_eq!(items.len(), 3);
    assert_eq!(items[2], response["output"][0]["id"].as_str().unwrap());
}

#[test]
fn parameters_of_stored_items_are_followed_or_refused_by_name() {
    let server = Server::start();
    let spaced = "a b";
    let (path, id) = conversation(&server, &[spaced, "msg_b"]);
    let body = json!({"input": "Hi", "conversation": id, "max_output_tokens": 1});
    let response = server.post(RESPONSES, &body).good();
    let response = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    let (items, inputs) = (format!("{path}/items"), format!("{response}/input_items"));
    let item = format!("{items}/msg_b");
    let known = "include[]=message.output_text.logprobs&include[]=reasoning.encrypted_content";
    for path in [&items, &inputs, &item, &response] {
        server.get(&format!("{path}?{known}")).good();
        server
            .get(&format!("{path}?include%5B%5D=web_search_call.results&"))
            .good();
        for (query, param) in [
            ("include=a", "include"),
            (
                "include[]=message.output_text.logprobs&include[]=a",
                "include",
            ),
            ("bogus=1", "bogus"),
            ("Include=a", "Include"),
        ] {
            let error = server.get(&format!("{path}?{query}")).error(400);
            assert_eq!(error["param"], param, "{path}?{query}: {error}");
        }
    }
    for path in [&items, &inputs] {
        for (query, param) in [
            ("limit=1&limit=2", "limit"),
            ("order=asc&order=asc", "order"),
            ("after=msg_b&after=msg_b", "after"),
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=1.5", "limit"),
            ("order=up", "order"),
            ("before=msg_b", "before"),
        ] {
            let error = server.get(&format!("{path}?{query}")).error(400);
            assert_eq!(error["param"], param, "{path}?{query}: {error}");
        }
    }
    let after = server
        .get(&format!("{items}?order=asc&limit=1&after=a%20b"))
        .good();
    assert_eq!(after["data"][0]["id"], "msg_b");
    for query in ["stream=false", "stream=", "include_obfuscation=true"] {
        server.get(&format!("{response}?{query}")).good();
    }
    for (query, param) in [
        ("stream=true", "stream"),
        ("starting_after=1", "starting_after"),
        ("stream=false&stream=false", "stream"),
        ("limit=1", "limit"),
    ] {
        assert_eq!(
            server.get(&format!("{response}?{query}")).error(400)["param"],
            param
        );
    }
    // Routes without parameters.
    assert_eq!(
        server.get(&format!("{path}?limit=1")).error(400)["param"],
        "limit"
    );
    for path in [&path, &item, &response] {
        let error = delete(&server, &format!("{path}?a=1")).error(400);
        assert_eq!(error["param"], "a", "{path}: {error}");
    }
    for (path, body) in [
        (CONVERSATIONS.to_owned(), json!({})),
        (path.clone(), json!({"metadata": {}})),
        (
            items.clone(),
            json!({"items": [{"role": "user", "content": "a"}]}),
        ),
    ] {
        let error = server.post(&format!("{path}?a=1"), &body).error(400);
        assert_eq!(error["param"], "a", "{path}: {error}");
    }
    let body = json!({"items": [{"role": "user", "content": "a"}]});
    server.post(&format!("{items}?{known}"), &body).good();
    server.post(&format!("{items}?include=a"), &body).error(400);
    assert_eq!(
        server.get(&items).good()["data"].as_array().unwrap().len(),
        5
    );
}
