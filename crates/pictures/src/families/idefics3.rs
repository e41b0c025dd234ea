//! Idefics3 and SmolVLM: tiles of one size and the whole picture in that size.

use std::sync::Arc;

use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

/// Longest side after the first resizing, whatever the settings say.
const MAX_SIDE: u32 = 4096;
const FAKE: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";

#[derive(Clone, Debug)]
pub(crate) struct Idefics3 {
    /// Pixels of the longer side, to which a picture is resized first.
    pub(crate) longest: u32,
    /// Pixels of both sides of a tile.
    pub(crate) tile: u32,
    /// Whether there are tiles, or only the whole picture.
    pub(crate) split: bool,
    /// Rows of a tile.
    pub(crate) rows: usize,
}

impl Idefics3 {
    /// Returns the maximum number of views.
    pub(crate) fn max_views(&self) -> u32 {
        let side = self.longest.min(MAX_SIDE).div_ceil(self.tile);
        side.saturating_mul(side).saturating_add(1)
    }

    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let tile = (self.tile, self.tile);
        let picture = pixels.resize(picture, self.resized(picture.width, picture.height))?;
        if !self.split {
            let whole = pixels.resize(&picture, tile)?;
            return Ok(self.single(pixels, &whole));
        }
        let size = self.multiple(picture.width, picture.height);
        let picture = pixels.resize(&picture, size)?;
        if size == tile {
            return Ok(self.single(pixels, &picture));
        }
        let whole = pixels.resize(&picture, tile)?;
        let mut views: Vec<_> = pixels.tiles(&picture, tile).collect();
        let (columns, rows) = (size.0 / self.tile, size.1 / self.tile);
        let mut pieces = Pieces::default();
        let mut view = 0;
        for row in 1..=rows {
            for column in 1..=columns {
                let name = format!("{FAKE}<row_{row}_col_{column}>");
                pieces = pieces.text(&name).rows(view, self.rows);
                view += 1;
            }
            pieces = pieces.text("\n");
        }
        views.push(pixels.view(&whole));
        let pieces = self.whole(pieces.text("\n"), view);
        Ok(Prepared { views, pieces })
    }

    fn single(&self, pixels: &Pixels, picture: &Picture) -> Prepared {
        Prepared {
            views: vec![pixels.view(picture)],
            pieces: self.whole(Pieces::default(), 0),
        }
    }

    fn whole(&self, pieces: Pieces, view: usize) -> Arc<[crate::Piece]> {
        let pieces = pieces.text(FAKE).text(GLOBAL).rows(view, self.rows);
        pieces.text(FAKE).finish()
    }

    /// Returns the size with the longer side of the settings.
    fn resized(&self, width: u32, height: u32) -> (u32, u32) {
        let aspect = f64::from(width) / f64::from(height);
        let even = |side: f64| {
            let side = side as u32;
            side + side % 2
        };
        let longest = self.longest;
        let (width, height) = match width >= height {
            true => (longest, even(f64::from(longest) / aspect).max(1)),
            false => (even(f64::from(longest) * aspect).max(1), longest),
        };
        let aspect = f64::from(width) / f64::from(height);
        if width >= height && width > MAX_SIDE {
            return (MAX_SIDE, ((f64::from(MAX_SIDE) / aspect) as u32).max(1));
        }
        if height > width && height > MAX_SIDE {
            return (((f64::from(MAX_SIDE) * aspect) as u32).max(1), MAX_SIDE);
        }
        (width, height)
    }

    /// Returns the size with sides that are multiples of a tile's.
    fn multiple(&self, width: u32, height: u32) -> (u32, u32) {
        let aspect = f64::from(width) / f64::from(height);
        let up = |side: u32| side.div_ceil(self.tile) * self.tile;
        if width >= height {
            let width = up(width);
            return (width, up((f64::from(width) / aspect) as u32));
        }
        let height = up(height);
        (up((f64::from(height) * aspect) as u32), height)
    }
}
