//! Real models compared with llama.cpp: the greedy answers that `tests/golden/greedy/make.py` wrote.
//!
//! llama.cpp had the same weights widened to float32, so that it computes the same function as Triad. With the original
//! files it rounds activations to 8 bits (`docs/measurements/greedy.md` has that comparison too).
//!
//! At every step of every answer, after the same tokens, the likeliest token is the same, or llama.cpp's two likeliest
//! tokens are within [`TIE`] of each other and Triad chooses the other one.
//!
//! The models come from the folder `TRIAD_TEST_MODELS`. Without it, the default model is fetched, and the others, which
//! are large or have their own terms, are not tested.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use triad_engine::{
    Cancel, Event, Finish, GenerateOptions, KvFormat, LoadOptions, Model, Session, SessionOptions,
    generate,
};
use triad_kernels::BlockArithmetic;
use triad_model::fetch;
use triad_model::tokenizer::EncodeOptions;

/// Two engines that compute in float32 agree on the order of logits that differ by more than this.
const TIE: f32 = 0.01;

/// The maximum change of a logit by rounded activations, relative to the largest one: four times the measured change
/// with bf16.
const MOVES: f32 = 0.05;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    kind: String,
    text: String,
    rendered: String,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    second: Vec<u32>,
    gaps: Vec<f32>,
}

impl Prompt {
    fn has_template(&self) -> bool {
        self.kind == "chat" && self.rendered != self.text
    }
}

fn golden(name: &str) -> Vec<Prompt> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/greedy");
    let text = std::fs::read_to_string(folder.join(format!("{name}-float.json"))).expect(name);
    serde_json::from_str::<Golden>(&text).expect(name).prompts
}

/// Returns the model's file in `TRIAD_TEST_MODELS`; `None` without such a folder.
fn opted_in(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TRIAD_TEST_MODELS")?;
    Some(Path::new(&folder).join(format!("{name}.gguf")))
}

fn load(path: &Path) -> Arc<Model> {
    load_with(path, BlockArithmetic::Exact)
}

fn load_with(path: &Path, block_arithmetic: BlockArithmetic) -> Arc<Model> {
    let options = LoadOptions {
        block_arithmetic,
        ..Default::default()
    };
    Arc::new(Model::load(path, &options).expect("a model that loads"))
}

fn session(model: &Arc<Model>) -> Session {
    Session::new(
        model,
        &SessionOptions {
            context: 512,
            chunk: 256,
            kv_format: KvFormat::F32,
        },
    )
    .expect("a session")
}

fn likeliest(logits: &[f32]) -> u32 {
    let (token, _) = logits
        .iter()
        .enumerate()
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .expect("a logit");
    u32::try_from(token).expect("a token id")
}

/// Tokenizes the prompts and compares every step of their answers.
fn compare(name: &str, path: &Path) {
    let model = load(path);
    let vocab = model.description().vocab;
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let (mut steps, mut ties) = (0, Vec::new());
    for prompt in golden(name) {
        let options = if prompt.has_template() {
            EncodeOptions::TEMPLATE
        } else {
            EncodeOptions::TEXT
        };
        assert_eq!(
            tokenizer.encode(&prompt.rendered, options).expect("tokens"),
            prompt.tokens,
            "{}",
            prompt.text
        );

        let (_, before_last) = prompt.greedy.split_last().expect("an answer");
        let tokens = [&prompt.tokens, before_last].concat();
        let logits = session(&model)
            .prefill_all_logits(&tokens, &Cancel::new())
            .expect("logits");
        for (step, logits) in logits
            .chunks(vocab)
            .skip(prompt.tokens.len() - 1)
            .enumerate()
        {
            let found = likeliest(logits);
            steps += 1;
            if found != prompt.greedy[step] {
                let gap = prompt.gaps[step];
                assert!(
                    gap < TIE && found == prompt.second[step],
                    "step {step} after {:?}: Triad takes {found}, llama.cpp {}, {gap} before {}",
                    prompt.text,
                    prompt.greedy[step],
                    prompt.second[step]
                );
                ties.push(gap);
            }
        }
    }
    println!(
        "{name}: {steps} steps, {} ties taken the other way: {ties:?}",
        ties.len()
    );
}

fn default_model() -> PathBuf {
    opted_in("smollm2-135m")
        .unwrap_or_else(|| fetch::resolve(fetch::DEFAULT_MODEL, &()).expect("the default model"))
}

#[test]
fn smollm2_takes_the_steps_of_llama_cpp() {
    compare("smollm2-135m", &default_model());
}

#[test]
fn qwen2_takes_the_steps_of_llama_cpp() {
    opted_in("qwen2.5-coder-0.5b").inspect(|path| compare("qwen2.5-coder-0.5b", path));
}

#[test]
fn gemma3_takes_the_steps_of_llama_cpp() {
    opted_in("gemma3-270m").inspect(|path| compare("gemma3-270m", path));
}

#[test]
fn an_answer_of_the_default_model_is_the_one_that_llama_cpp_gives() {
    let model = load(&default_model());
    // The first answer without a near tie in any step, and with an end.
    let prompts = golden("smollm2-135m");
    let clear =
        |prompt: &&Prompt| prompt.gaps.iter().all(|gap| *gap >= TIE) && prompt.greedy.len() < 64;
    let prompt = prompts.iter().find(clear).expect("an answer without a tie");
    let options = GenerateOptions {
        max_tokens: Some(64),
        ..GenerateOptions::default()
    };
    let answer = generate(
        &mut session(&model),
        &prompt.tokens,
        &options,
        &Cancel::new(),
        &mut |_| {},
    )
    .expect("an answer");
    assert_eq!(answer.tokens, prompt.greedy);
    assert_eq!(answer.finish, Finish::EndToken);
}

#[test]
fn the_first_event_comes_before_anything_is_computed() {
    let mut session = session(&load(&default_model()));
    let prompt = &golden("smollm2-135m")[0].tokens;
    let (cancel, mut events) = (Cancel::new(), 0);
    let first = Event::Prefill {
        done: 0,
        total: prompt.len(),
        reused: 0,
    };
    let mut on_event = |event: Event| {
        assert_eq!(event, first);
        cancel.cancel();
        events += 1;
    };
    let options = GenerateOptions::default();
    let answer = generate(&mut session, prompt, &options, &cancel, &mut on_event).expect("an end");
    assert_eq!((answer.finish, events), (Finish::Cancelled, 1));
    assert!(session.tokens().is_empty());
}

#[test]
fn rounding_activations_with_quantized_weights_moves_logits_little_in_both_phases() {
    let path = default_model();
    let [exact, rounded] =
        [BlockArithmetic::Exact, BlockArithmetic::Rounded].map(|way| load_with(&path, way));
    let prompt = &golden("smollm2-135m")[0];
    let logits = |model: &Arc<Model>| {
        let mut session = session(model);
        let mut logits = session
            .prefill_all_logits(&prompt.tokens, &Cancel::new())
            .expect("logits");
        logits.extend(
            session
                .decode(prompt.greedy[0], &Cancel::new())
                .expect("logits"),
        );
        logits
    };
    let (exact, rounded) = (logits(&exact), logits(&rounded));
    let largest = exact
        .iter()
        .fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    let moved = exact
        .iter()
        .zip(&rounded)
        .map(|(exact, rounded)| (exact - rounded).abs())
        .fold(0.0, f32::max);
    println!("logits up to {largest} move by up to {moved}");
    assert!(
        moved > 0.0 && moved < MOVES * largest,
        "{moved} of {largest}"
    );
}
