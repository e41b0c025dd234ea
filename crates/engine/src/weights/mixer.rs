//! The weights of a mixer's operator, in f32.

use std::collections::BTreeMap;

use triad_model::description::{Mixer, MixerWeight};
use triad_model::tensor_map::{BlockTensors, MixerTensor, RowsOfHeads, StoredAs, TensorSlice};
use triad_model::{Error, ErrorKind, Result};

use super::{Reader, Weight};

/// The weights of one mixer, in the shapes of [`Mixer::weights`].
pub type MixerWeights = BTreeMap<MixerWeight, Vec<f32>>;

/// Returns the bytes of a mixer's weights.
pub(super) fn bytes(weights: &MixerWeights) -> usize {
    weights
        .values()
        .map(|values| size_of_val(&values[..]))
        .sum()
}

impl Reader<'_> {
    pub(super) fn mixer(&self, mixer: &Mixer, tensors: &BlockTensors) -> Result<MixerWeights> {
        let read = |(weight, shape): (MixerWeight, Vec<usize>)| {
            let Some(MixerTensor { name, stored }) = tensors.mixer.get(&weight) else {
                let message = format!("no tensor for the mixer's {}", weight.name());
                return Err(Error::new(ErrorKind::Missing, message));
            };
            let slice = TensorSlice::whole(name);
            let mut values = match self.quantized(&slice) {
                Some(matrix) => matrix.to_f32(),
                None => self.vector(&slice)?,
            };
            match (stored, &shape[..]) {
                (StoredAs::Transposed, [rows, columns]) => {
                    let stored = std::mem::take(&mut values);
                    let row = |row: usize| (0..*columns).map(move |column| column * rows + row);
                    values = (0..*rows).flat_map(row).map(|at| stored[at]).collect();
                }
                (StoredAs::Logarithm, _) => {
                    values.iter_mut().for_each(|value| *value = -value.exp());
                }
                (StoredAs::RowsOfHeads(rows), &[_, outer, inner]) => {
                    values = rows_of_heads(rows, &values, (outer, inner));
                }
                (StoredAs::Itself | StoredAs::Transposed | StoredAs::RowsOfHeads(_), _) => {}
            }
            Ok((weight, values))
        };
        mixer.weights().into_iter().map(read).collect()
    }
}

/// Returns some rows of each head's matrix, each head as a matrix `[outer, inner]`.
fn rows_of_heads(rows: &RowsOfHeads, stored: &[f32], (outer, inner): (usize, usize)) -> Vec<f32> {
    let columns = if rows.transposed { outer } else { inner };
    let heads = stored.chunks_exact(rows.of_head * columns);
    let matrix = |head: &[f32]| {
        let own = &head[rows.first * columns..][..outer * inner];
        match rows.transposed {
            false => own.to_vec(),
            true => (0..outer)
                .flat_map(|row| (0..inner).map(move |column| own[column * outer + row]))
                .collect(),
        }
    };
    heads.flat_map(matrix).collect()
}

/// Returns weights that `matrix` makes at random, for numbers of rows and columns.
pub(super) fn random(
    mixer: &Mixer,
    matrix: &mut dyn FnMut(usize, usize) -> Weight,
) -> MixerWeights {
    let random = |(weight, shape): (MixerWeight, Vec<usize>)| {
        let (rows, columns) = (shape[1..].iter().product(), shape[0]);
        let mut values = vec![0.0; rows * columns];
        if let Weight::Float(matrix) = matrix(rows, columns) {
            matrix.rows_to_f32(0..rows, &mut values);
        }
        if weight == MixerWeight::Decay {
            // What has passed decays.
            values.iter_mut().for_each(|value| *value = -value.abs());
        }
        (weight, values)
    };
    mixer.weights().into_iter().map(random).collect()
}
