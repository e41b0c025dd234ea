//! The head of a model that predicts one more token.

use std::sync::Arc;

use super::Model;
use crate::weights::Weights;

impl Model {
    /// Returns the same model with a head that predicts one more token.
    pub(super) fn with_head(mut self, weights: Option<Weights>) -> Self {
        if let (Some(weights), Some(description)) = (weights, self.description.mtp_model()) {
            let head = self.derived(weights, &self.pool);
            self.mtp = Some(Arc::new(Self {
                description,
                ..head
            }));
        }
        self
    }

    /// Returns the head, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn head_mut(&mut self) -> &mut Self {
        Arc::get_mut(self.mtp.as_mut().unwrap()).unwrap()
    }

    /// Returns the head that predicts one more token, as a model of one block that shares the embedding and the output
    /// matrix, if the model has one that Triad runs. It reads the hidden states of its model, so it has no sessions of its
    /// own: those of the model [propose](crate::speculate::Source::Mtp) by it.
    pub fn mtp(&self) -> Option<&Arc<Self>> {
        self.mtp.as_ref()
    }
}
