//! Several runs at once have the bits and the files that each has alone.

use dittograd::data::{self, Batches, Dataset};
use dittograd::device::cuda::fake::{Fake, Live};
use dittograd::error::ErrorKind;
use dittograd::prelude::*;
use dittograd::train::{BEST, CHECKPOINT, End, Event, Outcome, RECORD, run_together};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const STEPS: u64 = 14;

/// A model with its data, all from one seed.
struct Model {
    seed: u64,
    params: Params,
    net: Mlp,
    train: Dataset,
    test: Dataset,
}

impl Model {
    fn new(device: &Device, seed: u64) -> Model {
        let (train, test) = data::split(&data::spirals(seed, 60, 3).unwrap(), 0.8, seed).unwrap();
        let mut params = Params::new(device, seed);
        let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
        Model { seed, params, net, train, test }
    }

    fn plain(&self, steps: u64) -> Trainer<'_> {
        let batches = Batches::new(self.train.clone(), 12, self.seed).unwrap();
        Trainer::new(&self.params, Optimizer::adamw(0.05), batches, |v| {
            self.net.forward(v[0])?.cross_entropy(v[1])
        })
        .steps(steps)
    }

    fn trainer(&self, lr: f64) -> Trainer<'_> {
        let rows = LabelLoss { reduction: Reduction::None, ..LabelLoss::default() };
        let evaluation = Evaluation::new(
            self.test.clone(),
            move |v| Ok(vec![self.net.forward(v[0])?.cross_entropy_loss(v[1], rows)?]),
            |means| Scores { merit: -means[0], values: vec![("loss".into(), means[0])] },
        );
        let optimizer = Optimizer::adamw(lr).schedule(Schedule::cosine(STEPS, 1e-4)).clip_norm(1.0);
        let batches = Batches::new(self.train.clone(), 12, self.seed).unwrap();
        Trainer::new(&self.params, optimizer, batches, |v| {
            self.net.forward(v[0])?.dropout(0.1)?.cross_entropy(v[1])
        })
        .steps(STEPS)
        .seed(self.seed)
        .evaluate(4, evaluation)
    }
}

/// Runs of all kinds.
fn kind(i: usize, trainer: Trainer<'_>) -> Trainer<'_> {
    match i {
        3 => trainer.eager(),
        4 => trainer.shards(3),
        5 => trainer.steps(STEPS - 5).save_every(3),
        6 => trainer.patience(1).unrecorded(),
        _ => trainer,
    }
}

/// Files, record and fingerprint.
type Left = (Vec<Option<Vec<u8>>>, Vec<String>, String);

/// What a run leaves in its folder, but for what tells of the machine, and its fingerprint.
fn left(folder: &Path, model: &Model) -> Left {
    let files = [CHECKPOINT, BEST].map(|name| std::fs::read(folder.join(name)).ok());
    let record = std::fs::read_to_string(folder.join(RECORD)).unwrap_or_default();
    let is_chained = |l: &&str| !l.starts_with("{\"machine\"") && !l.starts_with("{\"file\"");
    let record = record.lines().filter(is_chained).map(String::from).collect();
    (files.to_vec(), record, model.params.fingerprint().unwrap())
}

const COUNT: usize = 7;

/// All kinds of runs, together or one after the other.
fn train(device: &Device, home: &Path, is_together: bool) -> Vec<(Left, u64, End)> {
    let models: Vec<Model> = (0..COUNT as u64).map(|seed| Model::new(device, seed)).collect();
    let folder = |i: usize| home.join(format!("{is_together}-{i}"));
    let trainers: Vec<Trainer<'_>> = models
        .iter()
        .enumerate()
        .map(|(i, m)| kind(i, m.trainer(0.05)).folder(RunFolder::open(folder(i)).unwrap()))
        .collect();
    let outcomes: Vec<Result<Outcome>> = match is_together {
        true => run_together(trainers),
        false => trainers.into_iter().map(Trainer::run).collect(),
    };
    let all = outcomes.into_iter().zip(&models).enumerate();
    all.map(|(i, (outcome, model))| {
        let (step, end) = outcome.map(|o| (o.step, o.end)).unwrap();
        (left(&folder(i), model), step, end)
    })
    .collect()
}

#[test]
fn are_what_each_is_alone() {
    let home = tempfile::tempdir().unwrap();
    let cpu = Device::cpu().unwrap();
    let want = train(&cpu, &home.path().join("cpu"), false);
    assert!(want[0].0.1.len() as u64 > STEPS, "{}", want[0].0.1.len());
    assert_eq!(train(&cpu, &home.path().join("cpu"), true), want);
    let fake = Fake::computing(1, 1 << 28);
    assert_eq!(train(&Device::from_cuda(fake.open().unwrap()), &home.path().join("fake"), true), want);
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
}

#[test]
fn cuda_has_the_bits_of_each_alone() {
    let Some((_turn, device)) = dittograd_check::gpu() else { return };
    let home = tempfile::tempdir().unwrap();
    let want = train(&Device::cpu().unwrap(), &home.path().join("cpu"), false);
    assert_eq!(train(&device, &home.path().join("cuda"), true), want);
}

/// One launch of a graph, one copy and one kernel beside it make a step of all of them.
#[test]
fn make_a_step_in_one_launch() {
    let calls = |seeds: u64, steps: u64| {
        let fake = Fake::computing(1, 1 << 28);
        let device = Device::from_cuda(fake.open().unwrap());
        let models: Vec<Model> = (0..seeds).map(|seed| Model::new(&device, seed)).collect();
        let trainers = models.iter().map(|m| m.plain(steps));
        assert!(run_together(trainers.collect()).iter().all(Result::is_ok));
        let calls = fake.calls_by_symbol();
        ["cuGraphLaunch", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"].map(|name| calls[name])
    };
    let grown = |seeds: u64| {
        let (few, many) = (calls(seeds, 11), calls(seeds, 20));
        [0, 1, 2].map(|i| many[i] - few[i])
    };
    // The loss is read after each, all of them by one copy and one kernel more.
    assert_eq!(grown(5), [9, 18, 18]);
}

#[test]
fn go_on_when_one_fails() {
    let device = Device::cpu().unwrap();
    let alone = |seed: u64| {
        let model = Model::new(&device, seed);
        model.trainer(0.05).run().unwrap();
        model.params.fingerprint().unwrap()
    };
    let models: Vec<Model> = (0..3).map(|seed| Model::new(&device, seed)).collect();
    let of =
        |m: &'static str| move |_: &Event<'_>| Err(Error::new(m, ErrorKind::Message { why: "no".into() }));
    let trainers = models.iter().enumerate().map(|(i, m)| m.trainer(if i == 1 { 1e38 } else { 0.05 }));
    let outcomes = run_together(trainers.collect());
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFinite { .. }), "{error}");
    for i in [0, 2] {
        assert_eq!(outcomes[i].as_ref().unwrap().step, STEPS);
        assert_eq!(models[i].params.fingerprint().unwrap(), alone(i as u64));
    }
    let models: Vec<Model> = (0..3).map(|seed| Model::new(&device, seed)).collect();
    let trainers = models.iter().enumerate().map(|(i, m)| match i {
        2 => m.trainer(0.05).observe(of("report")),
        _ => m.trainer(0.05),
    });
    let ok: Vec<bool> = run_together(trainers.collect()).iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, false]);
}

#[test]
fn stop_together_and_go_on() {
    let home = tempfile::tempdir().unwrap();
    let device = Device::cpu().unwrap();
    let part = |stop: Option<u64>| {
        let models: Vec<Model> = (0..3).map(|seed| Model::new(&device, seed)).collect();
        let flag = Arc::new(AtomicBool::new(false));
        let trainers = models.iter().enumerate().map(|(i, m)| {
            let asked = flag.clone();
            let folder = RunFolder::open(home.path().join(i.to_string())).unwrap();
            m.trainer(0.05).folder(folder).stop_when(flag.clone()).observe(move |event| {
                if let Event::Step { step } = event
                    && (i, Some(*step)) == (0, stop)
                {
                    asked.store(true, Ordering::SeqCst);
                }
                Ok(())
            })
        });
        let outcomes = run_together(trainers.collect());
        let ends: Vec<(End, u64)> =
            outcomes.iter().map(|o| o.as_ref().map(|o| (o.end, o.step)).unwrap()).collect();
        let prints: Vec<String> = models.iter().map(|m| m.params.fingerprint().unwrap()).collect();
        (ends, prints)
    };
    assert_eq!(part(Some(6)).0, [(End::Stopped, 6); 3]);
    let (ends, prints) = part(None);
    assert_eq!(ends, [(End::Finished, STEPS); 3]);
    for (seed, print) in prints.iter().enumerate() {
        let model = Model::new(&device, seed as u64);
        model.trainer(0.05).run().unwrap();
        assert_eq!(model.params.fingerprint().unwrap(), *print);
    }
}

#[test]
fn share_no_parameters() {
    let device = Device::cpu().unwrap();
    let model = Model::new(&device, 1);
    let outcomes = run_together(vec![model.trainer(0.05), model.trainer(0.05)]);
    assert!(outcomes[0].is_ok());
    let error = outcomes[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("is trained by another run, too"), "{error}");
    assert!(run_together(Vec::new()).is_empty());
}

/// Whatever call fails once: each run has an error or its bits, and nothing is left behind.
#[test]
fn survive_a_call_that_fails() {
    let run = |fails: Option<(u64, i32)>| {
        let fake = Fake::computing(1, 64 << 20);
        let Ok(cuda) = fake.open() else { panic!("a new device") };
        let device = Device::from_cuda(cuda);
        let models: Vec<Model> = (0..2).map(|seed| Model::new(&device, seed)).collect();
        if let Some((call, code)) = fails {
            fake.fail_call(call, code);
        }
        let outcomes = run_together(models.iter().map(|m| m.trainer(0.05).steps(3)).collect());
        let failed = fake.has_failed();
        // What nobody could be told of is an error of the next call. The call may also come only now, when the runs are over.
        let _ = device.synchronize();
        fake.recover();
        let prints: Vec<String> = outcomes
            .into_iter()
            .zip(&models)
            .filter_map(|(outcome, m)| outcome.ok().map(|_| m.params.fingerprint().unwrap()))
            .collect();
        drop((models, device));
        assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{fails:?}");
        (prints, failed)
    };
    let (want, _) = run(None);
    assert_eq!(want.len(), 2);
    for (code, every) in [(1, 5), (2, 7)] {
        let mut swept = 0;
        for call in (1..).step_by(every) {
            let (prints, failed) = run(Some((call, code)));
            assert!(prints.iter().all(|p| want.contains(p)), "call {call} failing with {code}");
            if !failed {
                break;
            }
            swept += 1;
        }
        assert!(swept > 20, "{swept}");
    }
}
