//! Answers in a form: JSON of a schema, texts of a regular expression or a grammar.
//!
//! [`Grammars`] compiles a [`GrammarSource`] for the tokens of a model, once for each text. A [`Grammar`] is a
//! [`Form`](triad_engine::constraint::Form) of answers: given to the engine with the options of an answer, every token of
//! it is one that the grammar allows, and it ends only where the grammar allows an end.
//!
//! ```no_run
//! use std::sync::Arc;
//! use triad_engine::{Cancel, GenerateOptions, LoadOptions, Model, Session, SessionOptions, generate};
//! use triad_grammar::{GrammarSource, Grammars};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::load("model.gguf".as_ref(), &LoadOptions::default())?);
//! let grammars = Grammars::new(model.clone())?;
//! let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
//! let form = grammars.compile(&GrammarSource::JsonSchema(schema.into()))?;
//! let options = GenerateOptions { form: Some(form), ..GenerateOptions::default() };
//! let mut session = Session::new(&model, &SessionOptions::default())?;
//! let prompt = model.encode_prompt("The capital of France, as JSON: ")?;
//! let answer = generate(&mut session, &prompt, &options, &Cancel::new(), &mut |_| {})?;
//! println!("{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! Parsing is llguidance's ("Super-fast structured outputs"): an Earley parser over lexemes whose automata are built as they are
//! needed, and a walk over the tree of all tokens. The length and depth of texts, the time and stack of the compiler, and the
//! time of each mask are bounded, and what exceeds a bound is an error. A compiler whose time is over goes on in its thread: for
//! texts that are not trusted there are processes that can be ended ([`Grammars::with_checker`]).
#![forbid(unsafe_code)]

mod check;
mod compile;
mod constraint;
mod error;
mod kind;
mod objects;
mod source;
mod tokens;
mod watch;

pub use check::{Checker, answer};
pub use constraint::{Grammar, GrammarConstraint};
pub use error::{Error, Result};
pub use kind::Kind;
pub use source::{GrammarSource, for_llguidance};
pub use tokens::HasTokenizer;

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::ParserFactory;
use serde_json::Value;
use triad_engine::Cancel;

/// Compiled grammars that are kept, at most.
const KEPT: usize = 64;

/// Compiles grammars for the tokens of one model, and keeps the latest ones.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    /// With whom each was compiled for; the latest one last.
    kept: Mutex<Vec<([u8; 32], Arc<Grammar>)>>,
    /// With what it is told of the tokens.
    checker: Option<(Checker, Value)>,
}

impl Grammars {
    /// For a model or a tokenizer. Goes through all its tokens once: tens of milliseconds for large vocabularies.
    ///
    /// # Errors
    /// If it has no tokenizer, or one without an end token.
    pub fn new(tokenizer: Arc<dyn HasTokenizer>) -> Result<Self> {
        Ok(Self {
            factory: compile::factory(&tokens::environment(tokenizer)?)?,
            kept: Mutex::default(),
            checker: None,
        })
    }

    /// Compiles only what `checker` has compiled in a process of its own, except for [`GrammarSource::JsonObject`], whose text
    /// is always the same. For grammars of people who are not trusted: without it, the memory of a compile isn't bounded, and a
    /// compile whose time is over goes on.
    #[must_use]
    pub fn with_checker(self, checker: Checker) -> Self {
        let vocabulary = check::vocabulary(self.factory.tok_env().tok_trie());
        Self {
            checker: Some((checker, vocabulary)),
            ..self
        }
    }

    /// The grammar of `source`.
    ///
    /// # Errors
    /// If the text has a mistake, holds what is not supported, or exceeds a limit; the error names which.
    pub fn compile(&self, source: &GrammarSource) -> Result<Arc<Grammar>> {
        self.compile_for([0; 32], source, &Cancel::new())
    }

    /// As [`compile`](Self::compile), for an owner: one that was kept is found by its owner alone, so that the time does not
    /// tell what others had compiled. An owner has at most half of the places for compilers.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); if `cancel` is set.
    pub fn compile_for(
        &self,
        owner: [u8; 32],
        source: &GrammarSource,
        cancel: &Cancel,
    ) -> Result<Arc<Grammar>> {
        if let Some(grammar) = self.find(owner, source) {
            return Ok(grammar);
        }
        let read = compile::read(source)?;
        if let Some((checker, vocabulary)) = &self.checker
            && *source != GrammarSource::JsonObject
        {
            checker.check(source, vocabulary, cancel)?;
        }
        let matcher = compile::compile(&self.factory, (source.kind(), read), owner, cancel)?;
        let grammar = Arc::new(Grammar::new(source.clone(), matcher));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((owner, Arc::clone(&grammar)));
        Ok(grammar)
    }

    fn find(&self, owner: [u8; 32], source: &GrammarSource) -> Option<Arc<Grammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept
            .iter()
            .position(|(of, grammar)| *of == owner && grammar.source() == source)?;
        let (_, grammar) = kept.remove(place);
        kept.push((owner, Arc::clone(&grammar)));
        Some(grammar)
    }
}
