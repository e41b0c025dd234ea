//! Self-test of attention over pages, and of the kernel that combines partial results of workgroups.

use bytemuck::Zeroable;
use half::f16;
use triad_kernels::Matrix;
use triad_kernels::attention::{PAGE, Precision, Shape, Slab, attention};

use super::super::Call;
use super::super::buffers::QUAD;
use super::super::kernels::Kernel;
use super::super::uniforms::{AttentionUniforms, CombineUniforms, NONE};
use super::{Checked, Trial, ensure, near, numbers};

const KV_HEADS: usize = 2;
/// For each of two sequences, the position of the first query, and the indices of its pages in memory.
const SEQUENCES: [(usize, &[usize]); 2] = [(PAGE + 20, &[2, 0]), (3, &[1])];
const PAGES: usize = 3;
/// Tolerance of weighted means of numbers up to 1.
const TOLERANCE: f32 = 1e-4;
/// Less than any score, equal to `HIDDEN` in `attention.wgsl`.
const HIDDEN: f32 = -1e30;

struct Case {
    name: &'static str,
    /// Query heads per key head.
    of_key_head: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    /// Whether each page has its own workgroup.
    splits: bool,
}

/// Tests one tile of each of two sequences, one of which has two pages.
pub(super) fn check(trial: &mut Trial, head_dim: usize, queries: usize) -> Checked {
    let case = |name, of_key_head, window, soft_cap, splits| Case {
        name,
        of_key_head,
        window,
        soft_cap,
        splits,
    };
    let few = queries.min(3);
    let mut cases = vec![
        case("causal", few, None, None, false),
        case(
            "a window over two pages, soft cap, pages apart",
            few,
            Some(70),
            Some(4.0),
            true,
        ),
        case("a window in the last page", few, Some(9), None, false),
    ];
    if queries == Kernel::attention_tile(head_dim).0 {
        cases.push(case(
            "more heads than a tile has queries, pages apart",
            queries + 1,
            None,
            None,
            true,
        ));
    }
    for case in cases {
        ensure!(check_case(trial, head_dim, queries, &case)?);
    }
    Ok(Ok(()))
}

fn check_case(trial: &mut Trial, head_dim: usize, queries: usize, case: &Case) -> Checked {
    let Case {
        name,
        of_key_head,
        window,
        soft_cap,
        splits,
    } = *case;
    let (heads, of_tile) = (KV_HEADS * of_key_head, of_key_head.min(queries));
    let rows = queries / of_tile;
    let shape = Shape {
        heads,
        kv_heads: KV_HEADS,
        head_dim,
        // Makes some scores much larger than others.
        scale: 6.0 / (head_dim as f32).sqrt(),
        window,
        soft_cap,
        sinks: None,
        precision: Precision::Exact,
    };
    let (width, of_page) = (heads * head_dim, KV_HEADS * PAGE * head_dim);
    let (mut in_rows, mut expected) = (Vec::new(), Vec::new());
    // Shape: [pages, keys and values, kv_heads, PAGE, head_dim].
    let mut cache = vec![f16::NAN; PAGES * 2 * of_page];
    for (index, (first, pages)) in SEQUENCES.into_iter().enumerate() {
        let seed = 10 * index as u32;
        let of_rows = numbers(rows * width, seed + 1);
        for row in of_rows.chunks_exact(width) {
            in_rows.extend_from_slice(row);
            in_rows.resize(in_rows.len() + 2 * KV_HEADS * head_dim, f32::NAN);
        }
        let planes = [2, 3].map(|plane| {
            let values = numbers(pages.len() * of_page, seed + plane);
            values.into_iter().map(f16::from_f32).collect::<Vec<_>>()
        });
        for (plane, values) in planes.iter().enumerate() {
            for (place, head) in values.chunks_exact(head_dim).enumerate() {
                let (page, in_page) = (place / (KV_HEADS * PAGE), place % (KV_HEADS * PAGE));
                if page * PAGE + in_page % PAGE < first + rows {
                    let at = (pages[page] * 2 + plane) * of_page + in_page * head_dim;
                    cache[at..][..head_dim].copy_from_slice(head);
                }
            }
        }
        let [keys, values] = planes.each_ref().map(|plane| Matrix::F16(plane));
        let mut out = vec![0.0; rows * width];
        attention(
            &of_rows,
            first,
            &Slab {
                keys,
                values,
                kv_heads: KV_HEADS,
                head_dim,
            },
            &shape,
            &mut out,
        );
        expected.extend(out);
    }

    // The table: positions of rows, which attention does not read; tiles; pages.
    let tiles_at = 4 * rows;
    let mut table = vec![u32::MAX; tiles_at];
    let mut pages_at = tiles_at + 4 * SEQUENCES.len();
    for (index, (first, pages)) in SEQUENCES.into_iter().enumerate() {
        table.extend([index * rows, rows, pages_at, first].map(|value| value as u32));
        pages_at += pages.len();
    }
    table.extend(
        SEQUENCES
            .iter()
            .flat_map(|(_, pages)| pages.iter().map(|page| *page as u32)),
    );
    let parts = if splits { 2 } else { 1 };
    let uniforms = AttentionUniforms {
        heads: heads as u32,
        kv_heads: KV_HEADS as u32,
        window: window.map_or(NONE, |window| window as u32),
        scale: shape.scale,
        soft_cap: soft_cap.unwrap_or(0.0),
        unused: [0; 3],
    };
    let call = Call {
        rows: (2 * rows) as u32,
        splits: parts as u32,
        pages_of_split: if splits { 1 } else { 2 },
        tiles_at: tiles_at as u32,
        ..Call::zeroed()
    };
    let of_part = head_dim + QUAD;
    let buffers = [
        trial.buffer(&in_rows)?,
        trial.buffer(&cache)?,
        trial.buffer(&table)?,
        trial.buffer(&vec![f32::NAN; expected.len()])?,
        trial.buffer(&vec![f32::NAN; expected.len() / head_dim * parts * of_part])?,
    ];
    let groups = [
        KV_HEADS * of_key_head.div_ceil(of_tile),
        SEQUENCES.len(),
        parts,
    ];
    let found = trial.run(&call, &uniforms, &buffers.each_ref(), 2, groups)?;
    let combined;
    let found = if splits {
        combined = combine(&found[1], head_dim, parts);
        &combined
    } else {
        &found[0]
    };
    Ok(near(name, found, &expected, |_| TOLERANCE))
}

/// Computes what `combine.wgsl` computes. Each head of each row has parts; a part is the weighted values, their maximum
/// score and the sum of weights.
fn combine(parts: &[f32], head_dim: usize, splits: usize) -> Vec<f32> {
    let of_part = head_dim + QUAD;
    let of_head = |parts: &[f32]| {
        let parts: Vec<_> = parts
            .chunks_exact(of_part)
            .map(|part| part.split_at(head_dim))
            .collect();
        let top = parts
            .iter()
            .fold(f32::NEG_INFINITY, |top, (_, of_split)| top.max(of_split[0]));
        let factor = |of_split: &[f32]| f64::from(of_split[0] - top).exp();
        let total: f64 = parts
            .iter()
            .map(|(_, of_split)| factor(of_split) * f64::from(of_split[1]))
            .sum();
        let sum = |dim: usize| {
            parts
                .iter()
                .map(|(sums, of_split)| factor(of_split) * f64::from(sums[dim]))
                .sum::<f64>()
        };
        (0..head_dim)
            .map(|dim| (sum(dim) / total) as f32)
            .collect::<Vec<_>>()
    };
    parts
        .chunks_exact(splits * of_part)
        .flat_map(of_head)
        .collect()
}

/// Tests parts of which some have much smaller weights than others, and some have no key.
pub(super) fn check_combine(trial: &mut Trial, head_dim: usize) -> Checked {
    const ROWS: usize = 2;
    const HEADS: usize = 3;
    const SPLITS: usize = 3;
    let tops = [
        [1.0, 3.5, -2.0],
        [HIDDEN, 0.5, 0.25],
        [90.0, -4.0, HIDDEN],
        [-1.0, -1.0, 2.0],
    ];
    let mut parts = numbers(ROWS * HEADS * SPLITS * (head_dim + QUAD), 1);
    for (index, part) in parts.chunks_exact_mut(head_dim + QUAD).enumerate() {
        let top = tops[index / SPLITS % tops.len()][index % SPLITS];
        let total = if top == HIDDEN {
            0.0
        } else {
            2.0 + index as f32
        };
        if top == HIDDEN {
            part.fill(0.0);
        }
        part[head_dim..][..2].copy_from_slice(&[top, total]);
    }
    let expected = combine(&parts, head_dim, SPLITS);
    let call = Call {
        rows: ROWS as u32,
        splits: SPLITS as u32,
        ..Call::zeroed()
    };
    let uniforms = CombineUniforms {
        heads: HEADS as u32,
        unused: [0; 3],
    };
    let buffers = [
        trial.buffer(&parts)?,
        trial.buffer(&vec![f32::NAN; expected.len()])?,
    ];
    let found = trial.run(&call, &uniforms, &buffers.each_ref(), 1, [HEADS, ROWS, 1])?;
    Ok(near("parts of pages", &found[0], &expected, |_| TOLERANCE))
}
