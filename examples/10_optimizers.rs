//! Parameters and optimizers: initial values, groups, schedules, clipping, and a run that is interrupted and continued
//! on another device with the same bits.

use dittograd::optim::OptimizerState;
use dittograd::prelude::*;

/// Two layers, made by hand from named parameters.
struct Net {
    hidden: Param,
    shift: Param,
    out: Param,
}

impl Net {
    fn new(params: &mut Params) -> Result<Net> {
        Ok(Net {
            hidden: params.kaiming_normal("hidden.weight", &[16, 4], Fan::In, 2f64.sqrt())?,
            shift: params.zeros("hidden.bias", &[16])?,
            out: params.orthogonal("out.weight", &[1, 16], 1.0)?,
        })
    }

    fn loss<'s>(&self, x: Var<'s>, y: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let h = x.linear(s.param(&self.hidden)?, s.param(&self.shift)?)?.tanh()?;
        h.matmul_with(s.param(&self.out)?, false, true)?.sub(y)?.square()?.mean()
    }
}

/// Matrices follow Muon, the last one AdamW; biases are not decayed.
fn optimizer() -> Optimizer {
    Optimizer::muon(0.02)
        .group(Group::prefix("out.").rule(rules::Adam { beta2: 0.95, ..Default::default() }).lr(0.01))
        .group(Group::names(&["hidden.bias"]).weight_decay(0.0))
        .schedule(Schedule::cosine(90, 1e-3).warmup(10, 0.1))
        .clip_norm(1.0)
}

fn main() -> Result<()> {
    let x = Tensor::from_fn(Shape::new(&[64, 4])?, |i| ((i * 37 % 101) as f32 / 50.0) - 1.0);
    let y = Tensor::from_fn(Shape::new(&[64, 1])?, |i| x.data()[4 * i] * x.data()[4 * i + 1]);
    let (cpu, best) = (Device::cpu()?, Device::best()?);

    // A hundred steps in one go, compiled.
    let mut params = Params::new(&cpu, 7);
    let net = Net::new(&mut params)?;
    let mut step = TrainStep::new(&params, optimizer(), |v| net.loss(v[0], v[1]));
    for _ in 0..100 {
        step.run(&[(&x).into(), (&y).into()])?;
    }
    println!("loss {:.4} after 100 steps", step.loss()?);
    let want = params.fingerprint()?;

    // Forty of them eagerly; the state is saved, everything moves to the best device, and a new optimizer continues.
    let mut params = Params::new(&cpu, 7);
    let net = Net::new(&mut params)?;
    let train = |params: &Params, optimizer: &mut Optimizer, steps: usize| -> Result<()> {
        let session = Session::eager(params.device());
        for _ in 0..steps {
            let loss = net.loss(session.input(&x)?, session.input(&y)?)?;
            optimizer.step(params, loss.backward()?)?;
            session.reset();
        }
        Ok(())
    };
    let mut first = optimizer();
    train(&params, &mut first, 40)?;
    let saved: OptimizerState = first.state()?;
    params.to(&best)?;
    let mut second = optimizer();
    second.load_state(&params, &saved)?;
    println!("continued on {best} at step {} with learning rate {:.4}", second.steps(), second.lr());
    train(&params, &mut second, 60)?;
    assert_eq!(params.fingerprint()?, want);
    println!("fingerprint {want}, interrupted or not");
    Ok(())
}
