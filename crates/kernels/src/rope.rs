//! Rotary position embedding: rotates pairs of a head's dimensions by an angle that grows with position.

use crate::vectorize::vectorize;

/// The two dimensions that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + dims/2`.
    Halves,
    /// `2i` and `2i + 1`.
    Adjacent,
    /// [`Pairing::Halves`] of each half of the dimensions by itself; the first half has the first half of the angles.
    HalvesOfHalves,
}

/// Cosines and sines for the position of every row: `[rows, dims / 2]` each.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    cosines: Vec<f32>,
    sines: Vec<f32>,
    pairs: usize,
}

impl Angles {
    /// Replaces the angles by those of `positions`: position · frequency. Cosines and sines are multiplied by `factor`.
    pub fn fill(
        &mut self,
        positions: impl IntoIterator<Item = usize>,
        frequencies: &[f32],
        factor: f32,
    ) {
        self.pairs = frequencies.len();
        self.cosines.clear();
        self.sines.clear();
        for position in positions {
            for frequency in frequencies {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                self.cosines.push(cosine * factor);
                self.sines.push(sine * factor);
            }
        }
    }

    /// Replaces the angles by those of `positions`, which have several axes: position on the pair's axis · frequency.
    /// Cosines and sines are multiplied by `factor`.
    ///
    /// # Panics
    /// If a pair has no axis.
    pub fn fill_by_axis(
        &mut self,
        positions: impl IntoIterator<Item = [usize; 3]>,
        frequencies: &[f32],
        axes: &[u8],
        factor: f32,
    ) {
        assert_eq!(frequencies.len(), axes.len(), "one axis for each pair");
        self.pairs = frequencies.len();
        self.cosines.clear();
        self.sines.clear();
        for position in positions {
            for (frequency, axis) in frequencies.iter().zip(axes) {
                let (sine, cosine) = (position[usize::from(*axis)] as f32 * frequency).sin_cos();
                self.cosines.push(cosine * factor);
                self.sines.push(sine * factor);
            }
        }
    }
}

/// Rotates every head of every row of `x[rows, heads, head_dim]`; row `r` by row `first + r` of `angles`. Dimensions of
/// a head after the first `2 · pairs` do not change.
///
/// # Panics
/// If `angles` has fewer rows than that, or a head fewer dimensions than `2 · pairs`.
pub fn rope(
    x: &mut [f32],
    head_dim: usize,
    heads: usize,
    angles: &Angles,
    first: usize,
    pairing: Pairing,
) {
    let pairs = angles.pairs;
    if pairs == 0 {
        return;
    }
    let mut rows = x.chunks_exact_mut(heads * head_dim);
    let angles = angles
        .cosines
        .chunks_exact(pairs)
        .zip(angles.sines.chunks_exact(pairs))
        .skip(first);
    assert!(rows.len() <= angles.len(), "an angle for every row");
    vectorize(
        #[inline(always)]
        || {
            for (row, (cosines, sines)) in rows.by_ref().zip(angles.clone()) {
                row.chunks_exact_mut(head_dim)
                    .for_each(|head| rotate(&mut head[..2 * pairs], cosines, sines, pairing));
            }
        },
    );
}

#[inline(always)]
fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32], pairing: Pairing) {
    match pairing {
        Pairing::Halves => rotate_halves(head, cosines, sines),
        Pairing::Adjacent => {
            let (pairs, _) = head.as_chunks_mut::<2>();
            pairs
                .iter_mut()
                .zip(cosines.iter().zip(sines))
                .for_each(|([a, b], angle)| rotate_pair((a, b), angle));
        }
        Pairing::HalvesOfHalves => {
            let half = cosines.len() / 2;
            let (first, second) = head.split_at_mut(2 * half);
            rotate_halves(first, &cosines[..half], &sines[..half]);
            rotate_halves(second, &cosines[half..], &sines[half..]);
        }
    }
}

#[inline(always)]
fn rotate_halves(x: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = x.split_at_mut(cosines.len());
    first
        .iter_mut()
        .zip(second)
        .zip(cosines.iter().zip(sines))
        .for_each(|(pair, angle)| rotate_pair(pair, angle));
}

#[inline(always)]
fn rotate_pair((a, b): (&mut f32, &mut f32), (cosine, sine): (&f32, &f32)) {
    (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FREQUENCIES: [f32; 3] = [1.0, 0.1, 0.01];

    fn rotated(x: &[f32], position: usize, pairing: Pairing) -> Vec<f32> {
        let mut angles = Angles::default();
        angles.fill(position..position + 1, &FREQUENCIES, 1.0);
        let mut x = x.to_vec();
        let head_dim = x.len();
        rope(&mut x, head_dim, 1, &angles, 0, pairing);
        x
    }

    proptest! {
        #[test]
        fn scores_depend_on_the_distance_of_positions_only(
            query in prop::collection::vec(-1f32..1.0, 8), key in prop::collection::vec(-1f32..1.0, 8),
            position in 0usize..50, shift in 0usize..50, halves: bool,
        ) {
            let pairing = if halves { Pairing::Halves } else { Pairing::Adjacent };
            let score = |shift| -> f32 {
                let query = rotated(&query, position + shift, pairing);
                let key = rotated(&key, shift, pairing);
                query.iter().zip(&key).map(|(q, k)| q * k).sum()
            };
            prop_assert!((score(0) - score(shift)).abs() < 1e-4);
        }

        #[test]
        fn dimensions_beyond_the_rotated_ones_stay(x in prop::collection::vec(-1f32..1.0, 10), position in 0usize..99) {
            prop_assert_eq!(&rotated(&x, position, Pairing::Halves)[6..], &x[6..]);
        }
    }

    #[test]
    fn pairings_differ_by_a_permutation_only() {
        let halves = rotated(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 7, Pairing::Halves);
        let adjacent = rotated(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0], 7, Pairing::Adjacent);
        let permuted: Vec<f32> = [0, 2, 4, 1, 3, 5].map(|i| adjacent[i]).to_vec();
        assert_eq!(halves, permuted);
    }

    #[test]
    fn halves_of_halves_rotate_each_half_by_its_own_angles() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let mut angles = Angles::default();
        angles.fill_by_axis([[3, 5, 0]], &[1.0, 0.1, 1.0, 0.1], &[0, 0, 1, 1], 1.0);
        let mut found = x;
        rope(&mut found, 8, 1, &angles, 0, Pairing::HalvesOfHalves);
        let half = |x: &[f32], position: usize| {
            let mut angles = Angles::default();
            angles.fill(position..position + 1, &[1.0, 0.1], 1.0);
            let mut x = x.to_vec();
            rope(&mut x, 4, 1, &angles, 0, Pairing::Halves);
            x
        };
        assert_eq!(found[..4], half(&x[..4], 3));
        assert_eq!(found[4..], half(&x[4..], 5));
    }
}
