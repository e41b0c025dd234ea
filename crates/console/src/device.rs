//! `--npu` and `--gpu`: what the NPU and the GPU are that `--processors` names.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use triad_engine::execute::{Device, Wait};
use triad_engine::hot_rows::{Hot, HotRowOptions};
use triad_engine::{Model, Threads};
use triad_plan::partition::solve::Restriction;
use triad_plan::processors::ProcessorKind;
use triad_processors::Peaks;
#[cfg(feature = "gpu")]
use triad_processors::gpu::{Gpu, GpuOptions};
#[cfg(feature = "hexagon")]
use triad_processors::hexagon::{MOST_SESSIONS, MOST_THREADS};
#[cfg(feature = "npu")]
use triad_processors::npu::Provider;

use crate::cut::CutArgument;
use crate::{output, partition};

/// A device that runs programs, and what it reports once they are prepared.
#[derive(Clone)]
pub struct Opened {
    /// What runs subgraphs.
    pub device: Arc<dyn Device>,
    #[cfg(feature = "npu")]
    npu: Option<Arc<triad_processors::npu::Npu>>,
    #[cfg(feature = "gpu")]
    gpu: Option<Arc<Gpu>>,
}

impl Opened {
    /// A device that keeps nothing on disk.
    #[cfg(any(feature = "gpu", feature = "hexagon", feature = "npu"))]
    fn plain(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            #[cfg(feature = "npu")]
            npu: None,
            #[cfg(feature = "gpu")]
            gpu: None,
        }
    }

    /// Why compiled graphs or shaders are not kept, where they are not.
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

/// What the NPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Npu {
    /// Our own INT8 kernels, on cores of their own in its place.
    Kernels,
    /// A device program of our own for Hexagon, under qemu or on a phone's DSP.
    #[cfg(feature = "hexagon")]
    Hexagon,
    /// Whatever ONNX Runtime has this provider for.
    #[cfg(feature = "npu")]
    OnnxRuntime(Provider),
}

/// What `--processors` work with, and how they share the work.
#[derive(Clone, clap::Args)]
pub struct DeviceArguments {
    /// What the NPU is: our kernels in its place; hexagon, by a program of our own that TRIAD_HEXAGON names (see
    /// docs/hexagon.md); or a provider of ONNX Runtime: cpu, qnn, openvino, coreml, vitisai, xnnpack. The environment variable
    /// TRIAD_ONNXRUNTIME names its library
    #[arg(long, value_name = "WHAT", default_value = "kernels")]
    pub npu: Npu,
    /// Threads of the device that compute, of --npu hexagon [default: as many as its DSP has vector contexts; emulated, as
    /// many as this machine has cores]
    #[arg(long, value_name = "N", value_parser = npu_threads)]
    pub npu_threads: Option<usize>,
    /// Sessions with the device of --npu hexagon, each with a --window of its own: several hold a model that one does not
    #[arg(long, value_name = "N", value_parser = npu_sessions, default_value = "1")]
    pub npu_sessions: usize,
    /// Which GPU: a part of its name, as `triad devices` lists it [default: the one that the environment variable
    /// TRIAD_GPU names, or the fastest kind that is there]
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Milliseconds that the GPU works at once, at most about, so that applications that render lose no frames; 0: as long
    /// as a chunk or a subgraph takes
    #[arg(long, value_name = "MS", value_parser = milliseconds, default_value = "0")]
    pub gpu_slice: f64,
    /// GiB of memory that each NPU can address, or each of its sessions with --npu-sessions: what does not fit runs on the
    /// CPU [default: the device's, or no limit]
    #[arg(long, value_name = "GIB", value_parser = crate::arguments::gibibytes)]
    pub window: Option<usize>,
    /// Have the processors compute a product together, each its share in their order: down=columns:3:1; of
    /// query-key-value, attention-output, gate-up and down, by columns of the output or rows (tokens); may be given several
    /// times
    #[arg(long = "cut", value_name = "PRODUCT=AXIS:SHARE:SHARE")]
    pub cuts: Vec<CutArgument>,
    /// Give products to the processors by what `triad profile` measured: layer (each whole, to the fastest), tensor (each
    /// cut across them, if it can be), or auto (prompts are divided,
    /// placed, cut and overlapped as is fastest by simulation)
    #[arg(long, value_name = "HOW", value_parser = partition::restriction, conflicts_with = "cuts")]
    pub partition: Option<Restriction>,
    /// How processors wait for each other: blocking, until they are woken, or predicted, asleep for most of the expected
    /// time and then polling
    #[arg(long, value_name = "HOW", value_parser = wait, default_value = "predicted")]
    pub wait: Wait,
    /// Beside an NPU or GPU with memory of its own, whose rows of weights the CPU keeps for shadows: auto, those of the hot
    /// channels that calibration found, others are read from the package; none, so that all are read; off, the weights
    /// of all layers with a shadow, in place
    #[arg(long, value_name = "WHOSE", value_parser = hot_rows, default_value = "auto")]
    pub hot_rows: HotRowsArgument,
    /// What lies between the products of a prompt's feed-forwards, on whatever of --processors: float, or fixed, in
    /// fixed point, with which --npu hexagon runs a feed-forward as one program. Numbers then differ from float by one step of
    /// INT8 now and then. Blocks whose feed-forward keeps a shadow stay in float, as do answers and sessions with adapters; GPUs
    /// and ONNX Runtime refuse it
    #[arg(long, value_name = "ARITHMETIC", value_parser = npu_activation, default_value = "float")]
    pub npu_activation: ActivationArgument,
}

/// The arithmetic between the products of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationArgument {
    /// f32.
    Float,
    /// Integers.
    Fixed,
}

/// Reads the arithmetic between the products of a feed-forward.
pub fn npu_activation(text: &str) -> Result<ActivationArgument, String> {
    match text.trim() {
        "float" => Ok(ActivationArgument::Float),
        "fixed" => Ok(ActivationArgument::Fixed),
        _ => Err("expected float or fixed".into()),
    }
}

/// Whose rows of weights the CPU keeps beside a device with memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotRowsArgument {
    /// Those of the hot channels.
    Auto,
    /// None: all are read.
    None,
    /// Weights are read in place.
    Off,
}

impl HotRowsArgument {
    /// For an engine.
    pub fn options(self) -> Option<HotRowOptions> {
        let hot = match self {
            Self::Auto => Hot::Calibrated,
            Self::None => Hot::None,
            Self::Off => return None,
        };
        Some(HotRowOptions { hot, file: None })
    }
}

/// Reads whose rows the CPU keeps.
fn hot_rows(text: &str) -> Result<HotRowsArgument, String> {
    match text.trim() {
        "auto" => Ok(HotRowsArgument::Auto),
        "none" => Ok(HotRowsArgument::None),
        "off" => Ok(HotRowsArgument::Off),
        _ => Err("expected auto, none or off".into()),
    }
}

/// Reads milliseconds, of which there may be none.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    const MOST: f64 = 60_000.0;
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (0.0..=MOST).contains(number));
    number.ok_or_else(|| format!("expected a number of milliseconds from 0 to {MOST}"))
}

/// The GPU of this name, or that the environment names, with submissions of so many milliseconds, or of any length. Its
/// shaders are kept in the cache, where there is one.
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

/// Without the feature there is no such NPU to name.
#[cfg(not(feature = "hexagon"))]
const MOST_THREADS: usize = 1;
#[cfg(not(feature = "hexagon"))]
const MOST_SESSIONS: usize = 1;

/// Reads how many threads of Hexagon compute.
fn npu_threads(text: &str) -> Result<usize, String> {
    crate::arguments::whole_number(text, 1, MOST_THREADS)
}

/// Reads how many sessions there are with Hexagon.
fn npu_sessions(text: &str) -> Result<usize, String> {
    crate::arguments::whole_number(text, 1, MOST_SESSIONS)
}

/// Reads how processors wait for each other.
fn wait(text: &str) -> Result<Wait, String> {
    let named = Wait::ALL
        .into_iter()
        .find(|wait| wait.name() == text.trim());
    named.ok_or_else(|| "expected blocking or predicted".into())
}

impl Default for DeviceArguments {
    /// As without any of them.
    fn default() -> Self {
        Self {
            npu: Npu::Kernels,
            npu_threads: None,
            npu_sessions: 1,
            gpu: None,
            gpu_slice: 0.0,
            window: None,
            cuts: Vec::new(),
            partition: None,
            wait: Wait::Predicted,
            hot_rows: HotRowsArgument::Auto,
            npu_activation: ActivationArgument::Float,
        }
    }
}

impl DeviceArguments {
    /// Refuses what nobody would look at where there are no processors.
    pub fn check(&self, has_processors: bool) -> Result<()> {
        let Self {
            npu,
            npu_threads,
            npu_sessions,
            gpu,
            gpu_slice,
            window,
            cuts,
            partition,
            wait,
            hot_rows,
            npu_activation,
        } = self;
        let is_default = *npu == Npu::Kernels
            && gpu.is_none()
            && *gpu_slice == 0.0
            && window.is_none()
            && cuts.is_empty();
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
                    && *hot_rows == HotRowsArgument::Auto
                    && *npu_activation == ActivationArgument::Float),
            "--npu, --npu-activation, --gpu, --gpu-slice, --window, --cut, --partition, --wait and --hot-rows are for \
             --processors: expected it, too"
        );
        Ok(())
    }

    /// The device of a processor, which `threads` drive; `None` for our own kernels. Graphs that it compiles are kept in
    /// the package of the model if they are `kept`.
    ///
    /// # Errors
    /// If there is no such device.
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
            ProcessorKind::Npu => self.npu.open(model, self, threads, kept),
        }
    }

    /// What the GPU does at most, measured now; `None` where it can't be measured, which is noted.
    ///
    /// # Errors
    /// If there is no such GPU.
    pub fn gpu_peaks(&self) -> Result<Option<Peaks>> {
        let peaks = self.open_gpu()?.device.peaks();
        Ok(peaks.unwrap_or_else(|error| {
            output::note(&format!(
                "note: what the GPU does at most was not measured: {error}"
            ));
            None
        }))
    }

    /// Whether feed-forwards of prompts are computed in fixed point between their products.
    pub fn fixed_point(&self) -> bool {
        self.npu_activation == ActivationArgument::Fixed
    }

    /// Processors that compute all of every product, each by itself.
    pub fn uncut(&self) -> Self {
        Self {
            cuts: Vec::new(),
            partition: None,
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
        anyhow::bail!(
            "expected processors without a gpu: this program was built without the feature gpu"
        )
    }

    /// The name of a processor of this kind for people: what takes the place of an NPU is called what it is.
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

    /// The largest difference of logits, relative to the largest, that the rounding of processors of this kind explains.
    pub fn rounding(&self, kind: ProcessorKind) -> f32 {
        match kind {
            ProcessorKind::Cpu => 0.0,
            // Its activation within a feed-forward is its own.
            ProcessorKind::Gpu => ROUNDING,
            ProcessorKind::Npu => self.npu.rounding(),
        }
    }
}

impl FromStr for Npu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "kernels" => Ok(Self::Kernels),
            #[cfg(feature = "hexagon")]
            "hexagon" => Ok(Self::Hexagon),
            #[cfg(not(feature = "hexagon"))]
            "hexagon" => Err("this program was built without the feature hexagon".to_owned()),
            #[cfg(feature = "npu")]
            provider => provider
                .parse()
                .map(Self::OnnxRuntime)
                .map_err(|error| format!("{error}, hexagon or kernels")),
            #[cfg(not(feature = "npu"))]
            _ => Err(
                "expected hexagon or kernels: this program was built without the feature npu"
                    .to_owned(),
            ),
        }
    }
}

impl Npu {
    /// Whether it is Hexagon's NPU.
    fn is_hexagon(self) -> bool {
        match self {
            Self::Kernels => false,
            #[cfg(feature = "hexagon")]
            Self::Hexagon => true,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => false,
        }
    }

    /// The device that runs the programs of `model`, which `threads` drive, as `devices` has it; `None` for our own kernels.
    #[cfg_attr(
        not(all(feature = "hexagon", feature = "npu")),
        allow(unused_variables, clippy::unnecessary_wraps)
    )]
    fn open(
        self,
        model: &Arc<Model>,
        devices: &DeviceArguments,
        threads: &Threads,
        kept: bool,
    ) -> Result<Option<Opened>> {
        match self {
            Self::Kernels => Ok(None),
            #[cfg(feature = "hexagon")]
            Self::Hexagon => {
                use triad_processors::hexagon::{
                    Hexagon, HexagonOptions, program_from_environment,
                };

                let options = HexagonOptions::new(program_from_environment()?);
                let window = devices.window.unwrap_or(options.window);
                let (threads, sessions) = (devices.npu_threads, devices.npu_sessions);
                let options = HexagonOptions {
                    window,
                    threads,
                    sessions,
                    ..options
                };
                Ok(Some(Opened::plain(Arc::new(Hexagon::open(&options)?))))
            }
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(provider) => {
                use triad_engine::package::Package;
                use triad_processors::npu;

                let options = npu::NpuOptions::new(npu::library_from_environment()?, provider);
                let cache = model.package().filter(|_| kept).map(Package::compiled);
                let bytes = model
                    .package()
                    .map(|path| Ok::<_, anyhow::Error>(Package::open(path)?.bytes()));
                let cache_bytes = bytes
                    .transpose()?
                    .map_or(u64::MAX, |bytes| bytes.saturating_mul(KEPT_SETS));
                let (threads, driver) = (threads.count(), drivers());
                let window = devices.window.or(options.window);
                let options = npu::NpuOptions {
                    threads,
                    cache,
                    cache_bytes,
                    driver,
                    window,
                    ..options
                };
                let npu = Arc::new(npu::Npu::new(options)?);
                Ok(Some(Opened {
                    npu: Some(Arc::clone(&npu)),
                    ..Opened::plain(npu)
                }))
            }
        }
    }

    fn rounding(self) -> f32 {
        match self {
            Self::Kernels => 0.0,
            // It computes the bits of our kernels.
            #[cfg(feature = "hexagon")]
            Self::Hexagon => 0.0,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => ROUNDING,
        }
    }
}

impl std::fmt::Display for Npu {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Kernels => f.write_str("INT8 kernels as NPU"),
            #[cfg(feature = "hexagon")]
            Self::Hexagon => {
                use triad_processors::hexagon::{Target, program_from_environment};

                let program = program_from_environment().ok();
                match program.and_then(|program| Target::of(&program).ok()) {
                    Some(Target::Dsp) => f.write_str("Hexagon NPU (by FastRPC)"),
                    _ => f.write_str("Hexagon NPU (emulated by qemu)"),
                }
            }
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(provider) => write!(f, "ONNX Runtime's {provider} provider as NPU"),
        }
    }
}

/// The GPU that the environment names.
#[cfg(feature = "gpu")]
fn gpu_from_environment() -> Option<String> {
    GpuOptions::from_environment().adapter
}

#[cfg(not(feature = "gpu"))]
fn gpu_from_environment() -> Option<String> {
    None
}

/// Compiled graphs take about what the package takes, for each device and chunk length. Those of so many are kept; the
/// sets that were used longest ago make way.
#[cfg(feature = "npu")]
const KEPT_SETS: u64 = 4;

/// What replaces the version of a device's driver, which ONNX Runtime does not report: the release of the system's
/// kernel, with which drivers come. Empty where it is not known.
#[cfg(feature = "npu")]
fn drivers() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Sums are exact; scales and biases may be applied in another order, and the activation within a feed-forward is the
/// provider's own, which rounds otherwise. A number between two steps of INT8 then goes the other way, and one
/// step at what down reads has moved logits of SmolLM2 by 4.7e-2 of the largest.
const ROUNDING: f32 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_npu_is_named_and_an_unknown_one_refused() {
        assert_eq!("kernels".parse(), Ok(Npu::Kernels));
        assert!("tpu".parse::<Npu>().unwrap_err().contains("kernels"));
        #[cfg(feature = "hexagon")]
        assert_eq!("hexagon".parse(), Ok(Npu::Hexagon));
        #[cfg(feature = "npu")]
        assert_eq!("qnn".parse(), Ok(Npu::OnnxRuntime(Provider::Qnn)));
    }
}
