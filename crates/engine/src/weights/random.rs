//! Random weights, for benchmarks.

use triad_model::description::ModelDescription;

use super::{
    Block, Branch, Embedding, Linear, Norm, Router, Weight, WeightMatrix, Weights, encoder, mixer,
    streams, token_inputs,
};

impl Weights {
    /// Creates random bf16 weights in the shapes of `description`. The speed of a model does not depend on its values.
    pub(crate) fn random(description: &ModelDescription, seed: u64) -> Self {
        let (first, mut seed) = (seed, seed);
        let mut next_seed = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            seed
        };
        let mut linear = |out_features, in_features, bias: bool| Linear {
            weight: Weight::Float(WeightMatrix::random(out_features, in_features, next_seed())),
            decode_weight: None,
            bias: bias.then(|| vec![0.0; out_features]),
        };
        let norm = Norm::of_ones;
        let hidden = description.hidden;
        let blocks = description.blocks.iter().enumerate().map(|(index, block)| {
            let residual = block.residual;
            let wide = |exists: bool| exists.then(|| norm(&block.norm, hidden));
            let [query_norm, key_norm] = block.qk_norms().map(|of| {
                let (of, width) = of?;
                Some(norm(&of, width))
            });
            let mixer = mixer::random(&block.mixer, &mut |rows, columns| {
                linear(rows, columns, false).weight
            });
            let mut numbers = first ^ index as u64;
            let mut float = |rows, columns| {
                numbers = numbers.wrapping_add(0xd134_2543_de82_ef95);
                WeightMatrix::random(rows, columns, numbers)
            };
            let token_input = token_inputs::random_of_block(description, &mut float, norm);
            let streams = streams::random_of_block(description, block, &mut float, norm);
            Block {
                token_input,
                streams,
                // Other than 1, so that it matters.
                scale: block.scaled.then_some(0.75),
                attention_norm: wide(residual.has_attention_norm()),
                attention_post_norm: wide(residual.has_post_norms()),
                feed_forward_norm: wide(residual.has_feed_forward_norm()),
                feed_forward_post_norm: wide(residual.has_post_norms()),
                query_norm,
                key_norm,
                value_norm: Norm::of_values(block),
                inputs: None,
                router: block.feed_forward.experts.map(|experts| Router {
                    experts,
                    weight: WeightMatrix::random(experts.count, hidden, 2),
                    bias: experts.bias.then(|| vec![0.0; experts.count]),
                    correction: experts.correction.then(|| vec![0.0; experts.count]),
                    shared_gate: experts.shared_gate.then(|| vec![0.0; hidden]),
                    branch: experts.branch.then(|| Branch {
                        router_norm: norm(&block.norm, hidden),
                        factors: vec![1.25; experts.count],
                        dense_norm: norm(&block.norm, hidden),
                        norm: norm(&block.norm, hidden),
                        post_norm: norm(&block.norm, hidden),
                    }),
                }),
                linears: block
                    .linears(hidden)
                    .iter()
                    .map(|shape| {
                        (
                            shape.linear,
                            linear(shape.out_features, shape.in_features, shape.bias),
                        )
                    })
                    .collect(),
                mixer,
            }
        });
        let blocks = blocks.collect();
        let mut float = |rows, columns| WeightMatrix::random(rows, columns, 3 + rows as u64);
        let token_inputs = token_inputs::random(description, &mut float, norm);
        let streams = streams::random(description, &mut float);
        let encoder = encoder::random(description, &mut float, &mut linear);
        let output = linear(description.vocab, hidden, description.output_bias);
        let embedding = if description.tied_output {
            Embedding::Output
        } else {
            Embedding::Matrix(WeightMatrix::random(description.vocab, hidden, 1))
        };
        Self {
            embedding,
            blocks,
            output_norm: norm(&description.output_norm, hidden),
            token_inputs,
            streams,
            encoder,
            output,
            joined_input: None,
            expert_memory: None,
        }
    }
}
