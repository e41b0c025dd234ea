//! Tests the description of every family from a configuration and from metadata, and the refusals.

mod experts;
mod gemma3n;
mod gemma4;
mod gguf;
mod granite_hybrid;
mod hugging_face;
mod latent;
mod layout;
mod lfm2;
mod lists;
mod norms_and_ropes;
mod qwen3_5;
mod qwen3_next;
mod stacked_experts;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::description::{
    Activation, AddedInputs, Attention, BlockDescription, FeedForward, KeyValues, Mixer,
    ModelDescription, Norm, NormKind, Residual, Rope, RopePairing, RopeScaling,
};
use crate::tensor::{Format, TensorInfo};
use crate::tensor_map::{Part, TensorSlice};

type Tensors = BTreeMap<String, TensorInfo>;

fn tensor(name: &str, shape: &[usize]) -> (String, TensorInfo) {
    let info = TensorInfo {
        name: name.to_owned(),
        shape: shape.to_vec(),
        format: Format::F32,
        file: 0,
        bytes: 0..0,
    };
    (name.to_owned(), info)
}

/// Returns `outer` and, for each block, `prefix` + index + `.` + every name of `block`.
fn tensors(
    outer: &[(&str, &[usize])],
    prefix: &str,
    blocks: usize,
    block: &[(&str, &[usize])],
) -> Tensors {
    let inner = (0..blocks).flat_map(|index| {
        block
            .iter()
            .map(move |(name, shape)| tensor(&format!("{prefix}{index}.{name}"), shape))
    });
    outer
        .iter()
        .map(|(name, shape)| tensor(name, shape))
        .chain(inner)
        .collect()
}

/// Returns the rows that a layer is in its tensor, if they are consecutive; `None` for all of them.
fn rows(slice: &TensorSlice) -> Option<Range<usize>> {
    match &slice.part {
        None => None,
        Some(Part::Rows(rows)) => Some(rows.as_range().expect("consecutive rows")),
        Some(other) => panic!("{other:?}"),
    }
}

fn windows(description: &ModelDescription) -> Vec<Option<usize>> {
    description
        .blocks
        .iter()
        .map(|block| block.attention().unwrap().window)
        .collect()
}

/// Returns the description of two blocks of a plain LLaMA, as from a `config.json`.
fn llama_description() -> ModelDescription {
    let norm = Norm {
        kind: NormKind::Rms,
        epsilon: 1e-5,
        weight_offset: 0.0,
    };
    let block = BlockDescription {
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
                base: 5e5,
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
        mixer_scale: 1.0,
        feed_forward_scale: 1.0,
        norm,
        residual: Residual::Serial,
        scaled: false,
    };
    ModelDescription {
        family: "llama".to_owned(),
        name: None,
        hidden: 64,
        vocab: 100,
        context: 512,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        blocks: vec![block.clone(), block],
        output_norm: norm,
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
