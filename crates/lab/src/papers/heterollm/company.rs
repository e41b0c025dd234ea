//! Concurrent games, and energy: figures 18 and 19, Llama-8B at 256 tokens.

use super::{GAME, LLAMA_8B, Phone, held_out, paper, repeated, seen};
use crate::heterollm::rendering::Submission;
use crate::heterollm::{Mode, Run};
use crate::papers::{Kind, Section, one, value};
use triad_plan::partition::profile::{Waiting, WeightOnlyCosts};

fn run(phone: &Phone, mode: Mode) -> Run {
    phone.prefill(LLAMA_8B, 256, mode, Waiting::Fast)
}

pub(super) fn figure_18(phone: &Phone) -> Section {
    let [gpu, layer, tensor] =
        [Mode::GpuOnly, Mode::HeteroLayer, Mode::HeteroTensor].map(|mode| run(phone, mode));
    // PPL's kernels are in the queue before the first one is complete.
    let with_gpu = GAME.during(&gpu, Submission::AllAtOnce);
    let [with_layer, with_tensor] =
        [&layer, &tensor].map(|run| GAME.during(run, Submission::OneByOne));
    let frames = paper::FRAMES.value;
    Section::new(
        "heterollm/figure-18",
        "A game on the same GPU. Hetero-layer's slowdown was fitted. Frames per second count the frames that were \
         complete in time while the prompt ran. Those with Hetero-layer nearly follow from the fit. PPL's kernels are \
         assumed to be all in the queue, since the game stops while it runs.",
        vec![
            held_out(
                "Hetero-tensor with a game, relative to without",
                one(paper::TENSOR_LOSS_WITH_GAME.less()),
                tensor.seconds() / with_tensor.seconds,
            ),
            held_out(
                "Hetero-tensor with a game over Hetero-layer without",
                one(paper::TENSOR_WITH_GAME_OVER_LAYER.more()),
                layer.seconds() / with_tensor.seconds,
            ),
            seen(
                "Hetero-layer, frames/s",
                one(frames),
                with_layer.frames_per_second,
            ),
            held_out(
                "Hetero-tensor, frames/s",
                one(frames),
                with_tensor.frames_per_second,
            ),
            seen(
                "GPU only, frames/s (\"dropping to zero\")",
                one(0.0),
                with_gpu.frames_per_second,
            ),
        ],
    )
}

pub(super) fn figure_19(phone: &Phone) -> Section {
    let [gpu, layer, tensor] =
        [Mode::GpuOnly, Mode::HeteroLayer, Mode::HeteroTensor].map(|mode| run(phone, mode));
    let over_layer = tensor.joules() / layer.joules();
    let efficiency = gpu.joules() / tensor.joules();
    let (faster, watts) = (
        paper::TENSOR_OVER_GPU.value,
        paper::TENSOR_WATTS_BELOW_GPU.less(),
    );
    let speed = gpu.seconds() / tensor.seconds();
    let busy = |run: &Run| 100.0 * run.timeline.busy(WeightOnlyCosts::GPU) / run.seconds();
    Section::new(
        "heterollm/figure-19",
        "Power and energy of Llama-8B at 256 tokens; the power of GPU only and of Hetero-layer was fitted. The text \
         contradicts itself: energy over Hetero-layer is +3.3 %, but 1.232 times the power divided by 1.244 times the \
         speed is 0.990; efficiency over GPU only is 5.87, but 2.72 divided by 0.633 is 4.30. Both are listed, and \
         the first ones count. 5.87 results if \"2.72× faster\" means 3.72 times as fast, which is also 2.99 (§5.2.1) \
         times 1.244; that repeats the first value and a fitted one.",
        vec![
            held_out(
                "Hetero-tensor over Hetero-layer, speed",
                one(paper::TENSOR_OVER_LAYER.more()),
                layer.seconds() / tensor.seconds(),
            ),
            held_out(
                "Hetero-tensor over GPU only, speed, as it is written",
                one(faster),
                speed,
            ),
            seen(
                "the same, of 2.99 (§5.2.1) by 1.244",
                one(paper::LAYER_OVER_GPU.value * paper::TENSOR_OVER_LAYER.more()),
                speed,
            ),
            held_out(
                "Hetero-tensor, W",
                one(paper::tensor_watts()),
                tensor.watts(),
            ),
            held_out(
                "Hetero-tensor over Hetero-layer, energy, as it is written",
                one(paper::ENERGY_OVER_LAYER.more()),
                over_layer,
            ),
            repeated(
                "the same, of power and speed",
                one(paper::TENSOR_WATTS_OVER_LAYER.more() / paper::TENSOR_OVER_LAYER.more()),
                over_layer,
            ),
            held_out(
                "GPU only over Hetero-tensor, energy, as it is written",
                one(paper::EFFICIENCY_OVER_GPU.value),
                efficiency,
            ),
            repeated(
                "the same, of power and speed",
                one(faster / watts),
                efficiency,
            ),
            value(
                "Hetero-layer, % of the time the GPU works",
                None,
                busy(&layer),
                Kind::Simulated,
            ),
            value(
                "Hetero-tensor, % of the time the GPU works",
                None,
                busy(&tensor),
                Kind::Simulated,
            ),
        ],
    )
}
