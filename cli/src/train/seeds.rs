//! `train --seeds`: runs from several seeds, made together, with their mean and spread.

use super::fit::{Begun, Fitted, Job, Report, event_files, going_on, in_options, no_folder, step_ms};
use super::spread::{Means, Spreads, curves};
use super::{Plan, Train, folder};
use crate::models::Net;
use crate::out::{Busy, Out, bytes, warn};
use crate::ranks::Ranks;
use crate::task;
use crate::{Answer, Fail, Global, fail};
use dittograd::io::atomic;
use dittograd::prelude::*;
use dittograd::train::{CHECKPOINT, End, Outcome, run_together};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The most runs at a time.
pub(super) const MOST: u64 = 256;
/// What a folder of several runs says of them.
const SEEDS: &str = "seeds.json";

/// The folder of the run of a seed, in that of all.
fn name(seed: u64) -> String {
    format!("seed-{seed}")
}

/// The seeds of a command that asks for several runs: from `--seeds`, or of the folder that they continue in.
pub(super) fn asked(command: &Train) -> Answer<Option<Vec<u64>>> {
    let held = command.resume.as_deref().map(|from| from.join(SEEDS)).filter(|file| file.is_file());
    match (held, command.seeds) {
        (None, None) => Ok(None),
        (None, Some(count)) => {
            if let Some(from) = &command.resume {
                return fail(format!(
                    "--seeds: {} is one run; leave out --seeds to go on with it, or start others without --resume",
                    from.display()
                ));
            }
            let first = command.seed.unwrap_or(7);
            match first.checked_add(count - 1) {
                Some(last) => Ok(Some((first..=last).collect())),
                None => fail(format!("--seed {first}: there are no {count} seeds from it on")),
            }
        }
        (Some(file), count) => {
            let seeds = read(&file)?;
            let others = [
                ("--seeds", count, seeds.len() as u64),
                ("--seed", command.seed, seeds.first().copied().unwrap_or(0)),
            ];
            for (option, given, has) in others {
                if let Some(given) = given.filter(|given| *given != has) {
                    return fail(format!(
                        "{option} {given}: the runs have {has}; leave it out, or start others without --resume"
                    ));
                }
            }
            Ok(Some(seeds))
        }
    }
}

/// The seeds that a file says.
fn read(file: &Path) -> Answer<Vec<u64>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let seeds = value["seeds"].as_array().into_iter().flatten().map(|s| s["seed"].as_u64());
    match seeds.collect::<Option<Vec<u64>>>().filter(|seeds| (1..=MOST as usize).contains(&seeds.len())) {
        Some(seeds) => Ok(seeds),
        None => fail(format!("{}: does not say which seeds there are", file.display())),
    }
}

impl Train {
    /// Errors for options that are for one run.
    fn check_many(&self, ranks: Option<&Ranks>) -> Answer<()> {
        let given = [
            ("--profile", self.profile.is_some()),
            ("--memory", self.memory.is_some()),
            ("--paranoid", self.paranoid.is_some()),
            ("many processes", ranks.is_some_and(|r| r.world.size() > 1)),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((what, _)) => fail(format!("--seeds: {what} is for one run; leave out one of them")),
            None => Ok(()),
        }
    }

    /// The command of the run of one seed.
    fn of_seed(&self, seed: u64) -> Train {
        let resume = self.resume.as_ref().map(|from| from.join(name(seed)));
        let out = self.out.as_ref().map(|out| match out.as_os_str() == "none" {
            true => out.clone(),
            false => out.join(name(seed)),
        });
        // One that was stopped before its first state begins in its folder.
        let (resume, out) = match resume {
            Some(from) if !from.join(CHECKPOINT).exists() => (None, out.or(Some(from))),
            resume => (resume, out),
        };
        Train { seed: Some(seed), seeds: None, resume, out, ..self.clone() }
    }
}

/// A device for each of so many runs: one GPU for all, or each a part of the threads of the CPU.
fn parts(device: Device, count: usize) -> Answer<Vec<Device>> {
    let threads = (device.threads() / count).max(1);
    let part = |_| match device.is_cuda() {
        true => Ok(device.clone()),
        false => Ok(Device::cpu_with(threads, crate::simd()?)?.in_mode(device.numerics())?),
    };
    (0..count).map(part).collect()
}

/// Even if a thread that held it has panicked.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Settings and data of all runs, made on as many threads as there are cores.
fn plans(commands: &[Train], busy: &Busy) -> Answer<Vec<Plan>> {
    let next = AtomicUsize::new(0);
    let plans: Mutex<BTreeMap<usize, Answer<Plan>>> = Mutex::default();
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(command) = commands.get(i) else { return };
            let plan = command.plan(busy, true);
            held(&plans).insert(i, plan);
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 1..cores.min(commands.len()) {
            // This thread works too.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    plans.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Runs the command for several seeds.
pub(super) fn run(
    command: &Train,
    seeds: Vec<u64>,
    global: &Global,
    out: &Out,
    ranks: Option<&Ranks>,
) -> Answer {
    command.check_many(ranks)?;
    let is_same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let mut command = command.clone();
    command.out = command.out.filter(|out| !command.resume.as_ref().is_some_and(|from| is_same(out, from)));
    let busy = out.busy("looking for devices");
    let devices = parts(global.device()?, seeds.len())?;
    let mut commands: Vec<Train> = seeds.iter().map(|seed| command.of_seed(*seed)).collect();
    let mut plans = plans(&commands, &busy)?;
    busy.now("building the models");
    // Errors about the model appear before the folder is created.
    let built = commands
        .iter()
        .zip(&plans)
        .zip(&devices)
        .map(|((command, plan), device)| command.built(plan, device));
    let built = built.collect::<Answer<Vec<(Params, Net)>>>()?;
    let model = plans.first().map(|p| p.spec.model.name()).unwrap_or_default();
    let home = match (&command.resume, &command.out) {
        (Some(from), None) => Some(from.clone()),
        _ => folder::make_for_many(command.out.as_deref(), &model, SEEDS)?,
    };
    for (option, is_given) in [("--keep", command.keep.is_some()), ("--tensorboard", command.tensorboard)] {
        if is_given && home.is_none() {
            return no_folder(option);
        }
    }
    if let Some(home) = &home {
        write(home, &json!({"seeds": seeds.iter().map(|s| row(*s)).collect::<Vec<_>>()}))?;
    }
    for ((command, plan), seed) in commands.iter_mut().zip(&mut plans).zip(&seeds) {
        if command.resume.is_none() {
            command.out = Some(home.as_ref().map_or_else(|| "none".into(), |home| home.join(name(*seed))));
        }
        command.settle(plan)?;
    }
    drop(busy);
    let mode = crate::models::name(&command.mode);
    let at = home.as_ref().map(|home| home.display().to_string());
    let device = &devices[0];
    if let Some(Plan { spec, data, .. }) = plans.first() {
        let (name, rows, test) = (data.train.name(), data.train.rows(), data.test.rows());
        out.progress(
            || {
                json!({
                    "model": model, "config": spec.config, "device": device.to_string(), "mode": mode, "data": name,
                    "rows": rows, "out": at, "seeds": seeds,
                })
            },
            || {
                let named = listed(&seeds);
                format!("{model} on {name} from {named}: {rows} training rows, {test} test rows each; {device}, {mode}")
            },
        );
    }
    let data = plans.first().map(|p| p.data.train.name().to_string()).unwrap_or_default();
    let title = format!("{model} on {data} from {}, and their mean", listed(&seeds));
    let all = All { seeds, commands, devices, out, home, title };
    let start = Instant::now();
    let results = all.train(plans.into_iter().zip(built))?;
    all.tell(results, start.elapsed().as_secs_f64())
}

/// Seeds as text.
fn listed(seeds: &[u64]) -> String {
    match seeds {
        [first, .., last] => format!("seeds {first} to {last}"),
        [one] => format!("seed {one}"),
        [] => "no seed".into(),
    }
}

/// What the file says of a seed before it has a result.
fn row(seed: u64) -> Value {
    json!({"seed": seed, "folder": name(seed)})
}

fn write(home: &Path, value: &Value) -> Answer<()> {
    Ok(atomic::write(home.join(SEEDS), format!("{value:#}\n").as_bytes())?)
}

/// The runs of all seeds.
struct All<'a> {
    seeds: Vec<u64>,
    commands: Vec<Train>,
    /// The device of each: on the CPU each has a part of the threads.
    devices: Vec<Device>,
    out: &'a Out,
    /// The folder that theirs are in.
    home: Option<PathBuf>,
    /// The title of the picture.
    title: String,
}

/// The result of each run.
type Results = Vec<(u64, Answer<Fitted>)>;

impl All<'_> {
    /// Runs all of them: on the CPU each on a thread of its own, else together.
    fn train(&self, plans: impl Iterator<Item = (Plan, (Params, Net))>) -> Answer<Results> {
        let jobs = plans.map(|(plan, built)| Job::new(plan, built)).collect::<Answer<Vec<(Job, Begun)>>>()?;
        let means = Mutex::new(Means::new(self.out, self.seeds.len()));
        let fitted = match self.devices[0].is_cuda() {
            true => self.together(jobs, &means)?,
            false => self.beside(jobs, &means),
        };
        held(&means).flush(u64::MAX);
        Ok(self.seeds.iter().copied().zip(fitted).collect())
    }

    /// The report of a run, whose evaluations become means.
    fn report<'r>(
        &'r self,
        i: usize,
        job: &Job,
        begun: &Begun,
        means: &'r Mutex<Means<'_>>,
        in_turns: bool,
    ) -> Answer<Report<'r>> {
        let (command, device, out, seed) = (&self.commands[i], &self.devices[i], self.out, self.seeds[i]);
        let tell = move |step, loss, scores: &Scores| held(means).add(seed, step, loss, scores, in_turns);
        let report = Report::new(command, device, out, event_files(begun, command, out)?, job.range);
        // The last one completes the means.
        Ok(report.among(i + 1 == self.seeds.len(), Box::new(tell)))
    }

    /// The result of a run that has ended.
    fn end(
        &self,
        i: usize,
        job: &Job,
        report: &mut Report<'_>,
        ended: Result<Outcome, Error>,
    ) -> Answer<Fitted> {
        report.finish();
        match report.failed.take() {
            Some(failed) => Err(failed),
            None => job.end(ended.map_err(in_options)?, report, &self.devices[i], self.out),
        }
    }

    /// Runs them in turns of a step, which on a GPU is one launch.
    fn together(&self, jobs: Vec<(Job, Begun)>, means: &Mutex<Means<'_>>) -> Answer<Vec<Answer<Fitted>>> {
        let mut reports = Vec::new();
        for (i, (job, begun)) in jobs.iter().enumerate() {
            reports.push(self.report(i, job, begun, means, true)?);
        }
        let (jobs, begun): (Vec<Job>, Vec<Begun>) = jobs.into_iter().unzip();
        let mut trainers = Vec::new();
        for (i, ((job, begun), report)) in jobs.iter().zip(begun).zip(&mut reports).enumerate() {
            trainers.push(job.trainer(begun, &self.commands[i])?.observe(|event| report.see(event)));
        }
        let ended = run_together(trainers);
        let all = jobs.iter().zip(&mut reports).zip(ended).enumerate();
        Ok(all.map(|(i, ((job, report), ended))| self.end(i, job, report, ended)).collect())
    }

    /// Runs each on a thread.
    fn beside(&self, jobs: Vec<(Job, Begun)>, means: &Mutex<Means<'_>>) -> Vec<Answer<Fitted>> {
        let run = |i: usize, (job, begun): (Job, Begun)| {
            let mut report = self.report(i, &job, &begun, means, false)?;
            let trainer = job.trainer(begun, &self.commands[i])?;
            let ended = trainer.observe(|event| report.see(event)).run();
            self.end(i, &job, &mut report, ended)
        };
        let lost = || fail("its thread could not be started, or has panicked");
        std::thread::scope(|scope| {
            let start = |(i, job)| std::thread::Builder::new().spawn_scoped(scope, move || run(i, job));
            let threads: Vec<_> = jobs.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|t| t.ok().and_then(|t| t.join().ok()).unwrap_or_else(lost)).collect()
        })
    }

    /// Tells of all results, and writes them.
    fn tell(&self, results: Results, seconds: f64) -> Answer {
        let scored = results.iter().filter_map(|(_, fitted)| fitted.as_ref().ok()?.outcome.scores.clone());
        let spreads = Spreads::of(&scored.collect::<Vec<_>>());
        let object = json!({
            "seeds": results.iter().map(|(seed, fitted)| object(*seed, fitted)).collect::<Vec<_>>(),
            "scores": spreads.object(),
        });
        let good: Vec<&Fitted> = results.iter().filter_map(|(_, fitted)| fitted.as_ref().ok()).collect();
        let stopped = good.iter().find(|f| f.outcome.end == End::Stopped);
        if let Some(home) = &self.home {
            write(home, &object)?;
            if stopped.is_none() {
                let folders = good.iter().filter_map(|f| f.outcome.folder.as_ref());
                curves(home, &self.title, &folders.map(RunFolder::lines).collect::<Vec<_>>())?;
            }
        }
        self.print(&results, &spreads, object, seconds)?;
        if let Some(fitted) = stopped {
            let how = going_on(self.home.as_deref());
            warn(&format!("stopped at step {}; {how}", fitted.outcome.step));
        }
        let is_cut = stopped.is_some();
        let mut failed = None;
        for (seed, result) in results {
            let Err(why) = result else { continue };
            if let Some(Fail::Message(before)) = failed.take() {
                warn(&before);
            }
            failed = Some(match why.message() {
                Some(why) => Fail::Message(format!("seed {seed}: {why}")),
                None => return Err(why),
            });
        }
        failed.map_or(Ok(!is_cut), Err)
    }

    fn print(&self, results: &Results, spreads: &Spreads, mut object: Value, seconds: f64) -> Answer<()> {
        let out = self.out;
        let outcomes = || results.iter().filter_map(|(_, fitted)| fitted.as_ref().ok()).map(|f| &f.outcome);
        // All of them make their steps at the same time.
        let longest = outcomes().max_by_key(|o| o.times.steps);
        let ran = longest.map_or(0, |o| o.ran);
        let step_ms = longest.map_or(0.0, step_ms);
        let evaluations: f64 = outcomes().map(|o| o.times.evaluations.as_secs_f64()).sum();
        let files: f64 = outcomes().map(|o| o.times.files.as_secs_f64()).sum();
        let device = &self.devices[0];
        // A GPU is one for all.
        let own = if device.is_cuda() { &self.devices[..1] } else { &self.devices[..] };
        let peak: usize = own.iter().map(|device| device.memory().peak).sum();
        let numerics = device.numerics().to_string();
        if out.json() {
            object["seconds"] = json!(seconds);
            object["ms_per_step"] = json!(step_ms);
            object["evaluation_seconds"] = json!(evaluations);
            object["device"] = json!(device.to_string());
            object["numerics"] = json!(numerics);
            object["peak_bytes"] = json!(peak);
            object["out"] = json!(self.home.as_ref().map(|home| home.display().to_string()));
            return out.line(&object.to_string());
        }
        if out.chatty() {
            let count = outcomes().count();
            out.line(&format!(
                "{ran} steps of {count} runs in {seconds:.2} s: {step_ms:.3} ms a step of all, evaluations {evaluations:.2} s, \
                 files {files:.2} s; memory peak {}, numerics {numerics}",
                bytes(peak)
            ))?;
        }
        for line in spreads.lines() {
            out.line(&line)?;
        }
        if let (Some(home), true) = (&self.home, out.chatty()) {
            out.line(&format!(
                "files in {}: {SEEDS}, seeds.png, seeds.svg, and a run for each seed",
                home.display()
            ))?;
        }
        for (seed, fitted) in results {
            if let Ok(Fitted { outcome, fingerprint, .. }) = fitted {
                let scores = outcome.scores.as_ref().map(|s| format!(", {}", task::text(s)));
                out.line(&format!("seed {seed} fingerprint {fingerprint}{}", scores.unwrap_or_default()))?;
            }
        }
        Ok(())
    }
}

/// The result of a run, as it is written.
fn object(seed: u64, fitted: &Answer<Fitted>) -> Value {
    let mut row = row(seed);
    match fitted {
        Ok(Fitted { outcome, best, fingerprint, .. }) => {
            row["end"] = json!(match outcome.end {
                End::Finished => "finished",
                End::Patience => "patience",
                End::Stopped => "stopped",
            });
            row["steps"] = json!(outcome.step);
            row["train_loss"] = json!(outcome.loss);
            if let Some(scores) = &outcome.scores {
                task::put(scores, &mut row);
            }
            if let Some((step, scores)) = best {
                row["best"] = json!({"step": step});
                task::put(scores, &mut row["best"]);
            }
            row["fingerprint"] = json!(fingerprint);
        }
        Err(why) => row["error"] = json!(why.message()),
    }
    row
}
