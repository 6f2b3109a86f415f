//! The program as its users see it, in one binary so that it links once: run as a process, judged by exit code, stdout, stderr and
//! the files it leaves.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(unix)]
mod board;
mod commands;
mod diff;
#[cfg(unix)]
mod environment;
mod export;
mod images;
mod inspect;
mod many_seeds;
mod measures;
mod messages;
mod program;
mod programs;
#[cfg(unix)]
mod ranks;
mod resume;
#[cfg(unix)]
mod runs;
#[cfg(unix)]
mod seeds;
mod train;
mod verify;
