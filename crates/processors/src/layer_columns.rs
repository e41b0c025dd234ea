//! A layer that is a range of another layer's output channels.

use std::ops::Range;
use std::sync::Arc;

use triad_kernels::int8::Int8Weight;

use crate::error::{Error, Result};
use crate::subgraph::Layer;

/// A range of a layer's output channels, whose weights are read in place. When a linear layer is split among several
/// devices, each device computes such a range. Its outputs have the same bits as these columns of the whole layer.
#[derive(Clone)]
pub struct LayerColumns {
    layer: Arc<dyn Layer>,
    columns: Range<usize>,
}

impl LayerColumns {
    /// Channels that are packed together in memory. A range starts and ends at a multiple of it, or at the last
    /// channel.
    pub const BLOCK: usize = Int8Weight::COLUMNS;

    /// Returns the output channels `columns` of `layer`.
    ///
    /// # Errors
    /// If the layer has no such channels, or the range ends within a block.
    pub fn new(layer: Arc<dyn Layer>, columns: Range<usize>) -> Result<Self> {
        let all = layer.weight().out_features;
        let whole = |at: usize| at == all || at.is_multiple_of(Self::BLOCK);
        if columns.start < columns.end
            && columns.end <= all
            && whole(columns.start)
            && whole(columns.end)
        {
            return Ok(Self { layer, columns });
        }
        Err(Error::Subgraph {
            part: "range of a layer's output channels".to_owned(),
            found: format!("{columns:?}"),
            expected: format!("multiples of {} or the end, up to {all}", Self::BLOCK),
        })
    }
}

impl Layer for LayerColumns {
    fn weight(&self) -> Int8Weight<'_> {
        self.layer.weight().columns(self.columns.clone())
    }

    fn bias(&self) -> Option<&[f32]> {
        self.layer.bias().map(|bias| &bias[self.columns.clone()])
    }
}
