//! Writes the head that predicts one more token: its matrices in INT8 with a scale for each row. They read floats, so they
//! need no calibration; a head only proposes tokens.

use triad_engine::Model;
use triad_engine::package::tensors::{MTP, MTP_NORMS, MTP_PROJECTION, linear_name};
use triad_engine::weights::{JoinedInput, Weight, WeightMatrix};
use triad_kernels::Matrix;

use super::output::Output;
use crate::error::Result;

/// Writes the head of a model in float.
///
/// # Errors
/// If the file cannot be written, or the weights are not finite.
///
/// # Panics
/// If the model is no head, or not in float.
pub(super) fn write(file: &mut Output, head: &Model) -> Result<()> {
    let weights = head.weights();
    let JoinedInput {
        embedding_norm,
        state_norm,
        projection,
    } = weights.joined_input.as_ref().expect("a head joins inputs");
    for block in &weights.blocks {
        file.rest_of_block(MTP, 0, block)?;
        for (name, linear) in &block.linears {
            let Weight::Float(matrix) = &linear.weight else {
                panic!("the weights are in float")
            };
            let name = format!("{MTP}{}", linear_name(0, *name));
            rowwise(file, &name, head, matrix)?;
            if let Some(bias) = &linear.bias {
                file.floats(&format!("{name}.bias"), bias)?;
            }
        }
    }
    rowwise(file, MTP_PROJECTION, head, projection)?;
    let norms = [embedding_norm, state_norm, &weights.output_norm];
    let mut norms = MTP_NORMS.into_iter().zip(norms);
    norms.try_for_each(|(name, norm)| file.norm(name, norm))
}

fn rowwise(file: &mut Output, name: &str, head: &Model, matrix: &WeightMatrix) -> Result<()> {
    let int8 = head.install(|| matrix.to_int8());
    matrix.release();
    let Matrix::Int8 { values, scales } = int8.view() else {
        unreachable!("it was converted to INT8")
    };
    file.floats(&format!("{name}.scales"), scales)?;
    file.put(&format!("{name}.weight"), bytemuck::cast_slice(values))
}
