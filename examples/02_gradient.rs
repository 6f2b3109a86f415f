//! Gradients: of a small formula, checked against a difference quotient.

use dittograd::prelude::*;

fn f(x: Var<'_>) -> Result<Var<'_>> {
    (x.tanh()? * x.sin())?.sum()
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let session = Session::eager(&device);
    let at = Tensor::new(&[3], vec![0.5f32, -1.0, 2.0])?;

    let x = session.variable(&at)?;
    let y = f(x)?;
    let grads = y.backward()?;
    let Some(dx) = grads.var(x) else { unreachable!("y depends on x") };
    let dx = dx.to_tensor::<f64>()?;

    for i in 0..3 {
        let mut moved = at.clone();
        let h = 1e-2f32;
        moved.data_mut()[i] += h;
        let up = f(session.input(&moved)?)?.item()?;
        moved.data_mut()[i] -= 2.0 * h;
        let down = f(session.input(&moved)?)?.item()?;
        let quotient = f64::from(up - down) / f64::from(2.0 * h);
        println!("d/dx{i} = {:.5}, difference quotient {quotient:.5}", dx.data()[i]);
        assert!((dx.data()[i] - quotient).abs() < 1e-3);
    }
    Ok(())
}
