//! The compute pipelines of models, compiled when they are first needed; products in variants of which each GPU gets the
//! first that computes rightly on it.

use std::collections::HashMap;
use std::fmt;

use triad_kernels::Matrix;
use triad_kernels::attention::PAGE;
use triad_kernels::int8::Int8Weight;

use super::super::context::Context;
use super::super::kernels::{DEPTH, FUNCTIONS, MULTIPLY, PACKED, SHIFTED};
use crate::error::{Error, Result};

/// Features that a unit of float weights has: what layers read is a multiple of it.
pub(super) const UNIT: usize = 8;
/// Invocations of a workgroup of `activate.wgsl`.
pub(super) const ACTIVATE_THREADS: usize = 64;

/// One way to multiply: float activations by weights of any format with sums in f32, INT8 with sums in i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelVariant {
    /// Its name.
    pub name: &'static str,
    /// Rows and columns of the outputs that a workgroup computes, of many rows.
    tile: u32,
    /// Whether sums of few rows are those of subgroups.
    subgroups: bool,
    /// The function that widens two numbers in f16.
    halves: &'static str,
    /// How products of many rows of float activations are multiplied.
    many: Many,
    /// The function that adds the products of four pairs in INT8.
    dot4: &'static str,
}

/// How products of many rows are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Many {
    /// By each invocation, with numbers in f32 in the workgroup's memory.
    F32,
    /// The same with numbers in f16.
    F16,
    /// By subgroups, as matrices of so many rows and columns in f16.
    Matrices(u32),
}

impl Many {
    /// The shader of a tile of so many rows and columns. In f16, rows are divided by 16: activations up to 2²⁰ have a number
    /// there, and what a row loses to the smallest numbers of f16 is 2⁻²¹.
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

/// Of rows in f16.
const SHRINK: &str = "const SHRINK = 0.0625;\n";

/// Invocations of a workgroup of `cooperative.wgsl`: four subgroups of 32.
const THREADS_OF_MATRICES: u32 = 128;

/// The constants of a tile of so many rows and columns, and so many invocations.
fn of_tile(tile: u32, threads: u32) -> String {
    format!(
        "const TILE = {tile}u; const SIDE = {}u; const THREADS = {threads}u;\n",
        tile / 4
    )
}

/// Of a term that is multiplied and summed in f32.
const TOLERANCE: f32 = 1e-5;

/// In one instruction; some GPUs make zeros of numbers below 2⁻¹⁴.
const UNPACKED_HALVES: &str =
    "fn halves(word: u32) -> vec2<f32> { return unpack2x16float(word); }\n";
/// With operations on integers, exact everywhere.
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
    /// All, the fastest first. Workgroups have one dimension: an Adreno 840 miscomputed others (pytorch/executorch#22328).
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

    /// Those that are used only where they are [named](super::super::VARIANTS): products of many rows with inputs and
    /// weights rounded to f16, the fastest first.
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

    /// What a term of a product of many rows, input times weight, may be off by, relative to itself.
    ///
    /// In f16, input and weight are rounded by 2⁻¹¹ each; a weight below 2⁻¹⁴, or an input below 2⁻¹⁰, may become zero.
    pub(super) fn tolerance(self, input: f32, weight: f32) -> f32 {
        match self.many {
            Many::F32 => TOLERANCE,
            _ if input.abs() < 2f32.powi(-10) || weight.abs() < 2f32.powi(-14) => 1.0,
            _ => 2f32.powi(-10) + TOLERANCE,
        }
    }

    /// Whether products are of matrices of a subgroup, which GPUs have as an experiment of their drivers and of `wgpu`.
    pub(in super::super) fn has_matrices(self) -> bool {
        matches!(self.many, Many::Matrices(_))
    }

    /// What a GPU lacks for it, if anything.
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

    /// Rows and columns of a tile.
    pub(super) fn tile(self) -> usize {
        self.tile as usize
    }
}

/// The format of a weight, which is multiplied with activations in f32 but in W8A8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WeightFormat {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    /// In INT8, packed as the CPU's kernels read it, with activations in INT8.
    W8a8,
}

/// Where the inputs of a unit of eight neighbours are.
const NEIGHBOURS: &str = "fn first_quad(at: u32) -> u32 { return 2u * at; }
fn second_quad(at: u32) -> u32 { return 2u * at + 1u; }
";
/// The same in INT4, four of which units make a group.
const GROUPED: &str = "fn first_quad(at: u32) -> u32 { return at / 4u * 8u + at % 4u; }
fn second_quad(at: u32) -> u32 { return at / 4u * 8u + 4u + at % 4u; }
";
/// Weights are what they are.
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
            // Quantized blocks are widened when they are uploaded.
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

    /// Weights of a unit: what layers read is a multiple of it.
    pub fn unit(self) -> usize {
        if self == Self::W8a8 { 4 } else { UNIT }
    }

    /// Columns that a workgroup computes of few rows.
    pub fn rows_columns(self) -> usize {
        if self == Self::W8a8 {
            Int8Weight::COLUMNS
        } else {
            4
        }
    }

    /// How a shader of products of float activations reads it.
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

/// Which pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// Products of so many rows a workgroup.
    Rows(WeightFormat, u32),
    /// Products of many rows.
    Tile(WeightFormat),
    /// Rows in INT8.
    Quantize,
    Norm,
    /// Of heads of this width.
    Rope(u32),
    /// Of heads of this width, and so many queries a workgroup.
    Attention(u32, u32),
    /// Of heads of this width.
    Combine(u32),
    Activate,
}

impl Kernel {
    /// How many buffers it reads, and how many it writes.
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

    /// Queries of a tile of attention, at most, and keys that it has in its memory: so that 16 KiB are enough.
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
    /// The step that it computes.
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

/// Pipelines of a model, and the layouts of what is bound to them.
#[derive(Debug)]
pub(super) struct Pipelines {
    pub variant: ModelVariant,
    compiled: HashMap<Kernel, wgpu::ComputePipeline>,
    layouts: HashMap<(u32, u32), wgpu::BindGroupLayout>,
    /// Code that is replaced, and by what: an error that a test expects to be found.
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

    /// Compiles a kernel, unless it is compiled.
    ///
    /// # Errors
    /// The reason, if the GPU or its driver refuses it.
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
            // All of a workgroup's memory is written before it is read.
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

    /// A pipeline, compiled now if it was not before.
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

    /// A bind group: the uniforms of the call, those of the dispatch at `offset`, and buffers.
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

    /// The same where buffers are bound from other places on.
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
