//! An op is its name and its attributes: they give the op back, and nothing else is accepted in their place.

use dittograd::ops::{AnyOp, Attr, Attrs};

fn named(op: &AnyOp) -> Vec<(String, Attr)> {
    op.attrs().into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Ops that hold programs, which attributes do not tell.
const PROGRAMS: [&str; 2] = ["map", "fused"];

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
        let e = AnyOp::from_name(name, &Attrs::default()).unwrap_err();
        assert!(e.to_string().contains("cannot be given by attributes"), "{e}");
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
                Attr::Num(x) if x.abs() > 1e9 => Attr::Num(0.0),
                Attr::Num(x) => Attr::Num(if x.fract() == 0.0 { x + 1.0 } else { x / 2.0 }),
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

#[test]
fn groups_of_a_convolution_are_a_count() {
    let conv = AnyOp::samples("conv").remove(0).op;
    for (groups, fits) in [
        (1.0, true),
        (4_294_967_295.0, true),
        (0.0, false),
        (-1.0, false),
        (1.5, false),
        (4_294_967_296.0, false),
    ] {
        let mut attrs = named(&conv);
        attrs.iter_mut().filter(|a| a.0 == "groups").for_each(|a| a.1 = Attr::Num(groups));
        assert_eq!(AnyOp::from_name("conv", &Attrs(attrs)).is_ok(), fits, "{groups}");
    }
}

#[test]
fn whole_numbers_are_read_as_long_as_they_are_exact() {
    let one = |value: Attr| Attrs(vec![("n".to_string(), value)]);
    let large = 1u64 << 53;
    for x in [0.0, 1.0, (large - 1) as f64] {
        assert_eq!(one(Attr::Num(x)).word("n").unwrap(), x as u64);
        assert_eq!(one(Attr::Num(x)).whole("n").unwrap(), x as usize);
    }
    for x in [-1.0, 0.5, large as f64, f64::NAN, f64::INFINITY] {
        assert!(one(Attr::Num(x)).word("n").is_err(), "{x}");
    }
    assert_eq!(one(Attr::Whole(u64::MAX)).word("n").unwrap(), u64::MAX);
    assert_eq!(one(Attr::Whole(large - 1)).whole("n").unwrap() as u64, large - 1);
    assert!(one(Attr::Whole(large)).whole("n").is_err());
    assert_eq!(one(Attr::Whole(7)).num("n").unwrap(), 7.0);
    assert!(one(Attr::Bool(true)).flag("n").unwrap() && !Attrs::default().flag("n").unwrap());
    assert!(one(Attr::Bool(true)).has("n") && !one(Attr::Bool(true)).has("m"));
    assert!(one(Attr::Num(1.0)).word("m").is_err() && one(Attr::Num(1.0)).flag("n").is_err());
}

#[test]
fn the_diagonal_of_a_triangle_is_a_whole_number() {
    let shifted = |shift: f64| {
        let attrs = vec![("upper".to_string(), Attr::Bool(true)), ("shift".to_string(), Attr::Num(shift))];
        AnyOp::from_name("triangle", &Attrs(attrs))
    };
    assert!(shifted(-2.0).is_ok());
    for shift in [0.5, -1.25, f64::NAN, f64::INFINITY] {
        let e = shifted(shift).expect_err("no whole number").to_string();
        assert!(e.contains("whole number"), "{e}");
    }
}
