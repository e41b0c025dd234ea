//! `triad plan --partition auto --processors`: the plan of a whole prompt by the joint search.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use triad_engine::{EngineOptions, LoadOptions, Model, SessionOptions, Threads};
use triad_frontend::hashes;
use triad_hetero::{HeteroEngine, HeteroOptions, PlannedPrompt};
use triad_plan::joint::{Candidate, CandidateId, JointPlan};
use triad_plan::partition::solve::Restriction;

use triad_console::arguments::DescriptionArguments;
use triad_console::device::DeviceArguments;
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// The plan of a prompt in the output of `plan --partition auto --processors --json`.
#[derive(Serialize)]
pub struct Joint {
    #[serde(flatten)]
    plan: JointPlan,
    /// Seconds of the search.
    planned_in: f64,
    /// Tokens of each chunk.
    chunks: Vec<usize>,
    /// One entry for each chunk and subgraph of a block.
    subgraphs: Vec<Share>,
}

/// The processors that compute a subgraph of a chunk.
#[derive(Serialize)]
struct Share {
    chunk: usize,
    subgraph: &'static str,
    /// The share of each processor in the output, over all blocks.
    shares: Vec<f64>,
    /// Number of blocks in which the subgraph is cut.
    cut: usize,
}

/// Plans a prompt on `processors`, whose costs were measured.
///
/// # Errors
/// If the package can't be loaded, or has no measurements.
pub fn plan(
    model: &DescriptionArguments,
    processors: &Processors,
    devices: &DeviceArguments,
    (prompt, chunk): (usize, usize),
) -> Result<Joint> {
    let package = model.package()?;
    // The weights are only mapped: nothing is computed with them.
    let package = hashes::open_package(&package, &mut progress::checking(&package))?;
    let load = LoadOptions {
        threads: Threads::Count(1),
        ..LoadOptions::default()
    };
    let model = Model::from_package(&package, &load)?;
    let devices = DeviceArguments {
        partition: Some(Restriction::Auto),
        ..devices.clone()
    };
    let context = model.description().context;
    let session = SessionOptions {
        context,
        chunk,
        ..SessionOptions::default()
    };
    let engine = processors.engine(
        &devices,
        &model.into(),
        HeteroOptions {
            engine: EngineOptions {
                session,
                ..EngineOptions::default()
            },
            ..HeteroOptions::default()
        },
    )?;
    plan_prompt(&engine, prompt)
}

fn plan_prompt(engine: &HeteroEngine, prompt: usize) -> Result<Joint> {
    let begin = Instant::now();
    let PlannedPrompt { plan, graph, tasks } =
        engine.planned(prompt).context("prompts are not planned")?;
    let planned_in = begin.elapsed().as_secs_f64();
    let mut shares: BTreeMap<_, (Vec<f64>, usize)> = BTreeMap::new();
    // The processors of each chunk and subgraph. Parts of several lengths on one processor are not a cut.
    let mut homes: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (number, task) in tasks.tasks.iter().enumerate() {
        let subgraph = &graph.subgraphs()[task.task.subgraph];
        let processor = tasks.dag.home(number).index();
        let (shares, cut) = shares.entry((task.task.chunk, subgraph.role)).or_default();
        shares.resize(engine.processors().len(), 0.0);
        shares[processor] += task.share(&graph);
        let homes = homes
            .entry((task.task.chunk, task.task.subgraph))
            .or_default();
        *cut += usize::from(homes.insert(processor) && homes.len() == 2);
    }
    let subgraphs = shares.into_iter().map(|((chunk, role), (shares, cut))| {
        let all: f64 = shares.iter().sum();
        let shares = shares.into_iter().map(|share| share / all).collect();
        Share {
            chunk,
            subgraph: role.name(),
            shares,
            cut,
        }
    });
    let chunks = graph.chunks().iter().map(ExactSizeIterator::len).collect();
    Ok(Joint {
        plan: JointPlan::clone(&plan),
        planned_in,
        chunks,
        subgraphs: subgraphs.collect(),
    })
}

impl Joint {
    /// Returns the tokens of the longest chunk.
    pub fn chunk(&self) -> usize {
        self.chunks.iter().copied().max().unwrap_or(1)
    }

    /// Returns the plan as text, with the names of the processors.
    pub fn text(&self, names: &[String]) -> String {
        let Self {
            plan,
            planned_in,
            chunks,
            subgraphs,
        } = self;
        let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
        let name = |CandidateId { kind, alone }: CandidateId| match alone {
            Some(processor) => format!("{} on {}", kind.name(), names[processor.index()]),
            None => kind.name().to_owned(),
        };
        let candidate = |Candidate {
                             id,
                             seconds,
                             factor,
                             joules,
                             ..
                         }: &Candidate| {
            let factor = factor.map_or(String::new(), |factor| format!(" × {factor:.2}"));
            let joules = joules.map_or(String::new(), |joules| format!(" ({joules:.2} J)"));
            format!("{} {}{factor}{joules}", name(*id), milliseconds(*seconds))
        };
        let candidates: Vec<_> = plan.candidates.iter().map(candidate).collect();
        let is_measured = plan.candidates.iter().any(|one| one.factor.is_some());
        let times = if is_measured {
            " × measured over simulated time of such prompts"
        } else {
            ""
        };
        let lengths: Vec<_> = chunks.iter().map(usize::to_string).collect();
        let row = |share: &Share| {
            let percent = share
                .shares
                .iter()
                .map(|share| format!("{:.0} %", 100.0 * share));
            let labels = [share.chunk.to_string(), share.subgraph.to_owned()];
            labels
                .into_iter()
                .chain(percent)
                .chain([share.cut.to_string()])
                .collect::<Vec<_>>()
        };
        let rows: Vec<_> = subgraphs.iter().map(row).collect();
        let header = ["chunk", "subgraph"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .chain(["blocks cut"]);
        format!(
            "chunks of {} tokens, {}: {} ms (simulated with measured costs; planned in {} ms)\ncandidates, \
             simulated ms{times}: {}\n\n{}",
            lengths.join(", "),
            name(plan.id),
            milliseconds(plan.seconds),
            milliseconds(*planned_in),
            candidates.join(", "),
            output::table(&header.collect::<Vec<_>>(), 2, &rows)
        )
    }
}
