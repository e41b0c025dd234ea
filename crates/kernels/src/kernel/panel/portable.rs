//! Plain Rust: the kernel of processors that have no other.

use super::{LANES, Panel, PanelKernel};

/// Rows of the largest tile.
const ROWS: usize = 4;

pub(in crate::kernel) struct Portable;

impl PanelKernel for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn multiply(&self, panel: &Panel) {
        panel.check();
        let rows = panel.out.rows();
        for block in (0..panel.columns.len()).step_by(LANES) {
            let mut row = 0;
            while row + ROWS <= rows {
                tile::<ROWS>(panel, row, block);
                row += ROWS;
            }
            while row < rows {
                tile::<1>(panel, row, block);
                row += 1;
            }
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        transpose(from, from_stride, to, to_stride);
    }
}

fn tile<const ROWS: usize>(panel: &Panel, row: usize, block: usize) {
    let columns =
        panel.columns.start + block..(panel.columns.start + block + LANES).min(panel.columns.end);
    let left: [&[u32]; ROWS] =
        std::array::from_fn(|r| &panel.left[(row + r) * panel.left_stride..][..panel.steps]);
    let right = &panel.right[block..];
    let mut sums = [[0.0f32; LANES]; ROWS];
    // SAFETY: only this task writes this panel's columns, and no slice of them outlives a statement.
    #[allow(unsafe_code)]
    let out = |r: usize| unsafe { panel.out.row(row + r, columns.clone()) };
    if panel.add {
        for (r, sums) in sums.iter_mut().enumerate() {
            sums[..columns.len()].copy_from_slice(out(r));
        }
    }
    for step in 0..panel.steps {
        let factors: &[u32; LANES] = right[step * panel.right_stride..][..LANES]
            .try_into()
            .expect("a block has sixteen words");
        for (sums, left) in sums.iter_mut().zip(left) {
            let x = f32::from_bits(left[step]);
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum += x * f32::from_bits(*factor);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        out(r).copy_from_slice(&sums[..columns.len()]);
    }
}

pub(super) fn transpose(from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
    for column in 0..LANES {
        for row in 0..LANES {
            to[column * to_stride + row] = from[row * from_stride + column];
        }
    }
}
