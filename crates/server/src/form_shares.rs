//! Limits per tenant: of concurrent work, and of memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::owner::Tenant;

/// The slots of all tenants.
pub(crate) struct Shares {
    most: usize,
    /// The tenants that have a slot or wait for one.
    holders: Mutex<HashMap<Tenant, Weak<Semaphore>>>,
}

/// Slots of a tenant. Dropping it frees them.
pub(crate) struct Share {
    permit: OwnedSemaphorePermit,
}

impl Share {
    /// Frees all but `count` slots.
    pub(crate) fn keep(&mut self, count: usize) {
        let rest = self.permit.num_permits().saturating_sub(count);
        drop(self.permit.split(rest));
    }
}

impl Shares {
    /// Creates a limit of `most` slots per tenant.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            holders: Mutex::default(),
        }
    }

    /// Waits for a free slot of `tenant`.
    pub(crate) async fn take(&self, tenant: Tenant) -> Share {
        self.take_many(tenant, 1).await
    }

    /// Waits for `count` free slots of `tenant`, at most all of them.
    pub(crate) async fn take_many(&self, tenant: Tenant, count: usize) -> Share {
        let places = self.places(tenant);
        let count = count.min(self.most).try_into().unwrap_or(u32::MAX);
        let permit = places.acquire_many_owned(count).await;
        Share {
            permit: permit.expect("a tenant's semaphore is never closed"),
        }
    }

    fn places(&self, holder: Tenant) -> Arc<Semaphore> {
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

    fn try_take(shares: &Shares, tenant: Tenant) -> Option<Share> {
        let mut taken = pin!(shares.take(tenant));
        match taken.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => Some(share),
            Poll::Pending => None,
        }
    }

    fn address(last: u8) -> Tenant {
        Tenant::of_address([127, 0, 0, last].into())
    }

    #[test]
    fn a_tenant_with_all_its_places_waits_and_another_one_does_not() {
        let shares = Shares::new(2);
        let (first, second) = (Tenant::of_key("first"), Tenant::of_key("second"));
        let mut taken: Vec<_> = (0..2).map(|_| try_take(&shares, first).unwrap()).collect();
        assert!(try_take(&shares, first).is_none());
        assert!(try_take(&shares, second).is_some());
        taken.pop();
        assert!(try_take(&shares, first).is_some());
    }

    #[test]
    fn shares_of_tenants_that_left_are_forgotten() {
        let shares = Shares::new(1);
        let first = try_take(&shares, address(1)).unwrap();
        assert!(try_take(&shares, address(1)).is_none());
        assert!(try_take(&shares, address(2)).is_some());
        drop(first);
        let _third = try_take(&shares, address(3)).unwrap();
        assert_eq!(shares.holders.lock().unwrap().len(), 1);
    }
}
