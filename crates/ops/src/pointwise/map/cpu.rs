//! The CPU kernel: the program over blocks of elements, inputs that are broadcast gathered first.

use super::{Access, Walk, accesses};
use crate::pointwise::expression::{MAX_RESULTS, Pointwise, Registers, Scratch};
use crate::{CpuRun, Kernel};

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
pub(crate) fn run_cpu(program: &Pointwise, accesses: &[Access], run: CpuRun<'_>) {
    evaluate(program, accesses, run, false);
}

/// A program on inputs that are broadcast to the output, for many runs on the CPU.
pub(crate) fn prepared(program: Pointwise) -> Kernel {
    Box::new(move |run| run_cpu(&program, accesses(run.metas, &run.shape).all(), run))
}

/// Runs `program` on the CPU, its first input being what the output holds already, element by element.
/// `run.ins` are the other inputs.
pub(crate) fn run_cpu_in_place(program: &Pointwise, accesses: &[Access], run: CpuRun<'_>) {
    evaluate(program, accesses, run, true);
}

fn evaluate(program: &Pointwise, accesses: &[Access], run: CpuRun<'_>, in_place: bool) {
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
