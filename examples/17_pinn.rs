//! A physics-informed network solves the heat equation `u_t = 0.1 u_xx` for `0 <= x, t <= 1`. Known are the beginning, at
//! `t = 0`, and both ends of the rod.

use dittograd::nn::Activation;
use dittograd::numerics::functions::{exp, sin}; // the same bits on every machine, unlike `f32::sin`
use dittograd::prelude::*;
use std::f32::consts::PI;

/// The solution at a point `(x, t)`.
fn exact([x, t]: [f32; 2]) -> f32 {
    exp(-0.1 * PI * PI * t) * sin(PI * x)
}

/// How far `u` is from the known values, and from solving the equation at random points.
fn loss<'s>(u: &Mlp, known: Var<'s>, values: Var<'s>) -> Result<Var<'s>> {
    let s = known.session();
    let (x, t) = (s.uniform(&[128, 1])?.tracked()?, s.uniform(&[128, 1])?.tracked()?);
    // A value depends on its own point only, so the gradient of the sum has every derivative in its place.
    let u_of = s.grad(u.forward(x.concat(t, 1)?)?.sum()?, &[x, t])?;
    let u_xx = s.grad(u_of[0].sum()?, &[x])?[0];
    let residual = (u_of[1] - 0.1 * u_xx)?.square()?.mean()?;
    residual + u.forward(known)?.mse(values)? * 10.0
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 7);
    let u = Mlp::new(&mut params, &[2, 24, 24, 1])?.activation(Activation::Tanh);

    let along = (0..32).map(|i| i as f32 / 31.0);
    let known: Vec<[f32; 2]> = along.flat_map(|a| [[a, 0.0], [0.0, a], [1.0, a]]).collect();
    let values = Tensor::new(&[96, 1], known.iter().map(|p| exact(*p)).collect::<Vec<_>>())?;
    let optimizer = Optimizer::adam(1e-2).schedule(Schedule::cosine(1500, 0.0));
    let mut step = TrainStep::new(&params, optimizer, |v| loss(&u, v[0], v[1]));
    step.run(&[(&Tensor::new(&[96, 2], known.concat())?).into(), (&values).into()])?;
    println!("loss at first {:.5}", step.loss()?);
    (1..1500).try_for_each(|_| step.again())?; // the same known values, other random points
    println!("loss at last  {:.5}", step.loss()?);

    let grid: Vec<[f32; 2]> = (0..441).map(|i| [(i % 21) as f32 / 20.0, (i / 21) as f32 / 20.0]).collect();
    let session = Session::inference(&device);
    let found = u.forward(session.input(&Tensor::new(&[441, 2], grid.concat())?)?)?.value::<f32>()?;
    let error = |(p, u): (&[f32; 2], &f32)| (u - exact(*p)).abs();
    let worst = grid.iter().zip(found.data()).map(error).fold(0.0, f32::max);
    println!("largest distance from the solution {worst:.4}, fingerprint {}", params.fingerprint()?);
    assert!(worst < 0.01);
    Ok(())
}
