//! The most memory that is needed at a time, lowered: what is made by an elementwise op or along rows (softmax, norms), and
//! is read again long after, is made again for its later readers, of what is there at that time anyway. If an elementwise
//! kernel reads all it is made of, it becomes one more result of that kernel, which costs no more than writing it; readers that
//! come shortly before then go behind it. Only what pays is made again, as the bytes say that are moved and spared.

use super::{Rewrite, What, readers};
use crate::error::Result;
use crate::graph::Graph;
use crate::ops::fused::has_rows;
use crate::ops::layout::reshape_to;
use crate::ops::map::{Map, results};
use crate::ops::program::Program;
use crate::ops::{Recorder, Val};

/// Nodes between two readers from which on a value may be made again, and the most between the first of those and the
/// kernel that makes it.
const GAP: usize = 12;
/// Words from which on a value counts: 16 MiB. A model of smaller ones takes little memory as it is, and its time is that of
/// launches.
pub(super) const LEAST: usize = 1 << 22;
/// The most words that are moved for each by which the most at a time falls: a norm reads one and writes one.
const PRICE: usize = 3;
/// The part of all words a program moves that may be moved in addition. A step whose kernels do nothing but move
/// them gets longer by it; those of large models mostly multiply, so that it is a small part of that.
const PART: usize = 32;

/// A value that can be made again.
struct Again {
    value: usize,
    /// The node before which it is made again, or the one it becomes a result of.
    at: usize,
    /// Whether it becomes a result of `at`, and the nodes that then go behind it.
    joins: Option<Vec<usize>>,
    /// Words that are moved for it.
    cost: usize,
    /// How the memory in use changes: from, to (inclusive), words.
    changes: Vec<(usize, usize, isize)>,
}

pub(super) fn lower(graph: &Graph, wanted: &mut [Val], least: usize) -> Result<Graph> {
    let view = View::new(graph, wanted);
    let mut options: Vec<Again> =
        (0..graph.size()).filter(|&i| view.words(i) >= least.max(1)).filter_map(|i| view.option(i)).collect();
    let mut used = view.used();
    let mut budget = view.traffic() / PART;
    let mut chosen: Vec<Again> = Vec::new();
    loop {
        let most = used.iter().copied().max().unwrap_or(0);
        // The words by which the most falls.
        let gain = |o: &Again| {
            let change =
                |n: usize| -> isize { o.changes.iter().filter(|c| c.0 <= n && n <= c.1).map(|c| c.2).sum() };
            let then = used.iter().enumerate().map(|(n, u)| u + change(n)).max().unwrap_or(0);
            usize::try_from(most - then).unwrap_or(0)
        };
        options.retain(|o| o.cost <= budget && chosen.iter().all(|c| view.agree(o, c)));
        let gains = options.iter().map(|o| gain(o)).enumerate();
        let pays = gains.filter(|&(k, gain)| gain * PRICE >= options[k].cost);
        // The most for each word moved; of equal ones the first.
        let better = |a: &(usize, usize), b: &(usize, usize)| {
            (a.1 * options[b.0].cost).cmp(&(b.1 * options[a.0].cost)).then(b.0.cmp(&a.0))
        };
        let Some((best, _)) = pays.max_by(better) else { break };
        let best = options.remove(best);
        budget -= best.cost;
        for &(from, to, words) in &best.changes {
            used[from..=to].iter_mut().for_each(|u| *u += words);
        }
        chosen.push(best);
    }
    view.rewrite(&chosen, wanted)
}

/// A program and who reads what.
struct View<'g> {
    graph: &'g Graph,
    root: Vec<usize>,
    readers: Vec<Vec<usize>>,
    /// For each node, the one whose memory it takes over.
    over: Vec<Option<usize>>,
    /// The programs of elementwise ops with one result.
    programs: Vec<Option<Program>>,
}

impl<'g> View<'g> {
    fn new(graph: &'g Graph, wanted: &[Val]) -> View<'g> {
        let (root, readers) = readers(graph, wanted, |op, ins| op.view(&graph.metas(ins)).is_some());
        let n = graph.size();
        let mut view = View { graph, root, readers, over: vec![None; n], programs: vec![None; n] };
        for i in 0..n {
            let (true, What::Op(op, ins)) = (view.root[i] == i, &graph.nodes[i].what) else { continue };
            view.programs[i] = op.as_program(&graph.metas(ins)).filter(|p| p.outputs() == 1);
            if view.programs[i].is_some() {
                let dies =
                    |&r: &usize| view.words(r) == view.words(i) && view.last(r) == i && view.reads(i, r) == 1;
                view.over[i] = ins.iter().map(|v| view.root[v.0 as usize]).find(dies);
            }
        }
        view
    }

    /// Words a value takes, 0 for one from outside and for one that lies in another.
    fn words(&self, i: usize) -> usize {
        let node = &self.graph.nodes[i];
        if self.root[i] == i && matches!(node.what, What::Op(..)) { node.meta.shape.numel() } else { 0 }
    }

    /// The last node that reads a value, the last of all for one that is wanted.
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
            // What is written over another value begins as that ends.
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

    /// How a value can be made again.
    fn option(&self, i: usize) -> Option<Again> {
        let (n, words) = (self.graph.size(), self.words(i));
        let What::Op(op, ins) = &self.graph.nodes[i].what else { return None };
        let is_cheap = self.programs[i].is_some() || has_rows(op);
        if !is_cheap || self.graph.nodes[i].again || self.readers[i].last() >= Some(&n) {
            return None;
        }
        let gap = self.readers[i].windows(2).position(|r| r[1] - r[0] > GAP)?;
        let (last, first) = (self.readers[i][gap], self.readers[i][gap + 1]);
        let end = self.last(i);
        if let Some((at, moved)) = self.carrier(i, last, first) {
            // All results of a kernel are one value: it is needed as long as one of them is.
            let until = self.last(at).max(end).min(n - 1);
            let mut changes = vec![(last + 1, end, -(words as isize)), (at, until, words as isize)];
            changes.extend(self.over[at].map(|r| (at, at, self.words(r) as isize)));
            for r in moved.iter().flat_map(|&m| self.roots(m)).filter(|&r| r != i && self.last(r) < at) {
                changes.push((self.last(r) + 1, at, self.words(r) as isize));
            }
            return Some(Again { value: i, at, joins: Some(moved), cost: words, changes });
        }
        // By itself, of what is kept until then.
        let stays = |v: &Val| {
            let r = self.root[v.0 as usize];
            self.words(r) == 0 || self.last(r) >= first
        };
        let cost = words + ins.iter().map(|v| self.graph.node(*v).meta.shape.numel()).sum::<usize>();
        ins.iter().all(stays).then(|| Again {
            value: i,
            at: first,
            joins: None,
            cost,
            changes: vec![(last + 1, first - 1, -(words as isize))],
        })
    }

    /// The elementwise op around node `first` that reads all that the value `i` is made of, and those readers of the value that
    /// must go behind it.
    fn carrier(&self, i: usize, last: usize, first: usize) -> Option<(usize, Vec<usize>)> {
        let own = self.programs[i].as_ref()?;
        let node = &self.graph.nodes[i];
        let fits = |&at: &usize| {
            let other = &self.graph.nodes[at];
            let same = other.meta.shape == node.meta.shape && !other.again && self.words(at) > 0;
            same && node.meta.shape.numel().is_multiple_of(4)
                && self.reads(at, i) == 0
                && self.inputs(i).iter().all(|v| self.inputs(at).contains(v))
                && self.programs[at].as_ref().is_some_and(|p| self.joined(i, own, at, p).fits())
        };
        let at =
            ((last + 1).max(first.saturating_sub(GAP))..self.graph.size().min(first + GAP)).find(fits)?;
        let moved: Vec<usize> = self.readers[i].iter().copied().filter(|&r| r >= first && r < at).collect();
        // Nothing until then may read what they make.
        let movable = moved.iter().all(|&m| self.readers[m].iter().all(|&r| r > at));
        movable.then_some((at, moved))
    }

    /// The program of `at` with that of `i` as one more result.
    fn joined(&self, i: usize, own: &Program, at: usize, of: &Program) -> Program {
        let ins = self.inputs(at);
        Program::trace(ins.len(), |x| {
            let place = |v: &Val| x[ins.iter().position(|w| w == v).unwrap_or(0)];
            let args: Vec<_> = self.inputs(i).iter().map(place).collect();
            [of.eval(x), own.eval(&args)].concat()
        })
    }

    /// Whether two values can both be made again: neither of the other, each by a kernel of its own that stays where it is.
    fn agree(&self, a: &Again, b: &Again) -> bool {
        let apart = |a: &Again, b: &Again| {
            let moved = a.joins.as_deref().unwrap_or_default();
            self.roots(a.value).all(|r| r != b.value) && !moved.contains(&b.at)
        };
        let same_kernel = a.at == b.at && a.joins.is_some() && b.joins.is_some();
        apart(a, b) && apart(b, a) && !same_kernel
    }

    fn rewrite(&self, chosen: &[Again], wanted: &mut [Val]) -> Result<Graph> {
        let n = self.graph.size();
        let mut to = Rewrite::new(self.graph);
        // For each node, what is made again there, and the node that it goes behind.
        let mut here: Vec<Vec<&Again>> = vec![Vec::new(); n];
        let mut behind: Vec<usize> = (0..n).collect();
        for c in chosen {
            here[c.at].push(c);
            for &m in c.joins.iter().flatten() {
                behind[m] = behind[m].max(c.at);
            }
        }
        // Views go with what they are views of.
        (0..n).for_each(|i| behind[i] = behind[i].max(behind[self.root[i]]));
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); n];
        for i in 0..n {
            if behind[i] > i {
                waiting[behind[i]].push(i);
                continue;
            }
            let views = |value: usize| (value + 1..i).filter(move |&v| self.root[v] == value);
            for c in here[i].iter().filter(|c| c.joins.is_none()) {
                to.keep(c.value);
                views(c.value).for_each(|v| to.keep(v));
            }
            let joins = here[i].iter().find(|c| c.joins.is_some());
            match (joins, joins.and_then(|c| self.programs[c.value].as_ref()), &self.programs[i]) {
                (Some(c), Some(own), Some(of)) => {
                    let shape = self.graph.nodes[i].meta.shape;
                    let program = self.joined(c.value, own, i, of);
                    let ins = to.all(self.inputs(i));
                    let value = to.out.record(Map::new(program, shape).into(), &ins)?;
                    let parts = results(&mut to.out, value, 2, shape)?;
                    for (old, part) in [i, c.value].into_iter().zip(parts) {
                        to.new[old] = Some(reshape_to(&mut to.out, part, shape)?);
                    }
                    views(c.value).for_each(|v| to.keep(v));
                }
                _ => to.keep(i),
            }
            waiting[i].clone().into_iter().for_each(|m| to.keep(m));
        }
        Ok(to.finish(wanted))
    }
}
