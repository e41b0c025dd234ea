//! The steps after the two halves of a block: the input by token, and a factor on the residual stream.

use triad_kernels::activation::activate_and_multiply;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::{OutputMut, matmul};
use triad_model::description;

use super::Buffers;
use super::subgraphs::{Chunk, ForwardContext, TASK_ROWS, activation, read};
use crate::statistics::{Bytes, Operator};
use crate::weights::TokenInput;

impl ForwardContext<'_> {
    /// Computes the inputs by token of all blocks, `[rows, blocks · width]`, from the scaled embedding `x[rows, hidden]`,
    /// if the model has them.
    pub(super) fn token_inputs(&self, tokens: &[u32], x: &[f32], buffers: &Buffers) {
        let (Some(described), Some(weights)) =
            (&self.description.token_inputs, &self.weights.token_inputs)
        else {
            return;
        };
        let (hidden, all) = (
            self.description.hidden,
            self.description.blocks.len() * described.width,
        );
        let table_rows = described.table_rows(self.description.vocab);
        let mut inputs = buffers.token_inputs.write(all, 0..tokens.len());
        let mut rows = buffers.token_rows.write(all, 0..tokens.len());
        let out = OutputMut::new(&mut inputs, all);
        matmul(x, weights.projection.view(), None, self.phase, out);
        let (of_projection, of_table) = (
            (hidden as f32).sqrt().recip(),
            (described.width as f32).sqrt(),
        );
        let chunks = (
            chunks_mut(&mut inputs, all * TASK_ROWS),
            chunks_mut(&mut rows, all * TASK_ROWS),
        );
        for_each_chunk(chunks, 1, |task, (inputs, rows)| {
            inputs.iter_mut().for_each(|input| *input *= of_projection);
            rms_norm_in_place(inputs, &weights.norm.weight, weights.norm.epsilon);
            let tokens = &tokens[task * TASK_ROWS..];
            for (token, row) in tokens.iter().zip(rows.chunks_exact_mut(all)) {
                let is_there = (*token as usize) < table_rows;
                weights.table.row(if is_there { *token } else { 0 }, row);
            }
            for (input, row) in inputs.iter_mut().zip(rows) {
                *input = (*input + *row * of_table) * std::f32::consts::FRAC_1_SQRT_2;
            }
        });
    }

    /// Returns whether a block has steps after its residual additions.
    pub(super) fn has_steps_at_end(&self, index: usize, buffers: &Buffers) -> bool {
        let block = self.block(index);
        block.token_input.is_some()
            || block.scale.is_some()
            || !read(&buffers.added_rows).is_empty()
    }

    /// Adds the output of a block's second half to the residual stream, and takes the steps after that.
    pub(super) fn end_block(&self, index: usize, chunk: Chunk) {
        let (block, rows, buffers) = (self.block(index), chunk.rows(), chunk.buffers);
        self.add_output(self.last_addition(index), rows, buffers);
        self.correct_streams(index, rows, buffers);
        if let (Some(described), Some(weights)) =
            (&self.description.token_inputs, &block.token_input)
        {
            self.add_token_input((index, described), weights, rows, buffers);
        }
        if let Some(scale) = block.scale {
            let mut x = buffers.x.write(self.description.hidden, 0..rows);
            x.iter_mut().for_each(|value| *value *= scale);
        }
        self.add_picture_rows(index, buffers);
    }

    fn add_token_input(
        &self,
        (index, described): (usize, &description::TokenInputs),
        weights: &TokenInput,
        rows: usize,
        buffers: &Buffers,
    ) {
        let begun = self.counters.begin();
        let (hidden, width) = (self.description.hidden, described.width);
        let all = self.description.blocks.len() * width;
        let activation = activation(described.activation);
        let mut gate = buffers.token_rows.write(width, 0..rows);
        if !self.gate_of_streams(&weights.gate, buffers, &mut gate) {
            let x = buffers.x.read(hidden, 0..rows);
            let out = OutputMut::new(&mut gate, width);
            matmul(&x, weights.gate.view(), None, self.phase, out);
        }
        let inputs = buffers.token_inputs.read(all, 0..rows);
        let tasks = chunks_mut(&mut gate, width * TASK_ROWS);
        for_each_chunk(tasks, 1, |task, gate| {
            for (row, gate) in gate.chunks_exact_mut(width).enumerate() {
                let at = (task * TASK_ROWS + row) * all + index * width;
                activate_and_multiply(gate, &inputs[at..at + width], activation);
            }
        });
        {
            let mut projected = buffers.projected.write(hidden, 0..rows);
            let out = OutputMut::new(&mut projected, hidden);
            matmul(&gate, weights.output.view(), None, self.phase, out);
        }
        self.counters.end(begun, Operator::TokenInput, || {
            let (x, gate) = (rows * hidden * size_of::<f32>(), size_of_val(&gate[..]));
            Bytes::new(x + 3 * gate, x + 2 * gate, weights.bytes())
        });
        // A factor on the outputs of the two halves is none on this one.
        if !self.add_to_other_streams(&weights.norm, rows, buffers) {
            self.add_normed_output(&weights.norm, rows, buffers);
        }
    }
}
