//! The memory that is predicted before a model is loaded is the memory that it uses. Results from a model file that is
//! truncated while it is mapped are not returned.

use std::path::Path;
use std::sync::Arc;

use triad_engine::{Cancel, Error, LoadOptions, Model, Session, SessionOptions, Threads, memory};
use triad_model::checkpoint::Checkpoint;

#[test]
fn weights_take_what_was_predicted_before_they_were_loaded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families");
    for model in [
        "llama",
        "llama.gguf",
        "gemma2.gguf",
        "phi2",
        "phi3",
        "qwen3.gguf",
    ] {
        let path = folder.join(model);
        let predicted = memory::of_weights(&Checkpoint::open(&path).unwrap());
        let loaded = Model::load(
            &path,
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap();
        assert_eq!(predicted, loaded.weights().bytes(), "{model}");
    }
}

/// Returns the resident bytes of a file's mapping, as counted by the system.
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let path = path.to_str().unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kilobytes: usize = rss.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kilobytes * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn pages_of_weights_that_are_copied_do_not_stay_in_memory() {
    use serde_json::json;
    use triad_model::testing::safetensors_file;

    let config = json!({
        "model_type": "qwen3_vl_moe_text", "vocab_size": 16384, "hidden_size": 64, "intermediate_size": 24,
        "head_dim": 16, "moe_intermediate_size": 4096, "num_experts": 2, "num_experts_per_tok": 1,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4,
        "tie_word_embeddings": false,
    });
    // The experts are gathered from columns, and the output matrix is widened since no number is aligned.
    let tensors: [(&str, &[usize]); 14] = [
        ("model.embed_tokens.weight", &[16384, 64]),
        ("model.norm.weight", &[64]),
        ("lm_head.weight", &[16384, 64]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.post_attention_layernorm.weight", &[64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.q_norm.weight", &[16]),
        ("model.layers.0.self_attn.k_norm.weight", &[16]),
        ("model.layers.0.mlp.gate.weight", &[2, 64]),
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 64, 8192]),
        ("model.layers.0.mlp.experts.down_proj", &[2, 4096, 64]),
    ];
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * 4;
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        header.insert(name.to_owned(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while header.len() % 4 != 1 {
        header.push(' ');
    }
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(&weights, safetensors_file(&header, &vec![0; end])).unwrap();
    let options = LoadOptions {
        threads: Threads::Count(1),
        ..Default::default()
    };
    let model = Model::load(folder.path(), &options).unwrap();
    assert!(model.weights().bytes() > 8 << 20);
    let resident = resident(&weights);
    // A system may map 2 MiB around a page that is read.
    assert!(resident <= 4 << 20, "{resident} of {end} bytes");
}

#[test]
#[cfg(unix)]
fn nothing_is_computed_with_a_model_file_that_is_truncated_while_it_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/families/llama.gguf");
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..Default::default()
    };
    let whole = std::fs::read(golden).unwrap();
    for left in [0, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole).unwrap();
        let model = Arc::new(Model::load(&path, &options).unwrap());
        let mut session = Session::new(
            &model,
            &SessionOptions {
                context: 64,
                ..Default::default()
            },
        )
        .unwrap();
        session.prefill(&[1, 2, 3], &Cancel::new(), |_| {}).unwrap();
        session.decode(4, &Cancel::new()).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(left as u64)
            .unwrap();
        let refused = |result: Result<(), Error>| {
            let Err(Error::Changed(error)) = result else {
                panic!("{left} bytes: {result:?}")
            };
            assert_eq!(error.path(), Some(path.as_path()));
        };
        refused(session.decode(5, &Cancel::new()).map(|_| ()));
        refused(session.save(&folder.path().join("session")));
        let mut session = Session::new(
            &model,
            &SessionOptions {
                context: 64,
                ..Default::default()
            },
        )
        .unwrap();
        refused(
            session
                .prefill(&[1, 2, 3], &Cancel::new(), |_| {})
                .map(|_| ()),
        );
        refused(session.hidden_states(&[1, 2, 3], &Cancel::new(), |_| panic!("given out")));
        let branch = triad_engine::Branch {
            tokens: &[1, 2, 3],
            scored_from: 1,
        };
        refused(session.score(&[branch], &Cancel::new(), |_| {}).map(|_| ()));
    }
}
