//! A program as data: traced from code, printed, parsed, hashed, drawn, differentiated, and run again and again.

use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::prelude::*;
use dittograd::scalar::Ratio;

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 7);
    let w = params.uniform("w", &[3, 2], -1.0, 1.0)?;

    // Nothing runs here: the code is recorded, and its shapes are checked.
    let inputs = [Meta::f32(Shape::new(&[4, 3])?)];
    let graph = Graph::trace(&device, &inputs, |s, x| {
        let y = x[0].matmul(s.param(&w)?)?.tanh()?;
        Ok(vec![(y * y)?.mean()?])
    })?;
    let text = graph.text()?;
    println!("{text}\nhash {}", graph.hash()?);
    println!("its drawing has {} bytes of SVG\n", graph.to_svg().len());

    // The text is the whole program. Parameters have names there, and get their values here.
    let mut parsed = Graph::parse(&text)?;
    assert_eq!(parsed, graph);
    parsed.bind(&params)?;
    let broken = text.replace("f32[4, 2]", "f32[4, 9]");
    println!("a mistake: {}\n", Graph::parse(&broken).err().map_or(String::new(), |e| e.to_string()));

    // Compiled once, run many times, with the bits of the eager run.
    let gradient = parsed.vjp()?;
    let (mut value, mut slope) = (parsed.compile(&device)?, gradient.compile(&device)?);
    let session = Session::eager(&device);
    let mut x = Tensor::from_fn(Shape::new(&[4, 3])?, |i| (i as f32 - 6.0) / 4.0);
    for step in 0..4 {
        let loss = value.call(&[x.clone().into()])?[0].num()?.item()?;
        let dx = slope.call(&[x.clone().into(), Tensor::scalar(1.0).into()])?[0].num()?.clone();
        let eager = session.replay(&graph, &[session.input(&x)?])?[0].item()?;
        assert_eq!(loss.to_bits(), eager.to_bits());
        println!("step {step}: {loss:.6}");
        x = Tensor::with_shape(
            x.shape(),
            x.data().iter().zip(dx.data()).map(|(x, g)| x - 4.0 * g).collect(),
        )?;
    }

    // The same kind of program in exact fractions: the Hessian of a^2 b at (1/3, 2/5).
    let cubic = Graph::trace(&device, &[Meta::f32(Shape::new(&[2])?)], |s, x| {
        let x = x[0].tracked()?;
        let (a, b) = (x.select(0, 0)?, x.select(0, 1)?);
        Ok(vec![s.hessian((a * a * b)?, x)?])
    })?;
    let at = Tensor::new(&[2], vec![Ratio::new(1, 3), Ratio::new(2, 5)])?;
    let hessian = cubic.run(&Device::host::<Ratio>(), &[at.into()])?;
    println!("\nHessian {:?}", hessian[0].num()?.data());
    assert_eq!(hessian[0].num()?.data()[1], Ratio::new(2, 3));
    Ok(())
}
