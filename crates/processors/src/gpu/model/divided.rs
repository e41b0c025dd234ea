//! A product that a GPU and another processor compute together.

use std::ops::Range;

use super::item::PieceDispatch;
use super::outer_worker::JobPart;
use crate::multiplier::ProductPart;

/// A product, divided for a number of rows.
#[derive(Debug)]
pub(super) struct Divided {
    /// Matmuls of the GPU's parts.
    pub own: Vec<PieceDispatch>,
    /// Joins of the other processor's parts.
    pub joins: Vec<PieceDispatch>,
    /// Rows of the input that the other processor reads.
    pub read: Range<usize>,
    /// Parts of the other processor.
    pub other: Vec<ProductPart>,
    /// The program of each of these parts.
    pub programs: Vec<usize>,
    /// The columns of each of its layers in each of these parts.
    pub widths: Vec<Vec<usize>>,
    /// Multiplications and additions of the GPU, and of the other processor.
    pub operations: (f64, f64),
}

impl Divided {
    /// Returns the parts of the other processor, with rows counted from the first one that it reads.
    pub fn job_parts(&self) -> Vec<JobPart> {
        let parts = self.other.iter().zip(&self.programs).zip(&self.widths);
        let job = parts.map(|((part, program), widths)| JobPart {
            program: *program,
            rows: part.rows.start - self.read.start..part.rows.end - self.read.start,
            widths: widths.clone(),
        });
        job.collect()
    }

    /// Returns the number of outputs of the other processor.
    pub fn outputs(&self) -> usize {
        let areas = self
            .other
            .iter()
            .map(|part| part.rows.len() * part.columns.len());
        areas.sum()
    }
}
