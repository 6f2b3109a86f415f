//! Nodes and constants: each method adds what ONNX calls so, and leaves out what would change nothing.

use super::super::proto::{Attribute, Initializer, Node, Type, Value};
use super::Lowering;

/// Attributes of a node, by name.
pub(super) type Attributes = Vec<(&'static str, Attribute)>;

/// The attribute of an op along an axis.
pub(super) fn on_axis(axis: usize) -> Attributes {
    vec![("axis", Attribute::Int(axis as i64))]
}

/// An attribute that is on or off.
pub(super) fn flag(name: &'static str, on: bool) -> (&'static str, Attribute) {
    (name, Attribute::Int(i64::from(on)))
}

pub(super) fn ints(all: &[usize]) -> Vec<i64> {
    all.iter().map(|x| *x as i64).collect()
}

/// The shape of two values together, by NumPy's rule.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let at = |d: &[usize], axis: usize| (axis + d.len()).checked_sub(rank).map_or(1, |i| d[i]);
    (0..rank).map(|axis| if at(a, axis) == 1 { at(b, axis) } else { at(a, axis) }).collect()
}

/// The dimensions as three: before some neighbouring axes, along them, behind them.
pub(super) fn around(d: &[usize], axes: std::ops::Range<usize>) -> [usize; 3] {
    [&d[..axes.start], &d[axes.clone()], &d[axes.end..]].map(|d| d.iter().product())
}

impl Lowering<'_> {
    /// A constant from its bytes.
    pub(super) fn constant(&mut self, dtype: Type, dims: &[usize], bytes: Vec<u8>) -> Value {
        let key = (dtype, dims.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return Value { name: name.clone(), dtype, dims: key.1 };
        }
        let mut n = self.constants.len();
        let name = loop {
            let name = format!("c{n}");
            if self.taken.insert(name.clone()) {
                break name;
            }
            n += 1;
        };
        self.constants.insert(key.clone(), name.clone());
        let value = Value { name, dtype, dims: key.1 };
        self.initializers.push(Initializer { value: value.clone(), bytes: key.2 });
        value
    }

    pub(super) fn numbers(&mut self, dims: &[usize], all: &[f32]) -> Value {
        self.constant(Type::F32, dims, all.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    pub(super) fn wholes(&mut self, dims: &[usize], all: &[i64]) -> Value {
        self.constant(Type::I64, dims, all.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    pub(super) fn list(&mut self, all: &[i64]) -> Value {
        self.wholes(&[all.len()], all)
    }

    pub(super) fn truths(&mut self, dims: &[usize], f: impl Fn(usize) -> bool) -> Value {
        let count: usize = dims.iter().product();
        self.constant(Type::Bool, dims, (0..count).map(|i| u8::from(f(i))).collect())
    }

    /// A single number.
    pub(super) fn c(&mut self, x: f32) -> Value {
        self.numbers(&[], &[x])
    }

    /// A single number of a type.
    pub(super) fn scalar(&mut self, dtype: Type, x: f32) -> Value {
        if dtype == Type::I64 { self.wholes(&[], &[x as i64]) } else { self.c(x) }
    }

    /// A node with one result.
    pub(super) fn node(
        &mut self,
        op: &'static str,
        ins: &[&Value],
        attributes: Attributes,
        dtype: Type,
        dims: &[usize],
    ) -> Value {
        let name = self.fresh();
        let inputs = ins.iter().map(|v| v.name.clone()).collect();
        self.nodes.push(Node { op, name: name.clone(), inputs, outputs: vec![name.clone()], attributes });
        Value { name, dtype, dims: dims.to_vec() }
    }

    pub(super) fn unary(&mut self, op: &'static str, x: &Value) -> Value {
        self.node(op, &[x], vec![], x.dtype, &x.dims)
    }

    pub(super) fn binary(&mut self, op: &'static str, a: &Value, b: &Value) -> Value {
        self.node(op, &[a, b], vec![], a.dtype, &broadcast(&a.dims, &b.dims))
    }

    pub(super) fn compare(&mut self, op: &'static str, a: &Value, b: &Value) -> Value {
        self.node(op, &[a, b], vec![], Type::Bool, &broadcast(&a.dims, &b.dims))
    }

    pub(super) fn choose(&mut self, truth: &Value, a: &Value, b: &Value) -> Value {
        let dims = broadcast(&truth.dims, &broadcast(&a.dims, &b.dims));
        self.node("Where", &[truth, a, b], vec![], a.dtype, &dims)
    }

    pub(super) fn cast(&mut self, x: &Value, to: Type) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(to as i64))], to, &x.dims)
    }

    pub(super) fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims == dims {
            return x.clone();
        }
        if x.numel() == 0 {
            // A 0 would say that the dimension stays as it is.
            return self.constant(x.dtype, dims, Vec::new());
        }
        let shape = self.list(&ints(dims));
        self.node("Reshape", &[x, &shape], vec![], x.dtype, dims)
    }

    pub(super) fn expand(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims == dims {
            return x.clone();
        }
        let shape = self.list(&ints(dims));
        self.node("Expand", &[x, &shape], vec![], x.dtype, dims)
    }

    pub(super) fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        if order.iter().enumerate().all(|(i, o)| i == *o) {
            return x.clone();
        }
        let dims: Vec<usize> = order.iter().map(|o| x.dims[*o]).collect();
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(ints(order)))], x.dtype, &dims)
    }

    /// With its last two axes exchanged if `yes`.
    pub(super) fn turned(&mut self, x: &Value, yes: bool) -> Value {
        let mut order: Vec<usize> = (0..x.rank()).collect();
        if yes && order.len() >= 2 {
            order.swap(x.rank() - 2, x.rank() - 1);
        }
        self.transpose(x, &order)
    }

    /// Elements of an axis from `start` on.
    pub(super) fn slice(&mut self, x: &Value, axis: usize, start: usize, len: usize, step: usize) -> Value {
        if len == x.dims[axis] {
            return x.clone();
        }
        let end = start + len.saturating_sub(1) * step + 1;
        let args = [start, end, axis, step].map(|n| self.list(&[n as i64]));
        let mut dims = x.dims.clone();
        dims[axis] = len;
        let [start, end, axis, step] = &args;
        self.node("Slice", &[x, start, end, axis, step], vec![], x.dtype, &dims)
    }

    /// Entry `i` of the first axis, which the value no longer has.
    pub(super) fn entry(&mut self, x: &Value, i: usize) -> Value {
        let one = self.slice(x, 0, i, 1, 1);
        self.reshape(&one, &x.dims[1..])
    }

    /// With `before` and `after` elements more along an axis.
    pub(super) fn pad(&mut self, x: &Value, axis: usize, before: usize, after: usize, value: f32) -> Value {
        if before + after == 0 {
            return x.clone();
        }
        let pads = self.list(&ints(&[before, after]));
        let value = self.scalar(x.dtype, value);
        let axes = self.list(&[axis as i64]);
        let mut dims = x.dims.clone();
        dims[axis] += before + after;
        self.node("Pad", &[x, &pads, &value, &axes], vec![], x.dtype, &dims)
    }

    pub(super) fn concat(&mut self, all: &[&Value], axis: usize) -> Value {
        let Some(first) = all.first() else { return self.c(0.0) };
        let mut dims = first.dims.clone();
        dims[axis] = all.iter().map(|v| v.dims[axis]).sum();
        self.node("Concat", all, on_axis(axis), first.dtype, &dims)
    }

    pub(super) fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let (lead_a, m) = a.dims.split_at(a.rank() - 2);
        let (lead_b, n) = b.dims.split_at(b.rank() - 2);
        let dims = [&broadcast(lead_a, lead_b)[..], &[m[0], n[1]]].concat();
        if m[1] == 0 {
            // Sums of nothing, which runtimes are not sure of.
            return self.zeros(&dims);
        }
        self.node("MatMul", &[a, b], vec![], Type::F32, &dims)
    }

    pub(super) fn zeros(&mut self, dims: &[usize]) -> Value {
        let zero = self.c(0.0);
        self.expand(&zero, dims)
    }

    /// Folded over axes, which stay as ones.
    pub(super) fn reduce(&mut self, op: &'static str, x: &Value, axes: &[usize]) -> Value {
        if axes.is_empty() {
            return x.clone();
        }
        let list = self.list(&ints(axes));
        let mut dims = x.dims.clone();
        axes.iter().for_each(|a| dims[*a] = 1);
        self.node(op, &[x, &list], vec![flag("keepdims", true)], x.dtype, &dims)
    }
}
