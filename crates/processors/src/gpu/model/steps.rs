//! The dispatches of a forward pass. Each layer has norms, matmuls, RoPE, attention and activation, and quantization
//! before INT8 matmuls. After the last layer come the final norm and the output matrix.

mod products;

use bytemuck::{Pod, bytes_of};
use triad_kernels::Phase;
use triad_model::description::{Activation, Linear, RopePairing};

use super::super::context::Context;
use super::buffers::{Place, QUAD};
use super::outer::Outer;
use super::uniforms::{
    ActivateUniforms, AttentionUniforms, CombineUniforms, NONE, NormUniforms, RopeUniforms,
};
use super::weight_format::WeightFormat;
use crate::error::Result;
use crate::model::{DeviceBlock, DeviceModel, DeviceNorm};

/// One dispatch, without the parts that differ between calls.
#[derive(Debug)]
pub(super) struct Step {
    pub work: Work,
    pub uniforms: Vec<u8>,
    /// Buffers that are bound after the uniforms.
    pub buffers: Vec<StepBuffer>,
    /// Whether the step computes only the rows whose logits are requested.
    pub of_outputs: bool,
    /// Phase that the step belongs to; `None` if it runs in both.
    pub phase: Option<Phase>,
    /// Whether the step is a model of dispatches that run while another processor multiplies (`true`), or runs only if none
    /// does; `None` if it always runs.
    pub outer: Option<bool>,
}

/// The operation of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Norm,
    Quantize {
        quads: usize,
    },
    Join {
        columns: usize,
    },
    Product {
        format: WeightFormat,
        columns: usize,
    },
    Rope {
        head_dim: usize,
        heads: usize,
    },
    Attention {
        head_dim: usize,
        heads: usize,
        kv_heads: usize,
    },
    Combine {
        head_dim: usize,
        heads: usize,
    },
    Activate {
        quads: usize,
    },
}

/// A buffer that a step reads or writes.
#[derive(Clone, Debug)]
pub(super) enum StepBuffer {
    Of(Place),
    /// Keys and values of a layer.
    Cache(usize),
    /// Weights or scales.
    Weights(wgpu::Buffer),
}

/// Parameters of norms and layers, concatenated. Each starts at a multiple of four.
#[derive(Default)]
struct Parameters(Vec<f32>);

impl Parameters {
    /// Appends `values` and returns their offset.
    fn push(&mut self, values: &[f32]) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(values);
        self.0.resize(self.0.len().next_multiple_of(QUAD), 0.0);
        at
    }
}

/// Uploads the weights of `model` to the GPU. Returns its steps, and the parameters of its norms and layers. `outers`,
/// products that another processor computes, get their steps.
///
/// # Errors
/// If there is no memory for the weights.
pub(super) fn steps(
    context: &Context,
    model: &DeviceModel,
    rows: usize,
    outers: &mut [Outer],
) -> Result<(Vec<Step>, Vec<f32>)> {
    let mut builder = Builder {
        context,
        model,
        rows,
        steps: Vec::new(),
        parameters: Parameters::default(),
        phase: None,
        outer: None,
        outers,
    };
    (0..model.blocks.len()).try_for_each(|block| builder.block(block))?;
    let hidden = model.description.hidden;
    builder.norm(
        &model.output_norm,
        Target {
            input: Place::Stream,
            output: Place::Normed,
            adds: false,
            of_outputs: true,
        },
    );
    let target = Target {
        input: Place::Normed,
        output: Place::Logits,
        adds: false,
        of_outputs: true,
    };
    builder.product(&[model.output], [hidden, model.description.vocab], target)?;
    Ok((builder.steps, builder.parameters.0))
}

struct Builder<'a> {
    context: &'a Context,
    model: &'a DeviceModel<'a>,
    /// Maximum number of rows.
    rows: usize,
    steps: Vec<Step>,
    parameters: Parameters,
    /// Phase of the steps that are pushed, and whether they run with another processor.
    phase: Option<Phase>,
    outer: Option<bool>,
    outers: &'a mut [Outer],
}

/// Input and output of a norm or a matmul.
#[derive(Clone, Copy)]
struct Target {
    input: Place,
    output: Place,
    /// Whether the result is added to the output.
    adds: bool,
    of_outputs: bool,
}

impl Target {
    fn new(input: Place, output: Place) -> Self {
        Self {
            input,
            output,
            adds: false,
            of_outputs: false,
        }
    }
}

impl Builder<'_> {
    fn block(&mut self, index: usize) -> Result<()> {
        use Place::{Attended, GateUp, Heads, Inner, Normed, Stream};
        let model = self.model;
        let (block, described) = (&model.blocks[index], &model.description.blocks[index]);
        let hidden = model.description.hidden;
        let (attention, feed_forward) = (model.attention(index), &described.feed_forward);
        let query = attention.heads * attention.head_dim;
        let width = feed_forward.width;

        let norm = block.attention_norm.as_ref().expect("a checked norm");
        self.norm(norm, Target::new(Stream, Normed));
        let names = [Linear::Query, Linear::Key, Linear::Value];
        let all = query + 2 * attention.kv_heads * attention.head_dim;
        self.block_product((index, &names), [hidden, all], Target::new(Normed, Heads))?;
        self.rope(index, block);
        self.attention(index);
        self.add(
            (index, Linear::AttentionOutput),
            [query, hidden],
            Attended,
            block.attention_post_norm.as_ref(),
        )?;

        if let Some(norm) = &block.feed_forward_norm {
            self.norm(norm, Target::new(Stream, Normed));
        }
        let names = [Linear::Gate, Linear::Up];
        let inner = block.layers(&names).len() * width;
        self.block_product(
            (index, &names),
            [hidden, inner],
            Target::new(Normed, GateUp),
        )?;
        let activation = match feed_forward.activation {
            Activation::Silu => 0u32,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
            Activation::ReluSquared => 3,
        };
        let (quads, gated) = ((width / QUAD) as u32, u32::from(feed_forward.gated));
        let uniforms = ActivateUniforms {
            quads,
            gated,
            activation,
            unused: 0,
        };
        let buffers = [GateUp, Inner].map(StepBuffer::Of).into();
        self.push(
            Work::Activate {
                quads: width / QUAD,
            },
            &uniforms,
            buffers,
            false,
        );
        self.add(
            (index, Linear::Down),
            [width, hidden],
            Inner,
            block.feed_forward_post_norm.as_ref(),
        )?;
        Ok(())
    }

    /// Adds the output of attention or the feed-forward to the residual stream, after its norm if it has one.
    fn add(
        &mut self,
        (index, layer): (usize, Linear),
        shape: [usize; 2],
        input: Place,
        norm: Option<&DeviceNorm>,
    ) -> Result<()> {
        let Some(norm) = norm else {
            return self.block_product(
                (index, &[layer]),
                shape,
                Target {
                    adds: true,
                    ..Target::new(input, Place::Stream)
                },
            );
        };
        let target = Target::new(input, Place::Projected);
        self.block_product((index, &[layer]), shape, target)?;
        self.norm(
            norm,
            Target {
                adds: true,
                ..Target::new(Place::Projected, Place::Stream)
            },
        );
        Ok(())
    }

    fn norm(&mut self, norm: &DeviceNorm, target: Target) {
        let Target {
            input,
            output,
            adds,
            of_outputs,
        } = target;
        let uniforms = NormUniforms {
            quads: (norm.weight.len() / QUAD) as u32,
            weight_at: self.parameters.push(norm.weight) / QUAD as u32,
            bias_at: norm
                .bias
                .map_or(NONE, |bias| self.parameters.push(bias) / QUAD as u32),
            epsilon: norm.epsilon,
            of_outputs: u32::from(of_outputs),
            adds: u32::from(adds),
            unused: [0; 2],
        };
        let buffers = [input, Place::Parameters, Place::Table, output]
            .map(StepBuffer::Of)
            .into();
        self.push(Work::Norm, &uniforms, buffers, of_outputs);
    }

    fn rope(&mut self, index: usize, block: &DeviceBlock) {
        let DeviceModel {
            rotations,
            rotation_of_block,
            ..
        } = self.model;
        let attention = self.model.attention(index);
        let (heads, kv_heads, head_dim) = (attention.heads, attention.kv_heads, attention.head_dim);
        let rotation = rotation_of_block[index];
        let angles_before: usize = rotations[..rotation]
            .iter()
            .map(|before| before.frequencies.len())
            .sum();
        let words = |before: usize| {
            let attention = self.model.attention(before);
            attention.kv_heads * attention.head_dim
        };
        let mut head_norm = |norm: &Option<DeviceNorm>| match norm {
            Some(norm) => (self.parameters.push(norm.weight), norm.epsilon),
            None => (NONE, 0.0),
        };
        let (query_norm_at, query_epsilon) = head_norm(&block.query_norm);
        let (key_norm_at, key_epsilon) = head_norm(&block.key_norm);
        let uniforms = RopeUniforms {
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            pairs: (attention.rope.dims / 2) as u32,
            adjacent: u32::from(attention.rope.pairing == RopePairing::Adjacent),
            angles_at: (self.rows * angles_before) as u32,
            query_norm_at,
            key_norm_at,
            query_epsilon,
            key_epsilon,
            words_before: (0..index).map(words).sum::<usize>() as u32,
            unused: [0; 2],
        };
        let mut buffers: Vec<_> = [Place::Angles, Place::Parameters, Place::Table, Place::Heads]
            .map(StepBuffer::Of)
            .into();
        buffers.extend([StepBuffer::Cache(index), StepBuffer::Of(Place::Returned)]);
        self.push(
            Work::Rope {
                head_dim,
                heads: heads + 2 * kv_heads,
            },
            &uniforms,
            buffers,
            false,
        );
    }

    fn attention(&mut self, index: usize) {
        let attention = self.model.attention(index);
        let (heads, kv_heads, head_dim) = (attention.heads, attention.kv_heads, attention.head_dim);
        let uniforms = AttentionUniforms {
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            window: attention
                .window
                .map_or(NONE, |window| u32::try_from(window).unwrap_or(NONE)),
            scale: attention.scale,
            soft_cap: attention.soft_cap.unwrap_or(0.0),
            unused: [0; 3],
        };
        let mut buffers = vec![StepBuffer::Of(Place::Heads), StepBuffer::Cache(index)];
        buffers.extend([Place::Table, Place::Attended, Place::Parts].map(StepBuffer::Of));
        self.push(
            Work::Attention {
                head_dim,
                heads,
                kv_heads,
            },
            &uniforms,
            buffers,
            false,
        );
        let buffers = [Place::Parts, Place::Attended].map(StepBuffer::Of).into();
        let uniforms = CombineUniforms {
            heads: heads as u32,
            unused: [0; 3],
        };
        self.push(Work::Combine { head_dim, heads }, &uniforms, buffers, false);
    }

    fn push<T: Pod>(
        &mut self,
        work: Work,
        uniforms: &T,
        buffers: Vec<StepBuffer>,
        of_outputs: bool,
    ) {
        let uniforms = bytes_of(uniforms).to_vec();
        self.steps.push(Step {
            work,
            uniforms,
            buffers,
            of_outputs,
            phase: self.phase,
            outer: self.outer,
        });
    }
}
