//! The argument `--speculate`.

use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use triad_engine::speculate::{Draft, Speculate, Speculation};
use triad_engine::{EngineOptions, Error, Generation, Model, Session, SessionOptions};
use triad_frontend::{answer, models};

use triad_console::arguments::{FloatArguments, ModelArguments};
use triad_console::progress;

/// The source of proposed tokens.
#[derive(Clone, Debug)]
pub enum Proposer {
    /// The head of the model, if it has one, and the tokens so far.
    Automatic,
    /// No tokens are proposed.
    Off,
    /// The head of the model that predicts one more token.
    Mtp,
    /// The tokens so far.
    Lookup,
    /// A draft model, by the name that the user gave.
    Draft(String),
}

impl FromStr for Proposer {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Automatic,
            "off" => Self::Off,
            "mtp" => Self::Mtp,
            "lookup" => Self::Lookup,
            model => Self::Draft(model.to_owned()),
        })
    }
}

impl Proposer {
    /// Returns the options of speculative decoding for answers of `session`. A draft model is prepared as the model is,
    /// unless `float` is given.
    pub fn options(
        &self,
        model: &ModelArguments,
        float: FloatArguments,
        session: &Session,
    ) -> Result<Option<Speculate>> {
        match self {
            Self::Automatic => Ok(Some(Speculate::automatic())),
            Self::Off => Ok(None),
            Self::Mtp => match session.no_head() {
                None => Ok(Some(Speculate::mtp())),
                Some(reason) => bail!("--speculate mtp: {reason}"),
            },
            Self::Lookup => Ok(Some(Speculate::lookup())),
            Self::Draft(name) => {
                // It need not have experts.
                let float = FloatArguments {
                    expert_memory: None,
                    ..float
                };
                let arguments = model.named(name);
                let cannot = || format!("{name} cannot propose tokens to {}", model.name.model);
                // Found out before the draft model is prepared, which may take minutes.
                if let Some(differs) = other_vocabulary(&arguments, session)? {
                    return Err(differs).with_context(cannot);
                }
                let draft = draft(&arguments.load_for(float, None)?, session);
                Ok(Some(Speculate::draft(draft.with_context(cannot)?)))
            }
        }
    }
}

/// Returns an error if a draft model has not as many tokens as the model of `session`.
fn other_vocabulary(draft: &ModelArguments, session: &Session) -> Result<Option<Error>> {
    let path = draft.name.path()?;
    let found = models::description(&path, &mut progress::checking(&path))?.vocab;
    let expected = session.model().description().vocab;
    let differs = || Error::Draft {
        found: format!("a vocabulary of {found} tokens"),
        expected: format!("one of {expected}"),
    };
    Ok((found != expected).then(differs))
}

fn draft(model: &Arc<Model>, session: &Session) -> Result<Draft> {
    let context = session.context().min(model.description().context);
    let options = SessionOptions {
        context,
        chunk: session.chunk(),
        kv_format: session.engine().kv_format(),
    };
    let engine = answer::engine(
        model,
        &EngineOptions {
            session: options,
            ..EngineOptions::default()
        },
    )?;
    Ok(Draft::new(engine.session(), session.model())?)
}

/// Describes how many proposed tokens were accepted, and the gain, for the line after an answer. Empty where no tokens
/// were proposed.
pub fn statistics(answer: &Generation) -> String {
    let Some(speculation) = answer
        .speculation
        .filter(|speculation| speculation.proposed > 0)
    else {
        return String::new();
    };
    let Speculation {
        proposed,
        accepted,
        steps,
        mtp_proposed,
        mtp_accepted,
        ..
    } = speculation;
    let gain = speculation.gain(answer.timing.decode_tokens, answer.timing.decode_seconds);
    let gain = gain.map_or_else(String::new, |gain| {
        format!(", {gain:.2} × as fast as token by token")
    });
    let of_head = match mtp_proposed {
        0 => String::new(),
        _ => format!(" ({mtp_accepted} of {mtp_proposed} by the model's MTP head)"),
    };
    format!(" in {steps} steps, {accepted} of {proposed} proposed tokens accepted{of_head}{gain}")
}
