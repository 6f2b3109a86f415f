//! A function of sessions that is compiled for each set of input shapes it meets.

use super::Function;
use super::function::given;
use crate::graph::{Graph, Passes};
use crate::params::Traits;
use crate::session::{Session, Var};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_ops::AnyTensor;

/// Programs that are kept; with more, the one that was not used for longest goes.
pub(super) const KEPT: usize = 16;
/// Traces after which it is said that there are many.
const MANY: usize = 32;

/// A function over a session's values, compiled: it is traced when inputs of new shapes come, and each later call with
/// such shapes runs the program. Calls have the bits of running the function eagerly. Made by [`Session::compile`].
pub struct Traced<F> {
    device: Device,
    seed: u64,
    random_calls: u64,
    passes: Passes,
    f: F,
    /// Programs, the one used last at the end.
    programs: Vec<Entry>,
    traces: usize,
}

/// A program for one set of input shapes, and the parameters it reads as they were.
struct Entry {
    metas: Vec<Meta>,
    traits: Traits,
    function: Function,
}

impl<F> Traced<F>
where
    F: for<'s> Fn(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
{
    /// The function `f`, on a device.
    pub fn new(device: &Device, f: F) -> Traced<F> {
        let device = device.clone();
        Traced { device, seed: 0, random_calls: 0, passes: Passes::all(), f, programs: Vec::new(), traces: 0 }
    }

    /// The same with its random streams started from `seed`.
    pub fn seeded(mut self, seed: u64) -> Traced<F> {
        self.seed = seed;
        self.programs.clear();
        self
    }

    /// The same, compiled with these passes.
    pub fn passes(mut self, passes: Passes) -> Traced<F> {
        self.passes = passes;
        self.programs.clear();
        self
    }

    /// How often it was traced.
    pub fn traces(&self) -> usize {
        self.traces
    }

    /// Random calls so far.
    pub fn random_calls(&self) -> u64 {
        self.random_calls
    }

    /// Runs it on these inputs.
    #[track_caller]
    pub fn call<T: Scalar>(&mut self, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        self.programs.retain(|e| !e.traits.moved());
        let metas: Vec<Meta> = inputs.iter().map(AnyTensor::meta).collect();
        let fits = |e: &Entry| e.metas == metas && e.traits.same_trainable();
        let mut entry = match self.programs.iter().position(fits) {
            Some(at) => self.programs.remove(at),
            None => self.trace(metas)?,
        };
        let function = &mut entry.function;
        function.set_random_calls(self.random_calls);
        let values = function.call(inputs);
        if values.is_ok() {
            self.random_calls = self.random_calls.wrapping_add(function.graph().random_calls());
        }
        self.programs.push(entry);
        values
    }

    /// Runs it eagerly, to see the same bits step by step; random draws go on as if it had been called.
    #[track_caller]
    pub fn eager<T: Scalar>(&mut self, inputs: &[AnyTensor<T>]) -> Result<Vec<AnyTensor<T>>> {
        let session = Session::eager_seeded(&self.device, self.seed);
        session.set_random_calls(self.random_calls);
        let vars = given(&session, inputs)?;
        let values = (self.f)(&session, &vars)?.into_iter().map(Var::to_any).collect::<Result<Vec<_>>>()?;
        self.random_calls = session.random_calls();
        Ok(values)
    }

    #[track_caller]
    fn trace(&mut self, metas: Vec<Meta>) -> Result<Entry> {
        let graph = Graph::trace_seeded(&self.device, self.seed, &metas, &self.f)?;
        let traits = Traits::of(graph.parameters());
        let function = graph.compile_with(&self.device, self.passes)?;
        self.traces += 1;
        say_if_many(self.traces, &metas);
        if self.programs.len() == KEPT {
            self.programs.remove(0);
        }
        Ok(Entry { metas, traits, function })
    }
}

/// Says so, once, if a function has been traced often.
pub(super) fn say_if_many(traces: usize, metas: &[Meta]) {
    if traces == MANY {
        let shapes: Vec<String> = metas.iter().map(|m| m.shape.to_string()).collect();
        eprintln!(
            "dittograd: a compiled function has been traced {MANY} times, the last time for inputs of {}; each new set of \
             shapes is traced and compiled anew, so pad inputs to a few shapes, or run it eagerly",
            shapes.join(", ")
        );
    }
}

impl Session {
    /// The function `f` as programs on this session's device, one for each set of input shapes it meets: see [`Traced`].
    /// Random streams start from this session's seed and go on by themselves.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let mut f = session.compile(|_, x| Ok(vec![x[0].matmul(x[1])?.gelu()?]));
    /// let (a, b) = (Tensor::new(&[1, 2], vec![1.0f32, 2.0])?, Tensor::new(&[2, 1], vec![0.5f32, 0.25])?);
    /// let compiled = f.call(&[a.clone().into(), b.clone().into()])?;
    /// let eager = f.eager(&[a.into(), b.into()])?;
    /// assert_eq!(compiled[0].num()?.data(), eager[0].num()?.data());
    /// # Ok(())
    /// # }
    /// ```
    pub fn compile<F>(&self, f: F) -> Traced<F>
    where
        F: for<'s> Fn(&'s Session, &[Var<'s>]) -> Result<Vec<Var<'s>>>,
    {
        Traced::new(self.device(), f).seeded(self.seed())
    }
}
