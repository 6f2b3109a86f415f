//! candle.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{
    AdamW, Conv2dConfig, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, conv2d, linear, loss::cross_entropy,
};

fn steps(vars: &VarMap, y: &Tensor, forward: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let params = ParamsAdamW { lr: 1e-4, weight_decay: 0.01, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(vars.all_vars(), params)?;
    let mut step = || -> Result<()> {
        let loss = cross_entropy(&forward()?, y)?;
        optimizer.backward_step(&loss)
    };
    step()?;
    Ok(crate::median_ms(|| step().expect("a step that worked works again")))
}

fn labels(n: usize) -> Result<Tensor> {
    Tensor::from_iter((0..n as u32).map(|i| i % 10), &Device::Cpu)
}

fn try_mlp() -> Result<f64> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let (a, b, c) = (linear(784, 512, vb.pp("a"))?, linear(512, 512, vb.pp("b"))?, linear(512, 10, vb.pp("c"))?);
    let x = Tensor::randn(0f32, 1.0, (128, 784), &Device::Cpu)?;
    steps(&vars, &labels(128)?, || c.forward(&b.forward(&a.forward(&x)?.relu()?)?.relu()?))
}

fn try_cnn() -> Result<f64> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let around = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
    let a = conv2d(3, 32, 3, around, vb.pp("a"))?;
    let b = conv2d(32, 64, 3, around, vb.pp("b"))?;
    let c = conv2d(64, 128, 3, around, vb.pp("c"))?;
    let last = linear(128 * 8 * 8, 10, vb.pp("d"))?;
    let x = Tensor::randn(0f32, 1.0, (32, 3, 32, 32), &Device::Cpu)?;
    steps(&vars, &labels(32)?, || {
        let y = b.forward(&a.forward(&x)?.relu()?)?.relu()?.max_pool2d(2)?;
        let y = c.forward(&y)?.relu()?.max_pool2d(2)?;
        last.forward(&y.flatten(1, D::Minus1)?)
    })
}

pub fn mlp() -> f64 {
    try_mlp().expect("candle's mlp")
}

pub fn cnn() -> f64 {
    try_cnn().expect("candle's cnn")
}
