//! A U-Net finds discs and squares in noisy images: two levels down, two up, skip connections, batch norm.

use dittograd::data::{Batches, Dataset};
use dittograd::nn::{Activation, BatchNorm, Conv2d, ConvTranspose2d, Sequential};
use dittograd::prelude::*;

#[derive(Clone, Debug, Module)]
struct UNet {
    down: [Sequential; 2],
    bottom: Sequential,
    grow: [ConvTranspose2d; 2],
    up: [Sequential; 2],
    head: Conv2d,
}

/// Two 3 by 3 convolutions, each with batch norm and relu.
fn double(params: &mut Params, name: &str, inputs: usize, outputs: usize) -> Result<Sequential> {
    let (params, window) = (&mut params.scope(name), ConvWindow::plain(2)?.padding(1));
    Ok(Sequential::new()
        .then(Conv2d::without_bias(params, "0", inputs, outputs, [3, 3], window)?)
        .then(BatchNorm::new(params, "1", outputs)?)
        .then(Activation::Relu)
        .then(Conv2d::without_bias(params, "3", outputs, outputs, [3, 3], window)?)
        .then(BatchNorm::new(params, "4", outputs)?)
        .then(Activation::Relu))
}

impl UNet {
    fn new(params: &mut Params, n: usize, classes: usize) -> Result<UNet> {
        let (plain, twice) = (ConvWindow::plain(2)?, ConvWindow::plain(2)?.stride(2));
        Ok(UNet {
            down: [double(params, "down.0", 1, n)?, double(params, "down.1", n, 2 * n)?],
            bottom: double(params, "bottom", 2 * n, 4 * n)?,
            grow: [
                ConvTranspose2d::new(params, "grow.0", 4 * n, 2 * n, [2, 2], twice, [0, 0])?,
                ConvTranspose2d::new(params, "grow.1", 2 * n, n, [2, 2], twice, [0, 0])?,
            ],
            up: [double(params, "up.0", 4 * n, 2 * n)?, double(params, "up.1", 2 * n, n)?],
            head: Conv2d::new(params, "head", n, classes, [1, 1], plain)?,
        })
    }

    /// Logits `(N, height, width, classes)` of images `(N, 1, height, width)`.
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let fine = self.down[0].forward(x)?;
        let coarse = self.down[1].forward(fine.max_pool2d([2, 2], 2)?)?;
        let x = self.bottom.forward(coarse.max_pool2d([2, 2], 2)?)?;
        let x = self.up[0].forward(coarse.concat(self.grow[0].forward(x)?, 1)?)?;
        let x = self.up[1].forward(fine.concat(self.grow[1].forward(x)?, 1)?)?;
        self.head.forward(x)?.permute(&[0, 2, 3, 1])
    }
}

/// Images of 16 by 16 pixels with a bright disc (class 1) or square (class 2) on noise (class 0).
fn shapes(seed: u64, count: usize) -> Result<Dataset> {
    let mut draw = Stream::new(seed, 0);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for i in 0..count {
        let (row, column, radius) = (draw.range(4.0, 12.0), draw.range(4.0, 12.0), draw.range(2.5, 4.5));
        for pixel in 0..256 {
            let (a, b) = ((pixel / 16) as f32 - row, (pixel % 16) as f32 - column);
            let size = if i % 2 == 0 { (a * a + b * b).sqrt() } else { a.abs().max(b.abs()) };
            let class = if size < radius { 1 + i as u32 % 2 } else { 0 };
            x.push(draw.range(-0.5, 0.5) + class.min(1) as f32);
            y.push(class);
        }
    }
    Dataset::new("shapes", Tensor::new(&[count, 1, 16, 16], x)?, Tensor::new(&[count, 16, 16], y)?, Some(3))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 7);
    let net = UNet::new(&mut params, 8, 3)?;
    let eval = net.eval();
    let mut pixels = Evaluation::classes(shapes(2, 64)?, |x| eval.forward(x));
    let before = pixels.run(&device)?;

    let (batches, steps) = (Batches::new(shapes(1, 192)?, 16, 7)?, 100);
    let optimizer = Optimizer::adamw(1e-2).schedule(Schedule::cosine(steps, 0.0));
    Trainer::new(&params, optimizer, batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
        .steps(steps)
        .run()?;

    let after = pixels.run(&device)?;
    println!("pixels of new images that are right: {:.3} at first, {:.3} at last", before.merit, after.merit);
    println!("fingerprint {}", params.fingerprint()?);
    assert!(after.merit > 0.95 && after.merit > before.merit);
    Ok(())
}
