//! The CUDA kernels: per step a product with the weights and the cell's formula. See `recurrent.cu`.

use super::{Cell, Sizes};
use crate::matmul::plan::Problem;
use crate::pointwise::device_function::{Constants, array_function, define};
use crate::pointwise::map::{grid, prelude};
use crate::workspace::Workspace;
use crate::{CudaRun, Gpu};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;

const RECURRENT_CU: &str = include_str!("recurrent.cu");

/// The module of a cell.
fn module(cell: Cell, masked: bool) -> Source {
    let name = format!("recurrent_{cell:?}{}", if masked { "_masked" } else { "" }).to_lowercase();
    crate::module(name, || {
        let programs = cell.programs(masked);
        [
            prelude(),
            &array_function("step_program", &programs.step, Constants::Values),
            &array_function("slope_program", &programs.slope, Constants::Values),
            &define("GATES", cell.gates()),
            &define("STATES", cell.states()),
            &define("SAVED", cell.saved()),
            &define("PROJECTIONS", 1 + usize::from(cell.has_own_input_gradient())),
            &define("MASKED", u8::from(masked)),
            RECURRENT_CU,
        ]
        .concat()
    })
}

/// A product of every step. Its operands are rows of larger values.
fn problem(s: &Sizes, gemm: Gemm, has_bias: bool) -> Problem {
    Problem { has_bias, ..Problem::plain(gemm, s.state_len().is_multiple_of(4)) }
}

/// The product of the forward op of so many inputs.
fn forward_problem(s: &Sizes, inputs: usize) -> Problem {
    problem(s, s.project(s.batch), s.op.optional(inputs).bias.is_some())
}

/// The product of the gradient op.
fn backward_problem(s: &Sizes) -> Problem {
    problem(s, s.project_back(s.batch), false)
}

/// Words where the parts of a workspace begin: the product, what it needs itself, and what steps pass on beside it.
struct Places {
    product: usize,
    own: usize,
    direct: usize,
    words: usize,
}

fn forward_places(s: &Sizes, problem: &Problem, gpu: &Gpu) -> Places {
    let mut workspace = Workspace::default();
    let product = workspace.take(s.batch * s.columns());
    let own = workspace.take(problem.gpu_workspace(gpu));
    Places { product, own, direct: 0, words: workspace.words() }
}

fn backward_places(s: &Sizes, problem: &Problem, gpu: &Gpu) -> Places {
    let mut workspace = Workspace::default();
    let product = workspace.take(s.state_len());
    let own = workspace.take(problem.gpu_workspace(gpu));
    let direct = workspace.take(s.op.cell.states() * s.state_len());
    Places { product, own, direct, words: workspace.words() }
}

/// Words of workspace for all steps, with so many inputs.
pub(super) fn workspace(s: &Sizes, gpu: &Gpu, inputs: usize) -> usize {
    forward_places(s, &forward_problem(s, inputs), gpu).words
}

/// Words of workspace for the gradients of all steps.
pub(super) fn backward_workspace(s: &Sizes, gpu: &Gpu) -> usize {
    backward_places(s, &backward_problem(s), gpu).words
}

pub(super) fn forward_modules(s: &Sizes, gpu: &Gpu, inputs: usize) -> Vec<Source> {
    modules(s, gpu, forward_problem(s, inputs))
}

pub(super) fn backward_modules(s: &Sizes, gpu: &Gpu) -> Vec<Source> {
    modules(s, gpu, backward_problem(s))
}

fn modules(s: &Sizes, gpu: &Gpu, problem: Problem) -> Vec<Source> {
    if s.state_len() == 0 {
        return Vec::new();
    }
    let mut all = vec![module(s.op.cell, s.op.masked)];
    if s.steps > 0 {
        all.extend(problem.modules(gpu, None));
    }
    all
}

fn launch(s: &Sizes, run: &CudaRun<'_>, kernel: &str, items: usize, args: &Args) -> Result<()> {
    let (name, source) = module(s.op.cell, s.op.masked);
    let kernel = run.cuda.kernel(&name, source, kernel)?;
    run.cuda.launch(kernel, grid(run.cuda, items), 256, 0, args)
}

/// The sizes and, of a step, its time and the rows before and after it.
fn place(s: &Sizes, args: &mut Args, t: usize) {
    let [before, after] = s.rows(t);
    for x in [s.batch, s.hidden, s.steps, t, before, after] {
        args.u64(x as u64);
    }
}

/// Queues all steps.
pub(super) fn forward(s: &Sizes, run: &CudaRun<'_>) -> Result<()> {
    let len = s.state_len();
    if len == 0 {
        return Ok(());
    }
    let optional = s.op.optional(run.ins.len());
    let input = |i: Option<usize>| i.map_or(0, |i| run.ins[i]);
    let problem = forward_problem(s, run.ins.len());
    let places = forward_places(s, &problem, &Gpu::of(run.cuda));
    let (product, own) = (run.workspace + 4 * places.product as u64, run.workspace + 4 * places.own as u64);
    let mut args = Args::new();
    args.ptr(run.ins[2]).ptr(if s.op.cell.states() > 1 { run.ins[3] } else { 0 }).ptr(run.out);
    for x in [len, s.steps, s.first_row()] {
        args.u64(x as u64);
    }
    launch(s, run, "recurrent_start", len, &args)?;
    for t in (0..s.steps).map(|i| s.time(i)) {
        let before = run.out + 4 * (s.rows(t)[0] * len) as u64;
        let operands = [before, run.ins[1]];
        let ins = [operands[0], operands[1], input(optional.bias)];
        problem.cuda(operands, &CudaRun { ins: &ins, out: product, workspace: own, ..*run })?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(product).ptr(input(optional.mask)).ptr(run.out);
        place(s, &mut args, t);
        launch(s, run, "recurrent_step", len, &args)?;
    }
    Ok(())
}

/// Queues the gradients of all steps.
pub(super) fn backward(s: &Sizes, run: &CudaRun<'_>) -> Result<()> {
    let len = s.state_len();
    if len == 0 {
        return Ok(());
    }
    let problem = backward_problem(s);
    let places = backward_places(s, &problem, &Gpu::of(run.cuda));
    let at = |words: usize| run.workspace + 4 * words as u64;
    let (product, own, direct) = (at(places.product), at(places.own), at(places.direct));
    let mask = if s.op.masked { run.ins[3] } else { 0 };
    for i in (0..s.steps).rev() {
        let t = s.time(i);
        let mut args = Args::new();
        args.ptr(run.ins[1]).ptr(run.ins[2]).ptr(mask).ptr(product).ptr(direct).ptr(run.out);
        place(s, &mut args, t);
        args.i32(i32::from(i + 1 == s.steps));
        launch(s, run, "recurrent_slope", len, &args)?;
        let slopes = run.out + 4 * (t * s.batch * s.columns()) as u64;
        problem.cuda([slopes, run.ins[0]], &CudaRun { out: product, workspace: own, ..*run })?;
    }
    let mut args = Args::new();
    args.ptr(run.ins[2]).ptr(product).ptr(direct).ptr(run.out);
    for x in [len, s.steps, s.first_row()] {
        args.u64(x as u64);
    }
    launch(s, run, "recurrent_end", len, &args)
}
