//! `triad-lab hwbench`: measures the limits of this machine, and how close each kernel comes to them.
//!
//! [`peaks`] measures the machine, and [`kernels`] every kernel on the shapes of a model. Each kernel is compared with
//! the peak that limits it.

mod data;
mod kernels;
mod peaks;

use anyhow::Result;
use serde::Serialize;
use triad_engine::Threads;
use triad_kernels::pool::Pool;
use triad_model::family;

use kernels::{Bench, Measured};
use peaks::Peaks;
use triad_console::{arguments, output, progress};
use triad_frontend::machine::Machine;

/// Measure this machine's peaks, and compare every kernel with the peak that limits it.
///
/// Peaks are multiply-adds in registers, and bytes read from each cache level and from memory. Kernels run with random
/// numbers on the linear layers, norms and attention of a model's shape. Many rows, as in prefill, are compared with
/// the arithmetic peak of the number format. Few rows, as in decode, use weights that no cache holds and are compared
/// with the memory bandwidth. Element-wise operators run on one thread and are compared with the bandwidth of the level
/// that holds their rows.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab hwbench
  triad-lab hwbench --shape qwen1.5-1.8b --threads 1,2
  triad-lab hwbench --shape qwen1.5-1.8b --decode-rows 1,2,4,8,16
  triad-lab hwbench --rows 64,256 --json > kernels.json")]
pub struct Arguments {
    /// Model whose shape is used
    #[arg(long, value_name = "NAME", default_value = "smollm2-135m", value_parser = clap::builder::PossibleValuesParser::new(family::SHAPES))]
    shape: String,
    /// Rows per prefill kernel
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "256", value_parser = arguments::tokens)]
    rows: Vec<usize>,
    /// Rows per decode kernel: sequences that share a step
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = arguments::tokens)]
    decode_rows: Vec<usize>,
    /// Numbers of threads to measure with [default: 1, and one per core, or one per fast core if cores differ]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::threads)]
    threads: Vec<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The report. Its serialization is the output of `hwbench --json`.
#[derive(Serialize)]
struct Report {
    shape: String,
    peaks: Vec<Peaks>,
    kernels: Vec<Measured>,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let description = family::shape(&arguments.shape)?;
    let mut threads = arguments.threads.clone();
    if threads.is_empty() {
        threads = vec![1, Threads::Automatic.count()];
        threads.dedup();
    }
    let caches = Machine::detect().caches;
    let mut report = Report {
        shape: arguments.shape.clone(),
        peaks: Vec::new(),
        kernels: Vec::new(),
    };
    for count in threads {
        let spinner = progress::spinner(format!("measuring the peaks of {count} threads"));
        let peaks = Peaks::measure(count, &caches);
        drop(spinner);
        let pool = Pool::new(count)?;
        let mut bench = Bench {
            description: &description,
            peaks: &peaks,
            measured: &mut report.kernels,
        };
        for rows in &arguments.rows {
            let _spinner = progress::spinner(format!(
                "measuring kernels on {rows} rows and {count} threads"
            ));
            pool.install(|| bench.prefill(*rows));
        }
        let _spinner = progress::spinner(format!("measuring kernels of decode on {count} threads"));
        pool.install(|| bench.decode(&arguments.decode_rows));
        report.peaks.push(peaks);
    }
    if arguments.json {
        output::json(&report)
    } else {
        output::text(&report.to_string())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let names: Vec<_> = self
            .peaks
            .iter()
            .map(|peaks| format!("{} threads", peaks.arithmetic.threads))
            .collect();
        let names: Vec<_> = ["peak"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        let rates: Vec<_> = self.peaks.iter().map(Peaks::rates).collect();
        let row = |index: usize| {
            let label = rates[0][index].0.clone();
            std::iter::once(label)
                .chain(rates.iter().map(|rates| rates[index].1.clone()))
                .collect()
        };
        let rows: Vec<_> = (0..rates.first().map_or(0, Vec::len)).map(row).collect();
        writeln!(f, "{}\n", output::table(&names, 1, &rows))?;
        let names = [
            "operator",
            "kernel",
            "shape",
            "threads",
            "time",
            "bound by",
            "of the limit",
        ];
        let rows: Vec<_> = self.kernels.iter().map(Measured::cells).collect();
        write!(
            f,
            "kernels on the shapes of {}\n{}",
            self.shape,
            output::table(&names, 3, &rows)
        )
    }
}
