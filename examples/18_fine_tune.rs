//! Fine-tuning: the body of a PyTorch model gets a new head, which is trained alone at first, then together with the body.

use dittograd::data::{Batches, Dataset};
use dittograd::nn::{Activation, BatchNorm, Conv2d, Lambda, Sequential};
use dittograd::prelude::*;

#[derive(Clone, Debug, Module)]
struct Net {
    body: Sequential,
    head: Linear,
}

impl Net {
    fn new(params: &mut Params, classes: usize) -> Result<Net> {
        let (head, window) =
            (Linear::new(params, "head", 16, classes)?, ConvWindow::plain(2)?.stride(2).padding(1));
        let params = &mut params.scope("body");
        let body = Sequential::new()
            .then(Conv2d::without_bias(params, "0", 1, 8, [3, 3], window)?)
            .then(BatchNorm::new(params, "1", 8)?)
            .then(Activation::Relu)
            .then(Conv2d::without_bias(params, "3", 8, 16, [3, 3], window)?)
            .then(BatchNorm::new(params, "4", 16)?)
            .then(Activation::Relu)
            .then(Lambda::new("mean", |x| x.mean_axes(&[2, 3])));
        Ok(Net { body, head })
    }

    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        self.head.forward(self.body.forward(x)?)
    }
}

/// Trains, and returns the accuracy on the test data.
fn train(net: &Net, params: &Params, lr: f64, steps: u64, data: [&Dataset; 2]) -> Result<f64> {
    let optimizer = Optimizer::adamw(lr).schedule(Schedule::cosine(steps, 0.0));
    let batches = Batches::new(data[0].clone(), 32, 7)?;
    Trainer::new(params, optimizer, batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
        .steps(steps)
        .run()?;
    let eval = net.eval();
    Ok(Evaluation::classes(data[1].clone(), |x| eval.forward(x)).run(params.device())?.merit)
}

/// Handwritten digits, as ten classes or as even and odd ones.
fn digits(seed: u64, count: usize, classes: u32) -> Result<Dataset> {
    let digits = data::digits(seed, count)?;
    let labels = digits.y().idx()?.data().iter().map(|digit| digit % classes).collect::<Vec<_>>();
    Dataset::new("digits", digits.x().clone(), Tensor::new(&[count], labels)?, Some(classes as usize))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let path = std::env::temp_dir().join(format!("dittograd-18-{}.safetensors", std::process::id()));
    // What `save_file(model.state_dict(), path)` writes in PyTorch, for a model of `features` and `classifier`.
    let mut params = Params::new(&device, 1);
    let net = Net::new(&mut params, 10)?;
    train(&net, &params, 1e-2, 300, [&digits(1, 1000, 10)?, &digits(2, 200, 10)?])?;
    let torch = |name: &str| name.replace("body.", "features.").replace("head.", "classifier.");
    params.state_dict()?.rename(|name| Some(torch(name)))?.save(&path)?;

    // Another task, with few samples. The file's body fits; its head, of other classes, is left out.
    let data = [&digits(3, 160, 2)?, &digits(4, 400, 2)?];
    let mut params = Params::new(&device, 7);
    let net = Net::new(&mut params, 2)?;
    let ours = |name: &str| name.strip_prefix("features.").map(|rest| format!("body.{rest}"));
    let loaded = params.load_state_dict(&StateDict::read(&path)?.rename(ours)?, false)?;
    assert_eq!(loaded.missing, ["head.weight", "head.bias"]);

    // A frozen body is in evaluation mode, so that its running statistics stay as they are too.
    params.under("body").for_each(|p| p.set_trainable(false));
    let head = train(&Net { body: net.body.eval(), ..net.clone() }, &params, 3e-2, 60, data)?;
    params.under("body").for_each(|p| p.set_trainable(true));
    let both = train(&net, &params, 3e-3, 60, data)?;
    println!("right about even and odd: {head:.3} with a new head, {both:.3} with the body trained too");
    println!("fingerprint {}", params.fingerprint()?);
    assert!(head > 0.7 && both > head);
    let _ = std::fs::remove_file(&path); // it is temporary; nothing depends on its removal
    Ok(())
}
