//! The weights of several residual streams. None of them is quantized: they stay as they are stored.

use triad_model::Result;
use triad_model::description::{
    BlockDescription, ModelDescription, Norm as NormDescription, Streams as Described,
};
use triad_model::tensor_map::{BlockStreamTensors, StreamTensors, TensorSlice};

use super::{Norm, Reader, WeightMatrix};

/// The weights of streams outside the blocks: one for each stream but the first.
#[derive(Clone)]
pub struct Streams {
    /// Projections of the embedding `[hidden, hidden]`.
    pub projections: Vec<WeightMatrix>,
    /// Outputs `[hidden, hidden]`.
    pub outputs: Vec<WeightMatrix>,
}

/// The weights of streams of a block.
#[derive(Clone)]
pub struct BlockStreams {
    /// Norm of the router's input.
    pub router_norm: Norm,
    /// `[streams, hidden]`.
    pub router: WeightMatrix,
    /// `[streams, streams, streams]`: of each stream, then of each stream that it is predicted from, then of each route.
    pub prediction: Vec<f32>,
    /// `[streams, streams]`: of each stream, then of each route.
    pub correction: Vec<f32>,
    /// Factors on what the gate of the input by token reads, `[hidden]`.
    pub scale: Option<Vec<f32>>,
    /// The first layer next to attention, `[rank, hidden]`.
    pub left: WeightMatrix,
    /// The second layer next to attention, `[hidden, rank]`.
    pub right: WeightMatrix,
    /// Norm of its output.
    pub norm: Norm,
}

impl Streams {
    /// Returns all matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &WeightMatrix> {
        self.projections.iter().chain(&self.outputs)
    }

    /// Returns the bytes of the matrices.
    pub(super) fn bytes(&self) -> usize {
        self.matrices().map(WeightMatrix::bytes).sum()
    }
}

impl BlockStreams {
    /// Returns the matrices.
    pub fn matrices(&self) -> [&WeightMatrix; 3] {
        [&self.router, &self.left, &self.right]
    }

    /// Returns the bytes of the matrices.
    pub fn bytes(&self) -> usize {
        self.matrices().into_iter().map(WeightMatrix::bytes).sum()
    }
}

impl Reader<'_> {
    pub(super) fn streams(
        &self,
        hidden: usize,
        tensors: Option<&StreamTensors>,
    ) -> Result<Option<Streams>> {
        let Some(tensors) = tensors else {
            return Ok(None);
        };
        let read = |slices: &[TensorSlice]| {
            let matrices = slices
                .iter()
                .map(|slice| self.matrix(slice, hidden, hidden));
            matrices.collect::<Result<Vec<_>>>()
        };
        Ok(Some(Streams {
            projections: read(&tensors.projections)?,
            outputs: read(&tensors.outputs)?,
        }))
    }

    pub(super) fn block_streams(
        &self,
        model: &ModelDescription,
        block: &BlockDescription,
        tensors: Option<&BlockStreamTensors>,
    ) -> Result<Option<BlockStreams>> {
        let (Some(described), Some(tensors)) = (model.streams, tensors) else {
            return Ok(None);
        };
        let (hidden, norm) = (model.hidden, &block.norm);
        let Described { count, rank, .. } = described;
        let scale = tensors.scale.as_ref().map(|scale| self.vector(scale));
        Ok(Some(BlockStreams {
            router_norm: self.norm(&tensors.router_norm, norm)?,
            router: self.matrix(&tensors.router, count, hidden)?,
            prediction: self.vector(&tensors.prediction)?,
            correction: self.vector(&tensors.correction)?,
            scale: scale.transpose()?,
            left: self.matrix(&tensors.left, rank, hidden)?,
            right: self.matrix(&tensors.right, hidden, rank)?,
            norm: self.norm(&tensors.norm, norm)?,
        }))
    }
}

/// Returns weights that `float` makes at random, for numbers of rows and columns.
pub(super) fn random(
    description: &ModelDescription,
    float: &mut dyn FnMut(usize, usize) -> WeightMatrix,
) -> Option<Streams> {
    let (described, hidden) = (description.streams?, description.hidden);
    let mut others = || {
        (1..described.count)
            .map(|_| float(hidden, hidden))
            .collect()
    };
    Some(Streams {
        projections: others(),
        outputs: others(),
    })
}

/// Returns the weights of a block as [`random`] does.
pub(super) fn random_of_block(
    description: &ModelDescription,
    block: &BlockDescription,
    float: &mut dyn FnMut(usize, usize) -> WeightMatrix,
    norm: impl Fn(&NormDescription, usize) -> Norm,
) -> Option<BlockStreams> {
    let (described, hidden) = (description.streams?, description.hidden);
    let Described {
        count,
        rank,
        scaled,
    } = described;
    Some(BlockStreams {
        router_norm: norm(&block.norm, hidden),
        router: float(count, hidden),
        prediction: float(count * count, count).to_f32(),
        correction: float(count, count).to_f32(),
        // Other than 1, so that it matters.
        scale: scaled.then(|| vec![0.75; hidden]),
        left: float(rank, hidden),
        right: float(hidden, rank),
        norm: norm(&block.norm, hidden),
    })
}
