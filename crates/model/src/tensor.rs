//! A tensor of a model file: name, shape, format and bytes.

use std::fmt;
use std::ops::Range;

pub use triad_blocks::BlockFormat;

/// Element format of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// Brain floats.
    Bf16,
    /// Quantized blocks of GGUF.
    Blocks(BlockFormat),
}

impl Format {
    /// Every format, for tables and tests.
    pub const ALL: [Self; 3 + BlockFormat::ALL.len()] = {
        let mut all = [Self::F32; 3 + BlockFormat::ALL.len()];
        (all[1], all[2]) = (Self::F16, Self::Bf16);
        let mut index = 0;
        while index < BlockFormat::ALL.len() {
            all[3 + index] = Self::Blocks(BlockFormat::ALL[index]);
            index += 1;
        }
        all
    };

    /// Returns the name as GGUF writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Blocks(blocks) => blocks.name(),
        }
    }

    /// Returns the elements per block: a row has a whole number of blocks.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Blocks(blocks) => blocks.elements(),
        }
    }

    /// Returns the bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Blocks(blocks) => blocks.bytes(),
        }
    }

    /// Returns the bytes of `elements` elements; `None` if they are no whole number of blocks or the bytes exceed
    /// `usize`.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The description of a tensor and its place in a checkpoint. Checked when the file is opened: `bytes` is inside the
/// file and its length matches `shape` and `format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Row-major, outermost dimension first: `[out_features, in_features]` for a linear layer.
    pub shape: Vec<usize>,
    /// Element format.
    pub format: Format,
    /// Index of the file in the checkpoint (there are several if it is sharded).
    pub file: usize,
    /// Byte range in that file.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}
