//! The processors that tasks run on: a list of descriptions, in which a [`ProcessorId`] is an index.
//!
//! A description contains the number formats that a processor computes and how much memory it addresses. Placement and
//! schedules use it. The time of a task on a processor is in the [`Dag`](crate::schedule::Dag) of the tasks.

use serde::{Deserialize, Serialize};

use crate::graph::Format;

/// The index of a processor in a list of [`Processors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessorId(usize);

impl ProcessorId {
    /// Creates the id of the processor at `index` of a list.
    pub const fn new(index: usize) -> Self {
        Self(index)
    }

    /// Returns the index in the list.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// The kind of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessorKind {
    /// A group of CPU cores.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// A unit for INT8 products, or what is used in its place.
    Npu,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Name, unique in a list: `cpu`, `cpu2`, `gpu`, `npu`.
    pub name: String,
    /// The kind.
    pub kind: ProcessorKind,
    /// The formats that it computes.
    pub formats: Vec<Format>,
    /// The formats for which it is preferred over other processors that compute them.
    pub preferred: Vec<Format>,
    /// Bytes that it can address; `None` for all of the machine's memory.
    pub window: Option<usize>,
}

impl Processor {
    /// Creates CPU cores, which compute in float and INT8.
    pub fn cpu(name: &str) -> Self {
        let formats = vec![Format::Float, Format::Int8];
        let (kind, preferred) = (ProcessorKind::Cpu, vec![Format::Float]);
        Self {
            name: name.to_owned(),
            kind,
            formats,
            preferred,
            window: None,
        }
    }

    /// Creates a GPU, which computes in float and INT8.
    pub fn gpu(name: &str) -> Self {
        Self {
            kind: ProcessorKind::Gpu,
            ..Self::cpu(name)
        }
    }

    /// Creates an NPU, which computes in INT8 alone and in the memory of its window.
    pub fn npu(name: &str, window: Option<usize>) -> Self {
        let (formats, preferred) = (vec![Format::Int8], vec![Format::Int8]);
        Self {
            kind: ProcessorKind::Npu,
            formats,
            preferred,
            window,
            ..Self::cpu(name)
        }
    }

    /// Returns whether it computes in `format`.
    pub fn computes(&self, format: Format) -> bool {
        self.formats.contains(&format)
    }

    /// Returns whether it is preferred for `format` over other processors that compute it.
    pub fn prefers(&self, format: Format) -> bool {
        self.preferred.contains(&format)
    }

    /// Returns whether it is preferred for INT8 linear layers, so that norms, attention and shadows run on other
    /// processors if possible.
    pub fn multiplies_alone(&self) -> bool {
        self.prefers(Format::Int8)
    }

    /// Returns its name for messages and figures: `NPU`.
    pub fn label(&self) -> String {
        label(&self.name)
    }
}

/// Returns the name of a processor for messages and figures: `CPU2` for `cpu2`.
pub fn label(name: &str) -> String {
    name.to_uppercase()
}

/// An error in a list of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessorsError {
    /// The list is empty.
    #[error("there is no processor: expected at least one")]
    Empty,
    /// A processor has no name.
    #[error("processor {index} has no name: expected one such as cpu2")]
    Unnamed {
        /// Its index.
        index: usize,
    },
    /// Two processors have the same name.
    #[error("two processors are called {name}: expected a unique name for each, such as {name}2")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A processor computes nothing.
    #[error("processor {name} computes no number format: expected float, int8 or both")]
    NoFormat {
        /// Its name.
        name: String,
    },
}

/// A list of processors with unique names; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Processor>", into = "Vec<Processor>")]
pub struct Processors(Vec<Processor>);

impl Processors {
    /// Creates a list in which the id of each processor is its index.
    ///
    /// # Errors
    /// If the list is empty, a name is empty or used twice, or a processor computes no format.
    pub fn new(list: Vec<Processor>) -> Result<Self, ProcessorsError> {
        if list.is_empty() {
            return Err(ProcessorsError::Empty);
        }
        for (index, processor) in list.iter().enumerate() {
            let name = || processor.name.clone();
            if processor.name.is_empty() {
                return Err(ProcessorsError::Unnamed { index });
            }
            if list[..index]
                .iter()
                .any(|other| other.name == processor.name)
            {
                return Err(ProcessorsError::Duplicate { name: name() });
            }
            if processor.formats.is_empty() {
                return Err(ProcessorsError::NoFormat { name: name() });
            }
        }
        Ok(Self(list))
    }

    /// Creates a list of a `cpu` and an `npu` with this window.
    pub fn cpu_and_npu(window: Option<usize>) -> Self {
        Self(vec![Processor::cpu("cpu"), Processor::npu("npu", window)])
    }

    /// Returns the number of processors.
    #[allow(clippy::len_without_is_empty, reason = "a list is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ids in order.
    pub fn ids(&self) -> impl Iterator<Item = ProcessorId> + use<> {
        (0..self.0.len()).map(ProcessorId)
    }

    /// Returns the processors with their ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = (ProcessorId, &Processor)> {
        self.ids().zip(&self.0)
    }

    /// Returns the id of the processor called `name`.
    pub fn id(&self, name: &str) -> Option<ProcessorId> {
        self.iter()
            .find(|(_, processor)| processor.name == name)
            .map(|(id, _)| id)
    }
}

impl std::ops::Index<ProcessorId> for Processors {
    type Output = Processor;

    /// # Panics
    /// If the list has no processor with this id.
    fn index(&self, id: ProcessorId) -> &Processor {
        &self.0[id.0]
    }
}

impl TryFrom<Vec<Processor>> for Processors {
    type Error = ProcessorsError;

    fn try_from(list: Vec<Processor>) -> Result<Self, ProcessorsError> {
        Self::new(list)
    }
}

impl From<Processors> for Vec<Processor> {
    fn from(processors: Processors) -> Self {
        processors.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_names_of_its_own_and_formats() {
        let named = |names: &[&str]| {
            Processors::new(names.iter().map(|name| Processor::cpu(name)).collect())
        };
        assert_eq!(named(&[]), Err(ProcessorsError::Empty));
        assert_eq!(
            named(&["cpu", ""]),
            Err(ProcessorsError::Unnamed { index: 1 })
        );
        assert!(
            named(&["cpu", "cpu"])
                .unwrap_err()
                .to_string()
                .contains("two processors are called cpu")
        );
        let none = Processor {
            formats: Vec::new(),
            ..Processor::cpu("cpu")
        };
        assert!(
            Processors::new(vec![none])
                .unwrap_err()
                .to_string()
                .contains("cpu computes no number format")
        );
        let two = named(&["cpu", "cpu2"]).unwrap();
        assert_eq!(
            (two.id("cpu2"), two.id("gpu")),
            (Some(ProcessorId::new(1)), None)
        );
        assert_eq!(two[ProcessorId::new(1)].label(), "CPU2");
    }

    #[test]
    fn a_list_is_read_as_it_is_written_and_a_bad_one_is_refused() {
        let list = Processors::cpu_and_npu(Some(1 << 30));
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(serde_json::from_str::<Processors>(&text).unwrap(), list);
        let twice = text.replace("npu\",\"kind", "cpu\",\"kind");
        assert!(
            serde_json::from_str::<Processors>(&twice)
                .unwrap_err()
                .to_string()
                .contains("called cpu")
        );
    }
}
