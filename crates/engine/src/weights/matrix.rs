//! A matrix that is multiplied with float activations, in the format in which it is stored.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::{BlockArithmetic, BlockFormat, Blocks, Matrix, int4, int8};
use triad_model::mapped::MappedBytes;
use triad_model::safetensors::Element;
use triad_model::tensor::Format;

/// The number of elements per task.
const TASK_ELEMENTS: usize = 1 << 16;
/// Rows that are widened at once where a whole matrix in float would be too large.
const SLAB_ROWS: usize = 4096;

/// A matrix `[out_features, in_features]`, row-major. Clones share the values.
#[derive(Clone)]
pub struct WeightMatrix {
    out_features: usize,
    in_features: usize,
    storage: Storage,
}

#[derive(Clone)]
pub(super) enum Storage {
    F32(Arc<Vec<f32>>),
    F16(Arc<Vec<f16>>),
    Bf16(Arc<Vec<bf16>>),
    MappedF32(MappedBytes),
    MappedF16(MappedBytes),
    MappedBf16(MappedBytes),
    MappedBlocks {
        format: BlockFormat,
        bytes: MappedBytes,
        arithmetic: BlockArithmetic,
    },
    Blocks {
        format: BlockFormat,
        bytes: Arc<Vec<u8>>,
        arithmetic: BlockArithmetic,
    },
    Int8 {
        values: Values<i8>,
        scales: Arc<Vec<f32>>,
    },
    Int4 {
        values: Values<u8>,
        scales: Values<f16>,
    },
}

/// Numbers in their own memory or in a mapped file.
#[derive(Clone)]
pub(super) enum Values<T> {
    Owned(Arc<Vec<T>>),
    /// Aligned for `T`, with the length of a whole number of values.
    Mapped(MappedBytes),
}

impl<T: bytemuck::AnyBitPattern> Values<T> {
    pub(super) fn get(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            Self::Mapped(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

impl WeightMatrix {
    pub(super) fn new(out_features: usize, in_features: usize, storage: Storage) -> Self {
        Self {
            out_features,
            in_features,
            storage,
        }
    }

    /// Creates a matrix of floats in a mapped file. Returns `None` if the bytes contradict the shape, are not aligned,
    /// or are not floats.
    pub fn mapped_float(
        out_features: usize,
        in_features: usize,
        element: Element,
        values: MappedBytes,
    ) -> Option<Self> {
        let aligned = (values.as_ptr() as usize).is_multiple_of(element.bytes());
        let fits = aligned && element.bytes_of(&[out_features, in_features]) == Some(values.len());
        let storage = match element {
            Element::F32 => Storage::MappedF32(values),
            Element::F16 => Storage::MappedF16(values),
            Element::Bf16 => Storage::MappedBf16(values),
            _ => return None,
        };
        fits.then_some(Self {
            out_features,
            in_features,
            storage,
        })
    }

    /// Creates a matrix of INT8 values `[out_features, in_features]` in a mapped file, with one scale for each row.
    /// Returns `None` if the lengths contradict the shape.
    pub fn mapped_int8(
        out_features: usize,
        in_features: usize,
        values: MappedBytes,
        scales: Vec<f32>,
    ) -> Option<Self> {
        let fits = out_features.checked_mul(in_features) == Some(values.len())
            && scales.len() == out_features;
        let storage = Storage::Int8 {
            values: Values::Mapped(values),
            scales: scales.into(),
        };
        fits.then_some(Self {
            out_features,
            in_features,
            storage,
        })
    }

    /// Creates a matrix of INT4 values, two per byte, and f16 scales `[out_features, in_features / int4::GROUP]` in a
    /// mapped file. Returns `None` if the lengths contradict the shape, or the scales are not aligned.
    pub fn mapped_int4(
        out_features: usize,
        in_features: usize,
        values: MappedBytes,
        scales: MappedBytes,
    ) -> Option<Self> {
        let weights = out_features.checked_mul(in_features)?;
        let fits = in_features.is_multiple_of(int4::GROUP)
            && values.len() == weights / 2
            && scales.len() == weights / int4::GROUP * size_of::<f16>()
            && (scales.as_ptr() as usize).is_multiple_of(size_of::<f16>());
        let storage = Storage::Int4 {
            values: Values::Mapped(values),
            scales: Values::Mapped(scales),
        };
        fits.then_some(Self {
            out_features,
            in_features,
            storage,
        })
    }

    /// Creates a matrix of quantized blocks in a mapped file. Returns `None` if the length contradicts the shape.
    pub fn mapped_blocks(
        out_features: usize,
        in_features: usize,
        format: BlockFormat,
        bytes: MappedBytes,
        arithmetic: BlockArithmetic,
    ) -> Option<Self> {
        let row = Format::Blocks(format).bytes_for(in_features)?;
        let fits = out_features.checked_mul(row) == Some(bytes.len());
        let storage = Storage::MappedBlocks {
            format,
            bytes,
            arithmetic,
        };
        fits.then_some(Self {
            out_features,
            in_features,
            storage,
        })
    }

    /// Returns the part of a mapped file with the values, if they are in one.
    pub(super) fn in_file(&self) -> Option<&MappedBytes> {
        match &self.storage {
            Storage::MappedF32(bytes)
            | Storage::MappedF16(bytes)
            | Storage::MappedBf16(bytes)
            | Storage::MappedBlocks { bytes, .. }
            | Storage::Int8 {
                values: Values::Mapped(bytes),
                ..
            }
            | Storage::Int4 {
                values: Values::Mapped(bytes),
                ..
            } => Some(bytes),
            _ => None,
        }
    }

    /// Allows the system to drop the values from memory if they are in a mapped file.
    pub fn release(&self) {
        if let Some(bytes) = self.in_file() {
            bytes.release();
        }
    }

    /// Returns the number of rows.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Returns the number of columns.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Returns a view of the values.
    pub fn view(&self) -> Matrix<'_> {
        match &self.storage {
            Storage::F32(values) => Matrix::F32(values),
            Storage::F16(values) => Matrix::F16(values),
            Storage::Bf16(values) => Matrix::Bf16(values),
            Storage::MappedF32(bytes) => Matrix::F32(bytemuck::cast_slice(bytes)),
            Storage::MappedF16(bytes) => Matrix::F16(bytemuck::cast_slice::<u8, f16>(bytes)),
            Storage::MappedBf16(bytes) => Matrix::Bf16(bytemuck::cast_slice::<u8, bf16>(bytes)),
            Storage::MappedBlocks {
                format,
                bytes,
                arithmetic,
            } => Matrix::Blocks(Blocks {
                format: *format,
                bytes,
                arithmetic: *arithmetic,
            }),
            Storage::Blocks {
                format,
                bytes,
                arithmetic,
            } => Matrix::Blocks(Blocks {
                format: *format,
                bytes,
                arithmetic: *arithmetic,
            }),
            Storage::Int8 { values, scales } => Matrix::Int8 {
                values: values.get(),
                scales,
            },
            Storage::Int4 { values, scales } => Matrix::Int4 {
                values: values.get(),
                scales: scales.get(),
            },
        }
    }

    /// Returns the bytes of the values, mapped or not.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::F32(values) => size_of_val(values.as_slice()),
            Storage::F16(values) => size_of_val(values.as_slice()),
            Storage::Blocks { bytes, .. } => bytes.len(),
            Storage::Bf16(values) => size_of_val(values.as_slice()),
            Storage::MappedF32(bytes)
            | Storage::MappedF16(bytes)
            | Storage::MappedBf16(bytes)
            | Storage::MappedBlocks { bytes, .. } => bytes.len(),
            Storage::Int8 { values, scales } => {
                size_of_val(values.get()) + size_of_val(scales.as_slice())
            }
            Storage::Int4 { values, scales } => {
                size_of_val(values.get()) + size_of_val(scales.get())
            }
        }
    }

    /// Converts some rows to f32, on the installed threads.
    pub fn rows_to_f32(&self, rows: Range<usize>, out: &mut [f32]) {
        let task_rows = (TASK_ELEMENTS / self.in_features).max(1);
        for_each_chunk(
            chunks_mut(out, task_rows * self.in_features),
            1,
            |task, out| {
                let first = rows.start + task * task_rows;
                for (row, out) in out.chunks_exact_mut(self.in_features).enumerate() {
                    self.row(first + row, out);
                }
            },
        );
    }

    /// Converts one row to f32.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        self.view().widen_row(row, out);
    }

    /// Converts the matrix to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.out_features * self.in_features];
        self.rows_to_f32(0..self.out_features, &mut values);
        values
    }

    /// Converts the matrix to INT8, with one scale for each row.
    pub fn to_int8(&self) -> Self {
        let (out_features, in_features) = (self.out_features, self.in_features);
        let mut values = vec![0; out_features * in_features];
        let mut scales = vec![0.0; out_features];
        self.slabs(|rows, float| {
            let values = &mut values[rows.start * in_features..rows.end * in_features];
            int8::quantize_weight_rows(float, in_features, &mut scales[rows], values);
        });
        let storage = Storage::Int8 {
            values: Values::Owned(values.into()),
            scales: scales.into(),
        };
        Self {
            out_features,
            in_features,
            storage,
        }
    }

    /// Converts the matrix to INT4, with one scale for each [`int4::GROUP`] weights; returns `None` if rows are not
    /// whole groups. `quantize` gets some rows of weights, and where to write their values and scales, as
    /// [`int4::quantize_int4`] does.
    pub fn to_int4(&self, quantize: impl Fn(&[f32], &mut [u8], &mut [f16])) -> Option<Self> {
        let (out_features, in_features) = (self.out_features, self.in_features);
        if !in_features.is_multiple_of(int4::GROUP) {
            return None;
        }
        let mut values = vec![0; out_features * in_features / 2];
        let mut scales = vec![f16::ZERO; out_features * in_features / int4::GROUP];
        self.slabs(|rows, float| {
            let (first, last) = (rows.start * in_features, rows.end * in_features);
            let values = &mut values[first / 2..last / 2];
            let scales = &mut scales[first / int4::GROUP..last / int4::GROUP];
            quantize(float, values, scales);
        });
        let storage = Storage::Int4 {
            values: Values::Owned(values.into()),
            scales: Values::Owned(scales.into()),
        };
        Some(Self {
            out_features,
            in_features,
            storage,
        })
    }

    /// Converts the matrix to blocks of Q5_0; returns `None` if rows are not whole blocks. `quantize` gets some rows of
    /// weights, and where to write their blocks, as [`int4::quantize_q5_0`] does.
    pub fn to_q5_0(&self, quantize: impl Fn(&[f32], &mut [u8])) -> Option<Self> {
        let format = BlockFormat::Q5_0;
        let row = Format::Blocks(format).bytes_for(self.in_features)?;
        let mut bytes = vec![0; self.out_features * row];
        self.slabs(|rows, float| {
            quantize(float, &mut bytes[rows.start * row..rows.end * row]);
        });
        let storage = Storage::Blocks {
            format,
            bytes: bytes.into(),
            arithmetic: BlockArithmetic::default(),
        };
        Some(Self { storage, ..*self })
    }

    /// Converts the matrix to a matrix in f32.
    pub fn widened(&self) -> Self {
        Self {
            storage: Storage::F32(self.to_f32().into()),
            ..*self
        }
    }

    /// Returns whether the values are floats.
    pub fn is_float(&self) -> bool {
        matches!(
            self.view(),
            Matrix::F32(_) | Matrix::F16(_) | Matrix::Bf16(_)
        )
    }

    /// Returns the format of quantized blocks; `None` for other values.
    pub fn blocks(&self) -> Option<BlockFormat> {
        match self.view() {
            Matrix::Blocks(blocks) => Some(blocks.format),
            _ => None,
        }
    }

    /// Returns whether the values are in INT4.
    pub fn is_int4(&self) -> bool {
        matches!(self.storage, Storage::Int4 { .. })
    }

    /// Calls `with` for consecutive groups of rows, in f32.
    fn slabs(&self, mut with: impl FnMut(Range<usize>, &[f32])) {
        let mut float = vec![0.0; SLAB_ROWS.min(self.out_features) * self.in_features];
        for first in (0..self.out_features).step_by(SLAB_ROWS) {
            let rows = first..(first + SLAB_ROWS).min(self.out_features);
            let float = &mut float[..rows.len() * self.in_features];
            self.rows_to_f32(rows.clone(), float);
            with(rows, float);
        }
    }

    /// Creates random bf16 values.
    pub(super) fn random(out_features: usize, in_features: usize, seed: u64) -> Self {
        let scale = (3.0 / in_features as f32).sqrt() / 32768.0;
        let mut values = vec![bf16::ZERO; out_features * in_features];
        for_each_chunk(chunks_mut(&mut values, TASK_ELEMENTS), 1, |task, values| {
            let mut state = seed ^ (task as u64).wrapping_mul(0xd134_2543_de82_ef95) | 1;
            for values in values.chunks_mut(4) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                for (index, value) in values.iter_mut().enumerate() {
                    // Truncated and not rounded: the exact random numbers do not matter.
                    let number = f32::from((state >> (16 * index)) as i16) * scale;
                    *value = bf16::from_bits((number.to_bits() >> 16) as u16);
                }
            }
        });
        Self {
            out_features,
            in_features,
            storage: Storage::Bf16(values.into()),
        }
    }
}
