//! Tests of models whose mixers keep states.

use super::*;
use crate::testing::models::{CONTEXT, STATES, tokens};
use crate::{Branch, KvFormat, memory};

fn options(chunk: usize) -> SessionOptions {
    SessionOptions {
        context: CONTEXT,
        chunk,
        kv_format: KvFormat::F32,
    }
}

#[test]
fn branches_are_scored_from_the_state_before_them_and_leave_it() {
    for (name, model) in &*STATES {
        for (chunk, prefix) in [(7, 0), (7, 5), (64, 256), (64, 300)] {
            let new = || {
                let mut session = session_of(model, chunk);
                if prefix > 0 {
                    let prompt = tokens(prefix, 0);
                    session.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
                }
                session
            };
            let all: Vec<Vec<u32>> = [12, 30, 2, 9].map(|count| tokens(count, 1)).into();
            let branches: Vec<_> = all
                .iter()
                .map(|tokens| Branch {
                    tokens,
                    scored_from: 1,
                })
                .collect();
            let score = |session: &mut Session, branches: &[Branch]| {
                session.score(branches, &Cancel::new(), |_| {}).unwrap()
            };
            let mut together = new();
            let found = score(&mut together, &branches);
            for (branch, found) in branches.iter().zip(&found) {
                let alone = score(&mut new(), &[*branch]).remove(0);
                assert!(alone == *found, "{name}, {chunk}, {prefix}");
            }
            let mut plain = new();
            let next = |session: &mut Session| {
                session
                    .prefill(&[4, 5], &Cancel::new(), |_| {})
                    .unwrap()
                    .to_vec()
            };
            assert!(
                next(&mut together) == next(&mut plain),
                "{name}, {chunk}, {prefix}"
            );
        }
    }
}

fn session_of(model: &Arc<Model>, chunk: usize) -> Session {
    Session::new(model, &options(chunk)).unwrap()
}

#[test]
fn rejected_rows_are_computed_again_from_the_state_before_them() {
    for (name, model) in &*STATES {
        let mut session = session_of(model, 64);
        let prompt = tokens(250, 0);
        session.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
        for (rows, kept) in [(1, 1), (20, 0), (9, 4), (40, 17), (3, 3), (17, 1)] {
            let before = session.tokens().len();
            session
                .decode_each(&tokens(rows, 1), &Cancel::new())
                .unwrap();
            session.forget_rows(rows - kept);
            assert_eq!(session.tokens().len(), before + kept);
        }
        let computed = |session: &mut Session| session.decode(9, &Cancel::new()).unwrap().to_vec();
        let mut other = session_of(model, 64);
        other.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
        for token in &session.tokens()[prompt.len()..] {
            other.decode(*token, &Cancel::new()).unwrap();
        }
        assert!(computed(&mut session) == computed(&mut other), "{name}");
        // Without the states at its end, the prompt's and the answer's tokens run again in their own arithmetic.
        session.truncate(prompt.len() + 3);
        let mut third = session_of(model, 64);
        third.prefill(&prompt, &Cancel::new(), |_| {}).unwrap();
        for token in &session.tokens()[prompt.len()..] {
            third.decode(*token, &Cancel::new()).unwrap();
        }
        assert!(computed(&mut session) == computed(&mut third), "{name}");
        session.truncate(100);
        let mut fourth = session_of(model, 64);
        fourth
            .prefill(&prompt[..100], &Cancel::new(), |_| {})
            .unwrap();
        assert!(computed(&mut session) == computed(&mut fourth), "{name}");
    }
}

#[test]
fn the_memory_of_states_is_counted_and_estimated_and_forks_share_it() {
    let (_, model) = &STATES[0];
    let engine = engine_of(model, &options(64));
    let mut session = engine.session();
    session
        .prefill(&tokens(300, 0), &Cancel::new(), |_| {})
        .unwrap();
    let usage = engine.usage().kv;
    let description = model.description();
    // Two, four and one earlier products of 32 channels; three earlier inputs of a DeltaNet, two of a Mamba-2, and their
    // matrices.
    let (channels, matrices) = (2 * 2 * 40 + 4 * 28, 4 * 40 * 28);
    let width = 4 * 12;
    let of_mamba = width + 2 * 2 * 20;
    let values = 32 * (2 + 4 + 1) + 2 * (3 * channels + matrices) + 2 * of_mamba + width * 20;
    // Five states, and 16 rows: of three times the channels, of a DeltaNet's channels, gates, rates and decays, and of a
    // Mamba-2's gates, channels and steps.
    let rows = 3 * 3 * 32 + 2 * (channels + 4 * 28 + 2 * 4) + width + of_mamba + 4;
    let states = 4 * (5 * values + 16 * rows);
    // Two blocks with two heads of eight each.
    let rows = 2 * 2 * 2 * 8 * 4 * 256;
    assert_eq!(usage.page_bytes, rows + 4 * values);
    assert_eq!(usage.bytes, 2 * usage.page_bytes + states);
    let estimated = memory::of_session(description, 0, 512, 64, KvFormat::F32).kv_cache;
    assert_eq!(estimated, 2 * usage.page_bytes + states);
    let mut fork = session.fork();
    assert_eq!(engine.usage().kv.bytes, usage.bytes);
    fork.decode(1, &Cancel::new()).unwrap();
    // Its own states, and its own copy of the last page.
    let of_both = 3 * usage.page_bytes + 2 * states;
    assert_eq!(engine.usage().kv.bytes, of_both);
    drop(session);
    assert_eq!(engine.usage().kv.bytes, 2 * usage.page_bytes + states);
    drop(fork);
    assert_eq!(engine.usage().kv.bytes, 0);
}
