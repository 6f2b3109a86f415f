//! Tensors, devices and sessions: upload, compute, read back, and look at the memory.

use dittograd::prelude::*;

fn main() -> Result<()> {
    let device = Device::best()?; // a GPU if there is one: same bits either way
    let session = Session::eager(&device);

    let x = session.input(&Tensor::new(&[2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?)?;
    let row = session.input(&Tensor::new(&[3], vec![10.0f32, 20.0, 30.0])?)?;
    let y = (x + row)?.softmax()?; // broadcast like NumPy
    println!("softmax of\n{x} + {row}:\n{y}"); // printed like NumPy too

    let total = y.sum()?.item()?;
    assert_eq!(total, 2.0);
    println!("{}", device.memory());

    session.reset(); // values are gone, and handles from before say so
    match y.value::<f32>() {
        Ok(_) => unreachable!("the handle is from before the reset"),
        Err(stale) => println!("{stale}"),
    }
    Ok(())
}
