//! The steps of products: quantization, matmuls, and joining with what another processor computed.

use triad_kernels::Phase;
use triad_model::description::Linear;

use super::super::buffers::{Place, QUAD};
use super::super::outer::Outer;
use super::super::uniforms::{JoinUniforms, NONE, ProductUniforms, QuantizeUniforms};
use super::super::weight_format::WeightFormat;
use super::super::weights::{Layer, Slab, upload};
use super::{Builder, StepBuffer, Target, Work};
use crate::error::Result;
use crate::model::{DeviceLinear, Int8Input};

impl Builder<'_> {
    /// Multiplies one input by layers of a block, in part by another processor if it has a program for them.
    pub(super) fn block_product(
        &mut self,
        (index, names): (usize, &[Linear]),
        shape: [usize; 2],
        target: Target,
    ) -> Result<()> {
        let layers = self.model.blocks[index].layers(names);
        let is_it = |outer: &Outer| outer.is_of(index, names);
        match self.outers.iter().position(is_it) {
            Some(outer) => {
                let linears = names.iter().copied();
                let of_block =
                    |name: &Linear| !self.model.blocks[index].layers(&[*name]).is_empty();
                let named: Vec<_> = linears.filter(of_block).zip(layers).collect();
                self.outer_product(outer, &named, shape, target)
            }
            None => self.product(&layers, shape, target),
        }
    }

    /// Multiplies one input by layers whose outputs are concatenated: `[in_features, features of all]`.
    pub(super) fn product(
        &mut self,
        layers: &[DeviceLinear],
        shape: [usize; 2],
        target: Target,
    ) -> Result<()> {
        let bias_at = self.bias(layers, shape);
        let decoding = decode_weights(layers);
        self.phase = decoding.as_ref().map(|_| Phase::Prefill);
        let input = self.input(layers, shape, target);
        let slabs = self.upload(&weights(layers), shape)?;
        self.multiply(&slabs, (shape, bias_at), Target { input, ..target });
        if let Some(weights) = decoding {
            self.phase = Some(Phase::Decode);
            let slabs = self.upload(&weights, shape)?;
            self.multiply(&slabs, (shape, bias_at), target);
        }
        self.phase = None;
        Ok(())
    }

    /// Does the same for layers of which another processor computes parts in prompts. The steps with it are models of the
    /// dispatches of parts. If it is lost, and in decode, the GPU computes all of them.
    fn outer_product(
        &mut self,
        outer: usize,
        named: &[(Linear, DeviceLinear)],
        shape: [usize; 2],
        target: Target,
    ) -> Result<()> {
        let [in_features, stride] = shape;
        self.outers[outer].check(self.context, named, in_features)?;
        let layers: Vec<_> = named.iter().map(|(_, layer)| *layer).collect();
        let layers = &layers[..];
        let bias_at = self.bias(layers, shape);
        let decoding = decode_weights(layers);
        self.phase = decoding.as_ref().map(|_| Phase::Prefill);
        let input = self.input(layers, shape, target);
        let int8_target = Target { input, ..target };
        let slabs = self.upload(&weights(layers), shape)?;
        self.phase = Some(Phase::Prefill);
        self.outer = Some(true);
        let first = self.steps.len();
        for (slab, scales_at) in &slabs {
            let uniforms = JoinUniforms {
                units: (in_features / slab.format.unit()) as u32,
                columns: slab.columns as u32,
                first: slab.first as u32,
                stride: stride as u32,
                computed_from: 0,
                computed_columns: 0,
                computed_at: 0,
                adds: u32::from(target.adds),
                scales_at: *scales_at,
                unused: [0; 3],
            };
            let buffers = vec![
                StepBuffer::Of(Place::Computed),
                StepBuffer::Weights(slab.weight.clone()),
                StepBuffer::Of(Place::Outliers),
                StepBuffer::Of(Place::Parameters),
                StepBuffer::Of(target.output),
            ];
            let columns = slab.columns;
            self.push(Work::Join { columns }, &uniforms, buffers, false);
        }
        self.outers[outer].join_steps = first..self.steps.len();
        self.outer = Some(false);
        let first = self.steps.len();
        self.multiply(&slabs, (shape, bias_at), int8_target);
        self.outers[outer].product_steps = first..self.steps.len();
        self.outer = None;
        self.phase = Some(Phase::Decode);
        match decoding {
            Some(weights) => {
                let slabs = self.upload(&weights, shape)?;
                self.multiply(&slabs, (shape, bias_at), target);
            }
            None => self.multiply(&slabs, (shape, bias_at), int8_target),
        }
        self.phase = None;
        Ok(())
    }

    /// Appends the biases of layers to the parameters, if they have any, and returns their offset.
    fn bias(&mut self, layers: &[DeviceLinear], [in_features, stride]: [usize; 2]) -> Option<u32> {
        layers.iter().any(|layer| layer.bias.is_some()).then(|| {
            let mut bias = Vec::with_capacity(stride);
            for layer in layers {
                match layer.bias {
                    Some(values) => bias.extend_from_slice(values),
                    None => bias.resize(bias.len() + layer.out_features(in_features), 0.0),
                }
            }
            self.parameters.push(&bias)
        })
    }

    /// Returns the place of the input that layers read, which is quantized if they read INT8.
    fn input(&mut self, layers: &[DeviceLinear], shape: [usize; 2], target: Target) -> Place {
        // Layers that read the same input quantize it in the same way.
        match layers.first().and_then(|layer| layer.weight.input()) {
            Some(input) => self.quantize(target.input, shape[0], &input),
            None => target.input,
        }
    }

    /// Quantizes `input` and returns the place of the result.
    fn quantize(&mut self, input: Place, in_features: usize, how: &Int8Input) -> Place {
        let quads = in_features / QUAD;
        let uniforms = QuantizeUniforms {
            quads: quads as u32,
            smoothing_at: how.smoothing.map_or(NONE, |smoothing| {
                self.parameters.push(smoothing) / QUAD as u32
            }),
            scale: how.scale,
            inverse_scale: how.scale.recip(),
            has_shadow: u32::from(how.has_shadow),
            unused: [0; 3],
        };
        let buffers = [input, Place::Parameters, Place::Quantized, Place::Outliers]
            .map(StepBuffer::Of)
            .into();
        self.push(Work::Quantize { quads }, &uniforms, buffers, false);
        Place::Quantized
    }

    /// Uploads weights, which are all W8A8 or all not. Returns them with the offset of the scales of each in the
    /// parameters, which only W8A8 has.
    fn upload(&mut self, weights: &[Layer], shape: [usize; 2]) -> Result<Vec<(Slab, u32)>> {
        let scales = weights.iter().filter_map(|layer| match layer {
            Layer::W8a8(weight) => Some(weight.scales),
            Layer::Float(_) => None,
        });
        let scales: Vec<_> = scales.collect();
        let scales_at = self.parameters.push(&scales.concat());
        let slabs = upload(self.context, weights, shape[0])?;
        let with_scales = slabs.into_iter().map(|slab| {
            let scales_at = scales_at + slab.first as u32;
            (slab, scales_at)
        });
        Ok(with_scales.collect())
    }

    /// Multiplies by uploaded weights, and adds the bias at an offset in the parameters.
    fn multiply(
        &mut self,
        slabs: &[(Slab, u32)],
        (shape, bias_at): ([usize; 2], Option<u32>),
        target: Target,
    ) {
        let [in_features, stride] = shape;
        for (slab, scales_at) in slabs {
            let (format, first, columns) = (slab.format, slab.first, slab.columns);
            let uniforms = ProductUniforms {
                units: (in_features / format.unit()) as u32,
                columns: columns as u32,
                first: first as u32,
                stride: stride as u32,
                bias_at: bias_at.map_or(NONE, |at| at + first as u32),
                adds: u32::from(target.adds),
                of_outputs: u32::from(target.of_outputs),
                scales_at: *scales_at,
            };
            let buffers = vec![
                StepBuffer::Of(target.input),
                StepBuffer::Weights(slab.weight.clone()),
                match format {
                    WeightFormat::W8a8 => StepBuffer::Of(Place::Outliers),
                    _ => StepBuffer::Weights(slab.scales.clone()),
                },
                StepBuffer::Of(Place::Parameters),
                StepBuffer::Of(target.output),
            ];
            self.push(
                Work::Product { format, columns },
                &uniforms,
                buffers,
                target.of_outputs,
            );
        }
    }
}

/// Returns the weights of layers for prompts.
fn weights<'a>(layers: &[DeviceLinear<'a>]) -> Vec<Layer<'a>> {
    let weights = layers.iter().map(|layer| Layer::from(layer.weight));
    weights.collect()
}

/// Returns the weights of layers for decode, if they differ.
fn decode_weights<'a>(layers: &[DeviceLinear<'a>]) -> Option<Vec<Layer<'a>>> {
    let weights = layers.iter().map(|layer| layer.decode_weight);
    weights.map(|weight| weight.map(Layer::Float)).collect()
}
