//! Writes the head that predicts one more token: its matrices in INT8 with a scale for each row. They read floats, so they
//! need no calibration; a head only proposes tokens.

use triad_engine::Model;
use triad_engine::package::tensors::{MTP, MTP_NORMS, MTP_PROJECTION, NormPlace, linear_name};
use triad_engine::weights::{
    Block, JoinedInput, Linear, Norm, Router, RouterPart, Weight, WeightMatrix,
};
use triad_kernels::Matrix;

use super::output::Output;
use crate::error::Result;

/// Returns the head of a model in float, unless its weights are damaged: the package has none then, since the model
/// computes the same answers without it.
pub(super) fn of(model: &Model) -> Option<&Model> {
    let head = model.mtp()?;
    let is_whole = head.install(|| is_finite(head));
    if !is_whole {
        tracing::warn!(
            "the package has no MTP head: the weights of the model's head are not finite"
        );
    }
    is_whole.then_some(head)
}

/// Returns whether all weights of a head are finite. Excludes those that it shares with its model.
fn is_finite(head: &Model) -> bool {
    let weights = head.weights();
    let of_matrix = |matrix: &WeightMatrix| {
        let mut row = vec![0.0; matrix.in_features()];
        (0..matrix.out_features()).all(|index| {
            matrix.rows_to_f32(index..index + 1, &mut row);
            all_finite(&row)
        })
    };
    let of_norm =
        |norm: &Norm| all_finite(&norm.weight) && norm.bias.as_deref().is_none_or(all_finite);
    let of_linear = |linear: &Linear| {
        let is_whole = match &linear.weight {
            Weight::Float(matrix) => of_matrix(matrix),
            Weight::Int8(_) => true,
        };
        is_whole && linear.bias.as_deref().is_none_or(all_finite)
    };
    let of_router = |router: &Router| {
        let mut parts = RouterPart::present_in(&router.experts);
        parts.all(|part| router.part(part).is_some_and(|it| all_finite(&it)))
    };
    let of_block = |block: &Block| {
        NormPlace::all_of(block)
            .into_iter()
            .all(|(_, norm)| of_norm(norm))
            && block.mixer.values().all(|values| all_finite(values))
            && block.router.as_ref().is_none_or(of_router)
            && block.scale.is_none_or(f32::is_finite)
            && block.linears.values().all(of_linear)
    };
    weights.joined_input.as_ref().is_some_and(|it| {
        of_norm(&it.embedding_norm) && of_norm(&it.state_norm) && of_matrix(&it.projection)
    }) && of_norm(&weights.output_norm)
        && weights.blocks.iter().all(of_block)
}

fn all_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

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
