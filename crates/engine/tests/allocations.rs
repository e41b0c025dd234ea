//! Decode works in memory that the session and its threads have had from the start: a token allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use triad_engine::quantize::DecodeWeights;
use triad_engine::{Cancel, Cores, LoadOptions, Model, Session, SessionOptions, Threads, testing};

/// The system's allocator, and how often it was asked.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn int8(model: &Arc<Model>, decode_weights: DecodeWeights) -> Model {
    let tokens: Vec<u32> = (0..40).map(|index| index * 7 % model.description().vocab as u32).collect();
    testing::quantize(model, &tokens, 0.0, decode_weights)
}

// One test, so that no other one allocates beside it.
#[test]
fn a_token_of_an_answer_allocates_nothing() {
    let path = format!("{}/../../tests/golden/families/gemma3", env!("CARGO_MANIFEST_DIR"));
    // On one thread: another one allocates its buffers when it is first faster than the others, whenever that is.
    let float = Arc::new(Model::load(path.as_ref(), &LoadOptions { threads: Threads::Count(1) }).unwrap());
    let core = Cores::of_this_thread().and_then(|cores| cores.iter().next()).map(|core| Cores::from_iter([core]));
    let pinned = core.map_or(Threads::Count(1), Threads::On);
    let models = [
        ("float", Arc::clone(&float)),
        ("float on a core", Arc::new(Model::load(path.as_ref(), &LoadOptions { threads: pinned }).unwrap())),
        ("INT8", Arc::new(int8(&float, DecodeWeights::Int8))),
        ("INT4", Arc::new(int8(&float, DecodeWeights::Int4))),
    ];
    for (name, model) in models {
        let mut session = Session::new(&model, &SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
        let cancel = Cancel::new();
        session.prefill(&[1, 2, 3], &cancel, |_| {}).unwrap();
        // The first tokens find out how much memory the threads need.
        (0..8).for_each(|token| drop(session.decode(token, &cancel).map(<[f32]>::len)));
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for token in 0..40 {
            session.decode(token, &cancel).unwrap();
        }
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{name}");
    }
}
