//! `--npu`: what the NPU is that `--processors` names.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use triad_engine::execute::Products;
use triad_engine::{Model, Threads};
#[cfg(feature = "npu")]
use triad_processors::npu::Provider;

/// What the NPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Npu {
    /// Our own INT8 kernels, on cores of their own in its place.
    Kernels,
    /// Whatever ONNX Runtime has this provider for.
    #[cfg(feature = "npu")]
    OnnxRuntime(Provider),
}

#[derive(clap::Args)]
pub struct NpuArgument {
    /// What the NPU is: our kernels in its place, or a provider of ONNX Runtime: cpu, qnn, openvino, coreml, vitisai,
    /// xnnpack. The environment variable TRIAD_ONNXRUNTIME names its library
    #[arg(long, value_name = "WHAT", default_value = "kernels", requires = "processors")]
    pub npu: Npu,
}

impl FromStr for Npu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "kernels" => Ok(Self::Kernels),
            #[cfg(feature = "npu")]
            provider => provider.parse().map(Self::OnnxRuntime).map_err(|error| format!("{error}, or kernels")),
            #[cfg(not(feature = "npu"))]
            _ => Err("expected kernels: this program was built without the feature npu".to_owned()),
        }
    }
}

impl Npu {
    /// Makes all INT8 layers of `model` ready for chunks of up to `rows` tokens, which `threads` drive; `None` for our own
    /// kernels.
    #[cfg_attr(not(feature = "npu"), allow(unused_variables, clippy::unnecessary_wraps))]
    pub fn prepare(self, model: &Arc<Model>, rows: usize, threads: &Threads) -> Result<Option<Box<dyn Products>>> {
        match self {
            Self::Kernels => Ok(None),
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(provider) => {
                use triad_engine::execute::Programs;
                use triad_engine::package::Package;
                use triad_processors::npu;

                let options = npu::NpuOptions::new(npu::library_from_environment()?, provider);
                let cache = model.package().map(Package::compiled);
                let bytes = model.package().map(|path| Ok::<_, anyhow::Error>(Package::open(path)?.bytes()));
                let cache_bytes = bytes.transpose()?.map_or(u64::MAX, |bytes| bytes.saturating_mul(KEPT_SETS));
                let options =
                    npu::NpuOptions { threads: threads.count(), cache, cache_bytes, driver: drivers(), ..options };
                let npu = npu::Npu::new(options)?;
                let blocks = model.description().blocks.len();
                let bar = crate::progress::blocks(format!("building graphs for {self}"), blocks);
                let products = Programs::prepare(model, &npu, rows, |done| bar.set(done))?;
                drop(bar);
                if let Some(error) = npu.not_kept() {
                    crate::output::note(&format!("note: {error}, and every run compiles them again"));
                }
                Ok(Some(Box::new(products)))
            }
        }
    }

    /// The largest difference of logits, relative to the largest, that its own rounding explains.
    pub fn rounding(self) -> f32 {
        match self {
            Self::Kernels => 0.0,
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(_) => ROUNDING,
        }
    }
}

impl std::fmt::Display for Npu {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Kernels => f.write_str("INT8 kernels as NPU"),
            #[cfg(feature = "npu")]
            Self::OnnxRuntime(provider) => write!(f, "ONNX Runtime's {provider} provider as NPU"),
        }
    }
}

/// Compiled graphs take about what the package takes, for each device and chunk length. Those of so many are kept; the
/// sets that were used longest ago make way.
#[cfg(feature = "npu")]
const KEPT_SETS: u64 = 4;

/// What stands for the version of a device's driver, which ONNX Runtime does not say: the release of the system's kernel,
/// with which drivers come. Empty where it is not known.
#[cfg(feature = "npu")]
fn drivers() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Sums are exact; scales and biases may be applied in another order, and the activation within a feed-forward is the
/// provider's own, which rounds otherwise. A number that lies between two steps of INT8 then goes the other way, and one
/// step at what down reads has moved logits of SmolLM2 by 4.7e-2 of the largest.
#[cfg(feature = "npu")]
const ROUNDING: f32 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_npu_is_named_and_an_unknown_one_refused() {
        assert_eq!("kernels".parse(), Ok(Npu::Kernels));
        assert!("tpu".parse::<Npu>().unwrap_err().contains("kernels"));
        #[cfg(feature = "npu")]
        assert_eq!("qnn".parse(), Ok(Npu::OnnxRuntime(Provider::Qnn)));
    }
}
