//! Converts INT8 weights to the layout that kernels read, and back.

use crate::chunks::{chunks_mut, for_each_chunk};
use crate::kernel::int8::weight::{BLOCK, Int8Weight, QUAD, STEP, block_len, packed_len};

/// The name of the packed layout, as packages store it.
pub const LAYOUT: &str = "n16k4";

/// Packs `row_major`, `[out_features, in_features]`.
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn pack(row_major: &[i8], out_features: usize, in_features: usize, packed: &mut [i8]) {
    check(row_major.len(), packed.len(), out_features, in_features);
    for_each_chunk(
        chunks_mut(packed, block_len(in_features).max(1)),
        1,
        |block, packed| {
            let rows = &row_major[block * BLOCK * in_features..];
            let rows = &rows[..rows.len().min(BLOCK * in_features)];
            packed.fill(0);
            for (lane, row) in rows.chunks_exact(in_features).enumerate() {
                for (step, quad) in row.chunks(QUAD).enumerate() {
                    packed[step * STEP + lane * QUAD..][..quad.len()].copy_from_slice(quad);
                }
            }
        },
    );
}

/// Inverts [`pack`].
///
/// # Panics
/// If a slice's length contradicts the shape.
pub fn unpack(weight: Int8Weight, row_major: &mut [i8]) {
    let in_features = weight.in_features;
    check(
        row_major.len(),
        weight.packed.len(),
        weight.out_features,
        in_features,
    );
    for_each_chunk(
        chunks_mut(row_major, (BLOCK * in_features).max(1)),
        1,
        |block, rows| {
            let packed = &weight.packed[block * block_len(in_features)..];
            for (lane, row) in rows.chunks_exact_mut(in_features).enumerate() {
                for (step, quad) in row.chunks_mut(QUAD).enumerate() {
                    quad.copy_from_slice(&packed[step * STEP + lane * QUAD..][..quad.len()]);
                }
            }
        },
    );
}

fn check(row_major: usize, packed: usize, out_features: usize, in_features: usize) {
    assert_eq!(
        Some(row_major),
        out_features.checked_mul(in_features),
        "weight is [{out_features}, {in_features}]"
    );
    assert_eq!(
        Some(packed),
        packed_len(out_features, in_features),
        "packed weight [{out_features}, {in_features}]"
    );
}
