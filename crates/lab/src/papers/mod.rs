//! Compares the papers' values with Triad's, as far as their texts state numbers: [`llm_npu`] and [`heterollm`].
//!
//! A few values of each paper were used to fit the device's profile. Others informed a choice, but nothing was fitted
//! to them. The rest influenced nothing. The [`Kind`] of a value distinguishes these; only held-out values are
//! predictions. [`Nearness`] summarizes the values of one kind: errors, for values compared with one number; whether
//! they are inside and how far from the middle, for values compared with a range. The papers' numbers are [`quotes`],
//! stored with their surrounding words.

pub mod heterollm;
pub mod llm_npu;
pub mod quotes;

use serde::Serialize;

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Paper {
    /// llm.npu ([arXiv 2407.05858](https://arxiv.org/abs/2407.05858)).
    #[serde(rename = "llm.npu")]
    LlmNpu,
    /// HeteroLLM ([arXiv 2501.14794](https://arxiv.org/abs/2501.14794)).
    #[serde(rename = "heterollm")]
    HeteroLlm,
}

impl Paper {
    /// Both papers.
    pub const ALL: [Self; 2] = [Self::LlmNpu, Self::HeteroLlm];

    /// Returns the name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlmNpu => "llm.npu",
            Self::HeteroLlm => "heterollm",
        }
    }

    /// Returns the names of the sections that can be reproduced. They are unique among all papers.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::LlmNpu => &llm_npu::NAMES,
            Self::HeteroLlm => &heterollm::NAMES,
        }
    }
}

/// Returns one of [`Paper::names`], simulated on the Snapdragon 8 Gen 3, or `None` for other names.
pub fn section(name: &str) -> Option<Section> {
    llm_npu::section(name).or_else(|| heterollm::section(name))
}

/// Origin of Triad's value, and the influence of the paper's value on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Counted from the model's description.
    Counted,
    /// Simulated on a profile of the device, or with another parameter, that was fitted to this value.
    Fitted,
    /// Simulated. Nothing was fitted to this value, but this value, or one that the simulation depends on, informed a
    /// choice, or it nearly follows from fitted values. It is a weaker test than a held-out value.
    Seen,
    /// Simulated, and the paper's value influenced no choice: a prediction.
    #[serde(rename = "held out")]
    HeldOut,
    /// Simulated: a second number of the paper for a quantity that is compared already. It is not part of any mean.
    Repeated,
    /// Simulated, without a value of the paper to compare with.
    Simulated,
}

impl Kind {
    /// Kinds that are compared with the paper's values, predictions first.
    pub const COMPARED: [Self; 4] = [Self::HeldOut, Self::Seen, Self::Fitted, Self::Counted];

    /// Returns the name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Fitted => "fitted",
            Self::Seen => "seen",
            Self::HeldOut => "held out",
            Self::Repeated => "repeated",
            Self::Simulated => "simulated",
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name of the quantity, with its unit.
    pub what: String,
    /// The paper's value: one number twice, or the ends of a range, where infinity stands for no upper end; `None` if
    /// its text states no number.
    pub paper: Option<(f64, f64)>,
    /// Triad's value.
    pub ours: f64,
    /// Its origin.
    pub kind: Kind,
}

impl Value {
    /// Returns the error relative to the paper's number, or `None` for a range. Infinite if the number is 0 and Triad's
    /// is not.
    pub fn error(&self) -> Option<f64> {
        let (low, high) = self.paper?;
        (low == high).then(|| relative(self.ours, low))
    }

    /// Returns whether Triad's value is within the paper's range, or `None` if the paper states one number.
    pub fn inside(&self) -> Option<bool> {
        let (low, high) = self.paper?;
        (low != high).then(|| (low..=high).contains(&self.ours))
    }

    /// Returns the distance from the middle of the paper's range, relative to the middle. `None` for one number or a
    /// range without an upper end.
    pub fn from_middle(&self) -> Option<f64> {
        let (low, high) = self.paper?;
        (low != high && high.is_finite()).then(|| relative(self.ours, (low + high) / 2.0))
    }
}

fn relative(ours: f64, paper: f64) -> f64 {
    if ours == paper {
        0.0
    } else {
        ours / paper - 1.0
    }
}

/// A table or a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// One of [`Paper::names`].
    pub name: &'static str,
    /// Its subject, and remarks.
    pub about: &'static str,
    /// Its values.
    pub values: Vec<Value>,
    /// Numbers of the paper that are not compared with anything here.
    pub cited: Vec<Cited>,
    /// Why the cited numbers are not simulated; empty if there are none.
    pub not_simulated: &'static str,
}

impl Section {
    /// Creates a section that cites nothing.
    fn new(name: &'static str, about: &'static str, values: Vec<Value>) -> Self {
        Self {
            name,
            about,
            values,
            cited: Vec::new(),
            not_simulated: "",
        }
    }

    /// Adds numbers of the paper that are not compared, and the reason.
    fn citing(self, not_simulated: &'static str, cited: Vec<Cited>) -> Self {
        Self {
            cited,
            not_simulated,
            ..self
        }
    }
}

/// A number of the paper that is not compared with anything here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cited {
    /// Name of the quantity, with its unit.
    pub what: String,
    /// The paper's value: one number twice, or the ends of a range.
    pub paper: (f64, f64),
}

/// How close the values of one kind are to the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Nearness {
    /// Kind of the values.
    pub kind: Kind,
    /// Number of values that are compared with one number.
    pub numbers: usize,
    /// Mean error of these, relative to the paper's numbers; `None` if there are none.
    pub mean_error: Option<f64>,
    /// Number of values that are compared with a range.
    pub ranges: usize,
    /// Number of these that are inside the range.
    pub inside: usize,
    /// Mean distance from the middle of the ranges, relative to it, inside or outside; `None` if no range has two ends.
    pub mean_from_middle: Option<f64>,
}

impl Nearness {
    /// Summarizes the values of one kind in some sections; `None` if there is nothing to compare.
    pub fn new<'a>(sections: impl IntoIterator<Item = &'a Section>, kind: Kind) -> Option<Self> {
        let sections = sections.into_iter().flat_map(|section| &section.values);
        let values: Vec<_> = sections
            .filter(|value| value.kind == kind && value.paper.is_some())
            .collect();
        let errors: Vec<_> = values.iter().filter_map(|value| value.error()).collect();
        let inside: Vec<_> = values.iter().filter_map(|value| value.inside()).collect();
        let from_middle: Vec<_> = values
            .iter()
            .filter_map(|value| value.from_middle())
            .collect();
        (!values.is_empty()).then(|| Self {
            kind,
            numbers: errors.len(),
            mean_error: mean_distance(&errors),
            ranges: inside.len(),
            inside: inside.iter().filter(|inside| **inside).count(),
            mean_from_middle: mean_distance(&from_middle),
        })
    }
}

fn mean_distance(differences: &[f64]) -> Option<f64> {
    let sum: f64 = differences.iter().map(|difference| difference.abs()).sum();
    (!differences.is_empty()).then(|| sum / differences.len() as f64)
}

fn value(
    what: impl Into<String>,
    paper: impl Into<Option<(f64, f64)>>,
    ours: f64,
    kind: Kind,
) -> Value {
    Value {
        what: what.into(),
        paper: paper.into(),
        ours,
        kind,
    }
}

fn one(value: f64) -> (f64, f64) {
    (value, value)
}

fn more_than(value: f64) -> (f64, f64) {
    (value, f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_out(paper: (f64, f64), ours: f64) -> Value {
        value("", paper, ours, Kind::HeldOut)
    }

    fn nearness(values: Vec<Value>, kind: Kind) -> Option<Nearness> {
        Nearness::new([&Section::new("", "", values)], kind)
    }

    #[test]
    fn a_value_next_to_one_number_has_an_error_and_is_not_inside_anything() {
        let value = held_out(one(4.0), 5.0);
        assert_eq!(
            (value.error(), value.inside(), value.from_middle()),
            (Some(0.25), None, None)
        );
        assert_eq!(
            [0.0, 1.0].map(|ours| held_out(one(0.0), ours).error().unwrap()),
            [0.0, f64::INFINITY]
        );
    }

    #[test]
    fn a_value_within_a_range_has_its_distance_from_the_middle_and_no_error_of_zero() {
        let of = |ours| {
            let value = held_out((2.0, 6.0), ours);
            (
                value.error(),
                value.inside().unwrap(),
                value.from_middle().unwrap(),
            )
        };
        assert_eq!(
            [2.0, 4.0, 5.0].map(of),
            [(None, true, -0.5), (None, true, 0.0), (None, true, 0.25)]
        );
        assert_eq!(
            [1.0, 8.0].map(of),
            [(None, false, -0.75), (None, false, 1.0)]
        );
    }

    #[test]
    fn a_range_without_an_end_has_no_middle() {
        let of = |ours| {
            let value = held_out(more_than(2.0), ours);
            (value.error(), value.inside().unwrap(), value.from_middle())
        };
        assert_eq!(
            [1.0, 9.0].map(of),
            [(None, false, None), (None, true, None)]
        );
    }

    #[test]
    fn fitted_and_seen_values_are_never_counted_in_the_mean_of_held_out_ones() {
        let of = |kind, ours| value("", one(10.0), ours, kind);
        let values = vec![
            of(Kind::HeldOut, 12.0),
            of(Kind::Fitted, 10.0),
            of(Kind::Seen, 14.0),
        ];
        let found = nearness(values.clone(), Kind::HeldOut).unwrap();
        assert_eq!(
            (found.numbers, found.mean_error),
            (1, Some(12.0 / 10.0 - 1.0))
        );
        let seen = nearness(values.clone(), Kind::Seen).unwrap();
        assert_eq!(
            (seen.numbers, seen.mean_error),
            (1, Some(14.0 / 10.0 - 1.0))
        );
        assert_eq!(nearness(values, Kind::Counted), None);
    }

    #[test]
    fn a_value_next_to_a_range_does_not_lower_the_mean_error_but_is_told_apart() {
        let values = vec![
            held_out(one(10.0), 12.0),
            held_out((2.0, 6.0), 5.0),
            held_out((2.0, 6.0), 1.0),
        ];
        let found = nearness(values, Kind::HeldOut).unwrap();
        assert_eq!(
            (found.numbers, found.mean_error),
            (1, Some(12.0 / 10.0 - 1.0))
        );
        assert_eq!(
            (found.ranges, found.inside, found.mean_from_middle),
            (2, 1, Some(0.5))
        );
    }
}
