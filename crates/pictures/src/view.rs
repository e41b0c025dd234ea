//! Inputs of the encoder: normalized colors.

use crate::error::Result;
use crate::picture::{CHANNELS, Picture};
use crate::resize::{Filter, resize};

/// One input of the vision encoder: the whole picture or a tile, resized and normalized.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Colors, `[3][height][width]`.
    pub planes: Vec<f32>,
}

/// How pixels are resized and become floats.
#[derive(Clone, Debug)]
pub(crate) struct Pixels {
    filter: Filter,
    /// The float of each byte of each channel.
    floats: Box<[[f32; 256]; CHANNELS]>,
}

/// How bytes become floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normalization {
    /// A factor of bytes, before mean and deviation.
    pub(crate) scale: Option<f64>,
    /// Mean and standard deviation of each channel.
    pub(crate) mean_and_deviation: Option<([f32; CHANNELS], [f32; CHANNELS])>,
}

impl Normalization {
    /// Returns the float of `byte`, with the rounding of `transformers`: if both steps are asked for, mean and deviation
    /// are scaled, not the bytes.
    fn float(&self, byte: u8, channel: usize) -> f32 {
        let byte = f32::from(byte);
        match (self.scale, &self.mean_and_deviation) {
            (Some(scale), Some((mean, deviation))) => {
                let scale = (1.0 / scale) as f32;
                (byte - mean[channel] * scale) / (deviation[channel] * scale)
            }
            (None, Some((mean, deviation))) => (byte - mean[channel]) / deviation[channel],
            (Some(scale), None) => byte * scale as f32,
            (None, None) => byte,
        }
    }
}

impl Pixels {
    pub(crate) fn new(filter: Filter, normalization: &Normalization) -> Self {
        let channel =
            |channel| std::array::from_fn(|byte| normalization.float(byte as u8, channel));
        Self {
            filter,
            floats: Box::new(std::array::from_fn(channel)),
        }
    }

    /// Returns `picture` in the size `(width, height)`.
    pub(crate) fn resize(&self, picture: &Picture, size: (u32, u32)) -> Result<Picture> {
        resize(picture, size, self.filter)
    }

    /// Returns the normalized colors of `picture`.
    pub(crate) fn view(&self, picture: &Picture) -> View {
        let planes = self.floats.iter().enumerate();
        View {
            height: picture.height as usize,
            width: picture.width as usize,
            planes: planes
                .flat_map(|(channel, floats)| {
                    let colors = picture.rgb.iter().skip(channel).step_by(CHANNELS);
                    colors.map(|&color| floats[usize::from(color)])
                })
                .collect(),
        }
    }

    /// Returns `picture` as tiles of one size, row by row. Its sides must be multiples of those of a tile.
    pub(crate) fn tiles(
        &self,
        picture: &Picture,
        (width, height): (u32, u32),
    ) -> impl Iterator<Item = View> {
        let (columns, rows) = (picture.width / width, picture.height / height);
        let places = (0..rows).flat_map(move |row| (0..columns).map(move |column| (column, row)));
        places.map(move |(column, row)| {
            self.view(&picture.cut((column * width, row * height), (width, height)))
        })
    }
}
