//! Encoders of pictures: what their files may state, and what is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use triad_model::checkpoint::Checkpoint;
use triad_model::gguf;
use triad_model::testing::GgufBuilder;
use triad_model::vision::VisionFile;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

/// Opens the encoder of a golden folder of which `change` changes the configuration.
fn opened(name: &str, change: impl FnOnce(&mut Value)) -> triad_model::Result<VisionFile> {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(golden().join(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let weights = "model.safetensors";
    fs::copy(
        golden().join(name).join(weights),
        folder.path().join(weights),
    )
    .unwrap();
    VisionFile::open(folder.path())
}

fn refused(name: &str, change: impl FnOnce(&mut Value)) -> String {
    opened(name, change).expect_err("refused").to_string()
}

/// Opens an mmproj file of which `change` changes fields, and without the field or the tensor called `without`.
fn opened_gguf(
    name: &str,
    change: &[(&str, gguf::Value)],
    without: &str,
) -> triad_model::Result<VisionFile> {
    let bytes = fs::read(golden().join(name)).unwrap();
    let file = gguf::read(&bytes).unwrap();
    let mut builder = GgufBuilder::new();
    for (key, value) in file.metadata.iter().filter(|(key, _)| *key != without) {
        let changed = change.iter().find(|(changed, _)| *changed == key);
        let value = changed.map_or(value, |(_, value)| value);
        builder = builder.field(key, value.clone());
    }
    for info in file.tensors.values().filter(|info| info.name != without) {
        let bytes = &bytes[info.bytes.clone()];
        builder = builder.tensor(&info.name, &info.shape, info.format, bytes);
    }
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(path.path(), builder.build()).unwrap();
    VisionFile::open(path.path())
}

#[test]
fn both_files_of_an_encoder_have_one_description() {
    let names = [
        "smolvlm",
        "gemma3",
        "gemma4",
        "gemma4-inputs",
        "llava",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "internvl",
        "lfm2_vl",
    ];
    for name in names {
        let folder = VisionFile::open(&golden().join(name)).unwrap();
        let file = VisionFile::open(&golden().join(format!("{name}-mmproj.gguf"))).unwrap();
        let text = Checkpoint::open(golden().join(name)).unwrap();
        let mut described = file.description_for(text.description());
        // Gemma's file has the whole factor, and others have query, key and value apart, or channels first.
        let expected = folder.description();
        described.joined = expected.joined;
        described.channels_last = expected.channels_last;
        if let (Some(norm), Some(other)) = (&mut described.projector.norm, expected.projector.norm)
        {
            norm.norm.weight_offset = other.norm.weight_offset;
        }
        assert_eq!(&described, expected, "{name}");
    }
}

#[test]
fn fields_that_change_the_computation_are_refused_by_name() {
    type Change = (&'static str, &'static str, Value, &'static str);
    let changes: [Change; 29] = [
        (
            "smolvlm",
            "vision_config.hidden_act",
            json!("relu"),
            "expected gelu",
        ),
        (
            "smolvlm",
            "vision_config.num_channels",
            json!(4),
            "expected 3",
        ),
        (
            "smolvlm",
            "vision_config.num_attention_heads",
            json!(5),
            "divisor",
        ),
        ("smolvlm", "vision_config.patch_size", json!(0), "from 1 to"),
        (
            "smolvlm",
            "vision_config.image_size",
            json!([48, 40]),
            "two equal",
        ),
        ("smolvlm", "vision_config.image_size", json!(4), "patches"),
        ("smolvlm", "scale_factor", json!(3), "modality_projection"),
        (
            "smolvlm",
            "vision_config.num_hidden_layers",
            json!(3),
            "missing",
        ),
        ("smolvlm", "vision_config.hidden_size", json!(32), "shape"),
        ("gemma3", "mm_tokens_per_image", json!(15), "square"),
        (
            "gemma3",
            "vision_config.model_type",
            json!("other"),
            "siglip_vision_model",
        ),
        (
            "gemma4",
            "vision_config.num_key_value_heads",
            json!(1),
            "num_attention_heads",
        ),
        ("gemma4", "vision_config.head_dim", json!(16), "hidden_size"),
        (
            "gemma4",
            "vision_config.model_type",
            json!("gemma4_unified_vision"),
            "expected gemma4_vision",
        ),
        (
            "gemma4",
            "text_config.use_bidirectional_attention",
            json!("all"),
            "expected vision",
        ),
        ("gemma4", "vision_config.standardize", json!(false), "role"),
        (
            "gemma4-inputs",
            "text_config.pad_token_id",
            json!(3),
            "expected 0",
        ),
        (
            "gemma4-inputs",
            "vision_config.use_clipped_linears",
            json!(false),
            "has no role",
        ),
        (
            "llava",
            "vision_feature_layer",
            json!([-2, -5]),
            "an integer",
        ),
        ("llava", "vision_feature_layer", json!(-9), "blocks"),
        (
            "llava",
            "vision_feature_select_strategy",
            json!("full"),
            "default",
        ),
        (
            "llava",
            "vision_config.model_type",
            json!("pixtral"),
            "clip_vision_model",
        ),
        (
            "qwen2_vl",
            "vision_config.hidden_size",
            json!(48),
            "width of the text model",
        ),
        (
            "qwen2_5_vl",
            "vision_config.window_size",
            json!(7),
            "at least 8",
        ),
        (
            "qwen3_vl",
            "vision_config.num_position_embeddings",
            json!(24),
            "a square",
        ),
        (
            "qwen3_vl",
            "vision_config.deepstack_visual_indexes",
            json!([2, 9]),
            "ascending",
        ),
        (
            "internvl",
            "vision_config.use_qk_norm",
            json!(true),
            "use_qk_norm",
        ),
        ("internvl", "downsample_ratio", json!(0.3), "integer"),
        ("internvl", "vision_feature_layer", json!(-2), "expected -1"),
    ];
    for (name, field, value, expected) in changes {
        let error = refused(name, |config| {
            let place = match field.split_once('.') {
                Some((outer, inner)) => &mut config[outer][inner],
                None => &mut config[field],
            };
            *place = value.clone();
        });
        assert!(
            error.contains(expected),
            "{name}, {field} = {value}: {error}"
        );
        assert!(!error.contains('\n'), "one line: {error}");
    }
    let error = refused("smolvlm", |config| {
        config["model_type"] = json!("paligemma");
    });
    assert!(
        error.contains("reads no pictures for the `model_type` `paligemma`"),
        "{error}"
    );
    let error = refused("smolvlm", |config| {
        *config = json!({ "model_type": "llama" });
    });
    assert!(error.contains("reads text alone"), "{error}");
}

#[test]
fn a_tensor_without_a_role_is_refused_by_name() {
    // Without the norm, its tensor is left over.
    let error = refused("internvl", |config| {
        config["vision_config"]["attention_bias"] = json!(false);
    });
    assert!(error.contains("has no role"), "{error}");
    // Blocks after the one whose output is read are not needed.
    assert!(opened("llava", |config| config["vision_feature_layer"] = json!(1)).is_ok());
}

#[test]
fn an_mmproj_file_is_checked_field_by_field() {
    use gguf::Value::{Bool, Float, Integer, String as Text};
    let name = "smolvlm-mmproj.gguf";
    let changes = [
        (
            "general.architecture",
            Text("llama".into()),
            "expected `clip`",
        ),
        ("clip.has_vision_encoder", Bool(false), "expected true"),
        (
            "clip.projector_type",
            Text("resampler".into()),
            "expected idefics3",
        ),
        ("clip.vision.patch_size", Integer(0), "from 1 to"),
        ("clip.vision.patch_size", Integer(4), "shape"),
        ("clip.vision.block_count", Integer(1 << 20), "from 1 to"),
        ("clip.vision.block_count", Integer(3), "missing"),
        ("clip.vision.embedding_length", Integer(25), "divisor"),
        ("clip.vision.projector.scale_factor", Integer(5), "shape"),
        (
            "clip.vision.attention.layer_norm_epsilon",
            Float(-1.0),
            "1e-20",
        ),
        ("clip.vision.image_size", Integer(1), "patches"),
        ("clip.use_silu", Bool(true), "one activation"),
    ];
    for (key, value, expected) in changes {
        let error = opened_gguf(name, &[(key, value.clone())], "").expect_err("refused");
        let error = error.to_string();
        assert!(error.contains(expected), "{key} = {value:?}: {error}");
    }
    for tensor in [
        "mm.model.fc.weight",
        "v.blk.1.ln2.bias",
        "v.patch_embd.weight",
    ] {
        let error = opened_gguf(name, &[], tensor)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(tensor), "{error}");
    }
}

#[test]
fn an_encoder_of_sound_next_to_that_of_pictures_is_left_out() {
    let name = "gemma4-inputs-mmproj.gguf";
    let file = opened_gguf(name, &[], "").unwrap();
    assert!(file.description().bounded);
    let error = opened_gguf(name, &[], "v.blk.1.ffn_up.output_max").expect_err("refused");
    assert!(error.to_string().contains("output_max"), "{error}");
    let error = opened_gguf(name, &[], "v.position_embd.weight").expect_err("refused");
    assert!(error.to_string().contains("missing"), "{error}");
    let key = "clip.has_vision_encoder";
    let error = opened_gguf(name, &[(key, gguf::Value::Bool(false))], "").expect_err("refused");
    assert!(error.to_string().contains(key), "{error}");
}

#[test]
fn older_files_of_qwen2_vl_have_no_width_of_the_feed_forward() {
    let name = "qwen2_vl-mmproj.gguf";
    let key = "clip.vision.feed_forward_length";
    let zero = opened_gguf(name, &[(key, gguf::Value::Integer(0))], "").unwrap();
    let whole = opened_gguf(name, &[], "").unwrap();
    assert_eq!(zero.description(), whole.description());
}

#[test]
fn qwen2_5_vl_without_its_windows_is_refused() {
    let key = "clip.vision.n_wa_pattern";
    let error = opened_gguf("qwen2_5_vl-mmproj.gguf", &[], key).expect_err("refused");
    assert!(error.to_string().contains(key), "{error}");
}

#[test]
fn every_truncated_mmproj_file_is_an_error() {
    let bytes = fs::read(golden().join("qwen3_vl-mmproj.gguf")).unwrap();
    let path = tempfile::NamedTempFile::new().unwrap();
    for length in (0..bytes.len()).step_by(997) {
        fs::write(path.path(), &bytes[..length]).unwrap();
        assert!(VisionFile::open(path.path()).is_err(), "{length} bytes");
    }
}

#[test]
fn a_mutated_mmproj_file_is_an_encoder_or_an_error() {
    let bytes = fs::read(golden().join("llava-mmproj.gguf")).unwrap();
    let path = tempfile::NamedTempFile::new().unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    // Fields and the table of tensors are at the beginning.
    let head = bytes.len() / 8;
    for _ in 0..2000 {
        let mut changed = bytes.clone();
        for _ in 0..=random(4) {
            changed[random(head)] = random(256) as u8;
        }
        fs::write(path.path(), &changed).unwrap();
        if let Ok(file) = VisionFile::open(path.path()) {
            let description = file.description();
            let _ = description.cells(24, 24);
            description.layers().iter().for_each(|layer| {
                file.weights(layer.layer);
            });
        }
    }
}
