//! Row kernels: ops that take a maximum and a sum along the last axis and then compute each element
//! from them (softmax and its relatives). One [`RowKernel`] of two little programs is both the CPU code
//! and the CUDA text, so a formula stands in one place.

use super::map::{self, grid};
use super::program::{Program, Registers, Scratch};
use super::{CpuRun, CudaRun, Gpu, norm, reduce};
use crate::device::cpu::simd::{Simd, simd_fn};
use crate::device::cuda::Args;
use crate::error::Result;
use crate::numerics::sum::{CHUNK, LANES, ROWS, Tree, WIDTH};
use std::fmt::Write;

/// Adds lane `i + half` to lane `i`, for halves of a warp and down, as the row rule says.
const FOLD_SUM: &str =
    "for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));\n";
/// Leaves the largest `m` of a warp in all its lanes.
const FOLD_MAX: &str = "for (int o = 16; o > 0; o /= 2) { const float other = __shfl_xor_sync(0xffffffffu, m, o); if (other > m) m = other; }\n";

/// The column rule as CUDA text, for modules that define `ROWS`.
pub(crate) const COLUMN_SUM: &str = include_str!("column_sum.cu");

/// Elements per lane when a warp keeps a row of `columns` elements in registers, rounded so that few kernels
/// serve all lengths.
pub(crate) fn per_lane(columns: usize) -> usize {
    match columns.div_ceil(LANES) {
        n @ 0..=8 => n.max(1).next_power_of_two(),
        n => n.next_multiple_of(4),
    }
}

/// A program with one result as a CUDA function of its inputs.
pub(crate) fn device_function(name: &str, program: &Program) -> String {
    let params: Vec<String> = (0..program.inputs()).map(|i| format!("float x{i}")).collect();
    let mut t = format!("__device__ __forceinline__ float {name}({}) {{\n", params.join(", "));
    for (c, k) in program.consts().iter().enumerate() {
        let _ = writeln!(t, "const float k{c} = __uint_as_float({:#x}u);", k.to_bits());
    }
    t.push_str(&program.cuda());
    t.push_str("return y0;\n}\n");
    t
}

/// How a row becomes its results. With `x` the row's elements of each input:
/// `m = max x0` (NaN ignored), `t = term(x…, m)`, `s = Σ t` by the row rule, `r = of_row(s)`,
/// `y = post(x…, m, s, t, hit, g, r)` where `hit` is 1 at the row's label and 0 elsewhere and `g` is a scalar input.
#[derive(Clone, Debug)]
pub(crate) struct RowKernel {
    /// Kernel name in traces.
    pub name: &'static str,
    /// Number of inputs that have rows; they come first.
    pub ins: usize,
    /// Whether `m` is needed; it is +0 otherwise.
    pub max: bool,
    /// What `m` is the maximum of, where that is not the first input: a mask, the last of the inputs with rows,
    /// leaves elements out. It may have fewer rows than the others; then it repeats.
    pub best: Option<Program>,
    /// The summand.
    pub term: Program,
    /// What is computed once a row from its sum.
    pub of_row: Program,
    /// The result.
    pub post: Program,
    /// Position of the label input, if there is one.
    pub labels: Option<usize>,
    /// Position of the scalar input, if there is one.
    pub scalar: Option<usize>,
    /// Whether the scalar input has one element per row.
    pub row_scalar: bool,
    /// One result per row, from the element at the label, instead of one per element; it may not read `t`.
    pub per_row: bool,
}

simd_fn! {
    /// The largest element, NaN ignored, -inf for none; never -0.
    pub(crate) fn row_max(simd, x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut pieces = x.chunks_exact(LANES);
        for piece in &mut pieces {
            for (m, &x) in lanes.iter_mut().zip(piece) {
                *m = if x > *m { x } else { *m };
            }
        }
        for (m, &x) in lanes.iter_mut().zip(pieces.remainder()) {
            *m = if x > *m { x } else { *m };
        }
        // Which of several equal maxima is met first cannot matter once -0 is made +0.
        lanes.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m }) + 0.0
    }
}

impl RowKernel {
    /// Runs on the CPU over rows of `columns` elements.
    pub(crate) fn run_cpu(&self, columns: usize, run: CpuRun<'_>) {
        let rows = run.ins[0].len().checked_div(columns).unwrap_or(0);
        if rows == 0 {
            return;
        }
        let period = run.ins[self.ins - 1].len() / columns;
        // Where a row of an input starts.
        let start_of = |i: usize, row: usize| {
            if self.best.is_some() && i + 1 == self.ins { row % period * columns } else { row * columns }
        };
        let width = if self.per_row { 1 } else { columns };
        let rows_per_task = run.pool.share(rows, (16 * 1024 / columns).max(1), 1);
        let block = self.term.block().min(self.post.block()).min(CHUNK);
        let block = self.best.as_ref().map_or(block, |best| block.min(best.block()));
        let (simd, ins) = (run.simd, run.ins);
        let labels: &[u32] = self.labels.map_or(&[], |i| bytemuck::cast_slice(ins[i]));
        let g = self.scalar.filter(|_| !self.row_scalar).map_or(0.0, |i| ins[i][0]);
        run.pool.chunks_mut(run.out, rows_per_task * width, |task, out| {
            let (mut term, mut post) = (Registers::new(&self.term, block), Registers::new(&self.post, block));
            let mut best = self.best.as_ref().map(|best| Registers::new(best, block));
            let mut t = [0.0f32; CHUNK];
            let fill = block.min(columns);
            let mut scratch = Scratch::take(6 * block);
            let (m_block, rest) = scratch.words().split_at_mut(block);
            let (s_block, rest) = rest.split_at_mut(block);
            let (r_block, rest) = rest.split_at_mut(block);
            let (g_block, rest) = rest.split_at_mut(block);
            let (terms, rest) = rest.split_at_mut(block);
            let hit = &mut rest[..block];
            g_block.fill(g);
            hit.fill(0.0);
            // Only what the programs read is filled in.
            let reads = self.post.reads();
            let [reads_s, reads_t, reads_r] = [1, 2, 5].map(|i| reads[self.ins + i]);
            for (i, out) in out.chunks_mut(width).enumerate() {
                let row = task * rows_per_task + i;
                let at = row * columns;
                let mut args: [&[f32]; 16] = [&[]; 16];
                if let Some(i) = self.scalar.filter(|_| self.row_scalar) {
                    g_block[..fill].fill(ins[i][row]);
                }
                let m = match &mut best {
                    Some(best) => {
                        let mut m = f32::NEG_INFINITY;
                        for start in (0..columns).step_by(block) {
                            let len = block.min(columns - start);
                            for (i, (a, x)) in args.iter_mut().zip(&ins[..self.ins]).enumerate() {
                                *a = &x[start_of(i, row) + start..][..len];
                            }
                            best.run(simd, &args[..self.ins], &mut terms[..len]);
                            let of = row_max(simd, &terms[..len]);
                            m = if of > m { of } else { m };
                        }
                        m
                    }
                    None if self.max => row_max(simd, &ins[0][at..at + columns]),
                    None => 0.0,
                };
                m_block[..fill].fill(m);
                let mut tree = Tree::new();
                for start in (0..columns).step_by(CHUNK) {
                    let len = CHUNK.min(columns - start);
                    // The terms are kept where the results will be, unless there is one result only.
                    let t = if self.per_row { &mut t[..len] } else { &mut out[start..start + len] };
                    for (b, t) in t.chunks_mut(block).enumerate() {
                        let from = start + b * block;
                        for (i, (a, x)) in args.iter_mut().zip(&ins[..self.ins]).enumerate() {
                            *a = &x[start_of(i, row) + from..][..t.len()];
                        }
                        args[self.ins] = &m_block[..t.len()];
                        term.run(simd, &args[..self.ins + 1], t);
                    }
                    tree.push(reduce::chunk_sum(simd, t));
                }
                let s = tree.finish();
                if reads_s {
                    s_block[..fill].fill(s);
                }
                if reads_r {
                    r_block[..fill].fill(self.of_row.eval(&[s])[0]);
                }
                let label = labels.get(row).map_or(usize::MAX, |&l| l as usize);
                for (b, out) in out.chunks_mut(block).enumerate() {
                    let n = out.len();
                    let start = if self.per_row { label.min(columns - 1) } else { b * block };
                    if reads_t {
                        terms[..n].copy_from_slice(out);
                    }
                    let hit_at = label.checked_sub(start).filter(|at| *at < n);
                    if let Some(at) = hit_at {
                        hit[at] = 1.0;
                    }
                    let mut args: [&[f32]; 16] = [&[]; 16];
                    for (i, (a, x)) in args.iter_mut().zip(&ins[..self.ins]).enumerate() {
                        *a = &x[start_of(i, row) + start..][..n];
                    }
                    let rest: [&[f32]; 6] =
                        [&*m_block, s_block, terms, hit, g_block, r_block].map(|b| &b[..n]);
                    args[self.ins..self.ins + 6].copy_from_slice(&rest);
                    post.run(simd, &args[..self.ins + 6], out);
                    if let Some(at) = hit_at {
                        hit[at] = 0.0;
                    }
                }
            }
        });
    }

    /// Words of workspace on CUDA: the chunk sums of long rows and the levels above them.
    pub(crate) fn workspace(rows: usize, columns: usize, gpu: &Gpu) -> usize {
        if Variant::of(columns, 1, gpu) == Variant::Long { rows * partials(columns) } else { 0 }
    }

    /// Queues the kernel on CUDA.
    pub(crate) fn run_cuda(&self, columns: usize, run: &CudaRun<'_>) -> Result<()> {
        let elements = run.metas[0].shape.numel();
        if elements == 0 {
            return Ok(());
        }
        let rows = elements / columns;
        let gpu = Gpu::of(run.cuda);
        let (module, source) = self.module(columns, &gpu);
        let kernel = run.cuda.kernel(&module, &source, "rows")?;
        let mut args = Args::new();
        args.ptr(run.out);
        for &x in &run.ins[..self.ins] {
            args.ptr(x);
        }
        args.ptr(self.labels.map_or(0, |i| run.ins[i])).ptr(self.scalar.map_or(0, |i| run.ins[i]));
        args.ptr(run.workspace).u64(partials(columns) as u64).u64(rows as u64).u64(columns as u64);
        args.u64((run.metas[self.ins - 1].shape.numel() / columns) as u64);
        for &k in self.term.consts().iter().chain(self.post.consts()) {
            args.f32(k);
        }
        let (grid, threads, shared) = match Variant::of(columns, self.kept(), &gpu) {
            Variant::Warp { .. } => (grid(run.cuda, rows * 32), 256, 0),
            Variant::Shared { threads, kept, buffers, .. } => {
                let shared = buffers as usize * kept * buffer_words(columns) * 4;
                // As many blocks as a multiprocessor holds at a time: those beyond would come after all others
                // and have it to themselves. Each block takes a little more shared memory than its rows.
                let room = (gpu.shared + 1024) / (shared + 1024 + 512);
                let resident = (2048 / threads as usize).min(32).min(room).max(1);
                ([rows.min(run.cuda.sm_count() as usize * resident) as u32, 1, 1], threads, shared as u32)
            }
            // One row per multiprocessor at a time: more would push each other out of the L2 cache.
            Variant::Long => ([rows.min(run.cuda.sm_count() as usize) as u32, 1, 1], LONG_THREADS, 0),
        };
        run.cuda.launch(kernel, grid, threads, shared, &args)
    }

    /// Module name and source for rows of `columns` elements.
    pub(crate) fn module(&self, columns: usize, gpu: &Gpu) -> (String, String) {
        let variant = Variant::of(columns, self.kept(), gpu);
        let body = match variant {
            Variant::Warp { per_lane, exact } => self.warp_text(per_lane, exact),
            Variant::Shared { threads, aligned, kept, buffers } => {
                self.shared_text(threads, aligned, kept, buffers)
            }
            Variant::Long => self.long_text(),
        };
        let source = format!("{}{}", map::prelude(), body);
        (format!("rows_{}_{}", self.name, variant.name()), source)
    }

    /// The programs as device functions over the row's values.
    fn functions(&self) -> String {
        let mut t = String::new();
        let function = |t: &mut String, name: &str, program: &Program, tail: &[&str]| {
            let mut params: Vec<String> = (0..self.ins).map(|i| format!("float x{i}")).collect();
            params.extend(tail.iter().enumerate().map(|(j, _)| format!("float x{}", self.ins + j)));
            params.extend((0..program.consts().len()).map(|c| format!("float k{c}")));
            let _ = writeln!(t, "__device__ __forceinline__ float {name}({}) {{", params.join(", "));
            t.push_str(&program.cuda());
            t.push_str("return y0;\n}\n");
        };
        if let Some(best) = &self.best {
            t.push_str(&device_function("best_of", best));
        }
        t.push_str(&device_function("row_of", &self.of_row));
        function(&mut t, "term", &self.term, &["m"]);
        function(&mut t, "post", &self.post, &["m", "s", "t", "hit", "g", "r"]);
        t
    }

    /// The functions and the kernel's head, for blocks of so many threads.
    fn head(&self, threads: u32) -> String {
        let mut t = self.functions();
        let _ = write!(
            t,
            "extern \"C\" __global__ void __launch_bounds__({threads}) rows(float* __restrict__ out"
        );
        for i in 0..self.ins {
            let _ = write!(t, ", const float* __restrict__ in{i}");
        }
        t.push_str(", const unsigned* __restrict__ labels, const float* __restrict__ scalar, float* partial, unsigned long long partials, unsigned long long rows, unsigned long long columns, unsigned long long period");
        for c in 0..self.term.consts().len() {
            let _ = write!(t, ", float kt{c}");
        }
        for c in 0..self.post.consts().len() {
            let _ = write!(t, ", float kp{c}");
        }
        t.push_str(") {\n");
        let g = if self.scalar.is_some() && !self.row_scalar { "scalar[0]" } else { "0.0f" };
        let _ = writeln!(t, "const float g = {g};");
        t.push_str("const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n");
        t
    }

    /// The row's label. One result per row is read at it, so it is held inside the row, as on the CPU.
    fn label_text(&self) -> &'static str {
        match self.per_row {
            true => "const unsigned label = labels[row] < columns ? labels[row] : (unsigned)columns - 1;\n",
            false => "const unsigned label = labels[row];\n",
        }
    }

    /// Whether input `i` is a mask, whose rows may repeat.
    fn is_mask(&self, i: usize) -> bool {
        self.best.is_some() && i + 1 == self.ins
    }

    /// Where row `row` of input `i` starts.
    fn row_start(&self, i: usize, row: &str) -> String {
        if self.is_mask(i) { format!("({row} % period * columns)") } else { format!("({row} * columns)") }
    }

    /// What the maximum is taken of.
    fn best_call(&self, x: impl Fn(usize) -> String) -> String {
        match &self.best {
            Some(_) => format!("best_of({})", (0..self.ins).map(x).collect::<Vec<_>>().join(", ")),
            None => x(0),
        }
    }

    /// A call of `term` or `post` with the given expressions for the inputs and what follows them.
    fn call(
        &self,
        name: &str,
        x: impl Fn(usize) -> String,
        tail: &str,
        consts: usize,
        prefix: &str,
    ) -> String {
        let mut args: Vec<String> = (0..self.ins).map(x).collect();
        args.push(tail.to_string());
        args.extend((0..consts).map(|c| format!("{prefix}{c}")));
        format!("{name}({})", args.join(", "))
    }

    fn term_call(&self, x: impl Fn(usize) -> String) -> String {
        self.call("term", x, "m", self.term.consts().len(), "kt")
    }

    fn post_call(&self, x: impl Fn(usize) -> String, t: &str, hit: &str) -> String {
        let g = if self.row_scalar { "scalar[row]" } else { "g" };
        self.call("post", x, &format!("m, s, {t}, {hit}, {g}, r_of"), self.post.consts().len(), "kp")
    }

    /// For short rows: one warp per row, the row in registers: element `lane + 32 q` is lane `lane`'s `q`-th, which is the
    /// lane it has in the row rule. Each input is read once, 4 bytes per element; the result written once.
    /// The next row is on its way while a short row is computed; between long ones other warps have their turn.
    fn warp_text(&self, per_lane: usize, exact: bool) -> String {
        let mut t = self.head(256);
        // Rows that fill all lanes need no test of the end.
        let inside = if exact { "true" } else { "j < width" };
        let each = format!(
            "#pragma unroll\nfor (unsigned q = 0; q < {per_lane}; ++q) {{ const unsigned j = lane + 32 * q; const bool in = {inside};"
        );
        t.push_str(
            "const unsigned width = (unsigned)columns;\nconst unsigned long long step = gridDim.x * 8ull;\n",
        );
        let fetch = |t: &mut String, to: &str, row: &str| {
            let _ = writeln!(t, "{each}");
            for i in 0..self.ins {
                let _ = writeln!(t, "{to}{i}[q] = in ? in{i}[{} + j] : 0.0f;", self.row_start(i, row));
            }
            t.push_str("}\n");
        };
        // Long rows have no registers left for the next one.
        let ahead = per_lane <= 8;
        for i in 0..self.ins {
            let _ = writeln!(t, "float v{i}[{per_lane}];");
            if ahead {
                let _ = writeln!(t, "float n{i}[{per_lane}];");
            }
        }
        t.push_str("unsigned long long row = blockIdx.x * 8ull + warp;\n");
        if ahead {
            t.push_str("if (row < rows) {\n");
            fetch(&mut t, "n", "row");
            t.push_str("}\n");
        }
        t.push_str("for (; row < rows; row += step) {\nconst unsigned long long at = row * columns;\n");
        if ahead {
            let _ = writeln!(t, "{each}");
            for i in 0..self.ins {
                let _ = writeln!(t, "v{i}[q] = n{i}[q];");
            }
            t.push_str("}\nif (row + step < rows) {\n");
            fetch(&mut t, "n", "(row + step)");
            t.push_str("}\n");
        } else {
            fetch(&mut t, "v", "row");
        }
        t.push_str("float m = 0.0f;\n");
        if self.max {
            let of = self.best_call(|i| format!("v{i}[q]"));
            let _ = writeln!(
                t,
                "m = -__int_as_float(0x7f800000);\n{each} const float of = {of}; if (in && of > m) m = of; }}"
            );
            t.push_str("#pragma unroll\n");
            t.push_str(FOLD_MAX);
            t.push_str("m = __fadd_rn(m, 0.0f);\n");
        }
        let v = |i: usize| format!("v{i}[q]");
        let _ = writeln!(
            t,
            "float t[{per_lane}]; float s = 0.0f;\n{each} t[q] = {}; if (in) s = __fadd_rn(s, t[q]); }}",
            self.term_call(v)
        );
        t.push_str("#pragma unroll\n");
        t.push_str(FOLD_SUM);
        t.push_str("s = __shfl_sync(0xffffffffu, s, 0);\nconst float r_of = row_of(s);\n");
        if self.labels.is_some() {
            t.push_str(self.label_text());
        }
        if self.per_row {
            let _ = writeln!(
                t,
                "{each} if (in && j == label) out[row] = {}; }}",
                self.post_call(v, "t[q]", "1.0f")
            );
        } else {
            let hit = if self.labels.is_some() { "(j == label ? 1.0f : 0.0f)" } else { "0.0f" };
            let _ = writeln!(t, "{each} if (in) out[at + j] = {}; }}", self.post_call(v, "t[q]", hit));
        }
        t.push_str("}\n}\n");
        t
    }

    /// Inputs whose rows a block keeps in shared memory if there is room: all, but for a mask, whose rows may start
    /// elsewhere, and what comes with it.
    fn kept(&self) -> usize {
        if self.best.is_some() { 1 } else { self.ins }
    }

    /// One block per row, four elements per access. Rows of the first `kept` inputs are in shared memory and read
    /// once, those of others once or twice; whole chunks of the row rule are summed by one warp each, out of shared
    /// memory and without bank conflicts; the chunk sums fold in every warp.
    ///
    /// A row that is not aligned is seen from the aligned address before it: `shift` elements come before its first
    /// one, and the vectors at its ends are taken element by element.
    fn shared_text(&self, threads: u32, aligned: bool, kept: usize, buffers: u32) -> String {
        let mut t = self.head(threads);
        let warps = threads / 32;
        let _ = writeln!(
            t,
            "extern __shared__ float4 row_memory[];\nfloat* const memory = reinterpret_cast<float*>(row_memory);"
        );
        let words = if aligned { "width" } else { "((width + 6) / 4 * 4)" };
        let _ = writeln!(
            t,
            "__shared__ float best[{warps}], parts[{PARTS}];\nconst unsigned width = (unsigned)columns, words = {words}, row_words = {kept} * words;"
        );
        // The vector at p0 of a row with so many elements before the first: all of it in the row, and element e.
        let whole = |shift: &str| {
            if aligned { "true".into() } else { format!("(p0 >= {shift} && p0 + 4 <= {shift} + width)") }
        };
        let inside = |shift: &str| {
            if aligned { "true".into() } else { format!("(p0 + e >= {shift} && p0 + e < {shift} + width)") }
        };
        // A thread always works on the same vectors, so only the sums need barriers.
        let each = |body: &str| -> String {
            format!(
                "#pragma unroll 2\nfor (unsigned p0 = threadIdx.x * 4; p0 < words; p0 += {threads} * 4) {{\n{body}\n}}\n"
            )
        };
        // Loads of four elements of input `i` into `x{i}`.
        let load = |i: usize, from: &str| -> String {
            let vector = format!(
                "const float4 q = *reinterpret_cast<const float4*>({from} + p0); x{i}[0] = q.x; x{i}[1] = q.y; x{i}[2] = q.z; x{i}[3] = q.w;"
            );
            if aligned {
                return format!("float x{i}[4]; {{ {vector} }}\n");
            }
            format!(
                "float x{i}[4]; if (whole) {{ {vector} }} else {{ for (unsigned e = 0; e < 4; ++e) x{i}[e] = {} ? {from}[p0 + e] : 0.0f; }}\n",
                inside("shift")
            )
        };
        // Shared memory has whole vectors everywhere.
        let load_kept = |i: usize, name: &str| -> String {
            format!(
                "const float4 q{name} = *reinterpret_cast<const float4*>(terms + {i} * words + p0); const float {name}[4] = {{q{name}.x, q{name}.y, q{name}.z, q{name}.w}};\n"
            )
        };
        let all_kept = kept == self.ins;
        // Rows of a mask may start at another distance from an aligned address.
        let load_global = |i: usize| -> String {
            if self.is_mask(i) && !aligned {
                return format!(
                    "float x{i}[4]; for (unsigned e = 0; e < 4; ++e) x{i}[e] = {} ? in{i}[mask_at + p0 + e - shift] : 0.0f;\n",
                    inside("shift")
                );
            }
            load(i, &format!("(in{i} + {})", if self.is_mask(i) { "mask_at" } else { "from" }))
        };
        let lanes = |body: &str| -> String {
            format!(
                "#pragma unroll\nfor (unsigned e = 0; e < 4; ++e) {{ const bool in = {}; const unsigned j = p0 + e - shift; (void)in; (void)j; {body} }}\n",
                inside("shift")
            )
        };
        let guard = if aligned { String::new() } else { format!("const bool whole = {};\n", whole("shift")) };
        let x = |i: usize| format!("x{i}[e]");
        // Rows to keep come by asynchronous copies, which a thread waits for by itself, since it reads what it copied.
        let copy = |row: &str, to: &str| -> String {
            let one = |bytes: u32, cache: &str, at: &str| {
                let one = |i: usize| {
                    format!(
                        "{{ const unsigned to = (unsigned)__cvta_generic_to_shared({to} + {i} * words + {at}); asm volatile(\"cp.async.{cache}.shared.global [%0], [%1], {bytes};\" :: \"r\"(to), \"l\"(in{i} + next_from + {at}) : \"memory\"); }}"
                    )
                };
                format!("{{ {} }}", (0..kept).map(one).collect::<String>())
            };
            let start = if aligned {
                format!("const unsigned long long next_from = {row} * columns;\n")
            } else {
                format!(
                    "const unsigned next_shift = (unsigned)({row} * columns % 4); const unsigned long long next_from = {row} * columns - next_shift;\n"
                )
            };
            if aligned {
                return format!("{start}{}", one(16, "cg", "p0"));
            }
            format!(
                "{start}if {} {} else {{ for (unsigned e = 0; e < 4; ++e) if {} {} }}",
                whole("next_shift"),
                one(16, "cg", "p0"),
                inside("next_shift"),
                one(4, "ca", "p0 + e")
            )
        };
        let commit = "asm volatile(\"cp.async.commit_group;\" ::: \"memory\");\n";
        let wait = |left: u32| format!("asm volatile(\"cp.async.wait_group {left};\" ::: \"memory\");\n");
        let fetch = |row: &str, to: &str| format!("{}{commit}", each(&copy(row, to)));
        t.push_str("unsigned turn = 0;\n");
        if buffers == 2 {
            let _ = writeln!(
                t,
                "if (blockIdx.x < rows) {{\n{}}}",
                fetch("(unsigned long long)blockIdx.x", "memory")
            );
        }
        t.push_str("for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {\n");
        t.push_str("const unsigned long long at = row * columns;\nfloat m = 0.0f;\n");
        t.push_str(if aligned {
            "const unsigned shift = 0;\nconst unsigned long long from = at;\n"
        } else {
            "const unsigned shift = (unsigned)(at % 4);\nconst unsigned long long from = at - shift;\n"
        });
        if self.best.is_some() {
            t.push_str("const unsigned long long mask_at = row % period * columns;\n");
        }
        if buffers == 2 {
            t.push_str("float* const terms = memory + turn * row_words;\nif (row + gridDim.x < rows) {\n");
            t.push_str(&fetch("(row + gridDim.x)", "(memory + (turn ^ 1) * row_words)"));
            let _ = writeln!(t, "{}}} else {{\n{}}}", wait(1), wait(0));
        } else {
            t.push_str("float* const terms = memory;\n");
            t.push_str(&fetch("row", "terms"));
            t.push_str(&wait(0));
        }
        if self.max {
            t.push_str("m = -__int_as_float(0x7f800000);\n");
            let mut body = guard.clone();
            body.push_str(&load_kept(0, "x0"));
            if self.best.is_some() {
                (1..self.ins).for_each(|i| body.push_str(&load_global(i)));
            }
            let of = self.best_call(x);
            body.push_str(&lanes(&format!("const float of = {of}; if (in && of > m) m = of;")));
            t.push_str(&each(&body));
            t.push_str("#pragma unroll\n");
            t.push_str(FOLD_MAX);
            let _ = writeln!(
                t,
                "if (lane == 0) best[warp] = m;\n__syncthreads();\n#pragma unroll\nfor (int w = 0; w < {warps}; ++w) if (best[w] > m) m = best[w];\nm = __fadd_rn(m, 0.0f);"
            );
        }
        // A term of kept inputs is made while it is summed; it takes the first element's place if the result wants
        // the term and not the element.
        let reads = self.post.reads();
        let reads_term = reads[self.ins + 2];
        let keeps_terms = !all_kept || reads_term && !reads[0];
        if !all_kept {
            let mut body = guard.clone();
            body.push_str(&load_kept(0, "x0"));
            (1..self.ins).for_each(|i| body.push_str(&load_global(i)));
            body.push_str("float r[4];\n");
            body.push_str(&lanes(&format!("r[e] = {};", self.term_call(x))));
            // What stands beside the row is not read.
            body.push_str("*reinterpret_cast<float4*>(terms + p0) = make_float4(r[0], r[1], r[2], r[3]);\n");
            t.push_str(&each(&body));
        }
        let term = match (all_kept, keeps_terms) {
            (false, _) => "const float v = terms[shift + j];".to_string(),
            (true, keeps) => {
                let call = self.term_call(|i| format!("terms[{i} * words + shift + j]"));
                format!("const float v = {call};{}", if keeps { " terms[shift + j] = v;" } else { "" })
            }
        };
        let _ = writeln!(
            t,
            "__syncthreads();\nconst unsigned chunks = (width + {CHUNK} - 1) / {CHUNK};\nfor (unsigned c = warp; c < chunks; c += {warps}) {{"
        );
        let _ = writeln!(
            t,
            "float s = 0.0f; const unsigned end = width < (c + 1) * {CHUNK} ? width : (c + 1) * {CHUNK};\n#pragma unroll 8\nfor (unsigned j = c * {CHUNK} + lane; j < end; j += 32) {{ {term} s = __fadd_rn(s, v); }}"
        );
        t.push_str("#pragma unroll\n");
        t.push_str(FOLD_SUM);
        t.push_str("if (lane == 0) parts[c] = s; }\n__syncthreads();\n");
        t.push_str("float s = 0.0f;\nfor (unsigned c = lane; c < chunks; c += 32) s = __fadd_rn(s, parts[c]);\n#pragma unroll\n");
        t.push_str(FOLD_SUM);
        t.push_str("s = __shfl_sync(0xffffffffu, s, 0);\nconst float r_of = row_of(s);\n");
        if self.labels.is_some() {
            t.push_str(self.label_text());
        }
        if self.per_row {
            let _ = writeln!(
                t,
                "if (threadIdx.x == 0) out[row] = {};",
                self.post_call(|i| format!("in{i}[at + label]"), "terms[shift + label]", "1.0f")
            );
        } else {
            let mut body = guard.clone();
            let again = reads_term && !keeps_terms;
            for i in (0..self.ins).filter(|&i| reads[i] || again) {
                body.push_str(&if i < kept && !(i == 0 && keeps_terms) {
                    load_kept(i, &format!("x{i}"))
                } else {
                    load_global(i)
                });
            }
            if keeps_terms {
                body.push_str(&load_kept(0, "kept"));
            }
            let kept = match (keeps_terms, again) {
                (true, _) => "kept[e]".into(),
                (false, true) => self.term_call(x),
                (false, false) => "0.0f".into(),
            };
            body.push_str("float r[4];\n");
            let hit = if self.labels.is_some() { "(j == label ? 1.0f : 0.0f)" } else { "0.0f" };
            let call = self.post_call(|i| if reads[i] { x(i) } else { "0.0f".into() }, &kept, hit);
            body.push_str(&lanes(&format!("r[e] = {call};")));
            let store = "*reinterpret_cast<float4*>(out + from + p0) = make_float4(r[0], r[1], r[2], r[3]);";
            if aligned {
                let _ = writeln!(body, "{store}");
            } else {
                let _ = writeln!(
                    body,
                    "if (whole) {{ {store} }} else {{ for (unsigned e = 0; e < 4; ++e) if {} out[from + p0 + e] = r[e]; }}",
                    inside("shift")
                );
            }
            t.push_str(&each(&body));
        }
        t.push_str("__syncthreads();\n}\n}\n");
        t
    }

    /// One block of 32 warps per row. The row is read three times (maximum, sum, result), the second and
    /// third time mostly from the L2 cache. Each warp sums whole chunks of the row rule; the chunk sums go
    /// through `partial` level by level.
    fn long_text(&self) -> String {
        let mut t = self.head(LONG_THREADS);
        t.push_str("__shared__ float best[32];\n");
        t.push_str("for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {\n");
        t.push_str("const unsigned long long at = row * columns;\nfloat m = 0.0f;\n");
        if self.best.is_some() {
            t.push_str("const unsigned long long mask_at = row % period * columns;\n");
        }
        let x = |i: usize| format!("in{i}[{} + j]", if self.is_mask(i) { "mask_at" } else { "at" });
        if self.max {
            let _ = writeln!(
                t,
                "m = -__int_as_float(0x7f800000);\n#pragma unroll 8\nfor (unsigned long long j = threadIdx.x; j < columns; j += {LONG_THREADS}) {{ const float x = {}; if (x > m) m = x; }}",
                self.best_call(x)
            );
            t.push_str(FOLD_MAX);
            t.push_str("if (lane == 0) best[warp] = m;\n__syncthreads();\nfor (int w = 0; w < 32; ++w) if (best[w] > m) m = best[w];\nm = __fadd_rn(m, 0.0f);\n");
        }
        let _ = writeln!(
            t,
            "float* sums = partial + row * partials;\nunsigned long long count = (columns + {CHUNK} - 1) / {CHUNK};"
        );
        let _ = writeln!(
            t,
            "for (unsigned long long c = warp; c < count; c += 32) {{ float s = 0.0f; const unsigned long long end = columns < (c + 1) * {CHUNK} ? columns : (c + 1) * {CHUNK};\n#pragma unroll 8\nfor (unsigned long long j = c * {CHUNK} + lane; j < end; j += 32) s = __fadd_rn(s, {});",
            self.term_call(x)
        );
        t.push_str(FOLD_SUM);
        t.push_str("if (lane == 0) sums[c] = s; }\n__syncthreads();\n");
        let _ = writeln!(
            t,
            "while (count > 1) {{ float* next = sums + count; const unsigned long long groups = (count + {CHUNK} - 1) / {CHUNK};\nfor (unsigned long long c = warp; c < groups; c += 32) {{ float s = 0.0f; const unsigned long long end = count < (c + 1) * {CHUNK} ? count : (c + 1) * {CHUNK};\nfor (unsigned long long j = c * {CHUNK} + lane; j < end; j += 32) s = __fadd_rn(s, sums[j]);\n{FOLD_SUM}if (lane == 0) next[c] = s; }}\n__syncthreads(); sums = next; count = groups; }}\nconst float s = sums[0], r_of = row_of(s);"
        );
        if self.labels.is_some() {
            t.push_str(self.label_text());
        }
        if self.per_row {
            let _ = writeln!(
                t,
                "if (threadIdx.x == 0) {{ const unsigned long long j = label; out[row] = {}; }}",
                self.post_call(x, &self.term_call(x), "1.0f")
            );
        } else {
            let hit = if self.labels.is_some() { "(j == label ? 1.0f : 0.0f)" } else { "0.0f" };
            let _ = writeln!(
                t,
                "#pragma unroll 4\nfor (unsigned long long j = threadIdx.x; j < columns; j += {LONG_THREADS}) {{ out[at + j] = {}; }}",
                self.post_call(x, &self.term_call(x), hit)
            );
        }
        t.push_str("__syncthreads();\n}\n}\n");
        t
    }
}

simd_fn! {
    /// The largest of each column, NaN ignored, -inf for none; never -0. Rows are `stride` apart.
    fn column_max(simd, x: &[f32], rows: usize, stride: usize, out: &mut [f32]) {
        out.fill(f32::NEG_INFINITY);
        for r in 0..rows {
            let row = &x[r * stride..][..out.len()];
            for (m, &x) in out.iter_mut().zip(row) {
                *m = if x > *m { x } else { *m };
            }
        }
        out.iter_mut().for_each(|m| *m += 0.0);
    }
}

/// Words that a block of columns' repeated maxima and sums may take.
const REPEATED: usize = 1024;

/// The programs of a column kernel with their registers, and room for what is repeated along rows.
struct ColumnWorker<'k> {
    kernel: &'k RowKernel,
    term: Registers<'k>,
    of_row: Registers<'k>,
    post: Registers<'k>,
    scratch: Scratch,
    block: usize,
}

impl<'k> ColumnWorker<'k> {
    fn new(kernel: &'k RowKernel) -> ColumnWorker<'k> {
        let block = kernel.term.block().min(kernel.post.block()).min(REPEATED);
        let [term, of_row, post] =
            [&kernel.term, &kernel.of_row, &kernel.post].map(|program| Registers::new(program, block));
        ColumnWorker { kernel, term, of_row, post, scratch: Scratch::take(6 * block), block }
    }

    /// Terms, or results from terms, of whole rows of `m.len()` columns; `out` holds the terms.
    fn run(&mut self, simd: Simd, ins: &[&[f32]], m: &[f32], s: Option<&[f32]>, out: &mut [f32]) {
        let (inner, block, n) = (m.len(), self.block, self.kernel.ins);
        let (m_block, rest) = self.scratch.words().split_at_mut(block);
        let (s_block, rest) = rest.split_at_mut(block);
        let (r_block, rest) = rest.split_at_mut(block);
        let (terms, rest) = rest.split_at_mut(block);
        let (zeros, _) = rest.split_at_mut(block);
        zeros.fill(0.0);
        // Whole rows at a time where several fit, else pieces of one.
        let width = inner.min(block);
        let rows = if width == inner { block / inner } else { 1 };
        for piece in (0..inner).step_by(width) {
            let width = width.min(inner - piece);
            for row in 0..rows {
                let to = row * width..(row + 1) * width;
                m_block[to.clone()].copy_from_slice(&m[piece..piece + width]);
                if let Some(s) = s {
                    let s = &s[piece..piece + width];
                    s_block[to.clone()].copy_from_slice(s);
                }
            }
            if s.is_some() {
                let all = rows * width;
                self.of_row.run(simd, &[&s_block[..all]], &mut r_block[..all]);
            }
            let step = if width == inner { rows * inner } else { inner };
            for start in (0..out.len()).step_by(step) {
                let at = start + piece;
                let len = if width == inner { step.min(out.len() - start) } else { width };
                let mut args: [&[f32]; 16] = [&[]; 16];
                for (a, x) in args.iter_mut().zip(ins) {
                    *a = &x[at..at + len];
                }
                args[n] = &m_block[..len];
                let out = &mut out[at..at + len];
                if s.is_none() {
                    self.term.run(simd, &args[..n + 1], out);
                    continue;
                }
                terms[..len].copy_from_slice(out);
                let rest: [&[f32]; 6] = [&*m_block, s_block, terms, zeros, zeros, r_block].map(|b| &b[..len]);
                args[n..n + 6].copy_from_slice(&rest);
                self.post.run(simd, &args[..n + 6], out);
            }
        }
    }
}

/// The longest column that one thread takes: a single chain.
const SHORT: usize = ROWS;

// Columns: the same kernels along an axis that is not the last one, for values of (outer, n, inner). The sum is by
// the column rule, since a column's elements are a row apart.
impl RowKernel {
    /// Words of workspace on the CPU: maxima and sums of all columns.
    pub(crate) fn columns_workspace(inner: usize) -> usize {
        2 * inner
    }

    /// Runs on the CPU over columns of `n` elements that are `inner` apart.
    pub(crate) fn columns_cpu(&self, n: usize, inner: usize, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        let (simd, slab) = (run.simd, n * inner);
        let ins = &run.ins[..self.ins];
        let of = |range: std::ops::Range<usize>| -> [&[f32]; 4] {
            std::array::from_fn(|i| ins.get(i).map_or(&[][..], |x| &x[range.clone()]))
        };
        let maxima = |x: &[f32], from: usize, m: &mut [f32]| {
            if self.max { column_max(simd, &x[from..], n, inner, m) } else { m.fill(0.0) }
        };
        let sums = |t: &[f32], from: usize, s: &mut [f32]| {
            for (tile, s) in s.chunks_mut(WIDTH).enumerate() {
                norm::column_sums(simd, &t[from + tile * WIDTH..], n, inner, s);
            }
        };
        if run.out.len() > slab {
            run.pool.chunks_mut(run.out, slab, |o, out| {
                let mut scratch = Scratch::take(2 * inner);
                let (m, s) = scratch.words()[..2 * inner].split_at_mut(inner);
                let ins = of(o * slab..(o + 1) * slab);
                let mut worker = ColumnWorker::new(self);
                maxima(ins[0], 0, m);
                worker.run(simd, &ins[..self.ins], m, None, out);
                sums(out, 0, s);
                worker.run(simd, &ins[..self.ins], m, Some(s), out);
            });
            return;
        }
        let (m, s) = run.workspace[..2 * inner].split_at_mut(inner);
        let columns = run.pool.share(inner, WIDTH, WIDTH);
        let rows = run.pool.share(n, (16 * 1024 / inner).max(1), 1);
        run.pool.chunks_mut(m, columns, |task, m| maxima(ins[0], task * columns, m));
        let m = &*m;
        let by_rows = |out: &mut [f32], s: Option<&[f32]>| {
            run.pool.chunks_mut(out, rows * inner, |task, out| {
                let ins = of(task * rows * inner..task * rows * inner + out.len());
                ColumnWorker::new(self).run(simd, &ins[..self.ins], m, s, out);
            });
        };
        by_rows(run.out, None);
        let t = &*run.out;
        run.pool.chunks_mut(s, columns, |task, s| sums(t, task * columns, s));
        by_rows(run.out, Some(s));
    }

    /// Module name and source for columns of `n` elements.
    pub(crate) fn columns_module(&self, n: usize) -> (String, String) {
        let short = n <= SHORT;
        let name = format!("columns_{}_{}", self.name, if short { "short" } else { "tall" });
        let mut t = format!("{}#define ROWS {ROWS}\n{COLUMN_SUM}{}", map::prelude(), self.functions());
        t.push_str("extern \"C\" __global__ void columns(float* __restrict__ out");
        for i in 0..self.ins {
            let _ = write!(t, ", const float* __restrict__ in{i}");
        }
        t.push_str(", unsigned long long count, unsigned long long n, unsigned long long inner");
        for c in 0..self.term.consts().len() {
            let _ = write!(t, ", float kt{c}");
        }
        for c in 0..self.post.consts().len() {
            let _ = write!(t, ", float kp{c}");
        }
        t.push_str(") {\nconst float g = 0.0f;\n");
        let x = |i: usize| format!("in{i}[at + r * inner]");
        let (term, post) = (self.term_call(x), self.post_call(x, &self.term_call(x), "0.0f"));
        let place = "const unsigned long long o = c <= 0xffffffffull && inner <= 0xffffffffull ? (unsigned)c / (unsigned)inner : c / inner;\nconst unsigned long long at = o * n * inner + (c - o * inner);\nfloat m = 0.0f;\n";
        if short {
            // A thread has a column: one chain. 4 bytes read per element and input, the second and third time from the caches.
            let _ = writeln!(
                t,
                "for (unsigned long long c = blockIdx.x * 256ull + threadIdx.x; c < count; c += gridDim.x * 256ull) {{\n{place}"
            );
            if self.max {
                t.push_str("m = -__int_as_float(0x7f800000);\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) { const float v = in0[at + r * inner]; if (v > m) m = v; }\nm = __fadd_rn(m, 0.0f);\n");
            }
            let _ = writeln!(
                t,
                "float s = 0.0f;\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) s = __fadd_rn(s, {term});\nconst float r_of = row_of(s);\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) out[at + r * inner] = {post};\n}}\n}}"
            );
            return (name, t);
        }
        // A block has 32 columns, a lane each, and its warps share out the rows: chains of the column rule, then
        // every warp chains the warps' results.
        let _ = writeln!(
            t,
            "__shared__ float part[32][33];\nconst unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;\nfor (unsigned long long tile = blockIdx.x; tile * 32 < count; tile += gridDim.x) {{\nconst unsigned long long wanted = tile * 32 + lane, c = wanted < count ? wanted : count - 1;\n{place}"
        );
        if self.max {
            t.push_str("m = -__int_as_float(0x7f800000);\n#pragma unroll 8\nfor (unsigned long long r = warp; r < n; r += warps) { const float v = in0[at + r * inner]; if (v > m) m = v; }\npart[warp][lane] = m;\n__syncthreads();\nfor (unsigned w = 0; w < warps; ++w) if (part[w][lane] > m) m = part[w][lane];\nm = __fadd_rn(m, 0.0f);\n__syncthreads();\n");
        }
        let _ = writeln!(t, "const float s = column_sum(n, part, [&](u64 r) {{ return {term}; }});");
        let _ = writeln!(
            t,
            "const float r_of = row_of(s);\nif (wanted < count) {{\n#pragma unroll 4\nfor (unsigned long long r = warp; r < n; r += warps) out[at + r * inner] = {post};\n}}\n}}\n}}"
        );
        (name, t)
    }

    /// Queues the kernel on CUDA over columns of `n` elements that are `inner` apart.
    pub(crate) fn columns_cuda(&self, n: usize, inner: usize, run: &CudaRun<'_>) -> Result<()> {
        let elements = run.shape.numel();
        if elements == 0 {
            return Ok(());
        }
        let count = elements / n;
        let (module, source) = self.columns_module(n);
        let kernel = run.cuda.kernel(&module, &source, "columns")?;
        let mut args = Args::new();
        args.ptr(run.out);
        for &x in &run.ins[..self.ins] {
            args.ptr(x);
        }
        args.u64(count as u64).u64(n as u64).u64(inner as u64);
        for &k in self.term.consts().iter().chain(self.post.consts()) {
            args.f32(k);
        }
        if n <= SHORT {
            return run.cuda.launch(kernel, grid(run.cuda, count), 256, 0, &args);
        }
        let warps = n.div_ceil(ROWS).clamp(1, 16) as u32;
        let blocks = count.div_ceil(32).min(run.cuda.sm_count() as usize * 16);
        run.cuda.launch(kernel, [blocks as u32, 1, 1], warps * 32, 0, &args)
    }
}

/// Chunk sums that a block which keeps its row in shared memory has room for.
const PARTS: usize = 64;

/// Threads of a block that takes a long row.
const LONG_THREADS: u32 = 1024;

/// How rows of a given length are shared out on CUDA. It changes the speed, not the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    /// A warp per row, so many elements per lane in registers, all of them used or not.
    Warp { per_lane: usize, exact: bool },
    /// A block per row, the rows of so many inputs in shared memory, the next ones on their way into a second buffer
    /// if there is room. Rows that divide by four start at aligned addresses; others have a few elements before the first one.
    Shared { threads: u32, aligned: bool, kept: usize, buffers: u32 },
    /// A block per row that does not fit into shared memory.
    Long,
}

impl Variant {
    fn name(self) -> String {
        match self {
            Variant::Warp { per_lane, exact } => format!("warp{per_lane}{}", if exact { "e" } else { "" }),
            Variant::Shared { threads, aligned, kept, buffers } => {
                format!("shared{threads}x{kept}x{buffers}{}", if aligned { "a" } else { "" })
            }
            Variant::Long => "long".into(),
        }
    }

    /// For a kernel that would keep rows of so many inputs.
    fn of(columns: usize, inputs: usize, gpu: &Gpu) -> Variant {
        // A little is left for the sums.
        let room = gpu.shared.saturating_sub(1024) / 4;
        match columns {
            0..=256 => {
                let per_lane = columns.div_ceil(LANES).next_power_of_two();
                Variant::Warp { per_lane, exact: columns == per_lane * LANES }
            }
            // Short rows that are not aligned are best read word by word by a warp.
            257..=512 if !columns.is_multiple_of(4) => {
                Variant::Warp { per_lane: per_lane(columns), exact: false }
            }
            _ if buffer_words(columns) <= room.min(PARTS * CHUNK) => {
                // Each thread takes about 32 elements: more threads wait for each other longer than they help.
                let threads = match columns {
                    0..=1024 => 32,
                    1025..=2048 => 64,
                    2049..=4096 => 128,
                    4097..=8192 => 256,
                    _ => 512,
                };
                let kept = if inputs * buffer_words(columns) <= room { inputs } else { 1 };
                let buffers = if kept * columns <= 12288.min(room / 2 - 4 * kept) { 2 } else { 1 };
                Variant::Shared { threads, aligned: columns.is_multiple_of(4), kept, buffers }
            }
            _ => Variant::Long,
        }
    }
}

/// Words of shared memory a row takes: whole vectors, wherever the row starts within the first.
fn buffer_words(columns: usize) -> usize {
    if columns.is_multiple_of(4) { columns } else { (columns + 3).next_multiple_of(4) }
}

/// Words of `partial` one long row takes: its chunk sums and the levels above.
pub(crate) fn partials(columns: usize) -> usize {
    let (mut count, mut words) = (columns.div_ceil(CHUNK), 0);
    while count > 1 {
        words += count;
        count = count.div_ceil(CHUNK);
    }
    words + 1
}
