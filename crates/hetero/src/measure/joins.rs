//! Measures in the engine how long a processor takes to begin after another one has ended: T_sync of §4.3.

use triad_kernels::int8::Int8Weight;
use triad_kernels::timing::median;
use triad_plan::graph::Role;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::parts::{Axis, Cut, Share};
use triad_plan::tasks::PrefillTasks;
use triad_plan::timeline::Timeline;

use super::{Joined, multiplied};
use crate::engine::HeteroEngine;
use crate::error::Result;
use crate::options::HeteroOptions;
use crate::products::MeasuredJoins;
use crate::profile::run_prompt;
use crate::wait::WaitUse;
use triad_engine::Cancel;

/// Seconds from the end of a task's last predecessor to its start, for tasks whose processor was idle.
#[derive(Debug, Default, PartialEq)]
struct Gaps {
    /// On the float processor, after a task of its own.
    own: Vec<f64>,
    /// On another processor, after a task of the float processor.
    begin: Vec<f64>,
    /// On the float processor, after a task of another one.
    end: Vec<f64>,
}

impl Gaps {
    fn add(&mut self, tasks: &PrefillTasks, timeline: &Timeline, float: ProcessorId) {
        let events = timeline.events();
        for event in events {
            let before = tasks.dag.predecessors(event.task);
            let before = events.iter().filter(|other| before.contains(&other.task));
            let Some(last) = before.max_by(|a, b| a.end.total_cmp(&b.end)) else {
                continue;
            };
            let own = events
                .iter()
                .filter(|other| other.processor == event.processor && other.start < event.start);
            if own.map(|other| other.end).fold(0.0, f64::max) > last.end {
                // Its processor was busy at that time.
                continue;
            }
            let gap = (event.start - last.end).max(0.0);
            match (last.processor == float, event.processor == float) {
                (true, true) => self.own.push(gap),
                (true, false) => self.begin.push(gap),
                (false, true) => self.end.push(gap),
                (false, false) => {}
            }
        }
    }
}

/// Runs prompts of some rows in which every processor has a part of attention's output layer, `repeat` times after one
/// that does not count. `start` starts an engine on the processors.
///
/// # Errors
/// If `cancel` is set, or a processor fails.
pub(super) fn measure(
    start: impl FnOnce(HeteroOptions) -> Result<HeteroEngine>,
    (processors, rows): (usize, usize),
    repeat: usize,
    cancel: &Cancel,
) -> Result<MeasuredJoins> {
    let shares = (0..processors).map(|index| Share {
        processor: ProcessorId::new(index),
        share: 1.0,
    });
    let cut = Cut::new(Axis::Columns, shares.collect(), Int8Weight::COLUMNS)?;
    let mut options = HeteroOptions {
        cuts: vec![(Role::AttentionOutput, cut)],
        ..HeteroOptions::default()
    };
    let session = &mut options.engine.session;
    (session.context, session.chunk) = (rows, rows);
    Ok(measure_joins(&start(options)?, repeat, cancel)?.joins)
}

/// Runs prompts of one chunk on an engine, `repeat` times after one that does not count, and measures how long
/// processors wait between tasks. Of a device that multiplies for one that runs the model, the waits are those for its
/// products, and ends are means.
///
/// # Errors
/// If `cancel` is set, or a processor fails.
pub fn measure_joins(engine: &HeteroEngine, repeat: usize, cancel: &Cancel) -> Result<Joined> {
    if let Some(joined) = multiplied::joined(engine, repeat, cancel)? {
        return Ok(joined);
    }
    let (mut session, float) = (engine.session(), engine.shared().float_unit);
    let prompt = crate::any_tokens(session.chunk(), engine.model().description().vocab);
    let mut gaps = Gaps::default();
    let (mut waits, mut seconds) = (
        vec![WaitUse::default(); engine.processors().len()],
        Vec::new(),
    );
    for round in 0..=repeat {
        let latest = run_prompt(&mut session, &prompt, cancel)?;
        if round > 0 {
            gaps.add(&latest.tasks, &latest.timeline, float);
            waits
                .iter_mut()
                .zip(&latest.waits)
                .for_each(|(waits, latest)| *waits = waits.plus(*latest));
            seconds.push(latest.timeline.seconds());
        }
    }
    let [own_seconds, begin_seconds, end_seconds] =
        [gaps.own, gaps.begin, gaps.end].map(|gaps| median(&gaps));
    let joins = MeasuredJoins {
        float,
        own_seconds,
        begin_seconds,
        end_seconds,
    };
    Ok(Joined {
        joins,
        waits,
        prompt_seconds: median(&seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_plan::graph::Graph;
    use triad_plan::placement::Placement;
    use triad_plan::processors::Processors;
    use triad_plan::tasks::TaskOptions;
    use triad_plan::timeline::Event;

    #[test]
    fn a_gap_is_between_what_was_waited_for_and_what_waited_idly() {
        let mut description = triad_model::family::shape("smollm2-135m").unwrap();
        description.blocks.truncate(1);
        let graph = Graph::new(&description, 8, 8);
        let processors = Processors::cpu_and_npu(None);
        let placement = Placement::new(&graph, &processors, |_, _| 1.0).unwrap();
        let tasks = PrefillTasks::new(
            &graph,
            &processors,
            &TaskOptions::whole(placement, 1),
            |_, _| 1.0,
        )
        .unwrap();
        let [cpu, npu] = [0, 1].map(ProcessorId::new);
        let event = |task, processor, start: f64, end: f64| Event {
            task,
            processor,
            start,
            end,
        };
        // Norm, query-key-value, attention, output, norm, feed-forward, each after the previous one.
        let events = vec![
            event(0, cpu, 0.0, 1.0),
            event(1, npu, 1.5, 3.0),
            event(2, cpu, 5.0, 6.0),
            event(3, cpu, 6.25, 7.0),
            event(4, cpu, 7.0, 8.0),
            event(5, npu, 9.5, 10.0),
        ];
        let mut gaps = Gaps::default();
        gaps.add(&tasks, &Timeline::new(events, 2), cpu);
        assert_eq!(
            gaps,
            Gaps {
                own: vec![0.25, 0.0],
                begin: vec![0.5, 1.5],
                end: vec![2.0]
            }
        );
    }
}
