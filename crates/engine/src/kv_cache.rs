//! Keys and values of every position that a session has seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use half::f16;
use serde::{Deserialize, Serialize};
use triad_kernels::Matrix;
use triad_kernels::int8::quantize_weight_rows;
use triad_model::description::{Attention, ModelDescription};

/// Number format of the KV cache.
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

/// Keys or values of one block: `[kv_heads, context, head_dim]`.
pub(crate) enum Plane {
    F16(Vec<f16>),
    F32(Vec<f32>),
    Int8 {
        values: Vec<i8>,
        /// `[kv_heads, context]`.
        scales: Vec<f32>,
    },
}

impl Plane {
    /// For `rows` keys or values of one head each.
    fn new(format: KvFormat, rows: usize, head_dim: usize) -> Self {
        let count = rows * head_dim;
        match format {
            KvFormat::F16 => Self::F16(vec![f16::ZERO; count]),
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

    /// Writes `rows[rows, kv_heads, head_dim]` at positions from `first` on.
    fn write(&mut self, rows: &[f32], first: usize, context: usize, attention: &Attention) {
        let (heads, dim) = (attention.kv_heads, attention.head_dim);
        for (row, values) in rows.chunks_exact(heads * dim).enumerate() {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let row = head * context + first + row;
                let place = row * dim..(row + 1) * dim;
                match self {
                    Self::F16(plane) => narrow(values, &mut plane[place]),
                    Self::F32(plane) => plane[place].copy_from_slice(values),
                    Self::Int8 { values: plane, scales } => {
                        quantize_weight_rows(values, dim, &mut scales[row..=row], &mut plane[place]);
                    }
                }
            }
        }
    }
}

fn narrow(from: &[f32], to: &mut [f16]) {
    use half::slice::HalfFloatSliceExt;
    to.convert_from_f32_slice(from);
}

/// Keys and values of one block.
pub(crate) struct BlockCache {
    pub(crate) keys: Plane,
    pub(crate) values: Plane,
}

impl BlockCache {
    /// Writes keys and values `[rows, kv_heads, head_dim]` at positions from `first` on.
    pub(crate) fn write(&mut self, keys: &[f32], values: &[f32], first: usize, context: usize, attention: &Attention) {
        self.keys.write(keys, first, context, attention);
        self.values.write(values, first, context, attention);
    }
}

/// The cache of a session: allocated whole for its context, so that a run that starts can finish.
pub(crate) struct KvCache {
    /// Attention of different blocks may run at once.
    blocks: Vec<Mutex<BlockCache>>,
    pub(crate) context: usize,
}

impl KvCache {
    pub(crate) fn new(description: &ModelDescription, context: usize, format: KvFormat) -> Self {
        let block = |attention: &Attention| {
            let plane = || Plane::new(format, attention.kv_heads * context, attention.head_dim);
            Mutex::new(BlockCache { keys: plane(), values: plane() })
        };
        Self { blocks: description.blocks.iter().map(|description| block(&description.attention)).collect(), context }
    }

    /// That of one block, for one at a time. What a panic left half-written lies behind the tokens that are done, and is
    /// written again.
    pub(crate) fn block(&self, index: usize) -> MutexGuard<'_, BlockCache> {
        self.blocks[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_as_exactly_as_the_format_allows() {
        let description = triad_model::family::shape("smollm2-135m").unwrap();
        let attention = &description.blocks[0].attention;
        let (heads, dim, context) = (attention.kv_heads, attention.head_dim, 7);
        let rows: Vec<f32> = (0..2 * heads * dim).map(|i| ((i * 7919 % 2003) as f32 / 1001.0 - 1.0).powi(3)).collect();
        // Half a step of a number near one; in INT8 the largest is near one.
        for (format, step) in [(KvFormat::F32, 0.0), (KvFormat::F16, 0.5f32.powi(11)), (KvFormat::Int8, 1.0 / 127.0)] {
            let cache = KvCache::new(&description, context, format);
            let mut block = cache.block(0);
            block.write(&rows, &rows, 3, context, attention);
            for plane in [block.keys.view(), block.values.view()] {
                let mut wide = vec![f32::NAN; dim];
                for (place, expected) in rows.chunks_exact(dim).enumerate() {
                    let (row, head) = (place / heads, place % heads);
                    plane.widen_row(head * context + 3 + row, &mut wide);
                    let most = wide.iter().zip(expected).fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
                    assert!(most <= 0.501 * step, "{format:?}, row {row} of head {head}: {most}");
                }
                plane.widen_row(2, &mut wide);
                assert!(wide.iter().all(|x| *x == 0.0), "{format:?}: nothing else is written");
            }
        }
    }
}
