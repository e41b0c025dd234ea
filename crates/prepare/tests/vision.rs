//! Encoders of pictures in INT8: the tiny checkpoints of every family, compared with themselves in float; packages with
//! an encoder.
//!
//! `cargo test -p triad-prepare --test vision -- --nocapture` prints the cosines.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use triad_engine::package::vision::SETTINGS;
use triad_engine::package::{MANIFEST, Package, vision as packaged};
use triad_engine::quantization::Quantization;
use triad_engine::vision::{Pixels, VisionModel};
use triad_engine::{
    Cancel, Engine, EngineOptions, LoadOptions, Model, PrefixSalt, SessionOptions, Threads,
};
use triad_kernels::BlockArithmetic;
use triad_kernels::isa::{Isa, VARIABLE};
use triad_model::checkpoint::Checkpoint;
use triad_model::mapped::MappedFile;
use triad_model::safetensors::write::{Entry, Layout};
use triad_model::safetensors::{self, Element};
use triad_pictures::Processor;
use triad_prepare::baselines::w8a8;
use triad_prepare::calibration::Calibration;
use triad_prepare::calibration::pictures::{CalibrationPictures, HeldOutView, pixels};
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{Existing, Prepared, Recipe, prepare};
use triad_prepare::plan::PlanOptions;
use triad_prepare::vision::{cosine, decide, mean_cosine};
use triad_prepare::{PrepareOptions, Prune, Result};

const FAMILIES: [&str; 11] = [
    "smolvlm",
    "idefics3",
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

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

/// Returns the views of a tiny checkpoint.
fn views(name: &str) -> Vec<HeldOutView> {
    let file = MappedFile::open(golden().join("golden.safetensors")).unwrap();
    let header = safetensors::read(file.bytes(), &[Element::F32, Element::I32]).unwrap();
    let prefix = format!("{name}.pixels.");
    let views = header.tensors.iter();
    let views = views.filter(|(name, _)| name.starts_with(&prefix));
    let view = |(_, tensor): (&String, &safetensors::Tensor)| {
        let words = file.bytes()[tensor.bytes.clone()].as_chunks().0.iter();
        HeldOutView {
            view: triad_pictures::View {
                height: tensor.shape[1],
                width: tensor.shape[2],
                planes: words.map(|word| f32::from_le_bytes(*word)).collect(),
            },
            rows: Vec::new(),
        }
    };
    views.map(view).collect()
}

fn model(folder: &Path, threads: usize) -> Model {
    let options = LoadOptions {
        threads: Threads::Count(threads),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    Model::load(folder, &options).unwrap()
}

/// A float encoder, its calibration on its views, and these with their rows.
struct Subject {
    model: Model,
    vision: VisionModel,
    calibration: Calibration,
    views: Vec<HeldOutView>,
}

impl Subject {
    fn new(folder: &Path, name: &str) -> Self {
        let model = model(folder, 2);
        let vision =
            VisionModel::load(folder, model.description(), BlockArithmetic::Exact).unwrap();
        let mut calibration = Calibration::of_encoder(&vision, "golden");
        let mut views = views(name);
        for HeldOutView { view, rows } in &mut views {
            let cancel = Cancel::new();
            *rows = calibration
                .add_view(&model, &vision, pixels(view), &cancel)
                .unwrap();
            let plain = model.install(|| vision.encode(pixels(view), &cancel));
            assert_eq!(*rows, plain.unwrap(), "{name}: observing changes nothing");
        }
        Self {
            model,
            vision,
            calibration,
            views,
        }
    }

    fn golden(name: &str) -> Self {
        Self::new(&golden().join(name), name)
    }

    fn plan(&self, prune: Prune) -> Quantization {
        self.plan_by(&PrepareOptions {
            prune,
            ..PrepareOptions::default()
        })
    }

    fn plan_by(&self, options: &PrepareOptions) -> Quantization {
        let (cancel, views) = (Cancel::new(), &self.views);
        let calibration = &self.calibration;
        let encoder = (&self.model, &self.vision);
        let decided = decide(encoder.0, encoder.1, calibration, views, options, &cancel);
        decided.unwrap().quantization().unwrap()
    }

    fn by(&self, plan: &Quantization) -> VisionModel {
        self.model.install(|| self.vision.quantize(plan, None))
    }

    fn quantized(&self, prune: Prune) -> VisionModel {
        self.by(&self.plan(prune))
    }

    fn cosine(&self, vision: &VisionModel) -> f64 {
        mean_cosine(&self.model, vision, &self.views, &Cancel::new()).unwrap()
    }
}

#[test]
fn rows_in_int8_correlate_with_those_in_float_in_every_family() {
    println!("| checkpoint | all shadows | 85 % pruned | none |");
    println!("| --- | --- | --- | --- |");
    for name in FAMILIES {
        let subject = Subject::golden(name);
        let cosines = [Prune::Rate(0.0), Prune::PAPER, Prune::Rate(1.0)]
            .map(|prune| subject.cosine(&subject.quantized(prune)));
        let [all, paper, none] = cosines;
        println!("| {name} | {all:.6} | {paper:.6} | {none:.6} |");
        assert!(all > 0.999, "{name}: {all}");
        assert!(paper > 0.998, "{name}: {paper}");
        assert!(none > 0.998, "{name}: {none}");
        assert!(all < 1.0 && none < 1.0, "{name}: INT8 differs from float");
    }
}

#[test]
fn rows_in_int8_have_the_same_bits_on_any_number_of_threads_and_with_known_weights() {
    for name in FAMILIES {
        let subject = Subject::golden(name);
        let all = subject.quantized(Prune::Rate(0.0));
        let plan = subject.plan(Prune::PAPER);
        let quantized = subject
            .model
            .install(|| subject.vision.quantize(&plan, Some(&all)));
        let alone = subject.quantized(Prune::PAPER);
        let encode = |vision: &VisionModel, threads| {
            let model = model(&golden().join(name), threads);
            let cancel = Cancel::new();
            let rows = subject.views.iter().map(|it| {
                let rows = model.install(|| vision.encode(pixels(&it.view), &cancel));
                rows.unwrap()
            });
            rows.collect::<Vec<_>>()
        };
        let one = encode(&quantized, 1);
        for threads in [2, 3] {
            assert!(
                one == encode(&quantized, threads),
                "{name}: {threads} threads"
            );
        }
        assert!(one == encode(&alone, 1), "{name}: weights that are known");
    }
}

#[test]
fn fused_operators_give_the_bits_of_separate_ones_in_int8() {
    for name in FAMILIES {
        let subject = Subject::golden(name);
        for rate in [0.0, 1.0] {
            let vision = subject.quantized(Prune::Rate(rate));
            for HeldOutView { view, .. } in &subject.views {
                let cancel = Cancel::new();
                let mut inputs = 0;
                let observed = subject.model.install(|| {
                    // Inputs that are observed exist in float, so nothing is fused.
                    vision.observe(pixels(view), &cancel, &mut |_, _, _| inputs += 1)
                });
                let fused = subject
                    .model
                    .install(|| vision.encode(pixels(view), &cancel));
                assert!(observed.unwrap() == fused.unwrap(), "{name}, {rate}");
                assert!(inputs >= 4 * vision.description().blocks);
            }
        }
    }
}

/// The variable that has [`one_isa`] print its rows.
const PRINTS: &str = "TRIAD_TEST_PRINTS_ROWS";
const MARK: &str = "rows of this instruction set:";

#[test]
fn rows_in_int8_are_those_of_the_best_kernels_on_every_isa_up_to_rounding() {
    let rows_with = |isa: Isa| -> Vec<f32> {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_isa", "--nocapture"])
            .env(VARIABLE, isa.name())
            .env(PRINTS, "1")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.split_once(MARK).expect("rows").1;
        let rows = rows.split('.').next().unwrap().split_whitespace();
        rows.map(|bits| f32::from_bits(bits.parse().unwrap()))
            .collect()
    };
    let isas: Vec<_> = Isa::supported().collect();
    let best = rows_with(isas[0]);
    assert!(!best.is_empty());
    for isa in &isas[1..] {
        let rows = rows_with(*isa);
        let alike = cosine(&rows, &best);
        println!("{}: {alike}", isa.name());
        // Norms and attention round differently, and a float that rounds to another integer is a step of INT8 away.
        assert!(alike > 0.9995, "{}: {alike}", isa.name());
    }
}

/// Prints rows in INT8 if it is asked to by the variable.
#[test]
fn one_isa() {
    if std::env::var_os(PRINTS).is_none() {
        return;
    }
    let subject = Subject::golden("smolvlm");
    let vision = subject.quantized(Prune::Rate(0.0));
    let view = &subject.views[0].view;
    let rows = subject
        .model
        .install(|| vision.encode(pixels(view), &Cancel::new()));
    let bits = rows
        .unwrap()
        .into_iter()
        .map(|row| row.to_bits().to_string());
    println!("{MARK} {}.", bits.collect::<Vec<_>>().join(" "));
}

/// Copies a checkpoint with the factors of one channel of every first norm raised, and the weights that read the
/// channel lowered as much: the same function in exact arithmetic, with outliers.
fn with_outliers(name: &str, factor: f32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = golden().join(name);
    for file in std::fs::read_dir(&source).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = safetensors::read(&bytes, &[Element::Bf16]).unwrap();
    let mut entries = Vec::new();
    let mut content = BTreeMap::new();
    for (name, tensor) in &header.tensors {
        assert_eq!(tensor.element, Element::Bf16, "{name}");
        let halves = bytes[tensor.bytes.clone()].as_chunks().0.iter();
        let float = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
        let mut values: Vec<f32> = halves.map(float).collect();
        let is_vision = name.contains("vision_model.encoder.layers");
        // Channel 5 of the norm before attention, which query, key and value read.
        if is_vision && (name.contains("layer_norm1.weight") || name.contains("layer_norm1.bias")) {
            values[5] *= factor;
        }
        let reads = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
        if is_vision && reads.iter().any(|layer| name.ends_with(layer)) {
            let columns = tensor.shape[1];
            values
                .chunks_exact_mut(columns)
                .for_each(|row| row[5] /= factor);
        }
        entries.push(Entry {
            name: name.clone(),
            element: Element::F32,
            shape: tensor.shape.clone(),
        });
        content.insert(name.clone(), values);
    }
    let layout = Layout::new(&entries, &BTreeMap::new());
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&layout.header).unwrap();
    for entry in &entries {
        file.write_all(bytemuck::cast_slice(&content[&entry.name]))
            .unwrap();
    }
    folder
}

#[test]
fn without_shadows_planted_outliers_cost_accuracy_that_shadows_keep() {
    // Weights that are lowered further would lose their own steps of INT8.
    let folder = with_outliers("smolvlm", 16.0);
    let (planted, plain) = (
        Subject::new(folder.path(), "smolvlm"),
        Subject::golden("smolvlm"),
    );
    for (one, other) in planted.views.iter().zip(&plain.views) {
        assert!(
            cosine(&one.rows, &other.rows) > 0.99999,
            "the same function in float"
        );
    }
    let error = |plan: &Quantization| 1.0 - planted.cosine(&planted.by(plan));
    let options = |rate, smoothing| PrepareOptions {
        plan: PlanOptions {
            // One of 24 channels is more than the usual share of a wide model.
            outlier_share: 0.05,
            smoothing,
            ..PlanOptions::default()
        },
        prune: Prune::Rate(rate),
        ..PrepareOptions::default()
    };
    let by = |rate, smoothing| error(&planted.plan_by(&options(rate, smoothing)));
    let [with, smoothed, clipped] = [by(0.0, 0.7), by(1.0, 0.7), by(1.0, 0.0)];
    let naive = error(&w8a8(&planted.calibration));
    println!(
        "1 - cosine: shadows {with:.1e}, smoothed {smoothed:.1e}, clipped {clipped:.1e}, max-min {naive:.1e}"
    );
    assert!(with < 5e-4, "{with}");
    assert!(5.0 * with < naive, "{with} of {naive}");
    assert!(5.0 * with < clipped, "{with} of {clipped}");
}

#[test]
fn auto_prunes_no_more_than_the_budget_allows() {
    let folder = with_outliers("smolvlm", 64.0);
    let subject = Subject::new(folder.path(), "smolvlm");
    let all = subject.cosine(&subject.quantized(Prune::Rate(0.0)));
    let mut kept = Vec::new();
    for budget in [0.0, 1e-6, 1e-3, 1.0] {
        let plan = subject.plan(Prune::Auto { budget });
        let found = subject.cosine(
            &subject
                .model
                .install(|| subject.vision.quantize(&plan, None)),
        );
        assert!(
            found >= all - budget - 1e-12,
            "{found} of {all} with {budget}"
        );
        kept.push(plan.shadows());
    }
    assert!(kept.is_sorted_by(|one, next| one >= next), "{kept:?}");
    assert_eq!(kept[3], 0, "a budget of everything prunes everything");
}

/// Returns a folder with some pictures.
fn screens() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "120x80.png",
        "80x120.png",
        "64x64.png",
        "99x101.png",
        "31x33.png",
    ] {
        let source = golden().join("files").join(name);
        std::fs::copy(source, folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("README.txt"), "not a picture").unwrap();
    folder
}

fn recipe(pictures: Option<CalibrationPictures>) -> Recipe {
    Recipe {
        checkpoint: Arc::new(Checkpoint::open(golden().join("chat")).unwrap()),
        text: CalibrationText {
            name: "letters".into(),
            texts: ["some text", "more text", "other text", "the end"]
                .map(str::to_owned)
                .to_vec(),
        },
        options: PrepareOptions {
            prune: Prune::Rate(0.5),
            ..PrepareOptions::default()
        },
        threads: Threads::Count(2),
        existing: Existing::Replace,
        moment_memory: triad_prepare::int4::moments::MEMORY,
        pictures,
    }
}

fn prepared(recipe: &Recipe, destination: &Path) -> Result<Prepared> {
    prepare(recipe, destination, &Cancel::new(), &mut |_| ())
}

/// Returns the rows that a model makes of a view, and the logits after them.
fn rows_and_logits(model: &Arc<Model>, view: Pixels) -> (Vec<f32>, Vec<f32>) {
    let options = EngineOptions {
        session: SessionOptions {
            context: 512,
            ..SessionOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::new(model, &options).unwrap();
    let picture = engine
        .picture(view, PrefixSalt::default(), &Cancel::new())
        .unwrap();
    let mut session = engine.session();
    session.hold(&picture);
    let prompt: Vec<u32> = [3]
        .into_iter()
        .chain(picture.tokens())
        .chain([4, 5])
        .collect();
    let logits = session
        .prefill(&prompt, &Cancel::new(), |_| {})
        .unwrap()
        .to_vec();
    (picture.values().to_vec(), logits)
}

#[test]
fn a_package_runs_its_encoder_in_int8_without_any_other_file() {
    let (folder, screens) = (tempfile::tempdir().unwrap(), screens());
    let source = golden().join("chat");
    let destination = folder.path().join("package");
    let pictures = CalibrationPictures::of_folder(screens.path(), &source).unwrap();
    assert_eq!(pictures.files.len(), 5);
    let recipe = recipe(Some(pictures));
    let package = prepared(&recipe, &destination).unwrap().package;
    package.verify().unwrap();
    let vision = package.manifest().vision.as_ref().unwrap();
    assert_eq!(vision.pictures, 4);
    assert_eq!(vision.preparation.inputs.len(), 4 * vision.model.blocks);
    assert!(vision.source.contains_key("model.safetensors"));
    assert!(package.contents().unwrap().others.is_empty());

    // What the package computes is what quantizing in memory computes.
    let processor = Processor::of_encoder(&destination).unwrap();
    let pictures = recipe.pictures.as_ref().unwrap();
    let view = pictures
        .views(&screens.path().join("64x64.png"))
        .unwrap()
        .remove(0);
    let picture =
        triad_pictures::Picture::decode(&std::fs::read(screens.path().join("64x64.png")).unwrap());
    assert_eq!(processor.prepare(&picture.unwrap()).unwrap().views[0], view);
    let load = |path: &Path| Arc::new(model(path, 2));
    let found = load(&destination);
    assert_eq!(found.vision().unwrap().path(), destination);
    let plan = vision.preparation.quantization().unwrap();
    let float = VisionModel::load(&source, found.description(), BlockArithmetic::Exact).unwrap();
    let expected = found.install(|| {
        float
            .quantize(&plan, None)
            .encode(pixels(&view), &Cancel::new())
    });
    let (rows, logits) = rows_and_logits(&found, pixels(&view));
    assert_eq!(rows, expected.unwrap());
    let of_float = rows_and_logits(&load(&source), pixels(&view));
    assert_ne!(rows, of_float.0, "it is in INT8");
    assert!(cosine(&rows, &of_float.0) > 0.999);
    assert!(cosine(&logits, &of_float.1) > 0.99);

    // An encoder that is named is used in its place, as it is stored.
    let options = LoadOptions {
        vision: Some(source),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    let named = Arc::new(Model::load(&destination, &options).unwrap());
    assert_eq!(rows_and_logits(&named, pixels(&view)).0, of_float.0);

    // The same input gives the same bytes.
    let again = folder.path().join("again");
    prepared(&recipe, &again).unwrap();
    for name in [MANIFEST, packaged::WEIGHTS, SETTINGS[0]] {
        let [one, other] = [&destination, &again].map(|it| std::fs::read(it.join(name)).unwrap());
        assert!(one == other, "{name}");
    }
}

#[test]
fn a_package_keeps_how_an_mmproj_file_prepares_pictures() {
    let (folder, screens) = (tempfile::tempdir().unwrap(), screens());
    let mmproj = golden().join("smolvlm-mmproj.gguf");
    let destination = folder.path().join("package");
    let pictures = CalibrationPictures::of_folder(screens.path(), &mmproj).unwrap();
    let package = prepared(&recipe(Some(pictures.clone())), &destination)
        .unwrap()
        .package;
    let names = package.contents().unwrap().hashed;
    assert!(names.contains(&packaged::GGUF.to_owned()), "{names:?}");
    let processor = Processor::of_encoder(&destination).unwrap();
    for file in &pictures.files {
        let picture = triad_pictures::Picture::decode(&std::fs::read(file).unwrap()).unwrap();
        let views = processor.prepare(&picture).unwrap().views;
        assert_eq!(views, pictures.views(file).unwrap());
    }
    let model = Arc::new(model(&destination, 1));
    let view = pictures.views(&pictures.files[0]).unwrap().remove(0);
    rows_and_logits(&model, pixels(&view));
}

#[test]
fn a_package_has_the_norms_and_the_bounds_of_gemma_4s_encoder() {
    let screens = screens();
    let cases = [
        ("gemma4.gguf", "gemma4-inputs-mmproj.gguf"),
        ("gemma4-one-layer.gguf", "gemma4-mmproj.gguf"),
    ];
    for (text, mmproj) in cases {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("package");
        let mmproj = golden().join(mmproj);
        let pictures = CalibrationPictures::of_folder(screens.path(), &mmproj).unwrap();
        let view = pictures.views(&pictures.files[0]).unwrap().remove(0);
        let text = golden().join("../families").join(text);
        let recipe = Recipe {
            checkpoint: Arc::new(Checkpoint::open(text).unwrap()),
            ..recipe(Some(pictures))
        };
        let package = prepared(&recipe, &destination).unwrap().package;
        package.verify().unwrap();
        let found = Arc::new(model(&destination, 2));
        let plan = package.manifest().vision.as_ref().unwrap();
        let plan = plan.preparation.quantization().unwrap();
        let exact = BlockArithmetic::Exact;
        let float = VisionModel::load(&mmproj, found.description(), exact).unwrap();
        assert_eq!(found.vision().unwrap().description(), float.description());
        let has_inputs = found.description().token_inputs.is_some();
        assert_eq!(float.description().together, !has_inputs);
        let expected = found.install(|| {
            float
                .quantize(&plan, None)
                .encode(pixels(&view), &Cancel::new())
        });
        let rows = rows_and_logits(&found, pixels(&view)).0;
        assert_eq!(rows, expected.unwrap(), "{}", mmproj.display());
    }
}

#[test]
fn a_package_without_pictures_has_no_encoder_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("package");
    let package = prepared(&recipe(None), &destination).unwrap().package;
    assert!(package.manifest().vision.is_none());
    let error = model(&destination, 1).vision().err().unwrap().to_string();
    assert!(error.contains("picture"), "{error}");
}

/// Returns the error of opening or loading a package whose files `change` has changed.
fn error_of(package: &Path, change: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(package).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    change(folder.path());
    let opened = Package::open(folder.path()).map_err(triad_engine::Error::from);
    let options = LoadOptions::default();
    let loaded = opened.and_then(|package| Model::from_package(&package, &options).map(|_| ()));
    let error = loaded.expect_err("a damaged package");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[test]
fn damaged_encoders_of_packages_are_errors_that_name_the_field() {
    let (folder, screens) = (tempfile::tempdir().unwrap(), screens());
    let destination = folder.path().join("package");
    let pictures = CalibrationPictures::of_folder(screens.path(), &golden().join("chat")).unwrap();
    prepared(&recipe(Some(pictures)), &destination).unwrap();
    let edit = |path: &Path, change: &dyn Fn(&mut serde_json::Value)| {
        let path = path.join(MANIFEST);
        let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
    };
    type Change = fn(&mut serde_json::Value);
    let cases: [(Change, &str); 11] = [
        (
            |json| {
                json["vision"]["model"]["class_token"] = true.into();
                json["vision"]["model"]["windows"] =
                    serde_json::json!({"side": 1, "whole": [true, false]});
            },
            "class token",
        ),
        (
            |json| {
                json["vision"]["model"]["positions"] = "none".into();
                json["vision"]["model"]["together"] = true.into();
            },
            "read each other",
        ),
        (
            |json| json["vision"]["model"]["hidden"] = 0.into(),
            "hidden",
        ),
        (|json| json["vision"]["model"]["heads"] = 5.into(), "heads"),
        (
            |json| json["vision"]["model"]["width"] = 64.into(),
            "another model",
        ),
        (
            |json| json["vision"]["model"]["patch"] = (1u64 << 40).into(),
            "patch",
        ),
        (
            |json| json["vision"]["matrices"] = "I8".into(),
            "vision.matrices",
        ),
        (
            |json| json["vision"]["preparation"]["inputs"][1]["clip"] = 0.into(),
            "vision.preparation.inputs[1]",
        ),
        (
            |json| json["vision"]["preparation"]["options"]["plan"]["linears"] = "w4a16".into(),
            "INT8",
        ),
        (
            |json| json["vision"] = serde_json::Value::Null,
            "no field `vision`",
        ),
        (|json| json["vision"]["more"] = 1.into(), "more"),
    ];
    for (change, expected) in cases {
        let error = error_of(&destination, |path| edit(path, &change));
        assert!(
            error.contains(expected) && error.contains(MANIFEST),
            "{expected}: {error}"
        );
    }
    let error = error_of(&destination, |path| {
        std::fs::remove_file(path.join(packaged::WEIGHTS)).unwrap();
    });
    assert!(error.contains(packaged::WEIGHTS), "{error}");
    let error = error_of(&destination, |path| {
        let path = path.join(packaged::WEIGHTS);
        let mut bytes = std::fs::read(&path).unwrap();
        // The length stays, the header does not.
        bytes[9] = b'x';
        std::fs::write(path, bytes).unwrap();
    });
    assert!(error.contains(packaged::WEIGHTS), "{error}");
    let error = error_of(&destination, |path| {
        std::fs::write(path.join(packaged::GGUF), "more").unwrap();
    });
    assert!(error.contains(packaged::GGUF), "{error}");
}

#[test]
fn calibration_pictures_that_are_none_are_refused_by_name() {
    let (folder, encoder) = (tempfile::tempdir().unwrap(), golden().join("chat"));
    let error = |result: Result<()>| result.unwrap_err().to_string();
    let found = CalibrationPictures::of_folder(folder.path(), &encoder).map(|_| ());
    assert!(error(found).contains("has 0 pictures"));
    let found = CalibrationPictures::of_folder(&folder.path().join("none"), &encoder).map(|_| ());
    assert!(error(found).contains("none"));
    std::fs::write(folder.path().join("a.png"), "not a picture").unwrap();
    let found = CalibrationPictures::of_folder(folder.path(), &folder.path().join("a.png"));
    assert!(error(found.map(|_| ())).contains("a.png"));
    let pictures = CalibrationPictures::of_folder(folder.path(), &encoder).unwrap();
    let destination = folder.path().join("package");
    let found = prepared(&recipe(Some(pictures)), &destination).map(|_| ());
    assert!(error(found).contains("a.png"));
    assert!(!destination.exists(), "nothing is left");
    let mut w4a16 = recipe(Some(
        CalibrationPictures::of_folder(screens().path(), &encoder).unwrap(),
    ));
    w4a16.options.plan.linears = triad_engine::quantization::LinearFormat::W4a16;
    assert!(error(prepared(&w4a16, &destination).map(|_| ())).contains("INT8"));
}
