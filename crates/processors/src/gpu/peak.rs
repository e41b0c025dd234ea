//! Measures a GPU's peak arithmetic rate and memory bandwidth with shaders that do nothing else.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable, bytes_of};
use wgpu::BufferUsages as Usage;

use super::context::Context;
use crate::device::Peaks;
use crate::error::{Error, Result};

/// Invocations in a workgroup, as in `peak.wgsl`.
const THREADS: u64 = 256;
/// Multiplications and additions per invocation: eight sums of four numbers, 512 times.
const OPERATIONS: u64 = 2 * 8 * 4 * 512;
/// The same for INT8: as many sums, each of which adds four products at once.
const INT8_OPERATIONS: u64 = 4 * OPERATIONS;
/// Bytes that are read: more than caches hold.
const MEMORY: u64 = 256 << 20;
/// Workgroups that read: enough for any GPU.
const READERS: u32 = 2048;
const QUAD: u64 = 16;
/// Minimum duration of a measured submission. It makes the submission overhead negligible.
const LONG: Duration = Duration::from_millis(20);
/// Measured submissions; the fastest counts.
const ROUNDS: usize = 10;
/// Maximum number of workgroups in one dimension of a dispatch.
const WIDEST: u32 = 1024;

/// Matches `Work` in `peak.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Work {
    rounds: u32,
    quads: u32,
    invocations: u32,
    factor: f32,
}

/// Adds an f32 product to a sum. The shader compiler may fuse the operations.
pub(super) const ADDED: &str =
    "fn next(sum: vec4<f32>, factor: vec4<f32>) -> vec4<f32> { return sum * factor + factor; }\n";
/// Adds an f32 product to a sum with `fma`, which some compilers translate better.
const FUSED: &str = "fn next(sum: vec4<f32>, factor: vec4<f32>) -> vec4<f32> { return fma(sum, factor, factor); }\n";
/// Adds four INT8 products each to four i32 sums.
const PACKED: &str = "fn next(sum: vec4<f32>, factor: vec4<f32>) -> vec4<f32> {
    let words = bitcast<vec4<u32>>(sum);
    let other = bitcast<u32>(factor.x);
    return bitcast<vec4<f32>>(bitcast<vec4<i32>>(sum) + vec4<i32>(
        dot4I8Packed(words.x, other),
        dot4I8Packed(words.y, other),
        dot4I8Packed(words.z, other),
        dot4I8Packed(words.w, other),
    ));
}
";

/// Multiply-adds that keep a GPU busy for a chosen time.
#[derive(Debug)]
pub(super) struct MultiplyAdds {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
}

/// Measures the GPU of `context`. `processor` is its description.
///
/// # Errors
/// If the GPU or its driver refuses the shaders, has no memory for the buffer, or fails.
pub(super) fn measure(context: &Context, processor: String) -> Result<Peaks> {
    let rate = |next: &str, operations: u64| {
        let work = MultiplyAdds::new(context, next)?;
        Ok(fastest(|groups| work.seconds(context, groups))? * (THREADS * operations) as f64)
    };
    Ok(Peaks {
        processor,
        f32_operations_per_second: rate(ADDED, OPERATIONS)?.max(rate(FUSED, OPERATIONS)?),
        int8_operations_per_second: rate(PACKED, INT8_OPERATIONS)?,
        bytes_read_per_second: read(context)?,
    })
}

impl MultiplyAdds {
    /// Compiles a shader with this function `next`.
    ///
    /// # Errors
    /// If the GPU or its driver refuses the shader.
    pub fn new(context: &Context, next: &str) -> Result<Self> {
        let pipeline = compile(context, next, "multiply")?;
        let out = context.buffer("a measurement", THREADS * QUAD, Usage::STORAGE)?;
        let uniforms = uniforms(
            context,
            Work {
                factor: 0.999,
                ..Work::zeroed()
            },
        )?;
        let group = group(context, &pipeline, &[&uniforms, &out]);
        Ok(Self { pipeline, group })
    }

    /// Encodes `groups` workgroups of multiply-adds.
    pub fn encode(&self, context: &Context, groups: u32) -> wgpu::CommandEncoder {
        let groups = [groups.min(WIDEST), groups.div_ceil(WIDEST)];
        encode(context, &self.pipeline, &self.group, groups)
    }

    /// Runs `groups` workgroups and returns the seconds that they take.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn seconds(&self, context: &Context, groups: u32) -> Result<f64> {
        seconds(context, self.encode(context, groups))
    }
}

/// Returns the bytes per second of reading [`MEMORY`] bytes, or as much as a buffer can have.
fn read(context: &Context) -> Result<f64> {
    let invocations = READERS * THREADS as u32;
    let step = 4 * u64::from(invocations) * QUAD;
    let bytes = MEMORY.min(context.most_bytes()) / step * step;
    let data = context.buffer("a measurement", bytes, Usage::STORAGE)?;
    let out = context.buffer("a measurement", THREADS * QUAD, Usage::STORAGE)?;
    let work = Work {
        rounds: 1,
        quads: (bytes / QUAD) as u32,
        invocations,
        factor: 0.0,
    };
    let uniforms = uniforms(context, work)?;
    let fill = compile(context, ADDED, "fill")?;
    let filled = group(context, &fill, &[&uniforms, &data]);
    context.run_without_outputs(encode(context, &fill, &filled, [READERS, 1]))?;
    let read = compile(context, ADDED, "read_memory")?;
    let group = group(context, &read, &[&uniforms, &out, &data]);
    let rate = fastest(|rounds| {
        context
            .queue
            .write_buffer(&uniforms, 0, bytes_of(&Work { rounds, ..work }));
        seconds(context, encode(context, &read, &group, [READERS, 1]))
    })?;
    Ok(rate * bytes as f64)
}

/// Returns the maximum amount of work per second. The amount is doubled until a submission takes long enough; then the
/// fastest of some rounds counts.
fn fastest(mut seconds: impl FnMut(u32) -> Result<f64>) -> Result<f64> {
    let mut amount = 1u32;
    while seconds(amount)? < LONG.as_secs_f64() && amount < 1 << 20 {
        amount *= 2;
    }
    let times = (0..ROUNDS)
        .map(|_| seconds(amount))
        .collect::<Result<Vec<_>>>()?;
    Ok(f64::from(amount) / times.into_iter().fold(f64::INFINITY, f64::min))
}

fn seconds(context: &Context, encoder: wgpu::CommandEncoder) -> Result<f64> {
    let start = Instant::now();
    context.run_without_outputs(encoder)?;
    Ok(start.elapsed().as_secs_f64())
}

fn compile(context: &Context, next: &str, entry: &str) -> Result<wgpu::ComputePipeline> {
    let source = [next, include_str!("shaders/peak.wgsl")].concat();
    let compile = || {
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let module = context
            .device
            .create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some("peak"),
                source,
            });
        context
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: None,
                module: &module,
                entry_point: Some(entry),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            })
    };
    let compiled = context.scoped(wgpu::ErrorFilter::Validation, || {
        context.scoped(wgpu::ErrorFilter::Internal, compile)
    });
    compiled.flatten().map_err(|reason| Error::Run {
        processor: context.name.clone(),
        reason,
    })
}

fn uniforms(context: &Context, work: Work) -> Result<wgpu::Buffer> {
    let uniforms = context.buffer(
        "uniforms",
        size_of::<Work>() as u64,
        Usage::UNIFORM | Usage::COPY_DST,
    )?;
    context.queue.write_buffer(&uniforms, 0, bytes_of(&work));
    Ok(uniforms)
}

fn group(
    context: &Context,
    pipeline: &wgpu::ComputePipeline,
    buffers: &[&wgpu::Buffer],
) -> wgpu::BindGroup {
    let resources = (0..).zip(buffers);
    let entries: Vec<_> = resources
        .map(|(binding, buffer)| wgpu::BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        })
        .collect();
    let layout = &pipeline.get_bind_group_layout(0);
    context
        .device
        .create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
}

fn encode(
    context: &Context,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    groups: [u32; 2],
) -> wgpu::CommandEncoder {
    let mut encoder = context
        .device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], 1);
    }
    encoder
}
