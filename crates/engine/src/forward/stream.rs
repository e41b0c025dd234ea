//! The beginning and the end of the residual stream.

use std::sync::Arc;

use triad_kernels::activation::add;
use triad_kernels::lock;
use triad_kernels::rope::Angles;

use super::subgraphs::{Chunk, ForwardContext, read, write};
use super::{Buffers, Segment};
use crate::pictures::{PictureRows, is_of_picture};
use crate::statistics::{Bytes, Operator};

impl ForwardContext<'_> {
    /// Fills the residual stream with the embedding of `tokens`, one for each row.
    pub fn begin(&self, tokens: &[u32], chunk: Chunk) {
        let Chunk { segments, buffers } = chunk;
        let (hidden, begun) = (self.description.hidden, self.counters.begin());
        *lock(&buffers.shadow_of) = None;
        *lock(&buffers.requested) = None;
        let mut x = buffers.x.write(hidden, 0..tokens.len());
        let mut added = write(&buffers.added_rows);
        added.clear();
        for (row, (token, x)) in tokens.iter().zip(x.chunks_exact_mut(hidden)).enumerate() {
            match self.picture(*token) {
                None => self.embed(*token, x),
                Some(picture) => {
                    let (input, later) = picture.row(*token).split_at(hidden);
                    x.copy_from_slice(input);
                    if !later.is_empty() {
                        added.push((row, *token, picture));
                    }
                }
            }
        }
        drop(added);
        self.join_states(segments, &mut x);
        self.add_inputs(tokens, chunk, &mut x);
        self.token_inputs(tokens, &x, buffers);
        self.begin_streams(&x, buffers);
        let mut all = write(&buffers.angles);
        all.resize_with(self.rotation.distinct.len(), Angles::default);
        let has_axes = segments.iter().any(|it| !it.layout.axes.is_empty());
        let rope = self.description.picture_rope.filter(|_| has_axes);
        for (angles, (frequencies, factor)) in all.iter_mut().zip(&self.rotation.distinct) {
            match rope {
                Some(rope) => angles.fill_by_axis(
                    segments.iter().flat_map(Segment::axes),
                    frequencies,
                    &rope.axes(frequencies.len()),
                    *factor,
                ),
                None => angles.fill(
                    segments.iter().flat_map(Segment::positions),
                    frequencies,
                    *factor,
                ),
            }
        }
        self.counters.end(begun, Operator::Embedding, || {
            Bytes::new(
                0,
                size_of_val(&x[..]),
                tokens.len() * self.weights.embedding_row_bytes(),
            )
        });
    }

    /// Returns the picture that `token` is a row of.
    fn picture(&self, token: u32) -> Option<Arc<PictureRows>> {
        let picture = || {
            self.pictures
                .rows_with(token)
                .expect("a session holds its pictures")
        };
        is_of_picture(token).then(picture)
    }

    /// Adds the rows of pictures that come after the block `index` to the residual stream.
    pub(super) fn add_picture_rows(&self, index: usize, buffers: &Buffers) {
        let hidden = self.description.hidden;
        for (row, token, picture) in &*read(&buffers.added_rows) {
            let later = picture.row(*token).chunks_exact(hidden).nth(1 + index);
            if let Some(later) = later {
                add(&mut buffers.x.write(hidden, *row..row + 1), later);
            }
        }
    }

    /// Writes the first value of the residual stream: the embedding of `token`, or the row of a picture that it stands for.
    pub fn embed(&self, token: u32, x: &mut [f32]) {
        if let Some(picture) = self.picture(token) {
            x.copy_from_slice(&picture.row(token)[..x.len()]);
            return;
        }
        self.weights.embed(token, x);
        x.iter_mut()
            .for_each(|x| *x *= self.description.embedding_scale);
    }

    /// Adds the output of the last block to the residual stream.
    pub fn end(&self, chunk: Chunk) {
        self.join_shadow(chunk.rows(), chunk.buffers);
        if let Some(last) = self.weights.blocks.len().checked_sub(1) {
            self.add_last_adapters(last, chunk);
            self.end_block(last, chunk);
            self.end_streams(chunk.rows(), chunk.buffers);
        }
    }
}
