//! A compiled program and its executors. On the CPU the instructions run one after the other in one
//! planned block; on CUDA they are captured once and replayed as one launch. Effects, which write outside the block, come last, or where they are
//! captured when what they need is there.

use super::Origin;
use super::compile::Plan;
use crate::effect::{Effect, EffectOf, HostValue, Part};
use crate::nats::Nats;
use crate::params::Param;
use dittograd_device::bundle::{Bundle, write};
use dittograd_device::cuda::{self, Captured, Cuda, CudaGraph};
use dittograd_device::{AnyBuffer, Backend, Buffer, DType, Device, Meta, ReadSet, emptied};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::{copied, filled};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{
    AnyOp, CpuRun, CudaRun, Gpu, Kernel, Lines, PerInput, check_bound, check_indices, launch,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a value lives during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// Words into the program's block.
    Arena(usize),
    /// An outside buffer (input, parameter, constant or random base) and words into it.
    Outside(usize, usize),
}

/// Whether this is what a driver says that cannot capture, or not this.
pub(crate) fn is_uncapturable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Cuda { code: 801 | 900..=909, .. })
}

/// An op with its places.
pub(super) struct Instruction {
    pub op: AnyOp,
    /// The kernel on the CPU, if it is not the op's own.
    pub kernel: Option<Kernel>,
    pub ins: Vec<Place>,
    pub metas: Vec<Meta>,
    /// Where its value starts in the block.
    pub out: usize,
    pub meta: Meta,
    /// Where its workspace starts in the block, and how many words it has.
    pub workspace: (usize, usize),
    /// The value is written over the first input. A kernel on the CPU then gets the others as its inputs.
    pub in_place: bool,
    /// Lines of the value whose largest magnitudes are left, and where in the block.
    pub leaves: Option<(Lines, usize)>,
    /// Where in the block those of the first two inputs are, and how many.
    pub magnitudes: [Option<(usize, usize)>; 2],
}

/// The words of the block that an instruction, or a part of an effect, reads and writes, and its memory outside the block, as ranges. Only
/// effects write outside.
#[derive(Default)]
struct Uses {
    reads: Vec<Range<usize>>,
    writes: [Range<usize>; 3],
    outside_reads: Vec<Range<u64>>,
    outside_writes: Vec<Range<u64>>,
}

impl Uses {
    /// Whether this cannot run beside an earlier one.
    fn conflicts(&self, other: &Uses) -> bool {
        fn hits<T: PartialOrd>(some: &[Range<T>], others: &[Range<T>]) -> bool {
            some.iter().any(|a| others.iter().any(|b| a.start < b.end && b.start < a.end))
        }
        hits(&self.writes, &other.reads)
            || hits(&self.writes, &other.writes)
            || hits(&other.writes, &self.reads)
            || hits(&self.outside_writes, &other.outside_reads)
    }
}

/// The modules of ops with their inputs, and with the lines whose magnitudes they leave.
pub(super) fn modules_of<'a>(
    ops: impl Iterator<Item = (&'a AnyOp, Vec<Meta>, Option<Lines>)>,
    gpu: &Gpu,
) -> Vec<cuda::Source> {
    let mut seen: Vec<(&AnyOp, Vec<Meta>, Option<Lines>)> = Vec::new();
    for op in ops {
        // The layers of a model are mostly alike.
        if !seen.contains(&op) {
            seen.push(op);
        }
    }
    let modules = |(op, metas, lines): &(&AnyOp, Vec<Meta>, Option<Lines>)| {
        let leaving = lines.and_then(|lines| op.leaving_modules(metas, gpu, lines));
        leaving.unwrap_or_else(|| op.cuda_modules(metas, gpu))
    };
    seen.iter().flat_map(modules).collect()
}

/// An index input's entries must be below a limit for some op.
#[derive(Debug)]
pub(super) struct Limit {
    pub input: usize,
    pub limit: usize,
    pub op: &'static str,
    pub reader: Origin,
}

/// A list of whole numbers, where it is outside the block, and what version of it is there.
pub(super) type NatsAt = (usize, Nats, AtomicU64);

/// A part of a run.
pub(super) struct Stage {
    /// The instruction that it ends before; it begins where the stage before it ends.
    pub end: usize,
    /// What is written outside the block at its end.
    pub effects: Vec<EffectOf<(Place, Meta)>>,
    /// Captured on CUDA.
    pub graph: Option<CudaGraph>,
}

/// An effect and one of its parts, with the part's number; `None` for an effect that has none, and is queued as a whole.
type PartOf<'a> = (&'a EffectOf<(Place, Meta)>, usize, Option<Part>);

impl Stage {
    /// The parts of its effects.
    fn parts(&self) -> Vec<PartOf<'_>> {
        let mut all = Vec::new();
        for e in &self.effects {
            let parts = e.effect.parts();
            if parts.is_empty() {
                all.push((e, 0, None));
            }
            all.extend(parts.into_iter().enumerate().map(|(n, part)| (e, n, Some(part))));
        }
        all
    }
}

/// A program ready to run with new inputs, any number of times.
pub struct Compiled {
    pub(super) device: Device,
    pub(super) instructions: Vec<Instruction>,
    pub(super) arena: Buffer,
    /// Everything from outside, inputs first.
    pub(super) outside: Vec<AnyBuffer>,
    pub(super) outside_set: ReadSet,
    /// Memory for the list of an instruction's inputs.
    pub(super) spare: Mutex<Vec<&'static [f32]>>,
    pub(super) inputs: usize,
    pub(super) random_base: Option<usize>,
    pub(super) nats: Vec<NatsAt>,
    pub(super) limits: Vec<Limit>,
    pub(super) outputs: Vec<(Place, Meta)>,
    /// The run in order, cut after each early effect.
    pub(super) stages: Vec<Stage>,
    pub(super) plan: Plan,
    pub(super) text: String,
}

impl Compiled {
    /// The program after all passes, one value a line.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The block that its values live in during a run.
    pub(crate) fn arena(&self) -> &Buffer {
        &self.arena
    }

    /// Sizes of the program.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Captures the whole program on CUDA. Kernels are compiled first, side by side.
    pub(super) fn capture(&mut self) -> Result<()> {
        let Backend::Cuda(cuda) = self.device.backend() else { return Ok(()) };
        let ops = self.instructions.iter().map(|i| (&i.op, i.metas.clone(), i.leaves.map(|l| l.0)));
        let mut modules = modules_of(ops, &Gpu::of(cuda));
        modules.extend(self.effects().flat_map(|e| e.effect.cuda_modules()));
        modules.sort();
        modules.dedup();
        cuda.compile_all(&modules)?;
        let waits = self.waits()?;
        for stage in 0..self.stages.len() {
            match cuda.capture(|| self.queue(cuda, stage, Some(&waits))) {
                Ok(graph) => {
                    self.plan.launches += graph.nodes();
                    self.stages[stage].graph = Some(graph);
                }
                Err(error) if is_uncapturable(&error) => {
                    eprintln!(
                        "dittograd: a program could not be captured as a CUDA graph ({error}); its kernels are launched one by \
                         one, which gives the same bits more slowly"
                    );
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The same program with memory of its own for its values and inputs, and with other effects of the same values. It is
    /// not captured, and does not check its inputs.
    pub(crate) fn twin(&self, effects: Vec<Box<dyn Effect>>) -> Result<Compiled> {
        let mut outside = self.outside.clone();
        let own = (0..self.inputs).chain(self.random_base).chain(self.nats.iter().map(|n| n.0));
        for i in own {
            let meta = outside[i].meta();
            outside[i] = AnyBuffer::new(self.device.alloc_for("program input", &meta.shape)?, meta)?;
        }
        let mut effects = effects.into_iter();
        let of = |(e, effect): (&EffectOf<(Place, Meta)>, Box<dyn Effect>)| EffectOf {
            effect,
            inputs: e.inputs.clone(),
            when: e.when,
        };
        let stage = |s: &Stage| {
            let own = effects.by_ref().take(s.effects.len());
            Stage { end: s.end, effects: s.effects.iter().zip(own).map(of).collect(), graph: None }
        };
        let instruction = |i: &Instruction| Instruction {
            op: i.op.clone(),
            kernel: None,
            ins: i.ins.clone(),
            metas: i.metas.clone(),
            ..*i
        };
        Ok(Compiled {
            device: self.device.clone(),
            instructions: self.instructions.iter().map(instruction).collect(),
            arena: self.device.alloc_for("program", &Shape::new(&[self.arena.len()])?)?,
            outside_set: ReadSet::new(outside.iter().map(AnyBuffer::buffer)),
            outside,
            spare: Mutex::default(),
            inputs: self.inputs,
            random_base: self.random_base,
            nats: self
                .nats
                .iter()
                .map(|(at, list, _)| (*at, list.clone(), AtomicU64::new(u64::MAX)))
                .collect(),
            limits: Vec::new(),
            outputs: self.outputs.clone(),
            stages: self.stages.iter().map(stage).collect(),
            plan: self.plan,
            text: String::new(),
        })
    }

    /// Captures programs of one stage each, so that they run side by side. `None` where they cannot be captured.
    pub(crate) fn capture_together(programs: &[&Compiled]) -> Result<Option<CudaGraph>> {
        let Some(Backend::Cuda(cuda)) = programs.first().map(|p| p.device.backend()) else { return Ok(None) };
        if programs.iter().any(|p| p.stages.len() != 1) || programs[0].stages[0].graph.is_none() {
            return Ok(None);
        }
        let waits: Vec<Vec<Vec<usize>>> = programs.iter().map(|p| p.waits()).collect::<Result<_>>()?;
        let queue = || {
            for (program, waits) in programs.iter().zip(&waits) {
                // Its first instruction waits for nothing of the others.
                cuda.capture_after(&[])?;
                program.queue(cuda, 0, Some(waits))?;
            }
            Ok(())
        };
        cuda.capture(queue).map(Some)
    }

    /// All effects.
    fn effects(&self) -> impl Iterator<Item = &EffectOf<(Place, Meta)>> {
        self.stages.iter().flat_map(|s| &s.effects)
    }

    /// The instructions of a stage.
    fn instructions_of(&self, stage: usize) -> Range<usize> {
        stage.checked_sub(1).map_or(0, |before| self.stages[before].end)..self.stages[stage].end
    }

    /// Queues the instructions and effects of a stage. While they are captured, each waits only for those whose memory it uses
    /// or reuses, as `waits` says, so that the others run beside it.
    fn queue(&self, cuda: &Arc<Cuda>, stage: usize, waits: Option<&[Vec<usize>]>) -> Result<()> {
        let is_captured = waits.is_some();
        let range = self.instructions_of(stage);
        let (first, count) = (range.start, range.len());
        let mut ends: Vec<Vec<Captured>> = Vec::new();
        // Earlier stages have ended when this one begins. The first instruction waits for nothing as it is; the others only where the
        // driver told what was captured before.
        let wait_for = |ends: &[Vec<Captured>], list: &mut dyn Iterator<Item = usize>| {
            let nodes: Vec<Captured> =
                list.filter(|&m| m >= first).flat_map(|m| ends[m - first].iter().copied()).collect();
            cuda.capture_after(&nodes)
        };
        for (n, i) in self.instructions[range].iter().enumerate() {
            if let Some(list) = waits.and_then(|w| w.get(first + n)).filter(|_| n > 0 && ends.len() == n) {
                wait_for(&ends, &mut list.iter().copied())?;
            }
            let mut ins = PerInput::new(i.ins.len(), 0);
            for (address, place) in ins.all_mut().iter_mut().zip(&i.ins) {
                *address = self.address(*place)?;
            }
            let leaves =
                i.leaves.map(|(lines, at)| self.address(Place::Arena(at)).map(|address| (lines, address)));
            let mut magnitudes = [0; 2];
            for (address, known) in magnitudes.iter_mut().zip(&i.magnitudes) {
                if let Some((at, _)) = known {
                    *address = self.address(Place::Arena(*at))?;
                }
            }
            let run = CudaRun {
                cuda,
                metas: &i.metas,
                ins: ins.all(),
                shape: i.meta.shape,
                out: self.address(Place::Arena(i.out))?,
                workspace: self.address(Place::Arena(i.workspace.0))?,
                fused: Default::default(),
                leaves: leaves.transpose()?,
                magnitudes,
            };
            match is_captured {
                true => launch(&i.op, &run)?,
                false => self.device.timed(i.op.name(), &i.metas, i.meta.shape, || launch(&i.op, &run))?,
            }
            // Where the driver does not tell, all wait in order.
            if is_captured && let Some(end) = cuda.captured()? {
                ends.push(end);
            }
        }
        let is_told = is_captured && count > 0 && ends.len() == count;
        let stage = &self.stages[stage];
        let inputs_of = |e: &EffectOf<(Place, Meta)>| -> Result<Vec<u64>> {
            e.inputs.iter().map(|i| self.address(i.0)).collect()
        };
        if !is_told || first + count < self.instructions.len() {
            for e in &stage.effects {
                // After all instructions of the stage, and beside the other effects: none reads what another writes.
                if is_told {
                    wait_for(&ends, &mut (first..first + count))?;
                }
                let inputs = inputs_of(e)?;
                let run = || e.effect.cuda(cuda, &inputs);
                match is_captured {
                    true => run()?,
                    false => self.device.timed(e.effect.name(), &[], e.effect.extent()?, run)?,
                }
            }
            return Ok(());
        }
        for (n, (e, part, _)) in stage.parts().into_iter().enumerate() {
            if let Some(list) = waits.and_then(|w| w.get(self.instructions.len() + n)) {
                wait_for(&ends, &mut list.iter().copied())?;
            }
            e.effect.cuda_part(cuda, &inputs_of(e)?, part)?;
        }
        Ok(())
    }

    /// For each instruction, and then for each part of the effects after them, the instructions it must wait for, without those that they
    /// wait for themselves: who writes what it reads or writes, and who reads what it writes.
    fn waits(&self) -> Result<Vec<Vec<usize>>> {
        let count = self.instructions.len();
        let mut uses = self.instructions.iter().map(|i| self.uses(i)).collect::<Result<Vec<_>>>()?;
        for (e, _, part) in self.stages.last().into_iter().flat_map(Stage::parts) {
            uses.push(self.uses_of_part(e, part.as_ref())?);
        }
        // For each, all it waits for, directly or not, as bits.
        let mut before: Vec<Vec<u64>> = Vec::new();
        let mut waits = Vec::new();
        for (n, now) in uses.iter().enumerate() {
            let mut all = vec![0u64; count / 64 + 1];
            let mut list = Vec::new();
            for m in (0..n.min(count)).rev() {
                let is_known = all[m / 64] >> (m % 64) & 1 == 1;
                if !is_known && now.conflicts(&uses[m]) {
                    list.push(m);
                    all[m / 64] |= 1 << (m % 64);
                    all.iter_mut().zip(&before[m]).for_each(|(a, b)| *a |= b);
                }
            }
            before.push(all);
            waits.push(list);
        }
        Ok(waits)
    }

    fn uses(&self, i: &Instruction) -> Result<Uses> {
        let mut uses = Uses::default();
        for (place, meta) in i.ins.iter().zip(&i.metas) {
            self.reads(&mut uses, *place, meta)?;
        }
        uses.reads.extend(i.magnitudes.iter().flatten().map(|&(at, count)| at..at + count));
        let out = i.out..i.out + i.meta.shape.numel();
        let workspace = i.workspace.0..i.workspace.0 + i.workspace.1;
        let left = i.leaves.map_or(0..0, |(lines, at)| at..at + lines.count);
        uses.writes = [out, workspace, left];
        Ok(uses)
    }

    /// Uses of a part of an effect; of all of it, and after everything, where it has no parts.
    fn uses_of_part(&self, e: &EffectOf<(Place, Meta)>, part: Option<&Part>) -> Result<Uses> {
        let mut uses = Uses::default();
        let Some(part) = part else {
            uses.writes[0] = 0..usize::MAX;
            return Ok(uses);
        };
        for &i in &part.inputs {
            let (place, meta) = &e.inputs[i];
            self.reads(&mut uses, *place, meta)?;
        }
        for memory in &part.writes {
            let start = memory.buffer().address("program")?;
            uses.outside_writes.push(start..start + memory.buffer().len() as u64 * 4);
        }
        Ok(uses)
    }

    fn reads(&self, uses: &mut Uses, place: Place, meta: &Meta) -> Result<()> {
        let words = meta.shape.numel();
        match place {
            Place::Arena(at) => uses.reads.push(at..at + words),
            Place::Outside(..) => {
                let start = self.address(place)?;
                uses.outside_reads.push(start..start + words as u64 * 4);
            }
        }
        Ok(())
    }

    fn address(&self, place: Place) -> Result<u64> {
        match place {
            Place::Arena(at) => Ok(self.arena.address("program")? + at as u64 * 4),
            Place::Outside(i, at) => Ok(self.outside[i].buffer().address("program")? + at as u64 * 4),
        }
    }

    /// Errors if one of the indices from outside is more than the ops that read them take.
    fn check_limits(&self, outside: usize, indices: &[u32]) -> Result<()> {
        let mut limits = self.limits.iter().filter(|l| l.input == outside);
        limits.try_for_each(|l| check_indices(l.op, indices, l.limit).map_err(|e| l.reader.locate(e)))
    }

    /// Where an input of this shape and type goes.
    fn slot(&self, input: usize, meta: Meta) -> Result<&AnyBuffer> {
        let slot = self.outside.get(input).filter(|_| input < self.inputs).ok_or_else(|| {
            Error::argument(
                "program",
                "input",
                format!("there is no input {input}, the program has {}", self.inputs),
            )
        })?;
        if slot.meta() != meta {
            let why = "the program was compiled for another input shape";
            return Err(Error::new(
                "program",
                ErrorKind::Shapes { why, left: meta.shape, right: slot.shape() },
            ));
        }
        Ok(slot)
    }

    /// Gives an input of the next runs its value. Indices are checked against what the ops that read them take.
    #[doc(hidden)]
    pub fn set_input(&self, input: usize, meta: Meta, words: &[f32]) -> Result<()> {
        self.give_input(input, meta, words, None)
    }

    /// As [`Compiled::set_input`], now or with `later` writes.
    pub(crate) fn give_input(
        &self,
        input: usize,
        meta: Meta,
        words: &[f32],
        later: Option<&mut Bundle>,
    ) -> Result<()> {
        self.check_input(input, meta, words)?;
        write("program", self.slot(input, meta)?.buffer(), words, later)
    }

    /// Errors if [`Compiled::set_input`] would.
    pub(crate) fn check_input(&self, input: usize, meta: Meta, words: &[f32]) -> Result<()> {
        self.slot(input, meta)?;
        if meta.dtype == DType::U32 {
            self.check_limits(input, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    /// Copies an input, which was [checked](Compiled::check_input), on the device.
    pub(crate) fn copy_checked(&self, input: usize, value: &AnyBuffer) -> Result<()> {
        self.slot(input, value.meta())?.copy_from("program", value)
    }

    /// As [`Compiled::set_input`], by a copy on the device.
    pub(crate) fn copy_input(&self, input: usize, value: &AnyBuffer) -> Result<()> {
        let slot = self.slot(input, value.meta())?;
        self.device.check_accepts("program", value.buffer())?;
        for l in self.limits.iter().filter(|l| l.input == input) {
            check_bound(l.op, value, l.limit).map_err(|e| l.reader.locate(e))?;
        }
        slot.copy_from("program", value)
    }

    /// Where an output of the last run is.
    pub(crate) fn output_buffer(&self, i: usize) -> Result<Buffer> {
        let (place, meta) = self.output_at(i)?;
        let n = meta.shape.numel();
        match place {
            Place::Arena(_) if n == 0 => self.arena.part(0, 0),
            Place::Arena(at) => self.arena.part(at, n),
            Place::Outside(o, at) => self.outside[o].buffer().part(at, n),
        }
    }

    /// A copy of an output of the last run. Does not wait for the device.
    pub(crate) fn copy_output(&self, i: usize) -> Result<AnyBuffer> {
        let (from, meta) = (self.output_buffer(i)?, self.output_meta(i)?);
        let copy = AnyBuffer::new(self.device.alloc_for("program output", &meta.shape)?, meta)?;
        copy.copy_from("program", &AnyBuffer::new(from, meta)?)?;
        Ok(copy)
    }

    /// Runs the program once on the current inputs and parameters, then its effects. Random calls continue at
    /// `random_calls`.
    #[doc(hidden)]
    pub fn run(&self, random_calls: u64) -> Result<()> {
        self.run_staged(random_calls, &mut |_| Ok(()))
    }

    /// As [`Compiled::run`], and calls `then` with the number of each early effect after it. On CUDA it is queued by then.
    pub(crate) fn run_staged(
        &self,
        random_calls: u64,
        then: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let _strict = environment::enter();
        self.begin(random_calls, None)?;
        self.execute(then)
    }

    /// Gives a run what changes from one to the next besides its inputs, now or with `later` writes.
    pub(crate) fn begin(&self, random_calls: u64, later: Option<&mut Bundle>) -> Result<()> {
        let written = || self.effects().flat_map(|e| e.effect.writes());
        let is_released = |b: &AnyBuffer| b.buffer().is_released();
        if self.outside.iter().any(is_released) || written().any(|p| is_released(&p.buffer())) {
            return Err(Error::new("program", ErrorKind::Released));
        }
        if let Some(base) = self.random_base {
            let words = [random_calls as u32, (random_calls >> 32) as u32];
            write("program", self.outside[base].buffer(), bytemuck::cast_slice(&words), later)?;
        }
        for (at, list, seen) in &self.nats {
            let version = list.version();
            if seen.load(Ordering::Relaxed) != version {
                let values = list.values();
                self.check_limits(*at, &values)?;
                self.outside[*at].buffer().write_words("program", bytemuck::cast_slice(&values))?;
                seen.store(version, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Runs programs that have begun, and that were captured together, as one.
    pub(crate) fn launch_together(programs: &[&Compiled], graph: &CudaGraph) -> Result<()> {
        graph.launch()?;
        programs.iter().for_each(|p| p.changed());
        Ok(())
    }

    /// Runs a program that has begun.
    pub(crate) fn launch(&self) -> Result<()> {
        self.execute(&mut |_| Ok(()))
    }

    /// Tells of the parameters that it writes.
    fn changed(&self) {
        self.effects().flat_map(|e| e.effect.writes()).for_each(Param::changed);
    }

    fn execute(&self, then: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        match self.device.backend() {
            Backend::Cuda(cuda) => {
                for (n, stage) in self.stages.iter().enumerate() {
                    match &stage.graph {
                        Some(graph) if !self.device.is_profiled() => graph.launch()?,
                        _ => self.queue(cuda, n, None)?,
                    }
                    if n + 1 < self.stages.len() {
                        then(n)?;
                    }
                }
            }
            Backend::Cpu(cpu) => self.run_cpu(cpu, then)?,
            Backend::Host(_) => {
                return Err(Error::new(
                    "program",
                    ErrorKind::Internal { what: "a program on a host device" },
                ));
            }
        }
        self.changed();
        Ok(())
    }

    fn run_cpu(&self, cpu: &dittograd_device::Cpu, then: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let mut arena = self.arena.write("program")?;
        {
            let locked = self.outside_set.lock("program")?;
            let arena = arena.host();
            let mut spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
            let mut stage = 0;
            for (n, i) in self.instructions.iter().enumerate() {
                while n == self.stages[stage].end {
                    self.effects_on_cpu(cpu, stage, arena)?;
                    then(stage)?;
                    stage += 1;
                }
                let words = i.meta.shape.numel();
                let [before, out, between, workspace, after] = split(arena, (i.out, words), i.workspace);
                let (before, between, after) = (before as &[f32], between as &[f32], after as &[f32]);
                let ends = [before.len(), before.len() + i.gap().0 + between.len()];
                let skip = usize::from(i.in_place);
                let mut ins: Vec<&[f32]> = emptied(spare);
                ins.extend(i.ins.iter().zip(&i.metas).skip(skip).map(|(place, meta)| {
                    let n = meta.shape.numel();
                    match *place {
                        Place::Outside(o, at) => &locked.host(o)[at..at + n],
                        _ if n == 0 => &[],
                        Place::Arena(at) if at < ends[0] => &before[at..at + n],
                        Place::Arena(at) if at < ends[1] => {
                            let from = at - before.len() - i.gap().0;
                            &between[from..from + n]
                        }
                        Place::Arena(at) => {
                            let from = at - ends[1] - i.gap().1;
                            &after[from..from + n]
                        }
                    }
                }));
                let (out, workspace) = if i.out_first() { (out, workspace) } else { (workspace, out) };
                let run = CpuRun {
                    pool: &cpu.pool,
                    simd: cpu.simd,
                    numerics: cpu.numerics,
                    metas: &i.metas[skip..],
                    ins: &ins,
                    shape: i.meta.shape,
                    out: &mut *out,
                    workspace,
                };
                self.device.timed(i.op.name(), &i.metas, i.meta.shape, || {
                    match &i.kernel {
                        Some(kernel) => kernel(run),
                        None => i.op.cpu(run),
                    }
                    Ok(())
                })?;
                spare = emptied(ins);
                cpu.flips.strike(out);
            }
            *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
            for late in stage..self.stages.len() - 1 {
                self.effects_on_cpu(cpu, late, arena)?;
                then(late)?;
            }
        }
        self.effects_on_cpu(cpu, self.stages.len() - 1, arena.host())
    }

    /// Runs the effects at the end of a stage.
    fn effects_on_cpu(&self, cpu: &dittograd_device::Cpu, stage: usize, arena: &[f32]) -> Result<()> {
        for e in &self.stages[stage].effects {
            let read = |i: usize| self.host_value(arena, e.inputs[i]);
            self.device.timed(e.effect.name(), &[], e.effect.extent()?, || e.effect.cpu(cpu, &read))?;
        }
        Ok(())
    }

    /// A value, on the CPU.
    fn host_value<'a>(&'a self, arena: &'a [f32], (place, meta): (Place, Meta)) -> HostValue<'a> {
        let n = meta.shape.numel();
        match place {
            Place::Arena(_) if n == 0 => HostValue::Words(&[]),
            Place::Arena(at) => HostValue::Words(&arena[at..at + n]),
            Place::Outside(o, at) => HostValue::Buffer(self.outside[o].buffer(), at..at + n),
        }
    }

    /// Shape and type of an output.
    pub(crate) fn output_meta(&self, i: usize) -> Result<Meta> {
        Ok(self.output_at(i)?.1)
    }

    fn output_at(&self, i: usize) -> Result<(Place, Meta)> {
        self.outputs.get(i).copied().ok_or_else(|| {
            Error::argument(
                "program",
                "output",
                format!("there is no output {i}, the program has {}", self.outputs.len()),
            )
        })
    }

    /// Reads an output of the last run. Waits for the device.
    #[doc(hidden)]
    pub fn output(&self, i: usize) -> Result<Vec<f32>> {
        let (place, meta) = self.output_at(i)?;
        let n = meta.shape.numel();
        match (place, self.device.backend()) {
            (Place::Outside(o, at), _) => self.outside[o].buffer().part(at, n)?.download(),
            (Place::Arena(at), Backend::Cpu(_) | Backend::Host(_)) => {
                copied("program", &self.arena.write("program")?.host()[at..at + n])
            }
            (Place::Arena(_), Backend::Cuda(cuda)) => {
                let mut words = filled("program", n, 0.0)?;
                if n > 0 {
                    cuda.download(self.address(place)?, bytemuck::cast_slice_mut(&mut words))?;
                }
                Ok(words)
            }
        }
    }
}

impl Instruction {
    fn out_first(&self) -> bool {
        let words = self.meta.shape.numel();
        self.workspace.1 == 0 || (words > 0 && self.out < self.workspace.0)
    }

    /// Lengths of the two places that are written, in the order they lie in the block.
    fn gap(&self) -> (usize, usize) {
        let (out, scratch) = (self.meta.shape.numel(), self.workspace.1);
        if self.out_first() { (out, scratch) } else { (scratch, out) }
    }
}

/// Cuts the block into what lies before, between and after two places, and the places themselves, in the
/// order they lie in the block.
fn split(arena: &mut [f32], a: (usize, usize), b: (usize, usize)) -> [&mut [f32]; 5] {
    let (first, second) = if b.1 == 0 || (a.1 > 0 && a.0 < b.0) { (a, b) } else { (b, a) };
    let (before, rest) = arena.split_at_mut(if first.1 == 0 { 0 } else { first.0 });
    let start = before.len();
    let (first, rest) = rest.split_at_mut(first.1);
    let passed = start + first.len();
    let (between, rest) = rest.split_at_mut(if second.1 == 0 { rest.len() } else { second.0 - passed });
    let (second, after) = rest.split_at_mut(second.1);
    [before, first, between, second, after]
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({} on {}, {:?})", self.instructions.len(), self.device, self.plan)
    }
}
