//! Checks that the numbers of a description fit together.

use super::description::{Positions, VisionDescription};
use super::limits;
use crate::description::{Norm, NormKind};
use crate::error::{Error, ErrorKind, Result};

impl VisionDescription {
    /// Returns a description that was stored if each of its numbers is within the limits of model files, and they fit
    /// together.
    ///
    /// # Errors
    /// If one is not, or they do not. The error names the field.
    pub fn checked_stored(self) -> Result<Self> {
        let projector = &self.projector;
        let side = self.positions.side();
        let windows = self.windows.as_ref();
        let most_positions = match self.positions {
            Positions::Axes { .. } => limits::PATCHES,
            _ => limits::PATCHES.isqrt(),
        };
        let numbers = [
            ("patch", self.patch, limits::PATCH),
            ("frames", self.frames, limits::MERGE),
            ("hidden", self.hidden, limits::WIDTH),
            ("heads", self.heads, limits::WIDTH),
            ("blocks", self.blocks, limits::BLOCKS),
            ("inner", self.inner, limits::WIDTH),
            ("width", self.width, limits::WIDTH),
            ("projector.merge", projector.merge, limits::MERGE),
            (
                "projector.inner",
                projector.inner.unwrap_or(1),
                limits::WIDTH,
            ),
            ("positions", side.max(1), most_positions),
            (
                "windows.side",
                windows.map_or(1, |windows| windows.side),
                limits::WIDTH,
            ),
        ];
        let malformed = |message: String| Err(Error::new(ErrorKind::Malformed, message));
        for (name, number, most) in numbers {
            if !(1..=most).contains(&number) {
                return malformed(format!(
                    "field `{name}` of the encoder of pictures is {number}, expected 1 to {most}"
                ));
            }
        }
        if (side == 0) != (self.positions == Positions::None) {
            return malformed("field `positions` of the encoder of pictures has no rows".into());
        }
        if let Some(windows) = windows
            && windows.whole.len() != self.blocks
        {
            return malformed(format!(
                "field `windows.whole` of the encoder of pictures has {} blocks, expected {}",
                windows.whole.len(),
                self.blocks
            ));
        }
        let norms = [Some(self.norm), projector.norm.map(|norm| norm.norm)];
        let is_usable = |norm: &Norm| norm.epsilon.is_finite() && norm.epsilon >= 0.0;
        if !norms.iter().flatten().all(is_usable) {
            return malformed(
                "field `norm` of the encoder of pictures has an epsilon below 0".into(),
            );
        }
        for (name, number) in [
            ("rope_base", self.rope_base),
            ("attention_scale", self.attention_scale),
            ("projector.factor", projector.factor),
        ] {
            if number.is_some_and(|number| !(number.is_finite() && number > 0.0)) {
                return malformed(format!(
                    "field `{name}` of the encoder of pictures is not above 0"
                ));
            }
        }
        self.checked()
    }

    /// Returns the description if its numbers fit together.
    ///
    /// # Errors
    /// If they do not.
    pub(super) fn checked(self) -> Result<Self> {
        let refuse = |message: String| {
            let message = format!("the encoder of pictures {message}");
            Err(Error::new(ErrorKind::Malformed, message))
        };
        if !self.hidden.is_multiple_of(self.heads) {
            return refuse(format!(
                "has {} heads, expected a divisor of its width, {}",
                self.heads, self.hidden
            ));
        }
        if self.rope_base.is_some() && !self.head_dim().is_multiple_of(4) {
            return refuse(format!(
                "has heads of width {}, expected a multiple of 4 for its RoPE",
                self.head_dim()
            ));
        }
        if self.class_token && (self.rope_base.is_some() || self.windows.is_some()) {
            return refuse(
                "has a class token and RoPE or windows, expected no place of the token in them"
                    .into(),
            );
        }
        if self.head_norms && self.norm.kind != NormKind::Rms {
            return refuse("has norms of heads that subtract the mean, expected RMS norms".into());
        }
        if self.bounded && self.joined {
            return refuse(
                "has query, key and value as one layer with bounds, expected three layers".into(),
            );
        }
        if !self.projector.mean && (self.projector.factor.is_some() || self.projector.standardized)
        {
            return refuse("has a factor or an offset of averages, and joins patches".into());
        }
        if self.projector.standardized && !self.deepstack.is_empty() {
            return refuse("has averages with an offset and several projectors".into());
        }
        if let Positions::Fixed { side } = self.positions
            && !side.is_multiple_of(self.projector.merge)
        {
            return refuse(format!(
                "has {side} patches per side, expected a multiple of {}, which become one row",
                self.projector.merge
            ));
        }
        if self.together && self.positions == Positions::None {
            return refuse("has rows that read each other, expected a table of positions".into());
        }
        let ascends = self.deepstack.is_sorted_by(|one, next| one < next);
        if !ascends || self.deepstack.last().is_some_and(|it| *it >= self.blocks) {
            return refuse(format!(
                "projects after the blocks {:?}, expected ascending numbers below {}",
                self.deepstack, self.blocks
            ));
        }
        Ok(self)
    }
}
