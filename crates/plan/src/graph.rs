//! Subgraphs of a model, chunks of a prompt, and tasks: one subgraph on one chunk.
//!
//! Blocks are cut where the number format changes. The shapes of *static* subgraphs depend on the chunk length alone,
//! so they are built once for all chunks. *Dynamic* subgraphs, which are attention, also depend on the chunk's
//! position.

use std::ops::Range;

use serde::Serialize;
use triad_model::description::{BlockDescription, LinearShape, ModelDescription, Residual};
pub use triad_model::role::{Format, Role};

/// Bytes per number in f32 and INT8.
const F32: usize = 4;
const INT8: usize = 1;

/// A sequence of operators of one block that stays on one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Subgraph {
    /// Index of the block.
    pub block: usize,
    /// The part of the block.
    pub role: Role,
    /// Bytes of weights: linear layers in INT8, with scales, sums and biases of four bytes each; norms in f32.
    pub weight_bytes: usize,
    /// Bytes of inputs, outputs and intermediate results per row. Attention reads the cache block by block and stores
    /// no scores.
    pub activation_bytes_per_row: usize,
    /// Number of these values, in any format.
    pub activation_numbers_per_row: usize,
    /// Output features: the sum of query, key and value (or of another mixer's inputs), or of gate and up.
    pub output_columns: usize,
    /// Multiplications and additions of linear layers per row.
    operations_per_row: u64,
    /// Width of all query heads; 0 for subgraphs other than attention. The operations of other mixers' operators are few,
    /// and are not counted.
    attention_width: usize,
    /// Maximum number of positions that attention sees.
    window: Option<usize>,
}

impl Subgraph {
    fn new(index: usize, role: Role, block: &BlockDescription, hidden: usize) -> Self {
        let linears: Vec<_> = block
            .linears(hidden)
            .into_iter()
            .filter(|shape| role.has(shape.linear))
            .collect();
        let bytes = |shape: &LinearShape| {
            let scale_sum_and_bias = if shape.bias { 3 } else { 2 };
            shape.out_features * (shape.in_features * INT8 + scale_sum_and_bias * F32)
        };
        let operations = |shape: &LinearShape| 2 * (shape.out_features * shape.in_features) as u64;
        let attention = block.attention();
        let outputs_of = |role: Role| -> usize {
            let linears = block.linears(hidden).into_iter();
            let outputs = linears.filter(|shape| role.has(shape.linear));
            outputs.map(|shape| shape.out_features).sum()
        };
        let (inputs, mixed) = (outputs_of(Role::QueryKeyValue), block.mixer.width());
        let width = block.feed_forward.width;
        let norm = block.norm.parameters(hidden);
        // If the output of a half is normalized, too, that norm belongs to the residual addition that follows.
        let residual = block.residual;
        let norms = match role {
            Role::AttentionNorm => [residual.has_attention_norm(), residual.has_post_norms()],
            Role::FeedForwardNorm => [residual.has_feed_forward_norm(), residual.has_post_norms()],
            _ => [false; 2],
        };
        let norms = norms.into_iter().filter(|exists| *exists).count();
        let qk_norm = if role == Role::Attention {
            let widths = block.qk_norms().into_iter().flatten();
            widths.map(|(_, width)| width).sum()
        } else {
            0
        };
        let inner = if block.feed_forward.gated {
            2 * width
        } else {
            width
        };
        // Number of f32 values and of quantized values.
        let (floats, quantized) = match role {
            // Two summands and their sum. The first block has only the embedding.
            Role::AttentionNorm if index == 0 => (hidden, hidden),
            Role::AttentionNorm => (3 * hidden, hidden),
            Role::QueryKeyValue => (inputs, hidden),
            Role::Attention => (inputs, mixed),
            Role::AttentionOutput => (hidden, mixed),
            Role::FeedForwardNorm if block.residual == Residual::Parallel => (3 * hidden, 0),
            Role::FeedForwardNorm => (3 * hidden, hidden),
            Role::FeedForward => (inner + hidden, hidden + width),
            Role::GateUp => (inner, hidden),
            Role::Activation => (inner, width),
            Role::Down => (hidden, width),
        };
        let output_columns = match role {
            Role::QueryKeyValue => inputs,
            Role::Attention => mixed,
            Role::GateUp => inner,
            Role::Activation => width,
            Role::AttentionNorm
            | Role::AttentionOutput
            | Role::FeedForwardNorm
            | Role::FeedForward
            | Role::Down => hidden,
        };
        let attention = attention.filter(|_| role == Role::Attention);
        Self {
            block: index,
            role,
            weight_bytes: linears.iter().map(bytes).sum::<usize>() + (norms * norm + qk_norm) * F32,
            activation_bytes_per_row: floats * F32 + quantized * INT8,
            activation_numbers_per_row: floats + quantized,
            output_columns,
            operations_per_row: linears.iter().map(operations).sum(),
            attention_width: attention.map_or(0, |_| mixed),
            window: attention.and_then(|attention| attention.window),
        }
    }

    /// Returns the multiplications and additions of the linear layers and of attention's two matrix products, on `rows`
    /// tokens that follow `before` others. Norms and activations are not counted. A processor with static shapes pads a
    /// shorter chunk; the padding is not counted.
    pub fn operations(&self, rows: usize, before: usize) -> u128 {
        // Sum of the positions that each of the first `tokens` tokens sees: all so far, up to the window.
        let all_seen = |tokens: usize| {
            let tokens = tokens as u128;
            match self.window.map(|window| window as u128) {
                Some(window) if tokens > window => {
                    window * (window + 1) / 2 + (tokens - window) * window
                }
                _ => tokens * (tokens + 1) / 2,
            }
        };
        let positions = all_seen(before + rows) - all_seen(before);
        u128::from(self.operations_per_row) * rows as u128
            + 4 * self.attention_width as u128 * positions
    }

    /// Returns the bytes of the built graph for `rows` tokens: weights and buffers, without keys and values.
    pub fn graph_bytes(&self, rows: usize) -> usize {
        self.weight_bytes + self.activation_bytes_per_row * rows
    }

    /// Returns the properties that two subgraphs must share to use one graph with weights as an input.
    fn shape(&self) -> impl Eq + std::hash::Hash {
        // The norm of the first block has no residual. A zero input can replace it.
        let activations = if self.role == Role::AttentionNorm {
            0
        } else {
            self.activation_bytes_per_row
        };
        (
            self.role,
            self.weight_bytes,
            activations,
            self.operations_per_row,
            self.attention_width,
            self.window,
        )
    }
}

/// A task: one subgraph on one chunk, or a [part](crate::schedule::parts::Part) of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Task {
    /// Index of the chunk.
    pub chunk: usize,
    /// Index of the subgraph, over all blocks.
    pub subgraph: usize,
    /// Number of the part; 0 if the output is not cut.
    pub part: usize,
}

/// Bytes of built graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GraphMemory {
    /// Bytes of all subgraphs for one chunk.
    pub one_chunk_bytes: usize,
    /// Bytes with separate graphs for each chunk.
    pub separate_bytes: usize,
    /// Bytes with static subgraphs built once for all chunks.
    pub shared_bytes: usize,
}

impl GraphMemory {
    /// Returns the fraction of the memory that sharing saves.
    pub fn saved(&self) -> f64 {
        1.0 - self.shared_bytes as f64 / self.separate_bytes.max(1) as f64
    }
}

/// A prefill: subgraphs and chunks.
#[derive(Clone, Debug)]
pub struct Graph {
    subgraphs: Vec<Subgraph>,
    chunks: Vec<Range<usize>>,
    chunk: usize,
}

impl Graph {
    /// Creates a graph of a prompt of `prompt` tokens in chunks of `chunk` tokens. The last chunk may be shorter.
    ///
    /// # Panics
    /// If the prompt or a chunk is empty.
    pub fn new(description: &ModelDescription, prompt: usize, chunk: usize) -> Self {
        Self::with_splits(description, prompt, chunk, |_| false)
    }

    /// Creates a graph as [`Graph::new`] does. The feed-forward of each block with `is_split(block)` is three
    /// subgraphs.
    ///
    /// # Panics
    /// If the prompt or a chunk is empty.
    pub fn with_splits(
        description: &ModelDescription,
        prompt: usize,
        chunk: usize,
        is_split: impl Fn(usize) -> bool,
    ) -> Self {
        assert!(
            prompt > 0 && chunk > 0,
            "a prompt of {prompt} tokens in chunks of {chunk}"
        );
        let is_split = &is_split;
        let of_block = |(index, block): (usize, &BlockDescription)| {
            let hidden = description.hidden;
            Role::of_block(is_split(index))
                .map(move |role| Subgraph::new(index, role, block, hidden))
                .collect::<Vec<_>>()
        };
        let subgraphs = description
            .blocks
            .iter()
            .enumerate()
            .flat_map(of_block)
            .collect();
        let chunks = (0..prompt)
            .step_by(chunk)
            .map(|start| start..start.saturating_add(chunk).min(prompt))
            .collect();
        Self {
            subgraphs,
            chunks,
            chunk,
        }
    }

    /// Returns the subgraphs of all blocks in the order in which a chunk passes through them.
    pub fn subgraphs(&self) -> &[Subgraph] {
        &self.subgraphs
    }

    /// Returns the token range of each chunk.
    pub fn chunks(&self) -> &[Range<usize>] {
        &self.chunks
    }

    /// Returns the number of tokens for which static graphs are built.
    pub fn chunk_length(&self) -> usize {
        self.chunk
    }

    /// Returns the number of subgraphs that all chunks share.
    pub fn static_subgraphs(&self) -> usize {
        self.subgraphs
            .iter()
            .filter(|subgraph| subgraph.role.is_static())
            .count()
    }

    /// Returns the number of graphs to build if blocks that differ only in their weights share graphs: the distinct
    /// static subgraphs, and the distinct dynamic ones for each chunk.
    pub fn distinct_graphs(&self) -> usize {
        let distinct = |is_static: bool| {
            let of_kind = self
                .subgraphs
                .iter()
                .filter(|subgraph| subgraph.role.is_static() == is_static);
            of_kind
                .map(Subgraph::shape)
                .collect::<std::collections::HashSet<_>>()
                .len()
        };
        distinct(true) + distinct(false) * self.chunks.len()
    }

    /// Iterates over all tasks without cuts, ordered by chunk and then by subgraph.
    pub fn tasks(&self) -> impl Iterator<Item = Task> {
        (0..self.chunks.len()).flat_map(|chunk| {
            (0..self.subgraphs.len()).map(move |subgraph| Task {
                chunk,
                subgraph,
                part: 0,
            })
        })
    }

    /// Returns the tasks that must be complete before `task` can start. Within a chunk, that is the previous subgraph
    /// (equation 3 of the paper). Attention also waits for the attention of the previous chunk, which writes keys and
    /// values to the cache, and so for all earlier chunks. This is stricter than equation 2, which requires only the
    /// query, key and value layers of earlier chunks, as if these wrote the cache.
    pub fn dependencies(&self, task: Task) -> impl Iterator<Item = Task> {
        let within = task
            .subgraph
            .checked_sub(1)
            .map(|subgraph| Task { subgraph, ..task });
        let is_attention = self.subgraphs[task.subgraph].role == Role::Attention;
        let across = if is_attention {
            task.chunk.checked_sub(1)
        } else {
            None
        };
        within
            .into_iter()
            .chain(across.map(|chunk| Task { chunk, ..task }))
    }

    /// Returns the multiplications and additions of a task: [`Subgraph::operations`].
    pub fn operations(&self, task: Task) -> u128 {
        let tokens = &self.chunks[task.chunk];
        self.subgraphs[task.subgraph].operations(tokens.len(), tokens.start)
    }

    /// Returns the memory of the built graphs, with and without sharing.
    pub fn memory(&self) -> GraphMemory {
        let sum = |is_static: bool| -> usize {
            let of_kind = self
                .subgraphs
                .iter()
                .filter(|subgraph| subgraph.role.is_static() == is_static);
            of_kind
                .map(|subgraph| subgraph.graph_bytes(self.chunk))
                .sum()
        };
        let (fixed, dynamic) = (sum(true), sum(false));
        let chunks = self.chunks.len();
        GraphMemory {
            one_chunk_bytes: fixed + dynamic,
            separate_bytes: chunks * (fixed + dynamic),
            shared_bytes: fixed + chunks * dynamic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use triad_model::family::{SHAPES, shape};

    #[test]
    fn qwen_has_the_papers_144_subgraphs_of_which_120_are_shared() {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 1024, 256);
        assert_eq!(
            (graph.subgraphs().len(), graph.static_subgraphs()),
            (144, 120)
        );
        assert_eq!(graph.distinct_graphs(), 5 + 4);
        let memory = graph.memory();
        // The paper saves 75 %, 7.2 GB: three of four graphs, as if attention had no buffers. With these buffers less
        // is saved.
        assert!(
            (0.65..0.75).contains(&memory.saved()) && memory.one_chunk_bytes < 2_400_000_000,
            "{memory:?}"
        );
    }

    #[test]
    fn the_linear_layers_of_all_subgraphs_are_those_of_the_model() {
        for name in SHAPES {
            let description = shape(name).unwrap();
            let graph = Graph::new(&description, 100, 64);
            let of_block = |block: &BlockDescription| -> u64 {
                let linears = block.linears(description.hidden);
                linears
                    .iter()
                    .map(|linear| 2 * (linear.out_features * linear.in_features) as u64)
                    .sum()
            };
            let expected: u64 = description.blocks.iter().map(of_block).sum();
            let operations: u64 = graph
                .subgraphs()
                .iter()
                .map(|subgraph| subgraph.operations_per_row)
                .sum();
            assert_eq!(operations, expected, "{name}");
            // Weights of one byte, norms of four bytes, and eight bytes for each output channel.
            let linear = |block: &BlockDescription| -> (usize, usize) {
                let linears = block.linears(description.hidden);
                let parameters = linears.iter().map(LinearShape::parameters).sum();
                let weights: usize = linears
                    .iter()
                    .map(|linear| linear.in_features * linear.out_features)
                    .sum();
                let channels: usize = linears.iter().map(|linear| linear.out_features).sum();
                (
                    parameters,
                    weights + 4 * (parameters - weights) + 8 * channels,
                )
            };
            let (parameters, bytes) = description
                .blocks
                .iter()
                .map(linear)
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            let outside = ModelDescription {
                blocks: Vec::new(),
                ..description.clone()
            }
            .parameters();
            let norms = description.parameters() - outside - parameters;
            let counted: usize = graph
                .subgraphs()
                .iter()
                .map(|subgraph| subgraph.weight_bytes)
                .sum();
            assert_eq!(counted, bytes + 4 * norms, "{name}");
        }
    }

    #[test]
    fn attention_looks_at_every_position_so_far_or_at_its_window() {
        let mut description = shape("smollm2-135m").unwrap();
        description.blocks[1].attention_mut().unwrap().window = Some(3);
        let graph = Graph::new(&description, 6, 4);
        let of = |block: usize, chunk: usize| {
            graph.operations(Task {
                chunk,
                subgraph: 6 * block + 2,
                part: 0,
            })
        };
        let per_position = 4 * 576;
        assert_eq!(
            [of(0, 0), of(0, 1)],
            [(1 + 2 + 3 + 4) * per_position, (5 + 6) * per_position]
        );
        assert_eq!(
            [of(1, 0), of(1, 1)],
            [(1 + 2 + 3 + 3) * per_position, (3 + 3) * per_position]
        );
        assert_eq!(
            graph.distinct_graphs(),
            5 + 2 * 2,
            "a window is a shape of its own"
        );
    }

    proptest! {
        #[test]
        fn chunks_cover_the_prompt_and_only_the_last_is_shorter(prompt in 1usize..3000, chunk in 1usize..600) {
            let graph = Graph::new(&shape("smollm2-135m").unwrap(), prompt, chunk);
            let tokens: Vec<_> = graph.chunks().iter().cloned().flatten().collect();
            prop_assert_eq!(tokens, (0..prompt).collect::<Vec<_>>());
            let (last, others) = graph.chunks().split_last().unwrap();
            prop_assert!(others.iter().all(|tokens| tokens.len() == chunk) && last.len() <= chunk);
        }

        #[test]
        fn in_the_order_of_tasks_nothing_waits_for_what_comes_later(prompt in 1usize..1000, chunk in 64usize..600) {
            let graph = Graph::new(&shape("smollm2-135m").unwrap(), prompt, chunk);
            let mut complete = std::collections::HashSet::new();
            for task in graph.tasks() {
                prop_assert!(graph.dependencies(task).all(|needed| complete.contains(&needed)), "{:?}", task);
                complete.insert(task);
            }
            prop_assert_eq!(complete.len(), graph.chunks().len() * graph.subgraphs().len());
        }

        #[test]
        fn a_prompt_takes_the_same_operations_however_it_is_cut(prompt in 1usize..500, one in 1usize..500, two in 1usize..500) {
            let description = shape("gemma-2b").unwrap();
            let all = |chunk: usize| -> u128 {
                let graph = Graph::new(&description, prompt, chunk);
                graph.tasks().map(|task| graph.operations(task)).sum()
            };
            prop_assert_eq!(all(one), all(two));
        }

        #[test]
        fn a_split_feed_forward_has_the_same_weights_and_operations(rows in 1usize..500, split in 0usize..4) {
            let description = shape("gemma-2b").unwrap();
            let of_blocks = |graph: &Graph| {
                let mut sums = vec![(0, 0); description.blocks.len()];
                for subgraph in graph.subgraphs() {
                    let (weights, operations) = &mut sums[subgraph.block];
                    *weights += subgraph.weight_bytes;
                    *operations += subgraph.operations(rows, 0);
                }
                sums
            };
            let whole = Graph::new(&description, rows, 64);
            let splits = Graph::with_splits(&description, rows, 64, |block| block % 4 == split);
            prop_assert_eq!(of_blocks(&whole), of_blocks(&splits));
            let of_split = splits.subgraphs().iter().filter(|subgraph| subgraph.block == split);
            let roles: Vec<_> = of_split.map(|subgraph| subgraph.role).collect();
            prop_assert_eq!(&roles[5..], [Role::GateUp, Role::Activation, Role::Down]);
        }

        #[test]
        fn whatever_writes_the_cache_for_a_chunk_is_over_before_a_later_one_reads_it(chunk in 0usize..4, block in 0usize..30) {
            let graph = Graph::new(&shape("smollm2-135m").unwrap(), 4 * 64, 64);
            let (attention, query_key_value) = (6 * block + 2, 6 * block + 1);
            // All tasks that an attention waits for, directly or indirectly.
            let (mut over, mut open) = (std::collections::HashSet::new(), vec![Task { chunk, subgraph: attention, part: 0 }]);
            while let Some(task) = open.pop() {
                open.extend(graph.dependencies(task).filter(|needed| over.insert(*needed)));
            }
            for earlier in 0..chunk {
                for subgraph in [query_key_value, attention] {
                    let is_over = over.contains(&Task { chunk: earlier, subgraph, part: 0 });
                    prop_assert!(is_over, "subgraph {} of chunk {}", subgraph, earlier);
                }
            }
            prop_assert!(over.iter().all(|task| task.chunk <= chunk && task.subgraph <= attention));
        }

        #[test]
        fn attention_alone_waits_for_another_chunk(chunk in 0usize..4, subgraph in 0usize..180) {
            let graph = Graph::new(&shape("smollm2-135m").unwrap(), 4 * 64, 64);
            let needed: Vec<_> = graph.dependencies(Task { chunk, subgraph, part: 0 }).collect();
            let within = subgraph.checked_sub(1).map(|subgraph| Task { chunk, subgraph, part: 0 });
            let is_attention = graph.subgraphs()[subgraph].role == Role::Attention;
            let across = chunk.checked_sub(1).filter(|_| is_attention).map(|chunk| Task { chunk, subgraph, part: 0 });
            prop_assert_eq!(needed, within.into_iter().chain(across).collect::<Vec<_>>());
        }
    }
}
