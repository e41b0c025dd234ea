//! Keys and values of every position that a session has seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use half::f16;
use serde::{Deserialize, Serialize};
use triad_kernels::Matrix;
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
}

impl KvFormat {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Keys or values of one block: `[kv_heads, context, head_dim]`.
pub(crate) enum Plane {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Plane {
    fn new(format: KvFormat, count: usize) -> Self {
        match format {
            KvFormat::F16 => Self::F16(vec![f16::ZERO; count]),
            KvFormat::F32 => Self::F32(vec![0.0; count]),
        }
    }

    pub(crate) fn view(&self) -> Matrix<'_> {
        match self {
            Self::F16(values) => Matrix::F16(values),
            Self::F32(values) => Matrix::F32(values),
        }
    }

    /// Writes `rows[rows, kv_heads, head_dim]` at positions from `first` on.
    fn write(&mut self, rows: &[f32], first: usize, context: usize, attention: &Attention) {
        let (heads, dim) = (attention.kv_heads, attention.head_dim);
        for (row, values) in rows.chunks_exact(heads * dim).enumerate() {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let start = (head * context + first + row) * dim;
                match self {
                    Self::F16(plane) => narrow(values, &mut plane[start..start + dim]),
                    Self::F32(plane) => plane[start..start + dim].copy_from_slice(values),
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
            let count = attention.kv_heads * context * attention.head_dim;
            Mutex::new(BlockCache { keys: Plane::new(format, count), values: Plane::new(format, count) })
        };
        Self { blocks: description.blocks.iter().map(|description| block(&description.attention)).collect(), context }
    }

    /// That of one block, for one at a time. What a panic left half-written lies behind the tokens that are done, and is
    /// written again.
    pub(crate) fn block(&self, index: usize) -> MutexGuard<'_, BlockCache> {
        self.blocks[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
