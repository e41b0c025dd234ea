//! Tests of many sequences on one engine: each has the bits that it has alone.

use proptest::prelude::*;

use super::*;
use crate::testing::adapters::{ADAPTERS, ADAPTERS_OF_ALL, adapted};
use crate::testing::models::{ALL_MODELS, CONTEXT, all_models};
use crate::testing::steps::{Step, one_by_one, run};
use crate::{Adapters, KvFormat};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop_oneof![3 => 1usize..40, 1 => 230usize..280].prop_map(Step::Prefill),
        1 => (1usize..30).prop_map(Step::PrefillAll),
        3 => (1usize..5).prop_map(Step::Decode),
        2 => (1usize..20).prop_map(Step::DecodeEach),
        1 => (0f64..1.0).prop_map(Step::Truncate),
        1 => (1usize..20).prop_map(Step::Fork),
    ];
    prop::collection::vec(step, 1..7)
}

fn alone(
    model: &Arc<Model>,
    options: &SessionOptions,
    adapters: &Adapters,
    steps: &[Step],
    seed: usize,
) -> Vec<Vec<f32>> {
    run(
        &mut adapted(Session::new(model, options).unwrap(), adapters),
        steps,
        seed,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_sequence_has_the_same_bits_alone_and_with_others(
        of_each in prop::collection::vec(steps(), 1..17), model in 0..ALL_MODELS,
        kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]),
        (chunk, most_rows) in (prop_oneof![5usize..40, Just(256)], prop_oneof![Just(64usize), 1usize..6]),
        max_stall in prop::option::of(0u64..3),
        with_adapters in prop_oneof![1 => Just([0; 17]), 2 => prop::array::uniform17(0..ADAPTERS.len())],
    ) {
        let adapters_of_model = &ADAPTERS_OF_ALL[model];
        let (mixers, name, model) = all_models().nth(model).unwrap();
        let of = |chunk| SessionOptions { context: CONTEXT, chunk, kv_format };
        // For all 16 sessions and their forks.
        let kv_memory = Some(usize::MAX / 2);
        let max_stall = max_stall.map(std::time::Duration::from_millis);
        let options = EngineOptions { session: of(chunk), kv_memory, max_stall, most_rows };
        let engine = Engine::new(model, &options).unwrap();
        let together: Vec<_> = std::thread::scope(|scope| {
            let engine = &engine;
            let runs: Vec<_> = of_each.iter().enumerate().map(|(seed, steps)| {
                let adapters = &adapters_of_model[with_adapters[seed]];
                scope.spawn(move || run(&mut adapted(engine.session(), adapters), steps, seed))
            }).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for (seed, (steps, together)) in of_each.iter().zip(&together).enumerate() {
            let adapters = &adapters_of_model[with_adapters[seed]];
            let expected = alone(model, &of(chunk), adapters, &one_by_one(steps), seed);
            prop_assert_eq!(expected.len(), together.len());
            for (index, (expected, together)) in expected.iter().zip(together).enumerate() {
                prop_assert!(expected == together, "{mixers}, {name}: sequence {seed}, logits {index}");
            }
        }
        prop_assert_eq!(engine.usage().kv.bytes, 0, "all sessions are gone");
    }

    #[test]
    fn the_chunk_length_changes_no_bit(
        steps in steps(), model in 0..ALL_MODELS,
        kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]), chunk in 1usize..300,
        with_adapters in 0..ADAPTERS.len(),
    ) {
        let adapters = &ADAPTERS_OF_ALL[model][with_adapters];
        let (mixers, name, model) = all_models().nth(model).unwrap();
        let of = |chunk| SessionOptions { context: CONTEXT, chunk, kv_format };
        let alone = |chunk| alone(model, &of(chunk), adapters, &steps, 0);
        let (one, other) = (alone(chunk), alone(CONTEXT));
        prop_assert!(one == other, "{mixers}, {name}, chunks of {chunk}");
    }
}
