//! A program as a function: made from a closure, given parameters, run once or many times, differentiated.

use super::{Compiled, Graph, Pass, Passes, Plan, Source, What};
use crate::HostDevice;
use crate::params::{Param, Params};
use crate::session::{Nats, Session, Var, check_input, on, unbound};
use dittograd_device::{AnyBuffer, Backend, Buffer, DType, Device, Meta, to_words};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::{AnyTensor, Attr, Val};

impl Graph {
    /// The program of `f`, a function of inputs of these types and shapes. It is written as any code over a session is;
    /// shapes are checked as it is recorded. Nothing runs: `device` is where constants and the parameters are.
    ///
    /// ```
    /// use dittograd::device::Meta;
    /// use dittograd::graph::Graph;
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// let mut params = Params::new(&device, 1);
    /// let w = params.value("w", &Tensor::new(&[3], vec![1.0f32, 2.0, 3.0])?)?;
    /// let graph = Graph::trace(&device, &[Meta::f32(Shape::new(&[2, 3])?)], |s, x| {
    ///     Ok(vec![(x[0] * s.param(&w)?)?.sum_axes(&[1])?])
    /// })?;
    /// let x = Tensor::new(&[2, 3], vec![1.0f32; 6])?;
    /// let y = graph.run(&device, &[x.into()])?;
    /// assert_eq!(y[0].num()?.data(), [6.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace<F>(device: &Device, inputs: &[Meta], f: F) -> Result<Graph>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        Graph::trace_seeded(device, 0, inputs, f)
    }

    /// As [`Graph::trace`], with random streams that start from `seed`, as those of [`Session::eager_seeded`].
    pub fn trace_seeded<F>(device: &Device, seed: u64, inputs: &[Meta], f: F) -> Result<Graph>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        let inputs: Vec<(Meta, bool)> = inputs.iter().map(|m| (*m, false)).collect();
        Graph::traced(device, seed, &inputs, f)
    }

    /// The program of `f`, whose inputs may be ones that gradients can be asked of.
    fn traced<F>(device: &Device, seed: u64, inputs: &[(Meta, bool)], f: F) -> Result<Graph>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        let session = Session::trace(device, seed);
        let input = |(meta, grad): &(Meta, bool)| match grad {
            true => session.variable_placeholder(*meta),
            false => session.placeholder(*meta),
        };
        let vars = inputs.iter().map(input).collect::<Result<Vec<_>>>()?;
        let returned = f(&session, &vars)?;
        let outputs = returned.into_iter().map(|v| session.val("trace", v)).collect::<Result<Vec<_>>>()?;
        if let Some((param, _)) = session.take_assigned().first() {
            let what = format!(
                "it assigns to parameter {}, but a program only returns values; use the model's eval, an eager session or \
                 TrainStep",
                param.name()
            );
            return Err(Error::unsupported("trace", what));
        }
        let mut graph = session.into_graph()?;
        graph.set_outputs(&outputs)?;
        Ok(graph)
    }

    /// The values it returns, in order.
    pub fn outputs(&self) -> &[Val] {
        &self.outputs
    }

    /// Says which values it returns.
    pub fn set_outputs(&mut self, outputs: &[Val]) -> Result<()> {
        outputs.iter().try_for_each(|v| self.check("outputs", *v))?;
        self.outputs = outputs.to_vec();
        Ok(())
    }

    /// Types and shapes of the inputs, in the order they are given.
    pub fn inputs(&self) -> Vec<Meta> {
        let input = |n: &super::Node| matches!(n.what, What::Leaf(Source::Input(_))).then_some(n.meta);
        self.nodes.iter().filter_map(input).collect()
    }

    /// Names and shapes of the parameters it reads, in the order it does.
    pub fn params(&self) -> Vec<(String, Shape)> {
        let param = |n: &super::Node| match &n.what {
            What::Leaf(Source::Param(p)) => Some((p.name().to_string(), n.meta.shape)),
            What::Leaf(Source::Named(name, shape)) => Some((name.clone(), *shape)),
            _ => None,
        };
        self.nodes.iter().filter_map(param).collect()
    }

    /// The parameters it reads, those without a value left out.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Param> {
        self.nodes.iter().filter_map(|n| match &n.what {
            What::Leaf(Source::Param(p)) => Some(p),
            _ => None,
        })
    }

    /// The lists of whole numbers it reads at every run, which can be overwritten.
    pub fn nats(&self) -> Vec<Nats> {
        let nats = |n: &super::Node| match &n.what {
            What::Leaf(Source::Nats(nats)) => Some(nats.clone()),
            _ => None,
        };
        self.nodes.iter().filter_map(nats).collect()
    }

    /// How many random calls one run makes.
    pub fn random_calls(&self) -> u64 {
        let Some(base) = self.random_base else { return 0 };
        let draws = self.nodes.iter().filter_map(|n| match &n.what {
            What::Op(op, ins) if ins.contains(&base) => Some(op.attrs()),
            _ => None,
        });
        let counter = |(name, value): (&str, Attr)| match value {
            Attr::Whole(n) if name == "counter" => Some(n.saturating_add(1)),
            _ => None,
        };
        draws.flatten().filter_map(counter).max().unwrap_or(0)
    }

    pub(crate) fn shape_of(&self, v: Val) -> Shape {
        self.node(v).meta.shape
    }

    /// Gives the parameters that the program reads the values of those of the same names. Errors if one is missing or
    /// has another shape; nothing is changed then.
    pub fn bind(&mut self, params: &Params) -> Result<()> {
        let mut bound = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let name = match &node.what {
                What::Leaf(Source::Param(p)) => p.name(),
                What::Leaf(Source::Named(name, _)) => name,
                _ => continue,
            };
            let Some(param) = params.get(name) else {
                let there: Vec<&str> = params.iter().map(Param::name).take(8).collect();
                let why = format!(
                    "there is no parameter {name} of shape {}; there are {}",
                    node.meta.shape,
                    if there.is_empty() { "none".to_string() } else { there.join(", ") }
                );
                return Err(Error::argument("bind", "params", why));
            };
            if param.shape() != node.meta.shape {
                let why = "the parameter has another shape than in the program";
                let kind = ErrorKind::Shapes { why, left: param.shape(), right: node.meta.shape };
                return Err(Error::new(format!("parameter {name}"), kind));
            }
            bound.push((i, param.clone()));
        }
        bound.into_iter().for_each(|(i, p)| self.nodes[i].what = What::Leaf(Source::Param(p)));
        Ok(())
    }

    /// Runs the program once on these inputs, step by step, on any device: also on those of other numbers, such as
    /// `Device::host::<Ratio>()`. To run it again and again, [`Graph::compile`] it.
    pub fn run<T: Scalar>(&self, device: &Device, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        let session = Session::inference(device);
        replay(&session, self, inputs)
    }

    /// The program ready to run on a device with new inputs, any number of times: planned and fused, as one CUDA graph on
    /// a GPU. Parameters are read where they are, so that every run sees their current values. On a device of other
    /// numbers it runs step by step.
    pub fn compile(&self, device: &Device) -> Result<Function> {
        self.compile_with(device, Passes::all())
    }

    /// As [`Graph::compile`], with some passes switched off; the bits are the same.
    pub fn compile_with(&self, device: &Device, passes: Passes) -> Result<Function> {
        self.compile_within(device, passes, None)
    }

    /// As [`Graph::compile_with`], in memory that is there already, if it is enough: every run overwrites it.
    #[doc(hidden)]
    pub fn compile_within(
        &self,
        device: &Device,
        passes: Passes,
        within: Option<&Buffer>,
    ) -> Result<Function> {
        let mut graph = self.clone();
        for node in &mut graph.nodes {
            match &node.what {
                What::Leaf(Source::Named(name, shape)) => return Err(unbound(name, *shape)),
                What::Leaf(Source::Constant(c)) => {
                    node.what = What::Leaf(Source::Constant(on(c, device)?));
                }
                // A copy would not follow what is written there later.
                What::Leaf(Source::State(c)) => device.check_accepts("buffer", c.buffer())?,
                _ => {}
            }
        }
        let (device, within) = (device.clone(), within.cloned());
        let mut function =
            Function { graph, device, passes, within, compiled: None, moves: 0, random_calls: 0 };
        function.prepare()?;
        Ok(function)
    }

    /// A device that the program's values can be on.
    fn home(&self) -> Device {
        let param = self.nodes.iter().find_map(|n| match &n.what {
            What::Leaf(Source::Param(p)) => Some(p.buffer().buffer().device().clone()),
            _ => None,
        });
        let constant = || {
            self.nodes.iter().find_map(|n| match &n.what {
                What::Leaf(Source::Constant(c) | Source::State(c)) => Some(c.buffer().device().clone()),
                _ => None,
            })
        };
        param.or_else(constant).unwrap_or_else(Device::host::<f32>)
    }

    /// The program of its gradients, by the ops' own rules: it takes the inputs, then a seed for each value of numbers that
    /// is returned, and returns the gradient of `Σ <seed, value>` with respect to each input of numbers, zeros where
    /// nothing depends on one. It is a program like any other: `graph.vjp()?.vjp()?` has second derivatives.
    pub fn vjp(&self) -> Result<Graph> {
        let inputs = self.inputs();
        let outputs: Vec<Meta> = self.metas(&self.outputs);
        let takes = inputs.iter().map(|m| (*m, true)).chain(numbers(&outputs).map(|m| (m, false)));
        let graph = Graph::traced(&self.home(), 0, &takes.collect::<Vec<_>>(), |s, x| {
            let (x, seeds) = x.split_at(inputs.len());
            let values = s.replay(self, x)?;
            let pairs = numbered(&values)?.into_iter().zip(seeds.iter().copied()).collect::<Vec<_>>();
            let wrt = numbered(x)?;
            let grads = s.vjp(&pairs, &wrt)?;
            grads.into_iter().zip(wrt).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect()
        })?;
        graph.live()
    }

    /// The program of its derivative along directions: it takes the inputs, then a direction for each input of numbers,
    /// and returns the derivative of each value of numbers that is returned.
    pub fn jvp(&self) -> Result<Graph> {
        let inputs = self.inputs();
        let takes = inputs.iter().map(|m| (*m, true)).chain(numbers(&inputs).map(|m| (m, false)));
        let graph = Graph::traced(&self.home(), 0, &takes.collect::<Vec<_>>(), |s, x| {
            let (x, along) = x.split_at(inputs.len());
            let values = s.replay(self, x)?;
            let directions: Vec<_> = numbered(x)?.into_iter().zip(along.iter().copied()).collect();
            numbered(&values)?.into_iter().map(|y| s.jvp(y, &directions)).collect()
        })?;
        graph.live()
    }

    /// Without what nothing returned is computed from.
    fn live(&self) -> Result<Graph> {
        self.after(Passes::none().with(Pass::DeadCode))
    }

    /// The program after these passes, which is what [`Graph::compile_with`] plans and runs.
    pub fn after(&self, passes: Passes) -> Result<Graph> {
        let _strict = environment::enter();
        let mut outputs = self.outputs.clone();
        let mut graph = passes.run(self, &mut outputs, &self.home())?;
        graph.outputs = outputs;
        Ok(graph)
    }
}

fn numbers(metas: &[Meta]) -> impl Iterator<Item = Meta> {
    metas.iter().copied().filter(|m| m.dtype == DType::F32)
}

/// Those of the values that are numbers.
fn numbered<'s>(values: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
    let mut all = Vec::with_capacity(values.len());
    for v in values {
        if v.meta()?.dtype == DType::F32 {
            all.push(*v);
        }
    }
    Ok(all)
}

fn replay<T: Scalar>(session: &Session, graph: &Graph, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
    session.replay(graph, &given(session, inputs)?)?.into_iter().map(Var::to_any).collect()
}

/// Inputs as values of a session.
pub(super) fn given<'s, T: Scalar>(session: &'s Session, inputs: &[AnyTensor<T>]) -> Result<Vec<Var<'s>>> {
    inputs.iter().map(|x| session.input_any(x)).collect()
}

/// A program that is ready to run on a device: [`Graph::compile`]. Runs have the bits of [`Graph::run`]; random draws
/// continue from run to run.
#[derive(Debug)]
pub struct Function {
    graph: Graph,
    device: Device,
    passes: Passes,
    /// Memory to compute in that others use as well.
    within: Option<Buffer>,
    /// Not on devices of other numbers.
    compiled: Option<Compiled>,
    /// Moves of parameters between devices when it was compiled.
    moves: u64,
    random_calls: u64,
}

impl Function {
    /// Compiles it, unless it is and no parameter was moved since.
    fn prepare(&mut self) -> Result<()> {
        let moves = self.graph.parameters().map(Param::moves).sum();
        if matches!(self.device.backend(), Backend::Host(_))
            || (self.compiled.is_some() && self.moves == moves)
        {
            return Ok(());
        }
        for p in self.graph.parameters() {
            self.device.check_accepts(&format!("parameter {}", p.name()), p.buffer().buffer())?;
        }
        let (graph, within) = (&self.graph, self.within.as_ref());
        let compiled = Compiled::new(&self.device, graph, &graph.outputs, Vec::new(), self.passes, within)?;
        self.compiled = Some(compiled);
        self.moves = moves;
        Ok(())
    }

    /// The program as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The compiled program after all passes, one value a line; none on a device of other numbers.
    pub fn text(&self) -> Option<&str> {
        self.compiled.as_ref().map(Compiled::text)
    }

    /// Sizes of the compiled program; none on a device of other numbers.
    pub fn plan(&self) -> Option<Plan> {
        self.compiled.as_ref().map(Compiled::plan)
    }

    /// Continues the random stream at a given call.
    pub fn set_random_calls(&mut self, calls: u64) {
        self.random_calls = calls;
    }

    /// Runs the program on these inputs and gives what it returns. Waits for the device.
    pub fn call<T: Scalar>(&mut self, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        self.prepare()?;
        let calls = self.random_calls;
        let results = match &self.compiled {
            Some(compiled) => self.compiled_call(compiled, inputs)?,
            None => {
                let session = Session::inference(&self.device);
                session.set_random_calls(calls);
                replay(&session, &self.graph, inputs)?
            }
        };
        self.random_calls = calls.wrapping_add(self.graph.random_calls());
        self.device.end_step();
        Ok(results)
    }

    /// As [`Function::call`], on values of its device: what it returns can be given to the next one, nothing goes through the
    /// host, and nothing waits, but for indices of which nothing is known: they are read and checked.
    ///
    /// ```
    /// use dittograd::device::{AnyBuffer, Meta};
    /// use dittograd::graph::Graph;
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// let mut double = Graph::trace(&device, &[Meta::f32(Shape::new(&[2])?)], |_, x| Ok(vec![x[0].add(x[0])?]))?
    ///     .compile(&device)?;
    /// let mut x = AnyBuffer::upload(&device, &Tensor::new(&[2], vec![1.0f32, 1.5])?)?;
    /// for _ in 0..3 {
    ///     x = double.call_on(&[&x])?.remove(0);
    /// }
    /// assert_eq!(x.to_tensor::<f32>()?.data(), [8.0, 12.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call_on(&mut self, inputs: &[&AnyBuffer]) -> Result<Vec<AnyBuffer>> {
        self.prepare()?;
        self.check_inputs(inputs.iter().map(|x| x.meta()))?;
        let calls = self.random_calls;
        let results = match &self.compiled {
            Some(compiled) => {
                inputs.iter().enumerate().try_for_each(|(i, x)| compiled.copy_input(i, x))?;
                compiled.run(calls)?;
                (0..self.graph.outputs.len()).map(|i| compiled.copy_output(i)).collect::<Result<Vec<_>>>()?
            }
            None => {
                let session = Session::inference(&self.device);
                session.set_random_calls(calls);
                let vars = inputs.iter().map(|x| session.buffer(x)).collect::<Result<Vec<_>>>()?;
                session
                    .replay(&self.graph, &vars)?
                    .into_iter()
                    .map(Var::buffer)
                    .collect::<Result<Vec<_>>>()?
            }
        };
        self.random_calls = calls.wrapping_add(self.graph.random_calls());
        self.device.end_step();
        Ok(results)
    }

    fn check_inputs(&self, metas: impl ExactSizeIterator<Item = Meta>) -> Result<()> {
        let wanted = self.graph.inputs();
        if wanted.len() != metas.len() {
            return Err(Error::new("graph", ErrorKind::Arity { want: wanted.len(), got: metas.len() }));
        }
        wanted.iter().zip(metas).enumerate().try_for_each(|(i, (want, meta))| check_input(i, *want, meta))
    }

    fn compiled_call<T: Scalar>(
        &self,
        compiled: &Compiled,
        inputs: &[AnyTensor<T>],
    ) -> Result<Vec<AnyTensor<T>>> {
        self.check_inputs(inputs.iter().map(AnyTensor::meta))?;
        for (i, x) in inputs.iter().enumerate() {
            match x {
                AnyTensor::Num(t) => compiled.set_input(i, x.meta(), &to_words(t.data())?)?,
                AnyTensor::Idx(t) => compiled.set_input(i, x.meta(), bytemuck::cast_slice(t.data()))?,
            }
        }
        compiled.run(self.random_calls)?;
        let output = |(i, v): (usize, &Val)| {
            let (words, meta) = (compiled.output(i)?, self.graph.node(*v).meta);
            Ok(match meta.dtype {
                DType::F32 => AnyTensor::Num(Tensor::with_shape(
                    meta.shape,
                    words.into_iter().map(T::from_f32).collect(),
                )?),
                DType::U32 => AnyTensor::Idx(Tensor::with_shape(
                    meta.shape,
                    words.into_iter().map(f32::to_bits).collect(),
                )?),
            })
        };
        self.graph.outputs.iter().enumerate().map(output).collect()
    }
}
