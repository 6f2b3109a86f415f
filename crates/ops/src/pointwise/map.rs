//! [`Map`]: an elementwise program over inputs that may be broadcast. Its two kernels, `run_cpu` and `run_cuda`, are
//! those of all elementwise ops, of broadcasting and of fused chains.

#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;

#[cfg(feature = "cases")]
pub(crate) use cases::sample_formula;
pub(crate) use cpu::{copy_cpu, prepared, run_cpu, run_cpu_in_place};
pub use cuda::prelude;
pub(crate) use cuda::{grid, leaving, module, run_cuda};

use crate::magnitudes::Lines;
use crate::pointwise::expression::{Expr, Pointwise};
use crate::pointwise::record_pointwise;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, PerInput, Recorder, Val, layout};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::sync::Arc;

/// How an input is read, seen from the output: one stride per output axis, 0 along broadcast axes.
pub type Access = [usize; MAX_RANK];

/// An elementwise program applied to inputs that are broadcast to `shape` by NumPy's rule. Several results lie one
/// behind the other in a flat value; then `shape` has a multiple of four elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// What is computed for each element.
    pub program: Arc<Pointwise>,
    /// Shape of each result.
    pub shape: Shape,
}

impl Map {
    /// The program of a formula over inputs of `shape`.
    pub fn new(program: Pointwise, shape: Shape) -> Map {
        Map { program: Arc::new(program), shape }
    }

    /// A formula over inputs of these shapes, which broadcast.
    pub fn of(ins: &[Meta], f: impl FnOnce(&[Expr]) -> Expr) -> Result<Map> {
        let shape = ins.iter().try_fold(Shape::SCALAR, |all, m| all.broadcast(&m.shape));
        let shape = shape.map_err(|e| Error::new(Self::NAME, e.kind().clone()))?;
        let (program, own) = Pointwise::trace_own(ins.len(), |v| vec![f(v)]);
        if !own {
            let why = "uses a value of another formula; make all but constants inside of the closure";
            return Err(Error::argument(Self::NAME, "f", why));
        }
        Ok(Map::new(program, shape))
    }
}

/// Strides that read a value of shape `from` as if it had shape `to`, aligned at the last axis.
pub(crate) fn access(from: &Shape, to: &Shape) -> Access {
    let strides = from.strides();
    let mut out = [0; MAX_RANK];
    let shift = to.rank() - from.rank();
    for axis in 0..from.rank() {
        if from.dims()[axis] == to.dims()[axis + shift] && from.dims()[axis] != 1 {
            out[axis + shift] = strides[axis];
        }
    }
    out
}

/// How each input is read as if it had shape `to`, aligned at the last axis.
pub(crate) fn accesses(ins: &[Meta], to: &Shape) -> PerInput<Access> {
    let mut all = PerInput::new(ins.len(), [0; MAX_RANK]);
    all.all_mut().iter_mut().zip(ins).for_each(|(a, m)| *a = access(&m.shape, to));
    all
}

/// Output axes with equal neighbours merged: dimensions, and per input the strides along them.
pub(crate) struct Walk {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: PerInput<Access>,
}

impl Walk {
    pub(crate) fn new(shape: &Shape, accesses: &[Access]) -> Walk {
        let strides = PerInput::new(accesses.len(), [0; MAX_RANK]);
        let mut walk = Walk { rank: 0, dims: [1; MAX_RANK], strides };
        for axis in 0..shape.rank() {
            let d = shape.dims()[axis];
            if d == 1 {
                continue;
            }
            let last = walk.rank.wrapping_sub(1);
            let strides = walk.strides.all_mut();
            let merges = walk.rank > 0 && strides.iter().zip(accesses).all(|(s, a)| s[last] == a[axis] * d);
            let at = if merges { last } else { walk.rank };
            walk.dims[at] *= d;
            strides.iter_mut().zip(accesses).for_each(|(s, a)| s[at] = a[axis]);
            walk.rank = at + 1;
        }
        // A single element has an axis too.
        walk.rank = walk.rank.max(1);
        walk
    }

    /// The axes; there is at least one.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The strides of input `i`, one per axis.
    pub(crate) fn strides(&self, i: usize) -> &[usize] {
        &self.strides.all()[i][..self.rank]
    }

    /// Whether input `i` is read element by element in order.
    pub(crate) fn plain(&self, i: usize) -> bool {
        let mut row = 1;
        self.dims().iter().zip(self.strides(i)).rev().all(|(&dim, &stride)| {
            let in_order = stride == row || dim == 1;
            row *= dim;
            in_order
        })
    }
}

impl Map {
    /// Fills the output on the CPU; its first input is what the output holds. The run has the others.
    #[doc(hidden)]
    pub fn cpu_in_place(&self, run: CpuRun<'_>) {
        run_cpu_in_place(
            &self.program,
            accesses(run.metas, &self.shape).all(),
            CpuRun { shape: self.shape, ..run },
        );
    }
}

/// The value of `program` for elements of `shape`, or why there is none: results one behind the other.
pub(crate) fn results_meta(op: &'static str, program: &Pointwise, shape: Shape) -> Result<Meta> {
    if !program.fits() {
        return Err(Error::unsupported(op, "the program needs more registers or results than there are"));
    }
    match program.outputs() {
        1 => Ok(Meta::f32(shape)),
        _ if !shape.numel().is_multiple_of(4) => {
            Err(Error::unsupported(op, "several results of a number of elements that is no multiple of 4"))
        }
        n => Ok(Meta::f32(Shape::new(&[n * shape.numel()])?)),
    }
}

/// The results of a program in its value, one by one.
#[doc(hidden)]
pub fn results(r: &mut dyn Recorder, value: Val, count: usize, shape: Shape) -> Result<Vec<Val>> {
    match count {
        1 => Ok(vec![value]),
        n => (0..n).map(|i| layout::part(r, value, &vec![shape; n], i)).collect(),
    }
}

/// Errors unless these are the inputs of `program` and broadcast to `shape`.
pub(crate) fn check_inputs(op: &'static str, program: &Pointwise, ins: &[Meta], shape: &Shape) -> Result<()> {
    if ins.len() != program.inputs() {
        return Err(Error::new(op, ErrorKind::Arity { want: program.inputs(), got: ins.len() }));
    }
    for (i, m) in ins.iter().enumerate() {
        crate::typed(op, ins, i, DType::F32)?;
        let fits = m.shape.broadcast(shape).is_ok_and(|all| all == *shape);
        if m.shape.rank() > shape.rank() || !fits {
            return Err(crate::mismatch(op, "input does not broadcast to", m.shape, *shape));
        }
    }
    Ok(())
}

impl Op for Map {
    const NAME: &'static str = "map";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check_inputs(Self::NAME, &self.program, ins, &self.shape)?;
        results_meta(Self::NAME, &self.program, self.shape)
    }

    // Kernels get the shape of each result, which is not that of several in one value.
    fn cpu(&self, run: CpuRun<'_>) {
        run_cpu(&self.program, accesses(run.metas, &self.shape).all(), CpuRun { shape: self.shape, ..run });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        run_cuda(
            &self.program,
            accesses(run.metas, &self.shape).all(),
            &CudaRun { shape: self.shape, ..*run },
        )
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module(&self.program, &self.shape, accesses(ins, &self.shape).all())]
    }

    fn leaving_modules(&self, ins: &[Meta], _gpu: &Gpu, lines: Lines) -> Option<Vec<Source>> {
        let accesses = accesses(ins, &self.shape);
        leaving(&self.program, &self.shape, accesses.all(), lines)
    }

    fn as_pointwise(&self, _ins: &[Meta]) -> Option<Pointwise> {
        Some((*self.program).clone())
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut args = io.ins.to_vec();
        args.extend(results(r, dy, self.program.outputs(), self.shape)?);
        let reads = self.program.reads();
        (0..io.ins.len())
            .map(|i| {
                if !reads[i] {
                    return Ok(None);
                }
                let full = record_pointwise(r, &self.program.gradient(i), self.shape, &args)?;
                let to = r.meta(io.ins[i]).shape;
                layout::sum_to(r, full, to).map(Some)
            })
            .collect()
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let n = self.shape.numel();
        Ok(Tensor::from_fn(self.shape(&metas)?.shape, |i| {
            let (result, at) = (i / n, i % n);
            let args: Vec<T> =
                tensors.iter().map(|t| t.data()[broadcast_index(at, &t.shape(), &self.shape)]).collect();
            self.program.eval(&args)[result]
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("steps", Attr::Num(self.program.steps().len() as f64)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Map> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}

/// Row-major position in a value of shape `from` of element `at` of its broadcast to `to`.
#[doc(hidden)]
pub fn broadcast_index(at: usize, from: &Shape, to: &Shape) -> usize {
    let (strides, mut rest, mut index) = (access(from, to), at, 0);
    for axis in (0..to.rank()).rev() {
        index += rest % to.dims()[axis] * strides[axis];
        rest /= to.dims()[axis];
    }
    index
}
