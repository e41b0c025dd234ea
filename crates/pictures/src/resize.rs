//! Resizing as torchvision does it for tensors of bytes.
//!
//! Version 5 of `transformers` resizes by torchvision unless it is told otherwise. Its kernels for bytes have weights of
//! 16 bits, whose common scale depends on the largest weight, and round after the horizontal and the vertical pass. The
//! results here are equal, not close.

use std::f64::consts::PI;

use crate::error::{Error, Result};
use crate::limits::{MAX_PIXELS, MAX_SIDE};
use crate::picture::{CHANNELS, Picture};

/// A kernel that weighs the pixels around a place. All of them are widened when a picture becomes smaller (antialias).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Linear between two pixels.
    Bilinear,
    /// Cubic over four pixels, a = −0.5.
    Bicubic,
    /// A windowed sinc over six pixels.
    Lanczos,
}

impl Filter {
    /// Returns the distance from which on weights are 0.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Returns the weight at the distance `x`, not normalized.
    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let distance = x.abs();
        match self {
            Self::Bilinear if distance < 1.0 => 1.0 - distance,
            Self::Bicubic if distance < 1.0 => {
                ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
            }
            Self::Bicubic if distance < 2.0 => {
                (((distance - 5.0) * distance + 8.0) * distance - 4.0) * A
            }
            Self::Lanczos if distance < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    (x * PI).sin() / (x * PI)
}

/// The weights of one pass: those of each pixel that it makes.
struct Taps {
    /// The first pixel that each one reads, and the end of its weights.
    pixels: Vec<(usize, usize)>,
    weights: Vec<i32>,
    /// The weights are multiples of 2^−`precision`.
    precision: u32,
}

impl Taps {
    fn new(filter: Filter, from: u32, to: u32) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let widened = scale.max(1.0);
        let support = filter.support() * widened;
        let mut pixels = Vec::with_capacity(to as usize);
        let mut floats: Vec<f64> = Vec::new();
        for pixel in 0..to {
            let center = scale * (f64::from(pixel) + 0.5);
            // Both are at least 0 where they are used: the cast makes 0 of a negative number.
            let first = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(from as usize);
            let start = floats.len();
            floats.extend((first..end).map(|source| {
                let distance = source as f64 - center + 0.5;
                filter.weight(distance * (1.0 / widened))
            }));
            let sum: f64 = floats[start..].iter().sum();
            if sum != 0.0 {
                floats[start..].iter_mut().for_each(|weight| *weight /= sum);
            }
            pixels.push((first, floats.len()));
        }
        let precision = precision(floats.iter().copied().fold(0.0, f64::max));
        let one = f64::from(1 << precision);
        let round = |weight: f64| (weight * one + 0.5_f64.copysign(weight)) as i32;
        Self {
            pixels,
            weights: floats.into_iter().map(round).collect(),
            precision,
        }
    }

    /// Returns for each pixel the first one that it reads, and its weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut start = 0;
        self.pixels.iter().map(move |&(first, end)| {
            let weights = &self.weights[start..end];
            start = end;
            (first, weights)
        })
    }

    fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }
}

/// Returns the largest precision with which `largest` fits into 16 bits.
fn precision(largest: f64) -> u32 {
    let exceeds =
        |precision: u32| (0.5 + largest * f64::from(1 << (precision + 1))) as i32 >= 1 << 15;
    (0..22).find(|&precision| exceeds(precision)).unwrap_or(22)
}

/// Returns `picture` in another size.
///
/// # Errors
///
/// Returns an error if the new size, or that between the two passes, is beyond the limits.
pub(crate) fn resize(
    picture: &Picture,
    (width, height): (u32, u32),
    filter: Filter,
) -> Result<Picture> {
    let fits = |width: u32, height: u32| u64::from(width) * u64::from(height) <= 2 * MAX_PIXELS;
    let is_possible = width > 0 && height > 0 && width.max(height) <= 4 * MAX_SIDE;
    if !is_possible || !fits(width, height) || !fits(width, picture.height) {
        return Err(Error::Unfit {
            width: picture.width,
            height: picture.height,
            reason: format!("the model asks for {width} × {height} of it"),
        });
    }
    if picture.has_no_colors() {
        let rgb = Vec::new();
        return Ok(Picture { width, height, rgb });
    }
    let mut resized = None;
    if width != picture.width {
        resized = Some(horizontally(
            picture,
            &Taps::new(filter, picture.width, width),
        ));
    }
    if height != picture.height {
        let taps = Taps::new(filter, picture.height, height);
        resized = Some(vertically(resized.as_ref().unwrap_or(picture), &taps));
    }
    Ok(resized.unwrap_or_else(|| picture.clone()))
}

fn horizontally(picture: &Picture, taps: &Taps) -> Picture {
    let width = taps.pixels.len();
    let mut rgb = Vec::with_capacity(width * picture.height as usize * CHANNELS);
    for row in picture.rgb.chunks_exact(picture.stride()) {
        for (first, weights) in taps.iter() {
            let mut sums = [taps.half(); CHANNELS];
            let pixels = row[first * CHANNELS..].chunks_exact(CHANNELS);
            for (pixel, weight) in pixels.zip(weights) {
                for (sum, color) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*color) * weight;
                }
            }
            rgb.extend(sums.map(|sum| to_byte(sum, taps.precision)));
        }
    }
    Picture {
        width: width as u32,
        height: picture.height,
        rgb,
    }
}

fn vertically(picture: &Picture, taps: &Taps) -> Picture {
    let (stride, height) = (picture.stride(), taps.pixels.len());
    let mut rgb = Vec::with_capacity(stride * height);
    let mut sums = vec![0; stride];
    for (first, weights) in taps.iter() {
        sums.fill(taps.half());
        let rows = picture.rgb[first * stride..].chunks_exact(stride);
        for (row, weight) in rows.zip(weights) {
            for (sum, color) in sums.iter_mut().zip(row) {
                *sum += i32::from(*color) * weight;
            }
        }
        rgb.extend(sums.iter().map(|&sum| to_byte(sum, taps.precision)));
    }
    Picture {
        width: picture.width,
        height: height as u32,
        rgb,
    }
}

fn to_byte(sum: i32, precision: u32) -> u8 {
    (sum >> precision).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_color_stays_the_same_in_every_size() {
        let picture = Picture::from_rgb(5, 3, [9, 128, 255].repeat(15)).unwrap();
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for size in [(1, 1), (5, 7), (2, 3), (64, 33)] {
                let resized = resize(&picture, size, filter).unwrap();
                assert_eq!((resized.width, resized.height), size);
                assert!(resized.rgb.chunks(3).all(|pixel| pixel == [9, 128, 255]));
            }
        }
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        let picture = Picture::from_rgb(1, 1, vec![0; 3]).unwrap();
        for size in [(0, 5), (1 << 17, 1), (1 << 16, 1 << 16)] {
            assert!(resize(&picture, size, Filter::Bicubic).is_err(), "{size:?}");
        }
    }
}
