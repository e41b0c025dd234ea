//! Compiled grammars that are kept for later requests, in bounded memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::constraint::Grammar;
use crate::source::GrammarSource;

/// Maximum number of grammars.
const MAX_GRAMMARS: usize = 64;
/// Maximum memory of all grammars in bytes. A schema of typical length takes less than one MiB, the largest ones 80.
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

    /// Keeps a grammar of `bytes` for `owner`. Beyond a bound, the owner that has most of it loses its oldest grammars: no
    /// owner sees from the times of its own grammars that others compile many.
    pub(crate) fn add(&self, owner: [u8; 32], bytes: usize, grammar: Arc<Grammar>) {
        let mut entries = self.entries();
        entries.push((owner, bytes, grammar));
        drop_beyond(&mut entries, MAX_GRAMMARS, |_| 1);
        drop_beyond(&mut entries, MAX_BYTES, |entry| entry.1);
    }

    /// Drops all grammars.
    pub(crate) fn clear(&self) {
        self.entries().clear();
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops entries until their sizes add up to at most `most`.
fn drop_beyond(entries: &mut Vec<Entry>, most: usize, size: impl Fn(&Entry) -> usize) {
    loop {
        let mut sums = BTreeMap::new();
        for entry in &*entries {
            *sums.entry(entry.0).or_insert(0_usize) += size(entry);
        }
        let heaviest = sums.iter().max_by_key(|(_, sum)| **sum);
        let Some((&owner, _)) = heaviest.filter(|_| sums.values().sum::<usize>() > most) else {
            return;
        };
        let oldest = entries.iter().position(|entry| entry.0 == owner);
        entries.remove(oldest.expect("the owner has an entry"));
    }
}
