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

    /// The factor of a kind for `rows` tokens: between the two lengths around it that were measured, by the logarithm of the
    /// length; beyond all of them, as of the nearest. `None` where it was not measured of both: a kind that was too slow to
    /// be measured at one of them may be so here. `measured` is in the order of lengths.
    pub(super) fn factor(measured: &[Self], kind: Kind, rows: usize) -> Option<f64> {
        let factor = |one: &Self| one.factors.get(&kind).copied();
        let before = measured.iter().rfind(|one| one.rows <= rows);
        let behind = measured.iter().find(|one| one.rows >= rows);
        let (Some(shorter), Some(longer)) = (before, behind) else {
            return factor(before.or(behind)?);
        };
        let (before, behind) = (factor(shorter)?, factor(longer)?);
        if shorter.rows == longer.rows {
            return Some(behind);
        }
        let share = (rows as f64 / shorter.rows as f64).ln()
            / (longer.rows as f64 / shorter.rows as f64).ln();
        Some(before + share * (behind - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_between_those_of_the_lengths_around_it_and_unknown_where_one_of_them_has_none() {
        let prompt = |rows, factors: &[(Kind, f64)]| MeasuredPrompt {
            rows,
            factors: factors.iter().copied().collect(),
        };
        let measured = [
            prompt(64, &[(Kind::Alone, 0.5), (Kind::Tensor, 1.0)]),
            prompt(
                256,
                &[(Kind::Alone, 1.0), (Kind::Tensor, 2.0), (Kind::Mixed, 3.0)],
            ),
            prompt(512, &[(Kind::Alone, 1.5), (Kind::Mixed, 4.0)]),
        ];
        let of = |kind, rows| MeasuredPrompt::factor(&measured, kind, rows);
        assert_eq!(
            [1, 64, 256, 512, 1000].map(|rows| of(Kind::Alone, rows)),
            [0.5, 0.5, 1.0, 1.5, 1.5].map(Some)
        );
        let middle = of(Kind::Tensor, 128).unwrap();
        assert!((middle - 1.5).abs() < 1e-12, "{middle}");
        assert_eq!(
            [64, 256, 300, 512, 1000].map(|rows| of(Kind::Tensor, rows)),
            [Some(1.0), Some(2.0), None, None, None]
        );
        assert_eq!(
            [1, 64, 200, 256, 512].map(|rows| of(Kind::Mixed, rows)),
            [None, None, None, Some(3.0), Some(4.0)]
        );
        assert_eq!(
            (
                of(Kind::Layer, 64),
                MeasuredPrompt::factor(&[], Kind::Alone, 64)
            ),
            (None, None)
        );
    }
}
