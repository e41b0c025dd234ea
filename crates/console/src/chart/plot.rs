//! Where the data of a chart is drawn.

use super::layout::Area;
use super::ruler::Ruler;

/// The part of a chart where the data is, and the rulers along its edges.
pub(super) struct Plot {
    pub(super) area: Area,
    /// Pixels between the ends of the horizontal axis and those of its ruler.
    pub(super) inset: f64,
    pub(super) x: Ruler,
    pub(super) y: Ruler,
}

impl Plot {
    /// Pixel of a place on the horizontal axis.
    pub(super) fn across(&self, place: f64) -> f64 {
        self.area.left + self.inset + place * (self.area.width() - 2.0 * self.inset)
    }

    /// Pixel of a place on the vertical axis.
    pub(super) fn up(&self, place: f64) -> f64 {
        self.area.bottom - place * self.area.height()
    }

    /// Pixels of the point x, y, if it has a place here.
    pub(super) fn point(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.across(self.x.place(x)?), self.up(self.y.place(y)?)))
    }
}
