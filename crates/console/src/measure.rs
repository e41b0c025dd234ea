//! Measurement of prefill and decode times.

use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use triad_engine::{
    Cancel, Engine, EngineOptions, Error, KvFormat, Model, Session, SessionOptions,
};
use triad_frontend::energy::{EnergyMeter, EnergySource};
use triad_frontend::machine::Resident;
use triad_hetero::{Execution, HeteroEngine, Operations, execution};
use triad_kernels::attention::PAGE;
use triad_kernels::timing::median;

use crate::executed::Executed;
use crate::failure::run_error;
use crate::interrupt::{Interrupted, on_interrupt};
use crate::processors::Processors;
use crate::progress;

/// The tests to run with each number of threads.
pub struct Plan {
    /// Tokens of each prefill test.
    pub prompts: Vec<usize>,
    /// Tokens of each decode test.
    pub decodes: Vec<usize>,
    /// Context lengths in tokens at which each decode test starts.
    pub contexts: Vec<usize>,
    /// Numbers of sequences that decode together.
    pub sequences: Vec<usize>,
    /// Number of measured runs of each test.
    pub repeat: usize,
    /// Chunk length in tokens.
    pub chunk: usize,
    /// Number format of the KV cache.
    pub kv_format: KvFormat,
}

/// The phase that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Prefill of a prompt.
    Prefill,
    /// Decode of an answer.
    Decode,
}

impl Test {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// The result of one test with one number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Number of compute threads.
    pub threads: usize,
    /// Prefill or decode.
    pub test: Test,
    /// Tokens of the prompt or the answer.
    pub tokens: usize,
    /// Tokens of context before the first measured token.
    pub context: usize,
    /// Number of sequences. Each runs `tokens` tokens, and one step computes a token of each.
    pub sequences: usize,
    /// Tokens per second of all sequences together.
    pub tokens_per_second: Spread,
    /// The processors that ran the test, if they were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processors: Option<String>,
    /// The execution of the median run, for a prefill on several processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// The expected time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Memory of the process after the last prompt, if several processors ran it and the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<Resident>,
    /// Energy of all programs during the runs, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// Bytes that the CPU copied to and from a GPU that runs the model, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
}

/// Energy of a test: means of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// The part of the machine that was measured.
    pub source: &'static str,
    /// Joules of a run: of a prompt, or of an answer.
    pub joules: f64,
    /// Joules of a token.
    pub joules_per_token: f64,
}

impl Energy {
    /// Returns the means of `runs` runs of `tokens` tokens that used `joules` together.
    pub fn new(source: EnergySource, joules: f64, runs: usize, tokens: usize) -> Self {
        let joules = joules / runs as f64;
        Self {
            source: source.name(),
            joules,
            joules_per_token: joules / tokens as f64,
        }
    }
}

/// Bytes that the CPU copied in a test: means of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Copied {
    /// Bytes of a run to the GPU.
    pub written: f64,
    /// Bytes of a run from the GPU.
    pub read: f64,
    /// Bytes of a token, both ways.
    pub per_token: f64,
}

/// The counters of energy and copies before the runs of a test.
struct Counters {
    meter: Option<EnergyMeter>,
    joules: Option<f64>,
    operations: Option<Operations>,
}

impl Counters {
    fn read(engine: &Engine) -> Self {
        let meter = EnergyMeter::find();
        let joules = meter.as_ref().and_then(EnergyMeter::joules);
        Self {
            meter,
            joules,
            operations: operations(engine),
        }
    }

    /// Returns what was used since then by `runs` runs of `tokens` tokens.
    fn used(self, engine: &Engine, runs: usize, tokens: usize) -> (Option<Energy>, Option<Copied>) {
        let [of_run, of_token] = [runs, runs * tokens].map(|count| (count as f64).recip());
        let meter = self.meter.as_ref();
        let used = meter.and_then(|meter| Some((meter, meter.joules()? - self.joules?)));
        let energy = used.map(|(meter, joules)| Energy::new(meter.source(), joules, runs, tokens));
        let copied = self
            .operations
            .zip(operations(engine))
            .map(|(before, now)| {
                let written = (now.bytes_written - before.bytes_written) as f64;
                let read = (now.bytes_read - before.bytes_read) as f64;
                Copied {
                    written: written * of_run,
                    read: read * of_run,
                    per_token: (written + read) * of_token,
                }
            });
        (energy, copied)
    }
}

fn operations(engine: &Engine) -> Option<Operations> {
    HeteroEngine::from_engine(engine)?.operations()
}

/// The source of the expected times of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredBy {
    /// Measurements of `triad profile` in the package.
    Package,
    /// One run in order and one out of order in each round.
    Rounds,
    /// The unmeasured runs at the start.
    FirstRuns,
}

/// The expected time of a prefill if each task takes the time that it took in other runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Expected {
    /// The runs that were used.
    pub by: MeasuredBy,
    /// Simulated seconds of the schedule of the median run.
    pub simulated_seconds: f64,
    /// Simulated seconds of the fastest run.
    pub fastest_seconds: f64,
    /// Simulated seconds of the slowest run.
    pub slowest_seconds: f64,
    /// Seconds of these runs outside of tasks, such as for the logits of the last token.
    pub outside_seconds: f64,
    /// Lower bound in seconds of all schedules of these tasks, if each takes the time that it took in the median run.
    pub bound_seconds: f64,
}

impl Expected {
    /// Returns the seconds of the whole prefill.
    pub fn seconds(&self) -> f64 {
        self.simulated_seconds + self.outside_seconds
    }

    /// Returns the relative error of the expected time: expected / measured − 1.
    pub fn error(&self, measured: &Measurement) -> f64 {
        self.seconds() * measured.tokens_per_second.median / measured.tokens as f64 - 1.0
    }
}

/// The spread of the measured runs of one test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The lowest value.
    pub min: f64,
    /// The median; for an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The highest value.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    pub fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            min: values[0],
            median: median(&values),
            max: values[values.len() - 1],
        }
    }
}

/// A prepared test that can be repeated.
pub struct Tested {
    test: Test,
    tokens: usize,
    context: usize,
    sessions: Vec<Session>,
}

impl Tested {
    /// Runs the test once and returns its seconds.
    pub fn run(&mut self, cancel: &Cancel) -> Result<f64, Error> {
        let Self {
            test,
            tokens,
            context,
            sessions,
        } = self;
        sessions
            .iter_mut()
            .for_each(|session| session.truncate(*context));
        match test {
            Test::Prefill => prefill(&mut sessions[0], *tokens, cancel),
            Test::Decode => decode(sessions, *tokens, cancel),
        }
    }
}

impl Plan {
    /// Returns the plan for rounds of the longest prompt, and of the longest answer after it.
    pub fn in_rounds(self) -> Self {
        let longest = |lengths: &[usize]| lengths.iter().copied().max();
        let [prompts, decodes] =
            [&self.prompts, &self.decodes].map(|lengths| longest(lengths).into_iter().collect());
        Self {
            contexts: longest(&self.prompts).into_iter().collect(),
            prompts,
            decodes,
            ..self
        }
    }

    /// Returns the context length in tokens that the longest test needs.
    pub fn context(&self) -> usize {
        self.tests()
            .map(|(_, tokens, context, _)| tokens.saturating_add(context))
            .max()
            .unwrap_or(1)
    }

    /// Returns each test with its number of tokens, of context tokens and of sequences.
    pub fn tests(&self) -> impl Iterator<Item = (Test, usize, usize, usize)> {
        let prefills = self
            .prompts
            .iter()
            .map(|tokens| (Test::Prefill, *tokens, 0, 1));
        let decodes = self.decodes.iter().flat_map(move |tokens| {
            self.contexts.iter().flat_map(move |context| {
                self.sequences
                    .iter()
                    .map(move |sequences| (Test::Decode, *tokens, *context, *sequences))
            })
        });
        prefills.chain(decodes)
    }

    /// Returns the options of an engine that can run all tests.
    pub fn options(&self, model: &Model) -> EngineOptions {
        let session = SessionOptions {
            context: self.context(),
            chunk: self.chunk,
            kv_format: self.kv_format,
        };
        let most = self.sequences.iter().copied().max().unwrap_or(1);
        let page = model
            .description()
            .kv_bytes_per_token(|head_dim| self.kv_format.bytes(head_dim))
            * PAGE;
        // Decode needs `most` sessions, prefill one.
        let kv_memory = Some((most + 1) * session.context.div_ceil(PAGE) * page);
        EngineOptions {
            kv_memory,
            most_rows: most,
            session,
            ..EngineOptions::default()
        }
    }

    /// Prepares a test and runs it once without measuring, so that pages and caches are warm.
    pub fn begin(
        &self,
        engine: &Engine,
        (test, tokens, context, sequences): (Test, usize, usize, usize),
        cancel: &Cancel,
    ) -> Result<Tested, Error> {
        let mut sessions: Vec<_> = (0..sequences).map(|_| engine.session()).collect();
        if context > 0 {
            sessions
                .iter_mut()
                .try_for_each(|session| prefill(session, context, cancel).map(|_| ()))?;
        }
        let mut tested = Tested {
            test,
            tokens,
            context,
            sessions,
        };
        tested.run(cancel)?;
        Ok(tested)
    }

    /// Measures a test on `threads` threads, or on these processors if they are given.
    pub fn measure(
        &self,
        engine: &Engine,
        (test, tokens, context, sequences): (Test, usize, usize, usize),
        (threads, processors): (usize, Option<&Processors>),
        cancel: &Cancel,
    ) -> Result<(Measurement, Option<Execution>), Error> {
        let on = processors.map_or_else(|| format!("{threads} threads"), Processors::to_string);
        let _spinner = progress::spinner(label((test, tokens, context, sequences), &on));
        let mut tested = self.begin(engine, (test, tokens, context, sequences), cancel)?;
        let rate = |seconds: f64| (tokens * sequences) as f64 / seconds;
        let counters = Counters::read(engine);
        let rates = (0..self.repeat)
            .map(|_| Ok(rate(tested.run(cancel)?)))
            .collect::<Result<_, Error>>()?;
        let (energy, copied) = counters.used(engine, self.repeat, tokens * sequences);
        let (tokens_per_second, processors) =
            (Spread::new(rates), processors.map(Processors::to_string));
        let measured = Measurement {
            threads,
            test,
            tokens,
            context,
            sequences,
            tokens_per_second,
            processors,
            executed: None,
            expected: None,
            resident: None,
            energy,
            copied,
        };
        Ok((measured, execution(&tested.sessions[0]).cloned()))
    }

    /// Runs all tests on an engine of a model called `name` with `threads` compute threads. Also returns the execution
    /// of the last prompt.
    pub fn run(
        &self,
        engine: &Engine,
        threads: usize,
        name: &str,
    ) -> Result<(Vec<Measurement>, Option<Execution>)> {
        let mut latest = None;
        let cancel = Cancel::new();
        let on_ctrl_c = cancel.clone();
        let _guard = on_interrupt(move || on_ctrl_c.cancel());
        let measure = |test| {
            let (measured, execution) = self.measure(engine, test, (threads, None), &cancel)?;
            latest = execution.or_else(|| latest.take());
            Ok(measured)
        };
        let measured: Result<_, Error> = self.tests().map(measure).collect();
        Ok((measured.map_err(|error| failed(error, name))?, latest))
    }
}

/// Returns the lengths without zeros, which mean no test.
pub fn above_zero(lengths: &[usize]) -> Vec<usize> {
    lengths
        .iter()
        .copied()
        .filter(|length| *length > 0)
        .collect()
}

/// Returns a progress message for a test.
pub fn label((test, tokens, _, sequences): (Test, usize, usize, usize), on: &str) -> String {
    let of = if sequences > 1 {
        format!(" in each of {sequences} sequences")
    } else {
        String::new()
    };
    format!("measuring {test:?} of {tokens} tokens{of} on {on}")
}

/// Converts the error of a test of the model called `name`.
pub fn failed(error: Error, name: &str) -> anyhow::Error {
    match error {
        Error::Cancelled => Interrupted.into(),
        error => run_error(error, name),
    }
}

/// Returns meaningless token ids, spread over the vocabulary and the same in each run.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (0..count)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect()
}

/// Runs a prompt of `count` tokens and returns its seconds.
pub fn prefill(session: &mut Session, count: usize, cancel: &Cancel) -> Result<f64, Error> {
    let prompt = tokens(count, session.model().description().vocab);
    let start = Instant::now();
    session.prefill(&prompt, cancel, |_| {})?;
    Ok(start.elapsed().as_secs_f64())
}

/// Decodes `count` tokens one by one, in all sessions together, and returns the seconds.
pub fn decode(sessions: &mut [Session], count: usize, cancel: &Cancel) -> Result<f64, Error> {
    let answer = tokens(count, sessions[0].model().description().vocab);
    let start = Instant::now();
    for token in answer.chunks(1) {
        if let [session] = sessions {
            session.decode(token[0], cancel)?;
        } else {
            Session::decode_together(sessions.iter_mut().map(|session| (session, token)), cancel)?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(
            Spread::new(vec![3.0, 1.0, 2.0]),
            Spread {
                min: 1.0,
                median: 2.0,
                max: 3.0
            }
        );
        assert_eq!(
            Spread::new(vec![4.0, 1.0, 2.0, 3.0]),
            Spread {
                min: 1.0,
                median: 2.5,
                max: 4.0
            }
        );
        assert_eq!(
            Spread::new(vec![5.0]),
            Spread {
                min: 5.0,
                median: 5.0,
                max: 5.0
            }
        );
    }

    #[test]
    fn the_context_holds_the_longest_test() {
        let plan = |prompts: &[usize], decodes: &[usize]| {
            let [prompts, decodes] = [prompts, decodes].map(<[usize]>::to_vec);
            Plan {
                prompts,
                decodes,
                contexts: vec![0, 64],
                sequences: vec![1],
                repeat: 1,
                chunk: 1,
                kv_format: KvFormat::default(),
            }
            .context()
        };
        assert_eq!(plan(&[64, 256], &[64]), 256);
        assert_eq!(plan(&[64], &[64]), 128);
        assert_eq!(plan(&[], &[usize::MAX]), usize::MAX);
    }
}
