//! Fine-tuning: the body of a PyTorch model gets a new head, which is trained alone at first, then together with the body.

use dittograd::data::{Batches, Dataset};
use dittograd::prelude::*;

/// Trains, and returns the accuracy on the test data.
fn train(net: &Cnn, params: &Params, lr: f64, steps: u64, data: [&Dataset; 2]) -> Result<f64> {
    let optimizer = Optimizer::adamw(lr).schedule(Schedule::cosine(steps, 0.0));
    let batches = Batches::new(data[0].clone(), 32, 7)?;
    Trainer::new(params, optimizer, batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
        .steps(steps)
        .run()?;
    Ok(Evaluation::classes(data[1].clone(), |x| net.forward(x)).run(params.device())?.merit)
}

/// Handwritten digits, as ten classes or as even and odd ones.
fn digits(seed: u64, count: usize, classes: u32) -> Result<Dataset> {
    let digits = data::digits(seed, count)?;
    let labels = digits.y().idx()?.data().iter().map(|digit| digit % classes).collect::<Vec<_>>();
    Dataset::new("digits", digits.x().clone(), Tensor::new(&[count], labels)?, Some(classes as usize))
}

/// Layers `net.0`, `net.2`, `net.5`, and the head `net.9`.
fn model(device: &Device, classes: usize) -> Result<(Params, Cnn)> {
    let mut params = Params::new(device, 7);
    let config = CnnConfig { channels: 1, image: [28, 28], widths: [4, 8, 16], classes };
    let net = Cnn::new(&mut params, config)?;
    Ok((params, net))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let path = std::env::temp_dir().join(format!("dittograd-18-{}.safetensors", std::process::id()));
    // What `save_file(model.state_dict(), path)` writes in PyTorch for an `nn.Sequential`: `0.weight`, `0.bias`, …
    let (params, net) = model(&device, 10)?;
    train(&net, &params, 1e-2, 150, [&digits(1, 1000, 10)?, &digits(2, 200, 10)?])?;
    params.state_dict()?.without_prefix("net.")?.save(&path)?;

    // Another task, with few samples. The file's body fits; its head, of other classes, is left out.
    let (params, net) = model(&device, 2)?;
    let body = |name: &str| (!name.starts_with("9.")).then(|| format!("net.{name}"));
    let loaded = params.load_state_dict(&StateDict::read(&path)?.rename(body)?, false)?;
    assert_eq!(loaded.missing, ["net.9.weight", "net.9.bias"]);

    let data = [&digits(3, 160, 2)?, &digits(4, 400, 2)?];
    let freeze = |is_frozen: bool| {
        params.iter().filter(|p| !p.name().starts_with("net.9")).for_each(|p| p.set_trainable(!is_frozen))
    };
    freeze(true);
    let head = train(&net, &params, 1e-2, 20, data)?;
    freeze(false);
    let both = train(&net, &params, 3e-3, 60, data)?;
    println!("right about even and odd: {head:.3} with a new head, {both:.3} with the body trained too");
    println!("fingerprint {}", params.fingerprint()?);
    assert!(head > 0.7 && both > head);
    Ok(std::fs::remove_file(&path)?)
}
