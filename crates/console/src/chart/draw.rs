//! Layout of panels, and the coordinate system of a chart.

use super::layout::{self, Anchor, Area, Labels};
use super::marks::{self, Bar};
use super::plot::Plot;
use super::ruler::Ruler;
use super::style;
use super::svg::{Element, Svg, line};
use super::{At, Chart, Figure, Guide, Mark, Panel, heat_map, tiles};

/// Pixels around the figure and between panels.
const PADDING: f64 = 12.0;
const GAP: f64 = 24.0;
/// Size in pixels of a panel that has its own row, and of one that shares a row.
const WIDE: (f64, f64) = (620.0, 340.0);
const NARROW: (f64, f64) = (410.0, 320.0);
/// Minimum pixels of an axis per tick.
const TICK_DISTANCE: f64 = 62.0;
/// Pixels at both ends of a horizontal axis that keep markers away from the edge.
const INSET: f64 = 9.0;
/// Length of a tick in pixels. Minor ticks are shorter.
const TICK_LENGTH: f64 = 4.0;

/// Draws `figure`.
pub(super) fn figure(figure: &Figure) -> Svg {
    let columns = figure.columns.clamp(1, figure.panels.len().max(1));
    let rows = figure.panels.len().div_ceil(columns);
    let (width, height) = if columns == 1 { WIDE } else { NARROW };
    let span = |panels: usize, size: f64| panels as f64 * (size + GAP) - GAP;
    let title_height = if figure.title.is_empty() {
        0.0
    } else {
        style::FIGURE_TITLE * 2.0
    };
    let total = (
        span(columns, width) + 2.0 * PADDING,
        span(rows.max(1), height) + 2.0 * PADDING + title_height,
    );
    let mut svg = Svg::new(total.0, total.1);
    let inside = Area {
        left: PADDING,
        top: PADDING,
        right: total.0 - PADDING,
        bottom: total.1 - PADDING,
    };
    layout::title(&mut svg, inside, &figure.title, style::FIGURE_TITLE);
    for (index, panel) in figure.panels.iter().enumerate() {
        let left = PADDING + (index % columns) as f64 * (width + GAP);
        let top = PADDING + title_height + (index / columns) as f64 * (height + GAP);
        let area = Area {
            left,
            top,
            right: left + width,
            bottom: top + height,
        };
        match panel {
            Panel::Chart(chart) => draw_chart(&mut svg, area, chart),
            Panel::HeatMap(map) => heat_map::draw(&mut svg, area, map),
            Panel::Tiles(tiles) => tiles::draw(&mut svg, area, tiles),
        }
    }
    svg
}

fn draw_chart(svg: &mut Svg, area: Area, chart: &Chart) {
    let bars = marks::bars(chart);
    let (x, y) = rulers(chart, &bars, area);
    let area = layout::title(svg, area, &chart.title, style::TITLE);
    let area = legend(svg, area, chart);
    let plot = scales(svg, area, chart, x, y);
    marks::draw_bars(svg, &plot, &bars);
    let Area {
        left,
        right,
        top,
        bottom,
    } = plot.area;
    svg.push(&line(style::AXIS, 0.8, [(left, top), (left, bottom)]));
    svg.push(&line(style::AXIS, 0.8, [(left, bottom), (right, bottom)]));
    for (index, guide) in chart.guides.iter().enumerate() {
        draw_guide(svg, &plot, guide, index);
    }
    marks::draw_lines_and_points(svg, &plot, &chart.series);
}

/// Returns the rulers that cover all of the chart's data.
fn rulers(chart: &Chart, bars: &[Bar], area: Area) -> (Ruler, Ruler) {
    let guides = |along_x: bool| {
        chart.guides.iter().filter_map(move |guide| match guide.at {
            At::X(x) => along_x.then_some(x),
            At::Y(y) => (!along_x).then_some(y),
        })
    };
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let free = chart
        .series
        .iter()
        .filter(|series| !series.mark.is_bar())
        .flat_map(|series| &series.points);
    let heights = free.flat_map(|point| [point.y, point.y - point.error, point.y + point.error]);
    let bar_ends = bars
        .iter()
        .flat_map(|bar| [bar.from, bar.to, bar.to - bar.error, bar.to + bar.error]);
    let ticks = |length: f64| (length / TICK_DISTANCE) as usize;
    (
        Ruler::new(
            &chart.x,
            points().map(|point| point.x).chain(guides(true)),
            ticks(area.width()),
        ),
        Ruler::new(
            &chart.y,
            heights.chain(bar_ends).chain(guides(false)),
            ticks(area.height()),
        ),
    )
}

/// Draws the legend, unless it would have only one entry.
fn legend(svg: &mut Svg, area: Area, chart: &Chart) -> Area {
    let series = chart.series.iter().map(|series| series.name.as_str());
    let names: Vec<_> = series
        .chain(chart.guides.iter().map(|guide| guide.name.as_str()))
        .collect();
    if names.len() < 2 {
        return area;
    }
    let lines = |mark| matches!(mark, Mark::Line | Mark::LineWithMarkers);
    let width = |index: usize| {
        if chart
            .series
            .get(index)
            .is_none_or(|series| lines(series.mark))
        {
            20.0
        } else {
            10.0
        }
    };
    layout::legend(svg, area, &names, width, |svg, index, (x, y)| {
        match chart.series.get(index) {
            Some(series) => marks::draw_swatch(svg, series.mark, index, (x, y)),
            None => svg.push(&guide_line(
                index - chart.series.len(),
                [(x - 10.0, y), (x + 10.0, y)],
            )),
        }
    })
}

/// Draws grid, ticks, labels and axis titles, and returns the data area.
fn scales(svg: &mut Svg, area: Area, chart: &Chart, x: Ruler, y: Ruler) -> Plot {
    let x_labels: Vec<_> = x.ticks.iter().map(|tick| tick.label.as_str()).collect();
    let y_labels: Vec<_> = y.ticks.iter().map(|tick| tick.label.as_str()).collect();
    let left = area.left
        + layout::title_room(&chart.y.title)
        + layout::widest(&y_labels)
        + layout::LABEL_GAP;
    let labels = Labels::new(
        &x_labels,
        (area.right - left) / x_labels.len().max(1) as f64,
    );
    let left = left.max(area.left + labels.overhang);
    let bottom = area.bottom - layout::title_room(&chart.x.title) - labels.height;
    let last = x_labels
        .last()
        .map_or(0.0, |label| style::text_width(label, style::TICK) / 2.0);
    let right = area.right
        - if x.categories.is_some() {
            2.0
        } else {
            last.max(6.0)
        };
    let has_markers = chart
        .series
        .iter()
        .any(|series| matches!(series.mark, Mark::Points | Mark::LineWithMarkers));
    let inset = if has_markers && x.categories.is_none() {
        INSET
    } else {
        0.0
    };
    let plot = Plot {
        area: Area {
            left,
            top: area.top + 6.0,
            right,
            bottom,
        },
        inset,
        x,
        y,
    };
    let Area {
        left,
        right,
        top,
        bottom,
    } = plot.area;

    svg.push(
        &Element::new("rect")
            .set("class", "plot")
            .numbers([
                ("x", left),
                ("y", top),
                ("width", plot.area.width()),
                ("height", plot.area.height()),
            ])
            .set("fill", "none"),
    );
    for (index, tick) in plot.x.ticks.iter().enumerate() {
        if !labels.shows(index) {
            continue;
        }
        let Some(at) = plot.x.place(tick.value).map(|place| plot.across(place)) else {
            continue;
        };
        if plot.x.categories.is_none() {
            svg.push(&line(style::GRID, 0.8, [(at, top), (at, bottom)]));
        }
        svg.push(&line(
            style::AXIS,
            0.8,
            [(at, bottom), (at, bottom + TICK_LENGTH)],
        ));
        labels.draw(svg, &tick.label, at, bottom);
    }
    for tick in &plot.y.ticks {
        let Some(at) = plot.y.place(tick.value).map(|place| plot.up(place)) else {
            continue;
        };
        svg.push(&line(style::GRID, 0.8, [(left, at), (right, at)]));
        svg.push(&line(
            style::AXIS,
            0.8,
            [(left - TICK_LENGTH, at), (left, at)],
        ));
        svg.push(&layout::text(
            &tick.label,
            (left - layout::LABEL_GAP, at),
            Anchor::End,
            style::TICK,
        ));
    }
    for at in plot
        .x
        .minor
        .iter()
        .filter_map(|&value| plot.x.place(value))
        .map(|place| plot.across(place))
    {
        svg.push(&line(
            style::AXIS,
            0.6,
            [(at, bottom), (at, bottom + TICK_LENGTH / 2.0)],
        ));
    }
    for at in plot
        .y
        .minor
        .iter()
        .filter_map(|&value| plot.y.place(value))
        .map(|place| plot.up(place))
    {
        svg.push(&line(
            style::AXIS,
            0.6,
            [(left - TICK_LENGTH / 2.0, at), (left, at)],
        ));
    }
    layout::horizontal_title(svg, area, plot.area, &chart.x.title);
    layout::vertical_title(
        svg,
        area.left + style::LABEL / 2.0,
        plot.area,
        &chart.y.title,
    );
    plot
}

fn draw_guide(svg: &mut Svg, plot: &Plot, guide: &Guide, index: usize) {
    let Area {
        left,
        right,
        top,
        bottom,
    } = plot.area;
    let ends = match guide.at {
        At::X(x) => plot
            .x
            .place(x)
            .map(|place| plot.across(place))
            .map(|x| [(x, top), (x, bottom)]),
        At::Y(y) => plot
            .y
            .place(y)
            .map(|place| plot.up(place))
            .map(|y| [(left, y), (right, y)]),
    };
    if let Some(ends) = ends {
        svg.push(&guide_line(index, ends));
    }
}

fn guide_line(index: usize, ends: [(f64, f64); 2]) -> Element {
    line(style::GUIDE, 1.2, ends).set("stroke-dasharray", style::dashes(index))
}

impl Mark {
    pub(super) fn is_bar(self) -> bool {
        matches!(self, Self::Bars | Self::StackedBars)
    }
}
