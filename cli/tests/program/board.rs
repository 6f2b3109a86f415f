//! The server of `board`: who may ask, what hostile names and files come to, and how fast a thousand runs are there.

use crate::program::{answer, command_in, good};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program with its page.
struct Board {
    child: Child,
    port: u16,
    token: String,
}

impl Drop for Board {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What the server answered.
struct Said {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A run that takes no time.
const BRIEF: &str =
    "train mlp --samples 60 --batch 16 --hidden 4 --steps 20 --device cpu --threads 1 --quiet";

impl Board {
    fn of(home: &Path, folder: &str) -> Board {
        let mut child = command_in(home, &format!("board {folder} --port 0 --json")).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address =
            serde_json::from_str::<Value>(&line).expect(&line)["address"].as_str().unwrap().to_string();
        let (host, token) = address.split_once("/?token=").unwrap();
        assert_eq!(token.len(), 32);
        Board {
            child,
            port: host.strip_prefix("http://127.0.0.1:").unwrap().parse().unwrap(),
            token: token.into(),
        }
    }

    fn send(&self, request: &[u8]) -> TcpStream {
        let mut to = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // It may answer before it has read everything.
        let _ = to.write_all(request);
        to
    }

    /// What is answered to the bytes of a request.
    fn raw(&self, request: &[u8]) -> Said {
        let mut all = Vec::new();
        let _ = self.send(request).read_to_end(&mut all);
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer");
        let head = String::from_utf8(all[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Said { status, head, body: all.split_off(end + 4) }
    }

    fn request(&self, path: &str) -> Vec<u8> {
        let (port, token) = (self.port, &self.token);
        format!(
            "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: a=b; dittograd_{port}={token}\r\n\r\n"
        )
        .into_bytes()
    }

    fn get(&self, path: &str) -> Said {
        self.raw(&self.request(path))
    }

    fn events(&self) -> Events {
        Events(BufReader::new(self.send(&self.request("/events"))))
    }

    /// The list of runs.
    fn rows(&self) -> Vec<Value> {
        self.events().next()["rows"].as_array().unwrap().clone()
    }
}

/// The events of a page.
struct Events(BufReader<TcpStream>);

impl Events {
    fn next(&mut self) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the events ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

#[test]
fn only_with_its_token_and_by_its_address() {
    let home = TempDir::new().unwrap();
    fs::create_dir(home.path().join("runs")).unwrap();
    let board = Board::of(home.path(), "runs");
    let (port, token) = (board.port, board.token.clone());
    let ask = |path: &str, more: &str| board.raw(format!("GET {path} HTTP/1.1\r\n{more}\r\n").as_bytes());
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    let paths =
        ["/", "/board.js", "/events", "/curves?runs=1", "/nothing", "/../../etc/passwd", "http://127.0.0.1/"];
    for path in paths {
        let last = if token.ends_with('0') { "1" } else { "0" };
        let near = format!("{}{last}", &token[..31]);
        for cookie in
            ["".into(), format!("dittograd_{port}={near}"), format!("dittograd_1={token}"), "=".into()]
        {
            let said = ask(path, &format!("{host}Cookie: {cookie}\r\n"));
            assert_eq!(said.status, 403, "{path} {cookie}");
            assert!(said.head.contains("Content-Security-Policy: default-src 'none'"), "{}", said.head);
            assert!(!String::from_utf8_lossy(&said.body).contains(&token));
        }
        assert_eq!(ask(&format!("/?token={near}"), &host).status, 403);
    }
    // With the token, but for a name that somebody else made to point here, or for none.
    let good = format!("Cookie: dittograd_{port}={token}\r\n");
    for bad in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""] {
        assert_eq!(ask("/", &format!("Host: {bad}\r\n{good}")).status, 403, "{bad}");
    }
    assert_eq!(ask("/", &good).status, 403);
    assert_eq!(ask("/", &format!("{host}Host: evil.example\r\n{good}")).status, 403);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        let said = board.raw(format!("{method} / HTTP/1.1\r\n{host}{good}\r\n").as_bytes());
        assert_eq!(said.status, 405, "{method}");
    }
    // No request at all.
    let long = format!("GET / HTTP/1.1\r\n{host}X: {}", "x".repeat(17 << 10));
    let many = format!("GET / HTTP/1.1\r\n{host}{}\r\n", "X: y\r\n".repeat(100));
    for bad in
        [&b"\x16\x03\x01\x02\r\n\r\n"[..], b"GET\r\n\r\n", b"\0\0\r\n\r\n", long.as_bytes(), many.as_bytes()]
    {
        assert_eq!(board.raw(bad).status, 400);
    }
    let page = ask(&format!("/?token={token}"), &host);
    assert_eq!(page.status, 200);
    let cookie = format!("Set-Cookie: dittograd_{port}={token}; HttpOnly; SameSite=Strict; Path=/");
    assert!(page.head.contains(&cookie), "{}", page.head);
    let text = String::from_utf8(page.body).unwrap();
    // Nothing in the page is from elsewhere, and no script is in the page itself.
    assert!(!text.contains("http") && text.matches("<script").count() == 1, "{text}");
    for (path, kind) in
        [("/board.js", "text/javascript"), ("/board.css", "text/css"), ("/icon.svg", "image/svg+xml")]
    {
        let said = board.get(path);
        assert!(said.status == 200 && said.head.contains(kind), "{path} {}", said.head);
        assert!(!String::from_utf8(said.body).unwrap().contains("innerHTML"));
    }
    let said = board.get("/nothing");
    assert!(said.status == 404 && !said.head.contains("Set-Cookie"));
}

#[test]
fn hostile_names_and_files_stay_where_they_are() {
    let home = TempDir::new().unwrap();
    good(home.path(), &format!("{BRIEF} --out runs/good"));
    let runs = home.path().join("runs");
    fs::write(home.path().join("secret.txt"), "secret").unwrap();
    fs::write(home.path().join("secret.png"), "secret").unwrap();
    let checkpoint = fs::read(runs.join("good/checkpoint.safetensors")).unwrap();
    let make = |name: &str, files: &[(&str, &[u8])]| {
        fs::create_dir_all(runs.join(name)).unwrap();
        files.iter().for_each(|(file, bytes)| fs::write(runs.join(name).join(file), bytes).unwrap());
    };
    let line: &[u8] = b"{\"step\":3,\"loss\":0.5}\n";
    let names =
        ["<script>alert(1)<", "\"'`&<>", "new\nline\r\n", "\u{202e}bidi", "%2e%2e", "a?b#c", "\u{1b}[31m"];
    for name in names {
        make(name, &[("metrics.jsonl", line), ("<img src=x>.png", b"\x89PNG")]);
    }
    let mut damaged = checkpoint.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let huge = u64::MAX.to_le_bytes();
    let deep = format!("{}\n", "[".repeat(100_000));
    let long = format!("{{\"step\":1,\"loss\":1,\"x\":\"{}\"}}\n", "x".repeat(3 << 20));
    let broken: [(&str, &str, &[u8]); 8] = [
        ("cut", "checkpoint.safetensors", &checkpoint[..checkpoint.len() / 2]),
        ("flipped", "checkpoint.safetensors", &damaged),
        ("empty", "checkpoint.safetensors", b""),
        ("endless", "checkpoint.safetensors", &huge),
        ("binary", "metrics.jsonl", &[0xff; 5000]),
        ("deep", "metrics.jsonl", deep.as_bytes()),
        ("long", "metrics.jsonl", long.as_bytes()),
        (
            "odd",
            "record.jsonl",
            b"{\"program\":\"<b>\",\"settings\":{\"a\":[1]}}\nnot JSON\n{\"root\":\"abc\"}\n",
        ),
    ];
    for (name, file, bytes) in broken {
        make(name, &[(file, bytes)]);
    }
    // Out of the folder, and around in it.
    make("links", &[("metrics.jsonl", line)]);
    let link = |to: &Path, from: &str| std::os::unix::fs::symlink(to, runs.join(from)).unwrap();
    link(&home.path().join("secret.txt"), "links/a.txt");
    link(&home.path().join("secret.png"), "links/a.png");
    link(&runs.join("good/checkpoint.safetensors"), "links/checkpoint.safetensors");
    link(home.path(), "out");
    link(&runs, "loop");
    make("pipe", &[("metrics.jsonl", line)]);
    let pipe = runs.join("pipe/checkpoint.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::create_dir_all(runs.join("folder/metrics.jsonl")).unwrap();

    let board = Board::of(home.path(), "runs");
    let rows = board.rows();
    let listed: Vec<&str> = rows.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(rows.len(), names.len() + broken.len() + 3, "{listed:?}");
    assert!(!listed.iter().any(|name| name.chars().any(char::is_control)), "{listed:?}");
    assert!(listed.contains(&"<script>alert(1)<") && listed.contains(&"\\u{202e}bidi"), "{listed:?}");
    let row = |name: &str| rows.iter().find(|r| r["name"] == name).unwrap();
    for name in ["cut", "empty", "endless"] {
        assert_eq!(row(name)["state"], "damaged", "{}", row(name));
        assert!(!row(name)["why"].as_str().unwrap().is_empty());
    }
    assert_eq!(row("good")["state"], "finished");
    assert_eq!((&row("good")["step"], &row("good")["verified"]), (&json!(20), &json!(false)));
    // Only reading all of it shows that it is damaged.
    let flipped = &board.get(&format!("/run?run={}", row("flipped")["id"])).json();
    assert_eq!(flipped["state"], "damaged");
    for row in &rows {
        let id = &row["id"];
        for path in [format!("/run?run={id}"), format!("/curves?runs={id}"), format!("/program?run={id}")] {
            assert_eq!(board.get(&path).status, 200, "{path} {row}");
        }
        assert_eq!(board.get(&format!("/diff?runs={id},{}", rows[0]["id"])).status, 200);
    }
    let odd = board.get(&format!("/run?run={}", row("odd")["id"])).json();
    assert_eq!(
        odd["record"],
        json!({"head": [["program", "<b>"], ["settings.a", "[1]"]], "last": [["root", "abc"]]})
    );
    // Files by names that are not those of the run.
    let id = &row("links")["id"];
    let outside = [
        "a.txt",
        "a.png",
        "..%2f..%2fsecret.txt",
        "../../secret.txt",
        "%2e%2e/%2e%2e/secret.png",
        "/etc/hostname",
        "",
        ".",
        "..",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "%00",
        "%ff",
        "%zz",
    ];
    for name in outside {
        assert_eq!(board.get(&format!("/file?run={id}&name={name}")).status, 404, "{name}");
    }
    let absolute = home.path().join("secret.txt");
    assert_eq!(board.get(&format!("/file?run={id}&name={}", absolute.display())).status, 404);
    let said = board.get(&format!("/program?run={id}")).json();
    assert_eq!(said["error"], "the run has not saved a state yet");
    let picture = board.get(&format!("/file?run={}&name=%3Cimg%20src%3Dx%3E.png", row("a?b#c")["id"]));
    assert_eq!((picture.status, &picture.body[..]), (200, &b"\x89PNG"[..]));
    assert!(picture.head.contains("sandbox") && picture.head.contains("nosniff"), "{}", picture.head);
    for path in [
        "/run?run=0",
        "/run?run=-1",
        "/run?run=99999999999999999999",
        "/run",
        "/diff?runs=1",
        "/file?run=1",
        "/csv?run=",
    ] {
        assert_eq!(board.get(path).status, 404, "{path}");
    }
    for path in
        ["/curves?runs=1&buckets=-5", "/curves?runs=1&buckets=1e300&from=NaN&to=inf", "/curves?runs=,,1,x"]
    {
        assert_eq!(board.get(path).status, 200, "{path}");
    }
}

#[test]
fn what_changes_is_told() {
    let home = TempDir::new().unwrap();
    good(home.path(), &format!("{BRIEF} --out runs/a"));
    good(home.path(), &format!("{BRIEF} --lr 0.02 --out runs/deep/down/b"));
    let board = Board::of(home.path(), "runs");
    let mut events = board.events();
    let list = events.next();
    assert_eq!([&list["rows"][0]["name"], &list["rows"][1]["name"]], ["a", "deep/down/b"]);
    let curves = |path: &str| board.get(path).json()[0]["curves"].clone();
    let all = curves("/curves?runs=1");
    assert_eq!(
        all["loss"][0],
        json!((1..=20).collect::<Vec<_>>().iter().map(|s| f64::from(*s)).collect::<Vec<_>>())
    );
    assert_eq!(curves("/curves?runs=1&from=5&to=7")["lr"][0], json!([5.0, 6.0, 7.0]));
    assert!(all["peak_bytes"][1][0].as_f64().unwrap() > 1000.0);
    // The same as the command says.
    let said = board.get("/diff?runs=1,2").json();
    let command = crate::program::run_in(home.path(), "diff runs/a runs/deep/down/b --json");
    assert_eq!(said, serde_json::from_str::<Value>(&command.out).unwrap());
    assert_eq!(board.get("/diff?runs=1,1").json()["same"], true);
    let program = board.get("/program?run=1");
    let drawing = answer(home.path(), "graph runs/a --svg --device cpu --threads 1");
    assert_eq!(String::from_utf8(program.body).unwrap().trim(), drawing.trim());
    let compiled = String::from_utf8(board.get("/program?run=1&compiled=1").body).unwrap();
    assert!(compiled.starts_with("<svg ") && compiled.trim() != drawing.trim());
    let print = answer(home.path(), "inspect runs/a --json");
    let print = serde_json::from_str::<Value>(&print).unwrap()["fingerprint"].clone();
    assert_eq!(board.get("/run?run=1").json()["fingerprint"], print);
    let csv = String::from_utf8(board.get("/csv?run=1").body).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("step,loss,lr,peak_bytes,seconds,test_accuracy,test_loss"));
    let steps: BTreeSet<u64> = fs::read_to_string(home.path().join("runs/a/metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(lines.count(), steps.len(), "a row a step");
    // A new measurement, a new run, one that goes.
    let mut told = |want: &dyn Fn(&Value) -> bool| {
        let start = Instant::now();
        while !want(&events.next()) {
            assert!(start.elapsed() < Duration::from_secs(30));
        }
    };
    let mut file = fs::File::options().append(true).open(home.path().join("runs/a/metrics.jsonl")).unwrap();
    file.write_all(b"{\"step\":21,\"loss\":0.0625}\n").unwrap();
    told(&|e| {
        e["rows"].as_array().unwrap().iter().any(|r| r["id"] == 1 && r["loss"] == 0.0625 && r["step"] == 21)
    });
    assert_eq!(curves("/curves?runs=1")["loss"][1][20], 0.0625);
    fs::create_dir(home.path().join("runs/new")).unwrap();
    fs::write(home.path().join("runs/new/metrics.jsonl"), "{\"step\":1,\"loss\":1}\n").unwrap();
    told(&|e| e["rows"].as_array().unwrap().iter().any(|r| r["name"] == "new" && r["state"] == "stopped"));
    fs::remove_dir_all(home.path().join("runs/deep")).unwrap();
    told(&|e| e["gone"] == json!([2]));
    // At work, and not any more.
    let long = BRIEF.replace("--steps 20", "--steps 100000000 --eval-every 1000");
    let mut child = command_in(home.path(), &format!("{long} --out runs/live")).spawn().unwrap();
    let state = |state: &'static str| {
        move |e: &Value| {
            e["rows"].as_array().unwrap().iter().any(|r| r["name"] == "live" && r["state"] == state)
        }
    };
    told(&state(if cfg!(target_os = "linux") { "running" } else { "stopped" }));
    child.kill().unwrap();
    child.wait().unwrap();
    if cfg!(target_os = "linux") {
        told(&state("stopped"));
    }
}

#[test]
fn a_run_is_verified_until_it_changes() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{BRIEF} --out runs/a"));
    let board = Board::of(here, "runs");
    let mut events = board.events();
    let mut told = |want: bool| {
        let start = Instant::now();
        let is_so = |r: &Value| r["fingerprint"].is_string() && r["verified"] == want;
        while !events.next()["rows"].as_array().unwrap().iter().any(is_so) {
            assert!(start.elapsed() < Duration::from_secs(30), "not told: {want}");
        }
    };
    told(false);
    good(here, "verify runs/a --device cpu --quiet");
    told(true);
    good(here, "train --resume runs/a --steps 30 --device cpu --quiet");
    told(false);
    good(here, "verify runs/a --steps 1..9 --device cpu --quiet");
    let file = here.join("runs/a/verified.json");
    let old = fs::read(&file).unwrap();
    good(here, "verify runs/a --device cpu --quiet");
    told(true);
    let new = fs::read(&file).unwrap();
    for receipt in [old, new[1..].to_vec(), fs::read(here.join("runs/a/record.jsonl")).unwrap()] {
        fs::write(&file, &receipt).unwrap();
        told(false);
        fs::write(&file, &new).unwrap();
        told(true);
    }
    // Another checkpoint with the same record.
    good(here, &format!("{BRIEF} --lr 0.02 --out other"));
    fs::copy(here.join("other/checkpoint.safetensors"), here.join("runs/a/checkpoint.safetensors")).unwrap();
    told(false);
}

#[test]
fn a_thousand_runs_are_there_in_a_second() {
    let home = TempDir::new().unwrap();
    good(home.path(), &format!("{BRIEF} --out one"));
    for i in 0..1000 {
        let folder = home.path().join(format!("runs/sweep-{}/run-{i}", i % 10));
        fs::create_dir_all(&folder).unwrap();
        for name in ["checkpoint.safetensors", "best.safetensors", "metrics.jsonl"] {
            fs::copy(home.path().join("one").join(name), folder.join(name)).unwrap();
        }
    }
    // The best of some, in a debug build: below a second alone, about 1.2 beside other tests. Reading whole files takes much longer.
    let once = || {
        let start = Instant::now();
        let board = Board::of(home.path(), "runs");
        let rows = board.rows();
        assert_eq!(rows.len(), 1000);
        assert!(rows.iter().all(|r| r["state"] == "finished" && r["step"] == 20));
        start.elapsed()
    };
    let times: Vec<Duration> = (0..5).map(|_| once()).collect();
    println!("{times:?}");
    assert!(times.iter().any(|t| *t < Duration::from_secs(3)), "{times:?}");
}

#[test]
fn what_cannot_be_shown_is_said() {
    let home = TempDir::new().unwrap();
    crate::program::refused(home.path(), "board", "runs: No such file or directory");
    fs::write(home.path().join("file"), "").unwrap();
    crate::program::refused(home.path(), "board file", "is a file, not the folder of runs");
    fs::create_dir(home.path().join("runs")).unwrap();
    let board = Board::of(home.path(), "runs");
    crate::program::refused(home.path(), &format!("board --port {}", board.port), "use another --port");
    crate::program::refused(home.path(), "board --host example.org", "invalid value");
    assert!(board.rows().is_empty());
}
