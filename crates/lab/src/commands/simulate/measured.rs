//! Simulates a prefill on processors of this machine, with the task times that `triad profile` measured.

use std::sync::Arc;

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::package::Package;
use triad_engine::{EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_hetero::{CostTable, HeteroOptions};
use triad_plan::schedule::Policy;
use triad_plan::timeline::{Record, Source, Summary};

use super::{Arguments, MAX_CHUNKS, tables};
use triad_console::processors::Processors;
use triad_console::timeline_file::TimelineFile;
use triad_console::{arguments, output};

/// Output of `simulate --processors --json`.
#[derive(Serialize)]
struct Simulated {
    simulated: bool,
    model: String,
    processors: Vec<String>,
    policy: Policy,
    prompt: usize,
    chunk: usize,
    tasks: usize,
    seconds: f64,
    tokens_per_second: f64,
    /// Lower bound for the length of any schedule.
    bound_seconds: f64,
    summary: Summary,
}

/// Simulates and prints.
pub fn run(arguments: &Arguments, processors: &Processors) -> Result<()> {
    let Arguments {
        devices,
        chunk,
        chunks_in_flight,
        policy,
        ..
    } = arguments;
    devices.check(true)?;
    let (name, description) = arguments.model.describe()?;
    let prompt = arguments::prompt_tokens(arguments.prompt, &description)?;
    arguments::check_chunks(prompt, *chunk, MAX_CHUNKS)?;
    let package = Package::open(&arguments.model.package()?)?;
    let file = TimelineFile::create_if(arguments.timeline.as_ref())?;
    let threads = Threads::Count(processors.threads());
    let model = Arc::new(Model::from_package(
        &package,
        &LoadOptions {
            threads,
            ..LoadOptions::default()
        },
    )?);
    let session = SessionOptions {
        context: prompt,
        chunk: *chunk,
        ..SessionOptions::default()
    };
    let options = HeteroOptions {
        engine: EngineOptions {
            session,
            ..EngineOptions::default()
        },
        policy: *policy,
        chunks_in_flight: *chunks_in_flight,
        ..HeteroOptions::default()
    };
    let engine = processors.engine(devices, &model, options)?;
    let costs = engine.costs();
    ensure!(
        costs.seen().next().is_some(),
        "{}: has nothing about tasks on {}: run `triad profile --processors {processors}` with the same options first",
        CostTable::path(package.path()).display(),
        processors.list_key(devices)
    );
    engine.plan_ahead(prompt);
    let simulated = engine.simulate(prompt, *policy, std::slice::from_ref(&costs), &costs);
    let labels = simulated.tasks.labels(&simulated.graph);
    let names = processors.names(devices);
    let short: Vec<_> = names.iter().map(String::as_str).collect();
    let title = format!("{name}, {prompt} tokens, {}", simulated.policy.name());
    let dag = &simulated.tasks.dag;
    let record = Record {
        title: &title,
        source: Source::Simulated,
        timeline: &simulated.timeline,
        dag,
        labels: &labels,
        processors: &short,
    };
    if let Some(file) = file {
        file.write(&record)?;
    }
    let (seconds, summary) = (simulated.timeline.seconds(), record.summary());
    let found = Simulated {
        simulated: true,
        model: name,
        policy: simulated.policy,
        prompt,
        chunk: *chunk,
        tasks: dag.len(),
        seconds,
        tokens_per_second: prompt as f64 / seconds,
        bound_seconds: simulated.bound_seconds(),
        summary,
        processors: names,
    };
    if arguments.json {
        output::json(&found)
    } else {
        output::text(&found.to_string())
    }
}

impl std::fmt::Display for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self {
            model,
            policy,
            prompt,
            chunk,
            tasks,
            summary,
            ..
        } = self;
        writeln!(
            f,
            "simulated as measured by triad profile: {model}, {prompt} tokens in chunks of {chunk}, {}: {tasks} tasks",
            policy.name()
        )?;
        writeln!(
            f,
            "latency {:.1} ms ({:.0} tokens/s); no schedule is shorter than {:.1} ms\n",
            1e3 * self.seconds,
            self.tokens_per_second,
            1e3 * self.bound_seconds
        )?;
        f.write_str(&tables(summary))
    }
}
