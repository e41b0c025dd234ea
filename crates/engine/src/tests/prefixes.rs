//! Tests of prefixes that sequences share: their results have the same bits, and memory stays within its limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::probed::{probed, set_probe};
use super::*;
use crate::testing::models::{ALL_MODELS, MODELS, STATES, all_models, tokens};
use crate::{Adapters, Error, KvFormat, PrefixSalt, Result};

const CONTEXT: usize = 800;
const PAGE: usize = triad_kernels::attention::PAGE;

fn options(kv_format: KvFormat, kv_memory: Option<usize>) -> EngineOptions {
    let session = SessionOptions {
        context: CONTEXT,
        chunk: 64,
        kv_format,
    };
    EngineOptions {
        session,
        kv_memory,
        ..EngineOptions::default()
    }
}

fn paged(model: &Arc<Model>, kv_format: KvFormat, kv_memory: Option<usize>) -> Engine {
    Engine::new(model, &options(kv_format, kv_memory)).unwrap()
}

/// Returns the logits after `prompt`, and after one more token.
fn run(session: &mut Session, prompt: &[u32]) -> Result<[Vec<f32>; 2]> {
    let reused = session.reuse(prompt);
    let prefilled = session
        .prefill(&prompt[reused..], &Cancel::new(), |_| {})
        .map(<[f32]>::to_vec);
    session.share();
    Ok([prefilled?, session.decode(1, &Cancel::new())?.to_vec()])
}

fn computed(model: &Arc<Model>, kv_format: KvFormat, prompt: &[u32]) -> [Vec<f32>; 2] {
    run(&mut paged(model, kv_format, None).session(), prompt).unwrap()
}

#[test]
fn what_is_found_has_the_bits_of_what_is_computed() {
    for (name, model) in &*MODELS {
        for kv_format in [KvFormat::F16, KvFormat::F32, KvFormat::Int8] {
            for length in [
                1,
                2,
                PAGE - 1,
                PAGE,
                PAGE + 1,
                2 * PAGE - 1,
                2 * PAGE,
                2 * PAGE + 1,
                700,
            ] {
                let engine = paged(model, kv_format, None);
                let prompt = tokens(length, 0);
                let mut first = engine.session();
                let expected = run(&mut first, &prompt).unwrap();
                let page_bytes = engine.usage().kv.page_bytes;
                // A live session shares whole pages; a dropped one shares everything.
                let mut second = engine.session();
                assert_eq!(
                    second.reuse(&prompt),
                    (length - 1).min(length / PAGE * PAGE),
                    "{length} tokens"
                );
                drop((first, second));
                let mut second = engine.session();
                assert_eq!(second.reuse(&prompt), length - 1);
                assert_eq!(
                    engine.usage().kv.bytes,
                    length.div_ceil(PAGE) * page_bytes,
                    "nothing is copied yet"
                );
                assert!(
                    run(&mut second, &prompt).unwrap() == expected,
                    "{name}, {kv_format:?}, {length} tokens"
                );
                // Another session continues differently in the middle of a page.
                let mut other = prompt[..length.min(PAGE + 40)].to_vec();
                other.extend(tokens(50, 3));
                let mut third = engine.session();
                let found = third.reuse(&other);
                assert!(found + 1 >= length.min(PAGE + 40), "{found} of {length}");
                let logits = run(&mut third, &other).unwrap();
                assert!(
                    logits == computed(model, kv_format, &other),
                    "{name}, {kv_format:?}, {length}: continues differently"
                );
                // The session that it shared pages with continues as before.
                second.truncate(length);
                assert!(second.decode(1, &Cancel::new()).unwrap() == expected[1]);
            }
        }
    }
}

#[test]
fn a_prefix_is_found_up_to_a_position_whose_states_are_known() {
    for (name, model) in &*STATES {
        for length in [1, 2, PAGE - 1, PAGE, PAGE + 1, PAGE + 2, 2 * PAGE + 100] {
            let engine = paged(model, KvFormat::F16, None);
            let prompt = tokens(length, 0);
            let mut first = engine.session();
            let expected = run(&mut first, &prompt).unwrap();
            drop(first);
            // The state is known one token before the end of a prompt.
            let mut same = engine.session();
            assert_eq!(same.reuse(&prompt), length - 1, "{name}, {length}");
            assert!(run(&mut same, &prompt).unwrap() == expected);
            let longer = [&prompt[..], &tokens(70, 1)].concat();
            let mut longer_one = engine.session();
            assert_eq!(longer_one.reuse(&longer), length - 1, "{name}, {length}");
            assert!(
                run(&mut longer_one, &longer).unwrap() == computed(model, KvFormat::F16, &longer)
            );
            // Elsewhere it is known at the ends of pages.
            let mut other = prompt[..length - length / 3].to_vec();
            other.extend(tokens(50, 3));
            let mut other_one = engine.session();
            let found = other_one.reuse(&other);
            let whole = (length - length / 3) / PAGE * PAGE;
            assert!(
                found == whole || length < 3,
                "{name}: {found} of {length} tokens"
            );
            assert!(
                run(&mut other_one, &other).unwrap() == computed(model, KvFormat::F16, &other),
                "{name}, {length}"
            );
        }
    }
}

#[test]
fn prefixes_are_found_by_sessions_with_the_same_salt_alone() {
    let (_, model) = &MODELS[0];
    let engine = paged(model, KvFormat::F16, None);
    let prompt = tokens(300, 0);
    let salts = [
        PrefixSalt::default(),
        PrefixSalt::from_secret(b"one"),
        PrefixSalt::from_secret(b"other"),
        PrefixSalt::from_secret(b""),
    ];
    let salted = |salt| {
        let mut session = engine.session();
        session.set_salt(salt);
        session
    };
    for (index, salt) in salts.iter().enumerate() {
        let mut session = salted(*salt);
        assert_eq!(
            session.reuse(&prompt),
            0,
            "salt {index} finds what others shared"
        );
        run(&mut session, &prompt).unwrap();
        // Forks, and sessions that change their salt, don't take prefixes to the other salt.
        let mut fork = session.fork();
        assert_eq!(fork.salt(), *salt);
        fork.set_salt(PrefixSalt::from_secret(b"none of them"));
        assert_eq!((fork.tokens().len(), fork.reuse(&prompt)), (0, 0));
    }
    for salt in salts {
        assert_eq!(salted(salt).reuse(&prompt), 299);
    }
    assert_eq!(engine.usage().kv.indexed_pages, 2 * salts.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let mut session = salted(salts[1]);
    let reused = session.reuse(&prompt);
    session
        .prefill(&prompt[reused..], &Cancel::new(), |_| {})
        .unwrap();
    session.save(&path).unwrap();
    drop(session);
    engine.forget_prefixes();
    engine
        .restore_salted(&path, &Adapters::default(), salts[2])
        .unwrap()
        .share();
    assert_eq!(
        salts.map(|salt| salted(salt).reuse(&prompt)),
        [0, 0, 299, 0]
    );
}

#[test]
fn decoded_tokens_are_not_shared() {
    let (_, model) = &MODELS[2];
    let engine = paged(model, KvFormat::F16, None);
    let mut first = engine.session();
    first
        .prefill(&tokens(PAGE - 3, 0), &Cancel::new(), |_| {})
        .unwrap();
    for token in tokens(10, 1) {
        first.decode(token, &Cancel::new()).unwrap();
    }
    first
        .prefill(&tokens(300, 2), &Cancel::new(), |_| {})
        .unwrap();
    let whole = first.tokens().to_vec();
    first.share();
    assert_eq!(
        engine.usage().kv.indexed_pages,
        0,
        "the first page has tokens of decode"
    );
    drop(first);
    let mut second = engine.session();
    assert_eq!(
        second.reuse(&whole),
        PAGE - 3,
        "up to the first that was decoded"
    );
    let rest = second
        .prefill(&whole[PAGE - 3..], &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    let mut fresh = paged(model, KvFormat::F16, None).session();
    assert!(rest == fresh.prefill(&whole, &Cancel::new(), |_| {}).unwrap());
}

#[test]
fn memory_that_sessions_hold_is_full_until_one_is_gone() {
    let (_, model) = &MODELS[1];
    let page = paged(model, KvFormat::F16, None).usage().kv.page_bytes;
    let engine = paged(model, KvFormat::F16, Some(3 * page));
    let mut sessions: Vec<_> = (0..3).map(|seed| (seed, engine.session())).collect();
    for (seed, session) in &mut sessions {
        run(session, &tokens(100, *seed)).unwrap();
    }
    let mut fourth = engine.session();
    let error = run(&mut fourth, &tokens(100, 9)).unwrap_err();
    assert!(
        matches!(error, Error::KvMemoryFull { needed, free: 0, budget } if needed == page && budget == 3 * page)
    );
    // The existing sessions continue as far as their pages go, and no further.
    sessions[0]
        .1
        .prefill(&tokens(PAGE - 101, 1), &Cancel::new(), |_| {})
        .unwrap();
    assert!(matches!(
        sessions[0].1.decode(1, &Cancel::new()),
        Err(Error::KvMemoryFull { .. })
    ));
    assert_eq!(sessions[0].1.tokens().len(), PAGE);
    drop(sessions.pop());
    assert!(
        run(&mut fourth, &tokens(100, 9)).unwrap()
            == computed(model, KvFormat::F16, &tokens(100, 9))
    );
    assert_eq!(engine.usage().kv.bytes, 3 * page);
}

#[test]
fn a_session_alone_has_all_the_memory_whatever_the_index_shares_with_it() {
    let (_, model) = &MODELS[0];
    let page = paged(model, KvFormat::F16, None).usage().kv.page_bytes;
    for pages in 1..4 {
        let engine = paged(model, KvFormat::F16, Some(pages * page));
        let prompt = tokens(pages * PAGE - 20, 0);
        let expected = run(&mut engine.session(), &prompt).unwrap();
        let mut second = engine.session();
        assert!(
            run(&mut second, &prompt).unwrap() == expected,
            "{pages} pages"
        );
        // Truncates into a page that it shared as a whole.
        second.truncate(pages * PAGE / 2);
        second
            .prefill(&tokens(30, 1), &Cancel::new(), |_| {})
            .unwrap();
        assert!(engine.usage().kv.bytes <= pages * page);
    }
}

#[test]
fn what_a_cancelled_prompt_reserved_is_given_back() {
    let (_, model) = &MODELS[0];
    let engine = paged(model, KvFormat::F16, None);
    let (cancel, mut session) = (Cancel::new(), engine.session());
    let result = session
        .prefill(&tokens(CONTEXT, 0), &cancel, |_| cancel.cancel())
        .map(<[f32]>::len);
    assert!(matches!(result, Err(Error::Cancelled)) && !session.tokens().is_empty());
    let usage = engine.usage().kv;
    assert_eq!(
        usage.bytes,
        session.tokens().len().div_ceil(PAGE) * usage.page_bytes
    );
    // A fork also releases the pages of scored tokens.
    let mut session = engine.session();
    session
        .prefill(&tokens(10, 0), &Cancel::new(), |_| {})
        .unwrap();
    let branch = tokens(600, 1);
    session
        .score(
            &[crate::Branch {
                tokens: &branch,
                scored_from: 1,
            }],
            &Cancel::new(),
            |_| {},
        )
        .unwrap();
    assert_eq!(session.fork().pages().0, 1);
}

#[test]
fn a_page_that_the_index_alone_holds_makes_way_for_the_same_one_of_a_sequence() {
    let (_, model) = &MODELS[0];
    let page = paged(model, KvFormat::F16, None).usage().kv.page_bytes;
    let engine = paged(model, KvFormat::F16, Some(4 * page));
    let [mut first, mut second, mut third] = [(); 3].map(|()| engine.session());
    run(&mut first, &tokens(PAGE, 0)).unwrap();
    engine.forget_prefixes();
    run(&mut second, &tokens(PAGE, 0)).unwrap();
    drop(second);
    run(&mut third, &tokens(1, 0)).unwrap();
    // Three pages: those of `first` and its answer, and one of `third`.
    run(&mut first, &tokens(2 * PAGE, 0)).unwrap();
    assert_eq!(engine.usage().kv.bytes, 4 * page);
}

#[test]
fn released_prefixes_are_the_oldest_and_their_memory_is_freed() {
    let (_, model) = &MODELS[1];
    let engine = paged(model, KvFormat::F16, None);
    let page = engine.usage().kv.page_bytes;
    for seed in 0..4 {
        run(&mut engine.session(), &tokens(PAGE, seed)).unwrap();
    }
    let mut held = engine.session();
    run(&mut held, &tokens(PAGE, 4)).unwrap();
    let before = engine.usage().kv;
    // The session also has a page for the token that it decoded.
    assert_eq!((before.bytes, before.indexed_pages), (6 * page, 5));
    engine.release(usize::MAX);
    assert_eq!(engine.usage().kv, before, "nothing is above this floor");
    assert_eq!(engine.release(3 * page), 3 * page);
    let reused = |seed| engine.session().reuse(&tokens(PAGE, seed));
    assert_eq!([0, 1, 2, 3].map(reused), [0, 0, 0, PAGE - 1]);
    // The pages of a session stay, and what it computes stays the same.
    assert_eq!(engine.release(0), page);
    assert_eq!(engine.usage().kv.bytes, 2 * page);
    let more = tokens(PAGE + 5, 4);
    assert!(run(&mut held, &more).unwrap() == computed(model, KvFormat::F16, &more));
    drop(held);
    engine.release(0);
    assert_eq!((engine.usage().kv.bytes, engine.release(0)), (0, 0));
}

#[test]
fn a_dropped_session_gives_its_pages_back_while_a_prompt_computed_with_its_own_goes_on() {
    let (_, model) = &MODELS[0];
    let engine = probed(model, &options(KvFormat::F16, None));
    let page = engine.usage().kv.page_bytes;
    // How many more layers may begin and batches end.
    let allowed = Arc::new(AtomicUsize::new(0));
    let at_gate = Arc::clone(&allowed);
    set_probe(
        &engine,
        Some(Arc::new(move |_| {
            while at_gate
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_err()
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        })),
    );
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

#[derive(Clone, Debug)]
enum Operation {
    /// A session, by its number, runs the beginning of a conversation, by its number, of this length.
    Run(usize, usize, usize),
    Truncate(usize, usize),
    Fork(usize, usize),
    Drop(usize),
    Forget,
    /// Keeps at most so many pages that no session holds.
    Release(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let length = || {
        prop_oneof![
            1usize..60,
            PAGE - 3..PAGE + 3,
            2 * PAGE - 3..2 * PAGE + 3,
            1usize..700
        ]
    };
    let operation = prop_oneof![
        8 => (0usize..3, 0usize..3, length()).prop_map(|(session, conversation, length)| Operation::Run(session, conversation, length)),
        1 => (0usize..3, length()).prop_map(|(session, length)| Operation::Truncate(session, length)),
        1 => (0usize..3, 0usize..3).prop_map(|(session, other)| Operation::Fork(session, other)),
        2 => (0usize..3).prop_map(Operation::Drop),
        1 => Just(Operation::Forget),
        1 => (0usize..4).prop_map(Operation::Release),
    ];
    prop::collection::vec(operation, 1..25)
}

/// Returns conversations with common beginnings.
fn conversation(number: usize, length: usize) -> Vec<u32> {
    let shared = [0, 270, 520][number].min(length);
    [tokens(shared, 0), tokens(length - shared, number)].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn found_evicted_or_computed_again_the_bits_are_the_same_and_the_memory_bounded(
        operations in operations(), model in 0..ALL_MODELS, pages in 1usize..8,
        kv_format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]),
    ) {
        let (mixers, name, model) = all_models().nth(model).unwrap();
        let page = paged(model, kv_format, None).usage().kv.page_bytes;
        // States of sequences also take memory: there is room for those of two.
        let states = 2 * crate::kv::state_bytes(model.description());
        let engine = paged(model, kv_format, Some(pages * page + states));
        let budget = engine.usage().kv.budget;
        let is_pages_alone = mixers == "attention";
        let mut sessions: [Option<Session>; 3] = Default::default();
        for operation in operations {
            match operation {
                Operation::Run(index, number, length) => {
                    let mut session = sessions[index].take().unwrap_or_else(|| engine.session());
                    let prompt = conversation(number, length);
                    match run(&mut session, &prompt) {
                        Ok(logits) => prop_assert!(logits == computed(model, kv_format, &prompt), "{mixers}, {name}"),
                        Err(Error::KvMemoryFull { .. }) if !is_pages_alone => {}
                        Err(Error::KvMemoryFull { .. }) => {
                            // With the pages of the other sessions, there is really no room.
                            let others: usize = sessions.iter().flatten().map(|session| session.pages().0).sum();
                            prop_assert!(others + (length + 1).div_ceil(PAGE) > pages, "{others} pages of {pages}");
                        }
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                    sessions[index] = Some(session);
                }
                Operation::Truncate(index, length) => {
                    sessions[index].iter_mut().for_each(|session| session.truncate(length));
                }
                Operation::Fork(index, other) => sessions[other] = sessions[index].as_ref().map(Session::fork),
                Operation::Drop(index) => sessions[index] = None,
                Operation::Forget => engine.forget_prefixes(),
                Operation::Release(pages) => {
                    let before = engine.usage().kv.bytes;
                    engine.release(pages * page);
                    let after = engine.usage().kv.bytes;
                    prop_assert!(after <= before);
                    // Only sessions hold more.
                    prop_assert!(after <= pages * page || sessions.iter().any(Option::is_some));
                }
            }
            prop_assert!(engine.usage().kv.bytes <= budget, "{:?}", engine.usage().kv);
        }
        drop(sessions);
        engine.forget_prefixes();
        prop_assert_eq!(engine.usage().kv.bytes, 0);
    }
}
