//! The products on which kernels are timed.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

use super::{MANY, ROUNDS, Rate};
use crate::int4::GROUP;
use crate::kernel::int8::rows::{Part, QuantizedView};
use crate::kernel::int8::weight::{BLOCK, Int8Weight};
use crate::kernel::int8::{Int8Kernel, Rectangle};
use crate::kernel::int16::{BlockColumns, Int4Columns, Int8Columns, Int16Kernel, Int16Rows};
use crate::kernel::panel::{PANEL, Panel, PanelKernel};
use crate::output::OutputMut;
use crate::{BlockFormat, peak};

/// Input features, and output features of a call.
const FEATURES: usize = 1024;
const COLUMNS: usize = 256;
/// Bytes of weights that calls cycle through so that they come from memory: more than most caches hold.
const COLD: usize = 48 << 20;
/// Calls per round.
const CALLS: usize = 4;

/// The data on which kernels are timed.
pub(super) struct Bench {
    threads: usize,
    /// Weights of any format: bytes that are finite numbers in f16.
    bytes: Vec<u8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    halves: Vec<f16>,
    /// Activations of all rows: in INT8, and as words of f32 or of pairs of bf16.
    numbers: Vec<u8>,
    words: Vec<u32>,
    parts: Vec<Part>,
    row: Int16Rows,
    /// Index of the share of the weights that the next thread starts with.
    next: AtomicUsize,
}

impl Bench {
    pub(super) fn new(threads: usize) -> Self {
        let bytes = (0..COLD).map(|index| (index % 0x3b) as u8).collect();
        let mut row = Int16Rows::default();
        row.fill(&vec![0.5; FEATURES], FEATURES);
        row.fill_steps();
        row.fill_sums();
        Self {
            threads: threads.max(1),
            bytes,
            scales: vec![0.01; COLUMNS.max(MANY)],
            sums: vec![0; COLUMNS],
            halves: vec![f16::from_f32(0.01); COLUMNS * FEATURES / GROUP],
            numbers: vec![127; MANY * FEATURES],
            // 0.5 in f32; a pair of 0.5 and 0 in bf16.
            words: vec![0.5f32.to_bits(); MANY * FEATURES],
            parts: vec![Part::default()],
            row,
            next: AtomicUsize::new(0),
        }
    }

    /// Measures `call`, which multiplies by the weights at an offset and returns their bytes. Each call counts as
    /// `operations`.
    fn rates(
        &self,
        operations: usize,
        settings: &[bool],
        call: &(dyn Fn(usize, &mut [f32]) -> usize + Sync),
    ) -> Vec<Rate> {
        let mut threads = vec![1, self.threads];
        threads.dedup();
        let mut rates = Vec::new();
        for threads in threads {
            for from_memory in settings.iter().copied() {
                let round = || -> peak::Round {
                    let mut offset =
                        self.next.fetch_add(1, Ordering::Relaxed) % threads * (COLD / threads);
                    let mut out = vec![0.0; MANY * COLUMNS];
                    Box::new(move || {
                        for _ in 0..CALLS {
                            let bytes = call(offset, &mut out);
                            let next = if from_memory { offset + bytes } else { offset };
                            // The next call reads the same number of bytes.
                            offset = if next + bytes > COLD { 0 } else { next };
                        }
                        (CALLS * operations) as f64
                    })
                };
                let measured = peak::best(threads, ROUNDS, &round);
                // Several threads are no slower than one: if they seem so, one was interrupted in every round.
                let of_one = rates
                    .iter()
                    .find(|rate: &&Rate| rate.threads == 1 && rate.from_memory == from_memory);
                let operations_per_second =
                    of_one.map_or(measured, |one| measured.max(one.operations_per_second));
                rates.push(Rate {
                    threads,
                    from_memory,
                    operations_per_second,
                });
            }
        }
        rates
    }

    /// Times a kernel of INT8 on products with this many rows.
    pub(super) fn int8(&self, kernel: &dyn Int8Kernel, rows: usize) -> Vec<Rate> {
        self.rates(
            2 * rows * FEATURES * COLUMNS,
            &[false, true],
            &|offset, out| {
                let packed: &[i8] = bytemuck::cast_slice(
                    &self.bytes[offset / BLOCK * BLOCK..][..FEATURES * COLUMNS],
                );
                let (scales, sums) = (&self.scales[..COLUMNS], &self.sums[..]);
                let weight = Int8Weight {
                    out_features: COLUMNS,
                    in_features: FEATURES,
                    packed,
                    scales,
                    sums,
                };
                let x = QuantizedView {
                    in_features: FEATURES,
                    bytes: &self.numbers[..rows * FEATURES],
                    scales: &self.scales[..rows],
                    parts: &self.parts,
                    rows_before: 0,
                    outlier_columns: &[],
                };
                let out = OutputMut::new(&mut out[..rows * COLUMNS], COLUMNS).into_shared();
                kernel.multiply(&Rectangle {
                    x,
                    rows: 0..rows,
                    weight,
                    columns: 0..COLUMNS,
                    bias: None,
                    out,
                });
                packed.len()
            },
        )
    }

    /// Times all formats together, each equally often.
    pub(super) fn int16(&self, kernel: &dyn Int16Kernel) -> Vec<Rate> {
        self.rates(
            3 * 2 * FEATURES * COLUMNS,
            &[false, true],
            &|offset, out| {
                let (x, weights) = (&self.row, &self.bytes[offset..]);
                let out = OutputMut::new(&mut out[..COLUMNS], COLUMNS).into_shared();
                let (int8, weights) = weights.split_at(FEATURES * COLUMNS);
                let (scales, columns) = (&self.scales[..COLUMNS], 0..COLUMNS);
                Int8Columns {
                    x,
                    weights: bytemuck::cast_slice(int8),
                    scales,
                    columns,
                    out,
                }
                .multiply(kernel);
                let (int4, weights) = weights.split_at(FEATURES * COLUMNS / 2);
                Int4Columns {
                    x,
                    weights: int4,
                    scales: &self.halves,
                    columns: 0..COLUMNS,
                    out,
                }
                .multiply(kernel);
                let format = BlockFormat::Q4_K;
                let bytes = &weights[..COLUMNS * format.bytes_for(FEATURES)];
                BlockColumns {
                    x,
                    format,
                    bytes,
                    columns: 0..COLUMNS,
                    out,
                }
                .multiply(kernel);
                int8.len() + int4.len() + bytes.len()
            },
        )
    }

    /// Times a panel, which operators pack into the second-level cache; each word holds `numbers` numbers.
    pub(super) fn words(&self, kernel: &dyn PanelKernel, numbers: usize) -> Vec<Rate> {
        let right = vec![0.5f32.to_bits(); FEATURES * PANEL];
        self.rates(
            2 * numbers * MANY * FEATURES * PANEL,
            &[false],
            &|_, out| {
                let out = OutputMut::new(&mut out[..MANY * PANEL], PANEL).into_shared();
                let (left_stride, right_stride, right) = (FEATURES, PANEL, &right[..]);
                let left = &self.words;
                kernel.multiply(&Panel {
                    left,
                    left_stride,
                    steps: FEATURES,
                    right,
                    right_stride,
                    out,
                    columns: 0..PANEL,
                    add: false,
                });
                0
            },
        )
    }
}
