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

/// The keys and values of one sequence. Tasks of a pass hold it while they run: attention of different blocks may run at
/// once.
pub(crate) struct KvCache {
    memory: Arc<KvMemory>,
    adapters: Adapters,
    salt: PrefixSalt,
    blocks: Vec<Mutex<BlockCache>>,
}

/// The pages of one sequence in one block.
pub(crate) struct BlockCache {
    shape: PageShape,
    pages: Vec<Arc<BlockPage>>,
}

impl BlockCache {
    /// Keys, or values, of a position.
    pub(crate) fn width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    /// Bytes of the keys and values of so many positions.
    pub(crate) fn bytes(&self, positions: usize) -> usize {
        self.shape.bytes_of(positions)
    }

    /// Writes keys and values `[rows, kv_heads, head_dim]` at positions from `first` on, for which pages have been
    /// [reserved](KvCache::reserve). A page that others hold is copied first.
    pub(crate) fn write(&mut self, keys: &[f32], values: &[f32], first: usize) {
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
    /// Without a page, of a sequence that is computed with `adapters` and has the default salt.
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

    /// Returns the same pages, shared with and found by sequences with this salt alone.
    pub(crate) fn with_salt(self, salt: PrefixSalt) -> Self {
        Self { salt, ..self }
    }

    /// The same pages once more. What is written to one of the two is not seen by the other.
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

    /// What its keys and values are computed with, beside the model.
    pub(crate) fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Returns the salt of its prefixes.
    pub(crate) fn salt(&self) -> PrefixSalt {
        self.salt
    }

    fn tree(&self) -> Tree {
        Tree {
            salt: self.salt,
            adapters: self.adapters.key(),
        }
    }

    /// Makes sure that positions up to `end` can be written, of which those up to `held` have been: pages from there on
    /// are there, and the one that contains position `held` is this sequence's alone.
    ///
    /// # Errors
    /// If the engine's memory for keys and values is full of what other sequences hold.
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
                // Where it is the index alone that shares the page, no copy is needed without it.
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

    /// Gives back pages that hold nothing of the first `tokens` positions.
    pub(crate) fn truncate(&self, tokens: usize) {
        self.blocks
            .iter()
            .for_each(|block| lock(block).pages.truncate(tokens.div_ceil(PAGE)));
    }

    /// Takes the pages that hold the longest known beginning of `tokens`, if it is longer than the `held` tokens that are
    /// here of them. Returns how many tokens are here then.
    pub(crate) fn adopt(&self, held: usize, tokens: &[u32]) -> usize {
        let (length, pages) = self.memory.find(self.tree(), held, tokens);
        if length <= held {
            return held;
        }
        // What is here of whole pages is the same.
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

    /// Lets sequences with the same adapters and salt find what is here of `tokens`, from the first token on.
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

    /// How many pages there are, and how many of them others hold, too.
    pub(crate) fn count(&self) -> (usize, usize) {
        self.blocks.first().map_or((0, 0), |block| {
            let block = lock(block);
            (
                block.pages.len(),
                block.pages.iter().filter(|page| is_shared(page)).count(),
            )
        })
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// That of one block, for one at a time. What a panic left half-written is behind the tokens that are done, and is
    /// written again.
    pub(crate) fn block(&self, index: usize) -> MutexGuard<'_, BlockCache> {
        lock(&self.blocks[index])
    }

    /// Calls `visit` with the bytes of the first `tokens` positions, block after block and page after page.
    ///
    /// # Errors
    /// The first of `visit`.
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

    /// As [`KvCache::read`], to change them; pages have been reserved for them.
    ///
    /// # Errors
    /// The first of `visit`.
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

/// How many of the first `tokens` positions are in each page.
fn positions(tokens: usize) -> impl Iterator<Item = usize> {
    (0..tokens)
        .step_by(PAGE)
        .map(move |first| PAGE.min(tokens - first))
}

fn is_shared(page: &Arc<BlockPage>) -> bool {
    Arc::strong_count(page) > 1
}
