//! Writes a tiny model as a safetensors folder, valid or with a single mistake.

use serde_json::{Value, json};

use super::Place;

const HIDDEN: usize = 32;
const WIDTH: usize = 48;
const VOCAB: usize = 64;

/// Returns the `config.json` of a llama with one block.
pub fn config() -> Value {
    json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "hidden_act": "silu",
        "tie_word_embeddings": true
    })
}

/// Returns the header of `model.safetensors` for [`config`], and the bytes of data after it.
pub fn header() -> (Value, usize) {
    let shapes = [
        ("model.embed_tokens.weight", vec![VOCAB, HIDDEN]),
        ("model.norm.weight", vec![HIDDEN]),
        ("model.layers.0.input_layernorm.weight", vec![HIDDEN]),
        (
            "model.layers.0.self_attn.q_proj.weight",
            vec![HIDDEN, HIDDEN],
        ),
        (
            "model.layers.0.self_attn.k_proj.weight",
            vec![HIDDEN / 2, HIDDEN],
        ),
        (
            "model.layers.0.self_attn.v_proj.weight",
            vec![HIDDEN / 2, HIDDEN],
        ),
        (
            "model.layers.0.self_attn.o_proj.weight",
            vec![HIDDEN, HIDDEN],
        ),
        (
            "model.layers.0.post_attention_layernorm.weight",
            vec![HIDDEN],
        ),
        ("model.layers.0.mlp.gate_proj.weight", vec![WIDTH, HIDDEN]),
        ("model.layers.0.mlp.up_proj.weight", vec![WIDTH, HIDDEN]),
        ("model.layers.0.mlp.down_proj.weight", vec![HIDDEN, WIDTH]),
    ];
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in shapes {
        let end = offset + 4 * shape.iter().product::<usize>();
        header.insert(
            name.into(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    (Value::Object(header), offset)
}

/// Writes `config` and a `model.safetensors` with `header` and `data` bytes of zeros into the folder `model`.
pub fn write(place: &Place, config: &Value, header: &Value, data: usize) {
    place.write("model/config.json", config.to_string());
    let mut header = header.to_string();
    // The data begins at a multiple of eight bytes.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    place.write("model/model.safetensors", file);
}
