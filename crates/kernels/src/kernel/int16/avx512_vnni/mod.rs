//! AVX-512 with VNNI (Ice Lake, Zen 4 and later): `vpdpwssd` adds two products of 16-bit numbers to each of sixteen
//! sums.

mod int4;
mod int8;
mod wide;

use super::blocks::{self, Tiles, with_tiles};
use super::columns::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel};
use super::registers::Registers;
use crate::isa::Isa;
use crate::output::SharedOutput;
use wide::Wide;

/// Rows of the largest tile: with [`COLUMNS`] they use 24 registers for sums and leave eight for operands.
const ROWS: usize = 6;
/// Columns of a tile.
const COLUMNS: usize = 4;
/// Columns of a stream that several rows read in turn: with those of the other streams, their weights fit in the
/// second-level cache, and their outputs are a line of each row.
const BLOCK: usize = 16;

/// The kernel. A value of this type proves that the processor can run it.
pub(in crate::kernel) struct Avx512Vnni(());

impl Avx512Vnni {
    pub(in crate::kernel) fn new() -> Option<Self> {
        Isa::has_vnni().then_some(Self(()))
    }
}

impl Int16Kernel for Avx512Vnni {
    fn name(&self) -> &'static str {
        "avx512-vpdpwssd"
    }

    fn multiply_int8(&self, columns: &Int8Columns) {
        // SAFETY: `new` has detected the instructions.
        #[allow(unsafe_code)]
        unsafe {
            int8::multiply(columns);
        }
    }

    fn multiply_int4(&self, columns: &Int4Columns) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            int4::multiply(columns);
        }
    }

    fn multiply_blocks(&self, columns: &BlockColumns) {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            with_tiles!(columns.format, tiles => multiply_blocks(columns, tiles));
        }
    }
}

/// Calls the tile function for the given number of rows.
macro_rules! tile {
    ($rows:expr, $function:ident, $($argument:expr),*) => {
        match $rows {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            _ => $function::<ROWS>($($argument),*),
        }
    };
}

use tile;

/// Writes the results of a block's tiles line by line: the lines of one column in several rows may map to one set of
/// the cache, which holds only a few of them.
fn write<const ROWS: usize>(
    to: SharedOutput,
    row: usize,
    column: usize,
    (count, distance): (usize, usize),
    out: &[[[f32; BLOCK]; COLUMNS]; ROWS],
) {
    for (index, row_out) in out.iter().enumerate() {
        for (stream, line) in row_out.iter().enumerate() {
            let start = column + stream * distance;
            // SAFETY: only this task writes these columns.
            #[allow(unsafe_code)]
            let to = unsafe { to.row(row + index, start..start + count) };
            to.copy_from_slice(&line[..count]);
        }
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn multiply_blocks(task: &BlockColumns, tiles: &impl Tiles) {
    blocks::multiply::<Registers<Wide>>(task, tiles);
}
