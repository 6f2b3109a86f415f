//! Vision transformers.

use super::{Conv2d, Dropout, LayerNorm, Linear, Module, MultiheadAttention, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::ops::conv::{ConvWindow, Sizes};
use crate::params::{Param, Params};
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// What a [`Vit`] classifies from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VitPool {
    /// A learned class token in front of the patches.
    Class,
    /// The mean of the patches.
    Mean,
}

/// Sizes of a [`Vit`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image.
    pub image: [usize; 2],
    /// Height and width of a patch; divide those of the image.
    pub patch: [usize; 2],
    /// Width of the vectors of patches.
    pub width: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Channels between the two linear layers of a block.
    pub hidden: usize,
    /// Classes.
    pub classes: usize,
    /// What the classifier reads.
    pub pool: VitPool,
    /// Dropout probability after the embedding and inside the blocks.
    pub dropout: f64,
}

impl Default for VitConfig {
    /// Small coloured images of ten classes.
    fn default() -> VitConfig {
        VitConfig {
            channels: 3,
            image: [32, 32],
            patch: [4, 4],
            width: 128,
            heads: 4,
            layers: 6,
            hidden: 256,
            classes: 10,
            pool: VitPool::Class,
            dropout: 0.0,
        }
    }
}

/// Eps of the norms, as in torchvision.
const EPS: f64 = 1e-6;

#[derive(Clone, Debug, Module)]
struct EncoderBlock {
    ln1: LayerNorm,
    attention: MultiheadAttention,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl EncoderBlock {
    #[track_caller]
    fn new(params: &mut Params, name: &str, config: &VitConfig, dropout: Dropout) -> Result<EncoderBlock> {
        let VitConfig { width, heads, hidden, .. } = *config;
        let part = |part: &str| format!("{name}.{part}");
        // Weights by Xavier's rule, biases almost zero.
        let linear = |params: &mut Params, name: &str, inputs: usize, outputs: usize| -> Result<Linear> {
            let weight = params.xavier_uniform(&part(&format!("{name}.weight")), &[outputs, inputs], 1.0)?;
            let bias = params.normal(&part(&format!("{name}.bias")), &[outputs], 0.0, 1e-6)?;
            Ok(Linear::of(weight, Some(bias)))
        };
        Ok(EncoderBlock {
            ln1: LayerNorm::with_eps(params, &part("ln_1"), width, EPS)?,
            attention: MultiheadAttention::new(params, &part("self_attention"), width, heads, false)?,
            ln2: LayerNorm::with_eps(params, &part("ln_2"), width, EPS)?,
            up: linear(params, "mlp.0", width, hidden)?,
            down: linear(params, "mlp.3", hidden, width)?,
            dropout,
        })
    }

    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mixed = self.attention.forward(self.ln1.forward(x)?)?;
            let x = x.add(self.dropout.forward(mixed)?)?;
            let wide = self.up.forward(self.ln2.forward(x)?)?.gelu_erf()?;
            let back = self.down.forward(self.dropout.forward(wide)?)?;
            x.add(self.dropout.forward(back)?)
        })
    }
}

/// A transformer that classifies images: a convolution embeds patches, then learned positions, pre-norm blocks, and a
/// linear layer. Names, layouts and initial distributions are those of torchvision's `VisionTransformer`, except that
/// the convolution's normal draws are not truncated at two standard deviations.
#[derive(Clone, Debug, Module)]
pub struct Vit {
    class: Option<Param>,
    patches: Conv2d,
    places: Param,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    head: Linear,
    dropout: Dropout,
    count: usize,
}

impl Vit {
    /// Parameters `class_token` (for [`VitPool::Class`] only) and `encoder.pos_embedding`; layers `conv_proj`,
    /// `encoder.layers.encoder_layer_i` with `ln_1`, `self_attention`, `ln_2`, `mlp.0` and `mlp.3`, `encoder.ln` and
    /// `heads.head`.
    #[track_caller]
    pub fn new(params: &mut Params, config: VitConfig) -> Result<Vit> {
        let _strict = environment::enter();
        let VitConfig { channels, image, patch, width, layers, classes, pool, .. } = config;
        let sizes = [channels, width, config.heads, config.hidden, classes];
        super::layers("vit", layers)?;
        positive("vit", "sizes", &sizes)?;
        positive("vit", "patch", &patch)?;
        super::attention::check_heads(width, config.heads)?;
        let fits = (0..2).all(|a| image[a] >= patch[a] && image[a].is_multiple_of(patch[a]));
        if !fits {
            let why = format!("patches of {patch:?} do not divide an image of {image:?}");
            return Err(Error::argument("vit", "patch", why));
        }
        let dropout = Dropout::new(config.dropout)?;
        let class = match pool {
            VitPool::Class => Some(params.zeros("class_token", &[1, 1, width])?),
            VitPool::Mean => None,
        };
        let dims = [width, channels, patch[0], patch[1]];
        let fan_in = dims[1..].iter().map(|&d| d as f64).product::<f64>();
        let weight = params.normal("conv_proj.weight", &dims, 0.0, (1.0 / fan_in).sqrt())?;
        let bias = params.zeros("conv_proj.bias", &[width])?;
        let window = ConvWindow { stride: Sizes::new(&patch)?, ..ConvWindow::plain(2)? };
        let patches = Conv2d::of(weight, Some(bias), window);
        let count = (image[0] / patch[0]).saturating_mul(image[1] / patch[1]);
        let rows = count.saturating_add(usize::from(class.is_some()));
        let places = params.normal("encoder.pos_embedding", &[1, rows, width], 0.0, 0.02)?;
        let blocks = (0..layers)
            .map(|i| {
                let name = format!("encoder.layers.encoder_layer_{i}");
                EncoderBlock::new(params, &name, &config, dropout)
            })
            .collect::<Result<_>>()?;
        let norm = LayerNorm::with_eps(params, "encoder.ln", width, EPS)?;
        let weight = params.zeros("heads.head.weight", &[classes, width])?;
        let bias = params.zeros("heads.head.bias", &[classes])?;
        let head = Linear::of(weight, Some(bias));
        Ok(Vit { class, patches, places, blocks, norm, head, dropout, count })
    }

    /// Logits per class for images `(N, channels, height, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let s = x.session();
            let patches = self.patches.forward(x)?;
            let shape = patches.shape()?;
            let &[batch, width, height, across] = shape.dims() else {
                let want = "exactly 4: (N, channels, height, width)";
                return Err(Error::new("vit", ErrorKind::Rank { want, got: x.shape()? }));
            };
            if height.saturating_mul(across) != self.count {
                let why =
                    format!("an image has {height} by {across} patches, the model takes {}", self.count);
                return Err(Error::argument("vit", "x", why));
            }
            let mut x = patches.reshape(&[batch, width, self.count])?.permute(&[0, 2, 1])?;
            if let Some(class) = &self.class {
                x = s.concat(&[s.param(class)?.expand(&[batch, 1, width])?, x], 1)?;
            }
            x = self.dropout.forward(x.add(s.param(&self.places)?)?)?;
            for block in &self.blocks {
                x = block.forward(x)?;
            }
            let pooled = match self.class {
                // The norm works per vector, so it is applied to the class token only.
                Some(_) => self.norm.forward(x.select(1, 0)?)?,
                None => self.norm.forward(x)?.mean_axes(&[1])?,
            };
            self.head.forward(pooled)
        })
    }
}
