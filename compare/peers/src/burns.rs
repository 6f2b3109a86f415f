//! burn, on its fastest CPU backend.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::module::max_pool2d;
use burn::tensor::{Distribution, Int, Tensor};

type B = Autodiff<Flex>;

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    a: Linear<B>,
    b: Linear<B>,
    c: Linear<B>,
}

#[derive(Module, Debug)]
struct Cnn<B: Backend> {
    a: Conv2d<B>,
    b: Conv2d<B>,
    c: Conv2d<B>,
    last: Linear<B>,
}

fn steps<M: AutodiffModule<B>>(model: M, n: usize, forward: impl Fn(&M) -> Tensor<B, 2>) -> f64 {
    let device = Default::default();
    let labels = Tensor::<B, 1, Int>::from_ints(&(0..n as i32).map(|i| i % 10).collect::<Vec<_>>()[..], &device);
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let mut model = Some(model);
    crate::median_ms(|| {
        let now = model.take().expect("the model of the last step");
        let grads = loss.forward(forward(&now), labels.clone()).backward();
        let grads = GradientsParams::from_grads(grads, &now);
        model = Some(optimizer.step(1e-4, now, grads));
    })
}

pub fn mlp() -> f64 {
    let device = Default::default();
    let layer = |i, o| LinearConfig::new(i, o).init::<B>(&device);
    let x = Tensor::<B, 2>::random([128, 784], Distribution::Normal(0.0, 1.0), &device);
    let model = Mlp { a: layer(784, 512), b: layer(512, 512), c: layer(512, 10) };
    steps(model, 128, |m| m.c.forward(relu(m.b.forward(relu(m.a.forward(x.clone()))))))
}

pub fn cnn() -> f64 {
    let device = Default::default();
    let layer = |i, o| {
        let config = Conv2dConfig::new([i, o], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        config.init::<B>(&device)
    };
    let x = Tensor::<B, 4>::random([32, 3, 32, 32], Distribution::Normal(0.0, 1.0), &device);
    let last = LinearConfig::new(128 * 8 * 8, 10).init(&device);
    let model = Cnn { a: layer(3, 32), b: layer(32, 64), c: layer(64, 128), last };
    let pool = |x| max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], false);
    steps(model, 32, |m| {
        let y = pool(relu(m.b.forward(relu(m.a.forward(x.clone())))));
        let y = pool(relu(m.c.forward(y)));
        m.last.forward(y.flatten::<2>(1, 3))
    })
}
