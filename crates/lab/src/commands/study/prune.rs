//! `triad-lab study prune`: measures how many shadows are needed.

use anyhow::Result;
use serde::Serialize;
use triad_lab::measured::sweep::{self, Pruned};
use triad_prepare::plan::PlanOptions;

use super::measure::{MeasureArguments, Measurement};
use super::{Heading, OutputArguments, Report, percent, title_of};
use triad_console::arguments::{self, CalibrationArguments, ModelArguments};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::output;

/// Omit more and more shadows, the least important first, and measure accuracy, perplexity and time.
///
/// The model is calibrated once, as by `triad prepare`, and then runs in INT8 with each share of its shadows omitted.
/// The time in shadows is their share of the time of the linear layers (quantization, INT8 matmul, shadow) on this
/// machine's CPU, where all of them run on the same cores. It is measured on the held-out quarter of the calibration
/// text.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study prune                                   perplexity on held-out calibration text
  triad-lab study prune -m model.gguf --data wiki.txt --limit 50 --svg prune.svg
  triad-lab study prune --smoothing 0.7,0                 with smoothing, and as the paper does it
  triad-lab study prune --rates 0,85,100 --task hellaswag --task-data hellaswag.jsonl --limit 200")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Shares of the shadows to omit, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = percentage,
        default_value = "0,10,20,30,40,50,60,70,80,90,100")]
    rates: Vec<f64>,
    /// Strength of scaling down channels beyond the clip threshold if they have no shadow, from 0 to 1, with one curve
    /// per value: 0 clips them, as the paper does
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',', value_parser = arguments::share, default_value = "0.7")]
    smoothing: Vec<f64>,
    #[command(flatten)]
    measure: MeasureArguments,
    #[command(flatten)]
    calibration: CalibrationArguments,
    #[command(flatten)]
    output: OutputArguments,
}

fn percentage(text: &str) -> Result<f64, String> {
    let percent = text
        .trim()
        .parse()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected a number from 0 to 100".into())
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    heading: Heading,
    /// Text that perplexity was measured on.
    perplexity_on: String,
    /// Linear inputs; each has its own shadow.
    inputs: usize,
    float: Measurement,
    curves: Vec<Curve>,
}

/// Results of all rates with one smoothing strength.
#[derive(Serialize)]
struct Curve {
    smoothing: f64,
    rates: Vec<Pruned<Measurement>>,
}

impl Curve {
    fn name(&self) -> String {
        if self.smoothing > 0.0 {
            format!("smoothed by {}", self.smoothing)
        } else {
            "cut off".into()
        }
    }

    /// Returns points over the share of inputs without a shadow, in percent.
    fn points(&self, of: &dyn Fn(&Measurement) -> f64) -> Vec<(f64, f64)> {
        self.rates
            .iter()
            .map(|pruned| (100.0 * pruned.rate, of(&pruned.measured)))
            .collect()
    }
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (text, measure) = (arguments.calibration.text()?, arguments.measure.read()?);
    let name = &arguments.model.name.model;
    let model = arguments.model.load_float()?;
    let rates: Vec<_> = arguments
        .rates
        .iter()
        .map(|percent| percent / 100.0)
        .collect();
    arguments.output.show(name, |cancel| {
        let subject = super::calibrate(&model, &arguments.calibration, &text, cancel)?;
        let mut measure_one = measure.each(
            &subject,
            arguments.smoothing.len() * rates.len() + 1,
            cancel,
        );
        let float = measure_one(&subject.model)?;
        let mut curve = |smoothing: &f64| {
            let options = PlanOptions {
                smoothing: *smoothing as f32,
                ..PlanOptions::default()
            };
            let rates = sweep::prune(&subject, &options, &rates, &mut measure_one)?;
            Ok::<_, anyhow::Error>(Curve {
                smoothing: *smoothing,
                rates,
            })
        };
        let curves = arguments
            .smoothing
            .iter()
            .map(&mut curve)
            .collect::<Result<_>>()?;
        let perplexity_on = measure.text_name.clone();
        let inputs = subject.calibration.inputs().count();
        Ok(Found {
            heading: Heading::new(name, &subject),
            perplexity_on,
            inputs,
            float,
            curves,
        })
    })
}

impl Report for Found {
    fn text(&self) -> String {
        let names = [
            vec!["smoothing", "without shadow", "shadows"],
            self.float.columns(),
        ]
        .concat();
        let labels = |labels: [&str; 3]| labels.map(str::to_owned).to_vec();
        let mut rows = vec![[labels(["float", "-", "-"]), self.float.cells(None)].concat()];
        for curve in &self.curves {
            rows.extend(curve.rates.iter().map(|pruned| {
                let cells = pruned.measured.cells(Some(&self.float));
                [
                    labels([
                        &curve.name(),
                        &percent(pruned.rate, 0),
                        &pruned.shadows.to_string(),
                    ]),
                    cells,
                ]
                .concat()
            }));
        }
        let heading = self.heading.text();
        let explained = format!(
            "{} linear inputs; perplexity on {}",
            self.inputs, self.perplexity_on
        );
        format!(
            "{heading}\n{explained}\n\n{}",
            output::table(&names, 2, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let curves = |of: &dyn Fn(&Measurement) -> f64| -> Vec<Series> {
            let series =
                |curve: &Curve| Series::new(curve.name(), Mark::LineWithMarkers, curve.points(of));
            self.curves.iter().map(series).collect()
        };
        let axis = || Axis::linear("inputs without shadow (%)").covering(0.0, 100.0);
        let perplexity = Chart {
            title: "Perplexity".into(),
            x: axis(),
            y: Axis::logarithmic(format!("perplexity ({})", self.perplexity_on)),
            series: curves(&|measured| measured.perplexity.value),
            guides: vec![Guide {
                name: "float".into(),
                at: At::Y(self.float.perplexity.value),
            }],
        };
        let time = Chart {
            title: "Time in shadows".into(),
            x: axis(),
            y: Axis::linear("of the linear layers' time (%)").covering(0.0, 0.0),
            series: curves(&|measured| 100.0 * measured.shadow_time_share),
            guides: Vec::new(),
        };
        let mut panels = vec![Panel::Chart(perplexity), Panel::Chart(time)];
        if !self.float.tasks.is_empty() {
            let mut series = Vec::new();
            for (index, task) in self.float.tasks.iter().enumerate() {
                series.extend(self.curves.iter().map(|curve| {
                    let points =
                        curve.points(&|measured| 100.0 * measured.tasks[index].score.value);
                    let errors = curve
                        .rates
                        .iter()
                        .map(|pruned| 100.0 * pruned.measured.tasks[index].score.error_bar());
                    let name = format!("{}, {}", task.name(), curve.name());
                    Series::new(name, Mark::LineWithMarkers, points).with_errors(errors)
                }));
            }
            let guides = self.float.tasks.iter().map(|task| Guide {
                name: format!("{} in float", task.name()),
                at: At::Y(100.0 * task.score.value),
            });
            let accuracy = Chart {
                title: "Accuracy".into(),
                x: axis(),
                y: Axis::linear("accuracy (%)"),
                series,
                guides: guides.collect(),
            };
            panels.insert(0, Panel::Chart(accuracy));
        }
        let title = format!(
            "{} with fewer and fewer shadows",
            title_of(&self.heading.model)
        );
        Figure {
            title,
            columns: panels.len(),
            panels,
        }
    }
}
