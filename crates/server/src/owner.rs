//! Owners and tenants of requests: isolation of prompts, and fair shares.
//!
//! An [`Owner`] decides which cached prompts, saved sessions and timelines a request can access: only those of the same
//! owner. A [`Tenant`] is the party whose use of the server is limited, so that one client can't block others. The two
//! differ if keys share prompts, and if there are no keys.

use std::net::{IpAddr, Ipv6Addr};

use sha2::{Digest, Sha256};
use triad_engine::PrefixSalt;

/// The owner of what a request computes and saves. A server without keys has one owner, and so has a server whose keys
/// share prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner(Option<[u8; 32]>);

impl Owner {
    /// Returns the owner with `key`.
    pub(crate) fn of_key(key: &str) -> Self {
        let mut hash = Sha256::new_with_prefix(b"triad owner\0");
        hash.update(key);
        Self(Some(hash.finalize().into()))
    }

    /// Returns the salt that separates this owner's cached prompts from those of other owners.
    pub(crate) fn salt(self) -> PrefixSalt {
        self.0.map_or_else(PrefixSalt::default, |digest| {
            PrefixSalt::from_secret(&digest)
        })
    }

    /// Returns the owner's id.
    pub(crate) fn id(self) -> [u8; 32] {
        self.0.unwrap_or_default()
    }

    /// Returns the name of the folder of this owner's files, or `None` if the server has only one owner.
    pub(crate) fn folder(self) -> Option<String> {
        self.0.map(|digest| {
            digest[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
    }
}

/// The party whose use of the server is limited: an API key, or an address if a request needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    Key([u8; 32]),
    Address(IpAddr),
}

impl Tenant {
    /// Returns the tenant with `key`.
    pub(crate) fn of_key(key: &str) -> Self {
        Self::Key(Sha256::digest(key).into())
    }

    /// Returns the tenant of requests without a key from `address`. A /64 of IPv6 addresses counts as one, since a host
    /// usually has a whole /64.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into()
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Returns how much of `total` a tenant may use: half of what the others leave. However many tenants use their maximum,
/// something is left for one more.
pub(crate) fn share(total: usize, others: usize) -> usize {
    total.saturating_sub(others) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_an_owner_of_its_own_and_no_name_holds_it() {
        let owners = [
            Owner::default(),
            Owner::of_key("first"),
            Owner::of_key("second"),
            Owner::of_key(""),
        ];
        for (index, owner) in owners.iter().enumerate() {
            for other in &owners[..index] {
                assert!(owner.salt() != other.salt() && owner.folder() != other.folder());
            }
        }
        assert_eq!(Owner::of_key("first"), owners[1]);
        assert_eq!(owners[1].folder().map(|name| name.len()), Some(32));
        assert!(
            !owners[1]
                .folder()
                .is_some_and(|name| name.contains("first"))
        );
    }

    #[test]
    fn addresses_of_one_host_are_one_tenant() {
        let of = |text: &str| Tenant::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_ne!(Tenant::of_key("a"), Tenant::of_key("b"));
    }

    #[test]
    fn tenants_that_take_all_they_may_leave_a_share_for_another() {
        let mut taken = 0;
        for _ in 0..6 {
            let share = share(256, taken);
            assert!(share > 0, "nothing is left of {taken}");
            taken += share;
        }
        assert_eq!((share(256, 0), share(256, 128), share(1, 2)), (128, 64, 0));
    }
}
