//! The memory limit of all request bodies, and threads for large bodies.
//!
//! A tenant may use at most half of what the other tenants leave. A tenant that sends much, or slowly, therefore leaves
//! memory for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio::runtime::Handle;

use crate::error::{ApiError, ApiResult};
use crate::owner::{Tenant, share};

/// The memory limit of request bodies, and the threads for large ones.
pub(crate) struct Bodies {
    bytes: usize,
    held: Arc<Mutex<HashMap<Tenant, usize>>>,
    pub(crate) threads: Handle,
}

impl Bodies {
    /// Creates a limit of `bytes` for all bodies together. Large bodies are parsed by `threads`.
    pub(crate) fn new(bytes: usize, threads: Handle) -> Self {
        Self {
            bytes,
            held: Arc::default(),
            threads,
        }
    }

    /// Returns an empty share for a body of `tenant`.
    pub(crate) fn share(&self, tenant: Tenant) -> Share {
        Share {
            total: self.bytes,
            held: Arc::clone(&self.held),
            tenant,
            bytes: 0,
        }
    }
}

/// The memory of one body, or of what a request adds to it. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct Share {
    total: usize,
    held: Arc<Mutex<HashMap<Tenant, usize>>>,
    tenant: Tenant,
    bytes: usize,
}

impl Share {
    /// Adds `bytes` to the share, even beyond the tenant's limit: its next requests are refused then.
    pub(crate) fn hold(&mut self, bytes: usize) {
        *lock(&self.held).entry(self.tenant).or_insert(0) += bytes;
        self.bytes += bytes;
    }

    /// Adds `bytes` to the share.
    ///
    /// # Errors
    /// If the tenant's limit is exceeded, or would be without other requests.
    pub(crate) fn grow(&mut self, bytes: usize) -> ApiResult<()> {
        let most = share(self.total, 0);
        if bytes > most {
            let message =
                format!("the request takes {bytes} bytes of memory, expected at most {most}");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(ApiError::refused(status, "body_too_large", message));
        }
        let mut held = lock(&self.held);
        let all: usize = held.values().sum();
        let own = held.get(&self.tenant).copied().unwrap_or(0);
        let wanted = own.saturating_add(bytes);
        if wanted > share(self.total, all - own) {
            drop(held);
            let message = "the memory for request bodies is in use; one client may use at most half of what other clients \
                           leave: try again later";
            return Err(ApiError::unavailable(message).with_code("bodies_full"));
        }
        held.insert(self.tenant, wanted);
        drop(held);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(own) = held.get_mut(&self.tenant) {
            *own -= self.bytes;
            if *own == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

fn lock(held: &Mutex<HashMap<Tenant, usize>>) -> MutexGuard<'_, HashMap<Tenant, usize>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(bytes: usize) -> (Bodies, tokio::runtime::Runtime) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        (Bodies::new(bytes, runtime.handle().clone()), runtime)
    }

    #[test]
    fn bodies_of_a_tenant_are_counted_together_and_given_back() {
        let (bodies, _runtime) = bodies(8);
        let tenant = Tenant::of_key("a");
        let (mut one, mut other) = (bodies.share(tenant), bodies.share(tenant));
        one.grow(3).unwrap();
        one.grow(1).unwrap();
        assert_eq!(other.grow(1).unwrap_err().detail.code, Some("bodies_full"));
        // This one never fits.
        let error = other.grow(5).unwrap_err();
        assert_eq!(error.detail.code, Some("body_too_large"));
        drop(one);
        other.grow(4).unwrap();
        drop(other);
        assert!(lock(&bodies.held).is_empty());
    }

    #[test]
    fn a_tenant_leaves_memory_for_the_bodies_of_others() {
        let (bodies, _runtime) = bodies(64);
        let mut shares = Vec::new();
        for (key, most) in [("a", 32), ("b", 16), ("c", 8)] {
            let mut share = bodies.share(Tenant::of_key(key));
            assert!(
                share.grow(most + 1).is_err(),
                "{key} takes more than its share"
            );
            share.grow(most).unwrap();
            shares.push(share);
        }
    }
}
