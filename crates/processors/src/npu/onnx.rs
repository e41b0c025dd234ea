//! The ONNX messages that Triad's graphs consist of, in protobuf's wire format. Fields have the numbers of
//! `onnx.proto`.

use prost::Message;

/// A version of ONNX's own operators, and the version of the format that corresponds to it.
pub(super) type Versions = [i64; 2];
/// Versions that all providers have.
pub(super) const PLAIN: Versions = [20, 9];
/// Versions in which numbers are quantized to 16 bits, too.
pub(super) const WORDS: Versions = [21, 10];
/// Domain of ONNX Runtime's own operators.
pub(super) const MICROSOFT: &str = "com.microsoft";

/// Number formats.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum DataType {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Bool = 9,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(string, tag = "2")]
    producer_name: String,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSet>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSet {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
    /// Shapes of tensors within the graph.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, optional, tag = "2")]
    float: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    int: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    string: Option<Vec<u8>>,
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    /// Little-endian numbers.
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    value_type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(int64, optional, tag = "1")]
    value: Option<i64>,
}

impl Model {
    pub fn new(graph: Graph, [opset, ir_version]: Versions) -> Self {
        let operators = |domain: &str, version| OperatorSet {
            domain: domain.to_owned(),
            version,
        };
        Self {
            ir_version,
            producer_name: "triad".to_owned(),
            graph: Some(graph),
            opset_import: vec![operators("", opset), operators(MICROSOFT, 1)],
        }
    }

    /// Returns the graph of an encoded model, with its nodes.
    ///
    /// # Errors
    /// If it is no model with a graph.
    pub fn graph_of(model: &[u8]) -> Result<Graph, String> {
        let model = Self::decode(model).map_err(|error| error.to_string())?;
        model
            .graph
            .ok_or_else(|| "expected a model with a graph".to_owned())
    }
}

impl Graph {
    /// Prepends `prefix` to the names of all nodes and tensors.
    pub fn prefix(&mut self, prefix: &str) {
        let prepend = |name: &mut String| {
            if !name.is_empty() {
                name.insert_str(0, prefix);
            }
        };
        for node in &mut self.node {
            prepend(&mut node.name);
            node.input
                .iter_mut()
                .chain(&mut node.output)
                .for_each(prepend);
        }
        for tensor in &mut self.initializer {
            prepend(&mut tensor.name);
        }
        let values = self.input.iter_mut().chain(&mut self.output);
        values
            .chain(&mut self.value_info)
            .for_each(|value| prepend(&mut value.name));
    }
}

impl Node {
    /// Returns the attribute with this name.
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute
            .iter()
            .find(|attribute| attribute.name == name)
    }

    /// Returns the integer in an attribute; 0 if there is none.
    pub fn int(&self, name: &str) -> i64 {
        self.attribute(name)
            .and_then(|attribute| attribute.int)
            .unwrap_or(0)
    }

    /// Returns the bytes in an attribute; none if it is missing.
    pub fn bytes(&self, name: &str) -> &[u8] {
        self.attribute(name)
            .and_then(|attribute| attribute.string.as_deref())
            .unwrap_or(&[])
    }
}

impl Attribute {
    pub fn of_float(name: &str, value: f32) -> Self {
        Self {
            name: name.to_owned(),
            float: Some(value),
            kind: 1,
            ..Self::default()
        }
    }

    pub fn of_int(name: &str, value: i64) -> Self {
        Self {
            name: name.to_owned(),
            int: Some(value),
            kind: 2,
            ..Self::default()
        }
    }

    pub fn of_string(name: &str, value: &str) -> Self {
        Self::of_bytes(name, value.as_bytes().to_vec())
    }

    pub fn of_bytes(name: &str, value: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            string: Some(value),
            kind: 3,
            ..Self::default()
        }
    }
}

impl Tensor {
    pub fn new(name: &str, dims: &[usize], data_type: DataType, raw_data: Vec<u8>) -> Self {
        let dims = dims.iter().map(|dim| *dim as i64).collect();
        Self {
            dims,
            data_type: data_type as i32,
            name: name.to_owned(),
            raw_data,
        }
    }

    pub fn floats(name: &str, dims: &[usize], values: &[f32]) -> Self {
        Self::new(
            name,
            dims,
            DataType::Float,
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        )
    }
}

impl ValueInfo {
    pub fn new(name: &str, data_type: DataType, dims: &[usize]) -> Self {
        let dim = dims
            .iter()
            .map(|dim| Dimension {
                value: Some(*dim as i64),
            })
            .collect();
        let tensor = TensorType {
            element: data_type as i32,
            shape: Some(Shape { dim }),
        };
        Self {
            name: name.to_owned(),
            value_type: Some(ValueType {
                tensor: Some(tensor),
            }),
        }
    }
}
