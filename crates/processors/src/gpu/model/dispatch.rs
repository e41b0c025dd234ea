//! The kernel of each step, and the workgroups of its dispatch.

use super::kernels::Kernel;
use super::steps::{Step, Work};
use super::weight_format::WeightFormat;

/// Maximum number of rows for the few-rows kernel.
const FEW_ROWS: usize = 8;
/// Rows per workgroup of that kernel, unless there is a single row.
const ROWS_TOGETHER: u32 = 4;
/// Invocations in a workgroup of `activate.wgsl`.
pub(super) const ACTIVATE_THREADS: usize = 64;
/// Invocations in a workgroup of `join.wgsl`.
pub(super) const JOIN_THREADS: usize = 64;

impl Work {
    /// Returns the kernels that may compute this work.
    pub(super) fn kernels(self) -> impl Iterator<Item = Kernel> {
        let kernels = match self {
            Self::Norm => vec![Kernel::Norm],
            Self::Quantize { .. } => vec![Kernel::Quantize],
            Self::Join { .. } => vec![Kernel::Join],
            Self::Product { format, .. } => product_kernels(format).into(),
            Self::Rope { head_dim, .. } => vec![Kernel::Rope(head_dim as u32)],
            Self::Attention {
                head_dim,
                heads,
                kv_heads,
            } => [1, 2]
                .map(|rows| attention_kernel(head_dim, heads / kv_heads, rows))
                .into(),
            Self::Combine { head_dim, .. } => vec![Kernel::Combine(head_dim as u32)],
            Self::Activate { .. } => vec![Kernel::Activate],
        };
        kernels.into_iter()
    }

    /// Returns the number of workgroups of a matmul with this kernel.
    pub(super) fn groups_of_product(
        kernel: Kernel,
        rows: usize,
        columns: usize,
        tile: usize,
    ) -> [usize; 3] {
        match kernel {
            Kernel::Rows(format, together) => [
                columns.div_ceil(format.rows_columns()),
                rows.div_ceil(together as usize),
                1,
            ],
            _ => [columns.div_ceil(tile), rows.div_ceil(tile), 1],
        }
    }

    /// Returns the kernel for `rows` rows, and the number of workgroups of its dispatch.
    pub(super) fn dispatch(
        self,
        rows: usize,
        tiles: usize,
        splits: usize,
        tile: usize,
    ) -> (Kernel, [usize; 3]) {
        match self {
            Self::Norm => (Kernel::Norm, [rows, 1, 1]),
            Self::Quantize { .. } => (Kernel::Quantize, [rows, 1, 1]),
            Self::Join { columns } => (Kernel::Join, [columns.div_ceil(JOIN_THREADS), rows, 1]),
            Self::Product { format, columns } => {
                let [one, few, many] = product_kernels(format);
                let kernel = match rows {
                    1 => one,
                    2..=FEW_ROWS => few,
                    _ => many,
                };
                (kernel, Self::groups_of_product(kernel, rows, columns, tile))
            }
            Self::Rope { head_dim, heads } => (Kernel::Rope(head_dim as u32), [heads, rows, 1]),
            Self::Attention {
                head_dim,
                heads,
                kv_heads,
            } => {
                let of_key_head = heads / kv_heads;
                let kernel = attention_kernel(head_dim, of_key_head, rows.div_ceil(tiles));
                let (queries, _) = Kernel::attention_tile(head_dim);
                (
                    kernel,
                    [
                        kv_heads * of_key_head.div_ceil(of_key_head.min(queries)),
                        tiles,
                        splits,
                    ],
                )
            }
            Self::Combine { head_dim, heads } => {
                (Kernel::Combine(head_dim as u32), [heads, rows, 1])
            }
            Self::Activate { quads } => (
                Kernel::Activate,
                [quads.div_ceil(ACTIVATE_THREADS), rows, 1],
            ),
        }
    }
}

/// Returns the kernels for one row, few rows and many rows.
pub(super) fn product_kernels(format: WeightFormat) -> [Kernel; 3] {
    [
        Kernel::Rows(format, 1),
        Kernel::Rows(format, ROWS_TOGETHER),
        Kernel::Tile(format),
    ]
}

/// Returns the attention kernel. Tiles of one row only have as many queries as query heads per key head.
pub(super) fn attention_kernel(head_dim: usize, of_key_head: usize, tile_rows: usize) -> Kernel {
    let (most, _) = Kernel::attention_tile(head_dim);
    let queries = if tile_rows == 1 {
        of_key_head.min(most).next_power_of_two()
    } else {
        most
    };
    Kernel::Attention(head_dim as u32, queries as u32)
}

/// Returns the kernels that a chunk may need, without duplicates.
pub(super) fn kernels_of(steps: &[Step]) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for kernel in steps.iter().flat_map(|step| step.work.kernels()) {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}
