//! Finds the number of outliers from which a matmul on two processors is slower than one processor that can compute
//! everything.

use serde::Serialize;
use triad_model::description::ModelDescription;

use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{FloatsOn, Options, Prefill};
use triad_plan::schedule::Policy;

/// A prefill with outliers in a share of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Share of the residual stream's channels.
    pub share: f64,
    /// Seconds on the NPU with 85 % of the shadows pruned.
    pub pruned_seconds: f64,
    /// Seconds on the NPU with all shadows kept.
    pub kept_seconds: f64,
}

/// Results of all prefills.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// One point per share of outlier channels.
    pub points: Vec<Point>,
    /// Seconds if everything runs on the CPU, including INT8 matmuls.
    pub cpu_seconds: f64,
    /// Seconds if everything runs on the GPU.
    pub gpu_seconds: Option<f64>,
    /// Share from which splitting with all shadows is slower than the CPU alone; `None` if it never is.
    pub slower_than_cpu: Option<f64>,
    /// Share from which it is slower than the GPU alone.
    pub slower_than_gpu: Option<f64>,
}

/// Shares of the channels that are tried.
pub const SHARES: [f64; 12] = [
    0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0,
];

/// Simulates prefills of `prompt` tokens with more and more outliers.
pub fn rates(
    device: &DeviceProfile,
    model: &ModelDescription,
    prompt: usize,
    policy: Policy,
) -> Rates {
    let usual = Options {
        window: Some(usize::MAX),
        ..Options::paper(policy)
    };
    let split = |share: f64, prune: f64| {
        let outlier_channels = share * model.hidden as f64;
        let options = Options {
            outlier_channels,
            prune,
            ..usual.clone()
        };
        Prefill::new(device, model, prompt, &options).run().seconds
    };
    let alone = |floats_on| {
        let options = Options {
            window: Some(0),
            floats_on,
            ..usual.clone()
        };
        Prefill::new(device, model, prompt, &options).run().seconds
    };
    let cpu_seconds = alone(FloatsOn::Cpu);
    let gpu_seconds = device.gpu.is_some().then(|| alone(FloatsOn::Gpu));
    let crossing = |limit: f64| {
        if split(1.0, 0.0) <= limit {
            return None;
        }
        let (mut below, mut above) = (0.0, 1.0);
        for _ in 0..20 {
            let middle = (below + above) / 2.0;
            *(if split(middle, 0.0) <= limit {
                &mut below
            } else {
                &mut above
            }) = middle;
        }
        Some(above)
    };
    Rates {
        points: SHARES
            .map(|share| Point {
                share,
                pruned_seconds: split(share, 0.85),
                kept_seconds: split(share, 0.0),
            })
            .into(),
        cpu_seconds,
        gpu_seconds,
        slower_than_cpu: crossing(cpu_seconds),
        slower_than_gpu: gpu_seconds.and_then(crossing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::family::shape;

    #[test]
    fn more_outliers_take_longer_until_one_processor_is_faster() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let rates = rates(
            &device,
            &shape("qwen1.5-1.8b").unwrap(),
            512,
            Policy::CriticalPath,
        );
        // Not from each point to the next: slower tasks may by chance lead to a better order (Graham).
        let (first, last) = (rates.points[0], rates.points[rates.points.len() - 1]);
        assert!(
            first.kept_seconds < last.kept_seconds && first.pruned_seconds < last.pruned_seconds
        );
        assert!(
            rates
                .points
                .iter()
                .all(|point| point.pruned_seconds < point.kept_seconds)
        );
        let crossing = rates.slower_than_gpu.unwrap();
        assert!((0.01..1.0).contains(&crossing), "{crossing}");
    }
}
