//! Lowers peak memory: rematerializes a pointwise value next to its late readers. A pointwise kernel that already reads the
//! value's inputs, as the gradient of an activation does, recomputes it as an extra output, so the value need not be kept
//! alive. That costs one more write and no launch. Readers that come shortly before that kernel are moved after it.

use super::rematerialize::GAP;
use super::{Rewrite, What, readers};
use crate::graph::Graph;
use crate::graph::in_place::overwritten;
use dittograd_numerics::error::Result;
use dittograd_ops::layout::reshape_to;
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::pointwise::map::{Map, results};
use dittograd_ops::{Recorder, Val};

/// Only values of at least this many words (16 MiB) are considered. A model of smaller values needs little memory
/// anyway.
pub(super) const MIN_WORDS: usize = 1 << 22;
/// The most extra words written per word by which the peak falls.
const MAX_PRICE: usize = 2;
/// The budget: one extra word per this many words that the program moves. A memory-bound step gets slower by that
/// fraction; steps of large models are mostly matrix products and get slower by much less.
const BUDGET_PART: usize = 32;

/// A value that can be rematerialized.
struct Candidate {
    value: usize,
    /// The kernel that recomputes it.
    at: usize,
    /// Its readers shortly before that kernel, which are moved after it.
    moved: Vec<usize>,
    /// Extra words that are written.
    cost: usize,
    /// How the memory in use changes: from, to (inclusive), words.
    changes: Vec<(usize, usize, isize)>,
}

impl Candidate {
    fn apply(&self, used: &mut [isize]) {
        for &(from, to, words) in &self.changes {
            used[from..=to].iter_mut().for_each(|u| *u += words);
        }
    }
}

pub(super) fn run(graph: &Graph, wanted: &mut [Val], min_words: usize) -> Result<Graph> {
    let view = View::new(graph, wanted);
    let mut candidates: Vec<Candidate> = (0..graph.size())
        .filter(|&i| view.words(i) >= min_words.max(1))
        .filter_map(|i| view.candidate(i))
        .collect();
    let mut used = view.used();
    let mut budget = view.traffic() / BUDGET_PART;
    let mut chosen: Vec<Candidate> = Vec::new();
    loop {
        let peak = used.iter().copied().max().unwrap_or(0);
        // The number of words by which the peak falls.
        let gain = |o: &Candidate| {
            let mut then = used.clone();
            o.apply(&mut then);
            usize::try_from(peak - then.iter().copied().max().unwrap_or(0)).unwrap_or(0)
        };
        candidates.retain(|o| o.cost <= budget && chosen.iter().all(|c| view.agree(o, c)));
        let gains = candidates.iter().map(gain).enumerate();
        let pays = gains.filter(|&(k, gain)| gain * MAX_PRICE >= candidates[k].cost);
        // The candidate that lowers the peak most per word written; the first of equal ones.
        let better = |a: &(usize, usize), b: &(usize, usize)| {
            (a.1 * candidates[b.0].cost).cmp(&(b.1 * candidates[a.0].cost)).then(b.0.cmp(&a.0))
        };
        let Some((best, _)) = pays.max_by(better) else { break };
        let best = candidates.remove(best);
        budget -= best.cost;
        best.apply(&mut used);
        chosen.push(best);
    }
    view.rewrite(&chosen, wanted)
}

/// A program and its readers.
struct View<'g> {
    graph: &'g Graph,
    root: Vec<usize>,
    readers: Vec<Vec<usize>>,
    /// For each node, the value that it overwrites in place.
    over: Vec<Option<usize>>,
    /// The programs of elementwise ops with one result.
    programs: Vec<Option<Pointwise>>,
}

impl<'g> View<'g> {
    fn new(graph: &'g Graph, wanted: &[Val]) -> View<'g> {
        let (root, readers) = readers(graph, wanted, |op, ins| op.view(&graph.metas(ins)).is_some());
        let n = graph.size();
        let mut view = View { graph, root, readers, over: vec![None; n], programs: vec![None; n] };
        for i in 0..n {
            let (true, What::Op(op, ins)) = (view.root[i] == i, &graph.nodes[i].what) else { continue };
            view.programs[i] = graph.pointwise(op, ins);
            // As on CUDA, whatever the device: a program is the same on all of them.
            let first = overwritten(graph, &view.root, i, view.programs[i].as_ref(), |r| view.last(r) == i);
            view.over[i] = first.map(|k| view.root[ins[k].0 as usize]);
        }
        view
    }

    /// Words that a value takes: 0 for inputs and for views.
    fn words(&self, i: usize) -> usize {
        let node = &self.graph.nodes[i];
        if self.root[i] == i && matches!(node.what, What::Op(..)) { node.meta.shape.numel() } else { 0 }
    }

    /// The last node that reads a value; the last node of all for a wanted value.
    fn last(&self, i: usize) -> usize {
        self.readers[i].last().map_or(i, |&r| r.min(self.graph.size()))
    }

    fn inputs(&self, i: usize) -> &[Val] {
        if let What::Op(_, ins) = &self.graph.nodes[i].what { ins } else { &[] }
    }

    fn roots(&self, i: usize) -> impl Iterator<Item = usize> {
        self.inputs(i).iter().map(|v| self.root[v.0 as usize])
    }

    /// How often node `i` reads the value `r`.
    fn reads(&self, i: usize, r: usize) -> usize {
        self.roots(i).filter(|x| *x == r).count()
    }

    /// Words in use at each node.
    fn used(&self) -> Vec<isize> {
        let n = self.graph.size();
        let mut steps = vec![0; n + 2];
        for i in 0..n {
            steps[i] += self.words(i) as isize;
            steps[self.last(i) + 1] -= self.words(i) as isize;
            // A value that overwrites another starts where that one ends.
            if let Some(r) = self.over[i] {
                steps[i] -= self.words(r) as isize;
                steps[i + 1] += self.words(r) as isize;
            }
        }
        steps
            .iter()
            .take(n)
            .scan(0, |sum, step| {
                *sum += step;
                Some(*sum)
            })
            .collect()
    }

    /// Words that all ops read and write.
    fn traffic(&self) -> usize {
        let all = |v: &Val| self.graph.node(*v).meta.shape.numel();
        let moved = |i: usize| self.words(i) + self.inputs(i).iter().map(all).sum::<usize>();
        (0..self.graph.size()).filter(|&i| self.words(i) > 0).map(moved).sum()
    }

    /// How a value can be rematerialized.
    fn candidate(&self, i: usize) -> Option<Candidate> {
        let (n, words) = (self.graph.size(), self.words(i));
        let own = self.programs[i].as_ref()?;
        let node = &self.graph.nodes[i];
        if node.checkpointed || self.readers[i].last() >= Some(&n) || !words.is_multiple_of(4) {
            return None;
        }
        // The longest gap between two readers.
        let pairs = self.readers[i].windows(2).map(|r| (r[0], r[1]));
        let (last, first) = pairs.filter(|r| r.1 - r.0 > GAP).max_by_key(|r| (r.1 - r.0, n - r.0))?;
        let joins = |&at: &usize| {
            let other = &self.graph.nodes[at];
            other.meta.shape == node.meta.shape
                && !other.checkpointed
                && self.reads(at, i) == 0
                && self.inputs(i).iter().all(|v| self.inputs(at).contains(v))
                && self.programs[at].as_ref().is_some_and(|p| self.joined(i, own, at, p).fits())
        };
        let at = (last.max(first - GAP) + 1..n.min(first + GAP)).find(joins)?;
        let moved: Vec<usize> = self.readers[i].iter().copied().filter(|&r| first <= r && r < at).collect();
        // Nothing before `at` may read the results of the moved nodes.
        if moved.iter().any(|&m| self.readers[m].iter().any(|&r| r <= at)) {
            return None;
        }
        // All results of a kernel are one value: it is alive as long as any of them, and cannot be in place.
        let end = self.last(i);
        let until = self.last(at).max(end).min(n - 1);
        let mut changes = vec![(last + 1, end, -(words as isize)), (at, until, words as isize)];
        changes.extend(self.over[at].map(|r| (at, at, self.words(r) as isize)));
        for r in moved.iter().flat_map(|&m| self.roots(m)).filter(|&r| r != i && self.last(r) < at) {
            changes.push((self.last(r) + 1, at, self.words(r) as isize));
        }
        Some(Candidate { value: i, at, moved, cost: words, changes })
    }

    /// The program of `at` with that of `i` as one more result.
    fn joined(&self, i: usize, own: &Pointwise, at: usize, of: &Pointwise) -> Pointwise {
        let ins = self.inputs(at);
        Pointwise::trace(ins.len(), |x| {
            let place = |v: &Val| x[ins.iter().position(|w| w == v).unwrap_or(0)];
            let args: Vec<_> = self.inputs(i).iter().map(place).collect();
            [of.eval(x), own.eval(&args)].concat()
        })
    }

    /// Whether two values can both be rematerialized: neither from the other, each by its own kernel, which is not
    /// moved.
    fn agree(&self, a: &Candidate, b: &Candidate) -> bool {
        let apart =
            |a: &Candidate, b: &Candidate| self.reads(a.value, b.value) == 0 && !a.moved.contains(&b.at);
        apart(a, b) && apart(b, a) && a.at != b.at
    }

    fn rewrite(&self, chosen: &[Candidate], wanted: &mut [Val]) -> Result<Graph> {
        let n = self.graph.size();
        let mut to = Rewrite::new(self.graph);
        // For each node, the value that is rematerialized there, and the node that it is moved after, with its views.
        let mut here: Vec<Option<&Candidate>> = vec![None; n];
        let mut after: Vec<usize> = (0..n).collect();
        for c in chosen {
            here[c.at] = Some(c);
            c.moved.iter().for_each(|&m| after[m] = after[m].max(c.at));
        }
        (0..n).for_each(|i| after[i] = after[i].max(after[self.root[i]]));
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); n];
        for i in 0..n {
            if after[i] > i {
                waiting[after[i]].push(i);
                continue;
            }
            if let (Some(c), Some(of)) = (here[i], &self.programs[i])
                && let Some(own) = &self.programs[c.value]
            {
                let shape = self.graph.nodes[i].meta.shape;
                let op = Map::new(self.joined(c.value, own, i, of), shape);
                let ins = to.all(self.inputs(i));
                let value = to.out.record(op.into(), &ins)?;
                for (old, part) in [i, c.value].into_iter().zip(results(&mut to.out, value, 2, shape)?) {
                    to.new[old] = Some(reshape_to(&mut to.out, part, shape)?);
                }
                (c.value + 1..i).filter(|&v| self.root[v] == c.value).for_each(|v| to.keep(v));
            } else {
                to.keep(i);
            }
            std::mem::take(&mut waiting[i]).into_iter().for_each(|m| to.keep(m));
        }
        Ok(to.finish(wanted))
    }
}
