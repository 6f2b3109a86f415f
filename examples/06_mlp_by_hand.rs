//! A network by hand, without layers, parameters or an optimizer: operators, gradients, and a subtraction for the update.

use dittograd::prelude::*;

const RATE: f64 = 0.1;

/// Two layers. An operator takes a result on one side, so `x.matmul(w) + b` needs one `?`.
fn net<'s>(x: Var<'s>, w: &[Var<'s>]) -> Result<Var<'s>> {
    let hidden = (x.matmul(w[0]) + w[1])?.tanh()?;
    hidden.matmul(w[2]) + w[3]
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let session = Session::eager_seeded(&device, 7);

    // Exclusive or: true where the two inputs differ.
    let x = Tensor::new(&[4, 2], vec![0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
    let y = Tensor::new(&[4, 1], vec![0.0f32, 1.0, 1.0, 0.0])?;

    let shapes: [&[usize]; 4] = [&[2, 8], &[8], &[8, 1], &[1]];
    let mut weights = Vec::new();
    for dims in shapes {
        weights.push(session.uniform_range(dims, -1.0, 1.0)?.value::<f32>()?);
    }

    for step in 0..=500 {
        session.reset();
        let w = weights.iter().map(|t| session.variable(t)).collect::<Result<Vec<_>>>()?;
        let miss = (net(session.input(&x)?, &w) - session.input(&y)?)?;
        let loss = (miss * miss)?.mean()?;
        if step % 100 == 0 {
            println!("step {step} loss {:.5}", loss.item()?);
        }
        if step == 0 {
            println!("{session}"); // everything that was recorded, one value a line
        }
        let grads = loss.backward()?;
        for (w, value) in w.iter().zip(&mut weights) {
            let Some(slope) = grads.var(*w) else { unreachable!("the loss depends on every weight") };
            *value = (*w - RATE * session.buffer(slope)?)?.value()?;
        }
    }

    session.reset();
    let w = weights.iter().map(|t| session.input(t)).collect::<Result<Vec<_>>>()?;
    let found = net(session.input(&x)?, &w)?;
    println!("{found:.2}");
    let right =
        found.value::<f32>()?.data().iter().zip(y.data()).all(|(found, want)| (found - want).abs() < 0.1);
    assert!(right, "{found}");
    Ok(())
}
