//! Tests of products that are cut by the partition solver's choices.

use triad_plan::graph::Role;
use triad_plan::joint::{Gaps, Kind, MeasuredPrompt, PromptPlanner};
use triad_plan::partition::costs::{Costs, Joins};
use triad_plan::partition::plans::{ModelProduct, Plans, products_of};
use triad_plan::partition::solve::{Restriction, Solver};
use triad_plan::partition::{
    Alignment, Participant, ProductShape, Shapes, StandardLengths, UnknownCost,
};
use triad_plan::tasks::Operation;

use super::devices::TestDevice;
use super::*;
use crate::work::columns_can_be_cut;
use crate::{
    MeasureOptions, MeasuredProducts, ProductTable, ProductTime, exhaust_products, measure_products,
};

/// Arbitrary seconds, so that every kind of cut is chosen at times.
pub(super) struct Unordered(pub(super) u64);

impl Costs for Unordered {
    fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
        let sizes = [
            processor.index(),
            shape.rows(),
            shape.columns(),
            shape.depth(),
        ];
        let mix = |hash: u64, size: usize| {
            (hash ^ size as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        };
        Ok((sizes.into_iter().fold(self.0, mix) % 1000 + 1) as f64)
    }
}

/// Returns two CPUs; a CPU and a device of any shape; a CPU and one of static shapes; or both CPUs and the latter.
pub(super) fn processors(which: usize) -> (Vec<ProcessorOptions>, Vec<Participant>) {
    let cpu2 = ProcessorOptions {
        description: Processor::cpu("cpu2"),
        threads: Threads::Count(1),
        device: None,
        multiplier: None,
    };
    let with = |device: TestDevice| two(1, Some(Arc::new(device)));
    let (options, statics): (Vec<_>, &[bool]) = match which {
        0 => (
            two(1, None).into_iter().take(1).chain([cpu2]).collect(),
            &[false, false],
        ),
        1 => (with(TestDevice::new()), &[false, false]),
        2 => (with(TestDevice::with_static_shapes()), &[false, true]),
        _ => (
            with(TestDevice::with_static_shapes())
                .into_iter()
                .chain([cpu2])
                .collect(),
            &[false, true, false],
        ),
    };
    let participant = |(index, is_static): (usize, &bool)| {
        let lengths = StandardLengths::new(vec![32, 64]).unwrap();
        let shapes = if *is_static {
            Shapes::Static(lengths)
        } else {
            Shapes::Dynamic
        };
        Participant {
            processor: ProcessorId::new(index),
            shapes,
        }
    };
    (
        options,
        statics.iter().enumerate().map(participant).collect(),
    )
}

/// Seconds by which the first processor is the fastest for everything.
struct FirstIsFastest;

impl Costs for FirstIsFastest {
    fn seconds(&self, processor: ProcessorId, _: ProductShape) -> Result<f64, UnknownCost> {
        Ok(if processor == CPU { 1e-9 } else { 1e3 })
    }
}

/// Returns the solver's choices for chunks of this length, with arbitrary costs.
fn plans(
    model: &Model,
    participants: &[Participant],
    chunk: usize,
    restriction: Restriction,
    seed: u64,
) -> Plans {
    plans_by(Unordered(seed), model, participants, chunk, restriction)
}

fn plans_by(
    costs: impl Costs,
    model: &Model,
    participants: &[Participant],
    chunk: usize,
    restriction: Restriction,
) -> Plans {
    let joins = Joins::new(CPU, 0.0, 0.0, 0.0).unwrap();
    let solver = Solver::new(participants.to_vec(), costs, joins).unwrap();
    let products = planned_products(model, chunk);
    // Some chunks are shorter than the shortest standard length.
    let step = if chunk < 32 { 2 } else { 8 };
    let lengths: Vec<_> = (1..=chunk.div_ceil(step))
        .map(|number| number * step)
        .collect();
    Plans::solve(&solver, &products, restriction, &lengths).unwrap()
}

fn planned_products(model: &Model, chunk: usize) -> Vec<ModelProduct> {
    let description = model.description();
    // Tiny models have products of few columns.
    let rows = if chunk < 32 { 2 } else { 32 };
    let alignment = |role: Role, shape: ProductShape| {
        let columns = if columns_can_be_cut(description, role) {
            16
        } else {
            shape.columns()
        };
        Alignment {
            columns,
            rows,
            margins: true,
        }
    };
    products_of(description, chunk, alignment).unwrap()
}

fn plan_options(
    which: usize,
    model: &Model,
    chunk: usize,
    restriction: Restriction,
    seed: u64,
) -> HeteroOptions {
    let (processors, participants) = processors(which);
    let plans = Some(plans(model, &participants, chunk, restriction, seed));
    HeteroOptions {
        engine: of_session(64, chunk),
        processors,
        plans,
        ..options(Policy::ALL[seed as usize % Policy::ALL.len()])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_plan_of_the_solver_gives_the_bits_of_one_processor_alone(
        family in 0usize..FAMILIES.len(),
        rate in 0f64..=1.0,
        which in 0usize..4,
        chunk in prop::sample::select(vec![8usize, 40]),
        restriction in prop::sample::select(Restriction::ALL.to_vec()),
        seed in any::<u64>(),
        length in 1usize..60,
    ) {
        let model = pruned(FAMILIES[family], rate);
        let tokens = prompt(&model, length);
        let engine = engine(&model, plan_options(which, &model, chunk, restriction, seed));
        let mut planned = engine.session();
        prop_assert!(planned.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == all_logits(session(&model, CHUNK), &tokens));
        prop_assert!(failures(&planned).is_empty());
        // Every product has the parts of its plan, which ran on the planned processors.
        let execution = execution(&planned).unwrap();
        for event in execution.timeline.events() {
            let task = &execution.tasks.tasks[event.task];
            let subgraph = &execution.graph.subgraphs()[task.task.subgraph];
            if task.operation == Operation::Compute && subgraph.role.is_product() {
                let cut = engine.tasks().cut(task.task.subgraph).unwrap();
                let rows = execution.graph.chunks()[task.task.chunk].len();
                let parts = cut.parts(rows, subgraph.output_columns).unwrap();
                prop_assert_eq!(&parts[task.task.part], &(event.processor, task.part.clone()));
            }
        }
    }
}

#[test]
fn a_processor_lost_at_any_part_of_a_plan_changes_no_bit() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for which in 0..4 {
        for processor in [CPU, NPU] {
            for at in (0..).step_by(3) {
                let fail = if at % 2 == 0 { error } else { panic };
                let options = plan_options(which, &model, CHUNK, Restriction::Tensor, at as u64);
                let mut session =
                    with_probe(engine(&model, options), failing(processor, at, fail)).session();
                let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                assert!(logits == expected, "{which}: {processor:?} at {at}");
                if failures(&session).is_empty() {
                    assert!(at > 10, "there are as many tasks");
                    break;
                }
            }
        }
    }
}

#[test]
fn measured_products_are_planned_and_give_the_bits_of_one_processor_alone() {
    let model = int8("llama");
    for which in [0, 2, 3] {
        let (processors, participants) = processors(which);
        let options = MeasureOptions {
            chunk: 40,
            repeat: 1,
            for_predictions: true,
        };
        let mut reported = (0, 0);
        let measured = measure_products(
            &model,
            &processors,
            options,
            &Cancel::new(),
            &mut |done, all| {
                reported = (done, all);
            },
        );
        let MeasuredProducts { costs, again } = measured.unwrap();
        assert!(reported.0 == reported.1 && reported.0 > 2 * costs.products.len());
        let what = |time: &ProductTime| (time.processor, time.rows, time.columns, time.depth);
        assert!(again.iter().map(what).eq(costs.products.iter().map(what)));
        assert!(costs.chunk == 64 && costs.processors.len() == participants.len());
        for (measured, Participant { shapes, .. }) in costs.processors.iter().zip(&participants) {
            assert_eq!(measured.lengths.is_some(), *shapes != Shapes::Dynamic);
        }
        let package = tempfile::tempdir().unwrap();
        let mut table = ProductTable::default();
        table.set("test", costs.clone());
        table.save(package.path()).unwrap();
        let read = ProductTable::open(package.path()).unwrap();
        let read = read.get("test").unwrap();
        assert_eq!(
            (read.chunk, read.products.len()),
            (costs.chunk, costs.products.len())
        );
        for restriction in Restriction::ALL {
            let plans = Some(read.plans(model.description(), 40, restriction).unwrap());
            let options = HeteroOptions {
                engine: of_session(64, 40),
                processors: processors.clone(),
                plans,
                ..HeteroOptions::default()
            };
            let tokens = prompt(&model, 50);
            let logits = all_logits(engine(&model, options).session(), &tokens);
            assert!(
                logits == all_logits(session(&model, CHUNK), &tokens),
                "{restriction:?}"
            );
        }
        let rows = if which == 0 {
            vec![1, 2, 4, 8, 16]
        } else {
            vec![1, 16]
        };
        let decode = read.decode.as_ref().unwrap();
        assert_eq!(decode.rows, rows);
        let times = decode.products.iter().chain(&decode.output);
        assert!(
            times
                .clone()
                .all(|time| rows.contains(&time.rows) && time.alone > 0.0 && time.contended > 0.0)
        );
        let device = ProcessorId::new(1);
        let of_device = decode.output.iter().any(|time| time.processor == device);
        assert_eq!(of_device, which == 0, "floats are for kernels of our own");
        for restriction in Restriction::ALL {
            let decode_plans = read.decode_plans(model.description(), restriction).unwrap();
            let options = HeteroOptions {
                engine: of_session(64, 40),
                processors: processors.clone(),
                decode_plans,
                ..HeteroOptions::default()
            };
            let decode = |mut session: Session| {
                session
                    .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
                    .unwrap();
                let one = session.decode(3, &Cancel::new()).unwrap().to_vec();
                [
                    one,
                    session
                        .decode_each(&prompt(&model, 11), &Cancel::new())
                        .unwrap()
                        .to_vec(),
                ]
                .concat()
            };
            assert!(
                decode(engine(&model, options).session()) == decode(session(&model, CHUNK)),
                "{restriction:?}"
            );
        }
    }
}

#[test]
fn every_candidate_of_every_product_is_run_and_none_that_is_run_with_the_choice_is_faster_than_the_fastest()
 {
    let model = int8("llama");
    for which in [0, 2] {
        let (processors, participants) = processors(which);
        let options = MeasureOptions {
            chunk: 40,
            repeat: 1,
            for_predictions: false,
        };
        let measured =
            measure_products(&model, &processors, options, &Cancel::new(), &mut |_, _| {}).unwrap();
        let MeasuredProducts { costs, again } = measured;
        assert!(again.is_empty(), "for predictions alone");
        let mut reported = (0, 0);
        let mut progress = |done, all| reported = (done, all);
        let lengths = [32, 40];
        let run = exhaust_products(
            &model,
            &processors,
            &costs,
            (&lengths, 1),
            &Cancel::new(),
            &mut progress,
        )
        .unwrap();
        assert!(
            !run.is_empty()
                && run.len().is_multiple_of(lengths.len())
                && reported == (run.len(), run.len())
        );
        for one in run {
            // At least each processor alone, with every way to pad.
            assert!(one.candidates >= participants.len(), "{one:?}");
            assert!(
                one.fastest.seconds <= one.chosen.seconds && one.fastest.seconds > 0.0,
                "{one:?}"
            );
            assert!(one.alone > 0.0 && one.planning >= 0.0);
            let pieces = one.chosen.partition.pieces.iter();
            let computed: usize = pieces
                .map(|piece| piece.part.rows.len() * piece.part.columns.len())
                .sum();
            assert_eq!(computed, one.shape.rows() * one.shape.columns());
        }
        let cancelled = Cancel::new();
        cancelled.cancel();
        let refused = exhaust_products(
            &model,
            &processors,
            &costs,
            (&lengths, 1),
            &cancelled,
            &mut |_, _| {},
        );
        assert!(matches!(
            refused,
            Err(Error::Engine(EngineError::Cancelled))
        ));
    }
}

#[test]
fn products_of_one_processor_are_not_measured() {
    let options = MeasureOptions {
        chunk: 8,
        repeat: 1,
        for_predictions: false,
    };
    let measure = |model: &Arc<Model>, processors: &[ProcessorOptions], cancel: &Cancel| {
        measure_products(model, processors, options, cancel, &mut |_, _| {})
            .unwrap_err()
            .to_string()
    };
    let (processors, _) = processors(0);
    assert!(
        measure(&int8("llama"), &processors[..1], &Cancel::new())
            .contains("is 1, expected at least two")
    );
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(measure(&int8("llama"), &processors, &cancel), "cancelled");
}

#[test]
fn plans_and_cuts_of_roles_exclude_each_other_and_other_models_have_no_plan() {
    let (llama, phi) = (int8("llama"), int8("phi2"));
    let of_llama = || plan_options(0, &llama, CHUNK, Restriction::Auto, 1);
    let share = |index| triad_plan::schedule::parts::Share {
        processor: ProcessorId::new(index),
        share: 1.0,
    };
    let axis = triad_plan::schedule::parts::Axis::Rows;
    let cut = triad_plan::schedule::parts::Cut::new(axis, vec![share(0), share(1)], 1).unwrap();
    let both = HeteroOptions {
        cuts: vec![(Role::Down, cut)],
        ..of_llama()
    };
    let refused = start(&llama, both).unwrap_err().to_string();
    assert_eq!(
        refused,
        "down is cut twice: expected one cut for each product"
    );
    let refused = start(&phi, of_llama()).unwrap_err().to_string();
    assert!(refused.starts_with("there is no plan for "), "{refused}");
    let refused = start(
        &llama,
        HeteroOptions {
            engine: of_session(64, CHUNK + 1),
            ..of_llama()
        },
    )
    .unwrap_err()
    .to_string();
    assert!(refused.contains("expected at most 8 by"), "{refused}");
}

fn joint_options(which: usize, model: &Model, chunk: usize, seed: u64) -> HeteroOptions {
    let solve = |participants: &[Participant], restriction| {
        plans(model, participants, chunk, restriction, seed)
    };
    let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
    joint_by(&solve, which, model, (chunk, policy))
}

fn joint_by(
    solve: &dyn Fn(&[Participant], Restriction) -> Plans,
    which: usize,
    model: &Model,
    (chunk, policy): (usize, Policy),
) -> HeteroOptions {
    let (processors, participants) = processors(which);
    let whole = participants.iter().map(|one| {
        (
            one.processor,
            solve(std::slice::from_ref(one), Restriction::Layer),
        )
    });
    let floats = processors
        .iter()
        .enumerate()
        .filter(|(_, one)| one.device.is_none());
    let floats = floats.map(|(index, _)| ProcessorId::new(index)).collect();
    let (cut, gaps) = (
        solve(&participants, Restriction::Tensor),
        Gaps {
            own: 0.0,
            other: 1.0,
        },
    );
    let joint =
        Some(PromptPlanner::new(model.description(), whole.collect(), cut, floats, gaps).unwrap());
    HeteroOptions {
        engine: of_session(64, chunk),
        processors,
        joint,
        ..options(policy)
    }
}

/// Returns options whose plans compute everything on the first processor.
fn first_alone(which: usize, model: &Model, chunk: usize) -> HeteroOptions {
    let solve = |participants: &[Participant], restriction| {
        plans_by(FirstIsFastest, model, participants, chunk, restriction)
    };
    joint_by(&solve, which, model, (chunk, Policy::CriticalPath))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_plan_of_the_joint_search_gives_the_bits_of_one_processor_alone(
        family in 0usize..FAMILIES.len(),
        rate in 0f64..=1.0,
        which in 0usize..4,
        chunk in prop::sample::select(vec![8usize, 40]),
        seed in any::<u64>(),
        lengths in prop::collection::vec(1usize..30, 1..3),
    ) {
        let model = pruned(FAMILIES[family], rate);
        let engine = engine(&model, joint_options(which, &model, chunk, seed));
        let (mut planned, mut alone) = (engine.session(), session(&model, CHUNK));
        for length in lengths {
            let tokens = prompt(&model, length);
            let expected = alone.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
            prop_assert!(planned.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected);
            // Execution matches the plan that the engine returns in advance.
            let execution = execution(&planned).unwrap();
            if execution.position == 0 {
                let notifications = engine.planned(length).unwrap();
                prop_assert_eq!(execution.graph.chunks(), notifications.graph.chunks());
            }
        }
        prop_assert!(failures(&planned).is_empty());
    }
}

#[test]
fn parts_on_a_processor_with_static_shapes_are_expected_to_take_what_was_measured_of_them() {
    let model = int8("llama");
    let mut seen = 0;
    for (seed, rows) in (0..4).flat_map(|seed| [(seed, 40), (seed, 33)]) {
        let engine = engine(&model, plan_options(2, &model, 40, Restriction::Auto, seed));
        engine
            .session()
            .prefill(&prompt(&model, rows), &Cancel::new(), |_| {})
            .unwrap();
        let simulated = engine.simulate(rows, Policy::InOrder, &[engine.costs()], &engine.costs());
        let (graph, tasks) = (&simulated.graph, &simulated.tasks);
        let (_, participants) = processors(2);
        for plan in plans(&model, &participants, 40, Restriction::Auto, seed).products() {
            let best = &plan.choice(rows).unwrap().best;
            let pieces = best.partition.pieces.iter().zip(&best.of_pieces);
            // With fewer rows than planned, some pieces are empty.
            let pieces =
                pieces.filter(|(piece, _)| piece.processor == NPU && piece.part.rows.start < rows);
            let seconds: f64 = pieces.map(|(_, seconds)| seconds).sum();
            if seconds == 0.0 {
                continue;
            }
            let subgraph = graph
                .subgraphs()
                .iter()
                .position(|subgraph| subgraph.role == plan.product.role)
                .unwrap();
            let parts = tasks
                .pieces(0, subgraph)
                .filter(|task| tasks.dag.home(*task) == NPU);
            let parts = parts.filter(|task| tasks.tasks[*task].operation == Operation::Compute);
            let expected: f64 = parts.map(|task| tasks.dag.seconds(task)).sum();
            assert!(
                (expected / seconds - 1.0).abs() < 1e-9,
                "{expected} for {seconds}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "the device computes something");
}

#[test]
fn parts_of_a_joint_plan_on_static_shapes_are_expected_to_take_what_was_measured_of_them() {
    let model = int8("llama");
    let mut seen = 0;
    for seed in 0..8 {
        let engine = engine(&model, joint_options(2, &model, 40, seed));
        let simulated = engine.simulate(40, Policy::InOrder, &[engine.costs()], &engine.costs());
        let (graph, tasks) = (&simulated.graph, &simulated.tasks);
        for (index, task) in tasks.tasks.iter().enumerate() {
            let subgraph = &graph.subgraphs()[task.task.subgraph];
            let is_product = task.operation == Operation::Compute && subgraph.role.is_static();
            let products = planned_products(&model, 40);
            let product = products
                .iter()
                .find(|product| product.role == subgraph.role && is_product);
            let Some(product) = product.filter(|_| tasks.dag.home(index) == NPU) else {
                continue;
            };
            let measured = [32, 64].map(|rows| {
                let shape = ProductShape::new(rows, task.part.columns.len(), product.shape.depth())
                    .unwrap();
                Unordered(seed).seconds(NPU, shape).unwrap()
            });
            let expected = tasks.dag.seconds(index);
            assert!(
                measured.contains(&expected),
                "{expected}, measured {measured:?}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "the device computes something");
}

#[test]
fn what_was_measured_concurrently_is_not_simulated_to_take_longer_concurrently() {
    let model = int8("llama");
    let (mut cut, mut longer) = (0, 0);
    for seed in 0..8 {
        let engine = engine(
            &model,
            plan_options(2, &model, 40, Restriction::Tensor, seed),
        );
        engine
            .session()
            .prefill(&prompt(&model, 40), &Cancel::new(), |_| {})
            .unwrap();
        let mut list = serde_json::to_value(engine.costs()).unwrap();
        for seen in list.as_array_mut().unwrap() {
            // As long as the parts of the device, so that they overlap.
            (
                seen["cost"]["seconds_per_token"],
                seen["cost"]["longer_concurrently"],
            ) = (10.0.into(), 0.5.into());
        }
        let costs = serde_json::from_value(list).unwrap();
        let simulated = engine.simulate(40, Policy::Fifo, &[engine.costs()], &costs);
        for event in simulated.timeline.events() {
            let (task, expected) = (
                &simulated.tasks.tasks[event.task],
                simulated.tasks.dag.seconds(event.task),
            );
            let relative = (event.end - event.start) / expected;
            if event.processor == NPU
                && task.operation == Operation::Compute
                && task.share(&simulated.graph) < 1.0
            {
                assert!((relative - 1.0).abs() < 1e-6, "{relative}");
                cut += 1;
            } else {
                longer += usize::from(relative > 1.01);
            }
        }
    }
    assert!(cut > 0 && longer > 0, "{cut} and {longer}");
}

#[test]
fn a_prompt_is_planned_once_more_when_times_of_more_tasks_are_known_and_not_again() {
    let model = int8("llama");
    let engine = engine(&model, joint_options(0, &model, 40, 1));
    let plan = || engine.planned(20).unwrap().plan;
    let guessed = plan();
    assert!(Arc::ptr_eq(&guessed, &plan()));
    let run = || {
        engine
            .session()
            .prefill(&prompt(&model, 20), &Cancel::new(), |_| {})
            .map(drop)
            .unwrap();
    };
    run();
    let learned = plan();
    assert!(!Arc::ptr_eq(&guessed, &learned));
    run();
    assert!(Arc::ptr_eq(&learned, &plan()));
}

/// Returns an engine whose profile says that prompts of `rows` tokens take the given seconds with plans of some kinds.
fn measured_engine(
    model: &Arc<Model>,
    options: &dyn Fn() -> HeteroOptions,
    rows: usize,
    expected: [(Kind, f64); 2],
) -> HeteroEngine {
    let candidates = engine(model, options())
        .planned(rows)
        .unwrap()
        .plan
        .candidates
        .clone();
    let factors = expected.map(|(kind, seconds)| {
        let of_kind = candidates.iter().find(|one| one.id.kind == kind).unwrap();
        (kind, seconds / of_kind.seconds)
    });
    let measured = vec![MeasuredPrompt {
        rows,
        factors: factors.into(),
    }];
    engine(
        model,
        HeteroOptions {
            joint: options().joint.map(|joint| joint.with_measured(measured)),
            ..options()
        },
    )
}

#[test]
fn prompts_leave_a_kind_of_plan_that_takes_longer_than_another_one_is_expected_to() {
    let model = int8("llama");
    let tokens = prompt(&model, 30);
    // The other processor is never as fast as that.
    let expected = [(Kind::Tensor, 1e-6), (Kind::Alone, 4e-5)];
    let engine = measured_engine(
        &model,
        &|| joint_options(1, &model, 40, 1),
        tokens.len(),
        expected,
    );
    let probe: Probe = Arc::new(|processor, _| {
        std::thread::sleep(Duration::from_millis(if processor == NPU.index() {
            5
        } else {
            0
        }));
        Ok(())
    });
    let engine = with_probe(engine, probe);
    let of_several = |_| {
        let mut session = engine.session();
        session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
        execution(&session)
            .unwrap()
            .timeline
            .events()
            .iter()
            .any(|event| event.processor == NPU)
    };
    let of_several: Vec<bool> = (0..8).map(of_several).collect();
    // A kind is left after two late prompts.
    assert_eq!(of_several[..2], [true; 2], "{of_several:?}");
    assert_eq!(of_several[4..], [false; 4], "{of_several:?}");
    assert_eq!(
        engine.planned(tokens.len()).unwrap().plan.alone(),
        Some(CPU)
    );
}

#[test]
fn prompts_whose_last_chunk_ends_first_leave_the_late_processor_too() {
    let model = int8("llama");
    let tokens = prompt(&model, 4 * CHUNK);
    let expected = [(Kind::Chunks, 1e-6), (Kind::Alone, 4e-5)];
    let engine = measured_engine(
        &model,
        &|| joint_options(0, &model, CHUNK, 1),
        tokens.len(),
        expected,
    );
    // The last chunk but one is on the first processor, and ends after the logits of the last token.
    let probe: Probe = Arc::new(|processor, _| {
        std::thread::sleep(Duration::from_millis(if processor == CPU.index() {
            2
        } else {
            0
        }));
        Ok(())
    });
    let engine = with_probe(engine, probe);
    let used = |_| {
        let mut session = engine.session();
        session.prefill(&tokens, &Cancel::new(), |_| {}).unwrap();
        let timeline = execution(&session).unwrap().timeline.clone();
        [0, 1].map(|id| {
            timeline
                .events()
                .iter()
                .any(|event| event.processor.index() == id)
        })
    };
    let used: Vec<_> = (0..10).map(used).collect();
    assert_eq!(used[..2], [[true, true]; 2], "{used:?}");
    assert_eq!(used[7..], [[false, true]; 3], "{used:?}");
}

#[test]
fn a_processor_lost_at_any_task_of_a_joint_plan_changes_no_bit() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for which in 0..4 {
        for processor in [CPU, NPU] {
            for at in (0..).step_by(3) {
                let fail = if at % 2 == 0 { error } else { panic };
                let options = joint_options(which, &model, 40, at as u64);
                let mut session =
                    with_probe(engine(&model, options), failing(processor, at, fail)).session();
                let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                assert!(logits == expected, "{which}: {processor:?} at {at}");
                if failures(&session).is_empty() {
                    break;
                }
            }
        }
    }
}

#[test]
fn one_processor_that_computes_a_whole_prompt_does_it_as_if_there_were_no_other_once_times_are_known()
 {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for which in 0..4 {
        let engine = engine(&model, first_alone(which, &model, 40));
        let run = || {
            let mut session = engine.session();
            assert!(
                session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                "{which}"
            );
            execution(&session).unwrap().clone()
        };
        // Measures operators other than products.
        run();
        run();
        let execution = run();
        assert_eq!(
            engine.planned(tokens.len()).unwrap().plan.alone(),
            Some(CPU),
            "{which}"
        );
        let whole = execution
            .graph
            .subgraphs()
            .iter()
            .filter(|subgraph| subgraph.role == Role::FeedForward);
        assert_eq!(whole.count(), model.description().blocks.len(), "{which}");
        assert_eq!(
            execution.tasks.tasks.len(),
            execution.graph.tasks().count(),
            "{which}: shadows apart"
        );
        assert!(
            execution
                .timeline
                .events()
                .iter()
                .all(|event| event.processor == CPU),
            "{which}"
        );
    }
}

/// Alternating chunks would evict each other's floats from the caches.
#[test]
fn one_processor_that_computes_a_whole_prompt_does_it_chunk_by_chunk() {
    let model = int8("llama");
    let tokens = prompt(&model, 45);
    let engine = engine(&model, first_alone(0, &model, 8));
    let run = || {
        let mut session = engine.session();
        session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
        execution(&session).unwrap().clone()
    };
    // Measures operators other than products.
    run();
    run();
    let execution = run();
    assert_eq!(
        engine.planned(tokens.len()).unwrap().plan.alone(),
        Some(CPU)
    );
    assert!(execution.graph.chunks().len() > 2);
    let mut events = execution.timeline.events().to_vec();
    events.sort_by(|a, b| a.start.total_cmp(&b.start));
    assert!(
        events
            .iter()
            .map(|event| execution.tasks.tasks[event.task].task.chunk)
            .is_sorted()
    );
}

#[test]
fn a_processor_lost_while_it_computes_a_whole_prompt_changes_no_bit() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    for which in 0..4 {
        for at in (0..).step_by(3) {
            let engine = with_probe(
                engine(&model, first_alone(which, &model, 40)),
                failing(CPU, at, error),
            );
            let mut failed = false;
            for _ in 0..3 {
                let mut session = engine.session();
                let logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
                assert!(logits == expected, "{which}: at {at}");
                failed |= !failures(&session).is_empty();
            }
            if !failed {
                assert!(at > 40, "there are as many tasks in three prompts");
                break;
            }
        }
    }
}
