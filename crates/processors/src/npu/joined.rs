//! Several graphs in one context of Qualcomm's runtime, compiled and loaded together.
//!
//! The provider compiles one ONNX model, and makes a graph of each part of it that lies between nodes that it does not
//! take. So graphs are [joined](join) to one model by such nodes, which lead from an output of each to the input of the
//! next one. They are never run: the compiled model has a node for each graph, and [`split`] takes these and the context.
//!
//! To run a graph, a session gets a model that has [its node alone](Part::model). All sessions share one context, which
//! the first one loads; the others have no copy of it. If that session ends, so does the context. It has a graph of one
//! product, the anchor, which is only there to keep the context.

use std::sync::Arc;

use prost::Message;
use triad_kernels::int8::{Int8Weight, pack, packed_len};

use super::graph::{self, Formulation, INPUT, output};
use super::onnx::{Attribute, DataType, Graph, MICROSOFT, Model, Node, Tensor, ValueInfo, WORDS};
use crate::error::Result;
use crate::subgraph::{DeviceSubgraph, Layer, Linear};

/// Session option with which sessions share contexts.
pub(super) const SHARE: &str = "ep.share_ep_contexts";
/// The operator of a compiled graph.
const CONTEXT: &str = "EPContext";
/// The operators of the nodes between graphs. Qualcomm's provider takes neither: an element of the output before, and the
/// input.
const FIRST: &str = "Compress";
const COMBINE: &str = "BitwiseXor";
/// The name of the provider in the nodes of its graphs.
const SOURCE: &str = "QNNExecutionProvider";

/// A graph of a context: its shapes, and the names that it has there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// The beginning of the names of its tensors.
    pub prefix: String,
    /// The provider's name of the graph.
    pub name: String,
    pub rows: usize,
    pub in_features: usize,
    /// Features of each output.
    pub outputs: Vec<usize>,
}

/// Returns what precedes the names of the tensors of the graph with this number in a context. The provider makes the names
/// of graphs of those of tensors, and finds graphs by their names among those of all contexts of the process. So contexts
/// have different tags.
pub(super) fn prefix(tag: &str, number: usize) -> String {
    format!("{tag}.{number}.")
}

/// The layer of the anchor: one weight, packed.
struct Anchor(Vec<i8>);

impl Layer for Anchor {
    fn weight(&self) -> Int8Weight<'_> {
        Int8Weight {
            out_features: 1,
            in_features: 1,
            packed: &self.0,
            scales: &[1.0],
            sums: &[1],
        }
    }
}

/// Returns the subgraph of the anchor, whose graph is for one row.
pub(super) fn anchor() -> DeviceSubgraph {
    let mut packed = vec![0; packed_len(1, 1).unwrap_or(0)];
    pack(&[1], 1, 1, &mut packed);
    DeviceSubgraph::Linear(Linear {
        input_scale: 1.0,
        layers: vec![Arc::new(Anchor(packed))],
    })
}

/// Joins the graphs of subgraphs, each for a number of rows, to one model, whose context has this tag.
///
/// # Errors
/// As [`graph::encode`].
pub(super) fn join<'a>(
    tag: &str,
    subgraphs: impl Iterator<Item = (&'a DeviceSubgraph, usize)>,
) -> Result<Vec<u8>> {
    let mut joined = Graph {
        name: "context".to_owned(),
        ..Graph::default()
    };
    let first = Tensor::new("first", &[1], DataType::Bool, vec![1]);
    joined.initializer.push(first);
    for (number, (subgraph, rows)) in subgraphs.enumerate() {
        let mut graph = graph::graph(subgraph, &[rows], Formulation::RoundedSums)?;
        let prefix = prefix(tag, number);
        graph.prefix(&prefix);
        if number > 0 {
            let before = self::prefix(tag, number - 1) + &output(0);
            let (element, given) = (format!("{prefix}before"), format!("{prefix}given"));
            let input = prefix + INPUT;
            let node = |op_type: &str, inputs: [&str; 2], output: &str| Node {
                input: inputs.map(str::to_owned).into(),
                output: vec![output.to_owned()],
                name: format!("{op_type} {output}"),
                op_type: op_type.to_owned(),
                ..Node::default()
            };
            joined.node.extend([
                node(FIRST, [&before, "first"], &element),
                node(COMBINE, [&given, &element], &input),
            ]);
            let shape = [rows, subgraph.in_features()];
            let info = |name: &str| ValueInfo::new(name, DataType::Uint16, &shape);
            joined.value_info.push(info(&input));
            graph.input = vec![info(&given)];
        }
        joined.node.append(&mut graph.node);
        joined.initializer.append(&mut graph.initializer);
        joined.input.append(&mut graph.input);
        joined.output.append(&mut graph.output);
    }
    Ok(Model::new(joined, WORDS).encode_to_vec())
}

/// Returns the context of a compiled model that [`join`] has joined with this tag, of graphs with these numbers of outputs,
/// and the provider's name of each graph.
///
/// # Errors
/// If the model has not one node for each graph, from its input to its outputs, and one context.
pub(super) fn split(
    compiled: &[u8],
    tag: &str,
    outputs: &[usize],
) -> std::result::Result<(Vec<u8>, Vec<String>), String> {
    let graph = Model::graph_of(compiled)?;
    let (compiled, others): (Vec<_>, Vec<_>) =
        graph.node.iter().partition(|node| node.op_type == CONTEXT);
    let is_between = |node: &&&Node| [FIRST, COMBINE].contains(&node.op_type.as_str());
    if let Some(node) = others.iter().find(|node| !is_between(node)) {
        return Err(format!("{} was not compiled", node.name));
    }
    if compiled.len() != outputs.len() {
        let (found, expected) = (compiled.len(), outputs.len());
        return Err(format!("{found} graphs were compiled of {expected}"));
    }
    let mut names = Vec::new();
    for (number, outputs) in outputs.iter().enumerate() {
        let prefix = prefix(tag, number);
        let outputs: Vec<_> = (0..*outputs)
            .map(|index| prefix.clone() + &output(index))
            .collect();
        let node = compiled
            .iter()
            .find(|node| node.input == [prefix.clone() + INPUT] && node.output == outputs)
            .ok_or_else(|| format!("no graph leads from {prefix}{INPUT} to {outputs:?}"))?;
        names.push(node.name.clone());
    }
    let mut contexts = compiled.iter().filter(|node| node.int("main_context") != 0);
    match (contexts.next(), contexts.next()) {
        (Some(node), None) if !node.bytes("ep_cache_context").is_empty() => {
            Ok((node.bytes("ep_cache_context").to_vec(), names))
        }
        _ => Err("expected one context".to_owned()),
    }
}

impl Part {
    /// Returns the model of a session that runs the graph. The first session has the context, which it loads; `None` takes
    /// the graph from the context that the first one has loaded.
    pub fn model(&self, context: Option<Vec<u8>>) -> Vec<u8> {
        let prefix = &self.prefix;
        let info = |name: &str, features: usize| {
            let name = prefix.clone() + name;
            ValueInfo::new(&name, DataType::Uint16, &[self.rows, features])
        };
        let outputs = self.outputs.iter().enumerate();
        let outputs: Vec<_> = outputs
            .map(|(index, features)| info(&output(index), *features))
            .collect();
        let mut attribute = vec![
            Attribute::of_int("main_context", context.is_some().into()),
            Attribute::of_int("embed_mode", 1),
            Attribute::of_string("source", SOURCE),
            Attribute::of_string("partition_name", &self.name),
        ];
        attribute.extend(context.map(|context| Attribute::of_bytes("ep_cache_context", context)));
        let node = Node {
            input: vec![prefix.clone() + INPUT],
            output: (0..self.outputs.len())
                .map(|index| prefix.clone() + &output(index))
                .collect(),
            name: self.name.clone(),
            op_type: CONTEXT.to_owned(),
            attribute,
            domain: MICROSOFT.to_owned(),
        };
        let graph = Graph {
            node: vec![node],
            name: "subgraph".to_owned(),
            input: vec![info(INPUT, self.in_features)],
            output: outputs,
            ..Graph::default()
        };
        Model::new(graph, WORDS).encode_to_vec()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the part of an anchor that was joined.
    fn part(number: usize) -> Part {
        Part {
            prefix: prefix("t", number),
            name: format!("graph{number}"),
            rows: 1,
            in_features: 1,
            outputs: vec![1],
        }
    }

    /// Returns the model that the provider makes of joined anchors: a node of each.
    pub fn compiled(joined: &[u8]) -> Vec<u8> {
        encoded(compiled_graph(joined))
    }

    fn encoded(graph: Graph) -> Vec<u8> {
        Model::new(graph, WORDS).encode_to_vec()
    }

    fn compiled_graph(joined: &[u8]) -> Graph {
        let joined = Model::graph_of(joined).unwrap();
        let is_between = |node: &&Node| [FIRST, COMBINE].contains(&node.op_type.as_str());
        let mut node: Vec<_> = joined.node.iter().filter(is_between).cloned().collect();
        for number in 0..joined.output.len() {
            let context = (number == 0).then(|| b"context".to_vec());
            let output = &joined.output[number].name;
            let part = Part {
                prefix: output.trim_end_matches("y0").to_owned(),
                ..part(number)
            };
            let model = part.model(context);
            node.append(&mut Model::graph_of(&model).unwrap().node);
        }
        Graph {
            node,
            ..Graph::default()
        }
    }

    fn reason(graph: Graph) -> String {
        split(&encoded(graph), "t", &[1; 3]).unwrap_err()
    }

    #[test]
    fn a_joined_model_leads_from_each_graph_to_the_next_and_no_two_tensors_have_one_name() {
        let anchor = anchor();
        let joined = join("t", [(&anchor, 1), (&anchor, 4), (&anchor, 2)].into_iter()).unwrap();
        let graph = Model::graph_of(&joined).unwrap();
        let mut made: Vec<_> = graph.node.iter().flat_map(|node| &node.output).collect();
        let count = made.len();
        made.sort();
        made.dedup();
        assert_eq!(made.len(), count);
        let inputs = |output: &str| -> Vec<_> {
            let node = graph.node.iter().find(|node| node.output == [output]);
            node.unwrap().input.clone()
        };
        assert_eq!(inputs("t.2.x"), ["t.2.given", "t.2.before"]);
        assert_eq!(inputs("t.2.before"), ["t.1.y0", "first"]);
        assert_eq!(graph.input.len(), 3);
        assert_eq!(graph.output.len(), 3);
    }

    #[test]
    fn a_compiled_model_that_is_not_one_context_with_a_node_for_each_graph_is_refused_by_name() {
        let anchor = anchor();
        let joined = join("t", [(&anchor, 1), (&anchor, 4), (&anchor, 2)].into_iter()).unwrap();
        let whole = || compiled_graph(&joined);
        let (context, names) = split(&compiled(&joined), "t", &[1; 3]).unwrap();
        assert_eq!(context, b"context");
        assert_eq!(names, ["graph0", "graph1", "graph2"]);
        // Nothing was compiled.
        let error = split(&joined, "t", &[1; 3]).unwrap_err();
        assert!(error.ends_with(" was not compiled"), "{error}");
        let mut fewer = whole();
        fewer.node.pop();
        assert_eq!(reason(fewer), "2 graphs were compiled of 3");
        let mut crossed = whole();
        crossed.node.last_mut().unwrap().output = vec!["t.1.y0".to_owned()];
        assert_eq!(reason(crossed), "no graph leads from t.2.x to [\"t.2.y0\"]");
        for (number, context) in [(0, None), (1, Some(b"other".to_vec()))] {
            let mut graph = whole();
            let place = graph.node.len() - 3 + number;
            let mut changed = Model::graph_of(&part(number).model(context)).unwrap();
            graph.node[place] = changed.node.remove(0);
            assert_eq!(reason(graph), "expected one context");
        }
        assert!(split(b"no model", "t", &[1; 3]).is_err());
    }
}
