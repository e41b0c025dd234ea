//! Compiled grammars that are kept for later requests, in bounded memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::constraint::Grammar;
use crate::source::GrammarSource;

/// Maximum number of grammars of an owner.
const MAX_GRAMMARS: usize = 64;
/// Maximum memory of the grammars of an owner in bytes. A schema of typical length takes less than one MiB, the largest
/// ones 80, which are not kept.
const MAX_BYTES: usize = 64 << 20;

/// A grammar with its owner and its memory in bytes.
type Entry = ([u8; 32], usize, Arc<Grammar>);

/// The grammars of all owners. The latest one is last.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<Entry>>);

impl Kept {
    /// Returns the grammar of `source` that `owner` keeps.
    pub(crate) fn find(&self, owner: [u8; 32], source: &GrammarSource) -> Option<Arc<Grammar>> {
        let mut entries = self.entries();
        let is_it = |(of, _, grammar): &Entry| *of == owner && grammar.source() == source;
        let place = entries.iter().position(is_it)?;
        let entry = entries.remove(place);
        let grammar = Arc::clone(&entry.2);
        entries.push(entry);
        Some(grammar)
    }

    /// Keeps a grammar of `bytes` for `owner`, which loses its oldest ones beyond a bound. Each owner has bounds of its own,
    /// so that the times of its grammars do not tell what others compile.
    pub(crate) fn add(&self, owner: [u8; 32], bytes: usize, grammar: Arc<Grammar>) {
        if bytes > MAX_BYTES {
            return;
        }
        let mut entries = self.entries();
        entries.push((owner, bytes, grammar));
        loop {
            let own = entries.iter().filter(|entry| entry.0 == owner);
            let (count, bytes) = own.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.1));
            if count <= MAX_GRAMMARS && bytes <= MAX_BYTES {
                return;
            }
            let oldest = entries.iter().position(|entry| entry.0 == owner);
            entries.remove(oldest.expect("the owner has an entry"));
        }
    }

    /// Drops all grammars.
    pub(crate) fn clear(&self) {
        self.entries().clear();
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
