//! The compute pipelines of models, compiled on first use. Matmuls come in several variants; each GPU uses the first
//! one that passes the self-test on it.

use std::collections::HashMap;
use std::fmt;

use triad_kernels::Matrix;
use triad_kernels::attention::PAGE;
use triad_kernels::int8::Int8Weight;

use super::super::context::Context;
use super::super::kernels::{DEPTH, FUNCTIONS, MULTIPLY, PACKED, SHIFTED};
use crate::error::{Error, Result};

/// Float weights in a unit. The input width of a layer is a multiple of it.
pub(super) const UNIT: usize = 8;
/// Invocations in a workgroup of `activate.wgsl`.
pub(super) const ACTIVATE_THREADS: usize = 64;

/// A variant of the matmul shaders: float activations with weights of any format and f32 sums, and INT8 with i32 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelVariant {
    /// Name of the variant.
    pub name: &'static str,
    /// Rows and columns of the output tile of a workgroup, for many rows.
    tile: u32,
    /// Whether sums of few rows use subgroup operations.
    subgroups: bool,
    /// WGSL function that widens two f16 numbers to f32.
    halves: &'static str,
    /// How matmuls of many rows of float activations are computed.
    many: Many,
    /// WGSL function that computes the dot product of four INT8 pairs.
    dot4: &'static str,
}

/// How matmuls of many rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Many {
    /// Each invocation multiplies f32 numbers in workgroup memory.
    F32,
    /// Each invocation multiplies f16 numbers in workgroup memory.
    F16,
    /// Subgroups multiply cooperative matrices of this many rows and columns in f16.
    Matrices(u32),
}

impl Many {
    /// Returns the shader of a tile of `tile` rows and columns. In f16, rows are divided by 16. Activations up to 2²⁰
    /// are then representable, and rounding to f16 subnormals loses at most 2⁻²¹ of an activation.
    fn source(self, tile: u32, float: impl Fn(String, &[&str]) -> String) -> String {
        let loads = include_str!("../shaders/model/tile_loads.wgsl");
        let by_invocations = |kept: &str| {
            let constants = format!(
                "{}alias Kept = vec4<{kept}>;\n",
                of_tile(tile, (tile / 4).pow(2))
            );
            float(
                constants,
                &[loads, include_str!("../shaders/model/tile.wgsl")],
            )
        };
        match self {
            Self::F32 => by_invocations("f32") + "const SHRINK = 1.0;\n",
            Self::F16 => format!("enable f16;\n{}{SHRINK}", by_invocations("f16")),
            Self::Matrices(side) => {
                let kind = |name: &str, number: &str, role: &str| {
                    format!("alias {name} = coop_mat{side}x{side}<{number}, {role}>;\n")
                };
                let kinds = [
                    kind("Left", "f16", "A"),
                    kind("Right", "f16", "B"),
                    kind("Sums", "f32", "C"),
                ]
                .concat();
                let constants = of_tile(tile, THREADS_OF_MATRICES) + &kinds;
                let shader = float(
                    constants,
                    &[loads, include_str!("../shaders/model/cooperative.wgsl")],
                );
                format!("enable f16;\nenable wgpu_cooperative_matrix;\n{shader}{SHRINK}")
            }
        }
    }
}

/// Factor on rows in f16.
const SHRINK: &str = "const SHRINK = 0.0625;\n";

/// Invocations in a workgroup of `cooperative.wgsl`: four subgroups of 32.
const THREADS_OF_MATRICES: u32 = 128;

/// Returns the WGSL constants of a tile of `tile` rows and columns and `threads` invocations.
fn of_tile(tile: u32, threads: u32) -> String {
    format!(
        "const TILE = {tile}u; const SIDE = {}u; const THREADS = {threads}u;\n",
        tile / 4
    )
}

/// Relative tolerance of a term that is multiplied and summed in f32.
const TOLERANCE: f32 = 1e-5;

/// Widens f16 in one instruction. Some GPUs flush f16 subnormals (below 2⁻¹⁴) to zero.
const UNPACKED_HALVES: &str =
    "fn halves(word: u32) -> vec2<f32> { return unpack2x16float(word); }\n";
/// Widens f16 with integer operations. It is exact on every GPU.
const SHIFTED_HALVES: &str = "fn half(bits: u32) -> f32 {
    let bias = select(0x38000000u, 0x70000000u, (bits & 0x7c00u) == 0x7c00u);
    let magnitude = select(
        bitcast<f32>(((bits & 0x7fffu) << 13u) + bias),
        f32(bits & 0x3ffu) * 5.9604645e-8,
        (bits & 0x7c00u) == 0u,
    );
    return select(magnitude, -magnitude, (bits & 0x8000u) != 0u);
}
fn halves(word: u32) -> vec2<f32> { return vec2<f32>(half(word & 0xffffu), half(word >> 16u)); }
";

impl ModelVariant {
    /// All variants, the fastest first. With 2-D workgroups, an Adreno 840 miscomputed (pytorch/executorch#22328).
    pub const ALL: [Self; 4] = [
        Self {
            name: "subgroups-64",
            tile: 64,
            subgroups: true,
            ..Self::PLAIN
        },
        Self {
            name: "plain-64",
            tile: 64,
            ..Self::PLAIN
        },
        Self::PLAIN,
        Self {
            name: "shifted-32",
            halves: SHIFTED_HALVES,
            dot4: SHIFTED,
            ..Self::PLAIN
        },
    ];

    /// Variants that are used only if they are [named](super::super::VARIANTS), the fastest first. They round inputs
    /// and weights of matmuls of many rows to f16.
    pub const ROUNDED: [Self; 4] = [
        Self {
            name: "matrices-16",
            tile: 64,
            subgroups: true,
            many: Many::Matrices(16),
            ..Self::PLAIN
        },
        Self {
            name: "matrices-8",
            tile: 32,
            subgroups: true,
            many: Many::Matrices(8),
            ..Self::PLAIN
        },
        Self {
            name: "f16-64",
            tile: 64,
            subgroups: true,
            many: Many::F16,
            ..Self::PLAIN
        },
        Self {
            name: "plain-f16-64",
            tile: 64,
            many: Many::F16,
            ..Self::PLAIN
        },
    ];

    const PLAIN: Self = Self {
        name: "plain-32",
        tile: 32,
        subgroups: false,
        halves: UNPACKED_HALVES,
        many: Many::F32,
        dot4: PACKED,
    };

    /// Returns the relative tolerance of a term (input times weight) of a matmul of many rows.
    ///
    /// In f16, input and weight are rounded by 2⁻¹¹ each. A weight below 2⁻¹⁴, or an input below 2⁻¹⁰, may become zero.
    pub(super) fn tolerance(self, input: f32, weight: f32) -> f32 {
        match self.many {
            Many::F32 => TOLERANCE,
            _ if input.abs() < 2f32.powi(-10) || weight.abs() < 2f32.powi(-14) => 1.0,
            _ => 2f32.powi(-10) + TOLERANCE,
        }
    }

    /// Returns whether matmuls use cooperative matrices, an experimental feature of drivers and of `wgpu`.
    pub(in super::super) fn has_matrices(self) -> bool {
        matches!(self.many, Many::Matrices(_))
    }

    /// Returns the feature that the GPU lacks for this variant, or `None`.
    pub(super) fn missing(self, context: &Context) -> Option<String> {
        let has = |feature| context.device.features().contains(feature);
        if self.subgroups && !has(wgpu::Features::SUBGROUP) {
            return Some("operations of subgroups".to_owned());
        }
        if self.many != Many::F32 && !has(wgpu::Features::SHADER_F16) {
            return Some("numbers in f16".to_owned());
        }
        match self.many {
            Many::Matrices(side) if !context.matrices.contains(&side) => Some(format!(
                "matrices of {side} × {side} numbers in f16 with sums in f32"
            )),
            _ => None,
        }
    }

    /// Returns the rows and columns of a tile.
    pub(super) fn tile(self) -> usize {
        self.tile as usize
    }
}

/// Storage format of a weight. Except for W8A8, weights are multiplied with f32 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WeightFormat {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    /// INT8, packed for the CPU's kernels, with INT8 activations.
    W8a8,
}

/// Index of the two input quads of a unit of eight adjacent weights.
const NEIGHBOURS: &str = "fn first_quad(at: u32) -> u32 { return 2u * at; }
fn second_quad(at: u32) -> u32 { return 2u * at + 1u; }
";
/// Index of the two input quads of an INT4 unit. Four units make a group.
const GROUPED: &str = "fn first_quad(at: u32) -> u32 { return at / 4u * 8u + at % 4u; }
fn second_quad(at: u32) -> u32 { return at / 4u * 8u + 4u + at % 4u; }
";
/// Scaling for formats without scales.
const UNSCALED: &str = "fn scaled(sum: f32, column: u32) -> f32 { return sum; }\n";

impl WeightFormat {
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
        Self::W8a8,
    ];

    pub fn of(matrix: Matrix) -> Self {
        match matrix {
            // Quantized blocks are widened during upload.
            Matrix::F32(_) | Matrix::Blocks(_) => Self::F32,
            Matrix::F16(_) => Self::F16,
            Matrix::Bf16(_) => Self::Bf16,
            Matrix::Int8 { .. } => Self::Int8,
            Matrix::Int4 { .. } => Self::Int4,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "INT8",
            Self::Int4 => "INT4",
            Self::W8a8 => "INT8, activations in INT8",
        }
    }

    /// Returns the number of weights in a unit. The input width of a layer is a multiple of it.
    pub fn unit(self) -> usize {
        if self == Self::W8a8 { 4 } else { UNIT }
    }

    /// Returns the number of columns that a workgroup computes for few rows.
    pub fn rows_columns(self) -> usize {
        if self == Self::W8a8 {
            Int8Weight::COLUMNS
        } else {
            4
        }
    }

    /// Returns the WGSL source that reads this format in a float matmul.
    fn source(self) -> [&'static str; 3] {
        match self {
            Self::W8a8 => unreachable!("its products have shaders of their own"),
            Self::F32 => [
                "alias Word = vec4<f32>;
fn unit(column: u32, at: u32) -> Unit {
    let index = 2u * (column * product.units + at);
    return Unit(weight[index], weight[index + 1u]);
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::F16 => [
                "alias Word = vec4<u32>;
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    return Unit(
        vec4<f32>(halves(words.x), halves(words.y)), vec4<f32>(halves(words.z), halves(words.w))
    );
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::Bf16 => [
                "alias Word = vec4<u32>;
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    let low = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Unit(vec4<f32>(low.x, high.x, low.y, high.y), vec4<f32>(low.z, high.z, low.w, high.w));
}
",
                NEIGHBOURS,
                UNSCALED,
            ],
            Self::Int8 => [
                "alias Word = vec2<u32>;
fn numbers(word: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word << 24u, word << 16u, word << 8u, word)) >> vec4<u32>(24u));
}
fn unit(column: u32, at: u32) -> Unit {
    let words = weight[column * product.units + at];
    return Unit(numbers(words.x), numbers(words.y));
}
",
                NEIGHBOURS,
                "fn scaled(sum: f32, column: u32) -> f32 { return sum * bitcast<f32>(scales[column]); }\n",
            ],
            Self::Int4 => [
                "alias Word = u32;
fn unit(column: u32, at: u32) -> Unit {
    let bytes = vec4<u32>(weight[column * product.units + at]) >> vec4<u32>(0u, 8u, 16u, 24u);
    let group = (column * product.units + at) / 4u;
    let scale = halves(scales[group / 2u])[group % 2u];
    return Unit(
        (vec4<f32>(bytes & vec4<u32>(15u)) - 8.0) * scale, (vec4<f32>((bytes >> vec4<u32>(4u)) & vec4<u32>(15u)) - 8.0) * scale
    );
}
",
                GROUPED,
                UNSCALED,
            ],
        }
    }
}

/// Selects a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// Matmul of few rows; holds the number of rows per workgroup.
    Rows(WeightFormat, u32),
    /// Matmul of many rows.
    Tile(WeightFormat),
    /// Quantization of rows to INT8.
    Quantize,
    Norm,
    /// Holds the head dimension.
    Rope(u32),
    /// Holds the head dimension and the number of queries per workgroup.
    Attention(u32, u32),
    /// Holds the head dimension.
    Combine(u32),
    Activate,
}

impl Kernel {
    /// Returns the number of buffers that the kernel reads, and the number that it writes.
    fn buffers(self) -> (u32, u32) {
        match self {
            Self::Rows(..) | Self::Tile(_) => (4, 1),
            Self::Quantize => (2, 2),
            Self::Norm => (3, 1),
            Self::Rope(_) => (3, 3),
            Self::Attention(..) => (3, 2),
            Self::Combine(_) | Self::Activate => (1, 1),
        }
    }

    /// Returns the maximum queries of an attention tile, and the keys loaded at a time; 16 KiB of memory suffice.
    pub fn attention_tile(head_dim: usize) -> (usize, usize) {
        if head_dim <= 128 { (16, 16) } else { (8, 8) }
    }

    pub(super) fn source(self, variant: ModelVariant) -> String {
        let float = |format: WeightFormat, constants: String, rest: &[&str]| {
            let shader = include_str!("../shaders/model/float.wgsl");
            let parts = [
                &[CALL, &constants, PRODUCT, variant.halves][..],
                &format.source(),
                &[shader],
                rest,
            ];
            parts.concat().concat()
        };
        let w8a8 = |constants: String, rest: &[&str]| {
            let shader = include_str!("../shaders/model/w8a8.wgsl");
            [
                &[CALL, &constants, variant.dot4, "\n", PRODUCT, shader][..],
                rest,
            ]
            .concat()
            .concat()
        };
        let heads = |dim: u32| format!("const DIM = {dim}u; const PAGE = {PAGE}u;\n");
        let tile = variant.tile;
        match self {
            Self::Rows(format, rows) => {
                let constants = format!("const ROWS = {rows}u;\n");
                if format == WeightFormat::W8a8 {
                    return w8a8(
                        constants,
                        &[include_str!("../shaders/model/w8a8_rows.wgsl")],
                    );
                }
                let sum = if variant.subgroups {
                    include_str!("../shaders/model/sum_subgroups.wgsl")
                } else {
                    include_str!("../shaders/model/sum_plain.wgsl")
                };
                float(
                    format,
                    constants,
                    &[include_str!("../shaders/model/rows.wgsl"), sum],
                )
            }
            Self::Tile(WeightFormat::W8a8) => {
                let constants = format!(
                    "{}const DEPTH = {DEPTH}u;\n",
                    of_tile(tile, (tile / 4).pow(2))
                );
                w8a8(
                    constants,
                    &[include_str!("../shaders/model/w8a8_tile.wgsl"), MULTIPLY],
                )
            }
            Self::Tile(format) => variant
                .many
                .source(tile, |constants, rest| float(format, constants, rest)),
            Self::Quantize => [CALL, include_str!("../shaders/model/quantize.wgsl")].concat(),
            Self::Norm => [CALL, include_str!("../shaders/model/norm.wgsl")].concat(),
            Self::Rope(dim) => [
                CALL,
                &heads(dim),
                include_str!("../shaders/model/rope.wgsl"),
            ]
            .concat(),
            Self::Attention(dim, queries) => {
                let (_, keys) = Self::attention_tile(dim as usize);
                let constants = format!("const QUERIES = {queries}u; const KEYS = {keys}u;\n");
                let shader = include_str!("../shaders/model/attention.wgsl");
                [CALL, &heads(dim), &constants, FUNCTIONS, shader].concat()
            }
            Self::Combine(dim) => [
                CALL,
                &heads(dim),
                FUNCTIONS,
                include_str!("../shaders/model/combine.wgsl"),
            ]
            .concat(),
            Self::Activate => [
                CALL,
                FUNCTIONS,
                include_str!("../shaders/model/activate.wgsl"),
            ]
            .concat(),
        }
    }
}

impl fmt::Display for Kernel {
    /// Writes the name of the step that the kernel computes.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Rows(format, 1) => write!(f, "product of one row, weights in {}", format.name()),
            Self::Rows(format, _) => write!(f, "product of few rows, weights in {}", format.name()),
            Self::Tile(format) => write!(f, "product of many rows, weights in {}", format.name()),
            Self::Quantize => f.write_str("quantization to INT8"),
            Self::Norm => f.write_str("norm"),
            Self::Rope(dim) => write!(f, "RoPE of heads of {dim}"),
            Self::Attention(dim, queries) => {
                write!(f, "attention of heads of {dim}, tiles of {queries} queries")
            }
            Self::Combine(dim) => write!(f, "parts of attention of heads of {dim}"),
            Self::Activate => f.write_str("activation"),
        }
    }
}

const CALL: &str = include_str!("../shaders/model/call.wgsl");
const PRODUCT: &str = include_str!("../shaders/model/product.wgsl");

/// The compiled pipelines of a model and their bind group layouts.
#[derive(Debug)]
pub(super) struct Pipelines {
    pub variant: ModelVariant,
    compiled: HashMap<Kernel, wgpu::ComputePipeline>,
    layouts: HashMap<(u32, u32), wgpu::BindGroupLayout>,
    /// Shader code to replace and its replacement: a bug that a test plants and expects the self-test to find.
    #[cfg(test)]
    pub planted: Option<[&'static str; 2]>,
}

impl Pipelines {
    pub fn new(variant: ModelVariant) -> Self {
        Self {
            variant,
            compiled: HashMap::new(),
            layouts: HashMap::new(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Compiles a kernel that is not compiled yet.
    ///
    /// # Errors
    /// If the GPU or its driver refuses it. The error is the reason.
    pub fn compile(
        &mut self,
        context: &Context,
        kernel: Kernel,
    ) -> std::result::Result<(), String> {
        if self.compiled.contains_key(&kernel) {
            return Ok(());
        }
        if let Some(what) = self.variant.missing(context) {
            return Err(format!("it has no {what}"));
        }
        let layout = self.layout(context, kernel);
        let name = kernel.to_string();
        let compile = || {
            let source = kernel.source(self.variant);
            #[cfg(test)]
            let source = self.planted.map_or(source.clone(), |[right, wrong]| {
                source.replace(right, wrong)
            });
            let source = wgpu::ShaderSource::Wgsl(source.into());
            let module = context
                .device
                .create_shader_module(wgpu::ShaderModuleDescriptor {
                    label: Some(&name),
                    source,
                });
            let layout = context
                .device
                .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                    label: Some(&name),
                    bind_group_layouts: &[Some(&layout)],
                    ..Default::default()
                });
            // The shaders write all of a workgroup's memory before they read it.
            let compilation_options = wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            };
            context
                .device
                .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(&name),
                    layout: Some(&layout),
                    module: &module,
                    entry_point: Some("main"),
                    compilation_options,
                    cache: context.pipelines.as_ref().map(|kept| &kept.cache),
                })
        };
        let compiled = context.scoped(wgpu::ErrorFilter::Validation, || {
            context.scoped(wgpu::ErrorFilter::Internal, compile)
        });
        let pipeline = compiled
            .flatten()
            .map_err(|reason| format!("{name}: {reason}"))?;
        self.compiled.insert(kernel, pipeline);
        Ok(())
    }

    /// Returns a pipeline and compiles it if necessary.
    ///
    /// # Errors
    /// If the GPU or its driver refuses it.
    pub fn get(&mut self, context: &Context, kernel: Kernel) -> Result<&wgpu::ComputePipeline> {
        self.compile(context, kernel)
            .map_err(|reason| Error::GpuModel {
                gpu: context.name.clone(),
                reason,
            })?;
        Ok(&self.compiled[&kernel])
    }

    /// Returns a bind group of the uniforms of the call, the uniforms of the dispatch at `offset`, and whole buffers.
    pub fn group(
        &mut self,
        context: &Context,
        kernel: Kernel,
        call: &wgpu::Buffer,
        (uniforms, offset, size): (&wgpu::Buffer, u64, u64),
        buffers: &[&wgpu::Buffer],
    ) -> wgpu::BindGroup {
        let whole = |buffer| wgpu::BufferBinding {
            buffer,
            offset: 0,
            size: None,
        };
        let size = std::num::NonZeroU64::new(size.next_multiple_of(16));
        let uniforms = wgpu::BufferBinding {
            buffer: uniforms,
            offset,
            size,
        };
        let bindings = [whole(call), uniforms]
            .into_iter()
            .chain(buffers.iter().map(|buffer| whole(buffer)));
        self.group_at(context, kernel, bindings)
    }

    /// Returns a bind group of `bindings`, which may start at an offset in their buffers.
    pub fn group_at<'a>(
        &mut self,
        context: &Context,
        kernel: Kernel,
        bindings: impl IntoIterator<Item = wgpu::BufferBinding<'a>>,
    ) -> wgpu::BindGroup {
        let layout = self.layout(context, kernel);
        let resources = bindings.into_iter().map(wgpu::BindingResource::Buffer);
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        context
            .device
            .create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &layout,
                entries: &entries,
            })
    }

    fn layout(&mut self, context: &Context, kernel: Kernel) -> wgpu::BindGroupLayout {
        let (reads, writes) = kernel.buffers();
        let layout = self.layouts.entry((reads, writes)).or_insert_with(|| {
            let of = |binding: u32| match binding {
                0 | 1 => wgpu::BufferBindingType::Uniform,
                _ => wgpu::BufferBindingType::Storage {
                    read_only: binding < 2 + reads,
                },
            };
            let entry = |binding| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: of(binding),
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            let entries: Vec<_> = (0..2 + reads + writes).map(entry).collect();
            context
                .device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                    label: None,
                    entries: &entries,
                })
        });
        layout.clone()
    }
}
