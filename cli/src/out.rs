//! Output to stdout and stderr: lines or JSON objects, without panicking when nobody reads them.

use crate::Answer;
pub(crate) use dittograd::device::readable_bytes as bytes;
use dittograd::error::shown;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

/// Writes to stdout.
pub(crate) struct Out {
    json: bool,
    quiet: bool,
    is_silent: bool,
}

impl Out {
    /// Writes JSON objects instead of lines; no progress if `quiet`, nothing at all if silent.
    pub(crate) fn new(json: bool, quiet: bool, is_silent: bool) -> Out {
        Out { json, quiet: quiet || is_silent, is_silent }
    }

    /// Whether another process writes everything.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether only JSON may be written.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Whether progress is wanted.
    pub(crate) fn chatty(&self) -> bool {
        !self.quiet
    }

    /// Whether a progress bar would be visible.
    pub(crate) fn bar(&self) -> bool {
        !self.json && !self.quiet && std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
    }

    /// Shows on a terminal that something is under way, until the result is dropped.
    pub(crate) fn busy(&self, what: &str) -> Busy {
        Busy::new(self.bar(), what)
    }

    /// A line of text.
    pub(crate) fn line(&self, text: &str) -> Answer<()> {
        if self.is_silent {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.write_all(b"\n")?;
        Ok(stdout.flush()?)
    }

    /// A result: the object with `--json`, else the text.
    pub(crate) fn result(&self, object: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Answer<()> {
        if self.json { self.line(&object().to_string()) } else { self.line(&text()) }
    }

    /// Progress: like a result, but skipped if it is not wanted. If progress cannot be written (nobody reads it, or the
    /// disk is full), the work goes on; a result that cannot be written is an error at the end.
    pub(crate) fn progress(&self, object: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        if !self.quiet {
            let _ = self.result(object, text);
        }
    }
}

/// A line on a terminal that shows what is under way and for how long.
pub(crate) struct Busy(ProgressBar);

impl Busy {
    fn new(is_shown: bool, what: &str) -> Busy {
        let bar = if is_shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}{prefix} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_string());
        if is_shown {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Busy(bar)
    }

    /// Shows nothing.
    pub(crate) fn hidden() -> Busy {
        Busy::new(false, "")
    }

    /// Shows what comes next.
    pub(crate) fn now(&self, what: &str) {
        self.0.set_message(what.to_string());
        self.0.set_prefix("");
    }

    /// Shows that so many of them are done.
    pub(crate) fn at(&self, done: usize, all: usize) {
        if !self.0.is_hidden() {
            self.0.set_prefix(format!(" {done}/{all}"));
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The most characters of a line on stderr, since arguments may be long.
const MAX_LINE_CHARS: usize = 1000;

/// The number of this process, if it is one of many.
static RANK: OnceLock<usize> = OnceLock::new();

/// From now on lines on stderr name the rank, but for rank 0, which speaks for all.
pub(crate) fn speak_as(rank: usize) {
    let _ = RANK.set(rank);
}

/// One line on stderr, in the program's name. Line breaks inside become spaces, other control characters are escaped.
pub(crate) fn warn(text: &str) {
    let line =
        text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    let line = shown(&line, MAX_LINE_CHARS);
    let line = match RANK.get() {
        Some(rank) if *rank > 0 => format!("dittograd: rank {rank}: {line}\n"),
        _ => format!("dittograd: {line}\n"),
    };
    // At once, so that lines of several processes do not mix. If stderr is closed too, nothing can be printed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Rows as a table with columns as wide as needed, two spaces apart.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:w$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
