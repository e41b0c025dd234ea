//! The checks of several residual streams, and of what comes with them.

use super::{limits, malformed, size};
use crate::description::{FeedForward, ModelDescription, NormKind, Residual, TokenInputs};
use crate::error::Result;

/// The number of streams is far above that of published models, 4.
const STREAMS: usize = 16;

/// A standard deviation more or less than 20 times leaves all gates, or none.
const CUTOFF: f32 = 20.0;

impl ModelDescription {
    pub(super) fn check_streams(&self) -> Result<()> {
        let Some(streams) = self.streams else {
            return Ok(());
        };
        if !(2..=STREAMS).contains(&streams.count) {
            return Err(malformed(format!(
                "{} residual streams, expected 2 to {STREAMS}",
                streams.count
            )));
        }
        size(
            "the rank of layers next to attention",
            streams.rank,
            limits::HIDDEN,
        )?;
        let is_right = |residual: Residual, kind: NormKind| {
            residual == Residual::SerialPostNorm && kind == NormKind::Rms
        };
        let mut blocks = self.blocks.iter();
        let fits = blocks.all(|it| is_right(it.residual, it.norm.kind) && !it.scaled);
        if !fits || self.token_inputs.is_none() || self.residual_scale != 1.0 {
            return Err(malformed(
                "several residual streams, expected inputs by token, RMS norms before and after both halves of each block, \
                 and no factors on residual additions",
            ));
        }
        Ok(())
    }
}

impl TokenInputs {
    pub(super) fn check(&self, vocab: usize) -> Result<()> {
        size(
            "the width of the inputs by token",
            self.width,
            limits::HIDDEN,
        )?;
        size(
            "the rows of the table of inputs by token",
            self.table_rows(vocab),
            vocab,
        )?;
        self.norm.check()?;
        match self.norm.kind {
            NormKind::Rms => Ok(()),
            NormKind::Centered | NormKind::Layer => Err(malformed(
                "inputs by token with layer norms, expected RMS norms",
            )),
        }
    }
}

impl FeedForward {
    pub(super) fn check_cutoff(&self) -> Result<()> {
        match self.cutoff {
            None => Ok(()),
            Some(_) if !self.gated || self.experts.is_some() => Err(malformed(
                "gates that are set to 0 without gates or with experts, expected a dense feed-forward with gates",
            )),
            Some(cutoff) if (-CUTOFF..=CUTOFF).contains(&cutoff) => Ok(()),
            Some(cutoff) => Err(malformed(format!(
                "gates below {cutoff} standard deviations above their mean are set to 0, expected -{CUTOFF} to {CUTOFF}"
            ))),
        }
    }
}
