//! Embeddings: one vector for a text, pooled from the last hidden states of a language model.

use triad_engine::{Cancel, Error, Model, Session};

use crate::error::Result;

pub use triad_model::checkpoint::Pooling;

/// Rules for a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorOptions {
    /// How the hidden states of a text become one vector.
    pub pooling: Pooling,
    /// The number of leading components that are kept; `None` keeps all.
    pub dimensions: Option<usize>,
    /// Whether the vector is scaled to length 1, after other components are dropped. A vector of zeros stays one.
    pub normalizes: bool,
}

impl VectorOptions {
    /// Returns the rules for a whole vector of length 1.
    pub fn of_length_1(pooling: Pooling) -> Self {
        Self {
            pooling,
            dimensions: None,
            normalizes: true,
        }
    }
}

/// Returns the pooling of a model's vectors: `given`, else that of the model's authors, else the mean.
///
/// # Errors
/// If the authors' rules have a part that Triad does not compute.
pub fn pooling(model: &Model, given: Option<Pooling>) -> Result<Pooling> {
    let defaults = model.embedding_defaults();
    if let Some(part) = &defaults.unsupported {
        let message = format!("this model has no vectors of texts here: {part}");
        let error = triad_model::Error::new(triad_model::ErrorKind::Unsupported, message);
        return Err(Error::from(error).into());
    }
    Ok(given.or(defaults.pooling).unwrap_or_default())
}

/// Returns the embedding of `tokens`. `session` is empty.
///
/// # Errors
/// If there are no tokens, or more than the context holds; if the model computes numbers that are not finite; if `cancel` is
/// set.
pub fn embed(
    mut session: Session,
    tokens: &[u32],
    options: VectorOptions,
    cancel: &Cancel,
) -> Result<Vec<f32>> {
    let hidden = session.model().description().hidden;
    let (mut pooled, mut rows) = (vec![0.0f64; hidden], 0);
    let mut take = |state: &[f32]| {
        let values = pooled.iter_mut().zip(state);
        values.for_each(|(pooled, value)| *pooled = f64::from(*value));
    };
    match options.pooling {
        Pooling::Mean => session.hidden_states(tokens, cancel, |states| {
            for state in states.chunks_exact(hidden) {
                let sums = pooled.iter_mut().zip(state);
                sums.for_each(|(sum, value)| *sum += f64::from(*value));
            }
        })?,
        Pooling::Last => session.hidden_states(tokens, cancel, |states| {
            take(&states[states.len() - hidden..]);
        })?,
        Pooling::First => session.hidden_states(tokens, cancel, |states| {
            if rows == 0 {
                take(&states[..hidden]);
            }
            rows += states.len() / hidden;
        })?,
    }
    if options.pooling == Pooling::Mean {
        let count = tokens.len().max(1) as f64;
        pooled.iter_mut().for_each(|sum| *sum /= count);
    }
    pooled.truncate(options.dimensions.unwrap_or(hidden));
    let length = pooled.iter().map(|value| value * value).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::NotFinite.into());
    }
    let scale = match options.normalizes {
        true if length > 0.0 => length.recip(),
        true => 0.0,
        false => 1.0,
    };
    Ok(pooled.iter().map(|value| (value * scale) as f32).collect())
}
