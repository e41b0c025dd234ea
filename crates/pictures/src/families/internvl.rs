//! InternVL3: a grid of tiles, then the whole picture.

use super::grid;
use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

#[derive(Clone, Debug)]
pub(crate) struct InternVl {
    /// Width and height of a tile.
    pub(crate) tile: (u32, u32),
    /// Minimum and maximum number of tiles.
    pub(crate) tiles: (u32, u32),
    /// Rows of a tile.
    pub(crate) rows: usize,
}

impl InternVl {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let (columns, rows) = grid::closest((picture.width, picture.height), self.tile, self.tiles);
        let size = (columns * self.tile.0, rows * self.tile.1);
        let resized = pixels.resize(picture, size)?;
        let mut views: Vec<_> = pixels.tiles(&resized, self.tile).collect();
        if views.len() > 1 {
            views.push(pixels.view(&pixels.resize(picture, self.tile)?));
        }
        let mut pieces = Pieces::default().text("<img>");
        for view in 0..views.len() {
            pieces = pieces.rows(view, self.rows);
        }
        Ok(Prepared {
            views,
            pieces: pieces.text("</img>").finish(),
        })
    }
}
