//! Files to pixels, as `load_image` of `transformers` does it: upright, then `convert("RGB")` of Pillow.
//!
//! Transparency is dropped, not blended; a palette is looked up. 16 bits become their upper 8; only in gray does Pillow
//! do otherwise: it clips them to 255, which leaves white. Of an animation the first frame is used.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::check::{check_bytes, check_sizes};
use crate::error::{Error, Result};
use crate::jpeg;
use crate::limits::MAX_PIXELS;
use crate::picture::{CHANNELS, Picture};

/// Maximum memory of a decoder: 16 bits of four channels.
const MAX_MEMORY: u64 = MAX_PIXELS * 8;

impl Picture {
    /// Decodes the content of a PNG, JPEG, WebP, GIF or BMP file.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are none of these, are broken or truncated, or if the picture is beyond the
    /// [limits](crate::limits).
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (format, name) = format(bytes)?;
        if format == ImageFormat::Jpeg && !jpeg::has_end(bytes) {
            return Err(Error::Truncated(name));
        }
        read(bytes, format).map_err(|failure| failure.in_format(name))
    }
}

/// The head of a picture's file: what is known before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Pixels of a row of the upright picture.
    pub width: u32,
    /// Its rows.
    pub height: u32,
    /// Bytes of memory that decoding it takes at most, without the file.
    pub bytes: usize,
}

impl Head {
    /// Reads the head of a PNG, JPEG, WebP, GIF or BMP file.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are none of these, the head is broken, or the picture is beyond the
    /// [limits](crate::limits). What follows the head is not checked.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let (format, name) = format(bytes)?;
        let read = || {
            let mut decoder = decoder(bytes, format)?;
            let (width, height) = decoder.dimensions();
            let colors = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
            let (width, height) = match orientation(&mut decoder) {
                Orientation::Rotate90
                | Orientation::Rotate270
                | Orientation::Rotate90FlipH
                | Orientation::Rotate270FlipH => (height, width),
                _ => (width, height),
            };
            Ok(Self {
                width,
                height,
                // The decoder's own copy, its result, and red, green and blue.
                bytes: colors * 2 + width as usize * height as usize * CHANNELS,
            })
        };
        read().map_err(|failure: Failure| failure.in_format(name))
    }
}

/// Returns the format of a file's content, and its name.
fn format(bytes: &[u8]) -> Result<(ImageFormat, &'static str)> {
    check_bytes(bytes.len())?;
    let format = image::guess_format(bytes).map_err(|_| Error::NotAPicture)?;
    let name = name(format).ok_or(Error::NotAPicture)?;
    Ok((format, name))
}

/// The reason why a picture could not be read.
enum Failure {
    Limit(Error),
    Decoder(ImageError),
}

impl Failure {
    /// Returns the error of a file in the format called `name`.
    fn in_format(self, name: &'static str) -> Error {
        match self {
            Self::Limit(error) => error,
            Self::Decoder(ImageError::IoError(error))
                if error.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                Error::Truncated(name)
            }
            Self::Decoder(source) => Error::Broken {
                format: name,
                source,
            },
        }
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self::Decoder(error)
    }
}

fn name(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Bmp => Some("BMP"),
        ImageFormat::Gif => Some("GIF"),
        ImageFormat::Jpeg => Some("JPEG"),
        ImageFormat::Png => Some("PNG"),
        ImageFormat::WebP => Some("WebP"),
        _ => None,
    }
}

/// Returns a decoder of a picture within the limits. It has read only the head.
fn decoder(bytes: &[u8], format: ImageFormat) -> Result<impl ImageDecoder, Failure> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_MEMORY);
    reader.limits(limits);
    let decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    check_sizes(width, height).map_err(Failure::Limit)?;
    Ok(decoder)
}

fn read(bytes: &[u8], format: ImageFormat) -> Result<Picture, Failure> {
    let mut decoder = decoder(bytes, format)?;
    let orientation = orientation(&mut decoder);
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    Ok(Picture {
        width,
        height,
        rgb: to_rgb(image),
    })
}

/// Returns the orientation in EXIF or else in XMP, as Pillow's `exif_transpose` reads it.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    // A picture with broken metadata is shown as it is.
    let exif = decoder.exif_metadata().unwrap_or_default();
    if let Some(orientation) = exif.and_then(|chunk| Orientation::from_exif_chunk(&chunk)) {
        return orientation;
    }
    let xmp = decoder.xmp_metadata().unwrap_or_default();
    let found = xmp.and_then(|xmp| in_xmp(&xmp));
    found.unwrap_or(Orientation::NoTransforms)
}

fn in_xmp(xmp: &[u8]) -> Option<Orientation> {
    const NAME: &[u8] = b"tiff:Orientation";
    let place = xmp.windows(NAME.len()).position(|bytes| bytes == NAME)?;
    let value = match &xmp[place + NAME.len()..] {
        [b'=', b'"', digit, ..] | [b'>', digit, ..] => digit.checked_sub(b'0')?,
        _ => return None,
    };
    Orientation::from_exif(value)
}

fn to_rgb(image: DynamicImage) -> Vec<u8> {
    /// Drops all but the first channels of each pixel and all but the upper byte of each channel.
    fn upper<const CHANNELS: usize>(colors: &[u16]) -> Vec<u8> {
        let pixels = colors.chunks_exact(CHANNELS);
        match CHANNELS {
            1 | 2 => pixels
                .flat_map(|pixel| [(pixel[0] >> 8) as u8; 3])
                .collect(),
            _ => pixels
                .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]].map(|color| (color >> 8) as u8))
                .collect(),
        }
    }
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageRgba8(image) => {
            let pixels = image.as_raw().chunks_exact(4);
            pixels.flat_map(|pixel| &pixel[..3]).copied().collect()
        }
        DynamicImage::ImageLuma8(image) => {
            let pixels = image.into_raw().into_iter();
            pixels.flat_map(|gray| [gray; 3]).collect()
        }
        DynamicImage::ImageLumaA8(image) => {
            let pixels = image.as_raw().chunks_exact(2);
            pixels.flat_map(|pixel| [pixel[0]; 3]).collect()
        }
        DynamicImage::ImageLuma16(image) => upper::<1>(image.as_raw()),
        DynamicImage::ImageLumaA16(image) => upper::<2>(image.as_raw()),
        DynamicImage::ImageRgb16(image) => upper::<3>(image.as_raw()),
        DynamicImage::ImageRgba16(image) => upper::<4>(image.as_raw()),
        // Formats with floats are not among those that are read.
        image => image.into_rgb8().into_raw(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orientation_in_xmp_is_found_in_both_forms() {
        let attribute = br#"<rdf:Description tiff:Orientation="6"/>"#;
        assert_eq!(in_xmp(attribute), Some(Orientation::Rotate90));
        let element = b"<tiff:Orientation>3</tiff:Orientation>";
        assert_eq!(in_xmp(element), Some(Orientation::Rotate180));
        assert_eq!(in_xmp(b"<tiff:Orientation>"), None);
        assert_eq!(in_xmp(b"tiff:Orientation=\"x\""), None);
    }

    #[test]
    fn bytes_that_are_no_picture_are_named_so() {
        for bytes in [&b""[..], b"hello", b"%PDF-1.7", b"\0\0\0\x1cftypavif"] {
            let error = Picture::decode(bytes).unwrap_err();
            assert!(matches!(error, Error::NotAPicture), "{error}");
        }
    }
}
