//! Derivatives of programs, as programs: the ops' own rules, appended by the one reverse walk.

use super::{Graph, Pass, Passes, Source, What};
use crate::gradients::{Program, gradients};
use dittograd_device::{AnyBuffer, DType};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::random::Full;
use dittograd_ops::{AnyOp, Recorder, Val};

impl Graph {
    /// Appends the gradients of the scalar `out` with respect to `wrt`, by the ops' own rules, in the same
    /// order as the tape walks. `None` where `out` does not depend on a value.
    pub fn gradients(&mut self, out: Val, wrt: &[Val]) -> Result<Vec<Option<Val>>> {
        wrt.iter().chain([&out]).try_for_each(|v| self.check("gradients", *v))?;
        let meta = self.node(out).meta;
        meta.dtype.require(DType::F32, "gradients", 0)?;
        if meta.shape != Shape::SCALAR {
            let why = format!(
                "the loss has shape {}, and a loss is one number: end it with mean() or sum()",
                meta.shape
            );
            return Err(Error::new("gradients", ErrorKind::Gradient { why }));
        }
        let one = self.record(Full { shape: Shape::SCALAR, value: 1.0 }.into(), &[])?;
        gradients(self, &[(out, one)], wrt)
    }

    /// The program of its gradients, by the ops' own rules: it takes the inputs, then a seed for each value of numbers that
    /// is returned, and returns the gradient of `Σ <seed, value>` with respect to each input of numbers, zeros where
    /// nothing depends on one. It is a program like any other: `graph.vjp()?.vjp()?` has second derivatives.
    pub fn vjp(&self) -> Result<Graph> {
        let _strict = environment::enter();
        let (mut graph, wrt) = self.tracking_inputs();
        let mut pairs = Vec::new();
        for y in self.numbers(&self.outputs) {
            pairs.push((y, graph.input_like(y)));
        }
        let grads = gradients(&mut graph, &pairs, &wrt)?;
        graph.outputs = wrt.iter().zip(grads).map(|(x, g)| graph.or_zeros(g, *x)).collect::<Result<_>>()?;
        graph.live()
    }

    /// The program of its derivative along directions: it takes the inputs, then a direction for each input of numbers,
    /// and returns the derivative of each value of numbers that is returned. Forward mode by way of reverse mode, as
    /// [`Session::jvp`](crate::session::Session::jvp).
    pub fn jvp(&self) -> Result<Graph> {
        let _strict = environment::enter();
        let (mut graph, wrt) = self.tracking_inputs();
        let directions: Vec<Val> = wrt.iter().map(|x| graph.input_like(*x)).collect();
        let home = self.home();
        let mut outputs = Vec::new();
        for y in self.numbers(&self.outputs) {
            // Gradients are linear in the seed, so any will do.
            let zeros = AnyBuffer::zeros(&home, self.shape_of(y))?;
            let seed = Val(graph.leaf(Source::Constant(zeros), true) as u32);
            let grads = gradients(&mut graph, &[(y, seed)], &wrt)?;
            let pairs: Vec<(Val, Val)> =
                grads.iter().zip(&directions).filter_map(|(g, d)| g.map(|g| (g, *d))).collect();
            let along = gradients(&mut graph, &pairs, &[seed])?.pop().flatten();
            outputs.push(graph.or_zeros(along, seed)?);
        }
        graph.outputs = outputs;
        graph.live()
    }

    /// The same program with gradients that flow to its inputs of numbers, and these.
    fn tracking_inputs(&self) -> (Graph, Vec<Val>) {
        let mut graph = self.clone();
        let mut inputs = Vec::new();
        for i in 0..graph.size() {
            let node = &graph.nodes[i];
            graph.nodes[i].requires_grad = match &node.what {
                What::Leaf(Source::Input(meta)) if meta.dtype == DType::F32 => {
                    inputs.push(Val(i as u32));
                    true
                }
                what => node.requires_grad || graph.expected_grad(what),
            };
        }
        (graph, inputs)
    }

    /// Those of the values that are numbers.
    fn numbers(&self, values: &[Val]) -> impl Iterator<Item = Val> {
        values.iter().copied().filter(|v| self.node(*v).meta.dtype == DType::F32)
    }

    /// One more input, of the type and shape of a value.
    fn input_like(&mut self, v: Val) -> Val {
        let meta = self.node(v).meta;
        Val(self.leaf(Source::Input(meta), false) as u32)
    }

    /// The value, or zeros of the shape of `like`.
    fn or_zeros(&mut self, v: Option<Val>, like: Val) -> Result<Val> {
        match v {
            Some(v) => Ok(v),
            None => self.record(Full { shape: self.shape_of(like), value: 0.0 }.into(), &[]),
        }
    }

    /// Without what nothing returned is computed from.
    fn live(&self) -> Result<Graph> {
        self.after(Passes::none().with(Pass::DeadCode))
    }
}

impl Program for Graph {
    fn origin(&self, v: Val) -> Result<Option<(AnyOp, Vec<Val>)>> {
        Ok(match &self.node(v).what {
            What::Op(op, ins) => Some((op.clone(), ins.clone())),
            What::Leaf(_) => None,
        })
    }

    fn requires_grad(&self, v: Val) -> bool {
        self.node(v).requires_grad
    }
}
