//! Options of a server: addresses, access and limits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::uri::Authority;
use triad_frontend::pressure::PressureFiles;
use triad_grammar::Checker;

use crate::host_tools::ToolHost;
use crate::image_host::ImageHost;
use crate::library::ModelLibrary;

/// Options of a server. By default it listens only on this machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port. 0 selects a free one.
    pub port: u16,
    /// The API keys. Every request must have one of them. If empty, requests need no key.
    pub api_keys: Vec<String>,
    /// A key that is valid only for `/metrics`. Without it, `/metrics` accepts the server's API key. If the server has
    /// several keys that don't share prompts, `/metrics` is then refused.
    pub metrics_key: Option<String>,
    /// Whether all keys share cached prompts and saved sessions. The number of cached tokens and the response time then
    /// reveal to each client, token by token, how the prompts of other clients begin.
    pub shares_prompts: bool,
    /// Whether the server may listen on a non-loopback address without a key.
    pub allows_no_key: bool,
    /// Host names that requests on a loopback address may have in addition to those of this machine, as for a proxy.
    pub allowed_hosts: Vec<String>,
    /// Whether a server of one model refuses requests that name another model. One whose clients may fetch models does so,
    /// too.
    pub strict_models: bool,
    /// The origins that CORS allows, such as `https://example.org`, or `*` for all.
    pub cors: Vec<String>,
    /// The memory limit of all loaded models in bytes. Idle models are unloaded to make room for others.
    pub model_bytes: u64,
    /// The time after which a model without requests gives the memory of kept prompts back to the system. `None` keeps
    /// it.
    pub idle_time: Option<Duration>,
    /// The bytes of keys and values that such a model keeps: the beginnings of the latest prompts.
    pub idle_bytes: usize,
    /// The time after which a model without requests leaves the memory, unless a request sets another one. `None` keeps it
    /// until another model needs the memory.
    pub keep_alive: Option<Duration>,
    /// The files in which the system reports that memory is short. Kept prompts are then given back, and, if that is not
    /// enough, idle models leave the memory.
    pub pressure_files: PressureFiles,
    /// The maximum number of completions that a model computes concurrently.
    pub parallel: usize,
    /// The maximum number of waiting requests per model. Further requests are refused.
    pub queue: usize,
    /// The maximum number of connections. One address may have at most half of those that other addresses leave.
    pub connections: usize,
    /// The maximum size of a request body in bytes.
    pub body_bytes: usize,
    /// The maximum number of pictures in a conversation.
    pub max_images: usize,
    /// The maximum number of patches of all pictures in a conversation: what their encoder computes.
    pub max_image_patches: usize,
    /// The memory limit in bytes of pictures that are decoded or wait for their encoder. Requests wait for it.
    pub image_bytes: usize,
    /// The hosts from which pictures are fetched whose URL is in a request. By default there are none.
    pub image_hosts: Vec<ImageHost>,
    /// Whether names of control tokens in request texts are tokenized as plain text, unless a request asks for the
    /// tokens. Otherwise they become control tokens, as in llama.cpp's server, and a text can end its own turn of a
    /// conversation.
    pub keeps_letters: bool,
    /// The maximum memory of all request bodies in bytes, including their parsed values. A client may use at most half
    /// of what other clients leave.
    pub bodies_bytes: usize,
    /// The folder of saved sessions. Without it, sessions can't be saved.
    pub sessions: Option<PathBuf>,
    /// The maximum size of an owner's saved sessions in bytes. A session beyond it replaces the oldest one.
    pub session_bytes: u64,
    /// The memory of all responses and conversations that later requests refer to, in bytes. Each key has an equal part.
    pub stored_bytes: usize,
    /// The time for which such a response is kept after its last use.
    pub stored_time: Duration,
    /// The timeout for a new connection to send its first byte, for a request's head after its first byte, and for a
    /// stalled body.
    pub head_time_out: Duration,
    /// The timeout for a client to send a whole request, or to read a part of a response.
    pub client_time_out: Duration,
    /// The program that first compiles each schema, expression and grammar of a request in a separate process: `triad
    /// grammar-check`, which `triad serve` always sets. Without it, as in a server that is embedded in another program,
    /// a compilation is abandoned after ten seconds, but its thread continues and its memory has no limit. Clients must
    /// then be trusted.
    pub grammar_checker: Option<Checker>,
    /// The tools that the web page may call on this machine. They need an API key.
    pub tools: Option<Arc<dyn ToolHost>>,
    /// The models that clients may fetch and delete. Without it, no client can. Models are for all keys, so keys must not
    /// be separate.
    pub library: Option<Arc<dyn ModelLibrary>>,
    /// The maximum time that running requests may take after the server is asked to stop.
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
            allowed_hosts: Vec::new(),
            strict_models: false,
            cors: Vec::new(),
            model_bytes: u64::MAX,
            idle_time: Some(Duration::from_secs(300)),
            idle_bytes: 64 << 20,
            keep_alive: None,
            pressure_files: PressureFiles::default(),
            parallel: 8,
            queue: 64,
            connections: 512,
            body_bytes: 8 << 20,
            max_images: 64,
            max_image_patches: 1 << 17,
            image_bytes: 1 << 30,
            image_hosts: Vec::new(),
            keeps_letters: false,
            bodies_bytes: 256 << 20,
            sessions: None,
            session_bytes: 16 << 30,
            stored_bytes: 64 << 20,
            stored_time: Duration::from_secs(3600),
            head_time_out: Duration::from_secs(5),
            grammar_checker: None,
            tools: None,
            library: None,
            client_time_out: Duration::from_secs(30),
            shutdown_time_out: Duration::from_secs(10),
        }
    }
}

impl ServerOptions {
    /// Checks that clients may fetch and delete models.
    ///
    /// # Errors
    /// If other machines or pages could do so without a key, or one key could take models from another.
    pub fn check_pulls(&self) -> Result<(), StartError> {
        // A proxy on this machine serves other machines.
        let is_local = self.host.is_loopback() && self.allowed_hosts.is_empty();
        let is_for_all_pages = self.cors.iter().any(|origin| origin == "*");
        if (!is_local || is_for_all_pages) && self.api_keys.is_empty() {
            return Err(StartError::PullsWithoutKey);
        }
        if self.separates_keys() {
            return Err(StartError::PullsOfSeparateKeys);
        }
        Ok(())
    }

    /// Checks the options.
    ///
    /// # Errors
    /// If the server would be reachable from other machines without a key, and that is not allowed; or if an option is
    /// invalid.
    pub fn check(&self) -> Result<(), StartError> {
        if !self.host.is_loopback() && self.api_keys.is_empty() && !self.allows_no_key {
            return Err(StartError::NoKey { host: self.host });
        }
        // Header values must be visible ASCII.
        let is_key =
            |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.api_keys.iter().chain(&self.metrics_key).all(is_key) {
            return Err(StartError::Key);
        }
        if self.tools.is_some() && self.api_keys.is_empty() {
            return Err(StartError::ToolsWithoutKey);
        }
        if self.library.is_some() {
            self.check_pulls()?;
        }
        if let Some(origin) = self.cors.iter().find(|origin| !is_origin(origin)) {
            return Err(StartError::Origin {
                origin: origin.clone(),
            });
        }
        if let Some(host) = self.allowed_hosts.iter().find(|host| !is_host(host)) {
            return Err(StartError::Host { host: host.clone() });
        }
        let is_metrics_key = |key: &String| self.metrics_key.as_ref() == Some(key);
        if self.separates_keys() && self.api_keys.iter().any(is_metrics_key) {
            return Err(StartError::MetricsKey);
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

    /// Returns whether there are several keys whose prompts must stay separate.
    pub(crate) fn separates_keys(&self) -> bool {
        !self.shares_prompts && self.api_keys.iter().any(|key| *key != self.api_keys[0])
    }
}

/// Returns whether `origin` is `*` or `scheme://host`, with or without a port.
fn is_origin(origin: &str) -> bool {
    let host = origin.split_once("://").map(|(_, host)| host);
    let is_host = |host: &str| {
        !host.is_empty() && !host.contains('/') && host.bytes().all(|byte| byte.is_ascii_graphic())
    };
    origin == "*" || host.is_some_and(is_host)
}

/// Returns whether `host` is what a Host header may name, without a port.
fn is_host(host: &str) -> bool {
    let authority = host.parse::<Authority>();
    authority.is_ok_and(|authority| authority.host() == host) && !host.contains('*')
}

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server would be reachable from other machines without a key.
    #[error(
        "other machines can reach {host}, and the server has no API key: set one with --api-key, or allow requests without a key with \
         --no-key"
    )]
    NoKey {
        /// The address to listen on.
        host: IpAddr,
    },
    /// Tools that every program on this machine could call.
    #[error("tools of MCP servers need an API key: set one with --api-key or TRIAD_API_KEY")]
    ToolsWithoutKey,
    /// Models that every other machine, or every page in a browser, could fetch and delete.
    #[error(
        "clients that fetch and delete models (--allow-pull) need an API key if other machines or pages of all origins can reach \
         the server (--host, --allow-host, --cors '*'): set one with --api-key or TRIAD_API_KEY"
    )]
    PullsWithoutKey,
    /// Models that one key could take from another.
    #[error(
        "models are for all keys: clients may fetch and delete them (--allow-pull) with one key, or with --share-prompts"
    )]
    PullsOfSeparateKeys,
    /// A key that can't be sent in a header.
    #[error(
        "an API key is empty or contains characters other than visible ASCII: expected letters, digits and signs"
    )]
    Key,
    /// An invalid CORS origin.
    #[error(
        "{origin} is not an origin: expected scheme://host, such as http://localhost:3000, or *"
    )]
    Origin {
        /// The given value.
        origin: String,
    },
    /// A name that no Host header has.
    #[error(
        "{host} is not a host (--allow-host): expected a name or an address without a port, such as example.org or [::1]"
    )]
    Host {
        /// The given value.
        host: String,
    },
    /// A key for metrics with which prompts of one of several keys can be computed, too.
    #[error(
        "--metrics-key is one of several API keys, which may not see the metrics of the others: expected a key of its own"
    )]
    MetricsKey,
    /// A number that must not be 0.
    #[error("{name} is 0, expected at least 1")]
    Zero {
        /// The option's name.
        name: &'static str,
    },
    /// Two models with the same name.
    #[error("two models are called {name}: expected names that differ (--alias)")]
    Name {
        /// The name of both models.
        name: String,
    },
    /// A model that exceeds the memory limit.
    #[error("{name} takes {bytes} bytes of memory, but models may take {most} (--model-memory)")]
    Memory {
        /// The model's name.
        name: String,
        /// The memory that it needs.
        bytes: u64,
        /// The limit of all models together.
        most: u64,
    },
    /// The first model can't be loaded.
    #[error("{name} can't be loaded")]
    Load {
        /// The model's name.
        name: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address is in use, or does not belong to this machine.
    #[error(
        "cannot listen on {address}: expected an address of this machine with a port that is not in use (--port)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The server's threads could not be started.
    #[error("cannot start the server's threads")]
    Threads {
        /// The cause.
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

    #[test]
    fn a_host_is_a_name_or_an_address_without_a_port() {
        let hosts = |host: &str| checked(|options| options.allowed_hosts = vec![host.into()]);
        for host in [
            "", "http://x", "x:80", "x/", "a@x", "*", "*.x", "a b", "::1",
        ] {
            assert!(hosts(host).unwrap_err().contains("--allow-host"), "{host}");
        }
        for host in ["x", "example.org", "my_proxy", "10.0.0.1", "[::1]"] {
            hosts(host).unwrap();
        }
    }

    #[test]
    fn the_key_for_metrics_is_none_of_several_keys() {
        let with = |keys: &[&str], shares| {
            checked(|options| {
                options.api_keys = keys.iter().map(|key| (*key).to_owned()).collect();
                (options.metrics_key, options.shares_prompts) = (Some("b".into()), shares);
            })
        };
        assert!(
            with(&["a", "b"], false)
                .unwrap_err()
                .contains("--metrics-key")
        );
        for (keys, shares) in [
            (&["a", "c"][..], false),
            (&["b"], false),
            (&["a", "b"], true),
            (&[], false),
        ] {
            with(keys, shares).unwrap();
        }
    }
}
