//! Where the largest or smallest elements are, and gradients that go there.
//!
//! Places count along the reduced axes, which must be neighbours, in row-major order. The first of several
//! equal elements counts; a NaN counts as larger and as smaller than every number.

use super::fold::{Pass, passes};
use super::map::grid;
use super::reduce::{check_axes, count, reduced_index, sorted_axes};
use super::sampling::edge_dims;
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Reject, Sample,
    SampleIn, Val, arity, dims, floats, layout, mismatch, typed,
};
use crate::layout::Permute;
use crate::random::Full;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{LANES, WIDTH};
use dittograd_numerics::tensor::Tensor;

/// Which elements are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Largest,
    Smallest,
}

impl Which {
    /// What turns the bits of the smallest element into those of the largest.
    fn flip(self) -> u32 {
        if self == Which::Smallest { 0x8000_0000 } else { 0 }
    }
}

fn flipped(x: f32, flip: u32) -> f32 {
    f32::from_bits(x.to_bits() ^ flip)
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

simd_fn! {
    /// The first place of the largest element. A lane takes what is larger than -inf, so where nothing is, all elements are
    /// equal and the place is 0.
    fn first_largest(simd, x: &[f32], flip: u32) -> u32 {
        let (mut best, mut places) = ([f32::NEG_INFINITY; LANES], [0; LANES]);
        for (c, piece) in x.chunks(LANES).enumerate() {
            for (lane, &x) in piece.iter().enumerate() {
                let x = f32::from_bits(x.to_bits() ^ flip);
                let above = u32::from(larger(x, best[lane])).wrapping_neg();
                let at = (c * LANES + lane) as u32;
                best[lane] = f32::from_bits((x.to_bits() & above) | (best[lane].to_bits() & !above));
                places[lane] = (at & above) | (places[lane] & !above);
            }
        }
        let top = best.iter().fold(f32::NEG_INFINITY, |m, &x| if larger(x, m) { x } else { m });
        let first = |(x, place): (&f32, &u32)| if same(*x, top) { *place } else { u32::MAX };
        best.iter().zip(&places).map(first).fold(u32::MAX, |a, b| if b < a { b } else { a })
    }
}

simd_fn! {
    /// The same for neighbouring columns of which rows are `stride` apart.
    fn first_largest_columns(simd, x: &[f32], rows: usize, stride: usize, flip: u32, places: &mut [u32]) {
        let mut best = [f32::NEG_INFINITY; WIDTH];
        places.fill(0);
        for r in 0..rows {
            for ((best, place), &x) in best.iter_mut().zip(&mut *places).zip(&x[r * stride..]) {
                let x = f32::from_bits(x.to_bits() ^ flip);
                let above = u32::from(larger(x, *best)).wrapping_neg();
                *best = f32::from_bits((x.to_bits() & above) | (best.to_bits() & !above));
                *place = (r as u32 & above) | (*place & !above);
            }
        }
    }
}

/// Elements of a single row that one task looks through.
const TASK: usize = 64 * 1024;

fn run_cpu(which: Which, pass: Pass, run: CpuRun<'_>) {
    let Pass { outer, rows, inner } = pass;
    let (simd, x, flip) = (run.simd, run.ins[0], which.flip());
    let out: &mut [u32] = bytemuck::cast_slice_mut(run.out);
    let row = |x: &[f32]| first_largest(simd, x, flip);
    if out.is_empty() {
        return;
    }
    if inner == 1 && outer == 1 && rows > TASK {
        let places: &mut [u32] = bytemuck::cast_slice_mut(run.workspace);
        run.pool.chunks_mut(places, 1, |task, place| {
            let start = task * TASK;
            place[0] = (start + row(&x[start..rows.min(start + TASK)]) as usize) as u32;
        });
        let at = |place: u32| flipped(x[place as usize], flip);
        let better = |best: u32, next: u32| if larger(at(next), at(best)) { next } else { best };
        out[0] = places[1..].iter().fold(places[0], |best, &next| better(best, next));
    } else if inner == 1 {
        let per_task = run.pool.share(outer, (TASK / 4 / rows.max(1)).max(1), 1);
        run.pool.chunks_mut(out, per_task, |task, out| {
            for (i, o) in out.iter_mut().enumerate() {
                let at = (task * per_task + i) * rows;
                *o = row(&x[at..at + rows]);
            }
        });
    } else {
        // Tiles do not cross from one matrix into the next.
        let tiles = inner.div_ceil(WIDTH);
        let per_task = if outer == 1 { WIDTH } else { inner };
        run.pool.chunks_mut(out, per_task, |task, out| {
            for (t, out) in out.chunks_mut(WIDTH).enumerate() {
                let (o, tile) = if outer == 1 { (0, task) } else { (task, t) };
                debug_assert!(tile < tiles);
                let x = &x[o * rows * inner + tile * WIDTH..];
                first_largest_columns(simd, x, rows, inner, flip, out);
            }
        });
    }
}

const EXTREMUM_CU: &str = include_str!("extremum.cu");

fn module() -> Source {
    ("extremum".into(), EXTREMUM_CU)
}

/// How many segments each row or column is cut into, and their length: enough to fill the GPU.
fn segments(pass: Pass, gpu: &Gpu) -> (usize, usize) {
    let (busy, least) = match pass.inner {
        1 => (pass.outer * 32, 1024),
        inner => (pass.outer * inner, 32),
    };
    let wanted = (gpu.sm_count as usize * 1024).div_ceil(busy.max(1));
    let length = pass.rows.div_ceil(wanted).max(least);
    (pass.rows.div_ceil(length).max(1), length)
}

fn run_cuda(which: Which, pass: Pass, run: &CudaRun<'_>) -> Result<()> {
    let Pass { outer, rows, inner } = pass;
    let results = outer * inner;
    if results == 0 {
        return Ok(());
    }
    let (segments, length) = segments(pass, &Gpu::of(run.cuda));
    let kernel = |name| run.cuda.kernel("extremum", EXTREMUM_CU, name);
    let smallest = i32::from(which == Which::Smallest);
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.out).ptr(run.workspace).u64(outer as u64).u64(rows as u64);
    if inner == 1 {
        args.u64(segments as u64).u64(length as u64).i32(smallest);
        run.cuda.launch(kernel("arg_rows")?, grid(run.cuda, outer * segments * 32), 256, 0, &args)?;
    } else {
        args.u64(inner as u64).u64(segments as u64).u64(length as u64).i32(smallest);
        run.cuda.launch(kernel("arg_columns")?, grid(run.cuda, results * segments), 256, 0, &args)?;
    }
    if segments == 1 {
        return Ok(());
    }
    let mut args = Args::new();
    args.ptr(run.workspace).ptr(run.out).u64(outer as u64).u64(segments as u64).u64(inner as u64);
    run.cuda.launch(kernel("arg_words")?, grid(run.cuda, results * 32), 256, 0, &args)
}

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

            fn samples() -> Vec<Sample<$op>> {
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
                let sample = |(axes, d): (&[usize], &[usize])| Sample {
                    op: $op { axes: axes.to_vec() },
                    ins: vec![SampleIn::any(dims(d))],
                };
                cases.map(sample).into()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                let d = edge_dims(1, 4, stream);
                let first = stream.below(d.len());
                let axes = (first..=first + stream.below(d.len() - first)).collect();
                Some(Sample { op: $op { axes }, ins: vec![SampleIn::any(dims(&d))] })
            }

            fn rejects() -> Vec<Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let op = |axes: &[usize]| $op { axes: axes.to_vec() };
                vec![
                    Reject { op: op(&[0]), ins: vec![], want: "Arity" },
                    Reject { op: op(&[]), ins: vec![f(&[2])], want: "Argument" },
                    Reject { op: op(&[0, 2]), ins: vec![f(&[2, 3, 4])], want: "Argument" },
                    Reject { op: op(&[1]), ins: vec![f(&[2, 0])], want: "Argument" },
                    Reject { op: op(&[2]), ins: vec![f(&[2, 3])], want: "Axis" },
                    Reject { op: op(&[0]), ins: vec![Meta::u32(dims(&[3]))], want: "DType" },
                ]
            }

            fn bound(&self, _ins: &[Meta]) -> Bound {
                Bound::EXACT
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

fn launch_places(name: &str, pass: Pass, run: &CudaRun<'_>) -> Result<()> {
    let Pass { outer, rows, inner } = pass;
    if outer * inner == 0 {
        return Ok(());
    }
    let kernel = run.cuda.kernel("extremum", EXTREMUM_CU, name)?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out);
    args.u64(outer as u64).u64(rows as u64).u64(inner as u64);
    run.cuda.launch(kernel, grid(run.cuda, outer * inner), 256, 0, &args)
}

/// Cases for the two ops below: axes and dimensions.
const PLACES: [(&[usize], &[usize]); 8] = [
    (&[0], &[1]),
    (&[0], &[33]),
    (&[1], &[5, 31]),
    (&[0], &[33, 5]),
    (&[1], &[3, 7, 4]),
    (&[0, 1], &[4, 5]),
    (&[1, 2], &[2, 3, 2, 70]),
    (&[1], &[0, 3]),
];

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

    fn samples() -> Vec<Sample<Place>> {
        let sample = |(axes, d): (&[usize], &[usize])| {
            let (shape, axes) = (dims(d), axes.to_vec());
            let kept = check_axes(Self::NAME, &axes, &shape).unwrap_or_default();
            // One place in a few is outside.
            let ins = vec![SampleIn::any(kept), SampleIn::Idx(kept, count(&shape, &axes) as u32 + 1)];
            Sample { op: Place { shape, axes }, ins }
        };
        PLACES.map(sample).into()
    }

    fn rejects() -> Vec<Reject<Place>> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axes: &[usize]| Place { shape: dims(&[2, 3]), axes: axes.to_vec() };
        vec![
            Reject { op: op(&[1]), ins: vec![f(&[2])], want: "Arity" },
            Reject { op: op(&[1]), ins: vec![f(&[2]), f(&[2])], want: "DType" },
            Reject { op: op(&[1]), ins: vec![f(&[2]), u(&[3])], want: "Shapes" },
            Reject { op: op(&[1]), ins: vec![f(&[3]), u(&[2])], want: "Shapes" },
            Reject { op: op(&[2]), ins: vec![f(&[2]), u(&[2])], want: "Axis" },
            Reject { op: op(&[]), ins: vec![f(&[2, 3]), u(&[2, 3])], want: "Argument" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
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

    fn samples() -> Vec<Sample<Pick>> {
        let sample = |(axes, d): (&[usize], &[usize])| {
            let (shape, axes) = (dims(d), axes.to_vec());
            let kept = check_axes(Self::NAME, &axes, &shape).unwrap_or_default();
            let ins = vec![SampleIn::any(shape), SampleIn::Idx(kept, count(&shape, &axes) as u32 + 1)];
            Sample { op: Pick { axes }, ins }
        };
        PLACES.map(sample).into()
    }

    fn rejects() -> Vec<Reject<Pick>> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axes: &[usize]| Pick { axes: axes.to_vec() };
        vec![
            Reject { op: op(&[1]), ins: vec![f(&[2, 3])], want: "Arity" },
            Reject { op: op(&[1]), ins: vec![f(&[2, 3]), f(&[2])], want: "DType" },
            Reject { op: op(&[1]), ins: vec![f(&[2, 3]), u(&[3])], want: "Shapes" },
            Reject { op: op(&[2]), ins: vec![f(&[2, 3]), u(&[2])], want: "Axis" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
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
