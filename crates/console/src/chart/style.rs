//! Colours, sizes, fonts, and the width of texts.

/// Font family. [`text_width`] assumes the widths of Helvetica, which these fonts share.
pub(super) const FONT: &str = "Helvetica, Arial, 'Liberation Sans', sans-serif";

/// Font sizes in pixels.
pub(super) const FIGURE_TITLE: f64 = 15.0;
pub(super) const TITLE: f64 = 13.0;
pub(super) const LABEL: f64 = 12.0;
pub(super) const TICK: f64 = 11.0;

/// Height of a line of text, relative to the font size.
pub(super) const LINE_HEIGHT: f64 = 1.3;

pub(super) const INK: &str = "#222222";
pub(super) const AXIS: &str = "#444444";
pub(super) const GRID: &str = "#e4e4e4";
pub(super) const GUIDE: &str = "#3a3a3a";
/// Colour of a cell without a value.
pub(super) const NOTHING: &str = "#e9e9e9";

/// Number of distinct colours, after which they repeat.
pub(super) const SERIES_COLOURS: usize = 8;

/// The colours of Okabe and Ito (2008), which people with any kind of colour blindness can distinguish. Yellow is last
/// because it is hard to see on white.
const SERIES: [&str; SERIES_COLOURS] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
];

/// Dashes and gaps of guides.
const DASHES: [&str; 3] = ["5 3", "1.5 2.5", "8 2.5 1.5 2.5"];

/// Returns the colour of the series at `index`.
pub(super) fn series_colour(index: usize) -> &'static str {
    SERIES[index % SERIES.len()]
}

/// Returns the dash pattern of the guide at `index`.
pub(super) fn dashes(index: usize) -> &'static str {
    DASHES[index % DASHES.len()]
}

/// Colours from light to dark blue in perceptually equal steps, at equal distances from 0 to 1.
const RAMP: [[f64; 3]; 5] = [
    [242.0, 247.0, 251.0],
    [190.0, 215.0, 234.0],
    [115.0, 172.0, 208.0],
    [46.0, 117.0, 176.0],
    [10.0, 55.0, 106.0],
];

/// Returns the colour of `share`, 0 to 1, and the colour of text on it.
pub(super) fn ramp(share: f64) -> (String, &'static str) {
    let place = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let first = (place as usize).min(RAMP.len() - 2);
    let weight = place - first as f64;
    let [red, green, blue] = std::array::from_fn(|i| {
        (RAMP[first][i] * (1.0 - weight) + RAMP[first + 1][i] * weight).round() as u8
    });
    (
        format!("#{red:02x}{green:02x}{blue:02x}"),
        if share > 0.55 { "#ffffff" } else { INK },
    )
}

/// Returns the approximate width in pixels of `text` in Helvetica at a font size of `size` pixels, for layout.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(|character| em(character) * size).sum()
}

fn em(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | '\'' => 0.24,
        'f' | 't' | 'I' | '.' | ',' | ':' | ';' | '!' | '/' | '|' | ' ' | '[' | ']' => 0.28,
        'r' | '(' | ')' | '-' | '⁰'..='⁹' | '⁻' | '¹' | '²' | '³' => 0.34,
        'm' | 'M' => 0.84,
        'w' | 'G' | 'O' | 'Q' => 0.76,
        'W' | '%' | '@' => 0.95,
        'A'..='Z' => 0.68,
        '\u{1100}'.. => 1.0,
        _ => 0.56,
    }
}
