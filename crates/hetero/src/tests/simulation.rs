//! Tests of simulated prompts: they have the tasks, processors and order of a real run.

use triad_plan::processors::ProcessorId;
use triad_plan::timeline::Timeline;

use super::*;

/// Returns the tasks of a processor in the order of their start.
fn order(timeline: &Timeline, processor: ProcessorId) -> Vec<usize> {
    let events = timeline
        .events()
        .iter()
        .filter(|event| event.processor == processor);
    events.map(|event| event.task).collect()
}

#[test]
fn a_simulated_prompt_has_the_tasks_of_the_run_each_once_where_it_runs_after_what_it_waits_for() {
    for rate in [0.0, 1.0] {
        let model = pruned("llama", rate);
        for (policy, in_flight) in Policy::ALL
            .into_iter()
            .flat_map(|policy| [1, 2, 4].map(|slots| (policy, slots)))
        {
            let options = HeteroOptions {
                chunks_in_flight: in_flight,
                ..options(policy)
            };
            let engine = engine(&model, options);
            let mut session = engine.session();
            session
                .prefill(&prompt(&model, 45), &Cancel::new(), |_| {})
                .unwrap();
            engine.plan_ahead(45);
            let simulated = engine.simulate(45, policy, &[engine.costs()], &engine.costs());
            assert_eq!(simulated.policy, policy);
            session.truncate(0);
            session
                .prefill(&prompt(&model, 45), &Cancel::new(), |_| {})
                .unwrap();
            let executed = execution(&session).unwrap();
            assert_eq!(
                simulated.tasks.tasks, executed.tasks.tasks,
                "{policy:?}, {in_flight}"
            );
            assert!(
                simulated.tasks.dag.has_same_tasks(&executed.tasks.dag),
                "{policy:?}, {in_flight}"
            );
            let mut ends = vec![None; simulated.tasks.dag.len()];
            for event in simulated.timeline.events() {
                assert_eq!(event.processor, simulated.tasks.dag.home(event.task));
                assert!(
                    ends[event.task].replace(event.end).is_none(),
                    "{policy:?}: task {} twice",
                    event.task
                );
                let before = simulated.tasks.dag.predecessors(event.task);
                assert!(
                    before
                        .iter()
                        .all(|task| ends[*task].is_some_and(|end| end <= event.start)),
                    "{policy:?}"
                );
            }
            assert!(ends.iter().all(Option::is_some), "{policy:?}");
            if policy == Policy::InOrder {
                for processor in [CPU, NPU] {
                    assert_eq!(
                        order(&simulated.timeline, processor),
                        order(&executed.timeline, processor)
                    );
                }
            }
        }
    }
}

#[test]
fn a_simulated_prompt_takes_what_its_costs_are() {
    let model = int8("llama");
    let engine = engine(&model, options(Policy::InOrder));
    engine
        .session()
        .prefill(&prompt(&model, 32), &Cancel::new(), |_| {})
        .unwrap();
    let costs = engine.costs();
    let seconds = |policy, change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let mut list = serde_json::to_value(&costs).unwrap();
        list.as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|seen| change(seen["cost"].as_object_mut().unwrap()));
        let changed = serde_json::from_value(list).unwrap();
        engine.plan_ahead(32);
        engine
            .simulate(32, policy, std::slice::from_ref(&costs), &changed)
            .timeline
            .seconds()
    };
    let twice = |cost: &mut serde_json::Map<_, serde_json::Value>| {
        cost.values_mut()
            .for_each(|seconds| *seconds = (2.0 * seconds.as_f64().unwrap()).into());
    };
    let once = seconds(Policy::InOrder, &|_| {});
    assert!(once > 0.0 && (seconds(Policy::InOrder, &twice) / once - 2.0).abs() < 1e-9);
    let varied = seconds(Policy::InOrder, &|cost| {
        _ = cost.insert("variation".into(), [3.0].as_slice().into());
    });
    assert!((varied / once - 3.0).abs() < 1e-9, "{varied}");
    let noticed = seconds(Policy::InOrder, &|cost| {
        _ = cost.insert("notice_seconds".into(), [once].as_slice().into());
    });
    assert!(
        noticed > 3.0 * once,
        "each task that follows one elsewhere is late: {noticed}"
    );
    // In order, only shadows run while another processor works.
    let longer = |cost: &mut serde_json::Map<_, serde_json::Value>| {
        _ = cost.insert("longer_concurrently".into(), 0.5.into());
    };
    let [in_order, fifo] = [Policy::InOrder, Policy::Fifo]
        .map(|policy| seconds(policy, &longer) / seconds(policy, &|_| {}));
    assert!(
        in_order >= 1.0 && fifo > in_order && fifo < 1.5,
        "{in_order} and {fifo}"
    );
}

#[test]
fn a_planned_order_gives_the_same_bits_whatever_tasks_are_expected_to_take() {
    let model = int8("llama");
    let tokens = prompt(&model, 40);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let engine = engine(&model, options(Policy::Planned));
    // The first prompt measures costs.
    assert!(all_logits(engine.session(), &tokens) == expected);
    let costs = engine.costs();
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..8u64 {
        let mut list = serde_json::to_value(&costs).unwrap();
        for (number, seen) in list.as_array_mut().unwrap().iter_mut().enumerate() {
            // Times of all kinds of tasks change, by up to a thousand times.
            let hash = (seed << 8 | number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
            let factor = 10f64.powi(hash as i32 % 4) / 10.0;
            for field in ["seconds_per_token", "seconds_per_chunk"] {
                let seconds = &mut seen["cost"][field];
                *seconds = (factor * seconds.as_f64().unwrap() + 1e-9).into();
            }
        }
        let changed: crate::costs::Costs = serde_json::from_value(list).unwrap();
        engine.set_costs(changed.clone());
        engine.plan_ahead(tokens.len());
        let simulated = engine.simulate(
            tokens.len(),
            Policy::Planned,
            std::slice::from_ref(&changed),
            &changed,
        );
        orders.insert(format!("{:?}", order(&simulated.timeline, CPU)));
        assert!(
            all_logits(engine.session(), &tokens) == expected,
            "seed {seed}"
        );
    }
    assert!(orders.len() > 1, "other costs plan other orders");
}
