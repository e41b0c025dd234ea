//! Pictures for models with a vision encoder: decoding, resizing, tiles and normalization.
//!
//! A [`Processor`] converts a [`Picture`] to what the vision encoder reads ([`View`]) and to what stands for the picture
//! in the prompt ([`Piece`]). It does what the processors of `transformers` 5 do with their default backend, torchvision,
//! to the pixel.
//!
//! ```no_run
//! use triad_pictures::{Picture, Processor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let processor = Processor::from_folder("SmolVLM-256M-Instruct".as_ref())?;
//! let picture = Picture::decode(&std::fs::read("screen.png")?)?;
//! let prepared = processor.prepare(&picture)?;
//! println!("{} views", prepared.views.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod check;
mod decode;
mod error;
mod families;
mod jpeg;
pub mod limits;
mod picture;
mod prepared;
mod prompt;
mod resize;
mod settings;
mod source;
mod view;

use std::path::Path;

use triad_model::gguf::{self, Metadata};
use triad_model::mapped::MappedFile;

pub use decode::Head;
pub use error::{Error, Result};
pub use picture::Picture;
pub use prepared::{Layout, Prepared};
pub use prompt::Piece;
pub use source::{from_base64, from_data_url};
pub use view::View;

use families::Family;
use settings::Settings;
use view::Pixels;

/// The metadata of an mmproj file in a package.
const PACKAGED_GGUF: &str = "pictures.gguf";

/// Prepares pictures for one model.
#[derive(Clone, Debug)]
pub struct Processor {
    family: Family,
    pixels: Pixels,
}

impl Processor {
    /// Reads `config.json`, `preprocessor_config.json` and `processor_config.json` in `folder`.
    ///
    /// Each field of the image processor is used or known to have no effect; of `processor_config.json` only what
    /// concerns pictures is read.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file and the field if one is missing, invalid or not supported.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        settings::from_folder(folder).map(Self::new)
    }

    /// Reads the keys `clip.*` of an mmproj file, whose `path` errors name.
    ///
    /// # Errors
    ///
    /// Returns an error that names the key if one is missing, invalid or not supported.
    pub fn from_gguf(path: &Path, metadata: &Metadata) -> Result<Self> {
        settings::from_gguf(path, metadata).map(Self::new)
    }

    /// Reads the settings that come with the encoder at `path`: an mmproj file, a folder of `transformers` or a file in one,
    /// or a package with an encoder.
    ///
    /// # Errors
    ///
    /// As [`Processor::from_folder`] and [`Processor::from_gguf`]; if the file is not GGUF.
    pub fn of_encoder(path: &Path) -> Result<Self> {
        let of_package = path.join(PACKAGED_GGUF);
        let gguf = match path.extension() {
            _ if of_package.exists() => &of_package,
            _ if path.is_dir() => return Self::from_folder(path),
            Some(extension) if extension == "safetensors" => {
                let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
                return Self::from_folder(folder.unwrap_or(Path::new(".")));
            }
            _ => path,
        };
        let file = MappedFile::open(gguf)?;
        let head = gguf::read(file.bytes()).map_err(|error| error.at(gguf))?;
        Self::from_gguf(gguf, &head.metadata)
    }

    fn new(settings: Settings) -> Self {
        let Settings { family, pixels } = settings;
        Self { family, pixels }
    }

    /// Resizes, cuts and normalizes `picture`.
    ///
    /// # Errors
    ///
    /// Returns an error if the picture is beyond the [`limits`] or the model can't take one of its size.
    pub fn prepare(&self, picture: &Picture) -> Result<Prepared> {
        picture.check()?;
        self.family.prepare(picture, &self.pixels)
    }

    /// Returns what [`Processor::prepare`] makes of a picture of `width` × `height` pixels, without computing its colors.
    ///
    /// # Errors
    ///
    /// As [`Processor::prepare`].
    pub fn layout(&self, width: u32, height: u32) -> Result<Layout> {
        let picture = Picture::without_colors(width, height)?;
        let prepared = self.family.prepare(&picture, &self.pixels)?;
        let views = prepared.views.iter();
        Ok(Layout {
            views: views.map(|view| [view.height, view.width]).collect(),
            pieces: prepared.pieces,
        })
    }

    /// Returns the special token that stands for a picture in a text that a chat template made. The pieces of a picture
    /// take its place.
    pub fn placeholder(&self) -> &'static str {
        self.family.tokens().placeholder
    }

    /// Returns the text that stands for a picture in a message if the chat template writes no pictures. It contains
    /// the placeholder.
    pub fn marker(&self) -> &'static str {
        self.family.tokens().marker
    }

    /// Returns the special token in place of which a row of an encoder's output is.
    pub fn row_token(&self) -> &'static str {
        self.family.tokens().row
    }
}
