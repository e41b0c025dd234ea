//! What prompts took beside what the search expects of them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::Kind;

/// Factors of what is believed: apart by more, it is not the same prompt that was simulated.
const FACTORS: RangeInclusive<f64> = 0.01..=100.0;

/// What prompts of a length took on the processors of a [`Joint`](super::Joint).
///
/// Of one processor alone it is not simulated that it computes whole feed-forwards, with their shadows inside; of several,
/// how they wait for each other and move activations from one's cache to another's. That differs from kind to kind, and
/// which is the fastest therefore goes by these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPrompt {
    /// Tokens.
    pub rows: usize,
    /// Multiples of the simulated seconds, of the best candidate of each kind that was measured.
    pub factors: BTreeMap<Kind, f64>,
}

impl MeasuredPrompt {
    /// Whether it can have been measured.
    pub fn is_plausible(&self) -> bool {
        self.rows > 0 && self.factors.values().all(|factor| FACTORS.contains(factor))
    }

    /// The factor of a kind for `rows` tokens: between two lengths of which it was measured, by the logarithm of the
    /// length; beyond them, as of the nearest. `None` where it was never measured. `measured` is in the order of lengths.
    pub(super) fn factor(measured: &[Self], kind: Kind, rows: usize) -> Option<f64> {
        let of_kind = |one: &Self| Some((one.rows, *one.factors.get(&kind)?));
        let before = measured.iter().filter(|one| one.rows < rows).filter_map(of_kind).next_back();
        let behind = measured.iter().filter(|one| one.rows >= rows).find_map(of_kind);
        let (Some((shorter, before)), Some((longer, behind))) = (before, behind) else {
            return before.or(behind).map(|(_, factor)| factor);
        };
        let share = (rows as f64 / shorter as f64).ln() / (longer as f64 / shorter as f64).ln();
        Some(before + share * (behind - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_lengths_of_a_kind_a_factor_is_between_theirs_and_beyond_them_that_of_the_nearest() {
        let prompt =
            |rows, factors: &[(Kind, f64)]| MeasuredPrompt { rows, factors: factors.iter().copied().collect() };
        let measured = [
            prompt(64, &[(Kind::Alone, 0.5), (Kind::Tensor, 1.0)]),
            prompt(128, &[(Kind::Alone, 0.75)]),
            prompt(256, &[(Kind::Alone, 1.0), (Kind::Tensor, 2.0), (Kind::Mixed, 3.0)]),
        ];
        let of = |kind, rows| MeasuredPrompt::factor(&measured, kind, rows);
        assert_eq!([1, 64].map(|rows| of(Kind::Tensor, rows)), [Some(1.0); 2]);
        assert_eq!([256, 1000].map(|rows| of(Kind::Tensor, rows)), [Some(2.0); 2]);
        let middle = of(Kind::Tensor, 128).unwrap();
        assert!((middle - 1.5).abs() < 1e-12, "{middle}");
        assert_eq!([1, 1000].map(|rows| of(Kind::Mixed, rows)), [Some(3.0); 2]);
        assert_eq!([128, 300].map(|rows| of(Kind::Alone, rows)), [Some(0.75), Some(1.0)]);
        assert_eq!((of(Kind::Layer, 64), MeasuredPrompt::factor(&[], Kind::Alone, 64)), (None, None));
    }
}
