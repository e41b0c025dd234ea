//! A self-test: shows that a compiled graph multiplies by the weights of a subgraph.
//!
//! Graphs that this process compiled come from its own weights. A graph that another machine compiled has to show that
//! it has the same: a run on a few rows of arbitrary numbers is compared with exact sums. One unit of the output is
//! allowed, twice what the emulator needs, since another version of the device may round in another way.

use ort::session::Session;
use ort::value::{Shape, TensorElementType, TensorRef};
use triad_kernels::int8::unpack;

use super::graph::{INPUT, ZERO, output};
use super::sums::{MIDDLE, shifts};
use crate::subgraph::DeviceSubgraph;

/// Rows of numbers; other rows are zero.
const ROWS: usize = 2;

/// Compares a run of the graph of `session`, compiled for `rows` rows, with exact sums. `prefix` precedes the names of its
/// tensors.
///
/// # Errors
/// The first difference.
pub(super) fn check(
    session: &mut Session,
    subgraph: &DeviceSubgraph,
    (rows, prefix): (usize, &str),
) -> Result<(), String> {
    let name = prefix.to_owned() + INPUT;
    let in_features = subgraph.in_features();
    let shape = Shape::new([rows as i64, in_features as i64]);
    let is_input = session.inputs().iter().any(|input| {
        let dtype = input.dtype();
        input.name() == name
            && dtype.tensor_type() == Some(TensorElementType::Uint16)
            && dtype.tensor_shape() == Some(&shape)
    });
    if !is_input {
        return Err(format!(
            "expected an input {name} of {rows} by {in_features} numbers in 16 bits"
        ));
    }
    let input = numbers(rows.min(ROWS) * in_features);
    let mut codes = vec![MIDDLE; rows * in_features];
    for (code, number) in codes.iter_mut().zip(&input) {
        *code = u16::from(number.cast_unsigned() ^ ZERO) << 8;
    }
    let x = TensorRef::from_array_view((shape, &codes[..])).map_err(|error| error.to_string())?;
    let values = session
        .run(ort::inputs![name.as_str() => x])
        .map_err(|error| error.to_string())?;
    for (index, (layer_name, layer)) in subgraph.layers().enumerate() {
        let weight = layer.weight();
        let output = prefix.to_owned() + &output(index);
        let value = values
            .get(&output)
            .ok_or_else(|| format!("it has no output {output}"))?;
        let (_, found) = value
            .try_extract_tensor::<u16>()
            .map_err(|error| error.to_string())?;
        let mut row_major = vec![0; weight.out_features * weight.in_features];
        unpack(weight, &mut row_major);
        let shifts = shifts(&layer_name, weight).map_err(|error| error.to_string())?;
        compare(found, rows, &input, (&row_major, &shifts))
            .map_err(|difference| format!("output {output}{difference}"))?;
    }
    Ok(())
}

/// Compares rounded sums `[rows, columns]` with those of the first rows, of which `input` has the numbers, and zeros.
fn compare(
    found: &[u16],
    rows: usize,
    input: &[i8],
    (row_major, shifts): (&[i8], &[u32]),
) -> Result<(), String> {
    let columns = shifts.len();
    if found.len() != rows * columns {
        let found = found.len();
        return Err(format!(
            " has {found} numbers, expected {rows} by {columns}"
        ));
    }
    let in_features = row_major.len() / columns.max(1);
    for (row, found) in found.chunks_exact(columns.max(1)).enumerate() {
        let input = input.chunks_exact(in_features.max(1)).nth(row);
        let weights = row_major.chunks_exact(in_features.max(1));
        for (column, ((code, weights), shift)) in found.iter().zip(weights).zip(shifts).enumerate()
        {
            let product = |(x, w): (&i8, &i8)| i64::from(i32::from(*x) * i32::from(*w));
            let sum: i64 = input.map_or(0, |input| input.iter().zip(weights).map(product).sum());
            let rounded = (i64::from(*code) - i64::from(MIDDLE)) << shift;
            if (rounded - sum).abs() > 1 << shift {
                return Err(format!(
                    "[{row}, {column}] is {rounded}, expected {sum} ± {}",
                    1u64 << shift
                ));
            }
        }
    }
    Ok(())
}

/// Returns arbitrary numbers from −127 to 127, the same ones in each run.
fn numbers(count: usize) -> Vec<i8> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state % 255) as u8
    };
    std::iter::repeat_with(next)
        .take(count)
        .map(|number| number.wrapping_sub(127).cast_signed())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 3;
    const FEATURES: usize = 40;
    const SHIFTS: [u32; COLUMNS] = [4, 5, 6];

    fn weights() -> Vec<i8> {
        numbers(COLUMNS * FEATURES).into_iter().rev().collect()
    }

    /// Returns the rounded sums of rows of `input`, and of one row of zeros.
    fn rounded(input: &[i8], weights: &[i8]) -> Vec<u16> {
        let sum = |row: &[i8], column: usize| {
            let weights = &weights[column * FEATURES..][..FEATURES];
            let products = row
                .iter()
                .zip(weights)
                .map(|(x, w)| f64::from(*x) * f64::from(*w));
            products.sum::<f64>() / f64::from(1u32 << SHIFTS[column])
        };
        let zeros = [0; FEATURES];
        let rows = input.chunks_exact(FEATURES).chain([&zeros[..]]);
        rows.flat_map(|row| (0..COLUMNS).map(move |column| sum(row, column)))
            .map(|sum| (sum.round() + f64::from(MIDDLE)) as u16)
            .collect()
    }

    #[test]
    fn sums_that_are_rounded_pass_and_other_weights_rows_and_lengths_do_not() {
        let (weights, input) = (weights(), numbers(ROWS * FEATURES));
        let found = rounded(&input, &weights);
        let check = |found: &[u16]| compare(found, ROWS + 1, &input, (&weights, &SHIFTS));
        assert_eq!(check(&found), Ok(()));
        for index in 0..found.len() {
            for difference in [2, -2i16] {
                let mut other = found.clone();
                other[index] = other[index].wrapping_add_signed(difference);
                assert!(check(&other).is_err(), "{index}");
            }
        }
        assert!(check(&found[1..]).is_err());
        // Columns in another order, and weights of another layer.
        let mut turned = weights.clone();
        turned.rotate_left(FEATURES);
        assert!(check(&rounded(&input, &turned)).is_err());
        assert!(check(&rounded(&input, &numbers(COLUMNS * FEATURES))).is_err());
    }

    #[test]
    fn numbers_have_all_values_that_an_input_may_have() {
        let numbers = numbers(1 << 14);
        let mut found: Vec<_> = numbers.clone();
        found.sort_unstable();
        found.dedup();
        assert_eq!((found.len(), found[0], found[254]), (255, -127, 127));
    }
}
