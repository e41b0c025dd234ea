//! Tests of decode steps with products that are cut by the partition solver's choices.

use triad_plan::graph::Role;
use triad_plan::partition::costs::Joins;
use triad_plan::partition::plans::{Plans, products_of};
use triad_plan::partition::solve::{Choice, Restriction, Solver};
use triad_plan::partition::{Alignment, Participant, PartitionError, Phase, ProductShape};

use super::plans::{Unordered, processors};
use super::*;
use crate::DecodePlans;
use crate::work::columns_can_be_cut;

const ROWS: [usize; 3] = [1, 3, 8];

/// Returns the solver's choices for arbitrary costs; in tiny models, columns are cut anywhere.
fn decode_plans(model: &Model, which: usize, restriction: Restriction, seed: u64) -> DecodePlans {
    let (options, participants) = processors(which);
    let description = model.description();
    let alignment = |role: Role, shape: ProductShape| {
        let columns = if columns_can_be_cut(description, role) {
            16
        } else {
            shape.columns()
        };
        Alignment {
            columns,
            ..Alignment::default()
        }
    };
    let products = products_of(description, ROWS[2], alignment).unwrap();
    let joins = Joins::new(CPU, 0.0, 0.0, 0.0).unwrap();
    let solver = Solver::new(participants.clone(), Unordered(seed), joins).unwrap();
    let products = Plans::solve_decode(&solver, &products, restriction, &ROWS).unwrap();
    let has_kernels = |one: &&Participant| options[one.processor.index()].device.is_none();
    let solver = Solver::new(
        participants.iter().filter(has_kernels).cloned().collect(),
        Unordered(seed),
        joins,
    )
    .unwrap();
    let choose = |rows| -> Choice {
        let shape = ProductShape::new(rows, description.vocab, description.hidden).unwrap();
        let alignment = Alignment {
            columns: 16,
            ..Alignment::default()
        };
        let solve =
            |restriction| solver.solve_aligned(shape, Phase::Decode, restriction, alignment);
        match solve(restriction) {
            Err(PartitionError::NoCut { .. }) => solve(Restriction::Layer).unwrap(),
            choice => choice.unwrap(),
        }
    };
    DecodePlans {
        products,
        output: ROWS.map(choose).to_vec(),
    }
}

fn step_options(which: usize, model: &Model, restriction: Restriction, seed: u64) -> HeteroOptions {
    let decode_plans = Some(decode_plans(model, which, restriction, seed));
    let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
    HeteroOptions {
        processors: processors(which).0,
        decode_plans,
        ..options(policy)
    }
}

/// Returns the logits of an answer: single tokens, then several at once, then more than are planned.
fn answer(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let cancel = Cancel::new();
    session.truncate(0);
    let mut logits = session
        .prefill(&tokens[..5], &cancel, |_| {})
        .unwrap()
        .to_vec();
    for token in &tokens[5..8] {
        logits.extend_from_slice(session.decode(*token, &cancel).unwrap());
    }
    for rows in [2, 3, 7, 9] {
        logits.extend_from_slice(session.decode_each(&tokens[8..8 + rows], &cancel).unwrap());
    }
    logits
}

/// Counts the tasks that a processor begins.
fn counting(processor: usize) -> (Probe, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let probe: Probe = Arc::new(move |of, moment| {
        counted.fetch_add(
            usize::from(of == processor && moment == Moment::Before),
            Ordering::Relaxed,
        );
        Ok(())
    });
    (probe, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_of_a_step_gives_the_bits_of_one_processor_alone(
        family in 0usize..FAMILIES.len(),
        rate in 0f64..=1.0,
        which in 0usize..4,
        restriction in prop::sample::select(Restriction::ALL.to_vec()),
        seed in any::<u64>(),
    ) {
        let model = pruned(FAMILIES[family], rate);
        let tokens = prompt(&model, 30);
        let engine = engine(&model, step_options(which, &model, restriction, seed));
        prop_assert!(answer(&mut engine.session(), &tokens) == answer(&mut session(&model, CHUNK), &tokens));
        // Sequences that decode together.
        let cancel = Cancel::new();
        let mut together: Vec<_> = (0..3).map(|_| engine.session()).collect();
        let mut alone = session(&model, CHUNK);
        for (index, session) in together.iter_mut().enumerate() {
            session.prefill(&tokens[index..10], &cancel, |_| {}).unwrap();
        }
        Session::decode_together(together.iter_mut().map(|session| (session, &tokens[10..11])), &cancel).unwrap();
        for (index, session) in together.iter().enumerate() {
            alone.truncate(0);
            alone.prefill(&tokens[index..10], &cancel, |_| {}).unwrap();
            prop_assert!(alone.decode(tokens[10], &cancel).unwrap() == session.logits(), "sequence {}", index);
        }
    }
}

#[test]
fn a_step_runs_where_its_plan_has_it() {
    let model = int8("llama");
    let tokens = prompt(&model, 12);
    for which in 0..4 {
        let (probe, count) = counting(1);
        let options = step_options(which, &model, Restriction::Tensor, 5);
        let plans = options.decode_plans.clone().unwrap();
        let mut session = with_probe(engine(&model, options), probe).session();
        session
            .prefill(&tokens[..8], &Cancel::new(), |_| {})
            .unwrap();
        count.store(0, Ordering::Relaxed);
        session.decode(tokens[8], &Cancel::new()).unwrap();
        let is_mine = |choice: &Choice| {
            choice
                .best
                .partition
                .pieces
                .iter()
                .any(|piece| piece.processor == NPU)
        };
        let products = plans.products.products();
        let of_blocks: usize = products
            .iter()
            .filter(|plan| is_mine(plan.choice(1).unwrap()))
            .map(|plan| plan.product.blocks)
            .sum();
        assert!(of_blocks > 0, "{which}");
        let of_output = usize::from(is_mine(plans.output(1).unwrap()));
        assert_eq!(
            count.load(Ordering::Relaxed),
            of_blocks + of_output,
            "{which}"
        );
        // Steps with more rows than are planned run on the float processor.
        count.store(0, Ordering::Relaxed);
        session
            .decode_each(&prompt(&model, 9), &Cancel::new())
            .unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 0, "{which}");
    }
}

#[test]
fn a_processor_lost_at_any_part_of_a_step_changes_no_bit() {
    let model = int8("gemma3");
    let tokens = prompt(&model, 12);
    let cancel = Cancel::new();
    let decode = |session: &mut Session| {
        let one = session.decode(tokens[8], &cancel).unwrap().to_vec();
        [
            one,
            session
                .decode_each(&tokens[9..12], &cancel)
                .unwrap()
                .to_vec(),
        ]
        .concat()
    };
    let mut alone = session(&model, CHUNK);
    alone.prefill(&tokens[..8], &cancel, |_| {}).unwrap();
    let expected = decode(&mut alone);
    for which in 0..4 {
        for processor in [CPU, NPU] {
            for at in (0..).step_by(5) {
                let fail = if at % 2 == 0 { error } else { panic };
                let options = step_options(which, &model, Restriction::Tensor, at as u64);
                let engine = engine(&model, options);
                let mut session = engine.session();
                session.prefill(&tokens[..8], &cancel, |_| {}).unwrap();
                let (inner, has_failed) = (
                    failing(processor, at, fail),
                    Arc::new(AtomicBool::new(true)),
                );
                let failed = Arc::clone(&has_failed);
                has_failed.store(false, Ordering::Relaxed);
                let probe: Probe = Arc::new(move |of, moment| {
                    // Reset if the probe returns.
                    let before = failed.swap(true, Ordering::Relaxed);
                    let outcome = inner(of, moment);
                    if outcome.is_ok() {
                        failed.fetch_and(before, Ordering::Relaxed);
                    }
                    outcome
                });
                engine.set_probe(Some(probe));
                assert!(
                    decode(&mut session) == expected,
                    "{which}: {processor:?} at {at}"
                );
                if !has_failed.load(Ordering::Relaxed) {
                    assert!(at > 10, "there are as many tasks");
                    break;
                }
                assert!(
                    decode_again(&mut session, &tokens) == expected,
                    "the next step has all again"
                );
            }
        }
    }
}

fn decode_again(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let cancel = Cancel::new();
    session.truncate(8);
    let one = session.decode(tokens[8], &cancel).unwrap().to_vec();
    [
        one,
        session
            .decode_each(&tokens[9..12], &cancel)
            .unwrap()
            .to_vec(),
    ]
    .concat()
}

#[test]
fn a_processor_that_hangs_at_a_part_of_a_step_is_left_alone() {
    let model = int8("llama");
    let tokens = prompt(&model, 12);
    let mut alone = session(&model, CHUNK);
    alone.prefill(&tokens[..8], &Cancel::new(), |_| {}).unwrap();
    let expected = decode_again(&mut alone, &tokens);
    for at in [0, 3, 8] {
        let hangs = Arc::new(AtomicBool::new(true));
        let (probe_hangs, begun) = (Arc::clone(&hangs), AtomicUsize::new(0));
        let probe: Probe = Arc::new(move |processor, moment| {
            if processor == NPU.index()
                && moment == Moment::Before
                && begun.fetch_add(1, Ordering::Relaxed) == at
            {
                while probe_hangs.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Ok(())
        });
        let options = step_options(0, &model, Restriction::Tensor, 5);
        let engine = engine(
            &model,
            HeteroOptions {
                time_out: Duration::from_millis(300),
                ..options
            },
        );
        let mut session = engine.session();
        session
            .prefill(&tokens[..8], &Cancel::new(), |_| {})
            .unwrap();
        engine.set_probe(Some(probe));
        assert!(decode_again(&mut session, &tokens) == expected, "{at}");
        hangs.store(false, Ordering::Relaxed);
        assert!(
            decode_again(&mut session, &tokens) == expected,
            "{at}: after it has returned"
        );
    }
}

#[test]
fn prompts_that_arrive_during_cut_steps_change_no_bit() {
    let model = int8("qwen2");
    let tokens = prompt(&model, 40);
    let engine = engine(&model, step_options(3, &model, Restriction::Tensor, 9));
    let (mut alone, cancel) = (session(&model, CHUNK), Cancel::new());
    let expected_prompt = alone.prefill(&tokens, &cancel, |_| {}).unwrap().to_vec();
    let expected = answer(&mut alone, &tokens);
    std::thread::scope(|scope| {
        let decodes =
            scope.spawn(|| (0..20).all(|_| answer(&mut engine.session(), &tokens) == expected));
        let prompts = scope.spawn(|| {
            (0..40).all(|_| {
                engine
                    .session()
                    .prefill(&tokens, &Cancel::new(), |_| {})
                    .unwrap()
                    == expected_prompt
            })
        });
        assert!(decodes.join().unwrap() && prompts.join().unwrap());
    });
}
