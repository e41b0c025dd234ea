//! llm.npu's tables and figures, as far as its text states numbers.
//!
//! The profile of the device is fitted to a few values of Qwen1.5-1.8B. For figures 8 and 14 to 17, the text states
//! only ranges and single values, not the height of each bar. [`paper`] has table 4, and the paper's numbers, each in
//! the words of its text.

mod ablation;
mod end_to_end;
mod hardware;
mod memory;
pub mod paper;
mod prefill;
mod schedules;

use triad_model::description::ModelDescription;
use triad_model::family;

use crate::papers::quotes::Quote;
use crate::papers::{Cited, Section};
use triad_plan::device::DeviceProfile;
use triad_plan::prefill::{Options, Outcome, Prefill};
use triad_plan::schedule::Policy;

/// Names of the sections that can be reproduced.
pub const NAMES: [&str; 12] = [
    "figure-1",
    "micro-benchmarks",
    "sharing",
    "figure-8",
    "hot-rows",
    "figure-13",
    "figure-14",
    "figure-15",
    "table-4",
    "figure-16",
    "figure-17",
    "schedules",
];

/// The first of the paper's models, which the profile is fitted to.
const QWEN: &str = paper::MODELS[0];

/// Returns the section called `name`, simulated on the Snapdragon 8 Gen 3; `None` if there is none.
pub fn section(name: &str) -> Option<Section> {
    let phone = Phone(DeviceProfile::builtin("snapdragon-8gen3").expect("a profile of ours"));
    let section = match name {
        "figure-1" => end_to_end::figure_1(&phone),
        "micro-benchmarks" => hardware::micro_benchmarks(&phone),
        "sharing" => memory::sharing(),
        "figure-8" => hardware::figure_8(&phone),
        "hot-rows" => memory::hot_rows(&phone),
        "figure-13" => prefill::figure_13(&phone),
        "figure-14" => prefill::figure_14(&phone),
        "figure-15" => prefill::figure_15(&phone),
        "table-4" => end_to_end::table_4(&phone),
        "figure-16" => memory::figure_16(&phone),
        "figure-17" => ablation::figure_17(&phone),
        "schedules" => schedules::schedules(&phone),
        _ => return None,
    };
    Some(section)
}

/// The device's profile. Its methods simulate the paper's system on it.
struct Phone(DeviceProfile);

impl Phone {
    /// Simulates a prompt of `prompt` tokens.
    fn run(&self, name: &str, prompt: usize, options: &Options) -> Outcome {
        Prefill::new(&self.0, &model(name), prompt, options).run()
    }

    /// Returns the seconds of a prefill by the paper's system.
    fn seconds(&self, name: &str, prompt: usize) -> f64 {
        self.run(name, prompt, &options()).seconds
    }

    /// Returns the seconds of a decoded token on the CPU.
    fn token(&self, name: &str, prompt: usize) -> f64 {
        self.0.cpu.decode_token(&model(name), prompt)
    }
}

fn model(name: &str) -> ModelDescription {
    family::shape(name).expect("a shape of ours")
}

/// Returns the options of the paper's system: its policy, and the whole model on the NPU.
fn options() -> Options {
    Options {
        window: Some(usize::MAX),
        ..Options::paper(Policy::Paper)
    }
}

/// Returns the options of the paper's system with in-order execution.
fn in_order() -> Options {
    Options {
        window: Some(usize::MAX),
        ..Options::paper(Policy::InOrder)
    }
}

/// Returns the geometric mean of some numbers; `None` if there are none.
fn geometric_mean(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<_> = numbers.into_iter().map(f64::ln).collect();
    (!logarithms.is_empty())
        .then(|| (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

/// Returns the minimum and the maximum of some numbers.
fn ends(numbers: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    numbers.into_iter().fold(start, |(least, largest), number| {
        (least.min(number), largest.max(number))
    })
}

fn range(from: &Quote, to: &Quote) -> (f64, f64) {
    (from.value, to.value)
}

/// Creates a cited range of the paper, or one number twice.
fn cited(what: impl AsRef<str>, from: &Quote, to: &Quote) -> Cited {
    let section = if from.section == "abstract" {
        "abstract".to_owned()
    } else {
        format!("§{}", from.section)
    };
    Cited {
        what: format!("{} ({section})", what.as_ref()),
        paper: range(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{Kind, Nearness, Value};
    use triad_model::family::shape;

    fn qwen(prompt: usize, options: &Options) -> Prefill {
        Prefill::new(
            &DeviceProfile::builtin("snapdragon-8gen3").unwrap(),
            &shape("qwen1.5-1.8b").unwrap(),
            prompt,
            options,
        )
    }

    fn near(ours: f64, paper: f64, tolerance: f64) {
        assert!(
            (ours / paper - 1.0).abs() <= tolerance,
            "{ours}, not {paper}"
        );
    }

    #[test]
    fn the_profile_gives_back_what_it_was_fitted_to() {
        let options = Options::paper(Policy::Paper);
        let one = qwen(256, &options).run();
        near(one.timeline.busy(one.npu), 0.315, 0.01);
        near(one.timeline.busy(one.float), 0.315 / 2.0, 0.01);
        let four = qwen(1024, &options).run();
        near(four.tokens_per_second(), paper::speed_at_1024(), 0.01);
        let unpruned = Options {
            prune: 0.0,
            ..options.clone()
        };
        let unpruned = qwen(1024, &unpruned).run();
        let none = qwen(
            1024,
            &Options {
                prune: 1.0,
                ..options
            },
        )
        .run();
        near(1.0 - none.seconds / unpruned.seconds, 0.297, 0.01);
    }

    fn values(name: &str) -> Vec<Value> {
        section(name).unwrap().values
    }

    #[test]
    fn every_name_is_a_section_with_values_that_are_numbers() {
        for name in NAMES {
            let section = section(name).unwrap();
            assert!(section.name == name && !section.values.is_empty());
            assert!(
                section
                    .values
                    .iter()
                    .all(|value| value.ours.is_finite() && value.ours > 0.0),
                "{section:?}"
            );
        }
        assert!(section("figure-2").is_none());
    }

    #[test]
    fn what_is_cited_has_the_reason_why_it_is_not_simulated() {
        for section in NAMES.map(|name| section(name).unwrap()) {
            assert_eq!(
                section.cited.is_empty(),
                section.not_simulated.is_empty(),
                "{}",
                section.name
            );
        }
        let engines = section("table-4").unwrap().cited;
        assert_eq!(engines.len(), 68);
        assert!(
            engines.iter().any(
                |cited| cited.what == "phi-2, TriviaQA, TFLite, s" && cited.paper == (6.8, 6.8)
            )
        );
    }

    #[test]
    fn what_was_fitted_to_one_number_fits_and_what_was_fitted_to_a_range_is_inside() {
        let mut fitted = 0;
        for value in NAMES
            .into_iter()
            .flat_map(values)
            .filter(|value| value.kind == Kind::Fitted)
        {
            fitted += 1;
            assert!(
                value.error().is_none_or(|error| error.abs() < 0.03),
                "{value:?}"
            );
            assert!(value.inside() != Some(false), "{value:?}");
        }
        assert!(fitted >= 12, "{fitted}");
    }

    #[test]
    fn predictions_are_as_far_off_as_the_documentation_has_it() {
        let found =
            Nearness::new(&NAMES.map(|name| section(name).unwrap()), Kind::HeldOut).unwrap();
        assert!(
            (found.mean_error.unwrap() - 0.255).abs() < 0.002,
            "{found:?}"
        );
    }

    #[test]
    fn values_are_held_out_only_where_no_choice_was_made_in_sight_of_them() {
        let has = |name: &str, kind| values(name).iter().any(|value| value.kind == kind);
        let of = |kind| -> Vec<_> { NAMES.into_iter().filter(|name| has(name, kind)).collect() };
        let held_out = [
            "micro-benchmarks",
            "figure-13",
            "figure-14",
            "figure-15",
            "figure-17",
        ];
        assert_eq!(of(Kind::HeldOut), held_out);
        assert_eq!(
            of(Kind::Seen),
            ["figure-1", "figure-8", "figure-14", "table-4", "figure-17"]
        );
        // The window was disabled for the 7B models, and build times are Gemma-2B's.
        for value in values("figure-17")
            .iter()
            .filter(|value| value.kind == Kind::HeldOut)
        {
            assert!(!value.what.contains("llama-2-7b"), "{value:?}");
            assert!(
                !(value.what.contains("gemma") && value.what.contains("chunk-sharing")),
                "{value:?}"
            );
            assert!(
                !(value.what.contains("gemma") && value.what.contains("naive")),
                "{value:?}"
            );
        }
        assert!(
            values("table-4")
                .iter()
                .all(|value| value.kind != Kind::HeldOut)
        );
    }

    #[test]
    fn a_value_is_compared_where_the_paper_has_one_and_only_there() {
        for value in NAMES.into_iter().flat_map(values) {
            assert_eq!(
                value.paper.is_some(),
                value.kind != Kind::Simulated,
                "{value:?}"
            );
        }
    }

    #[test]
    fn the_speed_at_1024_tokens_is_compared_with_what_the_texts_have() {
        let values = values("figure-14");
        let of = |what: &str| values.iter().find(|value| value.what == what).unwrap();
        assert_eq!(
            of("qwen1.5-1.8b, 1024 tokens, tokens/s").paper,
            Some((1000.0, f64::INFINITY))
        );
        assert_eq!(
            of("qwen1.5-1.8b, 1024 tokens, twice HeteroLLM's at 256, tokens/s").paper,
            Some((1128.0, 1128.0))
        );
    }
}
