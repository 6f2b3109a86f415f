//! Matrix products: every output is a dot product in the fixed order of the contract. Transposes
//! are flags, never copies.

#[cfg(feature = "cases")]
mod cases;
mod digits;
pub(crate) mod plan;

use crate::fused::{EpilogueCode, FusedCode, Fusion};
use crate::matmul::plan::{MatmulPlan, Problem, plan};
use crate::reduce::Sum;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Known, Op, Recorder, Val, floats, known, layout,
    mismatch,
};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use dittograd_numerics::{K_CHUNK, Numerics};
use std::sync::Arc;

const MATMUL_CU: &str =
    concat!(include_str!("../tensor.cu"), include_str!("results.cu"), include_str!("matmul.cu"));

/// A plan, and its kernels where no program follows.
pub(crate) struct Planned {
    pub plan: MatmulPlan,
    product: Source,
    reduce: Option<Source>,
}

/// How a product runs.
pub(crate) fn planned(problem: &Problem, gpu: &Gpu) -> Arc<Planned> {
    static KNOWN: Known<(Problem, Gpu), Arc<Planned>> = Known::new(Default::default);
    known(&KNOWN, (*problem, *gpu), |(problem, gpu)| {
        let plan = plan(problem, gpu);
        let product = source(&plan.defines, None);
        let reduce = plan.reduce.as_ref().map(|r| source(&r.defines, None));
        Arc::new(Planned { plan, product, reduce })
    })
}

impl Problem {
    fn new([batch, m, n, k]: [usize; 4], [ta, tb]: [bool; 2], has_bias: bool) -> Problem {
        // Values start at multiples of four words; batches of odd matrices do not.
        let aligned = batch <= 1 || [m * k, k * n, m * n].iter().all(|x| x.is_multiple_of(4));
        let gemm = Gemm { batch, m, n, k, ta, tb };
        Problem { gemm, aligned, has_bias, shares_a: false, tensor: true }
    }

    fn fusion(&self) -> Fusion {
        Fusion::product(self.k, self.batch * self.m * self.n)
    }

    /// The digits that it is computed in, if it is.
    fn digits(&self, numerics: Numerics) -> Option<Digits> {
        Digits::of_product(numerics, self.m, self.n, self.k).filter(|_| self.tensor)
    }

    /// Words that it needs on a GPU.
    pub(crate) fn gpu_workspace(&self, gpu: &Gpu) -> usize {
        match self.digits(gpu.numerics) {
            _ if self.batch * self.m * self.n == 0 => 0,
            None => planned(self, gpu).plan.workspace,
            Some(digits) => digits::planned(self, digits, gpu).workspace,
        }
    }

    pub(crate) fn workspace(&self, device: &Device) -> usize {
        match (device.as_cuda(), self.digits(device.numerics())) {
            (Some(cuda), _) => self.gpu_workspace(&Gpu::of(cuda)),
            (None, None) => self.gemm.scratch_len(device.threads()),
            (None, Some(digits)) => self.gemm.digits_scratch_len(digits),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let CpuRun { pool, simd, ins, out, workspace, .. } = run;
        let bias = self.has_bias.then(|| ins[2]);
        match self.digits(run.numerics) {
            None => self.gemm.run(pool, simd, ins[0], ins[1], bias, out, workspace),
            Some(digits) => self.gemm.run_digits(digits, pool, simd, ins[0], ins[1], bias, out, workspace),
        }
    }

    /// Queues the product of these operands.
    pub(crate) fn cuda(&self, operands: [u64; 2], run: &CudaRun<'_>) -> Result<()> {
        let total = self.batch * self.m * self.n;
        if total == 0 {
            return Ok(());
        }
        if let Some(digits) = self.digits(run.cuda.numerics()) {
            return digits::planned(self, digits, &Gpu::of(run.cuda)).launch(self, operands, run);
        }
        let planned = planned(self, &Gpu::of(run.cuda));
        let plan = &planned.plan;
        let bias = if self.has_bias { run.ins[2] } else { 0 };
        let (first, last) =
            if plan.reduce.is_some() { (None, run.fused.epilogue) } else { (run.fused.epilogue, None) };
        let own = first.map(|epilogue| source(&plan.defines, Some(epilogue)));
        let (module, text) = own.as_ref().unwrap_or(&planned.product);
        let kernel = run.cuda.kernel(module, text, plan.kernel)?;
        let mut args = Args::new();
        args.ptr(operands[0])
            .ptr(operands[1])
            .ptr(if plan.reduce.is_some() { run.workspace } else { run.out })
            .ptr(bias);
        let stride_a = if self.shares_a { 0 } else { self.m * self.k };
        for x in [self.m, self.n, self.k, self.batch, stride_a, self.k * self.n, plan.slice, plan.parts] {
            args.u64(x as u64);
        }
        if let Some(epilogue) = first {
            epilogue.push(&mut args);
        }
        run.cuda.launch(kernel, plan.grid, plan.block, plan.shared, &args)?;
        if let (Some(reduce), Some(plain)) = (&plan.reduce, &planned.reduce) {
            let own = last.map(|epilogue| source(&reduce.defines, Some(epilogue)));
            let (module, text) = own.as_ref().unwrap_or(plain);
            let kernel = run.cuda.kernel(module, text, reduce.kernel)?;
            let mut args = Args::new();
            args.ptr(run.workspace).ptr(run.out).ptr(bias);
            args.u64(total as u64).u64(self.n as u64).u64(plan.parts as u64);
            if let Some(epilogue) = last {
                epilogue.push(&mut args);
            }
            run.cuda.launch(kernel, reduce.grid, reduce.block, 0, &args)?;
        }
        Ok(())
    }

    pub(crate) fn modules(&self, gpu: &Gpu, epilogue: Option<&EpilogueCode>) -> Vec<Source> {
        if self.batch * self.m * self.n == 0 {
            return Vec::new();
        }
        if let Some(digits) = self.digits(gpu.numerics) {
            return digits::planned(self, digits, gpu).modules(epilogue);
        }
        let plan = &planned(self, gpu).plan;
        let first = if plan.reduce.is_some() { None } else { epilogue };
        let mut modules = vec![source(&plan.defines, first)];
        modules.extend(plan.reduce.iter().map(|r| source(&r.defines, epilogue)));
        modules
    }

    fn reference<T: Scalar>(&self, a: &[T], b: &[T], bias: Option<&[T]>) -> Vec<T> {
        let Gemm { batch, m, n, k, ta, tb } = self.gemm;
        let mut out = Vec::with_capacity(batch * m * n);
        for t in 0..batch {
            let (a, b) = (&a[t * m * k..], &b[t * k * n..]);
            for i in 0..m {
                for j in 0..n {
                    let mut sum = T::c(0.0);
                    for l in 0..k {
                        let x = a[if ta { l * m + i } else { i * k + l }];
                        let y = b[if tb { j * k + l } else { l * n + j }];
                        sum = sum + x * y;
                    }
                    out.push(bias.map_or(sum, |bias| sum + bias[j]));
                }
            }
        }
        out
    }
}

/// A variant of the kernels: a name of its own, and the text.
pub(crate) fn source(defines: &str, epilogue: Option<&EpilogueCode>) -> Source {
    variant("matmul", defines, "", epilogue)
}

/// A variant of the kernels and of what is made of them: a name of its own, and the text.
pub(crate) fn variant(family: &str, defines: &str, more: &str, epilogue: Option<&EpilogueCode>) -> Source {
    text(family, defines, epilogue, |before| {
        format!("#define CHUNK {K_CHUNK}\n{defines}{before}{MATMUL_CU}{more}")
    })
}

/// A variant that `defines` pick: a name of its own, and the text with the epilogue's.
pub(crate) fn text(
    family: &str,
    defines: &str,
    epilogue: Option<&EpilogueCode>,
    whole: impl FnOnce(&str) -> String,
) -> Source {
    let name: Vec<&str> = defines.split_whitespace().filter(|w| !w.starts_with("#define")).collect();
    let name = name.join("_").replace("DITTO_", "").to_lowercase();
    let (tag, before) = epilogue.map_or(("", ""), EpilogueCode::text);
    let name = format!("{family}_{name}{}{tag}", if tag.is_empty() { "" } else { "_" });
    crate::module(name, || whole(before))
}

/// Rows and columns of a matrix after its transpose flag.
fn oriented(rows: usize, columns: usize, transposed: bool) -> (usize, usize) {
    if transposed { (columns, rows) } else { (rows, columns) }
}

/// Gradients of `C = op(A) op(B)`, as products of the same kind with other flags:
/// `dA = g op(B)^T` or its transpose, `dB = op(A)^T g` or its transpose.
fn product_vjp<O: Into<crate::AnyOp>>(
    r: &mut dyn Recorder,
    make: fn(bool, bool) -> O,
    (ta, tb): (bool, bool),
    a: Val,
    b: Val,
    g: Val,
) -> Result<Vec<Option<Val>>> {
    let da = if ta {
        r.record(make(tb, true).into(), &[b, g])?
    } else {
        r.record(make(false, !tb).into(), &[g, b])?
    };
    let db = if tb {
        r.record(make(true, ta).into(), &[g, a])?
    } else {
        r.record(make(!ta, false).into(), &[a, g])?
    };
    Ok(vec![Some(da), Some(db)])
}

macro_rules! product_op {
    ($(#[$doc:meta])* $op:ident $name:literal batched: $batched:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            /// The first operand is stored transposed.
            pub ta: bool,
            /// The second operand is stored transposed.
            pub tb: bool,
        }

        impl $op {
            fn product(&self, a: Shape, b: Shape) -> Result<Problem> {
                let lead = usize::from($batched);
                for s in [a, b] {
                    if s.rank() != lead + 2 {
                        let want = if $batched { "exactly 3" } else { "exactly 2" };
                        return Err(Error::new($name, ErrorKind::Rank { want, got: s }));
                    }
                }
                let batch = if $batched { a.dims()[0] } else { 1 };
                if $batched && b.dims()[0] != batch {
                    return Err(mismatch($name, "batch sizes differ", a, b));
                }
                let (m, k) = oriented(a.dims()[lead], a.dims()[lead + 1], self.ta);
                let (kb, n) = oriented(b.dims()[lead], b.dims()[lead + 1], self.tb);
                if k != kb {
                    let why = match (self.ta, self.tb) {
                        (false, false) => "columns of the left and rows of the right differ",
                        (true, false) => "with the left transposed, rows of both must be equal",
                        (false, true) => "with the right transposed, columns of both must be equal",
                        (true, true) => "with both transposed, rows of the left and columns of the right differ",
                    };
                    return Err(mismatch($name, why, a, b));
                }
                Ok(Problem::new([batch, m, n, k], [self.ta, self.tb], false))
            }

            fn of(&self, ins: &[Meta]) -> Result<Problem> {
                let [a, b] = floats($name, ins)?;
                self.product(a, b)
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let p = self.of(ins)?;
                let all = [p.batch, p.m, p.n];
                Ok(Meta::f32(Shape::new(if $batched { &all } else { &all[1..] })?))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                self.of(ins).map_or(0, |p| p.workspace(device))
            }

            fn cpu(&self, run: CpuRun<'_>) {
                if let Ok(p) = self.of(run.metas) {
                    p.cpu(run);
                }
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.of(run.metas)?.cuda([run.ins[0], run.ins[1]], run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                self.of(ins).map_or(Vec::new(), |p| p.modules(gpu, None))
            }

            fn fusion(&self, ins: &[Meta]) -> Fusion {
                self.of(ins).map_or(Fusion::default(), |p| p.fusion())
            }

            fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
                Some(self.of(ins).ok()?.modules(gpu, Some(fused.only_epilogue()?)))
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                product_vjp(r, |ta, tb| $op { ta, tb }, (self.ta, self.tb), io.ins[0], io.ins[1], dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                let shape = self.shape(&metas)?.shape;
                Tensor::with_shape(shape, self.of(&metas)?.reference(ins[0].num()?.data(), ins[1].num()?.data(), None))
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("ta", Attr::Bool(self.ta)), ("tb", Attr::Bool(self.tb))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["ta", "tb"])?;
                Ok($op { ta: attrs.flag("ta")?, tb: attrs.flag("tb")? })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let mut all = Vec::new();
                // Sizes around the tiles of both devices, a product with several chunks, empty ones, and one for digits.
                let sizes = [(1, 1, 1), (2, 3, 4), (17, 31, 33), (65, 64, 63), (128, 10, 257), (3, 2, 2049), (4, 5, 0), (0, 3, 2), (1, 129, 100), (130, 132, 68), (128, 130, 127)];
                for (i, (m, n, k)) in sizes.into_iter().enumerate() {
                    let batch = [2, 3, 1][i % 3];
                    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                        let (a, b) = (oriented(m, k, ta), oriented(k, n, tb));
                        let (a, b) = ([batch, a.0, a.1], [batch, b.0, b.1]);
                        let from = usize::from(!$batched);
                        let ins = vec![crate::SampleIn::any(crate::dims(&a[from..])), crate::SampleIn::any(crate::dims(&b[from..]))];
                        all.push(crate::Sample::new($op { ta, tb }, ins));
                    }
                }
                all
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let batch = if $batched { crate::cases::pick(&[1, 2, 3, 8], stream) } else { 1 };
                let (m, n, k) = cases::random_sizes(batch, stream);
                let (ta, tb) = (stream.below(2) == 1, stream.below(2) == 1);
                let (a, b) = (oriented(m, k, ta), oriented(k, n, tb));
                let from = usize::from(!$batched);
                Some(crate::cases::sample($op { ta, tb }, &[&[batch, a.0, a.1][from..], &[batch, b.0, b.1][from..]]))
            }

            fn rejects() -> Vec<crate::Reject> {
                let op = $op { ta: false, tb: false };
                let f = |d: &[usize]| Meta::f32(crate::dims(&[&[2][..usize::from($batched)], d].concat()));
                let mut bad = vec![
                    crate::Reject::new(op, vec![f(&[2, 3])], "Arity"),
                    crate::Reject::new(op, vec![f(&[2, 3]), f(&[4, 5])], "Shapes"),
                    crate::Reject::new($op { ta: true, tb: false }, vec![f(&[2, 3]), f(&[3, 5])], "Shapes"),
                    crate::Reject::new(op, vec![f(&[3]), f(&[3, 5])], "Rank"),
                    crate::Reject::new(op, vec![f(&[2, 3]), Meta { dtype: dittograd_device::DType::U32, ..f(&[3, 5]) }], "DType"),
                ];
                if $batched {
                    let ins = vec![Meta::f32(crate::dims(&[2, 3, 4])), Meta::f32(crate::dims(&[3, 4, 5]))];
                    bad.push(crate::Reject::new(op, ins, "Shapes"));
                }
                bad
            }

            fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
                vec![vec![0], vec![1]]
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                self.of(ins).map_or(crate::Bound::EXACT, |p| p.bound())
            }

            fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
                let p = self.of(ins).ok()?;
                Some((p.digits(numerics)?, p.k))
            }
        }
    };
}

product_op! {
    /// Product of two matrices, `(M, K)` by `(K, N)`; with a flag set the operand is stored transposed.
    MatMul "matmul" batched: false
}

product_op! {
    /// Product of two batches of matrices, `(B, M, K)` by `(B, K, N)`.
    Bmm "bmm" batched: true
}

/// `y = x W^T + b` with `x (…, in)`, `W (out, in)`, `b (out)` and any leading axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear;

impl Linear {
    fn of(ins: &[Meta]) -> Result<Problem> {
        let [x, w, b] = floats(Self::NAME, ins)?;
        if x.rank() == 0 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 1", got: x }));
        }
        if w.rank() != 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 2", got: w }));
        }
        if x.last() != w.dims()[1] {
            return Err(mismatch(
                Self::NAME,
                "the last axis of the input and of the weight (outputs, inputs) differ",
                x,
                w,
            ));
        }
        if b.dims() != [w.dims()[0]] {
            return Err(mismatch(Self::NAME, "the bias needs one number for each row of the weight", w, b));
        }
        Ok(Problem::new([1, x.rows(), w.dims()[0], x.last()], [false, true], true))
    }
}

impl Op for Linear {
    const NAME: &'static str = "linear";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let p = Linear::of(ins)?;
        let (mut out, rank) = ([0; MAX_RANK], ins[0].shape.rank());
        out[..rank].copy_from_slice(ins[0].shape.dims());
        if let Some(last) = out[..rank].last_mut() {
            *last = p.n;
        }
        Ok(Meta::f32(Shape::new(&out[..rank])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        Linear::of(ins).map_or(0, |p| p.workspace(device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(p) = Linear::of(run.metas) {
            p.cpu(run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        Linear::of(run.metas)?.cuda([run.ins[0], run.ins[1]], run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        Linear::of(ins).map_or(Vec::new(), |p| p.modules(gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        Linear::of(ins).map_or(Fusion::default(), |p| p.fusion())
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        Some(Linear::of(ins).ok()?.modules(gpu, Some(fused.only_epilogue()?)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // With all leading axes as rows: dx = g W, dW = g^T x, db = Σ_rows g
        let (x, w) = (io.ins[0], io.ins[1]);
        let (xs, ys) = (r.meta(x).shape, r.meta(dy).shape);
        let x2 = layout::reshape_to(r, x, Shape::new(&[xs.rows(), xs.last()])?)?;
        let g2 = layout::reshape_to(r, dy, Shape::new(&[ys.rows(), ys.last()])?)?;
        let dx = r.record(MatMul { ta: false, tb: false }.into(), &[g2, w])?;
        let dx = layout::reshape_to(r, dx, xs)?;
        let dw = r.record(MatMul { ta: true, tb: false }.into(), &[g2, x2])?;
        let db = r.record(Sum::new(&[0])?.into(), &[g2])?;
        Ok(vec![Some(dx), Some(dw), Some(db)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let bias = ins[2].num()?.data();
        let out = Linear::of(&metas)?.reference(ins[0].num()?.data(), ins[1].num()?.data(), Some(bias));
        Tensor::with_shape(self.shape(&metas)?.shape, out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<Linear> {
        attrs.only(&[])?;
        Ok(Linear)
    }
}
