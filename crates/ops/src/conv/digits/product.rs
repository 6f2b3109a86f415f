//! The product, of a convolution or of the gradient of a kernel.

use super::tile::Tile;
use super::{Class, push, push_classes, room, source};
use crate::conv::plan::Step;
use crate::fused::EpilogueCode;
use crate::matmul::plan::{MAX_X, clamp, defines};
use dittograd_device::cuda::Args;
use dittograd_numerics::digits::Digits;

/// A launch of `ditto_conv_product`.
pub(super) struct Product {
    pub(super) digits: Digits,
    pub(super) grad: bool,
    /// Groups of terms of a column that lie next to each other.
    pub(super) interleave: usize,
    pub(super) fours: bool,
    pub(super) tile: Tile,
    pub(super) pointers: [u64; 5],
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) items: usize,
    /// What follows the addresses in `Product` of `product.cu`.
    pub(super) words: Vec<usize>,
}

impl Product {
    pub(super) fn step(
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
            ("INTERLEAVE", self.interleave),
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
