//! Answers to the last message of a conversation: generated, printed, and continued after calls of tools.

use std::io;

use anyhow::Result;
use triad_engine::speculate::Speculate;
use triad_engine::{Cancel, Event, Finish, GenerateOptions, Generation, Session};
use triad_frontend::answer;
use triad_frontend::machine::{self, Resident};
use triad_frontend::tool_calls::{AnswerDelta, AnswerForm, AnswerReader, ToolCall, ToolFormat};

use super::tools;
use super::turn::{Prompt, Turn};
use super::{Answered, Speaker};
use triad_console::failure::run_error;
use triad_console::interrupt::on_interrupt;
use triad_console::output;
use triad_console::progress::{self, Shown};

impl Speaker<'_> {
    /// Answers the last message. Makes the calls of tools that the model writes, adds them with their results to
    /// `messages`, and lets the model go on. The answer itself is not added.
    pub fn answer_with_tools(
        &self,
        (session, speculate): (&mut Session, Option<&Speculate>),
        messages: &mut Vec<Turn>,
    ) -> Result<Answered> {
        let mut called = Vec::new();
        for round in 0.. {
            let prompt = self.encode(messages)?;
            let prompt_tokens = prompt.len();
            let mut text = String::new();
            let mut calls = Vec::new();
            let (generation, after_prompt) =
                self.answer((session, speculate), prompt, &mut text, &mut calls)?;
            let is_last = round == tools::MAX_ROUNDS;
            if is_last && !calls.is_empty() {
                output::note(&format!(
                    "note: the answer ends after {round} rounds of calls: the model wanted more"
                ));
            }
            let tools = self
                .tools
                .as_ref()
                .filter(|_| !calls.is_empty() && !is_last);
            let Some(tools) = tools.filter(|_| generation.finish != Finish::Cancelled) else {
                return Ok(Answered {
                    generation,
                    prompt_tokens,
                    text,
                    after_prompt,
                    called,
                });
            };
            if !text.is_empty() && !self.arguments.json {
                output::answer("\n")?;
            }
            let calling = Turn::calling(text, &calls, messages.len());
            let mut results = Vec::new();
            let cancel = Cancel::new();
            let on_ctrl_c = cancel.clone();
            let _guard = on_interrupt(move || on_ctrl_c.cancel());
            for (index, call) in calls.iter().enumerate() {
                let result = if index < tools::MAX_CALLS {
                    let (result, record) = tools.call(call, &|| cancel.is_cancelled())?;
                    called.push(record);
                    result
                } else {
                    let most = tools::MAX_CALLS;
                    format!("error: not called, since there are more than {most} calls at once")
                };
                results.push(calling.result_of(index, result));
            }
            messages.push(calling);
            messages.extend(results);
        }
        unreachable!("the last round returns")
    }

    /// Generates an answer, and prints it while it is generated, unless it is wanted as JSON. Ctrl-C ends it. Adds its
    /// text to `text` and calls of tools to `calls`. Also returns the memory of the process after the prompt.
    fn answer(
        &self,
        (session, speculate): (&mut Session, Option<&Speculate>),
        prompt: Prompt,
        text: &mut String,
        calls: &mut Vec<ToolCall>,
    ) -> Result<(Generation, Option<Resident>)> {
        let (mut reader, spelled) = self.reader()?;
        let options = GenerateOptions {
            max_tokens: Some(self.arguments.max_tokens),
            sampler: self.arguments.sampler.options(&self.model),
            stop: self.arguments.stop.clone(),
            speculate: speculate.cloned(),
            constraint: self.constraint.clone(),
            spelled,
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
        let mut after_prompt = None;
        let answer = answer::stream(session, &prompt, &options, &cancel, &mut |event| {
            match event {
                Event::Prefill { done, total, .. } if done < total => {
                    bar.get_or_insert_with(|| progress::tokens("reading the prompt", total))
                        .set(done);
                }
                Event::Prefill { .. } => drop(bar.take()),
                // The first token: all logits of the prompt are computed, and nothing is decoded yet.
                Event::Token { .. } => after_prompt = after_prompt.or_else(machine::resident),
                Event::Text(piece) => match &mut reader {
                    Some(reader) => self.read(reader.push(piece), text, calls)?,
                    None => self.read(vec![AnswerDelta::Text(piece.to_owned())], text, calls)?,
                },
            }
            Ok(())
        });
        let answer = answer.map_err(|error| run_error(error, &self.computed()))?;
        if let Some(reader) = reader {
            self.read(reader.finish(), text, calls)?;
        }
        Ok((answer, after_prompt))
    }

    /// Returns what computes answers, for an error.
    fn computed(&self) -> String {
        if self.adapters.is_empty() {
            self.name().to_owned()
        } else {
            format!("{} with its --lora", self.name())
        }
    }

    /// Returns the reader of calls in an answer, if there are tools, and the control tokens that it needs in the text.
    fn reader(&self) -> Result<(Option<AnswerReader>, Vec<u32>)> {
        let Some(tools) = &self.tools else {
            return Ok((None, Vec::new()));
        };
        let (format, spelled) = ToolFormat::of_answers(&self.model)?;
        let reader = AnswerReader::with_tools(format, AnswerForm::Any, tools.tools());
        Ok((Some(reader), spelled))
    }

    /// Prints the text of an answer, and collects it and the calls.
    fn read(
        &self,
        deltas: Vec<AnswerDelta>,
        text: &mut String,
        calls: &mut Vec<ToolCall>,
    ) -> io::Result<()> {
        for delta in deltas {
            match delta {
                AnswerDelta::Text(piece) | AnswerDelta::Reasoning(piece) => {
                    text.push_str(&piece);
                    if !self.arguments.json {
                        output::answer(&piece)?;
                    }
                }
                AnswerDelta::Call(name) => calls.push(ToolCall {
                    name,
                    arguments: String::new(),
                }),
                AnswerDelta::Arguments(piece) => {
                    if let Some(call) = calls.last_mut() {
                        call.arguments.push_str(&piece);
                    }
                }
            }
        }
        Ok(())
    }
}
