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
}
