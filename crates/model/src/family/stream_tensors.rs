//! The tensors of several residual streams.

use super::tensors::Mapper;
use crate::description::{Norm, Streams};
use crate::error::Result;
use crate::tensor_map::{BlockStreamTensors, StreamTensors, TensorSlice};

impl Mapper<'_> {
    /// Returns the tensors of streams outside the blocks.
    pub(super) fn streams(&mut self) -> Result<Option<StreamTensors>> {
        let Some(Streams { count, .. }) = self.description.streams else {
            return Ok(None);
        };
        let [projections, outputs] = self.names.streams.shared;
        Ok(Some(StreamTensors {
            projections: self.of_other_streams(projections, count - 1)?,
            outputs: self.of_other_streams(outputs, count - 1)?,
        }))
    }

    /// Returns a square matrix for each stream but the first.
    fn of_other_streams(&mut self, name: &str, others: usize) -> Result<Vec<TensorSlice>> {
        let (hidden, root) = (self.description.hidden, self.root);
        if self.names.streams.stacked {
            let name = self.tensor(&format!("{root}{name}.weight"), &[others, hidden, hidden])?;
            let rows = |other: usize| other * hidden..(other + 1) * hidden;
            let slices = (0..others).map(|other| TensorSlice::of_rows(&name, rows(other)));
            return Ok(slices.collect());
        }
        let slices = (0..others)
            .map(|other| self.whole(&format!("{root}{name}.{other}.weight"), &[hidden; 2]));
        slices.collect()
    }

    /// Returns the tensors of streams of a block.
    pub(super) fn block_streams(
        &mut self,
        prefix: &str,
        norm: &Norm,
    ) -> Result<Option<BlockStreamTensors>> {
        let (hidden, names) = (self.description.hidden, self.names.streams);
        let Some(Streams {
            count,
            rank,
            scaled,
        }) = self.description.streams
        else {
            return Ok(None);
        };
        let name = |name: &str| format!("{prefix}{name}.weight");
        let scale = format!("{prefix}{}", names.scale);
        Ok(Some(BlockStreamTensors {
            router_norm: self.norm(&format!("{prefix}{}", names.router_norm), norm, hidden)?,
            router: self.whole(&name(names.router), &[count, hidden])?,
            prediction: self.whole(&name(names.prediction), &[count * count, count])?,
            correction: self.whole(&name(names.correction), &[count, count])?,
            scale: match scaled {
                true => Some(self.whole(&scale, &[hidden])?),
                // A file has it all the same.
                false => {
                    self.used.insert(scale);
                    None
                }
            },
            left: self.whole(&name(names.left), &[rank, hidden])?,
            right: self.whole(&name(names.right), &[hidden, rank])?,
            norm: self.norm(&format!("{prefix}{}", names.norm), norm, hidden)?,
        }))
    }
}
