//! Tests specific to GPUs: how one is found, what is refused, and what happens when it fails.

mod skip;

use triad_processors::gpu::{ADAPTER, Gpu, GpuOptions, Variant, VariantState};
use triad_processors::{Device, Error};

/// Returns the GPU that the environment names.
fn gpu() -> Option<Gpu> {
    let options = GpuOptions::from_environment();
    if options.adapter.is_none() {
        skip::skip(format_args!("{ADAPTER} names no GPU"));
        return None;
    }
    Some(Gpu::open(&options).unwrap())
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_lists_what_is() {
    let options = GpuOptions {
        adapter: Some("no such GPU".to_owned()),
        ..GpuOptions::default()
    };
    let error = Gpu::open(&options).unwrap_err();
    let Error::GpuNotFound { wanted, found } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(wanted, "no such GPU");
    for (adapter, _) in Gpu::open_each(&GpuOptions::default()) {
        assert!(found.contains(&adapter.name), "{found}");
    }
}

#[test]
fn the_first_variant_that_computes_rightly_is_used_and_those_after_it_are_not_tried() {
    let Some(gpu) = gpu() else { return };
    let states: Vec<_> = gpu
        .variants()
        .iter()
        .map(|(_, state)| state.clone())
        .collect();
    let used = states
        .iter()
        .position(|state| *state == VariantState::Used)
        .unwrap();
    assert!(
        states[..used]
            .iter()
            .all(|state| matches!(state, VariantState::Refused(_))),
        "{states:?}"
    );
    assert!(
        states[used + 1..]
            .iter()
            .all(|state| *state == VariantState::Untried),
        "{states:?}"
    );
    assert_eq!(gpu.name(), format!("gpu:{}", gpu.adapter().name));
}

#[test]
fn without_a_variant_that_computes_rightly_a_gpu_is_refused() {
    if gpu().is_some() {
        let options = GpuOptions {
            variants: Some(Vec::new()),
            ..GpuOptions::from_environment()
        };
        assert!(matches!(
            Gpu::open(&options).unwrap_err(),
            Error::GpuMiscomputes { .. }
        ));
    }
}

#[test]
fn shaders_are_kept_in_their_folder_and_a_file_that_is_not_as_it_was_written_is_noted_and_replaced()
{
    if gpu().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = GpuOptions {
        kept: Some(folder.path().to_owned()),
        ..GpuOptions::from_environment()
    };
    let first = Gpu::open(&options).unwrap();
    let Some(file) = std::fs::read_dir(folder.path()).unwrap().next() else {
        eprintln!("skipped: its driver returns no compiled shaders");
        return;
    };
    let path = file.unwrap().path();
    assert_eq!(first.not_kept(), None);
    assert_eq!(Gpu::open(&options).unwrap().not_kept(), None);

    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let note = Gpu::open(&options).unwrap().not_kept().unwrap();
    assert!(note.contains("it is not as Triad wrote it"), "{note}");
    assert_eq!(
        Gpu::open(&options).unwrap().not_kept(),
        None,
        "it was written again"
    );
}

#[test]
fn variants_are_tried_as_they_are_named_and_an_unknown_name_is_an_error_that_lists_them() {
    let named = |names: &str| GpuOptions {
        named: Some(names.to_owned()),
        ..GpuOptions::from_environment()
    };
    let error = Gpu::open(&named("packed-32,fast-64")).unwrap_err();
    assert!(matches!(error, Error::GpuVariant { .. }));
    let text = error.to_string();
    assert!(
        text.contains("no shaders fast-64")
            && text.contains("shifted-32")
            && text.contains("f16-64"),
        "{text}"
    );
    if gpu().is_none() {
        return;
    }
    let gpu = Gpu::open(&named("shifted-64, plain-32, packed-64")).unwrap();
    let names: Vec<_> = gpu
        .variants()
        .iter()
        .map(|(variant, _)| variant.name)
        .collect();
    assert_eq!(names, ["shifted-64", "packed-64"]);
    assert_eq!(gpu.variants()[0].1, VariantState::Used);
    let float = gpu.check_models().unwrap();
    assert_eq!(
        float
            .iter()
            .map(|(variant, _)| variant.name)
            .collect::<Vec<_>>(),
        ["plain-32"]
    );
    // If no variant of a kind is named, all variants of the kind are tried.
    assert_eq!(
        Gpu::open(&named("plain-32")).unwrap().variants().len(),
        Variant::ALL.len()
    );
}
