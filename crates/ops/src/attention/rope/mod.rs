//! Rotary position embedding: pairs of coordinates turned by angles that grow with the position.

#[cfg(feature = "cases")]
mod cases;

use crate::pointwise::Add;
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map::grid;
use crate::pointwise::record_pointwise;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch};
use dittograd_device::Meta;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// The table of [`Rope`] for positions `offset .. offset + n`: row `p` has the cosines of `p base^(-2i/d)` for `i <
/// d/2`, then the sines, formed in f64 and rounded once.
pub fn rope_table(n: usize, d: usize, base: f64, offset: usize) -> Result<Tensor<f32>> {
    if !d.is_multiple_of(2) {
        return Err(odd(d));
    }
    if !(base > 0.0 && base.is_finite()) {
        return Err(Error::argument(Rope::NAME, "base", format!("got {base}, use a positive number")));
    }
    if offset.checked_add(n).is_none() {
        let why = format!("{n} positions from {offset} on are more than can be counted");
        return Err(Error::argument(Rope::NAME, "offset", why));
    }
    let half = d / 2;
    let shape = Shape::new(&[n, d])?;
    Ok(Tensor::from_fn(shape, |at| {
        let (p, c) = ((offset + at / d) as f64, at % d);
        let angle = p * libm::pow(base, -2.0 * (c % half) as f64 / d as f64);
        (if c < half { libm::cos(angle) } else { libm::sin(angle) }) as f32
    }))
}

#[cold]
fn odd(d: usize) -> Error {
    Error::argument(Rope::NAME, "last axis", format!("has {d} elements, pairs need an even number"))
}

/// Each pair `(a, b)` of the last axis of `x (…, n, d)` turned by the angle of its row and pair: `(a cos - b sin,
/// b cos + a sin)`, cosines and sines from a table `(n, d)`, see [`rope_table`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairs are neighbours `(2i, 2i + 1)`; else halves `(i, i + d/2)`.
    pub interleaved: bool,
    /// Turns by the opposite angles.
    pub inverse: bool,
}

impl Rope {
    fn check(ins: &[Meta]) -> Result<Shape> {
        let [x, table] = floats(Self::NAME, ins)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        if !x.last().is_multiple_of(2) {
            return Err(odd(x.last()));
        }
        if table.dims() != &x.dims()[x.rank() - 2..] {
            return Err(mismatch(Self::NAME, "the table is not of the last two axes of", table, x));
        }
        Ok(x)
    }

    /// Where the two members of pair `i` of `half` lie.
    fn pair(&self, i: usize, half: usize) -> (usize, usize) {
        if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) }
    }
}

simd_fn! {
    /// Turns one row of halves.
    fn turn_halves(simd, sign: f32, x: &[f32], table: &[f32], out: &mut [f32]) {
        let half = x.len() / 2;
        let (a, b) = x.split_at(half);
        let (cos, sin) = table.split_at(half);
        let (ya, yb) = out.split_at_mut(half);
        for i in 0..half {
            let s = sin[i] * sign;
            ya[i] = a[i].mul_add(cos[i], -(b[i] * s));
            yb[i] = b[i].mul_add(cos[i], a[i] * s);
        }
    }
}

simd_fn! {
    /// Turns one row of neighbours.
    fn turn_neighbours(simd, sign: f32, x: &[f32], table: &[f32], out: &mut [f32]) {
        let (cos, sin) = table.split_at(x.len() / 2);
        let pairs = x.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
        for ((&[a, b], y), (c, s)) in pairs.zip(cos.iter().zip(sin)) {
            let s = s * sign;
            *y = [a.mul_add(*c, -(b * s)), b.mul_add(*c, a * s)];
        }
    }
}

const ROPE_CU: &str = include_str!("rope.cu");

/// The fewest words a task of the thread pool takes.
const MIN_WORDS_PER_TASK: usize = 16 * 1024;

impl Op for Rope {
    const NAME: &'static str = "rope";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Rope::check(ins).map(Meta::f32)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let d = run.shape.last();
        if run.out.is_empty() {
            return;
        }
        let (x, table) = (run.ins[0], run.ins[1]);
        let n = table.len() / d;
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let rows = run.pool.share(run.out.len() / d, MIN_WORDS_PER_TASK / d + 1, 1);
        run.pool.chunks_mut(run.out, rows * d, |task, out| {
            for (r, out) in out.chunks_mut(d).enumerate() {
                let row = task * rows + r;
                let (x, table) = (&x[row * d..][..d], &table[row % n * d..][..d]);
                match self.interleaved {
                    true => turn_neighbours(run.simd, sign, x, table, out),
                    false => turn_halves(run.simd, sign, x, table, out),
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (pairs, half) = (run.shape.numel() / 2, run.shape.last() / 2);
        if pairs == 0 {
            return Ok(());
        }
        let half = u32::try_from(half)
            .map_err(|_| Error::new(Self::NAME, ErrorKind::TooLarge { dims: run.shape.dims().to_vec() }))?;
        let kernel = run.cuda.kernel("rope", ROPE_CU, "rope")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out);
        args.u64(pairs as u64).u64(run.metas[1].shape.dims()[0] as u64);
        args.u32(half).u32(u32::from(self.interleaved)).f32(if self.inverse { -1.0 } else { 1.0 });
        run.cuda.launch(kernel, grid(run.cuda, pairs), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("rope".into(), ROPE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dx turns back; dcos = Σ da a + db b and dsin = ±Σ db a - da b over the leading axes.
        let (x, table) = (io.ins[0], io.ins[1]);
        let dx = r.record(Rope { inverse: !self.inverse, ..*self }.into(), &[dy, table])?;
        let shape = r.meta(x).shape;
        let (axis, half) = (shape.rank() - 1, shape.last() / 2);
        let (second, step) = if self.interleaved { (half.min(1), 2) } else { (half, 1) };
        let member = |r: &mut dyn Recorder, v: Val, start: usize| {
            r.record(layout::Slice { axis, start, len: half, step }.into(), &[v])
        };
        let (a, b) = (member(r, x, 0)?, member(r, x, second)?);
        let (da, db) = (member(r, dy, 0)?, member(r, dy, second)?);
        let halves = r.meta(a).shape;
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let cosine = Pointwise::trace(4, |v| vec![v[2] * v[0] + v[3] * v[1]]);
        let sine = Pointwise::trace(4, |v| vec![(v[3] * v[0] - v[2] * v[1]) * Real::c(sign)]);
        let mut whole = None;
        for (program, start) in [(cosine, 0), (sine, half)] {
            let mut part = record_pointwise(r, &program, halves, &[a, b, da, db])?;
            let lead: Vec<usize> = (0..shape.rank() - 2).collect();
            if !lead.is_empty() {
                part = r.record(Sum::new(&lead)?.into(), &[part])?;
            }
            let pad = layout::Pad { axis: 1, start, step: 1, size: 2 * half, value: 0.0 };
            let padded = r.record(pad.into(), &[part])?;
            whole = Some(match whole {
                None => padded,
                Some(other) => r.record(Add {}.into(), &[other, padded])?,
            });
        }
        Ok(vec![Some(dx), whole])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, table) = (ins[0].num()?, ins[1].num()?);
        let (d, half) = (x.shape().last(), x.shape().last() / 2);
        let mut out = vec![T::c(0.0); x.data().len()];
        let sign = T::c(if self.inverse { -1.0 } else { 1.0 });
        for row in 0..x.shape().rows() {
            let t = row % table.shape().dims()[0].max(1);
            for i in 0..half {
                let (a, b) = self.pair(i, half);
                let (xa, xb) = (x.data()[row * d + a], x.data()[row * d + b]);
                let (c, s) = (table.data()[t * d + i], table.data()[t * d + half + i] * sign);
                out[row * d + a] = xa * c - xb * s;
                out[row * d + b] = xb * c + xa * s;
            }
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("interleaved", Attr::Bool(self.interleaved)), ("inverse", Attr::Bool(self.inverse))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Rope> {
        attrs.only(&["interleaved", "inverse"])?;
        Ok(Rope { interleaved: attrs.flag("interleaved")?, inverse: attrs.flag("inverse")? })
    }
}
