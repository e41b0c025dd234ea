//! `triad-lab study hot-channels`: calibrates on one domain and runs on another.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_lab::measured::hot_channels::{self, Calibrated, Domain, Pair, Progress};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::plan::PlanOptions;

use super::{OutputArguments, Report, percent, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Figure, HeatMap, Panel};
use triad_console::{inputs, output, progress};

/// Built-in domains of the study: those in which the paper's workloads differ.
const DOMAINS: [&str; 5] = ["encyclopedia", "dialogue", "code", "chinese", "screens"];

/// Calibrate on one domain of text and run on another, to find whether hot channels are the same.
///
/// Clip thresholds and hot channels come from every second text of one domain. The other texts of each domain are run.
/// The study applies to a processor whose weights the CPU can't read. Rows of hot channels stay in memory; other rows
/// are read from a file when an outlier requires them, while the processor multiplies. The CPU simulates that
/// processor, and the activations are those of the float model. For each pair of domains:
///
/// Hit rate: share of the outliers that are in hot channels.
///
/// Rows in memory: share of the requested rows that are in memory. A chunk of 256 tokens requests one row for each
/// channel with an outlier in any of its tokens, no matter in how many.
///
/// Read: bytes of the rows that were not in memory. Stall: time spent waiting for them after the multiplication; the
/// machine should be otherwise idle. The file was written just before, so that rows come from the system's file cache
/// and not from the disk.
///
/// All shadows are kept unless --prune is given.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study hot-channels --svg hot-channels.svg
  triad-lab study hot-channels -m model.gguf --domain wiki=wiki.txt --domain screens=screens.jsonl --tokens 4096")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Further domain of at least two texts, plain or JSON lines. One with the name of a built-in domain (encyclopedia,
    /// dialogue, code, chinese, screens) replaces it. May be given several times
    #[arg(long, value_name = "NAME=FILE", value_parser = domain)]
    domain: Vec<(String, PathBuf)>,
    /// Maximum number of tokens per domain for calibration; as many are run
    #[arg(long, value_name = "N", default_value = "4096", value_parser = arguments::tokens)]
    tokens: usize,
    /// Share of the outliers that hot channels cover at least
    #[arg(long, value_name = "SHARE", default_value = "0.8", value_parser = arguments::share)]
    hot_share: f64,
    /// Share of the inputs without a shadow, the least important first
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = arguments::share)]
    prune: f64,
    #[command(flatten)]
    output: OutputArguments,
}

fn domain(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text
        .split_once('=')
        .filter(|(name, path)| !name.trim().is_empty() && !path.is_empty());
    let (name, path) = parts.ok_or("expected NAME=FILE")?;
    Ok((name.trim().to_owned(), path.into()))
}

impl Arguments {
    /// Returns the built-in domains and those of the files, without duplicate names.
    fn texts(&self) -> Result<Vec<CalibrationText>> {
        let mut texts: Vec<_> = CalibrationText::builtin_domains();
        texts.retain(|text| DOMAINS.contains(&text.name.as_str()));
        texts.sort_by_key(|text| DOMAINS.iter().position(|name| *name == text.name));
        for (index, (name, path)) in self.domain.iter().enumerate() {
            let twice = self.domain[..index]
                .iter()
                .any(|(earlier, _)| earlier == name);
            ensure!(
                !twice,
                "--domain {name} is given twice: expected a name for each domain"
            );
            inputs::add(path);
            let text = CalibrationText {
                name: name.clone(),
                ..CalibrationText::read(path)?
            };
            match texts.iter_mut().find(|builtin| builtin.name == *name) {
                Some(builtin) => *builtin = text,
                None => texts.push(text),
            }
        }
        Ok(texts)
    }
}

#[derive(Serialize)]
struct Found {
    model: String,
    hot_share: f64,
    pruned: f64,
    domains: Vec<Calibrated>,
    pairs: Vec<Measured>,
}

/// A pair of domains, with derived values.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    pair: Pair,
    hit_rate: f64,
    row_hit_rate: f64,
    bytes_read_per_token: f64,
    stall_microseconds_per_token: f64,
}

impl Measured {
    fn new(pair: Pair) -> Self {
        let tokens = pair.tokens.max(1) as f64;
        Self {
            hit_rate: pair.hit_rate(),
            row_hit_rate: pair.rows.hit_rate(),
            bytes_read_per_token: pair.rows.bytes_read as f64 / tokens,
            stall_microseconds_per_token: 1e6 * pair.rows.stall_seconds / tokens,
            pair,
        }
    }
}

/// Runs all pairs and prints the results.
pub fn run(arguments: &Arguments) -> Result<()> {
    let texts = arguments.texts()?;
    let name = &arguments.model.name.model;
    let model = arguments.model.load_float()?;
    let options = PlanOptions {
        hot_share: arguments.hot_share,
        ..PlanOptions::default()
    };
    arguments.output.show(name, |cancel| {
        let domains = texts
            .iter()
            .map(|text| Domain::new(&model, text, arguments.tokens));
        let domains = domains.collect::<Result<Vec<_>, _>>()?;
        let bar = progress::tokens("running", 0);
        let mut show = |progress| {
            if let Progress::Running { done, total } = progress {
                bar.set_to(done, total);
            }
        };
        let study = hot_channels::study(
            &model,
            &domains,
            &options,
            arguments.prune,
            cancel,
            &mut show,
        )?;
        Ok(Found {
            model: name.clone(),
            hot_share: arguments.hot_share,
            pruned: arguments.prune,
            domains: study.domains,
            pairs: study.pairs.into_iter().map(Measured::new).collect(),
        })
    })
}

impl Found {
    /// Returns `of` for every pair, one row per calibration domain.
    fn matrix(&self, of: impl Fn(&Measured) -> f64) -> Vec<Vec<f64>> {
        self.pairs
            .chunks(self.domains.len().max(1))
            .map(|row| row.iter().map(&of).collect())
            .collect()
    }

    fn heat_map(&self, title: &str, value: &str, of: impl Fn(&Measured) -> f64) -> Panel {
        let names: Vec<_> = self
            .domains
            .iter()
            .map(|domain| domain.name.clone())
            .collect();
        Panel::HeatMap(HeatMap {
            title: title.into(),
            x: "run on".into(),
            y: "calibrated on".into(),
            columns: names.clone(),
            rows: names,
            values: self.matrix(of),
            value: value.into(),
        })
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let names: Vec<_> = self
            .domains
            .iter()
            .map(|domain| domain.name.as_str())
            .collect();
        let matrix = |cell: &dyn Fn(&Measured) -> String| {
            let columns: Vec<_> = ["calibrated on"]
                .into_iter()
                .chain(names.iter().copied())
                .collect();
            let rows = self.pairs.chunks(names.len().max(1)).zip(&names);
            let row = |(pairs, name): (&[Measured], &&str)| {
                [(*name).to_owned()]
                    .into_iter()
                    .chain(pairs.iter().map(cell))
                    .collect::<Vec<_>>()
            };
            output::table(&columns, 1, &rows.map(row).collect::<Vec<_>>())
        };
        let of_domain = |domain: &Calibrated| {
            vec![
                domain.name.clone(),
                output::count(domain.calibration_tokens),
                output::count(domain.hot_channels),
                percent(
                    domain.hot_channels as f64 / domain.channels.max(1) as f64,
                    1,
                ),
                output::bytes(domain.hot_bytes as u64),
            ]
        };
        let domains: Vec<_> = self.domains.iter().map(of_domain).collect();
        let columns = [
            "calibrated on",
            "tokens",
            "hot channels",
            "of all",
            "rows in memory",
        ];
        [
            format!(
                "{}, hot channels cover {} of the outliers in calibration",
                self.model,
                percent(self.hot_share, 0)
            ),
            format!("\n{}", output::table(&columns, 1, &domains)),
            "\nHit rate: outliers in hot channels, run on\n".into(),
            matrix(&|pair| percent(pair.hit_rate, 1)),
            "\nRows in memory of the requested ones, run on\n".into(),
            matrix(&|pair| percent(pair.row_hit_rate, 1)),
            "\nBytes read per token, run on\n".into(),
            matrix(&|pair| output::bytes(pair.bytes_read_per_token.round() as u64)),
            "\nStall per token, rows from the system's cache, run on\n".into(),
            matrix(&|pair| format!("{:.1} µs", pair.stall_microseconds_per_token)),
        ]
        .join("\n")
    }

    fn figure(&self) -> Figure {
        Figure {
            title: format!("Hot channels of {}", title_of(&self.model)),
            panels: vec![
                self.heat_map("Outliers in hot channels", "hit rate (%)", |pair| {
                    100.0 * pair.hit_rate
                }),
                self.heat_map("Rows in memory", "of the requested ones (%)", |pair| {
                    100.0 * pair.row_hit_rate
                }),
                self.heat_map("Read from the file", "KiB per token", |pair| {
                    pair.bytes_read_per_token / 1024.0
                }),
                self.heat_map("Stall", "µs per token", |pair| {
                    pair.stall_microseconds_per_token
                }),
            ],
            columns: 2,
        }
    }
}
