//! `triad-lab study outliers`: counts where outliers are, their skew and their importance.

use anyhow::Result;
use serde::Serialize;
use triad_engine::LinearInput;
use triad_lab::measured::outliers::{
    self, InputOutliers, KindOutliers, OutlierStudy, PROMPT_TOKENS, RowBytes,
};
use triad_prepare::plan::{OUTLIER_SHARE, PlanOptions};

use super::{Heading, OutputArguments, Report, percent, readers, title_of};
use triad_console::arguments::{self, CalibrationArguments, ModelArguments};
use triad_console::chart::{At, Axis, Chart, Figure, Guide, Mark, Panel, Series};
use triad_console::output;

/// Count outliers: channels of each layer, their skew, their importance, and the memory of their shadows.
///
/// Outliers are counted over the calibration text, for each input of linear layers (of query, key and value; of
/// attention's output; of gate and up; of down). An outlier is a value beyond the clip threshold of its input. The
/// threshold follows from --outlier-share: about that share of the values is beyond it. So the number of outliers is a
/// choice, but their position is not. As in the paper (llm.npu, figures 10 to 12):
///
/// Per token: average number of channels of one token that are outliers ("5-15 channels, 0.1-0.3 % during one
/// inference"). Ever: number of channels that are an outlier at some token of the text ("78 %").
///
/// Hot: the fewest channels that cover --hot-share of the outliers of their input ("< 3 % give over 80 %").
///
/// Importance: largest outlier / clip threshold.
///
/// Memory is that of a processor whose weights the CPU can't read. There, the rows of shadows (the INT8 weights that
/// read one channel) are a second copy. The paper keeps the rows of hot channels instead of all ("-34.3 %", without a
/// reference value; "0.6-1 % of the total memory" with 512 tokens). Both shares are printed, for all inputs and for
/// those that keep their shadow with --prune. If processors share memory, there is no second copy, and shadows take no
/// memory.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study outliers --svg outliers.svg
  triad-lab study outliers -m model.gguf --calibrate wiki.txt --outlier-share 0.003
  triad-lab study outliers -m model.gguf --json > outliers.json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Share of the values of an input that are beyond its clip threshold at most
    #[arg(long, value_name = "SHARE", default_value_t = OUTLIER_SHARE, value_parser = arguments::share)]
    outlier_share: f64,
    /// Share of the outliers that hot channels cover at least
    #[arg(long, value_name = "SHARE", default_value = "0.8", value_parser = arguments::share)]
    hot_share: f64,
    /// Share of the inputs without a shadow, the least important first
    #[arg(long, value_name = "RATE", default_value = "0.85", value_parser = arguments::share)]
    prune: f64,
    #[command(flatten)]
    calibration: CalibrationArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    heading: Heading,
    /// The options.
    outlier_share: f64,
    hot_share: f64,
    pruned: f64,
    #[serde(flatten)]
    study: OutlierStudy,
    /// Shares computed from `memory`: all inputs, then those that keep their shadow.
    memory_shares: [MemoryShares; 2],
}

/// The paper's shares.
#[derive(Serialize)]
struct MemoryShares {
    /// Hot rows as a share of all memory of a run.
    hot_of_memory: f64,
    /// All rows as a share of all memory of a run that keeps them.
    all_of_memory: f64,
    /// Saving of hot rows compared with all rows.
    saving: f64,
    /// Saving compared with the rows of channels that ever had an outlier.
    saving_of_ever: f64,
}

/// Counts and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        outlier_share,
        hot_share,
        prune,
        ..
    } = *arguments;
    let text = arguments.calibration.text()?;
    let name = &arguments.model.name.model;
    let model = arguments.model.load_float()?;
    let options = PlanOptions {
        outlier_share,
        hot_share,
        ..PlanOptions::default()
    };
    arguments.output.show(name, |cancel| {
        let subject = super::calibrate(&model, &arguments.calibration, &text, cancel)?;
        let study = outliers::study(&subject, &options, prune);
        let memory = &study.memory;
        let shares = |rows: RowBytes| MemoryShares {
            hot_of_memory: memory.share(rows.hot),
            all_of_memory: memory.share(rows.all),
            saving: rows.saving(),
            saving_of_ever: rows.saving_of_ever(),
        };
        let memory_shares = [memory.unpruned, memory.pruned].map(shares);
        let heading = Heading::new(name, &subject);
        Ok(Found {
            heading,
            outlier_share,
            hot_share,
            pruned: prune,
            study,
            memory_shares,
        })
    })
}

impl Found {
    fn of_input(&self, input: LinearInput) -> impl Iterator<Item = &InputOutliers> {
        self.study
            .inputs
            .iter()
            .filter(move |found| found.input == input)
    }

    /// Returns a table with one row per layer and one column per input.
    fn blocks(&self, cell: impl Fn(&InputOutliers) -> String) -> String {
        let names: Vec<_> = ["block"]
            .into_iter()
            .chain(LinearInput::DENSE.map(readers))
            .collect();
        let rows: Vec<_> = self
            .study
            .inputs
            .chunks(LinearInput::DENSE.len())
            .map(|inputs| {
                [inputs[0].block.to_string()]
                    .into_iter()
                    .chain(inputs.iter().map(&cell))
                    .collect()
            })
            .collect();
        output::table(&names, 1, &rows)
    }

    fn kinds(&self) -> String {
        let names = [
            "input of",
            "outliers per token",
            "of the channels",
            "ever",
            "hot",
            "largest importance",
        ];
        let row = |kind: &KindOutliers| {
            vec![
                kind.input.map_or("all", readers).to_owned(),
                format!("{:.1}", kind.of_a_token),
                percent(kind.outlier_share, 2),
                percent(kind.ever_share, 1),
                percent(kind.hot_share, 1),
                format!("{:.1}", kind.importance),
            ]
        };
        let rows: Vec<_> = self
            .study
            .kinds
            .iter()
            .chain([&self.study.all])
            .map(row)
            .collect();
        output::table(&names, 1, &rows)
    }

    fn memory(&self) -> String {
        let names = [
            "shadows of",
            "all rows",
            "of memory",
            "ever",
            "hot",
            "of memory",
            "saved of all",
            "saved of ever",
        ];
        let memory = &self.study.memory;
        let kept = format!("{} kept after pruning", percent(1.0 - self.pruned, 0));
        let rows = ["all inputs".to_owned(), kept]
            .into_iter()
            .zip([memory.unpruned, memory.pruned]);
        let rows: Vec<_> = rows
            .zip(&self.memory_shares)
            .map(|((label, rows), shares)| {
                let bytes = |bytes: usize| output::bytes(bytes as u64);
                vec![
                    label,
                    bytes(rows.all),
                    percent(shares.all_of_memory, 1),
                    bytes(rows.ever),
                    bytes(rows.hot),
                    percent(shares.hot_of_memory, 2),
                    percent(shares.saving, 1),
                    percent(shares.saving_of_ever, 1),
                ]
            })
            .collect();
        output::table(&names, 1, &rows)
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let memory = &self.study.memory;
        let weights = output::bytes(memory.weights as u64);
        let session = output::bytes(memory.session as u64);
        [
            self.heading.text(),
            format!("\nOutlier channels per token, at most {} of the values\n", percent(self.outlier_share, 2)),
            self.blocks(|input| format!("{:.1}", input.of_a_token)),
            "\nImportance; * keeps its shadow\n".into(),
            self.blocks(|input| format!("{:.1}{}", input.importance, if input.shadow { "*" } else { " " })),
            format!("\nShares of channels; hot ones cover {} of the outliers\n", percent(self.hot_share, 0)),
            self.kinds(),
            format!(
                "\nRows of shadows, in addition to {weights} of INT8 weights and {session} for a prompt of {PROMPT_TOKENS} \
                 tokens, if the CPU can't read the processor's weights\n"
            ),
            self.memory(),
        ]
        .join("\n")
    }

    fn figure(&self) -> Figure {
        let blocks = self
            .study
            .inputs
            .iter()
            .map(|input| input.block)
            .max()
            .map_or(0, |last| last + 1);
        let by_block = |title: &str, y: &str, of: &dyn Fn(&InputOutliers) -> f64| {
            let series = LinearInput::DENSE.map(|input| {
                Series::by_category(
                    readers(input),
                    Mark::StackedBars,
                    self.of_input(input).map(of),
                )
            });
            Panel::Chart(Chart {
                title: title.into(),
                x: Axis::categories("block", (0..blocks).map(|block| block.to_string())),
                y: Axis::linear(y),
                series: series.into(),
                guides: Vec::new(),
            })
        };
        let skew = self.study.kinds.iter().map(|kind| {
            let points = kind
                .skew
                .iter()
                .map(|[channels, outliers]| (100.0 * channels, 100.0 * outliers));
            Series::new(kind.input.map_or("all", readers), Mark::Line, points)
        });
        let skew = Chart {
            title: "Skew of the outliers".into(),
            x: Axis::logarithmic("channels of each input, the most frequent first (%)"),
            y: Axis::linear("outliers that they cover (%)").covering(0.0, 100.0),
            series: skew.collect(),
            guides: vec![
                Guide {
                    name: "3 % of the channels".into(),
                    at: At::X(3.0),
                },
                Guide {
                    name: "80 % of the outliers".into(),
                    at: At::Y(80.0),
                },
            ],
        };
        let importance = LinearInput::DENSE.map(|input| {
            let points = self
                .of_input(input)
                .map(|found| (found.block as f64, f64::from(found.importance)));
            Series::new(readers(input), Mark::Points, points)
        });
        let importance = Chart {
            title: "Importance".into(),
            x: Axis::linear("block"),
            y: Axis::logarithmic("largest outlier / clip threshold"),
            series: importance.into(),
            guides: Vec::new(),
        };
        Figure {
            title: format!("Outliers of {}", title_of(&self.heading.model)),
            panels: vec![
                by_block(
                    "Outlier channels per token",
                    "channels, summed over inputs",
                    &|input| input.of_a_token,
                ),
                by_block(
                    "Channels that are ever an outlier",
                    "channels, summed over inputs",
                    &|input| input.ever as f64,
                ),
                Panel::Chart(skew),
                Panel::Chart(importance),
            ],
            columns: 2,
        }
    }
}
