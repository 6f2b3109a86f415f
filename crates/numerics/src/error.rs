//! The one error type. An error is a value that names the operation, says what was wrong with the
//! actual shapes or numbers, and what to do about it; no public call panics on bad input.
//!
//! The payload is boxed, so a `Result<()>` stays one word wide on the hot path.

use crate::shape::Shape;
use std::fmt::{self, Write};
use std::panic::Location;

/// Shorthand for a result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Writes on one line: characters that a terminal would act on (control characters, and those that break lines or change
/// the direction of writing) are escaped. What was escaped before stays as it is.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let acts = |c: char| {
            c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        };
        let mut rest = text;
        while let Some(at) = rest.find(acts) {
            self.0.write_str(&rest[..at])?;
            let Some(c) = rest[at..].chars().next() else { break };
            write!(self.0, "{}", c.escape_debug())?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// A text from a file, an argument or another program as part of a message: on one line, with control characters escaped, and
/// at most its first `most` characters.
pub fn shown(text: &str, most: usize) -> String {
    let (part, more) = match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], "…"),
        None => (text, ""),
    };
    let mut line = OneLine(String::new());
    // A string takes everything.
    let _ = line.write_str(part);
    line.0 + more
}

/// A name from a file or a program as part of a message.
#[doc(hidden)]
pub fn shown_name(text: &str) -> String {
    shown(text, 60)
}

/// Bytes for people: `12 B`, `3.4 MiB`.
pub fn readable_bytes(n: usize) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}

/// What went wrong, where, and with which shapes. As text it is one line, whatever files and arguments held:
/// `conv (unet.down2.conv1, src/main.rs:41): …` names the operation, the layer whose parameters it read, and the line of the
/// program that called it. Two errors are equal if operation and kind are, wherever they happened.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    op: String,
    kind: ErrorKind,
    layer: Option<String>,
    location: Option<&'static Location<'static>>,
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (&self.0.op, &self.0.kind) == (&other.0.op, &other.0.kind)
    }
}

/// Whether a file is one of the library's own. A line there tells its user nothing.
fn is_ours(file: &str) -> bool {
    match file!().strip_suffix("crates/numerics/src/error.rs") {
        Some(root) => {
            let folders = ["src/", "crates/", "check/src/", "cli/src/"];
            file.strip_prefix(root).is_some_and(|f| folders.iter().any(|folder| f.starts_with(folder)))
        }
        // From a registry: the crates are side by side.
        None => file!()
            .split_once("dittograd-numerics")
            .is_some_and(|(root, _)| file.strip_prefix(root).is_some_and(|f| f.starts_with("dittograd"))),
    }
}

/// The classes of error. New ones may be added, so a `match` needs a wildcard arm.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operation takes another number of inputs.
    Arity {
        /// Inputs the operation takes.
        want: usize,
        /// Inputs it was given.
        got: usize,
    },
    /// An input has too few or too many axes.
    Rank {
        /// What the operation needs, in words: `at least 1`, `exactly 2`.
        want: &'static str,
        /// The shape it was given.
        got: Shape,
    },
    /// Two shapes do not fit together.
    Shapes {
        /// What does not fit.
        why: &'static str,
        /// The first shape.
        left: Shape,
        /// The second shape.
        right: Shape,
    },
    /// A tensor of another element type was expected (float32 values, u32 indices).
    DType {
        /// The type the operation needs at this input.
        want: &'static str,
        /// The type it was given.
        got: &'static str,
        /// Position of the input.
        input: usize,
    },
    /// An axis is out of range or named twice.
    Axis {
        /// The offending axis.
        axis: usize,
        /// The shape whose axes were meant.
        shape: Shape,
    },
    /// An attribute or argument has a value that makes no sense here.
    Argument {
        /// Its name.
        name: &'static str,
        /// What is wrong with it and what would be right.
        why: String,
    },
    /// The element count or byte size does not fit.
    TooLarge {
        /// The dimensions asked for.
        dims: Vec<usize>,
    },
    /// A slice or buffer does not hold the number of elements its shape calls for.
    Length {
        /// Elements needed.
        want: usize,
        /// Elements there.
        got: usize,
    },
    /// An index points outside its axis.
    Index {
        /// Position of the index among the indices.
        at: usize,
        /// The index itself.
        index: usize,
        /// Size of the axis it points into.
        bound: usize,
    },
    /// The device has no room left.
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What they were for, and the state of the device's memory at that moment.
        report: String,
    },
    /// The buffer, or the buffer this one is a view of, was released.
    Released,
    /// Inputs live on different devices.
    Device {
        /// Device the operation runs on.
        want: String,
        /// Device the input lives on.
        got: String,
    },
    /// A handle from before the last `reset` of its session.
    Stale {
        /// Epoch of the handle.
        handle: u32,
        /// Current epoch of the session.
        session: u32,
    },
    /// A handle of another session.
    Foreign,
    /// No node has this id.
    Node {
        /// The id asked for.
        id: usize,
        /// Number of nodes there are.
        size: usize,
    },
    /// A gradient cannot be formed.
    Gradient {
        /// Why not, and what to do.
        why: String,
    },
    /// A loss or another value that must be a finite number is not.
    NotFinite {
        /// Which one, where it came from, and what to do.
        why: String,
    },
    /// The hardware computes wrongly: the same step had other bits each time.
    Hardware {
        /// What differed, and what to do.
        why: String,
    },
    /// Something is not offered here.
    Unsupported {
        /// What, and what to use instead.
        what: String,
    },
    /// The CUDA driver answered with an error.
    Cuda {
        /// The driver call.
        call: &'static str,
        /// Its result code.
        code: i32,
        /// The driver's own words.
        message: String,
    },
    /// An earlier CUDA error made the device unusable; only a new process can use it again.
    Poisoned {
        /// The first error.
        first: String,
    },
    /// A run-time library was not found.
    Library {
        /// Which one.
        name: &'static str,
        /// Where it was looked for.
        looked: Vec<String>,
    },
    /// NVRTC rejected a kernel.
    Compile {
        /// The kernel module.
        module: String,
        /// NVRTC's log.
        log: String,
    },
    /// A text is not what it should be.
    Parse {
        /// Where, counted from 1.
        line: usize,
        /// The character in that line, counted from 1.
        column: usize,
        /// What is wrong there and what would be right.
        why: String,
    },
    /// Reading or writing a file failed.
    File {
        /// The file.
        path: String,
        /// What happened.
        why: String,
    },
    /// Another process of the group does not take part any more.
    Peer {
        /// Its number.
        rank: usize,
        /// What it did.
        why: String,
    },
    /// An environment variable holds something that is not understood.
    Env {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be understood.
        want: &'static str,
    },
    /// What a program that uses the library has to say.
    Message {
        /// Its words.
        why: String,
    },
    /// A broken internal invariant: a bug in this crate.
    Internal {
        /// Which one.
        what: &'static str,
    },
}

impl Error {
    /// An error of `kind` raised by the operation `op`.
    #[cold]
    #[track_caller]
    pub fn new(op: impl Into<String>, kind: ErrorKind) -> Error {
        Error(Box::new(Inner { op: op.into(), kind, layer: None, location: None })).at(Location::caller())
    }

    /// The same error with the line of the program that called the operation, unless it has one. Lines of the library itself
    /// are left out.
    #[doc(hidden)]
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Error {
        if self.0.location.is_none() && !is_ours(location.file()) {
            self.0.location = Some(location);
        }
        self
    }

    /// The same error with the layer of the parameters that the operation read, unless it has one.
    #[doc(hidden)]
    #[must_use]
    pub fn in_layer(mut self, parameters: &[&str]) -> Error {
        let layer_of = |name: &'_ str| name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_string();
        if self.0.layer.is_none() && !parameters.is_empty() {
            let mut layers: Vec<String> = parameters.iter().map(|name| layer_of(name)).collect();
            layers.dedup();
            self.0.layer = Some(layers.join(", "));
        }
        self
    }

    /// The same error without the line of the program that called the operation, for programs whose users do not see
    /// their code.
    #[must_use]
    pub fn without_location(mut self) -> Error {
        self.0.location = None;
        self
    }

    /// An error of a program that uses the library, in its own words.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// fn positive(x: f32) -> Result<f32> {
    ///     if x > 0.0 { Ok(x) } else { Err(Error::msg(format!("{x} is not positive"))) }
    /// }
    /// assert_eq!(positive(-1.0).unwrap_err().to_string(), "-1 is not positive");
    /// ```
    #[cold]
    #[track_caller]
    pub fn msg(why: impl Into<String>) -> Error {
        Error::new("", ErrorKind::Message { why: why.into() })
    }

    /// The operation that failed.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The line of the program that called the operation, if it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// The layer whose parameters the operation read, if it read any.
    pub fn layer(&self) -> Option<&str> {
        self.0.layer.as_deref()
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// A bad argument: which one, what is wrong with it, and what would be right.
    #[cold]
    #[track_caller]
    pub fn argument(op: impl Into<String>, name: &'static str, why: impl Into<String>) -> Error {
        Error::new(op, ErrorKind::Argument { name, why: why.into() })
    }

    /// Something that is not offered.
    #[doc(hidden)]
    #[cold]
    #[track_caller]
    pub fn unsupported(op: impl Into<String>, what: impl Into<String>) -> Error {
        Error::new(op, ErrorKind::Unsupported { what: what.into() })
    }

    /// A file that could not be read or written.
    #[doc(hidden)]
    #[cold]
    #[track_caller]
    pub fn file(op: impl Into<String>, path: impl AsRef<std::path::Path>, why: impl fmt::Display) -> Error {
        let path = path.as_ref().display().to_string();
        Error::new(op, ErrorKind::File { path, why: why.to_string() })
    }
}

/// A result whose error gets the line of the program that called the function it is used in, unless it has one: where a closure, or a
/// function of a lower layer, lost it. The function is `#[track_caller]`.
#[doc(hidden)]
pub trait Located {
    #[must_use]
    #[track_caller]
    fn located(self) -> Self;
}

impl<T> Located for Result<T> {
    fn located(self) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            Err(e) => Err(e.at(Location::caller())),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::new("io", ErrorKind::Message { why: e.to_string() })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut OneLine(f);
        if !self.0.op.is_empty() {
            f.write_str(&self.0.op)?;
            match (&self.0.layer, self.0.location) {
                (None, None) => {}
                (Some(layer), None) => write!(f, " ({layer})")?,
                (None, Some(l)) => write!(f, " ({}:{})", l.file(), l.line())?,
                (Some(layer), Some(l)) => write!(f, " ({layer}, {}:{})", l.file(), l.line())?,
            }
            f.write_str(": ")?;
        }
        match &self.0.kind {
            ErrorKind::Message { why } => f.write_str(why),
            ErrorKind::Arity { want, got } => write!(f, "takes {want} inputs, got {got}"),
            ErrorKind::Rank { want, got } => {
                let rank = got.rank();
                write!(
                    f,
                    "got shape {got} of rank {rank}, needs rank {want} (reshape, unsqueeze and squeeze change it)"
                )
            }
            ErrorKind::Shapes { why, left, right } => write!(f, "{why}: {left} and {right}"),
            ErrorKind::DType { want, got, input } => {
                let hint = match *want {
                    "u32" => {
                        "indices come from Session::labels or Session::indices, or from numbers by to_index()"
                    }
                    _ => {
                        "numbers come from Session::input, variable or param, or from indices by to_float(); indices are read with indices()"
                    }
                };
                write!(f, "input {input} holds {got} elements, needs {want}; {hint}")
            }
            ErrorKind::Axis { axis, shape } => {
                let rank = shape.rank();
                write!(f, "axis {axis} is out of range or repeated for shape {shape} of rank {rank}")?;
                match rank {
                    0 => f.write_str("; a scalar has no axes"),
                    _ => write!(f, "; axes are counted from the outermost, 0, to {}", rank - 1),
                }
            }
            ErrorKind::Argument { name, why } => write!(f, "{name}: {why}"),
            ErrorKind::TooLarge { dims } => {
                write!(f, "a tensor of dimensions {dims:?} does not fit the address space")
            }
            ErrorKind::Length { want, got } => write!(f, "got {got} elements, needs {want}"),
            ErrorKind::Index { at, index, bound } => {
                write!(f, "index {index} at position {at} is outside 0..{bound}")
            }
            ErrorKind::OutOfMemory { bytes, report } => {
                let asked = readable_bytes(*bytes);
                write!(f, "out of memory asking for {asked} {report}; release values or use a smaller batch")
            }
            ErrorKind::Released => {
                f.write_str("the buffer was released; keep it, or copy it, before calling release()")
            }
            ErrorKind::Device { want, got } => {
                write!(f, "an input lives on {got}, the operation runs on {want}; move it with to_device()")
            }
            ErrorKind::Stale { handle, session } => write!(
                f,
                "the handle is from epoch {handle}, the session is at epoch {session}: it was reset; record the value again"
            ),
            ErrorKind::Foreign => {
                f.write_str("the handle belongs to another session; use handles of one session only")
            }
            ErrorKind::Node { id, size } => write!(f, "there is no node {id}, the tape has {size}"),
            ErrorKind::Gradient { why } | ErrorKind::NotFinite { why } | ErrorKind::Hardware { why } => {
                f.write_str(why)
            }
            ErrorKind::Unsupported { what } => f.write_str(what),
            ErrorKind::Cuda { call, code, message } => {
                write!(f, "{call} failed with code {code} ({message})")
            }
            ErrorKind::Poisoned { first } => {
                write!(f, "the CUDA device is unusable after an earlier error ({first}); restart the process")
            }
            ErrorKind::Library { name, looked } => {
                write!(f, "{name} was not found; looked for {}", looked.join(", "))
            }
            ErrorKind::Compile { module, log } => write!(f, "NVRTC rejected module {module}: {log}"),
            ErrorKind::Parse { line, column, why } => write!(f, "line {line}, column {column}: {why}"),
            ErrorKind::File { path, why } => write!(f, "{path}: {why}"),
            ErrorKind::Peer { rank, why } => write!(f, "rank {rank} {why}"),
            ErrorKind::Env { name, value, want } => write!(f, "{name}={value} is not understood, use {want}"),
            ErrorKind::Internal { what } => {
                write!(f, "internal invariant broken: {what}; please report this")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_it_holds() {
        let bad = "a\n\r\t\0\u{1b}[31m\u{7f}\u{85}\u{202e}\u{2028}b – é\u{301}字`\\n";
        let want = r"a\n\r\t\0\u{1b}[31m\u{7f}\u{85}\u{202e}\u{2028}b – é";
        for error in [
            Error::file(bad, "p", "w"),
            Error::file("o", bad, "w"),
            Error::file("o", "p", bad),
            Error::argument("o", "name", bad),
            Error::new("o", ErrorKind::Parse { line: 1, column: 1, why: bad.into() }),
            Error::new("o", ErrorKind::Env { name: "N", value: bad.into(), want: "w" }),
        ] {
            let text = error.to_string();
            assert!(text.contains(want) && text.contains("é\u{301}字`\\n"), "{text}");
            assert!(!text.chars().any(char::is_control), "{text:?}");
            // An error inside another is escaped once.
            assert!(Error::file("o", "p", &error).to_string().ends_with(&text));
        }
        assert_eq!(shown("a\nbc", 3), r"a\nb…");
        assert_eq!((shown("abc", 3), shown("", 0), shown("a", 0)), ("abc".into(), "".into(), "…".into()));
    }
}
