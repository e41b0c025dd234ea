//! Series: lines, markers, bars, error bars, and their swatches in the legend.

use std::collections::BTreeMap;

use super::plot::Plot;
use super::style;
use super::svg::{Element, Number, Svg, line};
use super::{Chart, Mark, Series};

/// Fraction of a category that its bars fill.
const FILLED: f64 = 0.76;
/// Radius of a marker in pixels.
const RADIUS: f64 = 3.2;
/// Half the width of an error bar's cap in pixels.
const CAP: f64 = 2.5;
const LINE_WIDTH: f64 = 1.6;

/// A bar, in values of the axes.
pub(super) struct Bar {
    series: usize,
    category: f64,
    /// Left edge and width in categories, relative to the centre of its category.
    left: f64,
    width: f64,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) error: f64,
}

/// Returns all bars of a chart. Each series of `Bars` has its own place in each category. All series of `StackedBars`
/// share one.
pub(super) fn bars(chart: &Chart) -> Vec<Bar> {
    let has = |mark| move |series: &&Series| series.mark == mark;
    let places = chart.series.iter().filter(has(Mark::Bars)).count();
    let stacks = usize::from(
        chart
            .series
            .iter()
            .any(|series| series.mark == Mark::StackedBars),
    );
    let width = FILLED / (places + stacks).max(1) as f64;
    // Start of the next bar of each stack, above and below zero.
    let mut tops: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
    let (mut bars, mut place) = (Vec::new(), stacks);
    for (index, series) in chart
        .series
        .iter()
        .enumerate()
        .filter(|(_, series)| series.mark.is_bar())
    {
        let stacked = series.mark == Mark::StackedBars;
        let left = if stacked { 0 } else { place } as f64 * width - FILLED / 2.0;
        place += usize::from(!stacked);
        for point in series.points.iter().filter(|point| point.y.is_finite()) {
            let from = if stacked {
                tops.entry(point.x.to_bits()).or_default()
            } else {
                &mut [0.0; 2]
            };
            let from = &mut from[usize::from(point.y < 0.0)];
            let to = *from + point.y;
            bars.push(Bar {
                series: index,
                category: point.x,
                left,
                width,
                from: *from,
                to,
                error: point.error,
            });
            *from = to;
        }
    }
    bars
}

/// Draws bars from their start, or from the end of the axis.
pub(super) fn draw_bars(svg: &mut Svg, plot: &Plot, bars: &[Bar]) {
    let slot = 1.0 / plot.x.categories.unwrap_or(bars.len()).max(1) as f64;
    for bar in bars {
        let places = (
            plot.x.place(bar.category),
            plot.y.nearest_place(bar.from),
            plot.y.place(bar.to),
        );
        let (Some(middle), Some(from), Some(to)) = places else {
            continue;
        };
        let left = plot.across((middle + bar.left * slot).max(0.0));
        let right = plot.across((middle + (bar.left + bar.width) * slot).min(1.0));
        let (top, bottom) = (plot.up(from.max(to)), plot.up(from.min(to)));
        svg.push(
            &Element::new("rect")
                .set("class", "mark")
                .numbers([
                    ("x", left),
                    ("y", top),
                    ("width", right - left),
                    ("height", bottom - top),
                ])
                .set("fill", style::series_colour(bar.series))
                .set("stroke", "white")
                .number("stroke-width", if right - left > 6.0 { 0.8 } else { 0.3 }),
        );
        draw_error(
            svg,
            plot,
            ((left + right) / 2.0, bar.to, bar.error),
            style::INK,
        );
    }
}

/// Draws all series except bars.
pub(super) fn draw_lines_and_points(svg: &mut Svg, plot: &Plot, series: &[Series]) {
    for (index, series) in series
        .iter()
        .enumerate()
        .filter(|(_, series)| !series.mark.is_bar())
    {
        let colour = style::series_colour(index);
        let places: Vec<_> = series
            .points
            .iter()
            .map(|point| plot.point(point.x, point.y))
            .collect();
        if series.mark != Mark::Points {
            draw_path(svg, &places, colour);
        }
        for (point, place) in series.points.iter().zip(&places) {
            let Some(place) = *place else { continue };
            draw_error(svg, plot, (place.0, point.y, point.error), colour);
            if series.mark != Mark::Line {
                svg.push(&marker(index, place).set("class", "mark"));
            }
        }
    }
}

/// Draws a line through `places`, interrupted at missing places.
fn draw_path(svg: &mut Svg, places: &[Option<(f64, f64)>], colour: &str) {
    let mut path = String::new();
    let mut pen = 'M';
    for place in places {
        if let Some((x, y)) = *place {
            path += &format!("{pen}{} {}", Number(x), Number(y));
        }
        pen = if place.is_some() { 'L' } else { 'M' };
    }
    if !path.is_empty() {
        svg.push(
            &Element::new("path")
                .set("class", "mark")
                .set("d", &path)
                .set("fill", "none")
                .set("stroke", colour)
                .number("stroke-width", LINE_WIDTH)
                .set("stroke-linejoin", "round"),
        );
    }
}

/// Draws the error bar of the value `y` at the pixel `x`.
fn draw_error(svg: &mut Svg, plot: &Plot, (x, y, error): (f64, f64, f64), colour: &str) {
    if !(error > 0.0 && error.is_finite()) {
        return;
    }
    let ends = (
        plot.y.nearest_place(y - error),
        plot.y.nearest_place(y + error),
    );
    let (Some(low), Some(high)) = ends else {
        return;
    };
    let (low, high) = (plot.up(low), plot.up(high));
    for ends in [
        [(x, low), (x, high)],
        [(x - CAP, low), (x + CAP, low)],
        [(x - CAP, high), (x + CAP, high)],
    ] {
        svg.push(&line(colour, 1.0, ends));
    }
}

/// Returns the marker of a series. Its colour and its shape are each sufficient to identify the series.
fn marker(series: usize, (x, y): (f64, f64)) -> Element {
    let shape = |corners: &[(f64, f64)]| {
        let corner = |(dx, dy): &(f64, f64)| {
            format!("{},{}", Number(x + dx * RADIUS), Number(y + dy * RADIUS))
        };
        Element::new("polygon").set(
            "points",
            &corners.iter().map(corner).collect::<Vec<_>>().join(" "),
        )
    };
    let element = match series % 5 {
        0 => Element::new("circle").numbers([("cx", x), ("cy", y), ("r", RADIUS)]),
        1 => shape(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => shape(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => shape(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        _ => shape(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
    };
    element
        .set("fill", style::series_colour(series))
        .set("stroke", "white")
        .number("stroke-width", 0.6)
}

/// Draws the swatch of a series in the legend.
pub(super) fn draw_swatch(svg: &mut Svg, mark: Mark, series: usize, (x, y): (f64, f64)) {
    let colour = style::series_colour(series);
    if matches!(mark, Mark::Line | Mark::LineWithMarkers) {
        svg.push(&line(colour, LINE_WIDTH, [(x - 10.0, y), (x + 10.0, y)]));
    }
    match mark {
        Mark::Line => {}
        Mark::LineWithMarkers | Mark::Points => svg.push(&marker(series, (x, y))),
        Mark::Bars | Mark::StackedBars => svg.push(
            &Element::new("rect")
                .numbers([
                    ("x", x - 5.0),
                    ("y", y - 5.0),
                    ("width", 10.0),
                    ("height", 10.0),
                ])
                .set("fill", colour),
        ),
    }
}
