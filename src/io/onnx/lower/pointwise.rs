//! Elementwise programs, instruction by instruction.

use super::super::proto::Value;
use super::Lowering;
use crate::ops::pointwise::expression::{Instr, Pointwise, Reg};

impl Lowering<'_> {
    /// What an elementwise program gives.
    pub(super) fn program(&mut self, program: &Pointwise, ins: &[Value]) -> Vec<Value> {
        let consts: Vec<Value> = program.consts().iter().map(|k| self.c(*k)).collect();
        let mut steps: Vec<Value> = Vec::new();
        let read = |reg: &Reg, steps: &[Value]| match reg {
            Reg::In(i) => ins[*i as usize].clone(),
            Reg::Const(c) => consts[*c as usize].clone(),
            Reg::Step(s) => steps[*s as usize].clone(),
        };
        for step in program.steps() {
            let args = step.args.each_ref().map(|r| read(r, &steps));
            steps.push(self.instr(step.instr, &args));
        }
        program.results().iter().map(|r| read(r, &steps)).collect()
    }

    /// One instruction of a program. Most have their ONNX name.
    fn instr(&mut self, instr: Instr, [a, b, c, d]: &[Value; 4]) -> Value {
        use Instr::*;
        match instr {
            Neg | Abs | Sqrt | Exp | Log | Tanh | Sigmoid | Softplus | Sin | Cos | Erf | Floor | Round => {
                self.unary(instr.name(), a)
            }
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
        }
    }

    /// `c` where a comparison of `a` and `b` holds, else `d`.
    fn choice(&mut self, op: &'static str, [a, b, c, d]: [&Value; 4]) -> Value {
        let truth = self.compare(op, a, b);
        self.choose(&truth, c, d)
    }
}
