//! The CUDA kernels: which one is launched, and with what.

use super::{RowKernel, Variant, fills_lanes, partials, per_lane};
use crate::fused::Around;
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::pointwise::program::Program;
use crate::{CudaRun, Gpu};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::sum::{CHUNK, LANES, ROWS};
use std::fmt::Write;

/// Adds lane `i + half` to lane `i`, for halves of a warp and down, as the row rule says.
pub(super) const FOLD_SUM: &str =
    "for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));\n";

/// Leaves the largest `m` of a warp in all its lanes.
pub(super) const FOLD_MAX: &str = "for (int o = 16; o > 0; o /= 2) { const float other = __shfl_xor_sync(0xffffffffu, m, o); m = fmaxf(m, other); }\n";

/// The sum of a row whose chunks the warps of a block have summed into `parts`, in every lane, and what is made of it.
pub(super) fn sum_of_parts() -> String {
    format!(
        "__syncthreads();\nfloat s = 0.0f;\nfor (unsigned c = lane; c < chunks; c += 32) s = __fadd_rn(s, parts[c]);\n#pragma unroll\n{FOLD_SUM}\
         s = __shfl_sync(0xffffffffu, s, 0);\nconst float r_of = row_of(s);\n"
    )
}

/// The column rule as CUDA text, for modules that define `ROWS`.
pub(crate) const COLUMN_SUM: &str = include_str!("column_sum.cu");

/// Copies of rows into shared memory.
pub(super) const ARRIVALS: &str = include_str!("arrivals.cu");

/// A program with one result as a CUDA function of its inputs.
pub(crate) fn device_function(name: &str, program: &Program) -> String {
    let params: Vec<String> = (0..program.inputs()).map(|i| format!("float x{i}")).collect();
    let mut t = format!("__device__ __forceinline__ float {name}({}) {{\n", params.join(", "));
    t.push_str(&program.cuda_constants());
    t.push_str(&program.cuda());
    t.push_str("return y0;\n}\n");
    t
}

impl RowKernel {
    /// Words of workspace on CUDA: the chunk sums of long rows and the levels above them.
    pub(crate) fn workspace(rows: usize, columns: usize, gpu: &Gpu) -> usize {
        if Variant::of(columns, 1, false, gpu) == Variant::Long { rows * partials(columns) } else { 0 }
    }

    /// Queues the kernel on CUDA.
    pub(crate) fn run_cuda(&self, columns: usize, run: &CudaRun<'_>) -> Result<()> {
        let elements = run.metas[0].shape.numel();
        if elements == 0 {
            return Ok(());
        }
        let rows = elements / columns;
        let gpu = Gpu::of(run.cuda);
        let (module, source) = self.module_with(columns, &gpu, run.around);
        let kernel = run.cuda.kernel(&module, source, "rows")?;
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
        run.around.push(&mut args);
        let sms = run.cuda.sm_count() as usize;
        let (grid, threads, shared) = match self.variant(columns, &gpu) {
            Variant::Warp { .. } => (grid(run.cuda, rows * 32), 256, 0),
            Variant::Chunks { warps, each, aligned } => {
                let blocks = rows.min(sms * resident(warps) as usize) as u32;
                ([blocks, 1, 1], warps * 32, 4 * warps * chunk_words(each, aligned) as u32)
            }
            Variant::Shared { threads, kept, buffers, .. } => {
                let shared = buffers as usize * kept * buffer_words(columns) * 4;
                // As many blocks as a multiprocessor holds at a time: those beyond would come after all others
                // and have it to themselves. Each block takes a little more shared memory than its rows.
                let room = (gpu.shared + 1024) / (shared + 1024 + 512);
                let resident = (2048 / threads as usize).min(32).min(room).max(1);
                ([rows.min(sms * resident) as u32, 1, 1], threads, shared as u32)
            }
            // One row per multiprocessor at a time: more would push each other out of the L2 cache.
            Variant::Long => ([rows.min(sms) as u32, 1, 1], LONG_THREADS, 0),
        };
        run.cuda.launch(kernel, grid, threads, shared, &args)
    }

    /// Module name and source for rows of `columns` elements.
    pub(crate) fn module(&self, columns: usize, gpu: &Gpu) -> Source {
        self.module_with(columns, gpu, Around::default())
    }

    /// The module with programs around: of rows that a warp keeps in registers.
    pub(crate) fn joined(&self, columns: usize, gpu: &Gpu, around: Around<'_>) -> Option<Source> {
        let is_warp = matches!(self.variant(columns, gpu), Variant::Warp { .. });
        (is_warp && !self.per_row).then(|| self.module_with(columns, gpu, around))
    }

    pub(super) fn module_with(&self, columns: usize, gpu: &Gpu, around: Around<'_>) -> Source {
        let variant = self.variant(columns, gpu);
        let each = if self.row_scalar { "_each" } else { "" };
        let name = format!("rows_{}{each}_{}", self.name, variant.name());
        let (tag, before) = around.text();
        crate::module(name + &tag, || {
            let body = match variant {
                Variant::Warp { per_lane, exact } => self.warp_text(per_lane, exact, around),
                Variant::Shared { threads, aligned, kept, buffers } => {
                    self.shared_text(threads, aligned, kept, buffers)
                }
                Variant::Chunks { warps, each, aligned } => self.chunks_text(warps, each, aligned),
                Variant::Long => self.long_text(),
            };
            map::prelude().to_string() + &before + &body
        })
    }

    /// The programs as device functions over the row's values.
    pub(super) fn functions(&self) -> String {
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

    /// The functions and the kernel's head, with these launch bounds.
    pub(super) fn head(&self, bounds: &str, around: Around<'_>) -> String {
        let mut t = self.functions();
        let _ = write!(
            t,
            "extern \"C\" __global__ void __launch_bounds__({bounds}) rows(float* __restrict__ out"
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
        if around.lead.is_some() {
            t.push_str(", const __grid_constant__ Lead lead_with");
        }
        if around.follow.is_some() {
            t.push_str(", const __grid_constant__ Follow follow_with");
        }
        t.push_str(") {\n");
        let g = if self.scalar.is_some() && !self.row_scalar { "scalar[0]" } else { "0.0f" };
        let _ = writeln!(t, "const float g = {g};");
        t.push_str("const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n");
        t
    }

    /// The row's label. One result per row is read at it, so it is held inside the row, as on the CPU.
    pub(super) fn label_text(&self) -> &'static str {
        match self.per_row {
            true => "const unsigned label = labels[row] < columns ? labels[row] : (unsigned)columns - 1;\n",
            false => "const unsigned label = labels[row];\n",
        }
    }

    /// Whether input `i` is a mask, whose rows may repeat.
    pub(super) fn is_mask(&self, i: usize) -> bool {
        self.best.is_some() && i + 1 == self.ins
    }

    /// Where row `row` of input `i` starts.
    pub(super) fn row_start(&self, i: usize, row: &str) -> String {
        if self.is_mask(i) { format!("({row} % period * columns)") } else { format!("({row} * columns)") }
    }

    /// What the maximum is taken of.
    pub(super) fn best_call(&self, x: impl Fn(usize) -> String) -> String {
        match &self.best {
            Some(_) => format!("best_of({})", (0..self.ins).map(x).collect::<Vec<_>>().join(", ")),
            None => x(0),
        }
    }

    /// A call of `term` or `post` with the given expressions for the inputs and what follows them.
    pub(super) fn call(
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

    pub(super) fn term_call(&self, x: impl Fn(usize) -> String) -> String {
        self.call("term", x, "m", self.term.consts().len(), "kt")
    }

    pub(super) fn post_call(&self, x: impl Fn(usize) -> String, t: &str, hit: &str) -> String {
        let g = if self.row_scalar { "scalar[row]" } else { "g" };
        self.call("post", x, &format!("m, s, {t}, {hit}, {g}, r_of"), self.post.consts().len(), "kp")
    }

    /// For short rows: one warp per row, the row in registers: element `lane + 32 q` is lane `lane`'s `q`-th, which is the
    /// lane it has in the row rule. Each input is read once, 4 bytes per element; the result written once.
    /// The next row is on its way while a short row is computed; between long ones other warps have their turn.
    pub(super) fn warp_text(&self, per_lane: usize, exact: bool, around: Around<'_>) -> String {
        // As many warps as registers allow that hold one row each; a program before it may need more of them.
        let alone = self.ins == 1 && around.lead.is_none();
        let mut t = self.head(if alone { "256, 4" } else { "256" }, around);
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
                let from = match around.lead {
                    Some(lead) if lead.slot() == i => format!("lead(lead_with, {row}, columns, j)"),
                    _ => format!("in{i}[{} + j]", self.row_start(i, row)),
                };
                let _ = writeln!(t, "{to}{i}[q] = in ? {from} : 0.0f;");
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
                "m = -__int_as_float(0x7f800000);\n{each} const float of = {of}; if (in) m = fmaxf(m, of); }}"
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
            let result = self.post_call(v, "t[q]", hit);
            let _ = match around.follow.is_some() {
                true => writeln!(t, "{each} if (in) follow_store(follow_with, out, at + j, j, {result}); }}"),
                false => writeln!(t, "{each} if (in) out[at + j] = {result}; }}"),
            };
        }
        t.push_str("}\n}\n");
        t
    }

    pub(super) fn variant(&self, columns: usize, gpu: &Gpu) -> Variant {
        Variant::of(columns, self.kept(), self.ins == 1, gpu)
    }

    /// For long rows of one input: a block per row, a warp for one chunk of the row rule or for two neighbours. A warp has
    /// its elements in registers, as [`RowKernel::warp_text`] has a row, and those of the next row on their way into shared
    /// memory from then on; but for the first [`KEPT`] of each lane where it has two chunks, which stay in shared memory until
    /// they are not needed any more. Each input is read once, 4 bytes per element; the result written once, past what caches keep.
    ///
    /// Behind the row's end shared memory holds -inf, whose terms are 0: all lanes do the same. A row that is not aligned comes
    /// from the aligned address before it up to one behind it, and lies `shift` elements further in shared memory. Behind the
    /// last row there is nothing to be read: its last elements come one by one.
    pub(super) fn chunks_text(&self, warps: u32, each: u32, aligned: bool) -> String {
        assert!(self.max, "between two rows' sums all warps meet for a maximum");
        let per_lane = CHUNK / LANES;
        let (all, kept) = (each as usize * per_lane, if each == 2 { KEPT } else { 0 });
        // A turn of this for each of the lane's elements from one on up to another, `x`, which `keep` gives another value.
        let over = |from: usize, to: usize, body: &str| {
            let turns = |from: usize, to: usize, x: &str, guard: &str| match from < to {
                true => format!(
                    "#pragma unroll\nfor (int q = {from}; q < {to}; ++q) {{\nconst bool in = 32 * q < left; (void)in;\n\
                     const float x = {x};\nauto keep = [&](float y) {{ {guard}{x} = y; }}; (void)keep;\n{body}\n}}\n"
                ),
                false => String::new(),
            };
            turns(from, to.min(kept), "mine[32 * q]", "if (in) ")
                + &turns(from.max(kept), to, &format!("v[q - {kept}]"), "")
        };
        // Starts copies of elements from one on up to another, but for what is behind the row's end. Where they begin and end
        // in shared memory is the same for all rows: those to be kept take up to `SHIFT` others with them.
        let fetch = |row: &str, from: usize, to: usize| match from < to {
            true => {
                let start = if from > 0 { format!("{} + SHIFT", 32 * from) } else { "0".into() };
                format!("if ({row} < rows) fetch({row}, {start}, {} + SHIFT);\n", 32 * to)
            }
            false => String::new(),
        };
        let following = "(row + gridDim.x)";
        let mut t = format!("#define SHIFT {}\n{ARRIVALS}", shift(aligned));
        t.push_str(&self.head(&format!("{}, {}", warps * 32, resident(warps)), Around::default()));
        let _ = write!(
            t,
            "extern __shared__ float4 row_memory[];\n__shared__ float best[{warps}], parts[{}];\n\
             __shared__ unsigned long long arrivals[{warps}];\n\
             const unsigned width = (unsigned)columns, chunks = (width + {CHUNK} - 1) / {CHUNK}, first = warp * {};\n\
             float* const memory = reinterpret_cast<float*>(row_memory) + warp * ({} + 2 * SHIFT);\n\
             const int length = first < width ? (int)(width - first) : 0, left = length - (int)lane;\n\
             const float none = -__int_as_float(0x7f800000);\n\
             for (int j = length + lane; j < {} + 2 * SHIFT; j += 32) memory[j] = none;\n\
             Arrivals next(arrivals + warp, {});\n\
             auto shift_of = [&](unsigned long long row) {{ return SHIFT ? (int)(row * columns % 4) : 0; }};\n\
             auto fetch = [&](unsigned long long row, int from, int to) {{\n\
             const int shift = shift_of(row), end = (shift + length + (row + 1 < rows ? 3 : 0)) / 4 * 4;\n\
             next.fetch(memory + from, in0 + row * columns + first - shift + from, (end < to ? end : to) - from);\n}};\n\
             unsigned long long row = blockIdx.x;\n{}{}",
            warps * each,
            32 * all,
            32 * all,
            32 * all,
            if kept > 0 { 2 } else { 1 },
            fetch("row", 0, kept),
            fetch("row", kept, all),
        );
        let _ = write!(
            t,
            "for (; row < rows; row += gridDim.x) {{\nfloat* const mine = memory + shift_of(row) + lane;\nnext.wait();\n\
             if (SHIFT && length < {} + SHIFT) {{\nconst int shift = shift_of(row), end = (shift + length) / 4 * 4 + (int)lane;\n\
             if (row + 1 == rows && end < shift + length) memory[end] = in0[row * columns + first - shift + end];\n\
             if (length < {} && lane < SHIFT) mine[length] = none;\nnext.written();\n__syncwarp();\n}}\n\
             float v[{}], m = none;\n#pragma unroll\nfor (int q = {kept}; q < {all}; ++q) v[q - {kept}] = mine[32 * q];\n{}{}\
             #pragma unroll\n{FOLD_MAX}if (lane == 0) best[warp] = m;\n__syncthreads();\n\
             m = best[lane < {warps} ? lane : 0];\n#pragma unroll\n{FOLD_MAX}m = __fadd_rn(m, 0.0f);\n",
            32 * all,
            32 * all,
            all - kept,
            fetch(following, kept, all),
            over(0, all, "m = fmaxf(m, x);"),
        );
        // A term takes its element's place if the result wants the term and not the element.
        let reads = self.post.reads();
        let reads_term = reads[self.ins + 2];
        let keeps = !self.per_row && reads_term && !reads[0];
        let keep = if keeps { "keep(y);" } else { "" };
        let term = format!("const float y = {}; s = __fadd_rn(s, y); {keep}", self.term_call(|_| "x".into()));
        for chunk in 0..each as usize {
            t.push_str("{\nfloat s = 0.0f;\n");
            // A few at a time, since the last warp may have no more.
            for from in (chunk * per_lane..(chunk + 1) * per_lane).step_by(KEPT) {
                let _ = write!(t, "if (32 * {from} < length) {{\n{}}}\n", over(from, from + KEPT, &term));
                if self.per_row && from < kept {
                    t.push_str(&fetch(following, 0, kept));
                }
            }
            let _ = write!(
                t,
                "#pragma unroll\n{FOLD_SUM}if (lane == 0) parts[warp * {each} + {chunk}] = s;\n}}\n"
            );
        }
        if keeps && kept > 0 {
            t.push_str("next.written();\n");
        }
        t.push_str(&sum_of_parts());
        if self.labels.is_some() {
            t.push_str(self.label_text());
        }
        if self.per_row {
            let result = self.post_call(|_| "in0[row * columns + label]".into(), "0.0f", "1.0f");
            let _ = writeln!(t, "if (threadIdx.x == 0) out[row] = {result};");
        } else {
            let hit =
                if self.labels.is_some() { "(first + 32 * q + lane == label ? 1.0f : 0.0f)" } else { "0.0f" };
            let term = match (keeps, reads_term) {
                (true, _) => "x".into(),
                (false, true) => self.term_call(|_| "x".into()),
                (false, false) => "0.0f".into(),
            };
            let result = self.post_call(|i| if reads[i] { "x".into() } else { "0.0f".into() }, &term, hit);
            let store = format!("const float y = {result}; if (in) __stcs(to + 32 * q, y);");
            // Hidden, or the compiler would find it again for each element.
            t.push_str("float* to = out + row * columns + first + lane;\nasm(\"\" : \"+l\"(to));\n");
            let _ = write!(
                t,
                "{}{}{}",
                over(0, kept, &store),
                fetch(following, 0, kept),
                over(kept, all, &store)
            );
        }
        t.push_str("}\n}\n");
        t
    }

    /// One block per row, four elements per access. Rows of the first `kept` inputs are in shared memory and read
    /// once, those of others once or twice; whole chunks of the row rule are summed by one warp each, out of shared
    /// memory and without bank conflicts; the chunk sums fold in every warp.
    ///
    /// A row that is not aligned is seen from the aligned address before it: `shift` elements come before its first
    /// one, and the vectors at its ends are taken element by element.
    pub(super) fn shared_text(&self, threads: u32, aligned: bool, kept: usize, buffers: u32) -> String {
        let mut t = self.head(&threads.to_string(), Around::default());
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
            body.push_str(&lanes(&format!("const float of = {of}; if (in) m = fmaxf(m, of);")));
            t.push_str(&each(&body));
            t.push_str("#pragma unroll\n");
            t.push_str(FOLD_MAX);
            let _ = writeln!(
                t,
                "if (lane == 0) best[warp] = m;\n__syncthreads();\n#pragma unroll\nfor (int w = 0; w < {warps}; ++w) m = fmaxf(m, best[w]);\nm = __fadd_rn(m, 0.0f);"
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
        t.push_str("if (lane == 0) parts[c] = s; }\n");
        t.push_str(&sum_of_parts());
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
    pub(super) fn long_text(&self) -> String {
        let mut t = self.head(&LONG_THREADS.to_string(), Around::default());
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
                "m = -__int_as_float(0x7f800000);\n#pragma unroll 8\nfor (unsigned long long j = threadIdx.x; j < columns; j += {LONG_THREADS}) {{ const float x = {}; m = fmaxf(m, x); }}",
                self.best_call(x)
            );
            t.push_str(FOLD_MAX);
            t.push_str("if (lane == 0) best[warp] = m;\n__syncthreads();\nfor (int w = 0; w < 32; ++w) m = fmaxf(m, best[w]);\nm = __fadd_rn(m, 0.0f);\n");
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

/// The longest column that one thread takes: a single chain.
pub(super) const SHORT: usize = ROWS;

// Columns: the same kernels along an axis that is not the last one, for values of (outer, n, inner). The sum is by
// the column rule, since a column's elements are a row apart.
impl RowKernel {
    /// Module name and source for columns of `n` elements.
    pub(crate) fn columns_module(&self, n: usize) -> Source {
        let short = n <= SHORT;
        let name = format!("columns_{}_{}", self.name, if short { "short" } else { "tall" });
        crate::module(name, || self.columns_text(short))
    }

    pub(super) fn columns_text(&self, short: bool) -> String {
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
                t.push_str("m = -__int_as_float(0x7f800000);\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) { const float v = in0[at + r * inner]; m = fmaxf(m, v); }\nm = __fadd_rn(m, 0.0f);\n");
            }
            let _ = writeln!(
                t,
                "float s = 0.0f;\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) s = __fadd_rn(s, {term});\nconst float r_of = row_of(s);\n#pragma unroll 4\nfor (unsigned r = 0; r < n; ++r) out[at + r * inner] = {post};\n}}\n}}"
            );
            return t;
        }
        // A block has 32 columns, a lane each, and its warps share out the rows: chains of the column rule, then
        // every warp chains the warps' results.
        let _ = writeln!(
            t,
            "__shared__ float part[32][33];\nconst unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;\nfor (unsigned long long tile = blockIdx.x; tile * 32 < count; tile += gridDim.x) {{\nconst unsigned long long wanted = tile * 32 + lane, c = wanted < count ? wanted : count - 1;\n{place}"
        );
        if self.max {
            t.push_str("m = -__int_as_float(0x7f800000);\n#pragma unroll 8\nfor (unsigned long long r = warp; r < n; r += warps) { const float v = in0[at + r * inner]; m = fmaxf(m, v); }\npart[warp][lane] = m;\n__syncthreads();\nfor (unsigned w = 0; w < warps; ++w) m = fmaxf(m, part[w][lane]);\nm = __fadd_rn(m, 0.0f);\n__syncthreads();\n");
        }
        let _ = writeln!(t, "const float s = column_sum(n, part, [&](u64 r) {{ return {term}; }});");
        let _ = writeln!(
            t,
            "const float r_of = row_of(s);\nif (wanted < count) {{\n#pragma unroll 4\nfor (unsigned long long r = warp; r < n; r += warps) out[at + r * inner] = {post};\n}}\n}}\n}}"
        );
        t
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
pub(super) const PARTS: usize = 64;

/// Words of rows up to which a block has the next ones on their way into a second buffer.
pub(super) const QUEUED: usize = 12288;

/// Elements that a lane with two chunks of a long row has no registers for: 48 are as many as fit beside a formula's own.
pub(super) const KEPT: usize = 16;

/// Elements before a row that may come with it from an aligned address, rounded to one.
pub(super) const fn shift(aligned: bool) -> usize {
    if aligned { 0 } else { 4 }
}

/// Words of shared memory for a warp's chunks, with room for what may come before and behind them.
pub(super) const fn chunk_words(each: u32, aligned: bool) -> usize {
    each as usize * CHUNK + 2 * shift(aligned)
}

/// Threads of a block that takes a long row.
pub(super) const LONG_THREADS: u32 = 1024;

/// Blocks of so many warps that a multiprocessor holds, with a chunk in registers each.
pub(super) fn resident(warps: u32) -> u32 {
    (LANES as u32 / warps).max(1)
}

impl Variant {
    pub(super) fn warp(columns: usize) -> Variant {
        Variant::Warp { per_lane: per_lane(columns), exact: fills_lanes(columns) }
    }

    /// For a kernel that would keep rows of so many inputs, of one in all or of several.
    pub(super) fn of(columns: usize, inputs: usize, one: bool, gpu: &Gpu) -> Variant {
        // A little is left for the sums.
        let room = gpu.shared.saturating_sub(1024) / 4;
        let aligned = columns.is_multiple_of(4);
        let chunks = columns.div_ceil(CHUNK);
        let each = if chunks <= LANES { 1 } else { 2 };
        let warps = chunks.div_ceil(each);
        match columns {
            n if n <= CHUNK => Variant::warp(columns),
            _ if one && warps <= LANES && warps * chunk_words(each as u32, aligned) <= room => {
                Variant::Chunks { warps: warps as u32, each: each as u32, aligned }
            }
            _ if buffer_words(columns) <= room.min(PARTS * CHUNK) => {
                // Each thread takes about 32 elements: more threads wait for each other longer than they help.
                let threads = match columns {
                    ..=2048 => 64,
                    2049..=4096 => 128,
                    4097..=8192 => 256,
                    _ => 512,
                };
                let kept = if inputs * buffer_words(columns) <= room { inputs } else { 1 };
                let buffers = if kept * columns <= QUEUED.min(room / 2 - 4 * kept) { 2 } else { 1 };
                Variant::Shared { threads, aligned, kept, buffers }
            }
            _ => Variant::Long,
        }
    }
}

/// Words of shared memory a row takes: whole vectors, wherever the row starts within the first.
pub(super) fn buffer_words(columns: usize) -> usize {
    if columns.is_multiple_of(4) { columns } else { (columns + 3).next_multiple_of(4) }
}
