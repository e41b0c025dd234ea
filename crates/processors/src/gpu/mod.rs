//! GPUs through Vulkan, Metal or Direct3D 12: subgraphs in INT8, and whole models (`model`).
//!
//! A GPU is opened once ([`Gpu::open`]): it is found by name (`adapters`), its queue is opened (`context`), and the
//! first of several variants of the shaders is taken that computes rightly on it (`kernels`, `proof`); what others get
//! wrong has a reason, which [`Gpu::variants`] returns. A program keeps its weights in buffers of the GPU, in the
//! layout of the CPU's kernels, and runs in one submission (`program`); what is between input and output is in buffers
//! that all programs share (`scratch`). What a driver compiled is kept on disk (`pipeline_cache`). Submissions can be
//! of a given length at most ([`GpuOptions::slice`], `pace`), so that other applications have the GPU in between;
//! [`Frames`] shows whether they do.
//!
//! No adapter, software in place of a GPU that nobody asked for, memory that is missing, a GPU that its driver lost or that
//! takes too long are errors of their own.

mod adapters;
mod context;
mod frames;
mod kernels;
mod matrices;
pub mod model;
mod pace;
mod peak;
mod pipeline_cache;
mod program;
mod proof;
mod scratch;
mod slices;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use triad_plan::graph::Format;

pub use adapters::{ADAPTER, Adapter, AdapterKind};
pub use frames::Frames;
pub use kernels::Variant;

use crate::device::{Capabilities, Device, ModelOptions, Peaks, Program};
use crate::error::{Error, Result};
use crate::model::{DeviceModel, ModelProgram};
use crate::subgraph::DeviceSubgraph;
use context::Context;
use kernels::Kernels;
use model::{GpuModel, GpuModelProgram, ModelVariant};
use pace::Pace;
use program::{GpuProgram, Shared};
use scratch::Scratch;

/// Which GPU, and how it is used.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// A part of its name; `None` for the fastest kind of GPU that is there, and never software in its place.
    pub adapter: Option<String>,
    /// Variants of the shaders for subgraphs to try, in this order; `None` for [`Variant::ALL`].
    pub variants: Option<Vec<Variant>>,
    /// Names of variants, with commas between them: those for subgraphs take the place of `variants`, and those for models
    /// of [`ModelVariant::ALL`], unless there is none of the kind.
    pub named: Option<String>,
    /// How long a submission may take at most, about, so that others have the GPU in between; `None` for one submission of
    /// each subgraph, and of each chunk of a whole model.
    pub slice: Option<Duration>,
    /// The folder in which compiled shaders are kept, on drivers that return them; `None` for nowhere.
    pub kept: Option<PathBuf>,
}

/// The environment variable that names variants of the shaders, as [`GpuOptions::named`] does.
pub const VARIANTS: &str = "TRIAD_GPU_VARIANTS";

impl GpuOptions {
    /// The GPU that the environment variable [`ADAPTER`] names, or any, and the variants that [`VARIANTS`] names.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            adapter: variable(ADAPTER),
            named: variable(VARIANTS),
            ..Self::default()
        }
    }

    /// The variants to try, for subgraphs and for models.
    ///
    /// # Errors
    /// If one is named that there is not.
    fn tried(&self) -> Result<(Vec<Variant>, Vec<ModelVariant>)> {
        let (mut variants, mut model_variants) = (Vec::new(), Vec::new());
        let all_models = || ModelVariant::ALL.into_iter().chain(ModelVariant::ROUNDED);
        for name in self
            .named
            .iter()
            .flat_map(|names| names.split(','))
            .map(str::trim)
        {
            let (variant, model_variant) = (
                Variant::ALL.iter().find(|one| one.name == name),
                all_models().find(|one| one.name == name),
            );
            if variant.is_none() && model_variant.is_none() {
                let names = Variant::ALL
                    .iter()
                    .map(|one| one.name)
                    .chain(all_models().map(|one| one.name));
                let expected = names.collect::<Vec<_>>().join(", ");
                return Err(Error::GpuVariant {
                    variable: VARIANTS,
                    wanted: name.to_owned(),
                    expected,
                });
            }
            variants.extend(variant);
            model_variants.extend(model_variant);
        }
        if variants.is_empty() {
            variants = self.variants.clone().unwrap_or_else(|| Variant::ALL.into());
        }
        if model_variants.is_empty() {
            model_variants = ModelVariant::ALL.into();
        }
        Ok((variants, model_variants))
    }
}

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    adapter: Adapter,
    capabilities: Capabilities,
    variants: Vec<(Variant, VariantState)>,
    /// Those that models try.
    model_variants: Vec<ModelVariant>,
    shared: Arc<Shared>,
}

/// What came of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VariantState {
    /// It computes rightly and is used.
    Used,
    /// It does not, or the driver refuses it: the reason.
    Refused(String),
    /// A faster one is used.
    Untried,
}

impl Gpu {
    /// Opens a GPU.
    ///
    /// # Errors
    /// If there is none, its driver refuses it, or no variant of the shaders computes rightly on it.
    pub fn open(options: &GpuOptions) -> Result<Self> {
        let tried = options.tried()?;
        let (listed, adapter) = adapters::choose(options.adapter.as_deref())?;
        Self::with(
            &listed,
            adapter,
            tried,
            options.slice,
            options.kept.as_deref(),
        )
    }

    /// Opens every GPU that this machine's drivers list, software among them, with the variants of `options`; of each that
    /// can't be used, the error.
    pub fn open_each(options: &GpuOptions) -> Vec<(Adapter, Result<Self>)> {
        let open = |(listed, adapter): (wgpu::Adapter, Adapter)| {
            let opened = options.tried().and_then(|tried| {
                Self::with(
                    &listed,
                    adapter.clone(),
                    tried,
                    None,
                    options.kept.as_deref(),
                )
            });
            (adapter, opened)
        };
        adapters::listed().into_iter().map(open).collect()
    }

    fn with(
        listed: &wgpu::Adapter,
        adapter: Adapter,
        (all, model_variants): (Vec<Variant>, Vec<ModelVariant>),
        slice: Option<Duration>,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let with_matrices = model_variants.iter().any(|variant| variant.has_matrices());
        let context =
            Arc::new(Context::open(listed, &adapter, kept, with_matrices)?.with_slice(slice));
        let (mut used, mut variants) = (None, Vec::new());
        for variant in all {
            let state = match used {
                Some(_) => VariantState::Untried,
                None => match proven(&context, variant)? {
                    Ok(shared) => {
                        used = Some(shared);
                        VariantState::Used
                    }
                    Err(reason) => VariantState::Refused(reason),
                },
            };
            variants.push((variant, state));
        }
        let Some(shared) = used else {
            let refused = variants.iter().map(|(variant, state)| match state {
                VariantState::Refused(reason) => format!("{}: {reason}", variant.name),
                _ => variant.name.to_owned(),
            });
            let reasons = refused.collect::<Vec<_>>().join("; ");
            return Err(Error::GpuMiscomputes {
                gpu: context.name.clone(),
                reasons,
            });
        };
        context.keep_pipelines();
        let capabilities = Capabilities {
            formats: vec![Format::Int8],
            static_shapes: false,
            own_memory: true,
            window: None,
            whole_models: true,
        };
        Ok(Self {
            adapter,
            capabilities,
            variants,
            model_variants,
            shared: Arc::new(shared),
        })
    }

    /// What its driver says of it.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Whether the CPU writes weights to the memory that shaders read; otherwise they are copied to memory of the GPU's own.
    pub fn shares_memory(&self) -> bool {
        self.shared.context.shares_memory
    }

    /// How often work was submitted to it, by all its programs and models.
    pub fn submissions(&self) -> u64 {
        self.shared.context.submissions()
    }

    /// What came of each variant of the shaders for subgraphs in INT8.
    pub fn variants(&self) -> &[(Variant, VariantState)] {
        &self.variants
    }

    /// What comes of each variant of the shaders for whole models: all kernels of a model with heads of 64 or 128 and
    /// weights of any format are compiled and proven. A model that is put there proves those that it needs.
    ///
    /// # Errors
    /// If no variant computes rightly, or the GPU fails.
    pub fn prove_models(&self) -> Result<Vec<(ModelVariant, VariantState)>> {
        let states = model::prove_all(&self.shared.context, &self.model_variants)?;
        self.shared.context.keep_pipelines();
        Ok(states)
    }

    /// Why compiled shaders that were kept are not used, or can't be kept, if that is so.
    pub fn not_kept(&self) -> Option<String> {
        self.shared.context.pipelines.as_ref()?.note()
    }
}

/// A variant that computes rightly, or the reason why it is not used.
fn proven(context: &Arc<Context>, variant: Variant) -> Result<std::result::Result<Shared, String>> {
    let kernels = match Kernels::compile(context, variant) {
        Ok(kernels) => kernels,
        Err(reason) => return Ok(Err(reason)),
    };
    let scratch = Scratch::new(context)?;
    let pace = context.slice.map(|slice| Mutex::new(Pace::new(slice)));
    let shared = Arc::new(Shared {
        context: Arc::clone(context),
        kernels,
        scratch,
        pace,
    });
    let proof = proof::prove(&shared)?;
    let shared = Arc::into_inner(shared).expect("its programs are gone");
    Ok(proof.map(|()| shared))
}

impl Device for Gpu {
    fn name(&self) -> &str {
        &self.shared.context.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(&self, subgraph: &DeviceSubgraph, rows: usize) -> Result<Box<dyn Program>> {
        subgraph.check_float(self.name())?;
        Ok(Box::new(GpuProgram::new(&self.shared, subgraph, rows)?))
    }

    fn prepare_model(
        &self,
        model: &DeviceModel,
        options: &ModelOptions,
    ) -> Result<Box<dyn ModelProgram>> {
        let model = GpuModel::new(self, model, options, &self.model_variants)?;
        Ok(Box::new(GpuModelProgram::new(model)))
    }

    fn peaks(&self) -> Result<Option<Peaks>> {
        peak::measure(&self.shared.context, self.adapter.to_string()).map(Some)
    }
}
