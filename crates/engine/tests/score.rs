//! Scores of several continuations at once are those of each alone, for every model.

mod common;

use std::sync::Arc;

use common::{CONTEXT, VOCAB, models};
use proptest::prelude::*;
use triad_engine::{
    Branch, Cancel, Error, KvFormat, Model, Score, Session, SessionOptions, tokens_to_run,
};

fn session(model: &Arc<Model>, chunk: usize, kv_format: KvFormat) -> Session {
    Session::new(
        model,
        &SessionOptions {
            context: CONTEXT,
            chunk,
            kv_format,
        },
    )
    .unwrap()
}

/// Computes the scores by their definition: the log-softmax of all logits of the prefix and one branch.
fn expected(model: &Arc<Model>, prefix: &[u32], branch: Branch, kv_format: KvFormat) -> Vec<f64> {
    let all = [prefix, branch.tokens].concat();
    let logits = session(model, CONTEXT, kv_format)
        .prefill_all_logits(&all, &Cancel::new())
        .unwrap();
    let scored = prefix.len() + branch.scored_from..all.len();
    scored
        .map(|index| {
            let logits = &logits[(index - 1) * VOCAB..index * VOCAB];
            let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            f64::from(logits[all[index] as usize]) - total.ln()
        })
        .collect()
}

prop_compose! {
    /// Generates the tokens of a branch and the position where its scores begin.
    fn branches(most: usize)(tokens in prop::collection::vec(0..VOCAB as u32, 2..most), place in 0f64..1.0)
        -> (Vec<u32>, usize) {
        let scored_from = 1 + (place * (tokens.len() - 1) as f64) as usize;
        (tokens, scored_from)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn branches_are_scored_as_if_each_were_alone(
        model in models(), prefix in prop::collection::vec(0..VOCAB as u32, 0..30),
        mut branches in prop::collection::vec(branches(CONTEXT - 30), 0..6), chunk in 1usize..100, half_cache: bool,
        shared in prop::collection::vec(0usize..30, 6),
    ) {
        for (index, shared) in (1..branches.len()).zip(shared) {
            let (before, branch) = branches.split_at_mut(index);
            let (before, branch) = (&before[index - 1].0, &mut branch[0].0);
            let shared = shared.min(before.len()).min(branch.len());
            branch[..shared].copy_from_slice(&before[..shared]);
        }
        let model = Arc::new(model);
        // Neighbouring f16 numbers are 2⁻¹¹ apart, and in a model this narrow one of them has a large effect.
        let (kv_format, bound) = if half_cache { (KvFormat::F16, 0.03) } else { (KvFormat::F32, 1e-4) };
        let mut session = session(&model, chunk, kv_format);
        if !prefix.is_empty() {
            session.prefill(&prefix, &Cancel::new(), |_| {}).unwrap();
        }
        let branches: Vec<_> =
            branches.iter().map(|(tokens, scored_from)| Branch { tokens, scored_from: *scored_from }).collect();
        let mut done = 0;
        let scores = session.score(&branches, &Cancel::new(), |tokens| done = tokens).unwrap();
        prop_assert_eq!(done, tokens_to_run(model.description(), &branches));
        prop_assert_eq!(session.tokens(), &prefix);
        prop_assert_eq!(scores.len(), branches.len());
        for (branch, score) in branches.iter().zip(&scores) {
            let expected = expected(&model, &prefix, *branch, kv_format);
            prop_assert_eq!(score.log_probabilities.len(), expected.len());
            for (score, expected) in score.log_probabilities.iter().zip(expected) {
                prop_assert!((f64::from(*score) - expected).abs() < bound, "{score} is not {expected}");
            }
        }
        // The session continues with the tokens that it had before, not with a branch.
        let after = session.prefill(&[1], &Cancel::new(), |_| {}).unwrap().to_vec();
        let mut fresh = self::session(&model, chunk, kv_format);
        if !prefix.is_empty() {
            fresh.prefill(&prefix, &Cancel::new(), |_| {}).unwrap();
        }
        prop_assert_eq!(after, fresh.prefill(&[1], &Cancel::new(), |_| {}).unwrap());
    }

    #[test]
    fn a_prompt_is_scored_as_a_branch_of_nothing_is(
        model in models(), prompt in prop::collection::vec(0..VOCAB as u32, 2..CONTEXT), chunk in 1usize..100,
        before in prop::collection::vec(0..VOCAB as u32, 1..9), count in 0usize..4,
    ) {
        let model = Arc::new(model);
        let mut session = session(&model, chunk, KvFormat::F32);
        let branch = Branch { tokens: &prompt, scored_from: 1 };
        let expected = session.score(&[branch], &Cancel::new(), |_| {}).unwrap().remove(0);
        session.prefill(&before, &Cancel::new(), |_| {}).unwrap();
        let mut done = 0;
        let scores = session.score_prompt(&prompt, count, &Cancel::new(), |tokens| done = tokens).unwrap();
        prop_assert_eq!((done, session.tokens()), (prompt.len(), &prompt[..]));
        let found: Vec<_> = scores.iter().map(|score| score.log_probability).collect();
        prop_assert_eq!(found, expected.log_probabilities);
        prop_assert_eq!(scores.iter().map(|score| score.token).collect::<Vec<_>>(), &prompt[1..]);
        prop_assert!(scores.iter().all(|score| score.likeliest.len() == count));
        if count > 0 {
            let is_greedy = scores.iter().all(|score| score.likeliest[0].0 == score.token);
            prop_assert_eq!(is_greedy, expected.greedy);
        }
    }

    #[test]
    fn what_the_model_would_generate_is_scored_as_greedy(model in models(), prompt in prop::collection::vec(0..VOCAB as u32, 1..30)) {
        let model = Arc::new(model);
        let mut session = session(&model, 16, KvFormat::F32);
        let mut continued = prompt.clone();
        for _ in 0..4 {
            session.truncate(0);
            let logits = session.prefill(&continued, &Cancel::new(), |_| {}).unwrap();
            let likeliest = (0..VOCAB).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            continued.push(likeliest as u32);
        }
        let mut other = continued.clone();
        *other.last_mut().unwrap() = (other.last().unwrap() + 1) % VOCAB as u32;
        session.truncate(0);
        let branches = [&continued, &other].map(|tokens| Branch { tokens, scored_from: prompt.len() });
        let greedy: Vec<_> = session.score(&branches, &Cancel::new(), |_| {}).unwrap().iter().map(|score| score.greedy).collect();
        prop_assert_eq!(greedy, [true, false]);
    }
}

#[test]
fn what_cannot_be_scored_is_refused_by_name() {
    let mut description = triad_model::family::shape("smollm2-135m").unwrap();
    description.blocks.truncate(1);
    (description.vocab, description.context) = (VOCAB, CONTEXT);
    let model = Arc::new(
        Model::random(
            description,
            &triad_engine::LoadOptions {
                threads: triad_engine::Threads::Count(1),
                ..Default::default()
            },
            1,
        )
        .unwrap(),
    );
    let mut session = session(&model, 16, KvFormat::F16);
    let mut message = |tokens: &[u32], scored_from| {
        session
            .score(
                &[Branch {
                    tokens,
                    scored_from,
                }],
                &Cancel::new(),
                |_| {},
            )
            .unwrap_err()
            .to_string()
    };
    for scored_from in [0, 3] {
        let expected = format!(
            "a continuation of 3 tokens cannot be scored from its token {scored_from} on: expected 1 to its last"
        );
        assert_eq!(message(&[1, 2, 3], scored_from), expected);
    }
    assert_eq!(
        message(&[1, 2, 97], 1),
        "token 97 is outside the vocabulary of 97"
    );
    let longest = [1; CONTEXT + 2];
    assert_eq!(
        message(&longest, 1),
        "the prompt has 81 tokens, but only 80 of the context of 80 are free"
    );
    // The last token is only a target, and needs no room.
    let scores = session
        .score(
            &[Branch {
                tokens: &longest[1..],
                scored_from: CONTEXT,
            }],
            &Cancel::new(),
            |_| {},
        )
        .unwrap();
    assert!(
        matches!(&scores[..], [Score { log_probabilities, .. }] if log_probabilities.len() == 1)
    );
    let cancel = Cancel::new();
    cancel.cancel();
    let stopped = session.score(
        &[Branch {
            tokens: &[1, 2],
            scored_from: 1,
        }],
        &cancel,
        |_| {},
    );
    assert!(matches!(stopped, Err(Error::Cancelled)));
}
