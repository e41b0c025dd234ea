//! The merge loop of every byte-pair encoding: merges the best pair of neighbours until none is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::limit::{Limit, STEPS};

/// Id of a symbol that no merge has produced.
pub(super) const NO_ID: u32 = u32::MAX;
const NO_SYMBOL: u32 = u32::MAX;

/// A run of bytes `start..end` of the word that is being encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Its token, or [`NO_ID`].
    pub(super) id: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    previous: u32,
    next: u32,
}

impl Symbol {
    /// Returns whether the symbol is nonempty; one that its left neighbour absorbed is empty.
    fn is_alive(&self) -> bool {
        self.start < self.end
    }
}

/// The result of merging two neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    /// The smallest priority is merged first; among equals, the leftmost.
    pub(super) priority: u32,
    /// The resulting token.
    pub(super) id: u32,
}

/// Ordered by priority, then position; the other fields show whether the pair still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    right: u32,
    bytes: u32,
    id: u32,
}

/// The symbols of one word; the memory is reused for the next word.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Removes the last word.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.candidates.clear();
    }

    /// Appends a symbol to the word; `start..end` must not be empty.
    pub(super) fn push(&mut self, id: u32, start: u32, end: u32) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let previous = index.checked_sub(1).unwrap_or(NO_SYMBOL);
        self.symbols.push(Symbol {
            id,
            start,
            end,
            previous,
            next: NO_SYMBOL,
        });
    }

    /// Merges neighbours for which `find` returns a merge, unless `limit` stops it. Returns the remaining symbols,
    /// first to last.
    pub(super) fn merge(
        &mut self,
        find: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
        limit: &Limit,
    ) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, &find);
        }
        let mut steps = 0;
        while let Some(Reverse(candidate)) = self.candidates.pop() {
            steps += 1;
            if steps % STEPS == 0 && limit.stops() {
                break;
            }
            let right = self.symbols[candidate.right as usize];
            let left = &mut self.symbols[candidate.left as usize];
            // A candidate is stale if one of its sides has since merged with another symbol.
            if !left.is_alive() || !right.is_alive() || right.end - left.start != candidate.bytes {
                continue;
            }
            left.id = candidate.id;
            left.end = right.end;
            left.next = right.next;
            let previous = left.previous;
            self.symbols[candidate.right as usize].end = right.start;
            if right.next != NO_SYMBOL {
                self.symbols[right.next as usize].previous = candidate.left;
                self.consider(candidate.left, right.next, &find);
            }
            if previous != NO_SYMBOL {
                self.consider(previous, candidate.left, &find);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.is_alive())
    }

    fn consider(
        &mut self,
        left: u32,
        right: u32,
        find: &impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) {
        let (first, second) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Merge { priority, id }) = find(first, second) {
            let bytes = second.end - first.start;
            self.candidates.push(Reverse(Candidate {
                priority,
                left,
                right,
                bytes,
                id,
            }));
        }
    }
}
