//! Energy of partitions and prompts: the powers of processors, and the objective that plans minimize.

use serde::{Deserialize, Serialize};

use super::PartitionError;
use crate::processors::ProcessorId;

/// The quantity that a plan minimizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// The time.
    #[default]
    Latency,
    /// The energy.
    Energy,
    /// The product of both.
    Balanced,
}

impl Objective {
    /// All objectives.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Energy, Self::Balanced];

    /// Returns the name for messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Energy => "energy",
            Self::Balanced => "balanced",
        }
    }

    /// Returns the number to minimize, of a plan that takes some seconds and joules.
    pub fn value(self, seconds: f64, joules: f64) -> f64 {
        match self {
            Self::Latency => seconds,
            Self::Energy => joules,
            Self::Balanced => seconds * joules,
        }
    }
}

/// Powers in watts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Powers {
    /// Power of the machine while it computes nothing.
    pub base: f64,
    /// Additional power of each processor while it computes, by id.
    pub processors: Vec<f64>,
}

impl Powers {
    /// Checks the powers of a list of processors.
    ///
    /// # Errors
    /// If one is missing, negative or not finite.
    pub fn check(&self, processors: usize) -> Result<(), PartitionError> {
        let all = self.processors.iter().chain([&self.base]);
        let is_power = |watts: &&f64| **watts >= 0.0 && watts.is_finite();
        if self.processors.len() == processors && all.clone().all(|watts| is_power(&watts)) {
            Ok(())
        } else {
            Err(PartitionError::Powers {
                powers: self.clone(),
                processors,
            })
        }
    }

    /// Returns the joules of a plan that takes `seconds`, in which processors are busy for some of them.
    pub fn joules(&self, seconds: f64, busy: impl Iterator<Item = (ProcessorId, f64)>) -> f64 {
        let watts = |processor: ProcessorId| self.processors.get(processor.index());
        let of_busy = busy.map(|(processor, seconds)| watts(processor).unwrap_or(&0.0) * seconds);
        self.base * seconds + of_busy.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::costs::{Costs, Joins};
    use super::super::solve::{Restriction, Solver, Timed};
    use super::super::{Participant, Phase, ProductShape, Shapes, Strategy, UnknownCost};
    use super::*;

    #[test]
    fn joules_are_those_of_the_machine_and_of_the_processors_while_they_are_busy() {
        let powers = Powers {
            base: 1.0,
            processors: vec![2.0, 0.5],
        };
        let busy = [(0, 3.0), (1, 4.0)].map(|(index, seconds)| (ProcessorId::new(index), seconds));
        assert_eq!(powers.joules(4.0, busy.into_iter()), 4.0 + 6.0 + 2.0);
        assert!(powers.check(2).is_ok());
        assert!(powers.check(3).is_err());
        let negative = Powers {
            base: -1.0,
            ..powers
        };
        let refused = negative.check(2).unwrap_err().to_string();
        assert!(refused.contains("-1"), "{refused}");
    }

    #[test]
    fn objectives_weigh_time_and_energy() {
        let [latency, energy, balanced] = Objective::ALL.map(|objective| objective.value(2.0, 5.0));
        assert_eq!((latency, energy, balanced), (2.0, 5.0, 10.0));
    }

    #[test]
    fn a_solver_chooses_by_time_energy_or_both() {
        struct Rates;

        impl Costs for Rates {
            fn seconds(
                &self,
                processor: ProcessorId,
                shape: ProductShape,
            ) -> Result<f64, UnknownCost> {
                // The second processor takes three times as long, and a tenth of the power.
                let rate = [1.0, 3.0][processor.index()];
                Ok(rate * (shape.rows() * shape.columns()) as f64)
            }
        }

        let [fast, slow] = [0, 1].map(ProcessorId::new);
        let participants = [fast, slow].map(|processor| Participant {
            processor,
            shapes: Shapes::Dynamic,
        });
        let shape = ProductShape::new(64, 1024, 8).unwrap();
        let all = (shape.rows() * shape.columns()) as f64;
        let solve = |objective: Objective, base: f64| {
            let joins = Joins::new(fast, 0.0, 0.0, 0.0).unwrap();
            let powers = Powers {
                base,
                processors: vec![10.0, 1.0],
            };
            let solver = Solver::new(participants.to_vec(), Rates, joins).unwrap();
            let solver = solver.with_objective(objective, powers);
            let choice = solver
                .solve(shape, Phase::Prefill, Restriction::Auto)
                .unwrap();
            choice.best
        };
        let latency = solve(Objective::Latency, 0.0);
        assert_eq!(latency.partition.strategy, Strategy::RowCutting);
        assert_eq!(latency.seconds, 0.75 * all);
        assert_eq!(latency.joules, Some(10.0 * 0.75 * all + 0.75 * all));
        let energy = solve(Objective::Energy, 0.0);
        assert_eq!((energy.busy[0].0, energy.busy.len()), (slow, 1));
        assert_eq!(energy.joules, Some(3.0 * all));
        // With the power of a whole machine, it pays to be done early.
        let energy = solve(Objective::Energy, 100.0);
        assert_eq!(energy.partition.strategy, Strategy::RowCutting);
        let balanced = solve(Objective::Balanced, 0.0);
        let value = |one: &Timed| one.seconds * one.joules.unwrap();
        for other in [&latency, &solve(Objective::Energy, 0.0)] {
            assert!(value(&balanced) <= value(other));
        }
    }
}
