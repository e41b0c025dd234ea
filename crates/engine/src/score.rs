//! Scores given continuations by their probabilities, the basis of all evaluations.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use triad_kernels::Phase;
use triad_kernels::chunks::map;
use triad_kernels::log_softmax::log_sum_exp;
use triad_model::description::ModelDescription;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::{RowLayout, Segment};
use crate::session::Session;

/// The maximum bytes of logits that are held at once: enough rows for an efficient gemm with the output matrix.
const SLAB_BYTES: usize = 64 << 20;

/// A continuation of a session's tokens.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'a> {
    /// The tokens; the first follows those of the session.
    pub tokens: &'a [u32],
    /// `tokens[scored_from..]` are scored. At least 1, since no token of the branch predicts its first one; less than
    /// the number of tokens.
    pub scored_from: usize,
}

impl Branch<'_> {
    /// Checks that there are tokens to score, each after another one.
    ///
    /// # Errors
    /// If there are none, or one has no token before it.
    pub fn check(&self) -> Result<()> {
        if self.scored_from == 0 || self.scored_from >= self.tokens.len() {
            return Err(Error::Unscorable {
                tokens: self.tokens.len(),
                scored_from: self.scored_from,
            });
        }
        Ok(())
    }
}

/// The model's probabilities of the scored tokens of a [`Branch`].
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The natural logarithm of the probability of each scored token, given all tokens before it.
    pub log_probabilities: Vec<f32>,
    /// Whether every scored token is the likeliest at its position.
    pub greedy: bool,
}

impl Score {
    /// Returns the score of no tokens yet.
    pub fn new() -> Self {
        Self {
            log_probabilities: Vec::new(),
            greedy: true,
        }
    }

    /// Adds `token`, which follows `logits` `[vocab]`.
    ///
    /// # Errors
    /// If its probability is not finite.
    ///
    /// # Panics
    /// If `token` is outside the vocabulary.
    pub fn add(&mut self, logits: &[f32], token: u32) -> Result<()> {
        self.push(log_probability(logits, token), is_likeliest(logits, token))
    }

    fn push(&mut self, log_probability: f32, is_likeliest: bool) -> Result<()> {
        if !log_probability.is_finite() {
            return Err(Error::NotFinite);
        }
        self.log_probabilities.push(log_probability);
        self.greedy &= is_likeliest;
        Ok(())
    }

    /// Returns the natural logarithm of the probability of all scored tokens together.
    pub fn log_likelihood(&self) -> f64 {
        self.log_probabilities
            .iter()
            .map(|value| f64::from(*value))
            .sum()
    }
}

impl Default for Score {
    fn default() -> Self {
        Self::new()
    }
}

/// A row of a pass with logits to score: the row, its branch, the token that follows.
struct Target {
    row: usize,
    branch: usize,
    token: u32,
}

impl Session {
    /// Scores each branch as a continuation of the session's tokens, which do not change.
    ///
    /// Branches run one after the other in passes of a whole chunk, so many short ones cost as much as one long one.
    /// The prefix that a branch shares with the branch before it, up to where its scores begin, is not run again: pass
    /// the choices of one question, or the questions of one prompt, next to each other. The last token of a branch is
    /// only a target and is not run. `progress` is called after each pass with the number of finished tokens, of
    /// [`tokens_to_run`].
    ///
    /// # Errors
    /// If a branch cannot be scored from its first scored token, does not fit, or contains a token outside the
    /// vocabulary; if `cancel` is set.
    pub fn score(
        &mut self,
        branches: &[Branch],
        cancel: &Cancel,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Score>> {
        for branch in branches {
            branch.check()?;
            let tokens = branch.tokens;
            self.check(&tokens[..tokens.len() - 1])?;
            self.check_vocabulary(tokens)?;
        }
        let mut scores = vec![Score::new(); branches.len()];
        let model = Arc::clone(self.model());
        self.resume(cancel)?;
        let longest = branches.iter().map(|branch| branch.tokens.len() - 1).max();
        self.reserve(longest.unwrap_or(0))?;
        self.mark(true);
        let mut done = 0;
        let parts = parts_to_run(branches, has_states(model.description()));
        let is_alone = model.description().shares_keys();
        let outcome = passes(parts, self.chunk(), is_alone)
            .into_iter()
            .try_for_each(|pass| {
                model
                    .pool()
                    .install(|| self.score_pass(branches, &pass, &mut scores, cancel))?;
                done += pass.iter().map(|(_, part)| part.len()).sum::<usize>();
                progress(done);
                Ok(())
            });
        self.mark(false);
        outcome.map(|()| scores)
    }

    /// Runs the parts of branches of one pass and adds the results to `scores`.
    fn score_pass(
        &mut self,
        branches: &[Branch],
        pass: &[(usize, Range<usize>)],
        scores: &mut [Score],
        cancel: &Cancel,
    ) -> Result<()> {
        let vocab = self.model().description().vocab;
        let cache = self.reserved();
        let (mut tokens, mut segments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (branch, part) in pass {
            let Branch {
                tokens: all,
                scored_from,
            } = branches[*branch];
            let row = tokens.len();
            let position = self.tokens().len() + part.start;
            segments.push(Segment {
                cache: &cache,
                rows: row..row + part.len(),
                position,
                is_branch: part.start == 0,
                states: &[],
                second: None,
                layout: RowLayout::default(),
            });
            tokens.extend_from_slice(&all[part.clone()]);
            let scored = part.clone().filter(|index| index + 1 >= scored_from);
            targets.extend(scored.map(|index| Target {
                row: row + index - part.start,
                branch: *branch,
                token: all[index + 1],
            }));
        }
        let mut run = self.prompt_run();
        run.run(&tokens, &segments, cancel)?;
        let slab = (SLAB_BYTES / (vocab * size_of::<f32>())).max(1);
        let mut logits = vec![0.0; slab.min(targets.len()) * vocab];
        for targets in targets.chunks(slab) {
            cancel.check()?;
            let logits = &mut logits[..targets.len() * vocab];
            run.context.logits(
                run.buffers,
                targets.iter().map(|target| target.row),
                Phase::Prefill,
                logits,
            );
            let scored = map(targets.len(), |index| {
                let (logits, token) = (&logits[index * vocab..][..vocab], targets[index].token);
                (log_probability(logits, token), is_likeliest(logits, token))
            });
            for ((log_probability, likeliest), target) in scored.into_iter().zip(targets) {
                scores[target.branch].push(log_probability, likeliest)?;
            }
        }
        drop(run);
        self.model().check_unchanged()
    }
}

/// Returns the number of tokens that [`Session::score`] runs for these branches with a model of this description.
pub fn tokens_to_run(description: &ModelDescription, branches: &[Branch]) -> usize {
    let ranges = ranges_to_run(description, branches);
    ranges.iter().map(Range::len).sum()
}

/// Returns the range of the tokens of each branch that has to run after the branch before it: those from its end of the
/// prefix that both share, without the last token, which is only a target.
pub fn ranges_to_run(description: &ModelDescription, branches: &[Branch]) -> Vec<Range<usize>> {
    parts_to_run(branches, has_states(description)).collect()
}

fn has_states(description: &ModelDescription) -> bool {
    description.states().next().is_some()
}

/// Returns the range of tokens that each branch runs: those after the prefix that it shares with the branch before it,
/// whose keys and values are still in the cache at that time. The token before the first scored one always runs, for
/// its logits. Mixers with states know these only where the branches begin: all tokens then run.
fn parts_to_run<'a>(
    branches: &'a [Branch],
    has_states: bool,
) -> impl Iterator<Item = Range<usize>> + 'a {
    let before = iter::once(&[][..]).chain(
        branches
            .iter()
            .map(|branch| &branch.tokens[..branch.tokens.len() - 1]),
    );
    branches.iter().zip(before).map(move |(branch, before)| {
        let before = if has_states { &[] } else { before };
        let shared = branch
            .tokens
            .iter()
            .zip(before)
            .take_while(|(token, before)| token == before)
            .count();
        shared.min(branch.scored_from - 1)..branch.tokens.len() - 1
    })
}

/// Returns the parts that branches run, one after the other, in passes of `chunk` rows: the branch, and the range of
/// its tokens. A branch that is cut continues as the first of the next pass. Its keys and values are then still in the
/// cache, since only those of a later branch overwrite them. If `is_alone`, a pass has one branch: later blocks read keys
/// and values that another branch in the pass would have overwritten.
fn passes(
    parts: impl Iterator<Item = Range<usize>>,
    chunk: usize,
    is_alone: bool,
) -> Vec<Vec<(usize, Range<usize>)>> {
    let mut passes = Vec::new();
    let mut pass = Vec::new();
    let mut free = chunk;
    for (branch, mut part) in parts.enumerate() {
        while !part.is_empty() {
            let end = part.end.min(part.start + free);
            pass.push((branch, part.start..end));
            free -= end - part.start;
            part.start = end;
            if free == 0 || is_alone {
                passes.push(std::mem::take(&mut pass));
                free = chunk;
            }
        }
    }
    passes.extend((!pass.is_empty()).then_some(pass));
    passes
}

fn log_probability(logits: &[f32], token: u32) -> f32 {
    (f64::from(logits[token as usize]) - log_sum_exp(logits)) as f32
}

/// Returns whether `token` is the likeliest. Of equal logits, the first is, as in the sampler.
fn is_likeliest(logits: &[f32], token: u32) -> bool {
    let (before, from) = logits.split_at(token as usize);
    before.iter().all(|logit| *logit < from[0]) && from.iter().all(|logit| *logit <= from[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_full_and_keep_the_order() {
        let tokens = [[1; 12], [2; 12], [3; 12]];
        let branch = |index: usize, length: usize| Branch {
            tokens: &tokens[index][..length],
            scored_from: 1,
        };
        let branches = [branch(0, 4), branch(1, 12), branch(2, 2)];
        let cut = passes(parts_to_run(&branches, false), 5, false);
        assert_eq!(
            cut,
            [
                vec![(0, 0..3), (1, 0..2)],
                vec![(1, 2..7)],
                vec![(1, 7..11), (2, 0..1)]
            ]
        );
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        assert_eq!(tokens_to_run(&description, &branches), 15);
        let alone = passes(parts_to_run(&branches, false), 5, true);
        assert_eq!(
            alone,
            [
                vec![(0, 0..3)],
                vec![(1, 0..5)],
                vec![(1, 5..10)],
                vec![(1, 10..11)],
                vec![(2, 0..1)]
            ]
        );
        assert!(passes(iter::empty(), 5, false).is_empty());
    }

    #[test]
    fn what_two_branches_share_is_run_once() {
        let branch = |tokens, scored_from| Branch {
            tokens,
            scored_from,
        };
        let branches = [
            branch(&[1, 2, 3, 4, 5][..], 3),
            branch(&[1, 2, 3, 9], 3),
            branch(&[1, 2, 8], 1),
            branch(&[7, 2], 1),
        ];
        assert_eq!(
            parts_to_run(&branches, false).collect::<Vec<_>>(),
            [0..4, 2..3, 0..2, 0..1]
        );
        assert_eq!(
            parts_to_run(&branches, true).collect::<Vec<_>>(),
            [0..4, 0..3, 0..2, 0..1]
        );
    }

    #[test]
    fn of_equal_logits_the_first_is_the_likeliest() {
        let likeliest: Vec<_> = (0..4)
            .map(|token| is_likeliest(&[1.0, 3.0, 3.0, 2.0], token))
            .collect();
        assert_eq!(likeliest, [false, true, false, false]);
    }
}
