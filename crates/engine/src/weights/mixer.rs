//! The weights of a mixer's operator, in f32.

use std::collections::BTreeMap;

use triad_model::description::{Mixer, MixerWeight};
use triad_model::tensor_map::{BlockTensors, MixerTensor, StoredAs, TensorSlice};
use triad_model::{Error, ErrorKind, Result};

use super::{Reader, Weight};

/// The weights of one mixer, in the shapes of [`Mixer::weights`].
pub type MixerWeights = BTreeMap<MixerWeight, Vec<f32>>;

impl Reader<'_> {
    pub(super) fn mixer(&self, mixer: &Mixer, tensors: &BlockTensors) -> Result<MixerWeights> {
        let read = |(weight, shape): (MixerWeight, Vec<usize>)| {
            let Some(MixerTensor { name, stored }) = tensors.mixer.get(&weight) else {
                let message = format!("no tensor for the mixer's {}", weight.name());
                return Err(Error::new(ErrorKind::Missing, message));
            };
            let mut values = self.vector(&TensorSlice::whole(name))?;
            match (stored, &shape[..]) {
                (StoredAs::Transposed, [rows, columns]) => {
                    let stored = std::mem::take(&mut values);
                    let row = |row: usize| (0..*columns).map(move |column| column * rows + row);
                    values = (0..*rows).flat_map(row).map(|at| stored[at]).collect();
                }
                (StoredAs::Logarithm, _) => {
                    values.iter_mut().for_each(|value| *value = -value.exp());
                }
                (StoredAs::Itself | StoredAs::Transposed, _) => {}
            }
            Ok((weight, values))
        };
        mixer.weights().into_iter().map(read).collect()
    }
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
