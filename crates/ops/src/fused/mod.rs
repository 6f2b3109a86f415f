//! [`Fused`]: a product, convolution, softmax or norm with an elementwise program after it, which on a GPU is computed
//! before the results are written, in the op's own kernel.

#[cfg(feature = "cases")]
mod cases;

use crate::led::Lead;
use crate::pointwise::map;
use crate::pointwise::map::{Access, Map, access};
use crate::pointwise::program::Program;
use crate::{AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::fmt::Write;
use std::sync::Arc;

/// `program(base(ins…), others…)`, element by element; the others are broadcast by NumPy's rule. Several results lie
/// one behind the other in a flat value, as those of a [`Map`].
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// The op before.
    pub base: Box<AnyOp>,
    /// How many of the inputs are its own; they come first.
    pub inputs: usize,
    /// What follows. Its first input is the op's value.
    pub program: Arc<Program>,
    /// The shape of each result, which has the elements of the op's value.
    pub shape: Shape,
}

/// Whether a program can follow an op.
#[doc(hidden)]
pub fn can_follow(op: &AnyOp) -> bool {
    use AnyOp::{AxisMatMul, Bmm, Conv, ConvTranspose, Linear, MatMul};
    matches!(op, MatMul(_) | Bmm(_) | Linear(_) | AxisMatMul(_) | Conv(_) | ConvTranspose(_)) || has_rows(op)
}

/// Whether an op is one of rows: it takes as long as its bytes do, and every element that need not be written and read again
/// is a gain.
pub(crate) fn has_rows(op: &AnyOp) -> bool {
    use AnyOp::{LayerNorm, Led, LogSoftmax, LogSoftmaxBwd, RmsNorm, Softmax, SoftmaxBwd};
    match op {
        Softmax(_) | LogSoftmax(_) | SoftmaxBwd(_) | LogSoftmaxBwd(_) | LayerNorm(_) | RmsNorm(_) => true,
        Led(led) => has_rows(&led.base),
        _ => false,
    }
}

/// The most weight of a program after an op. A kernel of few threads, as that of a product is, takes longer for more than
/// a kernel of its own that reads the sums again (measured).
#[doc(hidden)]
pub fn most_weight(op: &AnyOp) -> usize {
    if has_rows(op) { 64 } else { 16 }
}

/// The most terms of a sum, and the most results, with which it pays to read other inputs in the kernel of a product. A
/// program that reads nothing else costs nothing there; one that does takes as long as by itself, or longer where it
/// makes the compiler arrange the main loop less well (measured), so that only the launch is saved.
const FEW_TERMS: usize = 256;

const FEW_RESULTS: usize = 1 << 18;

/// Whether it pays to let a program that reads other inputs follow `op`.
#[doc(hidden)]
pub fn pays(op: &AnyOp, ins: &[Meta]) -> bool {
    if has_rows(op) {
        return true;
    }
    let Some(results) = op.shape(ins).ok().map(|m| m.shape.numel()) else { return false };
    // Elements of the second operand for each result along its other axis.
    let (b, last) = (ins[1].shape, ins[1].shape.last());
    let terms = match op {
        AnyOp::MatMul(p) if p.tb => last,
        AnyOp::Bmm(p) if p.tb => last,
        AnyOp::Linear(_) => last,
        AnyOp::MatMul(_) | AnyOp::Bmm(_) => {
            b.numel() / last.max(1) / if b.rank() == 3 { b.dims()[0].max(1) } else { 1 }
        }
        AnyOp::AxisMatMul(_) => b.dims()[b.rank() - 2],
        AnyOp::Conv(_) => b.numel() / b.dims()[0].max(1),
        _ => b.numel() / b.dims()[1].max(1),
    };
    terms <= FEW_TERMS || results <= FEW_RESULTS
}

/// Stores what the program makes of a single result, at its place and column.
const STORE: &str = "__device__ __forceinline__ void follow_store(const Follow& f, float* out, unsigned long long at, unsigned long long column, float v) {
float from[FOLLOW_X + 1], to[FOLLOW_Y];
from[0] = v;
#pragma unroll
for (int i = 0; i < FOLLOW_X; ++i) from[i + 1] = f.x[i][follow_reads(i) == 2 ? 0 : follow_reads(i) == 1 ? column : at];
follow(from, to);
out[at] = to[0];
#pragma unroll
for (int k = 1; k < FOLLOW_Y; ++k) f.y[k - 1][at] = to[k];
}
";

/// How a kernel reads another input of the program that follows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// At the place of the result.
    Place = 0,
    /// At its column.
    Column = 1,
    /// Always the same element.
    Single = 2,
}

/// A program that follows the sums of a kernel, as CUDA text and arguments.
#[derive(Debug)]
pub struct Follow {
    text: String,
    /// Names the text.
    tag: String,
    /// Whether an input is read by column.
    by_column: bool,
    /// Where the other inputs lie, then the results but for the first.
    addresses: Vec<u64>,
}

impl Follow {
    /// What goes before the kernel's text, and a name for it.
    pub(crate) fn text(&self) -> (&str, &str) {
        (&self.tag, &self.text)
    }

    /// Whether an input is read by column.
    pub(crate) fn by_column(&self) -> bool {
        self.by_column
    }

    /// Appends the kernel's last argument.
    pub(crate) fn push(&self, args: &mut Args) {
        args.bytes(bytemuck::cast_slice(&self.addresses), 8);
    }
}

/// Programs that are to be part of an op's own kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Around<'a> {
    /// Before it reads one of its inputs.
    pub lead: Option<&'a Lead>,
    /// Behind its results.
    pub follow: Option<&'a Follow>,
}

impl<'a> Around<'a> {
    /// The program behind the results, for kernels that take no other.
    pub(crate) fn only_follow(self) -> Option<&'a Follow> {
        self.follow.filter(|_| self.lead.is_none())
    }

    /// What goes before the kernel's text, and an end for its name.
    pub(crate) fn text(self) -> (String, String) {
        let texts = [self.lead.map(Lead::text), self.follow.map(Follow::text)];
        texts
            .into_iter()
            .flatten()
            .fold(Default::default(), |(name, all), (tag, text)| (format!("{name}_{tag}"), all + text))
    }

    /// Appends the kernel's last arguments.
    pub(crate) fn push(self, args: &mut Args) {
        if let Some(lead) = self.lead {
            lead.push(args);
        }
        if let Some(follow) = self.follow {
            follow.push(args);
        }
    }
}

impl Fused {
    /// How the others are read, if a kernel can do that: `columns` is the length of the value's last axis.
    fn reads(&self, ins: &[Meta]) -> Option<Vec<Reads>> {
        let columns = self.base.shape(&ins[..self.inputs]).ok()?.shape.last();
        let of = |m: &Meta| {
            let (n, dims) = (m.shape.numel(), self.shape.dims());
            if n == self.shape.numel() {
                return Some(Reads::Place);
            }
            match n {
                1 => Some(Reads::Single),
                _ if n == columns && dims.last() == Some(&n) && m.shape.last() == n => Some(Reads::Column),
                _ => None,
            }
        };
        ins[self.inputs..].iter().map(of).collect()
    }

    /// Whether kernels that the program is part of can read its other inputs.
    #[doc(hidden)]
    pub fn is_readable(&self, ins: &[Meta]) -> bool {
        self.reads(ins).is_some()
    }

    /// The program as part of a kernel, if it can be: the inputs' and the output's addresses may be 0 where only the
    /// text is wanted.
    fn follow(&self, ins: &[Meta], addresses: &[u64], out: u64) -> Option<Follow> {
        let reads = self.reads(ins)?;
        let (others, results) = (reads.len(), self.program.outputs());
        let mut t = format!(
            "{}#define DITTO_FOLLOW 1\n#define FOLLOW_X {others}\n#define FOLLOW_Y {results}\n",
            map::prelude()
        );
        let _ = writeln!(
            t,
            "struct Follow {{ const float* x[{}]; float* y[{}]; }};",
            others.max(1),
            results.max(2) - 1
        );
        let list: Vec<String> = reads.iter().map(|r| (*r as usize).to_string()).collect();
        let choice: String = list.iter().enumerate().map(|(i, r)| format!("i == {i} ? {r} : ")).collect();
        let _ = writeln!(
            t,
            "__device__ __forceinline__ constexpr int follow_reads(int i) {{ return {choice}0; }}"
        );
        let _ = writeln!(
            t,
            "__device__ __forceinline__ void follow(const float (&from)[{}], float (&to)[{results}]) {{",
            others + 1
        );
        for i in 0..=others {
            let _ = writeln!(t, "const float x{i} = from[{i}];");
        }
        t.push_str(&self.program.cuda_constants());
        t.push_str(&self.program.cuda());
        for k in 0..results {
            let _ = writeln!(t, "to[{k}] = y{k};");
        }
        t.push_str("}\n");
        t.push_str(STORE);
        let words = self.shape.numel() as u64;
        let mut all = addresses[self.inputs.min(addresses.len())..].to_vec();
        all.resize(others.max(1), 0);
        all.extend((1..results.max(2) as u64).map(|k| out + 4 * k * words));
        let tag = blake3::hash(t.as_bytes()).to_hex()[..12].to_string();
        Some(Follow { text: t, tag, by_column: reads.contains(&Reads::Column), addresses: all })
    }

    /// Runs the op, by `base_cpu`, then the program.
    fn run_cpu(&self, run: CpuRun<'_>, base_cpu: impl Fn(CpuRun<'_>)) {
        let CpuRun { pool, simd, metas, ins, out, workspace, .. } = run;
        let (base, others) = ins.split_at(self.inputs);
        let Ok(value) = self.base.shape(&metas[..self.inputs]) else { return };
        base_cpu(CpuRun {
            pool,
            simd,
            metas: &metas[..self.inputs],
            ins: base,
            shape: value.shape,
            out: &mut out[..self.shape.numel()],
            workspace,
        });
        let metas = &metas[self.inputs..];
        let accesses = map::accesses(metas, &self.shape);
        let run = CpuRun { pool, simd, metas, ins: others, shape: self.shape, out, workspace: &mut [] };
        map::follow_cpu(&self.program, accesses.all(), run);
    }

    /// How the program alone reads its inputs, in place, behind kernels that it cannot be part of.
    fn alone(&self, ins: &[Meta]) -> Vec<Access> {
        let mut accesses = vec![access(&self.shape, &self.shape)];
        accesses.extend(map::accesses(&ins[self.inputs..], &self.shape).all());
        accesses
    }
}

impl Op for Fused {
    const NAME: &'static str = "fused";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let want = self.inputs + self.program.inputs().saturating_sub(1);
        if ins.len() != want || self.program.inputs() == 0 {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want, got: ins.len() }));
        }
        if !can_follow(&self.base) {
            let what = format!("a program cannot follow {}", self.base.name());
            return Err(Error::unsupported(Self::NAME, what));
        }
        let value = self.base.shape(&ins[..self.inputs])?.shape;
        if value.numel() != self.shape.numel() {
            return Err(crate::mismatch(
                Self::NAME,
                "elements of the value and the result differ",
                value,
                self.shape,
            ));
        }
        let mut all = vec![Meta::f32(self.shape)];
        all.extend_from_slice(&ins[self.inputs..]);
        Map { program: self.program.clone(), shape: self.shape }.shape(&all)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.base.workspace(&ins[..self.inputs], device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        self.run_cpu(run, |run| self.base.cpu(run));
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let base = self.base.prepared(&ins[..self.inputs])?;
        let this = self.clone();
        Some(Box::new(move |run| this.run_cpu(run, &base)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (metas, ins) = (&run.metas[..self.inputs], &run.ins[..self.inputs]);
        let shape = self.base.shape(metas)?.shape;
        let base = CudaRun { metas, ins, shape, ..*run };
        let follow = self.follow(run.metas, run.ins, run.out);
        let around = Around { follow: follow.as_ref(), ..run.around };
        if follow.is_some() && self.base.joined(metas, &Gpu::of(run.cuda), around).is_some() {
            return self.base.cuda(&CudaRun { around, ..base });
        }
        self.base.cuda(&base)?;
        let accesses = self.alone(run.metas);
        let ins = [&[run.out], &run.ins[self.inputs..]].concat();
        map::run_cuda(&self.program, &accesses, &CudaRun { ins: &ins, shape: self.shape, ..*run })
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let metas = &ins[..self.inputs];
        let follow = self.follow(ins, &[], 0);
        let joined = follow.and_then(|f| {
            let around = Around { lead: None, follow: Some(&f) };
            self.base.joined(metas, gpu, around)
        });
        joined.unwrap_or_else(|| {
            let mut modules = self.base.cuda_modules(metas, gpu);
            modules.push(map::module(&self.program, &self.shape, &self.alone(ins)));
            modules
        })
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // As the two ops it is made of; the value between them was not kept.
        let (own, others) = io.ins.split_at(self.inputs);
        let value = r.record((*self.base).clone(), own)?;
        let shaped = crate::layout::reshape_to(r, value, self.shape)?;
        let map = Map { program: self.program.clone(), shape: self.shape };
        let ins = [&[shaped], others].concat();
        let mut grads = map.vjp(r, Io { ins: &ins, out: io.out }, dy)?;
        let rest = grads.split_off(1);
        let mut all = match grads[0] {
            None => vec![None; self.inputs],
            Some(g) => {
                let to = r.meta(value).shape;
                let g = crate::layout::reshape_to(r, g, to)?;
                self.base.vjp(r, Io { ins: own, out: value }, g)?
            }
        };
        all.extend(rest);
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let value = self.base.reference(&ins[..self.inputs])?;
        let mut all = vec![AnyTensor::Num(Tensor::with_shape(self.shape, value.data().to_vec())?)];
        all.extend_from_slice(&ins[self.inputs..]);
        Map { program: self.program.clone(), shape: self.shape }.reference(&all)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("steps", Attr::Num(self.program.steps().len() as f64)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Fused> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}
