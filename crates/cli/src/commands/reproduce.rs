//! `triad reproduce`: the papers' tables and figures beside ours.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_plan::reproduce::{Kind, Paper, Section, Value, mean_error, section};

use crate::output;

/// Set the tables and figures of the llm.npu and HeteroLLM papers beside our own values.
///
/// Simulated values come from a profile of the papers' phone. Each is marked: `fitted` to the paper's value, `seen` where
/// that informed a choice, `held out` where it had no part in any. Only what was held out is a prediction, and some of them
/// miss: docs/scheduling.md and docs/heterollm.md explain why. Nothing here was measured on such a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad reproduce
  triad reproduce llm.npu
  triad reproduce heterollm --json
  triad reproduce table-4
  triad reproduce heterollm/figure-13")]
pub struct Arguments {
    /// A paper (llm.npu or heterollm), one of its tables and figures, or all
    #[arg(value_name = "NAME", default_value = ALL, value_parser = PossibleValuesParser::new(names()))]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Both papers.
const ALL: &str = "all";

/// All that can be asked for.
fn names() -> impl Iterator<Item = &'static str> {
    let of_paper = |paper: Paper| [paper.name()].into_iter().chain(paper.names().iter().copied());
    [ALL].into_iter().chain(Paper::ALL.into_iter().flat_map(of_paper))
}

/// What `reproduce --json` prints.
#[derive(Serialize)]
struct Reproduced {
    sections: Vec<WithError>,
    /// Of each paper that all sections of were asked for.
    papers: Vec<PaperError>,
}

#[derive(Serialize)]
struct WithError {
    #[serde(flatten)]
    section: Section,
    /// Of values that were held out, relative to the paper's.
    mean_error_held_out: Option<f64>,
    /// Of values that informed a choice.
    mean_error_seen: Option<f64>,
}

/// How far the predictions of a whole paper are off.
#[derive(Serialize)]
struct PaperError {
    paper: Paper,
    /// Values that were held out.
    held_out: usize,
    /// The mean of their errors, relative to the paper's values.
    mean_error_held_out: Option<f64>,
}

impl PaperError {
    fn new(paper: Paper, sections: &[Section]) -> Self {
        let values = sections.iter().flat_map(|section| &section.values);
        let held_out = values.filter(|value| value.kind == Kind::HeldOut).count();
        Self { paper, held_out, mean_error_held_out: mean_error(sections, Kind::HeldOut) }
    }
}

/// Simulates, counts and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let asked = arguments.name.as_str();
    let (mut sections, mut papers) = (Vec::new(), Vec::new());
    for paper in Paper::ALL {
        let is_whole = [ALL, paper.name()].contains(&asked);
        let names = paper.names().iter().filter(|name| is_whole || **name == asked);
        let of_paper: Vec<_> = names.filter_map(|name| section(name)).collect();
        papers.extend(is_whole.then(|| PaperError::new(paper, &of_paper)));
        sections.extend(of_paper);
    }
    let with_error = |section: Section| WithError {
        mean_error_held_out: section.mean_error(Kind::HeldOut),
        mean_error_seen: section.mean_error(Kind::Seen),
        section,
    };
    let reproduced = Reproduced { sections: sections.into_iter().map(with_error).collect(), papers };
    if arguments.json {
        return output::json(&reproduced);
    }
    let sections = reproduced.sections.iter().map(text);
    let all: Vec<_> = sections.chain(reproduced.papers.iter().filter_map(of_paper)).collect();
    output::text(&all.join("\n\n"))
}

fn of_paper(PaperError { paper, held_out, mean_error_held_out }: &PaperError) -> Option<String> {
    let percent = 100.0 * (*mean_error_held_out)?;
    Some(format!("{}: mean error of all {held_out} values that were held out: {percent:.1} %", paper.name()))
}

fn text(WithError { section, mean_error_held_out, mean_error_seen }: &WithError) -> String {
    let rows: Vec<_> = section.values.iter().map(cells).collect();
    let table = output::table(&["", "paper", "ours", "error", "how"], 1, &rows);
    let of = |kind: Kind, error: Option<f64>| {
        error.map_or_else(String::new, |error| {
            format!("\nmean error of what was {}: {:.1} %", kind.name(), 100.0 * error)
        })
    };
    let errors = of(Kind::HeldOut, *mean_error_held_out) + &of(Kind::Seen, *mean_error_seen);
    let cited = section.cited.iter().map(|cited| format!("\nthe paper alone: {}: {}", cited.what, number(cited.paper)));
    format!("{}: {}\n\n{table}{errors}{}", section.name, section.about, cited.collect::<String>())
}

fn cells(value: &Value) -> Vec<String> {
    let paper = match value.paper {
        Some((low, high)) if low == high => number(low),
        Some((low, f64::INFINITY)) => format!("> {}", number(low)),
        Some((low, high)) => format!("{}-{}", number(low), number(high)),
        None => "-".into(),
    };
    let error = value.error().map_or_else(|| "-".into(), |error| format!("{:+.1} %", 100.0 * error));
    vec![value.what.clone(), paper, number(value.ours), error, value.kind.name().into()]
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        some if some >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
