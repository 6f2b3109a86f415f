//! A program as a function: made from a closure, run once or many times.

use crate::graph::{Compiled, Graph, Passes, Plan};
use crate::params::Param;
use crate::session::{Session, Var, with_inputs};
use dittograd_device::{AnyBuffer, Backend, Buffer, DType, Device, Meta, to_words};
use dittograd_numerics::error::{Error, Located, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::{AnyTensor, Recorder, Val};

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
    #[track_caller]
    pub fn trace<F>(device: &Device, inputs: &[Meta], f: F) -> Result<Graph>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        Graph::trace_seeded(device, 0, inputs, f)
    }

    /// As [`Graph::trace`], with random streams that start from `seed`, as those of [`Session::eager_seeded`].
    #[track_caller]
    pub fn trace_seeded<F>(device: &Device, seed: u64, inputs: &[Meta], f: F) -> Result<Graph>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        let (graph, assigned) = traced(device, seed, inputs, f)?;
        if let Some((param, _)) = assigned.first() {
            let what = format!(
                "it assigns to parameter {}, but a program only returns values; use the model's eval, an eager session or \
                 TrainStep",
                param.name()
            );
            return Err(Error::unsupported("trace", what));
        }
        Ok(graph)
    }

    /// As [`Graph::trace_seeded`], of a step: what it assigns to parameters are further outputs, and these are the parameters.
    #[doc(hidden)]
    #[track_caller]
    pub fn trace_step<F>(device: &Device, seed: u64, inputs: &[Meta], f: F) -> Result<(Graph, Vec<Param>)>
    where
        F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        let (mut graph, assigned) = traced(device, seed, inputs, f)?;
        let outputs: Vec<Val> = graph.outputs().iter().copied().chain(assigned.iter().map(|a| a.1)).collect();
        graph.set_outputs(&outputs)?;
        Ok((graph, assigned.into_iter().map(|a| a.0).collect()))
    }

    /// Runs the program once on these inputs, step by step, on any device: also on those of other numbers, such as
    /// `Device::host::<Ratio>()`. To run it again and again, [`Graph::compile`] it.
    #[track_caller]
    pub fn run<T: Scalar>(&self, device: &Device, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        let session = Session::inference(device);
        replay(&session, self, inputs)
    }

    /// The program ready to run on a device with new inputs, any number of times: planned and fused, as one CUDA graph on
    /// a GPU. Parameters are read where they are, so that every run sees their current values. On a device of other
    /// numbers it runs step by step.
    #[track_caller]
    pub fn compile(&self, device: &Device) -> Result<Function> {
        self.compile_with(device, Passes::all())
    }

    /// As [`Graph::compile`], with some passes switched off; the bits are the same.
    #[track_caller]
    pub fn compile_with(&self, device: &Device, passes: Passes) -> Result<Function> {
        self.compile_within(device, passes, None)
    }

    /// As [`Graph::compile_with`], in memory that is there already, if it is enough: every run overwrites it.
    #[doc(hidden)]
    #[track_caller]
    pub fn compile_within(
        &self,
        device: &Device,
        passes: Passes,
        within: Option<&Buffer>,
    ) -> Result<Function> {
        let graph = self.on_device(device)?;
        let (device, within) = (device.clone(), within.cloned());
        let mut function =
            Function { graph, device, passes, within, compiled: None, moves: 0, random_calls: 0 };
        function.prepare()?;
        Ok(function)
    }
}

#[track_caller]
fn replay<T: Scalar>(session: &Session, graph: &Graph, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
    session.replay(graph, &given(session, inputs)?)?.into_iter().map(Var::to_any).collect()
}

/// Inputs as values of a session.
#[track_caller]
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
    #[track_caller]
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
        let compiled = Compiled::new(&self.device, graph, graph.outputs(), Vec::new(), self.passes, within)?;
        self.compiled = Some(compiled);
        self.moves = moves;
        Ok(())
    }

    /// The device it runs on.
    #[doc(hidden)]
    pub fn device(&self) -> &Device {
        &self.device
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
    #[track_caller]
    pub fn call<T: Scalar>(&mut self, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        self.prepare()?;
        let calls = self.random_calls;
        let results = match &self.compiled {
            Some(compiled) => self.compiled_call(compiled, inputs).located()?,
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
    #[track_caller]
    pub fn call_on(&mut self, inputs: &[&AnyBuffer]) -> Result<Vec<AnyBuffer>> {
        self.prepare()?;
        self.graph.check_inputs(inputs.iter().map(|x| x.meta())).located()?;
        let calls = self.random_calls;
        let results = match &self.compiled {
            Some(compiled) => {
                inputs.iter().enumerate().try_for_each(|(i, x)| compiled.copy_input(i, x)).located()?;
                compiled.run(calls)?;
                (0..self.graph.outputs().len())
                    .map(|i| compiled.copy_output(i))
                    .collect::<Result<Vec<_>>>()?
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

    #[track_caller]
    fn compiled_call<T: Scalar>(
        &self,
        compiled: &Compiled,
        inputs: &[AnyTensor<T>],
    ) -> Result<Vec<AnyTensor<T>>> {
        self.graph.check_inputs(inputs.iter().map(AnyTensor::meta))?;
        for (i, x) in inputs.iter().enumerate() {
            match x {
                AnyTensor::Num(t) => compiled.set_input(i, x.meta(), &to_words(t.data())?)?,
                AnyTensor::Idx(t) => compiled.set_input(i, x.meta(), bytemuck::cast_slice(t.data()))?,
            }
        }
        compiled.run(self.random_calls)?;
        let output = |(i, v): (usize, &Val)| {
            let (words, meta) = (compiled.output(i)?, self.graph.meta(*v));
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
        self.graph.outputs().iter().enumerate().map(output).collect()
    }
}

/// The program of a function, and what it assigns to parameters.
#[track_caller]
fn traced<F>(device: &Device, seed: u64, inputs: &[Meta], f: F) -> Result<(Graph, Vec<(Param, Val)>)>
where
    F: for<'s> FnOnce(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
{
    let session = Session::trace(device, seed);
    let vars = inputs.iter().map(|m| session.placeholder(*m)).collect::<Result<Vec<_>>>()?;
    let returned = with_inputs("trace", vars.len(), || f(&session, &vars))?;
    let outputs = returned.into_iter().map(|v| session.val("trace", v)).collect::<Result<Vec<_>>>()?;
    let assigned = session.take_assigned();
    let mut graph = session.into_graph()?;
    graph.set_outputs(&outputs)?;
    Ok((graph, assigned))
}
