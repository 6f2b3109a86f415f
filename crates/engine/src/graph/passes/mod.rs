//! Passes: each takes a program and the values wanted from it, and returns one that computes the same bits with less
//! work. Each can be switched off; the bits stay the same.

mod batch_norm;
mod common;
mod constants;
mod fuse;
mod layout;
mod lower_peak_memory;
mod prologues;
mod reductions;
mod rematerialize;

use super::{Graph, Node, Source, What};
use dittograd_device::Device;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::environment;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::{AnyOp, Recorder, Val};

/// A rewrite of a program before it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Removes what no wanted value depends on.
    DeadCode,
    /// Splits batch norm into the statistics of its channels and an elementwise op, so that running averages share the
    /// statistics.
    BatchNorm,
    /// Removes copies and reshapes that move nothing, merges permutations, and turns transposed operands of products
    /// into flags.
    Layout,
    /// Constant folding.
    Constants,
    /// Common subexpression elimination.
    Common,
    /// Fuses elementwise ops and broadcasts into one kernel if the intermediate values are needed nowhere else.
    Elementwise,
    /// Fuses elementwise ops even if intermediate values are needed elsewhere: one kernel writes several results.
    Results,
    /// Fuses elementwise ops into the matrix product, convolution, softmax or norm before them.
    Epilogues,
    /// Fuses elementwise ops into the reductions and losses before and after them.
    Reductions,
    /// Fuses elementwise ops into the softmax or norm after them.
    Prologues,
    /// Rematerializes copies that only move elements for late readers, if the copied value is alive anyway.
    Copies,
    /// Rematerializes what was traced in [`Session::checkpoint`](crate::session::Session::checkpoint).
    Checkpoints,
    /// Lowers peak memory: rematerializes large values in elementwise kernels that read the same inputs.
    Peak,
    /// Rematerializes all elementwise ops: less memory for more time. Not among [`Passes::all`].
    Recompute,
}

impl Pass {
    /// All passes, in the order they run.
    pub const ALL: [Pass; 14] = [
        Pass::DeadCode,
        Pass::BatchNorm,
        Pass::Layout,
        Pass::Constants,
        Pass::Common,
        Pass::Elementwise,
        Pass::Results,
        Pass::Epilogues,
        Pass::Reductions,
        Pass::Prologues,
        Pass::Copies,
        Pass::Checkpoints,
        Pass::Peak,
        Pass::Recompute,
    ];

    /// The pass's name.
    pub fn name(self) -> &'static str {
        match self {
            Pass::DeadCode => "dead_code",
            Pass::BatchNorm => "batch_norm",
            Pass::Layout => "layout",
            Pass::Constants => "constants",
            Pass::Common => "common",
            Pass::Elementwise => "elementwise",
            Pass::Results => "results",
            Pass::Epilogues => "epilogues",
            Pass::Reductions => "reductions",
            Pass::Prologues => "prologues",
            Pass::Copies => "copies",
            Pass::Checkpoints => "checkpoints",
            Pass::Peak => "peak",
            Pass::Recompute => "recompute",
        }
    }
}

/// Which passes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    on: [bool; Pass::ALL.len()],
    /// The fewest words of a value that [`Pass::Peak`] considers.
    min_words: usize,
}

impl Default for Passes {
    fn default() -> Passes {
        Passes::all()
    }
}

impl Passes {
    /// All passes that cost almost nothing: all but [`Pass::Recompute`].
    pub fn all() -> Passes {
        Passes { on: [true; Pass::ALL.len()], ..Passes::none() }.without(Pass::Recompute)
    }

    /// No passes.
    pub fn none() -> Passes {
        Passes { on: [false; Pass::ALL.len()], min_words: lower_peak_memory::MIN_WORDS }
    }

    /// These passes and one more.
    pub fn with(mut self, pass: Pass) -> Passes {
        self.on[pass as usize] = true;
        self
    }

    /// These passes without one.
    pub fn without(mut self, pass: Pass) -> Passes {
        self.on[pass as usize] = false;
        self
    }

    /// Whether a pass runs.
    pub fn has(self, pass: Pass) -> bool {
        self.on[pass as usize]
    }

    /// These passes, where [`Pass::Peak`] considers values from `words` words on, so that tests need no large ones.
    #[doc(hidden)]
    pub fn large(mut self, words: usize) -> Passes {
        self.min_words = words;
        self
    }

    /// Runs the passes. `wanted` are the values that are read afterwards; they are renumbered. Constants are computed
    /// on `device`.
    pub(crate) fn run(self, graph: &Graph, wanted: &mut [Val], device: &Device) -> Result<Graph> {
        let mut graph = self.swept(graph.clone(), wanted);
        if self.has(Pass::BatchNorm) {
            graph = batch_norm::split(&graph, wanted)?;
        }
        if self.has(Pass::Layout) {
            graph = layout::simplify(&graph, wanted)?;
        }
        if self.has(Pass::Constants) {
            graph = constants::fold(&self.swept(graph, wanted), wanted, device)?;
        }
        if self.has(Pass::Common) {
            graph = common::subexpressions(&self.swept(graph, wanted), wanted);
        }
        let fusion = fuse::Fusion {
            elementwise: self.has(Pass::Elementwise),
            results: self.has(Pass::Results),
            epilogues: self.has(Pass::Epilogues),
            digits: Digits::of(device.numerics()).is_some(),
        };
        if fusion.elementwise || fusion.epilogues {
            graph = fusion.run(&self.swept(graph, wanted), wanted)?;
        }
        if self.has(Pass::Reductions) {
            graph = reductions::join(&self.swept(graph, wanted), wanted)?;
        }
        if self.has(Pass::Prologues) {
            graph = prologues::join(&self.swept(graph, wanted), wanted)?;
        }
        if [Pass::Copies, Pass::Checkpoints, Pass::Recompute].iter().any(|p| self.has(*p)) {
            graph = rematerialize::run(&self.swept(graph, wanted), wanted, self);
        }
        if self.has(Pass::Peak) {
            graph = lower_peak_memory::run(&self.swept(graph, wanted), wanted, self.min_words)?;
        }
        Ok(self.swept(graph, wanted))
    }

    /// Removes dead code, unless that pass is off. Other passes leave replaced nodes behind.
    fn swept(self, graph: Graph, wanted: &mut [Val]) -> Graph {
        if self.has(Pass::DeadCode) { dead_code(&graph, wanted) } else { graph }
    }
}

impl Graph {
    /// The program after these passes, which is what [`Graph::compile_with`] plans and runs.
    pub fn after(&self, passes: Passes) -> Result<Graph> {
        let _strict = environment::enter();
        let mut outputs = self.outputs.clone();
        let mut graph = passes.run(self, &mut outputs, &self.home())?;
        graph.outputs = outputs;
        Ok(graph)
    }
}

/// Rewrites a program into a new one, node by node.
struct Rewrite<'g> {
    old: &'g Graph,
    out: Graph,
    /// The new value of each old one, where there is one yet.
    new: Vec<Option<Val>>,
}

impl<'g> Rewrite<'g> {
    fn new(old: &'g Graph) -> Rewrite<'g> {
        // Passes keep all inputs in their order.
        let (nodes, input_names) = (Vec::with_capacity(old.size()), old.input_names.clone());
        let out = Graph { nodes, input_names, ..Graph::new() };
        Rewrite { old, out, new: vec![None; old.size()] }
    }

    /// The new value of an old one, which comes earlier and so has one.
    fn at(&self, v: Val) -> Val {
        self.new[v.0 as usize].unwrap_or(Val(u32::MAX))
    }

    fn all(&self, ins: &[Val]) -> Vec<Val> {
        ins.iter().map(|v| self.at(*v)).collect()
    }

    /// Copies a node as it is.
    fn keep(&mut self, i: usize) {
        let node = &self.old.nodes[i];
        let what = match &node.what {
            What::Op(op, ins) => What::Op(op.clone(), self.all(ins)),
            leaf => leaf.clone(),
        };
        let v = Val(self.out.nodes.len() as u32);
        self.out.nodes.push(Node { what, ..node.clone() });
        if self.old.random_base == Some(Val(i as u32)) {
            self.out.random_base = Some(v);
        }
        self.new[i] = Some(v);
    }

    /// Records a different op for a node.
    fn record(&mut self, i: usize, op: impl Into<AnyOp>, ins: &[Val]) -> Result<()> {
        let v = self.out.record(op.into(), ins)?;
        let (new, old) = (&mut self.out.nodes[v.0 as usize], &self.old.nodes[i]);
        (new.requires_grad, new.checkpointed) = (old.requires_grad, old.checkpointed);
        self.new[i] = Some(v);
        Ok(())
    }

    fn finish(self, wanted: &mut [Val]) -> Graph {
        wanted.iter_mut().for_each(|v| *v = self.at(*v));
        self.out
    }
}

/// An input of a program of shape `from`, reshaped for a program of shape `to` with the same elements, if possible.
fn reshaped(out: &mut Graph, v: Val, from: &Shape, to: &Shape) -> Result<Option<Val>> {
    if from == to {
        return Ok(Some(v));
    }
    let shape = out.meta(v).shape;
    let shape = match shape.numel() {
        n if n == to.numel() => *to,
        1 => Shape::SCALAR,
        // A row stays a row as long as the last axis stays.
        n if n == shape.last() && n == to.last() && n == from.last() => Shape::new(&[n])?,
        // So does one element per row. Without elements, one shape can have more rows than the other.
        n if shape.rank() == from.rank()
            && shape.last() == 1
            && n == from.rows()
            && n == to.rows()
            && to.last() == from.last() =>
        {
            let (_, rows) = to.dims().split_last().unwrap_or((&1, &[]));
            Shape::new(&[rows, &[1]].concat())?
        }
        _ => return Ok(None),
    };
    dittograd_ops::layout::reshape_to(out, v, shape).map(Some)
}

/// The elementwise program that computes `v`, its node and its inputs, if each value in between is read once.
fn elements<'g>(graph: &'g Graph, uses: &[usize], mut v: Val) -> Option<(Pointwise, &'g Node, &'g [Val])> {
    loop {
        let node = graph.node(v);
        let What::Op(op, ins) = &node.what else { return None };
        if uses[v.0 as usize] != 1 {
            return None;
        }
        if matches!(op, AnyOp::Reshape(_)) {
            v = ins[0];
            continue;
        }
        let program = graph.pointwise(op, ins)?;
        return Some((program, node, ins));
    }
}

/// For each value, the one whose memory it shares (`shares` says whether an op shares its first input's); and for each
/// of those, its readers in order, where `usize::MAX` stands for the caller.
fn readers(
    graph: &Graph,
    wanted: &[Val],
    shares: impl Fn(&AnyOp, &[Val]) -> bool,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut root: Vec<usize> = (0..graph.size()).collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.size()];
    for (i, node) in graph.nodes.iter().enumerate() {
        match &node.what {
            What::Op(op, ins) if shares(op, ins) => root[i] = root[ins[0].0 as usize],
            What::Op(_, ins) => ins.iter().for_each(|v| readers[root[v.0 as usize]].push(i)),
            What::Leaf(_) => {}
        }
    }
    wanted.iter().for_each(|v| readers[root[v.0 as usize]].push(usize::MAX));
    (root, readers)
}

/// How often each value is read. Being wanted counts as one more reader.
fn uses(graph: &Graph, wanted: &[Val]) -> Vec<usize> {
    let mut uses = vec![0; graph.size()];
    let read = graph.nodes.iter().flat_map(|n| match &n.what {
        What::Op(_, ins) => &ins[..],
        What::Leaf(_) => &[],
    });
    read.chain(wanted).for_each(|v| uses[v.0 as usize] += 1);
    uses
}

/// Keeps only what the wanted values depend on.
fn dead_code(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let mut live = vec![false; graph.size()];
    wanted.iter().for_each(|v| live[v.0 as usize] = true);
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if let (What::Op(_, ins), true) = (&node.what, live[i]) {
            ins.iter().for_each(|v| live[v.0 as usize] = true);
        }
        // Inputs stay: a program takes the inputs that it was traced with.
        live[i] |= matches!(node.what, What::Leaf(Source::Input(_)));
    }
    let mut to = Rewrite::new(graph);
    (0..graph.size()).filter(|i| live[*i]).for_each(|i| to.keep(i));
    to.finish(wanted)
}
