//! Files of encoders: each field of a `config.json` is followed, without effect, or refused, as in `transformers`, and
//! what is missing, left over or contradictory is refused by its name.
//!
//! `tests/golden/encoders/fields.py` changed the fields, and wrote how the hidden states of two versions change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use triad_model::ErrorKind;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{Head, Mixer, ModelDescription, Residual};
use triad_model::error::Result;
use triad_model::gguf::{self, Value};
use triad_model::testing::GgufBuilder;
use triad_model::tokenizer::{EncodeOptions, Tokenizer, TokenizerKind};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/encoders")
}

/// Returns a copy of a model's folder.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_in(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                fs::create_dir(&to).unwrap();
                copy_in(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy_in(&golden().join(name), folder.path());
    folder
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Changes a JSON file of a copy of `name`, and opens it.
fn with(name: &str, file: &str, change: impl Fn(&mut Json)) -> Result<ModelDescription> {
    let folder = copy(name);
    let path = folder.path().join(file);
    let mut value = read(&path);
    change(&mut value);
    fs::write(&path, value.to_string()).unwrap();
    Checkpoint::open(folder.path()).map(|checkpoint| checkpoint.description().clone())
}

#[test]
fn each_field_of_a_configuration_is_followed_without_effect_or_refused() {
    // The effects of one change in both versions.
    let mut changes: BTreeMap<String, (Json, Vec<String>)> = BTreeMap::new();
    for version in [4, 5] {
        let lines = fs::read_to_string(golden().join(format!("fields-{version}.json"))).unwrap();
        for line in lines.lines() {
            let mut change: Json = serde_json::from_str(line).unwrap();
            let effect = change["effect"].take().as_str().unwrap().to_owned();
            let entry = changes.entry(change.to_string());
            entry.or_insert((change, Vec::new())).1.push(effect);
        }
    }
    let bases: BTreeMap<&str, ModelDescription> = ["bert", "xlm-roberta", "gemma", "modern-bert"]
        .map(|name| (name, with(name, "config.json", |_| {}).unwrap()))
        .into();
    let mut failed = Vec::new();
    for (change, effects) in changes.values() {
        let (name, field) = (change["model"].as_str().unwrap(), &change["field"]);
        let changed = with(name, "config.json", |config| {
            let fields = config.as_object_mut().unwrap();
            let field = field.as_str().unwrap().to_owned();
            match change.get("value") {
                Some(value) => fields.insert(field, value.clone()),
                None => fields.remove(&field),
            };
        });
        let is_same = changed
            .as_ref()
            .is_ok_and(|it| of_states(it) == of_states(&bases[name]));
        let field = field.as_str().unwrap();
        // A version that does not load the file says nothing of its numbers.
        let mut effects: BTreeSet<&str> = effects.iter().map(String::as_str).collect();
        let is_error = effects.remove("error");
        let is_right = match &effects.iter().copied().collect::<Vec<_>>()[..] {
            // Right, or refused.
            _ if changed.is_err() => true,
            // Nothing is dropped out unless a model is trained.
            // Nothing pads here, and vectors have no classifier.
            [] if name == "modern-bert"
                && ["classifier_pooling", "pad_token_id"].contains(&field) =>
            {
                is_error
            }
            [] => is_error && field.contains("dropout"),
            // The changed epsilon is as good as nothing, too.
            ["same"] => is_same || ["layer_norm_eps", "norm_eps"].contains(&field),
            ["other"] => !is_same,
            _ => false,
        };
        if !is_right {
            let here = changed.map(|_| is_same);
            failed.push(format!("{change}: {effects:?}, here the same: {here:?}"));
        }
    }
    assert!(changes.len() > 200);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Returns a description without what has no part in hidden states.
fn of_states(description: &ModelDescription) -> ModelDescription {
    let mut description = description.clone();
    description.context = 1;
    description.logit_soft_cap = None;
    for block in &mut description.blocks {
        if let Mixer::Attention(attention) = &mut block.mixer
            && attention.rope.dims == 0
        {
            attention.rope.base = 1.0;
        }
    }
    description
}

#[test]
fn the_description_of_bert_has_its_parts() {
    let bert = with("bert", "config.json", |_| {}).unwrap();
    assert!(bert.is_encoder());
    assert_eq!(
        (bert.context, bert.blocks[0].residual),
        (192, Residual::Replacing)
    );
    let positions = bert.added_inputs.positions.unwrap();
    assert_eq!(
        (positions.rows, positions.first, positions.padding),
        (192, 0, None)
    );
    assert_eq!((bert.added_inputs.token_types, &bert.head), (2, &None));
    let roberta = with("xlm-roberta", "config.json", |_| {}).unwrap();
    let positions = roberta.added_inputs.positions.unwrap();
    assert_eq!(
        (positions.rows, positions.first, positions.padding),
        (514, 2, Some(1))
    );
    assert_eq!(roberta.context, 512);
    let gemma = with("gemma", "config.json", |_| {}).unwrap();
    assert!(gemma.is_encoder() && gemma.vector_width() == 32);
    let head: Head = gemma.head.unwrap();
    assert_eq!((head.layers.len(), head.classifier), (2, None));
    // 24 / 2 + 1: as far as the half on both sides.
    let window = gemma.blocks[0].attention().unwrap().window;
    assert_eq!(window, Some(13));
}

#[test]
fn a_dense_layer_that_is_not_what_its_configuration_states_is_refused_by_name() {
    type Change = fn(&mut Json);
    let changes: [(&str, Change); 6] = [
        ("activation_function", |it| {
            it["activation_function"] = json!("torch.nn.modules.activation.ReLU");
        }),
        ("in_features", |it| it["in_features"] = json!(31)),
        ("out_features", |it| it["out_features"] = json!(null)),
        ("bias", |it| it["bias"] = json!(false)),
        ("bias", |it| it["bias"] = json!("yes")),
        ("module_output_name", |it| {
            it["module_output_name"] = json!("token_embeddings");
        }),
    ];
    for (field, change) in changes {
        let error = with("bert-dense", "2_Dense/config.json", change).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains(field) && message.contains("2_Dense"),
            "{message}"
        );
    }
    type Modules = fn(&mut Vec<Json>);
    let changes: [(&str, Modules); 2] = [
        ("two dense layers in the folder 2_Dense", |all| {
            all.push(all[2].clone());
        }),
        ("17 dense layers", |all| {
            for number in 3..19 {
                let mut module = all[2].clone();
                module["path"] = json!(format!("{number}_Dense"));
                all.push(module);
            }
        }),
    ];
    for (words, change) in changes {
        // They are refused before any folder is opened.
        let error = with("bert-dense", "modules.json", |modules| {
            change(modules.as_array_mut().unwrap());
        });
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains(words) && message.contains("modules.json"),
            "{message}"
        );
    }
    let folder = copy("bert-dense");
    fs::remove_file(folder.path().join("2_Dense/model.safetensors")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    // A path outside the folder is no layer.
    let changed = with("bert-dense", "modules.json", |modules| {
        modules[2]["path"] = json!("../2_Dense");
    });
    assert_eq!(changed.unwrap().head, None);
}

#[test]
fn the_description_of_modernbert_has_its_parts() {
    let model = with("modern-bert", "config.json", |_| {}).unwrap();
    let residuals = model.blocks.iter().map(|block| block.residual);
    assert!(model.is_encoder() && !model.writes());
    assert_eq!(
        residuals.collect::<Vec<_>>(),
        [
            Residual::SerialAfterNorm,
            Residual::Serial,
            Residual::Serial,
            Residual::Serial,
            Residual::Serial
        ]
    );
    let attentions = model.blocks.iter().filter_map(|block| block.attention());
    let of: Vec<_> = attentions.map(|it| (it.window, it.rope.base)).collect();
    // 16 / 2 + 1: as far as the half on both sides.
    let (global, local) = ((None, 160_000.0), (Some(9), 10_000.0));
    assert_eq!(of, [global, local, local, global, local]);
    for (field, value) in [
        ("norm_bias", json!(true)),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 2.0}),
        ),
        ("sliding_window", json!(9)),
        ("local_rope_theta", Json::Null),
        ("layer_types", json!(vec!["full_attention"; 5])),
        ("is_causal", json!(true)),
    ] {
        let error = with("modern-bert", "config.json", |it| it[field] = value.clone());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    for (field, value) in [
        ("classifier_pooling", json!("max")),
        ("classifier_activation", json!("relu")),
    ] {
        let error = with("rerank-modern-bert", "config.json", |it| {
            it[field] = value.clone();
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn words_that_score_a_pair_are_refused_by_name_where_they_cannot() {
    let model = with("rerank-qwen3", "config.json", |_| {}).unwrap();
    assert!(model.writes() && model.vector_width() == 1);
    type Change = fn(&mut Json);
    let file = "1_LogitScore/config.json";
    let changes: [(&str, &str, Change); 7] = [
        (file, "true_token_id", |it| it["true_token_id"] = json!(268)),
        (file, "true_token_id", |it| {
            it["true_token_id"] = json!(null);
        }),
        (file, "false_token_id", |it| {
            it["false_token_id"] = json!("no");
        }),
        (file, "module_input_name", |it| {
            it["module_input_name"] = json!("logits");
        }),
        ("modules.json", "LogitScore", |it| {
            it[1]["path"] = json!("../a");
        }),
        ("modules.json", "LogitScore", |it| it[1]["path"] = json!("")),
        ("modules.json", "2_LogitScore", |it| {
            it[1]["path"] = json!("2_LogitScore");
        }),
    ];
    for (file, words, change) in changes {
        let error = with("rerank-qwen3", file, change).unwrap_err().to_string();
        assert!(error.contains(words), "{file}: {error}");
    }
    let one = with("rerank-qwen3", file, |it| {
        it["false_token_id"] = json!(null);
    })
    .unwrap();
    assert_eq!(one.head.unwrap().layers[0].out_features, 1);
    // A language model with a classifier has no output matrix, and needs a name for each class.
    let classifier = with("rerank-qwen3-score", "config.json", |_| {}).unwrap();
    assert!(!classifier.writes() && classifier.tied_output);
    let tokens = with("classes-bert", "config.json", |it| {
        it["architectures"] = json!(["BertForTokenClassification"]);
    });
    assert_eq!(tokens.unwrap().head, None);
    let error = with("classes-bert", "config.json", |it| {
        it["id2label"] = json!({"0": "a", "2": "b", "3": "c"});
    });
    assert!(error.unwrap_err().to_string().contains("id2label"));
}

/// Opens a GGUF file of a model with other fields.
fn gguf_with(name: &str, fields: &[(&str, Option<Value>)]) -> Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(golden().join(format!("{name}.gguf"))).unwrap();
    let file = gguf::read(&bytes).unwrap();
    let mut all: BTreeMap<String, Value> = file
        .metadata
        .iter()
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    for (field, value) in fields {
        match value {
            Some(value) => all.insert((*field).to_owned(), value.clone()),
            None => all.remove(*field),
        };
    }
    let mut builder = GgufBuilder::new();
    for (field, value) in all {
        builder = builder.field(&field, value);
    }
    for (name, tensor) in &file.tensors {
        let values = bytes[tensor.bytes.clone()].chunks_exact(4);
        let values: Vec<f32> = values
            .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
            .collect();
        builder = builder.tensor_f32(name, &tensor.shape, &values);
    }
    let path = folder.path().join("model.gguf");
    fs::write(&path, builder.build()).unwrap();
    Checkpoint::open(path)
}

#[test]
fn fields_of_gguf_that_contradict_an_encoder_are_refused_by_name() {
    for (name, field, value) in [
        ("bert", "bert.attention.causal", Some(Value::Bool(true))),
        ("bert", "bert.attention.causal", None),
        ("nomic", "nomic-bert.attention.causal", None),
        (
            "bert",
            "bert.attention.max_alibi_bias",
            Some(Value::Float(8.0)),
        ),
        (
            "gemma",
            "gemma-embedding.dense_2_feat_out",
            Some(Value::Integer(63)),
        ),
        (
            "gemma",
            "gemma-embedding.dense_3_feat_in",
            Some(Value::Integer(63)),
        ),
    ] {
        let error = gguf_with(name, &[(field, value)]).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    // More context than positions.
    let more = Some(Value::Integer(193));
    let error = gguf_with("bert", &[("bert.context_length", more)]).unwrap_err();
    assert!(error.to_string().contains("193"), "{error}");
    gguf_with(
        "gemma",
        &[("gemma-embedding.attention.causal", Some(Value::Bool(false)))],
    )
    .unwrap();
}

#[test]
fn word_piece_of_gguf_is_that_of_the_folder() {
    let of = |name: &str| {
        let checkpoint = Checkpoint::open(golden().join(name)).unwrap();
        Tokenizer::from_checkpoint(&checkpoint).unwrap()
    };
    for (folder, kind) in [
        ("bert", TokenizerKind::WordPiece),
        ("xlm-roberta", TokenizerKind::Unigram),
    ] {
        let (folder, file) = (of(folder), of(&format!("{folder}.gguf")));
        assert_eq!((folder.kind(), file.kind()), (kind, kind));
        for text in [
            "A cat sleeps.",
            "",
            "  x\n\ty  ",
            "Größe: 25 °C, 天气!",
            "café CAFÉ",
            "[SEP] </s>",
            "ﬁ ① Ａ…",
            "end-end",
            "\u{0}a\u{fffd}",
            "long".repeat(40).as_str(),
        ] {
            let [tokens, of_file] = [&folder, &file].map(|it| {
                it.encode(
                    text,
                    EncodeOptions {
                        parse_special: true,
                        add_special: true,
                    },
                )
                .unwrap()
            });
            assert_eq!(tokens, of_file, "{text:?}");
            let pairs = [folder.pair(), file.pair()].map(|it| it.unwrap().join(&[7], &[8]).0);
            assert_eq!(pairs[0], pairs[1]);
        }
    }
    assert_eq!(
        of("bert").decode(&[2, 7, 45, 3]),
        of("bert.gguf").decode(&[2, 7, 45, 3])
    );
}

#[test]
fn a_word_piece_vocabulary_that_the_file_does_not_explain_is_refused_by_name() {
    let read = |field: &str, change: &dyn Fn(Vec<String>) -> Value| {
        let bytes = fs::read(golden().join("bert.gguf")).unwrap();
        let mut metadata = gguf::read(&bytes).unwrap().metadata;
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .to_vec();
        metadata.insert(field, change(tokens));
        Tokenizer::from_gguf(&metadata)
            .err()
            .expect(field)
            .to_string()
    };
    let tokens = "tokenizer.ggml.tokens";
    let types = "tokenizer.ggml.token_type";
    let with_types = |kind: i64| {
        let bytes = fs::read(golden().join("bert.gguf")).unwrap();
        let metadata = gguf::read(&bytes).unwrap().metadata;
        let mut all = metadata.integers(types).unwrap().unwrap().to_vec();
        all[9] = kind;
        Value::Integers(all)
    };
    for kind in [2, 6] {
        assert!(read(types, &|_| with_types(kind)).contains(&format!("{types}`[9] is {kind}")));
    }
    let with_capital = |mut all: Vec<String>| {
        all[9] = "▁The".into();
        Value::Strings(all)
    };
    assert!(read(tokens, &with_capital).contains("capital"));
    let twice = |mut all: Vec<String>| {
        all[9] = all[8].clone();
        Value::Strings(all)
    };
    assert!(read(tokens, &twice).contains("twice"));
    assert!(read(types, &|_| Value::Integers(vec![1])).contains(types));
    let class = "tokenizer.ggml.bos_token_id";
    assert!(read(class, &|_| Value::Integer(1 << 20)).contains(class));
}

#[test]
fn rules_and_types_of_a_word_piece_vocabulary_are_followed() {
    let read = |fields: &[(&str, Value)], names: &[(usize, &str, i64)]| {
        let bytes = fs::read(golden().join("bert.gguf")).unwrap();
        let mut metadata = gguf::read(&bytes).unwrap().metadata;
        let [tokens, types] = ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type"];
        let mut all = metadata.strings(tokens).unwrap().unwrap().to_vec();
        let mut kinds = metadata.integers(types).unwrap().unwrap().to_vec();
        for (id, name, kind) in names {
            (all[*id], kinds[*id]) = ((*name).to_owned(), *kind);
        }
        metadata.insert(tokens, Value::Strings(all));
        metadata.insert(types, Value::Integers(kinds));
        for (field, value) in fields {
            metadata.insert(*field, value.clone());
        }
        Tokenizer::from_gguf(&metadata).unwrap()
    };
    // Without the classifier's token and the separator.
    let encode = |tokenizer: &Tokenizer, text: &str| {
        let all = tokenizer.encode(text, EncodeOptions::TEXT).unwrap();
        all[1..all.len() - 1].to_vec()
    };
    let [lowercase, accents] =
        ["lowercase", "strip_accents"].map(|it| format!("tokenizer.ggml.normalizer.{it}"));
    let of = |value: bool| Value::Bool(value);
    // Token 9 is a word with a capital letter, and 10 one with an accent.
    let names = [
        (9, "▁The", 1),
        (10, "▁thé", 1),
        (11, "▁the_", 4),
        (12, "[PAD12]", 5),
    ];
    let cased = read(&[(&lowercase, of(false))], &names);
    assert_eq!(encode(&cased, "The"), [9]);
    assert_eq!(encode(&cased, "thé"), [10]);
    let stripped = read(&[(&lowercase, of(false)), (&accents, of(true))], &names);
    assert_ne!(encode(&stripped, "thé"), [10]);
    assert_eq!(encode(&stripped, "thé"), encode(&stripped, "the"));
    let kept = read(&[(&accents, of(false))], &names[1..]);
    assert_eq!(encode(&kept, "THÉ"), [10]);
    // A token of a converter's user is found in a text, and is not one of control.
    assert_eq!(encode(&kept, "the_"), [11]);
    assert_eq!(kept.decode(&[11]), "the_");
    // A row without a token is not found.
    assert!(!encode(&kept, "[PAD12]").contains(&12));
    assert!(kept.vocab_size() > 12 && kept.piece(12).is_none());
}

#[test]
fn a_word_of_word_piece_has_at_most_1000_letters() {
    let folder = copy("bert");
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer = read(&path);
    let mut of = |count: usize| {
        tokenizer["model"]["max_input_chars_per_word"] = json!(count);
        fs::write(&path, tokenizer.to_string()).unwrap();
        Tokenizer::from_folder(folder.path(), None, &[])
    };
    of(1000).unwrap();
    let error = of(1001).err().unwrap().to_string();
    assert!(
        error.contains("max_input_chars_per_word") && error.contains("1001"),
        "{error}"
    );
}

#[test]
fn a_map_of_characters_without_an_unknown_token_is_refused_by_name() {
    let bytes = fs::read(golden().join("xlm-roberta.gguf")).unwrap();
    let mut metadata = gguf::read(&bytes).unwrap().metadata;
    let field = "tokenizer.ggml.unknown_token_id";
    metadata = metadata.iter().filter(|(key, _)| *key != field).fold(
        gguf::Metadata::default(),
        |mut all, (key, value)| {
            all.insert(key, value.clone());
            all
        },
    );
    // The default of such a file, token 2, is one of control here.
    let mut types = metadata
        .integers("tokenizer.ggml.token_type")
        .unwrap()
        .unwrap()
        .to_vec();
    types[2] = 1;
    metadata.insert("tokenizer.ggml.token_type", Value::Integers(types));
    let error = Tokenizer::from_gguf(&metadata).err().unwrap().to_string();
    assert!(error.contains(field), "{error}");
}

#[test]
fn rules_of_bert_in_two_files_that_contradict_each_other_are_refused() {
    let folder = copy("bert");
    let path = folder.path().join("tokenizer_config.json");
    let mut config = read(&path);
    config["tokenizer_class"] = json!("BertTokenizer");
    let of = |config: &Json| Tokenizer::from_folder(folder.path(), Some(config), &[]);
    of(&config).unwrap();
    for (field, value) in [
        ("do_lower_case", false),
        ("strip_accents", true),
        ("tokenize_chinese_chars", false),
    ] {
        let mut changed = config.clone();
        changed[field] = json!(value);
        let error = of(&changed).err().expect(field).to_string();
        assert!(error.contains(field), "{error}");
    }
}
