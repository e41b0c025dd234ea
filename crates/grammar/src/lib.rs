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
//! needed, and a walk over the tree of all tokens. Texts are untrusted: their length and depth, the time and stack of the
//! compiler, and what each mask may take are bounded, and what is beyond a bound is an error.
#![forbid(unsafe_code)]

mod compile;
mod constraint;
mod error;
mod kind;
mod objects;
mod source;
mod tokens;
mod watch;

pub use constraint::{Grammar, GrammarConstraint};
pub use error::{Error, Result};
pub use kind::Kind;
pub use source::{GrammarSource, for_llguidance};
pub use tokens::HasTokenizer;

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::ParserFactory;

/// Compiled grammars that are kept, at most.
const KEPT: usize = 64;

/// Compiles grammars for the tokens of one model, and keeps the latest ones.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    /// With whom each was compiled for; the latest one last.
    kept: Mutex<Vec<([u8; 32], Arc<Grammar>)>>,
}

impl Grammars {
    /// For a model or a tokenizer. Goes through all its tokens once: tens of milliseconds for large vocabularies.
    ///
    /// # Errors
    /// If it has no tokenizer, or one without an end token.
    pub fn new(tokenizer: Arc<dyn HasTokenizer>) -> Result<Self> {
        let environment = tokens::environment(tokenizer)?;
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| Error::Tokenizer {
                problem: error.to_string(),
            })?;
        factory.quiet();
        *factory.limits_mut() = compile::limits();
        Ok(Self {
            factory: Arc::new(factory),
            kept: Mutex::default(),
        })
    }

    /// The grammar of `source`.
    ///
    /// # Errors
    /// If the text has a mistake, holds what is not supported, or exceeds a limit; the error names which.
    pub fn compile(&self, source: &GrammarSource) -> Result<Arc<Grammar>> {
        self.compile_for([0; 32], source)
    }

    /// As [`compile`](Self::compile), for an owner: one that was kept is found by its owner alone, so that the time does not
    /// tell what others had compiled.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_for(&self, owner: [u8; 32], source: &GrammarSource) -> Result<Arc<Grammar>> {
        if let Some(grammar) = self.find(owner, source) {
            return Ok(grammar);
        }
        let grammar = Arc::new(Grammar::new(
            source.clone(),
            compile::compile(&self.factory, source)?,
        ));
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
