//! The shadows of outliers.

use std::ops::Range;

use super::rows::QuantizedView;
use super::weight::{BLOCK, Int8Weight, QUAD};
use crate::output::SharedOutput;
use crate::vectorize::vectorize;

/// Rows and columns of an output matrix that only one task writes; it writes the rows that have outliers.
pub(crate) struct ShadowColumns<'a> {
    pub x: QuantizedView<'a>,
    pub rows: Range<usize>,
    pub weight: Int8Weight<'a>,
    /// Output channels; the first is a multiple of sixteen.
    pub columns: Range<usize>,
    pub out: SharedOutput<'a>,
    /// Whether the shadow is added to the output, rather than replacing it.
    pub add: bool,
}

impl ShadowColumns<'_> {
    /// Returns the rows that have outliers, with their channels and remainders.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, &[u32], &[f32])> {
        let rows = self.rows.clone().map(|row| (row, self.x.outliers_of(row)));
        rows.filter(|(_, (channels, _))| !channels.is_empty())
            .map(|(row, (channels, numbers))| (row, channels, numbers))
    }

    /// Implements [`Int8Kernel::shadow`](super::Int8Kernel::shadow) in plain Rust.
    pub(crate) fn compute(&self) {
        for first in self.columns.clone().step_by(BLOCK) {
            let columns = first..(first + BLOCK).min(self.columns.end);
            let block = self.weight.block(first / BLOCK);
            let scales = &self.weight.scales[columns.clone()];
            vectorize(
                #[inline(always)]
                || {
                    for (row, channels, remainders) in self.rows() {
                        let mut sums = [0.0; BLOCK];
                        for (channel, remainder) in channels.iter().zip(remainders) {
                            let channel = *channel as usize;
                            let (quads, _) = block[channel / QUAD].as_chunks::<QUAD>();
                            let shift = 24 - 8 * (channel % QUAD);
                            for lane in 0..BLOCK {
                                let quad = i32::from_le_bytes(quads[lane].map(|byte| byte as u8));
                                sums[lane] += remainder * (quad << shift >> 24) as f32;
                            }
                        }
                        // SAFETY: only this task writes these columns.
                        #[allow(unsafe_code)]
                        let out = unsafe { self.out.row(row, columns.clone()) };
                        for ((out, sum), scale) in out.iter_mut().zip(sums).zip(scales) {
                            *out = if self.add {
                                *out + sum * scale
                            } else {
                                sum * scale
                            };
                        }
                    }
                },
            );
        }
    }
}
