//! The formats of weights on a GPU.

use triad_kernels::Matrix;
use triad_kernels::int8::Int8Weight;

/// Float weights in a unit. The input width of a layer is a multiple of it.
pub(super) const UNIT: usize = 8;

/// Storage format of a weight. Except for W8A8, weights are multiplied with f32 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WeightFormat {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    /// INT8, packed for the CPU's kernels, with INT8 activations.
    W8a8,
}

/// Index of the two input quads of a unit of eight adjacent weights.
const NEIGHBOURS: &str = "fn first_quad(at: u32) -> u32 { return 2u * at; }
fn second_quad(at: u32) -> u32 { return 2u * at + 1u; }
";
/// Index of the two input quads of an INT4 unit. Four units make a group.
const GROUPED: &str = "fn first_quad(at: u32) -> u32 { return at / 4u * 8u + at % 4u; }
fn second_quad(at: u32) -> u32 { return at / 4u * 8u + 4u + at % 4u; }
";
/// Scaling for formats without scales.
const UNSCALED: &str = "fn scaled(sum: f32, column: u32) -> f32 { return sum; }\n";

impl WeightFormat {
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
        Self::W8a8,
    ];

    pub fn for_matrix(matrix: Matrix) -> Self {
        match matrix {
            // Quantized blocks are widened during upload.
            Matrix::F32(_) | Matrix::Blocks(_) => Self::F32,
            Matrix::F16(_) => Self::F16,
            Matrix::Bf16(_) => Self::Bf16,
            Matrix::Int8 { .. } => Self::Int8,
            Matrix::Int4 { .. } => Self::Int4,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "INT8",
            Self::Int4 => "INT4",
            Self::W8a8 => "INT8, activations in INT8",
        }
    }

    /// Returns the number of weights in a unit. The input width of a layer is a multiple of it.
    pub fn unit(self) -> usize {
        if self == Self::W8a8 { 4 } else { UNIT }
    }

    /// Returns the number of columns that a workgroup computes for few rows.
    pub fn rows_columns(self) -> usize {
        if self == Self::W8a8 {
            Int8Weight::COLUMNS
        } else {
            4
        }
    }

    /// Returns the WGSL source that reads this format in a float matmul.
    pub fn source(self) -> [&'static str; 3] {
        match self {
            Self::W8a8 => unreachable!("its products have shaders of their own"),
            Self::F32 => [
                "alias Word = vec4<f32>;
fn unit(column: u32, at: u32) -> Unit {
    let index = 2u * (column * product.units + at);
    return Unit(weight[index], weight[index + 1u]);
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::F16 => [
                "alias Word = vec4<u32>;
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    return Unit(
        vec4<f32>(halves(words.x), halves(words.y)), vec4<f32>(halves(words.z), halves(words.w))
    );
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::Bf16 => [
                "alias Word = vec4<u32>;
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    let low = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Unit(vec4<f32>(low.x, high.x, low.y, high.y), vec4<f32>(low.z, high.z, low.w, high.w));
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::Int8 => [
                "alias Word = vec2<u32>;
fn numbers(word: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word << 24u, word << 16u, word << 8u, word)) >> vec4<u32>(24u));
}
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    return Unit(numbers(words.x), numbers(words.y));
}
",
                NEIGHBOURS,
                "fn scaled(sum: f32, column: u32) -> f32 { return sum * bitcast<f32>(scales[column]); }\n",
            ],
            Self::Int4 => [
                "alias Word = u32;
fn unit(column: u32, at: u32) -> Unit {
    let bytes = vec4<u32>(weight[column * product.units + at]) >> vec4<u32>(0u, 8u, 16u, 24u);
    let group = (column * product.units + at) / 4u;
    let scale = halves(scales[group / 2u])[group % 2u];
    return Unit(
        (vec4<f32>(bytes & vec4<u32>(15u)) - 8.0) * scale, (vec4<f32>((bytes >> vec4<u32>(4u)) & vec4<u32>(15u)) - 8.0) * scale
    );
}
",
                GROUPED,
                UNSCALED,
            ],
        }
    }
}
