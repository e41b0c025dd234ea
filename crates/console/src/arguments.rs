//! Arguments that several commands share: which model, on how many threads, calibrated on what; and how numbers are
//! read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use triad_engine::package::Package;
use triad_engine::{Cores, Error, KvFormat, LoadOptions, Model, Threads};
use triad_frontend::{machine, models};
use triad_kernels::BlockArithmetic;
use triad_model::description::ModelDescription;
use triad_model::{family, fetch};
use triad_plan::device::{self, DeviceProfile};
use triad_plan::prefill::{FloatsOn, KeptShadows};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::{PrepareOptions, Prune};

use crate::{inputs, preparing, progress};

/// The engine's own bound.
const MOST_THREADS: usize = 1024;
/// Threads that may be requested on any machine, and how many times as many as it runs at once: with more, threads wait
/// for each other's turn on a core, and a run takes so long that it seems to hang.
const FEW_THREADS: usize = 16;
const MOST_THREADS_PER_CORE: usize = 4;

/// The profile of a device has some 2 KiB. A device file of the system never ends.
const MOST_DEVICE_BYTES: u64 = 1 << 20;

/// More than any model's context.
const MOST_TOKENS: usize = 1 << 30;

/// Which model.
#[derive(Clone, clap::Args)]
pub struct ModelArgument {
    /// The path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(short, long, value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    pub model: String,
}

/// A model of which its description is enough.
#[derive(clap::Args)]
pub struct DescriptionArguments {
    #[command(flatten)]
    name: ModelArgument,
    /// The shape of this model
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = PossibleValuesParser::new(family::SHAPES))]
    shape: Option<String>,
}

impl DescriptionArguments {
    /// Its name and description.
    pub fn describe(&self) -> Result<(String, ModelDescription)> {
        if let Some(shape) = &self.shape {
            return Ok((shape.clone(), family::shape(shape)?));
        }
        let path = self.name.path()?;
        let description = models::description(&path, &mut progress::checking(&path))?;
        Ok((self.name.model.clone(), description))
    }
}

impl DescriptionArguments {
    /// The package of the model, which it may be itself; not made if it is not there.
    pub fn package(&self) -> Result<PathBuf> {
        let path = self.name.path()?;
        let package = if Package::is_at(&path) {
            path
        } else {
            preparing::cached(
                &path,
                &PrepareOptions::default(),
                &CalibrationText::builtin(),
            )?
        };
        ensure!(
            Package::is_at(&package),
            "{} has no package yet: run `triad prepare` first",
            self.name.model
        );
        Ok(package)
    }

    /// The shadows that the package of the model keeps; nothing of a shape, or where there is no package.
    pub fn shadows(&self) -> Result<Option<KeptShadows>> {
        let package = if self.shape.is_none() {
            self.package().ok()
        } else {
            None
        };
        let package = package.map(|path| Package::open(&path)).transpose()?;
        Ok(package.and_then(|package| package.manifest().preparation.shadows()))
    }
}

/// Tokens of a prompt that no model runs, unless another number is given.
const PROMPT: usize = 1024;
/// More would take memory and time that nobody meant.
pub const MOST_CHUNKS: usize = 10_000;

/// Tokens of the prompt: as `asked`, or the usual number if the model was made for as many.
pub fn prompt_tokens(asked: Option<usize>, description: &ModelDescription) -> Result<usize> {
    let prompt = asked.unwrap_or(PROMPT.min(description.context));
    if prompt > description.context {
        return Err(Error::ContextTooLong {
            asked: prompt,
            longest: description.context,
        }
        .into());
    }
    Ok(prompt)
}

/// Refuses a prompt in more than `most` chunks.
pub fn check_chunks(prompt: usize, chunk: usize, most: usize) -> Result<()> {
    let chunks = prompt.div_ceil(chunk);
    ensure!(
        chunks <= most,
        "{prompt} tokens in chunks of {chunk} are {chunks} chunks, more than {most}: expected a larger --chunk"
    );
    Ok(())
}

/// Which model, on how many threads.
#[derive(clap::Args)]
pub struct ModelArguments {
    /// Which model.
    #[command(flatten)]
    pub name: ModelArgument,
    /// Threads that compute.
    #[command(flatten)]
    pub threads: ThreadArguments,
}

/// Threads that compute.
#[derive(Clone, clap::Args)]
pub struct ThreadArguments {
    /// Threads that compute [default: one for each core, or each fast one where cores differ]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Compute on these cores, such as 0-3,6, with one thread on each that stays there
    #[arg(long, value_name = "LIST", value_parser = Cores::parse, conflicts_with = "threads")]
    cores: Option<Cores>,
}

impl ThreadArguments {
    /// What they say.
    pub fn chosen(&self) -> Threads {
        match (self.cores, self.threads) {
            (Some(cores), _) => Threads::On(cores),
            (None, Some(count)) => Threads::Count(count),
            (None, None) => Threads::Automatic,
        }
    }
}

/// How keys and values are kept.
#[derive(clap::Args)]
pub struct KvArgument {
    /// Number format of the KV cache; int8 takes half the memory of f16
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    kv: Kv,
}

/// [`KvFormat`] by the names that users give it.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Kv {
    F16,
    Int8,
    F32,
}

impl KvArgument {
    /// Its text.
    pub fn format(&self) -> KvFormat {
        match self.kv {
            Kv::F16 => KvFormat::F16,
            Kv::Int8 => KvFormat::Int8,
            Kv::F32 => KvFormat::F32,
        }
    }
}

/// What a model is calibrated on.
#[derive(clap::Args)]
pub struct CalibrationArguments {
    /// A text to calibrate on, plain or JSON lines; may be given several times [default: a built-in one]
    #[arg(long, value_name = "FILE")]
    calibrate: Vec<PathBuf>,
    /// Tokens of the text that are read at most
    #[arg(long, value_name = "N", default_value = "16384", value_parser = tokens)]
    pub tokens: usize,
}

impl CalibrationArguments {
    /// The built-in text, or those of all files: they take turns, so that --tokens cuts none of them off.
    pub fn text(&self) -> Result<CalibrationText> {
        if self.calibrate.is_empty() {
            return Ok(CalibrationText::builtin());
        }
        self.calibrate.iter().for_each(|path| inputs::add(path));
        let files = self
            .calibrate
            .iter()
            .map(|path| CalibrationText::read(path))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(CalibrationText::join(files))
    }
}

impl ModelArgument {
    /// The model's path; fetches the model if it is not there.
    pub fn path(&self) -> Result<PathBuf> {
        let path = progress::fetch(|progress| Ok(models::path_of(&self.model, progress)?))?;
        inputs::add_model(&path);
        Ok(path)
    }
}

/// Whether a model file runs as it is.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct FloatArguments {
    /// Run a model file as it is, in float, without preparing it; beside quantized weights activations are rounded to 16 bits
    #[arg(long)]
    pub float: bool,
    /// Compute with quantized weights as if they were in f32: slower, to compare with other engines
    #[arg(long, requires = "float")]
    pub exact: bool,
}

impl FloatArguments {
    /// How products with quantized weights of a model file are computed.
    pub fn block_arithmetic(self) -> BlockArithmetic {
        if self.exact {
            BlockArithmetic::Exact
        } else {
            BlockArithmetic::Rounded
        }
    }
}

impl ModelArguments {
    /// Another model on as many threads.
    pub fn named(&self, model: &str) -> Self {
        Self {
            name: ModelArgument {
                model: model.to_owned(),
            },
            threads: self.threads.clone(),
        }
    }

    /// The model as it is, ready to be compared: a model file in float, its products in f32; a package as it was prepared.
    pub fn load(&self) -> Result<Arc<Model>> {
        let path = self.name.path()?;
        Ok(Arc::new(load(
            &path,
            &self.name.model,
            self.threads.chosen(),
            BlockArithmetic::Exact,
        )?))
    }

    /// The model in float, to be quantized in several ways; a package has been quantized in one.
    pub fn load_float(&self) -> Result<Arc<Model>> {
        let path = self.name.path()?;
        ensure!(
            !Package::is_at(&path),
            "{} is a package, which is quantized already: expected the model file that it was prepared from",
            path.display()
        );
        Ok(Arc::new(load(
            &path,
            &self.name.model,
            self.threads.chosen(),
            BlockArithmetic::Exact,
        )?))
    }

    /// The model, ready to run: prepared.
    pub fn load_prepared(&self) -> Result<Arc<Model>> {
        self.load_for(FloatArguments {
            float: false,
            exact: false,
        })
    }

    /// The model, ready to run: prepared, unless it is wanted in float.
    pub fn load_for(&self, float: FloatArguments) -> Result<Arc<Model>> {
        let Self { name, threads } = self;
        let path = name.path()?;
        let path = if float.float {
            path
        } else {
            preparing::package_of(&path, &name.model, threads.chosen())?
        };
        Ok(Arc::new(load(
            &path,
            &name.model,
            threads.chosen(),
            float.block_arithmetic(),
        )?))
    }
}

/// The model at `path`, which the user calls `name`, ready to run.
pub fn load(
    path: &Path,
    name: &str,
    threads: Threads,
    block_arithmetic: BlockArithmetic,
) -> Result<Model> {
    let _spinner = progress::spinner(format!("loading {name}"));
    Ok(models::load(
        path,
        &LoadOptions {
            threads,
            block_arithmetic,
        },
        &mut progress::checking(path),
    )?)
}

/// Reads a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let count = whole_number(text, 1, MOST_THREADS)?;
    check_threads(count, machine::threads())?;
    Ok(count)
}

/// Refuses far more threads than the `available` ones that run at once.
fn check_threads(count: usize, available: usize) -> Result<(), String> {
    let most = available
        .saturating_mul(MOST_THREADS_PER_CORE)
        .max(FEW_THREADS);
    if count > most {
        return Err(format!(
            "this machine runs {available} threads at once: expected at most {most}"
        ));
    }
    Ok(())
}

/// Reads a number of tokens.
pub fn tokens(text: &str) -> Result<usize, String> {
    whole_number(text, 1, MOST_TOKENS)
}

/// Reads a number of tokens that may be none.
pub fn count(text: &str) -> Result<usize, String> {
    whole_number(text, 0, MOST_TOKENS)
}

/// Reads a share of a whole.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text
        .trim()
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".into())
}

/// Reads how many shadows are left out: a share of them, `none`, or `auto` with the default budget.
pub fn prune(text: &str) -> Result<Prune, String> {
    match text.trim() {
        "auto" => Ok(Prune::AUTO),
        "none" => Ok(Prune::Rate(0.0)),
        rate => share(rate)
            .map(Prune::Rate)
            .map_err(|error| format!("{error}, `none` or `auto`")),
    }
}

/// The profile of a device: a built-in one by its name, others from a TOML file.
pub fn device(name: &str) -> Result<DeviceProfile> {
    if device::NAMES.contains(&name) || !Path::new(name).exists() {
        return Ok(DeviceProfile::builtin(name)?);
    }
    inputs::add(Path::new(name));
    let mut text = String::new();
    let file = File::open(name).with_context(|| format!("cannot read {name}"))?;
    file.take(MOST_DEVICE_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {name}"))?;
    let is_short = text.len() as u64 <= MOST_DEVICE_BYTES;
    ensure!(
        is_short,
        "{name}: longer than {} KiB: expected the TOML file of a device",
        MOST_DEVICE_BYTES >> 10
    );
    Ok(DeviceProfile::parse(&text, name)?)
}

/// Reads where floats run.
pub fn floats_on(text: &str) -> Result<FloatsOn, String> {
    match text {
        "cpu" => Ok(FloatsOn::Cpu),
        "gpu" => Ok(FloatsOn::Gpu),
        _ => Err("expected cpu or gpu".into()),
    }
}

/// Refuses floats on a GPU that a device does not have.
pub fn check_floats(floats_on: FloatsOn, device: &DeviceProfile) -> Result<()> {
    ensure!(
        floats_on == FloatsOn::Cpu || device.gpu.is_some(),
        "{} has no GPU: expected --floats cpu, or a [gpu] in its file",
        device.name
    );
    Ok(())
}

/// Reads a number of sequences that run together.
pub fn sequences(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

/// Reads how often something is done.
pub fn repeats(text: &str) -> Result<usize, String> {
    whole_number(text, 1, 1_000_000)
}

/// Reads how long something lasts: `90s`, `10m`, `1.5h`; at most a week.
pub fn duration(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 7.0 * 24.0 * 3600.0;
    let text = text.trim();
    let unit =
        |name: &str, seconds: f64| Some(text.strip_suffix(name)?.parse::<f64>().ok()? * seconds);
    let seconds = unit("s", 1.0)
        .or_else(|| unit("m", 60.0))
        .or_else(|| unit("h", 3600.0));
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST);
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a time of at most a week, such as 90s, 10m or 1h".into())
}

/// Reads an amount of memory in GiB.
pub fn gibibytes(text: &str) -> Result<usize, String> {
    const MOST: f64 = 4096.0;
    let number = text
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|number| (0.0..=MOST).contains(number));
    let number = number.ok_or_else(|| format!("expected a number of GiB from 0 to {MOST}"))?;
    Ok((number * (1u64 << 30) as f64) as usize)
}

/// Reads a whole number between two bounds, both included.
pub fn whole_number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in ["0", "-1", "1.5", "", "x", "99999999999999999999"] {
            assert_eq!(
                threads(text).unwrap_err(),
                "expected a whole number from 1 to 1024",
                "{text}"
            );
        }
        assert_eq!(tokens("4096"), Ok(4096));
    }

    #[test]
    fn far_more_threads_than_run_at_once_are_refused() {
        assert_eq!(
            [
                check_threads(16, 1),
                check_threads(256, 64),
                check_threads(1024, 512)
            ],
            [Ok(()), Ok(()), Ok(())]
        );
        let error = check_threads(1024, 2).unwrap_err();
        assert_eq!(
            error,
            "this machine runs 2 threads at once: expected at most 16"
        );
        assert!(check_threads(257, 64).unwrap_err().contains("at most 256"));
    }

    #[test]
    fn memory_is_read_in_gibibytes() {
        assert_eq!(
            ["4", "0.5", "0"].map(gibibytes),
            [Ok(4 << 30), Ok(1 << 29), Ok(0)]
        );
        for wrong in ["", "-1", "NaN", "inf", "4 GB"] {
            assert!(gibibytes(wrong).unwrap_err().contains("GiB"), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_a_unit_and_an_end() {
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs_f64());
        assert_eq!(
            ["90s", "10m", "0.5h", " 1s "].map(seconds),
            [Ok(90.0), Ok(600.0), Ok(1800.0), Ok(1.0)]
        );
        for wrong in ["", "10", "m", "0s", "-1s", "NaNs", "infh", "1000h", "1d"] {
            assert!(seconds(wrong).unwrap_err().contains("90s"), "{wrong}");
        }
    }

    #[test]
    fn a_rate_is_a_share_or_a_word() {
        for text in ["-1", "1.1", "NaN", "", "all"] {
            assert_eq!(
                prune(text).unwrap_err(),
                "expected a number from 0 to 1, `none` or `auto`",
                "{text}"
            );
        }
        assert_eq!(
            ["none", "0.85", "auto"].map(prune),
            [Ok(Prune::Rate(0.0)), Ok(Prune::PAPER), Ok(Prune::AUTO)]
        );
    }
}
