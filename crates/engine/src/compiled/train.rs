//! A whole training step as one compiled program.

use super::traced::{KEPT, say_if_many};
use crate::effect::{self, EffectOf};
use crate::graph::{Compiled, Graph, Passes, Plan, Source};
use crate::optim::{Optimizer, OptimizerState};
use crate::params::{Param, Params, Traits};
use crate::session::{Session, Var, with_inputs};
use dittograd_device::{Buffer, DType, Device, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use dittograd_ops::Val;

/// An input of a step: numbers or indices.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// Numbers.
    Num(&'a Tensor<f32>),
    /// Labels or other indices.
    Idx(&'a Tensor<u32>),
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

impl Batch<'_> {
    fn meta(&self) -> Meta {
        match self {
            Batch::Num(t) => Meta::f32(t.shape()),
            Batch::Idx(t) => Meta::u32(t.shape()),
        }
    }

    fn words(&self) -> &[f32] {
        match self {
            Batch::Num(t) => t.data(),
            Batch::Idx(t) => bytemuck::cast_slice(t.data()),
        }
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
    /// Parts that the batch is computed in.
    parts: usize,
    programs: Vec<Entry>,
    traces: usize,
    steps: u64,
    last: Option<usize>,
    /// Moves of parameters between devices when the programs were compiled.
    moves: u64,
}

/// Values besides the loss, of a step's inputs.
type Metrics = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>>>;

/// A program for one set of input shapes, and the random calls one run of it makes.
struct Entry {
    metas: Vec<Meta>,
    /// The parameters of the step and those that the closure reads.
    traits: Traits,
    /// Those that it updates.
    trained: Vec<Param>,
    program: Compiled,
    random_calls: u64,
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
            parts: 1,
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
        f: impl for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>> + 'static,
    ) -> TrainStep<F> {
        self.metrics = Some(Box::new(f));
        self.forget();
        self
    }

    /// Gradient accumulation: the same step, which computes the loss of a batch as the mean over `parts` equal parts of its rows, one
    /// after the other, and so needs the memory of one. See [`Session::accumulate`].
    pub fn accumulate(mut self, parts: usize) -> TrainStep<F> {
        self.parts = parts;
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

    /// The optimizer's state, to be saved. Waits for the device.
    #[track_caller]
    pub fn state<T: Scalar>(&self) -> Result<OptimizerState<T>> {
        self.optimizer.state()
    }

    /// Continues from a saved state, as [`Optimizer::load_state`].
    #[track_caller]
    pub fn load_state<T: Scalar>(&mut self, state: &OptimizerState<T>) -> Result<()> {
        self.follow();
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

    /// Forgets the programs if parameters were moved since: they would work on the old memory.
    fn follow(&mut self) {
        let moves = self.params.iter().map(Param::moves).sum();
        let moved = std::mem::replace(&mut self.moves, moves) != moves;
        if moved && let Some(p) = self.params.first() {
            self.device = p.buffer().buffer().device().clone();
        }
        if moved || self.programs.iter().any(|e| e.traits.moved()) {
            self.forget();
        }
    }

    /// Forgets the programs, which were made for other settings.
    fn forget(&mut self) {
        (self.programs, self.last) = (Vec::new(), None);
    }

    #[track_caller]
    fn compile(&mut self, metas: &[Meta]) -> Result<Entry> {
        let session = Session::trace(&self.device, self.seed);
        let vars = metas.iter().map(|m| session.placeholder(*m)).collect::<Result<Vec<_>>>()?;
        let loss = || session.accumulate(self.parts, &vars, &self.f);
        let loss = session.val("step", with_inputs("step", vars.len(), loss)?)?;
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
        let grads = graph.gradients(loss, &wrt)?;
        let trained: Vec<Param> = leaves.into_iter().map(|l| l.0).collect();
        let mut items = Vec::new();
        for (p, g) in trained.iter().zip(grads) {
            items.push((p, g.ok_or_else(|| p.unreached())?));
        }
        let prepared = self.optimizer.prepare(&self.device, &self.params.iter().collect::<Vec<_>>())?;
        let program = self.program(graph, &outputs, items, assigned);
        match program {
            Ok(program) => {
                let (metas, used) = (metas.to_vec(), self.steps);
                Ok(Entry { metas, traits, trained, program, random_calls, used, torn: false, ran: false })
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
        let (update, inputs) = optimizer.update(&mut graph, &items, &states)?;
        let mut effects = vec![EffectOf { effect: Box::new(update), inputs }];
        effects.extend(assigned.into_iter().map(|(p, v)| effect::assign(p, v)));
        Compiled::new(&self.device, &graph, outputs, effects, self.passes, None)
    }

    /// One step on these inputs. On an error nothing was updated.
    #[track_caller]
    pub fn run(&mut self, inputs: &[Batch<'_>]) -> Result<()> {
        self.follow();
        let fits = |e: &Entry| e.metas.iter().copied().eq(inputs.iter().map(Batch::meta));
        let at = match self.programs.iter().position(|e| fits(e) && e.traits.same_trainable()) {
            Some(at) => at,
            None => {
                let metas: Vec<Meta> = inputs.iter().map(Batch::meta).collect();
                let entry = self.compile(&metas).located()?;
                self.traces += 1;
                say_if_many(self.traces, &metas);
                self.keep(entry)
            }
        };
        self.programs[at].torn = true;
        for (i, b) in inputs.iter().enumerate() {
            self.programs[at].program.set_input(i, b.meta(), b.words()).located()?;
        }
        self.programs[at].torn = false;
        self.last = Some(at);
        self.again()
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
        let calls = entry.random_calls;
        let at = self.last.unwrap_or(0);
        self.steps += 1;
        let entry = &mut self.programs[at];
        entry.used = self.steps;
        entry.ran = false;
        self.optimizer.begin(entry.trained.iter())?;
        if let Err(error) = entry.program.run(self.random_calls) {
            self.optimizer.unbegin(entry.trained.iter());
            return Err(error);
        }
        entry.ran = true;
        self.random_calls = self.random_calls.wrapping_add(calls);
        self.device.end_step();
        Ok(())
    }

    #[track_caller]
    fn entry(&self) -> Result<&Entry> {
        self.last.and_then(|at| self.programs.get(at)).ok_or_else(|| {
            Error::argument("step", "order", "no step has been run yet; call run with inputs first")
        })
    }

    /// The words of an output of the last step, which must be of this type.
    #[track_caller]
    fn output(&self, i: usize, want: DType, how: &str) -> Result<(Shape, Vec<f32>)> {
        let entry = self.entry()?;
        let meta = entry.program.output_meta(i)?;
        if meta.dtype != want {
            let why = format!("it is of type {}; read it with {how}", meta.dtype.name());
            return Err(Error::argument("step", "metric", why));
        }
        if !entry.ran {
            self.device.check_alive()?;
            return Err(Error::argument(
                "step",
                "order",
                "the last step failed, so it has no values; run it again",
            ));
        }
        Ok((meta.shape, entry.program.output(i)?))
    }

    /// The number of metric `i` among the outputs.
    #[track_caller]
    fn metric_at(&self, i: usize) -> Result<usize> {
        let metrics = self.entry()?.program.outputs() - 1;
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
