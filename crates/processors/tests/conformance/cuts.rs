//! Parts of a subgraph: some rows, some columns of its layers, and outputs with gaps between rows. All must have the
//! same bits as the whole.

use std::ops::Range;
use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::QuantizedRows;
use triad_processors::{Device, DeviceSubgraph, Error, FeedForward, Layer, LayerColumns, Linear};

use crate::plain::{Plain, Random, quantized};
use crate::processors::{each, run};

const SCALE: f32 = 0.013;
/// Initial contents of outputs.
const BEFORE: f32 = 0.5;

/// Margins of a view in a buffer that has more columns on both sides.
const MARGINS: [usize; 2] = [3, 2];

/// Runs `subgraph` on `rows` of `input`, into outputs with gaps between rows. Returns the outputs, `[rows, features]`.
fn run_apart(
    processor: &dyn Device,
    subgraph: &DeviceSubgraph,
    prepared: usize,
    input: &QuantizedRows,
    rows: Range<usize>,
) -> Vec<Vec<f32>> {
    let mut program = processor.prepare(subgraph, prepared).unwrap();
    let features = subgraph.outputs();
    let width = |features: usize| MARGINS[0] + features + MARGINS[1];
    let mut outputs: Vec<_> = features
        .iter()
        .map(|features| vec![BEFORE; rows.len() * width(*features)])
        .collect();
    let views = outputs.iter_mut().zip(&features).map(|(out, features)| {
        let (_, rest) = OutputMut::new(out, width(*features)).split_at_column(MARGINS[0]);
        rest.split_at_column(*features).0
    });
    program
        .run(input.rows_view(rows), &mut views.collect::<Vec<_>>())
        .unwrap();
    let columns = |out: &[f32], columns: Range<usize>, features: usize| -> Vec<f32> {
        out.chunks_exact(width(features))
            .flat_map(|row| row[columns.clone()].to_vec())
            .collect()
    };
    for (out, features) in outputs.iter().zip(&features) {
        let margins = [
            columns(out, 0..MARGINS[0], *features),
            columns(out, MARGINS[0] + features..width(*features), *features),
        ];
        assert!(
            margins.concat().iter().all(|x| *x == BEFORE),
            "{}: wrote outside its output",
            processor.name()
        );
    }
    let inner = outputs.iter().zip(&features);
    inner
        .map(|(out, features)| columns(out, MARGINS[0]..MARGINS[0] + features, *features))
        .collect()
}

/// Returns some columns of some rows of `[.., features]`.
fn part(whole: &[f32], features: usize, rows: Range<usize>, columns: Range<usize>) -> Vec<f32> {
    whole
        .chunks_exact(features)
        .skip(rows.start)
        .take(rows.len())
        .flat_map(|row| row[columns.clone()].to_vec())
        .collect()
}

fn layer(layer: &Arc<Plain>) -> Arc<dyn Layer> {
    Arc::clone(layer) as Arc<dyn Layer>
}

fn columns_of(whole: &Arc<Plain>, columns: Range<usize>) -> Arc<dyn Layer> {
    Arc::new(LayerColumns::new(layer(whole), columns).unwrap())
}

fn linear(layers: Vec<Arc<dyn Layer>>) -> DeviceSubgraph {
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers,
    })
}

fn feed_forward(
    [up, gate, down]: &[Arc<Plain>; 3],
    gated: bool,
    return_inner: bool,
) -> FeedForward {
    FeedForward {
        input_scale: SCALE,
        up: layer(up),
        gate: gated.then(|| layer(gate)),
        activation: Activation::Silu,
        inner_scale: 0.006,
        smoothing: None,
        down: layer(down),
        return_inner,
        fixed_point: false,
    }
}

#[test]
fn rows_of_an_input_and_outputs_that_lie_apart_have_the_same_bits() {
    let (rows, hidden) = (37, 30);
    let mut random = Random::new(9);
    let layers = [35, 16].map(|features| Plain::random(&mut random, features, hidden, true));
    let of_block = [(50, hidden), (50, hidden), (33, 50)]
        .map(|(out, of)| Plain::random(&mut random, out, of, true));
    let subgraphs = [
        linear(layers.iter().map(layer).collect()),
        DeviceSubgraph::FeedForward(feed_forward(&of_block, true, true)),
        DeviceSubgraph::FeedForward(feed_forward(&of_block, false, true)),
        DeviceSubgraph::FeedForward(feed_forward(&of_block, true, false)),
    ];
    let input = quantized(&random.floats(rows * hidden, 140.0 * SCALE), hidden, SCALE);
    each(|processor| {
        for subgraph in &subgraphs {
            let whole = run(processor, subgraph, rows, &input);
            for part_rows in [0..rows, 0..1, 36..37, 5..16, 15..33, 16..32] {
                let outputs = run_apart(processor, subgraph, rows, &input, part_rows.clone());
                for ((out, whole), features) in outputs.iter().zip(&whole).zip(subgraph.outputs()) {
                    let expected = part(whole, features, part_rows.clone(), 0..features);
                    assert!(*out == expected, "{}: rows {part_rows:?}", processor.name());
                }
            }
        }
    });
}

#[test]
fn columns_of_layers_have_the_same_bits() {
    let (rows, hidden) = (19, 70);
    let mut random = Random::new(10);
    let whole = [77, 64].map(|features| Plain::random(&mut random, features, hidden, true));
    let of_block = [(50, hidden), (50, hidden), (83, 50)]
        .map(|(out, of)| Plain::random(&mut random, out, of, true));
    let input = quantized(&random.floats(rows * hidden, 140.0 * SCALE), hidden, SCALE);
    each(|processor| {
        let expected = run(
            processor,
            &linear(whole.iter().map(layer).collect()),
            rows,
            &input,
        );
        for [first, second] in [
            [0..16, 16..64],
            [16..77, 0..32],
            [64..77, 48..64],
            [32..48, 0..64],
        ] {
            let subgraph = linear(vec![
                columns_of(&whole[0], first.clone()),
                columns_of(&whole[1], second.clone()),
            ]);
            let outputs = run_apart(processor, &subgraph, rows, &input, 0..rows);
            assert!(
                outputs[0] == part(&expected[0], 77, 0..rows, first.clone()),
                "{}: {first:?}",
                processor.name()
            );
            assert!(
                outputs[1] == part(&expected[1], 64, 0..rows, second.clone()),
                "{}: {second:?}",
                processor.name()
            );
        }
        let expected = run(
            processor,
            &DeviceSubgraph::FeedForward(feed_forward(&of_block, true, false)),
            rows,
            &input,
        );
        for columns in [0..16, 16..80, 80..83] {
            let down = columns_of(&of_block[2], columns.clone());
            let subgraph = DeviceSubgraph::FeedForward(FeedForward {
                down,
                ..feed_forward(&of_block, true, false)
            });
            let outputs = run_apart(processor, &subgraph, rows, &input, 3..rows);
            assert!(
                outputs[0] == part(&expected[0], 83, 3..rows, columns.clone()),
                "{}: {columns:?}",
                processor.name()
            );
        }
    });
}

#[test]
fn a_range_of_channels_within_a_block_is_an_error() {
    let whole = Plain::random(&mut Random::new(11), 40, 8, true);
    for (columns, is_range) in [
        (0..40, true),
        (16..32, true),
        (32..40, true),
        (8..40, false),
        (0..20, false),
    ] {
        assert_eq!(
            LayerColumns::new(layer(&whole), columns.clone()).is_ok(),
            is_range,
            "{columns:?}"
        );
    }
    for columns in [16..16, 32..48, 48..64] {
        let error = LayerColumns::new(layer(&whole), columns)
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, Error::Subgraph { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("expected multiples of 16 or the end, up to 40"),
            "{error}"
        );
    }
}
