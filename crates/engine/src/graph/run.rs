//! A compiled program and its executors. On the CPU the instructions run one after the other in one
//! planned block; on CUDA they are captured once and replayed as one launch. Effects, which write outside the block, come last.

use super::passes::Passes;
use super::plan::{Flow, Request, place, place_apart};
use super::{Graph, Source, What};
use crate::effect::{EffectOf, HostValue};
use crate::params::Param;
use crate::session::Nats;
use dittograd_device::cuda::{Captured, Cuda, CudaGraph};
use dittograd_device::{AnyBuffer, Backend, Buffer, DType, Device, Meta, ReadSet, emptied};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::{copied, filled};
use dittograd_numerics::shape::Shape;
use dittograd_ops::map::Map;
use dittograd_ops::program::Program;
use dittograd_ops::{
    AnyOp, CpuRun, CudaRun, Gpu, Kernel, PerInput, Recorder, Val, check_bound, check_indices, elementwise,
    launch,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a value lives during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// Words into the program's block.
    Arena(usize),
    /// An outside buffer (input, parameter, constant or random base) and words into it.
    Outside(usize, usize),
}

struct Instruction {
    op: AnyOp,
    /// The op's kernel, on the CPU, if it has one to be made once.
    kernel: Option<Kernel>,
    ins: Vec<Place>,
    metas: Vec<Meta>,
    out: usize,
    meta: Meta,
    workspace: (usize, usize),
    /// The value is written over the first input, which nobody needs any more.
    in_place: bool,
}

/// The words of the block that an instruction reads and writes, as ranges.
struct Uses {
    reads: Vec<Range<usize>>,
    writes: [Range<usize>; 2],
}

impl Uses {
    /// Whether two instructions cannot run side by side.
    fn conflicts(&self, other: &Uses) -> bool {
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let hits = |writes: &[Range<usize>], ranges: &[Range<usize>]| {
            writes.iter().any(|w| ranges.iter().any(|r| meet(w, r)))
        };
        hits(&self.writes, &other.reads)
            || hits(&self.writes, &other.writes)
            || hits(&other.writes, &self.reads)
    }
}

impl Instruction {
    fn uses(&self) -> Uses {
        let read = |(place, meta): (&Place, &Meta)| match *place {
            Place::Arena(at) => Some(at..at + meta.shape.numel()),
            Place::Outside(..) => None,
        };
        let out = self.out..self.out + self.meta.shape.numel();
        let workspace = self.workspace.0..self.workspace.0 + self.workspace.1;
        Uses { reads: self.ins.iter().zip(&self.metas).filter_map(read).collect(), writes: [out, workspace] }
    }
}

/// Where a value will live, before the block is laid out.
#[derive(Clone, Copy, Debug)]
enum Spot {
    /// A request for memory, and words into it.
    Request(usize, usize),
    /// As [`Place::Outside`].
    Outside(usize, usize),
}

impl Spot {
    fn moved(self, words: usize) -> Spot {
        match self {
            Spot::Request(r, at) => Spot::Request(r, at + words),
            Spot::Outside(o, at) => Spot::Outside(o, at + words),
        }
    }

    fn place(self, starts: &[usize]) -> Place {
        match self {
            Spot::Request(r, at) => Place::Arena(starts[r] + at),
            Spot::Outside(o, at) => Place::Outside(o, at),
        }
    }
}

/// An instruction before the block is laid out: `out` and `workspace` are requests.
struct Draft {
    op: AnyOp,
    ins: Vec<(Spot, Meta)>,
    out: usize,
    meta: Meta,
    workspace: usize,
    in_place: bool,
}

/// The elementwise op as one that is computed in place, and the order of its inputs: an input of as many elements that
/// `is_free` comes first and becomes the value.
fn overwriting(
    op: &AnyOp,
    metas: &[Meta],
    meta: Meta,
    is_free: impl Fn(usize) -> bool,
) -> Option<(AnyOp, Vec<usize>)> {
    let program = op.as_program(metas).filter(|p| p.outputs() == 1)?;
    let words = meta.shape.numel();
    let first = (0..metas.len()).find(|&k| metas[k].shape.numel() == words && words > 0 && is_free(k))?;
    let order: Vec<usize> = [first].into_iter().chain((0..metas.len()).filter(|&k| k != first)).collect();
    let turned = Program::trace(metas.len(), |x| {
        let mut args = x.to_vec();
        order.iter().enumerate().for_each(|(new, &old)| args[old] = x[new]);
        program.eval(&args)
    });
    Some((Map::new(turned, meta.shape).into(), order))
}

/// The value as one that the end of a step does not change: a copy of what is in the memory of a parameter, which the
/// update or an assignment overwrites, or of an input, which a run that fails may overwrite.
fn lasting(graph: &mut Graph, v: Val) -> Result<Val> {
    let mut root = v;
    while let What::Op(op, ins) = &graph.node(root).what
        && op.view(&graph.metas(ins)).is_some()
    {
        root = ins[0];
    }
    let is_shared =
        matches!(graph.node(root).what, What::Leaf(Source::Param(_) | Source::State(_) | Source::Input(_)));
    match is_shared && graph.node(v).meta.dtype == DType::F32 {
        true => graph.record(elementwise::Copy {}.into(), &[v]),
        false => Ok(v),
    }
}

/// What a program looks like after planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Values as traced, with gradients.
    pub traced: usize,
    /// Instructions after all passes.
    pub instructions: usize,
    /// Bytes of the block all values share.
    pub arena_bytes: usize,
    /// Bytes of values and workspaces that are needed at the same time, at the worst instruction: the block cannot be
    /// smaller.
    pub least_bytes: usize,
    /// Bytes all values would take if none shared memory.
    pub total_bytes: usize,
    /// Kernels of the captured CUDA graph, 0 on the CPU.
    pub launches: usize,
}

/// An index input's entries must be below a limit for some op.
#[derive(Debug)]
struct Limit {
    input: usize,
    limit: usize,
    op: &'static str,
}

/// A program ready to run with new inputs, any number of times.
pub struct Compiled {
    device: Device,
    instructions: Vec<Instruction>,
    arena: Buffer,
    /// Everything from outside, inputs first.
    outside: Vec<AnyBuffer>,
    outside_set: ReadSet,
    /// Memory for the list of an instruction's inputs.
    spare: Mutex<Vec<&'static [f32]>>,
    inputs: usize,
    random_base: Option<usize>,
    /// Lists of whole numbers, where they are, and what version of each is there.
    nats: Vec<(usize, Nats, AtomicU64)>,
    limits: Vec<Limit>,
    outputs: Vec<(Place, Meta)>,
    /// What is written outside the block at the end of a run.
    effects: Vec<EffectOf<(Place, Meta)>>,
    graph: Option<CudaGraph>,
    plan: Plan,
    text: String,
}

impl Compiled {
    /// Compiles `graph` for `device`: the values `outputs` can be read after each run, whose `effects` come last. Its values live in the block `within`, if that is large enough, and overwrite what is there.
    #[doc(hidden)]
    pub fn new(
        device: &Device,
        graph: &Graph,
        outputs: &[Val],
        effects: Vec<EffectOf<Val>>,
        passes: Passes,
        within: Option<&Buffer>,
    ) -> Result<Compiled> {
        let _strict = environment::enter();
        if matches!(device.backend(), Backend::Host(_)) {
            let what =
                format!("programs are compiled for cpu and cuda; on {device} run them in an eager session");
            return Err(Error::unsupported("compile", what));
        }
        let traced = graph.size();
        let mut wanted: Vec<Val> = outputs.to_vec();
        wanted.extend(effects.iter().flat_map(|e| &e.inputs));
        let mut graph = passes.run(graph, &mut wanted, device)?;
        if !effects.is_empty() {
            for v in &mut wanted {
                *v = lasting(&mut graph, *v)?;
            }
        }
        let text = graph.to_string();

        let mut outside = Vec::new();
        let mut spots: Vec<Spot> = vec![Spot::Outside(usize::MAX, 0); graph.size()];
        let mut random_base = None;
        let mut nats: Vec<(usize, Nats, AtomicU64)> = Vec::new();
        let is_input = |i: &usize| matches!(graph.nodes()[*i].what, What::Leaf(Source::Input(_)));
        let leaves = (0..graph.size()).filter(|i| matches!(graph.nodes()[*i].what, What::Leaf(_)));
        let (ins, others): (Vec<usize>, Vec<usize>) = leaves.partition(is_input);
        let inputs = ins.len();
        for i in ins.into_iter().chain(others) {
            let node = &graph.nodes()[i];
            spots[i] = Spot::Outside(outside.len(), 0);
            if let What::Leaf(Source::Nats(list)) = &node.what {
                nats.push((outside.len(), list.clone(), AtomicU64::new(u64::MAX)));
            }
            outside.push(match &node.what {
                What::Leaf(Source::Param(p)) => p.buffer(),
                What::Leaf(Source::Constant(c) | Source::State(c)) => c.clone(),
                What::Leaf(Source::RandomBase) => {
                    random_base = Some(outside.len());
                    AnyBuffer::new(device.alloc(2)?, node.meta)?
                }
                _ => AnyBuffer::new(device.alloc_for("program input", &node.meta.shape)?, node.meta)?,
            });
        }

        // A view lives where its input lives; lifetimes are those of the memory, not of the names.
        let mut root: Vec<usize> = (0..graph.size()).collect();
        let mut last_use = vec![0usize; graph.size()];
        for (i, node) in graph.nodes().iter().enumerate() {
            if let What::Op(op, ins) = &node.what {
                if op.view(&graph.metas(ins)).is_some() {
                    root[i] = root[ins[0].0 as usize];
                }
                ins.iter().for_each(|v| last_use[root[v.0 as usize]] = i);
            }
        }
        wanted.iter().for_each(|v| last_use[root[v.0 as usize]] = usize::MAX);

        let is_cuda = matches!(device.backend(), Backend::Cuda(_));
        let mut drafts: Vec<Draft> = Vec::new();
        let mut limits = Vec::new();
        let mut requests: Vec<Request> = Vec::new();
        let mut total = 0;
        for (i, node) in graph.nodes().iter().enumerate() {
            let What::Op(op, ins) = &node.what else { continue };
            let metas = graph.metas(ins);
            if let Some(start) = op.view(&metas) {
                spots[i] = spots[ins[0].0 as usize].moved(start);
                continue;
            }
            if let Some((at, limit)) = op.index_limit(&metas) {
                // What the program computes was checked when it was recorded.
                for leaf in graph.index_sources(ins[at]).0 {
                    match spots[leaf] {
                        Spot::Outside(input, _) if input < inputs || nats.iter().any(|n| n.0 == input) => {
                            limits.push(Limit { input, limit, op: op.name() })
                        }
                        Spot::Outside(fixed, _) => check_bound(op.name(), &outside[fixed], limit)?,
                        Spot::Request(..) => {}
                    }
                }
            }
            let (now, words) = (drafts.len(), node.meta.shape.numel());
            let roots: Vec<usize> = ins.iter().map(|v| root[v.0 as usize]).collect();
            let mut sorted = roots.clone();
            sorted.sort_unstable();
            let is_once =
                |r: usize| sorted.partition_point(|x| *x <= r) - sorted.partition_point(|x| *x < r) == 1;
            let is_free = |k: usize| {
                matches!(spots[roots[k]], Spot::Request(..))
                    && last_use[roots[k]] == i
                    && graph.nodes()[roots[k]].meta.shape.numel() == words
                    && is_once(roots[k])
            };
            // The logits of a language model and their gradient are the largest of its values.
            let by_itself = || is_cuda && op.overwrites() && words > 0 && is_free(0);
            let over = overwriting(op, &metas, node.meta, is_free)
                .or_else(|| by_itself().then(|| (op.clone(), (0..ins.len()).collect())));
            let in_place = over.is_some();
            let (op, order) = over.unwrap_or_else(|| (op.clone(), (0..ins.len()).collect()));
            let ins: Vec<(Spot, Meta)> =
                order.iter().map(|&k| (spots[ins[k].0 as usize], metas[k])).collect();
            let out = match (in_place, ins.first()) {
                (true, Some((Spot::Request(r, _), _))) => *r,
                _ => {
                    requests.push(Request { words, from: now, to: now });
                    requests.len() - 1
                }
            };
            for (spot, _) in &ins {
                if let Spot::Request(r, _) = spot {
                    requests[*r].to = now;
                }
            }
            let metas: Vec<Meta> = ins.iter().map(|i| i.1).collect();
            requests.push(Request { words: op.workspace(&metas, device), from: now, to: now });
            total += words;
            spots[i] = Spot::Request(out, 0);
            let workspace = requests.len() - 1;
            drafts.push(Draft { op, ins, out, meta: node.meta, workspace, in_place });
        }
        for v in &wanted {
            if let Spot::Request(r, _) = spots[v.0 as usize] {
                requests[r].to = usize::MAX;
            }
        }
        let block = match device.backend() {
            Backend::Cuda(_) => {
                let mut flow = Flow::default();
                for d in &drafts {
                    let of = |i: &(Spot, Meta)| if let Spot::Request(r, _) = i.0 { Some(r) } else { None };
                    flow.push(&d.ins.iter().filter_map(of).collect::<Vec<_>>(), &[d.out, d.workspace]);
                }
                place_apart(&requests, &flow)
            }
            Backend::Cpu(_) | Backend::Host(_) => place(&requests),
        };
        let kernel_of = |d: &Draft| match device.backend() {
            Backend::Cpu(_) => d.op.prepared(&d.ins.iter().map(|i| i.1).collect::<Vec<_>>()),
            Backend::Cuda(_) | Backend::Host(_) => None,
        };
        let instruction = |d: Draft| Instruction {
            kernel: kernel_of(&d),
            op: d.op,
            ins: d.ins.iter().map(|i| i.0.place(&block.starts)).collect(),
            metas: d.ins.iter().map(|i| i.1).collect(),
            out: block.starts[d.out],
            meta: d.meta,
            workspace: (block.starts[d.workspace], requests[d.workspace].words),
            in_place: d.in_place,
        };
        let instructions: Vec<Instruction> = drafts.into_iter().map(instruction).collect();

        let places_of =
            |v: &Val| (spots[v.0 as usize].place(&block.starts), graph.nodes()[v.0 as usize].meta);
        let (out_vals, rest) = wanted.split_at(outputs.len());
        let mut rest = rest.iter().map(places_of);
        let placed = |e: EffectOf<Val>| EffectOf {
            inputs: rest.by_ref().take(e.inputs.len()).collect(),
            effect: e.effect,
        };
        let effects = effects.into_iter().map(placed).collect();
        let plan = Plan {
            traced,
            instructions: instructions.len(),
            arena_bytes: block.size * 4,
            least_bytes: block.bound * 4,
            total_bytes: total * 4,
            launches: 0,
        };
        let arena = match within.filter(|b| b.len() >= block.size) {
            Some(shared) => {
                device.check_accepts("program", shared)?;
                shared.part(0, block.size)?
            }
            None => device.alloc_for("program", &Shape::new(&[block.size])?)?,
        };
        let mut compiled = Compiled {
            device: device.clone(),
            instructions,
            arena,
            outside_set: ReadSet::new(outside.iter().map(AnyBuffer::buffer)),
            outside,
            spare: Mutex::default(),
            inputs,
            random_base,
            nats,
            limits,
            outputs: out_vals.iter().map(places_of).collect(),
            effects,
            graph: None,
            plan,
            text,
        };
        compiled.capture()?;
        Ok(compiled)
    }

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
    fn capture(&mut self) -> Result<()> {
        let Backend::Cuda(cuda) = self.device.backend() else { return Ok(()) };
        let gpu = Gpu::of(cuda);
        let mut modules: Vec<dittograd_device::cuda::Source> = Vec::new();
        let mut seen: Vec<&Instruction> = Vec::new();
        for i in &self.instructions {
            // The layers of a model are mostly alike.
            if !seen.iter().any(|s| s.metas == i.metas && s.op == i.op) {
                modules.extend(i.op.cuda_modules(&i.metas, &gpu));
                seen.push(i);
            }
        }
        modules.extend(self.effects.iter().flat_map(|e| e.effect.cuda_modules()));
        modules.sort();
        modules.dedup();
        cuda.compile_all(&modules)?;
        match cuda.capture(|| self.queue(cuda, true)) {
            Ok(graph) => {
                self.plan.launches = graph.nodes();
                self.graph = Some(graph);
            }
            // What a driver says that cannot capture, or not this.
            Err(error) if matches!(error.kind(), ErrorKind::Cuda { code: 801 | 900..=909, .. }) => {
                eprintln!(
                    "dittograd: a program could not be captured as a CUDA graph ({error}); its kernels are launched one by \
                     one, which gives the same bits more slowly"
                );
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Queues all instructions and effects. While they are captured, each waits only for those whose memory it uses or
    /// reuses, so that the others run beside it.
    fn queue(&self, cuda: &Arc<Cuda>, is_captured: bool) -> Result<()> {
        let waits = if is_captured { self.waits() } else { Vec::new() };
        let mut ends: Vec<Vec<Captured>> = Vec::new();
        let wait_for = |ends: &[Vec<Captured>], n: usize| match waits.get(n) {
            // The first waits for nothing as it is; the others only where the driver told what was captured before.
            Some(list) if n > 0 && ends.len() == n => {
                let nodes: Vec<Captured> = list.iter().flat_map(|&m| ends[m].iter().copied()).collect();
                cuda.capture_after(&nodes)
            }
            _ => Ok(()),
        };
        for (n, i) in self.instructions.iter().enumerate() {
            wait_for(&ends, n)?;
            let mut ins = PerInput::new(i.ins.len(), 0);
            for (address, place) in ins.all_mut().iter_mut().zip(&i.ins) {
                *address = self.address(*place)?;
            }
            let run = CudaRun {
                cuda,
                metas: &i.metas,
                ins: ins.all(),
                shape: i.meta.shape,
                out: self.address(Place::Arena(i.out))?,
                workspace: self.address(Place::Arena(i.workspace.0))?,
                around: Default::default(),
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
        for e in &self.effects {
            // After all instructions, and beside the other effects: none reads what another writes.
            wait_for(&ends, self.instructions.len())?;
            let inputs = e.inputs.iter().map(|i| self.address(i.0)).collect::<Result<Vec<_>>>()?;
            let run = || e.effect.cuda(cuda, &inputs);
            match is_captured {
                true => run()?,
                false => self.device.timed(e.effect.name(), &[], e.effect.extent()?, run)?,
            }
        }
        Ok(())
    }

    /// For each instruction, and for the effects after them, the ones it must wait for, without those that they wait for
    /// themselves: who writes what it reads or writes, and who reads what it writes. Only effects write outside the block, and
    /// they wait for all.
    fn waits(&self) -> Vec<Vec<usize>> {
        let count = self.instructions.len();
        let uses: Vec<Uses> = self.instructions.iter().map(Instruction::uses).collect();
        // For each, all it waits for, directly or not, as bits.
        let mut before: Vec<Vec<u64>> = Vec::new();
        let mut waits = Vec::new();
        for n in 0..=count {
            let mut all = vec![0u64; count / 64 + 1];
            let mut list = Vec::new();
            for m in (0..n.min(count)).rev() {
                let is_known = all[m / 64] >> (m % 64) & 1 == 1;
                if !is_known && uses.get(n).is_none_or(|now| now.conflicts(&uses[m])) {
                    list.push(m);
                    all[m / 64] |= 1 << (m % 64);
                    all.iter_mut().zip(&before[m]).for_each(|(a, b)| *a |= b);
                }
            }
            before.push(all);
            waits.push(list);
        }
        waits
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
        limits.try_for_each(|l| check_indices(l.op, indices, l.limit))
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
        let slot = self.slot(input, meta)?;
        if meta.dtype == DType::U32 {
            self.check_limits(input, bytemuck::cast_slice(words))?;
        }
        slot.buffer().write_words("program", words)
    }

    /// As [`Compiled::set_input`], by a copy on the device.
    pub(crate) fn copy_input(&self, input: usize, value: &AnyBuffer) -> Result<()> {
        let slot = self.slot(input, value.meta())?;
        self.device.check_accepts("program", value.buffer())?;
        for l in self.limits.iter().filter(|l| l.input == input) {
            check_bound(l.op, value, l.limit)?;
        }
        slot.copy_from("program", value)
    }

    /// A copy of an output of the last run. Does not wait for the device.
    pub(crate) fn copy_output(&self, i: usize) -> Result<AnyBuffer> {
        let (place, meta) = self.output_at(i)?;
        let n = meta.shape.numel();
        let from = match place {
            Place::Arena(_) if n == 0 => self.arena.part(0, 0)?,
            Place::Arena(at) => self.arena.part(at, n)?,
            Place::Outside(o, at) => self.outside[o].buffer().part(at, n)?,
        };
        let copy = AnyBuffer::new(self.device.alloc_for("program output", &meta.shape)?, meta)?;
        copy.copy_from("program", &AnyBuffer::new(from, meta)?)?;
        Ok(copy)
    }

    /// Runs the program once on the current inputs and parameters, then its effects. Random calls continue at
    /// `random_calls`.
    #[doc(hidden)]
    pub fn run(&self, random_calls: u64) -> Result<()> {
        let _strict = environment::enter();
        let written = || self.effects.iter().flat_map(|e| e.effect.writes());
        let is_released = |b: &AnyBuffer| b.buffer().is_released();
        if self.outside.iter().any(is_released) || written().any(|p| is_released(&p.buffer())) {
            return Err(Error::new("program", ErrorKind::Released));
        }
        if let Some(base) = self.random_base {
            let words = [random_calls as u32, (random_calls >> 32) as u32];
            self.outside[base].buffer().write_words("program", bytemuck::cast_slice(&words))?;
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
        match (self.device.backend(), &self.graph) {
            (Backend::Cuda(_), Some(graph)) if !self.device.is_profiled() => graph.launch()?,
            (Backend::Cuda(cuda), _) => self.queue(cuda, false)?,
            (Backend::Cpu(cpu), _) => self.run_cpu(cpu)?,
            (Backend::Host(_), _) => {
                return Err(Error::new(
                    "program",
                    ErrorKind::Internal { what: "a program on a host device" },
                ));
            }
        }
        written().for_each(Param::changed);
        Ok(())
    }

    fn run_cpu(&self, cpu: &dittograd_device::Cpu) -> Result<()> {
        let mut arena = self.arena.write("program")?;
        {
            let locked = self.outside_set.lock("program")?;
            let arena = arena.host();
            let mut spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
            for i in &self.instructions {
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
                    metas: &i.metas[skip..],
                    ins: &ins,
                    shape: i.meta.shape,
                    out,
                    workspace,
                };
                self.device.timed(i.op.name(), &i.metas, i.meta.shape, || {
                    match (&i.op, &i.kernel) {
                        (AnyOp::Map(map), _) if i.in_place => map.cpu_in_place(run),
                        (_, Some(kernel)) => kernel(run),
                        (op, None) => op.cpu(run),
                    }
                    Ok(())
                })?;
                spare = emptied(ins);
            }
            *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
        }
        let arena: &[f32] = arena.host();
        for e in &self.effects {
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

    /// Number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs.len()
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
