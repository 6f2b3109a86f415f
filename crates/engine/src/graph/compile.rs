//! From a graph to a program: passes, in-place rewriting, then the plan, which gives every value its place.

use super::in_place::{self, InPlace};
use super::passes::{Pass, Passes};
use super::plan::{Flow, Places, Request, place, place_apart};
use super::run::{Compiled, Instruction, Limit, NatsAt, Place, Stage, modules_of};
use super::{Graph, Source, What};
use crate::effect::{EffectOf, When};
use dittograd_device::{AnyBuffer, Backend, Buffer, DType, Device, Meta, ReadSet, cuda};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{AnyOp, Gpu, Kernel, Lines, Recorder, Val, check_bound, pointwise};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

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

impl Compiled {
    /// Compiles `graph` for `device`: the values `outputs` can be read after each run, whose `effects` come last. Its values live
    /// in the block `within`, if that is large enough, and overwrite what is there.
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
        let as_traced = graph;
        let mut graph = passes.run(graph, &mut wanted, device)?;
        if !effects.is_empty() {
            for v in &mut wanted {
                *v = lasting(&mut graph, *v)?;
            }
        }
        let text = graph.to_string();
        let outside = Outside::of(&graph, device)?;
        let limits = outside.limits(&graph, as_traced)?;
        let in_place = in_place::rewrite(graph, &wanted, device);
        let mut draft = Draft::of(&in_place, &outside.of, device);
        let early = draft.keep(&wanted, outputs.len(), &effects, device);
        let block = draft.placed(device);
        let instructions = draft.instructions(&block, device);

        let graph = &in_place.graph;
        let places_of = |v: &Val| (draft.spots[v.0 as usize].place(&block.starts), graph.node(*v).meta);
        let (out_vals, rest) = wanted.split_at(outputs.len());
        let mut rest = rest.iter().map(places_of);
        let placed = |e: EffectOf<Val>| EffectOf {
            inputs: rest.by_ref().take(e.inputs.len()).collect(),
            effect: e.effect,
            when: e.when,
        };
        let (first, last): (Vec<_>, Vec<_>) =
            effects.into_iter().map(placed).partition(|e| e.when == When::Early);
        let mut stages: Vec<Stage> = early
            .into_iter()
            .zip(first)
            .map(|(end, e)| Stage { end, effects: vec![e], graph: None })
            .collect();
        stages.push(Stage { end: instructions.len(), effects: last, graph: None });
        let plan = Plan {
            traced,
            instructions: instructions.len(),
            arena_bytes: block.size * 4,
            least_bytes: block.bound * 4,
            total_bytes: draft.total * 4,
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
            outside_set: ReadSet::new(outside.buffers.iter().map(AnyBuffer::buffer)),
            outside: outside.buffers,
            spare: Mutex::default(),
            inputs: outside.inputs,
            random_base: outside.random_base,
            nats: outside.nats,
            limits,
            outputs: out_vals.iter().map(places_of).collect(),
            stages,
            plan,
            text,
        };
        compiled.capture()?;
        Ok(compiled)
    }
}

impl Graph {
    /// The modules that its ops ask for on a GPU, run one by one, or compiled with `passes`. What is computed from constants
    /// alone is not computed here, so of a program with constants they may be others.
    #[doc(hidden)]
    #[track_caller]
    pub fn cuda_modules(
        &self,
        outputs: &[Val],
        passes: Option<Passes>,
        device: &Device,
    ) -> Result<Vec<cuda::Source>> {
        let Backend::Cuda(cuda) = device.backend() else { return Ok(Vec::new()) };
        let mut wanted = outputs.to_vec();
        if let Some(passes) = passes {
            let graph = passes.without(Pass::Constants).run(self, &mut wanted, device)?;
            let in_place = in_place::rewrite(graph, &wanted, device);
            let draft = Draft::of(&in_place, &vec![None; in_place.graph.size()], device);
            return Ok(modules_of(draft.steps.iter().map(Step::for_modules), &Gpu::of(cuda)));
        }
        let ops = self.nodes().iter().filter_map(|node| match &node.what {
            What::Op(op, ins) => Some((op, self.metas(ins), None)),
            What::Leaf(_) => None,
        });
        Ok(modules_of(ops.filter(|(op, metas, _)| op.view(metas).is_none()), &Gpu::of(cuda)))
    }
}

/// The value as one that the end of a step does not change: a copy of what is in the memory of a parameter, which an effect
/// overwrites, or of an input, which a run that fails may overwrite.
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
        true => graph.record(pointwise::Copy {}.into(), &[v]),
        false => Ok(v),
    }
}

/// The buffers of the leaves.
struct Outside {
    /// Inputs first.
    buffers: Vec<AnyBuffer>,
    /// For each value of the program, which of the buffers it is.
    of: Vec<Option<usize>>,
    inputs: usize,
    random_base: Option<usize>,
    nats: Vec<NatsAt>,
}

impl Outside {
    fn of(graph: &Graph, device: &Device) -> Result<Outside> {
        let is_input = |i: &usize| matches!(graph.nodes()[*i].what, What::Leaf(Source::Input(_)));
        let leaves = (0..graph.size()).filter(|i| matches!(graph.nodes()[*i].what, What::Leaf(_)));
        let (ins, others): (Vec<usize>, Vec<usize>) = leaves.partition(is_input);
        let mut outside = Outside {
            buffers: Vec::new(),
            of: vec![None; graph.size()],
            inputs: ins.len(),
            random_base: None,
            nats: Vec::new(),
        };
        for i in ins.into_iter().chain(others) {
            let (node, at) = (&graph.nodes()[i], outside.buffers.len());
            outside.of[i] = Some(at);
            if let What::Leaf(Source::Nats(list)) = &node.what {
                outside.nats.push((at, list.clone(), AtomicU64::new(u64::MAX)));
            }
            outside.buffers.push(match &node.what {
                What::Leaf(Source::Param(p)) => p.buffer(),
                What::Leaf(Source::Constant(c) | Source::State(c)) => c.clone(),
                What::Leaf(Source::RandomBase) => {
                    outside.random_base = Some(at);
                    AnyBuffer::new(device.alloc(2)?, node.meta)?
                }
                _ => AnyBuffer::new(device.alloc_for("program input", &node.meta.shape)?, node.meta)?,
            });
        }
        Ok(outside)
    }

    /// What the indices that are given anew for a run must be below. Others are checked now; what the program computes was
    /// checked when it was recorded.
    fn limits(&self, graph: &Graph, as_traced: &Graph) -> Result<Vec<Limit>> {
        let is_given = |at: usize| at < self.inputs || self.nats.iter().any(|n| n.0 == at);
        let mut limits = Vec::new();
        for node in graph.nodes() {
            let What::Op(op, ins) = &node.what else { continue };
            let Some((at, limit)) = op.index_limit(&graph.metas(ins)) else { continue };
            for buffer in graph.index_sources(ins[at]).0.into_iter().filter_map(|leaf| self.of[leaf]) {
                match is_given(buffer) {
                    // What the first reader accepts, further ones with the same limit accept too.
                    true if limits.iter().any(|l: &Limit| (l.input, l.limit) == (buffer, limit)) => {}
                    true => {
                        let reader = as_traced.index_reader(buffer, limit);
                        limits.push(Limit { input: buffer, limit, op: op.name(), reader });
                    }
                    false => check_bound(op.name(), &self.buffers[buffer], limit)?,
                }
            }
        }
        Ok(limits)
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

    fn request(self) -> Option<usize> {
        match self {
            Spot::Request(r, _) => Some(r),
            Spot::Outside(..) => None,
        }
    }
}

/// An instruction before the block is laid out: `out` and `workspace` are requests.
struct Step {
    op: AnyOp,
    ins: Vec<(Spot, Meta)>,
    out: usize,
    meta: Meta,
    workspace: usize,
    in_place: bool,
    /// Lines of the value whose largest magnitudes are left, and the request for them.
    leaves: Option<(Lines, usize)>,
    /// Those of the first two inputs: the request, and how many.
    magnitudes: [Option<(usize, usize)>; 2],
}

/// A program before the block is laid out.
struct Draft {
    steps: Vec<Step>,
    requests: Vec<Request>,
    /// Where each value will live.
    spots: Vec<Spot>,
    /// Steps until each value is there.
    ready: Vec<usize>,
    /// Words of all values.
    total: usize,
}

impl Draft {
    /// The steps of a program, of whose values `outside` says which are buffers.
    fn of(in_place: &InPlace, outside: &[Option<usize>], device: &Device) -> Draft {
        let graph = &in_place.graph;
        let spot = |o: &Option<usize>| Spot::Outside(o.unwrap_or(usize::MAX), 0);
        let spots = outside.iter().map(spot).collect();
        let ready = vec![0; graph.size()];
        let mut draft = Draft { steps: Vec::new(), requests: Vec::new(), spots, ready, total: 0 };
        for (i, node) in graph.nodes().iter().enumerate() {
            let What::Op(op, ins) = &node.what else { continue };
            let metas = graph.metas(ins);
            // A view lives where its input lives.
            if let Some(start) = op.view(&metas) {
                draft.spots[i] = draft.spots[ins[0].0 as usize].moved(start);
                draft.ready[i] = draft.ready[ins[0].0 as usize];
                continue;
            }
            draft.push(i, node.meta, op, (ins, &metas), in_place.is_over[i], device);
            draft.ready[i] = draft.steps.len();
        }
        draft
    }

    /// Keeps outputs and the inputs of effects until they are read. Answers how many steps are done when each early effect runs.
    fn keep(
        &mut self,
        wanted: &[Val],
        outputs: usize,
        effects: &[EffectOf<Val>],
        device: &Device,
    ) -> Vec<usize> {
        let (outputs, mut rest) = wanted.split_at(outputs);
        outputs.iter().for_each(|v| self.keep_until(*v, usize::MAX));
        let (mut end, mut early) = (0, Vec::new());
        for e in effects {
            let (inputs, others) = rest.split_at(e.inputs.len());
            rest = others;
            let mut until = usize::MAX;
            if e.when == When::Early {
                end = inputs.iter().map(|v| self.ready[v.0 as usize]).fold(end, usize::max);
                early.push(end);
                // Where steps run side by side, only the end of a run is after all of them.
                if !device.is_cuda() {
                    until = end;
                }
            }
            inputs.iter().for_each(|v| self.keep_until(*v, until));
        }
        early
    }

    fn keep_until(&mut self, v: Val, step: usize) {
        if let Some(r) = self.spots[v.0 as usize].request() {
            self.requests[r].to = self.requests[r].to.max(step);
        }
    }

    /// Appends the instruction of value `i`.
    fn push(
        &mut self,
        i: usize,
        meta: Meta,
        op: &AnyOp,
        (ins, metas): (&[Val], &[Meta]),
        in_place: bool,
        device: &Device,
    ) {
        let (now, words) = (self.steps.len(), meta.shape.numel());
        let magnitudes = self.magnitudes(op, ins, metas, device);
        let ins: Vec<(Spot, Meta)> =
            ins.iter().map(|v| self.spots[v.0 as usize]).zip(metas.iter().copied()).collect();
        let out = match ins.first().and_then(|first| first.0.request()).filter(|_| in_place) {
            Some(r) => r,
            None => {
                self.requests.push(Request { words, from: now, to: now });
                self.requests.len() - 1
            }
        };
        for r in ins.iter().filter_map(|i| i.0.request()) {
            self.requests[r].to = now;
        }
        self.requests.push(Request { words: op.workspace(metas, device), from: now, to: now });
        self.total += words;
        self.spots[i] = Spot::Request(out, 0);
        let workspace = self.requests.len() - 1;
        let op = op.clone();
        self.steps.push(Step { op, ins, out, meta, workspace, in_place, leaves: None, magnitudes });
    }

    /// Has the steps that make the inputs of the next one leave the largest magnitudes that it needs, as far as they can.
    fn magnitudes(
        &mut self,
        op: &AnyOp,
        ins: &[Val],
        metas: &[Meta],
        device: &Device,
    ) -> [Option<(usize, usize)>; 2] {
        let Some(gpu) = device.as_cuda().map(|cuda| Gpu::of(cuda)) else { return [None; 2] };
        let (now, wanted) = (self.steps.len(), op.reads_magnitudes(metas, &gpu));
        let mut found = [None; 2];
        for ((found, v), lines) in found.iter_mut().zip(ins).zip(wanted) {
            let (Some(lines), Some(maker)) = (lines, self.ready[v.0 as usize].checked_sub(1)) else {
                continue;
            };
            let Spot::Request(_, start) = self.spots[v.0 as usize] else { continue };
            let lines = Lines { start, ..lines };
            let step = &mut self.steps[maker];
            let request = match step.leaves {
                Some((left, request)) if left == lines => request,
                None if step.can_leave(lines, &gpu) => {
                    self.requests.push(Request { words: lines.count, from: maker, to: maker });
                    step.leaves = Some((lines, self.requests.len() - 1));
                    self.requests.len() - 1
                }
                _ => continue,
            };
            self.requests[request].to = now;
            *found = Some((request, lines.count));
        }
        found
    }

    /// Lays out the block.
    fn placed(&self, device: &Device) -> Places {
        match device.backend() {
            Backend::Cuda(_) => {
                let mut flow = Flow::default();
                for step in &self.steps {
                    let known = step.magnitudes.iter().flatten().map(|m| m.0);
                    let reads: Vec<usize> =
                        step.ins.iter().filter_map(|i| i.0.request()).chain(known).collect();
                    let left = step.leaves.map(|l| l.1);
                    let writes: Vec<usize> = [step.out, step.workspace].into_iter().chain(left).collect();
                    flow.push(&reads, &writes);
                }
                place_apart(&self.requests, &flow)
            }
            Backend::Cpu(_) | Backend::Host(_) => place(&self.requests),
        }
    }

    /// The instructions, taken out.
    fn instructions(&mut self, block: &Places, device: &Device) -> Vec<Instruction> {
        let is_cpu = matches!(device.backend(), Backend::Cpu(_));
        let instruction = |step: Step| {
            let metas: Vec<Meta> = step.ins.iter().map(|i| i.1).collect();
            Instruction {
                kernel: if is_cpu { step.kernel(&metas) } else { None },
                op: step.op,
                ins: step.ins.iter().map(|i| i.0.place(&block.starts)).collect(),
                metas,
                out: block.starts[step.out],
                meta: step.meta,
                workspace: (block.starts[step.workspace], self.requests[step.workspace].words),
                in_place: step.in_place,
                leaves: step.leaves.map(|(lines, request)| (lines, block.starts[request])),
                magnitudes: step.magnitudes.map(|m| m.map(|(request, count)| (block.starts[request], count))),
            }
        };
        std::mem::take(&mut self.steps).into_iter().map(instruction).collect()
    }
}

impl Step {
    /// What its modules depend on.
    fn for_modules(&self) -> (&AnyOp, Vec<Meta>, Option<Lines>) {
        (&self.op, self.ins.iter().map(|i| i.1).collect(), self.leaves.map(|l| l.0))
    }

    /// Whether its kernels can leave the largest magnitudes of these lines.
    fn can_leave(&self, lines: Lines, gpu: &Gpu) -> bool {
        let metas: Vec<Meta> = self.ins.iter().map(|i| i.1).collect();
        self.op.leaving_modules(&metas, gpu, lines).is_some()
    }

    /// The kernel on the CPU, if it is not the op's own.
    fn kernel(&self, metas: &[Meta]) -> Option<Kernel> {
        match &self.op {
            AnyOp::Map(map) if self.in_place => {
                let map = map.clone();
                Some(Box::new(move |run| map.cpu_in_place(run)))
            }
            op => op.prepared(metas),
        }
    }
}
