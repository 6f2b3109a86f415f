//! The compiled programs of the models, as text: a change that makes other kernels of them shows up here. To accept
//! one, run the test with `DITTOGRAD_BLESS=1` and commit what it wrote.

use dittograd::graph::TrainStep;
use dittograd::prelude::*;

fn check<F>(name: &str, params: &Params, inputs: &[dittograd::graph::Batch<'_>], f: F)
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
{
    let mut step = TrainStep::new(params, Optimizer::adamw(1e-3), f);
    step.run(inputs).unwrap();
    let text = step.text().unwrap();
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DITTOGRAD_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let at = want.lines().zip(text.lines()).position(|(a, b)| a != b);
    let at = at.unwrap_or(want.lines().count().min(text.lines().count()));
    assert_eq!(
        want.lines().nth(at),
        text.lines().nth(at),
        "{path}, line {}: the program is another; DITTOGRAD_BLESS=1 accepts it",
        at + 1
    );
}

fn device() -> Device {
    Device::cpu_with(1, dittograd::device::cpu::simd::Simd::best()).unwrap()
}

fn numbers(dims: &[usize]) -> Tensor<f32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i % 7) as f32 * 0.25 - 0.75)
}

fn labels(dims: &[usize], below: u32) -> Tensor<u32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| i as u32 % below)
}

#[test]
fn mlp() {
    let mut params = Params::new(&device(), 1);
    let net = Mlp::new(&mut params, &[20, 16, 16, 4]).unwrap();
    let (x, y) = (numbers(&[8, 20]), labels(&[8], 4));
    check("mlp", &params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]));
}

#[test]
fn cnn() {
    let mut params = Params::new(&device(), 1);
    let config = CnnConfig { channels: 3, image: [8, 8], widths: [4, 8, 16], classes: 4 };
    let net = Cnn::new(&mut params, config).unwrap();
    let (x, y) = (numbers(&[2, 3, 8, 8]), labels(&[2], 4));
    check("cnn", &params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]));
}

#[test]
fn fno1d() {
    let mut params = Params::new(&device(), 1);
    let config = Fno1dConfig { inputs: 2, outputs: 1, width: 8, modes: 4, layers: 2, hidden: 12 };
    let net = Fno1d::new(&mut params, config).unwrap();
    let (x, y) = (numbers(&[2, 16, 2]), numbers(&[2, 16, 1]));
    check("fno1d", &params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.mse(v[1]));
}

#[test]
fn gpt() {
    let mut params = Params::new(&device(), 1);
    let config = GptConfig { vocab: 12, context: 8, width: 16, heads: 2, layers: 1, dropout: 0.1 };
    let net = Gpt::new(&mut params, config).unwrap();
    let (x, y) = (labels(&[2, 8], 12), labels(&[2, 8], 12));
    check("gpt", &params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]));
}
