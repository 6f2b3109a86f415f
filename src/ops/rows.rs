//! Row kernels: ops that take a maximum and a sum along the last axis and then compute each element
//! from them (softmax and its relatives). One [`RowKernel`] of two little programs is both the CPU code
//! and the CUDA text, so a formula stands in one place.

use super::map::{self, grid};
use super::program::{Program, Registers, Scratch};
use super::{CpuRun, CudaRun, Gpu, reduce};
use crate::device::cpu::simd::simd_fn;
use crate::device::cuda::Args;
use crate::error::Result;
use crate::numerics::sum::{CHUNK, LANES, Tree};
use std::fmt::Write;

/// Adds lane `i + half` to lane `i`, for halves of a warp and down, as the row rule says.
const FOLD_SUM: &str =
    "for (int o = 16; o > 0; o /= 2) s = __fadd_rn(s, __shfl_down_sync(0xffffffffu, s, o));\n";
/// Leaves the largest `m` of a warp in all its lanes.
const FOLD_MAX: &str = "for (int o = 16; o > 0; o /= 2) { const float other = __shfl_xor_sync(0xffffffffu, m, o); if (other > m) m = other; }\n";

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
/// `m = max x0` (NaN ignored), `t = term(x…, m)`, `s = Σ t` by the row rule, `r = 1 / s`,
/// `y = post(x…, m, s, t, hit, g, r)` where `hit` is 1 at the row's label and 0 elsewhere and `g` is a scalar input.
#[derive(Clone, Debug)]
pub(crate) struct RowKernel {
    /// Kernel name in traces.
    pub name: &'static str,
    /// Number of inputs that have rows; they come first.
    pub ins: usize,
    /// Whether `m` is needed; it is +0 otherwise.
    pub max: bool,
    /// The summand.
    pub term: Program,
    /// The result.
    pub post: Program,
    /// Position of the label input, if there is one.
    pub labels: Option<usize>,
    /// Position of the scalar input, if there is one.
    pub scalar: Option<usize>,
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
        let width = if self.per_row { 1 } else { columns };
        let rows_per_task = run.pool.share(rows, (16 * 1024 / columns).max(1), 1);
        let block = self.term.block().min(self.post.block()).min(CHUNK);
        let (simd, ins) = (run.simd, run.ins);
        let labels: &[u32] = self.labels.map_or(&[], |i| bytemuck::cast_slice(ins[i]));
        let g = self.scalar.map_or(0.0, |i| ins[i][0]);
        run.pool.chunks_mut(run.out, rows_per_task * width, |task, out| {
            let (mut term, mut post) = (Registers::new(&self.term, block), Registers::new(&self.post, block));
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
                let m = if self.max { row_max(simd, &ins[0][at..at + columns]) } else { 0.0 };
                m_block[..fill].fill(m);
                let mut tree = Tree::new();
                let mut args: [&[f32]; 16] = [&[]; 16];
                for start in (0..columns).step_by(CHUNK) {
                    let len = CHUNK.min(columns - start);
                    // The terms are kept where the results will be, unless there is one result only.
                    let t = if self.per_row { &mut t[..len] } else { &mut out[start..start + len] };
                    for (b, t) in t.chunks_mut(block).enumerate() {
                        let from = at + start + b * block;
                        for (a, x) in args.iter_mut().zip(&ins[..self.ins]) {
                            *a = &x[from..from + t.len()];
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
                    r_block[..fill].fill(1.0 / s);
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
                    for (a, x) in args.iter_mut().zip(&ins[..self.ins]) {
                        *a = &x[at + start..at + start + n];
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
        if Variant::of(columns, gpu) == Variant::Long { rows * partials(columns) } else { 0 }
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
        for &k in self.term.consts().iter().chain(self.post.consts()) {
            args.f32(k);
        }
        let (grid, threads, shared) = match Variant::of(columns, &gpu) {
            Variant::Warp { .. } => (grid(run.cuda, rows * 32), 256, 0),
            Variant::Shared { threads, buffers, .. } => {
                let resident = (2048 / threads as usize).min(32);
                (
                    [rows.min(run.cuda.sm_count() as usize * resident) as u32, 1, 1],
                    threads,
                    buffers * columns as u32 * 4,
                )
            }
            // One row per multiprocessor at a time: more would push each other out of the L2 cache.
            Variant::Long => ([rows.min(run.cuda.sm_count() as usize) as u32, 1, 1], LONG_THREADS, 0),
        };
        run.cuda.launch(kernel, grid, threads, shared, &args)
    }

    /// Module name and source for rows of `columns` elements.
    pub(crate) fn module(&self, columns: usize, gpu: &Gpu) -> (String, String) {
        let variant = Variant::of(columns, gpu);
        let body = match variant {
            Variant::Warp { per_lane, exact } => self.warp_text(per_lane, exact),
            Variant::Shared { threads, vector, buffers } => self.shared_text(threads, vector, buffers),
            Variant::Long => self.long_text(),
        };
        let source = format!("{}{}", map::prelude(), body);
        (format!("rows_{}_{}", self.name, variant.name()), source)
    }

    /// Kernel head, and the two programs as device functions over the row's values.
    fn head(&self) -> String {
        let mut t = String::new();
        let function = |t: &mut String, name: &str, program: &Program, tail: &[&str]| {
            let mut params: Vec<String> = (0..self.ins).map(|i| format!("float x{i}")).collect();
            params.extend(tail.iter().enumerate().map(|(j, _)| format!("float x{}", self.ins + j)));
            params.extend((0..program.consts().len()).map(|c| format!("float k{c}")));
            let _ = writeln!(t, "__device__ __forceinline__ float {name}({}) {{", params.join(", "));
            t.push_str(&program.cuda());
            t.push_str("return y0;\n}\n");
        };
        function(&mut t, "term", &self.term, &["m"]);
        function(&mut t, "post", &self.post, &["m", "s", "t", "hit", "g", "r"]);
        t.push_str("extern \"C\" __global__ void rows(float* __restrict__ out");
        for i in 0..self.ins {
            let _ = write!(t, ", const float* __restrict__ in{i}");
        }
        t.push_str(", const unsigned* __restrict__ labels, const float* __restrict__ scalar, float* partial, unsigned long long partials, unsigned long long rows, unsigned long long columns");
        for c in 0..self.term.consts().len() {
            let _ = write!(t, ", float kt{c}");
        }
        for c in 0..self.post.consts().len() {
            let _ = write!(t, ", float kp{c}");
        }
        t.push_str(") {\n");
        let g = if self.scalar.is_some() { "scalar[0]" } else { "0.0f" };
        let _ = writeln!(t, "const float g = {g};");
        t.push_str("const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n");
        t
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
        self.call("post", x, &format!("m, s, {t}, {hit}, g, inverse"), self.post.consts().len(), "kp")
    }

    /// For short rows: one warp per row, the row in registers: element `lane + 32 q` is lane `lane`'s `q`-th, which is the
    /// lane it has in the row rule. Each input is read once, 4 bytes per element; the result written once.
    /// The next row is on its way while a row is computed.
    fn warp_text(&self, per_lane: usize, exact: bool) -> String {
        let mut t = self.head();
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
                let _ = writeln!(t, "{to}{i}[q] = in ? in{i}[{row} * columns + j] : 0.0f;");
            }
            t.push_str("}\n");
        };
        for i in 0..self.ins {
            let _ = writeln!(t, "float v{i}[{per_lane}], n{i}[{per_lane}];");
        }
        t.push_str("unsigned long long row = blockIdx.x * 8ull + warp;\nif (row < rows) {\n");
        fetch(&mut t, "n", "row");
        t.push_str("}\nfor (; row < rows; row += step) {\nconst unsigned long long at = row * columns;\n");
        let _ = writeln!(t, "{each}");
        for i in 0..self.ins {
            let _ = writeln!(t, "v{i}[q] = n{i}[q];");
        }
        t.push_str("}\nif (row + step < rows) {\n");
        fetch(&mut t, "n", "(row + step)");
        t.push_str("}\nfloat m = 0.0f;\n");
        if self.max {
            let _ =
                writeln!(t, "m = -__int_as_float(0x7f800000);\n{each} if (in && v0[q] > m) m = v0[q]; }}");
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
        t.push_str("s = __shfl_sync(0xffffffffu, s, 0);\nconst float inverse = __fdiv_rn(1.0f, s);\n");
        if self.labels.is_some() {
            t.push_str("const unsigned label = labels[row];\n");
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

    /// One block per row, the row's terms in shared memory. The first input is read once, the others once or
    /// twice; whole chunks of the row rule are summed by one warp each, out of shared memory and without bank
    /// conflicts; the chunk sums fold in every warp.
    fn shared_text(&self, threads: u32, vector: bool, buffers: u32) -> String {
        let mut t = self.head();
        let warps = threads / 32;
        let _ = writeln!(
            t,
            "extern __shared__ float4 row_memory[];\nfloat* const memory = reinterpret_cast<float*>(row_memory);"
        );
        let _ = writeln!(
            t,
            "__shared__ float best[{warps}], parts[{PARTS}];\nconst unsigned width = (unsigned)columns;"
        );
        // A thread always works on the same elements, so only the sums need barriers.
        let each = |body: &str| -> String {
            if vector {
                format!(
                    "#pragma unroll 2\nfor (unsigned j0 = threadIdx.x * 4; j0 < width; j0 += {threads} * 4) {{\n{body}\n}}\n"
                )
            } else {
                format!(
                    "#pragma unroll 4\nfor (unsigned j = threadIdx.x; j < width; j += {threads}) {{\n{body}\n}}\n"
                )
            }
        };
        // Loads of input `i` into `x{i}`, as a vector of four or as one element.
        let load = |i: usize, from: &str| -> String {
            if vector {
                format!(
                    "const float4 q{i} = *reinterpret_cast<const float4*>({from} + j0); const float x{i}[4] = {{q{i}.x, q{i}.y, q{i}.z, q{i}.w}};\n"
                )
            } else {
                format!("const float x{i} = {from}[j];\n")
            }
        };
        let lanes = |body: &str| -> String {
            if vector {
                format!(
                    "#pragma unroll\nfor (unsigned e = 0; e < 4; ++e) {{ const unsigned j = j0 + e; {body} }}\n"
                )
            } else {
                format!("{body}\n")
            }
        };
        let x = |i: usize| if vector { format!("x{i}[e]") } else { format!("x{i}") };
        let store = |to: &str, from: &str| -> String {
            if vector {
                format!(
                    "*reinterpret_cast<float4*>({to} + j0) = make_float4({from}[0], {from}[1], {from}[2], {from}[3]);\n"
                )
            } else {
                format!("{to}[j] = {from};\n")
            }
        };
        let result = if vector { "float r[4];\n" } else { "float r;\n" };
        let r = if vector { "r[e]" } else { "r" };
        // The first input's row comes by asynchronous copies, which a thread waits for by itself, since it
        // reads what it copied.
        let (at, bytes, cache) = if vector { ("j0", 16, "cg") } else { ("j", 4, "ca") };
        let fetch = |row: &str, to: &str| -> String {
            let copy = format!(
                "{{ const unsigned to = (unsigned)__cvta_generic_to_shared({to} + {at}); asm volatile(\"cp.async.{cache}.shared.global [%0], [%1], {bytes};\" :: \"r\"(to), \"l\"(in0 + {row} * columns + {at}) : \"memory\"); }}"
            );
            format!("{}asm volatile(\"cp.async.commit_group;\" ::: \"memory\");\n", each(&copy))
        };
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
        if buffers == 2 {
            t.push_str("float* const terms = memory + turn * width;\nif (row + gridDim.x < rows) {\n");
            t.push_str(&fetch("(row + gridDim.x)", "(memory + (turn ^ 1) * width)"));
            t.push_str("asm volatile(\"cp.async.wait_group 1;\" ::: \"memory\");\n} else {\nasm volatile(\"cp.async.wait_group 0;\" ::: \"memory\");\n}\n");
        } else {
            t.push_str("float* const terms = memory;\n");
            t.push_str(&fetch("row", "terms"));
            t.push_str("asm volatile(\"cp.async.wait_group 0;\" ::: \"memory\");\n");
        }
        if self.max {
            t.push_str("m = -__int_as_float(0x7f800000);\n");
            let body = format!("{}{}", load(0, "terms"), lanes(&format!("if ({} > m) m = {};", x(0), x(0))));
            t.push_str(&each(&body));
            t.push_str("#pragma unroll\n");
            t.push_str(FOLD_MAX);
            let _ = writeln!(
                t,
                "if (lane == 0) best[warp] = m;\n__syncthreads();\n#pragma unroll\nfor (int w = 0; w < {warps}; ++w) if (best[w] > m) m = best[w];\nm = __fadd_rn(m, 0.0f);"
            );
        }
        let mut body = String::new();
        for i in 0..self.ins {
            body.push_str(&load(i, &if i == 0 { "terms".to_string() } else { format!("(in{i} + at)") }));
        }
        body.push_str(result);
        body.push_str(&lanes(&format!("{r} = {};", self.term_call(x))));
        body.push_str(&store("terms", "r"));
        t.push_str(&each(&body));
        let _ = writeln!(
            t,
            "__syncthreads();\nconst unsigned chunks = (width + {CHUNK} - 1) / {CHUNK};\nfor (unsigned c = warp; c < chunks; c += {warps}) {{"
        );
        let _ = writeln!(
            t,
            "float s = 0.0f; const unsigned end = width < (c + 1) * {CHUNK} ? width : (c + 1) * {CHUNK};\n#pragma unroll 8\nfor (unsigned j = c * {CHUNK} + lane; j < end; j += 32) s = __fadd_rn(s, terms[j]);"
        );
        t.push_str("#pragma unroll\n");
        t.push_str(FOLD_SUM);
        t.push_str("if (lane == 0) parts[c] = s; }\n__syncthreads();\n");
        t.push_str("float s = 0.0f;\nfor (unsigned c = lane; c < chunks; c += 32) s = __fadd_rn(s, parts[c]);\n#pragma unroll\n");
        t.push_str(FOLD_SUM);
        t.push_str("s = __shfl_sync(0xffffffffu, s, 0);\nconst float inverse = __fdiv_rn(1.0f, s);\n");
        if self.labels.is_some() {
            t.push_str("const unsigned label = labels[row];\n");
        }
        if self.per_row {
            let _ = writeln!(
                t,
                "if (threadIdx.x == 0) out[row] = {};",
                self.post_call(|i| format!("in{i}[at + label]"), "terms[label]", "1.0f")
            );
        } else {
            let reads = self.post.reads();
            let mut body: String =
                (0..self.ins).filter(|&i| reads[i]).map(|i| load(i, &format!("(in{i} + at)"))).collect();
            body.push_str(&load(99, "terms"));
            body.push_str(result);
            let hit = if self.labels.is_some() { "(j == label ? 1.0f : 0.0f)" } else { "0.0f" };
            let call = self.post_call(|i| if reads[i] { x(i) } else { "0.0f".into() }, &x(99), hit);
            body.push_str(&lanes(&format!("{r} = {call};")));
            body.push_str(&store("(out + at)", "r"));
            t.push_str(&each(&body));
        }
        t.push_str("__syncthreads();\n}\n}\n");
        t
    }

    /// One block of 32 warps per row. The row is read three times (maximum, sum, result), the second and
    /// third time mostly from the L2 cache. Each warp sums whole chunks of the row rule; the chunk sums go
    /// through `partial` level by level.
    fn long_text(&self) -> String {
        let mut t = self.head();
        t.push_str("__shared__ float best[32];\n");
        t.push_str("for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {\n");
        t.push_str("const unsigned long long at = row * columns;\nfloat m = 0.0f;\n");
        if self.max {
            let _ = writeln!(
                t,
                "m = -__int_as_float(0x7f800000);\nfor (unsigned long long j = threadIdx.x; j < columns; j += {LONG_THREADS}) {{ const float x = in0[at + j]; if (x > m) m = x; }}"
            );
            t.push_str(FOLD_MAX);
            t.push_str("if (lane == 0) best[warp] = m;\n__syncthreads();\nfor (int w = 0; w < 32; ++w) if (best[w] > m) m = best[w];\nm = __fadd_rn(m, 0.0f);\n");
        }
        let x = |i: usize| format!("in{i}[at + j]");
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
            "while (count > 1) {{ float* next = sums + count; const unsigned long long groups = (count + {CHUNK} - 1) / {CHUNK};\nfor (unsigned long long c = warp; c < groups; c += 32) {{ float s = 0.0f; const unsigned long long end = count < (c + 1) * {CHUNK} ? count : (c + 1) * {CHUNK};\nfor (unsigned long long j = c * {CHUNK} + lane; j < end; j += 32) s = __fadd_rn(s, sums[j]);\n{FOLD_SUM}if (lane == 0) next[c] = s; }}\n__syncthreads(); sums = next; count = groups; }}\nconst float s = sums[0], inverse = __fdiv_rn(1.0f, s);"
        );
        if self.labels.is_some() {
            t.push_str("const unsigned label = labels[row];\n");
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

/// Chunk sums that a block which keeps its row in shared memory has room for.
const PARTS: usize = 64;

/// Threads of a block that takes a long row.
const LONG_THREADS: u32 = 1024;

/// How rows of a given length are shared out on CUDA. It changes the speed, not the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    /// A warp per row, so many elements per lane in registers, all of them used or not.
    Warp { per_lane: usize, exact: bool },
    /// A block per row, the row in shared memory, the next one on its way into a second buffer if there is
    /// room; four elements per access where rows divide by four.
    Shared { threads: u32, vector: bool, buffers: u32 },
    /// A block per row that does not fit into shared memory.
    Long,
}

impl Variant {
    fn name(self) -> String {
        match self {
            Variant::Warp { per_lane, exact } => format!("warp{per_lane}{}", if exact { "e" } else { "" }),
            Variant::Shared { threads, vector, buffers } => {
                format!("shared{threads}x{buffers}{}", if vector { "v" } else { "" })
            }
            Variant::Long => "long".into(),
        }
    }

    fn of(columns: usize, gpu: &Gpu) -> Variant {
        // A little is left for the sums.
        let room = gpu.shared.saturating_sub(1024) / 4;
        match columns {
            0..=256 => {
                let per_lane = columns.div_ceil(LANES).next_power_of_two();
                Variant::Warp { per_lane, exact: columns == per_lane * LANES }
            }
            _ if columns <= room.min(PARTS * CHUNK) => {
                // Each thread takes about 32 elements: more threads wait for each other longer than they help.
                let threads = match columns {
                    0..=1024 => 32,
                    1025..=2048 => 64,
                    2049..=4096 => 128,
                    4097..=8192 => 256,
                    _ => 512,
                };
                let buffers = if columns <= 12288.min(room / 2) { 2 } else { 1 };
                Variant::Shared { threads, vector: columns.is_multiple_of(4), buffers }
            }
            _ => Variant::Long,
        }
    }
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
