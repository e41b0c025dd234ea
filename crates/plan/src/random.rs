//! Pseudo-random numbers that are the same in every run.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the stream of one case of a study. Different cases have different streams.
    pub fn of_case(seed: u64, case: u64) -> Self {
        Self(mixed(mixed(seed).wrapping_add(case)))
    }

    /// Returns a uniform number between 0 and 1, both excluded.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((mixed(self.0) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a log-normal factor of mean 1; `deviation` is the standard deviation of its logarithm.
    pub fn log_normal(&mut self, deviation: f64) -> f64 {
        let (radius, angle) = (
            (-2.0 * self.uniform().ln()).sqrt(),
            std::f64::consts::TAU * self.uniform(),
        );
        (deviation * radius * angle.cos() - deviation * deviation / 2.0).exp()
    }
}

/// Returns a hash of a number: SplitMix64's output function.
pub fn mixed(number: u64) -> u64 {
    let mut bits = number;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
