//! RoPE with several axes, for rows of pictures.

use serde::{Deserialize, Serialize};

/// The pairs of dimensions that rotate by each axis: time, row and column of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureRope {
    /// Pairs of each axis.
    pub sections: [usize; 3],
    /// Whether pairs of the axes take turns from the first one on (Qwen3-VL), or the pairs of an axis are consecutive
    /// (Qwen2-VL).
    pub interleaved: bool,
}

impl PictureRope {
    /// Returns the axis of each of `pairs` pairs.
    pub fn axes(&self, pairs: usize) -> Vec<u8> {
        let [time, rows, columns] = self.sections;
        let axis = |pair: usize| match self.interleaved {
            true if pair % 3 == 1 && pair < 3 * rows => 1,
            true if pair % 3 == 2 && pair < 3 * columns => 2,
            true => 0,
            false if pair < time => 0,
            false if pair < time + rows => 1,
            false => 2,
        };
        (0..pairs).map(axis).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_consecutive_or_take_turns_until_one_has_all_its_pairs() {
        let rope = |interleaved| PictureRope {
            sections: [4, 2, 2],
            interleaved,
        };
        assert_eq!(rope(false).axes(8), [0, 0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(rope(true).axes(8), [0, 1, 2, 0, 1, 2, 0, 0]);
    }
}
