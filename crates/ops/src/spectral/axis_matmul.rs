//! A matrix product along one axis of a value.

use crate::fused::{FusedCode, Fusion};
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
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
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
        let plain = Problem::plain(Gemm { batch, m, n: w, k, ta, tb: false }, aligned);
        Problem { shares_a: true, ..plain }
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

    /// The same in digits.
    fn cpu_digits(&self, digits: Digits, pool: &Pool, simd: Simd, a: &[f32], x: &[f32], out: &mut [f32]) {
        let g = Gemm { batch: 1, ..self.problem().gemm };
        let mut scratch = Scratch::take(g.digits_scratch_len(digits));
        if self.w == 1 {
            return g.run_digits(digits, pool, simd, x, a, None, out, scratch.words());
        }
        for (x, out) in x.chunks(self.k * self.w).zip(out.chunks_mut(self.m * self.w)) {
            g.run_digits(digits, pool, simd, a, x, None, out, scratch.words());
        }
    }

    /// Queues the product of `a` and `x`.
    pub(crate) fn cuda(&self, run: &CudaRun<'_>, a: u64, x: u64, out: u64, workspace: u64) -> Result<()> {
        self.problem().cuda(self.operands(a, x), &CudaRun { out, workspace, ..*run })
    }

    /// The operands of [`problem`](Along::problem).
    fn operands(&self, a: u64, x: u64) -> [u64; 2] {
        if self.w == 1 { [x, a] } else { [a, x] }
    }

    pub(crate) fn modules(&self, gpu: &Gpu) -> Vec<Source> {
        self.problem().modules(gpu, None)
    }
}

/// Applies a matrix along the second-to-last axis: `y[…, i, j] = Σ_l A[i, l] x[…, l, j]`, with `A` (m, k) or, if `ta`,
/// stored (k, m). Each element is a dot product by rule C4, or in modes `fast` and `turbo` by C9.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisMatMul {
    /// The matrix is stored transposed.
    pub ta: bool,
}

impl AxisMatMul {
    /// The product as the mode says: in digits in `fast` and `turbo`, in `tf32` as in `strict`.
    fn problem(along: &Along, numerics: Numerics) -> Problem {
        let p = along.problem();
        Problem { tensor: Digits::of_product(numerics, p.m, p.n, p.k).is_some(), ..p }
    }

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
            (Ok(along), Some(_)) => Self::problem(&along, device.numerics()).workspace(device),
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(along) = self.of(run.metas) else { return };
        let p = along.problem();
        let (a, x) = (run.ins[0], run.ins[1]);
        match Digits::of_product(run.numerics, p.m, p.n, p.k) {
            Some(digits) => along.cpu_digits(digits, run.pool, run.simd, a, x, run.out),
            None => along.cpu(run.pool, run.simd, a, x, run.out),
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let along = self.of(run.metas)?;
        let operands = along.operands(run.ins[0], run.ins[1]);
        Self::problem(&along, run.cuda.numerics()).cuda(operands, run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |along| Self::problem(&along, gpu.numerics).modules(gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        match (self.of(ins), self.shape(ins)) {
            (Ok(along), Ok(out)) => Fusion::product(along.k, out.shape.numel()),
            _ => Fusion::default(),
        }
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        let along = self.of(ins).ok()?;
        Some(Self::problem(&along, gpu.numerics).modules(gpu, Some(fused.only_epilogue()?)))
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
