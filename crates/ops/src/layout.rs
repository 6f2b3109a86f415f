//! Ops that move or relabel elements without changing them.

use super::map::{self, Access};
use super::program::Program;
use super::sampling::{edge_dims, sample};
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, PerInput, Recorder, Reject,
    Sample, SampleIn, Val, dims, mismatch, sample_shapes,
};
use crate::reduce::Sum;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

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

impl Op for BroadcastTo {
    const NAME: &'static str = "broadcast_to";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [meta] = super::arity(Self::NAME, ins)?;
        let x = meta.shape;
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
                return Err(mismatch(Self::NAME, "sizes must be equal or 1 to broadcast", x, self.shape));
            }
            next += 1;
        }
        if next != x.rank() {
            return Err(mismatch(Self::NAME, "the map leaves out an axis of", x, self.shape));
        }
        Ok(Meta { shape: self.shape, ..meta })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        map::copy_cpu(&self.map.access(&run.metas[0].shape), run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        map::run_cuda(&Program::same(1), &[self.map.access(&run.metas[0].shape)], run)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![map::module(&Program::same(1), &self.shape, &[self.map.access(&ins[0].shape)])]
    }

    fn as_program(&self, ins: &[Meta]) -> Option<Program> {
        (self.map == AxisMap::trailing(&ins[0].shape, &self.shape)).then(|| Program::same(1))
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

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
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

    fn random(stream: &mut Stream) -> Option<Sample<BroadcastTo>> {
        let to = edge_dims(1, 4, stream);
        let (mut from, mut map) = (Vec::new(), Vec::new());
        for &d in &to {
            match stream.below(3) {
                0 => map.push(None),
                narrow => {
                    map.push(Some(from.len()));
                    from.push(if narrow == 1 { 1 } else { d });
                }
            }
        }
        Some(sample(BroadcastTo { shape: dims(&to), map: AxisMap::new(&map).ok()? }, &[&from]))
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

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
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
        fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
            IndexBound::OfInputs(1)
        }

        fn view(&self, _ins: &[Meta]) -> Option<usize> {
            Some(0)
        }

        fn cpu(&self, run: CpuRun<'_>) {
            run.out.copy_from_slice(run.ins[0]);
        }

        fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
            run.cuda.copy(run.out, run.ins[0], run.shape.numel() * 4)
        }

        fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
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

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        ins[0].num()?.clone().reshape(self.shape)
    }

    fn samples() -> Vec<Sample<Reshape>> {
        let flat =
            |s: Shape| Sample { op: Reshape { shape: dims(&[s.numel()]) }, ins: vec![SampleIn::any(s)] };
        sample_shapes().into_iter().map(flat).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Reshape>> {
        let from = edge_dims(1, 3, stream);
        let mut turned = from.clone();
        turned.rotate_left(1);
        Some(sample(Reshape { shape: dims(&turned) }, &[&from]))
    }

    fn rejects() -> Vec<Reject<Reshape>> {
        let op = Reshape { shape: dims(&[2, 3]) };
        vec![
            Reject { op: op.clone(), ins: vec![], want: "Arity" },
            Reject { op, ins: vec![Meta::f32(dims(&[5]))], want: "Shapes" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
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

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
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

/// A permutation as its kernels see it: the value's axes, merged where they stay together and without those of one
/// element, and how far apart the input's elements are along them.
struct Turn {
    walk: map::Walk,
    /// Where the input's last axis went.
    last: usize,
}

/// Edge of the squares in which elements change places.
const TILE: usize = 32;
/// Tiles a block of the GPU takes one after the other along the value's last axis.
const STRIP: usize = 4;

impl Turn {
    fn new(access: &Access, to: &Shape) -> Turn {
        let walk = map::Walk::new(to, std::slice::from_ref(access));
        let last = walk.strides(0).iter().position(|&s| s == 1).unwrap_or(walk.dims().len() - 1);
        Turn { walk, last }
    }

    fn dims(&self) -> &[usize] {
        self.walk.dims()
    }

    fn strides(&self) -> &[usize] {
        self.walk.strides(0)
    }

    /// Whether nothing moves.
    fn is_plain(&self) -> bool {
        self.dims().len() == 1
    }

    /// Whether runs of neighbours stay together, so that copying runs is all there is to do.
    fn keeps_rows(&self) -> bool {
        self.last + 1 == self.dims().len()
    }

    /// Elements along the input's last axis, and along the value's.
    fn edges(&self) -> (usize, usize) {
        (self.dims()[self.last], self.dims()[self.dims().len() - 1])
    }

    /// Powers of two whose product is 1024: the shape of a tile along the input's last axis and along the value's; `None`
    /// if both are so short that a tile would be mostly empty.
    fn tile(&self) -> Option<(usize, usize)> {
        let (a, b) = self.edges();
        let along = match (a < TILE, b < TILE) {
            (true, true) if a * b < 256 => return None,
            (true, _) => a.next_power_of_two(),
            (false, true) => 1024 / b.next_power_of_two(),
            (false, false) => TILE,
        };
        Some((along, 1024 / along))
    }

    /// Copies the value's rows `first..` (a row for each position of the axes up to the input's last one) into `out`.
    /// Squares of the input are read while their cache lines are there.
    fn copy(&self, x: &[f32], first: usize, out: &mut [f32]) {
        let (a, b) = self.edges();
        let block: usize = self.dims()[self.last + 1..].iter().product();
        let middle = self.last + 1..self.dims().len() - 1;
        let apart = self.strides()[self.dims().len() - 1];
        let place = |axes: std::ops::Range<usize>, mut rest: usize| {
            let mut at = 0;
            for axis in axes.rev() {
                at += rest % self.dims()[axis] * self.strides()[axis];
                rest /= self.dims()[axis];
            }
            at
        };
        let rows = out.len() / block;
        let mut done = 0;
        while done < rows {
            let (lead, a0) = ((first + done) / a, (first + done) % a);
            let some = (rows - done).min(a - a0).min(TILE);
            let base = place(0..self.last, lead) + a0;
            let out = &mut out[done * block..(done + some) * block];
            for (m, start) in (0..block).step_by(b).enumerate() {
                let base = base + place(middle.clone(), m);
                for b0 in (0..b).step_by(TILE) {
                    let end = b.min(b0 + TILE);
                    for (j, row) in out.chunks_mut(block).enumerate() {
                        let row = &mut row[start + b0..start + end];
                        for (y, x) in row.iter_mut().zip(x[base + j + b0 * apart..].iter().step_by(apart)) {
                            *y = *x;
                        }
                    }
                }
            }
            done += some;
        }
    }
}

// `MOST_AXES` of the kernels.
const _: () = assert!(MAX_RANK == 10);
const PERMUTE_CU: &str = concat!(include_str!("divide.cu"), include_str!("layout.cu"));

impl Op for Permute {
    const NAME: &'static str = "permute";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
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
        Ok(Meta { shape: Shape::new(&out[..rank])?, ..x })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        let to = self.shape(ins).ok()?.shape;
        Turn::new(&self.access(&ins[0].shape), &to).is_plain().then_some(0)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let access = self.access(&run.metas[0].shape);
        let turn = Turn::new(&access, &run.shape);
        if turn.keeps_rows() || run.out.is_empty() {
            return map::copy_cpu(&access, run);
        }
        let block: usize = turn.dims()[turn.last + 1..].iter().product();
        let rows = run.pool.share(run.out.len() / block, (COPY_TASK / block).max(1), TILE);
        let x = run.ins[0];
        run.pool.chunks_mut(run.out, rows * block, |task, out| turn.copy(x, task * rows, out));
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let access = self.access(&run.metas[0].shape);
        let turn = Turn::new(&access, &run.shape);
        let (Some((along, across)), false) = (turn.tile(), turn.keeps_rows()) else {
            return map::run_cuda(&Program::same(1), &[access], run);
        };
        let ((a, b), rank) = (turn.edges(), turn.dims().len());
        let value = dims(turn.dims()).strides();
        // All axes but the two that change places: dimensions, strides of the input, strides of the value.
        let mut others = [[0u64; MAX_RANK]; 3];
        let mut count = 0;
        let mut tiles = a.div_ceil(along) * b.div_ceil(across * STRIP);
        for axis in (0..rank - 1).filter(|&axis| axis != turn.last) {
            tiles *= turn.dims()[axis];
            let of = [turn.dims()[axis], turn.strides()[axis], value[axis]];
            others.iter_mut().zip(of).for_each(|(o, n)| o[count] = n as u64);
            count += 1;
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, "permute_tiles")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64(a as u64).u64(b as u64);
        args.u64(turn.strides()[rank - 1] as u64).u64(value[turn.last] as u64);
        args.bytes(bytemuck::cast_slice(&others), 8).u32(count as u32).u32(along as u32).u64(tiles as u64);
        run.cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 256, 0, &args)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        let Ok(to) = self.shape(ins).map(|m| m.shape) else { return Vec::new() };
        let access = self.access(&ins[0].shape);
        let turn = Turn::new(&access, &to);
        match turn.tile() {
            Some(_) if !turn.keeps_rows() => vec![("layout".into(), PERMUTE_CU)],
            _ => vec![map::module(&Program::same(1), &to, &[access])],
        }
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut order = vec![0; self.order.len()];
        for (to, &from) in self.order.iter().enumerate() {
            order[from] = to;
        }
        Ok(vec![Some(r.record(Permute { order }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
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
        let cases: [(&[usize], &[usize]); 22] = [
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
            // What only moves axes of one element, which shares memory.
            (&[1, 0, 2], &[5, 1, 7]),
            // Tiles: square, long along either axis, with axes before and between, and too small for any.
            (&[2, 0, 1], &[33, 2, 65]),
            (&[2, 1, 0], &[40, 3, 35]),
            (&[1, 2, 0], &[3, 40, 11]),
            (&[0, 2, 1], &[2, 300, 3]),
            (&[0, 2, 1], &[2, 3, 300]),
            (&[3, 1, 0, 2], &[34, 2, 3, 33]),
            (&[2, 3, 0, 1], &[5, 7, 6, 9]),
            (&[4, 2, 0, 3, 1], &[3, 5, 2, 4, 17]),
            (&[1, 0], &[2, 1030]),
            (&[1, 0], &[17, 260]),
        ];
        let sample = |(order, d): &(&[usize], &[usize])| Sample {
            op: Permute { order: order.to_vec() },
            ins: vec![SampleIn::any(dims(d))],
        };
        cases.iter().map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Permute>> {
        let from = edge_dims(2, 4, stream);
        Some(sample(Permute { order: stream.permutation(from.len()) }, &[&from]))
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

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
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

/// A run along one axis of a value seen as (outer, axis, inner): `size` elements of the axis on the long
/// side, and the `len` of them at `start`, `start + step`, … on the short side.
#[derive(Clone, Copy)]
struct Run {
    outer: usize,
    size: usize,
    inner: usize,
    start: usize,
    len: usize,
    step: usize,
}

impl Run {
    fn new(long: &Shape, axis: usize, start: usize, len: usize, step: usize) -> Run {
        let d = long.dims();
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        Run { outer, size: d[axis], inner, start, len, step }
    }

    /// Words of the long side, and of the short side, that belong to one position of the outer axes.
    fn words(&self) -> (usize, usize) {
        (self.size * self.inner, self.len * self.inner)
    }

    /// Copies the short side of one outer position out of the long side, or into it.
    fn copy(&self, mut pair: impl FnMut(usize, usize, usize)) {
        if self.step == 1 {
            return pair(self.start * self.inner, 0, self.len * self.inner);
        }
        for j in 0..self.len {
            pair((self.start + j * self.step) * self.inner, j * self.inner, self.inner);
        }
    }

    /// The kernel of `name` with its arguments; elements are vectors of four where everything divides.
    fn launch(&self, run: &CudaRun<'_>, name: &str, value: Option<f32>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let mut r = *self;
        if r.step == 1 {
            // One run: its words are elements of the axis.
            r = Run { size: r.size * r.inner, start: r.start * r.inner, len: r.len * r.inner, inner: 1, ..r };
        }
        let divides = |n: usize| n.is_multiple_of(4);
        let vector = if r.step == 1 {
            divides(r.size) && divides(r.start) && divides(r.len)
        } else {
            divides(r.inner)
        };
        let width = if vector { 4 } else { 1 };
        if r.step == 1 {
            r = Run { size: r.size / width, start: r.start / width, len: r.len / width, ..r };
        } else {
            r.inner /= width;
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, &format!("{name}{width}"))?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64((total / width) as u64);
        for n in [r.size, r.inner, r.start, r.len, r.step] {
            args.u64(n as u64);
        }
        if let Some(value) = value {
            args.f32(value);
        }
        run.cuda.launch(kernel, map::grid(run.cuda, total / width), 256, 0, &args)
    }
}

/// The fewest words a task of the copies takes.
const COPY_TASK: usize = 32 * 1024;

/// Elements `start`, `start + step`, … of an axis, `len` of them. A run at the front axes that starts at a
/// multiple of four words shares memory with its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// The axis.
    pub axis: usize,
    /// First element taken.
    pub start: usize,
    /// Number of elements taken.
    pub len: usize,
    /// Distance between elements taken.
    pub step: usize,
}

impl Slice {
    fn run(&self, from: &Shape) -> Run {
        Run::new(from, self.axis, self.start, self.len, self.step)
    }
}

impl Op for Slice {
    const NAME: &'static str = "slice";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        if self.axis >= x.shape.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: x.shape }));
        }
        let size = x.shape.dims()[self.axis];
        check_run(Self::NAME, size, self.start, self.len, self.step)?;
        let mut out = x.shape.dims().to_vec();
        out[self.axis] = self.len;
        Ok(Meta { shape: Shape::new(&out)?, ..x })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        let run = self.run(&ins[0].shape);
        let start = run.start * run.inner;
        let whole = run.outer == 1 && (run.step == 1 || run.len == 1) && run.len > 0;
        (whole && start.is_multiple_of(4)).then_some(start)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let r = self.run(&run.metas[0].shape);
        let (long, short) = r.words();
        if short == 0 {
            return;
        }
        let x = run.ins[0];
        let rows = run.pool.share(r.outer, (COPY_TASK / short).max(1), 1);
        run.pool.chunks_mut(run.out, rows * short, |task, out| {
            for (o, out) in out.chunks_mut(short).enumerate() {
                let x = &x[(task * rows + o) * long..][..long];
                r.copy(|from, to, n| out[to..to + n].copy_from_slice(&x[from..from + n]));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.run(&run.metas[0].shape).launch(run, "slice_axis", None)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let size = r.meta(io.ins[0]).shape.dims()[self.axis];
        let pad = Pad { axis: self.axis, start: self.start, step: self.step, size, value: 0.0 };
        Ok(vec![Some(r.record(pad.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let shape = self.shape(&[ins[0].meta()])?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        Ok(Tensor::from_fn(shape, |at| {
            let (o, j, i) = (at / inner / self.len, at / inner % self.len, at % inner);
            let size = x.shape().dims()[self.axis];
            x.data()[(o * size + self.start + j * self.step) * inner + i]
        }))
    }

    fn samples() -> Vec<Sample<Slice>> {
        run_cases()
            .into_iter()
            .map(|(d, axis, start, len, step)| sample(Slice { axis, start, len, step }, &[&d]))
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Slice>> {
        let (d, axis, start, len, step) = random_run(stream);
        Some(sample(Slice { axis, start, len, step }, &[&d]))
    }

    fn rejects() -> Vec<Reject<Slice>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis, start, len, step| Slice { axis, start, len, step };
        vec![
            Reject { op: op(0, 0, 1, 1), ins: vec![], want: "Arity" },
            Reject { op: op(0, 0, 1, 1), ins: vec![f(&[])], want: "Axis" },
            Reject { op: op(2, 0, 1, 1), ins: vec![f(&[2, 3])], want: "Axis" },
            Reject { op: op(1, 1, 3, 1), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 4, 0, 1), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 0, 3, 2), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 0, 1, 0), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, usize::MAX, 2, 1), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 1, 2, usize::MAX), ins: vec![f(&[2, 3])], want: "Argument" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![
            ("axis", num(self.axis)),
            ("start", num(self.start)),
            ("len", num(self.len)),
            ("step", num(self.step)),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Slice> {
        attrs.only(&["axis", "start", "len", "step"])?;
        Ok(Slice {
            axis: attrs.whole("axis")?,
            start: attrs.whole("start")?,
            len: attrs.whole("len")?,
            step: attrs.whole("step")?,
        })
    }
}

/// Errors unless `len` elements from `start` in steps of `step` lie in an axis of `size` elements.
fn check_run(op: &'static str, size: usize, start: usize, len: usize, step: usize) -> Result<()> {
    if step == 0 {
        return Err(Error::argument(op, "step", "is 0, use 1 or more"));
    }
    let end = len.saturating_sub(1).checked_mul(step).and_then(|n| n.checked_add(start));
    let fits = if len == 0 { start <= size } else { end.is_some_and(|last| last < size) };
    if fits {
        return Ok(());
    }
    let why = format!("{len} elements from {start} in steps of {step} do not lie in an axis of {size}");
    Err(Error::argument(op, "range", why))
}

/// Shapes with an axis, a start, a length and a step.
fn run_cases() -> Vec<(Vec<usize>, usize, usize, usize, usize)> {
    vec![
        (vec![7], 0, 2, 3, 1),
        (vec![64], 0, 4, 12, 1),
        (vec![64], 0, 3, 20, 3),
        (vec![5, 3], 0, 1, 2, 1),
        (vec![5, 4], 0, 1, 3, 1),
        (vec![5, 4], 0, 1, 2, 2),
        (vec![5, 33], 1, 1, 31, 1),
        (vec![3, 64], 1, 4, 32, 1),
        (vec![3, 64], 1, 5, 20, 2),
        (vec![2, 6, 8], 1, 1, 3, 2),
        (vec![2, 6, 5], 1, 0, 6, 1),
        (vec![2, 6, 5], 2, 4, 1, 1),
        (vec![4, 3], 0, 2, 0, 1),
        (vec![0, 3], 1, 1, 2, 1),
        (vec![130, 516], 0, 1, 128, 1),
    ]
}

fn random_run(stream: &mut Stream) -> (Vec<usize>, usize, usize, usize, usize) {
    let d = edge_dims(1, 3, stream);
    let axis = stream.below(d.len());
    let step = 1 + stream.below(3);
    let start = stream.below(d[axis]);
    let len = 1 + stream.below((d[axis] - 1 - start) / step + 1);
    (d, axis, start, len, step)
}

/// One number along an axis with the input's elements at `start`, `start + step`, …: for zeros the adjoint of [`Slice`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    /// The axis.
    pub axis: usize,
    /// Where the first element goes.
    pub start: usize,
    /// Distance between elements.
    pub step: usize,
    /// Size of the axis of the value.
    pub size: usize,
    /// What the other elements are.
    pub value: f32,
}

impl Pad {
    fn run(&self, from: &Shape, to: &Shape) -> Run {
        Run::new(to, self.axis, self.start, from.dims()[self.axis], self.step)
    }
}

impl Op for Pad {
    const NAME: &'static str = "pad";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        super::typed(Self::NAME, ins, 0, DType::F32)?;
        if self.axis >= x.shape.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: x.shape }));
        }
        let mut out = x.shape.dims().to_vec();
        check_run(Self::NAME, self.size, self.start, out[self.axis], self.step)?;
        out[self.axis] = self.size;
        Ok(Meta::f32(Shape::new(&out)?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let r = self.run(&run.metas[0].shape, &run.shape);
        let (long, short) = r.words();
        if long == 0 {
            return;
        }
        let x = run.ins[0];
        let rows = run.pool.share(r.outer, (COPY_TASK / long).max(1), 1);
        run.pool.chunks_mut(run.out, rows * long, |task, out| {
            for (o, out) in out.chunks_mut(long).enumerate() {
                let x = &x[(task * rows + o) * short..][..short];
                out.fill(self.value);
                r.copy(|to, from, n| out[to..to + n].copy_from_slice(&x[from..from + n]));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.run(&run.metas[0].shape, &run.shape).launch(run, "pad_axis", Some(self.value))
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let len = r.meta(io.ins[0]).shape.dims()[self.axis];
        let slice = Slice { axis: self.axis, start: self.start, len, step: self.step };
        Ok(vec![Some(r.record(slice.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let shape = self.shape(&[ins[0].meta()])?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        let len = x.shape().dims()[self.axis];
        Ok(Tensor::from_fn(shape, |at| {
            let (o, j, i) = (at / inner / self.size, at / inner % self.size, at % inner);
            match j.checked_sub(self.start) {
                Some(j) if j % self.step == 0 && j / self.step < len => {
                    x.data()[(o * len + j / self.step) * inner + i]
                }
                _ => T::c(f64::from(self.value)),
            }
        }))
    }

    fn samples() -> Vec<Sample<Pad>> {
        let of = |value: f32| run_cases().into_iter().map(move |case| pad_sample(case, value));
        of(0.0).chain(of(-1.5)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Pad>> {
        let value = [0.0, 2.5][stream.below(2)];
        Some(pad_sample(random_run(stream), value))
    }

    fn rejects() -> Vec<Reject<Pad>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis, start, step, size| Pad { axis, start, step, size, value: 0.0 };
        vec![
            Reject { op: op(0, 0, 1, 4), ins: vec![], want: "Arity" },
            Reject { op: op(2, 0, 1, 4), ins: vec![f(&[2, 3])], want: "Axis" },
            Reject { op: op(1, 0, 1, 2), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 2, 1, 4), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 0, 0, 4), ins: vec![f(&[2, 3])], want: "Argument" },
            Reject { op: op(1, 0, 1, 4), ins: vec![Meta::u32(dims(&[2, 3]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        if self.value == 0.0 { vec![vec![0]] } else { Vec::new() }
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![
            ("axis", num(self.axis)),
            ("start", num(self.start)),
            ("step", num(self.step)),
            ("size", num(self.size)),
            ("value", Attr::Num(f64::from(self.value))),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Pad> {
        attrs.only(&["axis", "start", "step", "size", "value"])?;
        Ok(Pad {
            axis: attrs.whole("axis")?,
            start: attrs.whole("start")?,
            step: attrs.whole("step")?,
            size: attrs.whole("size")?,
            value: if attrs.has("value") { attrs.num("value")? as f32 } else { 0.0 },
        })
    }
}

fn pad_sample(
    (mut d, axis, start, len, step): (Vec<usize>, usize, usize, usize, usize),
    value: f32,
) -> Sample<Pad> {
    let size = std::mem::replace(&mut d[axis], len);
    sample(Pad { axis, start, step, size, value }, &[&d])
}

/// The inputs one after the other along an axis. They agree in all other dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// The axis.
    pub axis: usize,
}

impl Op for Concat {
    const NAME: &'static str = "concat";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let Some(first) = ins.first().filter(|_| ins.len() <= super::MAX_INS) else {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: 1, got: ins.len() }));
        };
        let mut out = first.shape.dims().to_vec();
        if self.axis >= out.len() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: first.shape }));
        }
        for (i, x) in ins.iter().enumerate().skip(1) {
            super::typed(Self::NAME, ins, i, first.dtype)?;
            let same = |(a, (x, y)): (usize, (&usize, &usize))| a == self.axis || x == y;
            let fits = x.shape.rank() == out.len() && x.shape.dims().iter().zip(&out).enumerate().all(same);
            if !fits {
                let why = "inputs must agree in all axes but the one they are joined along";
                return Err(mismatch(Self::NAME, why, first.shape, x.shape));
            }
            out[self.axis] = out[self.axis].saturating_add(x.shape.dims()[self.axis]);
        }
        let shape = Shape::new(&out).map_err(|e| Error::new(Self::NAME, e.kind().clone()))?;
        Ok(Meta { shape, ..*first })
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(ins.len())
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        (ins.len() == 1).then_some(0)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let words = |s: &Shape| s.dims()[self.axis..].iter().product::<usize>();
        let pitch = words(&run.shape);
        if run.out.is_empty() {
            return;
        }
        let parts: Vec<(&[f32], usize)> =
            run.ins.iter().zip(run.metas).map(|(x, m)| (*x, words(&m.shape))).collect();
        if run.out.len() == pitch {
            let mut rest = run.out;
            for (x, words) in parts.into_iter().filter(|p| p.1 > 0) {
                let (out, behind) = rest.split_at_mut(words);
                let per = run.pool.share(words, COPY_TASK, 1);
                run.pool.chunks_mut(out, per, |task, out| out.copy_from_slice(&x[task * per..][..out.len()]));
                rest = behind;
            }
            return;
        }
        let rows = run.pool.share(run.out.len() / pitch, (COPY_TASK / pitch).max(1), 1);
        run.pool.chunks_mut(run.out, rows * pitch, |task, out| {
            for (o, mut out) in out.chunks_mut(pitch).enumerate() {
                for (x, words) in &parts {
                    let (to, behind) = out.split_at_mut(*words);
                    to.copy_from_slice(&x[(task * rows + o) * words..][..*words]);
                    out = behind;
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let words = |s: &Shape| s.dims()[self.axis..].iter().product::<usize>();
        let pitch = words(&run.shape);
        let outer = run.shape.numel() / pitch;
        let all = run.metas.iter().map(|m| words(&m.shape));
        let width = if all.clone().all(|w| w.is_multiple_of(4)) { 4 } else { 1 };
        let mut parts = [[0u64; super::MAX_INS]; 3];
        let (mut start, mut most) = (0, 0);
        for (i, (words, &address)) in all.zip(run.ins).enumerate() {
            let words = words / width;
            (parts[0][i], parts[1][i], parts[2][i]) = (address, words as u64, start as u64);
            start += words;
            most = most.max(words);
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, &format!("concat{width}"))?;
        let mut args = Args::new();
        args.bytes(bytemuck::cast_slice(&parts), 8)
            .ptr(run.out)
            .u64(outer as u64)
            .u64((pitch / width) as u64);
        let [x, ..] = map::grid(run.cuda, outer * most);
        run.cuda.launch(kernel, [x, run.ins.len() as u32, 1], 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut start = 0;
        let one = |&x: &Val| {
            let len = r.meta(x).shape.dims()[self.axis];
            let slice = Slice { axis: self.axis, start, len, step: 1 };
            start += len;
            r.record(slice.into(), &[dy]).map(Some)
        };
        io.ins.iter().map(one).collect()
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        let xs: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let (inner, total) =
            (shape.dims()[self.axis + 1..].iter().product::<usize>(), shape.dims()[self.axis]);
        Ok(Tensor::from_fn(shape, |at| {
            let (o, mut j, i) = (at / inner / total, at / inner % total, at % inner);
            let mut part = 0;
            while j >= xs[part].shape().dims()[self.axis] {
                j -= xs[part].shape().dims()[self.axis];
                part += 1;
            }
            xs[part].data()[(o * xs[part].shape().dims()[self.axis] + j) * inner + i]
        }))
    }

    fn samples() -> Vec<Sample<Concat>> {
        let cases: [(usize, &[&[usize]]); 9] = [
            (0, &[&[3], &[5]]),
            (0, &[&[4]]),
            (0, &[&[2, 3], &[0, 3], &[1, 3]]),
            (1, &[&[2, 3], &[2, 5]]),
            (1, &[&[3, 4], &[3, 8], &[3, 64]]),
            (1, &[&[2, 3, 5], &[2, 1, 5]]),
            (2, &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 0]]),
            (1, &[&[0, 3], &[0, 2]]),
            (0, &[&[1, 33][..]; 32]),
        ];
        cases.iter().map(|(axis, ins)| sample(Concat { axis: *axis }, ins)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Concat>> {
        let d = edge_dims(1, 3, stream);
        let axis = stream.below(d.len());
        let other = |s: &mut Stream| {
            let mut d = d.clone();
            d[axis] = s.below(d[axis] + 1);
            d
        };
        let ins = [d.clone(), other(stream), other(stream)];
        Some(sample(Concat { axis }, &ins.each_ref().map(|d| &d[..])))
    }

    fn rejects() -> Vec<Reject<Concat>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis| Concat { axis };
        vec![
            Reject { op: op(0), ins: vec![], want: "Arity" },
            Reject { op: op(0), ins: vec![f(&[1]); 33], want: "Arity" },
            Reject { op: op(0), ins: vec![f(&[]), f(&[])], want: "Axis" },
            Reject { op: op(1), ins: vec![f(&[2]), f(&[2])], want: "Axis" },
            Reject { op: op(0), ins: vec![f(&[2, 3]), f(&[2, 4])], want: "Shapes" },
            Reject { op: op(0), ins: vec![f(&[2, 3]), f(&[2])], want: "Shapes" },
            Reject { op: op(0), ins: vec![f(&[2]), Meta::u32(dims(&[2]))], want: "DType" },
            Reject { op: op(0), ins: vec![f(&[usize::MAX >> 4, 0]); 20], want: "TooLarge" },
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![(0..ins.len()).collect()]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("axis", Attr::Num(self.axis as f64))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Concat> {
        attrs.only(&["axis"])?;
        Ok(Concat { axis: attrs.whole("axis")? })
    }
}

/// Some axes in reverse order.
#[derive(Clone, Debug, PartialEq)]
pub struct Flip {
    /// The axes.
    pub axes: Vec<usize>,
}

impl Flip {
    /// The shape with neighbouring axes merged that are all reversed or all not: reversing two of them is reversing
    /// the one they make. Each with whether it is reversed.
    fn merged(&self, shape: &Shape) -> Vec<(usize, bool)> {
        let mut all: Vec<(usize, bool)> = Vec::new();
        for (axis, &d) in shape.dims().iter().enumerate().filter(|(_, d)| **d != 1) {
            let reversed = self.axes.contains(&axis);
            match all.last_mut() {
                Some((dim, r)) if *r == reversed => *dim *= d,
                _ => all.push((d, reversed)),
            }
        }
        all
    }
}

impl Op for Flip {
    const NAME: &'static str = "flip";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::arity(Self::NAME, ins)?;
        for (i, &axis) in self.axes.iter().enumerate() {
            if axis >= x.shape.rank() || self.axes[..i].contains(&axis) {
                return Err(Error::new(Self::NAME, ErrorKind::Axis { axis, shape: x.shape }));
            }
        }
        Ok(x)
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        self.merged(&ins[0].shape).iter().all(|(_, reversed)| !reversed).then_some(0)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let axes = self.merged(&run.shape);
        let Some((&(inner, reversed), lead)) = axes.split_last().filter(|_| !run.out.is_empty()) else {
            return run.out.copy_from_slice(run.ins[0]);
        };
        let x = run.ins[0];
        let rows = run.pool.share(run.out.len() / inner, (COPY_TASK / inner).max(1), 1);
        run.pool.chunks_mut(run.out, rows * inner, |task, out| {
            for (r, out) in out.chunks_mut(inner).enumerate() {
                let (mut rest, mut from, mut stride) = (task * rows + r, 0, 1);
                for &(d, reversed) in lead.iter().rev() {
                    from += if reversed { d - 1 - rest % d } else { rest % d } * stride;
                    rest /= d;
                    stride *= d;
                }
                let x = &x[from * inner..][..inner];
                match reversed {
                    true => out.iter_mut().zip(x.iter().rev()).for_each(|(y, x)| *y = *x),
                    false => out.copy_from_slice(x),
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let mut axes = self.merged(&run.shape);
        let width = match axes.last_mut() {
            Some((d, false)) if d.is_multiple_of(4) => {
                *d /= 4;
                4
            }
            _ => 1,
        };
        let mut words = [0u64; MAX_RANK];
        let mut mask = 0;
        for (i, &(d, reversed)) in axes.iter().enumerate() {
            words[i] = d as u64;
            mask |= u32::from(reversed) << i;
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, &format!("flip{width}"))?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64((total / width) as u64);
        args.bytes(bytemuck::cast_slice(&words), 8).u32(axes.len() as u32).u32(mask);
        run.cuda.launch(kernel, map::grid(run.cuda, total / width), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(self.clone().into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let (shape, strides) = (x.shape(), x.shape().strides());
        Ok(Tensor::from_fn(shape, |at| {
            let (mut rest, mut index) = (at, 0);
            for axis in (0..shape.rank()).rev() {
                let (d, c) = (shape.dims()[axis], rest % shape.dims()[axis]);
                index += strides[axis] * if self.axes.contains(&axis) { d - 1 - c } else { c };
                rest /= d;
            }
            x.data()[index]
        }))
    }

    fn samples() -> Vec<Sample<Flip>> {
        let cases: [(&[usize], &[usize]); 10] = [
            (&[0], &[7]),
            (&[0], &[1]),
            (&[0], &[0]),
            (&[], &[2, 3]),
            (&[0], &[5, 8]),
            (&[1], &[5, 8]),
            (&[0, 1], &[5, 6]),
            (&[0, 2], &[3, 4, 5]),
            (&[1], &[3, 4, 12]),
            (&[2, 0], &[33, 3, 130]),
        ];
        cases.iter().map(|(axes, d)| sample(Flip { axes: axes.to_vec() }, &[d])).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Flip>> {
        let d = edge_dims(1, 4, stream);
        let axes = (0..d.len()).filter(|_| stream.below(2) == 0).collect();
        Some(sample(Flip { axes }, &[&d]))
    }

    fn rejects() -> Vec<Reject<Flip>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject { op: Flip { axes: vec![0] }, ins: vec![], want: "Arity" },
            Reject { op: Flip { axes: vec![0] }, ins: vec![f(&[])], want: "Axis" },
            Reject { op: Flip { axes: vec![2] }, ins: vec![f(&[2, 3])], want: "Axis" },
            Reject { op: Flip { axes: vec![1, 1] }, ins: vec![f(&[2, 3])], want: "Axis" },
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

    fn from_attrs(attrs: &Attrs) -> Result<Flip> {
        attrs.only(&["axes"])?;
        Ok(Flip { axes: attrs.list("axes")? })
    }
}

/// Matrices in the last two axes with zeros on one side of a diagonal: element (i, j) stays where `j - i <= shift`, or
/// with `upper` where `j - i >= shift`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triangle {
    /// Whether the upper part stays.
    pub upper: bool,
    /// Columns right of the main diagonal.
    pub shift: i64,
}

impl Op for Triangle {
    const NAME: &'static str = "triangle";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = super::floats(Self::NAME, ins)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        Ok(ins[0])
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (columns, x) = (run.shape.last(), run.ins[0]);
        let height = run.shape.dims()[run.shape.rank() - 2];
        if run.out.is_empty() {
            return;
        }
        let rows = run.pool.share(run.out.len() / columns, (COPY_TASK / columns).max(1), 1);
        run.pool.chunks_mut(run.out, rows * columns, |task, out| {
            for (r, out) in out.chunks_mut(columns).enumerate() {
                let row = task * rows + r;
                let x = &x[row * columns..][..columns];
                // The first column of the right part; the diagonal itself always stays.
                let i = (row % height) as i64;
                let edge = i.saturating_add(self.shift).saturating_add(i64::from(!self.upper));
                let edge = usize::try_from(edge).unwrap_or(0).min(columns);
                let (left, right) = out.split_at_mut(edge);
                if self.upper {
                    left.fill(0.0);
                    right.copy_from_slice(&x[edge..]);
                } else {
                    left.copy_from_slice(&x[..edge]);
                    right.fill(0.0);
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (rows, columns) = (run.shape.dims()[run.shape.rank() - 2], run.shape.last());
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, "triangle")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64(total as u64).u64(rows as u64).u64(columns as u64);
        args.u64(self.shift as u64).i32(i32::from(self.upper));
        run.cuda.launch(kernel, map::grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record((*self).into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let (rows, columns) = (x.shape().dims()[x.shape().rank() - 2], x.shape().last());
        Ok(Tensor::from_fn(x.shape(), |at| {
            let right = (at % columns) as i64 - (at / columns % rows) as i64;
            let stays = if self.upper { right >= self.shift } else { right <= self.shift };
            if stays { x.data()[at] } else { T::c(0.0) }
        }))
    }

    fn samples() -> Vec<Sample<Triangle>> {
        let shapes: [&[usize]; 5] = [&[4, 4], &[3, 7], &[2, 7, 3], &[0, 3], &[2, 3, 0]];
        let mut all = Vec::new();
        for (i, d) in shapes.iter().enumerate() {
            for shift in [0, 1, -1, 9, -9] {
                all.push(sample(Triangle { upper: (i as i64 + shift) % 2 == 0, shift }, &[d]));
            }
        }
        all.push(sample(Triangle { upper: true, shift: 0 }, &[&[65, 130]]));
        all.push(sample(Triangle { upper: false, shift: i64::MAX }, &[&[3, 3]]));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<Triangle>> {
        let d = edge_dims(2, 4, stream);
        let d = if d.len() < 2 { vec![d[0], 1] } else { d };
        let shift = stream.below(40) as i64 - 20;
        Some(sample(Triangle { upper: stream.below(2) == 0, shift }, &[&d]))
    }

    fn rejects() -> Vec<Reject<Triangle>> {
        let op = Triangle { upper: true, shift: 0 };
        vec![
            Reject { op, ins: vec![], want: "Arity" },
            Reject { op, ins: vec![Meta::f32(dims(&[3]))], want: "Rank" },
            Reject { op, ins: vec![Meta::u32(dims(&[3, 3]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("upper", Attr::Bool(self.upper)), ("shift", Attr::Num(self.shift as f64))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Triangle> {
        attrs.only(&["upper", "shift"])?;
        let shift = attrs.num("shift")?;
        if shift.fract() != 0.0 {
            return Err(Error::argument(Self::NAME, "shift", format!("is {shift}, use a whole number")));
        }
        Ok(Triangle { upper: attrs.flag("upper")?, shift: shift as i64 })
    }
}

/// Where each part of a packed value starts, and the words of the whole. An op with several results gives
/// them one behind the other in a flat value; each part starts at a multiple of four words, so that kernels
/// can read vectors from it, and the words between parts are zero.
#[doc(hidden)]
pub fn packed(parts: &[Shape]) -> (PerInput<usize>, usize) {
    let mut starts = PerInput::new(parts.len(), 0);
    let mut end = 0;
    for (start, s) in starts.all_mut().iter_mut().zip(parts) {
        *start = end;
        end += s.numel().next_multiple_of(4);
    }
    (starts, end)
}

/// Part `i` of a packed value, sharing its memory.
pub(crate) fn part(r: &mut dyn Recorder, value: Val, parts: &[Shape], i: usize) -> Result<Val> {
    let slice = Slice { axis: 0, start: packed(parts).0[i], len: parts[i].numel(), step: 1 };
    let flat = r.record(slice.into(), &[value])?;
    reshape_to(r, flat, parts[i])
}

/// `v` under `shape`, without a node if it has that shape already.
#[doc(hidden)]
pub fn reshape_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
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
