//! Prologues and epilogues as parts of CUDA kernels: their text and their arguments.

use super::{Epilogue, Fused, Prologue};
use crate::pointwise::device_function::{Constants, array_function, define, device_function};
use crate::pointwise::map;
use crate::{AnyOp, Gpu};
use dittograd_device::Meta;
use dittograd_device::cuda::Args;

/// How a kernel reads an input of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// At the place of what is computed.
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

/// A prologue as CUDA text and arguments.
#[derive(Debug)]
pub struct PrologueCode {
    text: String,
    /// Names the text.
    tag: String,
    /// Which input it computes.
    slot: usize,
    /// Where its inputs lie, then after how many rows they repeat.
    words: Vec<u64>,
}

impl PrologueCode {
    /// Which input it computes.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }
}

/// An epilogue as CUDA text and arguments.
#[derive(Debug)]
pub struct EpilogueCode {
    text: String,
    /// Names the text.
    tag: String,
    /// Whether an input is read by column.
    by_column: bool,
    /// Where the other inputs lie, then the results but for the first.
    addresses: Vec<u64>,
}

impl EpilogueCode {
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

/// What is to be part of an op's own kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct FusedCode<'a> {
    /// Before it reads one of its inputs.
    pub prologue: Option<&'a PrologueCode>,
    /// After its results.
    pub epilogue: Option<&'a EpilogueCode>,
}

impl<'a> FusedCode<'a> {
    /// The epilogue, for kernels that take no prologue.
    pub(crate) fn only_epilogue(self) -> Option<&'a EpilogueCode> {
        self.epilogue.filter(|_| self.prologue.is_none())
    }

    /// What goes before the kernel's text, and an end for its name.
    pub(crate) fn text(self) -> (String, String) {
        let texts = [self.prologue.map(|l| (&*l.tag, &*l.text)), self.epilogue.map(EpilogueCode::text)];
        texts
            .into_iter()
            .flatten()
            .fold(Default::default(), |(name, all), (tag, text)| (format!("{name}_{tag}"), all + text))
    }

    /// Appends the kernel's last arguments.
    pub(crate) fn push(self, args: &mut Args) {
        if let Some(prologue) = self.prologue {
            args.bytes(bytemuck::cast_slice(&prologue.words), 8);
        }
        if let Some(epilogue) = self.epilogue {
            epilogue.push(args);
        }
    }
}

const EPILOGUE_CU: &str = include_str!("epilogue.cu");

fn tag(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..12].to_string()
}

impl Fused {
    /// How the prologue's inputs are read, if a kernel can do that.
    pub(super) fn prologue_reads(&self, ins: &[Meta]) -> Option<Vec<Reads>> {
        let p = self.prologue.as_ref()?;
        let (_, axes) = self.op.fusion(&self.metas(ins)).prologue?;
        let columns = p.shape.dims().iter().rev().take(axes).product::<usize>().max(1);
        let rows = p.shape.numel() / columns;
        let of = |m: &Meta| {
            let (n, have, want) = (m.shape.numel(), m.shape.dims(), p.shape.dims());
            if n == p.shape.numel() {
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
        self.parts(ins)[1].iter().map(of).collect()
    }

    /// How the epilogue's other inputs are read, if a kernel can do that: at the place of the result, by its column, or a single
    /// element.
    pub(super) fn epilogue_reads(&self, ins: &[Meta]) -> Option<Vec<Reads>> {
        let e = self.epilogue.as_ref()?;
        let columns = self.op.shape(&self.metas(ins)).ok()?.shape.last();
        let of = |m: &Meta| {
            let (n, dims) = (m.shape.numel(), e.shape.dims());
            if n == e.shape.numel() {
                return Some(Reads::Place);
            }
            match n {
                1 => Some(Reads::Single),
                _ if n == columns && dims.last() == Some(&n) && m.shape.last() == n => Some(Reads::Column),
                _ => None,
            }
        };
        self.parts(ins)[2].iter().map(of).collect()
    }

    fn prologue_text(&self, p: &Prologue, ins: &[Meta], addresses: &[u64]) -> Option<PrologueCode> {
        let reads = self.prologue_reads(ins)?;
        let n = reads.len().max(1);
        let at = |(i, reads): (usize, &Reads)| match reads {
            Reads::Place => format!("f.x[{i}][row * columns + j]"),
            Reads::Column => format!("f.x[{i}][j]"),
            Reads::Single => format!("f.x[{i}][0]"),
            Reads::Row => format!("f.x[{i}][row]"),
            Reads::Rows(_) => format!("f.x[{i}][row % f.rows[{i}] * columns + j]"),
        };
        let values: Vec<String> = reads.iter().enumerate().map(at).collect();
        let t = format!(
            "{}{}{}struct Prologue {{ const float* x[{n}]; unsigned long long rows[{n}]; }};\n\
             __device__ __forceinline__ float prologue(const Prologue& f, unsigned long long row, unsigned long long columns, unsigned long long j) {{\n\
             return prologue_of({});\n}}\n",
            map::prelude(),
            define("DITTO_PROLOGUE", 1),
            device_function("prologue_of", &p.program),
            values.join(", ")
        );
        let mut words = if addresses.is_empty() { Vec::new() } else { self.parts(addresses)[1].to_vec() };
        words.resize(n, 0);
        words.extend(reads.iter().map(|r| if let Reads::Rows(n) = r { *n } else { 1 }));
        words.resize(2 * n, 1);
        Some(PrologueCode { tag: tag(&t), text: t, slot: p.slot, words })
    }

    fn epilogue_text(&self, e: &Epilogue, ins: &[Meta], addresses: &[u64], out: u64) -> Option<EpilogueCode> {
        let reads = self.epilogue_reads(ins)?;
        let (others, results) = (reads.len(), e.program.outputs());
        let number = |r: &Reads| match r {
            Reads::Column => 1,
            Reads::Single => 2,
            _ => 0,
        };
        let choice: String =
            reads.iter().enumerate().map(|(i, r)| format!("i == {i} ? {} : ", number(r))).collect();
        let lines = [
            map::prelude().to_string(),
            define("DITTO_EPILOGUE", 1),
            define("EPILOGUE_X", others),
            define("EPILOGUE_Y", results),
            define("EPILOGUE_READS(i)", format!("({choice}0)")),
            array_function("epilogue", &e.program, Constants::Values),
            EPILOGUE_CU.to_string(),
        ];
        let t = lines.concat();
        let words = e.shape.numel() as u64;
        let mut all = if addresses.is_empty() { Vec::new() } else { self.parts(addresses)[2].to_vec() };
        all.resize(others.max(1), 0);
        all.extend((1..results.max(2) as u64).map(|k| out + 4 * k * words));
        Some(EpilogueCode {
            tag: tag(&t),
            text: t,
            by_column: reads.contains(&Reads::Column),
            addresses: all,
        })
    }

    /// The prologue as part of the op's kernels on `gpu`, if they take it in. Addresses may be missing where only the text is
    /// wanted; `metas` are the op's.
    pub(super) fn prologue_code(
        &self,
        ins: &[Meta],
        addresses: &[u64],
        metas: &[Meta],
        gpu: &Gpu,
    ) -> Option<PrologueCode> {
        let prologue = self.prologue_text(self.prologue.as_ref()?, ins, addresses)?;
        let fused = FusedCode { prologue: Some(&prologue), epilogue: None };
        joins(&self.op, metas, gpu, fused).then_some(prologue)
    }

    /// Both expressions as parts of the op's kernels on `gpu`, as far as they take them in: both, else the prologue. As
    /// [`Fused::prologue_code`] otherwise.
    pub(super) fn code(
        &self,
        ins: &[Meta],
        addresses: &[u64],
        out: u64,
        metas: &[Meta],
        gpu: &Gpu,
    ) -> (Option<PrologueCode>, Option<EpilogueCode>) {
        let prologue = self.prologue_code(ins, addresses, metas, gpu);
        let is_alone = self.prologue.is_some() && prologue.is_none();
        let epilogue = match &self.epilogue {
            Some(e) if !is_alone => self.epilogue_text(e, ins, addresses, out),
            _ => None,
        };
        let joined = epilogue.filter(|f| {
            joins(&self.op, metas, gpu, FusedCode { prologue: prologue.as_ref(), epilogue: Some(f) })
        });
        (prologue, joined)
    }
}

fn joins(op: &AnyOp, metas: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> bool {
    op.fused_modules(metas, gpu, fused).is_some()
}
