//! Models with the smallest or largest numbers of f32: each is prepared and runs, or is refused by name.

use std::fs;
use std::sync::Arc;

use triad_engine::quantization::LinearFormat;
use triad_engine::{Cancel, Error, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_model::checkpoint::Checkpoint;
use triad_prepare::package::Existing;

use crate::tiny::{Place, gguf_with};

#[test]
fn weights_of_any_finite_size_are_quantized_and_run_without_a_panic() {
    let place = Place::new();
    let denormal = 1e-40;
    for (norms, linears) in [
        (denormal, 1.0),
        (1.0, denormal),
        (denormal, denormal),
        (1e-36, 1e-3),
        (1e30, 1e-30),
        (1e30, 1e30),
    ] {
        fs::write(
            place.path("model.gguf"),
            gguf_with(96, [norms, linears], 1e-5),
        )
        .unwrap();
        for linears in [LinearFormat::W8a8, LinearFormat::W4a16] {
            let mut recipe = place.recipe();
            recipe.options.plan.linears = linears;
            recipe.existing = Existing::Replace;
            let Ok(prepared) = place.prepare(&recipe, "package") else {
                continue;
            };
            let options = LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            };
            let model = Arc::new(Model::from_package(&prepared.package, &options).unwrap());
            let mut session = Session::new(
                &model,
                &SessionOptions {
                    context: 8,
                    ..Default::default()
                },
            )
            .unwrap();
            let tokens: Vec<u32> = (0..4).collect();
            match session.prefill(&tokens, &Cancel::new(), |_| {}) {
                Ok(logits) => assert!(logits.iter().all(|logit| logit.is_finite())),
                Err(error) => assert!(matches!(error, Error::NotFinite), "{error}"),
            }
        }
    }
}

#[test]
fn an_epsilon_beyond_its_range_is_refused_by_name() {
    let place = Place::new();
    for epsilon in [0.0, 1e-45, 1e-38, 2.0, 3.4e38] {
        fs::write(place.path("model.gguf"), gguf_with(96, [1.0; 2], epsilon)).unwrap();
        let Err(error) = Checkpoint::open(place.path("model.gguf")) else {
            panic!("{epsilon} accepted")
        };
        assert!(error.to_string().contains("epsilon"), "{error}");
    }
}
