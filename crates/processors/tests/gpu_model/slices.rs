//! Chunks in several submissions.

use std::time::Duration;

use triad_processors::gpu::{Gpu, GpuOptions};

use super::families::{all, changed, llama};
use super::plain::{Format, PlainModel};
use super::{ROWS, gpu, logits, on_gpu};

/// Opens the GPU with submissions of this length.
fn sliced(slice: Duration) -> Gpu {
    Gpu::open(&GpuOptions {
        slice: Some(slice),
        ..GpuOptions::from_environment()
    })
    .unwrap()
}

/// Returns the logits of two chunks and a row, and the number of submissions that they took.
fn run(gpu: &Gpu, model: &PlainModel, x: &[f32]) -> (Vec<f32>, u64) {
    let hidden = model.description.hidden;
    let mut on_gpu = on_gpu(gpu, model);
    // Allocates the pages.
    let mut sequence = on_gpu.sequence();
    logits(&mut on_gpu, &mut sequence, &x[..hidden], 1);
    drop(sequence);
    let mut sequence = on_gpu.sequence();
    let before = gpu.submissions();
    let chunks = x[..2 * ROWS * hidden]
        .chunks_exact(ROWS * hidden)
        .map(|chunk| (chunk, ROWS));
    let rows = [(&x[2 * ROWS * hidden..], 1)];
    let found = chunks
        .chain(rows)
        .flat_map(|(x, rows)| logits(&mut on_gpu, &mut sequence, x, rows))
        .collect();
    (found, gpu.submissions() - before)
}

#[test]
fn slices_change_no_bit_and_are_as_many_as_their_length_asks_for() {
    let Some(whole) = gpu() else { return };
    let slices = [Duration::from_nanos(1), Duration::from_micros(300)].map(sliced);
    let wide = changed(|_, block| block.feed_forward.width = 160);
    let families = all()
        .into_iter()
        .step_by(2)
        .map(|(name, description)| (name, description, vec![Format::F32]));
    let formats = Format::ALL.map(|format| ("llama", wide.clone(), vec![format]));
    let others =
        [Format::ALL.to_vec(), vec![Format::W8a8]].map(|formats| ("llama", wide.clone(), formats));
    for (name, description, formats) in families.chain(formats).chain(others) {
        let model = PlainModel::new(description, &formats, 11);
        let x = model.rows(2 * ROWS + 1, 12);
        let (expected, of_whole) = run(&whole, &model, &x);
        assert_eq!(of_whole, 3, "one for a chunk or a row");
        for (gpu, least) in slices.iter().zip([100, 4]) {
            let (found, submissions) = run(gpu, &model, &x);
            assert!(
                submissions >= least,
                "{name}, {formats:?}: {submissions} submissions"
            );
            let same = found
                .iter()
                .zip(&expected)
                .all(|(found, expected)| found.to_bits() == expected.to_bits());
            assert!(same && found.len() == expected.len(), "{name}, {formats:?}");
        }
    }
}

#[test]
fn a_chunk_that_is_shorter_than_a_slice_is_one_submission() {
    if gpu().is_none() {
        return;
    }
    let gpu = sliced(Duration::from_secs(3600));
    let model = PlainModel::new(llama(), &[Format::F32], 13);
    let x = model.rows(2 * ROWS + 1, 14);
    assert_eq!(run(&gpu, &model, &x).1, 3);
}
