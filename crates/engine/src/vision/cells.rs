//! The order in which an encoder computes patches: cell by cell, window by window.

use std::ops::Range;

use triad_model::vision::VisionDescription;

/// The patches of a view in the order of their rows.
pub(super) struct Cells {
    /// Row and column of each cell.
    pub(super) cells: Vec<[usize; 2]>,
    /// Cells of each window; one for all if there are no windows.
    pub(super) windows: Vec<Range<usize>>,
    /// Patches per side of a cell.
    merge: usize,
}

impl Cells {
    /// Returns the cells of a view with `high` rows of `wide` cells.
    pub(super) fn new(description: &VisionDescription, [high, wide]: [usize; 2]) -> Self {
        let side = description.windows.as_ref().map(|windows| windows.side);
        let [side_y, side_x] = [side.unwrap_or(high), side.unwrap_or(wide)];
        let (mut cells, mut windows) = (Vec::with_capacity(high * wide), Vec::new());
        for top in (0..high).step_by(side_y) {
            for left in (0..wide).step_by(side_x) {
                let first = cells.len();
                let rows = top..(top + side_y).min(high);
                for y in rows {
                    cells.extend((left..(left + side_x).min(wide)).map(|x| [y, x]));
                }
                windows.push(first..cells.len());
            }
        }
        Self {
            cells,
            windows,
            merge: description.projector.merge,
        }
    }

    /// Returns row and column of each patch.
    pub(super) fn patches(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let merge = self.merge;
        self.cells.iter().flat_map(move |[y, x]| {
            let inner = (0..merge).flat_map(move |dy| (0..merge).map(move |dx| [dy, dx]));
            inner.map(move |[dy, dx]| [y * merge + dy, x * merge + dx])
        })
    }

    /// Returns the number of patches.
    pub(super) fn count(&self) -> usize {
        self.cells.len() * self.merge * self.merge
    }

    /// Returns the patches of each window.
    pub(super) fn windows_of_patches(&self) -> Vec<Range<usize>> {
        let of_cell = self.merge * self.merge;
        let patches = |cells: &Range<usize>| cells.start * of_cell..cells.end * of_cell;
        self.windows.iter().map(patches).collect()
    }
}
