//! The subgraphs of a model, the chunks of a prompt, and the tasks that both make: one subgraph on one chunk.
//!
//! Blocks are cut where the number format changes. *Static* subgraphs have shapes that depend on the chunk length alone:
//! they are built once, for all chunks. *Dynamic* ones, attention, depend on the chunk's position, too.

use std::ops::Range;

use serde::Serialize;
use triad_model::description::{BlockDescription, Linear, LinearShape, ModelDescription, Residual};

/// Bytes of a number in f32, f16 and INT8.
const F32: usize = 4;
const F16: usize = 2;
const INT8: usize = 1;

/// Which part of a block a subgraph is, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Norm, quantize.
    AttentionNorm,
    /// Query, key and value linear.
    QueryKeyValue,
    /// RoPE, attention over all tokens so far, quantize.
    Attention,
    /// Output linear.
    AttentionOutput,
    /// Residual, norm, quantize; where one norm serves both halves of a block, the residual alone.
    FeedForwardNorm,
    /// Gate and up linear, activation, requantize, down linear.
    FeedForward,
}

/// In which numbers a subgraph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// f32, on CPU or GPU.
    Float,
    /// INT8 products, on the NPU.
    Int8,
}

impl Role {
    /// All of them, in their order.
    pub const ALL: [Self; 6] = [
        Self::AttentionNorm,
        Self::QueryKeyValue,
        Self::Attention,
        Self::AttentionOutput,
        Self::FeedForwardNorm,
        Self::FeedForward,
    ];

    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionNorm => "attention-norm",
            Self::QueryKeyValue => "query-key-value",
            Self::Attention => "attention",
            Self::AttentionOutput => "attention-output",
            Self::FeedForwardNorm => "feed-forward-norm",
            Self::FeedForward => "feed-forward",
        }
    }

    /// The numbers that it computes in.
    pub fn format(self) -> Format {
        match self {
            Self::AttentionNorm | Self::Attention | Self::FeedForwardNorm => Format::Float,
            Self::QueryKeyValue | Self::AttentionOutput | Self::FeedForward => Format::Int8,
        }
    }

    /// Whether its shapes depend on the chunk length alone.
    pub fn is_static(self) -> bool {
        self != Self::Attention
    }

    /// Whether `linear` belongs to it.
    fn has(self, linear: Linear) -> bool {
        match linear {
            Linear::Query | Linear::Key | Linear::Value => self == Self::QueryKeyValue,
            Linear::AttentionOutput => self == Self::AttentionOutput,
            Linear::Gate | Linear::Up | Linear::Down => self == Self::FeedForward,
        }
    }
}

/// A run of operators of one block that stays on one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Subgraph {
    /// Number of its block.
    pub block: usize,
    /// Which part of the block.
    pub role: Role,
    /// Bytes of weights in INT8, their scales and biases in f32; of norms in f32.
    pub weight_bytes: usize,
    /// Bytes of inputs, outputs and what stands between them, for each row.
    pub activation_bytes_per_row: usize,
    /// Products and additions of linear layers, for each row.
    operations_per_row: u64,
    /// Width of all query heads; of attention only.
    attention_width: usize,
    /// Bytes of keys and values for each position; of attention only.
    cache_bytes_per_position: usize,
    /// Positions that attention looks back at most.
    window: Option<usize>,
}

impl Subgraph {
    fn new(index: usize, role: Role, block: &BlockDescription, hidden: usize) -> Self {
        let linears: Vec<_> = block.linears(hidden).into_iter().filter(|shape| role.has(shape.linear)).collect();
        let bytes = |shape: &LinearShape| {
            let scales_and_bias = if shape.bias { 2 } else { 1 };
            shape.out_features * (shape.in_features * INT8 + scales_and_bias * F32)
        };
        let operations = |shape: &LinearShape| 2 * (shape.out_features * shape.in_features) as u64;
        let attention = &block.attention;
        let (query, key_value) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let width = block.feed_forward.width;
        let has_norm = match role {
            Role::AttentionNorm => true,
            Role::FeedForwardNorm => block.residual != Residual::Parallel,
            _ => false,
        };
        let inner = if block.feed_forward.gated { 2 * width } else { width };
        let activations = match role {
            Role::AttentionNorm => hidden * (F32 + INT8),
            Role::QueryKeyValue => hidden * INT8 + (query + 2 * key_value) * F32,
            Role::Attention => (query + 2 * key_value) * F32 + query * INT8,
            Role::AttentionOutput => query * INT8 + hidden * F32,
            Role::FeedForwardNorm => 3 * hidden * F32 + hidden * INT8,
            Role::FeedForward => hidden * INT8 + inner * F32 + width * INT8 + hidden * F32,
        };
        let is_attention = role == Role::Attention;
        Self {
            block: index,
            role,
            weight_bytes: linears.iter().map(bytes).sum::<usize>() + if has_norm { hidden * F32 } else { 0 },
            activation_bytes_per_row: activations,
            operations_per_row: linears.iter().map(operations).sum(),
            attention_width: if is_attention { query } else { 0 },
            cache_bytes_per_position: if is_attention { 2 * key_value * F16 } else { 0 },
            window: if is_attention { attention.window } else { None },
        }
    }

    /// Multiplications and additions on `rows` tokens behind `before` others.
    pub fn operations(&self, rows: usize, before: usize) -> u64 {
        let seen = |position: usize| self.window.map_or(position, |window| window.min(position)) as u64;
        let positions: u64 = (before + 1..=before + rows).map(seen).sum();
        self.operations_per_row * rows as u64 + 4 * self.attention_width as u64 * positions
    }

    /// Bytes that it reads and writes on `rows` tokens behind `before` others: weights, activations, keys and values.
    pub fn bytes(&self, rows: usize, before: usize) -> usize {
        self.weight_bytes + self.activation_bytes_per_row * rows + self.cache_bytes_per_position * (before + rows)
    }

    /// Bytes of the built graph for `rows` tokens: its weights and buffers. Keys and values lie elsewhere.
    pub fn graph_bytes(&self, rows: usize) -> usize {
        self.weight_bytes + self.activation_bytes_per_row * rows
    }

    /// What two subgraphs must have in common to be built once, with weights as an input.
    fn shape(&self) -> impl Eq + std::hash::Hash {
        let Self { role, weight_bytes, activation_bytes_per_row, operations_per_row, window, .. } = *self;
        (role, weight_bytes, activation_bytes_per_row, operations_per_row, window)
    }
}

/// A task: one subgraph on one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Task {
    /// Number of the chunk.
    pub chunk: usize,
    /// Number of the subgraph, over all blocks.
    pub subgraph: usize,
}

/// Bytes of built graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GraphMemory {
    /// Of all subgraphs for one chunk.
    pub one_chunk: usize,
    /// With graphs of its own for each chunk.
    pub separate: usize,
    /// With static subgraphs built once for all chunks.
    pub shared: usize,
}

impl GraphMemory {
    /// Share of the memory that sharing saves.
    pub fn saved(&self) -> f64 {
        1.0 - self.shared as f64 / self.separate.max(1) as f64
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
    /// A prompt of `prompt` tokens in chunks of `chunk`; the last one may be shorter.
    ///
    /// # Panics
    /// If one of them is zero.
    pub fn new(description: &ModelDescription, prompt: usize, chunk: usize) -> Self {
        assert!(prompt > 0 && chunk > 0, "a prompt of {prompt} tokens in chunks of {chunk}");
        let of_block = |(index, block): (usize, &BlockDescription)| {
            Role::ALL.map(|role| Subgraph::new(index, role, block, description.hidden))
        };
        let subgraphs = description.blocks.iter().enumerate().flat_map(of_block).collect();
        let chunks = (0..prompt).step_by(chunk).map(|start| start..(start + chunk).min(prompt)).collect();
        Self { subgraphs, chunks, chunk }
    }

    /// The subgraphs of all blocks, in the order in which a chunk passes through them.
    pub fn subgraphs(&self) -> &[Subgraph] {
        &self.subgraphs
    }

    /// The tokens of each chunk.
    pub fn chunks(&self) -> &[Range<usize>] {
        &self.chunks
    }

    /// Tokens that graphs of static shape are built for.
    pub fn chunk_length(&self) -> usize {
        self.chunk
    }

    /// How many subgraphs all chunks share.
    pub fn static_subgraphs(&self) -> usize {
        self.subgraphs.iter().filter(|subgraph| subgraph.role.is_static()).count()
    }

    /// Graphs to build if blocks that differ in their weights alone share them, too: the different static subgraphs, and
    /// the different dynamic ones for each chunk.
    pub fn distinct_graphs(&self) -> usize {
        let distinct = |is_static: bool| {
            let of_kind = self.subgraphs.iter().filter(|subgraph| subgraph.role.is_static() == is_static);
            of_kind.map(Subgraph::shape).collect::<std::collections::HashSet<_>>().len()
        };
        distinct(true) + distinct(false) * self.chunks.len()
    }

    /// Every task, chunk after chunk.
    pub fn tasks(&self) -> impl Iterator<Item = Task> {
        (0..self.chunks.len()).flat_map(|chunk| (0..self.subgraphs.len()).map(move |subgraph| Task { chunk, subgraph }))
    }

    /// What must be complete before `task` can start. Within a chunk, the subgraph before it (equation 3 of the paper);
    /// for attention, the query, key and value linear of all earlier chunks (equation 2).
    pub fn dependencies(&self, task: Task) -> impl Iterator<Item = Task> {
        let before = task.subgraph.checked_sub(1);
        let across = if self.subgraphs[task.subgraph].role == Role::Attention { 0..task.chunk } else { 0..0 };
        let chunks = across.chain(std::iter::once(task.chunk));
        before.into_iter().flat_map(move |subgraph| chunks.clone().map(move |chunk| Task { chunk, subgraph }))
    }

    /// Multiplications and additions of a task.
    pub fn operations(&self, task: Task) -> u64 {
        let tokens = &self.chunks[task.chunk];
        self.subgraphs[task.subgraph].operations(tokens.len(), tokens.start)
    }

    /// Memory of the built graphs, with and without sharing.
    pub fn memory(&self) -> GraphMemory {
        let sum = |is_static: bool| -> usize {
            let of_kind = self.subgraphs.iter().filter(|subgraph| subgraph.role.is_static() == is_static);
            of_kind.map(|subgraph| subgraph.graph_bytes(self.chunk)).sum()
        };
        let (fixed, dynamic) = (sum(true), sum(false));
        let chunks = self.chunks.len();
        GraphMemory {
            one_chunk: fixed + dynamic,
            separate: chunks * (fixed + dynamic),
            shared: fixed + chunks * dynamic,
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
        assert_eq!((graph.subgraphs().len(), graph.static_subgraphs()), (144, 120));
        assert_eq!(graph.distinct_graphs(), 5 + 4);
        let memory = graph.memory();
        // The paper saves 75 %, 7.2 GB: three graphs of four, as if attention had no buffers. With them it is less.
        assert!((0.65..0.75).contains(&memory.saved()) && memory.one_chunk < 2_400_000_000, "{memory:?}");
    }

    #[test]
    fn the_linear_layers_of_all_subgraphs_are_those_of_the_model() {
        for name in SHAPES {
            let description = shape(name).unwrap();
            let graph = Graph::new(&description, 100, 64);
            let of_block = |block: &BlockDescription| -> u64 {
                let linears = block.linears(description.hidden);
                linears.iter().map(|linear| 2 * (linear.out_features * linear.in_features) as u64).sum()
            };
            let expected: u64 = description.blocks.iter().map(of_block).sum();
            let operations: u64 = graph.subgraphs().iter().map(|subgraph| subgraph.operations_per_row).sum();
            assert_eq!(operations, expected, "{name}");
        }
    }

    #[test]
    fn attention_looks_at_every_position_so_far_or_at_its_window() {
        let mut description = shape("smollm2-135m").unwrap();
        description.blocks[1].attention.window = Some(3);
        let graph = Graph::new(&description, 6, 4);
        let of = |block: usize, chunk: usize| graph.operations(Task { chunk, subgraph: 6 * block + 2 });
        let per_position = 4 * 576;
        assert_eq!([of(0, 0), of(0, 1)], [(1 + 2 + 3 + 4) * per_position, (5 + 6) * per_position]);
        assert_eq!([of(1, 0), of(1, 1)], [(1 + 2 + 3 + 3) * per_position, (3 + 3) * per_position]);
        assert_eq!(graph.distinct_graphs(), 5 + 2 * 2, "a window is a shape of its own");
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
            let all = |chunk: usize| -> u64 {
                let graph = Graph::new(&description, prompt, chunk);
                graph.tasks().map(|task| graph.operations(task)).sum()
            };
            prop_assert_eq!(all(one), all(two));
        }

        #[test]
        fn attention_alone_waits_for_other_chunks(chunk in 0usize..4, subgraph in 0usize..180) {
            let graph = Graph::new(&shape("smollm2-135m").unwrap(), 4 * 64, 64);
            let task = Task { chunk, subgraph };
            let needed: Vec<_> = graph.dependencies(task).collect();
            let role = graph.subgraphs()[subgraph].role;
            let expected = match (subgraph, role) {
                (0, _) => 0,
                (_, Role::Attention) => chunk + 1,
                _ => 1,
            };
            prop_assert_eq!(needed.len(), expected);
            prop_assert!(needed.iter().all(|needed| needed.subgraph + 1 == subgraph && needed.chunk <= chunk));
        }
    }
}
