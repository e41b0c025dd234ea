//! Tests of outputs that are cut across processors.

use triad_plan::graph::Role;
use triad_plan::schedule::parts::{Axis, Cut, Share};

use super::devices::TestDevice;
use super::*;

const PRODUCTS: [Role; 4] = [
    Role::QueryKeyValue,
    Role::AttentionOutput,
    Role::GateUp,
    Role::Down,
];

/// INT8 weights are packed in blocks of this many output features.
const BLOCK: usize = 16;

fn cut(axis: Axis, shares: [f64; 2], multiple: usize) -> Cut {
    let share = |(index, share)| Share {
        processor: ProcessorId::new(index),
        share,
    };
    Cut::new(
        axis,
        shares.into_iter().enumerate().map(share).collect(),
        multiple,
    )
    .unwrap()
}

/// Returns two CPUs; a CPU and our kernels as NPU; or a CPU and a device.
fn processors(which: usize) -> Vec<ProcessorOptions> {
    match which {
        0 => {
            let mut two = two(1, None);
            two[1].description = Processor::cpu("cpu2");
            two
        }
        1 => two(1, None),
        _ => two(1, Some(Arc::new(TestDevice::new()))),
    }
}

fn cut_options(which: usize, policy: Policy, cuts: Vec<(Role, Cut)>) -> HeteroOptions {
    HeteroOptions {
        processors: processors(which),
        cuts,
        ..options(policy)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_cut_product_is_the_whole_bit_for_bit(
        family in 0usize..FAMILIES.len(),
        rate in prop::option::of(0f64..=1.0),
        w4a16: bool,
        cuts in prop::collection::vec((0usize..4, any::<bool>(), 0.05f64..1.0, 0.05f64..1.0, 1usize..4), 1..4),
        which in 0usize..3,
        policy in 0usize..6,
        length in 1usize..40,
    ) {
        let family = FAMILIES[family];
        let model = match rate {
            None if w4a16 => Arc::new(testing::quantize_int4(&float(family))),
            None => float(family),
            Some(rate) => pruned(family, rate),
        };
        let mut by_role: Vec<(Role, Cut)> = Vec::new();
        // A part of INT8 weights begins at a whole block of each of them.
        let are_whole = model.description().blocks.iter().all(|it| it.feed_forward.width.is_multiple_of(BLOCK));
        for (role, of_rows, one, other, multiple) in cuts {
            let cut = if of_rows || !are_whole {
                cut(Axis::Rows, [one, other], multiple)
            } else {
                cut(Axis::Columns, [one, other], multiple * BLOCK)
            };
            by_role.retain(|(other, _)| *other != PRODUCTS[role]);
            by_role.push((PRODUCTS[role], cut));
        }
        let tokens = prompt(&model, length);
        let engine = engine(&model, cut_options(which, Policy::ALL[policy], by_role.clone()));
        let mut cut = engine.session();
        prop_assert!(cut.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == all_logits(session(&model, CHUNK), &tokens));
        prop_assert!(failures(&cut).is_empty());
        let execution = execution(&cut).unwrap();
        let parts = execution.tasks.tasks.iter().filter(|task| task.task.part > 0).count();
        let of_chunk = |rows: usize| {
            let subgraphs = execution.graph.subgraphs().iter();
            let cut = subgraphs.flat_map(|subgraph| by_role.iter().filter(|(role, _)| *role == subgraph.role).map(|(_, cut)| {
                cut.parts(rows, subgraph.output_columns).unwrap().len() - 1
            }));
            cut.sum::<usize>()
        };
        prop_assert_eq!(parts, execution.graph.chunks().iter().map(|chunk| of_chunk(chunk.len())).sum::<usize>());
    }
}

#[test]
fn a_processor_lost_at_any_part_changes_no_bit() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let cuts = || {
        let columns = cut(Axis::Columns, [1.0, 1.0], BLOCK);
        vec![
            (Role::QueryKeyValue, columns.clone()),
            (Role::GateUp, columns),
            (Role::Down, cut(Axis::Rows, [7.0, 1.0], 1)),
        ]
    };
    for which in 0..3 {
        for processor in [CPU, NPU] {
            for at in (0..).step_by(3) {
                let fail = if at % 2 == 0 { error } else { panic };
                let policy = Policy::ALL[at % Policy::ALL.len()];
                let engine = engine(&model, cut_options(which, policy, cuts()));
                let mut session = with_probe(engine, failing(processor, at, fail)).session();
                assert!(
                    session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                    "{processor:?} at {at}"
                );
                if failures(&session).is_empty() {
                    assert!(at > 20, "there are as many tasks");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_processor_that_hangs_with_a_part_leaves_the_chunk_to_others() {
    let model = int8("llama");
    let tokens = prompt(&model, 2 * CHUNK + 3);
    let expected = all_logits(session(&model, CHUNK), &tokens);
    let product_cuts = || {
        PRODUCTS
            .map(|role| (role, cut(Axis::Columns, [1.0, 1.0], BLOCK)))
            .to_vec()
    };
    for hangs_at in (0..60).step_by(11) {
        for moment in [Moment::Before, Moment::After] {
            let (is_back, begun) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
            let may_return = Arc::clone(&is_back);
            let probe: Probe = Arc::new(move |processor, now| {
                let is_here = processor == NPU.index() && now == moment;
                if is_here && begun.fetch_add(1, Ordering::Relaxed) == hangs_at {
                    while !may_return.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                Ok(())
            });
            let options = cut_options(hangs_at % 3, Policy::CriticalPath, product_cuts());
            let options = HeteroOptions {
                time_out: Duration::from_secs(1),
                ..options
            };
            let mut session = with_probe(engine(&model, options), probe).session();
            assert!(
                session.prefill_all_logits(&tokens, &Cancel::new()).unwrap() == expected,
                "{hangs_at}, {moment:?}"
            );
            is_back.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_cut_that_cannot_be_made_is_refused() {
    let model = int8("llama");
    let columns = || cut(Axis::Columns, [1.0, 1.0], BLOCK);
    for role in [Role::FeedForward, Role::Attention] {
        let refused = start(
            &model,
            cut_options(0, Policy::Fifo, vec![(role, columns())]),
        )
        .unwrap_err();
        assert!(refused.to_string().ends_with(
            "can't be cut: expected query-key-value, attention-output, gate-up or down"
        ));
    }
    let twice = vec![(Role::Down, columns()), (Role::Down, columns())];
    let refused = start(&model, cut_options(0, Policy::Fifo, twice)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "down is cut twice: expected one cut for each product"
    );
    for which in 0..3 {
        let unaligned = cut(Axis::Columns, [1.0, 2.0], 1);
        let refused = start(
            &model,
            cut_options(which, Policy::Fifo, vec![(Role::Down, unaligned)]),
        )
        .unwrap_err();
        let expected = "a part of down begins at output feature 11 of Down: expected a multiple of 16, as INT8 weights are packed";
        assert_eq!(refused.to_string(), expected);
    }
}
