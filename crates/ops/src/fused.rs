//! [`Fused`]: a product, convolution, softmax or norm with an elementwise program after it, which on a GPU is computed
//! before the results are written, in the op's own kernel.

use super::led::{Lead, Led};
use super::map::{self, Access, Map, access};
use super::matmul::{Linear, MatMul};
use super::program::Program;
use super::spectral::AxisMatMul;
use super::{
    AnyOp, AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Reject, Sample,
    SampleIn, Val, conv, dims,
};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
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
            return Err(super::mismatch(
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
        let shaped = super::layout::reshape_to(r, value, self.shape)?;
        let map = Map { program: self.program.clone(), shape: self.shape };
        let ins = [&[shaped], others].concat();
        let mut grads = map.vjp(r, Io { ins: &ins, out: io.out }, dy)?;
        let rest = grads.split_off(1);
        let mut all = match grads[0] {
            None => vec![None; self.inputs],
            Some(g) => {
                let to = r.meta(value).shape;
                let g = super::layout::reshape_to(r, g, to)?;
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

    fn samples() -> Vec<Sample<Fused>> {
        let any = |d: &[usize]| SampleIn::any(dims(d));
        let mut all = Vec::new();
        // Tiles of every size, several chunks in one block and in blocks of their own, and edges; the others at the
        // place, by column, single, and as only the CPU and the program alone can read them.
        for (m, n, k) in
            [(1, 1, 1), (17, 31, 33), (64, 68, 40), (4, 8, 2049), (130, 132, 1030), (0, 4, 3), (4, 5, 0)]
        {
            for (results, others) in
                [(1, [&[m, n][..], &[n]]), (3, [&[n], &[m, n]]), (2, [&[1], &[m, 1]]), (1, [&[m, 1], &[]])]
            {
                if results > 1 && m * n % 4 != 0 {
                    continue;
                }
                let ins = vec![any(&[m, k]), any(&[k, n]), any(others[0]), any(others[1])];
                all.push(Sample {
                    op: Fused::sample(MatMul { ta: false, tb: false }, 2, results, &[m, n]),
                    ins,
                });
            }
            let ins = vec![any(&[m, k]), any(&[n, k]), any(&[n]), any(&[m, n]), any(&[])];
            all.push(Sample { op: Fused::sample(Linear, 3, 1, &[m, n]), ins });
        }
        for (i, sample) in conv::Conv::samples().into_iter().enumerate().step_by(3) {
            let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
            let Ok(value) = sample.op.shape(&metas) else { continue };
            let d = value.shape.dims().to_vec();
            let results = if value.shape.numel().is_multiple_of(4) { 1 + i % 2 } else { 1 };
            let inputs = sample.ins.len();
            let mut ins = sample.ins;
            ins.extend([any(&d), any(&[])]);
            all.push(Sample { op: Fused::sample(sample.op, inputs, results, &d), ins });
        }
        for (b, k, w) in [(3, 33, 8), (2, 40, 1), (5, 2050, 4), (1, 7, 5)] {
            let (d, ins) = ([b, 6, w], vec![any(&[6, k]), any(&[b, k, w]), any(&[b, 6, w]), any(&[w])]);
            let op = Fused::sample(AxisMatMul { ta: false }, 2, if b * w % 2 == 0 { 2 } else { 1 }, &d);
            all.push(Sample { op, ins });
        }
        // The value under another shape.
        let op = Fused::sample(MatMul { ta: true, tb: false }, 2, 2, &[2, 3, 4]);
        all.push(Sample { op, ins: vec![any(&[5, 6]), any(&[5, 4]), any(&[2, 3, 4]), any(&[4])] });
        // Rows in registers, with and without a tail, and rows that are not.
        for (m, n) in [(5, 1), (3, 32), (7, 33), (4, 300), (2, 1024), (3, 1030), (0, 4)] {
            let results = if (m * n) % 4 == 0 { 2 } else { 1 };
            let (x, column) = (any(&[m, n]), any(&[n]));
            let others = vec![column.clone(), any(&[m, n])];
            let with = |own: Vec<SampleIn>| [own, others.clone()].concat();
            let rows = |op: AnyOp, own: Vec<SampleIn>| Sample {
                op: Fused::sample(op, own.len(), results, &[m, n]),
                ins: with(own),
            };
            all.push(rows(super::softmax::Softmax.into(), vec![x.clone()]));
            all.push(rows(super::softmax::LogSoftmaxBwd.into(), vec![x.clone(), x.clone()]));
            let norm = super::norm::LayerNorm { axes: 1, eps: 1e-5 };
            all.push(rows(norm.into(), vec![x.clone(), column.clone(), column.clone()]));
            let norm = super::norm::RmsNorm { axes: 1, eps: 1e-5 };
            all.push(rows(norm.into(), vec![x.clone()]));
            // A program before as well.
            let led = Led { shape: dims(&[m, n]), ..Led::scaled(super::softmax::Softmax) };
            all.push(rows(led.into(), vec![x, any(&[])]));
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<Fused>> {
        let base = MatMul::random(stream)?;
        let metas: Vec<Meta> = base.ins.iter().map(SampleIn::meta).collect();
        let d = base.op.shape(&metas).ok()?.shape.dims().to_vec();
        let several = (d[0] * d[1]).is_multiple_of(4) && stream.below(2) == 0;
        let mut ins = base.ins;
        for _ in 0..2 {
            let other = [&d[..], &d[1..], &[]][stream.below(3)];
            ins.push(SampleIn::any(dims(other)));
        }
        Some(Sample { op: Fused::sample(base.op, 2, if several { 3 } else { 1 }, &d), ins })
    }

    fn rejects() -> Vec<Reject<Fused>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Fused::sample(MatMul { ta: false, tb: false }, 2, 1, &[2, 3]);
        let ins = |other: Meta| vec![f(&[2, 4]), f(&[4, 3]), other, f(&[])];
        let of = |base: AnyOp| Fused { base: Box::new(base), ..op.clone() };
        vec![
            Reject { op: op.clone(), ins: vec![f(&[2, 4]), f(&[4, 3])], want: "Arity" },
            Reject { op: Fused { shape: dims(&[2, 4]), ..op.clone() }, ins: ins(f(&[])), want: "Shapes" },
            Reject { op: of(super::elementwise::Add {}.into()), ins: ins(f(&[])), want: "Unsupported" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let base = self.base.bound(&ins[..self.inputs]);
        Bound { ulps: 4.0 + base.ulps, terms: 16.0 + 4.0 * base.terms }
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

impl Fused {
    fn sample(base: impl Into<AnyOp>, inputs: usize, results: usize, shape: &[usize]) -> Fused {
        let program = Arc::new(map::sample_formula(results));
        Fused { base: Box::new(base.into()), inputs, program, shape: dims(shape) }
    }
}
