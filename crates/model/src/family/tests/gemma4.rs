use serde_json::{Value as Json, json};

use super::super::hugging_face;
use super::{Tensors, tensor};
use crate::description::{KeyValues, ModelDescription, RopeScaling};
use crate::error::Result;
use crate::family::{from_gguf, from_hugging_face};
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;
use crate::tensor_map::TensorMap;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// The kinds of the blocks of [`config`].
const KINDS: [&str; 5] = [SLIDING, FULL, SLIDING, SLIDING, FULL];

/// Returns a configuration in which the last two blocks read the keys and values of others.
fn config(changes: Json) -> Json {
    let mut config = json!({
        "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
        "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
        "sliding_window": 8, "layer_types": KINDS, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
        "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 100, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 7
    });
    let Json::Object(changes) = changes else {
        panic!("expected an object")
    };
    for (field, value) in changes {
        match value.as_str() {
            Some("absent") => config.as_object_mut().unwrap().remove(&field),
            _ => config.as_object_mut().unwrap().insert(field, value),
        };
    }
    config
}

fn described(changes: Json) -> Result<ModelDescription> {
    Ok(hugging_face::describe(&config(changes))?.1)
}

fn refusal(changes: Json) -> String {
    described(changes).expect_err("refused").to_string()
}

/// Returns key-value heads, their width and the source of keys and values of each block.
fn heads(description: &ModelDescription) -> Vec<(usize, usize, KeyValues)> {
    let blocks = description.blocks.iter();
    let attentions = blocks.map(|block| block.attention().unwrap());
    attentions
        .map(|attention| (attention.kv_heads, attention.head_dim, attention.key_values))
        .collect()
}

#[test]
fn blocks_of_gemma4_have_the_shapes_of_their_kind_and_the_last_read_keys_of_that_kind() {
    use KeyValues::{OfBlock, OneLayer, Own};
    let description = described(json!({})).unwrap();
    assert_eq!(
        heads(&description),
        [
            (2, 16, Own),
            (2, 32, Own),
            (2, 16, Own),
            (2, 16, OfBlock(2)),
            (2, 32, OfBlock(1))
        ]
    );
    let widths: Vec<_> = description
        .blocks
        .iter()
        .map(|block| block.feed_forward.width)
        .collect();
    assert_eq!(widths, [96, 96, 96, 192, 192]);
    let inputs = description.token_inputs.unwrap();
    assert_eq!((inputs.width, inputs.norm.weight_offset), (12, 0.0));
    assert_eq!(
        (description.logit_soft_cap, description.embedding_scale),
        (Some(30.0), 8.0)
    );
    for (block, kind) in description.blocks.iter().zip(KINDS) {
        let attention = block.attention().unwrap();
        assert!(block.scaled && attention.qk_norm.is_some());
        assert_eq!((attention.scale, attention.value_norm), (1.0, Some(1e-6)));
        assert_eq!(attention.window, (kind == SLIDING).then_some(8));
        let expected = if kind == SLIDING {
            (16, 0, 1e4)
        } else {
            (32, 12, 1e6)
        };
        let rope = &attention.rope;
        assert_eq!((rope.dims, rope.still, rope.base), expected);
    }
    let one = json!({ "attention_k_eq_v": true, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0 });
    assert_eq!(
        heads(&described(one).unwrap()),
        [
            (2, 16, Own),
            (1, 32, OneLayer),
            (2, 16, Own),
            (2, 16, Own),
            (1, 32, OneLayer)
        ]
    );
    // Without one layer for both, the number of global heads has no effect, as in `transformers`.
    let global = json!({ "num_global_key_value_heads": 1 });
    assert_eq!(heads(&described(global).unwrap()), heads(&description));
    let plain = json!({ "hidden_size_per_layer_input": 0, "use_double_wide_mlp": false, "attention_bias": true });
    let plain = described(plain).unwrap();
    assert!(plain.token_inputs.is_none() && plain.blocks[4].feed_forward.width == 96);
    assert!(plain.blocks[0].attention().unwrap().qkv_bias);
    let defaults = json!({ "head_dim": "absent", "global_head_dim": "absent", "layer_types": "absent", "num_kv_shared_layers": 0 });
    let defaults = heads(&described(defaults).unwrap());
    // Every sixth block has no window, and the last one.
    let widths: Vec<_> = defaults.iter().map(|(_, width, _)| *width).collect();
    assert_eq!(widths, [256, 256, 256, 256, 512]);
}

#[test]
fn the_last_block_of_gemma4_has_no_window_whatever_the_file_says() {
    let kinds = json!({ "layer_types": [SLIDING, FULL, SLIDING, SLIDING, SLIDING] });
    assert_eq!(described(kinds).unwrap(), described(json!({})).unwrap());
}

#[test]
fn heads_of_single_blocks_take_the_place_of_those_of_a_kind() {
    let list = json!({ "per_layer_config": { "1": { "head_dim": 8, "num_key_value_heads": 1 }, "4": {
        "head_dim": 8, "num_key_value_heads": 1
    } } });
    let found = heads(&described(list).unwrap());
    assert_eq!(found[1].0, 1);
    assert_eq!(
        found.iter().map(|(_, width, _)| *width).collect::<Vec<_>>(),
        [16, 8, 16, 16, 8]
    );
    let none = heads(&described(json!({ "per_layer_config": {} })).unwrap());
    assert!(none.iter().all(|(_, width, _)| *width == 16));
}

#[test]
fn the_text_of_gemma4_with_images_is_read_with_the_defaults_of_its_version() {
    let nested = |model_type: &str, text: Json| {
        let config = json!({ "model_type": model_type, "text_config": text, "vision_config": {} });
        hugging_face::describe(&config).unwrap().1
    };
    let (e2b, text) = (
        nested("gemma4", config(json!({}))),
        described(json!({})).unwrap(),
    );
    assert_eq!(e2b, text);
    let changes =
        json!({ "hidden_size_per_layer_input": "absent", "vocab_size_per_layer_input": "absent" });
    let unified = nested("gemma4_unified", config(changes));
    assert!(unified.token_inputs.is_none());
    assert_eq!((unified.context, text.context), (262_144, 131_072));
}

#[test]
fn experts_of_gemma4_are_a_branch_next_to_its_dense_layers() {
    let with_experts = json!({
        "enable_moe_block": true, "moe_intermediate_size": 24, "num_experts": 4, "top_k_experts": 2,
        "use_double_wide_mlp": false
    });
    let description = described(with_experts.clone()).unwrap();
    assert!(description.has_expert_branches());
    for block in &description.blocks {
        let experts = block.feed_forward.experts.unwrap();
        assert_eq!((experts.count, experts.used, experts.width), (4, 2, 24));
        assert!(experts.branch && experts.normalized && !experts.shared_gate);
        assert_eq!(block.feed_forward.width, 96);
    }
    let mut tensors = tensors(&HUGGING_FACE);
    tensors.retain(|name, tensor| {
        // Without twice the width in the last blocks.
        let is_wide = tensor.shape.contains(&192) && name.contains("mlp.");
        if is_wide {
            tensor
                .shape
                .iter_mut()
                .for_each(|size| *size = (*size).min(96));
        }
        true
    });
    for block in 0..5 {
        let name = |part: &str| format!("model.layers.{block}.{part}");
        tensors.extend([
            tensor(&name("router.proj.weight"), &[4, 64]),
            tensor(&name("router.scale"), &[64]),
            tensor(&name("router.per_expert_scale"), &[4]),
            tensor(&name("experts.gate_up_proj"), &[4, 48, 64]),
            tensor(&name("experts.down_proj"), &[4, 64, 24]),
            tensor(&name("pre_feedforward_layernorm_2.weight"), &[64]),
            tensor(&name("post_feedforward_layernorm_1.weight"), &[64]),
            tensor(&name("post_feedforward_layernorm_2.weight"), &[64]),
        ]);
    }
    let open = |tensors: &Tensors| {
        from_hugging_face(
            &config(with_experts.clone()),
            (tensors, &|_| false),
            &|_, _| true,
        )
    };
    let (_, map) = open(&tensors).unwrap();
    let branch = map.blocks[2]
        .router
        .as_ref()
        .unwrap()
        .branch
        .as_ref()
        .unwrap();
    let name = "model.layers.2.pre_feedforward_layernorm_2.weight";
    assert_eq!(branch.norm.weight, name);
    for part in ["router.scale", "post_feedforward_layernorm_1.weight"] {
        let mut without = tensors.clone();
        without.remove(&format!("model.layers.3.{part}"));
        let error = open(&without).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_gemma4_states_that_is_not_computed_is_refused_by_name() {
    let rope = |full: Json| json!({ "rope_parameters": { FULL: full, SLIDING: { "rope_type": "default", "rope_theta": 1e4 } } });
    for (changes, expected) in [
        (json!({ "enable_moe_block": true }), "moe_intermediate_size"),
        (
            json!({ "enable_moe_block": true, "moe_intermediate_size": 24 }),
            "top_k_experts",
        ),
        (
            json!({ "enable_moe_block": true, "moe_intermediate_size": 24, "top_k_experts": 2 }),
            "the number of experts is 0",
        ),
        (
            json!({
                "enable_moe_block": true, "moe_intermediate_size": 24, "num_experts": 4, "top_k_experts": 5
            }),
            "experts of a row is 5",
        ),
        (json!({ "num_experts": 8 }), "num_experts"),
        (
            json!({ "use_bidirectional_attention": "all" }),
            "use_bidirectional_attention",
        ),
        (json!({ "num_kv_shared_layers": 5 }), "num_kv_shared_layers"),
        (
            json!({ "num_kv_shared_layers": 4 }),
            "block 1 reads the keys",
        ),
        (
            json!({ "vocab_size_per_layer_input": 99 }),
            "vocab_size_per_layer_input",
        ),
        (
            json!({ "rope_scaling": { "rope_type": "yarn" } }),
            "rope_scaling",
        ),
        (
            json!({ "per_layer_config": { "9": {} } }),
            "per_layer_config",
        ),
        (
            json!({ "per_layer_config": { "1": { "intermediate_size": 8 } } }),
            "intermediate_size",
        ),
        (
            json!({ "per_layer_config": { "1": { "head_dim": 8 } } }),
            "per_layer_config",
        ),
        (
            rope(json!({ "rope_type": "yarn", "rope_theta": 1e6 })),
            "`yarn`",
        ),
        (rope(json!({ "rope_theta": 1e6 })), "rope_type"),
        (rope(json!({ "rope_type": "default" })), "rope_theta"),
        (
            rope(
                json!({ "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 1.5 }),
            ),
            "partial_rotary_factor",
        ),
        (
            json!({ "rope_parameters": { SLIDING: {} } }),
            "rope_parameters.full_attention",
        ),
    ] {
        let refusal = refusal(changes);
        assert!(refusal.contains(expected), "{refusal} for {expected}");
    }
    assert!(described(json!({ "use_bidirectional_attention": "vision" })).is_ok());
    let linear = rope(json!({ "rope_type": "proportional", "rope_theta": 1e6, "factor": 4.0 }));
    let linear = described(linear).unwrap();
    let rope = &linear.blocks[1].attention().unwrap().rope;
    assert_eq!(
        (&rope.scaling, rope.still),
        (&RopeScaling::Linear { factor: 4.0 }, 0)
    );
}

/// The names of a layout: outside the blocks, the prefix of a block, and in it.
struct Layout {
    outer: [&'static str; 5],
    block: &'static str,
    inner: [&'static str; 17],
}

const HUGGING_FACE: Layout = Layout {
    outer: [
        "model.embed_tokens",
        "model.norm",
        "model.embed_tokens_per_layer",
        "model.per_layer_model_projection",
        "model.per_layer_projection_norm",
    ],
    block: "model.layers.",
    inner: [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "per_layer_input_gate",
        "per_layer_projection",
        "post_per_layer_input_norm",
        "layer_scalar",
    ],
};

const GGUF: Layout = Layout {
    outer: [
        "token_embd",
        "output_norm",
        "per_layer_token_embd",
        "per_layer_model_proj",
        "per_layer_proj_norm",
    ],
    block: "blk.",
    inner: [
        "attn_norm",
        "post_attention_norm",
        "ffn_norm",
        "post_ffw_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "attn_q_norm",
        "attn_k_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "inp_gate",
        "proj",
        "post_norm",
        "layer_output_scale",
    ],
};

/// Returns the tensors of the model of [`config`], also those of keys that no block reads.
fn tensors(layout: &Layout) -> Tensors {
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        let name = if name.ends_with("layer_scalar") {
            name
        } else {
            format!("{name}.weight")
        };
        all.extend([tensor(&name, shape)]);
    };
    let shapes: [&[usize]; 5] = [&[100, 64], &[64], &[100, 60], &[60, 64], &[12]];
    for (name, shape) in layout.outer.iter().zip(shapes) {
        add((*name).to_owned(), shape);
    }
    for (block, kind) in KINDS.iter().enumerate() {
        let dim = if *kind == SLIDING { 16 } else { 32 };
        let width = if block < 3 { 96 } else { 192 };
        let shapes: [&[usize]; 17] = [
            &[64],
            &[64],
            &[64],
            &[64],
            &[4 * dim, 64],
            &[2 * dim, 64],
            &[2 * dim, 64],
            &[64, 4 * dim],
            &[dim],
            &[dim],
            &[width, 64],
            &[width, 64],
            &[64, width],
            &[12, 64],
            &[64, 12],
            &[64],
            &[1],
        ];
        for (name, shape) in layout.inner.iter().zip(shapes) {
            add(format!("{}{block}.{name}", layout.block), shape);
        }
    }
    all
}

fn open(tensors: &Tensors) -> Result<(ModelDescription, TensorMap)> {
    from_hugging_face(&config(json!({})), (tensors, &|_| false), &|_, _| false)
}

#[test]
fn every_tensor_of_gemma4_has_a_role_and_keys_that_no_block_reads_may_be_there() {
    let mut tensors = tensors(&HUGGING_FACE);
    let (description, map) = open(&tensors).unwrap();
    let inputs = map.token_inputs.unwrap();
    assert_eq!(inputs.table.name, "model.embed_tokens_per_layer.weight");
    assert_eq!(
        inputs.projection.name,
        "model.per_layer_model_projection.weight"
    );
    assert_eq!(
        map.blocks[1].scale.as_ref().unwrap().name,
        "model.layers.1.layer_scalar"
    );
    let input = map.blocks[4].token_input.as_ref().unwrap();
    assert_eq!(
        input.output.name,
        "model.layers.4.per_layer_projection.weight"
    );
    let layers: Vec<_> = map.blocks.iter().map(|block| block.linears.len()).collect();
    assert_eq!(layers, [7, 7, 7, 5, 5]);
    assert!(map.blocks[3].key_norm.is_none() && map.blocks[3].query_norm.is_some());
    let all: usize = tensors
        .values()
        .map(|tensor| tensor.shape.iter().product::<usize>())
        .sum();
    let unread = [3, 4].map(|block| {
        let dim = if KINDS[block] == SLIDING { 16 } else { 32 };
        2 * 2 * dim * 64 + dim
    });
    assert_eq!(description.parameters(), all - unread.iter().sum::<usize>());
    for name in ["self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm"] {
        tensors
            .remove(&format!("model.layers.3.{name}.weight"))
            .unwrap();
    }
    open(&tensors).unwrap();
    for name in [
        "model.layers.2.self_attn.k_proj.weight",
        "model.layers.4.layer_scalar",
        "model.embed_tokens_per_layer.weight",
    ] {
        let removed = tensors.remove(name).unwrap();
        let error = open(&tensors).unwrap_err().to_string();
        assert!(error.contains(name), "{error} for {name}");
        tensors.insert(name.to_owned(), removed);
    }
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Value::String("gemma4".into()));
    let integers = [
        ("embedding_length", 64),
        ("block_count", 5),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("context_length", 131_072),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("attention.key_length_swa", 16),
        ("attention.value_length_swa", 16),
        ("rope.dimension_count", 32),
        ("rope.dimension_count_swa", 16),
        ("attention.sliding_window", 8),
        ("attention.shared_kv_layers", 2),
        ("embedding_length_per_layer_input", 12),
    ];
    for (field, value) in integers {
        metadata.insert(format!("gemma4.{field}"), Value::Integer(value));
    }
    let floats = [
        ("attention.layer_norm_rms_epsilon", 1e-6),
        ("rope.freq_base", 1e6),
        ("rope.freq_base_swa", 1e4),
        ("final_logit_softcapping", 30.0),
    ];
    for (field, value) in floats {
        metadata.insert(format!("gemma4.{field}"), Value::Float(value));
    }
    metadata.insert(
        "gemma4.feed_forward_length",
        Value::Integers(vec![96, 96, 96, 192, 192]),
    );
    let windows = KINDS.map(|kind| kind == SLIDING).to_vec();
    metadata.insert(
        "gemma4.attention.sliding_window_pattern",
        Value::Bools(windows),
    );
    metadata
}

/// Opens a file of GGUF in which RoPE has these divisors. The blocks are in the order that llama.cpp needs.
fn open_gguf(metadata: &Metadata, tensors: &Tensors, divisors: &[f32]) -> Result<ModelDescription> {
    let read = |_: &TensorInfo| Ok(divisors.to_vec());
    Ok(from_gguf(metadata, tensors, &read)?.0)
}

/// Returns the tensors with a window in block 1 and none in block 2.
fn gguf_tensors() -> Tensors {
    let mut tensors = tensors(&GGUF);
    tensors.extend([tensor("rope_freqs.weight", &[16])]);
    tensors
}

fn divisors(rotated: usize) -> Vec<f32> {
    (0..16)
        .map(|pair| if pair < rotated { 1.0 } else { 1e30 })
        .collect()
}

#[test]
fn gemma4_in_gguf_is_the_model_of_its_configuration() {
    // The two blocks before those that share have to be one with a window and one without.
    let kinds = [FULL, SLIDING, FULL, SLIDING, FULL];
    let swapped = |metadata: &mut Metadata| {
        let windows = kinds.map(|kind| kind == SLIDING).to_vec();
        metadata.insert(
            "gemma4.attention.sliding_window_pattern",
            Value::Bools(windows),
        );
    };
    let mut metadata = metadata();
    let error = open_gguf(&metadata, &gguf_tensors(), &divisors(4))
        .unwrap_err()
        .to_string();
    assert!(error.contains("before block 3"), "{error}");
    swapped(&mut metadata);
    let shapes = |kinds: [&str; 5]| {
        let mut tensors = gguf_tensors();
        for (block, kind) in kinds.iter().enumerate() {
            let dim = if *kind == SLIDING { 16 } else { 32 };
            let mut set = |name: &str, shape: &[usize]| {
                tensors.extend([tensor(&format!("blk.{block}.{name}.weight"), shape)]);
            };
            set("attn_q", &[4 * dim, 64]);
            set("attn_output", &[64, 4 * dim]);
            for name in ["attn_k", "attn_v"] {
                set(name, &[2 * dim, 64]);
            }
            for name in ["attn_q_norm", "attn_k_norm"] {
                set(name, &[dim]);
            }
        }
        tensors
    };
    let mut tensors = shapes(kinds);
    let description = open_gguf(&metadata, &tensors, &divisors(4)).unwrap();
    let expected = described(json!({ "layer_types": kinds })).unwrap();
    assert_eq!(description, expected);
    // Values without a layer are the keys.
    tensors.remove("blk.2.attn_v.weight").unwrap();
    let one_layer = open_gguf(&metadata, &tensors, &divisors(4)).unwrap();
    assert_eq!(heads(&one_layer)[2].2, KeyValues::OneLayer);
    for (rotated, still) in [(0, 16), (16, 0)] {
        let description = open_gguf(&metadata, &tensors, &divisors(rotated)).unwrap();
        assert_eq!(description.blocks[0].attention().unwrap().rope.still, still);
    }
    let mixed: Vec<f32> = divisors(4).into_iter().rev().collect();
    let error = open_gguf(&metadata, &tensors, &mixed)
        .unwrap_err()
        .to_string();
    assert!(error.contains("rope_freqs.weight"), "{error}");
    for field in [
        "final_logit_softcapping",
        "rope.freq_base_swa",
        "rope.dimension_count_swa",
        "attention.key_length_swa",
    ] {
        let mut without = Metadata::default();
        let kept = metadata
            .iter()
            .filter(|(name, _)| *name != format!("gemma4.{field}"));
        kept.for_each(|(name, value)| drop(without.insert(name, value.clone())));
        let error = open_gguf(&without, &tensors, &divisors(4))
            .unwrap_err()
            .to_string();
        assert!(error.contains(field), "{error} for {field}");
    }
    let mut with_experts = metadata.clone();
    with_experts.insert("gemma4.expert_count", Value::Integer(8));
    let error = open_gguf(&with_experts, &tensors, &divisors(4)).unwrap_err();
    let expected = "expert_feed_forward_length";
    assert!(error.to_string().contains(expected), "{error}");
    for (field, value) in [
        ("rope.scaling.factor", Value::Float(2.0)),
        ("rope.scaling.attn_factor", Value::Float(0.0)),
        ("rope.scaling.type", Value::String("yarn".into())),
        ("rope.dimension_count", Value::Integer(8)),
        ("attention.shared_kv_layers", Value::Integer(5)),
        ("feed_forward_length", Value::Integers(vec![96; 4])),
    ] {
        let mut changed = metadata.clone();
        changed.insert(format!("gemma4.{field}"), value);
        let error = open_gguf(&changed, &tensors, &divisors(4))
            .unwrap_err()
            .to_string();
        assert!(error.contains(field), "{error} for {field}");
    }
}
