//! Ops that move or relabel elements without changing them.

use super::map::{self, Access};
use super::program::Program;
use super::{
    Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, RefIn, Reject, Sample, SampleIn, Val, dims,
    floats, mismatch, sample_shapes,
};
use crate::device::cuda::Args;
use crate::device::{DType, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::reduce::Sum;
use crate::scalar::Scalar;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;

/// For each axis of a broadcast value: the input axis it reads, or `None` where it is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisMap {
    axes: [Option<u8>; MAX_RANK],
    rank: u8,
}

impl AxisMap {
    /// The map with the given entries, one per output axis.
    pub fn new(axes: &[Option<usize>]) -> Result<AxisMap> {
        if axes.len() > MAX_RANK || axes.iter().flatten().any(|&a| a >= MAX_RANK) {
            return Err(Error::argument(
                "broadcast_to",
                "map",
                format!("{axes:?} has axes beyond {MAX_RANK}"),
            ));
        }
        let mut out = [None; MAX_RANK];
        for (o, a) in out.iter_mut().zip(axes) {
            *o = a.map(|a| a as u8);
        }
        Ok(AxisMap { axes: out, rank: axes.len() as u8 })
    }

    /// NumPy's alignment: input axes are the last ones of the output.
    pub fn trailing(from: &Shape, to: &Shape) -> AxisMap {
        let shift = to.rank().saturating_sub(from.rank());
        let mut axes = [None; MAX_RANK];
        for (axis, a) in axes.iter_mut().enumerate().take(to.rank()) {
            *a = axis.checked_sub(shift).map(|a| a as u8);
        }
        AxisMap { axes, rank: to.rank() as u8 }
    }

    /// Input axes are the first ones of the output: `[C]` to `[C, H, W]`.
    pub fn leading(from: &Shape, to: &Shape) -> AxisMap {
        let mut axes = [None; MAX_RANK];
        for (axis, a) in axes.iter_mut().enumerate().take(from.rank()) {
            *a = Some(axis as u8);
        }
        AxisMap { axes, rank: to.rank() as u8 }
    }

    /// The entries, one per output axis.
    pub fn entries(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.axes[..self.rank as usize].iter().map(|a| a.map(usize::from))
    }

    /// How the input is read, seen from the output.
    fn access(&self, from: &Shape) -> Access {
        let strides = from.strides();
        let mut access = [0; MAX_RANK];
        for (a, entry) in access.iter_mut().zip(self.entries()) {
            if let Some(axis) = entry.filter(|&axis| from.dims()[axis] != 1) {
                *a = strides[axis];
            }
        }
        access
    }
}

/// The input repeated along new or size-one axes: `out[o] = in[i]`, where `i` takes the coordinate of
/// each output axis that `map` ties to an input axis, or 0 where the input's dimension is 1.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastTo {
    /// Shape of the value.
    pub shape: Shape,
    /// Which output axis reads which input axis.
    pub map: AxisMap,
}

impl BroadcastTo {
    /// A broadcast by NumPy's rule.
    pub fn numpy(from: &Shape, to: Shape) -> BroadcastTo {
        BroadcastTo { shape: to, map: AxisMap::trailing(from, &to) }
    }
}

fn identity() -> Program {
    Program::trace(1, |x| vec![x[0]])
}

impl Op for BroadcastTo {
    const NAME: &'static str = "broadcast_to";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = floats(Self::NAME, ins)?;
        if self.map.rank as usize != self.shape.rank() {
            return Err(Error::argument(
                Self::NAME,
                "map",
                format!("has {} entries for a value of rank {}", self.map.rank, self.shape.rank()),
            ));
        }
        let mut next = 0;
        for (out, entry) in self.shape.dims().iter().zip(self.map.entries()) {
            let Some(axis) = entry else { continue };
            if axis != next || axis >= x.rank() {
                return Err(Error::new(Self::NAME, ErrorKind::Axis { axis, shape: x }));
            }
            if x.dims()[axis] != 1 && x.dims()[axis] != *out {
                return Err(mismatch(Self::NAME, "input does not broadcast to", x, self.shape));
            }
            next += 1;
        }
        if next != x.rank() {
            return Err(mismatch(Self::NAME, "the map leaves out an axis of", x, self.shape));
        }
        Ok(Meta::f32(self.shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        map::run_cpu(&identity(), &[self.map.access(&run.metas[0].shape)], run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        map::run_cuda(&identity(), &[self.map.access(&run.metas[0].shape)], run)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
        vec![map::module(&identity(), &self.shape, &[self.map.access(&ins[0].shape)])]
    }

    fn as_program(&self, ins: &[Meta]) -> Option<Program> {
        (self.map == AxisMap::trailing(&ins[0].shape, &self.shape)).then(identity)
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dx[i] = sum of dy over all o that read i
        let x = r.meta(io.ins[0]).shape;
        let axes: Vec<usize> = self
            .map
            .entries()
            .enumerate()
            .filter(|(o, e)| e.is_none_or(|i| x.dims()[i] == 1 && self.shape.dims()[*o] != 1))
            .map(|(o, _)| o)
            .collect();
        let sum = if axes.is_empty() { dy } else { r.record(Sum::new(&axes)?.into(), &[dy])? };
        reshape_to(r, sum, x).map(|v| vec![Some(v)])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let strides = x.shape().strides();
        Ok(Tensor::from_fn(self.shape, |at| {
            let (mut rest, mut index) = (at, 0);
            for (axis, entry) in self.map.entries().collect::<Vec<_>>().into_iter().enumerate().rev() {
                let coordinate = rest % self.shape.dims()[axis];
                rest /= self.shape.dims()[axis];
                if let Some(a) = entry {
                    index += strides[a] * if x.shape().dims()[a] == 1 { 0 } else { coordinate };
                }
            }
            x.data()[index]
        }))
    }

    fn samples() -> Vec<Sample<BroadcastTo>> {
        let numpy: [(&[usize], &[usize]); 8] = [
            (&[], &[3, 4]),
            (&[4], &[3, 4]),
            (&[3, 1], &[3, 64]),
            (&[1, 5], &[2, 7, 5]),
            (&[1], &[0]),
            (&[2, 1, 3], &[2, 4, 3]),
            (&[5], &[5]),
            (&[1, 64], &[129, 64]),
        ];
        let mut samples: Vec<_> = numpy
            .iter()
            .map(|(from, to)| Sample {
                op: BroadcastTo::numpy(&dims(from), dims(to)),
                ins: vec![SampleIn::any(dims(from))],
            })
            .collect();
        let (from, to) = (dims(&[3]), dims(&[3, 5, 2]));
        let op = BroadcastTo { shape: to, map: AxisMap::leading(&from, &to) };
        samples.push(Sample { op, ins: vec![SampleIn::any(from)] });
        samples
    }

    fn rejects() -> Vec<Reject<BroadcastTo>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = BroadcastTo::numpy(&dims(&[3]), dims(&[2, 3]));
        vec![
            Reject { op: op.clone(), ins: vec![], want: "Arity" },
            Reject { op: op.clone(), ins: vec![f(&[2])], want: "Shapes" },
            Reject { op: op.clone(), ins: vec![f(&[0])], want: "Shapes" },
            Reject { op: op.clone(), ins: vec![f(&[])], want: "Axis" },
            Reject { op, ins: vec![f(&[1, 2, 3])], want: "Shapes" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let map = self.map.entries().map(|e| e.map_or(0, |a| a + 1)).collect();
        vec![("shape", Attr::List(self.shape.dims().to_vec())), ("map", Attr::List(map))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<BroadcastTo> {
        attrs.only(&["shape", "map"])?;
        let entries: Vec<Option<usize>> = attrs.list("map")?.iter().map(|&a| a.checked_sub(1)).collect();
        Ok(BroadcastTo { shape: Shape::new(&attrs.list("shape")?)?, map: AxisMap::new(&entries)? })
    }
}

/// What ops that only relabel their input have in common. Nothing runs where memory can be shared.
macro_rules! view_methods {
    () => {
        fn is_view(&self) -> bool {
            true
        }

        fn cpu(&self, run: CpuRun<'_>) {
            run.out.copy_from_slice(run.ins[0]);
        }

        fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
            run.cuda.copy(run.out, run.ins[0], run.shape.numel() * 4)
        }

        fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
            Vec::new()
        }
    };
}

/// The same elements under another shape of equal count. Shares memory with its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// Shape of the value.
    pub shape: Shape,
}

impl Op for Reshape {
    const NAME: &'static str = "reshape";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        if x.shape.numel() != self.shape.numel() {
            return Err(mismatch(Self::NAME, "element counts differ", x.shape, self.shape));
        }
        Ok(Meta { shape: self.shape, ..x })
    }

    view_methods!();

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        reshape_to(r, dy, x).map(|v| vec![Some(v)])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        ins[0].num()?.clone().reshape(self.shape)
    }

    fn samples() -> Vec<Sample<Reshape>> {
        let flat =
            |s: Shape| Sample { op: Reshape { shape: dims(&[s.numel()]) }, ins: vec![SampleIn::any(s)] };
        sample_shapes().into_iter().map(flat).collect()
    }

    fn rejects() -> Vec<Reject<Reshape>> {
        let op = Reshape { shape: dims(&[2, 3]) };
        vec![
            Reject { op: op.clone(), ins: vec![], want: "Arity" },
            Reject { op, ins: vec![Meta::f32(dims(&[5]))], want: "Shapes" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::List(self.shape.dims().to_vec()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Reshape> {
        attrs.only(&["shape"])?;
        Ok(Reshape { shape: Shape::new(&attrs.list("shape")?)? })
    }
}

/// The same value, through which no gradient flows. Shares memory with its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detach;

impl Op for Detach {
    const NAME: &'static str = "detach";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        Ok(x)
    }

    view_methods!();

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        ins[0].num().cloned()
    }

    fn samples() -> Vec<Sample<Detach>> {
        sample_shapes().into_iter().map(|s| Sample { op: Detach, ins: vec![SampleIn::any(s)] }).collect()
    }

    fn rejects() -> Vec<Reject<Detach>> {
        vec![Reject { op: Detach, ins: vec![], want: "Arity" }]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn from_attrs(attrs: &Attrs) -> Result<Detach> {
        attrs.only(&[])?;
        Ok(Detach)
    }
}

/// The axes in another order: axis `j` of the value is axis `order[j]` of the input.
#[derive(Clone, Debug, PartialEq)]
pub struct Permute {
    /// For each output axis, the input axis.
    pub order: Vec<usize>,
}

impl Permute {
    /// The exchange of the last two axes of a value of rank `rank`.
    pub fn transpose(rank: usize) -> Permute {
        let mut order: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            order.swap(rank - 2, rank - 1);
        }
        Permute { order }
    }

    fn access(&self, from: &Shape) -> Access {
        let strides = from.strides();
        let mut access = [0; MAX_RANK];
        for (a, &axis) in access.iter_mut().zip(&self.order) {
            *a = strides[axis];
        }
        access
    }
}

/// A permutation that only exchanges the last two of at most three merged axes is a plain matrix
/// transpose: (batch, rows, columns) of the input.
fn as_transpose(order: &[usize], from: &Shape) -> Option<(usize, usize, usize)> {
    // Axes of size one do not matter; neighbours that stay together are one axis.
    let mut groups: Vec<(usize, usize, usize)> = Vec::new(); // first input axis, last input axis, size
    let kept: Vec<usize> = (0..from.rank()).filter(|&a| from.dims()[a] != 1).collect();
    for &axis in order.iter().filter(|&&a| from.dims()[a] != 1) {
        let position = kept.iter().position(|&k| k == axis)?;
        match groups.last_mut() {
            Some((_, last, size)) if position == *last + 1 => {
                *last = position;
                *size *= from.dims()[axis];
            }
            _ => groups.push((position, position, from.dims()[axis])),
        }
    }
    match groups[..] {
        [(a, _, n), (b, _, m)] if b < a => Some((1, m, n)),
        [(0, _, batch), (a, _, n), (b, _, m)] if b < a => Some((batch, m, n)),
        _ => None,
    }
}

/// Tile edge of the transpose kernels.
const TILE: usize = 32;

const PERMUTE_CU: &str = include_str!("layout.cu");

impl Op for Permute {
    const NAME: &'static str = "permute";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        super::typed(Self::NAME, ins, 0, DType::F32)?;
        let rank = x.shape.rank();
        if self.order.len() != rank {
            let why = format!("{:?} names {} axes of a value of rank {rank}", self.order, self.order.len());
            return Err(Error::argument(Self::NAME, "order", why));
        }
        let mut out = [0; MAX_RANK];
        let mut seen = [false; MAX_RANK];
        for (o, &axis) in out.iter_mut().zip(&self.order) {
            if axis >= rank || std::mem::replace(&mut seen[axis], true) {
                return Err(Error::new(Self::NAME, ErrorKind::Axis { axis, shape: x.shape }));
            }
            *o = x.shape.dims()[axis];
        }
        Ok(Meta::f32(Shape::new(&out[..rank])?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Some((_, rows, columns)) = as_transpose(&self.order, &run.metas[0].shape) else {
            return map::run_cpu(&identity(), &[self.access(&run.metas[0].shape)], run);
        };
        // Each task writes TILE rows of the value, reading the input in TILE x TILE squares.
        let x = run.ins[0];
        let tiles = columns.div_ceil(TILE);
        let matrix = rows * columns;
        if matrix == 0 {
            return;
        }
        for (b, out) in run.out.chunks_mut(matrix).enumerate() {
            let x = &x[b * matrix..(b + 1) * matrix];
            debug_assert_eq!(out.len().div_ceil(TILE * rows), tiles);
            run.pool.chunks_mut(out, TILE * rows, |t, out| {
                for r0 in (0..rows).step_by(TILE) {
                    for (j, row) in out.chunks_mut(rows).enumerate() {
                        let column = t * TILE + j;
                        for r in r0..rows.min(r0 + TILE) {
                            row[r] = x[r * columns + column];
                        }
                    }
                }
            });
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let from = &run.metas[0].shape;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let Some((batch, rows, columns)) = as_transpose(&self.order, from) else {
            return map::run_cuda(&identity(), &[self.access(from)], run);
        };
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, "transpose_tiles")?;
        let (down, across) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
        let tiles = batch * down * across;
        let mut args = Args::new();
        args.ptr(run.ins[0])
            .ptr(run.out)
            .u64(rows as u64)
            .u64(columns as u64)
            .u64(down as u64)
            .u64(across as u64)
            .u64(tiles as u64);
        run.cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 256, 0, &args)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
        let from = &ins[0].shape;
        match (as_transpose(&self.order, from), self.shape(ins)) {
            (None, Ok(out)) => vec![map::module(&identity(), &out.shape, &[self.access(from)])],
            _ => vec![("layout".into(), PERMUTE_CU.into())],
        }
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut order = vec![0; self.order.len()];
        for (to, &from) in self.order.iter().enumerate() {
            order[from] = to;
        }
        Ok(vec![Some(r.record(Permute { order }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let shape = self.shape(&[ins[0].meta()])?.shape;
        let strides = x.shape().strides();
        Ok(Tensor::from_fn(shape, |at| {
            let (mut rest, mut index) = (at, 0);
            for axis in (0..shape.rank()).rev() {
                index += rest % shape.dims()[axis] * strides[self.order[axis]];
                rest /= shape.dims()[axis];
            }
            x.data()[index]
        }))
    }

    fn samples() -> Vec<Sample<Permute>> {
        let cases: [(&[usize], &[usize]); 11] = [
            (&[], &[]),
            (&[0], &[5]),
            (&[1, 0], &[1, 7]),
            (&[1, 0], &[31, 33]),
            (&[1, 0], &[129, 64]),
            (&[1, 0], &[0, 4]),
            (&[0, 2, 1], &[3, 32, 65]),
            (&[1, 2, 0], &[4, 5, 6]),
            (&[2, 0, 1], &[4, 5, 6]),
            (&[2, 1, 0], &[4, 5, 6]),
            (&[0, 2, 1, 3], &[2, 3, 4, 5]),
        ];
        let sample = |(order, d): &(&[usize], &[usize])| Sample {
            op: Permute { order: order.to_vec() },
            ins: vec![SampleIn::any(dims(d))],
        };
        cases.iter().map(sample).collect()
    }

    fn rejects() -> Vec<Reject<Permute>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |order: &[usize]| Permute { order: order.to_vec() };
        vec![
            Reject { op: op(&[1, 0]), ins: vec![], want: "Arity" },
            Reject { op: op(&[1, 0]), ins: vec![f(&[2, 3, 4])], want: "Argument" },
            Reject { op: op(&[0, 0]), ins: vec![f(&[2, 3])], want: "Axis" },
            Reject { op: op(&[0, 2]), ins: vec![f(&[2, 3])], want: "Axis" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("order", Attr::List(self.order.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Permute> {
        attrs.only(&["order"])?;
        Ok(Permute { order: attrs.list("order")? })
    }
}

/// `v` under `shape`, without a node if it has that shape already.
pub(crate) fn reshape_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    if r.meta(v).shape == shape { Ok(v) } else { r.record(Reshape { shape }.into(), &[v]) }
}

/// `v` repeated to `shape` by NumPy's rule, without a node if it has that shape already.
pub(crate) fn broadcast_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    let from = r.meta(v).shape;
    if from == shape { Ok(v) } else { r.record(BroadcastTo::numpy(&from, shape).into(), &[v]) }
}

/// The adjoint of broadcasting by NumPy's rule: `v` summed down to `shape`.
pub(crate) fn sum_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    let from = r.meta(v).shape;
    if from == shape {
        return Ok(v);
    }
    let shift = from.rank() - shape.rank();
    let axes: Vec<usize> = (0..from.rank())
        .filter(|&a| a < shift || (shape.dims()[a - shift] == 1 && from.dims()[a] != 1))
        .collect();
    let sum = if axes.is_empty() { v } else { r.record(Sum::new(&axes)?.into(), &[v])? };
    reshape_to(r, sum, shape)
}
