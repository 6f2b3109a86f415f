//! Attention, its masks, and rotary embeddings.

use super::super::proto::{Type, Value};
use super::Lowering;
use crate::error::Result;
use crate::ops::attention::{self, AttentionMask, Rope};
use crate::shape::Shape;

impl Lowering<'_> {
    /// Outputs, logarithms and largest scores of an attention.
    pub(super) fn attention(
        &mut self,
        [q, k, v]: [&Value; 3],
        mask: Option<&Value>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Vec<Value>> {
        let rank = q.rank();
        let (n, d, m) = (q.dims[rank - 2], q.dims[rank - 1], k.dims[rank - 2]);
        let shapes = [q, v].map(|x| Shape::new(&x.dims));
        let [outputs, logs, tops] = attention::parts(shapes[0].clone()?, shapes[1].clone()?);
        if m == 0 {
            return Ok([outputs, logs, tops].map(|s| self.zeros(s.dims())).into());
        }
        let mut open = mask.map(|mask| self.open(mask));
        let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
        if rank > 2 && q.dims[rank - 3] != k.dims[rank - 3] {
            // Heads that share keys stand behind them, as one more axis.
            let (lead, heads, shared) = (&q.dims[..rank - 3], q.dims[rank - 3], k.dims[rank - 3]);
            let split = |last: &[usize]| [lead, &[shared, heads / shared], last].concat();
            if let Some(mask) = open {
                let full = [lead, &[heads, n, m]].concat();
                let mask = self.expand(&mask, &full);
                open = Some(self.reshape(&mask, &split(&[n, m])));
            }
            let spread = |x: &Value| [lead, &[shared, 1], &x.dims[rank - 2..]].concat();
            let (k_dims, v_dims, q_dims) = (spread(&k), spread(&v), split(&[n, d]));
            (k, v, q) = (self.reshape(&k, &k_dims), self.reshape(&v, &v_dims), self.reshape(&q, &q_dims));
        }
        if causal {
            let below = self.truths(&[n, m], |at| at % m <= at / m);
            open = Some(match open {
                Some(mask) => self.compare("And", &mask, &below),
                None => below,
            });
        }
        let keys = self.turned(&k, true);
        let products = self.matmul(&q, &keys);
        let scale = scale.unwrap_or_else(|| 1.0 / (d.max(1) as f64).sqrt());
        let scores = if scale < 0.0 { self.unary("Neg", &products) } else { products };
        let scale = self.c(scale.abs() as f32);
        let scaled = self.binary("Mul", &scores, &scale);
        let weights = self.open_softmax(&scaled, open.as_ref(), scaled.rank() - 1);
        let sums = self.matmul(&weights, &v);
        let sums = self.reshape(&sums, outputs.dims());
        let none = self.c(f32::NEG_INFINITY);
        let scores = match &open {
            Some(open) => self.choose(open, &scores, &none),
            None => scores,
        };
        let top = self.reduce("ReduceMax", &scores, &[scores.rank() - 1]);
        let below = self.binary("Sub", &scores, &top);
        let below = self.binary("Mul", &below, &scale);
        let log = self.reduce("ReduceLogSumExp", &below, &[below.rank() - 1]);
        let (factor, zero) = (self.c(std::f32::consts::LOG2_E), self.c(0.0));
        let log = self.binary("Mul", &log, &factor);
        let empty = self.compare("Equal", &top, &none);
        let [log, top] = [log, top].map(|x| self.choose(&empty, &zero, &x));
        Ok(vec![sums, self.reshape(&log, logs.dims()), self.reshape(&top, tops.dims())])
    }

    /// Attention of heads that lie inside the rows of a linear layer.
    pub(super) fn self_attention(
        &mut self,
        x: &Value,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Vec<Value>> {
        // (3, …, heads, n, d) from (…, n, 3, heads, d), and the outputs' heads behind n again.
        let rank = x.rank();
        let tail = [rank - 2, rank - 4, rank - 1];
        let order: Vec<usize> = std::iter::once(rank - 3).chain(0..rank - 4).chain(tail).collect();
        let turned = self.transpose(x, &order);
        let [q, k, v] = [0, 1, 2].map(|i| self.entry(&turned, i));
        let mut parts = self.attention([&q, &k, &v], None, causal, scale)?;
        let mut order: Vec<usize> = (0..rank - 1).collect();
        order.swap(rank - 4, rank - 3);
        parts[0] = self.transpose(&parts[0], &order);
        Ok(parts)
    }

    pub(super) fn attention_mask(&mut self, a: &AttentionMask, mask: Option<&Value>, out: &[usize]) -> Value {
        let below = self.truths(&[a.n, a.m], |at| !a.causal || at % a.m <= at / a.m);
        let open = match mask {
            Some(mask) => {
                let open = self.open(mask);
                self.compare("And", &open, &below)
            }
            None => below,
        };
        let numbers = self.cast(&open, Type::F32);
        self.expand(&numbers, out)
    }

    /// Pairs of elements turned by the angles of a table.
    pub(super) fn rope(&mut self, x: &Value, table: &Value, r: &Rope) -> Value {
        let half = x.dims[x.rank() - 1] / 2;
        let [cos, sin] = [0, half].map(|at| self.slice(table, 1, at, half, 1));
        let sin = if r.inverse { self.unary("Neg", &sin) } else { sin };
        // The two members of all pairs: halves, or every other element.
        let (axis, step) = (x.rank() - 1, if r.interleaved { 2 } else { 1 });
        let second = if r.interleaved { 1 } else { half };
        let (a, b) = (self.slice(x, axis, 0, half, step), self.slice(x, axis, second, half, step));
        let mut turned = Vec::new();
        for (first, other, op) in [(&a, &b, "Sub"), (&b, &a, "Add")] {
            let (along, across) = (self.binary("Mul", first, &cos), self.binary("Mul", other, &sin));
            let sum = self.binary(op, &along, &across);
            let dims = if r.interleaved { [&sum.dims[..], &[1]].concat() } else { sum.dims.clone() };
            turned.push(self.reshape(&sum, &dims));
        }
        let axis = turned[0].rank() - 1;
        let y = self.concat(&[&turned[0], &turned[1]], axis);
        self.reshape(&y, &x.dims)
    }
}
