//! Pictures in a network: fetched from the hosts that the server names, and from no other.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::pictures::{chat_by_url, file, server_with, talk};
use crate::support::Server;

/// A server of pictures on this machine, which counts its requests.
struct Host {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Host {
    /// Starts a server with these responses by path; any other path is a picture.
    fn start(responses: &[(&str, String)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, picture) = (Arc::clone(&requests), file(&talk().0));
        let responses: HashMap<_, _> = responses
            .iter()
            .map(|(path, response)| ((*path).to_owned(), response.clone().into_bytes()))
            .collect();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap();
                let path = first.split(' ').nth(1).unwrap().to_owned();
                // The rest of the head, which ends with an empty line.
                lines.find(|line| line.as_ref().unwrap().is_empty());
                let response = responses.get(&path).cloned().unwrap_or_else(|| {
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
                        picture.len()
                    );
                    [head.into_bytes(), picture.clone()].concat()
                });
                seen.lock().unwrap().push(path);
                // The client may have left.
                let _ = stream.write_all(&response);
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn server(hosts: &[String]) -> Server {
    server_with(|options| {
        options.image_hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        options.body_bytes = 64 << 10;
    })
}

fn redirect(to: &str) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
    )
}

#[test]
fn a_picture_of_a_named_host_is_read_by_all_apis_as_if_it_had_been_sent() {
    let host = Host::start(&[("/moved", redirect("a.png"))]);
    let server = server(&[host.address.to_string()]);
    let (name, text, tokens) = talk();
    let data = server.post("/v1/chat/completions", &{
        use base64::Engine;
        let content = base64::engine::general_purpose::STANDARD.encode(file(&name));
        chat_by_url(&format!("data:image/png;base64,{content}"), &text)
    });
    let said = data.good()["choices"][0]["message"]["content"].clone();
    // The media type is not trusted, and a redirect to the same host is followed.
    for path in ["a.png", "moved"] {
        let url = format!("http://{}/{path}", host.address);
        let body = chat_by_url(&url, &text);
        let answer = server.post("/v1/chat/completions", &body).good();
        assert_eq!(answer["choices"][0]["message"]["content"], said);
        let messages = json!({"messages": body["messages"]});
        assert_eq!(server.post("/tokenize", &messages).good()["count"], tokens);
    }
    let url = format!("http://{}/b.png", host.address);
    let source = json!({"type": "url", "url": url});
    let content = json!([{"type": "image", "source": source}, {"type": "text", "text": text}]);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0});
    let message = server.post("/v1/messages", &body).good();
    assert_eq!(message["content"][0]["text"], said);
    let image = json!({"type": "input_image", "image_url": url});
    let content = json!([image, {"type": "input_text", "text": text}]);
    let body = json!({
        "input": [{"role": "user", "content": content}], "max_output_tokens": 12, "temperature": 0
    });
    let response = server.post("/v1/responses", &body).good();
    assert_eq!(response["output"][0]["content"][0]["text"], said);
    assert_eq!(
        host.requests(),
        [
            "/a.png", "/a.png", "/moved", "/a.png", "/moved", "/a.png", "/b.png", "/b.png"
        ]
    );
}

#[test]
fn what_is_not_a_picture_of_a_named_host_is_refused_by_name() {
    let other = Host::start(&[]);
    let long = "x".repeat(70 << 10);
    let host = Host::start(&[
        (
            "/away",
            redirect(&format!("http://{}/a.png", other.address)),
        ),
        ("/file", redirect("file:///etc/passwd")),
        ("/round", redirect("/round")),
        (
            "/none",
            "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".into(),
        ),
        (
            "/text",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello".into(),
        ),
        (
            "/cut",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 500\r\n\r\nhello".into(),
        ),
        (
            "/long",
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{long}"),
        ),
    ]);
    let (_, text, _) = talk();
    let server = server(&[host.address.to_string()]);
    let here = |path: &str| format!("http://{}{path}", host.address);
    for (url, problem) in [
        (here("/away"), "is not among the hosts"),
        (here("/file"), "a redirect without an address"),
        (here("/round"), "more than 3 redirects"),
        (here("/none"), "status 404"),
        (here("/text"), "this is not a picture"),
        (here("/cut"), "ended the connection"),
        (here("/long"), "more bytes than the body of a request"),
        (
            format!("http://{}/a.png", other.address),
            "(--allow-image-urls)",
        ),
        ("http://localhost/a.png".into(), "(--allow-image-urls)"),
        (format!("http://user@{}/a.png", host.address), "has a user"),
        ("file:///etc/passwd".into(), "expected one of these"),
        ("http://a b/".into(), "this is not a URL"),
    ] {
        let error = server.post("/v1/chat/completions", &chat_by_url(&url, &text));
        let error = error.error(400);
        assert_eq!(
            error["param"], "messages[0].content[0].image_url",
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(problem), "{url}: {message}");
    }
    assert!(other.requests().is_empty());
}

#[test]
fn a_model_that_reads_only_text_fetches_nothing() {
    let host = Host::start(&[]);
    let hosts = vec![host.address.to_string().parse().unwrap()];
    let server = Server::with(|options| options.image_hosts = hosts);
    let url = format!("http://{}/a.png", host.address);
    let error = server.post("/v1/chat/completions", &chat_by_url(&url, "Hi"));
    let error = error.error(400);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("reads no pictures")
    );
    assert!(host.requests().is_empty());
}
