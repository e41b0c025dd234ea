//! Pictures that were encoded before, by the hash of their files: a second question about a picture decodes nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use triad_engine::{Engine, Picture, PictureId};

use crate::owner::Owner;

/// Maximum number of pictures.
const MAX: usize = 1024;

/// The pictures of one model. Only the owner of a picture finds it.
#[derive(Default)]
pub(crate) struct KnownPictures(Mutex<Known>);

/// The owner of a picture, and the hash of its file.
type Key = (Owner, [u8; 32]);

#[derive(Default)]
struct Known {
    /// The views of each picture, and the time of their last use.
    views: HashMap<Key, (Arc<[PictureId]>, u64)>,
    now: u64,
}

impl KnownPictures {
    /// Returns the views of a picture of `owner` whose file has this hash, if `engine` still has the rows of all.
    pub(crate) fn find(
        &self,
        engine: &Engine,
        owner: Owner,
        hash: [u8; 32],
    ) -> Option<Vec<Picture>> {
        let ids = {
            let mut known = self.lock();
            known.now += 1;
            let now = known.now;
            let (ids, used) = known.views.get_mut(&(owner, hash))?;
            *used = now;
            Arc::clone(ids)
        };
        let views = ids.iter();
        views
            .map(|id| engine.known_picture(*id, owner.salt()))
            .collect()
    }

    /// Keeps which views the picture has. Forgets the one that was used least recently, if there are too many.
    pub(crate) fn keep(&self, owner: Owner, hash: [u8; 32], views: &[Picture]) {
        let views = views.iter().map(Picture::id).collect();
        let mut known = self.lock();
        known.now += 1;
        let now = known.now;
        known.views.insert((owner, hash), (views, now));
        if known.views.len() > MAX {
            let oldest = known.views.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.map(|key| known.views.remove(&key));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
