//! The papers' values beside ours, as far as their texts have numbers: [`llm_npu`] and [`heterollm`].
//!
//! The profile of a device is fitted to a few values of each paper. Others informed a choice without being fitted to, and
//! the rest had no part in any: each value is marked by its [`Kind`], and only those that were held out are predictions.

pub mod heterollm;
pub mod llm_npu;

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
    /// Both.
    pub const ALL: [Self; 2] = [Self::LlmNpu, Self::HeteroLlm];

    /// Name for people, and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlmNpu => "llm.npu",
            Self::HeteroLlm => "heterollm",
        }
    }

    /// What of it can be reproduced: names that no other paper has.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::LlmNpu => &llm_npu::NAMES,
            Self::HeteroLlm => &heterollm::NAMES,
        }
    }
}

/// One of [`Paper::names`], simulated on the Snapdragon 8 Gen 3; `None` if the name is none of them.
pub fn section(name: &str) -> Option<Section> {
    llm_npu::section(name).or_else(|| heterollm::section(name))
}

/// How ours came to be, and what part the paper's value had in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// From the model's description alone.
    Counted,
    /// Simulated on a profile of the device, or with another number, that was fitted to this very value.
    Fitted,
    /// Simulated, and nothing was fitted to this value, but it informed a choice or nearly follows from fitted values: it
    /// tests less than one that was held out.
    Seen,
    /// Simulated, and the paper's value had no part in any choice: a prediction.
    #[serde(rename = "held out")]
    HeldOut,
    /// Simulated, without a value of the paper to compare with.
    Simulated,
}

impl Kind {
    /// Name for people, and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Fitted => "fitted",
            Self::Seen => "seen",
            Self::HeldOut => "held out",
            Self::Simulated => "simulated",
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// What it is, with its unit.
    pub what: String,
    /// The paper's value: one value twice, or from and to, where infinity (in JSON `null`) is no upper end; none where
    /// its text has no number.
    pub paper: Option<(f64, f64)>,
    /// What we have.
    pub ours: f64,
    /// How.
    pub kind: Kind,
}

impl Value {
    /// How far ours is from the paper's, relative to it; within a range 0.
    pub fn error(&self) -> Option<f64> {
        self.paper.map(|(low, high)| {
            if self.ours < low {
                self.ours / low - 1.0
            } else if self.ours > high {
                self.ours / high - 1.0
            } else {
                0.0
            }
        })
    }
}

/// A table or a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// One of [`Paper::names`].
    pub name: &'static str,
    /// What it shows, and remarks.
    pub about: &'static str,
    /// Its values.
    pub values: Vec<Value>,
    /// What the paper has of engines that are not simulated here.
    pub cited: Vec<Cited>,
}

/// A number of the paper that stands alone: nothing here is compared with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cited {
    /// What it is, with its unit.
    pub what: String,
    /// The paper's value.
    pub paper: f64,
}

impl Section {
    /// Mean distance of the values of `kind` from the paper's, relative to them; none where there is nothing to compare.
    pub fn mean_error(&self, kind: Kind) -> Option<f64> {
        mean_error(std::slice::from_ref(self), kind)
    }
}

/// As [`Section::mean_error`], of the values of several sections.
pub fn mean_error(sections: &[Section], kind: Kind) -> Option<f64> {
    let of_kind = sections.iter().flat_map(|section| &section.values).filter(|value| value.kind == kind);
    let errors: Vec<_> = of_kind.filter_map(Value::error).map(f64::abs).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

fn value(what: impl Into<String>, paper: impl Into<Option<(f64, f64)>>, ours: f64, kind: Kind) -> Value {
    Value { what: what.into(), paper: paper.into(), ours, kind }
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

    #[test]
    fn an_error_is_the_distance_to_the_nearer_end_of_a_range() {
        let of = |ours| value("", (2.0, 4.0), ours, Kind::HeldOut).error();
        assert_eq!([of(1.0), of(2.0), of(3.0), of(5.0)], [Some(-0.5), Some(0.0), Some(0.0), Some(0.25)]);
        let at_least = |ours| value("", more_than(2.0), ours, Kind::HeldOut).error();
        assert_eq!([at_least(1.0), at_least(9.0)], [Some(-0.5), Some(0.0)]);
    }
}
