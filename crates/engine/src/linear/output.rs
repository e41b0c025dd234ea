//! Outputs of the linear layers of a product.

use std::ops::Range;

use triad_kernels::OutputMut;
use triad_model::description::Linear;

/// Some output features of a linear layer, and their buffer.
pub struct LinearOutput<'a> {
    /// The layer.
    pub linear: Linear,
    /// The range of output features.
    pub columns: Range<usize>,
    /// `[rows, columns]`.
    pub out: OutputMut<'a>,
}

/// The maximum number of linear layers that read one input: those of a DeltaNet.
pub(crate) const MAX_READERS: usize = 4;

/// The task that computes the outlier correction of a subgraph's linear layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shadows {
    /// The same as the linear layers, together with them or after them.
    Inline,
    /// A separate task.
    Apart,
}
