//! Heat maps: a matrix of coloured cells and a colour bar.

use super::layout::{self, Anchor, Area, Labels};
use super::ruler::{self, Ruler};
use super::style;
use super::svg::{Element, Svg, line};
use super::{Axis, HeatMap};

/// Width of the colour bar, and its distance from the matrix, in pixels.
const BAR_WIDTH: f64 = 12.0;
const BAR_GAP: f64 = 16.0;
/// Number of shades in the colour bar.
const SHADES: usize = 64;
/// White space between cells in pixels.
const CELL_GAP: f64 = 1.0;

/// Draws `map` in `area`.
pub(super) fn draw(svg: &mut Svg, area: Area, map: &HeatMap) {
    let area = layout::title(svg, area, &map.title, style::TITLE);
    let values = map.values.iter().flatten().copied();
    let scale = Ruler::new(&Axis::linear(""), values, 5);
    let shortened = |labels: &[String]| -> Vec<_> {
        labels
            .iter()
            .map(|label| layout::shortened(label, layout::LONGEST_LABEL))
            .collect()
    };
    let (rows, columns) = (shortened(&map.rows), shortened(&map.columns));
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    let ticks: Vec<_> = scale.ticks.iter().map(|tick| tick.label.as_str()).collect();
    let left = area.left + layout::title_room(&map.y) + layout::widest(&rows) + layout::LABEL_GAP;
    let right = area.right
        - layout::title_room(&map.value)
        - layout::widest(&ticks)
        - layout::LABEL_GAP
        - BAR_WIDTH
        - BAR_GAP;
    let labels = Labels::new(&columns, (right - left) / columns.len().max(1) as f64);
    let left = left.max(area.left + labels.overhang);
    let bottom = area.bottom - layout::title_room(&map.x) - labels.height;
    let plot = Area {
        left,
        top: area.top + 4.0,
        right,
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
    let cell = (
        plot.width() / columns.len().max(1) as f64,
        plot.height() / rows.len().max(1) as f64,
    );
    let middle = |column: usize| plot.left + (column as f64 + 0.5) * cell.0;
    for (row, label) in rows.iter().enumerate() {
        let y = plot.top + (row as f64 + 0.5) * cell.1;
        svg.push(&layout::text(
            label,
            (left - layout::LABEL_GAP, y),
            Anchor::End,
            style::TICK.min(cell.1),
        ));
        for column in 0..columns.len() {
            let value = map
                .values
                .get(row)
                .and_then(|values| values.get(column))
                .copied();
            draw_cell(svg, &scale, value, (middle(column), y), cell);
        }
    }
    for (column, label) in columns
        .iter()
        .enumerate()
        .filter(|(column, _)| labels.shows(*column))
    {
        labels.draw(svg, label, middle(column), bottom);
    }
    layout::horizontal_title(svg, area, plot, &map.x);
    layout::vertical_title(svg, area.left + style::LABEL / 2.0, plot, &map.y);
    let bar = Area {
        left: right + BAR_GAP,
        right: right + BAR_GAP + BAR_WIDTH,
        ..plot
    };
    draw_colour_bar(svg, &scale, bar);
    layout::vertical_title(svg, area.right - style::LABEL / 2.0, plot, &map.value);
}

/// Draws a cell centred at `(x, y)`, with its value if there is room for it.
fn draw_cell(
    svg: &mut Svg,
    scale: &Ruler,
    value: Option<f64>,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
) {
    let share = value.and_then(|value| scale.place(value));
    let (colour, ink) = share.map_or((style::NOTHING.to_owned(), style::INK), style::ramp);
    svg.push(
        &Element::new("rect")
            .set("class", "mark")
            .numbers([
                ("x", x - width / 2.0),
                ("y", y - height / 2.0),
                ("width", width),
                ("height", height),
            ])
            .set("fill", &colour)
            .set("stroke", "white")
            .number("stroke-width", CELL_GAP),
    );
    if let (Some(value), Some(_)) = (value, share) {
        let label = ruler::number(value, scale.fine_step());
        if style::text_width(&label, style::TICK) + 4.0 <= width && style::TICK + 2.0 <= height {
            svg.push(&layout::text(&label, (x, y), Anchor::Middle, style::TICK).set("fill", ink));
        }
    }
}

fn draw_colour_bar(svg: &mut Svg, scale: &Ruler, area: Area) {
    // Each shade extends to the bottom, and the next ones are drawn over it. Adjacent rectangles would show hairlines.
    for index in (0..SHADES).rev() {
        let (colour, _) = style::ramp((index as f64 + 0.5) / SHADES as f64);
        let height = area.height() * (index + 1) as f64 / SHADES as f64;
        svg.push(
            &Element::new("rect")
                .numbers([
                    ("x", area.left),
                    ("y", area.bottom - height),
                    ("width", area.width()),
                    ("height", height),
                ])
                .set("fill", &colour),
        );
    }
    for tick in &scale.ticks {
        let Some(place) = scale.place(tick.value) else {
            continue;
        };
        let y = area.bottom - place * area.height();
        svg.push(&line(
            style::AXIS,
            0.8,
            [(area.right, y), (area.right + 3.0, y)],
        ));
        svg.push(&layout::text(
            &tick.label,
            (area.right + layout::LABEL_GAP, y),
            Anchor::Start,
            style::TICK,
        ));
    }
}
