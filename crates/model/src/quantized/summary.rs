//! Summaries of the quantized matrices of a checkpoint, and of how they are computed.

use std::fmt;

use super::{QuantizedTensor, Representation};

/// The matrices of a checkpoint with one scheme that are computed in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Name of the scheme.
    pub scheme: &'static str,
    /// The format of the computation.
    pub computed: Representation,
    /// Number of matrices.
    pub matrices: usize,
    /// Bytes of their stored tensors.
    pub stored_bytes: usize,
    /// Bytes in the format of the computation.
    pub bytes: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scheme,
            computed,
            matrices,
            ..
        } = self;
        let how = if computed.is_wide() {
            "widened to"
        } else {
            "as"
        };
        write!(formatter, "{matrices} of {scheme} {how} {computed}")
    }
}

/// Summarizes tensors by scheme and format of the computation. Without `as_stored` all of them are widened.
pub fn summary<'a>(
    tensors: impl Iterator<Item = &'a QuantizedTensor>,
    as_stored: bool,
) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for tensor in tensors {
        let computed = match as_stored {
            true => tensor.representation(),
            false => Representation::Float(tensor.float()),
        };
        let (scheme, stored_bytes) = (tensor.scheme, tensor.stored_bytes());
        let bytes = computed.bytes(tensor.shape);
        match summaries
            .iter_mut()
            .find(|summary| (summary.scheme, summary.computed) == (scheme, computed))
        {
            Some(summary) => {
                summary.matrices += 1;
                summary.stored_bytes += stored_bytes;
                summary.bytes += bytes;
            }
            None => summaries.push(Summary {
                scheme,
                computed,
                matrices: 1,
                stored_bytes,
                bytes,
            }),
        }
    }
    summaries
}
