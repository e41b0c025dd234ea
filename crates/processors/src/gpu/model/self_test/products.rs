//! Self-test of small float matmuls with weights of each format. The reference sums in f64.

use bytemuck::Zeroable;
use half::{bf16, f16};
use triad_kernels::Matrix;
use triad_kernels::int4::{self, quantize_int4};
use triad_kernels::int8::quantize_weight_rows;

use super::super::Call;
use super::super::kernels::Kernel;
use super::super::uniforms::{NONE, ProductUniforms};
use super::super::variant::ModelVariant;
use super::super::weight_format::{UNIT, WeightFormat};
use super::super::weights::{Layer, upload};
use super::{Checked, Trial, ensure, near, numbers};

/// Not a multiple of any tile, and more than the largest tile.
const COLUMNS: usize = 70;
/// First column of the results in a row of the output, which is wider.
const FIRST: usize = 3;
const STRIDE: usize = COLUMNS + 5;
/// Features: whole INT4 groups, but not a whole number of a workgroup's steps.
const FEATURES: usize = 3 * int4::GROUP;
/// Scale of every fourth row of the weight, below the normal f16 numbers.
const TINY: f32 = 3.8e-6;

/// A case: how rows are read and how sums are written.
struct Case {
    name: &'static str,
    /// Whether only the rows whose logits are requested are computed.
    of_outputs: bool,
    /// Whether the bias and the previous output are added.
    adds: bool,
}

/// Tests matmuls with as many rows as the kernel is for.
pub(super) fn check(trial: &mut Trial, format: WeightFormat) -> Checked {
    let (rows, groups) = trial.product(COLUMNS);
    let weight = Weight::new(format);
    let x = numbers(rows * FEATURES, 7);
    for case in [
        Case {
            name: "added to bias and output",
            of_outputs: false,
            adds: true,
        },
        Case {
            name: "of the wanted rows",
            of_outputs: true,
            adds: false,
        },
    ] {
        ensure!(check_case(trial, &case, &weight, &x, groups)?);
    }
    Ok(Ok(()))
}

fn check_case(
    trial: &mut Trial,
    case: &Case,
    weight: &Weight,
    x: &[f32],
    groups: [usize; 3],
) -> Checked {
    let Case {
        name,
        of_outputs,
        adds,
    } = *case;
    let rows = x.len() / FEATURES;
    let of_columns = |seed, rows: usize| {
        let numbers = numbers(rows * STRIDE, seed).into_iter().enumerate();
        numbers
            .map(|(index, number)| number * size((index % STRIDE).wrapping_sub(FIRST)))
            .collect::<Vec<_>>()
    };
    let (bias, before) = (of_columns(8, 1), of_columns(9, rows));
    // Kernels for few rows multiply in f32 in every variant.
    let variant = match trial.kernel {
        Kernel::Tile(_) => trial.pipelines.variant,
        _ => ModelVariant::ALL[0],
    };
    let (mut expected, mut tolerances) = (before.clone(), vec![0.0; before.len()]);
    for column in 0..COLUMNS {
        let w = weight.row(column);
        for row in 0..rows {
            let index = row * STRIDE + FIRST + column;
            let pairs = x[row * FEATURES..][..FEATURES].iter().zip(&w);
            let added = [bias[FIRST + column], before[index]]
                .into_iter()
                .filter(|_| adds);
            let terms = pairs.map(|(x, w)| (x * w, variant.tolerance(*x, *w)));
            let terms = terms.chain(added.map(|term| (term, variant.tolerance(1.0, 1.0))));
            expected[index] = terms.clone().map(|(term, _)| f64::from(term)).sum::<f64>() as f32;
            tolerances[index] = terms.map(|(term, tolerance)| tolerance * term.abs()).sum();
        }
    }
    let uniforms = ProductUniforms {
        units: (FEATURES / UNIT) as u32,
        columns: COLUMNS as u32,
        first: FIRST as u32,
        stride: STRIDE as u32,
        bias_at: if adds { FIRST as u32 } else { NONE },
        adds: u32::from(adds),
        of_outputs: u32::from(of_outputs),
        scales_at: 0,
    };
    let (all, outputs) = if of_outputs { (0, rows) } else { (rows, 0) };
    let call = Call {
        rows: all as u32,
        outputs: outputs as u32,
        ..Call::zeroed()
    };
    let slabs = upload(trial.context, &[Layer::Float(weight.matrix())], FEATURES)?;
    let [slab] = &slabs[..] else {
        unreachable!("a small weight is in one part")
    };
    let [input, parameters, out] = [x, &bias, &before].map(|values| trial.buffer(values));
    let buffers = [&input?, &slab.weight, &slab.scales, &parameters?, &out?];
    let found = trial.run(&call, &uniforms, &buffers, 1, groups)?;
    Ok(near(name, &found[0], &expected, |index| tolerances[index]))
}

/// Returns the magnitude of the weights of a row.
fn size(row: usize) -> f32 {
    if row % 4 == 3 { TINY } else { 1.0 }
}

/// A weight `[COLUMNS, FEATURES]`.
enum Weight {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Int8(Vec<i8>, Vec<f32>),
    Int4(Vec<u8>, Vec<f16>),
}

impl Weight {
    fn new(format: WeightFormat) -> Self {
        let count = COLUMNS * FEATURES;
        let values: Vec<_> = numbers(count, 3)
            .into_iter()
            .enumerate()
            .map(|(index, x)| x * size(index / FEATURES))
            .collect();
        match format {
            WeightFormat::F32 => Self::F32(values),
            WeightFormat::F16 => Self::F16(values.into_iter().map(f16::from_f32).collect()),
            WeightFormat::Bf16 => Self::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            WeightFormat::Int8 => {
                let (mut numbers, mut scales) = (vec![0; count], vec![0.0; COLUMNS]);
                quantize_weight_rows(&values, FEATURES, &mut scales, &mut numbers);
                Self::Int8(numbers, scales)
            }
            WeightFormat::Int4 => {
                let (mut numbers, mut scales) =
                    (vec![0; count / 2], vec![f16::ZERO; count / int4::GROUP]);
                quantize_int4(&values, &mut numbers, &mut scales);
                Self::Int4(numbers, scales)
            }
            WeightFormat::W8a8 => unreachable!("its products are checked by themselves"),
        }
    }

    fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::F32(values) => Matrix::F32(values),
            Self::F16(values) => Matrix::F16(values),
            Self::Bf16(values) => Matrix::Bf16(values),
            Self::Int8(values, scales) => Matrix::Int8 { values, scales },
            Self::Int4(values, scales) => Matrix::Int4 { values, scales },
        }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let mut wide = vec![0.0; FEATURES];
        self.matrix().widen_row(row, &mut wide);
        wide
    }
}
