//! The numbers that a field of a profile may have.

/// The allowed range of a field.
#[derive(Clone, Copy)]
pub(super) enum Range {
    /// Above zero.
    Positive,
    /// Zero or above.
    NotNegative,
    /// One or above.
    Factor,
}
