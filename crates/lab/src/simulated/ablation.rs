//! What each technique gives, in all combinations: a technique that is measured last, on top of the others, looks like
//! more or less than it is by itself.

use serde::Serialize;
use triad_model::description::ModelDescription;

use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{Options, Prefill, Techniques};
use triad_plan::schedule::Policy;

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Combination {
    /// Graphs are built ahead.
    pub chunk_sharing: bool,
    /// One scale for a tensor, and shadows.
    pub shadow: bool,
    /// Tasks run by the policy.
    pub out_of_order: bool,
    /// Of the prefill.
    pub seconds: f64,
    /// Of these, for building graphs.
    pub prepare_seconds: f64,
    /// Drawn.
    pub joules: f64,
}

/// Names of the techniques, in the order of the bits of a combination's number.
pub const NAMES: [&str; 3] = ["chunk-sharing", "shadow", "out-of-order"];

/// All eight combinations; each bit of a place is one technique, [`NAMES`] in their order from the lowest.
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
        // What a window holds would depend on the length of chunks.
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

/// By how much a technique shortens the prefill, beside each combination of the others: `without / with`.
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
        // Beside neither, chunk-sharing, shadow, both.
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
