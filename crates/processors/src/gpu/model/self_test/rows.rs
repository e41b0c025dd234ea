//! Self-test of norms and activations.

use bytemuck::Zeroable;
use triad_kernels::activation::{Activation, activate, activate_and_multiply};
use triad_kernels::norm::{layer_norm, rms_norm};

use super::super::Call;
use super::super::buffers::QUAD;
use super::super::dispatch::ACTIVATE_THREADS;
use super::super::uniforms::{ActivateUniforms, NONE, NormUniforms};
use super::{Checked, Trial, ensure, near, numbers};

/// Rows of each case.
const ROWS: usize = 3;
/// Features of a norm: more quads than a workgroup has invocations, but fewer than twice as many.
const FEATURES: usize = 4 * 300;
/// Width of a feed-forward: more quads than a workgroup has invocations.
const WIDTH: usize = 4 * (ACTIVATE_THREADS + 7);
/// Tolerance of numbers around 1.
const TOLERANCE: f32 = 1e-5;

/// Tests RMS norm and layer norm: all rows and only the rows whose logits are requested, written and added.
pub(super) fn check_norm(trial: &mut Trial) -> Checked {
    // Shifts the mean away from 0.
    let x: Vec<_> = numbers(ROWS * FEATURES, 1)
        .into_iter()
        .map(|x| x + 0.7)
        .collect();
    let (weight, bias, before) = (
        numbers(FEATURES, 2),
        numbers(FEATURES, 3),
        numbers(ROWS * FEATURES, 4),
    );
    let epsilon = 0.01;
    let outputs = [2, 0];
    let input = trial.buffer(&x)?;
    // Padding: neither weight nor bias is at offset 0.
    let parameters = trial.buffer(&[&vec![f32::NAN; QUAD][..], &bias, &weight].concat())?;
    let table = trial.buffer(&[&[u32::MAX; 5][..], &outputs.map(|row| row as u32)].concat())?;
    for (case, is_layer_norm, adds, of_outputs) in [
        ("RMS norm", false, false, false),
        ("layer norm", true, false, false),
        ("RMS norm that is added", false, true, false),
        ("layer norm of the wanted rows", true, false, true),
        ("RMS norm of the wanted rows", false, false, true),
    ] {
        let rows: Vec<_> = if of_outputs {
            outputs.into()
        } else {
            (0..ROWS).collect()
        };
        let mut expected = before.clone();
        for (row, out) in rows.iter().zip(expected.chunks_exact_mut(FEATURES)) {
            let (x, mut normed) = (&x[row * FEATURES..][..FEATURES], vec![0.0; FEATURES]);
            if is_layer_norm {
                layer_norm(x, &weight, &bias, epsilon, &mut normed);
            } else {
                rms_norm(x, &weight, epsilon, &mut normed);
            }
            out.iter_mut()
                .zip(&normed)
                .for_each(|(out, normed)| *out = if adds { *out + normed } else { *normed });
        }
        let uniforms = NormUniforms {
            quads: (FEATURES / QUAD) as u32,
            weight_at: (1 + FEATURES / QUAD) as u32,
            bias_at: if is_layer_norm { 1 } else { NONE },
            epsilon,
            of_outputs: u32::from(of_outputs),
            adds: u32::from(adds),
            unused: [0; 2],
        };
        let call = Call {
            rows: ROWS as u32,
            outputs: rows.len() as u32,
            outputs_at: 5,
            ..Call::zeroed()
        };
        let out = trial.buffer(&before)?;
        let found = trial.run(
            &call,
            &uniforms,
            &[&input, &parameters, &table, &out],
            1,
            [rows.len(), 1, 1],
        )?;
        ensure!(near(case, &found[0], &expected, |index| TOLERANCE
            * (1.0 + expected[index].abs())));
    }
    Ok(Ok(()))
}

/// Tests each activation, with and without a gate.
pub(super) fn check_activation(trial: &mut Trial) -> Checked {
    let mut x: Vec<_> = numbers(2 * ROWS * WIDTH, 5)
        .into_iter()
        .map(|x| 8.0 * x)
        .collect();
    x[..6].copy_from_slice(&[0.0, -0.0, 100.0, -100.0, 1e-6, -20.0]);
    let groups = [(WIDTH / QUAD).div_ceil(ACTIVATE_THREADS), ROWS, 1];
    let input = trial.buffer(&x)?;
    for (number, activation) in [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ]
    .into_iter()
    .enumerate()
    {
        for gated in [true, false] {
            let expected = if gated {
                let of_row = |row: &[f32]| {
                    let (mut gate, up) = (row[..WIDTH].to_vec(), &row[WIDTH..]);
                    activate_and_multiply(&mut gate, up, activation);
                    gate
                };
                x.chunks_exact(2 * WIDTH).flat_map(of_row).collect()
            } else {
                let mut expected = x[..ROWS * WIDTH].to_vec();
                activate(&mut expected, activation);
                expected
            };
            let uniforms = ActivateUniforms {
                quads: (WIDTH / QUAD) as u32,
                gated: u32::from(gated),
                activation: number as u32,
                unused: 0,
            };
            let call = Call {
                rows: ROWS as u32,
                ..Call::zeroed()
            };
            let out = trial.buffer(&vec![f32::NAN; ROWS * WIDTH])?;
            let found = trial.run(&call, &uniforms, &[&input, &out], 1, groups)?;
            let case = format!(
                "{activation:?} {} a gate",
                if gated { "with" } else { "without" }
            );
            ensure!(near(&case, &found[0], &expected, |index| TOLERANCE
                * (1.0 + expected[index].abs())));
        }
    }
    Ok(Ok(()))
}
