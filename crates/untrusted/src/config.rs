//! Reads arbitrary bytes as a `config.json`, with the tensors of the model in the seed corpus.

use std::collections::BTreeMap;

use triad_model::family;
use triad_model::tensor::{Format, TensorInfo};

/// The tensors of a tiny LLaMA, as `seeds.rs` describes it.
const TENSORS: [(&str, &[usize]); 12] = [
    ("lm_head.weight", &[4, 8]),
    ("model.embed_tokens.weight", &[4, 8]),
    ("model.layers.0.input_layernorm.weight", &[8]),
    ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
    ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
    ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
    ("model.layers.0.post_attention_layernorm.weight", &[8]),
    ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
    ("model.norm.weight", &[8]),
];

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let Ok(config) = serde_json::from_slice(bytes) else {
        return;
    };
    let tensor = |(name, shape): (&str, &[usize])| {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        (
            name.clone(),
            TensorInfo {
                name,
                shape,
                format: Format::F32,
                file: 0,
                bytes: 0..0,
            },
        )
    };
    let tensors: BTreeMap<_, _> = TENSORS.into_iter().map(tensor).collect();
    if let Ok((description, _)) =
        family::from_hugging_face(&config, (&tensors, &|_| false), &|_, _| true)
    {
        assert!(
            description.parameters() > 0
                && description.kv_bytes_per_token(|head_dim| 2 * head_dim) > 0
        );
    }
}
