//! Effects on task times that a mean does not describe: by block, after idle time, while other processors work, the
//! delay until tasks begin, and the variation of all of these.

use triad_plan::graph::Subgraph;
use triad_plan::processors::Processors;
use triad_plan::schedule::Dag;
use triad_plan::tasks::KINDS;
use triad_plan::timeline::{Event, Timeline};

use super::{Cost, Costs, LONGER};
use crate::execution::Execution;

/// Maximum multiple of the expected time that is counted.
const MAX_SHARE: f64 = 3.0;
/// Added to the variance of an effect's cause.
const MIN_VARIANCE: f64 = 0.005;
/// Maximum number of values that represent a variation.
const MAX_RANKS: usize = 64;

/// A task that ran. Times are in seconds.
struct Observed {
    block: usize,
    /// The expected time while no other processor works.
    known: f64,
    /// The time during which no other processor worked.
    alone: f64,
    /// The time during which another processor worked.
    concurrent: f64,
    /// The time from when any task was ready for the processor until this one began, if the processor was idle until
    /// then.
    notice: Option<f64>,
}

impl Costs {
    /// Returns the costs of runs in order and out of order. Ignores the fastest and the slowest quarter of either, so
    /// that disturbances of a few runs do not count.
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
            cost.by_block = by_block(tasks);
        });
        let observed = costs.observed(processors, in_order.iter().chain(&out_of_order));
        costs.change(processors, &observed, |cost, tasks| {
            let effects = Effects::fit(tasks);
            *cost = Cost {
                by_block: std::mem::take(&mut cost.by_block),
                variation: effects.variation(tasks),
                notice_seconds: at_ranks(tasks.iter().filter_map(|task| task.notice).collect()),
                longer_after_idleness: effects.idle,
                longer_concurrently: effects.concurrent,
                ..cost.scaled(effects.scale)
            };
        });
        costs
    }

    /// Changes the cost of each kind, given its tasks.
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

    /// Returns all tasks of runs whose kinds have costs, by processor and kind.
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
            for ((event, concurrent), notice) in events {
                let task = &tasks.tasks[event.task];
                if let Some(known) =
                    self.seconds(&processors[event.processor].name, graph, task, *position)
                {
                    let Subgraph { role, block, .. } = graph.subgraphs()[task.task.subgraph];
                    let kind = task.operation.kind(role);
                    let alone = event.end - event.start - concurrent;
                    observed[event.processor.index()][kind].push(Observed {
                        block,
                        known,
                        alone,
                        concurrent,
                        notice,
                    });
                }
            }
        }
        observed
    }
}

/// Returns, by event, how long before it a task was ready for its processor, if the processor was idle until then.
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
        // When the first of the tasks that have not begun was ready.
        let mut first = f64::INFINITY;
        for place in (1..own.len()).rev() {
            let [before, event] = [own[place - 1], own[place]].map(|index| &events[index]);
            first = first.min(ready(event));
            notices[own[place]] = (first > before.end).then_some((event.start - first).max(0.0));
        }
    }
    notices
}

/// The differences of a kind's tasks from their expected times.
struct Effects {
    /// Their time as a multiple of the expected one, without idle time before them and without other processors.
    scale: f64,
    /// The share by which they take longer if their processor was idle before.
    idle: f64,
    /// The share by which time grows while another processor works.
    concurrent: f64,
}

impl Effects {
    /// Fits the effects by least squares. A cause that hardly varies between tasks is given no effect.
    fn fit(tasks: &[Observed]) -> Self {
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
        let [idle, concurrent, both] = [
            covariance(0, 0) + MIN_VARIANCE,
            covariance(1, 1) + MIN_VARIANCE,
            covariance(0, 1),
        ];
        let [of_idle, of_concurrent] = [covariance(0, 2), covariance(1, 2)];
        let determinant = idle * concurrent - both * both;
        let parts = [
            of_idle * concurrent - of_concurrent * both,
            of_concurrent * idle - of_idle * both,
        ]
        .map(|part| part / determinant);
        let scale = means[2] - parts[0] * means[0] - parts[1] * means[1];
        if !(tasks.iter().any(|task| task.known > 0.0) && scale > 0.0) {
            return Self {
                scale: 1.0,
                idle: 0.0,
                concurrent: 0.0,
            };
        }
        let [idle, concurrent] =
            parts.map(|part| (part / scale).clamp(*LONGER.start(), *LONGER.end()));
        Self {
            scale,
            idle,
            concurrent,
        }
    }

    /// Returns the times of tasks as multiples of the expected ones with these effects, at evenly spaced ranks; their
    /// mean is 1.
    fn variation(&self, tasks: &[Observed]) -> Vec<f64> {
        let share = |task: &Observed| {
            let [idle, concurrent, share] = task.row();
            share / (self.scale * (1.0 + self.idle * idle + self.concurrent * concurrent))
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
    /// Returns whether its processor was idle before (1 or 0), the share of its time in which another one worked, and
    /// its time as a multiple of the expected one; NaN if none is known.
    fn row(&self) -> [f64; 3] {
        let seconds = self.alone + self.concurrent;
        let concurrent = if seconds > 0.0 {
            self.concurrent / seconds
        } else {
            0.0
        };
        let share = if self.known > 0.0 {
            (seconds / self.known).min(MAX_SHARE)
        } else {
            f64::NAN
        };
        [f64::from(self.notice.is_some()), concurrent, share]
    }
}

/// Returns, by block, the times of its tasks as a multiple of the expected ones.
fn by_block(tasks: &[Observed]) -> Vec<f64> {
    let blocks = tasks.iter().map(|task| task.block + 1).max().unwrap_or(0);
    let mut sums = vec![[0.0; 2]; blocks];
    for task in tasks {
        sums[task.block][0] += task.alone + task.concurrent;
        sums[task.block][1] += task.known;
    }
    sums.iter()
        .map(|[took, known]| if *known > 0.0 { took / known } else { 1.0 })
        .collect()
}

/// Returns at most [`MAX_RANKS`] numbers that represent all, at evenly spaced ranks.
fn at_ranks(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.retain(|number| number.is_finite());
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len().min(MAX_RANKS);
    (0..count)
        .map(|rank| numbers[(2 * rank + 1) * numbers.len() / (2 * count)])
        .collect()
}

/// Returns all runs except the fastest quarter and the slowest.
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

    fn observed(known: f64, alone: f64, concurrent: f64) -> Observed {
        Observed {
            block: 0,
            known,
            alone,
            concurrent,
            notice: None,
        }
    }

    /// Returns a task of `seconds`, a part of them while another one ran, perhaps after idle time.
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
            concurrent,
        } = Effects::fit(&tasks);
        for (found, expected) in [(scale, 1.1), (idle, 0.2), (concurrent, 0.3)] {
            assert!((found - expected).abs() < 0.02, "{found} for {expected}");
        }
        let shares = Effects::fit(&tasks).variation(&tasks);
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
            concurrent,
        } = Effects::fit(&tasks);
        assert!(
            (scale - 1.25).abs() < 1e-12 && idle == 0.0 && concurrent == 0.0,
            "{scale} {idle} {concurrent}"
        );
        for nothing in [&[][..], &[observed(0.0, 1.0, 0.0)]] {
            let Effects {
                scale,
                idle,
                concurrent,
            } = Effects::fit(nothing);
            assert_eq!((scale, idle, concurrent), (1.0, 0.0, 0.0));
        }
        let mut disturbed = vec![varied(1.0, 0.0, false), varied(99.0, 0.0, true)];
        disturbed.extend((0..9).map(|_| varied(1.0, 1.0, false)));
        assert!(LONGER.contains(&Effects::fit(&disturbed).idle));
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
            concurrent: 0.0,
        };
        let shares = none.variation(&tasks);
        assert_eq!(shares.len(), MAX_RANKS);
        assert!((shares.iter().sum::<f64>() / MAX_RANKS as f64 - 1.0).abs() < 1e-12);
        assert!((shares[0] / shares[MAX_RANKS - 1] - 2.0 / 3.0).abs() < 0.01);
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
        // A processor's first task has no notice.
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
