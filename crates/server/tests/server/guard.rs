//! API keys, the Host header and CORS origins.

use std::collections::BTreeSet;

use serde_json::json;
use triad_server::{Access, Route, routes};

use crate::support::{Reply, Server, post};

fn get(path: &str, host: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")
}

#[test]
fn a_name_that_others_could_have_is_refused_on_loopback() {
    let server = Server::start();
    for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80"] {
        server.send(&get("/health", host, "")).good();
    }
    for host in [
        "example.org",
        "localhost.example.org",
        "192.168.0.1",
        "",
        "a b",
    ] {
        let reply = server.send(&get("/v1/models", host, ""));
        assert!([400, 403].contains(&reply.status), "{host}: {reply:?}");
    }
    let none = server.send("GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(none.status, 403, "{none:?}");
}

#[test]
fn a_key_is_wanted_where_there_is_one() {
    let server = Server::with(|options| options.api_keys = vec!["first".into(), "second".into()]);
    let ask = |headers: &str| server.send(&post("/v1/completions", "{\"prompt\": \"a\"}", headers));
    for headers in [
        "Authorization: Bearer first\r\n",
        "authorization: bearer second\r\n",
        "x-api-key: first\r\n",
    ] {
        ask(headers).good();
    }
    for headers in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer firs\r\n",
        "Authorization: Bearer first2\r\n",
        "Authorization: Basic first\r\n",
        "x-api-key: \r\n",
    ] {
        let reply = ask(headers);
        assert_eq!(reply.error(401)["code"], "invalid_api_key", "{headers}");
        assert!(
            reply
                .headers
                .to_ascii_lowercase()
                .contains("www-authenticate: bearer"),
            "{}",
            reply.headers
        );
    }
    for path in ["/v1/models", "/metrics", "/props"] {
        server.get(path).error(401);
    }
    server.get("/health").good();
}

/// HTTP methods that clients may send.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE",
];

fn ask(server: &Server, method: &str, path: &str, headers: &str) -> Reply {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    server.send(&format!("{head}{headers}Content-Length: 0\r\n\r\n"))
}

/// Returns a concrete path of the route.
fn path(route: &Route) -> String {
    route
        .path
        .replace("{*model}", "a/b")
        .replace("{id}", "a")
        .replace("{name}", "a")
}

fn as_key(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

#[test]
fn every_route_wants_a_key_but_those_that_are_open() {
    let open: BTreeSet<_> = routes()
        .iter()
        .filter(|route| route.access == Access::Open)
        .map(|route| (route.method, route.path))
        .collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
    let names = |inside: &str| {
        let found = std::fs::read_dir(format!("{folder}/{inside}")).unwrap();
        let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found
            .filter(|name| name.contains('.'))
            .map(|name| format!("/{inside}{name}"))
            .collect::<Vec<_>>()
    };
    let files = [names(""), names("vendor/")].concat();
    let files = files.iter().map(|path| match &**path {
        "/index.html" => "/",
        path => path,
    });
    let listed = files
        .chain(["/health", "/v1/health", "/openapi.json"])
        .map(|path| ("GET", path));
    assert_eq!(
        open,
        listed.collect::<BTreeSet<_>>(),
        "a route that tells nothing of requests may be added here"
    );
    let server = Server::with(|options| {
        (options.api_keys, options.metrics_key) = (
            vec!["first".into(), "second".into()],
            Some("metrics".into()),
        );
    });
    let key_of = |access| match access {
        Access::Open => None,
        Access::Key => Some("second"),
        Access::Metrics => Some("metrics"),
    };
    for route in routes() {
        for method in METHODS {
            let read = if method == "HEAD" { "GET" } else { method };
            let own = routes()
                .iter()
                .find(|own| own.path == route.path && own.method == read);
            let right = key_of(own.map_or(Access::Key, |own| own.access));
            let keys = ["", "first", "firs", "second", "metrics", "Second"];
            for key in keys {
                let headers = if key.is_empty() {
                    String::new()
                } else {
                    as_key(key)
                };
                let reply = ask(&server, method, &path(route), &headers);
                let is_right =
                    right.is_none_or(|right| key == right || (key == "first" && right == "second"));
                let what = format!("{method} {} with {key:?}: {reply:?}", route.path);
                assert_eq!(reply.status == 401, !is_right, "{what}");
                if is_right {
                    assert_eq!(reply.status == 405, own.is_none(), "{what}");
                    assert!(reply.status < 500, "{what}");
                }
            }
        }
    }
}

#[test]
fn no_response_has_a_header_twice() {
    let server = Server::with(|options| {
        (options.api_keys, options.cors) =
            (vec!["key".into()], vec!["http://localhost:3000".into()]);
    });
    let origin = "Origin: http://localhost:3000\r\n";
    let preflight = format!(
        "{origin}Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-a\r\n"
    );
    let unchanged = |path: &str| {
        let reply = ask(&server, "GET", path, &as_key("key"));
        let tag = reply
            .headers
            .lines()
            .find_map(|line| line.strip_prefix("etag: ").map(str::to_owned));
        tag.map(|tag| format!("If-None-Match: {tag}\r\n"))
            .unwrap_or_default()
    };
    let whole = |body: &str| {
        post(
            "/v1/completions",
            body,
            &format!("{origin}{}", as_key("key")),
        )
    };
    let mut replies = vec![
        server.send(&whole("{\"prompt\": \"a\", \"max_tokens\": 1}")),
        server.send(&whole(
            "{\"prompt\": \"a\", \"max_tokens\": 1, \"stream\": true}",
        )),
        server.send(&whole("{}")),
        ask(&server, "GET", "/nothing", &as_key("key")),
    ];
    for route in routes() {
        for method in METHODS {
            for headers in [
                "",
                origin,
                &preflight,
                &as_key("key"),
                &unchanged(&path(route)),
            ] {
                replies.push(ask(&server, method, &path(route), headers));
            }
        }
    }
    for reply in replies {
        let names: Vec<_> = reply
            .headers
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .collect();
        let unique: BTreeSet<_> = names
            .iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        assert_eq!(unique.len(), names.len(), "{}", reply.headers);
    }
}

#[test]
fn what_is_no_route_wants_a_key_however_it_is_written() {
    let server = Server::with(|options| options.api_keys = vec!["key".into()]);
    for path in [
        "/sessions/",
        "//sessions",
        "/Sessions",
        "/./sessions",
        "/%73essions",
        "/health/x/",
        "/health/../sessions",
        "/app.js/x",
        "/sessions?/health",
        "/sessions#/health",
        "/sessions;/health",
        "http://localhost/sessions",
        "http://localhost/health/x",
        "/favicon.ico",
        "/v1",
        "*",
    ] {
        for method in METHODS {
            let reply = ask(&server, method, path, "");
            assert!(
                [400, 401].contains(&reply.status),
                "{method} {path}: {reply:?}"
            );
        }
    }
    assert_eq!(ask(&server, "GET", "/nothing", &as_key("key")).status, 404);
}

#[test]
fn every_route_but_the_pages_files_is_described_and_no_other() {
    let document = Server::start().get("/openapi.json").good();
    let described = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods
                .as_object()
                .unwrap()
                .keys()
                .map(move |method| (method.to_uppercase(), path.clone()))
        });
    let own = routes()
        .iter()
        .filter(|route| route.access != Access::Open || route.path.ends_with("/health"));
    let own = own.map(|route| (route.method.to_owned(), route.path.replace("{*", "{")));
    assert_eq!(described.collect::<BTreeSet<_>>(), own.collect());
}

#[test]
fn pages_of_named_origins_alone_may_read_answers() {
    let server = Server::with(|options| options.cors = vec!["http://localhost:3000".into()]);
    let allowed = |origin: &str| {
        let reply = server.send(&get(
            "/health",
            "localhost",
            &format!("Origin: {origin}\r\n"),
        ));
        reply
            .headers
            .to_ascii_lowercase()
            .contains(&format!("access-control-allow-origin: {origin}"))
    };
    assert!(allowed("http://localhost:3000"));
    assert!(
        !allowed("http://localhost:3001") && !allowed("null") && !allowed("https://example.org")
    );
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                     Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n\
                     Access-Control-Request-Headers: x-other\r\n\r\n";
    assert_eq!(server.send(preflight).status, 204);
    let other = server.send(&preflight.replace(":3000", ":3001"));
    assert!(
        !other
            .headers
            .to_ascii_lowercase()
            .contains("access-control-allow"),
        "{}",
        other.headers
    );
    let off = Server::start();
    assert!(
        !off.send(preflight)
            .headers
            .to_ascii_lowercase()
            .contains("access-control")
    );
    off.post("/v1/completions", &json!({"prompt": "a"})).good();
}

/// Headers that the official packages send from a web page, in addition to those that CORS always allows.
const OPENAI: &str = "authorization,content-type,idempotency-key,openai-beta,openai-organization,openai-project,user-agent,\
                      x-stainless-arch,x-stainless-custom-poll-interval,x-stainless-helper-method,x-stainless-lang,\
                      x-stainless-os,x-stainless-package-version,x-stainless-poll-helper,x-stainless-retry-count,\
                      x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";
const ANTHROPIC: &str = "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,authorization,\
                         content-type,idempotency-key,x-api-key,x-stainless-arch,x-stainless-helper,\
                         x-stainless-helper-method,x-stainless-lang,x-stainless-os,x-stainless-package-version,\
                         x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";

#[test]
fn packages_for_browsers_reach_every_route_from_a_named_origin() {
    let server = Server::with(|options| {
        (options.api_keys, options.cors) =
            (vec!["key".into()], vec!["http://localhost:3000".into()]);
    });
    let origin = "Origin: http://localhost:3000\r\n";
    let list = |reply: &Reply, name: &str| -> BTreeSet<String> {
        let start = format!("access-control-{name}: ");
        let value = reply
            .headers
            .lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_default();
        value
            .split(',')
            .map(|part| part.trim().to_owned())
            .collect()
    };
    for (route, headers) in routes().iter().flat_map(|route| {
        [
            (route, OPENAI),
            (route, ANTHROPIC),
            (route, "x-of-a-later-one"),
        ]
    }) {
        let asked = format!(
            "{origin}Access-Control-Request-Method: {}\r\nAccess-Control-Request-Headers: {headers}\r\n",
            route.method
        );
        let reply = ask(&server, "OPTIONS", &path(route), &asked);
        assert_eq!(reply.status, 204, "{reply:?}");
        assert!(
            list(&reply, "allow-origin").contains("http://localhost:3000"),
            "{reply:?}"
        );
        assert!(
            list(&reply, "allow-methods").contains(route.method),
            "{route:?}: {reply:?}"
        );
        let allowed = list(&reply, "allow-headers");
        assert!(
            headers.split(',').all(|name| allowed.contains(name)),
            "{reply:?}"
        );
        // With a wrong key, a page can still read the error and the Retry-After header.
        for key in ["", "key"] {
            let reply = ask(
                &server,
                route.method,
                &path(route),
                &format!("{origin}{}", as_key(key)),
            );
            assert!(
                list(&reply, "allow-origin").contains("http://localhost:3000"),
                "{reply:?}"
            );
            assert!(list(&reply, "expose-headers").contains("*"), "{reply:?}");
        }
    }
}

#[test]
fn a_head_has_its_bound_and_headers_that_others_may_read_differently_come_once() {
    let server = Server::start();
    let ask = |headers: &str| server.send(&post("/tokenize", r#"{"content": "a"}"#, headers));
    ask(&format!("X: {}\r\n", "x".repeat(60_000))).good();
    ask("Content-Encoding: identity\r\n").good();
    ask("x-api-key: a\r\nX-Api-Key: a\r\n").good();
    for (headers, status, code) in [
        ("Host: localhost\r\n", 400, "repeated_header"),
        ("Content-Type: application/json\r\n", 400, "repeated_header"),
        (
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            400,
            "repeated_header",
        ),
        ("x-api-key: a\r\nX-Api-Key: b\r\n", 400, "repeated_header"),
        (
            "Content-Encoding: gzip\r\n",
            415,
            "unsupported_content_encoding",
        ),
        (
            &format!("X: {}\r\n", "x".repeat(66_000)),
            431,
            "head_too_large",
        ),
    ] {
        assert_eq!(ask(headers).error(status)["code"], code, "{code}");
    }
    let chunked = |encoding: &str| {
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: {encoding}\r\n"
        );
        server.send(&format!(
            "{head}\r\n11\r\n{{\"content\": \"a\"}} \r\n0\r\n\r\n"
        ))
    };
    chunked("Chunked").good();
    let refused = chunked("gzip, chunked").error(501);
    assert_eq!(refused["code"], "unsupported_transfer_encoding");
}

#[test]
fn a_name_that_an_object_has_twice_is_refused_in_every_request() {
    let server = Server::start();
    for (path, body, field) in [
        (
            "/v1/completions",
            r#"{"prompt": "a", "logit_bias": {"72": -100, "72": 0}}"#,
            "logit_bias.72",
        ),
        (
            "/tokenize",
            r#"{"content": "a", "content": "b"}"#,
            "content",
        ),
        (
            "/v1/conversations",
            r#"{"metadata": {"a": "b", "a": "b"}}"#,
            "metadata.a",
        ),
    ] {
        let error = server.post_text(path, body).error(400);
        assert_eq!(error["param"], field, "{path}");
    }
    let long = format!(
        r#"{{"content": "{}", "tools": [{{"a": 1, "a": 2}}]}}"#,
        "x".repeat(100_000)
    );
    assert_eq!(
        server.post_text("/tokenize", &long).error(400)["param"],
        "tools[0].a"
    );
}
