//! NPUs through ONNX Runtime, whose library is loaded at run time.
//!
//! A subgraph becomes an ONNX graph of static shapes (`graph`, encoded by `onnx`), or several graphs with equivalent
//! shapes of the rows (`rows`), of which the fastest is kept. A session runs it on one execution provider: ONNX
//! Runtime's own CPU kernels, or a [`Provider`] for a device. Inputs with fewer rows are padded, which does not change
//! outputs. All limits are errors: a library that is missing or too old (`library`), a provider that the library lacks
//! or that finds no device, a graph that the provider refuses or takes only in part (`assignment`), or a full window
//! (`window`). On Qualcomm's NPUs, outputs are rounded sums (`sums`). Compiled graphs can be kept in a folder
//! (`cache`), or compiled ahead of time for another machine (`contexts`), all in one context (`joined`).

mod assignment;
mod cache;
mod chip;
mod compiled;
mod compiling;
mod contexts;
mod devices;
mod graph;
mod index;
mod joined;
mod library;
mod onnx;
mod options;
mod program;
mod provider;
mod rows;
mod self_test;
mod sums;

use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use triad_model::seal;

pub use chip::Chip;
pub use compiling::KeptContexts;
pub use contexts::Contexts;
pub use graph::Formulation;
pub use options::{LIBRARY, NpuOptions, library_from_environment};
pub use provider::{DeviceKind, Provider};
pub use rows::RowShapes;

use crate::device::{Capabilities, Device, Program, ProgramShapes};
use crate::error::{Error, Result};
use crate::layer_format::LayerFormat;
use crate::subgraph::DeviceSubgraph;
use crate::window::Window;
use cache::Entry;
use compiled::Compiled;
use contexts::Folder;
use devices::{describe, devices, is_kind};
use program::{CompiledAhead, NpuProgram, seconds};
use sums::Epilogue;

/// An execution provider of ONNX Runtime.
#[derive(Debug)]
pub struct Npu {
    name: String,
    environment: Environment,
    options: NpuOptions,
    /// Description of the devices: vendors, kinds, numbers.
    devices: String,
    /// Description of the provider's own library and of its backend; empty if it has none.
    provider_build: String,
    window: Window,
    capabilities: Capabilities,
    not_kept: OnceLock<Error>,
    contexts: Option<Folder>,
    /// Time of creation. Graphs that were used since then are in use by this process.
    start: SystemTime,
}

impl Npu {
    /// Loads the library and finds the provider and its devices.
    ///
    /// # Errors
    /// If the library does not exist or is not usable, it lacks the provider, or the provider finds no device.
    pub fn new(mut options: NpuOptions) -> Result<Self> {
        let provider = options.provider;
        provider.check(&options.provider_options)?;
        if let Some(contexts) = &options.contexts {
            contexts.complete(provider, &mut options.provider_options)?;
        }
        let contexts = options.contexts.as_ref().map(Contexts::open).transpose()?;
        let environment = library::load(&options.library)?;
        let mut provider_build = String::new();
        if let Some(path) = &options.provider_library {
            let found = library::register(&environment, provider, path)?;
            provider.complete(&mut options.provider_options, &found);
            let backend = options.provider_options.iter();
            let backend = backend.filter(|(name, _)| name == provider::BACKEND_PATH);
            let files = backend.map(|(_, path)| Path::new(path)).chain([&*found]);
            provider_build = files.map(library::build).collect::<Vec<_>>().join("; ");
        } else if !provider
            .is_built_in()
            .map_err(|error| refused(provider, &error))?
        {
            let built_in = Provider::ALL
                .into_iter()
                .filter(|other| other.is_built_in().unwrap_or(false));
            return Err(Error::ProviderMissing {
                provider: provider.to_string(),
                library: options.library.clone(),
                available: built_in.map(|other| other.name().to_owned()).collect(),
            });
        }
        let listed = devices(&environment, provider);
        let found: Vec<_> = listed
            .iter()
            .filter(|device| is_kind(device, options.device))
            .collect();
        // Providers with the old interface list no devices. They report a missing device only when a graph is built.
        let must_list = options.device.is_some()
            || options.provider_library.is_some()
            || provider == Provider::Cpu;
        if found.is_empty() && must_list {
            let kind = options
                .device
                .map_or_else(|| "device".to_owned(), |kind| kind.to_string());
            return Err(Error::NoDevice {
                provider: provider.to_string(),
                kind,
                listed: describe(&listed),
            });
        }
        let capabilities = Capabilities {
            formats: vec![LayerFormat::W8a8],
            static_shapes: true,
            own_memory: true,
            window: options.window,
            feed_forwards: options.formulation().has_feed_forwards(),
            whole_models: false,
        };
        let devices = describe(found);
        let (name, window) = (format!("npu:{provider}"), Window::new(options.window));
        Ok(Self {
            name,
            devices,
            provider_build,
            window,
            capabilities,
            environment,
            options,
            not_kept: OnceLock::new(),
            contexts,
            start: SystemTime::now(),
        })
    }

    /// Returns why compiled graphs could not be kept in the given folder, if so: [`Error::Cache`]. They run anyway.
    pub fn not_kept(&self) -> Option<&Error> {
        self.not_kept.get()
    }

    /// Writes the index of the graphs that were compiled ahead of time, and gives their folder its name. Returns `None` if
    /// none are compiled.
    ///
    /// # Errors
    /// If the folder can't be written, or exists by now.
    pub fn keep_contexts(&self) -> Result<Option<KeptContexts>> {
        let Some(Folder::Compiling(compiling)) = &self.contexts else {
            return Ok(None);
        };
        let compile = |model: &[u8], path: &Path| {
            let build = Build {
                compiled: Some(path),
                is_joined: true,
                ..Build::default()
            };
            library::build_alone(|| self.commit(model, &build)).map(drop)
        };
        let prove = |compiled: &Compiled, subgraph: &DeviceSubgraph, rows| {
            // Qualcomm's library has an emulator on this platform, and else no device for another chip.
            if !cfg!(target_arch = "x86_64") {
                return Ok(());
            }
            let graph = graph::encode(subgraph, &[rows], Formulation::RoundedSums)?;
            self.of_contexts(compiled, &graph, (subgraph, rows))
                .map(drop)
        };
        compiling.finish(compile, prove).map(Some)
    }

    /// Returns the session of a graph that was compiled ahead of time.
    fn of_contexts(
        &self,
        compiled: &Compiled,
        graph: &[u8],
        subgraph: (&DeviceSubgraph, usize),
    ) -> Result<program::Graph> {
        let build = Build {
            level: GraphOptimizationLevel::Disable,
            shares: true,
            ..Build::default()
        };
        compiled.session(graph, subgraph, |model| self.checked(model, &build))
    }

    /// Returns the session of the fastest of several equivalent graphs, compiled now or taken from the cache. The cache
    /// keeps that one.
    fn session(&self, graphs: &[Vec<u8>]) -> Result<Session> {
        let Some(folder) = self.options.cache.as_ref().filter(|_| seal::lasts()) else {
            return self.fastest(graphs, None);
        };
        let entry = self.entry(folder, graphs);
        if let Some(compiled) = entry.read() {
            let build = Build {
                level: GraphOptimizationLevel::Disable,
                ..Build::default()
            };
            let session = self.build(&compiled, &build);
            // Some providers can't read what they wrote: OpenVINO 2025.4 can't on a CPU. The graph is then built again,
            // on the same provider and with the same checks.
            if self.options.provider == Provider::Cpu
                || !matches!(session, Err(Error::Refused { .. }))
            {
                return session;
            }
        }
        let (session, not_kept) = entry.write(|path| self.fastest(graphs, path))?;
        if let Some(error) = not_kept {
            let _ = self.not_kept.set(error);
        }
        cache::evict(folder, self.options.cache_bytes, self.start);
        Ok(session)
    }

    /// Compiles equivalent graphs and returns the fastest, which is written to the file `compiled`. The first graph
    /// must build; others that the provider refuses are skipped.
    fn fastest(&self, graphs: &[Vec<u8>], compiled: Option<&Path>) -> Result<Session> {
        let (first, others) = graphs.split_first().expect("there is at least one graph");
        let to_file = Build {
            compiled,
            ..Build::default()
        };
        let mut fastest = self.build(first, &to_file)?;
        let slow = |error: &ort::Error| refused(self.options.provider, error);
        let mut least = if others.is_empty() {
            0.0
        } else {
            seconds(&mut fastest).map_err(|error| slow(&error))?
        };
        for other in others {
            let tried = compiled.map(|path| path.with_extension("tried.onnx"));
            let to_file = Build {
                compiled: tried.as_deref(),
                ..Build::default()
            };
            let Ok(mut session) = self.build(other, &to_file) else {
                continue;
            };
            let Ok(seconds) = seconds(&mut session) else {
                continue;
            };
            if seconds < least {
                if let (Some(path), Some(tried)) = (compiled, &tried) {
                    let failed = |reason| Error::Cache {
                        path: path.to_owned(),
                        reason,
                    };
                    std::fs::rename(tried, path).map_err(failed)?;
                }
                (least, fastest) = (seconds, session);
            }
        }
        Ok(fastest)
    }

    /// Returns the cache entry of `graphs`. It depends on device, driver, provider, library, and the contents of the
    /// graphs.
    fn entry(&self, folder: &Path, graphs: &[Vec<u8>]) -> Entry {
        let options = &self.options;
        let kernels = [u8::from(pairs_overflow())];
        let mut parts = vec![
            ort::info().as_bytes(),
            self.name.as_bytes(),
            self.devices.as_bytes(),
        ];
        let provider_build = self.provider_build.as_bytes();
        parts.extend([options.driver.as_bytes(), provider_build, &kernels]);
        parts.extend(graphs.iter().map(Vec::as_slice));
        for (key, value) in &options.provider_options {
            parts.extend([key.as_bytes(), value.as_bytes()]);
        }
        Entry::new(folder, &parts)
    }

    /// Builds a session whose graph is on the provider as a whole.
    fn build(&self, graph: &[u8], build: &Build) -> Result<Session> {
        if self.options.provider.builds_alone() {
            library::build_alone(|| self.checked(graph, build))
        } else {
            self.checked(graph, build)
        }
    }

    /// Builds a session.
    fn commit(&self, graph: &[u8], build: &Build) -> Result<Session> {
        let refused = |error: ort::Error| refused(self.options.provider, &error);
        let mut builder = self.builder(build).map_err(refused)?;
        builder.commit_from_memory(graph).map_err(refused)
    }

    /// Builds a session, and checks that its graph is on the provider as a whole.
    fn checked(&self, graph: &[u8], build: &Build) -> Result<Session> {
        let provider = self.options.provider;
        let session = self.commit(graph, build)?;
        let (elsewhere, nodes) = assignment::elsewhere(&session, provider.canonical())
            .map_err(|error| refused(provider, &error))?;
        if !elsewhere.is_empty() || nodes == 0 {
            let taken = format!(
                "{} of {nodes} nodes; not {}",
                nodes - elsewhere.len(),
                elsewhere.join(", ")
            );
            return Err(Error::PartlyTaken {
                provider: provider.to_string(),
                taken,
            });
        }
        Ok(session)
    }

    fn builder(&self, build: &Build) -> ort::Result<SessionBuilder> {
        let Build {
            compiled,
            level,
            is_joined,
            shares,
        } = build;
        let Self {
            options,
            environment,
            ..
        } = self;
        let provider = options.provider;
        let mut builder = Session::builder(environment)?
            .with_optimization_level(*level)?
            .with_log_level(LogLevel::Fatal)?
            .with_intra_threads(options.threads)?
            .with_inter_threads(1)?
            .with_config_entry(assignment::RECORD, "1")?;
        if pairs_overflow() {
            builder = builder.with_precise_qmm()?;
        }
        if provider != Provider::Cpu && !is_joined {
            builder = builder.with_disable_cpu_fallback()?;
        }
        if *shares {
            builder = builder.with_config_entry(joined::SHARE, "1")?;
        }
        if let Some(path) = compiled {
            builder = match provider {
                Provider::Cpu => builder.with_optimized_model_path(path)?,
                _ => builder
                    .with_config_entry("ep.context_enable", "1")?
                    .with_config_entry("ep.context_embed_mode", "1")?
                    .with_config_entry("ep.context_file_path", path.to_string_lossy())?,
            };
        }
        let listed = devices(environment, provider)
            .into_iter()
            .filter(|device| is_kind(device, options.device));
        let listed: Vec<_> = listed.collect();
        let Some(dispatch) = provider.dispatch(&options.provider_options) else {
            return Ok(builder);
        };
        if listed.is_empty() {
            return Ok(builder.with_execution_providers([dispatch])?);
        }
        let prefixed = |(key, value): &(String, String)| {
            (format!("{}.{key}", provider.canonical()), value.clone())
        };
        let prefixed: Vec<_> = options.provider_options.iter().map(prefixed).collect();
        Ok(builder.with_devices(listed, Some(&prefixed))?)
    }
}

impl Device for Npu {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>> {
        subgraph.check_float(&self.name)?;
        let formulation = self.options.formulation();
        if matches!(subgraph, DeviceSubgraph::FeedForward(_)) && !formulation.has_feed_forwards() {
            return Err(Error::WholeFeedForward {
                processor: self.name.clone(),
            });
        }
        let rows = match &self.contexts {
            Some(Folder::Compiled(compiled)) => compiled.rows(rows),
            Some(Folder::Compiling(_)) | None => rows,
        };
        let shapes = ProgramShapes::new(subgraph, rows)?;
        let window = self.window.reserve(&self.name, subgraph.bytes(rows))?;
        let epilogues = match formulation {
            Formulation::RoundedSums => Some(Epilogue::of_layers(subgraph)?),
            Formulation::Integer | Formulation::QuantizeDequantize => None,
        };
        let provider = self.options.provider;
        let row_shapes = self.options.row_shapes.unwrap_or(provider.row_shapes());
        let graphs = row_shapes
            .shapes(rows)?
            .into_iter()
            .map(|rows| graph::encode(subgraph, &rows, formulation));
        let graphs = graphs.collect::<Result<Vec<_>>>()?;
        let session = match &self.contexts {
            Some(Folder::Compiling(compiling)) => {
                compiling.add(&graphs[0], subgraph, rows);
                return Ok(Box::new(CompiledAhead {
                    processor: self.name.clone(),
                    _window: window,
                }));
            }
            Some(Folder::Compiled(compiled)) => {
                self.of_contexts(compiled, &graphs[0], (subgraph, rows))?
            }
            None => self.session(&graphs)?.into(),
        };
        Ok(Box::new(NpuProgram::new(
            &self.name, shapes, epilogues, session, window,
        )))
    }
}

/// How a session is built.
struct Build<'a> {
    /// The file to which its compiled graph is written.
    compiled: Option<&'a Path>,
    level: GraphOptimizationLevel,
    /// Whether its graph is several ones that are [joined](joined::join).
    is_joined: bool,
    /// Whether it shares contexts with other sessions that do.
    shares: bool,
}

impl Default for Build<'_> {
    fn default() -> Self {
        Self {
            compiled: None,
            level: GraphOptimizationLevel::All,
            is_joined: false,
            shares: false,
        }
    }
}

/// Returns whether ONNX Runtime's kernels for unsigned by signed numbers add pairs of products in 16 bits, which
/// overflow. x86 kernels do so if the CPU has no integer dot product. Its other kernels do not, but are three times as
/// slow on CPUs with a dot product.
fn pairs_overflow() -> bool {
    #[cfg(target_arch = "x86_64")]
    let overflow = !is_x86_feature_detected!("avx512vnni") && !is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    let overflow = false;
    overflow
}

/// Returns the error of a provider that did not build a session.
fn refused(provider: Provider, error: &ort::Error) -> Error {
    let (provider, reason) = (provider.to_string(), error.to_string());
    // ONNX Runtime has the same error code for both cases.
    if reason.contains("fallback to CPU EP has been explicitly disabled") {
        Error::PartlyTaken {
            provider,
            taken: "ONNX Runtime reports: ".to_owned() + &reason,
        }
    } else {
        Error::Refused { provider, reason }
    }
}
