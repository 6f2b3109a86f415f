//! Softmax, its logarithm, and their gradients.

use super::super::proto::{Type, Value};
use super::Lowering;
use super::nodes::on_axis;

impl Lowering<'_> {
    /// Where a mask lets through.
    pub(super) fn open(&mut self, mask: &Value) -> Value {
        let size = if mask.dtype == Type::I64 { mask.clone() } else { self.unary("Abs", mask) };
        let zero = self.scalar(mask.dtype, 0.0);
        self.compare("Greater", &size, &zero)
    }

    /// Softmax along the last axis of what is open, and zeros elsewhere.
    pub(super) fn open_softmax(&mut self, x: &Value, open: Option<&Value>, axis: usize) -> Value {
        let axis = on_axis(axis);
        let Some(open) = open else { return self.node("Softmax", &[x], axis, Type::F32, &x.dims) };
        let (none, zero) = (self.c(f32::NEG_INFINITY), self.c(0.0));
        let x = self.choose(open, x, &none);
        let weights = self.node("Softmax", &[&x], axis, Type::F32, &x.dims);
        // A row where nothing is open has no weights but these zeros.
        self.choose(open, &weights, &zero)
    }

    pub(super) fn log_softmax(&mut self, x: &Value, axis: usize) -> Value {
        self.node("LogSoftmax", &[x], on_axis(axis), Type::F32, &x.dims)
    }

    /// `y (dy - Σ y dy)`.
    pub(super) fn softmax_slope(&mut self, y: &Value, dy: &Value, axis: usize) -> Value {
        let product = self.binary("Mul", y, dy);
        let sum = self.reduce("ReduceSum", &product, &[axis]);
        let rest = self.binary("Sub", dy, &sum);
        self.binary("Mul", y, &rest)
    }

    /// `dy - e^y Σ dy`.
    pub(super) fn log_softmax_slope(&mut self, y: &Value, dy: &Value, axis: usize) -> Value {
        let sum = self.reduce("ReduceSum", dy, &[axis]);
        let weights = self.unary("Exp", y);
        let share = self.binary("Mul", &weights, &sum);
        self.binary("Sub", dy, &share)
    }
}
