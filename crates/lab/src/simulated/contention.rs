//! Simulates the cost of another app for each policy: it slows or stops a processor for a while, starting at any
//! moment.

use serde::Serialize;
use triad_model::description::ModelDescription;

use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{Contention, Options, Prefill, processors};
use triad_plan::schedule::Policy;

/// Another app on one processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Disturbance {
    /// Whether the NPU is disturbed; otherwise the processor of float operators is.
    pub npu: bool,
    /// Share of the processor's time that the app takes.
    pub share: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Disturbance {
    /// Half of either processor for 200 ms, and all of it for 100 ms. Both take the same amount of work.
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

/// Cost of a disturbance for one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The policy.
    pub policy: Policy,
    /// The disturbance.
    pub disturbance: Disturbance,
    /// Seconds without the disturbance.
    pub alone_seconds: f64,
    /// Delay for each start of the disturbance, in seconds.
    pub delays: Vec<f64>,
}

impl Cost {
    /// Returns the mean delay.
    pub fn mean(&self) -> f64 {
        self.delays.iter().sum::<f64>() / self.delays.len().max(1) as f64
    }

    /// Returns the largest delay.
    pub fn worst(&self) -> f64 {
        self.delays
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Returns the costs of all disturbances for all policies, starting at `moments` equidistant moments of the run.
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
