//! The compiled path on programs of all kinds: the passes do what they say, and eager and compiled runs of
//! random programs, with their gradients and updates, have the same bits.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::cuda::fake::Fake;
use dittograd::device::{AnyBuffer, DType, Meta};
use dittograd::graph::{Graph, Pass, Passes, TrainStep};
use dittograd::numerics::rng::Stream;
use dittograd::ops::conv::ConvWindow;
use dittograd::ops::loss::Reduction;
use dittograd::ops::{AnyTensor, Recorder, Val, pointwise};
use dittograd::prelude::*;

fn device(threads: usize) -> Device {
    Device::cpu_with(threads, Simd::best()).unwrap()
}

/// The printed program of one step.
fn text(params: &Params, x: &Tensor<f32>, f: impl for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>) -> String {
    let mut step = TrainStep::new(params, Optimizer::sgd(0.0), f);
    step.run(&[x.into()]).unwrap();
    step.text().unwrap().to_string()
}

fn count(text: &str, word: &str) -> usize {
    text.lines().filter(|l| l.split_whitespace().any(|w| w == word)).count()
}

#[test]
fn chains_and_broadcasts_become_one_kernel() {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[8], -1.0, 1.0).unwrap();
    let x = Tensor::full(Shape::new(&[5, 8]).unwrap(), 0.5f32);
    let text = text(&params, &x, |v| {
        let w = v[0].session().param(&w)?;
        v[0].add(w)?.tanh()?.mul(v[0])?.scale(2.0)?.sum()
    });
    // Forward: everything before the sum is one map; the broadcast of w is part of it.
    assert_eq!(count(&text, "broadcast_to"), 0, "{text}");
    assert_eq!(count(&text, "tanh") + count(&text, "mul") + count(&text, "scale"), 0, "{text}");
    assert!(text.contains("Tanh"), "{text}");
}

#[test]
fn rows_without_elements_are_not_read_as_more_rows() {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[2, 1, 1, 1], -1.0, 1.0).unwrap();
    let x = Tensor::full(Shape::new(&[2, 1, 1, 0]).unwrap(), 0.5f32);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
        let w = v[0].session().param(&w)?;
        v[0].add(w)?.reshape(&[2, 3, 0])?.tanh()?.sum()
    });
    step.run(&[(&x).into()]).unwrap();
    assert_eq!(step.loss().unwrap(), 0.0);
}

#[test]
fn equal_expressions_are_computed_once_and_dead_ones_never() {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[4, 4], -1.0, 1.0).unwrap();
    let x = Tensor::full(Shape::new(&[3, 4]).unwrap(), 0.5f32);
    let text = text(&params, &x, |v| {
        let w = v[0].session().param(&w)?;
        let _dead = v[0].matmul(w)?.exp()?.softmax()?;
        let (a, b) = (v[0].matmul(w)?, v[0].matmul(w)?);
        a.softmax()?.mul(b.softmax()?)?.sum()
    });
    assert_eq!(count(&text, "softmax"), 1, "{text}");
    // One product forward, one for the gradient of w.
    assert_eq!(count(&text, "matmul"), 2, "{text}");
}

#[test]
fn a_program_that_needs_too_many_registers_is_split_and_still_right() {
    let d = device(2);
    let run = |compiled: bool| {
        let mut params = Params::new(&d, 5);
        let list: Vec<Param> =
            (0..30).map(|i| params.uniform(&format!("p{i}"), &[67], 0.5, 1.5).unwrap()).collect();
        fn loss<'s>(list: &[Param], x: Var<'s>) -> Result<Var<'s>> {
            let mut terms = Vec::new();
            for (i, p) in list.iter().enumerate() {
                terms.push(x.session().param(p)?.mul(x)?.scale(1.0 + i as f64)?.tanh()?);
            }
            let mut sum = terms[0];
            for t in &terms[1..] {
                sum = sum.mul(*t)?.add(x)?;
            }
            sum.mean()
        }
        let x = Tensor::full(Shape::new(&[67]).unwrap(), 0.75f32);
        if compiled {
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| loss(&list, v[0]));
            step.run(&[(&x).into()]).unwrap();
            step.run(&[(&x).into()]).unwrap();
        } else {
            let s = Session::eager(&d);
            let mut opt = Optimizer::sgd(0.1);
            for _ in 0..2 {
                let l = loss(&list, s.input(&x).unwrap()).unwrap();
                opt.step(&params, l.backward().unwrap()).unwrap();
                s.reset();
            }
        }
        params.fingerprint().unwrap()
    };
    assert_eq!(run(false), run(true));
}

/// The instructions of a step with some passes.
fn compiled_with(
    passes: Passes,
    params: &Params,
    x: &Tensor<f32>,
    f: impl for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
) -> (String, dittograd::graph::Plan) {
    let mut step = TrainStep::new(params, Optimizer::sgd(0.0), f).passes(passes);
    step.run(&[x.into()]).unwrap();
    (step.text().unwrap().to_string(), step.plan().unwrap())
}

/// What each pass does, seen alone and missed when it is off.
#[test]
fn every_pass_does_what_it_says() {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[8, 8], -1.0, 1.0).unwrap();
    let x = Tensor::from_fn(Shape::new(&[8, 8]).unwrap(), |i| i as f32 * 0.01 - 0.3);
    fn loss<'s>(x: Var<'s>, w: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let _dead = x.exp()?;
        let constant = s.constant(&Tensor::new(&[8], vec![0.5f32; 8])?)?.softmax()?;
        let twice = (x.matmul(w)?.tanh()?, x.matmul(w)?.tanh()?);
        let moved = w.transpose()?.copy()?;
        let product = x.matmul(moved)?.relu()?;
        let inner = twice.0.mul(twice.1)?.add(constant)?;
        let outer = inner.sigmoid()?.mul(inner)?.sub(product)?;
        outer.square()?.sum()
    }
    let run = |passes| compiled_with(passes, &params, &x, |v| loss(v[0], v[0].session().param(&w)?));
    let base = Passes::none().with(Pass::DeadCode);
    let (none, all) = (run(Passes::none()), run(Passes::all()));
    assert!(all.1.instructions < none.1.instructions / 2, "{}\n{}", none.0, all.0);
    assert_eq!((count(&none.0, "exp"), count(&run(base).0, "exp")), (1, 0));
    let counts = |text: &str| {
        let of = |word| count(text, word);
        (of("permute"), of("softmax"), of("matmul"), of("tanh"), of("map"), of("epilogue"), of("prologue"))
    };
    let plain = counts(&run(base).0);
    assert_eq!((plain.0 > 0, plain.1, plain.4, plain.5, plain.6), (true, 1, plain.4, 0, 0));
    let with = |pass| counts(&run(base.with(pass)).0);
    // That of the gradient stays.
    assert_eq!((plain.0, with(Pass::Layout).0), (2, 1), "transpositions become flags of products");
    assert_eq!(with(Pass::Constants).1, 0, "the softmax of a constant is one");
    assert!(with(Pass::Common).3 < plain.3, "equal values are one");
    assert!(run(base.with(Pass::Elementwise)).1.instructions < run(base).1.instructions);
    let joined = base.with(Pass::Elementwise);
    assert!(run(joined.with(Pass::Results)).1.instructions < run(joined).1.instructions);
    assert!(with(Pass::Epilogues).5 > 0, "the relu is part of its product");
    assert_eq!(with(Pass::Reductions).6, 1, "the square is part of its sum");
    // `program::programs_lead_into_softmax_and_norms` has what [`Pass::Prologues`] does.
    for pass in Pass::ALL {
        assert_eq!(Passes::none().with(pass), Passes::none().with(pass).with(pass), "{}", pass.name());
        assert!(!Passes::all().without(pass).has(pass));
    }
}

/// Batch norm becomes its statistics and an elementwise op, with the same bits; running averages share the statistics.
#[test]
fn batch_norm_is_its_statistics_and_an_elementwise_op() {
    let d = device(2);
    for (dims, affine) in [&[6, 5][..], &[3, 5, 7], &[2, 5, 4, 300], &[1, 5, 1, 1, 1]]
        .iter()
        .flat_map(|d| (0..4).map(move |a| (*d, a)))
    {
        let run = |passes: Passes| {
            let mut params = Params::new(&d, 1);
            let w = params.uniform("w", dims, -1.0, 1.0).unwrap();
            let mut channels =
                |name, is_used: bool| is_used.then(|| params.uniform(name, &dims[1..2], -1.0, 1.0).unwrap());
            let (gain, shift) = (channels("gain", affine & 1 != 0), channels("shift", affine & 2 != 0));
            let x = Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i as f32 * 0.7).sin());
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
                let s = v[0].session();
                let x = v[0].add(s.param(&w)?)?;
                let gain = gain.as_ref().map(|p| s.param(p)).transpose()?;
                let shift = shift.as_ref().map(|p| s.param(p)).transpose()?;
                let y = x.batch_norm(gain, shift, 1e-5)?.relu()?;
                let (mean, var) = x.moments()?;
                y.mul(y)?.sum()?.add(mean.add(var)?.sum()?)
            })
            .passes(passes);
            for _ in 0..3 {
                step.run(&[(&x).into()]).unwrap();
            }
            (step.loss().unwrap().to_bits(), params.fingerprint().unwrap(), step.text().unwrap().to_string())
        };
        let (with, without) = (run(Passes::all()), run(Passes::all().without(Pass::BatchNorm)));
        assert_eq!((&with.0, &with.1), (&without.0, &without.1), "{dims:?} {affine}");
        let forward = |text: &str| (count(text, "moments"), count(text, "batch_norm"));
        assert_eq!((forward(&with.2), forward(&without.2)), ((1, 0), (1, 1)), "{}", with.2);
    }
}

/// The gradient of `relu` is part of the gradient of max pooling after it, also where windows overlap, lines are no multiple of four, and
/// several cells of a window are the largest.
#[test]
fn max_pooling_takes_in_the_gradient_before_it() {
    let gpu = dittograd_check::gpu();
    let devices = [device(2)].into_iter().chain(gpu.as_ref().map(|(_turn, device)| device.clone()));
    for (d, (dims, [kernel, stride, padding, dilation])) in devices.flat_map(|d| {
        let cases = [
            (&[2, 3, 8, 12][..], [3, 2, 1, 1]),
            (&[2, 3, 9, 16], [2, 2, 0, 1]),
            (&[1, 4, 7, 9], [3, 2, 1, 1]),
            (&[2, 2, 10, 20], [3, 1, 1, 2]),
            (&[3, 1, 40], [5, 3, 2, 1]),
        ];
        cases.map(move |case| (d.clone(), case))
    }) {
        let run = |device: &Device, passes: Passes| {
            let mut params = Params::new(device, 1);
            let w = params.uniform("w", dims, -1.0, 1.0).unwrap();
            let axes = |n: usize| vec![n; dims.len() - 2];
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.5), |v| {
                let y = v[0].mul(v[0].session().param(&w)?)?.relu()?;
                let pooled =
                    y.max_pool_dilated(&axes(kernel), &axes(stride), &axes(padding), &axes(dilation))?;
                pooled.mul(pooled)?.sum()
            })
            .passes(passes);
            let x = Tensor::from_fn(Shape::new(dims).unwrap(), |i| ((i * i % 7) as f32 - 3.0) * 0.3);
            for _ in 0..2 {
                step.run(&[(&x).into()]).unwrap();
            }
            (step.loss().unwrap().to_bits(), params.fingerprint().unwrap(), step.text().unwrap().to_string())
        };
        let (with, without) = (run(&d, Passes::all()), run(&device(1), Passes::none()));
        assert_eq!((&with.0, &with.1), (&without.0, &without.1), "{d} {dims:?}");
        assert!(with.2.contains("of max_pool_bwd") && !without.2.contains("of max_pool_bwd"), "{}", with.2);
    }
}

/// A step keeps so many programs and no more, and the one that was not used for longest goes first.
#[test]
fn a_step_keeps_the_programs_it_used_last() {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[3], -1.0, 1.0).unwrap();
    let traces = std::cell::Cell::new(0);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.01), |v| {
        traces.set(traces.get() + 1);
        v[0].mul(v[0].session().param(&w)?)?.square()?.mean()
    });
    let mut run = |rows: usize| {
        let x = Tensor::from_fn(Shape::new(&[rows, 3]).unwrap(), |i| i as f32 * 0.1);
        step.run(&[(&x).into()]).unwrap();
        traces.get()
    };
    (1..=16).for_each(|n| assert_eq!(run(n), n));
    assert_eq!(run(1), 16, "all sixteen are there");
    let held = d.memory().live;
    assert_eq!((run(17), run(1), run(3)), (17, 17, 17), "the second made room");
    assert_eq!(run(2), 18);
    (20..40).for_each(|n| assert!(run(n) > 18));
    assert!(d.memory().live < 3 * held, "programs are let go");
}

#[test]
fn what_is_made_again_is_not_kept() {
    let d = device(2);
    let run = |passes| {
        let mut params = Params::new(&d, 3);
        let list: Vec<Param> =
            (0..6).map(|i| params.normal(&format!("w{i}"), &[128, 128], 0.0, 0.1).unwrap()).collect();
        let x = Tensor::from_fn(Shape::new(&[256, 128]).unwrap(), |i| (i % 13) as f32 * 0.1 - 0.6);
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
            let mut x = v[0];
            for w in &list {
                x = x.matmul(x.session().param(w)?)?.gelu()?;
            }
            x.square()?.mean()
        })
        .passes(passes);
        (0..2).for_each(|_| step.run(&[(&x).into()]).unwrap());
        (step.plan().unwrap(), params.fingerprint().unwrap())
    };
    let (kept, again) = (run(Passes::all()), run(Passes::all().with(Pass::Recompute)));
    assert_eq!(kept.1, again.1);
    assert!(again.0.arena_bytes < kept.0.arena_bytes * 4 / 5, "{:?} {:?}", again.0, kept.0);
    assert!(again.0.instructions > kept.0.instructions);
    for plan in [kept.0, again.0] {
        assert!(plan.least_bytes <= plan.arena_bytes && plan.arena_bytes < plan.total_bytes, "{plan:?}");
        // Within a tenth of what no plan can do without.
        assert!(plan.arena_bytes * 10 <= plan.least_bytes * 11, "{plan:?}");
    }
}

/// The most memory that the step of a language model needs at a time, as planned: what is kept for the gradients, in units
/// of its narrow values. The wide values behind the activations are not kept, but for the last block's.
#[test]
fn a_step_keeps_no_more_than_it_pays_to() {
    let config = GptConfig { vocab: 12, context: 16, width: 16, heads: 2, layers: 6, dropout: 0.0 };
    let (batch, d) = (16, device(2));
    let tokens = Tensor::from_fn(Shape::new(&[batch, 16]).unwrap(), |i| (i * i % 11) as u32);
    let narrow = batch * 16 * 16;
    let new = || {
        let mut params = Params::new(&d, 3);
        let net = Gpt::new(&mut params, config).unwrap();
        (params, net)
    };
    let eager = {
        let ((params, net), s, mut optimizer) = (new(), Session::eager(&d), Optimizer::adamw(1e-3));
        for _ in 0..2 {
            let x = s.indices(&tokens).unwrap();
            let loss = net.forward(x).unwrap().cross_entropy(x).unwrap();
            optimizer.step(&params, loss.backward().unwrap()).unwrap();
            s.reset();
        }
        params.fingerprint().unwrap()
    };
    let compiled = |passes: Passes| {
        let (params, net) = new();
        let mut step =
            TrainStep::new(&params, Optimizer::adamw(1e-3), |v| net.forward(v[0])?.cross_entropy(v[0]))
                .passes(passes);
        (0..2).for_each(|_| step.run(&[(&tokens).into()]).unwrap());
        assert_eq!(params.fingerprint().unwrap(), eager, "{passes:?}");
        step.plan().unwrap()
    };
    let (kept, lowered) = (compiled(Passes::all()), compiled(Passes::all().large(narrow)));
    assert_eq!(kept.instructions, lowered.instructions, "what is made again is one more result of a kernel");
    let of = |plan: dittograd::graph::Plan| plan.least_bytes as f64 / (4 * narrow) as f64;
    assert!(of(kept) < 124.0 && of(lowered) < 104.0, "{kept:?} {lowered:?}");
}

/// One of six functions whose gradients want different values.
pub fn bent(x: Var<'_>, kind: usize) -> Result<Var<'_>> {
    match kind {
        0 => x.gelu(),
        1 => x.silu(),
        2 => x.softplus()?.mul(x),
        3 => x.square()?.add(x.exp()?),
        4 => x.gelu()?.dropout(0.2),
        _ => x.sin()?.mul(x.gelu()?),
    }
}

/// Random blocks, deep enough that values are far from their gradients: whatever is made again, and wherever its readers
/// go, the bits stay.
#[test]
fn what_is_made_again_has_the_same_bits() {
    let (d, mut stream) = (device(2), Stream::new(77, 0));
    let mut lower = 0;
    for round in 0..40 {
        let layers: Vec<[usize; 3]> =
            (0..4 + stream.below(4)).map(|_| [6, 4, 3].map(|n| stream.below(n))).collect();
        let x = Tensor::from_fn(Shape::new(&[32, 8]).unwrap(), |i| (i % 13) as f32 * 0.1 - 0.6);
        let run = |passes: Option<Passes>| {
            let mut params = Params::new(&d, 3);
            let mut list = Vec::new();
            for i in 0..layers.len() {
                list.push(params.normal(&format!("a{i}"), &[8, 16], 0.0, 0.3).unwrap());
                list.push(params.normal(&format!("b{i}"), &[16, 8], 0.0, 0.3).unwrap());
            }
            fn loss<'s>(list: &[Param], layers: &[[usize; 3]], mut x: Var<'s>) -> Result<Var<'s>> {
                let s = x.session();
                for (pair, [act, before, after]) in list.chunks(2).zip(layers) {
                    let wide = match before {
                        0 => x.softmax()?,
                        1 => x.scale(0.5)?.tanh()?,
                        _ => x,
                    };
                    let wide = wide.matmul(s.param(&pair[0])?)?;
                    let wide = bent(wide, *act)?;
                    let narrow = wide.matmul(s.param(&pair[1])?)?;
                    x = match after {
                        0 => narrow.add(x)?,
                        1 => narrow.tanh()?.add(x)?,
                        _ => narrow.sigmoid()?,
                    };
                }
                x.square()?.mean()
            }
            let Some(passes) = passes else {
                let (s, mut optimizer) = (Session::eager_seeded(&d, 8), Optimizer::sgd(0.1));
                for _ in 0..2 {
                    let l = loss(&list, &layers, s.input(&x).unwrap()).unwrap();
                    optimizer.step(&params, l.backward().unwrap()).unwrap();
                    s.reset();
                }
                return (params.fingerprint().unwrap(), 0);
            };
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| loss(&list, &layers, v[0]))
                .seeded(8)
                .passes(passes);
            (0..2).for_each(|_| step.run(&[(&x).into()]).unwrap());
            (params.fingerprint().unwrap(), step.plan().unwrap().total_bytes)
        };
        let (eager, kept, lowered) = (run(None), run(Some(Passes::all())), run(Some(Passes::all().large(1))));
        assert_eq!((&eager.0, &eager.0), (&kept.0, &lowered.0), "round {round}: {layers:?}");
        lower += usize::from(lowered.1 > kept.1);
    }
    assert!(lower >= 20, "only {lower} of 40 programs make anything again");
}

/// Logits are the largest value of a language model; on CUDA their gradient takes their place.
#[test]
fn the_gradient_of_logits_takes_their_place() {
    let train = |d: &Device, [rows, classes]: [usize; 2]| {
        let mut params = Params::new(d, 1);
        let w = params.normal("w", &[8, classes], 0.0, 1.0).unwrap();
        let x = Tensor::from_fn(Shape::new(&[rows, 8]).unwrap(), |i| (i % 29) as f32 * 0.1 - 1.4);
        let y = Tensor::from_fn(Shape::new(&[rows]).unwrap(), |i| (i * 7 % classes) as u32);
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
            v[0].matmul(v[0].session().param(&w)?)?.cross_entropy(v[1])
        });
        (0..2).for_each(|_| step.run(&[(&x).into(), (&y).into()]).unwrap());
        (step.plan().unwrap(), params.fingerprint().unwrap())
    };
    let (fake, logits) = (Fake::new(), 512 * 1000 * 4);
    let cuda = train(&Device::from_cuda(fake.open().unwrap()), [512, 1000]).0;
    assert!(cuda.least_bytes < logits * 3 / 2, "{cuda:?}");
    // The CPU's kernel writes terms there before it is done with the elements.
    let cpu = train(&device(2), [512, 1000]).0;
    assert!(cpu.least_bytes >= 2 * logits, "{cpu:?}");
    // Rows that a warp, a block or nobody has room for, and more of them than there are blocks.
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    for sizes in [[9000, 3], [9000, 65], [5000, 1000], [3000, 1027], [700, 5000], [700, 50304], [300, 70001]]
    {
        assert_eq!(train(&device(2), sizes).1, train(&gpu, sizes).1, "{sizes:?}");
    }
}

#[test]
fn checkpoints_compute_again_what_lies_between() {
    let d = device(2);
    let run = |checkpoints: bool, compiled: bool| {
        let mut params = Params::new(&d, 3);
        let list: Vec<Param> =
            (0..12).map(|i| params.normal(&format!("w{i}"), &[64, 64], 0.0, 0.2).unwrap()).collect();
        let x = Tensor::from_fn(Shape::new(&[256, 64]).unwrap(), |i| (i % 13) as f32 * 0.1 - 0.6);
        fn loss<'s>(list: &[Param], mut x: Var<'s>, checkpoints: bool) -> Result<Var<'s>> {
            let s = x.session();
            for pair in list.chunks(2) {
                let block = || -> Result<Var<'s>> {
                    let hidden = x.matmul(s.param(&pair[0])?)?.gelu()?.dropout(0.2)?.softmax()?;
                    hidden.matmul(s.param(&pair[1])?)?.tanh()?.add(x)
                };
                x = if checkpoints { s.checkpoint(block)? } else { block()? };
            }
            x.square()?.mean()
        }
        if !compiled {
            let (s, mut optimizer) = (Session::eager_seeded(&d, 8), Optimizer::sgd(0.1));
            for _ in 0..2 {
                let l = loss(&list, s.input(&x).unwrap(), checkpoints).unwrap();
                optimizer.step(&params, l.backward().unwrap()).unwrap();
                s.reset();
            }
            return (0, 0, params.fingerprint().unwrap());
        }
        let mut step =
            TrainStep::new(&params, Optimizer::sgd(0.1), |v| loss(&list, v[0], checkpoints)).seeded(8);
        (0..2).for_each(|_| step.run(&[(&x).into()]).unwrap());
        let products = count(step.text().unwrap(), "softmax");
        (step.plan().unwrap().arena_bytes, products, params.fingerprint().unwrap())
    };
    let (eager, kept, again) = (run(true, false), run(false, true), run(true, true));
    assert_eq!((&eager.2, &eager.2), (&kept.2, &again.2));
    assert_eq!((kept.1, again.1), (6, 12), "all segments are computed twice");
    assert!(again.0 < kept.0 * 7 / 10, "{} of {} bytes", again.0, kept.0);
}

/// A driver that cannot capture costs speed, not the run.
#[test]
fn a_program_that_cannot_be_captured_is_launched_kernel_by_kernel() {
    let mut fallen = 0;
    for k in 1..400 {
        let fake = Fake::new();
        let d = Device::from_cuda(fake.open().unwrap());
        let mut params = Params::new(&d, 1);
        let w = params.ones("w", &[4, 4]).unwrap();
        let x = Tensor::full(Shape::new(&[4, 4]).unwrap(), 0.5f32);
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
            v[0].matmul(v[0].session().param(&w)?)?.square()?.sum()
        });
        // What the driver says when a stream cannot be captured.
        fake.fail_call(k, 900);
        let first = step.run(&[(&x).into()]);
        if !fake.has_failed() {
            first.unwrap();
            break;
        }
        if first.is_ok() && step.plan().unwrap().launches == 0 {
            fallen += 1;
            let before = d.as_cuda().unwrap().launches();
            step.again().unwrap();
            assert!(d.as_cuda().unwrap().launches() > before + 2, "its kernels are launched");
        }
    }
    assert!(fallen > 0);
}

#[test]
fn metrics_are_part_of_the_step() {
    let d = device(1);
    let run = |with: bool| {
        let mut params = Params::new(&d, 2);
        let w = params.uniform("w", &[6, 3], -1.0, 1.0).unwrap();
        let x = Tensor::from_fn(Shape::new(&[4, 6]).unwrap(), |i| i as f32 * 0.1 - 1.0);
        let y = Tensor::new(&[4], vec![0u32, 1, 2, 1]).unwrap();
        let inner = w.clone();
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
            v[0].dropout(0.25)?.matmul(v[0].session().param(&w)?)?.cross_entropy(v[1])
        })
        .seeded(9);
        if with {
            step = step.metrics(move |v| {
                let logits = v[0].dropout(0.25)?.matmul(v[0].session().param(&inner)?)?;
                Ok(vec![logits, logits.amax(&[1], false)?])
            });
        }
        for _ in 0..3 {
            step.run(&[(&x).into(), (&y).into()]).unwrap();
        }
        let metric = with.then(|| (step.metric(0).unwrap(), step.metric(1).unwrap()));
        assert!(step.metric(2).is_err());
        let products = count(step.text().unwrap(), "matmul");
        (params.fingerprint().unwrap(), step.loss().unwrap().to_bits(), metric, products)
    };
    let (plain, with) = (run(false), run(true));
    assert_eq!((plain.0, plain.1), (with.0, with.1));
    assert_eq!(plain.3, with.3, "the product of the metrics is that of the loss");
    let (logits, largest) = with.2.unwrap();
    assert_eq!((logits.shape().dims(), largest.shape().dims()), (&[4, 3][..], &[4][..]));
    let row = |i: usize| logits.data()[3 * i..3 * i + 3].iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(largest.data(), [row(0), row(1), row(2), row(3)]);
}

#[test]
fn a_function_is_traced_once_for_each_shape() {
    let session = Session::eager_seeded(&device(2), 5);
    let mut f = session.compile(|_, x| Ok(vec![x[0].dropout(0.5)?.gelu()?, x[0].argmax(&[0], false)?]));
    let mut same = session.compile(|_, x| Ok(vec![x[0].dropout(0.5)?.gelu()?, x[0].argmax(&[0], false)?]));
    for n in [3, 5, 3, 5, 3] {
        let x = Tensor::from_fn(Shape::new(&[n, 2]).unwrap(), |i| i as f32 - 2.5);
        let (got, want) = (f.call(&[x.clone().into()]).unwrap(), same.eager(&[x.into()]).unwrap());
        assert_eq!(got[0].num().unwrap().data(), want[0].num().unwrap().data());
        assert_eq!(got[1].idx().unwrap().data(), want[1].idx().unwrap().data());
        assert_eq!(f.random_calls(), same.random_calls());
    }
    assert_eq!((f.traces(), same.traces()), (2, 0));
    let e = f.call::<f32>(&[]).unwrap_err();
    assert!(e.to_string().contains("the closure reads input 0, but the call gave 0"), "{e}");
    // What else panics in a closure goes on.
    let mut own = session.compile(|_, x| if x.len() == 1 { panic!("my own") } else { Ok(vec![]) });
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| own.call(&[Tensor::scalar(0.0f32).into()])));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"my own"));
}

/// One random step of a program: which operation, on which earlier values.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    kind: usize,
    a: usize,
    b: usize,
}

pub(crate) fn random_steps(stream: &mut Stream) -> Vec<Step> {
    let n = 2 + stream.below(14);
    (0..n).map(|i| Step { kind: stream.below(40), a: stream.below(4 + i), b: stream.below(4 + i) }).collect()
}

/// Runs the steps. All values are square matrices, or rows, columns or scalars that broadcast to them.
pub(crate) fn program<'s>(params: &[Param], x: Var<'s>, size: usize, steps: &[Step]) -> Result<Var<'s>> {
    let s = x.session();
    let mut values = vec![x];
    let (kernel, others) = params.split_last().unwrap();
    for p in others {
        values.push(s.param(p)?);
    }
    let kernel = s.param(kernel)?;
    for step in steps {
        let (a, b) = (values[step.a], values[step.b]);
        let shape = a.shape()?;
        let square = shape.dims() == [size, size];
        let value = match step.kind {
            0 => a.add(b)?,
            1 => a.sub(b)?,
            2 => a.mul(b)?,
            3 => a.div(b.square()?.scale(0.5)?.add(s.scalar(1.0)?)?)?,
            4 => a.max(b)?,
            5 => a.min(b)?,
            6 => a.tanh()?,
            7 => a.sigmoid()?,
            8 => a.gelu()?,
            9 => a.relu()?,
            10 => a.clamp(-0.75, 0.5)?,
            11 => a.square()?.scale(-0.25)?.exp()?,
            12 => a.axpy(0.3, b)?,
            13 => a.softmax()?,
            14 => a.log_softmax()?,
            15 if shape.rank() == 2 => a.mean_axes(&[0])?,
            16 if shape.rank() == 2 => a.sum_axes(&[1])?.scale(0.1)?.reshape(&[shape.dims()[0], 1])?,
            17 if shape.dims() == [size, size] => a.matmul(values[2])?.scale(0.2)?,
            18 if shape.rank() == 2 => a.transpose()?.copy()?.transpose()?,
            19 => a.detach()?.mul(b)?,
            20 => a.dropout(0.3)?,
            22 => a.gt(b)?.where_(a, b)?,
            23 if shape.rank() == 2 => a.amax(&[1], true)?,
            24 if shape.rank() == 2 => a.logsumexp(&[0], true)?,
            25 if shape.rank() == 2 => a.std(&[1], 0, true)?,
            26 => a.floor()?.add(a)?.clamp_to(b.add_scalar(-0.5)?, b)?,
            27 => a.huber_loss(a.detach()?.scale(0.5)?, 0.2, Reduction::None)?,
            28 if square => a.linear(values[2], values[1])?.scale(0.3)?.gelu()?,
            29 if square => a.matmul(values[2].transpose()?)?.scale(0.1)?.add(b)?.relu()?,
            30 if square => a.transpose()?.matmul(values[2])?.tanh()?.mul(a)?,
            31 if square => {
                let image = a.reshape(&[1, 1, size, size])?;
                let window = ConvWindow::plain(2)?.padding(1);
                image.conv(kernel, None, window)?.relu()?.reshape(&[size, size])?.add(b)?
            }
            32 if square => a.reshape(&[size * size])?.tanh()?.reshape(&[size, size])?.mul(a)?,
            33 if square => a.layer_norm(1, Some(values[1]), None, 1e-5)?.add(b)?,
            34 if square => {
                let one = a.reshape(&[1, size, size])?;
                one.bmm(one.transpose()?)?.scale(0.05)?.sigmoid()?.reshape(&[size, size])?
            }
            35 if square => a.linear(values[2], values[1])?.add(b)?.mul(a)?.scale(0.2)?,
            36 => a.square()?.sum()?.add(s.scalar(1.0)?)?.log()?.mul(b)?,
            37 if square => a.cumsum(1)?.scale(0.1)?.exp()?.log()?,
            38 => s.scalar(2.0)?.add(s.scalar(0.25)?)?.mul(a)?.sub(b)?,
            39 if square => {
                let (top, rest) = (a.narrow(0, 0, 1)?, a.narrow(0, 1, size - 1)?);
                rest.concat(top, 0)?.mul(b)?
            }
            _ => a.softplus()?,
        };
        values.push(value);
    }
    // Everything counts, so that every parameter is reached.
    let mut loss = s.scalar(0.0)?;
    values.push(kernel);
    for v in values {
        loss = loss.add(v.square()?.mean()?)?;
    }
    Ok(loss)
}

/// The parameters of a random program, of the shapes that [`program`] expects.
pub fn random_params(d: &Device, size: usize) -> (Params, [Param; 4]) {
    let mut params = Params::new(d, 11);
    let list = [
        params.uniform("row", &[size], -1.0, 1.0).unwrap(),
        params.uniform("square", &[size, size], -1.0, 1.0).unwrap(),
        params.uniform("scalar", &[], -1.0, 1.0).unwrap(),
        params.uniform("kernel", &[1, 1, 3, 3], -1.0, 1.0).unwrap(),
    ];
    (params, list)
}

/// Three steps of a random program: eager, or compiled with some passes.
fn train(d: &Device, size: usize, steps: &[Step], compiled: Option<Passes>) -> (String, u32) {
    let (params, list) = random_params(d, size);
    let mut stream = Stream::new(3, 3);
    let x = Tensor::from_fn(Shape::new(&[size, size]).unwrap(), |_| stream.range(-1.0, 1.0));
    let mut loss = 0.0;
    if let Some(passes) = compiled {
        let mut step = TrainStep::new(&params, Optimizer::adamw(0.01), |v| program(&list, v[0], size, steps))
            .seeded(4)
            .passes(passes);
        for _ in 0..3 {
            step.run(&[(&x).into()]).unwrap();
            loss = step.loss().unwrap();
        }
    } else {
        let s = Session::eager_seeded(d, 4);
        let mut opt = Optimizer::adamw(0.01);
        for _ in 0..3 {
            let l = program(&list, s.input(&x).unwrap(), size, steps).unwrap();
            let grads = l.backward().unwrap();
            loss = l.item().unwrap();
            opt.step(&params, grads).unwrap();
            s.reset();
        }
    }
    (params.fingerprint().unwrap(), loss.to_bits())
}

#[test]
fn random_programs_have_one_answer() {
    let mut stream = Stream::new(2024, 0);
    let gpu = dittograd_check::gpu();
    let (one, three) = (device(1), device(3));
    let number = |name: &str, or: usize| std::env::var(name).map_or(or, |n| n.parse().unwrap());
    let count = number("DITTOGRAD_TEST_PROGRAMS", 500);
    // Each kernel of a new program is compiled on the GPU, so fewer of them.
    let on_gpu = number("DITTOGRAD_TEST_GPU_PROGRAMS", 12);
    for i in 0..count {
        // Sizes with whole vectors and without.
        let size = [8, 9, 12, 5][i % 4];
        let steps = random_steps(&mut stream);
        let some = Pass::ALL.into_iter().filter(|_| stream.below(2) == 0).fold(Passes::none(), Passes::with);
        let want = train(&one, size, &steps, None);
        assert!(f32::from_bits(want.1).is_finite(), "{i} {steps:?}");
        let lowest = Passes::all().large(1);
        for (d, passes) in
            [(&three, Passes::all()), (&three, lowest), (&one, Passes::none()), (&one, some.large(1))]
        {
            let got = train(d, size, &steps, Some(passes));
            assert_eq!(want, got, "program {i} of size {size}, {passes:?}: {steps:?}");
        }
        if let Some((_, gpu)) = gpu.as_ref().filter(|_| i < on_gpu) {
            assert_eq!(want, train(gpu, size, &steps, None), "cuda eager, program {i}: {steps:?}");
            let got = train(gpu, size, &steps, Some(Passes::all()));
            assert_eq!(want, got, "cuda compiled, program {i} of size {size}: {steps:?}");
        }
    }
}

#[test]
fn a_graph_refuses_values_it_does_not_have() {
    let mut g = Graph::new();
    assert!(g.record(pointwise::Exp {}.into(), &[Val(3)]).is_err());
    assert!(g.gradients(Val(0), &[]).is_err());
    assert_eq!((g.size(), g.to_string()), (0, String::new()));
}

/// The error of compiling a program of a parameter `w` of (3, 10) and indices, if there is one.
fn compiles(indices: &[u32], f: impl for<'s> Fn(Var<'s>, Var<'s>) -> Result<Var<'s>>) -> Result<()> {
    let d = device(1);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[3, 10], -1.0, 1.0).unwrap();
    let indices = Tensor::new(&[indices.len()], indices.to_vec()).unwrap();
    let mut step =
        TrainStep::new(&params, Optimizer::sgd(0.1), |v| f(v[0].session().param(&w)?, v[0])?.mean());
    step.run(&[(&indices).into()])?;
    step.loss().map(|loss| assert!(loss.is_finite()))
}

#[test]
fn indices_that_a_program_computes_are_checked_by_their_bounds() {
    fn classes<'s>(w: Var<'s>, n: usize) -> Result<Var<'s>> {
        w.slice(1, 0, n, 1)?.cross_entropy(w.argmax(&[1], false)?)
    }
    compiles(&[0], |w, _| classes(w, 10)).unwrap();
    let error = compiles(&[0], |w, _| classes(w, 5)).unwrap_err().to_string();
    assert!(error.contains("argmax") && error.contains("below 10") && error.contains("below 5"), "{error}");
    // Through ops that move indices, and through those that draw them.
    compiles(&[0], |w, _| w.index_select(1, w.argmax(&[1], false)?.flip(&[0])?.reshape(&[3])?)).unwrap();
    assert!(compiles(&[0], |w, _| w.index_select(0, w.argmax(&[1], false)?.flip(&[0])?)).is_err());
    compiles(&[0], |w, _| w.index_select(0, w.session().randint(&[4], 3)?)).unwrap();
    assert!(compiles(&[0], |w, _| w.index_select(0, w.session().randint(&[4], 4)?)).is_err());
    compiles(&[0], |w, _| w.index_select(0, w.session().permutation(3)?)).unwrap();
    assert!(compiles(&[0], |w, _| w.index_select(0, w.session().permutation(4)?)).is_err());
    // Those of an input are looked at, wherever they have been moved.
    compiles(&[0, 2], |w, i| w.index_select(0, i.flip(&[0])?)).unwrap();
    assert!(compiles(&[0, 3], |w, i| w.index_select(0, i.flip(&[0])?)).is_err());
}

#[test]
fn eager_indices_know_their_bounds() {
    let s = Session::eager(&device(1));
    let x = s.input(&Tensor::full(Shape::new(&[3, 10]).unwrap(), 0.5f32)).unwrap();
    let bound = |v: Result<Var<'_>>| v.unwrap().buffer().unwrap().bound();
    let at = x.argmax(&[1], false).unwrap();
    assert_eq!(at.buffer().unwrap().bound(), 10);
    assert_eq!(bound(at.flip(&[0])), 10);
    assert_eq!(bound(at.reshape(&[1, 3])), 10);
    assert_eq!(bound(s.randint(&[4], 7)), 7);
    assert_eq!(bound(s.permutation(5)), 5);
}

#[test]
fn every_op_that_makes_indices_says_what_they_are_below() {
    use dittograd::ops::{AnyOp, IndexBound};
    let d = device(1);
    let mut stream = Stream::new(3, 0);
    for name in AnyOp::NAMES {
        for sample in AnyOp::samples(name) {
            let metas: Vec<Meta> = sample.ins.iter().map(|i| i.meta()).collect();
            let Ok(meta) = sample.op.shape(&metas) else { continue };
            if meta.dtype != DType::U32 || meta.shape.numel() > 3000 {
                continue;
            }
            assert_ne!(sample.op.index_bound(&metas), IndexBound::Unknown, "{name}");
            let ins: Vec<AnyBuffer> = dittograd::ops::draw(&sample.ins, &mut stream)
                .unwrap()
                .iter()
                .map(|i| match i {
                    AnyTensor::Num(t) => AnyBuffer::upload(&d, t).unwrap(),
                    AnyTensor::Idx(t) => AnyBuffer::upload_indices(&d, t).unwrap(),
                })
                .collect();
            let value = dittograd::ops::apply(&d, &sample.op, &ins.iter().collect::<Vec<_>>()).unwrap();
            let largest = value.to_indices().unwrap().data().iter().copied().max();
            assert!(largest.is_none_or(|l| l < value.bound()), "{name}: {largest:?} and {}", value.bound());
        }
    }
}
