//! LoRA adapters of a session: which ones, and how much of each.
//!
//! An adapter's products are computed beside those of the model's own weights, whatever the format of these, and added to
//! their outputs, so that sequences with different adapters can be computed together
//! ([`forward::adapters`](crate::forward)).

use std::sync::Arc;

use sha2::{Digest, Sha256};
pub use triad_model::adapter::{Adapter, LowRank};
use triad_model::description::ModelDescription;

use crate::error::{Error, Result};

/// An adapter, and how much of it.
#[derive(Clone, Debug)]
pub struct ScaledAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// Factor on what it adds; 1 as it was trained.
    pub scale: f32,
}

/// Adapters whose products add up, in an order of their own: the same ones compute the same bits, however they are listed.
/// Copies share them.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// By fingerprint and scale; none with a scale of zero.
    list: Arc<[ScaledAdapter]>,
    key: AdaptersKey,
}

/// What adapters, with their scales, are recognized by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AdaptersKey(Option<[u8; 32]>);

impl Adapters {
    /// These adapters together. One with a scale of zero is left out.
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &ScaledAdapter> {
        self.list.iter()
    }

    pub(crate) fn key(&self) -> AdaptersKey {
        self.key
    }

    /// # Errors
    /// If one of them was opened for another model.
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
    /// The key as text; `None` where there is no adapter.
    pub(crate) fn text(self) -> Option<String> {
        self.0.map(|bytes| crate::hexadecimal(&bytes))
    }
}
