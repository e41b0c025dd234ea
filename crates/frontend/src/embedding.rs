//! Embeddings: one vector for a text, pooled from the last hidden states of a model.

use triad_engine::{Cancel, EncoderText, Engine, Error, Model};

use crate::error::{self, Result};

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
    /// Maximum pages of keys and values of texts that are computed together; encoders need none.
    pub most_pages: usize,
}

impl VectorOptions {
    /// Returns the rules for a whole vector of length 1.
    pub fn of_length_1(pooling: Pooling) -> Self {
        Self {
            pooling,
            dimensions: None,
            normalizes: true,
            most_pages: 1,
        }
    }
}

/// Returns the part of a model because of which Triad computes no vectors of texts with it, if there is one.
pub fn unsupported(model: &Model) -> Option<String> {
    let head = model.description().head.as_ref();
    match model.description().vector_width() {
        _ if head.is_none_or(|head| head.classifier.is_none()) => {}
        1 => return Some("it scores pairs of texts (a cross-encoder): ask for a reranking".into()),
        classes => {
            return Some(format!(
                "it classifies texts ({classes} classes): ask for a prediction"
            ));
        }
    }
    let defaults = model.embedding_defaults();
    let layers = head.map_or(0, |head| head.layers.len());
    without_layers(defaults.dense_layers, layers).or_else(|| defaults.unsupported.clone())
}

/// Describes the difference if a model has other dense layers than its files state. A package that was made before Triad
/// computed these layers has none of them.
fn without_layers(stated: Option<usize>, layers: usize) -> Option<String> {
    let stated = stated.filter(|stated| *stated != layers)?;
    Some(format!(
        "its modules.json has {stated} dense layers after pooling, but its weights have {layers}"
    ))
}

/// Returns the maximum number of tokens of a text in a `context`: a model's authors may state less.
pub fn max_tokens(model: &Model, context: usize) -> usize {
    let stated = model.embedding_defaults().max_tokens;
    stated.map_or(context, |stated| stated.min(context))
}

/// Returns the pooling of a model's vectors: `given`, else that of the model's authors, else the mean.
///
/// # Errors
/// If the model or the authors' rules have a part that Triad does not compute.
pub fn pooling(model: &Model, given: Option<Pooling>) -> Result<Pooling> {
    if let Some(part) = unsupported(model) {
        let message = format!("this model has no vectors of texts here: {part}");
        let error = triad_model::Error::new(triad_model::ErrorKind::Unsupported, message);
        return Err(Error::from(error).into());
    }
    let stated = model.embedding_defaults().pooling;
    Ok(given.or(stated).unwrap_or_default())
}

/// Returns the embedding of `tokens`.
///
/// # Errors
/// As [`embed_each`].
pub fn embed(
    engine: &Engine,
    tokens: Vec<u32>,
    options: VectorOptions,
    cancel: &Cancel,
) -> Result<Vec<f32>> {
    let vectors = embed_each(engine, vec![tokens], options, cancel)?;
    Ok(vectors.into_iter().next().unwrap_or_default())
}

/// Returns the embedding of each text, given by its tokens. Several texts are computed at once where the
/// [engine](Engine::encode) does that.
///
/// # Errors
/// If a text has no tokens, or more than the context or the model's authors allow; if the model computes numbers that are
/// not finite; if `cancel` is set.
pub fn embed_each(
    engine: &Engine,
    texts: Vec<Vec<u32>>,
    options: VectorOptions,
    cancel: &Cancel,
) -> Result<Vec<Vec<f32>>> {
    let model = engine.model();
    let most = max_tokens(model, engine.context());
    if let Some(text) = texts.iter().find(|text| text.len() > most) {
        return Err(error::Error::PromptTooLong {
            tokens: text.len(),
            more: false,
            context: most,
        });
    }
    let texts: Vec<EncoderText> = texts.into_iter().map(EncoderText::from).collect();
    let how = (options.pooling, options.most_pages);
    let pooled = pool(engine, &texts, how, cancel)?;
    let width = model.description().vector_width();
    let vectors = model.head(pooled);
    vectors
        .chunks_exact(width)
        .map(|vector| finished(vector, options))
        .collect()
}

/// Returns the pooled hidden states of all texts, `[texts, hidden]`.
///
/// # Errors
/// As [`Engine::encode`].
pub(crate) fn pool(
    engine: &Engine,
    texts: &[EncoderText],
    (pooling, most_pages): (Pooling, usize),
    cancel: &Cancel,
) -> Result<Vec<f32>> {
    let hidden = engine.model().description().hidden;
    // Means are summed in f64.
    let mut pooled = vec![0.0f64; texts.len() * hidden];
    let mut has_first = vec![false; texts.len()];
    engine.encode(texts, most_pages, cancel, |index, states| {
        let pooled = &mut pooled[index * hidden..][..hidden];
        let mut take = |state: &[f32]| {
            let values = pooled.iter_mut().zip(state);
            values.for_each(|(pooled, value)| *pooled = f64::from(*value));
        };
        match pooling {
            Pooling::First if has_first[index] => {}
            Pooling::First => take(&states[..hidden]),
            Pooling::Last => take(&states[states.len() - hidden..]),
            Pooling::Mean => {
                for state in states.chunks_exact(hidden) {
                    let sums = pooled.iter_mut().zip(state);
                    sums.for_each(|(sum, value)| *sum += f64::from(*value));
                }
            }
        }
        has_first[index] = true;
    })?;
    if pooling == Pooling::Mean {
        for (text, pooled) in texts.iter().zip(pooled.chunks_exact_mut(hidden)) {
            let count = text.tokens.len().max(1) as f64;
            pooled.iter_mut().for_each(|sum| *sum /= count);
        }
    }
    Ok(pooled.into_iter().map(|value| value as f32).collect())
}

/// Returns the kept components of a vector, scaled if `options` ask for that.
fn finished(vector: &[f32], options: VectorOptions) -> Result<Vec<f32>> {
    let kept = options.dimensions.unwrap_or(vector.len()).min(vector.len());
    let vector = &vector[..kept];
    let squares = vector.iter().map(|value| f64::from(*value).powi(2));
    let length = squares.sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::NotFinite.into());
    }
    let scale = match options.normalizes {
        true if length > 0.0 => length.recip(),
        true => 0.0,
        false => 1.0,
    };
    Ok(vector
        .iter()
        .map(|value| (f64::from(*value) * scale) as f32)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_the_dense_layers_that_its_files_state_has_no_vectors() {
        assert_eq!(without_layers(None, 1), None);
        assert_eq!(without_layers(Some(1), 1), None);
        let reason = without_layers(Some(2), 0).unwrap();
        assert!(reason.contains("2 dense layers"), "{reason}");
    }
}
