//! Cancels a run from another thread.

use std::sync::Arc;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// A flag that its clones share. Once it is set, a running prefill or decode stops within one block.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    /// The flags of its ancestors, if it is a [child](Self::child).
    parents: Vec<Arc<AtomicBool>>,
    /// The number of checks until the flag sets itself.
    #[cfg(any(test, feature = "testing"))]
    checks: Option<Arc<AtomicUsize>>,
}

impl Cancel {
    /// Creates a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a flag that sets itself when it is checked after `checks` earlier checks, for tests that stop at every
    /// place where a run can stop.
    #[cfg(any(test, feature = "testing"))]
    pub fn after(checks: usize) -> Self {
        Self {
            checks: Some(Arc::new(AtomicUsize::new(checks))),
            ..Self::default()
        }
    }

    /// Creates a flag that is also set when this one is; setting it does not set this one.
    #[must_use]
    pub fn child(&self) -> Self {
        let parents = self
            .parents
            .iter()
            .chain([&self.flag])
            .map(Arc::clone)
            .collect();
        Self {
            flag: Arc::default(),
            parents,
            ..self.clone()
        }
    }

    /// Sets the flag: every run with it stops.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Clears the flag, so that the next run is not cancelled. Does not clear the flag of a parent.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::Relaxed);
    }

    /// Returns whether this flag or that of an ancestor is set.
    pub fn is_cancelled(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if let Some(checks) = &self.checks {
            let left = checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            if left.is_err() {
                self.cancel();
            }
        }
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        is_set(&self.flag) || self.parents.iter().any(is_set)
    }

    /// Checks that the flag is not set.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if it is set.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
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
