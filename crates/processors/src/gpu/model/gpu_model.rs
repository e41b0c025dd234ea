//! A model in the memory of a GPU. The other modules add what it does.

use std::sync::Arc;

use triad_kernels::int8::QuantizedRows;
use triad_model::description::ModelDescription;

use super::super::context::Context;
use super::super::kernels::VariantState;
use super::super::pace::Pace;
use super::buffers::Buffers;
use super::kernels::Kernel;
use super::outers::Outers;
use super::pages::{GpuSequence, Pages};
use super::pipelines::Pipelines;
use super::steps::Step;
use super::variant::ModelVariant;

/// A model that is loaded on a GPU.
#[derive(Debug)]
pub struct GpuModel {
    pub(super) context: Arc<Context>,
    pub(super) description: ModelDescription,
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) variants: Vec<(ModelVariant, VariantState)>,
    pub(super) pipelines: Pipelines,
    pub(super) steps: Vec<Step>,
    /// Uniforms of the call, and uniforms of all steps.
    pub(super) uniforms: (wgpu::Buffer, wgpu::Buffer),
    pub(super) buffers: Buffers,
    pub(super) pages: Arc<Pages>,
    /// Bind groups of all steps, and the generations of buffers and pages for which they were made.
    pub(super) groups: (Option<(u64, u64)>, Vec<wgpu::BindGroup>),
    /// Frequencies and attention factor of each rotation.
    pub(super) rotations: Vec<(Vec<f32>, f32)>,
    /// Rows of an attention tile.
    pub(super) tile_rows: usize,
    /// Cost estimates that limit the length of submissions; `None` for one submission per chunk.
    pub(super) pace: Option<Pace<Kernel>>,
    /// Uniforms for a piece of a step: those of the call, and those of the step
    /// [`UNIFORM`](super::super::context::UNIFORM) bytes later.
    pub(super) piece: wgpu::Buffer,
    /// Products that another processor computes in part.
    pub(super) outers: Outers,
    pub(super) travelling: Travelling,
    /// Bytes that the CPU has written for chunks, and read of their results.
    pub(super) written: u64,
    pub(super) read: u64,
    /// Multiplications and additions of the GPU so far.
    pub(super) operations: f64,
}

/// Rows of one sequence in a chunk, appended to the positions that the sequence holds.
#[derive(Debug)]
pub struct GpuSegment<'a> {
    /// The sequence.
    pub sequence: &'a mut GpuSequence,
    /// Number of rows.
    pub rows: usize,
}

/// Buffers that go to the other processor and come back.
#[derive(Debug, Default)]
pub(super) struct Travelling {
    pub(super) rows: QuantizedRows,
    pub(super) computed: Vec<f32>,
    pub(super) numbers: Vec<i8>,
    pub(super) scales: Vec<f32>,
}
