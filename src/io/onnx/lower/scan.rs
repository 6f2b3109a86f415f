//! Sums and recurrences along an axis.

use super::super::proto::{Attribute, Body, Node, Type, Value};
use super::Lowering;
use super::nodes::{around, flag};
use crate::error::Result;
use crate::ops::recurrent::Recurrent;
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
    /// A recurrent layer as a loop over time, and its value packed from the states and what the loop saves.
    pub(super) fn recurrent(&mut self, at: u32, op: &Recurrent, ins: &[Value]) -> Result<Value> {
        let cell = op.cell;
        let (gates, count) = (cell.gates(), cell.states());
        let (steps, batch) = (ins[0].dims[0], ins[0].dims[1]);
        let hidden = ins[0].dims[2] / gates;
        let (weights, initial) = (self.transpose(&ins[1], &[1, 0]), &ins[2..2 + count]);
        let optional = &ins[2 + count..];
        let (bias, mask) = optional.split_at(optional.len() - usize::from(op.masked));
        let firsts: Vec<Value> = initial.iter().map(|v| self.reshape(v, &[1, batch, hidden])).collect();
        if steps == 0 {
            return Ok(self.concat(&firsts.iter().collect::<Vec<_>>(), 0));
        }
        let before = std::mem::take(&mut self.nodes);
        let line =
            |l: &mut Self, dims: &[usize]| Value { name: l.fresh(), dtype: Type::F32, dims: dims.to_vec() };
        let states: Vec<Value> = (0..count).map(|_| line(self, &[batch, hidden])).collect();
        let x = line(self, &[batch, gates * hidden]);
        let masks: Vec<Value> = mask.iter().map(|_| line(self, &[batch])).collect();
        let product = self.matmul(&states[0], &weights);
        let product = bias.iter().fold(product, |sum, bias| self.binary("Add", &sum, bias));
        let mut args = Vec::new();
        for all in [&x, &product] {
            args.extend((0..gates).map(|g| self.slice(all, 1, g * hidden, hidden, 1)));
        }
        args.extend(states.iter().cloned());
        args.extend(masks.iter().map(|m| self.reshape(m, &[batch, 1])).collect::<Vec<_>>());
        let results = self.program(cell.step_program(op.masked), &args)?;
        let results: Vec<Value> = results.iter().map(|v| self.unary("Identity", v)).collect();
        let seen: Vec<Value> = results.iter().map(|v| self.unary("Identity", v)).collect();
        let nodes = std::mem::replace(&mut self.nodes, before);
        let outputs = [&results[..count], &seen].concat();
        let scanned = 1 + masks.len();
        let body = Body { nodes, inputs: [states, vec![x], masks].concat(), outputs };
        let backwards = i64::from(op.reverse);
        let attributes = vec![
            ("body", Attribute::Graph(body)),
            ("num_scan_inputs", Attribute::Int(scanned as i64)),
            ("scan_input_directions", Attribute::Ints(vec![backwards; scanned])),
            ("scan_output_directions", Attribute::Ints(vec![backwards; seen.len()])),
        ];
        let inputs = initial.iter().chain(&ins[..1]).chain(mask).map(|v| v.name.clone()).collect();
        let last: Vec<String> = (0..count).map(|_| self.fresh()).collect();
        let all: Vec<Value> = seen.iter().map(|_| line(self, &[steps, batch, hidden])).collect();
        let outputs: Vec<String> = last.into_iter().chain(all.iter().map(|v| v.name.clone())).collect();
        self.nodes.push(Node { op: "Scan", name: outputs[0].clone(), inputs, outputs, attributes });
        // Outputs and last states are slices of the packed value that are there before it is packed.
        let (mut rows, mut parts) = (Vec::new(), Vec::new());
        let len = batch * hidden;
        for (i, (first, all)) in firsts.iter().zip(&all).enumerate() {
            rows.extend(if op.reverse { [all, first] } else { [first, all] });
            let last = self.slice(all, 0, if op.reverse { 0 } else { steps - 1 }, 1, 1);
            parts.push(((i * (steps + 1) + op.first_output()) * len, all.clone()));
            parts.push((op.last_row(i, steps) * len, last));
        }
        rows.extend(&all[count..]);
        let whole = self.concat(&rows, 0);
        self.parts.insert(at, parts);
        Ok(whole)
    }
}
