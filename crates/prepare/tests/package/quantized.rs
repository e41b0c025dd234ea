//! Packages of quantized safetensors.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use triad_engine::quantization::{LinearFormat, OutputWeights};
use triad_engine::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_kernels::BlockArithmetic;
use triad_model::checkpoint::Checkpoint;

use crate::tiny::{Place, in_int4};

/// Copies a golden checkpoint, and adds a tokenizer whose tokens are visible characters of ASCII.
fn copy(case: &str, to: &Path) {
    let from = format!(
        "{}/../../tests/golden/quantized/{case}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::create_dir(to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{from}/{file}"), to.join(file)).unwrap();
    }
    let vocabulary = (0..32u8).map(|token| (char::from(b'!' + token).to_string(), json!(token)));
    let vocabulary: serde_json::Map<_, _> = vocabulary.collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    });
    std::fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn logits(model: Model) -> Vec<f32> {
    let options = SessionOptions {
        context: 40,
        chunk: 5,
        ..SessionOptions::default()
    };
    let mut session = Session::new(&Arc::new(model), &options).unwrap();
    session
        .prefill_all_logits(&[7, 3, 11, 30, 9, 4, 5, 8], &Cancel::new())
        .unwrap()
}

#[test]
fn a_package_of_a_quantized_checkpoint_is_that_of_its_dequantized_weights() {
    let load = LoadOptions {
        threads: Threads::Count(2),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    for case in [
        "gptq-4",
        "mlx-4",
        "bnb-int8",
        "ct-fp8-block",
        "bnb-nf4-nested",
    ] {
        let place = Place::new();
        copy(case, &place.path(case));
        let mut recipe = place.recipe();
        recipe.checkpoint = Arc::new(Checkpoint::open(place.path(case)).unwrap());
        let letters = |text: &usize| {
            (0..60)
                .map(|it| char::from(b'!' + ((it * it + it * text) % 32) as u8))
                .collect()
        };
        recipe.text.texts = (3..20).map(|text| letters(&text)).collect();
        let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load).unwrap());

        let package = place.prepare(&recipe, "w8a8").unwrap().package;
        let plan = package.manifest().preparation.quantization().unwrap();
        let opened = Model::load(package.path(), &load).unwrap();
        assert_eq!(logits(opened), logits(float.quantize(&plan)), "{case}");

        recipe.options.plan.linears = LinearFormat::W4a16;
        recipe.options.plan.output_weights = OutputWeights::Float;
        let package = place.prepare(&recipe, "w4a16").unwrap().package;
        let in_memory = in_int4(&float, &recipe);
        let opened = Model::load(package.path(), &load).unwrap();
        assert_eq!(logits(opened), logits(in_memory), "{case}");
    }
}
