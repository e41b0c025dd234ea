//! GPUs through Vulkan, Metal or Direct3D 12. They run INT8 subgraphs, layers that read floats, and whole models
//! (`model`).
//!
//! A GPU is opened once ([`Gpu::open`]): `adapters` finds it by name, `context` opens its queue, and the first shader
//! variant that passes the self-test is used (`kernels`, `self_test`). [`Gpu::variants`] returns why other variants were
//! refused. A program keeps its weights in GPU buffers, in the layout of the CPU's kernels, and runs in one submission
//! (`program`). All programs share the buffers for intermediate results (`scratch`). Compiled shaders are kept on disk
//! (`pipeline_cache`). The length of submissions can be limited ([`GpuOptions::slice`], `pace`), so that other
//! applications can use the GPU in between. [`Frames`] shows whether they can.
//!
//! There are separate errors for: no adapter, a software renderer that was not requested, too little memory, a device
//! that the driver lost, and a submission that takes too long.

mod adapters;
mod between;
mod context;
mod frames;
mod kernels;
mod matrices;
pub mod model;
mod pace;
mod peak;
mod pipeline_cache;
mod program;
mod scratch;
mod self_test;
mod slices;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use adapters::{ADAPTER, Adapter, AdapterKind};
pub use frames::Frames;
pub use kernels::{Variant, VariantState};

use crate::device::{Capabilities, Device, ModelOptions, Peaks, Program};
use crate::error::{Error, Result};
use crate::float_linear::{FloatLinear, FloatProgram};
use crate::layer_format::LayerFormat;
use crate::model::{DeviceModel, ModelProgram};
use crate::multiplier::Multiplier;
use crate::subgraph::DeviceSubgraph;
use context::Context;
use kernels::Kernels;
use model::{FloatKernels, GpuFloatProgram, GpuModel, GpuModelProgram, ModelVariant};
use pace::Pace;
use program::{GpuProgram, Shared};
use scratch::Scratch;

/// Selects a GPU and configures how it is used.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Part of the adapter's name. `None` selects the fastest kind of GPU that is present, and never a software
    /// renderer.
    pub adapter: Option<String>,
    /// Shader variants for subgraphs to try, in this order; `None` for [`Variant::ALL`].
    pub variants: Option<Vec<Variant>>,
    /// Names of variants, separated by commas. Names of subgraph variants replace `variants`, and names of model
    /// variants replace [`ModelVariant::ALL`]. If there is no name of a kind, the default of that kind stays.
    pub named: Option<String>,
    /// Approximate upper bound for the length of a submission, so that other applications can use the GPU in between.
    /// `None` for one submission per subgraph, and per chunk of a whole model.
    pub slice: Option<Duration>,
    /// Folder for compiled shaders, if the driver returns them; `None` to keep none.
    pub kept: Option<PathBuf>,
}

/// The environment variable that names shader variants, like [`GpuOptions::named`].
pub const VARIANTS: &str = "TRIAD_GPU_VARIANTS";

impl GpuOptions {
    /// Returns options with the GPU that the environment variable [`ADAPTER`] names, if it is set, and the variants
    /// that [`VARIANTS`] names.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            adapter: variable(ADAPTER),
            named: variable(VARIANTS),
            ..Self::default()
        }
    }

    /// Returns the variants to try, for subgraphs and for models.
    ///
    /// # Errors
    /// If a named variant does not exist.
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

/// An open GPU.
#[derive(Debug)]
pub struct Gpu {
    adapter: Adapter,
    capabilities: Capabilities,
    variants: Vec<(Variant, VariantState)>,
    /// Variants that models try.
    model_variants: Vec<ModelVariant>,
    shared: Arc<Shared>,
    float_kernels: Arc<FloatKernels>,
}

impl Gpu {
    /// Opens a GPU.
    ///
    /// # Errors
    /// If there is none, its driver refuses it, or no shader variant passes the self-test.
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

    /// Opens every GPU that this machine's drivers list, software renderers included, with the variants of `options`.
    /// Returns the error of each GPU that can't be used.
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
                None => match checked(&context, variant)? {
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
            formats: LayerFormat::ALL.into(),
            static_shapes: false,
            own_memory: true,
            window: None,
            feed_forwards: true,
            whole_models: true,
        };
        let float_kernels = Arc::new(FloatKernels::new(&context, &model_variants));
        Ok(Self {
            adapter,
            capabilities,
            variants,
            model_variants,
            shared: Arc::new(shared),
            float_kernels,
        })
    }

    /// Returns the driver's description of the GPU.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Returns whether the CPU writes weights directly to the memory that shaders read. Otherwise they are copied to
    /// the GPU's own memory.
    pub fn shares_memory(&self) -> bool {
        self.shared.context.shares_memory
    }

    /// Returns the number of submissions to the GPU by all its programs and models.
    pub fn submissions(&self) -> u64 {
        self.shared.context.submissions()
    }

    /// Returns the number of completed runs of programs of layers that read floats.
    pub fn float_runs(&self) -> u64 {
        self.float_kernels.runs()
    }

    /// Returns the result of each INT8 subgraph variant.
    pub fn variants(&self) -> &[(Variant, VariantState)] {
        &self.variants
    }

    /// Tests each shader variant for whole models and returns the results. It compiles and tests all kernels of models
    /// with heads of 64 or 128 dimensions and weights of any format. Loading a model tests only the kernels that it
    /// needs.
    ///
    /// # Errors
    /// If no variant passes the self-test, or the GPU fails.
    pub fn check_models(&self) -> Result<Vec<(ModelVariant, VariantState)>> {
        let states = model::check_all(&self.shared.context, &self.model_variants)?;
        self.shared.context.keep_pipelines();
        Ok(states)
    }

    /// Returns why kept shaders are not used or can't be kept, if so.
    pub fn not_kept(&self) -> Option<String> {
        self.shared.context.pipelines.as_ref()?.note()
    }
}

/// Compiles and tests a variant. Returns its state if it passes the self-test, or the reason why it is not used.
fn checked(
    context: &Arc<Context>,
    variant: Variant,
) -> Result<std::result::Result<Shared, String>> {
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
    let checked = self_test::check(&shared)?;
    let shared = Arc::into_inner(shared).expect("the self-test dropped its programs");
    Ok(checked.map(|()| shared))
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

    fn prepare_floats(&self, linear: &FloatLinear, rows: usize) -> Result<Box<dyn FloatProgram>> {
        let program = GpuFloatProgram::new(&self.shared, &self.float_kernels, linear, rows)?;
        Ok(Box::new(program))
    }

    fn prepare_model(
        &self,
        model: &DeviceModel,
        options: &ModelOptions,
        multiplier: Option<Multiplier>,
    ) -> Result<Box<dyn ModelProgram>> {
        let variants = &self.model_variants;
        let model = GpuModel::with_multiplier(self, model, options, variants, multiplier)?;
        Ok(Box::new(GpuModelProgram::new(model)))
    }

    fn work(&self) -> Option<String> {
        let runs = self.float_runs();
        (runs > 0).then(|| format!("{}: {runs} products that read floats", self.name()))
    }

    fn peaks(&self) -> Result<Option<Peaks>> {
        peak::measure(&self.shared.context, self.adapter.to_string()).map(Some)
    }
}

impl GpuModel {
    /// Copies a model to `gpu`, and compiles and tests its kernels. The shader `variants` are tried in this order.
    ///
    /// # Errors
    /// If the model's parts are inconsistent or have shapes that no shader supports ([`Error::GpuModel`]), there is no
    /// memory for it, or no shader variant passes the self-test.
    pub fn new(
        gpu: &Gpu,
        model: &DeviceModel,
        options: &ModelOptions,
        variants: &[ModelVariant],
    ) -> Result<Self> {
        Self::with_multiplier(gpu, model, options, variants, None)
    }

    /// Does the same, and has another processor compute products in prompts.
    ///
    /// # Errors
    /// As [`new`](Self::new), if its products are not those of the model or can't be divided, and with a limit for the
    /// length of submissions.
    pub fn with_multiplier(
        gpu: &Gpu,
        model: &DeviceModel,
        options: &ModelOptions,
        variants: &[ModelVariant],
        multiplier: Option<Multiplier>,
    ) -> Result<Self> {
        let context = Arc::clone(&gpu.shared.context);
        Self::copied(context, model, options, variants, multiplier)
    }
}
