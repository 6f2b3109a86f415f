//! The messages of an ONNX file, in the wire format of protocol buffers. A message is a list of fields, each a number
//! with a kind, then a varint, four bytes, or a length and that many bytes. Fields keep their order here, so that the
//! same program gives the same bytes.

/// Element types, by their numbers in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Type {
    F32 = 1,
    I64 = 7,
    Bool = 9,
    F64 = 11,
}

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// An integer.
    pub(super) fn int(mut self, field: u32, x: i64) -> Message {
        self.key(field, 0);
        self.varint(x as u64);
        self
    }

    /// A float32.
    pub(super) fn float(mut self, field: u32, x: f32) -> Message {
        self.key(field, 5);
        self.0.extend(x.to_le_bytes());
        self
    }

    /// Bytes.
    pub(super) fn bytes(mut self, field: u32, x: &[u8]) -> Message {
        self.key(field, 2);
        self.varint(x.len() as u64);
        self.0.extend(x);
        self
    }

    /// A text.
    pub(super) fn text(self, field: u32, x: &str) -> Message {
        self.bytes(field, x.as_bytes())
    }

    /// A message within this one.
    pub(super) fn message(self, field: u32, x: Message) -> Message {
        self.bytes(field, &x.0)
    }

    /// A repeated field.
    pub(super) fn each<T>(
        self,
        all: impl IntoIterator<Item = T>,
        f: impl Fn(Message, T) -> Message,
    ) -> Message {
        all.into_iter().fold(self, f)
    }

    /// The bytes written so far.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
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
