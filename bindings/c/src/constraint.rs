//! Constraints of answers.

use std::sync::{Arc, Mutex, PoisonError};

use triad_engine::Model;
use triad_engine::constraint::ConstraintFactory;
use triad_grammar::{GrammarSource, Grammars};

use crate::status::Failure;

/// The compiler of constraints for one model. It is made when it is first needed, since it goes through all tokens.
#[derive(Default)]
pub struct Compiler(Mutex<Option<Arc<Grammars>>>);

impl Compiler {
    /// Compiles a constraint for the tokens of `model`.
    pub fn compile(
        &self,
        model: &Arc<Model>,
        source: &GrammarSource,
    ) -> Result<Arc<dyn ConstraintFactory>, Failure> {
        Ok(self.grammars(model)?.compile(source)?)
    }

    fn grammars(&self, model: &Arc<Model>) -> Result<Arc<Grammars>, Failure> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammars) = &*made {
            return Ok(Arc::clone(grammars));
        }
        let grammars = Arc::new(Grammars::new(Arc::clone(model) as _)?);
        *made = Some(Arc::clone(&grammars));
        Ok(grammars)
    }
}
