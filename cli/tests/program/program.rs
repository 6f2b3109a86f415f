//! The program as a process: how it is started, what it said, and what that should be.

use dittograd::train::OF_THE_MACHINE;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where the program is.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_dittograd");

/// How a process ended, and what it said.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    /// What a process left behind.
    pub fn of(Output { status, stdout, stderr }: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8 output");
        Run { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    pub fn last_line(&self) -> &str {
        self.out.lines().last().unwrap_or_default()
    }

    /// The last line of a training that went well.
    pub fn fingerprint(&self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        let digits = self.last_line().strip_prefix("fingerprint ").expect("a last line with the fingerprint");
        assert!(digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{digits}");
        digits.to_string()
    }

    /// What `--json` gave, an object a line.
    pub fn objects(&self) -> Vec<Value> {
        self.out.lines().map(|l| serde_json::from_str(l).expect(l)).collect()
    }

    /// It ended with 2, and one line on stderr says why; there may be anything on stdout.
    pub fn failed(&self, what: &str, want: &str) {
        let Run { code, out, err } = self;
        assert_eq!((*code, err.lines().count()), (Some(2), 1), "{what}: {out}{err:?}");
        assert!(err.starts_with("dittograd: ") && err.contains(want), "{what}: {err:?} does not have {want}");
        let line = err.trim_end_matches('\n');
        assert!(!line.chars().any(char::is_control) && line.len() < 1100, "{what}: {err:?}");
    }

    /// It did not even begin: [`failed`](Run::failed), and nothing on stdout.
    pub fn refused(&self, what: &str, want: &str) {
        self.failed(what, want);
        assert_eq!(self.out, "", "{what}: {}", self.err);
    }
}

/// The program with no settings around it, nothing to read, and no folders for runs.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(PROGRAM);
    for name in ["DEVICE", "NUMERICS", "THREADS", "SIMD", "CACHE", "WATCH"] {
        command.env_remove(format!("DITTOGRAD_{name}"));
    }
    command.args(args).env("DITTOGRAD_RUNS", "none");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program in a folder, where its runs go, with arguments separated by spaces.
pub fn command_in(folder: &Path, args: &str) -> Command {
    let mut command = command(args.split_whitespace());
    command.current_dir(folder).env_remove("DITTOGRAD_RUNS");
    command
}

/// A command behind a line of shell, which says `exec "$@"`.
#[cfg(unix)]
pub fn behind(line: &str, plain: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line, "sh"]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = plain.get_current_dir() {
        shell.current_dir(folder);
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

pub fn finish(command: &mut Command) -> Run {
    Run::of(command.output().unwrap())
}

/// Runs with arguments separated by spaces.
pub fn run(args: &str) -> Run {
    finish(&mut command(args.split_whitespace()))
}

/// Runs in a folder.
pub fn run_in(folder: &Path, args: &str) -> Run {
    finish(&mut command_in(folder, args))
}

/// Runs where files may have so many blocks of 512 bytes and no more: writing on fails as on a full disk, for root too. The
/// signal that would end the process is ignored; pipes have no limit.
#[cfg(unix)]
pub fn limited(blocks: u32, plain: &Command) -> Run {
    finish(&mut behind(&format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""), plain))
}

/// A command that must end with 0.
pub fn good(folder: &Path, args: &str) -> Run {
    let run = run_in(folder, args);
    assert_eq!(run.code, Some(0), "{args}\n{}{}", run.out, run.err);
    run
}

/// What a command says that must end with 0 and has nothing for stderr.
pub fn answer(folder: &Path, args: &str) -> String {
    let run = good(folder, args);
    assert_eq!(run.err, "", "{args}");
    run.out
}

/// A command that must be [refused](Run::refused).
pub fn refused(folder: &Path, args: &str, want: &str) {
    run_in(folder, args).refused(args, want);
}

/// A command that must [fail](Run::failed).
pub fn failed(folder: &Path, args: &str, want: &str) {
    run_in(folder, args).failed(args, want);
}

/// What a run measured, but for the times.
pub fn measured(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let line = |l: &str| {
        let mut v: Value = serde_json::from_str(l).unwrap();
        v.as_object_mut().unwrap().retain(|name, _| !OF_THE_MACHINE.contains(&name.as_str()));
        v
    };
    text.lines().map(line).collect()
}

/// Sends a signal, such as `-INT`.
#[cfg(unix)]
pub fn signal(child: &std::process::Child, name: &str) {
    Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
}
