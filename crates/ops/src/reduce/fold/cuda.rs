//! The CUDA kernels: which one is launched, and with what.

use super::{Fold, Kind, Pass, Regions, Stage, is_plain, passes};
use crate::pointwise::device_function::{Constants, define, list, scalar_function};
use crate::pointwise::expression::{Pointwise, Reg, Step};
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::{CudaRun, Generated, Gpu, Known, known};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{CHUNK, LANES, ROWS};
use std::collections::HashMap;
use std::iter::{once, successors};
use std::ops::Range;
use std::sync::{Arc, LazyLock, RwLock};

/// What kernels do with elements, by kind.
const KINDS_CU: &str = include_str!("kinds.cu");

/// A kernel of one stage.
const FOLD_CU: &str = include_str!("fold.cu");

/// The kernel of all stages over rows at once.
const FUSED_ROWS_CU: &str = include_str!("fused_rows.cu");

/// Longest row that a warp keeps in registers.
const WARP_ROW: usize = 1024;

/// Chunks of the longest row that a block keeps in shared memory.
const PARTS: usize = 64;

/// How all stages over rows that end the shape are run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fused {
    /// A warp or a part of one per row, so many elements per lane in registers.
    Warp(usize),
    /// A block of so many threads per row, the row in shared memory.
    Block(u32),
}

/// What of a stage is written into its text: all but the values of constants.
type StageKey = (Kind, Vec<Step>, Reg, usize, Vec<Step>, Reg, usize);

/// A module: a kernel of one stage, by its name, or that of all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Level(&'static str),
    All(Fused),
}

type ModuleKey = (usize, usize, Vec<StageKey>, Which);

/// A launch of a pass: its kernel, and the rows it reads and leaves of each result.
struct Level {
    kernel: &'static str,
    rows: usize,
    next: usize,
}

/// The launches of a pass, one for each level of the tree that a kernel computes.
fn levels(pass: Pass, is_first: bool) -> impl Iterator<Item = Level> {
    let is_column = pass.inner > 1;
    let level = move |rows: usize, is_more: bool| {
        let unit = if is_column { ROWS * ROWS } else { CHUNK };
        let kernel = match (is_column, rows <= ROWS, is_more) {
            (false, _, false) => "fold_rows",
            (false, _, true) => "more_rows",
            (true, true, false) => "fold_short",
            (true, true, true) => "more_short",
            (true, false, false) => "fold_columns",
            (true, false, true) => "more_columns",
        };
        Level { kernel, rows, next: rows.div_ceil(unit).max(1) }
    };
    successors(Some(level(pass.rows, !is_first)), move |l| (l.next > 1).then(|| level(l.next, true)))
}

impl Kind {
    /// The struct of `kinds.cu`.
    fn cuda(self) -> &'static str {
        match self {
            Kind::Sum => "Sum",
            Kind::Product => "Product",
            Kind::Max => "Max",
            Kind::Min => "Min",
        }
    }
}

impl Stage {
    fn key(&self) -> StageKey {
        let (l, p) = (&self.load, &self.post);
        let (steps, more) = (l.steps().to_vec(), p.steps().to_vec());
        (self.kind, steps, l.result(), l.consts().len(), more, p.result(), p.consts().len())
    }
}

/// A call of a program's function: its arguments, then its constants, called `prefix0…`.
fn call(name: &str, args: impl Iterator<Item = String>, program: &Pointwise, prefix: &str) -> String {
    let consts = (0..program.consts().len()).map(|c| format!("{prefix}{c}"));
    format!("{name}({})", args.chain(consts).collect::<Vec<_>>().join(", "))
}

impl Fold {
    /// How the stages over rows of `columns` elements can be fused, if they can.
    fn fused(&self, passes: &[Pass], gpu: &Gpu) -> Option<Fused> {
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
    fn parameters(&self, stages: Range<usize>, given: usize) -> String {
        let pointers = |name: &str, n: usize| -> Vec<String> {
            (0..n).map(|i| format!("const float* __restrict__ {name}{i}")).collect()
        };
        let mut all = pointers("in", self.ins);
        all.extend(pointers("g", given));
        for k in stages {
            all.extend((0..self.stages[k].load.consts().len()).map(|c| format!("float kl{k}_{c}")));
            all.extend((0..self.stages[k].post.consts().len()).map(|c| format!("float kp{k}_{c}")));
        }
        all.join(", ")
    }

    /// The functions of a stage, and its kind.
    fn functions(&self, k: usize) -> String {
        let Stage { kind, load, post } = &self.stages[k];
        scalar_function(&format!("load{k}"), load, Constants::Parameters)
            + &scalar_function(&format!("post{k}"), post, Constants::Parameters)
            + &format!("using Kind{k} = {};\n", kind.cuda())
    }

    /// The element of stage `k`, from the inputs' and from what is given.
    fn load_call(
        &self,
        k: usize,
        input: impl Fn(usize) -> String,
        given: impl Fn(usize) -> String,
    ) -> String {
        let args = (0..self.ins).map(input).chain((0..self.aux + k).map(given));
        call(&format!("load{k}"), args, &self.stages[k].load, &format!("kl{k}_"))
    }

    /// The result of stage `k`, from `s`, which was folded, and from what is given.
    fn post_call(&self, k: usize, given: impl Fn(usize) -> String) -> String {
        let args = once(format!("Kind{k}::finish(s)")).chain((0..self.aux + k).map(given));
        call(&format!("post{k}"), args, &self.stages[k].post, &format!("kp{k}_"))
    }

    /// The functions of a stage on its own, and the lines that `fold.cu` asks for.
    fn stage_lines(&self, k: usize) -> String {
        // Plain elements are under way all at once; formulas would only become long code.
        let unroll = if is_plain(&self.stages[k].load) { 32 } else { 8 };
        let given = |i: usize| format!("g{i}[o]");
        [
            self.functions(k),
            define("CHUNK", CHUNK),
            define("ROWS", ROWS),
            define("UNROLL", unroll),
            define("KIND", format_args!("Kind{k}")),
            define("PARAMS", self.parameters(k..k + 1, self.aux + k)),
            define("ELEMENT(i, o)", self.load_call(k, |i| format!("in{i}[i]"), given)),
            define("POST(s, o)", self.post_call(k, given)),
        ]
        .concat()
    }

    /// The functions of all stages, and the lines that `fused_rows.cu` asks for.
    fn fused_lines(&self, fused: Fused) -> String {
        let count = self.stages.len();
        let (per_lane, threads) = match fused {
            Fused::Warp(per_lane) => (per_lane, 0),
            Fused::Block(threads) => (0, threads),
        };
        let given = |i: usize| match i.checked_sub(self.aux) {
            None => format!("a{i}"),
            Some(stage) => format!("r{stage}"),
        };
        let mut t: String = (0..count).map(|k| self.functions(k)).collect();
        t += &define("CHUNK", CHUNK);
        t += &define("PER_LANE", per_lane);
        t += &define("THREADS", threads);
        t += &define("PARTS", PARTS);
        t += &define("PARAMS", self.parameters(0..count, self.aux));
        t += &define("GIVEN(F)", list(0..self.aux));
        t += &define("STAGES(F)", list(0..count));
        t += &define("RESULT", format_args!("r{}", count - 1));
        for k in 0..count {
            t += &define(&format!("LOAD{k}(x)"), self.load_call(k, |_| "x".into(), given));
            t += &define(&format!("POST{k}(s)"), self.post_call(k, given));
        }
        t
    }

    /// The module of a kernel of one stage, or of all stages at once.
    fn module(&self, stages: &[usize], which: Which) -> Generated {
        static MODULES: Known<ModuleKey, Generated> = LazyLock::new(|| RwLock::new(HashMap::new()));
        let aux = self.aux + if matches!(which, Which::All(_)) { 0 } else { stages[0] };
        let key: ModuleKey = (self.ins, aux, stages.iter().map(|&k| self.stages[k].key()).collect(), which);
        known(&MODULES, key, |_| {
            let (lines, kernels) = match which {
                Which::All(fused) => (self.fused_lines(fused), FUSED_ROWS_CU),
                Which::Level(kernel) => {
                    (self.stage_lines(stages[0]) + &define(&kernel.to_uppercase(), ""), FOLD_CU)
                }
            };
            let prelude = if lines.contains("ditto_") { map::prelude() } else { "" };
            Generated::new("fold", prelude, &format!("{KINDS_CU}{lines}{kernels}"))
        })
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
            Some(fused) => vec![self.module(&all, Which::All(fused))],
            None => {
                let mut kernels: Vec<&str> = passes
                    .iter()
                    .enumerate()
                    .flat_map(|(i, p)| levels(*p, i == 0))
                    .map(|l| l.kernel)
                    .collect();
                kernels.sort_unstable();
                kernels.dedup();
                all.iter()
                    .flat_map(|k| kernels.iter().map(|kernel| self.module(&[*k], Which::Level(kernel))))
                    .collect()
            }
        };
        let mut modules: Vec<Source> = own.iter().map(Generated::source).collect();
        if passes.len() > 1 && self.aux + self.stages.len() > 1 {
            let (from, to) = Fold::spread_shapes(shape, axes);
            modules.push(map::module(&Pointwise::same(1), &to, &[map::access(&from, &to)]));
        }
        modules
    }

    fn constants(args: &mut Args, stage: &Stage) {
        for &k in stage.load.consts().iter().chain(stage.post.consts()) {
            args.f32(k);
        }
    }

    /// Queues one pass of a stage: as many launches as the tree has kernel levels.
    fn pass_cuda(
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
        let stage = &self.stages[launch.stage];
        let (mut partial, mut workspace) = (launch.partial, launch.workspace);
        for Level { kernel, rows, next } in levels(pass, is_first) {
            let done = next == 1;
            let to = if done { out } else { workspace };
            let module = self.module(&[launch.stage], Which::Level(kernel));
            let kernel = cuda.kernel(&module.name, module.source, kernel)?;
            let mut args = Args::new();
            for &p in launch.ins.iter().chain(launch.given) {
                args.ptr(p);
            }
            Fold::constants(&mut args, stage);
            args.ptr(partial).ptr(to);
            let last = i32::from(done && is_last);
            if pass.inner <= 1 {
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
            partial = workspace;
            workspace += (next * pass.results() * 4) as u64;
        }
        Ok(())
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
            let module = self.module(&(0..count).collect::<Vec<_>>(), Which::All(fused));
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
                    map::run_cuda(&Pointwise::same(1), &[map::access(&from, &to)], &run)?;
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
struct Launch<'a> {
    cuda: &'a Arc<Cuda>,
    stage: usize,
    ins: &'a [u64],
    given: &'a [u64],
    partial: u64,
    workspace: u64,
}
