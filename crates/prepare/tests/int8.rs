//! Rules of INT8 models: what their shadows restore, and what must not affect them.

use std::sync::Arc;

use triad_engine::quantization::{DecodeWeights, OutputWeights, Quantization};
use triad_engine::{
    Branch, Cancel, KvFormat, LoadOptions, Model, Session, SessionOptions, Threads,
};
use triad_prepare::calibration::Calibration;
use triad_prepare::plan::{self, PlanOptions};
use triad_prepare::{PrepareOptions, Prune, baselines, decide, int4, weight_statistics};

const FAMILIES: [&str; 11] = [
    "llama",
    "qwen2",
    "gemma3",
    "phi2",
    "phi3",
    "olmo2",
    "lfm2",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "gpt_oss.gguf",
];

fn model(family: &str, threads: usize) -> Arc<Model> {
    let path = format!(
        "{}/../../tests/golden/families/{family}",
        env!("CARGO_MANIFEST_DIR")
    );
    Arc::new(
        Model::load(
            path.as_ref(),
            &LoadOptions {
                threads: Threads::Count(threads),
                ..Default::default()
            },
        )
        .unwrap(),
    )
}

fn pieces(model: &Model, count: usize) -> Vec<Vec<u32>> {
    let vocab = model.description().vocab as u32;
    let token = |piece: u32, index: u32| (index * index * 7 + index * 13 + piece * 31) % vocab;
    (0..count as u32)
        .map(|piece| (0..40).map(|index| token(piece, index)).collect())
        .collect()
}

fn calibrated(model: &Arc<Model>) -> Calibration {
    let mut calibration = Calibration::new(model.description(), "test");
    calibration
        .run(model, &pieces(model, 6), &Cancel::new(), |_| Ok(()))
        .unwrap();
    calibration
}

fn plan(model: &Arc<Model>, rate: f64, options: &PlanOptions) -> Quantization {
    let weights = weight_statistics::of_model(model.weights());
    let mut inputs = plan::summarize(&calibrated(model), &weights, options);
    plan::prune(&mut inputs, rate);
    plan::quantization(&inputs, options)
}

fn logits(model: &Arc<Model>, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let options = SessionOptions {
        context: tokens.len(),
        chunk,
        kv_format: KvFormat::F32,
    };
    Session::new(model, &options)
        .unwrap()
        .prefill_all_logits(tokens, &Cancel::new())
        .unwrap()
}

/// Returns the root of the mean squared difference, relative to the root of the mean square.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    (square(&mut a.iter().zip(b).map(|(a, b)| a - b)) / square(&mut b.iter().copied())).sqrt()
}

#[test]
fn with_all_shadows_every_family_stays_close_to_float() {
    for family in FAMILIES {
        let model = model(family, 2);
        let int8 = Arc::new(model.quantize(&plan(&model, 0.0, &PlanOptions::default())));
        let tokens = &pieces(&model, 9)[8];
        let difference = difference(&logits(&int8, tokens, 64), &logits(&model, tokens, 64));
        assert!(
            difference > 0.0 && difference < 0.1,
            "{family}: {difference}"
        );
    }
}

/// Checkpoints of families with other parts than [`FAMILIES`].
const OTHER_PARTS: [&str; 29] = [
    "arcee",
    "granite",
    "smollm3",
    "glm4",
    "hunyuan",
    "exaone4",
    "cohere2",
    "ministral3",
    "minicpm",
    "qwen3_moe",
    "gpt_oss",
    "lfm2_moe",
    "granitemoe",
    "ernie4_5_moe",
    "glm4_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "granitehybrid",
    "granitemoehybrid",
    "nemotron_h",
    "nemotron_h-moe",
    "falcon_h1",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "gemma2",
    "gemma3n",
    "gemma4",
];

/// Returns the correlation of two lists of numbers.
fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let mean =
        |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut squares) = (0.0, [0.0; 2]);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (f64::from(*a) - mean_a, f64::from(*b) - mean_b);
        both += a * b;
        squares[0] += a * a;
        squares[1] += b * b;
    }
    both / (squares[0] * squares[1]).sqrt()
}

/// `cargo test -p triad-prepare --test int8 correlate -- --nocapture` prints the table of
/// `docs/measurements/correctness.md`.
#[test]
fn logits_of_prepared_models_correlate_with_those_in_float() {
    // The test's name may be on the line before.
    println!("\n| checkpoint | W8A8 | W4A16 |\n| --- | --- | --- |");
    let mut failed = Vec::new();
    for family in OTHER_PARTS {
        let model = model(family, 2);
        let tokens = &pieces(&model, 9)[8];
        let float = logits(&model, tokens, 64);
        let int8 = model.quantize(&plan(&model, 0.0, &PlanOptions::default()));
        let text = [pieces(&model, 6), Vec::new()];
        let int4 = int4::quantize(&model, &text, OutputWeights::Int8, &Cancel::new()).unwrap();
        let [int8, int4] =
            [int8, int4].map(|it| correlation(&logits(&Arc::new(it), tokens, 64), &float));
        println!("| {family} | {int8:.4} | {int4:.4} |");
        // False if one is no number.
        let is_close = int8 >= 0.98 && int4 >= 0.9;
        if !is_close {
            failed.push(format!("{family}: {int8:.4} {int4:.4}"));
        }
    }
    assert!(
        failed.is_empty(),
        "W8A8 below 0.98 or W4A16 below 0.9: {failed:?}"
    );
}

#[test]
fn how_a_prompt_is_cut_changes_an_int8_model_no_more_than_a_float_one() {
    for family in FAMILIES {
        let model = model(family, 2);
        // Without shadows, a rounding step could change an activation to the next integer; the bound allows a few.
        let int8 = Arc::new(model.quantize(&plan(&model, 0.5, &PlanOptions::default())));
        let tokens = &pieces(&model, 8)[7];
        let whole = logits(&int8, tokens, 64);
        for chunk in [1, 7, 16] {
            let difference = difference(&logits(&int8, tokens, chunk), &whole);
            // A single row has its attention in f32 and its logits from INT16; several rows have both from bf16.
            let bound = if chunk == 1 { 0.05 } else { 0.02 };
            assert!(
                difference < bound,
                "{family}, chunks of {chunk}: {difference}"
            );
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_an_int8_model() {
    let run = |threads| {
        let model = model("llama", threads);
        let int8 = Arc::new(model.quantize(&plan(&model, 0.5, &PlanOptions::default())));
        logits(&int8, &pieces(&model, 1)[0], 16)
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn baselines_run_and_llm_int8_is_closest_to_float() {
    let model = model("llama", 2);
    let calibration = calibrated(&model);
    let weights = weight_statistics::of_model(model.weights());
    let tokens = &pieces(&model, 3)[2];
    let float = logits(&model, tokens, 64);
    let of = |plan: &Quantization| {
        difference(&logits(&Arc::new(model.quantize(plan)), tokens, 64), &float)
    };
    let llm_int8 = of(&baselines::llm_int8(model.description().blocks.len()));
    let w8a8 = of(&baselines::w8a8(&calibration));
    let smooth_quant = of(&baselines::smooth_quant(&calibration, &weights));
    assert!(
        llm_int8 < w8a8 && llm_int8 < smooth_quant,
        "{llm_int8}, {w8a8}, {smooth_quant}"
    );
    assert!(w8a8 < 0.2 && smooth_quant < 0.2, "{w8a8}, {smooth_quant}");
}

#[test]
fn int4_weights_are_used_in_decode_alone() {
    let model = model("llama", 1);
    let options = PlanOptions {
        decode_weights: DecodeWeights::Int4,
        ..PlanOptions::default()
    };
    let int8 = Arc::new(model.quantize(&plan(&model, 0.0, &PlanOptions::default())));
    let int4 = Arc::new(model.quantize(&plan(&model, 0.0, &options)));
    let run = |model: &Arc<Model>| {
        let mut session = Session::new(
            model,
            &SessionOptions {
                context: 16,
                ..SessionOptions::default()
            },
        )
        .unwrap();
        let prefill = session
            .prefill(&[1, 2, 3, 4], &Cancel::new(), |_| {})
            .unwrap()
            .to_vec();
        (prefill, session.decode(5, &Cancel::new()).unwrap().to_vec())
    };
    let ((int8_prefill, int8_decode), (int4_prefill, int4_decode)) = (run(&int8), run(&int4));
    assert_eq!(int8_prefill, int4_prefill);
    assert_ne!(int8_decode, int4_decode);
}

#[test]
fn an_interrupted_calibration_goes_on_where_it_was() {
    let model = model("gemma3", 2);
    let all = pieces(&model, 6);
    let mut resumed = Calibration::new(model.description(), "test");
    resumed
        .run(&model, &all[..2], &Cancel::new(), |_| Ok(()))
        .unwrap();
    resumed
        .run(&model, &all, &Cancel::new(), |_| Ok(()))
        .unwrap();
    assert_eq!(resumed, calibrated(&model));
}

#[test]
fn a_budget_keeps_the_loss_within_it() {
    let model = model("llama", 2);
    let held_out = &pieces(&model, 9)[6..];
    let loss = |model: &Arc<Model>| {
        let options = SessionOptions {
            context: 64,
            ..SessionOptions::default()
        };
        let mut session = Session::new(model, &options).unwrap();
        let score = |piece: &Vec<u32>| {
            let branch = Branch {
                tokens: piece,
                scored_from: 1,
            };
            -session.score(&[branch], &Cancel::new(), |_| {}).unwrap()[0].log_likelihood()
        };
        held_out.iter().map(score).sum::<f64>()
    };
    let options = PrepareOptions {
        prune: Prune::Auto { budget: 0.01 },
        ..PrepareOptions::default()
    };
    let preparation = decide(
        &model,
        &calibrated(&model),
        held_out,
        &options,
        &Cancel::new(),
    )
    .unwrap();
    let int8 = Arc::new(model.quantize(&preparation.quantization().unwrap()));
    assert!(loss(&int8) <= loss(&model) * 1.01);
    assert!(
        preparation.pruned > 0.0,
        "random weights have outliers of no importance"
    );
    let none = PrepareOptions {
        prune: Prune::Auto { budget: -1.0 },
        ..options
    };
    let preparation = decide(&model, &calibrated(&model), held_out, &none, &Cancel::new()).unwrap();
    assert_eq!(
        (
            preparation.pruned,
            preparation.quantization().unwrap().shadows()
        ),
        (0.0, preparation.inputs.len())
    );
}
