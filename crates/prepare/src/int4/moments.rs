//! The second moments of linear inputs over a text: the mean products of each two channels.

use std::ops::Range;
use std::sync::Arc;

use triad_engine::{Cancel, Inputs, LinearInput, Model};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int4::GROUP;
use triad_kernels::{Matrix, OutputMut, Phase, matmul};
use triad_model::description::{BlockDescription, ModelDescription};

use crate::calibration::Observation;
use crate::error::Result;

/// Channels whose products with all channels before them are computed together.
const STRIP: usize = 128;
/// The usual maximum of the bytes of moments that are in memory at once.
pub const MEMORY: usize = 4 << 30;

/// The two parts of a calibration text: moments of the first decide how weights are rounded, those of the second, which is
/// held out, how far the first can be trusted.
pub type Parts<T> = [T; 2];

/// The second moments of one linear input over some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondMoments {
    channels: usize,
    rows: u64,
    /// The sum of the products of channels i and j ≤ i at `[i, j]`; zeros elsewhere.
    sums: Vec<f32>,
}

impl SecondMoments {
    /// Creates the moments of no rows.
    pub fn new(channels: usize) -> Self {
        Self {
            channels,
            rows: 0,
            sums: vec![0.0; channels * channels],
        }
    }

    /// Creates moments from the results of [`SecondMoments::rows`] and [`SecondMoments::sums`]; `None` if their number is
    /// no square.
    pub fn from_parts(channels: usize, rows: u64, sums: Vec<f32>) -> Option<Self> {
        (sums.len() == channels.checked_mul(channels)?).then_some(Self {
            channels,
            rows,
            sums,
        })
    }

    /// Adds `x` `[rows, channels]`, on the threads of the installed pool, which change no bit.
    ///
    /// # Panics
    /// If `x` is no whole number of rows.
    pub fn add(&mut self, x: &[f32]) {
        let channels = self.channels;
        assert!(
            x.len().is_multiple_of(channels),
            "{} values in rows of {channels}",
            x.len()
        );
        let rows = x.len() / channels;
        if rows == 0 {
            return;
        }
        self.rows += rows as u64;
        let mut columns = vec![0.0; x.len()];
        for_each_chunk(
            chunks_mut(&mut columns, STRIP * rows),
            1,
            |strip, columns| {
                for (index, column) in columns.chunks_exact_mut(rows).enumerate() {
                    let channel = strip * STRIP + index;
                    for (value, row) in column.iter_mut().zip(x.chunks_exact(channels)) {
                        *value = row[channel];
                    }
                }
            },
        );
        let mut products = vec![0.0; STRIP.min(channels) * channels];
        for first in (0..channels).step_by(STRIP) {
            let last = (first + STRIP).min(channels);
            let products = &mut products[..(last - first) * last];
            matmul(
                &columns[first * rows..last * rows],
                Matrix::F32(&columns[..last * rows]),
                None,
                Phase::Prefill,
                OutputMut::new(products, last),
            );
            let sums = self.sums[first * channels..].chunks_exact_mut(channels);
            for (index, (sums, products)) in sums.zip(products.chunks_exact(last)).enumerate() {
                for (sum, product) in sums.iter_mut().zip(&products[..=first + index]) {
                    *sum += product;
                }
            }
        }
    }

    /// Adds the rows of `other`.
    ///
    /// # Panics
    /// If it has another number of channels.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.channels, other.channels, "channels");
        self.rows += other.rows;
        for (sum, other) in self.sums.iter_mut().zip(&other.sums) {
            *sum += other;
        }
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the number of rows that were added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the sums of products `[channels, channels]`, of which only those of a channel with itself and with channels
    /// before it are not zero.
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// Returns the sum of products of two channels.
    pub fn sum(&self, one: usize, other: usize) -> f32 {
        self.sums[one.max(other) * self.channels + one.min(other)]
    }

    /// Returns the sums of all products `[channels, channels]`.
    pub fn symmetric(&self) -> Vec<f32> {
        let mut all = self.sums.clone();
        for row in 0..self.channels {
            for column in row + 1..self.channels {
                all[row * self.channels + column] = self.sums[column * self.channels + row];
            }
        }
        all
    }
}

/// The second moments of the inputs of some blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// The blocks.
    blocks: Range<usize>,
    /// Tokens processed.
    pub tokens: usize,
    /// Pieces of text processed, of both parts.
    pub pieces: usize,
    /// Observations of the next piece that are already added, as in [`Calibration`](crate::calibration::Calibration).
    pub(crate) counted: usize,
    /// The moments of each block's inputs; inputs that no layer in INT4 reads have no channels.
    inputs: Vec<Inputs<Parts<SecondMoments>>>,
}

/// Returns the channels of an input of a block whose second moments are needed, 0 if they are not: rows that are not whole
/// groups stay in float.
fn channels(description: &ModelDescription, block: &BlockDescription, input: LinearInput) -> usize {
    let channels = input.channels(block, description.hidden);
    if channels.is_multiple_of(GROUP) {
        channels
    } else {
        0
    }
}

impl Moments {
    /// Creates the moments of no text, of as many blocks from `first` on as fit into `memory` bytes, of at least one.
    pub fn new(description: &ModelDescription, first: usize, memory: usize) -> Self {
        let bytes_of = |block: &BlockDescription| {
            let squares = LinearInput::ALL.map(|input| channels(description, block, input).pow(2));
            2 * size_of::<f32>() * squares.iter().sum::<usize>()
        };
        let mut bytes = 0;
        let blocks = &description.blocks[first..];
        let fitting = blocks.iter().take_while(|block| {
            bytes += bytes_of(block);
            bytes <= memory
        });
        let count = fitting.count().max(1).min(blocks.len());
        let of_block = |block| {
            LinearInput::ALL.map(|input| {
                let channels = channels(description, block, input);
                [(); 2].map(|()| SecondMoments::new(channels))
            })
        };
        Self {
            blocks: first..first + count,
            tokens: 0,
            pieces: 0,
            counted: 0,
            inputs: blocks[..count].iter().map(of_block).collect(),
        }
    }

    /// Drops the moments of all blocks.
    pub fn clear(&mut self) {
        self.blocks.end = self.blocks.start;
        self.inputs = Vec::new();
    }

    /// Returns the blocks whose moments these are.
    pub fn blocks(&self) -> Range<usize> {
        self.blocks.clone()
    }

    /// Returns the moments of one input.
    ///
    /// # Panics
    /// If the block is not among [`Moments::blocks`].
    pub fn input(&self, block: usize, input: LinearInput) -> &Parts<SecondMoments> {
        &self.inputs[block - self.blocks.start][input.index()]
    }

    /// Returns every input that has channels, with its block.
    pub(crate) fn inputs(
        &self,
    ) -> impl Iterator<Item = (usize, LinearInput, &Parts<SecondMoments>)> {
        self.inputs.iter().enumerate().flat_map(|(index, inputs)| {
            let block = self.blocks.start + index;
            let inputs = LinearInput::ALL.into_iter().zip(inputs);
            inputs
                .filter(|(_, parts)| parts[0].channels() > 0)
                .map(move |(input, parts)| (block, input, parts))
        })
    }

    /// Returns the same with write access.
    pub(crate) fn inputs_mut(
        &mut self,
    ) -> impl Iterator<Item = (usize, LinearInput, &mut Parts<SecondMoments>)> {
        let first = self.blocks.start;
        self.inputs
            .iter_mut()
            .enumerate()
            .flat_map(move |(index, inputs)| {
                let inputs = LinearInput::ALL.into_iter().zip(inputs);
                inputs
                    .filter(|(_, parts)| parts[0].channels() > 0)
                    .map(move |(input, parts)| (first + index, input, parts))
            })
    }

    /// Runs the float model over both parts of a text, from the first unprocessed piece. `progress` is called after each
    /// piece.
    ///
    /// # Errors
    /// If `cancel` is set, or the model cannot run. The moments so far are kept, and a later call continues from there, with
    /// the same result as a call that was not interrupted.
    pub fn run(
        &mut self,
        model: &Arc<Model>,
        text: &Parts<Vec<Vec<u32>>>,
        cancel: &Cancel,
        mut progress: impl FnMut(&Self) -> Result<()>,
    ) -> Result<()> {
        let mut observation = Observation::new(model)?;
        let pieces = text.iter().enumerate();
        let pieces = pieces.flat_map(|(part, pieces)| pieces.iter().map(move |it| (part, it)));
        for (part, piece) in pieces.skip(self.pieces) {
            let (blocks, inputs) = (self.blocks.clone(), &mut self.inputs);
            observation.run(piece, &mut self.counted, cancel, &mut |block, input, x| {
                if blocks.contains(&block) {
                    let moments = &mut inputs[block - blocks.start][input.index()][part];
                    if moments.channels() > 0 {
                        moments.add(x);
                    }
                }
            })?;
            self.tokens += piece.len();
            self.pieces += 1;
            progress(self)?;
        }
        Ok(())
    }
}
