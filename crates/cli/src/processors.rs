//! `--processors`: who runs a prompt, by which policy, and what is said about it.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use triad_engine::execute::{CostTable, Execution, Executor, ExecutorOptions, Loss};
use triad_engine::{Cores, Model, Session, Threads};
use triad_plan::schedule::Policy;
use triad_plan::timeline::{Label, Lane, Record, Source};

use crate::npu::{Npu, NpuArgument};
use crate::timeline_file::TimelineFile;
use crate::{inputs, output};

/// Processors that run prompts.
#[derive(Clone, Debug)]
pub struct Processors {
    cpu: Threads,
    npu: Option<Threads>,
    /// As the user wrote it.
    text: String,
}

/// One thread, wherever the system puts it.
const ONE: Threads = Threads::Count(1);

impl FromStr for Processors {
    type Err = String;

    /// Reads `cpu=0-2,4,npu=3`: names, and behind each its cores if any are given.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "expected cpu or cpu,npu, each with its cores if they are to be kept: cpu=0-2,npu=3".to_owned();
        let mut named: Vec<(&str, Vec<&str>)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, cores) = part.split_once('=').map_or((part, None), |(name, cores)| (name, Some(cores)));
            match (part.starts_with(|letter: char| letter.is_ascii_alphabetic()), named.last_mut()) {
                (true, _) => named.push((name, cores.into_iter().collect())),
                // Another core of the same processor.
                (false, Some((_, cores))) if !cores.is_empty() => cores.push(part),
                (false, _) => return Err(expected()),
            }
        }
        let threads = |cores: &[&str]| match cores {
            [] => Ok(ONE),
            some => Cores::parse(&some.join(",")).map(Threads::On),
        };
        let (cpu, npu) = match &named[..] {
            [("cpu", cpu)] => (threads(cpu)?, None),
            [("cpu", cpu), ("npu", npu)] | [("npu", npu), ("cpu", cpu)] => (threads(cpu)?, Some(threads(npu)?)),
            _ => return Err(expected()),
        };
        if let (Threads::On(cpu), Some(Threads::On(npu))) = (&cpu, &npu)
            && let Some(core) = cpu.iter().find(|core| npu.iter().any(|other| other == *core))
        {
            return Err(format!("core {core} is of both processors: expected cores of their own for each"));
        }
        Ok(Self { cpu, npu, text: text.to_owned() })
    }
}

impl Processors {
    /// Threads of all of them.
    pub fn threads(&self) -> usize {
        self.cpu.count() + self.npu.as_ref().map_or(0, Threads::count)
    }

    /// Starts them, for chunks of up to `chunk` tokens of `model`; what tasks take is expected as `triad profile` has
    /// measured it, if it has.
    pub fn executor(
        &self,
        what: Npu,
        model: &Arc<Model>,
        chunk: usize,
        policy: Policy,
        chunks_in_flight: usize,
    ) -> Result<Executor> {
        let npu = self.npu.clone().map(|threads| what.prepare(model, chunk, threads)).transpose()?;
        let options =
            ExecutorOptions { cpu: self.cpu.clone(), npu, policy, chunks_in_flight, ..ExecutorOptions::default() };
        let mut executor = Executor::new(options)?;
        if let Some(package) = model.package()
            && let Some(costs) = CostTable::open(package)?.of(&self.key(what))
        {
            executor.set_costs(costs.clone());
        }
        Ok(executor)
    }

    /// The CPU of them, where there is more.
    pub fn cpu_alone(&self) -> Option<Self> {
        self.npu.as_ref()?;
        Some(Self { npu: None, ..self.clone() })
    }

    /// What their costs are kept under.
    pub fn key(&self, what: Npu) -> String {
        self.names(what).join(", ")
    }

    /// Names for people: what stands in for an NPU is called what it is.
    fn names(&self, what: Npu) -> Vec<String> {
        let cores = |threads: &Threads| match threads {
            Threads::On(cores) => {
                let list: Vec<_> = cores.iter().map(|core| core.to_string()).collect();
                format!("core {}", list.join(", "))
            }
            _ => "any core".into(),
        };
        let npu = self.npu.as_ref().map(|npu| format!("{what} ({})", cores(npu)));
        [format!("CPU ({})", cores(&self.cpu))].into_iter().chain(npu).collect()
    }
}

impl std::fmt::Display for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Several processors at once.
#[derive(clap::Args)]
#[command(next_help_heading = "Several processors")]
pub struct ProcessorArguments {
    /// Run prompts on these at once, float operators on the CPU, INT8 ones on the NPU: cpu=0,npu=1 keeps each on its
    /// cores, cpu,npu takes a thread each
    #[arg(long, value_name = "LIST")]
    pub processors: Option<Processors>,
    #[command(flatten)]
    pub npu: NpuArgument,
    /// Chunks of a prompt that are on their way at once, at most
    #[arg(long, value_name = "N", default_value = "4", value_parser = in_flight, requires = "processors")]
    pub chunks_in_flight: usize,
    /// Write where and when every part of the (last) prompt ran: a trace for Perfetto (.json) or a picture (.svg)
    #[arg(long, value_name = "FILE", requires = "processors")]
    pub timeline: Option<PathBuf>,
}

impl ProcessorArguments {
    /// Refuses, before a model is prepared, a timeline that would be written over an input, and an NPU beside a model in
    /// `float`: it runs INT8 alone, and would have nothing to do.
    pub fn check(&self, float: bool) -> Result<()> {
        if let Some(timeline) = &self.timeline {
            inputs::check(timeline)?;
        }
        let has_npu = self.processors.as_ref().is_some_and(|processors| processors.npu.is_some());
        ensure!(
            !(float && has_npu),
            "--float leaves the NPU of --processors without work, which is INT8: leave out either"
        );
        Ok(())
    }

    /// Before the run, so that a place that can't be written is found at once.
    pub fn timeline_file(&self) -> Result<Option<TimelineFile>> {
        TimelineFile::create_if(self.timeline.as_ref())
    }

    /// Writes the timeline of `execution` to `file`; `model` is what the user calls the model.
    pub fn write_timeline(&self, file: Option<TimelineFile>, execution: Option<&Execution>, model: &str) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        let (Some(processors), Some(execution)) = (&self.processors, execution) else {
            bail!("no prompt ran on several processors, so there is no timeline to write");
        };
        let names = processors.names(self.npu.npu);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let tokens = execution.graph.chunks().last().map_or(0, |chunk| chunk.end);
        let title = format!("{model}, {tokens} tokens, {}", execution.policy.name());
        let labels = Label::of_prefill(&execution.graph);
        file.write(&record(&title, execution, &labels, &names))
    }
}

fn record<'a>(title: &'a str, execution: &'a Execution, labels: &'a [Label], names: &'a [&'a str]) -> Record<'a> {
    let (timeline, dag) = (&execution.timeline, &execution.dag);
    Record { title, source: Source::Measured, timeline, dag, labels, processors: names }
}

/// What is said of a prompt that ran on several processors.
#[derive(Clone, Debug, Serialize)]
pub struct Executed {
    /// What decided which task was next.
    pub policy: Policy,
    /// From the first task's start to the last one's end.
    pub seconds: f64,
    /// What each did.
    pub processors: Vec<Lane>,
    /// Those that failed on the way.
    pub losses: Vec<Loss>,
}

impl Executed {
    /// Of a prompt that ran on `processors`.
    pub fn new(execution: &Execution, processors: &Processors, npu: Npu) -> Self {
        let names = processors.names(npu);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let labels = Label::of_prefill(&execution.graph);
        let summary = record("", execution, &labels, &names).summary();
        let losses = execution.losses.clone();
        Self { policy: execution.policy, seconds: summary.seconds, processors: summary.processors, losses }
    }

    /// In a few words: `bubbles 3 %, 12 %`.
    pub fn bubbles(&self) -> String {
        let rates: Vec<_> = self.processors.iter().map(|lane| format!("{:.1} %", 100.0 * lane.bubble_rate)).collect();
        rates.join(", ")
    }
}

/// Says which processors failed in the latest prompt of `session`.
pub fn tell_losses(session: &Session) {
    let latest = session.executor().and_then(Executor::latest);
    for loss in latest.iter().flat_map(|execution| &execution.losses) {
        output::note(&format!("note: {}", failure(loss)));
    }
}

fn failure(loss: &Loss) -> String {
    let name = loss.processor.name();
    format!("the {name} failed, and its work went to the other processor: {}", loss.reason)
}

/// Reads a policy.
pub fn policy(text: &str) -> Result<Policy, String> {
    let names = || Policy::ALL.map(Policy::name).join(", ");
    Policy::ALL
        .into_iter()
        .find(|policy| policy.name() == text.trim())
        .ok_or_else(|| format!("expected one of {}", names()))
}

fn in_flight(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    let number = text.trim().parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_names_and_cores() {
        let count = |text: &str| text.parse::<Processors>().map(|processors| processors.threads());
        assert_eq!(["cpu", "cpu,npu", "npu=1,cpu=0", "cpu=0-2,5,npu=3,4"].map(count), [Ok(1), Ok(2), Ok(2), Ok(6)]);
        for wrong in ["", "gpu", "npu", "cpu,cpu", "cpu=,npu", "cpu=x", "0", "cpu,0", "cpu=0,npu=1,gpu=2"] {
            assert!(count(wrong).unwrap_err().starts_with("expected"), "{wrong}");
        }
        assert!(count("cpu=0-2,npu=2").unwrap_err().contains("core 2 is of both"));
    }

    #[test]
    fn a_failure_says_who_failed_and_why() {
        let reason = "it did not end a task within 60.0 s".to_owned();
        let loss = Loss { processor: triad_plan::placement::Processor::Npu, task: None, reason };
        let said = "the NPU failed, and its work went to the other processor: it did not end a task within 60.0 s";
        assert_eq!(failure(&loss), said);
    }

    #[test]
    fn policies_are_read_by_name() {
        assert_eq!(policy("critical-path"), Ok(Policy::CriticalPath));
        assert!(policy("best").unwrap_err().contains("in-order, fifo"));
    }
}
