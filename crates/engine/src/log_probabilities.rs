//! Log probabilities of the tokens of an answer or a prompt, and the likeliest tokens at their positions.

use std::cmp::Ordering;
use std::sync::Arc;

use triad_kernels::chunks::map;
use triad_kernels::log_softmax::log_sum_exp;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::session::Session;

/// The maximum bytes of a prompt's logits that are held at once.
const SLAB_BYTES: usize = 64 << 20;

/// The log probabilities at a token's position, before any bias, penalty, temperature or filter.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability, given all tokens before it.
    pub log_probability: f32,
    /// The likeliest tokens of this position, with the logarithms of their probabilities; the likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

impl LogProbabilities {
    /// Computes those of `token` and of the `count` likeliest tokens from `logits[vocab]`.
    pub(crate) fn new(logits: &[f32], token: u32, count: usize) -> Self {
        let normalizer = log_sum_exp(logits);
        let log_probability = |token: u32| (f64::from(logits[token as usize]) - normalizer) as f32;
        // Of equal logits, the first is the likeliest, as in the sampler.
        let likelier_first = |a: &u32, b: &u32| -> Ordering {
            logits[*b as usize]
                .total_cmp(&logits[*a as usize])
                .then(a.cmp(b))
        };
        let mut tokens: Vec<u32> = if count == 0 {
            Vec::new()
        } else {
            (0..logits.len() as u32).collect()
        };
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, likelier_first);
            tokens.truncate(count);
        }
        tokens.sort_unstable_by(likelier_first);
        let likeliest = tokens
            .into_iter()
            .map(|token| (token, log_probability(token)))
            .collect();
        Self {
            token,
            log_probability: log_probability(token),
            likeliest,
        }
    }
}

impl Session {
    /// Drops the session's tokens, runs `prompt`, and returns the log probabilities of its tokens from the second on,
    /// each with the `count` likeliest tokens of its position. They are those of [`Session::score`]. `progress` is
    /// called with the number of finished tokens.
    ///
    /// # Errors
    /// As [`Session::prefill`]; if logits are not finite.
    pub fn score_prompt(
        &mut self,
        prompt: &[u32],
        count: usize,
        cancel: &Cancel,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<LogProbabilities>> {
        self.truncate(0);
        self.check(prompt)?;
        let model = Arc::clone(self.model());
        let vocab = model.description().vocab;
        let rows = (SLAB_BYTES / (vocab * size_of::<f32>())).clamp(1, self.chunk());
        let mut scores = Vec::with_capacity(prompt.len() - 1);
        for start in (0..prompt.len()).step_by(rows) {
            let end = prompt.len().min(start + rows);
            let logits = self.prefill_all_logits(&prompt[start..end], cancel)?;
            let targets = &prompt[start + 1..prompt.len().min(end + 1)];
            scores.extend(model.install(|| {
                map(targets.len(), |row| {
                    LogProbabilities::new(&logits[row * vocab..][..vocab], targets[row], count)
                })
            }));
            progress(end);
        }
        let is_finite = |score: &LogProbabilities| score.log_probability.is_finite();
        if scores.iter().all(is_finite) {
            Ok(scores)
        } else {
            Err(Error::NotFinite)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_of_equals_the_smaller_token() {
        let logits = [1.0, 3.0, 3.0, 2.0, -1.0];
        let tokens = |count| {
            let of = LogProbabilities::new(&logits, 4, count);
            of.likeliest
                .into_iter()
                .map(|(token, _)| token)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            [tokens(0), tokens(1), tokens(3), tokens(9)],
            [vec![], vec![1], vec![1, 2, 3], vec![1, 2, 3, 0, 4]]
        );
    }

    #[test]
    fn probabilities_of_all_tokens_add_up_to_one() {
        let logits = [0.5, -2.0, 3.25, 0.0];
        let of = LogProbabilities::new(&logits, 2, logits.len());
        let total: f32 = of
            .likeliest
            .iter()
            .map(|(_, log_probability)| log_probability.exp())
            .sum();
        assert!((total - 1.0).abs() < 1e-6, "{total}");
        assert_eq!(of.log_probability, of.likeliest[0].1);
    }
}
