//! A GRU reads strings of brackets of different lengths, and says how many are open at the end.

use dittograd::nn::{Embedding, Gru, RecurrentConfig};
use dittograd::prelude::*;

/// The most brackets of a string, and the most that are open at a time.
const LENGTH: usize = 12;
const DEPTH: usize = 3;

#[derive(Clone, Debug, Module)]
struct Reader {
    embedding: Embedding,
    gru: Gru,
    head: Linear,
}

impl Reader {
    fn new(params: &mut Params, hidden: usize) -> Result<Reader> {
        let config = RecurrentConfig { inputs: 8, hidden, ..RecurrentConfig::default() };
        Ok(Reader {
            embedding: Embedding::new(params, "embedding", 3, 8, 1.0)?,
            gru: Gru::new(params, "gru", config)?,
            head: Linear::new(params, "head", hidden, DEPTH + 1)?,
        })
    }

    /// Logits `(N, depths)` of strings `(N, LENGTH)` whose last brackets are at the places `last (N)`.
    fn forward<'s>(&self, tokens: Var<'s>, last: Var<'s>) -> Result<Var<'s>> {
        let (outputs, _) = self.gru.forward(self.embedding.forward(tokens)?, None)?;
        let at_the_end = last.one_hot(LENGTH)?.unsqueeze(2)?;
        self.head.forward((outputs * at_the_end)?.sum_axes(&[1])?)
    }
}

/// Strings, the places of their last brackets, and how many are open there. 1 opens, 2 closes, 0 comes after the end.
fn strings(seed: u64, step: u64, count: usize) -> Result<[Tensor<u32>; 3]> {
    let mut draw = Stream::new(seed, step);
    let (mut tokens, mut last, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for row in 1..=count {
        let (length, mut depth) = (2 + draw.below(LENGTH - 1), 0);
        for _ in 0..length {
            let opens = depth == 0 || depth < DEPTH && draw.below(2) == 0;
            depth = if opens { depth + 1 } else { depth - 1 };
            tokens.push(if opens { 1 } else { 2 });
        }
        tokens.resize(row * LENGTH, 0);
        last.push(length as u32 - 1);
        open.push(depth as u32);
    }
    Ok([Tensor::new(&[count, LENGTH], tokens)?, Tensor::new(&[count], last)?, Tensor::new(&[count], open)?])
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let mut params = Params::new(&device, 7);
    let net = Reader::new(&mut params, 32)?;
    let optimizer = Optimizer::adamw(1e-2).clip_norm(1.0);
    let mut step = TrainStep::new(&params, optimizer, |v| net.forward(v[0], v[1])?.cross_entropy(v[2]));
    for i in 0..200 {
        let [tokens, last, open] = &strings(1, i, 64)?;
        step.run(&[tokens.into(), last.into(), open.into()])?;
        if i % 50 == 0 {
            println!("step {i}: loss {:.4}", step.loss()?);
        }
    }
    let ([tokens, last, open], session) = (strings(2, 0, 500)?, Session::inference(&device));
    let logits = net.forward(session.labels(&tokens)?, session.labels(&last)?)?;
    let right = logits.argmax(&[1], false)?.eq(session.labels(&open)?)?.mean()?.item()?;
    println!("right about {right:.3} of new strings, fingerprint {}", params.fingerprint()?);
    assert!(right > 0.95);
    Ok(())
}
