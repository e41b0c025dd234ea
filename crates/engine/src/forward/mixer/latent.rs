//! Attention with latent vectors (MLA of DeepSeek): the steps before and after attention over them.

use std::ops::Range;

use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::lease::WriteLease;
use triad_kernels::norm::rms_norm_in_place;
use triad_kernels::{Matrix, OutputMut, lock, matmul};
use triad_model::description::{Attention, Latent, MixerWeight};

use crate::forward::Buffers;
use crate::forward::buffers::{HEADS, LatentBuffers};
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
        let out_row = attention.heads * head_dim;
        let tasks = chunks_mut(&mut absorbed, TASK_ROWS * out_row);
        for_each_chunk(tasks, 1, |task, absorbed| {
            let given = queries[task * TASK_ROWS * of_all..].chunks_exact(of_all);
            for (given, out) in given.zip(absorbed.chunks_exact_mut(out_row)) {
                let heads = out.chunks_exact_mut(head_dim);
                for (query, out) in given.chunks_exact(query_dim).zip(heads) {
                    out[..dims].copy_from_slice(&query[latent.key_dim..]);
                }
            }
        });
        let places = [
            Place {
                of_head: query_dim,
                columns: 0..latent.key_dim,
            },
            Place {
                of_head: head_dim,
                columns: dims..head_dim,
            },
        ];
        let matrices = &block.mixer[&MixerWeight::LatentKey];
        self.products_of_heads(
            (matrices, attention.heads),
            &places,
            (queries, &mut absorbed),
            of_head,
        );
        self.counters.end(begun, Operator::Mixer, || {
            let weights = [MixerWeight::LatentQuery, MixerWeight::LatentKey];
            let weights = weights.iter().filter_map(|it| block.mixer.get(it));
            let weights = weights.map(|values| size_of_val(&values[..])).sum();
            let read = size_of_val(&given[..]) + rows * head_dim * size_of::<f32>();
            Bytes::new(read, size_of_val(&absorbed[..]), weights)
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
        let places = [
            Place {
                of_head: head_dim,
                columns: dims..head_dim,
            },
            Place {
                of_head: latent.value_dim,
                columns: 0..latent.value_dim,
            },
        ];
        self.products_of_heads((matrix, attention.heads), &places, (sums, out), of_head);
        self.counters.end(begun, Operator::Mixer, || {
            Bytes::new(
                size_of_val(sums),
                size_of_val(out),
                size_of_val(&matrix[..]),
            )
        });
    }

    /// Multiplies some columns of each head with the matrix of that head. A task computes one head.
    fn products_of_heads(
        &self,
        (matrices, heads): (&[f32], usize),
        [from, to]: &[Place; 2],
        (x, out): (&[f32], &mut [f32]),
        [gathered, product]: &mut [Vec<f32>; 2],
    ) {
        let (inner, outer) = (from.columns.len(), to.columns.len());
        let (in_row, out_row) = (heads * from.of_head, heads * to.of_head);
        let rows = x.len() / in_row;
        for first in (0..heads).step_by(HEADS) {
            let count = HEADS.min(heads - first);
            gathered.resize(count * rows * inner, 0.0);
            product.resize(count * rows * outer, 0.0);
            let tasks = (
                chunks_mut(gathered, rows * inner),
                chunks_mut(product, rows * outer),
            );
            for_each_chunk(tasks, 1, |head, (gathered, product)| {
                let head = first + head;
                for (row, gathered) in x.chunks_exact(in_row).zip(gathered.chunks_exact_mut(inner))
                {
                    let columns = &row[head * from.of_head..][from.columns.clone()];
                    gathered.copy_from_slice(columns);
                }
                let matrix = Matrix::F32(&matrices[head * inner * outer..][..inner * outer]);
                let of_product = OutputMut::new(product, outer);
                matmul(gathered, matrix, None, self.phase, of_product);
            });
            let product = &*product;
            let tasks = chunks_mut(out, TASK_ROWS * out_row);
            for_each_chunk(tasks, 1, |task, out| {
                for (row, out) in out.chunks_exact_mut(out_row).enumerate() {
                    let row = task * TASK_ROWS + row;
                    let heads = out.chunks_exact_mut(to.of_head).skip(first);
                    for (head, out) in heads.take(count).enumerate() {
                        let values = &product[(head * rows + row) * outer..][..outer];
                        out[to.columns.clone()].copy_from_slice(values);
                    }
                }
            });
        }
    }
}

/// Some columns of each head in rows of heads of this width.
struct Place {
    of_head: usize,
    columns: Range<usize>,
}
