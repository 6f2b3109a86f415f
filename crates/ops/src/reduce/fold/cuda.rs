//! The CUDA kernels: which one is launched, and with what.

use super::{Fold, Kind, Pass, Regions, Stage, is_plain, passes};
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::pointwise::program::{Program, Reg, Step};
use crate::{CudaRun, Gpu};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{CHUNK, LANES, ROWS};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

impl Kind {
    /// What a fold starts from, as CUDA text, and what it does with one more element.
    pub(super) fn cuda(self) -> (&'static str, &'static str) {
        match self {
            Kind::Sum => ("0.0f", "__fadd_rn(a, b)"),
            Kind::Product => ("1.0f", "__fmul_rn(a, b)"),
            Kind::Max => ("-__int_as_float(0x7f800000)", "(b > a || b != b) ? b : a"),
            Kind::Min => ("__int_as_float(0x7f800000)", "(a > b || b != b) ? b : a"),
        }
    }
}

pub(super) const FOLD_CU: &str = include_str!("fold.cu");

/// Longest row that a warp keeps in registers.
pub(super) const WARP_ROW: usize = 1024;

/// Chunks of the longest row that a block keeps in shared memory.
pub(super) const PARTS: usize = 64;

/// How all stages over rows that end the shape are run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fused {
    /// A warp or a part of one per row, so many elements per lane in registers.
    Warp(usize),
    /// A block of so many threads per row, the row in shared memory.
    Block(u32),
}

/// A generated module.
#[derive(Clone)]
pub(super) struct Module {
    pub(super) name: Arc<str>,
    pub(super) source: &'static str,
}

/// What of a stage is written into its text: all but the values of constants.
pub(super) type StageKey = (Kind, Vec<Step>, Reg, usize, Vec<Step>, Reg, usize);

pub(super) type ModuleKey = (usize, usize, Vec<StageKey>, Option<Fused>);

impl Stage {
    pub(super) fn key(&self) -> StageKey {
        let (l, p) = (&self.load, &self.post);
        let (steps, more) = (l.steps().to_vec(), p.steps().to_vec());
        (self.kind, steps, l.result(), l.consts().len(), more, p.result(), p.consts().len())
    }
}

/// A device function of a program over `x0…` and constants `k0…`.
pub(super) fn function(text: &mut String, name: &str, program: &Program) {
    let params: Vec<String> = (0..program.inputs())
        .map(|i| format!("float x{i}"))
        .chain((0..program.consts().len()).map(|c| format!("float k{c}")))
        .collect();
    let _ = writeln!(text, "__device__ __forceinline__ float {name}({}) {{", params.join(", "));
    text.push_str(&program.cuda());
    text.push_str("return y0;\n}\n");
}

/// A call with the given arguments, then constants called `prefix0…`.
pub(super) fn call(
    name: &str,
    args: impl IntoIterator<Item = String>,
    program: &Program,
    prefix: &str,
) -> String {
    let consts = (0..program.consts().len()).map(|c| format!("{prefix}{c}"));
    format!("{name}({})", args.into_iter().chain(consts).collect::<Vec<_>>().join(", "))
}

impl Fold {
    /// How the stages over rows of `columns` elements can be fused, if they can.
    pub(super) fn fused(&self, passes: &[Pass], gpu: &Gpu) -> Option<Fused> {
        let [Pass { inner: 1, rows: columns, .. }] = *passes else { return None };
        let room = (gpu.shared.saturating_sub(1024) / 4).min(PARTS * CHUNK);
        match columns {
            _ if self.stages.len() == 1 || self.ins != 1 => None,
            0..=WARP_ROW => Some(Fused::Warp(columns.div_ceil(LANES).next_power_of_two())),
            _ if columns <= room => Some(Fused::Block(32 * columns.div_ceil(CHUNK).min(16) as u32)),
            _ => None,
        }
    }

    /// Parameters of inputs, what is given and the constants of some stages.
    pub(super) fn parameters(&self, stages: std::ops::Range<usize>, given: usize) -> String {
        let mut all: Vec<String> =
            (0..self.ins).map(|i| format!("const float* __restrict__ in{i}")).collect();
        all.extend((0..given).map(|i| format!("const float* __restrict__ g{i}")));
        for k in stages {
            all.extend((0..self.stages[k].load.consts().len()).map(|c| format!("float kl{k}_{c}")));
            all.extend((0..self.stages[k].post.consts().len()).map(|c| format!("float kp{k}_{c}")));
        }
        all.join(", ")
    }

    /// The functions of a stage.
    pub(super) fn functions(&self, k: usize) -> String {
        let mut t = String::new();
        let (start, combine) = self.stages[k].kind.cuda();
        function(&mut t, &format!("load{k}"), &self.stages[k].load);
        function(&mut t, &format!("post{k}"), &self.stages[k].post);
        let _ = writeln!(t, "#define START{k} {start}");
        let _ = writeln!(
            t,
            "__device__ __forceinline__ float combine{k}(float a, float b) {{ return {combine}; }}"
        );
        t
    }

    /// Result `k` from what was folded; a maximum or minimum has +0 added, whatever zero was met first.
    pub(super) fn post_call(&self, k: usize, folded: &str, given: impl Fn(usize) -> String) -> String {
        let folded = match self.stages[k].kind {
            Kind::Sum | Kind::Product => folded.to_string(),
            Kind::Max | Kind::Min => format!("__fadd_rn({folded}, 0.0f)"),
        };
        let args = std::iter::once(folded).chain((0..self.aux + k).map(given));
        call(&format!("post{k}"), args, &self.stages[k].post, &format!("kp{k}_"))
    }

    pub(super) fn load_call(
        &self,
        k: usize,
        input: impl Fn(usize) -> String,
        given: impl Fn(usize) -> String,
    ) -> String {
        let args = (0..self.ins).map(input).chain((0..self.aux + k).map(given));
        call(&format!("load{k}"), args, &self.stages[k].load, &format!("kl{k}_"))
    }

    /// The text of one stage on its own.
    pub(super) fn stage_text(&self, k: usize) -> String {
        let mut t = self.functions(k);
        let load = self.load_call(k, |i| format!("in{i}[i]"), |i| format!("g{i}[o]"));
        let post = self.post_call(k, "s", |i| format!("g{i}[o]"));
        let _ = writeln!(t, "#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n#define START START{k}");
        // Plain elements are under way all at once; formulas would only become long code.
        let unroll = if is_plain(&self.stages[k].load) { 32 } else { 8 };
        let _ = writeln!(t, "constexpr int UNROLL = {unroll};");
        let _ = writeln!(t, "#define combine combine{k}\n#define POST(s, o) {post}");
        let _ = writeln!(t, "#define PARAMS {}", self.parameters(k..k + 1, self.aux + k));
        let _ = writeln!(t, "#define ELEMENT(i, o) {load}");
        let more = "#undef ELEMENT\n#define ELEMENT(i, o) partial[i]\n#define fold_rows more_rows\n#define fold_short more_short\n#define fold_columns more_columns\n";
        format!("{t}{FOLD_CU}{more}{FOLD_CU}")
    }

    /// The text of all stages over rows at once. A row is read from memory once.
    pub(super) fn fused_text(&self, fused: Fused) -> String {
        let count = self.stages.len();
        let mut t: String = (0..count).map(|k| self.functions(k)).collect();
        let _ = writeln!(
            t,
            "extern \"C\" __global__ void fused_rows({}, float* __restrict__ out, unsigned long long rows, unsigned columns, unsigned group) {{",
            self.parameters(0..count, self.aux)
        );
        let given = |i: usize| match i.checked_sub(self.aux) {
            None => format!("a{i}"),
            Some(stage) => format!("r{stage}"),
        };
        match fused {
            Fused::Warp(per_lane) => {
                t.push_str(
                    "const unsigned lane = threadIdx.x % group, per_warp = 32 / group;\n\
                     const unsigned long long step = (unsigned long long)gridDim.x * (blockDim.x / 32) * per_warp;\n\
                     unsigned long long first = (blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32) * per_warp;\n\
                     for (; first < rows; first += step) {\n\
                     const unsigned long long row = first + threadIdx.x % 32 / group;\nconst bool here = row < rows;\n",
                );
                for i in 0..self.aux {
                    let _ = writeln!(t, "const float a{i} = here ? g{i}[row] : 0.0f;");
                }
                let each = format!(
                    "#pragma unroll\nfor (unsigned q = 0; q < {per_lane}; ++q) {{ const unsigned j = lane + 32 * q;"
                );
                let _ = writeln!(
                    t,
                    "float x[{per_lane}];\n{each} x[q] = here && j < columns ? in0[row * columns + j] : 0.0f; }}"
                );
                for k in 0..count {
                    let load = self.load_call(k, |_| "x[q]".into(), given);
                    let _ = writeln!(
                        t,
                        "float s{k} = START{k};\n{each} if (j < columns) s{k} = combine{k}(s{k}, {load}); }}"
                    );
                    let _ = writeln!(
                        t,
                        "for (unsigned o = group / 2; o > 0; o /= 2) s{k} = combine{k}(s{k}, __shfl_down_sync(0xffffffffu, s{k}, o, group));\ns{k} = __shfl_sync(0xffffffffu, s{k}, 0, group);"
                    );
                    let _ = writeln!(t, "const float r{k} = {};", self.post_call(k, &format!("s{k}"), given));
                }
                let _ = writeln!(t, "if (lane == 0 && here) out[row] = r{};\n}}\n}}", count - 1);
            }
            Fused::Block(threads) => {
                let warps = threads / 32;
                let _ = writeln!(
                    t,
                    "extern __shared__ float x[];\n__shared__ float parts[{PARTS}];\n\
                     const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (columns + {CHUNK} - 1) / {CHUNK};\n\
                     for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {{\n\
                     #pragma unroll 8\n\
                     for (unsigned j = threadIdx.x; j < columns; j += {threads}) x[j] = in0[row * columns + j];"
                );
                for i in 0..self.aux {
                    let _ = writeln!(t, "const float a{i} = g{i}[row];");
                }
                t.push_str("__syncthreads();\n");
                for k in 0..count {
                    let load = self.load_call(k, |_| "x[j]".into(), given);
                    let fold = format!(
                        "#pragma unroll\nfor (int o = 16; o > 0; o /= 2) s = combine{k}(s, __shfl_down_sync(0xffffffffu, s, o));"
                    );
                    let _ = writeln!(
                        t,
                        "for (unsigned c = warp; c < chunks; c += {warps}) {{ float s = START{k}; const unsigned end = columns < (c + 1) * {CHUNK} ? columns : (c + 1) * {CHUNK};\n\
                         #pragma unroll 8\nfor (unsigned j = c * {CHUNK} + lane; j < end; j += 32) s = combine{k}(s, {load});\n{fold}\n\
                         if (lane == 0) parts[c] = s; }}\n__syncthreads();"
                    );
                    // Every warp folds the chunks' results for itself.
                    let _ = writeln!(
                        t,
                        "float s{k}; {{ float s = START{k}; for (unsigned c = lane; c < chunks; c += 32) s = combine{k}(s, parts[c]);\n{fold}\ns{k} = __shfl_sync(0xffffffffu, s, 0); }}\n__syncthreads();"
                    );
                    let _ = writeln!(t, "const float r{k} = {};", self.post_call(k, &format!("s{k}"), given));
                }
                // The last barrier has passed all reads of the row.
                let _ = writeln!(t, "if (threadIdx.x == 0) out[row] = r{};\n}}\n}}", count - 1);
            }
        }
        t
    }

    /// The module of one stage, or of all at once.
    pub(super) fn module(&self, stages: &[usize], fused: Option<Fused>) -> Module {
        static CACHE: OnceLock<Mutex<BTreeMap<ModuleKey, Module>>> = OnceLock::new();
        let aux = self.aux + if fused.is_some() { 0 } else { stages[0] };
        let key: ModuleKey = (self.ins, aux, stages.iter().map(|&k| self.stages[k].key()).collect(), fused);
        let cache = CACHE.get_or_init(Mutex::default);
        if let Some(hit) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return hit.clone();
        }
        let text = match fused {
            Some(fused) => self.fused_text(fused),
            None => self.stage_text(stages[0]),
        };
        let prelude = if text.contains("ditto_") { map::prelude() } else { "" };
        let name = format!("fold_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        let made = Module { name: name.into(), source: crate::lasting(format!("{prelude}{text}")) };
        cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
        made
    }

    /// The modules [`Fold::run_cuda`] will want.
    pub(crate) fn modules(&self, shape: &Shape, axes: &[usize], gpu: &Gpu) -> Vec<Source> {
        let passes = passes(shape, axes);
        if passes.is_empty() {
            let accesses = vec![map::access(shape, shape); self.ins + self.aux];
            return vec![map::module(&self.pointwise(), shape, &accesses)];
        }
        let all: Vec<usize> = (0..self.stages.len()).collect();
        let own = match self.fused(&passes, gpu) {
            Some(fused) => vec![self.module(&all, Some(fused))],
            None => all.iter().map(|&k| self.module(&[k], None)).collect(),
        };
        let mut modules: Vec<Source> = own.iter().map(|m| (m.name.to_string(), m.source)).collect();
        if passes.len() > 1 && self.aux + self.stages.len() > 1 {
            let (from, to) = Fold::spread_shapes(shape, axes);
            modules.push(map::module(&Program::same(1), &to, &[map::access(&from, &to)]));
        }
        modules
    }

    pub(super) fn constants(args: &mut Args, stage: &Stage) {
        for &k in stage.load.consts().iter().chain(stage.post.consts()) {
            args.f32(k);
        }
    }

    /// Queues one pass of a stage: as many launches as the tree has kernel levels.
    pub(super) fn pass_cuda(
        &self,
        launch: &Launch<'_>,
        pass: Pass,
        out: u64,
        is_first: bool,
        is_last: bool,
    ) -> Result<()> {
        if pass.results() == 0 {
            return Ok(());
        }
        let cuda = launch.cuda;
        let module = self.module(&[launch.stage], None);
        let stage = &self.stages[launch.stage];
        let (mut partial, mut rows, mut more, mut workspace) =
            (launch.partial, pass.rows, !is_first, launch.workspace);
        let columns = pass.inner > 1;
        let unit = if columns { ROWS * ROWS } else { CHUNK };
        loop {
            let next = rows.div_ceil(unit).max(1);
            let done = next == 1;
            let to = if done { out } else { workspace };
            let name = match (columns, rows <= ROWS, more) {
                (false, _, false) => "fold_rows",
                (false, _, true) => "more_rows",
                (true, true, false) => "fold_short",
                (true, true, true) => "more_short",
                (true, false, false) => "fold_columns",
                (true, false, true) => "more_columns",
            };
            let kernel = cuda.kernel(&module.name, module.source, name)?;
            let mut args = Args::new();
            for &p in launch.ins.iter().chain(launch.given) {
                args.ptr(p);
            }
            Fold::constants(&mut args, stage);
            args.ptr(partial).ptr(to);
            let last = i32::from(done && is_last);
            if !columns {
                let group = if rows <= 16 { rows.max(1).next_power_of_two() } else { 32 };
                args.u64(pass.outer as u64).u64(rows as u64).u64(next as u64).u32(group as u32).i32(last);
                cuda.launch(kernel, grid(cuda, pass.outer * next * group), 256, 0, &args)?;
            } else if rows <= ROWS {
                args.u64(pass.outer as u64).u32(rows as u32).u64(pass.inner as u64).i32(last);
                cuda.launch(kernel, grid(cuda, pass.results()), 256, 0, &args)?;
            } else {
                let width = pass.inner.min(32);
                let tiles = pass.inner.div_ceil(width);
                let threads = (width * rows.div_ceil(ROWS).min(32)).next_multiple_of(32);
                args.u64(pass.outer as u64).u64(rows as u64).u64(pass.inner as u64);
                args.u64(next as u64).u64(tiles as u64).u32(width as u32).i32(last);
                let items = pass.outer * next * tiles;
                cuda.launch(kernel, [items.min(1 << 20) as u32, 1, 1], threads as u32, 0, &args)?;
            }
            if done {
                return Ok(());
            }
            partial = workspace;
            workspace += (next * pass.results() * 4) as u64;
            rows = next;
            more = true;
        }
    }

    /// Queues the fold. The run's inputs are those with all elements, then those with one per result.
    pub(crate) fn run_cuda(&self, shape: &Shape, axes: &[usize], run: &CudaRun<'_>) -> Result<()> {
        let passes = passes(shape, axes);
        let Some(last_pass) = passes.last() else {
            let accesses = vec![map::access(shape, shape); run.ins.len()];
            return map::run_cuda(&self.pointwise(), &accesses, &CudaRun { shape: *shape, ..*run });
        };
        if last_pass.results() == 0 {
            return Ok(());
        }
        let (ins, aux) = run.ins.split_at(self.ins);
        let count = self.stages.len();
        if let Some(fused) = self.fused(&passes, &Gpu::of(run.cuda)) {
            let module = self.module(&(0..count).collect::<Vec<_>>(), Some(fused));
            let kernel = run.cuda.kernel(&module.name, module.source, "fused_rows")?;
            let (rows, columns) = (last_pass.outer, last_pass.rows);
            let mut args = Args::new();
            for &p in run.ins {
                args.ptr(p);
            }
            self.stages.iter().for_each(|s| Fold::constants(&mut args, s));
            let group = if columns <= 16 { columns.max(1).next_power_of_two() } else { 32 };
            args.ptr(run.out).u64(rows as u64).u32(columns as u32).u32(group as u32);
            return match fused {
                Fused::Warp(_) => run.cuda.launch(kernel, grid(run.cuda, rows * group), 256, 0, &args),
                Fused::Block(threads) => {
                    let resident = (2048 / threads as usize).min(32);
                    let blocks = rows.min(run.cuda.sm_count() as usize * resident);
                    run.cuda.launch(kernel, [blocks as u32, 1, 1], threads, columns as u32 * 4, &args)
                }
            };
        }
        let regions = Regions::of(&passes, true);
        let words = |n: usize| n as u64 * 4;
        let values = run.workspace;
        let between = values + words((count - 1) * regions.results);
        let spread_at = between + words(2 * regions.between);
        let own = spread_at + words((self.aux + count - 1) * regions.spread);
        let mut given: Vec<u64> = aux.to_vec();
        for (k, stage) in self.stages.iter().enumerate() {
            let mut spread = given.clone();
            if passes.len() > 1 && !is_plain(&stage.load) {
                let (from, to) = Fold::spread_shapes(shape, axes);
                for (i, s) in spread.iter_mut().enumerate() {
                    let out = spread_at + words(i * regions.spread);
                    let run = CudaRun { ins: &[*s], metas: &[Meta::f32(from)], shape: to, out, ..*run };
                    map::run_cuda(&Program::same(1), &[map::access(&from, &to)], &run)?;
                    *s = out;
                }
            }
            let target = if k + 1 == count { run.out } else { values + words(k * regions.results) };
            let mut partial = 0;
            for (i, pass) in passes.iter().enumerate() {
                let is_last = i + 1 == passes.len();
                let to = if is_last { target } else { between + words(i % 2 * regions.between) };
                let given = if i == 0 { &spread } else { &given };
                let launch = Launch { cuda: run.cuda, stage: k, ins, given, partial, workspace: own };
                self.pass_cuda(&launch, *pass, to, i == 0, is_last)?;
                partial = to;
            }
            given.push(target);
        }
        Ok(())
    }
}

/// What the launches of a pass have in common.
pub(super) struct Launch<'a> {
    pub(super) cuda: &'a Arc<Cuda>,
    pub(super) stage: usize,
    pub(super) ins: &'a [u64],
    pub(super) given: &'a [u64],
    pub(super) partial: u64,
    pub(super) workspace: u64,
}
