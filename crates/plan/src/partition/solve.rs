//! The tensor partition solver (§4.3): it chooses the candidate of a product that completes first.

use serde::Serialize;

use super::costs::{Costs, Joins};
use super::energy::{Objective, Powers};
use super::{
    Alignment, LONGEST, MAX_DECODE_ROWS, Participant, Partition, PartitionError, Phase, Piece,
    ProductShape, Strategy, candidates,
};
use crate::processors::ProcessorId;
use crate::schedule::parts::Part;

/// Maximum number of rows of one plan of prefill: the longest standard length, and a rest that is shorter than that.
const MAX_PREFILL_ROWS: usize = 2 * LONGEST - 1;

/// The candidates that are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Restriction {
    /// Whole products, each on the fastest processor (Hetero-layer in §5).
    Layer,
    /// Cut products, each on several processors.
    Tensor,
    /// Both: a product is cut if that is faster (Hetero-tensor in §5).
    Auto,
}

impl Restriction {
    /// All restrictions.
    pub const ALL: [Self; 3] = [Self::Layer, Self::Tensor, Self::Auto];

    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
        }
    }
}

/// A partition and its times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// The partition.
    #[serde(flatten)]
    pub partition: Partition,
    /// Seconds from the start until all outputs are joined: the maximum over processors, plus the join.
    pub seconds: f64,
    /// The part of `seconds` for the join: T_sync and T_copy.
    pub join_seconds: f64,
    /// Joules, if the powers of the processors are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Busy seconds of each processor with a piece, in the order of the pieces.
    pub busy: Vec<(ProcessorId, f64)>,
    /// Seconds of each piece.
    #[serde(skip)]
    pub of_pieces: Vec<f64>,
}

/// The solver's choice for a product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The product.
    pub shape: ProductShape,
    /// Its phase.
    pub phase: Phase,
    /// The considered candidate that is best by the solver's objective: without one, the fastest.
    pub best: Timed,
    /// The fastest way to compute the whole product on each processor alone, whether considered or not.
    pub alone: Vec<Timed>,
    /// Number of considered candidates.
    pub considered: usize,
}

impl Choice {
    /// Returns the fastest processor alone.
    pub fn best_alone(&self) -> &Timed {
        let fastest = self
            .alone
            .iter()
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        fastest.expect("a solver has a participant")
    }

    /// Returns the seconds of a part of a chunk, which may have fewer rows than planned: those of its piece, if
    /// `processor` is the processor of that piece. Otherwise returns `None`.
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

/// The plan of a product for a prompt of any length: chunks of the longest standard length, one after another, and the
/// rest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptPlan {
    /// Number of chunks before the last one.
    pub chunks: usize,
    /// The choice for each of these chunks, if there are any.
    pub chunk: Option<Choice>,
    /// The choice for the last chunk.
    pub last: Choice,
}

impl PromptPlan {
    /// Returns the seconds of all chunks.
    pub fn seconds(&self) -> f64 {
        self.chunks as f64
            * self
                .chunk
                .as_ref()
                .map_or(0.0, |choice| choice.best.seconds)
            + self.last.best.seconds
    }

    /// Returns the choices, each with its number of chunks.
    pub fn choices(&self) -> impl Iterator<Item = (usize, &Choice)> {
        self.chunk
            .iter()
            .map(|choice| (self.chunks, choice))
            .chain([(1, &self.last)])
    }
}

/// A solver that chooses partitions for processors with known costs.
#[derive(Clone, Debug)]
pub struct Solver<C> {
    participants: Vec<Participant>,
    costs: C,
    joins: Joins,
    energy: Option<(Objective, Powers)>,
}

impl<C: Costs> Solver<C> {
    /// Creates a solver for these processors.
    ///
    /// # Errors
    /// If there is no participant, or a processor is in the list twice.
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
            energy: None,
        })
    }

    /// Has the solver choose by an objective. Powers are by the ids of processors.
    #[must_use]
    pub fn with_objective(self, objective: Objective, powers: Powers) -> Self {
        Self {
            energy: Some((objective, powers)),
            ..self
        }
    }

    /// Chooses the partition with the least T_total = max over processors of the sum of their pieces + T_sync + T_copy;
    /// of equal ones, the first of those with the fewest pieces. Except with [`Restriction::Tensor`], it is never
    /// slower than any processor alone by the costs of this solver. With an [objective](Self::with_objective), its value
    /// takes the place of T_total.
    ///
    /// # Errors
    /// If the product has more than 2,047 rows in prefill or 16 in decode, if it must be cut and there is no candidate,
    /// or if a required cost is unknown. The costs of each processor alone are required, and those of a candidate's
    /// pieces until the sum on one processor exceeds the best time so far.
    pub fn solve(
        &self,
        shape: ProductShape,
        phase: Phase,
        restriction: Restriction,
    ) -> Result<Choice, PartitionError> {
        self.solve_aligned(shape, phase, restriction, Alignment::default())
    }

    /// Chooses the partition as [`Solver::solve`] does, with cuts at multiples of `alignment`, which must be above 0.
    ///
    /// # Errors
    /// See [`Solver::solve`].
    pub fn solve_aligned(
        &self,
        shape: ProductShape,
        phase: Phase,
        restriction: Restriction,
        alignment: Alignment,
    ) -> Result<Choice, PartitionError> {
        let most = if phase == Phase::Decode {
            MAX_DECODE_ROWS
        } else {
            MAX_PREFILL_ROWS
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

    /// Returns T_total of some pieces of a product by the costs of this solver.
    ///
    /// # Errors
    /// If a cost is unknown.
    pub fn seconds(&self, pieces: &[Piece], shape: ProductShape) -> Result<f64, PartitionError> {
        Ok(Search::new(self, shape)
            .total(pieces)?
            .unwrap_or(f64::INFINITY))
    }

    /// Plans a product whose rows are a prompt of any length: chunks of 1,024 rows, and a last one of up to 2,047. It
    /// has at least 1,024 if the prompt does. A margin of a few tokens is thus computed concurrently with a chunk, not
    /// after it.
    ///
    /// # Errors
    /// See [`Solver::solve`].
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

/// The best candidate so far.
struct Search<'a, C> {
    solver: &'a Solver<C>,
    shape: ProductShape,
    strategy: Strategy,
    /// Pieces of the best candidate; empty if there is none.
    pieces: Vec<Piece>,
    /// Its seconds, and its value by the objective.
    seconds: f64,
    value: f64,
    /// Busy seconds for the current candidate.
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
            value: f64::INFINITY,
            busy: Vec::new(),
            of_pieces: Vec::new(),
            considered: 0,
        }
    }

    fn consider(&mut self, strategy: Strategy, pieces: &[Piece]) -> Result<(), PartitionError> {
        self.considered += 1;
        if let Some(seconds) = self.total(pieces)? {
            let value = match &self.solver.energy {
                Some((objective, powers)) => {
                    let joules = powers.joules(seconds, self.busy.iter().copied());
                    objective.value(seconds, joules)
                }
                None => seconds,
            };
            let fewer = self.pieces.is_empty() || pieces.len() < self.pieces.len();
            if value < self.value || (value == self.value && fewer) {
                self.strategy = strategy;
                (self.seconds, self.value) = (seconds, value);
                self.pieces.clear();
                self.pieces.extend_from_slice(pieces);
            }
        }
        Ok(())
    }

    /// Returns whether only the time counts, so that a candidate ends when a processor takes longer.
    fn is_by_time(&self) -> bool {
        let energy = &self.solver.energy;
        energy
            .as_ref()
            .is_none_or(|(objective, _)| *objective == Objective::Latency)
    }

    /// Returns T_total of a candidate, and stores the seconds of each processor in `busy` and of each piece in
    /// `of_pieces`. Returns `None` as soon as a processor's seconds exceed the best T_total, if only time counts.
    fn total(&mut self, pieces: &[Piece]) -> Result<Option<f64>, PartitionError> {
        self.busy.clear();
        self.of_pieces.clear();
        let (mut longest, is_by_time) = (0.0f64, self.is_by_time());
        let is_cut = pieces
            .iter()
            .any(|piece| piece.processor != pieces[0].processor);
        for piece in pieces {
            let (costs, shape) = (&self.solver.costs, piece.shape(self.shape.depth));
            let seconds = match is_cut {
                true => costs.concurrent_seconds(piece.processor, shape)?,
                false => costs.seconds(piece.processor, shape)?,
            };
            self.of_pieces.push(seconds);
            // The pieces of a processor are consecutive.
            match self.busy.last_mut() {
                Some((processor, sum)) if *processor == piece.processor => *sum += seconds,
                _ => self.busy.push((piece.processor, seconds)),
            }
            longest = longest.max(self.busy.last().map_or(0.0, |(_, sum)| *sum));
            if longest > self.seconds && is_by_time {
                return Ok(None);
            }
        }
        Ok(Some(
            longest + self.solver.joins.seconds(self.busy.iter().copied()),
        ))
    }

    /// Returns the best candidate, if there is one.
    fn best(mut self) -> Option<Timed> {
        let pieces = std::mem::take(&mut self.pieces);
        if pieces.is_empty() {
            return None;
        }
        self.total(&pieces).ok()?;
        let join_seconds = self.solver.joins.seconds(self.busy.iter().copied());
        let energy = self.solver.energy.as_ref();
        let busy = self.busy.iter().copied();
        let joules = energy.map(|(_, powers)| powers.joules(self.seconds, busy));
        let partition = Partition {
            strategy: self.strategy,
            pieces,
        };
        Some(Timed {
            joules,
            partition,
            seconds: self.seconds,
            join_seconds,
            busy: self.busy,
            of_pieces: self.of_pieces,
        })
    }
}
