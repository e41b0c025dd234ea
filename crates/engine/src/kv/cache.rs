//! The pages of one sequence.

use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;
use triad_kernels::attention::{Cache, PAGE};
use triad_kernels::lock;
use triad_kernels::{Matrix, Phase};

use super::memory::KvMemory;
use super::page::{BlockPage, Page, PageShape};
use super::prefixes::Tree;
use super::salt::PrefixSalt;
use super::state::{SequenceState, Update, number, position_from, position_of};
use crate::adapter::Adapters;
use crate::error::{Error, Result};

/// The keys and values of one sequence. Tasks of a forward pass hold it while they run. Each block has a lock of its
/// own, so attention of different blocks may run concurrently.
pub struct KvCache {
    memory: Arc<KvMemory>,
    adapters: Adapters,
    salt: PrefixSalt,
    blocks: Vec<Mutex<BlockCache>>,
}

/// The pages of one sequence in one block, and the states of its mixer.
pub struct BlockCache {
    shape: PageShape,
    pages: Vec<Arc<BlockPage>>,
    /// `None` if the block has attention. Forks share them until one of the two continues.
    states: Option<Arc<SequenceState>>,
    /// The states after this position are forgotten.
    states_end: usize,
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

impl BlockCache {
    /// Goes back to the states at `position`, after which other rows may have run.
    pub fn go_back(&mut self, position: usize) {
        if let Some(states) = &mut self.states {
            Arc::make_mut(states).forget_after(position);
        }
    }

    /// Runs `rows` of a mixer's inputs, which follow the first `position` positions, through `update`.
    ///
    /// # Errors
    /// If the state at `position` is not known: the session has to compute its tokens again first.
    ///
    /// # Panics
    /// If the block has attention, or its pages are not [reserved](KvCache::reserve).
    pub fn advance(
        &mut self,
        position: usize,
        rows: &[f32],
        phase: Phase,
        update: Update,
    ) -> Result<()> {
        let states = self.states.as_mut().expect("the mixer keeps a state");
        match Arc::make_mut(states).advance(position, rows, phase, &mut self.pages, update) {
            true => Ok(()),
            false => Err(Error::UnknownState { position }),
        }
    }
}

impl Cache for BlockCache {
    fn keys(&self, page: usize) -> Matrix<'_> {
        self.pages[page].keys.view()
    }

    fn values(&self, page: usize) -> Matrix<'_> {
        match self.shape.has_values {
            true => self.pages[page].values.view(),
            false => self.pages[page].keys.view(),
        }
    }
}

impl KvCache {
    /// Creates a cache without pages, for a sequence with these `adapters` and the default salt.
    pub(crate) fn new(memory: &Arc<KvMemory>, adapters: Adapters) -> Self {
        let block = |shape: &PageShape| {
            Mutex::new(BlockCache {
                shape: *shape,
                pages: Vec::new(),
                states: shape.state.map(SequenceState::new).map(Arc::new),
                states_end: usize::MAX,
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
                states: block.states.clone(),
                states_end: block.states_end,
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

    /// Makes positions from `held` to `end` writable: allocates the missing pages, and copies those from that of position
    /// `held` on that are shared. Gives the states of mixers memory, and forgets those after `held`.
    ///
    /// # Errors
    /// If the engine's memory for keys and values is full and other sequences hold all of it.
    pub(crate) fn reserve(&self, held: usize, end: usize) -> Result<()> {
        let have = lock(&self.blocks[0]).pages.len();
        let wanted = end.div_ceil(PAGE).saturating_sub(have);
        let shared_pages = || {
            let block = lock(&self.blocks[0]);
            let pages = block.pages.iter().enumerate().skip(held / PAGE);
            let shared = pages.filter(|(_, page)| is_shared(page));
            shared.map(|(page, _)| page).collect::<SmallVec<[_; 1]>>()
        };
        let missing_bytes = |block: &Mutex<BlockCache>| {
            let block = lock(block);
            block.states.as_ref().map_or(0, |states| {
                states.missing_bytes(Arc::strong_count(states) > 1)
            })
        };
        let states = self.blocks.iter().map(missing_bytes).sum();
        let (reserved, shared) = loop {
            let shared = shared_pages();
            match self.memory.reserve(wanted + shared.len(), states) {
                Ok(reserved) => break (reserved, shared),
                // If only the index shares a page, the page is removed from the index, and no copy is needed.
                Err(full)
                    if !shared
                        .iter()
                        .any(|page| self.memory.unindex(&self.page(*page))) =>
                {
                    return Err(full);
                }
                Err(_) => {}
            }
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let mut block = lock(block);
            for page in &shared {
                Arc::make_mut(&mut block.pages[*page]);
            }
            block
                .pages
                .extend((0..wanted).map(|_| Arc::new(self.memory.page(index))));
            let end = std::mem::replace(&mut block.states_end, usize::MAX);
            if let Some(states) = &mut block.states {
                let states = Arc::make_mut(states);
                states.allocate(|bytes| self.memory.count(bytes));
                states.forget_after(held.min(end));
            }
        }
        drop(reserved);
        Ok(())
    }

    /// Releases the pages that have none of the first `tokens` positions, and forgets the states after them.
    pub(crate) fn truncate(&self, tokens: usize) {
        for block in &self.blocks {
            let mut block = lock(block);
            block.pages.truncate(tokens.div_ceil(PAGE));
            block.states_end = block.states_end.min(tokens);
            if tokens == 0 {
                block.states = block.shape.state.map(SequenceState::new).map(Arc::new);
            }
        }
    }

    /// Returns the last position, up to `tokens`, from which the sequence can continue: the states of all mixers are known
    /// there.
    pub(crate) fn resumable(&self, tokens: usize) -> usize {
        let mut position = tokens;
        loop {
            let of_block = |block: &Mutex<BlockCache>| {
                let block = lock(block);
                let states = block.states.as_ref();
                states.map_or(position, |states| {
                    states.last_known(position, block.states_end, &block.pages)
                })
            };
            let last = self.blocks.iter().map(of_block).min().unwrap_or(position);
            if last == position {
                return position;
            }
            position = last;
        }
    }

    /// Keeps the states at `position`, where the sequence must be [resumable](KvCache::resumable), whatever is computed
    /// next; or goes back to that position and ends that.
    pub(crate) fn mark(&self, position: usize, is_begin: bool) {
        for block in &self.blocks {
            let BlockCache { states, pages, .. } = &mut *lock(block);
            match states {
                Some(states) if is_begin => Arc::make_mut(states).mark(position, pages),
                Some(states) => Arc::make_mut(states).unmark(position),
                None => {}
            }
        }
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
            block.states_end = block.states_end.min(held);
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
            if let Some(states) = &block.states {
                for (index, page) in block.pages.iter().take(tokens.div_ceil(PAGE)).enumerate() {
                    let known = position_of(index, page).filter(|known| *known <= tokens);
                    visit(&number(known))?;
                    visit(bytemuck::cast_slice(&page.checkpoint.values))?;
                }
                states.read(block.states_end, &mut visit)?;
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
            let BlockCache { states, pages, .. } = &mut *block;
            if let Some(states) = states {
                for (index, page) in pages.iter_mut().take(tokens.div_ceil(PAGE)).enumerate() {
                    let checkpoint = &mut Arc::make_mut(page).checkpoint;
                    let mut position = [0; 8];
                    visit(&mut position)?;
                    visit(bytemuck::cast_slice_mut(&mut checkpoint.values))?;
                    let positions = position_from(position)
                        .filter(|position| *position <= tokens)
                        .and_then(|position| position.checked_sub(index * PAGE))
                        .filter(|positions| *positions <= PAGE);
                    checkpoint.positions = positions.unwrap_or(0);
                }
                Arc::make_mut(states).fill(tokens, &mut visit)?;
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
