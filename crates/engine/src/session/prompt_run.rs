//! Prompts on the model's threads, outside of batches: their linear inputs and hidden states, for calibration and
//! evaluation.

use std::sync::Arc;

use triad_kernels::Phase;

use super::Session;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::forward::{Buffers, Chunk, ForwardContext, MatmulContext, RowLayout, Segment};
use crate::linear::{Backend, Observer};

/// Runs rows of prompts on the model's threads, outside of batches.
pub(crate) struct PromptRun<'a> {
    pub(crate) context: ForwardContext<'a>,
    pub(crate) buffers: &'a Buffers,
    backend: Box<dyn Backend + 'a>,
    observer: Option<Observer<'a>>,
}

impl PromptRun<'_> {
    /// Runs `tokens`, which `segments` cover in order, as [`ForwardContext::run`] does.
    ///
    /// # Errors
    /// If a linear layer fails, or `cancel` is set.
    pub(crate) fn run(
        &mut self,
        tokens: &[u32],
        segments: &[Segment],
        cancel: &Cancel,
    ) -> Result<()> {
        let buffers = self.buffers;
        let mut matmul = MatmulContext {
            observer: self.observer.take(),
            ..MatmulContext::new(&mut *self.backend)
        };
        let chunk = Chunk { segments, buffers };
        self.context
            .run(tokens, chunk, &mut matmul, &mut || cancel.check())
    }
}

impl Session {
    /// Runs `tokens` on the model's threads as [`Session::prefill`] does, without logits. `observer` is called with the
    /// input of every linear layer, in the order of the blocks and of [`LinearInput::ALL`](crate::LinearInput::ALL).
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn observe(&mut self, tokens: &[u32], cancel: &Cancel, observer: Observer) -> Result<()> {
        self.check(tokens)?;
        self.resume(cancel)?;
        self.renew();
        let model = Arc::clone(self.model());
        for chunk in tokens.chunks(self.chunk()) {
            let cache = self.reserve(chunk.len())?;
            let segment = Segment {
                cache: &cache,
                rows: 0..chunk.len(),
                position: self.tokens.len(),
                is_branch: false,
                states: &[],
                second: None,
                layout: RowLayout::default(),
            };
            let mut run = self.prompt_run();
            run.observer = Some(&mut *observer);
            model
                .pool()
                .install(|| run.run(chunk, &[segment], cancel))?;
            drop(run);
            model.check_unchanged()?;
            self.extend(chunk, Phase::Prefill);
        }
        Ok(())
    }

    /// Runs `tokens` on the model's threads as [`Session::prefill`] does, without logits. `visit` is called with the
    /// hidden states `[rows, hidden]` of each chunk: the input of the output matrix, after the last norm.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn hidden_states(
        &mut self,
        tokens: &[u32],
        cancel: &Cancel,
        mut visit: impl FnMut(&[f32]),
    ) -> Result<()> {
        self.model().check_causal()?;
        self.check_length(tokens)?;
        self.check_text(tokens)?;
        self.resume(cancel)?;
        self.renew();
        let model = Arc::clone(self.model());
        for chunk in tokens.chunks(self.chunk()) {
            let cache = self.reserve(chunk.len())?;
            let segment = Segment {
                cache: &cache,
                rows: 0..chunk.len(),
                position: self.tokens.len(),
                is_branch: false,
                states: &[],
                second: None,
                layout: RowLayout::default(),
            };
            let mut run = self.prompt_run();
            let states = model.pool().install(|| {
                run.run(chunk, &[segment], cancel)?;
                Ok::<_, Error>(run.context.hidden_states(run.buffers, 0..chunk.len()))
            })?;
            drop(run);
            model.check_unchanged()?;
            self.extend(chunk, Phase::Prefill);
            visit(&states);
        }
        Ok(())
    }

    /// Returns a run of prompts on the model's threads, outside of batches, in buffers of this session.
    pub(crate) fn prompt_run(&mut self) -> PromptRun<'_> {
        let shared = self.engine.shared();
        let (description, chunk) = (shared.model().description(), shared.settings.chunk);
        let new = || Box::new(Buffers::new(description, chunk, false));
        PromptRun {
            context: shared.forward.context(Phase::Prefill),
            buffers: self.buffers.get_or_insert_with(new),
            backend: shared.scheduler.executor().backend(),
            observer: None,
        }
    }
}
