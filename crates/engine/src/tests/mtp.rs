//! Heads that predict one more token, compared with the logits of `tests/golden/mtp/make.py`, and answers with their
//! proposals.

use safetensors::SafeTensors;
use triad_kernels::{BlockArithmetic, lock};
use triad_model::description::ModelDescription;

use super::*;
use crate::quantization::DecodeWeights;
use crate::sampler::SamplerOptions;
use crate::speculate::{Speculate, Speculation};
use crate::{
    Error, GenerateOptions, Generation, KvFormat, LoadOptions, NoHead, Threads, generate, testing,
};

const BASES: [(&str, &str); 3] = [
    ("qwen3_5", "qwen3_5"),
    ("qwen3_5.gguf", "qwen3_5"),
    ("qwen3_5_moe", "qwen3_5_moe"),
];
/// Files with a tokenizer, so that they write text.
const WRITERS: [&str; 3] = ["qwen3_5.gguf", "perfect.gguf", "wrong.gguf"];
/// The largest difference of a logit, relative to the largest one.
const TOLERANCE: f32 = 1e-4;
const PROMPT: [u32; 7] = [40, 14, 15, 9, 26, 50, 51];

fn folder() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mtp").into()
}

fn model(name: &str) -> Arc<Model> {
    let options = LoadOptions {
        threads: Threads::Count(2),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    Arc::new(Model::load(&folder().join(name), &options).unwrap())
}

fn float_session(model: &Arc<Model>, chunk: usize) -> Session {
    let options = SessionOptions {
        context: 512,
        chunk,
        kv_format: KvFormat::F32,
    };
    Session::new(model, &options).unwrap()
}

struct Golden {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    more: Vec<u32>,
    chain: Vec<f32>,
}

fn golden(name: &str) -> Golden {
    let bytes = std::fs::read(folder().join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let data = |part: &str| {
        file.tensor(&format!("{name}.{part}"))
            .unwrap()
            .data()
            .to_vec()
    };
    let floats = |part: &str| bytemuck::pod_collect_to_vec(&data(part));
    let tokens = |part: &str| bytemuck::pod_collect_to_vec(&data(part));
    Golden {
        tokens: tokens("tokens"),
        logits: floats("logits"),
        more: tokens("more"),
        chain: floats("chain"),
    }
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0.0f32, |most, it| most.max(it.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let difference = differences.fold(0.0f32, f32::max) / largest;
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(difference < TOLERANCE, "{what}: {difference}");
}

#[test]
fn a_head_gives_the_logits_of_the_reference_at_every_position() {
    for (name, base) in BASES {
        let (model, golden) = (model(name), golden(base));
        let vocab = model.description().vocab;
        for chunk in [1, 7, 64] {
            let mut session = float_session(&model, chunk);
            let head = session.lead_mtp().unwrap();
            // A prompt, the rest token by token or several at once.
            for (count, step) in [(0, 20), (20, 1), (21, 5), (26, 6)] {
                let tokens = &golden.tokens[count..count + step];
                match count {
                    0 => {
                        session.prefill(tokens, &Cancel::new(), |_| {}).unwrap();
                    }
                    _ => {
                        session.decode_each(tokens, &Cancel::new()).unwrap();
                    }
                }
                let known = count + step;
                let mut head = lock(&head);
                assert!(head.is_ready(known + 1), "{name}");
                head.predict(&golden.tokens[..=known], &Cancel::new())
                    .unwrap();
                let expected = &golden.logits[(known - 1) * vocab..known * vocab];
                assert_close(head.logits(), expected, &format!("{name}, row {known}"));
            }
            let mut head = lock(&head);
            for (row, expected) in golden.chain.chunks_exact(vocab).enumerate() {
                assert_close(head.logits(), expected, &format!("{name}, more {row}"));
                head.predict_after(golden.more[row], &Cancel::new())
                    .unwrap();
            }
            head.undo();
        }
    }
}

#[test]
fn what_waits_is_run_as_a_prompt_with_the_same_logits() {
    for (name, base) in BASES {
        let (model, golden) = (model(name), golden(base));
        let vocab = model.description().vocab;
        let (prompt, rows) = (&golden.tokens[..32], 32);
        let mut session = float_session(&model, 7);
        let head = session.lead_mtp().unwrap();
        session.prefill(prompt, &Cancel::new(), |_| {}).unwrap();
        let mut head = lock(&head);
        head.catch_up(prompt, &Cancel::new()).unwrap();
        head.predict(&golden.tokens, &Cancel::new()).unwrap();
        assert_close(
            head.logits(),
            &golden.logits[(rows - 1) * vocab..],
            &format!("{name}, as a prompt"),
        );
    }
}

fn options(speculate: Option<Speculate>, sampler: SamplerOptions) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(41),
        ignores_end_tokens: true,
        speculate,
        sampler,
        ..GenerateOptions::default()
    }
}

fn greedy() -> SamplerOptions {
    SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    }
}

fn fixed(most: usize) -> Option<Speculate> {
    Some(Speculate {
        most,
        is_fixed: true,
        ..Speculate::mtp()
    })
}

fn answer(session: &mut Session, prompt: &[u32], options: &GenerateOptions) -> Generation {
    generate(session, prompt, options, &Cancel::new(), &mut |_| {}).unwrap()
}

fn counts(answer: &Generation) -> Speculation {
    answer.speculation.unwrap()
}

#[test]
fn a_head_that_is_right_has_nearly_all_proposals_accepted_and_one_that_is_wrong_none() {
    for (name, share) in [("perfect.gguf", 1.0), ("wrong.gguf", 0.0)] {
        let model = model(name);
        let found = answer(
            &mut float_session(&model, 16),
            &PROMPT,
            &options(fixed(4), greedy()),
        );
        let expected: Vec<u32> = (52..52 + 41).collect();
        assert_eq!(found.tokens, expected, "{name}");
        let counts = counts(&found);
        assert!(counts.mtp_proposed > 0, "{name}: the head was not used");
        assert_eq!(counts.proposed, counts.mtp_proposed, "{name}");
        assert_eq!(counts.acceptance(), share, "{name}: {counts:?}");
        let steps = if share == 1.0 { 8 } else { 40 };
        assert_eq!(counts.steps, steps, "{name}");
    }
}

#[test]
fn proposals_of_a_head_change_no_token_and_no_bit() {
    for name in WRITERS {
        let float = model(name);
        let tokens: Vec<u32> = (0..40).map(|index| index * 7 % 128).collect();
        let int8 = Arc::new(testing::quantize(&float, &tokens, 0.5, DecodeWeights::Int8));
        for (model, kind) in [(float, "float"), (int8, "INT8")] {
            for (temperature, seed) in [(0.0, 1), (1.0, 2), (3.0, 3)] {
                let sampler = SamplerOptions {
                    temperature,
                    seed,
                    repetition_penalty: 1.1,
                    ..SamplerOptions::default()
                };
                let mut plain = session(&model, 5);
                let expected = answer(&mut plain, &PROMPT, &options(None, sampler.clone()));
                let measured = [Some(Speculate::mtp()), Some(Speculate::automatic())];
                for speculate in measured.into_iter().chain([1, 2, 5].map(fixed)) {
                    let is_fixed = speculate.as_ref().is_some_and(|it| it.is_fixed);
                    let mut session = session(&model, 5);
                    let found = answer(&mut session, &PROMPT, &options(speculate, sampler.clone()));
                    assert_eq!(
                        found.tokens, expected.tokens,
                        "{name}, {kind}, {temperature}"
                    );
                    assert_eq!(found.text, expected.text);
                    if is_fixed {
                        assert!(counts(&found).mtp_proposed > 0, "{name}, {kind}: unused");
                    }
                    assert!(session.logits() == plain.logits(), "{name}, {kind}: logits");
                    let next =
                        |session: &mut Session| session.decode(7, &Cancel::new()).unwrap().to_vec();
                    let mut plain = plain.fork();
                    assert!(
                        next(&mut session) == next(&mut plain),
                        "{name}, {kind}: next"
                    );
                }
            }
        }
    }
}

#[test]
fn a_head_goes_on_in_later_answers_forks_and_after_a_session_was_cut() {
    let model = model("perfect.gguf");
    let options = GenerateOptions {
        max_tokens: Some(6),
        ..options(fixed(3), greedy())
    };
    let mut session = session(&model, 5);
    let mut conversation = PROMPT.to_vec();
    let check = |session: &mut Session, conversation: &mut Vec<u32>, what: &str| {
        let found = answer(session, conversation, &options);
        let next = conversation.last().unwrap() + 1;
        let expected: Vec<u32> = (next..next + 6).map(|token| token % 128).collect();
        assert_eq!(found.tokens, expected, "{what}");
        let counts = counts(&found);
        assert!(counts.mtp_proposed > 0, "{what}: the head was not used");
        assert_eq!(counts.mtp_accepted, counts.mtp_proposed, "{what}");
        conversation.extend(found.tokens);
    };
    check(&mut session, &mut conversation, "first");
    conversation.extend([3, 50]);
    check(&mut session, &mut conversation, "second");
    let mut fork = session.fork();
    for (session, last) in [(&mut fork, 60), (&mut session, 20)] {
        let mut conversation = conversation.clone();
        conversation.extend([4, last]);
        check(session, &mut conversation, "fork");
    }
    let mut shorter = PROMPT[..4].to_vec();
    shorter.extend([8, 30]);
    check(&mut session, &mut shorter, "cut");
    // Another session finds the prefix, whose states are not known.
    let mut other = session.engine().session();
    session.share();
    check(&mut other, &mut PROMPT.to_vec(), "prefix");
}

#[test]
fn heads_of_several_sessions_of_one_engine_do_not_mix() {
    let model = model("qwen3_5.gguf");
    let engine = engine(&model);
    let plain: Vec<_> = (0..4)
        .map(|index| {
            let prompt = [&PROMPT[..], &[index]].concat();
            answer(
                &mut session(&model, CHUNK),
                &prompt,
                &options(None, greedy()),
            )
            .tokens
        })
        .collect();
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let engine = &engine;
                scope.spawn(move || {
                    let prompt = [&PROMPT[..], &[index]].concat();
                    let options = options(fixed(2), greedy());
                    answer(&mut engine.session(), &prompt, &options).tokens
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(found, plain);
}

#[test]
fn without_memory_for_its_keys_a_head_proposes_nothing() {
    let model = model("perfect.gguf");
    let session_options = session_options(CHUNK);
    let bytes = crate::kv::KvMemory::bytes_of(model.description(), KvFormat::F16, 64);
    let engine = EngineOptions {
        session: session_options,
        // The head has room for the keys of less than one page.
        kv_memory: Some(bytes),
        ..EngineOptions::default()
    };
    let engine = Engine::new(&model, &engine).unwrap();
    let heads: Vec<_> = (0..64)
        .map_while(|_| {
            let mut session = engine.shared().mtp()?.session();
            let run = session.run_joined(
                &[1],
                vec![0.0; 32],
                triad_kernels::Phase::Decode,
                &Cancel::new(),
            );
            run.is_ok().then_some(session)
        })
        .collect();
    assert!(heads.len() < 64, "the memory of heads has no limit");
    let found = answer(&mut engine.session(), &PROMPT, &options(fixed(2), greedy()));
    assert_eq!(found.tokens.len(), 41);
    assert_eq!(counts(&found).proposed, 0);
}

#[test]
fn keys_of_heads_are_a_part_of_the_memory_of_their_engine() {
    let model = model("perfect.gguf");
    let engine = |kv_memory| {
        let options = EngineOptions {
            session: session_options(CHUNK),
            kv_memory,
            ..EngineOptions::default()
        };
        Engine::new(&model, &options).unwrap()
    };
    let all = 1 << 24;
    let limited = engine(Some(all));
    let used = limited.usage();
    assert_eq!(used.kv.budget + used.kv_of_heads.budget, all);
    assert!(used.kv_of_heads.budget > 0, "{used:?}");
    answer(
        &mut limited.session(),
        &PROMPT,
        &options(fixed(2), greedy()),
    );
    let after = limited.usage();
    assert_eq!(after.kv.budget + after.kv_of_heads.budget, all);
    let bytes_of = |description| crate::kv::KvMemory::bytes_of(description, KvFormat::F16, 64);
    let head = model.mtp().unwrap();
    let default = engine(None).usage();
    assert_eq!(default.kv.budget, 4 * bytes_of(model.description()));
    assert_eq!(default.kv_of_heads.budget, 4 * bytes_of(head.description()));

    let needed = |description| crate::memory::of_session(description, 0, 64, 8, KvFormat::F16);
    let without = ModelDescription {
        mtp: None,
        ..model.description().clone()
    };
    let [with, without, of_head] = [model.description(), &without, head.description()].map(needed);
    assert_eq!(with.kv_cache, without.kv_cache + of_head.kv_cache);
    assert!(with.activations > without.activations + of_head.activations);
}

#[test]
fn a_head_reads_a_prompt_only_for_an_answer_that_may_have_proposals() {
    let model = model("perfect.gguf");
    let engine = engine(&model);
    let mut session = engine.session();
    let prompt: Vec<u32> = (40..70).collect();
    for (max_tokens, is_used) in [(1, false), (12, true)] {
        let options = GenerateOptions {
            max_tokens: Some(max_tokens),
            ..options(fixed(2), greedy())
        };
        let found = answer(&mut session, &prompt, &options);
        assert_eq!(found.tokens.len(), max_tokens);
        assert_eq!(counts(&found).mtp_proposed > 0, is_used);
        assert_eq!(engine.usage().kv_of_heads.bytes > 0, is_used);
    }
}

#[test]
fn a_head_proposes_nothing_while_the_prompt_of_another_session_waits() {
    let model = model("perfect.gguf");
    let session_options = SessionOptions {
        context: 512,
        ..session_options(CHUNK)
    };
    let engine = engine_of(&model, &session_options);
    let mut session = engine.session();
    let long: Vec<u32> = (0..400).map(|index| index * 7 % 128).collect();
    let mut proposed = Vec::new();
    // The rest of the prompt waits during each call.
    let mut other = engine.session();
    let run = other.prefill(&long, &Cancel::new(), |done| {
        if done < 100 {
            let found = answer(&mut session, &PROMPT, &options(fixed(2), greedy()));
            assert_eq!(found.tokens, (52..52 + 41).collect::<Vec<u32>>());
            proposed.push(counts(&found).proposed);
        }
    });
    assert!(run.is_ok() && !proposed.is_empty());
    assert!(proposed.iter().all(|it| *it == 0), "{proposed:?}");
    let found = answer(&mut session, &PROMPT, &options(fixed(2), greedy()));
    assert!(
        counts(&found).mtp_proposed > 0,
        "the head was not used again"
    );
}

#[test]
fn an_answer_does_not_fail_with_a_damaged_head() {
    let options_of_load = LoadOptions {
        threads: Threads::Count(2),
        ..LoadOptions::default()
    };
    let mut damaged = Model::load(&folder().join("perfect.gguf"), &options_of_load).unwrap();
    damaged.head_mut().weights_mut().output_norm.weight[0] = f32::NAN;
    let damaged = Arc::new(damaged);
    let long: Vec<u32> = (10..50).chain(PROMPT).collect();
    for prompt in [&PROMPT[..], &long] {
        for speculate in [
            fixed(2),
            Some(Speculate::mtp()),
            Some(Speculate::automatic()),
        ] {
            let mut session = float_session(&damaged, 16);
            let found = answer(&mut session, prompt, &options(speculate, greedy()));
            assert_eq!(found.tokens, (52..52 + 41).collect::<Vec<u32>>());
            assert_eq!(counts(&found).mtp_accepted, 0);
        }
    }
    let cancel = Cancel::new();
    let cancelled = generate(
        &mut float_session(&damaged, 16),
        &PROMPT,
        &options(fixed(2), greedy()),
        &cancel,
        &mut |event| {
            if matches!(event, crate::Event::Token { .. }) {
                cancel.cancel();
            }
        },
    );
    assert_eq!(cancelled.unwrap().finish, crate::Finish::Cancelled);
}

#[test]
fn a_head_has_no_session_of_its_own() {
    let model = model("perfect.gguf");
    let mut session = session(model.mtp().unwrap(), 5);
    let refused = session.prefill(&PROMPT, &Cancel::new(), |_| {});
    assert!(matches!(refused, Err(Error::IsHead)), "{refused:?}");
}

#[test]
fn a_model_without_a_head_refuses_to_propose_by_it() {
    let path = folder().join("../families/qwen3_5.gguf");
    let model = Arc::new(Model::load(&path, &LoadOptions::default()).unwrap());
    assert_eq!(session(&model, 5).no_head(), Some(NoHead::OfModel));
    let refused = generate(
        &mut session(&model, 5),
        &PROMPT,
        &options(fixed(2), greedy()),
        &Cancel::new(),
        &mut |_| {},
    );
    assert!(matches!(refused, Err(Error::NoHead(NoHead::OfModel))));
    let automatic = options(Some(Speculate::automatic()), greedy());
    let found = answer(&mut session(&model, 5), &PROMPT, &automatic);
    assert_eq!(counts(&found).mtp_proposed, 0);
}

#[test]
fn a_head_has_no_part_in_the_fingerprint_of_its_model() {
    let path = folder().join("../families/qwen3_5.gguf");
    let options = LoadOptions {
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    let without = Model::load(&path, &options).unwrap();
    assert_eq!(without.fingerprint(), model("qwen3_5.gguf").fingerprint());
    // The fingerprint is without this part, as it was before descriptions had it.
    assert!(format!("{:?}", without.description()).ends_with(", mtp: None }"));
}
