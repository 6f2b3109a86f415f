//! Sampling of tokens.

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::numerics::functions;
use crate::numerics::rng::Stream;
use crate::session::{Session, Var};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits before the softmax. At 0, the token with the largest logit is taken, the first of several.
    pub temperature: f64,
    /// Draws only among this many tokens with the largest logits (the first of equal ones); among all if `None`.
    pub top_k: Option<usize>,
    /// Seed of the random stream.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, seed: 0 }
    }
}

impl Sampling {
    /// Always takes the token with the largest logit.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, seed: 0 };

    /// Draws a token at a step, given one logit per token. The result depends on nothing else, bit for bit: weights are
    /// `exp((x - largest) / temperature)` in float32 by the contract's function, their sums are in f64 in the order of
    /// tokens, and the draw is number 0 of the random stream of the seed and the step.
    #[track_caller]
    pub fn draw(&self, numbers: &[f32], step: u64) -> Result<u32> {
        let _strict = environment::enter();
        let wrong = |name: &'static str, why: String| Err(Error::argument("sample", name, why));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("temperature", format!("got {}, use at least 0", self.temperature));
        }
        if self.top_k == Some(0) {
            return wrong("top_k", "got 0, use at least 1".to_string());
        }
        if let Some(at) = numbers.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            return wrong("numbers", format!("that of token {at} is {}", numbers[at]));
        }
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        // A stable sort keeps equal ones in the order of tokens.
        order.sort_by(|&a, &b| numbers[b].partial_cmp(&numbers[a]).unwrap_or(Ordering::Equal));
        let Some(&first) = order.first().filter(|&&i| numbers[i].is_finite()) else {
            return wrong("numbers", "there is no token that may come".to_string());
        };
        if self.temperature == 0.0 {
            return Ok(first as u32);
        }
        order.truncate(self.top_k.unwrap_or(usize::MAX));
        order.sort_unstable();
        let weight = |&i: &usize| {
            let x = (f64::from(numbers[i] - numbers[first]) / self.temperature) as f32;
            (i, f64::from(functions::exp(x)))
        };
        let weights: Vec<(usize, f64)> = order.iter().map(weight).collect();
        let total: f64 = weights.iter().map(|w| w.1).sum();
        let uniform = (Stream::new(self.seed, step).bits() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = uniform * total;
        let mut drawn = first;
        for (i, weight) in weights.into_iter().filter(|w| w.1 > 0.0) {
            drawn = i;
            if left < weight {
                break;
            }
            left -= weight;
        }
        Ok(drawn as u32)
    }
}

/// The vectors `(…, width)` at the last position of sequences `(…, length, width)`.
#[track_caller]
pub(super) fn last_place<'s>(model: &str, x: Var<'s>) -> Result<Var<'s>> {
    let shape = x.shape()?;
    match *shape.dims() {
        [.., length, _] if length > 0 => x.select(shape.rank() - 2, length - 1),
        _ => Err(Error::new(
            model,
            ErrorKind::Rank { want: "at least 1: (…, length) of 1 or more", got: shape },
        )),
    }
}

/// Continues a prompt. Each token is drawn from the logits that `last` gives for the last `context` tokens before it.
#[track_caller]
pub(super) fn generate(
    device: &Device,
    context: usize,
    last: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>>,
    prompt: &[u32],
    steps: usize,
    sampling: Sampling,
) -> Result<Vec<u32>> {
    if prompt.is_empty() {
        return Err(Error::argument("generate", "prompt", "it is empty; give at least one token"));
    }
    let session = Session::inference(device);
    let mut tokens = prompt.to_vec();
    for step in 0..steps {
        let seen = &tokens[tokens.len().saturating_sub(context)..];
        let seen = session.labels(&Tensor::new(&[seen.len()], seen.to_vec())?)?;
        let numbers = session.scope(|| last(seen))?.value::<f32>()?;
        tokens.push(sampling.draw(numbers.data(), step as u64)?);
        session.reset();
    }
    Ok(tokens.split_off(prompt.len()))
}
