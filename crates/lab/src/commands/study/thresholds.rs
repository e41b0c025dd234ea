//! `triad-lab study thresholds`: compares clip thresholds.

use anyhow::Result;
use serde::Serialize;
use triad_engine::quantization::WeightScales;
use triad_lab::measured::sweep::{self, Clipped};
use triad_prepare::threshold::ThresholdRule;

use super::measure::{MeasureArguments, Measurement, Value};
use super::{Heading, OutputArguments, Report, percent, title_of};
use triad_console::arguments::{CalibrationArguments, ModelArguments};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::output;

/// Maximum number of variants: three rules, two kinds of weight scales, with and without shadows.
const WAYS: usize = sweep::RULES.len() * 2 * 2;

/// Compare clip thresholds (max-min, percentile and least error), with and without shadows.
///
/// Each rule is measured with weight scales per output channel and per matrix, and with all shadows or none. Max-min
/// clips nothing of the calibration text (the paper's prototype). Percentile leaves at most 1 % of the values beyond
/// the threshold. Least error has the smallest expected squared error of the layers' outputs; with a shadow it equals
/// percentile, since values beyond the threshold then cause no error. The output matrix is in INT8, too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study thresholds --svg thresholds.svg
  triad-lab study thresholds -m model.gguf --data wiki.txt --limit 50")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    measure: MeasureArguments,
    #[command(flatten)]
    calibration: CalibrationArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    heading: Heading,
    /// Text that perplexity was measured on.
    perplexity_on: String,
    float: Measurement,
    ways: Vec<Clipped<Measurement>>,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (text, measure) = (arguments.calibration.text()?, arguments.measure.read()?);
    let name = &arguments.model.name.model;
    let model = arguments.model.load_float()?;
    arguments.output.show(name, |cancel| {
        let subject = super::calibrate(&model, &arguments.calibration, &text, cancel)?;
        let mut measure_one = measure.each(&subject, WAYS + 1, cancel);
        let float = measure_one(&subject.model)?;
        let ways = sweep::thresholds(&subject, measure_one)?;
        let perplexity_on = measure.text_name.clone();
        Ok(Found {
            heading: Heading::new(name, &subject),
            perplexity_on,
            float,
            ways,
        })
    })
}

fn rule(rule: ThresholdRule) -> &'static str {
    match rule {
        ThresholdRule::MaxMin => "max-min",
        ThresholdRule::Percentile => "percentile",
        ThresholdRule::LeastError => "least error",
    }
}

fn scales(weights: WeightScales) -> &'static str {
    match weights {
        WeightScales::Channel => "per channel",
        WeightScales::Tensor => "per tensor",
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let names = [
            vec!["threshold", "weights", "shadows", "beyond"],
            self.float.columns(),
        ]
        .concat();
        let float = ["float", "-", "-", "-"].map(String::from).to_vec();
        let mut rows = vec![[float, self.float.cells(None)].concat()];
        for way in &self.ways {
            let shadows = if way.variant.shadow { "all" } else { "none" };
            let labels = [
                rule(way.variant.threshold),
                scales(way.variant.weights),
                shadows,
            ]
            .map(String::from)
            .to_vec();
            rows.push(
                [
                    labels,
                    vec![percent(way.outlier_share, 3)],
                    way.measured.cells(Some(&self.float)),
                ]
                .concat(),
            );
        }
        let explained = format!(
            "beyond: values of that text beyond the threshold; perplexity on {}",
            self.perplexity_on
        );
        format!(
            "{}\n{explained}\n\n{}",
            self.heading.text(),
            output::table(&names, 3, &rows)
        )
    }

    fn figure(&self) -> Figure {
        let series = |weights: WeightScales, shadow: bool| {
            let ways = self
                .ways
                .iter()
                .filter(|way| way.variant.weights == weights && way.variant.shadow == shadow);
            let perplexities: Vec<_> = ways.map(|way| way.measured.perplexity).collect();
            let name = format!("weights {}", scales(weights));
            Series::by_category(
                name,
                Mark::Bars,
                perplexities.iter().map(|perplexity| perplexity.value),
            )
            .with_errors(perplexities.iter().map(Value::error_bar))
        };
        let panel = |title: &str, shadow: bool| {
            Panel::Chart(Chart {
                title: title.into(),
                x: Axis::categories("", sweep::RULES.map(rule)),
                // Perplexity is at least 1.
                y: Axis::logarithmic(format!("perplexity ({})", self.perplexity_on))
                    .covering(1.0, 1.0),
                series: [WeightScales::Channel, WeightScales::Tensor]
                    .map(|weights| series(weights, shadow))
                    .into(),
                guides: vec![Guide {
                    name: "float".into(),
                    at: At::Y(self.float.perplexity.value),
                }],
            })
        };
        Figure {
            title: format!("Clip thresholds of {}", title_of(&self.heading.model)),
            panels: vec![
                panel("With all shadows", true),
                panel("Without shadows", false),
            ],
            columns: 2,
        }
    }
}
