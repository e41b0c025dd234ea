//! Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one view with the picture's aspect ratio.

use super::smart::Smart;
use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

#[derive(Clone, Debug)]
pub(crate) struct QwenVl {
    /// Pixels of both sides of the square that becomes a row, and limits of pixels.
    pub(crate) size: Smart,
}

impl QwenVl {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let (width, height) = self.size.size((picture.width, picture.height));
        let picture = pixels.resize(picture, (width, height))?;
        let side = self.size.factor;
        let rows = (width / side) as usize * (height / side) as usize;
        Ok(Prepared {
            views: vec![pixels.view(&picture)],
            // The chat template writes <|vision_start|> and <|vision_end|>.
            pieces: Pieces::default().rows(0, rows).finish(),
        })
    }
}
