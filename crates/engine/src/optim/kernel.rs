//! Kernels that update parameters: loops on the CPU, on CUDA one launch for up to 32 parameters, both read off the rule's
//! formula.

use super::rules::{self, Element, Family, Formula, HYPERS, Kind, STATES, update, variant_of, with_rules};
use dittograd_device::Cpu;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_device::cuda::driver::HostMemory;
use dittograd_device::cuda::{Args, Cuda, Source, Work};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_ops::pointwise::device_function::{Constants, array_function, define};
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::pointwise::map::prelude;
use dittograd_ops::with_stand_in;
use std::sync::Arc;

/// One update of neighbouring elements; slices of what the rule has not are empty. All that depends on the kind is constant, so
/// only its arithmetic is left in the loop.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn lanes<F: Formula, const VARIANT: usize, const DECOUPLED: bool>(
    factor: f32,
    h: [f32; HYPERS],
    p: &mut [f32],
    g: &[f32],
    a: &mut [f32],
    b: &mut [f32],
    c: &mut [f32],
    d: &[f32],
) {
    let n = p.len();
    let count = const { variant_of(F::STATES, VARIANT).len() };
    let g = &g[..n];
    let a = if count > 0 { &mut a[..n] } else { &mut [] };
    let b = if count > 1 { &mut b[..n] } else { &mut [] };
    let c = if count > 2 { &mut c[..n] } else { &mut [] };
    let d = if F::DIRECTED { &d[..n] } else { &[] };
    for i in 0..n {
        let element = Element {
            p: p[i],
            g: g[i],
            states: [
                if count > 0 { a[i] } else { 0.0 },
                if count > 1 { b[i] } else { 0.0 },
                if count > 2 { c[i] } else { 0.0 },
            ],
            direction: if F::DIRECTED { d[i] } else { 0.0 },
        };
        let (new, states) = update::<F, f32>(VARIANT, DECOUPLED, element, factor, h);
        p[i] = new;
        if count > 0 {
            a[i] = states[0];
        }
        if count > 1 {
            b[i] = states[1];
        }
        if count > 2 {
            c[i] = states[2];
        }
    }
}

simd_fn! {
    // Each slice is an argument of its own: only so does the compiler know that they do not overlap.
    fn update_block(
        simd,
        kind: Kind,
        factor: f32,
        h: [f32; HYPERS],
        p: &mut [f32],
        g: &[f32],
        a: &mut [f32],
        b: &mut [f32],
        c: &mut [f32],
        d: &[f32],
    ) {
        macro_rules! run {
            ($name:ident $variant:literal) => {
                match kind.decoupled {
                    false => lanes::<rules::$name, $variant, false>(factor, h, p, g, a, b, c, d),
                    true => lanes::<rules::$name, $variant, true>(factor, h, p, g, a, b, c, d),
                }
            };
        }
        /// A loop for each kind.
        macro_rules! of_kind {
            ($($name:ident)*) => {
                match kind.family {
                    $(Family::$name => match kind.variant {
                        1 if rules::$name::STATES.len() > 1 => run!($name 1),
                        2 if rules::$name::STATES.len() > 2 => run!($name 2),
                        3 if rules::$name::STATES.len() > 3 => run!($name 3),
                        _ => run!($name 0),
                    },)*
                }
            };
        }
        with_rules!(of_kind)
    }
}

/// Elements one task of the thread pool updates.
const TASK: usize = 4 * 1024;

/// Updates one parameter on the CPU.
pub(super) fn cpu(
    cpu: &Cpu,
    kind: Kind,
    (p, states): (&mut [f32], [&mut [f32]; STATES]),
    (g, direction): (&[f32], &[f32]),
    factor: f32,
    scalars: &[f32],
) {
    let simd = cpu.simd;
    let mut h = [0.0; HYPERS];
    h.copy_from_slice(scalars);
    let [a, b, c] = states;
    let tasks = p.len().div_ceil(TASK);
    cpu.pool.pieces_mut([p, a, b, c], [TASK; 4], tasks, |task, [p, a, b, c]| {
        let from = task * TASK;
        let d = if kind.directed() { &direction[from..] } else { &[] };
        update_block(simd, kind, factor, h, p, &g[from..], a, b, c, d);
    });
}

/// Addresses of one parameter's update on CUDA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub kind: Kind,
    pub p: u64,
    pub g: u64,
    pub states: [u64; STATES],
    pub direction: u64,
    /// Which row of the buffer of scalars is its own.
    pub row: usize,
    pub len: usize,
}

const UPDATE_CU: &str = include_str!("update.cu");

/// Parameters one launch takes: their addresses travel as kernel arguments.
const PER_LAUNCH: usize = 32;
/// Addresses and length of a parameter in `Table` of `update.cu`.
const COLUMNS: usize = 7;

/// Queues the updates of all parameters on CUDA, with the scalars at `hypers` and the factor of norm clipping at
/// `factor`, which may be 0 for none. Where a launch after the first fails, the error says that the step is not whole.
pub(super) fn cuda(cuda: &Arc<Cuda>, slots: &[Slot], hypers: u64, factor: u64) -> Result<()> {
    let mut slots: Vec<&Slot> = slots.iter().filter(|s| s.len > 0).collect();
    slots.sort_by_key(|s| s.kind);
    // All kernels are there before the first changes anything.
    let mut kernels = Vec::new();
    for same in slots.chunk_by(|a, b| a.kind == b.kind) {
        let (module, source) = module(same[0].kind);
        kernels.push((cuda.kernel(&module, source, "update")?, same));
    }
    let mut launched = 0;
    for (kernel, same) in kernels {
        for slots in same.chunks(PER_LAUNCH) {
            let mut table = [0u64; COLUMNS * PER_LAUNCH];
            let mut rows = [0u32; PER_LAUNCH];
            for (i, s) in slots.iter().enumerate() {
                let [a, b, c] = s.states;
                for (j, word) in [s.p, s.g, a, b, c, s.direction, s.len as u64].into_iter().enumerate() {
                    table[j * PER_LAUNCH + i] = word;
                }
                rows[i] = s.row as u32;
            }
            let longest = slots.iter().map(|s| s.len).max().unwrap_or(0);
            let mut bytes = [0u8; COLUMNS * PER_LAUNCH * 8 + PER_LAUNCH * 4];
            bytes[..COLUMNS * PER_LAUNCH * 8].copy_from_slice(bytemuck::cast_slice(&table));
            bytes[COLUMNS * PER_LAUNCH * 8..].copy_from_slice(bytemuck::cast_slice(&rows));
            let mut args = Args::new();
            args.bytes(&bytes, 8).ptr(hypers).ptr(factor);
            let blocks = longest.div_ceil(256 * 4).min(cuda.sm_count() as usize * 4) as u32;
            let launch = cuda.launch(kernel, [blocks, slots.len() as u32, 1], 256, 0, &args);
            launch.map_err(|error| if launched == 0 { error } else { torn(error, launched) })?;
            launched += slots.len();
            slots.iter().try_for_each(|slot| stand_in(cuda, **slot, hypers, factor))?;
        }
    }
    Ok(())
}

/// The error of a launch after others that changed parameters.
#[cold]
fn torn(error: Error, launched: usize) -> Error {
    match error.kind().clone() {
        ErrorKind::Cuda { call, code, message } => {
            let message = format!(
                "{message}; {launched} parameters were updated before, so that they and the optimizer are of no one step: \
                 restore a checkpoint"
            );
            Error::new(error.op(), ErrorKind::Cuda { call, code, message })
        }
        _ => error,
    }
}

/// On a driver that runs no kernels: the update of one parameter.
fn stand_in(cuda: &Arc<Cuda>, slot: Slot, hypers: u64, factor: u64) -> Result<()> {
    cuda.stand_in(|| -> Work {
        let flips = cuda.flips().clone();
        Arc::new(move |memory: &mut dyn HostMemory| {
            let count = slot.kind.states().len();
            let h = memory.words(hypers + (slot.row * HYPERS * 4) as u64, HYPERS)?;
            let factor = if factor == 0 { 1.0 } else { memory.words(factor, 1)?[0] };
            let (mut p, g) = (memory.words(slot.p, slot.len)?, memory.words(slot.g, slot.len)?);
            let mut states: [Vec<f32>; STATES] = Default::default();
            for (state, address) in states.iter_mut().zip(slot.states).take(count) {
                *state = memory.words(address, slot.len)?;
            }
            let directed = if slot.kind.directed() { slot.len } else { 0 };
            let d = memory.words(slot.direction, directed)?;
            let [a, b, c] = &mut states;
            with_stand_in(Numerics::Strict, |_, on| {
                let written = (&mut p[..], [&mut a[..], &mut b[..], &mut c[..]]);
                cpu(on, slot.kind, written, (&g[..], &d[..]), factor, &h);
                Some(())
            })?;
            flips.strike(&mut p);
            states.iter_mut().take(count).for_each(|s| flips.strike(s));
            memory.set_words(slot.p, &p)?;
            states.iter().zip(slot.states).take(count).try_for_each(|(s, at)| memory.set_words(at, s))
        })
    })
}

/// The kernel of a kind.
pub(super) fn module(kind: Kind) -> Source {
    dittograd_ops::module(format!("optimizer_{}", kind.code()), || text(kind))
}

/// The rule's function, the lines that `update.cu` asks for, and `update.cu`.
fn text(kind: Kind) -> String {
    let states = kind.states().len();
    // Parameter, gradient, states, direction, factor, scalars: the places in `x` that `update.cu` names.
    const FACTOR: usize = STATES + 3;
    let rule = Pointwise::trace(FACTOR + 1 + HYPERS, |x| {
        let h = std::array::from_fn(|i| x[FACTOR + 1 + i]);
        let element = Element { p: x[0], g: x[1], states: [x[2], x[3], x[4]], direction: x[5] };
        let (p, new) = kind.formula(element, x[FACTOR], h);
        [p].into_iter().chain(new).take(1 + states).collect()
    });
    [
        prelude(),
        &array_function("rule", &rule, Constants::Values),
        &define("DITTO_TABLE", PER_LAUNCH),
        &define("DITTO_HYPERS", HYPERS),
        &define("DITTO_MAX_STATES", STATES),
        &define("DITTO_STATES", states),
        &define("DITTO_DIRECTED", u8::from(kind.directed())),
        UPDATE_CU,
    ]
    .concat()
}
