//! Tiles of some rows of one block of columns; all sums stay in registers from the first step to the last. A kernel
//! implements the operations on its registers, [`Vector`].

use super::{LANES, Panel};

/// Rows of the largest tile: with a block of columns they are 96 numbers, twelve registers of AVX2 or 24 of NEON.
const ROWS: usize = 6;

/// A register of numbers in f32, or of pairs of INT16 whose sums are in i32.
pub(super) trait Vector: Copy {
    /// Words per register.
    const WIDTH: usize;

    /// Loads the word at `from` into every lane.
    ///
    /// # Safety
    /// This processor must have the instructions, and the word must be readable.
    #[allow(unsafe_code)]
    unsafe fn splat(from: *const f32) -> Self;

    /// Loads a register of words.
    ///
    /// # Safety
    /// This processor must have the instructions, and that many words must be readable.
    #[allow(unsafe_code)]
    unsafe fn load(from: *const f32) -> Self;

    /// Stores the words.
    ///
    /// # Safety
    /// This processor must have the instructions, and that many words must be writable.
    #[allow(unsafe_code)]
    unsafe fn store(self, to: *mut f32);

    /// Computes `self · factor + sum`; in f32, rounded once.
    ///
    /// # Safety
    /// This processor must have the instructions.
    #[allow(unsafe_code)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
}

/// Multiplies a panel in tiles of `PARTS` registers for each row, which hold a block of columns.
///
/// # Safety
/// This processor must have the instructions of `V`. The caller must be compiled for them, so that they are used.
#[allow(unsafe_code)]
#[inline(always)]
pub(super) unsafe fn multiply<V: Vector, const PARTS: usize>(panel: &Panel) {
    panel.check();
    let rows = panel.out.rows();
    for block in (0..panel.columns.len()).step_by(LANES) {
        // SAFETY: as the caller promises; the panel is checked.
        unsafe {
            let mut row = 0;
            while row + ROWS <= rows {
                tile::<V, PARTS, ROWS>(panel, row, block);
                row += ROWS;
            }
            match rows - row {
                0 => {}
                1 => tile::<V, PARTS, 1>(panel, row, block),
                2 => tile::<V, PARTS, 2>(panel, row, block),
                3 => tile::<V, PARTS, 3>(panel, row, block),
                4 => tile::<V, PARTS, 4>(panel, row, block),
                _ => tile::<V, PARTS, 5>(panel, row, block),
            }
        }
    }
}

/// # Safety
/// As for [`multiply`]; the panel must have been checked.
#[allow(unsafe_code)]
#[inline(always)]
unsafe fn tile<V: Vector, const PARTS: usize, const ROWS: usize>(
    panel: &Panel,
    row: usize,
    block: usize,
) {
    const {
        assert!(
            PARTS * V::WIDTH == LANES,
            "expected registers that hold a block"
        );
    };
    let columns =
        panel.columns.start + block..(panel.columns.start + block + LANES).min(panel.columns.end);
    // SAFETY: only this task writes this panel's columns, and no slice of them outlives a statement.
    let out = |r: usize| unsafe { panel.out.row(row + r, columns.clone()) };
    let mut values = [[0.0f32; LANES]; ROWS];
    if panel.add {
        for (r, values) in values.iter_mut().enumerate() {
            values[..columns.len()].copy_from_slice(out(r));
        }
    }
    let load = |from: *const f32| {
        // SAFETY: reads a block's numbers at `from`, which is an array or a step.
        let part = |part| unsafe { V::load(from.add(part * V::WIDTH)) };
        std::array::from_fn::<V, PARTS, _>(part)
    };
    let mut sums = values.each_ref().map(|values| load(values.as_ptr()));
    let left = panel.left[row * panel.left_stride..].as_ptr().cast::<f32>();
    let right = panel.right[block..].as_ptr().cast::<f32>();
    for step in 0..panel.steps {
        // SAFETY: `check` verified that the slices have whole blocks of every step, and every step of every row.
        unsafe {
            let factors = load(right.add(step * panel.right_stride));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(left.add(r * panel.left_stride + step));
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = x.multiply_add(factor, *sum);
                }
            }
        }
    }
    for (r, (values, sums)) in values.iter_mut().zip(sums).enumerate() {
        for (part, sum) in sums.into_iter().enumerate() {
            // SAFETY: the array holds a block.
            unsafe { sum.store(values.as_mut_ptr().add(part * V::WIDTH)) };
        }
        out(r).copy_from_slice(&values[..columns.len()]);
    }
}
