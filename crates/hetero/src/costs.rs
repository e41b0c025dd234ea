//! Expected times of subgraphs, which schedules use. They are learned from measured times.

mod effects;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use triad_plan::graph::{Graph, Role};
use triad_plan::processors::{Processors, label};
use triad_plan::tasks::{KINDS, Operation, PrefillTask};

use crate::execution::Execution;

/// The valid share by which idle time before a task, or work of another processor, makes tasks longer. Anything else is a
/// disturbance, or a file from another program. With both effects at their minimum, tasks still take some time.
const LONGER: RangeInclusive<f64> = -0.45..=0.75;
/// Operations and bytes per second of an ordinary core, used before anything was measured.
const OPERATIONS_PER_SECOND: f64 = 5e10;
const BYTES_PER_SECOND: f64 = 5e9;

/// Seconds of one role on one processor: linear in the tokens of a chunk, plus a constant part, as on a processor with
/// static shapes. Attention is linear in the positions that tokens attend to instead. Tasks take longer while other
/// processors work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds per token of the chunk.
    pub seconds_per_token: f64,
    /// Seconds per chunk; only of static subgraphs.
    pub seconds_per_chunk: f64,
    /// Seconds per token and position that it attends to; only of attention.
    pub seconds_per_token_and_position: f64,
    /// Seconds until an idle processor notices that a task is ready; all values are equally likely.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notice_seconds: Vec<f64>,
    /// The share by which a task takes longer if its processor was idle before it, so that caches and clock are not
    /// ready. 0 if it was not measured.
    #[serde(
        default,
        skip_serializing_if = "is_zero",
        alias = "longer_behind_idleness"
    )]
    pub longer_after_idleness: f64,
    /// The share by which time grows while another processor works. 0 if it was not measured.
    #[serde(default, skip_serializing_if = "is_zero", alias = "longer_beside")]
    pub longer_concurrently: f64,
    /// By block, its times as multiples of these seconds: shadows differ by their outliers. 1 for missing blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_block: Vec<f64>,
    /// Times of tasks as multiples of these seconds, all equally likely. Empty if they were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variation: Vec<f64>,
}

/// The costs of each role and its shadow on each processor, where they were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<CostSample>", into = "Vec<CostSample>")]
pub struct Costs {
    /// By name of the processor, and by [`Operation::kind`].
    processors: BTreeMap<String, [Option<Cost>; KINDS]>,
}

/// The cost of a role on a processor, in the format of files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostSample {
    /// The name of the processor.
    pub processor: String,
    /// The role.
    pub role: Role,
    /// Whether it is of the products, or of the shadow.
    #[serde(default = "compute", skip_serializing_if = "is_compute")]
    pub operation: Operation,
    /// The cost.
    pub cost: Cost,
}

impl Cost {
    fn parts(&self) -> [f64; 3] {
        [
            self.seconds_per_token,
            self.seconds_per_chunk,
            self.seconds_per_token_and_position,
        ]
    }

    fn scaled(&self, factor: f64) -> Self {
        Self {
            seconds_per_token: factor * self.seconds_per_token,
            seconds_per_chunk: factor * self.seconds_per_chunk,
            seconds_per_token_and_position: factor * self.seconds_per_token_and_position,
            ..Self::default()
        }
    }

    /// Returns the seconds of a whole chunk of `rows` tokens after `before` others.
    pub fn of_chunk(&self, rows: usize, before: usize) -> f64 {
        let rows = rows as f64;
        self.seconds([rows, rows * (before as f64 + (rows + 1.0) / 2.0)])
    }

    fn seconds(&self, [tokens, pairs]: [f64; 2]) -> f64 {
        self.seconds_per_token * tokens
            + self.seconds_per_chunk
            + self.seconds_per_token_and_position * pairs
    }
}

impl Costs {
    /// Returns the seconds of a task of a prompt that begins at `position`; `None` if no such task was measured on this
    /// processor. A part takes its share of the seconds per token, and all of the seconds per chunk.
    pub fn seconds(
        &self,
        processor: &str,
        graph: &Graph,
        task: &PrefillTask,
        position: usize,
    ) -> Option<f64> {
        let cost = self.of_task(processor, graph, task)?;
        let of_block = cost
            .by_block
            .get(graph.subgraphs()[task.task.subgraph].block)
            .unwrap_or(&1.0);
        Some(of_block * cost.seconds(sizes(graph, task, position)))
    }

    /// Returns the cost of such tasks on a processor, if they were measured there.
    pub fn of_task(&self, processor: &str, graph: &Graph, task: &PrefillTask) -> Option<&Cost> {
        let role = graph.subgraphs()[task.task.subgraph].role;
        self.processors.get(processor)?[task.operation.kind(role)].as_ref()
    }

    /// Returns the costs of all measured kinds of tasks, by processor.
    pub fn seen(&self) -> impl Iterator<Item = CostSample> {
        self.processors.iter().flat_map(|(processor, costs)| {
            kinds().zip(costs).filter_map(|((role, operation), cost)| {
                Some(CostSample {
                    processor: processor.clone(),
                    role,
                    operation,
                    cost: cost.clone()?,
                })
            })
        })
    }

    /// Takes over costs from `other` that are missing here.
    pub(super) fn fill(&mut self, other: &Self) {
        for (processor, costs) in &other.processors {
            let mine = self.processors.entry(processor.clone()).or_default();
            mine.iter_mut()
                .zip(costs)
                .for_each(|(mine, other)| *mine = mine.take().or_else(|| other.clone()));
        }
    }

    /// Replaces costs by those of runs.
    pub(super) fn learn<'a>(
        &mut self,
        processors: &Processors,
        runs: impl IntoIterator<Item = &'a Execution>,
    ) {
        let mut sums = vec![[Sums::default(); KINDS]; processors.len()];
        for Execution {
            graph,
            tasks,
            position,
            timeline,
            ..
        } in runs
        {
            for event in timeline.events() {
                let task = &tasks.tasks[event.task];
                let role = graph.subgraphs()[task.task.subgraph].role;
                let sums = &mut sums[event.processor.index()][task.operation.kind(role)];
                sums.add(role, sizes(graph, task, *position), event.end - event.start);
            }
        }
        for ((_, processor), sums) in processors.iter().zip(&sums) {
            if !sums.iter().any(Sums::has_tasks) {
                continue;
            }
            let costs = self.processors.entry(processor.name.clone()).or_default();
            for ((cost, sums), (role, _)) in costs.iter_mut().zip(sums).zip(kinds()) {
                let Some(seen) = sums.fit(role, cost.as_ref()) else {
                    continue;
                };
                let by_block = cost.take().map_or(Vec::new(), |known| known.by_block);
                *cost = Some(Cost { by_block, ..seen });
            }
        }
    }
}

/// The valid numbers of a cost: with larger ones, sums of tasks would not be finite.
const NUMBERS: RangeInclusive<f64> = 0.0..=1e9;

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// Returns role and operation of all kinds, in order.
fn kinds() -> impl Iterator<Item = (Role, Operation)> {
    let of = |operation| Role::ALL.into_iter().map(move |role| (role, operation));
    of(Operation::Compute).chain(of(Operation::Shadow))
}

fn compute() -> Operation {
    Operation::Compute
}

fn is_compute(operation: &Operation) -> bool {
    *operation == Operation::Compute
}

impl TryFrom<Vec<CostSample>> for Costs {
    type Error = String;

    /// # Errors
    /// If a cost is no time, or is listed twice.
    fn try_from(list: Vec<CostSample>) -> Result<Self, String> {
        let mut costs = Self::default();
        for CostSample {
            processor,
            role,
            operation,
            cost,
        } in list
        {
            let shadow = if operation == Operation::Shadow {
                "the shadow of "
            } else {
                ""
            };
            let name = || format!("{shadow}{} on the {}", role.name(), label(&processor));
            if !cost.parts().iter().all(|seconds| NUMBERS.contains(seconds)) {
                return Err(format!(
                    "{}: expected seconds that are finite and not negative",
                    name()
                ));
            }
            let mut others = cost
                .by_block
                .iter()
                .chain(&cost.variation)
                .chain(&cost.notice_seconds);
            if !others.all(|number| NUMBERS.contains(number)) {
                return Err(format!(
                    "{}: expected by_block, variation and notice_seconds that are not negative",
                    name()
                ));
            }
            let longer = [cost.longer_concurrently, cost.longer_after_idleness];
            if !longer.iter().all(|longer| LONGER.contains(longer)) {
                let [least, most] = [LONGER.start(), LONGER.end()];
                return Err(format!(
                    "{}: expected effects that make it longer by {least} to {most}",
                    name()
                ));
            }
            let is_twice = costs
                .processors
                .get(&processor)
                .is_some_and(|costs| costs[operation.kind(role)].is_some());
            if is_twice {
                return Err(format!("{} is listed twice", name()));
            }
            costs.processors.entry(processor).or_default()[operation.kind(role)] = Some(cost);
        }
        Ok(costs)
    }
}

impl From<Costs> for Vec<CostSample> {
    fn from(costs: Costs) -> Self {
        costs.seen().collect()
    }
}

/// The operations of a shadow as a share of those of its products: few channels are outliers.
const SHADOW_SHARE: f64 = 0.01;

/// Returns the seconds of a task of which only the size is known.
pub(super) fn guess(graph: &Graph, task: &PrefillTask) -> f64 {
    let bytes = graph.subgraphs()[task.task.subgraph].activation_bytes_per_row
        * graph.chunks()[task.task.chunk].len();
    let products = match task.operation {
        Operation::Compute => task.share(graph),
        Operation::Shadow => SHADOW_SHARE,
    };
    let bytes = task.share(graph) * bytes as f64;
    products * graph.operations(task.task) as f64 / OPERATIONS_PER_SECOND + bytes / BYTES_PER_SECOND
}

/// Returns the tokens, and the pairs of a token and a position that it attends to, in a prompt that begins at
/// `position`. A part counts as the share of the tokens that its columns are of all columns.
fn sizes(graph: &Graph, task: &PrefillTask, position: usize) -> [f64; 2] {
    let tokens = &graph.chunks()[task.task.chunk];
    let rows = task.share(graph) * tokens.len() as f64;
    [
        rows,
        rows * ((position + tokens.start) as f64 + (tokens.len() as f64 + 1.0) / 2.0),
    ]
}

/// Sums over all tasks of one role on one processor, of products of tokens, seconds and the other variable of their
/// time: the positions that attention reads, or 1 if there is none.
#[derive(Clone, Copy, Default)]
struct Sums {
    tokens_tokens: f64,
    tokens_others: f64,
    others_others: f64,
    tokens_seconds: f64,
    others_seconds: f64,
}

impl Sums {
    fn has_tasks(&self) -> bool {
        self.tokens_tokens > 0.0
    }

    fn add(&mut self, role: Role, [tokens, pairs]: [f64; 2], seconds: f64) {
        let other = if role.is_static() { 1.0 } else { pairs };
        self.tokens_tokens += tokens * tokens;
        self.tokens_others += tokens * other;
        self.others_others += other * other;
        self.tokens_seconds += tokens * seconds;
        self.others_seconds += other * seconds;
    }

    /// Fits the cost by least squares; `None` without a task. Times are never negative, so neither are their parts.
    /// Chunks of one size do not determine the parts: then those of `known` keep their proportions.
    fn fit(&self, role: Role, known: Option<&Cost>) -> Option<Cost> {
        if !self.has_tasks() {
            return None;
        }
        let cost = |seconds_per_token: f64, other: f64| {
            let cost = Cost {
                seconds_per_token,
                ..Cost::default()
            };
            if role.is_static() {
                Cost {
                    seconds_per_chunk: other,
                    ..cost
                }
            } else {
                Cost {
                    seconds_per_token_and_position: other,
                    ..cost
                }
            }
        };
        let by_token = cost(self.tokens_seconds / self.tokens_tokens, 0.0);
        let determinant =
            self.tokens_tokens * self.others_others - self.tokens_others * self.tokens_others;
        if determinant <= 1e-6 * self.tokens_tokens * self.others_others {
            let expected = known.map_or(0.0, |known| {
                let other = known.seconds_per_chunk + known.seconds_per_token_and_position;
                known.seconds_per_token * self.tokens_tokens + other * self.tokens_others
            });
            let scaled = known
                .filter(|_| expected > 0.0)
                .map(|known| known.scaled(self.tokens_seconds / expected));
            return Some(scaled.unwrap_or(by_token));
        }
        let tokens =
            self.tokens_seconds * self.others_others - self.others_seconds * self.tokens_others;
        let others =
            self.others_seconds * self.tokens_tokens - self.tokens_seconds * self.tokens_others;
        Some(match (tokens >= 0.0, others >= 0.0) {
            (true, true) => cost(tokens / determinant, others / determinant),
            (true, false) => by_token,
            (false, _) => cost(0.0, self.others_seconds / self.others_others),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_plan::placement::Placement;
    use triad_plan::processors::ProcessorId;
    use triad_plan::schedule::Policy;
    use triad_plan::tasks::{PrefillTasks, TaskOptions};
    use triad_plan::timeline::{Event, Timeline};

    /// Returns a prompt of `tokens` tokens at a position, whose tasks took the seconds of `takes` on one processor.
    fn executed(
        tokens: usize,
        position: usize,
        processor: usize,
        takes: impl Fn(&Graph, &PrefillTask) -> Option<f64>,
    ) -> Execution {
        let graph = Graph::new(
            &triad_model::family::shape("smollm2-135m").unwrap(),
            tokens,
            256,
        );
        let processors = Processors::cpu_and_npu(None);
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let tasks = PrefillTasks::new(
            &graph,
            &processors,
            &TaskOptions::whole(placement, 4),
            |_, _| 1.0,
        )
        .unwrap();
        let event = |(task, what): (usize, &PrefillTask)| {
            let seconds = takes(&graph, what)?;
            Some(Event {
                task,
                processor: ProcessorId::new(processor),
                start: 1.0,
                end: 1.0 + seconds,
            })
        };
        let timeline = Timeline::new(
            tasks.tasks.iter().enumerate().filter_map(event).collect(),
            2,
        );
        Execution {
            start: std::time::Instant::now(),
            graph,
            tasks: tasks.into(),
            position,
            policy: Policy::Fifo,
            timeline,
            waits: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Returns a task of one role on a chunk of `rows` tokens.
    fn task(role: Role, rows: usize) -> (Graph, PrefillTask) {
        let graph = Graph::new(
            &triad_model::family::shape("smollm2-135m").unwrap(),
            rows,
            256,
        );
        let subgraph = graph
            .subgraphs()
            .iter()
            .position(|subgraph| subgraph.role == role)
            .unwrap();
        let task = PrefillTask::whole(
            &graph,
            triad_plan::graph::Task {
                chunk: 0,
                subgraph,
                part: 0,
            },
        );
        (graph, task)
    }

    #[test]
    fn what_was_seen_is_what_is_expected() {
        let takes = |graph: &Graph, task: &PrefillTask| {
            let [rows, pairs] = sizes(graph, task, 100);
            Some(match graph.subgraphs()[task.task.subgraph].role {
                Role::Attention => 2e-6 * rows + 3e-8 * pairs,
                Role::AttentionNorm => 1e-6 * rows,
                _ => 5e-6 * rows + 4e-5,
            })
        };
        let processors = Processors::cpu_and_npu(None);
        let mut costs = Costs::default();
        costs.learn(&processors, [&executed(900, 100, 0, takes)]);
        let seconds = |role, rows, position| {
            let (graph, task) = task(role, rows);
            costs.seconds("cpu", &graph, &task, position).unwrap()
        };
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(close(seconds(Role::FeedForward, 10, 500), 9e-5));
        assert!(close(seconds(Role::AttentionNorm, 10, 500), 1e-5));
        assert!(close(
            seconds(Role::Attention, 100, 1000),
            2e-4 + 3e-6 * 1050.5
        ));
        let (graph, whole) = task(Role::FeedForward, 100);
        assert_eq!(costs.seconds("npu", &graph, &whole, 1), None);
        let mut half = whole.clone();
        half.part.columns.end /= 2;
        assert!(
            close(
                costs.seconds("cpu", &graph, &half, 0).unwrap(),
                5e-6 * 50.0 + 4e-5
            ),
            "its share of the tokens"
        );
        let known = costs.clone();
        costs.learn(&processors, [&executed(900, 0, 0, |_, _| None)]);
        assert_eq!(costs, known, "what was not seen again stays");
    }

    #[test]
    fn chunks_of_one_size_keep_the_proportions_that_are_known() {
        let is_feed_forward = |graph: &Graph, task: &PrefillTask| {
            (graph.subgraphs()[task.task.subgraph].role == Role::FeedForward).then_some(6e-4)
        };
        let seen = executed(100, 0, 1, is_feed_forward);
        let processors = Processors::cpu_and_npu(None);
        let mut costs = Costs::default();
        costs.learn(&processors, [&seen]);
        let kind = Operation::Compute.kind(Role::FeedForward);
        let cost = |costs: &Costs| costs.processors["npu"][kind].clone().unwrap();
        let alone = cost(&costs);
        assert!(
            (alone.seconds_per_token / 6e-6 - 1.0).abs() < 1e-9 && alone.parts()[1..] == [0.0; 2]
        );
        let known = Cost {
            seconds_per_token: 1e-6,
            seconds_per_chunk: 2e-4,
            ..Cost::default()
        };
        costs.processors.get_mut("npu").unwrap()[kind] = Some(known);
        costs.learn(&processors, [&seen]);
        let Cost {
            seconds_per_token,
            seconds_per_chunk,
            ..
        } = cost(&costs);
        assert!(
            (seconds_per_token / 2e-6 - 1.0).abs() < 1e-9
                && (seconds_per_chunk / 4e-4 - 1.0).abs() < 1e-9
        );
    }

    #[test]
    fn only_times_are_read_as_costs_each_once() {
        let cost = Cost {
            seconds_per_token: 1e-6,
            ..Cost::default()
        };
        let seen = CostSample {
            processor: "cpu".into(),
            role: Role::Attention,
            operation: Operation::Compute,
            cost: cost.clone(),
        };
        let shadow = CostSample {
            role: Role::Down,
            operation: Operation::Shadow,
            ..seen.clone()
        };
        let costs = Costs::try_from(vec![seen.clone(), shadow.clone()]).unwrap();
        assert_eq!(
            serde_json::from_value::<Costs>(serde_json::to_value(&costs).unwrap()).unwrap(),
            costs
        );
        for (twice, name) in [
            (seen.clone(), "attention on the CPU"),
            (shadow, "the shadow of down on the CPU"),
        ] {
            let refused = Costs::try_from(vec![twice.clone(), twice]).unwrap_err();
            assert_eq!(refused, format!("{name} is listed twice"));
        }
        for wrong in [-1.0, 1e300, f64::NAN, f64::INFINITY] {
            for cost in [
                Cost {
                    seconds_per_token: wrong,
                    ..cost.clone()
                },
                Cost {
                    by_block: vec![wrong],
                    ..cost.clone()
                },
                Cost {
                    variation: vec![1.0, wrong],
                    ..cost.clone()
                },
                Cost {
                    notice_seconds: vec![wrong],
                    ..cost.clone()
                },
            ] {
                assert!(
                    Costs::try_from(vec![CostSample {
                        cost,
                        ..seen.clone()
                    }])
                    .unwrap_err()
                    .contains("not negative")
                );
            }
        }
        for wrong in [-1.0, 1.0, f64::NAN] {
            for cost in [
                Cost {
                    longer_concurrently: wrong,
                    ..cost.clone()
                },
                Cost {
                    longer_after_idleness: wrong,
                    ..cost.clone()
                },
            ] {
                assert!(
                    Costs::try_from(vec![CostSample {
                        cost,
                        ..seen.clone()
                    }])
                    .unwrap_err()
                    .contains("longer by -0.45 to 0.75")
                );
            }
        }
    }
}
