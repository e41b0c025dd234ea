//! The argument `--processors`: the processors of a run, and the scheduling policy.

mod list;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use triad_engine::{Model, Threads};
use triad_frontend::answer;
use triad_hetero::{
    Costs, EncodedView, Execution, HeteroEngine, HeteroOptions, ProcessorOptions,
    of_chunks_in_flight,
};
use triad_plan::graph::Format;
use triad_plan::partition::energy::Objective;
use triad_plan::partition::solve::Restriction;
use triad_plan::placement::Reason;
use triad_plan::processors::{Processor, ProcessorId, ProcessorKind, label};
use triad_plan::schedule::Policy;
use triad_plan::timeline::{Label, Record, Source};

use crate::device::{DeviceArguments, Npu, Opened};
use crate::encoded::{LANE, WithViews};
use crate::timeline_file::TimelineFile;
use crate::{inputs, measurements, output, partition, progress};
use list::ListedProcessor;
pub use list::Processors;

impl Processors {
    /// Returns the number of threads of all processors.
    pub fn threads(&self) -> usize {
        let threads = self
            .list
            .iter()
            .flat_map(|processor| [Some(&processor.threads), processor.multiplier.as_ref()]);
        threads.flatten().map(Threads::count).sum()
    }

    /// Starts an engine on the processors. The expected times of tasks are those that `triad profile` measured, if any.
    pub fn engine(
        &self,
        devices: &DeviceArguments,
        model: &Arc<Model>,
        options: HeteroOptions,
    ) -> Result<HeteroEngine> {
        ensure!(
            model.weights().is_int8() || !self.has_npu(),
            "the layers of this model read activations in float, which the {} cannot multiply: expected a package in \
             INT8, or only cpu and gpu in --processors",
            devices.npu
        );
        let cuts = devices
            .cuts
            .iter()
            .map(|cut| cut.cut(self.list.len() + usize::from(self.has_multiplier())))
            .collect::<Result<_>>()?;
        ensure!(
            !(self.has_multiplier() && devices.gpu_slice > 0.0),
            "--gpu-slice limits submissions of a GPU alone or next to a CPU: expected no --gpu-slice with gpu,npu"
        );
        ensure!(
            !(self.has_multiplier() && devices.window.is_some() && devices.npu == Npu::Kernels),
            "--npu-memory is for an NPU with memory of its own: expected another --npu with gpu,npu"
        );
        let session = &options.engine.session;
        let (mut plans, mut joint, mut decode_plans) = (None, None, None);
        if let Some(how) = devices.partition {
            let costs =
                partition::product_costs(model.package(), &self.list_key(devices), &self.text)?;
            let costs = costs.with_objective(devices.objective)?;
            let (description, chunk) = (model.description(), session.chunk.min(session.context));
            match how {
                // A GPU that runs the model computes one chunk after the other, so that there is nothing to place.
                Restriction::Auto if !self.has_multiplier() => {
                    joint = Some(costs.joint(description, chunk, &self.floats())?);
                }
                Restriction::Layer | Restriction::Tensor | Restriction::Auto => {
                    plans = Some(costs.plans(description, chunk, how)?);
                }
            }
            if !self.has_multiplier() {
                decode_plans = costs.decode_plans(description, how)?;
            }
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
                outlier_cache: devices.outlier_cache.options(),
                fixed_point: devices.fixed_point(),
                ..options
            },
            &mut progress,
        )?;
        drop(bar);
        for opened in opened.iter().flatten() {
            opened.keep_contexts()?;
        }
        note_moved(&engine);
        for error in opened.iter().flatten().filter_map(Opened::not_kept) {
            output::note(&format!("note: {error}"));
        }
        if let Some(package) = model.package() {
            let table = measurements::open::<Costs>(package)?;
            // Without costs for these cuts, those of the processors are used: float tasks are the same.
            if let Some(costs) = table
                .get(&self.key(devices))
                .or_else(|| table.get(&self.list_key(devices)))
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
        let open = |ListedProcessor { kind, threads, .. }: &ListedProcessor| {
            devices.open(*kind, model, threads, kept)
        };
        let opened: Vec<_> = self.list.iter().map(open).collect::<Result<_>>()?;
        let multiplier = self.list.iter().find_map(|one| one.multiplier.as_ref());
        let multiplier = multiplier
            .map(|threads| devices.open_multiplier(model, threads, kept))
            .transpose()?;
        let describe = |(
            ListedProcessor {
                name,
                kind,
                threads,
                ..
            },
            opened,
        ): (&ListedProcessor, &Option<Opened>)| {
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
            let multiplier = multiplier.as_ref().map(|opened| Arc::clone(&opened.device));
            ProcessorOptions {
                description,
                threads: threads.clone(),
                device,
                multiplier,
            }
        };
        let described = self.list.iter().zip(&opened).map(describe).collect();
        let opened = opened.into_iter().chain([multiplier]).collect();
        Ok((described, opened))
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

    /// Returns whether the list has an NPU.
    fn has_npu(&self) -> bool {
        let mut list = self.list.iter();
        list.any(|one| one.kind == ProcessorKind::Npu || one.multiplier.is_some())
    }

    /// Returns whether the list is a GPU that runs the model and an NPU that multiplies for it.
    pub fn has_multiplier(&self) -> bool {
        self.list.iter().any(|one| one.multiplier.is_some())
    }

    /// Returns whether the list is a GPU alone, which runs whole models, or with an NPU that multiplies for it.
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
        let objective = (devices.objective != Objective::Latency)
            .then(|| format!("; objective {}", devices.objective.name()));
        let fixed = devices.fixed_point().then(|| "; fixed point".to_owned());
        self.list_key(devices)
            + &cuts
                .chain(partition)
                .chain(objective)
                .chain(fixed)
                .collect::<String>()
    }

    /// Returns the key of their product costs: their names.
    pub fn list_key(&self, devices: &DeviceArguments) -> String {
        self.names(devices).join(", ")
    }

    /// Returns the largest relative difference of logits that rounding on these devices explains. If they run a model
    /// that `reads_floats`, nothing is rounded to INT8.
    pub fn rounding(&self, devices: &DeviceArguments, reads_floats: bool) -> f32 {
        let npu = self.has_multiplier().then_some(ProcessorKind::Npu);
        let kinds = self.list.iter().map(|processor| processor.kind).chain(npu);
        kinds
            .map(|kind| devices.rounding(kind, reads_floats))
            .fold(0.0, f32::max)
    }

    /// Returns the names of the processors that are not CPUs, as text.
    pub fn devices(&self, devices: &DeviceArguments) -> String {
        let names = self.list.iter().filter(|processor| !processor.is_cpu());
        names
            .map(|processor| processor.device_name(devices))
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
        let name = |processor: &ListedProcessor| {
            let name = processor.device_name(devices);
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
    /// Run prompts on several processors: linear layers on the NPU (in INT8) or the GPU (in INT8, INT4 or float), the
    /// other operators on the CPU. cpu=0,npu=1 pins each to its cores; cpu,gpu takes one thread each. gpu alone runs a
    /// whole model; with gpu,npu the NPU multiplies for it in prompts
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
    /// Returns an error, before a model is prepared, for a timeline that would overwrite an input, and for an NPU that
    /// computes in INT8 alone, and would have no work, for a model in `float`.
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
            "--partition cuts the products of a package: leave out --no-quantize"
        );
        ensure!(
            !(float && processors.has_npu()),
            "the NPU of --processors multiplies INT8 alone and has no work with --no-quantize: leave out one of them"
        );
        Ok(())
    }

    /// Creates the timeline file before the run, so that a path that can't be written is found at once.
    pub fn timeline_file(&self) -> Result<Option<TimelineFile>> {
        TimelineFile::create_if(self.timeline.as_ref())
    }

    /// Writes the timeline of `execution`, after the `views` that were encoded for it, to `file`. `model` is the user's name
    /// of the model.
    pub fn write_timeline(
        &self,
        file: Option<TimelineFile>,
        (execution, views): (Option<&Execution>, &[EncodedView]),
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
        if views.is_empty() {
            let labels = execution.tasks.labels(&execution.graph);
            return file.write(&record(&title, execution, &labels, &names));
        }
        let WithViews {
            timeline,
            dag,
            labels,
        } = WithViews::new(execution, views);
        let names: Vec<_> = names.into_iter().chain([LANE]).collect();
        file.write(&Record {
            title: &title,
            source: Source::Measured,
            timeline: &timeline,
            dag: &dag,
            labels: &labels,
            processors: &names,
        })
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
    let count = engine.products_without_room();
    if count > 0 {
        output::note(&format!(
            "note: {count} products do not fit into the memory of the NPU and run on the GPU"
        ));
    }
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
    fn policies_are_read_by_name() {
        assert_eq!(policy("critical-path"), Ok(Policy::CriticalPath));
        assert!(policy("best").unwrap_err().contains("in-order, fifo"));
    }
}
