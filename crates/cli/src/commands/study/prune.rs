//! `triad study prune`: how many shadows are needed.

use anyhow::Result;
use serde::Serialize;
use triad_engine::prepare::plan::PlanOptions;
use triad_engine::study::sweep::{self, Pruned};

use super::measure::{MeasureArguments, Measurement};
use super::{Heading, OutputArguments, Report, percent, title_of};
use crate::arguments::{CalibrationArguments, ModelArguments};
use crate::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use crate::output;

/// Leave out more and more shadows, the least important first: accuracy, perplexity, and time.
///
/// The model is calibrated and quantized once, as `triad prepare` does it, and then runs with each share of its
/// shadows left out. The time in shadows is their share of the time of the linear layers (quantizing, INT8 matmul,
/// shadow) on this machine's CPU, where all of it runs on the same cores; measured on the held-out quarter of the
/// calibration text.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad study prune                                   perplexity on held-out calibration text
  triad study prune -m model.gguf --data wiki.txt --limit 50 --svg prune.svg
  triad study prune --rates 0,85,100 --task hellaswag --task-data hellaswag.jsonl --limit 200")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Shares of the shadows to leave out, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = percentage,
        default_value = "0,10,20,30,40,50,60,70,80,90,100")]
    rates: Vec<f64>,
    #[command(flatten)]
    measure: MeasureArguments,
    #[command(flatten)]
    calibration: CalibrationArguments,
    #[command(flatten)]
    output: OutputArguments,
}

fn percentage(text: &str) -> Result<f64, String> {
    let percent = text.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected a number from 0 to 100".into())
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    heading: Heading,
    /// What perplexity was measured on.
    perplexity_on: String,
    /// Linear inputs, each with a shadow of its own.
    inputs: usize,
    float: Measurement,
    rates: Vec<Pruned<Measurement>>,
}

/// Measures and shows.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (text, measure) = (arguments.calibration.text()?, arguments.measure.read()?);
    let name = &arguments.model.name.model;
    let model = arguments.model.load_float()?;
    let rates: Vec<_> = arguments.rates.iter().map(|percent| percent / 100.0).collect();
    arguments.output.show(name, |cancel| {
        let subject = super::calibrate(&model, &arguments.calibration, &text, cancel)?;
        let mut measure_one = measure.each(&subject, rates.len() + 1, cancel);
        let float = measure_one(&subject.model)?;
        let rates = sweep::prune(&subject, &PlanOptions::default(), &rates, measure_one)?;
        let perplexity_on = measure.text_name.clone();
        let inputs = subject.calibration.inputs().count();
        Ok(Found { heading: Heading::new(name, &subject), perplexity_on, inputs, float, rates })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let names = [vec!["without shadow", "shadows"], self.float.columns()].concat();
        let row = |rate: String, shadows: String, cells: Vec<String>| [vec![rate, shadows], cells].concat();
        let mut rows = vec![row("float".into(), "-".into(), self.float.cells(None))];
        rows.extend(self.rates.iter().map(|pruned| {
            let cells = pruned.measured.cells(Some(&self.float));
            row(percent(pruned.rate, 0), pruned.shadows.to_string(), cells)
        }));
        let heading = self.heading.text();
        let explained = format!("{} linear inputs; perplexity on {}", self.inputs, self.perplexity_on);
        format!("{heading}\n{explained}\n\n{}", output::table(&names, 1, &rows))
    }

    fn figure(&self) -> Figure {
        let percents = |of: &dyn Fn(&Measurement) -> f64| -> Vec<(f64, f64)> {
            self.rates.iter().map(|pruned| (100.0 * pruned.rate, of(&pruned.measured))).collect()
        };
        let axis = || Axis::linear("inputs without shadow (%)").covering(0.0, 100.0);
        let perplexity = Chart {
            title: "Perplexity".into(),
            x: axis(),
            y: Axis::logarithmic(format!("perplexity ({})", self.perplexity_on)),
            series: vec![Series::new(
                "INT8 with shadows",
                Mark::LineWithMarkers,
                percents(&|measured| measured.perplexity.value),
            )],
            guides: vec![Guide { name: "float".into(), at: At::Y(self.float.perplexity.value) }],
        };
        let time = Chart {
            title: "Time in shadows".into(),
            x: axis(),
            y: Axis::linear("of the linear layers' time (%)").covering(0.0, 0.0),
            series: vec![Series::new(
                "shadows",
                Mark::LineWithMarkers,
                percents(&|measured| 100.0 * measured.shadow_time_share),
            )],
            guides: Vec::new(),
        };
        let mut panels = vec![Panel::Chart(perplexity), Panel::Chart(time)];
        if !self.float.tasks.is_empty() {
            let series = self.float.tasks.iter().enumerate().map(|(index, task)| {
                let points = percents(&|measured| 100.0 * measured.tasks[index].score.value);
                let errors = self.rates.iter().map(|pruned| 100.0 * pruned.measured.tasks[index].score.error_bar());
                Series::new(task.name(), Mark::LineWithMarkers, points).with_errors(errors)
            });
            let guides = self
                .float
                .tasks
                .iter()
                .map(|task| Guide { name: format!("{} in float", task.name()), at: At::Y(100.0 * task.score.value) });
            let accuracy = Chart {
                title: "Accuracy".into(),
                x: axis(),
                y: Axis::linear("accuracy (%)"),
                series: series.collect(),
                guides: guides.collect(),
            };
            panels.insert(0, Panel::Chart(accuracy));
        }
        let title = format!("{} with fewer and fewer shadows", title_of(&self.heading.model));
        Figure { title, columns: panels.len(), panels }
    }
}
