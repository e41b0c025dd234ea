//! The shaders of models. Matmuls come in several variants; each GPU uses the first one that passes the self-test on it.

use std::fmt;

use triad_kernels::attention::PAGE;

use super::super::kernels::{DEPTH, FUNCTIONS, MULTIPLY};
use super::variant::{ModelVariant, of_tile};
use super::weight_format::WeightFormat;

/// Selects a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// Matmul of few rows; holds the number of rows per workgroup.
    Rows(WeightFormat, u32),
    /// Matmul of many rows.
    Tile(WeightFormat),
    /// Quantization of rows to INT8.
    Quantize,
    /// Shadows of a product that another processor computed.
    Join,
    Norm,
    /// Holds the head dimension.
    Rope(u32),
    /// Holds the head dimension and the number of queries per workgroup.
    Attention(u32, u32),
    /// Holds the head dimension.
    Combine(u32),
    Activate,
}

impl Kernel {
    /// Returns the number of buffers that the kernel reads, and the number that it writes.
    pub(super) fn buffers(self) -> (u32, u32) {
        match self {
            Self::Rows(..) | Self::Tile(_) | Self::Join => (4, 1),
            Self::Quantize => (2, 2),
            Self::Norm => (3, 1),
            Self::Rope(_) => (3, 3),
            Self::Attention(..) => (3, 2),
            Self::Combine(_) | Self::Activate => (1, 1),
        }
    }

    /// Returns the maximum queries of an attention tile, and the keys loaded at a time; 16 KiB of memory suffice.
    pub fn attention_tile(head_dim: usize) -> (usize, usize) {
        if head_dim <= 128 { (16, 16) } else { (8, 8) }
    }

    pub(super) fn source(self, variant: ModelVariant) -> String {
        let float = |format: WeightFormat, constants: String, rest: &[&str]| {
            let shader = include_str!("../shaders/model/float.wgsl");
            let parts = [
                &[CALL, &constants, PRODUCT, variant.halves][..],
                &format.source(),
                &[shader],
                rest,
            ];
            parts.concat().concat()
        };
        let w8a8 = |constants: String, rest: &[&str]| {
            let shader = include_str!("../shaders/model/w8a8.wgsl");
            [
                &[
                    CALL,
                    &constants,
                    variant.dot4,
                    "\n",
                    PRODUCT,
                    SHADOW,
                    shader,
                ][..],
                rest,
            ]
            .concat()
            .concat()
        };
        let heads = |dim: u32| format!("const DIM = {dim}u; const PAGE = {PAGE}u;\n");
        let tile = variant.tile;
        match self {
            Self::Rows(format, rows) => {
                let constants = format!("const ROWS = {rows}u;\n");
                if format == WeightFormat::W8a8 {
                    return w8a8(
                        constants,
                        &[include_str!("../shaders/model/w8a8_rows.wgsl")],
                    );
                }
                let sum = if variant.subgroups {
                    include_str!("../shaders/model/sum_subgroups.wgsl")
                } else {
                    include_str!("../shaders/model/sum_plain.wgsl")
                };
                float(
                    format,
                    constants,
                    &[include_str!("../shaders/model/rows.wgsl"), sum],
                )
            }
            Self::Tile(WeightFormat::W8a8) => {
                let constants = format!(
                    "{}const DEPTH = {DEPTH}u;\n",
                    of_tile(tile, (tile / 4).pow(2))
                );
                w8a8(
                    constants,
                    &[include_str!("../shaders/model/w8a8_tile.wgsl"), MULTIPLY],
                )
            }
            Self::Tile(format) => variant
                .many
                .source(tile, |constants, rest| float(format, constants, rest)),
            Self::Join => [SHADOW, include_str!("../shaders/model/join.wgsl")].concat(),
            Self::Quantize => [CALL, include_str!("../shaders/model/quantize.wgsl")].concat(),
            Self::Norm => [CALL, include_str!("../shaders/model/norm.wgsl")].concat(),
            Self::Rope(dim) => [
                CALL,
                &heads(dim),
                include_str!("../shaders/model/rope.wgsl"),
            ]
            .concat(),
            Self::Attention(dim, queries) => {
                let (_, keys) = Self::attention_tile(dim as usize);
                let constants = format!("const QUERIES = {queries}u; const KEYS = {keys}u;\n");
                let shader = include_str!("../shaders/model/attention.wgsl");
                [CALL, &heads(dim), &constants, FUNCTIONS, shader].concat()
            }
            Self::Combine(dim) => [
                CALL,
                &heads(dim),
                FUNCTIONS,
                include_str!("../shaders/model/combine.wgsl"),
            ]
            .concat(),
            Self::Activate => [
                CALL,
                FUNCTIONS,
                include_str!("../shaders/model/activate.wgsl"),
            ]
            .concat(),
        }
    }
}

impl fmt::Display for Kernel {
    /// Writes the name of the step that the kernel computes.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Rows(format, 1) => write!(f, "product of one row, weights in {}", format.name()),
            Self::Rows(format, _) => write!(f, "product of few rows, weights in {}", format.name()),
            Self::Tile(format) => write!(f, "product of many rows, weights in {}", format.name()),
            Self::Join => f.write_str("joining of products"),
            Self::Quantize => f.write_str("quantization to INT8"),
            Self::Norm => f.write_str("norm"),
            Self::Rope(dim) => write!(f, "RoPE of heads of {dim}"),
            Self::Attention(dim, queries) => {
                write!(f, "attention of heads of {dim}, tiles of {queries} queries")
            }
            Self::Combine(dim) => write!(f, "parts of attention of heads of {dim}"),
            Self::Activate => f.write_str("activation"),
        }
    }
}

const CALL: &str = include_str!("../shaders/model/call.wgsl");
const PRODUCT: &str = include_str!("../shaders/model/product.wgsl");
const SHADOW: &str = include_str!("../shaders/model/shadow.wgsl");
