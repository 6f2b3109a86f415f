//! How convolutions run on CUDA: which variants of `conv.cu`, over which grids, in which order. The choice
//! affects only speed, never bits: every variant adds in the same order.

use crate::conv::Geometry;
use crate::conv::depthwise;
use crate::conv::depthwise::GradPlan;
use crate::conv::digits::{self, ColumnsPlan};
use crate::fused::{EpilogueCode, FusedCode};
use crate::magnitudes::Lines;
use crate::matmul;
use crate::matmul::plan::{MAX_X, MAX_Z, Problem, Tile, choose, clamp, defines};
use crate::matmul::variant;
use crate::{CudaRun, Gpu, Known, known};
use dittograd_device::cpu::conv::{Gather, KernelGrad, MAX_AXES, View};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;
use dittograd_numerics::{K_CHUNK as CHUNK, Numerics};

const CONV_CU: &str = include_str!("conv.cu");

/// The most taps whose sight a column keeps as bits; as `conv.cu` has it.
const MAX_MASKED_TAPS: usize = 30;

/// The taps of all axes together, if there are at most [`MAX_MASKED_TAPS`] in all.
const MAX_PATTERNS: usize = 38;

/// The taps of all axes together up to which the gradient of a kernel has them in registers; below 32 each.
const MAX_GRAD_PATTERNS: usize = 16;

/// Rows of a group up to which tiles would be mostly empty.
const MAX_DIRECT_ROWS: usize = 2;

/// Threads of a block of the small kernels, and the most blocks of them; they walk the rest in a loop.
const SMALL_THREADS: usize = 256;

const MAX_SMALL_BLOCKS: usize = 1 << 16;

/// Tiles of convolutions, largest first: columns are many, rows few.
const TILES: [Tile; 9] = [
    Tile { warps: [2, 2], thread: [8, 16], bk: 8, group: 1, stages: 4, blocks: 2, alone: 206.0, full: 180.0 },
    Tile { warps: [2, 2], thread: [8, 12], bk: 8, group: 1, stages: 4, blocks: 2, alone: 160.0, full: 138.0 },
    Tile { warps: [1, 4], thread: [8, 8], bk: 8, group: 1, stages: 4, blocks: 3, alone: 118.0, full: 101.0 },
    Tile { warps: [1, 2], thread: [8, 12], bk: 8, group: 1, stages: 4, blocks: 4, alone: 160.0, full: 75.0 },
    Tile { warps: [1, 4], thread: [4, 8], bk: 8, group: 1, stages: 4, blocks: 4, alone: 66.0, full: 60.0 },
    Tile { warps: [2, 2], thread: [4, 8], bk: 16, group: 4, stages: 4, blocks: 3, alone: 62.0, full: 60.0 },
    Tile { warps: [1, 4], thread: [4, 4], bk: 16, group: 4, stages: 4, blocks: 4, alone: 40.0, full: 36.0 },
    Tile { warps: [1, 4], thread: [2, 4], bk: 32, group: 8, stages: 4, blocks: 3, alone: 26.0, full: 24.0 },
    Tile { warps: [1, 2], thread: [2, 4], bk: 32, group: 4, stages: 4, blocks: 6, alone: 16.0, full: 11.0 },
];

/// Tiles of kernels' gradients: columns are channels times taps, often nines.
const GRAD_TILES: [Tile; 6] = [
    Tile { warps: [2, 2], thread: [8, 16], bk: 8, group: 1, stages: 4, blocks: 2, alone: 220.0, full: 190.0 },
    Tile { warps: [2, 2], thread: [8, 12], bk: 8, group: 1, stages: 4, blocks: 2, alone: 190.0, full: 152.0 },
    Tile { warps: [1, 2], thread: [8, 12], bk: 8, group: 1, stages: 4, blocks: 4, alone: 186.0, full: 91.0 },
    Tile { warps: [2, 2], thread: [4, 8], bk: 16, group: 4, stages: 4, blocks: 3, alone: 90.0, full: 66.0 },
    Tile { warps: [2, 2], thread: [2, 4], bk: 32, group: 4, stages: 4, blocks: 4, alone: 22.0, full: 20.0 },
    Tile { warps: [1, 2], thread: [2, 2], bk: 32, group: 4, stages: 4, blocks: 8, alone: 13.0, full: 7.5 },
];

/// What is to be computed.
pub(crate) enum Work {
    /// Convolutions, each of its own positions of the result. With `turned` the kernel does not lie as tiles
    /// can copy it.
    Columns {
        /// The convolutions.
        classes: Vec<Gather>,
        /// Whether the kernel is written anew first.
        turned: bool,
    },
    /// The gradient of a kernel.
    Grad(Box<KernelGrad>),
    /// Convolutions in digits.
    DigitColumns(Digits, Vec<Gather>),
    /// The gradient of a kernel in digits.
    DigitGrad(Digits, Box<KernelGrad>),
}

/// A convolution.
pub(crate) fn forward(g: &Geometry, numerics: Numerics) -> Work {
    match g.forward_digits(numerics) {
        Some(digits) => Work::DigitColumns(digits, vec![g.forward()]),
        None => Work::Columns { classes: vec![g.forward()], turned: false },
    }
}

/// A transposed convolution.
pub(crate) fn transposed(g: &Geometry, numerics: Numerics) -> Work {
    match g.transposed_digits(numerics) {
        Some(digits) => Work::DigitColumns(digits, classes(g)),
        None => Work::Columns { classes: classes(g), turned: true },
    }
}

/// The convolutions of a transposed one. Where several have no taps, all positions are filled at first, line by line, which takes less time than
/// to write every other position of a line once for each of them.
fn classes(g: &Geometry) -> Vec<Gather> {
    let mut all: Vec<Gather> = g.transposed().collect();
    let is_empty = |c: &Gather| c.view.taps() == 0;
    let empty = all.iter().filter(|c| is_empty(c)).count();
    if empty > 1 && empty < all.len() {
        all.retain(|c| !is_empty(c));
        all.insert(0, g.unreached());
    }
    all
}

/// The gradient of a kernel.
pub(crate) fn kernel_grad(g: &Geometry, numerics: Numerics) -> Work {
    match g.kernel_grad_digits(numerics) {
        Some(digits) => Work::DigitGrad(digits, Box::new(g.kernel_grad())),
        None => Work::Grad(Box::new(g.kernel_grad())),
    }
}

/// Addresses; 0 for no bias.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pointers {
    pub ins: [u64; 2],
    pub bias: u64,
    pub out: u64,
    pub workspace: u64,
    /// Of the largest magnitudes of the inputs' channels, where they are there.
    pub magnitudes: [u64; 2],
}

/// One launch.
pub(crate) struct Step {
    pub module: Source,
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub block: u32,
    /// Bytes of shared memory that the kernel does not declare.
    pub shared: u32,
    pub args: Args,
}

/// Words of scratch memory that the launches need.
pub(crate) fn workspace(work: &Work, gpu: &Gpu) -> usize {
    match work {
        Work::Columns { classes, turned } => {
            classes.iter().map(|g| Layout::of(g, *turned, classes.len() == 1, gpu).total()).max().unwrap_or(0)
        }
        Work::Grad(grad) => match GradPlan::of(grad, gpu) {
            Some(thin) => thin.words(grad),
            None => grad_plan(grad, gpu).map_or(0, |(_, _, parts)| parts),
        },
        Work::DigitColumns(digits, classes) => {
            digits::together(classes).map(|c| ColumnsPlan::new(*digits, c, gpu).workspace).max().unwrap_or(0)
        }
        Work::DigitGrad(digits, grad) => digits::GradPlan::new(*digits, grad, gpu).workspace,
    }
}

/// The modules with an epilogue in the kernels that write the result, if these can take it in.
pub(crate) fn fused_modules(work: &Work, gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
    let epilogue = fused.only_epilogue()?;
    takes(work, gpu, epilogue).then(|| modules(work, gpu, Some(epilogue)))
}

/// Whether the kernels that write the result can take an epilogue in: those of depthwise convolutions cannot, and none reads
/// another input by column.
fn takes(work: &Work, gpu: &Gpu, epilogue: &EpilogueCode) -> bool {
    match work {
        Work::Columns { classes, turned } => classes.iter().all(|g| {
            let way = Layout::of(g, *turned, classes.len() == 1, gpu).way;
            !epilogue.by_column() && !matches!(way, Way::Thin(_))
        }),
        Work::DigitColumns(..) => !epilogue.by_column(),
        Work::Grad(_) | Work::DigitGrad(..) => false,
    }
}

/// The lines of both inputs whose largest magnitudes the launches need: those of the channels that are written in digits.
pub(crate) fn reads_magnitudes(work: &Work) -> [Option<Lines>; 2] {
    match work {
        Work::Columns { .. } | Work::Grad(_) => [None; 2],
        Work::DigitColumns(_, classes) => [classes.first().map(digits::columns_lines), None],
        Work::DigitGrad(_, grad) => digits::grad_lines(grad).map(Some),
    }
}

/// Queues the launches.
pub fn launch(work: &Work, run: &CudaRun<'_>) -> Result<()> {
    let pointers = Pointers {
        ins: [run.ins[0], run.ins[1]],
        bias: run.ins.get(2).copied().unwrap_or(0),
        out: run.out,
        workspace: run.workspace,
        magnitudes: run.magnitudes,
    };
    steps(work, &pointers, &Gpu::of(run.cuda), run.fused.epilogue, &mut |step| {
        let kernel = run.cuda.kernel(&step.module.0, step.module.1, step.kernel)?;
        run.cuda.launch(kernel, step.grid, step.block, step.shared, &step.args)
    })
}

/// The modules that the launches want.
pub(crate) fn modules(work: &Work, gpu: &Gpu, epilogue: Option<&EpilogueCode>) -> Vec<Source> {
    let mut all: Vec<Source> = Vec::new();
    // Nothing in here fails: the steps are only looked at.
    let _ = steps(work, &Pointers::default(), gpu, epilogue, &mut |step| {
        if !all.contains(&step.module) {
            all.push(step.module);
        }
        Ok(())
    });
    all
}

fn steps(
    work: &Work,
    at: &Pointers,
    gpu: &Gpu,
    epilogue: Option<&EpilogueCode>,
    f: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    match work {
        Work::Columns { classes, turned } => {
            for g in classes {
                columns_steps(g, &Layout::of(g, *turned, classes.len() == 1, gpu), at, epilogue, f)?;
            }
            Ok(())
        }
        Work::Grad(grad) => match GradPlan::of(grad, gpu) {
            Some(thin) => thin.steps(grad, at, f),
            None => grad_steps(grad, at, gpu, f),
        },
        Work::DigitColumns(digits, classes) => {
            digits::together(classes).try_for_each(|some| match some {
                // Sums of nothing.
                [g] if g.channels * g.view.taps() == 0 => {
                    columns_steps(g, &Layout::of(g, true, false, gpu), at, epilogue, f)
                }
                _ => ColumnsPlan::new(*digits, some, gpu).steps(at, epilogue, f),
            })
        }
        Work::DigitGrad(digits, grad) => digits::GradPlan::new(*digits, grad, gpu).steps(at, f),
    }
}

/// How a convolution runs, and what lies in its workspace, in words: a table of taps, the kernel written anew,
/// and the parts of chunks that run in blocks of their own.
struct Layout {
    way: Way,
    few: bool,
    turned: bool,
    table: usize,
    kernel: usize,
    parts: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// There is nothing to write.
    Nothing,
    /// Sums of nothing.
    Fill,
    /// Some outputs below each other per thread, and how many.
    Thin(usize),
    /// An output per thread.
    Direct,
    /// Tiles, by index, their chunks in blocks of their own or not.
    Tiles(usize, bool),
}

impl Layout {
    fn of(g: &Gather, turned: bool, alone: bool, gpu: &Gpu) -> Layout {
        let (taps, rank) = (g.view.taps(), g.view.axes().len());
        let few = taps <= MAX_MASKED_TAPS;
        let mut layout = Layout { way: Way::Nothing, few, turned, table: 0, kernel: 0, parts: 0 };
        let table = (taps * (rank + 2)).next_multiple_of(4);
        let problem = columns_problem(g, turned);
        if problem.batch * problem.m * problem.n == 0 {
            return layout;
        }
        if problem.k == 0 {
            layout.way = Way::Fill;
        } else if let Some(lines) = depthwise::lines(g, gpu) {
            layout.way = Way::Thin(lines);
        } else if g.rows <= MAX_DIRECT_ROWS && g.groups > 1 {
            (layout.way, layout.table) = (Way::Direct, table);
        } else {
            let (tile, split) = choose(&problem, &TILES, gpu.sm_count, alone);
            let index = TILES.iter().position(|t| std::ptr::eq(t, tile)).unwrap_or(0);
            layout.way = Way::Tiles(index, split);
            layout.table = if few { 0 } else { table };
            layout.kernel = if turned { (g.groups * problem.m * problem.k).next_multiple_of(4) } else { 0 };
            layout.parts =
                if split { problem.k.div_ceil(CHUNK) * g.groups * problem.m * problem.n } else { 0 };
        }
        layout
    }

    fn total(&self) -> usize {
        self.table + self.kernel + self.parts
    }
}

fn columns_problem(g: &Gather, turned: bool) -> Problem {
    Problem::plain(
        Gemm {
            batch: g.groups,
            m: g.rows,
            n: g.batch * g.view.positions(),
            k: g.channels * g.view.taps(),
            ta: turned,
            tb: false,
        },
        true,
    )
}

/// `Axes` of `conv.cu`, with the digits of `step` positions and what is left of it for images.
fn axes(view: &View, step: usize) -> ([[i32; 10]; MAX_AXES], usize) {
    let mut out = [[1; 10]; MAX_AXES];
    let mut rest = step;
    for (to, a) in out.iter_mut().zip(view.axes()).rev() {
        let positions = a.positions.max(1);
        let sizes = [a.positions, a.step, a.taps, 0, 0, a.source, a.out_first, a.out_step, a.out];
        for (to, x) in to.iter_mut().zip(sizes) {
            *to = x as i32;
        }
        (to[3], to[4], to[9]) = (a.first as i32, a.tap_step as i32, (rest % positions) as i32);
        rest /= positions;
    }
    (out, rest)
}

/// `Few` of `conv.cu`: offsets of the taps, and per axis and its taps the bits of the taps that lie there.
fn few(view: &View) -> [u32; MAX_MASKED_TAPS + MAX_PATTERNS] {
    let mut out = [0; MAX_MASKED_TAPS + MAX_PATTERNS];
    let axes = view.axes();
    for tap in 0..view.taps() {
        let (mut rest, mut offset, mut stride) = (tap, 0i64, 1i64);
        let mut pattern = MAX_MASKED_TAPS + axes.iter().map(|a| a.taps).sum::<usize>();
        for a in axes.iter().rev() {
            pattern -= a.taps;
            out[pattern + rest % a.taps] |= 1 << tap;
            offset += (rest % a.taps) as i64 * a.tap_step as i64 * stride;
            stride *= a.source as i64;
            rest /= a.taps;
        }
        out[tap] = offset as i32 as u32;
    }
    out
}

/// `KernelAxes` of `conv.cu`.
fn kernel_axes(view: &View) -> [[i32; MAX_AXES]; 4] {
    let mut out = [[1; MAX_AXES]; 4];
    for (d, a) in view.axes().iter().enumerate() {
        for (to, x) in out.iter_mut().zip([a.taps, a.w_first, a.w_step, a.w]) {
            to[d] = x as i32;
        }
    }
    out
}

/// The variant of `conv.cu` behind these lines.
fn module(defined: &[&[(&'static str, usize)]], epilogue: Option<&EpilogueCode>) -> Source {
    static KNOWN: Known<Vec<(&'static str, usize)>, Source> = Known::new(Default::default);
    let make = |list: &Vec<_>| variant("conv", &defines(list), CONV_CU, epilogue);
    match epilogue {
        Some(_) => make(&defined.concat()),
        None => known(&KNOWN, defined.concat(), make),
    }
}

/// A module of the small kernels for so many axes; `fours`: all positions are written, four at a time.
fn small_module(rank: usize, fours: bool, epilogue: Option<&EpilogueCode>) -> Source {
    let fours = usize::from(fours);
    let list =
        [("VC", fours), ("BIAS", 0), ("LONG", 0), ("REDUCE", 1), ("CONV", 3), ("DENSE", fours), ("D", rank)];
    module(&[&list, &[("MOST_AXES", MAX_AXES)]], epilogue)
}

fn small_step(rank: usize, kernel: &'static str, threads: usize, args: Args) -> Step {
    let grid = [clamp(threads.div_ceil(SMALL_THREADS), MAX_SMALL_BLOCKS), 1, 1];
    Step {
        module: small_module(rank, false, None),
        kernel,
        grid,
        block: SMALL_THREADS as u32,
        shared: 0,
        args,
    }
}

/// A step of the small kernels that writes results, with the program that follows.
fn last_step(
    rank: usize,
    fours: bool,
    kernel: &'static str,
    threads: usize,
    mut args: Args,
    epilogue: Option<&EpilogueCode>,
) -> Step {
    if let Some(epilogue) = epilogue {
        epilogue.push(&mut args);
    }
    Step { module: small_module(rank, fours, epilogue), ..small_step(rank, kernel, threads, args) }
}

/// A module of tiles.
fn tile_module(
    tile: &Tile,
    rank: usize,
    flags: &[(&'static str, usize)],
    epilogue: Option<&EpilogueCode>,
) -> Source {
    let list = [("VB", 0), ("REDUCE", 0), ("D", rank), ("MOST_AXES", MAX_AXES)];
    module(&[&tile.defines(), &list, flags], epilogue)
}

/// `Sizes` of `conv.cu`.
struct Sizes<'a> {
    p: &'a Problem,
    view: &'a View,
    slice: usize,
    parts: usize,
    /// Channels of the source and of the result in an image.
    channels: [usize; 2],
    a_group: usize,
    a_ld: usize,
    digit: usize,
    warps: usize,
}

impl Sizes<'_> {
    fn words(&self) -> [u64; 17] {
        let Sizes { p, view, .. } = *self;
        let (taps, plane) = (view.taps(), view.plane());
        [
            p.m,
            p.n,
            p.k,
            p.batch,
            self.slice,
            self.parts,
            view.positions(),
            taps,
            plane,
            view.out_plane(),
            self.channels[0] * plane,
            self.channels[1] * view.out_plane(),
            self.a_group,
            self.a_ld,
            self.digit,
            self.warps % taps.max(1),
            self.warps / taps.max(1) * plane,
        ]
        .map(|x| x as u64)
    }
}

fn columns_steps(
    g: &Gather,
    layout: &Layout,
    at: &Pointers,
    epilogue: Option<&EpilogueCode>,
    f: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    let p = columns_problem(g, layout.turned);
    let view = &g.view;
    let (rank, taps) = (view.axes().len(), view.taps());
    let channels = [g.groups * g.channels, g.groups * g.rows];
    let [by_group, by_row, by_channel] = g.w_strides.map(|x| x as u64);
    let table = at.workspace;
    let kernel_at = table + 4 * layout.table as u64;
    let parts_at = kernel_at + 4 * layout.kernel as u64;
    let axes_of = |step: usize| axes(view, step);

    if layout.table > 0 {
        let mut args = Args::new();
        args.ptr(table).u64(taps as u64);
        args.bytes(bytemuck::bytes_of(&axes_of(1).0), 4).bytes(bytemuck::bytes_of(&kernel_axes(view)), 4);
        f(small_step(rank, "ditto_conv_taps", taps, args))?;
    }
    if layout.kernel > 0 {
        let mut args = Args::new();
        args.ptr(at.ins[1]).ptr(kernel_at);
        for x in [g.groups, p.m, p.k, taps] {
            args.u64(x as u64);
        }
        args.u64(by_group).u64(by_row).u64(by_channel).bytes(bytemuck::bytes_of(&kernel_axes(view)), 4);
        f(small_step(rank, "ditto_conv_kernel", g.groups * p.m * p.k, args))?;
    }
    match layout.way {
        Way::Nothing => Ok(()),
        Way::Fill => {
            let mut args = Args::new();
            args.ptr(at.out).ptr(at.bias);
            for x in [g.batch, channels[1], view.positions(), view.out_plane()] {
                args.u64(x as u64);
            }
            args.bytes(bytemuck::bytes_of(&axes_of(1).0), 4);
            let fours = view.is_dense() && view.positions().is_multiple_of(4);
            let threads = channels[1] * p.n / if fours { 4 } else { 1 };
            f(last_step(rank, fours, "ditto_conv_fill", threads, args, epilogue))
        }
        Way::Thin(lines) => depthwise::columns_step(g, lines, at, f),
        Way::Direct => {
            let sizes = Sizes {
                p: &p,
                view,
                slice: p.k,
                parts: 1,
                channels,
                a_group: 0,
                a_ld: 0,
                digit: 0,
                warps: 1,
            };
            let mut args = Args::new();
            args.ptr(at.ins[1]).ptr(at.ins[0]).ptr(at.out).ptr(at.bias).ptr(table);
            args.u64(by_group).u64(by_row).u64(by_channel);
            args.bytes(bytemuck::bytes_of(&sizes.words()), 8).bytes(bytemuck::bytes_of(&axes_of(1).0), 4);
            let mut step = last_step(rank, false, "ditto_conv_direct", p.n, args, epilogue);
            step.grid[1] = clamp(channels[1], MAX_Z);
            f(step)
        }
        Way::Tiles(index, split) => {
            let tile = &TILES[index];
            let parts = if split { p.k.div_ceil(CHUNK) } else { 1 };
            let (axes, digit) = axes_of(tile.bk);
            let (a, a_ld) = if layout.turned { (kernel_at, p.m) } else { (at.ins[1], p.k) };
            let sizes = Sizes {
                p: &p,
                view,
                slice: if split { CHUNK } else { p.k },
                parts,
                channels,
                a_group: p.m * p.k,
                a_ld,
                digit,
                warps: tile.threads() / 32,
            };
            // Four floats at a time, where the axis and all starts of lines are multiples of that.
            let wide_a = a_ld.is_multiple_of(4)
                && (layout.turned || tile.group > 1)
                && (tile.rows() * tile.bk).is_multiple_of(4 * tile.threads());
            let wide_c = view.is_dense() && view.positions().is_multiple_of(4);
            let flags = [
                ("TA", usize::from(layout.turned)),
                ("TB", 0),
                ("VA", usize::from(wide_a)),
                ("VC", usize::from(wide_c)),
                ("BIAS", 1),
                ("LONG", usize::from(p.is_long(g.batch * channels[0] * view.plane()))),
                ("CONV", 1),
                ("FEW", usize::from(layout.few)),
                ("DENSE", usize::from(view.is_dense())),
            ];
            let mut args = Args::new();
            let (to, bias) = if split { (parts_at, 0) } else { (at.out, at.bias) };
            args.ptr(a).ptr(at.ins[0]).ptr(to).ptr(bias).ptr(table);
            args.bytes(bytemuck::bytes_of(&sizes.words()), 8).bytes(bytemuck::bytes_of(&axes), 4);
            let few = if layout.few { few(view) } else { [0; MAX_MASKED_TAPS + MAX_PATTERNS] };
            args.bytes(bytemuck::cast_slice(&few), 4);
            let now = if split { None } else { epilogue };
            if let Some(epilogue) = now {
                epilogue.push(&mut args);
            }
            f(Step {
                module: tile_module(tile, rank, &flags, now),
                kernel: "ditto_conv",
                grid: [clamp(tile.count(&p), MAX_X), 1, clamp(g.groups.saturating_mul(parts), MAX_Z)],
                block: tile.threads() as u32,
                shared: 0,
                args,
            })?;
            if !split {
                return Ok(());
            }
            let total = g.batch * channels[1] * view.out_plane();
            let mut args = Args::new();
            args.ptr(parts_at).ptr(at.out).ptr(at.bias);
            for x in [total, parts, channels[1], view.out_plane()] {
                args.u64(x as u64);
            }
            f(last_step(rank, false, "ditto_conv_reduce", total, args, epilogue))
        }
    }
}

fn grad_problem(g: &KernelGrad) -> Problem {
    Problem::plain(
        Gemm {
            batch: g.groups,
            m: g.rows,
            n: g.channels * g.view.taps(),
            k: g.batch * g.view.positions(),
            ta: false,
            tb: true,
        },
        true,
    )
}

/// The tile of a kernel's gradient, its number of parts, and their words; `None` if there is nothing to write.
fn grad_plan(g: &KernelGrad, gpu: &Gpu) -> Option<(&'static Tile, usize, usize)> {
    let p = grad_problem(g);
    if p.batch * p.m * p.n == 0 {
        return None;
    }
    let (tile, split) = choose(&p, &GRAD_TILES, gpu.sm_count, true);
    let parts = if split { p.k.div_ceil(CHUNK) } else { 1 };
    Some((tile, parts, if split { parts * p.batch * p.m * p.n } else { 0 }))
}

fn grad_steps(g: &KernelGrad, at: &Pointers, gpu: &Gpu, f: &mut dyn FnMut(Step) -> Result<()>) -> Result<()> {
    let Some((tile, parts, words)) = grad_plan(g, gpu) else { return Ok(()) };
    let p = grad_problem(g);
    let view = &g.view;
    let rank = view.axes().len();
    if p.k == 0 {
        let mut args = Args::new();
        args.ptr(at.out).u64((p.batch * p.m * p.n) as u64);
        return f(small_step(1, "ditto_conv_zero", p.batch * p.m * p.n, args));
    }
    let split = words > 0;
    let (axes, digit) = axes(view, tile.bk);
    let channels = [g.groups * g.channels, g.groups * g.rows];
    let sizes = Sizes {
        p: &p,
        view,
        slice: if split { CHUNK } else { p.k },
        parts,
        channels,
        a_group: 0,
        a_ld: 0,
        digit,
        warps: 1,
    };
    let wide = p.n.is_multiple_of(4);
    let few = view.axes().iter().map(|a| a.taps).sum::<usize>() <= MAX_GRAD_PATTERNS;
    let taps = if few { view.axes().iter().rev().fold(0, |all, a| all << 5 | a.taps) } else { 0 };
    let source = g.batch * channels[0] * view.plane();
    let flags = [
        ("TA", 0),
        ("TB", 1),
        ("VA", 0),
        ("VC", usize::from(wide)),
        ("BIAS", 0),
        ("LONG", usize::from(p.is_long(source))),
        ("CONV", 2),
        ("FEW", usize::from(few)),
        ("DENSE", 0),
        ("TAPS", taps),
    ];
    let mut args = Args::new();
    args.ptr(at.ins[0]).ptr(at.ins[1]).ptr(if split { at.workspace } else { at.out });
    args.bytes(bytemuck::bytes_of(&sizes.words()), 8).bytes(bytemuck::bytes_of(&axes), 4);
    f(Step {
        module: tile_module(tile, rank, &flags, None),
        kernel: "ditto_conv_grad",
        grid: [clamp(tile.count(&p), MAX_X), 1, clamp(g.groups.saturating_mul(parts), MAX_Z)],
        block: tile.threads() as u32,
        shared: 0,
        args,
    })?;
    if !split {
        return Ok(());
    }
    let reduce = crate::matmul::plan::reduce(&p, u8::from(wide));
    let mut args = Args::new();
    args.ptr(at.workspace).ptr(at.out).ptr(0);
    args.u64((p.batch * p.m * p.n) as u64).u64(p.n as u64).u64(parts as u64);
    let (grid, block) = (reduce.grid, reduce.block);
    f(Step {
        module: matmul::source(&reduce.defines, None),
        kernel: reduce.kernel,
        grid,
        block,
        shared: 0,
        args,
    })
}
