//! W4A16 with a budget of bits per weight.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::package::Package;
use triad_engine::package::layers::{bits_per_weight, groups, layer_of};
use triad_engine::quantization::{LinearFormat, WeightBits};
use triad_engine::weights::{Linear, Weight, WeightMatrix};
use triad_engine::{Cancel, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_kernels::BlockFormat;
use triad_prepare::calibration;
use triad_prepare::int4::moments::{MEMORY, Moments};
use triad_prepare::int4::{Rounding, round_output};
use triad_prepare::package::{Existing, Progress, Recipe, prepare};

use crate::damaged::chain;
use crate::tiny::{Place, files, gguf_of_blocks, gguf_of_experts};

/// Returns a recipe of W4A16 with a budget of bits per weight.
fn recipe(place: &Place, bits: f64) -> Recipe {
    let mut recipe = place.recipe();
    (recipe.options.plan.linears, recipe.options.plan.bits) = (LinearFormat::W4a16, Some(bits));
    recipe
}

fn load(package: &Package) -> Model {
    let options = LoadOptions {
        threads: Threads::Count(2),
        ..LoadOptions::default()
    };
    Model::load(package.path(), &options).unwrap()
}

fn matrix(linear: &Linear) -> &WeightMatrix {
    match &linear.weight {
        Weight::Float(matrix) => matrix,
        Weight::Int8(_) => panic!("INT8 activations"),
    }
}

fn bits(package: &Package) -> Vec<WeightBits> {
    let layers = &package.manifest().preparation.layers;
    layers.iter().map(|layer| layer.bits).collect()
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let options = SessionOptions {
        context: 40,
        chunk: 5,
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options).unwrap();
    session
        .prefill_all_logits(&[7, 3, 11, 30, 9, 4, 5, 8], &Cancel::new())
        .unwrap()
}

#[test]
fn a_package_has_the_bits_of_its_budget_and_the_weights_that_were_rounded_in_memory() {
    for gguf in [crate::tiny::gguf(96), gguf_of_experts()] {
        let place = Place::with_model(&gguf);
        for budget in [4.5, 5.2, 6.5, 9.0] {
            let recipe = recipe(&place, budget);
            let name = budget.to_string();
            let package = place.prepare(&recipe, &name).unwrap().package;
            package.verify().unwrap();
            let (model, bits) = (package.description(), bits(&package));
            let found = bits_per_weight(&groups(model), &bits).unwrap();
            assert!(
                found <= budget && found > budget.min(8.5) - 0.5,
                "{found} of {budget}"
            );

            let options = LoadOptions {
                block_arithmetic: triad_kernels::BlockArithmetic::Exact,
                ..LoadOptions::default()
            };
            let float = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &options).unwrap());
            let text = calibration::split(&float, &recipe.text, recipe.options.tokens).unwrap();
            let mut moments = Moments::new(model, 0, MEMORY);
            moments
                .run(&float, &text, &Cancel::new(), |_| Ok(()))
                .unwrap();
            let mut rounding = Rounding::new(&float, moments);
            let opened = load(&package);
            let mut counted = 0;
            for (index, block) in float.weights().blocks.iter().enumerate() {
                for (name, linear) in &block.linears {
                    let layers = package.manifest().preparation.layers.iter();
                    let of_layer = |it: &&triad_engine::package::preparation::LayerBits| {
                        (it.block, it.layer.as_str()) == (Some(index), layer_of(*name))
                    };
                    let bits = layers.into_iter().find(of_layer).unwrap().bits;
                    let rounded = float.install(|| {
                        rounding
                            .round((index, *name), linear, bits, &Cancel::new())
                            .unwrap()
                    });
                    let found = matrix(&opened.weights().blocks[index].linears[name]);
                    assert!(
                        found.to_f32() == matrix(&rounded).to_f32(),
                        "{index} {name:?}"
                    );
                    assert_eq!(found.bytes(), matrix(&rounded).bytes());
                    counted += 1;
                }
            }
            assert!(counted >= 14);
            let of_output = *bits.last().unwrap();
            let cancel = Cancel::new();
            let output = round_output(&float, &text, of_output, &cancel, &mut |_| ()).unwrap();
            assert!(matrix(&opened.weights().output).to_f32() == matrix(&output).to_f32());
        }
    }
}

#[test]
fn mixed_bits_compute_the_logits_of_the_same_weights_in_f32() {
    // Its down has rows of 80, which have eight bits.
    let place = Place::with_width(80);
    let prepared = place.prepare(&recipe(&place, 6.0), "package");
    let package = prepared.unwrap().package;
    for each in WeightBits::ROUNDED {
        assert!(
            bits(&package).contains(&each),
            "{each:?} of {:?}",
            bits(&package)
        );
    }
    let mixed = Arc::new(load(&package));
    let mut plain = load(&package);
    let weights = plain.weights_mut();
    let linears = weights
        .blocks
        .iter_mut()
        .flat_map(|it| it.linears.values_mut());
    for linear in linears.chain([&mut weights.output]) {
        linear.weight = Weight::Float(matrix(linear).widened());
    }
    let (found, expected) = (logits(&mixed), logits(&Arc::new(plain)));
    let square = |values: &[f32]| values.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>();
    let errors: Vec<f32> = found
        .iter()
        .zip(&expected)
        .map(|(one, other)| one - other)
        .collect();
    // Activations are rounded to bf16 or INT16.
    assert!(
        square(&errors) < 1e-3 * square(&expected),
        "{}",
        square(&errors) / square(&expected)
    );
}

#[test]
fn layers_that_the_file_has_in_blocks_stay_as_they_are_where_the_budget_allows() {
    let place = Place::with_model(&gguf_of_blocks());
    let recipe = recipe(&place, 9.0);
    let package = place.prepare(&recipe, "package").unwrap().package;
    package.verify().unwrap();
    let stored = WeightBits::Stored(BlockFormat::Q8_0);
    assert!(bits(&package).iter().all(|it| *it == stored));
    let (model, options) = (load(&package), LoadOptions::default());
    let float = Model::from_checkpoint(&recipe.checkpoint, &options).unwrap();
    for (found, expected) in model.weights().blocks.iter().zip(&float.weights().blocks) {
        for (name, linear) in &found.linears {
            let (found, expected) = (matrix(linear), matrix(&expected.linears[name]));
            assert_eq!(found.blocks(), Some(BlockFormat::Q8_0));
            assert!(found.to_f32() == expected.to_f32(), "{name:?}");
        }
    }
    assert!(logits(&Arc::new(model)) == logits(&Arc::new(float)));
}

#[test]
fn layers_whose_rows_are_not_whole_groups_have_eight_bits() {
    let place = Place::with_width(80);
    let package = place
        .prepare(&recipe(&place, 6.0), "package")
        .unwrap()
        .package;
    let layers = &package.manifest().preparation.layers;
    for layer in layers.iter().filter(|layer| layer.layer == "down") {
        assert_eq!((layer.bits, layer.divergence), (WeightBits::Eight, 0.0));
    }
    assert!(
        layers
            .iter()
            .any(|layer| layer.bits == WeightBits::Four && layer.divergence > 0.0)
    );
    logits(&Arc::new(load(&package)));
}

#[test]
fn a_budget_that_the_model_cannot_keep_is_refused_with_the_least_one() {
    let place = Place::new();
    let error = chain(&place.prepare(&recipe(&place, 4.4), "package").unwrap_err());
    assert!(
        error.contains("4.4 bits per weight are too few") && error.contains("4.50"),
        "{error}"
    );
}

#[test]
fn an_interrupted_measurement_goes_on_and_ends_with_the_same_bytes() {
    let place = Place::new();
    let mut recipe = recipe(&place, 5.6);
    // The moments of one block at a time.
    (recipe.existing, recipe.moment_memory) = (Existing::Keep, 0);
    let whole = files(place.prepare(&recipe, "whole").unwrap().package.path());
    let measured = |name: &str, until: usize| {
        let (cancel, mut first) = (Cancel::new(), None);
        let result = prepare(&recipe, &place.path(name), &cancel, &mut |progress| {
            if let Progress::Measuring { done, .. } = progress {
                first.get_or_insert(done);
                if done >= until {
                    cancel.cancel();
                }
            }
        });
        (result, first.unwrap())
    };
    assert!(measured("package", 3).0.is_err());
    let (result, first) = measured("package", 9);
    assert!(result.is_err() && first == 3, "{first} layers were kept");
    let mut checks = 0;
    while place.stop(&recipe, "package", checks).is_err() {
        checks += 13;
    }
    assert!(whole == files(&place.path("package")));
    assert_eq!(place.names(""), ["model.gguf", "package", "whole"]);
}

#[test]
fn a_preparation_that_is_interrupted_in_a_later_round_does_not_begin_again() {
    let place = Place::new();
    let mut recipe = place.recipe();
    recipe.options.plan.linears = LinearFormat::W4a16;
    let one = place.prepare(&recipe, "one").unwrap();
    recipe.moment_memory = 0;
    let whole = place.prepare(&recipe, "whole").unwrap();
    assert_eq!(
        whole.calibrated.0,
        2 * one.calibrated.0,
        "the text is read for each block"
    );
    let interrupt = || {
        let (cancel, mut rounds) = (Cancel::new(), 0);
        let result = prepare(&recipe, &place.path("package"), &cancel, &mut |progress| {
            if let Progress::Calibrating { done, .. } = progress {
                rounds += usize::from(done == 0);
                if rounds == 2 && done > 0 {
                    cancel.cancel();
                }
            }
        });
        result.unwrap_err();
    };
    interrupt();
    let names = [
        "calibration.safetensors",
        "lock",
        "weights.safetensors",
        "written.json",
    ];
    assert_eq!(place.names("package.part"), names);
    let resumed = place.prepare(&recipe, "package").unwrap();
    assert!(
        resumed.calibrated.0 < one.calibrated.0,
        "{} tokens",
        resumed.calibrated.0
    );
    assert!(files(resumed.package.path()) == files(whole.package.path()));
    fs::remove_dir_all(resumed.package.path()).unwrap();

    // Weights that another program changed are written again, and so is all without its record.
    for name in ["weights.safetensors", "written.json"] {
        interrupt();
        let path = place.path("package.part").join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = match name {
            // The first weight after the header.
            "weights.safetensors" => {
                8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
            }
            _ => bytes.len() / 2,
        };
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let resumed = place.prepare(&recipe, "package").unwrap();
        assert!(
            files(resumed.package.path()) == files(whole.package.path()),
            "{name}"
        );
        fs::remove_dir_all(resumed.package.path()).unwrap();
    }

    // Other options make another package.
    interrupt();
    recipe.options.plan.linears = LinearFormat::W8a8;
    place
        .prepare(&recipe, "package")
        .unwrap()
        .package
        .verify()
        .unwrap();
}

#[test]
fn a_description_with_other_layers_than_those_of_the_model_is_refused() {
    let place = Place::new();
    let package = place
        .prepare(&recipe(&place, 5.6), "package")
        .unwrap()
        .package;
    let path = package.path().join("package.json");
    let original: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value), words: &str| {
        let mut changed = original.clone();
        change(&mut changed);
        fs::write(&path, changed.to_string()).unwrap();
        let error = chain(&Package::open(package.path()).unwrap_err());
        assert!(error.contains(words), "{error} for {words}");
    };
    let layers = |it: &mut Value, change: &dyn Fn(&mut Vec<Value>)| {
        change(it["preparation"]["layers"].as_array_mut().unwrap());
    };
    let without = |it: &mut Value| layers(it, &|layers| drop(layers.pop()));
    refused(&without, "`preparation.layers` has 14 layers, expected 15");
    let exchanged = |it: &mut Value| layers(it, &|layers| layers.swap(0, 1));
    refused(
        &exchanged,
        "`preparation.layers[0]` is \"key\" of block 0, expected \"query\"",
    );
    let six = |it: &mut Value| layers(it, &|layers| layers[0]["bits"] = json!(6));
    refused(&six, "6 bits, expected 4, 5 or 8");
    let unknown = |it: &mut Value| layers(it, &|layers| layers[0]["bits"] = json!("Q9_0"));
    refused(&unknown, "weights in \"Q9_0\", expected a format of blocks");
    let wide = |it: &mut Value| layers(it, &|layers| layers[0]["bits"] = json!("Q4_K"));
    refused(
        &wide,
        "`preparation.layers[0]` has blocks of Q4_K, expected 8: rows of 32 weights are not whole",
    );
    let no_bits = |it: &mut Value| layers(it, &|layers| layers[0]["bits"] = json!([4]));
    refused(&no_bits, "expected 4, 5, 8 or the name of a format");
    let negative = |it: &mut Value| layers(it, &|layers| layers[0]["divergence"] = json!(-1.0));
    refused(&negative, "`preparation.layers[0]` has the divergence -1");
    let other = |it: &mut Value| {
        layers(it, &|layers| {
            let bits = if layers[0]["bits"] == 4 { 5 } else { 4 };
            layers[0]["bits"] = json!(bits);
        });
    };
    refused(&other, "weights.safetensors");
    let no_budget = |it: &mut Value| {
        it["preparation"]["options"]["plan"]
            .as_object_mut()
            .unwrap()
            .remove("bits");
    };
    refused(&no_budget, "expected none without the option `bits`");
    let int8 = |it: &mut Value| it["preparation"]["options"]["plan"]["linears"] = json!("w8a8");
    refused(&int8, "expected only with W4A16");
    let output = |it: &mut Value| it["output"] = json!("F32");
    refused(&output, "field `output` is \"F32\", expected");
}
