use super::{Tensors, llama_description, rows, tensor, tensors, windows};
use crate::description::{Linear, ModelDescription, Residual, RopePairing, RopeScaling};
use crate::error::Result;
use crate::family::from_gguf;
use crate::gguf::{Metadata, Value};
use crate::tensor::TensorInfo;
use crate::tensor_map::{TensorMap, TensorSlice};

pub(super) fn metadata(architecture: &str, more: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert(
        "general.architecture",
        Value::String(architecture.to_owned()),
    );
    let numbers = [
        ("embedding_length", 64),
        ("block_count", 2),
        ("feed_forward_length", 96),
        ("context_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    for (field, number) in numbers {
        metadata.insert(format!("{architecture}.{field}"), Value::Integer(number));
    }
    let epsilon = if ["phi2", "cohere2"].contains(&architecture) {
        "attention.layer_norm_epsilon"
    } else {
        "attention.layer_norm_rms_epsilon"
    };
    metadata.insert(format!("{architecture}.{epsilon}"), Value::Float(1e-5));
    for (field, value) in more {
        metadata.insert(format!("{architecture}.{field}"), value.clone());
    }
    metadata
}

pub(super) const GGUF_OUTER: [(&str, &[usize]); 2] = [
    ("token_embd.weight", &[100, 64]),
    ("output_norm.weight", &[64]),
];

pub(super) const GGUF_BLOCK: [(&str, &[usize]); 9] = [
    ("attn_norm.weight", &[64]),
    ("ffn_norm.weight", &[64]),
    ("attn_q.weight", &[64, 64]),
    ("attn_k.weight", &[32, 64]),
    ("attn_v.weight", &[32, 64]),
    ("attn_output.weight", &[64, 64]),
    ("ffn_gate.weight", &[96, 64]),
    ("ffn_up.weight", &[96, 64]),
    ("ffn_down.weight", &[64, 96]),
];

fn gguf_tensors(more: &[(&str, &[usize])]) -> Tensors {
    let block: Vec<_> = GGUF_BLOCK.iter().chain(more).copied().collect();
    tensors(&GGUF_OUTER, "blk.", 2, &block)
}

/// Replaces reading a tensor: returns 1, 2, 3, …
fn counting(info: &TensorInfo) -> Result<Vec<f32>> {
    Ok((1..=info.elements()).map(|value| value as f32).collect())
}

pub(super) fn from_file(
    metadata: &Metadata,
    tensors: &Tensors,
) -> Result<(ModelDescription, TensorMap)> {
    from_gguf(metadata, tensors, &counting)
}

#[test]
fn a_llama_gguf_file_pairs_adjacent_dimensions_and_is_tied_without_an_output_matrix() {
    let metadata = metadata(
        "llama",
        &[
            ("rope.freq_base", Value::Float(5e5)),
            ("vocab_size", Value::Integer(7)),
        ],
    );
    let (description, map) = from_file(&metadata, &gguf_tensors(&[])).expect("a good file");
    let mut expected = ModelDescription {
        tied_output: true,
        ..llama_description()
    };
    for block in &mut expected.blocks {
        block.attention_mut().unwrap().rope.pairing = RopePairing::Adjacent;
    }
    assert_eq!(description, expected);
    assert_eq!(map.output.weight.name, "token_embd.weight");

    let mut stored = gguf_tensors(&[]);
    stored.extend([
        tensor("output.weight", &[100, 64]),
        tensor("rope_freqs.weight", &[8]),
    ]);
    let (description, map) = from_file(&metadata, &stored).expect("a good file");
    assert!(!description.tied_output);
    assert_eq!(map.output.weight.name, "output.weight");
    let factors = (1..=8).map(|value| value as f32).collect();
    assert_eq!(
        description.blocks[1].attention().unwrap().rope.scaling,
        RopeScaling::Factors { factors }
    );
}

#[test]
fn biases_of_a_gguf_file_show_in_its_tensors() {
    let biases: [(&str, &[usize]); 3] = [
        ("attn_q.bias", &[64]),
        ("attn_k.bias", &[32]),
        ("attn_v.bias", &[32]),
    ];
    let (description, map) =
        from_file(&metadata("qwen2", &[]), &gguf_tensors(&biases)).expect("a good file");
    let attention = description.blocks[0].attention().unwrap();
    assert!(attention.qkv_bias && !attention.output_bias);
    assert_eq!(attention.rope.pairing, RopePairing::Halves);
    let bias = map.blocks[1].linears[&Linear::Value]
        .bias
        .as_ref()
        .expect("a bias");
    assert_eq!(bias.name, "blk.1.attn_v.bias");
    assert!(
        from_file(&metadata("qwen2", &[]), &gguf_tensors(&biases[..2])).is_err(),
        "one bias is missing"
    );
}

const GEMMA3_MORE: [(&str, &[usize]); 4] = [
    ("attn_q_norm.weight", &[16]),
    ("attn_k_norm.weight", &[16]),
    ("post_attention_norm.weight", &[64]),
    ("post_ffw_norm.weight", &[64]),
];

#[test]
fn a_gemma3_gguf_file_holds_whole_norms_and_omits_the_local_rope() {
    let fields = [
        ("rope.freq_base", Value::Float(1e6)),
        ("rope.scaling.type", Value::String("linear".to_owned())),
        ("rope.scaling.factor", Value::Float(8.0)),
        ("attention.sliding_window", Value::Integer(8)),
        ("attention.sliding_window_pattern", Value::Integer(2)),
    ];
    let (description, _) =
        from_file(&metadata("gemma3", &fields), &gguf_tensors(&GEMMA3_MORE)).expect("a good file");
    assert_eq!(
        (
            description.embedding_scale,
            description.output_norm.weight_offset
        ),
        (8.0, 0.0)
    );
    assert_eq!(windows(&description), [Some(8), None]);
    let rope = |block: usize| &description.blocks[block].attention().unwrap().rope;
    assert_eq!((rope(0).base, &rope(0).scaling), (1e4, &RopeScaling::None));
    assert_eq!(
        (rope(1).base, &rope(1).scaling),
        (1e6, &RopeScaling::Linear { factor: 8.0 })
    );

    let (description, _) = from_file(
        &metadata("gemma3", &fields[..4]),
        &gguf_tensors(&GEMMA3_MORE),
    )
    .expect("a good file");
    assert_eq!(
        windows(&description),
        [Some(8), Some(8)],
        "only every sixth block is global"
    );
}

#[test]
fn a_gemma2_gguf_file_takes_the_formats_defaults() {
    let fields = [
        ("attention.sliding_window", Value::Integer(8)),
        ("final_logit_softcapping", Value::Float(20.0)),
    ];
    let (description, _) = from_file(
        &metadata("gemma2", &fields),
        &gguf_tensors(&GEMMA3_MORE[2..]),
    )
    .expect("a good file");
    assert_eq!(windows(&description), [Some(8), None]);
    assert_eq!(
        (
            description.logit_soft_cap,
            description.blocks[0].attention().unwrap().soft_cap
        ),
        (Some(20.0), Some(50.0))
    );
    assert_eq!(description.blocks[0].attention().unwrap().scale, 0.25);
}

#[test]
fn a_window_in_a_gguf_file_of_a_family_without_windows_changes_nothing() {
    let window = [("attention.sliding_window", Value::Integer(8))];
    for architecture in ["llama", "gemma", "qwen2"] {
        let biases: [(&str, &[usize]); 3] = [
            ("attn_q.bias", &[64]),
            ("attn_k.bias", &[32]),
            ("attn_v.bias", &[32]),
        ];
        let stored = gguf_tensors(if architecture == "qwen2" {
            &biases
        } else {
            &[]
        });
        let (description, _) =
            from_file(&metadata(architecture, &window), &stored).expect("a good file");
        assert_eq!(windows(&description), [None, None], "{architecture}");
    }
}

#[test]
fn a_phi3_gguf_file_has_fused_tensors_and_stored_divisors() {
    let block: [(&str, &[usize]); 6] = [
        ("attn_norm.weight", &[64]),
        ("ffn_norm.weight", &[64]),
        ("attn_qkv.weight", &[128, 64]),
        ("attn_output.weight", &[64, 64]),
        ("ffn_up.weight", &[192, 64]),
        ("ffn_down.weight", &[64, 96]),
    ];
    let fields = [
        ("rope.dimension_count", Value::Integer(12)),
        ("rope.scaling.original_context_length", Value::Integer(64)),
        ("rope.scaling.attn_factor", Value::Float(1.5)),
    ];
    let mut stored = tensors(&GGUF_OUTER, "blk.", 2, &block);
    stored.extend([
        tensor("rope_factors_long.weight", &[6]),
        tensor("rope_factors_short.weight", &[6]),
    ]);
    let (description, map) = from_file(&metadata("phi3", &fields), &stored).expect("a good file");
    let factors: Vec<f32> = (1..=6).map(|value| value as f32).collect();
    let scaling = RopeScaling::LongRope {
        short: factors.clone(),
        long: factors,
        original_context: 64,
        attention_factor: 1.5,
    };
    assert_eq!(
        description.blocks[0].attention().unwrap().rope.scaling,
        scaling
    );
    assert_eq!(
        rows(&map.blocks[1].linears[&Linear::Up].weight),
        Some(96..192)
    );
    assert_eq!(
        rows(&map.blocks[1].linears[&Linear::Value].weight),
        Some(96..128)
    );

    // Cases where llama.cpp and transformers differ, and a pattern that neither supports.
    let pattern = Value::Bools(vec![true, false]);
    let longer = ("context_length", Value::Integer(256));
    let long_rope = ("rope.scaling.type", Value::String("longrope".into()));
    let factor = ("rope.scaling.factor", Value::Float(2.0));
    let window = ("attention.sliding_window", Value::Integer(8));
    let pattern = ("attention.sliding_window_pattern", pattern);
    for (kept, more, named) in [
        (2, vec![longer], "phi3.rope.scaling.attn_factor"),
        (3, vec![long_rope, factor], "phi3.rope.scaling.factor"),
        (
            3,
            vec![window, pattern],
            "phi3.attention.sliding_window_pattern",
        ),
    ] {
        let fields = [&fields[..kept], &more].concat();
        let error = from_file(&metadata("phi3", &fields), &stored)
            .expect_err(named)
            .to_string();
        assert!(error.contains(named), "{error}");
    }

    stored.remove("rope_factors_long.weight");
    let error = from_file(&metadata("phi3", &fields), &stored)
        .expect_err("half of LongRoPE")
        .to_string();
    assert!(error.contains("rope_factors_long.weight"), "{error}");
}

#[test]
fn a_phi2_gguf_file_keeps_the_rows_of_fused_biases() {
    let block: [(&str, &[usize]); 10] = [
        ("attn_norm.weight", &[64]),
        ("attn_norm.bias", &[64]),
        ("attn_qkv.weight", &[128, 64]),
        ("attn_qkv.bias", &[128]),
        ("attn_output.weight", &[64, 64]),
        ("attn_output.bias", &[64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_up.bias", &[96]),
        ("ffn_down.weight", &[64, 96]),
        ("ffn_down.bias", &[64]),
    ];
    let mut stored = tensors(&GGUF_OUTER, "blk.", 2, &block);
    stored.extend([
        tensor("output.weight", &[100, 64]),
        tensor("output.bias", &[100]),
        tensor("output_norm.bias", &[64]),
    ]);
    let (description, map) = from_file(&metadata("phi2", &[]), &stored).expect("a good file");
    assert_eq!(description.blocks[0].residual, Residual::Parallel);
    let key = map.blocks[0].linears[&Linear::Key].bias.clone();
    assert_eq!(
        key,
        Some(TensorSlice::of_rows("blk.0.attn_qkv.bias", 64..96))
    );
}

#[test]
fn a_gguf_file_that_triad_does_not_run_is_refused_by_name() {
    let text = |text: &str| Value::String(text.to_owned());
    let cases = [
        (metadata("mamba", &[]), "mamba"),
        (
            metadata("clip", &[]),
            "the projector of a vision model (metadata field `general.architecture` is `clip`); give the model's own GGUF",
        ),
        (
            metadata("qwen2", &[("expert_count", Value::Integer(8))]),
            "qwen2.expert_count",
        ),
        (
            metadata("llama", &[("rope.scaling.type", text("dynamic"))]),
            "dynamic",
        ),
        (
            metadata("llama", &[("attention.value_length", Value::Integer(8))]),
            "keys a width of 16",
        ),
        (
            metadata("llama", &[("logit_scale", Value::Float(0.5))]),
            "llama.logit_scale",
        ),
        (
            metadata("llama", &[("block_count", Value::Integer(1 << 40))]),
            "llama.block_count",
        ),
        (
            metadata("llama", &[("block_count", Value::Integer(-1))]),
            "llama.block_count",
        ),
        (
            metadata("llama", &[("attention.head_count", Value::Integer(0))]),
            "llama.attention.head_count",
        ),
        (
            metadata("llama", &[("rope.freq_base", Value::Float(f64::NAN))]),
            "llama.rope.freq_base",
        ),
        (
            metadata("llama", &[("rope.dimension_count", Value::Integer(18))]),
            "18 dimensions",
        ),
        (
            metadata("llama", &[("rope.scaling.factor", Value::Float(-2.0))]),
            "-2",
        ),
        (
            metadata("llama", &[("rope.scaling.type", text("longrope"))]),
            "rope_factors_short.weight",
        ),
        (metadata("gemma3", &[]), "gemma3.rope.freq_base"),
        (
            metadata("qwen3", &[("attention.causal", Value::Bool(false))]),
            "qwen3.attention.causal",
        ),
        (
            metadata("llama", &[("rope.scaling.attn_factor", Value::Float(1.5))]),
            "llama.rope.scaling.attn_factor",
        ),
        (
            metadata("gemma2", &[("rope.freq_base_swa", Value::Float(77.0))]),
            "gemma2.rope.freq_base_swa",
        ),
        (
            metadata("gemma2", &[("rope.dimension_count_swa", Value::Integer(8))]),
            "gemma2.rope.dimension_count_swa",
        ),
        (
            metadata(
                "gemma2",
                &[
                    ("rope.scaling.type", text("none")),
                    ("rope.scaling.factor", Value::Float(2.0)),
                ],
            ),
            "gemma2.rope.scaling.type",
        ),
        (Metadata::default(), "general.architecture"),
    ];
    for (metadata, named) in cases {
        let error = from_file(&metadata, &gguf_tensors(&[]))
            .expect_err(named)
            .to_string();
        assert!(error.contains(named), "expected {named}: {error}");
    }
    let mut stored = gguf_tensors(&[]);
    stored.extend([tensor("position_embd.weight", &[512, 64])]);
    let error = from_file(&metadata("llama", &[]), &stored)
        .expect_err("learned positions")
        .to_string();
    assert!(error.contains("position_embd.weight"), "{error}");
}

#[test]
fn the_axes_of_images_share_rope_and_the_fourth_has_none_of_it() {
    let read = |architecture: &str, sections: Value| {
        let metadata = metadata(architecture, &[("rope.dimension_sections", sections)]);
        let biases = [
            ("attn_q.bias", 64),
            ("attn_k.bias", 32),
            ("attn_v.bias", 32),
        ];
        let biases = biases.map(|(name, size)| (name, [size]));
        let biases: Vec<(&str, &[usize])> = biases
            .iter()
            .map(|(name, shape)| (*name, &shape[..]))
            .collect();
        from_file(&metadata, &gguf_tensors(&biases))
    };
    let integers = |values: &[i64]| Value::Integers(values.to_vec());
    for right in [integers(&[4, 2, 2, 0]), integers(&[8, 0, 0])] {
        read("qwen2vl", right).unwrap();
    }
    for wrong in [
        integers(&[2, 2, 2, 2]),
        integers(&[4, 2, 1, 0]),
        integers(&[4, 5, -1, 0]),
        integers(&[8]),
        integers(&[i64::MAX, i64::MAX, 10, 0]),
        Value::Bools(vec![true; 4]),
    ] {
        let error = read("qwen2vl", wrong.clone()).unwrap_err().to_string();
        assert!(
            error.contains("`qwen2vl.rope.dimension_sections`"),
            "{wrong:?}: {error}"
        );
        assert!(read("qwen2", wrong).is_ok(), "a text model has no axes");
    }
}

#[test]
fn sizes_of_each_block_are_read_if_they_are_equal() {
    let plain = from_file(&metadata("llama", &[]), &gguf_tensors(&[])).unwrap();
    let fields = [
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("feed_forward_length", 96),
    ];
    for (field, size) in fields {
        let read = |sizes: &[i64]| {
            let sizes = Value::Integers(sizes.to_vec());
            from_file(&metadata("llama", &[(field, sizes)]), &gguf_tensors(&[]))
        };
        assert_eq!(read(&[size, size]).unwrap(), plain, "{field}");
        for (sizes, expected) in [
            (&[size, size + 1][..], "for different blocks"),
            (&[size], "1 times"),
            (&[size; 3], "3 times"),
            (&[0, 0], "2 times 0"),
            (&[-1, -1], "2 times -1"),
            (&[], "0 times"),
        ] {
            let error = read(sizes).expect_err(field).to_string();
            let named = error.contains(&format!("`llama.{field}`")) && error.contains(expected);
            assert!(named, "{sizes:?}: {error}");
        }
    }
}

#[test]
fn divisors_of_rope_that_make_no_sense_are_errors() {
    let mut stored = gguf_tensors(&[]);
    stored.extend([tensor("rope_freqs.weight", &[8])]);
    let zero = |info: &TensorInfo| Ok(vec![0.0; info.elements()]);
    let error = from_gguf(&metadata("llama", &[]), &stored, &zero)
        .expect_err("division by 0")
        .to_string();
    assert!(error.contains("rope_freqs.weight"), "{error}");
    stored.extend([tensor("rope_freqs.weight", &[7])]);
    let error = from_file(&metadata("llama", &[]), &stored)
        .expect_err("too few")
        .to_string();
    assert!(error.contains("[7], expected [8]"), "{error}");
}

#[test]
fn a_gguf_file_of_minicpm_states_all_its_factors() {
    let factors = [
        ("embedding_scale", Value::Float(12.0)),
        ("residual_scale", Value::Float(0.25)),
        ("logit_scale", Value::Float(4.0)),
    ];
    let found = from_file(&metadata("minicpm", &factors), &gguf_tensors(&[])).unwrap();
    let found = found.0;
    let scales = [found.embedding_scale, found.residual_scale];
    assert_eq!((scales, found.logit_scale), ([12.0, 0.25], 0.25));
    // llama.cpp has values of its own for those that are absent.
    for absent in 0..factors.len() {
        let mut others = factors.to_vec();
        let (field, _) = others.remove(absent);
        let error = from_file(&metadata("minicpm", &others), &gguf_tensors(&[])).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn windows_that_other_engines_read_in_another_way_are_refused() {
    let window = |size: i128| [("attention.sliding_window", Value::Integer(size))];
    let taps = ("shortconv.l_cache", Value::Integer(3));
    let lfm2: Vec<_> = window(8).into_iter().chain([taps]).collect();
    let experts = [
        ("expert_count", Value::Integer(3)),
        ("expert_used_count", Value::Integer(2)),
        ("expert_feed_forward_length", Value::Integer(8)),
    ];
    let gpt_oss: Vec<_> = window(0).into_iter().chain(experts).collect();
    for (architecture, numbers) in [("lfm2", lfm2), ("gpt-oss", gpt_oss)] {
        let found = from_file(&metadata(architecture, &numbers), &gguf_tensors(&[]));
        let error = found.unwrap_err().to_string();
        assert!(error.contains("attention.sliding_window"), "{error}");
    }
}
