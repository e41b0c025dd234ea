//! Learned embeddings of positions and token types, which are added to that of the token.

use super::subgraphs::{Chunk, ForwardContext};
use crate::weights::Embedding;

impl ForwardContext<'_> {
    /// Adds the embeddings of positions and token types to `x[rows, hidden]`, if the model has them.
    pub(super) fn add_inputs(&self, tokens: &[u32], chunk: Chunk, x: &mut [f32]) {
        let tables = &self.weights.encoder;
        if tables.positions.is_none() && tables.token_types.is_none() {
            return;
        }
        let hidden = self.description.hidden;
        let mut added = vec![0.0; hidden];
        let mut add = |table: &Embedding, row: usize, x: &mut [f32]| {
            table.row(row as u32, &mut added);
            x.iter_mut().zip(&added).for_each(|(x, added)| *x += added);
        };
        let positions = self.description.added_inputs.positions.as_ref();
        for segment in chunk.segments {
            let mut position = segment.position;
            for row in segment.rows.clone() {
                let x = &mut x[row * hidden..][..hidden];
                if let (Some(described), Some(table)) = (positions, &tables.positions) {
                    // Padding has the row before the first position, and does not count.
                    let place = match described.padding == Some(tokens[row]) {
                        true => described.first - 1,
                        false => {
                            position += 1;
                            described.first + position - 1
                        }
                    };
                    add(table, place, x);
                }
                if let Some(table) = &tables.token_types {
                    let is_second = segment.second.is_some_and(|second| row >= second);
                    add(table, usize::from(is_second), x);
                }
            }
        }
    }
}
