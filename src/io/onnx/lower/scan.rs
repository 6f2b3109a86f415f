//! Sums and recurrences along an axis.

use super::super::proto::{Attribute, Body, Node, Type, Value};
use super::Lowering;
use super::nodes::{around, flag};
use crate::ops::scan::CumSum;

impl Lowering<'_> {
    /// Sums of all elements up to each.
    pub(super) fn cumsum(&mut self, x: &Value, s: &CumSum) -> Value {
        let axis = self.wholes(&[], &[s.axis as i64]);
        let attributes = vec![flag("exclusive", s.exclusive), flag("reverse", s.reverse)];
        self.node("CumSum", &[x, &axis], attributes, Type::F32, &x.dims)
    }

    /// The recurrence as a loop over time.
    pub(super) fn scan(&mut self, [a, b, x, h0]: [&Value; 4]) -> Value {
        let rank = x.rank();
        let [batch, steps, states] = around(&x.dims, rank - 2..rank - 1);
        let inflow = self.binary("Mul", b, x);
        let inflow = self.reshape(&inflow, &[batch, steps, states]);
        let first = self.reshape(h0, &[batch, states]);
        let varies = a.rank() == rank;
        let factor = if varies { self.reshape(a, &[batch, steps, states]) } else { a.clone() };
        let line = |l: &mut Self| Value { name: l.fresh(), dtype: Type::F32, dims: vec![batch, states] };
        let (before, inflow_now, factor_now) = (line(self), line(self), line(self));
        let mut body = Lowering::new(self.graph);
        std::mem::swap(&mut body.taken, &mut self.taken);
        body.begin(format!("{}.step", self.place));
        let kept = body.binary("Mul", if varies { &factor_now } else { &factor }, &before);
        let now = body.binary("Add", &kept, &inflow_now);
        let seen = body.unary("Identity", &now);
        std::mem::swap(&mut body.taken, &mut self.taken);
        let mut inputs = vec![before, inflow_now];
        let mut all = vec![first.name, inflow.name];
        if varies {
            inputs.push(factor_now);
            all.push(factor.name);
        }
        let body = Body { nodes: body.nodes, inputs, outputs: vec![now, seen] };
        let scanned = all.len() - 1;
        let attributes = vec![
            ("body", Attribute::Graph(body)),
            ("num_scan_inputs", Attribute::Int(scanned as i64)),
            ("scan_input_axes", Attribute::Ints(vec![1; scanned])),
            ("scan_output_axes", Attribute::Ints(vec![1])),
        ];
        let (last, value) = (self.fresh(), self.fresh());
        let outputs = vec![last, value.clone()];
        self.nodes.push(Node { op: "Scan", name: value.clone(), inputs: all, outputs, attributes });
        let value = Value { name: value, dtype: Type::F32, dims: vec![batch, steps, states] };
        self.reshape(&value, &x.dims)
    }
}
