//! Names of the tensors of an mmproj file.

use std::collections::BTreeMap;

use crate::tensor::TensorInfo;
use crate::vision::description::VisionDescription;
use crate::vision::layers::{ProjectorLayer as P, VisionBlockLayer as B, VisionLayer as L};
use crate::vision::tensors::{LayerTensors, Names};

/// Returns the names of a file's tensors.
pub(super) fn names(
    description: &VisionDescription,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Names {
    let family = description.family.clone();
    let frames = description.frames;
    let deepstack = description.deepstack.clone();
    // Older files have the two matrices of the feed-forward under each other's name.
    let shape = |name: &str| Some(tensors.get(name)?.shape.clone());
    let (hidden, inner) = (description.hidden, description.inner);
    let is_swapped = hidden != inner && shape("v.blk.0.ffn_up.weight") == Some(vec![hidden, inner]);
    let [up, down] = match is_swapped {
        true => ["ffn_down", "ffn_up"],
        false => ["ffn_up", "ffn_down"],
    };
    let find = move |layer: L| match layer {
        L::Patch => LayerTensors {
            weights: match frames {
                1 => vec!["v.patch_embd.weight".to_owned()],
                _ => ["v.patch_embd.weight", "v.patch_embd.weight.1"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            bias: Some("v.patch_embd.bias".to_owned()),
            bounds: Vec::new(),
        },
        L::Class => LayerTensors::bare("v.class_embd"),
        L::Positions => LayerTensors::bare("v.position_embd.weight"),
        L::InputNorm => LayerTensors::stem("v.pre_ln"),
        L::OutputNorm => LayerTensors::stem("v.post_ln"),
        L::Block(block, layer) => {
            let name = match layer {
                B::AttentionNorm => "ln1",
                B::QueryKeyValue => "attn_qkv",
                B::Query => "attn_q",
                B::Key => "attn_k",
                B::Value => "attn_v",
                B::QueryNorm => "attn_q_norm",
                B::KeyNorm => "attn_k_norm",
                B::AttentionOutput => "attn_out",
                B::AttentionPostNorm => "attn_post_norm",
                B::AttentionScale => "ls1",
                B::FeedForwardNorm => "ln2",
                B::Gate => "ffn_gate",
                B::Up => up,
                B::Down => down,
                B::FeedForwardPostNorm => "ffn_post_norm",
                B::FeedForwardScale => "ls2",
            };
            LayerTensors::stem(&format!("v.blk.{block}.{name}"))
        }
        L::Projector(stage, layer) if stage > 0 => {
            let name = match layer {
                P::Offset | P::Factor => return LayerTensors::default(),
                P::Norm => "norm",
                P::First => "fc1",
                P::Last => "fc2",
            };
            let block = deepstack[stage - 1];
            LayerTensors::stem(&format!("v.deepstack.{block}.{name}"))
        }
        L::Projector(_, layer) => match (family.as_str(), layer) {
            (_, P::Offset) => LayerTensors::bare("v.std_bias"),
            (_, P::Factor) => LayerTensors::bare("v.std_scale"),
            ("idefics3", _) => LayerTensors::stem("mm.model.fc"),
            ("gemma3", P::Norm) => LayerTensors::stem("mm.soft_emb_norm"),
            ("gemma3" | "gemma4v", _) => LayerTensors::bare("mm.input_projection.weight"),
            ("lfm2", P::Norm) => LayerTensors::stem("mm.input_norm"),
            ("lfm2", P::First) => LayerTensors::stem("mm.1"),
            ("internvl", P::Norm) => LayerTensors::stem("mm.model.mlp.0"),
            ("internvl", P::First) => LayerTensors::stem("mm.model.mlp.1"),
            ("internvl", P::Last) => LayerTensors::stem("mm.model.mlp.3"),
            (_, P::Norm) => LayerTensors::stem("v.post_ln"),
            (_, P::First) => LayerTensors::stem("mm.0"),
            (_, P::Last) => LayerTensors::stem("mm.2"),
        },
    };
    Names {
        find: Box::new(find),
        prefixes: vec!["v.".to_owned(), "mm.".to_owned()],
        // A file may also have an encoder of sound, which has a projector of its own.
        ignored: vec!["mm.a.".to_owned()],
        blocks: ("v.blk.".to_owned(), description.blocks),
    }
}
