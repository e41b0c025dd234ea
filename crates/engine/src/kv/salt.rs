//! Separates the prefixes of clients that must not find each other's.

use sha2::{Digest, Sha256};

/// A salt of the prefix index: a [`Session`](crate::Session) finds what sessions with the same salt have
/// [shared](crate::Session::share), and nothing of other sessions. Neither the result nor the time of a lookup reveals
/// which prompts sessions with other salts had.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixSalt(Option<[u8; 32]>);

impl PrefixSalt {
    /// Returns the salt of a client that is identified by `secret`, such as its key. The salt does not reveal the
    /// secret.
    pub fn from_secret(secret: &[u8]) -> Self {
        let mut hash = Sha256::new_with_prefix(b"triad prefix salt\0");
        hash.update(secret);
        Self(Some(hash.finalize().into()))
    }
}

impl std::fmt::Debug for PrefixSalt {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "PrefixSalt(..)"
        } else {
            "PrefixSalt(none)"
        })
    }
}
