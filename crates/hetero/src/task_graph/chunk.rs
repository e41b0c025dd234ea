//! One chunk of prompts, subgraph by subgraph.

use triad_engine::Result;
use triad_engine::forward::{Chunk, ForwardContext, MatmulContext};
use triad_engine::linear::{Backend, Shadows};
use triad_plan::graph::{Graph, Subgraph};
use triad_plan::tasks::{Operation, PrefillTask, PrefillTasks, Shadow};

use super::{ChunkBuffers, Progress};

/// A chunk with all that its subgraphs need.
pub(crate) struct ChunkRun<'a> {
    pub(crate) pass: ForwardContext<'a>,
    pub(crate) graph: &'a Graph,
    pub(crate) tokens: &'a [u32],
    pub(crate) chunk: Chunk<'a>,
    pub(crate) shadows: &'a [Option<Shadow>],
}

impl ChunkRun<'_> {
    /// Runs one task of the next subgraph; other workers may run other tasks of it concurrently.
    pub(crate) fn task(
        &self,
        slot: &ChunkBuffers,
        (number, tasks): (usize, &PrefillTasks),
        backend: &mut dyn Backend,
    ) -> Result<()> {
        let PrefillTask {
            task,
            operation,
            part,
        } = &tasks.tasks[number];
        let Subgraph { block, role, .. } = self.graph.subgraphs()[task.subgraph];
        let is_apart = self.shadows.get(task.subgraph).is_some_and(Option::is_some);
        let shadows = if is_apart {
            Shadows::Apart
        } else {
            Shadows::Inline
        };
        let mut multiplier = MatmulContext {
            shadows,
            ..MatmulContext::new(backend)
        };
        match operation {
            Operation::Compute if role.is_product() => {
                let part = (part.rows.clone(), part.columns.clone());
                self.pass
                    .products((block, role), self.chunk, &part, &mut multiplier)?;
            }
            Operation::Compute => {
                let mut progress = slot.progress();
                // Until the task ends, the contents of the buffers are unknown.
                if progress.done.take().is_none() {
                    self.pass.begin(self.tokens, self.chunk);
                }
                self.pass
                    .subgraph(block, role, self.chunk, &mut multiplier)?;
                progress.done = Some(task.subgraph);
            }
            Operation::Shadow => self.pass.shadow(block, role, self.chunk),
        }
        let mut progress = slot.progress();
        progress.pieces.push(number);
        if progress.pieces.len() == tasks.pieces(task.chunk, task.subgraph).len() {
            self.complete(&mut progress, task.subgraph);
        }
        Ok(())
    }

    /// Runs all whole subgraphs that the buffers lack, up to `subgraph`: results of lost processors are missing.
    pub(super) fn catch_up(
        &self,
        progress: &mut Progress,
        subgraph: usize,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        debug_assert!(
            progress.pieces.is_empty(),
            "only the next subgraph has pieces"
        );
        let done = progress.done.take();
        if done.is_none() {
            self.pass.begin(self.tokens, self.chunk);
        }
        let mut multiplier = MatmulContext::new(backend);
        for Subgraph { block, role, .. } in &self.graph.subgraphs()[done.unwrap_or(0)..=subgraph] {
            self.pass
                .subgraph(*block, *role, self.chunk, &mut multiplier)?;
        }
        self.complete(progress, subgraph);
        Ok(())
    }

    /// Records that a subgraph is complete in the buffers.
    pub(super) fn complete(&self, progress: &mut Progress, subgraph: usize) {
        progress.pieces.clear();
        progress.done = None;
        if subgraph + 1 == self.graph.subgraphs().len() {
            self.pass.end(self.chunk);
        }
        progress.done = Some(subgraph + 1);
    }
}
