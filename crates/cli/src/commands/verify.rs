//! `triad verify`: checks the files of a package, and compares the logits of several processors with those of one.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use triad_engine::package::{Contents, Package};
use triad_engine::{Cancel, EngineOptions, Error, LoadOptions, Model, SessionOptions};
use triad_hetero::{Comparison, HeteroOptions};
use triad_plan::schedule::Policy;

use triad_console::arguments::{self, ThreadArguments};
use triad_console::device::{DeviceArguments, Npu};
use triad_console::executed;
use triad_console::failure::run_error;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::processors::Processors;
use triad_console::{output, progress};

/// Check the hash of every file of a package, and the logits that several processors compute with it.
///
/// The report lists the files that have hashes; the files that runs on a machine made from the package, and check when
/// they read them; and the files that are not part of the package and are not read.
///
/// With --processors, prompts of one token, a chunk less one token, a chunk, a chunk and one token, and three and a
/// half chunks are run twice: one chunk after the other, and on these processors by every policy. The logits of the
/// last token must be the same, bit for bit; with a GPU, or with an NPU other than Triad's own kernels, they may differ
/// by its rounding. A GPU without a CPU runs the whole package in a single way. For it, and next to a CPU for a package in
/// W4A16, the logits of one more token after each prompt are compared too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad verify model.triad
  triad verify model.triad --processors cpu=0,npu=1
  triad verify model.triad --processors cpu=0,npu=1 --npu openvino
  triad verify w4a16.triad --processors gpu
  triad verify model.triad --processors gpu,npu --npu openvino")]
pub struct Arguments {
    /// Folder of a package
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,
    /// Processors whose logits are compared too: cpu=0,npu=1 pins each to its cores, cpu,npu takes one thread for each
    #[arg(long, value_name = "LIST")]
    processors: Option<Processors>,
    #[command(flatten)]
    devices: DeviceArguments,
    /// Prefill chunk size, in tokens
    #[arg(long = "prefill-chunk", value_name = "N", default_value = "256", value_parser = arguments::tokens, requires = "processors")]
    chunk: usize,
    #[command(flatten)]
    threads: ThreadArguments,
}

/// Maximum chunks in flight: all that the longest prompt has.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Prints OK and the files of the package. Fails with the first file that differs, or with the comparison that failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.check(arguments.processors.is_some())?;
    let package = Package::open(&arguments.package)?;
    let spinner = progress::spinner(format!("reading {}", output::bytes(package.bytes())));
    package.verify()?;
    drop(spinner);
    let name = arguments.package.display();
    let compared = match &arguments.processors {
        Some(processors) => format!(", {}", compare(arguments, &package, processors)?),
        None => String::new(),
    };
    output::text(&format!(
        "{name}: OK{compared}\n{}",
        contents(&package.contents()?)
    ))
}

/// Returns the files of a package, sorted by how they are checked.
fn contents(contents: &Contents) -> String {
    let Contents {
        hashed,
        made_here,
        others,
    } = contents;
    let lines = [
        ("match their hashes", hashed),
        ("made by runs, which check them", made_here),
        ("not part of the package, not read", others),
    ];
    let lines = lines.into_iter().filter(|(_, names)| !names.is_empty());
    lines
        .map(|(what, names)| format!("  {what}: {}", names.join(", ")))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Compares the logits of the processors, and returns the result in words. Fails if a comparison does.
fn compare(arguments: &Arguments, package: &Package, processors: &Processors) -> Result<String> {
    let name = arguments.package.display().to_string();
    let model = Arc::new(Model::from_package(
        package,
        &LoadOptions {
            threads: arguments.threads.chosen(),
            ..Default::default()
        },
    )?);
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    // Chunks longer than the context would leave hardly a length to compare.
    let chunk = arguments.chunk.min(model.description().context);
    let lengths = triad_hetero::lengths(chunk, model.description().context);
    // The context has room for one token after the longest prompt.
    let context = (lengths.iter().copied().max().unwrap_or(1) + 1).min(model.description().context);
    let session = SessionOptions {
        context,
        chunk,
        ..SessionOptions::default()
    };
    let options = HeteroOptions {
        engine: EngineOptions {
            session,
            ..EngineOptions::default()
        },
        chunks_in_flight: CHUNKS_IN_FLIGHT,
        ..HeteroOptions::default()
    };
    let engine = processors.engine(&arguments.devices, &model, options)?;
    let rounding = processors.rounding(&arguments.devices, !model.weights().is_int8());
    let mut spinner = None;
    let mut show = |tokens: usize, policy: Option<Policy>| {
        let how = policy.map_or("one chunk after the other", Policy::name);
        spinner = Some(progress::spinner(format!("running {tokens} tokens, {how}")));
    };
    let verified = triad_hetero::verify(&engine, rounding, &cancel, &mut show);
    drop(spinner);
    let verified = match verified.map_err(Error::from) {
        Err(Error::Cancelled) => return Err(Interrupted.into()),
        verified => verified.map_err(|error| run_error(error, &name))?,
    };
    let comparisons = verified.comparisons.len();
    let failures: Vec<_> = verified.failures().collect();
    if let Some(first) = failures.first() {
        bail!(
            "{name}: on {processors} {} of {comparisons} prompts failed, the first of {}",
            failures.len(),
            fault(first)
        );
    }
    let lengths: Vec<_> = lengths.iter().map(usize::to_string).collect();
    let largest = verified
        .comparisons
        .iter()
        .map(|comparison| comparison.difference)
        .fold(0.0, f32::max);
    let same = if largest == 0.0 {
        "the same logits, bit for bit,".to_owned()
    } else {
        format!("logits within {largest:.1e} of the largest")
    };
    let fixed =
        executed::fixed_point(&engine).map_or_else(String::new, |fixed| format!(" ({fixed})"));
    let of_devices = fixed + &executed::work(&engine);
    let has_device = rounding > 0.0 || arguments.devices.npu != Npu::Kernels;
    let with = if has_device {
        format!(" with {}", processors.devices(&arguments.devices))
    } else {
        String::new()
    };
    let (lengths, policies) = (lengths.join(", "), Policy::ALL.len());
    if engine.processors().len() == 1 {
        return Ok(format!(
            "and prompts of {lengths} tokens, and a token after each, have {same}{with} on {processors}{of_devices}"
        ));
    }
    Ok(format!(
        "and prompts of {lengths} tokens have {same}{with} on {processors} by all {policies} policies{of_devices}"
    ))
}

/// Describes a comparison that failed.
fn fault(comparison: &Comparison) -> String {
    let Comparison {
        tokens,
        policy,
        difference,
        failed_processors,
    } = comparison;
    let what = if *failed_processors > 0 {
        "a processor failed during the run".to_owned()
    } else {
        format!("logits differ by {difference:.1e} of the largest")
    };
    format!("{tokens} tokens by {}: {what}", policy.name())
}
