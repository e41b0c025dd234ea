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

/// Returns LongRoPE's factor on cosine and sine for a context `stretch` times that of pre-training.
pub(super) fn long_rope_attention_factor(stretch: f64, original_context: usize) -> f32 {
    if stretch <= 1.0 || original_context <= 1 {
        return 1.0;
    }
    (1.0 + stretch.ln() / (original_context as f64).ln()).sqrt() as f32
}
