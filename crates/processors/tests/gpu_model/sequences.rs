//! Sequences in chunks of any length, several sequences at once, and sequences that are truncated and filled again.

use half::f16;
use proptest::prelude::*;
use triad_kernels::Phase;
use triad_kernels::attention::Cache;
use triad_processors::gpu::model::GpuSegment;
use triad_processors::model::OutputRows;

use super::families::{changed, llama};
use super::plain::{Format, PlainModel};
use super::{ROWS, assert_near, gpu, logits, on_gpu};

/// Positions of a sequence: more than a page.
const LENGTH: usize = 300;

#[test]
fn a_prompt_in_any_chunks_has_the_logits_of_the_whole_one() {
    let Some(gpu) = gpu() else { return };
    let window =
        changed(|index, block| block.attention_mut().unwrap().window = (index == 0).then_some(40));
    for description in [llama(), window] {
        let model = PlainModel::new(description, &[Format::F16], 6);
        let hidden = model.description.hidden;
        let x = model.rows(LENGTH, 7);
        let expected = model.run(&x).logits;
        let on_gpu = std::cell::RefCell::new(on_gpu(&gpu, &model));
        let config = ProptestConfig {
            cases: 4,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        proptest!(config, |(chunks in prop::collection::vec(prop_oneof![1..=8usize, 9..=ROWS], 60))| {
            let mut on_gpu = on_gpu.borrow_mut();
            let mut sequence = on_gpu.sequence();
            let mut found = Vec::new();
            for chunk in chunks {
                let chunk = chunk.min(LENGTH - sequence.length());
                if chunk > 0 {
                    let x = &x[sequence.length() * hidden..][..chunk * hidden];
                    found.extend(logits(&mut on_gpu, &mut sequence, x, chunk));
                }
            }
            assert_near(&found, &expected[..found.len()], "chunks");
        });
    }
}

#[test]
fn concurrent_sequences_have_the_logits_of_each_alone() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::Int8], 8);
    let (hidden, vocab) = (model.description.hidden, model.description.vocab);
    let mut on_gpu = on_gpu(&gpu, &model);
    // Interleaves the pages of the sequences.
    let lengths = [261, 3, 70];
    let rows = lengths.map(|length| model.rows(length, length as u64));
    let expected = rows.clone().map(|rows| model.run(&rows).logits);
    let mut sequences = lengths.map(|_| on_gpu.sequence());
    let mut at = [0; 3];
    for taken in [
        [60, 1, 10],
        [60, 1, 5],
        [60, 0, 5],
        [60, 0, 30],
        [20, 0, 0],
        [0, 1, 17],
        [1, 0, 3],
    ] {
        let mut x = Vec::new();
        let mut segments = Vec::new();
        for (index, sequence) in sequences
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| taken[*index] > 0)
        {
            x.extend_from_slice(&rows[index][at[index] * hidden..][..taken[index] * hidden]);
            segments.push(GpuSegment {
                sequence,
                rows: taken[index],
            });
        }
        let count: usize = taken.iter().sum();
        // Requests some rows, in another order.
        let wanted: Vec<_> = (0..count).rev().step_by(2).collect();
        let mut found = Vec::new();
        let what = OutputRows {
            rows: &wanted,
            logits: true,
            phase: Phase::Prefill,
            keys_and_values: false,
        };
        on_gpu
            .forward(&x, &mut segments, &what, |outputs| {
                found.extend_from_slice(outputs.values);
            })
            .unwrap();
        let of_all: Vec<_> = (0..3)
            .flat_map(|index| {
                expected[index][at[index] * vocab..][..taken[index] * vocab].chunks_exact(vocab)
            })
            .collect();
        let of_wanted: Vec<_> = wanted
            .iter()
            .flat_map(|row| of_all[*row].iter().copied())
            .collect();
        assert_near(&found, &of_wanted, &format!("{taken:?} after {at:?}"));
        at.iter_mut()
            .zip(taken)
            .for_each(|(at, taken)| *at += taken);
    }
    assert_eq!(sequences.map(|sequence| sequence.length()), [261, 3, 70]);
}

#[test]
fn a_sequence_that_forgets_goes_on_from_there() {
    let Some(gpu) = gpu() else { return };
    let model = PlainModel::new(llama(), &[Format::F32], 9);
    let hidden = model.description.hidden;
    let mut on_gpu = on_gpu(&gpu, &model);
    let mut sequence = on_gpu.sequence();
    for seed in 0..4 {
        logits(&mut on_gpu, &mut sequence, &model.rows(ROWS, seed), ROWS);
    }
    sequence.truncate(0);
    let x = model.rows(20, 10);
    let expected = model.run(&x).logits;
    logits(&mut on_gpu, &mut sequence, &x[..15 * hidden], 15);
    sequence.truncate(99);
    assert_eq!(sequence.length(), 15);
    sequence.truncate(11);
    let found = logits(&mut on_gpu, &mut sequence, &x[11 * hidden..], 9);
    assert_near(
        &found,
        &expected[11 * model.description.vocab..],
        "after truncation",
    );
}

#[test]
fn keys_and_values_go_to_the_cpu_and_come_from_there() {
    let Some(gpu) = gpu() else { return };
    let other_heads =
        changed(|index, block| block.attention_mut().unwrap().kv_heads = [2, 4][index]);
    let model = PlainModel::new(other_heads, &[Format::Bf16], 11);
    let hidden = model.description.hidden;
    let x = model.rows(LENGTH + 2, 12);
    let expected = model.run(&x);
    let mut on_gpu = on_gpu(&gpu, &model);
    let mut sequence = on_gpu.sequence();
    // These positions are replaced.
    logits(&mut on_gpu, &mut sequence, &model.rows(5, 1), 5);
    let slabs: Vec<_> = expected.caches.iter().map(|cache| cache.view()).collect();
    let caches: Vec<&dyn Cache> = slabs.iter().map(|slab| slab as &dyn Cache).collect();
    sequence.fill(LENGTH, &caches).unwrap();
    assert_eq!(sequence.length(), LENGTH);
    let wanted = OutputRows {
        rows: &[1],
        logits: false,
        phase: Phase::Prefill,
        keys_and_values: true,
    };
    let (mut residual, mut returned) = (Vec::new(), Vec::new());
    let mut segments = [GpuSegment {
        sequence: &mut sequence,
        rows: 2,
    }];
    on_gpu
        .forward(&x[LENGTH * hidden..], &mut segments, &wanted, |outputs| {
            residual.extend_from_slice(outputs.values);
            returned.extend_from_slice(outputs.keys_and_values);
        })
        .unwrap();
    assert_near(
        &residual,
        &expected.residual[(LENGTH + 1) * hidden..],
        "residual stream",
    );
    let wide = |values: &[f16]| {
        values
            .iter()
            .map(|value| value.to_f32())
            .collect::<Vec<_>>()
    };
    let of_block = |cache: &super::plain::PlainCache| {
        let [first, second] = [LENGTH, LENGTH + 1].map(|position| cache.at(position));
        [0, 1]
            .map(|plane| [&first[plane][..], &second[plane]].concat())
            .concat()
    };
    let kept: Vec<_> = expected.caches.iter().flat_map(of_block).collect();
    assert_near(&wide(&returned), &wide(&kept), "keys and values");
    let wrong: Vec<&dyn Cache> = vec![caches[1], caches[0]];
    assert!(
        sequence
            .fill(LENGTH, &wrong)
            .unwrap_err()
            .to_string()
            .contains("of a page, expected")
    );
}
