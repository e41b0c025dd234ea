//! Limits of untrusted numbers.

/// Maximum patches of a view.
pub(crate) const PATCHES: usize = 1 << 16;
/// Maximum pixels per side of a patch.
pub(crate) const PATCH: usize = 256;
/// Maximum patches per side of a cell.
pub(crate) const MERGE: usize = 16;
/// Maximum width of anything.
pub(crate) const WIDTH: usize = 1 << 17;
/// Maximum number of blocks.
pub(crate) const BLOCKS: usize = 1 << 10;
/// Maximum rows of a view that read each other, where views have many sizes: the most that a setting of Gemma 4 allows.
pub(crate) const TOGETHER: usize = 1120;
