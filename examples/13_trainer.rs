//! A whole run: evaluations, the best state, early stopping, checkpoints. Stopped in the middle and started again, it ends in
//! the same place.

use dittograd::data::Batches;
use dittograd::prelude::*;
use dittograd::train::{End, Event, Outcome};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A program that trains: it goes on from what its folder holds. It stops once `stop` steps are done, as a program does whose
/// Ctrl-C handler sets the flag.
fn train(folder: &Path, stop: Option<u64>) -> Result<(Outcome, String)> {
    let (train, test) = data::split(&data::spirals(7, 600, 3)?, 0.8, 7)?;
    let mut params = Params::new(&Device::best()?, 7);
    let net = Mlp::new(&mut params, &[2, 32, 32, 3])?;

    // One number for each row of the test data; its mean is the score.
    let rows = LabelLoss { reduction: Reduction::None, ..LabelLoss::default() };
    let evaluation = Evaluation::new(
        test,
        |v| Ok(vec![net.forward(v[0])?.cross_entropy_loss(v[1], rows)?]),
        |means| Scores { merit: -means[0], values: vec![("loss".into(), means[0])] },
    );
    let flag = Arc::new(AtomicBool::new(false));
    let asked = flag.clone();
    let outcome = Trainer::new(&params, Optimizer::adamw(1e-2), Batches::new(train, 64, 7)?, |v| {
        net.forward(v[0])?.dropout(0.05)?.cross_entropy(v[1])
    })
    .steps(400)
    .evaluate(50, evaluation)
    .patience(3)
    .folder(RunFolder::open(folder)?)
    .stop_when(flag)
    .observe(|event| {
        match event {
            Event::Step { step } if Some(*step) == stop => asked.store(true, Ordering::SeqCst),
            Event::Evaluated { step, loss, scores, is_best } => {
                let best = if *is_best { ", the best so far" } else { "" };
                println!("step {step}: loss {loss:.4}, test loss {:.4}{best}", -scores.merit);
            }
            _ => {}
        }
        Ok(())
    })
    .run()?;
    Ok((outcome, params.fingerprint()?))
}

fn main() -> Result<()> {
    let home = std::env::temp_dir().join(format!("dittograd-13-{}", std::process::id()));
    println!("one run");
    let (_, whole) = train(&home.join("whole"), None)?;

    println!("the same, stopped after step 130");
    let (outcome, _) = train(&home.join("parts"), Some(130))?;
    assert!(outcome.end == End::Stopped && outcome.step == 130);
    // The folder is free for the next run when its outcome is dropped.
    drop(outcome);
    println!("and started again");
    let (outcome, parts) = train(&home.join("parts"), None)?;
    println!("{:?} at step {}, fingerprints {whole} and {parts}", outcome.end, outcome.step);
    assert_eq!(whole, parts);

    // The folder is temporary; nothing depends on its removal.
    let _ = std::fs::remove_dir_all(&home);
    Ok(())
}
