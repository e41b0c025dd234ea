//! The order of tiles: all rows are multiplied by a block of columns while it stays in the first-level cache.

use crate::chunks::parts;

/// Rows of the largest tile.
pub(super) const ROWS: usize = 4;
/// Bytes of weights that stay in the first-level cache, together with a tile's activations, while all rows are
/// processed.
const BLOCK: usize = 1 << 14;

/// Calls `tile` for all rows and columns with a number of rows, at most [`ROWS`], the first of them, and a column. A
/// column has `bytes` bytes.
#[inline(always)]
pub(super) fn each_tile(
    rows: usize,
    columns: usize,
    bytes: usize,
    tile: impl Fn(usize, usize, usize),
) {
    let block = (BLOCK / bytes.max(1)).max(1);
    for start in (0..columns).step_by(block) {
        for rows in parts(rows, ROWS) {
            for column in start..(start + block).min(columns) {
                tile(rows.len(), rows.start, column);
            }
        }
    }
}
