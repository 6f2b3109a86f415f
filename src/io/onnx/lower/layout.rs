//! Where elements lie: packed results, parts, padding, and what turns or clears a part of a value.

use super::super::proto::Value;
use super::Lowering;
use super::nodes::{around, flag, ints};
use super::op::Place;
use crate::error::Result;
use crate::ops::layout::{Pad, Slice, Triangle, packed};
use crate::shape::Shape;

impl Lowering<'_> {
    /// Results one behind the other in a flat value, each from a multiple of four words on.
    pub(super) fn pack(&mut self, at: u32, parts: Vec<Value>) -> Result<Value> {
        let shapes = parts.iter().map(|v| Shape::new(&v.dims)).collect::<Result<Vec<_>>>()?;
        let (starts, _) = packed(&shapes);
        let mut flat = Vec::new();
        for part in &parts {
            let (n, line) = (part.numel(), self.reshape(part, &[part.numel()]));
            flat.push(self.pad(&line, 0, 0, n.next_multiple_of(4) - n, 0.0));
        }
        let whole = self.concat(&flat.iter().collect::<Vec<_>>(), 0);
        self.parts.insert(at, starts.iter().copied().zip(parts).collect());
        Ok(whole)
    }

    /// Results of one shape: the value itself, or several packed.
    pub(super) fn results(&mut self, at: u32, results: Vec<Value>, shape: &Shape) -> Result<Value> {
        let mut full: Vec<Value> = results.iter().map(|v| self.expand(v, shape.dims())).collect();
        if full.len() == 1 { Ok(full.swap_remove(0)) } else { self.pack(at, full) }
    }

    /// A run of an axis: a part of a packed value as it was before it was packed, or a slice.
    pub(super) fn run_of(&mut self, place: &Place<'_>, x: &Value, s: &Slice) -> Value {
        // Parts begin at an element, runs of the first axis at a row.
        let inner: usize = x.dims[1..].iter().product();
        let is_part = |start: usize, v: &Value| {
            (s.axis, s.start * inner, s.len * inner, s.step) == (0, start, v.numel(), 1)
        };
        let mut parts = self.parts.get(&place.ins[0].0).into_iter().flatten();
        let part = parts.find(|(start, v)| is_part(*start, v));
        match part.map(|(_, v)| v.clone()) {
            Some(part) => self.reshape(&part, place.out.shape.dims()),
            None => self.slice(x, s.axis, s.start, s.len, s.step),
        }
    }

    /// Elements at a distance from each other, and a number around and between them.
    pub(super) fn spaced(&mut self, x: &Value, p: &Pad) -> Value {
        let len = x.dims[p.axis];
        let mut x = x.clone();
        let mut long = len;
        if p.step > 1 && len > 1 {
            let [outer, _, inner] = around(&x.dims, p.axis..p.axis + 1);
            let mut dims = x.dims.clone();
            let four = self.reshape(&x, &[outer, len, 1, inner]);
            let wide = self.pad(&four, 2, 0, p.step - 1, p.value);
            dims[p.axis] = len * p.step;
            let line = self.reshape(&wide, &dims);
            long = (len - 1) * p.step + 1;
            x = self.slice(&line, p.axis, 0, long, 1);
        }
        if len == 0 {
            let value = self.scalar(x.dtype, p.value);
            let mut dims = x.dims.clone();
            dims[p.axis] = p.size;
            return self.expand(&value, &dims);
        }
        self.pad(&x, p.axis, p.start, p.size - p.start - long, p.value)
    }

    /// Elements of some axes in the other order.
    pub(super) fn flip(&mut self, x: &Value, axes: &[usize]) -> Value {
        let n = axes.len();
        let args = [vec![-1; n], vec![i64::MIN; n], ints(axes), vec![-1; n]].map(|all| self.list(&all));
        let [start, end, axes, step] = &args;
        if n == 0 {
            return x.clone();
        }
        self.node("Slice", &[x, start, end, axes, step], vec![], x.dtype, &x.dims)
    }

    /// Zeros on one side of a diagonal.
    pub(super) fn triangle(&mut self, x: &Value, t: &Triangle) -> Value {
        // Further than every size is as good as the size, and takes a runtime less time.
        let most = x.dims[x.rank() - 2..].iter().sum::<usize>() as i64;
        let shift = self.wholes(&[], &[t.shift.clamp(-most, most)]);
        self.node("Trilu", &[x, &shift], vec![flag("upper", t.upper)], x.dtype, &x.dims)
    }
}
