//! What the program reads: arguments, pictures, and the settings in a checkpoint.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name.
pub const TARGETS: &[Target] = &[("arguments", arguments), ("picture", picture), ("settings", settings)];

/// Arguments, one a line; a word of one letter `a` to `z` in front of a line that starts with `@` stands for one the program
/// knows, so that the fuzzer need not spell them.
fn arguments(data: &[u8]) {
    const WORDS: [&str; 26] = [
        "train",
        "predict",
        "export",
        "devices",
        "ops",
        "op",
        "graph",
        "inspect",
        "check",
        "bench",
        "--device",
        "--numerics",
        "--threads",
        "--json",
        "--attrs",
        "--config",
        "--lr",
        "--steps",
        "--hidden",
        "--data",
        "--out",
        "--batch",
        "--in",
        "mlp",
        "gpt",
        "--epochs",
    ];
    let word = |line: &[u8]| match line {
        [b'@', letter @ b'a'..=b'z'] => OsString::from(WORDS[usize::from(letter - b'a')]),
        line => OsString::from_vec(line.to_vec()),
    };
    let args: Vec<OsString> = data.split(|b| *b == b'\n').map(word).collect();
    let look = || dittograd_cli::look_at(std::iter::once("dittograd".into()).chain(args.iter().cloned()));
    let said = look();
    if let Err(message) = &said {
        assert!(!message.trim().is_empty(), "an error that says nothing");
    }
    assert_eq!(said, look(), "the same arguments, another answer");
}

/// A picture as a file, in memory where there is such a place.
fn picture(data: &[u8]) {
    let shared = PathBuf::from("/dev/shm");
    let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = base.join(format!("dittograd-{}-pictures", std::process::id()));
    std::fs::create_dir_all(folder.join("class")).expect("a folder is made");
    std::fs::write(folder.join("class/a.png"), data).expect("a file is written");
    match dittograd_cli::pictures(&folder) {
        Ok((name, dims)) => {
            assert!(folder.ends_with(name), "the data has another name");
            assert!(dims.len() == 4 && dims[0] == 1 && matches!(dims[1], 1 | 3), "{dims:?}");
        }
        Err(message) => assert!(message.contains("a.png"), "does not name the file: {message}"),
    }
    std::fs::remove_dir_all(&folder).expect("a folder is removed");
}

/// The settings of a run, as JSON in a checkpoint whose hash is right.
fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match dittograd_cli::settings(&text) {
        Ok(model) => assert_eq!(model, "mlp", "a checkpoint of an mlp became another model"),
        Err(message) => assert!(!message.trim().is_empty(), "an error that says nothing"),
    }
}
