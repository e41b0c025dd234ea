//! `triad reproduce`: the paper's tables and figures beside ours.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_plan::reproduce::{NAMES, Section, Value, section};

use crate::output;

/// Set the tables and figures of the llm.npu paper beside our own values.
///
/// Simulated values come from a profile of the paper's phone that was fitted to a few values of Qwen1.5-1.8B, which are
/// marked; all others are predictions, and some of them miss: docs/scheduling.md says why. Nothing here was measured on
/// such a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad reproduce
  triad reproduce table-4
  triad reproduce figure-17 --json")]
pub struct Arguments {
    /// sharing, figure-8, figure-13 to figure-17, table-4, or all
    #[arg(value_name = "NAME", default_value = "all", value_parser = PossibleValuesParser::new(["all"].into_iter().chain(NAMES)))]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `reproduce --json` prints.
#[derive(Serialize)]
struct Reproduced {
    sections: Vec<WithError>,
}

#[derive(Serialize)]
struct WithError {
    #[serde(flatten)]
    section: Section,
    /// Of predictions, relative to the paper's values.
    mean_error: Option<f64>,
}

/// Simulates, counts and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let asked = NAMES.into_iter().filter(|name| arguments.name == "all" || arguments.name == *name);
    let with_error = |section: Section| WithError { mean_error: section.mean_error(), section };
    let reproduced = Reproduced { sections: asked.filter_map(section).map(with_error).collect() };
    if arguments.json {
        return output::json(&reproduced);
    }
    let sections: Vec<_> = reproduced.sections.iter().map(text).collect();
    output::text(&sections.join("\n\n"))
}

fn text(WithError { section, mean_error }: &WithError) -> String {
    let rows: Vec<_> = section.values.iter().map(cells).collect();
    let table = output::table(&["", "paper", "ours", "error", "how"], 1, &rows);
    let error =
        mean_error.map_or_else(String::new, |error| format!("\nmean error of predictions: {:.1} %", 100.0 * error));
    format!("{}: {}\n\n{table}{error}", section.name, section.about)
}

fn cells(value: &Value) -> Vec<String> {
    let paper = match value.paper {
        Some((low, high)) if low == high => number(low),
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
