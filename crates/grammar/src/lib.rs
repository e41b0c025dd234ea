//! Structured output: JSON that conforms to a schema, or text that matches a regular expression or a grammar.
//!
//! [`Grammars`] compiles a [`GrammarSource`] for the tokens of a model, once per source. A [`Grammar`] is a
//! [`ConstraintFactory`](triad_engine::constraint::ConstraintFactory), an option of generation: the engine then
//! generates only tokens that the grammar allows, and ends only where the grammar allows an end.
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
//! let grammar = grammars.compile(&GrammarSource::JsonSchema(schema.into()))?;
//! let options = GenerateOptions { constraint: Some(grammar), ..GenerateOptions::default() };
//! let mut session = Session::new(&model, &SessionOptions::default())?;
//! let prompt = model.encode_prompt("The capital of France, as JSON: ")?;
//! let answer = generate(&mut session, &prompt, &options, &Cancel::new(), &mut |_| {})?;
//! println!("{}", answer.text);
//! # Ok(())
//! # }
//! ```
//!
//! Parsing is done by llguidance ("Super-fast structured outputs"): an Earley parser over lexemes with lazily built
//! automata, and a walk over the trie of all tokens. The length and depth of sources, the time and stack of the
//! compiler, and the time per mask are limited. Exceeding a limit is an error. A compilation that times out continues
//! in its thread. Sources that are not trusted can therefore be compiled in separate processes first
//! ([`Grammars::with_checker`]).
#![forbid(unsafe_code)]

mod annotations;
mod check;
mod compile;
mod constraint;
mod error;
mod kept;
mod kind;
mod numbers;
mod objects;
mod patterns;
mod references;
mod source;
mod spellings;
mod tokens;
mod watch;
mod wide_numbers;

pub use check::{Checker, answer};
pub use constraint::{Grammar, GrammarConstraint};
pub use error::{Error, Result};
pub use kind::Kind;
pub use source::{GrammarSource, for_llguidance};
pub use tokens::HasTokenizer;

use std::sync::Arc;

use llguidance::ParserFactory;
use serde_json::Value;
use triad_engine::Cancel;

use kept::Kept;

/// Estimated memory of a compiled grammar in bytes for each byte of its source, where it was not measured.
const BYTES_PER_BYTE: usize = 512;

/// The compiler and cache of grammars for the tokens of one model.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    kept: Kept,
    /// The checker, with the vocabulary that it receives.
    checker: Option<(Checker, Value)>,
}

impl Grammars {
    /// Creates a compiler for a model or a tokenizer. Iterates over all its tokens once, which takes tens of
    /// milliseconds for large vocabularies.
    ///
    /// # Errors
    /// If there is no tokenizer, or it has no end token.
    pub fn new(tokenizer: Arc<dyn HasTokenizer>) -> Result<Self> {
        Ok(Self {
            factory: compile::factory(&tokens::environment(tokenizer)?)?,
            kept: Kept::default(),
            checker: None,
        })
    }

    /// Compiles every source with `checker` first, except [`GrammarSource::JsonObject`], which is constant. Use it for
    /// sources that are not trusted: without it, the memory of a compilation is not limited, and a compilation that
    /// times out continues.
    #[must_use]
    pub fn with_checker(self, checker: Checker) -> Self {
        let vocabulary = check::vocabulary(self.factory.tok_env().tok_trie());
        Self {
            checker: Some((checker, vocabulary)),
            ..self
        }
    }

    /// Returns the compiled grammar of `source`.
    ///
    /// # Errors
    /// If the source is invalid, unsupported, or exceeds a limit. The error says which.
    pub fn compile(&self, source: &GrammarSource) -> Result<Arc<Grammar>> {
        self.compile_for([0; 32], source, &Cancel::new())
    }

    /// Like [`compile`](Self::compile), for an owner. Only the owner of a cached grammar finds it, so that the compile
    /// time does not reveal what others compiled. One owner may use at most half of the concurrent compilers.
    ///
    /// # Errors
    /// As [`compile`](Self::compile); also if `cancel` is set.
    pub fn compile_for(
        &self,
        owner: [u8; 32],
        source: &GrammarSource,
        cancel: &Cancel,
    ) -> Result<Arc<Grammar>> {
        if let Some(grammar) = self.kept.find(owner, source) {
            return Ok(grammar);
        }
        let read = compile::read(source)?;
        let bytes = match &self.checker {
            Some((checker, vocabulary)) if *source != GrammarSource::JsonObject => {
                checker.check(source, vocabulary, cancel)?
            }
            _ => None,
        };
        let matcher = compile::compile(&self.factory, (source.kind(), read), owner, cancel)?;
        let grammar = Arc::new(Grammar::new(source.clone(), matcher));
        let bytes = bytes.unwrap_or(source.text().len() * BYTES_PER_BYTE);
        self.kept.add(owner, bytes, Arc::clone(&grammar));
        Ok(grammar)
    }

    /// Drops all grammars that are kept for later. Completions go on with theirs.
    pub fn release(&self) {
        self.kept.clear();
    }
}
