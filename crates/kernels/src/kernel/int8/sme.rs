//! Outer products of the Scalable Matrix Extension (SME, an extension of Armv9.2): `smopa` adds the products of a quad
//! of each of some rows by a quad of each of some columns to a whole tile of sums.
//!
//! One kernel serves every vector length. A register has `lanes` quads, 4 to 64 (16 if the length is 512 bits). Four
//! tiles hold the sums of two registers of rows by two of columns. Weights are read in place: a step of `n16k4` is 16
//! quads, of which a register takes 4, 8 or all; a longer register is only partly filled. Rows are transposed, a panel
//! at a time, to the quads of all rows step by step; this also uses a tile.
//!
//! These instructions run in streaming mode, which changes the contents of vector registers and forbids other
//! instructions. So one `asm!` without calls enters and leaves it.
//!
//! This kernel has only run under emulation (qemu, with vectors of 128 to 2048 bits), never on a processor with SME, so
//! nothing here has been timed: [`FEW_ROWS`] is an estimate; tasks have the columns of other kernels, and each task
//! transposes its rows again; and all threads use this kernel, though cores share few SME units.

use std::arch::asm;
use std::cell::RefCell;
use std::ops::Range;

use super::i8mm::MatrixProduct;
use super::rows::QuantizedView;
use super::weight::{BLOCK, QUAD, STEP};
use super::{Int8Kernel, Rectangle, tile};
use crate::isa::Isa;

/// Fewer rows, as in decode, use the matrix products of ordinary vectors: outer products would be mostly zeros.
const FEW_ROWS: usize = 8;

/// Runs instructions in streaming mode and with tiles, in one `asm!`. Entering and leaving changes every vector and
/// predicate register. Operands follow the semicolon.
macro_rules! streaming {
    ($($instruction:literal),+ $(,)?; $($operands:tt)+) => {
        asm!(
            ".arch_extension sme",
            "smstart",
            $($instruction,)+
            "smstop",
            $($operands)+
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            out("p0") _, out("p1") _, out("p2") _, out("p3") _, out("p4") _, out("p5") _, out("p6") _, out("p7") _,
            out("p8") _, out("p9") _, out("p10") _, out("p11") _, out("p12") _, out("p13") _, out("p14") _, out("p15") _,
            out("ffr") _,
            options(nostack)
        )
    };
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { panel: Vec::new(), sums: Vec::new() }) };
}

/// Buffers of a thread, kept between calls, so that only a product larger than all before allocates.
struct Scratch {
    /// Quads of a panel of rows, `[steps, 2 · lanes]`, padded with zeros.
    panel: Vec<[u8; QUAD]>,
    /// The sums of four tiles, `[2 · lanes, 2 · width]`.
    sums: Vec<i32>,
}

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct OuterProduct {
    /// The kernel for few rows, and for threads that can't use the tiles.
    other: MatrixProduct,
}

impl OuterProduct {
    pub(in crate::kernel) fn new() -> Option<Self> {
        if !Isa::Sme.is_supported() {
            return None;
        }
        Some(Self {
            other: MatrixProduct::new()?,
        })
    }

    /// Returns the lanes of a register in streaming mode. Returns `None` if a calling function has live sums in the
    /// tiles (lazy saving): the next user of the tiles would have to save them.
    fn lanes(&self) -> Option<usize> {
        let (bytes, save_area): (usize, usize);
        // SAFETY: `new` has detected the instructions; they only read registers.
        #[allow(unsafe_code)]
        unsafe {
            asm!(
                ".arch_extension sme",
                "rdsvl {bytes}, #1",
                "mrs {save_area}, TPIDR2_EL0",
                bytes = out(reg) bytes, save_area = out(reg) save_area,
                options(nomem, nostack, preserves_flags)
            );
        }
        (save_area == 0).then_some(bytes / QUAD)
    }
}

impl Int8Kernel for OuterProduct {
    fn name(&self) -> &'static str {
        "sme-smopa"
    }

    fn multiply(&self, rectangle: &Rectangle) {
        let Some(lanes) = self.lanes() else {
            return self.other.multiply(rectangle);
        };
        for row in rectangle.rows.clone().step_by(2 * lanes) {
            let rows = row..(row + 2 * lanes).min(rectangle.rows.end);
            if rows.len() < FEW_ROWS {
                self.other.multiply(&Rectangle {
                    rows,
                    columns: rectangle.columns.clone(),
                    ..*rectangle
                });
            } else {
                SCRATCH.with_borrow_mut(|scratch| multiply_panel(rectangle, rows, lanes, scratch));
            }
        }
    }
}

/// Computes the outputs of at most `2 · lanes` rows of a rectangle.
fn multiply_panel(rectangle: &Rectangle, rows: Range<usize>, lanes: usize, scratch: &mut Scratch) {
    let steps = rectangle.x.in_features().div_ceil(QUAD);
    // Columns per tile.
    let width = lanes.min(BLOCK);
    let Scratch { panel, sums } = scratch;
    let panel = at_least(panel, steps * 2 * lanes);
    let sums = at_least(sums, 2 * lanes * 2 * width);
    for half in 0..2 {
        let start = (rows.start + half * lanes).min(rows.end);
        transpose(
            rectangle.x,
            start..(start + lanes).min(rows.end),
            lanes,
            half,
            panel,
        );
    }
    for column in rectangle.columns.clone().step_by(2 * width) {
        let columns = column..(column + 2 * width).min(rectangle.columns.end);
        // Starts at the quad of a column in the first step.
        let weights = |column: usize| {
            &rectangle.weight.block(column / BLOCK).as_flattened()[column % BLOCK * QUAD..]
        };
        // If the second tile has no columns, those of the first are computed again and not written.
        let second = if column + width < columns.end {
            column + width
        } else {
            column
        };
        add_products(
            panel,
            [weights(column), weights(second)],
            steps,
            lanes,
            sums,
        );
        for (row, sums) in rows.clone().zip(sums.chunks_exact(2 * width)) {
            tile::write(rectangle, row, columns.clone(), &sums[..columns.len()]);
        }
    }
}

/// Returns the first `len` elements, after extending the vector if needed.
fn at_least<T: Clone + Default>(scratch: &mut Vec<T>, len: usize) -> &mut [T] {
    if scratch.len() < len {
        scratch.resize(len, T::default());
    }
    &mut scratch[..len]
}

/// Fills one half of each step of a panel, `[steps, 2, lanes]`, with the quads of at most `lanes` rows, padded with
/// zeros.
fn transpose(
    x: QuantizedView,
    rows: Range<usize>,
    lanes: usize,
    half: usize,
    panel: &mut [[u8; QUAD]],
) {
    let steps = x.in_features().div_ceil(QUAD);
    assert!(
        rows.len() <= lanes && rows.end <= x.rows() && half < 2 && panel.len() == steps * 2 * lanes
    );
    let quads: &[[u8; QUAD]] = x.bytes().as_chunks().0;
    let quads = &quads[rows.start * steps..rows.end * steps];
    // SAFETY: the kernel passes the lanes that it detected, and no other function has live data in the tiles
    // (`OuterProduct::lanes`). The code reads each of `steps` quads of `rows.len()` rows and writes half of each of
    // `steps` steps, `lanes` quads: all are within their slices by the assertion.
    #[allow(unsafe_code)]
    unsafe {
        streaming!(
            "zero {{za0.s}}",
            "ptrue p0.s",
            // Loads as many steps as there are lanes, or the remaining ones, of each row.
            "2:",
            "whilelt p1.s, {step}, {steps}",
            "mov {row}, {quads}",
            "mov x12, #0",
            "3:",
            "cmp x12, {rows}",
            "b.hs 4f",
            "ld1w {{za0h.s[w12, 0]}}, p1/z, [{row}]",
            "add {row}, {row}, {steps}, lsl #2",
            "add x12, x12, #1",
            "b 3b",
            // Each column of the tile is a step.
            "4:",
            "mov x12, #0",
            "5:",
            "st1w {{za0v.s[w12, 0]}}, p0, [{panel}]",
            "addvl {panel}, {panel}, #2",
            "add x12, x12, #1",
            "add {step}, {step}, #1",
            "cmp {step}, {steps}",
            "b.hs 6f",
            "cmp x12, {lanes}",
            "b.lo 5b",
            "add {quads}, {quads}, {lanes}, lsl #2",
            "b 2b",
            "6:",
            ;
            quads = inout(reg) quads.as_ptr() => _,
            row = out(reg) _,
            rows = in(reg) rows.len(),
            panel = inout(reg) panel.as_mut_ptr().wrapping_add(half * lanes) => _,
            step = inout(reg) 0usize => _,
            steps = in(reg) steps,
            lanes = in(reg) lanes,
            out("x12") _,
        );
    }
}

/// Computes `sums`, `[2 · lanes, 2 · width]`, of the products of a panel by the columns of two tiles, whose steps are
/// [`STEP`] bytes apart.
fn add_products(
    panel: &[[u8; QUAD]],
    weights: [&[i8]; 2],
    steps: usize,
    lanes: usize,
    sums: &mut [i32],
) {
    let width = lanes.min(BLOCK);
    assert!(steps > 0 && panel.len() == steps * 2 * lanes && sums.len() == 2 * lanes * 2 * width);
    assert!(
        weights
            .iter()
            .all(|weights| weights.len() >= (steps - 1) * STEP + width * QUAD),
        "all steps"
    );
    // SAFETY: the kernel passes the lanes that it detected, and no other function has live data in the tiles
    // (`OuterProduct::lanes`). For each of `steps` steps the code reads two registers of the panel and `width` quads of
    // either weights; for each of `2 · lanes` rows it writes `width` sums twice: all are within their slices by the
    // assertions.
    #[allow(unsafe_code)]
    unsafe {
        streaming!(
            "zero {{za}}",
            "ptrue p0.b",
            "whilelt p1.s, xzr, {width}",
            "2:",
            "ld1w {{z0.s}}, p0/z, [{panel}]",
            "ld1w {{z1.s}}, p0/z, [{panel}, #1, mul vl]",
            "ld1w {{z2.s}}, p1/z, [{first}]",
            "ld1w {{z3.s}}, p1/z, [{second}]",
            "smopa za0.s, p0/m, p0/m, z0.b, z2.b",
            "smopa za1.s, p0/m, p0/m, z0.b, z3.b",
            "smopa za2.s, p0/m, p0/m, z1.b, z2.b",
            "smopa za3.s, p0/m, p0/m, z1.b, z3.b",
            "addvl {panel}, {panel}, #2",
            "add {first}, {first}, {STEP}",
            "add {second}, {second}, {STEP}",
            "subs {steps}, {steps}, #1",
            "b.ne 2b",
            "mov x12, #0",
            "3:",
            "st1w {{za0h.s[w12, 0]}}, p1, [{upper}]",
            "st1w {{za1h.s[w12, 0]}}, p1, [{upper}, {width}, lsl #2]",
            "st1w {{za2h.s[w12, 0]}}, p1, [{lower}]",
            "st1w {{za3h.s[w12, 0]}}, p1, [{lower}, {width}, lsl #2]",
            "add {upper}, {upper}, {width}, lsl #3",
            "add {lower}, {lower}, {width}, lsl #3",
            "add x12, x12, #1",
            "cmp x12, {lanes}",
            "b.lo 3b",
            ;
            panel = inout(reg) panel.as_ptr() => _,
            first = inout(reg) weights[0].as_ptr() => _,
            second = inout(reg) weights[1].as_ptr() => _,
            steps = inout(reg) steps => _,
            upper = inout(reg) sums.as_mut_ptr() => _,
            lower = inout(reg) sums.as_mut_ptr().wrapping_add(lanes * 2 * width) => _,
            width = in(reg) width,
            lanes = in(reg) lanes,
            STEP = const STEP,
            out("x12") _,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_that_are_to_be_saved_for_a_caller_are_not_used() {
        let Some(kernel) = OuterProduct::new() else {
            return;
        };
        assert!(kernel.lanes().is_some());
        let save_area = [0u64; 2];
        let set = |address: usize| {
            // SAFETY: the kernel has detected the register, which programs may write. Nothing uses the tiles at this
            // point.
            #[allow(unsafe_code)]
            unsafe {
                asm!(".arch_extension sme", "msr TPIDR2_EL0, {}", in(reg) address, options(nomem, nostack));
            }
        };
        set(save_area.as_ptr().addr());
        let lanes = kernel.lanes();
        set(0);
        assert_eq!(lanes, None);
    }
}
