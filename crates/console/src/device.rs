//! The arguments `--npu` and `--gpu`: the NPU and the GPU to which `--processors` refers.

mod npu;
mod open_npu;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use triad_engine::outlier_cache::{Hot, OutlierCacheOptions};
use triad_engine::{Model, Threads};
use triad_hetero::{Device, Wait};
use triad_plan::partition::energy::Objective;
use triad_plan::partition::solve::Restriction;
use triad_plan::processors::ProcessorKind;
use triad_processors::Peaks;
use triad_processors::cpu::Cpu;
#[cfg(feature = "gpu")]
use triad_processors::gpu::{Gpu, GpuOptions};
#[cfg(feature = "hexagon")]
use triad_processors::hexagon::{MAX_SESSIONS, MAX_THREADS};

use npu::ROUNDING;
pub use npu::{Chip, Npu, chip};

use crate::cut::CutArgument;
#[cfg(feature = "npu")]
use crate::progress;
#[cfg(not(feature = "gpu"))]
use crate::version::without;
use crate::{output, partition};

/// An opened device that runs programs.
#[derive(Clone)]
pub struct Opened {
    /// The device that runs subgraphs.
    pub device: Arc<dyn Device>,
    #[cfg(feature = "npu")]
    npu: Option<Arc<triad_processors::npu::Npu>>,
    #[cfg(feature = "gpu")]
    gpu: Option<Arc<Gpu>>,
}

impl Opened {
    /// Creates an opened device that stores nothing on disk.
    fn plain(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            #[cfg(feature = "npu")]
            npu: None,
            #[cfg(feature = "gpu")]
            gpu: None,
        }
    }

    /// Completes the folder of graphs that are compiled ahead of time, if there is one.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn keep_contexts(&self) -> Result<()> {
        #[cfg(feature = "npu")]
        if let Some(npu) = &self.npu {
            let _spinner = progress::spinner("compiling".to_owned());
            npu.keep_contexts()?;
        }
        Ok(())
    }

    /// Returns the reason if compiled graphs or shaders are not stored.
    pub fn not_kept(&self) -> Option<String> {
        #[cfg(feature = "npu")]
        if let Some(error) = self.npu.as_ref().and_then(|npu| npu.not_kept()) {
            return Some(format!("{error}, and every run compiles them again"));
        }
        #[cfg(feature = "gpu")]
        if let Some(gpu) = &self.gpu {
            return gpu.not_kept();
        }
        None
    }
}

/// Arguments for the devices of `--processors`, and for dividing work among them.
#[derive(Clone, clap::Args)]
pub struct DeviceArguments {
    /// Device to use as NPU: kernels (Triad's INT8 kernels in its place); hexagon (Triad's own program, which
    /// TRIAD_HEXAGON names, see docs/design/hexagon.md); or a provider of ONNX Runtime: cpu, qnn, openvino, coreml,
    /// vitisai, xnnpack. The environment variable TRIAD_ONNXRUNTIME names its library
    #[arg(long, value_name = "WHAT", default_value = "kernels")]
    pub npu: Npu,
    /// Library of the provider of --npu, if it is not built into ONNX Runtime: libonnxruntime_providers_qnn.so for qnn
    /// [default for qnn: the library that the environment variable TRIAD_QNN names]
    #[arg(long, value_name = "FILE")]
    pub npu_library: Option<PathBuf>,
    /// Option of the provider of --npu, with the name of its documentation: htp_performance_mode=burst. May be repeated.
    /// For --npu hexagon: unit=hmx or unit=hvx, the matrix or the vector unit [default: hmx if the device has it]
    #[arg(long = "npu-option", value_name = "KEY=VALUE", value_parser = npu::option)]
    pub npu_options: Vec<(String, String)>,
    /// Folder of graphs that `triad prepare --for` compiled ahead of time for this device, of --npu qnn. They are programs for
    /// the NPU: use folders of your own only [default: the device compiles them]
    #[arg(long, value_name = "DIR")]
    pub npu_contexts: Option<PathBuf>,
    /// The chip for which that folder is written instead of read.
    #[arg(skip)]
    pub compile_for: Option<Chip>,
    /// Number of compute threads on the device of --npu hexagon [default: one per vector context of its DSP, or per
    /// core of this machine if emulated]
    #[arg(long, value_name = "N", value_parser = npu_threads)]
    pub npu_threads: Option<usize>,
    /// Number of sessions with the device of --npu hexagon, each with its own --npu-memory: several can hold a larger model
    #[arg(long, value_name = "N", value_parser = npu_sessions, default_value = "1")]
    pub npu_sessions: usize,
    /// GPU to use: a part of its name, as `triad devices` lists it [default: the GPU that the environment variable
    /// TRIAD_GPU names, or the fastest kind available]
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Approximate maximum time of one GPU submission in milliseconds, so that rendering applications lose no frames;
    /// 0: the time of a whole chunk or subgraph
    #[arg(long, value_name = "MS", value_parser = milliseconds, default_value = "0")]
    pub gpu_slice: f64,
    /// GiB of memory that each NPU can address, or each of its sessions with --npu-sessions; subgraphs that do not fit
    /// run on the CPU [default: the device's limit, or none]
    #[arg(long = "npu-memory", value_name = "GIB", value_parser = crate::arguments::gibibytes)]
    pub window: Option<usize>,
    /// Cut a product across the processors, with a share for each in their order: down=columns:3:1. Products are
    /// query-key-value, attention-output, gate-up and down; axes are columns of the output and rows (tokens). May be
    /// repeated
    #[arg(long = "tensor-split", value_name = "PRODUCT=AXIS:SHARE:SHARE")]
    pub cuts: Vec<CutArgument>,
    /// Assign products to processors by the measurements of `triad profile`: layer (each whole, on the fastest), tensor
    /// (each cut across them, if possible), or auto (prompts are divided, placed, cut and overlapped in the fastest
    /// simulated way)
    #[arg(long, value_name = "HOW", value_parser = partition::restriction, conflicts_with = "cuts")]
    pub partition: Option<Restriction>,
    /// Quantity that --partition minimizes: latency, energy, or balanced (their product). The last two need powers, which `triad
    /// profile` measures where the system reports energy
    #[arg(long, value_name = "WHAT", value_parser = partition::objective, default_value = "latency", requires = "partition")]
    pub objective: Objective,
    /// How processors wait for each other: blocking (sleep until woken), or predicted (sleep for most of the expected
    /// time, then poll)
    #[arg(long = "sync", value_name = "HOW", value_parser = wait, default_value = "predicted")]
    pub wait: Wait,
    /// Weight rows that the CPU keeps for shadows if an NPU or GPU has its own memory: auto (those of the hot channels
    /// that calibration found; others are read from the package), none (all are read), or off (all weights of layers
    /// with a shadow are used in place)
    #[arg(long = "outlier-cache", value_name = "WHOSE", value_parser = outlier_cache, default_value = "auto")]
    pub outlier_cache: OutlierCacheArgument,
    /// Arithmetic between the linear layers of a prompt's feed-forwards, on each of --processors: float, or fixed
    /// (fixed point), with which --npu hexagon runs a feed-forward as one program. With fixed, values occasionally
    /// differ from float by one step of INT8. Blocks whose feed-forward keeps a shadow stay in float, as do answers and
    /// sessions with adapters; GPUs and ONNX Runtime refuse fixed
    #[arg(long = "ffn-precision", value_name = "ARITHMETIC", value_parser = npu_activation, default_value = "float")]
    pub npu_activation: ActivationArgument,
}

/// Arithmetic between the linear layers of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationArgument {
    /// f32.
    Float,
    /// Integers.
    Fixed,
}

/// Parses the arithmetic between the linear layers of a feed-forward.
fn npu_activation(text: &str) -> Result<ActivationArgument, String> {
    match text.trim() {
        "float" => Ok(ActivationArgument::Float),
        "fixed" => Ok(ActivationArgument::Fixed),
        _ => Err("expected float or fixed".into()),
    }
}

/// The weight rows that the CPU keeps if a device has its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutlierCacheArgument {
    /// Rows of the hot channels.
    Auto,
    /// No rows: all are read.
    None,
    /// All weights are used in place.
    Off,
}

impl OutlierCacheArgument {
    /// Returns the options for an engine.
    pub fn options(self) -> Option<OutlierCacheOptions> {
        let hot = match self {
            Self::Auto => Hot::Calibrated,
            Self::None => Hot::None,
            Self::Off => return None,
        };
        Some(OutlierCacheOptions { hot, file: None })
    }
}

/// Parses the weight rows that the CPU keeps.
fn outlier_cache(text: &str) -> Result<OutlierCacheArgument, String> {
    match text.trim() {
        "auto" => Ok(OutlierCacheArgument::Auto),
        "none" => Ok(OutlierCacheArgument::None),
        "off" => Ok(OutlierCacheArgument::Off),
        _ => Err("expected auto, none or off".into()),
    }
}

/// Parses a number of milliseconds of at least 0.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    const MAX: f64 = 60_000.0;
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (0.0..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a number of milliseconds from 0 to {MAX}"))
}

/// Returns options for the GPU with this name, or the one that the environment names, with submissions of `slice`
/// milliseconds, or of any length if it is 0. Shaders are stored in the cache folder, if there is one.
#[cfg(feature = "gpu")]
pub fn gpu_options(name: Option<&str>, slice: f64) -> GpuOptions {
    let options = GpuOptions::from_environment();
    let slice = (slice > 0.0).then(|| std::time::Duration::from_secs_f64(slice / 1e3));
    let kept = triad_model::fetch::shaders_folder().ok();
    GpuOptions {
        adapter: name.map(str::to_owned).or(options.adapter),
        slice,
        kept,
        ..options
    }
}

/// Limits of arguments that have no effect without the feature.
#[cfg(not(feature = "hexagon"))]
const MAX_THREADS: usize = 1;
#[cfg(not(feature = "hexagon"))]
const MAX_SESSIONS: usize = 1;

/// Parses the number of Hexagon's compute threads.
fn npu_threads(text: &str) -> Result<usize, String> {
    crate::arguments::whole_number(text, 1, MAX_THREADS)
}

/// Parses the number of sessions with Hexagon.
fn npu_sessions(text: &str) -> Result<usize, String> {
    crate::arguments::whole_number(text, 1, MAX_SESSIONS)
}

/// Parses how processors wait for each other.
fn wait(text: &str) -> Result<Wait, String> {
    let named = Wait::ALL
        .into_iter()
        .find(|wait| wait.name() == text.trim());
    named.ok_or_else(|| "expected blocking or predicted".into())
}

impl Default for DeviceArguments {
    /// Returns the values of a command line without these arguments.
    fn default() -> Self {
        Self {
            npu: Npu::Kernels,
            npu_library: None,
            npu_options: Vec::new(),
            npu_contexts: None,
            compile_for: None,
            npu_threads: None,
            npu_sessions: 1,
            gpu: None,
            gpu_slice: 0.0,
            window: None,
            cuts: Vec::new(),
            partition: None,
            objective: Objective::Latency,
            wait: Wait::Predicted,
            outlier_cache: OutlierCacheArgument::Auto,
            npu_activation: ActivationArgument::Float,
        }
    }
}

impl DeviceArguments {
    /// Returns an error for arguments that have no effect, such as those for processors if there are none.
    pub fn check(&self, has_processors: bool) -> Result<()> {
        let Self {
            npu,
            npu_library,
            npu_options,
            npu_contexts,
            compile_for: _,
            npu_threads,
            npu_sessions,
            gpu,
            gpu_slice,
            window,
            cuts,
            partition,
            // It needs --partition.
            objective: _,
            wait,
            outlier_cache,
            npu_activation,
        } = self;
        let is_default = *npu == Npu::Kernels
            && gpu.is_none()
            && *gpu_slice == 0.0
            && window.is_none()
            && cuts.is_empty();
        ensure!(
            npu_library.is_none() || npu.is_provider(),
            "--npu-library is for a provider of ONNX Runtime: expected one as --npu, too, such as --npu qnn"
        );
        ensure!(
            npu_options.is_empty() || npu.is_provider() || npu.is_hexagon(),
            "--npu-option is for a provider of ONNX Runtime or hexagon: expected one as --npu, too, such as --npu qnn"
        );
        ensure!(
            npu_contexts.is_none() || npu.is_provider(),
            "--npu-contexts is for a provider of ONNX Runtime: expected --npu qnn, too"
        );
        ensure!(
            npu_threads.is_none() || npu.is_hexagon(),
            "--npu-threads is for --npu hexagon: expected it, too, or no --npu-threads"
        );
        ensure!(
            *npu_sessions == 1 || npu.is_hexagon(),
            "--npu-sessions is for --npu hexagon: expected it, too, or no --npu-sessions"
        );
        ensure!(
            has_processors
                || (is_default
                    && partition.is_none()
                    && *wait == Wait::Predicted
                    && *outlier_cache == OutlierCacheArgument::Auto
                    && *npu_activation == ActivationArgument::Float),
            "--npu, --ffn-precision, --gpu, --gpu-slice, --npu-memory, --tensor-split, --partition, --sync and --outlier-cache are for \
             --processors: expected it, too"
        );
        Ok(())
    }

    /// Opens the device of a processor, which `threads` drive. Returns `None` for Triad's own kernels. Compiled graphs
    /// are stored in the package of the model if `kept` is set.
    ///
    /// # Errors
    /// If the device does not exist.
    pub fn open(
        &self,
        kind: ProcessorKind,
        model: &Arc<Model>,
        threads: &Threads,
        kept: bool,
    ) -> Result<Option<Opened>> {
        match kind {
            ProcessorKind::Cpu => Ok(None),
            ProcessorKind::Gpu => self.open_gpu().map(Some),
            ProcessorKind::Npu => self.open_npu(model, threads, kept),
        }
    }

    /// Opens the NPU that multiplies for a GPU, which `threads` drive: Triad's own kernels are a device there, too.
    ///
    /// # Errors
    /// If the device does not exist.
    pub fn open_multiplier(
        &self,
        model: &Arc<Model>,
        threads: &Threads,
        kept: bool,
    ) -> Result<Opened> {
        if let Some(opened) = self.open_npu(model, threads, kept)? {
            return Ok(opened);
        }
        let pool = Arc::new(threads.start()?);
        Ok(Opened::plain(Arc::new(Cpu::new(pool))))
    }

    /// Measures the GPU's peak rates. Prints a note and returns `None` if they can't be measured.
    ///
    /// # Errors
    /// If the GPU does not exist.
    pub fn gpu_peaks(&self) -> Result<Option<Peaks>> {
        let peaks = self.open_gpu()?.device.peaks();
        Ok(peaks.unwrap_or_else(|error| {
            output::note(&format!(
                "note: the peak rates of the GPU were not measured: {error}"
            ));
            None
        }))
    }

    /// Returns whether feed-forwards of prompts are computed in fixed point between their linear layers.
    pub fn fixed_point(&self) -> bool {
        self.npu_activation == ActivationArgument::Fixed
    }

    /// Returns the same arguments without cuts and partitions, so that one processor computes each product.
    pub fn uncut(&self) -> Self {
        Self {
            cuts: Vec::new(),
            partition: None,
            objective: Objective::Latency,
            ..self.clone()
        }
    }

    #[cfg(feature = "gpu")]
    fn open_gpu(&self) -> Result<Opened> {
        let gpu = Arc::new(Gpu::open(&gpu_options(
            self.gpu.as_deref(),
            self.gpu_slice,
        ))?);
        Ok(Opened {
            gpu: Some(Arc::clone(&gpu)),
            ..Opened::plain(gpu)
        })
    }

    #[cfg(not(feature = "gpu"))]
    fn open_gpu(&self) -> Result<Opened> {
        anyhow::bail!("expected processors without a gpu: {}", without("gpu"))
    }

    /// Returns the name of a processor of this kind for messages. A substitute for an NPU has its real name.
    pub fn name(&self, kind: ProcessorKind, label: String) -> String {
        match kind {
            ProcessorKind::Cpu => label,
            ProcessorKind::Gpu => match self.gpu.clone().or_else(gpu_from_environment) {
                Some(name) => format!("GPU {name}"),
                None => label,
            },
            ProcessorKind::Npu => self.npu.to_string(),
        }
    }

    /// Returns the largest relative difference of logits that rounding on processors of this kind explains, for a model
    /// that reads floats or INT8.
    pub fn rounding(&self, kind: ProcessorKind, reads_floats: bool) -> f32 {
        match kind {
            ProcessorKind::Cpu => 0.0,
            // It sums f32 in another order, and rounds no activations.
            ProcessorKind::Gpu if reads_floats => ROUNDING_OF_FLOATS,
            // The GPU has its own activation function within a feed-forward.
            ProcessorKind::Gpu => ROUNDING,
            ProcessorKind::Npu => self.npu.rounding(),
        }
    }
}

/// Returns the name of the GPU that the environment specifies.
#[cfg(feature = "gpu")]
fn gpu_from_environment() -> Option<String> {
    GpuOptions::from_environment().adapter
}

#[cfg(not(feature = "gpu"))]
fn gpu_from_environment() -> Option<String> {
    None
}

/// Difference of logits, relative to the largest, that the rounding of floats explains: our kernels round activations for
/// INT4 weights to INT16 or bf16, and in prefill the weights to bf16.
const ROUNDING_OF_FLOATS: f32 = 0.03;
