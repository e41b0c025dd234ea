//! Hidden states of whole texts, several of them in one batch, and the layers after pooling.

use std::ops::Range;
use std::sync::Mutex;

use triad_kernels::activation::{Activation, activate};
use triad_kernels::attention::PAGE;
use triad_kernels::{OutputMut, Phase, lock, matmul};
use triad_model::description::DenseActivation;

use crate::adapter::Adapters;
use crate::cancel::Cancel;
use crate::engine::{EncodedTime, Engine};
use crate::error::{Error, Result};
use crate::forward::{Buffers, Chunk, MatmulContext, RowLayout, Segment};
use crate::kv::{KvCache, state_bytes};
use crate::model::Model;
use crate::weights::{DenseWeights, Linear, Weight};

/// A text to encode: its tokens, with those around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncoderText {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The place from which on tokens are of the second text of a pair; `None`: it is no pair, or the model does not
    /// distinguish the two.
    pub second: Option<usize>,
}

impl From<Vec<u32>> for EncoderText {
    fn from(tokens: Vec<u32>) -> Self {
        Self {
            tokens,
            second: None,
        }
    }
}

impl Engine {
    /// Computes the hidden states of each text: the residual stream after the last norm. `visit` is called with the
    /// number of a text and states `[rows, hidden]` of its next tokens.
    ///
    /// As many texts are computed at once as a chunk holds, if their keys and values fit into `most_pages` pages. A longer
    /// text is computed alone: by an encoder as a whole, by other models chunk by chunk. The states of a text are the same
    /// bits whatever texts are with it. An encoder needs no pages.
    ///
    /// # Errors
    /// If a text has no tokens, more than the context holds, or one outside the vocabulary; if it states a second text
    /// after its end or the model has no type of tokens for one; if there is no memory for keys and values; if `cancel` is set.
    pub fn encode(
        &self,
        texts: &[EncoderText],
        most_pages: usize,
        cancel: &Cancel,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        texts.iter().try_for_each(|text| self.check_text(text))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let model = self.model();
        let (hidden, is_encoder) = (model.description().hidden, model.description().is_encoder());
        let batches = self.batches(&lengths, most_pages);
        let rows = |batch: &Range<usize>| lengths[batch.clone()].iter().sum::<usize>();
        let is_whole = |batch: &Range<usize>| is_encoder || rows(batch) <= self.chunk();
        let of_whole = batches.iter().filter(|batch| is_whole(batch));
        let most = of_whole.map(rows).max().unwrap_or(0);
        let buffers = Buffers::new(model.description(), most, false);
        for batch in batches {
            cancel.check()?;
            if !is_whole(&batch) {
                let mut session = self.session();
                let tokens = &texts[batch.start].tokens;
                self.timed(|| {
                    session.hidden_states(tokens, cancel, |states| visit(batch.start, states))
                })?;
                continue;
            }
            let texts = &texts[batch.clone()];
            let states = self.timed(|| self.encode_batch(texts, &buffers, cancel))?;
            model.check_unchanged()?;
            let mut states = &states[..];
            for index in batch {
                let of_text = states.split_off(..lengths[index] * hidden);
                visit(index, of_text.expect("states of all rows"));
            }
        }
        Ok(())
    }

    /// Returns the pages that [`Engine::encode`] takes at a time for texts of these lengths: those of keys and values,
    /// where the states of a text's mixers count as pages, too; more than `most_pages` only for a text that needs more by
    /// itself. An encoder keeps neither: its pages have the activations of as many rows
    /// ([`Engine::encoder_pages`]).
    pub fn encode_pages(&self, lengths: &[usize], most_pages: usize) -> usize {
        let of_batch = |batch: Range<usize>| match self.model().description().is_encoder() {
            true => lengths[batch].iter().sum::<usize>().div_ceil(PAGE),
            false => lengths[batch].iter().map(|it| self.pages_of(*it)).sum(),
        };
        let batches = self.batches(lengths, most_pages).into_iter();
        batches.map(of_batch).max().unwrap_or(0)
    }

    /// Returns the pages of an encoder's activations that fit into the memory for keys and values, or into that for the
    /// activations of its longest text, which was there when it was loaded; `None`: the model is no encoder.
    pub fn encoder_pages(&self) -> Option<usize> {
        let description = self.model().description();
        // The states after the last norm are copied.
        let of_row = Buffers::bytes_per_row(description) + description.hidden * size_of::<f32>();
        let fit = self.usage().kv.budget / (of_row * PAGE);
        let longest = self.context().max(self.chunk()).div_ceil(PAGE);
        description.is_encoder().then_some(fit.max(longest))
    }

    /// Returns the pages of a text's keys and values, and of the states of its mixers.
    fn pages_of(&self, length: usize) -> usize {
        let page = self.usage().kv.page_bytes.max(1);
        let states = state_bytes(self.model().description());
        length.div_ceil(PAGE) + states.div_ceil(page)
    }

    fn batches(&self, lengths: &[usize], most_pages: usize) -> Vec<Range<usize>> {
        let is_encoder = self.model().description().is_encoder();
        let pages = |length: usize| match is_encoder {
            true => 0,
            false => self.pages_of(length),
        };
        batches(lengths, (self.chunk(), most_pages), &pages)
    }

    /// Runs `work`, and counts its time for the [processor](Engine::processor_use) that computes texts.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Running<'a>(&'a Mutex<EncodedTime>);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                lock(self.0).end();
            }
        }
        let running = Running(&self.shared().encoded);
        lock(running.0).begin();
        work()
    }

    /// Computes whole texts together, and returns the states of all rows.
    fn encode_batch(
        &self,
        texts: &[EncoderText],
        buffers: &Buffers,
        cancel: &Cancel,
    ) -> Result<Vec<f32>> {
        let shared = self.shared();
        let is_encoder = self.model().description().is_encoder();
        let new = |text: &EncoderText| {
            let cache = KvCache::new(&shared.memory, Adapters::default());
            if !is_encoder {
                cache.reserve(0, text.tokens.len())?;
            }
            Ok(cache)
        };
        let caches = texts.iter().map(new).collect::<Result<Vec<_>>>()?;
        let (mut tokens, mut segments) = (Vec::new(), Vec::with_capacity(texts.len()));
        for (text, cache) in texts.iter().zip(&caches) {
            let first = tokens.len();
            tokens.extend_from_slice(&text.tokens);
            segments.push(Segment {
                cache,
                rows: first..tokens.len(),
                position: 0,
                is_branch: false,
                states: &[],
                second: text.second.map(|second| first + second),
                layout: RowLayout::default(),
            });
        }
        let context = shared.forward.context(Phase::Prefill);
        let mut backend = shared.scheduler.executor().backend();
        let mut matmul = MatmulContext::new(&mut *backend);
        let chunk = Chunk {
            segments: &segments,
            buffers,
        };
        self.model().install(|| {
            context.run(&tokens, chunk, &mut matmul, &mut || cancel.check())?;
            Ok(context.hidden_states(buffers, 0..tokens.len()))
        })
    }

    fn check_text(&self, text: &EncoderText) -> Result<()> {
        let (count, context) = (text.tokens.len(), self.context());
        if count == 0 {
            return Err(Error::EmptyPrompt);
        }
        if count > context {
            return Err(Error::PromptTooLong {
                prompt: count,
                free: context,
                context,
            });
        }
        let has_types = self.model().description().added_inputs.token_types > 1;
        if let Some(second) = text.second
            && (second > count || !has_types)
        {
            return Err(Error::SecondText {
                second,
                tokens: count,
                has_types,
            });
        }
        let vocab = self.model().description().vocab;
        match text.tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => Err(Error::TokenOutOfVocabulary {
                token: *token,
                vocab,
            }),
            None => Ok(()),
        }
    }
}

/// Divides texts of these lengths, in order, into batches of at most `most_rows` rows and `most_pages` pages; a text that
/// has more is a batch of its own. `pages_of` returns the pages of a text.
fn batches(
    lengths: &[usize],
    (most_rows, most_pages): (usize, usize),
    pages_of: &dyn Fn(usize) -> usize,
) -> Vec<Range<usize>> {
    let (mut batches, mut rows, mut pages) = (Vec::<Range<usize>>::new(), 0, 0);
    for (index, length) in lengths.iter().enumerate() {
        (rows, pages) = (rows + length, pages + pages_of(*length));
        match batches.last_mut() {
            Some(last) if rows <= most_rows && pages <= most_pages => last.end = index + 1,
            _ => {
                batches.push(index..index + 1);
                (rows, pages) = (*length, pages_of(*length));
            }
        }
    }
    batches
}

impl Model {
    /// Runs the layers after pooling on `pooled[rows, hidden]`, and returns their output, `[rows, width]`; `pooled` itself
    /// if there are none.
    ///
    /// # Panics
    /// If `pooled` has other rows.
    pub fn head(&self, pooled: Vec<f32>) -> Vec<f32> {
        let Some(head) = &self.description().head else {
            return pooled;
        };
        let layers = head.layers.iter().zip(&self.weights().encoder.head);
        let outputs = layers.fold(pooled, |x, (layer, DenseWeights { linear, norm })| {
            let Linear { weight, bias, .. } = linear;
            let Weight::Float(weight) = weight else {
                unreachable!("layers after pooling are not quantized")
            };
            let rows = x.len() / layer.in_features;
            let mut out = vec![0.0; rows * layer.out_features];
            self.install(|| {
                let into = OutputMut::new(&mut out, layer.out_features);
                matmul(&x, weight.view(), bias.as_deref(), Phase::Prefill, into);
            });
            match layer.activation {
                DenseActivation::Identity => {}
                DenseActivation::Tanh => out.iter_mut().for_each(|it| *it = it.tanh()),
                DenseActivation::Gelu => activate(&mut out, Activation::Gelu),
            }
            match norm {
                Some(norm) => self.install(|| norm.normalized(&out)),
                None => out,
            }
        });
        match &head.classifier {
            Some(classifier) if classifier.compares => {
                let pairs = outputs.chunks_exact(2);
                pairs.map(|pair| pair[0] - pair[1]).collect()
            }
            _ => outputs,
        }
    }

    /// Refuses a model that writes no text by name.
    ///
    /// # Errors
    /// If the model is an encoder or a classifier.
    pub fn check_writes(&self) -> Result<()> {
        self.check_causal()?;
        match self.description().writes() {
            true => Ok(()),
            false => Err(self.writes_not("a classifier")),
        }
    }

    /// Refuses a model whose attention reads later positions, too.
    pub(crate) fn check_causal(&self) -> Result<()> {
        match self.description().is_encoder() {
            true => Err(self.writes_not("an encoder")),
            false => Ok(()),
        }
    }

    fn writes_not(&self, kind: &'static str) -> Error {
        let family = self.description().family.clone();
        Error::Encoder { kind, family }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_batches_up_to_the_chunk_and_a_longer_one_is_alone() {
        let in_pages = |length: usize| length.div_ceil(PAGE);
        let of = |lengths: &[usize]| batches(lengths, (8, usize::MAX), &in_pages);
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[3, 5, 1]), [0..2, 2..3]);
        assert_eq!(of(&[20, 1, 1, 8]), [0..1, 1..3, 3..4]);
        let lengths = [1, 1, 1, PAGE, PAGE + 1];
        let of_pages = |pages: usize| batches(&lengths, (1000, pages), &in_pages);
        assert_eq!(of_pages(1), [0..1, 1..2, 2..3, 3..4, 4..5]);
        assert_eq!(of_pages(2), [0..2, 2..4, 4..5]);
        assert_eq!(of_pages(6), [Range { start: 0, end: 5 }]);
        // With states as large as two pages.
        let of_states = |pages: usize| batches(&lengths, (1000, pages), &|it| in_pages(it) + 2);
        assert_eq!(of_states(9), [0..3, 3..5]);
    }
}
