//! Values read from and added to places that indices name.

use super::super::proto::{Attribute, Type, Value};
use super::Lowering;
use super::nodes::{around, on_axis};
use crate::ops::index::IndexAdd;

impl Lowering<'_> {
    /// Indices along an axis of `x` that are within it: those out of range read a zero behind its end.
    fn within(&mut self, x: &Value, index: &Value, axis: usize) -> (Value, Value) {
        let beyond = self.wholes(&[], &[x.dims[axis] as i64]);
        (self.pad(x, axis, 0, 1, 0.0), self.binary("Min", index, &beyond))
    }

    /// Numbers as indices below a bound. A conversion of NaN is not defined, so it becomes 0 before.
    pub(super) fn index_of(&mut self, x: &Value, below: u32) -> Value {
        let (zero, last) = (self.c(0.0), self.wholes(&[], &[i64::from(below) - 1]));
        let positive = self.compare("Greater", x, &zero);
        let x = self.choose(&positive, x, &zero);
        // Larger ones could not be converted.
        let most = self.c(u32::MAX as f32);
        let x = self.binary("Min", &x, &most);
        let index = self.cast(&x, Type::I64);
        self.binary("Min", &index, &last)
    }

    /// What indices along an axis name, by the node that has their rule.
    pub(super) fn gather(
        &mut self,
        name: &'static str,
        ins: &[Value],
        (axis, checked): (usize, bool),
        dims: &[usize],
    ) -> Value {
        let (x, index) = match checked {
            true => (ins[0].clone(), ins[1].clone()),
            false => self.within(&ins[0], &ins[1], axis),
        };
        self.node(name, &[&x, &index], on_axis(axis), x.dtype, dims)
    }

    /// Elements added along an axis of a value with `size` elements there, or combined otherwise, each at an index of its own.
    pub(super) fn scatter(
        &mut self,
        (src, index): (&Value, &Value),
        base: Option<&Value>,
        (axis, size, checked): (usize, usize, bool),
        reduction: &'static str,
    ) -> Value {
        let mut dims = src.dims.clone();
        dims[axis] = size;
        let base = match base {
            Some(base) => self.reshape(base, &dims),
            None => self.zeros(&dims),
        };
        if src.numel() == 0 {
            return base;
        }
        let (base, index) = if checked { (base, index.clone()) } else { self.within(&base, index, axis) };
        let mut attributes = on_axis(axis);
        attributes.push(("reduction", Attribute::Text(reduction)));
        let sum = self.node("ScatterElements", &[&base, &index, src], attributes, Type::F32, &base.dims);
        self.slice(&sum, axis, 0, size, 1)
    }

    /// Slices added along an axis, each at an index of its own.
    pub(super) fn index_add(&mut self, ins: &[Value], s: &IndexAdd, dims: &[usize]) -> Value {
        let [outer, _, inner] = around(dims, s.axis..s.axis + 1);
        let count = ins[1].numel();
        let src = self.reshape(&ins[0], &[outer, count, inner]);
        let index = self.reshape(&ins[1], &[1, count, 1]);
        let index = self.expand(&index, &[outer, count, inner]);
        let sum = self.scatter((&src, &index), ins.get(2), (1, s.size, s.checked), "add");
        self.reshape(&sum, dims)
    }
}
