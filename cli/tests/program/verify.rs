//! Records of runs: they are the same however a run is computed, and `verify` refuses what was changed and names the place.

use crate::program::{Run, command_in, finish, good, run_in};
use dittograd::io::Checkpoint;
use dittograd::tensor::Tensor;
use dittograd::train::StateHash;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A run with dropout and evaluations, of 12 steps.
const TINY: &str = "train vit --samples 60 --batch 10 --steps 12 --eval-every 5 --device cpu --quiet --config \
                    {\"width\":8,\"heads\":2,\"layers\":1,\"hidden\":8,\"dropout\":0.1}";

/// A run that needs little time.
const MLP: &str =
    "train mlp --samples 200 --hidden 8 --batch 20 --steps 30 --eval-every 10 --device cpu --quiet";

fn record(run: &Path) -> String {
    fs::read_to_string(run.join("record.jsonl")).unwrap()
}

/// The lines that do not depend on the machine.
fn chained(run: &Path) -> Vec<String> {
    let is_chained = |l: &&str| !l.starts_with("{\"machine\"") && !l.starts_with("{\"file\"");
    record(run).lines().filter(is_chained).map(String::from).collect()
}

/// It says no: exit code 1, nothing on stderr, and why.
fn refused(run: &Run, what: &str) -> String {
    assert_eq!((run.code, run.err.as_str()), (Some(1), ""), "{what}: {}{}", run.out, run.err);
    let last = run.last_line();
    last.strip_prefix("not verified: ").unwrap_or_else(|| panic!("{what}: {last}")).to_string()
}

#[test]
fn one_record_however_a_run_is_computed() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let run = good(here, &format!("{TINY} --out a"));
    let want = chained(&here.join("a"));
    assert_eq!(want.len(), 1 + 12 + 1);
    let with_state: Vec<u64> = (1..=12)
        .filter(|step| want[*step].contains("\"state\""))
        .map(|step| serde_json::from_str::<Value>(&want[step]).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(with_state, [5, 10, 12]);
    let end: Value = serde_json::from_str(&want[13]).unwrap();
    assert_eq!(end["fingerprint"], run.fingerprint());
    for (name, options, simd) in [
        ("threads", "--threads 3", ""),
        ("scalar", "--threads 1", "scalar"),
        ("eager", "--mode eager", "avx2"),
    ] {
        let mut command = command_in(here, &format!("{TINY} --out {name} {options}"));
        if !simd.is_empty() {
            command.env("DITTOGRAD_SIMD", simd);
        }
        assert_eq!(finish(&mut command).fingerprint(), run.fingerprint(), "{name}");
        assert_eq!(chained(&here.join(name)), want, "{name}");
    }
    // In parts, which may end in the middle of what has a hash of its state; in another folder, and opened again.
    let part = TINY.replace("--steps 12", "--steps 7");
    good(here, &format!("{part} --out parts"));
    good(here, "train --resume parts --steps 12 --eval-every 5 --device cpu --quiet --out moved");
    let moved = chained(&here.join("moved"));
    assert_eq!(moved.iter().filter(|l| l.starts_with("{\"settings\"")).count(), 1);
    let before = record(&here.join("a"));
    good(here, "train --resume a --device cpu --quiet");
    assert_eq!(record(&here.join("a")), before, "a run that is over");
    for name in ["a", "moved"] {
        for options in ["", "--mode eager --threads 1"] {
            let run = good(here, &format!("verify {name} --device cpu --quiet {options}"));
            assert!(run.out.starts_with("verified: 12 steps, root "), "{name}: {}", run.out);
        }
    }
}

#[test]
fn a_record_that_was_changed_stops_a_run_before_it_adds_to_it() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --out r"));
    let file = here.join("r/record.jsonl");
    let honest = record(&here.join("r"));
    // A crash may leave a part of a line.
    fs::write(&file, &honest[..honest.len() - 9]).unwrap();
    good(here, "train --resume r --device cpu --quiet");
    assert_eq!(record(&here.join("r")), honest);
    fs::write(&file, honest.replacen("\"random\":0", "\"random\":1", 1)).unwrap();
    let more = "train --resume r --steps 31 --device cpu --quiet";
    run_in(here, more).failed("changed", "line 3: its hash is not that of the lines up to it");
    fs::remove_file(&file).unwrap();
    good(here, more);
    // Without it, the record begins where the run went on.
    assert_eq!(chained(&here.join("r")).len(), 3);
    good(here, &format!("{MLP} --out without --record none"));
    assert!(!here.join("without/record.jsonl").exists());
    run_in(here, "verify without --device cpu")
        .failed("no record", "there is no such file; `train` writes it");
}

#[test]
fn parts_of_a_run_are_verified_from_the_nearest_state() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --record 4 --out r"));
    let states = record(&here.join("r")).lines().filter(|l| l.contains("\"state\"")).count();
    assert_eq!(states, 1 + 7 + 3 - 1, "the head, multiples of 4, evaluations; 20 is both");
    for (steps, say) in [("7..9", "verified: steps 7 to 9 of "), ("30", "verified: steps 30 to 30 of ")] {
        let run = good(here, &format!("verify r --steps {steps} --device cpu"));
        assert!(run.last_line().starts_with(say), "{}", run.out);
    }
    let object = good(here, "verify r --json --quiet --device cpu").objects().pop().unwrap();
    assert_eq!((&object["verified"], &object["steps"]), (&Value::from(true), &Value::from(30)));
    for (args, why) in [
        ("verify r --steps 0..3", "use A..B with 1 <= A <= B"),
        ("verify r --steps 9..31", "--steps 9..31: the record has steps 1 to 30"),
        ("verify nowhere", "nowhere: there is no such file"),
        ("verify r --numerics fast", "was computed in mode strict; leave out --numerics"),
    ] {
        run_in(here, &format!("{args} --device cpu")).failed(args, why);
    }
    let text = good(here, "inspect r").out;
    assert!(text.contains("\nrecord of steps 1 to 30, 10 states, finished, root "), "{text}");
}

#[test]
fn kept_checkpoints_are_of_the_run_however_it_was_made() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let kept = |run: &str| -> Vec<(String, Vec<u8>)> {
        let files = ["7", "15", "22"].map(|step| format!("checkpoint-{step}.safetensors"));
        let is_one = |name: &str| name.starts_with("checkpoint-");
        let found =
            fs::read_dir(here.join(run)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(found.filter(|name| is_one(name)).count(), 3, "{run}");
        files.map(|name| (name.clone(), fs::read(here.join(run).join(name)).unwrap())).to_vec()
    };
    good(here, &format!("{MLP} --keep 3 --out r"));
    let all = kept("r");
    let steps: Vec<u64> = chained(&here.join("r"))
        .iter()
        .filter(|l| l.starts_with("{\"step\"") && l.contains("\"state\""))
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [7, 10, 15, 20, 22, 30]);
    let said = good(here, "verify r --steps 23..24 --device cpu").out;
    assert!(said.contains("computed from step 22 to 24"), "{said}");
    // From one of them, in another folder: those up to it go along, the others are made again.
    good(here, "train --resume r/checkpoint-15.safetensors --keep 3 --out moved --device cpu --quiet");
    assert_eq!((kept("moved"), chained(&here.join("moved"))), (all, chained(&here.join("r"))));
    good(here, "verify moved --device cpu --quiet");
    // A run that stopped between two files goes on with other settings.
    fs::copy(here.join("r/checkpoint-15.safetensors"), here.join("r/checkpoint.safetensors")).unwrap();
    good(here, "train --resume r --steps 40 --device cpu --quiet");
    assert!(!here.join("r/checkpoint-22.safetensors").exists());
    good(here, "verify r --device cpu --quiet");
    fs::copy(here.join("r/checkpoint-7.safetensors"), here.join("r/checkpoint-15.safetensors")).unwrap();
    let why = refused(&run_in(here, "verify r --device cpu --quiet"), "of another step");
    assert!(why.ends_with("checkpoint-15.safetensors: is of step 7, not 15"), "{why}");
    run_in(here, &format!("{MLP} --keep 3 --out none")).failed("keep", "--keep needs a folder");
}

/// Numbers that look random, from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

#[test]
fn what_was_changed_is_refused_and_named() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let rows: String = (0..80).map(|i| format!("{},{},{}\n", i % 7, (i * i) % 11, i % 3)).collect();
    fs::write(here.join("data.csv"), &rows).unwrap();
    good(here, &format!("{} --data data.csv --keep 2 --out r", MLP.replace("--samples 200 ", "")));
    let verify = "verify r --device cpu --quiet --threads 1";
    good(here, verify);
    let mut draws = Draws(7);
    for (file, times) in [
        ("r/record.jsonl", 60),
        ("r/checkpoint.safetensors", 20),
        ("r/best.safetensors", 10),
        ("r/checkpoint-20.safetensors", 20),
        ("r/verified.json", 20),
        ("data.csv", 10),
    ] {
        let whole = fs::read(here.join(file)).unwrap();
        for n in 0..times {
            let mut bytes = whole.clone();
            // Without its last line feed, a receipt is the same.
            let at = draws.below(bytes.len() - usize::from(file.ends_with(".json")));
            // Of the data a digit becomes another, so that it can be read.
            let digits = || (at..whole.len()).chain(0..at).find(|i| whole[*i].is_ascii_digit()).unwrap();
            let at = if file == "data.csv" { digits() } else { at };
            match n % 3 {
                _ if file == "data.csv" => bytes[at] = b'0' + (bytes[at] - b'0' + 1 + n as u8 % 9) % 10,
                0 => bytes[at] ^= 1 << draws.below(8),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b' '),
            }
            fs::write(here.join(file), &bytes).unwrap();
            let why = refused(&run_in(here, verify), &format!("{file} at {at}, {n}"));
            assert!(why.contains(file), "{file} at {at}, {n}: {why}");
        }
        fs::write(here.join(file), &whole).unwrap();
    }
    good(here, verify);
}

#[test]
fn a_receipt_is_enough_and_lies_in_it_are_found() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let rows: String = (0..80).map(|i| format!("{},{},{}\n", i % 7, (i * i) % 11, i % 3)).collect();
    fs::write(here.join("data.csv"), &rows).unwrap();
    let train = MLP.replace("--samples 200 ", "").replace("--steps 30", "--steps 20");
    good(here, &format!("{train} --data data.csv --out r"));
    // In parts, with other settings from step 20 on.
    good(here, "train --resume r --steps 30 --device cpu --quiet");
    let said = good(here, "verify r --receipt receipt.json --device cpu --quiet").out;
    // Another machine has the receipt and the data.
    let there = here.join("there");
    fs::create_dir(&there).unwrap();
    fs::rename(here.join("data.csv"), there.join("copy.csv")).unwrap();
    fs::rename(here.join("receipt.json"), there.join("receipt.json")).unwrap();
    let verify = "verify receipt.json --data copy.csv --device cpu --quiet";
    for options in ["--threads 1", "--mode eager"] {
        assert_eq!(good(&there, &format!("{verify} {options}")).out, said);
    }
    run_in(&there, "verify receipt.json --device cpu --quiet").failed("no data", "data.csv: No such file");
    run_in(&there, &format!("{verify} --steps 1..9")).failed("steps", "a receipt has no single steps");
    run_in(&there, &format!("{verify} --receipt b.json")).failed("receipt", "is one already");
    let file = there.join("receipt.json");
    let whole = fs::read(&file).unwrap();
    let mut draws = Draws(3);
    for n in 0..100 {
        let mut bytes = whole.clone();
        let at = draws.below(bytes.len() - 1);
        match n % 3 {
            0 => bytes[at] ^= 1 << draws.below(8),
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b' '),
        }
        fs::write(&file, &bytes).unwrap();
        let why = refused(&run_in(&there, verify), &format!("receipt at {at}, {n}"));
        assert!(why.contains("receipt.json"), "{at}, {n}: {why}");
    }
    // With right hashes.
    let text = String::from_utf8(whole).unwrap();
    let marks: Vec<&str> = text.split("\"chain\":\"").skip(1).map(|m| &m[..64]).collect();
    assert_eq!(marks.len(), 1 + 3);
    let lie = |from: &str, to: &str| {
        let text = text.replacen(from, to, 1);
        fs::write(&file, sealed(&text[..text.rfind(",\"check\"").unwrap()])).unwrap();
        refused(&run_in(&there, verify), from)
    };
    let fingerprint = said.trim_end().rsplit(' ').next().unwrap();
    for (from, to, want) in [
        (marks[2], marks[1], "step 20: the chained hash of steps 11 to 20 is "),
        (marks[3], marks[1], "step 30: the chained hash of steps 21 to 30 is "),
        (fingerprint, "0123456789abcdef", "step 30: the fingerprint is 0123456789abcdef"),
        ("\"lr\":0.01", "\"lr\":0.02", "its steps do not begin with its head"),
        ("\"step\":20", "\"step\":19", "has no chained hash of step 20"),
    ] {
        let why = lie(from, to);
        assert!(why.contains(want), "{from}: {why}");
    }
}

/// A receipt of this text, with the right hash.
fn sealed(text: &str) -> String {
    let hash = blake3::Hasher::new().update(&[0; 32]).update(text.as_bytes()).finalize();
    format!("{text},\"check\":\"{}\"}}\n", hash.to_hex())
}

#[test]
fn a_signature_is_of_the_whole_receipt_and_by_the_key() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --out r"));
    // The first test of RFC 8032.
    fs::write(here.join("key"), "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n")
        .unwrap();
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let said = good(here, "verify r --receipt receipt.json --sign key --device cpu --quiet").out;
    assert!(
        said.starts_with("verified: 30 steps, root ") && said.ends_with(&format!(", signed by {key}\n")),
        "{said}"
    );
    let verify = "verify receipt.json --device cpu --quiet";
    for options in [String::new(), format!("--key {key}"), format!("--key {}", key.to_uppercase())] {
        assert_eq!(good(here, &format!("{verify} {options}")).out, said);
    }
    let object = good(here, &format!("{verify} --json")).objects().pop().unwrap();
    assert_eq!(object["signed_by"], key);
    let other = key.replacen('d', "e", 1);
    let why = refused(&run_in(here, &format!("{verify} --key {other}")), "another key");
    assert!(why.ends_with(&format!("receipt.json: is signed by {key}, not by {other}")), "{why}");
    let file = here.join("receipt.json");
    let whole = fs::read_to_string(&file).unwrap();
    let text = &whole[..whole.rfind(",\"check\"").unwrap()];
    assert_eq!(sealed(text), whole);
    // Each change of a byte, with the right hash and without.
    let mut draws = Draws(5);
    for n in 0..100 {
        let mut bytes = text.as_bytes().to_vec();
        let at = draws.below(bytes.len());
        match n % 3 {
            0 => bytes[at] ^= 1 << draws.below(7),
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b'0'),
        }
        // A number may be longer by a zero that changes nothing, but its signature is of other bytes.
        let Ok(bytes) = String::from_utf8(bytes) else { continue };
        fs::write(&file, sealed(&bytes)).unwrap();
        let run = run_in(here, &format!("{verify} --key {key}"));
        let why = refused(&run, &format!("{at}, {n}: {bytes}"));
        assert!(why.contains("receipt.json: "), "{at}, {n}: {why}");
    }
    let signature = text.rfind(",\"signature\":\"").unwrap();
    let signed_by = text.rfind(",\"signed_by\":\"").unwrap();
    let of_other = text.replace(key, &other);
    let twice = format!("{text}{}", &text[signature..]);
    let before = format!("{}{}{}", &text[..signed_by], &text[signature..], &text[signed_by..signature]);
    for (text, want) in [
        (&text[..signature], "says who signed it, and has no signature"),
        (&format!("{}{}", &text[..signed_by], &text[signature..]), "has a signature, and does not say whose"),
        (&of_other, &format!("its signature is not one by {other} of what it says")),
        (&text.replacen("\"lr\":0.01", "\"lr\":0.02", 1), &format!("its signature is not one by {key}")),
        (&twice, "duplicate field `signature`"),
        (&before, "its signature is not the last that it says"),
        (&text.replace(key, "00"), "has a key that is not 64 hex digits"),
    ] {
        fs::write(&file, sealed(text)).unwrap();
        let why = refused(&run_in(here, verify), want);
        assert!(why.contains("receipt.json: ") && why.contains(want), "{want}: {why}");
    }
    // Without both it is a receipt that nobody signed.
    fs::write(&file, sealed(&text[..signed_by])).unwrap();
    good(here, verify);
    let why = refused(&run_in(here, &format!("{verify} --key {key}")), "not signed");
    assert!(why.ends_with("receipt.json: is not signed"), "{why}");
    fs::write(here.join("bad"), "secret").unwrap();
    for (args, want) in [
        (format!("r --key {key}"), "--key: r is the record of a run, only receipts are signed"),
        ("receipt.json --key 12".into(), "use the 64 hex digits that `verify --sign` has printed"),
        ("r --receipt x --sign bad".into(), "is not a key: use 64 random hex digits"),
        ("r --receipt x --sign nowhere".into(), "--sign nowhere: No such file"),
        ("r --sign key".into(), "--receipt <FILE>"),
    ] {
        let run = run_in(here, &format!("verify {args} --device cpu"));
        run.failed(&args, want);
        assert!(!run.err.contains("secret"), "{}", run.err);
    }
    assert!(!here.join("x").exists());
}

/// A record whose hashes are right, as of somebody who lies.
fn forged(text: &str, change: &dyn Fn(&str) -> String) -> String {
    let (mut chain, mut out) = ([0u8; 32], String::new());
    for line in text.lines() {
        let line = change(line);
        let at = line.rfind(",\"ch").unwrap();
        let (text, name) = (&line[..at], &line[at + 2..at + 7]);
        let text = match text.strip_prefix("{\"file\"") {
            Some(_) => format!("{{\"file\":\"{}\"", blake3::hash(out.as_bytes()).to_hex()),
            None => text.to_string(),
        };
        let hash = *blake3::Hasher::new().update(&chain).update(text.as_bytes()).finalize().as_bytes();
        if name == "chain" {
            chain = hash;
        }
        out += &format!("{text},\"{name}\":\"{}\"}}\n", blake3::Hash::from_bytes(hash).to_hex());
    }
    out
}

/// A line with another first digit of what it has by this name.
fn other(line: &str, key: &str) -> String {
    let at = line.find(&format!("\"{key}\":\"")).unwrap() + key.len() + 4;
    let digit = if &line[at..=at] == "3" { "4" } else { "3" };
    format!("{}{digit}{}", &line[..at], &line[at + 1..])
}

#[test]
fn a_sample_finds_the_lies_in_its_parts() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --keep 5 --out r"));
    let sample = |options: &str| run_in(here, &format!("verify r --device cpu --json {options}"));
    let drawn = |run: &Run| -> Value {
        run.objects().into_iter().find(|o| !o["sample"].is_null()).unwrap()["sample"].clone()
    };
    let fresh: Vec<Value> = (0..2).map(|_| drawn(&sample("--sample 20%"))["seed"].clone()).collect();
    assert_ne!(fresh[0], fresh[1], "two samples with one seed");
    let text = good(here, "verify r --device cpu --quiet --sample 20% --sample-seed 1").out;
    assert!(
        text.starts_with("verified: 5 of 30 steps (") && text.contains(", 1 of 6 parts drawn by seed 1, "),
        "{text}"
    );
    for (share, parts) in [("0.1%", 1), ("50%", 3), ("90%", 5), ("100%", 6)] {
        let run = sample(&format!("--sample {share} --sample-seed 3"));
        assert_eq!((drawn(&run)["drawn"].as_u64(), run.code), (Some(parts), Some(0)), "{share}");
        let last = run.objects().pop().unwrap();
        assert_eq!((&last["steps"], &last["of"]), (&Value::from(5 * parts), &Value::from(30)), "{share}");
    }
    // A lie is found by the samples with its step, and by no others.
    let honest = record(&here.join("r"));
    let lie = |line: &str| match line.starts_with("{\"step\":17,") {
        true => other(line, "loss"),
        false => line.to_string(),
    };
    fs::write(here.join("r/record.jsonl"), forged(&honest, &lie)).unwrap();
    let mut found = 0;
    for seed in 0..10 {
        let run = sample(&format!("--sample 50% --sample-seed {seed}"));
        let ranges: Vec<[u64; 2]> = serde_json::from_value(drawn(&run)["steps"].clone()).unwrap();
        let is_in = ranges.iter().any(|[from, to]| (*from..=*to).contains(&17));
        assert_eq!(run.code, Some(i32::from(is_in)), "{seed}: {}", run.out);
        if is_in {
            assert_eq!(run.objects().pop().unwrap()["difference"]["step"], 17, "{seed}");
        }
        found += usize::from(is_in);
    }
    assert!(0 < found && found < 10, "{found}");
    fs::write(here.join("r/record.jsonl"), &honest).unwrap();
    good(here, "verify r --device cpu --quiet --receipt receipt.json");
    for (args, why) in [
        ("r --sample 0%", "use a share above 0 and up to 100, such as 5%"),
        ("r --sample 5", "use a share above 0 and up to 100, such as 5%"),
        ("r --sample NaN%", "use a share above 0 and up to 100, such as 5%"),
        ("receipt.json --sample 5%", "--sample: a receipt has no single steps"),
        ("r --sample 5% --steps 1..9", "cannot be used with"),
        ("r --sample-seed 5", "--sample <P%>"),
    ] {
        run_in(here, &format!("verify {args} --device cpu")).failed(args, why);
    }
    let few = MLP.replace("--eval-every 10", "--eval-every 30");
    good(here, &format!("{few} --out few"));
    run_in(here, "verify few --sample 5% --device cpu")
        .failed("few", "no checkpoint between its first and last step");
}

/// A bit of a tensor is another one, in the state after a step of a run that goes on as if nothing was: in its checkpoint, and in the
/// record with right hashes.
#[test]
fn the_first_bit_that_differs_is_named_with_what_computes_it() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --keep 2 --out r"));
    fs::remove_file(here.join("r/best.safetensors")).unwrap();
    let file = here.join("r/checkpoint-20.safetensors");
    let (honest, whole) = (record(&here.join("r")), Checkpoint::load(&file).unwrap());
    let was = StateHash::of(&whole);
    let adam = "; computed by the optimizer's update (adam), from the gradient that op ";
    for (name, at, place) in [("net.0.weight", 11, "[5, 1]"), ("optimizer.net.0.bias.exp_avg", 5, "[5]")] {
        let mut state = whole.clone();
        let flip = |values: &[f32]| -> Vec<f32> {
            let bits = |(i, x): (usize, &f32)| f32::from_bits(x.to_bits() ^ u32::from(i == at));
            values.iter().enumerate().map(bits).collect()
        };
        let before = match name.strip_prefix("optimizer.net.0.bias.") {
            None => {
                let t = state.params.get(name).unwrap().num().unwrap().clone();
                state.params.insert(name, Tensor::new(t.shape().dims(), flip(t.data())).unwrap());
                t.data()[at]
            }
            Some(kind) => {
                let states = state.optimizer.as_mut().unwrap().params.get_mut("net.0.bias").unwrap();
                let t = states.tensors.get_mut(kind).unwrap();
                let before = t.data()[at];
                *t = Tensor::new(t.shape().dims(), flip(t.data())).unwrap();
                before
            }
        };
        let lied = StateHash::of(&state);
        let sum = |of: &StateHash| format!("\"{name}\":\"{:016x}\"", of.tensors[name]);
        let lie = |line: &str| line.replace(&was.root, &lied.root).replace(&sum(&was), &sum(&lied));
        fs::write(here.join("r/record.jsonl"), forged(&honest, &lie)).unwrap();
        state.save(&file).unwrap();
        let why = refused(&run_in(here, "verify r --device cpu --quiet"), name);
        let other = f32::from_bits(before.to_bits() ^ 1);
        let [before, other] = [before, other].map(|x| format!("{:08x} ({x:?})", x.to_bits()));
        let want = format!(
            "step 20: checkpoint-20.safetensors: element {place} of tensor {name} is {other} in the record and {before} here"
        );
        assert!(why.starts_with(&want) && why.contains(adam), "{why}");
        fs::remove_file(&file).unwrap();
        let why = refused(&run_in(here, "verify r --device cpu --quiet --mode eager"), name);
        let want = format!("step 20: the sum of tensor {name} is ");
        let more = "; its values are known only at steps with a checkpoint (train --keep N)";
        assert!(why.starts_with(&want) && why.contains(adam) && why.ends_with(more), "{why}");
    }
}

/// The sums of a checkpoint can be forged, the bits at the end of a part cannot.
#[test]
fn a_checkpoint_with_the_right_sums_does_not_pass_a_sample() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --keep 2 --out r"));
    fs::remove_file(here.join("r/best.safetensors")).unwrap();
    let file = here.join("r/checkpoint-20.safetensors");
    let mut state = Checkpoint::load(&file).unwrap();
    let was = StateHash::of(&state);
    // Two pairs of words change places, each with what its place adds.
    let t = state.params.get("net.0.weight").unwrap().num().unwrap().clone();
    let pair =
        |i: usize| u64::from(t.data()[2 * i].to_bits()) | u64::from(t.data()[2 * i + 1].to_bits()) << 32;
    let words = |x: u64| [x as u32, (x >> 32) as u32].map(f32::from_bits);
    let swapped = (1..t.data().len() / 2).find_map(|j| {
        let by = (j as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let both = [words(pair(j).wrapping_add(by)), words(pair(0).wrapping_sub(by))];
        both.as_flattened().iter().all(|x| x.is_finite()).then_some((j, both))
    });
    let (j, [first, other]) = swapped.unwrap();
    let mut values = t.data().to_vec();
    values[..2].copy_from_slice(&first);
    values[2 * j..2 * j + 2].copy_from_slice(&other);
    state.params.insert("net.0.weight", Tensor::new(t.shape().dims(), values).unwrap());
    assert_eq!(StateHash::of(&state), was);
    state.save(&file).unwrap();
    let mut seen = [0; 3];
    for seed in 0..12 {
        let run = run_in(here, &format!("verify r --sample 33% --sample-seed {seed} --device cpu --quiet"));
        match run.out.contains("(1..10)") {
            true => assert_eq!(run.code, Some(0)),
            false => {
                let why = refused(&run, "forged sums");
                let at_end = why.starts_with(
                    "step 20: checkpoint-20.safetensors: element [0, 0] of tensor net.0.weight ",
                );
                assert!(at_end || why.starts_with("step 21: the loss is "), "{why}");
                seen[1 + usize::from(at_end)] += 1;
                continue;
            }
        }
        seen[0] += 1;
    }
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
}

/// A run begins with what its settings say, whatever the folder has for its first step.
#[test]
fn no_checkpoint_stands_for_the_beginning() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --out r"));
    let mut begun = Checkpoint::load(here.join("r/checkpoint.safetensors")).unwrap();
    begun.step = 0;
    let optimizer = begun.optimizer.as_mut().unwrap();
    optimizer.step = 0;
    optimizer.params.clear();
    begun.save(here.join("checkpoint-0.safetensors")).unwrap();
    good(here, "train --resume checkpoint-0.safetensors --out cheat --device cpu --quiet");
    assert!(here.join("cheat/checkpoint-0.safetensors").exists());
    let why = refused(&run_in(here, "verify cheat --device cpu --quiet"), "trained before");
    assert!(
        why.starts_with("step 0: checkpoint-0.safetensors: element [0] of tensor net.0.bias is "),
        "{why}"
    );
}

#[test]
fn lies_with_right_hashes_are_found_at_their_step() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --out r"));
    fs::remove_file(here.join("r/best.safetensors")).unwrap();
    let honest = record(&here.join("r"));
    assert_eq!(forged(&honest, &|l| l.into()), honest);
    let verified = here.join("r/verified.json");
    good(here, "verify r --device cpu --quiet --receipt receipt.json");
    assert_eq!(fs::read(&verified).unwrap(), fs::read(here.join("receipt.json")).unwrap());
    good(here, "verify r/verified.json --device cpu --quiet");
    let step = |n: u64| format!("{{\"step\":{n},");
    for (n, key, want) in [
        (1, "loss", "step 1: the loss is "),
        (17, "loss", "step 17: the loss is "),
        (29, "batch", "step 29: the batch is "),
        (20, "net.0.weight", "step 20: the sum of tensor net.0.weight is "),
        (10, "optimizer.net.2.bias.exp_avg", "step 10: the sum of tensor optimizer.net.2.bias.exp_avg is "),
    ] {
        let lie = |line: &str| if line.starts_with(&step(n)) { other(line, key) } else { line.to_string() };
        // A tensor's sum is part of the state's root.
        let lie = |line: &str| match key.contains('.') && line.starts_with(&step(n)) {
            true => other(&lie(line), "state"),
            false => lie(line),
        };
        fs::write(here.join("r/record.jsonl"), forged(&honest, &lie)).unwrap();
        let run = run_in(here, "verify r --device cpu --quiet");
        let why = refused(&run, key);
        assert!(why.starts_with(want) && why.contains(" in the record and "), "{key}: {why}");
        assert!(!verified.exists(), "{key}");
    }
    for (from, to, want) in [
        (
            "\"random\":0,\"state\"",
            "\"random\":9,\"state\"",
            "step 10: the random counter is 9 in the record and 0 here",
        ),
        ("\"lr\":0.01", "\"lr\":0.02", "checkpoint.safetensors: settings "),
        ("\"fingerprint\":\"", "\"fingerprint\":\"f", "step 30: the fingerprint is f"),
        ("\"numerics_version\":", "\"numerics_version\":9", ""),
    ] {
        fs::write(here.join("r/record.jsonl"), forged(&honest, &|l| l.replacen(from, to, 1))).unwrap();
        let run = run_in(here, "verify r --device cpu --quiet");
        if want.is_empty() {
            run.failed(from, "of the numerics, this is version");
            continue;
        }
        assert!(refused(&run, from).contains(want), "{from}: {}", run.out);
    }
    // Without the last lines, the checkpoint is beyond the record.
    let short: String = honest.lines().take(20).map(|l| format!("{l}\n")).collect();
    fs::write(here.join("r/record.jsonl"), short).unwrap();
    let why = refused(&run_in(here, "verify r --device cpu --quiet"), "short");
    assert!(why.contains("checkpoint.safetensors: is of step 30, the record ends at step 18"), "{why}");
    fs::write(&verified, &honest).unwrap();
    let why = refused(&run_in(here, "verify r --device cpu --quiet"), "a record for a receipt");
    assert!(why.ends_with("verified.json: is not a receipt; remove it"), "{why}");
    fs::remove_file(&verified).unwrap();
    // As far as it goes it is right, also if nothing can be left there.
    fs::remove_file(here.join("r/checkpoint.safetensors")).unwrap();
    fs::create_dir(&verified).unwrap();
    let run = good(here, "verify r --device cpu --quiet");
    assert!(run.out.starts_with("verified: 18 steps, root "), "{}", run.out);
    assert!(
        run.err.contains("verified.json: is a folder") && run.err.contains("as unverified"),
        "{}",
        run.err
    );
}
