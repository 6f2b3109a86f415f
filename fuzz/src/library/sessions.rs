//! Calls of a session in any order, on handles of any age and of either of two sessions, with values released and memory
//! running out: every call answers, and in the end nothing is left.

use super::choices::{Choices, said};
use dittograd::device::Meta;
use dittograd::device::cpu::simd::Simd;
use dittograd::graph::Graph;
use dittograd::prelude::*;
use dittograd::session::Nats;
use std::cell::Cell;

/// What a call gave that later calls may use.
enum Gave<'s> {
    Nothing,
    Value(Var<'s>),
    Values(Vec<Var<'s>>),
    Grads(Grads),
}

fn tensor(c: &mut Choices<'_>) -> Tensor<f32> {
    let shape = Shape::new(&c.small_shape(3)).expect("small");
    let start = c.byte();
    Tensor::from_fn(shape, |i| (i as f32 + f32::from(start)) * 0.125 - 2.0)
}

/// All there is to call.
struct World<'s> {
    sessions: &'s [Session; 2],
    params: &'s Params,
    list: &'s [Param; 2],
    optimizer: Optimizer,
    nats: Nats,
    /// Handles, and how often their session had been reset when they were made.
    vars: Vec<(Var<'s>, u64)>,
    resets: [u64; 2],
    grads: Vec<Grads>,
}

impl<'s> World<'s> {
    fn keep(&mut self, v: Var<'s>) {
        let which = usize::from(std::ptr::eq(v.session(), &self.sessions[1]));
        // What comes out of a call that reset its session may be old already.
        if v.shape().is_ok() {
            self.vars.push((v, self.resets[which]));
        }
    }
}

fn call<'s>(c: &mut Choices<'_>, world: &mut World<'s>) -> Result<Gave<'s>> {
    let World { sessions, params, list, optimizer, nats, vars, resets, grads } = world;
    let which = c.below(8).saturating_sub(6);
    let s = &sessions[which];
    let device = s.device();
    let old = Cell::new(false);
    let now = *resets;
    let pick = |c: &mut Choices<'_>| match &vars[..] {
        [] => s.scalar(0.5),
        vars => {
            let (v, made) = vars[vars.len() - 1 - c.below(vars.len().min(16))];
            old.set(old.get() || made != now[usize::from(std::ptr::eq(v.session(), &sessions[1]))]);
            Ok(v)
        }
    };
    let reset = |resets: &mut [u64; 2]| {
        s.reset();
        resets[which] += 1;
    };
    let param = list[c.below(list.len())].clone();
    let kind = c.below(44);
    let value = match kind {
        0 => s.input(&tensor(c))?,
        1 => s.variable(&tensor(c))?,
        2 | 3 => s.param(&param)?,
        4 => s.constant(&tensor(c))?,
        5 => s.scalar(c.number())?,
        6 => s.nats(nats)?,
        7 => pick(c)?.tanh()?,
        8 => pick(c)?.softmax()?,
        9 => pick(c)?.dropout(c.number())?,
        10 => pick(c)?.add(pick(c)?)?,
        11 => pick(c)?.mul(pick(c)?)?,
        12 => pick(c)?.matmul(pick(c)?)?,
        13 => pick(c)?.sum()?,
        14 => pick(c)?.mean()?,
        15 => pick(c)?.reshape(&c.small_shape(4))?,
        16 => pick(c)?.transpose()?,
        17 => pick(c)?.detach()?,
        18 => pick(c)?.tracked()?,
        19 => pick(c)?.slice(c.below(4), c.below(4), c.below(6), c.below(3))?,
        20 => pick(c)?.index_select(c.below(3), pick(c)?)?,
        21 => pick(c)?.cross_entropy(pick(c)?)?,
        22 => s.concat(&[pick(c)?, pick(c)?], c.below(3))?,
        23 => s.uniform(&c.small_shape(3))?,
        24 => return Ok(Gave::Grads(pick(c)?.backward()?)),
        25 => return Ok(Gave::Grads(pick(c)?.backward_retain()?)),
        26 => return Ok(Gave::Grads(pick(c)?.backward_from(&tensor(c))?)),
        27 => return Ok(Gave::Values(s.grad(pick(c)?, &[pick(c)?, pick(c)?])?)),
        28 => {
            return Ok(Gave::Values(
                s.hvp(pick(c)?, &[(pick(c)?, pick(c)?)])?.into_iter().flatten().collect(),
            ));
        }
        29 => s.jvp(pick(c)?, &[(pick(c)?, pick(c)?)])?,
        30 => {
            let values = s.vjp(&[(pick(c)?, pick(c)?)], &[pick(c)?])?;
            return Ok(Gave::Values(values.into_iter().flatten().collect()));
        }
        31 => {
            reset(resets);
            return Ok(Gave::Nothing);
        }
        32 => {
            pick(c)?.buffer()?.buffer().release();
            return Ok(Gave::Nothing);
        }
        33 => {
            let (a, b) = (pick(c)?, pick(c)?);
            let inner = c.byte();
            s.checkpoint(|| {
                let v = a.mul(b)?.sigmoid()?;
                // A session inside its own segment.
                match inner % 6 {
                    0 => reset(resets),
                    1 => drop(v.sum()?.backward()?),
                    2 => return s.checkpoint(|| v.exp()),
                    3 => return s.scope(|| v.exp()),
                    _ => {}
                }
                v.add(a)
            })?
        }
        34 => {
            let (a, inner) = (pick(c)?, c.byte());
            s.scope(|| match inner % 4 {
                0 => Ok(a),
                1 => a.exp()?.sum(),
                2 => s.checkpoint(|| a.exp()),
                _ => {
                    reset(resets);
                    a.exp()
                }
            })?
        }
        35 => {
            let (a, given) = (pick(c)?, tensor(c));
            s.fresh(|s| {
                let v = s.variable(&given)?.square()?.sum()?;
                v.backward()?;
                v.add(a)?.item()
            })?;
            return Ok(Gave::Nothing);
        }
        36 => {
            let value = if c.flag() { tensor(c) } else { param.get()? };
            param.set(&value)?;
            return Ok(Gave::Nothing);
        }
        37 => {
            let Some(grads) = grads.pop() else { return Ok(Gave::Nothing) };
            optimizer.step(params, grads)?;
            return Ok(Gave::Nothing);
        }
        38 => {
            let n = (c.below(4) > 0).then(|| 1 + c.below(16) as u64);
            device.fail_allocation(n, c.below(8) == 7);
            return Ok(Gave::Nothing);
        }
        39 => {
            let how = c.below(3);
            pick(c)?.hook(move |g| match how {
                0 => Ok(g.clone()),
                1 => g.part(0, Shape::SCALAR),
                _ => {
                    g.buffer().release();
                    Ok(g.clone())
                }
            })?;
            return Ok(Gave::Nothing);
        }
        40 => {
            s.assign(&param, pick(c)?)?;
            return Ok(Gave::Nothing);
        }
        41 => {
            nats.set(c.below(4), c.byte().into())?;
            s.set_random_calls(c.word());
            return Ok(Gave::Nothing);
        }
        42 => {
            assert!(!format!("{s}{}", pick(c)?).is_empty());
            let _ = pick(c)?.value::<f32>()?;
            device.collect()?;
            param.set_trainable(c.flag());
            return Ok(Gave::Nothing);
        }
        _ => {
            let shape = Shape::new(&c.small_shape(2))?;
            let (given, how) = (pick(c)?, c.below(4));
            let graph = Graph::trace(device, &[Meta::f32(shape)], |s, x| {
                let y = x[0].square()?.sum()?;
                match how {
                    0 => Ok(vec![y.dropout(0.5)?]),
                    1 => y.backward().map(|_| Vec::new()),
                    2 => Ok(vec![s.param(&param)?.sum()?.mul(y)?]),
                    _ => Ok(vec![y]),
                }
            })?;
            return Ok(Gave::Values(s.replay(&graph, &[given])?));
        }
    };
    assert!(!(7..=22).contains(&kind) || !old.get(), "call {kind} took a handle from before a reset");
    Ok(Gave::Value(value))
}

pub fn session(data: &[u8]) {
    let device = Device::cpu_with(1, Simd::best()).expect("a CPU");
    device.set_checks(true);
    {
        let mut params = Params::new(&device, 5);
        let list = [
            params.uniform("w", &[3, 3], -1.0, 1.0).expect("a parameter"),
            params.uniform("b", &[3], -1.0, 1.0).expect("a parameter"),
        ];
        let sessions = [Session::eager_seeded(&device, 3), Session::inference(&device)];
        let mut world = World {
            sessions: &sessions,
            params: &params,
            list: &list,
            optimizer: Optimizer::momentum(0.1, 0.9).clip_norm(1.0),
            nats: Nats::new(&[2, 0, 1]),
            vars: Vec::new(),
            resets: [0, 0],
            grads: Vec::new(),
        };
        let mut c = Choices::new(data);
        for _ in 0..200 {
            if c.is_empty() {
                break;
            }
            match call(&mut c, &mut world) {
                Ok(Gave::Nothing) => {}
                Ok(Gave::Value(v)) => world.keep(v),
                Ok(Gave::Values(list)) => list.into_iter().for_each(|v| world.keep(v)),
                Ok(Gave::Grads(g)) => world.grads.push(g),
                Err(e) => said(&e),
            }
        }
        device.fail_allocation(None, false);
        // Whatever happened, the sessions go on.
        for s in &sessions {
            s.reset();
            let x = Tensor::new(&[3], vec![0.5f32, -1.0, 2.0]).expect("a row");
            let sum = s.input(&x).and_then(|x| x.square()?.sum()).and_then(|y| y.item());
            assert_eq!(sum.ok(), Some(5.25), "a session that does not go on");
        }
    }
    assert_eq!((device.memory().live, device.broken_guards()), (0, 0));
}
