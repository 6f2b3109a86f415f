//! Residual networks for small images.

use super::{BatchNorm, Conv2d, Linear, Module, positive};
use crate::error::{Error, Located, Result};
use crate::ops::conv::ConvWindow;
use crate::params::{Fan, Params};
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// Channels of an image.
    pub channels: usize,
    /// Number of layers: 8, 14, 20, …, that is, 2 plus 6 per block of a stage.
    pub depth: usize,
    /// Channels of the first stage; the others have two and four times as many.
    pub width: usize,
    /// Classes.
    pub classes: usize,
}

impl Default for ResNetConfig {
    /// ResNet-20 for CIFAR-10.
    fn default() -> ResNetConfig {
        ResNetConfig { channels: 3, depth: 20, width: 16, classes: 10 }
    }
}

/// A convolution without bias, with normal draws by Kaiming's rule for relu, followed by batch norm.
#[derive(Clone, Debug, Module)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    /// `names` are those of the convolution and of the norm.
    #[track_caller]
    fn new(
        params: &mut Params,
        names: [&str; 2],
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<ConvNorm> {
        let gain = std::f64::consts::SQRT_2;
        let dims = [outputs, inputs, kernel, kernel];
        let weight = params.kaiming_normal(&format!("{}.weight", names[0]), &dims, Fan::Out, gain)?;
        let window = ConvWindow::plain(2)?.stride(stride).padding(kernel / 2);
        let conv = Conv2d::of(weight, None, window);
        Ok(ConvNorm { conv, norm: BatchNorm::new(params, names[1], outputs)? })
    }

    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| self.norm.forward(self.conv.forward(x)?))
    }
}

/// Two convolutions with a residual connection.
#[derive(Clone, Debug, Module)]
struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    /// On the residual connection, where size or channels change.
    downsample: Option<ConvNorm>,
}

impl BasicBlock {
    #[track_caller]
    fn new(params: &mut Params, name: &str, channels: [usize; 2], stride: usize) -> Result<BasicBlock> {
        let part = |part: &str| format!("{name}.{part}");
        let mut two = |names: [&str; 2], channels, kernel, stride| {
            let names = names.map(part);
            ConvNorm::new(params, [&names[0], &names[1]], channels, kernel, stride)
        };
        Ok(BasicBlock {
            first: two(["conv1", "bn1"], channels, 3, stride).located()?,
            second: two(["conv2", "bn2"], [channels[1]; 2], 3, 1).located()?,
            downsample: match stride == 1 && channels[0] == channels[1] {
                true => None,
                false => Some(two(["downsample.0", "downsample.1"], channels, 1, stride).located()?),
            },
        })
    }

    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let y = self.second.forward(self.first.forward(x)?.relu()?)?;
            let around = match &self.downsample {
                Some(down) => down.forward(x)?,
                None => x,
            };
            y.add(around)?.relu()
        })
    }
}

/// A classifier of small images with batch norm: a convolution, three stages of residual blocks (each stage halves
/// height and width), the mean of each channel, and a linear layer.
#[derive(Clone, Debug, Module)]
pub struct ResNet {
    stem: ConvNorm,
    blocks: Vec<BasicBlock>,
    head: Linear,
}

impl ResNet {
    /// Layers `conv1`, `bn1`, `layer1.0.conv1`, `layer1.0.bn1`, …, `layer2.0.downsample.0`, …, `fc`, as in torchvision.
    #[track_caller]
    pub fn new(params: &mut Params, config: ResNetConfig) -> Result<ResNet> {
        let ResNetConfig { channels, depth, width, classes } = config;
        positive("resnet", "sizes", &[channels, width, classes])?;
        super::layers("resnet", depth)?;
        if depth < 8 || depth % 6 != 2 {
            let why = format!("{depth} is not 2 more than a multiple of 6; use 8, 14, 20, 32, …");
            return Err(Error::argument("resnet", "depth", why));
        }
        let stem = ConvNorm::new(params, ["conv1", "bn1"], [channels, width], 3, 1)?;
        let mut blocks = Vec::new();
        let mut inputs = width;
        for stage in 0..3 {
            let outputs = width.saturating_mul(1 << stage);
            for i in 0..depth / 6 {
                let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                let name = format!("layer{}.{i}", stage + 1);
                blocks.push(BasicBlock::new(params, &name, [inputs, outputs], stride)?);
                inputs = outputs;
            }
        }
        Ok(ResNet { stem, blocks, head: Linear::new(params, "fc", inputs, classes)? })
    }

    /// Logits per class for images `(N, channels, height, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mut x = self.stem.forward(x)?.relu()?;
            for block in &self.blocks {
                x = block.forward(x)?;
            }
            self.head.forward(x.mean_axes(&[2, 3])?)
        })
    }
}
