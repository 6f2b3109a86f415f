//! The server of the page: who may ask, and what is answered. Paths of files never come from a request: a run is asked for by its
//! number, a file of it by a name that is looked for among those that it has.
//!
//! Each connection has a thread and one request, of bounded length and time. A page asks for little, and so none waits for another.

use super::curves::Curves;
use super::runs::{Runs, ask_fingerprint, stamp};
use super::{Shared, held};
use crate::diff::Diff;
use crate::export::Traced;
use crate::measurements::csv;
use crate::{Answer, fail};
use dittograd::graph::Passes;
use dittograd::train::{CHECKPOINT, METRICS};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The most connections at the same time, those of pages that are kept up to date included.
const MAX_CONNECTIONS: usize = 256;
/// The most bytes and lines of a request, how long it may take to come, and how long an answer may wait to be read.
const MAX_REQUEST: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
const READ_TIME: Duration = Duration::from_secs(10);
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Points of all curves in memory, beyond which those that were not asked for the longest are forgotten.
const MAX_POINTS: usize = 32 << 20;
/// The most runs in one answer, and the most parts of an axis.
const MAX_COMPARED: usize = 64;
const MAX_BUCKETS: usize = 4000;
/// The most bytes of a text that are shown, and of a picture.
const MAX_TEXT: usize = 64 << 10;
const MAX_PICTURE: u64 = 32 << 20;
/// A silent page is written to so often, to find out whether it is still there.
const PULSE: Duration = Duration::from_secs(15);

/// Nothing but what this server has: no other host, no script in a page or picture, no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
/// Of files of a run, which are opened as pages of their own: nothing runs in them.
const FILE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'";

const PAGE: &str = include_str!("index.html");
const STYLE: &str = include_str!("board.css");
const SCRIPT: &str = include_str!("board.js");
const ICON: &str = include_str!("icon.svg");

/// The curves that were asked for, by run, and when.
#[derive(Default)]
pub(super) struct Cache {
    all: BTreeMap<u64, (u64, Curves)>,
    requests: u64,
}

impl Cache {
    /// The curves of a run as they are now.
    fn of(&mut self, run: u64, folder: &std::path::Path) -> &Curves {
        self.requests += 1;
        let now = self.requests;
        while self.all.values().map(|(_, c)| c.points()).sum::<usize>() > MAX_POINTS {
            let others = self.all.iter().filter(|(number, _)| **number != run);
            match others.min_by_key(|(_, (used, _))| *used).map(|(number, _)| *number) {
                Some(oldest) => self.all.remove(&oldest),
                None => break,
            };
        }
        let (used, curves) = self.all.entry(run).or_default();
        *used = now;
        curves.update(folder);
        curves
    }
}

/// An answer.
struct Reply {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    policy: &'static str,
    more: Vec<(&'static str, String)>,
}

impl Reply {
    fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status: 200, kind, body: body.into(), policy: POLICY, more: Vec::new() }
    }

    fn json(value: &Value) -> Reply {
        Reply::new("application/json", value.to_string())
    }

    fn refused(status: u16, why: &str) -> Reply {
        Reply { status, ..Reply::new("text/plain; charset=utf-8", format!("{why}\n")) }
    }

    /// The first line and the headers.
    fn head(&self) -> String {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            _ => "Method Not Allowed",
        };
        let always = [
            ("Content-Type", self.kind),
            ("Content-Security-Policy", self.policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ];
        let more = self.more.iter().map(|(name, value)| (*name, value.as_str()));
        let lines: String =
            always.into_iter().chain(more).map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("HTTP/1.1 {} {reason}\r\n{lines}", self.status)
    }

    fn send(&self, page: &mut TcpStream) -> std::io::Result<()> {
        write!(page, "{}Content-Length: {}\r\n\r\n", self.head(), self.body.len())?;
        page.write_all(&self.body)
    }
}

/// What is asked, and by whom.
struct Request {
    is_get: bool,
    url: String,
    host: Option<String>,
    cookie: Option<String>,
}

impl Request {
    /// Reads the request of a connection. `Ok(None)` if it is none.
    fn read(page: &mut TcpStream) -> std::io::Result<Option<Request>> {
        let start = Instant::now();
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let count = page.read(&mut part)?;
            bytes.extend_from_slice(&part[..count]);
            if count == 0 || bytes.len() > MAX_REQUEST || start.elapsed() > READ_TIME {
                return Ok(None);
            }
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Request::new(&mut headers);
            match parsed.parse(&bytes) {
                Ok(httparse::Status::Partial) => continue,
                Ok(httparse::Status::Complete(_)) => {}
                Err(_) => return Ok(None),
            }
            // A header that is there twice is none.
            let header = |name: &str| {
                let mut all = parsed.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
                let only = all.next()?;
                let is_alone = all.next().is_none();
                String::from_utf8(only.value.to_vec()).ok().filter(|_| is_alone)
            };
            return Ok(Some(Request {
                is_get: parsed.method == Some("GET"),
                url: parsed.path.unwrap_or_default().to_string(),
                host: header("Host"),
                cookie: header("Cookie"),
            }));
        }
    }
}

/// The path of a request and its values by name, as they are written there.
fn parts(url: &str) -> (&str, BTreeMap<&str, &str>) {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    (path, query.split('&').filter_map(|pair| pair.split_once('=')).collect())
}

/// A text of an address without its `%XX`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        rest = match rest {
            [] => break,
            [b'%', high, low, rest @ ..] => {
                let digit = |d: &u8| char::from(*d).to_digit(16);
                bytes.push((16 * digit(high)? + digit(low)?) as u8);
                rest
            }
            [byte, rest @ ..] => {
                bytes.push(*byte);
                rest
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// Whether a host is this machine by an address, or by the name that every machine has. A page elsewhere can make its own name point
/// here, but not change what the browser says it asked for.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether two texts are the same, in a time that does not tell how much of them is.
fn is_same(a: &str, b: &str) -> bool {
    let differing = a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    a.len() == b.len() && differing == 0
}

/// Answers requests until the program ends.
pub(super) fn serve(listener: &TcpListener, shared: &Arc<Shared>, port: u16) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((mut page, _)) = listener.accept() else {
            // Too many files are open, for example, which ends.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (shared, now_open) = (shared.clone(), open.clone());
        let answer = move || {
            // Who asked may be gone.
            let _ = shared.answer(&mut page, port);
            now_open.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().spawn(answer).is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Answers the request of a connection.
    fn answer(&self, page: &mut TcpStream, port: u16) -> std::io::Result<()> {
        page.set_read_timeout(Some(READ_TIME))?;
        page.set_write_timeout(Some(WRITE_TIME))?;
        page.set_nodelay(true)?;
        let Some(request) = Request::read(page)? else {
            return Reply::refused(400, "this is not a request that can be read").send(page);
        };
        let (path, values) = parts(&request.url);
        if !request.host.as_deref().is_some_and(is_address) {
            let why =
                "this page is asked for by the address of the machine or as localhost, not by another name";
            return Reply::refused(403, why).send(page);
        }
        if !request.is_get {
            return Reply::refused(405, "this page only reads").send(page);
        }
        let cookie = format!("dittograd_{port}");
        let mut cookies = request.cookie.as_deref().unwrap_or_default().split(';');
        let kept = cookies.find_map(|pair| pair.trim().split_once('=').filter(|(name, _)| *name == cookie));
        let by_address = path == "/" && values.get("token").is_some_and(|token| is_same(token, &self.token));
        if !by_address && !kept.is_some_and(|(_, token)| is_same(token, &self.token)) {
            let why = "this page needs its token: open the address that `dittograd board` has printed";
            return Reply::refused(403, why).send(page);
        }
        if path == "/events" {
            return self.stream(page);
        }
        let mut reply = self.reply(path, &values);
        if by_address {
            let cookie = format!("{cookie}={}; HttpOnly; SameSite=Strict; Path=/", self.token);
            reply.more.push(("Set-Cookie", cookie));
        }
        reply.send(page)
    }

    fn reply(&self, path: &str, values: &BTreeMap<&str, &str>) -> Reply {
        let runs = |name: &str| -> Vec<u64> {
            let list = values.get(name).copied().unwrap_or_default();
            list.split(',').filter_map(|n| n.parse().ok()).take(MAX_COMPARED).collect()
        };
        let number = |name: &str, usual: f64| values.get(name).and_then(|v| v.parse().ok()).unwrap_or(usual);
        let one = || runs("run").first().copied();
        let found = match path {
            "/" => Some(Reply::new("text/html; charset=utf-8", PAGE)),
            "/board.css" => Some(Reply::new("text/css; charset=utf-8", STYLE)),
            "/board.js" => Some(Reply::new("text/javascript; charset=utf-8", SCRIPT)),
            "/icon.svg" => Some(Reply::new("image/svg+xml", ICON)),
            "/run" => one().and_then(|run| self.details(run)),
            "/curves" => {
                let range = [number("from", f64::NEG_INFINITY), number("to", f64::INFINITY)];
                let buckets = number("buckets", 1000.0).clamp(1.0, MAX_BUCKETS as f64) as usize;
                Some(self.curves(&runs("runs"), range, buckets))
            }
            "/file" => one().and_then(|run| self.file(run, &decoded(values.get("name")?)?)),
            "/csv" => one().and_then(|run| self.csv(run)),
            "/diff" => match runs("runs")[..] {
                [a, b] => Some(said(self.diff(a, b))),
                _ => None,
            },
            "/program" => one().map(|run| said(self.program(run, values.contains_key("compiled")))),
            _ => None,
        };
        found.unwrap_or_else(|| Reply::refused(404, "there is no such thing here"))
    }

    /// The folder of a run.
    fn folder(&self, run: u64) -> Option<PathBuf> {
        held(&self.runs).all.get(&run).map(|run| run.folder.clone())
    }

    /// The folder of a run that has a checkpoint of its own, which is no link.
    fn saved(&self, run: u64) -> Answer<PathBuf> {
        match self.folder(run) {
            Some(folder) if stamp(&folder.join(CHECKPOINT)).is_some() => Ok(folder),
            Some(_) => fail("the run has not saved a state yet"),
            None => fail("the run is gone"),
        }
    }

    fn details(&self, run: u64) -> Option<Reply> {
        ask_fingerprint(&self.runs, run);
        let runs = held(&self.runs);
        Some(Reply::json(&runs.all.get(&run)?.details(run)))
    }

    fn curves(&self, runs: &[u64], range: [f64; 2], buckets: usize) -> Reply {
        let curves = |run: &u64| {
            let folder = self.folder(*run)?;
            let curves = held(&self.curves).of(*run, &folder).object(range, buckets);
            Some(json!({"id": run, "curves": curves}))
        };
        Reply::json(&runs.iter().filter_map(curves).collect())
    }

    /// A picture or a text of a run.
    fn file(&self, run: u64, name: &str) -> Option<Reply> {
        let path = held(&self.runs).all.get(&run)?.file(name)?;
        let kind = match path.extension()?.to_str()? {
            "png" => "image/png",
            "svg" => "image/svg+xml",
            "txt" => "text/plain; charset=utf-8",
            _ => return None,
        };
        let (_, size) = stamp(&path)?;
        if size > MAX_PICTURE {
            return None;
        }
        let mut bytes = dittograd::io::read(&path).ok()?;
        if kind.starts_with("text") {
            bytes.truncate(MAX_TEXT);
            bytes = String::from_utf8_lossy(&bytes).into_owned().into_bytes();
        }
        Some(Reply { policy: FILE_POLICY, ..Reply::new(kind, bytes) })
    }

    fn csv(&self, run: u64) -> Option<Reply> {
        let path = self.folder(run)?.join(METRICS);
        stamp(&path)?;
        let mut reply = Reply::new("text/csv; charset=utf-8", csv(&path).ok()?);
        let name = format!("attachment; filename=\"metrics-{run}.csv\"");
        reply.more.push(("Content-Disposition", name));
        Some(reply)
    }

    fn diff(&self, a: u64, b: u64) -> Answer<Reply> {
        let (a, b) = (self.saved(a)?, self.saved(b)?);
        for folder in [&a, &b] {
            let path = folder.join(METRICS);
            if std::fs::symlink_metadata(&path).is_ok() && stamp(&path).is_none() {
                return fail(format!("{METRICS} is not a regular file"));
            }
        }
        Ok(Reply::json(&Diff::of(&a, &b).report()?.object()))
    }

    /// The drawing of the program of a run.
    fn program(&self, run: u64, is_compiled: bool) -> Answer<Reply> {
        let mut graph = Traced::load(&self.global, &self.saved(run)?, 1, None)?.graph;
        if is_compiled {
            graph = graph.after(Passes::all())?;
        }
        Ok(Reply::new("image/svg+xml", graph.to_svg()))
    }

    /// Writes the list, and then what changes in it, to a page.
    fn stream(&self, page: &mut TcpStream) -> std::io::Result<()> {
        write!(page, "{}\r\n", Reply::new("text/event-stream", "").head())?;
        let mut seen = None;
        loop {
            match self.next(seen) {
                Some((change, list)) => {
                    let event = if seen.is_none() { "list" } else { "change" };
                    write!(page, "event: {event}\ndata: {list}\n\n")?;
                    seen = Some(change);
                }
                None => write!(page, ":\n\n")?,
            }
        }
    }

    /// What has changed since a change of the list, or the whole list, and the last change in it. Waits a while for one.
    fn next(&self, seen: Option<u64>) -> Option<(u64, Value)> {
        let is_old = |runs: &mut Runs| seen == Some(runs.change);
        let waited = self.changed.wait_timeout_while(held(&self.runs), PULSE, is_old);
        let mut runs = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!is_old(&mut runs)).then(|| (runs.change, runs.since(seen.unwrap_or(0))))
    }
}

/// An answer, or why there is none, which the page shows.
fn said(answer: Answer<Reply>) -> Reply {
    answer.unwrap_or_else(|end| Reply::json(&json!({"error": end.message().unwrap_or_default()})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in ["localhost", "LOCALHOST:80", "127.0.0.1:6070", "[::1]:6070", "[::1]", "10.1.2.3"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:6070",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "a@127.0.0.1",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn tokens() {
        assert!(is_same("abc", "abc") && is_same("", ""));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("", "a"), ("abc", "")] {
            assert!(!is_same(a, b) && !is_same(b, a));
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(parts("/a?b=c&d=e=f&g"), ("/a", [("b", "c"), ("d", "e=f")].into_iter().collect()));
        assert_eq!(decoded("a%2Fb+%C3%A9%"), Some("a/b+é%".to_string()));
        for bad in ["%zz", "%ff", "%+1"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }
}
