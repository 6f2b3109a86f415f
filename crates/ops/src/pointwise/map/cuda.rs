//! The CUDA kernel: its text for a program and an access pattern, and its launch.

use super::{Access, Walk};
use crate::magnitudes::{Lines, MAGNITUDES_CU};
use crate::pointwise::device_function::{Constants, array_function, define, list};
use crate::pointwise::expression::{Pointwise, Reg, Step};
use crate::{CudaRun, Generated, Known, known};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::functions;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock, RwLock};

/// Elements each thread takes at a time: one 16-byte access where rows allow it.
const VECTOR: usize = 4;

/// Elements of a thread in a turn of its loop, at most.
const ELEMENTS: usize = 8;

const MAP_CU: &str = include_str!("../map.cu");

/// How an input is read; see `map.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Unread,
    Plain,
    Single,
    Strided,
    Row,
    Repeated,
    Line,
}

impl Kind {
    fn cuda(self) -> &'static str {
        match self {
            Kind::Unread => "UNREAD",
            Kind::Plain => "PLAIN",
            Kind::Single => "SINGLE",
            Kind::Strided => "STRIDED",
            Kind::Row => "ROW",
            Kind::Repeated => "REPEATED",
            Kind::Line => "LINE",
        }
    }

    fn is_strided(self) -> bool {
        matches!(self, Kind::Strided | Kind::Row | Kind::Repeated | Kind::Line)
    }
}

/// How a program's inputs are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    kinds: Vec<Kind>,
    /// Axes that strided inputs are read along; 1 if there are none.
    rank: usize,
    /// Whether the last axis is a multiple of the vector.
    whole: bool,
    /// Whether positions need 64 bits.
    wide: bool,
    /// Elements of a thread at a time.
    vector: usize,
    /// Vectors of a thread at a time.
    unroll: usize,
    /// The result of whose lines largest magnitudes are left, and warps that share a line.
    leaves: Option<(usize, usize)>,
}

impl Pattern {
    fn new(program: &Pointwise, walk: &Walk, lines: Option<Lines>) -> Pattern {
        let dims = walk.dims();
        let n = dims.iter().product::<usize>();
        let vector = lines.map_or(VECTOR, |l| l.vector());
        let ends_whole = dims[dims.len() - 1].is_multiple_of(vector);
        let kind = |i: usize| match walk.strides(i) {
            _ if !program.reads()[i] => Kind::Unread,
            _ if walk.plain(i) => Kind::Plain,
            strides if strides.iter().all(|&s| s == 0) => Kind::Single,
            [.., 0] if lines.is_some_and(|l| l.length == dims[dims.len() - 1]) => Kind::Line,
            [.., 0] if ends_whole => Kind::Repeated,
            [outer @ .., 1] if ends_whole && outer.iter().all(|s| s.is_multiple_of(vector)) => Kind::Row,
            _ => Kind::Strided,
        };
        let kinds: Vec<Kind> = (0..program.inputs()).map(kind).collect();
        let is_flat = !kinds.iter().any(|k| k.is_strided());
        let rank = if is_flat { 1 } else { dims.len() };
        // Broadcasting and permuting reads no farther than it writes.
        let wide = n >= NARROW;
        let leaves = lines.map(|l| (l.start / n.max(1), l.warps()));
        // Short lines have no work for more.
        let of_line = |l: Lines| l.length.div_ceil(32 * l.warps() * vector).max(1);
        let unroll = lines.map_or(usize::MAX, of_line).min(ELEMENTS / vector);
        Pattern { kinds, rank, whole: is_flat || ends_whole, wide, vector, unroll, leaves }
    }

    /// An argument of positions, as wide as they are.
    fn push(&self, args: &mut Args, positions: impl Iterator<Item = usize>) {
        let width = if self.wide { 8 } else { 4 };
        let (mut bytes, mut len) = ([0; 8 * 3 * MAX_RANK], 0);
        for position in positions {
            bytes[len..len + width].copy_from_slice(&position.to_le_bytes()[..width]);
            len += width;
        }
        args.bytes(&bytes[..len], width);
    }
}

/// Elements from which on positions need 64 bits: `divide` of `map.cu` is exact below, and the last turn of a thread does
/// not overflow.
const NARROW: usize = 1 << 31;

/// The axis of `map.cu` of this length: division of 31-bit numbers by a multiplication, whose high word is shifted.
fn divisor(dim: usize) -> [usize; 3] {
    let bits = dim.next_power_of_two().trailing_zeros();
    let multiplier = (1_usize << (31 + bits)).div_ceil(dim);
    [dim, multiplier, bits.saturating_sub(1) as usize]
}

/// What is written into a kernel's text: the program without its constants' values, and the pattern.
type ModuleKey = (Vec<Step>, Vec<Reg>, usize, Pattern);

/// Text shared by all generated kernels.
#[doc(hidden)]
pub fn prelude() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    // Texts that begin with it can be put together.
    TEXT.get_or_init(|| {
        format!("#ifndef DITTO_FUNCTIONS\n#define DITTO_FUNCTIONS\n{}#endif\n", functions::cuda_text())
    })
}

fn module_of(program: &Pointwise, pattern: Pattern) -> Generated {
    static MODULES: Known<ModuleKey, Generated> = LazyLock::new(|| RwLock::new(HashMap::new()));
    let key = (program.steps().to_vec(), program.results().to_vec(), program.consts().len(), pattern);
    known(&MODULES, key, |(.., pattern)| Generated::new("map", prelude(), &kernel_text(program, pattern)))
}

/// The program's function, the lines that `map.cu` asks for, and `map.cu`.
fn kernel_text(program: &Pointwise, pattern: &Pattern) -> String {
    let Pattern { kinds, rank, whole, wide, vector, unroll, leaves } = pattern;
    let (left, warps) = leaves.unwrap_or((0, 0));
    let inputs = kinds.iter().enumerate().map(|(i, kind)| format!("{}, {i}", kind.cuda()));
    let lines: [&str; 15] = [
        &array_function("program", program, Constants::Parameters),
        &define("DITTO_X", program.inputs().max(1)),
        &define("DITTO_Y", program.outputs()),
        &define("DITTO_RANK", rank),
        &define("DITTO_WHOLE", u8::from(*whole)),
        &define("DITTO_WIDE", u8::from(*wide)),
        &define("DITTO_VECTOR", vector),
        &define("DITTO_UNROLL", unroll),
        &define("DITTO_LEAVES", left),
        &define("DITTO_WARPS", warps),
        &define("DITTO_INPUTS(F)", list(inputs)),
        &define("DITTO_RESULTS(F)", list(0..program.outputs())),
        &define("DITTO_CONSTS(F)", list(0..program.consts().len())),
        if warps > 0 { MAGNITUDES_CU } else { "" },
        MAP_CU,
    ];
    lines.concat()
}

/// Blocks of 256 threads for a grid-stride loop over `items`: several times what fills the device, so that a multiprocessor
/// takes the next one as soon as it has room; not one for every item, since short ones take longer to start than to run.
pub(crate) fn grid(cuda: &Cuda, items: usize) -> [u32; 3] {
    let most = cuda.sm_count() as usize * 32;
    [items.div_ceil(256).min(most) as u32, 1, 1]
}

/// Queues `program` on CUDA.
pub(crate) fn run_cuda(program: &Pointwise, accesses: &[Access], run: &CudaRun<'_>) -> Result<()> {
    let n = run.shape.numel();
    if n == 0 {
        return Ok(());
    }
    let walk = Walk::new(&run.shape, accesses);
    let pattern = Pattern::new(program, &walk, run.leaves.map(|(lines, _)| lines));
    let mut args = Args::new();
    args.ptr(run.out);
    pattern.push(&mut args, std::iter::once(n));
    if pattern.rank > 1 {
        let axes = walk.dims().iter();
        match pattern.wide {
            true => pattern.push(&mut args, axes.copied()),
            false => pattern.push(&mut args, axes.flat_map(|&d| divisor(d))),
        }
    }
    for (i, (&address, kind)) in run.ins.iter().zip(&pattern.kinds).enumerate() {
        args.ptr(address);
        if kind.is_strided() {
            pattern.push(&mut args, walk.strides(i).iter().copied());
        }
    }
    for &k in program.consts() {
        args.f32(k);
    }
    let mut blocks = grid(run.cuda, n.div_ceil(VECTOR));
    if let Some((lines, to)) = run.leaves {
        pattern.push(&mut args, std::iter::once(lines.length));
        args.ptr(to);
        blocks = [lines.blocks() as u32, 1, 1];
    }
    let made = module_of(program, pattern);
    let kernel = run.cuda.kernel(&made.name, made.source, "map")?;
    run.cuda.launch(kernel, blocks, 256, 0, &args)
}

/// The module [`run_cuda`] will want.
pub(crate) fn module(program: &Pointwise, shape: &Shape, accesses: &[Access]) -> Source {
    module_of(program, Pattern::new(program, &Walk::new(shape, accesses), None)).source()
}

/// The modules [`run_cuda`] will want to leave the largest magnitudes of these lines besides, if they are all of a result.
pub(crate) fn leaving(
    program: &Pointwise,
    shape: &Shape,
    accesses: &[Access],
    lines: Lines,
) -> Option<Vec<Source>> {
    let n = shape.numel();
    let is_whole = n > 0 && lines.numel() == n && lines.start.is_multiple_of(n) && lines.length >= SHORT;
    let pattern = || Pattern::new(program, &Walk::new(shape, accesses), Some(lines));
    is_whole.then(|| vec![module_of(program, pattern()).source()])
}

/// The length of lines from which on a warp has work with one.
const SHORT: usize = 32;

#[cfg(test)]
mod tests {
    use super::{NARROW, divisor};

    #[test]
    fn division_by_a_multiplication_is_exact_below_31_bits() {
        for d in (1..3000).map(|d| d * d * 79 % NARROW).chain(2..3000).filter(|&d| d > 1) {
            let [_, multiplier, shift] = divisor(d);
            assert!(u32::try_from(multiplier).is_ok(), "{d}");
            let most = (NARROW - 1) / d * d;
            for x in [0, 1, d - 1, d, d + 1, 2 * d - 1, most - 1, most, most + d - 1, NARROW - 1] {
                let x = x.min(NARROW - 1);
                assert_eq!(((x * multiplier) >> 32) >> shift, x / d, "{x} / {d}");
            }
        }
    }
}
