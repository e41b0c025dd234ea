//! `triad serve --allow-pull`: clients fetch and delete models next to those that the server was started with.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::outcome::succeed;
use crate::support::gguf::{Gguf, Value};
use crate::support::{Place, stderr};

/// The token of the server's owner.
pub const TOKEN: &str = "hf_of_the_owner";

/// A server, which is stopped when this is dropped.
pub struct Serving {
    process: std::process::Child,
    address: String,
    // Its pipe must stay open.
    _lines: Box<dyn Iterator<Item = String>>,
}

impl Serving {
    /// Starts `triad serve` with `arguments`. Its hub is at the address `hub`.
    pub fn start(place: &Place, arguments: &[&str], hub: &str) -> Self {
        let mut command = place.command(&[&["serve", "--port", "0"], arguments].concat());
        command
            .env("HF_ENDPOINT", format!("http://{hub}"))
            .env("HF_TOKEN", TOKEN);
        let mut process = command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut lines: Box<dyn Iterator<Item = String>> = Box::new(lines.map_while(Result::ok));
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("http://")?;
            Some(rest.split(';').next()?.to_owned())
        });
        Self {
            process,
            address: address.expect("the server starts"),
            _lines: lines,
        }
    }

    /// Sends a request. Returns the status and the body.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A hub with the repository `owner/name`, whose only file is `m.gguf` unless it has another name.
pub struct Hub {
    pub address: String,
    pub state: Arc<Mutex<HubState>>,
}

#[derive(Default)]
pub struct HubState {
    pub name: String,
    pub file: Vec<u8>,
    /// The stated length of the file, if it is another one.
    pub stated: Option<u64>,
    /// Whether the file is announced and not sent.
    stalls: bool,
    requests: usize,
    /// The requests for the file, and those with a token.
    pub fetches: usize,
    pub with_token: usize,
    /// The first byte of the last request for the file.
    pub from: usize,
    stalled: Vec<TcpStream>,
}

impl Hub {
    pub fn start(file: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(HubState {
            file,
            name: "m.gguf".into(),
            ..HubState::default()
        }));
        let own = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                drop(lines);
                own.lock().unwrap().answer(stream, &head);
            }
        });
        Self { address, state }
    }

    pub fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    fn stall(&self, stalls: bool) {
        self.state.lock().unwrap().stalls = stalls;
    }
}

impl HubState {
    fn answer(&mut self, mut stream: TcpStream, head: &[String]) {
        let header = |name: &str| {
            let mut pairs = head.iter().filter_map(|line| line.split_once(": "));
            let found = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_owned())
        };
        self.requests += 1;
        self.with_token += usize::from(header("authorization").is_some());
        let is_list = head
            .first()
            .is_some_and(|line| line.contains("/api/models/"));
        let mut status = "200 OK".to_owned();
        let body = if is_list {
            let size = self.stated.unwrap_or(self.file.len() as u64);
            let sha256 = triad_engine::package::sha256(&self.file);
            let lfs = json!({"sha256": sha256, "size": size});
            let file = json!({"rfilename": self.name, "size": size, "lfs": lfs});
            json!({"sha": "a".repeat(40), "siblings": [file]})
                .to_string()
                .into_bytes()
        } else {
            self.fetches += 1;
            let range = header("range");
            let from = range.and_then(|range| {
                range
                    .strip_prefix("bytes=")?
                    .strip_suffix('-')?
                    .parse()
                    .ok()
            });
            self.from = from.unwrap_or(0);
            if self.from > 0 {
                let (from, all) = (self.from, self.file.len());
                status = format!(
                    "206 Partial Content\r\nContent-Range: bytes {from}-{}/{all}",
                    all - 1
                );
            }
            self.file[self.from..].to_vec()
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        if !is_list && self.stalls {
            self.stalled.push(stream);
        } else {
            // The client may be gone.
            let _ = stream.write_all(&body);
        }
    }
}

pub const MODEL: &str = "hf:owner/name";
pub const OPTIONS: [&str; 3] = ["--allow-pull", "--context", "64"];

/// Returns a place with the model `model.gguf`, and with the same file in the cache as `hf:owner/name`.
pub fn fetched() -> Place {
    let place = Place::new();
    let file = Gguf::tiny().bytes();
    place.write("model.gguf", &file);
    place.write("cache/hf/owner/name/m.gguf", &file);
    record(&place, "");
    place
}

/// Writes the record of pulls of `hf:owner/name`.
fn record(place: &Place, more: &str) {
    let text = format!(r#"{{"open": "m.gguf", "files": ["m.gguf"]{more}}}"#);
    place.write("cache/hf/owner/name/pulled.json", text);
}

/// Returns another version of the file.
pub fn changed() -> Vec<u8> {
    let name = Value::Text("another version".into());
    Gguf::tiny().with("general.name", name).bytes()
}

pub fn model(name: &str) -> String {
    json!({"model": name}).to_string()
}

impl Serving {
    pub fn complete(&self, name: &str) -> (u16, String) {
        let body = json!({"model": name, "prompt": "Hi", "max_tokens": 2}).to_string();
        self.ask("POST", "/v1/completions", &body)
    }

    /// Lets a model leave the memory.
    fn unload(&self, name: &str) {
        let body = json!({"model": name, "keep_alive": 0}).to_string();
        assert_eq!(self.ask("POST", "/api/generate", &body).0, 200);
        wait_for(|| !self.ask("GET", "/api/ps", "").1.contains(name));
    }
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not come");
}

#[test]
fn a_given_model_is_not_fetched_over_or_deleted_by_any_name() {
    let place = fetched();
    let path = place.path("cache/hf/owner/name/m.gguf");
    let before = std::fs::read(&path).unwrap();
    let hub = Hub::start(changed());
    for given in [
        MODEL,
        "hf:owner/name:m.gguf",
        "cache/hf/owner/../owner/name/m.gguf",
    ] {
        record(&place, "");
        let arguments = [&OPTIONS[..], &["--no-quantize", "-m", given]].concat();
        let server = Serving::start(&place, &arguments, &hub.address);
        // As after a pull of another process that was cut off.
        for more in ["", r#", "unfinished": ["m.gguf"]"#] {
            record(&place, more);
            for name in [MODEL, "hf:owner/name:m.gguf"] {
                let (status, lines) = server.ask("POST", "/api/pull", &model(name));
                assert!(status == 200 && lines.contains("success"), "{lines}");
                assert_eq!(hub.requests(), 0, "{given}: {name} is fetched");
                let (status, _) = server.ask("DELETE", "/api/delete", &model(name));
                assert_eq!(status, 403, "{given}: {name}");
            }
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_name_that_no_model_has_is_not_found() {
    let place = fetched();
    let arguments = [&OPTIONS[..], &["--no-quantize", "-m", "model.gguf"]].concat();
    let server = Serving::start(&place, &arguments, "127.0.0.1:9");
    for name in [
        "hf:other/name:x.gguf/../y.gguf",
        "hf:other/name:latest:latest",
        "hf:other",
        "/etc/hosts",
    ] {
        for (method, path) in [("POST", "/api/pull"), ("DELETE", "/api/delete")] {
            let (status, error) = server.ask(method, path, &model(name));
            assert_eq!(status, 404, "{method} {name}: {error}");
        }
    }
}

#[test]
fn a_deleted_model_leaves_the_package_of_a_given_one() {
    let place = fetched();
    let arguments = [&OPTIONS[..], &["-m", "model.gguf"]].concat();
    let server = Serving::start(&place, &arguments, "127.0.0.1:9");
    let packages = || std::fs::read_dir(place.path("cache/packages")).map_or(0, Iterator::count);
    assert_eq!(packages(), 1);
    let (status, error) = server.ask("DELETE", "/api/delete", &model(MODEL));
    assert_eq!(status, 200, "{error}");
    assert_eq!(packages(), 1);
    assert!(!place.path("cache/hf/owner/name/m.gguf").exists());
    assert_eq!(server.complete("model.gguf").0, 200);
    server.unload("model.gguf");
    assert_eq!(server.complete("model.gguf").0, 200);
}

#[test]
fn a_model_whose_pull_has_not_ended_is_not_loaded() {
    let place = fetched();
    let hub = Hub::start(changed());
    let arguments = [&OPTIONS[..], &["--no-quantize", "-m", "model.gguf"]].concat();
    let server = Serving::start(&place, &arguments, &hub.address);
    let is_listed = || server.ask("GET", "/api/tags", "").1.contains(MODEL);
    assert_eq!(server.complete(MODEL).0, 200);
    hub.stall(true);
    let mut pull = TcpStream::connect(&server.address).unwrap();
    let body = model(MODEL);
    let request = format!(
        "POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    pull.write_all(request.as_bytes()).unwrap();
    wait_for(|| hub.requests() == 2);
    assert_eq!(server.complete(MODEL).0, 200, "it is in memory");
    assert!(is_listed());
    server.unload(MODEL);
    let (status, error) = server.complete(MODEL);
    assert!(
        status == 503 && error.contains("is being fetched"),
        "{error}"
    );
    assert!(!is_listed());
    drop(pull);
    wait_for(|| server.complete(MODEL).1.contains("pull it again"));
    assert_eq!(server.complete(MODEL).0, 503);
    assert!(!is_listed());
    // The command refuses the file, and continues the pull of the name.
    for (model, reason) in [
        ("cache/hf/owner/name/m.gguf", "pull it again"),
        (MODEL, "cannot reach http://127.0.0.1:9"),
    ] {
        for more in [&["--no-quantize"][..], &[]] {
            let run = [&["run", "-m", model, "-p", "Hi", "-n", "2"], more].concat();
            let refused = place.triad(&run);
            let printed = stderr(&refused);
            assert!(
                !refused.status.success() && printed.contains(reason),
                "{printed}"
            );
        }
    }
    hub.stall(false);
    let (_, lines) = server.ask("POST", "/api/pull", &body);
    assert!(lines.contains("success"), "{lines}");
    assert!(is_listed());
    let (status, answer) = server.complete(MODEL);
    assert_eq!(status, 200, "{answer}");
    succeed(&place.triad(&["run", "--no-quantize", "-m", MODEL, "-p", "Hi", "-n", "2"]));
}
