//! Optimizers. A rule is one formula over [`Real`](dittograd_numerics::scalar::Real): the CPU loop, the CUDA kernel and the update in any
//! other number type are read off it. All parameters are updated in place, on the device, in one launch per 32 of
//! them; learning rates and bias corrections are formed in f64, rounded once, and reach the kernel through a small
//! buffer, so that a captured program sees new ones every step.

mod clip;
mod group;
pub(crate) mod host;
mod kept;
mod kernel;
pub mod rules;
mod schedule;
mod state;
mod update;

pub use group::Group;
#[doc(hidden)]
pub use kept::{KeptState, keep_values};
pub use rules::Rule;
pub use schedule::Schedule;
pub use state::{OptimizerState, ParamState};

pub(crate) use rules::{Element, HYPERS, Kind};

use crate::effect::{Effect, HostValue};
use crate::gradients::Grads;
use crate::params::{Param, Params};
use dittograd_device::bundle::{Bundle, write};
use dittograd_device::cuda::Source;
use dittograd_device::{AnyBuffer, Backend, Buffer, Device};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{DeviceRecorder, Val};
use group::Options;
use std::collections::BTreeMap;
use std::ops::Range;

/// An optimizer with its state, which is kept by parameter: it follows a parameter to another device, and does not
/// depend on the order of parameters or on which of them are frozen.
///
/// ```
/// use dittograd::optim::{Group, Optimizer, Schedule};
/// let optimizer = Optimizer::adamw(1e-3)
///     .group(Group::matching(|p| p.shape().rank() < 2).weight_decay(0.0))
///     .schedule(Schedule::cosine(10_000, 1e-5).warmup(100, 0.01))
///     .clip_norm(1.0);
/// assert_eq!(optimizer.lr(), 1e-5);
/// ```
pub struct Optimizer {
    options: Options,
    groups: Vec<Group>,
    schedule: Schedule,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    step: u64,
    entries: BTreeMap<u64, Entry>,
    /// The scalars of each parameter's last step, in the order of their rows.
    hypers: Vec<[f64; HYPERS]>,
    /// The same, rounded.
    words: Vec<f32>,
    /// The scalars on the device, rounded.
    buffer: Option<Buffer>,
}

/// What is known of a parameter.
struct Entry {
    name: String,
    group: Option<usize>,
    rule: Rule,
    kind: Kind,
    /// Updates so far.
    step: u64,
    row: usize,
    /// The elements that this process updates, if they are not all.
    part: Option<Range<usize>>,
    /// States of these elements.
    states: Vec<AnyBuffer>,
}

/// Memory that [`Optimizer::prepare`] made: the states of these parameters, and perhaps the buffer of scalars.
pub(crate) struct Prepared {
    states: Vec<u64>,
    buffer: bool,
}

impl Optimizer {
    /// Any rule.
    ///
    /// ```
    /// use dittograd::optim::{Optimizer, rules::Adam};
    /// let optimizer = Optimizer::new(Adam { beta2: 0.95, ..Adam::default() }, 3e-4);
    /// assert_eq!(optimizer.lr(), 3e-4);
    /// ```
    pub fn new(rule: impl Into<Rule>, lr: f64) -> Optimizer {
        let rule = rule.into();
        let options = Options { rule, lr, weight_decay: 0.0, decoupled: rule.decouples() };
        Optimizer {
            options,
            groups: Vec::new(),
            schedule: Schedule::constant(),
            clip_norm: None,
            clip_value: None,
            step: 0,
            entries: BTreeMap::new(),
            hypers: Vec::new(),
            words: Vec::new(),
            buffer: None,
        }
    }

    /// The same optimizer with another weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Optimizer {
        self.options.weight_decay = weight_decay;
        self
    }

    /// The same optimizer with weight decay apart from the gradient (`p <- p - lr wd p`, as AdamW), or added to it
    /// (`g + wd p`).
    pub fn decoupled(mut self, decoupled: bool) -> Optimizer {
        self.options.decoupled = decoupled;
        self
    }

    /// The same optimizer with other options for some parameters.
    pub fn group(mut self, group: Group) -> Optimizer {
        self.groups.push(group);
        self
    }

    /// The same optimizer with learning rates, also those of groups, that follow a schedule.
    pub fn schedule(mut self, schedule: Schedule) -> Optimizer {
        self.schedule = schedule;
        self
    }

    /// The same optimizer, which multiplies all gradients by `min(1, max_norm / (n + 1e-6))`, `n` being the L2 norm of all
    /// of them together. It is formed on the device.
    pub fn clip_norm(mut self, max_norm: f64) -> Optimizer {
        self.clip_norm = Some(max_norm);
        self
    }

    /// The same optimizer, which brings every element of a gradient within `limit` of zero, after
    /// [`Optimizer::clip_norm`] if both are asked for.
    pub fn clip_value(mut self, limit: f64) -> Optimizer {
        self.clip_value = Some(limit);
        self
    }

    /// The rule of parameters without a group.
    pub fn rule(&self) -> Rule {
        self.options.rule
    }

    /// The learning rate of the next step, of parameters without a group.
    pub fn lr(&self) -> f64 {
        self.schedule.lr(self.options.lr, self.step)
    }

    /// The learning rate of the next step, of a group.
    pub fn group_lr(&self, group: usize) -> Option<f64> {
        let options = self.groups.get(group)?.options(self.options);
        Some(self.schedule.lr(options.lr, self.step))
    }

    /// Sets the learning rate, which the schedule starts from, of later steps, also of compiled ones. Groups with a
    /// rate of their own keep it.
    pub fn set_lr(&mut self, lr: f64) {
        self.options.lr = lr;
    }

    /// Sets the learning rate of a group for later steps.
    #[track_caller]
    pub fn set_group_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        match self.groups.get_mut(group) {
            Some(g) => {
                g.set_own_lr(Some(lr));
                Ok(())
            }
            None => Err(Error::argument("optimizer", "group", format!("there is no group {group}"))),
        }
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The rule that updates the parameter of this name, once it has.
    #[doc(hidden)]
    pub fn rule_of(&self, param: &str) -> Option<Rule> {
        self.entries.values().find(|e| e.name == param).map(|e| e.rule)
    }

    fn options(&self, group: Option<usize>) -> Options {
        group.and_then(|g| self.groups.get(g)).map_or(self.options, |g| g.options(self.options))
    }

    #[track_caller]
    fn check(&self) -> Result<()> {
        self.options.check()?;
        self.groups.iter().try_for_each(|g| g.options(self.options).check())?;
        self.schedule.check()?;
        for (name, x) in [("clip_norm", self.clip_norm), ("clip_value", self.clip_value)] {
            if let Some(x) = x.filter(|x| !(*x > 0.0 && (*x as f32).is_finite())) {
                return Err(Error::argument("optimizer", name, format!("got {x}, use a number above 0")));
            }
        }
        Ok(())
    }

    /// Gives parameters that it has not seen yet their options.
    #[track_caller]
    fn register(&mut self, params: &[&Param]) -> Result<()> {
        self.check()?;
        if params.iter().all(|p| self.entries.contains_key(&p.id())) {
            return Ok(());
        }
        let groups = group::resolve(&self.groups, params)?;
        for (p, group) in params.iter().zip(groups) {
            let options = self.options(group);
            let (row, rule) = (self.entries.len(), options.rule.of(p.shape()));
            let kind = rule.kind(options.decoupled);
            let name = p.name().to_string();
            self.entries.entry(p.id()).or_insert(Entry {
                name,
                group,
                rule,
                kind,
                step: 0,
                row,
                part: None,
                states: Vec::new(),
            });
        }
        Ok(())
    }

    /// Makes the state of the trainable ones of `params` that have none yet, brings states to where the parameters are, and
    /// makes the buffer of scalars.
    /// Errors leave no new memory behind. Answers whose state is new, for [`Optimizer::unprepare`].
    #[track_caller]
    pub(crate) fn prepare(&mut self, device: &Device, params: &[&Param]) -> Result<Prepared> {
        self.register(params)?;
        let trainable: Vec<&Param> = params.iter().copied().filter(|p| p.trainable()).collect();
        let mut prepared = self.make_states(device, &trainable)?;
        let words = self.entries.len() * HYPERS;
        let fits = |b: &Buffer| b.len() == words && b.device().same(device);
        if !self.buffer.as_ref().is_some_and(fits) {
            match device.alloc(words) {
                Ok(buffer) => prepared.buffer = self.buffer.replace(buffer).is_none(),
                Err(error) => {
                    self.unprepare(prepared);
                    return Err(error);
                }
            }
        }
        self.hypers.resize(self.entries.len(), [0.0; HYPERS]);
        Ok(prepared)
    }

    /// Makes the states of parameters, all of them or none.
    #[track_caller]
    fn make_states(&mut self, device: &Device, params: &[&Param]) -> Result<Prepared> {
        let mut prepared = Prepared { states: Vec::new(), buffer: false };
        for p in params {
            if self.entries.get(&p.id()).is_some_and(|e| e.states.is_empty()) {
                prepared.states.push(p.id());
            }
            if let Err(error) = self.states_on(device, p) {
                self.unprepare(prepared);
                return Err(error);
            }
        }
        Ok(prepared)
    }

    /// Gives memory back that was made for a step which then could not be taken.
    pub(crate) fn unprepare(&mut self, prepared: Prepared) {
        for id in prepared.states {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.states.clear();
            }
        }
        if prepared.buffer {
            self.buffer = None;
        }
    }

    #[track_caller]
    fn states_on(&mut self, device: &Device, p: &Param) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&p.id()) else { return Ok(()) };
        if entry.states.is_empty() {
            let value = entry.rule.initial() as f32;
            let shape = match &entry.part {
                Some(part) => Shape::new(&[part.len()])?,
                None => p.shape(),
            };
            let make = |_: &&str| AnyBuffer::full(device, shape, value);
            entry.states = entry.kind.states().iter().map(make).collect::<Result<_>>()?;
        } else if !entry.states.iter().all(|s| s.buffer().device().same(device)) {
            entry.states = entry.states.iter().map(|s| s.to_device(device)).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// From now on this process updates only these elements of parameters, and has the states of no others.
    #[track_caller]
    pub(crate) fn own(&mut self, params: &[&Param], parts: Vec<(&Param, Range<usize>)>) -> Result<()> {
        self.register(params)?;
        for (p, part) in parts {
            let Some(entry) = self.entries.get_mut(&p.id()) else { continue };
            let is_whole = part.len() == p.shape().numel();
            match &entry.part {
                Some(old) if *old == part => {}
                None if is_whole => {}
                Some(_) => {
                    let what = "other parts of parameters than before";
                    return Err(Error::new("optimizer", ErrorKind::Internal { what }));
                }
                None => {
                    let shape = Shape::new(&[part.len()])?;
                    let cut = |s: &AnyBuffer| s.part(part.start, shape)?.copy();
                    entry.states = entry.states.iter().map(cut).collect::<Result<_>>()?;
                    entry.part = Some(part);
                }
            }
        }
        Ok(())
    }

    /// The same optimizer without its state, which may be of parts of parameters.
    #[doc(hidden)]
    pub fn alone(mut self) -> Optimizer {
        self.entries.clear();
        (self.hypers, self.words, self.buffer) = Default::default();
        self
    }

    /// Which elements of a parameter this process updates.
    pub(crate) fn part(&self, p: &Param) -> Range<usize> {
        let part = self.entries.get(&p.id()).and_then(|e| e.part.clone());
        part.unwrap_or(0..p.shape().numel())
    }

    /// Whether the rule of a parameter needs its whole gradient at once.
    #[track_caller]
    pub(crate) fn needs_whole(&mut self, params: &[&Param]) -> Result<Vec<bool>> {
        self.register(params)?;
        params.iter().map(|p| Ok(self.entry(p)?.kind.directed())).collect()
    }

    /// The norm that gradients are clipped to.
    pub(crate) fn max_norm(&self) -> Option<f64> {
        self.clip_norm
    }

    /// Bytes of all states on the device.
    pub fn state_bytes(&self) -> usize {
        self.entries.values().flat_map(|e| &e.states).map(|s| s.shape().numel() * 4).sum()
    }

    #[track_caller]
    fn entry(&self, p: &Param) -> Result<&Entry> {
        self.entries
            .get(&p.id())
            .ok_or_else(|| Error::new("optimizer", ErrorKind::Internal { what: "an unknown parameter" }))
    }

    #[track_caller]
    fn scalars(&self) -> Result<&Buffer> {
        self.buffer
            .as_ref()
            .ok_or_else(|| Error::new("optimizer", ErrorKind::Internal { what: "no buffer of scalars" }))
    }

    /// Counts a step of these parameters and forms its scalars, which are written now or with `later` ones.
    #[track_caller]
    pub(crate) fn begin<'a>(
        &mut self,
        params: impl Iterator<Item = &'a Param> + Clone,
        later: Option<&mut Bundle>,
    ) -> Result<()> {
        self.check()?;
        let limit = self.clip_value.unwrap_or(f64::INFINITY);
        for p in params.clone() {
            let e = self.entry(p)?;
            let options = self.options(e.group);
            let lr = self.schedule.lr(options.lr, self.step);
            // A schedule may grow a rate beyond what float32 has.
            rules::finite("lr", lr)?;
            let decay = (lr, options.weight_decay, options.decoupled);
            let row = e.row;
            self.hypers[row] = e.rule.hypers(decay, limit, e.step + 1, p.shape());
        }
        self.words.clear();
        self.words.extend(self.hypers.iter().flatten().map(|&x| x as f32));
        write("optimizer", self.scalars()?, &self.words, later)?;
        self.step += 1;
        for p in params {
            if let Some(entry) = self.entries.get_mut(&p.id()) {
                entry.step += 1;
            }
        }
        Ok(())
    }

    /// Takes the count of a step back that [`Optimizer::begin`] counted and that then did not happen.
    pub(crate) fn unbegin<'a>(&mut self, params: impl Iterator<Item = &'a Param>) {
        self.step -= 1;
        for p in params {
            if let Some(entry) = self.entries.get_mut(&p.id()) {
                entry.step -= 1;
            }
        }
    }

    /// The CUDA modules of every rule there is, by name and text.
    #[doc(hidden)]
    pub fn all_cuda_modules() -> Vec<Source> {
        Kind::all().map(kernel::module).collect()
    }

    /// One step: changes every trainable parameter in place. Errors, before anything is changed, if a
    /// trainable parameter has no gradient or memory runs out; frozen ones are left alone.
    #[track_caller]
    pub fn step(&mut self, params: &Params, grads: Grads) -> Result<()> {
        let _strict = environment::enter();
        let device = params.device();
        let mut items: Vec<(&Param, &AnyBuffer)> = Vec::new();
        for p in params.iter().filter(|p| p.trainable()) {
            let gradient = grads.param(p).ok_or_else(|| p.unreached()).located()?;
            let value = p.buffer();
            for buffer in [value.buffer(), gradient.buffer()] {
                if !device.accepts(buffer.device()) || buffer.is_released() {
                    let what = format!("parameter {}", p.name());
                    device.check_accepts(&what, buffer)?;
                    return Err(Error::new(what, ErrorKind::Released));
                }
            }
            items.push((p, gradient));
        }
        let all: Vec<&Param> = params.iter().collect();
        let prepared = self.prepare(device, &all)?;
        let trained: Vec<&Param> = items.iter().map(|i| i.0).collect();
        let result = self.update_eagerly(device, &items, None);
        match result {
            Ok(()) => trained.into_iter().for_each(Param::changed),
            Err(_) => self.unprepare(prepared),
        }
        result
    }

    /// Updates parameters, or the [parts](Optimizer::own) of them, of which everything is there. `norm` is that of all gradients, if it is known.
    /// On an error nothing was counted.
    #[track_caller]
    pub(crate) fn update_eagerly(
        &mut self,
        device: &Device,
        items: &[(&Param, &AnyBuffer)],
        norm: Option<f32>,
    ) -> Result<()> {
        let mut recorder = DeviceRecorder::new(device);
        let vals: Vec<(&Param, Val)> =
            items.iter().map(|(p, g)| (*p, recorder.input((*g).clone()))).collect();
        let states: Vec<Option<Val>> =
            items.iter().map(|(p, _)| self.direction_state(p).map(|b| recorder.input(b))).collect();
        let norm = match norm {
            Some(norm) => Some(recorder.input(AnyBuffer::full(device, Shape::SCALAR, norm)?)),
            None => None,
        };
        let (update, inputs) = self.update(&mut recorder, &vals, &states, norm)?;
        let inputs = inputs.into_iter().map(|v| recorder.value(v).cloned()).collect::<Result<Vec<_>>>()?;
        let extent = update.extent()?;
        self.begin(items.iter().map(|i| i.0), None)?;
        let run = || match device.backend() {
            Backend::Cpu(cpu) => {
                let read = |i: usize| HostValue::Buffer(inputs[i].buffer(), 0..inputs[i].shape().numel());
                update.cpu(cpu, &read)
            }
            Backend::Cuda(cuda) => {
                let addresses = inputs.iter().map(|b| b.buffer().address("optimizer"));
                update.cuda(cuda, &addresses.collect::<Result<Vec<_>>>()?)
            }
            Backend::Host(numbers) => update.host(numbers.as_ref(), &self.hypers, &inputs),
        };
        let updated = device.timed(update.name(), &[], extent, run);
        if updated.is_err() {
            self.unbegin(items.iter().map(|i| i.0));
        }
        updated
    }
}
