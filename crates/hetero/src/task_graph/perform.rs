//! Computes the tasks of a batch.

use std::ops::Range;
use std::sync::Arc;

use triad_engine::Result;
use triad_engine::executor::step_logits;
use triad_engine::forward::{Chunk, ForwardContext, MatmulContext};
use triad_engine::linear::{Backend, CpuBackend};
use triad_kernels::activation::soft_cap;
use triad_kernels::{Phase, lock};
use triad_model::role::Role;
use triad_plan::tasks::{PrefillTask, PrefillTasks};

use super::chunk::ChunkRun;
use super::{ChunkBuffers, PendingLogits, Prompts, Step, TaskGraph, Work};
use crate::machine::Machine;
use crate::steps::CutStep;
use crate::whole::{Rows, WholeModel};

impl TaskGraph {
    /// Runs a task, and after a failure all that its buffers lack. Returns the rows whose logits are computed next.
    ///
    /// # Errors
    /// If a device or a layer fails.
    pub(crate) fn perform(
        &self,
        shared: &Machine,
        number: usize,
        slot: Option<&ChunkBuffers>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<PendingLogits>> {
        match (&self.work, slot) {
            (Work::Prompts(prompts), Some(slot)) => {
                self.prompt_task(shared, prompts, number, slot, backend)
            }
            (Work::Step(Step::Blocks { tasks, .. }), Some(slot)) => {
                self.step(shared, number, *tasks, slot).map(|()| Vec::new())
            }
            (Work::Step(Step::Cut(cut)), Some(slot)) => self
                .cut_step(shared, cut, number, slot, backend)
                .map(|()| Vec::new()),
            (Work::Logits(hidden), _) => {
                logits(shared, hidden, |pass, x| {
                    let rows = x.len() / pass.description.hidden;
                    let mut logits = vec![0.0; rows * pass.description.vocab];
                    pass.logits_of(x, &mut vec![0.0; x.len()], pass.phase, &mut logits);
                    Ok(logits)
                })?;
                Ok(Vec::new())
            }
            (_, None) => unreachable!("prompts and steps have slots"),
        }
    }

    /// As [`TaskGraph::perform`], on a device that runs the model whole: the last task of a chunk runs the chunk, the others
    /// do nothing.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn perform_whole(
        &self,
        shared: &Machine,
        number: usize,
        whole: &WholeModel,
    ) -> Result<Vec<PendingLogits>> {
        match &self.work {
            Work::Prompts(prompts) => {
                let Prompts { graph, tasks, .. } = &**prompts;
                let task = tasks.tasks[number].task;
                let is_last = task.subgraph + 1 == graph.subgraphs().len();
                let rows = graph.chunks()[task.chunk].clone();
                let batch = self.batch();
                if !is_last || batch.is_cancelled(&rows) {
                    return Ok(Vec::new());
                }
                if task.chunk == 0 {
                    whole.retry();
                }
                let parts: Vec<_> = batch
                    .parts_in(&rows)
                    .map(|(request, own)| Rows::new(request, own))
                    .collect();
                let pass = shared.forward.context(Phase::Prefill);
                let values = whole.run(&pass, &parts, false)?;
                let (mut values, mut all) = (&values[..], Vec::new());
                for ((request, own), part) in batch.parts_in(&rows).zip(parts) {
                    let x = values.split_off(..part.wanted.len() * pass.description.hidden);
                    let x = x.expect("values of all requests").to_vec();
                    if !part.wanted.is_empty() && !request.is_cancelled() {
                        let first = own.start + part.wanted.start - request.wanted_rows().start;
                        let rows = first..first + part.wanted.len();
                        all.push(PendingLogits {
                            request: Arc::clone(request),
                            rows,
                            x,
                        });
                    }
                }
                Ok(all)
            }
            Work::Step(_) => {
                let batch = self.batch();
                let parts: Vec<_> = batch
                    .parts_in(&(0..batch.rows()))
                    .map(|(request, own)| Rows::new(request, own))
                    .collect();
                let pass = shared.forward.context(Phase::Decode);
                let mut logits = whole.run(&pass, &parts, true)?;
                if let Some(cap) = pass.description.logit_soft_cap {
                    soft_cap(&mut logits, cap);
                }
                self.write_logits(&logits, pass.description.vocab);
                Ok(Vec::new())
            }
            Work::Logits(hidden) => {
                logits(shared, hidden, |pass, x| {
                    let mut logits = whole.logits(pass, x)?;
                    if let Some(cap) = pass.description.logit_soft_cap {
                        soft_cap(&mut logits, cap);
                    }
                    Ok(logits)
                })?;
                Ok(Vec::new())
            }
        }
    }

    pub(crate) fn prompt_task(
        &self,
        shared: &Machine,
        prompts: &Prompts,
        number: usize,
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<Vec<PendingLogits>> {
        let Prompts {
            graph,
            tasks,
            shadows,
            ..
        } = prompts;
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let rows = graph.chunks()[task.chunk].clone();
        let batch = self.batch();
        if batch.is_cancelled(&rows) {
            return Ok(Vec::new());
        }
        let segments = batch.segments(&rows);
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        // A processor that computes alone runs shadows after their products, with the weights of these.
        let outlier_cache = shared
            .outlier_cache
            .as_ref()
            .filter(|_| !shadows.is_empty());
        let mut pass = shared.forward.context(Phase::Prefill);
        pass.outlier_cache = outlier_cache;
        let run = ChunkRun {
            pass,
            graph,
            tokens: &batch.tokens()[rows.clone()],
            chunk,
            shadows,
        };
        if !Self::chunk_task(&run, (number, tasks), slot, backend)? {
            return Ok(Vec::new());
        }
        batch.keep_states(&rows, |rows| run.pass.hidden_states(&slot.buffers, rows));
        let hidden = run.pass.description.hidden;
        let pending = batch.wanted(&rows).map(|wanted| {
            let of_chunk = wanted.rows.start - rows.start..wanted.rows.end - rows.start;
            PendingLogits {
                request: Arc::clone(wanted.request),
                rows: wanted.of_request,
                x: slot.buffers.residual(of_chunk, hidden).to_vec(),
            }
        });
        Ok(pending.collect())
    }

    /// Runs a task of a chunk, and after a failure all that its buffers lack. Returns whether the chunk is through all
    /// blocks.
    pub(crate) fn chunk_task(
        run: &ChunkRun,
        (number, tasks): (usize, &PrefillTasks),
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        let PrefillTask { task, .. } = &tasks.tasks[number];
        let mut progress = slot.progress();
        if progress.chunk != task.chunk {
            progress.reset(task.chunk);
        }
        match progress.done {
            // Done by a worker that caught up, or that failed after it had finished the task.
            Some(done) if done > task.subgraph || progress.pieces.contains(&number) => {}
            None if task.subgraph > 0 => run.catch_up(&mut progress, task.subgraph, backend)?,
            Some(done) if done < task.subgraph => {
                run.catch_up(&mut progress, task.subgraph, backend)?;
            }
            _ => {
                drop(progress);
                run.task(slot, (number, tasks), backend)?;
                progress = slot.progress();
            }
        }
        Ok(progress.done == Some(run.graph.subgraphs().len()))
    }

    /// Runs a task of a step whose products are cut.
    pub(crate) fn cut_step(
        &self,
        shared: &Machine,
        cut: &CutStep,
        number: usize,
        slot: &ChunkBuffers,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        if self.is_abandoned() {
            return Ok(());
        }
        let CutStep {
            graph,
            tasks,
            options,
            outputs,
            ..
        } = cut;
        let segments = self.batch().segments(&(0..self.rows()));
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        let run = ChunkRun {
            pass: shared.forward.context(Phase::Decode),
            graph,
            tokens: self.batch().tokens(),
            chunk,
            shadows: &options.shadows,
        };
        let Some(output) = number.checked_sub(tasks.tasks.len()) else {
            return Self::chunk_task(&run, (number, tasks), slot, backend).map(|_| ());
        };
        let last = graph.subgraphs().len() - 1;
        let mut progress = slot.progress();
        if progress.done != Some(last + 1) {
            run.catch_up(&mut progress, last, backend)?;
        }
        drop(progress);
        if output == 0 {
            let rows = 0..self.rows();
            let states = |rows| run.pass.hidden_states(&slot.buffers, rows);
            self.batch().keep_states(&rows, states);
        }
        self.output_part(&run.pass, &outputs[output], slot);
        Ok(())
    }

    /// Computes the logits of some tokens of the vocabulary.
    pub(crate) fn output_part(
        &self,
        pass: &ForwardContext,
        columns: &Range<usize>,
        slot: &ChunkBuffers,
    ) {
        let (hidden, vocab) = (pass.description.hidden, pass.description.vocab);
        let (batch, mut first) = (self.batch(), 0);
        // By request: its wanted rows, and the index of its first row in the batch.
        let rows: Vec<_> = batch
            .parts()
            .iter()
            .map(|part| {
                let of_request = (part.request.wanted_rows(), first);
                first += part.rows.len();
                of_request
            })
            .collect();
        let count: usize = rows.iter().map(|(rows, _)| rows.len()).sum();
        let mut room = lock(&slot.logits_scratch).pop().unwrap_or_default();
        // The layout: logits, the residual stream, its norm.
        let (width, x_width) = (count * columns.len(), count * hidden);
        room.resize(width + 2 * x_width, 0.0);
        let (logits, x) = room.split_at_mut(width);
        let (x, normed) = x.split_at_mut(x_width);
        let mut left = &mut x[..];
        for (rows, first) in &rows {
            let of_request = left
                .split_off_mut(..rows.len() * hidden)
                .expect("values of all requests");
            of_request.copy_from_slice(
                &slot
                    .buffers
                    .residual(first + rows.start..first + rows.end, hidden),
            );
        }
        pass.logits_part_of(x, normed, Phase::Decode, columns.clone(), logits);
        let mut left = &logits[..];
        for part in batch.parts() {
            let request = &part.request;
            let rows = 0..request.wanted_rows().len();
            let of_request = left
                .split_off(..rows.len() * columns.len())
                .expect("values of all requests");
            request.write_logits_part(rows, (columns, vocab), of_request);
        }
        lock(&slot.logits_scratch).push(room);
    }

    /// Runs one of `tasks` tasks of a step: some blocks, and after the last one the logits.
    pub(crate) fn step(
        &self,
        shared: &Machine,
        number: usize,
        tasks: usize,
        slot: &ChunkBuffers,
    ) -> Result<()> {
        let (pass, batch) = (shared.forward.context(Phase::Decode), self.batch());
        let segments = batch.segments(&(0..batch.rows()));
        let chunk = Chunk {
            segments: &segments,
            buffers: &slot.buffers,
        };
        let mut progress = slot.progress();
        // Until the task ends, the contents of the buffers are unknown.
        let done = progress.done.take().filter(|done| *done <= number);
        if done.is_none() {
            pass.begin(batch.tokens(), chunk);
        }
        let blocks = pass.description.blocks.len();
        let mut kernels = CpuBackend(&pass.weights.blocks);
        let mut multiplier = MatmulContext::new(&mut kernels);
        for block in done.unwrap_or(0) * blocks / tasks..(number + 1) * blocks / tasks {
            for role in Role::of_block(false) {
                pass.subgraph(block, role, chunk, &mut multiplier)?;
            }
        }
        if number + 1 == tasks {
            pass.end(chunk);
            step_logits(&pass, batch, &slot.buffers, &mut progress.logits);
        }
        progress.done = Some(number + 1);
        Ok(())
    }

    /// Copies the logits `[rows of all, vocab]` to the requests.
    pub(crate) fn write_logits(&self, mut logits: &[f32], vocab: usize) {
        for part in self.batch().parts() {
            let request = &part.request;
            let rows = request.wanted_rows().len();
            let of_request = logits
                .split_off(..rows * vocab)
                .expect("values of all requests");
            request.write_logits(0..rows, of_request);
        }
    }
}

/// Computes the logits of rows that have been through all blocks by `compute`, one batch for each arithmetic.
fn logits(
    shared: &Machine,
    hidden: &[PendingLogits],
    compute: impl Fn(&ForwardContext, &[f32]) -> Result<Vec<f32>>,
) -> Result<()> {
    for phase in [Phase::Prefill, Phase::Decode] {
        let of_phase = || {
            hidden
                .iter()
                .filter(|hidden| hidden.request.phase_of_logits() == phase)
        };
        let x: Vec<f32> = of_phase()
            .flat_map(|hidden| hidden.x.iter().copied())
            .collect();
        if x.is_empty() {
            continue;
        }
        let pass = shared.forward.context(phase);
        let vocab = pass.description.vocab;
        let logits = compute(&pass, &x)?;
        let mut logits = &logits[..];
        for PendingLogits { request, rows, .. } in of_phase() {
            let of_request = logits
                .split_off(..rows.len() * vocab)
                .expect("values of all requests");
            request.write_logits(rows.clone(), of_request);
        }
    }
    Ok(())
}
