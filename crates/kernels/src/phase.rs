//! Which arithmetic computes a row.

/// The arithmetic of a row of activations in a product with a weight [`Matrix`](crate::Matrix).
///
/// It depends on this alone: a row's outputs have the same bits whether it is computed alone or beside any number of
/// others, and however rows are divided among calls. The two phases give different bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Of rows of a prompt, which are many: products accumulated in f32 in the order of the input features. With weights
    /// in INT8 and INT4, both are rounded to bf16 or INT16 where the processor multiplies one of these faster than f32; INT8
    /// is exact in bf16.
    #[default]
    Prefill,
    /// Of rows that a next token is chosen from, which are few: with weights in INT8 and INT4, activations are rounded to
    /// INT16, and sums of products are exact; with weights in float, scalar products.
    Decode,
}
