//! A GPU model as a device's program. Sequences are identified by number.

use std::collections::HashMap;

use triad_kernels::Phase;
use triad_kernels::attention::Cache;

use super::gpu_model::{GpuModel, GpuSegment};
use super::pages::GpuSequence;
use crate::error::{Error, Result};
use crate::model::{JoinStatistics, JoinTimes, ModelOperations, ModelProgram, OutputRows, Outputs};
use crate::multiplier::ProductPart;

/// A model and its sequences.
#[derive(Debug)]
pub(crate) struct GpuModelProgram {
    model: GpuModel,
    sequences: HashMap<u64, GpuSequence>,
}

impl GpuModelProgram {
    pub fn new(model: GpuModel) -> Self {
        Self {
            model,
            sequences: HashMap::new(),
        }
    }

    fn sequence(&mut self, number: u64) -> &mut GpuSequence {
        self.sequences
            .entry(number)
            .or_insert_with(|| self.model.sequence())
    }
}

impl ModelProgram for GpuModelProgram {
    fn length(&self, sequence: u64) -> usize {
        self.sequences.get(&sequence).map_or(0, GpuSequence::length)
    }

    fn truncate(&mut self, sequence: u64, length: usize) {
        if length == 0 {
            self.sequences.remove(&sequence);
        } else if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.truncate(length);
        }
    }

    fn fill(&mut self, sequence: u64, length: usize, blocks: &[&dyn Cache]) -> Result<()> {
        self.sequence(sequence).fill(length, blocks)
    }

    fn forward(
        &mut self,
        x: &[f32],
        segments: &[(u64, usize)],
        wanted: &OutputRows,
        read: &mut dyn FnMut(Outputs),
    ) -> Result<()> {
        let is_twice = |index: usize| {
            segments[..index]
                .iter()
                .any(|other| other.0 == segments[index].0)
        };
        if let Some(index) = (0..segments.len()).find(|index| is_twice(*index)) {
            let reason = format!("sequence {} is in a chunk twice", segments[index].0);
            return Err(Error::GpuModel {
                gpu: self.model.name().to_owned(),
                reason,
            });
        }
        // Takes the sequences out of the table while they run. They are put back on success and on failure.
        let mut taken: Vec<_> = segments
            .iter()
            .map(|(number, _)| {
                self.sequences
                    .remove(number)
                    .unwrap_or_else(|| self.model.sequence())
            })
            .collect();
        let mut running: Vec<_> = taken
            .iter_mut()
            .zip(segments)
            .map(|(sequence, (_, rows))| GpuSegment {
                sequence,
                rows: *rows,
            })
            .collect();
        let outcome = self.model.forward(x, &mut running, wanted, read);
        self.sequences
            .extend(segments.iter().map(|(number, _)| *number).zip(taken));
        outcome
    }

    fn logits(&mut self, x: &[f32], phase: Phase, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.model.logits(x, phase, read)
    }

    fn operations(&self) -> Option<ModelOperations> {
        Some(self.model.operations())
    }

    fn joins(&self) -> Option<JoinStatistics> {
        let joins = self.model.joins();
        (joins.products > 0).then_some(joins)
    }

    fn time_part(&mut self, product: usize, part: &ProductPart) -> Result<Option<f64>> {
        self.model.time_part(product, part).map(Some)
    }

    fn time_join(&mut self, product: usize, part: &ProductPart) -> Result<Option<JoinTimes>> {
        self.model.time_join(product, part).map(Some)
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.model.take_failure()
    }

    fn retry(&mut self) {
        self.model.retry();
    }
}
