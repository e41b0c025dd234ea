//! The linear layers of a forward pass, in float or in INT8 with outlier correction (shadow).
//!
//! [`QuantizedInput`] is the input of the layers. [`multiply`] computes those of one [`Role`], as a whole or some
//! columns of their outputs, by a [`Backend`]. The outlier correction (llm.npu, §3.3) is computed
//! together with them, after them ([`shadow`]), or concurrently and added later ([`shadow_apart`], [`add_shadow`]).

mod backend;
mod input;
mod output;

use std::ops::Range;

use smallvec::SmallVec;
use triad_kernels::int8::{self as int8_kernels, QuantizedView};
use triad_kernels::{OutputMut, Phase};
use triad_model::description::{BlockDescription, Linear, Mixer};
use triad_model::role::Role;

pub use backend::{Backend, CpuBackend, FloatRows};
use backend::{float, int8};
pub(crate) use input::QuantizedInput;
pub use input::StaticInput;
pub(crate) use output::MAX_READERS;
pub use output::{LinearOutput, Shadows};

use crate::error::Result;
use crate::linear_input::LinearInput;
use crate::statistics::{Bytes, Counters, Operator};
use crate::weights::Block;

/// Layers that read one input, each with its output features.
pub type Layers = SmallVec<[(Linear, usize); MAX_READERS]>;

/// A callback with the inputs of linear layers: the block, the input, `x[rows, channels]`.
pub type Observer<'a> = &'a mut (dyn FnMut(usize, LinearInput, &[f32]) + Send);

/// Returns the layers of a role of linear layers with one input, in the order of their outputs; none for other roles.
pub fn layers(block: &BlockDescription, hidden: usize, role: Role) -> Layers {
    let width = block.feed_forward.width;
    match (role, &block.mixer) {
        (Role::QueryKeyValue, Mixer::Attention(attention)) => {
            let key_value = attention.kv_heads * attention.head_dim;
            let layers = [
                (Linear::Query, attention.query_width()),
                (Linear::Key, key_value),
                (Linear::Value, key_value),
            ];
            layers[..attention.key_values.layers()]
                .iter()
                .copied()
                .collect()
        }
        (Role::QueryKeyValue, Mixer::ShortConv(conv)) => [(Linear::MixerInput, 3 * conv.channels)]
            .into_iter()
            .collect(),
        (Role::AttentionOutput, Mixer::Attention(_)) => {
            [(Linear::AttentionOutput, hidden)].into_iter().collect()
        }
        (Role::QueryKeyValue, Mixer::DeltaNet(net)) => net.inputs().into_iter().collect(),
        (Role::QueryKeyValue, Mixer::Mamba2(mamba)) => {
            [(Linear::MixerInput, mamba.row())].into_iter().collect()
        }
        (Role::AttentionOutput, _) => [(Linear::MixerOutput, hidden)].into_iter().collect(),
        (Role::GateUp | Role::Down, _) if !block.residual.has_feed_forward() => Layers::new(),
        (Role::GateUp, _) => {
            let gate = block.feed_forward.gated.then_some((Linear::Gate, width));
            [(Linear::Up, width)].into_iter().chain(gate).collect()
        }
        (Role::Down, _) => [(Linear::Down, hidden)].into_iter().collect(),
        _ => Layers::new(),
    }
}

/// Returns which features of each layer are `columns` of their concatenated outputs; layers without any are left out.
pub fn columns_of(
    layers: &Layers,
    columns: &Range<usize>,
) -> SmallVec<[(Linear, Range<usize>); MAX_READERS]> {
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

/// The input of layers, in one of two formats.
#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    /// `Some` if the layers compute in INT8.
    int8: Option<QuantizedView<'a>>,
    /// `[rows, channels]`; read only if the layers compute in float.
    x: &'a [f32],
    rows: usize,
    phase: Phase,
}

impl QuantizedInput {
    /// Returns `rows` of the chunk, with their float activations `x[rows of the chunk, channels]`.
    pub(crate) fn activations<'a>(
        &'a self,
        x: &'a [f32],
        channels: usize,
        rows: &Range<usize>,
    ) -> Activations<'a> {
        Activations {
            int8: self.int8(rows.clone()),
            x: &x[rows.start * channels..rows.end * channels],
            rows: rows.len(),
            phase: self.phase,
        }
    }
}

/// Computes the layers of `role` in a block and, if shadows are inline, adds them.
///
/// # Errors
/// If the backend fails.
pub(crate) fn multiply(
    (index, block, role): (usize, &Block, Role),
    activations: &Activations,
    backend: &mut dyn Backend,
    shadows: Shadows,
    outs: &mut [LinearOutput],
    counters: &Counters,
) -> Result<()> {
    let begun = counters.begin();
    let are_added = match activations.int8 {
        Some(x) => {
            // While operators are counted, shadows are counted as a separate one.
            let of_backend = if begun.is_counted() {
                Shadows::Apart
            } else {
                shadows
            };
            backend.multiply(index, role, x, outs, of_backend)?
        }
        None => {
            let Activations { x, rows, phase, .. } = *activations;
            backend.multiply_floats(index, role, FloatRows { x, rows, phase }, outs)?;
            false
        }
    };
    counters.end(begun, Operator::of_products(role), || {
        product_bytes(block, activations, outs)
    });
    if let Some(x) = activations.int8
        && shadows == Shadows::Inline
        && !are_added
    {
        shadow(block, x, outs, counters);
    }
    Ok(())
}

/// Returns the bytes that layers read and write.
fn product_bytes(block: &Block, activations: &Activations, outs: &[LinearOutput]) -> Bytes {
    let read = activations
        .int8
        .map_or(size_of_val(activations.x), QuantizedView::size);
    let weights = outs.iter().map(
        |LinearOutput {
             linear, columns, ..
         }| {
            let bytes = match activations.int8 {
                Some(_) => int8(block, *linear).bytes(),
                None => float(block, *linear).bytes(),
            };
            let layer = &block.linears[linear];
            let bias = if layer.bias.is_some() {
                size_of::<f32>()
            } else {
                0
            };
            bytes * columns.len() / layer.weight.out_features() + bias * columns.len()
        },
    );
    let written = outs
        .iter()
        .map(|LinearOutput { out, .. }| out.rows() * out.columns() * size_of::<f32>());
    Bytes::new(read, written.sum(), weights.sum())
}

/// Adds the outlier correction of `x` to the outputs of layers.
pub(crate) fn shadow(
    block: &Block,
    x: QuantizedView,
    outs: &mut [LinearOutput],
    counters: &Counters,
) {
    if x.outliers() == 0 {
        return;
    }
    let begun = counters.begin();
    for LinearOutput {
        linear,
        columns,
        out,
    } in &mut *outs
    {
        let weight = int8(block, *linear);
        match weight.float() {
            None => int8_kernels::shadow(x, weight.view().columns(columns.clone()), out.reborrow()),
            Some(float) => {
                let float = float.view().rows(columns.clone(), x.in_features());
                int8_kernels::shadow_float(x, float, out.reborrow());
            }
        }
    }
    counters.end(begun, Operator::Shadows, || {
        let features = |of: &LinearOutput| (of.linear, of.columns.len());
        let bytes = shadow_bytes(block, x, outs.iter().map(features));
        // The outputs are also read, since the shadow is added to them.
        Bytes {
            read: bytes.read + bytes.written,
            ..bytes
        }
    });
}

/// Returns the bytes that shadows read, and write for the rows with outliers; `layers` are the layers with their
/// numbers of features.
pub(crate) fn shadow_bytes(
    block: &Block,
    x: QuantizedView,
    layers: impl Iterator<Item = (Linear, usize)>,
) -> Bytes {
    let (mut rows, mut channels) = (0, vec![false; x.in_features()]);
    for row in 0..x.rows() {
        let outliers = x.outliers_of(row).0;
        rows += usize::from(!outliers.is_empty());
        outliers
            .iter()
            .for_each(|channel| channels[*channel as usize] = true);
    }
    let channels = channels.into_iter().filter(|has| *has).count();
    let of_layer = |(linear, features): (Linear, usize)| match int8(block, linear).float() {
        None => (features, features * (channels + size_of::<f32>())),
        Some(float) => (
            features,
            channels * float.bytes() / float.in_features() * features / float.out_features(),
        ),
    };
    let (features, weights) = layers
        .map(of_layer)
        .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    Bytes::new(
        x.outlier_bytes(),
        rows * features * size_of::<f32>(),
        weights,
    )
}

/// Computes what [`shadow`] adds, without adding it: writes `[rows, out_features]` of one layer after the other to
/// `out`, only for rows with outliers. [`add_shadow`] adds it.
pub(crate) fn shadow_apart(
    block: &Block,
    layers: &Layers,
    x: QuantizedView,
    out: &mut [f32],
    counters: &Counters,
) {
    let begun = counters.begin();
    let mut out = out;
    for (linear, features) in layers {
        let of_layer = out
            .split_off_mut(..x.rows() * features)
            .expect("room for the outputs of all layers");
        int8_kernels::shadow_apart(
            x,
            int8(block, *linear).view(),
            OutputMut::new(of_layer, *features),
        );
    }
    counters.end(begun, Operator::Shadows, || {
        shadow_bytes(block, x, layers.iter().copied())
    });
}

/// Returns the scales of the weights of layers that read INT8.
pub(crate) fn scales<'a>(block: &'a Block, layers: &Layers) -> SmallVec<[&'a [f32]; MAX_READERS]> {
    layers
        .iter()
        .map(|(linear, _)| int8(block, *linear).view().scales)
        .collect()
}

/// Adds the result of [`shadow_apart`] to the outputs of a layer, `[rows, out_features]`. The bits are those of
/// [`shadow`].
pub(crate) fn add_shadow(x: QuantizedView, shadow: &[f32], out: OutputMut, counters: &Counters) {
    let (begun, features) = (counters.begin(), out.columns());
    int8_kernels::join_shadow(x, shadow, out);
    counters.end(begun, Operator::Shadows, || {
        let rows = (0..x.rows())
            .filter(|row| !x.outliers_of(*row).0.is_empty())
            .count();
        let bytes = rows * features * size_of::<f32>();
        Bytes::new(2 * bytes, bytes, 0)
    });
}
