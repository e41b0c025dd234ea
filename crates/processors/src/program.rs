//! Subgraphs that devices have prepared.

use triad_kernels::OutputMut;
use triad_kernels::int8::QuantizedView;

use crate::error::Result;

/// A subgraph that is ready to run on one device. It owns everything that it needs, including weights and scratch
/// memory, so that it may outlive the device that prepared it.
pub trait Program: Send {
    /// Computes the subgraph on `input` `[rows, in_features]`, which is quantized with the subgraph's static scale.
    /// `outputs` are those that [`DeviceSubgraph::outputs`](crate::DeviceSubgraph::outputs) lists, each `[rows, features]`, with any stride between
    /// rows. A NaN scale marks an input row with an activation that is not finite; that row of all outputs becomes NaN.
    ///
    /// # Errors
    /// If the shapes of input or outputs are not those of the program, or the device fails.
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()>;
}
