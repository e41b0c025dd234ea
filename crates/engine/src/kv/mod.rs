//! Keys and values of what sequences have seen, in pages that sequences share.
//!
//! A [`KvCache`] is one sequence's: for each block of the model a list of pages ([`page`]) of as many positions as
//! attention takes at once. All pages of an engine are counted by one [`KvMemory`], which bounds their bytes and keeps an
//! index of [`prefixes`]: what one sequence computed is found by every other that begins with the same tokens and
//! has the same [salt](PrefixSalt). A page that several hold is copied before it is written to. [`save`] writes a sequence to a file and restores it.

mod cache;
mod memory;
mod page;
mod prefixes;
mod salt;
pub(crate) mod save;

pub(crate) use cache::{BlockCache, KvCache};
pub(crate) use memory::KvMemory;
pub use memory::KvUse;
pub use page::KvFormat;
pub use salt::PrefixSalt;
