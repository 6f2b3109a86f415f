//! The layers are those that `ARCHITECTURE.md` draws, of crates and inside the engine; inside other crates imports run in circles only where
//! that is known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The crates, each by its folder.
const CRATES: [&str; 10] = [
    "crates/derive",
    "crates/numerics",
    "crates/device",
    "crates/ops",
    "crates/comm",
    "crates/engine",
    "",
    "check",
    "cli",
    "python",
];

/// The name of a crate and the crates of this workspace that it is built on, by its manifest.
fn manifest(folder: &str) -> (String, BTreeSet<String>) {
    let text = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let (mut section, mut name, mut knows) = ("", String::new(), BTreeSet::new());
    for line in text.lines() {
        if line.starts_with('[') {
            section = line;
        }
        match line.split_once('=').map(|(key, value)| (key.trim(), value)) {
            Some(("name", value)) if section == "[package]" => name = value.trim().trim_matches('"').into(),
            Some((key, value)) if section == "[dependencies]" && value.contains("path") => {
                knows.insert(key.to_string());
            }
            _ => {}
        }
    }
    (name, knows)
}

#[test]
fn are_those_of_the_drawing() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().skip_while(|l| !l.starts_with("| crate | knows |")).skip(2);
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(String::from).collect::<BTreeSet<_>>();
    let drawn: BTreeMap<String, BTreeSet<String>> = rows
        .map_while(|l| l.strip_prefix('|')?.split_once('|'))
        .map(|(name, knows)| (names(name).pop_first().unwrap(), names(knows)))
        .collect();
    assert_eq!(drawn, CRATES.into_iter().map(manifest).collect());
    for (above, knows) in &drawn {
        for below in knows {
            assert!(!drawn[below].contains(above), "{above} and {below} know each other");
        }
        let picture = text.lines().find(|l| l.split_whitespace().next() == Some(above));
        assert!(picture.is_some(), "{above} is not in the picture");
    }
}

/// The modules of a crate by their place, and what each is made of.
fn modules(folder: &Path, at: &[String], found: &mut BTreeMap<Vec<String>, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
        let here = [at, std::slice::from_ref(&stem)].concat();
        if path.is_dir() {
            modules(&path, &here, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let key = if ["mod", "lib", "main"].contains(&stem.as_str()) { at.to_vec() } else { here };
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code = code.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>();
            found.insert(key, code.join("\n"));
        }
    }
}

/// The paths that code at `at` names with `crate` or `super`, each from the root of its crate.
fn named(at: &[String], code: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut paths = Vec::new();
    for (i, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..i].ends_with(|c| is_word(c) || c == '$' || c == ':') {
            continue;
        }
        let end = code[i..].find(|c: char| !is_word(c) && c != ':').map_or(code.len(), |n| i + n);
        let mut base: Vec<String> = Vec::new();
        for (n, part) in code[i..end].split("::").enumerate() {
            match part {
                "crate" => base.clear(),
                "super" => {
                    base = if n == 0 { at.to_vec() } else { base };
                    base.pop();
                }
                "" => {}
                name => base.push(name.to_string()),
            }
        }
        // A list of names behind the path; lists in lists are taken as one.
        let list = code[end..].strip_prefix('{').map(|l| l.split(';').next().unwrap_or_default());
        let heads = list.unwrap_or_default().split(|c: char| !is_word(c) && c != ':');
        for name in heads.filter(|n| !n.is_empty()) {
            paths.push([&base[..], &name.split("::").map(String::from).collect::<Vec<_>>()].concat());
        }
        paths.push(base);
    }
    paths
}

/// The top-level modules of a crate, and the other ones that each names.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    modules(&root().join(folder).join("src"), &[], &mut all);
    let mut knows: BTreeMap<String, BTreeSet<String>> =
        all.keys().filter_map(|at| Some((at.first()?.clone(), BTreeSet::new()))).collect();
    for (at, code) in all.iter().filter(|(at, _)| !at.is_empty()) {
        let firsts = named(at, code).into_iter().filter_map(|path| path.into_iter().next());
        knows.entry(at[0].clone()).or_default().extend(firsts.filter(|first| *first != at[0]));
    }
    knows
}

/// Top-level modules that know each other, directly or through others.
fn circles(folder: &str) -> BTreeSet<BTreeSet<String>> {
    let knows = imports(folder);
    let reach = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(knows[at].iter().filter(|t| knows.contains_key(*t) && seen.insert((*t).clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = knows.keys().map(|t| (t, reach(t))).collect();
    let circle = |t: &String| -> BTreeSet<String> {
        reached[t].iter().filter(|o| reached[o].contains(t)).cloned().collect()
    };
    knows.keys().map(circle).filter(|c| c.len() > 1).collect()
}

/// In the engine, every module is drawn, and knows only modules on lower lines of the drawing.
#[test]
fn inside_the_engine_are_those_of_its_drawing() {
    let knows = imports("crates/engine");
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let drawing = text.split("Inside the engine").nth(1).unwrap().split("```").nth(1).unwrap();
    let lines = drawing.lines().skip(1).filter(|l| l.trim() != "│" && !l.trim().is_empty());
    let mut drawn: BTreeMap<&str, usize> = BTreeMap::new();
    for (line, words) in lines.map(str::split_whitespace).enumerate() {
        let before = drawn.len();
        drawn.extend(words.take_while(|w| knows.contains_key(*w)).map(|w| (w, line)));
        assert!(drawn.len() > before, "line {line} of the drawing names no module");
    }
    for (above, all) in &knows {
        assert!(drawn.contains_key(above.as_str()), "{above} is not in the drawing");
        for below in all {
            assert!(drawn.contains_key(below.as_str()), "{above} names {below}: name the module that has it");
            assert!(
                drawn[above.as_str()] < drawn[below.as_str()],
                "{above} knows {below}, which is not below it"
            );
        }
    }
}

#[test]
fn have_no_new_circles_inside() {
    let known: [(&str, &[&str]); 9] = [
        ("crates/derive", &[]),
        ("crates/numerics", &["error shape"]),
        ("crates/device", &[]),
        // Gradient rules emit ops of other families.
        (
            "crates/ops",
            &["conv fused loss matmul norm softmax spectral", "index layout pointwise random reduce"],
        ),
        ("crates/engine", &[]),
        ("", &[]),
        ("check", &[]),
        ("cli", &[]),
        ("python", &[]),
    ];
    for (folder, want) in known {
        let found: BTreeSet<String> =
            circles(folder).into_iter().map(|c| c.into_iter().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(found, want.iter().map(|w| w.to_string()).collect(), "{folder}");
    }
}
