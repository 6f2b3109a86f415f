//! In-place rewriting, the last step before the plan: an elementwise op is written over an input that nobody reads
//! afterwards, so that the two share memory.

use super::{Graph, What};
use dittograd_device::{Backend, Device, Meta};
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::pointwise::program::Program;
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
    for i in 0..graph.size() {
        let node = &graph.nodes[i];
        let What::Op(op, ins) = &node.what else { continue };
        let metas = graph.metas(ins);
        if root[i] != i {
            continue;
        }
        let words = node.meta.shape.numel();
        let roots: Vec<usize> = ins.iter().map(|v| root[v.0 as usize]).collect();
        let mut sorted = roots.clone();
        sorted.sort_unstable();
        let is_once =
            |r: usize| sorted.partition_point(|x| *x <= r) - sorted.partition_point(|x| *x < r) == 1;
        let is_free = |k: usize| {
            let made = &graph.nodes[roots[k]];
            matches!(made.what, What::Op(..))
                && last_use[roots[k]] == i
                && made.meta.shape.numel() == words
                && is_once(roots[k])
        };
        // The logits of a language model and their gradient are the largest of its values.
        let by_itself = || is_cuda && op.overwrites() && words > 0 && is_free(0);
        if let Some((op, order)) = overwriting(op, &metas, node.meta, is_free) {
            let ins = order.into_iter().map(|k| ins[k]).collect();
            graph.nodes[i].what = What::Op(op, ins);
            is_over[i] = true;
        } else if by_itself() {
            is_over[i] = true;
        }
    }
    InPlace { graph, is_over }
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
