//! HeteroLLM's figures, as far as its text has numbers.
//!
//! The profile's part for INT4 weights in f16 is fitted to Llama-8B with 256 tokens, on the GPU alone and by Hetero-layer:
//! speed, power, and what a game costs there. Its other numbers are those that the paper measured of the hardware.

pub mod paper;

use triad_model::family;

use crate::device::DeviceProfile;
use crate::hetero::rendering::{Game, Submission};
use crate::hetero::{Hetero, Mode, Run};
use crate::partition::profile::Waiting;
use crate::reproduce::{Kind, Section, one, value};

/// What can be reproduced.
pub const NAMES: [&str; 1] = ["heterollm/fit"];

/// The game of §5.5, with its default settings. Its frames are fitted to what it costs Hetero-layer.
const GAME: Game = Game { frames_per_second: 60.0, frame_seconds: 5.8599e-3 };

/// The section called `name`, simulated on the Snapdragon 8 Gen 3; `None` if there is none.
pub fn section(name: &str) -> Option<Section> {
    let device = DeviceProfile::builtin("snapdragon-8gen3").expect("a profile of ours");
    let section = match name {
        "heterollm/fit" => fit(&device),
        _ => return None,
    };
    Some(section)
}

/// A prefill of a model of ours.
fn prefill(device: &DeviceProfile, model: &str, tokens: usize, mode: Mode, waiting: Waiting) -> Run {
    let description = family::shape(model).expect("a shape of ours");
    let hetero = Hetero::new(device, &description, waiting).expect("a profile with W4A16");
    hetero.prefill(tokens, mode).expect("one plan has these tokens")
}

/// Milliseconds to build the graphs of Llama-8B's products for a number of tokens.
fn graphs_milliseconds(device: &DeviceProfile, tokens: usize) -> f64 {
    1e3 * prefill(device, "llama-3-8b", tokens, Mode::OnlinePrepare, Waiting::Fast).prepare_seconds
}

fn fit(device: &DeviceProfile) -> Section {
    let of = |mode| prefill(device, "llama-3-8b", 256, mode, Waiting::Fast);
    let (gpu, layer) = (of(Mode::GpuOnly), of(Mode::HeteroLayer));
    let beside = GAME.beside(&layer, Submission::OneByOne);
    let fitted = |what: &str, paper: f64, ours: f64| value(what, one(paper), ours, Kind::Fitted);
    Section {
        name: "heterollm/fit",
        about: "Llama-8B at 256 tokens on the GPU alone and by Hetero-layer: all that numbers of the profile were fitted to. \
                Hetero-layer is 236.92 tokens/s (§5.4) by 1.244 (§5.6); the GPU alone is that by 2.99 (§5.2.1).",
        values: vec![
            fitted("GPU only, tokens/s", paper::gpu_only_speed(), 256.0 / gpu.seconds()),
            fitted("Hetero-layer, tokens/s", paper::layer_speed(), 256.0 / layer.seconds()),
            fitted("GPU only, W (§5.6)", paper::gpu_only_watts(), gpu.watts()),
            fitted("Hetero-layer, W (§5.6)", paper::LAYER_WATTS.value, layer.watts()),
            fitted(
                "Hetero-layer beside a game, of its speed alone (§5.5)",
                paper::LAYER_LOSS_BESIDE_GAME.less(),
                layer.seconds() / beside.seconds,
            ),
            fitted("graphs for 135 tokens, ms (§5.2.2)", paper::GRAPHS_AT_135.value, graphs_milliseconds(device, 135)),
            fitted(
                "graphs for 1000 tokens, ms (§5.2.2)",
                paper::GRAPHS_AT_1000.value,
                graphs_milliseconds(device, 1000),
            ),
        ],
        cited: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_gives_back_what_it_was_fitted_to() {
        let fit = section("heterollm/fit").unwrap();
        assert!(fit.values.iter().all(|value| value.kind == Kind::Fitted));
        for value in fit.values {
            assert!(value.error().unwrap().abs() < 5e-3, "{value:?}");
        }
    }
}
