//! The keys `clip.*` of an mmproj file, as llama.cpp writes them.
//!
//! Values that such a file lacks are llama.cpp's where they are limits, and those of the family's image processor where
//! they are kernels: an mmproj file names no kernel.

use std::path::Path;

use triad_model::gguf::Metadata;
use triad_model::vision::projector;

use super::Settings;
use super::kinds::{Kind, mean_color};
use crate::error::{Error, Result};
use crate::families::{
    Family, MAX_VIEWS, gemma3::Gemma3, gemma4::Gemma4, idefics3::Idefics3, internvl::InternVl,
    lfm2::Lfm2Vl, llava::Llava, llava::Resized, qwen::QwenVl, smart::Smart,
};
use crate::limits::{MAX_PIXELS, MAX_SIDE};
use crate::view::{Normalization, Pixels};

/// Projectors and their families.
const PROJECTORS: [(&str, Kind); 9] = [
    ("gemma3", Kind::Gemma3),
    ("gemma4v", Kind::Gemma4),
    ("idefics3", Kind::Idefics3),
    ("internvl", Kind::InternVl),
    ("lfm2", Kind::Lfm2Vl),
    ("mlp", Kind::Llava),
    ("qwen2.5vl_merger", Kind::QwenVl),
    ("qwen2vl_merger", Kind::QwenVl),
    ("qwen3vl_merger", Kind::QwenVl),
];

/// The metadata of one file.
struct Keys<'a> {
    file: &'a Path,
    metadata: &'a Metadata,
}

/// Reads the settings of an mmproj file with `metadata`.
pub(crate) fn from_gguf(file: &Path, metadata: &Metadata) -> Result<Settings> {
    let keys = Keys { file, metadata };
    let kind = keys.kind()?;
    let (mean, deviation) = (
        keys.channels("clip.vision.image_mean")?,
        keys.channels("clip.vision.image_std")?,
    );
    if !mean.iter().chain(&deviation).all(|float| float.is_finite()) {
        let problem = "or clip.vision.image_std has a number that is not finite";
        return Err(keys.error("clip.vision.image_mean", problem));
    }
    if !deviation.iter().all(|deviation| *deviation > 0.0) {
        return Err(keys.error("clip.vision.image_std", "has a number that is not above 0"));
    }
    let family = keys.family(kind, mean)?;
    let normalization = Normalization {
        scale: Some(1.0 / 255.0),
        mean_and_deviation: Some((mean, deviation)),
    };
    Ok(Settings {
        family,
        pixels: Pixels::new(kind.defaults().filter, &normalization),
    })
}

impl Keys<'_> {
    fn error(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::Field {
            file: self.file.to_owned(),
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    fn at(&self, error: triad_model::Error) -> Error {
        error.at(self.file).into()
    }

    fn kind(&self) -> Result<Kind> {
        let (key, name) = projector(self.metadata).map_err(|error| self.at(error))?;
        let kind = PROJECTORS.iter().find(|(projector, _)| *projector == name);
        kind.map(|(_, kind)| *kind).ok_or_else(|| {
            let expected = PROJECTORS.map(|(name, _)| name).join(", ");
            let problem = format!("is {name:?}, expected one of {expected}");
            self.error(key, problem)
        })
    }

    /// Returns an integer from 1 to `most`.
    fn count(&self, key: &str, most: u64) -> Result<Option<u32>> {
        let value = self.metadata.integer(key).map_err(|error| self.at(error))?;
        let Some(value) = value else { return Ok(None) };
        let count = u32::try_from(value).ok().filter(|count| *count > 0);
        match count.filter(|count| u64::from(*count) <= most) {
            Some(count) => Ok(Some(count)),
            None => Err(self.error(key, format!("is {value}, expected 1 to {most}"))),
        }
    }

    fn required(&self, key: &str, most: u64) -> Result<u32> {
        let value = self.count(key, most)?;
        value.ok_or_else(|| self.error(key, "is absent, expected an integer"))
    }

    fn channels(&self, key: &str) -> Result<[f32; 3]> {
        let floats = self.metadata.floats(key).map_err(|error| self.at(error))?;
        let floats = floats.ok_or_else(|| self.error(key, "is absent, expected 3 floats"))?;
        floats
            .try_into()
            .map_err(|_| self.error(key, format!("has {} floats, expected 3", floats.len())))
    }

    fn family(&self, kind: Kind, mean: [f32; 3]) -> Result<Family> {
        let size = self.required("clip.vision.image_size", u64::from(MAX_SIDE))?;
        let patch = self.required("clip.vision.patch_size", 256)?;
        let scale = self.count("clip.vision.projector.scale_factor", 16)?;
        let square = |scale: u32| (size / patch / scale).pow(2) as usize;
        Ok(match kind {
            Kind::Gemma3 => Family::Gemma3(Gemma3 {
                size: (size, size),
                rows: square(scale.unwrap_or(4)),
            }),
            Kind::Gemma4 => Family::Gemma4(Gemma4 {
                patch,
                pooling: scale.unwrap_or(3),
                max_rows: 280,
            }),
            Kind::Idefics3 => {
                let longest = self.count("clip.vision.preproc_image_size", u64::from(MAX_SIDE))?;
                let family = Idefics3 {
                    longest: longest.unwrap_or(size.saturating_mul(4).min(MAX_SIDE)),
                    tile: size,
                    split: true,
                    rows: square(scale.unwrap_or(2)),
                };
                if family.max_views() > MAX_VIEWS {
                    let views = family.max_views();
                    let problem = format!("makes {views} views, expected at most {MAX_VIEWS}");
                    return Err(self.error("clip.vision.preproc_image_size", problem));
                }
                Family::Idefics3(family)
            }
            Kind::InternVl => Family::InternVl(InternVl {
                tile: (size, size),
                tiles: self.tiles()?,
                rows: square(scale.unwrap_or(2)),
            }),
            Kind::Lfm2Vl => Family::Lfm2Vl(Lfm2Vl {
                side: patch * scale.unwrap_or(2),
                patch,
                rows: (64, 256),
                tiles: Some((512, (2, 10))),
                thumbnail: true,
                tolerance: 2.0,
                special: true,
            }),
            Kind::Llava | Kind::LlavaSiglip => {
                // LLaVA 1.6 cuts pictures to tiles of several grids.
                let key = "clip.vision.mm_patch_merge_type";
                let merge = self.metadata.string(key).map_err(|error| self.at(error))?;
                if let Some(merge) = merge.filter(|merge| *merge != "flat") {
                    return Err(self.error(key, format!("is {merge:?}, expected \"flat\"")));
                }
                let key = "clip.vision.image_grid_pinpoints";
                if self.metadata.get(key).is_some() {
                    return Err(self.error(key, "is not supported: expected LLaVA 1.5"));
                }
                Family::Llava(Llava {
                    pad: Some(mean_color(mean)),
                    resized: Resized::Exact(size, size),
                    crop: None,
                    patch,
                    more_rows: 0,
                })
            }
            Kind::QwenVl => Family::QwenVl(QwenVl {
                size: self.smart(patch)?,
            }),
        })
    }

    fn tiles(&self) -> Result<(u32, u32)> {
        let most = u64::from(MAX_VIEWS - 1);
        let tiles = (
            self.count("clip.vision.preproc_min_tiles", most)?
                .unwrap_or(1),
            self.count("clip.vision.preproc_max_tiles", most)?
                .unwrap_or(12),
        );
        if tiles.0 > tiles.1 {
            let problem = format!("is {}, expected at most {}", tiles.0, tiles.1);
            return Err(self.error("clip.vision.preproc_min_tiles", problem));
        }
        Ok(tiles)
    }

    fn smart(&self, patch: u32) -> Result<Smart> {
        let merge = self
            .count("clip.vision.spatial_merge_size", 16)?
            .unwrap_or(2);
        let factor = patch * merge;
        let rows = |rows: u64| rows * u64::from(factor).pow(2);
        let limit = |key, default: u64| -> Result<u64> {
            Ok(self.count(key, MAX_PIXELS)?.map_or(default, u64::from))
        };
        let pixels = (
            limit("clip.vision.image_min_pixels", rows(8))?,
            limit("clip.vision.image_max_pixels", rows(4096))?,
        );
        if pixels.0 > pixels.1 {
            let problem = format!("is {}, expected at most {}", pixels.0, pixels.1);
            return Err(self.error("clip.vision.image_min_pixels", problem));
        }
        Ok(Smart {
            factor,
            pixels,
            least: 0,
        })
    }
}
