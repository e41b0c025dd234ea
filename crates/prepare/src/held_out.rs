//! Measures how well a model predicts text that it was not calibrated on.

use std::sync::Arc;

use serde::Serialize;
use triad_engine::{Branch, Cancel, Int8Statistics, Model, Score, Session, SessionOptions};

use super::calibration::PIECE_TOKENS;
use crate::error::Result;

/// The result of a model on held-out text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeldOut {
    /// Mean negative natural logarithm of the probability of a token.
    pub loss: f64,
    /// Standard deviation of the loss, from the pieces; infinite for a single one.
    pub standard_error: f64,
    /// Tokens that were predicted.
    pub tokens: usize,
    /// Timing of the INT8 layers; zeros for a model in float.
    pub int8: Int8Statistics,
}

impl HeldOut {
    /// Returns e to the power of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// Computes the loss of `model` on every token of each of `pieces` except its first. `progress` is called with the
/// number of processed tokens.
///
/// # Errors
/// If `cancel` is set, or the model cannot run.
pub fn held_out(
    model: &Arc<Model>,
    pieces: &[Vec<u32>],
    cancel: &Cancel,
    mut progress: impl FnMut(usize),
) -> Result<HeldOut> {
    let context = PIECE_TOKENS.min(model.description().context);
    let options = SessionOptions {
        context,
        chunk: PIECE_TOKENS,
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options)?;
    session.engine().count(true);
    let (mut losses, mut tokens) = (Vec::new(), 0);
    for piece in pieces.iter().filter(|piece| piece.len() > 1) {
        let scores = session.score(
            &[Branch {
                tokens: piece,
                scored_from: 1,
            }],
            cancel,
            |_| {},
        )?;
        losses.push(-scores.iter().map(Score::log_likelihood).sum::<f64>());
        tokens += piece.len() - 1;
        progress(tokens);
    }
    let int8 = session.engine().statistics().int8();
    if tokens == 0 {
        return Ok(HeldOut {
            int8,
            ..HeldOut::default()
        });
    }
    let loss = losses.iter().sum::<f64>() / tokens as f64;
    // Pieces differ in length: the deviation of a piece is the difference from the value expected for its length.
    let lengths = pieces
        .iter()
        .map(|piece| piece.len().saturating_sub(1))
        .filter(|length| *length > 0);
    let squares: f64 = losses
        .iter()
        .zip(lengths)
        .map(|(sum, length)| (sum - loss * length as f64).powi(2))
        .sum();
    let count = losses.len() as f64;
    let standard_error = if count > 1.0 {
        (squares * count / (count - 1.0)).sqrt() / tokens as f64
    } else {
        f64::INFINITY
    };
    Ok(HeldOut {
        loss,
        standard_error,
        tokens,
        int8,
    })
}
