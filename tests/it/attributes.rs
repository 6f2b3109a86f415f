//! An op is its name and its attributes: they give the op back, and nothing else is accepted in their place.

use dittograd::ops::{AnyOp, Attr, Attrs};

fn named(op: &AnyOp) -> Vec<(String, Attr)> {
    op.attrs().into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Ops that hold programs, which attributes do not tell.
const PROGRAMS: [&str; 4] = ["map", "fused", "led", "folded"];

/// Every op of every sample, but those.
fn all_ops() -> impl Iterator<Item = AnyOp> {
    let told = AnyOp::NAMES.iter().filter(|name| !PROGRAMS.contains(name));
    told.flat_map(|name| AnyOp::samples(name)).map(|sample| sample.op)
}

#[test]
fn attributes_give_the_op_back() {
    for op in all_ops() {
        assert_eq!(AnyOp::from_name(op.name(), &Attrs(named(&op))).unwrap(), op);
    }
    for name in PROGRAMS {
        assert!(
            AnyOp::from_name(name, &Attrs::default()).unwrap_err().to_string().contains("a program cannot")
        );
    }
}

#[test]
fn an_unknown_attribute_is_refused() {
    for op in all_ops() {
        let mut attrs = named(&op);
        attrs.push(("no_such_attribute".to_string(), Attr::Num(1.0)));
        let error = AnyOp::from_name(op.name(), &Attrs(attrs)).expect_err(op.name()).to_string();
        assert!(error.contains("`no_such_attribute` is not one of"), "{}: {error}", op.name());
    }
}

#[test]
fn an_attribute_of_another_kind_is_refused() {
    for op in all_ops() {
        for at in 0..op.attrs().len() {
            let mut attrs = named(&op);
            attrs[at].1 = match attrs[at].1 {
                Attr::List(_) => Attr::Bool(true),
                _ => Attr::List(vec![1]),
            };
            let error = AnyOp::from_name(op.name(), &Attrs(attrs)).expect_err(op.name()).to_string();
            assert!(error.contains("needed"), "{}: {error}", op.name());
        }
    }
}

#[test]
fn another_value_of_an_attribute_is_another_op() {
    let mut others = 0;
    for op in all_ops() {
        for at in 0..op.attrs().len() {
            let mut attrs = named(&op);
            attrs[at].1 = match &attrs[at].1 {
                Attr::Bool(x) => Attr::Bool(!x),
                Attr::Whole(x) => Attr::Whole(x ^ 1),
                Attr::Num(x) => Attr::Num(if *x == 0.5 { 0.25 } else { 0.5 }),
                Attr::List(x) => Attr::List(x.iter().copied().chain([1]).collect()),
            };
            // It may be one that there cannot be.
            if let Ok(other) = AnyOp::from_name(op.name(), &Attrs(attrs.clone())) {
                assert_ne!(other, op, "{attrs:?}");
                assert_eq!(AnyOp::from_name(op.name(), &Attrs(named(&other))).unwrap(), other);
                others += 1;
            }
        }
    }
    assert!(others > 300, "{others}");
}
