//! LFM2-VL: one view with the picture's aspect ratio, or a grid of tiles before it.

use super::{grid, smart::Smart};
use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

#[derive(Clone, Debug)]
pub(crate) struct Lfm2Vl {
    /// Pixels of both sides of the square that becomes a row.
    pub(crate) side: u32,
    /// Pixels of both sides of a patch.
    pub(crate) patch: u32,
    /// Minimum and maximum rows of a view with the picture's aspect ratio.
    pub(crate) rows: (u32, u32),
    /// Pixels of both sides of a tile; minimum and maximum number of tiles. `None` if there are only whole pictures.
    pub(crate) tiles: Option<(u32, (u32, u32))>,
    /// Whether the whole picture follows its tiles.
    pub(crate) thumbnail: bool,
    /// Times the maximum number of pixels of a view from which on there are tiles.
    pub(crate) tolerance: f64,
    /// Whether tokens enclose a picture and its tiles.
    pub(crate) special: bool,
}

impl Lfm2Vl {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let size = self.whole().size((picture.width, picture.height));
        let whole = pixels.view(&pixels.resize(picture, size)?);
        let whole_rows = self.rows_of(size);
        let mut pieces = self.token(Pieces::default(), "<|image_start|>");
        let mut views = Vec::new();
        let tiles = self.tiles.filter(|_| self.is_large(picture));
        let Some((tile, counts)) = tiles else {
            pieces = pieces.rows(0, whole_rows);
            let pieces = self.token(pieces, "<|image_end|>").finish();
            views.push(whole);
            return Ok(Prepared { views, pieces });
        };
        let (columns, rows) = grid::closest((picture.width, picture.height), (tile, tile), counts);
        let resized = pixels.resize(picture, (columns * tile, rows * tile))?;
        views.extend(pixels.tiles(&resized, (tile, tile)));
        if views.len() > 1 {
            let tile_rows = self.rows_of((tile, tile));
            for view in 0..views.len() {
                let (row, column) = (view as u32 / columns + 1, view as u32 % columns + 1);
                pieces = self.token(pieces, &format!("<|img_row_{row}_col_{column}|>"));
                pieces = pieces.rows(view, tile_rows);
            }
            if self.thumbnail {
                pieces = self.token(pieces, "<|img_thumbnail|>");
                pieces = pieces.rows(views.len(), whole_rows);
                views.push(whole);
            }
        } else {
            pieces = pieces.rows(0, self.rows_of((tile, tile)));
        }
        let pieces = self.token(pieces, "<|image_end|>").finish();
        Ok(Prepared { views, pieces })
    }

    fn token(&self, pieces: Pieces, token: &str) -> Pieces {
        match self.special {
            true => pieces.text(token),
            false => pieces,
        }
    }

    fn whole(&self) -> Smart {
        let pixels = |rows: u32| u64::from(rows) * u64::from(self.side) * u64::from(self.side);
        Smart {
            factor: self.side,
            pixels: (pixels(self.rows.0), pixels(self.rows.1)),
            least: self.side,
        }
    }

    fn is_large(&self, picture: &Picture) -> bool {
        let side = f64::from(self.side);
        let near = |length: u32| {
            let near = (f64::from(length) / side).round_ties_even() * side;
            near.max(f64::from(self.patch))
        };
        let most = f64::from(self.rows.1) * side * side * self.tolerance;
        near(picture.width) * near(picture.height) > most
    }

    /// Returns the rows of a view; a part of a square at its edge becomes a row, too.
    fn rows_of(&self, (width, height): (u32, u32)) -> usize {
        let squares = |length: u32| (length / self.patch).div_ceil(self.side / self.patch) as usize;
        squares(width) * squares(height)
    }
}
