//! `triad run`: answers one prompt, or holds a conversation ([`terminal`]).

mod conversation;
mod form;
mod sampler;
mod speculate;
mod terminal;
mod turn;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::constraint::Form;
use triad_engine::speculate::Speculate;
use triad_engine::weights::ExpertUse;
use triad_engine::{
    Adapters, Cancel, Engine, EngineOptions, Event, Finish, GenerateOptions, Generation, Model,
    Session, SessionOptions,
};
use triad_frontend::machine::{self, Resident};
use triad_frontend::pictures;
use triad_frontend::{answer, chat};
use triad_hetero::{HeteroEngine, HeteroOptions, execution};
use triad_model::tokenizer::Special;
use triad_pictures::Processor;
use triad_plan::schedule::Policy;

use crate::adapters::{self, ScaledPath};
use crate::prompt::PromptArguments;
use form::FormArguments;
use sampler::SamplerArguments;
use speculate::Proposer;
use triad_console::arguments::{self, FloatArguments, KvArgument, ModelArguments};
use triad_console::executed::{self, Executed};
use triad_console::experts;
use triad_console::failure::run_error;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::output;
use triad_console::processors::{self, ProcessorArguments};
use triad_console::progress::{self, Shown};
use triad_console::vision::VisionArguments;
use turn::{Image, Prompt, Turn};

/// The default context of a conversation, in tokens, if the model has as much.
const CHAT_CONTEXT: usize = 4096;

/// Run a model: answer one prompt, or chat.
///
/// A model file is prepared once; the package is kept in the cache. Without -p and -f the prompt is read from standard
/// input; at a terminal a conversation begins. The answer goes to standard output. A last line on standard error
/// reports the speed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad run -p 'Why is the sky blue?'
  triad run                                         chat: /help lists the commands
  triad run model.gguf                              chat with another model
  triad run -m model.gguf -f prompt.txt -n 100
  triad run -m hf:Qwen/Qwen2.5-0.5B-Instruct --temperature 0.7 --top-p 0.9 --seed 1
  triad run --session talk.json -p 'And at night?'  continues the conversation in the file
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
    #[arg(long, value_name = "N", default_value = "256", value_parser = arguments::tokens)]
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
    /// followed the same tokens earlier, a MODEL with the same tokenizer its likeliest tokens, `off` nothing; the
    /// answer stays the same
    #[arg(long, value_name = "lookup|off|MODEL", default_value = "lookup")]
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
    let prompt = arguments.prompt.read()?;
    arguments.several.check(arguments.float.float)?;
    ensure!(
        prompt.is_some() || !arguments.json,
        "--json needs a prompt: give one with -p, with -f, or on standard input"
    );
    let form = arguments.form.read()?;
    let model = arguments
        .model
        .load_for(arguments.float, Some(&arguments.vision))?;
    model.check_writes()?;
    model.tokenizer()?;
    let form = form.map(|form| form::compile(&model, form)).transpose()?;
    let adapters = adapters::open(&model, &arguments.lora)?;
    let speaker = Speaker {
        model,
        form,
        adapters,
        processor: OnceLock::new(),
        arguments,
    };
    match prompt {
        Some(prompt) => one_answer(&speaker, &prompt),
        None => terminal::run(&speaker),
    }
}

/// A model with the settings of its answers.
struct Speaker<'a> {
    model: Arc<Model>,
    /// The constraint that answers must match.
    form: Option<Arc<dyn Form>>,
    /// LoRA adapters that are added to the weights.
    adapters: Adapters,
    /// Opened for the first picture.
    processor: OnceLock<Processor>,
    arguments: &'a Arguments,
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
        let path = self.arguments.session.as_deref();
        let saved = path.map(|path| conversation::read_if_there(path, || self.processor()));
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
        self.arguments
            .session
            .as_deref()
            .map_or(Ok(()), |path| conversation::write(path, messages))
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

    /// Returns the tokens of a whole conversation; without a chat template, only of its last message.
    fn encode(&self, turns: &[Turn]) -> Result<Prompt> {
        let longest = self.model.description().context;
        let context = self.arguments.context.unwrap_or(longest).min(longest);
        let within = (context, &Cancel::new());
        if !self.chats() {
            let last = turns.last().map_or("", |turn| &turn.content);
            let tokens = chat::encode_text(&self.model, last, Special::AsText, within)?;
            return Ok(Prompt::from(tokens));
        }
        let keeps_letters = self.arguments.keep_letters;
        let processor = || self.processor();
        turn::encode(
            &self.model,
            self.name(),
            (turns, keeps_letters),
            processor,
            context,
        )
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

    /// Generates an answer, and prints it while it is generated, unless it is wanted as JSON. Ctrl-C ends it. Also
    /// returns the memory of the process after the prompt.
    fn answer(
        &self,
        (session, speculate): (&mut Session, Option<&Speculate>),
        prompt: Prompt,
    ) -> Result<(Generation, Option<Resident>)> {
        let options = GenerateOptions {
            max_tokens: Some(self.arguments.max_tokens),
            sampler: self.arguments.sampler.options(&self.model),
            stop: self.arguments.stop.clone(),
            speculate: speculate.cloned(),
            form: self.form.clone(),
            ..GenerateOptions::default()
        };
        let cancel = Cancel::new();
        let on_ctrl_c = cancel.clone();
        let _guard = on_interrupt(move || on_ctrl_c.cancel());
        let prompt = {
            let Prompt { places, pictures } = prompt;
            let _spinner =
                (!pictures.is_empty()).then(|| progress::spinner("looking at the picture"));
            places.hold(session, &pictures, &cancel)?
        };
        let mut bar: Option<Shown> = None;
        let mut behind_prompt = None;
        let answer = answer::stream(session, &prompt, &options, &cancel, &mut |event| {
            match event {
                Event::Prefill { done, total } if done < total => {
                    bar.get_or_insert_with(|| progress::tokens("reading the prompt", total))
                        .set(done);
                }
                Event::Prefill { .. } => drop(bar.take()),
                // The first token: all logits of the prompt are computed, and nothing is decoded yet.
                Event::Token { .. } => behind_prompt = behind_prompt.or_else(machine::resident),
                Event::Text(_) if self.arguments.json => {}
                Event::Text(text) => output::answer(text)?,
            }
            Ok(())
        });
        Ok((
            answer.map_err(|error| run_error(error, self.name()))?,
            behind_prompt,
        ))
    }
}

/// The output of `run --json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    prompt_tokens: usize,
    #[serde(flatten)]
    answer: &'a Generation,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    /// The share of proposed tokens that were accepted, and the speedup over decoding token by token, if tokens were
    /// proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    acceptance: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation_gain: Option<f64>,
    peak_resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expert_use: Option<ExpertUse>,
    /// The memory after the prompt, where several processors ran it and the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_behind_prompt: Option<Resident>,
    /// The schedule of the prompt, where several processors ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    executed: Option<Executed>,
}

fn one_answer(speaker: &Speaker, text: &str) -> Result<()> {
    speaker.note_limits();
    let several = &speaker.arguments.several;
    let timeline = several.timeline_file()?;
    let mut messages = speaker.beginning()?;
    let mut question = Turn::new("user", text);
    question.images = speaker.images()?;
    messages.push(question);
    let prompt = speaker.encode(&messages)?;
    let prompt_tokens = prompt.len();
    let (mut session, speculate) =
        speaker.session(prompt_tokens.saturating_add(speaker.arguments.max_tokens))?;
    let (answer, behind_prompt) = speaker.answer((&mut session, speculate.as_ref()), prompt)?;
    let execution = execution(&session);
    several.write_timeline(timeline, execution, speaker.name())?;
    executed::note_failures(&session);
    executed::note_hot_rows(session.engine());
    if answer.finish != Finish::Cancelled {
        messages.push(Turn::new("assistant", &answer.text));
        speaker.keep(&messages)?;
    }
    if speaker.arguments.json {
        let timing = &answer.timing;
        let proposed = answer
            .speculation
            .filter(|speculation| speculation.proposed > 0);
        let gain = proposed
            .and_then(|proposed| proposed.gain(timing.decode_tokens, timing.decode_seconds));
        let executed = execution.zip(several.processors.as_ref());
        output::json(&Report {
            executed: executed.map(|(execution, processors)| {
                let executed = Executed::new(execution, processors, &several.devices);
                executed.with_hot_rows(session.engine(), None)
            }),
            resident_behind_prompt: behind_prompt.filter(|_| several.processors.is_some()),
            model: speaker.name(),
            prompt_tokens,
            answer: &answer,
            prefill_tokens_per_second: answer.timing.prefill_tokens_per_second(),
            decode_tokens_per_second: answer.timing.decode_tokens_per_second(),
            acceptance: proposed.map(|proposed| proposed.acceptance()),
            speculation_gain: gain,
            peak_resident_bytes: machine::peak_resident_bytes(),
            expert_use: session.engine().model().expert_use(),
        })?;
    } else {
        output::answer("\n")?;
        let experts = session.engine().model().expert_use();
        let experts = experts.map_or_else(String::new, |it| format!("; {}", experts::describe(it)));
        let devices = devices(session.engine(), behind_prompt);
        output::note(&(statistics(&answer) + &experts + &devices));
    }
    if answer.finish == Finish::Cancelled {
        return Err(Interrupted.into());
    }
    Ok(())
}

/// Describes the outlier weight cache on a device with its own memory, the memory of the process after the prompt,
/// the operators in fixed point, and the work of devices that count it.
fn devices(engine: &Engine, behind_prompt: Option<Resident>) -> String {
    let fixed =
        executed::fixed_point(engine).map_or_else(String::new, |fixed| format!("; {fixed}"));
    let of_devices = fixed + &executed::work(engine);
    let usage = HeteroEngine::of(engine).and_then(|engine| engine.hot_rows());
    let Some(usage) = usage else {
        return of_devices;
    };
    let after_prompt = behind_prompt.map(|resident| {
        format!(
            ", memory after the prompt {}",
            output::bytes(resident.bytes)
        )
    });
    format!(
        "; {}{}{of_devices}",
        executed::hot_rows(&usage),
        after_prompt.unwrap_or_default()
    )
}

/// Describes the speed of an answer in one line.
fn statistics(answer: &Generation) -> String {
    let timing = &answer.timing;
    let end = match answer.finish {
        Finish::EndToken | Finish::StopString => "",
        Finish::Length => "; ended at the limit of -n tokens",
        Finish::ContextFull => "; ended since the context is full",
        Finish::Cancelled => "; interrupted",
    };
    format!(
        "prefill {:.1} tokens/s ({} tokens), decode {:.1} tokens/s ({} tokens{}), first token after {:.2} s, peak memory {}{end}",
        timing.prefill_tokens_per_second(),
        timing.prefill_tokens,
        timing.decode_tokens_per_second(),
        timing.decode_tokens,
        speculate::statistics(answer),
        timing.time_to_first_token_seconds,
        output::known_bytes(machine::peak_resident_bytes()),
    )
}
