//! Mapping of axis values to places, and choice of ticks.

use super::layout::{LONGEST_LABEL, shortened};
use super::{Axis, Scale};

/// An axis with a known range.
pub(super) struct Ruler {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Ticks with a grid line and a label.
    pub(super) ticks: Vec<Tick>,
    /// Values with a short tick alone.
    pub(super) minor: Vec<f64>,
    /// Number of categories; `None` on an axis of numbers.
    pub(super) categories: Option<usize>,
}

/// A labelled value.
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// Limit of values, beyond which differences could overflow.
const LARGEST: f64 = 1e100;
/// Minimum width of a range of values, relative to the values, so that they can be distinguished.
const RESOLUTION: f64 = 1e-9;
/// A logarithmic range below this factor has equidistant ticks.
const NARROW: f64 = 5.0;
/// Maximum number of decades for a tick at each of them.
const MAX_DECADES: i32 = 8;

impl Ruler {
    /// Creates the ruler of `axis` that covers all `values` and has about `ticks` ticks.
    pub(super) fn new(axis: &Axis, values: impl IntoIterator<Item = f64>, ticks: usize) -> Self {
        let values = values
            .into_iter()
            .chain(axis.covers.iter().copied())
            .filter(|value| value.abs() < LARGEST);
        match &axis.scale {
            Scale::Linear => Self::linear(bounds(values), ticks),
            Scale::Logarithmic => {
                Self::logarithmic(bounds(values.filter(|&value| value > 1.0 / LARGEST)), ticks)
            }
            Scale::Categories(labels) => Self::categories(labels),
        }
    }

    fn categories(labels: &[String]) -> Self {
        let tick = |(index, label): (usize, &String)| Tick {
            value: index as f64,
            label: shortened(label, LONGEST_LABEL),
        };
        Self {
            low: -0.5,
            high: labels.len().max(1) as f64 - 0.5,
            logarithmic: false,
            ticks: labels.iter().enumerate().map(tick).collect(),
            minor: Vec::new(),
            categories: Some(labels.len()),
        }
    }

    fn linear(bounds: Option<(f64, f64)>, ticks: usize) -> Self {
        let (low, high) = widened(bounds.unwrap_or((0.0, 1.0)));
        let step = nice_step((high - low) / ticks.max(1) as f64);
        // Bounds that are multiples of the step except for rounding remain unchanged.
        let (first, last) = (
            (low / step + RESOLUTION).floor(),
            (high / step - RESOLUTION).ceil(),
        );
        let count = (last - first).max(1.0) as usize;
        let ticks: Vec<_> = (0..=count)
            .map(|i| tick((first + i as f64) * step, step))
            .collect();
        Self {
            low: low.min(first * step),
            high: high.max(last * step),
            logarithmic: false,
            ticks,
            minor: Vec::new(),
            categories: None,
        }
    }

    fn logarithmic(bounds: Option<(f64, f64)>, ticks: usize) -> Self {
        let (low, high) = bounds.unwrap_or((1.0, 10.0));
        if high / low < NARROW {
            let linear = Self::linear(Some((low, high)), ticks);
            let ticks = linear
                .ticks
                .into_iter()
                .filter(|tick| tick.value > 0.0)
                .collect();
            let low = if linear.low > 0.0 { linear.low } else { low };
            return Self {
                low,
                logarithmic: true,
                ticks,
                ..linear
            };
        }
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let marks: Vec<f64> = (first..=last)
            .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * power(decade)))
            .collect();
        let low_end = marks
            .iter()
            .copied()
            .rfind(|&mark| mark <= low * (1.0 + RESOLUTION))
            .unwrap_or(low)
            .min(low);
        let high_end = marks
            .iter()
            .copied()
            .find(|&mark| mark >= high * (1.0 - RESOLUTION))
            .unwrap_or(high)
            .max(high);
        let within = |value: &f64| (low_end..=high_end).contains(value);
        let every = ((last - first) / MAX_DECADES + 1) as usize;
        let mut labelled: Vec<f64> = (first..=last)
            .step_by(every)
            .map(power)
            .filter(within)
            .collect();
        let mut minor = Vec::new();
        if labelled.len() < 3 {
            labelled = marks.into_iter().filter(within).collect();
        } else if every == 1 {
            let digits = |decade| (2..10).map(move |digit| f64::from(digit) * power(decade));
            minor = (first..=last).flat_map(digits).filter(within).collect();
        }
        let ticks = labelled
            .into_iter()
            .map(|value| tick(value, value))
            .collect();
        Self {
            low: low_end,
            high: high_end,
            logarithmic: true,
            ticks,
            minor,
            categories: None,
        }
    }

    /// Returns the place of `value`: 0 at the lower end, 1 at the upper end; `None` outside of the axis.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        // Values that are outside only because of rounding are inside.
        (value.is_finite() && (-RESOLUTION..=1.0 + RESOLUTION).contains(&place))
            .then(|| place.clamp(0.0, 1.0))
    }

    /// Returns the place of `value`, limited to the ends of the axis; `None` for NaN.
    pub(super) fn nearest_place(&self, value: f64) -> Option<f64> {
        (!value.is_nan()).then(|| self.place(value.clamp(self.low, self.high)).unwrap_or(0.0))
    }

    /// Returns the power of ten that is at most a hundredth of the distance between ticks, the precision for single
    /// values.
    pub(super) fn fine_step(&self) -> f64 {
        let distance = self
            .ticks
            .windows(2)
            .map(|pair| pair[1].value - pair[0].value)
            .fold(f64::INFINITY, f64::min);
        power((distance / 100.0).log10().floor().clamp(-300.0, 300.0) as i32)
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Returns a range that is wide enough to be divided. A single value is extended in both directions.
fn widened((low, high): (f64, f64)) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if size < 1.0 / LARGEST {
        (0.0, 1.0)
    } else if high - low > size * RESOLUTION {
        (low, high)
    } else {
        (low - size * 0.1, high + size * 0.1)
    }
}

/// Returns the smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `step`.
fn nice_step(step: f64) -> f64 {
    let power = power(step.log10().floor() as i32);
    let digit = [1.0, 2.0, 2.5, 5.0]
        .into_iter()
        .find(|digit| digit * power >= step * (1.0 - RESOLUTION));
    digit.unwrap_or(10.0) * power
}

fn power(exponent: i32) -> f64 {
    10f64.powi(exponent)
}

fn tick(value: f64, step: f64) -> Tick {
    Tick {
        value,
        label: number(value, step),
    }
}

/// Formats `value` with the digits that distinguish it from neighbours at a distance of `step`.
pub(super) fn number(value: f64, step: f64) -> String {
    let exponent = |value: f64| value.abs().log10().floor() as i32;
    if value.abs() < step.abs() * RESOLUTION {
        return "0".into();
    }
    let minus = if value < 0.0 { "−" } else { "" };
    let magnitude = value.abs();
    if magnitude >= 1e6 || (magnitude < 1e-4 && step < 1e-4) {
        let mut tens = exponent(magnitude);
        let mut mantissa = magnitude / power(tens);
        if mantissa > 9.995 {
            (mantissa, tens) = (mantissa / 10.0, tens + 1);
        }
        let decimals = decimals(step / power(tens)).min(3);
        let mantissa = format!("{mantissa:.decimals$}");
        let tens = superscript(tens);
        return if mantissa == "1" {
            format!("{minus}10{tens}")
        } else {
            format!("{minus}{mantissa}×10{tens}")
        };
    }
    let text = format!("{magnitude:.*}", decimals(step));
    let minus = if text.contains(|digit| ('1'..='9').contains(&digit)) {
        minus
    } else {
        ""
    };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let whole = whole
        .parse()
        .map_or_else(|_| whole.to_owned(), crate::output::count);
    format!("{minus}{whole}{rest}")
}

/// Returns the number of decimals in multiples of `step`.
fn decimals(step: f64) -> usize {
    let exact = |decimals: &usize| {
        let scaled = step.abs() * power(*decimals as i32);
        (scaled - scaled.round()).abs() < 1e-6 && scaled.round() > 0.0
    };
    (0..8).find(exact).unwrap_or(2)
}

fn superscript(exponent: i32) -> String {
    let raised = |character| match character {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32('⁰' as u32 + (digit as u32 - '0' as u32)).unwrap_or(digit),
    };
    exponent.to_string().chars().map(raised).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        Ruler::new(axis, values.iter().copied(), 5)
            .ticks
            .into_iter()
            .map(|tick| tick.label)
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers_around_the_data() {
        let linear = Axis::linear("");
        assert_eq!(
            labels(&linear, &[0.0, 100.0]),
            ["0", "20", "40", "60", "80", "100"]
        );
        assert_eq!(
            labels(&linear, &[0.31, 0.352]),
            ["0.31", "0.32", "0.33", "0.34", "0.35", "0.36"]
        );
        assert_eq!(labels(&linear, &[-3.0, 4.0]), ["−4", "−2", "0", "2", "4"]);
        assert_eq!(
            labels(&linear, &[0.0, 24_000.0]),
            ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]
        );
        assert_eq!(
            labels(&linear, &[0.0, 4e-6]),
            ["0", "10⁻⁶", "2×10⁻⁶", "3×10⁻⁶", "4×10⁻⁶"]
        );
        assert_eq!(
            labels(&linear.covering(0.0, 10.0), &[5.0]),
            ["0", "2", "4", "6", "8", "10"]
        );
    }

    #[test]
    fn numbers_have_the_digits_of_their_step() {
        assert_eq!(number(97.25, 0.1), "97.2");
        assert_eq!(number(-1e-7, 0.01), "0.00");
        assert_eq!(number(-1_234_567.0, 1.0), "−1.235×10⁶");
        assert_eq!(number(999_999.0, 1.0), "999,999");
        assert_eq!(number(9.9999e-7, 1e-8), "1.00×10⁻⁶");
    }

    #[test]
    fn logarithmic_ticks_are_decades_or_their_parts() {
        let axis = Axis::logarithmic("");
        assert_eq!(
            labels(&axis, &[0.02, 700.0]),
            ["0.1", "1", "10", "100", "1,000"]
        );
        assert_eq!(
            labels(&axis, &[22.4, 310.0]),
            ["20", "50", "100", "200", "500"]
        );
        assert_eq!(labels(&axis, &[20.5, 26.0]), ["20", "22", "24", "26"]);
        assert_eq!(labels(&axis, &[1e-9, 1e9]).len(), 7);
    }

    #[test]
    fn every_value_has_its_place_between_the_ends() {
        for exponent in -90..90 {
            let (low, high) = (
                1.7 * power(exponent),
                9.3 * power(exponent + exponent.rem_euclid(7)),
            );
            for axis in [Axis::linear(""), Axis::logarithmic("")] {
                let ruler = Ruler::new(&axis, [high, low], 5);
                let places: Vec<_> = ruler
                    .ticks
                    .iter()
                    .map(|tick| ruler.place(tick.value).unwrap())
                    .collect();
                assert!(
                    (2..=10).contains(&places.len()),
                    "{low} to {high}: {} ticks",
                    places.len()
                );
                assert!(places.is_sorted());
                assert!(ruler.place(low).unwrap() < ruler.place(high).unwrap());
                assert_eq!(ruler.place(high * 1e3), None);
            }
        }
    }
}
