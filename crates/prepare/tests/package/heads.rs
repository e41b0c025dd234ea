//! Packages of models with a head that predicts one more token.

use std::path::Path;
use std::sync::Arc;

use triad_engine::package::{FORMAT, PLAIN_FORMAT};
use triad_engine::quantization::LinearFormat;
use triad_engine::sampler::SamplerOptions;
use triad_engine::speculate::{Speculate, Speculation};
use triad_engine::{
    Cancel, GenerateOptions, Generation, LoadOptions, Model, Session, SessionOptions, Threads,
    generate,
};
use triad_model::checkpoint::Checkpoint;
use triad_prepare::package::Recipe;

use crate::tiny::Place;

fn answer(model: &Arc<Model>, speculate: Option<Speculate>) -> Generation {
    let options = SessionOptions {
        context: 64,
        chunk: 5,
        ..SessionOptions::default()
    };
    let sampler = SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    };
    let options = (
        options,
        GenerateOptions {
            max_tokens: Some(33),
            ignores_end_tokens: true,
            speculate,
            sampler,
            ..GenerateOptions::default()
        },
    );
    let mut session = Session::new(model, &options.0).unwrap();
    let prompt = [40, 14, 15, 9, 26, 90, 91];
    generate(
        &mut session,
        &prompt,
        &options.1,
        &Cancel::new(),
        &mut |_| {},
    )
    .unwrap()
}

#[test]
fn a_package_keeps_the_head_of_its_model_and_proposes_by_it() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mtp");
    for file in ["perfect.gguf", "qwen3_5.gguf"] {
        let place = Place::new();
        let formats = [
            (LinearFormat::W8a8, None),
            (LinearFormat::W4a16, None),
            (LinearFormat::W4a16, Some(16.0)),
        ];
        for (linears, bits) in formats {
            let path = Path::new(golden).join(file);
            let mut recipe = Recipe {
                checkpoint: Arc::new(Checkpoint::open(&path).unwrap()),
                ..place.recipe()
            };
            (recipe.options.plan.linears, recipe.options.plan.bits) = (linears, bits);
            // One block at a time, so that written blocks are recorded.
            recipe.moment_memory = 0;
            let name = format!("{linears:?} {bits:?}");
            let package = place.prepare(&recipe, &name).unwrap().package;
            assert_eq!(package.manifest().format, FORMAT);
            package.verify().unwrap();
            let load = LoadOptions {
                threads: Threads::Count(2),
                ..LoadOptions::default()
            };
            let opened = Arc::new(Model::load(package.path(), &load).unwrap());
            assert_eq!(opened.description(), recipe.checkpoint.description());
            let plain = answer(&opened, None);
            let speculate = Speculate {
                most: 3,
                is_fixed: true,
                ..Speculate::mtp()
            };
            let found = answer(&opened, Some(speculate));
            assert_eq!(found.tokens, plain.tokens, "{file} {linears:?}");
            let counts: Speculation = found.speculation.unwrap();
            assert!(counts.mtp_proposed > 0, "{file}: the head was not used");
            if file == "perfect.gguf" {
                assert_eq!(counts.acceptance(), 1.0, "{linears:?}: {counts:?}");
            }
        }
    }
}

#[test]
fn a_head_that_is_not_finite_is_left_out_of_a_package() {
    let place = Place::new();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mtp");
    let mut bytes = std::fs::read(Path::new(golden).join("perfect.gguf")).unwrap();
    let original = Checkpoint::open(Path::new(golden).join("perfect.gguf")).unwrap();
    let projection = &original.tensor_map().mtp.as_ref().unwrap().projection.name;
    let start = original.tensor(projection).unwrap().bytes.start;
    // NaN in every format of floats.
    bytes[start..start + 4].fill(0xff);
    let path = place.path("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    let recipe = Recipe {
        checkpoint: Arc::new(Checkpoint::open(&path).unwrap()),
        ..place.recipe()
    };
    assert!(recipe.checkpoint.description().mtp.is_some());
    let package = place.prepare(&recipe, "package").unwrap().package;
    package.verify().unwrap();
    assert!(package.description().mtp.is_none());
    assert_eq!(package.manifest().format, PLAIN_FORMAT);
    let opened = Arc::new(Model::load(package.path(), &LoadOptions::default()).unwrap());
    assert_eq!(answer(&opened, None).tokens.len(), 33);
}

#[test]
fn a_plan_with_impossible_bits_is_refused_before_anything_is_written() {
    let place = Place::new();
    for (linears, bits) in [
        (LinearFormat::W8a8, 6.0),
        (LinearFormat::W4a16, f64::INFINITY),
        (LinearFormat::W4a16, f64::NAN),
    ] {
        let mut recipe = place.recipe();
        (recipe.options.plan.linears, recipe.options.plan.bits) = (linears, Some(bits));
        let refused = place.prepare(&recipe, "package").err().unwrap();
        assert!(refused.to_string().contains("bits per weight"), "{refused}");
        assert!(!place.path("package").exists());
    }
}
