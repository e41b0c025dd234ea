//! Rounding to INT4 with second moments: what it gains, and what must not affect it.

use std::sync::Arc;

use triad_engine::quantization::{OutputWeights, WeightBits};
use triad_engine::weights::{Linear, Weight, linear_to_bits};
use triad_engine::{Cancel, Error, LoadOptions, Model, Session, SessionOptions, Threads};
use triad_prepare::int4;
use triad_prepare::int4::moments::{MEMORY, Moments, SecondMoments};

fn model(family: &str, threads: usize) -> Arc<Model> {
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/families/");
    let options = LoadOptions {
        threads: Threads::Count(threads),
        ..Default::default()
    };
    Arc::new(Model::load(format!("{families}{family}").as_ref(), &options).unwrap())
}

fn text(model: &Model, pieces: [usize; 2]) -> [Vec<Vec<u32>>; 2] {
    let vocab = model.description().vocab as u32;
    let token = |piece: u32, index: u32| (index * index * 7 + index * 13 + piece * 31) % vocab;
    let piece = |piece| (0..40).map(|index| token(piece, index)).collect();
    [0..pieces[0], pieces[0]..pieces[0] + pieces[1]]
        .map(|pieces| pieces.map(|number| piece(number as u32)).collect())
}

/// Returns the bytes of all linear layers.
fn bytes(model: &Model) -> Vec<u8> {
    let linears = model
        .weights()
        .blocks
        .iter()
        .flat_map(|it| it.linears.values());
    let rows = linears.flat_map(|linear| match &linear.weight {
        Weight::Float(matrix) => matrix.to_f32(),
        Weight::Int8(_) => panic!("INT8"),
    });
    rows.flat_map(f32::to_le_bytes).collect()
}

#[test]
fn second_moments_are_the_sums_of_products() {
    for (channels, rows) in [(1, 1), (7, 3), (130, 5), (300, 40)] {
        let x: Vec<f32> = (0..rows * channels)
            .map(|it| ((it * 37 % 101) as f32 - 50.0) * 0.1)
            .collect();
        let mut moments = SecondMoments::new(channels);
        let half = rows / 2 * channels;
        moments.add(&x[..half]);
        moments.add(&x[half..]);
        assert_eq!(moments.rows(), rows as u64);
        for i in 0..channels {
            for j in 0..channels {
                let products = x
                    .chunks_exact(channels)
                    .map(|row| f64::from(row[i] * row[j]));
                let (sum, expected) = (f64::from(moments.sum(i, j)), products.sum::<f64>());
                assert!(
                    (sum - expected).abs() < 1e-3,
                    "{sum} for {expected} at {i}, {j}"
                );
            }
        }
    }
}

#[test]
fn moments_of_an_interrupted_run_are_those_of_one_that_was_not() {
    let model = model("llama", 2);
    let text = text(&model, [3, 2]);
    let mut whole = Moments::new(model.description(), 0, MEMORY);
    whole
        .run(&model, &text, &Cancel::new(), |_| Ok(()))
        .unwrap();
    assert_eq!((whole.pieces, whole.tokens), (5, 200));
    for checks in 0..40 {
        let mut resumed = Moments::new(model.description(), 0, MEMORY);
        let mut run = 0;
        // Each run is cancelled later than the one before it.
        while let Err(error) = {
            let cancel = Cancel::after(checks + 3 * run);
            resumed.run(&model, &text, &cancel, |_| Ok(()))
        } {
            assert!(matches!(error.engine(), Some(Error::Cancelled)), "{error}");
            run += 1;
        }
        assert!(resumed == whole, "cancelled after {checks} checks");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_rounded_model() {
    for family in ["llama", "lfm2", "granitemoe"] {
        let run = |threads| {
            let model = model(family, threads);
            let text = text(&model, [4, 2]);
            bytes(&int4::quantize(&model, &text, OutputWeights::Int8, &Cancel::new()).unwrap())
        };
        assert!(run(1) == run(3), "{family}");
    }
}

/// Returns the squared error of the logits of a text that nothing was rounded for, with this output matrix.
fn logit_error(model: &Arc<Model>, output: &Linear) -> f64 {
    let weights = model
        .weights()
        .with_layers(None, |_, _| Some(output.clone()));
    let rounded = Arc::new(model.with_weights(weights));
    let logits = |model: &Arc<Model>| {
        let text: Vec<u32> = (0..60).map(|it| (it * it * 11 + it * 5 + 3) % 60).collect();
        let options = SessionOptions {
            context: text.len(),
            ..SessionOptions::default()
        };
        let mut session = Session::new(model, &options).unwrap();
        session.prefill_all_logits(&text, &Cancel::new()).unwrap()
    };
    let (found, expected) = (logits(&rounded), logits(model));
    let errors = found.iter().zip(&expected);
    errors
        .map(|(one, other)| f64::from(one - other).powi(2))
        .sum()
}

#[test]
fn the_output_matrix_compensates_for_errors_as_other_layers_do() {
    let model = model("llama", 2);
    // A few channels of hidden states are much larger than the others, as in language models.
    let mut weights = model.weights().with_layers(None, |_, _| None);
    for channel in [5, 20] {
        weights.output_norm.weight[channel] *= 20.0;
    }
    let model = Arc::new(model.with_weights(weights));
    let text = text(&model, [12, 4]);
    for bits in [WeightBits::Four, WeightBits::Five] {
        let cancel = Cancel::new();
        let output = int4::round_output(&model, &text, bits, &cancel, &mut |_| ()).unwrap();
        let found = logit_error(&model, &output);
        let nearest = logit_error(&model, &linear_to_bits(&model.weights().output, bits));
        assert!(found < 0.5 * nearest, "{bits:?}: {found} of {nearest}");
    }
}
