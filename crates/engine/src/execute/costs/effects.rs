//! What a mean does not say of what tasks take: by block, behind idleness, beside others, how soon they begin, and how much
//! all that varies.

use std::ops::RangeInclusive;

use triad_plan::graph::Subgraph;
use triad_plan::processors::Processors;
use triad_plan::schedule::Dag;
use triad_plan::tasks::KINDS;
use triad_plan::timeline::{Event, Timeline};

use super::{Cost, Costs};
use crate::execute::Execution;

/// What tasks are longer by, for either reason, as a part of themselves. Anything else is a disturbance, or a file that
/// something else wrote; of both reasons together something is left of a task.
pub(super) const LONGER: RangeInclusive<f64> = -0.45..=0.75;
/// So many times of what is known, too.
const MOST_SHARE: f64 = 3.0;
/// Variance that is added to that of an effect's cause.
const LEAST_VARIANCE: f64 = 0.005;
/// How many numbers stand for what varies.
const MOST_RANKS: usize = 64;

/// A task that ran, in seconds.
struct Observed {
    block: usize,
    /// What was expected of it where no other processor works.
    known: f64,
    /// While no other processor worked.
    alone: f64,
    /// While one did.
    beside: f64,
    /// From when anything was ready to its begin, where its processor had nothing to do until then.
    notice: Option<f64>,
}

impl Costs {
    /// What tasks took in runs in order and out of order. Of either those in the middle count, of which a quarter is faster
    /// and a quarter slower: so what disturbs a few of them does not count.
    pub fn of_runs(
        processors: &Processors,
        in_order: Vec<Execution>,
        out_of_order: Vec<Execution>,
    ) -> Self {
        let [in_order, out_of_order] = [in_order, out_of_order].map(in_the_middle);
        let mut costs = Self::default();
        costs.learn(processors, &in_order);
        let observed = costs.observed(processors, &in_order);
        costs.change(processors, &observed, |cost, tasks| {
            cost.by_block = by_block(tasks)
        });
        let observed = costs.observed(processors, in_order.iter().chain(&out_of_order));
        costs.change(processors, &observed, |cost, tasks| {
            let effects = Effects::of(tasks);
            *cost = Cost {
                by_block: std::mem::take(&mut cost.by_block),
                variation: effects.variation(tasks),
                notice_seconds: at_ranks(tasks.iter().filter_map(|task| task.notice).collect()),
                longer_behind_idleness: effects.idle,
                longer_beside: effects.beside,
                ..cost.scaled(effects.scale)
            };
        });
        costs
    }

    /// Changes what is known of each kind, by its tasks.
    fn change(
        &mut self,
        processors: &Processors,
        observed: &[[Vec<Observed>; KINDS]],
        change: impl Fn(&mut Cost, &[Observed]),
    ) {
        for ((_, processor), observed) in processors.iter().zip(observed) {
            let costs = self
                .processors
                .get_mut(&processor.name)
                .into_iter()
                .flatten();
            let known = costs
                .zip(observed)
                .filter_map(|(cost, tasks)| Some((cost.as_mut()?, tasks)));
            known.for_each(|(cost, tasks)| change(cost, tasks));
        }
    }

    /// All tasks of runs of which something is known, by processor and kind.
    fn observed<'a>(
        &self,
        processors: &Processors,
        runs: impl IntoIterator<Item = &'a Execution>,
    ) -> Vec<[Vec<Observed>; KINDS]> {
        let mut observed: Vec<[Vec<_>; KINDS]> =
            processors.iter().map(|_| Default::default()).collect();
        for Execution {
            graph,
            tasks,
            position,
            timeline,
            ..
        } in runs
        {
            let events = timeline
                .events()
                .iter()
                .zip(timeline.overlaps())
                .zip(notices(&tasks.dag, timeline));
            for ((event, beside), notice) in events {
                let task = &tasks.tasks[event.task];
                if let Some(known) =
                    self.seconds(&processors[event.processor].name, graph, task, *position)
                {
                    let Subgraph { role, block, .. } = graph.subgraphs()[task.task.subgraph];
                    let kind = task.operation.kind(role);
                    let alone = event.end - event.start - beside;
                    observed[event.processor.index()][kind].push(Observed {
                        block,
                        known,
                        alone,
                        beside,
                        notice,
                    });
                }
            }
        }
        observed
    }
}

/// Of each event, how long before it something was ready for its processor, where nothing was until then.
fn notices(dag: &Dag, timeline: &Timeline) -> Vec<Option<f64>> {
    let events = timeline.events();
    let mut ends = vec![0.0; dag.len()];
    events.iter().for_each(|event| ends[event.task] = event.end);
    let ready = |event: &Event| {
        dag.predecessors(event.task)
            .iter()
            .map(|before| ends[*before])
            .fold(0.0, f64::max)
    };
    let mut notices = vec![None; events.len()];
    for processor in timeline.processor_ids() {
        let own: Vec<_> = (0..events.len())
            .filter(|index| events[*index].processor == processor)
            .collect();
        // The first that is ready of all that have not begun.
        let mut first = f64::INFINITY;
        for place in (1..own.len()).rev() {
            let [before, event] = [own[place - 1], own[place]].map(|index| &events[index]);
            first = first.min(ready(event));
            notices[own[place]] = (first > before.end).then_some((event.start - first).max(0.0));
        }
    }
    notices
}

/// How tasks of a kind differ from what is known of them.
struct Effects {
    /// What they take behind another one of their processor and beside none, as a part of what is known.
    scale: f64,
    /// What they are longer by where their processor was idle before.
    idle: f64,
    /// What a second of them is longer by while another processor works.
    beside: f64,
}

impl Effects {
    /// By least squares. Where tasks hardly differ in something, nothing is put down to it.
    fn of(tasks: &[Observed]) -> Self {
        let rows = || {
            tasks
                .iter()
                .filter(|task| task.known > 0.0)
                .map(Observed::row)
        };
        let count = rows().count().max(1) as f64;
        let mean = |of: &dyn Fn([f64; 3]) -> f64| rows().map(of).sum::<f64>() / count;
        let means = [0, 1, 2].map(|part| mean(&|row| row[part]));
        let covariance = |one: usize, other: usize| {
            mean(&|row| (row[one] - means[one]) * (row[other] - means[other]))
        };
        let [idle, beside, both] = [
            covariance(0, 0) + LEAST_VARIANCE,
            covariance(1, 1) + LEAST_VARIANCE,
            covariance(0, 1),
        ];
        let [of_idle, of_beside] = [covariance(0, 2), covariance(1, 2)];
        let determinant = idle * beside - both * both;
        let parts = [
            of_idle * beside - of_beside * both,
            of_beside * idle - of_idle * both,
        ]
        .map(|part| part / determinant);
        let scale = means[2] - parts[0] * means[0] - parts[1] * means[1];
        if !(tasks.iter().any(|task| task.known > 0.0) && scale > 0.0) {
            return Self {
                scale: 1.0,
                idle: 0.0,
                beside: 0.0,
            };
        }
        let [idle, beside] = parts.map(|part| (part / scale).clamp(*LONGER.start(), *LONGER.end()));
        Self {
            scale,
            idle,
            beside,
        }
    }

    /// What tasks took as a part of what is known with these effects, at evenly spaced ranks; of mean 1.
    fn variation(&self, tasks: &[Observed]) -> Vec<f64> {
        let share = |task: &Observed| {
            let [idle, beside, share] = task.row();
            share / (self.scale * (1.0 + self.idle * idle + self.beside * beside))
        };
        let mut shares = at_ranks(tasks.iter().map(share).collect());
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        shares
            .iter_mut()
            .filter(|_| mean > 0.0)
            .for_each(|share| *share /= mean);
        shares
    }
}

impl Observed {
    /// Whether its processor was idle before, the part of its time in which another one worked, and its time as a part of
    /// what is known, if anything is.
    fn row(&self) -> [f64; 3] {
        let seconds = self.alone + self.beside;
        let beside = if seconds > 0.0 {
            self.beside / seconds
        } else {
            0.0
        };
        let share = if self.known > 0.0 {
            (seconds / self.known).min(MOST_SHARE)
        } else {
            f64::NAN
        };
        [f64::from(self.notice.is_some()), beside, share]
    }
}

/// What tasks of each block took as a part of what is known.
fn by_block(tasks: &[Observed]) -> Vec<f64> {
    let blocks = tasks.iter().map(|task| task.block + 1).max().unwrap_or(0);
    let mut sums = vec![[0.0; 2]; blocks];
    for task in tasks {
        sums[task.block][0] += task.alone + task.beside;
        sums[task.block][1] += task.known;
    }
    sums.iter()
        .map(|[took, known]| if *known > 0.0 { took / known } else { 1.0 })
        .collect()
}

/// As few as stand for many, at evenly spaced ranks.
fn at_ranks(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.retain(|number| number.is_finite());
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len().min(MOST_RANKS);
    (0..count)
        .map(|rank| numbers[(2 * rank + 1) * numbers.len() / (2 * count)])
        .collect()
}

/// All runs but the fastest quarter and the slowest.
fn in_the_middle(mut runs: Vec<Execution>) -> Vec<Execution> {
    runs.sort_by(|one, other| one.timeline.seconds().total_cmp(&other.timeline.seconds()));
    let outside = runs.len() / 4;
    runs.truncate(runs.len() - outside);
    runs.split_off(outside)
}

#[cfg(test)]
mod tests {
    use triad_plan::processors::ProcessorId;

    use super::*;

    fn observed(known: f64, alone: f64, beside: f64) -> Observed {
        Observed {
            block: 0,
            known,
            alone,
            beside,
            notice: None,
        }
    }

    /// A task of so many seconds, a part of it beside another, perhaps behind idleness.
    fn varied(seconds: f64, part: f64, is_idle: bool) -> Observed {
        Observed {
            notice: is_idle.then_some(1e-5),
            ..observed(1.0, (1.0 - part) * seconds, part * seconds)
        }
    }

    #[test]
    fn effects_are_told_apart() {
        let seconds =
            |part: f64, is_idle: bool| 1.1 * (1.0 + 0.3 * part + if is_idle { 0.2 } else { 0.0 });
        let mut tasks = Vec::new();
        for (part, is_idle) in [0.0, 0.4, 1.0]
            .into_iter()
            .flat_map(|part| [(part, true), (part, false), (part, false)])
        {
            tasks.push(varied(seconds(part, is_idle), part, is_idle));
        }
        let Effects {
            scale,
            idle,
            beside,
        } = Effects::of(&tasks);
        for (found, expected) in [(scale, 1.1), (idle, 0.2), (beside, 0.3)] {
            assert!((found - expected).abs() < 0.02, "{found} for {expected}");
        }
        let shares = Effects::of(&tasks).variation(&tasks);
        assert!(
            shares.iter().all(|share| (share - 1.0).abs() < 0.02),
            "nothing is left that varies: {shares:?}"
        );
    }

    #[test]
    fn what_is_the_same_for_all_tasks_is_no_effect() {
        let tasks: Vec<_> = (0..9).map(|_| varied(1.25, 0.5, true)).collect();
        let Effects {
            scale,
            idle,
            beside,
        } = Effects::of(&tasks);
        assert!(
            (scale - 1.25).abs() < 1e-12 && idle == 0.0 && beside == 0.0,
            "{scale} {idle} {beside}"
        );
        for nothing in [&[][..], &[observed(0.0, 1.0, 0.0)]] {
            let Effects {
                scale,
                idle,
                beside,
            } = Effects::of(nothing);
            assert_eq!((scale, idle, beside), (1.0, 0.0, 0.0));
        }
        let mut disturbed = vec![varied(1.0, 0.0, false), varied(99.0, 0.0, true)];
        disturbed.extend((0..9).map(|_| varied(1.0, 1.0, false)));
        assert!(LONGER.contains(&Effects::of(&disturbed).idle));
    }

    #[test]
    fn blocks_take_parts_of_what_is_known() {
        let of = |block, known, alone| Observed {
            block,
            ..observed(known, alone, 0.0)
        };
        assert_eq!(
            by_block(&[of(0, 1.0, 2.0), of(2, 1.0, 0.5), of(0, 3.0, 6.0)]),
            [2.0, 1.0, 0.5]
        );
        assert!(by_block(&[]).is_empty());
    }

    #[test]
    fn a_variation_stands_for_many_tasks_and_keeps_their_mean() {
        let tasks: Vec<_> = (0..1000)
            .map(|task| observed(2.0, 1.0 + f64::from(task) / 1000.0, 1.0))
            .collect();
        let none = Effects {
            scale: 1.0,
            idle: 0.0,
            beside: 0.0,
        };
        let shares = none.variation(&tasks);
        assert_eq!(shares.len(), MOST_RANKS);
        assert!((shares.iter().sum::<f64>() / MOST_RANKS as f64 - 1.0).abs() < 1e-12);
        assert!((shares[0] / shares[MOST_RANKS - 1] - 2.0 / 3.0).abs() < 0.01);
        assert!(none.variation(&[]).is_empty());
        assert_eq!(
            none.variation(&[observed(0.0, 1.0, 0.0), observed(1.0, 3.0, 0.0)]),
            [1.0],
            "nothing is known of the first"
        );
    }

    #[test]
    fn a_processor_notices_that_anything_is_ready_for_it() {
        let dag = Dag::new([
            (0, 1.0, vec![]),
            (0, 1.0, vec![]),
            (1, 1.0, vec![0]),
            (1, 1.0, vec![1]),
            (0, 1.0, vec![2]),
        ]);
        let event = |task, processor, start, end| Event {
            task,
            processor: ProcessorId::new(processor),
            start,
            end,
        };
        // The NPU sleeps until after the second task, whose successor it prefers.
        let events = vec![
            event(0, 0, 0.0, 1.0),
            event(1, 0, 1.0, 2.0),
            event(3, 1, 2.5, 4.0),
            event(2, 1, 4.0, 5.0),
            event(4, 0, 5.25, 6.0),
        ];
        // Nothing is known of a processor's first task.
        assert_eq!(
            notices(&dag, &Timeline::new(events, 2)),
            [None, None, None, None, Some(0.25)]
        );
        let mut events = vec![event(2, 1, 1.0, 1.5), event(3, 1, 2.75, 4.0)];
        events.extend([
            event(0, 0, 0.0, 1.0),
            event(1, 0, 1.0, 2.0),
            event(4, 0, 2.0, 3.0),
        ]);
        assert_eq!(
            notices(&dag, &Timeline::new(events, 2)),
            [None, None, None, None, Some(0.75)]
        );
    }
}
