//! The constraint of one answer, step by step, and the thread that computes its masks while the model runs.
//!
//! Before a step, the guide accepts the token that was chosen last and looks up which tokens are forced: that is fast.
//! Computing masks can be slow. So the constraint moves with the rows of the step to the answer's thread, which
//! computes a [`Choice`] for each row while the model runs, and then moves back.
//! while the model does, and comes back with a [`Choice`] for each of them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use super::{Constraint, ConstraintError, ConstraintFactory, ConstraintUse, TokenMask};
use crate::error::{Error, Result};
use crate::sampler::Sampler;

/// The maximum number of forced rows of a step: more rows would take as long as several steps.
const MAX_FORCED: usize = 32;

/// The tokens that may follow a row.
enum Choice {
    /// Only this token, regardless of the logits.
    Forced(u32),
    /// One of these tokens.
    Of(TokenMask),
    /// No token: the answer is complete.
    End,
}

/// The tokens that may follow a row, as the step needs them.
pub(crate) enum Allowed {
    /// More than one; the sampler has the mask.
    Several,
    /// Only this token.
    One(u32),
    /// No token: the answer is complete.
    None,
}

/// The rows of a step, and the results for them.
struct Task {
    constraint: Box<dyn Constraint>,
    /// Tokens that must come next.
    forced: Vec<u32>,
    /// Tokens after the first row. The leading ones that are allowed are accepted.
    rows: Vec<u32>,
    accepted: usize,
    /// The choices after the first row and after each accepted row.
    choices: Vec<Choice>,
    outcome: Result<(), ConstraintError>,
    masks: usize,
    seconds: f64,
}

impl Task {
    /// Computes the choices of the rows, and measures the time.
    fn run(&mut self) {
        let start = Instant::now();
        self.outcome = self.walk();
        self.seconds = start.elapsed().as_secs_f64();
    }

    fn walk(&mut self) -> Result<(), ConstraintError> {
        loop {
            let choice = self.choice()?;
            let next = self
                .rows
                .get(self.accepted)
                .copied()
                .filter(|token| match &choice {
                    Choice::Forced(forced) => forced == token,
                    Choice::Of(mask) => mask.allows(*token),
                    Choice::End => false,
                });
            self.choices.push(choice);
            let Some(token) = next else { return Ok(()) };
            self.constraint.accept(token)?;
            self.accepted += 1;
            if !self.forced.is_empty() {
                self.forced.remove(0);
            }
        }
    }

    fn choice(&mut self) -> Result<Choice, ConstraintError> {
        if self.forced.is_empty() {
            if self.constraint.is_complete() {
                return Ok(Choice::End);
            }
            self.forced = self.constraint.forced()?;
        }
        if let Some(token) = self.forced.first() {
            return Ok(Choice::Forced(*token));
        }
        self.masks += 1;
        Ok(Choice::Of(self.constraint.mask()?))
    }
}

/// Applies a constraint to one answer.
pub(crate) struct Guide {
    /// `None` while the thread has it.
    constraint: Option<Box<dyn Constraint>>,
    /// Tokens that must come next.
    forced: Vec<u32>,
    vocab: usize,
    tasks: SyncSender<Task>,
    results: Receiver<Task>,
    /// The choices of the latest step.
    choices: Vec<Choice>,
    /// The rows of the latest step that the thread accepted, including forced ones.
    accepted: Vec<u32>,
    statistics: ConstraintUse,
}

impl Guide {
    /// Creates the guide of an answer for a model of `vocab` tokens. Starts to compute what may come first, while the
    /// prompt runs.
    ///
    /// # Errors
    /// If the factory cannot create a constraint, or the thread cannot be started.
    pub(crate) fn new(factory: &dyn ConstraintFactory, vocab: usize) -> Result<Self> {
        let constraint = factory.constraint().map_err(Error::Constraint)?;
        let (tasks, of_guide) = sync_channel::<Task>(1);
        let (of_thread, results) = sync_channel(1);
        let run = move || {
            for mut task in of_guide {
                task.run();
                if of_thread.send(task).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("token masks".into()).spawn(run);
        // The thread ends when the guide is dropped.
        thread.map_err(|source| Error::Threads { threads: 1, source })?;
        let mut guide = Self {
            constraint: Some(constraint),
            forced: Vec::new(),
            vocab,
            tasks,
            results,
            choices: Vec::new(),
            accepted: Vec::new(),
            statistics: ConstraintUse::default(),
        };
        guide.begin(&[])?;
        Ok(guide)
    }

    /// Returns whether nothing may follow the tokens that were [settled](Guide::settle).
    pub(crate) fn is_complete(&mut self) -> bool {
        self.constraint
            .as_mut()
            .is_some_and(|constraint| constraint.is_complete())
    }

    /// Returns the tokens that must come next, at most `most` of them.
    pub(crate) fn forced(&mut self, most: usize) -> Result<&[u32]> {
        if self.forced.is_empty() && !self.is_complete() {
            self.forced = self.constraint().forced().map_err(Error::Constraint)?;
        }
        Ok(&self.forced[..self.forced.len().min(most).min(MAX_FORCED)])
    }

    /// Returns how many of the proposed `tokens` may come next.
    pub(crate) fn allowed(&mut self, tokens: &[u32]) -> Result<usize> {
        self.constraint().allowed(tokens).map_err(Error::Constraint)
    }

    /// Starts to compute, in the thread, what may follow each row of a step: the latest token, which is settled, and
    /// the `rows` after it.
    pub(crate) fn begin(&mut self, rows: &[u32]) -> Result<()> {
        let task = Task {
            constraint: self.constraint.take().ok_or_else(lost)?,
            forced: std::mem::take(&mut self.forced),
            rows: rows.to_vec(),
            accepted: 0,
            choices: std::mem::take(&mut self.choices),
            outcome: Ok(()),
            masks: 0,
            seconds: 0.0,
        };
        self.tasks.send(task).map_err(|_| lost())
    }

    /// Waits for the results of [`Guide::begin`].
    ///
    /// # Errors
    /// If the constraint fails.
    pub(crate) fn end(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut task = self.results.recv().map_err(|_| lost())?;
        self.statistics.wait_seconds += start.elapsed().as_secs_f64();
        self.statistics.masks += task.masks;
        self.statistics.mask_seconds += task.seconds;
        task.outcome.map_err(Error::Constraint)?;
        task.rows.truncate(task.accepted);
        (self.forced, self.choices, self.accepted) = (task.forced, task.choices, task.rows);
        self.constraint = Some(task.constraint);
        Ok(())
    }

    /// Returns what may follow `row` of the latest step. If several tokens may, passes the mask to `sampler`.
    ///
    /// # Errors
    /// If the answer is not complete there, but none of the model's tokens may follow.
    pub(crate) fn restrict(&mut self, row: usize, sampler: &mut Sampler) -> Result<Allowed> {
        match self.choices.get_mut(row) {
            Some(Choice::Forced(token)) => {
                self.statistics.forced_tokens += 1;
                Ok(Allowed::One(*token))
            }
            Some(Choice::Of(mask)) if !mask.is_empty(self.vocab) => {
                sampler.allow(Some(std::mem::take(mask)));
                Ok(Allowed::Several)
            }
            Some(Choice::End) => Ok(Allowed::None),
            _ => Err(Error::Constraint(
                "no token of the model may come next".into(),
            )),
        }
    }

    /// Accepts the tokens that follow the rows of the latest step; the first ones are its rows.
    ///
    /// # Errors
    /// If the constraint fails.
    pub(crate) fn settle(&mut self, chosen: &[u32]) -> Result<()> {
        self.choices.clear();
        let kept = self
            .accepted
            .iter()
            .zip(chosen)
            .take_while(|(accepted, chosen)| accepted == chosen)
            .count();
        let (back, rest) = (self.accepted.len() - kept, &chosen[kept..]);
        let constraint = self.constraint.as_mut().ok_or_else(lost)?;
        if back > 0 {
            // Tokens that were forced after the removed rows are no longer forced.
            self.forced.clear();
            constraint.take_back(back).map_err(Error::Constraint)?;
        }
        for token in rest {
            constraint.accept(*token).map_err(Error::Constraint)?;
            if self.forced.first() == Some(token) {
                self.forced.remove(0);
            } else {
                self.forced.clear();
            }
        }
        self.accepted.clear();
        Ok(())
    }

    /// Returns counts and times so far.
    pub(crate) fn statistics(&self) -> ConstraintUse {
        self.statistics
    }

    fn constraint(&mut self) -> &mut dyn Constraint {
        &mut **self.constraint.as_mut().expect("between steps it is here")
    }
}

/// Returns the error of a thread that ended by a panic of the constraint.
fn lost() -> Error {
    Error::Constraint("the constraint has panicked".into())
}
