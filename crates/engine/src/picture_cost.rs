//! The cost of a picture: rows in the context, and arithmetic and memory of the encoder.

use serde::Serialize;
use triad_model::vision::{ProjectorLayer, VisionDescription, VisionLayer};

use crate::error::Result;

/// Rows of the feed-forward that the encoder computes at once.
const TILE_ROWS: usize = 1024;

/// The cost of the views of a picture. Their arithmetic is that of multiplications and additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PictureCost {
    /// Views that the encoder computes one after the other.
    pub views: usize,
    /// Patches of all views.
    pub patches: usize,
    /// Rows in the context of the text model.
    pub rows: usize,
    /// Operations of linear layers.
    pub linear_operations: f64,
    /// Operations of attention.
    pub attention_operations: f64,
    /// Bytes of activations of the largest view, with its pixels and rows.
    pub activation_bytes: usize,
}

impl PictureCost {
    /// Returns the cost of views with these heights and widths in pixels.
    ///
    /// # Errors
    /// If the encoder can't read a view of this size.
    pub fn new(description: &VisionDescription, views: &[[usize; 2]]) -> Result<Self> {
        let mut cost = Self::default();
        for view in views {
            cost.add(description, *view)?;
        }
        Ok(cost)
    }

    fn add(&mut self, description: &VisionDescription, [height, width]: [usize; 2]) -> Result<()> {
        let [high, wide] = description.cells(height, width)?;
        let (rows, of_cell) = (high * wide, description.projector.merge.pow(2));
        let patches = rows * of_cell;
        let all = patches + usize::from(description.class_token);
        for layer in description.layers() {
            let [outputs, inputs, ..] = layer.shape[..] else {
                continue;
            };
            let (weights, count) = match layer.layer {
                // The frames are added when the model is loaded.
                VisionLayer::Patch => (outputs * 3 * description.patch.pow(2), patches),
                VisionLayer::Block(..) => (outputs * inputs, all),
                VisionLayer::Projector(_, ProjectorLayer::First | ProjectorLayer::Last) => {
                    (outputs * inputs, rows)
                }
                _ => continue,
            };
            self.linear_operations += 2.0 * weights as f64 * count as f64;
        }
        let square = |count: usize| (count as f64).powi(2);
        let pairs: f64 = match &description.windows {
            None => description.blocks as f64 * square(all),
            Some(windows) => {
                let lengths = |cells: usize| {
                    let side = windows.side;
                    (0..cells.div_ceil(side)).map(move |at| side.min(cells - at * side))
                };
                let of_window = lengths(high).map(|high| {
                    let of_row = lengths(wide).map(|wide| square(high * wide * of_cell));
                    of_row.sum::<f64>()
                });
                let windowed: f64 = of_window.sum();
                let of_block = windows.whole.iter().map(|whole| match whole {
                    true => square(all),
                    false => windowed,
                });
                of_block.sum()
            }
        };
        // Scores, and the sums of values.
        self.attention_operations += 4.0 * description.hidden as f64 * pairs;
        let joined = if description.joined { 3 } else { 0 };
        // The residual stream, its norm, queries, keys, values and what attention makes of them.
        let of_block = all * description.hidden * (6 + joined);
        let gates = if description.gated { 2 } else { 1 };
        let tile = all.min(TILE_ROWS) * (description.inner * gates + description.hidden);
        let output = rows * description.width * (1 + description.deepstack.len());
        let floats = 3 * height * width + of_block + tile + output;
        self.activation_bytes = self.activation_bytes.max(floats * size_of::<f32>());
        self.views += 1;
        self.patches += patches;
        self.rows += rows;
        Ok(())
    }
}
