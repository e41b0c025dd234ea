//! The compute pipelines of models, compiled on first use.

use std::collections::HashMap;

use super::super::context::Context;
use super::kernels::Kernel;
use super::variant::ModelVariant;
use crate::error::{Error, Result};

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
