//! Random operations of a session.

use super::models::{CONTEXT, VOCAB};
use crate::cancel::Cancel;
use crate::session::Session;

/// An operation of a session of [`MODELS`](super::models::MODELS).
#[derive(Clone, Debug)]
pub enum Step {
    /// Runs a prompt of this many tokens.
    Prefill(usize),
    /// The same with the logits of all tokens.
    PrefillAll(usize),
    /// Decodes this many tokens, one by one.
    Decode(usize),
    /// Decodes this many tokens at once.
    DecodeEach(usize),
    /// Truncates the session to this share of its tokens.
    Truncate(f64),
    /// Session and fork continue differently, the fork by this many tokens.
    Fork(usize),
}

/// Returns all logits of the steps.
///
/// # Panics
/// If the session fails.
pub fn run(session: &mut Session, steps: &[Step], seed: usize) -> Vec<Vec<f32>> {
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
                let logits = session.prefill(&tokens(count), &cancel, |_| {});
                all.push(logits.expect("logits").to_vec());
            }
            Step::PrefillAll(count) if fits(count) => {
                let logits = session.prefill_all_logits(&tokens(count), &cancel);
                all.push(logits.expect("logits"));
            }
            Step::Decode(count) if fits(count) => {
                for token in tokens(count) {
                    all.push(session.decode(token, &cancel).expect("logits").to_vec());
                }
            }
            Step::DecodeEach(count) if fits(count) => {
                let each = session
                    .decode_each(&tokens(count), &cancel)
                    .expect("logits");
                all.extend(each.chunks(VOCAB).map(<[f32]>::to_vec));
            }
            Step::Truncate(share) => {
                session.truncate((share * session.tokens().len() as f64) as usize);
            }
            Step::Fork(count) if fits(count) => {
                let mut fork = session.fork();
                let logits = fork.prefill(&tokens(count), &cancel, |_| {});
                all.push(logits.expect("logits").to_vec());
                all.push(fork.decode(1, &cancel).map_or(Vec::new(), <[f32]>::to_vec));
                forks.push(fork);
            }
            _ => {}
        }
    }
    all
}

/// Replaces batches of decoded tokens by single tokens, which must have the same bits.
pub fn one_by_one(steps: &[Step]) -> Vec<Step> {
    let single = |step: &Step| match step {
        Step::DecodeEach(count) => Step::Decode(*count),
        step => step.clone(),
    };
    steps.iter().map(single).collect()
}
