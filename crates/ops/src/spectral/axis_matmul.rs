//! A matrix product along one axis of a value.

use crate::fused::{EpilogueCode, FusedCode, Fusion};
use crate::matmul::plan::Problem;
use crate::matmul::{Bmm, planned};
use crate::pointwise::expression::Scratch;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

/// One matrix applied to a batch: `y[b] = op(A) x[b]`, x (batch, k, w), y (batch, m, w).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub w: usize,
    /// A is stored (k, m).
    pub ta: bool,
}

impl Along {
    /// The GPU's matrix product. If w is 1, the batch becomes the rows of one larger product.
    pub(super) fn problem(&self) -> Problem {
        let Along { batch, m, k, w, ta } = *self;
        if w == 1 {
            return Problem::plain(Gemm { batch: 1, m: batch, n: m, k, ta: false, tb: !ta }, true);
        }
        let aligned = batch <= 1 || [k * w, m * w].iter().all(|x| x.is_multiple_of(4));
        Problem::plain(Gemm { batch, m, n: w, k, ta, tb: false }, aligned)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch * self.m * self.w == 0
    }

    /// Words of workspace on a GPU.
    pub(crate) fn workspace(&self, gpu: &Gpu) -> usize {
        if self.is_empty() { 0 } else { planned(&self.problem(), gpu).plan.workspace }
    }

    pub(crate) fn cpu(&self, pool: &Pool, simd: Simd, a: &[f32], x: &[f32], out: &mut [f32]) {
        let Along { batch, m, k, w, ta } = *self;
        if out.is_empty() {
            return;
        }
        if w == 1 {
            let g = Gemm { batch: 1, m: batch, n: m, k, ta: false, tb: !ta };
            let mut scratch = Scratch::take(g.scratch_len(pool.threads()));
            return g.run(pool, simd, x, a, None, out, scratch.words());
        }
        let g = Gemm { batch: 1, m, n: w, k, ta, tb: false };
        if batch < pool.threads() {
            let mut scratch = Scratch::take(g.scratch_len(pool.threads()));
            for (b, out) in out.chunks_mut(m * w).enumerate() {
                g.run(pool, simd, a, &x[b * k * w..(b + 1) * k * w], None, out, scratch.words());
            }
            return;
        }
        // Enough products that each thread can take whole ones.
        let one = Pool::alone();
        pool.chunks_mut(out, m * w, |b, out| {
            let mut scratch = Scratch::take(g.scratch_len(1));
            g.run(one, simd, a, &x[b * k * w..(b + 1) * k * w], None, out, scratch.words());
        });
    }

    /// Queues the product of `a` and `x`.
    pub(crate) fn cuda(&self, run: &CudaRun<'_>, a: u64, x: u64, out: u64, workspace: u64) -> Result<()> {
        let p = self.problem();
        let operands = if self.w == 1 { [x, a] } else { [a, x] };
        // All products of the batch use the same matrix: its stride is 0.
        p.launch(operands, [0, p.k * p.n], &CudaRun { out, workspace, ..*run })
    }

    pub(crate) fn modules(&self, gpu: &Gpu, epilogue: Option<&EpilogueCode>) -> Vec<Source> {
        self.problem().modules(gpu, epilogue)
    }
}

/// Applies a matrix along the second-to-last axis: `y[…, i, j] = Σ_l A[i, l] x[…, l, j]`, with `A` (m, k) or, if `ta`,
/// stored (k, m). Each element is a dot product by rule C4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisMatMul {
    /// The matrix is stored transposed.
    pub ta: bool,
}

impl AxisMatMul {
    pub(super) fn of(&self, ins: &[Meta]) -> Result<Along> {
        let [a, x] = floats(Self::NAME, ins)?;
        if a.rank() != 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 2", got: a }));
        }
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (m, k) = if self.ta { (a.dims()[1], a.dims()[0]) } else { (a.dims()[0], a.dims()[1]) };
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        if last[0] != k {
            return Err(mismatch(Self::NAME, "the matrix does not fit the last axis but one of", a, x));
        }
        Ok(Along { batch: lead.iter().product(), m, k, w: last[1], ta: self.ta })
    }
}

impl Op for AxisMatMul {
    const NAME: &'static str = "axis_matmul";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let along = self.of(ins)?;
        let x = ins[1].shape;
        // An array on the stack: the epilogue asks for this shape in every run.
        let mut out = [0; MAX_RANK];
        out[..x.rank()].copy_from_slice(x.dims());
        out[x.rank() - 2] = along.m;
        Ok(Meta::f32(Shape::new(&out[..x.rank()])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match (self.of(ins), device.as_cuda()) {
            (Ok(along), Some(cuda)) => along.workspace(&Gpu::of(cuda)),
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(along) = self.of(run.metas) {
            along.cpu(run.pool, run.simd, run.ins[0], run.ins[1], run.out);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run, run.ins[0], run.ins[1], run.out, run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |along| along.modules(gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        match (self.of(ins), self.shape(ins)) {
            (Ok(along), Ok(out)) => Fusion::product(along.k, out.shape.numel()),
            _ => Fusion::default(),
        }
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        Some(self.of(ins).ok()?.modules(gpu, Some(fused.only_epilogue()?)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dA = Σ_b dy[b] x[b]^T, or its transpose; dx[b] = op(A)^T dy[b]
        let (a, x) = (io.ins[0], io.ins[1]);
        let along = self.of(&[r.meta(a), r.meta(x)])?;
        let dx = r.record(AxisMatMul { ta: !self.ta }.into(), &[a, dy])?;
        let x3 = layout::reshape_to(r, x, Shape::new(&[along.batch, along.k, along.w])?)?;
        let g3 = layout::reshape_to(r, dy, Shape::new(&[along.batch, along.m, along.w])?)?;
        let (left, right) = if self.ta { (x3, g3) } else { (g3, x3) };
        let each = r.record(Bmm { ta: false, tb: true }.into(), &[left, right])?;
        let da = r.record(Sum::new(&[0])?.into(), &[each])?;
        Ok(vec![Some(da), Some(dx)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (a, x) = (ins[0].num()?, ins[1].num()?);
        let metas = [ins[0].meta(), ins[1].meta()];
        let Along { m, k, w, ta, .. } = self.of(&metas)?;
        Ok(Tensor::from_fn(self.shape(&metas)?.shape, |at| {
            let (b, i, j) = (at / w / m, at / w % m, at % w);
            (0..k).fold(T::c(0.0), |sum, l| {
                sum + a.data()[if ta { l * m + i } else { i * k + l }] * x.data()[(b * k + l) * w + j]
            })
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("ta", Attr::Bool(self.ta))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<AxisMatMul> {
        attrs.only(&["ta"])?;
        Ok(AxisMatMul { ta: attrs.flag("ta")? })
    }
}
