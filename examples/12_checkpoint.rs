//! A run that is stopped, saved, and continued from the file with the same bits; and the file used for predictions.

use dittograd::prelude::*;

fn loss<'s>(net: &Mlp, v: &[Var<'s>]) -> Result<Var<'s>> {
    net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
}

/// A fresh net, as a new process has it.
fn fresh(seed: u64) -> Result<(Params, Mlp)> {
    let mut params = Params::new(&Device::cpu()?, seed);
    let net = Mlp::new(&mut params, &[2, 32, 3])?;
    Ok((params, net))
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("dittograd-12-{}", std::process::id()));
    if let Err(e) = std::fs::create_dir_all(&folder) {
        println!("skipped: {}: {e}", folder.display());
        return Ok(());
    }
    let path = folder.join("run.safetensors");
    let data = data::spirals(7, 300, 3)?;
    let batch = [data.x().into(), data.y().into()];

    // The whole run, with a checkpoint in the middle.
    let (params, net) = fresh(7)?;
    let mut step = TrainStep::new(&params, Optimizer::adamw(1e-2), |v| loss(&net, v)).seeded(1);
    for i in 0..60 {
        if i == 30 {
            let mut checkpoint = Checkpoint::new("mlp", &params)?;
            checkpoint.take(&step)?;
            checkpoint.save(&path)?;
        }
        step.run(&batch)?;
    }
    println!("one run      {}", params.fingerprint()?);

    // The second half again, from the file.
    let (again, net) = fresh(0)?;
    let checkpoint = Checkpoint::load(&path)?;
    let mut step =
        TrainStep::new(&again, Optimizer::adamw(1e-2), |v| loss(&net, v)).seeded(checkpoint.random.seed);
    checkpoint.restore(&again, &mut step)?;
    for _ in checkpoint.step..60 {
        step.run(&batch)?;
    }
    println!("in two parts {}", again.fingerprint()?);
    assert_eq!(again.fingerprint()?, params.fingerprint()?);

    // To predict, the parameters are enough.
    let (params, net) = fresh(0)?;
    params.load(&path)?;
    let s = Session::inference(params.device());
    println!("first scores {}", net.forward(s.input(data.x().num()?)?)?.narrow(0, 0, 1)?);

    // The folder is temporary; nothing depends on its removal.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}
