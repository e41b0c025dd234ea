//! The KV cache, in pages that sequences share.
//!
//! A [`KvCache`] belongs to one sequence: for each block of the model, it has a list of pages ([`page`]). A page has as
//! many positions as attention processes at once. One [`KvMemory`] counts all pages of an engine, limits their bytes
//! and has an index of [`prefixes`]: a sequence finds the pages of every other sequence that begins with the same
//! tokens and has the same [salt](PrefixSalt). Blocks whose mixer keeps a [`state`] have no rows, but states. A shared page is copied before it is written to. [`save`] writes a
//! sequence to a file and restores it.

mod cache;
mod memory;
mod page;
mod prefixes;
mod salt;
pub(crate) mod save;
mod state;

pub use cache::{BlockCache, KvCache};
pub use memory::KvUse;
pub(crate) use memory::{KvMemory, checkpoint_bytes, state_bytes};
pub use page::KvFormat;
pub use salt::PrefixSalt;
pub use state::{MAX_IN_FLIGHT, Update};
