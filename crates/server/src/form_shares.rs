//! How many forms of one owner are compiled at once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::owner::Owner;

/// Whose share it is: an owner's with a key; without keys all have one owner, and each address has a share of its own.
type Holder = (Owner, Option<IpAddr>);

/// The shares of all owners.
pub(crate) struct Shares {
    most: usize,
    /// Of owners that have something compiled or wait for it.
    holders: Mutex<HashMap<Holder, Weak<Semaphore>>>,
}

/// A place in an owner's share, for as long as this is there.
pub(crate) struct Share {
    _permit: OwnedSemaphorePermit,
}

impl Shares {
    /// Makes shares of `most` places each.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            holders: Mutex::default(),
        }
    }

    /// Waits until the share of `owner` has a place.
    pub(crate) async fn take(&self, owner: Owner, client: IpAddr) -> Share {
        let is_any = owner == Owner::default();
        let places = self.places((owner, is_any.then_some(client)));
        let permit = places.acquire_owned().await;
        Share {
            _permit: permit.expect("no share is closed"),
        }
    }

    fn places(&self, holder: Holder) -> Arc<Semaphore> {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = holders.get(&holder).and_then(Weak::upgrade) {
            return places;
        }
        holders.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.most));
        holders.insert(holder, Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn try_take(shares: &Shares, owner: Owner, client: u8) -> Option<Share> {
        let mut taken = pin!(shares.take(owner, IpAddr::from([127, 0, 0, client])));
        match taken.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => Some(share),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_owner_with_all_its_places_waits_and_another_one_does_not() {
        let shares = Shares::new(2);
        let (first, second) = (Owner::of_key("first"), Owner::of_key("second"));
        let mut taken: Vec<_> = (0..2)
            .map(|_| try_take(&shares, first, 1).unwrap())
            .collect();
        assert!(try_take(&shares, first, 2).is_none());
        assert!(try_take(&shares, second, 1).is_some());
        taken.pop();
        assert!(try_take(&shares, first, 2).is_some());
    }

    #[test]
    fn without_keys_each_address_has_a_share_and_those_that_left_are_forgotten() {
        let shares = Shares::new(1);
        let first = try_take(&shares, Owner::default(), 1).unwrap();
        assert!(try_take(&shares, Owner::default(), 1).is_none());
        assert!(try_take(&shares, Owner::default(), 2).is_some());
        drop(first);
        let _third = try_take(&shares, Owner::default(), 3).unwrap();
        assert_eq!(shares.holders.lock().unwrap().len(), 1);
    }
}
