use super::*;
use dittograd_numerics::scalar::Dual;

#[test]
fn equal_steps_are_shared_and_dead_ones_dropped() {
    let p = Pointwise::trace(2, |x| {
        let _dead = x[0].exp() * Expr::c(3.0);
        vec![(x[0] * x[1]) + (x[0] * x[1])]
    });
    assert_eq!((p.steps().len(), p.consts().len()), (2, 0));
    assert_eq!(p.eval(&[3.0, 4.0f64]), [24.0]);
}

#[test]
fn the_block_evaluator_equals_the_scalar_one() {
    let p = Pointwise::trace(2, |x| {
        let mut y = x[0];
        for i in 0..12 {
            y = (y * x[1] + Expr::c(f64::from(i))).tanh() - x[0];
        }
        vec![y]
    });
    let mut s = dittograd_numerics::rng::Stream::new(5, 0);
    let a: Vec<f32> = (0..300).map(|_| s.range(-2.0, 2.0)).collect();
    let b: Vec<f32> = (0..300).map(|_| s.range(-2.0, 2.0)).collect();
    for simd in Simd::all_available() {
        let mut out = vec![0.0; 300];
        Registers::new(&p, 300).run(simd, &[&a, &b], &mut [&mut out]);
        for i in 0..300 {
            assert_eq!(out[i].to_bits(), p.eval(&[a[i], b[i]])[0].to_bits(), "{simd} {i}");
        }
    }
}

#[test]
fn derivatives_of_all_instructions_match_dual_numbers() {
    for &instr in Instr::ALL {
        let n = instr.arity();
        let p = Pointwise::trace(n, |x| vec![instr.apply(x)]);
        let mut s = dittograd_numerics::rng::Stream::new(11, instr as u64);
        // Inverse functions are defined up to 1.
        let end = if matches!(instr, Instr::Erfinv | Instr::Ndtri) { 0.95 } else { 2.0 };
        for _ in 0..50 {
            let x: Vec<f64> = (0..n).map(|_| f64::from(s.range(0.1, end))).collect();
            for wrt in 0..n {
                let at: Vec<Dual> = x
                    .iter()
                    .enumerate()
                    .map(|(i, &v)| Dual { v, d: f64::from(u8::from(i == wrt)) })
                    .collect();
                let want = p.eval(&at)[0].d;
                let mut with_g = x.clone();
                with_g.push(1.0);
                let got = p.gradient(wrt).eval(&with_g)[0];
                assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{instr:?} {wrt}: {got} {want}");
            }
        }
    }
}
