//! Feed-forwards in fixed point: the same bits on any processor, only in prompts, and only if no adapter, shadow or cut
//! is within them.

use triad_engine::testing::adapters::{adapted, random, together};
use triad_plan::graph::Role;
use triad_plan::schedule::parts::{Axis, Cut, Share};

use super::devices::{TestDevice, with_device};
use super::*;

/// Returns a model without shadows.
fn model(family: &str) -> Arc<Model> {
    pruned(family, 1.0)
}

fn fixed(options: HeteroOptions) -> HeteroOptions {
    HeteroOptions {
        fixed_point: true,
        ..options
    }
}

/// Returns an engine with one processor, on the model's threads.
fn alone(model: &Arc<Model>) -> HeteroEngine {
    engine(model, fixed(one_processor()))
}

#[test]
fn fixed_point_has_the_same_bits_on_any_processors_by_any_policy_and_nearly_those_of_float() {
    for family in ["llama", "gemma3", "qwen2"] {
        // With half of the shadows, some blocks keep one.
        for rate in [1.0, 0.5] {
            let model = pruned(family, rate);
            let Ok(alone) = start(&model, fixed(one_processor())) else {
                assert!(rate < 1.0, "{family} has no feed-forward without a shadow");
                continue;
            };
            let blocks = model.description().blocks.len();
            let count = alone.fixed_point().unwrap();
            assert!(
                count > 0 && (rate < 1.0 || count == blocks),
                "{family}, {rate}: {count} of {blocks}"
            );
            let tokens = prompt(&model, 7 * CHUNK / 2);
            let expected = all_logits(alone.session(), &tokens);
            let float = all_logits(session(&model, CHUNK), &tokens);
            let largest = float.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let difference = expected
                .iter()
                .zip(&float)
                .map(|(a, b)| (a - b).abs())
                .fold(0f32, f32::max);
            assert!(
                difference < 0.2 * largest,
                "{family}: {difference} of {largest}"
            );
            for policy in Policy::ALL {
                let device = Arc::new(TestDevice::new());
                let with_device = with_device(&device, fixed(options(policy)));
                for options in [fixed(options(policy)), with_device] {
                    let engine = engine(&model, options);
                    assert_eq!(engine.fixed_point(), Some(count));
                    assert!(
                        all_logits(engine.session(), &tokens) == expected,
                        "{family}, {rate}, {policy:?}"
                    );
                }
                let prepared = device.prepared.lock().unwrap();
                let is_fixed = |subgraph: &&triad_processors::DeviceSubgraph| matches!(subgraph, triad_processors::DeviceSubgraph::FeedForward(whole) if whole.fixed_point);
                assert_eq!(prepared.iter().filter(is_fixed).count(), count);
            }
        }
    }
}

#[test]
fn verify_compares_fixed_point_with_fixed_point() {
    let model = model("llama");
    let engine = engine(&model, fixed(options(Policy::Fifo)));
    let verified = verify(&engine, 0.0, &Cancel::new(), &mut |_, _| {}).unwrap();
    assert_eq!(verified.failures().count(), 0);
}

#[test]
fn prompts_are_in_fixed_point_and_decode_sessions_with_adapters_and_what_is_observed_are_not() {
    let model = model("llama");
    let engine = alone(&model);
    // In a model as small as this, too few numbers differ to detect it by the results.
    let has_run = || engine.shared().fixed.as_ref().unwrap().has_run();
    let (tokens, cancel) = (prompt(&model, 12), Cancel::new());
    engine.session().decode(tokens[0], &cancel).unwrap();
    let adapters = together(&[(&random(&model, 1, |_| true), 1.0)]);
    adapted(engine.session(), &adapters)
        .prefill(&tokens, &cancel, |_| {})
        .unwrap();
    engine
        .session()
        .observe(&tokens, &cancel, &mut |_, _, _| {})
        .unwrap();
    assert!(!has_run());
    engine.session().prefill(&tokens, &cancel, |_| {}).unwrap();
    assert!(has_run());
}

#[test]
fn decode_is_in_float() {
    let model = model("llama");
    let (mut fixed, mut float) = (alone(&model).session(), session(&model, CHUNK));
    for token in prompt(&model, 12) {
        let found = fixed.decode(token, &Cancel::new()).unwrap();
        assert!(found == float.decode(token, &Cancel::new()).unwrap());
    }
}

#[test]
fn fixed_point_is_refused_where_feed_forwards_are_cut_or_none_is_for_it() {
    let refused =
        |model: &Arc<Model>, options| start(model, fixed(options)).err().unwrap().to_string();
    let whole = model("llama");
    for role in [Role::GateUp, Role::Down] {
        let share = |processor| Share {
            processor,
            share: 1.0,
        };
        let cut = Cut::new(Axis::Columns, vec![share(CPU), share(NPU)], 16).unwrap();
        let error = refused(
            &whole,
            HeteroOptions {
                cuts: vec![(role, cut)],
                ..options(Policy::Fifo)
            },
        );
        let expected = "the arithmetic within feed-forwards is fixed point, expected float, where gate and up or down are cut";
        assert_eq!(error, expected);
    }
    let device = Arc::new(TestDevice::with_products_alone());
    let error = refused(&whole, with_device(&device, options(Policy::Fifo)));
    let expected = "the arithmetic within feed-forwards is fixed point, expected float, where a device runs no whole \
                    feed-forwards";
    assert_eq!(error, expected);
    // A float model, and one with shadows everywhere.
    for model in [float("llama"), pruned("llama", 0.0)] {
        let error = refused(&model, options(Policy::Fifo));
        assert!(
            error.contains("a block whose feed-forward keeps no shadow"),
            "{error}"
        );
    }
}
