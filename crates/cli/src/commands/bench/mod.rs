//! `triad bench`: measures how fast a model runs on this machine.
//!
//! [`triad_console::measure`] takes the times, and [`several`] those of prefills on several processors. [`limit`]
//! computes the limit of the machine. [`report`] prints both and [`figure`] draws them. [`operators`] measures the
//! operators of a block, and [`sustained`] the speed over time.

mod figure;
pub mod limit;
mod operators;
mod report;
mod several;
mod sustained;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use triad_engine::{LoadOptions, Model, Threads, memory};
use triad_frontend::{answer, first_run as frontend, machine};
use triad_hetero::HeteroOptions;
use triad_model::description::ModelDescription;
use triad_model::{family, fetch};
use triad_plan::schedule::Policy;

use crate::first_run::{self, PreparationMode};
use limit::Limit;
use report::{Compared, Report};
use several::Several;
use triad_console::arguments::{self, FloatArguments, KvArgument, ModelArgument};
use triad_console::measure::{Measurement, Plan, above_zero};
use triad_console::output_file::OutputFile;
use triad_console::processors::{self, ProcessorArguments};
use triad_console::{output, preparing, progress};

/// Seed of random weights. Any other would do.
const SEED: u64 = 1;

/// Measure how fast a model runs on this machine.
///
/// A prefill test runs a prompt of N tokens in an empty session. A decode test generates N tokens, one by one, after
/// --context tokens. Every test runs once unmeasured, then --repeat times.
///
/// Each result is compared with the limit of this machine, which is measured in the same run. The limit of prefill is
/// the time to do its multiplications in registers: linear layers in INT8, or in the fastest of bf16, INT16 and f32
/// where weights are INT4; attention in the fastest of these three; all in f32 for a model in float. The limit of
/// decode is the time to read all weights from memory.
///
/// With --processors, all tests are measured on these processors first, then on the CPU alone with as many threads.
/// Prefills run by each policy in turns. The bubble rate of a processor is the share of a prefill in which it had
/// nothing to do. Each prefill is compared with its simulated time and with a lower bound of all schedules. Both use
/// the times of tasks that `triad profile` measured or, without a profile, those of unmeasured runs before the test;
/// with --profile, those of runs in order between the measured ones.
///
/// With --processors gpu, all tests are measured on the GPU alone, which runs the whole model. The limit is then the
/// rate at which a shader of Triad multiplies (in INT8 and f32) and reads there.
///
/// With --operators, every test reports where its time goes: for each operator of a block (products, attention, norms
/// and the rest) the time per token, and the bytes of the arrays that it reads and writes, activations and weights
/// apart.
///
/// With --sustained, a prompt and an answer, of the longest --prompt and --decode, follow each other for that time:
/// this shows whether a machine keeps its speed when it is warm. Ctrl-C ends the test with the results so far.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad bench                                             the default model
  triad bench -m model.gguf --prompt 256 --decode 0 --threads 1,2
  triad bench --shape qwen1.5-1.8b                        random weights in a known shape
  triad bench --prompt 64,512,4096 --context 0,1024,4096 --decode 16 --svg lengths.svg
  triad bench --prompt 0 --decode 64 --sequences 1,4,16   several conversations at once
  triad bench --shape phi-2 --repeat 3 --json > phi-2.json
  triad bench --prompt 1024 --processors cpu=0,npu=1 --policy in-order,paper --timeline run.svg
  triad bench --processors cpu=0,npu=1 --policy paper,planned --profile   simulated times compared with measured ones
  triad bench --processors gpu                            a GPU that runs the model whole
  triad bench --operators --prompt 256 --threads 1        time and bytes of each operator of a block
  triad bench --sustained 10m --svg sustained.svg         speed, clock and temperature over time")]
pub struct Arguments {
    /// Path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(short, long, value_name = "MODEL", default_value = fetch::DEFAULT_MODEL, conflicts_with = "shape")]
    model: String,
    #[command(flatten)]
    float: FloatArguments,
    /// Known shape to run with random weights, which are made in memory
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(family::SHAPES))]
    shape: Option<String>,
    /// Prompt lengths to measure, in tokens; 0 measures none
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64,256,1024", value_parser = arguments::count)]
    prompt: Vec<usize>,
    /// Numbers of tokens to decode; 0 measures none
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64", value_parser = arguments::count)]
    decode: Vec<usize>,
    /// Context lengths at which decode tests begin, in tokens
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64", value_parser = arguments::count)]
    context: Vec<usize>,
    /// Numbers of sequences that decode together: a step makes a token of each, and rates are of all of them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = arguments::sequences)]
    sequences: Vec<usize>,
    /// Numbers of threads [default: one for each core, or each fast one where cores differ]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::threads, conflicts_with = "processors")]
    threads: Vec<usize>,
    /// Measured runs of each test
    #[arg(long, value_name = "N", default_value = "5", value_parser = arguments::repeats)]
    repeat: usize,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens)]
    chunk: usize,
    #[command(flatten)]
    kv: KvArgument,
    /// Measure the time, and the bytes read and written, of each operator of a block, on the CPU
    #[arg(long, conflicts_with_all = ["processors", "sustained", "svg"])]
    operators: bool,
    /// Measure speed over this time, with clocks and temperatures where the system reports them; 90s, 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = arguments::duration, conflicts_with_all = ["processors", "sequences", "repeat", "context"])]
    sustained: Option<Duration>,
    /// File for a figure of times over lengths; with --sustained of speed over time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    // Their arguments come last, since their heading holds for all arguments after it.
    #[command(flatten)]
    several: ProcessorArguments,
    /// Policies that schedule the parts of a prompt, one or several in turns: in-order, fifo, npu-first, paper,
    /// critical-path, planned
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = Policy::default().name(),
          value_parser = processors::policy, requires = "processors")]
    policy: Vec<Policy>,
    /// Measure task times between the prompts, by a prompt in order and one by fifo in each round, and simulate with
    /// these times, except planned parts on processors with static shapes: a change of the machine's speed since `triad
    /// profile` then has no effect
    #[arg(long, requires = "processors")]
    profile: bool,
}

/// Runs `triad bench`.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.several.check(arguments.float.float)?;
    ensure!(
        arguments.shape.is_none()
            || !arguments.float.float && arguments.float.expert_memory.is_none(),
        "--no-quantize and --expert-memory are for the file of a model, and --shape has none: leave out either"
    );
    ensure!(
        arguments.sustained.is_none() || arguments.threads.len() <= 1,
        "--sustained measures one number of threads: expected one with --threads"
    );
    if arguments.shape.is_none() {
        // The path is resolved first: no output may be one of the model's files.
        ModelArgument {
            model: arguments.model.clone(),
        }
        .path()?;
    }
    let svg = arguments
        .svg
        .as_deref()
        .map(OutputFile::create)
        .transpose()?;
    let plan = Plan {
        prompts: above_zero(&arguments.prompt),
        decodes: above_zero(&arguments.decode),
        contexts: arguments.context.clone(),
        sequences: arguments.sequences.clone(),
        repeat: arguments.repeat,
        chunk: arguments.chunk,
        kv_format: arguments.kv.format(),
    };
    let timeline = arguments.several.timeline_file()?;
    let threads = match &arguments.several.processors {
        Some(processors) => vec![processors.threads()],
        None if arguments.threads.is_empty() => vec![Threads::Automatic.count()],
        None => arguments.threads.clone(),
    };
    let on_gpu = arguments
        .several
        .processors
        .as_ref()
        .filter(|processors| processors.is_gpu_alone());
    let (name, mut model, load_seconds) = match &arguments.shape {
        Some(shape) => random(shape, &plan, threads[0])?,
        None => load(&arguments.model, threads[0], arguments.float)?,
    };
    let is_shape = arguments.shape.is_some();
    let arithmetic = (!is_shape).then(|| first_run::arithmetic(&model));
    let plan = if arguments.sustained.is_some() {
        plan.in_rounds()
    } else {
        plan
    };
    let (needed, context) = (plan.context(), model.description().context);
    ensure!(
        needed <= context,
        "the longest test needs a context of {needed} tokens, but {name} was made for {context}"
    );
    let session =
        memory::of_session(model.description(), 0, needed, plan.chunk, plan.kv_format).total();
    machine::check_memory(&format!("a context of {needed} tokens"), session)?;
    if let Some(time) = arguments.sustained {
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
        let tokens = (longest(&plan.prompts), longest(&plan.decodes));
        ensure!(
            tokens.0 > 0 && tokens.1 > 0,
            "--sustained measures prompts and answers: expected --prompt and --decode above 0"
        );
        let shared = Arc::new(model);
        let engine = answer::engine(&shared, &plan.options(&shared))?;
        let report = sustained::run(&engine, (&name, threads[0]), tokens, time)?;
        if let Some(file) = svg {
            file.write(|file| file.write_all(report.figure().svg().as_bytes()))?;
        }
        return if arguments.json {
            output::json(&report)
        } else {
            report.print()
        };
    }
    if arguments.operators {
        let report = by_operator(name, model, &plan, &threads)?;
        return if arguments.json {
            output::json(&report)
        } else {
            report.print()
        };
    }
    let mut results = Vec::new();
    let mut latest = None;
    for &count in &threads {
        model = model.with_threads(count)?;
        let shared = Arc::new(model);
        if let Some(processors) = on_gpu {
            let options = HeteroOptions {
                engine: plan.options(&shared),
                ..HeteroOptions::default()
            };
            let engine = processors.engine(&arguments.several.devices, &shared, options)?;
            (results, latest) = plan.run(&engine, count, &name)?;
        } else if let Some(processors) = &arguments.several.processors {
            let chunks_in_flight = arguments.several.chunks_in_flight;
            let devices = &arguments.several.devices;
            let (policies, profile) = (&arguments.policy[..], arguments.profile);
            let several = Several {
                processors,
                devices,
                policies,
                chunks_in_flight,
                profile,
            };
            let (measured, execution) = several.run(&plan, &shared, &name)?;
            results.extend(measured);
            latest = execution;
        }
        if on_gpu.is_none() {
            let engine = answer::engine(&shared, &plan.options(&shared))?;
            results.extend(plan.run(&engine, count, &name)?.0);
        }
        // The sessions that shared the model are dropped.
        model = Arc::into_inner(shared).expect("the measured model has one owner");
    }
    // Read before the limits are measured, since that needs memory too.
    let peak_resident_bytes = machine::peak_resident_bytes();
    let measure_limits = || -> Result<Vec<Limit>> {
        if on_gpu.is_some() {
            let peaks = arguments.several.devices.gpu_peaks()?;
            return Ok(peaks
                .map(|peaks| Limit::of_gpu(peaks, threads[0]))
                .into_iter()
                .collect());
        }
        let bytes = model.weights().bytes_per_token();
        Ok(threads
            .iter()
            .map(|count| Limit::measure(*count, bytes))
            .collect())
    };
    let compare = |measured: &Measurement, limits: &[Limit]| {
        // A GPU may have no limit.
        let limit = limits
            .iter()
            .find(|limit| limit.arithmetic.threads == measured.threads);
        let seconds = limit.and_then(|limit| limit.seconds(measured, &model, plan.kv_format));
        Compared::new(measured.clone(), seconds)
    };
    let compare_all = |limits: &[Limit]| -> Vec<_> {
        results
            .iter()
            .map(|measured| compare(measured, limits))
            .collect()
    };
    let (limits, results) = within_limits(measure_limits, compare_all)?;
    let processor = on_gpu.map(|processors| processors.devices(&arguments.several.devices));
    let report = Report {
        model: name,
        arithmetic,
        processor,
        results,
        limits,
        load_seconds,
        peak_resident_bytes,
        expert_use: model.expert_use(),
    };
    if let Some(file) = svg {
        file.write(|file| file.write_all(figure::figure(&report).svg().as_bytes()))?;
    }
    arguments
        .several
        .write_timeline(timeline, (latest.as_ref(), &[]), &report.model)?;
    if arguments.json {
        output::json(&report)
    } else {
        report.print(model.description())
    }?;
    report.check()
}

/// Maximum measurements of the limits. Other programs may slow a processor down for a moment, which makes its limit too
/// low.
const LIMIT_MEASUREMENTS: usize = 5;

/// Measures limits and compares results with them. Repeats this while a result is beyond its limit.
fn within_limits(
    measure: impl Fn() -> Result<Vec<Limit>>,
    compare: impl Fn(&[Limit]) -> Vec<Compared>,
) -> Result<(Vec<Limit>, Vec<Compared>)> {
    let mut limits = measure()?;
    for _ in 1..LIMIT_MEASUREMENTS {
        if !compare(&limits).iter().any(Compared::is_beyond_limit) {
            break;
        }
        let again = measure()?;
        limits = limits
            .into_iter()
            .zip(&again)
            .map(|(limit, again)| limit.max(again))
            .collect();
    }
    let results = compare(&limits);
    Ok((limits, results))
}

/// Runs all tests by operator, with each number of threads.
fn by_operator(
    name: String,
    mut model: Model,
    plan: &Plan,
    threads: &[usize],
) -> Result<operators::Report> {
    let blocks = model.description().blocks.len();
    let mut tests = Vec::new();
    for &count in threads {
        model = model.with_threads(count)?;
        let shared = Arc::new(model);
        let engine = answer::engine(&shared, &plan.options(&shared))?;
        tests.extend(operators::run(plan, &engine, count, &name)?);
        drop(engine);
        model = Arc::into_inner(shared).expect("the measured model has one owner");
    }
    Ok(operators::Report {
        model: name,
        blocks,
        tests,
    })
}

fn load(name: &str, threads: usize, float: FloatArguments) -> Result<(String, Model, f64)> {
    let path = ModelArgument { model: name.into() }.path()?;
    float.check(&path)?;
    let prepared = |path: &Path| {
        let package = preparing::package_of(path, name, Threads::Count(threads));
        package.with_context(|| format!("cannot prepare {name}; --no-quantize skips this step"))
    };
    let path = match PreparationMode::from(float.float, false, PreparationMode::First)? {
        PreparationMode::AsStored => path,
        PreparationMode::Never => {
            let found = frontend::find(&path, &mut progress::reading(&path))?;
            if let frontend::Ready::Found(found) = found {
                found.path
            } else {
                output::note(&format!("{name} runs from the file as it is"));
                path
            }
        }
        PreparationMode::First | PreparationMode::Later => prepared(&path)?,
    };
    let start = Instant::now();
    let options = float.options(Threads::Count(threads));
    let model = arguments::load(&path, name, &options)?;
    Ok((name.into(), model, start.elapsed().as_secs_f64()))
}

fn random(shape: &str, plan: &Plan, threads: usize) -> Result<(String, Model, f64)> {
    let description = family::shape(shape)?;
    machine::check_memory(shape, needed_memory(&description, plan))?;
    let _spinner = progress::spinner(format!("making random weights in the shape of {shape}"));
    let start = Instant::now();
    let model = Model::random(
        description,
        &LoadOptions {
            threads: Threads::Count(threads),
            ..Default::default()
        },
        SEED,
    )?;
    Ok((shape.into(), model, start.elapsed().as_secs_f64()))
}

fn needed_memory(description: &ModelDescription, plan: &Plan) -> usize {
    let weights = memory::of_random_weights(description);
    let context = plan.context().min(description.context);
    memory::of_session(description, weights, context, plan.chunk, plan.kv_format).total()
}

#[cfg(test)]
mod tests {
    use super::*;
    use triad_engine::KvFormat;

    use triad_console::arithmetic::Arithmetic;
    use triad_console::measure::{Spread, Test};

    fn limit(rate: f64) -> Limit {
        let arithmetic = Arithmetic {
            threads: 1,
            int8_operations_per_second: Some(rate),
            int16_operations_per_second: None,
            bf16_operations_per_second: None,
            f32_operations_per_second: rate,
        };
        Limit {
            processor: None,
            arithmetic,
            bytes_read_per_second: rate,
        }
    }

    /// Returns a prompt of one token at 10 tokens per second, with the limit of the first of `limits`.
    fn compared(limits: &[Limit]) -> Vec<Compared> {
        let tokens_per_second = Spread {
            min: 10.0,
            median: 10.0,
            max: 10.0,
        };
        let measured = Measurement {
            threads: 1,
            test: Test::Prefill,
            tokens: 1,
            context: 0,
            sequences: 1,
            tokens_per_second,
            processors: None,
            executed: None,
            expected: None,
            resident: None,
            energy: None,
            copied: None,
        };
        vec![Compared::new(
            measured,
            Some(1.0 / limits[0].bytes_read_per_second),
        )]
    }

    #[test]
    fn a_limit_that_a_result_is_beyond_is_measured_again_and_the_highest_counts() {
        let rates = std::cell::RefCell::new([5.0, 8.0, 20.0, 30.0].into_iter());
        let measure = || {
            Ok(vec![limit(
                rates
                    .borrow_mut()
                    .next()
                    .expect("no measurement after the third"),
            )])
        };
        let (limits, results) = within_limits(measure, compared).unwrap();
        assert_eq!(
            (limits[0].bytes_read_per_second, results[0].share_of_limit),
            (20.0, Some(0.5))
        );
    }

    #[test]
    fn a_result_beyond_its_limit_is_an_error_of_bench() {
        let (limits, results) = within_limits(|| Ok(vec![limit(8.0)]), compared).unwrap();
        let report = Report {
            model: "tiny".into(),
            arithmetic: None,
            processor: None,
            results,
            limits,
            load_seconds: 0.0,
            peak_resident_bytes: None,
            expert_use: None,
        };
        let error = report.check().unwrap_err().to_string();
        assert!(
            error.starts_with("prefill of 1 tokens on 1 threads is at 125 % of its limit"),
            "{error}"
        );
    }

    #[test]
    fn the_memory_of_a_shape_is_its_weights_in_two_bytes_and_a_little_more() {
        let plan = Plan {
            prompts: vec![256],
            decodes: vec![],
            sequences: vec![1],
            contexts: vec![],
            repeat: 1,
            chunk: 256,
            kv_format: KvFormat::F16,
        };
        let description = family::shape("llama-2-7b").unwrap();
        let weights = 2 * description.parameters();
        let needed = needed_memory(&description, &plan);
        assert!(
            weights < needed && needed < weights + weights / 20,
            "{needed} bytes for {weights} of weights"
        );
    }
}
