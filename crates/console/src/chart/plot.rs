//! The area of a chart that contains the data.

use super::layout::Area;
use super::ruler::Ruler;

/// The data area of a chart and the rulers along its edges.
pub(super) struct Plot {
    pub(super) area: Area,
    /// Pixels between the ends of the horizontal axis and the ends of its ruler.
    pub(super) inset: f64,
    pub(super) x: Ruler,
    pub(super) y: Ruler,
}

impl Plot {
    /// Returns the pixel of a place on the horizontal axis.
    pub(super) fn across(&self, place: f64) -> f64 {
        self.area.left + self.inset + place * (self.area.width() - 2.0 * self.inset)
    }

    /// Returns the pixel of a place on the vertical axis.
    pub(super) fn up(&self, place: f64) -> f64 {
        self.area.bottom - place * self.area.height()
    }

    /// Returns the pixels of the point (x, y); `None` if it has no place in the plot.
    pub(super) fn point(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.across(self.x.place(x)?), self.up(self.y.place(y)?)))
    }
}
