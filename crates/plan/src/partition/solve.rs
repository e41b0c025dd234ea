//! The tensor partition solver (§4.3): of all candidates of a product, the one that is complete first.

use serde::Serialize;

use super::costs::{Costs, Joins};
use super::{
    Alignment, LONGEST, MOST_DECODE_ROWS, Participant, Partition, PartitionError, Phase, Piece,
    ProductShape, Strategy, candidates,
};
use crate::processors::ProcessorId;
use crate::schedule::parts::Part;

/// Rows of one plan of prefill: a longest standard length, and a rest that is shorter than another one.
const MOST_PREFILL_ROWS: usize = 2 * LONGEST - 1;

/// Which candidates are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Restriction {
    /// Whole products, each on the processor that is fastest (Hetero-layer in §5).
    Layer,
    /// Cut products, each on several processors.
    Tensor,
    /// Both: a product is cut where that is faster (Hetero-tensor in §5).
    Auto,
}

impl Restriction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Layer, Self::Tensor, Self::Auto];

    /// Name for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
        }
    }
}

/// A partition, and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// What is computed where.
    #[serde(flatten)]
    pub partition: Partition,
    /// From the beginning until all outputs are joined: the most seconds of a processor, and those of the join.
    pub seconds: f64,
    /// Of these, T_sync and T_copy.
    pub join_seconds: f64,
    /// Seconds that each processor with a piece computes, in the order of the pieces.
    pub busy: Vec<(ProcessorId, f64)>,
    /// Seconds of each piece.
    #[serde(skip)]
    pub of_pieces: Vec<f64>,
}

/// What the solver chose for a product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The product.
    pub shape: ProductShape,
    /// Its phase.
    pub phase: Phase,
    /// What is fastest of what was considered.
    pub best: Timed,
    /// The whole product on each processor alone, as it is fastest there, considered or not.
    pub alone: Vec<Timed>,
    /// Partitions that were considered.
    pub considered: usize,
}

impl Choice {
    /// The fastest of the processors alone.
    pub fn best_alone(&self) -> &Timed {
        let fastest = self
            .alone
            .iter()
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        fastest.expect("a solver has a participant")
    }

    /// Seconds of a part of a chunk, which may have fewer rows than were planned for: those of the piece that it is, on
    /// the processor of that piece. `None` on others.
    pub fn seconds_of_part(&self, part: &Part, processor: ProcessorId) -> Option<f64> {
        let is_it = |piece: &Piece| {
            let Part { rows, columns } = &piece.part;
            piece.processor == processor
                && rows.start == part.rows.start
                && *columns == part.columns
        };
        let mut pieces = self.best.partition.pieces.iter().zip(&self.best.of_pieces);
        pieces
            .find(|(piece, _)| is_it(piece))
            .map(|(_, seconds)| *seconds)
    }
}

/// The plan of a product for a prompt of any length: chunks of the longest standard length, one after the other, and
/// the rest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptPlan {
    /// How many chunks there are before the last one.
    pub chunks: usize,
    /// The choice for each of them, if there is one.
    pub chunk: Option<Choice>,
    /// The choice for the last one.
    pub last: Choice,
}

impl PromptPlan {
    /// Seconds of all chunks.
    pub fn seconds(&self) -> f64 {
        self.chunks as f64
            * self
                .chunk
                .as_ref()
                .map_or(0.0, |choice| choice.best.seconds)
            + self.last.best.seconds
    }

    /// The choices, each with the number of chunks that it is for.
    pub fn choices(&self) -> impl Iterator<Item = (usize, &Choice)> {
        self.chunk
            .iter()
            .map(|choice| (self.chunks, choice))
            .chain([(1, &self.last)])
    }
}

/// Chooses partitions for processors whose costs are known.
#[derive(Clone, Debug)]
pub struct Solver<C> {
    participants: Vec<Participant>,
    costs: C,
    joins: Joins,
}

impl<C: Costs> Solver<C> {
    /// A solver for these processors.
    ///
    /// # Errors
    /// If there is none, or one of them is there twice.
    pub fn new(
        participants: Vec<Participant>,
        costs: C,
        joins: Joins,
    ) -> Result<Self, PartitionError> {
        if participants.is_empty() {
            return Err(PartitionError::NoProcessor);
        }
        for (index, Participant { processor, .. }) in participants.iter().enumerate() {
            if participants[..index]
                .iter()
                .any(|other| other.processor == *processor)
            {
                return Err(PartitionError::Duplicate {
                    processor: *processor,
                });
            }
        }
        Ok(Self {
            participants,
            costs,
            joins,
        })
    }

    /// The partition with the least T_total = max over processors of the sum of their pieces + T_sync + T_copy, and of
    /// equal ones the first with the fewest pieces. Except with [`Restriction::Tensor`] it is never slower than any
    /// processor alone, by the costs of this solver.
    ///
    /// # Errors
    /// If a product has more than 2,047 rows in prefill or 16 in decode; if it has to be cut and there is no candidate;
    /// if a cost is not known that could matter: of each processor alone, and of pieces of a candidate whose other
    /// pieces do not take longer than what was found before.
    pub fn solve(
        &self,
        shape: ProductShape,
        phase: Phase,
        restriction: Restriction,
    ) -> Result<Choice, PartitionError> {
        self.solve_aligned(shape, phase, restriction, Alignment::default())
    }

    /// As [`Solver::solve`], cut at multiples of this alignment, which are above 0.
    ///
    /// # Errors
    /// As [`Solver::solve`].
    pub fn solve_aligned(
        &self,
        shape: ProductShape,
        phase: Phase,
        restriction: Restriction,
        alignment: Alignment,
    ) -> Result<Choice, PartitionError> {
        let most = if phase == Phase::Decode {
            MOST_DECODE_ROWS
        } else {
            MOST_PREFILL_ROWS
        };
        if shape.rows > most {
            return Err(PartitionError::Rows { shape, most });
        }
        let mut alone = Vec::with_capacity(self.participants.len());
        let mut search = Search::new(self, shape);
        for participant in &self.participants {
            let mut of_one = Search::new(self, shape);
            candidates::whole(
                shape,
                phase,
                std::slice::from_ref(participant),
                |strategy, pieces| {
                    if restriction != Restriction::Tensor {
                        search.consider(strategy, pieces)?;
                    }
                    of_one.consider(strategy, pieces)
                },
            )?;
            alone.extend(of_one.best());
        }
        if restriction != Restriction::Layer {
            let visit = |strategy, pieces: &[Piece]| search.consider(strategy, pieces);
            candidates::cuts(shape, phase, &self.participants, alignment, visit)?;
        }
        let considered = search.considered;
        let best = search.best().ok_or(PartitionError::NoCut { shape })?;
        Ok(Choice {
            shape,
            phase,
            best,
            alone,
            considered,
        })
    }

    /// T_total of some pieces of a product, by the costs of this solver.
    ///
    /// # Errors
    /// If one of them is not known.
    pub fn seconds(&self, pieces: &[Piece], shape: ProductShape) -> Result<f64, PartitionError> {
        Ok(Search::new(self, shape)
            .total(pieces)?
            .unwrap_or(f64::INFINITY))
    }

    /// The plan of a product whose rows are a prompt of any length: as many chunks of 1,024 rows as leave between 1,024
    /// and 2,047 for the last one, so that a margin of a few tokens is computed beside a chunk and not behind it.
    ///
    /// # Errors
    /// As [`Solver::solve`].
    pub fn plan_prompt(
        &self,
        shape: ProductShape,
        restriction: Restriction,
    ) -> Result<PromptPlan, PartitionError> {
        let chunks = (shape.rows / LONGEST).saturating_sub(1);
        let solve =
            |rows: usize| self.solve(ProductShape { rows, ..shape }, Phase::Prefill, restriction);
        let chunk = if chunks > 0 {
            Some(solve(LONGEST)?)
        } else {
            None
        };
        Ok(PromptPlan {
            chunks,
            chunk,
            last: solve(shape.rows - chunks * LONGEST)?,
        })
    }
}

/// The least of what was considered so far.
struct Search<'a, C> {
    solver: &'a Solver<C>,
    shape: ProductShape,
    strategy: Strategy,
    /// Of the best; empty if nothing was considered.
    pieces: Vec<Piece>,
    seconds: f64,
    /// Of the candidate that is considered.
    busy: Vec<(ProcessorId, f64)>,
    of_pieces: Vec<f64>,
    considered: usize,
}

impl<'a, C: Costs> Search<'a, C> {
    fn new(solver: &'a Solver<C>, shape: ProductShape) -> Self {
        Self {
            solver,
            shape,
            strategy: Strategy::Alone,
            pieces: Vec::new(),
            seconds: f64::INFINITY,
            busy: Vec::new(),
            of_pieces: Vec::new(),
            considered: 0,
        }
    }

    fn consider(&mut self, strategy: Strategy, pieces: &[Piece]) -> Result<(), PartitionError> {
        self.considered += 1;
        if let Some(seconds) = self.total(pieces)? {
            let fewer = self.pieces.is_empty() || pieces.len() < self.pieces.len();
            if seconds < self.seconds || (seconds == self.seconds && fewer) {
                self.strategy = strategy;
                self.seconds = seconds;
                self.pieces.clear();
                self.pieces.extend_from_slice(pieces);
            }
        }
        Ok(())
    }

    /// T_total of a candidate, with what each processor computes in `busy` and each piece takes in `of_pieces`; `None` as
    /// soon as it is above the best one.
    fn total(&mut self, pieces: &[Piece]) -> Result<Option<f64>, PartitionError> {
        self.busy.clear();
        self.of_pieces.clear();
        let mut longest = 0.0f64;
        let is_cut = pieces
            .iter()
            .any(|piece| piece.processor != pieces[0].processor);
        for piece in pieces {
            let (costs, shape) = (&self.solver.costs, piece.shape(self.shape.depth));
            let seconds = match is_cut {
                true => costs.seconds_beside(piece.processor, shape)?,
                false => costs.seconds(piece.processor, shape)?,
            };
            self.of_pieces.push(seconds);
            // The pieces of a processor are behind each other.
            match self.busy.last_mut() {
                Some((processor, sum)) if *processor == piece.processor => *sum += seconds,
                _ => self.busy.push((piece.processor, seconds)),
            }
            longest = longest.max(self.busy.last().map_or(0.0, |(_, sum)| *sum));
            if longest > self.seconds {
                return Ok(None);
            }
        }
        Ok(Some(
            longest + self.solver.joins.seconds(self.busy.iter().copied()),
        ))
    }

    /// What is best, if anything was considered.
    fn best(mut self) -> Option<Timed> {
        let pieces = std::mem::take(&mut self.pieces);
        if pieces.is_empty() {
            return None;
        }
        self.total(&pieces).ok()?;
        let join_seconds = self.solver.joins.seconds(self.busy.iter().copied());
        let partition = Partition {
            strategy: self.strategy,
            pieces,
        };
        Some(Timed {
            partition,
            seconds: self.seconds,
            join_seconds,
            busy: self.busy,
            of_pieces: self.of_pieces,
        })
    }
}
