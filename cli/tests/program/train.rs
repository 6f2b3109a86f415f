//! Training runs as their users see them: folders, resume, interruption, prediction, and bad input.

#[cfg(unix)]
use crate::program::{Run, limited, signal};
use crate::program::{command_in, failed, good, measured, run_in};
use dittograd::prelude::*;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Small runs of every model.
const MODELS: [(&str, &str); 9] = [
    ("mlp", "--samples 100 --hidden 8 --batch 20"),
    ("mlp", "--data friedman1 --samples 60 --batch 16"),
    ("cnn", "--samples 60 --batch 10 --config {\"widths\":[2,3,4]}"),
    ("resnet", "--samples 60 --batch 10 --config {\"width\":4}"),
    (
        "vit",
        "--samples 60 --batch 10 --config {\"width\":8,\"heads\":2,\"layers\":1,\"hidden\":8,\"dropout\":0.1}",
    ),
    ("gpt", "--samples 60 --batch 10 --config {\"width\":8,\"heads\":2,\"layers\":1,\"dropout\":0.1}"),
    ("mamba", "--samples 60 --batch 10 --config {\"width\":8,\"layers\":1,\"state\":4}"),
    (
        "fno1d",
        "--samples 30 --grid 32 --batch 5 --config {\"width\":4,\"modes\":4,\"layers\":2,\"hidden\":8}",
    ),
    ("autoencoder", "--samples 60 --batch 10 --config {\"widths\":[2,4],\"latent\":3}"),
];

#[test]
fn every_model_trains_to_one_fingerprint_in_both_modes() {
    let home = TempDir::new().unwrap();
    for (model, options) in MODELS {
        let steps = 6;
        let train = format!("train {model} {options} --device cpu --steps {steps} --eval-every 3");
        let whole = good(home.path(), &format!("{train} --threads 2 --out whole"));
        let print = whole.fingerprint();
        let eager = good(home.path(), &format!("{train} --mode eager --threads 1 --out none"));
        assert_eq!(eager.fingerprint(), print, "{model} {options}, eager");
        for file in
            ["checkpoint.safetensors", "best.safetensors", "metrics.jsonl", "curves.svg", "curves.png"]
        {
            assert!(home.path().join("whole").join(file).exists(), "{model}: {file}");
        }
        let again = good(home.path(), "train --resume whole --device cpu --mode eager");
        assert_eq!(again.fingerprint(), print, "{model}: nothing left to do");
        let scores = good(home.path(), "predict whole --device cpu --json");
        let object: Value = serde_json::from_str(scores.out.trim()).unwrap();
        assert_eq!(object["fingerprint"], *print, "{model}");
        assert!(
            whole.out.contains(&format!("test loss {:.6}", object["test_loss"].as_f64().unwrap())),
            "{model}"
        );
        std::fs::remove_dir_all(home.path().join("whole")).unwrap();
    }
}

/// Waits until a run has a checkpoint, and at least so many of its lines.
fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

const LONG: &str = "train gpt --samples 200 --batch 20 --config {\"width\":16,\"heads\":2,\"layers\":1,\"dropout\":0.1} \
                    --device cpu --steps 400 --eval-every 20 --clip 1";

#[test]
fn a_killed_run_goes_on_to_the_same_fingerprint() {
    let home = TempDir::new().unwrap();
    let whole = good(home.path(), &format!("{LONG} --out whole")).fingerprint();
    for (i, mode) in ["compiled", "eager"].into_iter().enumerate() {
        let name = format!("killed{i}");
        let mut child =
            command_in(home.path(), &format!("{LONG} --out {name} --mode {mode}")).spawn().unwrap();
        wait_for(&home.path().join(&name).join("checkpoint.safetensors"));
        std::thread::sleep(Duration::from_millis(37 * (i as u64 + 1)));
        child.kill().unwrap();
        child.wait().unwrap();
        let other = if mode == "eager" { "compiled" } else { "eager" };
        let run = good(home.path(), &format!("train --resume {name} --device cpu --mode {other}"));
        assert_eq!(run.fingerprint(), whole, "{mode}");
        assert_eq!(measured(&home.path().join(name)), measured(&home.path().join("whole")));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_how_to_go_on_and_does() {
    let home = TempDir::new().unwrap();
    let whole = good(home.path(), &format!("{LONG} --out whole")).fingerprint();
    let child = command_in(home.path(), &format!("{LONG} --out cut")).spawn().unwrap();
    wait_for(&home.path().join("cut/checkpoint.safetensors"));
    signal(&child, "-INT");
    let end = Run::of(child.wait_with_output().unwrap());
    if end.code == Some(0) {
        // It was faster than the signal.
        return;
    }
    assert_eq!(end.code, Some(1), "{}", end.err);
    assert!(end.err.contains("go on with: dittograd train --resume cut"), "{}", end.err);
    assert_eq!(good(home.path(), "train --resume cut --device cpu").fingerprint(), whole);
}

#[test]
fn parts_of_a_batch_and_patience_and_epochs() {
    let home = TempDir::new().unwrap();
    let tiny = "--samples 100 --hidden 8 --batch 20 --device cpu --out none";
    let whole = good(home.path(), &format!("train mlp {tiny} --steps 4 --accumulate 4"));
    let eager = good(home.path(), &format!("train mlp {tiny} --steps 4 --accumulate 4 --mode eager"));
    assert_eq!(whole.fingerprint(), eager.fingerprint());
    let epochs = good(home.path(), &format!("train mlp {tiny} --epochs 2"));
    let steps = good(home.path(), &format!("train mlp {tiny} --steps 8"));
    assert_eq!(epochs.fingerprint(), steps.fingerprint());
    let stopped =
        good(home.path(), &format!("train mlp {tiny} --steps 50 --eval-every 1 --patience 2 --lr 0"));
    assert!(stopped.out.contains("step 3: stopped, 2 evaluations"), "{}", stopped.out);
    let runs = good(home.path(), "train mlp --samples 100 --steps 1 --device cpu");
    assert!(runs.out.contains("runs/mlp: "), "{}", runs.out);
    assert!(good(home.path(), "train mlp --samples 100 --steps 1 --device cpu").out.contains("runs/mlp-2: "));
}

#[test]
fn a_number_that_is_none_is_traced_to_where_it_came_from() {
    let home = TempDir::new().unwrap();
    let args =
        "train mlp --samples 100 --batch 20 --device cpu --steps 200 --lr 1e18 --optimizer sgd --out none";
    let run = run_in(home.path(), args);
    assert_eq!(run.code, Some(2), "{}", run.out);
    let line = run.err.lines().last().unwrap_or_default();
    assert!(
        line.contains("the loss of step") && line.contains("in step ") && line.contains("--lr"),
        "{line}"
    );
}

#[test]
fn predictions_of_files() {
    let home = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
    let rows: String = (0..40).map(|i| format!("{},{},{}\n", i, 40 - i, i % 2)).collect();
    write("classes.csv", &rows);
    good(home.path(), "train mlp --data classes.csv --steps 3 --batch 8 --device cpu --out c");
    write("inputs.csv", "a,b\n1,2\n3,4\n");
    let run1 = good(home.path(), "predict c --data inputs.csv --device cpu");
    assert_eq!(run1.out.lines().next(), Some("class,probability,y0,y1"));
    assert_eq!(run1.out.lines().count(), 3, "{}", run1.out);
    good(home.path(), "predict c --data inputs.csv --device cpu --out p.npy");
    let npy = dittograd::io::read_npy(home.path().join("p.npy")).unwrap();
    assert_eq!(npy.shape().dims(), [2, 2]);
    let cells: Vec<f32> =
        run1.out.lines().nth(2).unwrap().split(',').skip(2).map(|c| c.parse().unwrap()).collect();
    assert_eq!(npy.num().unwrap().data()[2..], cells[..]);

    for (class, shade) in ["bright", "dark"].into_iter().zip([200u8, 30]) {
        let folder = home.path().join("pictures").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for i in 0..8u8 {
            let file = std::fs::File::create(folder.join(format!("{i}.png"))).unwrap();
            let mut png = png::Encoder::new(file, 8, 8);
            png.set_color(if i == 3 { png::ColorType::Rgb } else { png::ColorType::Grayscale });
            let bytes = vec![shade + i; if i == 3 { 192 } else { 64 }];
            png.write_header().unwrap().write_image_data(&bytes).unwrap();
        }
    }
    let args = "train cnn --data pictures --steps 20 --batch 6 --lr 1e-2 --device cpu --out none";
    let pictures = good(home.path(), &format!("{args} --config {{\"widths\":[4,4,4]}}"));
    assert!(
        pictures.out.contains("of [3, 8, 8]") && pictures.out.contains("accuracy 100.00 %"),
        "{}",
        pictures.out
    );

    let rows: String = (0..40).map(|i| format!("{},{}\n", i, 1000 + 3 * i)).collect();
    write("numbers.csv", &rows);
    good(home.path(), "train mlp --data numbers.csv --targets 1 --steps 200 --batch 8 --device cpu --out n");
    write("one.csv", "10\n20\n");
    let run2 = good(home.path(), "predict n --data one.csv --device cpu");
    let got: Vec<f32> = run2.out.lines().skip(1).map(|l| l.parse().unwrap()).collect();
    assert!((got[0] - 1030.0).abs() < 10.0 && (got[1] - 1060.0).abs() < 10.0, "{got:?}");

    write("text.txt", &"the quick brown fox jumps over the lazy dog. ".repeat(40));
    let config = "--config {\"width\":16,\"heads\":2,\"layers\":1}";
    good(
        home.path(),
        &format!("train gpt --data text.txt --grid 16 --steps 5 --batch 8 --device cpu --out t {config}"),
    );
    let args = "predict t --prompt the --tokens 12 --temperature 0.9 --top-k 5 --seed 3 --device cpu --json";
    let (one, two) = (good(home.path(), args), good(home.path(), args));
    assert_eq!(one.out, two.out);
    let object: Value = serde_json::from_str(one.out.trim()).unwrap();
    assert_eq!(object["prompt"], "the");
    good(
        home.path(),
        "train gpt --samples 60 --batch 10 --steps 2 --device cpu --out g --config {\"width\":8,\"heads\":2}",
    );
    assert!(good(home.path(), "predict g --prompt 47+85= --device cpu").out.starts_with("47+85="));
}

/// Name and shape of an array.
type Array<'a> = (&'a str, &'a [usize]);

/// Writes an .npz file of arrays by their names and shapes: numbers, or whole ones below 3 where the name is `3:x`.
fn arrays(path: &Path, all: &[Array]) {
    let array = |(name, dims): &Array| -> (String, AnyTensor) {
        let shape = Shape::new(dims).unwrap();
        match name.split_once(':') {
            Some((below, name)) => {
                (name.into(), Tensor::from_fn(shape, |i| i as u32 % below.parse::<u32>().unwrap()).into())
            }
            None => (name.to_string(), Tensor::from_fn(shape, |i| i as f32 * 0.25).into()),
        }
    };
    let all: Vec<(String, AnyTensor)> = all.iter().map(array).collect();
    let all: Vec<(&str, &AnyTensor)> = all.iter().map(|(n, a)| (n.as_str(), a)).collect();
    dittograd::io::write_npz(path, &all).unwrap();
}

#[test]
fn one_number_to_predict_needs_no_axis() {
    let home = TempDir::new().unwrap();
    arrays(&home.path().join("flat.npz"), &[("x", &[20, 3]), ("y", &[20])]);
    arrays(&home.path().join("column.npz"), &[("x", &[20, 3]), ("y", &[20, 1])]);
    let train = |file: &str| {
        let args = format!("train mlp --data {file} --steps 5 --batch 8 --device cpu --out none");
        good(home.path(), &args).fingerprint()
    };
    assert_eq!(train("flat.npz"), train("column.npz"));
}

#[test]
fn bad_input_is_one_line_and_nothing_is_lost() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    good(home.path(), "train mlp --samples 100 --steps 2 --device cpu --out kept");
    let before = std::fs::read(at("kept/checkpoint.safetensors")).unwrap();
    std::fs::write(at("cut.safetensors"), &before[..before.len() / 2]).unwrap();
    let mut flipped = before.clone();
    let last = flipped.len() - 9;
    flipped[last] ^= 1;
    std::fs::write(at("flipped.safetensors"), flipped).unwrap();
    std::fs::write(at("file"), "x").unwrap();
    std::fs::write(at("empty.csv"), "").unwrap();
    std::fs::write(at("some.csv"), "1,2\n3,4\n").unwrap();
    std::fs::write(at("broken.npz"), "PK\x03\x04 nothing").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let files: [(&str, &[Array]); 16] = [
        ("cube", &[("x", &[9, 4]), ("y", &[9, 2, 2])]),
        ("pairs", &[("x", &[9, 4]), ("3:y", &[9, 1])]),
        ("line", &[("x", &[9]), ("y", &[9])]),
        ("flat", &[("x", &[9, 8, 2]), ("y", &[9])]),
        ("bare", &[("x", &[9, 8, 2]), ("y", &[9, 8])]),
        ("coarse", &[("x", &[9, 8, 2]), ("y", &[9, 4, 1])]),
        ("whole", &[("x", &[9, 8, 2]), ("3:y", &[9, 8, 1])]),
        ("square", &[("x", &[9, 8, 8, 2]), ("y", &[9, 8, 4, 1])]),
        ("deep", &[("x", &[9, 8, 8, 2]), ("y", &[9, 8, 8, 1, 1])]),
        ("images", &[("x", &[9, 1, 8, 8]), ("3:y", &[9, 8])]),
        ("tokens", &[("3:x", &[9, 8]), ("3:y", &[9])]),
        ("long", &[("3:x", &[9, 8, 2]), ("3:y", &[9, 8, 2])]),
        ("wild", &[("3:x", &[9, 8]), ("2:y", &[9, 8])]),
        ("scores", &[("3:x", &[9, 8]), ("y", &[9, 8])]),
        ("tests", &[("x", &[9, 4]), ("y", &[9, 2]), ("x_test", &[9, 3]), ("y_test", &[9, 2])]),
        ("judges", &[("x", &[9, 4]), ("y", &[9, 2]), ("x_test", &[9, 4]), ("y_test", &[9])]),
    ];
    files.iter().for_each(|(name, all)| arrays(&at(&format!("{name}.npz")), all));
    for (args, part) in [
        ("train mlp --data cube.npz", "mlp needs numbers of shape (N, K), such as y.reshape(len(y), -1)"),
        (
            "train mlp --data pairs.npz",
            "mlp needs one class a row, y of shape (N), such as y[:, 0]; pairs.npz has",
        ),
        ("train mlp --data line.npz", "mlp needs features (N, F); line.npz has inputs of shape [9]"),
        ("train fno1d --data line.npz", "fno1d needs fields (N, X, C)"),
        (
            "train fno1d --data flat.npz",
            "on the grid of its inputs, which have shape [9, 8, 2]; flat.npz has targets",
        ),
        ("train fno1d --data bare.npz", "an axis of channels, such as y[..., None]"),
        ("train fno1d --data coarse.npz", "shape [9, 8, 2]; coarse.npz has targets of shape [9, 4, 1]"),
        ("train fno1d --data whole.npz", "needs numbers as targets, such as y.astype(np.float32)"),
        ("train fno2d --data square.npz", "square.npz has targets of shape [9, 8, 4, 1]"),
        ("train fno2d --data deep.npz", "deep.npz has targets of shape [9, 8, 8, 1, 1]"),
        ("train cnn --data images.npz", "one class a row"),
        ("train gpt --data tokens.npz", "a target for each token, of which there are [9, 8]"),
        ("train gpt --data long.npz", "gpt needs tokens (N, T); long.npz"),
        ("train gpt --data wild.npz", "wild.npz: token 2 of the inputs is none of 2"),
        ("train gpt --data scores.npz", "gpt needs tokens as targets"),
        ("train mlp --data tests.npz", "x has shape [9, 4], x_test [9, 3]; rows must be alike"),
        ("train mlp --data judges.npz", "y has shape [9, 2], y_test [9, 1]; rows must be alike"),
        ("train", "name a model"),
        ("train mlp --out kept", "holds a run already"),
        ("train mlp --out file/x", "file/x: Not a directory"),
        ("train mlp --out file", "file: is a file, not a folder"),
        ("train mlp --data nothing", "there is no such file; made from a seed are spirals"),
        ("train mlp --data nothing.csv", "nothing.csv"),
        ("train mlp --data empty.csv", "is empty"),
        ("train mlp --data broken.npz", "broken.npz"),
        ("train mlp --data folder", "a folder of data has"),
        ("train cnn --data spirals", "cnn needs images"),
        ("train gpt --data digits", "gpt needs tokens"),
        ("train mlp --data additions", "mlp needs numbers"),
        ("train mlp --config 3", "JSON object"),
        ("train mlp --config {", "--config {"),
        ("train cnn --samples 20 --config {\"nothing\":1}", "cnn has no `nothing`"),
        ("train cnn --samples 20 --config {\"widths\":-1}", "cnn"),
        ("train cnn --samples 20 --config {\"widths\":[99999999,2,2]}", "a size above"),
        ("train cnn --hidden 3", "--hidden is for mlp"),
        ("train mlp --batch 4000", "there are 2400 training rows"),
        ("train mlp --batch 10 --accumulate 3", "no such equal parts"),
        ("train mlp --grid 3", "has no grid"),
        ("train mlp --steps 0", "--steps"),
        ("train mlp --steps 2 --epochs 2", "cannot be used with"),
        ("train --resume nothing", "nothing"),
        ("train --resume cut.safetensors", "cut.safetensors"),
        ("train --resume flipped.safetensors", "flipped.safetensors"),
        (
            "train --resume kept --lr 3",
            "--lr 3: the run has 0.01; leave out what differs, or start another run",
        ),
        ("train --resume kept --steps 1", "--steps 1: the run has made 2 steps already"),
        ("train cnn --resume kept", "model cnn: the run has mlp"),
        ("train mlp --tokenizer bpe:300", "--tokenizer is for gpt and mamba on a file of text"),
        ("train gpt --tokenizer bpe:300", "on a file of text"),
        ("train gpt --data scores.npz --tokenizer bpe:300", "on a file of text"),
        (
            "train gpt --data file --tokenizer bpe:256",
            "--tokenizer bpe:256: use bpe:SIZE with a size from 257",
        ),
        ("train gpt --data file --tokenizer bpe:x", "use bpe:SIZE with a size"),
        ("train gpt --data file --tokenizer bpe:99999999999999999999", "use bpe:SIZE with a size"),
        ("train gpt --data file --tokenizer bpe:300", "file: has 1 tokens, a window of 64"),
        ("train gpt --data nothing.txt --tokenizer bpe:300", "nothing.txt: No such file"),
        ("train gpt --data file --tokenizer nothing", "--tokenizer nothing: there is no such file"),
        ("train gpt --data file --tokenizer file", "file: is no JSON"),
        ("train gpt --data file --tokenizer folder", "folder: has no tokenizer.json, and not both"),
        ("train gpt --data file --tokenizer broken.npz", "broken.npz: is no JSON"),
        ("train gpt --data file --tokenizer kept/checkpoint.safetensors", "is not UTF-8 text"),
        ("train --resume kept --tokenizer bpe:300", "--tokenizer bpe:300: the run has bytes"),
        ("predict nothing", "nothing"),
        ("predict kept --data empty.csv", "is empty"),
        ("predict kept --data nothing.npy", "nothing.npy"),
        ("predict kept --prompt x", "only gpt and mamba write"),
        ("predict kept --data image.png", "image.png: mlp takes no images"),
        ("predict kept --data folder", "folder: holds no PNG or JPEG files"),
        ("predict kept --data square.npz", "square.npz: has rows of shape [8, 8, 2]; this mlp takes [2]"),
        ("train mlp --resize 8x8", "--resize is for folders of images; spirals is made in its size"),
        ("train mlp --data some.csv --resize 8x8", "--resize is for folders of images; some.csv is a file"),
        ("train mlp --resize 8", "use HxW"),
        ("predict kept --data file", "file"),
        ("predict kept --data some.csv --out file/p.npy", "file/p.npy: Not a directory"),
        ("predict kept --data some.csv --out folder", "folder: is a folder, not a file"),
        ("predict kept --data some.csv --out nowhere/p.csv", "nowhere/p.csv: No such file"),
    ] {
        failed(home.path(), &format!("{args} --device cpu"), part);
    }
    assert_eq!(std::fs::read(at("kept/checkpoint.safetensors")).unwrap(), before);
    assert!(good(home.path(), "predict kept --device cpu").out.contains("accuracy"));
}

#[test]
fn tokens_of_a_text_are_kept_with_the_run() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    // Not all of it is UTF-8.
    let text = "the größte fox doesn't jump over the größere fox, 👍👍. ".repeat(60);
    std::fs::write(at("text.txt"), [text.as_bytes(), b"\xff\xfe\xff\xfe"].concat()).unwrap();
    let train = "train gpt --data text.txt --grid 16 --batch 8 --device cpu --schedule constant --eval-every 3 --config \
                 {\"width\":16,\"heads\":2,\"layers\":1}";
    let whole = good(home.path(), &format!("{train} --tokenizer bpe:290 --steps 6 --out whole"));
    assert!(whole.out.contains("perplexity") && whole.out.contains("bits per byte"), "{}", whole.out);
    let print = whole.fingerprint();
    good(home.path(), &format!("{train} --tokenizer bpe:290 --steps 3 --out cut"));
    // The checkpoint is all that is needed, beside the text.
    std::fs::remove_file(at("cut/tokenizer.json")).unwrap();
    std::fs::rename(at("cut/checkpoint.safetensors"), at("moved.safetensors")).unwrap();
    let again = "train --resume moved.safetensors --steps 6 --device cpu --out again --mode eager --tokenizer bpe:290";
    assert_eq!(good(home.path(), again).fingerprint(), print);
    // The tokenizer of a run serves another one.
    let other = good(home.path(), &format!("{train} --tokenizer again --steps 6 --out other"));
    assert_eq!(other.fingerprint(), print);
    let other = good(home.path(), &format!("{train} --tokenizer whole/tokenizer.json --steps 6 --out none"));
    assert_eq!(other.fingerprint(), print);
    let shown = good(home.path(), "inspect whole/checkpoint.safetensors").out;
    assert!(shown.contains("\ntokenizer 290 tokens, 34 merges\n"), "{shown}");
    let shown: Value =
        serde_json::from_str(&good(home.path(), "inspect whole/checkpoint.safetensors --json").out).unwrap();
    assert_eq!(shown["checkpoint"]["tokenizer"]["tokens"], 290);
    assert_eq!(shown["checkpoint"]["config"]["config"]["vocab"], 290);

    // Bytes of a prediction in a file, and as text, are those of the same tokens.
    std::fs::remove_file(at("text.txt")).unwrap();
    let predict = "predict whole --prompt größ --tokens 40 --temperature 2 --seed 5 --device cpu";
    let object: Value = serde_json::from_str(&good(home.path(), &format!("{predict} --json")).out).unwrap();
    let said = good(home.path(), predict).out;
    assert_eq!(said, format!("größ{}\n", object["text"].as_str().unwrap()));
    good(home.path(), &format!("{predict} --out said.txt"));
    let bytes = std::fs::read(at("said.txt")).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), said);

    // Bytes are what there is without it, and a number for each of them compares the two.
    std::fs::write(at("text.txt"), text).unwrap();
    let [plain, bytes] = ["", "--tokenizer bytes"]
        .map(|option| good(home.path(), &format!("{train} {option} --steps 6 --out none --json")).out);
    let last = |out: &str| -> Value { serde_json::from_str(out.lines().last().unwrap()).unwrap() };
    let (plain, bytes) = (last(&plain), last(&bytes));
    assert_eq!(plain["fingerprint"], bytes["fingerprint"]);
    let number = |key: &str| plain[key].as_f64().unwrap();
    assert!((number("test_bits_per_byte") - number("test_loss") / std::f64::consts::LN_2).abs() < 1e-9);
}

/// No temporary file is left in a folder.
fn tidy(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
    names.into_iter().all(|n| !n.to_string_lossy().starts_with('.'))
}

const TINY: &str = "train mlp --samples 100 --batch 20 --hidden 4 --device cpu --steps 400 --eval-every 10";

#[cfg(unix)]
#[test]
fn a_full_disk_ends_a_run_that_goes_on_to_the_same_fingerprint() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    let whole = good(home.path(), &format!("{TINY} --out whole")).fingerprint();
    let full = |blocks: u32, args: &str, file: &str| {
        let run = limited(blocks, &command_in(home.path(), args));
        run.failed(file, file);
        assert!(run.err.ends_with("(os error 27)\n"), "{file}: {}", run.err);
    };
    // What is written first beyond so many blocks, and whether there is a checkpoint by then.
    for (i, (blocks, options, file, saved)) in [
        (1, "", "r0/checkpoint.safetensors", false),
        (8, "--record none", "r1/metrics.jsonl", true),
        (44, "--record none", "r2/curves.png", true),
        (24, "--tensorboard --record none", "r3/events.out.tfevents", true),
        (24, "", "r4/record.jsonl", true),
    ]
    .into_iter()
    .enumerate()
    {
        full(blocks, &format!("{TINY} --out r{i} {options}"), file);
        assert!(tidy(&at(&format!("r{i}"))), "{file}");
        assert_eq!(at(&format!("r{i}/checkpoint.safetensors")).exists(), saved, "{file}");
        if saved {
            let run = good(home.path(), &format!("train --resume r{i} --device cpu"));
            assert_eq!(run.fingerprint(), whole, "{file}");
        }
    }

    // A checkpoint that cannot be replaced stays.
    good(home.path(), &format!("{} --out cut", TINY.replace("400", "10")));
    let before = std::fs::read(at("cut/checkpoint.safetensors")).unwrap();
    let go_on = "train --resume cut --steps 400 --device cpu --record none";
    full(4, go_on, "cut/checkpoint.safetensors");
    assert_eq!(std::fs::read(at("cut/checkpoint.safetensors")).unwrap(), before);
    full(1, go_on, "cut/metrics.jsonl");
    assert_eq!(std::fs::read(at("cut/checkpoint.safetensors")).unwrap(), before);
    assert!(tidy(&at("cut")));
    assert_eq!(good(home.path(), go_on).fingerprint(), whole);
    let best = |name: &str| dittograd::io::Checkpoint::load(at(name).join("best.safetensors")).unwrap().step;
    assert_eq!(best("cut"), best("whole"));

    // Predictions that have no room leave those of before.
    let rows: String = (0..500).map(|i| format!("{i},1\n")).collect();
    std::fs::write(at("rows.csv"), rows).unwrap();
    for file in ["p.npy", "p.csv"] {
        std::fs::write(at(file), "before").unwrap();
        let args = format!("predict whole --data rows.csv --device cpu --out {file}");
        full(2, &args, file);
        assert_eq!(std::fs::read(at(file)).unwrap(), b"before");
        good(home.path(), &args);
    }
    assert!(tidy(home.path()));
    full(2, &format!("{TINY} --out none --profile trace.json"), "trace.json");
    assert!(!at("trace.json").exists() && tidy(home.path()));
}

#[cfg(target_os = "linux")]
#[test]
fn each_file_of_a_run_may_be_the_one_without_room() {
    let home = TempDir::new().unwrap();
    let text = "word and word again. ".repeat(40);
    std::fs::write(home.path().join("text.txt"), text).unwrap();
    let gpt = "train gpt --data text.txt --grid 16 --steps 2 --batch 8 --device cpu --config {\"width\":8,\"heads\":2}";
    let fno = "train fno1d --samples 12 --grid 16 --batch 4 --steps 2 --device cpu --config {\"width\":4,\"modes\":4}";
    for (i, (args, file)) in [
        (TINY, "curves.svg"),
        (TINY, "curves.png"),
        (fno, "prediction.svg"),
        (fno, "prediction.png"),
        (gpt, "samples.txt"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = home.path().join(format!("r{i}"));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.join(file)).unwrap();
        let run = run_in(home.path(), &format!("{args} --out r{i}"));
        let want = format!("dittograd: write: r{i}/{file}: No space left on device (os error 28)\n");
        assert_eq!((run.code, run.err), (Some(2), want));
        std::fs::remove_file(folder.join(file)).unwrap();
        let whole = good(home.path(), &format!("{args} --out none")).fingerprint();
        let run = good(home.path(), &format!("train --resume r{i} --device cpu"));
        assert_eq!(run.fingerprint(), whole, "{file}");
        assert!(folder.join(file).exists(), "{file}");
    }
}
