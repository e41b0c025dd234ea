//! `triad-lab reproduce`: compares the papers' tables and figures with Triad's values.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_lab::papers::{Cited, Kind, Nearness, Paper, Section, Value, section};

use triad_console::output;

/// Compare the tables and figures of the llm.npu and HeteroLLM papers with Triad's values.
///
/// Simulated values come from a profile of the papers' phone. Each value has a mark: `fitted` if a parameter was fitted
/// to the paper's value; `seen` if the paper's value, or one that the simulated value depends on, informed a choice;
/// `held out` if neither is the case. Only held-out values are predictions, and some are wrong:
/// docs/measurements/llm-npu.md and docs/measurements/heterollm.md explain why. If the paper states a range, the value
/// is inside or outside, with its distance from the middle, and is not part of a mean error. Values that are not
/// simulated are cited, with the reason. No value here was measured on such a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab reproduce
  triad-lab reproduce llm.npu
  triad-lab reproduce heterollm --json
  triad-lab reproduce table-4
  triad-lab reproduce micro-benchmarks
  triad-lab reproduce heterollm/figure-13")]
pub struct Arguments {
    /// Paper (llm.npu or heterollm), one of its tables or figures, or all
    #[arg(value_name = "NAME", default_value = ALL, value_parser = PossibleValuesParser::new(names()))]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Name that stands for both papers.
const ALL: &str = "all";

/// Returns all names that can be requested.
fn names() -> impl Iterator<Item = &'static str> {
    let of_paper = |paper: Paper| {
        [paper.name()]
            .into_iter()
            .chain(paper.names().iter().copied())
    };
    [ALL]
        .into_iter()
        .chain(Paper::ALL.into_iter().flat_map(of_paper))
}

/// Output of `reproduce --json`.
#[derive(Serialize)]
struct Reproduced {
    sections: Vec<Compared>,
    /// Papers of which all sections were requested.
    papers: Vec<PaperNearness>,
}

/// A section, and how close its values are to the paper's.
#[derive(Serialize)]
struct Compared {
    name: &'static str,
    about: &'static str,
    values: Vec<Row>,
    /// One entry per kind.
    nearness: Vec<Nearness>,
    cited: Vec<Cited>,
    not_simulated: &'static str,
}

impl Compared {
    fn new(section: &Section) -> Self {
        Self {
            name: section.name,
            about: section.about,
            values: section.values.iter().map(Row::new).collect(),
            nearness: of_kinds(std::slice::from_ref(section)),
            cited: section.cited.clone(),
            not_simulated: section.not_simulated,
        }
    }
}

/// A value, and its difference from the paper's.
#[derive(Serialize)]
struct Row {
    what: String,
    /// One number twice, or the ends of a range; `null` stands for no upper end.
    paper: Option<(f64, f64)>,
    ours: f64,
    kind: Kind,
    /// Relative error, if the paper states one number.
    error: Option<f64>,
    /// Whether the value is inside the range, if the paper states one.
    inside: Option<bool>,
    /// Relative distance from the middle of the range, if it has two ends.
    from_middle: Option<f64>,
}

impl Row {
    fn new(value: &Value) -> Self {
        Self {
            what: value.what.clone(),
            paper: value.paper,
            ours: value.ours,
            kind: value.kind,
            error: value.error(),
            inside: value.inside(),
            from_middle: value.from_middle(),
        }
    }
}

/// How close the values of a whole paper are.
#[derive(Serialize)]
struct PaperNearness {
    paper: Paper,
    /// One entry per kind.
    nearness: Vec<Nearness>,
}

fn of_kinds(sections: &[Section]) -> Vec<Nearness> {
    Kind::COMPARED
        .into_iter()
        .filter_map(|kind| Nearness::new(sections, kind))
        .collect()
}

/// Simulates, counts and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let asked = arguments.name.as_str();
    let mut reproduced = Reproduced {
        sections: Vec::new(),
        papers: Vec::new(),
    };
    for paper in Paper::ALL {
        let is_whole = [ALL, paper.name()].contains(&asked);
        let names = paper
            .names()
            .iter()
            .filter(|name| is_whole || **name == asked);
        let of_paper: Vec<_> = names.filter_map(|name| section(name)).collect();
        if is_whole {
            reproduced.papers.push(PaperNearness {
                paper,
                nearness: of_kinds(&of_paper),
            });
        }
        reproduced
            .sections
            .extend(of_paper.iter().map(Compared::new));
    }
    if arguments.json {
        return output::json(&reproduced);
    }
    let sections = reproduced.sections.iter().map(text);
    let all: Vec<_> = sections
        .chain(reproduced.papers.iter().map(of_paper))
        .collect();
    output::text(&all.join("\n\n"))
}

fn of_paper(PaperNearness { paper, nearness }: &PaperNearness) -> String {
    let lines: Vec<_> = nearness
        .iter()
        .map(|nearness| format!("{}, all of it, {}", paper.name(), sentence(nearness)))
        .collect();
    lines.join("\n")
}

fn text(section: &Compared) -> String {
    let rows: Vec<_> = section.values.iter().map(cells).collect();
    let table = output::table(&["", "paper", "ours", "error", "how"], 1, &rows);
    let mut text = format!("{}: {}\n\n{table}", section.name, section.about);
    for nearness in &section.nearness {
        text += &format!("\n{}", sentence(nearness));
    }
    if !section.cited.is_empty() {
        text += &format!(
            "\nthe paper alone, not simulated ({}):",
            section.not_simulated
        );
    }
    for cited in &section.cited {
        text += &format!("\n  {}: {}", cited.what, range(cited.paper));
    }
    text
}

/// Describes how close the values of a kind are.
fn sentence(nearness: &Nearness) -> String {
    let percent = |mean: Option<f64>| mean.map(|mean| format!("{:.1} %", 100.0 * mean));
    let numbers = percent(nearness.mean_error)
        .map(|mean| format!("{} with one number, mean error {mean}", nearness.numbers));
    let ranges = (nearness.ranges > 0).then(|| {
        let middle = percent(nearness.mean_from_middle);
        let middle = middle.map_or_else(String::new, |mean| {
            format!(", {mean} from the middle on average")
        });
        format!(
            "{} with a range, {} inside{middle}",
            nearness.ranges, nearness.inside
        )
    });
    let parts: Vec<_> = numbers.into_iter().chain(ranges).collect();
    format!("{}: {}", nearness.kind.name(), parts.join("; "))
}

fn cells(row: &Row) -> Vec<String> {
    let percent = |part: f64| format!("{:+.1} %", 100.0 * part);
    let error = match (row.error, row.inside) {
        (Some(error), _) => percent(error),
        (None, Some(inside)) => {
            let place = if inside { "inside" } else { "outside" };
            let middle = row.from_middle.map_or_else(String::new, |part| {
                format!(", {} from the middle", percent(part))
            });
            format!("{place}{middle}")
        }
        (None, None) => "-".into(),
    };
    let paper = row.paper.map_or_else(|| "-".into(), range);
    vec![
        row.what.clone(),
        paper,
        number(row.ours),
        error,
        row.kind.name().into(),
    ]
}

/// Formats one number, or a range.
fn range((low, high): (f64, f64)) -> String {
    if low == high {
        number(low)
    } else if high.is_infinite() {
        format!("> {}", number(low))
    } else {
        format!("{}-{}", number(low), number(high))
    }
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        some if some >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
