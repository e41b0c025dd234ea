//! The arguments of `triad serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use triad_engine::memory;
use triad_frontend::machine;
use triad_model::description::ModelDescription;
use triad_model::environment;
use triad_model::fetch;
use triad_plan::schedule::Policy;
use triad_server::{Checker, ImageHost, ServerOptions};

use crate::commands::grammar_check;
use crate::named_adapters::NamedPath;
use triad_console::arguments::{self, FloatArguments, KvArgument, ThreadArguments};
use triad_console::priority::NiceArgument;
use triad_console::processors::{self, ProcessorArguments};
use triad_console::vision::VisionArguments;

/// The default context of an answer with its prompt, in tokens, if the model has as much.
pub(super) const CONTEXT: usize = 8192;
/// By default, keys and values may take the available memory divided by this.
const KV_SHARE: u64 = 2;
/// By default, models with their keys and values may take this share of the available memory, in percent.
const MODEL_SHARE: u64 = 80;

/// Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama.
///
/// The server listens on this machine alone, unless another address is given. Answers for several clients are computed
/// concurrently. Prompts that have the same key and the same beginning share the computation of that beginning. Ctrl-C
/// ends the server; answers in progress may continue for a few seconds. Of several models, the first is loaded at the
/// start, the others when a request names them. Where memory is short, the least recently used models are unloaded.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad serve                                       the default model, at http://127.0.0.1:8080
  triad serve -m model.gguf --port 9000 --parallel 16
  triad serve -m smollm2-135m -m large.gguf --alias small --alias large --model-memory 8
  triad serve --host 0.0.0.0 --api-key \"$KEY\"       for others on the network
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'")]
pub struct Arguments {
    /// Path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`; may be given
    /// several times
    #[arg(short, long, value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    pub(super) model: Vec<String>,
    #[command(flatten)]
    pub(super) threads: ThreadArguments,
    #[command(flatten)]
    pub(super) nice: NiceArgument,
    #[command(flatten)]
    pub(super) float: FloatArguments,
    #[command(flatten)]
    pub(super) vision: VisionArguments,
    /// LoRA adapter that requests may choose by NAME: a GGUF file or a PEFT folder; may be given several times
    #[arg(long, value_name = "NAME=PATH")]
    pub(super) lora: Vec<NamedPath>,
    /// Name of a model for clients, or several with commas between them, in the order of -m [default: the name given
    /// with -m; for a path, its last part]
    #[arg(long, value_name = "NAME[,NAME…]")]
    pub(super) alias: Vec<String>,
    /// Refuse requests that name a model that is not served; by default, a server of one model answers for any name
    #[arg(long)]
    pub(super) strict_models: bool,
    /// Memory that models, with their keys and values, may take together, in GiB [default: 80 % of the available
    /// memory]
    #[arg(long, value_name = "GIB", value_parser = arguments::gibibytes)]
    pub(super) model_memory: Option<usize>,
    /// Address to listen on; an address other than this machine's own needs --api-key or --no-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(super) port: u16,
    /// Key that requests may authenticate with; may be given several times. The environment variable TRIAD_API_KEY adds
    /// one that is not visible in the list of processes
    #[arg(long, value_name = "KEY")]
    pub(super) api_key: Vec<String>,
    /// Accept every request that reaches the address, without a key
    #[arg(long, conflicts_with = "api_key")]
    pub(super) no_key: bool,
    /// Key for /metrics and for nothing else; a server with several keys has no metrics without it. The environment
    /// variable TRIAD_METRICS_KEY has the same effect
    #[arg(long, value_name = "KEY")]
    pub(super) metrics_key: Option<String>,
    /// Share the computed beginnings of prompts, and saved sessions, between keys. This gives prompts away: from the
    /// number of cached tokens a client can recover the beginnings of other clients' prompts, token by token
    #[arg(long)]
    pub(super) share_prompts: bool,
    /// Host name that requests may have on an address of this machine, such as the name of a proxy; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<String>,
    /// Origin whose pages may use the server, such as http://localhost:3000, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub(super) cors: Vec<String>,
    /// Maximum number of answers that are computed concurrently
    #[arg(long, value_name = "N", default_value = "8", value_parser = arguments::sequences)]
    pub(super) parallel: usize,
    /// Maximum number of requests in the queue; more are refused (429)
    #[arg(long, value_name = "N", default_value = "64", value_parser = arguments::count)]
    pub(super) queue: usize,
    /// Memory of each model for the keys and values of answers and of kept prompts, in GiB [default: enough for
    /// --parallel full contexts, at most half of the available memory]
    #[arg(long, value_name = "GIB", value_parser = arguments::gibibytes)]
    pub(super) kv_memory: Option<usize>,
    /// Time without requests after which a model gives the memory of kept prompts back to the system, except for 64 MiB:
    /// 90s, 5m, 1h, or `never`
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time_or_never)]
    pub(super) idle_time: Limited,
    /// Time without requests after which a model leaves the memory, unless a request sets another one with `keep_alive`:
    /// 90s, 5m, 1h, or `never`; the next request loads it again
    #[arg(long, value_name = "TIME", default_value = "never", value_parser = time_or_never)]
    pub(super) keep_alive: Limited,
    /// Maximum tokens of a prompt and its answer together [default: 8192, or the model's context if less]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    pub(super) context: Option<usize>,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    pub(super) chunk: usize,
    #[command(flatten)]
    pub(super) kv: KvArgument,
    /// Maximum number of pictures in a conversation
    #[arg(long, value_name = "N", default_value = "64", value_parser = arguments::count)]
    pub(super) max_images: usize,
    /// Maximum number of patches of all pictures in a conversation: what their encoder computes
    #[arg(long, value_name = "N", default_value = "131072", value_parser = arguments::count)]
    pub(super) max_image_patches: usize,
    /// Memory for pictures that are decoded or wait for their encoder, in GiB; requests wait for it
    #[arg(long, value_name = "GIB", default_value = "1", value_parser = arguments::gibibytes)]
    pub(super) image_memory: usize,
    /// Hosts from which pictures are fetched whose http: or https: URL is in a request, with commas between them; a port
    /// other than 80 or 443 is named too, and so is an address of this machine or of a private network: localhost:8000
    #[arg(long, value_name = "HOST[:PORT],…", value_delimiter = ',')]
    pub(super) allow_image_urls: Vec<ImageHost>,
    /// Treat names of control tokens in requests, such as <|im_end|>, as plain text unless a request asks for the
    /// tokens; otherwise they are these tokens, and a text may end its own turn
    #[arg(long)]
    pub(super) keep_letters: bool,
    /// Offer the tools of an MCP server, as `triad run --mcp` names it, to the page at /; may be given several times. Needs
    /// a key, with which every client can call them, and implies --keep-letters, since results are texts of others
    #[arg(long, value_name = "SERVER")]
    pub(super) mcp: Vec<String>,
    /// Let clients and the page at / fetch models into the cache and delete them there, by /api/pull and /api/delete; all
    /// models of the cache are served then, but clients change none of the repositories of -m. Needs a key if other machines or pages of all origins can reach the server, and
    /// one key alone
    #[arg(long, conflicts_with_all = ["lora", "mmproj", "processors"])]
    pub(super) allow_pull: bool,
    /// Share of the cache's disk, in percent, that fetches of clients leave free (--allow-pull)
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = clap::value_parser!(u8).range(0..=99), requires = "allow_pull")]
    pub(super) keep_free: u8,
    /// Use HF_TOKEN for fetches of clients (--allow-pull), which may then fetch and read each private and gated model that
    /// the token may read; by default, their fetches have no token
    #[arg(long, requires = "allow_pull")]
    pub(super) pull_token: bool,
    /// Let clients save the keys and values of prompts in files in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) sessions: Option<PathBuf>,
    /// Maximum storage for these files for each key, in GiB: a further session replaces the oldest one of its key
    #[arg(long, value_name = "GIB", default_value = "16", value_parser = arguments::gibibytes)]
    pub(super) session_storage: usize,
    /// Maximum seconds for a client to send a request or to read a part of an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) client_timeout: u64,
    // The arguments come last, since their heading holds for all arguments after it.
    #[command(flatten)]
    pub(super) several: ProcessorArguments,
    /// Policy that schedules the parts of a prompt: in-order, fifo, npu-first, paper, critical-path, planned
    #[arg(long, value_name = "P", default_value = Policy::default().name(), value_parser = processors::policy,
          requires = "processors")]
    pub(super) policy: Policy,
}

/// A time, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limited(pub(super) Option<Duration>);

/// Parses a time, or `never`.
fn time_or_never(text: &str) -> Result<Limited, String> {
    if text.trim() == "never" {
        return Ok(Limited(None));
    }
    let time = arguments::duration(text);
    time.map(|time| Limited(Some(time)))
        .map_err(|error| format!("{error}, or `never`"))
}

impl Arguments {
    pub(super) fn server_options(&self) -> Result<ServerOptions> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut api_keys = self.api_key.clone();
        if !self.no_key {
            api_keys.extend(environment::text("TRIAD_API_KEY")?);
        }
        let metrics_key = environment::text("TRIAD_METRICS_KEY")?;
        Ok(ServerOptions {
            host: self.host,
            port: self.port,
            api_keys,
            metrics_key: self.metrics_key.clone().or(metrics_key),
            shares_prompts: self.share_prompts,
            allows_no_key: self.no_key,
            allowed_hosts: self.allow_host.clone(),
            strict_models: self.strict_models,
            cors: self.cors.clone(),
            model_bytes: self
                .model_memory
                .map_or_else(default_model_memory, |bytes| bytes as u64),
            idle_time: self.idle_time.0,
            keep_alive: self.keep_alive.0,
            parallel: self.parallel,
            queue: self.queue,
            max_images: self.max_images,
            max_image_patches: self.max_image_patches,
            image_bytes: self.image_memory,
            image_hosts: self.allow_image_urls.clone(),
            keeps_letters: self.keep_letters || !self.mcp.is_empty(),
            sessions: self.sessions.clone(),
            session_bytes: self.session_storage as u64,
            client_time_out: Duration::from_secs(self.client_timeout),
            grammar_checker: Some(Checker::new(program, [grammar_check::NAME])),
            ..ServerOptions::default()
        })
    }

    /// Returns the names of the model at `index` for clients.
    pub(super) fn names(&self, index: usize) -> Vec<String> {
        let given = fetch::untagged(&self.model[index]);
        let last = given
            .rsplit(['/', '\\'])
            .find(|part| !part.is_empty())
            .unwrap_or(given);
        let names = self.alias.get(index).map_or(last, String::as_str);
        names
            .split(',')
            .map(|name| name.trim().to_owned())
            .collect()
    }

    /// Returns the bytes for the keys and values of a model.
    pub(super) fn kv_memory(&self, description: &ModelDescription, context: usize) -> usize {
        let of_one =
            memory::of_session(description, 0, context, self.chunk, self.kv.format()).kv_cache;
        self.kv_memory.unwrap_or_else(|| {
            default_kv_memory(of_one, self.parallel, machine::available_memory())
        })
    }
}

/// Returns a share of the available memory, in bytes.
pub(super) fn default_model_memory() -> u64 {
    machine::available_memory().map_or(u64::MAX, |bytes| bytes / 100 * MODEL_SHARE)
}

/// Returns the bytes of `parallel` full contexts of `of_one` bytes each, limited to a share of the `available` memory,
/// but at least one context.
fn default_kv_memory(of_one: usize, parallel: usize, available: Option<u64>) -> usize {
    let all = of_one.saturating_mul(parallel);
    let most = available.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes / KV_SHARE).unwrap_or(usize::MAX)
    });
    all.min(most).max(of_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_never() {
        assert_eq!(time_or_never("never"), Ok(Limited(None)));
        let minutes = Limited(Some(Duration::from_secs(300)));
        assert_eq!(time_or_never("5m"), Ok(minutes));
        assert!(time_or_never("5").unwrap_err().ends_with(", or `never`"));
    }

    #[test]
    fn keys_and_values_take_half_of_what_is_free_unless_one_context_needs_more() {
        assert_eq!(default_kv_memory(100, 8, None), 800);
        assert_eq!(default_kv_memory(100, 8, Some(1000)), 500);
        assert_eq!(default_kv_memory(100, 8, Some(100)), 100);
    }
}
