//! `triad-lab reproduce`: the papers' tables and figures beside ours.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use triad_lab::papers::{Cited, Kind, Nearness, Paper, Section, Value, section};

use triad_console::output;

/// Set the tables and figures of the llm.npu and HeteroLLM papers beside our own values.
///
/// Simulated values come from a profile of the papers' phone. Each is marked: `fitted` to the paper's value, `seen` where
/// that or what ours hangs on informed a choice, `held out` where nothing did. Only what was held out is a prediction, and
/// some of them miss: docs/scheduling.md and docs/heterollm.md explain why. Beside a range of the paper, a value is inside
/// or outside, with its distance from the middle, and is no part of a mean error. What is not simulated is cited, with the
/// reason. Nothing here was measured on such a phone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab reproduce
  triad-lab reproduce llm.npu
  triad-lab reproduce heterollm --json
  triad-lab reproduce table-4
  triad-lab reproduce micro-benchmarks
  triad-lab reproduce heterollm/figure-13")]
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
    let of_paper = |paper: Paper| {
        [paper.name()]
            .into_iter()
            .chain(paper.names().iter().copied())
    };
    [ALL]
        .into_iter()
        .chain(Paper::ALL.into_iter().flat_map(of_paper))
}

/// What `reproduce --json` prints.
#[derive(Serialize)]
struct Reproduced {
    sections: Vec<Compared>,
    /// Of each paper that all sections of were asked for.
    papers: Vec<PaperNearness>,
}

/// A section, and how near it comes.
#[derive(Serialize)]
struct Compared {
    name: &'static str,
    about: &'static str,
    values: Vec<Row>,
    /// By kind.
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

/// A value, and how near it is.
#[derive(Serialize)]
struct Row {
    what: String,
    /// One number twice, or from and to; `null` is no upper end.
    paper: Option<(f64, f64)>,
    ours: f64,
    kind: Kind,
    /// Beside one number: relative to it.
    error: Option<f64>,
    /// Beside a range.
    inside: Option<bool>,
    /// Beside a range with two ends: relative to its middle.
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

/// How near a whole paper's values come.
#[derive(Serialize)]
struct PaperNearness {
    paper: Paper,
    /// By kind.
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

/// How near the values of a kind come, in words.
fn sentence(nearness: &Nearness) -> String {
    let percent = |mean: Option<f64>| mean.map(|mean| format!("{:.1} %", 100.0 * mean));
    let numbers = percent(nearness.mean_error)
        .map(|mean| format!("{} beside one number, mean error {mean}", nearness.numbers));
    let ranges = (nearness.ranges > 0).then(|| {
        let middle = percent(nearness.mean_from_middle);
        let middle = middle.map_or_else(String::new, |mean| {
            format!(", {mean} from the middle on average")
        });
        format!(
            "{} beside a range, {} inside{middle}",
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

/// One number, or from and to.
fn range((low, high): (f64, f64)) -> String {
    if low == high {
        number(low)
    } else if high.is_infinite() {
        format!("> {}", number(low))
    } else {
        format!("{}-{}", number(low), number(high))
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        some if some >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
