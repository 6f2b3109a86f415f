//! The autograd tape: nodes in the order they were computed, walked backwards to form gradients.
//!
//! Gradients accumulate in a fixed order: nodes in strictly decreasing id, contributions in the order
//! their rule lists them, the first stored as it is and later ones added. A node none of whose parents
//! require a gradient records no rule, and branches the output does not depend on are never walked.
//!
//! A walk keeps values, so that another can follow, or frees what it has passed: the values of computed nodes except the
//! outputs, and the scratch memory of all nodes ([`Node::cleanup`]). There are both kinds of each walk:
//!
//! | walk | keeps values | frees them |
//! |---|---|---|
//! | the first `n` nodes | [`Tape::backward_first`] | [`Tape::backward_first_free`] |
//! | from one output, all gradients | [`Tape::backward_dense`] | [`Tape::backward_dense_free`] |
//! | from gradients of all nodes | [`Tape::backward_dense_from`] | [`Tape::backward_dense_from_free`] |
//! | some gradients | [`Tape::backward_sparse`], `free_values` false | the same with `free_values` true |

use crate::gradients::{Program, Reverse, Rule, step};
use dittograd_device::{AnyBuffer, Buffer, DType, Device, Meta, readable_bytes};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{self, AnyOp, Recorder, Val, pointwise};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A user's rule: from the upstream gradient to contributions `(node, gradient)`.
pub type BackwardFn = Arc<dyn Fn(&AnyBuffer) -> Result<Vec<(usize, AnyBuffer)>> + Send + Sync>;

/// What is done to a node's gradient, once all contributions are there, before it is passed on or returned.
pub type Hook = Arc<dyn Fn(&AnyBuffer) -> Result<AnyBuffer> + Send + Sync>;

/// How a node passes its gradient on.
#[derive(Clone)]
pub enum Backward {
    /// It does not: a leaf, or a node that needs no gradient.
    None,
    /// By the op's own rule.
    Op(AnyOp),
    /// By a user's rule.
    Custom(BackwardFn),
}

impl fmt::Debug for Backward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backward::None => f.write_str("none"),
            Backward::Op(op) => write!(f, "{op:?}"),
            Backward::Custom(_) => f.write_str("custom"),
        }
    }
}

/// One recorded step.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name for messages.
    pub name: Option<String>,
    /// The forward value; gone once a backward pass that frees values has passed.
    pub value: Option<AnyBuffer>,
    /// Shape and type of the value.
    pub meta: Meta,
    /// Whether gradients are accumulated here and passed on.
    pub requires_grad: bool,
    /// The nodes it was computed from.
    pub parents: Vec<usize>,
    /// Scratch memory kept only because the rule may need it. It is released, for all its handles, when a walk that
    /// frees has passed the node, and when the tape is cleared.
    pub cleanup: Vec<Buffer>,
    /// How its gradient is passed on.
    pub backward: Backward,
}

impl Node {
    /// Releases the scratch memory. The rule may hold handles of it, so dropping these would not free it.
    fn release_scratch(&mut self) {
        self.cleanup.drain(..).for_each(|buffer| {
            buffer.release();
        });
    }

    /// Frees what is not needed once a walk has passed the node: its scratch memory, and its value if it was computed
    /// and is not to be kept.
    fn retire(&mut self, keep_value: bool) {
        self.release_scratch();
        if !keep_value && !self.parents.is_empty() {
            self.value = None;
        }
    }
}

/// A growing list of nodes; a node's id is its position.
pub struct Tape {
    device: Device,
    nodes: Vec<Node>,
    /// In the order they were given.
    hooks: Vec<(usize, Hook)>,
}

#[track_caller]
fn no_node(op: &str, id: usize, size: usize) -> Error {
    Error::new(op, ErrorKind::Node { id, size })
}

impl Tape {
    /// An empty tape on a device.
    pub fn new(device: &Device) -> Tape {
        Tape { device: device.clone(), nodes: Vec::new(), hooks: Vec::new() }
    }

    /// The device values live on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of nodes.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The node, if there is one of that id.
    pub fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.get(id)
    }

    /// The node's value, if there is one.
    pub fn value(&self, id: usize) -> Option<&AnyBuffer> {
        self.nodes.get(id)?.value.as_ref()
    }

    /// Appends a node and returns its id, which is the size before. Parents must be earlier nodes.
    #[track_caller]
    pub fn add_node(&mut self, node: Node) -> Result<usize> {
        let id = self.nodes.len();
        if let Some(&parent) = node.parents.iter().find(|&&p| p >= id) {
            return Err(no_node("add_node", parent, id));
        }
        self.nodes.push(node);
        Ok(id)
    }

    /// Appends a value that was not computed here.
    #[track_caller]
    pub fn leaf(&mut self, value: AnyBuffer, name: Option<&str>, requires_grad: bool) -> Result<usize> {
        self.device.check_accepts("leaf", value.buffer())?;
        let meta = value.meta();
        self.add_node(Node {
            name: name.map(str::to_string),
            meta,
            value: Some(value),
            requires_grad: requires_grad && meta.dtype == DType::F32,
            parents: Vec::new(),
            cleanup: Vec::new(),
            backward: Backward::None,
        })
    }

    /// The value of a node that must have this shape.
    #[track_caller]
    pub fn require_value(&self, id: usize, shape: Shape) -> Result<&AnyBuffer> {
        let value = self.live_value("require_value", id)?;
        if value.shape() != shape {
            let kind =
                ErrorKind::Shapes { why: "the node has another shape", left: value.shape(), right: shape };
            return Err(Error::new("require_value", kind));
        }
        Ok(value)
    }

    /// The value of a node, or why there is none.
    #[track_caller]
    pub(crate) fn live_value(&self, op: &str, id: usize) -> Result<&AnyBuffer> {
        let node = self.node(id).ok_or_else(|| no_node(op, id, self.size()))?;
        node.value.as_ref().ok_or_else(|| {
            let why = format!(
                "the value of node {id} was freed by a backward pass or a scope; compute it again, or use backward_retain"
            );
            Error::new(op, ErrorKind::Gradient { why })
        })
    }

    /// An upstream gradient, which must be numbers of this shape.
    #[track_caller]
    pub fn require_grad(grad: &AnyBuffer, shape: Shape) -> Result<&AnyBuffer> {
        grad.meta().dtype.require(DType::F32, "backward", 0)?;
        if grad.shape() != shape {
            let kind = ErrorKind::Shapes {
                why: "the upstream gradient has another shape than the value",
                left: grad.shape(),
                right: shape,
            };
            return Err(Error::new("backward", kind));
        }
        Ok(grad)
    }

    /// Runs an op on nodes and appends its value. On any error the tape is as before.
    #[track_caller]
    pub fn record(&mut self, op: AnyOp, parents: &[usize]) -> Result<usize> {
        let ins: Vec<&AnyBuffer> =
            parents.iter().map(|&p| self.live_value(op.name(), p)).collect::<Result<_>>()?;
        let value = dittograd_ops::apply(&self.device, &op, &ins)?;
        let requires_grad = op.differentiable() && parents.iter().any(|&p| self.nodes[p].requires_grad);
        self.add_node(Node {
            name: Some(op.name().to_string()),
            meta: value.meta(),
            value: Some(value),
            requires_grad,
            parents: parents.to_vec(),
            cleanup: Vec::new(),
            backward: if requires_grad { Backward::Op(op) } else { Backward::None },
        })
    }

    /// Appends a user's op of one input: `forward` computes the value, `backward` gets the input and the
    /// upstream gradient and returns the input's gradient. Shapes are checked on both ways.
    #[track_caller]
    pub fn unary(
        &mut self,
        name: &str,
        x: usize,
        (in_shape, out_shape): (Shape, Shape),
        forward: impl FnOnce(&AnyBuffer) -> Result<AnyBuffer>,
        backward: impl Fn(&AnyBuffer, &AnyBuffer) -> Result<AnyBuffer> + Send + Sync + 'static,
    ) -> Result<usize> {
        let input = self.require_value(x, in_shape)?.clone();
        let value = checked(name, forward(&input)?, out_shape)?;
        let rule_name = name.to_string();
        let rule: BackwardFn = Arc::new(move |up| {
            Tape::require_grad(up, out_shape)?;
            Ok(vec![(x, checked(&rule_name, backward(&input, up)?, in_shape)?)])
        });
        self.custom(name, value, vec![x], rule)
    }

    /// Appends a user's op of two inputs, like [`Tape::unary`]; contributions go to `a`, then to `b`.
    #[track_caller]
    pub fn binary(
        &mut self,
        name: &str,
        (a, b): (usize, usize),
        (a_shape, b_shape, out_shape): (Shape, Shape, Shape),
        forward: impl FnOnce(&AnyBuffer, &AnyBuffer) -> Result<AnyBuffer>,
        backward: impl Fn(&AnyBuffer, &AnyBuffer, &AnyBuffer) -> Result<(AnyBuffer, AnyBuffer)>
        + Send
        + Sync
        + 'static,
    ) -> Result<usize> {
        let left = self.require_value(a, a_shape)?.clone();
        let right = self.require_value(b, b_shape)?.clone();
        let value = checked(name, forward(&left, &right)?, out_shape)?;
        let rule_name = name.to_string();
        let rule: BackwardFn = Arc::new(move |up| {
            Tape::require_grad(up, out_shape)?;
            let (da, db) = backward(&left, &right, up)?;
            Ok(vec![(a, checked(&rule_name, da, a_shape)?), (b, checked(&rule_name, db, b_shape)?)])
        });
        self.custom(name, value, vec![a, b], rule)
    }

    #[track_caller]
    fn custom(
        &mut self,
        name: &str,
        value: AnyBuffer,
        parents: Vec<usize>,
        rule: BackwardFn,
    ) -> Result<usize> {
        let requires_grad = parents.iter().any(|&p| self.nodes[p].requires_grad);
        self.add_node(Node {
            name: Some(name.to_string()),
            meta: value.meta(),
            value: Some(value),
            requires_grad,
            parents,
            cleanup: Vec::new(),
            backward: if requires_grad { Backward::Custom(rule) } else { Backward::None },
        })
    }

    /// One node's step of the walk: passes its gradient, if it has one, on to its parents.
    #[track_caller]
    pub fn backward_step(&self, grads: &mut [Option<AnyBuffer>], id: usize) -> Result<()> {
        let _strict = environment::enter();
        self.node(id).ok_or_else(|| no_node("backward", id, self.size()))?;
        if grads.len() != self.size() {
            let kind = ErrorKind::Length { want: self.size(), got: grads.len() };
            return Err(Error::new("backward", kind));
        }
        step(&mut &*self, grads, id)
    }

    /// Has `hook` look at the gradient of a node in every walk, once it is complete, and replace it. Several hooks of a
    /// node follow each other.
    #[track_caller]
    pub fn hook(&mut self, id: usize, hook: Hook) -> Result<()> {
        let node = self.node(id).ok_or_else(|| no_node("hook", id, self.size()))?;
        if !node.requires_grad {
            let why = "this value requires no gradient, so there is none to hook".to_string();
            return Err(Error::new("hook", ErrorKind::Gradient { why }));
        }
        self.hooks.push((id, hook));
        Ok(())
    }

    #[track_caller]
    fn hooked(&self, id: usize, grad: AnyBuffer) -> Result<AnyBuffer> {
        let meta = grad.meta();
        self.hooks.iter().filter(|h| h.0 == id).try_fold(grad, |grad, (_, hook)| {
            let grad = hook(&grad)?;
            self.device.check_accepts("hook", grad.buffer())?;
            checked("hook", grad, meta.shape)
        })
    }

    /// The walk over the first `n` nodes: `n - 1`, `n - 2`, …, 0.
    #[track_caller]
    pub fn backward_first(&self, grads: &mut [Option<AnyBuffer>], n: usize) -> Result<()> {
        (0..n).rev().try_for_each(|id| self.backward_step(grads, id))
    }

    /// As [`Tape::backward_first`], and frees what it has passed, except the values of the nodes in `kept`.
    #[track_caller]
    pub fn backward_first_free(
        &mut self,
        grads: &mut [Option<AnyBuffer>],
        n: usize,
        kept: &[usize],
    ) -> Result<()> {
        for id in (0..n).rev() {
            self.backward_step(grads, id)?;
            self.nodes[id].retire(kept.contains(&id));
        }
        Ok(())
    }

    /// Backward from an array with one gradient for every node, of the node's shape, several of which may be seeds. Returns
    /// the array with everything accumulated.
    #[track_caller]
    pub fn backward_dense_from(&self, grads: Vec<AnyBuffer>) -> Result<Vec<AnyBuffer>> {
        let mut slots = self.given(grads)?;
        self.backward_first(&mut slots, self.size())?;
        self.filled(slots)
    }

    /// As [`Tape::backward_dense_from`], and frees what it has passed, the values of all computed nodes.
    #[track_caller]
    pub fn backward_dense_from_free(&mut self, grads: Vec<AnyBuffer>) -> Result<Vec<AnyBuffer>> {
        let mut slots = self.given(grads)?;
        self.backward_first_free(&mut slots, self.size(), &[])?;
        self.filled(slots)
    }

    /// A slot for every node with its gradient. There must be one for each, of the node's shape.
    #[track_caller]
    fn given(&self, grads: Vec<AnyBuffer>) -> Result<Vec<Option<AnyBuffer>>> {
        let slots: Vec<Option<AnyBuffer>> = grads.into_iter().map(Some).collect();
        if slots.len() != self.size() {
            let kind = ErrorKind::Length { want: self.size(), got: slots.len() };
            return Err(Error::new("backward", kind));
        }
        for (slot, node) in slots.iter().flatten().zip(&self.nodes) {
            Tape::require_grad(slot, node.meta.shape)?;
        }
        Ok(slots)
    }

    /// Backward from one output. Returns a gradient for every node; those the output does not depend on
    /// get zeros, and their rules are not run.
    #[track_caller]
    pub fn backward_dense(&self, out: usize, seed: AnyBuffer) -> Result<Vec<AnyBuffer>> {
        let mut slots = self.seeded(vec![(out, seed)])?;
        self.backward_first(&mut slots, out + 1)?;
        self.filled(slots)
    }

    /// As [`Tape::backward_dense`], and frees what it has passed, except the output's value.
    #[track_caller]
    pub fn backward_dense_free(&mut self, out: usize, seed: AnyBuffer) -> Result<Vec<AnyBuffer>> {
        let mut slots = self.seeded(vec![(out, seed)])?;
        self.backward_first_free(&mut slots, out + 1, &[out])?;
        self.filled(slots)
    }

    /// A slot for every node, with the seeds of some in place. Seeds of one node add up.
    #[track_caller]
    fn seeded(&self, seeds: Vec<(usize, AnyBuffer)>) -> Result<Vec<Option<AnyBuffer>>> {
        let mut slots = vec![None; self.size()];
        for (out, seed) in seeds {
            let node = self.node(out).ok_or_else(|| no_node("backward", out, self.size()))?;
            node.meta.dtype.require(DType::F32, "backward", 0)?;
            if seed.meta() != node.meta {
                let kind = ErrorKind::Shapes {
                    why: "the seed has another shape than the output",
                    left: seed.shape(),
                    right: node.meta.shape,
                };
                return Err(Error::new("backward", kind));
            }
            slots[out] = Some(self.sum(slots[out].take(), seed, node.meta.shape)?);
        }
        Ok(slots)
    }

    /// A gradient of this shape with one more contribution. Both must have it: nothing is broadcast.
    #[track_caller]
    fn sum(&self, so_far: Option<AnyBuffer>, more: AnyBuffer, shape: Shape) -> Result<AnyBuffer> {
        Tape::require_grad(&more, shape)?;
        match so_far {
            None => Ok(more),
            Some(sum) => {
                Tape::require_grad(&sum, shape)?;
                dittograd_ops::apply(&self.device, &pointwise::Add {}.into(), &[&sum, &more])
            }
        }
    }

    #[track_caller]
    fn filled(&self, slots: Vec<Option<AnyBuffer>>) -> Result<Vec<AnyBuffer>> {
        let fill = |(slot, node): (Option<AnyBuffer>, &Node)| match slot {
            Some(grad) => Ok(grad),
            None => AnyBuffer::zeros(&self.device, node.meta.shape),
        };
        slots.into_iter().zip(&self.nodes).map(fill).collect()
    }

    /// Backward from one output, keeping only the gradients of nodes that `retain` names; the others
    /// are freed as soon as they have been passed on. With `free_values`, so are the values of computed nodes the walk has
    /// passed, except the output's, and the scratch memory of all of them.
    #[track_caller]
    pub fn backward_sparse(
        &mut self,
        out: usize,
        seed: AnyBuffer,
        retain: impl Fn(usize) -> bool,
        free_values: bool,
    ) -> Result<BTreeMap<usize, AnyBuffer>> {
        self.backward_seeds(vec![(out, seed)], retain, free_values)
    }

    /// As [`Tape::backward_sparse`], from several outputs, each with its seed.
    #[track_caller]
    pub fn backward_seeds(
        &mut self,
        seeds: Vec<(usize, AnyBuffer)>,
        retain: impl Fn(usize) -> bool,
        free_values: bool,
    ) -> Result<BTreeMap<usize, AnyBuffer>> {
        let outs: Vec<usize> = seeds.iter().map(|s| s.0).collect();
        let mut slots = self.seeded(seeds)?;
        let mut kept = BTreeMap::new();
        for id in (0..outs.iter().max().map_or(0, |last| last + 1)).rev() {
            self.backward_step(&mut slots, id)?;
            let grad = slots[id].take();
            if let Some(grad) = grad.filter(|_| retain(id)) {
                kept.insert(id, grad);
            }
            if free_values {
                self.nodes[id].retire(outs.contains(&id));
            }
        }
        Ok(kept)
    }

    /// Frees the values of nodes from `first` on, except `kept`. Nodes stay, as shapes.
    pub(crate) fn free_values(&mut self, first: usize, kept: &[usize]) {
        for (id, node) in self.nodes.iter_mut().enumerate().skip(first) {
            if !kept.contains(&id) {
                node.release_scratch();
                node.value = None;
            }
        }
    }

    /// Forgets all nodes and releases their scratch memory.
    pub fn clear(&mut self) {
        self.nodes.iter_mut().for_each(Node::release_scratch);
        self.nodes.clear();
        self.hooks.clear();
    }
}

/// A walk that runs the rules of ops at once.
impl Reverse for &Tape {
    type Gradient = AnyBuffer;

    #[track_caller]
    fn complete(&mut self, id: usize, grad: AnyBuffer) -> Result<Option<AnyBuffer>> {
        let node = &self.nodes[id];
        Tape::require_grad(&grad, node.meta.shape)?;
        if !node.requires_grad {
            return Ok(None);
        }
        self.hooked(id, grad).map(Some)
    }

    /// Work whose result no parent wants is not done.
    #[track_caller]
    fn contributions(&mut self, id: usize, grad: &AnyBuffer) -> Result<Vec<(usize, AnyBuffer)>> {
        let node = &self.nodes[id];
        match &node.backward {
            Backward::None => Ok(Vec::new()),
            Backward::Custom(rule) => rule(grad),
            Backward::Op(op) => {
                let metas = node.parents.iter().map(|&p| self.nodes[p].meta).chain([node.meta, grad.meta()]);
                let wanted: Vec<bool> = node.parents.iter().map(|&p| self.nodes[p].requires_grad).collect();
                let rule = Rule::of(op, metas.collect(), &wanted)?;
                let given = |i: usize| match node.parents.get(i) {
                    Some(&p) => self.live_value("backward", p).cloned(),
                    None if i == node.parents.len() => self.live_value("backward", id).cloned(),
                    None => Ok(grad.clone()),
                };
                let contributions = rule.run(&self.device, given)?;
                let named = node.parents.iter().zip(contributions);
                Ok(named.filter_map(|(&p, g)| g.map(|g| (p, g))).collect())
            }
        }
    }

    #[track_caller]
    fn accumulate(
        &mut self,
        grads: &mut [Option<AnyBuffer>],
        id: usize,
        contribution: AnyBuffer,
    ) -> Result<()> {
        let node = self.node(id).ok_or_else(|| no_node("backward", id, self.size()))?;
        if !node.requires_grad {
            return Ok(());
        }
        grads[id] = Some(self.sum(grads[id].take(), contribution, node.meta.shape)?);
        Ok(())
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("device", &self.device).field("nodes", &self.nodes).finish()
    }
}

/// Ops recorded on a tape run at once.
impl Recorder for Tape {
    #[track_caller]
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let ids: Vec<usize> = ins.iter().map(|v| v.0 as usize).collect();
        Ok(Val(Tape::record(self, op, &ids)? as u32))
    }

    fn meta(&self, v: Val) -> Meta {
        self.nodes.get(v.0 as usize).map_or(Meta::f32(Shape::SCALAR), |n| n.meta)
    }
}

impl Program for Tape {
    #[track_caller]
    fn origin(&self, v: Val) -> Result<Option<(AnyOp, Vec<Val>)>> {
        let node = &self.nodes[v.0 as usize];
        match &node.backward {
            Backward::Op(op) => Ok(Some((op.clone(), node.parents.iter().map(|&p| Val(p as u32)).collect()))),
            Backward::None => Ok(None),
            Backward::Custom(_) => {
                let name = node.name.as_deref().unwrap_or("a user's rule");
                let why = format!("{name} has a rule of its own, which has no gradient; use backward");
                Err(Error::new("grad", ErrorKind::Gradient { why }))
            }
        }
    }

    fn requires_grad(&self, v: Val) -> bool {
        self.nodes[v.0 as usize].requires_grad
    }
}

/// One node a line: id, name, type and shape, whether it gets a gradient, its bytes (or what became of its value), and its
/// parents; then what they hold together, memory that several share counted once.
impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first: BTreeMap<usize, usize> = BTreeMap::new();
        let (mut live, mut freed) = (0, 0);
        let mut rows = Vec::with_capacity(self.size());
        for (id, node) in self.nodes.iter().enumerate() {
            let held = match node.value.as_ref().map(AnyBuffer::buffer) {
                Some(buffer) if !buffer.is_released() => {
                    let (bytes, allocation) = buffer.allocation();
                    let owner = *first.entry(allocation).or_insert(id);
                    live += if owner == id { bytes } else { 0 };
                    if owner == id { readable_bytes(bytes) } else { format!("in %{owner}") }
                }
                value => {
                    freed += 1;
                    if value.is_some() { "released" } else { "freed" }.to_string()
                }
            };
            let name = match (&node.name, &node.backward) {
                (Some(name), Backward::Custom(_)) => format!("{name} (own rule)"),
                (Some(name), _) => name.clone(),
                (None, _) => "-".to_string(),
            };
            let value = format!("{}{}", node.meta.dtype.name(), node.meta.shape);
            let grad = if node.requires_grad { "grad" } else { "-" }.to_string();
            let parents: Vec<String> = node.parents.iter().map(|p| format!("%{p}")).collect();
            rows.push([format!("%{id}"), name, value, grad, held, parents.join(" ")]);
        }
        let wide = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(wide).collect();
        for row in &rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        let grads = self.nodes.iter().filter(|n| n.requires_grad).count();
        write!(f, "{} nodes, {grads} with gradient, {} live", self.size(), readable_bytes(live))?;
        if freed > 0 { write!(f, ", {freed} without a value") } else { Ok(()) }
    }
}

#[track_caller]
fn checked(op: &str, value: AnyBuffer, shape: Shape) -> Result<AnyBuffer> {
    if value.meta() != Meta::f32(shape) {
        let kind = ErrorKind::Shapes {
            why: "the closure returned another shape than declared",
            left: value.shape(),
            right: shape,
        };
        return Err(Error::new(op, kind));
    }
    Ok(value)
}
