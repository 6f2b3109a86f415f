//! State-space models with selective scans.

use super::generate::{Sampling, generate};
use super::{Conv1d, Embedding, Linear, Module, RmsNorm, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::ops::conv::ConvWindow;
use crate::params::{Param, Params};
use crate::session::Var;
use crate::shape::Shape;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Sizes of a [`Mamba`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MambaConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Channels.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// States per inner channel.
    pub state: usize,
    /// Taps of the convolutions.
    pub conv: usize,
    /// Inner channels per channel.
    pub expand: usize,
}

impl Default for MambaConfig {
    /// A small byte-level model, with the inner sizes of the published ones.
    fn default() -> MambaConfig {
        MambaConfig { vocab: 256, width: 128, layers: 4, state: 16, conv: 4, expand: 2 }
    }
}

/// Eps of the norms.
const EPS: f64 = 1e-5;
/// Range of the initial time steps, and their lower bound.
const STEPS: [f64; 2] = [1e-3, 1e-1];
const LEAST_STEP: f64 = 1e-4;

/// A layer with selective state spaces: a convolution along time, then a recurrence whose step size, input and output
/// weights depend on the input, and a gate. Names are those of the published implementation.
#[derive(Clone, Debug, Module)]
pub struct MambaBlock {
    a_log: Param,
    skip: Param,
    in_proj: Linear,
    conv: Conv1d,
    x_proj: Linear,
    dt_proj: Linear,
    out_proj: Linear,
    taps: usize,
    rank: usize,
    state: usize,
}

impl MambaBlock {
    /// Parameters `name.A_log (inner, state)`, the logarithms of 1, 2, …, and `name.D (inner)`, ones; layers
    /// `name.in_proj`, `name.conv1d`, `name.x_proj`, `name.dt_proj` and `name.out_proj`, the last divided by the root
    /// of `config.layers`. Initial time steps are between 0.001 and 0.1.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, config: MambaConfig) -> Result<MambaBlock> {
        let _strict = environment::enter();
        let MambaConfig { width, layers, state, conv, expand, .. } = config;
        positive("mamba", "sizes", &[width, layers, state, conv, expand])?;
        let part = |part: &str| format!("{name}.{part}");
        let (inner, rank) = (width.saturating_mul(expand), width.div_ceil(16));
        let log = |i: usize| libm::log((i % state + 1) as f64);
        let a_log = params.value(&part("A_log"), &Tensor::try_from_fn(Shape::new(&[inner, state])?, log)?)?;
        let skip = params.ones(&part("D"), &[inner])?;
        let in_proj = Linear::without_bias(params, &part("in_proj"), width, inner.saturating_mul(2))?;
        let window = ConvWindow::plain(1)?.groups(inner);
        let conv1d = Conv1d::new(params, &part("conv1d"), inner, inner, [conv], window)?;
        let outputs = state.saturating_mul(2).saturating_add(rank);
        let x_proj = Linear::without_bias(params, &part("x_proj"), inner, outputs)?;
        let dt_proj = Linear::without_bias(params, &part("dt_proj"), rank, inner)?;
        let bias =
            params.uniform(&part("dt_proj.bias"), &[inner], libm::log(STEPS[0]), libm::log(STEPS[1]))?;
        // The inverse of softplus, so that the time steps are the drawn ones.
        let drawn = bias.get::<f64>()?;
        let inverse = |i: usize| {
            let step = libm::exp(drawn.data()[i]).max(LEAST_STEP);
            step + libm::log(-libm::expm1(-step))
        };
        bias.set(&Tensor::from_fn(drawn.shape(), inverse))?;
        let dt_proj = Linear::of(dt_proj.weight().clone(), Some(bias));
        let limit = 1.0 / (inner as f64 * layers as f64).sqrt();
        let out = params.uniform(&part("out_proj.weight"), &[width, inner], -limit, limit)?;
        let out_proj = Linear::of(out, None);
        Ok(MambaBlock {
            a_log,
            skip,
            in_proj,
            conv: conv1d,
            x_proj,
            dt_proj,
            out_proj,
            taps: conv,
            rank,
            state,
        })
    }

    /// Applies the layer to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let shape = x.shape()?;
            let &[.., length, width] = shape.dims() else {
                let want = "at least 2: (…, length, width)";
                return Err(Error::new("mamba", ErrorKind::Rank { want, got: shape }));
            };
            let (s, inner) = (x.session(), self.skip.shape().numel());
            let batch = shape.rows().checked_div(length).unwrap_or(0);
            let both = self.in_proj.forward(x.reshape(&[batch, length, width])?)?;
            let (u, gate) = (both.narrow(2, 0, inner)?, both.narrow(2, inner, inner)?);
            // Pads only in front, so that the convolution is causal.
            let u = u.permute(&[0, 2, 1])?.pad(2, self.taps - 1, 0)?;
            let u = self.conv.forward(u)?.silu()?.permute(&[0, 2, 1])?;
            let all = self.x_proj.forward(u)?;
            let delta = self.dt_proj.forward(all.narrow(2, 0, self.rank)?)?.softplus()?;
            let b = all.narrow(2, self.rank, self.state)?;
            let c = all.narrow(2, self.rank + self.state, self.state)?;
            let a = s.param(&self.a_log)?.exp()?.neg()?;
            let y = u.selective_ssm(delta, a, b, c)?.add(u.mul(s.param(&self.skip)?)?)?;
            self.out_proj.forward(y.mul(gate.silu()?)?)?.reshape(shape.dims())
        })
    }
}

/// A language model of [`MambaBlock`]s: an embedding, layers of `x + block(norm(x))`, a norm, and logits for the next
/// token at each position, by the transposed embedding table.
#[derive(Clone, Debug, Module)]
pub struct Mamba {
    tokens: Embedding,
    blocks: Vec<(RmsNorm, MambaBlock)>,
    norm: RmsNorm,
}

impl Mamba {
    /// Layers `backbone.embedding`, `backbone.layers.i.norm`, `backbone.layers.i.mixer` and `backbone.norm_f`, as in
    /// the published implementation. The head shares the embedding's weight, which is also `lm_head.weight`.
    #[track_caller]
    pub fn new(params: &mut Params, config: MambaConfig) -> Result<Mamba> {
        let MambaConfig { vocab, width, layers, state, conv, expand } = config;
        super::layers("mamba", layers)?;
        positive("mamba", "sizes", &[vocab, width, state, conv, expand])?;
        let tokens = Embedding::new(params, "backbone.embedding", vocab, width, 0.02)?;
        let blocks = (0..layers)
            .map(|i| {
                let name = format!("backbone.layers.{i}");
                let norm = RmsNorm::new(params, &format!("{name}.norm"), width, EPS)?;
                Ok((norm, MambaBlock::new(params, &format!("{name}.mixer"), config)?))
            })
            .collect::<Result<_>>()?;
        Ok(Mamba { tokens, blocks, norm: RmsNorm::new(params, "backbone.norm_f", width, EPS)? })
    }

    #[track_caller]
    fn hidden<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        let mut x = self.tokens.forward(tokens)?;
        for (norm, block) in &self.blocks {
            x = x.add(block.forward(norm.forward(x)?)?)?;
        }
        Ok(x)
    }

    #[track_caller]
    fn head<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let table = x.session().param(self.tokens.weight())?;
        self.norm.forward(x)?.matmul_with(table, false, true)
    }

    /// Logits of the next token at each position of sequences of tokens `(…, length)`: `(…, length, vocab)`.
    #[track_caller]
    pub fn forward<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        tokens.session().scope(|| {
            let shape = tokens.shape()?;
            if shape.rank() == 0 {
                return Err(Error::new(
                    "mamba",
                    ErrorKind::Rank { want: "at least 1: (…, length)", got: shape },
                ));
            }
            self.head(self.hidden(tokens)?)
        })
    }

    /// The logits `(…, vocab)` at the last position only, with the bits of [`Mamba::forward`].
    #[track_caller]
    pub fn last<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        tokens.session().scope(|| self.head(super::generate::last_place("mamba", self.hidden(tokens)?)?))
    }

    /// Continues a prompt: see [`Gpt::generate`](super::Gpt::generate).
    #[track_caller]
    pub fn generate(&self, prompt: &[u32], steps: usize, sampling: Sampling) -> Result<Vec<u32>> {
        let device = self.tokens.weight().buffer().buffer().device().clone();
        generate(&device, usize::MAX, |tokens| self.last(tokens), prompt, steps, sampling)
    }
}
