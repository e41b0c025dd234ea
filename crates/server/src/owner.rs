//! Whose a request is: prompts, saved sessions and timelines of one key are found by requests with the same key alone.

use sha2::{Digest, Sha256};
use triad_engine::PrefixSalt;

/// The owner of what a request computes and saves. Requests of a server without keys have one owner, and so have those of
/// a server whose keys share their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner(Option<[u8; 32]>);

impl Owner {
    /// Returns the owner that is recognized by `key`.
    pub(crate) fn of_key(key: &str) -> Self {
        let mut hash = Sha256::new_with_prefix(b"triad owner\0");
        hash.update(key);
        Self(Some(hash.finalize().into()))
    }

    /// Returns the salt of prompts that sessions of this owner find.
    pub(crate) fn salt(self) -> PrefixSalt {
        self.0
            .map_or_else(PrefixSalt::default, |digest| PrefixSalt::of(&digest))
    }

    /// Returns what tells this owner from others.
    pub(crate) fn id(self) -> [u8; 32] {
        self.0.unwrap_or_default()
    }

    /// Returns the name of the folder of this owner's files; `None` where all files have one owner.
    pub(crate) fn folder(self) -> Option<String> {
        self.0.map(|digest| {
            digest[..16]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        })
    }
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
}
