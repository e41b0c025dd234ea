//! Prints measurements as JSON, whose format later versions keep, or as a table.

use anyhow::{Result, bail};
use serde::Serialize;
use triad_engine::weights::ExpertUse;
use triad_frontend::machine::Resident;
use triad_model::description::ModelDescription;

use super::limit::Limit;
use triad_console::measure::Measurement;
use triad_console::{executed, experts, output};

/// All measurements. Serialized, they are the output of `bench --json`.
#[derive(Serialize)]
pub struct Report {
    pub model: String,
    /// The arithmetic: `w8a8` or `w4a16` of a package, or `as stored` of a model file; `None` for a shape.
    pub arithmetic: Option<&'static str>,
    /// The GPU, if it ran all tests alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    pub results: Vec<Compared>,
    /// The limit for each number of threads, or that of the GPU if it was measured.
    pub limits: Vec<Limit>,
    pub load_seconds: f64,
    pub peak_resident_bytes: Option<u64>,
    /// The experts that were read, if not all of them stay in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_use: Option<ExpertUse>,
}

/// A measurement compared with the limit of the machine.
#[derive(Serialize)]
pub struct Compared {
    #[serde(flatten)]
    pub measured: Measurement,
    /// The least time that the machine allows, if it is known.
    pub limit_seconds: Option<f64>,
    /// `limit_seconds` divided by the median time.
    pub share_of_limit: Option<f64>,
}

impl Compared {
    /// Compares a measurement with the least time that the machine allows.
    pub fn new(measured: Measurement, limit_seconds: Option<f64>) -> Self {
        let tokens = (measured.tokens * measured.sequences) as f64;
        let share = |least: f64| least * measured.tokens_per_second.median / tokens;
        Self {
            limit_seconds,
            share_of_limit: limit_seconds.map(share),
            measured,
        }
    }

    /// Returns whether the test took less time than its limit, which means that the limit is wrong.
    pub fn is_beyond_limit(&self) -> bool {
        self.share_of_limit.is_some_and(|share| share > 1.0)
    }
}

impl Report {
    /// Checks that no result is beyond its limit.
    ///
    /// # Errors
    /// Fails with the first result that is beyond its limit: then the limit is wrong, not the result.
    pub fn check(&self) -> Result<()> {
        let Some(beyond) = self
            .results
            .iter()
            .find(|compared| compared.is_beyond_limit())
        else {
            return Ok(());
        };
        let Measurement {
            threads,
            test,
            tokens,
            ..
        } = &beyond.measured;
        let share = 100.0 * beyond.share_of_limit.unwrap_or_default();
        bail!(
            "{} of {tokens} tokens on {threads} threads is at {share:.0} % of its limit, so the limit is wrong: measure \
             again on an idle machine; if the result is the same, it is a bug in `triad bench`",
            test.name()
        )
    }

    /// Prints the measurements as a table.
    pub fn print(&self, description: &ModelDescription) -> Result<()> {
        let names = [
            "threads",
            "test",
            "tokens",
            "context",
            "sequences",
            "min tok/s",
            "median",
            "max",
            "of the limit",
        ];
        let several = self
            .results
            .iter()
            .any(|compared| compared.measured.processors.is_some());
        let names = if several {
            [
                &names[..],
                &["on", "policy", "bubbles", "simulated", "bound"],
            ]
            .concat()
        } else {
            names.to_vec()
        };
        let row = |compared: &Compared| {
            let Measurement {
                threads,
                test,
                tokens,
                context,
                sequences,
                tokens_per_second: rate,
                ..
            } = &compared.measured;
            let Measurement {
                processors,
                executed,
                expected,
                ..
            } = &compared.measured;
            let rates = [rate.min, rate.median, rate.max].map(|rate| format!("{rate:.1}"));
            let share = compared
                .share_of_limit
                .map_or("-".into(), |share| format!("{:.0} %", 100.0 * share));
            let labels = vec![
                threads.to_string(),
                test.name().into(),
                tokens.to_string(),
                context.to_string(),
                sequences.to_string(),
            ];
            let on = processors.clone().unwrap_or_else(|| "the CPU".into());
            let unknown = || "-".to_owned();
            let how = match (executed, expected) {
                (Some(executed), Some(expected)) => {
                    let simulated = *tokens as f64 / expected.seconds();
                    let seconds = *tokens as f64 / rate.median;
                    vec![
                        on,
                        executed.policy.name().into(),
                        executed.bubbles(),
                        format!(
                            "{simulated:.1} ({:+.1} % time)",
                            100.0 * expected.error(&compared.measured)
                        ),
                        format!(
                            "{:.1} %",
                            100.0 * (expected.bound_seconds + expected.outside_seconds) / seconds
                        ),
                    ]
                }
                _ if several => vec![on, unknown(), unknown(), unknown(), unknown()],
                _ => Vec::new(),
            };
            [labels, rates.to_vec(), vec![share], how].concat()
        };
        let rows: Vec<_> = self.results.iter().map(row).collect();
        let mut lines = vec![
            format!(
                "{}: {} parameters, loaded in {:.2} s{}",
                self.model,
                output::count(description.parameters()),
                self.load_seconds,
                self.processor
                    .as_ref()
                    .map_or(String::new(), |gpu| format!("; all on {gpu}"))
            ),
            String::new(),
            output::table(&names, 0, &rows),
        ];
        lines.extend(self.limits.iter().map(|limit| {
            if let Some(gpu) = &limit.processor {
                let Limit {
                    arithmetic,
                    bytes_read_per_second,
                    ..
                } = limit;
                let giga = |value: f64| format!("{:.0}", value / 1e9);
                return format!(
                    "limit of {gpu}: INT8 {}, f32 {} Gop/s, memory {:.1} GB/s",
                    arithmetic
                        .int8_operations_per_second
                        .map_or("-".into(), giga),
                    giga(arithmetic.f32_operations_per_second),
                    bytes_read_per_second / 1e9
                );
            }
            format!(
                "limit on {} threads: {}, memory {:.1} GB/s",
                limit.arithmetic.threads,
                limit.arithmetic.sentence(),
                limit.bytes_read_per_second / 1e9
            )
        }));
        lines.extend(self.results.iter().filter_map(|Compared { measured, .. }| {
            let usage = measured.executed.as_ref()?.outlier_cache.as_ref()?;
            let policy = measured.executed.as_ref()?.policy.name();
            Some(format!(
                "{} tokens by {policy}: {}",
                measured.tokens,
                executed::outlier_cache(usage)
            ))
        }));
        lines.extend(self.results.iter().filter_map(|Compared { measured, .. }| {
            let Resident { bytes, anonymous_bytes, file_bytes, shared_bytes } = measured.resident?;
            Some(format!(
                "memory after {} tokens: {}, of which {} mapped from files, {} allocated, {} shared",
                measured.tokens,
                output::bytes(bytes),
                output::bytes(file_bytes),
                output::bytes(anonymous_bytes),
                output::bytes(shared_bytes)
            ))
        }));
        lines.extend(self.results.iter().filter_map(|one| used(&one.measured)));
        lines.extend(self.expert_use.map(experts::describe));
        lines.push(format!(
            "peak memory {}",
            output::known_bytes(self.peak_resident_bytes)
        ));
        output::text(&lines.join("\n"))
    }
}

/// Returns the energy and the copies of a test as text, if they are known.
fn used(measured: &Measurement) -> Option<String> {
    let energy = measured.energy.map(|energy| {
        format!(
            "{:.2} J, {:.1} mJ per token ({})",
            energy.joules,
            1e3 * energy.joules_per_token,
            energy.source
        )
    });
    let copied = measured.copied.map(|copied| {
        let [written, read, of_token] = [copied.written, copied.read, copied.per_token]
            .map(|bytes| output::bytes(bytes.round() as u64));
        format!("{written} copied to the GPU and {read} from it, {of_token} per token")
    });
    let used: Vec<_> = energy.into_iter().chain(copied).collect();
    (!used.is_empty()).then(|| {
        let Measurement { test, tokens, .. } = measured;
        format!("{} of {tokens} tokens: {}", test.name(), used.join("; "))
    })
}
