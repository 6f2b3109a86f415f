//! Repeating a value along axes.

use super::{AxisMap, reshape_to};
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, mismatch};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

impl AxisMap {
    /// NumPy's alignment: input axes are the last ones of the output.
    pub fn trailing(from: &Shape, to: &Shape) -> AxisMap {
        let shift = to.rank().saturating_sub(from.rank());
        let mut axes = [None; MAX_RANK];
        for (axis, a) in axes.iter_mut().enumerate().take(to.rank()) {
            *a = axis.checked_sub(shift).map(|a| a as u8);
        }
        AxisMap { axes, rank: to.rank() as u8 }
    }
}

/// Broadcasts the input along new or size-one axes: `out[o] = in[i]`. Input axis coordinates come from the output axes
/// that `map` ties them to, or are 0 where the input's dimension is 1.
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
        let [meta] = crate::arity(Self::NAME, ins)?;
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
        map::run_cuda(&Pointwise::same(1), &[self.map.access(&run.metas[0].shape)], run)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![map::module(&Pointwise::same(1), &self.shape, &[self.map.access(&ins[0].shape)])]
    }

    fn as_pointwise(&self, ins: &[Meta]) -> Option<Pointwise> {
        (self.map == AxisMap::trailing(&ins[0].shape, &self.shape)).then(|| Pointwise::same(1))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dx[i] = sum of dy[o] over all o that read i
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
