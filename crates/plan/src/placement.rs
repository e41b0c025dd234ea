//! Placement of subgraphs on processors, by the formats that processors compute and the memory that they address.

use serde::Serialize;

use crate::graph::{Format, Graph, Role, Subgraph};
use crate::processors::{ProcessorId, Processors};

/// The reason for which a subgraph runs on its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The subgraph computes in float.
    Float,
    /// The subgraph computes in INT8, and a processor that is preferred for INT8 has room for it.
    Int8,
    /// The subgraph computes in INT8, but the windows of the processors that are preferred for INT8 are full.
    WindowFull,
}

/// The processor of one subgraph, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The processor.
    pub processor: ProcessorId,
    /// The reason.
    pub reason: Reason,
}

/// A subgraph that no processor can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No processor computes in its format.
    #[error("no processor computes {} of block {block} in {}: expected one that does", role.name(), format.name())]
    Format {
        /// Index of the block.
        block: usize,
        /// The part of the block.
        role: Role,
        /// The format.
        format: Format,
    },
    /// The processors that compute its format have no room for it.
    #[error("{} of block {block} takes {bytes} bytes, and every window is full: expected a processor with room", role.name())]
    Window {
        /// Index of the block.
        block: usize,
        /// The part of the block.
        role: Role,
        /// Bytes of its graph.
        bytes: usize,
    },
}

/// A place for each subgraph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    places: Vec<Place>,
    window_used: Vec<usize>,
}

impl Placement {
    /// Places every subgraph on a processor that computes its format and has room in its window.
    ///
    /// INT8 subgraphs go to processors that are preferred for INT8 while these have room. Feed-forwards go first, as in
    /// the paper (§4), because they have the most operations. The other INT8 subgraphs follow in the order of the
    /// blocks. INT8 subgraphs without room, and all float subgraphs, go to other processors. Among equally suitable
    /// processors, a subgraph goes to the one that finishes first if each subgraph takes `seconds(subgraph, processor)`
    /// per chunk; of equal ones, to the first. If seconds are unknown, another measure of the work can be returned.
    ///
    /// # Errors
    /// If no processor computes a subgraph's format, or none of those that do has room for it.
    pub fn new(
        graph: &Graph,
        processors: &Processors,
        seconds: impl Fn(usize, ProcessorId) -> f64,
    ) -> Result<Self, PlacementError> {
        let mut filling = Filling {
            graph,
            processors,
            seconds,
            places: vec![None; graph.subgraphs().len()],
            work: vec![0.0; processors.len()],
            window_used: vec![0; processors.len()],
        };
        let is_int8 = |role: Role| role.format() == Format::Int8;
        for is_first in [true, false] {
            for subgraph in 0..graph.subgraphs().len() {
                let role = graph.subgraphs()[subgraph].role;
                if is_int8(role) && role.is_feed_forward() == is_first {
                    filling.place(subgraph, true, Reason::Int8);
                }
            }
        }
        let has_preferred = processors
            .iter()
            .any(|(_, one)| one.computes(Format::Int8) && one.prefers(Format::Int8));
        let otherwise = if has_preferred {
            Reason::WindowFull
        } else {
            Reason::Int8
        };
        for (index, subgraph) in graph.subgraphs().iter().enumerate() {
            let reason = if subgraph.role.format() == Format::Float {
                Reason::Float
            } else {
                otherwise
            };
            let is_placed = filling.places[index].is_some()
                || (reason == Reason::Float && filling.place(index, true, reason))
                || filling.place(index, false, reason);
            if !is_placed {
                return Err(filling.error(index));
            }
        }
        let Filling {
            places,
            window_used,
            ..
        } = filling;
        Ok(Self {
            places: places.into_iter().flatten().collect(),
            window_used,
        })
    }

    /// Moves a subgraph off its processor, which turned out to have no room for it. The new processor is the first one
    /// that computes the subgraph's format in all of the machine's memory and is not preferred for INT8.
    ///
    /// # Errors
    /// If there is no such processor.
    pub fn move_off(
        &mut self,
        graph: &Graph,
        processors: &Processors,
        subgraph: usize,
    ) -> Result<(), PlacementError> {
        let Subgraph { block, role, .. } = graph.subgraphs()[subgraph];
        let bytes = graph.subgraphs()[subgraph].graph_bytes(graph.chunk_length());
        let Place {
            processor: full, ..
        } = self.places[subgraph];
        let mut others = processors.iter().filter(|(id, other)| {
            *id != full
                && !other.multiplies_alone()
                && other.computes(role.format())
                && other.window.is_none()
        });
        let (processor, _) = others
            .next()
            .ok_or(PlacementError::Window { block, role, bytes })?;
        self.window_used[full.index()] -= bytes;
        self.window_used[processor.index()] += bytes;
        self.places[subgraph] = Place {
            processor,
            reason: Reason::WindowFull,
        };
        Ok(())
    }

    /// Returns the place of each subgraph of the graph.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the used bytes of the window of `processor`.
    pub fn window_used(&self, processor: ProcessorId) -> usize {
        self.window_used[processor.index()]
    }

    /// Returns the number of subgraphs placed for this reason.
    pub fn count(&self, reason: Reason) -> usize {
        self.places
            .iter()
            .filter(|place| place.reason == reason)
            .count()
    }
}

/// A placement that is being made.
struct Filling<'a, F> {
    graph: &'a Graph,
    processors: &'a Processors,
    seconds: F,
    places: Vec<Option<Place>>,
    /// Seconds of the subgraphs placed on each processor.
    work: Vec<f64>,
    window_used: Vec<usize>,
}

impl<F: Fn(usize, ProcessorId) -> f64> Filling<'_, F> {
    /// Places a subgraph on a processor that computes its format and has room, and that is preferred for the format or
    /// not, as `preferred` says. Returns whether there is one.
    fn place(&mut self, index: usize, preferred: bool, reason: Reason) -> bool {
        let subgraph = &self.graph.subgraphs()[index];
        let format = subgraph.role.format();
        let bytes = subgraph.graph_bytes(self.graph.chunk_length());
        let mut best: Option<(ProcessorId, f64)> = None;
        for (id, processor) in self.processors.iter() {
            let left = processor
                .window
                .map_or(usize::MAX, |window| window - self.window_used[id.index()]);
            if !processor.computes(format) || processor.prefers(format) != preferred || bytes > left
            {
                continue;
            }
            let end = self.work[id.index()] + (self.seconds)(index, id);
            if best.is_none_or(|(_, earliest)| end < earliest) {
                best = Some((id, end));
            }
        }
        let Some((processor, end)) = best else {
            return false;
        };
        self.work[processor.index()] = end;
        self.window_used[processor.index()] += bytes;
        self.places[index] = Some(Place { processor, reason });
        true
    }

    /// Returns the error for a subgraph without a place.
    fn error(&self, index: usize) -> PlacementError {
        let subgraph = &self.graph.subgraphs()[index];
        let (block, role, format) = (subgraph.block, subgraph.role, subgraph.role.format());
        if self
            .processors
            .iter()
            .any(|(_, processor)| processor.computes(format))
        {
            return PlacementError::Window {
                block,
                role,
                bytes: subgraph.graph_bytes(self.graph.chunk_length()),
            };
        }
        PlacementError::Format {
            block,
            role,
            format,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processors::Processor;
    use proptest::prelude::*;
    use triad_model::family::shape;

    const CPU: ProcessorId = ProcessorId::new(0);
    const NPU: ProcessorId = ProcessorId::new(1);

    fn placed(graph: &Graph, list: Vec<Processor>) -> Result<Placement, PlacementError> {
        Placement::new(graph, &Processors::new(list).unwrap(), |subgraph, _| {
            graph.subgraphs()[subgraph].operations(256, 0) as f64 + 1.0
        })
    }

    fn counts(placement: &Placement) -> [usize; 3] {
        [Reason::Float, Reason::Int8, Reason::WindowFull].map(|reason| placement.count(reason))
    }

    #[test]
    fn with_room_for_all_every_int8_subgraph_is_on_the_npu() {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 1024, 256);
        let placement = placed(
            &graph,
            vec![Processor::cpu("cpu"), Processor::npu("npu", Some(4 << 30))],
        )
        .unwrap();
        assert_eq!(counts(&placement), [72, 72, 0]);
        assert_eq!(
            counts(&placed(&graph, vec![Processor::cpu("cpu")]).unwrap()),
            [72, 72, 0],
            "without an NPU"
        );
        assert_eq!(
            counts(
                &placed(
                    &graph,
                    vec![Processor::cpu("cpu"), Processor::npu("npu", Some(0))]
                )
                .unwrap()
            ),
            [72, 0, 72]
        );
    }

    #[test]
    fn an_npu_that_computes_floats_does_so_only_where_no_other_processor_can() {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 1024, 256);
        let npu = Processor {
            formats: vec![Format::Float, Format::Int8],
            ..Processor::npu("npu", None)
        };
        let placement = placed(&graph, vec![Processor::cpu("cpu"), npu.clone()]).unwrap();
        for (subgraph, place) in graph.subgraphs().iter().zip(placement.places()) {
            let expected = if subgraph.role.format() == Format::Float {
                CPU
            } else {
                NPU
            };
            assert_eq!(place.processor, expected, "{:?}", subgraph.role);
        }
        assert_eq!(counts(&placed(&graph, vec![npu]).unwrap()), [72, 72, 0]);
    }

    #[test]
    fn equal_processors_share_the_work() {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 1024, 256);
        let npus = [1, 2].map(|number| Processor::npu(&format!("npu{number}"), None));
        let placement = placed(
            &graph,
            [vec![Processor::cpu("cpu")], npus.to_vec()].concat(),
        )
        .unwrap();
        let on = |index: usize| {
            placement
                .places()
                .iter()
                .filter(|place| place.processor.index() == index)
                .count()
        };
        assert_eq!([on(0), on(1), on(2)], [72, 36, 36]);
    }

    #[test]
    fn what_no_processor_can_run_is_an_error_that_names_it() {
        let graph = Graph::new(&shape("smollm2-135m").unwrap(), 100, 64);
        let error = placed(&graph, vec![Processor::npu("npu", None)])
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "no processor computes attention-norm of block 0 in float: expected one that does"
        );
        let full = Processor {
            window: Some(0),
            ..Processor::cpu("cpu")
        };
        let error = placed(&graph, vec![full]).unwrap_err().to_string();
        assert!(
            error.starts_with("attention-norm of block 0 takes ")
                && error.contains("every window is full")
        );
    }

    #[test]
    fn what_a_processor_has_no_room_for_after_all_is_placed_on_another_one() {
        let graph = Graph::new(&shape("smollm2-135m").unwrap(), 100, 64);
        let list = vec![Processor::npu("npu", Some(1 << 30)), Processor::cpu("cpu")];
        let mut placement = placed(&graph, list.clone()).unwrap();
        let before = placement.window_used(CPU);
        assert_eq!(
            placement.places()[5].processor,
            CPU,
            "the first of this list is the NPU"
        );
        placement
            .move_off(&graph, &Processors::new(list).unwrap(), 5)
            .unwrap();
        assert_eq!(
            placement.places()[5],
            Place {
                processor: NPU,
                reason: Reason::WindowFull
            }
        );
        assert_eq!(
            placement.window_used(CPU),
            before - graph.subgraphs()[5].graph_bytes(64)
        );
        let alone = placed(&graph, vec![Processor::cpu("cpu")]).unwrap();
        let refused = alone.clone().move_off(
            &graph,
            &Processors::new(vec![Processor::cpu("cpu")]).unwrap(),
            5,
        );
        assert!(matches!(
            refused,
            Err(PlacementError::Window {
                block: 0,
                role: Role::FeedForward,
                ..
            })
        ));
    }

    proptest! {
        #[test]
        fn the_window_is_never_exceeded_and_feed_forwards_come_first(window in 0usize..3 << 30) {
            let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 512, 256);
            let placement = placed(&graph, vec![Processor::cpu("cpu"), Processor::npu("npu", Some(window))]).unwrap();
            let on_npu = |role: Role| {
                let places = graph.subgraphs().iter().zip(placement.places());
                let there = places.filter(|(subgraph, place)| subgraph.role == role && place.processor == NPU);
                there.map(|(subgraph, _)| subgraph.graph_bytes(256)).collect::<Vec<_>>()
            };
            let all: usize = Role::ALL.iter().flat_map(|role| on_npu(*role)).sum();
            prop_assert!(all == placement.window_used(NPU) && all <= window);
            for float in [Role::AttentionNorm, Role::Attention, Role::FeedForwardNorm] {
                prop_assert!(on_npu(float).is_empty());
            }
            let feed_forward = graph.subgraphs()[5].graph_bytes(256);
            let fit = (window / feed_forward).min(24);
            prop_assert_eq!(on_npu(Role::FeedForward).len(), fit, "as many as the empty window holds");
        }
    }
}
