//! Training, eagerly and compiled: the model is written once, and both give the same bits.

use dittograd::prelude::*;

/// Points in a square, labelled by quadrant.
fn data(seed: u64) -> Result<(Tensor<f32>, Tensor<u32>)> {
    let mut s = Stream::new(seed, 0);
    let x = Tensor::from_fn(Shape::new(&[256, 2])?, |_| s.range(-1.0, 1.0));
    let label = |i: usize| u32::from(x.data()[2 * i] > 0.0) + 2 * u32::from(x.data()[2 * i + 1] > 0.0);
    let y = Tensor::from_fn(Shape::new(&[256])?, label);
    Ok((x, y))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let (x, y) = data(7)?;

    // Eager: each line runs when it is written.
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 32, 4])?;
    let mut optimizer = Optimizer::adamw(1e-2);
    let session = Session::eager(&device);
    for _ in 0..100 {
        let loss = net.forward(session.input(&x)?)?.cross_entropy(session.labels(&y)?)?;
        optimizer.step(&params, loss.backward()?)?;
        session.reset();
    }
    let eager = params.fingerprint()?;

    // Compiled: the same closure traced once; forward, backward and update are one program.
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 32, 4])?;
    let mut step =
        TrainStep::new(&params, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
    for _ in 0..100 {
        step.run(&[(&x).into(), (&y).into()])?;
    }
    println!("loss {:.4} after 100 steps", step.loss()?);
    println!("{}", step.text()?);
    println!("eager    {eager}\ncompiled {}", params.fingerprint()?);
    assert_eq!(eager, params.fingerprint()?);
    Ok(())
}
