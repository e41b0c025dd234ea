//! Chooses the bits of each layer under a budget of bits per weight.

use triad_engine::Model;
use triad_engine::package::layers::{LayerGroup, groups};
use triad_engine::package::preparation::LayerBits;
use triad_engine::quantization::WeightBits;
use triad_engine::weights::WeightMatrix;
use triad_kernels::int4::{GROUP, quantize_int4, quantize_q5_0};
use triad_kernels::{BlockArithmetic, BlockFormat, Blocks, Matrix, int8};
use triad_model::description::ModelDescription;
use triad_model::{Error, ErrorKind};

use super::sample;
use super::sensitivity::{Sensitivities, matrices};
use crate::error::Result;

/// A number of bits that a layer can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Bits of a weight.
    pub bits: WeightBits,
    /// Bits of all weights of the layer, with their scales.
    pub size: u128,
    /// The expected divergence of the model's probabilities.
    pub divergence: f64,
}

/// Checks that a model can have at most `budget` bits per weight.
///
/// # Errors
/// If its smallest formats exceed them.
pub fn check(model: &ModelDescription, budget: f64) -> Result<()> {
    let groups = groups(model);
    let least = |group: &LayerGroup| {
        WeightBits::ROUNDED
            .into_iter()
            .find_map(|bits| group.bits(bits))
    };
    let least: u128 = groups.iter().filter_map(least).sum();
    if least <= all_bits(&groups, budget) {
        return Ok(());
    }
    let least = least as f64 / all_bits(&groups, 1.0).max(1) as f64;
    let message = format!(
        "{budget} bits per weight are too few: this model needs {:.2}",
        (least * 100.0).ceil() / 100.0
    );
    Err(Error::new(ErrorKind::Unsupported, message).into())
}

/// Returns the bits of all weights with this number per weight.
fn all_bits(groups: &[LayerGroup], budget: f64) -> u128 {
    let weights: u128 = groups.iter().map(LayerGroup::weights).sum();
    (budget * weights as f64) as u128
}

/// Decides the bits of all layers of the float `model` for at most `budget` bits per weight.
///
/// # Errors
/// If the smallest formats exceed the budget.
pub fn decide(model: &Model, measured: &Sensitivities, budget: f64) -> Result<Vec<LayerBits>> {
    let groups = groups(model.description());
    let measured = measured.divergences();
    assert_eq!(measured.len(), groups.len(), "measured layers");
    check(model.description(), budget)?;
    let of_group = |(group, divergence): (&LayerGroup, &f32)| {
        let matrices = matrices(model, group);
        let errors = model.install(|| errors(&sample(&matrices), group.in_features));
        let rounded = WeightBits::ROUNDED.into_iter().zip(errors);
        // Blocks that stay have no error.
        let stored = stored(&matrices).map(|format| (WeightBits::Stored(format), 0.0));
        let candidate = |(bits, error): (WeightBits, f64)| {
            let share = match errors[0] {
                // The layer has the same outputs in all formats, as one of zeros has.
                0.0 => 0.0,
                of_four => error / of_four,
            };
            Some(Candidate {
                bits,
                size: group.bits(bits)?,
                divergence: f64::from(*divergence) * share,
            })
        };
        let mut candidates: Vec<_> = rounded.chain(stored).filter_map(candidate).collect();
        candidates.sort_by_key(|candidate| candidate.size);
        candidates
    };
    let candidates: Vec<_> = groups.iter().zip(measured).map(of_group).collect();
    let chosen = choose(&candidates, all_bits(&groups, budget)).expect("the budget is checked");
    let layers = groups.iter().zip(measured).zip(chosen);
    let layers = layers.map(|((group, divergence), bits)| LayerBits {
        block: group.block,
        layer: group.layer.to_owned(),
        bits,
        divergence: *divergence,
    });
    Ok(layers.collect())
}

/// Returns the bits of each layer, of those in `layers`, which are in ascending order: all have their fewest bits at first,
/// and the one whose divergence falls most for each bit that is added gets more, as long as one fits into `budget`. Returns
/// `None` if the smallest candidates exceed it.
///
/// # Panics
/// If a layer has no candidate.
pub fn choose(layers: &[Vec<Candidate>], budget: u128) -> Option<Vec<WeightBits>> {
    let mut size: u128 = layers.iter().map(|of_layer| of_layer[0].size).sum();
    if size > budget {
        return None;
    }
    let mut chosen = vec![0; layers.len()];
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (layer, of_layer) in layers.iter().enumerate() {
            let current = &of_layer[chosen[layer]];
            for (index, more) in of_layer.iter().enumerate().skip(chosen[layer] + 1) {
                let added = more.size.saturating_sub(current.size);
                let gain = (current.divergence - more.divergence) / added.max(1) as f64;
                let is_better = best.is_none_or(|(best, ..)| gain > best);
                if size + added <= budget && gain > 0.0 && is_better {
                    best = Some((gain, layer, index));
                }
            }
        }
        let Some((_, layer, index)) = best else {
            let bits = chosen.iter().zip(layers);
            return Some(
                bits.map(|(index, of_layer)| of_layer[*index].bits)
                    .collect(),
            );
        };
        let of_layer = &layers[layer];
        size += of_layer[index].size - of_layer[chosen[layer]].size;
        chosen[layer] = index;
    }
}

/// Returns the format of the blocks in which the model's file has all these matrices; `None` if it has not.
fn stored(matrices: &[&WeightMatrix]) -> Option<BlockFormat> {
    let format = matrices.first()?.blocks()?;
    let are_equal = matrices.iter().all(|it| it.blocks() == Some(format));
    are_equal.then_some(format)
}

/// Returns the squared errors of `weight`, rows of `columns`, in each format, in the order of [`WeightBits::ROUNDED`]: zeros
/// for all if rows are not whole groups.
fn errors(weight: &[f32], columns: usize) -> [f64; WeightBits::ROUNDED.len()] {
    if !columns.is_multiple_of(GROUP) {
        return [0.0; WeightBits::ROUNDED.len()];
    }
    let rows = weight.len() / columns;
    let error = |matrix: Matrix| {
        let mut wide = vec![0.0; columns];
        let mut sum = 0.0;
        for (row, weight) in weight.chunks_exact(columns).enumerate() {
            matrix.widen_row(row, &mut wide);
            let errors = weight.iter().zip(&wide);
            sum += errors
                .map(|(one, other)| f64::from(one - other).powi(2))
                .sum::<f64>();
        }
        sum
    };
    let mut values = vec![0; weight.len() / 2];
    let mut scales = vec![half::f16::ZERO; weight.len() / GROUP];
    quantize_int4(weight, &mut values, &mut scales);
    let of_four = error(Matrix::Int4 {
        values: &values,
        scales: &scales,
    });
    let mut bytes = vec![0; BlockFormat::Q5_0.bytes_for(weight.len())];
    quantize_q5_0(weight, &mut bytes);
    let of_five = error(Matrix::Blocks(Blocks {
        format: BlockFormat::Q5_0,
        bytes: &bytes,
        arithmetic: BlockArithmetic::default(),
    }));
    let (mut values, mut scales) = (vec![0; weight.len()], vec![0.0; rows]);
    int8::quantize_weight_rows(weight, columns, &mut scales, &mut values);
    let of_eight = error(Matrix::Int8 {
        values: &values,
        scales: &scales,
    });
    [of_four, of_five, of_eight]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the candidates of a layer of `weights` weights with this divergence in four bits.
    fn layer((weights, divergence): (u32, f64)) -> Vec<Candidate> {
        let rest = [1.0, 0.25, 0.01];
        let candidates = WeightBits::ROUNDED.into_iter().zip(rest);
        let candidates = candidates.map(|(bits, rest)| Candidate {
            bits,
            size: u128::from(weights) * u128::from(bits.number().unwrap()),
            divergence: divergence * rest,
        });
        candidates.collect()
    }

    fn size(layers: &[Vec<Candidate>], chosen: &[WeightBits]) -> u128 {
        let chosen = layers.iter().zip(chosen);
        let size = |(of_layer, bits): (&Vec<Candidate>, &WeightBits)| {
            let candidate = of_layer.iter().find(|it| it.bits == *bits);
            candidate.unwrap().size
        };
        chosen.map(size).sum()
    }

    proptest! {
        #[test]
        fn bits_stay_within_the_budget_and_use_it(
            layers in prop::collection::vec((1u32..1000, 0f64..1.0), 1..20), budget in 3f64..10.0,
        ) {
            let weights: u32 = layers.iter().map(|(weights, _)| weights).sum();
            let layers: Vec<_> = layers.into_iter().map(layer).collect();
            let budget = (f64::from(weights) * budget) as u128;
            match choose(&layers, budget) {
                None => prop_assert!(4 * u128::from(weights) > budget),
                Some(chosen) => {
                    let size = size(&layers, &chosen);
                    prop_assert!(size <= budget, "{} of {}", size, budget);
                    // No layer that could gain would still fit.
                    for (of_layer, bits) in layers.iter().zip(&chosen) {
                        let at = of_layer.iter().position(|it| it.bits == *bits).unwrap();
                        let more = of_layer.get(at + 1).filter(|it| it.divergence < of_layer[at].divergence);
                        prop_assert!(more.is_none_or(|it| size + it.size - of_layer[at].size > budget));
                    }
                }
            }
        }

        #[test]
        fn of_layers_of_one_size_the_one_with_the_larger_divergence_never_has_fewer_bits(
            divergences in prop::collection::vec(0f64..1.0, 2..20), budget in 4f64..9.0,
        ) {
            let layers: Vec<_> = divergences.iter().map(|it| layer((64, *it))).collect();
            let budget = (64.0 * budget * divergences.len() as f64) as u128;
            let chosen = choose(&layers, budget).unwrap();
            let mut order: Vec<_> = (0..chosen.len()).collect();
            // Of equal layers, the first gets more bits.
            order.sort_by(|one, other| divergences[*one].total_cmp(&divergences[*other]).then(other.cmp(one)));
            let bits: Vec<_> = order.iter().map(|it| chosen[*it]).collect();
            prop_assert!(bits.is_sorted(), "{:?}", bits);
        }
    }

    #[test]
    fn a_budget_below_four_bits_has_no_choice() {
        assert_eq!(choose(&[layer((10, 1.0))], 39), None);
        assert_eq!(
            choose(&[layer((10, 1.0))], 40),
            Some(vec![WeightBits::Four])
        );
    }
}
