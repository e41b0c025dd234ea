//! Arguments for sampling.

use triad_engine::Model;
use triad_engine::sampler::SamplerOptions;

/// Sampling options. An option that is not given has the value that the model's authors recommend. If they recommend
/// none, it has a value for everyday use.
#[derive(clap::Args)]
#[command(
    next_help_heading = "Sampling [default: as the model recommends, else --temperature 0.7 --top-p 0.95 --repetition-penalty 1.05]"
)]
pub struct SamplerArguments {
    /// Temperature, which divides the logits; 0 always takes the likeliest token
    #[arg(
        long,
        visible_alias = "temp",
        value_name = "T",
        allow_negative_numbers = true
    )]
    temperature: Option<f32>,
    /// Keep only this many of the likeliest tokens; 0 keeps all
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Keep the fewest likeliest tokens whose probabilities add up to this
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens whose probability is below this share of the likeliest token's
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Make tokens that occurred before less likely; 1 changes nothing
    #[arg(long, value_name = "R")]
    repetition_penalty: Option<f32>,
    /// Seed of the random numbers: the same seed gives the same answer
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

impl SamplerArguments {
    /// Returns the options for `model`.
    pub fn options(&self, model: &Model) -> SamplerOptions {
        let recommended =
            SamplerOptions::recommended(model.generation_defaults(), self.temperature);
        SamplerOptions {
            top_k: self.top_k.unwrap_or(recommended.top_k),
            top_p: self.top_p.unwrap_or(recommended.top_p),
            min_p: self.min_p.unwrap_or(recommended.min_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(recommended.repetition_penalty),
            seed: self.seed,
            ..recommended
        }
    }
}
