//! Matrices of quantized safetensors: in the format of the kernels that has the same integers and scales, or widened to
//! the floats that the scheme's reference gives.

use std::ops::Range;

use half::{bf16, f16};
use triad_kernels::chunks::{Chunks, chunks_mut, for_each_chunk};
use triad_kernels::{BlockArithmetic, BlockFormat, int4};
use triad_model::checkpoint::Checkpoint;
use triad_model::quantized::{QuantizedTensor, Representation};
use triad_model::tensor::Format;
use triad_model::tensor_map::Runs;

use super::WeightMatrix;
use super::matrix::{Storage, Values};

/// The number of elements that one task converts.
const TASK_ELEMENTS: usize = 1 << 16;
/// Rows of a task, at least: schemes that store a matrix transposed have several rows in each word.
const MIN_TASK_ROWS: usize = 16;
/// Elements of a block of the formats that are made here.
const BLOCK: usize = 32;

/// Reads some rows of a quantized tensor, on the installed threads. With exact arithmetic they are widened: products
/// with integers round activations.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    tensor: &QuantizedTensor,
    rows: Runs,
    arithmetic: BlockArithmetic,
) -> WeightMatrix {
    let width = tensor.shape()[1];
    let source = Source {
        checkpoint,
        tensor,
        count: rows.len(),
        rows,
        width,
    };
    let representation = match arithmetic {
        BlockArithmetic::Rounded => tensor.representation(),
        BlockArithmetic::Exact => Representation::Float(tensor.float()),
    };
    let storage = match representation {
        Representation::Float(Format::F16) => {
            Storage::F16(source.floats(f16::ZERO, f16::from_f32).into())
        }
        Representation::Float(Format::Bf16) => {
            Storage::Bf16(source.floats(bf16::ZERO, bf16::from_f32).into())
        }
        Representation::Float(_) => Storage::F32(source.floats(0.0, |value| value).into()),
        Representation::Int8 => source.int8(),
        Representation::Int4 => source.int4(),
        Representation::Blocks(format) => Storage::Blocks {
            format,
            bytes: source.blocks(format).into(),
            arithmetic,
        },
    };
    checkpoint.release_quantized(tensor);
    WeightMatrix::new(source.count, width, storage)
}

struct Source<'a> {
    checkpoint: &'a Checkpoint,
    tensor: &'a QuantizedTensor,
    rows: Runs,
    count: usize,
    width: usize,
}

/// Integers of some rows, with one scale and one offset for each group.
struct Integers<'a> {
    values: &'a [f32],
    scales: &'a [f32],
    offsets: &'a [f32],
}

impl Source<'_> {
    fn task_rows(&self) -> usize {
        (TASK_ELEMENTS / self.width).max(MIN_TASK_ROWS)
    }

    /// Returns the stored rows of a task.
    fn rows_of(&self, task: usize) -> Vec<Range<usize>> {
        let first = task * self.task_rows();
        self.rows
            .at(first..(first + self.task_rows()).min(self.count))
    }

    fn floats<T: Copy + Send>(&self, zero: T, from: impl Fn(f32) -> T + Sync) -> Vec<T> {
        let mut values = vec![zero; self.count * self.width];
        let chunks = chunks_mut(&mut values, self.task_rows() * self.width);
        for_each_chunk(chunks, 1, |task, values| {
            let mut wide = vec![0.0; values.len()];
            let mut rest = &mut wide[..];
            for rows in self.rows_of(task) {
                let out;
                (out, rest) = rest.split_at_mut(rows.len() * self.width);
                self.checkpoint.dequantize(self.tensor, rows, out);
            }
            for (value, wide) in values.iter_mut().zip(wide) {
                *value = from(wide);
            }
        });
        values
    }

    /// Calls `with` for the integers of each task.
    fn integers<C: Chunks>(
        &self,
        chunks: C,
        group: Option<usize>,
        with: impl Fn(C::Chunk, &Integers) + Sync,
    ) {
        for_each_chunk(chunks, 1, |task, chunk| {
            let parts = self.rows_of(task);
            let rows: usize = parts.iter().map(Range::len).sum();
            let per_row = group.map_or(1, |group| self.width / group);
            let mut values = vec![0.0; rows * self.width];
            let groups = rows * per_row;
            let (mut scales, mut offsets) = (vec![0.0; groups], vec![0.0; groups]);
            let mut first = 0;
            for part in parts {
                let end = first + part.len();
                let groups = first * per_row..end * per_row;
                self.checkpoint.integers(
                    self.tensor,
                    part,
                    &mut values[first * self.width..end * self.width],
                    group,
                    &mut scales[groups.clone()],
                    &mut offsets[groups],
                );
                first = end;
            }
            let integers = Integers {
                values: &values,
                scales: &scales,
                offsets: &offsets,
            };
            with(chunk, &integers);
        });
    }

    fn int8(&self) -> Storage {
        let mut values = vec![0i8; self.count * self.width];
        let mut scales = vec![0.0; self.count];
        let rows = self.task_rows();
        let chunks = (
            chunks_mut(&mut values, rows * self.width),
            chunks_mut(&mut scales, rows),
        );
        self.integers(chunks, None, |(values, scales), integers| {
            for (value, integer) in values.iter_mut().zip(integers.values) {
                *value = *integer as i8;
            }
            scales.copy_from_slice(integers.scales);
        });
        Storage::Int8 {
            values: Values::Owned(values.into()),
            scales: scales.into(),
        }
    }

    fn int4(&self) -> Storage {
        let elements = self.count * self.width;
        let mut values = vec![0u8; elements / 2];
        let mut scales = vec![f16::ZERO; elements / int4::GROUP];
        let per_task = self.task_rows() * self.width;
        let chunks = (
            chunks_mut(&mut values, per_task / 2),
            chunks_mut(&mut scales, per_task / int4::GROUP),
        );
        self.integers(chunks, Some(int4::GROUP), |(values, scales), integers| {
            let groups = integers.values.chunks_exact(int4::GROUP);
            for (bytes, integers) in values.chunks_exact_mut(int4::GROUP / 2).zip(groups) {
                halves(integers, 8.0, bytes);
            }
            for (scale, wide) in scales.iter_mut().zip(integers.scales) {
                *scale = f16::from_f32(*wide);
            }
        });
        Storage::Int4 {
            values: Values::Owned(values.into()),
            scales: Values::Owned(scales.into()),
        }
    }

    fn blocks(&self, format: BlockFormat) -> Vec<u8> {
        let bytes_of = |elements: usize| elements / format.elements() * format.bytes();
        let mut bytes = vec![0; bytes_of(self.count * self.width)];
        if format == BlockFormat::MXFP4 {
            let chunks = chunks_mut(&mut bytes, bytes_of(self.task_rows() * self.width));
            for_each_chunk(chunks, 1, |task, bytes| {
                let mut rest = bytes;
                for rows in self.rows_of(task) {
                    let out;
                    (out, rest) = rest.split_at_mut(bytes_of(rows.len() * self.width));
                    self.checkpoint.blocks(self.tensor, rows, out);
                }
            });
            return bytes;
        }
        let chunks = chunks_mut(&mut bytes, bytes_of(self.task_rows() * self.width));
        self.integers(chunks, Some(BLOCK), |bytes, integers| {
            let groups = integers.scales.iter().zip(integers.offsets);
            let blocks = integers.values.chunks_exact(BLOCK).zip(groups);
            for (bytes, (values, (scale, offset))) in
                bytes.chunks_exact_mut(format.bytes()).zip(blocks)
            {
                write_block(format, values, *scale, *offset, bytes);
            }
        });
        bytes
    }
}

/// Writes one block. The numbers fit the format.
fn write_block(format: BlockFormat, values: &[f32], scale: f32, offset: f32, bytes: &mut [u8]) {
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    match format {
        BlockFormat::Q8_0 => {
            for (byte, value) in bytes[2..].iter_mut().zip(values) {
                *byte = (*value as i8).cast_unsigned();
            }
        }
        BlockFormat::Q4_1 => {
            bytes[2..4].copy_from_slice(&f16::from_f32(offset).to_le_bytes());
            halves(values, 0.0, &mut bytes[4..]);
        }
        BlockFormat::Q5_0 => {
            let fifth = |(place, value): (usize, &f32)| u32::from(*value >= 0.0) << place;
            let fifth: u32 = values.iter().enumerate().map(fifth).sum();
            bytes[2..6].copy_from_slice(&fifth.to_le_bytes());
            halves(values, 16.0, &mut bytes[6..]);
        }
        _ => unreachable!("quantized tensors are no blocks of {format}"),
    }
}

/// Writes the low four bits of 32 numbers plus `added`: number j to the low half of byte j, number j + 16 to the high
/// half.
fn halves(values: &[f32], added: f32, bytes: &mut [u8]) {
    let (low, high) = values.split_at(bytes.len());
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = (low + added) as u8 & 15 | ((high + added) as u8) << 4;
    }
}
