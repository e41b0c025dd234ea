//! An INT8 subgraph on a GPU. A run is one submission, or several (`slices`).
//!
//! Matmul results leave the GPU as i32 sums, which are exact, and the CPU scales them like its own kernels do. So a
//! linear layer, or any part of one, has the same bits on every device. The GPU computes the part between the layers of
//! a feed-forward in f32.

use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use triad_kernels::OutputMut;
use triad_kernels::int8::{QuantizedRows, QuantizedView, scale_sums};

use super::between::{Between, FeedForwardUniforms};
use super::context::{Context, UNIFORM, WORD};
use super::kernels::Kernels;
use super::pace::Pace;
use super::scratch::{Buffers, Place, Scratch, Sizes};
use crate::device::{Program, ProgramShapes};
use crate::error::Result;
use crate::subgraph::{DeviceSubgraph, FeedForward, Layer};

/// Exclusive-or mask that makes the bytes of an input signed.
const FLIP: u32 = u32::from_ne_bytes([QuantizedRows::ZERO; 4]);
/// Invocations in a workgroup of `activate.wgsl`.
const ACTIVATE_THREADS: usize = 64;
/// Maximum number of workgroups in one dimension on every GPU.
const MAX_GROUPS: usize = 65535;

/// State that a GPU and all its programs share.
#[derive(Debug)]
pub(super) struct Shared {
    pub context: Arc<Context>,
    pub kernels: Kernels,
    pub scratch: Scratch,
    /// Cost estimates that limit the length of submissions; `None` for one submission per subgraph.
    pub pace: Option<Mutex<Pace<Kind>>>,
}

/// A prepared subgraph.
pub(super) struct GpuProgram {
    pub shared: Arc<Shared>,
    shapes: ProgramShapes,
    /// Matmuls of all layers, or of up, gate (if there is one) and down.
    pub products: Vec<Product>,
    between: Option<Between>,
    /// Uniforms of all dispatches, [`UNIFORM`] bytes apart, then those of a piece; and the rows that they are for.
    pub uniforms: (wgpu::Buffer, usize),
    /// Bind groups of all dispatches, and the generation of the buffers that they were made for.
    groups: (Option<u64>, Vec<wgpu::BindGroup>),
    /// Layers whose sums the CPU reads, with the scale of their input.
    outputs: Vec<(Arc<dyn Layer>, Option<f32>)>,
}

/// One dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dispatch {
    /// A matmul; holds its index.
    Product(usize),
    /// The part between the layers of a feed-forward.
    Activate,
}

/// Kind of work; each has its own cost per unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Multiply,
    Activate,
}

/// One matmul.
pub(super) struct Product {
    pub columns: usize,
    /// Words per row of its input.
    pub quads: usize,
    weight: wgpu::Buffer,
    /// Columns of the sums of preceding matmuls.
    pub columns_before: usize,
    /// Exclusive-or mask for its input.
    flip: u32,
}

/// Matches `Product` in `sums.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct ProductUniforms {
    pub rows: u32,
    pub quads: u32,
    pub columns: u32,
    pub first: u32,
    pub flip: u32,
}

impl Product {
    /// Returns the uniforms for `rows` rows.
    pub fn uniforms(&self, rows: usize) -> ProductUniforms {
        ProductUniforms {
            rows: rows as u32,
            quads: self.quads as u32,
            columns: self.columns as u32,
            first: (rows * self.columns_before) as u32,
            flip: self.flip,
        }
    }
}

impl GpuProgram {
    pub fn new(shared: &Arc<Shared>, subgraph: &DeviceSubgraph, rows: usize) -> Result<Self> {
        let shapes = ProgramShapes::new(subgraph, rows)?;
        let context = &shared.context;
        let mut products: Vec<Product> = Vec::new();
        let mut add = |layer: &dyn Layer, flip: u32| -> Result<()> {
            let weight = layer.weight();
            let columns_before = products.iter().map(|product| product.columns).sum();
            let (columns, quads) = (weight.out_features, weight.in_features.div_ceil(WORD));
            let weight = context.uploaded("weights", &[bytemuck::cast_slice(weight.packed)])?;
            products.push(Product {
                columns,
                quads,
                weight,
                columns_before,
                flip,
            });
            Ok(())
        };
        let (between, outputs) = match subgraph {
            DeviceSubgraph::Linear(linear) => {
                linear
                    .layers
                    .iter()
                    .try_for_each(|layer| add(&**layer, FLIP))?;
                (
                    None,
                    linear
                        .layers
                        .iter()
                        .map(|layer| (Arc::clone(layer), None))
                        .collect(),
                )
            }
            DeviceSubgraph::FeedForward(feed_forward) => {
                let FeedForward {
                    up,
                    gate,
                    down,
                    inner_scale,
                    ..
                } = feed_forward;
                add(&**up, FLIP)?;
                gate.iter().try_for_each(|gate| add(&**gate, FLIP))?;
                add(&**down, 0)?;
                let between = Between::new(context, feed_forward)?;
                (Some(between), vec![(Arc::clone(down), Some(*inner_scale))])
            }
        };
        let dispatches = products.len() + usize::from(between.is_some());
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniforms = (
            context.buffer("uniforms", UNIFORM * (dispatches + 1) as u64, usage)?,
            0,
        );
        let groups = (None, Vec::new());
        let program = Self {
            shared: Arc::clone(shared),
            shapes,
            products,
            between,
            uniforms,
            groups,
            outputs,
        };
        shared.scratch.reserve(program.sizes(rows))?;
        Ok(program)
    }

    fn sizes(&self, rows: usize) -> Sizes {
        let bytes = |words: usize| (rows * words * WORD) as u64;
        let columns = self.products.iter().map(|product| product.columns).sum();
        let (width, quads) = self
            .between
            .as_ref()
            .map_or((0, 0), |it| (it.width, it.uniforms.quads as usize));
        Sizes::default()
            .with(Place::Input, bytes(self.products[0].quads))
            .with(Place::Sums, bytes(columns))
            .with(Place::Inner, bytes(width))
            .with(Place::Quantized, bytes(quads))
            .with(Place::Staging, bytes(self.columns_read()))
    }

    /// Returns the number of columns whose sums stay on the GPU, and of the following ones, which the CPU reads.
    fn columns_of_outputs(&self) -> (usize, usize) {
        let last = self.products.last().expect("there is a product");
        let end = last.columns_before + last.columns;
        let start = if self.between.is_some() {
            last.columns_before
        } else {
            0
        };
        (start, end - start)
    }

    /// Returns the words per row that the CPU reads.
    fn columns_read(&self) -> usize {
        let (_, columns) = self.columns_of_outputs();
        columns
            + self
                .between
                .as_ref()
                .filter(|between| between.returns_inner)
                .map_or(0, |between| between.width)
    }

    /// Writes the uniforms of all dispatches, unless they already are for `rows` rows.
    fn fill_uniforms(&mut self, rows: usize) {
        let (buffer, filled) = &mut self.uniforms;
        if *filled == rows {
            return;
        }
        let queue = &self.shared.context.queue;
        for (index, product) in self.products.iter().enumerate() {
            let uniforms = product.uniforms(rows);
            queue.write_buffer(
                buffer,
                UNIFORM * index as u64,
                bytemuck::bytes_of(&uniforms),
            );
        }
        if let Some(between) = &self.between {
            let uniforms = FeedForwardUniforms {
                rows: rows as u32,
                ..between.uniforms
            };
            let offset = UNIFORM * self.products.len() as u64;
            queue.write_buffer(buffer, offset, bytemuck::bytes_of(&uniforms));
        }
        *filled = rows;
    }

    /// Returns the dispatches in the order of execution.
    pub fn dispatches(&self) -> impl Iterator<Item = Dispatch> {
        let last = self.products.len() - 1;
        let between = self.between.iter().map(|_| Dispatch::Activate);
        (0..last)
            .map(Dispatch::Product)
            .chain(between)
            .chain([Dispatch::Product(last)])
    }

    /// Returns the inner width of the feed-forward, or 0.
    pub fn width(&self) -> usize {
        self.between.as_ref().map_or(0, |between| between.width)
    }

    /// Creates the bind groups of all matmuls, followed by that of the activation, for `buffers`.
    fn bind(&mut self, buffers: &Buffers) {
        if self.groups.0 == Some(buffers.generation) {
            return;
        }
        let products =
            (0..self.products.len()).map(|index| self.group_of_product(index, index, 0, buffers));
        let mut groups: Vec<_> = products.collect();
        if let Some(between) = &self.between {
            let resources = [
                self.uniform(self.products.len(), size_of::<FeedForwardUniforms>()),
                buffers.get(Place::Sums).as_entire_binding(),
                between.parameters.as_entire_binding(),
                buffers.get(Place::Inner).as_entire_binding(),
                buffers.get(Place::Quantized).as_entire_binding(),
            ];
            groups.push(self.group(&self.shared.kernels.activate, resources));
        }
        self.groups = (Some(buffers.generation), groups);
    }

    /// Returns the bind group of a matmul with uniforms at index `uniforms` and input from byte `offset` on.
    pub fn group_of_product(
        &self,
        index: usize,
        uniforms: usize,
        offset: u64,
        buffers: &Buffers,
    ) -> wgpu::BindGroup {
        let is_down = self.between.is_some() && index + 1 == self.products.len();
        let buffer = buffers.get(if is_down {
            Place::Quantized
        } else {
            Place::Input
        });
        let resources = [
            self.uniform(uniforms, size_of::<ProductUniforms>()),
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: None,
            }),
            self.products[index].weight.as_entire_binding(),
            buffers.get(Place::Sums).as_entire_binding(),
        ];
        self.group(&self.shared.kernels.multiply, resources)
    }

    fn uniform(&self, index: usize, size: usize) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.uniforms.0,
            offset: UNIFORM * index as u64,
            size: std::num::NonZeroU64::new(size.next_multiple_of(16) as u64),
        })
    }

    fn group<const COUNT: usize>(
        &self,
        pipeline: &wgpu::ComputePipeline,
        resources: [wgpu::BindingResource; COUNT],
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let layout = &pipeline.get_bind_group_layout(0);
        let descriptor = wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        };
        self.shared.context.device.create_bind_group(&descriptor)
    }

    /// Encodes `dispatches` on `rows` rows.
    pub fn encode(&self, dispatches: &[Dispatch], rows: usize) -> wgpu::CommandEncoder {
        let group = |dispatch: &Dispatch| match dispatch {
            Dispatch::Product(index) => &self.groups.1[*index],
            Dispatch::Activate => &self.groups.1[self.products.len()],
        };
        let bound: Vec<_> = dispatches
            .iter()
            .map(|dispatch| (*dispatch, group(dispatch)))
            .collect();
        self.encode_with(&bound, rows)
    }

    /// Encodes dispatches with their bind groups.
    pub fn encode_with(
        &self,
        dispatches: &[(Dispatch, &wgpu::BindGroup)],
        rows: usize,
    ) -> wgpu::CommandEncoder {
        let Shared {
            context, kernels, ..
        } = &*self.shared;
        let tile = kernels.variant.tile() as usize;
        let mut encoder = context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for (dispatch, group) in dispatches {
                let (pipeline, x, y) = match dispatch {
                    Dispatch::Product(index) => (
                        &kernels.multiply,
                        self.products[*index].columns.div_ceil(tile),
                        rows.div_ceil(tile),
                    ),
                    Dispatch::Activate => {
                        let quads = self
                            .between
                            .as_ref()
                            .map_or(0, |between| between.uniforms.quads as usize);
                        (
                            &kernels.activate,
                            quads.div_ceil(ACTIVATE_THREADS),
                            rows.min(MAX_GROUPS),
                        )
                    }
                };
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, *group, &[]);
                pass.dispatch_workgroups(x as u32, y as u32, 1);
            }
        }
        encoder
    }

    /// Encodes the copies of the outputs that the CPU reads.
    fn copy_outputs(&self, encoder: &mut wgpu::CommandEncoder, rows: usize, buffers: &Buffers) {
        let bytes = |words: usize| (rows * words * WORD) as u64;
        let staging = buffers.get(Place::Staging);
        let (first, columns) = self.columns_of_outputs();
        encoder.copy_buffer_to_buffer(
            buffers.get(Place::Sums),
            bytes(first),
            staging,
            0,
            bytes(columns),
        );
        if let Some(between) = self
            .between
            .as_ref()
            .filter(|between| between.returns_inner)
        {
            let inner = buffers.get(Place::Inner);
            encoder.copy_buffer_to_buffer(inner, 0, staging, bytes(columns), bytes(between.width));
        }
    }
}

impl Program for GpuProgram {
    fn run(&mut self, input: QuantizedView, outputs: &mut [OutputMut]) -> Result<()> {
        self.shapes.check(input, outputs)?;
        let shared = Arc::clone(&self.shared);
        shared.context.check()?;
        let rows = input.rows();
        let buffers = shared.scratch.lock();
        self.fill_uniforms(rows);
        self.bind(&buffers);
        shared.context.queue.write_buffer(
            buffers.get(Place::Input),
            0,
            &input.bytes()[..rows * input.stride()],
        );
        let mut encoder = if shared.pace.is_some() {
            self.run_in_slices(rows, &buffers)?;
            self.encode(&[], rows)
        } else {
            self.encode(&self.dispatches().collect::<Vec<_>>(), rows)
        };
        self.copy_outputs(&mut encoder, rows, &buffers);
        let bytes = (rows * self.columns_read() * WORD) as u64;
        shared
            .context
            .run(encoder, buffers.get(Place::Staging), bytes, |bytes| {
                let mut words: &[i32] = bytemuck::cast_slice(bytes);
                let (outputs, inner) = outputs.split_at_mut(self.outputs.len());
                for ((layer, inner_scale), out) in self.outputs.iter().zip(outputs) {
                    let sums = words
                        .split_off(..rows * out.columns())
                        .expect("as many sums as were copied");
                    let scales = |row: usize| match inner_scale {
                        Some(scale) if !input.scales()[row].is_nan() => *scale,
                        _ => input.scales()[row],
                    };
                    scale_sums(sums, scales, layer.weight(), layer.bias(), out.reborrow());
                }
                for inner in inner {
                    inner.copy_from_rows(bytemuck::cast_slice(words), inner.columns());
                    for (row, scale) in input
                        .scales()
                        .iter()
                        .enumerate()
                        .filter(|(_, scale)| scale.is_nan())
                    {
                        inner.row_mut(row).fill(*scale);
                    }
                }
            })
    }
}
