//! The answer to one prompt, and its figures.

use anyhow::Result;
use serde::Serialize;
use triad_engine::weights::ExpertUse;
use triad_engine::{Engine, Finish, Generation};
use triad_frontend::machine::{self, Resident};
use triad_hetero::{HeteroEngine, execution};

use super::tools::Called;
use super::turn::Turn;
use super::{Answered, Speaker, speculate};
use crate::first_run;
use triad_console::encoded;
use triad_console::executed::{self, Executed};
use triad_console::interrupt::Interrupted;
use triad_console::{experts, output};

/// The output of `run --json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    /// The arithmetic that computed the answer: `w8a8` or `w4a16` of a package, or `as stored` of a model file.
    arithmetic: &'static str,
    prompt_tokens: usize,
    /// Calls of tools before the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Called>,
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
    resident_after_prompt: Option<Resident>,
    /// The schedule of the prompt, where several processors ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    executed: Option<Executed>,
}

/// Answers one prompt and prints the answer with its figures.
pub fn run(speaker: &Speaker, text: &str) -> Result<()> {
    speaker.note_limits();
    let several = &speaker.arguments.several;
    let timeline = several.timeline_file()?;
    let mut messages = speaker.beginning()?;
    let mut question = Turn::new("user", text);
    question.images = speaker.images()?;
    messages.push(question);
    let needed = speaker.encode(&messages)?.len();
    let needed = needed.saturating_add(speaker.arguments.max_tokens);
    // Results of tools come to the prompt.
    let needed = match speaker.tools {
        Some(_) => needed.saturating_add(speaker.chat_context()),
        None => needed,
    };
    let (mut session, speculate) = speaker.session(needed)?;
    let of_session = (&mut session, speculate.as_ref());
    let Answered {
        generation: answer,
        prompt_tokens,
        text,
        after_prompt,
        called,
    } = speaker.answer_with_tools(of_session, &mut messages)?;
    let execution = execution(&session);
    let views = encoded::take_views(session.engine());
    several.write_timeline(timeline, (execution, &views), speaker.name())?;
    encoded::note_views(&views);
    executed::note_failures(&session);
    executed::note_outlier_cache(session.engine());
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
                executed.with_outlier_cache(session.engine(), None)
            }),
            resident_after_prompt: after_prompt.filter(|_| several.processors.is_some()),
            model: speaker.name(),
            arithmetic: first_run::arithmetic(&speaker.model),
            prompt_tokens,
            tool_calls: called,
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
        let devices = devices(session.engine(), after_prompt);
        output::note(&(statistics(&answer) + &experts + &devices));
    }
    if answer.finish == Finish::Cancelled {
        return Err(Interrupted.into());
    }
    // The answer is printed by now: a session that cannot be written does not lose it.
    messages.push(Turn::new("assistant", text));
    speaker.keep(&messages)
}

/// Describes the outlier weight cache on a device with its own memory, the memory of the process after the prompt,
/// the operators in fixed point, and the work of devices that count it.
pub fn devices(engine: &Engine, after_prompt: Option<Resident>) -> String {
    let fixed =
        executed::fixed_point(engine).map_or_else(String::new, |fixed| format!("; {fixed}"));
    let of_devices = fixed + &executed::work(engine);
    let usage = HeteroEngine::from_engine(engine).and_then(|engine| engine.outlier_cache());
    let Some(usage) = usage else {
        return of_devices;
    };
    let after_prompt = after_prompt.map(|resident| {
        format!(
            ", memory after the prompt {}",
            output::bytes(resident.bytes)
        )
    });
    format!(
        "; {}{}{of_devices}",
        executed::outlier_cache(&usage),
        after_prompt.unwrap_or_default()
    )
}

/// Describes the speed of an answer in one line.
pub fn statistics(answer: &Generation) -> String {
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
