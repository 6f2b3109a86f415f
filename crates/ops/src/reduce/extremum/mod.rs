//! Where the largest or smallest elements are, and gradients that go there.
//!
//! Places count along the reduced axes, which must be neighbours, in row-major order. The first of several
//! equal elements counts; a NaN counts as larger and as smaller than every number.

#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;

use crate::layout::Permute;
use crate::random::Full;
use crate::reduce::fold::{Pass, passes};
use crate::reduce::{check_axes, count, reduced_index, sorted_axes};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, arity, floats, layout,
    mismatch, typed,
};
use cpu::run_cpu;
use cuda::{launch_places, module, run_cuda, segments};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Which elements are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Largest,
    Smallest,
}

/// Whether `v` is larger than the best so far. A NaN is larger than every number, and the first of equals stays.
#[inline(always)]
pub(crate) fn larger<T: PartialOrd + Copy>(v: T, best: T) -> bool {
    #[allow(clippy::eq_op)]
    let (nan, number) = (v != v, best == best);
    (v > best) | (nan & number)
}

/// Whether two are the same number, all NaNs being one.
#[inline(always)]
pub(crate) fn same<T: PartialOrd + Copy>(a: T, b: T) -> bool {
    #[allow(clippy::eq_op)]
    let both = (a != a) & (b != b);
    (a == b) | both
}

/// Elements of a single row that one task looks through.
const TASK: usize = 64 * 1024;

/// The pass over neighbouring axes; errors where they are not, or too long to count.
fn one_pass(op: &'static str, shape: &Shape, axes: &[usize]) -> Result<Pass> {
    match *passes(shape, axes) {
        [pass] if pass.rows < u32::MAX as usize => Ok(pass),
        [_] => Err(Error::argument(op, "axes", "hold more elements than an index can count")),
        _ => Err(Error::argument(op, "axes", format!("{axes:?} are not neighbours; permute first"))),
    }
}

/// A pass that was checked by the shape rule.
fn known_pass(shape: &Shape, axes: &[usize]) -> Pass {
    passes(shape, axes).first().copied().unwrap_or(Pass { outer: 0, rows: 0, inner: 0 })
}

macro_rules! arg_op {
    ($(#[$doc:meta])* $op:ident $name:literal $which:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            axes: Vec<usize>,
        }

        impl $op {
            /// The place along these axes, which must be neighbours and which the value no longer has.
            pub fn new(axes: &[usize]) -> Result<$op> {
                Ok($op { axes: sorted_axes($name, axes)? })
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let [x] = floats(Self::NAME, ins)?;
                let out = check_axes(Self::NAME, &self.axes, &x)?;
                one_pass(Self::NAME, &x, &self.axes)?;
                if count(&x, &self.axes) == 0 && out.numel() > 0 {
                    let why = format!("{:?} of shape {x} hold no elements, so there is no place", self.axes);
                    return Err(Error::argument(Self::NAME, "axes", why));
                }
                Ok(Meta::u32(out))
            }

            fn index_bound(&self, ins: &[Meta]) -> IndexBound {
                IndexBound::Below(count(&ins[0].shape, &self.axes))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                let pass = known_pass(&ins[0].shape, &self.axes);
                match device.as_cuda() {
                    Some(cuda) => match segments(pass, &Gpu::of(cuda)).0 {
                        1 => 0,
                        n => 2 * n * pass.outer * pass.inner,
                    },
                    None if pass.inner == 1 && pass.outer == 1 && pass.rows > TASK => pass.rows.div_ceil(TASK),
                    None => 0,
                }
            }

            fn cpu(&self, run: CpuRun<'_>) {
                run_cpu($which, known_pass(&run.metas[0].shape, &self.axes), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                run_cuda($which, known_pass(&run.metas[0].shape, &self.axes), run)
            }

            fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                vec![module()]
            }

            fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
                Ok(vec![None])
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let out = check_axes(Self::NAME, &self.axes, &x.shape())?;
                let mut groups: Vec<Vec<f64>> = vec![Vec::new(); out.numel()];
                for (at, &v) in x.data().iter().enumerate() {
                    groups[reduced_index(at, &x.shape(), &self.axes)].push(v.to_f64());
                }
                let first = |g: &Vec<f64>| {
                    let mut best = 0;
                    for (i, &x) in g.iter().enumerate() {
                        let above = if $which == Which::Largest { x > g[best] } else { x < g[best] };
                        if above || (x.is_nan() && !g[best].is_nan()) {
                            best = i;
                        }
                    }
                    T::c(best as f64)
                };
                Tensor::with_shape(out, groups.iter().map(first).collect())
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("axes", Attr::List(self.axes.clone()))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["axes"])?;
                $op::new(&attrs.list("axes")?)
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let cases: [(&[usize], &[usize]); 14] = [
                    (&[0], &[1]),
                    (&[0], &[33]),
                    (&[0], &[70_000]),
                    (&[0], &[200_000]),
                    (&[1], &[5, 31]),
                    (&[1], &[3, 2500]),
                    (&[0], &[33, 5]),
                    (&[0], &[700, 70]),
                    (&[0, 1], &[40, 41]),
                    (&[1], &[3, 70, 40]),
                    (&[0, 1, 2], &[3, 4, 5]),
                    (&[1, 2], &[2, 3, 2, 7]),
                    (&[1], &[0, 3]),
                    (&[0], &[0, 0]),
                ];
                let sample = |(axes, d): (&[usize], &[usize])| {
                    crate::Sample::new($op { axes: axes.to_vec() }, vec![crate::SampleIn::any(crate::dims(d))])
                };
                cases.map(sample).into()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let d = crate::cases::edge_dims(1, 4, stream);
                let first = stream.below(d.len());
                let axes = (first..=first + stream.below(d.len() - first)).collect();
                Some(crate::Sample::new($op { axes }, vec![crate::SampleIn::any(crate::dims(&d))]))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |axes: &[usize]| $op { axes: axes.to_vec() };
                vec![
                    crate::Reject::new(op(&[0]), vec![], "Arity"),
                    crate::Reject::new(op(&[]), vec![f(&[2])], "Argument"),
                    crate::Reject::new(op(&[0, 2]), vec![f(&[2, 3, 4])], "Argument"),
                    crate::Reject::new(op(&[1]), vec![f(&[2, 0])], "Argument"),
                    crate::Reject::new(op(&[2]), vec![f(&[2, 3])], "Axis"),
                    crate::Reject::new(op(&[0]), vec![Meta::u32(crate::dims(&[3]))], "DType"),
                ]
            }

            fn bound(&self, _ins: &[Meta]) -> crate::Bound {
                crate::Bound::EXACT
            }
        }
    };
}

arg_op! {
    /// The place of the largest element along neighbouring axes, as an index in row-major order. The first of
    /// several equal ones; that of the first NaN if there is one. No gradient.
    Argmax "argmax" Which::Largest
}

arg_op! {
    /// The place of the smallest element along neighbouring axes, as an index in row-major order. The first of
    /// several equal ones; that of the first NaN if there is one. No gradient.
    Argmin "argmin" Which::Smallest
}

/// Checks the places of a value of `shape` over `axes`.
fn check_places(op: &'static str, ins: &[Meta], shape: &Shape, axes: &[usize]) -> Result<Shape> {
    let [_, places] = arity(op, ins)?;
    typed(op, ins, 0, DType::F32)?;
    typed(op, ins, 1, DType::U32)?;
    let kept = check_axes(op, axes, shape)?;
    one_pass(op, shape, axes)?;
    if places.shape != kept {
        return Err(mismatch(op, "there must be one place per result", places.shape, kept));
    }
    Ok(kept)
}

/// Zeros of `shape`, but each element of the input at its place along `axes`. A place outside is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Shape of the value.
    pub shape: Shape,
    /// The axes that the places count along; neighbours.
    pub axes: Vec<usize>,
}

/// The elements at places along `axes`. A place outside gives 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The axes that the places count along; neighbours.
    pub axes: Vec<usize>,
}

impl Op for Place {
    const NAME: &'static str = "place";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let kept = check_places(Self::NAME, ins, &self.shape, &self.axes)?;
        if ins[0].shape != kept {
            return Err(mismatch(Self::NAME, "there must be one element per place", ins[0].shape, kept));
        }
        Ok(Meta::f32(self.shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Pass { rows, inner, .. } = known_pass(&self.shape, &self.axes);
        let (x, places): (&[f32], &[u32]) = (run.ins[0], bytemuck::cast_slice(run.ins[1]));
        if run.out.is_empty() {
            return;
        }
        let matrix = rows * inner;
        let per_task = run.pool.share(run.out.len() / matrix, (TASK / matrix).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * matrix, |task, out| {
            out.fill(0.0);
            for (o, out) in out.chunks_mut(matrix).enumerate() {
                let at = (task * per_task + o) * inner;
                for (i, (x, &r)) in x[at..at + inner].iter().zip(&places[at..]).enumerate() {
                    if (r as usize) < rows {
                        out[r as usize * inner + i] = *x;
                    }
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.shape.numel();
        if n == 0 {
            return Ok(());
        }
        run.cuda.fill(run.out, 0, n)?;
        launch_places("place", known_pass(&self.shape, &self.axes), run)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let picked = r.record(Pick { axes: self.axes.clone() }.into(), &[dy, io.ins[1]])?;
        Ok(vec![Some(picked), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, places) = (ins[0].num()?, ins[1].idx()?);
        let mut met = vec![0u32; places.data().len()];
        Ok(Tensor::from_fn(self.shape, |at| {
            let o = reduced_index(at, &self.shape, &self.axes);
            met[o] += 1;
            if met[o] - 1 == places.data()[o] { x.data()[o] } else { T::c(0.0) }
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::List(self.shape.dims().to_vec())), ("axes", Attr::List(self.axes.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Place> {
        attrs.only(&["shape", "axes"])?;
        Ok(Place {
            shape: Shape::new(&attrs.list("shape")?)?,
            axes: sorted_axes(Self::NAME, &attrs.list("axes")?)?,
        })
    }
}

impl Op for Pick {
    const NAME: &'static str = "pick";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, _] = arity(Self::NAME, ins)?;
        Ok(Meta::f32(check_places(Self::NAME, ins, &x.shape, &self.axes)?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Pass { rows, inner, .. } = known_pass(&run.metas[0].shape, &self.axes);
        let (x, places): (&[f32], &[u32]) = (run.ins[0], bytemuck::cast_slice(run.ins[1]));
        for (i, (out, &r)) in run.out.iter_mut().zip(places).enumerate() {
            let at = (i / inner * rows + r as usize) * inner + i % inner;
            *out = if (r as usize) < rows { x[at] } else { 0.0 };
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        launch_places("pick", known_pass(&run.metas[0].shape, &self.axes), run)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = Place { shape: r.meta(io.ins[0]).shape, axes: self.axes.clone() };
        Ok(vec![Some(r.record(op.into(), &[dy, io.ins[1]])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, places) = (ins[0].num()?, ins[1].idx()?);
        let mut groups: Vec<Vec<T>> = vec![Vec::new(); places.data().len()];
        for (at, &v) in x.data().iter().enumerate() {
            groups[reduced_index(at, &x.shape(), &self.axes)].push(v);
        }
        Ok(Tensor::from_fn(places.shape(), |o| {
            groups[o].get(places.data()[o] as usize).copied().unwrap_or(T::c(0.0))
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("axes", Attr::List(self.axes.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Pick> {
        attrs.only(&["axes"])?;
        Ok(Pick { axes: sorted_axes(Self::NAME, &attrs.list("axes")?)? })
    }
}

/// Axes in an order that puts `axes` last, and that order's inverse.
#[doc(hidden)]
pub fn axes_last(rank: usize, axes: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
    order.extend(axes);
    let mut back = vec![0; rank];
    for (to, &from) in order.iter().enumerate() {
        back[from] = to;
    }
    (order, back)
}

/// Whether sorted axes are neighbours.
#[doc(hidden)]
pub fn are_neighbours(axes: &[usize]) -> bool {
    axes.windows(2).all(|w| w[1] == w[0] + 1)
}

/// Records the gradient of `x` where each element of `dy`, which has the reduced axes as ones, goes to the
/// first largest or smallest element it belongs to.
pub(crate) fn record_place(
    r: &mut dyn Recorder,
    x: Val,
    axes: &[usize],
    which: Which,
    dy: Val,
) -> Result<Val> {
    let shape = r.meta(x).shape;
    if shape.numel() == 0 {
        return r.record(Full { shape, value: 0.0 }.into(), &[]);
    }
    if axes.is_empty() {
        return layout::reshape_to(r, dy, shape);
    }
    let dy = layout::reshape_to(r, dy, check_axes("place", axes, &shape)?)?;
    let arg = |axes: Vec<usize>| match which {
        Which::Largest => Argmax { axes }.into(),
        Which::Smallest => Argmin { axes }.into(),
    };
    if are_neighbours(axes) {
        let places = r.record(arg(axes.to_vec()), &[x])?;
        return r.record(Place { shape, axes: axes.to_vec() }.into(), &[dy, places]);
    }
    let (order, back) = axes_last(shape.rank(), axes);
    let turned = r.record(Permute { order }.into(), &[x])?;
    let last: Vec<usize> = (shape.rank() - axes.len()..shape.rank()).collect();
    let places = r.record(arg(last.clone()), &[turned])?;
    let shape = r.meta(turned).shape;
    let placed = r.record(Place { shape, axes: last }.into(), &[dy, places])?;
    r.record(Permute { order: back }.into(), &[placed])
}
