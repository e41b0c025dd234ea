//! LoRA adapters with random numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::models::{ALL_MODELS, MODELS, all_models};
use crate::adapter::{Adapter, Adapters, LowRank, ScaledAdapter};
use crate::model::Model;
use crate::session::Session;

/// [Adapters](combinations) for any of [`MODELS`].
pub static ADAPTERS: LazyLock<Vec<Adapters>> = LazyLock::new(|| combinations(&MODELS[0].1));

/// [Adapters](combinations) for each of [`all_models`].
pub static ADAPTERS_OF_ALL: LazyLock<Vec<Vec<Adapters>>> = LazyLock::new(|| {
    let all: Vec<_> = all_models()
        .map(|(.., model)| combinations(model))
        .collect();
    assert_eq!(all.len(), ALL_MODELS);
    all
});

/// Returns an adapter with random numbers for the linear layers that `is_changed` accepts; ranks differ between layers.
///
/// # Panics
/// If it does not fit the model.
pub fn random(model: &Model, seed: u64, is_changed: impl Fn(usize) -> bool) -> Arc<Adapter> {
    let description = model.description();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut numbers = |count: usize| -> Arc<[f32]> {
        let number = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(number).collect()
    };
    let blocks = description.blocks.iter().enumerate().map(|(index, block)| {
        let shapes = block.linears(description.hidden).into_iter().enumerate();
        let shapes = shapes.filter(|(place, _)| is_changed(index * 7 + place));
        let low_ranks = shapes.map(|(place, shape)| {
            let rank = 1 + (place + seed as usize) % 4;
            let (a, b) = (
                numbers(rank * shape.in_features),
                numbers(rank * shape.out_features),
            );
            (
                shape.linear,
                LowRank {
                    rank,
                    a,
                    b,
                    scale: 0.1,
                },
            )
        });
        low_ranks.collect::<BTreeMap<_, _>>()
    });
    Arc::new(Adapter::new(description, blocks.collect()).expect("an adapter of the model"))
}

/// Returns adapters with their scales.
///
/// # Panics
/// If a scale is not finite.
pub fn together(adapters: &[(&Arc<Adapter>, f32)]) -> Adapters {
    let scaled = |(adapter, scale): &(&Arc<Adapter>, f32)| ScaledAdapter {
        adapter: Arc::clone(adapter),
        scale: *scale,
    };
    Adapters::new(adapters.iter().map(scaled)).expect("finite scales")
}

/// Returns no adapter, two single ones, one of them with another scale, and both in either order.
pub fn combinations(model: &Model) -> Vec<Adapters> {
    let (all, some) = (
        random(model, 1, |_| true),
        random(model, 2, |place| place % 3 != 1),
    );
    vec![
        Adapters::default(),
        together(&[(&all, 1.0)]),
        together(&[(&some, 1.0)]),
        together(&[(&all, -0.5)]),
        together(&[(&all, 0.5), (&some, 1.5)]),
        together(&[(&some, 1.5), (&all, 0.5)]),
    ]
}

/// Returns the session with adapters.
///
/// # Panics
/// If they are of another model.
pub fn adapted(mut session: Session, adapters: &Adapters) -> Session {
    session
        .set_adapters(adapters)
        .expect("adapters of the model");
    session
}
