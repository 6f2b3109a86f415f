//! The autograd tape: nodes in the order they were computed, walked backwards to form gradients.
//!
//! Gradients accumulate in a fixed order (C5): nodes in strictly decreasing id, contributions in the order
//! their rule lists them, the first stored as it is and later ones added. A node none of whose parents
//! require a gradient records no rule, and branches the output does not depend on are never walked.

use crate::device::{AnyBuffer, Buffer, DType, Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{self, AnyOp, Io, Recorder, Val, elementwise};
use crate::shape::Shape;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A user's rule: from the upstream gradient to contributions `(node, gradient)`.
pub type BackwardFn = Arc<dyn Fn(&AnyBuffer) -> Result<Vec<(usize, AnyBuffer)>> + Send + Sync>;

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
    /// Scratch memory kept only because the rule may need it.
    pub cleanup: Vec<Buffer>,
    /// How its gradient is passed on.
    pub backward: Backward,
}

/// A growing list of nodes; a node's id is its position.
#[derive(Debug)]
pub struct Tape {
    device: Device,
    nodes: Vec<Node>,
}

fn no_node(op: &str, id: usize, size: usize) -> Error {
    Error::new(op, ErrorKind::Node { id, size })
}

impl Tape {
    /// An empty tape on a device.
    pub fn new(device: &Device) -> Tape {
        Tape { device: device.clone(), nodes: Vec::new() }
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
    pub fn add_node(&mut self, node: Node) -> Result<usize> {
        let id = self.nodes.len();
        if let Some(&parent) = node.parents.iter().find(|&&p| p >= id) {
            return Err(no_node("add_node", parent, id));
        }
        self.nodes.push(node);
        Ok(id)
    }

    /// Appends a value that was not computed here.
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
    pub(crate) fn live_value(&self, op: &str, id: usize) -> Result<&AnyBuffer> {
        let node = self.node(id).ok_or_else(|| no_node(op, id, self.size()))?;
        node.value.as_ref().ok_or_else(|| {
            let why = format!("the value of node {id} was freed by a backward pass; record it again, or keep values with retain");
            Error::new(op, ErrorKind::Gradient { why })
        })
    }

    /// An upstream gradient that must have this shape.
    pub fn require_grad(grad: &AnyBuffer, shape: Shape) -> Result<&AnyBuffer> {
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
    pub fn record(&mut self, op: AnyOp, parents: &[usize]) -> Result<usize> {
        let ins: Vec<&AnyBuffer> =
            parents.iter().map(|&p| self.live_value(op.name(), p)).collect::<Result<_>>()?;
        let value = ops::apply(&self.device, &op, &ins)?;
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

    /// Contributions of node `id` to its parents, given its gradient. Work whose result no parent wants
    /// is not done.
    fn contributions(&self, id: usize, grad: &AnyBuffer) -> Result<Vec<(usize, AnyBuffer)>> {
        let node = &self.nodes[id];
        match &node.backward {
            Backward::None => Ok(Vec::new()),
            Backward::Custom(rule) => rule(grad),
            Backward::Op(op) => {
                let mut emit = Deferred { steps: Vec::new(), metas: Vec::new() };
                let ins: Vec<Val> = node.parents.iter().map(|&p| emit.given(self.nodes[p].meta)).collect();
                let out = emit.given(node.meta);
                let dy = emit.given(grad.meta());
                let grads = op.vjp(&mut emit, Io { ins: &ins, out }, dy)?;
                let wanted: Vec<(usize, Val)> = node
                    .parents
                    .iter()
                    .zip(grads)
                    .filter_map(|(&p, g)| g.filter(|_| self.nodes[p].requires_grad).map(|g| (p, g)))
                    .collect();
                let given = |i: usize| -> Result<AnyBuffer> {
                    match i {
                        i if i < ins.len() => self.live_value("backward", node.parents[i]).cloned(),
                        i if i == ins.len() => self.live_value("backward", id).cloned(),
                        _ => Ok(grad.clone()),
                    }
                };
                emit.run(&self.device, ins.len() + 2, given, &wanted)
            }
        }
    }

    /// One node's step of the walk: passes its gradient, if it has one, on to its parents.
    pub fn backward_step(&self, grads: &mut [Option<AnyBuffer>], id: usize) -> Result<()> {
        let node = self.node(id).ok_or_else(|| no_node("backward", id, self.size()))?;
        if grads.len() != self.size() {
            let kind = ErrorKind::Length { want: self.size(), got: grads.len() };
            return Err(Error::new("backward", kind));
        }
        if !node.requires_grad {
            return Ok(());
        }
        let Some(grad) = grads[id].clone() else { return Ok(()) };
        Tape::require_grad(&grad, node.meta.shape)?;
        for (parent, contribution) in self.contributions(id, &grad)? {
            self.accumulate(grads, parent, contribution)?;
        }
        Ok(())
    }

    fn accumulate(&self, grads: &mut [Option<AnyBuffer>], id: usize, contribution: AnyBuffer) -> Result<()> {
        let node = self.node(id).ok_or_else(|| no_node("backward", id, self.size()))?;
        if !node.requires_grad {
            return Ok(());
        }
        Tape::require_grad(&contribution, node.meta.shape)?;
        grads[id] = Some(match grads[id].take() {
            None => contribution,
            Some(sum) => ops::apply(&self.device, &elementwise::Add {}.into(), &[&sum, &contribution])?,
        });
        Ok(())
    }

    /// The walk over the first `n` nodes: `n - 1`, `n - 2`, …, 0.
    pub fn backward_first(&self, grads: &mut [Option<AnyBuffer>], n: usize) -> Result<()> {
        (0..n).rev().try_for_each(|id| self.backward_step(grads, id))
    }

    /// Backward from an array with one gradient for every node, several of which may be seeds. Returns
    /// the array with everything accumulated.
    pub fn backward_dense_from(&self, grads: Vec<AnyBuffer>) -> Result<Vec<AnyBuffer>> {
        let mut slots: Vec<Option<AnyBuffer>> = grads.into_iter().map(Some).collect();
        if slots.len() != self.size() {
            let kind = ErrorKind::Length { want: self.size(), got: slots.len() };
            return Err(Error::new("backward", kind));
        }
        self.backward_first(&mut slots, self.size())?;
        self.filled(slots)
    }

    /// Backward from one output. Returns a gradient for every node; those the output does not depend on
    /// get zeros, and their rules are not run.
    pub fn backward_dense(&self, out: usize, seed: AnyBuffer) -> Result<Vec<AnyBuffer>> {
        let mut slots = self.seeded(out, seed)?;
        self.backward_first(&mut slots, out + 1)?;
        self.filled(slots)
    }

    fn seeded(&self, out: usize, seed: AnyBuffer) -> Result<Vec<Option<AnyBuffer>>> {
        let node = self.node(out).ok_or_else(|| no_node("backward", out, self.size()))?;
        if seed.meta() != node.meta {
            let kind = ErrorKind::Shapes {
                why: "the seed has another shape than the output",
                left: seed.shape(),
                right: node.meta.shape,
            };
            return Err(Error::new("backward", kind));
        }
        let mut slots = vec![None; self.size()];
        slots[out] = Some(seed);
        Ok(slots)
    }

    fn filled(&self, slots: Vec<Option<AnyBuffer>>) -> Result<Vec<AnyBuffer>> {
        let fill = |(slot, node): (Option<AnyBuffer>, &Node)| match slot {
            Some(grad) => Ok(grad),
            None => AnyBuffer::zeros(&self.device, node.meta.shape),
        };
        slots.into_iter().zip(&self.nodes).map(fill).collect()
    }

    /// Backward from one output, keeping only the gradients of nodes that `retain` names; the others
    /// are freed as soon as they have been passed on. With `free_values`, so are the values of computed
    /// nodes the walk has passed, except the output's.
    pub fn backward_sparse(
        &mut self,
        out: usize,
        seed: AnyBuffer,
        retain: impl Fn(usize) -> bool,
        free_values: bool,
    ) -> Result<BTreeMap<usize, AnyBuffer>> {
        let mut slots = self.seeded(out, seed)?;
        let mut kept = BTreeMap::new();
        for id in (0..=out).rev() {
            self.backward_step(&mut slots, id)?;
            let grad = slots[id].take();
            if let Some(grad) = grad.filter(|_| retain(id)) {
                kept.insert(id, grad);
            }
            if free_values && id != out && !self.nodes[id].parents.is_empty() {
                self.nodes[id].value = None;
                self.nodes[id].cleanup.clear();
            }
        }
        Ok(kept)
    }

    /// Forgets all nodes.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }
}

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

/// Collects what a rule emits without running it, so that only what is wanted gets run.
struct Deferred {
    steps: Vec<Option<(AnyOp, Vec<Val>)>>,
    metas: Vec<Meta>,
}

impl Deferred {
    fn given(&mut self, meta: Meta) -> Val {
        self.steps.push(None);
        self.metas.push(meta);
        Val(self.metas.len() as u32 - 1)
    }

    fn run(
        &self,
        device: &Device,
        given_count: usize,
        given: impl Fn(usize) -> Result<AnyBuffer>,
        wanted: &[(usize, Val)],
    ) -> Result<Vec<(usize, AnyBuffer)>> {
        let mut uses = vec![0usize; self.steps.len()];
        for (_, v) in wanted {
            uses[v.0 as usize] += 1;
        }
        for i in (0..self.steps.len()).rev() {
            if let (Some((_, ins)), true) = (&self.steps[i], uses[i] > 0) {
                ins.iter().for_each(|v| uses[v.0 as usize] += 1);
            }
        }
        let mut values: Vec<Option<AnyBuffer>> = vec![None; self.steps.len()];
        for i in 0..self.steps.len() {
            if uses[i] == 0 {
                continue;
            }
            match &self.steps[i] {
                None => values[i] = Some(given(i.min(given_count))?),
                Some((op, ins)) => {
                    let args: Vec<&AnyBuffer> =
                        ins.iter().filter_map(|v| values[v.0 as usize].as_ref()).collect();
                    let value = ops::apply(device, op, &args)?;
                    values[i] = Some(value);
                    for v in ins {
                        let v = v.0 as usize;
                        uses[v] -= 1;
                        if uses[v] == 0 {
                            values[v] = None;
                        }
                    }
                }
            }
        }
        Ok(wanted.iter().filter_map(|&(p, v)| values[v.0 as usize].clone().map(|g| (p, g))).collect())
    }
}

impl Recorder for Deferred {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let metas: Vec<Meta> = ins.iter().map(|v| self.metas[v.0 as usize]).collect();
        self.metas.push(op.shape(&metas)?);
        self.steps.push(Some((op, ins.to_vec())));
        Ok(Val(self.metas.len() as u32 - 1))
    }

    fn meta(&self, v: Val) -> Meta {
        self.metas[v.0 as usize]
    }
}
