//! Descriptions of well-known models, without weights: speed does not depend on the weights' values, so benchmarks use
//! random weights of these shapes. The first five are those of the llm.npu paper (section 4.1). With llama-2-7b, those
//! from llama-3-8b on are those of the HeteroLLM paper (section 5.2), which does not name their versions.

use serde_json::{Value, json};

use super::{hugging_face, unsupported};
use crate::description::ModelDescription;
use crate::error::Result;

/// Names that [`shape`] accepts.
pub const SHAPES: [&str; 9] = [
    "qwen1.5-1.8b",
    "gemma-2b",
    "phi-2",
    "llama-2-7b",
    "mistral-7b",
    "smollm2-135m",
    "llama-3-8b",
    "llama-3.2-3b",
    "internlm2-1.8b",
];

/// Returns the description of the model called `name`, from its published configuration.
///
/// # Errors
///
/// [`crate::ErrorKind::Unsupported`] for a name that is not in [`SHAPES`].
pub fn shape(name: &str) -> Result<ModelDescription> {
    let Some(config) = config(name) else {
        return Err(unsupported(format!(
            "no shape is called `{name}`; there are {}",
            SHAPES.join(", ")
        )));
    };
    let (_, description) = hugging_face::describe(&config)?;
    Ok(ModelDescription {
        name: Some(name.to_owned()),
        ..description
    })
}

fn config(name: &str) -> Option<Value> {
    let config = match name {
        "qwen1.5-1.8b" => json!({
            "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5504,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
            "max_position_embeddings": 32_768, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
            "use_sliding_window": false, "tie_word_embeddings": false
        }),
        "gemma-2b" => json!({
            "model_type": "gemma", "vocab_size": 256_000, "hidden_size": 2048, "intermediate_size": 16_384,
            "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
            "max_position_embeddings": 8192, "rope_theta": 1e4, "rms_norm_eps": 1e-6
        }),
        "phi-2" => json!({
            "model_type": "phi", "vocab_size": 51_200, "hidden_size": 2560, "intermediate_size": 10_240,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "max_position_embeddings": 2048, "rope_theta": 1e4, "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.4, "tie_word_embeddings": false
        }),
        "llama-2-7b" => json!({
            "model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "max_position_embeddings": 4096, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
        }),
        // Version 0.1, which has a window.
        "mistral-7b" => json!({
            "model_type": "mistral", "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
            "max_position_embeddings": 32_768, "rope_theta": 1e4, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
        }),
        "smollm2-135m" => json!({
            "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "rope_theta": 1e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
        }),
        "llama-3-8b" => json!({
            "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 8192, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
        }),
        // Without the RoPE scaling for contexts beyond 8,192 tokens.
        "llama-3.2-3b" => json!({
            "model_type": "llama", "vocab_size": 128_256, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 8192, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
        }),
        // Published as `internlm2`, whose fused query, key and value have the sizes of Llama's three.
        "internlm2-1.8b" => json!({
            "model_type": "llama", "vocab_size": 92_544, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8,
            "max_position_embeddings": 32_768, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
        }),
        _ => return None,
    };
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_its_models_published_number_of_parameters() {
        let published = [
            ("qwen1.5-1.8b", 1_836_828_672),
            ("gemma-2b", 2_506_172_416),
            ("phi-2", 2_779_683_840),
            ("llama-2-7b", 6_738_415_616),
            ("mistral-7b", 7_241_732_096),
            ("smollm2-135m", 134_515_008),
            ("llama-3-8b", 8_030_261_248),
            ("llama-3.2-3b", 3_212_749_824),
            ("internlm2-1.8b", 1_889_110_016),
        ];
        assert_eq!(published.map(|(name, _)| name), SHAPES);
        for (name, parameters) in published {
            assert_eq!(shape(name).expect(name).parameters(), parameters, "{name}");
        }
    }

    #[test]
    fn an_unknown_shape_is_refused_with_the_names_that_exist() {
        let error = shape("llama-9").expect_err("no such shape").to_string();
        assert!(
            error.contains("llama-9") && error.contains("mistral-7b"),
            "{error}"
        );
    }
}
