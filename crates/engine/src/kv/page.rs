//! A page: keys and values of consecutive positions in one block of the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;
use serde::{Deserialize, Serialize};
use triad_kernels::Matrix;
use triad_kernels::attention::PAGE;
use triad_kernels::int8::quantize_weight_rows;

/// Number format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvFormat {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats: for comparisons with a reference that has no 16-bit cache.
    F32,
    /// 8-bit integers with one scale for each key and each value of a head: half the bytes.
    Int8,
}

impl KvFormat {
    /// Bytes of a key or a value of one head of this width.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => head_dim * size_of::<f16>(),
            Self::F32 => head_dim * size_of::<f32>(),
            Self::Int8 => head_dim + size_of::<f32>(),
        }
    }
}

/// Heads of keys and values in one block, and their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageShape {
    pub(crate) format: KvFormat,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl PageShape {
    /// Bytes of a page's keys and values.
    pub(crate) fn bytes(self) -> usize {
        2 * PAGE * self.kv_heads * self.format.bytes(self.head_dim)
    }

    /// Bytes of the first `positions` places of keys or of values: for each head, of all numbers and of all scales.
    fn parts(self, part: &[u8], positions: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let of_head = part.len() / self.kv_heads;
        let used = of_head / PAGE * positions;
        (0..self.kv_heads).map(move |head| head * of_head..head * of_head + used)
    }
}

/// Keys or values of a page: `[kv_heads, PAGE, head_dim]`.
#[derive(Clone)]
pub(crate) enum Plane {
    F16(Vec<f16>),
    F32(Vec<f32>),
    Int8 {
        values: Vec<i8>,
        /// `[kv_heads, PAGE]`.
        scales: Vec<f32>,
    },
}

impl Plane {
    /// Zeros; memory that is not written yet is not taken from the system where the allocator can help it.
    fn new(shape: PageShape) -> Self {
        let rows = shape.kv_heads * PAGE;
        let count = rows * shape.head_dim;
        match shape.format {
            KvFormat::F16 => Self::F16(bytemuck::zeroed_vec(count)),
            KvFormat::F32 => Self::F32(vec![0.0; count]),
            KvFormat::Int8 => Self::Int8 { values: vec![0; count], scales: vec![0.0; rows] },
        }
    }

    pub(crate) fn view(&self) -> Matrix<'_> {
        match self {
            Self::F16(values) => Matrix::F16(values),
            Self::F32(values) => Matrix::F32(values),
            Self::Int8 { values, scales } => Matrix::Int8 { values, scales },
        }
    }

    /// Writes `rows[rows, kv_heads, head_dim]` at the places of a page from `first` on.
    fn write(&mut self, rows: &[f32], first: usize, shape: PageShape) {
        let (heads, dim) = (shape.kv_heads, shape.head_dim);
        for (row, values) in rows.chunks_exact(heads * dim).enumerate() {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let row = head * PAGE + first + row;
                let place = row * dim..(row + 1) * dim;
                match self {
                    Self::F16(plane) => to_f16(values, &mut plane[place]),
                    Self::F32(plane) => plane[place].copy_from_slice(values),
                    Self::Int8 { values: plane, scales } => {
                        quantize_weight_rows(values, dim, &mut scales[row..=row], &mut plane[place]);
                    }
                }
            }
        }
    }

    /// Its numbers and its scales as they lie in memory.
    fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Self::F16(values) => [bytemuck::cast_slice(values), &[]],
            Self::F32(values) => [bytemuck::cast_slice(values), &[]],
            Self::Int8 { values, scales } => [bytemuck::cast_slice(values), bytemuck::cast_slice(scales)],
        }
    }

    fn bytes_mut(&mut self) -> [&mut [u8]; 2] {
        match self {
            Self::F16(values) => [bytemuck::cast_slice_mut(values), &mut []],
            Self::F32(values) => [bytemuck::cast_slice_mut(values), &mut []],
            Self::Int8 { values, scales } => [bytemuck::cast_slice_mut(values), bytemuck::cast_slice_mut(scales)],
        }
    }
}

fn to_f16(from: &[f32], to: &mut [f16]) {
    use half::slice::HalfFloatSliceExt;
    to.convert_from_f32_slice(from);
}

/// Keys and values of a page in one block. Its bytes are counted as long as it lives.
#[derive(Clone)]
pub(crate) struct BlockPage {
    pub(crate) keys: Plane,
    pub(crate) values: Plane,
    _counted: Counted,
}

impl BlockPage {
    pub(super) fn new(shape: PageShape, counter: &Arc<AtomicUsize>) -> Self {
        let _counted = Counted::new(shape.bytes(), counter);
        Self { keys: Plane::new(shape), values: Plane::new(shape), _counted }
    }

    /// Writes keys and values `[rows, kv_heads, head_dim]` at the places of the page from `first` on.
    pub(super) fn write(&mut self, keys: &[f32], values: &[f32], first: usize, shape: PageShape) {
        self.keys.write(keys, first, shape);
        self.values.write(values, first, shape);
    }

    /// Calls `visit` with the bytes of the first `positions` places.
    ///
    /// # Errors
    /// The first of `visit`.
    pub(super) fn read<E>(
        &self,
        positions: usize,
        shape: PageShape,
        visit: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self.keys.bytes().into_iter().chain(self.values.bytes());
        parts.try_for_each(|part| shape.parts(part, positions).try_for_each(|used| visit(&part[used])))
    }

    /// As [`BlockPage::read`], to change them.
    pub(super) fn fill<E>(
        &mut self,
        positions: usize,
        shape: PageShape,
        visit: &mut impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self.keys.bytes_mut().into_iter().chain(self.values.bytes_mut());
        parts.try_for_each(|part| shape.parts(part, positions).try_for_each(|used| visit(&mut part[used])))
    }
}

/// Bytes that a counter holds as long as this lives; a copy counts again.
struct Counted {
    bytes: usize,
    counter: Arc<AtomicUsize>,
}

impl Counted {
    fn new(bytes: usize, counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, counter: Arc::clone(counter) }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(self.bytes, &self.counter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
