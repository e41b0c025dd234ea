//! Measures the gain of each technique in all combinations. A technique that is measured last, in addition to the
//! others, seems to gain more or less than by itself.

use serde::Serialize;
use triad_model::description::ModelDescription;

use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{Options, Prefill, Techniques};
use triad_plan::schedule::Policy;

/// One combination of techniques.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Combination {
    /// Whether graphs are built in advance.
    pub chunk_sharing: bool,
    /// Whether activations have one scale per tensor, with shadows.
    pub shadow: bool,
    /// Whether the policy chooses the order of tasks.
    pub out_of_order: bool,
    /// Seconds of the prefill.
    pub seconds: f64,
    /// Part of `seconds` in which graphs are built.
    pub prepare_seconds: f64,
    /// Energy of the prefill.
    pub joules: f64,
}

/// Names of the techniques, in the order of the bits of a combination's index.
pub const NAMES: [&str; 3] = ["chunk-sharing", "shadow", "out-of-order"];

/// Returns all eight combinations. Each bit of an index stands for one technique of [`NAMES`], starting with the
/// lowest.
pub fn combinations(
    device: &DeviceProfile,
    model: &ModelDescription,
    prompt: usize,
    policy: Policy,
) -> Vec<Combination> {
    let of_place = |place: usize| {
        let [chunk_sharing, shadow, out_of_order] = [0, 1, 2].map(|bit| place >> bit & 1 == 1);
        let techniques = Techniques {
            chunk_sharing,
            shadow,
            out_of_order,
            ..Techniques::ALL
        };
        // The contents of a window would depend on the length of chunks.
        let options = Options {
            techniques,
            window: Some(usize::MAX),
            ..Options::paper(policy)
        };
        let prefill = Prefill::new(device, model, prompt, &options);
        let outcome = prefill.run();
        Combination {
            chunk_sharing,
            shadow,
            out_of_order,
            seconds: outcome.seconds,
            prepare_seconds: prefill.prepare_seconds,
            joules: outcome.joules,
        }
    };
    (0..8).map(of_place).collect()
}

/// Returns the speedup by a technique, `without / with`, for each combination of the others.
pub fn factors(combinations: &[Combination], technique: usize) -> Vec<f64> {
    let without = (0..combinations.len()).filter(|place| place >> technique & 1 == 0);
    without
        .map(|place| combinations[place].seconds / combinations[place | 1 << technique].seconds)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_model::family::shape;

    #[test]
    fn out_of_order_gives_nothing_to_a_prompt_that_is_one_graph() {
        let device = DeviceProfile::builtin("snapdragon-8gen3").unwrap();
        let all = combinations(
            &device,
            &shape("qwen1.5-1.8b").unwrap(),
            512,
            Policy::CriticalPath,
        );
        let of_order = factors(&all, 2);
        // Without the other two, with chunk-sharing, with shadow, with both.
        assert!(
            of_order[0] < 1.01 && of_order[1] > 1.01 && of_order[3] > 1.2,
            "{of_order:?}"
        );
        assert!(factors(&all, 1).iter().all(|factor| *factor > 1.0));
        assert!(
            (all[7].seconds, all[7].prepare_seconds) < (all[0].seconds, all[0].prepare_seconds)
        );
    }
}
