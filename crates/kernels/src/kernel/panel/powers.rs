//! The width of panels, and sums of powers of two.

/// Columns per panel, as in the widest tile of a kernel.
pub(crate) const PANEL: usize = 64;

/// The maximum and the sum of powers of two.
pub(crate) struct Powers {
    /// The largest visible exponent, or the smallest finite number if that is larger.
    pub of_visible: f32,
    /// The maximum of that and of `before`; the powers are relative to it. Neither is NaN.
    pub largest: f32,
    /// The sum of the powers.
    pub sum: f32,
}
