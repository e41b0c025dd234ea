//! The compute pipelines, in several variants. Each GPU uses the first one that passes the self-test on it.

use super::context::Context;

/// Words (of four numbers each) of a row that a workgroup loads into its memory at a time.
pub(super) const DEPTH: u32 = 16;
/// Functions that several shaders use.
pub(super) const FUNCTIONS: &str = include_str!("shaders/functions.wgsl");
/// Tiled INT8 matmul.
pub(super) const MULTIPLY: &str = include_str!("shaders/multiply.wgsl");

/// A variant of the INT8 matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Name of the variant.
    pub name: &'static str,
    /// Rows and columns of the output tile of a workgroup.
    tile: u32,
    /// WGSL function that computes the dot product of four INT8 pairs.
    dot4: &'static str,
}

/// Result of trying a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VariantState {
    /// The variant passed the self-test and is used.
    Used,
    /// The variant failed the self-test, or the driver refused it; holds the reason.
    Refused(String),
    /// The variant was not tried, since a faster one is used.
    Untried,
}

/// A four-element dot product in one instruction, if the driver has it; otherwise the shader compiler expands it.
pub(super) const PACKED: &str = "fn dot4(a: u32, b: u32) -> i32 { return dot4I8Packed(a, b); }";
/// A four-element dot product of shifts and 32-bit multiplications only.
pub(super) const SHIFTED: &str =
    "fn number(word: u32, lane: u32) -> i32 { return bitcast<i32>(word << (24u - 8u * lane)) >> 24u; }
fn dot4(a: u32, b: u32) -> i32 {
    return number(a, 0u) * number(b, 0u) + number(a, 1u) * number(b, 1u)
        + number(a, 2u) * number(b, 2u) + number(a, 3u) * number(b, 3u);
}";

impl Variant {
    /// All variants, the fastest first. Workgroups have one dimension: an Adreno 840 miscomputed with more
    /// (pytorch/executorch#22328).
    pub const ALL: [Self; 4] = [
        Self {
            name: "packed-64",
            tile: 64,
            dot4: PACKED,
        },
        Self {
            name: "packed-32",
            tile: 32,
            dot4: PACKED,
        },
        Self {
            name: "shifted-64",
            tile: 64,
            dot4: SHIFTED,
        },
        Self {
            name: "shifted-32",
            tile: 32,
            dot4: SHIFTED,
        },
    ];

    /// Returns the rows and columns of the output tile of a workgroup.
    pub(super) fn tile(self) -> u32 {
        self.tile
    }

    fn side(self) -> u32 {
        self.tile / 4
    }

    fn source(self) -> String {
        let (tile, side) = (self.tile, self.side());
        let constants = format!(
            "const TILE = {tile}u; const SIDE = {side}u; const THREADS = {threads}u; const DEPTH = {DEPTH}u;\n",
            threads = side * side
        );
        [
            &constants,
            self.dot4,
            "\n",
            include_str!("shaders/sums.wgsl"),
            MULTIPLY,
        ]
        .concat()
    }
}

/// The compiled pipelines of one variant.
#[derive(Debug)]
pub(super) struct Kernels {
    pub variant: Variant,
    pub multiply: wgpu::ComputePipeline,
    pub activate: wgpu::ComputePipeline,
}

impl Kernels {
    /// Compiles the pipelines.
    ///
    /// # Errors
    /// If the GPU or its driver refuses a shader. The error is the reason.
    pub fn compile(context: &Context, variant: Variant) -> Result<Self, String> {
        let threads = variant.side() * variant.side();
        let limits = context.device.limits();
        let (most, memory) = (
            limits.max_compute_invocations_per_workgroup,
            8 * DEPTH * variant.tile,
        );
        if threads > most {
            return Err(format!(
                "its workgroups have {most} invocations at most, of {threads}"
            ));
        }
        if memory > limits.max_compute_workgroup_storage_size {
            let has = limits.max_compute_workgroup_storage_size;
            return Err(format!(
                "its workgroups have {has} bytes of memory, of {memory}"
            ));
        }
        let compile = |label: &str, source: String| {
            let source = wgpu::ShaderSource::Wgsl(source.into());
            let descriptor = wgpu::ShaderModuleDescriptor {
                label: Some(label),
                source,
            };
            let module = context.device.create_shader_module(descriptor);
            // The shaders write all of this memory before they read it.
            let options = wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            };
            context
                .device
                .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(label),
                    layout: None,
                    module: &module,
                    entry_point: Some("main"),
                    compilation_options: options,
                    cache: context.pipelines.as_ref().map(|kept| &kept.cache),
                })
        };
        let pipelines = || Self {
            variant,
            multiply: compile("multiply", variant.source()),
            activate: compile(
                "activate",
                [FUNCTIONS, include_str!("shaders/activate.wgsl")].concat(),
            ),
        };
        context.scoped(wgpu::ErrorFilter::Validation, || {
            context.scoped(wgpu::ErrorFilter::Internal, pipelines)
        })?
    }
}
