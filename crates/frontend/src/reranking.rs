//! Reranking: scores of documents for a query, by a cross-encoder that reads both together.

use triad_engine::{Cancel, EncoderText, Engine, Error, Model};
use triad_model::tokenizer::Special;

pub use triad_model::description::ScoreActivation;

use crate::chat::encode_around;
use crate::embedding::{Pooling, max_tokens, pool};
use crate::error::{self, Result};

/// Returns the reason why a model scores no documents, if it does not.
pub fn unsupported(model: &Model) -> Option<&'static str> {
    let description = model.description();
    if !description.head.as_ref().is_some_and(|head| head.scores) {
        return Some("it has no classifier of pairs of texts (a cross-encoder has)");
    }
    match model.tokenizer().map(|tokenizer| tokenizer.pair()) {
        Ok(Some(_)) => None,
        Ok(None) | Err(_) => Some("its tokenizer does not state the tokens around two texts"),
    }
}

/// Returns the tokens of `query` together with each of `documents`. `special` decides how names of control tokens in them
/// are treated.
///
/// # Errors
/// If the model scores no documents; if a pair has more tokens than the context or the model's authors allow; if `cancel`
/// is set.
pub fn pairs(
    model: &Model,
    (query, documents): (&str, &[String]),
    (special, context): (Special, usize),
    cancel: &Cancel,
) -> Result<Vec<EncoderText>> {
    let most = max_tokens(model, context);
    let Some(around) = model.tokenizer()?.pair() else {
        let message = "the tokenizer does not state the tokens around two texts";
        let error = triad_model::Error::new(triad_model::ErrorKind::Unsupported, message);
        return Err(Error::from(error).into());
    };
    let has_types = model.description().added_inputs.token_types > 1;
    let tokens = |text: &str| encode_around(model, text, (special, false), (most, cancel));
    let query = tokens(query)?;
    let pair = |document: &String| {
        let (tokens, second) = around.join(&query, &tokens(document)?);
        if tokens.len() > most {
            return Err(error::Error::PromptTooLong {
                tokens: tokens.len(),
                more: false,
                context: most,
            });
        }
        Ok(EncoderText {
            tokens,
            second: second.filter(|_| has_types),
        })
    };
    documents.iter().map(pair).collect()
}

/// Returns the function that makes a score of the classifier's output, which is a sigmoid unless the model states another.
pub fn activation(model: &Model) -> ScoreActivation {
    let head = model.description().head.as_ref();
    head.map_or_else(ScoreActivation::default, |head| head.activation)
}

/// Returns the output of the classifier for each of `pairs`: the higher, the better.
///
/// # Errors
/// If the model computes numbers that are not finite; if `cancel` is set.
pub fn scores(engine: &Engine, pairs: &[EncoderText], cancel: &Cancel) -> Result<Vec<f32>> {
    let pooled = pool(engine, pairs, (Pooling::First, 1), cancel)?;
    let scores = engine.model().head(pooled);
    match scores.iter().all(|score| score.is_finite()) {
        true => Ok(scores),
        false => Err(Error::NotFinite.into()),
    }
}
