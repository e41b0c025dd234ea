//! Names of an encoder's tensors, as `transformers` writes them.

use crate::vision::layers::{ProjectorLayer as P, VisionBlockLayer as B, VisionLayer as L};
use crate::vision::tensors::LayerTensors;

pub(super) fn siglip([encoder, projector]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    match layer {
        L::Patch => stem("embeddings.patch_embedding"),
        L::Class => LayerTensors::bare(format!("{encoder}embeddings.class_embedding")),
        L::Positions => stem("embeddings.position_embedding"),
        L::InputNorm => stem("pre_layrnorm"),
        L::OutputNorm => stem("post_layernorm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "layer_norm1",
                B::QueryKeyValue => "self_attn.qkv",
                B::Query => "self_attn.q_proj",
                B::Key => "self_attn.k_proj",
                B::Value => "self_attn.v_proj",
                B::AttentionOutput => "self_attn.out_proj",
                B::AttentionScale => "layer_scale1",
                B::FeedForwardNorm => "layer_norm2",
                B::Gate => "mlp.gate",
                B::Up => "mlp.fc1",
                B::Down => "mlp.fc2",
                B::FeedForwardScale => "layer_scale2",
                B::QueryNorm | B::KeyNorm | B::AttentionPostNorm | B::FeedForwardPostNorm => {
                    return LayerTensors::default();
                }
            };
            stem(&format!("encoder.layers.{block}.{name}"))
        }
        L::Projector(_, layer) => {
            let is_idefics = projector.ends_with("connector.");
            match layer {
                P::Offset | P::Factor => LayerTensors::default(),
                P::Norm => LayerTensors::stem(&format!("{projector}layer_norm")),
                P::First => LayerTensors::stem(&format!("{projector}linear_1")),
                P::Last if is_idefics => {
                    LayerTensors::stem(&format!("{projector}modality_projection.proj"))
                }
                P::Last => LayerTensors::stem(&format!("{projector}linear_2")),
            }
        }
    }
}

pub(super) fn gemma3_names(prefixes: [String; 2], layer: L) -> LayerTensors {
    match layer {
        L::Projector(_, P::Norm) => LayerTensors::stem(&format!("{}mm_soft_emb_norm", prefixes[1])),
        L::Projector(_, P::Last) => {
            LayerTensors::bare(format!("{}mm_input_projection_weight", prefixes[1]))
        }
        _ => siglip(prefixes, layer),
    }
}

pub(super) fn gemma4_names([encoder, projector]: [String; 2], layer: L) -> LayerTensors {
    let bare = |name: &str| LayerTensors::bare(format!("{encoder}{name}"));
    match layer {
        L::Patch => bare("patch_embedder.input_proj.weight"),
        L::Positions => bare("patch_embedder.position_embedding_table"),
        L::Block(block, layer) => {
            let (name, is_linear) = match layer {
                B::AttentionNorm => ("input_layernorm", false),
                B::Query => ("self_attn.q_proj", true),
                B::Key => ("self_attn.k_proj", true),
                B::Value => ("self_attn.v_proj", true),
                B::QueryNorm => ("self_attn.q_norm", false),
                B::KeyNorm => ("self_attn.k_norm", false),
                B::AttentionOutput => ("self_attn.o_proj", true),
                B::AttentionPostNorm => ("post_attention_layernorm", false),
                B::FeedForwardNorm => ("pre_feedforward_layernorm", false),
                B::Gate => ("mlp.gate_proj", true),
                B::Up => ("mlp.up_proj", true),
                B::Down => ("mlp.down_proj", true),
                B::FeedForwardPostNorm => ("post_feedforward_layernorm", false),
                B::QueryKeyValue | B::AttentionScale | B::FeedForwardScale => {
                    return LayerTensors::default();
                }
            };
            let stem = format!("{encoder}encoder.layers.{block}.{name}");
            let mut tensors = LayerTensors::stem(&stem);
            if is_linear {
                // Bounds are next to the matrix, not in its module.
                tensors.weights = vec![format!("{stem}.linear.weight")];
            }
            tensors
        }
        L::Projector(_, P::Offset) => bare("std_bias"),
        L::Projector(_, P::Factor) => bare("std_scale"),
        L::Projector(_, P::Last) => {
            LayerTensors::bare(format!("{projector}embedding_projection.weight"))
        }
        L::Projector(..) | L::Class | L::InputNorm | L::OutputNorm => LayerTensors::default(),
    }
}

pub(super) fn qwen([encoder, _]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    match layer {
        L::Patch => stem("patch_embed.proj"),
        L::Class => stem("class"),
        L::Positions => stem("pos_embed"),
        L::InputNorm => stem("pre_norm"),
        L::OutputNorm => stem("post_norm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "norm1",
                B::QueryKeyValue => "attn.qkv",
                B::Query => "attn.q",
                B::Key => "attn.k",
                B::Value => "attn.v",
                B::AttentionOutput => "attn.proj",
                B::AttentionScale => "scale1",
                B::FeedForwardNorm => "norm2",
                B::Gate => "mlp.gate_proj",
                B::Up => "mlp.up_proj",
                B::Down => "mlp.down_proj",
                B::FeedForwardScale => "scale2",
                B::QueryNorm | B::KeyNorm | B::AttentionPostNorm | B::FeedForwardPostNorm => {
                    return LayerTensors::default();
                }
            };
            stem(&format!("blocks.{block}.{name}"))
        }
        L::Projector(_, layer) => stem(match layer {
            P::Offset | P::Factor => return LayerTensors::default(),
            P::Norm => "merger.ln_q",
            P::First => "merger.mlp.0",
            P::Last => "merger.mlp.2",
        }),
    }
}

pub(super) fn qwen2_names(prefixes: [String; 2], layer: L) -> LayerTensors {
    let up_or_down = match layer {
        L::Block(block, B::Up) => format!("blocks.{block}.mlp.fc1"),
        L::Block(block, B::Down) => format!("blocks.{block}.mlp.fc2"),
        _ => return qwen(prefixes, layer),
    };
    LayerTensors::stem(&format!("{}{up_or_down}", prefixes[0]))
}

pub(super) fn qwen3(prefixes: [String; 2], layer: L) -> LayerTensors {
    let name = match layer {
        L::Block(block, B::Up) => format!("blocks.{block}.mlp.linear_fc1"),
        L::Block(block, B::Down) => format!("blocks.{block}.mlp.linear_fc2"),
        L::Projector(stage, layer) => {
            let merger = match stage {
                0 => "merger".to_owned(),
                _ => format!("deepstack_merger_list.{}", stage - 1),
            };
            let layer = match layer {
                P::Offset | P::Factor => return LayerTensors::default(),
                P::Norm => "norm",
                P::First => "linear_fc1",
                P::Last => "linear_fc2",
            };
            format!("{merger}.{layer}")
        }
        _ => return qwen(prefixes, layer),
    };
    LayerTensors::stem(&format!("{}{name}", prefixes[0]))
}

pub(super) fn internvl_names([encoder, projector]: [String; 2], layer: L) -> LayerTensors {
    let stem = |stem: &str| LayerTensors::stem(&format!("{encoder}{stem}"));
    let bare = |name: &str| LayerTensors::bare(format!("{encoder}{name}"));
    match layer {
        L::Patch => stem("embeddings.patch_embeddings.projection"),
        L::Class => bare("embeddings.cls_token"),
        L::Positions => bare("embeddings.position_embeddings"),
        L::InputNorm => stem("pre_layernorm"),
        L::OutputNorm => stem("layernorm"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "layernorm_before",
                B::QueryKeyValue => "attention.qkv",
                B::Query => "attention.q_proj",
                B::Key => "attention.k_proj",
                B::Value => "attention.v_proj",
                B::AttentionOutput => "attention.projection_layer",
                B::AttentionScale => {
                    return bare(&format!("encoder.layer.{block}.lambda_1"));
                }
                B::FeedForwardNorm => "layernorm_after",
                B::Gate => "mlp.gate",
                B::Up => "mlp.fc1",
                B::Down => "mlp.fc2",
                B::FeedForwardScale => {
                    return bare(&format!("encoder.layer.{block}.lambda_2"));
                }
                B::QueryNorm | B::KeyNorm | B::AttentionPostNorm | B::FeedForwardPostNorm => {
                    return LayerTensors::default();
                }
            };
            stem(&format!("encoder.layer.{block}.{name}"))
        }
        L::Projector(_, layer) => {
            let name = match layer {
                P::Offset | P::Factor => return LayerTensors::default(),
                P::Norm => "layer_norm",
                P::First => "linear_1",
                P::Last => "linear_2",
            };
            LayerTensors::stem(&format!("{projector}{name}"))
        }
    }
}
