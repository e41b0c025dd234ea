//! `triad serve`: models over HTTP.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use triad_engine::{EngineOptions, SessionOptions, memory};
use triad_frontend::{answer, machine, models};
use triad_model::description::ModelDescription;
use triad_model::fetch;
use triad_plan::schedule::Policy;
use triad_server::{Checker, HostedModel, LoadedModel, ServerOptions, Shutdown};

use crate::adapters;
use crate::commands::grammar_check;
use crate::named_adapters::{self, NamedPath};
use triad_console::arguments::{self, FloatArguments, KvArgument, ModelArgument, ThreadArguments};
use triad_console::interrupt::on_interrupt;
use triad_console::processors::{self, ProcessorArguments};
use triad_console::{output, preparing, progress};

/// Context of an answer with its prompt, unless the model was made for less or another one is given.
const CONTEXT: usize = 8192;
/// The share of the available memory that keys and values may take, unless told.
const KV_SHARE: u64 = 2;
/// The share of the available memory, in percent, that models with their keys and values may take, unless told.
const MODEL_SHARE: u64 = 80;

/// Serve models over HTTP, in the form of OpenAI's API.
///
/// Listens on this machine alone unless another address is given. Answers of several clients are computed at once, and
/// prompts with one key that begin alike share what is computed of them. Ctrl-C ends the server: answers that are on their way may
/// go on for a few seconds. Of several models, the first is loaded at once, each other one when it is asked for; where
/// memory is short, those go that were not used the longest.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad serve                                       the default model, at http://127.0.0.1:8080
  triad serve -m model.gguf --port 9000 --parallel 16
  triad serve -m smollm2-135m -m large.gguf --alias small --alias large --model-memory 8
  triad serve --host 0.0.0.0 --api-key \"$KEY\"       for others on the network
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'")]
pub struct Arguments {
    /// The path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`; may be given
    /// several times
    #[arg(short, long, value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    model: Vec<String>,
    #[command(flatten)]
    threads: ThreadArguments,
    #[command(flatten)]
    float: FloatArguments,
    /// A LoRA adapter that requests may ask for by NAME: a GGUF file or a folder as PEFT writes it; may be given several times
    #[arg(long, value_name = "NAME=PATH")]
    lora: Vec<NamedPath>,
    /// What clients call a model, in the order of -m [default: as -m names it, of a path the last part]
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// GiB that models, with their keys and values, may take together [default: 80 % of the memory that is free]
    #[arg(long, value_name = "GIB", value_parser = arguments::gibibytes)]
    model_memory: Option<usize>,
    /// The address to listen on; another than this machine's own needs --api-key or --no-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// A key of which requests must have one; may be given several times. The environment variable TRIAD_API_KEY has
    /// one, too, which does not show in the list of processes
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// Let everybody in who reaches the address
    #[arg(long, conflicts_with = "api_key")]
    no_key: bool,
    /// The key of /metrics, and of nothing else; a server with several keys has no metrics without it. The environment
    /// variable TRIAD_METRICS_KEY has one, too
    #[arg(long, value_name = "KEY")]
    metrics_key: Option<String>,
    /// Let keys find what was computed of each other's prompts, and each other's saved sessions. It gives prompts away:
    /// from the number of cached tokens a client can recover how prompts of others begin, token by token
    #[arg(long)]
    share_prompts: bool,
    /// Let pages of this origin use the server, such as http://localhost:3000, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Answers that are computed at once, at most
    #[arg(long, value_name = "N", default_value = "8", value_parser = arguments::sequences)]
    parallel: usize,
    /// Requests that wait for their turn, at most; others are refused (429)
    #[arg(long, value_name = "N", default_value = "64", value_parser = arguments::count)]
    queue: usize,
    /// GiB for keys and values of all answers and of prompts that are kept, of each model [default: for --parallel whole contexts,
    /// but no more than half of the memory that is free]
    #[arg(long, value_name = "GIB", value_parser = arguments::gibibytes)]
    kv_memory: Option<usize>,
    /// Tokens of a prompt and its answer together, at most [default: 8192, or what the model was made for]
    #[arg(long, value_name = "N", value_parser = arguments::tokens)]
    context: Option<usize>,
    /// Tokens of prompts that go through the model at once
    #[arg(long, value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Keep names of control tokens in texts of requests, such as <|im_end|>, letters, unless a request asks for the tokens: else
    /// they are these tokens, and a text may end its own turn
    #[arg(long)]
    keep_letters: bool,
    /// Let clients keep what was computed of prompts in files of this folder
    #[arg(long, value_name = "FOLDER")]
    sessions: Option<PathBuf>,
    /// GiB of these files for each key, at most: a further session replaces the oldest of its key
    #[arg(long, value_name = "GIB", default_value = "16", value_parser = arguments::gibibytes)]
    session_storage: usize,
    /// Seconds that a client may take to send a request or to read a part of an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    client_timeout: u64,
    // Last, since its heading holds for all that follows.
    #[command(flatten)]
    several: ProcessorArguments,
    /// What decides which part of a prompt is next: in-order, fifo, npu-first, paper, critical-path, planned
    #[arg(long, value_name = "P", default_value = Policy::default().name(), value_parser = processors::policy,
          requires = "processors")]
    policy: Policy,
}

impl Arguments {
    fn server_options(&self) -> Result<ServerOptions> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut api_keys = self.api_key.clone();
        if !self.no_key {
            api_keys.extend(
                std::env::var("TRIAD_API_KEY")
                    .ok()
                    .filter(|key| !key.is_empty()),
            );
        }
        let metrics_key = std::env::var("TRIAD_METRICS_KEY")
            .ok()
            .filter(|key| !key.is_empty());
        Ok(ServerOptions {
            host: self.host,
            port: self.port,
            api_keys,
            metrics_key: self.metrics_key.clone().or(metrics_key),
            shares_prompts: self.share_prompts,
            allows_no_key: self.no_key,
            cors: self.cors.clone(),
            model_bytes: self
                .model_memory
                .map_or_else(default_model_memory, |bytes| bytes as u64),
            parallel: self.parallel,
            queue: self.queue,
            keeps_letters: self.keep_letters,
            sessions: self.sessions.clone(),
            session_bytes: self.session_storage as u64,
            client_time_out: Duration::from_secs(self.client_timeout),
            grammar_checker: Some(Checker::new(program, [grammar_check::NAME])),
            ..ServerOptions::default()
        })
    }

    /// What clients call the model at `index`.
    fn name(&self, index: usize) -> String {
        let given = &self.model[index];
        let last = given
            .rsplit(['/', '\\'])
            .find(|part| !part.is_empty())
            .unwrap_or(given);
        self.alias
            .get(index)
            .map_or(last, String::as_str)
            .to_owned()
    }

    /// Bytes for keys and values.
    fn kv_memory(&self, description: &ModelDescription, context: usize) -> usize {
        let of_one =
            memory::of_session(description, 0, context, self.chunk, self.kv.format()).kv_cache;
        self.kv_memory.unwrap_or_else(|| {
            default_kv_memory(of_one, self.parallel, machine::available_memory())
        })
    }
}

/// A share of what is free.
fn default_model_memory() -> u64 {
    machine::available_memory().map_or(u64::MAX, |bytes| bytes / 100 * MODEL_SHARE)
}

/// For `parallel` whole contexts, each of `of_one` bytes, as far as a share of the `available` memory goes; for one in
/// any case.
fn default_kv_memory(of_one: usize, parallel: usize, available: Option<u64>) -> usize {
    let all = of_one.saturating_mul(parallel);
    let most = available.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes / KV_SHARE).unwrap_or(usize::MAX)
    });
    all.min(most).max(of_one)
}

/// A model as it is found, prepared and described, before it is loaded.
struct Found {
    path: PathBuf,
    name: String,
    context: usize,
    kv_memory: usize,
}

impl Found {
    /// Fetches and prepares the model at `index` where that has to be, and reads its header.
    fn find(arguments: &Arguments, index: usize) -> Result<(Self, u64)> {
        let given = ModelArgument {
            model: arguments.model[index].clone(),
        };
        let path = given.path()?;
        let threads = arguments.threads.chosen();
        let path = if arguments.float.float {
            path
        } else {
            preparing::package_of(&path, &given.model, threads)?
        };
        let description = models::description(&path, &mut progress::checking(&path))?;
        let context = arguments
            .context
            .unwrap_or(CONTEXT.min(description.context));
        let kv_memory = arguments.kv_memory(&description, context);
        let session = memory::of_session(
            &description,
            0,
            context,
            arguments.chunk,
            arguments.kv.format(),
        );
        let bytes = models::weight_bytes(&path)? + (kv_memory + session.activations) as u64;
        Ok((
            Self {
                path,
                name: arguments.name(index),
                context,
                kv_memory,
            },
            bytes,
        ))
    }

    fn load(&self, arguments: &Arguments) -> Result<LoadedModel> {
        let Self {
            path,
            name,
            context,
            kv_memory,
        } = self;
        let model = Arc::new(arguments::load(
            path,
            name,
            arguments.threads.chosen(),
            arguments.float.block_arithmetic(),
        )?);
        model.tokenizer()?;
        if model.chat_template().is_none() {
            output::note(&format!(
                "note: {name} has no chat template; it continues the last message of a chat as plain text"
            ));
        }
        let ProcessorArguments {
            processors,
            devices,
            chunks_in_flight,
            ..
        } = &arguments.several;
        let options = EngineOptions {
            session: SessionOptions {
                context: *context,
                chunk: arguments.chunk,
                kv_format: arguments.kv.format(),
            },
            kv_memory: Some(*kv_memory),
            policy: arguments.policy,
            chunks_in_flight: *chunks_in_flight,
            ..EngineOptions::default()
        };
        let adapters = named_adapters::open(&model, &arguments.lora)?;
        let engine = match processors {
            Some(processors) => processors.engine(devices, &model, options)?,
            None => answer::engine(&model, options, &mut |_, _| {})?,
        };
        if !adapters.is_empty() {
            adapters::note_processors(&engine);
        }
        Ok(LoadedModel { engine, adapters })
    }
}

/// Serves until Ctrl-C.
pub fn run(arguments: Arguments) -> Result<()> {
    let options = arguments.server_options()?;
    options.check()?;
    if let Some(folder) = &arguments.sessions {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    arguments.several.check(arguments.float.float)?;
    ensure!(
        arguments.several.timeline.is_none(),
        "--timeline is of one prompt: expected it with triad run"
    );
    let (given, names) = (arguments.model.len(), arguments.alias.len());
    ensure!(
        names <= given,
        "--alias has {names} names, but -m {given} models: expected at most one name for each"
    );
    ensure!(
        arguments.lora.is_empty() || given == 1,
        "--lora is for one model, but -m has {given}: expected a server of its own for a model with adapters"
    );
    let arguments = Arc::new(arguments);
    let hosted = |index| {
        let (found, bytes) = Found::find(&arguments, index)?;
        let arguments = Arc::clone(&arguments);
        let name = found.name.clone();
        let load = move || found.load(&arguments).map_err(Into::into);
        Ok(HostedModel {
            name,
            bytes,
            load: Box::new(load),
        })
    };
    let models = (0..given).map(hosted).collect::<Result<Vec<_>>>()?;
    let names = models
        .iter()
        .map(|model| &*model.name)
        .collect::<Vec<_>>()
        .join(", ");
    let shutdown = Shutdown::default();
    let on_ctrl_c = shutdown.clone();
    let _guard = on_interrupt(move || {
        output::note("ending; Ctrl-C again ends at once");
        on_ctrl_c.begin();
    });
    let ready = |address| {
        output::note(&format!(
            "{names} at http://{address}; Ctrl-C ends the server"
        ));
    };
    triad_server::serve(options, models, &shutdown, ready)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_take_half_of_what_is_free_unless_one_context_needs_more() {
        assert_eq!(default_kv_memory(100, 8, None), 800);
        assert_eq!(default_kv_memory(100, 8, Some(1000)), 500);
        assert_eq!(default_kv_memory(100, 8, Some(100)), 100);
    }
}
