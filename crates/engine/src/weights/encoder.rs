//! The weights that only encoders have, and the layers after pooling.

use triad_model::Result;
use triad_model::description::{Dense, ModelDescription};
use triad_model::tensor_map::TensorMap;

use super::{Embedding, Linear, Norm, Reader, WeightMatrix};

/// Learned embeddings next to that of the token, and the layers after pooling. None of them is quantized.
#[derive(Clone, Default)]
pub struct EncoderWeights {
    /// Positions `[rows, hidden]`.
    pub positions: Option<Embedding>,
    /// Token types `[types, hidden]`.
    pub token_types: Option<Embedding>,
    /// The layers after pooling.
    pub head: Vec<DenseWeights>,
}

/// The weights of a layer after pooling.
#[derive(Clone)]
pub struct DenseWeights {
    /// The layer.
    pub linear: Linear,
    /// The norm after it.
    pub norm: Option<Norm>,
}

impl EncoderWeights {
    /// Returns the tables of learned embeddings.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Embedding> {
        self.positions.iter().chain(&self.token_types)
    }

    /// Returns the bytes of the matrices.
    pub(super) fn bytes(&self) -> usize {
        let head = self.head.iter().map(|layer| layer.linear.weight.bytes());
        self.tables().map(Embedding::bytes).sum::<usize>() + head.sum::<usize>()
    }
}

impl Reader<'_> {
    pub(super) fn encoder(
        &self,
        description: &ModelDescription,
        map: &TensorMap,
    ) -> Result<EncoderWeights> {
        let tables = &map.added_inputs;
        let [positions, token_types] = [&tables.positions, &tables.token_types].map(|table| {
            let table = table.as_ref().map(|table| self.rows(table));
            table.transpose()
        });
        let layers = description.head.iter().flat_map(|head| &head.layers);
        let head = map.head.iter().zip(layers).map(|(tensors, layer)| {
            let Dense {
                in_features,
                out_features,
                norm,
                ..
            } = *layer;
            let norm = tensors.norm.as_ref().zip(norm);
            let norm = norm.map(|(tensors, norm)| self.norm(tensors, &norm));
            Ok(DenseWeights {
                linear: self.linear(&tensors.linear, out_features, in_features)?,
                norm: norm.transpose()?,
            })
        });
        Ok(EncoderWeights {
            positions: positions?,
            token_types: token_types?,
            head: head.collect::<Result<_>>()?,
        })
    }
}

/// Returns weights that `float` and `linear` make at random, for numbers of rows and columns.
pub(super) fn random(
    description: &ModelDescription,
    float: &mut dyn FnMut(usize, usize) -> WeightMatrix,
    linear: &mut dyn FnMut(usize, usize, bool) -> Linear,
) -> EncoderWeights {
    let inputs = &description.added_inputs;
    let mut table =
        |rows: usize| (rows > 0).then(|| Embedding::Matrix(float(rows, description.hidden)));
    let layers = description.head.iter().flat_map(|head| &head.layers);
    EncoderWeights {
        positions: table(inputs.positions.map_or(0, |positions| positions.rows)),
        token_types: table(inputs.token_types),
        head: layers
            .map(|layer| DenseWeights {
                linear: linear(layer.out_features, layer.in_features, layer.bias),
                norm: layer
                    .norm
                    .map(|norm| Norm::of_ones(&norm, layer.out_features)),
            })
            .collect(),
    }
}
