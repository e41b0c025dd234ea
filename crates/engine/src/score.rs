//! How likely a model finds given continuations: the measure beneath every evaluation.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use triad_kernels::log_softmax::log_sum_exp;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::Segment;
use crate::session::Session;

/// Most bytes of logits that are held at once: enough rows for an efficient product with the output matrix.
const SLAB_BYTES: usize = 64 << 20;

/// A continuation of what a session has seen.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'a> {
    /// Its tokens; the first stands right behind those of the session.
    pub tokens: &'a [u32],
    /// `tokens[scored_from..]` are scored. At least 1, since the first token of a branch has nothing in the branch that
    /// predicts it, and less than the number of tokens.
    pub scored_from: usize,
}

/// What the model says about the scored tokens of a [`Branch`].
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Natural logarithm of the probability of each scored token, given all before it.
    pub log_probabilities: Vec<f32>,
    /// Every scored token is the likeliest at its place.
    pub greedy: bool,
}

impl Score {
    /// Natural logarithm of the probability of all scored tokens together.
    pub fn log_likelihood(&self) -> f64 {
        self.log_probabilities.iter().map(|value| f64::from(*value)).sum()
    }
}

/// Rows of one pass whose logits are scored: the row, its branch, the token that follows.
struct Target {
    row: usize,
    branch: usize,
    token: u32,
}

impl Session {
    /// Scores each branch as a continuation of the session's tokens, which stay as they are.
    ///
    /// Branches know nothing of each other. They go through the model one behind the other in passes of a whole chunk,
    /// so many short ones cost as much as one long one. The last token of a branch is a target only and is not run.
    ///
    /// # Errors
    /// If a branch cannot be scored from where it says, does not fit, or holds a token outside the vocabulary; if
    /// `cancel` is set.
    pub fn score(&mut self, branches: &[Branch], cancel: &Cancel) -> Result<Vec<Score>> {
        for Branch { tokens, scored_from } in branches {
            if *scored_from == 0 || *scored_from >= tokens.len() {
                return Err(Error::Unscorable { tokens: tokens.len(), scored_from: *scored_from });
            }
            self.check(&tokens[..tokens.len() - 1])?;
            self.check_vocabulary(tokens)?;
        }
        let no_score = |branch: &Branch| Score {
            log_probabilities: Vec::with_capacity(branch.tokens.len() - branch.scored_from),
            greedy: true,
        };
        let mut scores: Vec<_> = branches.iter().map(no_score).collect();
        let model = Arc::clone(self.model());
        for pass in passes(branches, self.chunk()) {
            model.pool().install(|| self.score_pass(branches, &pass, &mut scores, cancel))?;
        }
        Ok(scores)
    }

    /// Runs the parts of branches that make up one pass and adds what it says to `scores`.
    fn score_pass(
        &mut self,
        branches: &[Branch],
        pass: &[(usize, Range<usize>)],
        scores: &mut [Score],
        cancel: &Cancel,
    ) -> Result<()> {
        let vocab = self.model().description().vocab;
        let (mut tokens, mut segments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (branch, part) in pass {
            let Branch { tokens: all, scored_from } = branches[*branch];
            let row = tokens.len();
            segments.push(Segment { rows: row..row + part.len(), position: self.tokens().len() + part.start });
            tokens.extend_from_slice(&all[part.clone()]);
            let scored = part.clone().filter(|index| index + 1 >= scored_from);
            targets.extend(scored.map(|index| Target {
                row: row + index - part.start,
                branch: *branch,
                token: all[index + 1],
            }));
        }
        let mut forward = self.forward();
        forward.run(&tokens, &segments, cancel)?;
        let slab = (SLAB_BYTES / (vocab * size_of::<f32>())).max(1);
        let mut logits = vec![0.0; slab.min(targets.len()) * vocab];
        for targets in targets.chunks(slab) {
            cancel.check()?;
            let logits = &mut logits[..targets.len() * vocab];
            forward.logits(targets.iter().map(|target| target.row), logits);
            let scored: Vec<_> = logits
                .par_chunks_exact(vocab)
                .zip(targets)
                .map(|(logits, target)| (log_probability(logits, target.token), is_likeliest(logits, target.token)))
                .collect();
            for ((log_probability, likeliest), target) in scored.into_iter().zip(targets) {
                if !log_probability.is_finite() {
                    return Err(Error::NotFinite);
                }
                scores[target.branch].log_probabilities.push(log_probability);
                scores[target.branch].greedy &= likeliest;
            }
        }
        Ok(())
    }
}

/// The branches one behind the other without the last token of each, cut every `chunk` rows: which branch, and which
/// of its tokens. A branch that is cut goes on as the first of the next pass, when its keys and values are still in
/// the cache: only those of a later branch take their place.
fn passes(branches: &[Branch], chunk: usize) -> Vec<Vec<(usize, Range<usize>)>> {
    let mut passes = vec![Vec::new()];
    let mut free = chunk;
    for (index, branch) in branches.iter().enumerate() {
        let run = branch.tokens.len() - 1;
        let mut start = 0;
        while start < run {
            if free == 0 {
                passes.push(Vec::new());
                free = chunk;
            }
            let end = run.min(start + free);
            passes.last_mut().expect("there is one from the start").push((index, start..end));
            free -= end - start;
            start = end;
        }
    }
    passes.retain(|pass| !pass.is_empty());
    passes
}

fn log_probability(logits: &[f32], token: u32) -> f32 {
    (f64::from(logits[token as usize]) - log_sum_exp(logits)) as f32
}

/// Of equal logits the first is the likeliest, as with the sampler.
fn is_likeliest(logits: &[f32], token: u32) -> bool {
    let (before, from) = logits.split_at(token as usize);
    before.iter().all(|logit| *logit < from[0]) && from.iter().all(|logit| *logit <= from[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_full_and_keep_the_order() {
        let tokens = [0; 12];
        let branch = |length| Branch { tokens: &tokens[..length], scored_from: 1 };
        let cut = passes(&[branch(4), branch(12), branch(2)], 5);
        assert_eq!(cut, [vec![(0, 0..3), (1, 0..2)], vec![(1, 2..7)], vec![(1, 7..11), (2, 0..1)]]);
        assert!(passes(&[], 5).is_empty());
    }

    #[test]
    fn of_equal_logits_the_first_is_the_likeliest() {
        let likeliest: Vec<_> = (0..4).map(|token| is_likeliest(&[1.0, 3.0, 3.0, 2.0], token)).collect();
        assert_eq!(likeliest, [false, true, false, false]);
    }
}
