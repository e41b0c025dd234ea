//! HeteroLLM's figures, as far as its text states numbers.
//!
//! The profile's part for INT4 weights with f16 activations is fitted to Llama-8B with 256 tokens, for GPU only and
//! Hetero-layer: speed, power, and the slowdown by a game ([`hardware`]). Its other parameters are the paper's
//! measurements of the hardware. The profile was fixed before [`prefill`], [`decode`] and [`company`] were simulated.
//! [`paper`] has the paper's numbers, each in the words of its text. Percentages in the paper are compared as factors:
//! 23.4 % faster is 1.234 times as fast.

mod company;
mod decode;
mod hardware;
pub mod paper;
mod prefill;

use triad_model::family;

use crate::heterollm::rendering::Game;
use crate::heterollm::{Hetero, Mode, Run};
use crate::papers::quotes::Quote;
use crate::papers::{Cited, Kind, Section, Value, one, value};
use triad_plan::device::DeviceProfile;
use triad_plan::partition::profile::Waiting;

/// Names of the sections that can be reproduced.
pub const NAMES: [&str; 12] = [
    "heterollm/fit",
    "heterollm/figure-4",
    "heterollm/figure-5",
    "heterollm/figure-6",
    "heterollm/figure-9",
    "heterollm/figure-13",
    "heterollm/figure-14",
    "heterollm/figure-15",
    "heterollm/figure-16",
    "heterollm/figure-17",
    "heterollm/figure-18",
    "heterollm/figure-19",
];

/// The paper's models.
const LLAMA_8B: &str = "llama-3-8b";
const LLAMA_7B: &str = "llama-2-7b";
const LLAMA_3B: &str = "llama-3.2-3b";
const INTERNLM: &str = "internlm2-1.8b";
/// Prompt lengths in figures 13 and 15.
const LENGTHS: [usize; 3] = [64, 256, 1024];

/// The game of §5.5, with its default settings. Its frames are fitted to Hetero-layer's slowdown.
const GAME: Game = Game {
    frames_per_second: 60.0,
    frame_seconds: 5.8599e-3,
};

/// Returns the section called `name`, simulated on the Snapdragon 8 Gen 3; `None` if there is none.
pub fn section(name: &str) -> Option<Section> {
    let phone = Phone(DeviceProfile::builtin("snapdragon-8gen3").expect("a profile of ours"));
    let section = match name {
        "heterollm/fit" => hardware::fit(&phone),
        "heterollm/figure-4" => hardware::figure_4(&phone),
        "heterollm/figure-5" => hardware::figure_5(&phone),
        "heterollm/figure-6" => hardware::figure_6(&phone),
        "heterollm/figure-9" => hardware::figure_9(&phone),
        "heterollm/figure-13" => prefill::figure_13(&phone),
        "heterollm/figure-14" => prefill::figure_14(&phone),
        "heterollm/figure-15" => prefill::figure_15(&phone),
        "heterollm/figure-16" => decode::figure_16(&phone),
        "heterollm/figure-17" => decode::figure_17(&phone),
        "heterollm/figure-18" => company::figure_18(&phone),
        "heterollm/figure-19" => company::figure_19(&phone),
        _ => return None,
    };
    Some(section)
}

/// The device's profile. Its methods simulate models on it.
struct Phone(DeviceProfile);

impl Phone {
    fn run(&self, model: &str, waiting: Waiting, run: impl FnOnce(&Hetero) -> Run) -> Run {
        let description = family::shape(model).expect("a shape of ours");
        run(&Hetero::new(&self.0, &description, waiting).expect("a profile with W4A16"))
    }

    /// Simulates a prompt that fits into one plan.
    fn prefill(&self, model: &str, tokens: usize, mode: Mode, waiting: Waiting) -> Run {
        self.run(model, waiting, |hetero| {
            hetero
                .prefill(tokens, mode)
                .expect("one plan has these tokens")
        })
    }

    /// Returns the seconds of a prompt, with fast synchronization.
    fn seconds(&self, model: &str, tokens: usize, mode: Mode) -> f64 {
        self.prefill(model, tokens, mode, Waiting::Fast).seconds()
    }

    /// Simulates a token after 256 others, as in the paper's figures 16 and 17.
    fn decode(&self, model: &str, mode: Mode, waiting: Waiting) -> Run {
        self.run(model, waiting, |hetero| {
            hetero.decode(256, mode).expect("a token has a plan")
        })
    }
}

/// Returns the mean of some numbers.
fn mean(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let numbers: Vec<_> = numbers.into_iter().collect();
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Creates a held-out value: a prediction.
fn held_out(what: impl Into<String>, paper: (f64, f64), ours: f64) -> Value {
    value(what, paper, ours, Kind::HeldOut)
}

/// Creates a value that informed a choice, or that nearly follows from fitted values.
fn seen(what: impl Into<String>, paper: (f64, f64), ours: f64) -> Value {
    value(what, paper, ours, Kind::Seen)
}

/// Creates a second number of the paper for a quantity that is compared already.
fn repeated(what: impl Into<String>, paper: (f64, f64), ours: f64) -> Value {
    value(what, paper, ours, Kind::Repeated)
}

fn cited(what: &str, quote: &Quote) -> Cited {
    Cited {
        what: format!("{what} (§{})", quote.section),
        paper: one(quote.value),
    }
}

/// Reason why cited values are not simulated.
const NOT_SIMULATED: &str = "neither paper describes these engines' kernels; MLLM-NPU is llm.npu, which figure-14 simulates with its own costs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Nearness;

    fn all() -> Vec<Section> {
        NAMES
            .into_iter()
            .map(|name| section(name).unwrap())
            .collect()
    }

    #[test]
    fn the_profile_gives_back_what_it_was_fitted_to() {
        for value in section("heterollm/fit").unwrap().values {
            assert!(
                value.kind == Kind::Fitted && value.error().unwrap().abs() < 5e-3,
                "{value:?}"
            );
        }
    }

    #[test]
    fn every_name_is_a_section_whose_values_are_compared_where_the_paper_has_one() {
        for (name, section) in NAMES.into_iter().zip(all()) {
            assert!(section.name == name && !section.values.is_empty());
            for value in section.values {
                assert!(value.ours.is_finite() && value.ours >= 0.0, "{value:?}");
                assert_eq!(
                    value.paper.is_some(),
                    value.kind != Kind::Simulated,
                    "{value:?}"
                );
            }
        }
        assert!(section("heterollm/figure-1").is_none());
    }

    #[test]
    fn llama_8b_at_256_tokens_without_a_cut_is_all_that_is_fitted_of_prefill_and_nothing_is_of_decode()
     {
        let fitted = |section: &Section| {
            section
                .values
                .iter()
                .any(|value| value.kind == Kind::Fitted)
        };
        let names: Vec<_> = all()
            .iter()
            .filter(|section| fitted(section))
            .map(|section| section.name)
            .collect();
        assert_eq!(
            names,
            [
                "heterollm/fit",
                "heterollm/figure-4",
                "heterollm/figure-6",
                "heterollm/figure-9"
            ]
        );
    }

    #[test]
    fn what_a_number_or_a_choice_of_ours_hangs_on_is_seen_and_not_held_out() {
        let values: Vec<_> = all()
            .into_iter()
            .flat_map(|section| section.values)
            .collect();
        for what in [
            "Llama-8B, Hetero-tensor at 256 tokens, tokens/s (§5.4)",
            "[256, 4096] × [4096, 14336], times the reverse",
            "Hetero-layer, frames/s",
            "GPU only, frames/s (\"dropping to zero\")",
            "Llama-8B, Hetero-tensor, tokens/s",
            "Llama-8B, Hetero-tensor over GPU only",
            "135 tokens, share of graphs in Online-prepare",
            "525 tokens, Online-prepare over Hetero-tensor",
            "the same, of 2.99 (§5.2.1) by 1.244",
        ] {
            let value = values.iter().find(|value| value.what == what).expect(what);
            assert_eq!(value.kind, Kind::Seen, "{what}");
        }
    }

    #[test]
    fn a_quantity_counts_once_however_many_numbers_the_paper_has_for_it() {
        for section in all() {
            let counted = section
                .values
                .iter()
                .filter(|value| value.kind == Kind::HeldOut && value.error().is_some());
            let counted: Vec<_> = counted.collect();
            for (place, value) in counted.iter().enumerate() {
                let again = counted[..place]
                    .iter()
                    .find(|other| other.ours == value.ours);
                assert!(again.is_none(), "{value:?} is {again:?}");
            }
        }
    }

    #[test]
    fn predictions_are_as_far_off_as_the_documentation_has_it() {
        let found = Nearness::new(&all(), Kind::HeldOut).unwrap();
        assert!(
            (found.mean_error.unwrap() - 0.215).abs() < 0.002,
            "{found:?}"
        );
    }
}
