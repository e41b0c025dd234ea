//! GGUF's type numbers.

use crate::tensor::Format;

/// GGML's tensor types in the order of their numbers; an empty name marks a withdrawn type.
const GGML_TYPES: [&str; 43] = [
    "F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S",
    "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "",
    "", "", "MXFP4", "NVFP4", "Q1_0", "Q2_0",
];

/// Returns the name of tensor type `id`; `None` if no type has that number.
pub(super) fn ggml_type_name(id: u32) -> Option<&'static str> {
    GGML_TYPES
        .get(id as usize)
        .copied()
        .filter(|name| !name.is_empty())
}

impl Format {
    /// Returns the format with GGML's type number `id`; `None` if there is no such type or Triad doesn't support it.
    pub fn from_ggml_type(id: u32) -> Option<Self> {
        let name = ggml_type_name(id)?;
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns GGML's type number.
    pub fn ggml_type(self) -> u32 {
        let index = GGML_TYPES.iter().position(|&name| name == self.name());
        index.map_or_else(
            || unreachable!("every format is a GGML type"),
            |index| index as u32,
        )
    }
}

/// The types of metadata values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    pub(super) fn from_id(id: u32) -> Option<Self> {
        use ValueType::{Array, Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
        [
            U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64,
        ]
        .get(id as usize)
        .copied()
    }

    /// Returns the minimum bytes of a value of this type.
    pub(super) fn smallest(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::BlockFormat;

    #[test]
    fn type_numbers_and_formats_map_both_ways() {
        for format in Format::ALL {
            assert_eq!(Format::from_ggml_type(format.ggml_type()), Some(format));
        }
        assert_eq!(Format::from_ggml_type(30), Some(Format::Bf16));
        for (id, format) in [
            (14, BlockFormat::Q6_K),
            (16, BlockFormat::IQ2_XXS),
            (17, BlockFormat::IQ2_XS),
            (18, BlockFormat::IQ3_XXS),
            (19, BlockFormat::IQ1_S),
            (20, BlockFormat::IQ4_NL),
            (21, BlockFormat::IQ3_S),
            (22, BlockFormat::IQ2_S),
            (23, BlockFormat::IQ4_XS),
            (29, BlockFormat::IQ1_M),
            (34, BlockFormat::TQ1_0),
            (35, BlockFormat::TQ2_0),
            (39, BlockFormat::MXFP4),
            (40, BlockFormat::NVFP4),
            (41, BlockFormat::Q1_0),
            (42, BlockFormat::Q2_0),
        ] {
            assert_eq!(Format::from_ggml_type(id), Some(Format::Blocks(format)));
        }
        for unread in [4, 9, 15, 24, 31, 36, 43, u32::MAX] {
            assert_eq!(Format::from_ggml_type(unread), None, "{unread}");
        }
        assert_eq!(ggml_type_name(15), Some("Q8_K"));
    }
}
