//! What is proved about programs and the tapes they compile to, as equalities of exact fractions: T3 to T6, T8, T9, T12 and
//! T15 of the compiled form, and the compiled wrappers.

use crate::support::{device, t};
use dittograd::device::{AnyBuffer, Meta};
use dittograd::error::ErrorKind;
use dittograd::graph::{Graph, What};
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, Io, Recorder, Val};
use dittograd::prelude::*;
use dittograd::scalar::{Ratio, Real};
use dittograd::session::AttentionOptions;
use dittograd::tape::{Backward, Tape};
use dittograd::typed::{
    Axis, CompiledGraph, CompiledScalar, Context, Dims, Erase, GraphData, Labels, Matrix, Nil, Rank1, Rank2,
    Rank3, Rank4, Shapes, TList, TListOf, Typed, Value, Vector, tlist,
};

fn small(stream: &mut Stream) -> Ratio {
    Ratio::new(stream.below(13) as i128 - 6, 1 + stream.below(3) as i128)
}

fn draw<S: Dims>(dims: &[usize], stream: &mut Stream) -> Value<S, Ratio> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |_| small(stream)).typed().unwrap()
}

/// Random numbers for a context.
fn fill<G: Shapes>(stream: &mut Stream) -> G::Values<Ratio> {
    let tensors = G::shapes().unwrap().into_iter().map(|s| Tensor::from_fn(s, |_| small(stream)));
    <G::Values<Ratio>>::restore(tensors.collect()).unwrap()
}

type Inputs = TListOf![Rank2<2, 3>, Rank2<3, 2>, Rank1<2>];
type Nodes = TListOf![Rank2<2, 2>, Rank2<2, 2>, Rank2<2, 2>, Rank2<2, 2>, Rank1<2>, ()];
type Everything = TListOf![
    Rank2<2, 3>,
    Rank2<3, 2>,
    Rank1<2>,
    Rank2<2, 2>,
    Rank2<2, 2>,
    Rank2<2, 2>,
    Rank2<2, 2>,
    Rank1<2>,
    ()
];

/// Values are used more than once, and an input by several nodes.
fn sample() -> GraphData<Inputs, Nodes> {
    GraphData::<Inputs>::new()
        .unwrap()
        .node(|_, c| c.get::<0>().matmul(*c.get::<1>()))
        .unwrap()
        .node(|_, c| c.get::<3>().add(*c.get::<2>()))
        .unwrap()
        .node(|_, c| c.get::<4>().relu())
        .unwrap()
        .node(|_, c| c.get::<5>().mul(*c.get::<3>()))
        .unwrap()
        .node(|_, c| c.get::<6>().sum_axis::<0>())
        .unwrap()
        .node(|_, c| c.get::<7>().sum())
        .unwrap()
}

/// The program's values as they are defined: node after node, by the ops' references.
fn eval(graph: &Graph, inputs: &[Tensor<Ratio>], aux: &[Tensor<u32>]) -> Vec<Tensor<Ratio>> {
    let mut given =
        inputs.iter().cloned().map(ops::AnyTensor::Num).chain(aux.iter().cloned().map(ops::AnyTensor::Idx));
    let mut all: Vec<ops::AnyTensor<Ratio>> = Vec::new();
    for node in graph.nodes() {
        all.push(match &node.what {
            What::Op(op, ins) => {
                let ins: Vec<_> = ins.iter().map(|v| all[v.0 as usize].clone()).collect();
                ops::AnyTensor::Num(op.reference(&ins).unwrap())
            }
            What::Leaf(_) => given.next().unwrap(),
        });
    }
    all.into_iter().filter_map(|v| v.num().ok().cloned()).collect()
}

/// Runs rules at once.
struct Now(Device, Vec<AnyBuffer>);

impl Recorder for Now {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let ins: Vec<&AnyBuffer> = ins.iter().map(|v| &self.1[v.0 as usize]).collect();
        self.1.push(ops::apply(&self.0, &op, &ins)?);
        Ok(Val(self.1.len() as u32 - 1))
    }
    fn meta(&self, v: Val) -> Meta {
        self.1[v.0 as usize].meta()
    }
}

/// Backpropagation as it is defined, over the program and not over a tape: the last node is peeled off, its rule
/// gives a whole context, which is added to the seeds of the values before; every prefix is evaluated anew.
fn backprop_all(graph: &Graph, inputs: &[Tensor<Ratio>], seeds: Vec<Tensor<Ratio>>) -> Vec<Tensor<Ratio>> {
    let host = Device::host::<Ratio>();
    let mut context = seeds;
    for at in (inputs.len()..graph.size()).rev() {
        let What::Op(op, ins) = &graph.nodes()[at].what else { continue };
        let values = eval(graph, inputs, &[]);
        let mut now = Now(host.clone(), Vec::new());
        now.1.extend(ins.iter().map(|v| AnyBuffer::upload(&host, &values[v.0 as usize]).unwrap()));
        now.1.push(AnyBuffer::upload(&host, &values[at]).unwrap());
        now.1.push(AnyBuffer::upload(&host, &context[at]).unwrap());
        let n = ins.len() as u32;
        let places: Vec<Val> = (0..n).map(Val).collect();
        let grads = op.vjp(&mut now, Io { ins: &places, out: Val(n) }, Val(n + 1)).unwrap();
        for (v, g) in ins.iter().zip(grads) {
            let Some(g) = g else { continue };
            let (into, g) = (&mut context[v.0 as usize], now.1[g.0 as usize].to_tensor::<Ratio>().unwrap());
            into.data_mut().iter_mut().zip(g.data()).for_each(|(x, g)| *x = *x + *g);
        }
    }
    context
}

fn tape_values(tape: &Tape) -> Vec<Tensor<Ratio>> {
    (0..tape.size()).map(|i| tape.value(i).unwrap().to_tensor().unwrap()).collect()
}

fn cases(f: impl Fn(&mut Stream)) {
    (0..25).for_each(|seed| f(&mut Stream::new(seed, 12)));
}

#[test]
fn t3_the_context_that_compile_gives_is_the_evaluated_one() {
    let graph = sample();
    cases(|stream| {
        let x = fill::<Inputs>(stream);
        let (_, values) = graph.compile(&Device::host::<Ratio>(), x.clone()).unwrap();
        assert_eq!(values.erase(), eval(graph.graph(), &x.erase(), &[]));
    });
}

#[test]
fn t4_the_tapes_values_are_the_evaluated_ones_in_order() {
    let graph = sample();
    cases(|stream| {
        let x = fill::<Inputs>(stream);
        let (tape, values) = graph.compile(&Device::host::<Ratio>(), x.clone()).unwrap();
        assert_eq!(tape_values(&tape), eval(graph.graph(), &x.erase(), &[]));
        assert_eq!(tape_values(&tape), values.erase());
    });
}

#[test]
fn t5_the_tape_has_a_node_for_each_input_and_node() {
    let graph = sample();
    let x = fill::<Inputs>(&mut Stream::new(1, 1));
    let (tape, _) = graph.compile(&Device::host::<Ratio>(), x).unwrap();
    assert_eq!((tape.size(), Inputs::LEN, Nodes::LEN), (9, 3, 6));
    assert_eq!((graph.out_id(), graph.checked_out_id().unwrap()), (8, 8));
}

#[test]
fn t6_every_node_of_the_tape_requires_a_gradient() {
    let x = fill::<Inputs>(&mut Stream::new(1, 1));
    let (tape, _) = sample().compile(&Device::host::<Ratio>(), x).unwrap();
    for id in 0..tape.size() {
        let node = tape.node(id).unwrap();
        assert!(node.requires_grad);
        assert_eq!(matches!(node.backward, Backward::None), id < Inputs::LEN);
        // T7: rules reach back only.
        assert!(node.parents.iter().all(|&p| p < id));
    }
}

#[test]
fn t8_inputs_are_the_first_leaves_in_order() {
    let empty = GraphData::<Inputs>::new().unwrap();
    let x = fill::<Inputs>(&mut Stream::new(4, 1));
    let (tape, values) = empty.compile(&Device::host::<Ratio>(), x.clone()).unwrap();
    assert_eq!(tape.size(), Inputs::LEN);
    assert_eq!(values, x);
    assert_eq!(tape_values(&tape), x.erase());
    assert!((0..3).all(|i| tape.node(i).unwrap().parents.is_empty()));
}

#[test]
fn t9_contexts_without_types_keep_order_and_places() {
    let s = &mut Stream::new(9, 9);
    let (a, b, c): (Value<Rank1<2>, Ratio>, Value<(), Ratio>, Value<Rank2<1, 3>, Ratio>) =
        (draw(&[2], s), draw(&[], s), draw(&[1, 3], s));
    let list = tlist![a.clone(), b.clone()];
    let plain = list.clone().erase();
    assert_eq!(plain, [a.tensor().clone(), b.tensor().clone()]);
    // Snoc, cons, append and get commute with forgetting the types.
    let more = list.clone().snoc(c.clone());
    assert_eq!(more.clone().erase(), [plain.clone(), vec![c.tensor().clone()]].concat());
    let front = tlist![c.clone(), a.clone(), b.clone()];
    assert_eq!(front.erase(), [vec![c.tensor().clone()], plain.clone()].concat());
    assert_eq!(list.clone().append(more.clone()).erase(), [plain.clone(), more.clone().erase()].concat());
    assert_eq!(more.get::<2>().tensor(), &more.clone().erase()[2]);
    let (first, rest) = more.clone().split::<2>();
    assert_eq!((first, rest), (list.clone(), tlist![c]));
    // Back again, with shapes and length checked: every place is below the length.
    type L = TListOf![Value<Rank1<2>, Ratio>, Value<(), Ratio>];
    assert_eq!(L::restore(plain.clone()).unwrap(), list);
    assert!(L::restore(plain[..1].to_vec()).is_err() && L::restore(more.erase()).is_err());
    let e = L::restore(plain.into_iter().rev().collect()).unwrap_err().to_string();
    assert!(e.contains("[2]"), "{e}");
    type S = TListOf![Rank1<2>, ()];
    assert!(matches!(
        S::single(2, a.tensor().clone()).unwrap_err().kind(),
        ErrorKind::Node { id: 2, size: 2 }
    ));
    assert!(S::single(1, a.tensor().clone()).is_err());
}

#[test]
fn t12_the_tape_walks_back_as_the_program_is_defined() {
    let (graph, host) = (sample(), Device::host::<Ratio>());
    cases(|stream| {
        let (x, seeds) = (fill::<Inputs>(stream), fill::<Everything>(stream));
        let (tape, _) = graph.compile(&host, x.clone()).unwrap();
        let got = graph.backward_from(&tape, seeds.clone()).unwrap();
        assert_eq!(got.erase(), backprop_all(graph.graph(), &x.clone().erase(), seeds.erase()));
        // From the output: the seed 1 there, zeros elsewhere.
        let one = Everything::single(8, Tensor::scalar(Ratio::whole(1))).unwrap();
        let got = graph.backward::<Ratio>(&tape).unwrap();
        assert_eq!(got, graph.backward_from(&tape, one).unwrap());
        // And it is the gradient that the wrapper, compiled once, gives.
        let mut compiled = CompiledScalar::of(&host, &graph).unwrap();
        let inputs = tlist![got.get::<0>().clone(), got.get::<1>().clone(), got.get::<2>().clone()];
        assert_eq!(compiled.backward(x).unwrap(), inputs);
    });
}

#[test]
fn t13_to_t15_products_of_contexts() {
    let (graph, host) = (sample(), Device::host::<Ratio>());
    let mut compiled = CompiledScalar::of(&host, &graph).unwrap();
    let compiled = std::cell::RefCell::new(&mut compiled);
    cases(|stream| {
        let (x, dx) = (fill::<Inputs>(stream), fill::<Inputs>(stream));
        let seed = small(stream);
        let compiled = &mut *compiled.borrow_mut();
        // <jvp dx, seed> = <dx, vjp seed>.
        let along = compiled.jvp(x.clone(), dx.clone()).unwrap().tensor().item().unwrap();
        let back = compiled.backward_with_seed(x.clone(), seed).unwrap();
        assert_eq!(along * seed, dx.dot(&back));
        assert_eq!(back, compiled.backward(x.clone()).unwrap().scale(seed).unwrap());
        // The product is linear, and single is adjoint to get.
        let k = small(stream);
        assert_eq!(x.add(&dx.scale(k).unwrap()).unwrap().dot(&back), x.dot(&back) + k * dx.dot(&back));
        assert_eq!(x.add(&dx).unwrap().sub(&dx).unwrap(), x);
        let v: Value<Rank1<2>, Ratio> = draw(&[2], stream);
        let single = Inputs::single(2, v.tensor().clone()).unwrap();
        assert_eq!(x.dot(&single), tlist![x.get::<2>().clone()].dot(&tlist![v]));
        assert_eq!(x.dot(&Inputs::zeros().unwrap()), Ratio::whole(0));
    });
}

#[test]
fn indices_go_in_beside_the_inputs_without_gradients() {
    type G = TListOf![Rank2<3, 2>];
    type D = TListOf![Rank1<4>];
    let graph = GraphData::<G, Nil, D>::new()
        .unwrap()
        .node_aux(|_, c, d| {
            c.get::<0>()
                .into_untyped()
                .index_select(0, d.get::<0>().into_untyped())?
                .typed::<dittograd::typed::Matrix<4, 2>>()
        })
        .unwrap()
        .node(|_, c| c.get::<1>().mul(*c.get::<1>()))
        .unwrap()
        .node(|_, c| c.get::<2>().sum())
        .unwrap();
    let host = Device::host::<Ratio>();
    let x = Tensor::from_fn(Shape::new(&[3, 2]).unwrap(), |i| Ratio::whole(i as i64 + 1))
        .typed::<Rank2<3, 2>>()
        .unwrap();
    let mut compiled = CompiledScalar::of(&host, &graph).unwrap();
    for ids in [[2u32, 0, 2, 1], [1, 1, 1, 1]] {
        let d = Tensor::new(&[4], ids.to_vec()).unwrap().typed::<Rank1<4>>().unwrap();
        let (tape, values) = graph.compile_aux(&host, tlist![x.clone()], tlist![d.clone()]).unwrap();
        // The indices are a leaf of the tape, between inputs and nodes.
        assert_eq!((tape.size(), graph.out_id(), values.len()), (5, 4, 4));
        assert_eq!(values.clone().erase(), eval(graph.graph(), &[x.tensor().clone()], &[d.tensor().clone()]));
        let grads = graph.backward::<Ratio>(&tape).unwrap();
        let times = |row: usize| ids.iter().filter(|i| **i as usize == row).count() as i64;
        let want = Tensor::from_fn(Shape::new(&[3, 2]).unwrap(), |i| {
            Ratio::whole(2 * times(i / 2) * (i as i64 + 1))
        });
        assert_eq!(*grads.get::<0>().tensor(), want);
        let seeds =
            <TListOf![Rank2<3, 2>, Rank2<4, 2>, Rank2<4, 2>, ()]>::single(3, Tensor::scalar(Ratio::whole(1)));
        assert_eq!(graph.backward_from(&tape, seeds.unwrap()).unwrap(), grads);
        // Compiled once and run with other indices.
        assert_eq!(compiled.forward_aux(tlist![x.clone()], tlist![d.clone()]).unwrap(), *values.get::<3>());
        let back = compiled.backward_aux(tlist![x.clone()], tlist![d.clone()]).unwrap();
        assert_eq!(*back.get::<0>().tensor(), want);
        let along = compiled.jvp_aux(tlist![x.clone()], tlist![d], tlist![x.clone()]).unwrap();
        let dot = want.data().iter().zip(x.tensor().data()).fold(Ratio::whole(0), |s, (a, b)| s + *a * *b);
        assert_eq!(along.tensor().data(), [dot]);
    }
    let wrong = Tensor::new(&[4], vec![0u32, 1, 2, 3]).unwrap().typed::<Rank1<4>>().unwrap();
    assert!(graph.compile_aux(&host, tlist![x.clone()], tlist![wrong.clone()]).is_err());
    assert!(compiled.forward_aux(tlist![x], tlist![wrong]).is_err());
}

#[test]
fn what_is_no_program_is_said() {
    let d = device();
    type G = TListOf![Rank1<2>];
    let empty = GraphData::<G>::new().unwrap();
    assert_eq!(empty.out_id(), 0);
    let e = empty.checked_out_id().unwrap_err().to_string();
    assert!(e.contains("no nodes"), "{e}");
    let x = || tlist![t(&[2], &[1.0, 2.0]).typed::<Rank1<2>>().unwrap()];
    let (tape, _) = empty.compile(&d, x()).unwrap();
    assert!(empty.backward::<f32>(&tape).is_err());
    assert!(CompiledScalar::of(&d, &empty).unwrap_err().to_string().contains("no nodes"));
    // A node computes something, and nothing after what it returns.
    let e = GraphData::<G>::new().unwrap().node(|_, c| Ok(*c.get::<0>())).unwrap_err().to_string();
    assert!(e.contains("this computed 0 and returned %0"), "{e}");
    let unused = GraphData::<G>::new().unwrap().node(|_, c| {
        let y = c.get::<0>().neg()?;
        y.sum()?;
        Ok(y)
    });
    let e = unused.unwrap_err().to_string();
    assert!(e.contains("this computed 2 and returned %1"), "{e}");
    let vector = GraphData::<G>::new().unwrap().node(|_, c| c.get::<0>().neg()).unwrap();
    let (tape, _) = vector.compile(&d, x()).unwrap();
    assert!(vector.backward::<f32>(&tape).unwrap_err().to_string().contains("only a scalar"));
    assert!(CompiledScalar::of(&d, &vector).unwrap_err().to_string().contains("only a scalar"));
    let e = CompiledGraph::<G, Rank1<3>>::of(&d, &vector).unwrap_err().to_string();
    assert!(e.contains("[2]") && e.contains("[3]"), "{e}");
    let e = CompiledScalar::<G>::trace(&d, |_, x| {
        let y = x.get::<0>().sum()?;
        y.neg()?;
        Ok(y)
    });
    assert!(e.unwrap_err().to_string().contains("the last node is %2"));
    let e = CompiledScalar::<TListOf![()]>::trace(&d, |_, x| Ok(*x.get::<0>())).unwrap_err().to_string();
    assert!(e.contains("no nodes"), "{e}");
    let e = CompiledScalar::<TListOf![()]>::new(&d, vector.graph().clone()).unwrap_err().to_string();
    assert!(e.contains("inputs"), "{e}");
    let e = Tensor::new(&[3], vec![0.0f32; 3]).unwrap().typed::<Rank1<2>>().unwrap_err().to_string();
    assert!(e.contains("[3]") && e.contains("[2]"), "{e}");
}

/// Compiled once, it runs with new inputs, on the bits of the eager run.
#[test]
fn compiled_graphs_run_again_and_again() {
    let d = device();
    type G = TListOf![Rank2<4, 3>, Rank2<3, 5>];
    let mut net = CompiledGraph::<G, Rank2<4, 5>>::trace(&d, |_, x| {
        x.get::<0>().matmul(*x.get::<1>())?.tanh()?.softmax()
    })
    .unwrap();
    let s = Session::eager(&d);
    let mut live = 0;
    for run in 0..5 {
        let mut stream = Stream::new(run, 3);
        let mut random =
            |dims: &[usize]| Tensor::from_fn(Shape::new(dims).unwrap(), |_| stream.range(-1.0, 1.0));
        let (a, b, seed) = (random(&[4, 3]), random(&[3, 5]), random(&[4, 5]));
        let (da, db) = (random(&[4, 3]), random(&[3, 5]));
        let inputs = || tlist![a.clone().typed().unwrap(), b.clone().typed().unwrap()];
        let (x, w) = (s.variable(&a).unwrap(), s.variable(&b).unwrap());
        let y = x.matmul(w).unwrap().tanh().unwrap().softmax().unwrap();
        assert_eq!(*net.forward(inputs()).unwrap().tensor(), y.value().unwrap());
        let grads = net.vjp_with_seed(inputs(), seed.clone().typed().unwrap()).unwrap();
        let want = s.vjp(&[(y, s.input(&seed).unwrap())], &[x, w]).unwrap();
        assert_eq!(*grads.get::<0>().tensor(), want[0].unwrap().value().unwrap());
        assert_eq!(*grads.get::<1>().tensor(), want[1].unwrap().value().unwrap());
        let along =
            net.jvp(inputs(), tlist![da.clone().typed().unwrap(), db.clone().typed().unwrap()]).unwrap();
        let want = s.jvp(y, &[(x, s.input(&da).unwrap()), (w, s.input(&db).unwrap())]).unwrap();
        assert_eq!(*along.tensor(), want.value().unwrap());
        s.reset();
        // Nothing is compiled or kept again.
        live = if run == 0 { d.memory().live } else { live };
        assert_eq!(d.memory().live, live);
    }
    // The same program in other numbers.
    let mut exact = CompiledScalar::<TListOf![()]>::trace(&Device::host::<Ratio>(), |s, x| {
        x.get::<0>().mul(*x.get::<0>())?.add(s.scalar(0.5)?.typed::<dittograd::typed::Scalar>()?)
    })
    .unwrap();
    let third = || tlist![Tensor::scalar(Ratio::new(1, 3)).typed().unwrap()];
    assert_eq!(exact.forward(third()).unwrap().tensor().item().unwrap(), Ratio::new(11, 18));
    assert_eq!(exact.backward(third()).unwrap().head.tensor().item().unwrap(), Ratio::new(2, 3));
    assert_eq!(Ratio::c(0.5), Ratio::new(1, 2));
}

/// What `f` makes of values of a session.
fn called<'s, G: Shapes, S: Dims>(
    session: &'s Session,
    vars: &[Var<'s>],
    f: impl FnOnce(&'s Session, G::Vars<'s>) -> Result<Typed<'s, S>>,
) -> Var<'s> {
    f(session, G::vars(vars).unwrap()).unwrap().into_untyped()
}

/// A node has the bits of the same ops in a session: value and gradients on the tape, and compiled. Returns how many
/// values it recorded.
macro_rules! node {
    ($name:literal, $inputs:ty, $out:ty, $f:expr) => {{
        let d = device();
        let inputs = <$inputs as TList>::LEN;
        let data = GraphData::<$inputs>::new().unwrap().node::<$out, _>($f).unwrap();
        assert_eq!((data.ids().len(), data.out_id()), (inputs + 1, data.graph().size() - 1));
        let mut stream = Stream::new(7, 0);
        let mut random = |shape: Shape| Tensor::from_fn(shape, |_| stream.range(-1.0, 1.0));
        let tensors: Vec<Tensor<f32>> =
            <$inputs as Shapes>::shapes().unwrap().into_iter().map(&mut random).collect();
        let given = || <<$inputs as Shapes>::Values<f32>>::restore(tensors.clone()).unwrap();

        let s = Session::eager(&d);
        let vars: Vec<Var<'_>> = tensors.iter().map(|x| s.variable(x).unwrap()).collect();
        let y = called::<$inputs, $out>(&s, &vars, $f);
        let value = y.value::<f32>().unwrap();
        let seed = random(value.shape());
        let grads = y.backward_from(&seed).unwrap();
        let want: Vec<Tensor<f32>> =
            vars.iter().map(|v| grads.var(*v).unwrap().to_tensor().unwrap()).collect();

        let (tape, values) = data.compile(&d, given()).unwrap();
        let values = values.erase();
        assert_eq!((&values[..inputs], &values[inputs]), (&tensors[..], &value), "{}", $name);
        let mut seeds: Vec<Tensor<f32>> = values.iter().map(|x| Tensor::full(x.shape(), 0.0)).collect();
        seeds[inputs] = seed.clone();
        let got = data.backward_from::<f32>(&tape, Erase::restore(seeds).unwrap()).unwrap().erase();
        assert_eq!((&got[..inputs], &got[inputs]), (&want[..], &seed), "{}", $name);

        let mut compiled = CompiledGraph::of(&d, &data).unwrap();
        assert_eq!(*compiled.forward(given()).unwrap().tensor(), value, "{}", $name);
        // Of a second call: random draws are others then.
        if data.graph().random_calls() == 0 {
            let got = compiled.vjp_with_seed(given(), seed.typed::<$out>().unwrap()).unwrap().erase();
            assert_eq!(got, want, "{}", $name);
        }
        data.graph().size() - inputs
    }};
}

#[test]
fn nodes_may_be_several_ops() {
    type Q = Rank4<1, 2, 3, 4>;
    let counts = [
        node!("row", TListOf![Rank2<3, 4>], Rank1<4>, |_, c| c.get::<0>().select::<0, 1>()),
        node!("scatter", TListOf![Rank2<3, 4>, Rank2<2, 4>], Rank2<3, 4>, |s, c| {
            let rows = s.indices(&Tensor::new(&[2], vec![2u32, 0])?)?.typed::<Labels<'_, 2>>()?;
            c.get::<0>().index_add(rows, *c.get::<1>(), Axis::<0>)
        }),
        node!("dropout", TListOf![Rank2<3, 4>], Rank2<3, 4>, |s, c| {
            s.bernoulli(&[3, 4], 0.5)?.typed::<Matrix<'_, 3, 4>>()?.mul(*c.get::<0>())
        }),
        node!("batch norm", TListOf![Rank3<2, 3, 4>, Rank1<3>, Rank1<3>], Rank3<2, 3, 4>, |_, c| {
            c.get::<0>().batch_norm(*c.get::<1>(), *c.get::<2>(), 1e-5)?.relu()
        }),
        node!(
            "spectral convolution",
            TListOf![Rank3<1, 8, 2>, Rank3<3, 2, 2>, Rank3<3, 2, 2>],
            Rank3<1, 8, 2>,
            |_, c| c.get::<0>().spectral_conv1d(*c.get::<1>(), *c.get::<2>())
        ),
        node!("attention", TListOf![Q, Q, Q], Q, |_, c| {
            c.get::<0>().attention(*c.get::<1>(), *c.get::<2>(), AttentionOptions::default())?.tanh()
        }),
    ];
    assert!(counts.iter().all(|n| *n > 1), "{counts:?}");
}

/// Nodes that follow one of several ops see it as one value.
#[test]
fn nodes_of_one_and_of_several_ops_mix() {
    let graph = GraphData::<TListOf![Rank2<2, 3>]>::new()
        .unwrap()
        .node(|_, c| c.get::<0>().select::<0, 1>()?.neg())
        .unwrap()
        .node(|_, c| c.get::<1>().mul(*c.get::<1>()))
        .unwrap()
        .node(|_, c| c.get::<2>().sum())
        .unwrap();
    assert_eq!(graph.ids(), [0, 3, 4, 5]);
    let q = |x: i128| Ratio::new(x, 3);
    let x = Tensor::new(&[2, 3], (1..=6).map(q).collect()).unwrap().typed::<Rank2<2, 3>>().unwrap();
    let (tape, values) = graph.compile(&Device::host::<Ratio>(), tlist![x]).unwrap();
    assert_eq!(values.get::<1>().tensor().data(), [q(-4), q(-5), q(-6)]);
    assert_eq!(values.get::<3>().tensor().item().unwrap(), Ratio::new(77, 9));
    let gradients = graph.backward::<Ratio>(&tape).unwrap();
    assert_eq!(gradients.get::<0>().tensor().data(), [0, 0, 0, 8, 10, 12].map(q));
    assert_eq!(gradients.get::<1>().tensor().data(), [-8, -10, -12].map(q));
}

#[test]
fn draws_of_a_program_follow_its_seed() {
    let draw = |seed: u64| {
        let graph = GraphData::<Nil>::seeded(seed)
            .unwrap()
            .node(|s, _| s.uniform(&[4])?.typed::<Vector<'_, 4>>())
            .unwrap()
            .node(|s, _| s.uniform(&[4])?.typed::<Vector<'_, 4>>())
            .unwrap();
        let all = graph.compile::<f32>(&device(), Nil).unwrap().1.erase();
        (all[0].clone(), all[1].clone())
    };
    let s = Session::eager_seeded(&device(), 5);
    let two = [0, 1].map(|_| s.uniform(&[4]).unwrap().value::<f32>().unwrap());
    assert_eq!(draw(5), (two[0].clone(), two[1].clone()));
    assert_ne!(draw(6), draw(5));
}

/// A parameter that several nodes use is one value of the program, so that its gradients add up.
#[test]
fn a_parameter_of_several_nodes_is_there_once() {
    let host = Device::host::<f32>();
    let mut params = Params::new(&host, 1);
    let w = params.value("w", &t(&[2], &[2.0, 3.0])).unwrap();
    let graph = GraphData::<TListOf![Rank1<2>]>::new()
        .unwrap()
        .node(|s, c| c.get::<0>().mul(s.param(&w)?.typed::<Vector<'_, 2>>()?))
        .unwrap()
        .node(|s, c| c.get::<1>().mul(s.param(&w)?.typed::<Vector<'_, 2>>()?))
        .unwrap();
    assert_eq!(graph.graph().params().len(), 1);
    let x = t(&[2], &[1.0, 10.0]).typed::<Rank1<2>>().unwrap();
    let (tape, values) = graph.compile(&host, tlist![x]).unwrap();
    assert_eq!((tape.size(), values.get::<2>().tensor().data()), (4, &[4.0, 90.0][..]));
}

/// One node doubles the one before.
macro_rules! doubled {
    ($($i:literal)*) => {{
        let graph = GraphData::<TListOf![Rank1<1>]>::new().unwrap();
        $(let graph = graph.node(|_, c| c.get::<$i>().add(*c.get::<$i>())).unwrap();)*
        graph
    }};
}

#[test]
fn programs_may_have_more_nodes_than_32() {
    let graph = doubled!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35);
    let one = Tensor::new(&[1], vec![Ratio::new(1, 1)]).unwrap().typed::<Rank1<1>>().unwrap();
    let (tape, values) = graph.compile(&Device::host::<Ratio>(), tlist![one]).unwrap();
    assert_eq!(values.get::<36>().tensor().data(), [Ratio::new(1 << 36, 1)]);
    assert_eq!((tape.size(), graph.out_id()), (37, 36));
    let (front, back) = values.split::<33>();
    assert_eq!((front.len(), back.get::<0>().tensor().data()), (33, &[Ratio::new(1 << 33, 1)][..]));
}

#[test]
fn names_of_inputs_show() {
    type G = TListOf![Rank1<2>, Rank1<2>];
    let build = || GraphData::<G>::new().unwrap().node(|_, c| c.get::<0>().mul(*c.get::<1>())).unwrap();
    let graph = build().with_names(&["x", "w \"1\""]).unwrap().node(|_, c| c.get::<2>().sum()).unwrap();
    let text = graph.graph().text().unwrap();
    let want = "%0: f32[2] = input \"x\"\n%1: f32[2] = input \"w \\\"1\\\"\"\n";
    assert!(text.contains(want), "{text}");
    assert_eq!(format!("{graph:?}"), graph.graph().to_string());
    let compiled = CompiledScalar::<G>::of(&device(), &graph).unwrap();
    assert_eq!(compiled.graph().input_names(), [Some("x"), Some("w \"1\"")]);
}
