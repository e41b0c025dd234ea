//! Attention with latent vectors (MLA of DeepSeek): the steps before and after attention over them.

use std::ops::Range;

use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::lease::WriteLease;
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::{Matrix, OutputMut, lock, matmul};
use triad_model::description::{Attention, Latent, MixerWeight};

use crate::forward::Buffers;
use crate::forward::buffers::LatentBuffers;
use crate::forward::subgraphs::{ForwardContext, TASK_ROWS};
use crate::statistics::{Bytes, Operator};

impl ForwardContext<'_> {
    /// Computes the queries `[rows, heads, head_dim]` that fit latent vectors, without their RoPE: of each head the part
    /// with RoPE, then the other one times the head's key matrix. Norms the latent vectors in the buffer of keys, and moves
    /// the part with RoPE before them.
    pub(in crate::forward) fn latent_queries<'a>(
        &self,
        (index, attention, latent): (usize, &Attention, Latent),
        rows: usize,
        buffers: &'a Buffers,
    ) -> WriteLease<'a> {
        let begun = self.counters.begin();
        let (block, dims, head_dim) = (self.block(index), attention.rope.dims, attention.head_dim);
        {
            let mut keys = buffers.keys.write(head_dim, 0..rows);
            for_each_chunk(chunks_mut(&mut keys, TASK_ROWS * head_dim), 1, |_, keys| {
                for key in keys.chunks_exact_mut(head_dim) {
                    if let Some(norm) = &block.key_norm {
                        let vector = &mut key[..latent.width];
                        rms_norm_in_place(vector, &norm.weight, norm.epsilon);
                    }
                    key.rotate_right(dims);
                }
            });
        }
        let width = attention.query_width();
        let mut given = buffers.queries.write(width, 0..rows);
        let LatentBuffers { queries, of_head } = &mut *lock(&buffers.latent);
        let of_all = attention.latent_queries(&latent);
        queries.resize(rows * of_all, 0.0);
        match block.mixer.get(&MixerWeight::LatentQuery) {
            Some(matrix) => {
                if let Some(norm) = &block.query_norm {
                    rms_norm_in_place(&mut given, &norm.weight, norm.epsilon);
                }
                let out = OutputMut::new(queries, of_all);
                matmul(&given, Matrix::F32(matrix), None, self.phase, out);
            }
            None => queries.copy_from_slice(&given),
        }
        let mut absorbed = buffers
            .separate_queries
            .write(attention.heads * head_dim, 0..rows);
        let query_dim = latent.key_dim + dims;
        for head in 0..attention.heads {
            let rows = absorbed.chunks_exact_mut(attention.heads * head_dim);
            for (query, out) in queries.chunks_exact(of_all).zip(rows) {
                let query = &query[head * query_dim..][..query_dim];
                out[head * head_dim..][..dims].copy_from_slice(&query[latent.key_dim..]);
            }
            let place = Place {
                from: (of_all, head * query_dim..head * query_dim + latent.key_dim),
                to: (
                    attention.heads * head_dim,
                    head * head_dim + dims..(head + 1) * head_dim,
                ),
            };
            let matrix = &block.mixer[&MixerWeight::LatentKey];
            self.product_of_head((matrix, head), &place, (queries, &mut absorbed), of_head);
        }
        self.counters.end(begun, Operator::Mixer, || {
            let weights = [MixerWeight::LatentQuery, MixerWeight::LatentKey];
            let weights = weights.iter().filter_map(|it| block.mixer.get(it));
            let weights = weights.map(|values| size_of_val(&values[..])).sum();
            let read = size_of_val(&given[..]) + rows * head_dim * size_of::<f32>();
            Bytes::of(read, size_of_val(&absorbed[..]), weights)
        });
        absorbed
    }

    /// Multiplies weighted sums of latent vectors `[rows, heads, head_dim]` with the value matrices of the heads.
    pub(in crate::forward) fn latent_values(
        &self,
        (index, attention, latent): (usize, &Attention, Latent),
        sums: &[f32],
        out: &mut [f32],
        buffers: &Buffers,
    ) {
        let begun = self.counters.begin();
        let (dims, head_dim) = (attention.rope.dims, attention.head_dim);
        let LatentBuffers { of_head, .. } = &mut *lock(&buffers.latent);
        let matrix = &self.block(index).mixer[&MixerWeight::LatentValue];
        for head in 0..attention.heads {
            let place = Place {
                from: (
                    attention.heads * head_dim,
                    head * head_dim + dims..(head + 1) * head_dim,
                ),
                to: (
                    attention.output_width(),
                    head * latent.value_dim..(head + 1) * latent.value_dim,
                ),
            };
            self.product_of_head((matrix, head), &place, (sums, out), of_head);
        }
        self.counters.end(begun, Operator::Mixer, || {
            Bytes::of(
                size_of_val(sums),
                size_of_val(out),
                size_of_val(&matrix[..]),
            )
        });
    }

    /// Multiplies some columns of rows with the matrix of one head.
    fn product_of_head(
        &self,
        (matrices, head): (&[f32], usize),
        Place { from, to }: &Place,
        (x, out): (&[f32], &mut [f32]),
        [gathered, product]: &mut [Vec<f32>; 2],
    ) {
        let (inner, outer) = (from.1.len(), to.1.len());
        gathered.clear();
        for row in x.chunks_exact(from.0) {
            gathered.extend_from_slice(&row[from.1.clone()]);
        }
        product.resize(gathered.len() / inner * outer, 0.0);
        let matrix = &matrices[head * inner * outer..][..inner * outer];
        let of_product = OutputMut::new(product, outer);
        matmul(gathered, Matrix::F32(matrix), None, self.phase, of_product);
        for (row, values) in out.chunks_exact_mut(to.0).zip(product.chunks_exact(outer)) {
            row[to.1.clone()].copy_from_slice(values);
        }
    }
}

/// The columns of a product's input and output within rows of these widths.
struct Place {
    from: (usize, Range<usize>),
    to: (usize, Range<usize>),
}
