//! How a server listens, and what it allows.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use triad_grammar::Checker;

/// What a server may be asked to be. The default listens on this machine alone.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 takes one that is free.
    pub port: u16,
    /// Keys of which every request has to have one; none lets everybody in.
    pub api_keys: Vec<String>,
    /// The key of `/metrics`, and of nothing else. Without it, `/metrics` takes the key of a server that has one key, and is
    /// refused where there are several that don't share prompts.
    pub metrics_key: Option<String>,
    /// Whether prompts with one key find what was computed of prompts with another, and its saved sessions. The number of
    /// cached tokens, and the time, then tell each client token by token how prompts of the others begin.
    pub shares_prompts: bool,
    /// Whether another address than this machine's own may be listened on without a key.
    pub allows_no_key: bool,
    /// Origins whose pages may use this server: `https://example.org`, or `*` for all.
    pub cors: Vec<String>,
    /// Memory that models may take together; those that are not used make room for others.
    pub model_bytes: u64,
    /// Answers that a model computes at once, at most.
    pub parallel: usize,
    /// Requests to a model that wait for their turn, at most; others are refused.
    pub queue: usize,
    /// Connections at once, at most; an address has at most half of those that the others leave.
    pub connections: usize,
    /// Bytes of the body of a request at most.
    pub body_bytes: usize,
    /// Whether names of control tokens in texts of requests stay letters, unless a request asks for the tokens. Else they are
    /// these tokens, as in llama.cpp's server, and a text may end its own turn of a conversation.
    pub keeps_letters: bool,
    /// Bytes that bodies of requests take together, with what is parsed of them, at most; a client has at most half of those
    /// that the others leave.
    pub bodies_bytes: usize,
    /// The folder of saved sessions; none are saved without.
    pub sessions: Option<PathBuf>,
    /// Bytes that the saved sessions of an owner take together, at most: a further one replaces the oldest.
    pub session_bytes: u64,
    /// How long the head of a request may take from its first byte, a connection may be there before it sends one, and the
    /// body of a request may stall.
    pub head_time_out: Duration,
    /// How long a client may take to send a request, or to read a part of an answer.
    pub client_time_out: Duration,
    /// The program that compiles each schema, expression and grammar of a request in a process of its own first: `triad
    /// grammar-check`, which `triad serve` always sets. Without one, as in a server that is part of another program, a compile
    /// has ten seconds, but its thread goes on, and its memory isn't bounded: then clients have to be trusted.
    pub grammar_checker: Option<Checker>,
    /// How long answers may go on once the server is asked to end.
    pub shutdown_time_out: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 8080,
            api_keys: Vec::new(),
            metrics_key: None,
            shares_prompts: false,
            allows_no_key: false,
            cors: Vec::new(),
            model_bytes: u64::MAX,
            parallel: 8,
            queue: 64,
            connections: 512,
            body_bytes: 8 << 20,
            keeps_letters: false,
            bodies_bytes: 256 << 20,
            sessions: None,
            session_bytes: 16 << 30,
            head_time_out: Duration::from_secs(5),
            grammar_checker: None,
            client_time_out: Duration::from_secs(30),
            shutdown_time_out: Duration::from_secs(10),
        }
    }
}

impl ServerOptions {
    /// # Errors
    /// If the server would be open to others without a key that was not asked for, or an option makes no sense.
    pub fn check(&self) -> Result<(), StartError> {
        if !self.host.is_loopback() && self.api_keys.is_empty() && !self.allows_no_key {
            return Err(StartError::NoKey { host: self.host });
        }
        // Visible ASCII, as it has to be in a header.
        let is_key =
            |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.api_keys.iter().chain(&self.metrics_key).all(is_key) {
            return Err(StartError::Key);
        }
        if let Some(origin) = self.cors.iter().find(|origin| !is_origin(origin)) {
            return Err(StartError::Origin {
                origin: origin.clone(),
            });
        }
        let least_one = [
            ("parallel", self.parallel),
            ("connections", self.connections),
        ];
        match least_one.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(StartError::Zero { name }),
            None => Ok(()),
        }
    }

    /// Whether there are several keys, none of which may learn what the others ask.
    pub(crate) fn separates_keys(&self) -> bool {
        !self.shares_prompts && self.api_keys.iter().any(|key| *key != self.api_keys[0])
    }
}

/// `scheme://host`, with a port or without, or `*`.
fn is_origin(origin: &str) -> bool {
    let host = origin.split_once("://").map(|(_, host)| host);
    let is_host = |host: &str| {
        !host.is_empty() && !host.contains('/') && host.bytes().all(|byte| byte.is_ascii_graphic())
    };
    origin == "*" || host.is_some_and(is_host)
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It would be open to others.
    #[error(
        "on {host} others can reach this server, and it has no key: give it one with --api-key, or let everybody in with \
         --no-key"
    )]
    NoKey {
        /// Where it would listen.
        host: IpAddr,
    },
    /// A key that no header can hold.
    #[error(
        "an API key is empty or holds other characters than visible ASCII: expected letters, digits and signs"
    )]
    Key,
    /// An origin that is none.
    #[error("{origin} is no origin: expected scheme://host, such as http://localhost:3000, or *")]
    Origin {
        /// What was given.
        origin: String,
    },
    /// A number that may not be 0.
    #[error("{name} is 0, expected at least 1")]
    Zero {
        /// Which one.
        name: &'static str,
    },
    /// Two models that clients could not tell apart.
    #[error("two models are called {name}: expected names that differ (--alias)")]
    Name {
        /// Of both.
        name: String,
    },
    /// A model that could never be loaded.
    #[error("{name} takes {bytes} bytes of memory, but models may take {most} (--model-memory)")]
    Memory {
        /// Of the model.
        name: String,
        /// That it takes.
        bytes: u64,
        /// That all models may take.
        most: u64,
    },
    /// The first model can't be loaded.
    #[error("{name} can't be loaded")]
    Load {
        /// Of the model.
        name: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address is taken, or is not this machine's.
    #[error(
        "cannot listen on {address}: expected an address of this machine with a port that nobody else uses (--port)"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The threads that serve could not be started.
    #[error("cannot start the threads that serve")]
    Threads {
        /// Why not.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut ServerOptions)) -> Result<(), String> {
        let mut options = ServerOptions::default();
        change(&mut options);
        options.check().map_err(|error| error.to_string())
    }

    #[test]
    fn another_address_needs_a_key_or_a_word() {
        let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        assert!(
            checked(|options| options.host = everywhere)
                .unwrap_err()
                .contains("--no-key")
        );
        checked(|options| (options.host, options.allows_no_key) = (everywhere, true)).unwrap();
        checked(|options| (options.host, options.api_keys) = (everywhere, vec!["key".into()]))
            .unwrap();
        checked(|options| options.host = "::1".parse().unwrap()).unwrap();
    }

    #[test]
    fn keys_and_origins_are_what_headers_hold() {
        for key in ["", "a b", "schlüssel"] {
            assert!(
                checked(|options| options.api_keys = vec![key.into()]).is_err(),
                "{key}"
            );
        }
        for origin in ["", "localhost", "http://", "http://a/b"] {
            assert!(
                checked(|options| options.cors = vec![origin.into()])
                    .unwrap_err()
                    .contains("origin"),
                "{origin}"
            );
        }
        checked(|options| options.cors = vec!["*".into(), "http://localhost:3000".into()]).unwrap();
    }
}
