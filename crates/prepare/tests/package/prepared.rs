//! Preparing packages: same bytes, same logits, no incomplete package.

use std::fs;
use std::sync::Arc;

use triad_engine::package::Package;
use triad_engine::quantization::{DecodeWeights, LinearFormat, OutputWeights};
use triad_engine::weights::Weight;
use triad_engine::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_model::checkpoint::Checkpoint;
use triad_prepare::calibration::{self, Calibration};
use triad_prepare::package::{Existing, Recipe};
use triad_prepare::{Error, PrepareOptions, Prune};

use crate::damaged::chain;
use crate::tiny::{Place, files, gguf_of_experts, in_int4, text};

/// Returns the logits of a prompt and of the tokens after it, so that prefill and decode both run.
fn logits(model: Model) -> Vec<f32> {
    let tokens = model.encode_prompt("Hello,world!").unwrap();
    let options = SessionOptions {
        context: 40,
        chunk: 5,
        ..SessionOptions::default()
    };
    let mut session = Session::new(&Arc::new(model), &options).unwrap();
    let mut logits = session.prefill_all_logits(&tokens, &Cancel::new()).unwrap();
    for token in [7, 11, 13] {
        logits.extend_from_slice(session.decode(token, &Cancel::new()).unwrap());
    }
    logits
}

#[test]
fn a_package_of_experts_computes_the_logits_of_the_model_that_was_quantized_in_memory() {
    let place = Place::with_model(&gguf_of_experts());
    let load = LoadOptions {
        threads: Threads::Count(2),
        ..Default::default()
    };
    let recipe = place.recipe();
    let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load).unwrap());
    let package = place.prepare(&recipe, "w8a8").unwrap().package;
    package.verify().unwrap();
    let plan = package.manifest().preparation.quantization().unwrap();
    let opened = Model::load(package.path(), &load).unwrap();
    assert!(opened.weights().is_int8());
    assert_eq!(logits(opened), logits(float.quantize(&plan)));

    let mut recipe = place.recipe();
    recipe.options.plan.linears = LinearFormat::W4a16;
    let package = place.prepare(&recipe, "w4a16").unwrap().package;
    let in_memory = in_int4(&float, &recipe);
    let opened = Model::load(package.path(), &load).unwrap();
    let linears = |block: usize| opened.weights().blocks[block].linears.values();
    assert!(
        (0..2)
            .flat_map(linears)
            .all(|linear| matches!(&linear.weight, Weight::Float(weight) if weight.is_int4()))
    );
    assert_eq!(logits(opened), logits(in_memory));
}

#[test]
fn a_package_computes_the_logits_of_the_model_that_was_quantized_in_memory() {
    let place = Place::new();
    for (index, (decode_weights, output_weights)) in [
        (DecodeWeights::Int8, OutputWeights::Int8),
        (DecodeWeights::Int4, OutputWeights::Int8),
        (DecodeWeights::Int8, OutputWeights::Float),
    ]
    .into_iter()
    .enumerate()
    {
        let mut recipe = place.recipe();
        recipe.options.plan.decode_weights = decode_weights;
        recipe.options.plan.output_weights = output_weights;
        let package = place.prepare(&recipe, &index.to_string()).unwrap().package;
        let load = LoadOptions {
            threads: Threads::Count(2),
            ..Default::default()
        };
        let float = Model::from_checkpoint(&recipe.checkpoint, &load).unwrap();
        let plan = package.manifest().preparation.quantization().unwrap();
        assert_eq!(plan.shadows(), 4, "half of eight inputs");
        let in_memory = float.quantize(&plan);
        let opened = Model::load(package.path(), &load).unwrap();
        assert_eq!(opened.description(), float.description());
        assert_eq!(opened.generation_defaults(), float.generation_defaults());
        assert_eq!(opened.weights().bytes(), in_memory.weights().bytes());
        assert!(opened.chat_template().is_some());
        assert_eq!(
            logits(opened),
            logits(in_memory),
            "{decode_weights:?} {output_weights:?}"
        );
    }
}

#[test]
fn a_package_in_w4a16_computes_the_logits_of_the_model_that_was_quantized_in_memory() {
    // With rows of 32 and 96, all of them whole groups; and of 32 and 80.
    for (width, layers_in_int4) in [(96, 14), (80, 12)] {
        let place = Place::with_width(width);
        for (index, output_weights) in [OutputWeights::Int8, OutputWeights::Float]
            .into_iter()
            .enumerate()
        {
            let mut recipe = place.recipe();
            (
                recipe.options.plan.linears,
                recipe.options.plan.output_weights,
            ) = (LinearFormat::W4a16, output_weights);
            let package = place.prepare(&recipe, &index.to_string()).unwrap().package;
            package.verify().unwrap();
            let preparation = &package.manifest().preparation;
            assert!(preparation.quantization().is_none() && preparation.inputs.is_empty());
            assert!(preparation.calibration_tokens > 0);

            let load = LoadOptions {
                threads: Threads::Count(2),
                ..Default::default()
            };
            let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load).unwrap());
            let in_memory = in_int4(&float, &recipe);
            let opened = Model::load(package.path(), &load).unwrap();
            assert_eq!(opened.description(), float.description());
            assert_eq!(opened.weights().bytes(), in_memory.weights().bytes());
            assert_eq!(opened.fingerprint(), in_memory.fingerprint());
            let linears = opened
                .weights()
                .blocks
                .iter()
                .flat_map(|block| block.linears.values());
            let in_int4 = linears.filter(
                |linear| matches!(&linear.weight, Weight::Float(weight) if weight.is_int4()),
            );
            assert_eq!(in_int4.count(), layers_in_int4);
            assert_eq!(
                logits(opened),
                logits(in_memory),
                "{width} {output_weights:?}"
            );
        }
    }
}

#[test]
fn a_package_has_inputs_by_token_streams_and_factors_of_blocks_as_they_are_stored() {
    for (file, has_any) in [
        ("gemma4.gguf", true),
        ("gemma4-one-layer.gguf", false),
        ("gemma3n-long.gguf", true),
    ] {
        let place = Place::new();
        let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/families/");
        for linears in [LinearFormat::W8a8, LinearFormat::W4a16] {
            let mut recipe = Recipe {
                checkpoint: Arc::new(Checkpoint::open(format!("{families}{file}")).unwrap()),
                ..place.recipe()
            };
            recipe.options.plan.linears = linears;
            let package = place
                .prepare(&recipe, &format!("{linears:?}"))
                .unwrap()
                .package;
            package.verify().unwrap();
            let load = LoadOptions {
                threads: Threads::Count(2),
                ..Default::default()
            };
            let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load).unwrap());
            let in_memory = match package.manifest().preparation.quantization() {
                Some(plan) => float.quantize(&plan),
                None => in_int4(&float, &recipe),
            };
            let opened = Model::load(package.path(), &load).unwrap();
            assert_eq!(opened.description(), float.description());
            assert_eq!(opened.fingerprint(), in_memory.fingerprint());
            assert_eq!(opened.weights().bytes(), in_memory.weights().bytes());
            let has_inputs = opened.weights().token_inputs.is_some();
            assert_eq!(has_inputs, has_any, "{file}");
            assert_eq!(package.manifest().token_inputs.is_some(), has_inputs);
            assert_eq!(logits(opened), logits(in_memory), "{file} {linears:?}");
        }
    }
}

#[test]
fn a_package_has_latent_vectors_parts_of_blocks_and_experts_without_gates() {
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/families/");
    for file in [
        "deepseek_v3.gguf",
        "nemotron_h.gguf",
        "nemotron_h-moe.gguf",
        "falcon_h1.gguf",
    ] {
        let place = Place::new();
        for linears in [LinearFormat::W8a8, LinearFormat::W4a16] {
            let mut recipe = Recipe {
                checkpoint: Arc::new(Checkpoint::open(format!("{families}{file}")).unwrap()),
                ..place.recipe()
            };
            recipe.options.plan.linears = linears;
            let package = place
                .prepare(&recipe, &format!("{linears:?}"))
                .unwrap()
                .package;
            package.verify().unwrap();
            let load = LoadOptions {
                threads: Threads::Count(2),
                ..Default::default()
            };
            let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load).unwrap());
            let in_memory = match package.manifest().preparation.quantization() {
                Some(plan) => float.quantize(&plan),
                None => in_int4(&float, &recipe),
            };
            let opened = Model::load(package.path(), &load).unwrap();
            assert_eq!(opened.description(), float.description());
            assert_eq!(opened.fingerprint(), in_memory.fingerprint(), "{file}");
            assert_eq!(logits(opened), logits(in_memory), "{file} {linears:?}");
        }
    }
}

#[test]
fn what_calibration_sees_decides_the_scales_of_w4a16() {
    let place = Place::new();
    let mut recipe = place.recipe();
    recipe.options.plan.linears = LinearFormat::W4a16;
    let weights = |recipe: &Recipe, name: &str| {
        let package = place.prepare(recipe, name).unwrap().package;
        fs::read(package.path().join("weights.safetensors")).unwrap()
    };
    let first = weights(&recipe, "first");
    recipe.threads = Threads::Count(1);
    assert!(first == weights(&recipe, "on one thread"));
    recipe.moment_memory = 0;
    assert!(first == weights(&recipe, "a block at a time"));
    recipe.text = text(30);
    assert!(first != weights(&recipe, "another text"));
}

#[test]
fn the_same_model_text_and_options_give_the_same_bytes_on_any_number_of_threads() {
    let place = Place::new();
    let mut recipe = place.recipe();
    recipe.options.prune = Prune::AUTO;
    let first = files(place.prepare(&recipe, "first").unwrap().package.path());
    recipe.threads = Threads::Count(1);
    assert!(first == files(place.prepare(&recipe, "second").unwrap().package.path()));
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "package.json",
            "package.json.sha256",
            "tokenizer.gguf",
            "weights.safetensors"
        ]
    );
    recipe.text = text(13);
    assert!(first != files(place.prepare(&recipe, "third").unwrap().package.path()));
}

#[test]
fn an_interrupted_preparation_goes_on_to_the_same_bytes() {
    for linears in [LinearFormat::W8a8, LinearFormat::W4a16] {
        let place = Place::new();
        let mut recipe = place.recipe();
        recipe.options.plan.linears = linears;
        let whole = place.prepare(&recipe, "whole").unwrap();
        let all = files(whole.package.path());
        assert!(matches!(
            place.interrupt(&recipe, "package", 1),
            Err(Error::Engine(triad_engine::Error::Cancelled))
        ));
        assert!(matches!(
            place.interrupt(&recipe, "package", 100),
            Err(Error::Engine(triad_engine::Error::Cancelled))
        ));
        assert_eq!(
            place.names("package.part"),
            ["calibration.safetensors", "lock"]
        );
        let resumed = place.prepare(&recipe, "package").unwrap();
        let (calibrated, _) = resumed.calibrated;
        assert!(
            calibrated > 0 && calibrated + 100 <= whole.calibrated.0,
            "{linears:?}: {calibrated}"
        );
        assert!(all == files(resumed.package.path()), "{linears:?}");
        assert_eq!(place.names(""), ["model.gguf", "package", "whole"]);
    }
}

#[test]
fn a_preparation_that_is_cancelled_anywhere_goes_on_to_the_same_bytes() {
    // Cancelled at each check for one, at some of them for the other.
    for (linears, step) in [(LinearFormat::W8a8, 1), (LinearFormat::W4a16, 5)] {
        let place = Place::new();
        let mut recipe = place.recipe();
        (
            recipe.options.prune,
            recipe.options.plan.linears,
            recipe.existing,
        ) = (Prune::AUTO, linears, Existing::Keep);
        // The moments of one block at a time.
        recipe.moment_memory = 0;
        let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
        let mut checks = 0;
        while let Err(error) = place.stop(&recipe, "package", checks) {
            assert!(
                matches!(error, Error::Engine(triad_engine::Error::Cancelled)),
                "{error} after {checks} checks"
            );
            // A resumed run is cancelled once more, elsewhere.
            let _ = place.stop(&recipe, "package", checks * 7 % 31);
            let resumed = place.prepare(&recipe, "package").unwrap().package;
            assert!(
                whole == files(resumed.path()),
                "{linears:?}, cancelled after {checks} checks"
            );
            fs::remove_dir_all(resumed.path()).unwrap();
            checks += step;
        }
        assert!(
            checks > 30,
            "{checks}: calibration alone checks before each block of each piece"
        );
        assert_eq!(place.names(""), ["model.gguf", "package", "whole"]);
    }
}

#[test]
fn a_calibration_that_is_cancelled_at_each_of_its_blocks_has_the_statistics_of_one_that_is_not() {
    let place = Place::new();
    let recipe = place.recipe();
    let model =
        Arc::new(Model::from_checkpoint(&recipe.checkpoint, &LoadOptions::default()).unwrap());
    let [pieces, _] = calibration::split(&model, &recipe.text, recipe.options.tokens).unwrap();
    let mut whole = Calibration::new(model.description(), "test");
    whole
        .run(&model, &pieces, &Cancel::new(), |_| Ok(()))
        .unwrap();
    // Each call processes one or two more blocks than the previous one.
    let mut resumed = Calibration::new(model.description(), "test");
    let mut calls = 0;
    while resumed
        .run(&model, &pieces, &Cancel::after(1 + calls % 2), |_| Ok(()))
        .is_err()
    {
        calls += 1;
        assert!(calls <= 3 * pieces.len(), "calls do not get further");
    }
    assert!(calls > pieces.len());
    assert!(resumed == whole);
}

#[test]
fn a_state_that_an_older_version_saved_is_not_resumed() {
    let place = Place::new();
    let recipe = place.recipe();
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    place.interrupt(&recipe, "package", 100).unwrap_err();
    let left = place.path("package.part/calibration.safetensors");
    let mut bytes = fs::read(&left).unwrap();
    let (field, older) = (b"\"format\":\"3\"", b"\"format\":\"2\"");
    let at = bytes
        .windows(field.len())
        .position(|window| window == field)
        .unwrap();
    bytes[at..][..field.len()].copy_from_slice(older);
    fs::write(&left, bytes).unwrap();
    let prepared = place.prepare(&recipe, "package").unwrap();
    assert_eq!(
        prepared.calibrated.0,
        prepared.package.manifest().preparation.calibration_tokens
    );
    assert!(whole == files(prepared.package.path()));
}

#[test]
fn a_state_that_this_machine_did_not_write_is_not_resumed() {
    let place = Place::new();
    let recipe = place.recipe();
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    place.interrupt(&recipe, "package", 100).unwrap_err();
    let left = place.path("package.part/calibration.safetensors");
    let mut bytes = fs::read(&left).unwrap();
    // A count of the last histogram.
    let at = bytes.len() - 4;
    bytes[at] ^= 1;
    fs::write(&left, bytes).unwrap();
    let prepared = place.prepare(&recipe, "package").unwrap();
    assert_eq!(
        prepared.calibrated.0,
        prepared.package.manifest().preparation.calibration_tokens
    );
    assert!(whole == files(prepared.package.path()));
}

#[test]
fn what_a_killed_preparation_left_does_not_become_part_of_a_package() {
    let place = Place::new();
    let recipe = place.recipe();
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    fs::create_dir(place.path("package.part")).unwrap();
    for name in [
        "lock",
        "chat_template.jinja",
        "weights.safetensors",
        "package.json",
    ] {
        fs::write(place.path("package.part").join(name), "left").unwrap();
    }
    assert!(whole == files(place.prepare(&recipe, "package").unwrap().package.path()));
}

#[test]
fn what_no_preparation_made_is_neither_removed_nor_written_to() {
    let place = Place::new();
    let mut recipe = place.recipe();
    for folder in ["photos", "package.part", "package.old"] {
        fs::create_dir(place.path(folder)).unwrap();
        fs::write(place.path(folder).join("a.jpg"), "a").unwrap();
    }
    let error = chain(&place.prepare(&recipe, "package").unwrap_err());
    assert!(
        error.contains("package.part")
            && error.contains("it has a.jpg, which no preparation makes"),
        "{error}"
    );
    assert_eq!(place.names("package.part"), ["a.jpg"]);
    fs::remove_dir_all(place.path("package.part")).unwrap();
    #[cfg(unix)]
    {
        fs::rename(
            place.path("photos/a.jpg"),
            place.path("photos/weights.safetensors"),
        )
        .unwrap();
        std::os::unix::fs::symlink("photos", place.path("package.part")).unwrap();
        let error = chain(&place.prepare(&recipe, "package").unwrap_err());
        assert!(
            error.contains("folder of an earlier preparation by this user"),
            "{error}"
        );
        assert_eq!(
            fs::read_to_string(place.path("photos/weights.safetensors")).unwrap(),
            "a"
        );
        fs::remove_file(place.path("package.part")).unwrap();
    }
    place.prepare(&recipe, "package").unwrap();
    recipe.existing = Existing::Replace;
    place.prepare(&recipe, "package").unwrap();
    assert_eq!(place.names("package.old"), ["a.jpg"]);
    assert_eq!(
        place.names(""),
        ["model.gguf", "package", "package.old", "photos"]
    );
}

#[cfg(unix)]
#[test]
fn a_package_that_a_link_names_is_replaced_where_it_is() {
    let place = Place::new();
    let mut recipe = place.recipe();
    fs::create_dir(place.path("elsewhere")).unwrap();
    place.prepare(&recipe, "elsewhere/package").unwrap();
    std::os::unix::fs::symlink("elsewhere/package", place.path("link")).unwrap();
    (recipe.existing, recipe.options.prune) = (Existing::Replace, Prune::Rate(0.0));
    place.prepare(&recipe, "link").unwrap();
    assert!(place.path("link").is_symlink());
    let package = Package::open(&place.path("elsewhere/package")).unwrap();
    assert_eq!(
        package
            .manifest()
            .preparation
            .quantization()
            .unwrap()
            .shadows(),
        8
    );
    assert_eq!(place.names("elsewhere"), ["package"]);
}

#[test]
fn what_another_preparation_left_is_not_taken_over() {
    let place = Place::new();
    let mut recipe = place.recipe();
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    let text = std::mem::replace(&mut recipe.text, text(20));
    place.interrupt(&recipe, "package", 100).unwrap_err();
    recipe.text = text;
    assert!(whole == files(place.prepare(&recipe, "package").unwrap().package.path()));

    place.interrupt(&recipe, "damaged", 100).unwrap_err();
    let left = place.path("damaged.part/calibration.safetensors");
    let bytes = fs::read(&left).unwrap();
    for length in [0, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        place.interrupt(&recipe, "damaged", 100).unwrap_err();
        fs::write(&left, &bytes[..length]).unwrap();
        assert!(
            whole == files(place.prepare(&recipe, "damaged").unwrap().package.path()),
            "{length}"
        );
        fs::remove_dir_all(place.path("damaged")).unwrap();
    }
}

#[test]
fn a_preparation_that_ends_before_it_saw_anything_leaves_nothing() {
    let place = Place::new();
    let mut recipe = place.recipe();
    place.interrupt(&recipe, "package", 0).unwrap_err();
    recipe.options.tokens = 0;
    let error = place.prepare(&recipe, "package").unwrap_err().to_string();
    assert!(error.contains("calibration tokens is 0"), "{error}");
    assert_eq!(place.names(""), ["model.gguf"]);
}

#[test]
fn a_package_that_is_there_stays_unless_it_is_to_be_replaced() {
    let place = Place::new();
    let package = place.package();
    let before = files(package.path());
    let mut recipe = place.recipe();
    recipe.options = PrepareOptions {
        prune: Prune::Rate(0.0),
        ..recipe.options
    };
    let error = place.prepare(&recipe, "package").unwrap_err().to_string();
    assert!(error.contains("there is a package here already"), "{error}");
    recipe.existing = Existing::Keep;
    assert_eq!(place.prepare(&recipe, "package").unwrap().calibrated.0, 0);
    assert!(files(package.path()) == before);
    recipe.existing = Existing::Replace;
    place.interrupt(&recipe, "package", 100).unwrap_err();
    assert!(
        files(package.path()) == before,
        "until the new one is whole"
    );
    place.prepare(&recipe, "package").unwrap();
    assert_eq!(
        Package::open(package.path())
            .unwrap()
            .manifest()
            .preparation
            .quantization()
            .unwrap()
            .shadows(),
        8
    );
    assert_eq!(place.names(""), ["model.gguf", "package"]);
}

#[test]
fn what_is_no_package_is_never_replaced() {
    let place = Place::new();
    fs::create_dir_all(place.path("photos")).unwrap();
    fs::write(place.path("photos/a.jpg"), "a").unwrap();
    let mut recipe = place.recipe();
    for existing in [Existing::Refuse, Existing::Keep, Existing::Replace] {
        recipe.existing = existing;
        for name in ["photos", "model.gguf"] {
            let error = place.prepare(&recipe, name).unwrap_err().to_string();
            assert!(
                error.contains("is no package: it is not replaced"),
                "{error}"
            );
        }
    }
    assert_eq!(place.names(""), ["model.gguf", "photos"]);
    fs::create_dir_all(place.path("empty")).unwrap();
    place.prepare(&recipe, "empty").unwrap();
}

#[test]
fn a_folder_with_a_package_json_of_another_kind_or_with_other_files_is_never_replaced() {
    let place = Place::new();
    let mut recipe = place.recipe();
    place.prepare(&recipe, "package").unwrap();
    recipe.existing = Existing::Replace;
    fs::write(place.path("package/notes.txt"), "notes").unwrap();
    fs::create_dir_all(place.path("app")).unwrap();
    fs::write(place.path("app/package.json"), "{}").unwrap();
    for (folder, foreign) in [("package", "notes.txt"), ("app", "package.json")] {
        let error = place.prepare(&recipe, folder).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{foreign}` in it is no part of a package")),
            "{error}"
        );
        assert!(place.path(folder).join(foreign).exists());
    }
}

#[test]
fn two_preparations_of_one_package_wait_for_each_other() {
    let place = Place::new();
    let mut recipe = place.recipe();
    recipe.existing = Existing::Keep;
    std::thread::scope(|scope| {
        let runs = [(); 3]
            .map(|()| scope.spawn(|| place.prepare(&recipe, "package").unwrap().calibrated.0));
        let calibrated = runs.map(|run| run.join().unwrap());
        assert_eq!(
            calibrated.iter().filter(|tokens| **tokens > 0).count(),
            1,
            "{calibrated:?}"
        );
    });
    assert_eq!(place.names(""), ["model.gguf", "package"]);
    Package::open(&place.path("package"))
        .unwrap()
        .verify()
        .unwrap();
}

#[test]
fn where_no_text_is_held_out_every_shadow_is_kept() {
    let place = Place::new();
    let mut recipe = place.recipe();
    recipe.options.prune = Prune::AUTO;
    let pruned = |recipe: &Recipe, name| {
        place
            .prepare(recipe, name)
            .unwrap()
            .package
            .manifest()
            .preparation
            .pruned
    };
    assert!(
        pruned(&recipe, "held out") > 0.0,
        "random weights have outliers of no importance"
    );
    recipe.text = text(3);
    assert_eq!(pruned(&recipe, "nothing held out"), 0.0);
}
