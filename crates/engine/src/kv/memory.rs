//! The memory of an engine for keys and values: its limit, and the eviction of pages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use triad_kernels::attention::PAGE;
use triad_model::description::{BlockDescription, ModelDescription};

use super::page::{BlockPage, Home, KvFormat, Page, PageShape};
use super::prefixes::{Prefixes, Tree};
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
    /// Creates the memory for models with this description. The budget is raised to one page if it is smaller.
    pub(crate) fn new(description: &ModelDescription, format: KvFormat, budget: usize) -> Self {
        let shape = |block: &BlockDescription| PageShape {
            format,
            kv_heads: block.attention.kv_heads,
            head_dim: block.attention.head_dim,
        };
        let shapes: Vec<_> = description.blocks.iter().map(shape).collect();
        let budget = budget.max(shapes.iter().map(|shape| shape.bytes()).sum());
        Self {
            shapes,
            budget,
            home: Arc::default(),
            prefixes: Mutex::default(),
            looked_up: AtomicU64::new(0),
            found: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of the pages that hold `tokens` positions.
    pub(crate) fn bytes_of(
        description: &ModelDescription,
        format: KvFormat,
        tokens: usize,
    ) -> usize {
        let of_page = description.kv_bytes_per_token(|head_dim| format.bytes(head_dim)) * PAGE;
        of_page * tokens.div_ceil(PAGE)
    }

    /// Returns the bytes of `tokens` tokens and their keys and values in a saved session, without padding of pages.
    pub(super) fn saved_bytes(&self, tokens: usize) -> usize {
        let of_token: usize = self.shapes.iter().map(|shape| shape.bytes() / PAGE).sum();
        tokens * (of_token + size_of::<u32>())
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

    /// Makes room for `pages` more pages by evicting the least recently used pages that no sequence holds. The room is
    /// reserved until the returned guard is dropped.
    ///
    /// # Errors
    /// If sequences hold all other pages.
    pub(super) fn reserve(&self, pages: usize) -> Result<MutexGuard<'_, Prefixes>> {
        let mut prefixes = self.prefixes();
        let needed = pages * self.page_bytes();
        while self.home.used() + needed > self.budget {
            if pages == 0 || !prefixes.evict() {
                break;
            }
        }
        let used = self.home.used();
        if pages > 0 && used + needed > self.budget {
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
        self.looked_up
            .fetch_add((tokens.len() - held) as u64, Ordering::Relaxed);
        self.found
            .fetch_add(length.saturating_sub(held) as u64, Ordering::Relaxed);
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
