//! The choice of an NPU, and how it is used.

use std::path::PathBuf;

use super::contexts::Contexts;
use super::graph::Formulation;
use super::provider::{DeviceKind, Provider};
use super::rows::RowShapes;
use crate::error::{Error, Result};

/// The environment variable with the path of ONNX Runtime's library.
pub const LIBRARY: &str = "TRIAD_ONNXRUNTIME";

/// Selects an NPU and configures how it is used.
#[derive(Clone, Debug)]
pub struct NpuOptions {
    /// ONNX Runtime's library, 1.24 or later: `libonnxruntime.so`, `onnxruntime.dll`, `libonnxruntime.dylib`.
    pub library: PathBuf,
    /// The execution provider that runs the graphs.
    pub provider: Provider,
    /// The provider's own library, if it is not built into ONNX Runtime. A process can use one for each provider.
    pub provider_library: Option<PathBuf>,
    /// Options of the provider, with the names of its documentation.
    pub provider_options: Vec<(String, String)>,
    /// Required kind of device; any kind if `None`.
    pub device: Option<DeviceKind>,
    /// Version of the device's driver, on which compiled graphs depend. ONNX Runtime does not report it.
    pub driver: String,
    /// CPU threads that it computes with, including the calling one.
    pub threads: usize,
    /// Maximum number of bytes that all programs may take together, if there is a limit.
    pub window: Option<usize>,
    /// Folder for compiled graphs, if they are kept. If they can't be kept there, [`Npu::not_kept`](super::Npu::not_kept) returns the reason.
    pub cache: Option<PathBuf>,
    /// Maximum number of bytes of the graphs in that folder. Beyond it, the least recently used graphs are removed,
    /// except those that this process uses.
    pub cache_bytes: u64,
    /// Graphs compiled ahead of time, for Qualcomm's provider. There is no cache then.
    pub contexts: Option<Contexts>,
    /// Formulation of the graphs, if not the provider's default.
    pub formulation: Option<Formulation>,
    /// Shapes of the rows, if not the default: flat for the CPU, the fastest for other providers.
    pub row_shapes: Option<RowShapes>,
}

impl NpuOptions {
    /// Returns options for `provider` of the library at `library`, with one thread, no limit and no cache. The
    /// provider's own library is the one that the environment names ([`Provider::library_variable`]), if it does.
    pub fn new(library: impl Into<PathBuf>, provider: Provider) -> Self {
        Self {
            library: library.into(),
            provider,
            provider_library: provider.library_variable().and_then(path_from_environment),
            provider_options: Vec::new(),
            device: None,
            driver: String::new(),
            threads: 1,
            window: None,
            cache: None,
            cache_bytes: u64::MAX,
            contexts: None,
            formulation: None,
            row_shapes: None,
        }
    }

    /// Returns the formulation of the graphs.
    pub(super) fn formulation(&self) -> Formulation {
        self.formulation.unwrap_or(self.provider.formulation())
    }
}

/// Returns the path in the environment variable [`LIBRARY`].
///
/// # Errors
/// If it is not set.
pub fn library_from_environment() -> Result<PathBuf> {
    path_from_environment(LIBRARY).ok_or(Error::LibraryUnnamed { variable: LIBRARY })
}

fn path_from_environment(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}
