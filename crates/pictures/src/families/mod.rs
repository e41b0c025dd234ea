//! Families of models: sizes and tiles of a picture, and the text around them.

pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod grid;
pub(crate) mod idefics3;
pub(crate) mod internvl;
pub(crate) mod lfm2;
pub(crate) mod llava;
pub(crate) mod qwen;
pub(crate) mod smart;

use crate::Prepared;
use crate::error::{Error, Result};
use crate::picture::Picture;
use crate::view::Pixels;

/// Maximum number of views that a picture becomes.
pub(crate) const MAX_VIEWS: u32 = 128;

/// The settings of one family.
#[derive(Clone, Debug)]
pub(crate) enum Family {
    Gemma3(gemma3::Gemma3),
    Gemma4(gemma4::Gemma4),
    Idefics3(idefics3::Idefics3),
    InternVl(internvl::InternVl),
    Lfm2Vl(lfm2::Lfm2Vl),
    Llava(llava::Llava),
    QwenVl(qwen::QwenVl),
}

/// The tokens of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// Stands for a picture in a text that a chat template made.
    pub(crate) placeholder: &'static str,
    /// Stands for a picture in a text that a chat template without pictures made.
    pub(crate) marker: &'static str,
    /// The token of each row, in a prompt with tokens only.
    pub(crate) row: &'static str,
}

impl Family {
    pub(crate) fn prepare(&self, picture: &Picture, pixels: &Pixels) -> Result<Prepared> {
        match self {
            Self::Gemma3(family) => family.prepare(picture, pixels),
            Self::Gemma4(family) => family.prepare(picture, pixels),
            Self::Idefics3(family) => family.prepare(picture, pixels),
            Self::InternVl(family) => family.prepare(picture, pixels),
            Self::Lfm2Vl(family) => family.prepare(picture, pixels),
            Self::Llava(family) => family.prepare(picture, pixels),
            Self::QwenVl(family) => family.prepare(picture, pixels),
        }
    }

    pub(crate) fn tokens(&self) -> Tokens {
        let same = |token| Tokens {
            placeholder: token,
            marker: token,
            row: token,
        };
        match self {
            Self::Gemma3(_) => Tokens {
                row: "<image_soft_token>",
                ..same("<start_of_image>")
            },
            Self::Gemma4(_) => same("<|image|>"),
            Self::Idefics3(_) | Self::Lfm2Vl(_) | Self::Llava(_) => same("<image>"),
            Self::InternVl(_) => same("<IMG_CONTEXT>"),
            Self::QwenVl(_) => Tokens {
                marker: "<|vision_start|><|image_pad|><|vision_end|>",
                ..same("<|image_pad|>")
            },
        }
    }
}

/// Returns an error about a picture that a family can't prepare.
pub(crate) fn unfit(picture: &Picture, reason: impl Into<String>) -> Error {
    Error::Unfit {
        width: picture.width,
        height: picture.height,
        reason: reason.into(),
    }
}
