//! The linear layers of a forward pass, in float or in INT8 with its shadow.
//!
//! [`QuantizedInput`] is what layers read; [`multiply`] computes those of one [`Role`], whole or some columns of their
//! outputs, by a [`Backend`] where they read INT8. What its outliers add (llm.npu, §3.3) is computed behind the products
//! ([`shadow`]), or beside them and added later ([`shadow_apart`], [`add_shadow`]).

mod backend;
mod input;
mod statistics;

use std::ops::Range;
use std::time::Instant;

use smallvec::SmallVec;
use triad_kernels::int8::{self as int8_kernels, QuantizedView};
use triad_kernels::{OutputMut, Phase, Product, matmul_each};
use triad_model::description::{BlockDescription, Linear};
use triad_plan::graph::Role;

pub(crate) use backend::{Backend, OwnKernels};
pub(crate) use input::QuantizedInput;
pub(crate) use statistics::Counted;
pub use statistics::Int8Statistics;

use crate::error::Result;
use crate::linear_input::LinearInput;
use crate::weights::{Block, Int8Matrix, Weight};

/// Linear layers that read one input: query, key and value.
const MOST_READERS: usize = 3;

/// Layers that read one input, each with its output features.
pub(crate) type Layers = SmallVec<[(Linear, usize); MOST_READERS]>;

/// Is called with what linear layers read: the block, which of its inputs, `x[rows, channels]`.
pub type Observer<'a> = &'a mut (dyn FnMut(usize, LinearInput, &[f32]) + Send);

/// Some output features of a linear layer, and where they go.
pub(crate) struct LinearOutput<'a> {
    pub(crate) linear: Linear,
    /// Which of its output features.
    pub(crate) columns: Range<usize>,
    /// `[rows, columns]`.
    pub(crate) out: OutputMut<'a>,
}

/// The layers of a role that is products of one input, in the order of their outputs.
pub(crate) fn layers(block: &BlockDescription, hidden: usize, role: Role) -> Layers {
    let attention = &block.attention;
    let [query, key_value] = [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim);
    let width = block.feed_forward.width;
    match role {
        Role::QueryKeyValue => {
            [(Linear::Query, query), (Linear::Key, key_value), (Linear::Value, key_value)].into_iter().collect()
        }
        Role::AttentionOutput => [(Linear::AttentionOutput, hidden)].into_iter().collect(),
        Role::GateUp => {
            let gate = block.feed_forward.gated.then_some((Linear::Gate, width));
            [(Linear::Up, width)].into_iter().chain(gate).collect()
        }
        Role::Down => [(Linear::Down, hidden)].into_iter().collect(),
        _ => Layers::new(),
    }
}

/// Which features of each layer are `columns` of their outputs side by side; layers without any are left out.
pub(crate) fn columns_of(layers: &Layers, columns: &Range<usize>) -> SmallVec<[(Linear, Range<usize>); MOST_READERS]> {
    let mut first = 0;
    let mut found = SmallVec::new();
    for (linear, features) in layers {
        let of_layer = columns.start.max(first)..columns.end.min(first + features);
        if !of_layer.is_empty() {
            found.push((*linear, of_layer.start - first..of_layer.end - first));
        }
        first += features;
    }
    found
}

/// What layers read, in one of two formats.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    /// Where they compute in INT8.
    int8: Option<QuantizedView<'a>>,
    /// `[rows, channels]`; looked at only where they compute in float.
    x: &'a [f32],
    rows: usize,
    phase: Phase,
}

/// Who adds what outliers lack to the products of a subgraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shadows {
    /// Whoever multiplies, behind the products.
    Inline,
    /// A task of its own.
    Apart,
}

impl QuantizedInput {
    /// `rows` of the chunk, whose activations in float are `x[rows of the chunk, channels]`.
    pub(crate) fn activations<'a>(&'a self, x: &'a [f32], channels: usize, rows: &Range<usize>) -> Activations<'a> {
        Activations {
            int8: self.int8(rows.clone()),
            x: &x[rows.start * channels..rows.end * channels],
            rows: rows.len(),
            phase: self.phase,
        }
    }
}

/// Products of layers of `role` in a block and, inline, what their shadows add.
///
/// # Errors
/// If the backend fails.
pub(crate) fn multiply(
    (index, block, role): (usize, &Block, Role),
    activations: &Activations,
    backend: &mut dyn Backend,
    shadows: Shadows,
    outs: &mut [LinearOutput],
    counted: &Counted,
) -> Result<()> {
    let Activations { int8, x, rows, phase } = *activations;
    if let Some(x) = int8 {
        let start = Instant::now();
        backend.multiply(index, role, x, outs)?;
        counted.add(|statistics| statistics.matmul_seconds += start.elapsed().as_secs_f64());
        if shadows == Shadows::Inline {
            shadow(block, x, outs, counted);
        }
        return Ok(());
    }
    let in_features = x.len() / rows.max(1);
    let products = outs.iter_mut().map(|LinearOutput { linear, columns, out }| {
        let layer = &block.linears[linear];
        let weight = match (&layer.weight, &layer.decode_weight) {
            (Weight::Float(weight), _) | (Weight::Int8(_), Some(weight)) => weight,
            (Weight::Int8(_), None) => unreachable!("INT8 layers read INT8 but in decode"),
        };
        let bias = layer.bias.as_deref().map(|bias| &bias[columns.clone()]);
        Product::new(weight.view().rows(columns.clone(), in_features), bias, out.reborrow())
    });
    let mut products: SmallVec<[_; MOST_READERS]> = products.collect();
    matmul_each(x, rows, phase, &mut products);
    Ok(())
}

/// Adds to products what the outliers of `x` lack.
pub(crate) fn shadow(block: &Block, x: QuantizedView, outs: &mut [LinearOutput], counted: &Counted) {
    if x.outliers() == 0 {
        return;
    }
    let start = Instant::now();
    for LinearOutput { linear, columns, out } in outs {
        let weight = int8(block, *linear);
        match weight.float() {
            None => int8_kernels::shadow(x, weight.view().columns(columns.clone()), out.reborrow()),
            Some(float) => {
                let float = float.view().rows(columns.clone(), x.in_features());
                int8_kernels::shadow_float(x, float, out.reborrow());
            }
        }
    }
    counted.add(|statistics| statistics.shadow_seconds += start.elapsed().as_secs_f64());
}

/// What [`shadow`] adds, by itself: `[rows, out_features]` of one layer after the other in `out`, those rows alone that have
/// outliers. [`add_shadow`] adds it.
pub(crate) fn shadow_apart(block: &Block, layers: &Layers, x: QuantizedView, out: &mut [f32], counted: &Counted) {
    let start = Instant::now();
    let mut out = out;
    for (linear, features) in layers {
        let of_layer = out.split_off_mut(..x.rows() * features).expect("room for the outputs of all layers");
        int8_kernels::shadow_apart(x, int8(block, *linear).view(), OutputMut::new(of_layer, *features));
    }
    counted.add(|statistics| statistics.shadow_seconds += start.elapsed().as_secs_f64());
}

/// The scales of the weights of layers that read INT8.
pub(crate) fn scales<'a>(block: &'a Block, layers: &Layers) -> SmallVec<[&'a [f32]; MOST_READERS]> {
    layers.iter().map(|(linear, _)| int8(block, *linear).view().scales).collect()
}

/// Adds what [`shadow_apart`] computed to the products of a layer, `[rows, out_features]`: the same bits as [`shadow`].
pub(crate) fn add_shadow(x: QuantizedView, features: usize, shadow: &[f32], out: &mut [f32], counted: &Counted) {
    let start = Instant::now();
    int8_kernels::join_shadow(x, shadow, OutputMut::new(out, features));
    counted.add(|statistics| statistics.shadow_seconds += start.elapsed().as_secs_f64());
}

/// The weight of a layer that reads INT8.
fn int8(block: &Block, linear: Linear) -> &Int8Matrix {
    let Weight::Int8(weight) = &block.linears[&linear].weight else { unreachable!("what reads INT8 has INT8 weights") };
    weight
}
