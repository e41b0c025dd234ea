//! `triad ps`: shows the models in the memory of a server.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use triad_model::environment;

use triad_console::output;

/// Maximum time until a server returns a response.
const TIME_OUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a response.
const MAX_BYTES: u64 = 1 << 20;

/// Show the models in the memory of a running server.
///
/// The environment variable TRIAD_API_KEY has the key of a server that wants one.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad ps
  triad ps --server 127.0.0.1:9000")]
pub struct Arguments {
    /// Address and port of the server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    server: String,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
}

/// Prints the models.
pub fn run(arguments: &Arguments) -> Result<()> {
    let models = ask(&arguments.server)?;
    if arguments.json {
        return output::json(&models);
    }
    let models = models["models"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| output::printable(value.as_str().unwrap_or_default()).into_owned();
    let row = |model: &Value| {
        vec![
            text(&model["name"]),
            output::bytes(model["size"].as_u64().unwrap_or(0)),
            model["context_length"].as_u64().unwrap_or(0).to_string(),
            text(&model["expires_at"]),
        ]
    };
    let rows: Vec<_> = models.iter().map(row).collect();
    output::text(&output::table(
        &["name", "memory", "context", "until"],
        1,
        &rows,
    ))
}

/// Returns the response of `GET /api/ps`.
fn ask(server: &str) -> Result<Value> {
    let addresses = server.to_socket_addrs().with_context(|| {
        format!("--server {server}: expected an address and a port, such as 127.0.0.1:8080")
    })?;
    // A name may have an address that the server does not listen at.
    let mut streams =
        addresses.filter_map(|address| TcpStream::connect_timeout(&address, TIME_OUT).ok());
    let mut stream = streams
        .next()
        .with_context(|| format!("there is no server at {server}; triad serve starts one"))?;
    stream.set_read_timeout(Some(TIME_OUT))?;
    let key = environment::text("TRIAD_API_KEY")?;
    let is_sent = |key: &String| key.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        key.as_ref().is_none_or(is_sent),
        "TRIAD_API_KEY: expected letters, digits and signs of ASCII without spaces"
    );
    let key = key.map_or_else(String::new, |key| {
        format!("Authorization: Bearer {key}\r\n")
    });
    write!(
        stream,
        "GET /api/ps HTTP/1.0\r\nHost: {server}\r\n{key}Connection: close\r\n\r\n"
    )?;
    let mut bytes = Vec::new();
    stream
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{server} returned no response"))?;
    read(server, &String::from_utf8_lossy(&bytes))
}

/// Reads a response of a server.
fn read(server: &str, answer: &str) -> Result<Value> {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("{server} returned no response of HTTP: expected a server of Triad");
    };
    let status = head.split(' ').nth(1).unwrap_or_default();
    let value: Option<Value> = serde_json::from_str(body).ok();
    if let Some(error) = value.as_ref().and_then(|value| value["error"].as_str()) {
        bail!("{server}: {}", output::printable(error));
    }
    ensure!(
        status == "200",
        "{server} returned status {}",
        output::printable(status)
    );
    value.with_context(|| format!("{server} returned no JSON: expected a server of Triad"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_models_or_its_error() {
        let answer = |status: u32, body: &str| {
            read(
                "here:1",
                &format!("HTTP/1.0 {status} X\r\na: b\r\n\r\n{body}"),
            )
        };
        assert_eq!(
            answer(200, r#"{"models": []}"#).unwrap()["models"],
            Value::Array(Vec::new())
        );
        let refused = answer(401, r#"{"error": "the key is wrong"}"#).unwrap_err();
        assert_eq!(refused.to_string(), "here:1: the key is wrong");
        assert!(
            answer(404, "x")
                .unwrap_err()
                .to_string()
                .contains("status 404")
        );
        assert!(answer(200, "x").is_err() && read("here:1", "SSH-2.0").is_err());
    }
}
