//! The tape: ids, shapes, user rules, the backward walks, freeing, and what happens on bad input.

use dittograd::HostDevice;
use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, Device, Meta};
use dittograd::error::{ErrorKind, Result};
use dittograd::ops::{self, AnyOp, pointwise, reduce};
use dittograd::session::Session;
use dittograd::shape::Shape;
use dittograd::tape::{Backward, BackwardFn, Node, Tape};
use dittograd::tensor::Tensor;
use proptest::prelude::*;
use std::sync::Arc;

fn device() -> Device {
    Device::cpu_with(1, Simd::Scalar).unwrap()
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn up(d: &Device, values: &[f32]) -> AnyBuffer {
    AnyBuffer::upload(d, &Tensor::new(&[values.len()], values.to_vec()).unwrap()).unwrap()
}

fn down(b: &AnyBuffer) -> Vec<f32> {
    b.buffer().download().unwrap()
}

fn seed(d: &Device) -> AnyBuffer {
    AnyBuffer::full(d, Shape::SCALAR, 1.0).unwrap()
}

fn sum(rank: usize) -> AnyOp {
    reduce::Sum::all(rank).into()
}

#[test]
fn look_ups_answer_or_say_what_is_wrong() {
    let d = device();
    let mut t = Tape::new(&d);
    assert_eq!((t.size(), t.node(0).is_none(), t.value(0).is_none()), (0, true, true));
    let x = t.leaf(up(&d, &[1.0, 2.0]), Some("x"), true).unwrap();
    assert_eq!((x, t.size()), (0, 1));
    assert_eq!(t.node(x).unwrap().name.as_deref(), Some("x"));
    assert!(t.require_value(x, shape(&[2])).is_ok());
    let e = t.require_value(x, shape(&[2, 1])).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Shapes { .. }), "{e}");
    let e = t.require_value(7, shape(&[2])).unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Node { id: 7, size: 1 });
    let e = Tape::require_grad(&up(&d, &[1.0]), shape(&[2])).unwrap_err();
    assert!(e.to_string().contains("upstream"), "{e}");
}

#[test]
fn a_failing_op_leaves_the_tape_and_the_memory_as_they_were() {
    let d = device();
    let mut t = Tape::new(&d);
    let a = t.leaf(up(&d, &[1.0, 2.0]), None, true).unwrap();
    let b = t.leaf(up(&d, &[1.0, 2.0, 3.0]), None, true).unwrap();
    let live = d.memory().live;
    assert!(t.record(pointwise::Add {}.into(), &[a, b]).is_err());
    assert!(t.record(pointwise::Add {}.into(), &[a, 9]).is_err());
    assert!(t.record(pointwise::Exp {}.into(), &[]).is_err());
    d.fail_allocation(Some(1), false);
    assert!(matches!(
        t.record(pointwise::Exp {}.into(), &[a]).unwrap_err().kind(),
        ErrorKind::OutOfMemory { .. }
    ));
    assert_eq!((t.size(), d.memory().live), (2, live));
    let parent_ahead = Node {
        name: None,
        value: None,
        meta: Meta::f32(shape(&[1])),
        requires_grad: true,
        parents: vec![5],
        cleanup: vec![],
        backward: Backward::None,
    };
    assert!(matches!(t.add_node(parent_ahead).unwrap_err().kind(), ErrorKind::Node { id: 5, .. }));
}

#[test]
fn a_value_used_twice_gets_both_contributions() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0, -2.0]), None, true).unwrap();
    let xx = t.record(pointwise::Mul {}.into(), &[x, x]).unwrap();
    let y = t.record(pointwise::Add {}.into(), &[xx, x]).unwrap();
    let s = t.record(sum(1), &[y]).unwrap();
    let grads = t.backward_dense(s, seed(&d)).unwrap();
    assert_eq!(grads.len(), t.size());
    assert_eq!(down(&grads[x]), [3.0, -3.0]);
    assert_eq!(down(&grads[xx]), [1.0, 1.0]);
}

#[test]
fn requires_grad_propagates_and_constant_branches_record_no_rule() {
    let d = device();
    let mut t = Tape::new(&d);
    let c = t.leaf(up(&d, &[1.0]), None, false).unwrap();
    let e = t.record(pointwise::Exp {}.into(), &[c]).unwrap();
    assert!(!t.node(e).unwrap().requires_grad);
    assert!(matches!(t.node(e).unwrap().backward, Backward::None));
    let x = t.leaf(up(&d, &[2.0]), None, true).unwrap();
    let y = t.record(pointwise::Mul {}.into(), &[e, x]).unwrap();
    assert!(t.node(y).unwrap().requires_grad);
}

#[test]
fn a_node_the_output_does_not_use_cannot_poison_gradients() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[0.0]), None, true).unwrap();
    let _infinite = t.record(pointwise::Inv {}.into(), &[x]).unwrap();
    let y = t.record(pointwise::Scale { c: 3.0 }.into(), &[x]).unwrap();
    let s = t.record(sum(1), &[y]).unwrap();
    let grads = t.backward_dense(s, seed(&d)).unwrap();
    assert_eq!(down(&grads[x]), [3.0]);
}

#[test]
fn dense_from_an_array_takes_several_seeds() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0, 2.0]), None, true).unwrap();
    let a = t.record(pointwise::Scale { c: 2.0 }.into(), &[x]).unwrap();
    let b = t.record(pointwise::Scale { c: 5.0 }.into(), &[x]).unwrap();
    let array = vec![up(&d, &[0.0, 0.0]), up(&d, &[1.0, 1.0]), up(&d, &[1.0, 10.0])];
    let grads = t.backward_dense_from(array).unwrap();
    assert_eq!(down(&grads[x]), [7.0, 52.0]);
    assert_eq!((down(&grads[a]), down(&grads[b])), (vec![1.0, 1.0], vec![1.0, 10.0]));
    let e = t.backward_dense_from(vec![up(&d, &[0.0, 0.0])]).unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Length { want: 3, got: 1 });
}

#[test]
fn the_stepwise_walk_is_the_dense_walk() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[0.5, -1.5, 2.0]), None, true).unwrap();
    let y = t.record(pointwise::Tanh {}.into(), &[x]).unwrap();
    let z = t.record(pointwise::Mul {}.into(), &[y, x]).unwrap();
    let s = t.record(sum(1), &[z]).unwrap();
    let dense = t.backward_dense(s, seed(&d)).unwrap();
    let mut slots = vec![None; t.size()];
    slots[s] = Some(seed(&d));
    for id in (0..t.size()).rev() {
        t.backward_step(&mut slots, id).unwrap();
    }
    let mut first = vec![None; t.size()];
    first[s] = Some(seed(&d));
    t.backward_first(&mut first, t.size()).unwrap();
    for id in 0..t.size() {
        assert_eq!(down(&dense[id]), down(slots[id].as_ref().unwrap()));
        assert_eq!(down(&dense[id]), down(first[id].as_ref().unwrap()));
    }
    assert!(t.backward_step(&mut [None], 0).is_err());
}

#[test]
fn sparse_keeps_what_is_asked_for_and_frees_values_on_the_way() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0; 100]), None, true).unwrap();
    let frozen = t.leaf(up(&d, &[2.0; 100]), None, false).unwrap();
    let y = t.record(pointwise::Mul {}.into(), &[x, frozen]).unwrap();
    let z = t.record(pointwise::Exp {}.into(), &[y]).unwrap();
    let s = t.record(sum(1), &[z]).unwrap();
    let before = d.memory().live;
    let grads = t.backward_sparse(s, seed(&d), |id| id == x, true).unwrap();
    assert_eq!(grads.keys().copied().collect::<Vec<_>>(), [x]);
    assert_eq!(down(&grads[&x]), vec![2.0 * dittograd::numerics::functions::exp(2.0f32); 100]);
    assert!(t.value(y).is_none() && t.value(z).is_none() && t.value(s).is_some());
    // Two intermediate values of 400 bytes went, one gradient of 400 bytes came.
    assert_eq!(d.memory().live, before - 400);
    let again = t.backward_sparse(s, seed(&d), |_| true, true).unwrap_err();
    assert!(again.to_string().contains("freed"), "{again}");
    drop((grads, t));
    assert_eq!(d.memory().live, 0);
    assert_eq!(d.memory().allocs, d.memory().frees);
}

#[test]
fn wrong_seeds_are_refused() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0, 2.0]), None, true).unwrap();
    assert!(matches!(t.backward_dense(x, seed(&d)).unwrap_err().kind(), ErrorKind::Shapes { .. }));
    assert!(matches!(t.backward_dense(4, seed(&d)).unwrap_err().kind(), ErrorKind::Node { .. }));
}

/// Gradients add up only where they have the shape of their node: none is repeated to fit.
#[test]
fn gradients_of_another_shape_are_refused_wherever_they_come_from() {
    let d = device();
    let three = |x: f32| up(&d, &[x; 3]);
    let refused = |got: Result<()>| {
        let e = got.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Shapes { .. } | ErrorKind::DType { .. }), "{e}");
    };
    let mut t = Tape::new(&d);
    let x = t.leaf(three(1.0), None, true).unwrap();
    let fixed = t.leaf(three(1.0), None, false).unwrap();
    let y = t.record(pointwise::Scale { c: 2.0 }.into(), &[x]).unwrap();
    let right = || vec![three(10.0), three(0.0), three(1.0)];
    assert_eq!(down(&t.backward_dense_from(right()).unwrap()[x]), [12.0; 3]);
    let indices = AnyBuffer::upload_indices(&d, &Tensor::new(&[3], vec![1, 2, 3]).unwrap()).unwrap();
    for (at, slot) in [x, fixed, y].into_iter().flat_map(|at| [(at, up(&d, &[10.0])), (at, indices.clone())])
    {
        let mut slots = right();
        slots[at] = slot.clone();
        refused(t.backward_dense_from(slots).map(drop));
        // The steps by themselves.
        let mut slots: Vec<_> = right().into_iter().map(Some).collect();
        slots[at] = Some(slot);
        refused(t.backward_first(&mut slots, t.size()));
    }
    refused(t.backward_dense(y, up(&d, &[1.0])).map(drop));
    refused(t.backward_seeds(vec![(y, three(1.0)), (y, up(&d, &[1.0]))], |_| true, false).map(drop));
    // A rule that gives another shape or type, first and second.
    for wrong in [up(&d, &[1.0]), indices] {
        for contributions in [vec![wrong.clone()], vec![three(1.0), wrong.clone()]] {
            let mut t = Tape::new(&d);
            let x = t.leaf(three(1.0), None, true).unwrap();
            let backward: BackwardFn =
                Arc::new(move |_| Ok(contributions.iter().map(|g| (x, g.clone())).collect()));
            let node = Node {
                name: None,
                value: Some(three(1.0)),
                meta: three(1.0).meta(),
                requires_grad: true,
                parents: vec![x],
                cleanup: Vec::new(),
                backward: Backward::Custom(backward),
            };
            let y = t.add_node(node).unwrap();
            refused(t.backward_dense(y, three(1.0)).map(drop));
        }
        let mut t = Tape::new(&d);
        let x = t.leaf(three(1.0), None, true).unwrap();
        t.hook(x, Arc::new(move |_| Ok(wrong.clone()))).unwrap();
        refused(t.backward_dense(x, three(1.0)).map(drop));
    }
    // As values.
    let s = Session::eager(&d);
    let v = s.variable(&Tensor::new(&[3], vec![1.0f32; 3]).unwrap()).unwrap();
    let (y, other, one) =
        (v.square().unwrap(), v.detach().unwrap().tracked().unwrap(), s.full(&[1], 1.0).unwrap());
    refused(s.vjp(&[(y, one)], &[v]).map(drop));
    refused(s.jvp(y, &[(v, one)]).map(drop));
    refused(s.jvp(y, &[(v, v), (other, one)]).map(drop));
    refused(s.hvp(y.sum().unwrap(), &[(v, one)]).map(drop));
    refused(y.backward_from(&Tensor::new(&[1], vec![1.0f32]).unwrap()).map(drop));
}

#[test]
fn user_rules_take_part_and_are_checked() {
    let d = device();
    let two = shape(&[2]);
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[3.0, 4.0]), None, true).unwrap();
    let dd = d.clone();
    let square = move |x: &AnyBuffer| ops::apply(&dd, &pointwise::Square {}.into(), &[x]);
    let dd = d.clone();
    let y = t
        .unary("my_square", x, (two, two), square, move |x, up| {
            let dx = ops::apply(&dd, &pointwise::Mul {}.into(), &[x, up])?;
            ops::apply(&dd, &pointwise::Scale { c: 2.0 }.into(), &[&dx])
        })
        .unwrap();
    let dd = d.clone();
    let product = move |a: &AnyBuffer, b: &AnyBuffer| ops::apply(&dd, &pointwise::Mul {}.into(), &[a, b]);
    let dd = d.clone();
    let z = t
        .binary("my_mul", (y, x), (two, two, two), product, move |a, b, up| {
            let mul = |x: &AnyBuffer| ops::apply(&dd, &pointwise::Mul {}.into(), &[x, up]);
            Ok((mul(b)?, mul(a)?))
        })
        .unwrap();
    let s = t.record(sum(1), &[z]).unwrap();
    let grads = t.backward_dense(s, seed(&d)).unwrap();
    // z = x^3
    assert_eq!(down(&grads[x]), [27.0, 48.0]);
    // A closure that does not keep its word is an error, and nothing is recorded.
    let size = t.size();
    let e = t.unary("liar", x, (two, shape(&[3])), |x| Ok(x.clone()), |x, _| Ok(x.clone())).unwrap_err();
    assert!(e.to_string().starts_with("liar"), "{e}");
    assert_eq!(t.size(), size);
}

proptest! {
    /// Appending returns the size before and adds one; values stay where they were.
    #[test]
    fn ids_count_up(values in prop::collection::vec(prop::collection::vec(-8i8..8, 1..5), 1..12)) {
        let d = device();
        let mut t = Tape::new(&d);
        for (i, v) in values.iter().enumerate() {
            let v: Vec<f32> = v.iter().map(|&x| f32::from(x)).collect();
            prop_assert_eq!(t.leaf(up(&d, &v), None, true).unwrap(), i);
            prop_assert_eq!(t.size(), i + 1);
        }
        for (i, v) in values.iter().enumerate() {
            let v: Vec<f32> = v.iter().map(|&x| f32::from(x)).collect();
            prop_assert_eq!(down(t.value(i).unwrap()), v);
        }
    }

    /// On small integers float32 is exact, so the sparse and dense walks agree bit for bit on random
    /// chains of products and sums, and both agree with whole-number arithmetic.
    #[test]
    fn walks_agree_on_exact_numbers(steps in prop::collection::vec((0usize..3, 0usize..100, 0usize..100), 1..8)) {
        let d = device();
        let mut t = Tape::new(&d);
        t.leaf(up(&d, &[1.0, 2.0]), None, true).unwrap();
        t.leaf(up(&d, &[-1.0, 1.0]), None, true).unwrap();
        // Values and derivatives with respect to both leaves, at both elements, as whole numbers.
        let mut exact: Vec<[[i64; 3]; 2]> = vec![[[1, 1, 0], [2, 1, 0]], [[-1, 0, 1], [1, 0, 1]]];
        for (kind, a, b) in steps {
            let (a, b) = (a % t.size(), b % t.size());
            let op: AnyOp = match kind {
                0 => pointwise::Add {}.into(),
                1 => pointwise::Sub {}.into(),
                _ => pointwise::Mul {}.into(),
            };
            let pair = |j: usize| -> [i64; 3] {
                let ([x, xa, xb], [y, ya, yb]) = (exact[a][j], exact[b][j]);
                match kind {
                    0 => [x + y, xa + ya, xb + yb],
                    1 => [x - y, xa - ya, xb - yb],
                    _ => [x * y, xa * y + x * ya, xb * y + x * yb],
                }
            };
            let next = [pair(0), pair(1)];
            prop_assume!(next.iter().flatten().all(|v| v.abs() < 1 << 20));
            exact.push(next);
            t.record(op, &[a, b]).unwrap();
        }
        let out = t.size() - 1;
        let s = t.record(sum(1), &[out]).unwrap();
        let dense = t.backward_dense(s, seed(&d)).unwrap();
        let sparse = t.backward_sparse(s, seed(&d), |i| i < 2, false).unwrap();
        for leaf in 0..2 {
            let want: Vec<f32> = (0..2).map(|j| exact[out][j][1 + leaf] as f32).collect();
            // A gradient that cancels may be a zero of either sign, and one that never came is zeros.
            let same = |x: &[f32]| x.iter().zip(&want).all(|(a, b)| a == b);
            prop_assert!(same(&down(&dense[leaf])), "{:?} {:?}", down(&dense[leaf]), want);
            if let Some(g) = sparse.get(&leaf) {
                prop_assert!(same(&down(g)));
            } else {
                prop_assert!(want.iter().all(|&w| w == 0.0));
            }
        }
    }
}

/// Zeros for the first two nodes of a tape, and a gradient of the third.
fn dense(t: &Tape, seed: AnyBuffer) -> Result<Vec<AnyBuffer>> {
    let zeros = AnyBuffer::zeros(t.device(), seed.shape())?;
    Ok(vec![zeros.clone(), zeros, seed])
}

/// The gradient of the first of three nodes from that of the last.
type Walk = fn(&mut Tape, AnyBuffer) -> Result<Vec<f32>>;

/// Of every walk: the gradient of the leaf is the same, and whether it frees what it has passed.
#[test]
fn walks_that_free_release_the_scratch_memory_of_all_nodes() {
    let walks: [(&str, bool, Walk); 8] = [
        ("first", false, |t, seed| {
            let mut grads = vec![None, None, Some(seed)];
            t.backward_first(&mut grads, 3)?;
            Ok(down(grads[0].as_ref().unwrap()))
        }),
        ("first_free", true, |t, seed| {
            let mut grads = vec![None, None, Some(seed)];
            t.backward_first_free(&mut grads, 3, &[2])?;
            Ok(down(grads[0].as_ref().unwrap()))
        }),
        ("dense", false, |t, seed| Ok(down(&t.backward_dense(2, seed)?[0]))),
        ("dense_free", true, |t, seed| Ok(down(&t.backward_dense_free(2, seed)?[0]))),
        ("dense_from", false, |t, seed| {
            let given = dense(t, seed)?;
            Ok(down(&t.backward_dense_from(given)?[0]))
        }),
        ("dense_from_free", true, |t, seed| {
            let given = dense(t, seed)?;
            Ok(down(&t.backward_dense_from_free(given)?[0]))
        }),
        ("sparse", false, |t, seed| Ok(down(&t.backward_sparse(2, seed, |id| id == 0, false)?[&0]))),
        ("sparse, freeing", true, |t, seed| Ok(down(&t.backward_sparse(2, seed, |id| id == 0, true)?[&0]))),
    ];
    for (what, frees, walk) in walks {
        let d = device();
        let mut t = Tape::new(&d);
        t.leaf(up(&d, &[1.0, -2.0]), None, true).unwrap();
        // The rules hold their scratch memory too: dropping the tape's handles would not free it.
        let scratch = [3.0, 5.0].map(|by| {
            let scratch = up(&d, &[by, by]);
            let (parent, held) = (t.size() - 1, scratch.clone());
            let rule = move |up: &AnyBuffer| {
                let product = ops::apply(held.buffer().device(), &pointwise::Mul {}.into(), &[up, &held])?;
                Ok(vec![(parent, product)])
            };
            t.add_node(Node {
                name: None,
                value: Some(up(&d, &[by, -by])),
                meta: Meta::f32(shape(&[2])),
                requires_grad: true,
                parents: vec![parent],
                cleanup: vec![scratch.buffer().clone()],
                backward: Backward::Custom(std::sync::Arc::new(rule)),
            })
            .unwrap();
            scratch
        });
        assert_eq!(walk(&mut t, up(&d, &[1.0, 2.0])).unwrap(), [15.0, 30.0], "{what}");
        let released = scratch.each_ref().map(|s| s.buffer().is_released());
        assert_eq!(released, [frees; 2], "{what}");
        assert_eq!(t.value(1).is_none(), frees, "{what}: the value of a computed node");
        assert!(t.value(0).is_some(), "{what}: a leaf");
        // From gradients of all nodes there is no output to keep.
        assert_eq!(t.value(2).is_none(), what == "dense_from_free", "{what}: the output");
        // A second walk has what it needs, or an error that says what is gone.
        match walk(&mut t, up(&d, &[1.0, 2.0])) {
            Ok(again) => assert!(!frees && again == [15.0, 30.0], "{what}"),
            Err(e) => assert!(frees && *e.kind() == ErrorKind::Released, "{what}: {e}"),
        }
        t.clear();
        assert!(scratch.iter().all(|s| s.buffer().is_released()), "{what}");
    }
}

#[test]
fn values_of_another_device_are_refused() {
    let (d, other) = (device(), Device::host::<f64>());
    let (mine, theirs) = (up(&d, &[1.0]), up(&other, &[1.0]));
    let add = AnyOp::from(pointwise::Add {});
    assert!(ops::apply(&d, &add, &[&mine, &mine]).is_ok());
    let e = ops::apply(&d, &add, &[&mine, &theirs]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Device { .. }), "{e}");
    assert!(Tape::new(&d).leaf(theirs, None, true).is_err());
}

#[test]
fn a_tape_that_was_cleared_has_no_hooks() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0]), None, true).unwrap();
    let zero = up(&d, &[0.0]);
    t.hook(x, std::sync::Arc::new(move |_| Ok(zero.clone()))).unwrap();
    let grad = |t: &mut Tape, x: usize| {
        let s = t.record(sum(1), &[x]).unwrap();
        down(&t.backward_dense(s, seed(&d)).unwrap()[x])
    };
    assert_eq!(grad(&mut t, x), [0.0]);
    t.clear();
    let again = t.leaf(up(&d, &[1.0]), None, true).unwrap();
    assert_eq!((again, grad(&mut t, again)), (x, vec![1.0]));
}

/// A node cannot be its own parent, and gradients of another shape than their values are found where they come in.
#[test]
fn what_does_not_fit_is_refused_where_it_comes_in() {
    let d = device();
    let mut t = Tape::new(&d);
    let x = t.leaf(up(&d, &[1.0, 2.0]), None, true).unwrap();
    let node = |parents: Vec<usize>, backward: Backward| Node {
        name: None,
        value: Some(up(&d, &[5.0])),
        meta: Meta::f32(shape(&[1])),
        requires_grad: true,
        parents,
        cleanup: Vec::new(),
        backward,
    };
    let e = t.add_node(node(vec![1], Backward::None)).unwrap_err();
    assert_eq!((e.kind(), t.size()), (&ErrorKind::Node { id: 1, size: 1 }, 1));
    // A seed that nobody passes on.
    let mut grads = vec![Some(up(&d, &[1.0, 2.0, 3.0]))];
    let e = t.backward_step(&mut grads, x).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Shapes { .. }), "{e}");
    // A rule that gives three numbers for two; the walk ends there, as nothing is below.
    let three = up(&d, &[1.0, 2.0, 3.0]);
    let rule = std::sync::Arc::new(move |_: &AnyBuffer| Ok(vec![(0, three.clone())]));
    let y = t.add_node(node(vec![x], Backward::Custom(rule))).unwrap();
    let mut grads = vec![None, Some(up(&d, &[1.0]))];
    let e = t.backward_step(&mut grads, y).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Shapes { .. }) && grads[x].is_none(), "{e}");
}

/// What no wanted gradient needs is neither recorded nor asked for.
#[test]
fn gradients_take_no_more_than_they_need() {
    use dittograd::session::Session;
    let d = device();
    let matrix = Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
    // The same nodes, whether the other factor could have a gradient too or not: its product, and that with the seed.
    let recorded = |is_variable: bool| {
        let s = Session::eager(&d);
        let a = s.variable(&matrix).unwrap();
        let b = if is_variable { s.variable(&matrix) } else { s.input(&matrix) }.unwrap();
        let y = a.matmul(b).unwrap().sum().unwrap();
        let before = s.with_tape(|t| Ok(t.size())).unwrap();
        s.grad(y, &[a]).unwrap();
        s.with_tape(|t| Ok(t.size())).unwrap() - before
    };
    // The seed, its two changes of shape, and one product.
    assert_eq!((recorded(false), recorded(true)), (4, 4));
    // Rules that need no values work where these were freed.
    let s = Session::eager(&d);
    let a = s.variable(&matrix).unwrap();
    let y = a.neg().unwrap().add(a).unwrap().neg().unwrap().sum().unwrap();
    for _ in 0..2 {
        let grads = y.backward().unwrap();
        assert_eq!(grads.var(a).unwrap().to_tensor::<f32>().unwrap().data(), [0.0; 4]);
    }
}
