//! Equivalent shapes of a graph's rows (llm.npu, §4). The same numbers can be `[rows, features]` or `[lines, columns,
//! features]`, and a device may be faster on one of them.

use crate::error::{Error, Result};

/// Arrangement of a graph's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowShapes {
    /// `[rows, features]`.
    Flat,
    /// `[lines, rows / lines, features]`; holds the number of lines.
    Lines(usize),
    /// Flat, and in lines as close to a square as the number of rows permits. Each shape is built and timed, and the
    /// fastest is kept.
    Fastest,
}

/// Maximum number of shapes in lines that are tried. Each costs a compilation.
const MAX_TRIED: usize = 3;

impl RowShapes {
    /// Returns the shapes of `rows` rows, without features: one shape, or several to try, the flat one first.
    ///
    /// # Errors
    /// If the lines don't divide the rows.
    pub(super) fn shapes(self, rows: usize) -> Result<Vec<Vec<usize>>> {
        let in_lines = |lines: usize| vec![lines, rows / lines];
        match self {
            Self::Flat => Ok(vec![vec![rows]]),
            Self::Lines(lines) if lines > 0 && rows.is_multiple_of(lines) => {
                Ok(vec![in_lines(lines)])
            }
            Self::Lines(lines) => Err(Error::Subgraph {
                part: "lines of the rows".to_owned(),
                found: lines.to_string(),
                expected: format!("a divisor of {rows} rows"),
            }),
            Self::Fastest => {
                let divisors = (2..=rows.isqrt())
                    .rev()
                    .filter(|lines| rows.is_multiple_of(*lines));
                Ok([vec![rows]]
                    .into_iter()
                    .chain(divisors.take(MAX_TRIED).map(in_lines))
                    .collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_of_the_flat_shape_and_those_near_a_square() {
        let tried = |rows: usize| RowShapes::Fastest.shapes(rows).unwrap();
        assert_eq!(
            tried(1024),
            [vec![1024], vec![32, 32], vec![16, 64], vec![8, 128]]
        );
        assert_eq!(tried(12), [vec![12], vec![3, 4], vec![2, 6]]);
        assert_eq!((tried(7), tried(1)), (vec![vec![7]], vec![vec![1]]));
    }

    #[test]
    fn lines_divide_the_rows() {
        assert_eq!(RowShapes::Lines(4).shapes(12).unwrap(), [[4, 3]]);
        for lines in [0, 5] {
            let error = RowShapes::Lines(lines).shapes(12).unwrap_err().to_string();
            let expected = format!(
                "lines of the rows of the subgraph: {lines}, expected a divisor of 12 rows"
            );
            assert_eq!(error, expected);
        }
    }
}
