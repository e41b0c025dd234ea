//! Which processor runs each subgraph: floats on the CPU, INT8 on the NPU as far as its window reaches.

use serde::{Deserialize, Serialize};

use crate::graph::{Format, Graph, Role};

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Processor {
    /// Cores of the CPU, or the GPU in their place.
    Cpu,
    /// The unit that multiplies INT8.
    Npu,
}

impl Processor {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Npu => "NPU",
        }
    }
}

/// Why a subgraph runs where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It computes in float.
    Float,
    /// It computes in INT8, and the NPU's window has room for it.
    Int8,
    /// It computes in INT8, but the window is full.
    WindowFull,
}

/// Where one subgraph runs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Where.
    pub processor: Processor,
    /// Why.
    pub reason: Reason,
}

/// A place for each subgraph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    places: Vec<Place>,
    window_used: usize,
}

impl Placement {
    /// Fills the NPU's `window` bytes with the feed-forwards first, as the paper does (§4), since they have the most
    /// operations; then with what else is in INT8, in the order of the blocks.
    pub fn new(graph: &Graph, window: usize) -> Self {
        let on_cpu = |reason| Place { processor: Processor::Cpu, reason };
        let mut places: Vec<_> = graph
            .subgraphs()
            .iter()
            .map(|subgraph| match subgraph.role.format() {
                Format::Float => on_cpu(Reason::Float),
                Format::Int8 => on_cpu(Reason::WindowFull),
            })
            .collect();
        let mut window_used = 0;
        for roles in [&[Role::FeedForward][..], &[Role::QueryKeyValue, Role::AttentionOutput]] {
            for (subgraph, place) in graph.subgraphs().iter().zip(&mut places) {
                let bytes = subgraph.graph_bytes(graph.chunk_length());
                if roles.contains(&subgraph.role) && bytes <= window - window_used {
                    window_used += bytes;
                    *place = Place { processor: Processor::Npu, reason: Reason::Int8 };
                }
            }
        }
        Self { places, window_used }
    }

    /// For each subgraph of the graph.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Bytes of the window that are taken.
    pub fn window_used(&self) -> usize {
        self.window_used
    }

    /// Subgraphs placed for this reason.
    pub fn count(&self, reason: Reason) -> usize {
        self.places.iter().filter(|place| place.reason == reason).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use triad_model::family::shape;

    #[test]
    fn with_room_for_all_every_int8_subgraph_is_on_the_npu() {
        let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 1024, 256);
        let placement = Placement::new(&graph, 4 << 30);
        assert_eq!(
            [Reason::Float, Reason::Int8, Reason::WindowFull].map(|reason| placement.count(reason)),
            [72, 72, 0]
        );
    }

    proptest! {
        #[test]
        fn the_window_is_never_exceeded_and_feed_forwards_come_first(window in 0usize..3 << 30) {
            let graph = Graph::new(&shape("qwen1.5-1.8b").unwrap(), 512, 256);
            let placement = Placement::new(&graph, window);
            let on_npu = |role: Role| {
                let places = graph.subgraphs().iter().zip(placement.places());
                let there = places.filter(|(subgraph, place)| subgraph.role == role && place.processor == Processor::Npu);
                there.map(|(subgraph, _)| subgraph.graph_bytes(256)).collect::<Vec<_>>()
            };
            let all: usize = Role::ALL.iter().flat_map(|role| on_npu(*role)).sum();
            prop_assert!(all == placement.window_used() && all <= window);
            for float in [Role::AttentionNorm, Role::Attention, Role::FeedForwardNorm] {
                prop_assert!(on_npu(float).is_empty());
            }
            let feed_forward = graph.subgraphs()[5].graph_bytes(256);
            let fit = (window / feed_forward).min(24);
            prop_assert_eq!(on_npu(Role::FeedForward).len(), fit, "as many as the empty window holds");
        }
    }
}
