//! Small models: those of `tests/golden/families`, and random ones with a context of several pages.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use triad_model::description::{
    Activation, AddedInputs, Attention, BlockDescription, DeltaNet, FeedForward, GateNorm,
    HeadSharing, KeyValues, Latent, Mamba2, Mixer, ModelDescription, Norm, NormKind, QkNorm,
    Residual, Rope, RopePairing, RopeScaling, ShortConv, TokenInputs,
};

use super::{quantize, quantize_int4};
use crate::load_options::LoadOptions;
use crate::model::Model;
use crate::quantization::DecodeWeights;
use crate::threads::Threads;

/// The families whose golden models tests run.
pub const FAMILIES: [&str; 9] = [
    "llama",
    "qwen2",
    "gemma3",
    "gemma4",
    "phi2",
    "phi3",
    "lfm2",
    "qwen3_5",
    "granitehybrid",
];

/// The vocabulary of [`description`].
pub const VOCAB: usize = 97;

/// The context of sessions of [`MODELS`]: slightly more than two pages.
pub const CONTEXT: usize = 600;

/// Models of [`description`] in float, in INT8, in INT8 with smaller weights for decode, and in W4A16. In the last one,
/// down has no W4A16 weights, since its rows are no whole groups.
pub static MODELS: LazyLock<[(&str, Arc<Model>); 4]> = LazyLock::new(|| in_formats(description()));

/// Models as [`MODELS`], whose mixers have states in some blocks; the output of attention has gates in one.
pub static STATES: LazyLock<[(&str, Arc<Model>); 4]> = LazyLock::new(|| in_formats(with_states()));

/// Models as [`MODELS`], with blocks that read keys and values of earlier ones, and blocks with latent vectors; with inputs
/// by token.
pub static SHARED: LazyLock<[(&str, Arc<Model>); 4]> = LazyLock::new(|| in_formats(with_shared()));

/// Models as [`MODELS`], with mixers without a feed-forward, and mixers that read one norm.
pub static PARTS: LazyLock<[(&str, Arc<Model>); 4]> = LazyLock::new(|| in_formats(with_parts()));

/// Returns all of [`MODELS`], of those whose mixers have states, of [`SHARED`], and of [`PARTS`], with what is special about
/// them.
pub fn all_models() -> impl Iterator<Item = (&'static str, &'static str, &'static Arc<Model>)> {
    let named = |mixers, models: &'static [(&str, Arc<Model>); 4]| {
        models
            .iter()
            .map(move |(name, model)| (mixers, *name, model))
    };
    named("attention", &MODELS)
        .chain(named("states", &STATES))
        .chain(named("shared keys and values", &SHARED))
        .chain(named("parts of blocks", &PARTS))
}

/// The number of [`all_models`].
pub const ALL_MODELS: usize = 16;

/// The number of those that lists of processors run: the first ones.
pub const ON_PROCESSORS: usize = 12;

fn in_formats(description: ModelDescription) -> [(&'static str, Arc<Model>); 4] {
    let float = Model::random(description, &one_thread(), 7).expect("a model");
    let float = Arc::new(float);
    let quantize = |weights| Arc::new(quantize(&float, &prompt(&float, 60), 0.5, weights));
    let (int8, int4) = (quantize(DecodeWeights::Int8), quantize(DecodeWeights::Int4));
    let w4a16 = Arc::new(quantize_int4(&float));
    [
        ("float", float),
        ("INT8", int8),
        ("INT4 in decode", int4),
        ("W4A16", w4a16),
    ]
}

fn one_thread() -> LoadOptions {
    LoadOptions {
        threads: Threads::Count(1),
        ..LoadOptions::default()
    }
}

/// Returns the golden model of a family, on one thread.
///
/// # Panics
/// If there is none.
pub fn float(family: &str) -> Arc<Model> {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    Arc::new(Model::load(&families.join(family), &one_thread()).expect("a golden model"))
}

/// Returns the golden model of a family in INT8 with half of its shadows.
pub fn int8(family: &str) -> Arc<Model> {
    pruned(family, 0.5)
}

/// Returns the golden model of a family in INT8 without the least important `rate` of its shadows.
pub fn pruned(family: &str, rate: f64) -> Arc<Model> {
    let model = float(family);
    let prompt = prompt(&model, 40);
    Arc::new(quantize(&model, &prompt, rate, DecodeWeights::Int8))
}

/// Returns an arbitrary prompt.
pub fn prompt(model: &Model, length: usize) -> Vec<u32> {
    let vocab = model.description().vocab;
    (0..length)
        .map(|index| ((index * index * 7 + index * 13) % vocab) as u32)
        .collect()
}

/// Returns arbitrary tokens of [`MODELS`], other ones for each seed.
pub fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count)
        .map(|index| ((index * index * 5 + index * 3 + seed * 29) % VOCAB) as u32)
        .collect()
}

/// Returns [`description`] with a convolution of three taps before its blocks, and one of five taps with biases, two
/// DeltaNets, a Mamba-2 and another convolution after them.
fn with_states() -> ModelDescription {
    let mut description = description();
    let conv = |taps, bias| BlockDescription {
        mixer: Mixer::ShortConv(ShortConv {
            channels: description.hidden,
            taps,
            bias,
        }),
        ..description.blocks[0].clone()
    };
    let net = |key_heads, sharing| BlockDescription {
        mixer: Mixer::DeltaNet(DeltaNet {
            key_heads,
            value_heads: 4,
            key_dim: 40,
            value_dim: 28,
            taps: 4,
            sharing,
            epsilon: 1e-5,
        }),
        ..description.blocks[0].clone()
    };
    let nets = [
        net(2, HeadSharing::Adjacent),
        net(2, HeadSharing::Remainder),
    ];
    let mamba = BlockDescription {
        mixer: Mixer::Mamba2(Mamba2 {
            heads: 4,
            head_dim: 12,
            groups: 2,
            state: 20,
            taps: 3,
            conv_bias: true,
            bias: true,
            norm: GateNorm::AfterGate,
            factors: None,
            epsilon: 1e-5,
        }),
        ..description.blocks[0].clone()
    };
    let (first, last) = (conv(3, false), [conv(5, true), conv(2, false)]);
    if let Some(attention) = description.blocks[1].attention_mut() {
        attention.output_gate = true;
    }
    description.blocks.insert(0, first);
    description.blocks.extend(nets);
    description.blocks.push(mamba);
    description.blocks.extend(last);
    description
}

/// Returns [`description`] with a Mamba-2 that reads the norm of the attention before it, and has factors, then a Mamba-2
/// without a feed-forward and without a norm, then a feed-forward without gates.
fn with_parts() -> ModelDescription {
    let mut description = description();
    let mamba = |norm, factors| {
        Mixer::Mamba2(Mamba2 {
            heads: 4,
            head_dim: 12,
            groups: 2,
            state: 20,
            taps: 3,
            conv_bias: true,
            bias: false,
            norm,
            factors,
            epsilon: 1e-5,
        })
    };
    let [first, last] = &mut description.blocks[..] else {
        unreachable!("two blocks")
    };
    let factors = Some([0.5, 1.5, 0.7, 1.2, 0.9]);
    let mut second = BlockDescription {
        mixer: mamba(GateNorm::BeforeGate, factors),
        residual: Residual::SecondMixer,
        mixer_scale: 0.6,
        feed_forward_scale: 1.4,
        ..first.clone()
    };
    second.feed_forward.gate_scale = 0.8;
    first.mixer_scale = 1.3;
    let mut third = BlockDescription {
        mixer: mamba(GateNorm::Never, None),
        ..first.clone()
    };
    for block in [&mut *first, &mut third] {
        block.residual = Residual::MixerAlone;
        block.feed_forward.width = 0;
    }
    last.feed_forward.gated = false;
    last.feed_forward.activation = Activation::ReluSquared;
    description.blocks.insert(1, second);
    description.blocks.insert(2, third);
    description
}

/// Returns [`description`] with blocks of other shapes: the first two have keys and values of their own, the third and
/// the fourth those of the second and the first. All have a factor on their output, and inputs by token.
fn with_shared() -> ModelDescription {
    let mut description = description();
    let [first, second] = &mut description.blocks[..] else {
        unreachable!("two blocks")
    };
    first.residual = Residual::SerialPostNorm;
    std::mem::swap(first, second);
    for block in [&mut *first, &mut *second] {
        block.scaled = true;
        block.attention_mut().expect("attention").value_norm = Some(1e-5);
    }
    let attention = second.attention_mut().expect("attention");
    attention.kv_heads = 1;
    attention.head_dim = 16;
    attention.key_values = KeyValues::OneLayer;
    attention.rope.dims = 16;
    attention.rope.still = 5;
    let shared = [(&*second, 1), (&*first, 0)].map(|(block, source)| {
        let mut block = block.clone();
        block.feed_forward.width = 96;
        block.attention_mut().expect("attention").key_values = KeyValues::OfBlock(source);
        block
    });
    description.blocks.extend(shared);
    description.token_inputs = Some(TokenInputs {
        width: 12,
        rows: None,
        activation: Activation::GeluTanh,
        norm: description.output_norm,
    });
    let latents = [Some(20), None].map(|query| with_latent(&description.blocks[0], query));
    description.blocks.extend(latents);
    description
}

/// Returns `block` with attention of latent vectors.
fn with_latent(block: &BlockDescription, query: Option<usize>) -> BlockDescription {
    let mut block = block.clone();
    let norm = block.norm;
    let attention = block.attention_mut().expect("attention");
    attention.kv_heads = 1;
    attention.head_dim = attention.rope.dims + 24;
    attention.value_norm = None;
    attention.qk_norm = Some(QkNorm {
        norm,
        spans_heads: false,
        after_rope: false,
    });
    attention.key_values = KeyValues::Latent(Latent {
        query,
        width: 24,
        key_dim: 10,
        value_dim: 6,
    });
    block
}

/// Returns a small model with a context of several pages; the second block has a window that ends within a page.
pub fn description() -> ModelDescription {
    let norm = Norm {
        kind: NormKind::Rms,
        epsilon: 1e-5,
        weight_offset: 0.0,
    };
    let block = |window| BlockDescription {
        mixer: Mixer::Attention(Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            scale: 0.4,
            qkv_bias: false,
            output_bias: false,
            output_gate: false,
            bidirectional: false,
            qk_norm: None,
            temperature: None,
            window,
            soft_cap: None,
            sinks: false,
            key_values: KeyValues::Own,
            value_norm: None,
            rope: Rope {
                dims: 8,
                still: 0,
                base: 10_000.0,
                pairing: RopePairing::Halves,
                scaling: RopeScaling::None,
            },
        }),
        feed_forward: FeedForward {
            width: 48,
            gated: true,
            activation: Activation::Silu,
            gate_scale: 1.0,
            cutoff: None,
            bias: false,
            experts: None,
        },
        mixer_scale: 1.0,
        feed_forward_scale: 1.0,
        norm,
        residual: Residual::Serial,
        scaled: false,
    };
    ModelDescription {
        family: "random".into(),
        name: None,
        hidden: 32,
        vocab: VOCAB,
        context: 4 * 256,
        embedding_scale: 3.0,
        residual_scale: 0.7,
        logit_scale: 1.5,
        output_norm: norm,
        blocks: vec![block(None), block(Some(200))],
        tied_output: false,
        output_bias: false,
        logit_soft_cap: None,
        token_inputs: None,
        streams: None,
        added_inputs: AddedInputs::default(),
        picture_rope: None,
        mtp: None,
        head: None,
    }
}
