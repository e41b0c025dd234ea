//! A processor that multiplies for a device that runs the rest of a model.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use triad_model::description::Linear;

use crate::program::Program;

/// A processor that multiplies for a device that runs the rest of a model: parts of its products in INT8, in prompts
/// ([`Phase::Prefill`](triad_kernels::Phase)).
#[derive(Debug, Default)]
pub struct Multiplier {
    /// Its name, for errors.
    pub name: String,
    /// Time after which a product counts as hung. The device then computes the chunk alone.
    pub time_out: Duration,
    /// How the device waits for it.
    pub wait: ProductWait,
    /// The products of which it computes parts.
    pub products: Vec<ProductPrograms>,
}

/// How a device that runs a model waits for the processor that multiplies for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductWait {
    /// The thread blocks until it is woken.
    Blocking,
    /// The thread sleeps for most of the expected time, and then polls a flag (HeteroLLM, §4.2).
    #[default]
    Flag,
}

/// The programs of another processor for a product: of layers of a block that read one input in INT8. They add biases and
/// no shadows.
pub struct ProductPrograms {
    /// Index of the block.
    pub block: usize,
    /// All layers that read the input, in the order query, key, value, or gate, up. Their outputs are concatenated.
    pub layers: Vec<Linear>,
    /// The programs.
    pub programs: Vec<ColumnsProgram>,
    /// Returns how the outputs of a number of rows are divided. The parts cover the outputs without overlap.
    pub division: Division,
}

/// Divides the outputs of a product of some rows.
pub type Division = Box<dyn Fn(usize) -> Vec<ProductPart> + Send + Sync>;

/// A part of the outputs of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductPart {
    /// Rows of the chunk.
    pub rows: Range<usize>,
    /// Columns of the concatenated outputs.
    pub columns: Range<usize>,
    /// Whether the other processor computes it, or the device that runs the model.
    pub by_other: bool,
}

/// A program for some columns of a product.
pub struct ColumnsProgram {
    /// Columns of the concatenated outputs.
    pub columns: Range<usize>,
    /// Maximum rows.
    pub rows: usize,
    /// The program. It has an output for each layer that has some of the columns.
    pub program: Box<dyn Program>,
}

impl fmt::Debug for ProductPrograms {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            block,
            layers,
            programs,
            ..
        } = self;
        f.debug_struct("ProductPrograms")
            .field("block", block)
            .field("layers", layers)
            .field("programs", programs)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ColumnsProgram {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { columns, rows, .. } = self;
        write!(f, "columns {columns:?} of {rows} rows")
    }
}

/// Returns whether parts cover outputs of `rows` by `columns` without overlap.
#[cfg(any(test, feature = "gpu"))]
pub(crate) fn covers(parts: &[ProductPart], rows: usize, columns: usize) -> bool {
    let overlap =
        |one: &Range<usize>, other: &Range<usize>| one.start < other.end && other.start < one.end;
    let is_apart = |(index, part): (usize, &ProductPart)| {
        let mut before = parts[..index].iter();
        !before
            .any(|other| overlap(&part.rows, &other.rows) && overlap(&part.columns, &other.columns))
    };
    let is_within = |part: &ProductPart| {
        part.rows.end <= rows
            && part.columns.end <= columns
            && !part.rows.is_empty()
            && !part.columns.is_empty()
    };
    let areas = parts
        .iter()
        .map(|part| part.rows.len() * part.columns.len());
    parts.iter().all(is_within)
        && parts.iter().enumerate().all(is_apart)
        && areas.sum::<usize>() == rows * columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_outputs_once() {
        let part = |rows: Range<usize>, columns: Range<usize>| ProductPart {
            rows,
            columns,
            by_other: false,
        };
        let parts = vec![part(0..4, 0..16), part(0..4, 16..48), part(4..5, 0..48)];
        assert!(covers(&parts, 5, 48));
        assert!(!covers(&parts, 6, 48));
        assert!(!covers(&parts[..2], 5, 48));
        assert!(!covers(&[part(0..5, 0..32), part(0..5, 16..32)], 5, 48));
    }
}
