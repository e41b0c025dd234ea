//! The least time of a product over more cuts than the [solver](super::solve) considers, found without its candidates.
//! It is a reference for the solver's choices.

use std::collections::HashMap;

use serde::Serialize;

use super::costs::{Costs, Joins};
use super::{Alignment, Participant, PartitionError, Phase, ProductShape, Shapes, UnknownCost};

/// The least seconds of a product on one or two processors, among all cuts of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Exhausted {
    /// With at most one cut, of rows or of columns, at any multiple from either end. In prefill, processors with static
    /// shapes compute their rows in the best composition of standard lengths.
    pub one_cut: f64,
    /// With at most two cuts: one processor computes a rectangle at a corner, the other one the rest, in two
    /// rectangles.
    pub two_cuts: f64,
    /// Number of cuts compared.
    pub ways: usize,
}

/// Compares all cuts of a product for each pair of `participants`, and each participant alone.
///
/// # Errors
/// If there is no participant, or a cost is unknown.
pub fn exhaust<C: Costs>(
    (shape, phase): (ProductShape, Phase),
    participants: &[Participant],
    (costs, joins): (&C, Joins),
    alignment: Alignment,
) -> Result<Exhausted, PartitionError> {
    let mut times = Times {
        costs,
        phase,
        depth: shape.depth,
        tables: HashMap::new(),
    };
    let (rows, columns) = (shape.rows, shape.columns);
    let mut found = Exhausted {
        one_cut: f64::INFINITY,
        two_cuts: f64::INFINITY,
        ways: 0,
    };
    for participant in participants {
        let seconds = times.seconds(participant, (rows, columns), false)?;
        let total = seconds + joins.seconds([(participant.processor, seconds)].into_iter());
        found.one_cut = found.one_cut.min(total);
        found.ways += 1;
    }
    let parts_of_rows = if phase == Phase::Prefill {
        parts(rows, alignment.rows)
    } else {
        vec![0]
    };
    let parts_of_columns = parts(columns, alignment.columns);
    for (index, one) in participants.iter().enumerate() {
        for (_, other) in participants
            .iter()
            .enumerate()
            .filter(|(second, _)| *second != index)
        {
            for &r in &parts_of_rows {
                for &c in parts_of_columns.iter().filter(|c| r > 0 || **c > 0) {
                    let corner = times.seconds(other, (rows - r, columns - c), true)?;
                    let mut of_one = |sizes| times.seconds(one, sizes, true);
                    // The rest around the corner: rows of full width and the columns next to the corner, or columns of
                    // full height and the rows below.
                    let (is_one_cut, rest) = match (r, c) {
                        (0, c) => (true, of_one((rows, c))?),
                        (r, 0) => (true, of_one((r, columns))?),
                        (r, c) => {
                            let rows_first = of_one((r, columns))? + of_one((rows - r, c))?;
                            (
                                false,
                                rows_first.min(of_one((rows, c))? + of_one((r, columns - c))?),
                            )
                        }
                    };
                    let busy = [(one.processor, rest), (other.processor, corner)];
                    let total = rest.max(corner) + joins.seconds(busy.into_iter());
                    if is_one_cut {
                        found.one_cut = found.one_cut.min(total);
                    }
                    found.two_cuts = found.two_cuts.min(total);
                    found.ways += 1;
                }
            }
        }
    }
    if found.ways == 0 {
        return Err(PartitionError::NoProcessor);
    }
    found.two_cuts = found.two_cuts.min(found.one_cut);
    Ok(found)
}

/// Returns the sizes that a cut at a multiple leaves on either side, and 0 for no cut.
fn parts(all: usize, multiple: usize) -> Vec<usize> {
    let places = (1..)
        .map(|number| number * multiple)
        .take_while(|place| *place < all);
    let mut parts: Vec<_> = places
        .flat_map(|place| [place, all - place])
        .chain([0])
        .collect();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Times of rectangles of a product.
struct Times<'a, C> {
    costs: &'a C,
    phase: Phase,
    depth: usize,
    /// For each processor, columns and whether others work: the least seconds for each multiple of the shortest
    /// standard length of rows.
    tables: HashMap<(usize, usize, bool), Vec<f64>>,
}

impl<C: Costs> Times<'_, C> {
    /// Returns the least seconds of some rows and columns on a processor.
    fn seconds(
        &mut self,
        participant: &Participant,
        (rows, columns): (usize, usize),
        is_concurrent: bool,
    ) -> Result<f64, UnknownCost> {
        let (costs, processor, depth) = (self.costs, participant.processor, self.depth);
        let in_one_go = |rows: usize| {
            let shape = ProductShape {
                rows,
                columns,
                depth,
            };
            if is_concurrent {
                costs.concurrent_seconds(processor, shape)
            } else {
                costs.seconds(processor, shape)
            }
        };
        let lengths = match (&participant.shapes, self.phase) {
            (Shapes::Static(lengths), Phase::Prefill) => lengths.lengths(),
            _ => return in_one_go(rows),
        };
        // Lengths are powers of two, so all are multiples of the shortest.
        let unit = lengths[0];
        let of_lengths = lengths
            .iter()
            .map(|length| Ok((length / unit, in_one_go(*length)?)));
        let table = self
            .tables
            .entry((processor.index(), columns, is_concurrent))
            .or_insert_with(|| vec![0.0]);
        let needed = rows.div_ceil(unit);
        if table.len() <= needed {
            let of_lengths: Vec<_> = of_lengths.collect::<Result<_, UnknownCost>>()?;
            while table.len() <= needed {
                let units = table.len();
                let with = of_lengths
                    .iter()
                    .map(|(length, seconds)| seconds + table[units.saturating_sub(*length)]);
                let least = with.fold(f64::INFINITY, f64::min);
                table.push(least);
            }
        }
        Ok(table[needed])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::StandardLengths;
    use super::super::solve::{Restriction, Solver};
    use super::*;
    use crate::processors::ProcessorId;

    const FLOAT: ProcessorId = ProcessorId::new(0);
    const OTHER: ProcessorId = ProcessorId::new(1);

    /// Costs of whole, scattered seconds; one second more while another processor works.
    struct Unordered(u64);

    impl Costs for Unordered {
        fn seconds(&self, processor: ProcessorId, shape: ProductShape) -> Result<f64, UnknownCost> {
            let sizes = [processor.index(), shape.rows, shape.columns, shape.depth];
            let mix = |hash: u64, size: usize| {
                (hash ^ size as u64)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .rotate_left(23)
            };
            Ok((sizes.into_iter().fold(self.0, mix) % 24 + 1) as f64)
        }

        fn concurrent_seconds(
            &self,
            processor: ProcessorId,
            shape: ProductShape,
        ) -> Result<f64, UnknownCost> {
            Ok(self.seconds(processor, shape)? + 1.0)
        }
    }

    fn participants(lengths: [Option<Vec<usize>>; 2]) -> Vec<Participant> {
        let participant = |(processor, lengths): (ProcessorId, Option<Vec<usize>>)| {
            let shapes = lengths.map_or(Shapes::Dynamic, |lengths| {
                Shapes::Static(StandardLengths::new(lengths).unwrap())
            });
            Participant { processor, shapes }
        };
        [FLOAT, OTHER]
            .into_iter()
            .zip(lengths)
            .map(participant)
            .collect()
    }

    /// Returns the same costs for each processor that computes longest. If two take equally long, the solver counts the
    /// first and `exhaust` uses the better.
    fn joins() -> Joins {
        Joins::new(FLOAT, 3.0, 3.0, 2.0).unwrap()
    }

    /// Returns the least time of all compositions of lengths that run one after another.
    fn least(lengths: &[usize], rows: usize, seconds: &impl Fn(usize) -> f64) -> f64 {
        let following = |length: usize| {
            if length >= rows {
                0.0
            } else {
                least(lengths, rows - length, seconds)
            }
        };
        lengths
            .iter()
            .map(|length| seconds(*length) + following(*length))
            .fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn no_choice_of_the_solver_is_below_the_least_of_all_cuts_and_without_static_shapes_it_is_the_least_one_cut(
            lengths in prop::option::of(prop::sample::subsequence(vec![32, 64, 128, 256], 1..=4)),
            tiles in (1usize..9, 1usize..6), is_decode in any::<bool>(), seed in any::<u64>(),
        ) {
            let participants = participants([None, lengths.clone()]);
            let (phase, rows) = if is_decode { (Phase::Decode, tiles.0) } else { (Phase::Prefill, 32 * tiles.0) };
            let shape = ProductShape::new(rows, 256 * tiles.1, 64).unwrap();
            let solver = Solver::new(participants.clone(), Unordered(seed), joins()).unwrap();
            let chosen = solver.solve(shape, phase, Restriction::Auto).unwrap().best.seconds;
            let costs = (&Unordered(seed), joins());
            let found = exhaust((shape, phase), &participants, costs, Alignment::default()).unwrap();
            prop_assert!(found.two_cuts <= found.one_cut && found.one_cut <= chosen, "{:?}, {}", found, chosen);
            if lengths.is_none() || is_decode {
                prop_assert_eq!(found.one_cut, chosen);
            }
        }

        #[test]
        fn rows_on_static_shapes_take_the_least_of_all_compositions(
            lengths in prop::sample::subsequence(vec![32, 64, 128, 256], 1..=4), rows in 1usize..260, seed in any::<u64>(),
        ) {
            let participant = &participants([None, Some(lengths.clone())])[1];
            let (costs, phase) = (Unordered(seed), Phase::Prefill);
            let mut times = Times { costs: &costs, phase, depth: 64, tables: HashMap::new() };
            let seconds = |length| costs.seconds(OTHER, ProductShape { rows: length, columns: 256, depth: 64 }).unwrap();
            prop_assert_eq!(times.seconds(participant, (rows, 256), false).unwrap(), least(&lengths, rows, &seconds));
        }
    }

    #[test]
    fn two_cuts_are_found_where_a_corner_is_all_that_the_other_processor_has_time_for() {
        /// Costs by area, with a launch time.
        struct OfArea;
        impl Costs for OfArea {
            fn seconds(
                &self,
                processor: ProcessorId,
                shape: ProductShape,
            ) -> Result<f64, UnknownCost> {
                let area = (shape.rows / 32 * (shape.columns / 256)) as f64;
                Ok(if processor == FLOAT { area } else { 8.0 * area })
            }
        }
        let shape = ProductShape::new(96, 768, 64).unwrap();
        let free = Joins::new(FLOAT, 0.0, 0.0, 0.0).unwrap();
        let found = exhaust(
            (shape, Phase::Prefill),
            &participants([None, None]),
            (&OfArea, free),
            Alignment::default(),
        );
        // There are nine tiles. The other processor computes none, three of them, or one, in the time of the other
        // eight.
        assert_eq!(
            found.unwrap(),
            Exhausted {
                one_cut: 9.0,
                two_cuts: 8.0,
                ways: 2 + 2 * 8
            }
        );
    }
}
