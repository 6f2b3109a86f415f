//! Several models in one `Params`: names by scopes, frozen parts, shared weights, one step over all.

use crate::support::{device, fractions};
use dittograd::prelude::*;

fn names(params: &Params) -> Vec<String> {
    params.iter().map(|p| p.name().to_string()).collect()
}

#[test]
fn a_scope_comes_before_every_name_in_it() {
    let mut params = Params::new(&device(), 1);
    let one = Mlp::new(&mut params.scope("one"), &[3, 4, 2]).unwrap();
    {
        let mut outer = params.scope("two");
        outer.zeros("scale", &[2]).unwrap();
        Mlp::new(&mut outer.scope("inner"), &[3, 4, 2]).unwrap();
        assert!(outer.get("scale").is_some() && outer.get("two.scale").is_none());
        assert_eq!(outer.under("inner").count(), 4);
        // The scope ended: names are the outer one's again.
        outer.zeros("shift", &[2]).unwrap();
    }
    params.zeros("bias", &[2]).unwrap();
    let all = names(&params);
    assert_eq!(all[0], "one.net.0.weight");
    for name in ["two.scale", "two.inner.net.0.weight", "two.shift", "bias"] {
        assert!(params.get(name).is_some(), "{name} of {all:?}");
    }
    assert_eq!((params.under("two").count(), params.under("tw").count()), (6, 0));
    drop(one);
    // Scopes change names only: the values are those that the parameters have without.
    let mut plain = Params::new(&device(), 1);
    Mlp::new(&mut plain, &[3, 4, 2]).unwrap();
    let value = |p: &Params, name: &str| p.get(name).unwrap().get::<f32>().unwrap();
    assert_eq!(value(&params, "one.net.0.weight"), value(&plain, "net.0.weight"));
}

#[test]
fn a_name_that_is_taken_says_how_to_have_two() {
    let mut params = Params::new(&device(), 1);
    Mlp::new(&mut params, &[3, 4, 2]).unwrap();
    let e = Mlp::new(&mut params, &[3, 4, 2]).unwrap_err().to_string();
    assert!(e.contains("`net.0.weight` is taken") && e.contains("params.scope("), "{e}");
    Mlp::new(&mut params.scope("a"), &[3, 4, 2]).unwrap();
    let e = Mlp::new(&mut params.scope("a"), &[3, 4, 2]).unwrap_err().to_string();
    assert!(e.contains("`a.net.0.weight` is taken"), "{e}");
    assert!(params.zeros("", &[1]).unwrap_err().to_string().contains("is empty"));
    assert_eq!(params.scope("").zeros("plain", &[1]).unwrap().name(), "plain");
}

/// An autoencoder of two models whose step trains one of them, or both, or one weight from both sides.
#[test]
fn one_step_over_two_models_frozen_or_not() {
    let x = fractions(&[8, 6], 7);
    let train = |is_compiled: bool, is_frozen: bool| {
        let mut params = Params::new(&device(), 1);
        let encoder = Mlp::new(&mut params.scope("encoder"), &[6, 5, 3]).unwrap();
        let decoder = Mlp::new(&mut params.scope("decoder"), &[3, 5, 6]).unwrap();
        params.under("encoder").for_each(|p| p.set_trainable(!is_frozen));
        let before = params.get("encoder.net.0.weight").unwrap().get::<f32>().unwrap();
        let loss = |x: Var<'_>| -> Result<f32> {
            let y = decoder.forward(encoder.forward(x)?)?;
            y.sub(x)?.square()?.mean()?.item()
        };
        let first = loss(Session::inference(&device()).input(&x).unwrap()).unwrap();
        let mut optimizer = Optimizer::adamw(1e-2);
        if is_compiled {
            let mut step = TrainStep::new(&params, optimizer, |v| {
                decoder.forward(encoder.forward(v[0])?)?.sub(v[0])?.square()?.mean()
            });
            for _ in 0..20 {
                step.run(&[(&x).into()]).unwrap();
            }
        } else {
            for _ in 0..20 {
                let s = Session::eager(params.device());
                let x = s.input(&x).unwrap();
                let y = decoder.forward(encoder.forward(x).unwrap()).unwrap();
                let loss = y.sub(x).unwrap().square().unwrap().mean().unwrap();
                optimizer.step(&params, loss.backward().unwrap()).unwrap();
            }
        }
        let last = loss(Session::inference(&device()).input(&x).unwrap()).unwrap();
        assert!(last < first, "{last} and {first}");
        let after = params.get("encoder.net.0.weight").unwrap().get::<f32>().unwrap();
        assert_eq!(before == after, is_frozen);
        params.fingerprint().unwrap()
    };
    assert_eq!(train(false, false), train(true, false));
    assert_eq!(train(false, true), train(true, true));
    assert_ne!(train(true, false), train(true, true));
}
