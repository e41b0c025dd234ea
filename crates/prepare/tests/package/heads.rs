//! Packages of models with a head that predicts one more token.

use std::path::Path;
use std::sync::Arc;

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
        for linears in [LinearFormat::W8a8, LinearFormat::W4a16] {
            let path = Path::new(golden).join(file);
            let mut recipe = Recipe {
                checkpoint: Arc::new(Checkpoint::open(&path).unwrap()),
                ..place.recipe()
            };
            recipe.options.plan.linears = linears;
            let package = place.prepare(&recipe, &format!("{linears:?}")).unwrap();
            let package = package.package;
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
