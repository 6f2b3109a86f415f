//! Elementwise programs, instruction by instruction.

use super::super::proto::Value;
use super::Lowering;
use crate::error::{Error, Result};
use crate::ops::pointwise::expression::{Instr, Pointwise, Reg};

impl Lowering<'_> {
    /// What an elementwise program gives.
    pub(super) fn program(&mut self, program: &Pointwise, ins: &[Value]) -> Result<Vec<Value>> {
        let consts: Vec<Value> = program.consts().iter().map(|k| self.c(*k)).collect();
        let mut steps: Vec<Value> = Vec::new();
        let read = |reg: &Reg, steps: &[Value]| match reg {
            Reg::In(i) => ins[*i as usize].clone(),
            Reg::Const(c) => consts[*c as usize].clone(),
            Reg::Step(s) => steps[*s as usize].clone(),
        };
        for step in program.steps() {
            let args = step.args.each_ref().map(|r| read(r, &steps));
            steps.push(self.instr(step.instr, &args)?);
        }
        Ok(program.results().iter().map(|r| read(r, &steps)).collect())
    }

    /// One instruction of a program. Most have their ONNX name.
    fn instr(&mut self, instr: Instr, [a, b, c, d]: &[Value; 4]) -> Result<Value> {
        use Instr::*;
        Ok(match instr {
            Neg | Abs | Sqrt | Exp | Log | Tanh | Sigmoid | Softplus | Sin | Cos | Erf | Floor | Round
            | Sinh | Cosh => self.unary(instr.name(), a),
            Add | Sub | Mul | Div | Pow | Max | Min => self.binary(instr.name(), a, b),
            Decay => self.unary("Exp", a),
            Expm1 => {
                // tanh(x / 2) (e^x + 1), which keeps small results accurate.
                let (half, one) = (self.c(0.5), self.c(1.0));
                let half = self.binary("Mul", a, &half);
                let tanh = self.unary("Tanh", &half);
                let exp = self.unary("Exp", a);
                let sum = self.binary("Add", &exp, &one);
                self.binary("Mul", &tanh, &sum)
            }
            Log1p => {
                // With u = 1 + x rounded, ln(u) x / (u - 1): what was rounded off cancels. Where u is 1 it is x, and
                // where nothing was rounded off, as at infinity, ln(u).
                let (one, zero) = (self.c(1.0), self.c(0.0));
                let u = self.binary("Add", a, &one);
                let back = self.binary("Sub", &u, &one);
                let log = self.unary("Log", &u);
                let ratio = self.binary("Div", a, &back);
                let value = self.binary("Mul", &log, &ratio);
                let exact = self.compare("Equal", &back, a);
                let value = self.choose(&exact, &log, &value);
                let tiny = self.compare("Equal", &back, &zero);
                self.choose(&tiny, a, &value)
            }
            Fma => {
                let product = self.binary("Mul", a, b);
                self.binary("Add", &product, c)
            }
            WhereGt => self.choice("Greater", [a, b, c, d]),
            WhereLe => self.choice("LessOrEqual", [a, b, c, d]),
            WhereEq => self.choice("Equal", [a, b, c, d]),
            Exp2 => {
                let two = self.c(2.0);
                self.binary("Pow", &two, a)
            }
            Log2 | Log10 => {
                let log = self.unary("Log", a);
                let base = if instr == Log2 { std::f32::consts::LN_2 } else { std::f32::consts::LN_10 };
                let base = self.c(base);
                self.binary("Div", &log, &base)
            }
            Erfc => {
                let (one, erf) = (self.c(1.0), self.unary("Erf", a));
                self.binary("Sub", &one, &erf)
            }
            Atan2 => self.angle(a, b),
            Fmod => {
                let zero = self.c(0.0);
                let ratio = self.binary("Div", a, b);
                let (down, up) = (self.unary("Floor", &ratio), self.unary("Ceil", &ratio));
                let times = self.choice("Greater", [&ratio, &zero, &down, &up]);
                let taken = self.binary("Mul", &times, b);
                self.binary("Sub", a, &taken)
            }
            Erfcx | Erfinv | Ndtri | Lgamma | Digamma | Trigamma | I0 | I0e | I1 | I1e => {
                let why = format!("ONNX has no function like {}; export the values before it", instr.name());
                return Err(Error::unsupported("onnx", why));
            }
        })
    }

    /// The angle of the point with ordinate `y` and abscissa `x`. Of two zeros it is 0.
    fn angle(&mut self, y: &Value, x: &Value) -> Value {
        let (zero, pi) = (self.c(0.0), self.c(std::f32::consts::PI));
        let ratio = self.binary("Div", y, x);
        let angle = self.unary("Atan", &ratio);
        let (less, more) = (self.binary("Sub", &angle, &pi), self.binary("Add", &angle, &pi));
        let left = self.choice("Greater", [&zero, y, &less, &more]);
        let angle = self.choice("Greater", [&zero, x, &left, &angle]);
        let on_axis = self.choice("Greater", [&zero, x, &angle, &zero]);
        self.choice("Equal", [y, &zero, &on_axis, &angle])
    }

    /// `c` where a comparison of `a` and `b` holds, else `d`.
    fn choice(&mut self, op: &'static str, [a, b, c, d]: [&Value; 4]) -> Value {
        let truth = self.compare(op, a, b);
        self.choose(&truth, c, d)
    }
}
