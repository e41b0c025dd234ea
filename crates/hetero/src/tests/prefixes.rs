//! Pages of sequences whose prompts are computed in one batch.

use triad_engine::testing::models::{MODELS, tokens};
use triad_kernels::attention::PAGE;

use super::*;

#[test]
fn a_dropped_session_gives_its_pages_back_while_a_prompt_computed_with_its_own_goes_on() {
    let (_, model) = &MODELS[0];
    let options = HeteroOptions {
        engine: of_session(800, 64),
        ..one_processor()
    };
    let engine = engine(model, options);
    let page = engine.usage().kv.page_bytes;
    // How many more times a task may begin or end.
    let allowed = Arc::new(AtomicUsize::new(0));
    let at_gate = Arc::clone(&allowed);
    engine.set_probe(Some(Arc::new(move |_, _| {
        while at_gate
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_err()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })));
    let until_reserved = |pages: usize| {
        while engine.usage().kv.bytes < pages * page {
            std::thread::yield_now();
        }
    };
    let prefill = |count: usize| {
        engine
            .session()
            .prefill(&tokens(count, 1), &Cancel::new(), |_| {})
            .unwrap();
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| prefill(1));
        until_reserved(1);
        // Both wait for the first one, and are then computed together.
        let short = scope.spawn(|| prefill(10));
        // Before the long one, so that the first chunk has all of it.
        until_reserved(2);
        let long = scope.spawn(|| prefill(700));
        until_reserved(2 + 700usize.div_ceil(PAGE));
        std::thread::sleep(Duration::from_millis(200));
        // The long one has ten more chunks when these are done, so their threads have time to detect it.
        while !(first.is_finished() && short.is_finished()) {
            allowed.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
        }
        first.join().unwrap();
        short.join().unwrap();
        assert_eq!(engine.usage().kv.bytes, 700usize.div_ceil(PAGE) * page);
        allowed.store(usize::MAX, Ordering::SeqCst);
        long.join().unwrap();
    });
    assert_eq!(engine.usage().kv.bytes, 0);
}
