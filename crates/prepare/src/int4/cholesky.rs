//! The Cholesky factorization of large matrices, by blocks.

use triad_engine::Cancel;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::{Matrix, OutputMut, Phase, matmul};

use crate::error::Result;

/// Columns that are factored together.
const BLOCK: usize = 128;
/// Rows of a product that is subtracted.
const STRIP: usize = 512;

/// Replaces the lower triangle of the symmetric `matrix[size, size]` by L with L · Lᵀ = matrix, on the threads of the
/// installed pool, which change no bit. The upper triangle is not read. Returns whether the matrix is positive definite as
/// far as f32 can tell; if not, its content is undefined.
///
/// # Errors
/// If `cancel` is set.
pub(super) fn factor(matrix: &mut [f32], size: usize, cancel: &Cancel) -> Result<bool> {
    assert_eq!(matrix.len(), size * size, "[size, size]");
    let (mut transposed, mut panel) = (Vec::new(), Vec::new());
    let mut products = Vec::new();
    for first in (0..size).step_by(BLOCK) {
        cancel.check()?;
        let last = (first + BLOCK).min(size);
        let columns = last - first;
        let (above, below) = matrix.split_at_mut(last * size);
        let diagonal = &mut above[first * size..];
        if !factor_small(diagonal, size, first, columns) {
            return Ok(false);
        }
        transposed.clear();
        transposed.resize(columns * columns, 0.0);
        for (index, row) in diagonal.chunks_exact(size).take(columns).enumerate() {
            for (column, value) in row[first..=first + index].iter().enumerate() {
                transposed[column * columns + index] = *value;
            }
        }
        for_each_chunk(chunks_mut(below, size), 8, |_, row| {
            solve(&transposed, &mut row[first..last]);
        });

        // The rest of the matrix loses the product of the panel below the block with itself.
        panel.clear();
        for row in below.chunks_exact(size) {
            panel.extend_from_slice(&row[first..last]);
        }
        let rows = size - last;
        for start in (0..rows).step_by(STRIP) {
            let end = (start + STRIP).min(rows);
            products.resize((end - start) * end, 0.0);
            matmul(
                &panel[start * columns..end * columns],
                Matrix::F32(&panel[..end * columns]),
                None,
                Phase::Prefill,
                OutputMut::new(&mut products, end),
            );
            let rest = below[start * size..].chunks_exact_mut(size);
            for (row, products) in rest.zip(products.chunks_exact(end)) {
                for (value, product) in row[last..].iter_mut().zip(products) {
                    *value -= product;
                }
            }
        }
    }
    Ok(true)
}

/// Factors the square of `columns` columns from `first` on, in rows of `size` numbers.
fn factor_small(rows: &mut [f32], size: usize, first: usize, columns: usize) -> bool {
    for row in 0..columns {
        let (before, current) = rows.split_at_mut(row * size);
        let current = &mut current[first..=first + row];
        for column in 0..row {
            let factored = &before[column * size + first..][..=column];
            let known: f32 = factored
                .iter()
                .zip(&*current)
                .take(column)
                .map(|(l, x)| l * x)
                .sum();
            current[column] = (current[column] - known) / factored[column];
        }
        let known: f32 = current[..row].iter().map(|x| x * x).sum();
        let pivot = current[row] - known;
        // Also false for NaN.
        let is_positive = pivot > 0.0 && pivot.is_finite();
        if !is_positive {
            return false;
        }
        current[row] = pivot.sqrt();
    }
    true
}

/// Replaces `x` by the solution y of y · Lᵀ = x, where `transposed` is Lᵀ.
fn solve(transposed: &[f32], x: &mut [f32]) {
    for (column, row) in transposed.chunks_exact(x.len()).enumerate() {
        x[column] /= row[column];
        let known = x[column];
        for (x, l) in x[column + 1..].iter_mut().zip(&row[column + 1..]) {
            *x -= known * l;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_times_its_transpose_is_the_matrix() {
        for size in [1, 5, 128, 300, 700] {
            let random = |i: usize| ((i * 7919 + i * i % 1009) % 997) as f32 / 997.0 - 0.5;
            let mut matrix = vec![0.0; size * size];
            for row in 0..size {
                for column in 0..=row {
                    let product = random(row * 31 + column) + random(column * 17 + row);
                    matrix[row * size + column] = product * 0.5 / (size as f32).sqrt();
                }
                matrix[row * size + row] += 2.0;
            }
            let mut factored = matrix.clone();
            assert!(factor(&mut factored, size, &Cancel::new()).unwrap());
            for row in 0..size {
                for column in 0..=row {
                    let (one, other) = (&factored[row * size..], &factored[column * size..]);
                    let product: f64 = (0..=column)
                        .map(|it| f64::from(one[it]) * f64::from(other[it]))
                        .sum();
                    let expected = f64::from(matrix[row * size + column]);
                    assert!(
                        (product - expected).abs() < 2e-6 * size as f64,
                        "{product} is not {expected} at {row}, {column} of {size}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_told() {
        for wrong in [-1.0, 0.0, f32::NAN, f32::INFINITY] {
            let mut matrix = vec![0.0; 200 * 200];
            (0..200).for_each(|it| matrix[it * 201] = if it == 150 { wrong } else { 1.0 });
            assert!(
                !factor(&mut matrix, 200, &Cancel::new()).unwrap(),
                "{wrong}"
            );
        }
    }
}
