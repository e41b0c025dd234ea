//! Statistics of the weights by input channel.

use triad_engine::weights::{Block, Linear, Weight, Weights};
use triad_engine::{Inputs, LinearInput};
use triad_kernels::chunks::map;

/// The weights of each channel of one linear input.
#[derive(Clone, Debug, Default)]
pub struct ChannelWeights {
    /// Sum of their squares `[channels]`, by which a squared error of the channel is multiplied.
    pub energy: Vec<f64>,
    /// Largest magnitude `[channels]`.
    pub largest: Vec<f32>,
}

/// Computes the statistics of each input of each block, in the order of [`LinearInput::ALL`], on the threads of the
/// installed pool.
///
/// # Panics
/// If the weights are not in float.
pub fn of_model(weights: &Weights) -> Vec<Inputs<ChannelWeights>> {
    of_blocks(&weights.blocks)
}

/// Computes the same of these blocks.
///
/// # Panics
/// If their weights are not in float.
pub fn of_blocks(blocks: &[Block]) -> Vec<Inputs<ChannelWeights>> {
    blocks
        .iter()
        .map(|block| LinearInput::ALL.map(|input| of_input(block, input)))
        .collect()
}

fn of_input(block: &Block, input: LinearInput) -> ChannelWeights {
    let mut all: Option<ChannelWeights> = None;
    for (_, linear) in block
        .linears
        .iter()
        .filter(|(name, _)| LinearInput::read_by(**name) == input)
    {
        let one = of_linear(linear);
        match &mut all {
            None => all = Some(one),
            Some(all) => {
                all.energy
                    .iter_mut()
                    .zip(&one.energy)
                    .for_each(|(all, one)| *all += one);
                all.largest
                    .iter_mut()
                    .zip(&one.largest)
                    .for_each(|(all, one)| *all = all.max(*one));
            }
        }
    }
    // No layer reads an input that the block does not have.
    all.unwrap_or_default()
}

fn of_linear(linear: &Linear) -> ChannelWeights {
    let Weight::Float(matrix) = &linear.weight else {
        panic!("the weights are in float")
    };
    let channels = matrix.in_features();
    // Column sums are combined by task in an order that does not depend on the number of threads.
    const TASK_ROWS: usize = 64;
    let tasks = map(matrix.out_features().div_ceil(TASK_ROWS), |task| {
        let rows = task * TASK_ROWS..((task + 1) * TASK_ROWS).min(matrix.out_features());
        let mut values = vec![0.0; rows.len() * channels];
        matrix.rows_to_f32(rows, &mut values);
        let mut sums = ChannelWeights {
            energy: vec![0.0; channels],
            largest: vec![0.0; channels],
        };
        for row in values.chunks_exact(channels) {
            for ((weight, energy), largest) in
                row.iter().zip(&mut sums.energy).zip(&mut sums.largest)
            {
                *energy += f64::from(weight * weight);
                *largest = largest.max(weight.abs());
            }
        }
        sums
    });
    let mut sums = ChannelWeights {
        energy: vec![0.0; channels],
        largest: vec![0.0; channels],
    };
    for task in tasks {
        sums.energy
            .iter_mut()
            .zip(task.energy)
            .for_each(|(sum, energy)| *sum += energy);
        sums.largest
            .iter_mut()
            .zip(task.largest)
            .for_each(|(sum, largest)| *sum = sum.max(largest));
    }
    sums
}
