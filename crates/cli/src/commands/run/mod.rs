//! `triad run`: answers one prompt ([`one_answer`]), or holds a conversation ([`terminal`]).

mod answering;
mod conversation;
mod form;
mod one_answer;
mod sampling;
mod speculate;
mod terminal;
mod tools;
mod turn;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use triad_engine::constraint::ConstraintFactory;
use triad_engine::speculate::Speculate;
use triad_engine::{
    Adapters, Cancel, EngineOptions, Generation, LoadOptions, Model, Session, SessionOptions,
};
use triad_frontend::machine::Resident;
use triad_frontend::pictures;
use triad_frontend::{answer, chat};
use triad_hetero::HeteroOptions;
use triad_model::tokenizer::EncodeOptions;
use triad_pictures::Processor;
use triad_plan::schedule::Policy;

use crate::adapters::{self, ScaledPath};
use crate::first_run::{Later, PreparationMode, RUN, Ready};
use crate::prompt::PromptArguments;
use conversation::SessionFile;
use form::FormArguments;
use sampling::SamplerArguments;
use speculate::Proposer;
use tools::{Called, ToolArguments, Tools};
use triad_console::arguments::{self, FloatArguments, KvArgument, ModelArguments};
use triad_console::output;
use triad_console::priority::NiceArgument;
use triad_console::processors::{self, ProcessorArguments};
use triad_console::vision::VisionArguments;
use turn::{Image, Prompt, Turn};

/// The default context of a conversation, in tokens, if the model has as much.
const CHAT_CONTEXT: usize = 4096;
/// The same for a conversation with tools, whose list and results are parts of the prompt.
const TOOL_CONTEXT: usize = 16_384;

/// Run a model: answer one prompt, or chat.
///
/// The first run of a model file answers from the file as it is. Its package is then prepared in the background for the
/// next run, once, and kept in the cache. With TRIAD_PREPARE=first it is prepared before the first answer. Without -p
/// and -f the prompt is read from standard input; at a terminal a conversation begins. The answer goes to standard
/// output. A last line on standard error reports the speed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad run -p 'Why is the sky blue?'
  triad run                                         chat: /help lists the commands
  triad run model.gguf                              chat with another model
  triad run -m model.gguf -f prompt.txt -n 100
  triad run -m hf:Qwen/Qwen2.5-0.5B-Instruct --temperature 0.7 --top-p 0.9 --seed 1
  triad run --session talk.json -p 'And at night?'  continues the conversation in the file
  triad run --mcp 'files=npx -y @modelcontextprotocol/server-filesystem .'   a chat that may read files
  git diff | triad run --system 'Summarize this change.'
  triad run --raw -p 'The capital of France is' -n 8 --stop . --json
  triad run -m large.gguf --speculate small.gguf -p 'Why is the sky blue?'
  triad run -p 'Name a city and its country.' --schema city.json
  triad run -p 'Is 7 a prime number?' --regex 'yes|no'
  triad run -p 'What is 2 + 3 * 4?' --grammar sum.lark
  triad run hf:HuggingFaceTB/SmolVLM-256M-Instruct --image screen.png -p 'Which button saves?'
  triad run -p 'Who are you?' --lora pirate.gguf --lora polite:0.5
  triad run -f long.txt --processors cpu=0,npu=1 --timeline run.json")]
pub struct Arguments {
    /// The model, as with -m
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    given: Option<String>,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    float: FloatArguments,
    #[command(flatten)]
    vision: VisionArguments,
    #[command(flatten)]
    prompt: PromptArguments,
    /// Maximum tokens of an answer
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value = "512", value_parser = arguments::count)]
    max_tokens: usize,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Context length: tokens of prompt and answer together; memory for all of them is allocated at the start [default:
    /// what prompt and -n need, 4096 in a chat; at most the model's own]
    #[arg(short, long, value_name = "N", value_parser = arguments::tokens)]
    context: Option<usize>,
    /// Instructions to the model, before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the conversation in this file, if the file exists, and write it there after each answer
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    session: Option<PathBuf>,
    /// Text that ends the answer and is not printed; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue the prompt as plain text, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Treat names of control tokens in texts, such as <|im_end|>, as plain text and not as these tokens
    #[arg(long, conflicts_with = "raw")]
    keep_letters: bool,
    /// Proposer of speculative decoding, which is used where measured times show a gain: `lookup` proposes what
    /// followed the same tokens earlier, `mtp` what the model's own head for more tokens predicts, `auto` the better of
    /// both, a MODEL with the same tokenizer its likeliest tokens, `off` nothing; the answer stays the same
    #[arg(long, value_name = "auto|lookup|mtp|off|MODEL", default_value = "auto")]
    speculate: Proposer,
    #[command(flatten)]
    form: FormArguments,
    /// LoRA adapter for the model, a GGUF file or a PEFT folder, with an optional factor; may be given several times
    #[arg(long, value_name = "PATH[:SCALE]")]
    lora: Vec<ScaledPath>,
    /// Picture for the message (PNG, JPEG, WebP, GIF or BMP); may be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    image: Vec<PathBuf>,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nice: NiceArgument,
    #[command(flatten)]
    tools: ToolArguments,
    // The sampler's arguments come last, since their heading holds for all arguments after it.
    #[command(flatten)]
    sampler: SamplerArguments,
    #[command(flatten)]
    several: ProcessorArguments,
    /// Policy that schedules the parts of a prompt: in-order, fifo, npu-first, paper, critical-path, planned
    #[arg(long, value_name = "P", default_value = Policy::default().name(), value_parser = processors::policy,
          requires = "processors")]
    policy: Policy,
}

/// Answers one prompt or starts a conversation.
pub fn run(mut arguments: Arguments) -> Result<()> {
    if let Some(given) = arguments.given.take() {
        arguments.model.name.model = given;
    }
    let arguments = &arguments;
    arguments.nice.apply()?;
    let prompt = arguments.prompt.read()?;
    arguments.several.check(arguments.float.float)?;
    ensure!(
        prompt.is_some() || !arguments.json,
        "--json needs a prompt: give one with -p, with -f, or on standard input"
    );
    let form = arguments.form.read()?;
    let (model, later) = load(arguments)?;
    model.check_writes()?;
    model.tokenizer()?;
    let constraint = form.map(|form| form::compile(&model, form)).transpose()?;
    let adapters = adapters::open(&model, &arguments.lora)?;
    let tools = tools::connect(
        &arguments.tools,
        (&model, &arguments.model.name.model),
        constraint.is_some(),
    )?;
    let speaker = Speaker {
        model,
        constraint,
        adapters,
        tools,
        processor: OnceLock::new(),
        session_file: arguments.session.as_deref().map(SessionFile::new),
        arguments,
    };
    match prompt {
        Some(prompt) => {
            one_answer::run(&speaker, &prompt)?;
            // The command ends here; the preparation goes on without it.
            let _ = later.and_then(|later| later.start());
            Ok(())
        }
        None => terminal::run(&speaker, later),
    }
}

/// Loads the model. If it has no package yet, it is loaded as it is stored, and its package is to be prepared later.
fn load(arguments: &Arguments) -> Result<(Arc<Model>, Option<Later>)> {
    let ModelArguments { name, threads } = &arguments.model;
    let needs_package = arguments.several.processors.is_some();
    let mode = PreparationMode::from(arguments.float.float, needs_package, PreparationMode::Later)?;
    threads.note_processors(needs_package);
    let given = name.path()?;
    arguments.float.check(&given)?;
    let vision = arguments.vision.encoder(&given);
    let Ready { path, later } = Ready::find(given, &name.model, threads, mode, RUN)?;
    let options = LoadOptions {
        vision,
        ..arguments.float.options(threads.chosen())
    };
    let model = arguments::load(&path, &name.model, &options)?;
    Ok((Arc::new(model), later))
}

/// A model with the settings of its answers.
struct Speaker<'a> {
    model: Arc<Model>,
    /// The constraint that answers must match.
    constraint: Option<Arc<dyn ConstraintFactory>>,
    /// LoRA adapters that are added to the weights.
    adapters: Adapters,
    /// Tools that the model may call.
    tools: Option<Tools>,
    /// Opened for the first picture.
    processor: OnceLock<Processor>,
    /// The file of `--session`.
    session_file: Option<SessionFile>,
    arguments: &'a Arguments,
}

/// An answer, after all calls of tools.
struct Answered {
    generation: Generation,
    /// The number of tokens of its last prompt.
    prompt_tokens: usize,
    /// Its text, without calls.
    text: String,
    /// The memory of the process after the prompt.
    after_prompt: Option<Resident>,
    /// The calls before it.
    called: Vec<Called>,
}

impl Speaker<'_> {
    fn name(&self) -> &str {
        &self.arguments.model.name.model
    }

    /// Returns whether prompts go through the chat template.
    fn chats(&self) -> bool {
        !self.arguments.raw && self.model.chat_template().is_some()
    }

    /// Prints notes where prompts are continued although --raw was not given, and of settings that are not followed.
    fn note_limits(&self) {
        arguments::note_settings(&self.model, &self.arguments.model.name.model);
        if !self.arguments.raw && !self.chats() {
            output::note(
                "note: this model has no chat template; it continues the prompt as plain text",
            );
        }
    }

    /// Returns the first messages of a conversation: the file of `--session`, if it exists, with `--system` in place of
    /// its own instructions.
    fn beginning(&self) -> Result<Vec<Turn>> {
        let saved = self.session_file.as_ref();
        let saved = saved.map(|file| file.read(|| self.processor()));
        let saved = saved.transpose()?.unwrap_or_default();
        let instructed = self.system();
        let replaced = instructed.is_some();
        let rest = saved
            .into_iter()
            .filter(|message| !(replaced && message.role == "system"));
        Ok(instructed.into_iter().chain(rest).collect())
    }

    /// Writes a conversation to the file of `--session`, if there is one.
    fn keep(&self, messages: &[Turn]) -> Result<()> {
        let file = self.session_file.as_ref();
        file.map_or(Ok(()), |file| file.write(messages))
    }

    /// Reads the conversation in the file at `path`.
    fn load(&self, path: &Path) -> Result<Vec<Turn>> {
        match self.session_file.as_ref().filter(|file| file.is_at(path)) {
            Some(file) => file.read(|| self.processor()),
            None => conversation::read(path, || self.processor()),
        }
    }

    /// Writes a conversation to the file at `path`.
    fn save(&self, path: &Path, messages: &[Turn]) -> Result<()> {
        let text = conversation::write(path, messages)?;
        if let Some(file) = &self.session_file {
            file.note(path, text);
        }
        Ok(())
    }

    /// Returns the message of `--system`, if it is given and the model has a chat template.
    fn system(&self) -> Option<Turn> {
        self.arguments
            .system
            .as_ref()
            .filter(|_| self.chats())
            .map(|text| Turn::new("system", text))
    }

    /// Returns the processor of the model's pictures.
    fn processor(&self) -> Result<&Processor> {
        if let Some(processor) = self.processor.get() {
            return Ok(processor);
        }
        let opened = pictures::processor(&self.model)?;
        Ok(self.processor.get_or_init(|| opened))
    }

    /// Reads the picture in the file at `path`.
    fn image(&self, path: &Path) -> Result<Image> {
        ensure!(
            self.chats(),
            "this model has no chat template, and so no places for pictures"
        );
        Image::read(self.processor()?, path)
    }

    /// Reads the pictures of `--image`.
    fn images(&self) -> Result<Vec<Image>> {
        let paths = self.arguments.image.iter();
        paths.map(|path| self.image(path)).collect()
    }

    /// Returns the prompt of a whole conversation; without a chat template, only of its last message.
    fn encode(&self, turns: &[Turn]) -> Result<Prompt> {
        let longest = self.model.description().context;
        let context = self.arguments.context.unwrap_or(longest).min(longest);
        if !self.chats() {
            let last = turns.last().map_or("", |turn| &turn.content);
            let within = (context, &Cancel::new());
            let tokens = chat::encode_text(&self.model, last, EncodeOptions::TEXT, within)?;
            return Ok(Prompt::from(tokens));
        }
        let tools = self.tools.as_ref().map_or(&[][..], Tools::tools);
        // Results of tools come from anywhere: one that names the end of a turn must not end it.
        let keeps_letters = self.arguments.keep_letters || self.tools.is_some();
        turn::encode(
            (&self.model, self.name()),
            (turns, tools, keeps_letters),
            || self.processor(),
            context,
        )
    }

    /// Returns the default context of a conversation.
    fn chat_context(&self) -> usize {
        match self.tools {
            Some(_) => TOOL_CONTEXT,
            None => CHAT_CONTEXT,
        }
    }

    /// Returns a session for a conversation, and its proposer of speculative decoding.
    fn session(&self, needed: usize) -> Result<(Session, Option<Speculate>)> {
        let longest = self.model.description().context;
        let context = self.arguments.context.unwrap_or(needed.min(longest));
        let options = SessionOptions {
            context,
            chunk: self.arguments.chunk,
            kv_format: self.arguments.kv.format(),
        };
        let ProcessorArguments {
            processors,
            devices,
            chunks_in_flight,
            ..
        } = &self.arguments.several;
        let (policy, chunks_in_flight) = (self.arguments.policy, *chunks_in_flight);
        let options = EngineOptions {
            session: options,
            ..EngineOptions::default()
        };
        let engine = match processors {
            Some(processors) => {
                let options = HeteroOptions {
                    engine: options,
                    policy,
                    chunks_in_flight,
                    ..HeteroOptions::default()
                };
                let engine = processors.engine(devices, &self.model, options)?;
                engine.engine().clone()
            }
            None => answer::engine(&self.model, &options)?,
        };
        let mut session = engine.session();
        if !self.adapters.is_empty() {
            adapters::note_processors(&engine);
            session.set_adapters(&self.adapters)?;
        }
        let Arguments {
            speculate,
            model,
            float,
            ..
        } = self.arguments;
        let speculate = speculate.options(model, *float, &session)?;
        Ok((session, speculate))
    }
}
