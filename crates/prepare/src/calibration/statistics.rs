//! Statistics of one linear input over a calibration text: the magnitudes of each channel and their frequencies.

use triad_kernels::chunks::{chunks_mut, for_each_chunk};

/// Bins of a histogram: four per octave, from 2⁻¹² to 2¹⁴.
pub const BINS: usize = 104;
const _: () = assert!(BINS <= 256, "a bin's number is a byte");
/// Number of low bits of an f32 that do not affect the bin; the exponent and two bits of the mantissa select it.
const BIN_SHIFT: u32 = 21;
/// Number of the first bin, counted from zero: that of 2⁻¹².
const FIRST_BIN: u32 = (127 - 12) << 2;
/// Channels per task.
const TASK_CHANNELS: usize = 64;

/// Magnitudes of one linear input over a calibration text.
/// A histogram for each channel is enough for every later decision: which clip threshold has the least error, how many
/// values exceed it, and in which channels. Its bins are wide (19 % on average), so four bytes each are affordable for
/// any model: 416 bytes per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct InputStatistics {
    channels: usize,
    /// Tokens processed.
    rows: u64,
    /// Largest magnitude of each channel `[channels]`.
    largest: Vec<f32>,
    /// Number of values in each bin `[channels, BINS]`.
    counts: Vec<u32>,
}

impl InputStatistics {
    /// Creates empty statistics.
    pub fn new(channels: usize) -> Self {
        Self {
            channels,
            rows: 0,
            largest: vec![0.0; channels],
            counts: vec![0; channels * BINS],
        }
    }

    /// Creates statistics from the results of [`InputStatistics::largest`] and [`InputStatistics::counts`]. Returns
    /// `None` if these contradict each other: every channel must have one value per row.
    pub fn from_parts(largest: Vec<f32>, counts: Vec<u32>) -> Option<Self> {
        let channels = largest.len();
        if counts.len() != channels.checked_mul(BINS)? {
            return None;
        }
        let mut rows = counts
            .chunks_exact(BINS)
            .map(|counts| counts.iter().map(|count| u64::from(*count)).sum());
        let first = rows.next().unwrap_or(0);
        rows.all(|rows: u64| rows == first).then_some(Self {
            channels,
            rows: first,
            largest,
            counts,
        })
    }

    /// Adds `x` `[rows, channels]`, on the threads of the installed pool.
    ///
    /// # Panics
    /// If `x` is no whole number of rows.
    pub fn add(&mut self, x: &[f32]) {
        assert!(
            x.len().is_multiple_of(self.channels),
            "{} values in rows of {}",
            x.len(),
            self.channels
        );
        self.rows += (x.len() / self.channels) as u64;
        let channels = self.channels;
        let tasks = (
            chunks_mut(&mut self.largest, TASK_CHANNELS),
            chunks_mut(&mut self.counts, TASK_CHANNELS * BINS),
        );
        for_each_chunk(tasks, 1, |task, (largest, counts)| {
            let mut bins = [0u8; TASK_CHANNELS];
            for row in x.chunks_exact(channels) {
                let values = &row[task * TASK_CHANNELS..][..largest.len()];
                // All channels first, in loops that are vectorized.
                for ((value, largest), bin) in values.iter().zip(&mut *largest).zip(&mut bins) {
                    let magnitude = value.abs();
                    *largest = largest.max(magnitude);
                    *bin = bin_of(magnitude) as u8;
                }
                for (bin, counts) in bins.iter().zip(counts.chunks_exact_mut(BINS)) {
                    let count = &mut counts[usize::from(*bin)];
                    *count = count.saturating_add(1);
                }
            }
        });
    }

    /// Returns the number of channels of the input.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the number of processed tokens.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the largest magnitude of each channel `[channels]`.
    pub fn largest(&self) -> &[f32] {
        &self.largest
    }

    /// Returns the number of values in each bin `[channels, BINS]`.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns the largest magnitude of all channels.
    pub fn largest_of_all(&self) -> f32 {
        self.largest.iter().copied().fold(0.0, f32::max)
    }

    /// Returns the number of values in each channel whose bin is at or above `threshold`, which is exact if `threshold`
    /// is an [`edge`] of a bin.
    pub fn outliers(&self, threshold: f32) -> Vec<u64> {
        let first = (0..BINS)
            .find(|bin| edge(*bin) >= threshold)
            .unwrap_or(BINS);
        let beyond = |counts: &[u32]| counts[first..].iter().map(|count| u64::from(*count)).sum();
        self.counts.chunks_exact(BINS).map(beyond).collect()
    }

    /// Returns the statistics as if each channel were multiplied by one of `factors`, estimated from bins: all values
    /// of a bin count as its middle.
    ///
    /// # Panics
    /// If the number of factors is not that of channels.
    pub fn scaled(&self, factors: &[f32]) -> Self {
        assert_eq!(factors.len(), self.channels, "one for each channel");
        let mut scaled = Self::new(self.channels);
        scaled.rows = self.rows;
        scaled.largest = self
            .largest
            .iter()
            .zip(factors)
            .map(|(largest, factor)| largest * factor)
            .collect();
        let channels = self
            .counts
            .chunks_exact(BINS)
            .zip(scaled.counts.chunks_exact_mut(BINS))
            .zip(factors);
        for ((counts, scaled), factor) in channels {
            for (from, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let middle = (edge(from) + edge(from + 1)) / 2.0;
                let to = &mut scaled[bin_of(middle * factor)];
                *to = to.saturating_add(*count);
            }
        }
        scaled
    }

    /// Returns the number of values of all channels in each bin, with each channel weighted by `weights[channel]`.
    pub fn weighed_counts(&self, weights: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; BINS];
        for (counts, weight) in self.counts.chunks_exact(BINS).zip(weights) {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += f64::from(*count) * weight;
            }
        }
        sums
    }
}

/// Returns the lower edge of a bin; the first bin extends down to zero, the last one has no upper end.
pub fn edge(bin: usize) -> f32 {
    f32::from_bits((FIRST_BIN + bin as u32) << BIN_SHIFT)
}

#[inline]
fn bin_of(magnitude: f32) -> usize {
    (magnitude.to_bits() >> BIN_SHIFT)
        .saturating_sub(FIRST_BIN)
        .min(BINS as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_in_the_bin_between_its_edges(magnitude in 0.0f32..20_000.0) {
            let bin = bin_of(magnitude);
            prop_assert!(bin == 0 || edge(bin) <= magnitude);
            prop_assert!(bin == BINS - 1 || magnitude < edge(bin + 1));
        }

        #[test]
        fn statistics_scaled_by_powers_of_two_are_those_of_scaled_values(
            x in prop::collection::vec(-5.0f32..5.0, 3..60), halvings in prop::array::uniform3(0i32..6),
        ) {
            let x = &x[..x.len() / 3 * 3];
            let factors = halvings.map(|n| 0.5f32.powi(n));
            let scaled: Vec<f32> = x.iter().zip(factors.iter().cycle()).map(|(x, factor)| x * factor).collect();
            let (mut before, mut after) = (InputStatistics::new(3), InputStatistics::new(3));
            before.add(x);
            after.add(&scaled);
            prop_assert_eq!(before.scaled(&factors), after);
        }

        #[test]
        fn counts_beyond_an_edge_are_exact(values in prop::collection::vec(-5.0f32..5.0, 3..60), at in 40usize..64) {
            let channels = 3;
            let x = &values[..values.len() / channels * channels];
            let mut statistics = InputStatistics::new(channels);
            statistics.add(x);
            let expected: Vec<u64> = (0..channels)
                .map(|channel| x.iter().skip(channel).step_by(channels).filter(|x| x.abs() >= edge(at)).count() as u64)
                .collect();
            prop_assert_eq!(statistics.outliers(edge(at)), expected);
        }
    }

    #[test]
    fn bins_span_what_activations_can_be() {
        assert_eq!(
            (edge(0), edge(4), edge(BINS)),
            (2.0f32.powi(-12), 2.0f32.powi(-11), 2.0f32.powi(14))
        );
    }

    #[test]
    fn parts_make_the_statistics_that_they_are_of_or_none() {
        let mut statistics = InputStatistics::new(3);
        statistics.add(&[1.0, 2.0, -3.0, 0.5, 0.0, 7.0]);
        let (largest, counts) = (statistics.largest.clone(), statistics.counts.clone());
        assert_eq!(
            InputStatistics::from_parts(largest.clone(), counts.clone()),
            Some(statistics)
        );
        assert_eq!(
            InputStatistics::from_parts(largest.clone(), counts[1..].to_vec()),
            None,
            "a count is missing"
        );
        let mut twice = counts;
        twice[0] += 1;
        assert_eq!(
            InputStatistics::from_parts(largest, twice),
            None,
            "one channel has a value more"
        );
    }

    #[test]
    fn how_a_text_is_cut_does_not_matter() {
        let x: Vec<f32> = (0..70 * 6)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3)
            .collect();
        let (mut whole, mut cut) = (InputStatistics::new(70), InputStatistics::new(70));
        whole.add(&x);
        x.chunks(140).for_each(|x| cut.add(x));
        assert_eq!(whole, cut);
    }
}
