//! Mistakes that users make, and what they are told: where it happened, what is wrong, what to do.

use crate::support::{device, f, t};
use dittograd::graph::{Graph, TrainStep};
use dittograd::io::{Checkpoint, StateDict};
use dittograd::nn::{BatchNorm, Conv2d, Embedding, Linear, MultiheadAttention};
use dittograd::ops::conv::ConvWindow;
use dittograd::optim::Optimizer;
use dittograd::prelude::*;
use std::panic::Location;

/// A mistake, the line it begins at, and words of what its error must say.
struct Mistake {
    line: u32,
    make: fn(&Device) -> Result<()>,
    says: &'static [&'static str],
}

#[track_caller]
fn mistake(make: fn(&Device) -> Result<()>, says: &'static [&'static str]) -> Mistake {
    Mistake { line: Location::caller().line(), make, says }
}

fn idx(dims: &[usize], values: &[u32]) -> Tensor<u32> {
    Tensor::new(dims, values.to_vec()).unwrap()
}

fn ones(dims: &[usize]) -> Tensor<f32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |_| 1.0)
}

/// Mistakes in the code of a program: shapes, types, order of calls.
fn in_code() -> Vec<Mistake> {
    vec![
        mistake(
            |d| {
                let s = Session::eager(d);
                (s.ones(&[2, 3])? + s.ones(&[2])?).map(drop)
            },
            &["add", "[2, 3] and [2]", "from the last axis on"],
        ),
        mistake(
            |d| Session::eager(d).ones(&[2, 3])?.matmul(Session::eager(d).ones(&[3, 2])?).map(drop),
            &["matmul", "another session"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.ones(&[2, 3])?.matmul(s.ones(&[2, 3])?).map(drop)
            },
            &["matmul", "columns of the left and rows of the right differ", "[2, 3]"],
        ),
        mistake(|d| Session::eager(d).ones(&[6])?.reshape(&[4, 2]).map(drop), &["reshape", "[6] and [4, 2]"]),
        mistake(|d| Session::eager(d).ones(&[2, 3])?.sum_axes(&[2]).map(drop), &["sum", "axis 2", "0, to 1"]),
        mistake(|d| Session::eager(d).ones(&[2])?.transpose().map(drop), &["transpose", "rank 1", "reshape"]),
        mistake(
            |d| Session::eager(d).ones(&[4])?.narrow(0, 3, 2).map(drop),
            &["slice", "2 elements from 3", "axis of 4"],
        ),
        mistake(|d| Session::eager(d).ones(&[2, 3])?.squeeze(1).map(drop), &["squeeze", "[2, 3]"]),
        mistake(
            |d| Session::eager(d).ones(&[2, 3])?.permute(&[0, 0]).map(drop),
            &["permute", "axis 0", "repeated"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.concat(&[s.ones(&[2, 3])?, s.ones(&[2])?], 0).map(drop)
            },
            &["concat", "[2, 3] and [2]"],
        ),
        mistake(|d| Session::eager(d).concat(&[], 0).map(drop), &["concat", "got 0"]),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.ones(&[2, 3])?.cross_entropy(s.ones(&[2])?).map(drop)
            },
            &["cross_entropy", "input 1 holds f32", "Session::labels", "to_index"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.ones(&[2, 3])?.cross_entropy(s.labels(&idx(&[2], &[0, 3]))?).map(drop)
            },
            &["cross_entropy", "index 3 at position 1", "0..3"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                (s.labels(&idx(&[2], &[0, 3]))? + s.ones(&[2])?).map(drop)
            },
            &["add", "input 0 holds u32", "to_float()"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.labels(&idx(&[2], &[0, 3]))?.eq(s.labels(&idx(&[3], &[0, 3, 1]))?).map(drop)
            },
            &["eq", "[2] and [3]"],
        ),
        mistake(
            |d| Session::eager(d).labels(&idx(&[1], &[3]))?.item().map(drop),
            &["item", "u32", "indices()"],
        ),
        mistake(|d| Session::eager(d).ones(&[2, 3])?.item().map(drop), &["item", "[2, 3]", "mean()"]),
        mistake(
            |d| Session::eager(d).input(&t(&[2], &[1.0, 0.5]))?.to_index().map(drop),
            &["element 1 is 0.5", "whole number"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.variable(&ones(&[2, 3]))?.exp()?.backward().map(drop)
            },
            &["backward", "[2, 3]", "mean()"],
        ),
        mistake(
            |d| Session::eager(d).ones(&[2])?.sum()?.backward().map(drop),
            &["backward", "Session::variable"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                let y = s.variable(&ones(&[2]))?.exp()?;
                y.sum()?.backward()?;
                y.exp().map(drop)
            },
            &["exp", "freed by a backward pass", "backward_retain"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                let x = s.ones(&[2])?;
                s.reset();
                x.exp().map(drop)
            },
            &["exp", "it was reset", "record the value again"],
        ),
        mistake(
            |d| {
                let s = Session::inference(d);
                let mut inner = None;
                s.scope(|| {
                    inner = Some(s.ones(&[2])?);
                    s.ones(&[3])
                })?;
                inner.ok_or_else(|| Error::msg("no value"))?.exp().map(drop)
            },
            &["exp", "freed by", "scope"],
        ),
        mistake(
            |d| Session::inference(d).variable(&ones(&[]))?.backward().map(drop),
            &["backward", "Session::inference"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.input(&ones(&[1, 3, 8, 8]))?.conv2d(s.ones(&[4, 1, 3, 3])?, None, 1, 1).map(drop)
            },
            &["conv", "[1, 3, 8, 8] and [4, 1, 3, 3]", "channels"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.input(&ones(&[1, 3, 2, 2]))?.conv2d(s.ones(&[4, 3, 5, 5])?, None, 1, 0).map(drop)
            },
            &["conv", "kernel"],
        ),
        mistake(
            |d| Session::eager(d).ones(&[1, 3, 2, 2])?.max_pool2d([3, 3], 1).map(drop),
            &["max_pool", "2 cells", "use a smaller kernel"],
        ),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.einsum("ij,jk->ik", &[s.ones(&[2, 3])?, s.ones(&[4, 5])?]).map(drop)
            },
            &["einsum", "axis j is 3 long", "[4, 5]"],
        ),
        mistake(|d| Session::eager(d).einsum("ij->", &[]).map(drop), &["einsum", "1", "0"]),
        mistake(
            |d| {
                let s = Session::eager(d);
                s.pointwise(&[s.ones(&[2, 3])?, s.ones(&[2])?], |v| v[0] + v[1]).map(drop)
            },
            &["[2, 3] and [2]"],
        ),
        mistake(|_| Tensor::new(&[2, 3], vec![1.0f32; 5]).map(drop), &["[2, 3]", "got 5 elements, needs 6"]),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let net = Mlp::new(&mut params, &[2, 1])?;
                let mut step =
                    TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0])?.mean()).shards(3);
                step.run(&[(&Tensor::new(&[4, 2], vec![1.0f32; 8])?).into()])
            },
            &["shards", "[4, 2]", "no 3 equal parts"],
        ),
    ]
}

/// Mistakes in models and steps: the layer is named too.
fn in_models() -> Vec<Mistake> {
    vec![
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let fc = Linear::new(&mut params.scope("decoder"), "fc1", 4, 2)?;
                fc.forward(Session::eager(d).ones(&[5, 3])?).map(drop)
            },
            &["linear (decoder.fc1, tests/it/mistakes.rs:", "[5, 3]", "[2, 4]"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let window = ConvWindow::plain(2)?.padding(1);
                let conv = Conv2d::new(&mut params, "unet.down2.conv1", 3, 4, [3, 3], window)?;
                conv.forward(Session::eager(d).ones(&[1, 4, 8, 8])?).map(drop)
            },
            &["conv (unet.down2.conv1, tests/it/mistakes.rs:", "[1, 4, 8, 8]"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let norm = BatchNorm::new(&mut params, "bn1", 4)?;
                norm.forward(Session::eager(d).ones(&[2, 3, 8, 8])?).map(drop)
            },
            &["batch_norm (bn1, tests/it/mistakes.rs:", "[2, 3, 8, 8]"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let tokens = Embedding::new(&mut params, "tokens", 5, 4, 1.0)?;
                tokens.forward(Session::eager(d).labels(&idx(&[2], &[1, 7]))?).map(drop)
            },
            &["(tokens, tests/it/mistakes.rs:", "index 7 at position 1", "0..5"],
        ),
        // The same in a compiled step: told when the step is run, with the line that was traced.
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let tokens = Embedding::new(&mut params, "tokens", 5, 4, 1.0)?;
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| tokens.forward(v[0])?.mean());
                step.run(&[(&idx(&[2], &[1, 4])).into()])?;
                step.run(&[(&idx(&[2], &[1, 7])).into()])
            },
            &["(tokens, tests/it/mistakes.rs:", "index 7 at position 1", "0..5"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let net = Mlp::new(&mut params, &[4, 8, 2])?;
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0])?.mean());
                step.run(&[(&ones(&[5, 3])).into()])
            },
            &["linear (net.0, tests/it/mistakes.rs:", "[5, 3]"],
        ),
        mistake(|d| Mlp::new(&mut Params::new(d, 0), &[4]).map(drop), &["mlp", "sizes"]),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                Mlp::new(&mut params, &[4, 2])?;
                Mlp::new(&mut params, &[4, 2]).map(drop)
            },
            &["`net.0.weight` is taken", "params.scope"],
        ),
        mistake(
            |d| MultiheadAttention::new(&mut Params::new(d, 0), "attention", 10, 3, true).map(drop),
            &["10", "3", "heads"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let net = Mlp::new(&mut params, &[2, 2])?;
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0]));
                step.run(&[(&ones(&[5, 2])).into()])
            },
            &["[5, 2]", "mean()"],
        ),
        mistake(
            |d| {
                let (mut params, mut others) = (Params::new(d, 0), Params::new(d, 0));
                let net = Mlp::new(&mut params, &[2, 2])?;
                Mlp::new(&mut others, &[2, 2])?;
                let mut step = TrainStep::new(&others, Optimizer::sgd(0.1), |v| net.forward(v[0])?.mean());
                step.run(&[(&ones(&[5, 2])).into()])
            },
            &["Params"],
        ),
        mistake(
            |d| {
                let (mut params, empty) = (Params::new(d, 0), Params::new(d, 0));
                let net = Mlp::new(&mut params, &[2, 2])?;
                let mut step = TrainStep::new(&empty, Optimizer::sgd(0.1), |v| net.forward(v[0])?.mean());
                step.run(&[(&ones(&[5, 2])).into()])
            },
            &["step", "no parameters", "the Params that the model was made with"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let net = Mlp::new(&mut params, &[2, 2])?;
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0])?.mse(v[1]));
                step.run(&[(&ones(&[5, 2])).into()])
            },
            &["step", "reads input 1", "gave 1"],
        ),
        mistake(
            |d| Graph::trace(d, &[f(&[2])], |_, v| Ok(vec![(v[0] + v[2])?])).map(drop),
            &["trace", "reads input 2", "gave 1"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let p = params.value("w", &ones(&[2]))?;
                p.set(&ones(&[3]))
            },
            &["parameter w", "[3] and [2]"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let (w, unused) = (params.value("w", &ones(&[]))?, params.value("unused", &ones(&[]))?);
                let s = Session::eager(d);
                let grads = s.param(&w)?.square()?.backward()?;
                drop(unused);
                Optimizer::sgd(0.1).step(&params, grads)
            },
            &["trainable parameter unused", "freeze it"],
        ),
        mistake(
            |d| {
                let mut params = Params::new(d, 0);
                let w = params.value("w", &ones(&[]))?;
                let s = Session::eager(d);
                let loss = s.param(&w)?.square()?;
                Optimizer::sgd(0.1).step(&params, loss.backward_retain()?)?;
                s.param(&w).map(drop)
            },
            &["parameter w changed", "reset"],
        ),
        mistake(
            |d| Graph::trace(d, &[f(&[2])], |s, _| Ok(vec![s.input(&ones(&[2]))?])).map(drop),
            &["input", "pass it as an argument"],
        ),
        mistake(
            |d| Graph::trace(d, &[f(&[])], |s, v| Ok(vec![s.scalar(v[0].item()?.into())?])).map(drop),
            &["value", "return the value from the program"],
        ),
        mistake(
            |d| {
                let graph = Graph::trace(d, &[f(&[2])], |_, v| Ok(vec![v[0].exp()?]))?;
                graph.compile(d)?.call(&[ones(&[3]).into()]).map(drop)
            },
            &["[3]", "[2]"],
        ),
    ]
}

/// Mistakes with files.
fn with_files() -> Vec<Mistake> {
    fn file(bytes: &[u8]) -> Result<std::path::PathBuf> {
        let path =
            std::env::temp_dir().join(format!("dittograd-mistake-{}-{}", std::process::id(), bytes.len()));
        std::fs::write(&path, bytes)?;
        Ok(path)
    }
    vec![
        mistake(|_| StateDict::read("/no/such/file.safetensors").map(drop), &["/no/such/file.safetensors"]),
        mistake(|_| StateDict::read(file(b"PK\x03\x04 pickled")?).map(drop), &["torch.save", "safetensors"]),
        mistake(|_| Checkpoint::load(file(b"no checkpoint")?).map(drop), &["dittograd-mistake-"]),
        mistake(|_| dittograd::data::parse_csv("x.csv", "1,2\n3,a\n").map(drop), &["x.csv", "2", "`a`"]),
    ]
}

#[test]
fn mistakes_are_told_where_they_are_made_and_how_to_mend_them() {
    let mut wrong = Vec::new();
    let tables = [in_code(), in_models(), with_files()];
    let count: usize = tables.iter().map(Vec::len).sum();
    assert!(count >= 50, "{count}");
    for table in &tables {
        for (i, m) in table.iter().enumerate() {
            let e = match (m.make)(&device()) {
                Err(e) => e,
                Ok(()) => {
                    wrong.push(format!("line {}: no error", m.line));
                    continue;
                }
            };
            let end = table.get(i + 1).map_or(m.line + 12, |next| next.line);
            let is_here = |l: &Location<'_>| l.file() == file!() && (m.line..end).contains(&l.line());
            let text = e.to_string();
            if !e.location().is_some_and(is_here) {
                wrong.push(format!("line {}: the place is missing or wrong: {text}", m.line));
            }
            if let Some(missing) = m.says.iter().find(|s| !text.contains(**s)) {
                wrong.push(format!("line {}: `{missing}` is missing: {text}", m.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every public function of the folders that users call into, if it can fail, passes the line of its caller on.
#[test]
fn whatever_can_fail_knows_its_caller() {
    let folders =
        ["crates/engine/src/session", "crates/engine/src/compiled", "crates/engine/src/params", "src/nn"];
    let more = ["src/io", "src/train", "src/data", "src/data/tokenizer", "src/typed"];
    let (mut missing, mut count) = (Vec::new(), 0);
    for folder in folders.into_iter().chain(more) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> =
                text.split("#[cfg(test)]").next().unwrap().lines().map(str::trim).collect();
            for (i, line) in lines.iter().enumerate().filter(|(_, l)| l.starts_with("pub fn ")) {
                let end = lines[i..].iter().position(|l| l.ends_with('{') || l.ends_with(';')).unwrap_or(0);
                let signature = lines[i..=i + end].join(" ");
                let returns = signature.split(" where ").next().unwrap().rsplit(") -> ").next().unwrap();
                if !returns.starts_with("Result<") {
                    continue;
                }
                count += 1;
                let attributes = lines[..i].iter().rev().take_while(|l| l.starts_with("#["));
                if !attributes.into_iter().any(|l| *l == "#[track_caller]") {
                    missing.push(format!("{}:{}: {line}", path.display(), i + 1));
                }
            }
        }
    }
    assert!(count > 500, "{count}");
    assert!(missing.is_empty(), "give these #[track_caller]:\n{}", missing.join("\n"));
}
