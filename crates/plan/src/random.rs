//! Numbers that look random and are the same in every run.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream for each case of a study, so that no two of them share their draws.
    pub fn of_case(seed: u64, case: u64) -> Self {
        Self(mixed(mixed(seed).wrapping_add(case)))
    }

    /// Uniform between 0 and 1, both excluded.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((mixed(self.0) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A factor of mean 1 whose logarithm is normal with this standard deviation.
    pub fn log_normal(&mut self, deviation: f64) -> f64 {
        let (radius, angle) = (
            (-2.0 * self.uniform().ln()).sqrt(),
            std::f64::consts::TAU * self.uniform(),
        );
        (deviation * radius * angle.cos() - deviation * deviation / 2.0).exp()
    }
}

/// The bits of a number, mixed.
pub fn mixed(number: u64) -> u64 {
    let mut bits = number;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
