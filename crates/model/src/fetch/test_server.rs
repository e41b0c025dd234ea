//! A hub on the loopback interface, for tests: a closure returns its responses, and it records the requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A client's request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the first byte of the requested range.
    fn range(&self) -> Option<usize> {
        self.header("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// The server's response.
#[derive(Clone, Default)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// Closes the connection before this byte of the body, although the stated length is larger.
    pub(super) cut_at: Option<usize>,
    /// Sends the body byte by byte, with this pause after each.
    pub(super) pause: Option<Duration>,
    /// States no length: the body ends when the connection closes.
    pub(super) is_unstated: bool,
}

impl Response {
    pub(super) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(super) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Returns `content` from the first byte of the request's range. `cut_at` counts from the start of the file.
    pub(super) fn ranged(request: &Request, content: &[u8], cut_at: Option<usize>) -> Self {
        let from = request.range().unwrap_or(0);
        if from >= content.len() {
            return Self::status(416);
        }
        let headers = vec![(
            "content-range",
            format!("bytes {from}-{}/{}", content.len() - 1, content.len()),
        )];
        let cut_at = cut_at.map(|cut| cut.saturating_sub(from));
        let status = if request.range().is_some() { 206 } else { 200 };
        Self {
            status,
            headers,
            body: content[from..].to_vec(),
            cut_at,
            ..Self::default()
        }
    }
}

/// A server that runs until the process ends.
pub(super) struct Server {
    pub(super) endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) fn start(answer: impl Fn(&Request) -> Response + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that disconnects is not an error here.
                let _ = stream.and_then(|stream| serve(&stream, &seen, &answer));
            }
        });
        Self { endpoint, requests }
    }

    /// Returns all requests so far, oldest first.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: &TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &impl Fn(&Request) -> Response,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        headers.push((name.to_owned(), value.to_owned()));
    }
    let request = Request { path, headers };
    let response = answer(&request);
    seen.lock().unwrap().push(request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", response.status);
    for (name, value) in &response.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !response.is_unstated {
        head += &format!("content-length: {}\r\n", response.body.len());
    }
    write!(stream, "{head}\r\n")?;
    let end = response
        .cut_at
        .map_or(response.body.len(), |cut| cut.min(response.body.len()));
    let Some(pause) = response.pause else {
        return stream.write_all(&response.body[..end]);
    };
    for byte in &response.body[..end] {
        stream.write_all(&[*byte])?;
        std::thread::sleep(pause);
    }
    Ok(())
}
