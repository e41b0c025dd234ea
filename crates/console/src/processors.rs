//! The argument `--processors`: the processors of a run, and the scheduling policy.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use triad_engine::{Cores, Model, Threads};
use triad_frontend::answer;
use triad_hetero::{
    Costs, Execution, HeteroEngine, HeteroOptions, ProcessorOptions, of_chunks_in_flight,
};
use triad_plan::graph::Format;
use triad_plan::partition::solve::Restriction;
use triad_plan::placement::Reason;
use triad_plan::processors::{Processor, ProcessorId, ProcessorKind, label};
use triad_plan::schedule::Policy;
use triad_plan::timeline::{Label, Record, Source};

use crate::device::{DeviceArguments, Opened};
use crate::timeline_file::TimelineFile;
use crate::{inputs, measurements, output, partition, progress};

/// The processors of a run.
#[derive(Clone, Debug)]
pub struct Processors {
    list: Vec<Named>,
    /// The argument as the user wrote it.
    text: String,
}

/// A processor in the list.
#[derive(Clone, Debug)]
struct Named {
    /// Name: `cpu`, `cpu2`, `gpu`, `npu`.
    name: String,
    kind: ProcessorKind,
    threads: Threads,
}

impl Named {
    fn is_cpu(&self) -> bool {
        self.kind == ProcessorKind::Cpu
    }
}

/// One thread that is not pinned.
const ONE: Threads = Threads::Count(1);

impl FromStr for Processors {
    type Err = String;

    /// Parses `cpu=0-2,4,npu=3`: names, each of which may be repeated and may have cores.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "expected cpu, cpu with gpu, npu or both, or gpu alone, each with or without its cores: cpu=0-2,npu=3"
                .to_owned()
        };
        let mut named: Vec<(&str, Vec<&str>)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, cores) = part
                .split_once('=')
                .map_or((part, None), |(name, cores)| (name, Some(cores)));
            match (
                part.starts_with(|letter: char| letter.is_ascii_alphabetic()),
                named.last_mut(),
            ) {
                (true, _) => named.push((name, cores.into_iter().collect())),
                // Another core of the same processor.
                (false, Some((_, cores))) if !cores.is_empty() => cores.push(part),
                (false, _) => return Err(expected()),
            }
        }
        let mut list: Vec<Named> = Vec::new();
        for (text, cores) in named {
            let kind = match text {
                "cpu" => ProcessorKind::Cpu,
                "gpu" => ProcessorKind::Gpu,
                "npu" => ProcessorKind::Npu,
                _ => return Err(expected()),
            };
            let threads = if cores.is_empty() {
                ONE
            } else {
                Threads::On(Cores::parse(&cores.join(","))?)
            };
            let name = match list.iter().filter(|other| other.kind == kind).count() {
                0 => text.to_owned(),
                others => format!("{text}{}", others + 1),
            };
            list.push(Named {
                name,
                kind,
                threads,
            });
        }
        let is_gpu_alone = matches!(&list[..], [only] if only.kind == ProcessorKind::Gpu);
        if !list.iter().any(Named::is_cpu) && !is_gpu_alone {
            return Err(expected());
        }
        let mut taken = Vec::new();
        for cores in list.iter().filter_map(|processor| {
            if let Threads::On(cores) = &processor.threads {
                Some(cores)
            } else {
                None
            }
        }) {
            if let Some(core) = cores.iter().find(|core| taken.contains(core)) {
                return Err(format!(
                    "core {core} belongs to two processors: expected different cores for each"
                ));
            }
            taken.extend(cores.iter());
        }
        Ok(Self {
            list,
            text: text.to_owned(),
        })
    }
}

impl Processors {
    /// Returns the number of threads of all processors.
    pub fn threads(&self) -> usize {
        self.list
            .iter()
            .map(|processor| processor.threads.count())
            .sum()
    }

    /// Starts an engine on the processors. The expected times of tasks are those that `triad profile` measured, if any.
    pub fn engine(
        &self,
        devices: &DeviceArguments,
        model: &Arc<Model>,
        options: HeteroOptions,
    ) -> Result<HeteroEngine> {
        ensure!(
            model.weights().is_int8() || self.cpu_alone().is_none(),
            "the layers of this model read activations in float, and the {} of --processors multiplies INT8 alone: \
             expected a package in INT8, CPUs alone, or --processors gpu, which runs this model whole",
            self.devices(devices)
        );
        let cuts = devices
            .cuts
            .iter()
            .map(|cut| cut.cut(self.list.len()))
            .collect::<Result<_>>()?;
        let session = &options.engine.session;
        let (mut plans, mut joint, mut decode_plans) = (None, None, None);
        if let Some(how) = devices.partition {
            let costs =
                partition::product_costs(model.package(), &self.list_key(devices), &self.text)?;
            let (description, chunk) = (model.description(), session.chunk.min(session.context));
            match how {
                Restriction::Auto => {
                    joint = Some(costs.joint(description, chunk, &self.floats())?);
                }
                Restriction::Layer | Restriction::Tensor => {
                    plans = Some(costs.plans(description, chunk, how)?);
                }
            }
            decode_plans = costs.decode_plans(description, how)?;
        }
        let (processors, opened) = self.open(devices, model, true)?;
        let mut bar = None;
        let mut progress = |done, subgraphs| {
            if opened.iter().any(Option::is_some) {
                bar.get_or_insert_with(|| {
                    progress::subgraphs(format!("preparing {}", self.devices(devices)), subgraphs)
                })
                .set(done);
            }
        };
        let more = of_chunks_in_flight(
            model.description(),
            session.context,
            session.chunk,
            options.chunks_in_flight,
            &processors,
        );
        answer::check_memory(model, &options.engine, more)?;
        let engine = HeteroEngine::new(
            model,
            HeteroOptions {
                processors,
                cuts,
                plans,
                joint,
                decode_plans,
                wait: devices.wait,
                hot_rows: devices.hot_rows.options(),
                fixed_point: devices.fixed_point(),
                ..options
            },
            &mut progress,
        )?;
        drop(bar);
        note_moved(&engine);
        for error in opened.iter().flatten().filter_map(Opened::not_kept) {
            output::note(&format!("note: {error}"));
        }
        if let Some(package) = model.package() {
            let table = measurements::open::<Costs>(package)?;
            // Without costs for these cuts, those of the processors are used: float tasks are the same.
            if let Some(costs) = table
                .of(&self.key(devices))
                .or_else(|| table.of(&self.list_key(devices)))
            {
                engine.set_costs(costs.clone());
            }
        }
        Ok(engine)
    }

    /// Opens the devices of the processors. Stores their compiled graphs in the model's package if `kept` is set.
    pub fn open(
        &self,
        devices: &DeviceArguments,
        model: &Arc<Model>,
        kept: bool,
    ) -> Result<(Vec<ProcessorOptions>, Vec<Option<Opened>>)> {
        let open = |Named { kind, threads, .. }: &Named| devices.open(*kind, model, threads, kept);
        let opened: Vec<_> = self.list.iter().map(open).collect::<Result<_>>()?;
        let describe = |(
            Named {
                name,
                kind,
                threads,
            },
            opened,
        ): (&Named, &Option<Opened>)| {
            let cpu = Processor::cpu(name);
            // Threads that drive a device can compute in float if all other processors are lost.
            let description = match kind {
                ProcessorKind::Cpu => cpu,
                _ => {
                    let window = devices.window.filter(|_| *kind == ProcessorKind::Npu);
                    Processor {
                        kind: *kind,
                        formats: cpu.formats,
                        ..Processor::npu(name, window)
                    }
                }
            };
            let device = opened.as_ref().map(|opened| Arc::clone(&opened.device));
            ProcessorOptions {
                description,
                threads: threads.clone(),
                device,
            }
        };
        Ok((
            self.list.iter().zip(&opened).map(describe).collect(),
            opened,
        ))
    }

    /// Returns the processors that compute in float.
    pub fn floats(&self) -> Vec<ProcessorId> {
        let cpus = self
            .list
            .iter()
            .enumerate()
            .filter(|(_, processor)| processor.is_cpu());
        cpus.map(|(index, _)| ProcessorId::new(index)).collect()
    }

    /// Returns the number of processors.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the list is a GPU alone, which runs whole models.
    pub fn is_gpu_alone(&self) -> bool {
        matches!(&self.list[..], [only] if only.kind == ProcessorKind::Gpu)
    }

    /// Returns the CPUs of the list; `None` if there are none or there is nothing else.
    pub fn cpu_alone(&self) -> Option<Self> {
        let list: Vec<_> = self
            .list
            .iter()
            .filter(|processor| processor.is_cpu())
            .cloned()
            .collect();
        (!list.is_empty() && list.len() < self.list.len()).then(|| Self {
            list,
            text: self.text.clone(),
        })
    }

    /// Returns the key of their task costs: their names, and the cuts of products.
    pub fn key(&self, devices: &DeviceArguments) -> String {
        let cuts = devices.cuts.iter().map(|cut| format!("; {cut}"));
        let partition = devices
            .partition
            .map(|how| format!("; partition {}", how.name()));
        let fixed = devices.fixed_point().then(|| "; fixed point".to_owned());
        self.list_key(devices) + &cuts.chain(partition).chain(fixed).collect::<String>()
    }

    /// Returns the key of their product costs: their names.
    pub fn list_key(&self, devices: &DeviceArguments) -> String {
        self.names(devices).join(", ")
    }

    /// Returns the largest relative difference of logits that rounding on these devices explains.
    pub fn rounding(&self, devices: &DeviceArguments) -> f32 {
        self.list
            .iter()
            .map(|processor| devices.rounding(processor.kind))
            .fold(0.0, f32::max)
    }

    /// Returns the names of the processors that are not CPUs, as text.
    pub fn devices(&self, devices: &DeviceArguments) -> String {
        let names = self.list.iter().filter(|processor| !processor.is_cpu());
        names
            .map(|Named { name, kind, .. }| devices.name(*kind, label(name)))
            .collect::<Vec<_>>()
            .join(" and ")
    }

    /// Returns the label of each processor, and the first core that it is pinned to, if any.
    pub fn cores(&self) -> Vec<(String, Option<usize>)> {
        let core = |threads: &Threads| {
            if let Threads::On(cores) = threads {
                cores.iter().next()
            } else {
                None
            }
        };
        self.list
            .iter()
            .map(|processor| (label(&processor.name), core(&processor.threads)))
            .collect()
    }

    /// Returns the names for messages, with cores.
    pub fn names(&self, devices: &DeviceArguments) -> Vec<String> {
        let cores = |threads: &Threads| match threads {
            Threads::On(cores) => {
                let list: Vec<_> = cores.iter().map(|core| core.to_string()).collect();
                format!("core {}", list.join(", "))
            }
            _ => "any core".into(),
        };
        let name = |processor: &Named| {
            let name = devices.name(processor.kind, label(&processor.name));
            format!("{name} ({})", cores(&processor.threads))
        };
        self.list.iter().map(name).collect()
    }
}

impl std::fmt::Display for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Arguments for several processors.
#[derive(clap::Args)]
#[command(next_help_heading = "Several processors")]
pub struct ProcessorArguments {
    /// Run prompts on several processors: float operators on the CPU, INT8 operators on the NPU or GPU. cpu=0,npu=1
    /// pins each to its cores; cpu,gpu takes one thread each. gpu alone runs a whole model, in INT8 or with --no-quantize
    #[arg(long, value_name = "LIST")]
    pub processors: Option<Processors>,
    /// Arguments for the devices.
    #[command(flatten)]
    pub devices: DeviceArguments,
    /// Maximum number of chunks of a prompt that are in flight
    #[arg(long, value_name = "N", default_value = "4", value_parser = in_flight, requires = "processors")]
    pub chunks_in_flight: usize,
    /// Write a timeline of the (last) prompt: a trace for Perfetto (.json) or a picture (.svg)
    #[arg(long, value_name = "FILE", requires = "processors")]
    pub timeline: Option<PathBuf>,
}

impl ProcessorArguments {
    /// Returns an error, before a model is prepared, for a timeline that would overwrite an input, and for an NPU or
    /// GPU next to a CPU for a model in `float`. The device computes in INT8 alone and would have no work.
    pub fn check(&self, float: bool) -> Result<()> {
        if let Some(timeline) = &self.timeline {
            inputs::check(timeline)?;
        }
        self.devices.check(self.processors.is_some())?;
        let Some(processors) = &self.processors else {
            return Ok(());
        };
        ensure!(
            !(float && self.devices.partition.is_some()),
            "--partition cuts INT8 products: leave out --no-quantize"
        );
        let has_device = processors.cpu_alone().is_some();
        ensure!(
            !(float && has_device),
            "the NPU or GPU of --processors computes in INT8 alone and has no work with --no-quantize: leave out one of them"
        );
        Ok(())
    }

    /// Creates the timeline file before the run, so that a path that can't be written is found at once.
    pub fn timeline_file(&self) -> Result<Option<TimelineFile>> {
        TimelineFile::create_if(self.timeline.as_ref())
    }

    /// Writes the timeline of `execution` to `file`. `model` is the user's name of the model.
    pub fn write_timeline(
        &self,
        file: Option<TimelineFile>,
        execution: Option<&Execution>,
        model: &str,
    ) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        let (Some(processors), Some(execution)) = (&self.processors, execution) else {
            bail!("no prompt ran on several processors, so there is no timeline to write");
        };
        let names = processors.names(&self.devices);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let tokens = execution.graph.chunks().last().map_or(0, |chunk| chunk.end);
        let title = format!("{model}, {tokens} tokens, {}", execution.policy.name());
        let labels = execution.tasks.labels(&execution.graph);
        file.write(&record(&title, execution, &labels, &names))
    }
}

/// Returns a timeline's record with its names.
pub(crate) fn record<'a>(
    title: &'a str,
    execution: &'a Execution,
    labels: &'a [Label],
    names: &'a [&'a str],
) -> Record<'a> {
    let (timeline, dag) = (&execution.timeline, &execution.tasks.dag);
    Record {
        title,
        source: Source::Measured,
        timeline,
        dag,
        labels,
        processors: names,
    }
}

/// Prints how many subgraphs run on another processor because devices have no room for them.
fn note_moved(engine: &HeteroEngine) {
    let (graph, placement) = (engine.graph(), &engine.tasks().placement);
    let all = graph
        .subgraphs()
        .iter()
        .filter(|subgraph| subgraph.role.format() == Format::Int8)
        .count();
    let is_whole = |subgraph: &usize| engine.tasks().cut(*subgraph).is_none();
    let moved = (0..graph.subgraphs().len())
        .filter(is_whole)
        .map(|subgraph| placement.places()[subgraph]);
    let moved: Vec<_> = moved
        .filter(|place| place.reason == Reason::WindowFull)
        .collect();
    if let Some(first) = moved.first() {
        let processors = engine.processors();
        let (count, on) = (moved.len(), processors[first.processor].label());
        let full = processors
            .iter()
            .filter(|(_, processor)| processor.multiplies_alone());
        let full: Vec<_> = full.map(|(_, processor)| processor.label()).collect();
        let full = full.join(" and ");
        output::note(&format!(
            "note: {count} of {all} INT8 subgraphs do not fit into the memory of the {full} and run on the {on}"
        ));
    }
}

/// Parses a policy.
pub fn policy(text: &str) -> Result<Policy, String> {
    let names = || Policy::ALL.map(Policy::name).join(", ");
    Policy::ALL
        .into_iter()
        .find(|policy| policy.name() == text.trim())
        .ok_or_else(|| format!("expected one of {}", names()))
}

/// Parses the maximum number of chunks in flight.
pub fn in_flight(text: &str) -> Result<usize, String> {
    const MAX: usize = 1024;
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_names_and_cores() {
        let count = |text: &str| {
            text.parse::<Processors>()
                .map(|processors| processors.threads())
        };
        assert_eq!(
            [
                "cpu",
                "cpu,npu",
                "npu=1,cpu=0",
                "cpu=0-2,5,npu=3,4",
                "cpu,cpu=1",
                "cpu,gpu,npu",
                "gpu=1"
            ]
            .map(count),
            [Ok(1), Ok(2), Ok(2), Ok(6), Ok(2), Ok(3), Ok(1)]
        );
        for wrong in [
            "",
            "gpu,gpu",
            "gpu,npu",
            "npu",
            "cpu=,npu",
            "cpu=x",
            "0",
            "cpu,0",
            "cpu=0,npu=1,tpu=2",
        ] {
            assert!(count(wrong).unwrap_err().starts_with("expected"), "{wrong}");
        }
        assert!(
            count("cpu=0-2,npu=2")
                .unwrap_err()
                .contains("core 2 belongs to two processors")
        );
    }

    #[test]
    fn policies_are_read_by_name() {
        assert_eq!(policy("critical-path"), Ok(Policy::CriticalPath));
        assert!(policy("best").unwrap_err().contains("in-order, fifo"));
    }
}
