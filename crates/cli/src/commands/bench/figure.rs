//! A figure of times over lengths, with the limits of the machine.

use super::report::{Compared, Report};
use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::measure::Test;

/// Draws one panel for prefill and one for decode, as far as they were measured.
pub fn figure(report: &Report) -> Figure {
    let prefill = Chart {
        title: "Prefill".into(),
        x: Axis::logarithmic("tokens of the prompt"),
        y: Axis::logarithmic("time (s)"),
        series: series(
            report,
            Test::Prefill,
            |compared| compared.measured.tokens,
            1.0,
        ),
        guides: Vec::new(),
    };
    let decode = Chart {
        title: "Decode".into(),
        x: Axis::linear("context (tokens)").covering(0.0, 0.0),
        y: Axis::linear("time per token (ms)").covering(0.0, 0.0),
        series: series(
            report,
            Test::Decode,
            |compared| compared.measured.context,
            1000.0,
        ),
        guides: Vec::new(),
    };
    let panels: Vec<_> = [prefill, decode]
        .into_iter()
        .filter(|chart| !chart.series.is_empty())
        .collect();
    let name = report.model.rsplit(['/', '\\']).next().unwrap_or_default();
    Figure {
        title: name.into(),
        columns: panels.len().max(1),
        panels: panels.into_iter().map(Panel::Chart).collect(),
    }
}

/// Returns the measured times and the limits for each number of threads: seconds of a prompt or of a token, times
/// `unit`.
fn series(report: &Report, test: Test, length: fn(&Compared) -> usize, unit: f64) -> Vec<Series> {
    let mut all = Vec::new();
    let mut counts: Vec<_> = report
        .results
        .iter()
        .map(|compared| compared.measured.threads)
        .collect();
    counts.dedup();
    for count in counts {
        let of_threads = |compared: &&Compared| {
            compared.measured.threads == count && compared.measured.test == test
        };
        let measured: Vec<_> = report.results.iter().filter(of_threads).collect();
        if measured.is_empty() {
            continue;
        }
        // The time of a prefill test is of the whole prompt; that of a decode test is of each token.
        let pieces = |compared: &Compared| {
            if test == Test::Prefill {
                1.0
            } else {
                compared.measured.tokens as f64
            }
        };
        let threads = match (&report.processor, count) {
            (Some(gpu), _) => gpu.clone(),
            (None, 1) => "1 thread".into(),
            (None, count) => format!("{count} threads"),
        };
        let times = measured.iter().map(|compared| {
            let seconds =
                compared.measured.tokens as f64 / compared.measured.tokens_per_second.median;
            (length(compared) as f64, unit * seconds / pieces(compared))
        });
        all.push(Series::new(threads.as_str(), Mark::LineWithMarkers, times));
        let limits = measured.iter().filter_map(|compared| {
            Some((
                length(compared) as f64,
                unit * compared.limit_seconds? / pieces(compared),
            ))
        });
        let limits = Series::new(format!("limit, {threads}"), Mark::Line, limits);
        if !limits.points.is_empty() {
            all.push(limits);
        }
    }
    all
}
