//! What is particular to GPUs: how one is found, what is refused, and what happens when it fails.

use triad_processors::gpu::{ADAPTER, Gpu, GpuOptions, VariantState};
use triad_processors::{Device, Error};

/// The GPU that the environment names.
fn gpu() -> Option<Gpu> {
    let options = GpuOptions::from_environment();
    if options.adapter.is_none() {
        eprintln!("skipped: {ADAPTER} names none");
        return None;
    }
    Some(Gpu::open(&options).unwrap())
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_lists_what_is() {
    let options = GpuOptions { adapter: Some("no such GPU".to_owned()), ..GpuOptions::default() };
    let error = Gpu::open(&options).unwrap_err();
    let Error::GpuNotFound { wanted, found } = &error else { panic!("{error:?}") };
    assert_eq!(wanted, "no such GPU");
    for (adapter, _) in Gpu::open_each() {
        assert!(found.contains(&adapter.name), "{found}");
    }
}

#[test]
fn the_first_variant_that_computes_rightly_is_used_and_those_behind_it_are_not_tried() {
    let Some(gpu) = gpu() else { return };
    let states: Vec<_> = gpu.variants().iter().map(|(_, state)| state.clone()).collect();
    let used = states.iter().position(|state| *state == VariantState::Used).unwrap();
    assert!(states[..used].iter().all(|state| matches!(state, VariantState::Refused(_))), "{states:?}");
    assert!(states[used + 1..].iter().all(|state| *state == VariantState::Untried), "{states:?}");
    assert_eq!(gpu.name(), format!("gpu:{}", gpu.adapter().name));
}

#[test]
fn without_a_variant_that_computes_rightly_a_gpu_is_refused() {
    if gpu().is_some() {
        let options = GpuOptions { variants: Some(Vec::new()), ..GpuOptions::from_environment() };
        assert!(matches!(Gpu::open(&options).unwrap_err(), Error::GpuMiscomputes { .. }));
    }
}
