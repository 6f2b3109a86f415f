//! [`Led`]: a softmax or norm with an elementwise program before one of its inputs, which on a GPU is computed as the op's
//! own kernel reads it.

#[cfg(feature = "cases")]
mod cases;

use crate::fused::{Around, has_rows};
use crate::pointwise::map;
use crate::pointwise::map::Map;
use crate::pointwise::program::Program;
use crate::{AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, PerInput, Recorder, Val, norm};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::fmt::Write;
use std::sync::Arc;

/// `base(ins…)` where one of the ins is `program(others…)`, element by element; the others are broadcast by NumPy's rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Led {
    /// The op behind.
    pub base: Box<AnyOp>,
    /// Which of its inputs the program makes.
    pub slot: usize,
    /// How many of the inputs are the program's; they come behind what else the op reads.
    pub inputs: usize,
    /// What comes before. It has one result.
    pub program: Arc<Program>,
    /// The shape of what it makes.
    pub shape: Shape,
}

/// Which input of an op a program can make.
#[doc(hidden)]
pub fn slot(op: &AnyOp) -> Option<usize> {
    match op {
        AnyOp::SoftmaxBwd(_) | AnyOp::LogSoftmaxBwd(_) => Some(1),
        AnyOp::MaskedSoftmax(_) => Some(0),
        AnyOp::Led(_) => None,
        op => has_rows(op).then_some(0),
    }
}

/// How a kernel reads an input of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// At the place of what it makes.
    Place,
    /// At its column.
    Column,
    /// Always the same element.
    Single,
    /// One element for each row.
    Row,
    /// At the place within so many rows, which repeat.
    Rows(u64),
}

/// A program before a kernel's loads, as CUDA text and arguments.
#[derive(Debug)]
pub struct Lead {
    text: String,
    /// Names the text.
    tag: String,
    /// Which input it makes.
    slot: usize,
    /// Where its inputs lie, then after how many rows they repeat.
    words: Vec<u64>,
}

impl Lead {
    /// What goes before the kernel's text, and a name for it.
    pub(crate) fn text(&self) -> (&str, &str) {
        (&self.tag, &self.text)
    }

    /// Which input it makes.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Appends the argument.
    pub(crate) fn push(&self, args: &mut Args) {
        args.bytes(bytemuck::cast_slice(&self.words), 8);
    }
}

impl Led {
    /// Inputs of the op that no program makes.
    fn own(&self, ins: usize) -> usize {
        ins.saturating_sub(self.inputs)
    }

    /// What the op's own inputs are, with what the program makes in its place.
    fn with<T: Copy>(&self, own: &[T], made: T) -> PerInput<T> {
        let mut all = PerInput::new(own.len() + 1, made);
        let (before, behind) = own.split_at(self.slot.min(own.len()));
        all.all_mut()[..before.len()].copy_from_slice(before);
        all.all_mut()[before.len() + 1..].copy_from_slice(behind);
        all
    }

    /// Shapes and types of the op's own inputs.
    fn metas(&self, ins: &[Meta]) -> PerInput<Meta> {
        self.with(&ins[..self.own(ins.len())], Meta::f32(self.shape))
    }

    /// The length of a row.
    fn columns(&self) -> usize {
        let axes = match &*self.base {
            AnyOp::LayerNorm(norm::LayerNorm { axes, .. }) | AnyOp::RmsNorm(norm::RmsNorm { axes, .. }) => {
                *axes
            }
            _ => 1,
        };
        self.shape.dims().iter().rev().take(axes).product()
    }

    /// How the program's inputs are read, if a kernel can do that.
    fn reads(&self, ins: &[Meta]) -> Option<Vec<Reads>> {
        let columns = self.columns().max(1);
        let rows = self.shape.numel() / columns;
        let of = |m: &Meta| {
            let (n, have, want) = (m.shape.numel(), m.shape.dims(), self.shape.dims());
            if n == self.shape.numel() {
                return Some(Reads::Place);
            }
            // Axes of size one, then whole ones; or whole ones, then axes of size one.
            let mut pairs = have.iter().rev().zip(want.iter().rev());
            let whole = pairs.by_ref().take_while(|(h, w)| h == w).map(|(_, w)| w).product::<usize>();
            if n == whole {
                return match n {
                    1 => Some(Reads::Single),
                    _ if n == columns => Some(Reads::Column),
                    _ => n.is_multiple_of(columns).then_some(Reads::Rows((n / columns) as u64)),
                };
            }
            let each = have.len() == want.len()
                && n == rows
                && have.iter().zip(want).all(|(h, w)| h == w || *h == 1);
            let last = have.iter().rev().take_while(|h| **h == 1).count();
            let is_row = each && want.iter().rev().take(last).product::<usize>() >= columns;
            is_row.then_some(Reads::Row)
        };
        ins[self.own(ins.len())..].iter().map(of).collect()
    }

    /// Whether kernels that the program is part of can read its inputs.
    #[doc(hidden)]
    pub fn is_readable(&self, ins: &[Meta]) -> bool {
        self.reads(ins).is_some()
    }

    /// The program as part of a kernel, if it can be: addresses may be missing where only the text is wanted.
    fn lead(&self, ins: &[Meta], addresses: &[u64]) -> Option<Lead> {
        let reads = self.reads(ins)?;
        let n = reads.len().max(1);
        let mut t = format!(
            "{}#define DITTO_LEAD 1\nstruct Lead {{ const float* x[{n}]; unsigned long long rows[{n}]; }};\n",
            map::prelude()
        );
        t.push_str("__device__ __forceinline__ float lead(const Lead& f, unsigned long long row, unsigned long long columns, unsigned long long j) {\n");
        for (i, reads) in reads.iter().enumerate() {
            let at = match reads {
                Reads::Place => "row * columns + j".into(),
                Reads::Column => "j".into(),
                Reads::Single => "0".into(),
                Reads::Row => "row".into(),
                Reads::Rows(_) => format!("row % f.rows[{i}] * columns + j"),
            };
            let _ = writeln!(t, "const float x{i} = f.x[{i}][{at}];");
        }
        t.push_str(&self.program.cuda_constants());
        t.push_str(&self.program.cuda());
        t.push_str("return y0;\n}\n");
        let mut words = addresses[self.own(ins.len()).min(addresses.len())..].to_vec();
        words.resize(n, 0);
        words.extend(reads.iter().map(|r| if let Reads::Rows(n) = r { *n } else { 1 }));
        words.resize(2 * n, 1);
        let tag = blake3::hash(t.as_bytes()).to_hex()[..12].to_string();
        Some(Lead { text: t, tag, slot: self.slot, words })
    }

    /// Whether the op's kernels on a GPU take the program in.
    fn joins(&self, ins: &[Meta], gpu: &Gpu) -> bool {
        self.joined(ins, gpu, Around::default()).is_some()
    }

    fn map(&self) -> Map {
        Map { program: self.program.clone(), shape: self.shape }
    }

    /// Words that what the program makes takes before the op's own workspace, where it is made at all.
    fn words(&self) -> usize {
        self.shape.numel().next_multiple_of(4)
    }
}

impl Op for Led {
    const NAME: &'static str = "led";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.len() < self.inputs || self.program.inputs() != self.inputs {
            let want = self.program.inputs();
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want, got: ins.len() }));
        }
        if slot(&self.base) != Some(self.slot) || self.program.outputs() != 1 {
            let what = format!("a program cannot make input {} of {}", self.slot, self.base.name());
            return Err(Error::unsupported(Self::NAME, what));
        }
        let made = self.map().shape(&ins[self.own(ins.len())..]);
        let value = made.and_then(|_| self.base.shape(&self.metas(ins)));
        value.map_err(|e| Error::new(Self::NAME, e.kind().clone()))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let own = self.base.workspace(&self.metas(ins), device);
        match device.as_cuda() {
            Some(cuda) if self.joins(ins, &Gpu::of(cuda)) => own,
            _ => self.words() + own,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let CpuRun { pool, simd, metas, ins, shape, out, workspace } = run;
        let own = self.own(ins.len());
        let (made, workspace) = workspace.split_at_mut(self.words());
        let made = &mut made[..self.shape.numel()];
        let accesses = map::accesses(&metas[own..], &self.shape);
        let before = CpuRun {
            pool,
            simd,
            metas: &metas[own..],
            ins: &ins[own..],
            shape: self.shape,
            out: made,
            workspace: &mut [],
        };
        map::run_cpu(&self.program, accesses.all(), before);
        let (metas, ins) = (self.metas(metas), self.with(&ins[..own], &*made));
        self.base.cpu(CpuRun { pool, simd, metas: &metas, ins: &ins, shape, out, workspace });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let own = self.own(run.ins.len());
        let metas = self.metas(run.metas);
        let lead = self.lead(run.metas, run.ins);
        let around = Around { lead: lead.as_ref(), ..run.around };
        if lead.is_some() && self.base.joined(&metas, &Gpu::of(run.cuda), around).is_some() {
            let ins = self.with(&run.ins[..own], 0);
            return self.base.cuda(&CudaRun { metas: &metas, ins: &ins, around, ..*run });
        }
        let (made, accesses) = (run.workspace, map::accesses(&run.metas[own..], &self.shape));
        let before = CudaRun {
            metas: &run.metas[own..],
            ins: &run.ins[own..],
            shape: self.shape,
            out: made,
            around: Around::default(),
            ..*run
        };
        map::run_cuda(&self.program, accesses.all(), &before)?;
        let ins = self.with(&run.ins[..own], made);
        let workspace = made + 4 * self.words() as u64;
        self.base.cuda(&CudaRun { metas: &metas, ins: &ins, workspace, ..*run })
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.joined(ins, gpu, Around::default()).unwrap_or_else(|| {
            let accesses = map::accesses(&ins[self.own(ins.len())..], &self.shape);
            let mut modules = self.base.cuda_modules(&self.metas(ins), gpu);
            modules.push(map::module(&self.program, &self.shape, accesses.all()));
            modules
        })
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        let lead = self.lead(ins, &[])?;
        self.base.joined(&self.metas(ins), gpu, Around { lead: Some(&lead), ..around })
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // As the two ops it is made of; the value between them was not kept.
        let (own, others) = io.ins.split_at(self.own(io.ins.len()));
        let made = r.record(self.map().into(), others)?;
        let ins = self.with(own, made);
        let mut grads = self.base.vjp(r, Io { ins: &ins, out: io.out }, dy)?;
        let rest = match grads.remove(self.slot) {
            None => vec![None; self.inputs],
            Some(g) => self.map().vjp(r, Io { ins: others, out: made }, g)?,
        };
        grads.extend(rest);
        Ok(grads)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (own, others) = ins.split_at(self.own(ins.len()));
        let mut all = own.to_vec();
        all.insert(self.slot, AnyTensor::Num(self.map().reference(others)?));
        self.base.reference(&all)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("steps", Attr::Num(self.program.steps().len() as f64)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Led> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}
