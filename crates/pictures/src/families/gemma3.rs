//! Gemma 3: the whole picture in one size.

use crate::Prepared;
use crate::error::Result;
use crate::picture::Picture;
use crate::prompt::Pieces;
use crate::view::Pixels;

#[derive(Clone, Debug)]
pub(crate) struct Gemma3 {
    /// Width and height of the view.
    pub(crate) size: (u32, u32),
    /// Rows of the view.
    pub(crate) rows: usize,
}

impl Gemma3 {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        let picture = pixels.resize(picture, self.size)?;
        let pieces = Pieces::default().text("\n\n<start_of_image>");
        Ok(Prepared {
            views: vec![pixels.view(&picture)],
            pieces: pieces
                .rows(0, self.rows)
                .text("<end_of_image>\n\n")
                .finish(),
        })
    }
}
