//! The CUDA kernel: its text for a program and an access pattern, and its launch.

use super::{Access, Walk};
use crate::pointwise::device_function::{Constants, array_function, define, list};
use crate::pointwise::expression::{Pointwise, Reg, Step};
use crate::{CudaRun, Generated, Known, known};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::functions;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock, RwLock};

/// Elements each thread takes at a time: one 16-byte access where rows allow it. `VECTOR` of `map.cu`.
const VECTOR: usize = 4;

const MAP_CU: &str = include_str!("../map.cu");

/// How an input is read; see `map.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Unread,
    Plain,
    Single,
    Strided,
    Repeated,
}

impl Kind {
    fn cuda(self) -> &'static str {
        match self {
            Kind::Unread => "UNREAD",
            Kind::Plain => "PLAIN",
            Kind::Single => "SINGLE",
            Kind::Strided => "STRIDED",
            Kind::Repeated => "REPEATED",
        }
    }

    fn is_strided(self) -> bool {
        matches!(self, Kind::Strided | Kind::Repeated)
    }
}

/// How a program's inputs are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    kinds: Vec<Kind>,
    /// Axes that strided inputs are read along; 1 if there are none.
    rank: usize,
    /// Whether no vector crosses the end of a row.
    whole: bool,
}

impl Pattern {
    fn new(program: &Pointwise, walk: &Walk) -> Pattern {
        let kind = |i: usize| match walk.strides(i) {
            _ if !program.reads()[i] => Kind::Unread,
            _ if walk.plain(i) => Kind::Plain,
            strides if strides.iter().all(|&s| s == 0) => Kind::Single,
            [.., 0] => Kind::Repeated,
            _ => Kind::Strided,
        };
        let mut kinds: Vec<Kind> = (0..program.inputs()).map(kind).collect();
        let is_flat = !kinds.iter().any(|k| k.is_strided());
        let rank = if is_flat { 1 } else { walk.dims().len() };
        // Rows whose length is a multiple of the vector never split a vector between two rows.
        let fits = |i: usize| {
            let (outer, last) = walk.strides(i).split_at(rank - 1);
            !kinds[i].is_strided() || (last[0] <= 1 && outer.iter().all(|s| s.is_multiple_of(VECTOR)))
        };
        let inner = walk.dims()[walk.dims().len() - 1];
        let whole = is_flat || (inner.is_multiple_of(VECTOR) && (0..kinds.len()).all(fits));
        if !whole {
            kinds.iter_mut().filter(|k| k.is_strided()).for_each(|k| *k = Kind::Strided);
        }
        Pattern { kinds, rank, whole }
    }
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
    let Pattern { kinds, rank, whole } = pattern;
    let inputs = kinds.iter().enumerate().map(|(i, kind)| format!("{}, {i}", kind.cuda()));
    [
        &array_function("program", program, Constants::Parameters),
        &define("DITTO_X", program.inputs().max(1)),
        &define("DITTO_Y", program.outputs()),
        &define("DITTO_MAX_RANK", MAX_RANK),
        &define("DITTO_RANK", rank),
        &define("DITTO_WHOLE", u8::from(*whole)),
        &define("DITTO_INPUTS(F)", list(inputs)),
        &define("DITTO_RESULTS(F)", list(0..program.outputs())),
        &define("DITTO_CONSTS(F)", list(0..program.consts().len())),
        MAP_CU,
    ]
    .concat()
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
    let pattern = Pattern::new(program, &walk);
    let mut args = Args::new();
    args.ptr(run.out).u64(n as u64);
    if pattern.rank > 1 {
        let mut words = [1u32; MAX_RANK];
        for (w, d) in words.iter_mut().zip(walk.dims()) {
            // A single axis beyond 2^32 elements cannot be strided: it would be plain or a scalar.
            *w = u32::try_from(*d).map_err(|_| too_large(&run.shape))?;
        }
        args.bytes(bytemuck::cast_slice(&words), 4);
    }
    for (i, (&address, kind)) in run.ins.iter().zip(&pattern.kinds).enumerate() {
        args.ptr(address);
        if kind.is_strided() {
            let mut words = [0u64; MAX_RANK];
            for (w, s) in words.iter_mut().zip(walk.strides(i)) {
                *w = *s as u64;
            }
            args.bytes(bytemuck::cast_slice(&words), 8);
        }
    }
    for &k in program.consts() {
        args.f32(k);
    }
    let made = module_of(program, pattern);
    let kernel = run.cuda.kernel(&made.name, made.source, "map")?;
    run.cuda.launch(kernel, grid(run.cuda, n.div_ceil(VECTOR)), 256, 0, &args)
}

#[cold]
fn too_large(shape: &Shape) -> Error {
    Error::new("map", ErrorKind::TooLarge { dims: shape.dims().to_vec() })
}

/// The module [`run_cuda`] will want.
pub(crate) fn module(program: &Pointwise, shape: &Shape, accesses: &[Access]) -> Source {
    module_of(program, Pattern::new(program, &Walk::new(shape, accesses))).source()
}
