//! The dittograd program: trains, checks, measures and compares, on any device, with the same bits.
//!
//! Exit codes: 0 done, 1 ran and the answer is no, 2 could not run, 3 the hardware computes wrongly (`train --paranoid`). Errors are one line on stderr. This file has what
//! the commands share: options, the device, and exiting; each command has its own file.
// Comments on arguments are the help of the program. Brackets there mark what may be left out.
#![allow(rustdoc::broken_intra_doc_links)]

mod bench;
mod board;
mod check;
mod devices;
mod diff;
mod export;
mod graph;
mod images;
mod inspect;
mod measurements;
mod models;
#[cfg(feature = "mpi")]
#[doc(hidden)]
pub mod mpi;
mod op;
mod ops;
mod out;
mod picture;
mod predict;
mod ranks;
mod signals;
mod task;
mod tensorboard;
mod trace_file;
mod train;
mod verify;

use clap::error::ErrorKind as Usage;
use clap::{Args, Parser, Subcommand, ValueEnum};
use dittograd::device::Device;
use dittograd::device::cpu::simd::{LEVELS, Simd};
use dittograd::error::{Error, ErrorKind};
use out::Out;
use ranks::Ranks;
use std::ffi::OsString;
use std::process::ExitCode;

/// One neural-network program, one answer, bit for bit, on every device.
#[derive(Parser)]
#[command(name = "dittograd", version, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args, Clone)]
struct Global {
    /// Where to compute: cpu, cuda or cuda:N [default: a GPU if there is one; same bits]
    #[arg(long, global = true, help_heading = "Every command", value_name = "NAME")]
    device: Option<String>,
    /// How products are computed: strict, fast or turbo (each the same bits everywhere), or tf32 (CUDA only)
    #[arg(long, global = true, help_heading = "Every command", value_name = "MODE")]
    numerics: Option<String>,
    /// CPU threads [default: all cores; same bits]
    #[arg(long, global = true, help_heading = "Every command", value_name = "N")]
    threads: Option<usize>,
    /// One JSON object a line on stdout, and nothing else there
    #[arg(long, global = true, help_heading = "Every command")]
    json: bool,
    /// Results only, no progress
    #[arg(long, global = true, help_heading = "Every command")]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model; the last line is the fingerprint of its parameters
    Train(Box<train::Train>),
    /// Use a trained model: on a file, on its test data, or to continue a text
    Predict(predict::Predict),
    /// Write a trained model as an ONNX file
    Export(export::Export),
    /// Show the processor, the GPUs and the libraries found
    Devices,
    /// List all ops, or explain one with its attributes
    Ops(ops::Ops),
    /// Run one op, and its gradient, on tensors from a file
    Op(op::Op),
    /// Check and show a program from a text file
    Graph(graph::Graph),
    /// Show what the folder of a run, a checkpoint or another safetensors file holds
    Inspect(inspect::Inspect),
    /// Show what differs between two runs, checkpoints, files of tensors or programs; exit 1 if anything does
    Diff(diff::Diff),
    /// Compute a run again from its record, and compare every step; exit 1 if anything differs
    Verify(verify::Verify),
    /// Show the runs of a folder in the browser, while they train
    Board(board::Board),
    /// Check ops against their references, on every device; exit 1 if anything is off
    Check(check::Check),
    /// Measure training steps and ops
    Bench(bench::Bench),
}

/// Why a command failed.
pub(crate) enum Fail {
    /// An error of the library.
    Library(Error),
    /// An error of the program itself.
    Message(String),
    /// Nobody reads stdout any more, which is not an error.
    Closed,
    /// Another rank has said why.
    Told,
}

impl Fail {
    /// The exit code.
    fn code(&self) -> u8 {
        match self {
            Fail::Library(e) if matches!(e.kind(), ErrorKind::Hardware { .. }) => 3,
            _ => 2,
        }
    }

    /// The message, if there is something to say.
    fn message(&self) -> Option<String> {
        match self {
            Fail::Library(e) => Some(in_options(&e.to_string())),
            // It may quote an error of the library.
            Fail::Message(m) => Some(in_options(m)),
            Fail::Closed | Fail::Told => None,
        }
    }
}

/// What the library advises, and what a user of the program can do instead.
const ADVICE: [(&str, &str); 9] = [
    (
        "; indices come from Session::labels or Session::indices, or from numbers by to_index()",
        "; indices are tensors of I64, I32 or U32",
    ),
    (
        "; numbers come from Session::input, variable or param, or from indices by to_float()",
        "; numbers are tensors of F32",
    ),
    (" (reshape, unsqueeze and squeeze change it)", ""),
    ("; Graph::text prints it, Display does not", "; `dittograd graph` prints it"),
    ("; Graph::text prints them", "; `dittograd graph` prints them"),
    (" with StateDict::without_prefix", " from the names in the file"),
    (
        "; load its weights with Params::load or StateDict::read",
        "; `train --weights` starts from its tensors",
    ),
    ("; release values or use a smaller batch", "; use a smaller --batch, or --shards"),
    (", and a program can register its own", ""),
];

/// A message without advice about Rust: in terms of options where there is some, else without the advice.
fn in_options(text: &str) -> String {
    let mut text = text.to_string();
    for (library, program) in ADVICE {
        text = text.replace(library, program);
    }
    // The first clause says what is wrong, and may have a name of a file in it.
    let mut clauses = text.split("; ");
    let first = clauses.next().unwrap_or_default().to_string();
    clauses.filter(|c| !is_rust(c)).fold(first, |all, clause| all + "; " + clause)
}

/// Whether a text names a method or a path of Rust. Python's advice is for users too.
fn is_rust(clause: &str) -> bool {
    let is_after_name = |at: usize| clause[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let has = |sign: &str| clause.match_indices(sign).any(|(at, _)| is_after_name(at));
    (has("::") || has("()")) && !clause.contains("torch")
}

impl From<Error> for Fail {
    fn from(e: Error) -> Fail {
        Fail::Library(e)
    }
}

impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Fail {
        match e.kind() {
            std::io::ErrorKind::BrokenPipe => Fail::Closed,
            _ => Fail::Message(format!("stdout: {e}")),
        }
    }
}

/// An error of the program.
pub(crate) fn fail<T>(why: impl Into<String>) -> Answer<T> {
    Err(Fail::Message(why.into()))
}

/// The result of commands. For a whole command, the boolean says whether the answer is yes.
pub(crate) type Answer<T = bool> = Result<T, Fail>;

impl Global {
    /// The requested device.
    fn device(&self) -> Answer<Device> {
        self.device_of(None)
    }

    /// The requested device, which is this rank's part of a machine if the request leaves a choice.
    fn device_of(&self, ranks: Option<&Ranks>) -> Answer<Device> {
        let device = match ranks {
            Some(ranks) => self.ranks_device(ranks)?,
            None => self.plain_device()?,
        };
        match &self.numerics {
            Some(mode) => Ok(device.in_mode(mode.parse()?)?),
            None => Ok(device),
        }
    }

    /// The requested device, in the mode of the environment.
    fn plain_device(&self) -> Answer<Device> {
        Ok(match (&self.device, self.threads) {
            (None, None) => Device::best()?,
            (Some(name), threads) => named(name, threads)?,
            (None, Some(threads)) => match std::env::var("DITTOGRAD_DEVICE") {
                Ok(name) if !name.is_empty() => named(&name, Some(threads))?,
                _ => match Device::cuda(0) {
                    Ok(gpu) => gpu,
                    Err(_) => cpu(threads)?,
                },
            },
        })
    }

    /// The requested device, in the mode of the environment, where several ranks may share a machine.
    fn ranks_device(&self, ranks: &Ranks) -> Answer<Device> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let name = self.device.clone().or_else(|| set("DITTOGRAD_DEVICE"));
        let threads = match set("DITTOGRAD_THREADS") {
            None => Some(self.threads.unwrap_or_else(|| ranks.threads())),
            Some(_) => self.threads,
        };
        Ok(match name.as_deref() {
            Some("cuda") => ranks.gpu()?,
            Some(name) => named(name, threads)?,
            None => match ranks.gpu() {
                Ok(gpu) => gpu,
                Err(_) => named("cpu", threads)?,
            },
        })
    }

    /// The CPU with the requested number of threads, whatever the device.
    fn cpu(&self) -> Answer<Device> {
        Ok(match self.threads {
            Some(threads) => cpu(threads)?,
            None => Device::cpu()?,
        })
    }
}

fn named(name: &str, threads: Option<usize>) -> Result<Device, Error> {
    match threads {
        Some(threads) if name == "cpu" => cpu(threads),
        _ => Device::parse(name),
    }
}

fn cpu(threads: usize) -> Result<Device, Error> {
    Device::cpu_with(threads, simd()?)
}

/// The SIMD level of the environment, else the best one.
pub(crate) fn simd() -> Result<Simd, Error> {
    match std::env::var_os("DITTOGRAD_SIMD").filter(|v| !v.is_empty()) {
        None => Ok(Simd::best()),
        Some(value) => {
            let value = value.to_string_lossy().into_owned();
            value.parse().map_err(|_| {
                let kind = ErrorKind::Env { name: "DITTOGRAD_SIMD", value, want: LEVELS };
                Error::new("environment", kind)
            })
        }
    }
}

/// A usage error of clap in one line.
fn usage(e: &clap::Error) -> String {
    let text = e.to_string();
    let lines = text.lines().take_while(|l| !l.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}

/// Parses arguments. Otherwise returns what to print instead: an answer, such as the help, or an error.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Answer<String>> {
    let args: Vec<OsString> = args.into_iter().collect();
    match Cli::try_parse_from(&args) {
        Ok(cli) => Ok(cli),
        Err(e) if matches!(e.kind(), Usage::DisplayHelp | Usage::DisplayVersion) => {
            let mut text = e.to_string().trim_end().to_string();
            // `train MODEL --help` also has what only this model has.
            let words = args.iter().filter_map(|a| a.to_str()).skip_while(|a| *a != "train").skip(1);
            if let Some(model) = words.filter_map(|w| models::Model::from_str(w, false).ok()).next() {
                text += &format!("\n\n{}", train::model_help(model));
            }
            Err(Ok(text))
        }
        Err(e) if e.kind() == Usage::DisplayHelpOnMissingArgumentOrSubcommand => Err(fail(
            "a command is needed: train, predict, export, devices, ops, op, graph, inspect, diff, verify, board, check or bench (see --help)",
        )),
        Err(e) => Err(fail(usage(&e))),
    }
}

/// Runs the command. Of those that many processes run together, `ranks` becomes the place among them.
fn run(ranks: &mut Option<Ranks>) -> Answer {
    let parsed = match parse(std::env::args_os()) {
        Ok(cli) => Ok(Ok(cli)),
        Err(instead) => instead.map(Err),
    };
    if matches!(
        &parsed,
        Ok(Ok(Cli { command: Command::Train(_) | Command::Bench(_) | Command::Devices, .. }))
            | Ok(Err(_))
            | Err(_)
    ) {
        *ranks = Ranks::start()?;
    }
    let ranks = ranks.as_ref();
    let is_silent = ranks.is_some_and(|r| !r.leads());
    let parsed = match ranks {
        Some(ranks) => ranks.agree(parsed)?,
        None => parsed?,
    };
    let cli = match parsed {
        Ok(cli) => cli,
        Err(text) => {
            Out::new(false, false, is_silent).line(&text)?;
            return Ok(true);
        }
    };
    let (global, out) = (&cli.global, Out::new(cli.global.json, cli.global.quiet, is_silent));
    match &cli.command {
        Command::Train(c) => c.run(global, &out, ranks),
        Command::Predict(c) => c.run(global, &out),
        Command::Export(c) => c.run(global, &out),
        Command::Devices => devices::run(global, &out, ranks),
        Command::Ops(c) => c.run(&out),
        Command::Op(c) => c.run(global, &out),
        Command::Graph(c) => c.run(global, &out),
        Command::Inspect(c) => c.run(&out),
        Command::Diff(c) => c.run(&out),
        Command::Verify(c) => c.run(global, &out),
        Command::Board(c) => c.run(global, &out),
        Command::Check(c) => c.run(global, &out),
        Command::Bench(c) => c.run(global, &out, ranks),
    }
}

/// Checks arguments, starting with the program's name, as the program would before it does anything: options, and the
/// small languages inside them. Nothing is read, written or run. Returns what the program would print: the error, or
/// the text that it prints instead of doing something.
#[doc(hidden)]
pub fn look_at(args: impl IntoIterator<Item = OsString>) -> Result<Option<String>, String> {
    let looked = || -> Answer<Option<String>> {
        let cli = match parse(args) {
            Ok(cli) => cli,
            Err(instead) => return instead.map(Some),
        };
        if let Some(mode) = &cli.global.numerics {
            mode.parse::<dittograd::numerics::Numerics>()?;
        }
        match &cli.command {
            Command::Op(c) => c.look()?,
            Command::Bench(c) => c.look()?,
            _ => {}
        }
        Ok(None)
    };
    looked().map_err(|end| end.message().unwrap_or_default())
}

/// Reads images like `train --data FOLDER`. Returns the name of the data and the sizes of its images, or the error.
#[doc(hidden)]
pub fn pictures(folder: &std::path::Path) -> Result<(String, Vec<usize>), String> {
    let load = || match images::classes(folder)? {
        Some(classes) => images::load(folder, &classes, None, &out::Busy::hidden()),
        None => fail("no folders"),
    };
    let data = load().map_err(|end| end.message().unwrap_or_default())?;
    Ok((data.name().to_string(), data.x().shape().dims().to_vec()))
}

/// Reads the settings of a run like `train --resume`, from a checkpoint of a small mlp that has them, and builds their
/// model. Returns its name, or the error. No data is read or generated.
#[doc(hidden)]
pub fn settings(text: &str) -> Result<String, String> {
    let read = || -> Answer<String> {
        let device = cpu(1)?;
        let mut params = dittograd::params::Params::new(&device, 7);
        dittograd::nn::Mlp::new(&mut params, &[2, 4, 3])?;
        let mut checkpoint = dittograd::io::Checkpoint::new("mlp", &params)?;
        (checkpoint.random.seed, checkpoint.data.batch) = (7, 8);
        checkpoint.config = match serde_json::from_str(text) {
            Ok(config) => config,
            Err(e) => return fail(e.to_string()),
        };
        let spec = train::Spec::of(&checkpoint, std::path::Path::new("a.safetensors"))?;
        let (params, _) = spec.net_of(&checkpoint, &device)?;
        dittograd::io::SaveLoad::load_state_dict(&params, &checkpoint.params, true)?;
        Ok(spec.model.name())
    };
    read().map_err(|end| end.message().unwrap_or_default())
}

/// The whole program: its arguments and its exit code are those of the process.
pub fn main() -> ExitCode {
    dittograd::numerics::environment::set_strict();
    let mut ranks = None;
    let (code, why) = match run(&mut ranks) {
        Ok(yes) => (u8::from(!yes), None),
        Err(Fail::Closed) => (0, None),
        Err(end) => (end.code(), end.message()),
    };
    if let Some(why) = &why {
        out::warn(why);
    }
    ExitCode::from(match ranks {
        Some(ranks) => ranks.finish(code, why.as_deref()),
        None => code,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_hardware_has_an_exit_code_of_its_own() {
        let code = |kind| Fail::from(Error::new("train", kind)).code();
        assert_eq!(code(ErrorKind::Hardware { why: String::new() }), 3);
        assert_eq!(code(ErrorKind::NotFinite { why: String::new() }), 2);
        assert_eq!(Fail::Message(String::new()).code(), 2);
    }

    #[test]
    fn advice_about_rust_is_left_out_or_put_in_options() {
        for (library, program) in [
            ("a().csv: No such file", "a().csv: No such file"),
            ("sum: takes 1 inputs, got 2", "sum: takes 1 inputs, got 2"),
            (
                "the buffer was released; keep it, or copy it, before calling release()",
                "the buffer was released",
            ),
            (
                "an input lives on cpu, the operation runs on cuda:0; move it with to_device()",
                "an input lives on cpu, the operation runs on cuda:0",
            ),
            ("no gradient; use trainable parameters, or Session::variable; see x", "no gradient; see x"),
            (
                "f: is a pickle; write it with safetensors.torch.save_file(model.state_dict(), \"f\")",
                "f: is a pickle; write it with safetensors.torch.save_file(model.state_dict(), \"f\")",
            ),
            (
                "out of memory; release values or use a smaller batch",
                "out of memory; use a smaller --batch, or --shards",
            ),
        ] {
            assert_eq!(in_options(library), program);
        }
    }
}
