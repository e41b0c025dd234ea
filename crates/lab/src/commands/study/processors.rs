//! `triad-lab study processors`: compares lists of processors in turns.

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::{Cancel, Error, KvFormat};
use triad_hetero::{HeteroEngine, HeteroOptions};

use super::{OutputArguments, Report, title_of};
use triad_console::arguments::{self, ModelArguments};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::device::DeviceArguments;
use triad_console::measure::{Plan, Spread, Test, Tested, above_zero, label};
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Rounds that are not measured. After them, memory is warm, graphs are built, and plans and orders are made.
const FIRST_ROUNDS: usize = 2;

/// Compare the speed of lists of processors, measured in turns.
///
/// All lists are in memory at once. In each round every list runs the test once, and the lists take turns in starting a
/// round. A list is compared with the first one by the median of the rounds' ratios, since a machine's speed varies
/// more from minute to minute than lists differ. From six rounds on, an interval is printed that contains the median of
/// all possible rounds with a probability of 95 %; more rounds make it narrower. Differences in decode are small: many
/// short rounds show them best.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad-lab study processors --processors cpu=0 --processors cpu=0,cpu=1
  triad-lab study processors -m model.triad --processors cpu=0 --processors cpu=0,npu=1 --npu cpu --partition auto
  triad-lab study processors --processors cpu=0 --processors cpu=0,gpu --prompt 0 --decode 8 --repeat 100 --svg decode.svg")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Processors; may be given several times, and the others are compared with the first. --partition and --tensor-split apply
    /// to lists of several processors
    #[arg(long, value_name = "LIST", required = true)]
    processors: Vec<Processors>,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Lengths of prompts to measure, in tokens; 0 for none
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64,256,1024", value_parser = arguments::count)]
    prompt: Vec<usize>,
    /// Tokens to decode; 0 for none
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64", value_parser = arguments::count)]
    decode: Vec<usize>,
    /// Tokens of context before the decoded tokens
    #[arg(long, value_name = "N", default_value = "64", value_parser = arguments::count)]
    context: usize,
    /// Rounds of each test
    #[arg(long, value_name = "N", default_value = "5", value_parser = arguments::repeats)]
    repeat: usize,
    /// Tokens of the prompt per chunk
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Serialize)]
struct Found {
    model: String,
    results: Vec<Measured>,
}

/// A test on one of the lists.
#[derive(Serialize)]
struct Measured {
    test: Test,
    tokens: usize,
    processors: String,
    tokens_per_second: Spread,
    /// Speed relative to the first list in the same round.
    times_as_fast: Spread,
    /// Interval that contains the median of all possible rounds with a probability of 95 %, if there were enough
    /// rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<[f64; 2]>,
}

/// A list compared with the first one.
#[derive(Debug, PartialEq)]
struct Compared {
    tokens_per_second: Spread,
    times_as_fast: Spread,
    interval: Option<[f64; 2]>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments {
        processors,
        devices,
        repeat,
        ..
    } = arguments;
    devices.check(true)?;
    let plan = Plan {
        prompts: above_zero(&arguments.prompt),
        decodes: above_zero(&arguments.decode),
        contexts: vec![arguments.context],
        sequences: vec![1],
        repeat: *repeat,
        chunk: arguments.chunk,
        kv_format: KvFormat::default(),
    };
    ensure!(
        plan.tests().count() > 0,
        "nothing is measured: expected --prompt or --decode above 0"
    );
    let name = &arguments.model.name.model;
    let model = arguments.model.load_prepared()?;
    arguments.output.show(name, |cancel| {
        let engine = |list: &Processors| {
            let alone = DeviceArguments {
                partition: None,
                cuts: Vec::new(),
                ..devices.clone()
            };
            list.engine(
                if list.count() > 1 { devices } else { &alone },
                &model,
                HeteroOptions {
                    engine: plan.options(&model),
                    ..HeteroOptions::default()
                },
            )
        };
        let engines: Vec<HeteroEngine> = processors.iter().map(engine).collect::<Result<_>>()?;
        let mut results = Vec::new();
        for test in plan.tests() {
            let rounds = rounds(&plan, &engines, test, cancel)?;
            let (kind, tokens, ..) = test;
            results.extend(processors.iter().zip(compare(&rounds, tokens)).map(
                |(
                    list,
                    Compared {
                        tokens_per_second,
                        times_as_fast,
                        interval,
                    },
                )| Measured {
                    test: kind,
                    tokens,
                    processors: list.to_string(),
                    tokens_per_second,
                    times_as_fast,
                    interval,
                },
            ));
        }
        Ok(Found {
            model: title_of(name),
            results,
        })
    })
}

/// Returns the seconds of a test on each engine, by round.
fn rounds(
    plan: &Plan,
    engines: &[HeteroEngine],
    test: (Test, usize, usize, usize),
    cancel: &Cancel,
) -> Result<Vec<Vec<f64>>, Error> {
    let (kind, tokens, ..) = test;
    let _spinner = progress::spinner(label(test, &format!("{} lists in turns", engines.len())));
    let begin = |engine: &HeteroEngine| {
        if kind == Test::Prefill {
            engine.plan_ahead(tokens);
        }
        plan.begin(engine, test, cancel)
    };
    let mut all: Vec<Tested> = engines.iter().map(begin).collect::<Result<_, _>>()?;
    let round = |round: usize| {
        let mut seconds = vec![0.0; all.len()];
        for turn in 0..all.len() {
            let list = (round + turn) % all.len();
            seconds[list] = all[list].run(cancel)?;
        }
        Ok(seconds)
    };
    let rounds: Vec<_> = (0..FIRST_ROUNDS + plan.repeat)
        .map(round)
        .collect::<Result<_, Error>>()?;
    Ok(rounds[FIRST_ROUNDS..].to_vec())
}

/// Returns each list's tokens per second, and its speed relative to the first list in the same round.
fn compare(rounds: &[Vec<f64>], tokens: usize) -> Vec<Compared> {
    let of_list = |list: usize| {
        let rates = rounds.iter().map(|seconds| tokens as f64 / seconds[list]);
        let ratios: Vec<f64> = rounds
            .iter()
            .map(|seconds| seconds[0] / seconds[list])
            .collect();
        Compared {
            tokens_per_second: Spread::new(rates.collect()),
            interval: interval(ratios.clone()),
            times_as_fast: Spread::new(ratios),
        }
    };
    (0..rounds[0].len()).map(of_list).collect()
}

/// Returns the smallest and the largest of the middle values that contain the median of their distribution with a
/// probability of 95 %, for any distribution; `None` for fewer than six values, which don't suffice. Each value is
/// below the median with probability 1/2. So an interval that omits `k` values at either end misses the median if at
/// most `k` values are on one side of it.
fn interval(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // The logarithm of the probability that exactly this many values are below, and the probability that at most this
    // many are.
    let (mut exactly, mut at_most) = (-(count as f64) * f64::ln(2.0), 0.0);
    let mut left_out = None;
    for below in 0..count.div_ceil(2) {
        at_most += exactly.exp();
        if 2.0 * at_most > 0.05 {
            break;
        }
        left_out = Some(below);
        exactly += ((count - below) as f64 / (below + 1) as f64).ln();
    }
    left_out.map(|below| [values[below], values[count - 1 - below]])
}

impl Measured {
    fn label(&self) -> String {
        let test = if self.test == Test::Prefill {
            "prefill"
        } else {
            "decode"
        };
        format!("{test} {}", self.tokens)
    }
}

impl Report for Found {
    fn text(&self) -> String {
        let row = |one: &Measured| {
            let Spread { min, median, max } = one.times_as_fast;
            vec![
                one.label(),
                one.processors.clone(),
                format!("{:.1}", one.tokens_per_second.median),
                format!("{median:.3}"),
                one.interval.map_or(String::new(), |[least, most]| {
                    format!("{least:.2} to {most:.2}")
                }),
                format!("{min:.2}"),
                format!("{max:.2}"),
            ]
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let names = [
            "test",
            "processors",
            "tokens/s",
            "times as fast",
            "95 %",
            "least",
            "most",
        ];
        let first = &self.results[0].processors;
        let text = format!(
            "{}: speed relative to {first} in the same round: median, 95 % interval of the median, minimum, maximum",
            self.model
        );
        format!("{text}\n\n{}", output::table(&names, 2, &rows))
    }

    fn figure(&self) -> Figure {
        let first = &self.results[0].processors;
        // The lists of a test are adjacent.
        let lists = self
            .results
            .iter()
            .take_while(|one| one.label() == self.results[0].label())
            .count();
        let tests = self.results.iter().step_by(lists);
        let series = |list: usize| {
            let here = self.results.iter().skip(list).step_by(lists);
            let medians = here.map(|one| one.times_as_fast.median);
            Series::by_category(self.results[list].processors.clone(), Mark::Bars, medians)
        };
        let chart = Chart {
            title: String::new(),
            x: Axis::categories("test and tokens", tests.map(Measured::label)),
            y: Axis::linear(format!("times as fast as {first}")),
            series: (0..lists).map(series).collect(),
            guides: Vec::new(),
        };
        Figure {
            title: format!("{}: processors in turns", self.model),
            panels: vec![Panel::Chart(chart)],
            columns: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_within_a_round() {
        // The machine is half as fast in the second round, and the second list is 1.25 times as fast as the first in
        // both.
        let compared = compare(&[vec![1.0, 0.8], vec![2.0, 1.6]], 8);
        let spread = |min: f64, median: f64, max: f64| Spread { min, median, max };
        let of = |tokens_per_second, times_as_fast| Compared {
            tokens_per_second,
            times_as_fast,
            interval: None,
        };
        assert_eq!(
            compared[0],
            of(spread(4.0, 6.0, 8.0), spread(1.0, 1.0, 1.0))
        );
        assert_eq!(
            compared[1],
            of(spread(5.0, 7.5, 10.0), spread(1.25, 1.25, 1.25))
        );
    }

    #[test]
    fn an_interval_leaves_out_as_many_rounds_as_the_sign_test_does() {
        let of = |count: u32| interval((1..=count).rev().map(f64::from).collect());
        // Tabulated values for 95 %: all of 6 to 8; from the second of 9, the sixth of 20, the 18th of 50 and the 40th
        // of 100.
        assert_eq!([0, 1, 5].map(of), [None; 3]);
        for (count, first) in [(6, 1), (8, 1), (9, 2), (20, 6), (50, 18), (100, 40)] {
            assert_eq!(
                of(count),
                Some([f64::from(first), f64::from(count + 1 - first)]),
                "{count}"
            );
        }
        // 2500 minus 1.96 standard deviations of 35.4. The exact probabilities are below the range of f64.
        let [first, _] = of(5000).unwrap();
        assert!((first - 2431.0).abs() <= 2.0, "{first}");
    }
}
