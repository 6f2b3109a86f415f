//! `board`: the runs of a folder as a page in the browser: a list, live curves, comparisons, pictures, programs.
//!
//! [`runs`] finds runs and reads the heads and tails of their files, [`curves`] reads measurements while they grow, and
//! [`server`] answers the page. A run is not disturbed: its files are only read, and it is not locked.

mod curves;
mod runs;
mod server;

use crate::out::Out;
use crate::train::folder;
use crate::{Answer, Global, fail};
use clap::Args;
use runs::Runs;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Show the runs of a folder in the browser, while they train. Ctrl-C ends it; the runs go on.
#[derive(Args)]
pub(crate) struct Board {
    /// The folder of the runs, or of one run [default: DITTOGRAD_RUNS, or runs]
    folder: Option<PathBuf>,
    /// Port of the page; 0 is any free one
    #[arg(long, value_name = "N", default_value_t = 6070)]
    port: u16,
    /// Address to listen on. Others than this machine reach the page if it is not a loopback address: it is read-only, not encrypted,
    /// and needs its token
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
}

/// How often files are looked at.
const ROUND: Duration = Duration::from_millis(1000);

/// What the threads of the server share.
pub(crate) struct Shared {
    runs: Mutex<Runs>,
    /// Notified when the list has changed.
    changed: Condvar,
    curves: Mutex<server::Cache>,
    /// What the address must have.
    token: String,
    global: Global,
}

/// A lock. A thread that panicked has left nothing half done that matters for what is shown.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(folder: &Path, global: &Global) -> Answer<Shared> {
        let mut bytes = [0; 16];
        if let Err(e) = getrandom::fill(&mut bytes) {
            return fail(format!("the system gives no random numbers for the token: {e}"));
        }
        let token = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let mut runs = Runs::of(folder);
        runs.scan();
        Ok(Shared {
            runs: Mutex::new(runs),
            changed: Condvar::new(),
            curves: Mutex::default(),
            token,
            global: global.clone(),
        })
    }

    /// Looks at the files once.
    fn round(&self) {
        held(&self.runs).scan();
        runs::add_fingerprints(&self.runs);
        self.changed.notify_all();
    }
}

impl Board {
    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let asked = self.folder.clone().or_else(folder::runs).unwrap_or_else(|| PathBuf::from("runs"));
        let folder = match asked.canonicalize() {
            Ok(folder) if folder.is_dir() => folder,
            Ok(_) => return fail(format!("{}: is a file, not the folder of runs", asked.display())),
            Err(e) => {
                let how = "name the folder of runs, or begin one with: dittograd train mlp";
                return fail(format!("{}: {e}; {how}", asked.display()));
            }
        };
        let asked = SocketAddr::new(self.host, self.port);
        let listener = match TcpListener::bind(asked) {
            Ok(listener) => listener,
            Err(e) => return fail(format!("{asked}: {e}; use another --port, or --port 0 for any free one")),
        };
        let address = listener.local_addr().unwrap_or(asked);
        let shared = Arc::new(Shared::new(&folder, global)?);
        let page = format!("http://{address}/?token={}", shared.token);
        let count = held(&shared.runs).all.len();
        let what = folder.display().to_string();
        out.result(
            || json!({"address": page, "folder": what, "runs": count}),
            || format!("board of {what}, {count} runs: {page}\nCtrl-C ends it"),
        )?;
        let watched = shared.clone();
        thread::spawn(move || {
            loop {
                watched.round();
                thread::sleep(ROUND);
            }
        });
        server::serve(&listener, &shared, address.port());
        Ok(true)
    }
}
