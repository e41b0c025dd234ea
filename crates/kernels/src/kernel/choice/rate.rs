//! How fast a kernel was.

/// The speed of a kernel in one setting.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Number of concurrent threads.
    pub threads: usize,
    /// Whether weights come from memory.
    pub from_memory: bool,
    /// Operations per second; a product and its addition count two.
    pub operations_per_second: f64,
}

/// Rows of a prefill's products.
pub(super) const MANY: usize = 96;

/// Rounds per turn, and turns; the fastest of all rounds counts.
pub(super) const ROUNDS: usize = 3;
