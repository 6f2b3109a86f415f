//! Convolutions, and transposed ones.

use super::product::Product;
use super::tile::Tile;
use super::{
    BLOCK, BoxAxis, Class, GROUP, Images, THREADS, box_of, columns_lines, push, push_classes, room, source,
};
use crate::Gpu;
use crate::conv::plan::{Pointers, Step};
use crate::fused::EpilogueCode;
use crate::matmul::plan::{MAX_X, clamp, defines};
use crate::workspace::Workspace;
use dittograd_device::cpu::conv::Gather;
use dittograd_device::cuda::Args;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;

/// The most floats of neighbouring rows of a kernel that a block of threads has.
const MOST_FLOATS: usize = 4096;

/// Convolutions in digits that are computed [together](super::together).
pub(crate) struct ColumnsPlan {
    digits: Digits,
    /// One of them.
    gather: Gather,
    classes: Vec<Class>,
    places: usize,
    /// Channels of a group, rounded up, and rows of a group, rounded up.
    padded: usize,
    pitch: usize,
    /// Groups of channels of a position that lie next to each other.
    interleave: usize,
    tile: Tile,
    sm_count: u32,
    /// Where everything lies in the workspace, in words.
    magnitudes: usize,
    item_exponents: usize,
    row_exponents: usize,
    table: usize,
    kernel: usize,
    boxes: usize,
    pub(crate) workspace: usize,
}

impl ColumnsPlan {
    pub(crate) fn new(digits: Digits, gathers: &[Gather], gpu: &Gpu) -> ColumnsPlan {
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
            // Two are 32 bytes, a sector of the L2 cache. With four, warps would read shorter pieces of lines.
            interleave: if (padded / GROUP).is_multiple_of(2) { 2 } else { 1 },
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
    pub(crate) fn steps(
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
        let units = (self.places * self.interleave).div_ceil(32) * (self.padded / GROUP / self.interleave);
        // Rows of a transposed kernel lie next to each other: a block reads several together, unless they are long.
        let plane = view.w_plane();
        let neighbours = w_strides[1] == plane && plane <= THREADS as usize;
        let are_short = |rows: &usize| rows * plane * channels.max(16) <= MOST_FLOATS;
        let rows_each = if neighbours { [4, 2].into_iter().find(are_short).unwrap_or(1) } else { 1 };
        let of_class = 1 + groups * self.pitch / rows_each;
        let blocks = self.classes.len() * of_class + items * units.div_ceil(8);
        let axes = room(self.classes[0].axes.len());
        let lines = defines(&[
            ("PART", 1),
            ("DIGITS", self.digits.count()),
            ("ROWS", rows_each),
            ("NEIGHBOURS", usize::from(neighbours)),
            ("INTERLEAVE", self.interleave),
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
            interleave: self.interleave,
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
                GROUP * self.interleave,
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
