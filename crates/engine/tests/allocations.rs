//! Decode uses memory that the engine, the session and its threads allocate at the start. A token allocates only what
//! its request and its forward pass need: a few hundred bytes, independent of the model and the context.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use triad_engine::quantization::DecodeWeights;
use triad_engine::{
    Cancel, Cores, Engine, EngineOptions, LoadOptions, Model, Session, SessionOptions, Threads,
    testing,
};

/// The system's allocator, with the number of allocations and their bytes.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's guarantees hold.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees hold.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn int8(model: &Arc<Model>, decode_weights: DecodeWeights) -> Model {
    let tokens: Vec<u32> = (0..40)
        .map(|index| index * 7 % model.description().vocab as u32)
        .collect();
    testing::quantize(model, &tokens, 0.0, decode_weights)
}

/// The maximum allocations and bytes of a step, and of each further sequence in it.
const OF_STEP: (usize, usize) = (60, 3000);
const OF_SEQUENCE: (usize, usize) = (5, 600);

/// Returns the allocations and bytes of a step in which `sequences` decode one token each.
fn of_tokens(model: &Arc<Model>, context: usize, sequences: usize) -> (usize, usize) {
    const TOKENS: usize = 40;
    let list: Vec<u32> = (0..TOKENS as u32).collect();
    let options = SessionOptions {
        context,
        ..SessionOptions::default()
    };
    let engine = Engine::new(
        model,
        &EngineOptions {
            session: options,
            ..EngineOptions::default()
        },
    )
    .unwrap();
    let cancel = Cancel::new();
    let mut sessions: Vec<_> = (0..sequences).map(|_| engine.session()).collect();
    for session in &mut sessions {
        session.prefill(&[1, 2, 3], &cancel, |_| {}).unwrap();
    }
    let mut decode = |token: usize| {
        let together = sessions
            .iter_mut()
            .map(|session| (session, &list[token..=token]));
        Session::decode_together(together, &cancel).unwrap();
    };
    // The first tokens determine how much memory the threads need.
    (0..8).for_each(&mut decode);
    let before = (
        ALLOCATIONS.load(Ordering::SeqCst),
        BYTES.load(Ordering::SeqCst),
    );
    (0..TOKENS).for_each(&mut decode);
    let [count, bytes] = [&ALLOCATIONS, &BYTES].map(|counter| counter.load(Ordering::SeqCst));
    (
        (count - before.0).div_ceil(TOKENS),
        (bytes - before.1).div_ceil(TOKENS),
    )
}

// There is one test only, so that no other test allocates concurrently.
#[test]
fn a_token_of_an_answer_allocates_the_same_few_bytes_whatever_the_model_and_the_context() {
    let path = format!(
        "{}/../../tests/golden/families/gemma3",
        env!("CARGO_MANIFEST_DIR")
    );
    // On one thread: with several, a thread allocates its buffers when it is first faster than the others, at an
    // unknown time.
    let float = Arc::new(
        Model::load(
            path.as_ref(),
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap(),
    );
    let core = Cores::of_this_thread()
        .and_then(|cores| cores.iter().next())
        .map(|core| Cores::from_iter([core]));
    let pinned = core.map_or(Threads::Count(1), Threads::On);
    let mut deep = triad_model::family::shape("smollm2-135m").unwrap();
    deep.vocab = 500;
    deep.blocks.truncate(16);
    let models = [
        (
            "float on a core",
            Arc::new(
                Model::load(
                    path.as_ref(),
                    &LoadOptions {
                        threads: pinned,
                        ..Default::default()
                    },
                )
                .unwrap(),
            ),
        ),
        ("INT8", Arc::new(int8(&float, DecodeWeights::Int8))),
        ("INT4", Arc::new(int8(&float, DecodeWeights::Int4))),
        ("W4A16", Arc::new(testing::quantize_int4(&float))),
        (
            "sixteen blocks",
            Arc::new(
                Model::random(
                    deep,
                    &LoadOptions {
                        threads: Threads::Count(1),
                        ..Default::default()
                    },
                    1,
                )
                .unwrap(),
            ),
        ),
        ("float", float),
    ];
    for (name, model) in models {
        for context in [64, 512] {
            for sequences in [1, 4] {
                let (count, bytes) = of_tokens(&model, context, sequences);
                let most = |step, sequence| step + sequence * (sequences - 1);
                let is_few = count <= most(OF_STEP.0, OF_SEQUENCE.0)
                    && bytes <= most(OF_STEP.1, OF_SEQUENCE.1);
                assert!(
                    is_few,
                    "{name}, {sequences} sequences: {count} allocations of {bytes} bytes"
                );
            }
        }
    }
}
