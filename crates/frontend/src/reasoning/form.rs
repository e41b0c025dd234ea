//! Constraints of answers with reasoning before them.

use std::fmt;
use std::sync::Arc;

use triad_engine::Model;
use triad_engine::constraint::{Constraint, ConstraintError, ConstraintFactory, TokenMask};
use triad_model::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use super::Reasoning;

/// The maximum number of line breaks between the reasoning and an answer with a form.
const MAX_GAP: usize = 2;
/// The maximum number of tokens beyond the budget that complete a character.
const MAX_OVER: usize = 4;

/// Lets reasoning pass before the answer, which another factory constrains, if there is one. When the reasoning has as
/// many tokens as its budget, the closing word must come.
pub struct ReasoningConstraintFactory {
    model: Arc<Model>,
    words: Reasoning,
    answer: Option<Arc<dyn ConstraintFactory>>,
    is_open: bool,
    budget: Option<usize>,
}

impl ReasoningConstraintFactory {
    /// Creates the factory for answers of `model`, which begin within reasoning if `is_open`. `budget` is the maximum
    /// number of tokens of the reasoning.
    pub fn new(
        model: Arc<Model>,
        (words, is_open): (Reasoning, bool),
        budget: Option<usize>,
        answer: Option<Arc<dyn ConstraintFactory>>,
    ) -> Self {
        Self {
            model,
            words,
            answer,
            is_open,
            budget,
        }
    }
}

impl fmt::Debug for ReasoningConstraintFactory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ReasoningConstraintFactory")
            .field("words", &self.words)
            .field("is_open", &self.is_open)
            .field("budget", &self.budget)
            .field("answer", &self.answer)
            .finish_non_exhaustive()
    }
}

impl ConstraintFactory for ReasoningConstraintFactory {
    fn constraint(&self) -> Result<Box<dyn Constraint>, ConstraintError> {
        let tokenizer = self.model.tokenizer()?;
        let Reasoning {
            open,
            close,
            has_channels,
        } = self.words;
        let forced = if has_channels {
            format!("<|end|><|start|>assistant{close}")
        } else {
            close.to_owned()
        };
        let mut closes = vec![close];
        if has_channels && self.answer.is_none() {
            // A call ends the reasoning as well.
            closes.push("to=functions.");
        }
        let single = |text: &str| match tokenizer.encode_part(text)?[..] {
            [token] => Ok(Some(token)),
            _ => Ok::<_, ConstraintError>(None),
        };
        let gaps = [single("\n")?, single("\n\n")?];
        Ok(Box::new(ReasoningConstraint {
            open: tokenizer.encode(open, EncodeOptions::TEMPLATE)?,
            closes,
            forced,
            gaps: gaps.into_iter().flatten().collect(),
            budget: self.budget,
            // Channels always begin with a header.
            is_open: self.is_open || has_channels,
            answer: self
                .answer
                .as_ref()
                .map(|factory| factory.constraint())
                .transpose()?,
            vocab: self.model.description().vocab,
            model: Arc::clone(&self.model),
            text: Vec::new(),
            before: Vec::new(),
            opened: None,
            closed: None,
            gap: 0,
            inner: 0,
        }))
    }
}

/// The part of an answer that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The opening word, or an answer without reasoning.
    Start,
    Reasoning,
    Answer,
}

/// The constraint of one answer. Its tokens are those before the answer, line breaks, and those of the answer.
struct ReasoningConstraint {
    model: Arc<Model>,
    vocab: usize,
    /// The tokens of the opening word.
    open: Vec<u32>,
    /// Texts that end the reasoning.
    closes: Vec<&'static str>,
    /// The text that must come when the budget is spent.
    forced: String,
    /// Tokens that are line breaks.
    gaps: Vec<u32>,
    budget: Option<usize>,
    is_open: bool,
    answer: Option<Box<dyn Constraint>>,
    /// The text of the tokens before the answer, with the names of control tokens.
    text: Vec<u8>,
    /// The size of that text before each of these tokens.
    before: Vec<usize>,
    /// The number of tokens up to the end of the opening word.
    opened: Option<usize>,
    /// The number of tokens up to the end of the closing word.
    closed: Option<usize>,
    /// The number of line breaks after it.
    gap: usize,
    /// The number of tokens of the answer.
    inner: usize,
}

impl ReasoningConstraint {
    fn tokenizer(&self) -> Result<&Tokenizer, ConstraintError> {
        Ok(self.model.tokenizer()?)
    }

    fn phase(&self) -> Phase {
        if self.inner > 0 || self.closed.is_some() {
            Phase::Answer
        } else if self.is_open || self.opened.is_some() {
            Phase::Reasoning
        } else {
            Phase::Start
        }
    }

    /// Returns whether line breaks may come before the answer's first token.
    fn is_in_gap(&self) -> bool {
        self.inner == 0 && self.gap < MAX_GAP && self.closed.is_some() && self.answer.is_some()
    }

    /// Returns whether the budget is spent and the text does not end within a character.
    fn is_spent(&self) -> bool {
        let tokens = self.before.len() - self.opened.unwrap_or(0);
        let is_whole = || std::str::from_utf8(&self.text).is_ok();
        self.budget
            .is_some_and(|budget| tokens >= budget && (is_whole() || tokens >= budget + MAX_OVER))
    }

    /// Returns the tokens that must come after a spent budget.
    fn closing(&self) -> Result<Vec<u32>, ConstraintError> {
        let tokenizer = self.tokenizer()?;
        if let Some(token) = tokenizer.id(&self.forced) {
            return Ok(vec![token]);
        }
        // The text may have a beginning of the words.
        let begun = (1..self.forced.len())
            .rev()
            .find(|length| self.text.ends_with(&self.forced.as_bytes()[..*length]));
        let rest = self
            .forced
            .get(begun.unwrap_or(0)..)
            .unwrap_or(&self.forced);
        Ok(tokenizer.encode(rest, EncodeOptions::TEMPLATE)?)
    }

    fn push(&mut self, token: u32) -> Result<(), ConstraintError> {
        let tokenizer = self.model.tokenizer()?;
        let bytes = match tokenizer.token_kind(token) {
            TokenKind::Control => tokenizer.piece(token).unwrap_or_default().into(),
            _ => tokenizer.bytes(token),
        };
        self.before.push(self.text.len());
        self.text.extend(bytes);
        Ok(())
    }

    /// Returns whether the latest token ends the reasoning.
    fn ends(&self) -> bool {
        let latest = self.before.last().copied().unwrap_or(0);
        self.closes.iter().any(|close| {
            let start = latest.saturating_sub(close.len() - 1);
            self.text[start..]
                .windows(close.len())
                .any(|window| window == close.as_bytes())
        })
    }

    /// Returns whether `token` may come next.
    fn allows(&mut self, token: u32) -> Result<bool, ConstraintError> {
        let is_of_answer = match &mut self.answer {
            Some(answer) => answer.allowed(&[token])? == 1,
            None => true,
        };
        Ok(match self.phase() {
            Phase::Start => {
                self.open.get(self.before.len()) == Some(&token)
                    || (self.before.is_empty() && is_of_answer)
            }
            Phase::Reasoning if self.is_spent() => self.closing()?.first() == Some(&token),
            Phase::Reasoning => self.answer.is_none() || !self.is_end(token)?,
            Phase::Answer => is_of_answer || (self.is_in_gap() && self.gaps.contains(&token)),
        })
    }

    fn is_end(&self, token: u32) -> Result<bool, ConstraintError> {
        Ok(self.tokenizer()?.end_tokens().contains(&token))
    }
}

impl Constraint for ReasoningConstraint {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.phase() {
            Phase::Start if self.open.get(self.before.len()) == Some(&token) => {
                self.push(token)?;
                if self.before.len() == self.open.len() {
                    self.opened = Some(self.before.len());
                }
            }
            Phase::Reasoning => {
                self.push(token)?;
                if self.ends() {
                    self.closed = Some(self.before.len());
                }
            }
            Phase::Start if !self.before.is_empty() => {
                return Err("the word before the reasoning is not complete".into());
            }
            Phase::Start | Phase::Answer => {
                let Some(answer) = &mut self.answer else {
                    self.inner += 1;
                    return Ok(());
                };
                if answer.allowed(&[token])? == 0 && self.is_in_gap() && self.gaps.contains(&token)
                {
                    self.gap += 1;
                    return Ok(());
                }
                if let Some(answer) = &mut self.answer {
                    answer.accept(token)?;
                }
                self.inner += 1;
            }
        }
        Ok(())
    }

    fn take_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        let of_answer = count.min(self.inner);
        if let Some(answer) = self.answer.as_mut().filter(|_| of_answer > 0) {
            answer.take_back(of_answer)?;
        }
        self.inner -= of_answer;
        let count = count - of_answer;
        let of_gap = count.min(self.gap);
        self.gap -= of_gap;
        let rest = (self.before.len() + of_gap)
            .checked_sub(count)
            .ok_or("fewer tokens were accepted")?;
        if let Some(bytes) = self.before.get(rest) {
            self.text.truncate(*bytes);
        }
        self.before.truncate(rest);
        self.opened = self.opened.filter(|tokens| *tokens <= rest);
        self.closed = self.closed.filter(|tokens| *tokens <= rest);
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.phase() == Phase::Answer
            && self
                .answer
                .as_mut()
                .is_some_and(|answer| answer.is_complete())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.phase() {
            Phase::Start if !self.before.is_empty() => Ok(self.open[self.before.len()..].to_vec()),
            Phase::Reasoning if self.is_spent() => self.closing(),
            Phase::Answer if !self.is_in_gap() => match &mut self.answer {
                Some(answer) => answer.forced(),
                None => Ok(Vec::new()),
            },
            _ => Ok(Vec::new()),
        }
    }

    fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ConstraintError> {
        let mut count = 0;
        for token in tokens {
            if !self.allows(*token)? {
                break;
            }
            self.accept(*token)?;
            count += 1;
        }
        self.take_back(count)?;
        Ok(count)
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let phase = self.phase();
        if phase == Phase::Reasoning {
            let mut mask = TokenMask::all(self.vocab);
            if self.answer.is_some() {
                let ends = self.tokenizer()?.end_tokens();
                ends.iter().for_each(|end| mask.remove(*end));
            }
            return Ok(mask);
        }
        let mut mask = match &mut self.answer {
            Some(answer) => answer.mask()?,
            None => TokenMask::all(self.vocab),
        };
        if phase == Phase::Start {
            self.open
                .first()
                .iter()
                .for_each(|token| mask.insert(**token));
        } else if self.is_in_gap() {
            self.gaps.iter().for_each(|token| mask.insert(*token));
        }
        Ok(mask)
    }
}
