//! Models that read pictures compared with `transformers`: tiny random checkpoints, with pixels, the rows that their
//! encoders make of them, and the logits of a prompt with these rows, which `tests/golden/pictures/make.py` wrote.
//!
//! `cargo test -p triad-engine --test pictures -- --nocapture` prints the differences.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use triad_engine::{
    Cancel, Engine, EngineOptions, Error, KvFormat, LoadOptions, Model, Picture, Pixels,
    PrefixSalt, Session, SessionOptions, Threads,
};

/// The largest difference of a row or a logit, relative to the largest one.
const TOLERANCE: f32 = 1e-5;

/// Checkpoints, and whether there is an mmproj file with the same encoder.
const CASES: [(&str, bool); 11] = [
    ("smolvlm", true),
    ("idefics3", false),
    ("gemma3", true),
    ("gemma4", true),
    ("gemma4-inputs", true),
    ("llava", true),
    ("qwen2_vl", true),
    ("qwen2_5_vl", true),
    ("qwen3_vl", true),
    ("internvl", true),
    ("lfm2_vl", true),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

/// A view of a golden file.
struct View {
    height: usize,
    width: usize,
    planes: Vec<f32>,
}

impl View {
    fn pixels(&self) -> Pixels<'_> {
        Pixels {
            height: self.height,
            width: self.width,
            planes: &self.planes,
        }
    }
}

/// The results of `transformers`.
struct Golden {
    views: Vec<View>,
    rows: Vec<f32>,
    /// -1 - V stands for a row of view V.
    tokens: Vec<i32>,
    logits: Vec<f32>,
}

fn golden(name: &str) -> Golden {
    let bytes = std::fs::read(folder().join("golden.safetensors")).expect("golden.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = |key: &str| {
        let tensor = file.tensor(&format!("{name}.{key}")).expect(name);
        let words = tensor.data().as_chunks().0.iter();
        let values: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
        (tensor.shape().to_vec(), values)
    };
    let prefix = format!("{name}.pixels.");
    let names = file.names();
    let count = names.iter().filter(|it| it.starts_with(&prefix)).count();
    let view = |index| {
        let (shape, planes) = floats(&format!("pixels.{index}"));
        View {
            height: shape[1],
            width: shape[2],
            planes,
        }
    };
    let views = (0..count).map(view).collect();
    let tokens = file.tensor(&format!("{name}.tokens")).expect(name);
    let tokens = tokens.data().as_chunks().0.iter();
    Golden {
        views,
        rows: floats("rows").1,
        tokens: tokens.map(|word| i32::from_le_bytes(*word)).collect(),
        logits: floats("logits").1,
    }
}

fn options(vision: Option<&str>) -> LoadOptions {
    LoadOptions {
        threads: Threads::Count(2),
        vision: vision.map(|name| folder().join(name)),
        ..LoadOptions::default()
    }
}

fn model(name: &str, vision: Option<&str>) -> Arc<Model> {
    Arc::new(Model::load(&folder().join(name), &options(vision)).expect(name))
}

fn engine(model: &Arc<Model>, chunk: usize) -> Engine {
    let session = SessionOptions {
        context: 512,
        chunk,
        kv_format: KvFormat::F32,
    };
    let options = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    Engine::new(model, &options).expect("an engine")
}

fn pictures(engine: &Engine, golden: &Golden) -> Vec<Picture> {
    let encode = |view: &View| engine.picture(view.pixels(), PrefixSalt::default(), &Cancel::new());
    let pictures = golden.views.iter().map(encode);
    pictures.collect::<Result<_, _>>().expect("pictures")
}

/// Returns the prompt of a golden file with the tokens of these pictures.
fn prompt(golden: &Golden, pictures: &[Picture]) -> Vec<u32> {
    let mut prompt = Vec::new();
    let mut before = 0;
    for token in &golden.tokens {
        match usize::try_from(-1 - *token) {
            Ok(view) if before != *token => prompt.extend(pictures[view].tokens()),
            Ok(_) => {}
            Err(_) => prompt.push(*token as u32),
        }
        before = *token;
    }
    prompt
}

fn holding(engine: &Engine, pictures: &[Picture]) -> Session {
    let mut session = engine.session();
    pictures.iter().for_each(|picture| session.hold(picture));
    session
}

fn logits(engine: &Engine, golden: &Golden) -> Vec<f32> {
    let pictures = pictures(engine, golden);
    let prompt = prompt(golden, &pictures);
    assert_eq!(prompt.len(), golden.tokens.len());
    holding(engine, &pictures)
        .prefill_all_logits(&prompt, &Cancel::new())
        .expect("logits")
}

/// Returns the largest difference, relative to the largest of `expected`.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected
        .iter()
        .fold(0.0, |it: f32, value| it.max(value.abs()));
    let apart = found
        .iter()
        .zip(expected)
        .map(|(one, other)| (one - other).abs());
    apart.fold(0.0, |most: f32, apart| match apart.is_nan() {
        true => f32::INFINITY,
        false => most.max(apart),
    }) / largest
}

#[test]
fn every_encoder_and_every_prompt_with_pictures_gives_the_numbers_of_transformers() {
    println!("| checkpoint | encoder | from | rows | largest difference of rows | of logits |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut failed = Vec::new();
    for (name, has_mmproj) in CASES {
        let golden = golden(name);
        let mmproj = format!("{name}-mmproj.gguf");
        let visions = [None, has_mmproj.then_some(&mmproj[..])];
        for vision in visions.into_iter().take(1 + usize::from(has_mmproj)) {
            let model = model(name, vision);
            let engine = engine(&model, 256);
            let pictures = pictures(&engine, &golden);
            let rows: Vec<f32> = pictures.iter().flat_map(Picture::values).copied().collect();
            let of_rows = difference(&rows, &golden.rows);
            let of_logits = difference(&logits(&engine, &golden), &golden.logits);
            let count: usize = pictures.iter().map(|picture| picture.tokens().len()).sum();
            let family = &model.vision().unwrap().description().family;
            let from = vision.map_or("checkpoint", |_| "mmproj");
            println!("| {name} | {family} | {from} | {count} | {of_rows:.1e} | {of_logits:.1e} |");
            if of_rows.max(of_logits) > TOLERANCE {
                failed.push(format!("{name} {vision:?}: {of_rows:.1e}, {of_logits:.1e}"));
            }
        }
    }
    assert!(failed.is_empty(), "beyond {TOLERANCE:.0e}: {failed:?}");
}

#[test]
fn the_length_of_chunks_does_not_change_a_bit_of_the_logits_of_a_prompt_with_pictures() {
    for (name, _) in CASES {
        let (golden, model) = (golden(name), model(name, None));
        let whole = logits(&engine(&model, 512), &golden);
        for chunk in [1, 7, 64] {
            let apart = logits(&engine(&model, chunk), &golden);
            assert!(apart == whole, "{name}: chunks of {chunk}");
        }
    }
}

#[test]
fn tokens_that_follow_one_by_one_have_the_logits_of_a_prompt() {
    for (name, _) in CASES {
        let (golden, model) = (golden(name), model(name, None));
        let engine = engine(&model, 64);
        let pictures = pictures(&engine, &golden);
        let prompt = prompt(&golden, &pictures);
        let mut session = holding(&engine, &pictures);
        let (last, vocab) = (5, model.description().vocab);
        let first = prompt.len() - last;
        session
            .prefill(&prompt[..first], &Cancel::new(), |_| {})
            .unwrap();
        for (row, token) in prompt.iter().enumerate().skip(first) {
            let found = session.decode(*token, &Cancel::new()).unwrap();
            let apart = difference(found, &golden.logits[row * vocab..][..vocab]);
            assert!(apart <= 2.0 * TOLERANCE, "{name}, token {row}: {apart:.1e}");
        }
    }
}

#[test]
fn a_second_prompt_reuses_the_rows_and_the_prefix_of_a_picture_but_not_those_of_another() {
    let (golden, model) = (golden("smolvlm"), model("smolvlm", None));
    let engine = engine(&model, 64);
    let cancel = Cancel::new();
    let pictures = pictures(&engine, &golden);
    let prompt_of = |pictures: &[Picture]| {
        let mut prompt = prompt(&golden, pictures);
        // More than a page, so that later sessions find a prefix.
        prompt.extend((0..300).map(|index| 3 + index % 90));
        prompt
    };
    let first = prompt_of(&pictures);
    let mut session = holding(&engine, &pictures);
    let expected = session.prefill(&first, &cancel, |_| {}).unwrap().to_vec();
    session.share();
    drop(session);

    let again = engine
        .picture(golden.views[0].pixels(), PrefixSalt::default(), &cancel)
        .unwrap();
    assert_eq!(again.tokens(), pictures[0].tokens(), "the same pixels");
    let mut session = holding(&engine, &pictures);
    assert_eq!(session.reuse(&first), first.len() - 1);
    let rest = &first[first.len() - 1..];
    assert_eq!(session.prefill(rest, &cancel, |_| {}).unwrap(), expected);

    let mut changed = golden.views[0].planes.clone();
    changed[7] += 0.25;
    let changed = Pixels {
        planes: &changed,
        ..golden.views[0].pixels()
    };
    let other = engine
        .picture(changed, PrefixSalt::default(), &cancel)
        .unwrap();
    assert_ne!(other.tokens(), pictures[0].tokens(), "other pixels");
    let others = [other, pictures[1].clone()];
    let second = prompt_of(&others);
    let before = golden
        .tokens
        .iter()
        .take_while(|token| **token >= 0)
        .count();
    let mut session = holding(&engine, &others);
    assert_eq!(
        session.reuse(&second),
        before,
        "the text before the picture alone"
    );
    let found = session.prefill(&second[before..], &cancel, |_| {}).unwrap();
    assert_ne!(found, expected);

    let salt = PrefixSalt::from_secret(b"another client");
    let salted = engine
        .picture(golden.views[0].pixels(), salt, &cancel)
        .unwrap();
    assert_ne!(
        salted.tokens(),
        pictures[0].tokens(),
        "another client's picture"
    );
}

#[test]
fn requests_at_the_same_time_encode_a_picture_once_and_stop_when_they_are_cancelled() {
    let (golden, model) = (golden("smolvlm"), model("smolvlm", None));
    let engine = engine(&model, 64);
    let pixels = golden.views[0].pixels();
    let encode = |cancel: &Cancel| engine.picture(pixels, PrefixSalt::default(), cancel);
    // Of every place where an encoding can stop.
    let mut stops = 0;
    while let Err(error) = encode(&Cancel::after(stops)) {
        assert!(matches!(error, Error::Cancelled), "{error}");
        stops += 1;
    }
    assert!(stops > 4, "{stops}");
    let salt = PrefixSalt::from_secret(b"others");
    let pictures: Vec<Picture> = std::thread::scope(|scope| {
        let encode = || engine.picture(pixels, salt, &Cancel::new()).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(encode)).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let first = pictures[0].values().as_ptr();
    assert!(pictures.iter().all(|it| it.values().as_ptr() == first));
}

#[test]
fn pictures_that_do_not_fit_the_model_or_the_prompt_are_refused() {
    let (golden, model) = (golden("smolvlm"), model("smolvlm", None));
    let engine = engine(&model, 64);
    let cancel = Cancel::new();
    let pictures = pictures(&engine, &golden);
    let whole = prompt(&golden, &pictures);
    let refused = |result: Result<&[f32], Error>| result.expect_err("refused").to_string();

    let mut session = engine.session();
    let error = refused(session.prefill(&whole, &cancel, |_| {}));
    assert!(error.contains("session holds"), "{error}");

    let mut session = holding(&engine, &pictures);
    let place = golden.tokens.iter().position(|token| *token < 0).unwrap();
    for end in [place + 1, place + 8] {
        let error = refused(session.prefill(&whole[..end], &cancel, |_| {}));
        assert!(error.contains("within a picture"), "{error}");
    }
    let mut swapped = whole.clone();
    swapped.swap(place, place + 1);
    let error = refused(session.prefill(&swapped, &cancel, |_| {}));
    assert!(error.contains("in order"), "{error}");
    session.prefill(&whole, &cancel, |_| {}).unwrap();
    let error = refused(session.decode(whole[place], &cancel));
    assert!(error.contains("outside the vocabulary"), "{error}");
    assert!(session.save(Path::new("never-written")).is_err());

    let encode = |pixels| engine.picture(pixels, PrefixSalt::default(), &cancel);
    let view = golden.views[0].pixels();
    let error = encode(Pixels { height: 44, ..view })
        .unwrap_err()
        .to_string();
    assert!(error.contains("multiples of 16"), "{error}");
    let error = encode(Pixels { height: 32, ..view })
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected 4608"), "{error}");
    let planes = vec![f32::NAN; view.planes.len()];
    let planes = &planes[..];
    let error = encode(Pixels { planes, ..view }).unwrap_err().to_string();
    assert!(error.contains("not finite"), "{error}");

    let text = folder().join("../families/llama");
    let text = Arc::new(Model::load(&text, &options(None)).unwrap());
    assert!(matches!(text.vision(), Err(Error::NoPictures { .. })));
}

#[test]
fn an_encoder_of_another_model_is_refused_in_one_sentence() {
    let text = folder().join("../families/qwen3");
    let load = |vision: &str| Model::load(&text, &options(Some(vision))).expect_err("refused");
    let error = load("qwen3_vl-mmproj.gguf").to_string();
    assert!(error.contains("RoPE of three axes"), "{error}");
    // The same width, and no field of the text model tells that its rows do not read each other.
    let error = load("gemma3-mmproj.gguf").to_string();
    assert!(
        error.contains("gemma3 is for gemma3, and the model is of the family qwen3"),
        "{error}"
    );
    let inputs = folder().join("../families/gemma3n");
    let error = Model::load(&inputs, &options(Some("smolvlm-mmproj.gguf"))).expect_err("refused");
    assert!(
        error.to_string().contains("an input of each token"),
        "{error}"
    );
    let error = load("golden.safetensors").to_string();
    assert!(error.contains("config.json"), "{error}");
    let error = load("../families/qwen3.gguf").to_string();
    assert!(error.contains("expected `clip`"), "{error}");
    let error = load("../families/qwen3").to_string();
    assert!(error.contains("reads text alone"), "{error}");
}

#[test]
fn bounds_of_linear_layers_that_are_none_are_refused() {
    let mut bytes = std::fs::read(folder().join("gemma4-inputs-mmproj.gguf")).unwrap();
    let file = triad_model::gguf::read(&bytes).unwrap();
    let place = file.tensors["v.blk.1.ffn_up.output_min"].bytes.clone();
    let path = tempfile::NamedTempFile::new().unwrap();
    for low in [9.0f32, f32::NAN] {
        bytes[place.clone()].copy_from_slice(&low.to_le_bytes());
        std::fs::write(path.path(), &bytes).unwrap();
        let options = LoadOptions {
            vision: Some(path.path().to_owned()),
            ..options(None)
        };
        let error = Model::load(&folder().join("gemma4-inputs"), &options).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains("layer Up of block 1"), "{error}");
        assert!(error.contains("bounds"), "{error}");
    }
}
