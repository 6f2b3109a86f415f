//! Steps in shards, op by op.

use super::{Carried, Shards};
use crate::graph::{Compiled, Passes};
use crate::optim::{KeptState, Optimizer, OptimizerState};
use crate::params::{Param, Params};
use crate::session::{Session, Var};
use dittograd_comm::World;
use dittograd_device::{AnyBuffer, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Located, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};

/// The loss of inputs.
pub type Loss<'a> = dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>> + 'a;

/// Training steps in shards that run op by op: the bits of a [`TrainStep`](crate::compiled::TrainStep).
pub struct EagerShards {
    session: Session,
    optimizer: Optimizer,
    shards: Shards,
    /// For shards of these shapes, what several processes carry on from shard to shard.
    carried: Option<(Vec<Meta>, Option<Contributions>)>,
}

/// What shards contribute to the assignments of a step, computed apart from the step.
struct Contributions {
    carried: Carried,
    program: Compiled,
}

impl EagerShards {
    /// Steps of `count` shards, shared by the processes of `world`. Random streams start from `seed`.
    #[track_caller]
    pub fn new(
        params: &Params,
        optimizer: Optimizer,
        seed: u64,
        count: usize,
        world: Option<World>,
    ) -> Result<EagerShards> {
        let shards = Shards::new(params.device(), count, world)?;
        let session = Session::eager_seeded(params.device(), seed);
        Ok(EagerShards { session, optimizer, shards, carried: None })
    }

    /// The session it runs in.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The shards.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The optimizer, after the last step.
    pub fn into_optimizer(self) -> Optimizer {
        self.optimizer
    }

    /// The norms of gradients can be read with [`EagerShards::gradient_norms`] from now on.
    pub fn keep_gradient_norms(&mut self) {
        self.shards.keep_totals(true);
    }

    /// As [`TrainStep::gradient_norms`](crate::compiled::TrainStep::gradient_norms).
    #[track_caller]
    pub fn gradient_norms(&self) -> Result<Vec<(String, f32)>> {
        self.shards.norms()
    }

    /// As [`TrainStep::go_back`](crate::compiled::TrainStep::go_back).
    #[track_caller]
    pub fn go_back(&mut self, params: &Params, kept: &KeptState, random_calls: u64) -> Result<()> {
        self.session.set_random_calls(random_calls);
        self.optimizer.go_back(params, kept)
    }

    /// As [`TrainStep::state`](crate::compiled::TrainStep::state).
    #[track_caller]
    pub fn state(&self) -> Result<OptimizerState> {
        self.shards.state(&self.optimizer)
    }

    /// Continues from a saved state, as [`Optimizer::load_state`].
    #[track_caller]
    pub fn load_state(&mut self, params: &Params, state: &OptimizerState) -> Result<()> {
        self.prepare(params)?;
        self.optimizer.load_state(params, state)
    }

    fn prepare(&mut self, params: &Params) -> Result<Vec<Param>> {
        let trained: Vec<Param> = params.iter().filter(|p| p.trainable()).cloned().collect();
        self.shards.prepare(&mut self.optimizer, &params.iter().collect::<Vec<_>>(), &trained)?;
        Ok(trained)
    }

    /// One step, on inputs with the rows of this process's shards. Each shard's loss is shown to `inspect` before its gradients are computed, and
    /// an answer ends the step there, with nothing updated. Answers the loss of the step if it is wanted, since reading it waits for the device.
    #[track_caller]
    pub fn step<T>(
        &mut self,
        params: &Params,
        loss: &Loss<'_>,
        inputs: &[AnyTensor],
        wants_loss: bool,
        mut inspect: impl FnMut(&Session) -> Result<Option<T>>,
    ) -> Result<Stepped<T>> {
        let _strict = environment::enter();
        let trained = self.prepare(params)?;
        let first = self.session.random_calls();
        let (mut losses, mut calls) = (Vec::new(), 0);
        let mine = self.shards.mine();
        for (n, shard) in mine.clone().enumerate() {
            let values = inputs.iter().map(|t| rows_of(t, n, mine.len())).collect::<Result<Vec<_>>>();
            let found =
                self.shard(shard, &trained, loss, &values.located()?, first, wants_loss, &mut inspect);
            calls = self.session.random_calls().wrapping_sub(self.shards.random_calls(first, shard));
            if !matches!(found, Ok(Stepped::Done(_))) {
                self.session.take_assigned();
                self.session.set_random_calls(first);
                self.shards.clear();
            }
            self.session.reset();
            match found? {
                Stepped::Done(value) => losses.extend(value),
                found => return Ok(found),
            }
        }
        self.carry_on(loss, inputs, first)?;
        self.optimizer.prepare(params.device(), &params.iter().collect::<Vec<_>>())?;
        self.shards.update(&mut self.optimizer, None)?;
        self.session.set_random_calls(first.wrapping_add(calls));
        if !wants_loss {
            return Ok(Stepped::Done(None));
        }
        if let Some(world) = self.shards.world() {
            losses = world.all_gather_words(&losses)?.concat();
        }
        Ok(Stepped::Done(Some(self.shards.mean(&losses)?)))
    }

    /// Computes the gradients of one shard.
    #[allow(clippy::too_many_arguments)]
    fn shard<T>(
        &mut self,
        shard: usize,
        trained: &[Param],
        loss: &Loss<'_>,
        inputs: &[AnyTensor],
        first: u64,
        wants_loss: bool,
        inspect: &mut impl FnMut(&Session) -> Result<Option<T>>,
    ) -> Result<Stepped<T>> {
        let session = &self.session;
        session.set_random_calls(self.shards.random_calls(first, shard));
        let vars = inputs.iter().map(|t| session.input_any(t)).collect::<Result<Vec<_>>>()?;
        let loss = loss(&vars)?;
        if let Some(found) = inspect(session)? {
            return Ok(Stepped::Found(found));
        }
        let value = if wants_loss { Some(loss.item()?) } else { None };
        if self.shards.world().is_some() {
            // They continue from shards of other processes.
            session.take_assigned();
        }
        let grads = loss.scale(1.0 / self.shards.count() as f64)?.backward()?;
        for (bucket, (packed, places)) in self.shards.buckets()?.into_iter().enumerate() {
            for (param, at, words) in places {
                let p = &trained[param];
                let gradient = grads.param(p).ok_or_else(|| p.unreached())?;
                let flat = Shape::new(&[words])?;
                packed.part(at, flat)?.copy_from("step", &gradient.view(flat)?)?;
            }
            self.shards.add(bucket, shard, &packed)?;
        }
        self.shards.keep(shard)?;
        Ok(Stepped::Done(value))
    }

    /// Makes the assignments of all shards, whose values several processes have.
    fn carry_on(&mut self, loss: &Loss<'_>, inputs: &[AnyTensor], calls: u64) -> Result<()> {
        let Some(world) = self.shards.world().cloned() else { return Ok(()) };
        let (device, mine) = (self.session.device().clone(), self.shards.mine());
        let shard = |t: &AnyTensor, n: usize| rows_of(t, n, mine.len());
        let of_first = inputs.iter().map(|t| Ok(shard(t, 0)?.meta())).collect::<Result<Vec<Meta>>>()?;
        if self.carried.as_ref().is_none_or(|c| c.0 != of_first) {
            let session = Session::trace(&device, self.session.seed());
            let vars = of_first.iter().map(|m| session.placeholder(*m)).collect::<Result<Vec<_>>>()?;
            let loss = session.val("step", loss(&vars)?)?;
            let assigned = session.take_assigned();
            let graph = session.into_graph()?;
            world.agree("program", &graph.hash()?)?;
            let made = match Carried::of(&device, &graph, &[loss], &assigned)? {
                Some(carried) => {
                    let program = Compiled::new(
                        &device,
                        &graph,
                        &carried.contributed,
                        Vec::new(),
                        Passes::all(),
                        None,
                    )?;
                    Some(Contributions { carried, program })
                }
                None => None,
            };
            self.carried = Some((of_first, made));
        }
        let Some((_, Some(Contributions { carried, program }))) = &self.carried else { return Ok(()) };
        let mut words: Vec<f32> = Vec::new();
        for (n, number) in mine.clone().enumerate() {
            for (i, t) in inputs.iter().enumerate() {
                let t = AnyBuffer::upload_any(&device, &shard(t, n)?)?;
                program.copy_input(i, &t)?;
            }
            program.run(self.shards.random_calls(calls, number))?;
            for i in 0..carried.contributed.len() {
                words.extend(program.output(i)?);
            }
        }
        for words in world.all_gather_words(&words)?.concat().chunks(carried.words().max(1)) {
            carried.run(&AnyBuffer::upload(&device, &Tensor::new(&[words.len()], words.to_vec())?)?)?;
        }
        Ok(())
    }
}

/// What became of a step.
pub enum Stepped<T> {
    /// It was made; its loss, if it was wanted.
    Done(Option<f32>),
    /// It was ended by what was found.
    Found(T),
}

/// The rows of part `n` of `parts` equal ones.
#[track_caller]
fn rows_of(t: &AnyTensor, n: usize, parts: usize) -> Result<AnyTensor> {
    let meta = super::of_a_shard(t.meta(), parts)?;
    if meta.shape.rank() == 0 {
        return Ok(t.clone());
    }
    let range = n * meta.shape.numel()..(n + 1) * meta.shape.numel();
    Ok(match t {
        AnyTensor::Num(t) => AnyTensor::Num(Tensor::with_shape(meta.shape, t.data()[range].to_vec())?),
        AnyTensor::Idx(t) => AnyTensor::Idx(Tensor::with_shape(meta.shape, t.data()[range].to_vec())?),
    })
}
