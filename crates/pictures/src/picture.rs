//! Pixels in memory, and cutting and padding them.

use crate::check::check_sizes;
use crate::error::{Error, Result};

/// Colors of a pixel.
pub(crate) const CHANNELS: usize = 3;

/// A decoded picture, upright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Colors, `[height][width][3]`: red, green, blue.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// Creates a picture from its colors, `[height][width][3]`.
    ///
    /// # Errors
    ///
    /// Returns an error if the sizes are beyond the limits or `rgb` has another length.
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        let picture = Self { width, height, rgb };
        picture.check()?;
        Ok(picture)
    }

    /// Creates a picture that has a size and no colors. What is made of it has none either.
    pub(crate) fn without_colors(width: u32, height: u32) -> Result<Self> {
        check_sizes(width, height)?;
        let rgb = Vec::new();
        Ok(Self { width, height, rgb })
    }

    /// Returns whether the picture has only a size.
    pub(crate) fn has_no_colors(&self) -> bool {
        self.rgb.is_empty()
    }

    /// Checks sizes and length, which anyone may set.
    pub(crate) fn check(&self) -> Result<()> {
        let &Self { width, height, .. } = self;
        check_sizes(width, height)?;
        let bytes = self.rgb.len();
        if bytes != width as usize * height as usize * CHANNELS {
            return Err(Error::WrongLength {
                width,
                height,
                bytes,
            });
        }
        Ok(())
    }

    /// Returns the bytes of a row.
    pub(crate) fn stride(&self) -> usize {
        self.width as usize * CHANNELS
    }

    /// Returns the rectangle at `(left, top)`, which must be within the picture.
    pub(crate) fn cut(&self, (left, top): (u32, u32), (width, height): (u32, u32)) -> Self {
        let columns = left as usize * CHANNELS..(left + width) as usize * CHANNELS;
        let rows = self.rgb.chunks_exact(self.stride());
        let rows = rows.skip(top as usize).take(height as usize);
        Self {
            width,
            height,
            rgb: rows
                .flat_map(|row| &row[columns.clone()])
                .copied()
                .collect(),
        }
    }

    /// Returns a picture of one color with this one at `(left, top)`, which must fit into it.
    pub(crate) fn pad(
        &self,
        (left, top): (u32, u32),
        (width, height): (u32, u32),
        color: [u8; CHANNELS],
    ) -> Self {
        if self.has_no_colors() {
            let rgb = Vec::new();
            return Self { width, height, rgb };
        }
        let stride = width as usize * CHANNELS;
        let mut rgb = color.repeat(width as usize * height as usize);
        let place = left as usize * CHANNELS;
        let rows = rgb.chunks_exact_mut(stride).skip(top as usize);
        for (to, from) in rows.zip(self.rgb.chunks_exact(self.stride())) {
            to[place..place + from.len()].copy_from_slice(from);
        }
        Self { width, height, rgb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_and_cutting_are_inverse() {
        let picture = Picture::from_rgb(2, 3, (0..18).collect()).unwrap();
        let padded = picture.pad((1, 2), (4, 6), [7, 8, 9]);
        assert_eq!(padded.rgb.len(), 4 * 6 * 3);
        assert_eq!(padded.rgb[..3], [7, 8, 9]);
        assert_eq!(padded.cut((1, 2), (2, 3)), picture);
    }

    #[test]
    fn colors_of_another_length_are_refused() {
        let error = Picture::from_rgb(2, 3, vec![0; 17]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2 × 3 pixels have 17 bytes of color, expected 3 for each pixel"
        );
    }
}
