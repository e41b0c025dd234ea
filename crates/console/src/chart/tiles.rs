//! Tiles: a matrix in which each cell is of one of several kinds, and the legend of the kinds.

use super::Tiles;
use super::layout::{self, Anchor, Area, Labels};
use super::style;
use super::svg::{Element, Svg};

/// Width of a kind's swatch in the legend, in pixels.
const SIGN: f64 = 10.0;
/// White space between tiles in pixels.
const GAP: f64 = 1.0;

/// Draws `tiles` in `area`.
pub(super) fn draw(svg: &mut Svg, area: Area, tiles: &Tiles) {
    let area = layout::title(svg, area, &tiles.title, style::TITLE);
    let shortened = |labels: &[String]| -> Vec<_> {
        labels
            .iter()
            .map(|label| layout::shortened(label, layout::LONGEST_LABEL))
            .collect()
    };
    let (rows, columns) = (shortened(&tiles.rows), shortened(&tiles.columns));
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let kinds: Vec<_> = tiles.kinds.iter().map(String::as_str).collect();
    let area = layout::legend(
        svg,
        area,
        &kinds,
        |_| SIGN,
        |svg, kind, (x, y)| {
            svg.push(&rectangle(
                (x - SIGN / 2.0, y - SIGN / 2.0),
                (SIGN, SIGN),
                Some(kind),
            ));
        },
    );
    let left = area.left + layout::title_room(&tiles.y) + layout::widest(&rows) + layout::LABEL_GAP;
    let labels = Labels::new(&columns, (area.right - left) / columns.len().max(1) as f64);
    let left = left.max(area.left + labels.overhang);
    let bottom = area.bottom - layout::title_room(&tiles.x) - labels.height;
    let plot = Area {
        left,
        top: area.top + 4.0,
        right: area.right,
        bottom,
    };
    svg.push(
        &Element::new("rect")
            .set("class", "plot")
            .numbers([
                ("x", left),
                ("y", plot.top),
                ("width", plot.width()),
                ("height", plot.height()),
            ])
            .set("fill", "none"),
    );
    let tile = (
        plot.width() / columns.len().max(1) as f64,
        plot.height() / rows.len().max(1) as f64,
    );
    for (row, label) in rows.iter().enumerate() {
        let top = plot.top + row as f64 * tile.1;
        let place = (left - layout::LABEL_GAP, top + tile.1 / 2.0);
        svg.push(&layout::text(
            label,
            place,
            Anchor::End,
            style::TICK.min(tile.1),
        ));
        for column in 0..columns.len() {
            let kind = tiles.cells.get(row).and_then(|kinds| *kinds.get(column)?);
            let tile = rectangle((plot.left + column as f64 * tile.0, top), tile, kind);
            svg.push(
                &tile
                    .set("class", "mark")
                    .set("stroke", "white")
                    .number("stroke-width", GAP),
            );
        }
    }
    for (column, label) in columns
        .iter()
        .enumerate()
        .filter(|(column, _)| labels.shows(*column))
    {
        labels.draw(
            svg,
            label,
            plot.left + (column as f64 + 0.5) * tile.0,
            bottom,
        );
    }
    layout::horizontal_title(svg, area, plot, &tiles.x);
    layout::vertical_title(svg, area.left + style::LABEL / 2.0, plot, &tiles.y);
}

/// Returns a tile with its corner at `(x, y)` in the colour of its kind; grey without a kind.
fn rectangle((x, y): (f64, f64), (width, height): (f64, f64), kind: Option<usize>) -> Element {
    Element::new("rect")
        .numbers([("x", x), ("y", y), ("width", width), ("height", height)])
        .set("fill", kind.map_or(style::NOTHING, style::series_colour))
}
