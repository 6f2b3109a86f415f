//! How convolutions of thin groups run on CUDA: which variants of `depthwise.cu`, over which grids. The choice
//! affects only speed, never bits.

use crate::Gpu;
use crate::conv::plan::{Pointers, Step};
use crate::matmul::plan::{MAX_X, MAX_Z, clamp, defines};
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, View};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::K_CHUNK as CHUNK;
use dittograd_numerics::error::Result;

const DEPTHWISE_CU: &str = include_str!("depthwise.cu");

/// The most threads of a block of a convolution, as `depthwise.cu` has them.
const MAX_THREADS: usize = 256;

/// The most pairs of channels in a group that are better off here.
const MAX_CHANNEL_PAIRS: usize = 8;

/// The most taps along the last two axes together.
const MAX_TAPS: usize = 128;

/// The most taps whose operands stay in registers, as `depthwise.cu` has them, and the most operands there.
const MAX_REGISTER_TAPS: usize = 25;
const MAX_REGISTER_OPERANDS: usize = 40;

/// The largest distance of neighbouring positions, and of neighbouring taps, in unrolled loops.
const MAX_STEP: usize = 8;
const MAX_TAP_STEP: usize = 64;

/// The most rows of the source that an unrolled loop reads.
const MAX_SOURCE_ROWS: usize = 128;

/// Groups side by side in a kernel's gradient, as `depthwise.cu` has them, and the fewest that fill enough lanes.
const LANES: usize = 32;

const MIN_GROUPS: usize = 8;

/// The most lines of a kernel, each of which has a warp, and taps of a line, each of which has a register.
const MAX_KERNEL_SIDE: usize = 16;

/// Positions of a stage of a kernel's gradient.
const STAGE_POSITIONS: usize = 256;

/// Threads of a block that adds chunks, as `depthwise.cu` has them.
const REDUCE_THREADS: usize = 64;

/// The axes of a view, at least two.
fn axes_of(view: &View) -> ([Axis; MAX_AXES], usize) {
    let mut out = [Axis::ONE; MAX_AXES];
    let d = view.axes().len().max(2);
    out[d - view.axes().len()..d].copy_from_slice(view.axes());
    (out, d)
}

/// `Axes` of `depthwise.cu`.
fn words(axes: &[Axis]) -> [[i32; 12]; MAX_AXES] {
    let mut out = [[0; 12]; MAX_AXES];
    for (to, a) in out.iter_mut().zip(axes) {
        let sizes = [
            a.positions as i32,
            a.step as i32,
            a.taps as i32,
            a.first as i32,
            a.tap_step as i32,
            a.source as i32,
            a.out_first as i32,
            a.out_step as i32,
            a.out as i32,
            a.w_first as i32,
            a.w_step as i32,
            a.w as i32,
        ];
        *to = sizes;
    }
    out
}

/// Whether the last two axes can be unrolled.
fn can_unroll(axes: &[Axis]) -> bool {
    let inner = &axes[axes.len() - 2..];
    inner.iter().map(|a| a.taps).product::<usize>() <= MAX_TAPS
        && inner.iter().all(|a| a.step <= MAX_STEP && a.tap_step.unsigned_abs() <= MAX_TAP_STEP)
}

/// What the taps of an axis span.
fn span(a: &Axis) -> usize {
    (a.taps - 1) * a.tap_step.unsigned_abs() + 1
}

/// A module for the last two axes.
fn module(axes: &[Axis], lines: usize) -> Source {
    let [y, x] = [axes[axes.len() - 2], axes[axes.len() - 1]];
    // With one tap it does not matter how far it is to the next.
    let apart = |a: Axis| if a.taps > 1 { a.tap_step.unsigned_abs() } else { 1 };
    let back = |a: Axis| usize::from(a.taps > 1 && a.tap_step < 0);
    let list = [
        ("D", axes.len()),
        ("KY", y.taps),
        ("KX", x.taps),
        ("SY", y.step),
        ("SX", x.step),
        ("DY", apart(y)),
        ("DX", apart(x)),
        ("FY", back(y)),
        ("FX", back(x)),
        ("WX", if x.taps > 1 { x.w_step } else { 1 }),
        ("R", lines),
    ];
    let name: Vec<String> = list.iter().map(|(name, x)| format!("{}{x}", name.to_lowercase())).collect();
    crate::module(format!("depthwise_{}", name.join("_")), || {
        format!("#define CHUNK {CHUNK}\n{}{DEPTHWISE_CU}", defines(&list))
    })
}

/// Lines of outputs of a thread, if the convolution is better off here.
pub(crate) fn lines(g: &Gather, gpu: &Gpu) -> Option<usize> {
    let (axes, d) = axes_of(&g.view);
    let thin = g.groups > 1 && g.rows * g.channels <= MAX_CHANNEL_PAIRS && g.view.taps() > 0;
    if !thin || !can_unroll(&axes[..d]) || g.channels * g.view.taps() > CHUNK {
        return None;
    }
    let [y, x] = [axes[d - 2], axes[d - 1]];
    let rows = |r: usize| (r - 1) * y.step + span(&y);
    let large = y.taps * x.taps > MAX_REGISTER_TAPS;
    if rows(1) > MAX_SOURCE_ROWS {
        return None;
    }
    let outputs = g.batch * g.groups * g.rows * g.view.positions();
    let fits = |&r: &usize| {
        // Lines that are met at all, lines beyond the last, and threads enough for the GPU.
        let met = rows(r).min(r * y.taps);
        let little_waste = y.positions.next_multiple_of(r) * 3 <= y.positions * 4;
        let small = rows(r) <= MAX_SOURCE_ROWS && met * x.taps <= MAX_REGISTER_OPERANDS;
        (if large { r <= 2 } else { small }) && little_waste && outputs / r >= gpu.sm_count as usize * 1024
    };
    Some([8, 4, 2].into_iter().find(fits).unwrap_or(1))
}

/// Queues a convolution with so many lines a thread.
pub(crate) fn columns_step(
    g: &Gather,
    lines: usize,
    at: &Pointers,
    f: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    let (axes, d) = axes_of(&g.view);
    let axes = &axes[..d];
    let [y, x] = [axes[d - 2], axes[d - 1]];
    let pieces = x.positions.div_ceil(MAX_THREADS);
    let across = x.positions.div_ceil(pieces);
    let tall = MAX_THREADS / across;
    let blocks = y.positions.div_ceil(lines);
    let around: usize = axes[..d - 2].iter().map(|a| a.positions).product();
    let sheets: usize = axes[..d - 2].iter().map(|a| a.taps).product();
    let units = g.batch * g.groups * g.rows * around * blocks * pieces;
    let [by_group, by_row, by_channel] = g.w_strides;
    let sizes = [
        units,
        across,
        tall,
        pieces,
        blocks,
        around,
        sheets,
        g.rows,
        g.channels,
        g.groups,
        g.view.plane(),
        g.view.out_plane(),
        by_group,
        by_row,
        by_channel,
    ]
    .map(|x| x as u64);
    let mut args = Args::new();
    args.ptr(at.ins[1]).ptr(at.ins[0]).ptr(at.out).ptr(at.bias);
    args.bytes(bytemuck::bytes_of(&sizes), 8).bytes(bytemuck::cast_slice(&words(axes)[..d]), 4);
    f(Step {
        module: module(axes, lines),
        kernel: "ditto_depthwise",
        grid: [clamp(units.div_ceil(tall), MAX_X), 1, 1],
        block: (across * tall).next_multiple_of(32) as u32,
        shared: 0,
        args,
    })
}

/// How the gradient of a kernel runs.
#[derive(Clone, Copy)]
pub(crate) struct GradPlan {
    parts: usize,
    /// Lines of a stage, and positions of one that is not a whole line.
    lines: usize,
    piece: usize,
    source_rows: usize,
    pitch_x: usize,
    pitch_g: usize,
}

impl GradPlan {
    /// The plan, if the gradient is better off here.
    pub(crate) fn of(g: &KernelGrad, gpu: &Gpu) -> Option<GradPlan> {
        let (axes, d) = axes_of(&g.view);
        let [y, x] = [axes[0], axes[1]];
        let k = g.batch * g.view.positions();
        let thin = g.groups >= MIN_GROUPS && g.rows * g.channels <= MAX_CHANNEL_PAIRS;
        let blocks = g.groups.div_ceil(LANES);
        if !thin
            || d != 2
            || !can_unroll(&axes[..2])
            || y.taps.max(x.taps) > MAX_KERNEL_SIDE
            || blocks > MAX_Z
            || k == 0
        {
            return None;
        }
        // What several blocks of a multiprocessor can have, the more the more threads they have.
        let most = [25_000, 50_000, 75_000, 75_000, 110_000][y.taps.min(5) - 1].min(gpu.shared);
        let with = |lines: usize, positions: usize| {
            let source_rows = (lines - 1) * y.step + span(&y);
            let pitch_x = ((positions - 1) * x.step + span(&x)) | 1;
            let pitch_g = (lines * positions) | 1;
            let plan =
                GradPlan { parts: k.div_ceil(CHUNK), lines, piece: positions, source_rows, pitch_x, pitch_g };
            (plan.shared() <= most).then_some(plan)
        };
        let whole = (1..=y.positions.min(STAGE_POSITIONS / x.positions.max(1))).rev();
        let whole = whole.filter_map(|lines| with(lines, x.positions)).next();
        whole.or_else(|| [256, 128, 64, 32].into_iter().filter(|&n| n < x.positions).find_map(|n| with(1, n)))
    }

    /// Bytes of shared memory.
    fn shared(&self) -> usize {
        (self.source_rows * self.pitch_x + self.pitch_g) * LANES * 4
    }

    /// Words of scratch memory.
    pub(crate) fn words(&self, g: &KernelGrad) -> usize {
        if self.parts > 1 { self.parts * total(g) } else { 0 }
    }

    /// Queues the gradient.
    pub(crate) fn steps(
        &self,
        g: &KernelGrad,
        at: &Pointers,
        f: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<()> {
        let (axes, d) = axes_of(&g.view);
        let total = total(g);
        let sizes = [
            g.groups,
            g.rows,
            g.channels,
            g.view.plane(),
            g.view.positions(),
            g.batch * g.view.positions(),
            total,
            self.lines,
            self.piece,
            self.source_rows,
            self.pitch_x,
            self.pitch_g,
        ]
        .map(|x| x as u64);
        let mut args = Args::new();
        args.ptr(at.ins[0]).ptr(at.ins[1]).ptr(if self.parts > 1 { at.workspace } else { at.out });
        args.bytes(bytemuck::bytes_of(&sizes), 8).bytes(bytemuck::cast_slice(&words(&axes[..d])[..d]), 4);
        f(Step {
            module: module(&axes[..d], 0),
            kernel: "ditto_depthwise_grad",
            grid: [self.parts as u32, g.groups.div_ceil(LANES) as u32, (g.rows * g.channels) as u32],
            block: (32 * axes[0].taps) as u32,
            shared: self.shared() as u32,
            args,
        })?;
        if self.parts == 1 {
            return Ok(());
        }
        let mut args = Args::new();
        args.ptr(at.workspace).ptr(at.out).u64(total as u64).u64(self.parts as u64);
        f(Step {
            module: module(&axes[..d], 0),
            kernel: "ditto_depthwise_reduce",
            grid: [clamp(total.div_ceil(REDUCE_THREADS), MAX_X), 1, 1],
            block: REDUCE_THREADS as u32,
            shared: 0,
            args,
        })
    }
}

/// Floats of a kernel's gradient.
fn total(g: &KernelGrad) -> usize {
    g.groups * g.rows * g.channels * g.view.taps()
}
