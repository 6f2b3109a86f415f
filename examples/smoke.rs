//! Smoke.
use dittograd::prelude::*;
use dittograd::ops::{self, AnyOp, elementwise, matmul, softmax};
use dittograd::device::AnyBuffer;
fn train(device: &Device, mode: usize) -> Result<String> {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[2, 64, 64, 3])?;
    let mut s = dittograd::numerics::rng::Stream::new(1, 2);
    let x = Tensor::from_fn(Shape::new(&[128, 2])?, |_| s.range(-1.0, 1.0));
    let y = Tensor::from_fn(Shape::new(&[128])?, |i| ((x.data()[2 * i] * 3.0 + 3.0) as u32) % 3);
    if mode == 0 {
        let mut opt = Optimizer::adamw(1e-2);
        let s = Session::eager(device);
        for _ in 0..200 {
            let loss = net.forward(s.input(&x)?)?.cross_entropy(s.labels(&y)?)?;
            opt.step(&params, loss.backward()?)?;
            s.reset();
        }
    } else {
        let mut step = TrainStep::new(&params, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
        for _ in 0..200 { step.run(&[(&x).into(), (&y).into()])?; }
        println!("{:?} loss {}", step.plan()?, step.loss()?);
    }
    params.fingerprint()
}
fn bench(device: &Device) -> Result<()> {
    let cuda = device.as_cuda().unwrap();
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[784, 512, 512, 10])?;
    let mut s = dittograd::numerics::rng::Stream::new(1, 2);
    let x = Tensor::from_fn(Shape::new(&[128, 784])?, |_| s.normal());
    let y = Tensor::from_fn(Shape::new(&[128])?, |_| s.below(10) as u32);
    let t = std::time::Instant::now();
    let mut step = TrainStep::new(&params, Optimizer::adamw(1e-4), |v| net.forward(v[0])?.cross_entropy(v[1]));
    step.run(&[(&x).into(), (&y).into()])?;
    device.synchronize()?;
    println!("first step {:?}, {:?}", t.elapsed(), step.plan()?);
    let mut times = vec![];
    for _ in 0..300 { let t = std::time::Instant::now(); step.again()?; device.synchronize()?; times.push(t.elapsed().as_secs_f64() * 1e3); }
    times.sort_by(f64::total_cmp);
    let t = std::time::Instant::now();
    for _ in 0..200 { step.again()?; }
    device.synchronize()?;
    println!("mlp_b128 sync median {:.4} ms, back to back {:.4} ms", times[150], t.elapsed().as_secs_f64() * 5.0);
    let ev = cuda.time(|| { for _ in 0..100 { step.again()?; } Ok(()) })?;
    println!("mlp_b128 by events {:.4} ms", ev / 100.0);
    let time = |name: &str, op: AnyOp, ins: &[&AnyBuffer], work: f64, unit: &str| -> Result<()> {
        for _ in 0..3 { ops::apply(device, &op, ins)?; }
        let mut ts = vec![];
        for _ in 0..7 { ts.push(cuda.time(|| { for _ in 0..5 { ops::apply(device, &op, ins)?; } Ok(()) })? / 5.0); }
        ts.sort_by(f32::total_cmp);
        println!("{name}: {:.4} ms {:.1} {unit}", ts[3], work / f64::from(ts[3]) / 1e9);
        Ok(())
    };
    let mk = |d: &[usize]| -> Result<AnyBuffer> { ops::apply(device, &ops::random::Uniform { shape: Shape::new(d)?, seed: 1, counter: 2 }.into(), &[]) };
    let big = mk(&[1 << 28])?;
    let n = (1u64 << 28) as f64 * 8.0;
    time("copy 2^28", elementwise::Copy {}.into(), &[&big], n, "TB/s*1e-3")?;
    for (name, op) in [("exp", AnyOp::from(elementwise::Exp {})), ("gelu", elementwise::Gelu {}.into()), ("relu", elementwise::Relu {}.into()), ("sin", elementwise::Sin {}.into()), ("tanh", elementwise::Tanh {}.into()), ("pow2", elementwise::Square {}.into())] { time(name, op, &[&big], n, "GB/s")?; }
    for c in [128, 1024, 4096, 50304] { let r = (1usize << 27) / c; let v = mk(&[r, c])?; time(&format!("softmax {r}x{c}"), softmax::Softmax.into(), &[&v], (r * c) as f64 * 8.0, "GB/s")?; }
    { let v = mk(&[8192, 3072])?; time("sum rows->cols 8192x3072", ops::reduce::Sum::new(&[0])?.into(), &[&v], 8192.0*3072.0*4.0, "GB/s")?; time("sum all", ops::reduce::Sum::new(&[0,1])?.into(), &[&v], 8192.0*3072.0*4.0, "GB/s")?; time("transpose", ops::layout::Permute::transpose(2).into(), &[&v], 8192.0*3072.0*8.0, "GB/s")?; }
    for (m, nn, k, ta, tb) in [(4096, 4096, 4096, false, false), (8192, 3072, 768, false, true), (8192, 768, 3072, false, true), (768, 3072, 8192, true, false)] {
        let a = mk(&if ta { [k, m] } else { [m, k] })?; let b = mk(&if tb { [nn, k] } else { [k, nn] })?;
        time(&format!("matmul {m}x{nn}x{k}"), matmul::MatMul { ta, tb }.into(), &[&a, &b], 2.0 * (m * nn * k) as f64, "GFLOP/s")?;
    }
    Ok(())
}
fn main() -> Result<()> {
    let cpu = Device::cpu()?;
    println!("cpu {} {}", train(&cpu, 0)?, train(&cpu, 1)?);
    match Device::cuda(0) {
        Err(e) => println!("{e}"),
        Ok(gpu) => {
            println!("gpu eager {}", train(&gpu, 0)?);
            println!("gpu compiled {}", train(&gpu, 1)?);
            let c = gpu.as_cuda().unwrap();
            println!("compiled {} from disk {} launches {} {}", c.compiled(), c.loaded_from_disk(), c.launches(), gpu.memory());
            bench(&gpu)?;
            println!("{}", gpu.memory());
        }
    }
    Ok(())
}
