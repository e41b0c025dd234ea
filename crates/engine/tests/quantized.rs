//! Quantized safetensors compared with `transformers` on the dequantized weights: the checkpoints and logits that
//! `tests/golden/quantized/make.py` wrote.
//!
//! `cargo test -p triad-engine --test quantized -- --nocapture` prints the differences.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use triad_engine::{
    Cancel, KvFormat, LoadOptions, Model, Session, SessionOptions, Threads, memory,
};
use triad_kernels::BlockArithmetic;
use triad_model::checkpoint::Checkpoint;

/// The largest difference of a logit with exact arithmetic, relative to the largest logit of the prompt.
const TOLERANCE: f32 = 1e-5;
/// The same with integers: weights that are not rounded to 16 bits as the reference's, and activations that are.
const TOLERANCE_ROUNDED: f32 = 2e-2;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quantized")
}

fn cases() -> Vec<String> {
    let folders = std::fs::read_dir(folder())
        .expect("the folder")
        .filter_map(|entry| {
            let path = entry.expect("an entry").path();
            path.is_dir()
                .then(|| path.file_name()?.to_str().map(str::to_owned))?
        });
    let mut cases: Vec<_> = folders.collect();
    cases.sort();
    assert_eq!(cases.len(), 32);
    cases
}

fn golden(case: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(folder().join("golden.safetensors")).expect("the golden file");
    let golden = SafeTensors::deserialize(&bytes).expect("safetensors");
    let words = |name: &str| -> Vec<[u8; 4]> {
        let tensor = golden.tensor(&format!("{case}.{name}")).expect(case);
        tensor.data().as_chunks().0.to_vec()
    };
    let tokens = words("tokens").into_iter().map(u32::from_le_bytes);
    let logits = words("logits").into_iter().map(f32::from_le_bytes);
    (tokens.collect(), logits.collect())
}

fn model(case: &str, block_arithmetic: BlockArithmetic) -> Arc<Model> {
    let options = LoadOptions {
        threads: Threads::Count(2),
        block_arithmetic,
        ..LoadOptions::default()
    };
    Arc::new(Model::load(&folder().join(case), &options).expect(case))
}

/// Returns the largest difference of a logit, relative to the largest one; the prompt is computed in chunks.
fn difference(model: &Arc<Model>, case: &str, chunk: usize) -> f32 {
    let (tokens, expected) = golden(case);
    let options = SessionOptions {
        context: 64,
        chunk,
        kv_format: KvFormat::F32,
    };
    let mut session = Session::new(model, &options).expect("a session");
    let found = session
        .prefill_all_logits(&tokens, &Cancel::new())
        .expect("logits");
    assert_eq!(found.len(), expected.len());
    let largest = expected
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let apart = found
        .iter()
        .zip(&expected)
        .map(|(one, other)| (one - other).abs());
    let apart = apart.fold(0.0, |most: f32, apart| match apart.is_nan() {
        true => f32::INFINITY,
        false => most.max(apart),
    });
    apart / largest
}

#[test]
fn each_scheme_gives_the_logits_of_transformers_on_the_dequantized_weights() {
    println!("| checkpoint | exact | as stored |\n| --- | --- | --- |");
    let mut failed = Vec::new();
    for case in cases() {
        let exact = model(&case, BlockArithmetic::Exact);
        let rounded = model(&case, BlockArithmetic::Rounded);
        let exact = difference(&exact, &case, 64).max(difference(&exact, &case, 5));
        let rounded = difference(&rounded, &case, 64).max(difference(&rounded, &case, 5));
        println!("| {case} | {exact:.1e} | {rounded:.1e} |");
        if exact > TOLERANCE || rounded > TOLERANCE_ROUNDED {
            failed.push((case, exact, rounded));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn the_estimated_memory_is_that_of_the_loaded_weights() {
    for case in cases() {
        let checkpoint = Checkpoint::open(folder().join(&case)).expect(&case);
        let loaded = model(&case, BlockArithmetic::Rounded);
        assert_eq!(
            memory::of_weights(&checkpoint),
            loaded.weights().bytes(),
            "{case}"
        );
    }
}

#[test]
fn any_number_of_threads_loads_the_same_weights() {
    for case in [
        "awq",
        "gptq-4-act-order",
        "bnb-nf4-nested",
        "mlx-4",
        "ct-int8-channel",
    ] {
        let fingerprint = |threads| {
            let options = LoadOptions {
                threads: Threads::Count(threads),
                ..Default::default()
            };
            let model = Model::load(&folder().join(case), &options).expect(case);
            model.fingerprint().clone()
        };
        assert_eq!(fingerprint(1), fingerprint(3), "{case}");
    }
}
