//! Rounds the output matrix by the second moments of the hidden states that it reads.

use std::sync::Arc;

use triad_engine::quantization::WeightBits;
use triad_engine::weights::{Linear, Weight, linear_to_bits};
use triad_engine::{Cancel, Model, Session};
use triad_kernels::int4::GROUP;

use super::moments::{Parts, SecondMoments};
use super::{feedback, round_with, sample};
use crate::calibration::session;
use crate::error::Result;

/// Returns the output matrix of the float `model` with these bits. With four or five, the model reads both parts of the text,
/// and weights compensate for errors as those of other layers do. `progress` is called with the tokens that are read.
///
/// # Errors
/// If `cancel` is set, or the model cannot run.
pub fn round_output(
    model: &Arc<Model>,
    text: &Parts<Vec<Vec<u32>>>,
    bits: WeightBits,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize),
) -> Result<Linear> {
    let output = &model.weights().output;
    let matrix = match &output.weight {
        Weight::Float(matrix)
            if bits.has_groups() && matrix.in_features().is_multiple_of(GROUP) =>
        {
            matrix
        }
        _ => return Ok(linear_to_bits(output, bits)),
    };
    let mut session = session(model)?;
    let mut moments = [(); 2].map(|()| SecondMoments::new(matrix.in_features()));
    let mut tokens = 0;
    progress(tokens);
    for (moments, pieces) in moments.iter_mut().zip(text) {
        for piece in pieces {
            cancel.check()?;
            add(&mut session, piece, moments, cancel)?;
            tokens += piece.len();
            progress(tokens);
        }
    }
    model.install(|| {
        let feedback = feedback(&sample(&[matrix]), &moments, cancel)?;
        Ok(round_with(&feedback, output, bits))
    })
}

/// Adds the hidden states of one piece of text.
fn add(
    session: &mut Session,
    piece: &[u32],
    moments: &mut SecondMoments,
    cancel: &Cancel,
) -> Result<()> {
    session.truncate(0);
    let model = Arc::clone(session.model());
    Ok(session.hidden_states(piece, cancel, |states| {
        model.install(|| moments.add(states));
    })?)
}
