//! The memory of an engine for keys and values: its limit, and the eviction of pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use triad_kernels::attention::PAGE;
use triad_model::description::{Attention, BlockDescription, ModelDescription, StateSize};

use super::page::{BlockPage, Counted, Home, KvFormat, Page, PageShape};
use super::prefixes::{Prefixes, Tree};
use super::state::{SequenceState, position_of};
use crate::error::{Error, Result};

/// Counts the pages of all sequences of an engine, and looks up prefixes of prompts in the index.
pub(crate) struct KvMemory {
    shapes: Vec<PageShape>,
    /// The maximum bytes of pages.
    budget: usize,
    home: Arc<Home>,
    prefixes: Mutex<Prefixes>,
    looked_up: AtomicU64,
    found: AtomicU64,
}

/// Memory use of an engine's keys and values, and hits of its prefix index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvUse {
    /// Bytes of all pages; a shared page counts once.
    pub bytes: usize,
    /// The maximum bytes of pages.
    pub budget: usize,
    /// Bytes of one page over all blocks of the model.
    pub page_bytes: usize,
    /// Pages in the prefix index.
    pub indexed_pages: usize,
    /// Tokens of prompts that were looked up in the index.
    pub tokens_looked_up: u64,
    /// Looked-up tokens that were found, and not computed again.
    pub tokens_found: u64,
}

impl KvMemory {
    /// Creates the memory for models with this description. The budget is raised to one page, and the
    /// states of one sequence, if it is smaller.
    pub(crate) fn new(description: &ModelDescription, format: KvFormat, budget: usize) -> Self {
        let shape = |block: &BlockDescription| PageShape {
            format,
            kv_heads: block.attention().map_or(0, Attention::stored_heads),
            head_dim: block.attention().map_or(0, |attention| attention.head_dim),
            has_values: block.attention().is_none_or(Attention::stores_values),
            state: block.mixer.state(),
        };
        let shapes: Vec<_> = description.blocks.iter().map(shape).collect();
        let states = description.states().map(SequenceState::bytes_of);
        let least = shapes.iter().map(|shape| shape.bytes()).sum::<usize>() + states.sum::<usize>();
        let budget = budget.max(least);
        Self {
            shapes,
            budget,
            home: Arc::default(),
            prefixes: Mutex::default(),
            looked_up: AtomicU64::new(0),
            found: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of a sequence of `tokens` positions: its pages, and the states of mixers.
    pub(crate) fn bytes_of(
        description: &ModelDescription,
        format: KvFormat,
        tokens: usize,
    ) -> usize {
        let rows = description.kv_bytes_per_token(|head_dim| format.bytes(head_dim)) * PAGE;
        let of_page = rows + checkpoint_bytes(description);
        of_page * tokens.div_ceil(PAGE) + state_bytes(description)
    }

    /// Returns the bytes of `tokens` tokens and their keys and values in a saved session, without padding of pages.
    pub(super) fn saved_bytes(&self, tokens: usize) -> usize {
        let of_token: usize = self.shapes.iter().map(|shape| shape.bytes_of(1)).sum();
        let states = self.shapes.iter().filter_map(|shape| shape.state);
        // A position and a state for each page, and for the latest state.
        let of_state = |size: StateSize| size_of::<u64>() + size.state * size_of::<f32>();
        tokens * (of_token + size_of::<u32>())
            + (tokens.div_ceil(PAGE) + 1) * states.map(of_state).sum::<usize>()
    }

    /// Returns heads and format of each block.
    pub(super) fn shapes(&self) -> &[PageShape] {
        &self.shapes
    }

    /// Returns the number format of all pages.
    pub(crate) fn format(&self) -> KvFormat {
        self.shapes
            .first()
            .map_or(KvFormat::default(), |shape| shape.format)
    }

    fn page_bytes(&self) -> usize {
        self.shapes.iter().map(|shape| shape.bytes()).sum()
    }

    /// Allocates a page of one block.
    pub(super) fn page(&self, block: usize) -> BlockPage {
        BlockPage::new(self.shapes[block], &self.home)
    }

    /// Counts `bytes` of states as used until the result is dropped.
    pub(super) fn count(&self, bytes: usize) -> Counted {
        self.home.count(bytes)
    }

    /// Makes room for `pages` more pages, and `states` bytes of states, by evicting the least recently used pages that no sequence holds. The room is
    /// reserved until the returned guard is dropped.
    ///
    /// # Errors
    /// If sequences hold all other pages.
    pub(super) fn reserve(&self, pages: usize, states: usize) -> Result<MutexGuard<'_, Prefixes>> {
        let mut prefixes = self.prefixes();
        let needed = pages * self.page_bytes() + states;
        while self.home.used() + needed > self.budget {
            if needed == 0 || !prefixes.evict() {
                break;
            }
        }
        let used = self.home.used();
        if needed > 0 && used + needed > self.budget {
            return Err(Error::KvMemoryFull {
                needed,
                free: self.budget.saturating_sub(used),
                budget: self.budget,
            });
        }
        // The memory of free pages counts, too.
        self.home.shrink(self.budget - used.min(self.budget));
        Ok(prefixes)
    }

    /// Returns the length and the pages of the longest prefix of `tokens` in this tree, for a sequence that holds
    /// `held` of them.
    pub(super) fn find(&self, tree: Tree, held: usize, tokens: &[u32]) -> (usize, Vec<Page>) {
        let (length, pages) = self.prefixes().find(tree, tokens);
        let (length, pages) = self.resumable(length, pages);
        self.looked_up
            .fetch_add((tokens.len() - held) as u64, Ordering::Relaxed);
        self.found
            .fetch_add(length.saturating_sub(held) as u64, Ordering::Relaxed);
        (length, pages)
    }

    /// Returns the part of a prefix up to the last position where all its states are known.
    fn resumable(&self, length: usize, mut pages: Vec<Page>) -> (usize, Vec<Page>) {
        let Some(block) = self.shapes.iter().position(|shape| shape.state.is_some()) else {
            return (length, pages);
        };
        let position = |(index, page): (usize, &Page)| {
            let first = position_of(index, &page[block])?;
            let mut states = self.shapes.iter().zip(page);
            let is_known = states.all(|(shape, of_block)| {
                shape.state.is_none() || position_of(index, of_block) == Some(first)
            });
            (is_known && first <= length).then_some(first)
        };
        let length = pages
            .iter()
            .enumerate()
            .rev()
            .find_map(position)
            .unwrap_or(0);
        pages.truncate(length.div_ceil(PAGE));
        (length, pages)
    }

    /// Adds the pages of `tokens`, from the first token on, to this tree of the index.
    pub(super) fn insert(&self, tree: Tree, tokens: &[u32], pages: &[Page]) {
        self.prefixes().insert(tree, tokens, pages);
    }

    /// Removes the prefix that ends in `page` from the index. Returns whether there was one that no other page follows.
    pub(super) fn unindex(&self, page: &Page) -> bool {
        self.prefixes().remove_leaf(page)
    }

    /// Removes every prefix from the index; sequences keep their pages.
    pub(crate) fn clear(&self) {
        *self.prefixes() = Prefixes::default();
        self.home.shrink(0);
    }

    /// Evicts pages that no sequence holds, the least recently used first, until all pages have at most `keep` bytes, and
    /// frees the memory of dropped pages. Returns the bytes that were freed.
    pub(crate) fn release(&self, keep: usize) -> usize {
        let mut prefixes = self.prefixes();
        let held = || self.home.used() + self.home.unused();
        let before = held();
        while self.home.used() > keep && prefixes.evict() {}
        self.home.shrink(0);
        before.saturating_sub(held())
    }

    /// Returns the memory use.
    pub(crate) fn usage(&self) -> KvUse {
        KvUse {
            bytes: self.home.used(),
            budget: self.budget,
            page_bytes: self.page_bytes(),
            indexed_pages: self.prefixes().len(),
            tokens_looked_up: self.looked_up.load(Ordering::Relaxed),
            tokens_found: self.found.load(Ordering::Relaxed),
        }
    }

    fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bytes of the checkpoint of all states in a page.
pub(crate) fn checkpoint_bytes(description: &ModelDescription) -> usize {
    let values: usize = description.states().map(|size| size.state).sum();
    values * size_of::<f32>()
}

/// Returns the bytes of the states of one sequence, whatever its length.
pub(crate) fn state_bytes(description: &ModelDescription) -> usize {
    description.states().map(SequenceState::bytes_of).sum()
}
