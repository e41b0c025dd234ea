use super::*;
use crate::processors::ProcessorId;
use crate::schedule::{Node, Schedule};
use proptest::prelude::*;

const QUICK: Effort = Effort { width: 8 };

fn planned(dag: &Dag, effort: Effort) -> Plan {
    plan(dag, 0.0, effort, &mut || true)
}

prop_compose! {
    /// Generates tasks for three processors, each of which can run every task.
    fn dags(most: usize)(count in 1..most)(
        tasks in prop::collection::vec((0usize..3, 0u8..9, prop::collection::vec(any::<prop::sample::Index>(), 0..3)), count),
    ) -> Dag {
        Dag::from_nodes(3, tasks.into_iter().enumerate().map(|(task, (home, seconds, before))| Node {
            home: ProcessorId::new(home),
            seconds: vec![Some(f64::from(seconds)); 3],
            predecessors: if task == 0 { vec![] } else { before.iter().map(|other| other.index(task)).collect() },
            kind: 0,
        }))
    }
}

proptest! {
    #[test]
    fn a_plan_has_every_task_once_after_its_predecessors_and_is_no_longer_than_by_any_policy(
        dag in dags(40),
        wake in prop_oneof![Just(0.0), 0.0f64..3.0],
    ) {
        let plan = plan(&dag, wake, QUICK, &mut || true);
        let mut places = vec![None; dag.len()];
        for (place, task) in plan.order.iter().enumerate() {
            prop_assert!(places[*task].replace(place).is_none(), "task {task} is there twice");
            prop_assert!(dag.predecessors(*task).iter().all(|before| places[*before].is_some()), "task {task}");
        }
        prop_assert!(places.iter().all(Option::is_some));
        for policy in Policy::SIMPLE {
            prop_assert!(plan.seconds <= of_policy(&dag, policy, wake).seconds + 1e-9, "{policy:?}");
        }
        prop_assert!(plan.seconds >= lower_bound(&dag) - 1e-9);
        let dag = dag.with_plan(&plan.order, wake);
        let run = of_policy(&dag, Policy::Planned, wake).seconds;
        prop_assert!((run - plan.seconds).abs() < 1e-9, "planned {} and run {run}", plan.seconds);
    }

    #[test]
    fn a_planned_run_ends_whatever_tasks_take_and_whichever_processor_is_lost(
        dag in dags(40),
        takes in prop::collection::vec(0.01f64..20.0, 40),
        choices in prop::collection::vec(0usize..8, 200),
        lost in prop::collection::vec((0usize..80, 0usize..3), 0..3),
    ) {
        let plan = planned(&dag, QUICK);
        let dag = dag.with_plan(&plan.order, 0.0);
        let mut schedule = Schedule::new(&dag, Policy::Planned);
        let mut running: Vec<Option<usize>> = vec![None; 3];
        let mut is_lost = [false; 3];
        let (mut choices, mut done, mut steps) = (choices.iter().cycle(), vec![false; dag.len()], 0);
        while !schedule.is_complete() {
            for (at, processor) in &lost {
                if *at == steps && !is_lost[*processor] && is_lost.iter().filter(|is_lost| **is_lost).count() < 2 {
                    is_lost[*processor] = true;
                    running[*processor] = None;
                    prop_assert!(schedule.lose(ProcessorId::new(*processor)).orphans.is_empty());
                }
            }
            steps += 1;
            for (processor, running) in dag.processor_ids().zip(&mut running) {
                *running = running.take().or_else(|| schedule.next(processor));
            }
            let busy: Vec<_> = (0..3).filter(|processor| running[*processor].is_some()).collect();
            prop_assert!(!busy.is_empty(), "no processor has a task");
            let task = running[busy[choices.next().unwrap() % busy.len()]].take().unwrap();
            prop_assert!(dag.predecessors(task).iter().all(|before| done[*before]));
            prop_assert!(!std::mem::replace(&mut done[task], true), "task {task} ran twice");
            schedule.observe(task, takes[task]);
            schedule.complete(task);
        }
        prop_assert!(done.iter().all(|done| *done));
    }
}

#[test]
fn a_processor_idles_where_that_is_shorter() {
    // The long task of the first processor is ready at once. The others wait for a task that is ready a moment later.
    let dag = Dag::new([
        (0, 10.0, vec![]),
        (1, 1.0, vec![]),
        (0, 1.0, vec![1]),
        (1, 10.0, vec![2]),
    ]);
    let plan = planned(&dag, QUICK);
    assert_eq!((plan.seconds, plan.order), (12.0, vec![1, 2, 0, 3]));
    assert!(
        Policy::SIMPLE
            .map(|policy| of_policy(&dag, policy, 0.0).seconds)
            .iter()
            .all(|seconds| *seconds == 21.0)
    );
}
