//! Hidden states of whole texts, several of them in one batch, and the layers after pooling.

use std::ops::Range;

use triad_kernels::{OutputMut, Phase, matmul};

use crate::adapter::Adapters;
use crate::cancel::Cancel;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::forward::{Buffers, Chunk, MatmulContext, Segment};
use crate::kv::KvCache;
use crate::model::Model;
use crate::weights::{Linear, Weight};

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
    /// An encoder computes as many texts at once as a chunk holds, and a longer text alone and as a whole. The states of a
    /// text are the same bits whatever texts are with it. Other models compute the texts one after the other, chunk by
    /// chunk.
    ///
    /// # Errors
    /// If a text has no tokens, more than the context holds, or one outside the vocabulary; if there is no memory for keys
    /// and values; if `cancel` is set.
    pub fn encode(
        &self,
        texts: &[EncoderText],
        cancel: &Cancel,
        mut visit: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        if !self.model().description().is_encoder() {
            return texts.iter().enumerate().try_for_each(|(index, text)| {
                let mut session = self.session();
                session.hidden_states(&text.tokens, cancel, |states| visit(index, states))
            });
        }
        texts.iter().try_for_each(|text| self.check_text(text))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let batches = batches(&lengths, self.chunk());
        let rows = |batch: &Range<usize>| lengths[batch.clone()].iter().sum::<usize>();
        let Some(most) = batches.iter().map(rows).max() else {
            return Ok(());
        };
        let model = self.model();
        let hidden = model.description().hidden;
        let buffers = Buffers::new(model.description(), most, false);
        for batch in batches {
            cancel.check()?;
            let states = self.encode_batch(&texts[batch.clone()], &buffers, cancel)?;
            model.check_unchanged()?;
            let mut states = &states[..];
            for index in batch {
                let of_text = states.split_off(..lengths[index] * hidden);
                visit(index, of_text.expect("states of all rows"));
            }
        }
        Ok(())
    }

    /// Computes texts of an encoder together, and returns the states of all rows.
    fn encode_batch(
        &self,
        texts: &[EncoderText],
        buffers: &Buffers,
        cancel: &Cancel,
    ) -> Result<Vec<f32>> {
        let shared = self.shared();
        let cache = KvCache::new(&shared.memory, Adapters::default());
        let (mut tokens, mut segments) = (Vec::new(), Vec::with_capacity(texts.len()));
        for text in texts {
            let first = tokens.len();
            tokens.extend_from_slice(&text.tokens);
            segments.push(Segment {
                cache: &cache,
                rows: first..tokens.len(),
                position: 0,
                is_branch: false,
                second: text.second.map(|second| first + second),
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
            Ok(context.hidden_states(buffers, tokens.len()))
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

/// Divides texts of these lengths, in order, into batches of at most `most` rows; a longer text is a batch of its own.
fn batches(lengths: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut batches, mut rows) = (Vec::<Range<usize>>::new(), 0);
    for (index, length) in lengths.iter().enumerate() {
        match batches.last_mut() {
            Some(last) if rows + length <= most => {
                last.end = index + 1;
                rows += length;
            }
            _ => {
                batches.push(index..index + 1);
                rows = *length;
            }
        }
    }
    batches
}

impl Model {
    /// Runs the layers after pooling on `pooled[rows, hidden]`, and returns their output; `pooled` itself if there are
    /// none.
    ///
    /// # Panics
    /// If `pooled` has other rows.
    pub fn head(&self, pooled: Vec<f32>) -> Vec<f32> {
        let Some(head) = &self.description().head else {
            return pooled;
        };
        let layers = head.layers.iter().zip(&self.weights().encoder.head);
        layers.fold(pooled, |x, (layer, Linear { weight, bias, .. })| {
            let Weight::Float(weight) = weight else {
                unreachable!("layers after pooling are not quantized")
            };
            let rows = x.len() / layer.in_features;
            let mut out = vec![0.0; rows * layer.out_features];
            self.install(|| {
                let into = OutputMut::new(&mut out, layer.out_features);
                matmul(&x, weight.view(), bias.as_deref(), Phase::Prefill, into);
            });
            if layer.tanh {
                out.iter_mut().for_each(|value| *value = value.tanh());
            }
            out
        })
    }

    /// Refuses an encoder by name.
    ///
    /// # Errors
    /// If the model is an encoder.
    pub fn check_writes(&self) -> Result<()> {
        let description = self.description();
        match description.is_encoder() {
            true => Err(Error::Encoder {
                family: description.family.clone(),
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_batches_up_to_the_chunk_and_a_longer_one_is_alone() {
        let of = |lengths: &[usize]| batches(lengths, 8);
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[3, 5, 1]), [0..2, 2..3]);
        assert_eq!(of(&[20, 1, 1, 8]), [0..1, 1..3, 3..4]);
    }
}
