//! Parts of an engine, for devices of tests that compute with our kernels.

use std::sync::Arc;

use crate::adapter::Adapters;
use crate::error::Result;
use crate::forward::Forward;
use crate::kv::{KvCache, KvFormat, KvMemory};
use crate::model::Model;

/// Returns what forward passes of sessions of `context` tokens share.
pub fn forward(model: &Arc<Model>, context: usize) -> Forward {
    Forward::new(model, context)
}

/// The memory of keys and values of sequences without adapters.
pub struct Caches(Arc<KvMemory>);

impl Caches {
    /// Creates a memory of at most `budget` bytes.
    pub fn new(model: &Model, format: KvFormat, budget: usize) -> Self {
        Self(Arc::new(KvMemory::new(model.description(), format, budget)))
    }

    /// Returns the empty cache of a sequence.
    pub fn cache(&self) -> KvCache {
        KvCache::new(&self.0, Adapters::default())
    }
}

/// Makes positions up to `end` of a cache writable, of which those up to `held` hold tokens.
///
/// # Errors
/// If its memory is full.
pub fn reserve(cache: &KvCache, held: usize, end: usize) -> Result<()> {
    cache.reserve(held, end)
}
