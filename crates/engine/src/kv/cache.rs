//! The pages of one sequence.

use std::sync::{Arc, Mutex, MutexGuard};

use triad_kernels::Matrix;
use triad_kernels::attention::{Cache, PAGE};
use triad_kernels::lock;

use super::memory::KvMemory;
use super::page::{BlockPage, Page, PageShape};
use super::prefixes::Tree;
use super::salt::PrefixSalt;
use crate::adapter::Adapters;
use crate::error::Result;

/// The keys and values of one sequence. Tasks of a forward pass hold it while they run. Each block has a lock of its
/// own, so attention of different blocks may run concurrently.
pub struct KvCache {
    memory: Arc<KvMemory>,
    adapters: Adapters,
    salt: PrefixSalt,
    blocks: Vec<Mutex<BlockCache>>,
}

/// The pages of one sequence in one block.
pub struct BlockCache {
    shape: PageShape,
    pages: Vec<Arc<BlockPage>>,
}

impl BlockCache {
    /// Returns the number of values in the keys, or in the values, of one position.
    pub fn width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    /// Returns the bytes of keys and values of this number of positions.
    pub fn bytes(&self, positions: usize) -> usize {
        self.shape.bytes_of(positions)
    }

    /// Writes keys and values `[rows, kv_heads, head_dim]` at positions from `first` on, whose pages have been
    /// [reserved](KvCache::reserve). Copies a page first if it is shared.
    pub fn write(&mut self, keys: &[f32], values: &[f32], first: usize) {
        let width = self.width();
        let (mut keys, mut values, mut position) = (keys, values, first);
        while !keys.is_empty() {
            let place = position % PAGE;
            let rows = (PAGE - place).min(keys.len() / width);
            let page = Arc::make_mut(&mut self.pages[position / PAGE]);
            page.write(
                &keys[..rows * width],
                &values[..rows * width],
                place,
                self.shape,
            );
            (keys, values) = (&keys[rows * width..], &values[rows * width..]);
            position += rows;
        }
    }
}

impl Cache for BlockCache {
    fn keys(&self, page: usize) -> Matrix<'_> {
        self.pages[page].keys.view()
    }

    fn values(&self, page: usize) -> Matrix<'_> {
        self.pages[page].values.view()
    }
}

impl KvCache {
    /// Creates a cache without pages, for a sequence with these `adapters` and the default salt.
    pub(crate) fn new(memory: &Arc<KvMemory>, adapters: Adapters) -> Self {
        let block = |shape: &PageShape| {
            Mutex::new(BlockCache {
                shape: *shape,
                pages: Vec::new(),
            })
        };
        let (salt, blocks) = (
            PrefixSalt::default(),
            memory.shapes().iter().map(block).collect(),
        );
        Self {
            memory: Arc::clone(memory),
            adapters,
            salt,
            blocks,
        }
    }

    /// Returns the same pages, which are then shared only with sequences with this salt.
    pub(crate) fn with_salt(self, salt: PrefixSalt) -> Self {
        Self { salt, ..self }
    }

    /// Returns a second cache with the same pages. Writes to one of the two do not change the other.
    pub(crate) fn fork(&self) -> Self {
        let copy = |block: &Mutex<BlockCache>| {
            let block = lock(block);
            Mutex::new(BlockCache {
                shape: block.shape,
                pages: block.pages.clone(),
            })
        };
        let (memory, adapters, salt) = (Arc::clone(&self.memory), self.adapters.clone(), self.salt);
        Self {
            memory,
            adapters,
            salt,
            blocks: self.blocks.iter().map(copy).collect(),
        }
    }

    /// Returns the adapters that the keys and values are computed with.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Returns the salt of the prefixes.
    pub(crate) fn salt(&self) -> PrefixSalt {
        self.salt
    }

    fn tree(&self) -> Tree {
        Tree {
            salt: self.salt,
            adapters: self.adapters.key(),
        }
    }

    /// Makes positions up to `end` writable, of which those up to `held` hold tokens: allocates the missing pages, and
    /// copies the page of position `held` if it is shared.
    ///
    /// # Errors
    /// If the engine's memory for keys and values is full and other sequences hold all of it.
    pub(crate) fn reserve(&self, held: usize, end: usize) -> Result<()> {
        let have = lock(&self.blocks[0]).pages.len();
        let wanted = end.div_ceil(PAGE).saturating_sub(have);
        let is_last_shared = || {
            lock(&self.blocks[0])
                .pages
                .get(held / PAGE)
                .is_some_and(is_shared)
        };
        let (reserved, shared) = loop {
            let shared = is_last_shared();
            match self.memory.reserve(wanted + usize::from(shared)) {
                Ok(reserved) => break (reserved, shared),
                // If only the index shares the page, the page is removed from the index, and no copy is needed.
                Err(full) if !shared || !self.memory.unindex(&self.page(held / PAGE)) => {
                    return Err(full);
                }
                Err(_) => {}
            }
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let mut block = lock(block);
            if shared {
                Arc::make_mut(&mut block.pages[held / PAGE]);
            }
            block
                .pages
                .extend((0..wanted).map(|_| Arc::new(self.memory.page(index))));
        }
        drop(reserved);
        Ok(())
    }

    /// Releases the pages that have none of the first `tokens` positions.
    pub(crate) fn truncate(&self, tokens: usize) {
        self.blocks
            .iter()
            .for_each(|block| lock(block).pages.truncate(tokens.div_ceil(PAGE)));
    }

    /// Takes over the indexed pages of the longest known prefix of `tokens`, if it is longer than the `held` tokens
    /// that this cache has. Returns the number of tokens that the cache has afterwards.
    pub(crate) fn adopt(&self, held: usize, tokens: &[u32]) -> usize {
        let (length, pages) = self.memory.find(self.tree(), held, tokens);
        if length <= held {
            return held;
        }
        // The whole pages that the cache already has hold the same tokens.
        let from = held / PAGE;
        for (index, block) in self.blocks.iter().enumerate() {
            let mut block = lock(block);
            block.pages.truncate(from);
            block
                .pages
                .extend(pages[from..].iter().map(|page| Arc::clone(&page[index])));
        }
        length
    }

    /// Adds the pages of `tokens`, from the first token on, to the index, where sequences with the same adapters and
    /// salt find them.
    pub(crate) fn share(&self, tokens: &[u32]) {
        let pages: Vec<_> = (0..tokens.len().div_ceil(PAGE))
            .map(|page| self.page(page))
            .collect();
        self.memory.insert(self.tree(), tokens, &pages);
    }

    fn page(&self, page: usize) -> Page {
        self.blocks
            .iter()
            .map(|block| Arc::clone(&lock(block).pages[page]))
            .collect()
    }

    /// Returns the number of pages, and the number of those that are shared.
    pub(crate) fn count(&self) -> (usize, usize) {
        self.blocks.first().map_or((0, 0), |block| {
            let block = lock(block);
            (
                block.pages.len(),
                block.pages.iter().filter(|page| is_shared(page)).count(),
            )
        })
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Locks the cache of one block. If a panic left a position half-written, this position is after the finished
    /// tokens and is written again.
    pub fn block(&self, index: usize) -> MutexGuard<'_, BlockCache> {
        lock(&self.blocks[index])
    }

    /// Calls `visit` with the bytes of the first `tokens` positions, block by block and page by page.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub(super) fn read<E>(
        &self,
        tokens: usize,
        mut visit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for block in &self.blocks {
            let block = lock(block);
            for (page, positions) in block.pages.iter().zip(positions(tokens)) {
                page.read(positions, block.shape, &mut visit)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` as [`KvCache::read`] does, with mutable bytes. The pages must be reserved.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub(super) fn fill<E>(
        &self,
        tokens: usize,
        mut visit: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for block in &self.blocks {
            let mut block = lock(block);
            let shape = block.shape;
            for (page, positions) in block.pages.iter_mut().zip(positions(tokens)) {
                Arc::make_mut(page).fill(positions, shape, &mut visit)?;
            }
        }
        Ok(())
    }
}

/// Returns, for each page, how many of the first `tokens` positions it has.
fn positions(tokens: usize) -> impl Iterator<Item = usize> {
    (0..tokens)
        .step_by(PAGE)
        .map(move |first| PAGE.min(tokens - first))
}

fn is_shared(page: &Arc<BlockPage>) -> bool {
    Arc::strong_count(page) > 1
}
