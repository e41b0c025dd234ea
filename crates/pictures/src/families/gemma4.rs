//! Gemma 4: the picture with its aspect ratio, within a number of rows.

use super::unfit;
use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

#[derive(Clone, Debug)]
pub(crate) struct Gemma4 {
    /// Pixels of both sides of a patch.
    pub(crate) patch: u32,
    /// Patches of both sides of the square that becomes a row.
    pub(crate) pooling: u32,
    /// Maximum number of rows.
    pub(crate) max_rows: u32,
}

impl Gemma4 {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let (width, height) = self.size(picture)?;
        let picture = pixels.resize(picture, (width, height))?;
        let side = self.patch * self.pooling;
        let rows = (width / side) as usize * (height / side) as usize;
        let pieces = Pieces::default().text("<|image>").rows(0, rows);
        Ok(Prepared {
            views: vec![pixels.view(&picture)],
            pieces: pieces.text("<image|>").finish(),
        })
    }

    /// Returns the largest size with this aspect ratio whose sides are multiples of the pixels of a row.
    fn size(&self, picture: &Picture) -> Result<(u32, u32)> {
        let (width, height) = (f64::from(picture.width), f64::from(picture.height));
        let side = self.patch * self.pooling;
        let most = f64::from(self.max_rows)
            * f64::from(self.pooling).powi(2)
            * f64::from(self.patch).powi(2);
        let factor = (most / (height * width)).sqrt();
        let down = |length: f64| (factor * length / f64::from(side)).floor() as u32 * side;
        let longest = |ratio: f64| (ratio.floor() as u32).min(self.max_rows) * side;
        let size = match (down(width), down(height)) {
            (0, 0) => return Err(unfit(picture, "not even one row of it would remain")),
            (_, 0) => (longest(width / height), side),
            (0, _) => (side, longest(height / width)),
            size => size,
        };
        match f64::from(size.0) * f64::from(size.1) > most {
            true => Err(unfit(picture, "it is too narrow for the model")),
            false => Ok(size),
        }
    }
}
