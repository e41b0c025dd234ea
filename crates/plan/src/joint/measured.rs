//! What prompts took beside what the search expects of them.

use serde::{Deserialize, Serialize};

/// Factors of what is believed: apart by more, it is not the same prompt that was simulated.
const FACTORS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// What prompts of a length took on the processors of a [`Joint`](super::Joint), as multiples of the simulated seconds.
///
/// Of one processor alone it is not simulated that it computes whole feed-forwards, with their shadows inside; of several,
/// mostly waiting for each other. Which of both is faster therefore goes by these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPrompt {
    /// Tokens.
    pub rows: usize,
    /// Where one processor computes everything.
    pub alone: f64,
    /// Where several do, as the fastest candidate of these has it.
    pub several: f64,
}

impl MeasuredPrompt {
    /// Whether it can have been measured.
    pub fn is_plausible(&self) -> bool {
        self.rows > 0 && [self.alone, self.several].iter().all(|factor| FACTORS.contains(factor))
    }

    /// That of `rows` tokens: between two lengths that were measured, by the logarithm of the length; beyond them, as the
    /// nearest. `None` where nothing was measured. `measured` is in the order of lengths.
    pub(super) fn of(measured: &[Self], rows: usize) -> Option<Self> {
        let behind = measured.partition_point(|one| one.rows < rows);
        let (before, behind) = (behind.checked_sub(1).map(|before| measured[before]), measured.get(behind).copied());
        let (Some(before), Some(behind)) = (before, behind) else { return before.or(behind) };
        let share = (rows as f64 / before.rows as f64).ln() / (behind.rows as f64 / before.rows as f64).ln();
        let between = |before: f64, behind: f64| before + share * (behind - before);
        Some(Self {
            rows,
            alone: between(before.alone, behind.alone),
            several: between(before.several, behind.several),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_lengths_a_prompt_is_between_them_and_beyond_them_as_the_nearest() {
        let [short, long] =
            [(64, 0.5, 1.0), (256, 1.0, 2.0)].map(|(rows, alone, several)| MeasuredPrompt { rows, alone, several });
        let measured = [short, long];
        assert_eq!(MeasuredPrompt::of(&[], 64), None);
        let of = |rows| MeasuredPrompt::of(&measured, rows).map(|one| (one.alone, one.several)).unwrap();
        assert_eq!([of(1), of(64)], [(0.5, 1.0); 2]);
        assert_eq!([of(256), of(1000)], [(1.0, 2.0); 2]);
        let (alone, several) = of(128);
        assert!((alone - 0.75).abs() < 1e-12 && (several - 1.5).abs() < 1e-12, "{alone} {several}");
    }
}
