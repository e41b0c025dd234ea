//! The layers of a model whose weights get a number of bits of their own, under a budget of bits per weight.

use std::collections::BTreeMap;

use triad_model::description::{Linear, ModelDescription};

use crate::quantization::WeightBits;

/// A linear layer of a block, the layers of one kind of all experts of a block, or the output matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// Index of the block; `None` for the output matrix.
    pub block: Option<usize>,
    /// The name of the layer in its block ([`layer_of`]), or `output`.
    pub layer: &'static str,
    /// Rows of all its matrices.
    pub rows: u64,
    /// Columns of each.
    pub in_features: usize,
}

impl LayerGroup {
    /// Returns the number of weights.
    pub fn weights(&self) -> u128 {
        u128::from(self.rows) * self.in_features as u128
    }

    /// Returns the bits of all weights with their scales; `None` if the rows do not allow so many bits each.
    pub fn bits(&self, bits: WeightBits) -> Option<u128> {
        Some(u128::from(self.rows) * bits.of_row(self.in_features)? as u128)
    }
}

/// The bits of layers by block and name.
pub type BitsOfLayers = BTreeMap<(usize, &'static str), WeightBits>;

/// Returns the name of a layer in its block. Experts share it.
pub fn layer_of(linear: Linear) -> &'static str {
    match linear {
        Linear::Query => "query",
        Linear::Key => "key",
        Linear::Value => "value",
        Linear::AttentionOutput => "attention-output",
        Linear::Gate => "gate",
        Linear::Up => "up",
        Linear::Down => "down",
        Linear::MixerInput => "mixer-input",
        Linear::MixerOutput => "mixer-output",
        Linear::MixerGate => "mixer-gate",
        Linear::MixerRate => "mixer-rate",
        Linear::MixerDecay => "mixer-decay",
        Linear::ExpertGate(_) => "experts.gate",
        Linear::ExpertUp(_) => "experts.up",
        Linear::ExpertDown(_) => "experts.down",
    }
}

/// Returns all groups of a model: those of the blocks in the order of [`linears`], the output matrix last.
///
/// [`linears`]: triad_model::description::BlockDescription::linears
pub fn groups(model: &ModelDescription) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for (index, block) in model.blocks.iter().enumerate() {
        let first = groups.len();
        for shape in block.linears(model.hidden) {
            let layer = layer_of(shape.linear);
            let rows = shape.out_features as u64;
            match groups[first..]
                .iter_mut()
                .find(|group| group.layer == layer)
            {
                Some(group) => group.rows = group.rows.saturating_add(rows),
                None => groups.push(LayerGroup {
                    block: Some(index),
                    layer,
                    rows,
                    in_features: shape.in_features,
                }),
            }
        }
    }
    groups.push(LayerGroup {
        block: None,
        layer: "output",
        rows: model.vocab as u64,
        in_features: model.hidden,
    });
    groups
}

/// Returns the bits per weight of layers with these `bits`, scales included; `None` if there are others than `groups` or
/// their rows do not allow them.
pub fn bits_per_weight(groups: &[LayerGroup], bits: &[WeightBits]) -> Option<f64> {
    let weights: u128 = groups.iter().map(LayerGroup::weights).sum();
    let each = groups
        .iter()
        .zip(bits)
        .map(|(group, bits)| group.bits(*bits));
    let all = each.sum::<Option<u128>>()?;
    (groups.len() == bits.len()).then_some(all as f64 / weights.max(1) as f64)
}
