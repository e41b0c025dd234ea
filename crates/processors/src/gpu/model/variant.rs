//! The variants of the shaders of models.

use super::super::context::Context;
use super::super::kernels::{PACKED, SHIFTED};

/// A variant of the matmul shaders: float activations with weights of any format and f32 sums, and INT8 with i32 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelVariant {
    /// Name of the variant.
    pub name: &'static str,
    /// Rows and columns of the output tile of a workgroup, for many rows.
    pub(super) tile: u32,
    /// Whether sums of few rows use subgroup operations.
    pub(super) subgroups: bool,
    /// WGSL function that widens two f16 numbers to f32.
    pub(super) halves: &'static str,
    /// How matmuls of many rows of float activations are computed.
    pub(super) many: Many,
    /// WGSL function that computes the dot product of four INT8 pairs.
    pub(super) dot4: &'static str,
}

/// How matmuls of many rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Many {
    /// Each invocation multiplies f32 numbers in workgroup memory.
    F32,
    /// Each invocation multiplies f16 numbers in workgroup memory.
    F16,
    /// Subgroups multiply cooperative matrices of this many rows and columns in f16.
    Matrices(u32),
}

impl Many {
    /// Returns the shader of a tile of `tile` rows and columns. In f16, rows are divided by 16. Activations up to 2²⁰
    /// are then representable, and rounding to f16 subnormals loses at most 2⁻²¹ of an activation.
    pub(super) fn source(self, tile: u32, float: impl Fn(String, &[&str]) -> String) -> String {
        let loads = include_str!("../shaders/model/tile_loads.wgsl");
        let by_invocations = |kept: &str| {
            let constants = format!(
                "{}alias Kept = vec4<{kept}>;\n",
                of_tile(tile, (tile / 4).pow(2))
            );
            float(
                constants,
                &[loads, include_str!("../shaders/model/tile.wgsl")],
            )
        };
        match self {
            Self::F32 => by_invocations("f32") + "const SHRINK = 1.0;\n",
            Self::F16 => format!("enable f16;\n{}{SHRINK}", by_invocations("f16")),
            Self::Matrices(side) => {
                let kind = |name: &str, number: &str, role: &str| {
                    format!("alias {name} = coop_mat{side}x{side}<{number}, {role}>;\n")
                };
                let kinds = [
                    kind("Left", "f16", "A"),
                    kind("Right", "f16", "B"),
                    kind("Sums", "f32", "C"),
                ]
                .concat();
                let constants = of_tile(tile, THREADS_OF_MATRICES) + &kinds;
                let shader = float(
                    constants,
                    &[loads, include_str!("../shaders/model/cooperative.wgsl")],
                );
                format!("enable f16;\nenable wgpu_cooperative_matrix;\n{shader}{SHRINK}")
            }
        }
    }
}

/// Factor on rows in f16.
const SHRINK: &str = "const SHRINK = 0.0625;\n";

/// Invocations in a workgroup of `cooperative.wgsl`: four subgroups of 32.
const THREADS_OF_MATRICES: u32 = 128;

/// Returns the WGSL constants of a tile of `tile` rows and columns and `threads` invocations.
pub(super) fn of_tile(tile: u32, threads: u32) -> String {
    format!(
        "const TILE = {tile}u; const SIDE = {}u; const THREADS = {threads}u;\n",
        tile / 4
    )
}

/// Relative tolerance of a term that is multiplied and summed in f32.
const TOLERANCE: f32 = 1e-5;

/// Widens f16 in one instruction. Some GPUs flush f16 subnormals (below 2⁻¹⁴) to zero.
const UNPACKED_HALVES: &str =
    "fn halves(word: u32) -> vec2<f32> { return unpack2x16float(word); }\n";
/// Widens f16 with integer operations. It is exact on every GPU.
const SHIFTED_HALVES: &str = "fn half(bits: u32) -> f32 {
    let bias = select(0x38000000u, 0x70000000u, (bits & 0x7c00u) == 0x7c00u);
    let magnitude = select(
        bitcast<f32>(((bits & 0x7fffu) << 13u) + bias),
        f32(bits & 0x3ffu) * 5.9604645e-8,
        (bits & 0x7c00u) == 0u,
    );
    return select(magnitude, -magnitude, (bits & 0x8000u) != 0u);
}
fn halves(word: u32) -> vec2<f32> { return vec2<f32>(half(word & 0xffffu), half(word >> 16u)); }
";

impl ModelVariant {
    /// All variants, the fastest first. With 2-D workgroups, an Adreno 840 miscomputed (pytorch/executorch#22328).
    pub const ALL: [Self; 4] = [
        Self {
            name: "subgroups-64",
            tile: 64,
            subgroups: true,
            ..Self::PLAIN
        },
        Self {
            name: "plain-64",
            tile: 64,
            ..Self::PLAIN
        },
        Self::PLAIN,
        Self {
            name: "shifted-32",
            halves: SHIFTED_HALVES,
            dot4: SHIFTED,
            ..Self::PLAIN
        },
    ];

    /// Variants that are used only if they are [named](super::super::VARIANTS), the fastest first. They round inputs
    /// and weights of matmuls of many rows to f16.
    pub const ROUNDED: [Self; 4] = [
        Self {
            name: "matrices-16",
            tile: 64,
            subgroups: true,
            many: Many::Matrices(16),
            ..Self::PLAIN
        },
        Self {
            name: "matrices-8",
            tile: 32,
            subgroups: true,
            many: Many::Matrices(8),
            ..Self::PLAIN
        },
        Self {
            name: "f16-64",
            tile: 64,
            subgroups: true,
            many: Many::F16,
            ..Self::PLAIN
        },
        Self {
            name: "plain-f16-64",
            tile: 64,
            many: Many::F16,
            ..Self::PLAIN
        },
    ];

    const PLAIN: Self = Self {
        name: "plain-32",
        tile: 32,
        subgroups: false,
        halves: UNPACKED_HALVES,
        many: Many::F32,
        dot4: PACKED,
    };

    /// Returns the relative tolerance of a term (input times weight) of a matmul of many rows.
    ///
    /// In f16, input and weight are rounded by 2⁻¹¹ each. A weight below 2⁻¹⁴, or an input below 2⁻¹⁰, may become zero.
    pub(super) fn tolerance(self, input: f32, weight: f32) -> f32 {
        match self.many {
            Many::F32 => TOLERANCE,
            _ if input.abs() < 2f32.powi(-10) || weight.abs() < 2f32.powi(-14) => 1.0,
            _ => 2f32.powi(-10) + TOLERANCE,
        }
    }

    /// Returns whether matmuls use cooperative matrices, an experimental feature of drivers and of `wgpu`.
    pub(crate) fn has_matrices(self) -> bool {
        matches!(self.many, Many::Matrices(_))
    }

    /// Returns the feature that the GPU lacks for this variant, or `None`.
    pub(super) fn missing(self, context: &Context) -> Option<String> {
        let has = |feature| context.device.features().contains(feature);
        if self.subgroups && !has(wgpu::Features::SUBGROUP) {
            return Some("operations of subgroups".to_owned());
        }
        if self.many != Many::F32 && !has(wgpu::Features::SHADER_F16) {
            return Some("numbers in f16".to_owned());
        }
        match self.many {
            Many::Matrices(side) if !context.matrices.contains(&side) => Some(format!(
                "matrices of {side} × {side} numbers in f16 with sums in f32"
            )),
            _ => None,
        }
    }

    /// Returns the rows and columns of a tile.
    pub(super) fn tile(self) -> usize {
        self.tile as usize
    }
}
