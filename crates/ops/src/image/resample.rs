//! Resampling of images to other sizes, and its transpose.

use super::filter::{Line, MOST_AXES, Scaling};
use super::resample_cpu;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Resamples the last axes, one to three, to given sizes. Along an axis, an output element is the weighted sum of the input
/// elements that its filter reaches; the last axis comes first. Weights are formed in f64 and rounded once; sums are
/// chains of multiply-adds from +0 in increasing order.
#[derive(Clone, Debug, PartialEq)]
pub struct Resample {
    /// The filter and its places.
    pub scaling: Scaling,
    /// Sizes of the last axes of the value.
    pub sizes: Vec<usize>,
}

/// The transpose of [`Resample`], from the upstream gradient: the same weights, summed over the output elements that an
/// input element takes part in, in increasing order.
#[derive(Clone, Debug, PartialEq)]
pub struct ResampleBwd {
    /// The filter and its places.
    pub scaling: Scaling,
    /// Sizes of the last axes of the input of [`Resample`].
    pub sizes: Vec<usize>,
}

/// Sizes, and so positions, must fit in 31 bits.
const MOST_SIZE: usize = 1 << 31;

/// The shape with the last axes resampled, checked.
fn resized(op: &'static str, scaling: &Scaling, x: &Shape, sizes: &[usize]) -> Result<Shape> {
    scaling.check(op, sizes.len())?;
    let Some(at) = x.rank().checked_sub(sizes.len()) else {
        let want = "as many axes as sizes are given";
        return Err(Error::new(op, ErrorKind::Rank { want, got: *x }));
    };
    let from = &x.dims()[at..];
    if from.iter().chain(sizes).any(|&n| n == 0 || n >= MOST_SIZE) {
        let why = format!("from {from:?} to {sizes:?} has an empty or endless axis");
        return Err(Error::argument(op, "sizes", why));
    }
    let shape = Shape::new(&[&x.dims()[..at], sizes].concat())?;
    // A table must have room for its offsets.
    let words = |(a, (&n, &m)): (usize, (&usize, &usize))| {
        let taps = scaling.line(a, n, m).most_taps().max(scaling.line(a, m, n).most_taps());
        taps.saturating_add(3).saturating_mul(n.max(m))
    };
    if from.iter().zip(sizes).enumerate().map(words).any(|words| words >= MOST_SIZE) {
        let why = format!("the table of weights from {from:?} to {sizes:?} is too long");
        return Err(Error::argument(op, "sizes", why));
    }
    Ok(shape)
}

/// The planes of a value, and the lines of their axes.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) count: usize,
    pub(super) lines: Vec<Line>,
    /// Whether the transpose is computed.
    pub(super) transposed: bool,
}

impl Planes {
    fn new(scaling: &Scaling, x: &Shape, y: &Shape, axes: usize, transposed: bool) -> Planes {
        let at = x.rank() - axes;
        let lines = (0..axes).map(|a| {
            let (from, to) = (x.dims()[at + a], y.dims()[at + a]);
            if transposed { scaling.line(a, to, from) } else { scaling.line(a, from, to) }
        });
        Planes { count: x.dims()[..at].iter().product(), lines: lines.collect(), transposed }
    }

    /// Sizes of a plane that is read.
    pub(super) fn from(&self) -> Vec<usize> {
        self.lines.iter().map(|l| if self.transposed { l.to } else { l.from }).collect()
    }

    /// Sizes of a plane that is written.
    pub(super) fn to(&self) -> Vec<usize> {
        self.lines.iter().map(|l| if self.transposed { l.from } else { l.to }).collect()
    }

    fn cuda_workspace(&self) -> usize {
        self.lines.iter().map(|l| l.to * (2 + l.most_taps()) + 2 * l.from).sum()
    }

    fn module(&self) -> Source {
        let (rank, bwd) = (self.lines.len(), self.transposed);
        crate::module(format!("resample{}_{rank}", if bwd { "_bwd" } else { "" }), || {
            format!("#define RANK {rank}\n#define TRANSPOSED {}\n{RESAMPLE_CU}", u8::from(bwd))
        })
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (name, source) = self.module();
        // As `Axis` in the text: numbers, then offsets in the workspace.
        let mut axes = [[0u32; 10]; MOST_AXES];
        let (mut steps, mut end, mut longest) = ([0.0f64; MOST_AXES], 0, 0);
        for (a, line) in self.lines.iter().enumerate() {
            let taps = line.most_taps();
            let starts = [0, line.to, 2 * line.to, (2 + taps) * line.to, (2 + taps) * line.to + line.from];
            let (from, to) = if self.transposed { (line.to, line.from) } else { (line.from, line.to) };
            let [first, count, weights, low, high] = starts.map(|at| (end + at) as u32);
            axes[a] = [
                from as u32,
                to as u32,
                line.from as u32,
                line.to as u32,
                taps as u32,
                first,
                count,
                weights,
                low,
                high,
            ];
            steps[a] = line.step;
            end += line.to * (2 + taps) + 2 * line.from;
            longest = longest.max(line.to).max(line.from);
        }
        let line = &self.lines[0];
        let mut args = Args::new();
        args.ptr(run.workspace).bytes(bytemuck::cast_slice(&axes), 4).bytes(bytemuck::cast_slice(&steps), 8);
        args.i32(line.filter as i32).i32(i32::from(line.align_corners)).i32(i32::from(line.antialias));
        let grid = [longest.div_ceil(128) as u32, self.lines.len() as u32, 1];
        run.cuda.launch(run.cuda.kernel(&name, source, "resample_tables")?, grid, 128, 0, &args)?;
        if self.transposed {
            let mut args = Args::new();
            args.ptr(run.workspace).bytes(bytemuck::cast_slice(&axes), 4);
            run.cuda.launch(run.cuda.kernel(&name, source, "resample_ranges")?, grid, 128, 0, &args)?;
        }
        let positions: usize = self.to().iter().product();
        let inputs: usize = self.from().iter().product();
        let items = positions * self.count.div_ceil(PLANES_PER_THREAD);
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).ptr(run.workspace);
        args.u64(items as u64).u64(positions as u64).u64(inputs as u64).u64(self.count as u64);
        args.bytes(bytemuck::cast_slice(&axes), 4);
        let grid = crate::pointwise::map::grid(run.cuda, items);
        run.cuda.launch(run.cuda.kernel(&name, source, "resample")?, grid, 256, 0, &args)
    }

    /// The weighted sums of the definition, axis by axis.
    fn reference<T: Scalar>(&self, x: &[T]) -> Vec<T> {
        let (from, to) = (self.from(), self.to());
        let mut value = x.to_vec();
        for a in (0..self.lines.len()).rev() {
            let (line, n, m) = (&self.lines[a], from[a], to[a]);
            let inner: usize = to[a + 1..].iter().product();
            let outer = self.count * from[..a].iter().product::<usize>();
            // All products of one output element, in order.
            let mut terms: Vec<Vec<(usize, T)>> = vec![Vec::new(); m];
            for o in 0..line.to {
                let mut weights = Vec::new();
                let first = line.taps(o, |w| weights.push(w));
                for (k, w) in weights.into_iter().enumerate() {
                    let (row, at) = if self.transposed { (first + k, o) } else { (o, first + k) };
                    terms[row].push((at, T::c(w)));
                }
            }
            let mut next = Vec::with_capacity(outer * m * inner);
            for o in 0..outer {
                for row in &terms {
                    for i in 0..inner {
                        let term = |s: T, (at, w): &(usize, T)| s + *w * value[(o * n + at) * inner + i];
                        next.push(row.iter().fold(T::c(0.0), term));
                    }
                }
            }
            value = next;
        }
        value
    }
}

/// As `PLANES` in the text.
const PLANES_PER_THREAD: usize = 4;

const RESAMPLE_CU: &str = include_str!("resample.cu");

macro_rules! resample_op {
    ($op:ident $name:literal $transpose:ident $transposed:literal) => {
        impl $op {
            pub(super) fn planes(&self, x: &Shape, y: &Shape) -> Planes {
                Planes::new(&self.scaling, x, y, self.sizes.len(), $transposed)
            }

            fn planes_of(&self, ins: &[Meta]) -> Option<Planes> {
                Some(self.planes(&ins[0].shape, &self.shape(ins).ok()?.shape))
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let [x] = floats(Self::NAME, ins)?;
                Ok(Meta::f32(resized(Self::NAME, &self.scaling, &x, &self.sizes)?))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                match self.planes_of(ins) {
                    Some(planes) if device.is_cuda() => planes.cuda_workspace(),
                    Some(planes) => resample_cpu::workspace(&planes),
                    None => 0,
                }
            }

            fn cpu(&self, run: CpuRun<'_>) {
                resample_cpu::run(&self.planes(&run.metas[0].shape, &run.shape), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.planes(&run.metas[0].shape, &run.shape).cuda(run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                self.planes_of(ins).iter().map(Planes::module).collect()
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let x = r.meta(io.ins[0]).shape;
                let sizes = x.dims()[x.rank() - self.sizes.len()..].to_vec();
                let op = $transpose { scaling: self.scaling.clone(), sizes };
                Ok(vec![Some(r.record(op.into(), &[dy])?)])
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let shape = self.shape(&[ins[0].meta()])?.shape;
                Tensor::with_shape(shape, self.planes(&x.shape(), &shape).reference(x.data()))
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                let mut all = self.scaling.attrs();
                all.push(("sizes", Attr::List(self.sizes.clone())));
                all
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                Ok($op { scaling: Scaling::from_attrs(attrs)?, sizes: attrs.list("sizes")? })
            }
        }
    };
}

resample_op!(Resample "resample" ResampleBwd false);
resample_op!(ResampleBwd "resample_bwd" Resample true);
