//! All families, all weight formats, all shader variants, and refused models.

use triad_kernels::Phase;
use triad_processors::gpu::model::{GpuModel, GpuSegment, ModelVariant};
use triad_processors::gpu::{GpuOptions, VariantState};
use triad_processors::model::{DeviceModel, OutputRows};
use triad_processors::{Error, ModelOptions};

use super::families::{all, changed, llama};
use super::plain::{Format, PlainModel};
use super::{OPTIONS, assert_near, gpu, gpu_with, logits, on_gpu};

#[test]
fn models_of_all_families_have_the_logits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (name, description) in all() {
        let model = PlainModel::new(description, &[Format::F32], 1);
        let x = model.rows(37, 2);
        let expected = model.run(&x).logits;
        let mut on_gpu = on_gpu(&gpu, &model);
        let mut sequence = on_gpu.sequence();
        assert_near(&logits(&mut on_gpu, &mut sequence, &x, 37), &expected, name);
        // Runs the same row by row.
        let hidden = model.description.hidden;
        let mut sequence = on_gpu.sequence();
        let rows = x.chunks_exact(hidden).take(12);
        let found: Vec<_> = rows
            .flat_map(|x| logits(&mut on_gpu, &mut sequence, x, 1))
            .collect();
        assert_near(&found, &expected[..found.len()], name);
    }
}

#[test]
fn weights_of_every_format_are_multiplied_for_any_number_of_rows() {
    let Some(gpu) = gpu() else { return };
    let each = Format::ALL.map(|format| vec![format]);
    for formats in each.into_iter().chain([Format::ALL.to_vec()]) {
        let model = PlainModel::new(llama(), &formats, 3);
        let mut on_gpu = on_gpu(&gpu, &model);
        for rows in [1, 2, 5, 8, 9, 64, 67] {
            let x = model.rows(rows, rows as u64);
            let mut sequence = on_gpu.sequence();
            let found = logits(&mut on_gpu, &mut sequence, &x, rows);
            assert_near(
                &found,
                &model.run(&x).logits,
                &format!("{rows} rows by {formats:?}"),
            );
        }
    }
}

#[test]
fn every_variant_computes_a_model() {
    // Includes the variants that are used only if they are named.
    let named = ModelVariant::ROUNDED.map(|variant| variant.name).join(",");
    let Some(gpu) = gpu_with(&GpuOptions {
        named: Some(named),
        ..GpuOptions::from_environment()
    }) else {
        return;
    };
    let model = PlainModel::new(llama(), &[Format::F16, Format::Int4], 4);
    let x = model.rows(10, 5);
    let expected = model.run(&x).logits;
    for variant in ModelVariant::ALL.into_iter().chain(ModelVariant::ROUNDED) {
        let on_gpu = GpuModel::new(&gpu, &model.view(), &OPTIONS, &[variant]);
        if let Err(Error::GpuMiscomputes { reasons, .. }) = &on_gpu
            && reasons.starts_with(&format!("{}: it has no matrices of", variant.name))
        {
            eprintln!("skipped: {reasons}");
            continue;
        }
        let mut on_gpu = on_gpu.unwrap();
        assert_eq!(on_gpu.variants(), [(variant, VariantState::Used)]);
        let mut sequence = on_gpu.sequence();
        let mut found = logits(
            &mut on_gpu,
            &mut sequence,
            &x[..9 * model.description.hidden],
            9,
        );
        found.extend(logits(
            &mut on_gpu,
            &mut sequence,
            &x[9 * model.description.hidden..],
            1,
        ));
        assert_near(&found, &expected, variant.name);
    }
    assert!(matches!(
        GpuModel::new(&gpu, &model.view(), &OPTIONS, &[]),
        Err(Error::GpuMiscomputes { .. })
    ));
}

/// Makes a model invalid.
type Change = fn(&mut DeviceModel);

#[test]
fn a_model_that_no_shader_computes_is_refused_with_the_part_that_is_why() {
    let Some(gpu) = gpu() else { return };
    let refusal = |model: &PlainModel, change: Change| {
        let mut view = model.view();
        change(&mut view);
        GpuModel::new(&gpu, &view, &OPTIONS, &ModelVariant::ALL)
            .unwrap_err()
            .to_string()
    };
    let narrow = PlainModel::new(
        changed(|_, block| block.attention_mut().unwrap().head_dim = 12),
        &[Format::F32],
        1,
    );
    let error = refusal(&narrow, |_| {});
    assert!(
        error.contains("block 0: heads are 12 wide, expected a multiple of 8"),
        "{error}"
    );
    let model = PlainModel::new(llama(), &[Format::F32], 1);
    let cases: [(Change, &str); 6] = [
        (|model| model.blocks.truncate(1), "weights of 1 blocks"),
        (
            |model| model.blocks[1].linears.truncate(6),
            "block 1: Down: no weights",
        ),
        (
            |model| model.blocks[0].query_norm = Some(model.output_norm),
            "block 0: query norm: expected exactly where",
        ),
        (
            |model| model.output.bias = Some(&[1.0]),
            "output matrix: a bias of Some(1) values",
        ),
        (
            |model| model.output = model.blocks[0].linears[0].1,
            "output matrix: weights of 16384 bytes, expected 77 rows",
        ),
        (
            |model| model.rotations.truncate(1),
            "block 1: its rotation has None frequencies",
        ),
    ];
    for (change, expected) in cases {
        let error = refusal(&model, change);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_chunk_that_can_not_be_run_is_refused_and_changes_nothing() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::F32], 1);
    let options = ModelOptions {
        rows: 4,
        outputs: 2,
    };
    let mut on_gpu = GpuModel::new(&gpu, &model.view(), &options, &ModelVariant::ALL).unwrap();
    let other = GpuModel::new(&gpu, &model.view(), &options, &ModelVariant::ALL).unwrap();
    let (mut own, mut foreign) = (on_gpu.sequence(), other.sequence());
    let x = model.rows(5, 1);
    let hidden = model.description.hidden;
    let mut refusal = |sequence: &mut _, numbers: usize, rows: usize, wanted: &[usize]| {
        let wanted = OutputRows {
            rows: wanted,
            logits: true,
            phase: Phase::Prefill,
            keys_and_values: false,
        };
        on_gpu
            .forward(
                &x[..numbers],
                &mut [GpuSegment { sequence, rows }],
                &wanted,
                |_| {},
            )
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&mut own, 5 * hidden, 5, &[]).contains("5 rows"));
    assert!(refusal(&mut own, 0, 0, &[]).contains("0 rows"));
    assert!(refusal(&mut own, 3 * hidden, 3, &[0, 1, 2]).contains("3 rows"));
    assert!(refusal(&mut own, 3 * hidden, 3, &[3]).contains("row 3 is wanted of 3"));
    assert!(
        refusal(&mut own, 2 * hidden + 1, 2, &[])
            .contains("129 numbers were given for 2 rows of 64")
    );
    assert!(refusal(&mut foreign, hidden, 1, &[]).contains("of another model"));
    assert_eq!(own.length(), 0);
}
