//! LoRA adapters of a session, and their scales.
//!
//! The outputs of adapters are computed separately from those of the model's own weights, in whatever format these are,
//! and added to them. So sequences with different adapters can run in one batch
//! ([`forward::adapters`](crate::forward)).

use std::sync::Arc;

use sha2::{Digest, Sha256};
pub use triad_model::adapter::{Adapter, LowRank};
use triad_model::description::ModelDescription;

use crate::error::{Error, Result};

/// An adapter and its scale.
#[derive(Clone, Debug)]
pub struct ScaledAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// The factor on its output; 1 as it was trained.
    pub scale: f32,
}

/// Adapters whose outputs are added, in a canonical order: the same adapters compute the same bits, in whatever order
/// they are listed. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// Sorted by fingerprint and scale; none has a scale of zero.
    list: Arc<[ScaledAdapter]>,
    key: AdaptersKey,
}

/// The identity of adapters with their scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AdaptersKey(Option<[u8; 32]>);

impl Adapters {
    /// Combines these adapters. Leaves out adapters with a scale of zero.
    ///
    /// # Errors
    /// If a scale is not finite.
    pub fn new(adapters: impl IntoIterator<Item = ScaledAdapter>) -> Result<Self> {
        let mut list: Vec<_> = adapters.into_iter().collect();
        if let Some(ScaledAdapter { scale, .. }) = list.iter().find(|one| !one.scale.is_finite()) {
            return Err(Error::Option {
                name: "the scale of an adapter",
                value: scale.to_string(),
                expected: "a finite number",
            });
        }
        list.retain(|one| one.scale != 0.0);
        list.sort_by_key(|one| (*one.adapter.fingerprint(), one.scale.to_bits()));
        let mut hash = Sha256::new();
        for ScaledAdapter { adapter, scale } in &list {
            hash.update(adapter.fingerprint());
            hash.update(scale.to_le_bytes());
        }
        let key = (!list.is_empty()).then(|| hash.finalize().into());
        Ok(Self {
            list: list.into(),
            key: AdaptersKey(key),
        })
    }

    /// Returns whether there are no adapters.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns an iterator over the adapters.
    pub fn iter(&self) -> impl Iterator<Item = &ScaledAdapter> {
        self.list.iter()
    }

    pub(crate) fn key(&self) -> AdaptersKey {
        self.key
    }

    /// Checks that all adapters were opened for this model.
    ///
    /// # Errors
    /// If an adapter was opened for another model.
    pub(crate) fn check(&self, description: &ModelDescription) -> Result<()> {
        let other = self
            .list
            .iter()
            .find(|one| one.adapter.description() != description);
        match other {
            Some(one) => Err(Error::AdapterOfAnotherModel {
                path: one.adapter.path().to_owned(),
            }),
            None => Ok(()),
        }
    }
}

impl PartialEq for Adapters {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl AdaptersKey {
    /// Returns the key as text; `None` if there are no adapters.
    pub(crate) fn text(self) -> Option<String> {
        self.0.map(|bytes| crate::hexadecimal(&bytes))
    }
}
