//! Fits the parameters of the Snapdragon 8 Gen 3 profile that the papers' texts do not state, to the papers' results
//! for llm.npu with Qwen1.5-1.8B, and prints them:
//!
//! ```sh
//! cargo run --release -p triad-lab --example fit_llm_npu
//! ```

use triad_lab::papers::llm_npu::paper;
use triad_model::family;
use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{FloatsOn, Options, Prefill};
use triad_plan::schedule::Policy;

/// Parameters are fitted one at a time, in this many rounds or until none changes.
const TURNS: usize = 60;

fn main() {
    let description = family::shape(paper::MODELS[0]).expect("a shape of ours");
    let mut device = DeviceProfile::builtin("snapdragon-8gen3").expect("a profile of ours");
    let run = |device: &DeviceProfile, prompt, options: &Options| {
        Prefill::new(device, &description, prompt, options).run()
    };
    let usual = Options {
        window: Some(usize::MAX),
        ..Options::paper(Policy::Paper)
    };
    let speed = |device: &DeviceProfile| run(device, 1024, &usual).tokens_per_second();
    let npu_at_256 = |device: &DeviceProfile| {
        let short = run(device, 256, &usual);
        1e3 * short.timeline.busy(short.npu)
    };
    let cpu_at_256 = |device: &DeviceProfile| {
        let short = run(device, 256, &usual);
        1e3 * short.timeline.busy(short.float)
    };
    let of_shadows = |device: &DeviceProfile| {
        let seconds = |prune| {
            run(
                device,
                1024,
                &Options {
                    prune,
                    ..usual.clone()
                },
            )
            .seconds
        };
        100.0 * (1.0 - seconds(1.0) / seconds(0.0))
    };
    let over_cpu = |device: &DeviceProfile| {
        let alone = Options {
            window: Some(0),
            floats_on: FloatsOn::Cpu,
            ..usual.clone()
        };
        run(device, 1024, &alone).seconds / run(device, 1024, &usual).seconds
    };
    type Field = fn(&mut DeviceProfile) -> &mut f64;
    type Simulated<'a> = &'a dyn Fn(&DeviceProfile) -> f64;
    let numbers: [(&str, Field, [f64; 2], f64, Simulated); 5] = [
        (
            "wake_milliseconds",
            |device| &mut device.wake_milliseconds,
            [0.0, 5.0],
            paper::NPU_AT_256.value,
            &npu_at_256,
        ),
        (
            "npu.launch_milliseconds",
            |device| &mut device.npu.launch_milliseconds,
            [0.0, 5.0],
            paper::speed_at_1024(),
            &speed,
        ),
        (
            "cpu.launch_milliseconds",
            |device| &mut device.cpu.launch_milliseconds,
            [0.0, 5.0],
            paper::NPU_AT_256.value / 2.0,
            &cpu_at_256,
        ),
        (
            "npu.join_milliseconds",
            |device| &mut device.npu.join_milliseconds,
            [0.0, 5.0],
            paper::SHADOWS_LATENCY.value,
            &of_shadows,
        ),
        (
            "cpu.int8_tera_operations",
            |device| &mut device.cpu.int8_tera_operations,
            [0.05, 5.0],
            paper::MNN.value,
            &over_cpu,
        ),
    ];
    for _ in 0..TURNS {
        for (_, field, range, target, of) in &numbers {
            let before = *field(&mut device);
            let value = root(*range, |value| {
                *field(&mut device) = value;
                of(&device) - target
            });
            // Half of the step, since the parameters depend on each other.
            *field(&mut device) = (before + value) / 2.0;
        }
    }
    for (name, field, _, target, of) in &numbers {
        let simulated = of(&device);
        println!(
            "{name} = {:.4}: {simulated:.4}, of {target}",
            field(&mut device)
        );
    }
}

/// Returns a zero of `of` within a range in which it is monotonic, or the end that is nearer to zero if there is none.
fn root([mut low, mut high]: [f64; 2], mut of: impl FnMut(f64) -> f64) -> f64 {
    let (at_low, at_high) = (of(low), of(high));
    if (at_low < 0.0) == (at_high < 0.0) {
        return if at_low.abs() < at_high.abs() {
            low
        } else {
            high
        };
    }
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        *(if (of(middle) < 0.0) == (at_low < 0.0) {
            &mut low
        } else {
            &mut high
        }) = middle;
    }
    (low + high) / 2.0
}
