//! A user's own operation: forward and backward as closures on the tape of a session.

use dittograd::ops::{apply, pointwise};
use dittograd::prelude::*;

fn main() -> Result<()> {
    let device = Device::best()?;
    let session = Session::eager(&device);
    let shape = Shape::new(&[3])?;

    let grads = session.with_tape(|tape| {
        let x = tape.leaf(
            AnyBuffer::upload(&device, &Tensor::new(&[3], vec![1.0f32, 2.0, 3.0])?)?,
            Some("x"),
            true,
        )?;
        // The cube of x, with a rule of our own: 3 x^2 times the upstream gradient.
        let (forward, backward) = (device.clone(), device.clone());
        let cube = tape.unary(
            "cube",
            x,
            (shape, shape),
            move |x| {
                let square = apply(&forward, &pointwise::Square {}.into(), &[x])?;
                apply(&forward, &pointwise::Mul {}.into(), &[&square, x])
            },
            move |x, up| {
                let square = apply(&backward, &pointwise::Square {}.into(), &[x])?;
                let slope = apply(&backward, &pointwise::Scale { c: 3.0 }.into(), &[&square])?;
                apply(&backward, &pointwise::Mul {}.into(), &[&slope, up])
            },
        )?;
        let seed = AnyBuffer::full(&device, shape, 1.0)?;
        let grads = tape.backward_dense(cube, seed)?;
        grads[x].to_tensor::<f32>()
    })?;
    println!("d(x^3)/dx at 1, 2, 3: {grads}");
    assert_eq!(grads.data(), [3.0, 12.0, 27.0]);
    Ok(())
}
