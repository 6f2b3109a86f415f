//! Every op of the surface this runtime covers is there under a recognisable name. That the methods exist is checked
//! by the compiler.

use dittograd::ops::AnyOp;
use dittograd::ops::names::KNOWN;
use dittograd::prelude::*;

macro_rules! methods {
    ($($name:literal $method:ident $op:ident;)*) => {{
        $(let _ = Var::$method;)*
        [$($name),*].len()
    }};
}

#[test]
fn every_known_name_has_a_method_and_an_op() {
    assert_eq!(dittograd::with_names!(methods), KNOWN.len());
    for (name, method, op) in KNOWN {
        assert!(AnyOp::NAMES.contains(op), "{name}: there is no op {op} for {method}");
    }
    let distinct: std::collections::BTreeSet<_> = KNOWN.iter().map(|k| k.0).collect();
    assert_eq!(distinct.len(), KNOWN.len());
}
