//! The arithmetic of a row.

/// The arithmetic of a row of activations in a product with a weight [`Matrix`](crate::Matrix).
///
/// The arithmetic depends only on the phase: a row's outputs have the same bits whatever other rows are in the batch,
/// and however rows are divided among calls. The two phases give different bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Rows of a prompt, which are many: products are accumulated in f32 in the order of the input features. With
    /// weights in INT8 and INT4, activations and weights are rounded to bf16 or INT16 if the processor multiplies one
    /// of these faster than f32; bf16 represents INT8 exactly.
    #[default]
    Prefill,
    /// Rows from which the next token is sampled, which are few. With weights in INT8 and INT4, activations are rounded
    /// to INT16, and sums of products are exact; with weights in float, each output is a scalar product.
    Decode,
}
