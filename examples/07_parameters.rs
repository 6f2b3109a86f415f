//! Parameters and optimizers: names, freezing, sharing, and training on from a saved state.

use dittograd::prelude::*;

/// Words and what follows them: the table that turns a word into numbers also turns numbers into words (tied weights).
fn loss<'s>(words: Var<'s>, next: Var<'s>, params: &Params) -> Result<Var<'s>> {
    let s = words.session();
    let get = |name: &str| match params.get(name) {
        Some(p) => s.param(p),
        None => unreachable!("{name} was made"),
    };
    let table = get("table")?;
    let hidden = (table.embedding(words)?.matmul(get("mix")?) + get("shift")?)?.tanh()?;
    hidden.matmul_with(table, false, true)?.cross_entropy(next)
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 7);
    params.uniform("table", &[6, 16], -0.5, 0.5)?;
    params.uniform("mix", &[16, 16], -0.4, 0.4)?;
    let shift = params.zeros("shift", &[16])?;
    for p in params.iter() {
        println!("{p:?}");
    }
    println!("{} numbers", params.numel());

    // Each word is followed by the next one, and the last one by the first.
    let words = Tensor::new(&[6], vec![0u32, 1, 2, 3, 4, 5])?;
    let next = Tensor::new(&[6], vec![1u32, 2, 3, 4, 5, 0])?;

    shift.set_trainable(false); // it stays as it is from here on
    let session = Session::eager(&device);
    let mut optimizer = Optimizer::adamw(3e-2);
    let mut saved = Vec::new();
    for step in 1..=120 {
        let value = loss(session.labels(&words)?, session.labels(&next)?, &params)?;
        if step % 40 == 0 {
            println!("step {step} loss {:.4}", value.item()?);
        }
        // The table is one leaf, used twice: its gradient is the sum of both.
        optimizer.step(&params, value.backward()?)?;
        session.reset();
        if step == 80 {
            saved = params.iter().map(|p| p.get::<f32>()).collect::<Result<Vec<_>>>()?;
        }
    }
    assert!(shift.get::<f32>()?.data().iter().all(|x| *x == 0.0));

    // A parameter the loss does not reach is reported by name: frozen or forgotten?
    let lost = params.zeros("lost", &[1])?;
    let value = loss(session.labels(&words)?, session.labels(&next)?, &params)?;
    match optimizer.step(&params, value.backward()?) {
        Ok(()) => unreachable!("nothing uses it"),
        Err(e) => println!("{e}"),
    }
    lost.set_trainable(false);
    session.reset();

    // Back to the values of step 80; the loss says so.
    for (p, value) in params.iter().zip(&saved) {
        p.set(value)?;
    }
    let value = loss(session.labels(&words)?, session.labels(&next)?, &params)?;
    println!("at step 80 again: loss {:.4}", value.item()?);
    assert!(value.item()? < 0.2);
    Ok(())
}
