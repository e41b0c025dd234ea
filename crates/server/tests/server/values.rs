//! Values of every field of every request: null, whole numbers as clients write them, and values of other kinds.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use triad_server::fields::{Effect, Field, RequestFields, requests};

use crate::fields::{Body, body, message, other, same, server, set};
use crate::support::{Reply, Server, add};

/// Words of the program, which no error has.
const WORDS: [&str; 26] = [
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "usize", "f32", "f64", "struct", "enum",
    "map", "sequence", "variant", "tuple", "unit", "newtype", "untagged", "integer", "boolean",
    "floating", "None", "Some", "serde",
];

/// A field with the endpoint's server.
struct Case<'a> {
    server: &'a Server,
    request: &'static RequestFields,
    /// The path with the ids of what is stored.
    url: &'a str,
    parent: &'a str,
    field: &'static Field,
}

impl Case<'_> {
    fn name(&self) -> String {
        match self.parent {
            "" => self.field.name.to_owned(),
            parent => format!("{parent}.{}", self.field.name),
        }
    }

    /// Returns the body with the field, and with what `more` has.
    fn body(&self, value: Value, more: Value) -> Value {
        let body = body(self.request.path, self.parent);
        set(body, self.field.name, value, more)
    }

    fn post(&self, body: &Value) -> Reply {
        self.server.post(self.url, body)
    }
}

/// Calls `check` for each field of the request at any depth.
fn each(
    (server, request, url): (&Server, &'static RequestFields, &str),
    check: &mut dyn FnMut(&Case),
) {
    let mut open: Vec<(String, &Field)> = request
        .fields()
        .map(|field| (String::new(), field))
        .collect();
    while let Some((parent, field)) = open.pop() {
        let case = Case {
            server,
            request,
            url,
            parent: &parent,
            field,
        };
        check(&case);
        let name = case.name();
        open.extend(field.inner.iter().map(|inner| (name.clone(), inner)));
    }
}

/// Returns the requests that are posted. `/api/delete` is not, and reads no body without a library of models.
fn posted() -> impl Iterator<Item = &'static RequestFields> {
    requests()
        .into_iter()
        .filter(|request| request.path != "/api/delete")
}

/// Calls `check` for each field of all requests, with servers that have what their paths name.
fn sweep(mut check: impl FnMut(&Case)) {
    let general = Server::with(|options| options.strict_models = true);
    for request in posted() {
        let of_path;
        let folder = tempfile::tempdir().unwrap();
        let server = match request.path {
            "/infill" | "/rerank" | "/predict" => {
                of_path = server(request.path);
                &of_path
            }
            path if path.starts_with("/sessions/") => {
                let folder = folder.path().to_owned();
                of_path = Server::with(|options| options.sessions = Some(folder));
                of_path
                    .post("/sessions/a/save", &json!({"prompt": "Hi"}))
                    .good();
                &of_path
            }
            _ => &general,
        };
        let conversation = server.post("/v1/conversations", &json!({})).good();
        let id = conversation["id"].as_str().unwrap();
        let url = request.path.replace("{name}", "a").replace("{id}", id);
        each((server, request, &url), &mut check);
    }
}

#[test]
fn a_null_value_counts_as_a_missing_field_everywhere() {
    let (mut count, mut failed) = (0, Vec::new());
    sweep(|case| {
        // The API has null as a value there: no metadata.
        if case.request.path == "/v1/conversations/{id}" {
            return;
        }
        count += 1;
        let null = case.post(&case.body(Value::Null, json!({})));
        let mut without = body(case.request.path, case.parent);
        let parent = without.body.pointer_mut(without.place).unwrap();
        parent.as_object_mut().unwrap().remove(case.field.name);
        let without = case.post(&without.body);
        // Without a seed, answers differ.
        let is_random = ["seed", "temperature"].contains(&case.field.name);
        let is_same = match (null.status, is_random) {
            (200, false) => same(&null) == same(&without),
            _ => null.status == without.status,
        };
        if !is_same {
            let (path, name) = (case.request.path, case.name());
            let (null, without) = (null.body, without.body);
            failed.push(format!(
                "{path} {name}: {null} with null, {without} without"
            ));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 1000, "{count}");
}

#[test]
fn null_removes_the_metadata_of_a_conversation_that_must_have_a_value() {
    let server = Server::start();
    let made = json!({"metadata": {"a": "b"}});
    let made = server.post("/v1/conversations", &made).good();
    let path = format!("/v1/conversations/{}", made["id"].as_str().unwrap());
    assert_eq!(
        server.post(&path, &json!({})).error(400)["param"],
        "metadata"
    );
    assert_eq!(server.get(&path).good()["metadata"], json!({"a": "b"}));
    let changed = server.post(&path, &json!({"metadata": null})).good();
    assert_eq!(changed["metadata"], json!({}));
    assert_eq!(server.get(&path).good(), changed);
}

/// Fields with numbers that are not whole.
const FRACTIONS: [&str; 10] = [
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "scale",
    "keep_alive",
    "options",
];

/// Returns the text of a body with `number` in place of the text `@`.
fn with_number(body: &Value, number: &str) -> String {
    body.to_string().replace("\"@\"", number)
}

#[test]
fn a_whole_number_may_be_written_with_a_point_or_an_exponent_everywhere() {
    let (mut whole, mut failed) = (0, Vec::new());
    sweep(|case| {
        if case.field.effect != Effect::Followed {
            return;
        }
        let name = case.name();
        let (_, more) = other(case.request.path, &name);
        let place = body(case.request.path, case.parent);
        let mut base = place.body;
        add(&mut base, more);
        let base = Body {
            body: base,
            place: place.place,
        };
        let body = set(base, case.field.name, json!("@"), json!({}));
        let expects = message(&case.post(&body)).contains("a whole number");
        let post = |number: &str| case.server.post_text(case.url, &with_number(&body, number));
        let plain = post("1");
        if !expects && plain.status != 200 {
            return;
        }
        let mut fail = |reply: &Reply, number: &str| {
            let (path, reply) = (case.request.path, &reply.body);
            failed.push(format!(
                "{path} {name}: {number}: {reply}, 1: {}",
                plain.body
            ));
        };
        if !expects {
            // A text that may be a number as well, or a number that may have a fraction.
            if !FRACTIONS.contains(&case.field.name) {
                fail(&plain, "1");
            }
            return;
        }
        whole += 1;
        for number in ["1.0", "1e0", "10E-1"] {
            let reply = post(number);
            // It ends completions by the time that they take.
            let is_timed = case.field.name == "t_max_predict_ms";
            let is_same = match (reply.status, is_timed) {
                (200, false) => same(&reply) == same(&plain),
                (200, true) => plain.status == 200,
                _ => message(&reply).replace("1.0", "1") == message(&plain),
            };
            if !is_same {
                fail(&reply, number);
            }
        }
        for number in ["1.5", "1e-3", "1e300"] {
            let reply = post(number);
            let message = message(&reply);
            let is_named = message.contains(case.field.name) && message.contains("whole number");
            if reply.status != 400 || !is_named {
                fail(&reply, number);
            }
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(whole > 40, "{whole}");
}

#[test]
fn a_token_may_be_written_with_a_point_or_an_exponent_everywhere() {
    let server = Server::start();
    for (path, field, more) in [
        ("/v1/completions", "prompt", json!({"max_tokens": 2})),
        ("/completion", "prompt", json!({"n_predict": 2, "seed": 5})),
        ("/v1/embeddings", "input", json!({})),
        ("/v1/embeddings", "content", json!({})),
        ("/embed", "inputs", json!({})),
        ("/api/embed", "input", json!({})),
        ("/detokenize", "tokens", json!({})),
    ] {
        let mut body = more;
        add(&mut body, json!({field: "@"}));
        let post = |tokens: &str| server.post_text(path, &with_number(&body, tokens));
        let plain = post("[97, 98]");
        plain.good();
        assert_eq!(same(&post("[97.0, 9.8e1]")), same(&plain), "{path}");
        for (tokens, place) in [
            ("[97, 98.5]", "[1]"),
            ("[-1]", "[0]"),
            ("[4294967296]", "[0]"),
            ("[97, true]", "[1]"),
            ("[97, {}]", "[1]"),
            ("[97, null]", "[1]"),
        ] {
            let error = message(&post(tokens));
            let begin = format!("{field}{place}: is ");
            assert!(
                error.starts_with(&begin) && error.contains("whole number"),
                "{path} {tokens}: {error}"
            );
        }
        if !["/detokenize", "/completion"].contains(&path) {
            let lists = "[[97.0], [98]]";
            assert_eq!(post(lists).status, 200, "{path}");
            let error = message(&post("[97, \"a\"]"));
            assert!(error.starts_with(&format!("{field}: ")), "{error}");
        }
    }
}

/// Returns a word of the program that the message has.
fn word_of_the_program(message: &str) -> Option<&str> {
    let mut words = message.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.find(|word| WORDS.contains(word))
}

/// Fields that take a text and an array.
const MIXED: [&str; 8] = [
    "content", "input", "inputs", "output", "prompt", "stop", "summary", "system",
];

#[test]
fn a_value_of_another_kind_is_refused_by_its_field_in_words_of_json() {
    let (mut count, mut failed) = (0, Vec::new());
    sweep(|case| {
        if case.field.effect != Effect::Followed {
            return;
        }
        let (path, name) = (case.request.path, case.name());
        let object = case.parent.split('.').next().unwrap();
        let mut taken = BTreeSet::new();
        for (kind, value) in [
            ("string", json!("x")),
            ("number", json!(1)),
            ("number", json!(1.5)),
            ("bool", json!(true)),
            ("array", json!([])),
            ("array", json!([[]])),
            ("array", json!([1])),
            ("array", json!([true])),
            ("object", json!({})),
            ("object", json!({"x": 1})),
        ] {
            count += 1;
            let reply = case.post(&case.body(value.clone(), json!({})));
            let message = match reply.status {
                200 => String::new(),
                _ => message(&reply),
            };
            let word = word_of_the_program(&message);
            match reply.status {
                200 => drop(taken.insert(kind)),
                400 if message.contains(case.field.name) && word.is_none() => {}
                // The right kind of a value that goes with others of its object, which is named.
                400 if kind == "string"
                    && word.is_none()
                    && !object.is_empty()
                    && message.contains(object) => {}
                // There is no such model or tool.
                403 | 404 if ["model", "name", "arguments"].contains(&case.field.name) => {}
                _ => failed.push(format!("{path} {name}: {value}: {message} {word:?}")),
            }
        }
        let taken: Vec<_> = taken.into_iter().collect();
        let is_mixed = taken == ["array", "string"] && MIXED.contains(&case.field.name);
        if taken.len() > 1 && !is_mixed {
            failed.push(format!("{path} {name} takes {taken:?}"));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 2000, "{count}");
}

#[test]
fn a_body_of_another_kind_is_refused_in_words_of_json() {
    let server = Server::start();
    let made = server.post("/v1/conversations", &json!({})).good();
    for request in posted() {
        let url = request.path.replace("{id}", made["id"].as_str().unwrap());
        for (body, found) in [
            ("null", "null"),
            ("[]", "an array"),
            ("[{}]", "an array"),
            ("1", "a number"),
            ("1.5", "a number"),
            ("-1", "a number"),
            ("\"a\"", "a string"),
            ("true", "true or false"),
        ] {
            // Sessions are off here.
            if url.starts_with("/sessions") {
                continue;
            }
            let reply = server.post_text(&url, body);
            let expected = format!("the body is {found}, expected an object");
            assert_eq!(
                (reply.status, message(&reply)),
                (400, expected),
                "{url} {body}"
            );
        }
        if !url.starts_with("/sessions") {
            let reply = server.post_text(&url, "{\"a\": 1, }");
            let error = message(&reply);
            assert!(error.starts_with("the body is no JSON object: "), "{error}");
            assert_eq!(word_of_the_program(&error), None, "{error}");
        }
    }
}

#[test]
fn half_of_a_surrogate_pair_is_refused_by_its_field() {
    let server = Server::start();
    for (path, body, param) in [
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "a\ud800"}]}"#,
            "messages[0].content",
        ),
        (
            "/v1/responses",
            r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "\udc00"}]}]}"#,
            "input[0].content[0].text",
        ),
        (
            "/v1/completions",
            r#"{"prompt": ["a", "\ud800b"]}"#,
            "prompt[1]",
        ),
        ("/tokenize", r#"{"content": "\ud800"}"#, "content"),
    ] {
        let error = server.post_text(path, body).error(400);
        assert_eq!(error["param"], param, "{path}: {error}");
        assert_eq!(error["code"], "invalid_json");
    }
}

#[test]
fn names_of_logit_bias_that_are_no_tokens_are_refused_by_the_field() {
    let server = Server::start();
    for name in ["+5", "05", "5.0", "-1", "a", "", " 5", "4294967296"] {
        let body = json!({"prompt": "a", "max_tokens": 1, "logit_bias": {name: 1}});
        let error = server.post("/v1/completions", &body).error(400);
        let param = format!("logit_bias.{name}");
        assert_eq!(error["param"], param, "{name:?}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("the id of a token"), "{message}");
    }
    let body = json!({"prompt": "a", "max_tokens": 1, "logit_bias": {"5": "much"}});
    let error = server.post("/v1/completions", &body).error(400);
    assert_eq!(error["param"], "logit_bias.5");
    for bias in ["100", "100.0", "1e2"] {
        let body = format!(r#"{{"prompt": "a", "max_tokens": 1, "logit_bias": {{"97": {bias}}}}}"#);
        let answer = server.post_text("/v1/completions", &body).good();
        assert_eq!(answer["choices"][0]["text"], "a");
    }
}
