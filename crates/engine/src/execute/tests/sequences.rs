//! Tests of many sequences on one engine: each has the bits that it has alone.

use std::sync::LazyLock;

use triad_model::description::{
    Activation, Attention, BlockDescription, FeedForward, ModelDescription, Norm, NormKind,
    Residual, Rope, RopePairing, RopeScaling,
};

use super::adapters::{ADAPTERS, adapted};
use super::*;
use crate::{Adapters, KvFormat};

pub(super) const VOCAB: usize = 97;
/// Slightly more than two pages.
pub(super) const CONTEXT: usize = 600;

/// Returns a small model with a context of several pages; the second block has a window that ends within a page.
pub(super) fn description() -> ModelDescription {
    let norm = Norm {
        kind: NormKind::Rms,
        epsilon: 1e-5,
        weight_offset: 0.0,
    };
    let block = |window| BlockDescription {
        attention: Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            scale: 0.4,
            qkv_bias: false,
            output_bias: false,
            qk_norm: None,
            window,
            soft_cap: None,
            rope: Rope {
                dims: 8,
                base: 10_000.0,
                pairing: RopePairing::Halves,
                scaling: RopeScaling::None,
            },
        },
        feed_forward: FeedForward {
            width: 48,
            gated: true,
            activation: Activation::Silu,
            bias: false,
        },
        norm,
        residual: Residual::Serial,
    };
    ModelDescription {
        family: "random".into(),
        name: None,
        hidden: 32,
        vocab: VOCAB,
        context: 4 * 256,
        embedding_scale: 3.0,
        output_norm: norm,
        blocks: vec![block(None), block(Some(200))],
        tied_output: false,
        output_bias: false,
        logit_soft_cap: None,
    }
}

/// Models in float, in INT8, in INT8 with smaller weights for decode, and in W4A16. In the last one, down has no W4A16
/// weights, since its rows are no whole groups.
pub(super) static MODELS: LazyLock<[(&str, Arc<Model>); 4]> = LazyLock::new(|| {
    let float = Model::random(
        description(),
        &LoadOptions {
            threads: Threads::Count(1),
            ..Default::default()
        },
        7,
    )
    .unwrap();
    let float = Arc::new(float);
    let quantize = |weights| Arc::new(testing::quantize(&float, &prompt(&float, 60), 0.5, weights));
    let (int8, int4) = (quantize(DecodeWeights::Int8), quantize(DecodeWeights::Int4));
    let w4a16 = Arc::new(testing::quantize_int4(&float));
    [
        ("float", float),
        ("INT8", int8),
        ("INT4 in decode", int4),
        ("W4A16", w4a16),
    ]
});

#[derive(Clone, Debug)]
enum Step {
    Prefill(usize),
    PrefillAll(usize),
    Decode(usize),
    DecodeEach(usize),
    /// To this share of its tokens.
    Truncate(f64),
    /// Session and fork continue differently, the fork by this many tokens.
    Fork(usize),
}

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

/// Returns all logits of the steps.
fn run(session: &mut Session, steps: &[Step], seed: usize) -> Vec<Vec<f32>> {
    let cancel = Cancel::new();
    let (mut all, mut forks) = (Vec::new(), Vec::new());
    for (index, step) in steps.iter().enumerate() {
        let tokens = |count: usize| -> Vec<u32> {
            (0..count)
                .map(|token| {
                    ((token * token * 7 + token * 13 + seed * 31 + index * 17) % VOCAB) as u32
                })
                .collect()
        };
        let fits = |count: usize| session.tokens().len() + count <= CONTEXT;
        match *step {
            Step::Prefill(count) if fits(count) => {
                all.push(
                    session
                        .prefill(&tokens(count), &cancel, |_| {})
                        .unwrap()
                        .to_vec(),
                );
            }
            Step::PrefillAll(count) if fits(count) => {
                all.push(session.prefill_all_logits(&tokens(count), &cancel).unwrap());
            }
            Step::Decode(count) if fits(count) => {
                for token in tokens(count) {
                    all.push(session.decode(token, &cancel).unwrap().to_vec());
                }
            }
            Step::DecodeEach(count) if fits(count) => {
                let each = session.decode_each(&tokens(count), &cancel).unwrap();
                all.extend(each.chunks(VOCAB).map(<[f32]>::to_vec));
            }
            Step::Truncate(share) => {
                session.truncate((share * session.tokens().len() as f64) as usize);
            }
            Step::Fork(count) if fits(count) => {
                let mut fork = session.fork();
                all.push(
                    fork.prefill(&tokens(count), &cancel, |_| {})
                        .unwrap()
                        .to_vec(),
                );
                all.push(fork.decode(1, &cancel).map_or(Vec::new(), <[f32]>::to_vec));
                forks.push(fork);
            }
            _ => {}
        }
    }
    all
}

/// Replaces batches of decoded tokens by single tokens, which must have the same bits.
fn one_by_one(steps: &[Step]) -> Vec<Step> {
    steps
        .iter()
        .map(|step| {
            if let Step::DecodeEach(count) = step {
                Step::Decode(*count)
            } else {
                step.clone()
            }
        })
        .collect()
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
    fn a_sequence_has_the_same_bits_alone_and_beside_others(
        of_each in prop::collection::vec(steps(), 1..17), model in 0usize..4,
        kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]),
        (chunk, most_rows, in_flight) in (prop_oneof![5usize..40, Just(256)], prop_oneof![Just(64usize), 1usize..6], 1usize..5),
        policy in prop::sample::select(Policy::ALL.to_vec()), is_two: bool,
        lost in prop::option::of((0usize..2, 20usize..60, any::<bool>())),
        with_adapters in prop_oneof![1 => Just([0; 17]), 2 => prop::array::uniform17(0..ADAPTERS.len())],
    ) {
        let (name, model) = &MODELS[model];
        let of = |chunk| SessionOptions { context: CONTEXT, chunk, kv_format };
        let processors = if is_two { two(1, None) } else { Vec::new() };
        // For all 16 sessions and their forks.
        let kv_memory = Some(usize::MAX / 2);
        let options = EngineOptions {
            session: of(chunk), kv_memory, processors, policy, most_rows, chunks_in_flight: in_flight, ..EngineOptions::default()
        };
        let engine = engine(model, options);
        if let Some((unit, every, panics)) = lost.filter(|_| is_two) {
            let moments = AtomicUsize::new(0);
            engine.set_probe(Some(Arc::new(move |of, _| {
                let fails = of == unit && moments.fetch_add(1, Ordering::Relaxed) % every == every - 1;
                if !fails { Ok(()) } else if panics { panic() } else { error() }
            })));
        }
        let together: Vec<_> = std::thread::scope(|scope| {
            let engine = &engine;
            let runs: Vec<_> = of_each.iter().enumerate().map(|(seed, steps)| {
                let adapters = &ADAPTERS[with_adapters[seed]];
                scope.spawn(move || run(&mut adapted(engine.session(), adapters), steps, seed))
            }).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for (seed, (steps, together)) in of_each.iter().zip(&together).enumerate() {
            let adapters = &ADAPTERS[with_adapters[seed]];
            let expected = alone(model, &of(chunk), adapters, &one_by_one(steps), seed);
            prop_assert_eq!(expected.len(), together.len());
            for (index, (expected, together)) in expected.iter().zip(together).enumerate() {
                prop_assert!(expected == together, "{name}: sequence {seed}, logits {index}");
            }
        }
        prop_assert_eq!(engine.usage().kv.bytes, 0, "all sessions are gone");
    }

    #[test]
    fn the_chunk_length_changes_no_bit(
        steps in steps(), model in 0usize..4,
        kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]), chunk in 1usize..300,
        with_adapters in 0..ADAPTERS.len(),
    ) {
        let (name, model) = &MODELS[model];
        let of = |chunk| SessionOptions { context: CONTEXT, chunk, kv_format };
        let alone = |chunk| alone(model, &of(chunk), &ADAPTERS[with_adapters], &steps, 0);
        let (one, other) = (alone(chunk), alone(CONTEXT));
        prop_assert!(one == other, "{name}, chunks of {chunk}");
    }
}
