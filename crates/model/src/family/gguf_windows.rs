//! The windows of attention in the metadata of GGUF.

use super::gguf::Reader;
use super::kinds::{Mixers, NoRope, Windows};
use super::traits;
use super::{malformed, unsupported};
use crate::description::limits;
use crate::error::Result;
use crate::gguf::Value;

/// Blocks of the model of EXAONE 4 that has windows.
const EXAONE4_WINDOWED: usize = 64;

impl Reader<'_> {
    /// Returns the window of each block.
    pub(super) fn windows(&self, blocks: usize) -> Result<Vec<Option<usize>>> {
        let field = "attention.sliding_window";
        // 0 means none, but in gpt-oss.
        let window = match self.metadata.integer(&self.key(field))? {
            _ if self.family.no_rope == NoRope::Unwindowed => {
                let window = self.size(field, limits::CONTEXT)?;
                Some(self.required(field, window)?)
            }
            Some(0) if !self.family.sinks => None,
            // llama.cpp gives all attention of LFM2 the window.
            Some(_) if self.family.mixers != Mixers::Attention => {
                self.refuse_unless(field, 0.0)?;
                None
            }
            // Files carry Qwen's `sliding_window` though `use_sliding_window`, which they don't carry, is false. In files of
            // the families without windows, llama.cpp doesn't read the field.
            Some(_)
                if matches!(self.family.windows, Windows::FromLayer | Windows::Never)
                    || [traits::LLAMA.name, traits::MINISTRAL3.name]
                        .contains(&self.architecture) =>
            {
                None
            }
            Some(_) if self.family.name == "exaone4" && blocks != EXAONE4_WINDOWED => {
                return Err(unsupported(format!(
                    "metadata sets `{}` in a model of {blocks} blocks, expected {EXAONE4_WINDOWED} for exaone4 with windows",
                    self.key(field)
                )));
            }
            Some(_) => self.size(field, limits::CONTEXT)?,
            None if self.family.name == "gemma2" => self.family.window,
            // llama.cpp knows the model with windows by its number of blocks.
            None if self.family.name == "exaone4" && blocks == EXAONE4_WINDOWED => {
                self.family.window
            }
            None => None,
        };
        // llama.cpp halves the window if attention reads both sides.
        let window = window.map(|window| match self.family.bidirectional {
            true => window / 2 + 1,
            false => window,
        });
        let pattern_field = self.key("attention.sliding_window_pattern");
        let windowed: Box<dyn Fn(usize) -> bool> = match (
            self.family.windows,
            self.metadata.get(&pattern_field),
        ) {
            // llama.cpp reads no pattern for these families.
            (Windows::Everywhere, Some(Value::Bools(windowed)))
                if window.is_some() && windowed.contains(&false) =>
            {
                return Err(unsupported(format!(
                    "metadata field `{pattern_field}` leaves layers without a window, which Triad does not support for {}",
                    self.family.name
                )));
            }
            (_, Some(Value::Bools(windowed))) if windowed.len() == blocks => {
                Box::new(|block| windowed[block])
            }
            (Windows::AllButFirstOf(_), Some(Value::Integer(every @ 1..=1024))) => {
                let every = *every as usize;
                Box::new(move |block| !block.is_multiple_of(every))
            }
            (Windows::AllButEvery(_), Some(Value::Integer(every @ 1..=1024))) => {
                let every = *every as usize;
                Box::new(move |block| !(block + 1).is_multiple_of(every))
            }
            (_, Some(_)) => {
                return Err(malformed(format!(
                    "metadata field `{pattern_field}` is neither an integer from 1 to 1024 nor {blocks} booleans"
                )));
            }
            (Windows::AllButFirstOf(every), None) => {
                Box::new(move |block| !block.is_multiple_of(every))
            }
            (Windows::AllButEvery(every), None) => {
                Box::new(move |block| !(block + 1).is_multiple_of(every))
            }
            (_, None) => Box::new(|_| true),
        };
        Ok((0..blocks)
            .map(|block| window.filter(|_| windowed(block)))
            .collect())
    }
}
