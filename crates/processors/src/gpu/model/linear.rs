//! Linear layers of float activations on a GPU, next to other processors: f32 in, f32 out, weights in the CPU's formats.
//!
//! A program runs the matmul shaders of whole models. Before the first layer of a format, its kernels pass the self-test
//! (`self_test`). A run is one submission, or several if the length of submissions is limited.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytemuck::{Zeroable, bytes_of, cast_slice};
use triad_kernels::{OutputMut, Phase, lock};

use super::super::context::{Context, UNIFORM, WORD};
use super::super::pace::Pace;
use super::super::program::Shared;
use super::super::scratch::{Buffers, Place, Sizes};
use super::call::Call;
use super::dispatch::product_kernels;
use super::kernels::Kernel;
use super::pipelines::Pipelines;
use super::self_test;
use super::steps::Work;
use super::uniforms::{NONE, ProductUniforms};
use super::variant::ModelVariant;
use super::weight_format::{UNIT, WeightFormat};
use super::weights::{Layer, MAX_GROUPS, Slab, upload};
use crate::error::{Error, Result};
use crate::float_linear::{FloatLinear, FloatProgram, FloatShapes};

/// Rows of a piece are multiples of this, so that every GPU accepts the offsets of its buffers, and no tile is cut.
const PIECE_ROWS: usize = 64;

/// The tested kernels that all programs of float layers on a GPU share.
#[derive(Debug)]
pub(crate) struct FloatKernels {
    context: Arc<Context>,
    /// Variants to try, in this order.
    variants: Vec<ModelVariant>,
    tested: Mutex<HashMap<WeightFormat, Arc<Mutex<Pipelines>>>>,
    /// Cost estimates that limit the length of submissions; `None` for one submission per run.
    pace: Option<Mutex<Pace<Kernel>>>,
    /// Runs of all programs that the GPU has completed.
    runs: AtomicU64,
}

impl FloatKernels {
    pub fn new(context: &Arc<Context>, variants: &[ModelVariant]) -> Self {
        Self {
            context: Arc::clone(context),
            variants: variants.to_vec(),
            tested: Mutex::default(),
            pace: context.slice.map(|slice| Mutex::new(Pace::new(slice))),
            runs: AtomicU64::new(0),
        }
    }

    /// Returns the number of runs that the GPU has completed.
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Returns the pipelines of the first variant whose kernels for this format pass the self-test.
    ///
    /// # Errors
    /// If none does, or the GPU fails.
    fn pipelines(&self, format: WeightFormat) -> Result<Arc<Mutex<Pipelines>>> {
        let mut tested = lock(&self.tested);
        if let Some(pipelines) = tested.get(&format) {
            return Ok(Arc::clone(pipelines));
        }
        let (pipelines, _) =
            self_test::choose(&self.context, &self.variants, &product_kernels(format))?;
        self.context.keep_pipelines();
        let pipelines = Arc::new(Mutex::new(pipelines));
        tested.insert(format, Arc::clone(&pipelines));
        Ok(pipelines)
    }
}

/// Prepared layers.
pub(crate) struct GpuFloatProgram {
    shared: Arc<Shared>,
    kernels: Arc<FloatKernels>,
    shapes: FloatShapes,
    slabs: Vec<(Slab, Arc<Mutex<Pipelines>>)>,
    /// Biases of all layers, if any has one.
    parameters: wgpu::Buffer,
    /// Uniforms of the call, and those of each slab, [`UNIFORM`] bytes apart.
    uniforms: (wgpu::Buffer, wgpu::Buffer),
    /// Bind groups of all slabs, and the generation of the buffers for which they were made.
    groups: (Option<u64>, Vec<wgpu::BindGroup>),
}

impl GpuFloatProgram {
    /// Copies the layers to the GPU.
    ///
    /// # Errors
    /// If the layers contradict each other or have shapes that no shader supports, there is no memory for them, or no
    /// shader variant passes the self-test.
    pub fn new(
        shared: &Arc<Shared>,
        kernels: &Arc<FloatKernels>,
        linear: &FloatLinear,
        rows: usize,
    ) -> Result<Self> {
        let shapes = FloatShapes::new(linear, rows)?;
        let (context, in_features) = (&shared.context, linear.in_features);
        if !in_features.is_multiple_of(UNIT) {
            return Err(Error::Subgraph {
                part: "input features".to_owned(),
                found: in_features.to_string(),
                expected: format!("a multiple of {UNIT} on {}", context.name),
            });
        }
        let layers: Vec<_> = linear
            .layers
            .iter()
            .map(|layer| Layer::Float(layer.weight()))
            .collect();
        let columns: usize = shapes.outputs.iter().sum();
        let slabs = upload(context, &layers, in_features)?;
        let slabs = slabs.into_iter().map(|slab| {
            let pipelines = kernels.pipelines(slab.format)?;
            Ok((slab, pipelines))
        });
        let slabs = slabs.collect::<Result<Vec<_>>>()?;
        let mut bias = Vec::new();
        if linear.layers.iter().any(|layer| layer.bias().is_some()) {
            for layer in &linear.layers {
                let zeros = || vec![0.0; layer.out_features()];
                bias.extend(layer.bias().map_or_else(zeros, <[f32]>::to_vec));
            }
        }
        let parameters = context.filled("biases", &bias)?;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniforms = (
            context.buffer("uniforms", size_of::<Call>() as u64, usage)?,
            context.buffer("uniforms", UNIFORM * slabs.len() as u64, usage)?,
        );
        for (index, (slab, _)) in slabs.iter().enumerate() {
            let uniforms_of_slab = ProductUniforms {
                units: (in_features / slab.format.unit()) as u32,
                columns: slab.columns as u32,
                first: slab.first as u32,
                stride: columns as u32,
                bias_at: if bias.is_empty() {
                    NONE
                } else {
                    slab.first as u32
                },
                adds: 0,
                of_outputs: 0,
                scales_at: 0,
            };
            let at = UNIFORM * index as u64;
            context
                .queue
                .write_buffer(&uniforms.1, at, bytes_of(&uniforms_of_slab));
        }
        let bytes = |columns: usize| (rows * columns * WORD) as u64;
        let sizes = Sizes::default()
            .with(Place::Input, bytes(in_features))
            .with(Place::Sums, bytes(columns))
            .with(Place::Staging, bytes(columns));
        shared.scratch.reserve(sizes)?;
        context.flush()?;
        Ok(Self {
            shared: Arc::clone(shared),
            kernels: Arc::clone(kernels),
            shapes,
            slabs,
            parameters,
            uniforms,
            groups: (None, Vec::new()),
        })
    }

    /// Returns the columns of all outputs.
    fn columns(&self) -> usize {
        self.shapes.outputs.iter().sum()
    }

    /// Returns the kernel of a slab for `rows` rows, and its workgroups for `of_piece` of them.
    fn dispatch(&self, slab: usize, rows: usize, of_piece: usize) -> (Kernel, [usize; 3]) {
        let (slab, pipelines) = &self.slabs[slab];
        let (format, columns) = (slab.format, slab.columns);
        let tile = lock(pipelines).variant.tile();
        let (kernel, _) = Work::Product { format, columns }.dispatch(rows, 1, 1, tile);
        let groups = Work::groups_of_product(kernel, of_piece, columns, tile);
        (kernel, groups)
    }

    /// Returns the bind group of a slab on rows from `row` on.
    fn group(&self, index: usize, row: usize, buffers: &Buffers) -> wgpu::BindGroup {
        let (slab, pipelines) = &self.slabs[index];
        let whole = |buffer| wgpu::BufferBinding {
            buffer,
            offset: 0,
            size: None,
        };
        let from_row = |place: Place, columns: usize| wgpu::BufferBinding {
            buffer: buffers.get(place),
            offset: (row * columns * WORD) as u64,
            size: None,
        };
        let uniforms = wgpu::BufferBinding {
            buffer: &self.uniforms.1,
            offset: UNIFORM * index as u64,
            size: std::num::NonZeroU64::new(size_of::<ProductUniforms>() as u64),
        };
        let bindings = [
            whole(&self.uniforms.0),
            uniforms,
            from_row(Place::Input, self.shapes.in_features),
            whole(&slab.weight),
            whole(&slab.scales),
            whole(&self.parameters),
            from_row(Place::Sums, self.columns()),
        ];
        // The layout of all kernels of matmuls is the same.
        let [kernel, ..] = product_kernels(slab.format);
        lock(pipelines).group_at(&self.shared.context, kernel, bindings)
    }

    /// Makes the bind groups of all slabs for `buffers`.
    fn bind(&mut self, buffers: &Buffers) {
        if self.groups.0 != Some(buffers.generation) {
            let groups = (0..self.slabs.len()).map(|index| self.group(index, 0, buffers));
            self.groups = (Some(buffers.generation), groups.collect());
        }
    }

    /// Writes the uniforms of a call with `rows` rows.
    fn write_call(&self, rows: usize) {
        let call = Call {
            rows: rows as u32,
            ..Call::zeroed()
        };
        let queue = &self.shared.context.queue;
        queue.write_buffer(&self.uniforms.0, 0, bytes_of(&call));
    }

    /// Encodes slabs on `of_piece` of `rows` rows, each with its bind group.
    fn encode(
        &self,
        slabs: &[(usize, &wgpu::BindGroup)],
        rows: usize,
        of_piece: usize,
    ) -> Result<wgpu::CommandEncoder> {
        let context = &self.shared.context;
        let mut encoder = context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for (slab, group) in slabs {
            let (kernel, [x, y, z]) = self.dispatch(*slab, rows, of_piece);
            pass.set_pipeline(lock(&self.slabs[*slab].1).get(context, kernel)?);
            pass.set_bind_group(0, *group, &[]);
            pass.dispatch_workgroups(x as u32, y as u32, z as u32);
        }
        drop(pass);
        Ok(encoder)
    }

    /// Encodes all slabs on all rows.
    fn encode_all(&mut self, rows: usize, buffers: &Buffers) -> Result<wgpu::CommandEncoder> {
        self.bind(buffers);
        self.write_call(rows);
        let slabs: Vec<_> = self.groups.1.iter().enumerate().collect();
        self.encode(&slabs, rows, rows)
    }

    /// Runs all slabs in submissions of limited length, each on some rows.
    ///
    /// # Errors
    /// If the GPU fails.
    fn run_in_slices(
        &self,
        pace: &Mutex<Pace<Kernel>>,
        rows: usize,
        buffers: &Buffers,
    ) -> Result<()> {
        for index in 0..self.slabs.len() {
            let (kernel, _) = self.dispatch(index, rows, rows);
            let columns = self.slabs[index].0.columns;
            let of_row = 2.0 * (columns * self.shapes.in_features) as f64;
            let mut row = 0;
            while row < rows {
                let count = lock(pace).count(kernel, of_row, rows - row, PIECE_ROWS);
                let start = Instant::now();
                self.run_piece(index, row..row + count, rows, buffers)?;
                let done = [(kernel, of_row * count as f64)];
                lock(pace).learn(&done, start.elapsed().as_secs_f64());
                row += count;
            }
        }
        Ok(())
    }

    /// Runs a slab on some of `all` rows, by the kernel for all of them: the sums are the same.
    fn run_piece(
        &self,
        index: usize,
        rows: Range<usize>,
        all: usize,
        buffers: &Buffers,
    ) -> Result<()> {
        self.write_call(rows.len());
        let group = self.group(index, rows.start, buffers);
        let encoder = self.encode(&[(index, &group)], all, rows.len())?;
        self.shared.context.run_without_outputs(encoder)
    }
}

impl FloatProgram for GpuFloatProgram {
    fn run(&mut self, x: &[f32], _phase: Phase, outputs: &mut [OutputMut]) -> Result<()> {
        let rows = self.shapes.check(x, outputs)?;
        let (shared, kernels) = (Arc::clone(&self.shared), Arc::clone(&self.kernels));
        let context = &shared.context;
        context.check()?;
        if rows > MAX_GROUPS {
            let prepared = MAX_GROUPS;
            return Err(Error::Rows { rows, prepared });
        }
        let buffers = shared.scratch.lock();
        context
            .queue
            .write_buffer(buffers.get(Place::Input), 0, cast_slice(x));
        let mut encoder = match &kernels.pace {
            Some(pace) => {
                self.run_in_slices(pace, rows, &buffers)?;
                self.encode(&[], rows, rows)?
            }
            None => self.encode_all(rows, &buffers)?,
        };
        let columns = self.columns();
        let bytes = (rows * columns * WORD) as u64;
        let (sums, staging) = (buffers.get(Place::Sums), buffers.get(Place::Staging));
        encoder.copy_buffer_to_buffer(sums, 0, staging, 0, bytes);
        context.run(encoder, staging, bytes, |bytes| {
            let values: &[f32] = cast_slice(bytes);
            for (row, values) in values.chunks_exact(columns).enumerate() {
                let mut first = 0;
                for out in outputs.iter_mut() {
                    let features = out.columns();
                    out.row_mut(row)
                        .copy_from_slice(&values[first..first + features]);
                    first += features;
                }
            }
        })?;
        kernels.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
