//! The argument `--tensor-split`: products whose outputs several processors compute together.

use std::str::FromStr;

use anyhow::{Result, ensure};
use triad_kernels::int8::Int8Weight;
use triad_plan::graph::Role;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::parts::{Axis, Cut, PRODUCTS, Share};

/// A cut of the output of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct CutArgument {
    role: Role,
    axis: Axis,
    /// Shares of the processors, in their order.
    shares: Vec<f64>,
}

impl FromStr for CutArgument {
    type Err = String;

    /// Parses `down=columns:3:1`: a role, an axis, and the share of each processor.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (role, cut) = text.split_once('=')?;
            let role = Role::ALL
                .into_iter()
                .filter(|role| role.is_product())
                .find(|one| one.name() == role.trim())?;
            let (axis, shares) = cut.split_once(':')?;
            let axis = match axis.trim() {
                "columns" => Axis::Columns,
                "rows" => Axis::Rows,
                _ => return None,
            };
            let is_share = |share: &f64| (0.0..=1e6).contains(share);
            let share = |text: &str| text.trim().parse().ok().filter(is_share);
            let shares = shares.split(':').map(share).collect::<Option<_>>()?;
            Some(Self { role, axis, shares })
        };
        parsed().ok_or_else(|| {
            format!("expected {PRODUCTS}, columns or rows, and the share of each processor, such as down=columns:3:1")
        })
    }
}

impl std::fmt::Display for CutArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let axis = if self.axis == Axis::Columns {
            "columns"
        } else {
            "rows"
        };
        write!(f, "{}={axis}", self.role.name())?;
        self.shares
            .iter()
            .try_for_each(|share| write!(f, ":{share}"))
    }
}

impl CutArgument {
    /// Returns the cut for this number of processors.
    ///
    /// # Errors
    /// If the number of shares differs, or all are zero.
    pub fn cut(&self, processors: usize) -> Result<(Role, Cut)> {
        let Self { role, axis, shares } = self;
        let (name, found) = (role.name(), shares.len());
        ensure!(
            found == processors,
            "--tensor-split {name} has {found} shares for {processors} processors: expected one for each"
        );
        let share = |(index, share): (usize, &f64)| Share {
            processor: ProcessorId::new(index),
            share: *share,
        };
        let multiple = if *axis == Axis::Columns {
            Int8Weight::COLUMNS
        } else {
            1
        };
        Ok((
            *role,
            Cut::new(
                *axis,
                shares.iter().enumerate().map(share).collect(),
                multiple,
            )?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_has_a_role_an_axis_and_shares() {
        let cut: CutArgument = "down=columns:3:1".parse().unwrap();
        assert_eq!(
            cut,
            CutArgument {
                role: Role::Down,
                axis: Axis::Columns,
                shares: vec![3.0, 1.0]
            }
        );
        assert_eq!(cut.to_string(), "down=columns:3:1");
        assert_eq!(
            cut.cut(2).unwrap().1.parts(10, 128).unwrap()[1].1.columns,
            96..128
        );
        assert!(
            cut.cut(3)
                .unwrap_err()
                .to_string()
                .contains("2 shares for 3 processors")
        );
        assert!(
            "gate-up=rows:0:0"
                .parse::<CutArgument>()
                .unwrap()
                .cut(2)
                .is_err()
        );
        for wrong in [
            "",
            "down",
            "down=3:1",
            "attention=rows:1:1",
            "feed-forward=rows:1:1",
            "down=rows:1:-1",
            "down=rows:",
        ] {
            assert!(
                wrong
                    .parse::<CutArgument>()
                    .unwrap_err()
                    .starts_with("expected"),
                "{wrong}"
            );
        }
    }
}
