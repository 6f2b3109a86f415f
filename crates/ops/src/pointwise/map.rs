//! [`Map`]: an elementwise program over inputs that may be broadcast. The kernels of all elementwise
//! ops, of broadcasting and of fused chains are the two functions here.

#[cfg(feature = "cases")]
mod cases;
#[cfg(feature = "cases")]
pub(crate) use cases::sample_formula;

use crate::pointwise::program::{MAX_RESULTS, Program, Reg, Registers, Scratch, Step};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, PerInput, Recorder, Val, layout};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::functions;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How an input is read, seen from the output: one stride per output axis, 0 along broadcast axes.
pub type Access = [usize; MAX_RANK];

/// An elementwise program applied to inputs that are broadcast to `shape` by NumPy's rule. Several results lie one
/// behind the other in a flat value; then `shape` has a multiple of four elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// What is computed for each element.
    pub program: Arc<Program>,
    /// Shape of each result.
    pub shape: Shape,
}

impl Map {
    /// The program of a formula over inputs of `shape`.
    pub fn new(program: Program, shape: Shape) -> Map {
        Map { program: Arc::new(program), shape }
    }
}

/// Strides that read a value of shape `from` as if it had shape `to`, aligned at the last axis.
pub(crate) fn access(from: &Shape, to: &Shape) -> Access {
    let strides = from.strides();
    let mut out = [0; MAX_RANK];
    let shift = to.rank() - from.rank();
    for axis in 0..from.rank() {
        if from.dims()[axis] == to.dims()[axis + shift] && from.dims()[axis] != 1 {
            out[axis + shift] = strides[axis];
        }
    }
    out
}

/// How each input is read as if it had shape `to`, aligned at the last axis.
pub(crate) fn accesses(ins: &[Meta], to: &Shape) -> PerInput<Access> {
    let mut all = PerInput::new(ins.len(), [0; MAX_RANK]);
    all.all_mut().iter_mut().zip(ins).for_each(|(a, m)| *a = access(&m.shape, to));
    all
}

/// Output axes with equal neighbours merged: dimensions, and per input the strides along them.
pub(crate) struct Walk {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: PerInput<Access>,
}

impl Walk {
    pub(crate) fn new(shape: &Shape, accesses: &[Access]) -> Walk {
        let strides = PerInput::new(accesses.len(), [0; MAX_RANK]);
        let mut walk = Walk { rank: 0, dims: [1; MAX_RANK], strides };
        for axis in 0..shape.rank() {
            let d = shape.dims()[axis];
            if d == 1 {
                continue;
            }
            let last = walk.rank.wrapping_sub(1);
            let strides = walk.strides.all_mut();
            let merges = walk.rank > 0 && strides.iter().zip(accesses).all(|(s, a)| s[last] == a[axis] * d);
            let at = if merges { last } else { walk.rank };
            walk.dims[at] *= d;
            strides.iter_mut().zip(accesses).for_each(|(s, a)| s[at] = a[axis]);
            walk.rank = at + 1;
        }
        // A single element has an axis too.
        walk.rank = walk.rank.max(1);
        walk
    }

    /// The axes; there is at least one.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The strides of input `i`, one per axis.
    pub(crate) fn strides(&self, i: usize) -> &[usize] {
        &self.strides.all()[i][..self.rank]
    }

    /// Whether input `i` is read element by element in order.
    pub(crate) fn plain(&self, i: usize) -> bool {
        self.rank == 1 && (self.strides(i)[0] == 1 || self.dims[0] == 1)
    }
}

/// Copies elements `start..start + out.len()` of the broadcast view into `out`.
fn gather(x: &[f32], dims: &[usize], strides: &[usize], start: usize, out: &mut [f32]) {
    let inner = dims[dims.len() - 1];
    let step = strides[dims.len() - 1];
    let mut done = 0;
    while done < out.len() {
        let at = start + done;
        let (mut row, j) = (at / inner, at % inner);
        let mut base = j * step;
        for axis in (0..dims.len() - 1).rev() {
            base += row % dims[axis] * strides[axis];
            row /= dims[axis];
        }
        let run = (inner - j).min(out.len() - done);
        let piece = &mut out[done..done + run];
        match step {
            0 => piece.fill(x[base]),
            1 => piece.copy_from_slice(&x[base..base + run]),
            _ => piece.iter_mut().enumerate().for_each(|(i, y)| *y = x[base + i * step]),
        }
        done += run;
    }
}

/// The fewest elements a task of the thread pool takes.
const TASK: usize = 4 * 1024;

/// Fills the output with the input's elements, read as `access` says: [`run_cpu`] of a program that passes its input
/// through, without the way through its registers.
pub(crate) fn copy_cpu(access: &Access, run: CpuRun<'_>) {
    let walk = Walk::new(&run.shape, std::slice::from_ref(access));
    let x = run.ins[0];
    let per_task = run.pool.share(run.out.len(), TASK, 1);
    run.pool.chunks_mut(run.out, per_task, |task, out| match walk.plain(0) {
        true => out.copy_from_slice(&x[task * per_task..][..out.len()]),
        false => gather(x, walk.dims(), walk.strides(0), task * per_task, out),
    });
}

/// Runs `program` on the CPU. `accesses` says how each input is read.
pub(crate) fn run_cpu(program: &Program, accesses: &[Access], run: CpuRun<'_>) {
    evaluate(program, accesses, run, false);
}

/// A program on inputs that are broadcast to the output, for many runs on the CPU.
pub(crate) fn prepared(program: Program) -> Kernel {
    Box::new(move |run| run_cpu(&program, accesses(run.metas, &run.shape).all(), run))
}

/// Runs `program` on the CPU, its first input being what the output holds already, element by element.
/// `run.ins` are the other inputs.
pub(crate) fn follow_cpu(program: &Program, accesses: &[Access], run: CpuRun<'_>) {
    evaluate(program, accesses, run, true);
}

fn evaluate(program: &Program, accesses: &[Access], run: CpuRun<'_>, in_place: bool) {
    let walk = Walk::new(&run.shape, accesses);
    let reads = program.reads();
    let (simd, ins, n) = (run.simd, run.ins, run.shape.numel());
    let block = program.block();
    let per_task = run.pool.share(n, TASK, block);
    let before = usize::from(in_place);
    let strided = (before..program.inputs()).filter(|&i| reads[i] && !walk.plain(i - before)).count();
    let mut results = run.out.chunks_exact_mut(n.max(1));
    let results: [&mut [f32]; MAX_RESULTS] = std::array::from_fn(|_| results.next().unwrap_or(&mut []));
    let work = |task: usize, mut results: [&mut [f32]; MAX_RESULTS]| {
        let mut registers = Registers::new(program, block);
        let mut gathered = Scratch::take((before + strided) * block);
        let len = results[0].len();
        for at in (0..len).step_by(block) {
            let (start, len) = (task * per_task + at, block.min(len - at));
            let mut slices: [&[f32]; 16] = [&[]; 16];
            let mut blocks = gathered.words().chunks_exact_mut(block);
            if in_place && let Some(words) = blocks.next() {
                words[..len].copy_from_slice(&results[0][at..at + len]);
                slices[0] = &words[..len];
            }
            for i in (before..program.inputs()).filter(|&i| reads[i]) {
                let x = ins[i - before];
                slices[i] = if walk.plain(i - before) {
                    &x[start..start + len]
                } else if let Some(words) = blocks.next() {
                    let words = &mut words[..len];
                    gather(x, walk.dims(), walk.strides(i - before), start, words);
                    words
                } else {
                    &[]
                };
            }
            let mut outs =
                results.each_mut().map(|r| if r.is_empty() { &mut [][..] } else { &mut r[at..at + len] });
            registers.run(simd, &slices[..program.inputs()], &mut outs[..program.outputs()]);
        }
    };
    run.pool.pieces_mut(results, [per_task; MAX_RESULTS], n.div_ceil(per_task.max(1)), work);
}

/// Elements each CUDA thread takes at a time: one 16-byte access where rows allow it.
const VECTOR: usize = 4;

/// A generated kernel: the module's name and source.
#[derive(Clone)]
struct Generated {
    module: Arc<str>,
    source: &'static str,
}

/// What of a launch is written into the kernel text: the program without its constants' values, and
/// per input whether it is plain, a single element, or strided with how many axes.
type KernelKey = (Vec<Step>, Vec<Reg>, Vec<Kind>, usize, usize, bool);

/// How an input is read: element by element in order, as one single element, with stride 0 along rows.
type Kind = (bool, bool, bool);

/// Text shared by all generated kernels.
#[doc(hidden)]
pub fn prelude() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    // Texts that begin with it can be put together.
    TEXT.get_or_init(|| {
        format!("#ifndef DITTO_FUNCTIONS\n#define DITTO_FUNCTIONS\n{}#endif\n", functions::cuda_text())
    })
}

fn generate(program: &Program, walk: &Walk) -> Generated {
    static CACHE: OnceLock<Mutex<BTreeMap<KernelKey, Generated>>> = OnceLock::new();
    let n = program.inputs();
    let kinds: Vec<Kind> = (0..n)
        .map(|i| {
            let strides = walk.strides(i);
            (walk.plain(i), strides.iter().all(|&s| s == 0), strides.last() == Some(&0))
        })
        .collect();
    let rank = if kinds.iter().all(|k| k.0 || k.1) { 1 } else { walk.dims().len() };
    // Rows whose length is a multiple of the vector never split a vector between two rows.
    let inner = walk.dims()[walk.dims().len() - 1];
    let whole = rank == 1
        || (inner.is_multiple_of(VECTOR)
            && (0..n).all(|i| {
                let (outer, last) = walk.strides(i).split_at(rank - 1);
                kinds[i].0 || kinds[i].1 || (last[0] <= 1 && outer.iter().all(|s| s.is_multiple_of(VECTOR)))
            }));
    let key: KernelKey = (
        program.steps().to_vec(),
        program.results().to_vec(),
        kinds.clone(),
        rank,
        program.consts().len(),
        whole,
    );
    let cache = CACHE.get_or_init(Mutex::default);
    if let Some(hit) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return hit.clone();
    }
    let text = kernel_text(program, &kinds, rank, whole);
    let module = format!("map_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let source = format!("{}{}", prelude(), text);
    let made = Generated { module: module.into(), source: crate::lasting(source) };
    cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
    made
}

/// The kernel of one program. Each thread computes `VECTOR` neighbouring elements per turn of a
/// grid-stride loop: 4 bytes read per element and plain input, 4 written; no sums, so no order.
fn kernel_text(program: &Program, kinds: &[Kind], rank: usize, whole: bool) -> String {
    let reads = program.reads();
    let mut t = String::new();
    let strided = |i: usize| !kinds[i].0 && !kinds[i].1;
    let _ = writeln!(
        t,
        "struct Walk {{ unsigned dims[{MAX_RANK}]; }};\nstruct Strides {{ unsigned long long s[{MAX_RANK}]; }};"
    );
    // Result k is k n words behind the first. The output may be an input too: a thread reads its elements before it
    // writes them.
    t.push_str("extern \"C\" __global__ void map(float* out, unsigned long long n");
    if rank > 1 {
        t.push_str(", Walk walk");
    }
    for i in 0..program.inputs() {
        let _ = write!(t, ", const float* in{i}");
        if strided(i) {
            let _ = write!(t, ", Strides st{i}");
        }
    }
    for c in 0..program.consts().len() {
        let _ = write!(t, ", float k{c}");
    }
    t.push_str(") {\n");
    for (i, kind) in kinds.iter().enumerate() {
        if reads[i] && kind.1 && !kind.0 {
            let _ = writeln!(t, "const float s{i} = in{i}[0];");
        }
    }
    let _ = writeln!(
        t,
        "for (unsigned long long v = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; v * {VECTOR} < n; v += (unsigned long long)gridDim.x * blockDim.x) {{"
    );
    let _ = writeln!(t, "const unsigned long long at = v * {VECTOR};");
    let results = program.outputs();
    let _ = writeln!(t, "float r[{results}][{VECTOR}];");
    let each = |line: &dyn Fn(usize) -> String| (0..results).map(line).collect::<String>();
    let decode = |t: &mut String, at: &str| {
        let _ = writeln!(t, "unsigned long long rest = {at};");
        for axis in (0..rank).rev() {
            let _ = if axis == 0 {
                writeln!(t, "const unsigned long long c0 = rest;")
            } else {
                // 32-bit division where it suffices: it is several times faster.
                writeln!(
                    t,
                    "unsigned long long c{axis}; if (rest <= 0xffffffffull) {{ const unsigned q = (unsigned)rest / walk.dims[{axis}]; c{axis} = (unsigned)rest - q * walk.dims[{axis}]; rest = q; }} else {{ c{axis} = rest % walk.dims[{axis}]; rest /= walk.dims[{axis}]; }}"
                )
            };
        }
        for i in (0..program.inputs()).filter(|&i| reads[i] && strided(i)) {
            let sum: Vec<String> = (0..rank).map(|a| format!("c{a} * st{i}.s[{a}]")).collect();
            let _ = writeln!(t, "const unsigned long long o{i} = {};", sum.join(" + "));
        }
    };
    let any_strided = (0..program.inputs()).any(|i| reads[i] && strided(i));
    let body = program.cuda();
    // Whole vectors.
    if whole {
        let _ = writeln!(t, "if (at + {VECTOR} <= n) {{");
        if any_strided {
            decode(&mut t, "at");
        }
        for (i, kind) in kinds.iter().enumerate().filter(|(i, _)| reads[*i]) {
            if kind.0 {
                let _ = writeln!(
                    t,
                    "const float4 f{i} = *reinterpret_cast<const float4*>(in{i} + at); const float w{i}[{VECTOR}] = {{f{i}.x, f{i}.y, f{i}.z, f{i}.w}};"
                );
            } else if !kind.1 {
                let _ = if kind.2 {
                    writeln!(
                        t,
                        "const float e{i} = in{i}[o{i}]; const float w{i}[{VECTOR}] = {{e{i}, e{i}, e{i}, e{i}}};"
                    )
                } else {
                    writeln!(
                        t,
                        "const float4 f{i} = *reinterpret_cast<const float4*>(in{i} + o{i}); const float w{i}[{VECTOR}] = {{f{i}.x, f{i}.y, f{i}.z, f{i}.w}};"
                    )
                };
            }
        }
        let _ = writeln!(t, "#pragma unroll\nfor (int j = 0; j < {VECTOR}; ++j) {{");
        for (i, kind) in kinds.iter().enumerate().filter(|(i, _)| reads[*i]) {
            let _ = if kind.1 && !kind.0 {
                writeln!(t, "const float x{i} = s{i};")
            } else {
                writeln!(t, "const float x{i} = w{i}[j];")
            };
        }
        t.push_str(&body);
        t.push_str(&each(&|k| format!("r[{k}][j] = y{k};\n")));
        t.push_str("}\n");
        t.push_str(&each(&|k| {
            format!("*reinterpret_cast<float4*>(out + {k} * n + at) = make_float4(r[{k}][0], r[{k}][1], r[{k}][2], r[{k}][3]);\n")
        }));
        t.push_str("continue;\n}\n");
    }
    // One element at a time: the tail, and rows that do not divide into vectors.
    let _ = writeln!(t, "for (int j = 0; j < {VECTOR} && at + j < n; ++j) {{");
    if any_strided {
        decode(&mut t, "at + j");
    }
    for (i, kind) in kinds.iter().enumerate().filter(|(i, _)| reads[*i]) {
        let _ = if kind.0 {
            writeln!(t, "const float x{i} = in{i}[at + j];")
        } else if kind.1 {
            writeln!(t, "const float x{i} = s{i};")
        } else {
            writeln!(t, "const float x{i} = in{i}[o{i}];")
        };
    }
    t.push_str(&body);
    t.push_str(&each(&|k| format!("out[{k} * n + at + j] = y{k};\n")));
    t.push_str("}\n}\n}\n");
    t
}

/// Blocks of 256 threads for a grid-stride loop over `items`: several times what fills the device, so that a multiprocessor
/// takes the next one as soon as it has room; not one for every item, since short ones take longer to start than to run.
pub(crate) fn grid(cuda: &Cuda, items: usize) -> [u32; 3] {
    let most = cuda.sm_count() as usize * 32;
    [items.div_ceil(256).min(most) as u32, 1, 1]
}

/// Queues `program` on CUDA.
pub(crate) fn run_cuda(program: &Program, accesses: &[Access], run: &CudaRun<'_>) -> Result<()> {
    let n = run.shape.numel();
    if n == 0 {
        return Ok(());
    }
    let walk = Walk::new(&run.shape, accesses);
    let made = generate(program, &walk);
    let kernel = run.cuda.kernel(&made.module, made.source, "map")?;
    let plain_or_single = |i: usize| walk.plain(i) || walk.strides(i).iter().all(|&s| s == 0);
    let flat = (0..program.inputs()).all(plain_or_single);
    let mut args = Args::new();
    args.ptr(run.out).u64(n as u64);
    if !flat {
        let mut words = [1u32; MAX_RANK];
        for (w, d) in words.iter_mut().zip(walk.dims()) {
            // A single axis beyond 2^32 elements cannot be strided: it would be plain or a scalar.
            *w = u32::try_from(*d).map_err(|_| too_large(&run.shape))?;
        }
        args.bytes(bytemuck::cast_slice(&words), 4);
    }
    for (i, &address) in run.ins.iter().enumerate() {
        args.ptr(address);
        if !plain_or_single(i) {
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
    run.cuda.launch(kernel, grid(run.cuda, n.div_ceil(VECTOR)), 256, 0, &args)
}

#[cold]
fn too_large(shape: &Shape) -> Error {
    Error::new("map", ErrorKind::TooLarge { dims: shape.dims().to_vec() })
}

/// The module [`run_cuda`] will want.
pub(crate) fn module(program: &Program, shape: &Shape, accesses: &[Access]) -> Source {
    let made = generate(program, &Walk::new(shape, accesses));
    (made.module.to_string(), made.source)
}

impl Map {
    /// Fills the output on the CPU; its first input is what the output holds. The run has the others.
    #[doc(hidden)]
    pub fn cpu_in_place(&self, run: CpuRun<'_>) {
        follow_cpu(
            &self.program,
            accesses(run.metas, &self.shape).all(),
            CpuRun { shape: self.shape, ..run },
        );
    }
}

/// The value of `program` for elements of `shape`, or why there is none: results one behind the other.
pub(crate) fn results_meta(op: &'static str, program: &Program, shape: Shape) -> Result<Meta> {
    if !program.fits() {
        return Err(Error::unsupported(op, "the program needs more registers or results than there are"));
    }
    match program.outputs() {
        1 => Ok(Meta::f32(shape)),
        _ if !shape.numel().is_multiple_of(4) => {
            Err(Error::unsupported(op, "several results of a number of elements that is no multiple of 4"))
        }
        n => Ok(Meta::f32(Shape::new(&[n * shape.numel()])?)),
    }
}

/// The results of a program in its value, one by one.
#[doc(hidden)]
pub fn results(r: &mut dyn Recorder, value: Val, count: usize, shape: Shape) -> Result<Vec<Val>> {
    match count {
        1 => Ok(vec![value]),
        n => (0..n).map(|i| layout::part(r, value, &vec![shape; n], i)).collect(),
    }
}

/// Errors unless these are the inputs of `program` and broadcast to `shape`.
pub(crate) fn check_inputs(op: &'static str, program: &Program, ins: &[Meta], shape: &Shape) -> Result<()> {
    if ins.len() != program.inputs() {
        return Err(Error::new(op, ErrorKind::Arity { want: program.inputs(), got: ins.len() }));
    }
    for (i, m) in ins.iter().enumerate() {
        crate::typed(op, ins, i, DType::F32)?;
        let fits = m.shape.broadcast(shape).is_ok_and(|all| all == *shape);
        if m.shape.rank() > shape.rank() || !fits {
            return Err(crate::mismatch(op, "input does not broadcast to", m.shape, *shape));
        }
    }
    Ok(())
}

impl Op for Map {
    const NAME: &'static str = "map";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check_inputs(Self::NAME, &self.program, ins, &self.shape)?;
        results_meta(Self::NAME, &self.program, self.shape)
    }

    // Kernels get the shape of each result, which is not that of several in one value.
    fn cpu(&self, run: CpuRun<'_>) {
        run_cpu(&self.program, accesses(run.metas, &self.shape).all(), CpuRun { shape: self.shape, ..run });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        run_cuda(
            &self.program,
            accesses(run.metas, &self.shape).all(),
            &CudaRun { shape: self.shape, ..*run },
        )
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module(&self.program, &self.shape, accesses(ins, &self.shape).all())]
    }

    fn as_program(&self, _ins: &[Meta]) -> Option<Program> {
        Some((*self.program).clone())
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut args = io.ins.to_vec();
        args.extend(results(r, dy, self.program.outputs(), self.shape)?);
        let reads = self.program.reads();
        (0..io.ins.len())
            .map(|i| {
                if !reads[i] {
                    return Ok(None);
                }
                let full = record_program(r, &self.program.gradient(i), self.shape, &args)?;
                let to = r.meta(io.ins[i]).shape;
                layout::sum_to(r, full, to).map(Some)
            })
            .collect()
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let n = self.shape.numel();
        Ok(Tensor::from_fn(self.shape(&metas)?.shape, |i| {
            let (result, at) = (i / n, i % n);
            let args: Vec<T> =
                tensors.iter().map(|t| t.data()[broadcast_index(at, &t.shape(), &self.shape)]).collect();
            self.program.eval(&args)[result]
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("steps", Attr::Num(self.program.steps().len() as f64)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Map> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}

/// Row-major position in a value of shape `from` of element `at` of its broadcast to `to`.
#[doc(hidden)]
pub fn broadcast_index(at: usize, from: &Shape, to: &Shape) -> usize {
    let (strides, mut rest, mut index) = (access(from, to), at, 0);
    for axis in (0..to.rank()).rev() {
        index += rest % to.dims()[axis] * strides[axis];
        rest /= to.dims()[axis];
    }
    index
}

pub use super::record::record_program;
