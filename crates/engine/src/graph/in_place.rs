//! In-place rewriting, the last step before the plan: an elementwise op is written over an input that nobody reads
//! afterwards, so that the two share memory.

use super::{Graph, What};
use dittograd_device::{Backend, Device, Meta};
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::{AnyOp, Val};

/// A program some of whose ops run in place.
pub(super) struct InPlace {
    pub graph: Graph,
    /// For each value, whether it is written over the first input of its op.
    pub is_over: Vec<bool>,
}

/// Rewrites the ops of `graph` that can run in place. An op's inputs are reordered, so that the one to be overwritten is first.
pub(super) fn rewrite(mut graph: Graph, wanted: &[Val], device: &Device) -> InPlace {
    // A view lives where its input lives; lifetimes are those of the memory, not of the names.
    let mut root: Vec<usize> = (0..graph.size()).collect();
    let mut last_use = vec![0usize; graph.size()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if let What::Op(op, ins) = &node.what {
            if op.view(&graph.metas(ins)).is_some() {
                root[i] = root[ins[0].0 as usize];
            }
            ins.iter().for_each(|v| last_use[root[v.0 as usize]] = i);
        }
    }
    wanted.iter().for_each(|v| last_use[root[v.0 as usize]] = usize::MAX);

    let is_cuda = matches!(device.backend(), Backend::Cuda(_));
    let mut is_over = vec![false; graph.size()];
    for (i, is_over) in is_over.iter_mut().enumerate() {
        let What::Op(op, ins) = &graph.nodes[i].what else { continue };
        let program = graph.pointwise(op, ins);
        let Some(first) = overwritten(&graph, &root, i, program.as_ref(), |r| last_use[r] == i) else {
            continue;
        };
        match program {
            Some(program) => {
                let (op, order) = overwriting(&program, graph.nodes[i].meta, first);
                let ins = order.into_iter().map(|k| ins[k]).collect();
                graph.nodes[i].what = What::Op(op, ins);
                *is_over = true;
            }
            None => *is_over = is_cuda,
        }
    }
    InPlace { graph, is_over }
}

/// Which input the value of node `i` can be written over: one of as many elements that an op computed, that the node reads
/// once, and that nobody reads afterwards, as `dies` says of what is in a root. An elementwise op, of which `program` is the
/// expression, takes the first such input; another op takes only its first input, and only on CUDA.
pub(super) fn overwritten(
    graph: &Graph,
    root: &[usize],
    i: usize,
    program: Option<&Pointwise>,
    dies: impl Fn(usize) -> bool,
) -> Option<usize> {
    let (node, words) = (&graph.nodes[i], graph.nodes[i].meta.shape.numel());
    let What::Op(op, ins) = &node.what else { return None };
    if root[i] != i {
        return None;
    }
    let candidates = match program {
        Some(_) => ins.len(),
        // The logits of a language model and their gradient are the largest of its values.
        None => usize::from(op.overwrites()),
    };
    let roots: Vec<usize> = ins.iter().map(|v| root[v.0 as usize]).collect();
    let mut sorted = roots.clone();
    sorted.sort_unstable();
    let is_once = |r: usize| sorted.partition_point(|x| *x <= r) - sorted.partition_point(|x| *x < r) == 1;
    let is_computed = |r: usize| matches!(graph.nodes[r].what, What::Op(..));
    let has_words = |r: usize| graph.nodes[r].meta.shape.numel() == words;
    (0..candidates).find(|&k| {
        let r = roots[k];
        words > 0 && has_words(ins[k].0 as usize) && has_words(r) && is_computed(r) && dies(r) && is_once(r)
    })
}

/// An elementwise op as one that is computed in place, and the order of its inputs: input `first` comes first and becomes the
/// value.
fn overwriting(program: &Pointwise, meta: Meta, first: usize) -> (AnyOp, Vec<usize>) {
    let inputs = program.inputs();
    let order: Vec<usize> = [first].into_iter().chain((0..inputs).filter(|&k| k != first)).collect();
    let turned = Pointwise::trace(inputs, |x| {
        let mut args = x.to_vec();
        order.iter().enumerate().for_each(|(new, &old)| args[old] = x[new]);
        program.eval(&args)
    });
    (Map::new(turned, meta.shape).into(), order)
}
