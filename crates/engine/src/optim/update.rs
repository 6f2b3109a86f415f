//! The update of parameters as an op in place, for eager and compiled steps alike.

use super::clip::{self, Clip};
use super::kernel::{self, Slot};
use super::rules::{HYPERS, Kind, STATES};
use super::{Entry, Optimizer, host};
use crate::effect::{Effect, Part, Read};
use crate::params::Param;
use dittograd_device::cuda::{Cuda, Source};
use dittograd_device::{AnyBuffer, Buffer, Cpu, Numbers, WriteGuard};
use dittograd_numerics::error::Result;
use dittograd_ops::{Recorder, Val};
use std::ops::Range;
use std::sync::Arc;

/// The update of some parameters. Its inputs are their gradients, then the directions of those whose rule has one, then
/// the factor of norm clipping.
pub(crate) struct Update {
    params: Vec<Param>,
    /// One for each of the parameters.
    targets: Vec<Target>,
    /// Which input is the factor.
    factor: Option<usize>,
    /// The scalars of the step, which the optimizer writes.
    scalars: Buffer,
}

/// How a parameter is updated.
struct Target {
    kind: Kind,
    /// Its row of the scalars.
    row: usize,
    /// Which of its elements.
    part: Range<usize>,
    states: Vec<AnyBuffer>,
    /// Which input is its direction.
    direction: Option<usize>,
}

impl Optimizer {
    /// The state that a parameter's direction is made from, if its rule has a direction.
    pub(crate) fn direction_state(&self, p: &Param) -> Option<AnyBuffer> {
        let is_mine = |e: &&Entry| e.kind.directed() && e.part.as_ref().is_none_or(|part| !part.is_empty());
        let entry = self.entries.get(&p.id()).filter(is_mine)?;
        entry.states.first().cloned()
    }

    /// The update of parameters with these gradients, and its inputs. Directions and the factor of norm clipping are recorded
    /// on `r`; `states` are the values of [`Optimizer::direction_state`]; `norm` is that of all gradients, if it is known.
    pub(crate) fn update(
        &self,
        r: &mut dyn Recorder,
        items: &[(&Param, Val)],
        states: &[Option<Val>],
        norm: Option<Val>,
    ) -> Result<(Update, Vec<Val>)> {
        let mut inputs: Vec<Val> = items.iter().map(|i| i.1).collect();
        let factor = match self.clip_norm.filter(|_| !items.is_empty()) {
            Some(max_norm) => Some(clip::norm_factor(r, &inputs, norm, max_norm)?),
            None => None,
        };
        let clip = Clip { factor, limit: self.clip_value.unwrap_or(f64::INFINITY) };
        let mut targets = Vec::with_capacity(items.len());
        for ((p, gradient), state) in items.iter().zip(states) {
            let entry = self.entry(p)?;
            let direction = match state {
                Some(state) => {
                    inputs.push(entry.rule.direction(r, *gradient, *state, clip)?);
                    Some(inputs.len() - 1)
                }
                None => None,
            };
            targets.push(Target {
                kind: entry.kind,
                row: entry.row,
                part: self.part(p),
                states: entry.states.clone(),
                direction,
            });
        }
        inputs.extend(factor);
        let params = items.iter().map(|i| i.0.clone()).collect();
        let factor = factor.map(|_| inputs.len() - 1);
        Ok((Update { params, targets, factor, scalars: self.scalars()?.clone() }, inputs))
    }
}

impl Target {
    fn cpu(&self, cpu: &Cpu, p: &Param, reads: (&[f32], &[f32]), factor: f32, h: &[f32]) -> Result<()> {
        let value = p.buffer();
        let mut value = value.buffer().write("optimizer")?;
        let mut guards: [Option<WriteGuard<'_>>; STATES] = Default::default();
        for (g, s) in guards.iter_mut().zip(&self.states) {
            *g = Some(s.buffer().write("optimizer")?);
        }
        let mut states: [&mut [f32]; STATES] = Default::default();
        for (s, g) in states.iter_mut().zip(guards.iter_mut().flatten()) {
            *s = g.host();
        }
        let p = &mut value.host()[self.part.clone()];
        kernel::cpu(cpu, self.kind, (&mut *p, states), reads, factor, h);
        cpu.flips.strike(p);
        guards.iter_mut().flatten().for_each(|g| cpu.flips.strike(g.host()));
        Ok(())
    }

    /// Where the update reads and writes on CUDA.
    fn slot(&self, p: &Param, gradient: u64, direction: u64) -> Result<Slot> {
        let mut states = [0; STATES];
        for (s, b) in states.iter_mut().zip(&self.states) {
            *s = b.buffer().address("optimizer")?;
        }
        Ok(Slot {
            kind: self.kind,
            p: p.buffer().buffer().address("optimizer")? + self.part.start as u64 * 4,
            g: gradient,
            states,
            direction,
            row: self.row,
            len: self.part.len(),
        })
    }
}

/// How many parts an update has at most, and the least elements of one but the last.
const PARTS: usize = 16;
const LEAST: usize = 1 << 20;

impl Update {
    /// The parameters of each part. Gradients of the last ones are mostly there first, so the last part has what is left of the first.
    fn ranges(&self) -> Vec<Range<usize>> {
        let all: usize = self.targets.iter().map(|t| t.part.len()).sum();
        let (mut ranges, mut end, mut len) = (Vec::new(), self.targets.len(), 0);
        for (i, target) in self.targets.iter().enumerate().rev() {
            len += target.part.len();
            if i == 0 || len >= LEAST.max(all / PARTS) {
                ranges.push(i..end);
                (end, len) = (i, 0);
            }
        }
        ranges
    }

    /// Queues the updates of some parameters on CUDA.
    fn launch(&self, cuda: &Arc<Cuda>, inputs: &[u64], some: Range<usize>) -> Result<()> {
        let at = |i: Option<usize>| i.map_or(0, |i| inputs[i]);
        let slot = |i: usize| self.targets[i].slot(&self.params[i], inputs[i], at(self.targets[i].direction));
        let slots = some.map(slot).collect::<Result<Vec<_>>>()?;
        kernel::cuda(cuda, &slots, self.scalars.address("optimizer")?, at(self.factor))
    }

    /// Runs on a device of other numbers, by the definitions; `hypers` are the scalars of the step before rounding.
    pub(super) fn host(
        &self,
        numbers: &dyn Numbers,
        hypers: &[[f64; HYPERS]],
        inputs: &[AnyBuffer],
    ) -> Result<()> {
        let update = host::update_of(numbers)?;
        for ((p, target), g) in self.params.iter().zip(&self.targets).zip(inputs) {
            let value = p.buffer();
            let mut ins = vec![&value, g];
            ins.extend(&target.states);
            let [direction, factor] = [target.direction, self.factor].map(|i| i.map(|i| &inputs[i]));
            update(target.kind, &hypers[target.row], &ins, direction, factor)?;
        }
        Ok(())
    }
}

impl Effect for Update {
    fn name(&self) -> &'static str {
        "update"
    }

    fn writes(&self) -> &[Param] {
        &self.params
    }

    fn cuda_modules(&self) -> Vec<Source> {
        let mut kinds: Vec<Kind> = self.targets.iter().map(|t| t.kind).collect();
        kinds.sort();
        kinds.dedup();
        kinds.into_iter().map(kernel::module).collect()
    }

    fn cpu(&self, cpu: &Cpu, read: &Read<'_>) -> Result<()> {
        let factor = match self.factor {
            Some(i) => read(i).with("optimizer", |f| Ok(f[0]))?,
            None => 1.0,
        };
        let scalars = self.scalars.read("optimizer")?;
        for (i, (p, target)) in self.params.iter().zip(&self.targets).enumerate() {
            let h = &scalars.host()[target.row * HYPERS..][..HYPERS];
            read(i).with("optimizer", |g| match target.direction {
                Some(d) => read(d).with("optimizer", |d| target.cpu(cpu, p, (g, d), factor, h)),
                None => target.cpu(cpu, p, (g, &[]), factor, h),
            })?;
        }
        Ok(())
    }

    fn cuda(&self, cuda: &Arc<Cuda>, inputs: &[u64]) -> Result<()> {
        self.launch(cuda, inputs, 0..self.params.len())
    }

    fn parts(&self) -> Vec<Part> {
        let part = |some: Range<usize>| {
            let targets = &self.targets[some.clone()];
            let params = self.params[some.clone()].iter().map(Param::buffer);
            let directions = targets.iter().filter_map(|t| t.direction);
            Part {
                inputs: some.chain(directions).chain(self.factor).collect(),
                writes: params.chain(targets.iter().flat_map(|t| t.states.iter().cloned())).collect(),
            }
        };
        self.ranges().into_iter().map(part).collect()
    }

    fn cuda_part(&self, cuda: &Arc<Cuda>, inputs: &[u64], part: usize) -> Result<()> {
        self.launch(cuda, inputs, self.ranges()[part].clone())
    }
}
