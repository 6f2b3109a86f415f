//! Normalizations and moments.

use super::super::proto::{Attribute, Type, Value};
use super::Lowering;
use super::nodes::on_axis;
use crate::error::Result;

/// All axes but that of the channels.
fn across_channels(rank: usize) -> Vec<usize> {
    (0..rank).filter(|a| *a != 1).collect()
}

impl Lowering<'_> {
    /// A layer norm over the last axes, as ONNX has it.
    pub(super) fn layer_norm(&mut self, ins: &[Value], axes: usize, eps: f32) -> Value {
        let x = &ins[0];
        let first = x.rank() - axes;
        let rows = &x.dims[first..];
        let gain = match ins.get(1) {
            Some(gain) => gain.clone(),
            None => self.numbers(rows, &vec![1.0; rows.iter().product()]),
        };
        let mut attributes = on_axis(first);
        attributes.push(("epsilon", Attribute::Float(eps)));
        let all: Vec<&Value> = [x, &gain].into_iter().chain(ins.get(2)).collect();
        self.node("LayerNormalization", &all, attributes, Type::F32, &x.dims)
    }

    /// A root-mean-square norm over the last axes.
    pub(super) fn rms_norm(&mut self, ins: &[Value], axes: usize, eps: f32) -> Value {
        let rank = ins[0].rank();
        let last: Vec<usize> = (rank - axes..rank).collect();
        let y = self.normalized(&ins[0], &last, false, eps);
        self.affine(y, &ins[1..], &ins[0].dims[rank - axes..])
    }

    /// A norm of each channel over everything else.
    pub(super) fn batch_norm(&mut self, ins: &[Value], eps: f32) -> Value {
        let y = self.normalized(&ins[0], &across_channels(ins[0].rank()), true, eps);
        self.per_channel(y, &ins[1..])
    }

    /// A norm of each group of channels of each row.
    pub(super) fn group_norm(&mut self, ins: &[Value], groups: usize, eps: f32) -> Value {
        let (x, rows) = (&ins[0], ins[0].dims[0]);
        let grouped = self.reshape(x, &[rows, groups, x.numel() / (rows * groups)]);
        let y = self.normalized(&grouped, &[2], true, eps);
        let y = self.reshape(&y, &x.dims);
        self.per_channel(y, &ins[1..])
    }

    /// Mean and variance of each channel, packed.
    pub(super) fn moments(&mut self, at: u32, x: &Value) -> Result<Value> {
        if x.numel() == 0 {
            // Of nothing there is no mean.
            let nan = self.c(f32::NAN);
            let each = self.expand(&nan, &[x.dims[1]]);
            return self.pack(at, vec![each.clone(), each]);
        }
        let axes = across_channels(x.rank());
        let mean = self.reduce("ReduceMean", x, &axes);
        let (_, var) = self.spread(x, &axes, true);
        let flat = [mean, var].map(|v| self.reshape(&v, &[v.numel()]));
        self.pack(at, flat.into())
    }

    /// Less its mean over axes if `centered`, over the root of the mean square.
    fn normalized(&mut self, x: &Value, axes: &[usize], centered: bool, eps: f32) -> Value {
        let (x, var) = self.spread(x, axes, centered);
        let eps = self.c(eps);
        let sum = self.binary("Add", &var, &eps);
        let root = self.unary("Sqrt", &sum);
        self.binary("Div", &x, &root)
    }

    /// The distance from the mean over axes, or from 0, and the mean of its square.
    fn spread(&mut self, x: &Value, axes: &[usize], centered: bool) -> (Value, Value) {
        let mut x = x.clone();
        if centered {
            let mean = self.reduce("ReduceMean", &x, axes);
            x = self.binary("Sub", &x, &mean);
        }
        let square = self.binary("Mul", &x, &x);
        (x, self.reduce("ReduceMean", &square, axes))
    }

    /// `x gain + shift`, as many of them as there are, under a shape that they are broadcast by.
    fn affine(&mut self, x: Value, gains: &[Value], dims: &[usize]) -> Value {
        ["Mul", "Add"].into_iter().zip(gains).fold(x, |x, (op, by)| {
            let by = self.reshape(by, dims);
            self.binary(op, &x, &by)
        })
    }

    /// Gains and shifts of channels, which are axis 1.
    fn per_channel(&mut self, y: Value, gains: &[Value]) -> Value {
        let mut dims = vec![1; y.rank()];
        dims[1] = y.dims[1];
        self.affine(y, gains, &dims)
    }
}
