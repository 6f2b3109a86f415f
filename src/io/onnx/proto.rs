//! The messages of an ONNX file. Fields keep their order here, so that the same program gives the same bytes.

use crate::io::protobuf::Message;

/// Element types, by their numbers in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Type {
    F32 = 1,
    I64 = 7,
    Bool = 9,
    F64 = 11,
}

/// A value by name: what it is called, and its type and shape.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) name: String,
    pub(super) dtype: Type,
    pub(super) dims: Vec<usize>,
}

impl Value {
    /// `ValueInfoProto`.
    pub(super) fn info(&self) -> Message {
        let shape =
            Message::default().each(&self.dims, |m, d| m.message(1, Message::default().int(1, *d as i64)));
        let tensor = Message::default().int(1, self.dtype as i64).message(2, shape);
        Message::default().text(1, &self.name).message(2, Message::default().message(1, tensor))
    }

    pub(super) fn rank(&self) -> usize {
        self.dims.len()
    }

    pub(super) fn numel(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A value stored in the file.
#[derive(Clone, Debug)]
pub(super) struct Initializer {
    pub(super) value: Value,
    /// Its elements, little endian.
    pub(super) bytes: Vec<u8>,
}

impl Initializer {
    /// `TensorProto`.
    fn message(&self) -> Message {
        Message::default()
            .each(&self.value.dims, |m, d| m.int(1, *d as i64))
            .int(2, self.value.dtype as i64)
            .text(8, &self.value.name)
            .bytes(9, &self.bytes)
    }
}

/// An attribute of a node.
#[derive(Clone, Debug)]
pub(super) enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
    Graph(Body),
}

/// A subgraph of a node. It may read values of the enclosing graph.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) nodes: Vec<Node>,
    pub(super) inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: &'static str,
    pub(super) name: String,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
}

impl Node {
    /// The names of all values that it reads, also in subgraphs.
    pub(super) fn reads(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        for (_, attribute) in &self.attributes {
            if let Attribute::Graph(body) = attribute {
                all.extend(body.nodes.iter().flat_map(Node::reads));
            }
        }
        all
    }

    /// `NodeProto`.
    fn message(&self) -> Message {
        Message::default()
            .each(&self.inputs, |m, x| m.text(1, x))
            .each(&self.outputs, |m, x| m.text(2, x))
            .text(3, &self.name)
            .text(4, self.op)
            .each(&self.attributes, |m, (name, attribute)| {
                // `AttributeProto`: the value, and after it the kind of value.
                let a = Message::default().text(1, name);
                let a = match attribute {
                    Attribute::Float(x) => a.float(2, *x).int(20, 1),
                    Attribute::Int(x) => a.int(3, *x).int(20, 2),
                    Attribute::Text(x) => a.text(4, x).int(20, 3),
                    Attribute::Graph(body) => {
                        a.message(6, body.message(&[&*self.name, ".body"].concat())).int(20, 5)
                    }
                    Attribute::Ints(all) => a.each(all, |m, x| m.int(8, *x)).int(20, 7),
                };
                m.message(5, a)
            })
    }
}

impl Body {
    /// `GraphProto`.
    pub(super) fn message(&self, name: &str) -> Message {
        self.with(name, &[], &[])
    }

    /// `GraphProto` with initializers and types of intermediate values.
    pub(super) fn with(&self, name: &str, initializers: &[Initializer], infos: &[Value]) -> Message {
        Message::default()
            .each(&self.nodes, |m, n| m.message(1, n.message()))
            .text(2, name)
            .each(initializers, |m, t| m.message(5, t.message()))
            .each(&self.inputs, |m, v| m.message(11, v.info()))
            .each(&self.outputs, |m, v| m.message(12, v.info()))
            .each(infos, |m, v| m.message(13, v.info()))
    }
}
