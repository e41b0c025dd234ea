//! LLaVA: one view, cut from the middle of the picture or padded to a square.

use crate::Prepared;
use crate::error::Result;
use crate::limits::MAX_PIXELS;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

/// The size to which a picture is resized.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resized {
    /// Width and height.
    Exact(u32, u32),
    /// Pixels of the shorter side.
    Shortest(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Llava {
    /// The color of a border that makes the picture square before it is resized.
    pub(crate) pad: Option<[u8; 3]>,
    pub(crate) resized: Resized,
    /// Width and height that are cut from the middle afterwards.
    pub(crate) crop: Option<(u32, u32)>,
    /// Pixels of both sides of a patch.
    pub(crate) patch: u32,
    /// Rows other than those of patches.
    pub(crate) more_rows: i64,
}

impl Llava {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let side = u64::from(picture.width.max(picture.height));
        if self.pad.is_some() && side * side > MAX_PIXELS {
            return Err(super::unfit(picture, "it is too large as a square"));
        }
        let padded = self.pad.map(|color| square(picture, color));
        let picture = padded.as_ref().unwrap_or(picture);
        let mut resized = pixels.resize(picture, self.resized.size(picture))?;
        if let Some(size) = self.crop {
            resized = from_the_middle(&resized, size);
        }
        let patches = |length: u32| i64::from(length / self.patch);
        let rows = patches(resized.width) * patches(resized.height) + self.more_rows;
        if rows < 1 {
            let reason = format!("it has {rows} rows, expected at least 1");
            return Err(super::unfit(picture, reason));
        }
        Ok(Prepared {
            views: vec![pixels.view(&resized)],
            pieces: Pieces::default().rows(0, rows as usize).finish(),
        })
    }
}

impl Resized {
    fn size(self, picture: &Picture) -> (u32, u32) {
        let (width, height) = (picture.width, picture.height);
        match self {
            Self::Exact(width, height) => (width, height),
            Self::Shortest(short) => {
                let ends = |short_side: u32, long_side: u32| {
                    (u64::from(short) * u64::from(long_side) / u64::from(short_side)) as u32
                };
                match width <= height {
                    true => (short, ends(width, height)),
                    false => (ends(height, width), short),
                }
            }
        }
    }
}

/// Returns `picture` in the middle of a square.
fn square(picture: &Picture, color: [u8; 3]) -> Picture {
    let side = picture.width.max(picture.height);
    let place = ((side - picture.width) / 2, (side - picture.height) / 2);
    picture.pad(place, (side, side), color)
}

/// Returns the middle of `picture`, with a black border where it is smaller.
fn from_the_middle(picture: &Picture, (width, height): (u32, u32)) -> Picture {
    let (left, top) = (
        width.saturating_sub(picture.width) / 2,
        height.saturating_sub(picture.height) / 2,
    );
    let size = (picture.width.max(width), picture.height.max(height));
    let picture = picture.pad((left, top), size, [0; 3]);
    let place = ((size.0 - width) / 2, (size.1 - height) / 2);
    picture.cut(place, (width, height))
}
