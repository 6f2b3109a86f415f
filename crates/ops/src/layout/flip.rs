//! Reversal of axes.

use super::permute::PERMUTE_CU;
use super::run::MIN_WORDS_PER_COPY_TASK;
use crate::pointwise::map;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

/// Reverses the order of elements along some axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Flip {
    /// The axes.
    pub axes: Vec<usize>,
}

impl Flip {
    /// The dimensions after merging neighbouring axes that are all reversed or all not, each with whether it is
    /// reversed. Reversing two neighbouring axes is the same as reversing the merged one.
    pub(super) fn merged(&self, shape: &Shape) -> Vec<(usize, bool)> {
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
        let [x] = crate::arity(Self::NAME, ins)?;
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
        let rows = run.pool.share(run.out.len() / inner, (MIN_WORDS_PER_COPY_TASK / inner).max(1), 1);
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("axes", Attr::List(self.axes.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Flip> {
        attrs.only(&["axes"])?;
        Ok(Flip { axes: attrs.list("axes")? })
    }
}
