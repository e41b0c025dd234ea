//! Dispatches of a chunk, as they are recorded.

use super::kernels::Kernel;

/// A dispatch of a chunk.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A step on all rows.
    Step(usize),
    /// A part of a product.
    Piece(PieceDispatch),
}

/// A dispatch with uniforms and bindings of its own.
#[derive(Clone, Debug)]
pub(super) struct PieceDispatch {
    pub kernel: Kernel,
    pub groups: [usize; 3],
    pub bindings: wgpu::BindGroup,
}
