//! The grid of tiles whose aspect ratio is closest to that of a picture, for InternVL and LFM2-VL.

/// Returns the columns and rows of a grid with `fewest` to `most` tiles of `tile` pixels for a picture of
/// `(width, height)`. Of grids with the same aspect ratio, the larger is taken if the picture has more than half of its
/// pixels.
pub(crate) fn closest(
    (width, height): (u32, u32),
    tile: (u32, u32),
    (fewest, most): (u32, u32),
) -> (u32, u32) {
    let aspect = f64::from(width) / f64::from(height);
    let area = f64::from(width) * f64::from(height);
    let pixels = f64::from(tile.0) * f64::from(tile.1);
    let (mut best, mut least) = ((1, 1), f64::INFINITY);
    for grid in grids(fewest, most) {
        let (columns, rows) = (f64::from(grid.0), f64::from(grid.1));
        let difference = (aspect - columns / rows).abs();
        if difference < least {
            (best, least) = (grid, difference);
        } else if difference == least && area > 0.5 * pixels * columns * rows {
            best = grid;
        }
    }
    best
}

/// Returns all grids with `fewest` to `most` tiles, smaller ones first, then those with fewer columns.
fn grids(fewest: u32, most: u32) -> Vec<(u32, u32)> {
    let columns = 1..=most;
    let mut grids: Vec<_> = columns
        .flat_map(|columns| (1..=most / columns).map(move |rows| (columns, rows)))
        .filter(|(columns, rows)| columns * rows >= fewest)
        .collect();
    grids.sort_by_key(|(columns, rows)| (columns * rows, *columns));
    grids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_follow_the_aspect_ratio_and_then_the_area() {
        assert_eq!(
            grids(1, 4),
            [
                (1, 1),
                (1, 2),
                (2, 1),
                (1, 3),
                (3, 1),
                (1, 4),
                (2, 2),
                (4, 1)
            ]
        );
        let grid = |size| closest(size, (448, 448), (1, 12));
        assert_eq!(grid((100, 100)), (1, 1));
        assert_eq!(grid((1000, 1000)), (3, 3));
        assert_eq!(grid((1920, 1080)), (4, 2));
        assert_eq!(grid((100, 1500)), (1, 12));
    }
}
