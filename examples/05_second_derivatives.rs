//! A differential equation as a loss: a small network `u` learns `u'' = -u`, `u(0) = 0`, `u'(0) = 1`, whose solution is the
//! sine. The loss holds second derivatives, so a training step needs third ones; the step is compiled.

use dittograd::prelude::*;

/// The network at every point of `x (n, 1)`.
fn u<'s>(x: Var<'s>, w: &[Param; 4]) -> Result<Var<'s>> {
    let s = x.session();
    let [w1, b1, w2, b2] = [s.param(&w[0])?, s.param(&w[1])?, s.param(&w[2])?, s.param(&w[3])?];
    x.matmul(w1)?.add(b1)?.tanh()?.matmul(w2)?.add(b2)
}

/// How far `u` is from solving the equation.
fn loss<'s>(x: Var<'s>, w: &[Param; 4]) -> Result<Var<'s>> {
    let (s, x) = (x.session(), x.tracked()?);
    let u = u(x, w)?;
    // Each u depends on its own x only, so the gradient of the sum has every derivative in its place.
    let du = s.grad(u.sum()?, &[x])?[0];
    let d2u = s.grad(du.sum()?, &[x])?[0];
    let inside = d2u.add(u)?.square()?.mean()?;
    // The first point is 0.
    let (u0, du0) = (u.narrow(0, 0, 1)?, du.narrow(0, 0, 1)?.add_scalar(-1.0)?);
    inside.add(u0.square()?.sum()?)?.add(du0.square()?.sum()?)
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 1);
    let w = [
        params.uniform("w1", &[1, 24], -1.5, 1.5)?,
        params.uniform("b1", &[24], -1.5, 1.5)?,
        params.uniform("w2", &[24, 1], -0.2, 0.2)?,
        params.zeros("b2", &[1])?,
    ];
    let points: Vec<f32> = (0..32).map(|i| i as f32 * 0.1).collect();
    let x = Tensor::new(&[points.len(), 1], points.clone())?;

    let net = w.clone();
    let mut step = TrainStep::new(&params, Optimizer::adam(0.01), move |v| loss(v[0], &net));
    step.run(&[(&x).into()])?;
    println!("loss at first  {:.6}", step.loss()?);
    for _ in 1..2000 {
        step.again()?;
    }
    println!("loss at last   {:.6}", step.loss()?);

    let session = Session::inference(&device);
    let found = u(session.input(&x)?, &w)?.value::<f32>()?;
    let worst = found.data().iter().zip(&points).map(|(u, x)| (u - x.sin()).abs()).fold(0.0, f32::max);
    println!("largest distance from the sine on [0, 3.1]: {worst:.4}");
    assert!(worst < 0.05);
    println!("fingerprint {}", params.fingerprint()?);
    Ok(())
}
