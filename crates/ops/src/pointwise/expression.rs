//! Pointwise expressions: straight-line code over [`Instr`], traced by running a formula over [`Expr`] instead of over
//! numbers. The CPU evaluates an expression block by block, CUDA kernels contain it as text, fusion joins several into
//! one, and gradient rules differentiate it. Every instruction is one operation of the numerics contract, so none of this
//! changes a bit.

#[cfg(test)]
mod tests;

use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_numerics::scalar::{Real, Special, signed};
use dittograd_numerics::{environment, functions};
use std::cell::RefCell;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most elements of a block of the CPU evaluator.
pub(crate) const MAX_BLOCK: usize = 2048;

/// Words that a block's registers, inputs and result should fit into: those of a first-level cache.
const CACHE: usize = 8192;

/// Registers (inputs not counted, constants counted) a program may need at once.
const SLOTS: usize = 24;

/// Inputs a program may have.
const MAX_INPUTS: usize = 16;

/// Results a program may have.
pub(crate) const MAX_RESULTS: usize = 4;

/// Calls `$then` with the list of instructions: name, arguments, Rust expression, CUDA expression.
/// Everything that must know all instructions is made from this list. The Rust side names the trait's
/// functions in full: a method call on an `f32` would reach the standard library's instead.
macro_rules! with_instrs {
    ($then:ident) => {
        $then! {
            Neg(a) = -a, "-{0}";
            Abs(a) = Real::abs(a), "fabsf({0})";
            Sqrt(a) = Real::sqrt(a), "__fsqrt_rn({0})";
            Exp(a) = Real::exp(a), "ditto_exp({0})";
            Decay(a) = Real::decay(a), "ditto_decay({0})";
            Expm1(a) = Real::expm1(a), "ditto_expm1({0})";
            Log(a) = Real::log(a), "ditto_log({0})";
            Log1p(a) = Real::log1p(a), "ditto_log1p({0})";
            Tanh(a) = Real::tanh(a), "ditto_tanh({0})";
            Sigmoid(a) = Real::sigmoid(a), "ditto_sigmoid({0})";
            Softplus(a) = Real::softplus(a), "ditto_softplus({0})";
            Sin(a) = Real::sin(a), "ditto_sin({0})";
            Cos(a) = Real::cos(a), "ditto_cos({0})";
            Erf(a) = Real::erf(a), "ditto_erf({0})";
            Floor(a) = Real::floor(a), "floorf({0})";
            Round(a) = Real::round(a), "rintf({0})";
            Add(a, b) = a + b, "__fadd_rn({0}, {1})";
            Sub(a, b) = a - b, "__fsub_rn({0}, {1})";
            Mul(a, b) = a * b, "__fmul_rn({0}, {1})";
            Div(a, b) = a / b, "__fdiv_rn({0}, {1})";
            Pow(a, b) = Real::pow(a, b), "ditto_pow({0}, {1})";
            Max(a, b) = Real::max(a, b), "(({0} > {1} || {0} != {0}) ? {0} : {1})";
            Min(a, b) = Real::min(a, b), "(({1} > {0} || {0} != {0}) ? {0} : {1})";
            Fma(a, b, c) = Real::fma(a, b, c), "__fmaf_rn({0}, {1}, {2})";
            WhereGt(a, b, c, d) = Real::where_gt(a, b, c, d), "({0} > {1} ? {2} : {3})";
            WhereLe(a, b, c, d) = Real::where_le(a, b, c, d), "({0} <= {1} ? {2} : {3})";
            WhereEq(a, b, c, d) = Real::where_eq(a, b, c, d), "({0} == {1} ? {2} : {3})";
            Sinh(a) = Real::special(a, Special::Sinh), "ditto_sinh({0})";
            Cosh(a) = Real::special(a, Special::Cosh), "ditto_cosh({0})";
            Exp2(a) = Real::special(a, Special::Exp2), "ditto_exp2({0})";
            Log2(a) = Real::special(a, Special::Log2), "ditto_log2({0})";
            Log10(a) = Real::special(a, Special::Log10), "ditto_log10({0})";
            Erfc(a) = Real::special(a, Special::Erfc), "ditto_erfc({0})";
            Erfcx(a) = Real::special(a, Special::Erfcx), "ditto_erfcx({0})";
            Erfinv(a) = Real::special(a, Special::Erfinv), "ditto_erfinv({0})";
            Ndtri(a) = Real::special(a, Special::Ndtri), "ditto_ndtri({0})";
            Lgamma(a) = Real::special(a, Special::Lgamma), "ditto_lgamma({0})";
            Digamma(a) = Real::special(a, Special::Digamma), "ditto_digamma({0})";
            Trigamma(a) = Real::special(a, Special::Trigamma), "ditto_trigamma({0})";
            I0(a) = Real::special(a, Special::I0), "ditto_i0({0})";
            I0e(a) = Real::special(a, Special::I0e), "ditto_i0e({0})";
            I1(a) = Real::special(a, Special::I1), "ditto_i1({0})";
            I1e(a) = Real::special(a, Special::I1e), "ditto_i1e({0})";
            Atan2(a, b) = Real::atan2(a, b), "ditto_atan2({0}, {1})";
            Fmod(a, b) = Real::fmod(a, b), "ditto_fmod({0}, {1})";
        }
    };
}

macro_rules! instructions {
    ($($name:ident($($arg:ident),*) = $rust:expr, $cuda:literal;)*) => {
        /// One operation on whole registers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Instr { $($name,)* }

        impl Instr {
            /// All instructions.
            pub const ALL: &'static [Instr] = &[$(Instr::$name,)*];

            /// Name in printed programs.
            pub fn name(self) -> &'static str {
                match self { $(Instr::$name => stringify!($name),)* }
            }

            /// Number of arguments.
            pub fn arity(self) -> usize {
                match self { $(Instr::$name => [$(stringify!($arg)),*].len(),)* }
            }

            /// The instruction over any number type.
            pub fn apply<R: Real>(self, args: &[R]) -> R {
                match self { $(Instr::$name => { let mut i = args.iter().copied(); $(let $arg = next(&mut i);)* $rust })* }
            }

            fn cuda(self) -> &'static str {
                match self { $(Instr::$name => $cuda,)* }
            }

            /// The instruction over whole blocks. All slices are as long as `out`.
            fn run(self, simd: Simd, args: [&[f32]; 4], out: &mut [f32]) {
                let x = args[0];
                match self {
                    Instr::Sin if all_moderate(simd, x) => sin_moderate(simd, x, out),
                    Instr::Cos if all_moderate(simd, x) => cos_moderate(simd, x, out),
                    $(Instr::$name => kernels::$name(simd, args, out),)*
                }
            }
        }

        #[allow(non_snake_case)]
        mod kernels {
            use super::*;
            $(simd_fn! {
                pub(crate) fn $name(simd, args: [&[f32]; 4], out: &mut [f32]) {
                    let n = out.len();
                    let mut rest = args.iter();
                    $(let $arg = &rest.next().copied().unwrap_or(&[])[..n];)*
                    for i in 0..n {
                        $(let $arg = $arg[i];)*
                        out[i] = $rust;
                    }
                }
            })*
        }
    };
}

simd_fn! {
    /// Whether the short form of sine and cosine serves a whole block.
    fn all_moderate(simd, x: &[f32]) -> bool {
        x.iter().fold(true, |all, x| all & (x.abs() < functions::MODERATE))
    }
}

simd_fn! {
    fn sin_moderate(simd, x: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(y, x)| *y = functions::sin_moderate(*x));
    }
}

simd_fn! {
    fn cos_moderate(simd, x: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(y, x)| *y = functions::cos_moderate(*x));
    }
}

/// The next argument; instructions are only built with all of theirs.
fn next<R: Real>(args: &mut impl Iterator<Item = R>) -> R {
    args.next().unwrap_or(R::c(f64::NAN))
}

with_instrs!(instructions);

macro_rules! special_instructions {
    ($($name:ident)*) => {
        impl Instr {
            /// The instruction of a less common function.
            fn of(f: Special) -> Instr {
                match f { $(Special::$name => Instr::$name,)* }
            }

            /// The less common function that it is, if it is one.
            fn special(self) -> Option<Special> {
                match self { $(Instr::$name => Some(Special::$name),)* _ => None }
            }
        }
    };
}

special_instructions! { Sinh Cosh Exp2 Log2 Log10 Erfc Erfcx Erfinv Ndtri Lgamma Digamma Trigamma I0 I0e I1 I1e }

/// Where an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reg {
    /// Input number.
    In(u16),
    /// Constant number.
    Const(u16),
    /// Result of a step.
    Step(u16),
}

impl Reg {
    /// A number of 18 bits that only this one has.
    fn word(self) -> u32 {
        match self {
            Reg::In(i) => u32::from(i),
            Reg::Const(c) => 1 << 16 | u32::from(c),
            Reg::Step(s) => 2 << 16 | u32::from(s),
        }
    }
}

/// One step: an instruction and where its arguments come from (unused ones repeat the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The instruction.
    pub instr: Instr,
    /// Its arguments.
    pub args: [Reg; 4],
}

// Programs are looked up at every launch: a step is one word to the hasher.
impl Hash for Reg {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.word());
    }
}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let args = self.args.iter().fold(0, |all, reg| all << 24 | u128::from(reg.word()));
        state.write_u128(args << 8 | self.instr as u128);
    }
}

/// A pointwise expression: results as straight-line code of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise {
    inputs: usize,
    consts: Vec<f32>,
    steps: Vec<Step>,
    outputs: Vec<Reg>,
    /// Which inputs are read.
    reads: Vec<bool>,
    /// Register of each step's result, chosen so that registers are reused when their value is dead.
    slots: Vec<u8>,
    slot_count: usize,
}

#[derive(Default)]
struct Builder {
    /// Number of the formula that is being traced; 0 if none is.
    formula: u64,
    consts: Vec<f32>,
    steps: Vec<Step>,
    /// Whether a value of another formula was read.
    foreign: bool,
}

impl Builder {
    fn new() -> Builder {
        static FORMULAS: AtomicU64 = AtomicU64::new(1);
        Builder { formula: FORMULAS.fetch_add(1, Ordering::Relaxed), ..Builder::default() }
    }

    fn constant(&mut self, x: f32) -> Reg {
        let at = self.consts.iter().position(|k| k.to_bits() == x.to_bits()).unwrap_or_else(|| {
            self.consts.push(x);
            self.consts.len() - 1
        });
        Reg::Const(at as u16)
    }

    /// Where a value is in this program. A constant of another formula is made here too; any other value of it counts as NaN.
    fn reg(&mut self, e: Expr) -> Reg {
        match e.constant {
            _ if e.formula == self.formula => e.reg,
            Some(x) => self.constant(x),
            None => {
                self.foreign = true;
                self.constant(f32::NAN)
            }
        }
    }
}

thread_local! {
    static BUILDER: RefCell<Builder> = RefCell::default();
}

/// A value inside a program being built. Arithmetic on it appends steps; equal steps are shared. Constants serve in any formula,
/// other values only in theirs.
#[derive(Clone, Copy, Debug)]
pub struct Expr {
    reg: Reg,
    /// The formula that it is a value of, 0 if it was made outside of all.
    formula: u64,
    constant: Option<f32>,
}

impl Expr {
    fn inputs(count: usize, formula: u64) -> Vec<Expr> {
        (0..count).map(|i| Expr { reg: Reg::In(i as u16), formula, constant: None }).collect()
    }
}

fn push(instr: Instr, args: &[Expr]) -> Expr {
    BUILDER.with_borrow_mut(|b| {
        let formula = b.formula;
        if formula == 0 {
            return Expr { reg: Reg::Step(0), formula, constant: None };
        }
        let mut regs = [b.reg(args[0]); 4];
        for (r, a) in regs.iter_mut().zip(args) {
            *r = b.reg(*a);
        }
        let step = Step { instr, args: regs };
        let at = b.steps.iter().position(|s| *s == step).unwrap_or_else(|| {
            b.steps.push(step);
            b.steps.len() - 1
        });
        Expr { reg: Reg::Step(at as u16), formula, constant: None }
    })
}

macro_rules! binary_operator {
    ($($op:ident $method:ident)*) => {$(
        impl $op for Expr {
            type Output = Expr;
            fn $method(self, b: Expr) -> Expr {
                push(Instr::$op, &[self, b])
            }
        }

        /// With a number as the left operand. (As the right one it would leave the type of `Real::c` open.)
        impl $op<Expr> for f64 {
            type Output = Expr;
            fn $method(self, b: Expr) -> Expr {
                Expr::c(self).$method(b)
            }
        }
    )*};
}

binary_operator!(Add add Sub sub Mul mul Div div);

impl Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        push(Instr::Neg, &[self])
    }
}

macro_rules! recorded {
    ($($method:ident $instr:ident ($($arg:ident),*);)*) => {$(
        fn $method(self, $($arg: Expr),*) -> Expr {
            push(Instr::$instr, &[self, $($arg),*])
        }
    )*};
}

impl Real for Expr {
    fn c(x: f64) -> Expr {
        let x = x as f32;
        BUILDER.with_borrow_mut(|b| {
            let reg = if b.formula == 0 { Reg::Const(0) } else { b.constant(x) };
            Expr { reg, formula: b.formula, constant: Some(x) }
        })
    }
    recorded! {
        fma Fma(b, c);
        abs Abs();
        sqrt Sqrt();
        exp Exp();
        decay Decay();
        expm1 Expm1();
        log Log();
        log1p Log1p();
        tanh Tanh();
        sigmoid Sigmoid();
        softplus Softplus();
        sin Sin();
        cos Cos();
        erf Erf();
        floor Floor();
        round Round();
        pow Pow(b);
        atan2 Atan2(b);
        fmod Fmod(b);
        max Max(b);
        min Min(b);
    }
    fn special(self, f: Special) -> Expr {
        push(Instr::of(f), &[self])
    }
    fn where_gt(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr {
        push(Instr::WhereGt, &[a, b, x, y])
    }
    fn where_le(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr {
        push(Instr::WhereLe, &[a, b, x, y])
    }
    fn where_eq(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr {
        push(Instr::WhereEq, &[a, b, x, y])
    }
}

impl Pointwise {
    /// The program of `f`, which gets its inputs and returns its results. A value of another formula, unless it is a constant,
    /// counts as NaN.
    pub fn trace(inputs: usize, f: impl FnOnce(&[Expr]) -> Vec<Expr>) -> Pointwise {
        Pointwise::trace_own(inputs, f).0
    }

    /// The program of `f` as by [`Pointwise::trace`], and whether all values it uses are its own.
    pub(crate) fn trace_own(inputs: usize, f: impl FnOnce(&[Expr]) -> Vec<Expr>) -> (Pointwise, bool) {
        let _strict = environment::enter();
        // A formula that itself builds a program must not see this one's steps.
        let builder = Builder::new();
        let ins = Expr::inputs(inputs, builder.formula);
        let outer = BUILDER.replace(builder);
        let outputs = f(&ins);
        Pointwise::built(inputs, &outputs, BUILDER.replace(outer))
    }

    /// The program that a builder holds. Apart from `trace`, so that it is not compiled again for every formula.
    fn built(inputs: usize, outputs: &[Expr], mut built: Builder) -> (Pointwise, bool) {
        let outputs = outputs.iter().map(|e| built.reg(*e)).collect();
        (Pointwise::finish(inputs, built.consts, built.steps, outputs), !built.foreign)
    }

    /// The program that passes its inputs through.
    #[doc(hidden)]
    pub fn same(inputs: usize) -> Pointwise {
        Pointwise::trace(inputs, |x| x.to_vec())
    }

    /// Drops what no output needs, then assigns registers.
    #[doc(hidden)]
    pub fn finish(inputs: usize, consts: Vec<f32>, steps: Vec<Step>, mut outputs: Vec<Reg>) -> Pointwise {
        let mut live = vec![false; steps.len()];
        let mut const_used = vec![false; consts.len()];
        let mut mark = |reg: &Reg, live: &mut Vec<bool>| match reg {
            Reg::Step(s) => live[*s as usize] = true,
            Reg::Const(c) => const_used[*c as usize] = true,
            Reg::In(_) => {}
        };
        for reg in &outputs {
            mark(reg, &mut live);
        }
        for (i, step) in steps.iter().enumerate().rev() {
            if live[i] {
                for reg in &step.args[..step.instr.arity()] {
                    mark(reg, &mut live);
                }
            }
        }
        let renumber = |used: &[bool]| -> Vec<u16> {
            let mut next = 0;
            used.iter().map(|&u| (next, next += u16::from(u)).0).collect()
        };
        let (step_at, const_at) = (renumber(&live), renumber(&const_used));
        let moved = |reg: &mut Reg| match reg {
            Reg::Step(s) => *s = step_at[*s as usize],
            Reg::Const(c) => *c = const_at[*c as usize],
            Reg::In(_) => {}
        };
        let kept = |used: &[bool]| used.to_vec();
        let (live, const_used) = (kept(&live), kept(&const_used));
        let mut steps: Vec<Step> = steps.iter().zip(&live).filter(|(_, l)| **l).map(|(s, _)| *s).collect();
        let consts = consts.iter().zip(&const_used).filter(|(_, u)| **u).map(|(c, _)| *c).collect();
        for step in &mut steps {
            let arity = step.instr.arity();
            step.args[..arity].iter_mut().for_each(&moved);
            let first = step.args[0];
            step.args[arity..].fill(first);
        }
        outputs.iter_mut().for_each(&moved);
        let mut reads = vec![false; inputs];
        let regs = steps.iter().flat_map(|s| &s.args[..s.instr.arity()]).chain(&outputs);
        for reg in regs {
            if let Reg::In(i) = reg {
                reads[*i as usize] = true;
            }
        }
        let mut program =
            Pointwise { inputs, consts, steps, outputs, reads, slots: Vec::new(), slot_count: 0 };
        program.assign_slots();
        program
    }

    /// Linear-scan register assignment. A step never writes the register of one of its arguments.
    fn assign_slots(&mut self) {
        let n = self.steps.len();
        let mut last = vec![0usize; n];
        for (i, step) in self.steps.iter().enumerate() {
            for reg in &step.args {
                if let Reg::Step(s) = reg {
                    last[*s as usize] = i;
                }
            }
        }
        for reg in &self.outputs {
            if let Reg::Step(s) = reg {
                last[*s as usize] = n;
            }
        }
        let mut busy_until: Vec<usize> = Vec::new();
        for (i, &end) in last.iter().enumerate() {
            let free = busy_until.iter().position(|&end| end < i);
            let slot = free.unwrap_or_else(|| {
                busy_until.push(0);
                busy_until.len() - 1
            });
            busy_until[slot] = end;
            self.slots.push(slot as u8);
        }
        self.slot_count = busy_until.len();
    }

    /// Whether the CPU evaluator has enough registers for it.
    pub(crate) fn has_registers(&self) -> bool {
        self.slot_count + self.consts.len() <= SLOTS
    }

    /// Whether a kernel of it alone has room for its registers, inputs and results; fusion stops where this ends.
    pub fn fits(&self) -> bool {
        self.inputs <= MAX_INPUTS && self.fits_dense()
    }

    /// Whether it fits once inputs that it does not read are left out.
    fn fits_dense(&self) -> bool {
        self.has_registers()
            && self.reads.iter().filter(|read| **read).count() <= MAX_INPUTS
            && (1..=MAX_RESULTS).contains(&self.outputs.len())
    }

    /// Programs of one result each, and one that has this program's results of them. The inputs of each are this program's, then the
    /// results of those before it. All fit; if there is no such way, the last one does not.
    pub(crate) fn split(self) -> (Vec<Pointwise>, Pointwise) {
        let (mut parts, mut rest) = (Vec::new(), self);
        while !rest.fits_dense() {
            // The step of which a program of its own leaves the fewest steps here.
            let cut = (0..rest.steps.len()).filter_map(|step| {
                let part = rest.until(step);
                part.fits_dense().then(|| (part, rest.after(step)))
            });
            let Some((part, left)) = cut.min_by_key(|(_, left)| left.steps.len()) else { break };
            parts.push(part);
            rest = left;
        }
        (parts, rest)
    }

    /// The program of one step's result.
    fn until(&self, step: usize) -> Pointwise {
        let result = vec![Reg::Step(step as u16)];
        Pointwise::finish(self.inputs, self.consts.clone(), self.steps[..=step].to_vec(), result)
    }

    /// This program with one more input, which a step's result is read from.
    fn after(&self, step: usize) -> Pointwise {
        let (from, to) = (Reg::Step(step as u16), Reg::In(self.inputs as u16));
        let (mut steps, mut outputs) = (self.steps.clone(), self.outputs.clone());
        let regs = steps.iter_mut().flat_map(|s| &mut s.args).chain(&mut outputs);
        regs.filter(|reg| **reg == from).for_each(|reg| *reg = to);
        Pointwise::finish(self.inputs + 1, self.consts.clone(), steps, outputs)
    }

    /// About how many of the simplest instructions take as long as one element of it.
    #[doc(hidden)]
    pub fn weight(&self) -> usize {
        use Instr::{
            Atan2, Cos, Decay, Div, Erf, Exp, Expm1, Fmod, Log, Log1p, Pow, Sigmoid, Sin, Softplus, Sqrt,
            Tanh,
        };
        let of = |s: &Step| match s.instr {
            Div | Sqrt => 8,
            Exp | Decay | Expm1 | Log | Log1p | Tanh | Sigmoid | Softplus | Sin | Cos | Erf | Pow => 24,
            Atan2 => 48,
            Fmod => 96,
            instr if instr.special().is_some() => 48,
            _ => 1,
        };
        self.steps.iter().map(of).sum()
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of results.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The constants.
    pub fn consts(&self) -> &[f32] {
        &self.consts
    }

    /// Where the first result is read from.
    pub(crate) fn result(&self) -> Reg {
        self.outputs[0]
    }

    /// Where the results are read from.
    #[doc(hidden)]
    pub fn results(&self) -> &[Reg] {
        &self.outputs
    }

    /// Which inputs are read.
    pub fn reads(&self) -> &[bool] {
        &self.reads
    }

    /// The results over any number type. A missing input counts as NaN.
    pub fn eval<R: Real>(&self, ins: &[R]) -> Vec<R> {
        let consts: Vec<R> = self.consts.iter().map(|&k| R::c(f64::from(k))).collect();
        let mut values: Vec<R> = Vec::with_capacity(self.steps.len());
        let read = |reg: &Reg, values: &[R]| match reg {
            Reg::In(i) => ins.get(*i as usize).copied().unwrap_or(R::c(f64::NAN)),
            Reg::Const(c) => consts[*c as usize],
            Reg::Step(s) => values[*s as usize],
        };
        for step in &self.steps {
            let args: Vec<R> = step.args.iter().map(|r| read(r, &values)).collect();
            values.push(step.instr.apply(&args[..step.instr.arity()]));
        }
        self.outputs.iter().map(|r| read(r, &values)).collect()
    }

    /// The gradient of the results with respect to input `wrt`, as a program over the same inputs
    /// followed by the upstream gradient of each result.
    pub(crate) fn gradient(&self, wrt: usize) -> Pointwise {
        Pointwise::trace(self.inputs + self.outputs.len(), |ins| {
            let (ins, upstream) = ins.split_at(self.inputs);
            let consts: Vec<Expr> = self.consts.iter().map(|&k| Expr::c(f64::from(k))).collect();
            let mut values: Vec<Expr> = Vec::new();
            let read = |reg: &Reg, values: &[Expr]| match reg {
                Reg::In(i) => ins[*i as usize],
                Reg::Const(c) => consts[*c as usize],
                Reg::Step(s) => values[*s as usize],
            };
            for step in &self.steps {
                let args = step.args.map(|r| read(&r, &values));
                values.push(step.instr.apply(&args[..step.instr.arity()]));
            }
            let mut grads: Vec<Option<Expr>> = vec![None; self.steps.len()];
            let mut result: Option<Expr> = None;
            let sum = |slot: &mut Option<Expr>, x: Expr| *slot = Some(slot.map_or(x, |s| s + x));
            for (reg, g) in self.outputs.iter().zip(upstream) {
                match reg {
                    Reg::Step(s) => sum(&mut grads[*s as usize], *g),
                    Reg::In(i) if *i as usize == wrt => sum(&mut result, *g),
                    _ => {}
                }
            }
            for (i, step) in self.steps.iter().enumerate().rev() {
                let Some(up) = grads[i] else { continue };
                let args = step.args.map(|r| read(&r, &values));
                let slopes = derivative(step.instr, args, values[i], up);
                for (reg, slope) in step.args[..step.instr.arity()].iter().zip(slopes) {
                    let Some(slope) = slope else { continue };
                    match reg {
                        Reg::Step(s) => sum(&mut grads[*s as usize], slope),
                        Reg::In(i) if *i as usize == wrt => sum(&mut result, slope),
                        _ => {}
                    }
                }
            }
            vec![result.unwrap_or_else(|| Expr::c(0.0))]
        })
    }

    /// CUDA statements that define the constants `k0…`, to the bit.
    #[doc(hidden)]
    pub fn cuda_constants(&self) -> String {
        let mut text = String::new();
        for (c, k) in self.consts.iter().enumerate() {
            let _ = writeln!(text, "const float k{c} = __uint_as_float({:#x}u);", k.to_bits());
        }
        text
    }

    /// CUDA functions that [`Pointwise::cuda`] calls and the common text does not have.
    pub(crate) fn cuda_functions(&self) -> String {
        let mut called: Vec<Instr> = self.steps.iter().map(|s| s.instr).collect();
        called.sort_unstable();
        called.dedup();
        called.iter().filter_map(|i| functions::cuda_special_text(&i.name().to_lowercase())).collect()
    }

    /// CUDA statements that compute the results from variables `x0…` (inputs) and `k0…` (constants)
    /// into variables `y0…`.
    pub fn cuda(&self) -> String {
        let name = |reg: &Reg| match reg {
            Reg::In(i) => format!("x{i}"),
            Reg::Const(c) => format!("k{c}"),
            Reg::Step(s) => format!("t{s}"),
        };
        let mut text = String::new();
        for (i, step) in self.steps.iter().enumerate() {
            let mut line = step.instr.cuda().to_string();
            for (j, reg) in step.args[..step.instr.arity()].iter().enumerate() {
                line = line.replace(&format!("{{{j}}}"), &name(reg));
            }
            let _ = writeln!(text, "const float t{i} = {line};");
        }
        for (i, reg) in self.outputs.iter().enumerate() {
            let _ = writeln!(text, "const float y{i} = {};", name(reg));
        }
        text
    }
}

/// The chain rule of one instruction: for each argument, upstream gradient times slope. `y` is the
/// instruction's result.
fn derivative<R: Real>(instr: Instr, args: [R; 4], y: R, g: R) -> [Option<R>; 4] {
    let [a, b, ..] = args;
    let c = |x: f64| R::c(x);
    let one = |x: R| [Some(x), None, None, None];
    let two = |[x, y]: [R; 2]| [Some(x), Some(y), None, None];
    if let Some(f) = instr.special() {
        return one(g * f.slope(a, y));
    }
    match instr {
        Instr::Neg => one(-g),
        Instr::Abs => one(signed(a, g)),
        Instr::Sqrt => one(by_root(g, y)),
        Instr::Exp | Instr::Decay => one(g * y),
        Instr::Expm1 => one(g * a.exp()),
        Instr::Log => one(g / a),
        Instr::Log1p => one(g / (c(1.0) + a)),
        Instr::Tanh => one(g * (c(1.0) - y * y)),
        Instr::Sigmoid => one(g * (y * (c(1.0) - y))),
        Instr::Softplus => one(g * a.sigmoid()),
        Instr::Sin => one(g * a.cos()),
        Instr::Cos => one(-(g * a.sin())),
        Instr::Erf => one(g * (c(std::f64::consts::FRAC_2_SQRT_PI) * (-(a * a)).exp())),
        Instr::Floor | Instr::Round => [None; 4],
        Instr::Add => [Some(g), Some(g), None, None],
        Instr::Sub => [Some(g), Some(-g), None, None],
        Instr::Mul => [Some(g * b), Some(g * a), None, None],
        Instr::Div => two(by_quotient(b, y, g)),
        Instr::Pow => two(by_power(a, b, y, g)),
        Instr::Atan2 => two(by_angle(a, b, g)),
        Instr::Fmod => two([g, -(g * ((a - y) / b).round())]),
        Instr::Max => two(by_larger(a, b, g)),
        // The smaller of two is the larger one's mirror image.
        Instr::Min => two(by_larger(b, a, g)),
        Instr::Fma => [Some(g * b), Some(g * a), Some(g), None],
        Instr::WhereGt => {
            let zero = c(0.0);
            [None, None, Some(R::where_gt(a, b, g, zero)), Some(R::where_gt(a, b, zero, g))]
        }
        Instr::WhereLe => {
            let zero = c(0.0);
            [None, None, Some(R::where_le(a, b, g, zero)), Some(R::where_le(a, b, zero, g))]
        }
        Instr::WhereEq => {
            let zero = c(0.0);
            [None, None, Some(R::where_eq(a, b, g, zero)), Some(R::where_eq(a, b, zero, g))]
        }
        // Handled above.
        _ => [None; 4],
    }
}

/// The whole number towards zero; the sign of zero is kept.
#[doc(hidden)]
pub fn truncated<R: Real>(x: R) -> R {
    R::where_gt(R::c(0.0), x, -((-x).floor()), x.floor())
}

/// Gradients of the angle of the point (x, y) by y and x: `x / (x^2 + y^2)` and `-y / (x^2 + y^2)`, without the squares,
/// which might overflow. At the origin and at infinity both are 0.
pub(crate) fn by_angle<R: Real>(y: R, x: R, g: R) -> [R; 2] {
    let zero = R::c(0.0);
    let (inf, larger) = (R::c(f64::INFINITY), x.abs().max(y.abs()));
    let (p, q) = (x / larger, y / larger);
    let square = p.fma(p, q * q);
    let over = g / larger / square;
    let slope = |part: R| {
        let finite = R::where_eq(over.abs(), inf, g / square * part / larger, over * part);
        R::where_eq(larger, zero, zero, R::where_eq(larger, inf, zero, finite))
    };
    [slope(p), -slope(q)]
}

/// Gradients of the larger of `a` and `b`: all to the larger, halves on a tie, all to both where one is NaN.
pub(crate) fn by_larger<R: Real>(a: R, b: R, g: R) -> [R; 2] {
    let (zero, half) = (R::c(0.0), g * R::c(0.5));
    [R::where_eq(a, b, half, R::where_gt(b, a, zero, g)), R::where_eq(a, b, half, R::where_gt(a, b, zero, g))]
}

/// Gradient of the root `y`: 0 where that is zero.
pub(crate) fn by_root<R: Real>(g: R, y: R) -> R {
    R::where_eq(y, R::c(0.0), R::c(0.0), g / (y + y))
}

/// Gradients of the quotient `y` by its denominator `b`, which is not squared. Where `g / b` overflows, `y` is divided first.
pub(crate) fn by_quotient<R: Real>(b: R, y: R, g: R) -> [R; 2] {
    let by_above = g / b;
    let by_below = R::where_eq(by_above.abs(), R::c(f64::INFINITY), g * (y / b), by_above * y);
    [by_above, -by_below]
}

/// Gradients of the power `y = a^b`. A zero exponent has no slope in `a`, a base that is not positive none in `b`, unless the power is NaN.
pub(crate) fn by_power<R: Real>(a: R, b: R, y: R, g: R) -> [R; 2] {
    let zero = R::c(0.0);
    let by_base = R::where_eq(b, zero, zero, g * (b * a.pow(b - R::c(1.0))));
    let none = R::where_eq(y, y, zero, y);
    [by_base, R::where_le(a, zero, none, g * (y * a.log()))]
}

/// Scratch words of one task, which its thread keeps for the next one. Their contents are undefined.
pub(crate) struct Scratch(Vec<f32>);

thread_local! {
    static SHELF: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

impl Scratch {
    pub(crate) fn take(words: usize) -> Scratch {
        // The shortest that is long enough, so that the next one finds what it needs; else the longest.
        let mut kept = SHELF.with_borrow_mut(|shelf| {
            let key = |i: &usize| (shelf[*i].len() < words, shelf[*i].len().abs_diff(words));
            let best = (0..shelf.len()).min_by_key(key);
            best.map(|i| shelf.swap_remove(i)).unwrap_or_default()
        });
        if kept.len() < words {
            kept.resize(words, 0.0);
        }
        Scratch(kept)
    }

    pub(crate) fn words(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        // The shelf is gone when the thread ends; then the words just go too.
        let _ = SHELF.try_with(|shelf| shelf.borrow_mut().push(words));
    }
}

/// Registers of the CPU evaluator for one program, made once per task.
pub(crate) struct Registers<'p> {
    program: &'p Pointwise,
    block: usize,
    /// The registers, then the constants, a block each.
    scratch: Scratch,
}

impl Pointwise {
    /// Elements of a block that this program is best evaluated in.
    pub(crate) fn block(&self) -> usize {
        let blocks = self.slot_count + self.consts.len() + self.inputs + 1;
        (CACHE / blocks / 64 * 64).clamp(256, MAX_BLOCK)
    }
}

impl<'p> Registers<'p> {
    /// Registers for blocks of at most `block` elements.
    pub(crate) fn new(program: &'p Pointwise, block: usize) -> Registers<'p> {
        let mut scratch = Scratch::take((program.slot_count + program.consts.len()) * block);
        let consts = &mut scratch.words()[program.slot_count * block..];
        for (k, words) in program.consts.iter().zip(consts.chunks_exact_mut(block)) {
            words.fill(*k);
        }
        Registers { program, block, scratch }
    }

    /// Runs the program over one block. Inputs and results are all of the same length.
    pub(crate) fn run(&mut self, simd: Simd, ins: &[&[f32]], outs: &mut [&mut [f32]]) {
        let (program, block, n) = (self.program, self.block, outs[0].len());
        let (slots, consts) = self.scratch.words().split_at_mut(program.slot_count * block);
        let consts = &*consts;
        let constant = |c: u16| &consts[c as usize * block..][..n];
        let mut regs: [&mut [f32]; SLOTS] = std::array::from_fn(|_| &mut [][..]);
        for (reg, words) in regs.iter_mut().zip(slots.chunks_exact_mut(block)) {
            *reg = &mut words[..n];
        }
        for (i, step) in program.steps.iter().enumerate() {
            let slot = program.slots[i] as usize;
            // The register is taken out while it is written, so that the others can be read.
            let target = std::mem::take(&mut regs[slot]);
            let args = step.args.map(|reg| match reg {
                Reg::In(i) => ins[i as usize],
                Reg::Const(c) => constant(c),
                Reg::Step(s) => &*regs[program.slots[s as usize] as usize],
            });
            match program.direct(i) {
                Some(o) => step.instr.run(simd, args, outs[o]),
                None => step.instr.run(simd, args, target),
            }
            regs[slot] = target;
        }
        for (o, (reg, out)) in program.outputs.iter().zip(outs).enumerate() {
            match *reg {
                Reg::In(i) => out.copy_from_slice(ins[i as usize]),
                Reg::Const(c) => out.copy_from_slice(constant(c)),
                Reg::Step(s) if program.direct(s as usize) == Some(o) => {}
                Reg::Step(s) => out.copy_from_slice(regs[program.slots[s as usize] as usize]),
            }
        }
    }
}

impl Pointwise {
    /// The result that the last step writes by itself, past its register: no other step or result reads it.
    fn direct(&self, step: usize) -> Option<usize> {
        let is = |reg: &Reg| *reg == Reg::Step(step as u16);
        let mut results = (0..self.outputs.len()).filter(|&o| is(&self.outputs[o]));
        match (results.next(), results.next()) {
            (Some(o), None) if step + 1 == self.steps.len() => Some(o),
            _ => None,
        }
    }
}
