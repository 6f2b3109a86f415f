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

    /// Warps that share a line, where a kernel takes line by line.
    pub(crate) fn warps(&self) -> usize {
        if self.length > WARP_LENGTH { WARPS } else { 1 }
    }

    /// Elements that a thread takes at a time then.
    pub(crate) fn vector(&self) -> usize {
        if self.length.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Blocks of [`WARPS`] warps then.
    pub(crate) fn blocks(&self) -> usize {
        self.count.div_ceil(WARPS / self.warps())
    }
}

/// Warps of a block that takes line by line.
const WARPS: usize = 8;

/// The longest line that a single warp takes.
const WARP_LENGTH: usize = 1024;

/// Device functions of magnitudes.
pub(crate) const MAGNITUDES_CU: &str = include_str!("magnitudes.cu");
