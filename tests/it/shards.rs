//! A step in shards has one answer, whatever number of processes shares them.

use crate::support::{fractions, ranks};
use dittograd::device::Simd;
use dittograd::device::cuda::Cuda;
use dittograd::device::cuda::fake::Fake;
use dittograd::error::ErrorKind;
use dittograd::io::Checkpoint;
use dittograd::nn::{BatchNorm, Dropout, Linear};
use dittograd::optim::Rule;
use dittograd::parallel::{Traffic, World};
use dittograd::prelude::*;
use dittograd::train::CHECKPOINT;
use std::path::Path;

/// A net with everything that shards must keep apart: batch norm, random draws, sizes that are no multiples of anything.
struct Net {
    wide: Linear,
    norm: BatchNorm,
    drop: Dropout,
    last: Linear,
}

impl Net {
    fn new(params: &mut Params) -> Result<Net> {
        Ok(Net {
            wide: Linear::new(params, "wide", 5, 700)?,
            norm: BatchNorm::new(params, "norm", 7)?,
            drop: Dropout::new(0.25)?,
            last: Linear::new(params, "last", 700, 3)?,
        })
    }

    fn loss<'s>(&self, x: Var<'s>, y: Var<'s>) -> Result<Var<'s>> {
        let rows = x.shape()?.dims()[0];
        let h = self.wide.forward(x)?.reshape(&[rows, 7, 10, 10])?;
        let h = self.norm.forward(h)?.relu()?.reshape(&[rows, 700])?;
        self.last.forward(self.drop.forward(h)?)?.cross_entropy(y)
    }
}

const ROWS: usize = 24;

fn optimizers() -> Vec<fn() -> Optimizer> {
    vec![
        || Optimizer::adamw(1e-2).clip_norm(0.1),
        || Optimizer::new(Rule::Muon(Default::default()), 1e-2).clip_norm(0.5),
        || Optimizer::sgd(0.1).clip_value(0.01),
    ]
}

/// Losses of a few steps, a metric, and the bits of parameters and state afterwards.
type Outcome = (Vec<u32>, Vec<u32>, String, Vec<(String, Vec<u32>)>);

fn bits(t: &Tensor<f32>) -> Vec<u32> {
    t.data().iter().map(|x| x.to_bits()).collect()
}

fn batch(step: usize) -> (Tensor<f32>, Tensor<u32>) {
    let labels = (0..ROWS).map(|i| ((i * 7 + step) % 3) as u32).collect();
    (fractions(&[ROWS, 5], 11 + step), Tensor::new(&[ROWS], labels).unwrap())
}

fn run(device: &Device, optimizer: Optimizer, shards: usize, world: Option<&World>) -> Result<Outcome> {
    let mut params = Params::new(device, 3);
    let net = Net::new(&mut params)?;
    let mut step = TrainStep::new(&params, optimizer, move |v| net.loss(v[0], v[1]))
        .seeded(5)
        .metrics(|v| Ok(vec![v[0].mean()?, v[0].mean_axes(&[0])?]))
        .shards(shards);
    if let Some(world) = world {
        step = step.world(world);
    }
    let (mut losses, mut metrics) = (Vec::new(), Vec::new());
    for i in 0..3 {
        let (x, y) = batch(i);
        match i {
            2 => step.again()?,
            _ => step.run(&[(&x).into(), (&y).into()])?,
        }
        losses.push(step.loss()?.to_bits());
        metrics.extend(bits(&step.metric(0)?));
        metrics.extend(bits(&step.metric(1)?));
    }
    let state = step.state::<f32>()?;
    let named = |(name, p): (&String, &dittograd::optim::ParamState)| -> Vec<(String, Vec<u32>)> {
        p.tensors.iter().map(|(t, v)| (format!("{name}.{t} {}", p.step), bits(v))).collect()
    };
    let state = state.params.iter().flat_map(named).collect();
    Ok((losses, metrics, params.fingerprint()?, state))
}

#[test]
fn any_number_of_processes_gives_the_bits_of_one() {
    for optimizer in optimizers() {
        for shards in [1, 2, 3, 8] {
            let device = Device::cpu_with(2, Simd::best()).unwrap();
            let alone = run(&device, optimizer(), shards, None).unwrap();
            for n in (1..=shards).filter(|n| [1, 2, 3, 5, 8].contains(n)) {
                let levels = Simd::all_available();
                let all = ranks(n, |world| {
                    let device = Device::cpu_with(1, levels[world.rank() % levels.len()])?;
                    run(&device, optimizer(), shards, Some(&world))
                });
                for (rank, outcome) in all.into_iter().enumerate() {
                    let outcome = outcome.unwrap();
                    assert_eq!(outcome.0, alone.0, "losses of {shards} shards on rank {rank} of {n}");
                    assert_eq!(outcome.1, alone.1, "metrics of {shards} shards on rank {rank} of {n}");
                    assert_eq!(outcome.2, alone.2, "{shards} shards on rank {rank} of {n}");
                    assert!(rank > 0 || outcome.3 == alone.3, "state of {shards} shards on {n} ranks");
                }
            }
        }
    }
}

/// More sums than are added in one kernel.
#[test]
fn many_ranks_give_the_bits_of_one() {
    let alone = run(&Device::cpu().unwrap(), Optimizer::sgd(0.1), 24, None).unwrap();
    for outcome in
        ranks(19, |world| run(&Device::cpu_with(1, Simd::best())?, Optimizer::sgd(0.1), 24, Some(&world)))
    {
        assert_eq!(outcome.unwrap().2, alone.2);
    }
}

/// Adds by the definition: the left half of a tree has the largest power of two.
fn tree(g: &[Vec<f32>]) -> Vec<f32> {
    if g.len() == 1 {
        return g[0].clone();
    }
    let left = 1 << (g.len() - 1).ilog2();
    tree(&g[..left]).iter().zip(tree(&g[left..])).map(|(a, b)| a + b).collect()
}

#[test]
fn gradients_of_shards_are_added_in_the_tree() {
    let device = Device::cpu().unwrap();
    for shards in [2, 3, 4, 6, 12] {
        let mut params = Params::new(&device, 3);
        let net = Mlp::new(&mut params, &[5, 33, 3]).unwrap();
        let (x, y) = batch(0);
        let rows = ROWS / shards;
        let mut want: Vec<Vec<f32>> = Vec::new();
        let each: Vec<_> = (0..shards)
            .map(|i| {
                let s = Session::eager(&device);
                let x = s.input(&x).unwrap().narrow(0, i * rows, rows).unwrap();
                let y = s.labels(&y).unwrap().narrow(0, i * rows, rows).unwrap();
                let loss = net.forward(x).unwrap().cross_entropy(y).unwrap();
                loss.scale(1.0 / shards as f64).unwrap().backward().unwrap()
            })
            .collect();
        for p in params.iter() {
            let g: Vec<Vec<f32>> = each
                .iter()
                .map(|g| g.param(p).unwrap().to_tensor::<f32>().unwrap().data().to_vec())
                .collect();
            let p = p.get::<f32>().unwrap();
            want.push(p.data().iter().zip(tree(&g)).map(|(p, g)| (-0.5f32).mul_add(g, *p)).collect());
        }
        let mut step =
            TrainStep::new(&params, Optimizer::sgd(0.5), |v| net.forward(v[0])?.cross_entropy(v[1]))
                .shards(shards);
        step.run(&[(&x).into(), (&y).into()]).unwrap();
        for (p, want) in params.iter().zip(want) {
            assert_eq!(p.get::<f32>().unwrap().data(), want, "{shards} shards, {}", p.name());
        }
    }
}

/// A rank's part of a run in a folder, which ends after `stop` steps.
fn train(
    folder: &Path,
    shards: usize,
    eager: bool,
    stop: Option<u64>,
    world: Option<&World>,
) -> Result<(String, Option<f32>)> {
    let device = Device::cpu_with(1, Simd::best())?;
    let rows = 60;
    let data = data::spirals(3, rows, 3)?;
    let (train, test) = data::split(&data, 0.8, 3)?;
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 40, 3])?;
    let norm = BatchNorm::new(&mut params, "norm", 2)?;
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = flag.clone();
    let rank = world.map_or(0, World::rank);
    let folder = match world {
        Some(world) => RunFolder::open_in(world, folder)?,
        None => RunFolder::open(folder)?,
    };
    let evaluation = Evaluation::classes(test, |x| net.forward(x));
    let mut trainer = Trainer::new(
        &params,
        Optimizer::adamw(0.02).clip_norm(0.3),
        data::Batches::new(train, 12, 5)?,
        |v| {
            let rows = v[0].shape()?.dims()[0];
            let x = v[0].dropout(0.1)?.reshape(&[rows, 2, 1, 1])?;
            let x = norm.forward(x)?.reshape(&[rows, 2])?;
            net.forward(x)?.cross_entropy(v[1])
        },
    )
    .steps(20)
    .seed(9)
    .shards(shards)
    .evaluate(6, evaluation)
    .verify_every(4)
    .folder(folder)
    .stop_when(flag)
    .observe(move |event| {
        if let dittograd::train::Event::Step { step } = event
            && Some(*step) == stop
            && rank == 0
        {
            asked.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(())
    });
    if eager {
        trainer = trainer.eager();
    }
    if let Some(world) = world {
        trainer = trainer.world(world);
    }
    let outcome = trainer.run()?;
    Ok((params.fingerprint()?, outcome.loss))
}

#[test]
fn a_run_moves_between_numbers_of_processes() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::read(home.path().join(name).join(CHECKPOINT)).unwrap();
    let whole = train(&home.path().join("whole"), 4, false, None, None).unwrap();
    let eager = train(&home.path().join("eager"), 4, true, None, None).unwrap();
    assert_eq!(whole, eager);
    assert_eq!(file("whole"), file("eager"));
    for (name, eager, parts) in [
        ("a", false, vec![(4, Some(7)), (2, Some(11)), (1, Some(12)), (3, None)]),
        ("b", true, vec![(3, Some(3)), (4, None)]),
        ("c", false, vec![(4, None)]),
    ] {
        for (n, stop) in parts {
            let path = home.path().join(name);
            for outcome in ranks(n, |world| train(&path, 4, eager, stop, Some(&world))) {
                let outcome = outcome.unwrap();
                assert!(stop.is_some() || outcome == whole, "{name} on {n}");
            }
        }
        assert_eq!(file(name), file("whole"), "{name}");
    }
    // Other shards are another program.
    let path = home.path().join("whole");
    let error = train(&path, 2, false, None, None).unwrap_err().to_string();
    assert!(error.contains("number of shards was 4 in this run, and is 2 now"), "{error}");
    assert!(Checkpoint::load(path.join(CHECKPOINT)).is_ok());
}

#[test]
fn ranks_that_would_do_something_else_are_refused() {
    let different = |change: fn(usize, &mut usize, &mut usize, &mut f32)| {
        ranks(3, |world| {
            let (mut shards, mut hidden, mut scale) = (6, 9, 0.0);
            change(world.rank(), &mut shards, &mut hidden, &mut scale);
            let mut params = Params::new(&Device::cpu_with(1, Simd::best())?, 3);
            let net = Mlp::new(&mut params, &[5, hidden, 3])?;
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), move |v| {
                net.forward(v[0])?.cross_entropy(v[1])?.add_scalar(f64::from(scale))
            })
            .shards(shards)
            .world(&world);
            let (x, y) = batch(0);
            step.run(&[(&x).into(), (&y).into()])
        })
    };
    let cases: [fn(usize, &mut usize, &mut usize, &mut f32); 3] = [
        |rank, shards, _, _| *shards -= 3 * usize::from(rank == 1),
        |rank, _, hidden, _| *hidden += usize::from(rank == 1),
        |rank, _, _, scale| *scale += if rank == 1 { 1.0 } else { 0.0 },
    ];
    for case in cases {
        for result in different(case) {
            let error = result.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Peer { rank: 1, .. }), "{error}");
            assert!(error.to_string().contains("another program"), "{error}");
        }
    }
    let error = ranks(3, |world| {
        let params = Params::new(&Device::cpu()?, 3);
        TrainStep::new(&params, Optimizer::sgd(0.1), |v| v[0].mean()).shards(2).world(&world).run(&[])
    });
    assert!(error[2].as_ref().unwrap_err().to_string().contains("3 processes cannot share 2"), "{error:?}");
}

#[test]
fn a_rank_whose_bits_differ_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    let all = ranks(3, |world| {
        let device = Device::cpu_with(1, Simd::best())?;
        let data = data::spirals(3, 60, 3)?;
        let mut params = Params::new(&device, 7);
        let net = Mlp::new(&mut params, &[2, 9, 3])?;
        let weight = params.get("net.0.weight").unwrap().clone();
        let rank = world.rank();
        Trainer::new(&params, Optimizer::sgd(0.1), data::Batches::new(data, 12, 5)?, |v| {
            net.forward(v[0])?.cross_entropy(v[1])
        })
        .steps(20)
        .shards(3)
        .world(&world)
        .verify_every(4)
        .folder(RunFolder::open_in(&world, &path)?)
        .observe(move |event| {
            if matches!(event, dittograd::train::Event::Step { step: 8 }) && rank == 2 {
                let mut value = weight.get::<f32>()?;
                value.data_mut()[0] = f32::from_bits(value.data()[0].to_bits() ^ 1);
                weight.set(&value)?;
            }
            Ok(())
        })
        .run()
    });
    for result in all {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Peer { rank: 2, .. }), "{error}");
        assert!(error.to_string().contains("another state after step 8"), "{error}");
    }
    assert_eq!(Checkpoint::load(path.join(CHECKPOINT)).unwrap().step, 0);
}

/// What each rank sends in a step: as much as in a ring all-reduce, `2 (n - 1) / n` of the parameters.
#[test]
fn traffic_is_that_of_a_ring_all_reduce() {
    for (n, shards) in [(2, 2), (2, 8), (4, 4), (4, 16)] {
        let all = ranks(n, |world| -> Result<(Traffic, usize, usize)> {
            let mut params = Params::new(&Device::cpu_with(1, Simd::best())?, 3);
            let net = Mlp::new(&mut params, &[64, 512, 512, 64])?;
            let mut step =
                TrainStep::new(&params, Optimizer::adamw(0.1), move |v| net.forward(v[0])?.mse(v[1]))
                    .shards(shards)
                    .world(&world);
            let (x, y) = (fractions(&[16, 64], 1), fractions(&[16, 64], 2));
            step.run(&[(&x).into(), (&y).into()])?;
            let before = world.traffic();
            step.again()?;
            let after = world.traffic();
            let sent = Traffic { sent: after.sent - before.sent, ..after };
            Ok((sent, params.numel(), step.optimizer().state_bytes()))
        });
        for outcome in all {
            let (traffic, numel, state) = outcome.unwrap();
            let ring = 2.0 * (n - 1) as f64 / n as f64 * numel as f64 * 4.0;
            let ratio = traffic.sent as f64 / ring;
            assert!((0.99..1.05).contains(&ratio), "{n} ranks, {shards} shards: {ratio} of a ring");
            let part = state as f64 / (numel as f64 * 8.0 / n as f64);
            assert!((0.9..1.1).contains(&part), "{n} ranks: {part} of 1/{n} of the state");
        }
    }
}

/// An input without axes goes to every shard.
#[test]
fn a_number_is_for_all_shards() {
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 3);
    let w = params.ones("w", &[2]).unwrap();
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.5), move |v| {
        v[0].mul(v[0].session().param(&w)?)?.mul(v[1])?.mean()
    })
    .shards(2);
    let x = Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
    step.run(&[(&x).into(), (&Tensor::scalar(4.0f32)).into()]).unwrap();
    assert_eq!(step.loss().unwrap(), 10.0);
    assert_eq!(params.get("w").unwrap().get::<f32>().unwrap().data(), [1.0 - 2.0, 1.0 - 3.0]);
}

#[test]
fn values_that_shards_would_wait_for_are_refused() {
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 3);
    let (w, seen) = (params.ones("w", &[2]).unwrap(), params.zeros("seen", &[]).unwrap());
    seen.set_trainable(false);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), move |v| {
        let s = v[0].session();
        let count = s.param(&seen)?.add_scalar(1.0)?;
        s.assign(&seen, count)?;
        v[0].mul(s.param(&w)?)?.mul(s.param(&seen)?)?.mean()
    })
    .shards(2);
    let error = step.run(&[(&Tensor::full(Shape::new(&[4, 2]).unwrap(), 1.0f32)).into()]).unwrap_err();
    assert!(error.to_string().contains("assigns to parameter seen and its results depend on it"), "{error}");
}

/// A GPU where there is one, and the fake one otherwise.
fn gpu() -> Device {
    match Cuda::count() {
        Ok(n) if n > 0 => Device::cuda(0).unwrap(),
        _ => Device::from_cuda(Fake::computing(1, 1 << 28).open_at(0).unwrap()),
    }
}

#[test]
fn gpus_and_cpus_share_a_step() {
    for optimizer in optimizers() {
        let alone = run(&Device::cpu().unwrap(), optimizer(), 4, None).unwrap();
        assert_eq!(run(&gpu(), optimizer(), 4, None).unwrap(), alone);
        for n in [2, 3, 4] {
            let all = ranks(n, |world| {
                let device = if world.rank() % 2 == 0 { gpu() } else { Device::cpu_with(1, Simd::best())? };
                run(&device, optimizer(), 4, Some(&world))
            });
            for (rank, outcome) in all.into_iter().enumerate() {
                let outcome = outcome.unwrap();
                assert_eq!(
                    (&outcome.0, &outcome.1, &outcome.2),
                    (&alone.0, &alone.1, &alone.2),
                    "{rank} of {n}"
                );
                assert!(rank > 0 || outcome.3 == alone.3, "state on {n} ranks");
            }
        }
    }
}
