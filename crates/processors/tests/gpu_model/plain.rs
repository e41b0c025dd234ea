//! The plain reference: tiny models with random weights that the CPU's kernels run in f32.

use half::{bf16, f16};
use triad_kernels::activation::{Activation, activate, activate_and_multiply, add};
use triad_kernels::attention::{PAGE, Precision, Shape, Slab, attention};
use triad_kernels::int4::{self, quantize_int4};
use triad_kernels::int8::quantize_weight_rows;
use triad_kernels::norm::{layer_norm, rms_norm, rms_norm_in_place};
use triad_kernels::rope::{Angles, Pairing, rope};
use triad_kernels::{Matrix, OutputMut, Phase, matmul};
use triad_model::description::{
    self, BlockDescription, Linear, ModelDescription, Norm, NormKind, RopePairing,
};
use triad_processors::model::{
    DeviceBlock, DeviceLinear, DeviceModel, DeviceNorm, DeviceWeight, Rotation,
};

use super::w8a8::PlainInt8;

/// Reproducible pseudorandom numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number from −1 to 1.
    pub fn float(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize, largest: f32) -> Vec<f32> {
        (0..count).map(|_| self.float() * largest).collect()
    }
}

/// The format of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    /// Layers read INT8; the output matrix has INT8 weights but float input.
    W8a8,
    /// Like `W8a8`, with INT4 weights for decode.
    W8a8Int4,
}

impl Format {
    /// Formats of layers that read float activations.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Int8, Self::Int4];
}

enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Int8(Vec<i8>, Vec<f32>),
    Int4(Vec<u8>, Vec<f16>),
}

impl Stored {
    fn view(&self) -> Matrix<'_> {
        match self {
            Self::F32(values) => Matrix::F32(values),
            Self::F16(values) => Matrix::F16(values),
            Self::Bf16(values) => Matrix::Bf16(values),
            Self::Int8(values, scales) => Matrix::Int8 { values, scales },
            Self::Int4(values, scales) => Matrix::Int4 { values, scales },
        }
    }
}

pub struct PlainLinear {
    /// The weights; for a layer with INT8 input, those for decode.
    stored: Stored,
    /// The same weights in f32.
    wide: Vec<f32>,
    int8: Option<PlainInt8>,
    /// Whether decode has its own weights.
    decodes_in_float: bool,
    bias: Option<Vec<f32>>,
    out_features: usize,
}

impl PlainLinear {
    /// Creates a linear layer of a block, or the output matrix.
    fn new(
        random: &mut Random,
        format: Format,
        linear: Option<Linear>,
        [out_features, in_features]: [usize; 2],
        bias: bool,
    ) -> Self {
        let count = out_features * in_features;
        let values = random.floats(count, (3.0 / in_features as f32).sqrt());
        let int8 = linear.filter(|_| matches!(format, Format::W8a8 | Format::W8a8Int4));
        let int8 = int8.map(|linear| PlainInt8::new(&values, linear, in_features));
        let decodes_in_float = int8.is_some() && format == Format::W8a8Int4;
        let stored = match format {
            Format::F32 => Stored::F32(values),
            Format::F16 => Stored::F16(values.into_iter().map(f16::from_f32).collect()),
            Format::Bf16 => Stored::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            Format::Int8 | Format::W8a8 => {
                let (mut numbers, mut scales) = (vec![0; count], vec![0.0; out_features]);
                quantize_weight_rows(&values, in_features, &mut scales, &mut numbers);
                Stored::Int8(numbers, scales)
            }
            Format::Int4 | Format::W8a8Int4 => {
                let (mut numbers, mut scales) =
                    (vec![0; count / 2], vec![f16::ZERO; count / int4::GROUP]);
                quantize_int4(&values, &mut numbers, &mut scales);
                Stored::Int4(numbers, scales)
            }
        };
        let bias = bias.then(|| random.floats(out_features, 0.5));
        let mut wide = vec![0.0; count];
        let rows = wide.chunks_exact_mut(in_features).enumerate();
        rows.for_each(|(row, wide)| stored.view().widen_row(row, wide));
        Self {
            stored,
            wide,
            int8,
            decodes_in_float,
            bias,
            out_features,
        }
    }

    fn in_features(&self) -> usize {
        self.wide.len() / self.out_features
    }

    fn view(&self) -> DeviceLinear<'_> {
        let (stored, bias) = (self.stored.view(), self.bias.as_deref());
        let decode_weight = self.decodes_in_float.then_some(stored);
        let weight = self.int8.as_ref().map(|int8| int8.view(self.in_features()));
        DeviceLinear {
            weight: weight.unwrap_or(DeviceWeight::Float(stored)),
            decode_weight,
            bias,
        }
    }

    fn multiply(&self, x: &[f32], phase: Phase) -> Vec<f32> {
        let in_features = self.in_features();
        let is_float = self.decodes_in_float && phase == Phase::Decode;
        if let Some(int8) = self.int8.as_ref().filter(|_| !is_float) {
            return int8.multiply(x, self.bias.as_deref(), in_features);
        }
        let mut out = vec![0.0; x.len() / in_features * self.out_features];
        let view = OutputMut::new(&mut out, self.out_features);
        matmul(
            x,
            Matrix::F32(&self.wide),
            self.bias.as_deref(),
            Phase::Prefill,
            view,
        );
        out
    }
}

pub struct PlainNorm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f32,
}

impl PlainNorm {
    fn new(random: &mut Random, norm: &Norm, features: usize) -> Self {
        let weight = (0..features).map(|_| 1.0 + 0.5 * random.float()).collect();
        let bias = (norm.kind == NormKind::Layer).then(|| random.floats(features, 0.5));
        Self {
            weight,
            bias,
            epsilon: norm.epsilon,
        }
    }

    fn view(&self) -> DeviceNorm<'_> {
        DeviceNorm {
            weight: &self.weight,
            bias: self.bias.as_deref(),
            epsilon: self.epsilon,
        }
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        match &self.bias {
            None => rms_norm(x, &self.weight, self.epsilon, &mut out),
            Some(bias) => layer_norm(x, &self.weight, bias, self.epsilon, &mut out),
        }
        out
    }
}

struct PlainBlock {
    attention_norm: PlainNorm,
    attention_post_norm: Option<PlainNorm>,
    feed_forward_norm: Option<PlainNorm>,
    feed_forward_post_norm: Option<PlainNorm>,
    head_norms: Option<[PlainNorm; 2]>,
    linears: Vec<(Linear, PlainLinear)>,
}

/// A model with random weights.
pub struct PlainModel {
    pub description: ModelDescription,
    frequencies: Vec<Vec<f32>>,
    rotation_of_block: Vec<usize>,
    blocks: Vec<PlainBlock>,
    output_norm: PlainNorm,
    output: PlainLinear,
}

/// Factor on cosines and sines.
const FACTOR: f32 = 1.1;

impl PlainModel {
    /// Creates a model whose layers have `formats`, in turns.
    pub fn new(description: ModelDescription, formats: &[Format], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let hidden = description.hidden;
        let mut formats = formats.iter().copied().cycle();
        let mut next = || formats.next().unwrap();
        let blocks = description.blocks.iter().map(|block| {
            let mut norm = |is_there: bool, features| {
                is_there.then(|| PlainNorm::new(&mut random, &block.norm, features))
            };
            let post = block.residual.has_post_norms();
            let attention_norm = norm(true, hidden).unwrap();
            let attention_post_norm = norm(post, hidden);
            let feed_forward_norm = norm(block.residual.has_feed_forward_norm(), hidden);
            let feed_forward_post_norm = norm(post, hidden);
            let head_dim = block.attention().unwrap().head_dim;
            let head_norms =
                block.attention().unwrap().qk_norm.map(|norm| {
                    [(); 2].map(|()| PlainNorm::new(&mut random, &norm.norm, head_dim))
                });
            let linears = block.linears(hidden).into_iter().map(|shape| {
                let sizes = [shape.out_features, shape.in_features];
                (
                    shape.linear,
                    PlainLinear::new(&mut random, next(), Some(shape.linear), sizes, shape.bias),
                )
            });
            let linears = linears.collect();
            PlainBlock {
                attention_norm,
                attention_post_norm,
                feed_forward_norm,
                feed_forward_post_norm,
                head_norms,
                linears,
            }
        });
        let blocks = blocks.collect();
        let output_norm = PlainNorm::new(&mut random, &description.output_norm, hidden);
        let output = PlainLinear::new(
            &mut random,
            next(),
            None,
            [description.vocab, hidden],
            description.output_bias,
        );
        let of_block = |block: &BlockDescription| -> Vec<f32> {
            let rope = &block.attention().unwrap().rope;
            (0..rope.dims / 2)
                .map(|pair| rope.base.powf(-2.0 * pair as f32 / rope.dims as f32))
                .collect()
        };
        let frequencies: Vec<_> = description.blocks.iter().map(of_block).collect();
        let rotation_of_block = (0..frequencies.len()).collect();
        Self {
            description,
            frequencies,
            rotation_of_block,
            blocks,
            output_norm,
            output,
        }
    }

    /// Returns the model in the form that a GPU takes.
    pub fn view(&self) -> DeviceModel<'_> {
        DeviceModel {
            description: &self.description,
            rotations: self
                .frequencies
                .iter()
                .map(|frequencies| Rotation {
                    frequencies,
                    factor: FACTOR,
                })
                .collect(),
            rotation_of_block: &self.rotation_of_block,
            blocks: self.blocks.iter().map(PlainBlock::view).collect(),
            output_norm: self.output_norm.view(),
            output: self.output.view(),
        }
    }

    /// Returns rows of embeddings.
    pub fn rows(&self, rows: usize, seed: u64) -> Vec<f32> {
        Random::new(seed).floats(rows * self.description.hidden, 1.0)
    }

    /// Runs all rows of one sequence at once, as a prompt.
    pub fn run(&self, x: &[f32]) -> PlainRun {
        self.run_in(x, Phase::Prefill)
    }

    /// Runs all rows of one sequence at once in the given phase.
    pub fn run_in(&self, x: &[f32], phase: Phase) -> PlainRun {
        let mut x = x.to_vec();
        let rows = x.len() / self.description.hidden;
        let mut caches = Vec::new();
        for (index, (block, described)) in
            self.blocks.iter().zip(&self.description.blocks).enumerate()
        {
            let normed = block.attention_norm.apply(&x);
            let mut attended = block.attention(
                described,
                &self.frequencies[index],
                (&normed, rows, phase),
                &mut caches,
            );
            if let Some(norm) = &block.attention_post_norm {
                attended = norm.apply(&attended);
            }
            add(&mut x, &attended);
            let normed = block
                .feed_forward_norm
                .as_ref()
                .map_or(normed, |norm| norm.apply(&x));
            let mut out = block.feed_forward(described, &normed, phase);
            if let Some(norm) = &block.feed_forward_post_norm {
                out = norm.apply(&out);
            }
            add(&mut x, &out);
        }
        let logits = self.output.multiply(&self.output_norm.apply(&x), phase);
        PlainRun {
            residual: x,
            logits,
            caches,
        }
    }
}

/// Result of a run.
pub struct PlainRun {
    /// `[rows, hidden]`.
    pub residual: Vec<f32>,
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// KV cache of each layer.
    pub caches: Vec<PlainCache>,
}

/// Keys and values of a layer, in pages.
pub struct PlainCache {
    keys: Vec<f16>,
    values: Vec<f16>,
    kv_heads: usize,
    head_dim: usize,
}

impl PlainCache {
    fn new(keys: &[f32], values: &[f32], kv_heads: usize, head_dim: usize) -> Self {
        let paged = |x: &[f32]| {
            let rows = x.len() / (kv_heads * head_dim);
            let mut paged = vec![f16::ZERO; rows.div_ceil(PAGE) * PAGE * kv_heads * head_dim];
            for (index, x) in x.chunks_exact(head_dim).enumerate() {
                let (row, head) = (index / kv_heads, index % kv_heads);
                let place = (row / PAGE * kv_heads + head) * PAGE + row % PAGE;
                let page = &mut paged[place * head_dim..][..head_dim];
                page.iter_mut()
                    .zip(x)
                    .for_each(|(to, from)| *to = f16::from_f32(*from));
            }
            paged
        };
        Self {
            keys: paged(keys),
            values: paged(values),
            kv_heads,
            head_dim,
        }
    }

    pub fn view(&self) -> Slab<'_> {
        let Self {
            keys,
            values,
            kv_heads,
            head_dim,
        } = self;
        Slab {
            keys: Matrix::F16(keys),
            values: Matrix::F16(values),
            kv_heads: *kv_heads,
            head_dim: *head_dim,
        }
    }

    /// Returns the keys, then the values, of a position `[kv_heads, head_dim]`.
    pub fn at(&self, position: usize) -> [Vec<f16>; 2] {
        [&self.keys, &self.values].map(|plane| {
            let heads = (0..self.kv_heads).flat_map(|head| {
                let place = (position / PAGE * self.kv_heads + head) * PAGE + position % PAGE;
                plane[place * self.head_dim..][..self.head_dim]
                    .iter()
                    .copied()
            });
            heads.collect()
        })
    }
}

impl PlainBlock {
    fn view(&self) -> DeviceBlock<'_> {
        let [query_norm, key_norm] =
            [0, 1].map(|index| self.head_norms.as_ref().map(|norms| norms[index].view()));
        DeviceBlock {
            attention_norm: Some(self.attention_norm.view()),
            attention_post_norm: self.attention_post_norm.as_ref().map(PlainNorm::view),
            feed_forward_norm: self.feed_forward_norm.as_ref().map(PlainNorm::view),
            feed_forward_post_norm: self.feed_forward_post_norm.as_ref().map(PlainNorm::view),
            query_norm,
            key_norm,
            linears: self
                .linears
                .iter()
                .map(|(linear, layer)| (*linear, layer.view()))
                .collect(),
        }
    }

    fn linear(&self, linear: Linear) -> &PlainLinear {
        &self
            .linears
            .iter()
            .find(|(other, _)| *other == linear)
            .unwrap()
            .1
    }

    fn attention(
        &self,
        described: &BlockDescription,
        frequencies: &[f32],
        (normed, rows, phase): (&[f32], usize, Phase),
        caches: &mut Vec<PlainCache>,
    ) -> Vec<f32> {
        let described = described.attention().unwrap();
        let [mut queries, mut keys, values] = [Linear::Query, Linear::Key, Linear::Value]
            .map(|linear| self.linear(linear).multiply(normed, phase));
        let mut angles = Angles::default();
        angles.fill(0..rows, frequencies, FACTOR);
        let pairing = match described.rope.pairing {
            RopePairing::Halves => Pairing::Halves,
            RopePairing::Adjacent => Pairing::Adjacent,
        };
        let (heads, kv_heads, head_dim) = (described.heads, described.kv_heads, described.head_dim);
        for (index, (x, heads)) in [(&mut queries, heads), (&mut keys, kv_heads)]
            .into_iter()
            .enumerate()
        {
            if let Some(norms) = &self.head_norms {
                rms_norm_in_place(x, &norms[index].weight, norms[index].epsilon);
            }
            rope(x, head_dim, heads, &angles, 0, pairing);
        }
        let shape = Shape {
            heads,
            kv_heads,
            head_dim,
            scale: described.scale,
            window: described.window,
            soft_cap: described.soft_cap,
            sinks: None,
            precision: Precision::Exact,
        };
        let cache = PlainCache::new(&keys, &values, kv_heads, head_dim);
        let mut attended = vec![0.0; queries.len()];
        attention(&queries, 0, &cache.view(), &shape, &mut attended);
        caches.push(cache);
        self.linear(Linear::AttentionOutput)
            .multiply(&attended, phase)
    }

    fn feed_forward(&self, described: &BlockDescription, normed: &[f32], phase: Phase) -> Vec<f32> {
        let activation = match described.feed_forward.activation {
            description::Activation::Silu => Activation::Silu,
            description::Activation::GeluTanh => Activation::GeluTanh,
            description::Activation::Gelu => Activation::Gelu,
            description::Activation::ReluSquared => Activation::ReluSquared,
        };
        let mut inner = self.linear(Linear::Up).multiply(normed, phase);
        if described.feed_forward.gated {
            let mut gate = self.linear(Linear::Gate).multiply(normed, phase);
            activate_and_multiply(&mut gate, &inner, activation);
            inner = gate;
        } else {
            activate(&mut inner, activation);
        }
        self.linear(Linear::Down).multiply(&inner, phase)
    }
}
