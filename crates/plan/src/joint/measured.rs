//! Measured times of prompts, relative to the times that the search expects.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::kind::Kind;

/// Plausible factors. Beyond these, the measured and the simulated prompt can't be the same.
const FACTORS: RangeInclusive<f64> = 0.01..=100.0;

/// Measured times of prompts of one length on the processors of a [`PromptPlanner`](super::PromptPlanner).
///
/// The simulation doesn't cover everything. On one processor alone, it ignores that whole feed-forwards run with their
/// shadows inside. On several processors, it ignores how they wait for each other and move activations between caches.
/// The error differs between kinds, so the choice of the fastest kind uses these factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPrompt {
    /// Number of tokens.
    pub rows: usize,
    /// Measured seconds relative to the simulated seconds, for the best candidate of each measured kind.
    pub factors: BTreeMap<Kind, f64>,
}

impl MeasuredPrompt {
    /// Returns whether the values can come from a measurement.
    pub fn is_plausible(&self) -> bool {
        self.rows > 0 && self.factors.values().all(|factor| FACTORS.contains(factor))
    }

    /// Returns the factor of a kind for `rows` tokens. It is interpolated between the two nearest measured lengths by
    /// the logarithm of the length. Outside of the measured lengths it is that of the nearest one. Returns `None` if
    /// one of these has no factor: a kind that was too slow to be measured at one of them may be too slow here.
    /// `measured` is sorted by length.
    pub(super) fn factor(measured: &[Self], kind: Kind, rows: usize) -> Option<f64> {
        let factor = |one: &Self| one.factors.get(&kind).copied();
        let before = measured.iter().rfind(|one| one.rows <= rows);
        let after = measured.iter().find(|one| one.rows >= rows);
        let (Some(shorter), Some(longer)) = (before, after) else {
            return factor(before.or(after)?);
        };
        let (before, after) = (factor(shorter)?, factor(longer)?);
        if shorter.rows == longer.rows {
            return Some(after);
        }
        let share = (rows as f64 / shorter.rows as f64).ln()
            / (longer.rows as f64 / shorter.rows as f64).ln();
        Some(before + share * (after - before))
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
