//! The cost of a picture, for models that read them.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use serde::Serialize;
use triad_console::output;
use triad_engine::PictureCost;
use triad_model::vision::VisionFile;
use triad_pictures::Processor;

/// The size of a picture in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once(['x', '×']);
        let sides = sides.and_then(|(width, height)| {
            let side = |side: &str| side.trim().parse::<u32>().ok();
            Some((side(width)?, side(height)?))
        });
        let (width, height) =
            sides.ok_or("expected width and height in pixels, such as 1080x2400")?;
        Ok(Self { width, height })
    }
}

/// The size and the cost of a picture.
#[derive(Serialize)]
pub struct Picture {
    #[serde(flatten)]
    size: Size,
    #[serde(flatten)]
    cost: PictureCost,
    /// Bytes of the encoder's weights, which are in memory once.
    encoder_bytes: usize,
}

impl Picture {
    /// Counts a picture of this `size` for the encoder at `path`, from the headers of its files.
    pub fn count(path: &Path, size: Size) -> Result<Self> {
        let file = VisionFile::open(path)?;
        let processor = Processor::of_encoder(path)?;
        let layout = processor.layout(size.width, size.height)?;
        Ok(Self {
            size,
            cost: PictureCost::new(file.description(), &layout.views)?,
            encoder_bytes: file.bytes(),
        })
    }
}

impl Display for Picture {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self {
            size: Size { width, height },
            cost,
            encoder_bytes,
        } = self;
        let bytes = |bytes: usize| output::bytes(bytes as u64);
        let operations = (cost.linear_operations + cost.attention_operations) / 1e9;
        write!(
            f,
            "a picture of {width} × {height} pixels: {} of context; its encoder computes {operations:.0} Gop for {} in {}, \
             with {} of weights and {} of activations",
            counted(cost.rows, "token"),
            counted(cost.patches, "patch"),
            counted(cost.views, "view"),
            bytes(*encoder_bytes),
            bytes(cost.activation_bytes)
        )
    }
}

fn counted(count: usize, name: &str) -> String {
    let ending = match (count, name.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {name}{ending}", output::count(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_width_and_height() {
        let size = |width, height| Size { width, height };
        assert_eq!("1080x2400".parse(), Ok(size(1080, 2400)));
        assert_eq!("1 × 2".parse(), Ok(size(1, 2)));
        for text in ["", "1080", "ax1", "1x-2", "1x2x3"] {
            text.parse::<Size>().unwrap_err();
        }
    }
}
