//! Convolutional autoencoders.

use super::{Conv2d, ConvTranspose2d, Linear, Module, positive};
use crate::error::{Error, Result};
use crate::ops::conv::ConvWindow;
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of an [`Autoencoder`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoencoderConfig {
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image; each convolution halves them.
    pub image: [usize; 2],
    /// Channels after each convolution.
    pub widths: Vec<usize>,
    /// Size of the latent code of an image.
    pub latent: usize,
}

impl Default for AutoencoderConfig {
    /// Small grey images.
    fn default() -> AutoencoderConfig {
        AutoencoderConfig { channels: 1, image: [28, 28], widths: vec![16, 32], latent: 16 }
    }
}

/// Compresses images to a few numbers and reconstructs them: 3 by 3 convolutions of stride 2 with relu and a linear
/// layer; then a linear layer and transposed convolutions. The output is unbounded: apply a sigmoid for images from 0
/// to 1, or train with [`Var::bce_with_logits`].
#[derive(Clone, Debug, Module)]
pub struct Autoencoder {
    convs: Vec<Conv2d>,
    squeeze: Linear,
    expand: Linear,
    transposed: Vec<ConvTranspose2d>,
    /// Channels, height and width next to the linear layers.
    inner: [usize; 3],
}

impl Autoencoder {
    /// Layers named as in two PyTorch `Sequential`s. With two convolutions: `encoder.0`, `encoder.2` and, after a
    /// `Flatten`, `encoder.5`; `decoder.0` and, after a relu and an `Unflatten`, `decoder.3` and `decoder.5`.
    #[track_caller]
    pub fn new(params: &mut Params, config: AutoencoderConfig) -> Result<Autoencoder> {
        let AutoencoderConfig { channels, image, widths, latent } = config;
        positive("autoencoder", "sizes", &[channels, latent, image[0], image[1]])?;
        positive("autoencoder", "widths", &widths)?;
        let parts = u32::try_from(widths.len()).ok().and_then(|n| 1usize.checked_shl(n));
        let (Some(&deepest), Some(parts)) = (widths.last(), parts.filter(|p| *p > 0)) else {
            let why = format!("{} convolutions; use at least 1, and fewer", widths.len());
            return Err(Error::argument("autoencoder", "widths", why));
        };
        if !image.iter().all(|d| d.is_multiple_of(parts)) {
            let why = format!("{image:?} cannot be halved {} times; use multiples of {parts}", widths.len());
            return Err(Error::argument("autoencoder", "image", why));
        }
        let window = ConvWindow::plain(2)?.stride(2).padding(1);
        let inner = [deepest, image[0] / parts, image[1] / parts];
        let flat = inner.iter().fold(1usize, |n, d| n.saturating_mul(*d));
        let all: Vec<usize> = [channels].into_iter().chain(widths).collect();
        let convs = all
            .windows(2)
            .enumerate()
            .map(|(i, w)| {
                let name = format!("encoder.{}", 2 * i);
                Conv2d::new(params, &name, w[0], w[1], [3, 3], window)
            })
            .collect::<Result<Vec<_>>>()?;
        let squeeze = Linear::new(params, &format!("encoder.{}", 2 * convs.len() + 1), flat, latent)?;
        let expand = Linear::new(params, "decoder.0", latent, flat)?;
        let transposed = all
            .windows(2)
            .rev()
            .enumerate()
            .map(|(i, w)| {
                let name = format!("decoder.{}", 2 * i + 3);
                ConvTranspose2d::new(params, &name, w[1], w[0], [3, 3], window, [1, 1])
            })
            .collect::<Result<_>>()?;
        Ok(Autoencoder { convs, squeeze, expand, transposed, inner })
    }

    /// Encodes images `(N, channels, height, width)` to codes `(N, latent)`.
    #[track_caller]
    pub fn encode<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mut x = x;
            for conv in &self.convs {
                x = conv.forward(x)?.relu()?;
            }
            self.squeeze.forward(x.flatten_from(1)?)
        })
    }

    /// Decodes codes `(N, latent)` to images `(N, channels, height, width)`.
    #[track_caller]
    pub fn decode<'s>(&self, z: Var<'s>) -> Result<Var<'s>> {
        z.session().scope(|| {
            let [channels, height, width] = self.inner;
            let mut x = self.expand.forward(z)?.relu()?;
            let batch = x.shape()?.rows();
            x = x.reshape(&[batch, channels, height, width])?;
            for (i, layer) in self.transposed.iter().enumerate() {
                if i > 0 {
                    x = x.relu()?;
                }
                x = layer.forward(x)?;
            }
            Ok(x)
        })
    }

    /// Reconstructs images: encodes, then decodes.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| self.decode(self.encode(x)?))
    }
}
