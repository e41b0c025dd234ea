//! A page: keys and values of consecutive positions in one block of the model, and the state of a mixer at one of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::f16;
use serde::{Deserialize, Serialize};
use triad_kernels::attention::PAGE;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::quantize_weight_rows;
use triad_kernels::{Matrix, narrow_f16};
use triad_model::description::StateSize;

/// Positions of a head that one task writes, a divisor of [`PAGE`].
const TASK_POSITIONS: usize = 32;
/// Writes with fewer values than this run on the calling thread alone.
const PARALLEL: usize = 1 << 14;

/// The number format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvFormat {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats, for comparisons with a reference that has no 16-bit cache.
    F32,
    /// 8-bit integers with one scale for each key and each value of a head: about half the bytes of 16-bit floats.
    Int8,
}

impl KvFormat {
    /// Returns the bytes of a key or a value of one head with this width.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => head_dim * size_of::<f16>(),
            Self::F32 => head_dim * size_of::<f32>(),
            Self::Int8 => head_dim + size_of::<f32>(),
        }
    }
}

/// A page over all blocks of the model.
pub(crate) type Page = Vec<Arc<BlockPage>>;

/// The key and value heads of one block, and their format; the size of its mixer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageShape {
    pub(crate) format: KvFormat,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Whether values are stored, and are not the keys.
    pub(crate) has_values: bool,
    /// The sizes of the mixer's state; `None` if the block has attention.
    pub(crate) state: Option<StateSize>,
}

impl PageShape {
    /// Returns the bytes of a page: keys, values, and the checkpoint of a state.
    pub(crate) fn bytes(self) -> usize {
        self.bytes_of(PAGE) + self.state_values() * size_of::<f32>()
    }

    /// Returns the number of values of a state.
    fn state_values(self) -> usize {
        self.state.map_or(0, |size| size.state)
    }

    /// Returns the bytes of keys and values of this number of positions.
    pub(crate) fn bytes_of(self, positions: usize) -> usize {
        let parts = if self.has_values { 2 } else { 1 };
        parts * positions * self.kv_heads * self.format.bytes(self.head_dim)
    }

    /// Returns the shape of the values alone.
    fn of_values(self) -> Self {
        let kv_heads = if self.has_values { self.kv_heads } else { 0 };
        Self { kv_heads, ..self }
    }

    /// Returns, for each head, the byte range of the first `positions` positions within `part`: all numbers, or all
    /// scales, of keys or values.
    fn parts(
        self,
        part: &[u8],
        positions: usize,
    ) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let of_head = part.len() / self.kv_heads.max(1);
        let used = of_head / PAGE * positions;
        (0..self.kv_heads).map(move |head| head * of_head..head * of_head + used)
    }
}

/// Keys or values of a page: `[kv_heads, PAGE, head_dim]`.
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
    /// Allocates zeros. If the allocator supports it, the system provides the memory only when it is written.
    fn new(shape: PageShape) -> Self {
        let rows = shape.kv_heads * PAGE;
        let count = rows * shape.head_dim;
        match shape.format {
            KvFormat::F16 => Self::F16(bytemuck::zeroed_vec(count)),
            KvFormat::F32 => Self::F32(vec![0.0; count]),
            KvFormat::Int8 => Self::Int8 {
                values: vec![0; count],
                scales: vec![0.0; rows],
            },
        }
    }

    pub(crate) fn view(&self) -> Matrix<'_> {
        match self {
            Self::F16(values) => Matrix::F16(values),
            Self::F32(values) => Matrix::F32(values),
            Self::Int8 { values, scales } => Matrix::Int8 { values, scales },
        }
    }

    /// Writes `rows[rows, kv_heads, head_dim]` at the positions of a page from `first` on.
    fn write(&mut self, rows: &[f32], first: usize, shape: PageShape) {
        let (dim, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
        let places = first..first + rows.len() / width;
        // With few rows, a head is one task, and the calling thread runs all tasks.
        let (positions, grain) = if rows.len() < PARALLEL {
            (PAGE, usize::MAX)
        } else {
            (TASK_POSITIONS, 1)
        };
        let task = positions * dim;
        // Calls `write` with the values of each row of a head that a task writes, and with the row's index within the
        // task.
        let rows_of = |index: usize, write: &mut dyn FnMut(&[f32], usize)| {
            let (head, from) = (index * positions / PAGE, index * positions % PAGE);
            for place in from.max(places.start)..(from + positions).min(places.end) {
                write(
                    &rows[(place - first) * width + head * dim..][..dim],
                    place - from,
                );
            }
        };
        match self {
            Self::F16(plane) => for_each_chunk(chunks_mut(plane, task), grain, |index, plane| {
                rows_of(index, &mut |values, row| {
                    narrow_f16(values, &mut plane[row * dim..][..dim]);
                });
            }),
            Self::F32(plane) => for_each_chunk(chunks_mut(plane, task), grain, |index, plane| {
                rows_of(index, &mut |values, row| {
                    plane[row * dim..][..dim].copy_from_slice(values);
                });
            }),
            Self::Int8 {
                values: plane,
                scales,
            } => {
                let chunks = (chunks_mut(plane, task), chunks_mut(scales, positions));
                for_each_chunk(chunks, grain, |index, (plane, scales)| {
                    rows_of(index, &mut |values, row| {
                        quantize_weight_rows(
                            values,
                            dim,
                            &mut scales[row..=row],
                            &mut plane[row * dim..][..dim],
                        );
                    });
                });
            }
        }
    }

    /// Copies the content of `other`, which has the same shape.
    fn copy_from(&mut self, other: &Self) {
        for (mine, others) in self.bytes_mut().into_iter().zip(other.bytes()) {
            mine.copy_from_slice(others);
        }
    }

    /// Returns the bytes of the numbers and of the scales, in their memory layout.
    fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Self::F16(values) => [bytemuck::cast_slice(values), &[]],
            Self::F32(values) => [bytemuck::cast_slice(values), &[]],
            Self::Int8 { values, scales } => {
                [bytemuck::cast_slice(values), bytemuck::cast_slice(scales)]
            }
        }
    }

    fn bytes_mut(&mut self) -> [&mut [u8]; 2] {
        match self {
            Self::F16(values) => [bytemuck::cast_slice_mut(values), &mut []],
            Self::F32(values) => [bytemuck::cast_slice_mut(values), &mut []],
            Self::Int8 { values, scales } => [
                bytemuck::cast_slice_mut(values),
                bytemuck::cast_slice_mut(scales),
            ],
        }
    }
}

/// A mixer's state at a position of a page.
#[derive(Clone, Default)]
pub(crate) struct Checkpoint {
    /// The number of the page's positions that the state has seen; 0: there is no state.
    pub(crate) positions: usize,
    /// The state; arbitrary if there is none.
    pub(crate) values: Vec<f32>,
}

/// Keys and values of a page in one block. Its bytes are counted until it is dropped; its memory is then reused.
pub(crate) struct BlockPage {
    pub(crate) keys: Plane,
    pub(crate) values: Plane,
    /// Empty if the block has attention.
    pub(crate) checkpoint: Checkpoint,
    shape: PageShape,
    home: Arc<Home>,
}

/// Memory of a dropped page: its shape, keys, values and state.
type Free = (PageShape, Plane, Plane, Vec<f32>);

/// The allocator of pages, which reuses the memory of dropped ones.
#[derive(Default)]
pub(super) struct Home {
    /// Bytes of the live pages.
    used: AtomicUsize,
    /// Memory of dropped pages. A new page that reuses it has arbitrary content.
    free: Mutex<Vec<Free>>,
}

impl Home {
    /// Returns the bytes of the live pages.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the memory of dropped pages.
    pub(super) fn unused(&self) -> usize {
        self.free().iter().map(|(shape, ..)| shape.bytes()).sum()
    }

    /// Frees memory that no page uses, except for `keep` bytes.
    pub(super) fn shrink(&self, keep: usize) {
        let mut free = self.free();
        let mut bytes: usize = free.iter().map(|(shape, ..)| shape.bytes()).sum();
        while bytes > keep
            && let Some((shape, ..)) = free.pop()
        {
            bytes -= shape.bytes();
        }
    }

    /// Counts `bytes` more as used by something other than a page, until the result is dropped.
    pub(super) fn count(self: &Arc<Self>, bytes: usize) -> Counted {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Counted {
            home: Arc::clone(self),
            bytes,
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that count as used.
pub(super) struct Counted {
    home: Arc<Home>,
    bytes: usize,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.home.count(self.bytes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.home.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl BlockPage {
    /// Creates a page with arbitrary content.
    pub(super) fn new(shape: PageShape, home: &Arc<Home>) -> Self {
        home.used.fetch_add(shape.bytes(), Ordering::Relaxed);
        let known = {
            let mut free = home.free();
            let place = free.iter().rposition(|(of, ..)| *of == shape);
            place.map(|place| free.swap_remove(place))
        };
        let new = || {
            let state = vec![0.0; shape.state_values()];
            let values = Plane::new(shape.of_values());
            (shape, Plane::new(shape), values, state)
        };
        let (_, keys, values, state) = known.unwrap_or_else(new);
        Self {
            keys,
            values,
            checkpoint: Checkpoint {
                positions: 0,
                values: state,
            },
            shape,
            home: Arc::clone(home),
        }
    }

    /// Writes keys and values `[rows, kv_heads, head_dim]` at the positions of the page from `first` on. Values that are
    /// the keys are not read.
    pub(super) fn write(&mut self, keys: &[f32], values: &[f32], first: usize, shape: PageShape) {
        self.keys.write(keys, first, shape);
        if shape.has_values {
            self.values.write(values, first, shape);
        }
    }

    /// Calls `visit` with the bytes of the first `positions` positions.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub(super) fn read<E>(
        &self,
        positions: usize,
        shape: PageShape,
        visit: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self.keys.bytes().into_iter().chain(self.values.bytes());
        parts.try_for_each(|part| {
            shape
                .parts(part, positions)
                .try_for_each(|used| visit(&part[used]))
        })
    }

    /// Calls `visit` as [`BlockPage::read`] does, with mutable bytes.
    pub(super) fn fill<E>(
        &mut self,
        positions: usize,
        shape: PageShape,
        visit: &mut impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self
            .keys
            .bytes_mut()
            .into_iter()
            .chain(self.values.bytes_mut());
        parts.try_for_each(|part| {
            shape
                .parts(part, positions)
                .try_for_each(|used| visit(&mut part[used]))
        })
    }
}

impl Clone for BlockPage {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.shape, &self.home);
        copy.keys.copy_from(&self.keys);
        copy.values.copy_from(&self.values);
        copy.checkpoint.positions = self.checkpoint.positions;
        copy.checkpoint
            .values
            .copy_from_slice(&self.checkpoint.values);
        copy
    }
}

impl Drop for BlockPage {
    fn drop(&mut self) {
        let nothing = || Plane::F32(Vec::new());
        let (keys, values) = (
            std::mem::replace(&mut self.keys, nothing()),
            std::mem::replace(&mut self.values, nothing()),
        );
        let state = std::mem::take(&mut self.checkpoint.values);
        self.home.free().push((self.shape, keys, values, state));
        self.home
            .used
            .fetch_sub(self.shape.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use triad_kernels::pool::Pool;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_row_goes_to_its_place_and_no_other_place_changes(
            format in prop::sample::select(vec![KvFormat::F16, KvFormat::F32, KvFormat::Int8]),
            kv_heads in 1usize..5,
            head_dim in prop::sample::select(vec![4usize, 20, 64]),
            places in (0usize..=PAGE, 0usize..=PAGE).prop_map(|(a, b)| a.min(b)..a.max(b)),
            threads in 1usize..4,
        ) {
            let shape = PageShape { format, kv_heads, head_dim, has_values: true, state: None };
            let number = |index: usize| ((index * 37) % 199) as f32 - 99.0;
            let rows: Vec<f32> = (0..places.len() * kv_heads * head_dim).map(number).collect();
            let mut plane = Plane::new(shape);
            let old = vec![7.0; PAGE * kv_heads * head_dim];
            plane.write(&old, 0, shape);
            Pool::new(threads).unwrap().install(|| plane.write(&rows, places.start, shape));
            let mut read = vec![0.0; head_dim];
            let mut expected = Plane::new(PageShape { kv_heads: 1, ..shape });
            for head in 0..kv_heads {
                for place in 0..PAGE {
                    let row = if places.contains(&place) {
                        &rows[((place - places.start) * kv_heads + head) * head_dim..][..head_dim]
                    } else {
                        &old[..head_dim]
                    };
                    expected.write(row, 0, PageShape { kv_heads: 1, ..shape });
                    let mut wanted = vec![0.0; head_dim];
                    expected.view().rows(0..1, head_dim).widen_row(0, &mut wanted);
                    let at = head * PAGE + place;
                    plane.view().rows(at..at + 1, head_dim).widen_row(0, &mut read);
                    prop_assert_eq!(&read, &wanted, "head {}, place {}", head, place);
                }
            }
        }
    }
}
