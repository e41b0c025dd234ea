//! What another app costs each policy: a processor that is slowed or stopped for a while, whenever that begins.

use serde::Serialize;
use triad_model::description::ModelDescription;

use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{Contention, Options, Prefill, processors};
use triad_plan::schedule::Policy;

/// Another app, on one processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disturbance {
    /// Whether the NPU is disturbed, and not the processor of floats.
    pub npu: bool,
    /// Share of its time that is taken.
    pub share: f64,
    /// For how long.
    pub seconds: f64,
}

impl Disturbance {
    /// Half of either processor for 200 ms, and all of it for 100 ms: the same work is lost.
    pub const ALL: [Self; 4] = [
        Self {
            npu: false,
            share: 0.5,
            seconds: 0.2,
        },
        Self {
            npu: false,
            share: 1.0,
            seconds: 0.1,
        },
        Self {
            npu: true,
            share: 0.5,
            seconds: 0.2,
        },
        Self {
            npu: true,
            share: 1.0,
            seconds: 0.1,
        },
    ];
}

/// What a disturbance costs one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Which policy.
    pub policy: Policy,
    /// By what.
    pub disturbance: Disturbance,
    /// Alone on the device.
    pub alone_seconds: f64,
    /// Longer by this, for each moment at which it begins.
    pub delays: Vec<f64>,
}

impl Cost {
    /// Of all moments.
    pub fn mean(&self) -> f64 {
        self.delays.iter().sum::<f64>() / self.delays.len().max(1) as f64
    }

    /// At the worst moment.
    pub fn worst(&self) -> f64 {
        self.delays
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
    }
}

/// What all disturbances cost all policies, beginning at `moments` equal distances of the run.
pub fn costs(
    device: &DeviceProfile,
    model: &ModelDescription,
    prompt: usize,
    moments: usize,
) -> Vec<Cost> {
    let of_policy = |policy| {
        let options = Options {
            window: Some(usize::MAX),
            ..Options::paper(policy)
        };
        let run = |contention| {
            Prefill::new(
                device,
                model,
                prompt,
                &Options {
                    contention,
                    ..options.clone()
                },
            )
            .run()
        };
        let alone_seconds = run(Vec::new()).seconds;
        Disturbance::ALL.map(|disturbance| {
            let delay = |moment: usize| {
                let from = alone_seconds * moment as f64 / moments as f64;
                let processors = processors(device, options.floats_on, options.window);
                let processor = processors
                    .id(if disturbance.npu { "npu" } else { "cpu" })
                    .expect("the paper has both");
                let to = from + disturbance.seconds;
                run(vec![Contention {
                    processor,
                    share: disturbance.share,
                    from,
                    to,
                }])
                .seconds
                    - alone_seconds
            };
            Cost {
                policy,
                disturbance,
                alone_seconds,
                delays: (0..moments).map(delay).collect(),
            }
        })
    };
    Policy::ALL.into_iter().flat_map(of_policy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::family::shape;

    #[test]
    fn a_disturbance_costs_about_what_it_takes_at_most() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let costs = costs(&device, &shape("qwen1.5-1.8b").unwrap(), 512, 4);
        assert_eq!(costs.len(), 4 * Policy::ALL.len());
        let busy = |cost: &&Cost| cost.disturbance.npu && cost.policy != Policy::InOrder;
        assert!(
            costs.iter().filter(busy).all(|cost| cost.worst() > 0.05),
            "the NPU has no time to lose"
        );
        assert!(
            costs
                .iter()
                .all(|cost| cost.worst() < 0.25 && cost.mean() <= cost.worst())
        );
    }
}
