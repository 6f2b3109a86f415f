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
use dittograd::tape::{Backward, Tape};
use dittograd::typed::{
    CompiledGraph, CompiledScalar, Context, Dims, Erase, GraphData, Nil, Rank1, Rank2, Shapes, TList,
    TListOf, Value, tlist,
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
    // More than one op is more than one node.
    let e = GraphData::<G>::new().unwrap().node(|_, c| c.get::<0>().neg()?.sum()).unwrap_err().to_string();
    assert!(e.contains("recorded 2"), "{e}");
    let e = GraphData::<G>::new().unwrap().node(|_, c| Ok(*c.get::<0>())).unwrap_err().to_string();
    assert!(e.contains("recorded 0"), "{e}");
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
