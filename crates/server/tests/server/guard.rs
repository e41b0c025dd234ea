//! Keys, hosts and origins.

use serde_json::json;

use crate::support::{Server, post};

fn get(path: &str, host: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")
}

#[test]
fn a_name_that_others_could_have_is_refused_on_loopback() {
    let server = Server::start();
    for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80"] {
        server.send(&get("/health", host, "")).good();
    }
    for host in ["example.org", "localhost.example.org", "192.168.0.1", "", "a b"] {
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
    for headers in ["Authorization: Bearer first\r\n", "authorization: bearer second\r\n", "x-api-key: first\r\n"] {
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
        assert!(reply.headers.to_ascii_lowercase().contains("www-authenticate: bearer"), "{}", reply.headers);
    }
    for path in ["/v1/models", "/metrics", "/props"] {
        server.get(path).error(401);
    }
    server.get("/health").good();
}

#[test]
fn pages_of_named_origins_alone_may_read_answers() {
    let server = Server::with(|options| options.cors = vec!["http://localhost:3000".into()]);
    let allowed = |origin: &str| {
        let reply = server.send(&get("/health", "localhost", &format!("Origin: {origin}\r\n")));
        reply.headers.to_ascii_lowercase().contains(&format!("access-control-allow-origin: {origin}"))
    };
    assert!(allowed("http://localhost:3000"));
    assert!(!allowed("http://localhost:3001") && !allowed("null") && !allowed("https://example.org"));
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                     Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    let reply = server.send(preflight);
    assert_eq!(reply.status, 204);
    assert!(reply.headers.to_ascii_lowercase().contains("access-control-allow-headers: authorization, content-type"));
    let off = Server::start();
    assert!(!off.send(preflight).headers.to_ascii_lowercase().contains("access-control"));
    off.post("/v1/completions", &json!({"prompt": "a"})).good();
}
