//! Inputs that every processor refuses, and the texts of the errors.

use std::sync::Arc;

use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_model::family::shape;
use triad_plan::graph::{Graph, Role};
use triad_processors::{DeviceSubgraph, Error, FeedForward, Layer, Linear};

use crate::plain::{Plain, Random, quantized};
use crate::processors::each;

fn layer(out_features: usize, in_features: usize) -> Arc<dyn Layer> {
    Plain::random(&mut Random::new(3), out_features, in_features, false)
}

fn linear(layers: Vec<Arc<dyn Layer>>) -> DeviceSubgraph {
    DeviceSubgraph::Linear(Linear {
        input_scale: 1.0,
        layers,
    })
}

fn feed_forward() -> FeedForward {
    FeedForward {
        input_scale: 1.0,
        up: layer(9, 5),
        gate: Some(layer(9, 5)),
        activation: Activation::Silu,
        inner_scale: 1.0,
        smoothing: None,
        down: layer(5, 9),
        return_inner: false,
        fixed_point: false,
    }
}

#[test]
fn parts_that_contradict_each_other_are_an_error_that_names_them() {
    let of = |change: &dyn Fn(&mut FeedForward)| {
        let mut feed_forward = feed_forward();
        change(&mut feed_forward);
        DeviceSubgraph::FeedForward(feed_forward)
    };
    let cases = [
        (linear(vec![]), "layers of the subgraph: none"),
        (
            linear(vec![layer(3, 4), layer(3, 5)]),
            "input features of layer 1 of the subgraph: 5, expected 4",
        ),
        (
            of(&|it| it.gate = Some(layer(8, 5))),
            "output features of gate of the subgraph: 8, expected 9",
        ),
        (
            of(&|it| it.gate = Some(layer(9, 4))),
            "input features of gate of the subgraph: 4, expected 5",
        ),
        (
            of(&|it| it.down = layer(5, 8)),
            "input features of down of the subgraph: 8, expected 9",
        ),
        (
            of(&|it| it.smoothing = Some([1.0; 8].into())),
            "factors of smoothing of the subgraph: 8, expected 9",
        ),
        (
            of(&|it| it.inner_scale = 0.0),
            "inner scale of the subgraph: 0,",
        ),
        (
            of(&|it| it.input_scale = f32::NAN),
            "input scale of the subgraph: NaN,",
        ),
    ];
    each(|processor| {
        for (subgraph, expected) in &cases {
            let Err(error) = processor.prepare(subgraph, 4) else {
                panic!("{expected}: prepared")
            };
            assert!(matches!(error, Error::Subgraph { .. }), "{error:?}");
            assert!(
                error.to_string().starts_with(expected),
                "`{error}` does not begin with `{expected}`"
            );
        }
        assert!(matches!(
            processor.prepare(&linear(vec![layer(1, 1)]), 0),
            Err(Error::Rows { .. })
        ));
    });
}

#[test]
fn inputs_and_outputs_of_other_shapes_are_errors() {
    each(|processor| {
        let mut program = processor
            .prepare(&linear(vec![layer(3, 4), layer(2, 4)]), 2)
            .unwrap();
        let mut run = |rows: usize, in_features: usize, scale: f32, outputs: [[usize; 2]; 2]| {
            let mut outputs = outputs.map(|[rows, columns]| (vec![0.0; rows * columns], columns));
            let input = quantized(&vec![1.0; rows * in_features], in_features, scale);
            program.run(
                input.view(),
                &mut outputs
                    .each_mut()
                    .map(|(out, columns)| OutputMut::new(out, *columns)),
            )
        };
        assert!(run(2, 4, 1.0, [[2, 3], [2, 2]]).is_ok());
        assert!(matches!(
            run(3, 4, 1.0, [[3, 3], [3, 2]]),
            Err(Error::Rows {
                rows: 3,
                prepared: 2
            })
        ));
        assert!(matches!(
            run(0, 4, 1.0, [[0, 3], [0, 2]]),
            Err(Error::Rows {
                rows: 0,
                prepared: 2
            })
        ));
        assert!(matches!(
            run(2, 3, 1.0, [[2, 3], [2, 2]]),
            Err(Error::Input { .. })
        ));
        assert!(matches!(
            run(2, 4, 2.0, [[2, 3], [2, 2]]),
            Err(Error::Input { .. })
        ));
        assert!(matches!(
            run(2, 4, 1.0, [[2, 3], [2, 3]]),
            Err(Error::Outputs { .. })
        ));
        assert!(matches!(
            run(2, 4, 1.0, [[3, 2], [2, 2]]),
            Err(Error::Outputs { .. })
        ));
        assert!(
            run(1, 4, 1.0, [[1, 3], [1, 2]]).is_ok(),
            "a refused run leaves the program as it was"
        );
        let mut out = [0.0; 6];
        let one = program.run(
            quantized(&[1.0; 8], 4, 1.0).view(),
            &mut [OutputMut::new(&mut out, 3)],
        );
        assert!(matches!(one, Err(Error::Outputs { .. })));
    });
}

#[test]
fn subgraphs_take_the_bytes_that_the_plan_counts() {
    let description = shape("smollm2-135m").unwrap();
    let graph = Graph::new(&description, 64, 64);
    let attention = description.blocks[0].attention().unwrap();
    let [query, key] =
        [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_dim);
    let (hidden, width) = (description.hidden, description.blocks[0].feed_forward.width);
    let subgraph = |role: Role| match role {
        Role::QueryKeyValue => linear(vec![
            layer(query, hidden),
            layer(key, hidden),
            layer(key, hidden),
        ]),
        Role::AttentionOutput => linear(vec![layer(hidden, query)]),
        _ => DeviceSubgraph::FeedForward(FeedForward {
            up: layer(width, hidden),
            gate: Some(layer(width, hidden)),
            down: layer(hidden, width),
            ..feed_forward()
        }),
    };
    for role in [
        Role::QueryKeyValue,
        Role::AttentionOutput,
        Role::FeedForward,
    ] {
        let planned = graph
            .subgraphs()
            .iter()
            .find(|subgraph| subgraph.role == role)
            .unwrap();
        for rows in [1, 64, 256] {
            assert_eq!(
                subgraph(role).bytes(rows),
                planned.graph_bytes(rows),
                "{role:?}, {rows} rows"
            );
        }
    }
}
