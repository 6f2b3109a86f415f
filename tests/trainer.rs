//! A run that is stopped anywhere ends where it would have ended.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use dittograd::data::{self, Batches, Dataset};
use dittograd::device::cuda::fake::Fake;
use dittograd::io::Checkpoint;
use dittograd::nn;
use dittograd::prelude::*;
use dittograd::train::{
    BEST, CHECKPOINT, End, Event, METRICS, OF_THE_MACHINE, Outcome, RECORD, Record, Verified, kept,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const STEPS: u64 = 23;
const EVERY: u64 = 4;

/// What a run is told beside its model and data.
#[derive(Clone, Copy)]
struct Settings {
    eager: bool,
    patience: Option<u64>,
    shards: usize,
    save_every: Option<u64>,
    keep: u64,
}

const PLAIN: Settings = Settings { eager: false, patience: None, shards: 1, save_every: None, keep: 0 };

/// What a finished run left behind: files by name, measurements and record.
type Left = (BTreeMap<String, Vec<u8>>, Vec<serde_json::Value>, Vec<String>);

fn parts() -> (Dataset, Dataset) {
    data::split(&data::spirals(3, 60, 3).unwrap(), 0.8, 3).unwrap()
}

fn optimizer() -> Optimizer {
    Optimizer::adamw(0.05).schedule(Schedule::cosine(STEPS, 1e-4).warmup(3, 0.1)).clip_norm(1.0)
}

/// Mean loss of each row; `better` says how runs are ranked.
fn evaluation<'a>(net: &'a Mlp, test: Dataset, merit: impl Fn(f64) -> f64 + 'a) -> Evaluation<'a> {
    let rows = LabelLoss { reduction: Reduction::None, ..LabelLoss::default() };
    Evaluation::new(
        test,
        move |v| Ok(vec![net.forward(v[0])?.cross_entropy_loss(v[1], rows)?]),
        move |means| Scores { merit: merit(means[0]), values: vec![("loss".into(), means[0])] },
    )
}

/// A new process's share of a run in a folder: it is asked to stop once `stop` steps are done.
fn part(folder: &Path, settings: Settings, stop: Option<u64>) -> Result<(Outcome, String)> {
    let (train, test) = parts();
    let mut params = Params::new(&Device::cpu().unwrap(), 7);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let flag = Arc::new(AtomicBool::new(stop == Some(0)));
    let asked = flag.clone();
    let mut trainer = Trainer::new(&params, optimizer(), Batches::new(train, 12, 5)?, |v| {
        net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
    })
    .steps(STEPS)
    .seed(9)
    .shards(settings.shards)
    .keep(settings.keep)
    // The loss in steps, so that an evaluation is often no better than the one before.
    .evaluate(EVERY, evaluation(&net, test, |loss| -(loss * 8.0).round()))
    .folder(RunFolder::open(folder)?)
    .stop_when(flag)
    .observe(move |event| {
        if let Event::Step { step } = event
            && Some(*step) == stop
        {
            asked.store(true, Ordering::SeqCst);
        }
        Ok(())
    });
    if settings.eager {
        trainer = trainer.eager();
    }
    if let Some(patience) = settings.patience {
        trainer = trainer.patience(patience);
    }
    if let Some(steps) = settings.save_every {
        trainer = trainer.save_every(steps);
    }
    let outcome = trainer.run()?;
    let fingerprint = params.fingerprint()?;
    Ok((outcome, fingerprint))
}

/// Everything a finished run left behind that does not tell the time or the machine.
fn left(folder: &Path) -> Left {
    let paths = [CHECKPOINT, BEST]
        .map(|name| folder.join(name))
        .into_iter()
        .chain(kept(folder).unwrap().into_values());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    let files = paths.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect();
    let text = std::fs::read_to_string(folder.join(METRICS)).unwrap();
    let line = |l: &str| {
        let mut v: serde_json::Value = serde_json::from_str(l).unwrap();
        v.as_object_mut().unwrap().retain(|name, _| !OF_THE_MACHINE.contains(&name.as_str()));
        v
    };
    let record = std::fs::read_to_string(folder.join(RECORD)).unwrap();
    let is_chained = |l: &&str| !l.starts_with("{\"machine\"") && !l.starts_with("{\"file\"");
    let record = record.lines().filter(is_chained).map(String::from).collect();
    (files, text.lines().map(line).collect(), record)
}

#[test]
fn a_stop_at_any_step_changes_nothing() {
    let kinds = [
        PLAIN,
        Settings { patience: Some(2), ..PLAIN },
        Settings { eager: true, patience: Some(1), shards: 3, ..PLAIN },
        Settings { shards: 2, save_every: Some(5), ..PLAIN },
        Settings { keep: 3, ..PLAIN },
    ];
    let mut ends = Vec::new();
    for settings in kinds {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().join("whole");
        let (outcome, print) = part(&whole, settings, None).unwrap();
        ends.push(outcome.end);
        let (last, scores) = (outcome.step, outcome.scores.clone());
        drop(outcome);
        let all = left(&whole);
        for stop in 0..=last {
            let cut = home.path().join(format!("cut{stop}"));
            let (outcome, _) = part(&cut, settings, Some(stop)).unwrap();
            let is_over = stop == last;
            assert_eq!((outcome.end == End::Stopped, outcome.step), (!is_over, stop), "{stop}");
            drop(outcome);
            // Goes on in the other mode.
            let other = Settings { eager: !settings.eager, ..settings };
            let (outcome, again) = part(&cut, other, None).unwrap();
            assert_eq!((outcome.step, &outcome.scores, &again), (last, &scores, &print), "stopped at {stop}");
            drop(outcome);
            assert_eq!(left(&cut), all, "stopped at {stop}");
        }
        // Stopped after each step in turn.
        let slow = home.path().join("slow");
        for stop in 0..=last {
            part(&slow, settings, Some(stop)).unwrap();
        }
        assert_eq!(left(&slow), all);
        // What is over stays over, however often it is opened.
        for _ in 0..2 {
            let (outcome, again) = part(&whole, settings, None).unwrap();
            assert_eq!((outcome.ran, outcome.step, &again, &outcome.scores), (0, last, &print, &scores));
        }
        assert_eq!(left(&whole), all);
    }
    assert!(ends.contains(&End::Patience) && ends.contains(&End::Finished), "{ends:?}");
}

#[test]
fn a_run_that_dies_at_any_state_goes_on() {
    // A death is a copy of the folder as it was when an event came: nothing of the process is left but its files.
    let home = tempfile::tempdir().unwrap();
    let settings = Settings { patience: Some(2), keep: 4, ..PLAIN };
    let whole = home.path().join("whole");
    let (outcome, print) = part(&whole, settings, None).unwrap();
    drop(outcome);
    let all = left(&whole);
    let kept = |step: u64| format!("checkpoint-{step}.safetensors");
    let names = [BEST.into(), kept(13), kept(18), kept(4), kept(9), CHECKPOINT.into()];
    assert!(all.0.keys().eq(&names), "{:?}", all.0.keys());
    let (train, test) = parts();
    let mut params = Params::new(&Device::cpu().unwrap(), 7);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let (living, mut copies) = (home.path().join("living"), 0);
    Trainer::new(&params, optimizer(), Batches::new(train, 12, 5).unwrap(), |v| {
        net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
    })
    .steps(STEPS)
    .seed(9)
    .evaluate(EVERY, evaluation(&net, test, |loss| -(loss * 8.0).round()))
    .patience(2)
    .keep(4)
    .folder(RunFolder::open(&living).unwrap())
    .observe(|_| {
        let to = home.path().join(format!("dead{copies}"));
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(&living).unwrap().map(|e| e.unwrap()) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        copies += 1;
        Ok(())
    })
    .run()
    .unwrap();
    assert!(copies > 20, "{copies}");
    for i in 0..copies {
        let dead = home.path().join(format!("dead{i}"));
        let (_, again) = part(&dead, settings, None).unwrap();
        assert_eq!(again, print, "{i}");
        assert_eq!(left(&dead), all, "{i}");
    }
}

#[test]
fn what_cannot_go_on_is_refused_and_nothing_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("run");
    drop(part(&folder, PLAIN, Some(9)).unwrap());
    let before = left(&folder);
    let (train, test) = parts();
    let mut params = Params::new(&Device::cpu().unwrap(), 7);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let go_on = |train: Dataset, test: Dataset, size: usize, seed: u64| {
        let batches = Batches::new(train, size, seed).unwrap();
        Trainer::new(&params, optimizer(), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
            .steps(STEPS)
            .seed(9)
            .evaluate(EVERY, evaluation(&net, test, |l| -l))
            .folder(RunFolder::open(&folder).unwrap())
            .run()
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let other = |d: &Dataset| {
        let mut x = d.x().num().unwrap().clone().into_data();
        x[3] = -x[3];
        d.with(Tensor::with_shape(d.x().shape(), x).unwrap(), d.y().clone()).unwrap()
    };
    for (error, part) in [
        (go_on(other(&train), test.clone(), 12, 5), "spirals holds other data than when this run began"),
        (go_on(train.clone(), other(&test), 12, 5), "spirals holds other data than when this run began"),
        (go_on(train.clone(), test.clone(), 10, 5), "the size of a batch was 12 in this run, and is 10 now"),
        (go_on(train.clone(), test.clone(), 12, 6), "the seed of the batches was 5 in this run"),
    ] {
        assert!(error.contains(part), "{error}");
    }
    // One at a time, and nothing is begun over a run.
    let open = RunFolder::open(&folder).unwrap();
    assert!(RunFolder::open(&folder).unwrap_err().to_string().contains("another process is at work"));
    drop(open);
    assert!(RunFolder::create(&folder).unwrap_err().to_string().contains("holds a run already"));
    // A checkpoint that does not agree with itself.
    let mut forged = Checkpoint::load(folder.join(CHECKPOINT)).unwrap();
    forged.step += 1;
    let batches = Batches::new(train.clone(), 12, 5).unwrap();
    let error = Trainer::new(&params, optimizer(), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
        .seed(9)
        .evaluate(EVERY, evaluation(&net, test.clone(), |l| -l))
        .resume(forged)
        .run()
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("but its optimizer does not"), "{error}");
    assert_eq!(left(&folder), before);

    let bad = |change: &dyn Fn(Trainer<'_>) -> Result<Outcome>, part: &str| {
        let batches = Batches::new(train.clone(), 12, 5).unwrap();
        let trainer = Trainer::new(&params, optimizer(), batches, |v| net.forward(v[0])?.cross_entropy(v[1]));
        let error = change(trainer).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    bad(&|t| t.shards(0).run(), "a batch of 12 rows has no 0 equal parts");
    bad(&|t| t.shards(5).run(), "a batch of 12 rows has no 5 equal parts");
    bad(&|t| t.patience(1).run(), "there is no evaluation");
    bad(&|t| t.save_every(0).run(), "got 0, use 1 or more");
}

#[test]
fn damaged_measurements_do_not_block_a_run() {
    let home = tempfile::tempdir().unwrap();
    let (whole, cut) = (home.path().join("whole"), home.path().join("cut"));
    drop(part(&whole, PLAIN, None).unwrap());
    drop(part(&cut, PLAIN, Some(9)).unwrap());
    let mut bytes = std::fs::read(cut.join(METRICS)).unwrap();
    bytes.extend_from_slice(b"\xff\xfe not a line\n{\"step\": 10, \"lo");
    std::fs::write(cut.join(METRICS), bytes).unwrap();
    drop(part(&cut, PLAIN, None).unwrap());
    assert_eq!(left(&cut), left(&whole));
}

#[test]
fn scores_do_not_depend_on_the_size_of_batches_or_on_merits_that_are_none() {
    let device = Device::cpu().unwrap();
    let (train, test) = parts();
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let scores =
        |rows| evaluation(&net, test.clone(), |l| -l).rows(rows).run(&device).unwrap().merit.to_bits();
    let all: Vec<u64> = [1, 2, 5, 7, 12, 100].map(scores).into();
    assert!(all.iter().all(|s| *s == all[0]), "{all:x?}");
    let rows = evaluation(&net, test.clone(), |l| -l).rows(0).run(&device);
    assert!(rows.unwrap_err().to_string().contains("got 0, use 1 or more"));
    let wrong = Evaluation::new(
        test.clone(),
        |v| Ok(vec![net.forward(v[0])?]),
        |_| Scores { merit: 0.0, values: Vec::new() },
    );
    let error = { wrong }.run(&device).unwrap_err().to_string();
    assert!(error.contains("give one float32 number for each of the 12 rows"), "{error}");

    // A merit that is no number is never the best one, and one that follows is.
    let seen = std::cell::RefCell::new(Vec::new());
    let calls = std::cell::Cell::new(0);
    let judge = |_: f64| {
        calls.set(calls.get() + 1);
        [f64::NAN, f64::NEG_INFINITY, f64::NAN, 1.0, 1.0, 2.0][calls.get() - 1]
    };
    let batches = Batches::new(train, 12, 5).unwrap();
    let outcome = Trainer::new(&params, optimizer(), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
        .steps(6)
        .evaluate(1, evaluation(&net, test, judge))
        .observe(|event| {
            if let Event::Evaluated { is_best, .. } = event {
                seen.borrow_mut().push(*is_best);
            }
            Ok(())
        })
        .run()
        .unwrap();
    assert_eq!(*seen.borrow(), [false, true, false, true, false, true]);
    assert_eq!((outcome.progress.best.unwrap().step, outcome.progress.since_best), (6, 0));
}

#[test]
fn evaluation_takes_no_memory_beside_the_step() {
    let device = Device::cpu().unwrap();
    let (train, test) = data::split(&data::spirals(3, 2000, 3).unwrap(), 0.5, 3).unwrap();
    let run = |every: u64| {
        let device = Device::cpu().unwrap();
        let mut params = Params::new(&device, 7);
        let net = Mlp::new(&mut params, &[2, 64, 64, 3]).unwrap();
        let batches = Batches::new(train.clone(), 250, 5).unwrap();
        Trainer::new(&params, optimizer(), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
            .steps(8)
            .evaluate(every, evaluation(&net, test.clone(), |l| -l))
            .run()
            .unwrap();
        device.memory().peak
    };
    // Only the inputs of the program and its few results are its own.
    let (seldom, often) = (run(100), run(1));
    let inputs = 250 * (2 + 1) * 4;
    assert!(often <= seldom, "{often} {seldom}");
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 64, 64, 3]).unwrap();
    let mut step = TrainStep::new(&params, optimizer(), |v| net.forward(v[0])?.cross_entropy(v[1]));
    let batch = train.take(&(0..250).collect::<Vec<_>>()).unwrap();
    step.run(&[(&batch.0).into(), (&batch.1).into()]).unwrap();
    assert!(often <= device.memory().peak + 2 * inputs, "{often} {}", device.memory().peak);
}

#[test]
fn a_loss_that_is_no_number_is_traced_and_the_parameters_stay_finite() {
    let (train, test) = parts();
    for eager in [false, true] {
        let mut params = Params::new(&Device::cpu().unwrap(), 7);
        let net = Mlp::new(&mut params, &[2, 8, 8, 3]).unwrap();
        let batches = Batches::new(train.clone(), 12, 5).unwrap();
        let mut trainer =
            Trainer::new(&params, Optimizer::sgd(1e30), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
                .steps(50)
                .evaluate(10, evaluation(&net, test.clone(), |l| -l));
        if eager {
            trainer = trainer.eager();
        }
        let error = trainer.run().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("the loss of step") && error.contains("in step"), "{error}");
        for p in params.iter() {
            assert!(p.get::<f32>().unwrap().data().iter().all(|v| v.is_finite()), "{}", p.name());
        }
    }
}

/// The same run on a device, with a state hashed at every third step: its record without what depends on the machine.
fn recorded_on(device: &Device, folder: &Path) -> (Vec<String>, usize) {
    let (train, test) = parts();
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let trainer = Trainer::new(&params, optimizer(), Batches::new(train, 12, 5).unwrap(), |v| {
        net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
    });
    let trainer = trainer.steps(STEPS).seed(9).evaluate(EVERY, evaluation(&net, test, |loss| -loss));
    drop(trainer.record_every(3).folder(RunFolder::open(folder).unwrap()).run().unwrap());
    let all = left(folder).2;
    let states = all.iter().filter(|l| l.contains("\"state\"")).count();
    (all, states)
}

/// Sums of tensors and losses that wait on the device are those of the CPU, by the host's side of CUDA.
#[test]
fn a_record_is_the_same_on_a_driver_without_a_gpu() {
    let home = tempfile::tempdir().unwrap();
    let (want, states) = recorded_on(&Device::cpu().unwrap(), &home.path().join("cpu"));
    assert_eq!((want.len(), states), (1 + STEPS as usize + 1, 1 + 7 + 6 - 1));
    let fake = Fake::computing(1, 1 << 28);
    let device = Device::from_cuda(fake.open().unwrap());
    let (got, _) = recorded_on(&device, &home.path().join("fake"));
    assert_eq!(got, want);
}

#[test]
fn cuda_has_the_record_of_the_cpu() {
    let Some((_turn, device)) = dittograd_check::gpu() else { return };
    let home = tempfile::tempdir().unwrap();
    let (want, _) = recorded_on(&Device::cpu().unwrap(), &home.path().join("cpu"));
    assert_eq!(recorded_on(&device, &home.path().join("cuda")).0, want);
}

/// A run whose loss is read as the record needs it waits for the device as often as one without a record.
#[test]
fn a_record_waits_for_nothing() {
    let fake = Fake::computing(1, 1 << 28);
    let waits = |is_recorded: bool| {
        let home = tempfile::tempdir().unwrap();
        let device = Device::from_cuda(fake.open().unwrap());
        let (train, _) = parts();
        let mut params = Params::new(&device, 7);
        let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
        let trainer = Trainer::new(&params, optimizer(), Batches::new(train, 12, 5).unwrap(), |v| {
            net.forward(v[0])?.cross_entropy(v[1])
        });
        let trainer = trainer.steps(1200).folder(RunFolder::open(home.path().join("r")).unwrap());
        let trainer = if is_recorded { trainer } else { trainer.unrecorded() };
        let before = fake.waits();
        trainer.run().unwrap();
        fake.waits() - before
    };
    let (without, with) = (waits(false), waits(true));
    // The first and the last state are read.
    assert!(with <= without + 4, "{with} waits with a record, {without} without");
}

#[test]
fn a_trainer_verifies_a_record_and_names_the_first_difference() {
    let home = tempfile::tempdir().unwrap();
    drop(part(home.path(), Settings { shards: 2, ..PLAIN }, None).unwrap());
    let record = Record::read(home.path().join(RECORD)).unwrap();
    let none = BTreeMap::new();
    let decay = Cell::new(0.01);
    let verify = |eager: bool, lr: f64, batch: usize, from: Option<Checkpoint>, to: u64| {
        let (train, test) = parts();
        let mut params = Params::new(&Device::cpu().unwrap(), 7);
        let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
        let rule = Optimizer::adamw(lr).schedule(Schedule::cosine(STEPS, 1e-4).warmup(3, 0.1)).clip_norm(1.0);
        let rule = rule.weight_decay(decay.get());
        let trainer = Trainer::new(&params, rule, Batches::new(train, batch, 5).unwrap(), |v| {
            net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
        });
        let trainer =
            trainer.steps(STEPS).seed(9).shards(2).evaluate(EVERY, evaluation(&net, test, |loss| -loss));
        let trainer = if eager { trainer.eager() } else { trainer };
        let trainer = match from {
            Some(from) => trainer.resume(from),
            None => trainer,
        };
        trainer.verify(&record, to, &none).unwrap()
    };
    let end = record.end().unwrap();
    assert_eq!((end.end.as_str(), end.steps, record.last()), ("finished", STEPS, STEPS));
    for eager in [false, true] {
        let Verified { steps, difference, state } = verify(eager, 0.05, 12, None, STEPS);
        assert_eq!((steps, difference, state.fingerprint()), (STEPS, None, end.fingerprint.clone()));
    }
    // From a state in the middle.
    let middle = verify(false, 0.05, 12, None, 9);
    assert_eq!((middle.steps, middle.state.step), (9, 9));
    assert_eq!(verify(true, 0.05, 12, Some(middle.state), STEPS).difference, None);
    // A rate is part of a state; decay shows in the loss after the first update, another batch before it.
    let other = verify(false, 0.04, 12, None, STEPS).difference.unwrap();
    assert_eq!((other.step, other.what.starts_with("the state besides its tensors")), (0, true), "{other}");
    decay.set(0.5);
    let other = verify(false, 0.05, 12, None, STEPS).difference.unwrap();
    assert_eq!(
        (other.step, other.what.as_str(), other.op.as_deref()),
        (2, "the loss", Some("op cross_entropy"))
    );
    decay.set(0.01);
    let other = verify(false, 0.05, 6, None, STEPS).difference.unwrap();
    assert_eq!(other.to_string(), "step 0: the batch size is 12 in the record and 6 here");
}

/// A state that differs is told with what writes the tensor: the optimizer, or an op of the program.
#[test]
fn what_writes_a_tensor_is_named() {
    let home = tempfile::tempdir().unwrap();
    let none = BTreeMap::new();
    let run = |folder: Option<RunFolder>, record: Option<&Record>, states: &BTreeMap<_, _>| {
        let (train, _) = parts();
        let mut params = Params::new(&Device::cpu().unwrap(), 7);
        let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
        let norm = nn::BatchNorm::new(&mut params, "norm", 3).unwrap();
        let batches = Batches::new(train, 12, 5).unwrap();
        let trainer = Trainer::new(&params, Optimizer::sgd(0.1), batches, |v| {
            norm.forward(net.forward(v[0])?)?.cross_entropy(v[1])
        });
        let trainer = trainer.steps(6).record_every(2);
        let Some(record) = record else {
            drop(trainer.folder(folder.unwrap()).run().unwrap());
            return None;
        };
        trainer.verify(record, 6, states).unwrap().difference
    };
    run(Some(RunFolder::open(home.path()).unwrap()), None, &none);
    let record = Record::read(home.path().join(RECORD)).unwrap();
    assert_eq!(run(None, Some(&record), &none), None);
    for (tensor, op) in [
        ("norm.running_mean", "op axpy"),
        ("norm.weight", "the optimizer's update (sgd), from the gradient that op batch_norm_bwd computes"),
        ("net.2.bias", "the optimizer's update (sgd), from the gradient that op sum computes"),
    ] {
        let mut other = record.state(4).unwrap();
        *other.tensors.get_mut(tensor).unwrap() ^= 1;
        other.root.clear();
        let states = BTreeMap::from([(4, ("a file".to_string(), other))]);
        let found = run(None, Some(&record), &states).unwrap();
        assert_eq!((found.step, found.tensor.as_deref(), found.op.as_deref()), (4, Some(tensor), Some(op)));
        assert!(
            found.to_string().starts_with(&format!("step 4: a file: the sum of tensor {tensor} is ")),
            "{found}"
        );
    }
}
