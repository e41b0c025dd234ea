//! Other forms of equation 5, and a scheduler that runs any of them.
//!
//! [`Schedule`](triad_plan::schedule::Schedule) updates its priorities incrementally and decides in microseconds. This
//! scheduler recomputes every C for each decision, and is only for studies.

use serde::Serialize;

use triad_plan::schedule::Dag;

/// Definition of C. In all forms, the first of the tasks with the largest C runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As the text around the equation and [`Policy::Paper`](triad_plan::schedule::Policy::Paper) define it: for tasks
    /// off the NPU, the seconds of NPU tasks that become ready; for NPU tasks, minus the seconds of other processors'
    /// tasks.
    Text,
    /// As the equation is printed: the seconds of all tasks that become ready, on any processor; negated for NPU tasks.
    Printed,
    /// The number of tasks instead of their seconds.
    Count,
    /// The same sign for NPU tasks as for others: an NPU task frees as much work for other processors as possible.
    SameSign,
    /// Off the NPU as in the text; the NPU runs its tasks in order.
    OneSided,
    /// As in the text; ties are broken by the longer remaining path.
    TiesByRank,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 6] = [
        Self::Text,
        Self::Printed,
        Self::Count,
        Self::SameSign,
        Self::OneSided,
        Self::TiesByRank,
    ];

    /// Returns the name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "C as in the text",
            Self::Printed => "C as printed",
            Self::Count => "C counts tasks",
            Self::SameSign => "C, same sign",
            Self::OneSided => "C off the NPU",
            Self::TiesByRank => "C, ties by rank",
        }
    }
}

/// Returns the seconds of a run with `form` in which each task takes `takes(task)`.
pub fn seconds(dag: &Dag, form: Form, takes: impl Fn(usize) -> f64) -> f64 {
    let bottleneck = dag.bottleneck();
    let mut ranks = vec![0.0f64; dag.len()];
    for task in (0..dag.len()).rev() {
        ranks[task] += dag.seconds(task);
        for before in dag.predecessors(task) {
            ranks[*before] = ranks[*before].max(ranks[task]);
        }
    }
    let mut missing: Vec<_> = (0..dag.len())
        .map(|task| dag.predecessors(task).len())
        .collect();
    let mut ready: Vec<Vec<usize>> = vec![Vec::new(); dag.processors()];
    let is_first = |task: &usize| missing[*task] == 0;
    (0..dag.len())
        .filter(is_first)
        .for_each(|task| ready[dag.home(task).index()].push(task));
    let mut running: Vec<Option<(f64, usize)>> = vec![None; dag.processors()];
    let mut now = 0.0f64;
    loop {
        for id in dag.processor_ids() {
            let (processor, is_bottleneck) = (id.index(), id == bottleneck);
            if running[processor].is_some() {
                continue;
            }
            let key = |task: usize| {
                let freed = dag
                    .successors(task)
                    .iter()
                    .filter(|later| missing[**later] == 1);
                let value = |later: &usize| {
                    if form == Form::Count {
                        1.0
                    } else {
                        dag.seconds(*later)
                    }
                };
                let counts = |later: &&usize| {
                    form == Form::Printed || (dag.home(**later) == bottleneck) != is_bottleneck
                };
                let sum: f64 = freed.filter(counts).map(value).sum();
                let c = match (is_bottleneck, form) {
                    (true, Form::OneSided) => 0.0,
                    (true, Form::SameSign) | (false, _) => sum,
                    (true, _) => -sum,
                };
                (
                    c,
                    if form == Form::TiesByRank {
                        ranks[task]
                    } else {
                        0.0
                    },
                )
            };
            let better = |one: usize, other: usize| {
                let ((c, rank), (other_c, other_rank)) = (key(one), key(other));
                c.total_cmp(&other_c)
                    .then(rank.total_cmp(&other_rank))
                    .then(other.cmp(&one))
            };
            let best = (0..ready[processor].len())
                .max_by(|a, b| better(ready[processor][*a], ready[processor][*b]));
            if let Some(place) = best {
                let task = ready[processor].swap_remove(place);
                running[processor] = Some((now + takes(task), task));
            }
        }
        let next = running
            .iter()
            .flatten()
            .map(|(end, _)| *end)
            .fold(f64::INFINITY, f64::min);
        if next.is_infinite() {
            return now;
        }
        now = next;
        for slot in &mut running {
            if let Some((end, task)) = *slot
                && end <= now
            {
                *slot = None;
                for later in dag.successors(task) {
                    missing[*later] -= 1;
                    if missing[*later] == 0 {
                        ready[dag.home(*later).index()].push(*later);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_plan::device::DeviceProfile;
    use triad_plan::prefill::{Options, Prefill};
    use triad_plan::schedule::Policy;
    use triad_plan::simulate::simulate;

    #[test]
    fn the_form_of_the_text_is_the_policy_called_paper() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        for (name, prompt) in [("qwen1.5-1.8b", 700), ("gemma-2b", 1024)] {
            let description = triad_model::family::shape(name).unwrap();
            let dag = Prefill::new(
                &device,
                &description,
                prompt,
                &Options::paper(Policy::Paper),
            )
            .tasks
            .dag;
            let policy = simulate(&dag, Policy::Paper, |task| dag.seconds(task)).seconds();
            let form = seconds(&dag, Form::Text, |task| dag.seconds(task));
            assert!(
                (policy / form - 1.0).abs() < 1e-9,
                "{name}: {policy} and {form}"
            );
        }
    }
}
