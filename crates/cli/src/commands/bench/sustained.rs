//! `bench --sustained`: speed over time, for machines that slow down when they are warm.
//!
//! A round is a prompt and an answer. Rounds follow each other without a pause. Clocks and temperatures are read
//! between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use triad_engine::{Cancel, Engine, Error};
use triad_frontend::energy::EnergyMeter;
use triad_frontend::sensors::Sensors;

use triad_console::chart::{Axis, Chart, Figure, Mark, Panel, Series};
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::measure::{decode, failed, prefill};
use triad_console::{output, progress};

/// Maximum points of a line in the figure.
const POINTS: f64 = 240.0;

/// The output of `bench --sustained --json`.
#[derive(Serialize)]
pub struct Report {
    model: String,
    threads: usize,
    /// Tokens of the prompt of each round.
    prompt: usize,
    /// Tokens that each round decodes after the prompt.
    decode: usize,
    /// The requested duration.
    asked_seconds: f64,
    /// Whether Ctrl-C ended the test early.
    interrupted: bool,
    prefill: Kept,
    decoded: Kept,
    rounds: Vec<Round>,
}

/// Median speed of the rounds in the first tenth and in the last tenth of the time.
#[derive(Debug, PartialEq, Serialize)]
struct Kept {
    first_tokens_per_second: f64,
    last_tokens_per_second: f64,
    /// The last speed divided by the first.
    share: f64,
    /// The slowest and the fastest of all rounds.
    min: f64,
    max: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Round {
    /// Time from the start of the first round to the end of this one.
    at_seconds: f64,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    /// Mean clock of all cores at the end of the round.
    #[serde(skip_serializing_if = "Option::is_none")]
    megahertz: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    celsius: BTreeMap<String, f64>,
    /// Mean power of the processors during the round, used by all programs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    watts: Option<f64>,
}

/// Runs rounds of `prompt` and `decode` tokens until `asked` has passed or Ctrl-C is pressed. Runs at least one round.
pub fn run(
    engine: &Engine,
    (name, threads): (&str, usize),
    (prompt, tokens): (usize, usize),
    asked: Duration,
) -> Result<Report> {
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let (sensors, energy) = (Sensors::find(), EnergyMeter::find());
    let joules = || energy.as_ref()?.joules();
    let mut session = engine.session();
    let mut rounds: Vec<Round> = Vec::new();
    let bar = progress::share("measuring");
    let start = Instant::now();
    let interrupted = loop {
        let (began, before) = (Instant::now(), joules());
        let mut round = || -> Result<(f64, f64), Error> {
            session.truncate(0);
            let prefilled = prefill(&mut session, prompt, &cancel)?;
            Ok((
                prefilled,
                decode(std::slice::from_mut(&mut session), tokens, &cancel)?,
            ))
        };
        let (prefilled, decoded) = match round() {
            Ok(seconds) => seconds,
            Err(Error::Cancelled) if rounds.is_empty() => return Err(Interrupted.into()),
            Err(Error::Cancelled) => break true,
            Err(error) => return Err(failed(error, name)),
        };
        let passed = start.elapsed();
        rounds.push(Round {
            at_seconds: passed.as_secs_f64(),
            prefill_tokens_per_second: prompt as f64 / prefilled,
            decode_tokens_per_second: tokens as f64 / decoded,
            megahertz: sensors.megahertz(),
            celsius: sensors.celsius(),
            watts: before
                .zip(joules())
                .map(|(before, after)| (after - before) / began.elapsed().as_secs_f64()),
        });
        bar.set_share(passed.as_secs_f64() / asked.as_secs_f64());
        if passed >= asked {
            break false;
        }
    };
    Ok(Report {
        model: name.into(),
        threads,
        prompt,
        decode: tokens,
        asked_seconds: asked.as_secs_f64(),
        interrupted,
        prefill: kept(&rounds, |round| round.prefill_tokens_per_second),
        decoded: kept(&rounds, |round| round.decode_tokens_per_second),
        rounds,
    })
}

/// Compares the first and the last tenth of at least one round.
fn kept(rounds: &[Round], rate: fn(&Round) -> f64) -> Kept {
    let end = rounds.last().map_or(0.0, |round| round.at_seconds);
    let median = |of: Vec<f64>| {
        let mut of = of;
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    let first = median(
        rounds
            .iter()
            .take_while(|round| round.at_seconds <= end / 10.0)
            .chain(&rounds[..1])
            .map(rate)
            .collect(),
    );
    let last = median(
        rounds
            .iter()
            .skip_while(|round| round.at_seconds < end * 0.9)
            .map(rate)
            .collect(),
    );
    let all = rounds.iter().map(rate);
    Kept {
        first_tokens_per_second: first,
        last_tokens_per_second: last,
        share: last / first,
        min: all.clone().fold(f64::INFINITY, f64::min),
        max: all.fold(0.0, f64::max),
    }
}

impl Report {
    /// Draws one panel each for prompts, answers and, where they are known, clocks, temperatures and power.
    pub fn figure(&self) -> Figure {
        let minutes = |round: &Round| round.at_seconds / 60.0;
        let chart = |title: &str, unit: &str, series: Vec<Series>| Chart {
            title: title.into(),
            x: Axis::linear("minutes").covering(0.0, 0.0),
            y: Axis::linear(unit),
            series,
            guides: Vec::new(),
        };
        let line = |name: &str, of: &dyn Fn(&Round) -> Option<f64>| {
            Series::new(
                name,
                Mark::Line,
                thinned(
                    self.rounds
                        .iter()
                        .filter_map(|round| Some((minutes(round), of(round)?))),
                ),
            )
        };
        let speed = |title: &str, of: &dyn Fn(&Round) -> Option<f64>| {
            let mut chart = chart(title, "tokens/s", vec![line("", of)]);
            chart.y = Axis::linear("tokens/s").covering(0.0, 0.0);
            chart
        };
        let mut panels = vec![
            speed("Prefill", &|round| Some(round.prefill_tokens_per_second)),
            speed("Decode", &|round| Some(round.decode_tokens_per_second)),
        ];
        if self.rounds.iter().any(|round| round.megahertz.is_some()) {
            panels.push(chart(
                "Clock, mean of the cores",
                "MHz",
                vec![line("", &|round| round.megahertz)],
            ));
        }
        let zones: Vec<_> = self
            .rounds
            .first()
            .map_or(Vec::new(), |round| round.celsius.keys().cloned().collect());
        if !zones.is_empty() {
            let series = zones
                .iter()
                .map(|zone| line(zone, &|round| round.celsius.get(zone).copied()))
                .collect();
            panels.push(chart("Temperature", "°C", series));
        }
        if self.rounds.iter().any(|round| round.watts.is_some()) {
            panels.push(chart(
                "Power of the processors",
                "W",
                vec![line("", &|round| round.watts)],
            ));
        }
        let name = self.model.rsplit(['/', '\\']).next().unwrap_or_default();
        Figure {
            title: name.into(),
            columns: 1,
            panels: panels.into_iter().map(Panel::Chart).collect(),
        }
    }

    /// Prints a table, clocks, power and temperatures.
    pub fn print(&self) -> Result<()> {
        let passed = self.rounds.last().map_or(0.0, |round| round.at_seconds);
        let row = |name: &str, kept: &Kept| {
            let rates = [
                kept.first_tokens_per_second,
                kept.last_tokens_per_second,
                kept.min,
                kept.max,
            ];
            let share = format!("{:.0} %", 100.0 * kept.share);
            let rates = rates.map(|rate| format!("{rate:.1}"));
            [name.to_owned()]
                .into_iter()
                .chain(rates)
                .chain([share])
                .collect()
        };
        let names = [
            "tokens/s",
            "first tenth",
            "last tenth",
            "least",
            "most",
            "last over first",
        ];
        let rows = [row("prefill", &self.prefill), row("decode", &self.decoded)];
        let mut lines = vec![
            format!(
                "{}: {} rounds of a prompt of {} tokens and {} more in {passed:.0} s on {} threads{}",
                self.model,
                self.rounds.len(),
                self.prompt,
                self.decode,
                self.threads,
                if self.interrupted {
                    ", interrupted"
                } else {
                    ""
                }
            ),
            String::new(),
            output::table(&names, 1, &rows),
        ];
        let (first, last) = (self.rounds.first(), self.rounds.last());
        if let (Some(first), Some(last)) = (first, last) {
            if let (Some(first), Some(last)) = (first.megahertz, last.megahertz) {
                lines.push(format!(
                    "clock {first:.0} MHz at the start, {last:.0} at the end"
                ));
            }
            if let (Some(first), Some(last)) = (first.watts, last.watts) {
                lines.push(format!(
                    "processors {first:.1} W at the start, {last:.1} at the end"
                ));
            }
            for (zone, celsius) in &last.celsius {
                let before = first.celsius.get(zone).map_or(String::new(), |before| {
                    format!("{before:.0} °C at the start, ")
                });
                lines.push(format!("{zone}: {before}{celsius:.0} °C at the end"));
            }
        }
        output::text(&lines.join("\n"))
    }
}

/// Averages neighbouring points where there are more points than a line may have.
fn thinned(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let points: Vec<_> = points.collect();
    let together = (points.len() as f64 / POINTS).ceil().max(1.0) as usize;
    let mean = |points: &[(f64, f64)]| {
        let (x, y) = points
            .iter()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (x / points.len() as f64, y / points.len() as f64)
    };
    points.chunks(together).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(rates: &[f64]) -> Vec<Round> {
        let round = |(index, rate): (usize, &f64)| Round {
            at_seconds: (index + 1) as f64,
            prefill_tokens_per_second: *rate,
            decode_tokens_per_second: 1.0,
            megahertz: None,
            celsius: BTreeMap::new(),
            watts: None,
        };
        rates.iter().enumerate().map(round).collect()
    }

    #[test]
    fn the_ends_of_a_run_are_compared_by_the_medians_of_their_tenths() {
        let mut rates = [[100.0; 10], [70.0; 10], [50.0; 10]].concat();
        rates[1] = 1.0;
        let kept = kept(&rounds(&rates), |round| round.prefill_tokens_per_second);
        assert_eq!(
            [
                kept.first_tokens_per_second,
                kept.last_tokens_per_second,
                kept.share
            ],
            [100.0, 50.0, 0.5]
        );
        assert_eq!([kept.min, kept.max], [1.0, 100.0]);
    }

    #[test]
    fn a_single_round_is_both_ends() {
        assert_eq!(
            kept(&rounds(&[7.0]), |round| round.prefill_tokens_per_second).share,
            1.0
        );
    }

    #[test]
    fn a_line_has_as_many_points_as_it_can_show_and_keeps_the_mean() {
        let points =
            |count: usize| thinned((0..count).map(|index| (index as f64, (index % 2) as f64)));
        assert_eq!(points(3).len(), 3);
        let many = points(10_000);
        assert!(many.len() <= 240 && many.len() > 200, "{}", many.len());
        assert!(many.iter().all(|point| (point.1 - 0.5).abs() < 0.1));
    }
}
