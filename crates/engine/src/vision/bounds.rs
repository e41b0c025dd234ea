//! Bounds of the linear layers of an encoder: values of input and output beyond them become the nearest bound.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_model::description::Linear;
use triad_model::{Error, ErrorKind, Result};

use crate::linear::MAX_READERS;

/// Elements of one task.
const ELEMENTS: usize = 1 << 14;

/// The bounds of a linear layer, each the smallest and the largest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Bounds of the input.
    pub input: [f32; 2],
    /// Bounds of the output, with its bias.
    pub output: [f32; 2],
}

impl Bounds {
    /// Creates the bounds of `name`: those of the input, then those of the output.
    ///
    /// # Errors
    /// If one is not a number, or a smallest value is above the largest.
    pub(crate) fn new(numbers: [f32; 4], name: &str) -> Result<Self> {
        // Packages have finite numbers; no finite value is beyond these.
        let [low, high, least, most] = numbers.map(|bound| bound.clamp(f32::MIN, f32::MAX));
        match low <= high && least <= most {
            true => Ok(Self {
                input: [low, high],
                output: [least, most],
            }),
            false => Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "{name} of the encoder of pictures has the bounds {numbers:?}, expected two times a smallest and a \
                     largest value"
                ),
            )),
        }
    }

    /// Returns the numbers that [`Bounds::new`] takes.
    pub fn numbers(&self) -> [f32; 4] {
        [self.input[0], self.input[1], self.output[0], self.output[1]]
    }
}

/// Replaces values beyond bounds by the nearest one, if there are bounds, on the calling thread.
pub(super) fn clamp_row(x: &mut [f32], bounds: Option<[f32; 2]>) {
    if let Some([low, high]) = bounds {
        // What is not a number stays so.
        x.iter_mut().for_each(|x| {
            if *x < low {
                *x = low;
            } else if *x > high {
                *x = high;
            }
        });
    }
}

/// Replaces values as [`clamp_row`] does, on the installed threads.
pub(super) fn clamp_all(x: &mut [f32], bounds: Option<[f32; 2]>) {
    if bounds.is_some() {
        for_each_chunk(chunks_mut(x, ELEMENTS), 1, |_, x| clamp_row(x, bounds));
    }
}

/// Layers of a product whose inputs have the same bounds.
pub(super) type Group = (Option<[f32; 2]>, SmallVec<[Linear; MAX_READERS]>);

/// Returns the layers of a product by the bounds of their input, in order.
pub(super) fn groups(
    layers: &[Linear],
    bounds: &BTreeMap<Linear, Bounds>,
) -> SmallVec<[Group; MAX_READERS]> {
    let mut groups: SmallVec<[Group; MAX_READERS]> = SmallVec::new();
    for linear in layers {
        let input = bounds.get(linear).map(|bounds| bounds.input);
        match groups.iter_mut().find(|(other, _)| *other == input) {
            Some((_, members)) => members.push(*linear),
            None => groups.push((input, [*linear].into_iter().collect())),
        }
    }
    groups
}
