//! Tiny models with the special features of each family.

use triad_model::description::{
    Activation, AddedInputs, Attention, BlockDescription, FeedForward, KeyValues, Mixer,
    ModelDescription, Norm, NormKind, QkNorm, Residual, Rope, RopePairing, RopeScaling,
};

const RMS: Norm = Norm {
    kind: NormKind::Rms,
    epsilon: 1e-5,
    weight_offset: 0.0,
};
const QK_NORM: QkNorm = QkNorm {
    norm: RMS,
    spans_heads: false,
    after_rope: false,
};

/// Returns two layers of LLaMA's structure: grouped heads, a gate, and norms before attention and feed-forward.
pub fn llama() -> ModelDescription {
    let block = BlockDescription {
        mixer_scale: 1.0,
        feed_forward_scale: 1.0,
        mixer: Mixer::Attention(Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            scale: 0.25,
            qkv_bias: false,
            output_bias: false,
            output_gate: false,
            bidirectional: false,
            qk_norm: None,
            temperature: None,
            window: None,
            soft_cap: None,
            sinks: false,
            key_values: KeyValues::Own,
            value_norm: None,
            rope: Rope {
                dims: 16,
                still: 0,
                base: 1e4,
                pairing: RopePairing::Halves,
                scaling: RopeScaling::None,
            },
        }),
        feed_forward: FeedForward {
            width: 96,
            gated: true,
            activation: Activation::Silu,
            gate_scale: 1.0,
            cutoff: None,
            bias: false,
            experts: None,
        },
        norm: RMS,
        residual: Residual::Serial,
        scaled: false,
    };
    ModelDescription {
        family: "llama".to_owned(),
        name: None,
        hidden: 64,
        vocab: 77,
        context: 1024,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        blocks: vec![block.clone(), block],
        output_norm: RMS,
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

/// Returns [`llama`] with changed layers; `change` is called with the index of each.
pub fn changed(mut change: impl FnMut(usize, &mut BlockDescription)) -> ModelDescription {
    let mut description = llama();
    for (index, block) in description.blocks.iter_mut().enumerate() {
        change(index, block);
    }
    description
}

/// Returns a model for each special feature, with a name for messages.
pub fn all() -> Vec<(&'static str, ModelDescription)> {
    let phi2 = changed(|_, block| {
        block.residual = Residual::Parallel;
        block.norm = Norm {
            kind: NormKind::Layer,
            epsilon: 1e-5,
            weight_offset: 0.0,
        };
        block.feed_forward = FeedForward {
            width: 96,
            gated: false,
            activation: Activation::GeluTanh,
            gate_scale: 1.0,
            cutoff: None,
            bias: true,
            experts: None,
        };
        block.attention_mut().unwrap().kv_heads = 4;
        (
            block.attention_mut().unwrap().qkv_bias,
            block.attention_mut().unwrap().output_bias,
        ) = (true, true);
        block.attention_mut().unwrap().rope.dims = 8;
    });
    let layer = phi2.blocks[0].norm;
    vec![
        (
            "llama, adjacent pairs",
            changed(|_, block| block.attention_mut().unwrap().rope.pairing = RopePairing::Adjacent),
        ),
        (
            "qwen2, biases of query, key and value",
            changed(|_, block| block.attention_mut().unwrap().qkv_bias = true),
        ),
        (
            "qwen3, norms of heads",
            changed(|_, block| block.attention_mut().unwrap().qk_norm = Some(QK_NORM)),
        ),
        (
            "mistral, a window",
            changed(|_, block| block.attention_mut().unwrap().window = Some(9)),
        ),
        (
            "gemma2, post norms, soft cap, a window in one block",
            changed(|index, block| {
                block.residual = Residual::SerialPostNorm;
                block.feed_forward.activation = Activation::GeluTanh;
                block.attention_mut().unwrap().soft_cap = Some(2.0);
                block.attention_mut().unwrap().window = (index == 0).then_some(5);
            }),
        ),
        (
            "gemma3, norms of heads, another rotation in each block, one head of keys",
            changed(|index, block| {
                block.residual = Residual::SerialPostNorm;
                block.attention_mut().unwrap().qk_norm = Some(QK_NORM);
                block.attention_mut().unwrap().kv_heads = 1;
                block.attention_mut().unwrap().rope.base = if index == 0 { 1e4 } else { 1e6 };
                block.feed_forward.activation = Activation::Gelu;
            }),
        ),
        (
            "phi2, parallel halves, layer norm, no gate",
            ModelDescription {
                output_norm: layer,
                output_bias: true,
                ..phi2
            },
        ),
        (
            "wide heads of another width in each block",
            changed(|index, block| {
                block.attention_mut().unwrap().head_dim = if index == 0 { 136 } else { 40 };
                block.attention_mut().unwrap().rope.dims = 32;
                (
                    block.attention_mut().unwrap().heads,
                    block.attention_mut().unwrap().kv_heads,
                ) = if index == 0 { (3, 1) } else { (18, 1) };
            }),
        ),
    ]
}
