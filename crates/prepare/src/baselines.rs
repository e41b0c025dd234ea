//! The quantization methods with which shadow outliers are compared, on the same weights and kernels.

use triad_engine::quantization::{
    DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightScales, usable_clip,
};
use triad_engine::{Inputs, LinearInput};

use super::calibration::Calibration;
use super::calibration::statistics::InputStatistics;
use super::weight_statistics::ChannelWeights;

/// Strength with which SmoothQuant moves the difficulty from activations to weights (Xiao et al. 2023, equation 4).
pub const SMOOTHING_STRENGTH: f32 = 0.5;
/// Magnitude above which a channel is an outlier for LLM.int8() (Dettmers et al. 2022, §3.2).
pub const LLM_INT8_THRESHOLD: f32 = 6.0;

/// Returns naive W8A8: activations per tensor, scaled by the largest magnitude of the calibration text.
pub fn w8a8(calibration: &Calibration) -> Quantization {
    plan(calibration, |_, _, statistics| InputQuantization::Static {
        clip: usable_clip(statistics.largest_of_all()),
        shadow: false,
        smoothing: None,
    })
}

/// Returns SmoothQuant with static activations per tensor (its O3): outputs of norms are divided channel by channel by
/// max|x|^α / max|w|^(1−α), and the weights are multiplied by it. The inputs of attention's output and of down don't
/// follow a norm, and are not changed, as in the paper.
pub fn smooth_quant(calibration: &Calibration, weights: &[Inputs<ChannelWeights>]) -> Quantization {
    plan(calibration, |block, input, statistics| {
        if !matches!(input, LinearInput::Attention | LinearInput::FeedForward) {
            let clip = usable_clip(statistics.largest_of_all());
            return InputQuantization::Static {
                clip,
                shadow: false,
                smoothing: None,
            };
        }
        let of_channel = |(x, w): (&f32, &f32)| {
            let factor =
                x.max(1e-5).powf(SMOOTHING_STRENGTH) / w.max(1e-5).powf(1.0 - SMOOTHING_STRENGTH);
            1.0 / factor.max(1e-5)
        };
        let largest = statistics.largest();
        let smoothing: Vec<f32> = largest
            .iter()
            .zip(&weights[block][input.index()].largest)
            .map(of_channel)
            .collect();
        let clip = largest
            .iter()
            .zip(&smoothing)
            .map(|(x, factor)| x * factor)
            .fold(0.0, f32::max);
        InputQuantization::Static {
            clip: usable_clip(clip),
            shadow: false,
            smoothing: Some(smoothing),
        }
    })
}

/// Returns LLM.int8(): one scale per token, outlier channels in float with the original weights.
pub fn llm_int8(blocks: usize) -> Quantization {
    let input = InputQuantization::Dynamic {
        outlier_threshold: LLM_INT8_THRESHOLD,
    };
    quantization(
        (0..blocks)
            .map(|_| [(); LinearInput::ALL.len()].map(|()| input.clone()))
            .collect(),
    )
}

fn plan(
    calibration: &Calibration,
    of_input: impl Fn(usize, LinearInput, &InputStatistics) -> InputQuantization,
) -> Quantization {
    let blocks = calibration
        .blocks
        .iter()
        .enumerate()
        .map(|(block, inputs)| {
            LinearInput::ALL.map(|input| of_input(block, input, &inputs[input.index()]))
        });
    quantization(blocks.collect())
}

/// Returns a quantization of these blocks; the baselines do not change the output matrix.
fn quantization(blocks: Vec<Inputs<InputQuantization>>) -> Quantization {
    Quantization {
        weight_scales: WeightScales::Channel,
        decode_weights: DecodeWeights::Int8,
        output_weights: OutputWeights::Float,
        blocks,
    }
}
