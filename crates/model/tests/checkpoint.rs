//! A checkpoint gives the same model for every file format.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use triad_model::checkpoint::{Checkpoint, Source};
use triad_model::dequantize::dequantize;
use triad_model::gguf::Value;
use triad_model::template::{ChatTemplate, Message};
use triad_model::testing::tiny_llama;
use triad_model::tokenizer::{EncodeOptions, Tokenizer};

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

/// Returns the bytes of tensor number `index` in F16: `index` + 0, 1, 2, ….
fn stored(index: usize) -> Vec<u8> {
    let elements: usize = TENSORS[index].1.iter().product();
    (0..elements)
        .flat_map(|element| half::f16::from_f32((index + element) as f32).to_le_bytes())
        .collect()
}

fn write_safetensors(path: &Path, tensors: &[usize]) {
    let data: BTreeMap<usize, Vec<u8>> = tensors
        .iter()
        .map(|&index| (index, stored(index)))
        .collect();
    let views = tensors.iter().map(|index| {
        let (name, shape) = TENSORS[*index];
        (
            name,
            TensorView::new(Dtype::F16, shape.to_vec(), &data[index]).unwrap(),
        )
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn write_config(folder: &Path) {
    let config = json!({
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false, "eos_token_id": 2
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn write_sharded(folder: &Path) {
    let (first, second): (Vec<usize>, Vec<usize>) =
        (0..TENSORS.len()).partition(|index| index % 3 == 0);
    let mut weight_map = serde_json::Map::new();
    for (name, tensors) in [
        ("model-1.safetensors", first),
        ("model-2.safetensors", second),
    ] {
        write_safetensors(&folder.join(name), &tensors);
        weight_map.extend(
            tensors
                .iter()
                .map(|&index| (TENSORS[index].0.to_owned(), name.into())),
        );
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": weight_map});
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

#[test]
fn a_file_a_folder_and_shards_hold_the_same_model() {
    let (single, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_config(single.path());
    write_safetensors(
        &single.path().join("model.safetensors"),
        &(0..TENSORS.len()).collect::<Vec<_>>(),
    );
    write_config(sharded.path());
    write_sharded(sharded.path());

    let file = single.path().join("model.safetensors");
    let opened = [single.path(), &file, sharded.path()].map(|path| Checkpoint::open(path).unwrap());
    for checkpoint in &opened {
        assert_eq!(checkpoint.description(), opened[0].description());
        assert_eq!(checkpoint.tensor_map(), opened[0].tensor_map());
        assert_eq!(
            checkpoint.stored_bytes(),
            2 * checkpoint.description().parameters()
        );
        assert_eq!(checkpoint.generation_defaults().end_tokens, [2]);
        assert!(matches!(
            checkpoint.source(),
            Source::HuggingFace {
                tokenizer_config: None,
                ..
            }
        ));
        for (index, (name, shape)) in TENSORS.into_iter().enumerate() {
            let tensor = checkpoint.tensor(name).unwrap();
            assert_eq!(tensor.shape, shape);
            assert_eq!(checkpoint.bytes(tensor), stored(index), "{name}");
        }
    }
}

#[test]
fn a_tensor_of_another_type_is_refused_only_if_the_model_needs_it() {
    let q_bias = "model.layers.0.self_attn.q_proj.bias";
    let cases = [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("model.layers.0.self_attn.masked_bias", None),
        ("vision_model.embeddings.position_ids", None),
        ("model.layers.0.self_attn.q_proj.scale", Some("has no part")),
        (q_bias, Some(q_bias)),
        (
            "model.norm.weight",
            Some("tensor \"model.norm.weight\" has type \"I64\", expected one of F32, F16, BF16"),
        ),
    ];
    for (name, refusal) in cases {
        for dtype in [Dtype::I64, Dtype::BOOL] {
            let folder = tempfile::tempdir().unwrap();
            write_config(folder.path());
            let data: Vec<Vec<u8>> = (0..TENSORS.len()).map(stored).collect();
            let floats = TENSORS
                .iter()
                .zip(&data)
                .filter(|((float, _), _)| *float != name);
            let views = floats.map(|((name, shape), data)| {
                (
                    *name,
                    TensorView::new(Dtype::F16, shape.to_vec(), data).unwrap(),
                )
            });
            let bytes = vec![1; dtype.bitsize() / 8 * 8];
            let other = TensorView::new(dtype, vec![8], &bytes).unwrap();
            let file = safetensors::serialize(views.chain([(name, other)]), None).unwrap();
            fs::write(folder.path().join("model.safetensors"), file).unwrap();
            let error = Checkpoint::open(folder.path())
                .err()
                .map(|error| error.to_string());
            match refusal {
                None => assert_eq!(error, None, "{name}"),
                Some(refusal) => {
                    let error = error
                        .expect(name)
                        .replace("\"I64\"", "X")
                        .replace("\"BOOL\"", "X");
                    assert!(error.contains(&refusal.replace("\"I64\"", "X")), "{error}");
                }
            }
        }
    }
}

#[test]
fn a_tied_output_matrix_is_taken_if_its_numbers_are_the_embeddings_in_whatever_format() {
    let embedding = stored(1);
    let widened = embedding
        .as_chunks()
        .0
        .iter()
        .flat_map(|&half| half::f16::from_le_bytes(half).to_f32().to_le_bytes());
    let widened: Vec<u8> = widened.collect();
    let last = |bytes: &[u8]| {
        let mut changed = bytes.to_vec();
        *changed.last_mut().unwrap() ^= 1;
        changed
    };
    let cases = [
        (Dtype::F16, embedding.clone(), true),
        (Dtype::F16, last(&embedding), false),
        (Dtype::F32, widened.clone(), true),
        (Dtype::F32, last(&widened), false),
    ];
    for (dtype, head, is_taken) in cases {
        let folder = tempfile::tempdir().unwrap();
        write_config(folder.path());
        let config = folder.path().join("config.json");
        let tied = fs::read_to_string(&config).unwrap().replace(
            "\"tie_word_embeddings\":false",
            "\"tie_word_embeddings\":true",
        );
        fs::write(config, tied).unwrap();
        let data: Vec<Vec<u8>> = (1..TENSORS.len()).map(stored).collect();
        let others = TENSORS[1..].iter().zip(&data);
        let views = others.map(|((name, shape), data)| {
            (
                *name,
                TensorView::new(Dtype::F16, shape.to_vec(), data).unwrap(),
            )
        });
        let head = TensorView::new(dtype, TENSORS[0].1.to_vec(), &head).unwrap();
        let file = safetensors::serialize(views.chain([(TENSORS[0].0, head)]), None).unwrap();
        fs::write(folder.path().join("model.safetensors"), file).unwrap();
        let error = Checkpoint::open(folder.path())
            .err()
            .map(|error| error.to_string());
        assert_eq!(error.is_none(), is_taken, "{dtype:?}: {error:?}");
        assert!(error.is_none_or(|error| {
            error.contains("`lm_head.weight` differs from `model.embed_tokens.weight`")
        }));
    }
}

#[test]
fn a_gguf_file_is_described_and_its_tensors_lie_in_place() {
    let folder = tempfile::tempdir().unwrap();
    // A file in a download cache may have any name.
    let path = folder.path().join("5f7ac9");
    let builder = tiny_llama().field("tokenizer.ggml.eos_token_id", Value::Integer(3));
    fs::write(&path, builder.build()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.description().hidden, 32);
    assert_eq!(checkpoint.generation_defaults().end_tokens, [3]);
    let norm = checkpoint
        .tensor(&checkpoint.tensor_map().output_norm.weight)
        .unwrap();
    let mut values = [0.0; 32];
    dequantize(norm.format, checkpoint.bytes(norm), &mut values);
    assert_eq!(values, [1.0; 32]);
}

#[test]
fn released_tensors_read_the_same_and_outlive_their_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, tiny_llama().build()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let norm = checkpoint.tensor("output_norm.weight").unwrap();
    let before = checkpoint.bytes(norm).to_vec();
    let mapped = checkpoint.mapped(norm);
    checkpoint.release(norm);
    drop(checkpoint);
    assert_eq!(*mapped, before);
}

/// Checks that a folder with only the text files of the model at `path` tokenizes and renders as the model does.
fn text_files_are_enough(path: &Path, files: usize) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let text_files = checkpoint.text_files().unwrap();
    assert_eq!(text_files.len(), files);
    for (name, content) in text_files {
        assert!(Source::TEXT_FILES.contains(&name));
        fs::write(copy.path().join(name), content).unwrap();
    }
    let source = Source::open_text(copy.path()).unwrap();
    let own = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    let copied =
        Tokenizer::from_source(&source, &checkpoint.generation_defaults().end_tokens).unwrap();
    assert_eq!(
        copied.encode("ab ba", EncodeOptions::TEXT).unwrap(),
        own.encode("ab ba", EncodeOptions::TEXT).unwrap()
    );
    assert_eq!(copied.end_tokens(), own.end_tokens());
    let template = ChatTemplate::from_source(&source, &copied)
        .unwrap()
        .expect("there is a template");
    assert_eq!(
        template
            .render(&[Message::new("user", "Hi")], true)
            .unwrap(),
        "Hi!"
    );
    if files > 1 {
        assert_eq!(template.for_tools().source(), "tools: {{ tools | length }}");
    }
}

const TEMPLATE: &str = "{{ messages[0].content }}!";

#[test]
fn the_text_files_of_a_folder_give_the_same_tokenizer_and_template() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizer/spm");
    let model = tempfile::tempdir().unwrap();
    write_config(model.path());
    write_safetensors(
        &model.path().join("model.safetensors"),
        &(0..TENSORS.len()).collect::<Vec<_>>(),
    );
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(golden.join(name), model.path().join(name)).unwrap();
    }
    // A package has no subfolders.
    fs::create_dir(model.path().join("additional_chat_templates")).unwrap();
    fs::write(
        model
            .path()
            .join("additional_chat_templates/tool_use.jinja"),
        "tools: {{ tools | length }}",
    )
    .unwrap();
    fs::write(model.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    text_files_are_enough(model.path(), 4);
}

#[test]
fn the_head_of_a_gguf_file_gives_the_same_tokenizer_and_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tokens = ["a", "b", "\u{120}", "ab"].map(str::to_owned).to_vec();
    let builder = tiny_llama()
        .field("tokenizer.ggml.model", Value::String("gpt2".into()))
        .field("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .field("tokenizer.ggml.tokens", Value::Strings(tokens))
        .field("tokenizer.ggml.merges", Value::Strings(vec!["a b".into()]))
        .field("tokenizer.ggml.eos_token_id", Value::Integer(3))
        .field("tokenizer.chat_template", Value::String(TEMPLATE.into()));
    fs::write(&path, builder.build()).unwrap();
    text_files_are_enough(&path, 1);
}

#[test]
fn a_byte_order_mark_before_a_models_json_changes_nothing() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, mark: &str| {
        for file in fs::read_dir(golden.join(from)).unwrap() {
            let file = file.unwrap();
            let (name, mut bytes) = (file.file_name(), fs::read(file.path()).unwrap());
            if name.to_string_lossy().ends_with(".json") {
                bytes.splice(0..0, mark.bytes());
            }
            fs::write(folder.path().join(name), bytes).unwrap();
        }
    };
    let read = |mark| {
        copy("families/qwen2", mark);
        copy("tokenizer/bpe-gpt-2", mark);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let tokenizer = Tokenizer::from_folder(folder.path(), None, &[1001]).unwrap();
        let tokens = tokenizer.encode("A word", EncodeOptions::TEXT).unwrap();
        (checkpoint.description().clone(), tokens)
    };
    assert_eq!(read("\u{feff}"), read(""));
}
