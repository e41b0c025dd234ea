//! Several residual streams. The buffer of the residual stream has the first one.

use triad_kernels::activation::add;
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::streams::{MAX_STREAMS, add_layers, correct, match_magnitude, predict};
use triad_kernels::{OutputMut, lock, matmul};

use super::Buffers;
use super::buffers::StreamBuffers;
use super::subgraphs::{Chunk, ForwardContext, TASK_ROWS};
use crate::statistics::{Bytes, Operator};
use crate::weights::{BlockStreams, Norm, Streams, WeightMatrix};

impl ForwardContext<'_> {
    /// Computes the streams but the first from the embedding `x[rows, hidden]`, if the model has them.
    pub(super) fn begin_streams(&self, x: &[f32], buffers: &Buffers) {
        let Some(Streams { projections, .. }) = &self.weights.streams else {
            return;
        };
        let hidden = self.description.hidden;
        let StreamBuffers { others, of_one, .. } = &mut *lock(&buffers.streams);
        others.resize(x.len() * projections.len(), 0.0);
        of_one.resize(x.len(), 0.0);
        for (other, projection) in projections.iter().enumerate() {
            self.product(x, projection, of_one);
            let row_len = projections.len() * hidden;
            let rows = (
                chunks_mut(others, row_len * TASK_ROWS),
                chunks_mut(of_one, hidden * TASK_ROWS),
            );
            for_each_chunk(rows, 1, |task, (others, of_one)| {
                let targets = x[task * TASK_ROWS * hidden..].chunks_exact(hidden);
                let rows = others.chunks_exact_mut(row_len);
                for ((row, one), target) in rows.zip(of_one.chunks_exact_mut(hidden)).zip(targets) {
                    match_magnitude(one, target);
                    row[other * hidden..][..hidden].copy_from_slice(one);
                }
            });
        }
    }

    /// Predicts all streams for a block, and keeps the first as the block reads it.
    pub(super) fn predict_streams(&self, index: usize, rows: usize, buffers: &Buffers) {
        let Some(weights) = &self.block(index).streams else {
            return;
        };
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let mut x = buffers.x.write(hidden, 0..rows);
        let buffers = &mut *lock(&buffers.streams);
        self.routes(weights, &x, &mut buffers.of_one, &mut buffers.routes);
        let StreamBuffers {
            others,
            predicted,
            routes,
            ..
        } = buffers;
        predicted.resize(x.len(), 0.0);
        let count = routes.len() / rows;
        let task = TASK_ROWS * hidden;
        let chunks = (
            (chunks_mut(&mut x, task), chunks_mut(predicted, task)),
            chunks_mut(others, (count - 1) * task),
        );
        for_each_chunk(chunks, 1, |task, ((x, predicted), others)| {
            let rows = x.chunks_exact_mut(hidden);
            let others = others.chunks_exact_mut((count - 1) * hidden);
            for (row, (x, others)) in rows.zip(others).enumerate() {
                let routes = &routes[(task * TASK_ROWS + row) * count..][..count];
                let mut coefficients = [0.0; MAX_STREAMS * MAX_STREAMS];
                let coefficients = &mut coefficients[..count * count];
                weighted(&weights.prediction, routes, coefficients);
                predict(x, others, coefficients);
            }
            predicted.copy_from_slice(x);
        });
        self.count_streams(begun, x.len() * count, weights);
    }

    /// Computes the layers next to attention from the norm that attention reads.
    pub(super) fn layers_next_to_attention(&self, index: usize, chunk: Chunk) {
        let Some(weights) = &self.block(index).streams else {
            return;
        };
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let normed = chunk.buffers.normed.read(hidden, 0..chunk.rows());
        let StreamBuffers { added, reduced, .. } = &mut *lock(&chunk.buffers.streams);
        reduced.resize(chunk.rows() * weights.left.out_features(), 0.0);
        added.resize(normed.len(), 0.0);
        self.product(&normed, &weights.left, reduced);
        self.product(reduced, &weights.right, added);
        let Norm {
            weight, epsilon, ..
        } = &weights.norm;
        for_each_chunk(chunks_mut(added, TASK_ROWS * hidden), 1, |_, added| {
            rms_norm_in_place(added, weight, *epsilon);
        });
        self.counters.end(begun, Operator::Residual, || {
            let bytes = size_of_val(&normed[..]);
            let matrices = weights.left.bytes() + weights.right.bytes();
            Bytes::new(2 * bytes, 2 * bytes, matrices)
        });
    }

    /// Adds the output of these layers, and the norm, to the residual stream after attention. Returns whether the model
    /// has them.
    pub(super) fn add_layers_next_to_attention(&self, index: usize, chunk: Chunk) -> bool {
        if self.block(index).streams.is_none() {
            return false;
        }
        let (hidden, rows, buffers) = (self.description.hidden, chunk.rows(), chunk.buffers);
        self.add_output(self.mixer_addition(index), rows, buffers);
        let begun = self.counters.begin();
        let normed = buffers.normed.read(hidden, 0..rows);
        let mut x = buffers.x.write(hidden, 0..rows);
        let StreamBuffers { added, .. } = &mut *lock(&buffers.streams);
        let task = TASK_ROWS * hidden;
        for_each_chunk(chunks_mut(&mut x, task), 1, |index, x| {
            let place = index * task..index * task + x.len();
            add_layers(x, &normed[place.clone()], &added[place]);
        });
        self.counters.end(begun, Operator::Residual, || {
            let bytes = size_of_val(&x[..]);
            Bytes::new(3 * bytes, bytes, 0)
        });
        true
    }

    /// Corrects all streams by what a block has computed.
    pub(super) fn correct_streams(&self, index: usize, rows: usize, buffers: &Buffers) {
        let Some(weights) = &self.block(index).streams else {
            return;
        };
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let mut x = buffers.x.write(hidden, 0..rows);
        let buffers = &mut *lock(&buffers.streams);
        self.routes(weights, &x, &mut buffers.of_one, &mut buffers.routes);
        let StreamBuffers {
            others,
            predicted,
            routes,
            of_one,
            ..
        } = buffers;
        let count = routes.len() / rows;
        let task = TASK_ROWS * hidden;
        let chunks = (
            (chunks_mut(&mut x, task), chunks_mut(of_one, task)),
            chunks_mut(others, (count - 1) * task),
        );
        for_each_chunk(chunks, 1, |task, ((x, of_one), others)| {
            let rows = x.chunks_exact_mut(hidden);
            let others = others.chunks_exact_mut((count - 1) * hidden);
            for (row, (x, others)) in rows.zip(others).enumerate() {
                let row = task * TASK_ROWS + row;
                let mut factors = [0.0; MAX_STREAMS];
                let factors = &mut factors[..count];
                weighted(
                    &weights.correction,
                    &routes[row * count..][..count],
                    factors,
                );
                factors.iter_mut().for_each(|factor| *factor += 1.0);
                let predicted = &predicted[row * hidden..][..hidden];
                correct(x, predicted, others, factors);
            }
            // The gate of the input by token reads it.
            of_one.copy_from_slice(x);
            if let Some(scale) = &weights.scale {
                for row in of_one.chunks_exact_mut(hidden) {
                    for (value, scale) in row.iter_mut().zip(scale) {
                        *value *= scale;
                    }
                }
            }
        });
        self.count_streams(begun, x.len() * count, weights);
    }

    /// Computes the gate of an input by token from the corrected first stream, if the model has several.
    pub(super) fn gate_of_streams(
        &self,
        gate: &WeightMatrix,
        buffers: &Buffers,
        out: &mut [f32],
    ) -> bool {
        if self.weights.streams.is_none() {
            return false;
        }
        self.product(&lock(&buffers.streams).of_one, gate, out);
        true
    }

    /// Adds the projected input by token to all streams but the first. Returns whether the model has them.
    pub(super) fn add_to_other_streams(&self, norm: &Norm, rows: usize, buffers: &Buffers) -> bool {
        let Some(Streams { projections, .. }) = &self.weights.streams else {
            return false;
        };
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let mut projected = buffers.projected.write(hidden, 0..rows);
        let StreamBuffers { others, .. } = &mut *lock(&buffers.streams);
        let row_len = projections.len() * hidden;
        let chunks = (
            chunks_mut(&mut projected, TASK_ROWS * hidden),
            chunks_mut(others, TASK_ROWS * row_len),
        );
        for_each_chunk(chunks, 1, |_, (projected, others)| {
            rms_norm_in_place(projected, &norm.weight, norm.epsilon);
            let rows = projected.chunks_exact(hidden);
            for (projected, row) in rows.zip(others.chunks_exact_mut(row_len)) {
                for other in row.chunks_exact_mut(hidden) {
                    add(other, projected);
                }
            }
        });
        self.counters.end(begun, Operator::Residual, || {
            let (one, all) = (size_of_val(&projected[..]), size_of_val(&others[..]));
            Bytes::new(2 * one + all, one + all, norm.bytes())
        });
        true
    }

    /// Makes one residual stream of all after the last block.
    pub(super) fn end_streams(&self, rows: usize, buffers: &Buffers) {
        let Some(Streams { outputs, .. }) = &self.weights.streams else {
            return;
        };
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        let mut x = buffers.x.write(hidden, 0..rows);
        let mut sum = buffers.projected.write(hidden, 0..rows);
        let mut of_output = buffers.normed.write(hidden, 0..rows);
        let StreamBuffers { others, of_one, .. } = &mut *lock(&buffers.streams);
        sum.copy_from_slice(&x);
        of_one.resize(x.len(), 0.0);
        let (row_len, task) = (outputs.len() * hidden, TASK_ROWS * hidden);
        for (other, output) in outputs.iter().enumerate() {
            let rows = others.chunks_exact(row_len);
            for (row, one) in rows.zip(of_one.chunks_exact_mut(hidden)) {
                one.copy_from_slice(&row[other * hidden..][..hidden]);
            }
            self.product(of_one, output, &mut of_output);
            let chunks = (chunks_mut(&mut sum, task), chunks_mut(&mut of_output, task));
            for_each_chunk(chunks, 1, |index, (sum, of_output)| {
                let targets = x[index * task..].chunks_exact(hidden);
                for (one, target) in of_output.chunks_exact_mut(hidden).zip(targets) {
                    match_magnitude(one, target);
                }
                add(sum, of_output);
            });
        }
        let mean = 1.0 / (outputs.len() + 1) as f32;
        for (x, sum) in x.iter_mut().zip(&*sum) {
            *x = sum * mean;
        }
        self.counters.end(begun, Operator::Residual, || {
            let bytes = size_of_val(&x[..]) * outputs.len();
            let matrices = outputs.iter().map(WeightMatrix::bytes).sum();
            Bytes::new(3 * bytes, 3 * bytes, matrices)
        });
    }

    /// Computes the routes of rows of the first stream.
    fn routes(
        &self,
        weights: &BlockStreams,
        x: &[f32],
        normed: &mut Vec<f32>,
        routes: &mut Vec<f32>,
    ) {
        let hidden = self.description.hidden;
        normed.resize(x.len(), 0.0);
        routes.resize(x.len() / hidden * weights.router.out_features(), 0.0);
        weights.router_norm.normalize(x, normed);
        self.product(normed, &weights.router, routes);
        let factor = 1.0 / hidden as f32;
        routes
            .iter_mut()
            .for_each(|route| *route = (*route * factor).tanh());
    }

    fn product(&self, x: &[f32], matrix: &WeightMatrix, out: &mut [f32]) {
        let out = OutputMut::new(out, matrix.out_features());
        matmul(x, matrix.view(), None, self.phase, out);
    }

    fn count_streams(
        &self,
        begun: crate::statistics::Begun,
        values: usize,
        weights: &BlockStreams,
    ) {
        self.counters.end(begun, Operator::Residual, || {
            let bytes = values * size_of::<f32>();
            Bytes::new(bytes, bytes, weights.router.bytes())
        });
    }
}

/// Computes for each row of `matrix` its product with `routes`.
fn weighted(matrix: &[f32], routes: &[f32], out: &mut [f32]) {
    for (out, row) in out.iter_mut().zip(matrix.chunks_exact(routes.len())) {
        *out = row
            .iter()
            .zip(routes)
            .map(|(weight, route)| weight * route)
            .sum();
    }
}
