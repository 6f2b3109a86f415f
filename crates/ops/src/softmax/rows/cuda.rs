//! The CUDA kernels of rows and columns: their text from a formula's programs, and their launches.

use super::variant::Variant;
use super::{RowKernel, partials};
use crate::fused::FusedCode;
use crate::pointwise::device_function::{Constants, device_function, scalar_function};
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::{CudaRun, Gpu};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::sum::{CHUNK, ROWS};
use std::fmt::Write;

/// The column rule as CUDA text, for modules that define `ROWS`.
pub(crate) const COLUMN_SUM: &str = include_str!("column_sum.cu");

/// The common part of all kernels; its header lists the parameters.
const ROWS_CU: &str = include_str!("rows.cu");

/// The kernels along an axis that is not the last one.
const COLUMNS_CU: &str = include_str!("columns.cu");

/// Threads of a block whose threads have a column each.
const COLUMN_THREADS: u32 = 256;

/// Lines that define the parameters of a kernel.
fn defines(parameters: &[(&str, usize)]) -> String {
    parameters.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "#define {name} {value}");
        text
    })
}

impl RowKernel {
    /// Words of workspace on CUDA: the chunk sums of long rows and the levels above them.
    pub(crate) fn workspace(rows: usize, columns: usize, gpu: &Gpu) -> usize {
        if Variant::of(columns, 1, false, gpu) == Variant::Long { rows * partials(columns) } else { 0 }
    }

    /// The kernel of rows of `columns` elements.
    fn variant(&self, columns: usize, gpu: &Gpu) -> Variant {
        Variant::of(columns, self.staged(), self.ins == 1, gpu)
    }

    /// The formula as `rows.cu` and its kernels take it: parameters and device functions.
    fn formula(&self) -> String {
        let reads = self.post.reads();
        let (reads_x, reads_term) = (reads[0], reads[self.ins + 2]);
        let scalar = match (self.scalar, self.row_scalar) {
            (None, _) => 0,
            (Some(_), false) => 1,
            (Some(_), true) => 2,
        };
        let mut text = defines(&[
            ("INS", self.ins),
            ("MAX", usize::from(self.max)),
            ("MASKED", usize::from(self.score.is_some())),
            ("LABELS", usize::from(self.labels.is_some())),
            ("SCALAR", scalar),
            ("PER_ROW", usize::from(self.per_row)),
            ("TERM_REPLACES_X", usize::from(reads_term && !reads_x)),
            ("CHUNK", CHUNK),
        ]);
        let list = |before: &str, name: &str, program: &Pointwise| -> String {
            (0..program.consts().len()).map(|c| format!(", {before}{name}{c}")).collect()
        };
        let _ = write!(
            text,
            "#define CONSTANT_PARAMETERS{}{}\n#define TERM_CONSTANTS{}\n#define POST_CONSTANTS{}\n",
            list("float ", "kt", &self.term),
            list("float ", "kp", &self.post),
            list("", "kt", &self.term),
            list("", "kp", &self.post),
        );
        if let Some(score) = &self.score {
            text += &device_function("score", score);
        }
        text += &device_function("of_row", &self.of_row);
        text += &scalar_function("term", &self.term, Constants::Parameters);
        text += &scalar_function("post", &self.post, Constants::Parameters);
        text
    }

    /// Appends the constants that are kernel arguments.
    fn push_constants(&self, args: &mut Args) {
        for &k in self.term.consts().iter().chain(self.post.consts()) {
            args.f32(k);
        }
    }

    /// Module name and source for rows of `columns` elements.
    pub(crate) fn module(&self, columns: usize, gpu: &Gpu) -> Source {
        self.module_with(columns, gpu, FusedCode::default())
    }

    /// The module with a prologue or epilogue: of rows that a warp keeps in registers.
    pub(crate) fn joined(&self, columns: usize, gpu: &Gpu, fused: FusedCode<'_>) -> Option<Source> {
        let is_warp = matches!(self.variant(columns, gpu), Variant::Warp { .. });
        (is_warp && !self.per_row).then(|| self.module_with(columns, gpu, fused))
    }

    fn module_with(&self, columns: usize, gpu: &Gpu, fused: FusedCode<'_>) -> Source {
        let variant = self.variant(columns, gpu);
        let each = if self.row_scalar { "_each" } else { "" };
        let (tag, before) = fused.text();
        crate::module(format!("rows_{}{each}_{}{tag}", self.name, variant.name()), || {
            let (mut parameters, kernel) = variant.source();
            parameters.extend(fused.prologue.map(|prologue| ("PROLOGUE_SLOT", prologue.slot())));
            [map::prelude(), &before, &self.formula(), &defines(&parameters), ROWS_CU, kernel].concat()
        })
    }

    /// Queues the kernel on CUDA.
    pub(crate) fn run_cuda(&self, columns: usize, run: &CudaRun<'_>) -> Result<()> {
        let elements = run.metas[0].shape.numel();
        if elements == 0 {
            return Ok(());
        }
        let rows = elements / columns;
        let gpu = Gpu::of(run.cuda);
        let (module, source) = self.module_with(columns, &gpu, run.fused);
        let kernel = run.cuda.kernel(&module, source, "rows")?;
        let mut args = Args::new();
        args.ptr(run.out);
        for &x in &run.ins[..self.ins] {
            args.ptr(x);
        }
        args.ptr(self.labels.map_or(0, |i| run.ins[i])).ptr(self.scalar.map_or(0, |i| run.ins[i]));
        args.ptr(run.workspace).u64(partials(columns) as u64).u64(rows as u64).u64(columns as u64);
        args.u64((run.metas[self.ins - 1].shape.numel() / columns) as u64);
        self.push_constants(&mut args);
        run.fused.push(&mut args);
        let (grid, threads, shared) = self.variant(columns, &gpu).launch(rows, columns, run.cuda);
        run.cuda.launch(kernel, grid, threads, shared, &args)
    }
}

// Along an axis that is not the last one, for values of (outer, n, inner). The sum is by the column rule, since a
// column's elements are `inner` apart.
impl RowKernel {
    /// Module name and source for columns of `n` elements.
    pub(crate) fn columns_module(&self, n: usize) -> Source {
        let short = is_short(n);
        let name = format!("columns_{}_{}", self.name, if short { "short" } else { "tall" });
        crate::module(name, || {
            let parameters = defines(&[
                ("ROWS", ROWS),
                ("SHORT", usize::from(short)),
                ("THREADS", COLUMN_THREADS as usize),
            ]);
            [map::prelude(), &parameters, COLUMN_SUM, &self.formula(), ROWS_CU, COLUMNS_CU].concat()
        })
    }

    /// Queues the kernel on CUDA over columns of `n` elements that are `inner` apart.
    pub(crate) fn columns_cuda(&self, n: usize, inner: usize, run: &CudaRun<'_>) -> Result<()> {
        let elements = run.shape.numel();
        if elements == 0 {
            return Ok(());
        }
        let count = elements / n;
        let (module, source) = self.columns_module(n);
        let kernel = run.cuda.kernel(&module, source, "columns")?;
        let mut args = Args::new();
        args.ptr(run.out);
        for &x in &run.ins[..self.ins] {
            args.ptr(x);
        }
        args.u64(count as u64).u64(n as u64).u64(inner as u64);
        self.push_constants(&mut args);
        if is_short(n) {
            return run.cuda.launch(kernel, grid(run.cuda, count), COLUMN_THREADS, 0, &args);
        }
        let warps = n.div_ceil(ROWS).clamp(1, 16) as u32;
        let blocks = count.div_ceil(32).min(run.cuda.sm_count() as usize * 16);
        run.cuda.launch(kernel, [blocks as u32, 1, 1], warps * 32, 0, &args)
    }
}

/// Whether a column is a single chain of the column rule, so that one thread takes it.
fn is_short(n: usize) -> bool {
    n <= ROWS
}
