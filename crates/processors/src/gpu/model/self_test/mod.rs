//! Self-test of a GPU: runs every kernel that a model uses on small cases, and compares the results with the CPU's
//! kernels.
//!
//! `products` compares float matmuls with sums in f64. The other modules compare with the CPU: `w8a8` quantization and
//! INT8 matmuls, `rows` norms and activations, `heads` RoPE and its writes to the pages, and `attention` attention over
//! pages. The shapes are not multiples of any tile. There are several pages, in another order than in memory.
//! Everything that must not be read is NaN.

mod attention;
mod heads;
mod products;
mod rows;
#[cfg(test)]
mod tests;
mod w8a8;

use bytemuck::{NoUninit, Pod, bytes_of, cast_slice};

use super::super::context::Context;
use super::super::kernels::VariantState;
use super::call::Call;
use super::kernels::Kernel;
use super::pipelines::Pipelines;
use super::steps::Work;
use super::variant::ModelVariant;
use super::weight_format::WeightFormat;
use crate::error::{Error, Result};

/// Returns the pipelines of the first of `variants` whose `kernels` all pass, and the result of each variant.
///
/// # Errors
/// If no variant passes, or the GPU fails.
pub(super) fn choose(
    context: &Context,
    variants: &[ModelVariant],
    kernels: &[Kernel],
) -> Result<(Pipelines, Vec<(ModelVariant, VariantState)>)> {
    let (mut used, mut states) = (None, Vec::new());
    for variant in variants {
        let state = match used {
            Some(_) => VariantState::Untried,
            None => {
                let mut pipelines = Pipelines::new(*variant);
                match check(context, &mut pipelines, kernels)? {
                    Ok(()) => {
                        used = Some(pipelines);
                        VariantState::Used
                    }
                    Err(reason) => VariantState::Refused(reason),
                }
            }
        };
        states.push((*variant, state));
    }
    let refused = states.iter().filter_map(|(variant, state)| match state {
        VariantState::Refused(reason) => Some(format!("{}: {reason}", variant.name)),
        _ => None,
    });
    let reasons = || refused.collect::<Vec<_>>().join("; ");
    let pipelines = used.ok_or_else(|| Error::GpuMiscomputes {
        gpu: context.name.clone(),
        reasons: reasons(),
    })?;
    Ok((pipelines, states))
}

/// Rows of a matmul of many rows: not a multiple of any tile, and more than the largest tile.
const MANY_ROWS: usize = 67;

/// Result of a self-test: the inner error describes a wrong result, the outer error a failed GPU.
type Checked = Result<std::result::Result<(), String>>;

/// Tests all kernels. Names the wrong kernel and its error, if any.
fn check(context: &Context, pipelines: &mut Pipelines, kernels: &[Kernel]) -> Checked {
    for kernel in kernels {
        if let Err(reason) = pipelines.compile(context, *kernel) {
            return Ok(Err(reason));
        }
        let mut trial = Trial {
            context,
            pipelines,
            kernel: *kernel,
        };
        let checked = match *kernel {
            Kernel::Rows(WeightFormat::W8a8, _) | Kernel::Tile(WeightFormat::W8a8) => {
                w8a8::check(&mut trial)
            }
            Kernel::Quantize => w8a8::check_quantize(&mut trial),
            Kernel::Join => w8a8::check_join(&mut trial),
            Kernel::Rows(format, _) | Kernel::Tile(format) => products::check(&mut trial, format),
            Kernel::Norm => rows::check_norm(&mut trial),
            Kernel::Rope(head_dim) => heads::check(&mut trial, head_dim as usize),
            Kernel::Attention(head_dim, queries) => {
                attention::check(&mut trial, head_dim as usize, queries as usize)
            }
            Kernel::Combine(head_dim) => attention::check_combine(&mut trial, head_dim as usize),
            Kernel::Activate => rows::check_activation(&mut trial),
        };
        if let Err(reason) = checked? {
            return Ok(Err(format!("{kernel}: {reason}")));
        }
    }
    Ok(Ok(()))
}

/// Runs one kernel on small cases.
struct Trial<'a> {
    context: &'a Context,
    pipelines: &'a mut Pipelines,
    kernel: Kernel,
}

impl Trial<'_> {
    /// Returns the number of rows that a matmul kernel is tested with, and its workgroups for those rows and `columns`:
    /// more than one tile.
    fn product(&self, columns: usize) -> (usize, [usize; 3]) {
        let rows = match self.kernel {
            Kernel::Rows(_, 1) => 1,
            Kernel::Rows(_, together) => together as usize + 1,
            _ => MANY_ROWS,
        };
        (
            rows,
            Work::groups_of_product(self.kernel, rows, columns, self.pipelines.variant.tile()),
        )
    }

    /// Returns a buffer that holds `values`.
    fn buffer<T: NoUninit>(&self, values: &[T]) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let buffer = self
            .context
            .buffer("a small case", size_of_val(values) as u64, usage)?;
        self.context
            .queue
            .write_buffer(&buffer, 0, cast_slice(values));
        Ok(buffer)
    }

    /// Runs the kernel in `groups` workgroups. Returns the contents of the last `outputs` of `buffers`.
    fn run<T: Pod>(
        &mut self,
        call: &Call,
        uniforms: &T,
        buffers: &[&wgpu::Buffer],
        outputs: usize,
        groups: [usize; 3],
    ) -> Result<Vec<Vec<f32>>> {
        let Self {
            context,
            pipelines,
            kernel,
        } = self;
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniform = |bytes: &[u8]| -> Result<_> {
            let buffer = context.buffer("uniforms", bytes.len() as u64, usage)?;
            context.queue.write_buffer(&buffer, 0, bytes);
            Ok(buffer)
        };
        let (call, size) = (uniform(bytes_of(call))?, size_of::<T>() as u64);
        let uniforms = uniform(bytes_of(uniforms))?;
        let group = pipelines.group(context, *kernel, &call, (&uniforms, 0, size), buffers);
        let outputs = &buffers[buffers.len() - outputs..];
        let bytes = outputs.iter().map(|buffer| buffer.size()).sum();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = context.buffer("outputs of a small case", bytes, usage)?;
        let mut encoder = context
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(pipelines.get(context, *kernel)?);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = groups.map(|count| count as u32);
            pass.dispatch_workgroups(x, y, z);
        }
        let mut at = 0;
        for output in outputs {
            encoder.copy_buffer_to_buffer(output, 0, &staging, at, output.size());
            at += output.size();
        }
        let mut found = Vec::new();
        context.run(encoder, &staging, bytes, |bytes| {
            let mut rest: &[f32] = cast_slice(bytes);
            for output in outputs {
                let (values, left) = rest.split_at(output.size() as usize / size_of::<f32>());
                found.push(values.to_vec());
                rest = left;
            }
        })?;
        Ok(found)
    }
}

/// Compares `found` with `expected`. Each number has its own tolerance. The error names the `case`.
fn near(
    case: &str,
    found: &[f32],
    expected: &[f32],
    tolerance: impl Fn(usize) -> f32,
) -> std::result::Result<(), String> {
    debug_assert!(
        found.len() >= expected.len(),
        "{case}: {} of {} numbers",
        found.len(),
        expected.len()
    );
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        if difference.is_nan() || difference > tolerance(index) {
            return Err(format!(
                "{case}: number {index} is {found}, expected {expected}"
            ));
        }
    }
    Ok(())
}

/// Returns reproducible pseudorandom numbers from −1 to 1.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Returns from the function if a check found an error.
macro_rules! ensure {
    ($checked:expr) => {
        if let Err(reason) = $checked {
            return Ok(Err(reason));
        }
    };
}
use ensure;
