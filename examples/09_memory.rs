//! Memory: what is live, what a step takes, who holds it, and a leak that is told of.

use dittograd::prelude::*;

fn main() -> Result<()> {
    let device = Device::best()?;
    device.watch_with(|warning| println!("warning: {warning}"));
    let session = Session::eager(&device);
    let x = Tensor::full(Shape::new(&[64, 256])?, 0.5f32);

    // A step whose values go when it ends.
    for _ in 0..3 {
        let x = session.variable(&x)?;
        x.tanh()?.matmul_with(x, false, true)?.mean()?.backward()?;
        session.reset();
        println!("{}", device.memory_report());
    }

    // A step that keeps something: the buffer stays alive whatever the session does.
    let mut kept = Vec::new();
    for _ in 0..25 {
        kept.push(session.input(&x)?.tanh()?.buffer()?);
        session.reset();
    }
    let report = device.memory_report();
    println!("{report}");
    assert_eq!((report.holders[0].what, report.holders[0].count), ("tanh", 25));

    // What there is no room for says what was asked, and who has the rest.
    device.fail_allocation(Some(1), false);
    match session.full(&[1 << 10, 1 << 10], 1.0) {
        Ok(_) => unreachable!("it was told to fail"),
        Err(e) => println!("{e}"),
    }
    Ok(())
}
