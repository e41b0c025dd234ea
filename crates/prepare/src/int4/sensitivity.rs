//! Measures what four bits cost: each layer alone is rounded to INT4, and the probabilities of the next token are compared
//! with those of the float model.

use std::sync::Arc;
use std::time::Instant;

use triad_engine::package::layers::{LayerGroup, groups, layer_of};
use triad_engine::quantization::WeightBits;
use triad_engine::weights::{Linear, Weight, WeightMatrix, linear_to_bits};
use triad_engine::{Cancel, Model, Session, SessionOptions};
use triad_kernels::chunks::map;
use triad_kernels::log_softmax::log_sum_exp;
use triad_model::description::ModelDescription;

use super::moments::Parts;
use crate::error::Result;

/// Tokens that the model reads for all layers together.
const ALL_TOKENS: usize = 1 << 16;
/// Bounds of the tokens that it reads for one layer.
const TOKENS: [usize; 2] = [64, 1024];
/// Tokens of a piece.
const PIECE: usize = 64;
/// The maximum bytes of the float model's logits, which stay in memory.
const LOGIT_BYTES: usize = 128 << 20;

/// The divergences of the first layers of a model, in the order of [`groups`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivities {
    layers: usize,
    divergences: Vec<f32>,
}

impl Sensitivities {
    /// Creates those of no layer of a model.
    pub fn new(model: &ModelDescription) -> Self {
        Self {
            layers: groups(model).len(),
            divergences: Vec::new(),
        }
    }

    /// Returns the mean Kullback-Leibler divergence of the probabilities of a token, in nats, for each measured layer.
    pub fn divergences(&self) -> &[f32] {
        &self.divergences
    }

    /// Returns the number of layers of the model.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Replaces the measured layers by the result of [`Sensitivities::divergences`]; returns `None` if the model does not
    /// have as many layers, or a number is no divergence.
    pub(crate) fn restore(&mut self, divergences: Vec<f32>) -> Option<()> {
        let are_valid = divergences.iter().all(|it| it.is_finite() && *it >= 0.0);
        (divergences.len() <= self.layers && are_valid).then(|| self.divergences = divergences)
    }

    /// Measures the layers that are not measured yet on the held-out part of the text, or on the other one if none is held
    /// out. `progress` is called after each.
    ///
    /// # Errors
    /// If `cancel` is set, or the model cannot run. The measured layers are kept, and a later call continues from there,
    /// with the same result as a call that was not interrupted.
    pub fn run(
        &mut self,
        model: &Arc<Model>,
        text: &Parts<Vec<Vec<u32>>>,
        cancel: &Cancel,
        mut progress: impl FnMut(&Self) -> Result<()>,
    ) -> Result<()> {
        if self.divergences.len() == self.layers {
            return Ok(());
        }
        let pieces = pieces(text, self.layers, model.description().vocab);
        let expected = logits(model, &pieces, cancel)?;
        let groups = groups(model.description());
        for group in &groups[self.divergences.len()..] {
            cancel.check()?;
            let start = Instant::now();
            let divergence = if group.bits(WeightBits::Four).is_some() {
                let rounded = model.install(|| {
                    model.weights().with_layers(group.block, |name, linear| {
                        let is_meant = name.map_or("output", layer_of) == group.layer;
                        is_meant.then(|| linear_to_bits(linear, WeightBits::Four))
                    })
                });
                let rounded = Arc::new(model.with_weights(rounded));
                let found = logits(&rounded, &pieces, cancel)?;
                divergence(model, &expected, &found)?
            } else {
                // Rows that are not whole groups have eight bits in any case.
                0.0
            };
            let seconds = start.elapsed().as_secs_f64();
            tracing::debug!(
                block = group.block,
                layer = group.layer,
                divergence,
                seconds
            );
            self.divergences.push(divergence);
            progress(self)?;
        }
        Ok(())
    }
}

/// Returns the weights of a group.
pub(super) fn matrices<'a>(model: &'a Model, group: &LayerGroup) -> Vec<&'a WeightMatrix> {
    let weights = model.weights();
    let matrix = |linear: &'a Linear| match &linear.weight {
        Weight::Float(matrix) => Some(matrix),
        Weight::Int8(_) => None,
    };
    let Some(block) = group.block else {
        return matrix(&weights.output).into_iter().collect();
    };
    let linears = weights.blocks[block].linears.iter();
    let linears = linears.filter(|(name, _)| layer_of(**name) == group.layer);
    linears.filter_map(|(_, linear)| matrix(linear)).collect()
}

/// Returns the text that is read for each of `layers` layers: the beginnings of pieces, evenly over the text.
fn pieces(text: &Parts<Vec<Vec<u32>>>, layers: usize, vocab: usize) -> Vec<&[u32]> {
    let part = &text[usize::from(!text[1].is_empty())];
    let in_memory = LOGIT_BYTES / size_of::<f32>() / vocab.max(1);
    let tokens = (ALL_TOKENS / layers.max(1)).clamp(TOKENS[0], TOKENS[1]);
    let count = (tokens.min(in_memory) / PIECE).clamp(1, part.len().max(1));
    let piece = |index: usize| {
        let piece = part.get(index * part.len() / count)?;
        Some(&piece[..piece.len().min(PIECE)])
    };
    (0..count).filter_map(piece).collect()
}

/// Returns the logits `[tokens, vocab]` of each piece.
fn logits(model: &Arc<Model>, pieces: &[&[u32]], cancel: &Cancel) -> Result<Vec<Vec<f32>>> {
    let options = SessionOptions {
        context: PIECE.min(model.description().context),
        chunk: PIECE,
        ..SessionOptions::default()
    };
    let mut session = Session::new(model, &options)?;
    let run = |piece: &&[u32]| {
        session.truncate(0);
        Ok(session.prefill_all_logits(piece, cancel)?)
    };
    pieces.iter().map(run).collect()
}

/// Returns the mean divergence of the probabilities with logits `found` from those with logits `expected`.
fn divergence(model: &Model, expected: &[Vec<f32>], found: &[Vec<f32>]) -> Result<f32> {
    let vocab = model.description().vocab;
    let (mut sum, mut rows) = (0.0, 0);
    for (expected, found) in expected.iter().zip(found) {
        let count = expected.len() / vocab;
        let of_row = |row: usize| {
            let part = row * vocab..(row + 1) * vocab;
            let (expected, found) = (&expected[part.clone()], &found[part]);
            let shift = [expected, found].map(log_sum_exp);
            let terms = expected.iter().zip(found).map(|(expected, found)| {
                let [expected, found] =
                    [(expected, shift[0]), (found, shift[1])].map(|(it, by)| f64::from(*it) - by);
                f64::from((expected as f32).exp()) * (expected - found)
            });
            terms.sum::<f64>()
        };
        sum += model.install(|| map(count, of_row)).iter().sum::<f64>();
        rows += count;
    }
    let mean = (sum / rows.max(1) as f64) as f32;
    if mean.is_finite() {
        // Rounding may leave less than nothing.
        Ok(mean.max(0.0))
    } else {
        Err(triad_engine::Error::NotFinite.into())
    }
}
