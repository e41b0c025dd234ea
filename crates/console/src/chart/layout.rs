//! Layout of texts: titles, labels along an axis, legends.

use super::style::{self, LINE_HEIGHT};
use super::svg::{Element, Svg};

/// A rectangle in pixels. y grows downward.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    pub(super) fn width(&self) -> f64 {
        self.right - self.left
    }

    pub(super) fn height(&self) -> f64 {
        self.bottom - self.top
    }

    pub(super) fn centre(&self) -> (f64, f64) {
        (
            (self.left + self.right) / 2.0,
            (self.top + self.bottom) / 2.0,
        )
    }
}

/// The point of a text to which its coordinates refer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Returns a text that is vertically centred at `y`.
pub(super) fn text(content: &str, (x, y): (f64, f64), anchor: Anchor, size: f64) -> Element {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    // The distance from the middle of letters to the baseline. Renderers treat `dominant-baseline` differently.
    let baseline = y + 0.35 * size;
    Element::new("text")
        .numbers([("x", x), ("y", baseline), ("font-size", size)])
        .set("text-anchor", anchor)
        .text(content)
}

/// Returns `element` rotated by `degrees` around `centre`.
pub(super) fn rotated(element: Element, degrees: f64, (x, y): (f64, f64)) -> Element {
    let number = super::svg::Number;
    element.set(
        "transform",
        &format!("rotate({} {} {})", number(degrees), number(x), number(y)),
    )
}

/// Returns the largest font size up to `size` at which `content` is at most `width` wide.
pub(super) fn fitting_size(content: &str, size: f64, width: f64) -> f64 {
    size * (width / style::text_width(content, size)).min(1.0)
}

/// Draws a bold title at the top of `area`, and returns the remaining area.
pub(super) fn title(svg: &mut Svg, area: Area, content: &str, size: f64) -> Area {
    if content.is_empty() {
        return area;
    }
    // Bold letters are about 10 % wider than normal ones.
    let fitting = fitting_size(content, size, area.width() / 1.1);
    let place = (area.left, area.top + size * LINE_HEIGHT / 2.0);
    svg.push(&text(content, place, Anchor::Start, fitting).set("font-weight", "bold"));
    Area {
        top: area.top + size * LINE_HEIGHT + 4.0,
        ..area
    }
}

/// Returns the height in pixels of an axis title.
pub(super) fn title_room(title: &str) -> f64 {
    if title.is_empty() {
        0.0
    } else {
        style::LABEL * LINE_HEIGHT + 3.0
    }
}

/// Draws the title of a horizontal axis at the bottom of `area`, centred under `plot`.
pub(super) fn horizontal_title(svg: &mut Svg, area: Area, plot: Area, content: &str) {
    if content.is_empty() {
        return;
    }
    let place = (
        plot.centre().0,
        area.bottom - style::LABEL * LINE_HEIGHT / 2.0,
    );
    svg.push(&text(
        content,
        place,
        Anchor::Middle,
        fitting_size(content, style::LABEL, plot.width()),
    ));
}

/// Draws the title of a vertical axis upward along the line at `x`, vertically centred on `plot`.
pub(super) fn vertical_title(svg: &mut Svg, x: f64, plot: Area, content: &str) {
    if content.is_empty() {
        return;
    }
    let place = (x, plot.centre().1);
    let size = fitting_size(content, style::LABEL, plot.height());
    svg.push(&rotated(
        text(content, place, Anchor::Middle, size),
        -90.0,
        place,
    ));
}

/// Maximum numbers of characters of a label, and of a name in a legend.
pub(super) const LONGEST_LABEL: usize = 28;
const LONGEST_NAME: usize = 44;

/// Returns `content`, or its beginning if it has more than `most` characters.
pub(super) fn shortened(content: &str, most: usize) -> String {
    if content.chars().count() <= most {
        return content.to_owned();
    }
    content.chars().take(most - 1).chain(['…']).collect()
}

/// The arrangement of the labels of a horizontal axis without overlap.
pub(super) struct Labels {
    slanted: bool,
    every: usize,
    /// Height in pixels of the labels below the axis.
    pub(super) height: f64,
    /// Pixels by which a label extends to the left of its tick.
    pub(super) overhang: f64,
}

/// Angle of slanted labels in degrees.
const SLANT: f64 = 40.0;
/// Pixels between the axis and its labels.
pub(super) const LABEL_GAP: f64 = 7.0;

impl Labels {
    /// Chooses the arrangement of `labels` at a distance of `pitch` pixels: horizontal if they fit, slanted for words
    /// that are too long, or only every n-th label for numbers or if the labels are too dense.
    pub(super) fn new(labels: &[&str], pitch: f64) -> Self {
        let widest = widest(labels);
        let line = style::TICK * LINE_HEIGHT;
        let level = |every| Self {
            slanted: false,
            every,
            height: LABEL_GAP + line,
            overhang: widest / 2.0,
        };
        let is_number = |label: &&str| label.parse::<f64>().is_ok();
        if widest + 6.0 <= pitch {
            level(1)
        } else if pitch >= line && !labels.iter().all(is_number) {
            let (sine, cosine) = SLANT.to_radians().sin_cos();
            let height = LABEL_GAP + widest * sine + style::TICK * cosine;
            Self {
                slanted: true,
                every: 1,
                height,
                overhang: widest * cosine,
            }
        } else {
            let needed = (widest + 6.0) / pitch.max(0.01);
            let steps = [2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50];
            level(
                steps
                    .into_iter()
                    .find(|&every| every as f64 >= needed)
                    .unwrap_or(needed.ceil() as usize),
            )
        }
    }

    /// Returns whether the label at `index` is drawn.
    pub(super) fn shows(&self, index: usize) -> bool {
        index.is_multiple_of(self.every)
    }

    /// Returns the label of the tick at `x` on the axis at `y`.
    pub(super) fn draw(&self, svg: &mut Svg, label: &str, x: f64, y: f64) {
        let place = (x, y + LABEL_GAP + style::TICK / 2.0);
        if self.slanted {
            let place = (x + style::TICK * 0.3, place.1);
            svg.push(&rotated(
                text(label, place, Anchor::End, style::TICK),
                -SLANT,
                place,
            ));
        } else {
            svg.push(&text(label, place, Anchor::Middle, style::TICK));
        }
    }
}

/// Returns the width of the widest label.
pub(super) fn widest(labels: &[&str]) -> f64 {
    labels
        .iter()
        .map(|label| style::text_width(label, style::TICK))
        .fold(0.0, f64::max)
}

/// Draws a legend at the top of `area`, in as many lines as necessary, and returns the remaining area. `swatch` draws
/// the swatch of the entry at an index, centred at the given point, `swatch_width` pixels wide.
pub(super) fn legend(
    svg: &mut Svg,
    area: Area,
    names: &[&str],
    swatch_width: impl Fn(usize) -> f64,
    mut swatch: impl FnMut(&mut Svg, usize, (f64, f64)),
) -> Area {
    const GAP: f64 = 16.0;
    let line = style::TICK * LINE_HEIGHT + 2.0;
    let (mut x, mut y) = (area.left, area.top);
    for (index, name) in names.iter().enumerate() {
        let name = shortened(name, LONGEST_NAME);
        let sign = swatch_width(index);
        let width = sign + 5.0 + style::text_width(&name, style::TICK);
        if x > area.left && x + width > area.right {
            (x, y) = (area.left, y + line);
        }
        let middle = y + line / 2.0;
        swatch(svg, index, (x + sign / 2.0, middle));
        svg.push(&text(
            &name,
            (x + sign + 5.0, middle),
            Anchor::Start,
            style::TICK,
        ));
        x += width + GAP;
    }
    if names.is_empty() {
        area
    } else {
        Area {
            top: y + line + 5.0,
            ..area
        }
    }
}
