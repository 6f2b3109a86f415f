//! The gradient of a kernel.

use super::product::Product;
use super::tile::Tile;
use super::{BLOCK, BoxAxis, Class, GROUP, Images, axes_words, box_of, grad_lines, push, room, source};
use crate::Gpu;
use crate::conv::plan::{Pointers, Step};
use crate::matmul;
use crate::matmul::plan::{MAX_X, Problem, clamp, defines};
use crate::workspace::Workspace;
use dittograd_device::cpu::conv::{Axis, KernelGrad, Reach, View};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cuda::Args;
use dittograd_numerics::digits::{Digits, conv_run};
use dittograd_numerics::error::Result;

/// Threads of a block that writes digits.
const GRAD_THREADS: u32 = 128;

/// The most taps of an axis that a thread takes together, and the most elements from place to place for it to read what lies between, too.
const MOST_TAPS: usize = 8;
const MOST_STEP: usize = 2;

/// The gradient of a kernel in digits.
pub(crate) struct GradPlan {
    digits: Digits,
    grad: KernelGrad,
    /// Its axes are those but for the innermost one, whose lines are places of a box.
    class: Class,
    places: usize,
    inner: Axis,
    /// All positions of two axes are its positions.
    is_packed: bool,
    /// What the source's digits are copied by: the class's axes, or where positions are packed both.
    source_axes: Vec<BoxAxis>,
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
    pub(crate) workspace: usize,
}

impl GradPlan {
    pub(crate) fn new(digits: Digits, grad: &KernelGrad, gpu: &Gpu) -> GradPlan {
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
        let axes = axes.remove(0);
        let source_axes = if is_packed { box_of(&[view.axes()]).0.remove(0) } else { axes.clone() };
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
            class: Class { taps: view.taps(), blocks, digits: 0, table: 0, axes },
            places,
            inner,
            is_packed,
            source_axes,
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
    pub(crate) fn steps(&self, at: &Pointers, f: &mut dyn FnMut(Step) -> Result<()>) -> Result<()> {
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
        let variant = defines(&[
            ("PART", 2),
            ("DIGITS", self.digits.count()),
            ("INTERLEAVE", 1),
            ("AXES", room(self.source_axes.len())),
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
        push(&mut args, &axes_words(&self.source_axes));
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
            interleave: BLOCK / GROUP,
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
