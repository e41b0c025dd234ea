//! Self-test of the kernel between the query, key and value layers and attention: norms of heads, RoPE, and writes of
//! keys and values to the pages.

use bytemuck::{Zeroable, cast_slice};
use half::f16;
use triad_kernels::attention::PAGE;
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::rope::{Angles, Pairing, rope};

use super::super::Call;
use super::super::uniforms::{NONE, RopeUniforms};
use super::{Checked, Trial, ensure, near, numbers};

const HEADS: usize = 3;
const KV_HEADS: usize = 2;
const ALL: usize = HEADS + 2 * KV_HEADS;
/// Position of each row, and where the pages of its sequence begin in [`PAGES`]. The first two rows are on both sides
/// of a page boundary; the third belongs to another sequence.
const POSITIONS: [(usize, usize); 3] = [(PAGE - 1, 0), (PAGE, 0), (7, 2)];
const ROWS: usize = POSITIONS.len();
/// Indices of the pages of both sequences in memory.
const PAGES: [u32; 3] = [2, 0, 1];
/// Words per row of the preceding layers.
const WORDS_BEFORE: usize = 5;
/// Initial contents of memory that nothing is written to.
const UNTOUCHED: f16 = f16::from_f32_const(3.25);
/// Tolerance of numbers around 1.
const TOLERANCE: f32 = 1e-5;

struct Case {
    name: &'static str,
    pairing: Pairing,
    /// Rotated pairs.
    pairs: usize,
    /// Whether heads are normed.
    normed: bool,
    /// Whether keys and values are returned.
    returns: bool,
}

/// Tests all of this with both pair layouts, with partly rotated heads, and with norms.
pub(super) fn check(trial: &mut Trial, head_dim: usize) -> Checked {
    let (all, some) = (head_dim / 2, head_dim / 4);
    let case = |name, pairing, pairs, normed| Case {
        name,
        pairing,
        pairs,
        normed,
        returns: normed,
    };
    for case in [
        case("pairs of halves", Pairing::Halves, all, false),
        case("pairs of neighbours", Pairing::Adjacent, all, false),
        case(
            "norm and pairs of halves of some dimensions",
            Pairing::Halves,
            some,
            true,
        ),
        case(
            "norm and pairs of neighbours of some dimensions",
            Pairing::Adjacent,
            some,
            true,
        ),
    ] {
        ensure!(check_case(trial, head_dim, &case)?);
    }
    Ok(Ok(()))
}

fn check_case(trial: &mut Trial, head_dim: usize, case: &Case) -> Checked {
    let Case {
        name,
        pairing,
        pairs,
        normed,
        returns,
    } = *case;
    let (x, [query_norm, key_norm]) = (
        numbers(ROWS * ALL * head_dim, 1),
        [2, 3].map(|seed| numbers(head_dim, seed)),
    );
    let frequencies: Vec<_> = numbers(pairs, 4)
        .into_iter()
        .map(|number| 1.1 + number)
        .collect();
    let (factor, angles_at, epsilons) = (1.2f32, 6, [0.01, 0.02]);

    let mut angles = vec![[f32::NAN; 2]; angles_at];
    for (position, _) in POSITIONS {
        angles.extend(frequencies.iter().map(|frequency| {
            let (sine, cosine) = (position as f32 * frequency).sin_cos();
            [cosine * factor, sine * factor]
        }));
    }
    let mut table: Vec<u32> = POSITIONS
        .iter()
        .flat_map(|(position, pages)| [*position as u32, (2 * ROWS + pages) as u32])
        .collect();
    table.extend(PAGES);
    let numbers_of_head = PAGES.len() * 2 * KV_HEADS * PAGE * head_dim;
    let kv_words = KV_HEADS * head_dim / 2;
    let returned = vec![UNTOUCHED; 2 * ROWS * (WORDS_BEFORE + 2 * kv_words)];
    let cache = vec![UNTOUCHED; numbers_of_head];
    let uniforms = RopeUniforms {
        heads: HEADS as u32,
        kv_heads: KV_HEADS as u32,
        pairs: pairs as u32,
        adjacent: u32::from(pairing == Pairing::Adjacent),
        angles_at: angles_at as u32,
        query_norm_at: if normed { 4 } else { NONE },
        key_norm_at: if normed { 4 + head_dim as u32 } else { NONE },
        query_epsilon: epsilons[0],
        key_epsilon: epsilons[1],
        words_before: WORDS_BEFORE as u32,
        unused: [0; 2],
    };
    let call = Call {
        rows: ROWS as u32,
        returns: u32::from(returns),
        ..Call::zeroed()
    };
    let parameters = [&[f32::NAN; 4][..], &query_norm, &key_norm].concat();
    let buffers = [
        trial.buffer(&angles)?,
        trial.buffer(&parameters)?,
        trial.buffer(&table)?,
        trial.buffer(&x)?,
        trial.buffer(&cache)?,
        trial.buffer(&returned)?,
    ];
    let found = trial.run(&call, &uniforms, &buffers.each_ref(), 3, [ALL, ROWS, 1])?;

    let mut expected = (x.clone(), cache, returned);
    let mut rotations = Angles::default();
    rotations.fill(
        POSITIONS.map(|(position, _)| position),
        &frequencies,
        factor,
    );
    for (row, (position, pages)) in POSITIONS.into_iter().enumerate() {
        for head in 0..ALL {
            let at = (row * ALL + head) * head_dim;
            let mut values = x[at..][..head_dim].to_vec();
            if head < HEADS + KV_HEADS {
                if normed {
                    let (norm, epsilon) = if head < HEADS {
                        (&query_norm, epsilons[0])
                    } else {
                        (&key_norm, epsilons[1])
                    };
                    rms_norm_in_place(&mut values, norm, epsilon);
                }
                rope(&mut values, head_dim, 1, &rotations, row, pairing);
            }
            let Some(index) = head.checked_sub(HEADS) else {
                expected.0[at..][..head_dim].copy_from_slice(&values);
                continue;
            };
            let (plane, kv_head) = (index / KV_HEADS, index % KV_HEADS);
            let page = PAGES[pages + position / PAGE] as usize;
            let place = ((page * 2 + plane) * KV_HEADS + kv_head) * PAGE + position % PAGE;
            let values: Vec<_> = values.into_iter().map(f16::from_f32).collect();
            expected.1[place * head_dim..][..head_dim].copy_from_slice(&values);
            if returns {
                let word = WORDS_BEFORE * ROWS + (plane * ROWS + row) * kv_words;
                expected.2[2 * word + kv_head * head_dim..][..head_dim].copy_from_slice(&values);
            }
        }
    }
    let wide = |halves: &[f16]| halves.iter().map(|half| half.to_f32()).collect::<Vec<_>>();
    // A number halfway between two f16 numbers may be rounded to either.
    let rounding = |expected: f32| expected.abs() / 512.0 + TOLERANCE;
    ensure!(near(
        &format!("{name}: queries"),
        &found[0],
        &expected.0,
        |_| TOLERANCE * 10.0
    ));
    for (what, found, expected) in [
        ("keys and values", &found[1], wide(&expected.1)),
        ("keys and values for the CPU", &found[2], wide(&expected.2)),
    ] {
        let case = format!("{name}: {what}");
        ensure!(near(&case, &wide(cast_slice(found)), &expected, |index| {
            rounding(expected[index])
        }));
    }
    Ok(Ok(()))
}
