//! Kinds of models and the fields of their image processors.

use serde_json::Value;

use super::fields::{Fields, Files};
use crate::error::Result;
use crate::families::{
    Family, MAX_VIEWS, gemma3::Gemma3, gemma4::Gemma4, idefics3::Idefics3, internvl::InternVl,
    lfm2::Lfm2Vl, llava::Llava, llava::Resized, qwen::QwenVl, smart::Smart,
};
use crate::limits::{MAX_PIXELS, MAX_SIDE};
use crate::resize::Filter;

/// Maximum number of rows that a configuration may ask of one view.
const MAX_ROWS: u32 = 1 << 20;
/// Maximum number of pixels of both sides of a patch.
const MAX_PATCH: u32 = 256;
/// Maximum number of patches of both sides of a square that becomes a row.
const MAX_MERGE: u32 = 16;

/// A family of models, by the names in their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gemma3,
    Gemma4,
    Idefics3,
    InternVl,
    Lfm2Vl,
    Llava,
    /// LLaVA with the image processor of SigLIP.
    LlavaSiglip,
    QwenVl,
}

/// The values of absent fields, which the class of an image processor has.
pub(super) struct Defaults {
    pub(super) filter: Filter,
    pub(super) normalize: bool,
    pub(super) mean: [f32; 3],
    pub(super) deviation: [f32; 3],
}

const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

impl Kind {
    const MODEL_TYPES: [(&'static str, Self); 12] = [
        ("gemma3", Self::Gemma3),
        ("gemma4", Self::Gemma4),
        ("idefics3", Self::Idefics3),
        ("internvl", Self::InternVl),
        ("lfm2-vl", Self::Lfm2Vl),
        ("lfm2_vl", Self::Lfm2Vl),
        ("llava", Self::Llava),
        ("qwen2_5_vl", Self::QwenVl),
        ("qwen2_vl", Self::QwenVl),
        ("qwen3_vl", Self::QwenVl),
        ("qwen3_vl_moe", Self::QwenVl),
        ("smolvlm", Self::Idefics3),
    ];

    const SIGLIP: &str = "SiglipImageProcessor";

    /// Returns the kind with the image processor `class`, which is one of its [processors](Self::processors).
    pub(super) fn with_processor(self, class: &str) -> Self {
        match self {
            Self::Llava if class == Self::SIGLIP => Self::LlavaSiglip,
            kind => kind,
        }
    }

    pub(super) fn from_model_type(name: &str) -> Option<Self> {
        let mut types = Self::MODEL_TYPES.into_iter();
        types.find_map(|(model, kind)| (model == name).then_some(kind))
    }

    pub(super) fn model_types() -> String {
        Self::MODEL_TYPES.map(|(name, _)| name).join(", ")
    }

    /// Returns the classes of image processors.
    pub(super) fn processors(self) -> &'static [&'static str] {
        match self {
            Self::Gemma3 => &["Gemma3ImageProcessor"],
            Self::Gemma4 => &["Gemma4ImageProcessor"],
            Self::Idefics3 => &["Idefics3ImageProcessor", "SmolVLMImageProcessor"],
            Self::InternVl => &["GotOcr2ImageProcessor"],
            Self::Lfm2Vl => &["Lfm2VlImageProcessor"],
            Self::Llava => &["CLIPImageProcessor", "LlavaImageProcessor", Self::SIGLIP],
            Self::LlavaSiglip => &[Self::SIGLIP],
            Self::QwenVl => &["Qwen2VLImageProcessor"],
        }
    }

    pub(super) fn defaults(self) -> Defaults {
        let (half, clip) = (([0.5; 3], [0.5; 3]), (CLIP_MEAN, CLIP_DEVIATION));
        let (filter, normalize, (mean, deviation)) = match self {
            Self::Gemma3 | Self::Lfm2Vl => (Filter::Bilinear, true, half),
            Self::Gemma4 => (Filter::Bicubic, false, ([0.0; 3], [1.0; 3])),
            Self::Idefics3 => (Filter::Lanczos, true, half),
            Self::LlavaSiglip => (Filter::Bicubic, true, half),
            Self::InternVl | Self::Llava | Self::QwenVl => (Filter::Bicubic, true, clip),
        };
        Defaults {
            filter,
            normalize,
            mean,
            deviation,
        }
    }
}

/// Reads the fields of one family.
///
/// `mean` is that of the normalization: LLaVA pads with this color.
pub(super) fn family(files: &mut Files, kind: Kind, mean: [f32; 3]) -> Result<Family> {
    if kind != Kind::Llava {
        files.image.only_bool("do_center_crop", false)?;
        files.image.drop(&["crop_size"]);
    }
    match kind {
        Kind::Gemma3 => gemma3(files).map(Family::Gemma3),
        Kind::Gemma4 => gemma4(files).map(Family::Gemma4),
        Kind::Idefics3 => idefics3(files).map(Family::Idefics3),
        Kind::InternVl => internvl(files).map(Family::InternVl),
        Kind::Lfm2Vl => lfm2(files).map(Family::Lfm2Vl),
        Kind::Llava => llava(files, mean, Resized::Shortest(224)).map(Family::Llava),
        Kind::LlavaSiglip => llava(files, mean, Resized::Exact(224, 224)).map(Family::Llava),
        Kind::QwenVl => qwen(files).map(Family::QwenVl),
    }
}

fn gemma3(files: &mut Files) -> Result<Gemma3> {
    let image = &mut files.image;
    image.only_bool("do_pan_and_scan", false)?;
    image.drop(&[
        "default_to_square",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_min_ratio_to_activate",
    ]);
    let size = exact(image, "size")?.unwrap_or((224, 224));
    let rows = image.count("image_seq_length", MAX_ROWS)?;
    let rows = files
        .processor
        .count("image_seq_length", MAX_ROWS)?
        .or(rows);
    Ok(Gemma3 {
        size,
        rows: rows.unwrap_or(256) as usize,
    })
}

fn gemma4(files: &mut Files) -> Result<Gemma4> {
    let image = &mut files.image;
    image.drop(&["default_to_square", "image_seq_length", "size"]);
    Ok(Gemma4 {
        patch: image.count("patch_size", MAX_PATCH)?.unwrap_or(16),
        pooling: image.count("pooling_kernel_size", MAX_MERGE)?.unwrap_or(3),
        max_rows: image.count("max_soft_tokens", 1120)?.unwrap_or(280),
    })
}

fn idefics3(files: &mut Files) -> Result<Idefics3> {
    let image = &mut files.image;
    // All views have one size. Settings of videos are not those of pictures.
    image.drop(&["do_pad", "default_to_square", "pad_size", "video_sampling"]);
    let longest = |image: &mut Fields, name: &str, default: u32| -> Result<u32> {
        let Some(mut size) = image.object(name)? else {
            return Ok(default);
        };
        let longest = size.count("longest_edge", MAX_SIDE)?;
        size.finish()?;
        longest.ok_or_else(|| size.error("longest_edge", "is absent, expected an integer"))
    };
    let tile = longest(image, "max_image_size", 364)?;
    let family = Idefics3 {
        longest: longest(image, "size", 4 * 364)?,
        tile,
        split: image.bool("do_image_splitting", true)?,
        rows: match files.processor.count("image_seq_len", MAX_ROWS)? {
            Some(rows) => rows as usize,
            None => idefics3_rows(&mut files.config, tile)?,
        },
    };
    if family.split && family.max_views() > MAX_VIEWS {
        let problem = format!(
            "makes {} views, expected at most {MAX_VIEWS}",
            family.max_views()
        );
        return Err(files.image.error("max_image_size", problem));
    }
    Ok(family)
}

/// Returns the rows of a tile: patches, of which a square becomes a row.
fn idefics3_rows(config: &mut Fields, tile: u32) -> Result<usize> {
    let scale = config.count("scale_factor", MAX_MERGE)?.unwrap_or(2);
    let vision = config.object("vision_config")?;
    let patch = match vision {
        Some(mut vision) => vision.count("patch_size", MAX_PATCH)?,
        None => None,
    };
    let patches = tile / patch.unwrap_or(32);
    Ok((patches * patches / (scale * scale)) as usize)
}

fn internvl(files: &mut Files) -> Result<InternVl> {
    let image = &mut files.image;
    // The processor of the family cuts tiles, whatever its image processor's file says.
    image.drop(&["crop_to_patches", "default_to_square", "do_pad", "pad_size"]);
    let tiles = |image: &mut Fields, name: &str, default| -> Result<u32> {
        Ok(image.count(name, MAX_VIEWS - 1)?.unwrap_or(default))
    };
    let counts = (
        tiles(image, "min_patches", 1)?,
        tiles(image, "max_patches", 12)?,
    );
    if counts.0 > counts.1 {
        let problem = format!(
            "is {}, expected at most `max_patches` = {}",
            counts.0, counts.1
        );
        return Err(image.error("min_patches", problem));
    }
    let rows = image.count("image_seq_length", MAX_ROWS)?;
    let rows = files
        .processor
        .count("image_seq_length", MAX_ROWS)?
        .or(rows);
    Ok(InternVl {
        tile: exact(image, "size")?.unwrap_or((384, 384)),
        tiles: counts,
        rows: rows.unwrap_or(256) as usize,
    })
}

fn lfm2(files: &mut Files) -> Result<Lfm2Vl> {
    let image = &mut files.image;
    // Padding of patches is the encoder's affair; `size` and the other two follow from the fields that are read.
    image.drop(&[
        "default_to_square",
        "do_pad",
        "max_num_patches",
        "pad_size",
        "size",
    ]);
    let merge = image.count("downsample_factor", MAX_MERGE)?.unwrap_or(2);
    let patch = image.count("encoder_patch_size", MAX_PATCH)?.unwrap_or(16);
    let rows = (
        image.count("min_image_tokens", MAX_ROWS)?.unwrap_or(64),
        image.count("max_image_tokens", MAX_ROWS)?.unwrap_or(256),
    );
    let counts = (
        image.count("min_tiles", MAX_VIEWS - 1)?.unwrap_or(2),
        image.count("max_tiles", MAX_VIEWS - 1)?.unwrap_or(10),
    );
    let tile = image.count("tile_size", MAX_SIDE)?.unwrap_or(512);
    let is_split = image.bool("do_image_splitting", true)? && counts != (1, 1);
    if is_split && counts.0 > counts.1 {
        let problem = format!(
            "is {}, expected at most `max_tiles` = {}",
            counts.0, counts.1
        );
        return Err(image.error("min_tiles", problem));
    }
    Ok(Lfm2Vl {
        side: patch * merge,
        patch,
        rows,
        tiles: is_split.then_some((tile, counts)),
        thumbnail: image.bool("use_thumbnail", true)?,
        tolerance: image.positive("max_pixels_tolerance")?.unwrap_or(2.0),
        special: files.processor.bool("use_image_special_tokens", true)?,
    })
}

fn llava(files: &mut Files, mean: [f32; 3], default: Resized) -> Result<Llava> {
    let crops = matches!(default, Resized::Shortest(_));
    let image = &mut files.image;
    image.drop(&["default_to_square", "pad_size"]);
    let resized = image.take("size", SIZE, |value| match value {
        Value::Object(fields) if fields.contains_key("shortest_edge") => {
            let is_alone = fields
                .iter()
                .all(|(name, value)| name == "shortest_edge" || value.is_null());
            let side = side(fields.get("shortest_edge")?)?;
            is_alone.then_some(Resized::Shortest(side))
        }
        Value::Number(_) => side(value).map(Resized::Shortest),
        value => pair(value).map(|(width, height)| Resized::Exact(width, height)),
    })?;
    let crop = exact(image, "crop_size")?.unwrap_or((224, 224));
    let crop = image.bool("do_center_crop", crops)?.then_some(crop);
    let pad = image.bool("do_pad", false)?.then_some(mean_color(mean));
    let processor = &mut files.processor;
    let patch = match processor.count("patch_size", MAX_PATCH)? {
        Some(patch) => Some(patch),
        None => match files.config.object("vision_config")? {
            Some(mut vision) => vision.count("patch_size", MAX_PATCH)?,
            None => None,
        },
    };
    let strategy = match processor.text("vision_feature_select_strategy")? {
        Some(strategy) => Some(strategy),
        None => files.config.text("vision_feature_select_strategy")?,
    };
    let more = processor.take("num_additional_image_tokens", "a small integer", |value| {
        value.as_u64().filter(|count| *count < 64)
    })?;
    // The class token, which `default` leaves out. Encoders that are read whole have none.
    let (left_out, more) = match strategy.as_deref().unwrap_or("default") {
        "default" => (1, more.unwrap_or(1)),
        "full" => (0, more.unwrap_or(0)),
        other => {
            let problem = format!("is {other:?}, expected \"default\" or \"full\"");
            return Err(processor.error("vision_feature_select_strategy", problem));
        }
    };
    Ok(Llava {
        pad,
        resized: resized.unwrap_or(default),
        crop,
        patch: patch.unwrap_or(32),
        more_rows: more as i64 - left_out,
    })
}

fn qwen(files: &mut Files) -> Result<QwenVl> {
    let image = &mut files.image;
    image.drop(&["default_to_square", "do_pad", "pad_size"]);
    let patch = image.count("patch_size", MAX_PATCH)?.unwrap_or(14);
    let merge = image.count("merge_size", MAX_MERGE)?.unwrap_or(2);
    // A picture is repeated for all frames of a patch, which is the encoder's affair.
    image.count("temporal_patch_size", MAX_MERGE)?;
    let pixels = |fields: &mut Fields, name: &str| -> Result<Option<u64>> {
        let most = u32::try_from(MAX_PIXELS).unwrap_or(u32::MAX);
        Ok(fields.count(name, most)?.map(u64::from))
    };
    let (mut fewest, mut most) = (None, None);
    if let Some(mut size) = image.object("size")? {
        let older = (
            pixels(&mut size, "min_pixels")?,
            pixels(&mut size, "max_pixels")?,
        );
        fewest = pixels(&mut size, "shortest_edge")?.or(older.0);
        most = pixels(&mut size, "longest_edge")?.or(older.1);
        size.finish()?;
    }
    let fewest = pixels(image, "min_pixels")?.or(fewest).unwrap_or(56 * 56);
    let most = pixels(image, "max_pixels")?
        .or(most)
        .unwrap_or(28 * 28 * 1280);
    if fewest > most {
        let problem = format!("are {fewest}, expected at most the maximum, {most}");
        return Err(image.error("min_pixels", problem));
    }
    Ok(QwenVl {
        size: Smart {
            factor: patch * merge,
            pixels: (fewest, most),
            least: 0,
        },
    })
}

/// Returns a mean as a color.
pub(super) fn mean_color(mean: [f32; 3]) -> [u8; 3] {
    mean.map(|mean| (f64::from(mean) * 255.0) as u8)
}

const SIZE: &str = "an integer or {\"height\": …, \"width\": …} of at most 16384";

/// Takes a size as `(width, height)`; an integer is both.
fn exact(fields: &mut Fields, name: &str) -> Result<Option<(u32, u32)>> {
    fields.take(name, SIZE, |value| match value {
        Value::Number(_) => side(value).map(|side| (side, side)),
        value => pair(value),
    })
}

fn side(value: &Value) -> Option<u32> {
    let side = u32::try_from(value.as_u64()?).ok()?;
    (1..=MAX_SIDE).contains(&side).then_some(side)
}

fn pair(value: &Value) -> Option<(u32, u32)> {
    let fields = value.as_object()?;
    let has_others = fields
        .iter()
        .any(|(name, value)| !matches!(&name[..], "height" | "width") && !value.is_null());
    match has_others {
        true => None,
        false => Some((side(fields.get("width")?)?, side(fields.get("height")?)?)),
    }
}
