//! Sequences with LoRA adapters: each has the bits that it has alone, and none reuses keys and values of other
//! adapters.
//!
//! `tests/adapters.rs` compares the results of adapters with `peft`.

use super::*;
use crate::forward::Segment;
use crate::kv::KvCache;
use crate::testing::adapters::{self, ADAPTERS, adapted, random, together};
use crate::testing::models::{CONTEXT, FAMILIES, MODELS, float, pruned, tokens};
use crate::{Adapters, Error, KvFormat, testing};

/// Returns the logits of a prompt, and of some tokens that follow it.
fn logits(session: &mut Session, prompt: &[u32]) -> Vec<f32> {
    let mut all = session.prefill_all_logits(prompt, &Cancel::new()).unwrap();
    for token in 1..4 {
        all.extend_from_slice(session.decode(token, &Cancel::new()).unwrap());
    }
    all
}

#[test]
fn one_chunk_and_one_step_with_several_adapters_have_the_bits_of_each_alone() {
    for (name, model) in &*MODELS {
        // Any adapter may come first. Each comes twice, so that its rows are not adjacent.
        for first in [1, 2] {
            let each: Vec<_> = ADAPTERS
                .iter()
                .cycle()
                .skip(first)
                .take(2 * ADAPTERS.len())
                .collect();
            let prompts: Vec<_> = (0..each.len())
                .map(|seed| tokens(3 + 2 * seed, seed))
                .collect();
            let session = SessionOptions {
                context: CONTEXT,
                chunk: 256,
                ..SessionOptions::default()
            };
            let kv_memory = Some(usize::MAX / 2);
            let options = EngineOptions {
                session,
                kv_memory,
                ..EngineOptions::default()
            };
            let engine = Engine::new(model, &options).unwrap();
            check_chunk(&engine, &each, &prompts, name);
            check_step(&engine, &each, &prompts, name);
        }
    }
}

fn check_chunk(engine: &Engine, each: &[&Adapters], prompts: &[Vec<u32>], name: &str) {
    let (model, memory) = (engine.model(), &engine.shared().memory);
    let (mut session, hidden) = (engine.session(), model.description().hidden);
    let mut forward = session.prompt_run();
    // The residual stream after all blocks.
    let mut run = |each: &[&Adapters], prompts: &[Vec<u32>]| {
        let caches: Vec<_> = each
            .iter()
            .map(|adapters| KvCache::new(memory, (*adapters).clone()))
            .collect();
        let mut at = 0;
        let segments = caches.iter().zip(prompts).map(|(cache, prompt)| {
            cache.reserve(0, prompt.len()).unwrap();
            let rows = at..at + prompt.len();
            at = rows.end;
            Segment {
                cache,
                rows,
                position: 0,
                is_branch: false,
                states: &[],
                second: None,
                layout: crate::forward::RowLayout::default(),
            }
        });
        let segments: Vec<_> = segments.collect();
        model
            .install(|| forward.run(&prompts.concat(), &segments, &Cancel::new()))
            .unwrap();
        forward.buffers.residual(0..at, hidden).to_vec()
    };
    let together = run(each, prompts);
    let alone = each
        .iter()
        .zip(prompts)
        .flat_map(|(adapters, prompt)| run(&[adapters], std::slice::from_ref(prompt)));
    assert!(alone.eq(together), "{name}: a chunk");
}

fn check_step(engine: &Engine, each: &[&Adapters], prompts: &[Vec<u32>], name: &str) {
    let mut sessions: Vec<_> = each
        .iter()
        .map(|adapters| adapted(engine.session(), adapters))
        .collect();
    for (session, prompt) in sessions.iter_mut().zip(prompts) {
        session.prefill(prompt, &Cancel::new(), |_| {}).unwrap();
    }
    let mut forks: Vec<_> = sessions.iter().map(Session::fork).collect();
    let steps = engine.usage().steps;
    Session::decode_together(
        sessions.iter_mut().map(|session| (session, &[5, 6][..])),
        &Cancel::new(),
    )
    .unwrap();
    assert_eq!(engine.usage().steps, steps + 1);
    for (together, alone) in sessions.iter().zip(&mut forks) {
        alone.decode_each(&[5, 6], &Cancel::new()).unwrap();
        assert!(together.logits() == alone.logits(), "{name}: a step");
    }
}

#[test]
fn every_adapter_changes_the_logits_and_their_order_does_not() {
    for (name, model) in &*MODELS {
        let options = SessionOptions {
            context: CONTEXT,
            chunk: 16,
            ..SessionOptions::default()
        };
        let of = |adapters| {
            logits(
                &mut adapted(Session::new(model, &options).unwrap(), adapters),
                &tokens(40, 0),
            )
        };
        let all: Vec<_> = ADAPTERS.iter().map(of).collect();
        for (one, other) in (0..all.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert_eq!(
                all[one] == all[other],
                (one, other) == (5, 4),
                "{name}: {one} and {other}"
            );
        }
    }
}

/// Returns the largest difference relative to the largest of `expected`.
fn apart(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected
        .iter()
        .fold(0.0f32, |largest, x| largest.max(x.abs()));
    found
        .iter()
        .zip(expected)
        .fold(0.0f32, |most, (found, expected)| {
            most.max((found - expected).abs())
        })
        / largest
}

#[test]
fn on_quantized_weights_adapters_add_what_they_add_on_floats() {
    for family in FAMILIES {
        let float = float(family);
        let adapters = together(&[(&random(&float, 3, |_| true), 1.0)]);
        let tokens = prompt(&float, 30);
        let of = |model: &Arc<Model>, adapters: &Adapters| {
            logits(&mut adapted(session(model, CHUNK), adapters), &tokens)
        };
        let (plain, expected) = (of(&float, &Adapters::default()), of(&float, &adapters));
        let changed = apart(&plain, &expected);
        for model in [
            pruned(family, 0.0),
            Arc::new(testing::quantize_int4(&float)),
        ] {
            let lost = apart(&of(&model, &Adapters::default()), &plain);
            let lost_with = apart(&of(&model, &adapters), &expected);
            // In models as small as these, INT4 keeps little precision.
            let most = if model.weights().is_int8() {
                0.2 * changed
            } else {
                lost + 0.3 * changed
            };
            assert!(
                lost_with < most,
                "{family}: {lost} without adapters, {lost_with} with them, which change {changed}"
            );
        }
    }
}

#[test]
fn prefixes_are_shared_among_sessions_with_the_same_adapters_alone() {
    let (_, model) = &MODELS[1];
    let options = SessionOptions {
        context: CONTEXT,
        chunk: 64,
        kv_format: KvFormat::F16,
    };
    let engine = engine_of(model, &options);
    let prompt = tokens(300, 0);
    let mut all = Vec::new();
    for (index, adapters) in ADAPTERS[..5].iter().enumerate() {
        let mut session = adapted(engine.session(), adapters);
        assert_eq!(
            session.reuse(&prompt),
            0,
            "adapters {index}: nothing to reuse yet"
        );
        all.push(
            session
                .prefill(&prompt, &Cancel::new(), |_| {})
                .unwrap()
                .to_vec(),
        );
        session.share();
    }
    assert_eq!(engine.usage().kv.indexed_pages, 10);
    for (adapters, expected) in ADAPTERS.iter().zip(all.iter().chain(&all[4..])) {
        let mut session = adapted(engine.session(), adapters);
        assert_eq!(session.reuse(&prompt), 299);
        assert!(
            session
                .prefill(&prompt[299..], &Cancel::new(), |_| {})
                .unwrap()
                == expected
        );
    }
    // A session that changes its adapters restarts, and what it shared stays unchanged.
    let mut session = adapted(engine.session(), &ADAPTERS[1]);
    session.reuse(&prompt);
    session.share();
    session.set_adapters(&ADAPTERS[2]).unwrap();
    assert!(session.tokens().is_empty());
    assert_eq!(session.reuse(&prompt), 299);
    assert!(
        session
            .prefill(&prompt[299..], &Cancel::new(), |_| {})
            .unwrap()
            == all[2]
    );
    session.set_adapters(&ADAPTERS[2]).unwrap();
    assert_eq!(session.tokens(), prompt, "the same adapters are no change");
    drop(session);
    engine.forget_prefixes();
    assert_eq!(engine.usage().kv.bytes, 0);
}

#[test]
fn a_saved_session_is_restored_with_its_adapters_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let (_, model) = &MODELS[0];
    let options = SessionOptions {
        context: CONTEXT,
        chunk: 64,
        kv_format: KvFormat::F16,
    };
    let engine = engine_of(model, &options);
    let mut session = adapted(engine.session(), &ADAPTERS[4]);
    session
        .prefill(&tokens(20, 0), &Cancel::new(), |_| {})
        .unwrap();
    session.save(&path).unwrap();
    let mut restored = engine.restore_with(&path, &ADAPTERS[5]).unwrap();
    assert!(
        session.decode(3, &Cancel::new()).unwrap() == restored.decode(3, &Cancel::new()).unwrap()
    );
    for wrong in &ADAPTERS[..4] {
        let error = engine.restore_with(&path, wrong).err().unwrap().to_string();
        assert!(
            error.contains("the adapters: ") && error.contains("give those that"),
            "{error}"
        );
    }
    engine.session().save(&path).unwrap();
    let error = engine
        .restore_with(&path, &ADAPTERS[1])
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("the adapters: none, expected "), "{error}");
    let other = adapters::combinations(&float("llama"));
    assert!(matches!(
        engine.restore_with(&path, &other[1]),
        Err(Error::AdapterOfAnotherModel { .. })
    ));
}
