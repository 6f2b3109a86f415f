//! Programs with the shapes of their values in their types. [`GraphData`] is built node by node; each node sees the
//! inputs and all earlier nodes, and the program compiles to a tape. [`CompiledGraph`] and [`CompiledScalar`] are
//! compiled once and run many times, with derivatives.
//!
//! A list of shapes such as `TListOf![Rank2<2, 3>, Rank1<3>]` ([`Shapes`]) describes three kinds of contexts: handles
//! while a program is built, host tensors of any number type ([`Value`]) as inputs and outputs, and indices.
//!
//! ```
//! use dittograd::prelude::*;
//! use dittograd::scalar::Ratio;
//! use dittograd::typed::{GraphData, Rank1, TList, TListOf, tlist};
//!
//! # fn main() -> Result<()> {
//! // y = sum (x w) over the inputs x and w: the third and the fourth value.
//! let graph = GraphData::<TListOf![Rank1<2>, Rank1<2>]>::new()?
//!     .node(|_, c| c.get::<0>().mul(*c.get::<1>()))?
//!     .node(|_, c| c.get::<2>().sum())?;
//!
//! // In exact fractions; with Device::cpu() and f32 it is the same.
//! let device = Device::host::<Ratio>();
//! let q = |a, b| Tensor::new(&[2], vec![Ratio::new(a, 3), Ratio::new(b, 3)])?.typed::<Rank1<2>>();
//! let (tape, values) = graph.compile(&device, tlist![q(1, 2)?, q(6, 9)?])?;
//! assert_eq!(values.get::<3>().tensor().item()?, Ratio::new(8, 3));
//! let gradients = graph.backward(&tape)?;
//! assert_eq!(*gradients.get::<0>(), q(6, 9)?);
//! # Ok(())
//! # }
//! ```

use super::list::Append;
use super::{Cons, Dims, Element, Nil, TList, Typed, assert, sizes};
use crate::HostDevice;
use crate::device::{AnyBuffer, DType, Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Function, Graph, Node};
use crate::ops::{AnyTensor, Val};
use crate::scalar::Scalar;
use crate::session::{Session, Var};
use crate::shape::Shape;
use crate::tape::Tape;
use crate::tensor::Tensor;
use std::fmt;
use std::marker::PhantomData;

/// A host tensor with its shape `S` in its type.
pub struct Value<S, T = f32> {
    /// Boxed, since long lists of values are on the stack several times while they are made.
    tensor: Box<Tensor<T>>,
    is: PhantomData<S>,
}

impl<S, T: Clone> Clone for Value<S, T> {
    fn clone(&self) -> Self {
        Value { tensor: self.tensor.clone(), is: PhantomData }
    }
}

impl<S, T: PartialEq> PartialEq for Value<S, T> {
    fn eq(&self, other: &Self) -> bool {
        self.tensor == other.tensor
    }
}

impl<S, T: fmt::Debug> fmt::Debug for Value<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

impl<S, T> Value<S, T> {
    /// The tensor without the type.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.tensor
    }

    /// The tensor without the type.
    pub fn into_tensor(self) -> Tensor<T> {
        *self.tensor
    }
}

/// Checks the shape.
impl<S: Dims, T: Clone> TryFrom<Tensor<T>> for Value<S, T> {
    type Error = Error;

    #[track_caller]
    fn try_from(tensor: Tensor<T>) -> Result<Self> {
        let (dims, shape) = (tensor.shape().dims().to_vec(), tensor.shape());
        let agree = |(known, d): (&Option<usize>, &usize)| known.is_none_or(|n| n == *d);
        if dims.len() != S::DIMS.len() || !S::DIMS.iter().zip(&dims).all(agree) {
            let why = format!("the tensor has shape {shape}, its type says {}", sizes(S::DIMS));
            return Err(Error::argument("typed", "shape", why));
        }
        Ok(Value { tensor: Box::new(tensor), is: PhantomData })
    }
}

/// Host tensors with their shapes in their types.
pub trait ToTyped<T: Clone> {
    /// The same tensor with its shape in its type. Errors if it has another shape. See [`crate::typed::graph`].
    #[track_caller]
    fn typed<S: Dims>(self) -> Result<Value<S, T>>;
}

impl<T: Clone> ToTyped<T> for Tensor<T> {
    #[track_caller]
    fn typed<S: Dims>(self) -> Result<Value<S, T>> {
        Value::try_from(self)
    }
}

/// A list of shapes with sizes that the compiler knows: the description of a context.
pub trait Shapes: TList + 'static {
    /// Handles of numbers of these shapes.
    type Vars<'s>: TList;
    /// Handles of indices of these shapes.
    type Indices<'s>: TList;
    /// Host tensors of these shapes.
    type Values<T: Clone>: Erase<T>;

    /// The shapes without their types.
    #[track_caller]
    fn shapes() -> Result<Vec<Shape>>;
    /// Typed handles. There must be as many, with these shapes.
    #[track_caller]
    fn vars<'s>(vars: &[Var<'s>]) -> Result<Self::Vars<'s>>;
    /// Typed handles of indices.
    #[track_caller]
    fn indices<'s>(vars: &[Var<'s>]) -> Result<Self::Indices<'s>>;

    /// Zeros.
    #[track_caller]
    fn zeros<T: Scalar>() -> Result<Self::Values<T>> {
        Self::Values::restore(Self::shapes()?.into_iter().map(|s| Tensor::full(s, T::c(0.0))).collect())
    }

    /// Zeros, except for `value` at position `at`, counted from 0. Errors if there is no such position, or the shape
    /// differs.
    #[track_caller]
    fn single<T: Scalar>(at: usize, value: Tensor<T>) -> Result<Self::Values<T>> {
        let mut all = Self::zeros::<T>()?.erase();
        let size = all.len();
        *all.get_mut(at).ok_or_else(|| Error::new("single", ErrorKind::Node { id: at, size }))? = value;
        Self::Values::restore(all)
    }
}

impl Shapes for Nil {
    type Vars<'s> = Nil;
    type Indices<'s> = Nil;
    type Values<T: Clone> = Nil;

    #[track_caller]
    fn shapes() -> Result<Vec<Shape>> {
        Ok(Vec::new())
    }

    #[track_caller]
    fn vars<'s>(vars: &[Var<'s>]) -> Result<Nil> {
        ended(vars.len())
    }

    #[track_caller]
    fn indices<'s>(vars: &[Var<'s>]) -> Result<Nil> {
        ended(vars.len())
    }
}

impl<S: Dims + 'static, R: Shapes> Shapes for Cons<S, R> {
    type Vars<'s> = Cons<Typed<'s, S>, R::Vars<'s>>;
    type Indices<'s> = Cons<Typed<'s, S, u32>, R::Indices<'s>>;
    type Values<T: Clone> = Cons<Value<S, T>, R::Values<T>>;

    #[track_caller]
    fn shapes() -> Result<Vec<Shape>> {
        const { assert::all_known("context", S::DIMS) };
        let mut all = vec![Shape::new(&S::DIMS.iter().copied().flatten().collect::<Vec<_>>())?];
        all.extend(R::shapes()?);
        Ok(all)
    }

    #[track_caller]
    fn vars<'s>(vars: &[Var<'s>]) -> Result<Self::Vars<'s>> {
        let (head, tail) = cut(vars)?;
        Ok(Cons { head: typed(*head)?, tail: R::vars(tail)? })
    }

    #[track_caller]
    fn indices<'s>(vars: &[Var<'s>]) -> Result<Self::Indices<'s>> {
        let (head, tail) = cut(vars)?;
        Ok(Cons { head: typed(*head)?, tail: R::indices(tail)? })
    }
}

#[track_caller]
fn typed<'s, S: Dims, E: Element>(var: Var<'s>) -> Result<Typed<'s, S, E>> {
    Typed::try_from(var)
}

#[track_caller]
fn cut<X>(list: &[X]) -> Result<(&X, &[X])> {
    list.split_first().ok_or_else(|| Error::new("context", ErrorKind::Length { want: 1, got: 0 }))
}

#[track_caller]
fn ended(left: usize) -> Result<Nil> {
    if left == 0 { Ok(Nil) } else { Err(Error::new("context", ErrorKind::Length { want: 0, got: left })) }
}

/// A context of host tensors that converts to a plain list and back. Its type has the shapes.
pub trait Erase<T: Clone>: TList {
    /// The tensors without their types.
    fn erase(self) -> Vec<Tensor<T>>;
    /// Typed tensors. There must be as many, with these shapes.
    #[track_caller]
    fn restore(tensors: Vec<Tensor<T>>) -> Result<Self>;
}

impl<T: Clone> Erase<T> for Nil {
    fn erase(self) -> Vec<Tensor<T>> {
        Vec::new()
    }

    #[track_caller]
    fn restore(tensors: Vec<Tensor<T>>) -> Result<Nil> {
        ended(tensors.len())
    }
}

impl<T: Clone, S: Dims, R: Erase<T>> Erase<T> for Cons<Value<S, T>, R> {
    fn erase(self) -> Vec<Tensor<T>> {
        let mut all = vec![self.head.into_tensor()];
        all.extend(self.tail.erase());
        all
    }

    #[track_caller]
    fn restore(tensors: Vec<Tensor<T>>) -> Result<Self> {
        let mut tensors = tensors.into_iter();
        let missing = || Error::new("context", ErrorKind::Length { want: 1, got: 0 });
        let head = Value::try_from(tensors.next().ok_or_else(missing)?)?;
        Ok(Cons { head, tail: R::restore(tensors.collect())? })
    }
}

/// Arithmetic of contexts, element by element.
pub trait Context<T: Scalar>: Erase<T> + Clone {
    /// Applies `f` to the elements of two contexts.
    #[track_caller]
    fn zip(&self, other: &Self, f: impl Fn(T, T) -> T) -> Result<Self> {
        let pairs = self.clone().erase().into_iter().zip(other.clone().erase());
        let one = |(a, b): (Tensor<T>, Tensor<T>)| {
            Tensor::with_shape(a.shape(), a.data().iter().zip(b.data()).map(|(x, y)| f(*x, *y)).collect())
        };
        Self::restore(pairs.map(one).collect::<Result<_>>()?)
    }

    /// The sum of two contexts.
    #[track_caller]
    fn add(&self, other: &Self) -> Result<Self> {
        self.zip(other, |x, y| x + y)
    }

    /// The difference of two contexts.
    #[track_caller]
    fn sub(&self, other: &Self) -> Result<Self> {
        self.zip(other, |x, y| x - y)
    }

    /// Every element times `k`.
    #[track_caller]
    fn scale(&self, k: T) -> Result<Self> {
        self.zip(self, |x, _| k * x)
    }

    /// The sum of the products of all elements, in order.
    fn dot(&self, other: &Self) -> T {
        let (a, b) = (self.clone().erase(), other.clone().erase());
        let pairs = a.iter().zip(&b).flat_map(|(a, b)| a.data().iter().zip(b.data()));
        pairs.fold(T::c(0.0), |sum, (x, y)| sum + *x * *y)
    }
}

impl<T: Scalar, C: Erase<T> + Clone> Context<T> for C {}

/// The shapes of inputs `G` and nodes `N` together.
pub type All<G, N> = <G as Append<N>>::Output;

/// Host tensors for all values of a program: its inputs `G`, then its nodes `N`.
pub type Values<G, N, T> = <All<G, N> as Shapes>::Values<T>;

/// A program with one more node.
pub type Grown<G, N, D, S> = GraphData<G, All<N, Cons<S, Nil>>, D>;

/// Names types without holding values of them.
type Names<T> = PhantomData<fn() -> T>;

/// A program with inputs of shapes `G` that computes values of shapes `N`, its nodes. A node may use any number of
/// earlier values, and any ops. Indices of shapes `D` are further inputs, without gradients.
///
/// Value `i` of the context `G` followed by `N` is node [`ids()[i]`](GraphData::ids) of the tape that it
/// [compiles](GraphData::compile) to. That is `i` itself if every node is one op and there are no indices, which come
/// between `G` and `N`. For a program that is compiled once and run many times, see [`CompiledGraph`].
pub struct GraphData<G, N = Nil, D = Nil> {
    graph: Graph,
    /// What each node is in the graph; of a node of several ops, the last one.
    nodes: Vec<Val>,
    /// Seed of the random draws.
    seed: u64,
    is: Names<(G, N, D)>,
}

impl<G, N, D> Clone for GraphData<G, N, D> {
    fn clone(&self) -> Self {
        GraphData { graph: self.graph.clone(), nodes: self.nodes.clone(), seed: self.seed, is: PhantomData }
    }
}

impl<G, N, D> fmt::Debug for GraphData<G, N, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.graph, f)
    }
}

impl<G: Shapes, D: Shapes> GraphData<G, Nil, D> {
    /// A program that computes nothing yet.
    #[track_caller]
    pub fn new() -> Result<Self> {
        GraphData::seeded(0)
    }

    /// A program that computes nothing yet, with the seed of its random draws.
    #[track_caller]
    pub fn seeded(seed: u64) -> Result<Self> {
        let graph = Graph::trace(&Device::host::<f32>(), &takes::<G, D>()?, |_, _| Ok(Vec::new()))?;
        Ok(GraphData { graph, nodes: Vec::new(), seed, is: PhantomData })
    }
}

impl<G: Shapes + Append<N>, N: Shapes, D: Shapes> GraphData<G, N, D>
where
    All<G, N>: Shapes,
{
    /// Names the inputs, then the indices: see [`Graph::name_inputs`].
    #[track_caller]
    pub fn with_names(mut self, names: &[&str]) -> Result<Self> {
        self.graph.name_inputs(names)?;
        Ok(self)
    }

    /// Appends a node: `f` computes it from all earlier values, by any number of ops, or as a constant. It must return
    /// the value that it computes last.
    #[track_caller]
    pub fn node<S: Dims, F>(self, f: F) -> Result<Grown<G, N, D, S>>
    where
        N: Append<Cons<S, Nil>>,
        F: for<'s> FnOnce(&'s Session, <All<G, N> as Shapes>::Vars<'s>) -> Result<Typed<'s, S>>,
    {
        self.grow(|s, values, _| Ok(f(s, <All<G, N>>::vars(values)?)?.into_untyped()))
    }

    /// Like [`GraphData::node`], from all earlier values and the indices.
    #[track_caller]
    pub fn node_aux<S: Dims, F>(self, f: F) -> Result<Grown<G, N, D, S>>
    where
        N: Append<Cons<S, Nil>>,
        F: for<'s> FnOnce(
            &'s Session,
            <All<G, N> as Shapes>::Vars<'s>,
            D::Indices<'s>,
        ) -> Result<Typed<'s, S>>,
    {
        self.grow(|s, values, aux| Ok(f(s, <All<G, N>>::vars(values)?, D::indices(aux)?)?.into_untyped()))
    }

    #[track_caller]
    fn grow<M>(
        self,
        f: impl for<'s> FnOnce(&'s Session, &[Var<'s>], &[Var<'s>]) -> Result<Var<'s>>,
    ) -> Result<GraphData<G, M, D>> {
        let (before, values) = (self.graph.size(), self.ids());
        let GraphData { graph, mut nodes, seed, .. } = self;
        let session = Session::resume(&Device::host::<f32>(), graph, seed);
        let at = |id: usize| session.at(Val(id as u32));
        let values: Vec<Var<'_>> = values.into_iter().map(at).collect();
        let aux: Vec<Var<'_>> = (G::LEN..G::LEN + D::LEN).map(at).collect();
        let made = session.val("node", f(&session, &values, &aux)?)?;
        let mut graph = session.into_graph()?;
        let recorded = graph.size() - before;
        if recorded == 0 || made.0 as usize != graph.size() - 1 {
            let why = format!(
                "a node returns the value that it computes last; this computed {recorded} and returned %{}",
                made.0
            );
            return Err(Error::argument("node", "result", why));
        }
        graph.set_outputs(&[made])?;
        nodes.push(made);
        Ok(GraphData { graph, nodes, seed, is: PhantomData })
    }

    /// The tape's node of each value of the context, in order.
    pub fn ids(&self) -> Vec<usize> {
        (0..G::LEN).chain(self.nodes.iter().map(|v| v.0 as usize)).collect()
    }

    /// The untyped program, which returns its last node.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs the program on a new tape, with the inputs as leaves that have gradients. Returns the tape and all values,
    /// inputs first.
    #[track_caller]
    pub fn compile<T: Scalar>(&self, device: &Device, inputs: G::Values<T>) -> Result<(Tape, Values<G, N, T>)>
    where
        D: Shapes<Values<u32> = Nil>,
    {
        self.compile_aux(device, inputs, Nil)
    }

    /// Like [`GraphData::compile`], with indices, which have no gradient.
    #[track_caller]
    pub fn compile_aux<T: Scalar>(
        &self,
        device: &Device,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
    ) -> Result<(Tape, Values<G, N, T>)> {
        let session = Session::eager(device);
        let mut vars = Vec::new();
        for x in inputs.erase() {
            vars.push(session.variable(&x)?);
        }
        for x in aux.erase() {
            vars.push(session.labels(&x)?);
        }
        let all = session.replay_all(&self.graph, &vars)?;
        let values = self.ids().into_iter().map(|id| all[id].value()).collect::<Result<Vec<_>>>()?;
        let values = <Values<G, N, T>>::restore(values)?;
        Ok((session.into_tape().ok_or_else(|| internal("an eager session without a tape"))?, values))
    }

    /// The tape node of the last value: with nodes of one op each, inputs + nodes - 1, plus the indices between them.
    /// Without nodes it is an input, or 0: see [`GraphData::checked_out_id`].
    pub fn out_id(&self) -> usize {
        self.graph.size().saturating_sub(1)
    }

    /// The tape's node of the last value. Errors if the program has no nodes.
    #[track_caller]
    pub fn checked_out_id(&self) -> Result<usize> {
        match N::LEN {
            0 => Err(no_nodes()),
            _ => Ok(self.out_id()),
        }
    }

    /// Gradients of the last value, a scalar, with respect to every value: the seed is 1.
    #[track_caller]
    pub fn backward<T: Scalar>(&self, tape: &Tape) -> Result<Values<G, N, T>> {
        let out = self.checked_out_id()?;
        if let Some(shape) = tape.node(out).map(|n| n.meta.shape).filter(|s| *s != Shape::SCALAR) {
            return Err(no_scalar(shape));
        }
        let one = AnyBuffer::full(tape.device(), Shape::SCALAR, 1.0)?;
        self.gradients(tape.backward_dense(out, one)?)
    }

    /// Gradients of `Σ <seed, value>` over all values, with respect to every value.
    #[track_caller]
    pub fn backward_from<T: Scalar>(&self, tape: &Tape, seeds: Values<G, N, T>) -> Result<Values<G, N, T>> {
        let upload = |t: &Tensor<T>| AnyBuffer::upload(tape.device(), t);
        let mut given: Vec<Option<AnyBuffer>> = vec![None; self.graph.size()];
        for (id, seed) in self.ids().into_iter().zip(seeds.erase()) {
            given[id] = Some(upload(&seed)?);
        }
        // Indices, and what nodes of several ops compute on their way.
        let zeros = |node: &Node| AnyBuffer::zeros(tape.device(), node.meta.shape);
        let all =
            given.into_iter().zip(self.graph.nodes()).map(|(g, node)| g.map_or_else(|| zeros(node), Ok));
        self.gradients(tape.backward_dense_from(all.collect::<Result<Vec<_>>>()?)?)
    }

    #[track_caller]
    fn gradients<T: Scalar>(&self, all: Vec<AnyBuffer>) -> Result<Values<G, N, T>> {
        let missing = |id| Error::new("backward", ErrorKind::Node { id, size: all.len() });
        let one = |id: usize| all.get(id).ok_or_else(|| missing(id))?.to_tensor();
        <Values<G, N, T>>::restore(self.ids().into_iter().map(one).collect::<Result<_>>()?)
    }
}

/// A program with one result of shape `S`, compiled once for a device and run many times with new inputs. It computes
/// the value, the directional derivative, and gradients; each of the three is compiled when first used. Indices of
/// shapes `D` are further inputs, without gradients; the calls that end in `_aux` take them.
#[derive(Debug)]
pub struct CompiledGraph<G, S, D = Nil> {
    device: Device,
    graph: Graph,
    functions: [Option<Function>; 3],
    is: Names<(G, S, D)>,
}

/// A [`CompiledGraph`] whose result is a scalar.
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{CompiledScalar, Rank1, TList, TListOf, tlist};
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut norm = CompiledScalar::<TListOf![Rank1<2>]>::trace(&device, |_, x| x.get::<0>().square()?.sum())?;
/// for k in [1.0f32, 2.0] {
///     let x = Tensor::new(&[2], vec![3.0 * k, 4.0 * k])?.typed()?;
///     assert_eq!(norm.forward(tlist![x.clone()])?.tensor().item()?, 25.0 * k * k);
///     assert_eq!(norm.backward(tlist![x])?.head.tensor().data(), [6.0 * k, 8.0 * k]);
/// }
/// # Ok(())
/// # }
/// ```
pub type CompiledScalar<G, D = Nil> = CompiledGraph<G, (), D>;

/// Inputs of shapes `G`, then indices of shapes `D`.
#[track_caller]
fn takes<G: Shapes, D: Shapes>() -> Result<Vec<Meta>> {
    let numbers = G::shapes()?.into_iter().map(Meta::f32);
    Ok(numbers.chain(D::shapes()?.into_iter().map(Meta::u32)).collect())
}

impl<G: Shapes, S: Dims> CompiledGraph<G, S> {
    /// Traces `f`, which must return the value that it computes last.
    #[track_caller]
    pub fn trace<F>(device: &Device, f: F) -> Result<Self>
    where
        F: for<'s> FnOnce(&'s Session, G::Vars<'s>) -> Result<Typed<'s, S>>,
    {
        CompiledGraph::trace_aux(device, |s, x, _| f(s, x))
    }

    /// The value at `inputs`.
    #[track_caller]
    pub fn forward<T: Scalar>(&mut self, inputs: G::Values<T>) -> Result<Value<S, T>> {
        self.forward_aux(inputs, Nil)
    }

    /// The derivative at `inputs` along `directions`.
    #[track_caller]
    pub fn jvp<T: Scalar>(&mut self, inputs: G::Values<T>, directions: G::Values<T>) -> Result<Value<S, T>> {
        self.jvp_aux(inputs, Nil, directions)
    }

    /// Gradients of `<seed, value>` at `inputs`, with respect to each of them.
    #[track_caller]
    pub fn vjp_with_seed<T: Scalar>(
        &mut self,
        inputs: G::Values<T>,
        seed: Value<S, T>,
    ) -> Result<G::Values<T>> {
        self.vjp_with_seed_aux(inputs, Nil, seed)
    }
}

impl<G: Shapes, S: Dims, D: Shapes> CompiledGraph<G, S, D> {
    /// Traces `f` on inputs and indices. It must return the value that it computes last.
    #[track_caller]
    pub fn trace_aux<F>(device: &Device, f: F) -> Result<Self>
    where
        F: for<'s> FnOnce(&'s Session, G::Vars<'s>, D::Indices<'s>) -> Result<Typed<'s, S>>,
    {
        let graph = Graph::trace(device, &takes::<G, D>()?, |s, x| {
            let (x, aux) = x.split_at(G::LEN);
            Ok(vec![f(s, G::vars(x)?, D::indices(aux)?)?.into_untyped()])
        })?;
        CompiledGraph::new(device, graph)
    }

    /// Compiles a program that was built node by node.
    #[track_caller]
    pub fn of<N: Shapes>(device: &Device, data: &GraphData<G, N, D>) -> Result<Self>
    where
        G: Append<N>,
        All<G, N>: Shapes,
    {
        CompiledGraph::new(device, data.graph.clone())
    }

    /// Compiles an untyped program. Errors if its inputs differ, it has no nodes, it does not return just its last
    /// node, or that has another shape.
    #[track_caller]
    pub fn new(device: &Device, graph: Graph) -> Result<Self> {
        let inputs = takes::<G, D>()?;
        if graph.inputs() != inputs {
            let why = format!("the program takes {:?}, its type says {inputs:?}", graph.inputs());
            return Err(Error::argument("compile", "inputs", why));
        }
        if graph.size() == inputs.len() {
            return Err(no_nodes());
        }
        let last = Val(graph.size() as u32 - 1);
        if graph.outputs() != [last] {
            let names: Vec<String> = graph.outputs().iter().map(|v| format!("%{}", v.0)).collect();
            let names = if names.is_empty() { "nothing".to_string() } else { names.join(" ") };
            let why = format!(
                "it returns {names}, the last node is %{}; return that, and compute nothing after it",
                last.0
            );
            return Err(Error::argument("compile", "result", why));
        }
        let meta = graph.nodes()[last.0 as usize].meta;
        if S::DIMS.is_empty() && meta.dtype == DType::F32 && meta.shape != Shape::SCALAR {
            return Err(no_scalar(meta.shape));
        }
        super::check::<S, f32>(meta)?;
        Ok(CompiledGraph { device: device.clone(), graph, functions: [const { None }; 3], is: PhantomData })
    }

    /// The untyped program.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs one of the three programs, and compiles it the first time.
    #[track_caller]
    fn call<T: Scalar>(
        &mut self,
        which: usize,
        make: impl FnOnce(&Graph) -> Result<Graph>,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
        rest: impl IntoIterator<Item = Tensor<T>>,
    ) -> Result<Vec<Tensor<T>>> {
        let function = match &mut self.functions[which] {
            Some(function) => function,
            empty => empty.insert(make(&self.graph)?.compile(&self.device)?),
        };
        let (inputs, aux) = (inputs.erase().into_iter(), aux.erase().into_iter().map(AnyTensor::Idx));
        let args: Vec<AnyTensor<T>> =
            inputs.map(AnyTensor::Num).chain(aux).chain(rest.into_iter().map(AnyTensor::Num)).collect();
        function.call(&args)?.iter().map(|x| x.num().cloned()).collect()
    }

    #[track_caller]
    fn only<T: Scalar>(results: Vec<Tensor<T>>) -> Result<Value<S, T>> {
        let first = results.into_iter().next();
        Value::try_from(first.ok_or_else(|| internal("a program without a result"))?)
    }

    /// The value at `inputs` with indices.
    #[track_caller]
    pub fn forward_aux<T: Scalar>(
        &mut self,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
    ) -> Result<Value<S, T>> {
        Self::only(self.call(0, |g| Ok(g.clone()), inputs, aux, [])?)
    }

    /// The derivative at `inputs` with indices along `directions`.
    #[track_caller]
    pub fn jvp_aux<T: Scalar>(
        &mut self,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
        directions: G::Values<T>,
    ) -> Result<Value<S, T>> {
        Self::only(self.call(1, Graph::jvp, inputs, aux, directions.erase())?)
    }

    /// Gradients of `<seed, value>` at `inputs` with indices, with respect to each of the inputs.
    #[track_caller]
    pub fn vjp_with_seed_aux<T: Scalar>(
        &mut self,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
        seed: Value<S, T>,
    ) -> Result<G::Values<T>> {
        G::Values::restore(self.call(2, Graph::vjp, inputs, aux, [seed.into_tensor()])?)
    }
}

impl<G: Shapes> CompiledScalar<G> {
    /// Gradients of the value at `inputs`, with respect to each of them.
    #[track_caller]
    pub fn backward<T: Scalar>(&mut self, inputs: G::Values<T>) -> Result<G::Values<T>> {
        self.backward_with_seed(inputs, T::c(1.0))
    }

    /// Gradients of `seed` times the value at `inputs`, with respect to each of them.
    #[track_caller]
    pub fn backward_with_seed<T: Scalar>(&mut self, inputs: G::Values<T>, seed: T) -> Result<G::Values<T>> {
        self.vjp_with_seed(inputs, Tensor::scalar(seed).typed()?)
    }
}

impl<G: Shapes, D: Shapes> CompiledScalar<G, D> {
    /// Gradients of the value at `inputs` with indices, with respect to each of the inputs.
    #[track_caller]
    pub fn backward_aux<T: Scalar>(
        &mut self,
        inputs: G::Values<T>,
        aux: D::Values<u32>,
    ) -> Result<G::Values<T>> {
        self.vjp_with_seed_aux(inputs, aux, Tensor::scalar(T::c(1.0)).typed()?)
    }
}

#[cold]
#[track_caller]
fn no_nodes() -> Error {
    Error::argument("graph", "nodes", "the program has no nodes, so it has no result; append one with node")
}

#[cold]
#[track_caller]
fn no_scalar(shape: Shape) -> Error {
    let why = format!("the last node has shape {shape}; only a scalar has the seed 1, others need a seed");
    Error::new("graph", ErrorKind::Gradient { why })
}

#[cold]
#[track_caller]
fn internal(what: &'static str) -> Error {
    Error::new("graph", ErrorKind::Internal { what })
}
