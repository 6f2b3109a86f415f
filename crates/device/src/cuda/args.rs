//! Kernel arguments, packed in the layout of the kernel's parameters: one after another, each at its own alignment. The
//! driver takes them as one buffer with its size, so a wrong count is refused instead of read past the end. The buffer
//! is inline: no launch allocates.

/// The most bytes of arguments that a launch takes: as many as every GPU allows.
pub const MAX_ARGS: usize = 4096;

/// Aligned for every parameter type.
#[repr(align(16))]
struct Buffer([u8; MAX_ARGS]);

/// The arguments of one launch, in the order of the kernel's parameters. The methods chain: `Args::new().ptr(x).u32(n)`
/// can be passed to a launch directly.
pub struct Args {
    buffer: Buffer,
    len: usize,
    count: usize,
    wrong: Option<&'static str>,
}

impl Args {
    /// No arguments.
    pub fn new() -> Args {
        Args { buffer: Buffer([0; MAX_ARGS]), len: 0, count: 0, wrong: None }
    }

    /// A device address.
    pub fn ptr(&mut self, address: u64) -> &mut Args {
        self.push(&address.to_ne_bytes(), 8)
    }

    /// An unsigned 32-bit number.
    pub fn u32(&mut self, value: u32) -> &mut Args {
        self.push(&value.to_ne_bytes(), 4)
    }

    /// A signed 32-bit number.
    pub fn i32(&mut self, value: i32) -> &mut Args {
        self.push(&value.to_ne_bytes(), 4)
    }

    /// An unsigned 64-bit number.
    pub fn u64(&mut self, value: u64) -> &mut Args {
        self.push(&value.to_ne_bytes(), 8)
    }

    /// A float.
    pub fn f32(&mut self, value: f32) -> &mut Args {
        self.push(&value.to_ne_bytes(), 4)
    }

    /// A struct passed by value: its bytes and its alignment, a power of two up to 16.
    pub fn bytes(&mut self, value: &[u8], align: usize) -> &mut Args {
        if align.is_power_of_two() && align <= 16 {
            self.push(value, align)
        } else {
            self.wrong = Some("the alignment of a struct is not a power of two up to 16");
            self
        }
    }

    /// Removes all arguments.
    pub fn clear(&mut self) {
        // Padding between arguments is not rewritten, so clear it here.
        self.buffer.0[..self.len].fill(0);
        (self.len, self.count, self.wrong) = (0, 0, None);
    }

    fn push(&mut self, value: &[u8], align: usize) -> &mut Args {
        let start = self.len.next_multiple_of(align);
        match self.buffer.0.get_mut(start..).and_then(|rest| rest.get_mut(..value.len())) {
            Some(slot) => {
                slot.copy_from_slice(value);
                self.len = start + value.len();
                self.count += 1;
            }
            None => self.wrong = Some("the arguments take more than 4096 bytes"),
        }
        self
    }

    /// The buffer with its padding.
    pub(super) fn packed(&self) -> &[u8] {
        &self.buffer.0[..self.len]
    }

    /// Number of arguments and their bytes, padding included.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.count, self.len)
    }

    /// What was wrong with an argument, if anything.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        self.wrong
    }
}

impl Default for Args {
    fn default() -> Args {
        Args::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_as_a_struct_would() {
        let mut args = Args::new();
        args.u32(1).ptr(2).f32(1.0).bytes(&[7; 3], 1).i32(-1).u64(9);
        let mut want = Vec::new();
        want.extend(1u32.to_ne_bytes());
        want.extend([0; 4]);
        want.extend(2u64.to_ne_bytes());
        want.extend(1f32.to_ne_bytes());
        want.extend([7; 3]);
        want.push(0);
        want.extend((-1i32).to_ne_bytes());
        want.extend([0; 4]);
        want.extend(9u64.to_ne_bytes());
        assert_eq!(args.packed(), want);
        assert_eq!(args.extent(), (6, 40));
        args.clear();
        args.u32(5);
        assert_eq!(args.packed(), 5u32.to_ne_bytes());
    }

    #[test]
    fn mistakes_are_kept_for_the_launch() {
        let mut args = Args::new();
        assert!(args.bytes(&[0; 4], 3).wrong().is_some());
        args.clear();
        assert!(args.bytes(&[0; MAX_ARGS], 16).wrong().is_none());
        assert!(args.u32(0).wrong().is_some());
        args.clear();
        assert!(args.bytes(&[0; 1], 32).wrong().is_some());
        args.clear();
        assert!(args.wrong().is_none());
    }
}
