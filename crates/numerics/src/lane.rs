//! One float32 lane, as a trait, so that each formula of the runtime is written once.
//!
//! A formula generic over [`Lane`] is CPU code when instantiated with `f32` (straight-line scalar code that
//! the compiler vectorises at whatever width the caller enables) and CUDA text when instantiated with
//! [`Trace`]. Every method is one IEEE 754 operation rounded to nearest even with subnormals kept, or one
//! exact operation on bits, so both readings give the same bits. Float to integer conversion is left out on
//! purpose: out of range it differs between devices, and adding a magic constant and reading the low bits
//! does the same work exactly. NaN payloads do differ between devices, so formulas end by selecting the one
//! NaN of [`Lane::nan`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::Wrapping;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// The answer of a comparison in a lane.
pub trait LaneMask: Copy + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self> {}

/// 32 bits of a lane; arithmetic wraps.
pub trait LaneInt:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
{
    /// The mask that belongs to this lane.
    type Mask: LaneMask;

    /// A constant.
    fn c(bits: u32) -> Self;
    /// Shifts left by a constant `n < 32`.
    fn shl(self, n: u32) -> Self;
    /// Shifts right by a constant `n < 32`, zeros coming in.
    fn shr(self, n: u32) -> Self;
    /// Shifts right by a constant `n < 32`, copies of the sign bit coming in.
    fn sar(self, n: u32) -> Self;
    /// Shifts left by `n`, which must be below 32.
    fn shl_by(self, n: Self) -> Self;
    /// Shifts right by `n`, which must be below 32, zeros coming in.
    fn shr_by(self, n: Self) -> Self;
    /// The high 32 bits of the 64-bit product of two unsigned numbers.
    fn mul_high(self, other: Self) -> Self;
    /// `self == other`.
    fn eq(self, other: Self) -> Self::Mask;
    /// `self < other`, both read as unsigned.
    fn below(self, other: Self) -> Self::Mask;
    /// `a` where `mask` holds, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
}

/// The four operations of a float lane, each one IEEE 754 operation.
pub trait Arithmetic:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
}

impl Arithmetic for f32 {}
impl Arithmetic for f64 {}
impl Arithmetic for Trace {}
impl Arithmetic for TraceDouble {}

/// A binary64 companion of a lane, for formulas that need more than 24 bits on the way.
pub trait LaneDouble: Arithmetic + Neg<Output = Self> {
    /// The mask that belongs to this lane.
    type Mask: LaneMask;
    /// The 32-bit integer that belongs to this lane.
    type Int: LaneInt<Mask = Self::Mask>;

    /// A constant.
    fn c(x: f64) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// A signed 32-bit integer, exactly.
    fn from_int(x: Self::Int) -> Self;
    /// The double whose bits are `high` then `low`.
    fn from_words(high: Self::Int, low: Self::Int) -> Self;
    /// The low 32 bits of the bit pattern.
    fn low_word(self) -> Self::Int;
    /// The high 32 bits of the bit pattern.
    fn high_word(self) -> Self::Int;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// `self < other`; false when either is NaN.
    fn lt(self, other: Self) -> Self::Mask;
    /// `a` where `mask` holds, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;
}

/// A binary32 lane. The operators are single IEEE 754 operations; so is every method that computes.
pub trait Lane: Arithmetic + Neg<Output = Self> {
    /// Answers of comparisons.
    type Mask: LaneMask;
    /// The bits of the lane.
    type Int: LaneInt<Mask = Self::Mask>;
    /// The binary64 companion.
    type Double: LaneDouble<Mask = Self::Mask, Int = Self::Int>;

    /// The constant `x`, rounded once to binary32.
    fn c(x: f64) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// Clears the sign bit.
    fn abs(self) -> Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The bit pattern.
    fn to_bits(self) -> Self::Int;
    /// The float with this bit pattern.
    fn from_bits(bits: Self::Int) -> Self;
    /// A signed 32-bit integer, rounded to nearest even.
    fn from_int(x: Self::Int) -> Self;
    /// Widens, exactly.
    fn to_double(self) -> Self::Double;
    /// Narrows, rounding to nearest even, subnormal results included.
    fn from_double(x: Self::Double) -> Self;
    /// `self < other`; false when either is NaN, as all five comparisons are.
    fn lt(self, other: Self) -> Self::Mask;
    /// `self <= other`.
    fn le(self, other: Self) -> Self::Mask;
    /// `self > other`.
    fn gt(self, other: Self) -> Self::Mask;
    /// `self >= other`.
    fn ge(self, other: Self) -> Self::Mask;
    /// `self == other`.
    fn eq(self, other: Self) -> Self::Mask;
    /// `a` where `mask` holds, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// Whether the lane holds a NaN.
    #[inline(always)]
    fn is_nan(self) -> Self::Mask {
        !self.eq(self)
    }

    /// The one NaN that formulas return, bits `0x7fc00000`.
    #[inline(always)]
    fn nan() -> Self {
        Self::from_bits(Self::Int::c(0x7fc0_0000))
    }
}

impl LaneMask for bool {}

impl LaneInt for Wrapping<u32> {
    type Mask = bool;

    #[inline(always)]
    fn c(bits: u32) -> Self {
        Wrapping(bits)
    }
    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        Wrapping(self.0 << (n & 31))
    }
    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        Wrapping(self.0 >> (n & 31))
    }
    #[inline(always)]
    fn sar(self, n: u32) -> Self {
        Wrapping(((self.0 as i32) >> (n & 31)) as u32)
    }
    #[inline(always)]
    fn shl_by(self, n: Self) -> Self {
        Wrapping(self.0 << (n.0 & 31))
    }
    #[inline(always)]
    fn shr_by(self, n: Self) -> Self {
        Wrapping(self.0 >> (n.0 & 31))
    }
    #[inline(always)]
    fn mul_high(self, other: Self) -> Self {
        Wrapping(((u64::from(self.0) * u64::from(other.0)) >> 32) as u32)
    }
    #[inline(always)]
    fn eq(self, other: Self) -> bool {
        self.0 == other.0
    }
    #[inline(always)]
    fn below(self, other: Self) -> bool {
        self.0 < other.0
    }
    #[inline(always)]
    fn select(mask: bool, a: Self, b: Self) -> Self {
        if mask { a } else { b }
    }
}

impl LaneDouble for f64 {
    type Mask = bool;
    type Int = Wrapping<u32>;

    #[inline(always)]
    fn c(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn from_int(x: Self::Int) -> Self {
        f64::from(x.0 as i32)
    }
    #[inline(always)]
    fn from_words(high: Self::Int, low: Self::Int) -> Self {
        f64::from_bits((u64::from(high.0) << 32) | u64::from(low.0))
    }
    #[inline(always)]
    fn low_word(self) -> Self::Int {
        Wrapping(self.to_bits() as u32)
    }
    #[inline(always)]
    fn high_word(self) -> Self::Int {
        Wrapping((self.to_bits() >> 32) as u32)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn lt(self, other: Self) -> bool {
        self < other
    }
    #[inline(always)]
    fn select(mask: bool, a: Self, b: Self) -> Self {
        if mask { a } else { b }
    }
}

impl Lane for f32 {
    type Mask = bool;
    type Int = Wrapping<u32>;
    type Double = f64;

    #[inline(always)]
    fn c(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        f32::abs(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn to_bits(self) -> Self::Int {
        Wrapping(f32::to_bits(self))
    }
    #[inline(always)]
    fn from_bits(bits: Self::Int) -> Self {
        f32::from_bits(bits.0)
    }
    #[inline(always)]
    fn from_int(x: Self::Int) -> Self {
        x.0 as i32 as f32
    }
    #[inline(always)]
    fn to_double(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn from_double(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn lt(self, other: Self) -> bool {
        self < other
    }
    #[inline(always)]
    fn le(self, other: Self) -> bool {
        self <= other
    }
    #[inline(always)]
    fn gt(self, other: Self) -> bool {
        self > other
    }
    #[inline(always)]
    fn ge(self, other: Self) -> bool {
        self >= other
    }
    #[inline(always)]
    fn eq(self, other: Self) -> bool {
        self == other
    }
    #[inline(always)]
    fn select(mask: bool, a: Self, b: Self) -> Self {
        if mask { a } else { b }
    }
}

/// What a trace has recorded: the name (or literal) behind each handle, and the statements in order.
#[derive(Default)]
struct Tape {
    names: Vec<String>,
    known: HashMap<String, u32>,
    body: String,
}

thread_local! {
    // Handles must be `Copy` to stand where `f32` stands, so they cannot own or borrow their tape.
    static TAPE: RefCell<Tape> = RefCell::new(Tape::default());
}

/// A handle for text that needs no statement: a literal or an argument.
fn literal(text: String) -> u32 {
    TAPE.with_borrow_mut(|tape| {
        tape.names.push(text);
        tape.names.len() as u32 - 1
    })
}

/// The text behind a handle.
fn name_of(handle: u32) -> String {
    TAPE.with_borrow(|tape| tape.names.get(handle as usize).cloned().unwrap_or_default())
}

/// A handle for a value of C type `kind`; the same expression twice is one statement.
fn statement(kind: &str, expression: String) -> u32 {
    TAPE.with_borrow_mut(|tape| {
        if let Some(&handle) = tape.known.get(&expression) {
            return handle;
        }
        let name = format!("v{}", tape.known.len());
        tape.body.push_str(&format!("    const {kind} {name} = {expression};\n"));
        tape.names.push(name);
        let handle = tape.names.len() as u32 - 1;
        tape.known.insert(expression, handle);
        handle
    })
}

/// A float32 lane that writes CUDA C instead of computing; see [`cuda_function`].
#[derive(Clone, Copy, Debug)]
pub struct Trace(u32);

/// The bits of a [`Trace`], an `unsigned int` in the text.
#[derive(Clone, Copy, Debug)]
pub struct TraceInt(u32);

/// The binary64 companion of a [`Trace`].
#[derive(Clone, Copy, Debug)]
pub struct TraceDouble(u32);

/// The answer of a comparison of [`Trace`]s, a `bool` in the text.
#[derive(Clone, Copy, Debug)]
pub struct TraceMask(u32);

/// Operators of a handle type: `{0}` and `{1}` stand for the operands in the C expression.
macro_rules! traced_operators {
    ($handle:ident, $kind:literal, $($trait:ident $method:ident $format:literal),+) => {
        $(impl $trait for $handle {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                $handle(statement($kind, format!($format, name_of(self.0), name_of(other.0))))
            }
        })+
    };
}

traced_operators!(Trace, "float", Add add "__fadd_rn({}, {})", Sub sub "__fsub_rn({}, {})",
    Mul mul "__fmul_rn({}, {})", Div div "__fdiv_rn({}, {})");
traced_operators!(TraceDouble, "double", Add add "__dadd_rn({}, {})", Sub sub "__dsub_rn({}, {})",
    Mul mul "__dmul_rn({}, {})", Div div "__ddiv_rn({}, {})");
traced_operators!(TraceInt, "unsigned int", Add add "{} + {}", Sub sub "{} - {}", Mul mul "{} * {}",
    BitAnd bitand "{} & {}", BitOr bitor "{} | {}", BitXor bitxor "{} ^ {}");
traced_operators!(TraceMask, "bool", BitAnd bitand "{} && {}", BitOr bitor "{} || {}");

impl Neg for Trace {
    type Output = Self;
    fn neg(self) -> Self {
        Self(statement("float", format!("-{}", name_of(self.0))))
    }
}

impl Neg for TraceDouble {
    type Output = Self;
    fn neg(self) -> Self {
        Self(statement("double", format!("-{}", name_of(self.0))))
    }
}

impl Not for TraceMask {
    type Output = Self;
    fn not(self) -> Self {
        Self(statement("bool", format!("!{}", name_of(self.0))))
    }
}

/// The text of a comparison or another expression of two operands.
fn pair(a: u32, operator: &str, b: u32) -> String {
    format!("{} {operator} {}", name_of(a), name_of(b))
}

/// The text of a selection.
fn choice(mask: TraceMask, a: u32, b: u32) -> String {
    format!("{} ? {} : {}", name_of(mask.0), name_of(a), name_of(b))
}

impl LaneMask for TraceMask {}

impl LaneInt for TraceInt {
    type Mask = TraceMask;

    fn c(bits: u32) -> Self {
        Self(literal(format!("0x{bits:08x}u")))
    }
    fn shl(self, n: u32) -> Self {
        Self(statement("unsigned int", format!("{} << {}", name_of(self.0), n & 31)))
    }
    fn shr(self, n: u32) -> Self {
        Self(statement("unsigned int", format!("{} >> {}", name_of(self.0), n & 31)))
    }
    fn sar(self, n: u32) -> Self {
        Self(statement("unsigned int", format!("(unsigned int)((int){} >> {})", name_of(self.0), n & 31)))
    }
    fn shl_by(self, n: Self) -> Self {
        Self(statement("unsigned int", format!("{} << ({} & 31u)", name_of(self.0), name_of(n.0))))
    }
    fn shr_by(self, n: Self) -> Self {
        Self(statement("unsigned int", format!("{} >> ({} & 31u)", name_of(self.0), name_of(n.0))))
    }
    fn mul_high(self, other: Self) -> Self {
        Self(statement("unsigned int", format!("__umulhi({}, {})", name_of(self.0), name_of(other.0))))
    }
    fn eq(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "==", other.0)))
    }
    fn below(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "<", other.0)))
    }
    fn select(mask: TraceMask, a: Self, b: Self) -> Self {
        Self(statement("unsigned int", choice(mask, a.0, b.0)))
    }
}

impl LaneDouble for TraceDouble {
    type Mask = TraceMask;
    type Int = TraceInt;

    fn c(x: f64) -> Self {
        Self(literal(format!("__longlong_as_double(0x{:016x}LL)", x.to_bits())))
    }
    fn fma(self, b: Self, c: Self) -> Self {
        let text = format!("__fma_rn({}, {}, {})", name_of(self.0), name_of(b.0), name_of(c.0));
        Self(statement("double", text))
    }
    fn from_int(x: TraceInt) -> Self {
        Self(statement("double", format!("__int2double_rn((int){})", name_of(x.0))))
    }
    fn from_words(high: TraceInt, low: TraceInt) -> Self {
        let text = format!("__hiloint2double((int){}, (int){})", name_of(high.0), name_of(low.0));
        Self(statement("double", text))
    }
    fn low_word(self) -> TraceInt {
        TraceInt(statement("unsigned int", format!("(unsigned int)__double2loint({})", name_of(self.0))))
    }
    fn high_word(self) -> TraceInt {
        TraceInt(statement("unsigned int", format!("(unsigned int)__double2hiint({})", name_of(self.0))))
    }
    fn sqrt(self) -> Self {
        Self(statement("double", format!("__dsqrt_rn({})", name_of(self.0))))
    }
    fn lt(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "<", other.0)))
    }
    fn select(mask: TraceMask, a: Self, b: Self) -> Self {
        Self(statement("double", choice(mask, a.0, b.0)))
    }
}

impl Lane for Trace {
    type Mask = TraceMask;
    type Int = TraceInt;
    type Double = TraceDouble;

    fn c(x: f64) -> Self {
        Self(literal(format!("__uint_as_float(0x{:08x}u)", (x as f32).to_bits())))
    }
    fn fma(self, b: Self, c: Self) -> Self {
        let text = format!("__fmaf_rn({}, {}, {})", name_of(self.0), name_of(b.0), name_of(c.0));
        Self(statement("float", text))
    }
    fn abs(self) -> Self {
        let text = format!("__uint_as_float(__float_as_uint({}) & 0x7fffffffu)", name_of(self.0));
        Self(statement("float", text))
    }
    fn sqrt(self) -> Self {
        Self(statement("float", format!("__fsqrt_rn({})", name_of(self.0))))
    }
    fn to_bits(self) -> TraceInt {
        TraceInt(statement("unsigned int", format!("__float_as_uint({})", name_of(self.0))))
    }
    fn from_bits(bits: TraceInt) -> Self {
        Self(statement("float", format!("__uint_as_float({})", name_of(bits.0))))
    }
    fn from_int(x: TraceInt) -> Self {
        Self(statement("float", format!("__int2float_rn((int){})", name_of(x.0))))
    }
    fn to_double(self) -> TraceDouble {
        TraceDouble(statement("double", format!("(double){}", name_of(self.0))))
    }
    fn from_double(x: TraceDouble) -> Self {
        Self(statement("float", format!("__double2float_rn({})", name_of(x.0))))
    }
    fn lt(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "<", other.0)))
    }
    fn le(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "<=", other.0)))
    }
    fn gt(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, ">", other.0)))
    }
    fn ge(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, ">=", other.0)))
    }
    fn eq(self, other: Self) -> TraceMask {
        TraceMask(statement("bool", pair(self.0, "==", other.0)))
    }
    fn select(mask: TraceMask, a: Self, b: Self) -> Self {
        Self(statement("float", choice(mask, a.0, b.0)))
    }
}

/// The CUDA text of a formula of one argument: `__device__ __forceinline__ float NAME(float x)`.
///
/// The text depends on the formula alone; the same formula gives the same text on every call.
pub fn cuda_function(name: &str, formula: fn(Trace) -> Trace) -> String {
    traced(name, &["x"], |arguments| formula(arguments[0]))
}

/// The CUDA text of a formula of two arguments: `__device__ __forceinline__ float NAME(float x, float y)`.
pub fn cuda_function2(name: &str, formula: fn(Trace, Trace) -> Trace) -> String {
    traced(name, &["x", "y"], |arguments| formula(arguments[0], arguments[1]))
}

/// The CUDA text of a formula of any number of named float arguments.
///
/// `formula` gets the arguments in the order of `arguments` and must use only handles made from them;
/// building one trace inside another is not supported, since a thread has one tape.
pub fn traced(name: &str, arguments: &[&str], formula: impl FnOnce(&[Trace]) -> Trace) -> String {
    TAPE.set(Tape::default());
    let handles: Vec<Trace> =
        arguments.iter().map(|argument| Trace(literal((*argument).to_string()))).collect();
    let result = name_of(formula(&handles).0);
    let tape = TAPE.take();
    let parameters: Vec<String> = arguments.iter().map(|argument| format!("float {argument}")).collect();
    let parameters = parameters.join(", ");
    format!(
        "__device__ __forceinline__ float {name}({parameters}) {{\n{}    return {result};\n}}\n",
        tape.body
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<L: Lane>(x: L) -> L {
        let twice = x + x;
        let again = x + x;
        L::select(twice.lt(L::c(1.0)), twice.fma(again, x), L::nan())
    }

    #[test]
    fn a_trace_is_straight_line_text_with_shared_expressions() {
        let text = cuda_function("sample", sample);
        assert_eq!(
            text,
            "__device__ __forceinline__ float sample(float x) {\n    \
             const float v0 = __fadd_rn(x, x);\n    \
             const bool v1 = v0 < __uint_as_float(0x3f800000u);\n    \
             const float v2 = __fmaf_rn(v0, v0, x);\n    \
             const float v3 = __uint_as_float(0x7fc00000u);\n    \
             const float v4 = v1 ? v2 : v3;\n    \
             return v4;\n}\n"
        );
        assert_eq!(text, cuda_function("sample", sample), "a second trace starts from an empty tape");
    }

    #[test]
    fn integers_of_the_cpu_lane_wrap() {
        let top = <Wrapping<u32> as LaneInt>::c(0xffff_ffff);
        assert_eq!((top + Wrapping(2)).0, 1);
        assert_eq!(top.sar(31).0, 0xffff_ffff);
        assert_eq!(LaneInt::shr(top, 31).0, 1);
        assert_eq!(top.mul_high(top).0, 0xffff_fffe);
    }

    #[test]
    fn double_words_fit_together() {
        let one = f64::from_words(Wrapping(0x3ff0_0000), Wrapping(7));
        assert_eq!(one.to_bits(), 0x3ff0_0000_0000_0007);
        assert_eq!((one.high_word().0, one.low_word().0), (0x3ff0_0000, 7));
    }
}
