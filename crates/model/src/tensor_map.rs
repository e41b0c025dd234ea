//! The role of each stored tensor: the second result of [`crate::family`], next to the description.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::description::{Linear, MixerWeight};

/// A stored tensor, or a part of it where a file keeps several in one tensor (Phi-3's query, key and value).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    /// Name in the file.
    pub name: String,
    /// The part of the tensor as a matrix, whose columns are its last dimension; `None`: all of it.
    pub part: Option<Part>,
}

impl TensorSlice {
    /// Returns the whole of a tensor.
    pub fn whole(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, part: None }
    }

    /// Returns consecutive rows of a tensor.
    pub fn of_rows(name: impl Into<String>, rows: Range<usize>) -> Self {
        let (name, part) = (name.into(), Some(Part::Rows(rows.into())));
        Self { name, part }
    }

    /// Returns its number of rows if the tensor has `rows` rows.
    pub fn rows(&self, rows: usize) -> usize {
        match &self.part {
            None => rows,
            Some(Part::Rows(runs) | Part::Columns { columns: runs, .. }) => runs.len(),
        }
    }
}

/// A part of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Some rows.
    Rows(Runs),
    /// Some columns of consecutive rows, each of which is a row of the part: a matrix that a file has transposed.
    Columns {
        /// The rows.
        rows: Range<usize>,
        /// The columns.
        columns: Runs,
    },
}

/// Some rows or columns, in the order of their runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs(Vec<Run>);

/// Rows or columns at equal distances: `count` times `length` consecutive ones, of which the first is `first` and each
/// next time begins `period` later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first row or column.
    pub first: usize,
    /// Consecutive rows or columns, at most `period`.
    pub length: usize,
    /// The distance from the beginning of some to that of the next.
    pub period: usize,
    /// How often they come.
    pub count: usize,
}

impl Run {
    /// Returns the same `distance` rows or columns later.
    pub fn after(self, distance: usize) -> Self {
        let first = self.first + distance;
        Self { first, ..self }
    }
}

impl Runs {
    /// Returns the number of rows or columns.
    pub fn len(&self) -> usize {
        self.0.iter().map(|run| run.length * run.count).sum()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ranges of consecutive rows or columns.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().flat_map(|run| {
            let first = |time: usize| run.first + time * run.period;
            (0..run.count).map(move |time| first(time)..first(time) + run.length)
        })
    }

    /// Returns all of them as one range, if they are consecutive.
    pub fn as_range(&self) -> Option<Range<usize>> {
        let mut ranges = self.ranges();
        let first = ranges.next()?;
        ranges.try_fold(first, |before, next| {
            (before.end == next.start).then_some(before.start..next.end)
        })
    }

    /// Returns the ranges of the rows or columns that are at these places among them.
    pub fn at(&self, places: Range<usize>) -> Vec<Range<usize>> {
        let (mut ranges, mut before) = (Vec::new(), 0);
        for range in self.ranges() {
            let from = places.start.max(before);
            let to = places.end.min(before + range.len());
            if from < to {
                ranges.push(range.start + from - before..range.start + to - before);
            }
            before += range.len();
            if before >= places.end {
                break;
            }
        }
        ranges
    }
}

impl From<Range<usize>> for Runs {
    fn from(range: Range<usize>) -> Self {
        Self(vec![Run {
            first: range.start,
            length: range.len(),
            period: range.len(),
            count: 1,
        }])
    }
}

impl<const N: usize> From<[Run; N]> for Runs {
    fn from(runs: [Run; N]) -> Self {
        Self(runs.to_vec())
    }
}

/// Returns the rows of a tensor as a matrix, whose columns are its last dimension; those of a vector have one column.
pub fn rows_of(shape: &[usize]) -> usize {
    match shape {
        [length] => *length,
        [outer @ .., _] => outer.iter().product(),
        [] => 1,
    }
}

/// Weight `[out_features, in_features]` and bias `[out_features]` of one linear layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearTensors {
    /// The weight.
    pub weight: TensorSlice,
    /// The bias; present exactly if the description has one.
    pub bias: Option<TensorSlice>,
}

/// The tensors of a layer after pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTensors {
    /// The layer.
    pub linear: LinearTensors,
    /// The norm after it; present exactly if the description has one.
    pub norm: Option<NormTensors>,
}

/// Weight and bias of one norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormTensors {
    /// The weight's name in the file.
    pub weight: String,
    /// The bias's name in the file; present exactly for a layer norm with a bias.
    pub bias: Option<String>,
}

/// A weight of a mixer's operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixerTensor {
    /// Name in the file.
    pub name: String,
    /// How the file has it.
    pub stored: StoredAs,
}

/// How a file has a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// As it is.
    Itself,
    /// With its two dimensions in the other order.
    Transposed,
    /// As the logarithm of its negative.
    Logarithm,
    /// In some rows of each head.
    RowsOfHeads(RowsOfHeads),
}

/// The rows of a weight in a matrix that has several weights of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsOfHeads {
    /// The rows of a head.
    pub of_head: usize,
    /// The first of those of the weight.
    pub first: usize,
    /// Whether the weight has them as columns.
    pub transposed: bool,
}

/// The tensors that choose among experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterTensors {
    /// Weight `[experts, hidden]`, and its bias.
    pub linear: LinearTensors,
    /// Summands of the scores for the choice, `[experts]`.
    pub correction: Option<TensorSlice>,
    /// Weight of the shared expert's gate, `[1, hidden]` or `[hidden]`.
    pub shared_gate: Option<TensorSlice>,
    /// The tensors of experts that are a branch next to the dense layers.
    pub branch: Option<BranchTensors>,
}

/// The tensors of experts that are a branch next to dense layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchTensors {
    /// Factors of the channels that the router reads, `[hidden]`.
    pub channels: TensorSlice,
    /// Factors on the weights of the experts, `[experts]`.
    pub factors: TensorSlice,
    /// Norm on the output of the dense layers.
    pub dense_norm: NormTensors,
    /// Norm before the experts.
    pub norm: NormTensors,
    /// Norm on the sum of the experts.
    pub post_norm: NormTensors,
}

/// The tensors of the inputs by token outside the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInputsTensors {
    /// Table `[rows, blocks · width]`.
    pub table: TensorSlice,
    /// Projection of the embedding `[blocks · width, hidden]`.
    pub projection: TensorSlice,
    /// Norm of each projection.
    pub norm: NormTensors,
}

/// The tensors of several residual streams outside the blocks: one for each stream but the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTensors {
    /// Projections of the embedding `[hidden, hidden]`.
    pub projections: Vec<TensorSlice>,
    /// Outputs `[hidden, hidden]`.
    pub outputs: Vec<TensorSlice>,
}

/// The tensors of several residual streams of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStreamTensors {
    /// Norm of the router's input.
    pub router_norm: NormTensors,
    /// Router `[streams, hidden]`.
    pub router: TensorSlice,
    /// Prediction `[streams · streams, streams]`.
    pub prediction: TensorSlice,
    /// Correction `[streams, streams]`.
    pub correction: TensorSlice,
    /// Factors on what the gate of the input by token reads, `[hidden]`.
    pub scale: Option<TensorSlice>,
    /// The first layer next to attention, `[rank, hidden]`.
    pub left: TensorSlice,
    /// The second layer next to attention, `[hidden, rank]`.
    pub right: TensorSlice,
    /// Norm of its output.
    pub norm: NormTensors,
}

/// The tables of learned embeddings that are added to that of the token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddedInputsTensors {
    /// Positions `[rows, hidden]`.
    pub positions: Option<TensorSlice>,
    /// Token types `[types, hidden]`.
    pub token_types: Option<TensorSlice>,
}

/// The tensors of a block that add its input by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInputTensors {
    /// Gate `[width, hidden]`.
    pub gate: TensorSlice,
    /// Output `[hidden, width]`.
    pub output: TensorSlice,
    /// Norm of the output.
    pub norm: NormTensors,
}

/// The tensors of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTensors {
    /// Norm before attention; with a parallel residual, also before the feed-forward.
    pub attention_norm: Option<NormTensors>,
    /// Norm on attention's output.
    pub attention_post_norm: Option<NormTensors>,
    /// Norm before the feed-forward.
    pub feed_forward_norm: Option<NormTensors>,
    /// Norm on the feed-forward's output.
    pub feed_forward_post_norm: Option<NormTensors>,
    /// Norm on queries, of the first width of [`crate::description::Attention::qk_norm_widths`].
    pub query_norm: Option<NormTensors>,
    /// Norm on keys, of the second width.
    pub key_norm: Option<NormTensors>,
    /// The choice of experts, if the block has them.
    pub router: Option<RouterTensors>,
    /// One entry for each of [`crate::description::BlockDescription::linears`].
    pub linears: BTreeMap<Linear, LinearTensors>,
    /// One entry for each of [`crate::description::Mixer::weights`].
    pub mixer: BTreeMap<MixerWeight, MixerTensor>,
    /// The input by token, if the model has them.
    pub token_input: Option<TokenInputTensors>,
    /// Several residual streams, if the model has them.
    pub streams: Option<BlockStreamTensors>,
    /// The factor on the residual stream after the block, one number.
    pub scale: Option<TensorSlice>,
}

/// The tensors of the head that predicts one more token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MtpTensors {
    /// The block.
    pub block: BlockTensors,
    /// Norm of the next token's embedding.
    pub embedding_norm: NormTensors,
    /// Norm of the hidden state.
    pub state_norm: NormTensors,
    /// Projection `[hidden, 2 · hidden]` of the embedding and, after it, the state.
    pub projection: TensorSlice,
    /// Norm before the output matrix, which is that of the model.
    pub output_norm: NormTensors,
}

/// The tensors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Embedding `[vocab, hidden]`.
    pub embedding: TensorSlice,
    /// The blocks, first to last.
    pub blocks: Vec<BlockTensors>,
    /// Norm between the last block and the output matrix.
    pub output_norm: NormTensors,
    /// Output matrix `[vocab, hidden]`; the embedding itself if tied.
    pub output: LinearTensors,
    /// The inputs of blocks by token.
    pub token_inputs: Option<TokenInputsTensors>,
    /// Several residual streams.
    pub streams: Option<StreamTensors>,
    /// Learned embeddings of positions and token types.
    pub added_inputs: AddedInputsTensors,
    /// The layers after pooling.
    pub head: Vec<DenseTensors>,
    /// Names of tensors that the model does not use, such as those for images, but for those that predict more tokens.
    pub unused: Vec<String>,
    /// The head that predicts one more token; present exactly if the description has one.
    pub mtp: Option<Box<MtpTensors>>,
    /// The reason why the head of the file is not used, if it has one that is not.
    pub mtp_refused: Option<String>,
    /// Names of tensors that predict more than one token (MTP) and are not a part of a head that is used.
    pub more_tokens: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_give_the_rows_in_order() {
        let run = Run {
            first: 1,
            length: 2,
            period: 5,
            count: 3,
        };
        let runs = Runs::from([run, run.after(20)]);
        assert_eq!(runs.len(), 12);
        let rows: Vec<_> = runs.ranges().flatten().collect();
        assert_eq!(rows, [1, 2, 6, 7, 11, 12, 21, 22, 26, 27, 31, 32]);
        assert_eq!(runs.as_range(), None);
        assert_eq!(runs.at(1..7), [2..3, 6..8, 11..13, 21..22]);
        let dense = Run { period: 2, ..run };
        assert_eq!(Runs::from([dense]).as_range(), Some(1..7));
        assert_eq!(Runs::from(3..9).as_range(), Some(3..9));
    }

    #[test]
    fn numbers_of_a_vector_are_its_rows() {
        assert_eq!(rows_of(&[7]), 7);
        assert_eq!(rows_of(&[3, 5, 7]), 15);
    }
}
