//! Embeddings: one vector for a text, pooled from the last hidden states of a language model.

use triad_engine::{Cancel, Error, Session};

use crate::error::Result;

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The hidden state of the last token.
    Last,
}

/// Returns the embedding of `tokens`, `[hidden]`, of length 1; a vector of zeros stays one. `session` is empty.
///
/// # Errors
/// If there are no tokens, or more than the context holds; if the model computes numbers that are not finite; if `cancel` is
/// set.
pub fn embed(
    mut session: Session,
    tokens: &[u32],
    pooling: Pooling,
    cancel: &Cancel,
) -> Result<Vec<f32>> {
    let hidden = session.model().description().hidden;
    let mut pooled = vec![0.0f64; hidden];
    session.hidden_states(tokens, cancel, |states| match pooling {
        Pooling::Mean => {
            for state in states.chunks_exact(hidden) {
                let sums = pooled.iter_mut().zip(state);
                sums.for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        Pooling::Last => {
            let last = pooled.iter_mut().zip(&states[states.len() - hidden..]);
            last.for_each(|(pooled, value)| *pooled = f64::from(*value));
        }
    })?;
    let length = pooled.iter().map(|value| value * value).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::NotFinite.into());
    }
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    Ok(pooled.iter().map(|value| (value * scale) as f32).collect())
}
