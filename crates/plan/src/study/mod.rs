//! Questions that many simulations decide: what reviewers of llm.npu asked of its schedule, its techniques one by
//! one, other apps, and outliers. One file a question; [`forms`] has other readings of equation 5, [`planned`] a
//! schedule that is planned ahead.

pub mod ablation;
pub mod contention;
pub mod forms;
pub mod outlier_rate;
pub mod planned;
pub mod policy;

/// Numbers that look random and are the same in every run (SplitMix64).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// Uniform between 0 and 1, both excluded.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A factor of mean 1 whose logarithm is normal with this standard deviation.
    fn log_normal(&mut self, deviation: f64) -> f64 {
        let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), std::f64::consts::TAU * self.uniform());
        (deviation * radius * angle.cos() - deviation * deviation / 2.0).exp()
    }
}
