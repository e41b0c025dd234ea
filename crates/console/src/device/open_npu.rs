//! Opening of the NPU that `--npu` names.

use std::sync::Arc;

use anyhow::Result;
use triad_engine::{Model, Threads};

#[cfg(feature = "hexagon")]
use super::npu::unit;
use super::{DeviceArguments, Npu, Opened};

/// Number of sets of compiled graphs to keep, one for each device and chunk length. Each has about the size of the
/// package. The least recently used sets are removed.
#[cfg(feature = "npu")]
const KEPT_SETS: u64 = 4;

/// Returns the release of the system's kernel, with which drivers are distributed; empty if it is unknown. It replaces
/// the version of a device's driver, which ONNX Runtime does not report.
#[cfg(feature = "npu")]
fn drivers() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

impl DeviceArguments {
    /// Opens the NPU for the programs of `model`; `None` for Triad's kernels. `threads` drive the device.
    #[cfg_attr(
        not(all(feature = "hexagon", feature = "npu")),
        allow(unused_variables, clippy::unnecessary_wraps)
    )]
    pub(super) fn open_npu(
        &self,
        model: &Arc<Model>,
        threads: &Threads,
        kept: bool,
    ) -> Result<Option<Opened>> {
        match self.npu {
            Npu::Kernels => Ok(None),
            #[cfg(feature = "hexagon")]
            Npu::Hexagon => {
                use triad_processors::hexagon::{
                    Hexagon, HexagonOptions, program_from_environment,
                };

                let options = HexagonOptions::new(program_from_environment()?);
                let window = self.window.unwrap_or(options.window);
                let (threads, sessions) = (self.npu_threads, self.npu_sessions);
                let options = HexagonOptions {
                    window,
                    threads,
                    sessions,
                    unit: unit(&self.npu_options).map_err(anyhow::Error::msg)?,
                    ..options
                };
                Ok(Some(Opened::plain(Arc::new(Hexagon::open(&options)?))))
            }
            #[cfg(feature = "npu")]
            Npu::OnnxRuntime(provider) => {
                use triad_engine::package::Package;
                use triad_processors::npu;

                let options = npu::NpuOptions::new(npu::library_from_environment()?, provider);
                let contexts = self.npu_contexts.clone();
                let contexts = contexts.map(|folder| match self.compile_for {
                    Some(chip) => npu::Contexts::Compile {
                        chip,
                        folder,
                        context_bytes: npu::Contexts::MAX_BYTES,
                    },
                    None => npu::Contexts::Run { folder },
                });
                let cache = model.package().filter(|_| kept && contexts.is_none());
                let cache = cache.map(Package::compiled);
                let bytes = model
                    .package()
                    .map(|path| Ok::<_, anyhow::Error>(Package::open(path)?.bytes()));
                let cache_bytes = bytes
                    .transpose()?
                    .map_or(u64::MAX, |bytes| bytes.saturating_mul(KEPT_SETS));
                let (threads, driver) = (threads.count(), drivers());
                let window = self.window.or(options.window);
                let provider_library = self.npu_library.clone();
                let options = npu::NpuOptions {
                    provider_library: provider_library.or(options.provider_library),
                    provider_options: self.npu_options.clone(),
                    threads,
                    cache,
                    cache_bytes,
                    contexts,
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
}
