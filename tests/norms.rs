//! Norms of gradients: the same however a run is computed, and no bit of it depends on them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use dittograd::data::{self, Batches};
use dittograd::device::cuda::fake::Fake;
use dittograd::parallel::World;
use dittograd::prelude::*;
use dittograd::train::Event;

const STEPS: u64 = 6;

/// How a run is computed.
#[derive(Clone, Copy)]
struct How {
    eager: bool,
    shards: usize,
    norms: bool,
    optimizer: fn() -> Optimizer,
}

fn clipped() -> Optimizer {
    Optimizer::adamw(0.05).clip_norm(0.1)
}

/// Norms by step, and the fingerprint.
type Ran = (Vec<Vec<(String, f32)>>, String);

fn run(device: &Device, world: Option<&World>, how: How) -> Ran {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[2, 40, 33, 3]).unwrap();
    params.get("net.2.bias").unwrap().set_trainable(false);
    let batches = Batches::new(data::spirals(3, 60, 3).unwrap(), 12, 5).unwrap();
    let mut all = Vec::new();
    let mut trainer = Trainer::new(&params, (how.optimizer)(), batches, |v| {
        net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
    })
    .steps(STEPS)
    .seed(9)
    .shards(how.shards)
    .observe(|event| {
        if let Event::GradientNorms { norms, .. } = event {
            all.push(norms.to_vec());
        }
        Ok(())
    });
    if how.norms {
        trainer = trainer.gradient_norms();
    }
    if how.eager {
        trainer = trainer.eager();
    }
    if let Some(world) = world {
        trainer = trainer.world(world);
    }
    trainer.run().unwrap();
    (all, params.fingerprint().unwrap())
}

/// The bits, so that they are compared.
fn bits(norms: &[Vec<(String, f32)>]) -> Vec<Vec<(String, u32)>> {
    norms.iter().map(|step| step.iter().map(|(name, x)| (name.clone(), x.to_bits())).collect()).collect()
}

fn fake() -> Device {
    Device::from_cuda(Fake::computing(1, 64 << 20).open().unwrap())
}

#[test]
fn one_answer_however_they_are_computed() {
    for shards in [1, 4] {
        let how = How { eager: false, shards, norms: true, optimizer: clipped };
        let want = run(&Device::cpu().unwrap(), None, how);
        assert_eq!(want.0.len(), STEPS as usize);
        let names: Vec<&str> = want.0[0].iter().map(|n| n.0.as_str()).collect();
        assert_eq!(names, ["net.0.weight", "net.0.bias", "net.2.weight", "net.4.weight", "net.4.bias"]);
        for (name, device, how) in [
            ("eager", Device::cpu().unwrap(), How { eager: true, ..how }),
            ("fake", fake(), how),
            ("eager on the fake", fake(), How { eager: true, ..how }),
        ] {
            let ran = run(&device, None, how);
            assert_eq!((bits(&ran.0), ran.1), (bits(&want.0), want.1.clone()), "{name}, {shards} shards");
        }
        let without = run(&Device::cpu().unwrap(), None, How { norms: false, ..how });
        assert_eq!((without.0.len(), &without.1), (0, &want.1));
        for (ranks, eager) in [(2, false), (3, true)] {
            if ranks > shards {
                continue;
            }
            let worlds = World::threads(ranks).unwrap();
            let how = How { eager, ..how };
            let start =
                |world: World| std::thread::spawn(move || run(&Device::cpu().unwrap(), Some(&world), how));
            for ran in worlds.into_iter().map(start).collect::<Vec<_>>() {
                let ran = ran.join().unwrap();
                assert_eq!((bits(&ran.0), ran.1), (bits(&want.0), want.1.clone()), "{ranks} processes");
            }
        }
    }
}

/// A step of plain descent moves a parameter by the learning rate times its gradient.
#[test]
fn a_step_is_as_long_as_the_norm_says() {
    const LR: f64 = 1.0 / 64.0;
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 40, 33, 3]).unwrap();
    let data = data::spirals(3, 60, 3).unwrap();
    let values = || params.iter().map(|p| p.get::<f64>().unwrap()).collect::<Vec<_>>();
    let step = || TrainStep::new(&params, Optimizer::sgd(LR), |v| net.forward(v[0])?.cross_entropy(v[1]));
    let error = step().gradient_norms().unwrap_err();
    assert!(error.to_string().contains("with_gradient_norms"), "{error}");
    let mut step = step().with_gradient_norms();
    for _ in 0..3 {
        let before = values();
        step.run(&[data.x().into(), data.y().into()]).unwrap();
        let norms = step.gradient_norms().unwrap();
        for ((p, (name, norm)), (a, b)) in params.iter().zip(&norms).zip(before.iter().zip(values())) {
            assert_eq!(p.name(), name);
            let length = a.data().iter().zip(b.data()).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / LR;
            assert!((length - f64::from(*norm)).abs() < 1e-4 * length, "{name}: {length} {norm}");
        }
    }
}
