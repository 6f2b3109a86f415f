//! Shapes in types: a network whose layers the compiler has checked, trained to separate four quadrants.

use dittograd::prelude::*;
use dittograd::typed::{Build, Labels, Linear, Matrix, Module, Relu, Rows};

/// Two coordinates to four classes. With `Linear<31, 4>` at its end the program does not compile:
/// "the last dimension of `(Size<256>, Size<32>)` is not `Size<31>`".
type Net = (Linear<2, 32>, Relu, Linear<32, 4>);

const BATCH: usize = 256;

/// Points in a square, labelled by quadrant.
fn data(seed: u64) -> Result<(Tensor<f32>, Tensor<u32>)> {
    let mut s = Stream::new(seed, 0);
    let x = Tensor::from_fn(Shape::new(&[BATCH, 2])?, |_| s.range(-1.0, 1.0));
    let label = |i: usize| u32::from(x.data()[2 * i] > 0.0) + 2 * u32::from(x.data()[2 * i + 1] > 0.0);
    let y = Tensor::from_fn(Shape::new(&[BATCH])?, label);
    Ok((x, y))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let (x, y) = data(7)?;
    let mut params = Params::new(&device, 7);
    let net = Net::build(&mut params, "net")?;
    let mut optimizer = Optimizer::adamw(1e-2);

    let session = Session::eager(&device);
    for step in 0..100 {
        // Values from outside are checked once, here; from then on the compiler knows.
        let x: Matrix<BATCH, 2> = session.input(&x)?.typed()?;
        let y: Labels<BATCH> = session.labels(&y)?.typed()?;
        let loss = net.forward(x)?.cross_entropy(y)?;
        if step % 20 == 0 {
            println!("step {step} loss {:.4}", loss.item()?);
        }
        optimizer.step(&params, loss.backward()?)?; // only a scalar has `backward`
        session.reset();
    }

    // The same network for any number of rows.
    let (x, y) = data(8)?;
    let rows: Rows<2> = session.input(&x)?.typed()?;
    let classes = net.forward(rows)?.argmax::<1>()?.indices()?;
    let right = classes.data().iter().zip(y.data()).filter(|(a, b)| a == b).count();
    println!("{right} of {BATCH} new points right");
    assert!(right > BATCH * 9 / 10);

    // The untyped model is the same one: same names, same first values, same bits after training.
    let (x, y) = data(7)?;
    let mut untyped = Params::new(&device, 7);
    let mlp = Mlp::new(&mut untyped, &[2, 32, 4])?;
    let mut step =
        TrainStep::new(&untyped, Optimizer::adamw(1e-2), |v| mlp.forward(v[0])?.cross_entropy(v[1]));
    for _ in 0..100 {
        step.run(&[(&x).into(), (&y).into()])?;
    }
    assert_eq!(params.fingerprint()?, untyped.fingerprint()?);
    Ok(())
}
