//! Fits the parameters of `[w4a16]` in the Snapdragon 8 Gen 3 profile that the HeteroLLM paper's text does not state,
//! to the paper's results for Llama-8B with 256 tokens, on the GPU alone and by Hetero-layer, and prints them:
//!
//! ```sh
//! cargo run --release -p triad-lab --example fit_w4a16
//! ```

use triad_lab::heterollm::rendering::{Game, Submission};
use triad_lab::heterollm::{Hetero, Mode, Run};
use triad_lab::papers::heterollm::paper;
use triad_model::family;
use triad_plan::device::DeviceProfile;
use triad_plan::device::weight_only::WeightOnly;
use triad_plan::partition::products;
use triad_plan::partition::profile::Waiting;

fn main() {
    let description = family::shape("llama-3-8b").expect("a shape of ours");
    let mut device = DeviceProfile::builtin("snapdragon-8gen3").expect("a profile of ours");
    let run = |device: &DeviceProfile, mode: Mode| -> Run {
        let hetero =
            Hetero::new(device, &description, Waiting::Fast).expect("a profile with W4A16");
        hetero.prefill(256, mode).expect("one plan has 256 tokens")
    };
    // Fits one parameter at a time: the GPU's results depend on none of the NPU's parameters.
    let mut fit = |field: fn(&mut WeightOnly) -> &mut f64,
                   range: [f64; 2],
                   target: f64,
                   of: &dyn Fn(&DeviceProfile) -> f64| {
        let value = root(range, |value| {
            *field(device.w4a16.as_mut().expect("a profile with W4A16")) = value;
            of(&device) - target
        });
        *field(device.w4a16.as_mut().expect("a profile with W4A16")) = value;
        value
    };
    let speed = |mode: Mode| move |device: &DeviceProfile| 256.0 / run(device, mode).seconds();
    let gpu = fit(
        |w4a16| &mut w4a16.gpu.tera_operations,
        [0.1, 10.0],
        paper::gpu_only_speed(),
        &speed(Mode::GpuOnly),
    );
    let npu = fit(
        |w4a16| &mut w4a16.npu.order_slowdown,
        [0.0, 20.0],
        paper::layer_speed(),
        &speed(Mode::HeteroLayer),
    );
    println!("gpu.tera_operations = {gpu:.4}\nnpu.order_slowdown = {npu:.4}");
    let power = |mode: Mode| move |device: &DeviceProfile| run(device, mode).watts();
    let gpu = fit(
        |w4a16| &mut w4a16.gpu.busy_watts,
        [0.0, 20.0],
        paper::gpu_only_watts(),
        &power(Mode::GpuOnly),
    );
    let npu = fit(
        |w4a16| &mut w4a16.npu.busy_watts,
        [0.0, 20.0],
        paper::LAYER_WATTS.value,
        &power(Mode::HeteroLayer),
    );
    println!("gpu.busy_watts = {gpu:.4}\nnpu.busy_watts = {npu:.4}");
    let layer = run(&device, Mode::HeteroLayer);
    let frame = root([0.0, 15e-3], |frame_seconds| {
        let game = Game {
            frames_per_second: 60.0,
            frame_seconds,
        };
        let speed = layer.seconds() / game.during(&layer, Submission::OneByOne).seconds;
        paper::LAYER_LOSS_WITH_GAME.less() - speed
    });
    println!("milliseconds of a frame = {:.4}", 1e3 * frame);
    // Two lengths determine the two parameters of a line.
    let operations = |rows: usize| -> f64 {
        let products =
            products(&description.blocks[0], description.hidden, rows).expect("a few rows");
        products
            .iter()
            .map(|(_, shape)| shape.operations() / 1e9)
            .sum()
    };
    let [(short, of_short), (long, of_long)] = [
        (135, paper::GRAPHS_AT_135.value),
        (1000, paper::GRAPHS_AT_1000.value),
    ];
    let per_operation = (of_long - of_short) / (operations(long) - operations(short));
    let graph = (of_short - per_operation * operations(short)) / 4.0;
    println!(
        "npu.graph_milliseconds = {graph:.4}\nnpu.graph_milliseconds_per_giga_operation = {per_operation:.4}"
    );
}

/// Returns a zero of `of` within a range in which it is monotonic.
fn root([mut low, mut high]: [f64; 2], mut of: impl FnMut(f64) -> f64) -> f64 {
    let below = of(low) < 0.0;
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        *(if (of(middle) < 0.0) == below {
            &mut low
        } else {
            &mut high
        }) = middle;
    }
    (low + high) / 2.0
}
