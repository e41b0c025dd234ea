//! Stopping a run from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// A flag that its clones share: once set, a running prefill or decode stops within one block.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    /// Of the one that it is a [child](Self::child) of, and of that one's parents.
    parents: Vec<Arc<AtomicBool>>,
}

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that is set when this one is; setting it leaves this one as it is.
    #[must_use]
    pub fn child(&self) -> Self {
        let parents = self.parents.iter().chain([&self.flag]).map(Arc::clone).collect();
        Self { flag: Arc::default(), parents }
    }

    /// Asks every run with this flag to stop.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Clears the flag, so that the next run goes through; not that of a parent.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::Relaxed);
    }

    /// True once cancelled.
    pub fn is_cancelled(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        is_set(&self.flag) || self.parents.iter().any(is_set)
    }

    /// # Errors
    /// [`Error::Cancelled`] once cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_cancelled_with_its_parents_and_not_the_other_way_round() {
        let parent = Cancel::new();
        let (child, other) = (parent.child(), parent.child());
        child.cancel();
        assert!(child.is_cancelled() && !parent.is_cancelled() && !other.is_cancelled());
        let grandchild = other.child();
        parent.cancel();
        assert!(other.is_cancelled() && grandchild.is_cancelled());
        parent.reset();
        assert!(!grandchild.is_cancelled() && child.is_cancelled());
    }
}
