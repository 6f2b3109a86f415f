//! The largest magnitudes of a value's lines, kept beside the value. Convolutions in digits need those of every channel of every image
//! before they read the image itself. Where a program is compiled for a GPU, the kernel that computes a value leaves them for the
//! convolutions that read it; a convolution whose input comes from elsewhere finds them by itself. Bits are the same.

/// Neighbouring lines of equal length that are all of a value, or all of one of the results that lie one after the other in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lines {
    /// The element of the value that the first line begins with.
    pub start: usize,
    /// Elements of a line.
    pub length: usize,
    /// Lines.
    pub count: usize,
}

impl Lines {
    /// Elements of all lines.
    pub(crate) fn numel(&self) -> usize {
        self.count * self.length
    }

    /// Warps that share a line, and the elements that a thread takes at a time, where a kernel takes line by line.
    pub(crate) fn shared_by(&self) -> (usize, usize) {
        let warps = if self.length > LONG { WARPS } else { 1 };
        (warps, if self.length.is_multiple_of(4) { 4 } else { 1 })
    }

    /// Blocks of as many threads as [`WARPS`] warps have, if lines are shared by so many warps.
    pub(crate) fn blocks(&self, warps: usize) -> usize {
        self.count.div_ceil(WARPS / warps)
    }
}

/// The length from which on all warps of a block share a line, and how many these are.
const LONG: usize = 1024;
pub(crate) const WARPS: usize = 8;

/// Device functions of magnitudes.
pub(crate) const MAGNITUDES_CU: &str = include_str!("magnitudes.cu");
