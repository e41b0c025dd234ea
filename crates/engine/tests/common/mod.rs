//! Small random models of every kind that a description can express.

use proptest::prelude::*;
use triad_engine::{LoadOptions, Model, Threads};
use triad_model::description::{
    Activation, Attention, BlockDescription, DeltaNet, ExpertGroups, Experts, FeedForward,
    GateNorm, GroupScore, HeadSharing, KeyValues, Latent, Mamba2, Mixer, ModelDescription, Norm,
    NormKind, QkNorm, Residual, Rope, RopePairing, RopeScaling, Routing, Streams, Temperature,
    TokenInputs,
};

pub const VOCAB: usize = 97;
pub const CONTEXT: usize = 80;

prop_compose! {
    fn experts()(
        count in 1usize..6, share in 1usize..4, width in 1usize..20, sigmoid: bool, normalized: bool, correction: bool,
        shared_gate: bool, bias: bool, clamp in prop::option::of(0.5f32..8.0), branch in prop::bool::weighted(0.3),
        groups in prop::option::of((1usize..4, 1usize..4)), best_two: bool,
    ) -> Experts {
        // As many experts in each group as there would be without groups.
        let groups = groups.map(|(groups, used)| ExpertGroups {
            count: groups,
            used: used.min(groups),
            score: if best_two && count > 1 { GroupScore::BestTwo } else { GroupScore::Best },
        });
        Experts {
            count: count * groups.map_or(1, |it| it.count),
            groups,
            used: share.min(count),
            width,
            routing: if sigmoid { Routing::Sigmoid } else { Routing::Softmax },
            normalized,
            sum_offset: 1e-6,
            sum_floor: 0.0,
            scale: 1.5,
            correction,
            bias,
            clamp,
            shared_gate: shared_gate && !branch,
            branch,
        }
    }
}

prop_compose! {
    fn delta_nets()(
        key_heads in 1usize..4, share in 1usize..4, key_dim in 1usize..20, value_dim in 1usize..20, taps in 2usize..6,
        by_remainder: bool,
    ) -> DeltaNet {
        DeltaNet {
            key_heads,
            value_heads: key_heads * share,
            key_dim,
            value_dim,
            taps,
            sharing: if by_remainder { HeadSharing::Remainder } else { HeadSharing::Adjacent },
            epsilon: 1e-5,
        }
    }
}

prop_compose! {
    fn mambas()(
        groups in 1usize..4, share in 1usize..4, head_dim in 1usize..20, state in 1usize..40, taps in 2usize..6,
        conv_bias: bool, bias: bool, factors: bool,
        norm in prop::sample::select(vec![GateNorm::AfterGate, GateNorm::BeforeGate, GateNorm::Never]),
    ) -> Mamba2 {
        let factors = factors.then_some([0.5, 1.5, 0.7, 1.2, 0.9]);
        Mamba2 { heads: groups * share, head_dim, groups, state, taps, conv_bias, bias, norm, factors, epsilon: 1e-5 }
    }
}

prop_compose! {
    fn latents()(
        query in prop::option::of(1usize..20), width in 1usize..20, key_dim in 1usize..20, value_dim in 1usize..20,
    ) -> Latent {
        Latent { query, width, key_dim, value_dim }
    }
}

/// Returns attention with latent vectors in place of keys and values of its own.
fn with_latent(attention: Attention, latent: Latent, norm: Norm) -> Attention {
    Attention {
        kv_heads: 1,
        head_dim: attention.rope.dims + latent.width,
        output_gate: false,
        value_norm: None,
        qk_norm: Some(QkNorm {
            norm,
            spans_heads: false,
            after_rope: false,
        }),
        key_values: KeyValues::Latent(latent),
        ..attention
    }
}

fn states() -> impl Strategy<Value = Mixer> {
    prop_oneof![
        delta_nets().prop_map(Mixer::DeltaNet),
        mambas().prop_map(Mixer::Mamba2)
    ]
}

prop_compose! {
    fn blocks()(
        kv_heads in 1usize..3, group in 1usize..3, pairs in 1usize..5, unrotated in 0usize..3,
        window in prop::option::of(1usize..30), soft_cap in prop::option::of(2f32..20.0), qkv_bias: bool,
        qk_norm in 0usize..4, halves: bool, layer_norm: bool, residual in 0usize..6, has_rope in prop::bool::weighted(0.8),
        temperature in prop::option::of(0.1f32..1.0), experts in prop::option::of(experts()), has_shared: bool, has_sinks: bool, gated: bool, width in 1usize..40,
        activation in 0usize..4, scaling in 0usize..4, one_layer: bool, value_norm: bool, still in 0usize..3, scaled: bool,
        output_gate: bool, state in prop::option::weighted(0.4, states()), cutoff in prop::option::of(-1f32..2.0), latent in prop::option::weighted(0.3, latents()), falcon: bool,
    ) -> BlockDescription {
        let rms = Norm { kind: NormKind::Rms, epsilon: 1e-5, weight_offset: 0.0 };
        // A second mixer has to follow one that is alone.
        let residual = [
            Residual::Serial,
            Residual::SerialPostNorm,
            Residual::Parallel,
            Residual::PostNorm,
            Residual::MixerAlone,
            Residual::SecondMixer,
        ][residual];
        let (experts, width) = match residual {
            Residual::MixerAlone => (None, 0),
            _ => (experts, width),
        };
        let layer_norm = layer_norm && !residual.has_post_norms();
        let pairs = if has_rope { pairs } else { 0 };
        let unrotated = if has_rope { unrotated } else { unrotated + 2 };
        let attention = Attention {
            bidirectional: false,
            heads: kv_heads * group,
            kv_heads,
            head_dim: 2 * pairs + unrotated,
            scale: 0.4,
            qkv_bias,
            output_bias: qkv_bias,
            output_gate,
            qk_norm: (qk_norm > 0).then_some(QkNorm {
                norm: rms,
                spans_heads: qk_norm == 2,
                after_rope: qk_norm == 3,
            }),
            temperature: temperature.map(|scale| Temperature { scale, context: 7 }),
            window,
            soft_cap,
            sinks: has_sinks,
            key_values: if one_layer { KeyValues::OneLayer } else { KeyValues::Own },
            value_norm: value_norm.then_some(1e-5),
            rope: Rope {
                dims: 2 * pairs,
                still: still.min(pairs),
                base: 10_000.0,
                pairing: if halves { RopePairing::Halves } else { RopePairing::Adjacent },
                scaling: match scaling {
                    0 => RopeScaling::None,
                    1 => RopeScaling::Linear { factor: 4.0 },
                    2 => RopeScaling::Factors { factors: vec![2.0; pairs] },
                    _ => RopeScaling::LongRope {
                        short: vec![1.5; pairs],
                        long: vec![3.0; pairs],
                        original_context: 60,
                        attention_factor: 1.1,
                    },
                },
            },
        };
        let attention = match latent {
            Some(latent) => with_latent(attention, latent, rms),
            None => attention,
        };
        BlockDescription {
            mixer: state.unwrap_or(Mixer::Attention(attention)),
            feed_forward: FeedForward {
                width: if experts.is_some() && !has_shared { 0 } else { width },
                experts: experts.map(|experts| Experts {
                    shared_gate: experts.shared_gate && has_shared,
                    branch: experts.branch && has_shared && !layer_norm,
                    ..experts
                }),
                gated: gated || experts.is_some_and(|it| it.clamp.is_some() || it.branch),
                cutoff: cutoff.filter(|_| gated && experts.is_none()),
                activation: [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::ReluSquared][activation],
                gate_scale: if falcon { 0.8 } else { 1.0 },
                bias: qkv_bias && experts.is_none(),
            },
            norm: Norm { kind: if layer_norm { NormKind::Layer } else { NormKind::Rms }, ..rms },
            mixer_scale: if falcon { 0.7 } else { 1.0 },
            feed_forward_scale: if falcon { 1.3 } else { 1.0 },
            residual,
            scaled,
        }
    }
}

prop_compose! {
    fn token_inputs()(
        width in 1usize..20, activation in 0usize..3, rows in prop::option::of(1usize..VOCAB),
    ) -> TokenInputs {
        TokenInputs {
            width,
            rows,
            activation: [Activation::Silu, Activation::Gelu, Activation::GeluTanh][activation],
            norm: Norm { kind: NormKind::Rms, epsilon: 1e-5, weight_offset: 0.0 },
        }
    }
}

prop_compose! {
    fn streams()(count in 2usize..6, rank in 1usize..9, scaled: bool, inputs in token_inputs()) -> (Streams, TokenInputs) {
        (Streams { count, rank, scaled }, inputs)
    }
}

/// Gives a block the norms that several residual streams need.
fn fit_streams(block: &mut BlockDescription) {
    block.residual = Residual::SerialPostNorm;
    block.norm.kind = NormKind::Rms;
    block.scaled = false;
    if block.feed_forward.width == 0 && block.feed_forward.experts.is_none() {
        block.feed_forward.width = 5;
    }
}

prop_compose! {
    /// Generates random models, each with its own number of threads.
    pub fn models()(
        mut blocks in prop::collection::vec(blocks(), 1..4), tied_output: bool, output_bias: bool,
        source in prop::option::of(0usize..2), token_inputs in prop::option::of(token_inputs()),
        streams in prop::option::weighted(0.3, streams()),
        logit_soft_cap in prop::option::of(5f32..30.0), seed: u64, threads in 1usize..4,
    ) -> Model {
        for index in 0..blocks.len() {
            let before = index.checked_sub(1).map(|before| blocks[before].residual);
            if blocks[index].residual == Residual::SecondMixer && before != Some(Residual::MixerAlone) {
                blocks[index].residual = Residual::Serial;
            }
        }
        if streams.is_some() {
            blocks.iter_mut().for_each(fit_streams);
        }
        // The last block reads the keys and values of an earlier one.
        let source = source.filter(|source| source + 1 < blocks.len());
        let has_own = |block: &BlockDescription| block.attention().is_some_and(Attention::stores_values);
        if let Some(source) = source.filter(|source| has_own(&blocks[*source])) {
            let mixer = blocks[source].mixer.clone();
            let last = blocks.last_mut().unwrap();
            last.mixer = mixer;
            last.attention_mut().unwrap().key_values = KeyValues::OfBlock(source);
        }
        let description = ModelDescription {
            added_inputs: triad_model::description::AddedInputs::default(),
            picture_rope: None,
            mtp: None,
            head: None,
            family: "random".into(),
            name: None,
            hidden: 24,
            vocab: VOCAB,
            context: CONTEXT,
            embedding_scale: 3.0,
            residual_scale: if streams.is_some() { 1.0 } else { 0.7 },
            logit_scale: 1.5,
            output_norm: blocks[0].norm,
            blocks,
            tied_output,
            output_bias,
            logit_soft_cap,
            token_inputs: streams.map(|(_, inputs)| inputs).or(token_inputs),
            streams: streams.map(|(streams, _)| streams),
        };
        Model::random(description, &LoadOptions { threads: Threads::Count(threads), ..Default::default() }, seed).unwrap()
    }
}
