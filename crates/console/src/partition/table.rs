//! The table of a model's cut products.

use serde::Serialize;
use triad_plan::graph::Role;
use triad_plan::partition::solve::{Choice, Restriction, Timed};
use triad_plan::partition::{Phase, Piece};
use triad_plan::processors::{ProcessorId, label};

use crate::output;

/// The cuts of the products of a prompt and of a decode step, as `plan --partition --json` prints them.
#[derive(Serialize)]
pub struct Partitions {
    /// Whether the times are simulated by a phone's profile, not measured.
    pub simulated: bool,
    /// Name of the model.
    pub model: String,
    /// Name of the device profile, or of the processors of this machine.
    pub device: String,
    /// The cuts that were allowed.
    pub restriction: Restriction,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Names of the processors by id.
    pub processors: Vec<String>,
    /// The processor that computes in float.
    pub float: ProcessorId,
    /// The products of all layers.
    pub products: Vec<CutProduct>,
    /// The output matrix in a decode step, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Choice>,
}

/// A product on some rows, with the solver's choice.
#[derive(Serialize)]
pub struct CutProduct {
    /// Role of the product.
    pub role: Role,
    /// Number of blocks with this product.
    pub blocks: usize,
    /// Number of chunks of a prompt with these rows.
    pub chunks: usize,
    #[serde(flatten)]
    /// The fastest cut and its alternatives.
    pub choice: Choice,
    /// Human-readable reason for the choice.
    pub because: String,
}

/// Returns the reason for a choice as text.
pub fn because(choice: &Choice, restriction: Restriction, processors: &[String]) -> String {
    let (best, alone) = (&choice.best, choice.best_alone());
    let of_alone = 100.0 * (best.seconds / alone.seconds - 1.0);
    let on = label(&processors[alone.busy[0].0.index()]);
    if best.partition.strategy.is_whole() {
        match restriction {
            Restriction::Auto if choice.phase == Phase::Decode => {
                let rate = choice.shape.weights() / alone.busy[0].1 / 1e9;
                format!("no cut is faster: the {on} alone reads {rate:.1} GB of weights per second")
            }
            Restriction::Auto => "no cut is faster".into(),
            Restriction::Layer | Restriction::Tensor => "fastest processor".into(),
        }
    } else if of_alone <= 0.0 {
        format!("{:.0} % less than the {on} alone", -of_alone)
    } else {
        format!("cut as requested: {of_alone:.0} % more than the {on} alone")
    }
}

/// Formats seconds as milliseconds with two decimals.
fn milliseconds(seconds: f64) -> String {
    format!("{:.2}", 1e3 * seconds)
}

impl Partitions {
    /// Returns the shape and time of each processor's part: `NPU 512+32 × 3840 in 3.90 | GPU 600 × 256 in 4.10`.
    fn parts(&self, timed: &Timed) -> String {
        let of_processor = |(processor, seconds): &(ProcessorId, f64)| {
            let here: Vec<_> = timed
                .partition
                .pieces
                .iter()
                .filter(|piece| piece.processor == *processor)
                .collect();
            let lengths: Vec<_> = here.iter().map(|piece| piece.rows.to_string()).collect();
            let columns = here
                .first()
                .map_or(0, |piece: &&Piece| piece.part.columns.len());
            let name = label(&self.processors[processor.index()]);
            format!(
                "{name} {} × {columns} in {}",
                lengths.join("+"),
                milliseconds(*seconds)
            )
        };
        timed
            .busy
            .iter()
            .map(of_processor)
            .collect::<Vec<_>>()
            .join(" | ")
    }

    /// Returns a row of the table.
    fn cells(&self, name: &str, chunks: usize, choice: &Choice, because: &str) -> Vec<String> {
        let strategy = choice.best.partition.strategy.name();
        let rows = match chunks {
            1 => choice.shape.rows().to_string(),
            _ => format!("{chunks} × {}", choice.shape.rows()),
        };
        let labels = [name, &rows, strategy, &self.parts(&choice.best), because].map(str::to_owned);
        let alone = choice.alone.iter().map(|alone| milliseconds(alone.seconds));
        let numbers = [choice.best.join_seconds, choice.best.seconds].map(milliseconds);
        labels.into_iter().chain(numbers).chain(alone).collect()
    }
}

impl std::fmt::Display for Partitions {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self {
            simulated,
            model,
            device,
            restriction,
            prompt,
            processors,
            float,
            products,
            output,
        } = self;
        let how = if *simulated { "simulated" } else { "measured" };
        let has_decode = products
            .iter()
            .any(|product| product.choice.phase == Phase::Decode);
        let decode = if has_decode { " and one of decode" } else { "" };
        writeln!(
            f,
            "{how}: products of {model} on {device}, {prompt} tokens of prefill{decode}, cut by {}; floats on the {}",
            restriction.name(),
            label(&processors[float.index()])
        )?;
        for (phase, name) in [(Phase::Prefill, "prefill"), (Phase::Decode, "decode")] {
            if !products.iter().any(|product| product.choice.phase == phase) {
                continue;
            }
            let here = || {
                products
                    .iter()
                    .filter(|product| product.choice.phase == phase)
            };
            let sum = |seconds: fn(&Choice) -> f64| {
                let all = here().map(|product| {
                    (product.blocks * product.chunks) as f64 * seconds(&product.choice)
                });
                let output = output
                    .as_ref()
                    .filter(|output| output.phase == phase)
                    .map(seconds);
                milliseconds(all.chain(output).sum())
            };
            let has_output = output.as_ref().is_some_and(|output| output.phase == phase);
            let matrix = if has_output {
                " and the output matrix"
            } else {
                ""
            };
            let (chosen, alone) = (
                sum(|choice| choice.best.seconds),
                sum(|choice| choice.best_alone().seconds),
            );
            writeln!(
                f,
                "{name}: products of all blocks{matrix} take {chosen} ms, each on its fastest processor {alone} ms"
            )?;
        }
        let labels =
            ["product", "rows", "cut", "rows × columns in ms", "because"].map(str::to_owned);
        let alone = processors
            .iter()
            .map(|name| format!("{} alone", label(name)));
        let names: Vec<_> = labels
            .into_iter()
            .chain(["join ms", "ms"].map(str::to_owned))
            .chain(alone)
            .collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let of_product =
            |CutProduct {
                 role,
                 chunks,
                 choice,
                 because,
                 ..
             }: &CutProduct| self.cells(role.name(), *chunks, choice, because);
        let of_output = |choice: &Choice| {
            self.cells(
                "output matrix",
                1,
                choice,
                &because(choice, *restriction, processors),
            )
        };
        let rows: Vec<_> = products
            .iter()
            .map(of_product)
            .chain(output.as_ref().map(of_output))
            .collect();
        write!(f, "\n{}", output::table(&names, 5, &rows))
    }
}
