//! Reports of prompts on several processors.

use serde::Serialize;
use triad_engine::outlier_cache::OutlierCacheUse;
use triad_engine::{Engine, Session};
use triad_hetero::{
    Execution, HeteroEngine, JoinStatistics, Operations, ProcessorFailure, WaitUse, execution,
};
use triad_plan::schedule::Policy;
use triad_plan::timeline::ProcessorSummary;

use crate::device::DeviceArguments;
use crate::output;
use crate::processors::{Processors, record};

/// The report of a prompt on several processors.
#[derive(Clone, Debug, Serialize)]
pub struct Executed {
    /// Policy that chose the order of tasks.
    pub policy: Policy,
    /// Seconds from the start of the first task to the end of the last one.
    pub seconds: f64,
    /// Summary of each processor.
    pub processors: Vec<ProcessorSummary>,
    /// Time for waiting for other processors, by processor.
    pub waits: Vec<WaitUse>,
    /// Processors that failed during the prompt.
    pub failures: Vec<ProcessorFailure>,
    /// Use of the weight rows for shadows, if a device has its own memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_cache: Option<OutlierCacheUse>,
    /// Multiplications and additions of each device since the engine started, if a GPU runs the model, and what the CPU
    /// has computed if an NPU multiplies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<Operations>,
}

impl Executed {
    /// Creates the report of a prompt on `processors`.
    pub fn new(execution: &Execution, processors: &Processors, devices: &DeviceArguments) -> Self {
        let names = processors.names(devices);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let labels = execution.tasks.labels(&execution.graph);
        let summary = record("", execution, &labels, &names).summary();
        let (failures, waits) = (execution.failures.clone(), execution.waits.clone());
        let (policy, seconds, processors) = (execution.policy, summary.seconds, summary.processors);
        Self {
            policy,
            seconds,
            processors,
            waits,
            failures,
            outlier_cache: None,
            operations: None,
        }
    }

    /// Returns the report with the use of weight rows since `before`, and the operations of `engine`.
    pub fn with_outlier_cache(self, engine: &Engine, before: Option<&OutlierCacheUse>) -> Self {
        let mut outlier_cache =
            HeteroEngine::from_engine(engine).and_then(|engine| engine.outlier_cache());
        if let (Some(outlier_cache), Some(before)) = (&mut outlier_cache, before) {
            outlier_cache.statistics = outlier_cache.statistics - before.statistics;
        }
        let operations = HeteroEngine::from_engine(engine).and_then(|engine| engine.operations());
        Self {
            outlier_cache,
            operations,
            ..self
        }
    }

    /// Returns the bubble rates as text: `3.0 %, 12.0 %`.
    pub fn bubbles(&self) -> String {
        let rates: Vec<_> = self
            .processors
            .iter()
            .map(|summary| format!("{:.1} %", 100.0 * summary.bubble_rate))
            .collect();
        rates.join(", ")
    }
}

/// Prints which processors failed in the latest prompt of `session`.
pub fn note_failures(session: &Session) {
    for failure in execution(session)
        .iter()
        .flat_map(|execution| &execution.failures)
    {
        output::note(&format!("note: {}", failure.took_over()));
    }
}

/// Returns the use of weight rows for shadows as text.
pub fn outlier_cache(usage: &OutlierCacheUse) -> String {
    let OutlierCacheUse {
        statistics,
        hot_bytes,
        failure,
        ..
    } = usage;
    if failure.is_some() {
        return "outlier cache: off".into();
    }
    format!(
        "outlier cache: {:.1} % of {} in memory ({}), {} read, {:.1} ms of stalls",
        100.0 * statistics.hit_rate(),
        statistics.hits + statistics.misses,
        output::bytes(*hot_bytes as u64),
        output::bytes(statistics.bytes_read),
        1e3 * statistics.stall_seconds
    )
}

/// Returns the number of feed-forwards in fixed point as text; `None` if there are none.
pub fn fixed_point(engine: &Engine) -> Option<String> {
    let blocks = engine.model().description().blocks.len();
    HeteroEngine::from_engine(engine)?
        .fixed_point()
        .map(|count| format!("fixed point: {count} of {blocks} feed-forwards of prompts"))
}

/// Returns the work of devices that count it as text, each after a semicolon; and, if an NPU multiplies for a GPU, the
/// share of each, and what the CPU has computed.
pub fn work(engine: &Engine) -> String {
    let Some(engine) = HeteroEngine::from_engine(engine) else {
        return String::new();
    };
    let work = engine.device_work().into_iter();
    let shares = engine.operations().zip(engine.multiplier());
    let shares = shares.map(|(operations, multiplier)| {
        let Operations {
            device,
            multiplier: of_multiplier,
            cpu_seconds,
            bytes_written,
            bytes_read,
        } = operations;
        let multiplier = match multiplier {
            "cpu" => "INT8 kernels as NPU",
            other => other,
        };
        let all = (device + of_multiplier).max(1) as f64;
        format!(
            "operations: GPU {:.1} %, {multiplier} {:.1} %; operators on the CPU: {:.1} ms; {} copied to the GPU, {} from it{}",
            100.0 * device as f64 / all,
            100.0 * of_multiplier as f64 / all,
            1e3 * cpu_seconds.unwrap_or(0.0),
            output::bytes(bytes_written),
            output::bytes(bytes_read),
            engine.joins().map_or_else(String::new, joins)
        )
    });
    let all = work.chain(shares);
    all.map(|work| format!("; {work}")).collect()
}

/// Returns the times of joining an NPU's products to the rest as text.
fn joins(joins: JoinStatistics) -> String {
    let each = |seconds: f64| 1e6 * seconds / joins.products.max(1) as f64;
    format!(
        "; {} products joined: {:.0} µs each on the NPU, of which {:.0} µs waited for, noticed {:.1} µs late",
        joins.products,
        each(joins.other_seconds),
        each(joins.waited_seconds),
        each(joins.late_seconds)
    )
}

/// Prints the reason if shadows read the weights in place because of a failure.
pub fn note_outlier_cache(engine: &Engine) {
    let usage = HeteroEngine::from_engine(engine).and_then(|engine| engine.outlier_cache());
    if let Some(failure) = usage.and_then(|usage| usage.failure) {
        output::note(&format!(
            "note: the CPU reads all weights of layers with a shadow: {failure}"
        ));
    }
}
