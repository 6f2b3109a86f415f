//! A convolutional classifier.

use super::{Conv2d, Linear, Module, positive};
use crate::error::{Error, Located, Result};
use crate::ops::conv::ConvWindow;
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of a [`Cnn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CnnConfig {
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image, at least 4 each.
    pub image: [usize; 2],
    /// Channels after each convolution.
    pub widths: [usize; 3],
    /// Classes.
    pub classes: usize,
}

impl Default for CnnConfig {
    /// Small coloured images of ten classes.
    fn default() -> CnnConfig {
        CnnConfig { channels: 3, image: [32, 32], widths: [32, 64, 128], classes: 10 }
    }
}

/// An image classifier: three 3 by 3 convolutions with relu, 2 by 2 max pooling after the second and the third, and a
/// linear layer.
#[derive(Clone, Debug, Module)]
pub struct Cnn {
    convs: [Conv2d; 3],
    head: Linear,
}

impl Cnn {
    /// Layers `net.0`, `net.2`, `net.5` and `net.9`, as in a PyTorch `Sequential` with activations, pools and a
    /// `Flatten` in between.
    #[track_caller]
    pub fn new(params: &mut Params, config: CnnConfig) -> Result<Cnn> {
        let CnnConfig { channels, image: [height, width], widths, classes } = config;
        positive("cnn", "sizes", &[channels, widths[0], widths[1], widths[2], classes])?;
        if height.min(width) < 4 {
            let why = format!("{height} by {width} is too small to be halved twice: use at least 4 by 4");
            return Err(Error::argument("cnn", "image", why));
        }
        let window = ConvWindow::plain(2)?.padding(1);
        let mut conv = |i: usize, inputs, outputs| {
            Conv2d::new(params, &format!("net.{i}"), inputs, outputs, [3, 3], window)
        };
        let convs = [
            conv(0, channels, widths[0]).located()?,
            conv(2, widths[0], widths[1]).located()?,
            conv(5, widths[1], widths[2]).located()?,
        ];
        let features = (height / 4).saturating_mul(width / 4).saturating_mul(widths[2]);
        Ok(Cnn { convs, head: Linear::new(params, "net.9", features, classes)? })
    }

    /// Logits per class for images `(N, channels, height, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let [first, second, third] = &self.convs;
            let x = first.forward(x)?.relu()?;
            let x = second.forward(x)?.relu()?.max_pool2d([2, 2], 2)?;
            let x = third.forward(x)?.relu()?.max_pool2d([2, 2], 2)?;
            self.head.forward(x.flatten_from(1)?)
        })
    }
}
