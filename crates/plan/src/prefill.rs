//! Simulated prefill on the profile of a device that is not present.
//!
//! The tasks are those that the engine runs ([`PrefillTasks`]). Their times are computed from the profile.

use triad_model::description::{LinearShape, ModelDescription};

use crate::device::cost::NpuUse;
use crate::device::{DeviceProfile, Float};
use crate::graph::{Format, Graph};
use crate::placement::Placement;
use crate::planner::{Effort, plan};
use crate::processors::{Processor, ProcessorId, Processors};
use crate::schedule::Policy;
use crate::simulate::{Begin, Takes, simulate_each};
use crate::tasks::{BlockShadows, Operation, PrefillTask, PrefillTasks, Shadow, TaskOptions};
use crate::timeline::{Label, Record, Source, Timeline};

/// The processor that computes in float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatsOn {
    /// The CPU, as in the paper's prototype.
    Cpu,
    /// The GPU.
    Gpu,
}

/// Flags for the paper's techniques. If one is off, the method that it improves on is used instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Graphs are built in advance for chunks. If off, a graph of the whole prompt is built during each prefill.
    pub chunk_sharing: bool,
    /// Linear layers have one activation scale, and shadows compute their outliers. If off, activations have a scale
    /// for each group.
    pub shadow: bool,
    /// Tasks run by the policy. If off, they run in order.
    pub out_of_order: bool,
    /// Inputs are reshaped to the equivalent shape that is fastest.
    pub equivalent_shapes: bool,
}

impl Techniques {
    /// All techniques.
    pub const ALL: Self = Self {
        chunk_sharing: true,
        shadow: true,
        out_of_order: true,
        equivalent_shapes: true,
    };
}

/// Another app that takes a share of a processor's time for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// The processor: one of [`processors`].
    pub processor: ProcessorId,
    /// Share of the processor's time that is taken. With 1 the processor is stopped.
    pub share: f64,
    /// Start in seconds since the beginning of the run.
    pub from: f64,
    /// End in seconds since the beginning of the run: finite, and not before `from`.
    pub to: f64,
}

/// The shadows that a package keeps, chosen by the importance that calibration measured for their inputs (§3.3).
#[derive(Clone, Debug, PartialEq)]
pub struct KeptShadows {
    /// Shadows of each block.
    pub blocks: Vec<BlockShadows>,
    /// Share of hot channels in these inputs. The weights of hot channels stay in memory.
    pub hot_share: f64,
}

/// Options of a simulated prefill.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Tokens per chunk.
    pub chunk: usize,
    /// Policy that chooses the next task.
    pub policy: Policy,
    /// Processor that computes in float.
    pub floats_on: FloatsOn,
    /// Maximum number of chunks that have buffers at the same time.
    pub chunks_in_flight: usize,
    /// Share of the linear subgraphs without a shadow. Those far from input and output lose theirs first (§3.3).
    pub prune: f64,
    /// Shadows that a package keeps. They replace the choice by `prune`.
    pub shadows: Option<KeptShadows>,
    /// Number of outlier channels in each linear input: 5 to 15 (§3.3).
    pub outlier_channels: f64,
    /// Techniques that are on.
    pub techniques: Techniques,
    /// Other apps that use the processors.
    pub contention: Vec<Contention>,
    /// Bytes that the NPU can address, if not those of its profile.
    pub window: Option<usize>,
}

impl Options {
    /// Returns the paper's options: chunks of 256 tokens, all of them in flight, 85 % of the shadows pruned.
    pub fn paper(policy: Policy) -> Self {
        Self {
            chunk: 256,
            policy,
            floats_on: FloatsOn::Cpu,
            chunks_in_flight: usize::MAX,
            prune: 0.85,
            shadows: None,
            outlier_channels: 10.0,
            techniques: Techniques::ALL,
            contention: Vec::new(),
            window: None,
        }
    }
}

/// A prefill that can be simulated.
#[derive(Clone, Debug)]
pub struct Prefill {
    /// Its tasks. Their seconds don't include the time to wake up a processor.
    pub tasks: PrefillTasks,
    /// Human-readable labels of the tasks.
    pub labels: Vec<Label>,
    /// The processor that computes in float.
    pub float: ProcessorId,
    /// The processor that computes linear layers in INT8.
    pub npu: ProcessorId,
    /// Seconds before the first task, in which graphs are built.
    pub prepare_seconds: f64,
    /// Bytes of graphs, weights of shadows, keys and values.
    pub memory: Memory,
    wake: f64,
    policy: Policy,
    contention: Vec<Contention>,
    watts: [(f64, f64); 2],
    names: [&'static str; 2],
    prompt: usize,
}

/// Bytes that a prefill needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Bytes of built graphs: weights and buffers.
    pub graph_bytes: usize,
    /// Bytes of the hot channels' weights for shadows, in 16 bits.
    pub shadow_bytes: usize,
    /// Bytes of keys and values, in 16 bits.
    pub cache_bytes: usize,
}

impl Memory {
    /// Returns the sum of all bytes.
    pub fn bytes(&self) -> usize {
        self.graph_bytes + self.shadow_bytes + self.cache_bytes
    }
}

/// Share of channels whose weights stay in memory for shadows: 3 % of the channels have 80 % of the outliers (§3.3).
pub const HOT_CHANNELS: f64 = 0.03;

/// The result of a simulated prefill.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Events since the graphs were built.
    pub timeline: Timeline,
    /// Seconds from the prompt to the activations of its last token, including the time to build graphs for it.
    pub seconds: f64,
    /// Energy of the two processors in joules.
    pub joules: f64,
    /// The processor that computes in float.
    pub float: ProcessorId,
    /// The processor that computes linear layers in INT8.
    pub npu: ProcessorId,
    /// Number of tokens in the prompt.
    pub prompt: usize,
}

impl Outcome {
    /// Returns the prompt's tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.prompt as f64 / self.seconds
    }
}

/// Returns the processors of a simulated prefill: the float processor, `cpu` or `gpu`, then `npu`. The NPU addresses
/// `window` bytes, or those of its profile if `None`.
pub fn processors(
    device: &DeviceProfile,
    floats_on: FloatsOn,
    window: Option<usize>,
) -> Processors {
    let float = match floats_on {
        FloatsOn::Cpu => Processor::cpu("cpu"),
        FloatsOn::Gpu => Processor::gpu("gpu"),
    };
    let npu = Processor::npu("npu", Some(window.unwrap_or_else(|| device.window())));
    Processors::new(vec![float, npu]).expect("unique names")
}

/// Returns the paper's shadows: each linear subgraph on the NPU that keeps a shadow computes it concurrently.
fn papers_shadows(
    graph: &Graph,
    placement: &Placement,
    npu: ProcessorId,
    prune: f64,
) -> Vec<Option<Shadow>> {
    let is_int8 = |subgraph: &usize| graph.subgraphs()[*subgraph].role.format() == Format::Int8;
    let int8: Vec<_> = (0..graph.subgraphs().len()).filter(is_int8).collect();
    let mut shadows = vec![None; graph.subgraphs().len()];
    for (index, subgraph) in int8.iter().enumerate() {
        let on_npu = placement.places()[*subgraph].processor == npu;
        shadows[*subgraph] =
            (on_npu && keeps_shadow(index, int8.len(), prune)).then_some(Shadow::Concurrent);
    }
    shadows
}

/// Returns whether the subgraph at `index` of `count` keeps its shadow: those nearest to input and output do.
fn keeps_shadow(index: usize, count: usize, prune: f64) -> bool {
    let kept = ((1.0 - prune) * count as f64).round() as usize;
    let from_input = kept.div_ceil(2);
    index < from_input || index >= count - (kept - from_input)
}

impl Prefill {
    /// Creates the tasks of a prompt of `prompt` tokens.
    ///
    /// # Panics
    /// If the prompt or a chunk is empty, or `floats_on` is a GPU that the device does not have.
    pub fn new(
        device: &DeviceProfile,
        description: &ModelDescription,
        prompt: usize,
        options: &Options,
    ) -> Self {
        let Techniques {
            chunk_sharing,
            shadow,
            out_of_order,
            equivalent_shapes,
        } = options.techniques;
        let chunk = if chunk_sharing { options.chunk } else { prompt };
        let kept = options.shadows.as_ref().filter(|_| shadow);
        let hot_share = kept.map_or(HOT_CHANNELS, |kept| kept.hot_share);
        let splits = |block: usize| {
            kept.and_then(|kept| kept.blocks.get(block))
                .is_some_and(|block| block.splits())
        };
        let graph = Graph::with_splits(description, prompt, chunk, splits);
        let (float, name) = match options.floats_on {
            FloatsOn::Cpu => (&device.cpu, "CPU"),
            FloatsOn::Gpu => (device.gpu.as_ref().expect("a device with a GPU"), "GPU"),
        };
        let processors = processors(device, options.floats_on, options.window);
        let [on_float, on_npu] = [0, 1].map(ProcessorId::new);
        // Exactly one processor is preferred for each format, so there is no load to balance by seconds.
        let placement = Placement::new(&graph, &processors, |_, _| 1.0)
            .expect("the first computes all formats");
        let costs = Costs {
            device,
            float,
            description,
            graph: &graph,
            how: NpuUse {
                equivalent_shapes,
                per_tensor: shadow,
            },
        };
        let whole = TaskOptions::whole(placement.clone(), options.chunks_in_flight);
        let task_options = match kept {
            Some(kept) => whole.with_shadows(&graph, &processors, &kept.blocks),
            None if shadow => TaskOptions {
                shadows: papers_shadows(&graph, &placement, on_npu, options.prune),
                ..whole
            },
            None => whole,
        };
        let linears: Vec<_> = (0..graph.subgraphs().len())
            .map(|subgraph| costs.linears(subgraph))
            .collect();
        let seconds = |task: &PrefillTask, processor: ProcessorId| {
            let has_shadow = task_options.shadow(task.task.subgraph).is_some();
            costs.seconds(
                task,
                &linears[task.task.subgraph],
                processor == on_npu,
                has_shadow,
                options.outlier_channels,
            )
        };
        let mut tasks =
            PrefillTasks::new(&graph, &processors, &task_options, seconds).expect("nothing is cut");
        let policy = if out_of_order {
            options.policy
        } else {
            Policy::InOrder
        };
        let wake = device.wake_milliseconds * 1e-3;
        if policy == Policy::Planned {
            let order = plan(&tasks.dag, wake, Effort::default(), &mut || true).order;
            tasks.dag = tasks.dag.with_plan(&order, wake);
        }
        let weights = |keep: &dyn Fn(usize) -> bool| -> usize {
            let all = graph.subgraphs().iter().enumerate();
            all.filter(|(index, _)| keep(*index))
                .map(|(_, subgraph)| subgraph.weight_bytes)
                .sum()
        };
        let npu_gigabytes =
            weights(&|index| placement.places()[index].processor == on_npu) as f64 / 1e9;
        let npu = &device.npu;
        let building = npu.build_milliseconds_per_gigabyte + npu.optimize_milliseconds_per_gigabyte;
        Self {
            labels: tasks.labels(&graph),
            tasks,
            float: on_float,
            npu: on_npu,
            prepare_seconds: if chunk_sharing {
                0.0
            } else {
                npu_gigabytes * building * 1e-3
            },
            memory: Memory {
                graph_bytes: graph.memory().shared_bytes,
                shadow_bytes: (2.0
                    * hot_share
                    * weights(&|index| task_options.shadow(index).is_some()) as f64)
                    as usize,
                cache_bytes: prompt * description.kv_bytes_per_token(|width| 2 * width),
            },
            wake,
            policy,
            contention: options.contention.clone(),
            watts: [
                (float.busy_watts, float.idle_watts),
                (npu.busy_watts, npu.idle_watts),
            ],
            names: [name, "NPU"],
            prompt,
        }
    }

    /// Runs the prefill in virtual time.
    pub fn run(&self) -> Outcome {
        self.run_as(|task| self.tasks.dag.seconds(task))
    }

    /// Runs the prefill with task times that differ from those that the schedule expects.
    pub fn run_as(&self, takes: impl Fn(usize) -> f64) -> Outcome {
        let takes = |begin: Begin| {
            let before = if begin.idle { self.wake } else { 0.0 };
            let (seconds, now) = (takes(begin.task), begin.now);
            // Exactly 0 without contention, so that the schedule observes the times that it expects.
            let late = match &self.contention[..] {
                [] => 0.0,
                others => (ends(others, begin.processor, now, before + seconds)
                    - (now + before + seconds))
                    .max(0.0),
            };
            Takes {
                before,
                ..(seconds + late).into()
            }
        };
        let timeline = simulate_each(&self.tasks.dag, self.policy, takes);
        let seconds = self.prepare_seconds + timeline.seconds();
        let joules = |(processor, (busy, idle)): (ProcessorId, &(f64, f64))| {
            // Graphs are built by the CPU, but the energy is counted on the processor that computes in float.
            let building = if processor == self.float {
                self.prepare_seconds
            } else {
                0.0
            };
            let worked = timeline.busy(processor) + building;
            worked * busy + (seconds - worked) * idle
        };
        let joules = [self.float, self.npu]
            .into_iter()
            .zip(&self.watts)
            .map(joules)
            .sum();
        Outcome {
            timeline,
            seconds,
            joules,
            float: self.float,
            npu: self.npu,
            prompt: self.prompt,
        }
    }

    /// Returns a record for figures and traces.
    pub fn record<'a>(&'a self, title: &'a str, outcome: &'a Outcome) -> Record<'a> {
        Record {
            title,
            source: Source::Simulated,
            timeline: &outcome.timeline,
            dag: &self.tasks.dag,
            labels: &self.labels,
            processors: &self.names,
        }
    }
}

/// Returns the time at which work of `seconds` that starts on a processor at `now` ends while others take their shares.
pub fn ends(contention: &[Contention], processor: ProcessorId, now: f64, seconds: f64) -> f64 {
    let here = || {
        contention
            .iter()
            .filter(|other| other.processor == processor && other.to > other.from)
    };
    let mut edges: Vec<f64> = here()
        .flat_map(|other| [other.from, other.to])
        .filter(|edge| *edge > now)
        .collect();
    edges.sort_by(f64::total_cmp);
    if seconds == 0.0 {
        return now;
    }
    let (mut now, mut left) = (now, seconds);
    for edge in edges {
        let left_over = |other: &Contention| (1.0 - other.share).clamp(0.0, 1.0);
        let speed: f64 = here()
            .filter(|other| other.from <= now && now < other.to)
            .map(left_over)
            .product();
        let done = (edge - now) * speed;
        if done >= left {
            return now + left / speed;
        }
        left -= done;
        now = edge;
    }
    now + left
}

/// Inputs of the cost computation.
struct Costs<'a> {
    device: &'a DeviceProfile,
    float: &'a Float,
    description: &'a ModelDescription,
    graph: &'a Graph,
    how: NpuUse,
}

impl Costs<'_> {
    fn linears(&self, subgraph: usize) -> Vec<LinearShape> {
        let subgraph = &self.graph.subgraphs()[subgraph];
        let all = self.description.blocks[subgraph.block].linears(self.description.hidden);
        all.into_iter()
            .filter(|shape| subgraph.role.has(shape.linear))
            .collect()
    }

    /// Returns the seconds of a task whose subgraph has the linear layers `linears`.
    fn seconds(
        &self,
        task: &PrefillTask,
        linears: &[LinearShape],
        on_npu: bool,
        has_shadow: bool,
        outlier_channels: f64,
    ) -> f64 {
        let (subgraph, rows) = (
            &self.graph.subgraphs()[task.task.subgraph],
            self.graph.chunks()[task.task.chunk].len(),
        );
        if task.operation == Operation::Shadow {
            return self.float.shadow(linears, rows, outlier_channels);
        }
        if on_npu {
            let join = if has_shadow {
                self.device.npu.join_milliseconds * 1e-3
            } else {
                0.0
            };
            return self.device.npu_subgraph(
                subgraph,
                linears,
                self.graph.chunk_length(),
                self.how,
            ) + join;
        }
        let operations = self.graph.operations(task.task) as f64;
        match subgraph.role.format() {
            Format::Float => self.float.float_subgraph(subgraph, rows, operations),
            Format::Int8 => self.float.int8_subgraph(subgraph, rows, operations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use triad_model::family::shape;

    fn qwen(prompt: usize, options: &Options) -> Prefill {
        Prefill::new(
            &DeviceProfile::builtin("snapdragon-8gen3").unwrap(),
            &shape("qwen1.5-1.8b").unwrap(),
            prompt,
            options,
        )
    }

    #[test]
    fn shadows_stay_near_input_and_output() {
        let kept: Vec<_> = (0..20)
            .filter(|index| keeps_shadow(*index, 20, 0.85))
            .collect();
        assert_eq!(kept, [0, 1, 19]);
        assert!((0..20).all(|index| keeps_shadow(index, 20, 0.0) && !keeps_shadow(index, 20, 1.0)));
    }

    #[test]
    fn a_processor_that_is_stopped_goes_on_afterwards() {
        let ids = [0, 1].map(ProcessorId::new);
        let other = |share, from, to| Contention {
            processor: ProcessorId::new(0),
            share,
            from,
            to,
        };
        assert_eq!(ends(&[other(1.0, 1.0, 3.0)], ids[0], 0.0, 2.0), 4.0);
        assert_eq!(ends(&[other(0.5, 1.0, 3.0)], ids[0], 0.0, 2.0), 3.0);
        assert_eq!(ends(&[other(0.5, 1.0, 3.0)], ids[1], 0.0, 2.0), 2.0);
        assert_eq!(
            ends(
                &[other(0.5, 0.0, 2.0), other(0.5, 1.0, 2.0)],
                ids[0],
                0.0,
                1.0
            ),
            2.25
        );
        assert_eq!(ends(&[other(1.0, 0.0, 1.0)], ids[0], 0.0, 0.0), 0.0);
    }

    #[test]
    fn without_a_technique_it_takes_longer() {
        let all = qwen(512, &Options::paper(Policy::Paper)).run();
        for without in [
            Techniques {
                chunk_sharing: false,
                ..Techniques::ALL
            },
            Techniques {
                shadow: false,
                ..Techniques::ALL
            },
            Techniques {
                out_of_order: false,
                ..Techniques::ALL
            },
            Techniques {
                equivalent_shapes: false,
                ..Techniques::ALL
            },
        ] {
            let less = qwen(
                512,
                &Options {
                    techniques: without,
                    ..Options::paper(Policy::Paper)
                },
            )
            .run();
            assert!(less.seconds > all.seconds, "{without:?}: {}", less.seconds);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn contention_ends_no_task_earlier(
            others in prop::collection::vec((0usize..2, 0f64..=1.0, 0f64..2.0, 0f64..2.0), 0..5),
            now in 0f64..3.0,
            seconds in 0f64..3.0,
            prompt in 1usize..900,
        ) {
            let ids = [0, 1].map(ProcessorId::new);
            let others: Vec<_> = others
                .into_iter()
                .map(|(processor, share, from, length)| Contention { processor: ids[processor], share, from, to: from + length })
                .collect();
            for processor in ids {
                prop_assert!(ends(&others, processor, now, seconds) >= now + seconds - 1e-9);
            }
            // In order, a schedule has no choice. Under other policies slower tasks can lead to a better order by
            // chance (Graham).
            let alone = Options::paper(Policy::InOrder);
            let contended = Options { contention: others, ..alone.clone() };
            let mut prefills = [qwen(prompt, &alone), qwen(prompt, &contended)];
            // A delayed processor may find work without an idle gap, and then needs no time to wake up.
            prefills.iter_mut().for_each(|prefill| prefill.wake = 0.0);
            let [alone, contended] = prefills.map(|prefill| prefill.run().seconds);
            prop_assert!(contended >= alone - 1e-9, "{contended} next to others, {alone} alone");
        }

        #[test]
        fn a_simulation_never_beats_the_bound(prompt in 1usize..900, chunk in 32usize..512, prune in 0f64..=1.0) {
            for policy in Policy::ALL {
                let prefill = qwen(prompt, &Options { chunk, prune, ..Options::paper(policy) });
                let seconds = prefill.run().seconds;
                prop_assert!(seconds >= crate::bound::lower_bound(&prefill.tasks.dag) - 1e-9, "{policy:?}");
            }
        }
    }
}
