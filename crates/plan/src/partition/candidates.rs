//! The partitions of a product from which the solver chooses: one processor alone, and cuts for two and for three.
//!
//! Processors with static shapes come first, so that a remainder that is no multiple goes to a processor that computes
//! any shape.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;

use super::{Alignment, Part, Participant, Partition, Phase, Piece, ProductShape, Strategy};
use crate::processors::ProcessorId;

/// Maximum number of positions for cutting columns in three. With more columns, cuts are at a larger multiple.
const MAX_PLACES_OF_THREE: usize = 64;

/// A processor and the ways in which it can compute some rows, each a list of lengths that run one after another.
struct Member<'a> {
    processor: ProcessorId,
    covers: &'a [Vec<usize>],
}

/// Calls `visit` with each candidate in which one participant computes the whole product: in one run, padded to a
/// standard length, or as a pipe of several.
///
/// # Errors
/// Those of `visit`.
pub fn whole<E>(
    shape: ProductShape,
    phase: Phase,
    participants: &[Participant],
    visit: impl FnMut(Strategy, &[Piece]) -> Result<(), E>,
) -> Result<(), E> {
    let mut generator = Generator {
        shape,
        phase,
        alignment: Alignment::default(),
        pieces: Vec::new(),
        visit,
    };
    participants
        .iter()
        .try_for_each(|participant| generator.whole(participant))
}

/// Calls `visit` with each candidate that divides a product between two of the participants, then among three, cut
/// where `alignment` allows.
///
/// # Errors
/// Those of `visit`.
pub fn cuts<E>(
    shape: ProductShape,
    phase: Phase,
    participants: &[Participant],
    alignment: Alignment,
    visit: impl FnMut(Strategy, &[Piece]) -> Result<(), E>,
) -> Result<(), E> {
    let mut generator = Generator {
        shape,
        phase,
        alignment,
        pieces: Vec::new(),
        visit,
    };
    let mut sorted: Vec<_> = participants.iter().collect();
    sorted.sort_by_key(|participant| !participant.is_static());
    for (index, &first) in sorted.iter().enumerate() {
        for &second in &sorted[index + 1..] {
            generator.cut_columns_of_all_rows(&[first, second])?;
            generator.cut_rows(first, second)?;
            if alignment.margins && first.is_static() {
                let multiples = shape.rows / alignment.rows * alignment.rows;
                let after_all = Some(multiples).filter(|place| (1..shape.rows).contains(place));
                generator.cut_rows_and_columns(first, second, second, after_all)?;
            }
        }
    }
    for (index, &first) in sorted.iter().enumerate() {
        for (other, &second) in sorted.iter().enumerate().skip(index + 1) {
            for &third in &sorted[other + 1..] {
                generator.cut_columns_of_all_rows(&[first, second, third])?;
                for [one, two, margin] in [
                    [first, second, third],
                    [first, third, second],
                    [second, third, first],
                ] {
                    generator.cut_rows_and_columns(one, two, margin, generator.row_places())?;
                }
            }
        }
    }
    Ok(())
}

/// Returns all candidates of a product with the paper's alignment, whole ones first.
pub fn all(shape: ProductShape, phase: Phase, participants: &[Participant]) -> Vec<Partition> {
    let mut partitions = Vec::new();
    let keep = |strategy, pieces: &[Piece]| {
        partitions.push(Partition {
            strategy,
            pieces: pieces.to_vec(),
        });
    };
    each(shape, phase, participants, keep);
    partitions
}

/// Calls `visit` with each candidate, whole ones first.
fn each(
    shape: ProductShape,
    phase: Phase,
    participants: &[Participant],
    mut visit: impl FnMut(Strategy, &[Piece]),
) {
    let mut visit = |strategy, pieces: &[Piece]| {
        visit(strategy, pieces);
        Ok::<_, Infallible>(())
    };
    let Ok(()) = whole(shape, phase, participants, &mut visit);
    let Ok(()) = cuts(shape, phase, participants, Alignment::default(), &mut visit);
}

/// Returns the shapes whose costs are needed to choose among all candidates of a product. A profiler measures these on
/// each processor (§4.3).
pub fn shapes(
    shape: ProductShape,
    phase: Phase,
    participants: &[Participant],
) -> BTreeSet<(ProcessorId, ProductShape)> {
    let mut shapes = BTreeSet::new();
    each(shape, phase, participants, |_, pieces| {
        shapes.extend(
            pieces
                .iter()
                .map(|piece| (piece.processor, piece.shape(shape.depth))),
        );
    });
    shapes
}

/// Returns the ways to cut `columns` at multiples into as many ranges as there are members, each given by its bounds.
fn bounds(columns: usize, multiple: usize, members: usize) -> Vec<[usize; 4]> {
    let places = (columns - 1) / multiple;
    if members == 2 {
        return (1..=places)
            .map(|place| [0, place * multiple, columns, columns])
            .collect();
    }
    let step = multiple * places.div_ceil(MAX_PLACES_OF_THREE).max(1);
    let at = |place: usize| place * step;
    let places = (columns - 1) / step;
    let pairs =
        (1..=places).flat_map(|first| (first + 1..=places).map(move |second| (first, second)));
    pairs
        .map(|(first, second)| [0, at(first), at(second), columns])
        .collect()
}

struct Generator<V> {
    shape: ProductShape,
    phase: Phase,
    alignment: Alignment,
    /// The pieces of the current candidate.
    pieces: Vec<Piece>,
    visit: V,
}

impl<E, V: FnMut(Strategy, &[Piece]) -> Result<(), E>> Generator<V> {
    fn whole(&mut self, participant: &Participant) -> Result<(), E> {
        for cover in participant.covers(self.shape.rows, self.phase) {
            self.pieces.clear();
            self.push(
                participant.processor,
                &cover,
                0..self.shape.rows,
                0..self.shape.columns,
            );
            let strategy = match &*self.pieces {
                [piece] if piece.is_padded() => Strategy::Padding,
                [_] => Strategy::Alone,
                _ => Strategy::Pipe,
            };
            (self.visit)(strategy, &self.pieces)?;
        }
        Ok(())
    }

    /// Visits candidates of row-cutting and hybrid cutting.
    fn cut_columns_of_all_rows(&mut self, participants: &[&Participant]) -> Result<(), E> {
        let (rows, columns) = (self.shape.rows, self.shape.columns);
        let covers: Vec<_> = participants
            .iter()
            .map(|participant| participant.covers(rows, self.phase))
            .collect();
        let members: Vec<_> = participants
            .iter()
            .zip(&covers)
            .map(|(participant, covers)| Member {
                processor: participant.processor,
                covers,
            })
            .collect();
        self.cut_columns(
            &members,
            rows,
            None,
            &bounds(columns, self.alignment.columns, members.len()),
        )
    }

    /// Visits candidates of sequence-length cutting and multi-sequence-length cutting.
    fn cut_rows(&mut self, first: &Participant, second: &Participant) -> Result<(), E> {
        let (rows, columns) = (self.shape.rows, self.shape.columns);
        for place in self.row_places() {
            let Some(before) = first.exactly(place) else {
                continue;
            };
            for following in second.covers(rows - place, self.phase) {
                self.pieces.clear();
                self.push(first.processor, &before, 0..place, 0..columns);
                self.push(second.processor, &following, place..rows, 0..columns);
                let strategy = match self.pieces.len() {
                    2 => Strategy::SequenceLengthCutting,
                    _ => Strategy::MultiSequenceLengthCutting,
                };
                (self.visit)(strategy, &self.pieces)?;
            }
        }
        Ok(())
    }

    /// Visits candidates that cut rows at one of `places`. The remaining rows, the margin, go to the processor `margin`
    /// if it computes any shape. The columns of the other rows are cut between `one` and `two`.
    fn cut_rows_and_columns(
        &mut self,
        one: &Participant,
        two: &Participant,
        margin: &Participant,
        places: impl IntoIterator<Item = usize>,
    ) -> Result<(), E> {
        if margin.is_static() {
            return Ok(());
        }
        let (rows, columns) = (self.shape.rows, self.shape.columns);
        let bounds = bounds(columns, self.alignment.columns, 2);
        for place in places {
            let (Some(of_one), Some(of_two)) = (one.exactly(place), two.exactly(place)) else {
                continue;
            };
            let members = [
                Member {
                    processor: one.processor,
                    covers: &[of_one],
                },
                Member {
                    processor: two.processor,
                    covers: &[of_two],
                },
            ];
            let part = Part {
                rows: place..rows,
                columns: 0..columns,
            };
            let margin = Piece {
                processor: margin.processor,
                rows: part.rows.len(),
                part,
            };
            self.cut_columns(&members, place, Some(&margin), &bounds)?;
        }
        Ok(())
    }

    /// Cuts the columns of the first `rows` rows, with each combination of the members' covers.
    fn cut_columns(
        &mut self,
        members: &[Member],
        rows: usize,
        margin: Option<&Piece>,
        bounds: &[[usize; 4]],
    ) -> Result<(), E> {
        let combinations: usize = members.iter().map(|member| member.covers.len()).product();
        for bounds in bounds {
            for combination in 0..combinations {
                self.pieces.clear();
                let mut choice = combination;
                for (index, Member { processor, covers }) in members.iter().enumerate() {
                    let cover = &covers[choice % covers.len()];
                    choice /= covers.len();
                    self.push(*processor, cover, 0..rows, bounds[index]..bounds[index + 1]);
                }
                let in_one_go =
                    self.pieces.len() == members.len() && !self.pieces.iter().any(Piece::is_padded);
                let strategy = match (margin, in_one_go) {
                    (Some(_), _) => Strategy::MarginAndRowCutting,
                    (None, true) => Strategy::RowCutting,
                    (None, false) => Strategy::HybridCutting,
                };
                self.pieces.extend(margin.cloned());
                (self.visit)(strategy, &self.pieces)?;
            }
        }
        Ok(())
    }

    /// Returns the positions at which rows can be cut: none in decode.
    fn row_places(&self) -> impl Iterator<Item = usize> + use<E, V> {
        let end = if self.phase == Phase::Prefill {
            self.shape.rows
        } else {
            0
        };
        (self.alignment.rows..end).step_by(self.alignment.rows)
    }

    /// Adds a piece for each length of `cover`, in the order of rows.
    fn push(
        &mut self,
        processor: ProcessorId,
        cover: &[usize],
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        let mut start = rows.start;
        for length in cover {
            let end = (start + length).min(rows.end);
            let part = Part {
                rows: start..end,
                columns: columns.clone(),
            };
            self.pieces.push(Piece {
                processor,
                part,
                rows: *length,
            });
            start = end;
        }
    }
}
