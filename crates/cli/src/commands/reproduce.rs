//! `triad reproduce`: the paper's tables and figures beside ours.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_plan::reproduce::{Kind, NAMES, Section, Value, section};

use crate::output;

/// Set the tables and figures of the llm.npu paper beside our own values.
///
/// Simulated values come from a profile of the paper's phone. Each is marked: `fitted` to the paper's value, `seen` where
/// that informed a choice, `held out` where it had no part in any. Only what was held out is a prediction, and some of them
/// miss: docs/scheduling.md explains why. Nothing here was measured on such a phone.
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
    /// Of values that were held out, relative to the paper's.
    mean_error_held_out: Option<f64>,
    /// Of values that informed a choice.
    mean_error_seen: Option<f64>,
}

/// Simulates, counts and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let chosen = NAMES.into_iter().filter(|name| arguments.name == "all" || arguments.name == *name);
    let with_error = |section: Section| WithError {
        mean_error_held_out: section.mean_error(Kind::HeldOut),
        mean_error_seen: section.mean_error(Kind::Seen),
        section,
    };
    let reproduced = Reproduced { sections: chosen.filter_map(section).map(with_error).collect() };
    if arguments.json {
        return output::json(&reproduced);
    }
    let sections: Vec<_> = reproduced.sections.iter().map(text).collect();
    output::text(&sections.join("\n\n"))
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
    format!("{}: {}\n\n{table}{errors}", section.name, section.about)
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
