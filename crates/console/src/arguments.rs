//! Command-line arguments that several commands share: model, threads and calibration text, and the parsing of numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use triad_engine::package::Package;
use triad_engine::{Cores, Error, ExpertLimit, KvFormat, LoadOptions, Model, Threads};
use triad_frontend::{hashes, machine, models};
use triad_hetero::kept_shadows;
use triad_kernels::BlockArithmetic;
use triad_model::description::ModelDescription;
use triad_model::{family, fetch};
use triad_plan::prefill::KeptShadows;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::{PrepareOptions, Prune};

use crate::vision::VisionArguments;
use crate::{inputs, output, preparing, progress};

/// The engine's own limit.
const MAX_THREADS: usize = 1024;
/// Number of threads that is allowed on any machine, and the limit per core. With more, threads wait for each other's
/// turn on a core, and a run takes so long that it seems to hang.
const FEW_THREADS: usize = 16;
const MAX_THREADS_PER_CORE: usize = 4;

/// Larger than the context of any model.
const MAX_TOKENS: usize = 1 << 30;

/// The argument that names a model.
#[derive(Clone, clap::Args)]
pub struct ModelArgument {
    /// The path of a package, GGUF file or safetensors folder, `smollm2-135m`, or `hf:owner/name[:file]`
    #[arg(short, long, value_name = "MODEL", default_value = fetch::DEFAULT_MODEL)]
    pub model: String,
}

/// Arguments for a command that needs only the description of a model.
#[derive(clap::Args)]
pub struct DescriptionArguments {
    #[command(flatten)]
    name: ModelArgument,
    /// Shape of a known model, without its weights
    #[arg(long, value_name = "NAME", conflicts_with = "model", value_parser = PossibleValuesParser::new(family::SHAPES))]
    shape: Option<String>,
}

impl DescriptionArguments {
    /// Returns the name and the description of the model.
    pub fn describe(&self) -> Result<(String, ModelDescription)> {
        if let Some(shape) = &self.shape {
            return Ok((shape.clone(), family::shape(shape)?));
        }
        let path = self.name.path()?;
        let description = models::description(&path, &mut progress::checking(&path))?;
        Ok((self.name.model.clone(), description))
    }

    /// Returns the package of the model, which may be the model itself. Fails if there is none; it is not prepared.
    pub fn package(&self) -> Result<PathBuf> {
        let path = self.name.path()?;
        let package = if Package::is_at(&path) {
            path
        } else {
            preparing::cached(
                &path,
                &PrepareOptions::default(),
                (&CalibrationText::builtin(), None),
            )?
        };
        ensure!(
            Package::is_at(&package),
            "{} has no package yet: run `triad prepare` first",
            self.name.model
        );
        Ok(package)
    }

    /// Returns the shadows that the package of the model keeps; `None` for a shape, or without a package.
    pub fn shadows(&self) -> Result<Option<KeptShadows>> {
        let package = self.shape.is_none().then(|| self.package().ok()).flatten();
        let open = |path: PathBuf| hashes::open_package(&path, &mut progress::checking(&path));
        let package = package.map(open).transpose()?;
        Ok(package.and_then(|package| kept_shadows(&package.manifest().preparation)))
    }
}

/// Default number of prompt tokens where no model runs.
const PROMPT: usize = 1024;
/// Limit of chunks: more would take too much memory and time.
pub const MAX_CHUNKS: usize = 10_000;

/// Returns the number of prompt tokens: `asked`, or the default limited to the model's context.
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

/// Returns an error if a prompt has more than `most` chunks.
pub fn check_chunks(prompt: usize, chunk: usize, most: usize) -> Result<()> {
    let chunks = prompt.div_ceil(chunk);
    ensure!(
        chunks <= most,
        "{prompt} tokens in chunks of {chunk} are {chunks} chunks, more than {most}: expected a larger --prefill-chunk"
    );
    Ok(())
}

/// Arguments for the model and its threads.
#[derive(clap::Args)]
pub struct ModelArguments {
    /// The model.
    #[command(flatten)]
    pub name: ModelArgument,
    /// The compute threads.
    #[command(flatten)]
    pub threads: ThreadArguments,
}

/// Arguments for the compute threads.
#[derive(Clone, clap::Args)]
pub struct ThreadArguments {
    /// Number of compute threads [default: one per core, or per fast core if cores differ]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Compute on these cores, for example 0-3,6, with one pinned thread per core
    #[arg(long, value_name = "LIST", value_parser = Cores::parse, conflicts_with = "threads")]
    cores: Option<Cores>,
}

impl ThreadArguments {
    /// Prints a note if threads are given next to `--processors`, which has those that compute.
    pub fn note_processors(&self, has_processors: bool) {
        if has_processors && self.given().is_some() {
            output::note(
                "note: --threads and --cores are for loading and preparing the model: each of --processors computes on its \
                 own threads",
            );
        }
    }

    /// Returns the selected threads.
    pub fn chosen(&self) -> Threads {
        match (self.cores, self.threads) {
            (Some(cores), _) => Threads::On(cores),
            (None, Some(count)) => Threads::Count(count),
            (None, None) => Threads::Automatic,
        }
    }

    /// Returns the arguments for another command that is to compute on the same threads.
    pub fn given(&self) -> Option<[String; 2]> {
        let cores = self.cores.map(|cores| {
            let cores: Vec<_> = cores.iter().map(|core| core.to_string()).collect();
            ["--cores".into(), cores.join(",")]
        });
        cores.or_else(|| Some(["--threads".into(), self.threads?.to_string()]))
    }
}

/// The argument for the format of keys and values.
#[derive(clap::Args)]
pub struct KvArgument {
    /// Number format of the KV cache; int8 takes half the memory of f16
    #[arg(long = "cache-type", value_name = "FORMAT", default_value = "f16")]
    kv: Kv,
}

/// [`KvFormat`] by its names on the command line.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Kv {
    F16,
    Int8,
    F32,
}

impl KvArgument {
    /// Returns the selected format.
    pub fn format(&self) -> KvFormat {
        match self.kv {
            Kv::F16 => KvFormat::F16,
            Kv::Int8 => KvFormat::Int8,
            Kv::F32 => KvFormat::F32,
        }
    }
}

/// Arguments for calibration.
#[derive(clap::Args)]
pub struct CalibrationArguments {
    /// Text to calibrate on, plain or as JSON lines; may be repeated [default: a built-in text]
    #[arg(long, value_name = "FILE")]
    pub calibrate: Vec<PathBuf>,
    /// Maximum number of tokens to read from the text
    #[arg(long, value_name = "N", default_value = "16384", value_parser = tokens)]
    pub tokens: usize,
}

impl CalibrationArguments {
    /// Returns the built-in text, or the texts of all files. They are interleaved, so that `--tokens` cuts none of them
    /// off.
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
    /// Returns the path of the model. Fetches the model if necessary.
    pub fn path(&self) -> Result<PathBuf> {
        let path = progress::fetch(|progress| Ok(models::path_of(&self.model, progress)?))?;
        inputs::add_model(&path);
        Ok(path)
    }
}

/// Arguments for how a model is loaded to run.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct FloatArguments {
    /// Run a model file as it is, in float, without preparing it; with quantized weights, activations are rounded to 16
    /// bits
    #[arg(long = "no-quantize")]
    pub float: bool,
    /// Compute with quantized weights as if they were f32: slower, for comparisons with other engines
    #[arg(long = "f32", requires = "float")]
    pub exact: bool,
    /// Keep at most so many GiB of a model's experts in memory, and read the others from the file when they are chosen:
    /// for a mixture of experts that is larger than memory
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    pub expert_memory: Option<usize>,
    /// Read experts when they are chosen, and not before; for comparison
    #[arg(long, requires = "expert_memory")]
    pub no_read_ahead: bool,
}

impl FloatArguments {
    /// Returns an error if a model is to run as it is in its file, but `path` is a package, which is quantized.
    pub fn check(self, path: &Path) -> Result<()> {
        ensure!(
            !self.float || !Package::is_at(path),
            "{} is a package, which is quantized already: --no-quantize and --f32 are for the model file that it was \
             prepared from",
            path.display()
        );
        Ok(())
    }

    /// Returns the options with which a model is loaded.
    pub fn options(self, threads: Threads) -> LoadOptions {
        LoadOptions {
            threads,
            block_arithmetic: if self.exact {
                BlockArithmetic::Exact
            } else {
                BlockArithmetic::Rounded
            },
            expert_memory: self.expert_memory.map(|bytes| ExpertLimit {
                bytes: bytes as u64,
                reads_ahead: !self.no_read_ahead,
            }),
            ..LoadOptions::default()
        }
    }
}

impl ModelArguments {
    /// Returns the same arguments for another model.
    pub fn named(&self, model: &str) -> Self {
        Self {
            name: ModelArgument {
                model: model.to_owned(),
            },
            threads: self.threads.clone(),
        }
    }

    /// Loads the model as it is, for comparisons: a model file in float with products in f32, or a package as it was
    /// prepared.
    pub fn load(&self) -> Result<Arc<Model>> {
        let path = self.name.path()?;
        let options = exact(self.threads.chosen());
        Ok(Arc::new(load(&path, &self.name.model, &options)?))
    }

    /// Loads the model in float, to be quantized in several ways. Fails for a package, which is quantized already.
    pub fn load_float(&self) -> Result<Arc<Model>> {
        let path = self.name.path()?;
        ensure!(
            !Package::is_at(&path),
            "{} is a package, which is quantized already: expected the model file that it was prepared from",
            path.display()
        );
        let options = exact(self.threads.chosen());
        Ok(Arc::new(load(&path, &self.name.model, &options)?))
    }

    /// Loads the model, prepared to run.
    pub fn load_prepared(&self) -> Result<Arc<Model>> {
        self.load_for(FloatArguments::default(), None)
    }

    /// Loads the model to run: prepared, or in float on request; with an encoder of pictures if `vision` is given and
    /// there is one.
    pub fn load_for(
        &self,
        float: FloatArguments,
        vision: Option<&VisionArguments>,
    ) -> Result<Arc<Model>> {
        let Self { name, threads } = self;
        let path = name.path()?;
        let vision = vision.and_then(|vision| vision.encoder(&path));
        let path = if float.float {
            path
        } else {
            preparing::package_of(&path, &name.model, threads.chosen())?
        };
        let options = LoadOptions {
            vision,
            ..float.options(threads.chosen())
        };
        Ok(Arc::new(load(&path, &name.model, &options)?))
    }
}

/// Returns the options with which a model is loaded for comparisons: products are in f32.
pub fn exact(threads: Threads) -> LoadOptions {
    LoadOptions {
        threads,
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    }
}

/// Loads the model at `path`, which the user calls `name`.
pub fn load(path: &Path, name: &str, options: &LoadOptions) -> Result<Model> {
    let _spinner = progress::spinner(format!("loading {name}"));
    let mut read = progress::checking(path);
    Ok(models::load(path, options, &mut read)?)
}

/// Prints the settings that the model's authors recommend for answers and that are not followed.
pub fn note_settings(model: &Model, name: &str) {
    let settings = &model.generation_defaults().not_followed;
    if !settings.is_empty() {
        let settings = settings.join(", ");
        output::note(&format!(
            "note: {name} recommends settings that Triad does not follow: {settings}"
        ));
    }
}

/// Parses a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let count = whole_number(text, 1, MAX_THREADS)?;
    check_threads(count, machine::threads())?;
    Ok(count)
}

/// Returns an error if `count` is much larger than the number of threads that run at once.
fn check_threads(count: usize, available: usize) -> Result<(), String> {
    let most = available
        .saturating_mul(MAX_THREADS_PER_CORE)
        .max(FEW_THREADS);
    if count > most {
        return Err(format!(
            "this machine runs {available} threads at once: expected at most {most}"
        ));
    }
    Ok(())
}

/// Parses a number of tokens of at least 1.
pub fn tokens(text: &str) -> Result<usize, String> {
    whole_number(text, 1, MAX_TOKENS)
}

/// Parses a number of tokens of at least 0.
pub fn count(text: &str) -> Result<usize, String> {
    whole_number(text, 0, MAX_TOKENS)
}

/// Parses a fraction.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text
        .trim()
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".into())
}

/// Parses the amount of shadows to prune: a fraction, `none`, or `auto` for the default budget.
pub fn prune(text: &str) -> Result<Prune, String> {
    match text.trim() {
        "auto" => Ok(Prune::AUTO),
        "none" => Ok(Prune::Rate(0.0)),
        rate => share(rate)
            .map(Prune::Rate)
            .map_err(|error| format!("{error}, `none` or `auto`")),
    }
}

/// Parses a number of sequences that run together.
pub fn sequences(text: &str) -> Result<usize, String> {
    const MAX: usize = 1024;
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX}"))
}

/// Parses a number of repetitions.
pub fn repeats(text: &str) -> Result<usize, String> {
    whole_number(text, 1, 1_000_000)
}

/// Parses a duration of at most a week: `90s`, `10m`, `1.5h`.
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

/// Parses an amount of memory in GiB. Returns bytes.
pub fn gibibytes(text: &str) -> Result<usize, String> {
    const MAX: f64 = 4096.0;
    let number = text
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|number| (0.0..=MAX).contains(number));
    let number = number.ok_or_else(|| format!("expected a number of GiB from 0 to {MAX}"))?;
    Ok((number * (1u64 << 30) as f64) as usize)
}

/// Parses a whole number from `least` to `most`, both included.
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
    fn the_threads_that_were_given_are_given_to_another_command() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            threads: ThreadArguments,
        }
        for (given, expected) in [
            (&[][..], None),
            (&["-t", "2"], Some(["--threads", "2"])),
            (&["--cores", "0-2,5"], Some(["--cores", "0,1,2,5"])),
        ] {
            let Cli { threads } = clap::Parser::parse_from([&["triad"], given].concat());
            let found = threads.given();
            assert_eq!(found, expected.map(|words| words.map(str::to_owned)));
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
