//! How long subgraphs take: what a schedule expects, learned from what was seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use triad_plan::graph::{Graph, Role, Task};
use triad_plan::processors::{Processors, label};
use triad_plan::timeline::Timeline;

/// Before anything was seen: operations and bytes a second of an ordinary core.
const OPERATIONS_PER_SECOND: f64 = 5e10;
const BYTES_PER_SECOND: f64 = 5e9;

/// Seconds of one role on one processor: linear in the tokens of a chunk, beside a part that does not depend on them, as
/// on a processor of static shapes; of attention in the positions that they see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// For each token of the chunk.
    pub seconds_per_token: f64,
    /// For each chunk; of static subgraphs.
    pub seconds_per_chunk: f64,
    /// For each token and each position that it sees; of attention.
    pub seconds_per_token_and_position: f64,
}

/// What each role takes on each processor, where it has been seen there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Seen>", into = "Vec<Seen>")]
pub struct Costs {
    /// By the name of a processor, in the order of [`Role::ALL`].
    processors: BTreeMap<String, [Option<Cost>; Role::ALL.len()]>,
}

/// What a role takes on a processor, as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// The name of the processor.
    pub processor: String,
    /// Which role.
    pub role: Role,
    /// What it takes.
    pub cost: Cost,
}

impl Cost {
    fn parts(&self) -> [f64; 3] {
        [self.seconds_per_token, self.seconds_per_chunk, self.seconds_per_token_and_position]
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            seconds_per_token: factor * self.seconds_per_token,
            seconds_per_chunk: factor * self.seconds_per_chunk,
            seconds_per_token_and_position: factor * self.seconds_per_token_and_position,
        }
    }

    fn seconds(&self, [tokens, pairs]: [f64; 2]) -> f64 {
        self.seconds_per_token * tokens + self.seconds_per_chunk + self.seconds_per_token_and_position * pairs
    }
}

impl Costs {
    /// Seconds of a task on `rows` tokens behind `before` others; `None` if it was not seen on this processor.
    pub fn seconds(&self, processor: &str, role: Role, rows: usize, before: usize) -> Option<f64> {
        let cost = self.processors.get(processor)?[role as usize]?;
        Some(cost.seconds(sizes(rows, before)))
    }

    /// Of each role that was seen on a processor.
    pub fn seen(&self) -> impl Iterator<Item = Seen> {
        self.processors.iter().flat_map(|(processor, costs)| {
            let seen =
                |(role, cost): (Role, &Option<Cost>)| Some(Seen { processor: processor.clone(), role, cost: (*cost)? });
            Role::ALL.into_iter().zip(costs).filter_map(seen)
        })
    }

    /// Takes from `other` what is not known here.
    pub(super) fn fill(&mut self, other: &Self) {
        for (processor, costs) in &other.processors {
            let mine = self.processors.entry(processor.clone()).or_default();
            mine.iter_mut().zip(costs).for_each(|(mine, other)| *mine = mine.or(*other));
        }
    }

    /// Takes what runs say in place of what was known: the graph of each, where its prompt began, and its timeline.
    pub(super) fn learn<'a>(
        &mut self,
        processors: &Processors,
        runs: impl IntoIterator<Item = (&'a Graph, usize, &'a Timeline)>,
    ) {
        let mut sums = vec![[Sums::default(); Role::ALL.len()]; processors.len()];
        for (graph, position, timeline) in runs {
            let subgraphs = graph.subgraphs();
            for event in timeline.events() {
                let tokens = &graph.chunks()[event.task / subgraphs.len()];
                let role = subgraphs[event.task % subgraphs.len()].role;
                let sizes = sizes(tokens.len(), position + tokens.start);
                sums[event.processor.index()][role as usize].add(role, sizes, event.end - event.start);
            }
        }
        for ((_, processor), sums) in processors.iter().zip(&sums) {
            if !sums.iter().any(Sums::has_tasks) {
                continue;
            }
            let costs = self.processors.entry(processor.name.clone()).or_default();
            for ((cost, sums), role) in costs.iter_mut().zip(sums).zip(Role::ALL) {
                *cost = sums.fit(role, *cost).or(*cost);
            }
        }
    }
}

impl TryFrom<Vec<Seen>> for Costs {
    type Error = String;

    /// # Errors
    /// If one is no time, or there twice.
    fn try_from(list: Vec<Seen>) -> Result<Self, String> {
        let mut costs = Self::default();
        for Seen { processor, role, cost } in list {
            let name = || format!("{} on the {}", role.name(), label(&processor));
            if !cost.parts().iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0) {
                return Err(format!("{}: expected seconds that are finite and not negative", name()));
            }
            let is_twice = costs.processors.get(&processor).is_some_and(|costs| costs[role as usize].is_some());
            if is_twice {
                return Err(format!("{} is there twice", name()));
            }
            costs.processors.entry(processor).or_default()[role as usize] = Some(cost);
        }
        Ok(costs)
    }
}

impl From<Costs> for Vec<Seen> {
    fn from(costs: Costs) -> Self {
        costs.seen().collect()
    }
}

/// Seconds of a task of which nothing is known but its size.
pub(super) fn guess(graph: &Graph, task: Task) -> f64 {
    let bytes = graph.subgraphs()[task.subgraph].activation_bytes_per_row * graph.chunks()[task.chunk].len();
    graph.operations(task) as f64 / OPERATIONS_PER_SECOND + bytes as f64 / BYTES_PER_SECOND
}

/// Tokens, and pairs of a token and a position that it sees.
fn sizes(rows: usize, before: usize) -> [f64; 2] {
    [rows as f64, rows as f64 * (before as f64 + (rows as f64 + 1.0) / 2.0)]
}

/// Of all tasks of one role on one processor: sums of products of tokens, seconds and what else a task's time depends
/// on: nothing, so that it is 1, or the positions that attention sees.
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

    /// Least squares; `None` without a task. Times are never negative, so neither are their parts. Chunks of one size
    /// don't say which part is whose: what was `known` then keeps its proportions.
    fn fit(&self, role: Role, known: Option<Cost>) -> Option<Cost> {
        if !self.has_tasks() {
            return None;
        }
        let cost = |seconds_per_token: f64, other: f64| {
            let cost = Cost { seconds_per_token, ..Cost::default() };
            if role.is_static() {
                Cost { seconds_per_chunk: other, ..cost }
            } else {
                Cost { seconds_per_token_and_position: other, ..cost }
            }
        };
        let by_token = cost(self.tokens_seconds / self.tokens_tokens, 0.0);
        let determinant = self.tokens_tokens * self.others_others - self.tokens_others * self.tokens_others;
        if determinant <= 1e-6 * self.tokens_tokens * self.others_others {
            let expected = known.map_or(0.0, |known| {
                let other = known.seconds_per_chunk + known.seconds_per_token_and_position;
                known.seconds_per_token * self.tokens_tokens + other * self.tokens_others
            });
            let scaled = known.filter(|_| expected > 0.0).map(|known| known.scaled(self.tokens_seconds / expected));
            return Some(scaled.unwrap_or(by_token));
        }
        let tokens = self.tokens_seconds * self.others_others - self.others_seconds * self.tokens_others;
        let others = self.others_seconds * self.tokens_tokens - self.tokens_seconds * self.tokens_others;
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
    use triad_plan::processors::ProcessorId;
    use triad_plan::timeline::Event;

    #[test]
    fn what_was_seen_is_what_is_expected() {
        let graph = Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 900, 256);
        let subgraphs = graph.subgraphs().len();
        let takes = |task: usize| {
            let tokens = &graph.chunks()[task / subgraphs];
            let [rows, pairs] = sizes(tokens.len(), 100 + tokens.start);
            match graph.subgraphs()[task % subgraphs].role {
                Role::Attention => 2e-6 * rows + 3e-8 * pairs,
                Role::AttentionNorm => 1e-6 * rows,
                _ => 5e-6 * rows + 4e-5,
            }
        };
        let event = |task| Event { task, processor: ProcessorId::new(0), start: 1.0, end: 1.0 + takes(task) };
        let processors = Processors::cpu_and_npu(None);
        let mut costs = Costs::default();
        let timeline = Timeline::new((0..4 * subgraphs).map(event).collect(), 1);
        costs.learn(&processors, [(&graph, 100, &timeline)]);
        let seconds = |role, rows, before| costs.seconds("cpu", role, rows, before).unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(close(seconds(Role::FeedForward, 10, 500), 9e-5));
        assert!(close(seconds(Role::AttentionNorm, 10, 500), 1e-5));
        assert!(close(seconds(Role::Attention, 100, 1000), 2e-4 + 3e-6 * 1050.5));
        assert_eq!(costs.seconds("npu", Role::Attention, 1, 1), None);
        let known = costs.clone();
        costs.learn(&processors, [(&graph, 0, &Timeline::new(Vec::new(), 1))]);
        assert_eq!(costs, known, "what was not seen again stays");
    }

    #[test]
    fn chunks_of_one_size_keep_the_proportions_that_are_known() {
        let graph = Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 100, 256);
        let task = graph.subgraphs().iter().position(|subgraph| subgraph.role == Role::FeedForward).unwrap();
        let seen = Timeline::new(vec![Event { task, processor: ProcessorId::new(1), start: 0.0, end: 6e-4 }], 2);
        let processors = Processors::cpu_and_npu(None);
        let mut costs = Costs::default();
        costs.learn(&processors, [(&graph, 0, &seen)]);
        let cost = |costs: &Costs| costs.processors["npu"][Role::FeedForward as usize].unwrap();
        let alone = cost(&costs);
        assert!((alone.seconds_per_token / 6e-6 - 1.0).abs() < 1e-9 && alone.parts()[1..] == [0.0; 2]);
        let known = Cost { seconds_per_token: 1e-6, seconds_per_chunk: 2e-4, seconds_per_token_and_position: 0.0 };
        costs.processors.get_mut("npu").unwrap()[Role::FeedForward as usize] = Some(known);
        costs.learn(&processors, [(&graph, 0, &seen)]);
        let Cost { seconds_per_token, seconds_per_chunk, .. } = cost(&costs);
        assert!((seconds_per_token / 2e-6 - 1.0).abs() < 1e-9 && (seconds_per_chunk / 4e-4 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn only_times_are_read_as_costs_each_once() {
        let cost = Cost { seconds_per_token: 1e-6, ..Cost::default() };
        let seen = Seen { processor: "cpu".into(), role: Role::Attention, cost };
        let costs = Costs::try_from(vec![seen.clone()]).unwrap();
        assert_eq!(serde_json::from_value::<Costs>(serde_json::to_value(&costs).unwrap()).unwrap(), costs);
        assert!(
            Costs::try_from(vec![seen.clone(), seen.clone()])
                .unwrap_err()
                .contains("attention on the CPU is there twice")
        );
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            let cost = Cost { seconds_per_token: wrong, ..cost };
            assert!(Costs::try_from(vec![Seen { cost, ..seen.clone() }]).unwrap_err().contains("not negative"));
        }
    }
}
