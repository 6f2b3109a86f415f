//! Permutation of axes.

use super::run::MIN_WORDS_PER_COPY_TASK;
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map;
use crate::pointwise::map::Access;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, dims};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

/// Permutes the axes: axis `j` of the value is axis `order[j]` of the input.
#[derive(Clone, Debug, PartialEq)]
pub struct Permute {
    /// For each output axis, the input axis.
    pub order: Vec<usize>,
}

impl Permute {
    /// Swaps the last two axes of a value of rank `rank`.
    pub fn transpose(rank: usize) -> Permute {
        let mut order: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            order.swap(rank - 2, rank - 1);
        }
        Permute { order }
    }

    pub(super) fn access(&self, from: &Shape) -> Access {
        let strides = from.strides();
        let mut access = [0; MAX_RANK];
        for (a, &axis) in access.iter_mut().zip(&self.order) {
            *a = strides[axis];
        }
        access
    }
}

/// A permutation as its kernels see it: the value's axes and the input's strides along them. Axes of one element are
/// dropped, and axes that stay neighbours are merged.
pub(super) struct Turn {
    pub(super) walk: map::Walk,
    /// The output axis that is the input's last axis.
    pub(super) last: usize,
}

/// Edge of the square tiles that the CPU transposes.
pub(super) const TILE: usize = 32;

/// Tiles that a CUDA block takes in turn along the value's last axis.
pub(super) const TILES_PER_BLOCK: usize = 4;

impl Turn {
    pub(super) fn new(access: &Access, to: &Shape) -> Turn {
        let walk = map::Walk::new(to, std::slice::from_ref(access));
        let last = walk.strides(0).iter().position(|&s| s == 1).unwrap_or(walk.dims().len() - 1);
        Turn { walk, last }
    }

    pub(super) fn dims(&self) -> &[usize] {
        self.walk.dims()
    }

    pub(super) fn strides(&self) -> &[usize] {
        self.walk.strides(0)
    }

    /// Whether the permutation moves nothing.
    pub(super) fn is_plain(&self) -> bool {
        self.dims().len() == 1
    }

    /// Whether the last axis stays last, so that whole rows can be copied.
    pub(super) fn keeps_rows(&self) -> bool {
        self.last + 1 == self.dims().len()
    }

    /// Sizes of the input's last axis and of the value's last axis.
    pub(super) fn edges(&self) -> (usize, usize) {
        (self.dims()[self.last], self.dims()[self.dims().len() - 1])
    }

    /// The shape of a tile along the input's last axis and along the value's: powers of two whose product is 1024.
    /// `None` if both axes are so short that a tile would be mostly empty.
    pub(super) fn tile(&self) -> Option<(usize, usize)> {
        let (a, b) = self.edges();
        let along = match (a < TILE, b < TILE) {
            (true, true) if a * b < 256 => return None,
            (true, _) => a.next_power_of_two(),
            (false, true) => 1024 / b.next_power_of_two(),
            (false, false) => TILE,
        };
        Some((along, 1024 / along))
    }

    /// Copies the value's rows from `first` on into `out`. A row is one position of the axes up to the input's last
    /// one. Square tiles of the input are read while their cache lines are hot.
    pub(super) fn copy(&self, x: &[f32], first: usize, out: &mut [f32]) {
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

pub(super) const PERMUTE_CU: &str = concat!(include_str!("../divide.cu"), include_str!("layout.cu"));

impl Op for Permute {
    const NAME: &'static str = "permute";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::arity(Self::NAME, ins)?;
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
        let rows = run.pool.share(run.out.len() / block, (MIN_WORDS_PER_COPY_TASK / block).max(1), TILE);
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
            return map::run_cuda(&Pointwise::same(1), &[access], run);
        };
        let ((a, b), rank) = (turn.edges(), turn.dims().len());
        let value = dims(turn.dims()).strides();
        // All axes except the two that are tiled: dimensions, strides of the input, strides of the value.
        let mut others = [[0u64; MAX_RANK]; 3];
        let mut count = 0;
        let mut tiles = a.div_ceil(along) * b.div_ceil(across * TILES_PER_BLOCK);
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
            _ => vec![map::module(&Pointwise::same(1), &to, &[access])],
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("order", Attr::List(self.order.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Permute> {
        attrs.only(&["order"])?;
        Ok(Permute { order: attrs.list("order")? })
    }
}
