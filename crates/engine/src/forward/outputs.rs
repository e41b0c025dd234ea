//! The places of the outputs of linear layers.

use std::ops::Range;

use triad_kernels::lease::PartLease;
use triad_model::description::Linear;

use super::Buffers;
use super::subgraphs::{Chunk, ForwardContext};

impl ForwardContext<'_> {
    /// Leases some columns of the outputs of a linear layer, of the given number, for writing.
    pub(super) fn outputs<'b>(
        &self,
        layer: (usize, Linear),
        columns: (usize, Range<usize>),
        chunk: Chunk<'b>,
    ) -> PartLease<'b> {
        self.outputs_of_rows(layer, columns, 0..chunk.rows(), chunk.buffers)
    }

    /// Leases some rows as [`ForwardContext::outputs`] does. Layers of a mixer with a state share its rows.
    pub(super) fn outputs_of_rows<'b>(
        &self,
        (index, linear): (usize, Linear),
        (features, columns): (usize, Range<usize>),
        rows: Range<usize>,
        buffers: &'b Buffers,
    ) -> PartLease<'b> {
        let mixer = &self.description.blocks[index].mixer;
        let (width, first) = match (mixer.columns(linear), mixer.state()) {
            (Some(of_row), Some(size)) => (size.row, of_row.start),
            _ => (features, 0),
        };
        let columns = first + columns.start..first + columns.end;
        buffers.output(linear).write_part(width, rows, columns)
    }
}
