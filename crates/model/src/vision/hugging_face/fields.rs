//! Fields that several families have.

use serde_json::Value;

use crate::description::{Norm, NormKind};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Config;
use crate::vision::description::VisionActivation;
use crate::vision::limits;

pub(in crate::vision) fn layer_norm(epsilon: f32) -> Norm {
    Norm {
        kind: NormKind::Layer,
        epsilon,
        weight_offset: 0.0,
    }
}

pub(super) fn size_or(config: &Config<'_>, key: &str, default: usize) -> Result<usize> {
    Ok(config.size(key, limits::WIDTH)?.unwrap_or(default))
}

/// Returns an integer, which may be stated as an array of two equal ones.
pub(super) fn side(config: &Config<'_>, key: &str, most: usize) -> Result<Option<usize>> {
    if !config.raw(key).is_some_and(Value::is_array) {
        return config.size(key, most);
    }
    let sides = config.counts(key)?.unwrap_or_default();
    match sides[..] {
        [one, other] if one == other && (1..=most).contains(&one) => Ok(Some(one)),
        _ => Err(unsupported(
            config,
            key,
            format!("{sides:?}"),
            "two equal numbers",
        )),
    }
}

/// Returns the patches per side of a picture of `image_size`.
pub(super) fn patches(vision: &Config<'_>, default: usize, patch: usize) -> Result<usize> {
    let most = limits::PATCHES * limits::PATCH;
    let pixels = side(vision, "image_size", most)?.unwrap_or(default);
    let side = pixels / patch;
    if side == 0 || side * side > limits::PATCHES {
        let expected = format!("1 to {} patches of {patch} pixels", limits::PATCHES);
        return Err(unsupported(vision, "image_size", pixels, &expected));
    }
    Ok(side)
}

/// Refuses an encoder whose rows are wider or narrower than the text model.
pub(super) fn out_width(vision: &Config<'_>, key: &str, width: usize) -> Result<()> {
    match vision.size(key, limits::WIDTH)? {
        Some(stated) if stated != width => {
            let expected = format!("{width}, the width of the text model");
            Err(unsupported(vision, key, stated, &expected))
        }
        _ => Ok(()),
    }
}

pub(super) fn rope_base(vision: &Config<'_>, default: f32) -> Result<f32> {
    let parameters = vision.object("rope_parameters", "vision_config.rope_parameters.")?;
    let Some(parameters) = parameters else {
        return Ok(default);
    };
    if let Some(kind) = parameters.string("rope_type")?
        && !["axial", "default"].contains(&kind)
    {
        return Err(unsupported(&parameters, "rope_type", kind, "axial"));
    }
    Ok(parameters
        .positive("rope_theta")?
        .map_or(default, |it| it as f32))
}

pub(super) fn activation(
    config: &Config<'_>,
    key: &str,
    default: &str,
) -> Result<VisionActivation> {
    let name = config.string(key)?.unwrap_or(default);
    Ok(match name {
        "gelu" => VisionActivation::Gelu,
        "gelu_pytorch_tanh" => VisionActivation::GeluTanh,
        "quick_gelu" => VisionActivation::QuickGelu,
        "silu" | "swish" => VisionActivation::Silu,
        _ => {
            let expected = "gelu, gelu_pytorch_tanh, quick_gelu or silu";
            return Err(unsupported(config, key, name, expected));
        }
    })
}

pub(super) fn unsupported(
    config: &Config<'_>,
    key: &str,
    value: impl std::fmt::Display,
    expected: &str,
) -> Error {
    let place = config.place();
    let message = format!("config.json: `{place}{key}` is {value}, expected {expected}");
    Error::new(ErrorKind::Unsupported, message)
}
