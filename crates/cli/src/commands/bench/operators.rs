//! Times, bytes read and bytes written of each operator of a block in a test.

use anyhow::Result;
use serde::Serialize;
use triad_engine::{Cancel, Engine, Error, Operator, Statistics};

use triad_console::interrupt::on_interrupt;
use triad_console::measure::{Plan, Test, failed, label};
use triad_console::{output, progress};

/// The measured operators of all tests. Serialized, they are the output of `bench --operators --json`.
#[derive(Serialize)]
pub struct Report {
    pub model: String,
    /// Number of the model's blocks.
    pub blocks: usize,
    pub tests: Vec<Counted>,
}

/// One test with one number of threads: the run with the median time.
#[derive(Debug, Serialize)]
pub struct Counted {
    pub threads: usize,
    pub test: Test,
    pub tokens: usize,
    /// Context length at the start of the test, in tokens.
    pub context: usize,
    pub sequences: usize,
    /// Time of the whole run, divided by its tokens.
    pub microseconds_per_token: f64,
    /// The operators that ran.
    pub operators: Vec<Share>,
}

/// Time and bytes of one operator.
#[derive(Debug, Serialize)]
pub struct Share {
    pub operator: Operator,
    /// Whether the operator is part of a block.
    pub in_blocks: bool,
    /// Time in all blocks together.
    pub microseconds_per_token: f64,
    /// Share of the time of the whole run.
    pub share: f64,
    pub bytes_per_token: BytesPerToken,
}

/// Bytes per token of the arrays that an operator reads and writes. For an operator of the blocks, it is the mean of
/// one block.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct BytesPerToken {
    /// Activations, keys and values.
    pub read: f64,
    /// Activations, keys and values.
    pub written: f64,
    /// Weights, which a chunk of a prompt reads once.
    pub weights: f64,
}

impl Counted {
    /// Returns the operators of a run of `seconds` on `threads` threads, from its statistics.
    fn new(
        (test, tokens, context, sequences): (Test, usize, usize, usize),
        (threads, blocks): (usize, usize),
        (seconds, statistics): (f64, &Statistics),
    ) -> Self {
        let all = (tokens * sequences) as f64;
        let share = |operator: Operator| {
            let used = statistics.operator(operator);
            let time = used.time.as_secs_f64();
            let parts = all
                * if operator.is_of_block() {
                    blocks as f64
                } else {
                    1.0
                };
            let [read, written, weights] =
                [used.bytes.read, used.bytes.written, used.bytes.weights]
                    .map(|bytes| bytes as f64 / parts);
            Share {
                operator,
                in_blocks: operator.is_of_block(),
                microseconds_per_token: 1e6 * time / all,
                share: time / seconds,
                bytes_per_token: BytesPerToken {
                    read,
                    written,
                    weights,
                },
            }
        };
        let ran = Operator::ALL
            .into_iter()
            .filter(|operator| statistics.operator(*operator).runs > 0);
        let (microseconds_per_token, operators) = (1e6 * seconds / all, ran.map(share).collect());
        Self {
            threads,
            test,
            tokens,
            context,
            sequences,
            microseconds_per_token,
            operators,
        }
    }

    /// Returns a heading and a table.
    fn text(&self) -> String {
        let Self {
            threads,
            test,
            tokens,
            context,
            sequences,
            microseconds_per_token: whole,
            operators,
        } = self;
        let line = |name: &str, time: f64, bytes: Option<BytesPerToken>| {
            let bytes = bytes.map(
                |BytesPerToken {
                     read,
                     written,
                     weights,
                 }| {
                    [read, written, weights].map(|bytes| output::count(bytes.round() as usize))
                },
            );
            let bytes = bytes.unwrap_or_default().to_vec();
            [
                vec![
                    name.into(),
                    format!("{time:.2}"),
                    format!("{:.1} %", 100.0 * time / whole),
                ],
                bytes,
            ]
            .concat()
        };
        let of = |share: &Share| {
            line(
                share.operator.name(),
                share.microseconds_per_token,
                Some(share.bytes_per_token),
            )
        };
        let (in_blocks, outside): (Vec<_>, Vec<_>) =
            operators.iter().partition(|share| share.in_blocks);
        let time = |shares: &[&Share]| {
            shares
                .iter()
                .map(|share| share.microseconds_per_token)
                .sum::<f64>()
        };
        let bytes = in_blocks.iter().fold(
            BytesPerToken::default(),
            |sum,
             Share {
                 bytes_per_token: bytes,
                 ..
             }| {
                BytesPerToken {
                    read: sum.read + bytes.read,
                    written: sum.written + bytes.written,
                    weights: sum.weights + bytes.weights,
                }
            },
        );
        let mut rows: Vec<_> = in_blocks.iter().map(|share| of(share)).collect();
        rows.push(line("all blocks", time(&in_blocks), Some(bytes)));
        rows.extend(outside.iter().map(|share| of(share)));
        rows.push(line(
            "between operators",
            whole - time(&in_blocks) - time(&outside),
            None,
        ));
        rows.push(line("the whole", *whole, None));
        let test = match test {
            Test::Prefill => "prefill",
            Test::Decode => "decode",
        };
        let after_context = if *context > 0 {
            format!(" after {context}")
        } else {
            String::new()
        };
        let each = if *sequences > 1 {
            format!(" in each of {sequences} sequences")
        } else {
            String::new()
        };
        let on = if *threads == 1 {
            "1 thread".into()
        } else {
            format!("{threads} threads")
        };
        let names = [
            "operator",
            "µs per token",
            "share",
            "bytes read",
            "written",
            "of weights",
        ];
        format!(
            "{test} of {tokens} tokens{after_context}{each}, {on}\n{}",
            output::table(&names, 1, &rows)
        )
    }
}

impl Report {
    /// Prints a table for each test.
    pub fn print(&self) -> Result<()> {
        let heading = format!(
            "{}: time per token in all {} blocks, bytes per token in one of them; weights are read once for each chunk",
            self.model, self.blocks
        );
        let tables = self.tests.iter().map(Counted::text);
        output::text(
            &[heading]
                .into_iter()
                .chain(tables)
                .collect::<Vec<_>>()
                .join("\n\n"),
        )
    }
}

/// Runs all tests of `plan` on an engine of the model `name`, whose processor has `threads` threads.
pub fn run(plan: &Plan, engine: &Engine, threads: usize, name: &str) -> Result<Vec<Counted>> {
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let blocks = engine.model().description().blocks.len();
    let count = |test| {
        let _spinner = progress::spinner(label(test, &format!("{threads} threads")));
        let mut tested = plan.begin(engine, test, &cancel)?;
        engine.count(true);
        let mut runs = Vec::new();
        for _ in 0..plan.repeat {
            let before = engine.statistics();
            let seconds = tested.run(&cancel)?;
            runs.push((seconds, engine.statistics() - before));
        }
        engine.count(false);
        runs.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (seconds, statistics) = &runs[(runs.len() - 1) / 2];
        Ok(Counted::new(
            test,
            (threads, blocks),
            (*seconds, statistics),
        ))
    };
    let counted: Result<_, Error> = plan.tests().map(count).collect();
    counted.map_err(|error| failed(error, name))
}
