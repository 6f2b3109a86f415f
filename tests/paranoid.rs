//! Faults of the hardware: `Trainer::paranoid` finds and repairs what `Trainer::verify` finds afterwards.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use dittograd::data::{self, Batches};
use dittograd::device::cuda::fake::Fake;
use dittograd::error::ErrorKind;
use dittograd::nn::BatchNorm;
use dittograd::numerics::rng::Stream;
use dittograd::prelude::*;
use dittograd::train::{Event, Fault, METRICS, RECORD, Record, Verified};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

const STEPS: u64 = 12;
/// More values than a step computes.
const MANY: u64 = 1 << 40;

/// When a bit flips: in which step, after how many values in it, and which bit of the next one.
#[derive(Clone, Copy, Debug)]
struct Flip {
    step: u64,
    after: u64,
    bit: u64,
}

/// How a run is computed.
#[derive(Clone, Copy)]
struct How {
    eager: bool,
    shards: usize,
    paranoid: Option<u64>,
}

const COMPILED: How = How { eager: false, shards: 1, paranoid: None };

/// A small model with all that a state has: dropout, running averages, groups, norm clipping, a schedule.
fn model(device: &Device) -> (Params, Mlp, BatchNorm) {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[6, 9, 3]).unwrap();
    let norm = BatchNorm::new(&mut params, "norm", 6).unwrap();
    (params, net, norm)
}

fn trainer<'a>((params, net, norm): &'a (Params, Mlp, BatchNorm), how: How) -> Trainer<'a> {
    let x = Tensor::from_fn(Shape::new(&[48, 6]).unwrap(), |i| ((i * i + 3 * i) % 17) as f32 / 8.0 - 1.0);
    let y = Tensor::new(&[48], (0..48u32).map(|i| i % 3).collect()).unwrap();
    let data = data::Dataset::new("numbers", x, y, Some(3)).unwrap();
    let optimizer =
        Optimizer::adamw(0.05).schedule(Schedule::cosine(STEPS, 1e-4).warmup(3, 0.1)).clip_norm(1.0);
    let batches = Batches::new(data, 12, 5).unwrap();
    let trainer = Trainer::new(params, optimizer, batches, |v| {
        net.forward(norm.forward(v[0])?.dropout(0.1)?)?.cross_entropy(v[1])
    });
    let trainer = trainer.steps(STEPS).seed(9).shards(how.shards).record_every(1);
    let trainer = if how.eager { trainer.eager() } else { trainer };
    match how.paranoid {
        Some(every) => trainer.paranoid(every),
        None => trainer,
    }
}

/// What became of a run.
struct Ran {
    fingerprint: String,
    root: String,
    faults: Vec<Fault>,
    /// For each step from the second, the values that kernels computed.
    values: Vec<u64>,
}

/// A run in a folder.
fn run(device: &Device, folder: &Path, how: How, flip: Option<Flip>) -> Result<Ran> {
    let parts = model(device);
    let (faults, values) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let result = trainer(&parts, how)
        .folder(RunFolder::open(folder)?)
        .observe(|event| {
            match event {
                Event::Step { step } => {
                    if let (None, Some(left)) = (flip, device.flips_after()) {
                        values.borrow_mut().push(MANY - left);
                    }
                    match flip {
                        Some(flip) if flip.step == step + 1 => device.flip_bit(flip.after, flip.bit),
                        Some(_) => {}
                        None => device.flip_bit(MANY, 0),
                    }
                }
                Event::Fault { fault } => faults.borrow_mut().push((*fault).clone()),
                _ => {}
            }
            Ok(())
        })
        .run();
    let outcome = result?;
    assert_eq!(outcome.faults as usize, faults.borrow().len());
    let record = Record::read(folder.join(RECORD))?;
    let texts: Vec<(u64, String)> = faults.borrow().iter().map(|f| (f.step, f.to_string())).collect();
    assert_eq!(record.faults(), texts);
    let (faults, values) = (faults.into_inner(), values.into_inner());
    Ok(Ran { fingerprint: parts.0.fingerprint()?, root: record.root(), faults, values })
}

fn verified(device: &Device, folder: &Path, how: How) -> Verified {
    let record = Record::read(folder.join(RECORD)).unwrap();
    let parts = model(device);
    trainer(&parts, how).verify(&record, record.last(), &BTreeMap::new()).unwrap()
}

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn fake() -> Device {
    Device::from_cuda(Fake::computing(1, 64 << 20).open().unwrap())
}

/// `count` faults that have an effect: each is found in the step that it strikes, whichever way it strikes, and the run ends as if nothing
/// had been. Without the check, `verify` names this step as the first that differs.
fn faults_are_found(open: fn() -> Device, how: How, count: usize, seed: u64) {
    let home = tempfile::tempdir().unwrap();
    let mut runs = 0;
    let mut folder = || {
        runs += 1;
        home.path().join(runs.to_string())
    };
    let checked = How { paranoid: Some(1), ..how };
    let lone = run(&open(), &folder(), how, None).unwrap();
    let twice = run(&open(), &folder(), checked, None).unwrap();
    assert_eq!((&twice.root, &twice.fingerprint), (&lone.root, &lone.fingerprint));
    assert!(lone.faults.is_empty() && twice.faults.is_empty());
    let [values, both] = [&lone, &twice].map(|r| *r.values.iter().min().unwrap());
    assert!(values > 20 && both > values, "{values} {both}");
    let mut stream = Stream::new(seed, 0);
    let (mut found, mut without_effect, mut not_finite) = (0, 0, 0);
    let mut tensors = BTreeMap::<String, usize>::new();
    while found < count {
        let step = 2 + stream.below(STEPS as usize - 1) as u64;
        let (after, bit) = (stream.below(values as usize) as u64, stream.below(1 << 20) as u64);
        let flip = Flip { step, after, bit };
        let (alone, device) = (folder(), open());
        let ran = run(&device, &alone, how, Some(flip));
        assert_eq!(device.flips_after(), None, "{flip:?}");
        // A bit may be rounded away, or be of a value that is multiplied by zero.
        let has_effect = ran.as_ref().map_or(true, |ran| ran.root != lone.root);
        match ran {
            Ok(_) => {
                let difference = verified(&cpu(), &alone, How { eager: !how.eager, ..how }).difference;
                assert_eq!(difference.map(|d| d.step), has_effect.then_some(step), "{flip:?}");
                found += usize::from(has_effect);
                without_effect += usize::from(!has_effect);
            }
            Err(error) => {
                // Such a run ends by itself.
                assert!(matches!(error.kind(), ErrorKind::NotFinite { .. }), "{flip:?}: {error}");
                not_finite += 1;
            }
        }
        let ran = run(&open(), &folder(), checked, Some(flip)).unwrap();
        assert_eq!((&ran.root, &ran.fingerprint), (&lone.root, &lone.fingerprint), "{flip:?}");
        let steps: Vec<u64> = ran.faults.iter().map(|f| f.step).collect();
        assert_eq!(steps, if has_effect { vec![step] } else { vec![] }, "{flip:?}");
        for fault in &ran.faults {
            *tensors.entry(fault.tensor.clone().unwrap_or_default()).or_default() += 1;
        }
        // In the other way, and in what comes with the step.
        let later = Flip { after: values + after % (both - values), ..flip };
        let ran = run(&open(), &folder(), checked, Some(later)).unwrap();
        assert_eq!((&ran.root, &ran.fingerprint), (&lone.root, &lone.fingerprint), "{later:?}");
        assert!(ran.faults.iter().all(|f| f.step == step), "{later:?}");
    }
    println!(
        "{count} faults found, and {not_finite} that make a loss infinite; {without_effect} were without effect; tensors that differ first: {tensors:?}"
    );
    assert!(tensors.len() > 3, "{tensors:?}");
}

#[test]
fn a_hundred_faults_are_found_in_compiled_steps() {
    faults_are_found(cpu, COMPILED, 100, 1);
}

#[test]
fn a_hundred_faults_are_found_in_eager_steps() {
    faults_are_found(cpu, How { eager: true, ..COMPILED }, 100, 2);
}

#[test]
fn a_hundred_faults_are_found_on_the_fake_driver() {
    faults_are_found(fake, COMPILED, 100, 3);
}

#[test]
fn faults_are_found_in_shards() {
    faults_are_found(cpu, How { shards: 3, ..COMPILED }, 20, 4);
}

/// Memory that changes between two steps gets back what was there.
#[test]
fn memory_that_changes_between_steps_is_found() {
    for open in [cpu, fake] {
        let home = tempfile::tempdir().unwrap();
        let lone = run(&open(), &home.path().join("lone"), COMPILED, None).unwrap();
        let device = open();
        let parts = model(&device);
        let faults = RefCell::new(Vec::new());
        let flip = |name: &str| {
            let value = parts.0.iter().find(|p| p.name() == name).unwrap().buffer();
            let mut words = value.buffer().download().unwrap();
            words[1] = f32::from_bits(words[1].to_bits() ^ 1 << 30);
            value.buffer().write_words("test", &words).unwrap();
        };
        trainer(&parts, How { paranoid: Some(1), ..COMPILED })
            .observe(|event| {
                match event {
                    Event::Step { step: 4 } => flip("net.0.weight"),
                    Event::Step { step: 7 } => flip("norm.running_mean"),
                    Event::Fault { fault } => faults.borrow_mut().push((*fault).clone()),
                    _ => {}
                }
                Ok(())
            })
            .run()
            .unwrap();
        assert_eq!(parts.0.fingerprint().unwrap(), lone.fingerprint);
        let faults = faults.into_inner();
        let names: Vec<_> = faults.iter().map(|f| (f.step, f.tensor.as_deref().unwrap())).collect();
        assert_eq!(names, [(5, "net.0.weight"), (8, "norm.running_mean")]);
        assert!(faults[0].what.starts_with("element [0, 1] of tensor"), "{}", faults[0]);
        assert!(faults[0].to_string().ends_with(" in memory now"), "{}", faults[0]);
    }
}

/// Hardware that is broken for good ends the run, in a state from which it can go on elsewhere.
#[test]
fn a_run_ends_after_too_many_faults() {
    let home = tempfile::tempdir().unwrap();
    let how = How { paranoid: Some(1), ..COMPILED };
    let lone = run(&cpu(), &home.path().join("lone"), COMPILED, None).unwrap();
    // The exponent of an element of the updated parameters.
    let last = lone.values[0] - 1;
    for (name, is_stuck, want) in [("stuck", true, 3), ("often", false, 10)] {
        let device = cpu();
        let parts = model(&device);
        let folder = home.path().join(name);
        let mut faults = 0;
        let result = trainer(&parts, how)
            .folder(RunFolder::open(&folder).unwrap())
            .save_every(1)
            .observe(|event| {
                match event {
                    Event::Step { step: 1 } => device.flip_bit(last, 30),
                    Event::Step { .. } if !is_stuck => device.flip_bit(last, 30),
                    Event::Fault { .. } => {
                        faults += 1;
                        if is_stuck {
                            device.flip_bit(last, 30);
                        }
                    }
                    _ => {}
                }
                Ok(())
            })
            .run();
        let error = result.expect_err(name);
        assert!(matches!(error.kind(), ErrorKind::Hardware { .. }), "{error}");
        assert_eq!(faults, want, "{error}");
        println!("{error}");
        let lines = std::fs::read_to_string(folder.join(METRICS)).unwrap();
        assert_eq!(lines.lines().filter(|l| l.contains("\"fault\"")).count(), want);
        let parts = model(&cpu());
        trainer(&parts, COMPILED).folder(RunFolder::open(&folder).unwrap()).run().unwrap();
        assert_eq!(parts.0.fingerprint().unwrap(), lone.fingerprint);
        let record = Record::read(folder.join(RECORD)).unwrap();
        // Those before the state from which the run goes on.
        assert_eq!(
            (record.root(), record.faults().len()),
            (lone.root.clone(), want - if is_stuck { 3 } else { 1 })
        );
    }
}

#[test]
fn only_some_steps_are_checked() {
    let home = tempfile::tempdir().unwrap();
    let lone = run(&cpu(), &home.path().join("lone"), COMPILED, None).unwrap();
    let how = How { paranoid: Some(5), ..COMPILED };
    let last = lone.values[0] - 1;
    for (step, is_found) in [(7, false), (10, true)] {
        let folder = home.path().join(step.to_string());
        let ran = run(&cpu(), &folder, how, Some(Flip { step, after: last, bit: 30 })).unwrap();
        assert_eq!(ran.faults.len(), usize::from(is_found));
        assert_eq!(ran.root == lone.root, is_found);
        let difference = verified(&cpu(), &folder, COMPILED).difference;
        assert_eq!(difference.map(|d| d.step), (!is_found).then_some(step));
    }
}

#[test]
fn refused() {
    let parts = model(&cpu());
    let zero = trainer(&parts, How { paranoid: Some(0), ..COMPILED }).run().unwrap_err();
    assert!(zero.to_string().contains("paranoid: got 0, use 1 or more"), "{zero}");
}
