//! How convolutions in digits (C9 of the contract) run on CUDA: which variants of `digits.cu`, over which grids. The choice affects
//! only speed, never bits: sums of digits are exact.

use crate::Gpu;
use crate::conv::plan::{Pointers, Step};
use crate::fused::EpilogueCode;
use crate::magnitudes::Lines;
use crate::matmul;
use crate::matmul::plan::{MAX_X, Problem, clamp, defines};
use crate::workspace::Workspace;
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, Reach, View};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::digits::{Digits, LEAST_EXPONENT, conv_run};
use dittograd_numerics::error::Result;

const DIGITS_CU: &str = concat!(
    include_str!("../matmul/results.cu"),
    include_str!("../magnitudes.cu"),
    include_str!("../matmul/digit_parts.cu"),
    include_str!("../matmul/hopper_parts.cu"),
    include_str!("digits.cu")
);

/// Terms of k in a block of digits, and in a group that is copied at a time.
const BLOCK: usize = 64;
const GROUP: usize = 16;

/// Threads of a block, but for the product's, and those that write the digits of a gradient.
const THREADS: u32 = 256;
const GRAD_THREADS: u32 = 128;

/// Bytes of shared memory of a multiprocessor of compute capability 9.0, and those of a block of threads that it keeps for itself.
const SHARED: usize = 228 << 10;
const RESERVED: usize = 1 << 10;

/// Tiles for `wgmma` begin at multiples of 1024 bytes.
const ALIGN: usize = 1 << 10;

/// Bytes that a warp spreads results by, and those of a column besides its digits: where they begin, and in each stage its scale and where
/// its results are.
const SPREAD: usize = 16 * 32 * 4;
const START: usize = 8;
const COLUMN: usize = 8;
const WIDE_COLUMN: usize = 12;

/// Bytes of a stage besides its digits and columns: its tile and its barriers.
const STAGE: usize = 88;

/// Places of results from which on they need 64 bits.
const WIDE: usize = 1 << 31;

/// How the product is cut: parts of a tile, down and across, each with so many rows and columns, and what a tile takes on an H200.
#[derive(Clone, Copy)]
struct Tile {
    hopper: bool,
    parts: [usize; 2],
    rows: usize,
    columns: usize,
    threads: usize,
    stages: usize,
    resident: usize,
    /// Places of results need 64 bits.
    is_wide: bool,
    /// Cycles of a block of digits, where a multiprocessor has one tile and where it has as many as it can, and to begin and to end a tile.
    alone: f64,
    block: f64,
    ends: f64,
}

impl Tile {
    /// With warps of 32 rows and 32 columns, by `mma.sync`.
    fn of_warps(down: usize, across: usize, is_wide: bool) -> Tile {
        let [rows, columns] = [32 * down, 32 * across];
        let parts = [down, across];
        Tile {
            hopper: false,
            parts,
            rows,
            columns,
            threads: 32 * down * across,
            stages: 3,
            resident: 2,
            is_wide,
            alone: 2400.0,
            block: 2400.0,
            ends: 3000.0,
        }
    }

    /// With warp groups of 64 rows below each other, by `wgmma`, and one more that copies.
    fn of_groups(digits: Digits, down: usize, columns: usize, is_wide: bool) -> Tile {
        // A group that multiplies alone takes more than half as long as two, since the columns of a tile are copied for it alone.
        let (resident, alone, block, ends) = match (digits, columns, down) {
            (Digits::Two, 128, 1) => (2, 1100.0, 1500.0, 5000.0),
            (Digits::Two, 128, _) => (1, 1290.0, 1290.0, 5000.0),
            (Digits::Two, _, 1) => (2, 900.0, 1250.0, 4000.0),
            (Digits::Two, ..) => (1, 1000.0, 1000.0, 4000.0),
            (Digits::Three, _, 1) => (2, 1500.0, 2400.0, 4500.0),
            (Digits::Three, ..) => (1, 2010.0, 2010.0, 4800.0),
        };
        let rows = 64 * down;
        let stage = columns * if is_wide { WIDE_COLUMN } else { COLUMN } + STAGE;
        // The tile that is ended has columns, too.
        let others = ALIGN + columns * START + 4 * down * SPREAD + stage;
        let room = SHARED / resident - RESERVED - others;
        let stages = room / (digits.count() * (rows + columns) * BLOCK + stage);
        Tile {
            hopper: true,
            parts: [down, 1],
            rows,
            columns,
            threads: 128 * (1 + down),
            stages,
            resident,
            is_wide,
            alone,
            block,
            ends,
        }
    }

    /// The one that is expected to be fastest for `items` products of `sizes` rows and columns, whose results have `span` places. `is_beside`:
    /// other kernels run beside it and take the places that it leaves, so that only its work counts.
    fn best(
        digits: Digits,
        gpu: &Gpu,
        sizes: [usize; 2],
        items: usize,
        blocks: usize,
        span: usize,
        is_beside: bool,
    ) -> Tile {
        let [m, n] = sizes;
        let is_wide = span >= WIDE;
        let of_warps = if m <= 32 { Tile::of_warps(1, 4, is_wide) } else { Tile::of_warps(2, 2, is_wide) };
        let all: &[usize] = match digits {
            Digits::Two => &[128, 96],
            Digits::Three => &[96],
        };
        let of_groups = all
            .iter()
            .flat_map(|&columns| [2, 1].map(|down| Tile::of_groups(digits, down, columns, is_wide)));
        let time = |tile: &Tile| {
            let (count, places) = (tile.count(m, n, items), tile.places(gpu.sm_count));
            let block = if is_beside || count > gpu.sm_count as usize { tile.block } else { tile.alone };
            let turns = if is_beside { count as f64 / places as f64 } else { count.div_ceil(places) as f64 };
            turns * (blocks as f64 * block + tile.ends)
        };
        let better = |best: Tile, tile: Tile| if time(&tile) < time(&best) { tile } else { best };
        of_groups.filter(|_| gpu.hopper).fold(of_warps, better)
    }

    fn count(&self, m: usize, n: usize, items: usize) -> usize {
        m.div_ceil(self.rows) * n.div_ceil(self.columns) * items
    }

    /// Blocks of threads that run at a time.
    fn places(&self, sm_count: u32) -> usize {
        self.resident * sm_count.max(1) as usize
    }

    fn shared(&self, digits: Digits) -> usize {
        let warps = if self.hopper { 4 * self.parts[0] } else { self.parts[0] * self.parts[1] };
        let ring = self.stages * digits.count() * (self.rows + self.columns) * BLOCK;
        ring + warps * SPREAD + if self.hopper { ALIGN } else { 0 }
    }
}

/// An axis as `digits.cu` has it: every `scale`-th element is in a box, and these are `stride` places apart.
#[derive(Clone, Copy)]
struct BoxAxis {
    reach: Reach,
    scale: usize,
    stride: usize,
}

/// Words of an axis.
const AXIS: usize = 16;

impl BoxAxis {
    /// Its elements in a box.
    fn extent(&self) -> usize {
        if self.scale == 1 { self.reach.extent() } else { self.reach.axis.positions }
    }

    fn words(&self) -> [u64; AXIS] {
        let Axis {
            positions,
            step,
            taps,
            first,
            tap_step,
            source,
            out_first,
            out_step,
            out,
            w_first,
            w_step,
            w,
        } = self.reach.axis;
        let n = |x: usize| x as u64;
        let signed = |x: isize| (x as i64).cast_unsigned();
        [
            n(positions),
            n(step / self.scale),
            n(taps),
            signed(first),
            signed(tap_step),
            n(source),
            signed(self.reach.low),
            n(self.scale),
            n(self.extent()),
            n(self.stride),
            n(out_first),
            n(out_step),
            n(out),
            n(w_first),
            n(w_step),
            n(w),
        ]
    }
}

/// The axes of views that read one box, outermost first, and the places of the box.
fn box_of(views: &[&[Axis]]) -> (Vec<Vec<BoxAxis>>, usize) {
    let mut all = vec![Vec::new(); views.len()];
    let mut places = 1;
    for d in (0..views[0].len()).rev() {
        let reaches: Vec<Reach> = views.iter().map(|axes| Reach::of(axes[d])).collect();
        let low = reaches.iter().map(|r| r.low).min().unwrap_or(0);
        let high = reaches.iter().map(|r| r.low + r.span as isize).max().unwrap_or(0);
        let span = (high - low).cast_unsigned();
        // What a single tap skips is not in the box.
        let scale = if span == 1 { reaches[0].axis.step } else { 1 };
        let mut extent = 1;
        for (axes, reach) in all.iter_mut().zip(reaches) {
            let axis = BoxAxis { reach: Reach { low, span, ..reach }, scale, stride: places };
            extent = axis.extent();
            axes.insert(0, axis);
        }
        places *= extent;
    }
    (all, places)
}

/// The most taps of an axis that a thread takes together, and the most elements from place to place for it to read what lies between, too.
const MOST_TAPS: usize = 8;
const MOST_STEP: usize = 2;

/// The most floats of neighbouring rows of a kernel that a block of threads has.
const MOST_FLOATS: usize = 4096;

/// The most axes of the variant for images, and the most convolutions that are computed together.
const IMAGE_AXES: usize = 2;
const MOST_CLASSES: usize = 4;

/// Convolutions of one source and kernel, as many at a time as can be computed together: those that read the same box, as the classes of a
/// transposed one mostly do.
pub(super) fn together(classes: &[Gather]) -> impl Iterator<Item = &[Gather]> {
    let is_alone = |g: &Gather| g.channels * g.view.taps() == 0 || g.view.axes().len() > IMAGE_AXES;
    let places = |g: &Gather| g.view.axes().iter().map(|a| (a.positions, a.step)).collect::<Vec<_>>();
    let mut rest = classes;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let fits = |g: &&Gather| !is_alone(g) && places(g) == places(first);
        let count = if is_alone(first) { 1 } else { rest.iter().take(MOST_CLASSES).take_while(fits).count() };
        let (now, others) = rest.split_at(count);
        rest = others;
        Some(now)
    })
}

/// A struct of 64-bit words.
fn push(args: &mut Args, words: &[u64]) {
    args.bytes(bytemuck::cast_slice(words), 8);
}

/// The axes that a variant has room for.
fn room(axes: usize) -> usize {
    if axes <= IMAGE_AXES { IMAGE_AXES } else { MAX_AXES }
}

/// `Axes` of `digits.cu`.
fn axes_words(axes: &[BoxAxis]) -> Vec<u64> {
    let mut words = vec![axes.len() as u64];
    for d in 0..room(axes.len()) {
        words.extend(axes.get(d).map_or([0; AXIS], BoxAxis::words));
    }
    words
}

/// `Class` of `digits.cu`: taps, blocks of k, where digits and table begin, in bytes and groups of k, and axes.
#[derive(Clone)]
struct Class {
    taps: usize,
    blocks: usize,
    digits: usize,
    table: usize,
    axes: Vec<BoxAxis>,
}

impl Class {
    fn words(&self) -> Vec<u64> {
        let mut words = [self.taps, self.blocks, self.digits, self.table].map(|x| x as u64).to_vec();
        words.extend(axes_words(&self.axes));
        words
    }
}

/// `Classes` of `digits.cu`.
fn push_classes(args: &mut Args, classes: &[Class]) {
    push(args, &classes.iter().flat_map(Class::words).collect::<Vec<_>>());
}

/// The channels of the images that a convolution reads.
pub(super) fn columns_lines(g: &Gather) -> Lines {
    Lines { start: 0, length: g.view.plane(), count: g.batch * g.groups * g.channels }
}

/// The channels of both operands of a kernel's gradient.
pub(super) fn grad_lines(g: &KernelGrad) -> [Lines; 2] {
    let of =
        |channels: usize, length: usize| Lines { start: 0, length, count: g.batch * g.groups * channels };
    [of(g.rows, g.view.positions()), of(g.channels, g.view.plane())]
}

/// Images: where they are, their channels, how many an image has, and where the largest magnitudes of channels are.
struct Images {
    x: u64,
    lines: Lines,
    channels: usize,
    magnitudes: u64,
}

impl Images {
    /// Input `i`. Its magnitudes are those that are known, else a launch finds them and leaves them at `own`.
    fn input(
        at: &Pointers,
        i: usize,
        lines: Lines,
        channels: usize,
        own: u64,
        f: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<Images> {
        let known = at.magnitudes[i];
        let images =
            Images { x: at.ins[i], lines, channels, magnitudes: if known == 0 { own } else { known } };
        if known == 0 {
            f(images.step())?;
        }
        Ok(images)
    }

    fn words(&self) -> [u64; 5] {
        let Lines { length, count, .. } = self.lines;
        [self.x, self.channels as u64, length as u64, self.magnitudes, count as u64]
    }

    /// The launch that finds the magnitudes.
    fn step(&self) -> Step {
        let lines = defines(&[
            ("PART", 0),
            ("DIGITS", 2),
            ("U", 1),
            ("AXES", IMAGE_AXES),
            ("CLASSES", 1),
            ("VECTOR", usize::from(self.lines.vector() == 4)),
            ("WARPS", self.lines.warps()),
        ]);
        let mut args = Args::new();
        push(&mut args, &self.words());
        args.ptr(self.magnitudes);
        Step {
            module: source(&lines, None),
            kernel: "ditto_conv_magnitudes",
            grid: [clamp(self.lines.blocks(), MAX_X), 1, 1],
            block: THREADS,
            shared: 0,
            args,
        }
    }
}

/// Convolutions in digits that are computed [together].
pub(super) struct ColumnsPlan {
    digits: Digits,
    /// One of them.
    gather: Gather,
    classes: Vec<Class>,
    places: usize,
    /// Channels of a group, rounded up, and rows of a group, rounded up.
    padded: usize,
    pitch: usize,
    /// Groups of channels that lie next to each other.
    together: usize,
    tile: Tile,
    sm_count: u32,
    /// Where everything lies in the workspace, in words.
    magnitudes: usize,
    item_exponents: usize,
    row_exponents: usize,
    table: usize,
    kernel: usize,
    boxes: usize,
    pub workspace: usize,
}

impl ColumnsPlan {
    pub(super) fn new(digits: Digits, gathers: &[Gather], gpu: &Gpu) -> ColumnsPlan {
        let gather = gathers[0];
        let Gather { view, batch, groups, rows, channels, .. } = gather;
        let (axes, places) = box_of(&gathers.iter().map(|g| g.view.axes()).collect::<Vec<_>>());
        let (padded, pitch) = (channels.next_multiple_of(GROUP), rows.next_multiple_of(8));
        let (mut table, mut kernel) = (0, 0);
        let class = |(g, axes): (&Gather, Vec<BoxAxis>)| {
            let taps = g.view.taps();
            let class = Class { taps, blocks: (taps * padded).div_ceil(BLOCK), digits: kernel, table, axes };
            table += class.blocks * (BLOCK / GROUP);
            kernel += groups * class.blocks * digits.count() * pitch * BLOCK;
            class
        };
        let mut classes: Vec<Class> = gathers.iter().zip(axes).map(class).collect();
        // Long tiles are taken first.
        classes.sort_by_key(|c| std::cmp::Reverse(c.blocks));
        let mut space = Workspace::default();
        let magnitudes = space.take(columns_lines(&gather).count);
        let item_exponents = space.take(batch * groups);
        let row_exponents = space.take(groups * pitch);
        let table = space.take_bytes(table * 8);
        let kernel = space.take_bytes(kernel);
        let boxes = space.take_bytes(batch * groups * digits.count() * places * padded);
        let blocks = classes.iter().map(|c| c.blocks).sum::<usize>().div_ceil(classes.len());
        let (sizes, items) = ([rows, batch * view.positions()], classes.len() * groups);
        let span = batch * groups * rows * view.out_plane();
        ColumnsPlan {
            digits,
            gather,
            places,
            padded,
            pitch,
            // Of two, a column's 32 bytes are a sector of the L2 cache; of more, fewer images' places would be read and written together.
            together: if (padded / GROUP).is_multiple_of(2) { 2 } else { 1 },
            tile: Tile::best(digits, gpu, sizes, items, blocks, span, false),
            classes,
            sm_count: gpu.sm_count,
            magnitudes,
            item_exponents,
            row_exponents,
            table,
            kernel,
            boxes,
            workspace: space.words(),
        }
    }

    /// The launches.
    pub(super) fn steps(
        &self,
        at: &Pointers,
        epilogue: Option<&EpilogueCode>,
        f: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<()> {
        let Gather { view, batch, groups, rows, channels, w_strides } = self.gather;
        let (items, positions) = (batch * groups, view.positions());
        if items * rows * positions == 0 {
            return Ok(());
        }
        let address = |word: usize| at.workspace + 4 * word as u64;
        let (lines, own) = (columns_lines(&self.gather), address(self.magnitudes));
        let images = Images::input(at, 0, lines, groups * channels, own, f)?;
        let n = |x: usize| x as u64;
        let mut boxes = images.words().to_vec();
        boxes.extend([groups, self.padded, self.places].map(n));
        boxes.extend([self.item_exponents, self.boxes, self.table].map(address));
        let mut kernel = vec![at.ins[1]];
        kernel.extend([groups, rows, self.pitch, channels].map(n));
        kernel.extend([w_strides[0], w_strides[1], w_strides[2], view.w_plane()].map(n));
        kernel.extend([self.row_exponents, self.kernel].map(address));
        let mut args = Args::new();
        push(&mut args, &boxes);
        push(&mut args, &kernel);
        push_classes(&mut args, &self.classes);
        let units = (self.places * self.together).div_ceil(32) * (self.padded / GROUP / self.together);
        let plane = view.w_plane();
        let neighbours = w_strides[1] == plane && plane <= THREADS as usize;
        let is_for_all = |rows: &usize| rows * plane * channels.max(16) <= MOST_FLOATS;
        let rows_each = if neighbours { [4, 2].into_iter().find(is_for_all).unwrap_or(1) } else { 1 };
        let of_class = 1 + groups * self.pitch / rows_each;
        let blocks = self.classes.len() * of_class + items * units.div_ceil(8);
        let axes = room(self.classes[0].axes.len());
        let lines = defines(&[
            ("PART", 1),
            ("DIGITS", self.digits.count()),
            ("ROWS", rows_each),
            ("NEIGHBOURS", usize::from(neighbours)),
            ("U", self.together),
            ("AXES", axes),
            ("CLASSES", self.classes.len()),
        ]);
        f(Step {
            module: source(&lines, None),
            kernel: "ditto_conv_digits",
            grid: [clamp(blocks, MAX_X), 1, 1],
            block: THREADS,
            shared: 0,
            args,
        })?;
        let of_digit = self.places * self.padded;
        let of_group = self.digits.count() * of_digit;
        let fours = view.is_dense() && positions.is_multiple_of(4);
        let product = Product {
            digits: self.digits,
            grad: false,
            together: self.together,
            fours,
            tile: self.tile,
            pointers: [self.kernel, self.boxes, self.row_exponents, self.item_exponents, self.table]
                .map(address),
            m: rows,
            n: batch * positions,
            items: groups,
            words: vec![
                rows,
                batch * positions,
                self.pitch,
                groups,
                groups,
                of_digit,
                of_group,
                positions,
                GROUP * self.together,
                view.out_plane(),
                1,
                1,
                0,
                groups * of_group,
                0,
                0,
                0,
                0,
            ],
        };
        f(product.step(&self.classes, at.out, at.bias, epilogue, self.sm_count))
    }
}

/// A launch of `ditto_conv_product`.
struct Product {
    digits: Digits,
    grad: bool,
    /// Groups of terms of a column that lie next to each other.
    together: usize,
    fours: bool,
    tile: Tile,
    pointers: [u64; 5],
    m: usize,
    n: usize,
    items: usize,
    /// What follows the addresses in `Product` of `digits.cu`.
    words: Vec<usize>,
}

impl Product {
    fn step(
        &self,
        classes: &[Class],
        out: u64,
        bias: u64,
        epilogue: Option<&EpilogueCode>,
        sm_count: u32,
    ) -> Step {
        let tile = &self.tile;
        let lines = defines(&[
            ("PART", 3),
            ("DIGITS", self.digits.count()),
            ("GRAD", usize::from(self.grad)),
            ("AXES", room(classes[0].axes.len())),
            ("CLASSES", classes.len()),
            ("HOPPER", usize::from(tile.hopper)),
            ("WM", tile.parts[0]),
            ("WN", tile.parts[1]),
            ("ACROSS", tile.columns),
            ("STAGES", tile.stages),
            ("U", self.together),
            ("VC", usize::from(self.fours)),
            ("WIDE", usize::from(tile.is_wide)),
        ]);
        let mut args = Args::new();
        let mut words = self.pointers.to_vec();
        words.extend(self.words.iter().map(|&x| x as u64));
        push(&mut args, &words);
        push_classes(&mut args, classes);
        args.ptr(out).ptr(bias);
        if let Some(epilogue) = epilogue {
            epilogue.push(&mut args);
        }
        let blocks = tile.count(self.m, self.n, classes.len() * self.items).min(tile.places(sm_count));
        Step {
            module: source(&lines, epilogue),
            kernel: "ditto_conv_product",
            grid: [clamp(blocks, MAX_X), 1, 1],
            block: tile.threads as u32,
            shared: tile.shared(self.digits) as u32,
            args,
        }
    }
}

/// The gradient of a kernel in digits.
pub(super) struct GradPlan {
    digits: Digits,
    grad: KernelGrad,
    /// Its axes are those but for the innermost one, whose lines are places of a box.
    class: Class,
    places: usize,
    inner: Axis,
    /// All positions of two axes are its positions, which the source's digits are copied for.
    is_packed: bool,
    /// Images of a run, runs, rows of a group, rounded up, and places of a line, rounded up.
    run: usize,
    runs: usize,
    pitch: usize,
    width: usize,
    tile: Tile,
    sm_count: u32,
    /// Where everything lies in the workspace, in words.
    magnitudes: [usize; 2],
    exponents: [usize; 2],
    table: usize,
    rows: usize,
    copies: usize,
    parts: usize,
    pub workspace: usize,
}

impl GradPlan {
    pub(super) fn new(digits: Digits, grad: &KernelGrad, gpu: &Gpu) -> GradPlan {
        let KernelGrad { view, batch, groups, rows, channels } = *grad;
        let positions = view.positions();
        let (mut outer, mut inner) = split_inner(&view);
        let of_lines = positions / inner.positions.max(1) * inner.positions.next_multiple_of(GROUP);
        let is_packed = outer.len() == 1 && positions.next_multiple_of(GROUP) * 3 <= of_lines * 2;
        if is_packed {
            outer = &[];
            inner = Axis { positions, taps: view.taps(), source: view.plane(), ..Axis::ONE };
        }
        let (mut axes, places) = box_of(&[outer]);
        let run = conv_run(positions).min(batch.max(1));
        let runs = batch.div_ceil(run);
        let width = inner.positions.next_multiple_of(GROUP);
        let lines = positions / inner.positions.max(1);
        let (blocks, pitch) = ((run * lines * width).div_ceil(BLOCK), rows.next_multiple_of(8));
        let d = digits.count();
        let mut space = Workspace::default();
        let magnitudes = grad_lines(grad).map(|lines| space.take(lines.count));
        let exponents = [space.take(runs * groups * pitch), space.take(runs * groups * channels)];
        let table = space.take_bytes(blocks * BLOCK / GROUP * 8);
        let of_rows = space.take_bytes(runs * groups * blocks * d * pitch * BLOCK);
        let copies = space.take_bytes(inner.taps * batch * groups * channels * d * places * width);
        let results = groups * rows * channels * view.taps();
        let of_parts = space.take(if runs > 1 { runs * results } else { 0 });
        GradPlan {
            digits,
            grad: *grad,
            class: Class { taps: view.taps(), blocks, digits: 0, table: 0, axes: axes.remove(0) },
            places,
            inner,
            is_packed,
            run,
            runs,
            pitch,
            width,
            tile: Tile::best(
                digits,
                gpu,
                [rows, channels * view.taps()],
                runs * groups,
                blocks,
                channels * view.taps(),
                true,
            ),
            sm_count: gpu.sm_count,
            magnitudes,
            exponents,
            table,
            rows: of_rows,
            copies,
            parts: of_parts,
            workspace: space.words(),
        }
    }

    /// The launches.
    pub(super) fn steps(&self, at: &Pointers, f: &mut dyn FnMut(Step) -> Result<()>) -> Result<()> {
        let KernelGrad { view, batch, groups, rows, channels } = self.grad;
        let (positions, taps) = (view.positions(), view.taps());
        let columns = channels * taps;
        if batch * groups * rows * columns * positions == 0 {
            return Ok(());
        }
        let address = |word: usize| at.workspace + 4 * word as u64;
        let [g_lines, lines] = grad_lines(&self.grad);
        let [g_own, own] = self.magnitudes.map(address);
        let g = Images::input(at, 0, g_lines, groups * rows, g_own, f)?;
        let from = Images::input(at, 1, lines, groups * channels, own, f)?;
        // Small images leave most threads of a block without work, so channels share one: of the source by as many lanes each as have work.
        let units = self.places * self.inner.taps * self.width / GROUP;
        let threads = GRAD_THREADS as usize;
        let rows_each = if units < threads { 4 } else { 1 };
        let Axis { step, taps: all, tap_step, first, source: line, .. } = self.inner;
        let before = first.unsigned_abs();
        // Near places are read with all that lies between them, taps along with them.
        let is_near = !self.is_packed
            && step <= MOST_STEP
            && (all == 1 || tap_step == 1)
            && all <= MOST_TAPS
            && first <= 0
            && before < all;
        let each = if is_near { all } else { 1 };
        let fours = is_near && line.is_multiple_of(4);
        let units = units / each;
        let lines_each = if units < threads { threads / units.next_power_of_two().clamp(4, 32) } else { 1 };
        let axes = match self.is_packed {
            true => box_of(&[view.axes()]).0.remove(0),
            false => self.class.axes.clone(),
        };
        let variant = defines(&[
            ("PART", 2),
            ("DIGITS", self.digits.count()),
            ("U", 1),
            ("AXES", room(axes.len())),
            ("CLASSES", 1),
            ("PACKED", usize::from(self.is_packed)),
            ("ROWS", rows_each),
            ("LINES", lines_each),
            ("TAPS", each),
            ("STEP", if is_near { step } else { 0 }),
            ("BEFORE", if fours { before } else { 0 }),
            ("FOURS", usize::from(fours)),
        ]);
        let module = source(&variant, None);
        let n = |x: usize| x as u64;
        let lines = positions / self.inner.positions.max(1);
        let mut both = [g.words(), from.words()].concat();
        both.extend([batch, self.run, groups, rows, self.pitch, self.class.blocks].map(n));
        both.extend([lines, self.width, self.places].map(n));
        both.extend([self.exponents[0], self.exponents[1], self.rows, self.copies, self.table].map(address));
        let mut args = Args::new();
        push(&mut args, &both);
        push(&mut args, &axes_words(&axes));
        let inner = BoxAxis { reach: Reach::of(self.inner), scale: 1, stride: 0 };
        push(&mut args, &inner.words());
        let blocks = 1
            + (self.runs * groups * self.pitch).div_ceil(rows_each)
            + (batch * groups * channels).div_ceil(lines_each);
        f(Step {
            module,
            kernel: "ditto_conv_grad_digits",
            grid: [clamp(blocks, MAX_X), 1, 1],
            block: GRAD_THREADS,
            shared: 0,
            args,
        })?;
        let of_digit = self.places * self.width;
        let of_channel = self.digits.count() * of_digit;
        let product = Product {
            digits: self.digits,
            grad: true,
            together: BLOCK / GROUP,
            fours: columns.is_multiple_of(4),
            tile: self.tile,
            pointers: [self.rows, self.copies, self.exponents[0], self.exponents[1], self.table].map(address),
            m: rows,
            n: columns,
            items: self.runs * groups,
            words: vec![
                rows,
                columns,
                self.pitch,
                groups,
                self.runs * groups,
                of_digit,
                channels * of_channel,
                1,
                self.width,
                columns,
                taps,
                self.inner.taps,
                batch * groups * channels * of_channel,
                groups * channels * of_channel,
                batch,
                self.run,
                channels,
                lines * self.width / GROUP,
            ],
        };
        let to = if self.runs > 1 { address(self.parts) } else { at.out };
        f(product.step(std::slice::from_ref(&self.class), to, 0, None, self.sm_count))?;
        if self.runs == 1 {
            return Ok(());
        }
        // Results of runs are added in increasing order.
        let gemm = Gemm { batch: groups, m: rows, n: columns, k: self.runs, ta: false, tb: true };
        let reduce = matmul::plan::reduce(&Problem::plain(gemm, true), u8::from(columns.is_multiple_of(4)));
        let mut args = Args::new();
        args.ptr(to).ptr(at.out).ptr(0);
        args.u64((groups * rows * columns) as u64).u64(columns as u64).u64(self.runs as u64);
        f(Step {
            module: matmul::source(&reduce.defines, None),
            kernel: reduce.kernel,
            grid: reduce.grid,
            block: reduce.block,
            shared: 0,
            args,
        })
    }
}

/// The outer axes of a view, and the innermost one.
fn split_inner(view: &View) -> (&[Axis], Axis) {
    match view.axes() {
        [outer @ .., inner] => (outer, *inner),
        [] => (&[], Axis::ONE),
    }
}

/// A variant of the kernels: a name of its own, and the text.
fn source(lines: &str, epilogue: Option<&EpilogueCode>) -> Source {
    let contract = format!("#define LEAST_EXPONENT ({LEAST_EXPONENT})\n");
    matmul::text("conv_digits", lines, epilogue, |before| format!("{contract}{lines}{before}{DIGITS_CU}"))
}
