//! Pictures on which an encoder is calibrated: three of four calibrate; the fourth is held out.

use std::path::{Path, PathBuf};

use triad_engine::package::vision::{SETTINGS, input_channels};
use triad_engine::vision::{Pixels, VisionModel};
use triad_engine::{Cancel, LinearInput, Model};
use triad_pictures::{Picture, Processor, View};

use super::statistics::InputStatistics;
use super::{Calibration, HELD_OUT};
use crate::error::{Error, PictureError, Result};

/// Maximum number of calibration pictures.
pub const MAX_PICTURES: usize = 1024;
/// Maximum number of held-out views.
const MAX_HELD_OUT: usize = 16;
/// Maximum number of views of one held-out picture, so that these are of several.
const MAX_HELD_OUT_OF_PICTURE: usize = 4;
/// The ends of the names of pictures.
const EXTENSIONS: [&str; 6] = ["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// Calibration pictures, and the encoder that reads them.
#[derive(Clone, Debug)]
pub struct CalibrationPictures {
    /// The name of their folder.
    pub name: String,
    /// The files, ascending.
    pub files: Vec<PathBuf>,
    /// The encoder: an mmproj file, or the folder of a model that reads pictures.
    pub encoder: PathBuf,
    /// Prepares pictures for the encoder.
    pub processor: Processor,
}

/// A view that calibration did not use.
#[derive(Clone, Debug)]
pub struct HeldOutView {
    /// The view.
    pub view: View,
    /// The rows that the encoder in float makes of it.
    pub rows: Vec<f32>,
}

impl CalibrationPictures {
    /// Finds the pictures in `folder`, for the encoder at `encoder`.
    ///
    /// # Errors
    /// If the folder cannot be read, or has no pictures or too many; if the settings of the encoder are not supported.
    pub fn of_folder(folder: &Path, encoder: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| PictureError {
            path: folder.into(),
            problem: "cannot read the folder".into(),
            source: Some(error.into()),
        };
        let is_picture = |path: &PathBuf| {
            let extension = path.extension().and_then(|it| it.to_str());
            extension.is_some_and(|it| EXTENSIONS.contains(&&it.to_ascii_lowercase()[..]))
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.retain(is_picture);
        files.sort();
        if !(1..=MAX_PICTURES).contains(&files.len()) {
            let problem = format!(
                "has {} pictures, expected 1 to {MAX_PICTURES} files named .png, .jpg, .webp, .gif or .bmp",
                files.len()
            );
            return Err(Error::Picture(PictureError {
                path: folder.into(),
                problem,
                source: None,
            }));
        }
        let processor = Processor::of_encoder(encoder).map_err(|error| PictureError {
            path: encoder.into(),
            problem: "cannot prepare pictures for this encoder".into(),
            source: Some(error.into()),
        })?;
        let name = folder.file_name().unwrap_or(folder.as_os_str());
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            files,
            encoder: encoder.into(),
            processor,
        })
    }

    /// Returns the files in the encoder's folder that say how pictures are prepared; none for an mmproj file, which says it
    /// itself.
    pub fn settings(&self) -> Vec<PathBuf> {
        let parent = self.encoder.parent().unwrap_or(Path::new(""));
        let folder = match self.encoder.extension() {
            _ if self.encoder.is_dir() => self.encoder.as_path(),
            Some(extension) if extension == "safetensors" => parent,
            _ => return Vec::new(),
        };
        let files = SETTINGS.map(|name| folder.join(name)).into_iter();
        files.filter(|path| path.is_file()).collect()
    }

    /// Returns the files that calibrate, and those that are held out.
    pub fn split(&self) -> [Vec<&Path>; 2] {
        let files = self.files.iter().map(PathBuf::as_path).enumerate();
        let (held_out, calibrate): (Vec<_>, Vec<_>) =
            files.partition(|(index, _)| index % HELD_OUT == HELD_OUT - 1);
        [calibrate, held_out].map(|files| files.into_iter().map(|(_, file)| file).collect())
    }

    /// Returns the views of a picture.
    ///
    /// # Errors
    /// If it cannot be read, or is not a picture that the encoder can read.
    pub fn views(&self, path: &Path) -> Result<Vec<View>> {
        let failed = |problem: &str, source: Box<dyn std::error::Error + Send + Sync>| {
            Error::Picture(PictureError {
                path: path.into(),
                problem: problem.into(),
                source: Some(source),
            })
        };
        let bytes = triad_model::files::read(path, triad_pictures::limits::MAX_BYTES as u64)
            .map_err(|error| failed("cannot read the file", error.into()))?;
        let views = Picture::decode(&bytes).and_then(|it| self.processor.prepare(&it));
        let views = views.map_err(|error| failed("cannot calibrate on this file", error.into()))?;
        Ok(views.views)
    }

    /// Runs the float encoder `vision` over the pictures that calibrate, on the threads of `model`, from the first one that
    /// `calibration` does not have, whose tokens are patches and whose pieces are pictures. Returns some views of the others.
    /// `progress` is called with the calibration so far, the number of processed pictures and the total.
    ///
    /// # Errors
    /// If `cancel` is set, a file is not a picture that the encoder can read, or `progress` fails. The statistics so far are
    /// kept, and a later call continues from there, with the same result as a call that was not interrupted.
    pub fn calibrate(
        &self,
        (model, vision): (&Model, &VisionModel),
        calibration: &mut Calibration,
        cancel: &Cancel,
        progress: &mut dyn FnMut(&Calibration, usize, usize) -> Result<()>,
    ) -> Result<Vec<HeldOutView>> {
        let [files, others] = self.split();
        let total = files.len() + others.len();
        progress(calibration, calibration.pieces, total)?;
        for (index, file) in files.iter().enumerate().skip(calibration.pieces) {
            let (mut observed, mut patches) = (0, 0);
            for view in self.views(file)? {
                let pixels = pixels(&view);
                calibration.observe(model, vision, pixels, (cancel, &mut observed))?;
                patches += patches_of(vision, pixels);
            }
            calibration.counted = 0;
            calibration.tokens += patches;
            calibration.pieces += 1;
            progress(calibration, index + 1, total)?;
        }
        let mut held_out = Vec::new();
        for (index, file) in others.iter().enumerate() {
            let views = self.views(file)?;
            let step = views.len().div_ceil(MAX_HELD_OUT_OF_PICTURE).max(1);
            let left = MAX_HELD_OUT - held_out.len();
            for view in views.into_iter().step_by(step).take(left) {
                let rows = model.install(|| vision.encode(pixels(&view), cancel))?;
                held_out.push(HeldOutView { view, rows });
            }
            progress(calibration, files.len() + index + 1, total)?;
        }
        Ok(held_out)
    }
}

impl Calibration {
    /// Creates empty statistics of the linear inputs of an encoder; `text` is the name of the pictures.
    pub fn of_encoder(vision: &VisionModel, text: &str) -> Self {
        let description = vision.description();
        let channels = input_channels(description);
        let blocks = (0..description.blocks).map(|_| channels.map(InputStatistics::new));
        Self::of_blocks(text, blocks.collect())
    }

    /// Adds the linear inputs of a view that the float encoder `vision` computes, on the threads of `model`. Returns its
    /// rows.
    ///
    /// # Errors
    /// If `cancel` is set, or the encoder cannot read the view.
    pub fn add_view(
        &mut self,
        model: &Model,
        vision: &VisionModel,
        pixels: Pixels,
        cancel: &Cancel,
    ) -> Result<Vec<f32>> {
        let rows = self.observe(model, vision, pixels, (cancel, &mut 0))?;
        self.counted = 0;
        self.tokens += patches_of(vision, pixels);
        Ok(rows)
    }

    /// Adds those linear inputs of a view that are not counted yet. `observed` is the number of inputs of earlier views of
    /// the picture.
    fn observe(
        &mut self,
        model: &Model,
        vision: &VisionModel,
        pixels: Pixels,
        (cancel, observed): (&Cancel, &mut usize),
    ) -> Result<Vec<f32>> {
        let (blocks, counted) = (&mut self.blocks, &mut self.counted);
        let mut observe = |block: usize, input: LinearInput, x: &[f32]| {
            if *observed == *counted {
                blocks[block][input.index()].add(x);
                *counted += 1;
            }
            *observed += 1;
        };
        let rows = model.install(|| vision.observe(pixels, cancel, &mut observe))?;
        Ok(rows)
    }
}

/// Returns the number of patches of a view.
fn patches_of(vision: &VisionModel, pixels: Pixels) -> usize {
    let patch = vision.description().patch;
    (pixels.height / patch) * (pixels.width / patch)
}

/// Returns the pixels of a view.
pub fn pixels(view: &View) -> Pixels<'_> {
    Pixels {
        height: view.height,
        width: view.width,
        planes: &view.planes,
    }
}
