//! How long subgraphs take: what a schedule expects, learned from what was seen.

use serde::{Deserialize, Serialize};
use triad_plan::graph::{Graph, Role, Task};
use triad_plan::placement::Processor;
use triad_plan::timeline::Timeline;

/// Before anything was seen: operations and bytes a second of an ordinary core.
const OPERATIONS_PER_SECOND: f64 = 5e10;
const BYTES_PER_SECOND: f64 = 5e9;

/// Seconds of one role on one processor: linear in the tokens of a chunk, and for attention in the positions that they
/// see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// For each token of the chunk.
    pub seconds_per_token: f64,
    /// For each token and each position before it.
    pub seconds_per_token_and_position: f64,
}

/// What each role takes on each processor, where it has been seen there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Of the CPU and the NPU, in the order of [`Role::ALL`].
    processors: [[Option<Cost>; 6]; 2],
}

impl Costs {
    /// Seconds of a task on `rows` tokens behind `before` others; `None` if it was not seen on this processor.
    pub fn seconds(&self, processor: Processor, role: Role, rows: usize, before: usize) -> Option<f64> {
        let cost = self.processors[processor as usize][role as usize]?;
        let (tokens, pairs) = sizes(rows, before);
        Some(cost.seconds_per_token * tokens + cost.seconds_per_token_and_position * pairs)
    }

    /// Of each role that was seen on a processor.
    pub fn seen(&self) -> impl Iterator<Item = (Processor, Role, Cost)> {
        [Processor::Cpu, Processor::Npu].into_iter().flat_map(move |processor| {
            let roles = Role::ALL.into_iter().zip(&self.processors[processor as usize]);
            roles.filter_map(move |(role, cost)| Some((processor, role, (*cost)?)))
        })
    }

    /// Takes what a run says, of a prompt whose first token was at `position`, in place of what was known.
    pub(super) fn learn(&mut self, graph: &Graph, position: usize, timeline: &Timeline) {
        let subgraphs = graph.subgraphs();
        let mut sums = [[Sums::default(); 6]; 2];
        for event in timeline.events() {
            let tokens = &graph.chunks()[event.task / subgraphs.len()];
            let role = subgraphs[event.task % subgraphs.len()].role;
            let (tokens, pairs) = sizes(tokens.len(), position + tokens.start);
            sums[event.processor][role as usize].add(tokens, pairs, event.end - event.start);
        }
        for (costs, sums) in self.processors.iter_mut().zip(&sums) {
            for ((cost, sums), role) in costs.iter_mut().zip(sums).zip(Role::ALL) {
                *cost = sums.fit(role).or(*cost);
            }
        }
    }
}

/// Seconds of a task of which nothing is known but its size.
pub(super) fn guess(graph: &Graph, task: Task) -> f64 {
    let bytes = graph.subgraphs()[task.subgraph].activation_bytes_per_row * graph.chunks()[task.chunk].len();
    graph.operations(task) as f64 / OPERATIONS_PER_SECOND + bytes as f64 / BYTES_PER_SECOND
}

/// Tokens, and pairs of a token and a position that it sees.
fn sizes(rows: usize, before: usize) -> (f64, f64) {
    (rows as f64, rows as f64 * (before as f64 + (rows as f64 + 1.0) / 2.0))
}

/// Of all tasks of one role on one processor: products of tokens, pairs and seconds.
#[derive(Clone, Copy, Default)]
struct Sums {
    tokens_tokens: f64,
    tokens_pairs: f64,
    pairs_pairs: f64,
    tokens_seconds: f64,
    pairs_seconds: f64,
}

impl Sums {
    fn add(&mut self, tokens: f64, pairs: f64, seconds: f64) {
        self.tokens_tokens += tokens * tokens;
        self.tokens_pairs += tokens * pairs;
        self.pairs_pairs += pairs * pairs;
        self.tokens_seconds += tokens * seconds;
        self.pairs_seconds += pairs * seconds;
    }

    /// Least squares; `None` without a task. Times are never negative, so neither are their parts.
    fn fit(&self, role: Role) -> Option<Cost> {
        if self.tokens_tokens == 0.0 {
            return None;
        }
        let by_token = Cost { seconds_per_token: self.tokens_seconds / self.tokens_tokens, ..Cost::default() };
        let determinant = self.tokens_tokens * self.pairs_pairs - self.tokens_pairs * self.tokens_pairs;
        // Of one chunk alone nobody knows which part is whose.
        if role.is_static() || determinant <= 1e-6 * self.tokens_tokens * self.pairs_pairs {
            return Some(by_token);
        }
        let tokens = (self.tokens_seconds * self.pairs_pairs - self.pairs_seconds * self.tokens_pairs) / determinant;
        let pairs = (self.pairs_seconds * self.tokens_tokens - self.tokens_seconds * self.tokens_pairs) / determinant;
        let pairs_alone = self.pairs_seconds / self.pairs_pairs;
        Some(match (tokens >= 0.0, pairs >= 0.0) {
            (true, true) => Cost { seconds_per_token: tokens, seconds_per_token_and_position: pairs },
            (true, false) => by_token,
            (false, _) => Cost { seconds_per_token: 0.0, seconds_per_token_and_position: pairs_alone },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_plan::timeline::Event;

    #[test]
    fn what_was_seen_is_what_is_expected() {
        let graph = Graph::new(&triad_model::family::shape("smollm2-135m").unwrap(), 900, 256);
        let subgraphs = graph.subgraphs().len();
        let takes = |task: usize| {
            let tokens = &graph.chunks()[task / subgraphs];
            let (rows, pairs) = sizes(tokens.len(), 100 + tokens.start);
            match graph.subgraphs()[task % subgraphs].role {
                Role::Attention => 2e-6 * rows + 3e-8 * pairs,
                _ => 5e-6 * rows,
            }
        };
        let event = |task| Event { task, processor: 0, start: 1.0, end: 1.0 + takes(task) };
        let mut costs = Costs::default();
        costs.learn(&graph, 100, &Timeline::new((0..4 * subgraphs).map(event).collect(), 1));
        let seconds = |role, rows, before| costs.seconds(Processor::Cpu, role, rows, before).unwrap();
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(close(seconds(Role::FeedForward, 10, 500), 5e-5));
        assert!(close(seconds(Role::Attention, 100, 1000), 2e-4 + 3e-6 * 1050.5));
        assert_eq!(costs.seconds(Processor::Npu, Role::Attention, 1, 1), None);
        let known = costs.clone();
        costs.learn(&graph, 0, &Timeline::new(Vec::new(), 1));
        assert_eq!(costs, known, "what was not seen again stays");
    }
}
