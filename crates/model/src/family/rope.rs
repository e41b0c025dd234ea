//! RoPE's frequencies for long contexts, computed from a few numbers of the configuration.

use std::f64::consts::PI;

/// The four numbers of Llama 3's scaling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    /// Divisor of the slowest frequencies.
    pub factor: f64,
    /// Wavelengths above `original_context / low` are divided by `factor`.
    pub low: f64,
    /// Wavelengths below `original_context / high` do not change.
    pub high: f64,
    /// Context of pre-training, in tokens.
    pub original_context: usize,
}

/// Returns the divisor of each of the `dims / 2` frequencies of Llama 3.1 and later.
pub(super) fn llama3_factors(scaling: Llama3, base: f32, dims: usize) -> Vec<f32> {
    let original = scaling.original_context as f64;
    let divisor = |pair: usize| {
        let frequency = f64::from(base).powf(-2.0 * pair as f64 / dims as f64);
        let turns = original * frequency / (2.0 * PI);
        if turns > scaling.high {
            1.0
        } else if turns < scaling.low {
            scaling.factor
        } else {
            let smooth = (turns - scaling.low) / (scaling.high - scaling.low);
            1.0 / ((1.0 - smooth) / scaling.factor + smooth)
        }
    };
    (0..dims / 2).map(|pair| divisor(pair) as f32).collect()
}

/// Defaults of YaRN's numbers of turns.
pub(super) const BETA_FAST: f64 = 32.0;
pub(super) const BETA_SLOW: f64 = 1.0;

/// The numbers of YaRN's scaling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yarn {
    /// Divisor of the slowest frequencies.
    pub factor: f64,
    /// Frequencies that turn more often than this within `original_context` do not change.
    pub beta_fast: f64,
    /// Frequencies that turn less often than this are divided by `factor`.
    pub beta_slow: f64,
    /// Context of pre-training, in tokens.
    pub original_context: usize,
    /// Whether the two ends of the ramp are whole pairs.
    pub truncate: bool,
}

/// Returns the divisor of each of the `dims / 2` frequencies of YaRN.
pub(super) fn yarn_factors(scaling: Yarn, base: f32, dims: usize) -> Vec<f32> {
    let (dims_f, base) = (dims as f64, f64::from(base));
    // The pair that turns this often.
    let pair = |turns: f64| {
        dims_f * (scaling.original_context as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
    };
    let (mut low, mut high) = (pair(scaling.beta_fast), pair(scaling.beta_slow));
    if scaling.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dims_f - 1.0));
    if low == high {
        high += 0.001;
    }
    let divisor = |pair: usize| {
        let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / (ramp / scaling.factor + 1.0 - ramp)
    };
    (0..dims / 2).map(|pair| divisor(pair) as f32).collect()
}

/// Returns YaRN's factor on cosine and sine for a context `factor` times that of pre-training.
pub(super) fn yarn_attention_factor(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * scale * factor.ln() + 1.0
    }
}

/// Returns LongRoPE's factor on cosine and sine for a context `stretch` times that of pre-training.
pub(super) fn long_rope_attention_factor(stretch: f64, original_context: usize) -> f32 {
    if stretch <= 1.0 || original_context <= 1 {
        return 1.0;
    }
    (1.0 + stretch.ln() / (original_context as f64).ln()).sqrt() as f32
}
