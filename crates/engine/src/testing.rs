//! Helpers for tests (feature `testing`): float models in INT8, quantized by the linear inputs of a few tokens, and in
//! INT4; small [`models`] and [`adapters`], random [`steps`] of sessions, and the [`parts`] of an engine.
//!
//! The crate `triad-prepare`, above this one, quantizes with calibration.

pub mod adapters;
pub mod models;
pub mod parts;
pub mod steps;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use triad_kernels::int4::quantize_int4_for;

use crate::cancel::Cancel;
use crate::engine::SessionOptions;
use crate::linear_input::LinearInput;
use crate::model::Model;
use crate::quantization::{
    DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightScales, usable_clip,
};
use crate::session::Session;
use crate::vision::{Pixels, VisionModel};
use crate::weights::{Linear, Weight, linear_to_int4};

/// The share of an input's values that exceed its clip threshold, if it has a shadow.
const OUTLIER_SHARE: f64 = 0.01;

/// The values of one linear input over some tokens.
struct CostSample {
    /// The block, and the index of the input.
    place: (usize, usize),
    /// Magnitudes `[rows, channels]`.
    magnitudes: Vec<f32>,
    channels: usize,
    /// The magnitude that [`OUTLIER_SHARE`] of them exceed.
    clip: f32,
}

impl CostSample {
    fn new(place: (usize, usize), x: &[f32], channels: usize) -> Self {
        let magnitudes: Vec<f32> = x.iter().map(|x| x.abs()).collect();
        let mut ascending = magnitudes.clone();
        ascending.sort_by(f32::total_cmp);
        let clip =
            usable_clip(ascending[((1.0 - OUTLIER_SHARE) * (ascending.len() - 1) as f64) as usize]);
        Self {
            place,
            magnitudes,
            channels,
            clip,
        }
    }

    /// Returns the largest magnitude of each channel.
    fn largest(&self) -> Vec<f32> {
        let of_channel = |channel| {
            self.magnitudes
                .iter()
                .skip(channel)
                .step_by(self.channels)
                .copied()
        };
        (0..self.channels)
            .map(|channel| of_channel(channel).fold(0.0, f32::max))
            .collect()
    }

    fn importance(&self) -> f32 {
        self.magnitudes.iter().copied().fold(0.0, f32::max) / self.clip
    }

    /// Returns the quantization: with a shadow, clipped; without one, channels with outliers are scaled down by most of
    /// their excess.
    fn quantization(&self, shadow: bool) -> InputQuantization {
        if shadow {
            return InputQuantization::Static {
                clip: self.clip,
                shadow,
                smoothing: None,
            };
        }
        let largest = self.largest();
        let factors: Vec<f32> = largest
            .iter()
            .map(|largest| (self.clip / largest).powf(0.7).min(1.0))
            .collect();
        let clip = largest
            .iter()
            .zip(&factors)
            .map(|(largest, factor)| largest * factor)
            .fold(self.clip, f32::max);
        let smoothing = factors
            .iter()
            .any(|factor| *factor < 1.0)
            .then_some(factors);
        InputQuantization::Static {
            clip,
            shadow,
            smoothing,
        }
    }
}

/// Returns the float `model` in INT8, quantized by its linear inputs over `tokens`. The share `pruned` of the inputs,
/// those with the smallest maximum outliers, has no shadow.
///
/// # Panics
/// If `tokens` cannot be run.
pub fn quantize(
    model: &Arc<Model>,
    tokens: &[u32],
    pruned: f64,
    decode_weights: DecodeWeights,
) -> Model {
    let options = SessionOptions {
        context: tokens.len(),
        chunk: tokens.len(),
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options).expect("a prompt that fits the model");
    let mut observed = Observed::new();
    let mut observe = |block, input: LinearInput, x: &[f32]| {
        let place = (block, input.index());
        observed.entry(place).or_default().extend_from_slice(x);
    };
    session
        .observe(tokens, &Cancel::new(), &mut observe)
        .expect("a model that runs");
    let description = model.description();
    let channels = |block: usize, input: LinearInput| {
        input.channels(&description.blocks[block], description.hidden)
    };
    model.quantize(&quantization(
        (&observed, description.blocks.len(), channels),
        pruned,
        decode_weights,
    ))
}

/// Returns the float encoder `vision` in INT8, quantized by its linear inputs over `views`, as [`quantize`] does.
///
/// # Panics
/// If it cannot read a view.
pub fn quantize_vision(vision: &VisionModel, views: &[Pixels], pruned: f64) -> VisionModel {
    let mut observed = Observed::new();
    let mut observe = |block, input: LinearInput, x: &[f32]| {
        let place = (block, input.index());
        observed.entry(place).or_default().extend_from_slice(x);
    };
    for view in views {
        vision
            .observe(*view, &Cancel::new(), &mut observe)
            .expect("a view that the encoder reads");
    }
    let description = vision.description();
    let channels = |_, input| match input {
        LinearInput::Down => description.inner,
        _ => description.hidden,
    };
    let observed = (&observed, description.blocks, channels);
    vision.quantize(&quantization(observed, pruned, DecodeWeights::Int8), None)
}

/// The values of inputs, by block and input.
type Observed = BTreeMap<(usize, usize), Vec<f32>>;

/// Decides how to quantize some blocks by the values of their inputs, which have this many channels.
fn quantization(
    (observed, blocks, channels): (&Observed, usize, impl Fn(usize, LinearInput) -> usize),
    pruned: f64,
    decode_weights: DecodeWeights,
) -> Quantization {
    let sample = |(&(block, input), x): (&(usize, usize), &Vec<f32>)| {
        let channels = channels(block, LinearInput::ALL[input]);
        CostSample::new((block, input), x, channels)
    };
    let inputs: Vec<_> = observed.iter().map(sample).collect();
    let mut ascending: Vec<f32> = inputs.iter().map(CostSample::importance).collect();
    ascending.sort_by(f32::total_cmp);
    let least = ascending
        .get((pruned * inputs.len() as f64).round() as usize)
        .copied()
        .unwrap_or(f32::INFINITY);
    let unused = InputQuantization::Static {
        clip: 1.0,
        shadow: false,
        smoothing: None,
    };
    let of_block = LinearInput::ALL.map(|_| unused.clone());
    let mut blocks = vec![of_block; blocks];
    for sample in &inputs {
        let (block, input) = sample.place;
        blocks[block][input] = sample.quantization(sample.importance() >= least);
    }
    Quantization {
        weight_scales: WeightScales::Channel,
        decode_weights,
        output_weights: OutputWeights::Int8,
        blocks,
    }
}

/// Returns the float `model` in W4A16, with the scales for channels with ascending squares.
///
/// # Panics
/// If the model is not in float.
pub fn quantize_int4(model: &Model) -> Model {
    let convert = |_, _, linear: &Linear| {
        let Weight::Float(float) = &linear.weight else {
            panic!("the weights are in float")
        };
        let squares: Vec<f32> = (1..=float.in_features()).map(|it| it as f32).collect();
        Ok::<_, Infallible>(linear_to_int4(linear, |weight, values, scales| {
            quantize_int4_for(&squares, weight, values, scales);
        }))
    };
    let converted = model.install(|| {
        let weights = model.weights();
        weights.convert_linears(OutputWeights::Int8, convert)
    });
    model.with_weights(converted.unwrap_or_else(|error| match error {}))
}

/// Returns the float `model` in INT8 with one scale for each token, and all values beyond 6 in float (LLM.int8()).
pub fn quantize_dynamic(model: &Model) -> Model {
    let input = InputQuantization::Dynamic {
        outlier_threshold: 6.0,
    };
    let block = [(); LinearInput::ALL.len()].map(|()| input.clone());
    model.quantize(&Quantization {
        weight_scales: WeightScales::Channel,
        decode_weights: DecodeWeights::Int8,
        output_weights: OutputWeights::Float,
        blocks: vec![block; model.description().blocks.len()],
    })
}
