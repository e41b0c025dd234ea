//! Parts of tensors: in place where they are consecutive rows, gathered into memory otherwise.

use std::ops::Range;

use triad_kernels::BlockArithmetic;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_model::dequantize::dequantize;
use triad_model::mapped::MappedBytes;
use triad_model::tensor::{Format, TensorInfo};
use triad_model::tensor_map::{Part, TensorSlice, rows_of};
use triad_model::{Error, ErrorKind, Result};

use half::{bf16, f16};

use super::matrix::Storage;
use super::{Reader, WeightMatrix, from_quantized};

/// The number of elements that one task dequantizes.
const TASK_ELEMENTS: usize = 1 << 16;

/// Returns the values of a matrix in a mapped file. Floats that are not aligned there are widened.
fn in_file(format: Format, bytes: MappedBytes, arithmetic: BlockArithmetic) -> Storage {
    let aligned = |size: usize| (bytes.as_ptr() as usize).is_multiple_of(size);
    match format {
        Format::F32 if aligned(4) => Storage::MappedF32(bytes),
        Format::F16 if aligned(2) => Storage::MappedF16(bytes),
        Format::Bf16 if aligned(2) => Storage::MappedBf16(bytes),
        Format::Blocks(format) => Storage::MappedBlocks {
            format,
            bytes,
            arithmetic,
        },
        Format::F32 | Format::F16 | Format::Bf16 => Storage::F32(widened(format, &bytes).into()),
    }
}

impl WeightMatrix {
    /// Creates a matrix of the values in a mapped file, whose length matches the shape.
    pub(crate) fn stored(
        out_features: usize,
        in_features: usize,
        format: Format,
        bytes: MappedBytes,
        arithmetic: BlockArithmetic,
    ) -> Self {
        let storage = in_file(format, bytes, arithmetic);
        Self::new(out_features, in_features, storage)
    }

    /// Creates a matrix of floats, whose number matches the shape.
    pub(crate) fn of_floats(out_features: usize, in_features: usize, values: Vec<f32>) -> Self {
        Self::new(out_features, in_features, Storage::F32(values.into()))
    }
}

impl Reader<'_> {
    /// Reads a matrix that is multiplied with floats.
    pub(super) fn matrix(
        &self,
        slice: &TensorSlice,
        out_features: usize,
        in_features: usize,
    ) -> Result<WeightMatrix> {
        if let Some(matrix) = self.quantized(slice) {
            return Ok(matrix);
        }
        let info = self.checkpoint.tensor(&slice.name)?;
        let storage = match self.bytes(info, slice)? {
            Bytes::InFile(bytes) => in_file(info.format, bytes, self.block_arithmetic),
            Bytes::Gathered(bytes) => self.gathered(info.format, bytes),
        };
        Ok(WeightMatrix::new(out_features, in_features, storage))
    }

    /// Reads a vector as f32.
    pub(super) fn vector(&self, slice: &TensorSlice) -> Result<Vec<f32>> {
        let info = self.checkpoint.tensor(&slice.name)?;
        Ok(match self.bytes(info, slice)? {
            Bytes::InFile(bytes) => widened(info.format, &bytes),
            Bytes::Gathered(bytes) => to_f32(info.format, &bytes),
        })
    }

    /// Returns the matrix of a tensor that the file has quantized; `None` if it is not.
    pub(super) fn quantized(&self, slice: &TensorSlice) -> Option<WeightMatrix> {
        let tensor = self.checkpoint.quantized().get(&slice.name)?;
        let rows = match &slice.part {
            Some(Part::Rows(rows)) => rows.clone(),
            _ => (0..tensor.shape()[0]).into(),
        };
        let arithmetic = self.block_arithmetic;
        Some(from_quantized::matrix(
            self.checkpoint,
            tensor,
            rows,
            arithmetic,
        ))
    }

    fn gathered(&self, format: Format, bytes: Vec<u8>) -> Storage {
        let words = bytes.as_chunks().0;
        match format {
            Format::F32 => Storage::F32(to_f32(format, &bytes).into()),
            Format::F16 => {
                let values: Vec<_> = words.iter().copied().map(f16::from_le_bytes).collect();
                Storage::F16(values.into())
            }
            Format::Bf16 => {
                let values: Vec<_> = words.iter().copied().map(bf16::from_le_bytes).collect();
                Storage::Bf16(values.into())
            }
            Format::Blocks(format) => Storage::Blocks {
                format,
                bytes: bytes.into(),
                arithmetic: self.block_arithmetic,
            },
        }
    }

    /// Returns the bytes of a part of a tensor. Releases the pages of those that it copies.
    ///
    /// # Errors
    /// If the part is columns of a tensor of blocks.
    fn bytes(&self, info: &TensorInfo, slice: &TensorSlice) -> Result<Bytes> {
        let bytes = self.checkpoint.mapped(info);
        let row_bytes = bytes.len() / rows_of(&info.shape).max(1);
        let of_rows =
            |rows: &Range<usize>| bytes.part(rows.start * row_bytes..rows.end * row_bytes);
        Ok(match &slice.part {
            None => Bytes::InFile(bytes),
            Some(Part::Rows(rows)) => match rows.as_range() {
                Some(rows) => Bytes::InFile(of_rows(&rows)),
                None => {
                    let mut gathered = Vec::with_capacity(rows.len() * row_bytes);
                    for rows in rows.ranges() {
                        gathered.extend_from_slice(&of_rows(&rows));
                    }
                    let first = rows.ranges().map(|rows| rows.start).min();
                    let end = rows.ranges().map(|rows| rows.end).max();
                    if let (Some(first), Some(end)) = (first, end) {
                        // At once: a page may have several ranges.
                        of_rows(&(first..end)).release();
                    }
                    Bytes::Gathered(gathered)
                }
            },
            Some(Part::Columns { .. }) if info.format.block_elements() > 1 => {
                let message = format!(
                    "tensor `{}` has the format {}, expected floats, since a matrix is some of its columns",
                    slice.name, info.format
                );
                return Err(Error::new(ErrorKind::Unsupported, message).at(self.checkpoint.path()));
            }
            Some(Part::Columns { rows, columns }) => {
                let element = info.format.block_bytes();
                let mut gathered = vec![0; rows.len() * columns.len() * element];
                let columns: Vec<usize> = columns.ranges().flatten().collect();
                let out = chunks_mut(&mut gathered, rows.len() * element);
                for_each_chunk(out, 1, |place, out| {
                    let first = columns[place] * element;
                    for (row, out) in rows.clone().zip(out.chunks_exact_mut(element)) {
                        out.copy_from_slice(&bytes[row * row_bytes + first..][..element]);
                    }
                });
                of_rows(rows).release();
                Bytes::Gathered(gathered)
            }
        })
    }
}

/// The bytes of a part of a tensor, in the file's format.
enum Bytes {
    InFile(MappedBytes),
    Gathered(Vec<u8>),
}

/// Widens a part of a file, and releases its pages.
fn widened(format: Format, bytes: &MappedBytes) -> Vec<f32> {
    let values = to_f32(format, bytes);
    bytes.release();
    values
}

fn to_f32(format: Format, bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.len() / format.block_bytes() * format.block_elements();
    let mut values = vec![0.0; elements];
    let task_elements = TASK_ELEMENTS.next_multiple_of(format.block_elements());
    let task_bytes = task_elements / format.block_elements() * format.block_bytes();
    for_each_chunk(chunks_mut(&mut values, task_elements), 1, |task, values| {
        let stored = &bytes[task * task_bytes..];
        dequantize(format, &stored[..stored.len().min(task_bytes)], values);
    });
    values
}
