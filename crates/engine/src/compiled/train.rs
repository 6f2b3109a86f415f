//! A whole training step as one compiled program.

use super::shards::ShardProgram;
use super::traced::{KEPT, say_if_many};
use crate::effect::{self, EffectOf, When};
use crate::graph::{Compiled, Graph, Passes, Plan, Source};
use crate::optim::{KeptState, Optimizer, OptimizerState};
use crate::params::{Param, Params, Traits};
use crate::session::{Session, Var, with_inputs};
use crate::sharded::{Carried, Shards, norms, of_a_shard};
use dittograd_comm::World;
use dittograd_device::bundle::Bundle;
use dittograd_device::{AnyBuffer, Buffer, DType, Device, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use dittograd_ops::Val;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// An input of a step: numbers or indices.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// Numbers.
    Num(&'a Tensor<f32>),
    /// Labels or other indices.
    Idx(&'a Tensor<u32>),
    /// A value on the device of the step, from which it is copied there.
    On(&'a AnyBuffer),
}

impl<'a> From<&'a Tensor<f32>> for Batch<'a> {
    fn from(t: &'a Tensor<f32>) -> Batch<'a> {
        Batch::Num(t)
    }
}

impl<'a> From<&'a Tensor<u32>> for Batch<'a> {
    fn from(t: &'a Tensor<u32>) -> Batch<'a> {
        Batch::Idx(t)
    }
}

impl<'a> From<&'a AnyTensor> for Batch<'a> {
    fn from(t: &'a AnyTensor) -> Batch<'a> {
        match t {
            AnyTensor::Num(t) => Batch::Num(t),
            AnyTensor::Idx(t) => Batch::Idx(t),
        }
    }
}

impl<'a> From<&'a AnyBuffer> for Batch<'a> {
    fn from(value: &'a AnyBuffer) -> Batch<'a> {
        Batch::On(value)
    }
}

impl Batch<'_> {
    fn meta(&self) -> Meta {
        match self {
            Batch::Num(t) => Meta::f32(t.shape()),
            Batch::Idx(t) => Meta::u32(t.shape()),
            Batch::On(value) => value.meta(),
        }
    }

    /// The elements on the host.
    fn words(&self) -> Result<Cow<'_, [f32]>> {
        Ok(match self {
            Batch::Num(t) => Cow::Borrowed(t.data()),
            Batch::Idx(t) => Cow::Borrowed(bytemuck::cast_slice(t.data())),
            Batch::On(value) => Cow::Owned(value.buffer().download()?),
        })
    }
}

/// Forward, backward and update of one model, compiled: the closure is traced once for each set of input
/// shapes, and each run is one program; of many, those used last are kept. It gives the same bits as running the closure
/// eagerly. Parameters that were frozen, unfrozen or moved to another device since are found so: the closure is traced again.
pub struct TrainStep<F> {
    device: Device,
    params: Vec<Param>,
    optimizer: Optimizer,
    seed: u64,
    passes: Passes,
    random_calls: u64,
    f: F,
    metrics: Option<Metrics>,
    kept: Option<KeptLosses>,
    /// Whether the norms of gradients can be read.
    has_norms: bool,
    /// Shards that the batch is computed in, and the processes that share them.
    count: usize,
    world: Option<World>,
    /// Made when they are first needed.
    shards: Option<Shards>,
    programs: Vec<Entry>,
    traces: usize,
    steps: u64,
    last: Option<usize>,
    /// Moves of parameters between devices when the programs were compiled.
    moves: u64,
}

/// Values besides the loss, of a step's inputs.
type Metrics = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + Send>;

/// Losses that have not been read.
struct KeptLosses {
    /// Room for them.
    most: usize,
    /// Steps that were run since they were read.
    steps: usize,
    /// Where programs append them: a word that counts, then the losses. Made when it is first needed.
    list: Option<Buffer>,
    /// Those of steps in shards, which are read at once.
    read: Vec<f32>,
}

impl KeptLosses {
    /// The list on this device.
    #[track_caller]
    fn list(&mut self, device: &Device) -> Result<Buffer> {
        let list = match self.list.take().filter(|list| list.device().same(device)) {
            Some(list) => list,
            None => {
                self.steps = 0;
                let list = device.alloc(1 + self.most)?;
                list.write_words("losses", &vec![0.0; 1 + self.most])?;
                list
            }
        };
        Ok(self.list.insert(list).clone())
    }
}

/// Numbers for programs.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A program for one set of input shapes, and the random calls one run of it makes.
struct Entry {
    metas: Vec<Meta>,
    /// The parameters of the step and those that the closure reads.
    traits: Traits,
    /// Those that it updates.
    trained: Vec<Param>,
    program: Compiled,
    /// No other program of this process has it.
    number: u64,
    /// What else there is if the program is that of a shard.
    shard: Option<ShardProgram>,
    random_calls: u64,
    /// Outputs of the program before those that are gradients.
    values: usize,
    /// Steps that had been run when it was last used.
    used: u64,
    /// Some of its inputs are of another step than the others: giving it all of them failed.
    torn: bool,
    /// Its last run went well, so that there is something to read.
    ran: bool,
}

impl<F> TrainStep<F>
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
{
    /// A step that minimises the scalar `f` of its inputs over the trainable ones of `params`.
    pub fn new(params: &Params, optimizer: Optimizer, f: F) -> TrainStep<F> {
        TrainStep {
            device: params.device().clone(),
            params: params.iter().cloned().collect(),
            optimizer,
            seed: 0,
            passes: Passes::all(),
            random_calls: 0,
            f,
            metrics: None,
            kept: None,
            has_norms: false,
            count: 1,
            world: None,
            shards: None,
            programs: Vec::new(),
            traces: 0,
            steps: 0,
            last: None,
            moves: params.iter().map(Param::moves).sum(),
        }
    }

    /// The same step with its random streams started from `seed`.
    pub fn seeded(mut self, seed: u64) -> TrainStep<F> {
        self.seed = seed;
        self.forget();
        self
    }

    /// The same step, with values that are computed in the same program and can be read with [`TrainStep::metric`]:
    /// what the loss computes as well, random draws included, is computed once.
    pub fn metrics(
        mut self,
        f: impl for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + Send + 'static,
    ) -> TrainStep<F> {
        self.metrics = Some(Box::new(f));
        self.forget();
        self
    }

    /// The same step in shards: it cuts a batch into `count` equal parts of its rows (an input without axes goes to all), computes the loss and gradients of each by itself, and takes
    /// their mean, added up in a fixed tree. A metric is the mean over shards too. Each shard draws its own random numbers. Batch norm has the statistics of a shard, and its running
    /// averages take in one shard after the other.
    ///
    /// The number of shards is part of the program: other shards are other bits. On one process they are computed one after the
    /// other, in the memory of one: gradient accumulation. [`TrainStep::world`] shares them between processes, which changes no bit.
    #[doc(alias("accumulate", "gradient_accumulation_steps", "microbatch"))]
    pub fn shards(mut self, count: usize) -> TrainStep<F> {
        self.count = count;
        self.forget();
        self
    }

    /// The same step, whose shards the processes of `world` share. All of them make the same calls with the same inputs, and all have the same
    /// parameters after each step. Each has a part of the optimizer's state.
    #[doc(alias("distributed", "DistributedDataParallel", "ddp", "zero"))]
    pub fn world(mut self, world: &World) -> TrainStep<F> {
        self.world = Some(world.clone());
        self.forget();
        self
    }

    /// The same step, which keeps the losses of up to `most` steps until they are read with [`TrainStep::losses`]. Nothing waits for
    /// them meanwhile.
    pub fn keep_losses(mut self, most: usize) -> TrainStep<F> {
        self.kept = Some(KeptLosses { most, steps: 0, list: None, read: Vec::new() });
        self.forget();
        self
    }

    /// The same step, the norms of whose gradients can be read with [`TrainStep::gradient_norms`].
    pub fn with_gradient_norms(mut self) -> TrainStep<F> {
        self.has_norms = true;
        self.forget();
        self
    }

    /// The same step, compiled with these passes; all of them unless said otherwise. The bits are the same with any.
    pub fn passes(mut self, passes: Passes) -> TrainStep<F> {
        self.passes = passes;
        self.forget();
        self
    }

    /// The optimizer. It cannot be replaced: compiled programs write into its state.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, for steps of another kind; the programs are given up.
    #[doc(hidden)]
    pub fn into_optimizer(self) -> Optimizer {
        self.optimizer
    }

    /// Sets the learning rate of later steps.
    pub fn set_lr(&mut self, lr: f64) {
        self.optimizer.set_lr(lr);
    }

    /// Sets the learning rate of a group for later steps.
    #[track_caller]
    pub fn set_group_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        self.optimizer.set_group_lr(group, lr)
    }

    /// The optimizer's state, to be saved. Waits for the device. Of several processes all must call it, and the first gets the
    /// state; the others get one without tensors.
    #[track_caller]
    pub fn state<T: Scalar>(&self) -> Result<OptimizerState<T>> {
        match &self.shards {
            Some(shards) if shards.world().is_some() => Ok(shards.state(&self.optimizer)?.widened()),
            _ => self.optimizer.state(),
        }
    }

    /// The program of the last step, and a number that no other program has.
    pub(super) fn last(&self) -> Option<(&Compiled, u64)> {
        self.entry().ok().map(|e| (&e.program, e.number))
    }

    /// The device that it computes on.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// What was given to the last program did not arrive.
    pub(super) fn lose_inputs(&mut self) {
        if let Some(entry) = self.last.and_then(|at| self.programs.get_mut(at)) {
            entry.torn = true;
        }
    }

    /// Whether the step is computed in shards.
    pub(super) fn is_sharded(&self) -> bool {
        self.count != 1 || self.world.as_ref().is_some_and(|w| w.size() > 1)
    }

    /// The shards that this process computes; one of one unless [`TrainStep::shards`] was called.
    #[track_caller]
    pub fn my_shards(&mut self) -> Result<Range<usize>> {
        Ok(self.sharded()?.mine())
    }

    #[track_caller]
    fn sharded(&mut self) -> Result<&mut Shards> {
        let shards = match self.shards.take() {
            Some(shards) => shards,
            None => Shards::new(&self.device, self.count, self.world.clone())?,
        };
        let shards = self.shards.insert(shards);
        shards.keep_totals(self.has_norms);
        Ok(shards)
    }

    /// Makes memory for the gradients of shards.
    #[track_caller]
    fn prepare_shards(&mut self, trained: &[Param]) -> Result<()> {
        self.sharded()?;
        let all: Vec<&Param> = self.params.iter().collect();
        match &mut self.shards {
            Some(shards) => shards.prepare(&mut self.optimizer, &all, trained),
            None => Ok(()),
        }
    }

    /// Continues from a saved state, as [`Optimizer::load_state`].
    #[track_caller]
    pub fn load_state<T: Scalar>(&mut self, state: &OptimizerState<T>) -> Result<()> {
        self.follow();
        if self.is_sharded() {
            let trained: Vec<Param> = self.params.iter().filter(|p| p.trainable()).cloned().collect();
            self.prepare_shards(&trained)?;
        }
        self.optimizer.load(&self.device, &self.params.iter().collect::<Vec<_>>(), state)
    }

    /// Where its random streams start.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random calls so far.
    pub fn random_calls(&self) -> u64 {
        self.random_calls
    }

    /// Continues the random stream at a given call, as after a resume.
    pub fn set_random_calls(&mut self, calls: u64) {
        self.random_calls = calls;
    }

    /// Goes back to a state that was kept of this step's optimizer or a twin of it.
    #[doc(hidden)]
    #[track_caller]
    pub fn go_back(&mut self, params: &Params, kept: &KeptState, random_calls: u64) -> Result<()> {
        self.random_calls = random_calls;
        self.optimizer.go_back(params, kept)
    }

    /// Forgets the programs if parameters were moved since: they would work on the old memory.
    fn follow(&mut self) {
        let moves = self.params.iter().map(Param::moves).sum();
        let moved = std::mem::replace(&mut self.moves, moves) != moves;
        if moved && let Some(p) = self.params.first() {
            self.device = p.buffer().buffer().device().clone();
            self.shards = None;
        }
        if moved || self.programs.iter().any(|e| e.traits.moved()) {
            self.forget();
        }
    }

    /// Forgets the programs, which were made for other settings.
    fn forget(&mut self) {
        (self.programs, self.last) = (Vec::new(), None);
        self.shards = self.shards.take().filter(|s| s.count() == self.count);
    }

    #[track_caller]
    fn compile(&mut self, metas: &[Meta]) -> Result<Entry> {
        let session = Session::trace(&self.device, self.seed);
        let vars = metas.iter().map(|m| session.placeholder(*m)).collect::<Result<Vec<_>>>()?;
        let loss = with_inputs("step", vars.len(), || (self.f)(&vars))?;
        let is_sharded = self.is_sharded();
        // A shard's part of the mean, which gradients are of.
        let share = match is_sharded {
            true => session.val("step", loss.scale(1.0 / self.count as f64)?)?,
            false => session.val("step", loss)?,
        };
        let loss = session.val("step", loss)?;
        let mut leaves = Vec::new();
        for p in self.params.iter().filter(|p| p.trainable()) {
            leaves.push((p.clone(), Val(session.param(p)?.id() as u32)));
        }
        let random_calls = session.random_calls();
        let assigned = session.take_assigned();
        let mut outputs = vec![loss];
        if let Some(metrics) = &self.metrics {
            // The draws of the loss, again: equal draws are one.
            session.seek_random(0);
            for v in metrics(&vars)? {
                outputs.push(session.val("metric", v)?);
            }
            // What the loss assigned counts once.
            let is_known = |p: &Param| assigned.iter().any(|(q, _)| q.id() == p.id());
            if let Some((p, _)) = session.take_assigned().iter().find(|(p, _)| !is_known(p)) {
                let what = format!(
                    "the metrics assign to parameter {}, which the loss does not; assign to it in the loss",
                    p.name()
                );
                return Err(Error::unsupported("metric", what));
            }
        }
        let mut graph = session.into_graph()?;
        if self.params.is_empty() && graph.parameters().next().is_some() {
            let why =
                "there are no parameters to train; give the step the Params that the model was made with";
            return Err(Error::argument("step", "params", why));
        }
        let traits = Traits::of(self.params.iter().chain(graph.parameters()));
        let wrt: Vec<Val> = leaves.iter().map(|l| l.1).collect();
        let carried = match is_sharded {
            true => Carried::of(&self.device, &graph, &outputs, &assigned)?,
            false => None,
        };
        let hash = if is_sharded && self.world.is_some() { graph.hash()? } else { String::new() };
        let grads = graph.gradients(share, &wrt)?;
        let trained: Vec<Param> = leaves.into_iter().map(|l| l.0).collect();
        let mut items = Vec::new();
        for (p, g) in trained.iter().zip(grads) {
            items.push((p, g.ok_or_else(|| p.unreached())?));
        }
        let values = outputs.len();
        if self.has_norms && !is_sharded {
            outputs.extend(items.iter().map(|i| i.1));
        }
        if is_sharded {
            self.prepare_shards(&trained)?;
            if let Some(world) = self.shards.as_ref().and_then(Shards::world) {
                world.agree("program", &format!("{hash} in {} shards", self.count))?;
            }
        }
        if let (Some(kept), false) = (&mut self.kept, is_sharded) {
            kept.list(&self.device)?;
        }
        let prepared = self.optimizer.prepare(&self.device, &self.params.iter().collect::<Vec<_>>())?;
        let made = match &self.shards {
            Some(shards) if is_sharded => {
                ShardProgram::new(shards, &self.device, &graph, &outputs, &items, carried, self.passes)
                    .map(|(program, shard)| (program, Some(shard)))
            }
            _ => self.program(graph, &outputs, items, assigned).map(|program| (program, None)),
        };
        match made {
            Ok((program, shard)) => {
                let (metas, used) = (metas.to_vec(), self.steps);
                Ok(Entry {
                    metas,
                    traits,
                    trained,
                    program,
                    number: NUMBERS.fetch_add(1, Ordering::Relaxed),
                    shard,
                    random_calls,
                    values,
                    used,
                    torn: false,
                    ran: false,
                })
            }
            Err(error) => {
                self.optimizer.unprepare(prepared);
                Err(error)
            }
        }
    }

    /// Compiles the recorded values, the parameters' gradients and their update.
    #[track_caller]
    fn program(
        &self,
        mut graph: Graph,
        outputs: &[Val],
        items: Vec<(&Param, Val)>,
        assigned: Vec<(Param, Val)>,
    ) -> Result<Compiled> {
        let optimizer = &self.optimizer;
        let mut leaf = |b| Val(graph.leaf(Source::State(b), false) as u32);
        let states: Vec<Option<Val>> =
            items.iter().map(|i| optimizer.direction_state(i.0).map(&mut leaf)).collect();
        let (update, inputs) = optimizer.update(&mut graph, &items, &states, None)?;
        let mut effects = vec![EffectOf { effect: Box::new(update), inputs, when: When::Last }];
        effects.extend(assigned.into_iter().map(|(p, v)| effect::assign(p, v)));
        let list = self.kept.as_ref().and_then(|kept| kept.list.clone());
        effects.extend(list.map(|list| effect::append(list, outputs[0])));
        Compiled::new(&self.device, &graph, outputs, effects, self.passes, None)
    }

    /// One step on these inputs. On an error nothing was updated.
    #[track_caller]
    pub fn run(&mut self, inputs: &[Batch<'_>]) -> Result<()> {
        let there = self.is_sharded().then_some(0..self.count);
        self.run_with(inputs, there)
    }

    /// As [`TrainStep::run`], with the rows of [this process's shards](TrainStep::my_shards) only.
    #[track_caller]
    pub fn run_mine(&mut self, inputs: &[Batch<'_>]) -> Result<()> {
        let there = if self.is_sharded() { Some(self.my_shards()?) } else { None };
        self.run_with(inputs, there)
    }

    /// One step on inputs that have the rows of the shards that are `there`.
    #[track_caller]
    fn run_with(&mut self, inputs: &[Batch<'_>], there: Option<Range<usize>>) -> Result<()> {
        self.give(inputs, there, None)?;
        self.again()
    }

    /// Gives the program for these inputs their values, now or with `later` writes. It is that of the next step.
    #[track_caller]
    pub(super) fn give(
        &mut self,
        inputs: &[Batch<'_>],
        there: Option<Range<usize>>,
        mut later: Option<&mut Bundle>,
    ) -> Result<()> {
        self.follow();
        if there.is_some() {
            self.sharded()?;
        }
        let meta = |b: &Batch<'_>| match &there {
            Some(there) => of_a_shard(b.meta(), there.len()),
            None => Ok(b.meta()),
        };
        let fits = |e: &Entry| {
            let same = |(m, b): (&Meta, &Batch<'_>)| meta(b).is_ok_and(|b| b == *m);
            e.metas.len() == inputs.len() && e.metas.iter().zip(inputs).all(same)
        };
        let at = match self.programs.iter().position(|e| fits(e) && e.traits.same_trainable()) {
            Some(at) => at,
            None => {
                let metas = inputs.iter().map(meta).collect::<Result<Vec<_>>>().located()?;
                let entry = self.compile(&metas).located()?;
                self.traces += 1;
                say_if_many(self.traces, &metas);
                self.keep(entry)
            }
        };
        let entry = &mut self.programs[at];
        entry.torn = true;
        for (i, b) in inputs.iter().enumerate() {
            match (&mut entry.shard, &self.shards, &there, b) {
                (Some(shard), Some(shards), Some(there), _) => {
                    let words = b.words().located()?;
                    let words = (&*words, there.start);
                    shard.hold(&entry.program, i, entry.metas[i], words, shards.mine()).located()?;
                }
                (_, _, _, Batch::On(value)) => entry.program.copy_input(i, value).located()?,
                _ => {
                    let words = b.words().located()?;
                    entry.program.give_input(i, b.meta(), &words, later.as_deref_mut()).located()?;
                }
            }
        }
        entry.torn = false;
        self.last = Some(at);
        Ok(())
    }

    /// Takes a program in, for the one that was not used for longest if there are many. The last step's stays.
    fn keep(&mut self, entry: Entry) -> usize {
        let used = |i: &usize| (self.last == Some(*i), self.programs[*i].used);
        let oldest = (0..self.programs.len()).min_by_key(used).filter(|_| self.programs.len() == KEPT);
        match oldest {
            Some(at) => {
                self.programs[at] = entry;
                at
            }
            None => {
                self.programs.push(entry);
                self.programs.len() - 1
            }
        }
    }

    /// One more step on the inputs of the last one, which are still on the device.
    #[track_caller]
    pub fn again(&mut self) -> Result<()> {
        let _strict = environment::enter();
        if !self.is_sharded() {
            self.begin(None)?;
            let ran = self.entry()?.program.launch();
            return self.end(ran);
        }
        let at = self.ready()?;
        let entry = &mut self.programs[at];
        if let (Some(shard), Some(shards)) = (&entry.shard, &mut self.shards)
            && let Err(error) = shard.run(&entry.program, shards, &mut self.optimizer, self.random_calls)
        {
            shards.clear();
            return Err(error);
        }
        self.count_step(at);
        let loss = if self.kept.is_some() { Some(self.loss()?) } else { None };
        if let Some(kept) = &mut self.kept {
            kept.read.extend(loss);
        }
        Ok(())
    }

    /// The program of the last step, whose inputs are all there, for one more step.
    #[track_caller]
    fn ready(&mut self) -> Result<usize> {
        self.follow();
        let entry = self.entry()?;
        if !entry.traits.same_trainable() {
            let why = "parameters were frozen or unfrozen since the last step; call run with inputs";
            return Err(Error::argument("step", "order", why));
        }
        if entry.torn {
            self.device.check_alive()?;
            let why = "a run with other inputs failed, which are there in part; call run with inputs";
            return Err(Error::argument("step", "order", why));
        }
        let at = self.last.unwrap_or(0);
        self.steps += 1;
        let entry = &mut self.programs[at];
        (entry.used, entry.ran) = (self.steps, false);
        Ok(at)
    }

    /// Begins a step that is not in shards: everything but the run of the program. What the program reads is written now, or with
    /// `later` writes.
    #[track_caller]
    pub(super) fn begin(&mut self, mut later: Option<&mut Bundle>) -> Result<()> {
        let at = self.ready()?;
        let entry = &self.programs[at];
        self.optimizer.begin(entry.trained.iter(), later.as_deref_mut())?;
        if let Err(error) = entry.program.begin(self.random_calls, later) {
            self.optimizer.unbegin(entry.trained.iter());
            return Err(error);
        }
        Ok(())
    }

    /// Ends a step that has begun, with the result of running the program.
    #[track_caller]
    pub(super) fn end(&mut self, ran: Result<()>) -> Result<()> {
        let at = self.last.unwrap_or(0);
        match &ran {
            Ok(()) => self.count_step(at),
            Err(_) => self.optimizer.unbegin(self.programs[at].trained.iter()),
        }
        ran
    }

    /// Counts a step that was made.
    fn count_step(&mut self, at: usize) {
        let entry = &mut self.programs[at];
        entry.ran = true;
        self.random_calls = self.random_calls.wrapping_add(entry.random_calls);
        self.device.end_step();
        if let Some(kept) = &mut self.kept {
            kept.steps += 1;
        }
    }

    #[track_caller]
    fn entry(&self) -> Result<&Entry> {
        self.last.and_then(|at| self.programs.get(at)).ok_or_else(|| {
            Error::argument("step", "order", "no step has been run yet; call run with inputs first")
        })
    }

    /// The program of the last step, which must have gone well.
    #[track_caller]
    fn ran(&self) -> Result<&Entry> {
        let entry = self.entry()?;
        if entry.ran {
            return Ok(entry);
        }
        self.device.check_alive()?;
        Err(Error::argument("step", "order", "the last step failed, so it has no values; run it again"))
    }

    /// The words of an output of the last step, which must be of this type.
    #[track_caller]
    fn output(&self, i: usize, want: DType, how: &str) -> Result<(Shape, Vec<f32>)> {
        let entry = self.entry()?;
        let meta = match &entry.shard {
            Some(shard) => shard.outputs[i],
            None => entry.program.output_meta(i)?,
        };
        if meta.dtype != want {
            let why = format!("it is of type {}; read it with {how}", meta.dtype.name());
            return Err(Error::argument("step", "metric", why));
        }
        self.ran()?;
        match (&entry.shard, &self.shards) {
            (Some(shard), Some(shards)) => Ok((meta.shape, shard.mean(shards, i)?)),
            _ => Ok((meta.shape, entry.program.output(i)?)),
        }
    }

    /// The number of metric `i` among the outputs.
    #[track_caller]
    fn metric_at(&self, i: usize) -> Result<usize> {
        let entry = self.entry()?;
        let metrics = entry.values - 1;
        if i < metrics {
            return Ok(i + 1);
        }
        Err(Error::argument("step", "metric", format!("there is no metric {i}, the step has {metrics}")))
    }

    /// The loss of the last step. Waits for the device.
    #[track_caller]
    pub fn loss(&self) -> Result<f32> {
        let (_, words) = self.output(0, DType::F32, "metric_indices")?;
        words
            .first()
            .copied()
            .ok_or_else(|| Error::new("step", ErrorKind::Internal { what: "an empty loss" }))
    }

    /// The losses of all steps since this was last called, which must be [kept](TrainStep::keep_losses). Waits for the device once.
    #[track_caller]
    pub fn losses(&mut self) -> Result<Vec<f32>> {
        let words = match self.kept_list() {
            Some(list) => {
                let words = list.download()?;
                list.part(0, 1)?.write_words("losses", &[0.0])?;
                words
            }
            None => Vec::new(),
        };
        self.take_losses(&words)
    }

    /// Where losses are kept on the device.
    fn kept_list(&self) -> Option<&Buffer> {
        self.kept.as_ref().and_then(|kept| kept.list.as_ref()).filter(|_| !self.is_sharded())
    }

    /// Where the losses of [`TrainStep::unread_losses`] are on a GPU, and whether they are a list, which becomes empty when it is read.
    pub(super) fn losses_on_gpu(&self) -> Option<(Buffer, bool)> {
        let entry = self.entry().ok().filter(|e| e.ran && e.shard.is_none() && self.device.is_cuda())?;
        match &self.kept {
            Some(_) => Some((self.kept_list()?.clone(), true)),
            None => Some((entry.program.output_buffer(0).ok()?, false)),
        }
    }

    /// The losses that are [kept](TrainStep::keep_losses), else the last one. `words` are what was read of them on a GPU.
    #[doc(hidden)]
    #[track_caller]
    pub fn unread_losses(&mut self, words: Option<Vec<f32>>) -> Result<Vec<f32>> {
        match (words, &self.kept) {
            (Some(words), Some(_)) => self.take_losses(&words),
            (Some(words), None) => Ok(words),
            (None, Some(_)) => self.losses(),
            (None, None) => self.loss().map(|loss| vec![loss]),
        }
    }

    /// The losses that are kept, of which `words` were read from their list.
    #[track_caller]
    fn take_losses(&mut self, words: &[f32]) -> Result<Vec<f32>> {
        let Some(kept) = &mut self.kept else {
            return Err(Error::argument("step", "losses", "they are not kept; call keep_losses first"));
        };
        let steps = std::mem::take(&mut kept.steps);
        let mut losses = std::mem::take(&mut kept.read);
        if let Some((count, words)) = words.split_first() {
            losses.extend(words.iter().take(count.to_bits() as usize));
        }
        if losses.len() == steps {
            return Ok(losses);
        }
        let why =
            format!("{steps} steps were run since, and {} losses were kept; read them earlier", losses.len());
        Err(Error::argument("step", "losses", why))
    }

    /// Metric `i` of the last step, which holds numbers; for one of indices see [`TrainStep::metric_indices`]. Waits for the
    /// device.
    #[track_caller]
    pub fn metric(&self, i: usize) -> Result<Tensor<f32>> {
        let (shape, words) = self.output(self.metric_at(i)?, DType::F32, "metric_indices")?;
        Tensor::with_shape(shape, words)
    }

    /// Metric `i` of the last step, which holds indices, such as those of `argmax`. Waits for the device.
    #[track_caller]
    pub fn metric_indices(&self, i: usize) -> Result<Tensor<u32>> {
        let (shape, words) = self.output(self.metric_at(i)?, DType::U32, "metric")?;
        Tensor::with_shape(shape, words.into_iter().map(f32::to_bits).collect())
    }

    /// The L2 norm of the gradient of each parameter in the last step, by its name, before gradients are clipped. The step must have been
    /// made [for it](TrainStep::with_gradient_norms). Waits for the device. Of several processes all must call it.
    #[track_caller]
    pub fn gradient_norms(&self) -> Result<Vec<(String, f32)>> {
        if !self.has_norms {
            let why = "they cannot be read; call with_gradient_norms first";
            return Err(Error::argument("step", "gradient_norms", why));
        }
        let entry = self.ran()?;
        if let (Some(_), Some(shards)) = (&entry.shard, &self.shards) {
            return shards.norms();
        }
        let gradient = |i: usize| {
            let i = entry.values + i;
            AnyBuffer::new(entry.program.output_buffer(i)?, entry.program.output_meta(i)?)
        };
        let gradients = (0..entry.trained.len()).map(gradient).collect::<Result<Vec<_>>>()?;
        let names = entry.trained.iter().map(|p| p.name().to_string());
        Ok(names.zip(norms(&self.device, &gradients)?).collect())
    }

    /// The program of the last step, printed.
    #[track_caller]
    pub fn text(&self) -> Result<&str> {
        Ok(self.entry()?.program.text())
    }

    /// The memory that the program of the last step computes in. Between steps anybody may use it who does not read the
    /// loss or the metrics afterwards.
    #[doc(hidden)]
    pub fn arena(&self) -> Option<&Buffer> {
        self.entry().ok().map(|e| e.program.arena())
    }

    /// Sizes of the program of the last step.
    #[track_caller]
    pub fn plan(&self) -> Result<Plan> {
        Ok(self.entry()?.program.plan())
    }
}
